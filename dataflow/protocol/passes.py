"""Beginning of a pass: every node of the chain gets its place and the number of the pass, and is reset if needed."""

from __future__ import annotations

import copy
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import compress, count, islice, repeat
from operator import length_hint
from types import CodeType, FrameType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from dataflow.errors import NotReproducible, SourceExhausted, TimeoutError
from dataflow.protocol.parameters import deferred_result
from dataflow.protocol.pauses import paused, pausing, require_waiting, resumed
from dataflow.protocol.seeding import Rng, Stream, current_root, rng
from dataflow.protocol.state import FirstCalls, FlowState, Kept, Promise, state_of, with_copies
from dataflow.system.session import Session, terminated

if TYPE_CHECKING:
    from dataflow.protocol.first_steps import WatchedSteps

__all__ = [
    "Node",
    "check_length",
    "code_of",
    "copy_chain",
    "fill_files",
    "in_worker",
    "current_round",
    "enter_code",
    "RunningCall",
    "RunningCode",
    "RunningPass",
    "UserCode",
    "begun_by_code",
    "calls_code",
    "innermost_pass",
    "cure_for_order",
    "known_length",
    "makes_passes_by_code",
    "leave_code",
    "next_pass",
    "open_flow",
    "passes_on",
    "pick",
    "picked_here",
    "promise",
    "assign_streams",
    "require_order",
    "require_seed",
    "reset_in_round",
    "root_stream",
    "running_code",
    "running_pass",
    "running_passes",
    "until_closed",
    "used_up",
    "user_pass",
    "walk",
    "watched_steps",
    "with_length_checked",
    "without_order",
]


Node = Any
"""A `DataFlow`, which is defined above this module: it begins its passes here."""

N = TypeVar("N")
T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)
_NOTHING: Final = object()
_USER: Final = 2  # purpose word of a user's self.rng: its numbers must differ from those of the built-in class below it


class Token:
    """Identifies one run of the code of a node in the flows that it makes."""

    __slots__ = ("owner",)

    def __init__(self, owner: FlowState) -> None:
        self.owner = ref(owner)


class UserCode:
    """What this process remembers of the code of a user's node."""

    def __init__(self) -> None:
        self.made_in: Token | None = None  # of the code of a node that has made this flow
        self.others: WeakValueDictionary[int, Any] = WeakValueDictionary()  # begun by the code, and no inputs; by id
        # The round of resets in which reset_state runs: a nested call in it is a super() call. An interrupt may leave a
        # round behind that is over.
        self.resetting: set[FlowState] | None = None
        self.reset_code: RunningPass | None = None  # the running `reset_state`, if a flow has begun in it
        self.rng: Rng | None = None  # of an RNGDataFlow outside of a pass, for its reset_state
        self.closes_alone: int | None = None  # the thread in which `close` is to do only what the user's class does
        self.changed = ""  # an attribute that was changed by a pass which must stand alone
        self.is_length_checked = False  # the number of datapoints of a pass was compared with the length


