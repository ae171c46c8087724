"""The text of a chain, `repr(df)`: one node per line, from the outside in, with its parameters, workers and length.

`chain_html` is the same for notebooks; `chain_rows` gives the lines to reports, each with its node.

Guarantees:

- It never raises, and starts nothing: values come from the ``__dict__`` of a node, not from properties of the user's.
- Data are neither iterated nor measured: a length is taken only of built-in containers, which know it. A node has a
  length here if it follows from those: no ``__len__`` of the user's is called, and no file is opened.
- A node is shown once. Where it stands again, only its own line is repeated; so a graph of shared nodes has as many
  lines as it has edges, and a node that contains itself has an end.
- The user's own ``__repr__`` of a node or a value is called, at most once each. If it shows a node in turn, it gets
  the line of that node, not the chain below it.
- Secrets are left out: values under names such as ``password``, ``token`` or ``curve``, and the user name, password and
  query of an address.
"""

from __future__ import annotations

import functools
import html
import inspect
import os
import re
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, NamedTuple

__all__ = ["ChainRow", "chain_html", "chain_rows", "chain_text"]

_WIDTH: Final = 100  # columns of a line
_MIN_WIDTH: Final = 56  # columns of a node, beside a long note
_VALUE_WIDTHS: Final = (60, 40, 24, 12)  # columns of a value: the first with which the line fits
_MAX_INDENT: Final = 40  # columns; what is nested deeper is left out
_MAX_BRANCHES: Final = 12  # inputs of one node
_MAX_OWN: Final = 5  # parameters of a user's node
_MAX_ITEMS: Final = 8  # elements of a list that is shown in full
_MAX_STRING: Final = 4000  # a longer one is shown by its beginning
_MAX_MEASURED: Final = 100  # nodes of a chain whose lengths are shown: each asks all nodes below it

_INPUTS: Final = frozenset({"df_lists", "ds", "get_df", "lmdb_data", "others"})  # shown as lines of their own
_IN_NOTE: Final = frozenset(
    {"context", "n_proc", "nr_proc", "num_proc", "num_thread", "ordered", "strict"}
)  # of workers
_DATA: Final = frozenset({"iterable", "lst"})  # shown by their length
_ESSENTIAL: Final = frozenset({"n_proc", "nr_proc", "num_proc", "num_thread", "shuffle"})  # shown if default, too

_AGAIN: Final = "the same node again"
_AGAIN_BELOW: Final = "the same node again: it contains itself"

_here = threading.local()
"""``_here.depth``: number of chains whose text this thread is making, each inside a ``__repr__`` called by the last."""


def chain_text(df: Any, kind: type) -> str:
    """The text of the chain that ends with `df`. `kind` is the base class of all nodes."""
    depth = getattr(_here, "depth", 0)
    _here.depth = depth + 1
    try:
        if depth:
            return f"{_name_of(type(df))}(…)" if depth > 2 else _call(df, kind, _WIDTH)
        return _laid_out(chain_rows(df, kind))
    except Exception:
        return f"<{_name_of(type(df))}>"
    finally:
        _here.depth = depth


def chain_html(df: Any, kind: type) -> str:
    """The chain that ends with `df` as an HTML table, for notebooks: nodes, lengths, workers."""
    try:
        rows = "".join(_html_row(row) for row in chain_rows(df, kind))
    except Exception:
        return f"<pre>{html.escape(chain_text(df, kind))}</pre>"
    head = "".join(f'<th style="text-align:left">{name}</th>' for name in ("node", "length", "workers"))
    return f'<table class="dataflow"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _html_row(row: ChainRow) -> str:
    length = "" if row.length is None else f"{row.length:,}"
    node = f'<code style="white-space:pre">{html.escape(row.prefix + row.text)}</code>'
    cells = ((node, "left"), (length, "right"), (html.escape(row.note), "left"))
    made = [f'<td style="text-align:{side}">{cell}</td>' for cell, side in cells]
    return f"<tr>{''.join(made)}</tr>"


# -- lines -------------------------------------------------------------------------------------------------------------


