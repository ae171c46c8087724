"""Change detection: whether a flow is still the one that its workers were given.

A worker has a copy of the flow, made as it was started. The consumer computes lengths and positions with the flow that
the user holds: if that has changed since, the two no longer fit together. So a runner takes a `Snapshot` as it starts
its workers, and compares it with the flow at the beginning of each pass.

A snapshot holds references and plain values, so it costs a few microseconds per node. Of a long list, dict or set, of
an array and of a tensor of torch it has a checksum: plain values, nested ones too, count by value, objects of the
user's classes by their attributes, and all others by identity and by the values of their public attributes. It takes
0.1 µs for each element, and 2 to 3 µs for an object. Of a list of more than 16 MB, and an array of more than 256 MB, it
has the length and 16 elements: whoever shuffles a list in place, or scales an array, changes one of those. Of so large
a tensor it also has the number of changes that torch counts.

Workers that are not forked import modules anew, so what the program has changed in a module since it was imported is
missing there: global variables, their contents, attributes of classes, defaults and closures of functions. For such
workers a snapshot also describes what the code reads of modules, whole (`fingerprints.describe_imported`), and each
worker compares that with what it has imported (`ImportCheck`).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import mmap
import reprlib
import sys
from array import array as array_of_python
from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from itertools import chain, zip_longest
from pathlib import PurePath
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

import numpy as np

from dataflow.errors import NotPicklable
from dataflow.protocol.base import DataFlow
from dataflow.protocol.passes import known_length
from dataflow.system.pickling import found_in, imported_main, name_where_found
from dataflow.system.references import (
    COLLECTIONS,
    MAX_ITEMS,
    MISSING,
    VALUES,
    VIEWS,
    Variable,
    array_checksum,
    changed_by_methods,
    checksum,
    defined_by,
    globals_of,
    imports_of,
    is_of_library,
    library_of,
    loaded_class,
    names_in,
    parts,
    reached,
    reads_of,
    samples,
    tensor_content,
    unchanged_held,
)

__all__ = ["ImportCheck", "Snapshot"]

_PLAIN: Final = VALUES | {MethodType, np.dtype}


class Snapshot:
    """The nodes of a flow, their lengths and attributes, and what those refer to, at one moment.

    Attributes:
        imported: What the code reads of modules, for workers that import them.

    Args:
        nodes: The nodes.
        owner: The node that keeps this snapshot, if it is one of them: a reference would keep it alive.
        attributes: Compare the attributes of the nodes.
        deep: Compare also what functions, objects and their classes refer to. Needed where workers have copies of them.
        imported: Describe what is read of modules. Needed where workers import them; takes a microsecond for each
            number or string, and a second for a gigabyte of arrays.
        shared: Compare also what changes in memory that processes share. Forked workers see it; a file does not.

    Raises:
        NotPicklable: What is read of a module is too large to be compared; names it.
    """

    def __init__(
        self,
        nodes: Iterable[DataFlow],
        owner: DataFlow | None = None,
        *,
        attributes: bool = True,
        deep: bool = True,
        imported: bool = False,
        shared: bool = False,
    ) -> None:
        self._entries: list[tuple[str, Any]] = []
        self._deep, self._shared = deep, shared
        nodes = [*nodes]
        self._apart = {id(ds) for node in nodes for ds in (node, *node._df_inputs)}
        roots: list[tuple[str, Any]] = []
        for number, node in enumerate(nodes):
            name = f"{type(node).__name__}" if number == 0 else f"{type(node).__name__} (node {number})"
            self._entries.append((name, node))
            if attributes:
                self._entries.append((f"len of {name}", known_length(node)))
                roots += _of_node(name, node)
        code: list[tuple[str, Any]] = []
        compared: set[int] = set()
        for where, value in reached(roots, self._parts):
            self._entries.append((where, value))
            if _is_handle(value) and not shared:
                continue
            self._entries += _size(where, value)
            if deep:
                self._entries += _contents(where, value, shared=shared, sent=imported)
                for there, tensor in _tensors(where, value):
                    if id(tensor) not in compared and (shared or imported or not _is_shared(tensor)):
                        self._entries.append((f"the content of {there}", tensor_content(tensor)))
                    compared.add(id(tensor))
            if imported and _is_of_program(value):
                code.append((where, value))
        self.imported = ImportCheck(code) if code else None
        if self.imported is not None:
            self._entries += self.imported.entries()
        self._entries = [(where, None if value is owner else value) for where, value in self._entries]

    def difference(self, now: Snapshot) -> str | None:
        """The first difference, as part of a sentence; None if there is none."""
        for (where, before), (there, after) in zip_longest(self._entries, now._entries, fillvalue=("", MISSING)):
            if where != there:
                return f"{where} is gone" if where and where not in dict(now._entries) else f"{there} is new"
            if before is after:
                continue
            if type(before) not in _PLAIN or type(before) is not type(after):
                return f"{where} is another object"
            if before != after and type(before) is bytes:
                return f"{where} has changed"
            if before != after:
                return f"{where} was {before!r:.40} and is {after!r:.40}"
        return None

    def _parts(self, where: str, value: Any) -> Iterable[tuple[str, Any]]:
        if isinstance(value, DataFlow):
            return () if id(value) in self._apart else _of_node(where, value)
        if _is_handle(value) and not self._shared:
            return ()
        if not self._deep and not isinstance(value, list | tuple | dict | type):
            return ()
        if isinstance(value, PurePath):  # it fills its slots as it is used
            more = [(f"{where}.{name}", part) for name, part in getattr(value, "__dict__", {}).items()]
            return [(f"the text of {where}", str(value)), *more]
        if isinstance(value, FunctionType) and (names := reads_of(value.__code__).assigned):  # such as counters
            assigned = {f"{name} in {where}" for name in names}
            return [(there, part) for there, part in parts(where, value) if there not in assigned]
        return parts(where, value)


def _of_node(where: str, node: DataFlow) -> Iterator[tuple[str, Any]]:
    yield f"the class of {where}", type(node)
    for name, value in node._df_deciding.items():
        if node._df_user_written or name[0] != "_":  # those of built-in nodes are tables that follow from the others
            yield f"{where}.{name}", value


def _is_handle(value: Any) -> bool:
    """Whether it only leads to what processes share: its own attributes change as it is used, as a thread sends."""
    classes = (("multiprocessing.queues", "Queue"), ("multiprocessing.managers", "BaseProxy"))
    return any(isinstance(value, loaded_class(*where)) for where in classes)


def _size(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, np.ndarray):
        yield f"the shape of {where}", str(value.shape)
    elif type(value) not in _PLAIN and isinstance(value, Sized) and not isinstance(value, DataFlow | ModuleType | type):
        try:
            yield f"len of {where}", len(value)
        except Exception:  # of a user's class
            pass


def _contents(where: str, value: Any, *, shared: bool, sent: bool) -> Iterator[tuple[str, Any]]:
    """What stands for the elements of a long list, dict or set, or of an array.

    Args:
        where: The value, in words.
        value: Anything.
        shared: Look also into memory that processes share: workers that are forked see what changes there.
        sent: Workers are sent what they work on: they share numbers and arrays of `multiprocessing`, but get a copy of
            an array over these.
    """
    items: list[Any] = []
    if isinstance(value, COLLECTIONS + VIEWS):
        if len(value) > MAX_ITEMS:
            items = [*value.keys(), *value.values()] if isinstance(value, dict | MappingProxyType) else list(value)
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        items = value.ravel().tolist()
    elif type(value) not in _PLAIN:
        with suppress(TypeError, ValueError, BufferError):  # it has no memory that can be looked at
            numbers = value if isinstance(value, np.ndarray) else np.asarray(memoryview(value))
            if shared or not (_is_sent_to_be_shared(value) if sent else _is_of_other_memory(numbers)):
                yield f"the content of {where}", array_checksum(np.asarray(numbers)).to_bytes(4)
    if not items:
        return
    if (number := checksum(items, by_identity=True)) is not None:
        yield f"the content of {where}", number.to_bytes(4)
    else:
        yield from ((f"{where}[{k}]", items[k]) for k in samples(range(len(items))))


def _tensors(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tensor of torch that `value` is; all that it has, if it is a module, which may have thousands of parts."""
    if isinstance(value, loaded_class("torch", "Tensor")):
        yield where, value
    elif isinstance(value, loaded_class("torch.nn", "Module")):
        with suppress(Exception):  # of a user's class, before its constructor has called that of its base
            for name, tensor in chain(value.named_parameters(), value.named_buffers()):
                yield f"{where}.{name}", tensor