class RunningCode:
    """The user's code in a node, while it runs: what begins in it takes its root, place and pass from there.

    An input of the node has its stream and pass from the node. Any other flow that the code begins, the `k`-th, takes
    the turns ``(level, 0), (c, k)``, where `c` is the number of nodes below that call code; no join takes a turn 0. So
    the place is the same in every process, however the code has found the flow: in a container, in a closure, or by
    making it.

    Guarantees:

    - A flow that existed before gets the pass of the code, like an input.
    - A flow that the code has made itself, with all its nodes, has no passes before: where it continues or never ends,
      the pass belongs to its place.
    """

    def __init__(self, df: Node, stream: Stream, ranks: tuple[int, ...]) -> None:
        self.df = df
        self.stream = stream
        self._ranks = ranks  # which tell the flows that begin here from those of other ranks
        self.token = Token(state_of(df))
        self.inputs: dict[FlowState, _NextPass] = {}
        self._others: WeakKeyDictionary[FlowState, _NextPass] = WeakKeyDictionary()
        self._num_begun = 0

    def next_of(self, df: Any) -> _NextPass:
        """The pass that the next iteration of `df` in this code gets, and the stream by which it is indexed."""
        state = state_of(df)
        # `_others` holds them weakly: what the code has made and dropped is forgotten, and its place is not given
        # again.
        found = self.inputs.get(state) or self._others.get(state)
        if found is None:
            self._num_begun += 1
            owner = self.df
            level, num_calling, _ = owner._df_depth
            ranks = ((rank, 0) for rank in self._ranks)
            stream = self.stream.at((level, 0), (num_calling, self._num_begun), *ranks)
            if stream.shared and stream.drawn:
                _require_same_order(df)
            is_new = all(state_of(node).part(UserCode).made_in is self.token for node in walk(df, everywhere=True))
            found = self._others[state] = self._place(df, stream, is_new=is_new)
            state_of(owner).part(UserCode).others[id(df)] = df
        return found

    def _place(self, df: Any, stream: Stream, *, is_new: bool) -> _NextPass:
        raise NotImplementedError


class RunningCall(RunningCode):
    """A call of the user's function for one datapoint: what begins in it has a place of its own, by index.

    So it does not depend on the calls before, and is the same in any worker.
    """

    def __init__(self, df: Node, stream: Stream, p: int, position: int) -> None:
        spread = df._df_spread(stream.begin)
        super().__init__(df, stream, spread.ranks)
        self._index = p, spread.first + spread.stride * position

    def _place(self, df: Any, stream: Stream, *, is_new: bool) -> _NextPass:
        promised = state_of(self.df).part(FirstCalls).promise
        if promised is not None and promised.refuses:
            require_order(df, f"{promised.owner}: in the function of {type(self.df).__name__}, ", _NOT_AGAIN)
        reason = "" if is_new else _in_any_order(type(self.df).__name__)
        if not is_new:
            _require_unchanged(df, reason)
        return _NextPass(0, stream.at(self._index, standalone=reason), stream, is_new=is_new)


class RunningPass(RunningCode):
    """One pass of a node, which the user's code in it can look up while it makes a step.

    That code runs below the frame of `user_pass`, and finds the pass by walking up the stack of its thread. So entering
    or leaving a step is free; only code that looks up the pass, a few times per pass, pays for it.

    Guarantees:

    - Only that code finds it: between two steps the frame is on no stack, so the same node may make a step at another
      place of the chain, an input may be iterated on its own, and another thread may do either at any time.
    - A thread that the code has started to read an input finds it, too (`_code_of_thread`).
    """

    def __init__(self, df: Node, p: int, stream: Stream) -> None:
        level, _, ranks = df._df_depth
        super().__init__(df, stream, ranks)
        self.p = p
        self.thread = threading.get_ident()
        self.rng: Rng | None = rng(df._df_words(stream, p, purpose=_USER)) if df._df_draws else None
        self.own = _NextPass(p, stream)  # for super().__iter__()
        self.inputs = {state_of(ds): _NextPass(p, stream.turn(level, j)) for j, ds in enumerate(df._df_inputs)}

    def _place(self, df: Any, stream: Stream, *, is_new: bool) -> _NextPass:
        if stream.standalone or stream.shared:
            require_order(df, "", _NOT_AGAIN)
        if is_new:
            if df._df_counts_passes or df._df_endless or df._df_continuing() is not None:
                return _NextPass(0, stream.at((self.p, 0), standalone=""), stream, is_new=True)
            return _NextPass(self.p, stream.at(standalone=""), stream)
        return _NextPass(self.p, stream)


def _in_any_order(owner: str) -> str:
    return (
        f"but the function of {owner} may be called for its datapoints in any order, in any worker. Read it by index, "
        "flow[k], or make it inside the function"
    )


def _require_unchanged(df: Node, reason: str) -> None:
    for node in filter(makes_passes_by_code, walk(df, uncached=True)):
        if name := state_of(node).part(UserCode).changed:
            raise NotReproducible(
                f"{type(node).__name__}.{name} is kept from pass to pass, {reason}. Or make {name} a variable of "
                "__iter__"
            )