class ChainRow(NamedTuple):
    """One line of a chain.

    Attributes:
        prefix: Indentation and branches of the tree.
        text: The node as a call of its class.
        note: Its workers, or that the same node was shown before.
        node: The node; None for a line that stands for what was left out.
        length: Datapoints per pass, if this is known without running code of the user's.
        changes_length: Whether the length differs from that of the first input.
    """

    prefix: str
    text: str
    note: str
    node: Any = None
    length: int | None = None
    changes_length: bool = False


class _TreePlace(NamedTuple):
    """A place in the tree of nodes."""

    df: Any  # a string is shown as it is
    first: str  # prefix of its line
    rest: str  # prefix of the lines below it
    above: _TreePlace | None


def chain_rows(top: Any, kind: type) -> list[ChainRow]:
    """The lines of all nodes. A loop rather than a recursion: chains are deeper than Python's stack."""
    lines: list[ChainRow] = []
    seen: dict[int, Any] = {}
    stack = [_TreePlace(top, "", "", None)]
    while stack:
        place = stack.pop()
        df, first = place.df, place.first
        if type(df) is str:
            lines.append(ChainRow(first, df, ""))
            continue
        is_new = id(df) not in seen
        seen[id(df)] = df
        note = _note(df) if is_new else _AGAIN_BELOW if _is_inside_itself(place) else _AGAIN
        width = max(_MIN_WIDTH, _WIDTH - len(note) - 2) - len(first) if note else _WIDTH - len(first)
        show = _call if df is top else _line_of  # the top node's own `__repr__` has called this, if it has one
        text = show(df, kind, width, has_note=is_new and bool(note))
        lines.append(ChainRow(first, text, note, df))
        if is_new:
            stack.extend(reversed(_below(place, kind)))
    return _with_lengths(lines, kind)


def _with_lengths(lines: list[ChainRow], kind: type) -> list[ChainRow]:
    """The lines with the lengths of the nodes.

    A length is asked of all nodes below, again and again where nodes are shared or many, so such chains have none.
    """
    nodes = [line.node for line in lines if line.node is not None]
    if len(nodes) > _MAX_MEASURED or len({id(node) for node in nodes}) < len(nodes) or len(nodes) < len(lines):
        return lines
    lengths = {id(node): _length(node, kind) for node in nodes}
    return [
        line._replace(length=length, changes_length=length is not None and length != _below_length(line, kind, lengths))
        for line in lines
        for length in [lengths[id(line.node)]]
    ]


def _below_length(line: ChainRow, kind: type, lengths: dict[int, int | None]) -> int | None:
    """The length of the first input of a node; that of a source is its own, which its parameters show."""
    inputs = _inputs(line.node, kind)
    return lengths.get(id(inputs[0] if inputs else line.node))


def _length(df: Any, kind: type) -> int | None:
    """Datapoints per pass of a node, if all nodes below know it without running code of the user's."""
    try:
        waiting = [df]
        while waiting:
            node = waiting.pop()
            if not _knows_length(node):
                return None
            waiting += _inputs(node, kind)
        return len(df)
    except Exception:
        return None


def _knows_length(df: Any) -> bool:
    cls = type(df)
    if cls._df_user_written or not _is_ours(_owner(cls, "__len__")):
        return False
    if str(cls.__module__).split(".")[1] in {"formats", "remote", "shared"}:
        return False  # would have to look into a file
    held = [value for name, value in _attributes(df).items() if name in _DATA]
    return all(_size(value) is not None for value in held)


