"""The text of a chain, `repr(df)`: one node per line, from the outside in, with its parameters, workers and length.

`chain_html` is the same for notebooks; `chain_rows` gives the lines to reports, each with its node.

Guarantees:

- It never raises, starts nothing and opens no file. A node has a length here if it follows from those of built-in
  containers: a ``__len__`` of the user's, which may iterate its input, is not called.
- A node is shown once. Where it stands again, only its own line is repeated; so a graph of shared nodes has as many
  lines as it has edges, and a node that contains itself has an end.
- A node is shown as a call of its class, also if it has a ``__repr__`` of the user's.
- Secrets are left out: values and keys of dicts under names such as ``password``, ``token`` or ``curve``, and the user
  name, password and query of an address.
"""

from __future__ import annotations

import html
import inspect
import os
import re
import reprlib
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

__all__ = ["ChainRow", "chain_html", "chain_rows", "chain_text"]

_WIDTH: Final = 100  # columns of a line
_MIN_WIDTH: Final = 56  # columns of a node, beside a long note
_VALUE_WIDTHS: Final = (60, 40, 24, 12)  # columns of a value: the first with which the line fits
_MAX_INDENT: Final = 40  # columns; what is nested deeper is left out
_MAX_BRANCHES: Final = 12  # inputs of one node
_MAX_STRING: Final = 8000  # characters that are looked at
_MAX_MEASURED: Final = 100  # nodes of a chain whose lengths are shown: each asks all nodes below it

_INPUTS: Final = frozenset({"df_lists", "ds", "get_df", "lmdb_data", "others"})  # shown as lines of their own
_WORKERS: Final = frozenset({"n_proc", "nr_proc", "num_proc", "num_thread"})
_IN_NOTE: Final = _WORKERS | {"context", "num_workers", "ordered", "strict"}  # of workers
_ESSENTIAL: Final = _WORKERS | {"shuffle"}  # shown if default, too
_DATA: Final = frozenset({"iterable", "lst"})  # shown by their length

_AGAIN: Final = "the same node again"
_PACKAGE: Final = __name__.partition(".")[0]
_READING: Final = frozenset({"compat", "formats", "remote"})  # they would have to look into a file

_Place = tuple[Any, str, str]
"""A node, the prefix of its line, and that of the lines below it; instead of a node, a text that is shown as it is."""


def chain_text(df: Any) -> str:
    """The text of the chain that ends with `df`."""
    return _laid_out(chain_rows(df))


def chain_html(df: Any) -> str:
    """The chain that ends with `df` as an HTML table, for notebooks: nodes, lengths, workers."""
    rows = "".join(map(_html_row, chain_rows(df)))
    head = "".join(f'<th style="text-align:left">{name}</th>' for name in ("node", "length", "workers"))
    return f'<table class="dataflow"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _html_row(row: ChainRow) -> str:
    length = "" if row.length is None else f"{row.length:,}"
    node = f'<code style="white-space:pre">{html.escape(row.prefix + row.text)}</code>'
    cells = ((node, "left"), (length, "right"), (html.escape(row.note), "left"))
    made = "".join(f'<td style="text-align:{side}">{cell}</td>' for cell, side in cells)
    return f"<tr>{made}</tr>"


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


def chain_rows(top: Any) -> list[ChainRow]:
    """The lines of all nodes. A loop rather than a recursion: chains are deeper than Python's stack."""
    rows: list[ChainRow] = []
    seen: dict[int, Any] = {}
    stack: list[_Place] = [(top, "", "")]
    while stack:
        df, first, rest = stack.pop()
        if type(df) is str:
            rows.append(ChainRow(first, df, ""))
            continue
        is_new = id(df) not in seen
        seen[id(df)] = df
        below, note, text = [], "", f"<{_name_of(type(df))}>"
        with suppress(Exception):  # its __init__ was not completed, or code of the user's fails
            below = _below(df, rest) if is_new else []
            note = df._df_summary if is_new else _AGAIN
            width = max(_MIN_WIDTH, _WIDTH - len(note) - 2) - len(first) if note else _WIDTH - len(first)
            text = _call(df, width, has_note=is_new and bool(note))
        rows.append(ChainRow(first, text, note, df))
        stack.extend(reversed(below))
    return _with_lengths(rows)