def makes_passes_by_code(df: Node) -> bool:
    """Whether a user's code makes the passes of the node `df`, one after the other."""
    return df._df_user_written and not df._df_addressable


def require_order(df: Node, owner: str, problem: str) -> None:
    """Raise `NotReproducible` if a node has no defined order: the message says who needs one, and the problem."""
    node = without_order(df)
    if node is not None:
        raise NotReproducible(
            f"{owner}the order of the datapoints of {node._df_title} is not defined, so {problem}. "
            f"{cure_for_order(node)}"
        )


def without_order(df: Node) -> Any:
    """The first node of a flow, from above, whose datapoints have no defined order; None if all have one."""
    return next((node for node in walk(df, everywhere=True) if not node._df_reproducible), None)


def cure_for_order(node: Any) -> str:
    """What gives the datapoints of a node without a defined order one."""
    if not hasattr(node, "strict"):
        return "Put its datapoints into a list (DataFromList)"
    return f"Leave out ordered=False of {node._df_title}" if node.strict else f"Pass strict=True to {node._df_title}"


def require_seed(df: Node, owner: str, problem: str, cure: str) -> None:
    """Raise `NotReproducible` if a node of a flow without a root seed draws, and has no seed of its own."""
    for node in walk(df, everywhere=True):
        if node._df_draws and node._df_own_root is None:
            raise NotReproducible(
                f"{owner}no seed is set, so {type(node).__name__} draws different numbers {problem}. Call "
                f"dataflow.seed(n){cure}"
            )


_NOT_AGAIN: Final = "a pass of it cannot be made again"


def _require_same_order(df: Node) -> None:
    """Check that a flow which several processes share draws the same numbers in each."""
    cure = ", with the same n in every process, before the loop"
    require_seed(df, "", "in each process, and their shares of a pass would overlap", cure)


running_passes: Final[dict[int, RunningPass]] = {}
"""The passes of user-written nodes that have begun, by the id of the frame that makes their steps.

CPython keeps the object of a frame as long as the frame, so no other has its id until the pass is over. Reading the
pass from the locals of the frame would cost three times as much (`user node that draws` of benchmarks.nodes).
"""


def user_pass(df: Any, p: int, stream: Stream) -> Iterator[Any]:
    """Pass `p` of a user-written node, begun by the node above."""
    return pausing(_user_pass(df, p, stream), df._df_waits, code_of(df))


def code_of(df: Node) -> str:
    """The code of the user in a node, for messages."""
    return f"the code of {type(df).__name__}"


def _user_pass(df: Any, p: int, stream: Stream) -> Iterator[Any]:
    from dataflow.protocol.kept_changes import begin_pass, end_pass  # which few flows need
    from dataflow.protocol.kept_in_workers import PassHere
    from dataflow.protocol.kept_values import describe

    running = RunningPass(df, p, stream)
    code = state_of(df).part(UserCode)
    may_keep = code.made_in is None  # what code makes anew for each of its passes keeps nothing
    if may_keep:
        begin_pass(df, renew)
        among = PassHere(df, stream)
    before = describe(df) if stream.standalone else None
    frame = id(sys._getframe())
    try:
        running_passes[frame] = running  # within `try`: an interrupt must not leave it to a later frame with this id
        watch = watched_steps(df, stream)
        iterator = _user_iterator(df) if watch is None else watch.call(partial(_user_iterator, df))
        if not code.is_length_checked:
            steps = _steps_to_count()
            counted = compress(iterator, steps)
            if watch is None or not (yield from watch.steps(counted)):
                yield from counted
            check_length(df, _number_done(steps))
        elif watch is None or not (yield from watch.steps(iterator)):
            # `yield from` would close the iterator that it steps: right for a generator that the user's function has
            # just made, but wrong for an iterator that the user holds, or that is a node.
            is_fresh = getattr(iterator, "gi_code", None) is type(df).__iter__.__wrapped__.__code__
            yield from iterator if is_fresh else islice(iterator, None)
        if may_keep:
            among.end(df)
    except TimeoutError as error:
        require_waiting(error, df._df_waits, code_of(df))
        raise
    finally:
        # First: what follows may raise, and another frame may get this id.
        running_passes.pop(frame, None)
        if may_keep:
            end_pass(df)
        if before is not None:
            after = describe(df)
            code.changed = next((name for name in after if after[name] != before.get(name)), code.changed)


