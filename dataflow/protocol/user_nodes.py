"""Wrapping of user-written nodes: a class with nothing but ``__iter__`` becomes a node like any other.

`wrap_user_node` looks at the body of a new class. A user's ``__iter__`` (or ``get_data``, its old name) becomes
``_df_run_pass``: before the user's code runs, the inputs receive pass and stream, so that ``for dp in self.ds`` gives
the right pass. Iterating the input twice in one pass gives its passes p and p + 1; so does calling
``super().__iter__()`` twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from dataflow.errors import LengthUnknown
from dataflow.protocol.passes import (
    RunningPass,
    UserCode,
    assign_streams,
    calls_code,
    current_round,
    next_pass,
    reset_in_round,
    root_stream,
    running_pass,
    user_pass,
    walk,
    with_length_checked,
)
from dataflow.protocol.seeding import Stream, current_root
from dataflow.protocol.state import FlowState, Kept, flows_in, state_of

__all__ = ["found_inputs", "is_ours", "made_by_code", "super_pass", "tracked_reset", "wrap_user_node"]

_MADE_BY_CODE: Final = "_df_made_by_code"
_NO_FLOWS: Final = frozenset({FlowState, type(None), bool, int, float, str})
"""Types of attributes that are not searched: inputs are asked for several times as a pass begins."""


def wrap_user_node(cls: Any) -> None:
    """Wrap the methods that the body of the class `cls` defines."""
    # A name that has a value, such as `size = 224`, is the user's own.
    own = {name: value for name, value in vars(cls).items() if callable(value)}
    iterate = own.get("__iter__") or own.get("get_data") or _of_mixin(cls)
    if iterate is not None:
        cls.__iter__ = _iter(iterate)
        cls._df_run_pass, cls._df_calls = user_pass, True
        # Where both names are defined, one may call the other.
        if ("__iter__" not in own or "get_data" not in own) and callable(vars(cls).get("get_data", iterate)):
            cls.get_data = cls.__iter__
    if iterate is not None or "_df_run_pass" in own:
        cls._df_user_written = iterate is not None
    length = own.get("__len__") or own.get("size")
    if length is not None:
        cls.__len__ = _len(length)
        if ("__len__" not in own or "size" not in own) and callable(vars(cls).get("size", cls.size)):
            cls.size = cls.__len__
        if iterate is None and "_df_run_pass" not in own and not is_ours(cls):
            # What it inherits yields as many datapoints as before, so positions do not follow from this length.
            cls._df_indexed = False
            cls._df_run_pass = with_length_checked(cls)
    if "reset_state" in vars(cls) and "reset_state" not in own:
        raise TypeError(
            f"{cls.__name__}.reset_state must be a method, which is called before the first pass: rename the attribute"
        )
    if "reset_state" in own:
        cls.reset_state = tracked_reset(own["reset_state"])


def is_ours(cls: Any) -> bool:
    """Whether a class is defined in this package."""
    return str(cls.__module__).partition(".")[0] == __name__.partition(".")[0]


def _of_mixin(cls: Any) -> Callable[[Any], Iterable[Any]] | None:
    """The ``__iter__`` that `cls` gets from a base class that is no dataflow and stands before the dataflows."""
    for base in cls.__mro__[1:]:
        for name in ("__iter__", "get_data"):
            iterate: Callable[[Any], Iterable[Any]] | None = vars(base).get(name)
            if callable(iterate):
                return None if hasattr(base, "_df_run_pass") else iterate
    raise AssertionError("DataFlow itself has __iter__")


def found_inputs(df: Any) -> tuple[Any, ...]:
    """The flows among the attributes of a user's node, in order, each once.

    An attribute that holds a flow which the node's own code has made, in a pass or in `reset_state`, is no input, but
    what that code begins: before the code has run, in another process or in the consumer of a runner, nobody can know
    of it, so the places in the chain must not depend on it. The names are kept in the node, for its copies in workers.
    """
    found: dict[int, Any] = {}
    made = vars(df).get(_MADE_BY_CODE, ())
    # A copy, made in one step under the interpreter's lock: the code of the node may assign in another thread.
    for name, value in vars(df).copy().items():
        if type(value) in _NO_FLOWS or not (flows := flows_in(value)):
            continue
        if name not in made and any(_has_made(df, flow) for flow in flows):
            vars(df)[_MADE_BY_CODE] = made = (*made, name)
        if name not in made:
            found.update((id(flow), flow) for flow in flows)
    return tuple(found.values())


def made_by_code(df: Any) -> tuple[str, ...]:
    """The attributes in which a user's node keeps flows that its code has made, and the one that lists them."""
    names = vars(df).get(_MADE_BY_CODE)
    return () if names is None else (_MADE_BY_CODE, *names)


