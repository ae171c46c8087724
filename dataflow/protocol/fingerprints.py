"""Fingerprints of flows, in two strengths: what a saved state compares, and what a cache compares.

A **saved state** holds types, lengths, plain parameters and names of functions (`describe_flow`): these decide which
positions there are, so a difference is an error. Changed code is only reported (`changed_code`): the program that
resumes may have been corrected.

A **cache** holds what its datapoints follow from, code and values (`describe`). The law: whatever decides what a
function returns is part of the text, or `describe` raises and names it. Outside are what code reads from files, the
environment, the clock, the network, and global random generators; files that sources name are inside.

In both, runners count as the nodes that do the same work without workers, and settings such as timeouts are left out.

`_Walker` follows a value to all that it refers to. Functions, classes and objects are described once, in the order in
which they are reached, each under a label: so cycles end, deep structures need no stack, and the text is the same in
every process that builds the same flow. It contains no address, and no order of a set.

- Inside the user's own program, a function counts by its code (without line numbers, comments and docstring) and by
  what `references` finds that it holds and reads; a class by its bases and all that its body defines; an object by its
  class and by what pickle would store, since a cache outlives the process, and what pickle leaves out is made again.
- Python itself and installed packages count by name and version; plain values that code reads of their modules count as
  well, since the program may have set them.
"""

from __future__ import annotations

import copyreg
import dis
import hashlib
import importlib.machinery
import logging
import os
import pickle
import random
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from enum import Enum
from functools import cached_property, partial
from itertools import repeat
from typing import Any, Final

import numpy as np

from dataflow.protocol.base import DataFlow
from dataflow.protocol.passes import known_length, walk
from dataflow.protocol.seeding import Table
from dataflow.protocol.state import flows_in, holds_only_inputs
from dataflow.protocol.user_nodes import is_ours
from dataflow.system.pickling import found_in, name_where_found
from dataflow.system.references import (
    MAX_ITEMS,
    MISSING,
    attributes_of,
    changed_by_methods,
    defined_by,
    globals_of,
    held_by,
    imports_of,
    is_of_library,
    library_of,
    made_of,
    reads_of,
    unchanged_held,
)

__all__ = [
    "Description",
    "changed_code",
    "describe",
    "describe_again",
    "describe_flow",
    "describe_imported",
    "difference",
    "digest",
    "is_description",
    "without_workers",
]

Description = dict[str, Any]
"""JSON: ``type`` and ``length`` of a node, its ``parameters`` as text, and the descriptions of its ``inputs``; and
``code``, by parameter a hash of the functions in it."""

_PLAIN: Final = (bool, int, float, complex, str, bytes, np.dtype, type(None), type(Ellipsis))
_MAX_TEXT: Final = 200
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


# -- saved states ------------------------------------------------------------------------------------------------------


def describe_flow(df: DataFlow) -> Description:
    """The description of a chain for saved states: a few microseconds per node, plus 0.1 ms per function."""
    df = without_workers(df)
    parameters = {name: value for name, value in sorted(df._df_compared.items()) if not flows_in(value)}
    functions = {"class": type(df), **parameters} if df._df_user_written else parameters
    code = {name: _code_below(value) for name, value in functions.items()}
    return {
        "type": type(df).__name__,
        "length": None if _has_share(df) else known_length(df),
        "parameters": {name: _outline(value) for name, value in parameters.items()},
        "code": {name: found for name, found in code.items() if found is not None},
        "inputs": [describe_flow(ds) for ds in df._df_inputs],
    }


def describe_again(df: DataFlow, before: Description) -> Description:
    """`before`, with the plain parameters, the lengths and the inputs that the program has changed since.

    What code of the user may change while it runs stays as it was: attributes of classes of the program, what functions
    hold, and lengths that depend on these. `before` itself is returned if nothing has changed.
    """
    df = without_workers(df)
    if before["type"] != type(df).__name__ or len(before["inputs"]) != len(df._df_inputs):
        return describe_flow(df)
    changed: Description = {}
    if is_ours(type(df)):
        found = {name: _outline(value) for name, value in df._df_compared.items() if isinstance(value, _PLAIN)}
        if not found.items() <= before["parameters"].items():
            changed["parameters"] = {**before["parameters"], **found}
    length = before["length"] if _has_share(df) or _may_change_itself(df) else known_length(df)
    if length != before["length"]:
        changed["length"] = length
    inputs = [*map(describe_again, df._df_inputs, before["inputs"])]
    if any(now is not then for now, then in zip(inputs, before["inputs"], strict=True)):
        changed["inputs"] = inputs
    return {**before, **changed} if changed else before


