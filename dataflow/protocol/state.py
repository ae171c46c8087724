"""State of a flow: what it remembers between passes, in this process only.

A flow is a description: parameters and inputs. Everything else (the number of passes begun, its place in the chain,
iterators that outlive a pass) is in its `FlowState`, which is never pickled or copied, and which a forked process does
not inherit. Which attributes of a node hold other flows is answered here as well (`flows_in`).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from dataflow.errors import NotReentrant, NotReproducible, TimeoutError
from dataflow.protocol.failures import Tolerance
from dataflow.protocol.pauses import paused, pausing
from dataflow.protocol.seeding import Stream, current_root, fresh_root
from dataflow.system.interrupts import signals_deferred
from dataflow.system.session import Session, terminated

if TYPE_CHECKING:
    from dataflow.system.cleanup import Closeable

__all__ = [
    "RESET",
    "Continued",
    "Drops",
    "FirstCalls",
    "FlowState",
    "Kept",
    "Promise",
    "Taken",
    "close_dropped",
    "flows_in",
    "holds_only_inputs",
    "is_flow",
    "require_continuing",
    "state_of",
    "with_copies",
]

_KEY: Final = "_df_state"

_from_parent: list[FlowState] = []
"""States that came through a fork: kept, so that nothing in them is finalised in the child."""


N = TypeVar("N")
P = TypeVar("P")


class Drops:
    """Whether a map has dropped a datapoint here, or below: then a node that counts cannot be addressed."""

    has_dropped = False
    has_skipped = False  # what this node makes of several datapoints: it can be addressed, what counts above it cannot


RESET: Final = "reset_state()"
"""A name among what a node keeps: the node was reset afterwards, so a node that is given the rest is reset, too.

The value says whether it was closed before that.
"""


class Kept:
    """What a node of the user's keeps in its attributes whose passes are made in this process (see `kept_changes`)."""

    def __init__(self) -> None:
        self.first: dict[str, Any] | None = None  # its attributes as its first pass began here; None before
        self.held: dict[tuple[str, ...], Callable[[], Any]] = {}  # references to what it held then and can change
        self.iterators: dict[str, Any] = {}  # those that its last pass found as it began, and has not replaced
        self.given: dict[str, Any] | None = None  # what it is to have as its next pass begins; None to keep what it has
        self.named: set[str] = set()  # the attributes that it was given so far: they count even if they are as at first
        self.ahead: Any = None  # the `KeptInWorker` of the worker whose copy has made the last pass, if one has
        self.in_workers: dict[tuple[int, ...], Any] = {}  # `KeptInWorker` by place, see `kept_in_worker`
        self.has_warned = False  # that a pass was left early (`warn_of_change`)


class Promise(NamedTuple):
    """A node above promises the same datapoints in every run and with any number of workers."""

    owner: str  # the name of its class
    shares_process: bool = False  # with the consumer, whose thread is another one
    refuses: bool = True  # a function that breaks it; otherwise that is noted, and logged


class FirstCalls:
    """The first calls of a node's function in this process, which are checked."""

    def __init__(self) -> None:
        self.restart()
        self.promise: Promise | None = None
        self.has_warned = False
        self.broken = ""  # says how the function breaks a promise that does not refuse
        self.draws = ""  # says from what the code of the node itself was seen to draw

    def restart(self) -> None:
        """Check as many calls again."""
        self.num_left = 8
        self.num_steps_left = 8  # of the code of the node itself, if it is a user's
        self.suspects: set[str] | None = None  # generators from which each call so far seems to have drawn
        self.counting: set[str] | None = None  # numbers that each call so far has changed


