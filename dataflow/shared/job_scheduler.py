"""Scheduler of `SharedQ`: jobs, each with shared memory of its own, and the processes that run them.

Guarantees:

- Results come in the order in which the jobs were started; the failure of one job affects that job only.
- Each job has memory of its own, which is freed when the last array on it, here or in a worker, is gone.
- A process is reused only if everything that the next job needs can be sent to it.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Final

from numpy.typing import NDArray

from dataflow.descriptors import Descriptor, shared_mapping, shared_memory_file
from dataflow.errors import DataFlowTerminated
from dataflow.interrupts import signals_deferred
from dataflow.pickling import ForkedMain, MainModule, dumps, imported_main, loads
from dataflow.seeding import derived, seed
from dataflow.shared.arrays import Handle, refusing_handles
from dataflow.shared.commands import MAX_BYTES, Command
from dataflow.shared.layout import Layout
from dataflow.shared.result_slots import Call, late
from dataflow.shared.timing import Profile
from dataflow.shared.worker_pool import CommandPool
from dataflow.workers.payload import Payload
from dataflow.workers.process import seed_globals

__all__ = ["CallSchedule", "FunctionCall"]

_LOG = logging.getLogger(__name__)
_POLL: Final = 0.1  # seconds that one wait may last, with the lock held
_ROOM: Final = 1 << 10  # bytes of a command that are reserved for the seed
_SMALL_BYTES: Final = 64 << 10  # smaller results are copied out of their shared memory
_MAX_MAPPED: Final = 64  # with more mapped results than this, further ones are copied out too


@dataclass(frozen=True)
class FunctionCall:
    """Description of one job: call a function with the handles of the arrays that it fills.

    Attributes:
        call: The function; its first arguments are the handles and the shapes.
        layout: Dtypes and shapes of the arrays.
        shapes: The shapes, as the user gave them.
    """

    call: Call
    layout: Layout
    shapes: Any

    def do(self, file: int) -> None:
        """Run the job, in the worker; the arrays lie in `file`."""
        parts = zip(self.layout.starts(), self.layout.dtypes, self.layout.shapes, strict=False)
        handles = [Handle(os.dup(file), start, dtype, math.prod(shape)) for start, dtype, shape in parts]
        self.call.target(handles, self.shapes, *self.call.args, **self.call.kwargs)


@dataclass
class Working:
    """What a worker can do: run the job that it was started with, and any job that it is sent."""

    payload: Payload

    def descriptors(self) -> tuple[Descriptor, ...]:
        return ()

    def close_in_parent(self) -> None:
        self.payload.close_in_parent()

    def open(self) -> Callable[[Command], None]:
        return self._work

    def _work(self, command: Command) -> None:
        words, reseed, sent = pickle.loads(command.data)
        # Derived from the number of the job, not of the process: which process runs it depends on timing.
        seed_globals(words)
        seed(derived(words) if reseed else None)
        task: FunctionCall = self.payload.load() if sent is None else loads(sent)
        self.payload = Payload(None)  # not needed again, and possibly large
        assert command.memory is not None, "every job has memory"
        try:
            task.do(command.memory.fd)
        finally:
            command.memory.close()


@dataclass
class IssuedCall:
    """A job that was given to a worker.

    Attributes:
        arrays: The arrays that it fills.
        pool: The one worker that runs it.
        made: Seconds that it took; None until it is done.
        error: Why it has failed; None otherwise.
    """

    arrays: list[NDArray[Any]]
    pool: CommandPool
    made: float | None = None
    error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether the job is done or has failed."""
        return self.made is not None or self.error is not None