def _with_lengths(rows: list[ChainRow]) -> list[ChainRow]:
    """The lines with the lengths of the nodes.

    A length is asked of all nodes below, again and again where nodes are shared or many, so such chains have none.
    """
    if len(rows) > _MAX_MEASURED or len({id(row.node) for row in rows if row.node is not None}) < len(rows):
        return rows
    lengths = {id(row.node): _length(row.node) for row in rows}
    made = []
    for row in rows:
        if (length := lengths[id(row.node)]) is None:
            made.append(row)
            continue
        first = next(iter(_inputs(row.node)), row.node)  # the length of a source is seen in its parameters
        made.append(row._replace(length=length, changes_length=length != lengths.get(id(first))))
    return made


def _length(df: Any) -> int | None:
    """Datapoints per pass of a node, if all nodes below know it without running code of the user's."""
    try:
        nodes = [df]
        for node in nodes:
            cls = type(node)
            module = str(_owner(cls, "__len__").__module__).split(".")
            if cls._df_user_written or module[0] != _PACKAGE or cls.__module__.split(".")[1] in _READING:
                return None
            if not all(_has_size(value) for name, value in vars(node).copy().items() if name in _DATA):
                return None
            nodes += _inputs(node)
        return len(df)
    except Exception:
        return None


def _below(df: Any, rest: str) -> list[_Place]:
    """The places of the inputs of a node."""
    inputs = _inputs(df)
    if df._df_remote_inputs and getattr(df, "num_workers", 0):
        inputs, rest = inputs[:1], rest + "  "  # workers run flows that are equal
    if inputs and len(rest) > _MAX_INDENT:
        return [("…", rest, rest)]
    if len(inputs) < 2:
        return [(ds, rest, rest) for ds in inputs]
    if len(inputs) > _MAX_BRANCHES:
        inputs = [*inputs[: _MAX_BRANCHES - 1], f"… {len(inputs) - _MAX_BRANCHES + 1:,} more"]
    return [*((ds, f"{rest}├─ ", f"{rest}│  ") for ds in inputs[:-1]), (inputs[-1], f"{rest}└─ ", f"{rest}   ")]


def _laid_out(rows: list[ChainRow]) -> str:
    """The lines, with the notes about workers and lengths in one column where they fit."""
    cells = []
    for row in rows:
        length = f"length {row.length:,}" if row.changes_length else ""
        note = ", ".join(filter(None, [row.note, length]))
        cells.append((row.prefix + row.text, note, note not in {"", _AGAIN}))
    column = max((len(text) for text, _, is_aligned in cells if is_aligned), default=0)
    return "\n".join(
        f"{text.ljust(column if is_aligned and column + 2 + len(note) <= _WIDTH else 0)}  {note}" if note else text
        for text, note, is_aligned in cells
    )


# -- nodes -------------------------------------------------------------------------------------------------------------


def _inputs(df: Any) -> list[Any]:
    """The inputs of a node; internal nodes are left out."""
    found = list(df._df_inputs)
    internal = [ds for ds in found if type(ds).__name__.startswith("_") and _is_ours(type(ds))]
    return [below for ds in found for below in (_inputs(ds) if ds in internal else [ds])]


def _call(df: Any, width: int, *, has_note: bool) -> str:
    """The line of a node as a call of its class, shortened to `width` by leaving out what is also in the note."""
    name, parameters = _name_of(type(df)), _parameters(df)
    fewer = [(key, text) for key, text in parameters if not has_note or key not in _IN_NOTE]
    for items, limit in [(parameters, _VALUE_WIDTHS[0]), *((fewer, limit) for limit in _VALUE_WIDTHS)]:
        shown = [_shorten(text, limit) if key is None else f"{key}={_shorten(text, limit)}" for key, text in items]
        if len(text := f"{name}({', '.join(shown)})") <= width:
            return text
    while shown and len(text := f"{name}({', '.join([*shown, '…'])})") > width:
        shown.pop()
    return text if shown else f"{_shorten(name, width - 3)}(…)"


