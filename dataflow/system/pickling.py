"""Pickling between a process and its workers: by reference if the other side can import the object, otherwise by value.

Plain pickle writes classes and functions by reference: module and name. That is not enough on the way to a worker that
was not forked, because lambdas and local classes have no name there, and because the classes of the main program
(`__main__`) exist there only if the worker imports it. Guarantees:

- A class or function of the main program is sent by reference if workers import the main program and find it there: so
  it is the same object everywhere in the worker. It is sent by value (by cloudpickle) in a notebook, with
  ``python -c``, from standard input, and where it is made below ``if __name__ == "__main__":``.
- Global variables of the main program that get their values below that line, or by a `global` statement, have the
  values of this process in the worker, as far as functions that are sent refer to them.
- An object that a worker received by value is sent back as a reference to the sender's own object: `isinstance` holds,
  and `except MyError` catches. A class that a forked worker has inherited comes back as the same class, too.
"""

from __future__ import annotations

import ast
import functools
import gc
import io
import itertools
import multiprocessing.process
import os
import pickle
import sys
import types
import weakref
from collections import ChainMap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final, Protocol

__all__ = [
    "ForkedMain",
    "ImportedMain",
    "MainModule",
    "ReturnPickler",
    "worker_pickler",
    "dumps",
    "dumps_back",
    "dumps_task",
    "found_in",
    "imported_main",
    "inherited_by_fork",
    "loads",
    "main_importable",
    "name_where_found",
]

_MAIN_NAMES: Final = ("__main__", "__mp_main__")
_BY_VALUE: Final = 6  # length of cloudpickle's reduce tuple for a class or function sent by value


class MainModule(Protocol):
    """The receiver's view of this process's main module."""

    def name_of(self, obj: Any) -> str | None:
        """The name under which the receiver finds this class or function in it; None if it does not."""

    def variables(self, obj: Any) -> dict[str, Any]:
        """Global variables that `obj`, sent by reference, needs and that importing does not make, by name."""


def dumps(value: Any, *, main: MainModule | None = None, max_bytes: int | None = None, protocol: int = 5) -> bytes:
    """`value` as bytes that a worker process can load with `loads`.

    Args:
        value: Anything; queues and locks of `multiprocessing` only while a process is being started.
        main: The worker's view of the main module; None if it has none.
        max_bytes: The maximum length of the result.
        protocol: The pickle protocol.

    Raises:
        OverflowError: The pickle takes more than `max_bytes`; raised after about that many, not at the end.
    """
    without: frozenset[str] = frozenset()
    while True:
        file = io.BytesIO() if max_bytes is None else _ShortFile(max_bytes)
        pickler = worker_pickler()(file, main, protocol)
        pickler.dump(value)
        try:
            sent: set[str] = set(without)
            # A variable may refer to functions that need others: until there are none.
            while variables := {name: v for name, v in pickler.variables.items() if name not in sent}:
                sent |= variables.keys()
                pickler.dump(variables)
            return file.getvalue()
        except OverflowError:
            raise
        except Exception:
            # A variable cannot be sent. Perhaps the worker does not need it: leave it out.
            bad = frozenset(name for name, v in pickler.variables.items() if not _can_be_sent(v, main))
            if bad <= without:  # nothing new is left out: this ends the loop
                raise
            without |= bad


def dumps_task(value: Any, main: MainModule | None, protocol: int) -> bytes:
    """Like `dumps`, for a task of a running worker: one pickle for `pickle.loads`, without variables."""
    file = io.BytesIO()
    worker_pickler()(file, main, protocol).dump(value)
    return file.getvalue()


def loads(data: Any) -> Any:
    """Load the result of `dumps`, in the worker."""
    file = io.BytesIO(data)
    unpickler = pickle.Unpickler(file)
    value = unpickler.load()
    while file.tell() < len(data):  # with the same memo: an object that occurs in both is one object
        variables = unpickler.load()
        for namespace in _main_namespaces():
            namespace.update(variables)
    return value


def _can_be_sent(value: Any, main: MainModule | None) -> bool:
    try:
        worker_pickler()(io.BytesIO(), main, 5).dump(value)
    except Exception:
        return False
    return True