def _may_change_itself(df: DataFlow) -> bool:
    """Whether code of the program may change the length of `df` while it runs."""
    return not is_ours(type(df)) or (not df._df_fills_file and any(map(_may_change_itself, df._df_inputs)))


def difference(saved: Description, here: Description, df: DataFlow | None = None, num: int | None = None) -> str | None:
    """The first difference, from above, as part of a sentence; None if the chains agree. Code is not compared.

    Args:
        saved: The description in the state.
        here: That of the flow here.
        df: The flow here, whose nodes may accept other parameters that agree up to the position of the state.
        num: No datapoint of `df` from this index on was made before the state was saved; None if that is unknown.
    """
    df = None if df is None else without_workers(df)
    name = here["type"]
    if not is_description(saved):
        return f"the saved description of {name} is damaged"
    if saved["type"] != name:
        return f"it had {saved['type']} in place of {name}"
    if saved["parameters"] != here["parameters"]:
        for key in sorted({*saved["parameters"], *here["parameters"]}):
            old, new = saved["parameters"].get(key, "missing"), here["parameters"].get(key, "missing")
            if old != new and not (df is not None and df._df_agrees(key, old, new, num)):
                return f"{name}.{key} was {old} and is {new}"
    if len(saved["inputs"]) != len(here["inputs"]):
        return f"{name} had {len(saved['inputs'])} inputs and has {len(here['inputs'])}"
    inputs = [None] * len(here["inputs"]) if df is None else df._df_inputs
    num_below = None if df is None or num is None else df._df_num_below(num)
    below = map(difference, saved["inputs"], here["inputs"], inputs, repeat(num_below))
    found = next((found for found in below if found is not None), None)
    if found is None and saved["length"] != here["length"] and (df is None or not _has_share(df)):
        return f"a pass of {name} had {saved['length']} datapoints and has {here['length']}"
    return found


def _has_share(df: DataFlow) -> bool:
    """Whether the datapoints of `df` are the share of one rank, so that its length may be that of this rank."""
    return any(node._df_is_share for node in walk(df, everywhere=True))


def is_description(saved: Any) -> bool:
    """Whether this part of a state, which may have been edited, has the form of a `Description`, inputs apart."""
    return (
        isinstance(saved, Mapping)
        and {"code", *saved} == {"type", "length", "parameters", "code", "inputs"}
        and isinstance(saved["type"], str)
        and all(isinstance(saved.get(name, {}), Mapping) for name in ("parameters", "code"))
        and all(isinstance(text, str) and text.strip() for text in saved.get("code", {}).values())
        and isinstance(saved["inputs"], list)
    )


def changed_code(saved: Description, here: Description) -> list[str]:
    """The parameters whose code has changed, as ``node.parameter``; of two chains that agree.

    Another Python compiles the same source to other code, so nothing is said then.
    """
    old: Mapping[str, str] = saved.get("code", {})
    changed = [
        f"{here['type']}.{name}" if name != "class" else f"the class {here['type']}"
        for name, found in here["code"].items()
        if old.get(name, found) != found and old[name].split()[0] == found.split()[0]
    ]
    below = (changed_code(*pair) for pair in zip(saved["inputs"], here["inputs"], strict=True))
    return [*changed, *(name for names in below for name in names)]


def without_workers(df: DataFlow) -> DataFlow:
    """The node that yields the same datapoints as `df` in one process; `df` itself if it has no workers.

    A user's class with an ``__iter__`` of its own may change the datapoints, so it is returned as it is.
    """
    while not df._df_user_written and df._df_stands_for is not df:
        df = df._df_stands_for
    return df