class CallSchedule:
    """All jobs of one `SharedQ`.

    Args:
        profile: Sums up the times; knows the owner's name.
        num_expected: Number of jobs that the user means to have under way.
        reuse: Whether processes may be reused.
    """

    def __init__(self, profile: Profile, num_expected: int, reuse: bool) -> None:
        self._pid = os.getpid()
        self._profile = profile
        self._num_expected = num_expected
        self._reuse = reuse
        self._lock = threading.RLock()
        self._closing = False  # set before the lock is taken, so that a waiting thread releases it
        self._jobs: deque[IssuedCall] = deque()
        self._idle: list[CommandPool] = []  # workers without a job, longest idle first
        # Memory of jobs, done or not, as long as any array on it exists: each costs a descriptor.
        self._mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._mains: weakref.WeakKeyDictionary[CommandPool, ForkedMain] = (
            weakref.WeakKeyDictionary()
        )  # of forked workers
        self.num_started = 0  # processes that were started so far

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, task: FunctionCall, context: BaseContext, words: tuple[int, ...], *, reseed: bool) -> None:
        """Start a job at once.

        Args:
            task: The job.
            context: How a process is started.
            words: Seed of the job.
            reseed: Whether flows that are made in it are seeded too.
        """
        self._check_process()
        with signals_deferred(), self._lock:
            self._check()
            self._collect()
            file = shared_memory_file("dataflow-job", task.layout.nbytes)
            try:
                memory = shared_mapping(file, task.layout.nbytes)
                arrays = task.layout.views(memory)
                sent = self._sent(task, self._idle[-1]) if self._idle and self._reuse else None
                if sent is not None:
                    pool = self._idle.pop()
                else:
                    pool = CommandPool(self._profile.owner, context, [Working(Payload(task))], words, reseed=reseed)
                    self.num_started += 1
                    if context.get_start_method() == "fork":
                        self._mains[pool] = ForkedMain()
                try:
                    pool.command(0, pickle.dumps((words, reseed, sent)), file)
                except BaseException:
                    pool.close()
                    raise
                self._jobs.append(IssuedCall(arrays, pool))
                self._mapped.add(memory)
            finally:
                file.close()

    def take(self, timeout: float | None) -> list[NDArray[Any]]:
        """Return the arrays of the oldest job; see `SharedQ.get`."""
        self._check_process()
        self._warn_of_missing()
        began = time.monotonic()
        looked = False
        while True:
            with self._lock:
                self._check()
                if not self._jobs:
                    raise IndexError(f"{self._profile.owner} is empty: call startproc before get")
                self._collect()
                job = self._jobs[0]
                waited = time.monotonic() - began
                if job.is_over:
                    return self._hand_out(waited)
                if timeout is not None and looked and waited >= timeout:
                    raise late(self._profile.owner, timeout, job.pool.states())
                job.pool.wait(_POLL if timeout is None else min(_POLL, max(0.0, timeout - waited)))
                looked = True

    def close(self) -> None:
        """Stop all workers and drop all jobs. Idempotent; no-op in a forked child."""
        if os.getpid() != self._pid:
            return
        self._closing = True
        with signals_deferred(), self._lock:
            pools = [*self._idle, *(job.pool for job in self._jobs if not job.is_over)]
            self._idle.clear()
            self._jobs.clear()
            try:
                while pools:
                    pools.pop().close()
            finally:
                for pool in pools:  # the user interrupts: closing their lifelines ends them
                    pool.close()

    def _check_process(self) -> None:
        """Check the process before taking the lock, which a thread of the parent may have held at the fork."""
        if os.getpid() != self._pid:
            raise DataFlowTerminated(
                f"this {self._profile.owner} belongs to process {self._pid}, of which this process was forked; make "
                "one here"
            )

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closing:
            raise DataFlowTerminated(f"{self._profile.owner} was shut down, and its jobs with it")

    def _sent(self, task: FunctionCall, pool: CommandPool) -> bytes | None:
        """Return the job, pickled for a running worker; None if it needs a new one."""
        try:
            with refusing_handles():
                main: MainModule | None = self._mains.get(pool) or imported_main()
                return dumps(task, main=main, max_bytes=MAX_BYTES - _ROOM)
        except Exception:
            # Too large; or it holds queues, locks or open files, which only a process being started can receive.
            return None

    def _collect(self) -> None:
        """Find the jobs that are over; their workers are idle, or have ended."""
        for job in self._jobs:
            if not job.is_over:
                self._look(job)
        for pool in list(self._idle):
            pool.receive()
            if pool.verdicts:  # killed while it was idle: no job is lost
                self._idle.remove(pool)
                pool.close()
        while len(self._idle) > max(1, self._num_expected):
            self._idle.pop(0).close()

    def _look(self, job: IssuedCall) -> None:
        try:
            job.pool.receive()
            if job.pool.answers[0]:
                self._idle.append(job.pool)
                job.made = job.pool.answers[0].popleft()
            elif job.pool.verdicts:
                job.pool.close()
                job.error = job.pool.verdicts[0]
        except BaseException:  # an interrupt: the acknowledgement may be lost
            job.error = DataFlowTerminated("the wait for this job was interrupted, and its result is lost")
            job.pool.close()
            raise

    def _hand_out(self, waited: float) -> list[NDArray[Any]]:
        job = self._jobs.popleft()
        if job.error is not None:
            raise job.error
        assert job.made is not None, "a job that is over is done or has failed"
        began = time.perf_counter()
        arrays = job.arrays
        if sum(array.nbytes for array in arrays) < _SMALL_BYTES or len(self._mapped) - len(self._jobs) > _MAX_MAPPED:
            arrays = [array.copy() for array in arrays]
        self._profile.add("a worker", waited, time.perf_counter() - began, job.made)
        return arrays

    def _warn_of_missing(self) -> None:
        missing = self._num_expected - len(self._jobs) + 1
        if self._jobs and missing > 0:
            _LOG.warning(
                "%s: %d more jobs should have been started before get, so that %d are always under way; call startproc "
                "first",
                self._profile.owner,
                missing,
                self._num_expected,
            )
