"""What a user's node keeps in its attributes, described as JSON, and made again from that.

Numbers, texts, bytes, small arrays, the generators of `random`, NumPy and torch can be described, and lists, tuples,
sets, dicts and deques of those, up to 1,000 elements in all; and attributes of objects of the user's classes, which are
set in the object that is there. Of an iterator that is held, of a longer list whose length
changes, and of an array of another library only a change can be noticed. Objects of libraries are not looked at.
"""

from __future__ import annotations

import base64
import io
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from dataflow.protocol.state import state_of

__all__ = ["Kept", "changes", "describe", "is_opaque", "make", "note_first", "put"]

_MAX_ELEMENTS: Final = 1000  # of what one attribute holds
_MAX_BYTES: Final = 100_000  # of one text, or one array
_OF_OBJECT: Final = 20  # as many elements stand for an object
_OPAQUE: Final = "cannot be given"  # the mark of such a description
_NUMBERS: Final = "biufc"  # kinds of dtypes
_BIT_GENERATORS: Final = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
_COLLECTIONS: Final[dict[str, Any]] = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}


class Kept:
    """What this process knows of what a node keeps.

    Attributes:
        first: The descriptions of its attributes as its first pass began here; None before.
        given: What has changed since the first pass of all, to be put into its attributes; None if nobody has said so.
        reported: What has changed since then in a worker, as it was reported last.
        seen: The descriptions of its attributes here, as the last pass of a worker began.
        changed: An attribute that a pass has changed which must stand alone; or "".
        is_due: Workers that have made passes get what was reported, too: they must not continue with what they have.
        iterators: What it held as its first pass began here.
    """

    def __init__(self) -> None:
        self.first: dict[str, Any] | None = None
        self.given: dict[str, Any] | None = None
        self.reported: dict[str, Any] = {}
        self.seen: dict[str, Any] | None = None
        self.changed = ""
        self.is_due = False
        self.has_warned = False
        self.iterators: dict[str, Any] = {}


def note_first(df: Any) -> None:
    """Remember what the node `df` has in its attributes as its first pass begins in this process."""
    part = state_of(df).part(Kept)
    if part.first is None:
        part.first = describe(df)
        part.iterators = {name: value for name, value in _attributes(df) if _is_held_iterator(value)}


def put(df: Any) -> None:
    """Let a pass of the node `df` begin: what it was given becomes its attributes."""
    note_first(df)
    part = state_of(df).part(Kept)
    given, part.given = part.given, None
    if given is None:
        return
    assert part.first is not None
    described = describe(df)
    wanted = {**part.first, **given}
    for name, text in wanted.items():
        if not is_opaque(text) and described.get(name) != text:
            setattr(df, name, make(text, getattr(df, name, None)))
    for name, text in described.items():
        if not is_opaque(text) and name not in wanted:
            delattr(df, name)  # the code has made it since, and will again; a class may have a value of the same name


def changes(df: Any) -> dict[str, Any]:
    """What the node `df` keeps: what has changed since the first pass of all.

    What cannot be given and stands where there was nothing or None is left out: it is made when it is first needed.
    """
    part = state_of(df).part(Kept)
    if part.given is not None:
        return part.given  # not in the attributes yet
    if part.first is None:
        return {}
    changed = {}
    for name, description in describe(df).items():
        before = part.first.get(name)
        if description != before and not (is_opaque(description) and before is None):
            changed[name] = description
    for name, iterator in part.iterators.items():
        if getattr(df, name, None) is iterator:
            changed[name] = [_OPAQUE, f"{iterator!r:.80} is held over several passes"]
    return changed


class _CannotBeGiven(Exception):
    """A value cannot be given to another process; the text describes it, if a change of it can be noticed."""


def is_opaque(description: Any) -> bool:
    """Whether what is described cannot be made again: only a change of it can be noticed."""
    return isinstance(description, list) and description[:1] == [_OPAQUE]


def _is_held_iterator(value: Any) -> bool:
    """Whether `value` is an iterator that steps through something; a file can go back to its beginning."""
    return isinstance(value, Iterator) and not isinstance(value, io.IOBase)


def _attributes(df: Any) -> list[tuple[str, Any]]:
    names = [*vars(df).copy(), *(name for cls in type(df).__mro__ for name in vars(cls).get("__slots__", ()))]
    return [(name, getattr(df, name)) for name in names if hasattr(df, name)]


def describe(df: Any) -> dict[str, Any]:
    """A description of each attribute of which a change can be noticed; None for None."""
    described = {}
    for name, value in _attributes(df):
        if not name.startswith("_df_"):
            try:
                described[name] = _describe(value, _Budget())
            except _CannotBeGiven as error:
                text = f"{type(value).__name__} of length {len(value)}" if isinstance(value, list | deque) else ""
                text += str(error)
                if text:
                    described[name] = [_OPAQUE, text]
    return described


class _Budget:
    """How many more elements may be described, and the objects that were."""

    def __init__(self) -> None:
        self.left = _MAX_ELEMENTS
        self.objects: set[int] = set()

    def spend(self, num: int, nbytes: int = 0) -> None:
        self.left -= num
        if self.left < 0 or nbytes > _MAX_BYTES:
            raise _CannotBeGiven


