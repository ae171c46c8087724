"""What a worker does: a whole flow, for ever. Jobs that take tasks are in `tasking`.

What a worker does that takes tasks: to what is handed to it, to indexes, or for whole passes.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

import numpy as np

from dataflow.base import Blocks, DataFlow, close_flow
from dataflow.channel.batching_sender import BatchingSender, Stopped
from dataflow.channel.protocols import ConsumerGone
from dataflow.channel.task_queue import Task, TaskReader
from dataflow.datapoint import HOLE, stack
from dataflow.engine.rebatching import stacks_evenly
from dataflow.engine.task_headers import BATCH, END, Failed, Mark
from dataflow.passes import open_flow
from dataflow.seeding import Stream
from dataflow.state import state_of
from dataflow.workers.native_threads import limit_threads_again

__all__ = ["Address", "Apply", "ApplyAndBatch", "Handed", "Job", "Produce", "WholePasses"]


# -- What a worker does: a whole flow, for ever. Jobs that take tasks are in `tasking` ---------------------------------


class Job(Protocol):
    """The work of one worker."""

    def run(self, sender: BatchingSender, inbox: TaskReader | None = None) -> None:
        """Work until there is nothing more to do, or until the outbox says stop; `inbox` is where tasks come from."""

    def close(self) -> None:
        """Close what the work had opened."""


@dataclass
class Produce:
    """Pass after pass of a whole flow, for ever, from pass `first`."""

    df: DataFlow
    stream: Stream
    first: int

    def run(self, sender: BatchingSender, inbox: TaskReader | None = None) -> None:
        state_of(self.df).worked_by = threading.current_thread()
        open_flow(self.df, self.stream)
        limit_threads_again()  # of what the reset has imported
        p = self.first
        # A pass with nothing in it would be followed by another: the flow has ended.
        while sender.put_all(self.df._df_run_pass(p, self.stream)):
            p += 1
        sender.ended()

    def close(self) -> None:
        # A thread that was left behind and returns late must not close what its successor has opened. It may do the
        # same job.
        if state_of(self.df).worked_by is threading.current_thread():
            close_flow(self.df)


# -- What a worker does that takes tasks: to what is handed to it, to indexes, or for whole passes ---------------------


@dataclass
class _Tasks:
    """What all of these jobs share.

    Attributes:
        node: The flow that gives the results.
        stream: Where it stands.
        note: What to add to an exception: whose worker raised it.
    """

    node: DataFlow
    stream: Stream
    note: str

    def run(self, sender: BatchingSender, inbox: TaskReader | None = None) -> None:
        """Do tasks until the consumer wants no more."""
        assert inbox is not None, "tasks come from a tray"
        state_of(self.node).worked_by = threading.current_thread()
        open_flow(self.node, self.stream)
        limit_threads_again()
        pace = 0.0
        while (task := inbox.take()) is not None:
            began = time.perf_counter()
            self._do(task, sender, inbox, pace)
            pace = (time.perf_counter() - began) / self.count(task)

    def count(self, task: Task) -> int:
        """How many datapoints the task asks for."""
        raise NotImplementedError

    def results(self, task: Task, inbox: TaskReader) -> Iterator[Any]:
        """These datapoints; `HOLE` for one that was dropped."""
        raise NotImplementedError

    def _do(self, task: Task, sender: BatchingSender, inbox: TaskReader, pace: float) -> None:
        sender.put_mark(Mark(task.number, pace))
        try:
            sender.put_all(_told(self.results(task, inbox), self.note))
        except (Stopped, ConsumerGone):
            raise
        except Exception as error:  # what it has made cannot be sent; all before that has left
            _leave_out_the_number(error)
            sender.put_all([Failed(error, self.note, placed=False)])

    def close(self) -> None:
        """Close what the work had opened."""
        # A thread that was left behind and returns late must not close what its successor has opened. It may do the
        # same job.
        if state_of(self.node).worked_by is threading.current_thread():
            close_flow(self.node)


class Handed(DataFlow):
    """The input of a map's node in a worker: the datapoints of the task in hand, whatever index is asked for."""

    def __init__(self, length: int | None) -> None:
        self.datapoints: Sequence[Any] = ()
        self.length = length  # of a pass of what it stands for

    def __len__(self) -> int:
        return super().__len__() if self.length is None else self.length

    @property
    def _df_indexed(self) -> bool:
        return True

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        for _ in blocks:
            yield from self.datapoints


