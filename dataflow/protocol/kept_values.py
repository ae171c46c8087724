"""What a user's node keeps in its attributes, described as JSON, and made again from that.

Numbers, texts, bytes, dates, paths, members of enumerations, small arrays, the generators of `random`, NumPy and torch
can be described, and lists, tuples, sets, dicts and deques of those, up to 1,000 elements in all and 50 levels; and
attributes of objects of the user's classes, of queues and events, and the positions of files that are read. Of objects
of libraries, and of functions, only the generators that they hold are described: an augmentation may draw from its own.

A description is the value itself, or a list: the name of its kind (`_KINDS`), and what it is made of. What cannot be
made again is described by a text, which is another one if the value has changed: a function or class, a memoryview,
what is larger (up to 16 MB by all its elements, then by some), an array of another library, a collection of the user's
class and one with objects. An iterator is not described at all.
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
from math import isfinite
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np

from dataflow.protocol.generator_states import HAS_SPAWNED, SETTERS, describe_generator, is_generator
from dataflow.protocol.state import flows_in, is_flow
from dataflow.system.references import (
    COLLECTIONS,
    MAX_ITEMS,
    array_checksum,
    attributes_of,
    checksum,
    held_by,
    is_of_library,
    made_of,
    reached,
    samples,
)

__all__ = ["OPAQUE", "Places", "describe", "is_opaque", "is_stream", "make", "may_be_set", "parts_of"]

OPAQUE: Final = "cannot be given"  # the kind of what cannot be made again
_MAX_ELEMENTS: Final = 1000  # of what one attribute holds
_MAX_BYTES: Final = 100_000  # of one text, or one array
_MAX_OBJECTS: Final = 50  # that one attribute leads to
_MAX_LEVELS: Final = 50  # of collections in collections
_PLAIN: Final = "biufcmMSU"  # kinds of dtypes
_TEXTS: Final[tuple[Any, ...]] = (str, bytes, bytearray)
_MADE_AGAIN: Final[tuple[Any, ...]] = (*COLLECTIONS, OrderedDict, Counter, defaultdict)
_FACTORIES: Final[dict[str | None, Any]] = {
    None: None,
    **{kind.__name__: kind for kind in (int, float, str, list, set, dict)},
}
_NUMBERS_AND_TEXTS: Final = (int, float, complex, *_TEXTS)
_FIXED: Final = ("shape", "dtype", "maxlen", "default_factory")  # what contents do not change
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


def is_opaque(description: Any) -> bool:
    """Whether what is described cannot be made again: only a change of it can be noticed."""
    return isinstance(description, list) and description[:1] == [OPAQUE]


def may_be_set(owner: Any, name: str) -> bool:
    """Whether what a saved state says may become the attribute `name` of `owner`."""
    is_own = name.isidentifier() and not name.startswith(("__", "_df_"))
    return is_own and not callable(getattr(type(owner), name, None))


def is_stream(value: Any) -> bool:
    """Whether `value` is an iterator that steps through something, or a file that cannot go back to its beginning."""
    if isinstance(value, io.IOBase):
        return not value.closed and value.readable() and not value.seekable()
    return isinstance(value, Iterator)


# -- attributes --------------------------------------------------------------------------------------------------------

_Path = tuple[str, ...]
"""The attribute of a node, and those of the objects that lead on from there."""


class Places:
    """Where a node holds what can change: collections, arrays, generators, objects.

    What is still the object of the first pass gets its contents: others may hold it, such as a second attribute, or a
    closure. Another one is made anew ("new"), which is refused if anything else holds it: there would be two.

    Args:
        first: References to what it held at first; None if that is now.
    """

    def __init__(self, first: Mapping[_Path, Callable[[], Any]] | None = None) -> None:
        self.first = first
        self.held: dict[_Path, Callable[[], Any]] = {}
        self.made: defaultdict[str, list[Any]] = defaultdict(list)  # what a resume would make anew for an attribute

    def note(self, path: _Path, value: Any, description: Any) -> Any:
        """The description of what an attribute holds; marked if that is not the object of the first pass."""
        if not isinstance(description, list) or description[0] in _UNCHANGING or isinstance(value, Enum):
            return description
        if self.first is None:
            try:
                self.held[path] = weakref.ref(value)
            except TypeError:
                self.held[path] = lambda: value
            return description
        first = self.first.get(path)
        if first is not None and first() is value:
            return description
        self.made[path[0]].append(value)
        return description if first is None else ["new", description]


class _CannotBeGiven(Exception):
    """A value cannot be given to another process; the text describes it, if a change of it can be noticed."""


class _TooLarge(_CannotBeGiven):
    """It has too many elements, or bytes, for a state."""


class _Walk:
    """The walk through an attribute: where it is, and how much more may be described."""

    def __init__(
        self, places: Places, path: _Path = ("",), objects: dict[int, _Path] | None = None, level: int = 0
    ) -> None:
        self.places = places
        self.path = path
        self.objects = {} if objects is None else objects  # by id: the places of those that were described
        self.level = level  # of collections
        self.left = _MAX_ELEMENTS
        self.has_objects = False  # in a collection

    def spend(self, num: int, nbytes: int = 0) -> None:
        self.left -= num
        if self.left < 0 or nbytes > _MAX_BYTES:
            raise _TooLarge

    def encoded(self, value: bytes | bytearray) -> str:
        """Bytes as a text."""
        self.spend(0, len(value))
        return base64.b64encode(value).decode()

    def enter_object(self, value: object) -> None:
        """Objects may hold each other, so each is described once."""
        if id(value) in self.objects:
            raise _CannotBeGiven(f"what is in {'.'.join(self.objects[id(value)])}")
        if len(self.objects) >= _MAX_OBJECTS:
            raise _TooLarge
        self.objects[id(value)] = self.path


def describe(df: Any, places: Places | None = None) -> dict[str, Any]:
    """A description of each attribute of which a change can be noticed; None for None."""
    return _describe_attributes(df, _Walk(places or Places(), ()))


def _describe_attributes(owner: Any, above: _Walk) -> dict[str, Any]:
    described = {}
    for name, value in attributes_of(owner):
        if not name.startswith("_df_"):
            walk = _Walk(above.places, (*above.path, name), above.objects if above.path else None, above.level)
            try:
                described[name] = walk.places.note(walk.path, value, _describe_held(value, walk))
            except _CannotBeGiven as error:
                if text := _notice(value, walk, error):
                    described[name] = [OPAQUE, text]
    return described


def _describe_held(value: Any, walk: _Walk) -> Any:
    """What an attribute holds: the value; if that cannot be described, the generators in it."""
    try:
        description = _describe(value, walk)
        if walk.has_objects:
            raise _CannotBeGiven("objects")
        return description
    except _CannotBeGiven as error:
        is_small = isinstance(value, COLLECTIONS) and len(value) <= _MAX_ELEMENTS and not _is_dict_of_flows(value)
        # What is said of one element says nothing of others.
        found = [] if str(error) else _generators_in(value)
        others = [item for item in _items_of(value) if not (found and is_generator(item))] if is_small else []
        size = _size_of(value, f"length {len(value)}", others) if is_small else ""
        if found:
            return ["holds", found, *([size] if size else [])]
        if size and not isinstance(error, _TooLarge):
            raise _CannotBeGiven(size) from None
        raise


# -- the generators in what cannot be described ------------------------------------------------------------------------


def _generators_in(value: Any) -> list[Any]:
    """The ways to the generators that a value holds in attributes, collections, arguments, closures; and the states."""

    def parts(path: list[Any], value: Any) -> list[tuple[list[Any], Any]]:
        return [([*path, name], part) for name, part in parts_of(value)]

    known = {id(getattr(draw, "__self__", None)) for draw in (np.random.random, random.random)}  # those of all code
    root: tuple[list[Any], Any] = [], value
    found = []
    for path, held in reached([root], parts, _MAX_ELEMENTS):
        if is_generator(held) and id(held) not in known:
            known.add(id(held))
            found.append([path, describe_generator(held)])
    return found


def _make_held(old: Any, states: Sequence[tuple[list[Any], Any]], size: str = "") -> Any:
    for path, description in states:
        held = old
        for name in path:
            held = dict(parts_of(held)).get(name)
        make(description, held)
    return old


def parts_of(value: Any) -> list[tuple[Any, Any]]:
    """What belongs to a value, and its name; of a variable in a closure, and of an item, its place."""
    if isinstance(value, ModuleType | type) or is_flow(value) or is_generator(value):
        return []  # nodes describe themselves
    if isinstance(value, list | tuple | deque | dict):
        held = value.copy().values() if isinstance(value, dict) else value
        return list(enumerate(held)) if len(value) <= _MAX_ELEMENTS else []
    if isinstance(value, FunctionType):
        names = value.__code__.co_freevars
        return [(names.index(name) if name in names else name, part) for name, part in held_by(value)]
    if found := made_of(value):
        return list(found.items())
    # Others of Python, such as a logger, hold what is not the program's.
    return [] if _is_of_python(value) and not isinstance(value, _HOLDERS) else list(attributes_of(value))


def _is_of_python(value: Any) -> bool:
    return _top(type(value).__module__) in sys.stdlib_module_names


def _top(module: str) -> str:
    return module.partition(".")[0]


# -- what cannot be made again: a text that is another one when it has changed -----------------------------------------


def _notice(value: Any, walk: _Walk, error: _CannotBeGiven) -> str:
    """What tells that a value has changed that cannot be given, or is another one; "" if nothing does."""
    if text := str(error):
        return text
    is_large = isinstance(error, _TooLarge)
    if isinstance(value, FunctionType):
        numbers = {name: held for name, held in held_by(value) if type(held) in (bool, int, float, str)}
        return f"{value.__qualname__}{f' with {numbers}' if numbers else ''}"
    if isinstance(value, _CODE):
        return getattr(value, "__qualname__", "")
    if is_flow(value) or _is_dict_of_flows(value) or is_stream(value):
        return ""  # nodes describe themselves, and iterators are no values
    if is_large and len(walk.objects) >= _MAX_OBJECTS:
        number = checksum([value], by_identity=True)
        return f"{type(value).__qualname__} with more than {_MAX_OBJECTS} objects, digest {number}"
    if is_large or isinstance(value, (*COLLECTIONS, array)):
        return _sketch(value)
    if hasattr(type(value), "__array__"):  # in the memory of a GPU; torch counts the changes of a tensor
        version = getattr(value, "_version", None)
        return "" if version is None else f"{type(value).__name__} {id(value):x}, changed {version} times"
    with suppress(TypeError, ValueError, BufferError):  # it has no memory that can be looked at
        held = value.get_obj() if _is_of_python(value) and hasattr(value, "get_obj") else value
        return f"{type(value).__name__}, {_sketch(memoryview(held))}"
    for name in _ANSWERS if _is_of_python(value) else ():
        with suppress(Exception):  # it is closed, for example
            return f"{type(value).__name__}, {name}() is {getattr(value, name)()}"
    return type(value).__qualname__


def _is_dict_of_flows(value: Any) -> bool:
    """Whether code keeps flows by name, which it may make when they are needed."""
    return isinstance(value, dict) and any(map(flows_in, value.copy().values()))


def _sketch(value: Any) -> str:
    """The size of what is too large for a state, and a digest of its elements; or ""."""
    if hasattr(type(value), "__array__") or isinstance(value, memoryview):
        try:
            numbers = np.asarray(value)
        except Exception:  # such as one in the memory of a GPU
            return ""
        size, most = f"shape {numbers.shape}", _MAX_ELEMENTS
        if not numbers.dtype.hasobject:
            mask = np.ma.getmaskarray(value) if isinstance(value, np.ma.MaskedArray) else np.empty(0)
            return _size_of(value, size, [array_checksum(numbers), array_checksum(mask)])
        items = numbers.ravel().tolist()
    elif isinstance(value, _TEXTS + COLLECTIONS + (array,)):
        size, most, items = f"length {len(value)}", MAX_ITEMS, list(_items_of(value))
    else:
        return ""
    if (number := checksum(items)) is not None:
        return _size_of(value, size, [number])
    if isinstance(value, set | frozenset):
        return _size_of(value, size, [])
    some = samples(value) if isinstance(value, _TEXTS) else items if len(items) <= most else samples(items)
    return _size_of(value, size, some)


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
        walk = _Walk(Places())
        try:
            described.append(_describe(element, walk))
        except _CannotBeGiven as error:
            described.append(_notice(element, walk, error))
    return f"{type(value).__name__} of {size}, digest {sha256(json.dumps(described).encode()).hexdigest()[:8]}"


# -- values ------------------------------------------------------------------------------------------------------------


def _describe(value: Any, walk: _Walk) -> Any:
    """`value` as JSON: itself, or a list of the name of its kind and of what it is made of."""
    kind = type(value)
    if value is None or kind in (bool, int) or (kind is float and isfinite(value)):
        return value
    if kind is str:
        walk.spend(0, len(value))
        return value
    name = _NAMES.get(kind)
    if name is None:
        if is_generator(value):
            return describe_generator(value)
        name = _name_of_other(value)
    return [name, *_KINDS[name].describe(value, walk)]


def _name_of_other(value: Any) -> str:
    """The name of the kind of a value whose class alone does not tell it."""
    if isinstance(value, COLLECTIONS):  # of a class that its elements do not describe
        return "list"
    if isinstance(value, np.generic):
        return "scalar"
    if hasattr(type(value), "__array__"):  # of torch or JAX, a random key for example
        return "array"
    if _top(type(value).__module__) in _OF_VALUES:
        return "made"
    return "file" if isinstance(value, io.IOBase) else "object"


def make(description: Any, old: Any) -> Any:
    """The value that `description` describes. An `old` one of the same kind gets the contents: others may hold it."""
    if not isinstance(description, list):
        return description
    kind, *parts = description
    made = _MAKERS[kind](old, *parts)
    return made if kind == "new" else _put_into(old, made)


def _put_into(old: Any, made: Any) -> Any:
    """`old` with the contents of `made`, or `made` if they differ in more."""
    is_filled = isinstance(old, np.ndarray | list | bytearray | dict | set | deque) and type(made) is type(old)
    if made is old or not is_filled or any(getattr(old, name, 0) != getattr(made, name, 0) for name in _FIXED):
        return made
    if isinstance(old, list | bytearray):
        old[:] = made
    elif not isinstance(old, np.ndarray):
        old.clear()
        getattr(old, "extend" if isinstance(old, deque) else "update")(made)
    elif old.flags.writeable:
        old[...] = made
    else:
        return made
    return old


def _make_new(old: Any, description: Sequence[Any]) -> Any:
    """As `make`, and not in `old`, which others may hold: of an object a copy gets the attributes."""
    return make(description, copy(old) if description[0] == "object" else None)


def _describe_array(value: Any, walk: _Walk) -> list[Any]:
    is_of_numpy = type(value) is np.ndarray or isinstance(value, np.generic)
    if not is_of_numpy or value.dtype.kind not in _PLAIN:
        raise _CannotBeGiven(_sketch(value))
    walk.spend(value.size, value.nbytes)
    return [value.dtype.str, list(value.shape), walk.encoded(value.tobytes())]


def _make_array(old: Any, dtype: str, shape: Sequence[int], text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), np.dtype(dtype)).reshape(shape).copy()


def _describe_collection(value: Any, walk: _Walk) -> list[Any]:
    walk.spend(len(value))
    walk.level += 1
    if walk.level > _MAX_LEVELS:
        raise _TooLarge
    elements: list[Any]
    # Copied first: another thread may change it meanwhile.
    if isinstance(value, dict):
        elements = [[_describe_element(key, walk), _describe_element(held, walk)] for key, held in list(value.items())]
    else:
        elements = [_describe_element(element, walk) for element in list(value)]
    walk.level -= 1
    if type(value) not in _MADE_AGAIN or getattr(value, "default_factory", None) not in _FACTORIES.values():
        items = value.items() if isinstance(value, dict) else value
        raise _CannotBeGiven(_size_of(value, f"length {len(value)}", items))
    if isinstance(value, set | frozenset):
        elements.sort(key=repr)
    if type(value) is defaultdict:
        return [elements, getattr(value.default_factory, "__name__", None)]
    return [elements, value.maxlen] if type(value) is deque else [elements]


def _describe_element(value: Any, walk: _Walk) -> Any:
    description = _describe(value, walk)
    if isinstance(description, list):
        kind = description[0]
        if kind not in _UNCHANGING:
            walk.places.made[walk.path[0]].append(value)
        if kind == "Generator" and description[3:]:
            raise _CannotBeGiven(HAS_SPAWNED)
        walk.has_objects |= kind in ("file", "object")
    return description


def _make_collection(kind: Any, old: Any, elements: Sequence[Any], *more: Any) -> Any:
    if not issubclass(kind, dict):
        return kind((make(element, None) for element in elements), *more)
    items = {make(key, None): make(held, None) for key, held in elements}
    return kind(*(_FACTORIES[name] for name in more), items)


def _describe_arguments(value: Any, walk: _Walk) -> list[Any]:
    """A value that its class makes of arguments, such as a date."""
    kind = type(value)
    reduced = (kind, value.__getinitargs__()) if hasattr(kind, "__getinitargs__") else value.__reduce__()
    with suppress(_CannotBeGiven):
        if reduced[0] is kind and len(reduced) == 2:
            return [_top(kind.__module__), kind.__name__, _describe(reduced[1], walk)]
    raise _CannotBeGiven(repr(value))


def _make_of_arguments(old: Any, module: str, name: str, arguments: Any) -> Any:
    is_known = module in _OF_VALUES or (module == "builtins" and name in {"range", "slice"})
    kind = getattr(importlib.import_module(module), name) if is_known else None  # an import runs code
    values = make(arguments, None)
    if not isinstance(kind, type) or (module == "fractions" and "e" in str(values).lower()):  # of any exponent
        raise ValueError(f"{module}.{name} is no class of values, or has others")
    return kind(*values)


def _describe_in_memory(value: io.StringIO | io.BytesIO, walk: _Walk) -> list[Any]:
    if value.closed:
        raise _CannotBeGiven
    content, position = value.getvalue(), value.tell()
    if position > len(content):  # a write there would fill what is between
        raise _CannotBeGiven(f"{type(value).__name__} at {position}, behind its end")
    return [_describe(content, walk), position]


def _make_in_memory(kind: type, old: Any, content: Any, position: int) -> Any:
    made: Any = old if type(old) is kind else kind()
    made.seek(0)
    made.truncate()
    if made.write(make(content, None)) < position:
        raise ValueError(f"{position} is behind the end")
    made.seek(position)
    return made


def _describe_file(file: Any, walk: _Walk) -> list[Any]:
    """The position in a file that is read; what is written to one is outside of a state."""
    if file.closed or not file.readable() or file.writable() or not file.seekable():
        raise _CannotBeGiven
    try:
        return [file.tell(), str(getattr(file, "name", ""))]
    except OSError:
        raise _CannotBeGiven("a text file whose position is unknown while it is iterated") from None


def _make_file(old: Any, position: int, name: str) -> Any:
    if type(position) is not int or position < 0:
        raise ValueError(f"{position!r} is no position in a file")
    if old is not None:
        old.seek(position)
    return old


def _describe_object(value: Any, walk: _Walk) -> list[Any]:
    """The attributes of an object of a user's class; of some of them, only a change can be noticed."""
    kind = type(value)
    if isinstance(value, random.Random | np.random.SeedSequence):
        state = value.state if isinstance(value, np.random.SeedSequence) else value.getstate()
        raise _CannotBeGiven(_size_of(value, "a state of its own", [repr(state)]))
    if isinstance(value, _CODE) or (kind not in _HOLDERS and is_of_library(kind)):
        raise _CannotBeGiven
    bases: Sequence[Any] = () if isinstance(value, Enum) else kind.__mro__
    for base in bases:
        if base in _NUMBERS_AND_TEXTS:
            raise _CannotBeGiven(f"{kind.__qualname__} of {_describe(base(value), walk)}")
        if base.__module__ in ("datetime", "decimal") and base.__name__ != "tzinfo":
            raise _CannotBeGiven(f"{kind.__qualname__}, {base.__repr__(value)}")
    with suppress(TypeError, ValueError, BufferError):  # its attributes are not all that it holds
        raise _CannotBeGiven(f"{kind.__qualname__}, {_sketch(memoryview(value))}")
    walk.enter_object(value)
    return [kind.__qualname__, [*map(list, _describe_attributes(value, walk).items())]]


