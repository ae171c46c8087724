"""Double-buffered result slots in shared memory, one pair per worker, and the consumer's position in them.

Guarantees:

- A slot is read only after its worker has acknowledged it, and is filled again only after it was given back.
- The results of one worker come in the order in which it made them.
- Results that a worker completed before it died or failed are returned before its end is reported.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Final, NoReturn

from numpy.typing import NDArray

from dataflow.descriptors import Descriptor, closed_on_error, shared_mapping, shared_memory_file
from dataflow.errors import DataFlowTerminated, TimeoutError
from dataflow.interrupts import signals_deferred
from dataflow.shared.commands import Command
from dataflow.shared.layout import Layout, store
from dataflow.shared.timing import Profile
from dataflow.shared.worker_pool import CommandPool
from dataflow.workers.payload import Payload

__all__ = ["ResultSlots", "Call", "late"]

_POLL: Final = 0.1  # seconds that one wait may last, with the lock held
_NUM_SLOTS: Final = 2  # of each worker: one that the consumer reads, one that is being filled
_LOOK: Final = 0.5  # seconds after which the workers are checked, even while results come


@dataclass(frozen=True)
class Call:
    """A function with its arguments."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        return self.target(*self.args, **self.kwargs)


@dataclass
class Filling:
    """Skill of one worker: fill a slot with the result of a call. A command is the number of the slot, as a byte."""

    payload: Payload
    layout: Layout
    file: Descriptor

    def descriptors(self) -> tuple[Descriptor, ...]:
        return (self.file,)

    def close_in_parent(self) -> None:
        self.payload.close_in_parent()

    def open(self) -> Callable[[Command], None]:
        call = self.payload.load()
        slots = self.slots()

        def fill(command: Command) -> None:
            store(slots[command.data[0]], call())

        return fill

    def slots(self) -> list[list[NDArray[Any]]]:
        """Return the arrays of each slot."""
        size = self.layout.nbytes
        memory = shared_mapping(self.file, _NUM_SLOTS * size)
        return [self.layout.views(memory, slot * size) for slot in range(_NUM_SLOTS)]