def _outline(value: Any) -> str:
    """A text that is the same in every process that builds the same chain; it contains no address and no data."""
    if isinstance(value, np.generic):
        value = value.item()  # the repr of numpy scalars differs between versions
    if isinstance(value, _PLAIN):
        text = repr(value)
        return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… of {len(text)}"
    if isinstance(value, list | tuple) and len(value) <= MAX_ITEMS:
        return f"[{', '.join(map(_outline, value))}]"
    if isinstance(value, Mapping) and len(value) <= MAX_ITEMS:
        items = (f"{_outline(key)}: {_outline(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, partial):
        return f"partial({_outline(value.func)}, {_outline(value.args)}, {_outline(value.keywords)})"
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else type(value).__name__


def _code_below(value: Any) -> str | None:
    """The version of Python, and a hash of the code that `value` refers to; None if that is none."""
    if isinstance(value, _PLAIN):
        return None
    walker = _Walker(values=False)
    try:
        text = walker.text(value)
        lines = walker.definitions()
    except (TypeError, _Indescribable):
        return None
    return f"{_PYTHON} {_hash(chr(10).join([text, *lines]))}" if lines else None


# -- caches ------------------------------------------------------------------------------------------------------------


def digest(description: str) -> str:
    """Return the hash of a description, 32 characters."""
    return hashlib.sha256(description.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def describe(df: DataFlow) -> str:
    """Return a flow's description for caches: all that decides its datapoints.

    Its lines are the nodes, below each its files and parameters; then functions, classes and objects that those hold.
    Data in memory are hashed: about 1 s for a gigabyte of arrays, for a million numbers or strings, or for 50,000
    objects of other classes.

    Raises:
        TypeError: Something cannot be described; names it, and the parameter that leads there.
    """
    walker = _Walker(values=True)
    lines = walker.node(df, "")
    return "\n".join([*lines, *walker.definitions()])


def _states_of(path: str) -> Iterator[str]:
    """The size of a file, and when it was changed; of a folder, those of all files in it."""
    from dataflow.system.urls import is_url, states_below  # slow to import

    if is_url(path):
        yield from (f"{size} bytes, state {changed}" for size, changed in states_below(path))
    elif os.path.isdir(path):
        for folder, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(names):
                yield f"{name}, {next(_states_of(os.path.join(folder, name)))}"
    else:
        status = os.stat(path)
        yield f"{status.st_size} bytes, changed at {status.st_mtime_ns}"


def _place_in_library(value: Any) -> str | None:
    """The library in which `value` is found under its own name, and that name; None if there is none."""
    try:
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        name = getattr(value, "__name__", None) if name is None else name
    except Exception:  # of a user's __getattr__
        return None
    if not isinstance(module, str) or not isinstance(name, str) or (library := library_of(module)) is None:
        return None
    return f"{library}:{module}.{name}" if found_in(sys.modules.get(module), name) is value else None


# -- the code of a function --------------------------------------------------------------------------------------------

_HAS_DOCSTRING: Final = 0x4000000  # a flag of code objects, from Python 3.14 on
_LOADS_CONSTANT: Final = frozenset(dis.hasconst)


def _code(code: types.CodeType, text: Callable[[Any], str]) -> str:
    """A hash of what a code object does; `text` describes its constants."""
    constants = list(code.co_consts)
    if constants and isinstance(constants[0], str) and 0 not in _used_constants(code):
        constants[0] = None  # the docstring
    flags = code.co_flags & ~_HAS_DOCSTRING
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
    parts = [
        code.co_code.hex(),
        code.co_exceptiontable.hex(),
        repr((flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_names)),
        repr((arguments[: code.co_argcount + code.co_kwonlyargcount], code.co_freevars, code.co_cellvars)),
        *(_code(item, text) if isinstance(item, types.CodeType) else text(item) for item in constants),
    ]
    return _hash("\n".join(parts))


def _used_constants(code: types.CodeType) -> set[int]:
    return {
        found.arg for found in dis.get_instructions(code) if found.opcode in _LOADS_CONSTANT and found.arg is not None
    }


# -- values ------------------------------------------------------------------------------------------------------------

_MAX_LEVELS: Final = 60  # of containers in containers
_SHARED_LEVEL: Final = 6  # from this level on, a container that occurs again is not described again
_MAX_LINES: Final = 1000  # more definitions are hashed together: they belong to data
_MAX_SETS: Final = 4

_ATOMS: Final = frozenset({bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented)})
_OUTSIDE: Final = (  # of the fingerprint: global random generators, the environment
    *(("random", "_inst"), ("numpy.random.mtrand", "_rand"), ("torch", "default_generator")),
    *(("os", "environ"), ("os", "environb"), ("sys", "stdin"), ("sys", "stdout"), ("sys", "stderr")),
)
_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()))
_DESCRIPTORS: Final = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)

_CURE: Final = "Give DiskCacheData a fingerprint= of your own, and change it when the flow changes"


class _Indescribable(Exception):
    """A value that has no description."""