class FlowState:
    """The state of one flow in one process.

    What lies between two states changes in one step, under `lock`, whichever threads call:

    | | `ready` | `session` | `resource`, `tolerance` |
    |---|---|---|---|
    | new, or closed | no | open, of no iteration yet | none |
    | reset | yes | open | of the new workers, both |
    | failed | yes | open | both remain, to say what happened: steps raise `DataFlowTerminated` |

    A reset leads from any of them to *reset*, and `close` to *closed*; iterators of the session before then raise. A
    reset that raises leaves the flow not ready, as a new one. The first iteration resets what is not ready.

    Guarantees:

    - Locks are taken from above: that of a node before those of its inputs. A step waits for datapoints under no lock
      of a flow, so `reset_state` and `close` in another thread reach it.
    - `close` marks the session before it waits for the lock.
    - A forked process has a new state, with a lock of its own.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.after_fork: dict[int, FlowState] = {}  # the new state, by the id of the forked process
        self.lock = threading.RLock()  # held while the flow is reset, started or closed, and as a pass gets its number
        self.entropy: int | None = None  # the root of an outermost flow if seed() was not called; drawn once
        self.fixed = False  # not drawn: it came from a saved state
        self.passes = 0  # passes begun by the user; the number of the next one
        self.stream: Stream | None = None  # the place in the chain, as of the last reset
        self.seeded: int | None = None  # the root of `seed` at that time
        self.ready = False  # reset_state has run since the last close
        self.session = Session()  # replaced by close()
        self.begun = 0  # passes begun by a runner's workers; the passes of new workers come after them
        self.warned = False  # a warning that is given once was given
        self.tolerance: Tolerance | None = None  # records failures of single items and decides which are tolerated
        self.continued = Continued()  # iterators that outlive a pass
        self.resource: Closeable | None = None  # what close() must close: a runner's engine
        self.metrics: Any = None  # of the workers started last: where the time goes; it outlives them
        self.sampler: Any = None  # of the thread that iterates this flow; None until figures were asked for
        self._finaliser: weakref.finalize[Any, Any] | None = None  # closes it when the flow is collected
        self._parts: dict[type, Any] = {}  # what else is remembered, each by its owner: see `part`

    def part(self, kind: type[P]) -> P:
        """What the owner of the class `kind` remembers of this flow; made without arguments at the first call."""
        found: P | None = self._parts.get(kind)
        if found is None:
            found = self._parts.setdefault(kind, kind())  # of two threads that meet here, both get the same
        return found

    def share(self, kind: type[P], other: FlowState) -> None:
        """Let this flow and `other` remember the same `kind`: one stands for the other."""
        self._parts[kind] = other.part(kind)

    def root(self) -> int:
        """The root seed: the one fixed by `seed`, otherwise entropy drawn once for this flow."""
        root = current_root()
        if root is not None:
            return root
        with self.lock:  # two threads that begin must not draw two
            if self.entropy is None:
                self.entropy = fresh_root()
        return self.entropy

    def own(self, df: Any, resource: Closeable | None) -> None:
        """Close the resource owned before, and own `resource`: it is closed at the latest when `df` is collected."""
        with signals_deferred(), self.lock:
            if self.resource is not None:
                self.resource.close()  # if it raises, it stays, and the next call closes it
            if self._finaliser is not None:
                self._finaliser.detach()
            self.resource = resource
            self._finaliser = None if resource is None else weakref.finalize(df, close_dropped, resource)

    def settle(self) -> None:
        """Release the owned resource, which has failed and is closed.

        It holds the failure, which holds the frames that it came through, and so this flow: a finaliser that holds the
        resource would keep all of them alive.
        """
        if self._finaliser is not None:
            self._finaliser.detach()

    def end_session(self) -> None:
        """Make live iterators raise at their next step."""
        with signals_deferred():  # an interrupt between the two would leave a closed session behind
            self.session.closed = True  # before the lock: who makes a step gives way, also within a start
            with self.lock:
                ended, self.session = self.session, Session()
                ended.closed = True
                self.ready = False
                self.continued.drop()
                self.own(None, None)
        if self.sampler is not None:
            self.sampler.stop()

    def __reduce__(self) -> tuple[Any, ...]:
        return FlowState, ()


def close_dropped(resource: Closeable) -> None:
    """Close what a collected object has owned."""
    with signals_deferred(later=True):
        resource.close()


def state_of(df: Any) -> FlowState:
    """The state of `df` in this process; a forked process gets a new one."""
    found: FlowState | None = df.__dict__.get(_KEY)
    if found is None:
        # setdefault, here and below: of two threads that meet here, both continue with the same state.
        state: FlowState = df.__dict__.setdefault(_KEY, FlowState())
        return state
    pid = os.getpid()
    if found.pid != pid:
        _from_parent.append(found)
        found = df.__dict__[_KEY] = found.after_fork.setdefault(pid, FlowState())
    return found


class _Held:
    """An iterator that outlives a pass, and the generation of the taker that may step it."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.iterator = iterator
        self.lock = threading.Lock()
        self.generation: object = None