class ResultSlots:
    """The workers of one `BackgroundProc`, and their results.

    Args:
        profile: Sums up the times; knows the owner's name.
        context: How processes are started.
        call: What the workers call.
        layout: Dtypes and shapes of every result.
        num_workers: Number of workers, all with the same work.
        words: Seed of this set of workers.
        reseed: Whether flows that are made in a worker are seeded too.
        ordered: Take the results of the workers in turn; False takes the first that is ready.
        copy: Return copies; False returns views, which are valid until the next result is requested.
        restart: The call that restarts the owner, for messages.
    """

    def __init__(
        self,
        profile: Profile,
        context: BaseContext,
        call: Call,
        layout: Layout,
        num_workers: int,
        words: tuple[int, ...],
        *,
        reseed: bool,
        ordered: bool,
        copy: bool,
        restart: str,
    ) -> None:
        self._pid = os.getpid()
        self._profile = profile
        self._ordered = ordered
        self._copy = copy
        self._restart = restart
        self._lock = threading.RLock()
        self._closing = False  # set before the lock is taken, so that a waiting thread releases it
        self._failure: BaseException | None = None  # what was raised in the consumer; everything is closed then
        self._turn = 0  # worker of the next result
        self._in_hand: tuple[int, int] | None = None  # worker and slot of the views that the consumer holds
        self._looked = time.monotonic()
        self._under_way: list[deque[int]] = [deque() for _ in range(num_workers)]  # slots that each fills, in order
        self._spare: list[int | None] = [1] * num_workers  # the free slot of each; None if both are in use
        with signals_deferred(), closed_on_error():
            files = [shared_memory_file("dataflow-slots", _NUM_SLOTS * layout.nbytes) for _ in range(num_workers)]
            # Under fork the payload is inherited; otherwise each worker's start pickles it.
            skills = [Filling(Payload(call), layout, file) for file in files]
            self._slots = [skill.slots() for skill in skills]
            self._pool = CommandPool(profile.owner, context, skills, words, reseed=reseed)
            try:
                for file in files:
                    file.close()
                for worker in range(num_workers):
                    self._command(worker, 0)
            except BaseException:
                self._pool.close()
                raise

    @property
    def failed(self) -> bool:
        """Whether a failure was reported; everything is closed then."""
        return self._failure is not None

    def take(self, timeout: float | None) -> tuple[NDArray[Any], ...]:
        """Return the next result.

        Raises:
            TimeoutError: There was no result after `timeout` seconds.
            WorkerDied: A worker ended without an exception.
            DataFlowTerminated: The owner was shut down, or has failed before.
            Exception: The target's own exception.
        """
        if os.getpid() != self._pid:  # checked before the lock, which a thread of the parent may have held at the fork
            raise DataFlowTerminated(
                f"this {self._profile.owner} belongs to process {self._pid}, of which this process was forked; "
                f"{self._restart} starts workers of its own"
            )
        began = time.monotonic()
        looked = False
        while True:
            with self._lock:
                self._check()
                with self._failing():
                    self._give_back()
                    if looked or time.monotonic() - self._looked > _LOOK:
                        self._looked = time.monotonic()
                        self._pool.receive()
                    worker = self._next_ready()
                    if worker is not None:
                        return self._hand_out(worker, time.monotonic() - began)
                    self._judge()
                waited = time.monotonic() - began
                if timeout is not None and looked and waited >= timeout:
                    raise late(self._profile.owner, timeout, self._pool.states())
                left = _POLL if timeout is None else min(_POLL, max(0.0, timeout - waited))
                self._pool.wait(left)
                looked = True

    def close(self) -> None:
        """Stop the workers. Idempotent; no-op in a forked child."""
        if os.getpid() == self._pid:
            self._closing = True
            with signals_deferred(), self._lock:
                self._pool.close()

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        owner = self._profile.owner
        if self._failure is not None:
            before = traceback.format_exception_only(self._failure)[0].strip()
            raise DataFlowTerminated(
                f"{owner} has failed before, with {before}. Call {self._restart} to restart it"
            ) from self._failure
        if self._closing:
            raise DataFlowTerminated(f"{owner} was shut down. Call {self._restart} to restart it")

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Close this set of workers on any exception, Ctrl-C included: a slot may be left without an owner."""
        try:
            yield
        except BaseException as error:
            self._fail(error)

    def _give_back(self) -> None:
        if self._in_hand is not None:
            worker, slot = self._in_hand
            self._in_hand = None
            self._command(worker, slot)

    def _command(self, worker: int, slot: int) -> None:
        self._under_way[worker].append(slot)
        self._pool.command(worker, bytes([slot]))

    def _next_ready(self) -> int | None:
        """Return the worker of the next result, if that result has arrived."""
        n = len(self._slots)
        answers, verdicts = self._pool.answers, self._pool.verdicts
        turns = [self._turn] if self._ordered else [(self._turn + k) % n for k in range(n)]
        # Also without an order, a worker that has ended gets its turn: the others do not hide it.
        worker = next((k for k in turns if answers[k] or k in verdicts), None)
        if worker is not None and not answers[worker]:
            raise verdicts[worker]
        return worker

    def _hand_out(self, worker: int, waited: float) -> tuple[NDArray[Any], ...]:
        began = time.perf_counter()
        slot = self._under_way[worker].popleft()
        made = self._pool.answers[worker].popleft()
        result = tuple(self._slots[worker][slot])
        spare, self._spare[worker] = self._spare[worker], None
        if spare is not None:
            self._command(worker, spare)  # it works on while the result is copied or read
        if self._copy:
            result = tuple(array.copy() for array in result)
            self._spare[worker] = slot
        else:
            self._in_hand = worker, slot
        self._turn = (worker + 1) % len(self._slots)
        self._profile.add(f"worker {worker}", waited, time.perf_counter() - began, made)
        return result

    def _judge(self) -> None:
        """Report the end of a worker of which no results are left. Called while there is nothing to return."""
        for worker, verdict in self._pool.verdicts.items():
            if not self._pool.answers[worker]:
                raise verdict

    def _fail(self, error: BaseException) -> NoReturn:
        self._failure = error
        self.close()
        raise error


def late(owner: str, timeout: float, states: str) -> TimeoutError:
    """Return the error for `timeout` seconds without a result."""
    return TimeoutError(
        f"no result from {owner} for {timeout:g} seconds ({states}). It stays usable: call get again, with a longer "
        "timeout, or look at a worker with py-spy dump --pid PID"
    )
