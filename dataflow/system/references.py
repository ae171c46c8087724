"""What values refer to: the names that code reads, and the values behind them.

One answer for all that look into a value, each with rules of its own for what it finds there: fingerprints, which
compare a flow with that of another run; snapshots, which compare it with what its workers were given; what a node keeps
from pass to pass; the search for random generators, and for the code of a node.

Code of the user's program is followed; Python itself and installed packages count by name and version (`library_of`).
"""

from __future__ import annotations

import builtins
import dis
import functools
import importlib
import importlib.util
import json
import logging
import marshal
import os
import sys
import types
import zlib
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import takewhile
from operator import attrgetter
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

__all__ = [
    "COLLECTIONS",
    "MAX_BYTES",
    "MAX_ITEMS",
    "MISSING",
    "VALUES",
    "VIEWS",
    "Variable",
    "array_checksum",
    "attributes_of",
    "changed_by_methods",
    "checksum",
    "defined_by",
    "globals_of",
    "held_by",
    "imports_of",
    "is_of_library",
    "library_of",
    "loaded_class",
    "made_of",
    "names_in",
    "parts",
    "reached",
    "reads_of",
    "samples",
    "tensor_content",
    "unchanged_held",
]

MAX_BYTES: Final = 16 << 20  # of data that are compared whole, by a checksum
MAX_ITEMS: Final = 32  # a longer list is data: its elements are not followed
MISSING: Final = object()
VALUES: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})  # which any process can compare
COLLECTIONS: Final[tuple[Any, ...]] = (list, tuple, dict, set, frozenset, deque)
_MAX_REACHED: Final = 10_000

W = TypeVar("W")  # where a value is: in words, or as a path


# -- what belongs to the user's program --------------------------------------------------------------------------------

_STDLIB: Final = os.path.join(os.path.dirname(os.__file__), "")
_INSTALLED: Final = ("site-packages", "dist-packages")


@functools.cache
def library_of(module: str) -> str | None:
    """Name and version of the library that a module belongs to; None if it is part of the user's program."""
    top = module.partition(".")[0]
    if top in {"__main__", "__mp_main__"}:
        return None
    if top == "dataflow":
        return top  # what its nodes yield does not depend on the version
    path = _path(module) or _path(top)
    if path is None:
        return top if top in sys.stdlib_module_names or top in sys.builtin_module_names else None
    if any(part in path.split(os.sep) for part in _INSTALLED):
        return _version(top)
    return top if path.startswith(_STDLIB) else None


def is_of_library(value: Any) -> bool:
    """Whether a function or class is defined in a library."""
    module = value.__globals__.get("__name__") if isinstance(value, FunctionType) else value.__module__
    return library_of(str(module)) is not None


def _path(module: str) -> str | None:
    """The file of a module that is loaded, or of a package; a folder of a package that is spread over several."""
    found = sys.modules.get(module)
    try:
        spec = found.__spec__ if found is not None else None if "." in module else importlib.util.find_spec(module)
    except (AttributeError, ImportError, ValueError):
        spec = None
    path = getattr(found, "__file__", None) or (spec.origin if spec is not None and spec.has_location else None)
    folders = spec.submodule_search_locations if spec is not None else None
    return path or next(iter(folders or ()), None)


def _version(top: str) -> str | None:
    """Name and version of what is installed under a name; None if its code may change while the version stays."""
    from importlib import metadata  # slow to import

    try:
        distributions = [metadata.distribution(top)]
    except (metadata.PackageNotFoundError, ValueError):
        distributions = [metadata.distribution(name) for name in sorted({*_distributions().get(top, ())})]
    parts = [top]
    for distribution in distributions:
        # A project that was installed from its folder keeps its version while its code changes.
        origin = distribution.read_text("direct_url.json")
        if origin is not None and "dir_info" in json.loads(origin):
            return None
        parts += (
            [distribution.version]
            if origin is None
            else [distribution.version, sha256(origin.encode()).hexdigest()[:16]]
        )
    if not distributions:
        version = getattr(sys.modules.get(top), "__version__", None)
        return f"{top} {version}" if isinstance(version, str) else None
    return " ".join(parts)


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    from importlib.metadata import packages_distributions

    return packages_distributions()