def watched_steps(df: Any, stream: Stream) -> WatchedSteps | None:
    """What watches the first steps of the code of `df` in a pass at `stream`; None if there is nothing to look for."""
    calls = state_of(df).part(FirstCalls)
    if not (stream.repeated and calls.draws) and (
        calls.num_steps_left <= 0 or not (stream.repeated or calls.promise is not None)
    ):
        return None
    from dataflow.protocol.first_steps import WatchedSteps  # which flows of which nothing is promised do not load

    return WatchedSteps(df, stream, _below)


def _below(df: Node) -> Iterator[Node]:
    """The nodes below `df`, those of workers too."""
    return islice(walk(df, everywhere=True), 1, None)


def _user_pass_until_closed(df: Any, p: int, stream: Stream, session: Session) -> Iterator[Any]:
    """Pass `p` of a user-written node, begun by the user; after `df` is closed, the next step raises."""
    from dataflow.protocol.kept_in_workers import PassHere  # which flows that are not iterated do not load

    if state_of(df).part(Kept).ahead is not None:
        from dataflow.protocol.kept_changes import catch_up  # which few flows need

        catch_up(df, renew)
    among = PassHere(df, stream)
    running = RunningPass(df, p, stream)
    # A tuple of its own: `is`, below, tells whether a later iteration has replaced it.
    here = (threading.get_ident(),)
    frame = id(sys._getframe())
    try:
        running_passes[frame] = running  # within `try`, as above
        session.iterating = here
        iterator = _user_iterator(df)
        is_length_checked = state_of(df).part(UserCode).is_length_checked
        steps = _steps_to_count()
        if not is_length_checked:
            iterator = compress(iterator, steps)
        try:
            while not session.closed:
                yield next(iterator)  # no variable: it would keep the datapoint alive until the next step
        except StopIteration:
            if not is_length_checked:
                check_length(df, _number_done(steps))
            among.end(df)
            return
    except TimeoutError as error:
        require_waiting(error, df._df_waits, code_of(df))
        raise
    finally:
        running_passes.pop(frame, None)
        if session.iterating is here:  # no other iteration has begun since
            session.iterating = None
    raise terminated(type(df).__name__)


def _user_iterator(df: Any) -> Iterator[Any]:
    return iter(type(df).__iter__.__wrapped__(df))


def _steps_to_count() -> repeat[bool]:
    """Steps for `itertools.compress`, which takes one for each datapoint: so a complete pass is counted in C."""
    return repeat(True, sys.maxsize)


def _number_done(steps: repeat[bool]) -> int:
    return sys.maxsize - length_hint(steps)


def check_length(df: Any, found: int) -> None:
    """Compare the number of datapoints that a complete pass had with ``len(df)``; log once that they differ."""
    code = state_of(df).part(UserCode)
    if code.is_length_checked:
        return
    code.is_length_checked = True
    length = known_length(df)
    if length is None or length == found:
        return
    from dataflow.system.worker_info import is_first_worker  # which flows without workers do not load

    if not is_first_worker():
        return  # the first worker says it for all
    dropping = next((type(node).__name__ for node in walk(df, everywhere=True) if node._df_may_have_dropped), None)
    _LOG.warning(
        "a pass of %s had %d datapoints, but its len() is %d: a runner with strict=False, and all else that relies on "
        "the length, begins and ends passes elsewhere. %s",
        type(df).__name__,
        found,
        length,
        "Define __len__ in the node that changes the number of datapoints; if the number is not known in advance, let "
        "__len__ raise NotImplementedError"
        if dropping is None
        else f"{dropping} has left out datapoints: with strict=True, a pass ends where it ends in the flow",
    )