def _describe(value: Any, budget: _Budget) -> Any:
    """`value` as JSON: itself, or a list of the name of its kind and of what it consists of."""
    kind = type(value)
    if value is None or kind in (bool, int):
        return value
    if kind is float:
        return value if isfinite(value) else ["float", str(value)]
    if kind in (str, bytes):
        budget.spend(0, len(value))
        return value if kind is str else ["bytes", _text(value)]
    if (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in _NUMBERS:
        budget.spend(value.size, value.nbytes)
        name = "array" if kind is np.ndarray else "scalar"
        return [name, value.dtype.str, list(value.shape), _text(value.tobytes())]
    if kind in _COLLECTIONS.values() or kind is deque or kind is dict:
        budget.spend(len(value))
        if kind is dict:
            return ["dict", [[_describe(key, budget), _describe(held, budget)] for key, held in value.items()]]
        elements = [_describe(element, budget) for element in value]
        if kind is deque:
            return ["deque", elements, value.maxlen]
        return [kind.__name__, sorted(elements, key=repr) if kind in (set, frozenset) else elements]
    return _describe_generator(value, kind, budget)


def _describe_generator(value: Any, kind: type, budget: _Budget) -> Any:
    if kind is random.Random:
        version, numbers, gauss = value.getstate()
        return ["Random", version, list(numbers), gauss]
    if kind is np.random.Generator and type(value.bit_generator).__name__ in _BIT_GENERATORS:
        return ["Generator", type(value.bit_generator).__name__, _numbers_of(value.bit_generator.state)]
    if kind is np.random.RandomState:
        return ["RandomState", _numbers_of(value.get_state(legacy=False))]
    if kind.__module__.partition(".")[0] == "torch" and kind.__name__ == "Generator" and str(value.device) == "cpu":
        return ["torch.Generator", _text(value.get_state().numpy().tobytes())]
    if hasattr(kind, "__array__"):  # of torch or JAX, a random key for example
        try:
            array = np.asarray(value)
        except Exception:  # such as one in the memory of a GPU
            raise _CannotBeGiven from None
        _Budget().spend(array.size, array.nbytes)
        raise _CannotBeGiven(f"{array.tolist()!r:.80}")
    from dataflow.system.references import is_of_library  # which few nodes need

    if hasattr(value, "__dict__") and (kind is SimpleNamespace or not (callable(value) or is_of_library(kind))):
        return _describe_object(value, budget)
    raise _CannotBeGiven


def _describe_object(value: Any, budget: _Budget) -> Any:
    """The attributes of an object of a user's class, without those that cannot be described."""
    if id(value) in budget.objects:
        raise _CannotBeGiven  # a second time: objects may hold each other
    budget.objects.add(id(value))
    budget.spend(_OF_OBJECT)  # a chain of objects must not be too deep
    described = []
    for name, held in vars(value).copy().items():
        try:
            described.append([name, _describe(held, budget)])
        except _CannotBeGiven as error:
            if str(error):
                raise
    return ["object", described]


def _numbers_of(state: Any) -> Any:
    """The state of a bit generator of NumPy, with lists for its arrays."""
    if isinstance(state, dict):
        return {name: _numbers_of(held) for name, held in state.items()}
    return state.tolist() if isinstance(state, np.ndarray | np.generic) else state


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def make(description: Any, old: Any) -> Any:
    """The value that `description` describes. A generator `old` of the same kind gets the state: others may hold it."""
    if not isinstance(description, list):
        return description
    kind, *parts = description
    return _MAKERS[kind](old, *parts)


def _made_all(elements: Sequence[Any]) -> Iterator[Any]:
    return (make(element, None) for element in elements)


def _made_array(old: Any, dtype: str, shape: Sequence[int], text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), np.dtype(dtype)).reshape(shape).copy()


def _made_object(old: Any, items: Sequence[Sequence[Any]]) -> Any:
    held = {} if old is None else vars(old)
    for name, description in items:
        value = make(description, held.get(name))
        if name in held:
            setattr(old, name, value)
    return old


def _made_random(old: Any, version: int, numbers: Sequence[int], gauss: float | None) -> random.Random:
    made = old if type(old) is random.Random else random.Random()
    made.setstate((version, tuple(numbers), gauss))
    return made


def _made_generator(old: Any, name: str, state: Mapping[str, Any]) -> np.random.Generator:
    is_same = type(old) is np.random.Generator and type(old.bit_generator).__name__ == name
    made: np.random.Generator = old if is_same else np.random.Generator(_BIT_GENERATORS[name]())
    made.bit_generator.state = _with_arrays(state)
    return made


def _made_random_state(old: Any, state: Mapping[str, Any]) -> np.random.RandomState:
    made = old if type(old) is np.random.RandomState else np.random.RandomState()
    made.set_state(_with_arrays(state))
    return made


def _with_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _with_arrays(held) for name, held in state.items()}
    return np.array(state, np.uint64) if isinstance(state, list) else state


def _made_torch(old: Any, text: str) -> Any:
    import torch

    made = torch.Generator() if old is None else old
    made.set_state(torch.from_numpy(np.frombuffer(base64.b64decode(text), np.uint8).copy()))
    return made


_MAKERS: Final[dict[str, Callable[..., Any]]] = {
    "float": lambda old, text: float(text),
    "bytes": lambda old, text: base64.b64decode(text),
    "array": _made_array,
    "scalar": lambda old, *array: _made_array(old, *array)[()],
    "dict": lambda old, items: {make(key, None): make(held, None) for key, held in items},
    "deque": lambda old, elements, maxlen: deque(_made_all(elements), maxlen),
    "object": _made_object,
    "Random": _made_random,
    "Generator": _made_generator,
    "RandomState": _made_random_state,
    "torch.Generator": _made_torch,
    **{name: lambda old, elements, kind=kind: kind(_made_all(elements)) for name, kind in _COLLECTIONS.items()},
    _OPAQUE: lambda old, text: old,
}
