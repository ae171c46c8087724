"""What a user's node keeps in its attributes, described as JSON, and made again from that.

Numbers, texts, bytes, dates, paths, members of enumerations, small arrays, the generators of `random`, NumPy and torch
can be described, and lists, tuples, sets, dicts and deques of those, up to 1,000 elements in all and 50 levels; and
attributes of objects of the user's classes, which are set in the object that is there. Of objects of libraries, and of
functions, only the generators that they hold are described: an augmentation may draw from its own.

Of a function or class, of an iterator that is held, of what is larger (up to 16 MB by all its elements, then by some),
of an array of another library, of a collection of the user's class and of one with objects only a change can be
noticed.
"""

from __future__ import annotations

import base64
import importlib
import io
import json
import random
import sys
from array import array
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from enum import Enum
from functools import partial
from hashlib import sha256
from math import isfinite
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np

from dataflow.protocol.state import state_of

__all__ = ["Kept", "changes", "describe", "is_opaque", "make", "may_be_set", "note_first", "put"]

_MAX_ELEMENTS: Final = 1000  # of what one attribute holds
_MAX_BYTES: Final = 100_000  # of one text, or one array
_MAX_OBJECTS: Final = 50  # that one attribute leads to
_MAX_LEVELS: Final = 50  # of collections in collections
_OPAQUE: Final = "cannot be given"  # the mark of such a description
_NOT_THERE: Final = "an object that was not there at first"
_PLAIN: Final = "biufcmMSU"  # kinds of dtypes
_BIT_GENERATORS: Final = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
_SEQUENCES: Final[tuple[Any, ...]] = (list, tuple, set, frozenset)
_MAPPINGS: Final[tuple[Any, ...]] = (dict, OrderedDict, Counter)
_COLLECTIONS: Final[tuple[Any, ...]] = (*_SEQUENCES, deque, dict)
_TEXTS: Final[tuple[Any, ...]] = (str, bytes, bytearray)
_FACTORIES: Final[dict[str | None, Any]] = {
    None: None,
    **{kind.__name__: kind for kind in (int, float, str, list, set, dict)},
}
_OF_VALUES: Final = frozenset({"datetime", "decimal", "fractions", "pathlib"})  # modules
_HOLDERS: Final = (SimpleNamespace, UserDict, UserList)  # of Python, for what a program assigns
_CODE: Final = (FunctionType, MethodType, BuiltinMethodType, ModuleType, partial, type)


class Kept:
    """What a node keeps whose passes are made in this process."""

    def __init__(self) -> None:
        self.first: dict[str, Any] | None = None  # its attributes as its first pass began here; None before
        self.iterators: dict[str, Any] = {}  # those that it held then
        self.given: dict[str, Any] | None = None  # what it is to have as its next pass begins; None to keep what it has
        self.changed = ""  # an attribute that was changed by a pass which must stand alone


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
        reason = _refusal(before, description)
        if description != before and not (reason and before is None):
            changed[name] = [_OPAQUE, reason] if reason else description
    for name, iterator in part.iterators.items():
        if getattr(df, name, None) is iterator:
            changed[name] = [_OPAQUE, f"{iterator!r:.80} is held over several passes"]
    return changed


def _refusal(before: Any, now: Any) -> str:
    """Why `now` cannot be given where `before` was at first; "" if it can, or has not changed."""
    kind = now[0] if isinstance(now, list) else None
    if now == before or kind not in (_OPAQUE, "object", "holds"):
        return ""
    if kind == _OPAQUE:
        return str(now[1])
    if not isinstance(before, list) or before[0] != kind:
        return _NOT_THERE
    if kind == "holds":
        return "" if [path for path, _ in before[1]] == [path for path, _ in now[1]] else _NOT_THERE
    if before[1] != now[1]:
        return _NOT_THERE
    held = dict(before[2])
    reasons = ((name, _refusal(held[name], part)) for name, part in now[2] if held.get(name) is not None)
    return next((f".{name}: {reason}" for name, reason in reasons if reason), "")


def may_be_set(owner: Any, name: str) -> bool:
    """Whether what a saved state says may become the attribute `name` of `owner`."""
    is_own = name.isidentifier() and not name.startswith(("__", "_df_"))
    return is_own and not callable(getattr(type(owner), name, None))


class _CannotBeGiven(Exception):
    """A value cannot be given to another process; the text describes it, if a change of it can be noticed."""


class _TooLarge(_CannotBeGiven):
    """It has too many elements, or bytes, for a state."""


def is_opaque(description: Any) -> bool:
    """Whether what is described cannot be made again: only a change of it can be noticed."""
    return isinstance(description, list) and description[:1] == [_OPAQUE]


