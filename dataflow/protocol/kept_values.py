"""What a user's node keeps in its attributes, described as JSON, and made again from that.

Numbers, texts, bytes, dates, paths, members of enumerations, small arrays, the generators of `random`, NumPy and torch
can be described, and lists, tuples, sets, dicts and deques of those, up to 1,000 elements in all and 50 levels; and
attributes of objects of the user's classes, of queues and events, and the positions of files that are read. Of objects
of libraries, and of functions, only the generators that they hold are described: an augmentation may draw from its own.

What is still the object of the first pass gets its contents: others may hold it, such as a second attribute, or a
closure. Another one is made anew ("new"), which is refused if anything else holds it: there would be two.

Of a function or class, of an iterator that is held, of a memoryview, of what is larger (up to 16 MB by all its
elements, then by some), of an array of another library, of a collection of the user's class and of one with objects
only a change can be noticed.
"""

from __future__ import annotations

import base64
import importlib
import io
import json
import queue
import random
import sys
import threading
import weakref
from array import array
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from enum import Enum
from functools import partial
from hashlib import sha256
from itertools import count, cycle, repeat
from math import isfinite
from operator import length_hint
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np

from dataflow.protocol.state import state_of

__all__ = [
    "Kept",
    "begin_pass",
    "changes",
    "describe",
    "end_pass",
    "held_over",
    "is_opaque",
    "make",
    "may_be_set",
    "put",
]

_MAX_ELEMENTS: Final = 1000  # of what one attribute holds
_MAX_BYTES: Final = 100_000  # of one text, or one array
_MAX_OBJECTS: Final = 50  # that one attribute leads to
_MAX_LEVELS: Final = 50  # of collections in collections
_OPAQUE: Final = "cannot be given"  # the mark of such a description
_NOT_THERE: Final = "an object that was not there at first"
_HAS_SPAWNED: Final = "a generator that has spawned others"
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
_HOLDERS: Final = (  # of Python, for what a program assigns
    *(SimpleNamespace, UserDict, UserList, ChainMap, threading.local),
    *(queue.Queue, queue.LifoQueue, queue.PriorityQueue, threading.Event),
    *(threading.Semaphore, threading.BoundedSemaphore),
)
_ANSWERS: Final = ("qsize", "is_set", "locked")  # of others of Python, which say what they hold
_UNCHANGING: Final = frozenset(  # as described; a file is known by its name
    {"float", "complex", "bytes", "scalar", "tuple", "frozenset", "made", "file"}
)
_CODE: Final = (FunctionType, MethodType, BuiltinMethodType, ModuleType, partial, type)


class Kept:
    """What a node keeps whose passes are made in this process."""

    def __init__(self) -> None:
        self.first: dict[str, Any] | None = None  # its attributes as its first pass began here; None before
        self.held: dict[_Path, Callable[[], Any]] = {}  # references to what it held then and can change, by its place
        self.iterators: dict[str, Any] = {}  # those that it held then, or from the begin of a later pass to its end
        self.begun: dict[str, Any] = {}  # those that it held as its last pass began
        self.given: dict[str, Any] | None = None  # what it is to have as its next pass begins; None to keep what it has
        self.changed = ""  # an attribute that was changed by a pass which must stand alone


def begin_pass(df: Any) -> None:
    """Remember what the node `df` has as its code begins a pass."""
    note_first(df)
    state_of(df).part(Kept).begun = {name: value for name, value in _attributes(df) if _is_held_iterator(value)}


def end_pass(df: Any) -> None:
    """Remember which iterators the pass has not replaced."""
    part = state_of(df).part(Kept)
    part.iterators, part.begun = _not_replaced(df, part), {}


def held_over(df: Any) -> dict[str, Any]:
    """The iterators that a pass of the node `df` has found, also the running one, and that it has not replaced."""
    part = state_of(df).part(Kept)
    return {name: _describe_held_over(value) for name, value in _not_replaced(df, part).items()}


def _not_replaced(df: Any, part: Kept) -> dict[str, Any]:
    held = (part.begun, part.iterators)
    return {name: value for name, value in _attributes(df) if any(some.get(name, df) is value for some in held)}


