"""`SharedQ`: a FIFO queue of arrays that background processes fill.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Final, Self, SupportsIndex

from numpy.typing import NDArray

from dataflow.compat.background import time_limit
from dataflow.compat.command_pool import MAX_COMMAND_BYTES, CommandPool
from dataflow.compat.layout import Layout
from dataflow.compat.shared_arrays import Handle, SharedMem, refusing_handles
from dataflow.compat.timing import Profile, Statistics
from dataflow.errors import DataFlowTerminated
from dataflow.protocol.parameters import (
    flag,
    function,
    keyword_arguments,
    positional_arguments,
    start_method,
    whole_number,
)
from dataflow.protocol.seeding import current_root, derived, fresh_root, root_seed, seed
from dataflow.protocol.state import close_dropped
from dataflow.system.descriptors import Descriptor, shared_mapping, shared_memory_file
from dataflow.system.interrupts import signals_deferred
from dataflow.system.pickling import ForkedMain, dumps, imported_main, loads
from dataflow.system.session import Session
from dataflow.system.worker_info import place_words
from dataflow.system.worker_process import Payload, context_of, seed_globals

__all__ = ["SharedQ"]

_LOG = logging.getLogger(__name__)
_POLL: Final = 0.1  # seconds that one wait may last, with the lock held
_RESERVED_BYTES: Final = 1 << 10  # of a command: for the seed
_SMALL_BYTES: Final = 64 << 10  # smaller results are copied out of their shared memory
_MAX_MAPPED: Final = 64  # with more mapped results than this, further ones are copied out too


class SharedQ(SharedMem):
    """Start jobs that fill arrays in the background, and get the arrays in the order in which the jobs were started.

    The target is called as ``target(mp_arrays, shapes, *target_args, **target_kwargs)`` in another process. There
    `SharedMem.shm2ndarray` makes an array of each handle in `mp_arrays`; `get` returns what was written into it. What
    the target returns is ignored.

    All started jobs run at the same time, each in a process of its own. A process that has finished its job gets the
    next one, if target and arguments can be pickled and are small (62 KiB); otherwise a new process is started. A
    reused process sees the global variables of a module as they were when the process was started: pass what changes
    as an argument, or use ``reuse=False``.

    In each job `random` and `numpy.random` start from a separate seed, which is derived from `seed` or from
    `dataflow.seed`, and from the number of the job. Without either seed the numbers differ from run to run.

    Args:
        n_proc: Number of jobs that should be under way after each `get`; with fewer, a warning is logged.
        default_target: Target of `startproc` calls that pass none.
        default_args: Its arguments, if `startproc` is called with none.
        default_kwargs: Its keyword arguments, if `startproc` is called with none.
        profile: Log the times of every result, at level INFO. See also `statistics`.
        seed: Root seed of this queue, instead of the one of `dataflow.seed`.
        context: Start method, or a multiprocessing context; None is ``multiprocessing.get_context()``.
        reuse: Reuse processes for further jobs. False starts one process for each job, as ELEKTRONN does.

    Example:
        >>> def load(mp_arrays, shapes, number):
        ...     SharedMem.shm2ndarray(mp_arrays[0], shapes[0])[:] = number
        >>> with SharedQ(n_proc=2) as queue:
        ...     for number in range(3):
        ...         queue.startproc([np.float32], [(2, 2)], load, (number,))
        ...     queue.get()[0].tolist()
        [[0.0, 0.0], [0.0, 0.0]]

    Source:
        ELEKTRONN and ELEKTRONN2, whose class of this name it replaces.
    """

    def __init__(
        self,
        n_proc: SupportsIndex = 0,
        default_target: Callable[..., Any] | None = None,
        default_args: Sequence[Any] = (),
        default_kwargs: Mapping[str, Any] | None = None,
        profile: bool = False,
        *,
        seed: int | None = None,
        context: BaseContext | str | None = None,
        reuse: bool = True,
    ) -> None:
        name = type(self).__name__
        self.n_proc = whole_number(
            name, "n_proc", n_proc, 0, ": it is the number of jobs that should be under way; 0 disables the warning"
        )
        self.default_target = None
        if default_target is not None:
            use = "is called as target(mp_arrays, shapes, *args), or None"
            self.default_target = function(name, "default_target", default_target, use)
        self.default_args = positional_arguments(name, "default_args", default_args)
        self.default_kwargs = keyword_arguments(name, "default_kwargs", default_kwargs)
        self._fixed_root = root_seed(self, seed)
        self._root = fresh_root()  # used if no seed is fixed
        self._context = start_method(name, context)
        self._reuse = flag(name, "reuse", reuse)
        self._profile = Profile(name, flag(name, "profile", profile))
        self._num_jobs = 0  # jobs started so far
        self._scheduler, self._finaliser = self._open()

    def startproc(
        self,
        dtypes: Sequence[Any],
        shapes: Sequence[Any],
        target: Callable[..., Any] | None = None,
        target_args: Sequence[Any] = (),
        target_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a job.

        Args:
            dtypes: The dtype of each array that the job fills.
            shapes: The shape of each; passed to the target unchanged.
            target: What to call; None takes the default.
            target_args: Arguments after handles and shapes; empty takes the default.
            target_kwargs: Keyword arguments; empty takes the default. All of them, ``data`` too, go to the target.

        Raises:
            TypeError: There is no target, or a dtype has no fixed size.
            ValueError: `dtypes` and `shapes` differ in length.
            NotPicklable: The start method is not fork, and the target or an argument cannot be sent.
        """
        target = self.default_target if target is None else target
        if not callable(target):
            raise TypeError("SharedQ.startproc: give a target, here or as default_target of the queue")
        name = "SharedQ.startproc"
        kwargs = keyword_arguments(name, "target_kwargs", target_kwargs) or dict(self.default_kwargs)
        args = positional_arguments(name, "target_args", target_args) or self.default_args
        task = _FunctionCall(target, args, kwargs, Layout.of(name, dtypes, shapes), shapes)
        root = current_root() if self._fixed_root is None else self._fixed_root
        self._num_jobs += 1
        self._scheduler.start(
            task,
            context_of(self._context),
            (self._root if root is None else root, self._num_jobs),
            reseed=root is not None,
        )

    def get(self, timeout: float | None = None) -> list[NDArray[Any]]:
        """Wait for the oldest job and return the list of its arrays, which the caller may keep.

        A failed job raises in its turn and is then removed; the jobs after it are not affected.

        Args:
            timeout: Seconds; None waits as long as the job's process is alive.

        Raises:
            IndexError: No job is left.
            WorkerDied: The job's process was killed, crashed or exited, perhaps just before it began the job; the
                message says how, and what to do.
            WorkerError: The target raised an exception that cannot be pickled. Any other arrives as its own type, with
                the process's traceback as its cause.
            TimeoutError: The job was not done after `timeout` seconds. It continues, and stays the oldest.
            DataFlowTerminated: The queue was shut down meanwhile.
        """
        return self._scheduler.receive(time_limit(type(self).__name__, timeout))

    def reset(self) -> None:
        """Stop all processes and drop all jobs; the queue is empty then, and can be used again."""
        with signals_deferred():
            old = self._scheduler
            self._finaliser.detach()
            self._scheduler, self._finaliser = self._open()
            old.close()

    shutdown = close = reset

    def statistics(self) -> Statistics:
        """Return the times so far."""
        return self._profile.statistics

    def __len__(self) -> int:
        return len(self._scheduler)

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _open(self) -> tuple[_JobScheduler, weakref.finalize[Any, Any]]:
        scheduler = _JobScheduler(self._profile, self.n_proc, self._reuse)
        return scheduler, weakref.finalize(self, close_dropped, scheduler)