@functools.cache
def worker_pickler() -> type[Any]:
    """The pickler class for workers, made at its first use: a worker, which only loads, needs no cloudpickle."""
    import cloudpickle

    class WorkerPickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Pickles objects that the worker does not find by value, and supports those that `multiprocessing` can send.

        Attributes:
            variables: Global variables of the main module that should be sent along, by name.
        """

        def __init__(self, file: io.BytesIO, main: MainModule | None, protocol: int) -> None:
            # Computed each time, because `multiprocessing` registers types when they are first used. Read by the base
            # class.
            self.dispatch_table = ChainMap(
                ForkingPickler(io.BytesIO()).dispatch_table, cloudpickle.Pickler.dispatch_table
            )
            super().__init__(file, protocol)
            self._main = main
            self.variables: dict[str, Any] = {}

        def reducer_override(self, obj: Any) -> Any:
            is_class = isinstance(obj, type)
            if not is_class and not isinstance(obj, types.FunctionType):
                return NotImplemented
            if self._main is not None and (found := self._main.name_of(obj)) is not None:
                self.variables.update(self._main.variables(obj))
                return NotImplemented if found == obj.__qualname__ else (_in_main, (found, obj.__qualname__))
            reduced = super().reducer_override(obj)
            if reduced is NotImplemented or len(reduced) != _BY_VALUE:
                return reduced
            make, args, state, items, pairs, set_state = reduced
            name = _name_in_main(obj)
            name = None if name is None or "." in name else name
            # The receiver calls the last element with the object and the third, and not cloudpickle's own function,
            # which travels with them.
            return make, args, (_key_of(obj), name, set_state, state), items, pairs, _complete

    return WorkerPickler


def _complete(obj: Any, sent: tuple[str, str | None, Any, Any]) -> Any:
    """In the worker: set the state of an object that came by value, and remember its owner."""
    key, name, set_state, state = sent
    result = set_state(obj, state)
    _known.add(key, obj)
    if name is not None:
        # So plain pickle finds it in the main module, as in the sender's.
        main = sys.modules["__main__"]
        # What the worker itself has under this name stays; what came in this way before is replaced.
        found = vars(main).get(name)
        if found is None or _installed.get(name) is found:
            setattr(main, name, obj)
            _installed[name] = obj
    return result


_installed: Final[dict[str, Any]] = {}  # objects that `_complete` has put into the main module, by name


class _ShortFile(io.BytesIO):
    """A file that takes a limited number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._left = max_bytes

    def write(self, data: Any) -> int:
        self._left -= memoryview(data).nbytes
        if self._left < 0:
            raise OverflowError("the pickle is too large")
        return super().write(data)


# -- the way back ------------------------------------------------------------------------------------------------------


def dumps_back(value: Any, protocol: int = 5) -> bytes:
    """`value` as bytes that the process for which this worker works can load with `pickle.loads`."""
    try:
        return pickle.dumps(value, protocol)
    except Exception as error:
        file = io.BytesIO()
        try:
            ReturnPickler(file, protocol).dump(value)
        except Exception:
            raise error from None  # the plain error, which names what cannot be sent
        return file.getvalue()


