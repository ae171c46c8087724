"""`BackgroundProc`: background processes that call one function repeatedly and store its arrays in shared memory.

Guarantees:

- A slot is read only after its worker has acknowledged it, and is filled again only after it was given back.
- The results of one worker come in the order in which it made them.
- Results that a worker completed before it died or failed are returned before its end is reported.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any, ClassVar, Final, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dataflow.compat.command_pool import CommandPool
from dataflow.compat.layout import Layout, as_array, components_of, store
from dataflow.compat.shared_arrays import SharedMem
from dataflow.compat.timing import Profile, Statistics
from dataflow.protocol.generators import global_states, set_global_states
from dataflow.protocol.parameters import (
    deferred_function,
    flag,
    keyword_arguments,
    positional_arguments,
    seconds,
    start_method,
    whole_number,
)
from dataflow.protocol.seeding import current_root, fresh_root, root_seed
from dataflow.protocol.state import close_dropped
from dataflow.system.descriptors import Descriptor, closed_on_error, shared_mapping, shared_memory_file
from dataflow.system.interrupts import signals_deferred
from dataflow.system.session import Session
from dataflow.system.worker_info import place_words
from dataflow.system.worker_process import Payload, seed_globals

__all__ = ["BackgroundProc", "checked_options", "time_limit"]

_POLL: Final = 0.1  # seconds that one wait may last, with the lock held
_NUM_SLOTS: Final = 2  # of each worker: one that the consumer reads, one that is being filled


class BackgroundProc(SharedMem):
    """Call a function repeatedly in background processes; `get` returns its next result, computed in advance.

    Every result consists of arrays of the same shapes and dtypes, agreed once; numbers of another dtype are converted
    as by ``array[...] = result``, but a value that does not fit is an error. Each process has two result slots in
    shared memory: it computes one result ahead (two where `get` returns views), then blocks, using no CPU, until
    `get` has taken it.

    In each process `random` and `numpy.random` start from a separate seed, which is derived from `seed` or from
    `dataflow.seed`: processes draw different numbers, and with ``ordered=True`` every run gives the same results.
    Without either seed the numbers differ from run to run. With ``n_proc=0`` and a seed, the target draws what it would
    in one process.

    ELEKTRONN 1's order of arguments, ``BackgroundProc(dtypes, shapes, target, ...)``, is accepted too.

    Args:
        target: What the processes call: a function or a method. It returns one array, or a list or tuple of arrays.
            Under fork it is inherited, with all the data that it refers to, without a copy.
        dtypes: The dtype of each array. Without it the target is called once, in this process, to find out.
        shapes: The shape of each array; one for each dtype.
        n_proc: Number of processes. With 0, `get` calls the target itself, for debugging.
        target_args: Arguments of the target, always the same.
        target_kwargs: Its keyword arguments.
        profile: Log the times of every result, at level INFO. See also `statistics`.
        ordered: Take the results of the processes in turn; False takes the first that is ready.
        seed: Root seed of this object, instead of the one of `dataflow.seed`.
        copy: Return arrays that the caller may keep; False returns views of the shared memory, which are valid until
            the next `get`, and then show the next but one result.
        context: Start method, or a multiprocessing context; None is ``multiprocessing.get_context()``.

    Raises:
        TypeError: `target` is not callable, or does not return arrays, or a dtype has no fixed size.
        ValueError: `dtypes` and `shapes` differ in length, or `n_proc` is negative.

    Example:
        >>> def get_batch(batch_size):
        ...     return np.random.random((batch_size, 8, 8)), np.zeros(batch_size, np.int16)
        >>> with BackgroundProc(get_batch, n_proc=2, target_args=(4,)) as bg:
        ...     for _ in range(3):
        ...         data, label = bg.get()
        >>> data.shape, label.dtype
        ((4, 8, 8), dtype('int16'))

    Source:
        ELEKTRONN and ELEKTRONN2, whose class of this name it replaces.
    """

    owner: ClassVar[str] = "BackgroundProc"
    """Class name in messages."""

    restart: ClassVar[str] = "reset()"
    """The call that restarts it, for messages."""

    seeded_by_worker: ClassVar[bool] = True
    """Whether the processes that two workers start with the same seed draw different numbers."""

    def __init__(
        self,
        target: Any,
        dtypes: Any = None,
        shapes: Any = None,
        n_proc: SupportsIndex = 1,
        target_args: Sequence[Any] = (),
        target_kwargs: Mapping[str, Any] | None = None,
        profile: bool = False,
        *,
        ordered: bool = True,
        seed: int | None = None,
        copy: bool = True,
        context: BaseContext | str | None = None,
    ) -> None:
        if callable(shapes) and not callable(target):
            target, dtypes, shapes = shapes, target, dtypes  # as in ELEKTRONN 1
        self._call, self.n_proc, self._context, self._ordered = checked_options(
            self.owner, target, n_proc, target_args, target_kwargs, context, ordered
        )
        self._fixed_root = root_seed(self, seed)
        self._root = fresh_root()  # used if no seed is fixed
        self._copy = flag(self.owner, "copy", copy)
        self._profile = Profile(self.owner, flag(self.owner, "profile", profile))
        if dtypes is None or shapes is None:  # a trial call
            parts = [as_array(part, position) for position, part in enumerate(components_of(self._call()))]
            dtypes = [part.dtype for part in parts] if dtypes is None else dtypes
            shapes = [part.shape for part in parts] if shapes is None else shapes
        self._layout = Layout.of(self.owner, dtypes, shapes)
        self._sets = 0  # sets of workers started so far: each set draws different numbers
        self._result_slots: _ResultSlots | None = None  # None after shutdown, and with n_proc=0
        self._generators: AbstractContextManager[None] = nullcontext()  # for calls in this process
        self._finaliser: weakref.finalize[Any, Any] | None = None  # closes the result slots on collection
        self._is_shut_down = False  # read only where there are no result slots
        self._start()

    @property
    def dtypes(self) -> list[np.dtype[Any]]:
        """The dtype of each array of a result."""
        return list(self._layout.dtypes)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each array of a result."""
        return list(self._layout.shapes)

    def get(self, timeout: float | None = None) -> tuple[NDArray[Any], ...]:
        """Wait for the next result: a tuple of arrays.

        Args:
            timeout: Seconds; None, or False as in ELEKTRONN2, waits as long as the processes are alive.

        Raises:
            ShapeMismatch: The target returned another number of arrays, or another shape; the message gives both.
            OverflowError: A value does not fit into the agreed dtype.
            WorkerDied: A process was killed, crashed or exited; the message says which and how, and what to do.
            WorkerError: The target raised an exception that cannot be pickled. Any other arrives as its own type, with
                the process's traceback as its cause.
            TimeoutError: There was no result after `timeout` seconds. The object stays usable.
            DataFlowTerminated: The object was shut down, or has failed before. `reset` restarts it.
        """
        limit = time_limit(self.owner, timeout)
        if self.n_proc == 0 and not self._is_shut_down:
            return self._in_place()
        # Read once: another thread may shut down meanwhile.
        result_slots = self._result_slots
        if result_slots is None:
            raise self._new_session().was_closed()
        try:
            return result_slots.receive(limit)
        except BaseException:
            if result_slots.session.failed and self._finaliser is not None:
                # The failure holds the frames it passed through, this object among them; the result slots are closed.
                self._finaliser.detach()
            raise

    def reset(self) -> None:
        """Stop the processes and start new ones. Unread results are lost; the random numbers continue."""
        self.shutdown()
        self._start()

    def shutdown(self) -> None:
        """Stop the processes. Idempotent; also called when this object is collected, and at exit."""
        self._is_shut_down = True
        with signals_deferred():
            result_slots, self._result_slots = self._result_slots, None
            if self._finaliser is not None:
                self._finaliser.detach()
            if result_slots is not None:
                result_slots.close()

    close = shutdown

    def statistics(self) -> Statistics:
        """Return the times so far."""
        return self._profile.statistics

    def __iter__(self) -> Iterator[tuple[NDArray[Any], ...]]:
        while True:
            yield self.get()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _start(self) -> None:
        root = current_root() if self._fixed_root is None else self._fixed_root
        self._sets += 1
        words = (
            self._root if root is None else root,
            self._sets,
            *(place_words() if self.seeded_by_worker else ()),
        )
        if not self.n_proc:
            self._generators = nullcontext() if root is None else _OwnGenerators((*words, 0, 1))
        else:
            with signals_deferred():
                self._result_slots = _ResultSlots(
                    self._profile,
                    self._context,
                    self._call,
                    self._layout,
                    self.n_proc,
                    words,
                    self._new_session(),
                    reseed=root is not None,
                    ordered=self._ordered,
                    copy=self._copy,
                )
                self._finaliser = weakref.finalize(self, close_dropped, self._result_slots)
        self._is_shut_down = False

    def _new_session(self) -> Session:
        return Session(
            self.owner,
            begun="this",
            restart=f"Call {self.restart} to restart it",
            fork_cure=f"{self.restart} starts workers of its own",
            closed_text=f"was shut down. Call {self.restart} to restart it",
        )

    def _in_place(self) -> tuple[NDArray[Any], ...]:
        result = tuple(np.empty(shape, dtype) for dtype, shape in zip(self.dtypes, self.shapes, strict=True))
        began = time.perf_counter()
        with self._generators:
            store(result, self._call())
        made = time.perf_counter() - began
        self._profile.add("get itself", made, 0.0, made)
        return result