@dataclass(frozen=True)
class _FunctionCall:
    """Description of one job: call a function with the handles of the arrays that it fills.

    Attributes:
        target: The function; its first arguments are the handles and the shapes.
        args: Its other arguments.
        kwargs: Its keyword arguments.
        layout: Dtypes and shapes of the arrays.
        shapes: The shapes, as the user gave them.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    layout: Layout
    shapes: Any

    def run(self, file: int) -> None:
        """Run the job, in the worker; the arrays are in `file`."""
        parts = zip(self.layout.starts(), self.layout.dtypes, self.layout.shapes, strict=False)
        handles = [Handle(os.dup(file), start, dtype, math.prod(shape)) for start, dtype, shape in parts]
        self.target(handles, self.shapes, *self.args, **self.kwargs)


@dataclass
class _JobRunner:
    """Skill of a worker: run the job that it was started with, and any job that it is sent."""

    payload: Payload
    files: tuple[Descriptor, ...] = ()

    def open(self) -> Callable[[bytes, Descriptor | None], None]:
        return self._run

    def _run(self, command: bytes, memory: Descriptor | None) -> None:
        words, reseed, sent = pickle.loads(command)
        # Derived from the number of the job, not of the process: which process runs it depends on timing.
        seed_globals(words)
        seed(derived(words) if reseed else None)
        task: _FunctionCall = self.payload.load() if sent is None else loads(sent)
        self.payload = Payload(None)  # not needed again, and possibly large
        assert memory is not None, "every job has memory"
        try:
            task.run(memory.fd)
        finally:
            memory.close()


@dataclass
class _Worker:
    """One process.

    Attributes:
        pool: The pool of this worker only.
        main: The main module that a forked worker has inherited; None under other start methods.
    """

    pool: CommandPool
    main: ForkedMain | None

    def dumps(self, task: _FunctionCall) -> bytes | None:
        """Return the job, pickled for the running worker; None if it needs a new one."""
        try:
            with refusing_handles():
                return dumps(task, main=self.main or imported_main(), max_bytes=MAX_COMMAND_BYTES - _RESERVED_BYTES)
        except Exception:
            # Too large; or it holds queues, locks or open files, which only a process being started can receive.
            return None


@dataclass
class _Job:
    """A job that was given to a worker.

    Attributes:
        arrays: The arrays that it fills.
        worker: The worker that runs it.
        made: Seconds that it took; None until it is done.
        error: Why it has failed; None otherwise.
    """

    arrays: list[NDArray[Any]]
    worker: _Worker
    made: float | None = None
    error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether the job is done or has failed."""
        return self.made is not None or self.error is not None