# -- what code reads ---------------------------------------------------------------------------------------------------

_LOADS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_OF_ITEMS: Final = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})
_OF_ATTRIBUTES: Final = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_CHANGING: Final = frozenset(  # methods of containers
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem", "popleft"}
    | {"remove", "reverse", "setdefault", "sort", "update"}
)
_ALL_GLOBALS: Final = frozenset({"globals", "eval", "exec"})  # functions that may read them
_UNFOLLOWED: Final = frozenset(  # with these, code finds others, or reads what is left out of their description
    {"__import__", "import_module", "__subclasses__", "__globals__", "f_globals", "__annotations__", "get_type_hints"}
    | {"__doc__", "getdoc", "getsource", "getsourcelines", "co_firstlineno", "f_lineno"}
)

Chain = tuple[str, ...]
"""A global name, and the attributes that the code reads from it: ``config.size.width`` has three names."""


class _Import(NamedTuple):
    """What code reads of a module that it imports itself."""

    module: str
    level: int  # of a relative import
    chain: Chain  # the attributes; none for the whole module
    of_package: bool  # the attributes are those of the outermost package: `import a.b` binds a


class Reads(NamedTuple):
    """What code reads, that of the functions and classes in it included."""

    names: frozenset[str]  # all that are in it, also of attributes and of what is imported
    chains: tuple[Chain, ...]
    assigned: frozenset[str]  # global names
    changed: frozenset[Chain]  # whose items or attributes it changes; "" is the first argument, such as `self`
    imports: tuple[_Import, ...]
    unfollowed: str  # a name with which it reads others; empty if there is none