def _describe_held_over(iterator: Any) -> list[str]:
    return [_OPAQUE, f"{iterator!r:.80} is held over several passes"]


def note_first(df: Any) -> None:
    """Remember what the node `df` has in its attributes as its first pass begins in this process."""
    part = state_of(df).part(Kept)
    if part.first is None:
        places = _Places()
        part.first, part.held = _describe_attributes(df, places), places.held
        part.iterators = {name: value for name, value in _attributes(df) if _is_held_iterator(value)}


def put(df: Any) -> None:
    """Let a pass of the node `df` begin: what it was given becomes its attributes."""
    note_first(df)
    part = state_of(df).part(Kept)
    given, part.given = part.given, None
    if given is None:
        return
    assert part.first is not None
    described = _describe_attributes(df, _Places(part.held))
    wanted = {**part.first, **given}
    for name, text in wanted.items():
        if not is_opaque(text) and described.get(name) != text:
            first = part.held.get((name,), lambda: None)()
            setattr(df, name, make(text, getattr(df, name, None) if first is None else first))
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
    changed, places = {}, _Places(part.held)
    for name, description in _describe_attributes(df, places).items():
        before = part.first.get(name)
        reason = _refusal(before, description)
        if description != before and not (reason and before is None and reason != _HAS_SPAWNED):
            changed[name] = [_OPAQUE, reason] if reason else description
    made = [(name, value) for name in changed if not is_opaque(changed[name]) for value in places.made.get(name, ())]
    for name in _held_twice(df, made) if made else ():
        changed[name] = [_OPAQUE, "it was not there at first, and something else holds it, or an element of it, too"]
    left = [(name, value) for name, value in _attributes(df) if _is_held_iterator(value) and _is_unfinished(value)]
    return changed | held_over(df) | {name: _describe_held_over(value) for name, value in left}


def _held_twice(df: Any, made: Sequence[tuple[str, Any]]) -> list[str]:
    """The attributes of which something that a resume would make anew is held by more than that: there would be two."""
    from dataflow.system.references import reached  # which few nodes need

    num_held = Counter(id(value) for _, value in reached([("", df), ("", type(df))], _referred))
    return [
        name
        for name, value in made
        if num_held[id(value)] > 1
        or (type(value) is np.ndarray and value.base is not None and num_held[id(value.base)] > 1)
    ]


def _referred(where: str, value: Any) -> list[tuple[str, Any]]:
    """What a value refers to; of a function and a class, also what their code reads."""
    from dataflow.system.references import parts  # which few nodes need

    if isinstance(value, FunctionType | type):
        return list(parts(where, value))
    if hasattr(type(value), "_df_inputs"):
        found = [part for name, part in _attributes(value) if not name.startswith("_df_")]
        is_own = value._df_user_written  # the datapoints that a source of ours holds are nobody's state
        return [(where, part) for part in found if is_own or not isinstance(part, (*_COLLECTIONS, np.ndarray))]
    if isinstance(value, np.ndarray):
        return [] if value.base is None else [(where, value.base)]
    return [(where, type(value)), *((where, part) for _, part in _parts(value))]


def _refusal(before: Any, now: Any) -> str:
    """Why `now` cannot be given where `before` was at first; "" if it can, or has not changed."""
    kind = now[0] if isinstance(now, list) else None
    if kind == "new":
        return _NOT_THERE if now[1][0] == "holds" else _refusal(before, now[1])
    if now == before or kind not in (_OPAQUE, "object", "holds", "file", "Generator"):
        return ""
    if kind == _OPAQUE:
        return str(now[1])
    if kind == "Generator":
        return "" if _num_spawned(now) == _num_spawned(before) else _HAS_SPAWNED
    if not isinstance(before, list) or before[0] != kind:
        return _NOT_THERE
    if kind == "file":
        return "" if before[2] == now[2] else f"another file, {now[2]}"
    if kind == "holds":
        if [path for path, _ in before[1]] != [path for path, _ in now[1]]:
            return _NOT_THERE
        if before[2:] != now[2:]:
            return str(now[2])
        pairs = zip(before[1], now[1], strict=True)
        return next((reason for (_, old), (_, new) in pairs if (reason := _refusal(old, new))), "")
    if before[1] != now[1]:
        return _NOT_THERE
    held = dict(before[2])
    reasons = ((name, _refusal(held[name], part)) for name, part in now[2] if held.get(name) is not None)
    return next((f".{name}: {reason}" for name, reason in reasons if reason), "")


