"""Runners: nodes that run a whole flow in each of N workers and yield the datapoints that they make.

`Runner` holds what all runners share. A public class is its parameters, a backend, and a docstring that defines what a
pass is.
"""

from __future__ import annotations

import logging
import operator
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from typing import Any, Final, SupportsIndex, Unpack

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import NotAddressable, TimeoutError
from dataflow.protocol.base import Blocks, DataFlow, T_co, require_flow
from dataflow.protocol.kept import own_nodes, parts_of_workers, reading_ahead
from dataflow.protocol.parameters import whole_number
from dataflow.protocol.passes import copy_chain, known_length, open_flow, promise, until_closed, walk
from dataflow.protocol.pauses import Pause, limit, paused, pausing, resumed
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import Taken, state_of
from dataflow.runners.backends import Backend, Links, ProcessBackend, Tasks, ThreadBackend
from dataflow.runners.engine import Engine
from dataflow.runners.jobs import Address, Job, Produce, WholePasses
from dataflow.runners.options import NumWorkers, ProcessKeywords, WorkerKeywords, WorkerOptions, takes
from dataflow.runners.schedules import IndexRanges, MixedSchedule, OnePass, Schedule
from dataflow.runners.worker_node import UNBOUNDED, WorkerNode, is_consecutive
from dataflow.transport.flow_control import Window

__all__ = ["MultiProcessRunner", "MultiProcessRunnerZMQ", "MultiThreadRunner", "Runner", "window_of"]


# -- Base class of the runners -----------------------------------------------------------------------------------------


_LOG = logging.getLogger(__name__)
_DEFAULT_COUNT: Final = 50
_DEFAULT_BYTES: Final = 256 << 10
_STEP_SECONDS: Final = 0.2
_LONGEST_STEP: Final = 128