def _is_held_iterator(value: Any) -> bool:
    """Whether `value` is an iterator that steps through something; a file can go back to its beginning."""
    return isinstance(value, Iterator) and not isinstance(value, io.IOBase)


def describe(df: Any) -> dict[str, Any]:
    """A description of each attribute of which a change can be noticed; None for None."""
    return _describe_attributes(df)


def _describe_attributes(owner: Any, objects: set[int] | None = None, level: int = 0) -> dict[str, Any]:
    described = {}
    for name, value in _attributes(owner):
        if not name.startswith("_df_"):
            try:
                described[name] = _describe_held(value, _Budget(objects, level))
            except _CannotBeGiven as error:
                is_noticed = isinstance(error, _TooLarge) or isinstance(value, list | deque | array)
                name_of_code = getattr(value, "__qualname__", "") if isinstance(value, _CODE) else ""
                if text := str(error) or name_of_code or (_sketch(value) if is_noticed else ""):
                    described[name] = [_OPAQUE, text]
    return described


def _attributes(value: Any) -> list[tuple[str, Any]]:
    from dataflow.system.references import attributes_of  # which few nodes need

    return list(attributes_of(value))


class _Budget:
    """How many more elements of an attribute may be described; and the ids of the objects that were."""

    def __init__(self, objects: set[int] | None = None, level: int = 0) -> None:
        self.left = _MAX_ELEMENTS
        self.level = level  # of collections around what is described
        self.objects = set() if objects is None else objects
        self.has_objects = False  # of the user's classes, in a collection

    def spend(self, num: int, nbytes: int = 0) -> None:
        self.left -= num
        if self.left < 0 or nbytes > _MAX_BYTES:
            raise _TooLarge

    def spend_object(self, value: object) -> None:
        """Enter an object. Objects may hold each other, so each is described once."""
        if id(value) in self.objects or len(self.objects) >= _MAX_OBJECTS:
            raise _CannotBeGiven
        self.objects.add(id(value))


def _sketch(value: Any) -> str:
    """What tells that a value has changed which is too large for a state: its size and its elements; or ""."""
    from dataflow.system.references import array_checksum, checksum, samples  # which few nodes need

    some: Iterable[Any] = ()
    if hasattr(type(value), "__array__"):
        try:
            numbers = np.asarray(value)
        except Exception:  # such as one in the memory of a GPU
            return ""
        some = samples(numbers.flat).tolist() if numbers.dtype.hasobject else [array_checksum(numbers)]
        return _size_of(value, f"shape {numbers.shape}", some)
    if not isinstance(value, _TEXTS + _COLLECTIONS + (array,)):
        return ""
    items = _items_of(value)
    if (number := checksum(items)) is not None:
        some = [number]
    elif not isinstance(value, dict | set | frozenset):
        some = samples(value if isinstance(value, _TEXTS) else items)
    return _size_of(value, f"length {len(value)}", some)


def _items_of(value: Any) -> Sequence[Any]:
    """The elements, in an order that is the same in each process."""
    if isinstance(value, _TEXTS):
        return [value]
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    with suppress(TypeError):  # they have no order
        return sorted(value) if isinstance(value, set | frozenset) else list(value)
    return [object()]  # which has no checksum


def _size_of(value: Any, size: str, elements: Iterable[Any]) -> str:
    """A text that is another one if `size` or what is known of `elements` is."""
    described = []
    for element in elements:
        try:
            described.append(_describe(element, _Budget()))
        except _CannotBeGiven as error:
            described.append(str(error))
    return f"{type(value).__name__} of {size}, digest {sha256(json.dumps(described).encode()).hexdigest()[:8]}"


def _describe_held(value: Any, budget: _Budget) -> Any:
    """What an attribute holds: the value; if that cannot be described, the generators in it."""
    try:
        description = _describe(value, budget)
        if budget.has_objects:
            raise _CannotBeGiven(_size_of(value, f"length {len(value)}", [value]))
        return description
    except _CannotBeGiven as error:
        if str(error) and isinstance(value, list | tuple | deque):  # what is said of one element says nothing of others
            raise _CannotBeGiven(_size_of(value, f"length {len(value)}", value)) from None
        found = [] if str(error) else [[path, _describe_generator(held)] for path, held in _generators_in(value)]
        if not found:
            raise
        return ["holds", found]