def _below(place: _TreePlace, kind: type) -> list[_TreePlace]:
    """The places of the inputs of a node."""
    df, rest = place.df, place.rest
    inputs = _inputs(df, kind)
    if _runs_in_workers(df):
        inputs, rest = inputs[:1], rest + "  "  # workers run flows that are equal
    if inputs and len(rest) > _MAX_INDENT:
        return [_TreePlace("…", rest, rest, place)]
    if len(inputs) < 2:
        return [_TreePlace(ds, rest, rest, place) for ds in inputs]
    shown: list[Any] = inputs if len(inputs) <= _MAX_BRANCHES else inputs[: _MAX_BRANCHES - 1]
    if len(shown) < len(inputs):
        shown = [*shown, f"… {len(inputs) - len(shown):,} more"]
    *others, last = shown
    return [
        *(_TreePlace(ds, f"{rest}├─ ", f"{rest}│  ", place) for ds in others),
        _TreePlace(last, f"{rest}└─ ", f"{rest}   ", place),
    ]


def _is_inside_itself(place: _TreePlace) -> bool:
    above = place.above
    while above is not None and above.df is not place.df:
        above = above.above
    return above is not None


def _laid_out(lines: list[ChainRow]) -> str:
    """The lines, with the notes about workers and lengths in one column where they fit."""
    lines = [line._replace(note=", ".join(filter(None, [line.note, _length_note(line)]))) for line in lines]
    aligned = [line for line in lines if line.note not in {"", _AGAIN, _AGAIN_BELOW}]
    column = max((len(line.prefix) + len(line.text) for line in aligned), default=0)
    made = []
    for line in lines:
        whole, note = line.prefix + line.text, line.note
        if note:
            padded = (
                whole.ljust(column)
                if note not in {_AGAIN, _AGAIN_BELOW} and column + 2 + len(note) <= _WIDTH
                else whole
            )
            whole = f"{padded}  {note}"
        made.append(whole)
    return "\n".join(made)


def _length_note(line: ChainRow) -> str:
    return f"length {line.length:,}" if line.changes_length else ""


# -- nodes -------------------------------------------------------------------------------------------------------------


def _attributes(df: Any) -> dict[str, Any]:
    """The attributes of a node that have a name, in order."""
    held: dict[Any, Any] = object.__getattribute__(df, "__dict__")
    return {name: value for name, value in dict.copy(held).items() if type(name) is str}


def _inputs(df: Any, kind: type) -> list[Any]:
    """The inputs of a node."""
    try:
        is_users = type(df)._df_user_written or _owner(type(df), "_df_inputs") is kind
        found = _held_flows(df, kind) if is_users else list(df._df_inputs)
    except Exception:  # a node whose __init__ was not completed
        return []
    inputs: list[Any] = []
    for ds in found:
        if issubclass(type(ds), kind):
            is_internal = type(ds).__name__.startswith("_") and _is_ours(type(ds))
            inputs += _inputs(ds, kind) if is_internal else [ds]
    return inputs


def _held_flows(df: Any, kind: type) -> list[Any]:
    """The flows among the attributes of a user's node, as `user_nodes.found_inputs`, without running user code."""
    found: dict[int, Any] = {}
    for value in _attributes(df).values():
        held = list(_elements(value)) if _holds_flows(value, kind) else []
        found.update((id(item), item) for item in held if issubclass(type(item), kind))
    return list(found.values())


def _elements(value: Any) -> Iterable[Any]:
    """The elements of a list or tuple, the values of a dict; otherwise the value itself."""
    cls = type(value)
    if cls in {OrderedDict, defaultdict}:
        values: Iterable[Any] = value.values()
        return values
    if issubclass(cls, dict):
        return dict.values(value)
    if issubclass(cls, list):
        return list.__iter__(value)
    return tuple.__iter__(value) if issubclass(cls, tuple) else (value,)


def _holds_flows(value: Any, kind: type) -> bool:
    return issubclass(type(next(iter(_elements(value)), None)), kind)


def _runs_in_workers(df: Any) -> bool:
    """Whether the inputs run in workers."""
    try:
        return bool(df._df_remote_inputs and df.num_workers)
    except Exception:
        return False


def _note(df: Any) -> str:
    """What is shown beside a node."""
    cls = type(df)
    try:
        if "ds" not in _attributes(df) and not cls._df_user_written and hasattr(cls, "ds"):
            return "not initialised"
        note: str = df._df_summary
    except Exception:  # a node whose __init__ was not completed
        return ""
    return note