class Runner(WorkerNode[T_co]):
    """Base class of the runners: N workers, each of which runs a whole flow.

    Args:
        flows: The flow of each worker; the first is the input that other nodes see.
        options: The user's options.
        backend: What a worker is, and how its datapoints come.
        window: How far a worker may run ahead.
        max_ahead: With `strict`, how many datapoints of each worker may be under way; None for as many as keep it busy.

    Raises:
        NotAddressable: Several workers would have to share each pass, but a flow cannot be addressed.
    """

    _df_remote_inputs = True
    _df_has_told = False  # that what nodes keep in the workers begins anew
    _df_run_settings = WorkerNode._df_run_settings | {"_flows", "_max_ahead", "_window"}

    def __init__(
        self,
        flows: Sequence[DataFlow],
        options: WorkerOptions,
        backend: Backend,
        window: Window,
        max_ahead: int | None = None,
    ) -> None:
        require_flow(flows[0], options.owner)
        broken = next((node for ds in flows if (node := ds._df_unaddressable()) is not None), None)
        if options.auto and options.strict and broken is not None:
            options = replace(options, num_workers=1)
            _LOG.info(
                '%s with strict=True and num_workers="auto" has one worker, because %s cannot be addressed: several '
                "could not share a pass. A parallel map could: move the work after it into MultiProcessMapData",
                options.owner,
                type(broken).__name__,
            )
        elif options.auto and options.strict and backend.adds_workers:
            options = options.adapting(backend.memory(options))
        if options.item_timeout is not None and not options.strict:
            raise ValueError(
                f"{options.owner}: item_timeout={options.item_timeout:g} needs strict=True, with which it is known "
                "what a worker that was killed was making. timeout= limits the time that the consumer waits"
            )
        super().__init__(flows[0], options, backend)
        self._flows = flows
        self._window = window
        self._max_ahead = max_ahead
        self._require_addressable(broken)
        seeding = next(
            (node for ds in flows for node in walk(ds) if getattr(node, "seed_globals", False) is True), None
        )
        if seeding is not None and options.num_workers and not backend.own_process:
            raise ValueError(
                f"{options.owner}: {type(seeding).__name__}(…, seed_globals=True) seeds generators that its threads "
                "share with each other and with this one. Use processes (ParallelData), or RandomMapData"
            )

    def _require_addressable(self, broken: DataFlow | None) -> None:
        options = self.options
        if options.strict and options.num_workers > 1 and broken is not None:
            raise NotAddressable(
                f"{options.owner} with strict=True and {options.num_workers} workers shares each pass by index, and "
                f"{type(broken).__name__} cannot be addressed. Use one worker, or leave this flow in one process and "
                f"move the work after it into workers: MultiProcessMapData(ds, {options.num_workers}, func, "
                "strict=True)"
            )

    @property
    def _df_by_index(self) -> bool:
        """Whether the workers are asked for indexes."""
        return self.strict and all(ds._df_addressable for ds in self._df_inputs)

    def _df_jobs(self, stream: Stream) -> Sequence[Job]:
        flows = self._flows_of_workers()
        self._require_addressable(self.ds._df_unaddressable())  # the user may have changed it
        if self.strict:
            kind = Address if self._df_by_index else WholePasses
            return [kind(ds, stream) for ds in flows]
        begun = state_of(self).begun
        return [Produce(ds, stream.turn(self._df_depth.level, k), begun) for k, ds in enumerate(flows)]

    def _df_begin_anew(self, change: str) -> str:
        continuing = None if self._df_by_index else self.ds._df_continuing()
        if continuing is not None:
            raise self._df_not_continued(continuing, change)
        if self.strict or self._df_has_told:
            return ""
        names = {type(node).__name__: None for node in own_nodes(self.ds)}
        self._df_has_told = bool(names)
        return f". What {', '.join(names)} keeps from pass to pass begins anew there" if names else ""

    def _flows_of_workers(self) -> Sequence[DataFlow]:
        if len(self._flows) > 1:
            if self.ds is not self._flows[0]:
                raise ValueError(
                    f"{self.options.owner}: ds was assigned, but its threads iterate the flows that get_df has made. "
                    f"Make another {self.options.owner}"
                )
            return self._flows
        if self._df_backend.own_process or not self._df_is_copied:
            return [self.ds] * self.num_workers
        # Threads share the memory of this process: two of them cannot iterate the same nodes.
        return [copy_chain(self.ds)[id(self.ds)] for _ in range(self.num_workers)]

    def _df_nodes_of_workers(self) -> Iterable[DataFlow]:
        return (node for ds in (self.ds, *self._flows[1:]) for node in walk(ds, everywhere=True))

    @property
    def _df_is_copied(self) -> bool:
        return self._df_backend.own_process or len(self._flows) < self.num_workers

    def _df_tasks(self) -> Tasks:
        return Tasks.INDEXES if self.strict else Tasks.NONE

    def _df_window(self) -> Window:
        return UNBOUNDED if self._df_by_index else self._window

    def _df_schedule(self, links: Links, stream: Stream) -> Schedule:
        if links.task_queue is None:
            return MixedSchedule()
        if not self._df_by_index:
            return OnePass(links.task_queue, state_of(self).continued.note(stream, count))
        return IndexRanges(
            links.task_queue,
            self.num_workers,
            self._max_ahead,
            longest=links.longest_task,
            grain=self.ds._df_grain,
            ordered=self.ordered,
            least=self.ds._df_least_task,
            bytes_per_worker=links.bytes_ahead,
            length=None if self.ds._df_endless else self.ds._df_num_from(stream.begin),
        )

    # -- node protocol -------------------------------------------------------------------------------------------------

    @property
    def _df_inputs(self) -> Sequence[DataFlow]:
        return super()._df_inputs if len(self._flows) == 1 else self._flows

    @property
    def _df_endless(self) -> bool:
        return self.ds._df_endless if self.strict else known_length(self) is None

    def _df_warn_of_default(self) -> None:
        name, length = type(self).__name__, known_length(self)
        if length is None:
            _LOG.info(
                "%s over %s, which has no length: its passes never end. Pass strict=True for passes that end with "
                "those of its input, leave the loop with break, or give the input a length with FixedSizeData",
                name,
                type(self.ds).__name__,
            )
        if self.num_workers > 1:
            _LOG.warning(
                "%s with %d workers and strict=False (the default): each worker repeats the whole flow, and a pass is "
                "%s the mixture, so datapoints may repeat and be missing within a pass. That is good enough for "
                "training; pass strict=True for passes that have every datapoint once, in order",
                name,
                self.num_workers,
                "all of" if length is None else f"the next {length} datapoints of",
            )

    @property
    def _df_may_have_dropped(self) -> bool:
        return self.num_workers > 0 and self.options.max_failures is not None  # a batch that failed, for one

    @property
    def _df_joins(self) -> bool:
        return self.num_workers > 1 and not self.strict

    @property
    def _df_takes(self) -> int | None:  # type: ignore[override]
        return 1 if self.strict else None

    @property
    def _df_reproducible(self) -> bool:
        return self.ordered if self.strict and self.num_workers > 1 else super()._df_reproducible

    @property
    def _df_least_task(self) -> int:
        below = self.ds._df_least_task
        return below if below == 1 else below * max(1, self.num_workers)

    def _df_at_in_consumer(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        open_flow(self.ds, stream)
        promise(self.ds, self._df_promised())
        return self.ds._df_at(blocks, stream)

    def _df_steps_of_block(
        self, engine: Engine[Any], block: NDArray[np.int64], following: Iterator[NDArray[np.int64]], stream: Stream
    ) -> Iterator[Any] | None:
        picked = None if is_consecutive(block) else block
        first = int(block[0]) if picked is None else 0
        begin = partial(engine.schedule.begin_pass, first, len(block), picked, holes=True)
        generation = engine.begin_pass_if_free(begin)
        return None if generation is None else self._pass_of(engine, generation, self)

    def _pass_of(
        self, engine: Engine[Any], generation: object, held: object, taken: Taken | None = None
    ) -> Iterator[Any]:
        chunks = iter(partial(engine.chunk, generation, self.options.timeout), None)
        return self._df_steps_of_pass(chunks, engine, generation, held, taken)

    def _df_mixed_pass(self, stream: Stream) -> Iterator[Any]:
        length = known_length(self)
        if self.num_workers == 0:
            waits = self._df_waits
            return until_closed(_first_of(self._df_passes_here(self.ds, stream), length, waits), self)
        engine = self._df_engine_at(stream)
        state_of(self).begun += 1
        return pausing(self._datapoints(engine, engine.take_over(), length), self._df_waits)

    def _df_strict_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self.num_workers == 0:
            return until_closed(self._df_reported_here(partial(self.ds._df_run_pass, p, stream))(), self)
        state_of(self).continued.require_same_weights(stream, self)
        engine = self._df_engine_at(stream)
        engine.tolerance.begin_pass()
        begin = engine.schedule.begin_pass
        if not self._df_by_index:
            below, taken = reading_ahead(self, stream, self.options.owner)
            nodes = parts_of_workers(self, self.ds, taken, are_copies=self._df_is_copied)
            left, repeated = taken.follows_left, below.repeated
            begin = partial(begin, p, below.standalone, nodes, has_left=left, repeated=repeated)
            generation = engine.begin_pass(begin)
            return self._pass_of(engine, generation, None if self.ds._df_endless else self, taken)
        if self.ds._df_endless:
            generation = engine.begin_pass(partial(begin, 0, None))
        else:
            length = self.ds._df_num_from(stream.begin)
            generation = engine.begin_pass(partial(begin, p * length, length))
        return self._pass_of(engine, generation, None if self.ds._df_endless else self)

    def _datapoints(self, engine: Engine[Any], generation: object, length: int | None) -> Iterator[Any]:
        """Yield the datapoints of one pass. A generator, so that several threads may step it, as in a strict pass."""
        left = sys.maxsize if length is None else length
        step = 1  # datapoints between two checks of the engine, which looks at the workers: about `_STEP_SECONDS`
        timeout, waits = self.options.timeout, self._df_waits
        pause: Pause | None = None
        try:
            while left:
                try:
                    chunk = engine.chunk(generation, timeout)
                except TimeoutError as error:
                    pause = paused(error, waits and not engine.session.failed)
                if pause is not None:
                    yield pause  # outside of `except`, which would keep the error and its frames until the next step
                    pause = None
                    continue
                if chunk is None:
                    _LOG.warning("%s has ended: in every worker, a pass of its flow was empty", type(self).__name__)
                    return
                # The last one has a step of its own: if it was taken away meanwhile, `left` stays 1, and the next call
                # of `engine.chunk` raises why. Otherwise the pass would end as if it were complete.
                if left == 1:
                    last = list(islice(chunk, 1))
                    if last:
                        left = 0
                        yield last.pop()  # not kept here: the consumer may drop it at once
                    continue
                # What is left of the chunk may be taken away in the middle: by a later iteration, by `close`, or as the
                # program forks. Then a datapoint is left of the pass, and the next call of `engine.chunk` raises why.
                here = min(left - 1, step, operator.length_hint(chunk))
                left -= here
                began = time.monotonic()
                yield from islice(chunk, here)
                took = time.monotonic() - began
                if took > _STEP_SECONDS:
                    step = max(1, int(here * _STEP_SECONDS / took))
                elif here == step:
                    step = min(2 * step, _LONGEST_STEP)
            engine.end_pass(generation)
        finally:
            if engine.session.failed:  # no call: it may be dropped after a break, or as the interpreter ends
                state_of(self).settle()


def _first_of(datapoints: Iterator[Any], num: int | None, waits: bool) -> Iterator[Any]:
    """The first `num` datapoints. A generator: `islice` counts as ended once one of several threads lost a step."""
    yield from resumed(limit(datapoints, waits, num), waits)


def window_of(given: SupportsIndex | None, owner: object, name: str) -> Window:
    """How far a worker may run ahead, from the user's argument: `h` datapoints, or by default 50 or 256 KiB.

    At most `2 * h + 2` datapoints may be made and not yet handed out. These are the window, the message being handed
    out (half a window), and the datapoint that the worker is making: so the window is a third more than `h`.
    """
    if given is None:
        return Window(_and_a_third(_DEFAULT_COUNT), _and_a_third(_DEFAULT_BYTES))
    h = whole_number(owner, name, given, 0, ": it is a number of datapoints, or None for a default")
    return Window(_and_a_third(max(1, h)))


def _and_a_third(amount: int) -> int:
    return amount + amount // 3


# -- Public classes ----------------------------------------------------------------------------------------------------


class MultiProcessRunnerZMQ(Runner[T_co]):
    """Run a flow in `num_proc` processes, which send their datapoints over ZeroMQ.

    Every worker repeats the whole of `ds`, endlessly and independently, each with random numbers of its own; the
    consumer receives the mixture. A pass is ``len(ds)`` datapoints of it, and never ends if `ds` has no length. With
    ``num_proc=1`` it is `ds`'s own data in its own order. When a loop is left with `break`, the workers keep running;
    the datapoints that they have made ahead belong to the next pass.

    With ``strict=True`` the workers share each pass by index instead: it is exactly the datapoints of that pass of
    `ds`, in order, with the random numbers of `ds` itself, for any number of workers; and passes end. When a pass is
    abandoned, the datapoints under way are discarded. This requires a flow that can be addressed (``ds.addressable``),
    or one worker. If a pass of `ds` continues where the last one stopped, the pass after an abandoned one raises
    `NotReproducible`: cut the passes above the runner, with `FixedSizeData`.

    Runners may be nested in every combination: the number of leaf workers is the product.

    Args:
        ds: The flow. It is reset once inside every worker, and not in this process.
        num_proc: Processes; None for one. "auto" stands for one for each core; with `strict`, for as many as pay. 0
            runs the flow in the consumer, for a debugger. With `strict`, only as many as pay get work. Otherwise, more
            than two for each core take turns while they compute, half a second each.
        hwm: How far each worker runs ahead: at most ``2 * hwm + 2`` of its datapoints are made and not yet handed out.
            None means 50, or as many as make up 256 KiB if that is more.
        num_workers: The same as `num_proc`, under the name that all runners and maps know.
        options: `strict`, `ordered`, `timeout`, `max_restarts`, `max_failures`, `worker_init`, `context`, `max_bytes`
            and `thread_limit`: see `WorkerOptions`.

    Raises:
        WorkerDied: A worker was killed, crashed or exited; the message says which, how, and what to do.
        WorkerError: A worker raised an exception that cannot be pickled. Any other arrives as its own type, with the
            worker's traceback as its cause, after all datapoints that the worker had made before.
        TimeoutError: No datapoint came for `timeout` seconds.
        NotPicklable: The start method is not fork, and a node cannot be sent; the message names the node and the
            attribute.
        NotReentrant: A later iteration of the same runner took over.
        NotAddressable: With `strict`, several workers would have to share the passes of a flow that cannot be
            addressed.
        TooManyFailures: `max_failures` is used up; the last error is the cause.

    Example:
        >>> df = MapData(DataFromList([[k] for k in range(4)], shuffle=False), lambda dp: [dp[0] ** 2])
        >>> with MultiProcessRunnerZMQ(df, num_proc=1) as runner:
        ...     list(runner), list(runner)
        ([[0], [1], [4], [9]], [[0], [1], [4], [9]])
        >>> with MultiProcessRunnerZMQ(df, num_proc=3, strict=True) as runner:
        ...     list(runner), list(runner)
        ([[0], [1], [4], [9]], [[0], [1], [4], [9]])

    Source:
        tensorpack.dataflow, whose class of this name it replaces.
    """

    @takes(ProcessKeywords)
    def __init__(
        self,
        ds: DataFlow[T_co],
        num_proc: NumWorkers | None = None,
        hwm: int | None = None,
        *,
        num_workers: NumWorkers | None = None,
        **options: Unpack[ProcessKeywords],
    ) -> None:
        window = window_of(hwm, self, "hwm")
        checked = WorkerOptions.of(self, num_workers, options, ("num_proc", num_proc), default=1)
        super().__init__([ds], checked, ProcessBackend(), window, _ahead(window))


class MultiProcessRunner(Runner[T_co]):
    """Run a flow in `num_proc` processes, each of which has a pipe to the consumer.

    It behaves like `MultiProcessRunnerZMQ`, raises the same errors, and needs no socket.

    Args:
        ds: The flow. It is reset once inside every worker, and not in this process.
        num_prefetch: Datapoints that each worker may have sent and the consumer has not yet handed out; at most
            ``2 * num_prefetch + 2`` are computed ahead for each worker.
        num_proc: Processes. "auto" stands for one for each core; with `strict`, for as many as pay. 0 runs the flow in
            the consumer, for a debugger.
        num_workers: The same as `num_proc`, under the name that all runners and maps know.
        options: Those of `MultiProcessRunnerZMQ`: see `WorkerOptions`.

    Example:
        >>> df = DataFromList([[k] for k in range(4)], shuffle=False)
        >>> with MultiProcessRunner(df, num_prefetch=10, num_proc=1) as runner:
        ...     list(runner)
        [[0], [1], [2], [3]]
    """

    @takes(ProcessKeywords)
    def __init__(
        self,
        ds: DataFlow[T_co],
        num_prefetch: int,
        num_proc: NumWorkers | None = None,
        *,
        num_workers: NumWorkers | None = None,
        **options: Unpack[ProcessKeywords],
    ) -> None:
        window = window_of(num_prefetch, self, "num_prefetch")
        checked = WorkerOptions.of(self, num_workers, options, ("num_proc", num_proc))
        super().__init__([ds], checked, ProcessBackend(over_zmq=False), window, _ahead(window))


class MultiThreadRunner(Runner[T_co]):
    """Run `num_thread` flows in threads, for work that releases the interpreter's lock: reading, decoding, numpy.

    Every thread repeats its own flow endlessly; the consumer receives the mixture. A pass has the length of one flow.
    Datapoints are passed on without copying or pickling, so a flow must not change a datapoint that it has yielded.

    With ``strict=True`` a pass is exactly one of these flows, which `get_df` makes equal.

    A thread cannot be killed. One that does not return when the runner is closed is left behind and named in the log.

    Args:
        get_df: Makes a flow; called once for each thread, here. The flow is reset inside its thread.
        num_prefetch: Datapoints that each thread may have made and the consumer has not yet handed out; at most
            ``2 * num_prefetch + 2`` are computed ahead for each thread.
        num_thread: Threads; "auto" for one for each core. 0 runs one flow in the consumer.
        num_workers: The same as `num_thread`, under the name that all runners and maps know.
        options: `strict`, `ordered`, `timeout`, `max_restarts` (of threads that call `sys.exit`), `max_failures` and
            `worker_init`: see `WorkerOptions`.

    Raises:
        TypeError: `get_df` is a flow instead of a function that makes one.
        ValueError: `get_df` returned the same flow twice.

    Example:
        >>> with MultiThreadRunner(lambda: DataFromList([[1], [2]], shuffle=False), 10, num_thread=1) as runner:
        ...     list(runner)
        [[1], [2]]
    """

    @takes(WorkerKeywords)
    def __init__(
        self,
        get_df: Callable[[], DataFlow[T_co]],
        num_prefetch: int,
        num_thread: NumWorkers | None = None,
        *,
        num_workers: NumWorkers | None = None,
        **options: Unpack[WorkerKeywords],
    ) -> None:
        if isinstance(get_df, DataFlow) or not callable(get_df):
            raise TypeError(
                f"MultiThreadRunner calls get_df once for each thread to make a flow, got {type(get_df).__name__}: "
                "pass a function, for example lambda: MapData(...)"
            )
        checked = WorkerOptions.of(self, num_workers, options, ("num_thread", num_thread))
        flows = [require_flow(get_df(), "get_df", "what it returns") for _ in range(max(1, checked.num_workers))]
        if len({id(ds) for ds in flows}) < len(flows):
            raise ValueError("get_df gave the same flow twice; threads need one each. Make the flow inside get_df")
        count = window_of(num_prefetch, self, "num_prefetch").count  # objects have no size in bytes
        super().__init__(flows, checked, ThreadBackend(adds_workers=False), Window(count), count)


def _ahead(window: Window) -> int | None:
    """How many datapoints of each worker of a strict runner may be under way; None unless the user has said it."""
    return None if window.nbytes else window.count