@dataclass
class Apply(_Tasks):
    """A node of one datapoint in, one out, over whatever is handed in.

    The node is the one that would do the same without workers: so there is one definition of what is done.

    Attributes:
        handed: The input of `node`.
    """

    handed: Handed

    def count(self, task: Task) -> int:
        return len(task.datapoints)

    def results(self, task: Task, inbox: TaskReader) -> Iterator[Any]:
        self.handed.datapoints = task.datapoints
        return self.node._df_at([np.arange(task.first, task.first + len(task.datapoints))], self.stream)


@dataclass
class ApplyAndBatch(Apply):
    """The same, with the results of a task as one batch: if none was dropped, and they can be told apart again.

    Instead of its results come `BATCH`, the batch, and holes that make up the number. Where a datapoint was dropped
    before, the consumer takes the batch to pieces to fill up another: so no type may get lost in it.
    """

    batch_size: int

    def results(self, task: Task, inbox: TaskReader) -> Iterator[Any]:
        made: list[Any] = []
        try:
            made.extend(super().results(task, inbox))  # keeps what comes before an exception
        except SystemExit:
            raise
        except BaseException:
            yield from made
            raise
        if len(made) != self.batch_size or self.batch_size < 2 or not stacks_evenly(made):
            yield from made
            return
        yield BATCH
        yield stack(made)  # no variable: its memory may be passed on
        yield from repeat(HOLE, len(made) - 2)


@dataclass
class Address(_Tasks):
    """Spans of indexes of a whole flow, each a number or the indexes themselves.

    Each is one call of `_df_at`, and nothing of it outlives the worker.
    """

    def count(self, task: Task) -> int:
        (span,) = task.datapoints
        return len(span) if isinstance(span, np.ndarray) else int(span)

    def results(self, task: Task, inbox: TaskReader) -> Iterator[Any]:
        (span,) = task.datapoints
        indexes = span if isinstance(span, np.ndarray) else np.arange(task.first, task.first + int(span))
        return self.node._df_at([indexes], self.stream)


@dataclass
class WholePasses(_Tasks):
    """Passes of a flow that cannot be addressed, one at a time, each with `END` after it."""

    def count(self, task: Task) -> int:
        return 1

    def results(self, task: Task, inbox: TaskReader) -> Iterator[Any]:
        datapoints = self.node._df_run_pass(task.first, self.stream)
        while inbox.is_wanted():
            try:
                yield next(datapoints)  # no variable: who receives it may reuse its memory
            except StopIteration:
                break
        yield END  # which nobody hears if the pass is wanted no more


def _told(results: Iterator[Any], note: str) -> Iterator[Any]:
    """The results of a task, and what was raised instead of one."""
    try:
        yield from results  # no variable: who receives one may reuse its memory
    except (Stopped, ConsumerGone):  # a report of a failed item may be what finds out
        raise
    except (SystemExit, GeneratorExit):  # the worker exits, and says so; or nobody wants the results
        raise
    except BaseException as error:  # asyncio.CancelledError, too: it comes in its place, after all before it
        yield Failed(error, note, placed=True)


def _leave_out_the_number(error: Exception) -> None:
    """The outbox counts what it has put, and knows nothing of tasks; the consumer adds which datapoint it was."""
    notes = getattr(error, "__notes__", None)
    if not notes:  # it is not about the encoding of a datapoint
        return
    text = re.sub(r"^datapoint \d+ of the pass", "what was made", notes[-1])
    notes[-1] = text.replace("MultiThreadRunner, which sends nothing", "threads, which send nothing")