def _num_spawned(description: Any) -> int:
    """How many generators one of NumPy has spawned, which its state does not say."""
    is_known = isinstance(description, list) and description[0] == "Generator" and len(description) > 3
    return int(description[3]) if is_known else 0


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
    """Whether `value` is an iterator that steps through something, or a stream; a file can go back to its beginning."""
    if isinstance(value, io.IOBase):
        return not value.closed and value.readable() and not value.seekable()
    return isinstance(value, Iterator)


def _is_unfinished(iterator: Any) -> bool:
    """Whether an iterator that a pass has left behind is known to have more: a pass may go on with it."""
    if isinstance(iterator, GeneratorType):
        return iterator.gi_frame is not None
    try:
        return isinstance(iterator, count | cycle | repeat) or length_hint(iterator) > 0
    except Exception:  # of a user's class
        return False


def describe(df: Any) -> dict[str, Any]:
    """A description of each attribute of which a change can be noticed; None for None."""
    return _describe_attributes(df, _Places())


_Path = tuple[str, ...]
"""The attribute of a node, and those of the objects that lead on from there."""

_Objects = dict[int, _Path]
"""The ids of the objects that were described, and their places."""


class _Places:
    """Where a node holds what can change: collections, arrays, generators, objects.

    Args:
        first: References to what it held at first; None if that is now.
    """

    def __init__(self, first: Mapping[_Path, Callable[[], Any]] | None = None) -> None:
        self.first = first
        self.held: dict[_Path, Callable[[], Any]] = {}
        self.made: dict[str, list[Any]] = {}  # by attribute of the node: what a resume would make anew

    def note(self, path: _Path, value: Any, description: Any) -> Any:
        """The description of what an attribute holds; marked if that is not the object of the first pass."""
        if not isinstance(description, list) or description[0] in _UNCHANGING or isinstance(value, Enum):
            return description
        if self.first is None:
            self.held[path] = _reference(value)
            return description
        first = self.first.get(path)
        if first is not None and first() is value:
            return description
        self.made.setdefault(path[0], []).append(value)
        return description if first is None else ["new", description]


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _describe_attributes(
    owner: Any, places: _Places, path: _Path = (), objects: _Objects | None = None, level: int = 0
) -> dict[str, Any]:
    described = {}
    for name, value in _attributes(owner):
        if not name.startswith("_df_"):
            budget = _Budget(places, (*path, name), objects, level)
            try:
                described[name] = places.note(budget.path, value, _describe_held(value, budget))
            except _CannotBeGiven as error:
                if text := str(error) or _notice(value, budget, is_large=isinstance(error, _TooLarge)):
                    described[name] = [_OPAQUE, text]
    return described


