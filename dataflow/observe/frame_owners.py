"""Which node of a chain a stack of frames is executing.

The node of a frame is recognised by its code: functions of the user and methods of a node's class by their code object,
helper functions of a built-in node by their file. The frame in which a user-written node makes its pass is registered
anyway (`passes.running_passes`). Functions in C have no frame and count for the node that calls them; so does a user's
node for what it calls. ``f_locals`` is never read: it would keep datapoints alive.

Several nodes may share code. A node asks the nodes below it, so the stack is read from the outside in, and each frame
moves to the nearest node below that it may belong to.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
import time
import types
from collections.abc import Iterator, Sequence
from inspect import CO_GENERATOR
from types import CodeType, FrameType
from typing import Any, Final

from dataflow.protocol.passes import running_passes, walk

__all__ = ["PACKAGE", "FrameOwners", "sleep_until_interrupting"]

PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder of this package."""

_BASES: Final = frozenset(
    {"builtins", "dataflow.protocol.base"}
)  # modules of classes whose methods say nothing about a node
_STEPS: Final = os.path.join(PACKAGE, "transforms", "applying.py")  # in which maps call their function
_GROUPS: Final = tuple(os.path.join(PACKAGE, "transforms", name) for name in ("grouping.py", "filling.py"))
_SWITCH_SECONDS: Final = 1e-4  # the switch interval while a sample is due
_GOLDEN: Final = 0.618034  # multiples of it, modulo 1, are spread evenly
_sleeps: Final = itertools.count()

Owners = frozenset[int]


class FrameOwners:
    """Tells to which node of a chain frames belong. Holds the code of the nodes, but not the nodes.

    Args:
        nodes: The nodes, from the outside in. A node is named by its position here.
    """

    def __init__(self, nodes: Sequence[Any]) -> None:
        self._positions = {id(node): k for k, node in enumerate(nodes)}
        self._below = [frozenset(self._inside(node)) for node in nodes]
        codes = [_codes_of(node) for node in nodes]
        self._codes = [codes]  # keeps them, and so their ids
        self._by_code = _owners(set(map(id, found)) for found in codes)
        self._by_file = _owners(_files_of(node) for node in nodes)

    def _inside(self, node: Any) -> Iterator[int]:
        """The positions of the nodes below a node."""
        for other in walk(node, everywhere=True):
            if other is not node and id(other) in self._positions:
                yield self._positions[id(other)]

    def add_code(self, code: CodeType, node: int) -> None:
        """Let the frames of `code`, which is used nowhere else, belong to a node."""
        self._codes.append([{code}])
        self._by_code[id(code)] = frozenset({node})

    def add_files(self, files: Sequence[str], node: int) -> None:
        """Let the frames of functions in these files belong to a node."""
        self._by_file.update(dict.fromkeys(files, frozenset({node})))

    def owners(self, frame: FrameType) -> Owners:
        """The nodes to which a frame may belong."""
        running = running_passes.get(id(frame))
        if running is not None:
            position = self._positions.get(id(running.df))
            return frozenset() if position is None else frozenset({position})
        code = frame.f_code
        found = self._by_code.get(id(code))
        return found if found is not None else self._by_file.get(code.co_filename, frozenset())

    def innermost(self, stack: Sequence[FrameType]) -> int | None:
        """The innermost node that a stack is executing.

        Args:
            stack: Frames, the innermost first.

        Returns:
            The position of the node; None if there is none, or if it may be one of several.
        """
        node: int | None = None  # the innermost so far
        below: Owners | None = None  # the nodes below it; None for all
        seen: set[int] = set()  # codes of its frames
        for frame in reversed(stack):
            owners, code = self.owners(frame), frame.f_code
            if not owners:
                continue
            is_generator = bool(code.co_flags & CO_GENERATOR)
            if len(owners) > 1:
                if node in owners and not (is_generator and id(code) in seen):
                    seen.add(id(code))  # a function of that node, or its first generator
                    continue
                owners = owners if below is None else owners & below
                if is_generator:  # the nearest node: the frames of nodes further in follow
                    owners = frozenset(k for k in owners if not any(k in self._below[other] for other in owners))
                if len(owners) != 1:
                    node = None if owners else node
                    continue
            (found,) = owners
            if found != node:
                node, below, seen = found, self._below[found], set()
            seen.add(id(code))
        return node


def sleep_until_interrupting(shortest: float, longest: float) -> None:
    """Sleep between two samples; afterwards other threads are interrupted within 0.1 ms, wherever they are.

    Otherwise the interpreter would let this thread continue where the other one waits or sends, or after 5 ms. The time
    is another one within these limits, in seconds, at each call: samples must not be in step with the nodes.
    """
    interval = sys.getswitchinterval()
    is_longer = interval > _SWITCH_SECONDS  # otherwise another sampler of this process has just shortened it
    try:
        if is_longer:
            sys.setswitchinterval(_SWITCH_SECONDS)
        phase = (next(_sleeps) * _GOLDEN) % 1
        time.sleep(shortest + phase * (longest - shortest))
    finally:
        # Two samplers that overlap both restore what they have found longer, so the short interval does not stay.
        if is_longer:
            sys.setswitchinterval(interval)


def _owners(keys_of_nodes: Iterator[set[Any]]) -> dict[Any, Owners]:
    """For each key, the positions of the nodes that have it."""
    found: dict[Any, set[int]] = {}
    for k, keys in enumerate(keys_of_nodes):
        for key in keys:
            found.setdefault(key, set()).add(k)
    return {key: frozenset(nodes) for key, nodes in found.items()}


def _codes_of(node: Any) -> set[CodeType]:
    """The code of the methods of a node's class, and of the functions among its attributes."""
    codes: set[CodeType] = set()
    for cls in type(node).__mro__:
        if cls.__module__ not in _BASES:
            for value in vars(cls).values():
                _add_codes(codes, value)
    for value in vars(node).copy().values():
        _add_codes(codes, value)
    if hasattr(type(node), "_df_combiner"):
        _add_codes(codes, type(node)._df_combiner(node))
    return codes


def _add_codes(codes: set[CodeType], value: Any) -> None:
    """Add the code of a function, and of the functions inside of it."""
    from dataflow.system.references import made_of  # which few flows need

    for _ in range(4):  # decorators and partial functions, which may contain themselves
        inner = (part for name, part in made_of(value).items() if name not in {"__self__", "args", "keywords"})
        value = next(inner, value)
    code = getattr(value, "__code__", None)
    if code is None and not isinstance(value, type | types.ModuleType) and not hasattr(type(value), "_df_run_pass"):
        code = getattr(inspect.getattr_static(type(value), "__call__", None), "__code__", None)
    wrapped = getattr(value, "__wrapped__", None) if isinstance(value, types.FunctionType) else None
    if wrapped is not None:
        _add_codes(codes, wrapped)
    if isinstance(code, CodeType):
        codes.add(code)
        codes.update(inner for inner in code.co_consts if isinstance(inner, CodeType))


def _files_of(node: Any) -> set[str]:
    """The files of a built-in node's classes: helper functions in them work for it."""
    modules = (sys.modules.get(cls.__module__) for cls in type(node).__mro__ if cls.__module__ not in _BASES)
    files = {getattr(module, "__file__", None) for module in modules}
    found = {file for file in files if file is not None and file.startswith(PACKAGE)}
    if hasattr(type(node), "_df_combiner"):
        found.update(_GROUPS)  # in which datapoints are copied into a batch
    return found | {_STEPS} if hasattr(type(node), "_df_kernel") else found