def _line_of(df: Any, kind: type, width: int, *, has_note: bool) -> str:
    """The line of a node: by the user's own ``__repr__``, if there is one."""
    if type(df).__repr__ is kind.__repr__:
        return _call(df, kind, width, has_note=has_note)
    try:
        return _shortened(_first_line(repr(df)), width)
    except Exception:
        return f"<{_name_of(type(df))}>"


def _call(df: Any, kind: type, width: int, *, has_note: bool = False) -> str:
    """The line of a node as a call of its class, shortened to `width` by leaving out what is also in the note."""
    name = _name_of(type(df))
    try:
        parameters = _parameters(df, kind)
    except Exception:
        return f"{name}(…)"
    fewer = [(key, text) for key, text in parameters if not has_note or key not in _IN_NOTE]
    for items, limit in [(parameters, _VALUE_WIDTHS[0]), *((fewer, limit) for limit in _VALUE_WIDTHS)]:
        shown = [_shortened(text, limit) if key is None else f"{key}={_shortened(text, limit)}" for key, text in items]
        if len(text := f"{name}({', '.join(shown)})") <= width:
            return text
    while shown and len(text := f"{name}({', '.join([*shown, '…'])})") > width:
        shown.pop()
    return text if shown else f"{_shortened(name, width - 3)}(…)"


def _parameters(df: Any, kind: type) -> list[tuple[str | None, str]]:
    """Names and texts of the parameters that are shown; the name of a source's first one is None."""
    cls = type(df)
    known = _signature(cls)
    values = _attributes(df)
    own = [name for name in values if name.isidentifier() and not name.startswith("_")]
    try:
        values |= df._df_parameters
    except Exception:  # a node whose __init__ was not completed
        values = dict(values)
    if _is_ours(_owner(cls, "__init__")) and not known.keys() <= _INPUTS:
        names = [name for name in known if name in values and name not in _INPUTS and _is_shown(name, values, known)]
    else:
        names = [name for name in own if _is_plain(values[name]) and _is_shown(name, values, known)][:_MAX_OWN]
    first = next(iter(known), None)
    is_source = first not in _INPUTS and _is_ours(cls)
    return [
        (None if is_source and name == first else name, _parameter_text(name, values[name], kind)) for name in names
    ]


def _is_shown(name: str, values: dict[str, Any], known: dict[str, Any]) -> bool:
    """Whether a parameter differs from its default, or is always shown."""
    if name in _ESSENTIAL or name not in known:
        return True
    value, default = values[name], known[name]
    return not (value is default or (_is_comparable(value) and _is_comparable(default) and value == default))


def _is_comparable(value: Any) -> bool:
    """Whether ``==`` runs no code of the user's."""
    cls = type(value)
    return cls in _COMPARABLE or (cls is tuple and len(value) <= _MAX_ITEMS and all(map(_is_comparable, value)))


def _signature(cls: type) -> dict[str, Any]:
    """Parameters and defaults of a class and of its base classes, up to one of ours that passes no keywords on."""
    known: dict[str, Any] = {}
    for base in cls.__mro__:
        init = base.__dict__.get("__init__")
        if base is object or init is None:
            continue
        try:
            parameters = list(inspect.signature(init).parameters.values())[1:]
        except Exception:  # a user's __init__ that is no function
            continue
        for parameter in parameters:
            if parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
                known.setdefault(parameter.name, parameter.default)
        if _is_ours(base) and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return known


def _owner(cls: type, name: str) -> type:
    """The class that defines `name`."""
    return next(base for base in cls.__mro__ if name in base.__dict__)


def _is_ours(cls: type) -> bool:
    return str(cls.__module__).partition(".")[0] == __name__.partition(".")[0]


# -- values ------------------------------------------------------------------------------------------------------------