def _notice(value: Any, budget: _Budget, *, is_large: bool) -> str:
    """What tells that a value has changed that cannot be given, or is another one."""
    from dataflow.system.references import checksum, held_by  # which few nodes need

    if isinstance(value, FunctionType):
        numbers = {name: held for name, held in held_by(value) if type(held) in (bool, int, float, str)}
        return f"{value.__qualname__}{f' with {numbers}' if numbers else ''}"
    if isinstance(value, _CODE):
        return getattr(value, "__qualname__", "")
    if hasattr(type(value), "_df_inputs") or _is_dict_of_flows(value) or _is_held_iterator(value):
        return ""  # nodes describe themselves, and iterators are no values
    if is_large and len(budget.objects) >= _MAX_OBJECTS:
        number = checksum([value], by_identity=True)
        return f"{type(value).__qualname__} with more than {_MAX_OBJECTS} objects, digest {number}"
    if is_large or isinstance(value, (*_COLLECTIONS, array)):
        return _sketch(value)
    if hasattr(type(value), "__array__"):  # in the memory of a GPU; torch counts the changes of a tensor
        version = getattr(value, "_version", None)
        return "" if version is None else f"{type(value).__name__} {id(value):x}, changed {version} times"
    is_of_python = _top(type(value).__module__) in sys.stdlib_module_names
    with suppress(TypeError, ValueError, BufferError):  # it has no memory that can be looked at
        held = value.get_obj() if is_of_python and hasattr(value, "get_obj") else value
        return f"{type(value).__name__}, {_sketch(memoryview(held))}"
    for name in _ANSWERS if is_of_python else ():
        with suppress(Exception):  # it is closed, for example
            return f"{type(value).__name__}, {name}() is {getattr(value, name)()}"
    return type(value).__qualname__


def _is_dict_of_flows(value: Any) -> bool:
    """Whether code keeps flows by name, which it may make when they are needed."""
    held = value.copy().values() if isinstance(value, dict) else ()
    some = (item[0] if isinstance(item, list | tuple) and item else item for item in held)
    return any(hasattr(type(item), "_df_inputs") for item in some)


def _attributes(value: Any) -> list[tuple[str, Any]]:
    from dataflow.system.references import attributes_of  # which few nodes need

    return list(attributes_of(value))


class _Budget:
    """How many more elements of an attribute may be described; and the objects that were."""

    def __init__(
        self, places: _Places | None = None, path: _Path = ("",), objects: _Objects | None = None, level: int = 0
    ) -> None:
        self.places = _Places() if places is None else places
        self.path = path
        self.left = _MAX_ELEMENTS
        self.level = level  # of collections around what is described
        self.objects: _Objects = {} if objects is None else objects
        self.has_objects = False  # of the user's classes, in a collection

    def spend(self, num: int, nbytes: int = 0) -> None:
        self.left -= num
        if self.left < 0 or nbytes > _MAX_BYTES:
            raise _TooLarge

    def spend_object(self, value: object) -> None:
        """Enter an object. Objects may hold each other, so each is described once."""
        if id(value) in self.objects:
            raise _CannotBeGiven(f"what is in {'.'.join(self.objects[id(value)])}")
        if len(self.objects) >= _MAX_OBJECTS:
            raise _TooLarge
        self.objects[id(value)] = self.path

    def make(self, value: Any) -> None:
        """Note an element, which a resume makes anew."""
        self.places.made.setdefault(self.path[0], []).append(value)


def _sketch(value: Any) -> str:
    """What tells that a value has changed which is too large for a state: its size and its elements; or ""."""
    from dataflow.system.references import MAX_ITEMS, array_checksum, checksum, samples  # which few nodes need

    some: Iterable[Any] = ()
    if hasattr(type(value), "__array__") or isinstance(value, memoryview):
        try:
            numbers = np.asarray(value)
        except Exception:  # such as one in the memory of a GPU
            return ""
        if numbers.dtype.hasobject:
            held = numbers.ravel().tolist()
            number = checksum(held)
            some = [number] if number is not None else held if len(held) <= _MAX_ELEMENTS else samples(held)
        else:
            mask = np.ma.getmaskarray(value) if isinstance(value, np.ma.MaskedArray) else np.empty(0)
            some = [array_checksum(numbers), array_checksum(mask)]
        return _size_of(value, f"shape {numbers.shape}", some)
    if not isinstance(value, _TEXTS + _COLLECTIONS + (array,)):
        return ""
    items = _items_of(value)
    if (number := checksum(items)) is not None:
        some = [number]
    elif not isinstance(value, set | frozenset):
        some = samples(value) if isinstance(value, _TEXTS) else items if len(items) <= MAX_ITEMS else samples(items)
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
        budget = _Budget()
        try:
            described.append(_describe(element, budget))
        except _CannotBeGiven as error:
            described.append(str(error) or _notice(element, budget, is_large=isinstance(error, _TooLarge)))
    return f"{type(value).__name__} of {size}, digest {sha256(json.dumps(described).encode()).hexdigest()[:8]}"


