"""Change detection: whether a flow is still the one that its workers were given.

A worker has a copy of the flow, made as it was started. The consumer computes lengths and positions with the flow that
the user holds: if that has changed since, the two no longer fit together. So a runner takes a `Snapshot` as it starts
its workers, and compares it with the flow at the beginning of each pass.

A snapshot holds references and plain values; nothing is copied or hashed, so it costs a few microseconds per node.
Elements of long lists and of arrays are not part of it, only how many there are.

Global variables that a function names need a second look: `pickling.require_equal` compares them in the workers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from itertools import zip_longest
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np

from dataflow.base import OF_THIS_PROCESS, DataFlow
from dataflow.passes import known_length
from dataflow.pickling import GlobalVariable, found_in
from dataflow.references import (
    MISSING,
    globals_of,
    held_by,
    imports_of,
    is_of_library,
    parts,
    reached,
    reads_of,
)
from dataflow.user_nodes import made_in_passes

__all__ = ["Snapshot"]

_VALUES: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})  # which any process can compare
_PLAIN: Final = _VALUES | {MethodType, np.dtype}


class Snapshot:
    """The nodes of a flow, their lengths and attributes, and what those refer to, at one moment.

    Attributes:
        variables: Global variables with plain values that are read by functions which are pickled by name.

    Args:
        nodes: The nodes.
        owner: The node that keeps this snapshot, if it is one of them: a reference would keep it alive.
        attributes: Compare the attributes of the nodes.
        deep: Compare also what functions, objects and their classes refer to. Needed where workers have copies of them.
    """

    def __init__(
        self, nodes: Iterable[DataFlow], owner: DataFlow | None = None, *, attributes: bool = True, deep: bool = True
    ) -> None:
        self.variables: list[GlobalVariable] = []
        self._entries: list[tuple[str, Any]] = []
        self._deep = deep
        nodes = [*nodes]
        self._apart = {id(ds) for node in nodes for ds in (node, *node._df_inputs)}
        roots: list[tuple[str, Any]] = []
        for number, node in enumerate(nodes):
            name = f"{type(node).__name__}" if number == 0 else f"{type(node).__name__} (node {number})"
            self._entries.append((name, node))
            if attributes:
                self._entries.append((f"len of {name}", known_length(node)))
                roots += _of_node(name, node)
        for where, value in reached(roots, self._parts):
            self._entries += [(where, value), *_size(where, value)]
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
            if before != after:
                return f"{where} was {before!r:.40} and is {after!r:.40}"
        return None

    def _parts(self, where: str, value: Any) -> Iterable[tuple[str, Any]]:
        if isinstance(value, DataFlow):
            return () if id(value) in self._apart else _of_node(where, value)
        if not self._deep and not isinstance(value, list | tuple | dict | type):
            return ()
        return self._of_function(where, value) if isinstance(value, FunctionType) else parts(where, value)

    def _of_function(self, where: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
        yield f"the code of {where}", function.__code__
        yield from ((f"{name} in {where}", value) for name, value in held_by(function))
        if is_of_library(function):
            return
        by_name, assigned = _is_pickled_by_name(function), reads_of(function.__code__).assigned
        for name, value, module in [*globals_of(function), *imports_of(function, load=False)]:
            if name not in assigned:  # a counter
                attribute = name.rpartition(".")[2]
                if by_name and type(value) in _VALUES and not attribute.startswith("__"):
                    self.variables.append((where, module, attribute, value))
                yield f"{name} in {where}", value


def _of_node(where: str, node: DataFlow) -> Iterator[tuple[str, Any]]:
    yield f"the class of {where}", type(node)
    skipped = node._df_run_settings.union(OF_THIS_PROCESS, made_in_passes(node))
    for name, value in vars(node).copy().items():
        # Private attributes of built-in nodes are tables that follow from the others.
        if name not in skipped and (node._df_user_written or name[0] != "_"):
            yield f"{where}.{name}", value


def _size(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, np.ndarray):
        yield f"the shape of {where}", str(value.shape)
    elif type(value) not in _PLAIN and isinstance(value, Sized) and not isinstance(value, DataFlow | ModuleType | type):
        try:
            yield f"len of {where}", len(value)
        except Exception:  # of a user's class
            pass


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