_NUMBERS: Final = (bool, int, float, complex)
_COMPARABLE: Final = frozenset({*_NUMBERS, str, bytes, type(None)})
_FUNCTIONS: Final = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    functools.partial,
    type,
)
_BRACKETS: Final[dict[type, str]] = {
    list: "[]",
    tuple: "()",
    dict: "{}",
    set: "{}",
    frozenset: "{}",
    deque: "[]",
}
_DATA_METHODS: Final = ("__iter__", "__next__", "__len__", "__getitem__")
_SECRET: Final = re.compile(
    r"(^|_)(passwd|password|passphrase|pwd|secrets?|tokens?|curve|credentials?|auth|apikey|(api|access|private|"
    r"secret|signing|encryption)_?key)(_|$)"
)
_COUNT: Final = re.compile(r"(^|_)(num|max|min|n)_|_(count|size|length|len|id)$")
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ADDRESS: Final = re.compile(r"(\w[\w+.-]*://)(?:[^\s/?#'\"]*@)?([^\s?#'\"]*)(?:[?#][^\s'\"]*)?")
_ASSIGNED: Final = re.compile(
    r"(?i)(\b\w*(?:passw(?:or)?d|secret|token|api_?key)\w*['\"]?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s,;&)]+)"
)
_PLACE: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_HIDDEN: Final = "<hidden>"


def _is_plain(value: Any) -> bool:
    """Whether an attribute of a user's node is a number, a text or a function."""
    plain = (*_NUMBERS, str, bytes, *_FUNCTIONS, os.PathLike, *_of_numpy("generic", "ufunc"))
    return issubclass(type(value), plain)


def _is_secret(name: str, value: Any) -> bool:
    plain = _CAPITAL.sub("_", name).lower()
    is_count = issubclass(type(value), int | float) and _COUNT.search(plain) is not None
    return value is not None and not is_count and _SECRET.search(plain) is not None


def _parameter_text(name: str, value: Any, kind: type) -> str:
    if _is_secret(name, value):
        return _HIDDEN
    if name in _DATA and (size := _size(value)) is not None:
        brackets = _BRACKETS[_container(type(value)) or list]
        return f"{brackets[0]}…{brackets[1]} of {size:,}"
    return _text(value, kind)


def _text(value: Any, kind: type, levels: int = 2) -> str:
    """A value on one line, shortened."""
    try:
        return _shortened(_described(value, kind, levels), _VALUE_WIDTHS[0])
    except Exception:
        return f"<{_name_of(type(value))}>"


def _described(value: Any, kind: type, levels: int) -> str:
    cls = type(value)
    if issubclass(cls, kind):
        return f"{_name_of(cls)}(…)"
    if issubclass(cls, str | bytes):
        return _quoted(value)
    if issubclass(cls, _FUNCTIONS):
        return _function_text(value, kind, levels)
    if cls in _NUMBERS or value is None or value is ... or cls is range:
        return repr(value)
    if _container(cls) is not None:
        return _container_text(value, kind, levels)
    if issubclass(cls, _of_numpy("ndarray")):
        (array,) = _of_numpy("ndarray")
        shape, dtype = array.shape.__get__(value), array.dtype.__get__(value)
        return f"array({_shortened(str(dtype), 30)}, {shape})"
    if issubclass(cls, _of_numpy("generic", "dtype")):
        return _quoted(str(value)) if issubclass(cls, _of_numpy("dtype")) else str(value)
    if issubclass(cls, types.GeneratorType):
        return f"<generator {value.__qualname__}>"
    if issubclass(cls, _of_numpy("ufunc")):
        return str(value.__name__)
    if callable(value):
        return _callable_text(value)
    if issubclass(cls, Enum):
        return f"{_name_of(cls)}.{value.name}"
    if _owner(cls, "__repr__") is object or any(
        name in base.__dict__ for base in cls.__mro__ for name in _DATA_METHODS
    ):
        return f"<{_name_of(cls)}>"
    return _scrubbed(_PLACE.sub("", _first_line(repr(value))))