def _is_shared(tensor: Any) -> bool:
    with suppress(Exception):  # of a layout without such memory
        return bool(tensor.is_shared())
    return False


def _is_of_other_memory(array: Any) -> bool:
    """Whether an array is part of a file, or of memory that processes may share."""
    while isinstance(array, np.ndarray | memoryview):
        if isinstance(array, np.memmap):
            return True
        array = array.base if isinstance(array, np.ndarray) else array.obj
    if isinstance(array, loaded_class("torch", "Tensor")):
        return _is_shared(array)
    if type(type(array)).__module__ == "_ctypes":
        return hasattr(array, "_wrapper")  # of `multiprocessing`
    return not isinstance(array, bytearray | bytes | array_of_python | np.generic | None)


def _is_sent_to_be_shared(value: Any) -> bool:
    """Whether it is a number or an array of `multiprocessing`, such as a `RawValue`, or the memory that it is in.

    Other mapped memory cannot be sent.
    """
    is_of_multiprocessing = type(type(value)).__module__ == "_ctypes" and hasattr(value, "_wrapper")
    return is_of_multiprocessing or isinstance(value, mmap.mmap)


def _is_pickled_by_name(function: FunctionType) -> bool:
    """Whether its module has the function, or the class whose body defines it, under its name."""
    holder, _, name = function.__qualname__.rpartition(".")
    found: Any = found_in(sys.modules.get(function.__module__), holder)
    if isinstance(found, type):
        return found.__qualname__ == holder
    found = getattr(found, name, None)
    while found is not function and hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    return found is function


