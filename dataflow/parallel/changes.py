"""Change detection: whether a flow is still the one that its workers were given.

A worker has a copy of the flow, made as it was started. The consumer computes lengths and positions with the flow that
the user holds: if that has changed since, the two no longer fit together. So a runner takes a `Snapshot` as it starts
its workers, and compares it with the flow at the beginning of each pass.

A snapshot holds references and plain values; nothing is copied or hashed, so it costs a few microseconds per node.
Elements of long lists and of arrays are not part of it, only how many there are.

Global variables that a function names need a second look: `pickling.require_equal` compares them in the workers.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterable, Mapping, Sized
from functools import partial
from itertools import zip_longest
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np

from dataflow.base import OF_THIS_PROCESS, DataFlow
from dataflow.fingerprints import OF_CLASS, library_of
from dataflow.passes import known_length
from dataflow.pickling import GlobalVariable

__all__ = ["Snapshot"]

_VALUES: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})  # which any process can compare
_PLAIN: Final = _VALUES | {MethodType, np.dtype}
_MAX_ITEMS: Final = 32  # a longer list is data: its elements are not compared
_MAX_ENTRIES: Final = 1000
_MISSING: Final = object()


class Snapshot:
    """The nodes of a flow, their lengths and attributes, and what those refer to, at one moment.

    Attributes:
        variables: Global variables with plain values that are read by functions which are pickled by name.

    Args:
        nodes: The nodes.
        owner: The node that keeps this snapshot, if it is one of them: a reference would keep it alive.
        attributes: Compare the attributes of the nodes.
        deep: Compare also what is inside of functions and objects: code, defaults, closures, the globals that the code
            names, attributes, and the methods of their classes. Needed where workers have copies of them. Classes of
            libraries are not followed.
    """

    def __init__(
        self, nodes: Iterable[DataFlow], owner: DataFlow | None = None, *, attributes: bool = True, deep: bool = True
    ) -> None:
        self.variables: list[GlobalVariable] = []
        self._entries: dict[str, Any] = {}
        self._seen: set[int] = set()
        self._deep = deep
        for number, node in enumerate(nodes):
            name = f"{type(node).__name__}" if number == 0 else f"{type(node).__name__} (node {number})"
            self._entries[name] = None if node is owner else node
            if attributes:
                self._entries[f"len of {name}"] = known_length(node)
                skipped = node._df_run_settings.union(OF_THIS_PROCESS)
                self._add_classes(node)
                for attribute, value in vars(node).copy().items():
                    # Private attributes of built-in nodes are tables that follow from the others.
                    if attribute not in skipped and (node._df_user_written or attribute[0] != "_"):
                        self._add(f"{name}.{attribute}", value)

    def difference(self, now: Snapshot) -> str | None:
        """The first difference, as part of a sentence; None if there is none."""
        for (where, before), (there, after) in zip_longest(
            self._entries.items(), now._entries.items(), fillvalue=("", _MISSING)
        ):
            if where != there:
                return f"{where} is gone" if where and where not in now._entries else f"{there} is new"
            if before is after:
                continue
            if type(before) not in _PLAIN or type(before) is not type(after):
                return f"{where} is another object"
            if before != after:
                return f"{where} was {before!r:.40} and is {after!r:.40}"
        return None

    def _add(self, where: str, value: Any) -> None:
        self._entries[where] = value  # the reference keeps its id from being used again
        if type(value) is MethodType and self._deep:
            self._add(f"{where}.__self__", value.__self__)
            self._add(f"{where}.__func__", value.__func__)
        if type(value) in _PLAIN or id(value) in self._seen or len(self._entries) > _MAX_ENTRIES:
            return
        self._seen.add(id(value))
        if isinstance(value, np.ndarray):
            self._entries[f"the shape of {where}"] = value.shape if type(value.shape) in _PLAIN else str(value.shape)
        elif isinstance(value, list | tuple | Mapping):
            self._add_items(where, value)
        elif isinstance(value, DataFlow | ModuleType | type):
            return
        elif self._deep and isinstance(value, FunctionType):
            self._add_function(where, value)
        elif self._deep and isinstance(value, partial):
            self._add(f"{where}.func", value.func)
            self._add(f"{where}.args", value.args)
            self._add(f"{where}.keywords", value.keywords)
        elif isinstance(value, Sized):
            self._add_length(where, value)
        if self._deep:
            self._add_classes(value)
            if isinstance(attributes := getattr(value, "__dict__", None), dict):
                for name, item in attributes.copy().items():
                    self._add(f"{where}.{name}", item)

    def _add_classes(self, value: object) -> None:
        """What the classes of an object define: plain attributes, and what its methods refer to."""
        for kind in type(value).__mro__:
            if id(kind) not in self._seen and library_of(kind.__module__) is None:
                self._seen.add(id(kind))
                for name, item in vars(kind).copy().items():
                    if name not in OF_CLASS:
                        self._add_of_class(f"{kind.__qualname__}.{name}", item)

    def _add_of_class(self, where: str, item: Any) -> None:
        if isinstance(item, property):
            for function in (item.fget, item.fset, item.fdel):
                self._add_of_class(where, function)
        elif isinstance(item, staticmethod | classmethod):
            self._add_of_class(where, item.__func__)
        elif isinstance(item, FunctionType) or type(item) in _PLAIN:
            self._add(where, item)

    def _add_items(self, where: str, value: Any) -> None:
        if not self._add_length(where, value) or len(value) > _MAX_ITEMS:
            return
        for key, item in list(value.items()) if isinstance(value, Mapping) else enumerate(value):
            self._add(f"{where}[{key!r:.40}]", item)

    def _add_length(self, where: str, value: Sized) -> bool:
        try:
            self._entries[f"len of {where}"] = len(value)
        except Exception:  # of a user's class
            return False
        return True

    def _add_function(self, where: str, function: FunctionType) -> None:
        code = function.__code__
        self._entries[f"the code of {where}"] = code
        self._add(f"the defaults of {where}", function.__defaults__)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                self._add(f"{name} in {where}", cell.cell_contents)
            except ValueError:  # nothing is assigned yet
                pass
        if library_of(str(function.__globals__.get("__name__"))) is not None:
            return
        by_name = _is_pickled_by_name(function)
        for name in _names_read(code):
            value = function.__globals__.get(name, _MISSING)
            if by_name and type(value) in _VALUES:
                self.variables.append((where, function.__module__, name, value))
            # A function of the same module is followed; what is imported does not change.
            if type(value) in _PLAIN or (isinstance(value, FunctionType) and value.__globals__ is function.__globals__):
                self._add(f"{name} in {where}", value)


@functools.lru_cache(maxsize=1024)
def _names_read(code: CodeType) -> tuple[str, ...]:
    """The names of global variables, and of attributes, that the code reads; not those that it assigns: counters."""
    codes = [code]
    for inner in codes:
        codes += [constant for constant in inner.co_consts if isinstance(constant, CodeType)]
    assigned = {step.argval for inner in codes for step in dis.get_instructions(inner) if step.opname == "STORE_GLOBAL"}
    names = dict.fromkeys(name for inner in codes for name in inner.co_names)
    return tuple(name for name in names if name not in assigned and not name.startswith("__"))


def _is_pickled_by_name(function: FunctionType) -> bool:
    """Whether its module has the function, or the class whose body defines it, under its name."""
    holder, _, name = function.__qualname__.rpartition(".")
    found: Any = sys.modules.get(function.__module__)
    for part in filter(None, holder.split(".")):
        found = getattr(found, part, None)
    if isinstance(found, type):
        return found.__qualname__ == holder
    found = getattr(found, name, None)
    while found is not function and hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    return found is function