def with_length_checked(cls: Any) -> Callable[[Any, int, Stream], Iterator[Any]]:
    """The `_df_run_pass` of a user's class that overrides `__len__` and inherits what makes its passes."""

    def run_pass(self: Any, p: int, stream: Stream) -> Iterator[Any]:
        datapoints: Iterator[Any] = super(cls, self)._df_run_pass(p, stream)
        if self._df_user_written or state_of(self).part(UserCode).is_length_checked:
            return datapoints  # the code of a class below counts
        waits = self._df_waits
        return pausing(_checking_length(self, datapoints, waits), waits)

    return run_pass


def _checking_length(df: Any, datapoints: Iterator[Any], waits: bool) -> Iterator[Any]:
    steps = _steps_to_count()
    yield from resumed(compress(datapoints, steps), waits)
    check_length(df, _number_done(steps))


_other_code: Final[dict[int, RunningCode]] = {}
"""The passes of other nodes whose code has begun, in the same way."""

_calls: Final[dict[CodeType, Callable[[Any], RunningCode | None]]] = {}
"""Functions that call the user's code: from the first argument to the running code, which is asked for only then."""


def calls_code(function: Any, running: Callable[[Any], RunningCode | None]) -> None:
    """Register a function that calls the user's code; `running` gets its first argument."""
    _calls[function.__code__] = running


def running_code() -> RunningCode | None:
    """The innermost code of a node that runs in this thread."""
    frame: FrameType | None = sys._getframe(2)  # not this one, and not that of the caller, which is ours
    while frame is not None:
        running = running_passes.get(id(frame)) or _other_code.get(id(frame))
        if running is not None:
            return running
        code = frame.f_code
        if code in _calls:
            running = _calls[code](frame.f_locals[code.co_varnames[0]])
            if running is not None:
                return running
        frame = frame.f_back
    return None


def _code_of_thread(state: FlowState) -> RunningPass | None:
    """The pass whose code reads the flow of `state`, an input of its node, in a thread that this code has started.

    The thread has a frame of a method of the node, or of a function in one, which knows the node.

    Raises:
        NotReproducible: The node has several passes under way that may be meant.
    """
    here = threading.get_ident()
    # A tuple of them is made in one step under the interpreter's lock: other threads begin and end passes.
    passes = [running for running in tuple(running_passes.values()) if state in running.inputs]
    found: list[RunningPass] = []
    frame: FrameType | None = sys._getframe(2) if passes else None
    while frame is not None and not found:
        found = [running for running in passes if running.thread != here and _is_code_of(running.df, frame)]
        frame = frame.f_back
    if len(found) > 1:
        found = [running for running in found if running.inputs[state].p == running.p] or found  # not begun yet
    if len(found) > 1:
        name = type(found[0].df).__name__
        raise NotReproducible(
            f"the code of {name} reads its input in a thread of its own, while {len(found)} passes of {name} are under "
            "way: it is not known for which. Call iter(self.ds) in the thread of __iter__, and step that iterator in "
            "the other"
        )
    return found[0] if found else None


def _is_code_of(df: Node, frame: FrameType) -> bool:
    """Whether a frame is one of the user's code in the node `df`."""
    within = frame.f_code.co_qualname.startswith
    names = (f"{kind.__qualname__}." for kind in type(df).__mro__)
    return any(map(within, names)) and any(value is df for value in frame.f_locals.values())