# -- what workers import -----------------------------------------------------------------------------------------------


class _ModuleItem(NamedTuple):
    """What a module has under a name, in the process that sends functions which read it."""

    where: str  # the function or class, in words
    module: str
    name: str  # with dots for an attribute of a class
    is_held: bool  # it is a function, and this is what it holds
    text: str
    shown: str

    def __str__(self) -> str:
        if self.is_held:
            return f"{self.where} has defaults, a closure or attributes: {self.name} of {self.module}"
        noun = "" if "." in self.name else "the global variable "
        return f"{self.where} reads {noun}{self.name} of {self.module}"


class ImportCheck:
    """What code of the user's program reads of modules that workers import; called in a worker, it compares that.

    Compared are global variables, attributes of classes, and what functions hold, as far as the sent code names them:
    containers and arrays by their contents, objects by their attributes, functions and classes by their names.

    Left out is what that code itself changes, so that it differs by nature: variables that it assigns, containers that
    it fills (``CACHE[key] = value``), attributes that methods assign while they run; and what the clock gave when the
    module was imported.

    Args:
        code: Functions, classes and whole modules that workers need, in words and by themselves.
    """

    def __init__(self, code: Iterable[tuple[str, Any]]) -> None:
        found = {id(item): (where, item) for where, item in code}.values()
        functions = [(where, item) for where, item in found if isinstance(item, FunctionType)]
        self._names = names_in(item for _, item in functions)
        variables: dict[tuple[str, str], tuple[str, Any]] = {}
        changed: set[tuple[str, str]] = set()  # names in modules, in classes and, without a holder, in objects
        for where, function in functions:
            for name, value, module in _read_by(function):
                variables.setdefault((module, name), (where, value))
            changed.update(_changed_by(function))
        for where, item in found:
            if isinstance(item, ModuleType):
                variables.update({(item.__name__, name): (where, value) for name, value in _public(item)})
            elif isinstance(item, type) and name_where_found(item):
                own = changed_by_methods(item, self._names)
                for name, value in defined_by(item):
                    if name not in own and not name.startswith("__") and (item.__qualname__, name) not in changed:
                        variables[item.__module__, f"{item.__qualname__}.{name}"] = where, value
        self._assigned = frozenset(name for holder, name in changed if not holder)
        self._found = [
            self._described(where, module, name, False, value)
            for (module, name), (where, value) in variables.items()
            if (module, name) not in changed and _is_imported(module)
        ]
        for where, function in functions:
            if (
                (held := dict(unchanged_held(function)))
                and name_where_found(function)
                and _is_imported(function.__module__)
            ):
                self._found.append(self._described(where, function.__module__, function.__qualname__, True, held))

    def entries(self) -> Iterator[tuple[str, str]]:
        """For a snapshot: what is compared, and its text."""
        yield from ((str(item), item.text) for item in self._found)

    def __call__(self) -> None:
        """Compare with what this process has imported.

        Raises:
            NotPicklable: Something differs. The message names it, and both values.
        """
        for item in self._found:
            value = _value_of(item)
            if value is MISSING:  # it was sent by value, or the code raises NameError
                continue
            here = self._described(*item[:4], value)
            if here.text != item.text and not _is_time_of_import(item.module, item.name):
                there, found = item.shown, here.shown
                if there == found:
                    lines = zip_longest(item.text.splitlines(), here.text.splitlines(), fillvalue="nothing more")
                    there, found = next((f"{a:.100}", f"{b:.100}") for a, b in lines if a != b)
                raise NotPicklable(
                    f"{item}, which is {there} in the consumer, but {found} in the worker, which has imported "
                    f"{item.module} itself: under spawn and forkserver, what was changed after the import is not sent. "
                    "Pass the value to the function, as in functools.partial(func, "
                    f"{item.name.rpartition('.')[2].lower()}={item.name}), or start the workers by fork"
                )

    def _described(self, where: str, module: str, name: str, is_held: bool, value: Any) -> _ModuleItem:
        if type(value) in VALUES:
            return _ModuleItem(where, module, name, is_held, f"{type(value).__name__} {value!r}", f"{value!r:.100}")
        text = name_where_found(value)
        if text is None:
            from dataflow.protocol.fingerprints import describe_imported  # needed for containers and objects only

            text = describe_imported(value, self._names, self._assigned)
        has_contents = isinstance(value, list | tuple | dict | set | frozenset | np.ndarray)
        shown = reprlib.repr(value) if has_contents else type(value).__qualname__
        found = _ModuleItem(where, module, name, is_held, text or "", shown)
        if text is None:
            raise NotPicklable(
                f"{found}, which is too large to be compared in a worker that imports {module} itself. Pass it to the "
                "function, for example by functools.partial, map the file of an array into memory "
                "(numpy.load(path, mmap_mode='r')), or start the workers by fork"
            )
        return found