def _parameters(df: Any) -> list[tuple[str | None, str]]:
    """Names and texts of the parameters that are shown; the name of a source's first one is None."""
    cls = type(df)
    known = _signature(cls)
    values = {**vars(df).copy(), **df._df_parameters}
    names = [name for name in known if name in values and name not in _INPUTS]
    names = [name for name in names if name in _ESSENTIAL or _differ(values[name], known[name])]
    first = next(iter(known), None)
    is_source = first not in _INPUTS and _is_ours(cls)
    return [(None if is_source and name == first else name, _parameter_text(name, values[name])) for name in names]


def _differ(value: Any, default: Any) -> bool:
    return type(value) is not type(default) or bool(value != default)


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
    return str(cls.__module__).partition(".")[0] == _PACKAGE


# -- values ------------------------------------------------------------------------------------------------------------


class _Texts(reprlib.Repr):
    """Short texts of values: names of functions and nodes, dtypes and shapes of arrays, the ``repr`` of others."""

    def repr1(self, value: Any, level: int) -> str:
        cls = type(value)
        if hasattr(cls, "_df_inputs"):
            return f"{_name_of(cls)}(…)"
        if isinstance(value, partial):
            return f"partial({self.repr1(value.func, level)})"
        if callable(value):
            name: Any = getattr(value, "__qualname__", None) or getattr(value, "__name__", f"<{_name_of(cls)}>")
            if name.endswith("<lambda>"):
                name = f"<lambda> at {os.path.basename(value.__code__.co_filename)}:{value.__code__.co_firstlineno}"
            return str(name.rpartition("<locals>.")[2])
        if isinstance(value, np.ndarray):
            return f"array({_shorten(str(value.dtype), 30)}, {value.shape})"
        if isinstance(value, str):
            return repr(_scrub(value))
        if isinstance(value, dict):
            return self.repr_dict({key: item for key, item in value.items() if not _is_secret(key, item)}, level)
        return super().repr1(value, level)

    def repr_instance(self, value: Any, level: int) -> str:
        try:
            text = re.sub(r" at 0x[0-9a-fA-F]+", "", _scrub(repr(value)))
        except Exception:
            text = "\n"
        return f"<{_name_of(type(value))}>" if "\n" in text or text.endswith(" object>") else text


_texts: Final = _Texts()
_texts.maxlevel = 2
_texts.maxdict = _texts.maxlist = _texts.maxtuple = 8
_BRACKETS: Final[dict[type, str]] = {list: "[…]", tuple: "(…)", dict: "{…}", set: "{…}", frozenset: "{…}", deque: "[…]"}


def _parameter_text(name: str, value: Any) -> str:
    if _is_secret(name, value):
        return _HIDDEN
    if name in _DATA and _has_size(value):
        return f"{_BRACKETS.get(type(value), '[…]')} of {len(value):,}"
    return _shorten(_texts.repr(value), _VALUE_WIDTHS[0])


def _has_size(value: Any) -> bool:
    """Whether the length of data is known without running code of the user's."""
    return type(value) in _BRACKETS or (_is_ours(type(value)) and hasattr(value, "__len__"))


def _shorten(text: str, width: int) -> str:
    """A text of at most `width` characters, without its middle."""
    text = "".join(char if char.isprintable() else "?" for char in text)
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[head + 1 - width :]}"


def _name_of(cls: type) -> str:
    return cls.__qualname__.rpartition("<locals>.")[2]


# -- secrets -----------------------------------------------------------------------------------------------------------


_HIDDEN: Final = "<hidden>"
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


def _is_secret(name: Any, value: Any) -> bool:
    """Whether the name of a value says that it is secret; a number of tokens is not."""
    if value is None or type(name) is not str:
        return False
    plain = _CAPITAL.sub("_", name).lower()
    return _SECRET.search(plain) is not None and not (isinstance(value, int | float) and _COUNT.search(plain))


def _scrub(text: str) -> str:
    """A text without the secret parts of addresses, and without what is assigned to a password or token."""
    return _ASSIGNED.sub(rf"\1{_HIDDEN}", _ADDRESS.sub(r"\1\2", text[:_MAX_STRING]))