def begun_by_code(df: Node, p: int, stream: Stream, begin: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """The iterator that `begin`, the user's code, makes for pass `p` of the node `df`."""
    code = RunningPass(df, p, stream)
    watch = watched_steps(df, stream)
    frame = enter_code(code)
    try:
        made = begin() if watch is None else watch.call(begin)
        if (deferred := deferred_result(made, of_source=True)) is not None:
            raise TypeError(f"{type(df).__name__}: the function has returned {deferred}")
        iterator = iter(made) if watch is None else watch.call(partial(iter, made))
        if type(iterator) is GeneratorType and iterator.gi_frame is None:
            raise used_up(type(df).__name__, "the function")
    except StopIteration as error:  # a node that makes passes one by one would take it for the end
        raise RuntimeError(f"{type(df).__name__}: what makes a pass raised StopIteration: {error}") from error
    finally:
        leave_code(frame)
    if type(iterator) in _WITHOUT_CODE or not getattr(made, "_df_waits", True):
        return iterator  # of no code, or of a flow, whose errors need no further guard unless it may raise TimeoutError
    return _steps_of_code(iterator, code, watch)


def used_up(name: str, function: str) -> SourceExhausted:
    """The error of a function that has returned a generator which was read to its end before."""
    return SourceExhausted(
        f"{name}: {function} has returned a generator that was read to its end before, so that this pass would be "
        "empty. Make a new one in each call"
    )


def _steps_of_code(iterator: Iterator[Any], code: RunningCode, watch: WatchedSteps | None) -> Iterator[Any]:
    frame = enter_code(code)
    try:
        if watch is not None and (yield from watch.steps(iterator)):
            return
        yield from islice(iterator, None)  # without `islice` it would close the iterator, which the user may hold
    except TimeoutError as error:
        require_waiting(error, False, code_of(code.df))
    finally:
        leave_code(frame)


def enter_code(code: RunningCode) -> int:
    """From here on, what the calling frame calls is `code`; the result is for `leave_code`."""
    frame = id(sys._getframe(1))
    _other_code[frame] = code
    return frame


def leave_code(frame: int) -> None:
    """End what `enter_code` began."""
    del _other_code[frame]


_WITHOUT_CODE: Final = frozenset(map(type, map(iter, ([], (), range(0), "", b"", {}, set()))))
"""Iterators whose steps call no code of the user."""


def in_worker() -> bool:
    """Whether this code runs in a worker."""
    from dataflow.system.worker_info import worker_info  # which flows without workers do not load

    return worker_info() is not None


def innermost_pass() -> RunningPass | None:
    """The innermost user-written pass that makes a step in this thread."""
    frame: FrameType | None = sys._getframe(2)  # as in `running_code`
    while frame is not None:
        running = running_passes.get(id(frame))
        if running is not None:
            return running
        frame = frame.f_back
    return None


class _NextPass:
    """The pass that the next iteration gets; iterating twice in one pass gives p and p + 1."""

    def __init__(self, p: int, stream: Stream, indexed: Stream | None = None, *, is_new: bool = False) -> None:
        self.p = p
        self.stream = stream
        self.indexed = indexed or stream  # for df[i], which depends on no pass
        self.reset = stream if is_new else self.indexed  # for reset_state, which comes once

    def claim(self) -> tuple[int, Stream]:
        self.p += 1
        return self.p - 1, self.stream


class _Here(threading.local):
    picking: bool = False  # whether this thread picks datapoints by index for the user
    done: set[FlowState] | None = None  # nodes that need no reset in the round of resets that this thread makes


_here = _Here()


def _leave_round_to_parent() -> None:
    _here.done = None


if hasattr(os, "register_at_fork"):
    # A reset starts workers. One that is forked from there is in no round: it would skip what it resets a second time.
    os.register_at_fork(after_in_child=_leave_round_to_parent)


def running_pass(df: Node) -> RunningPass | None:
    """The pass of `df` of which the calling code is a step; None outside."""
    running = innermost_pass()
    return running if running is not None and running.df is df else None


def next_pass(df: Node) -> Iterator[Any]:
    """Begin the next pass: the one given by the code that begins it, otherwise the one that the user asks for."""
    datapoints: Iterator[Any]
    state = state_of(df)
    code = running_code() or _code_of_thread(state)
    if code is not None and (state in code.inputs or not df._df_counts_passes):
        following = code.next_of(df)
        p, stream = following.claim()
        if open_flow(df, following.reset):
            fill_files(df, stream)
        datapoints = df._df_run_pass(p, stream)
        return datapoints
    with state.lock:  # of two threads that begin, each gets a number; a flow closed from here on ends this pass
        p, stream = state.passes, root_stream(df)
        state.passes += 1
        has_files = open_flow(df, stream)
        session = state.session
    if has_files:  # under no lock: it may take hours
        fill_files(df, stream)
    if df._df_user_written and not df._df_remote_inputs:
        steps = _user_pass_until_closed(df, p, stream, session)
        return pausing(steps, df._df_waits, code_of(df))
    datapoints = df._df_run_pass(p, stream)
    # A node with workers must look at every step anyway.
    return datapoints if df._df_remote_inputs else until_closed(datapoints, df, session)


def until_closed(datapoints: Iterator[Any], df: Node, session: Session | None = None) -> Iterator[Any]:
    """Yield from `datapoints`; after `df` is closed, or `session` of it, the next step raises."""
    waits = df._df_waits
    session = state_of(df).session if session is None else session
    return pausing(_until_closed(datapoints, session, type(df).__name__, waits), waits)


def _until_closed(datapoints: Iterator[Any], session: Session, name: str, waits: bool) -> Iterator[Any]:
    session.iterating = here = (threading.get_ident(),)
    try:
        while True:
            try:
                while not session.closed:
                    yield next(datapoints)  # no variable: it would keep the datapoint alive until the next step
                raise terminated(name)
            except StopIteration:
                return
            except TimeoutError as error:
                pause = paused(error, waits)
            yield pause
    finally:
        if session.iterating is here:  # no other iteration has begun since
            session.iterating = None


def root_stream(df: Node) -> Stream:
    """The stream of a flow that the user iterates or indexes; within the code of a node, its place there."""
    state = state_of(df)
    code = running_code() or _code_of_thread(state)
    if code is None:
        return Stream(state.root(), drawn=current_root() is None and not state.fixed)
    if state in code.inputs or not df._df_counts_passes:
        return code.next_of(df).indexed
    stream = code.next_of(df).stream
    return replace(stream, root=state.root(), drawn=False) if state.fixed else stream


def open_flow(df: Node, stream: Stream) -> bool:
    """Prepare `df` in this process to be iterated at `stream`: every node is reset, unless it is ready.

    A user's `reset_state` may not reset its input, so every node is checked, not only the first.

    Returns:
        Whether a node below `df` fills a file: `fill_files` does that before `df` asks for a length.
    """
    with state_of(df).lock:  # of two threads that begin, one resets
        nodes = [*walk(df)]
        states = [*map(state_of, nodes)]
        ready = [state for state in states if state.ready]
        if len(ready) < len(states):
            assign_streams(df, stream)
            reset_in_round(lambda done: _reset_all(df), ready)
            nodes = [*walk(df)]  # a reset may assign inputs
        return any(node._df_fills_file for node in nodes if node is not df)


def fill_files(df: Node, stream: Stream) -> None:
    """Let the nodes below `df` fill their files, which say how many datapoints there are, before the first pass.

    Not in workers: the consumer has counted their indexes before, and a node that fills its file later notices that.
    """
    if not df._df_remote_inputs:
        level = df._df_depth.level
        for j, ds in enumerate(df._df_inputs):
            place = stream.turn(level, j)
            if ds._df_fills_file:
                ds._df_fill_file(place)
            fill_files(ds, place)


def _reset_all(df: Node) -> None:
    for node in walk(df):
        node.reset_state()


def picked_here() -> bool:
    """Whether the user picks the datapoints addressed now, as ``df[index]``; false in a pass and in a worker."""
    return _here.picking


# The next two are no context managers: an interrupt as `__exit__` is entered would leave the thread in their state for
# as long as the traceback is kept, and a notebook keeps it. CPython runs no signal handler as a `finally` is entered.


def pick(make: Callable[[], T]) -> T:
    """Return ``make()``, the datapoints that the user picks: they are made here, even if a node has workers."""
    outer = _here.picking
    try:
        _here.picking = True
        return make()
    finally:
        _here.picking = outer


def current_round() -> set[FlowState] | None:
    """The states of the nodes that need no reset in the round of resets of this thread; None outside of one."""
    return _here.done


def reset_in_round(reset: Callable[[set[FlowState]], object], ready: Iterable[FlowState] = ()) -> None:
    """Call `reset` in a round of resets, in which no node is reset twice: a node may stand in several places.

    Args:
        reset: Gets the states of the nodes that need no reset. A call within it belongs to the same round.
        ready: The nodes that need no reset as the round begins.
    """
    outer = _here.done
    try:
        _here.done = set(ready) if outer is None else outer
        reset(_here.done)
    finally:
        _here.done = outer


def renew(df: Any, is_closed: bool) -> None:
    """Reset the node `df`, but none below it; if it was closed before, call what its class closes, too."""
    code = state_of(df).part(UserCode)
    if is_closed:
        try:
            code.closes_alone = threading.get_ident()
            df.close()
        finally:
            code.closes_alone = None
    below = [state_of(node) for node in walk(df) if node is not df]
    reset_in_round(lambda _: df.reset_state(), below)


def assign_streams(df: Node, stream: Stream) -> None:
    """Give every node of the chain its stream; numbers drawn before the first pass depend on it."""
    state = state_of(df)
    state.stream, state.seeded = stream, current_root()
    if not df._df_remote_inputs:
        level = df._df_depth.level
        for j, ds in enumerate(df._df_inputs):
            assign_streams(ds, stream.turn(level, j))


def walk(df: N, *, everywhere: bool = False, uncached: bool = False) -> Iterator[N]:
    """The nodes of a flow, from above, each once, down to where workers take over; all of them with `everywhere`.

    With `uncached`, those below a node that keeps a pass in memory are left out.
    """
    seen: set[int] = set()
    waiting: list[Any] = [df]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            # Read only now: the caller may have reset the node, and a reset may assign inputs.
            if (everywhere or not node._df_remote_inputs) and not (uncached and node._df_caches):
                waiting += reversed(node._df_inputs)


def promise(df: Node, given: Promise) -> None:
    """Let the nodes of this process know that a node above promises the same datapoints, in every run."""
    for node in walk(df):
        state_of(node).part(FirstCalls).promise = given


def copy_chain(df: N) -> dict[int, N]:
    """Copies of all nodes of a flow, by the id of the node, joined as the nodes are.

    What the nodes hold is shared: data, functions, parameters.
    """
    copies = {id(node): copy.copy(node) for node in walk(df, everywhere=True)}
    for node in copies.values():
        vars(node).update({name: with_copies(value, copies) for name, value in vars(node).copy().items()})
    return copies


def passes_on(ds: Node, stream: Stream, begin: int = 0) -> Iterator[Any]:
    """Pass after pass of `ds`, from pass `begin`, until one is empty."""
    waits = ds._df_waits
    return pausing(_passes_on(ds, stream, begin, waits), waits)


def _passes_on(ds: Node, stream: Stream, begin: int, waits: bool) -> Iterator[Any]:
    for p in count(begin):
        datapoints, is_empty = ds._df_run_pass(p, stream), True
        while True:
            try:
                if is_empty:
                    first = next(datapoints, _NOTHING)
                    if first is _NOTHING:
                        return
                    is_empty = False
                    yield first
                    del first  # a reference would keep it in memory during the pass
                yield from datapoints
                break
            except TimeoutError as error:
                pause = paused(error, waits)
            yield pause


def known_length(df: Any, begin: int = 0, *, longest: bool = False) -> int | None:
    """Datapoints per pass; None if unknown, or if a pass never ends.

    `begin` and `longest` are as for `_df_num_from`.
    """
    try:
        return df._df_num_from(begin, longest=longest) if begin or longest else len(df)
    except (NotImplementedError, TypeError):
        return None
