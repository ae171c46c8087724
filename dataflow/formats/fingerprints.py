"""Fingerprint of a flow: a text that is equal for two flows that are built alike and so give the same datapoints.

The text describes the flow, never how it is run: a runner or a parallel map counts as the node that does the same work
without workers, and settings such as timeouts are left out. So a file that two workers have filled is valid with eight.

Functions count by module, qualified name and bytecode, and by their data (constants, defaults, closures, attributes
of partials). Functions that they call are not included: a change inside a helper function is not noticed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import types
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np

from dataflow.base import OF_THIS_PROCESS, DataFlow
from dataflow.formats.loading import PositionalSource
from dataflow.formats.positional import UrlFile
from dataflow.memory.packed_list import PackedList
from dataflow.seeding import Table
from dataflow.transforms.fingerprints import is_below, without_workers
from dataflow.urls import is_url

__all__ = ["describe", "digest"]

_MAX_LEVELS = 30


def digest(description: str) -> str:
    """Return the hash of a description, 32 characters."""
    return hashlib.sha256(description.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def describe(df: DataFlow) -> str:
    """Return a flow's description: a line for each node, and below it one for each of its parameters.

    Raises:
        TypeError: A parameter cannot be described; names node and parameter.
    """
    return "\n".join(_node(df, ""))


def _node(df: DataFlow, indent: str) -> Iterator[str]:
    df = without_workers(df)
    yield f"{indent}{type(df).__module__}.{type(df).__qualname__}"
    if df._df_user_written:
        yield f"{indent}  code {_code(type(df).__iter__.__wrapped__.__code__)}"  # type: ignore[attr-defined]
    for path in df._df_files if isinstance(df, PositionalSource) else ():
        yield f"{indent}  file {_state_of_file(path)}"
    below = {id(ds) for ds in df._df_inputs}
    ignored = df._df_run_settings.union(OF_THIS_PROCESS)
    counted = {name.removeprefix("_df_"): value for name, value in vars(df).items() if name not in ignored}
    for name, value in sorted(counted.items()):
        if isinstance(value, Table) or is_below(value, below):
            continue
        try:
            yield f"{indent}  {name} = {_value(value)}"
        except _Indescribable as error:
            raise TypeError(
                f"{type(df).__name__}.{name} holds {error}, which cannot be compared with that of the next run. Give "
                "DiskCacheData a fingerprint= of your own, and change it when the flow changes"
            ) from None
    for ds in df._df_inputs:
        yield from _node(ds, indent + "  ")


def _state_of_file(path: str) -> str:
    if is_url(path):
        file = UrlFile(path)
        file.close()
        size, changed = file.identity
        return f"{size} bytes, state {changed}"
    status = os.stat(path)
    return f"{status.st_size} bytes, changed at {status.st_mtime_ns}"


class _Indescribable(Exception):
    """A value that has no description."""


def _value(value: Any, levels: int = 0) -> str:
    kind = type(value)
    if kind is PackedList:  # how a list is stored
        value, kind = list(value), list
    if value is None or kind in {bool, int, float, complex, str, bytes} or isinstance(value, np.generic | np.dtype):
        return (
            repr(value)
            if len(repr(value)) <= 200
            else f"{kind.__name__} {_hashed(repr(value).encode('utf-8', 'replace'))}"
        )
    if levels > _MAX_LEVELS:
        raise _Indescribable(f"more than {_MAX_LEVELS} levels of containers")
    if kind is np.ndarray and not value.dtype.hasobject:
        return f"array {value.dtype.str} {value.shape} {_hashed(value.tobytes())}"
    if kind in {list, tuple, range, set, frozenset, dict}:
        return _container(value, levels)
    if isinstance(value, Enum | os.PathLike):
        return f"{kind.__name__} {value}"
    if isinstance(value, type | types.BuiltinFunctionType | np.ufunc):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
    if isinstance(value, functools.partial):
        return f"partial {_value((value.func, value.args, value.keywords), levels + 1)}"
    if isinstance(value, types.MethodType):
        return f"method {_value(value.__func__, levels + 1)} of {_value(value.__self__, levels + 1)}"
    if isinstance(value, types.FunctionType):
        return _function(value, levels)
    if kind.__module__ != "builtins" and hasattr(value, "__dict__") and not hasattr(value, "__reduce_cython__"):
        call = kind.__dict__.get("__call__")
        called = _function(call, levels) if isinstance(call, types.FunctionType) else ""
        return f"{kind.__module__}.{kind.__qualname__} {called} {_value(vars(value), levels + 1)}"
    raise _Indescribable(f"a {kind.__qualname__}")


def _container(value: Any, levels: int) -> str:
    if isinstance(value, dict):
        items = [f"{_value(key, levels + 1)}: {_value(item, levels + 1)}" for key, item in value.items()]
    else:
        items = [_value(item, levels + 1) for item in value]
    if isinstance(value, set | frozenset):
        items.sort()
    text = ", ".join(items)
    shown = text if len(text) <= 200 else f"{len(items)} items {_hashed(text.encode('utf-8', 'surrogatepass'))}"
    return f"{type(value).__name__}({shown})"


def _function(function: types.FunctionType, levels: int) -> str:
    held: list[Any] = [function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # not yet filled
            held.append(None)
    # A function may contain itself.
    held = [None if item is function else item for item in held]
    return f"{function.__module__}.{function.__qualname__} {_code(function.__code__)} {_value(held, levels + 1)}"


def _code(code: types.CodeType) -> str:
    constants = [_code(item) if isinstance(item, types.CodeType) else _constant(item) for item in code.co_consts]
    parts = [code.co_code, repr(code.co_names).encode(), repr(constants).encode("utf-8", "replace")]
    return _hashed(b"\0".join(parts))


def _constant(value: Any) -> str:
    """Return the text of a constant; the iteration order of a set differs from run to run."""
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