@functools.lru_cache(maxsize=4096)
def reads_of(code: CodeType) -> Reads:
    """What a code object reads."""
    chains: dict[Chain, None] = {}
    imports: dict[_Import, None] = {}
    unfollowed = next((name for name in code.co_names if name in _UNFOLLOWED), "")
    if {"sys", "modules"} <= set(code.co_names):
        unfollowed = "sys.modules"
    found = [item for item in dis.get_instructions(code) if item.opname not in {"EXTENDED_ARG", "CACHE"}]
    own = {item.argval for item in found if item.opname == "STORE_NAME"}  # by the body of a class
    assigned = {item.argval for item in found if item.opname == "STORE_GLOBAL"}
    for k, item in enumerate(found):
        if item.opname in _LOADS and not (item.opname == "LOAD_NAME" and item.argval in own):
            chains[item.argval, *_attributes(found, k)] = None
        elif item.opname == "IMPORT_NAME":
            # The compiler loads the level and the names just before.
            module, level, names = item.argval, found[k - 2].argval, found[k - 1].argval
            if names:
                imports.update(dict.fromkeys(_Import(module, level, (name,), False) for name in names))
            elif found[k + 1].opname.startswith("STORE_FAST"):
                variable = found[k + 1].argval
                variable = variable if isinstance(variable, str) else variable[0]  # the next instruction is part of it
                uses = [n for n, load in enumerate(found) if _loads(load, variable)]
                imports.update(dict.fromkeys(_Import(module, level, _attributes(found, n), True) for n in uses))
            else:
                imports[_Import(module, level, (), found[k + 1].opname != "IMPORT_FROM")] = None
    changed = {*_changed_by(found, code)}
    inside = [reads_of(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    for inner in inside:
        chains.update(dict.fromkeys(inner.chains))
        imports.update(dict.fromkeys(inner.imports))
        unfollowed = unfollowed or inner.unfollowed
        changed.update(chain for chain in inner.changed if chain[0])
    names = frozenset(code.co_names).union(*(inner.names for inner in inside))
    assigned = assigned.union(*(inner.assigned for inner in inside))
    return Reads(names, tuple(chains), frozenset(assigned), frozenset(changed), tuple(imports), unfollowed)


def _changed_by(found: Sequence[dis.Instruction], code: CodeType) -> Iterator[Chain]:
    """What the instructions change: `a.b[k] = v`, `a.b.c = v` and `a.b.append(v)` change ``a.b`` and ``a.b.c``."""
    first = code.co_varnames[0] if code.co_argcount else None
    at: dict[object, Chain] = {}  # where in the source each chain begins
    for k, item in enumerate(found):
        if item.opname in _LOADS or item.opname == "LOAD_DEREF":
            name, begins = "" if item.argval == first else item.argval, item
        elif first is not None and _loads(item, first):
            # Of an instruction that loads two, the second is at the place of what is done with it.
            name, is_second = "", isinstance(item.argval, tuple) and item.argval[1] == first
            begins = found[k + 1] if is_second else item
            if is_second and begins.opname in _OF_ITEMS:  # a key
                continue
        elif item.opname == "STORE_DEREF":
            yield (item.argval,)
            continue
        else:
            if item.opname in _OF_ITEMS | _OF_ATTRIBUTES and (chain := at.get(_place(item), ())):
                yield (*chain, item.argval) if item.opname in _OF_ATTRIBUTES else chain
            continue
        chain = at[_place(begins)] = (name, *_attributes(found, k))
        if chain[-1] in _CHANGING and len(chain) > 1:
            yield chain[:-1]


def _place(item: dis.Instruction) -> object:
    """Where it begins in the source; a place of its own if that is not known."""
    found = item.positions
    return object() if found is None or found.col_offset is None else (found.lineno, found.col_offset)


_PREPARING: Final = frozenset(  # methods that run while an object is made or changed, not while it is used
    {"__init__", "__new__", "__post_init__", "__setstate__", "__setattr__", "__delattr__", "__setitem__", "__delitem__"}
)


def names_in(functions: Iterable[FunctionType], names: Iterable[str] = ()) -> frozenset[str]:
    """All names in the code of those functions that may run; code that is not among them names `names`.

    A method may run if its name is found in code that runs, or begins with underscores; a method with which the program
    prepares an object beforehand does not.
    """
    found, left = frozenset(names), [*functions]
    while running := [function for function in left if _may_run(function, found)]:
        left = [function for function in left if function not in running]
        found = found.union(*(reads_of(function.__code__).names for function in running))
    return found


def _may_run(function: FunctionType, names: Set[str]) -> bool:
    name = function.__name__
    is_method = function.__qualname__.rpartition(".")[0].rpartition(".")[2] not in {"", "<locals>"}
    return name in names or not is_method or (name.startswith("__") and name not in _PREPARING)


def changed_by_methods(cls: type, names: Iterable[str]) -> frozenset[str]:
    """The attributes that methods of a class change while they run, such as caches; none of libraries.

    Args:
        cls: The class.
        names: Those in code that runs, which name the methods.
    """
    ours = [kind for kind in cls.__mro__ if not is_of_library(kind)]
    functions = [item for kind in ours for item in vars(kind).values() if isinstance(item, FunctionType)]
    names = names_in(functions, names)
    return frozenset(
        chain[1]
        for function in functions
        if function.__name__ not in _PREPARING and _may_run(function, names)
        for chain in reads_of(function.__code__).changed
        if chain[0] == "" and len(chain) > 1
    )


def _attributes(instructions: Sequence[dis.Instruction], k: int) -> Chain:
    """The attributes that the instructions after the k-th read, one of the other."""
    return tuple(item.argval for item in takewhile(lambda item: item.opname in _ATTRIBUTES, instructions[k + 1 :]))


def _loads(item: dis.Instruction, name: str) -> bool:
    """Whether an instruction loads a local variable; some load two."""
    names = item.argval if isinstance(item.argval, tuple) else (item.argval,)
    return item.opname.startswith(("LOAD_FAST", "STORE_FAST_LOAD")) and name in names


class Variable(NamedTuple):
    """A global variable that code reads."""

    name: str  # as the code names it, such as ``config.size``
    value: Any  # `MISSING` if there is none yet
    module: str  # that has it


def globals_of(function: FunctionType) -> Iterator[Variable]:
    """The global variables that a function names; of a module of the user's program, the attributes that it reads."""
    namespace = function.__globals__
    module = str(namespace.get("__name__", ""))
    for first, *attributes in reads_of(function.__code__).chains:
        if first in namespace:
            yield _through_modules(Variable(first, namespace[first], module), attributes)
        elif first in _ALL_GLOBALS:  # the code may read any
            for name, value in sorted(namespace.items()):
                if not name.startswith("__"):
                    yield Variable(name, value, module)
        elif not hasattr(builtins, first):
            yield Variable(first, MISSING, module)
        elif _may_be_put_there(first, getattr(builtins, first)):
            yield Variable(first, getattr(builtins, first), builtins.__name__)


def imports_of(function: FunctionType, *, load: bool) -> Iterator[Variable]:
    """What a function imports itself, if it is loaded, or with `load`; of a library, its name and version as text."""
    for name, level, chain, of_package in reads_of(function.__code__).imports:
        if level:
            name = importlib.util.resolve_name("." * level + name, function.__globals__.get("__package__") or "")
        library = library_of(name)
        if library is not None:
            yield Variable(f"import {name}", library, name)
            continue
        if load:
            with suppress(ImportError):
                module = importlib.import_module(name)
                if len(chain) == 1 and _attribute_of(module, chain[0]) is MISSING:
                    importlib.import_module(f"{name}.{chain[0]}")
        name = name.partition(".")[0] if of_package else name
        if name in sys.modules:
            yield _through_modules(Variable(name, sys.modules[name], name), chain)


def _through_modules(variable: Variable, attributes: Sequence[str]) -> Variable:
    """The attribute that code reads of a module of the user's program; the module itself if it is one of a library."""
    name, value, module = variable
    for attribute in attributes:
        if not isinstance(value, ModuleType):
            break
        is_ours = library_of(value.__name__) is None
        found: Any = _attribute_of(value, attribute) if is_ours else vars(value).get(attribute)
        # A library counts by its version, but not what the user's program may have put there.
        if not is_ours and not _may_be_put_there(attribute, found):
            break
        name, value, module = f"{name}.{attribute}", found, value.__name__
    return Variable(name, value, module)


def _attribute_of(module: ModuleType, name: str) -> Any:
    """An attribute of a module of the user's program; `MISSING` if there is none, or its `__getattr__` fails."""
    try:
        return getattr(module, name, MISSING)
    except Exception:  # such as a package that is not installed; the code raises it, too, if it gets there
        return MISSING


def _may_be_put_there(name: str, value: Any) -> bool:
    """Whether `value`, which a module of a library or of Python has under `name`, may be the user's: plain ones may."""
    if isinstance(value, FunctionType | type):
        return library_of(value.__module__) is None
    return type(value) in VALUES and value is not None and not name.startswith("__")


# -- what values hold --------------------------------------------------------------------------------------------------

_LRU_CACHE: Final = type(functools.lru_cache(len))
_OF_SINGLEDISPATCH: Final = frozenset({"cache_token", "dispatch_cache", "_clear_cache"})  # what else it has decides
_OF_CLASS: Final = frozenset(  # what a class has for other reasons than its body
    {"__abstractmethods__", "__annotate__", "__annotations_cache__"}
    | {"__classcell__", "__classdictcell__"}
    | {"__dict__", "__doc__", "__firstlineno__", "__module__", "__orig_bases__", "__parameters__", "__qualname__"}
    | {"__slotnames__", "__static_attributes__", "__type_params__", "__weakref__", "_abc_impl", "_value2member_map_"}
)
_MADE_OF: Final[dict[tuple[Any, ...], tuple[str, ...]]] = {
    (types.BuiltinFunctionType, types.MethodWrapperType): ("__self__",),  # methods, too
    (types.MethodType,): ("__func__", "__self__"),
    (staticmethod, classmethod): ("__func__",),
    (property,): ("fget", "fset", "fdel"),
    (functools.cached_property,): ("func",),
    (_LRU_CACHE,): ("__wrapped__",),
    (partial, functools.partialmethod): ("func", "args", "keywords"),
}
_MADE: Final = tuple(kind for kinds in _MADE_OF for kind in kinds)


def made_of(value: Any) -> dict[str, Any]:
    """What a value that stands for functions is made of: of a method its function and object; empty for others."""
    if not isinstance(value, _MADE) or (
        type(value) is types.BuiltinFunctionType and type(value.__self__) is ModuleType
    ):
        return {}
    names = next(names for kinds, names in _MADE_OF.items() if isinstance(value, kinds))
    return {name: getattr(value, name) for name in names}


def held_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The defaults of a function, its closure, with `MISSING` where nothing is assigned yet, and its attributes."""
    if function.__defaults__:
        yield "the defaults", function.__defaults__
    if function.__kwdefaults__:
        yield "the defaults by name", function.__kwdefaults__
    # The second holds all of a class for its annotations, from Python 3.14 on: also what is remembered there later.
    skipped = _OF_SINGLEDISPATCH if function.__globals__ is vars(functools) else ("__classdict__",)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name not in skipped:
            try:
                yield name, cell.cell_contents
            except ValueError:
                yield name, MISSING
    yield from ((f".{name}", value) for name, value in sorted(vars(function).items()) if name not in skipped)


def unchanged_held(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """`held_by`, without what the function changes itself, such as the dictionary of a decorator that remembers."""
    changed = {chain[0] for chain in reads_of(function.__code__).changed}
    yield from ((name, value) for name, value in held_by(function) if name not in changed)


def defined_by(cls: type) -> Iterator[tuple[str, Any]]:
    """What the body of a class defines, and what was assigned to the class since."""
    for name, value in sorted(vars(cls).items()):
        if name not in _OF_CLASS and not isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
            yield name, value


VIEWS: Final[tuple[Any, ...]] = (types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items()))
_NO_PARTS: Final = frozenset(
    VALUES | {CodeType, ModuleType, logging.Logger, logging.RootLogger}  # loggers remember who has asked them
)


def parts(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a value refers to, one step far, each with words for where it is.

    Of functions and classes of libraries, that is only what was given to them.
    """
    if isinstance(value, FunctionType):
        yield f"the code of {where}", value.__code__
        for name, item in held_by(value):
            yield f"{name} in {where}", item
        if not is_of_library(value):
            for name, item, _ in (*globals_of(value), *imports_of(value, load=False)):
                yield f"{name} in {where}", item
    elif isinstance(value, type):
        if not is_of_library(value):
            yield from ((f"a base of {where}", base) for base in value.__bases__)
            yield from ((f"{value.__qualname__}.{name}", item) for name, item in defined_by(value))
    elif isinstance(value, COLLECTIONS + VIEWS):
        if isinstance(value, defaultdict):
            yield f"{where}.default_factory", value.default_factory
        if len(value) <= MAX_ITEMS:
            items = [*value.items()] if isinstance(value, dict | types.MappingProxyType) else enumerate([*value])
            yield from ((f"{where}[{key!r:.40}]", item) for key, item in items)
    else:
        yield from ((f"{where}.{name}", item) for name, item in made_of(value).items())
    if type(value).__module__ != "builtins":
        yield f"the class of {where}", type(value)
        yield from ((f"{where}.{name}", item) for name, item in attributes_of(value))


_PUBLIC: Final = VALUES | {list, tuple, dict, np.ndarray}  # what attributes of a library's objects are compared
_NUM_SAMPLES: Final = 16
_CHUNK: Final = 256  # elements
_CHUNK_BYTES: Final = 1 << 20
_MAX_ARRAY_BYTES: Final = 256 << 20  # of one without gaps, which is compared whole, at 3.5 GB/s


def checksum(items: Sequence[Any], *, by_identity: bool = False) -> int | None:
    """A checksum of plain values, nested ones too; the same in each process. None for more than `MAX_BYTES`.

    Objects of other classes make it None; with `by_identity`, those of the user's classes count by their attributes,
    and all others by their identity and by the values of their public attributes.
    """
    readers: dict[type, _Reader | None] = {}
    seen: set[int] = set()
    number = start = nbytes = 0
    size = 1  # what the elements take is not known before
    while start < len(items):
        part: Any = items[start : start + size]
        try:
            data = marshal.dumps(part, 2)  # a version in which it does not matter who else refers to an element
        except ValueError:  # there is an object among them
            if not by_identity:
                return None
            data = _with_objects(part, readers, seen)
        number = zlib.crc32(data, number)
        start += size
        nbytes += len(data)
        if nbytes > MAX_BYTES:
            return None
        size = min(2 * size, _CHUNK, 1 + _CHUNK_BYTES * size // len(data))
    return number


_Reader = Callable[[Any], Mapping[str, Any]]


def _with_objects(values: Sequence[Any], readers: dict[type, _Reader | None], seen: set[int]) -> bytes:
    """What `values` hold, for a comparison in this process.

    Args:
        values: Elements of one collection.
        readers: What is known of classes.
        seen: The ids of objects that were described, and count by identity from then on.
    """

    def described(values: Iterable[Any]) -> list[Any]:
        return [value if type(value) in VALUES else content(value) for value in values]

    def content(value: Any) -> Any:
        kind = type(value)
        if kind is list or kind is tuple:
            return described(value)
        if kind is dict:
            return described(value), described(value.values())
        if kind is np.ndarray and not value.dtype.hasobject:
            return value.dtype.str, value.shape, value.tobytes()
        if kind not in readers:
            readers[kind] = _reader_of(kind)
        read = readers[kind]
        if read is None or id(value) in seen:
            return id(value)
        seen.add(id(value))  # before its parts: it may hold itself
        return id(kind), described(read(value).values())

    try:
        return marshal.dumps(described(values), 2)
    except (ValueError, RecursionError):  # such as a list in itself
        return array("Q", map(id, values)).tobytes()


def _reader_of(kind: type) -> _Reader | None:
    """The function that gives what an object holds: a collection, or one of the user's classes; else None.

    Of an object of a library it gives the identity, and the values of public attributes: others may be caches.
    """
    if issubclass(kind, COLLECTIONS):
        return lambda value: {**dict(attributes_of(value)), "": [*(value.items() if issubclass(kind, dict) else value)]}
    if issubclass(kind, np.ndarray) and not issubclass(kind, np.memmap):
        return _content_of_array
    if issubclass(kind, bytearray | array):
        return lambda value: {**dict(attributes_of(value)), "": bytes(value)}
    if issubclass(kind, loaded_class("torch", "Tensor")):
        return lambda value: {**dict(attributes_of(value)), "": tensor_content(value)}
    if issubclass(kind, type | ModuleType):
        return None
    if issubclass(kind, (FunctionType, *_MADE)):
        return lambda value: {
            **(dict(unchanged_held(value)) if kind is FunctionType else made_of(value)),
            "": id(value),
        }
    bases = [vars(base) for base in kind.__mro__ if "__slots__" in vars(base)]
    slots = [name for base in bases for name, held in base.items() if isinstance(held, types.MemberDescriptorType)]
    if not is_of_library(kind) or issubclass(kind, loaded_class("torch.nn", "Module")):
        return (lambda value: dict(attributes_of(value))) if slots else vars
    if not kind.__dictoffset__ and all(name.startswith("_") for name in slots):
        return None
    read: _Reader = (lambda value: dict(attributes_of(value))) if slots else vars
    return lambda value: (
        {"": id(value)}
        | {name: held for name, held in read(value).items() if type(held) in _PUBLIC and name[:1] != "_"}
    )


def _content_of_array(value: Any) -> Mapping[str, Any]:
    held = value.ravel().tolist() if value.dtype.hasobject else np.asarray(value).tobytes()
    mask = np.ma.getmaskarray(value).tobytes() if isinstance(value, np.ma.MaskedArray) else None
    return {"": [value.dtype.str, value.shape, held, mask]}


def array_checksum(array: Any) -> int:
    """A checksum of an array without objects.

    One of more than `_MAX_ARRAY_BYTES`, or of more than `MAX_BYTES` and with gaps, has that of 16 elements.
    """
    if array.nbytes <= MAX_BYTES:
        return zlib.crc32(array.tobytes())
    if not _is_compared_whole(array):
        return zlib.crc32(samples(array.flat).tobytes())
    # In the order of the memory, without a copy. A transposed array has the same bytes, and another first number.
    return zlib.crc32(array.ravel("K").view(np.uint8), not array.flags.c_contiguous)


def _is_compared_whole(array: Any) -> bool:
    return bool(array.nbytes <= (_MAX_ARRAY_BYTES if array.flags.forc else MAX_BYTES))


def tensor_content(tensor: Any) -> bytes:
    """What is another one if a tensor of torch has changed: its shape, and the checksum of an array of its elements.

    If those are not all compared, also where they are, and how often operations of torch have changed them.
    """
    array = None
    with suppress(Exception):  # torch has layouts, and tensors without data, that cannot be made an array
        array = _array_of(tensor.detach())
    found = [tuple(tensor.shape), None if array is None else array_checksum(array)]
    if array is None or not _is_compared_whole(array):
        for read in (type(tensor).data_ptr, attrgetter("_version")):
            with suppress(Exception):  # such a tensor may have none of these
                found.append(read(tensor))
    return repr(found).encode()


def _array_of(tensor: Any) -> Any:
    try:
        return tensor.numpy(force=True)
    except TypeError:  # of a dtype that NumPy does not have
        return tensor.view(getattr(sys.modules["torch"], f"int{8 * tensor.element_size()}")).numpy(force=True)


def loaded_class(module: str, name: str) -> Any:
    """A class of a module, if that is loaded; otherwise (), of which nothing is an instance."""
    return getattr(sys.modules.get(module), name, ())


def samples(items: Any) -> Any:
    """Of what is too large for a checksum: up to 16 elements, at equal distances."""
    return items[:: -(-len(items) // _NUM_SAMPLES) or 1]


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, those in slots too, by name."""
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        # A copy, made in one step under the interpreter's lock: another thread may assign an attribute meanwhile.
        yield from attributes.copy().items()
    for kind in type(value).__mro__:
        if "__slots__" in vars(kind):
            for name, slot in vars(kind).copy().items():
                if isinstance(slot, types.MemberDescriptorType):
                    with suppress(AttributeError):  # nothing is assigned yet
                        yield name, slot.__get__(value)


def reached(
    roots: Iterable[tuple[W, Any]], parts: Callable[[W, Any], Iterable[tuple[W, Any]]], limit: int = _MAX_REACHED
) -> Iterator[tuple[W, Any]]:
    """The first references that lead on from `roots`, the nearest first; `parts` is called once a value."""
    found = [*roots]  # also keeps temporary objects, and so their ids
    seen: set[int] = set()
    for where, value in found:
        yield where, value
        if type(value) not in _NO_PARTS and id(value) not in seen and len(found) < limit:
            seen.add(id(value))
            found += parts(where, value)  # the loop comes to these, too