def _at(known: dict[Stream, N], stream: Stream, make: Callable[[], N]) -> N:
    """What is known at the place `stream`, made by `make` if there is nothing; of two threads that meet, both get one.

    Another root means that the user has called `seed` again: what was begun under the old one is over.
    """
    found = known.get(stream)
    if found is None:
        for old in [old for old in list(known) if old.root != stream.root]:
            known.pop(old, None)
        found = known.setdefault(stream, make())
    return found


class Taken:
    """How much of a pass its consumer has taken, where workers or a buffer read ahead of it."""

    def __init__(self, stream: Stream, node: Callable[[], Any] = lambda: None) -> None:
        self.stream = stream
        self.node = node  # a weak reference to what reads ahead
        self.is_over = False  # the consumer has seen the end of the pass
        self.is_stopped = False  # nothing more of it is taken
        self.follows_left = False  # the pass before was left early
        self.follows_lost = False  # a pass was left early, and after it the flow was closed, reset or changed
        self.kept: list[dict[str, Any]] = []  # what users' nodes below kept as the pass began
        self._num_received = 0
        self._chunk: Iterator[Any] = iter(())  # received last

    def add(self, chunk: Iterator[Any]) -> None:
        """Count the datapoints of `chunk`, the iterator of a list, as they are taken from it."""
        self._num_received += length_hint(chunk)
        self._chunk = chunk

    def add_one(self) -> None:
        """Count a datapoint that is being handed out."""
        self._num_received += 1

    def stop(self) -> None:
        """Count what is left of the chunk as not taken."""
        self._num_received -= length_hint(self._chunk)
        self._chunk = iter(())
        self.is_stopped = True

    def is_whole(self, length: int | None) -> bool:
        """Whether everything was taken, of a pass of `length` datapoints; None if that is unknown."""
        return self.is_over or self._num_received - length_hint(self._chunk) == length


def require_continuing(stream: Stream, name: str) -> None:
    """Check that a pass of the node `name` at `stream` may continue where the last one stopped.

    Raises:
        NotReproducible: It must not depend on the passes before it; the message says why.
    """
    if stream.standalone:
        raise NotReproducible(f"a pass of {name} continues where the last one stopped, {stream.standalone}")