class _Walker:
    """Describes values, and all that they refer to.

    Args:
        values: Describe code and values, as caches need it, or raise; otherwise only the code that is reached: text,
            data, attributes of objects and versions are left out, and nothing is refused.
        level: How many sets are around the value.
    """

    def __init__(self, *, values: bool, level: int = 0) -> None:
        self._values = values
        self._level = level
        self._labels: dict[int, str] = {}  # by id, of what has been reached
        self._num_named: dict[str, int] = {}
        self._waiting: list[tuple[Callable[[str], Iterator[str]], str, str]] = []  # definitions: lines, label, place
        self._kept: list[Any] = []  # keeps ids from being used again
        self._open: dict[int, int] = {}  # by id, the level of each container that is being described
        self._shared: dict[int, str] = {}  # by id, the text of containers at deep levels
        self._place = ""  # the parameter from which everything is reached

    # -- nodes -----------------------------------------------------------------------------------------------------

    def node(self, df: DataFlow, indent: str) -> Iterator[str]:
        """The lines of a chain."""
        df = without_workers(df)
        kind = type(df)
        if id(df) not in self._labels:
            self._label(df, f"node {kind.__qualname__}")
        self._place = kind.__name__
        if library_of(kind.__module__) is None:
            yield f"{indent}{kind.__qualname__}"
            yield f"{indent}  class {self._refusing(kind, kind.__name__)}"
        else:
            yield f"{indent}{kind.__module__}.{kind.__qualname__}"
        states = [state for path in df._df_files for state in _states_of(path)]
        yield from (f"{indent}  file {state}" for state in _few(states))
        below = {id(ds) for ds in df._df_inputs}
        counted = {name.removeprefix("_df_"): value for name, value in df._df_deciding.items()}
        for name, value in sorted(counted.items()):
            if not isinstance(value, Table) and not holds_only_inputs(value, below):
                self._place = f"{kind.__name__}.{name}"
                yield f"{indent}  {name} = {self._refusing(value, self._place)}"
        for ds in df._df_inputs:
            yield from self.node(ds, indent + "  ")

    def definitions(self) -> list[str]:
        """The lines of all that was reached."""
        lines: list[str] = []
        rest = hashlib.sha256()
        num_hashed = 0
        for define, label, place in self._waiting:  # which grows meanwhile
            self._place = place
            try:
                for line in dict.fromkeys(define(label)):
                    if len(lines) < _MAX_LINES:
                        lines.append(f"{label}: {line}")
                    else:
                        rest.update(f"{label}: {line}\n".encode("utf-8", "surrogatepass"))
                        num_hashed += 1
            except _Indescribable as error:
                raise self._refusal(label, error) from None
        self._waiting.clear()
        return [*lines, f"and {num_hashed} more lines: {rest.hexdigest()[:12]}"] if num_hashed else lines

    def _refusing(self, value: Any, holder: str) -> str:
        """The text of a value that `holder` has."""
        try:
            return self.text(value)
        except _Indescribable as error:
            raise self._refusal(holder, error) from None

    def _refusal(self, holder: str, error: _Indescribable) -> TypeError:
        way = "" if holder.startswith(self._place) else f" ({holder} is reached from {self._place})"
        return TypeError(f"{holder} holds {error}, which cannot be compared with that of the next run{way}. {_CURE}")

    # -- values ----------------------------------------------------------------------------------------------------

    def text(self, value: Any) -> str:
        """A text that two values share only if they are alike.

        Raises:
            _Indescribable: There is none.
        """
        kind = type(value)
        if kind in _ATOMS:
            return self._atom(value)
        if (label := self._labels.get(id(value))) is not None:
            return label
        if kind in {list, tuple, dict, set, frozenset}:
            return self._container(value, kind)
        if isinstance(value, np.generic | np.dtype | np.ndarray):
            return self._of_numpy(value)
        if isinstance(value, DataFlow):
            return self._defined(value, f"flow {kind.__qualname__}", partial(self._lines_of_flow, value))
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if (place := _place_in_library(value)) is not None:
            return place if self._values else place.rpartition(".")[2]  # versions differ in the module
        if isinstance(value, type):
            return self._defined(value, f"class {value.__qualname__}", partial(self._lines_of_class, value))
        if isinstance(value, types.FunctionType):
            return self._defined(value, value.__qualname__, partial(self._lines_of_function, value))
        return self._wrapped(value, kind)

    def _wrapped(self, value: Any, kind: type) -> str:
        """Objects that stand for a function, or have a meaning of their own; then all others."""
        if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
            return self._builtin(value)
        if isinstance(value, _DESCRIPTORS):
            return f"{self.text(value.__objclass__)}.{value.__name__}"
        if found := made_of(value):
            name = kind.__name__ if is_of_library(kind) else self.text(kind)
            rest = vars(value) if isinstance(value, partial) else {}
            return f"{name} {self.text((*found.values(), *rest.items()))}"
        if isinstance(value, types.CodeType):
            return f"code {_code(value, self.text)}"
        if isinstance(value, types.MappingProxyType):
            return f"proxy {self.text(dict(value))}"
        if isinstance(value, slice):
            return f"slice {self.text((value.start, value.stop, value.step))}"
        if isinstance(value, Enum):
            return self._member(value, kind)
        if (outside := next((place for place in _OUTSIDE if value is _find_loaded(*place)), None)) is not None:
            return ".".join(outside)
        if isinstance(value, (*_LOCKS, logging.Logger)):
            return kind.__name__  # neither decides what a function returns
        return self._object(value, kind)

    def _member(self, member: Enum, kind: Any) -> str:
        text = f"{self.text(kind)}.{member.name} = {self.text(vars(member)['_value_'])}"
        more = {
            name: item
            for name, item in vars(member).items()
            if not (name[0] == name[-1] == "_" or isinstance(getattr(kind, name, None), cached_property))
        }
        if not more or not self._values:
            return text
        name = f"member {kind.__qualname__}.{member.name}"  # its attributes may lead back to it
        lines = partial(self._lines_of_state, state=self._compared(kind, more))
        return f"{text}, {self._defined(member, name, lines)}"

    def _atom(self, value: Any) -> str:
        kind = type(value)
        if not self._values and kind in {str, bytes}:
            return kind.__name__  # perhaps a path, which may differ where a state is loaded
        if kind is int and value.bit_length() > 4000:
            return f"int {_hash(hex(value))}"
        if kind is str and value == "__mp_main__":
            value = "__main__"  # the main module in a worker that has imported it
        text = repr(value)
        return text if len(text) <= _MAX_TEXT else f"{kind.__name__} {_hash(text)}"

    def _container(self, value: Any, kind: type) -> str:
        if not self._values and len(value) > MAX_ITEMS:
            return kind.__name__
        level = len(self._open)
        if (found := self._shared.get(id(value))) is not None:
            return found
        if (above := self._open.get(id(value))) is not None:
            return f"the {kind.__name__} {level - above} levels above"
        if level > _MAX_LEVELS:
            raise _Indescribable(f"more than {_MAX_LEVELS} levels of containers")
        self._open[id(value)] = level
        try:
            if kind is dict:
                items = [f"{self.text(key)}: {self.text(item)}" for key, item in value.items()]
            elif kind in {set, frozenset}:
                items = sorted(map(self._element, value))
            else:
                items = list(map(self.text, value))
        finally:
            del self._open[id(value)]
        text = ", ".join(items)
        shown = text if len(text) <= _MAX_TEXT else f"{len(items)} items {_hash(text)}"
        text = f"{kind.__name__}({shown})"
        if level >= _SHARED_LEVEL:
            self._kept.append(value)
            self._shared[id(value)] = text
        return text

    def _element(self, value: Any) -> str:
        """The text of an element of a set, which does not depend on what was described before."""
        if type(value) in _ATOMS:
            return self._atom(value)
        if self._level >= _MAX_SETS:
            raise _Indescribable("sets in objects in sets")
        alone = self._for_element()
        return _hash("\n".join([alone.text(value), *alone.definitions()]))

    def _for_element(self) -> _Walker:
        return _Walker(values=self._values, level=self._level + 1)

    def _of_numpy(self, value: Any) -> str:
        if isinstance(value, np.dtype):
            return f"dtype {self._dtype(value)}"
        if not self._values:
            return type(value).__name__
        if isinstance(value, np.generic):
            array = np.asarray(value)
            return f"{type(value).__name__} {self._array(array)}"
        if type(value) is np.ndarray:
            return f"array {self._array(value)}"
        if isinstance(value, np.memmap):
            return f"array {self._array(np.asarray(value))}"
        # Pickle drops the attributes of subclasses; a masked array has its mask among them.
        plain = np.asarray(value)
        return self._defined(value, f"array {type(value).__qualname__}", partial(self._lines_of_array, value, plain))

    def _lines_of_array(self, value: Any, plain: Any, label: str) -> Iterator[str]:
        yield f"{self.text(type(value))} {self._array(plain)}"
        if isinstance(value, np.ma.MaskedArray):
            yield f"mask {self.text(np.asarray(value.mask))}, fill {self.text(value.fill_value)}"
        else:
            yield from self._lines_of_state(label, getattr(value, "__dict__", {}))

    def _dtype(self, dtype: Any) -> str:
        metadata = f" metadata {self.text(dict(dtype.metadata))}" if dtype.metadata else ""
        if dtype.subdtype is not None:
            base, shape = dtype.subdtype
            return f"({self._dtype(base)}, {shape}){metadata}"
        if dtype.fields is None:
            return f"{dtype.str if dtype.kind != 'T' else repr(dtype)}{metadata}"
        fields = ((name, *dtype.fields[name]) for name in dtype.names)
        texts = [f"{name!r} {self._dtype(part)} at {offset} {title}" for name, part, offset, *title in fields]
        return f"{{{', '.join(texts)}}} {dtype.itemsize} {dtype.isalignedstruct}{metadata}"

    def _array(self, array: Any) -> str:
        data = hashlib.sha256()
        self._feed(data, array)
        return f"{self._dtype(array.dtype)} {array.shape} {data.hexdigest()[:16]}"

    def _feed(self, data: Any, array: Any) -> None:
        """Hash the elements of an array, but not the bytes between the fields of a structure."""
        dtype = array.dtype
        if dtype.fields is not None:
            for name in dtype.names:
                self._feed(data, array[name])
        elif dtype.char in "gG":  # their bytes have gaps
            data.update(repr([*map(repr, array.flat)]).encode())
        elif dtype.hasobject or dtype.char == "T":
            data.update(self.text(array.tolist()).encode("utf-8", "surrogatepass"))
        elif array.size and dtype.itemsize:
            data.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    # -- functions, classes, modules, objects ----------------------------------------------------------------------

    def _label(self, value: Any, name: str) -> str:
        number = self._num_named[name] = self._num_named.get(name, 0) + 1
        label = self._labels[id(value)] = name if number == 1 else f"{name} ({number})"
        self._kept.append(value)
        return label

    def _defined(self, value: Any, name: str, define: Callable[[str], Iterator[str]]) -> str:
        label = self._label(value, name)
        self._waiting.append((define, label, self._place))
        return label

    def _lines_of_flow(self, df: DataFlow, label: str) -> Iterator[str]:
        if self._values:
            yield from self.node(df, "")

    def _lines_of_function(self, function: types.FunctionType, label: str) -> Iterator[str]:
        name = function.__qualname__
        yield f"code {_code(function.__code__, _Walker(values=True).text)}"
        yield from (self._line(name, *held) for held in held_by(function))
        if is_of_library(function):
            return
        unfollowed = reads_of(function.__code__).unfollowed
        if unfollowed and self._values:
            raise TypeError(
                f"{name} uses {unfollowed}, which may read what is not compared ({name} is reached from "
                f"{self._place}). {_CURE}"
            )
        for variable in globals_of(function):
            if self._values and variable.value is MISSING and "." not in variable.name:
                raise TypeError(
                    f"{name} names {variable.name}, which does not exist yet, so a change of it could not be noticed "
                    f"({name} is reached from {self._place}). Define it before the cache is created. {_CURE}"
                )
            yield self._line(name, variable.name, variable.value)
        if self._values:  # only caches import what a function will import
            yield from (self._line(name, found.name, found.value) for found in imports_of(function, load=True))

    def _line(self, holder: str, name: str, value: Any) -> str:
        return f"{name} is missing" if value is MISSING else f"{name} = {self._refusing(value, f'{name} in {holder}')}"

    def _module(self, module: types.ModuleType) -> str:
        library = library_of(module.__name__)
        if library is not None:
            return f"module {module.__name__} of {library}" if self._values else f"module {module.__name__}"
        return self._defined(module, f"module {module.__name__}", partial(self._lines_of_module, module))

    def _lines_of_module(self, module: types.ModuleType, label: str) -> Iterator[str]:
        path = getattr(module, "__file__", None) or ""
        if path.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
            yield f"file {next(_states_of(path))}"
        for name, value in sorted(vars(module).items()):
            if not name.startswith("__"):
                yield self._line(module.__name__, name, value)

    def _lines_of_class(self, cls: Any, label: str) -> Iterator[str]:
        held = partial(self._line, cls.__qualname__)
        yield held("the bases", cls.__bases__)
        if type(cls) is not type:
            yield held("the metaclass", type(cls))
        for name, value in defined_by(cls):
            if name == "__annotations__" and self._values:  # a library may read them when a function is called
                yield f"{name} = {', '.join(f'{key}: {self._annotation(item)}' for key, item in value.items())}"
            elif name == "__annotate_func__":
                yield f"{name} {_code(value.__code__, self.text)}"
            else:
                yield held(name, value)

    def _annotation(self, value: Any) -> str:
        if isinstance(value, str | type):
            return self.text(value)
        return re.sub(r" at 0x\w+", "", repr(value))  # an object of `typing`

    def _builtin(self, value: Any) -> str:
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            # Of an extension module in the user's program, or without a version.
            module = sys.modules.get(getattr(value, "__module__", None) or "")
            return f"{'' if module is None else self._module(module)} {value.__qualname__}"
        return f"{value.__name__} of {self.text(owner)}"

    def _object(self, value: Any, kind: type) -> str:
        if kind is _find_loaded("dataflow.sources.packed_list", "PackedList"):  # how a list is stored
            return self.text(list(value)) if self._values else "list"
        if not self._values:
            return self._defined(value, f"a {kind.__qualname__}", partial(self._lines_of_kind, value))
        if isinstance(value, Iterator) and kind.__module__ in {"builtins", "itertools", "_io"}:
            raise _Indescribable(f"a {kind.__qualname__}")
        tensor = _find_loaded("torch", "Tensor")
        if tensor is not None and isinstance(value, tensor):
            return f"{kind.__qualname__} {self._tensor(value)}"
        try:
            reduced = _reduce(value, kind)
        except Exception:
            raise _Indescribable(f"a {kind.__qualname__}") from None
        if isinstance(reduced, str):
            return self._named(value, reduced)
        return self._defined(value, f"a {kind.__qualname__}", partial(self._lines_of_object, kind, reduced))

    def _lines_of_kind(self, value: Any, label: str) -> Iterator[str]:
        """The class of an object, and the functions among its attributes: others may change while it is used."""
        yield self.text(type(value))
        for name, item in sorted(getattr(value, "__dict__", {}).items()):
            items = item if isinstance(item, list | tuple) and len(item) <= MAX_ITEMS else [item]
            yield from (f".{name} = {self.text(part)}" for part in items if callable(part))

    def _lines_of_object(self, kind: type, reduced: tuple[Any, ...], label: str) -> Iterator[str]:
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        if make is getattr(copyreg, "__newobj__", None):
            make = None
        yield self._line(label, "the class", kind)
        if make is not None:
            yield self._line(label, "what makes it", make)
        if arguments and not (len(arguments) == 1 and arguments[0] is kind):
            yield self._line(label, "the arguments", arguments)
        if items is not None:
            yield self._line(label, "the items", list(items))
        if pairs is not None:
            yield self._line(label, "the items", dict(pairs))
        states = state if isinstance(state, tuple) and len(state) == 2 else (state,)
        for part in map(partial(self._compared, kind), states):
            if isinstance(part, dict) and all(type(name) is str for name in part):
                yield from self._lines_of_state(label, part)
            elif part is not None:
                yield self._line(label, "the state", part)

    def _compared(self, kind: type, state: Any) -> Any:
        """What of the state of an object of class `kind` counts."""
        return state

    def _lines_of_state(self, label: str, state: Mapping[str, Any]) -> Iterator[str]:
        for name, item in sorted(state.items()):
            yield self._line(label, f".{name}", item)

    def _named(self, value: Any, name: str) -> str:
        """What pickle stores by name: it must be what a library, not the user's program, has under that name."""
        try:
            module: str = pickle.whichmodule(value, name)  # type: ignore[attr-defined]
        except pickle.PicklingError:  # from Python 3.14 on, if there is none
            module = "__main__"
        library = library_of(module)
        if found_in(sys.modules.get(module), name) is not value or library is None:
            raise _Indescribable(f"a {type(value).__qualname__}")
        return f"{library}:{module}.{name}"

    def _tensor(self, tensor: Any) -> str:
        try:
            plain = tensor.detach().cpu().contiguous()
            data = plain.reshape(-1).view(sys.modules["torch"].uint8).numpy() if plain.numel() else np.empty(0)
        except Exception:
            raise _Indescribable(f"a tensor of layout {tensor.layout}") from None
        return f"{plain.dtype} {tuple(plain.shape)} {tensor.requires_grad} {self._array(data)}"