def _has_made(df: Any, flow: Any) -> bool:
    token = state_of(flow).part(UserCode).made_in
    return token is not None and token.owner() is state_of(df)


def tracked_reset(reset: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap a ``reset_state`` so that its call is recorded, and the node gets its stream if it has none."""

    @functools.wraps(reset)
    def reset_state(self: Any) -> None:
        state = state_of(self)
        resetting = state.part(UserCode).resetting
        if resetting is not None and resetting is current_round():
            reset(self)  # a super() call
            return
        reset_in_round(partial(_reset, self, state, reset))

    return reset_state


def _reset(self: Any, state: FlowState, reset: Callable[[Any], None], done: set[FlowState]) -> None:
    with state.lock:  # one transition: see `FlowState`
        if state in done:
            return
        done.add(state)
        code = state.part(UserCode)
        for other in code.others.values():
            for node in walk(other):
                state_of(node).ready = False  # it is reset when the code begins it again
        # If the user has called `seed` again, the stream of the last reset is out of date.
        if state.stream is None or current_root() not in {None, state.seeded}:
            assign_streams(self, root_stream(self))
        try:
            state.ready = False
            code.resetting, code.rng, state.tolerance = done, None, None
            if state.part(Kept).ahead is None:
                _call_reset(self, reset)
            else:
                from dataflow.protocol.kept_changes import call_unseen  # which few flows need

                call_unseen(self, lambda: _call_reset(self, reset))
            state.ready = True
        finally:
            code.resetting = code.reset_code = None


def _call_reset(self: Any, reset: Callable[[Any], None]) -> None:
    reset(self)


def _code_of_reset(df: Any) -> RunningPass:
    state = state_of(df)
    code = state.part(UserCode)
    if code.reset_code is None:
        code.reset_code = RunningPass(df, 0, state.stream or Stream(state.root()))
    return code.reset_code


calls_code(_call_reset, _code_of_reset)


def super_pass(df: Any) -> Iterator[Any]:
    """``super().__iter__()`` in a user's node: a pass of the built-in class that it derives from."""
    running = running_pass(df)
    if running is None:
        return next_pass(df)
    p, stream = running.own.claim()
    runs = (cls.__dict__["_df_run_pass"] for cls in type(df).__mro__ if "_df_run_pass" in cls.__dict__)
    builtin = next(run for run in runs if run is not user_pass)
    datapoints: Iterator[Any] = builtin(df, p, stream)
    return datapoints


def _iter(iterate: Callable[[Any], Iterable[Any]]) -> Callable[[Any], Iterator[Any]]:
    """The ``__iter__`` that replaces a user's: it begins a pass, unless ``super().__iter__()`` called it."""

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Iterator[Any]:
        return next_pass(self) if type(self).__iter__ is __iter__ else iter(iterate(self))

    return __iter__


def _len(length: Callable[[Any], int]) -> Callable[[Any], int]:
    """A ``__len__`` whose plain NotImplementedError becomes `LengthUnknown`, so that ``list(df)`` works."""

    @functools.wraps(length)
    def __len__(self: Any) -> int:
        try:
            return length(self)
        except LengthUnknown:
            raise
        except NotImplementedError as error:
            raise LengthUnknown(f"a pass of {type(self).__name__} has no known length") from error

    return __len__