def _make_object(old: Any, kind: str, items: Sequence[Sequence[Any]]) -> Any:
    if isinstance(old, Enum):  # another member of the same class
        return type(old)(next(make(description, None) for name, description in items if name == "_value_"))
    made, held = old, dict(attributes_of(old))
    for name, description in items:
        value = make(description, held.get(name))
        if old is not None and may_be_set(old, name) and value is not held.get(name):
            try:
                setattr(made, name, value)
            except AttributeError:  # of a frozen data class: the user's code has replaced it, too
                made = copy(old) if made is old else made
                object.__setattr__(made, name, value)
    return made


class _Kind(NamedTuple):
    describe: Callable[[Any, _Walk], list[Any]]  # what a value is made of
    make: Callable[..., Any]  # a value of that, or the one that is there, which is the first argument


_KINDS: Final = {
    "float": _Kind(lambda value, walk: [str(value)], lambda old, text: float(text)),
    "complex": _Kind(lambda value, walk: [str(value)], lambda old, text: complex(text)),
    "bytes": _Kind(lambda value, walk: [walk.encoded(value)], lambda old, text: base64.b64decode(text)),
    "bytearray": _Kind(lambda value, walk: [walk.encoded(value)], lambda old, text: bytearray(base64.b64decode(text))),
    "array": _Kind(_describe_array, _make_array),
    "scalar": _Kind(_describe_array, lambda old, *array: _make_array(old, *array)[()]),
    **{kind.__name__: _Kind(_describe_collection, partial(_make_collection, kind)) for kind in _MADE_AGAIN},
    "deque": _Kind(_describe_collection, lambda old, elements, maxlen: _make_collection(deque, old, elements, maxlen)),
    "made": _Kind(_describe_arguments, _make_of_arguments),
    "StringIO": _Kind(_describe_in_memory, partial(_make_in_memory, io.StringIO)),
    "BytesIO": _Kind(_describe_in_memory, partial(_make_in_memory, io.BytesIO)),
    "file": _Kind(_describe_file, _make_file),
    "object": _Kind(_describe_object, _make_object),
}
_NAMES: Final[dict[type, str]] = {  # of the kinds of these classes, but not of classes that are derived from them
    **{kind: kind.__name__ for kind in (float, complex, bytes, bytearray, *_MADE_AGAIN, io.StringIO, io.BytesIO)},
    **dict.fromkeys((range, slice), "made"),
    np.ndarray: "array",
}
_MAKERS: Final[dict[str, Callable[..., Any]]] = {
    **{name: kind.make for name, kind in _KINDS.items()},
    **SETTERS,
    "holds": _make_held,
    "new": _make_new,
    OPAQUE: lambda old, text: old,
}