def _describe(value: Any, budget: _Budget, *, is_element: bool = False) -> Any:
    """`value` as JSON: itself, or a list of the name of its kind and of what it consists of."""
    kind = type(value)
    if value is None or kind in (bool, int):
        return value
    if kind is float:
        return value if isfinite(value) else ["float", str(value)]
    if kind is complex:
        return ["complex", str(value)]
    if kind in _TEXTS:
        budget.spend(0, len(value))
        return value if kind is str else [kind.__name__, _text(value)]
    if (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in _PLAIN:
        budget.spend(value.size, value.nbytes)
        name = "array" if kind is np.ndarray else "scalar"
        return [name, value.dtype.str, list(value.shape), _text(value.tobytes())]
    if isinstance(value, _COLLECTIONS):
        return _describe_collection(value, kind, budget)
    if _is_generator(value):
        return _describe_generator(value)
    if hasattr(kind, "__array__"):  # of torch or JAX, a random key for example
        raise _CannotBeGiven(_sketch(value))
    if kind in (range, slice) or _top(kind.__module__) in _OF_VALUES:
        return _describe_made(value, kind, budget)
    budget.has_objects |= is_element
    return _describe_object(value, kind, budget)


def _describe_collection(value: Any, kind: type, budget: _Budget) -> Any:
    budget.spend(len(value))
    budget.level += 1
    if budget.level > _MAX_LEVELS:
        raise _TooLarge
    describe_element = partial(_describe, budget=budget, is_element=True)
    elements: list[Any]
    if isinstance(value, dict):
        elements = [[describe_element(key), describe_element(held)] for key, held in value.items()]
    else:
        elements = [describe_element(element) for element in value]
    budget.level -= 1
    if isinstance(value, set | frozenset):
        elements.sort(key=repr)
    name = kind.__name__
    if kind is deque:
        return [name, elements, value.maxlen]
    if kind is defaultdict and value.default_factory in _FACTORIES.values():
        return [name, elements, getattr(value.default_factory, "__name__", None)]
    if kind in _SEQUENCES or kind in _MAPPINGS:
        return [name, elements]
    raise _CannotBeGiven(_size_of(value, f"length {len(value)}", value.items() if isinstance(value, dict) else value))


def _describe_made(value: Any, kind: type, budget: _Budget) -> Any:
    """A value that its class makes of arguments, such as a date."""
    reduced = (kind, value.__getinitargs__()) if hasattr(kind, "__getinitargs__") else value.__reduce__()
    with suppress(_CannotBeGiven):
        if reduced[0] is kind and len(reduced) == 2:
            return ["made", _top(kind.__module__), kind.__name__, _describe(reduced[1], budget)]
    raise _CannotBeGiven(repr(value))


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_generator(value: Any) -> bool:
    kind = type(value)
    if kind is np.random.Generator:
        return type(value.bit_generator).__name__ in _BIT_GENERATORS
    is_of_torch = kind.__module__.partition(".")[0] == "torch" and kind.__name__ == "Generator"
    return kind in (random.Random, np.random.RandomState) or (is_of_torch and str(value.device) == "cpu")


def _describe_generator(value: Any) -> Any:
    if type(value) is random.Random:
        version, numbers, gauss = value.getstate()
        return ["Random", version, list(numbers), gauss]
    if type(value) is np.random.Generator:
        return ["Generator", type(value.bit_generator).__name__, _numbers_of(value.bit_generator.state)]
    if type(value) is np.random.RandomState:
        return ["RandomState", _numbers_of(value.get_state(legacy=False))]
    return ["torch.Generator", _text(value.get_state().numpy().tobytes())]


def _describe_object(value: Any, kind: type, budget: _Budget) -> Any:
    """The attributes of an object of a user's class; of some of them, only a change can be noticed."""
    from dataflow.system.references import is_of_library  # which few nodes need

    if isinstance(value, _CODE) or (kind not in _HOLDERS and is_of_library(kind)):
        raise _CannotBeGiven
    budget.spend_object(value)
    return [
        "object",
        kind.__qualname__,
        [*map(list, _describe_attributes(value, budget.objects, budget.level).items())],
    ]


def _generators_in(value: Any) -> list[tuple[list[Any], Any]]:
    """The generators that a value holds in attributes, collections, arguments and closures, and the ways there."""
    from dataflow.system.references import reached  # which few nodes need

    def parts(path: list[Any], value: Any) -> list[tuple[list[Any], Any]]:
        return [([*path, name], part) for name, part in _parts(value)]

    of_all_code = {id(getattr(draw, "__self__", None)) for draw in (np.random.random, random.random)}
    root: tuple[list[Any], Any] = [], value
    found: dict[int, tuple[list[Any], Any]] = {}
    for path, held in reached([root], parts, _MAX_ELEMENTS):
        if _is_generator(held) and id(held) not in of_all_code:
            found.setdefault(id(held), (path, held))
    return list(found.values())


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """What belongs to a value, and its name; of a variable in a closure, and of an item, its place."""
    from dataflow.system.references import held_by, made_of  # which few nodes need

    if isinstance(value, ModuleType | type) or hasattr(type(value), "_df_inputs") or _is_generator(value):
        return []  # nodes describe themselves
    if isinstance(value, list | tuple | deque | dict):
        held = value.copy().values() if isinstance(value, dict) else value
        return list(enumerate(held)) if len(value) <= _MAX_ELEMENTS else []
    if isinstance(value, FunctionType):
        names = value.__code__.co_freevars
        return [(names.index(name) if name in names else name, part) for name, part in held_by(value)]
    if found := made_of(value):
        return list(found.items())
    is_of_python = _top(type(value).__module__) in sys.stdlib_module_names  # a logger, for example
    return [] if is_of_python and not isinstance(value, _HOLDERS) else _attributes(value)


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


def _made_items(items: Sequence[Any]) -> dict[Any, Any]:
    return {make(key, None): make(held, None) for key, held in items}


def _made_array(old: Any, dtype: str, shape: Sequence[int], text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), np.dtype(dtype)).reshape(shape).copy()