def _read_by(function: FunctionType) -> Iterator[Variable]:
    """What a function reads of modules that a worker imports."""
    own = function.__globals__.get("__name__")
    by_name = _is_pickled_by_name(function)
    for name, value, module in [*globals_of(function), *imports_of(function, load=False)]:
        last = name.rpartition(".")[2]
        if (by_name or module != own) and not last.startswith("__") and value is not MISSING:
            yield Variable(last, value, module)


def _is_of_program(value: Any) -> bool:
    if isinstance(value, ModuleType):
        return library_of(value.__name__) is None
    return isinstance(value, FunctionType | type) and not is_of_library(value)


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    yield from ((name, value) for name, value in vars(module).copy().items() if name[0] != "_")


def _changed_by(function: FunctionType) -> Iterator[tuple[str, str]]:
    """What a function changes: the module or class, or nothing for an object; and the name there."""
    namespace = function.__globals__
    for first, *rest in reads_of(function.__code__).changed:
        value = namespace.get(first)
        if not rest:
            yield str(namespace.get("__name__")), first
        elif isinstance(value, ModuleType):
            yield value.__name__, rest[0]
        elif isinstance(value, type):
            yield value.__qualname__, rest[0]
        elif first:
            yield "", rest[0]
    yield from ((str(namespace.get("__name__")), name) for name in reads_of(function.__code__).assigned)


def _is_imported(module: str) -> bool:
    """Whether workers import the module; what the main module of a notebook defines is sent by value."""
    return module != "__main__" or imported_main() is not None


def _value_of(item: _ModuleItem) -> Any:
    if item.module not in sys.modules:
        with suppress(ImportError):  # of a module that was sent by value
            importlib.import_module(item.module)  # as the function will
    holder, _, last = item.name.rpartition(".")
    found = getattr(found_in(sys.modules.get(item.module), holder), "__dict__", {}).get(last, MISSING)
    if not item.is_held:
        return found
    return dict(unchanged_held(found)) if isinstance(found, FunctionType) else MISSING


_CLOCKS: Final = frozenset(
    {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "now", "utcnow", "today"}
)


def _is_time_of_import(module: str, name: str) -> bool:
    """Whether a module assigns a variable once, and that is what a clock returns, such as ``START = time.time()``."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, SyntaxError):
        return False
    bound = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            called = node.value.func
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if [target.id for target in targets if isinstance(target, ast.Name)] == [name]:
                is_clock = getattr(called, "attr", getattr(called, "id", None)) in _CLOCKS
                return is_clock and [found.id for found in bound].count(name) == 1
    return False