class _OwnGenerators:
    """Within each block, `random` and `numpy.random` are those of a process of its own, as the last block left them.

    Args:
        words: The seed of that process.
    """

    def __init__(self, words: tuple[int, ...]) -> None:
        self._words = words
        self._own: tuple[Any, Any, Any] | None = None
        self._outer = global_states()

    def __enter__(self) -> None:
        self._outer = global_states()
        if self._own is None:
            seed_globals(self._words)
        else:
            set_global_states(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = global_states()
        set_global_states(self._outer)


def checked_options(
    owner: str, target: Any, n_proc: Any, target_args: Any, target_kwargs: Any, context: Any, ordered: Any
) -> tuple[Callable[[], Any], int, BaseContext | str | None, bool]:
    """Check the options of a `BackgroundProc`; return the call of the target, `n_proc`, `context` and `ordered`.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: A number is too small, or there is no such start method.
    """
    if not callable(target):
        raise TypeError(f"{owner}: target is a function that returns arrays, got {type(target).__name__}")
    if (deferred := deferred_function(target)) is not None:
        raise TypeError(f"{owner}: target is {deferred}")
    cure = ". Give the number of processes, for example n_proc=4"
    alternatives = " (call the target in the consumer)"
    args = positional_arguments(owner, "target_args", target_args)
    return (
        partial(target, *args, **keyword_arguments(owner, "target_kwargs", target_kwargs)),
        whole_number(owner, "n_proc", n_proc, 0, cure, alternatives=alternatives),
        start_method(owner, context),
        flag(owner, "ordered", ordered),
    )


def time_limit(owner: str, timeout: float | None) -> float | None:
    """Return the time limit in seconds; None if there is none.

    Raises:
        TypeError: `timeout` is not a number.
        ValueError: `timeout` is negative.
    """
    if timeout is None or timeout is False:
        return None
    return seconds(owner, "timeout", timeout, or_zero=True, cure="; None waits as long as the processes are alive")


@dataclass
class _SlotFiller:
    """Skill of one worker: fill a slot with the result of a call. A command is the number of the slot, as a byte."""

    payload: Payload
    files: tuple[Descriptor, ...]
    layout: Layout

    def open(self) -> Callable[[bytes, Descriptor | None], None]:
        call = self.payload.load()
        slots = self.slots()
        return lambda command, memory: store(slots[command[0]], call())

    def slots(self) -> list[list[NDArray[Any]]]:
        """Return the arrays of each slot."""
        size = self.layout.nbytes
        memory = shared_mapping(self.files[0], _NUM_SLOTS * size)
        return [self.layout.views(memory, slot * size) for slot in range(_NUM_SLOTS)]


class _ResultSlots:
    """Double-buffered result slots in shared memory, one pair per worker, and the consumer's position in them.

    Args:
        profile: Sums up the times; knows the owner's name.
        context: How processes are started, as for `CommandPool`.
        call: What the workers call.
        layout: Dtypes and shapes of every result.
        num_workers: Number of workers, all with the same work.
        words: Seed of this set of workers.
        session: Of the owner, until it is restarted.
        reseed: Whether flows that are made in a worker are seeded too.
        ordered: Return the results of the workers in turn; False returns the first that is ready.
        copy: Return copies; False returns views, which are valid until the next result is requested.
    """

    def __init__(
        self,
        profile: Profile,
        context: BaseContext | str | None,
        call: Callable[[], Any],
        layout: Layout,
        num_workers: int,
        words: tuple[int, ...],
        session: Session,
        *,
        reseed: bool,
        ordered: bool,
        copy: bool,
    ) -> None:
        self.session = session
        self._profile = profile
        self._ordered = ordered
        self._copy = copy
        self._lock = threading.RLock()
        self._turn = 0  # worker of the next result
        self._viewed: tuple[int, int] | None = None  # worker and slot of the views that the consumer holds
        self._under_way: list[deque[int]] = [deque() for _ in range(num_workers)]  # slots that each fills, in order
        self._spare: list[int | None] = [1] * num_workers  # the free slot of each; None if both are in use
        with signals_deferred(), closed_on_error():
            files = [shared_memory_file("dataflow-slots", _NUM_SLOTS * layout.nbytes) for _ in range(num_workers)]
            # Under fork the payload is inherited; otherwise each worker's start pickles it.
            skills = [_SlotFiller(Payload(call), (file,), layout) for file in files]
            self._slots = [skill.slots() for skill in skills]
            self._pool = CommandPool(profile.owner, context, skills, words, reseed=reseed)
            try:
                # Only now: the workers have inherited or received them. The memory stays mapped here.
                for file in files:
                    file.close()
                for worker in range(num_workers):
                    self._fill(worker, 0)
            except BaseException:
                self._pool.close()
                raise

    def receive(self, timeout: float | None) -> tuple[NDArray[Any], ...]:
        """Wait for the next result.

        Raises:
            TimeoutError: There was no result after `timeout` seconds.
            WorkerDied: A worker ended without an exception.
            DataFlowTerminated: The owner was shut down, or has failed before.
            Exception: The target's own exception.
        """
        self.session.check_process()
        began = time.monotonic()
        while True:
            with self._lock:
                self.session.check()
                try:
                    # Whoever asks for the next result gives the views of the last one back.
                    if self._viewed is not None:
                        viewed, self._viewed = self._viewed, None
                        self._fill(*viewed)
                    self._pool.receive_all()
                    worker = self._next_ready()
                    if worker is not None:
                        return self._result_of(worker, time.monotonic() - began)
                except BaseException as error:  # Ctrl-C included: a slot may be left without an owner
                    self.session.fail(error)
                    self.close()
                    raise
                waited = time.monotonic() - began
                if timeout is not None and waited >= timeout:
                    raise self._pool.late(timeout)
                self._pool.wait(_POLL if timeout is None else min(_POLL, timeout - waited))

    def close(self) -> None:
        """Stop the workers. Idempotent; no-op in a forked child."""
        if self.session.is_own:
            # Before the lock, which a thread that waits for a result holds for up to a tenth of a second: it gives way
            # next.
            self.session.closed = True
            with signals_deferred(), self._lock:
                self._pool.close()

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _fill(self, worker: int, slot: int) -> None:
        self._under_way[worker].append(slot)
        self._pool.send(worker, bytes([slot]))

    def _next_ready(self) -> int | None:
        """Return the worker of the next result, if that has arrived; raise the failure of a worker without results."""
        n = len(self._slots)
        results, failures = self._pool.acknowledged, self._pool.failures
        turns = [self._turn] if self._ordered else [(self._turn + k) % n for k in range(n)]
        # Also without an order, a worker that has ended gets its turn: the others do not hide it.
        for worker in turns:
            if results[worker]:
                return worker
            if worker in failures:
                raise failures[worker]
        for worker, failure in failures.items():
            if not results[worker]:
                raise failure
        return None

    def _result_of(self, worker: int, waited: float) -> tuple[NDArray[Any], ...]:
        began = time.perf_counter()
        slot = self._under_way[worker].popleft()
        made = self._pool.acknowledged[worker].popleft()
        result = tuple(self._slots[worker][slot])
        spare, self._spare[worker] = self._spare[worker], None
        if spare is not None:
            self._fill(worker, spare)  # it continues while the result is copied or read
        if self._copy:
            result = tuple(array.copy() for array in result)
            self._spare[worker] = slot
        else:
            self._viewed = worker, slot
        self._turn = (worker + 1) % len(self._slots)
        self._profile.add(f"worker {worker}", waited, time.perf_counter() - began, made)
        return result