def _made_of_arguments(old: Any, module: str, name: str, arguments: Any) -> Any:
    is_known = module in _OF_VALUES or (module == "builtins" and name in {"range", "slice"})
    kind = getattr(importlib.import_module(module), name) if is_known else None  # an import runs code
    values = make(arguments, None)
    if not isinstance(kind, type) or (module == "fractions" and "e" in str(values).lower()):  # of any exponent
        raise ValueError(f"{module}.{name} is no class of values, or has others")
    return kind(*values)


def _made_object(old: Any, kind: str, items: Sequence[Sequence[Any]]) -> Any:
    if isinstance(old, Enum):  # another member of the same class
        return type(old)(next(make(description, None) for name, description in items if name == "_value_"))
    made, held = old, dict(_attributes(old))
    for name, description in items:
        value = make(description, held.get(name))
        if old is not None and may_be_set(old, name) and value is not held.get(name):
            try:
                setattr(made, name, value)
            except AttributeError:  # of a frozen data class: the user's code has replaced it, too
                made = copy(old) if made is old else made
                object.__setattr__(made, name, value)
    return made


def _with_states(old: Any, states: Sequence[tuple[list[Any], Any]]) -> Any:
    for path, description in states:
        held = old
        for name in path:
            held = dict(_parts(held)).get(name)
        make(description, held)
    return old


def _made_random(old: Any, version: int, numbers: Sequence[int], gauss: float | None) -> random.Random:
    made = old if type(old) is random.Random else random.Random()
    made.setstate((version, tuple(numbers), None if gauss is None else float(gauss)))
    return made


def _made_generator(old: Any, name: str, state: Mapping[str, Any]) -> np.random.Generator:
    is_same = type(old) is np.random.Generator and type(old.bit_generator).__name__ == name
    made: np.random.Generator = old if is_same else np.random.Generator(_BIT_GENERATORS[name]())
    made.bit_generator.state = _checked(state)
    return made


def _made_random_state(old: Any, state: Mapping[str, Any]) -> np.random.RandomState:
    made = old if type(old) is np.random.RandomState else np.random.RandomState()
    made.set_state(_checked(state))
    return made


def _checked(state: Any) -> Any:
    """The state of a bit generator of NumPy, which takes places in its numbers as they are: beyond, a draw would crash.

    Raises:
        ValueError: It is not a place.
    """
    for name, held, most in (("pos", state["state"], 624), ("buffer_pos", state, 4)):  # of MT19937, of Philox
        place = held.get(name, 0)
        if type(place) is not int or not 0 <= place <= most:
            raise ValueError(f"{name} is {place!r}, not an integer from 0 to {most}")
    return _with_arrays(state)


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
    "complex": lambda old, text: complex(text),
    "bytearray": lambda old, text: bytearray(base64.b64decode(text)),
    "defaultdict": lambda old, items, name: defaultdict(_FACTORIES[name], _made_items(items)),
    "deque": lambda old, elements, maxlen: deque(_made_all(elements), maxlen),
    "object": _made_object,
    "made": _made_of_arguments,
    "holds": _with_states,
    "Random": _made_random,
    "Generator": _made_generator,
    "RandomState": _made_random_state,
    "torch.Generator": _made_torch,
    **{kind.__name__: lambda old, elements, kind=kind: kind(_made_all(elements)) for kind in _SEQUENCES},
    **{kind.__name__: lambda old, items, kind=kind: kind(_made_items(items)) for kind in _MAPPINGS},
    _OPAQUE: lambda old, text: old,
}