class Continued:
    """Iterators on which passes continue where the last one stopped, one for each place in a chain.

    Guarantees:

    - The later of two takers wins; the earlier raises `NotReentrant` at its next step, also from another thread.
    - Every datapoint goes to exactly one taker: a step is made under the lock that also guards the generation.
    """

    def __init__(self) -> None:
        self.taken: Taken | None = None  # of the last pass, where what is below is read ahead
        self.lost: Taken | None = None  # of the last pass before everything began again, if that was left early
        self.begin_again()
        self._held: dict[Stream, _Held] = {}
        self._notes: dict[Stream, Any] = {}
        self._weights: dict[Stream, tuple[str, ...]] = {}  # of the mixtures below, when the first pass began

    def begin_again(self) -> None:
        """What is read ahead begins from the start."""
        if self.taken is not None:
            self.lost = None if self.taken.is_over else self.taken
            self.taken.is_stopped = True
        self.taken = None
        self.has_left = False  # a pass was left early, and what had been read ahead of it is lost

    def note(self, stream: Stream, make: Callable[[], N]) -> N:
        """The object that a node keeps for its next pass at `stream`, made by `make` if there is none."""
        found: N = _at(self._notes, stream, make)
        return found

    def forget(self) -> None:
        """Begin from the start with the next pass; code that still steps an iterator continues with it."""
        self._held, self._notes, self._weights = {}, {}, {}

    def holds(self, stream: Stream) -> bool:
        """Whether a pass at `stream` would continue with an iterator."""
        return stream in self._held

    def require_same_weights(self, stream: Stream, df: Any) -> None:
        """Check that passes of the node `df` at `stream` can continue: the mixtures below have their first weights.

        Raises:
            ValueError: The weights of one are others than when the first pass began.
        """
        weights: tuple[str, ...] = df._df_weights()
        first = _at(self._weights, stream, lambda: weights)
        for before, now in zip(first, weights, strict=False):
            if before != now:
                raise ValueError(
                    f"MixData: weights were {before} when the first loop began, and are {now} now. The position in "
                    f"each flow follows from them, so {type(df).__name__} cannot continue with others. To begin again "
                    "with the first datapoint of each flow, call close() of the outermost node, or reset_state() if "
                    "that is MixData"
                )

    def take(self, stream: Stream, begin: Callable[[], Iterator[Any]], df: Any) -> Iterator[Any]:
        """Continue with the iterator at `stream`, begun by `begin` if there is none. Takes over at the call.

        Args:
            stream: The place in the chain.
            begin: Begins the iterator.
            df: The node, which is not kept.

        Raises:
            NotReproducible: The pass must not depend on the passes before it.
            ValueError: The weights of a mixture are others than when the iterator began.
        """
        name, waits = type(df).__name__, df._df_waits
        require_continuing(stream, name)
        self.require_same_weights(stream, df)
        held = _at(self._held, stream, lambda: _Held(begin()))
        generation = held.generation = object()
        return pausing(self._steps(stream, held, generation, name, waits), waits)

    def _steps(self, stream: Stream, held: _Held, generation: object, name: str, waits: bool) -> Iterator[Any]:
        lock, iterator = held.lock, held.iterator
        try:
            while True:
                try:
                    with lock:
                        if held.generation is not generation:
                            break
                        dp = next(iterator)
                except TimeoutError as error:
                    dp = paused(error, waits)
                yield dp  # outside of the lock: another taker need not wait until this one is stepped again
        except GeneratorExit:  # dropped at the yield: the iterator stays, for the next taker
            raise
        except BaseException as error:
            if self._held.get(stream) is held:  # otherwise another one was begun meanwhile
                del self._held[stream]
            if isinstance(error, StopIteration):
                return
            raise
        if held.generation is terminated:
            raise terminated(name)
        raise NotReentrant(
            f"a later iteration of {name} took over; it can serve one at a time, because a pass continues where the "
            "last one stopped. Make one flow for each loop"
        )

    def drop(self) -> None:
        """Drop all iterators; code that still steps one finds the flow closed."""
        self.begin_again()
        dropped = self._held
        self.forget()
        # A copy, made in one step under the interpreter's lock, as above: another thread may be about to add one.
        for held in list(dropped.values()):
            held.generation = terminated


# -- flows among the attributes of a node ------------------------------------------------------------------------------


_SEQUENCES: Final = (list, tuple)


def is_flow(value: Any) -> bool:
    """Whether `value` is a `DataFlow`, which is defined above this module."""
    return hasattr(type(value), "_df_inputs")


def flows_in(value: Any) -> list[Any]:
    """The flows that an attribute of a node holds: itself; or a list, a tuple or a dict of flows, or of pairs with one.

    In a pair the flow comes first, as in (flow, probability). Data are not searched: the first element decides.
    """
    if is_flow(value):
        return [value]
    elements = _elements(value)
    if elements and isinstance(elements[0], _SEQUENCES):
        elements = [item[0] for item in elements if isinstance(item, _SEQUENCES) and item] if elements[0] else ()
    return [item for item in elements if is_flow(item)] if elements and is_flow(elements[0]) else []


def holds_only_inputs(value: Any, inputs: Set[int]) -> bool:
    """Whether an attribute of a node is one of its inputs, or a list, tuple or dict of them; `inputs` has their ids."""
    return id(value) in inputs or any(id(item) in inputs for item in _elements(value)[:1])


def with_copies(value: Any, copies: Mapping[int, Any]) -> Any:
    """`value`, with the flows in it replaced by their copies, which are given by the ids of the flows."""
    if id(value) in copies:
        return copies[id(value)]
    if type(value) not in {list, tuple, dict} or not any(id(flow) in copies for flow in flows_in(value)):
        return value
    made = [with_copies(item, copies) for item in _elements(value)]
    return dict(zip(value, made, strict=True)) if type(value) is dict else type(value)(made)


def _elements(value: Any) -> Sequence[Any]:
    return value if isinstance(value, _SEQUENCES) else list(value.values()) if isinstance(value, dict) else ()