def _describe_held(value: Any, budget: _Budget) -> Any:
    """What an attribute holds: the value; if that cannot be described, the generators in it."""
    try:
        description = _describe(value, budget)
        if budget.has_objects:
            raise _CannotBeGiven("objects")
        return description
    except _CannotBeGiven as error:
        is_small = isinstance(value, _COLLECTIONS) and len(value) <= _MAX_ELEMENTS and not _is_dict_of_flows(value)
        # What is said of one element says nothing of others.
        found = [] if str(error) else [[path, _describe_generator(held)] for path, held in _generators_in(value)]
        others = [item for item in _items_of(value) if not (found and _is_generator(item))] if is_small else []
        size = _size_of(value, f"length {len(value)}", others) if is_small else ""
        if found:
            return ["holds", found, *([size] if size else [])]
        if size and not isinstance(error, _TooLarge):
            raise _CannotBeGiven(size) from None
        raise


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
    if kind in (io.StringIO, io.BytesIO) and not value.closed:
        content, position = value.getvalue(), value.tell()
        if position > len(content):  # a write there would fill what is between
            raise _CannotBeGiven(f"{kind.__name__} at {position}, behind its end")
        return [kind.__name__, _describe(content, budget), position]
    budget.has_objects |= is_element
    if isinstance(value, io.IOBase):
        return _describe_file(value)
    if isinstance(value, random.Random | np.random.SeedSequence):
        state = value.state if isinstance(value, np.random.SeedSequence) else value.getstate()
        raise _CannotBeGiven(_size_of(value, "a state of its own", [repr(state)]))
    return _describe_object(value, kind, budget)


def _describe_collection(value: Any, kind: type, budget: _Budget) -> Any:
    budget.spend(len(value))
    budget.level += 1
    if budget.level > _MAX_LEVELS:
        raise _TooLarge
    describe_element = partial(_describe_element, budget=budget)
    elements: list[Any]
    # Copied first: another thread may change it meanwhile.
    if isinstance(value, dict):
        elements = [[describe_element(key), describe_element(held)] for key, held in list(value.items())]
    else:
        elements = [describe_element(element) for element in list(value)]
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


def _describe_element(value: Any, budget: _Budget) -> Any:
    description = _describe(value, budget, is_element=True)
    if isinstance(description, list) and description[0] not in _UNCHANGING:
        budget.make(value)
    if _num_spawned(description):
        raise _CannotBeGiven(_HAS_SPAWNED)
    return description


def _describe_file(file: Any) -> Any:
    """The position in a file that is read; what is written to one is outside of a state."""
    if file.closed or not file.readable() or file.writable() or not file.seekable():
        raise _CannotBeGiven
    try:
        return ["file", file.tell(), str(getattr(file, "name", ""))]
    except OSError:
        raise _CannotBeGiven("a text file whose position is unknown while it is iterated") from None


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
    if kind in _BIT_GENERATORS.values():
        return True
    is_of_torch = kind.__module__.partition(".")[0] == "torch" and kind.__name__ == "Generator"
    return kind in (random.Random, np.random.RandomState) or (is_of_torch and str(value.device) == "cpu")


def _describe_generator(value: Any) -> Any:
    if type(value) is random.Random:
        version, numbers, gauss = value.getstate()
        return ["Random", version, list(numbers), gauss]
    if type(value) is np.random.Generator:
        bits = value.bit_generator
        num_spawned = getattr(getattr(bits, "seed_seq", None), "n_children_spawned", 0)
        return ["Generator", type(bits).__name__, _numbers_of(bits.state), *([num_spawned] if num_spawned else [])]
    if type(value) in _BIT_GENERATORS.values():
        return ["BitGenerator", type(value).__name__, _numbers_of(value.state)]
    if type(value) is np.random.RandomState:
        return ["RandomState", _numbers_of(value.get_state(legacy=False))]
    return ["torch.Generator", _text(value.get_state().numpy().tobytes())]