class ReturnPickler(pickle.Pickler):
    """Refers to objects that came from the receiver, by value or by fork, and have no name there; else plain pickle."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, type | types.FunctionType):
            return NotImplemented
        if (key := _known.key(obj)) is not None:
            return _known_object, (key,)
        if found_in(sys.modules.get(obj.__module__), obj.__qualname__) is obj:
            return NotImplemented
        if isinstance(obj, type) and _is_inherited(obj):
            return _class_at, (id(obj), obj.__module__, obj.__qualname__)
        name = _name_in_main(obj)
        return NotImplemented if name is None else (_in_main, (name, obj.__qualname__))


class _Known:
    """Classes and functions that have travelled by value, and the key of each, in all processes that know it."""

    def __init__(self) -> None:
        self._keys: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._objects: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    def add(self, key: str, obj: Any) -> None:
        self._keys[obj] = key
        self._objects[key] = obj

    def key(self, obj: Any) -> str | None:
        try:
            return self._keys.get(obj)
        except TypeError:  # its metaclass makes it unhashable; it is never sent by value
            return None

    def object(self, key: str) -> Any:
        return self._objects.get(key)


_known: Final = _Known()
_numbers: Final = itertools.count()


def _key_of(obj: Any) -> str:
    key = _known.key(obj)
    if key is None:
        # With the process id: a forked child counts on from the same number. If two threads meet here, the object has
        # two keys, and is found under both.
        key = f"{os.getpid()}.{next(_numbers)}"
        _known.add(key, obj)
    return key


def _known_object(key: str) -> Any:
    found = _known.object(key)
    if found is None:
        raise pickle.UnpicklingError("the class or function of an object does not exist any more in this process")
    return found


class _Inheritance:
    forked = False  # whether this process is a forked worker that has frozen its inherited objects


_inheritance: Final = _Inheritance()
_is_inherited_class: Final[weakref.WeakKeyDictionary[type, bool]] = weakref.WeakKeyDictionary()


def inherited_by_fork() -> None:
    """Called in a forked worker, after `gc.freeze` and before it starts its work."""
    _inheritance.forked = True


def _is_inherited(cls: type) -> bool:
    """Whether the process that has forked this one has the same class at the same address."""
    if not _inheritance.forked:
        return False
    found = _is_inherited_class.get(cls)
    if found is None:
        # The garbage collector does not look at what was there before `gc.freeze`.
        found = _is_inherited_class[cls] = not any(obj is cls for obj in gc.get_objects())
    return found


@functools.lru_cache(maxsize=64)
def _class_reference(address: int, module: str, qualname: str) -> weakref.ref[type] | None:
    todo: list[type] = [object]
    seen: set[int] = set()
    while todo:
        subclasses: list[type] = type.__subclasses__(todo.pop())
        for cls in subclasses:
            if id(cls) == address and (cls.__module__, cls.__qualname__) == (module, qualname):
                return weakref.ref(cls)
            if id(cls) not in seen:
                seen.add(id(cls))
                todo.append(cls)
    return None


def _class_at(address: int, module: str, qualname: str) -> type:
    """The class of this process that a forked worker has inherited."""
    # Twice: what is remembered may be of a class that is gone; another one may have its address by now.
    for _ in range(2):
        reference = _class_reference(address, module, qualname)
        cls = None if reference is None else reference()
        if cls is not None:
            return cls
        _class_reference.cache_clear()
    raise pickle.UnpicklingError(f"the class {module}.{qualname} does not exist any more in this process")


# -- the main module ---------------------------------------------------------------------------------------------------


def imported_main() -> ImportedMain | None:
    """The main module of a worker that is spawned, or started by a fork server; None if it imports none.

    Source:
        `get_preparation_data` and `prepare` of `multiprocessing.spawn`.
    """
    module = sys.modules["__main__"]
    name = getattr(getattr(module, "__spec__", None), "name", None)
    path = _main_path(module)
    if name is not None:
        return None if name == "__main__" or name.endswith(".__main__") else ImportedMain(module, path)
    if path is None or not os.path.isfile(path) or os.path.splitext(os.path.basename(path))[0] == "ipython":
        return None
    return ImportedMain(module, path)


def _main_path(module: types.ModuleType) -> str | None:
    path = getattr(module, "__file__", None)
    start = getattr(multiprocessing.process, "ORIGINAL_DIR", None)
    return path if path is None or start is None else os.path.join(start, path)


@contextmanager
def main_importable() -> Iterator[None]:
    """Within the block, started processes do not try to import a main program that is not a file.

    Python names a program from standard input ``<stdin>``, and `multiprocessing` has its children open that. If the
    main module was replaced since `multiprocessing` was imported (by a debugger), workers must find the new one.
    """
    module = sys.modules["__main__"]
    path = _main_path(module)
    has_spec = getattr(getattr(module, "__spec__", None), "name", None) is not None
    if has_spec or (path is not None and os.path.isfile(path)):
        sys.modules["__mp_main__"] = module
    if has_spec or path is None or os.path.isfile(path):
        yield
        return
    kept = module.__file__
    del module.__file__
    try:
        yield
    finally:
        module.__file__ = kept


class ImportedMain:
    """The main module of a worker that imports its source."""

    def __init__(self, module: types.ModuleType, path: str | None) -> None:
        self._module = module
        self._bound, self._late = (None, frozenset()) if path is None else _bindings(path, _changed(path))

    def name_of(self, obj: Any) -> str | None:
        name = _name_in_main(obj)
        root = None if name is None else name.partition(".")[0]
        if root is None or root in self._late:
            return None
        return name if self._bound is None or root in self._bound else None

    def variables(self, obj: Any) -> dict[str, Any]:
        if not self._late:
            return {}
        from dataflow.system.references import reads_of  # which most workers do not need

        module = vars(self._module)
        names = {name for function in _functions_of_main(obj) for name, *_ in reads_of(function.__code__).chains}
        return {name: module[name] for name in names & self._late if name in module}


class ForkedMain:
    """The main module of a worker that is forked now.

    Functions are sent to it by value, with the values that their global variables have here at that time.
    """

    def __init__(self) -> None:
        main = vars(sys.modules["__main__"])
        # A list, here and below: another thread may assign a global variable meanwhile.
        self._classes = {name: weakref.ref(value) for name, value in list(main.items()) if isinstance(value, type)}

    def name_of(self, obj: Any) -> str | None:
        name = _name_in_main(obj) if isinstance(obj, type) else None
        root = "" if name is None else name.partition(".")[0]
        same = root in self._classes and self._classes[root]() is vars(sys.modules["__main__"])[root]
        return name if same else None

    def variables(self, obj: Any) -> dict[str, Any]:
        return {}


def _name_in_main(obj: Any) -> str | None:
    """Its name in the main module, or that of a global variable with it; None if it has no such name."""
    if obj.__module__ not in _MAIN_NAMES:
        return None
    main = sys.modules.get("__main__")
    if found_in(main, obj.__qualname__) is obj:
        return str(obj.__qualname__)
    return next((name for name, value in list(vars(main).items()) if value is obj), None)


def _in_main(name: str, qualname: str) -> Any:
    """The object that the other side has found in the main module under this name."""
    found = found_in(sys.modules["__main__"], name)
    if getattr(found, "__qualname__", None) != qualname:
        raise pickle.UnpicklingError(f"the main module has no {name} any more that is {qualname}")
    return found


def found_in(module: types.ModuleType | None, qualname: str) -> Any:
    """What a module has under a qualified name; None if it has nothing."""
    found: Any = module
    for name in filter(None, qualname.split(".")):
        found = getattr(found, name, None)
    return found


def name_where_found(value: Any) -> str | None:
    """Module and name of a function or class that its module has under its name, or of a module; None for others."""
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if not isinstance(value, type | types.FunctionType):
        return None
    module, name = value.__module__, value.__qualname__
    if not isinstance(module, str) or found_in(sys.modules.get(module), name) is not value:
        return None
    return f"{'__main__' if module in _MAIN_NAMES else module}.{name}"


def _main_namespaces() -> list[dict[str, Any]]:
    """The namespaces in which functions of the main module look up global variables.

    In a worker that has imported it, this is not the module itself: `runpy` gives `multiprocessing` a copy.
    """
    module = vars(sys.modules["__main__"])
    found = {id(module): module}
    for value in list(module.values()):
        for function in _functions_of_main(value) if isinstance(value, type | types.FunctionType) else ():
            found[id(function.__globals__)] = function.__globals__
    return list(found.values())


def _functions_of_main(obj: Any) -> Iterator[types.FunctionType]:
    """The functions of the main module that a function or class of it refers to, and itself."""
    from dataflow.system.references import made_of, parts, reached

    def parts_in_main(where: str, value: Any) -> Iterable[tuple[str, Any]]:
        kind = value if isinstance(value, type) else type(value)
        follows = isinstance(value, types.FunctionType) or kind.__module__ in _MAIN_NAMES or made_of(value)
        return parts(where, value) if follows else ()

    for _, value in reached([("", obj)], parts_in_main):
        if isinstance(value, types.FunctionType) and value.__globals__.get("__name__") in _MAIN_NAMES:
            yield value


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


# `changed` is not read: it tells versions of the file apart in the cache.
@functools.lru_cache(maxsize=4)
def _bindings(path: str, changed: int) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Names that importing the source binds, None for all; and those that get their values later."""
    try:
        with open(path, "rb") as file:
            module = ast.parse(file.read(), path)
    except (OSError, SyntaxError, ValueError):
        return None, frozenset()
    names = _Names()
    names.visit(module)
    late = {name for node in ast.walk(module) if isinstance(node, ast.Global) for name in node.names}
    return frozenset(names.bound[False]), frozenset(names.bound[True] | late)


class _Names(ast.NodeVisitor):
    """Collects the names that a module's statements bind: on import (False), and only when it is run (True)."""

    def __init__(self) -> None:
        self.bound: dict[bool, set[str]] = {False: set(), True: set()}
        self._runs_only = False

    def visit_If(self, node: ast.If) -> None:
        test = node.test
        if not any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(test)):
            self.generic_visit(node)
            return
        ops = test.ops if isinstance(test, ast.Compare) else []
        for statements, only in ((node.body, not _is_op(ops, ast.NotEq)), (node.orelse, not _is_op(ops, ast.Eq))):
            before, self._runs_only = self._runs_only, self._runs_only or only
            for statement in statements:
                self.visit(statement)
            self._runs_only = before

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._bind(node.name)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self._bind(alias.asname or alias.name.partition(".")[0])

    visit_ImportFrom = visit_Import

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._bind(node.id)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Names bound in it are local; the same is true in comprehensions, except for ``:=``, which is rare there."""

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_Lambda  # type: ignore[assignment]

    def _bind(self, name: str) -> None:
        self.bound[self._runs_only].add(name)


def _is_op(ops: list[ast.cmpop], kind: type[ast.cmpop]) -> bool:
    return len(ops) == 1 and isinstance(ops[0], kind)
