"""`BackgroundProc`: background processes that call one function repeatedly and store its arrays in shared memory."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any, ClassVar, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import DataFlowTerminated
from dataflow.interrupts import signals_deferred
from dataflow.keywords import hinting
from dataflow.parameters import (
    flag,
    keyword_arguments,
    positional_arguments,
    seconds,
    start_method,
    whole_number,
)
from dataflow.seeding import current_root, fresh_root, root_seed
from dataflow.shared.arrays import SharedMem
from dataflow.shared.layout import Layout, as_array, components_of, store
from dataflow.shared.result_slots import Call, ResultSlots
from dataflow.shared.timing import Profile, Statistics
from dataflow.shared.worker_pool import context_of

__all__ = ["BackgroundProc", "checked_arguments", "time_limit"]


class BackgroundProc(SharedMem):
    """Call a function repeatedly in background processes; `get` returns its next result, computed in advance.

    Every result consists of arrays of the same shapes and dtypes, agreed once; numbers of another dtype are converted
    as by ``array[...] = result``, but a value that does not fit is an error. Each process has two result slots in
    shared memory: it computes one result ahead (two where `get` returns views), then blocks, using no CPU, until
    `get` has taken it.

    In each process `random` and `numpy.random` start from a separate seed, which is derived from `seed` or from
    `dataflow.seed`: processes draw different numbers, and with ``ordered=True`` every run gives the same results.
    Without either seed the numbers differ from run to run.

    ELEKTRONN 1's order of arguments, ``BackgroundProc(dtypes, shapes, target, ...)``, is accepted too.

    Args:
        target: What the processes call: a function or a method. It returns one array, or a list or tuple of arrays.
            Under fork it is inherited, with all the data that it refers to, without a copy.
        dtypes: The dtype of each array. Without it the target is called once, in this process, to find out.
        shapes: The shape of each array; likewise.
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

    @hinting
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
        _check_target(self.owner, target)
        self.n_proc = _checked_n_proc(self.owner, n_proc)
        self._fixed_root = root_seed(self, seed)
        self._root = fresh_root()  # used if no seed is fixed
        args = positional_arguments(self.owner, "target_args", target_args)
        self._call = Call(target, args, keyword_arguments(self.owner, "target_kwargs", target_kwargs))
        self._context = start_method(self.owner, context)
        self._ordered = flag(self.owner, "ordered", ordered)
        self._copy = flag(self.owner, "copy", copy)
        self._profile = Profile(self.owner, flag(self.owner, "profile", profile))
        self._layout = _agreed(self.owner, self._call, dtypes, shapes)
        self._sets = 0  # sets of workers started so far: each set draws different numbers
        self._result_slots: ResultSlots | None = None  # None after shutdown, and with n_proc=0
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
        result_slots = self._result_slots
        if result_slots is None:
            raise DataFlowTerminated(f"{self.owner} was shut down. Call {self.restart} to restart it")
        try:
            return result_slots.take(limit)
        except BaseException:
            if result_slots.failed and self._finaliser is not None:
                # The failure holds the frames it passed through, this object among them; the result slots are closed.
                self._finaliser.detach()
            raise

    def reset(self) -> None:
        """Stop the processes and start new ones. Results that were not taken are lost; the random numbers continue."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def _start(self) -> None:
        if self.n_proc:
            root = current_root() if self._fixed_root is None else self._fixed_root
            self._sets += 1
            with signals_deferred():
                self._result_slots = ResultSlots(
                    self._profile,
                    context_of(self.owner, self._context),
                    self._call,
                    self._layout,
                    self.n_proc,
                    (self._root if root is None else root, self._sets),
                    reseed=root is not None,
                    ordered=self._ordered,
                    copy=self._copy,
                    restart=self.restart,
                )
                self._finaliser = weakref.finalize(self, _close_dropped, self._result_slots)
        self._is_shut_down = False

    def _in_place(self) -> tuple[NDArray[Any], ...]:
        result = tuple(np.empty(shape, dtype) for dtype, shape in zip(self.dtypes, self.shapes, strict=True))
        began = time.perf_counter()
        store(result, self._call())
        made = time.perf_counter() - began
        self._profile.add("get itself", made, 0.0, made)
        return result


def _close_dropped(result_slots: ResultSlots) -> None:
    with signals_deferred(later=True):
        result_slots.close()


def _agreed(owner: str, call: Callable[[], Any], dtypes: Any, shapes: Any) -> Layout:
    """Return the user's layout, completed by a trial call."""
    if dtypes is None or shapes is None:
        parts = [as_array(part, position) for position, part in enumerate(components_of(call()))]
        dtypes = [part.dtype for part in parts] if dtypes is None else dtypes
        shapes = [part.shape for part in parts] if shapes is None else shapes
    return Layout.of(owner, dtypes, shapes)


def checked_arguments(
    owner: str, target: Any, n_proc: Any, target_args: Any, target_kwargs: Any, context: Any, ordered: Any
) -> None:
    """Check what `BackgroundProc` would be given later, when workers start.

    Raises:
        TypeError: Something is of a wrong type.
        ValueError: A number is too small, or there is no such start method.
    """
    _check_target(owner, target)
    _checked_n_proc(owner, n_proc)
    positional_arguments(owner, "target_args", target_args)
    keyword_arguments(owner, "target_kwargs", target_kwargs)
    start_method(owner, context)
    flag(owner, "ordered", ordered)


def _check_target(owner: str, target: Any) -> None:
    if not callable(target):
        raise TypeError(f"{owner}: target is a function that returns arrays, got {type(target).__name__}")


def _checked_n_proc(owner: str, n_proc: Any) -> int:
    cure = ". Give the number of processes, for example n_proc=4"
    return whole_number(owner, "n_proc", n_proc, 0, cure, alternatives=" (call the target in the consumer)")


def time_limit(owner: str, timeout: float | None) -> float | None:
    """A time limit; None where there is none.

    Raises:
        TypeError: It is no number.
        ValueError: It is negative.
    """
    if timeout is None or timeout is False:
        return None
    return seconds(owner, "timeout", timeout, or_zero=True, cure="; None waits as long as the processes are alive")