class _JobScheduler:
    """All jobs of one `SharedQ`, and the processes that run them.

    Args:
        profile: Sums up the times; knows the owner's name.
        num_expected: Number of jobs that the user means to have under way.
        reuse: Whether processes may be reused.
    """

    def __init__(self, profile: Profile, num_expected: int, reuse: bool) -> None:
        self._session = Session(
            profile.owner, begun="this", fork_cure="make one here", closed_text="was shut down, and its jobs with it"
        )
        self._profile = profile
        self._num_expected = num_expected
        self._reuse = reuse
        self._lock = threading.RLock()
        self._jobs: deque[_Job] = deque()
        self._idle: list[_Worker] = []  # workers without a job, longest idle first
        # Memory of jobs, done or not, as long as any array on it exists: each costs a descriptor.
        self._mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, task: _FunctionCall, context: BaseContext, words: tuple[int, ...], *, reseed: bool) -> None:
        """Start a job at once.

        Args:
            task: The job.
            context: How a process is started.
            words: Seed of the job.
            reseed: Whether flows that are made in it are seeded too.
        """
        self._session.check_process()
        with signals_deferred(), self._lock:
            self._session.check()
            self._update()
            file = shared_memory_file("dataflow-job", task.layout.nbytes)
            try:
                memory = shared_mapping(file, task.layout.nbytes)
                arrays = task.layout.views(memory)
                # The last to become idle: those that were idle for longest are the ones to be ended.
                sent = self._idle[-1].dumps(task) if self._idle and self._reuse else None
                if sent is not None:
                    worker = self._idle.pop()
                else:
                    skill = _JobRunner(Payload(task))
                    worker = _Worker(
                        CommandPool(self._profile.owner, context, [skill], (*words, *place_words()), reseed=reseed),
                        ForkedMain() if context.get_start_method() == "fork" else None,
                    )
                try:
                    worker.pool.send(0, pickle.dumps((words, reseed, sent)), file)
                except BaseException:
                    worker.pool.close()
                    raise
                self._jobs.append(_Job(arrays, worker))
                self._mapped.add(memory)
            finally:
                file.close()

    def receive(self, timeout: float | None) -> list[NDArray[Any]]:
        """Wait for the arrays of the oldest job; see `SharedQ.get`."""
        self._session.check_process()
        missing = self._num_expected - len(self._jobs) + 1
        if self._jobs and missing > 0:
            _LOG.warning(
                "%s: %d more jobs should have been started before get, so that %d are always under way; call startproc "
                "first",
                self._profile.owner,
                missing,
                self._num_expected,
            )
        began = time.monotonic()
        while True:
            with self._lock:
                self._session.check()
                if not self._jobs:
                    raise IndexError(f"{self._profile.owner} is empty: call startproc before get")
                self._update()
                job = self._jobs[0]
                waited = time.monotonic() - began
                if job.is_over:
                    return self._result_of(self._jobs.popleft(), waited)
                if timeout is not None and waited >= timeout:
                    raise job.worker.pool.late(timeout)
                job.worker.pool.wait(_POLL if timeout is None else min(_POLL, timeout - waited))

    def close(self) -> None:
        """Stop all workers and drop all jobs. Idempotent; no-op in a forked child."""
        if not self._session.is_own:
            return
        # Before the lock, as in `BackgroundProc`: a thread that waits in `receive` gives way.
        self._session.closed = True
        with signals_deferred(), self._lock:
            workers = [*self._idle, *(job.worker for job in self._jobs if not job.is_over)]
            self._idle.clear()
            self._jobs.clear()
            try:
                while workers:
                    workers.pop().pool.close()
            finally:
                for worker in workers:  # the user interrupts: closing their lifelines ends them
                    worker.pool.close()

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _update(self) -> None:
        """Find the jobs that are over; their workers are idle, or have ended."""
        for job in self._jobs:
            if not job.is_over:
                self._update_job(job)
        for worker in list(self._idle):
            worker.pool.receive_all()
            # Killed while it was idle. One whose end shows only after it was given a job has that job fail: it may have
            # begun it.
            if worker.pool.failures:
                with signals_deferred():  # a worker that is in no list would not be closed
                    self._idle.remove(worker)
                    worker.pool.close()
        while len(self._idle) > (max(1, self._num_expected) if self._reuse else 0):
            with signals_deferred():
                self._idle.pop(0).pool.close()

    def _update_job(self, job: _Job) -> None:
        pool = job.worker.pool
        try:
            pool.receive_all()
        except BaseException:  # an interrupt: the acknowledgement may be lost
            with signals_deferred():
                job.error = DataFlowTerminated("the wait for this job was interrupted, and its result is lost")
                pool.close()
            raise
        # Before the failures: the job of a worker that has died after its acknowledgement is done.
        if pool.acknowledged[0]:
            with signals_deferred():
                job.made = pool.acknowledged[0].popleft()
                self._idle.append(job.worker)
        elif pool.failures:
            with signals_deferred():
                job.error = pool.failures[0]
                pool.close()

    def _result_of(self, job: _Job, waited: float) -> list[NDArray[Any]]:
        if job.error is not None:
            raise job.error
        assert job.made is not None, "a job that is over is done or has failed"
        began = time.perf_counter()
        arrays = job.arrays
        if sum(array.nbytes for array in arrays) < _SMALL_BYTES or len(self._mapped) - len(self._jobs) > _MAX_MAPPED:
            arrays = [array.copy() for array in arrays]
        self._profile.add("a worker", waited, time.perf_counter() - began, job.made)
        return arrays
