"""`SharedQ`: a FIFO queue of arrays that background processes fill."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any, Self, SupportsIndex

from numpy.typing import NDArray

from dataflow.interrupts import signals_deferred
from dataflow.keywords import hinting
from dataflow.parameters import flag, function, keyword_arguments, positional_arguments, start_method, whole_number
from dataflow.seeding import current_root, fresh_root, root_seed
from dataflow.shared.arrays import SharedMem
from dataflow.shared.background import time_limit
from dataflow.shared.job_scheduler import CallSchedule, FunctionCall
from dataflow.shared.layout import Layout
from dataflow.shared.result_slots import Call
from dataflow.shared.timing import Profile, Statistics
from dataflow.shared.worker_pool import context_of

__all__ = ["SharedQ"]


class SharedQ(SharedMem):
    """Start jobs that fill arrays in the background, and take the arrays in the order in which the jobs were started.

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

    @hinting
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
            name, "n_proc", n_proc, 0, ": it is the number of jobs that should be under way; 0 asks for no warning"
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
        call = Call(target, positional_arguments(name, "target_args", target_args) or self.default_args, kwargs)
        task = FunctionCall(call, Layout.of("SharedQ.startproc", dtypes, shapes), shapes)
        root = current_root() if self._fixed_root is None else self._fixed_root
        self._num_jobs += 1
        self._scheduler.start(
            task,
            context_of(type(self).__name__, self._context),
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
            WorkerDied: The job's process was killed, crashed or exited; the message says how, and what to do.
            WorkerError: The target raised an exception that cannot be pickled. Any other arrives as its own type, with
                the process's traceback as its cause.
            TimeoutError: The job was not done after `timeout` seconds. It continues, and stays the oldest.
            DataFlowTerminated: The queue was shut down meanwhile.
        """
        return self._scheduler.take(time_limit(type(self).__name__, timeout))

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def _open(self) -> tuple[CallSchedule, weakref.finalize[Any, Any]]:
        scheduler = CallSchedule(self._profile, self.n_proc, self._reuse)
        return scheduler, weakref.finalize(self, _close_dropped, scheduler)


def _close_dropped(scheduler: CallSchedule) -> None:
    with signals_deferred(later=True):
        scheduler.close()