def _function_text(value: Any, kind: type, levels: int) -> str:
    cls = type(value)
    if issubclass(cls, functools.partial):  # which may contain itself
        func = functools.partial.func.__get__(value)
        return f"partial({_text(func, kind, levels - 1) if levels > 0 else '…'})"
    if cls is types.MethodType:
        return _text(value.__func__, kind, levels)
    if issubclass(cls, type):
        return _name_of(value)
    name = str(value.__qualname__)
    if cls is types.FunctionType and name.endswith("<lambda>"):
        code = value.__code__
        file = code.co_filename.replace("\\", "/").rpartition("/")[2]
        return f"<lambda> at {file}:{code.co_firstlineno}"
    return name


def _callable_text(value: Any) -> str:
    """A callable object by its class; one that stands for a function by the name of that."""
    name = getattr(value, "__dict__", {}).get("__qualname__")
    if name is None and "function" in type(value).__name__:  # compiled
        name = value.__qualname__
    return name if type(name) is str else f"<{_name_of(type(value))}>"


def _container(cls: type) -> type | None:
    """The built-in container that a class is or derives from."""
    return next((base for base in _BRACKETS if issubclass(cls, base)), None)


def _size(value: Any) -> int | None:
    """The length of data, if asking for it is cheap and runs no code of the user's."""
    cls = type(value)
    container = _container(cls)
    if container is not None:
        size: int = container.__len__(value)  # type: ignore[attr-defined]
        return size
    return len(value) if _is_ours(cls) and hasattr(cls, "__len__") else None


def _container_text(value: Any, kind: type, levels: int) -> str:
    container = _container(type(value))
    assert container is not None, "as it was asked before"
    size = _size(value)
    opening, closing = _BRACKETS[container][0], _BRACKETS[container][1]
    if size == 0:
        return "set()" if container in {set, frozenset} else opening + closing
    if size is None or size > _MAX_ITEMS or levels == 0:
        return f"{opening}…{closing}" if levels == 0 else f"{opening}…{closing} of {size:,}"
    if container is dict:
        items = [f"{_text(key, kind, 0)}: {_item_text(key, item, kind, levels)}" for key, item in dict.items(value)]
    else:
        held: Iterable[Any] = container.__iter__(value)  # type: ignore[attr-defined]
        items = [_text(item, kind, levels - 1) for item in held]
        if container in {set, frozenset}:
            items.sort()
    text = f"{opening}{', '.join(items)}{',' if container is tuple and size == 1 else ''}{closing}"
    return text if len(text) <= _VALUE_WIDTHS[0] else f"{opening}…{closing} of {size:,}"


def _item_text(key: Any, item: Any, kind: type, levels: int) -> str:
    return _HIDDEN if type(key) is str and _is_secret(key, item) else _text(item, kind, levels - 1)


def _quoted(value: Any) -> str:
    """The repr of a text, without secrets. A long one is cut before it is looked at."""
    if issubclass(type(value), str):
        text = _scrubbed(str.__getitem__(value, slice(0, _MAX_STRING)))
        return repr(text if str.__len__(value) <= _MAX_STRING else f"{text[:100]}…")
    data = bytes.__getitem__(value, slice(0, _MAX_STRING))
    return _scrubbed(repr(data))


def _scrubbed(text: str) -> str:
    """A text without the secret parts of addresses, and without what is assigned to a password or token."""
    return _ASSIGNED.sub(rf"\1{_HIDDEN}", _ADDRESS.sub(r"\1\2", text[: 2 * _MAX_STRING]))


def _first_line(text: str) -> str:
    return next((line.strip() for line in text[: 2 * _MAX_STRING].splitlines() if line.strip()), "")


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def _shortened(text: str, width: int) -> str:
    """A text of at most `width` characters, without its middle."""
    text = _printable(text)
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[head + 1 - width :]}"


def _name_of(cls: type) -> str:
    """The name of a class, whatever its metaclass is."""
    return _printable(str(type.__dict__["__qualname__"].__get__(cls)).rpartition("<locals>.")[2])


def _of_numpy(*names: str) -> tuple[Any, ...]:
    """Classes of numpy, if it is loaded: otherwise no value can be of one."""
    numpy = sys.modules.get("numpy")
    return () if numpy is None else tuple(getattr(numpy, name) for name in names)
