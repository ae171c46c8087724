"""Jobs: what a worker runs. `Produce` runs a whole flow endlessly; the other jobs execute tasks from a task queue.

A task is a chunk of datapoints (`Apply`, `ApplyAndBatch`), a range of indexes (`Address`), or one whole pass
(`WholePasses`).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataflow.protocol.base import Blocks, DataFlow, close_flow, depth_above
from dataflow.protocol.datapoint import stack
from dataflow.protocol.failures import failure_reporter
from dataflow.protocol.kept import give, kept_by, require_found, restore, warn_of_changes
from dataflow.protocol.passes import check_length, known_length, open_flow, promise
from dataflow.protocol.seeding import Depth, Spread, Stream
from dataflow.protocol.state import RESET, Promise, state_of
from dataflow.runners.rebatching import stacks_evenly
from dataflow.system.worker_info import worker_info
from dataflow.transforms.grouping import MemoryWatch, NextGroup, ReusedMemory, may_reuse_memory
from dataflow.transport.batching_sender import BatchingSender, SenderFailed, Stopped
from dataflow.transport.messages import ConsumerGone, Kind
from dataflow.transport.task_queue import PAIRED, Task, TaskReader
from dataflow.transport.worker_counters import WorkerActivity

__all__ = ["Address", "Apply", "ApplyAndBatch", "Job", "PassTask", "Produce", "TaskInput", "WholePasses", "initialise"]


# -- Jobs without tasks ------------------------------------------------------------------------------------------------


class _Iterating:
    thread: object = None  # in a worker: the thread that iterates the flow in this process


@dataclass
class Job:
    """The job of one worker. Subclasses define the work.

    Attributes:
        flow: The flow that the worker iterates.
        stream: Its position in the chain of nodes.
        worker_init: The user's function that is called first, if any. It travels with the flow, so what the two share
            stays shared.
        promise: What the runner or map promises about the datapoints; None without `strict`.
        hands_on: Whether the consumer gets the datapoints themselves, while the worker makes others.
    """

    flow: DataFlow
    stream: Stream
    worker_init: Callable[[], object] | None = field(default=None, kw_only=True)
    promise: Promise | None = field(default=None, kw_only=True)
    hands_on: bool = field(default=False, kw_only=True)
    _watch: MemoryWatch | None = field(default=None, init=False)
    _length: int = field(default=0, init=False)  # of a pass, if there is a watch

    def run(self, sender: BatchingSender, task_reader: TaskReader | None) -> None:
        """Open the flow, then work; `task_reader` is where tasks come from."""
        if self.worker_init is not None:
            initialise(self.worker_init)
        state_of(self.flow).part(_Iterating).thread = threading.current_thread()  # first, since `close` asks for it
        open_flow(self.flow, self.stream)
        if self.promise is not None:
            promise(self.flow, self.promise)
        if self.hands_on and may_reuse_memory(self.flow):
            self._watch = MemoryWatch()
            self._length = known_length(self.flow, self.stream.begin) or sys.maxsize
        self.work(sender, task_reader)

    def work(self, sender: BatchingSender, task_reader: TaskReader | None) -> None:
        """Work until everything is done or the sender raises `Stopped`."""
        raise NotImplementedError

    def kept(self, datapoints: Iterator[Any], indexes: NDArray[np.int64] | None = None) -> Iterator[Any]:
        """The datapoints of a pass, or of these indexes; an error if later ones overwrite earlier ones."""
        watch = self._watch
        if watch is None:
            return datapoints
        if indexes is None or not len(indexes):
            return watch.over(datapoints, False, is_guarded=True)  # without a lock: only this thread steps them
        if watch.passes(len(indexes)):
            return datapoints
        in_pass = int(indexes[0]) // self._length
        return watch.over(datapoints, False, is_guarded=True, in_pass=in_pass, num=len(indexes))

    def close(self) -> None:
        """Close what the job has opened."""
        # A thread that was left behind and returns late must not close what its successor has opened. It may have the
        # same job.
        if state_of(self.flow).part(_Iterating).thread is threading.current_thread():
            close_flow(self.flow)


def initialise(worker_init: Callable[[], object]) -> None:
    """Call `worker_init`. An exception gets a note that names the function."""
    try:
        worker_init()
    except Exception as error:
        error.add_note(f"raised by worker_init: {getattr(worker_init, '__qualname__', None) or repr(worker_init)}")
        raise


@dataclass
class Produce(Job):
    """Runs pass after pass of a whole flow, endlessly, from pass `first`."""

    first: int

    def work(self, sender: BatchingSender, task_reader: TaskReader | None) -> None:
        p, watch = self.first, self._watch
        while True:
            if watch is not None:
                watch.begin_pass()
            look_at_first = None if watch is None else watch.look_at_first
            num = sender.put_all(self.flow._df_run_pass(p, self.stream), look_at_first=look_at_first)
            if not num:  # the flow has ended: every further pass would be empty too
                _warn_of_end(self.flow, p)
                break
            check_length(self.flow, num)
            p += 1
        sender.ended()


def _warn_of_end(flow: DataFlow, p: int) -> None:
    """Let the consumer log that this worker ends, while others may go on; it says itself if all have ended."""
    info, reporter = worker_info(), failure_reporter()
    if reporter is not None and info is not None and info.count > 1:
        reporter.report_warning(
            f"worker {info.index} of {info.count} makes no further datapoints, because pass {p} of "
            f"{type(flow).__name__} was empty there. With strict=True, the pass after an empty one is made, too"
        )


# -- Jobs that execute tasks -------------------------------------------------------------------------------------------


@dataclass
class _Tasks(Job):
    """Base class of the jobs that execute tasks."""

    def work(self, sender: BatchingSender, task_reader: TaskReader | None) -> None:
        """Execute tasks until the consumer wants no more."""
        assert task_reader is not None, "tasks come from a task queue"
        pace, counters = 0.0, sender.counters
        ended = time.perf_counter()
        while True:
            if not task_reader.may_take():
                counters.enter(WorkerActivity.NOTHING, ended)
                if not task_reader.wait_until_may_take():
                    break
                ended = time.perf_counter()
            # Read before the wait: as it issues the next task, the consumer clears this flag.
            state = WorkerActivity.BLOCKED if task_reader.is_full() else WorkerActivity.STARVED
            counters.enter(state, ended)
            task = task_reader.receive()
            if task is None:
                break
            began = time.perf_counter()
            counters.add_wait(state, began, began - ended)
            self._run_task(task, sender, task_reader, pace)
            ended = time.perf_counter()
            pace = (ended - began) / self.count(task)

    def count(self, task: Task) -> int:
        """Number of datapoints that the task asks for."""
        raise NotImplementedError

    def results(self, task: Task, task_reader: TaskReader) -> Iterator[Any]:
        """Results of the task, one per datapoint; `HOLE` for one that was dropped."""
        raise NotImplementedError

    def _run_task(self, task: Task, sender: BatchingSender, task_reader: TaskReader, pace: float) -> None:
        sender.begin_task(task.number, task.first, pace)
        try:
            self.put_results(task, sender, task_reader)
        except (Stopped, ConsumerGone, SenderFailed):  # they end the worker, and not only its task
            raise
        except (SystemExit, GeneratorExit):  # the worker exits and reports it
            raise
        except BaseException as error:  # includes asyncio.CancelledError
            sender.fail_task(error)

    def put_results(self, task: Task, sender: BatchingSender, task_reader: TaskReader) -> None:
        """Put the results of the task. An exception ends the task, after the results that were put before."""
        self.check_count(task, sender.put_all(sender.recorded(self.results(task, task_reader))))

    def check_count(self, task: Task, num: int) -> None:
        """Check that the task gave `num` results: the consumer would wait for more.

        Raises:
            RuntimeError: It asked for another number.
        """
        if num != self.count(task):
            raise RuntimeError(
                f"{type(self.flow).__name__} made {num} of {self.count(task)} datapoints in a worker, and no error: "
                "code below it may have raised StopIteration, which looks like an end. Raise another exception there"
            )


class TaskInput(DataFlow):
    """The input of a map's node in a worker: yields the datapoints of the current task, whatever index is asked for.

    Args:
        ds: The input that it replaces. Of it, the worker has the place of the node above in the chain.
        length: Datapoints per pass of it.
        begin: Where shards below begin a pass.
    """

    _df_indexed = True
    _df_depth = Depth()

    def __init__(self, ds: DataFlow, length: int | None, begin: int = 0) -> None:
        self.datapoints: Sequence[Any] = ()
        self.length = length
        self._df_depth = depth_above(ds)
        self._spread = ds._df_spread(begin)

    def _df_spread(self, begin: int) -> Spread:
        return self._spread

    def __len__(self) -> int:
        return super().__len__() if self.length is None else self.length

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        for _ in blocks:
            yield from self.datapoints


@dataclass
class Apply(_Tasks):
    """Applies a node with one datapoint in, one out, to the datapoints of each task.

    It is the same node that would run without workers, so there is only one definition of what it does.

    Attributes:
        task_input: The input of `flow`.
    """

    task_input: TaskInput

    def count(self, task: Task) -> int:
        return len(task.datapoints[task.start : task.stop])

    def results(self, task: Task, task_reader: TaskReader) -> Iterator[Any]:
        part = task.datapoints[task.start : task.stop]
        if task.first < PAIRED:
            first = task.first + task.start
            indexes = np.arange(first, first + len(part))
        else:
            indexes = np.array([index for index, _ in part], dtype=np.int64)
            part = [dp for _, dp in part]
        self.task_input.datapoints = part
        return self.kept(self.flow._df_at([indexes], self.stream), indexes)


@dataclass
class ApplyAndBatch(Apply):
    """Applies a node, and sends the results of a task as one batch where possible.

    That is the case if none was dropped and the batch can be split again: if a datapoint was dropped before, the
    consumer splits the batch to fill up another, so the batch must not change any type.
    """

    batch_size: int
    _memory: ReusedMemory = field(default_factory=ReusedMemory, init=False)

    def put_results(self, task: Task, sender: BatchingSender, task_reader: TaskReader) -> None:
        if task.first >= PAIRED:  # read by index
            super().put_results(task, sender, task_reader)
            return
        results = iter(sender.recorded(self.results(task, task_reader)))
        group = NextGroup(results, self._memory)
        made: list[Any] = []
        began = time.perf_counter()
        try:
            try:
                made = group.take(self.count(task))
                made.extend(results)  # none, but they have to be asked for their end
            finally:
                now = time.perf_counter()
                sender.counters.add_step(now, now - began)
        except BaseException:
            sender.put_all(made or group.left())  # what was made before the exception comes before it
            raise
        if len(made) != self.count(task):
            sender.put_all(made)
            self.check_count(task, len(made))
        elif len(made) == self.batch_size > 1 and stacks_evenly(made):
            sender.put_all(map(stack, (made,)), Kind.BATCH)  # no variable: its memory may be handed over
        else:
            sender.put_all(made)


@dataclass
class Address(_Tasks):
    """Runs index ranges of a whole flow; a task is a number of indexes, or the indexes themselves.

    Each task is one call of `_df_at`, and none of its state outlives the worker.
    """

    def count(self, task: Task) -> int:
        (task_range,) = task.datapoints
        num = len(task_range) if isinstance(task_range, np.ndarray) else int(task_range)
        return len(range(num)[task.start : task.stop])

    def results(self, task: Task, task_reader: TaskReader) -> Iterator[Any]:
        (task_range,) = task.datapoints
        indexes: NDArray[np.int64] = (
            task_range if isinstance(task_range, np.ndarray) else np.arange(task.first, task.first + int(task_range))
        )
        indexes = indexes[task.start : task.stop]
        return self.kept(self.flow._df_at([indexes], self.stream), indexes)


_OF_SUCCESSOR: Final = (
    "but the worker that made the passes before has died, or was interrupted. Use max_restarts with flows whose passes "
    "are independent"
)


class PassTask(NamedTuple):
    """A task of `WholePasses`: how the next pass begins."""

    num_before: int  # passes that were begun before it
    standalone: str  # why it must not depend on them (`Stream.standalone`)
    kept: list[dict[str, Any] | None]  # what users' nodes keep as it begins (`kept_by`); None for one that has it
    is_due: bool  # the worker does not have that, although it has made passes
    has_left: bool  # the pass before was left early
    repeated: bool = False  # `Stream.repeated`


@dataclass
class WholePasses(_Tasks):
    """Runs passes of a flow without random access, one at a time; a task is a `PassTask`."""

    _num_begun: int = field(default=0, init=False)
    _must_find_all: bool = field(default=False, init=False)  # of what nodes keep: others have made passes before

    def count(self, task: Task) -> int:
        return 1

    def results(self, task: Task, task_reader: TaskReader) -> Iterator[Any]:
        pass_task: PassTask
        (pass_task,) = task.datapoints
        standalone = pass_task.standalone
        if self._num_begun != pass_task.num_before:
            standalone = standalone or _OF_SUCCESSOR
        if self._num_begun and pass_task.has_left:
            warn_of_changes(self.flow, pass_task.kept)
        if pass_task.is_due or pass_task.has_left or not self._num_begun:
            give(self.flow, pass_task.kept)
        self._num_begun += 1
        open_flow(self.flow, self.stream)  # a thread of this process may have to reset it again
        was_reset = any(kept is not None and RESET in kept for kept in pass_task.kept)
        self._must_find_all = bool(standalone) or was_reset
        restore(self.flow)
        stream = replace(self.stream, standalone=standalone, repeated=pass_task.repeated)
        datapoints = self.kept(self.flow._df_run_pass(task.first, stream))
        left = task.stop
        # Asked before each step, since only this ends the work on a pass that was abandoned.
        while left and task_reader.is_wanted():
            try:
                yield next(datapoints)  # no variable: the receiver may reuse its memory
            except StopIteration:
                break
            left -= 1

    def put_results(self, task: Task, sender: BatchingSender, task_reader: TaskReader) -> None:
        sender.put_all(sender.recorded(self.results(task, task_reader)))
        if self._must_find_all:
            require_found(self.flow)
        kept = kept_by(self.flow)
        sender.end_pass([json.dumps(kept).encode()] if any(kept) else [])  # ignored if the pass is no longer wanted