def _describe_object(value: Any, kind: type, budget: _Budget) -> Any:
    """The attributes of an object of a user's class; of some of them, only a change can be noticed."""
    from dataflow.system.references import is_of_library  # which few nodes need

    if isinstance(value, _CODE) or (kind not in _HOLDERS and is_of_library(kind)):
        raise _CannotBeGiven
    if not isinstance(value, Enum):
        for base in (int, float, complex, *_TEXTS):
            if isinstance(value, base):
                raise _CannotBeGiven(f"{kind.__qualname__} of {_describe(base(value), budget)}")
    with suppress(TypeError, ValueError, BufferError):  # its attributes are not all that it holds
        raise _CannotBeGiven(f"{kind.__qualname__}, {_sketch(memoryview(value))}")
    budget.spend_object(value)
    attributes = _describe_attributes(value, budget.places, budget.path, budget.objects, budget.level)
    return ["object", kind.__qualname__, [*map(list, attributes.items())]]


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
    """The value that `description` describes. An `old` one of the same kind gets the contents: others may hold it."""
    if not isinstance(description, list):
        return description
    kind, *parts = description
    made = _MAKERS[kind](old, *parts)
    return made if kind == "new" else _put_into(old, made)


def _put_into(old: Any, made: Any) -> Any:
    if made is old or type(made) is not type(old):
        return made
    if isinstance(old, np.ndarray):
        if old.shape != made.shape or old.dtype != made.dtype or not old.flags.writeable:
            return made
        old[...] = made
    elif isinstance(old, list | bytearray):
        old[:] = made
    elif isinstance(old, dict | set) and getattr(old, "default_factory", None) is getattr(
        made, "default_factory", None
    ):
        old.clear()
        old.update(made)
    elif isinstance(old, deque) and old.maxlen == made.maxlen:
        old.clear()
        old.extend(made)
    else:
        return made
    return old


def _made_anew(old: Any, description: Sequence[Any]) -> Any:
    """As `make`, and not in `old`, which others may hold: of an object a copy gets the attributes."""
    return make(description, copy(old) if description[0] == "object" else None)


def _made_file(old: Any, position: int, name: str) -> Any:
    if type(position) is not int or position < 0:
        raise ValueError(f"{position!r} is no position in a file")
    if old is not None:
        old.seek(position)
    return old


def _made_in_memory(old: Any, kind: type, content: Any, position: int) -> Any:
    made: Any = old if type(old) is kind else kind()
    made.seek(0)
    made.truncate()
    if made.write(make(content, None)) < position:
        raise ValueError(f"{position} is behind the end")
    made.seek(position)
    return made


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


def _with_states(old: Any, states: Sequence[tuple[list[Any], Any]], size: str = "") -> Any:
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


def _made_generator(old: Any, name: str, state: Mapping[str, Any], num_spawned: int = 0) -> np.random.Generator:
    is_same = type(old) is np.random.Generator and type(old.bit_generator).__name__ == name
    made: np.random.Generator = old if is_same else np.random.Generator(_BIT_GENERATORS[name]())
    made.bit_generator.state = _checked(state)
    return made


def _made_bit_generator(old: Any, name: str, state: Mapping[str, Any]) -> Any:
    kind = _BIT_GENERATORS[name]
    made = old if type(old) is kind else kind()
    made.state = _checked(state)
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
    "new": _made_anew,
    "file": _made_file,
    "StringIO": lambda old, content, position: _made_in_memory(old, io.StringIO, content, position),
    "BytesIO": lambda old, content, position: _made_in_memory(old, io.BytesIO, content, position),
    "BitGenerator": _made_bit_generator,
    "Random": _made_random,
    "Generator": _made_generator,
    "RandomState": _made_random_state,
    "torch.Generator": _made_torch,
    **{kind.__name__: lambda old, elements, kind=kind: kind(_made_all(elements)) for kind in _SEQUENCES},
    **{kind.__name__: lambda old, items, kind=kind: kind(_made_items(items)) for kind in _MAPPINGS},
    _OPAQUE: lambda old, text: old,
}