# -- what another process imports --------------------------------------------------------------------------------------

_MAX_VALUES: Final = 1_000_000
_MAX_BYTES: Final = 1 << 30
_GENERATORS: Final = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)


def describe_imported(value: Any, names: Set[str], assigned: Set[str]) -> str | None:
    """A text for what a module has: the same in each process that imports the module, until the value is changed.

    Functions and classes that are found under their names count by these. Attributes that an object's methods change
    while they run are left out. Generators, locks, objects of libraries that hold a lock (pools, connections), open
    files, and others that cannot be described, count by their classes.

    Args:
        value: What the module has.
        names: The names in code that runs; see `references.changed_by_methods`.
        assigned: Further attributes that are left out.

    Returns:
        The text; None if the value is too large: it has more than a million parts, or more than a gigabyte in arrays.
    """
    walker = _ImportWalker(names, assigned)
    try:
        return "\n".join([walker.text(value), *walker.definitions()])
    except OverflowError:
        return None


class _ImportWalker(_Walker):
    """Describes what modules have, and raises OverflowError if it is too much."""

    def __init__(self, names: Set[str], assigned: Set[str], level: int = 0) -> None:
        super().__init__(values=True, level=level)
        self._names = names
        self._assigned = assigned
        self._num_left = _MAX_VALUES
        self._bytes_left = _MAX_BYTES

    def _for_element(self) -> _Walker:
        return _ImportWalker(self._names, self._assigned, self._level + 1)

    def text(self, value: Any) -> str:
        self._num_left -= 1
        if self._num_left < 0:
            raise OverflowError
        kind = type(value)
        if (name := name_where_found(value)) is not None:
            return name
        try:
            return super().text(value)
        except _Indescribable:
            if is_of_library(kind):
                return kind.__qualname__
            found = dict(attributes_of(value))
            return self._defined(value, f"a {kind.__qualname__}", partial(self._lines_of_attributes, kind, found))

    def _array(self, array: Any) -> str:
        self._bytes_left -= array.nbytes
        if self._bytes_left < 0:
            raise OverflowError
        return super()._array(array)

    def _of_numpy(self, value: Any) -> str:
        if isinstance(value, np.memmap) and value.filename is not None:  # each process reads the file
            return f"memmap {value.filename} {value.offset} {value.dtype} {value.shape}"
        return super()._of_numpy(value)

    def _module(self, module: types.ModuleType) -> str:
        return f"module {module.__name__}"

    def _lines_of_function(self, function: types.FunctionType, label: str) -> Iterator[str]:
        yield f"code {_code(function.__code__, _Walker(values=True).text)}"
        yield from (self._line(label, *held) for held in unchanged_held(function))

    def _object(self, value: Any, kind: type) -> str:
        generators = (*_GENERATORS, _find_loaded("torch", "Generator") or random.Random)
        if isinstance(value, generators) or (is_of_library(kind) and _has_lock(value)):
            return kind.__qualname__
        return super()._object(value, kind)

    def _lines_of_flow(self, df: DataFlow, label: str) -> Iterator[str]:
        found = {name: item for name, item in df._df_deciding.items() if not name.startswith("_df_")}
        yield from self._lines_of_attributes(type(df), found, label)

    def _lines_of_attributes(self, kind: type, found: dict[str, Any], label: str) -> Iterator[str]:
        yield self._line(label, "the class", kind)
        yield from self._lines_of_state(label, self._compared(kind, found))

    def _compared(self, kind: type, state: Any) -> Any:
        if not isinstance(state, dict):
            return state
        changed = self._assigned | changed_by_methods(kind, self._names)
        return {name: item for name, item in state.items() if name not in changed}


def _has_lock(value: Any) -> bool:
    """Whether threads change an object, as those of pools, queues and connections."""
    return any(isinstance(item, _LOCKS) for _, item in attributes_of(value))


def _reduce(value: Any, kind: type) -> Any:
    reducer = copyreg.dispatch_table.get(kind)
    return value.__reduce_ex__(4) if reducer is None else reducer(value)


def _find_loaded(module: str, name: str) -> Any:
    """What a module has under a name, if it is loaded; None otherwise."""
    return getattr(sys.modules.get(module), name, None)


def _few(lines: Sequence[str]) -> Sequence[str]:
    """The lines, or one that stands for all if they are many."""
    return lines if len(lines) <= MAX_ITEMS else [f"states of {len(lines)} files {_hash(chr(10).join(lines))}"]


def _hash(text: str) -> str:
    return digest(text)[:16]
