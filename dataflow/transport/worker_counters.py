"""Worker counters: words in shared memory that say what a worker has done, so that reading them costs it nothing.

They are written once per message or task, never per datapoint, and stay readable when the worker has been killed. They
are part of the memory of the credit counters (`flow_control`).

Guarantees:

- Every word has one writer at a time: the worker's own thread, or under the sender's lock whichever thread sends, or
  for the samples the flusher thread. A reader may see one word newer than another, never half a word.
- The state and the time of the last change tell what a worker does at present, however long it takes: a slow datapoint
  counts before it is finished.
- A worker that replaces another goes on with its counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

__all__ = [
    "NUM_NODES",
    "NUM_WORDS",
    "InnerTotals",
    "WorkerCounters",
    "WorkerTotals",
    "WorkerActivity",
    "settle_counters",
    "sums_of",
    "totals_of",
]


class WorkerActivity(IntEnum):
    """What a worker does at present."""

    NOTHING = 0  # it has not begun, has ended, or gets no work because fewer workers are enough
    BUSY = 1  # makes and sends datapoints
    BLOCKED = 2  # waits for room in its window
    MEMORY = 3  # waits for room within the memory limit
    STARVED = 4  # waits for a task


_DATAPOINTS, _NBYTES, _MESSAGES, _CPU, _DELAYED, _STATE, _SINCE, _PID = range(8)
_TIMES: Final = 7  # plus a `WorkerActivity`: nanoseconds in this state; 8 to 11
_BUSY: Final = WorkerActivity.BUSY  # to look up a member of an enumeration takes longer
_BUSY_TIME: Final = _TIMES + _BUSY
_SENDING, _OTHER = 12, 13  # samples that belong to no node
_WINDOW: Final = 14  # per mille of the window in use
_INNER: Final = 16  # runners inside of this worker
_INNER_WORDS: Final = 4  # of each
_MAX_INNER: Final = 4
_NODES: Final = _INNER + _MAX_INNER * _INNER_WORDS  # samples of each node
NUM_NODES: Final = 64
"""Nodes of a worker's flow that samples tell apart; further ones count as no node."""

NUM_WORDS: Final = _NODES + NUM_NODES
"""Words of one worker."""

_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class InnerTotals:
    """What a runner inside of a worker has received so far.

    Attributes:
        node: Position of the runner among the nodes of the worker's flow.
        datapoints: Datapoints that it has received.
        nbytes: Bytes of these.
        seconds: Time of its consumer.
    """

    node: int
    datapoints: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """What a worker has done so far.

    Attributes:
        pid: Its process; 0 before it has begun.
        datapoints: Datapoints sent.
        nbytes: Bytes of these.
        messages: Messages with these.
        seconds: Seconds in each state, by `WorkerActivity`, with what is under way.
        cpu: Processor time of its thread, in seconds.
        delayed: Seconds in which its thread was ready to run and had no processor.
        window: Part of its window in use when it last looked, 0 to 1.
        sending: Samples in which it encoded or sent.
        other: Samples that belong to no node.
        nodes: Samples of each node of its flow.
        inner: Runners inside of it.
    """

    pid: int
    datapoints: int
    nbytes: int
    messages: int
    seconds: tuple[float, ...]
    cpu: float
    delayed: float
    window: float
    sending: int
    other: int
    nodes: tuple[int, ...]
    inner: tuple[InnerTotals, ...]


class WorkerCounters:
    """The worker's end of its counters.

    Args:
        words: `NUM_WORDS` words, possibly with the counts of a worker before it.
    """

    __slots__ = ("_words",)

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def begin(self, now: float) -> None:
        """Record that the worker begins; `now` is ``time.perf_counter()``, as for all methods."""
        self._words[_PID] = os.getpid()
        self.enter(WorkerActivity.BUSY, now)

    def enter(self, state: WorkerActivity, now: float) -> None:
        """Record what the worker does from now on; the time until now must have been added."""
        words = self._words
        # Race: a reader between the two stores counts the last state's time for this one, in that one reading.
        words[_STATE] = state
        words[_SINCE] = int(now * _NS)

    def add_step(self, now: float, busy: float) -> None:
        """Add the busy seconds of one message; the worker is busy from now on."""
        words = self._words
        words[_BUSY_TIME] += int(busy * _NS)
        words[_STATE] = _BUSY
        # Until this store a reader counts the message twice, since its time was added above. The next reading is right.
        words[_SINCE] = int(now * _NS)

    def add_wait(self, state: WorkerActivity, now: float, seconds: float) -> None:
        """Add seconds of waiting in `state`; the worker is busy from now on."""
        self._words[_TIMES + state] += max(0, int(seconds * _NS))
        self.enter(WorkerActivity.BUSY, now)

    def add_message(self, count: int, nbytes: int, num: int = 1) -> None:
        """Add a message of `count` datapoints. Negative numbers take one back that could not be sent."""
        words = self._words
        # A read and a write each, so under the sender's lock: the flusher sends, too.
        words[_DATAPOINTS] += count
        words[_NBYTES] += nbytes
        words[_MESSAGES] += num

    def set_window(self, part: float) -> None:
        """Record which part of the window is in use."""
        self._words[_WINDOW] = int(1000 * min(1.0, max(0.0, part)))

    @property
    def processor_times(self) -> tuple[float, float]:
        """The seconds of `set_processor_times`, possibly those of a worker before this one."""
        return self._words[_CPU] / _NS, self._words[_DELAYED] / _NS

    def set_processor_times(self, cpu: float, delayed: float) -> None:
        """Record the processor time of the worker's thread, and how long it was ready without a processor."""
        self._words[_CPU] = int(cpu * _NS)
        self._words[_DELAYED] = int(delayed * _NS)

    @property
    def state(self) -> int:
        """What the worker does, a `WorkerActivity`."""
        return int(self._words[_STATE])

    def busy_seconds(self, now: float) -> float:
        """Seconds in which the worker was busy, up to `now`."""
        words = self._words
        # Read by the flusher while the worker's thread writes. If a message ends between the two lines, it counts
        # twice, and at worst the worker gives a token back too early.
        current = now - words[_SINCE] / _NS if words[_STATE] == WorkerActivity.BUSY else 0.0
        return float(words[_TIMES + WorkerActivity.BUSY] / _NS + current)

    @property
    def seconds_per_message(self) -> float:
        """Seconds of work for one message, on average."""
        words = self._words
        return float(words[_TIMES + WorkerActivity.BUSY] / _NS / max(1, words[_MESSAGES]))

    def sample_node(self, node: int) -> None:
        """Count a sample for a node of the worker's flow, by its position."""
        if node < NUM_NODES:
            self._words[_NODES + node] += 1
        else:
            self._words[_OTHER] += 1

    def sample_sending(self) -> None:
        """Count a sample in which the worker encodes or sends."""
        self._words[_SENDING] += 1

    def sample_other(self) -> None:
        """Count a sample that belongs to no node."""
        self._words[_OTHER] += 1

    def set_inner(self, slot: int, totals: InnerTotals) -> None:
        """Record what a runner inside of this worker has received; a few have room."""
        if slot < _MAX_INNER:
            # Plus 1, because 0 means that the slot is empty.
            values = (totals.node + 1, totals.datapoints, totals.nbytes, int(totals.seconds * _NS))
            for k, value in enumerate(values, _INNER + slot * _INNER_WORDS):
                self._words[k] = value

    def end(self) -> None:
        """Record that the worker has ended."""
        self._words[_STATE] = WorkerActivity.NOTHING


def settle_counters(words: Sequence[int], now: float) -> list[int]:
    """Copy the words of a worker with what is under way counted, to be read later or on another machine.

    Args:
        words: A copy of its words.
        now: ``time.perf_counter()`` of the worker's machine.
    """
    found = list(words)
    state = found[_STATE]
    if state:
        # The copy was made before or after `now` was read: the state may have begun since.
        found[_TIMES + state] += max(0, int(now * _NS) - found[_SINCE])
    found[_STATE] = WorkerActivity.NOTHING
    return found


def sums_of(before: Sequence[int], words: Sequence[int]) -> list[int]:
    """The words of a worker that has replaced another and began to count at 0.

    Args:
        before: Settled words of the worker before it.
        words: Settled words of this one.
    """
    found = [a + b for a, b in zip(before, words, strict=True)]
    # Not summed: what the worker does at present, since when, and its process.
    found[_STATE : _PID + 1] = words[_STATE : _PID + 1]
    found[_WINDOW:_NODES] = words[_WINDOW:_NODES]  # runners inside of it were started again
    return found


def totals_of(words: Sequence[int], now: float | None = None) -> WorkerTotals:
    """Read the counters of a worker.

    Args:
        words: A copy of its words.
        now: ``time.perf_counter()``, to include what is under way; None for a worker that has ended.
    """
    seconds = [0.0, *(words[_TIMES + state] / _NS for state in range(1, len(WorkerActivity)))]
    state = words[_STATE]
    if now is not None and state:
        seconds[state] += max(0.0, now - words[_SINCE] / _NS)
    inner = []
    for start in range(_INNER, _NODES, _INNER_WORDS):
        node, datapoints, nbytes, time = words[start : start + _INNER_WORDS]
        if node:
            inner.append(InnerTotals(node - 1, datapoints, nbytes, time / _NS))
    return WorkerTotals(
        words[_PID],
        words[_DATAPOINTS],
        words[_NBYTES],
        words[_MESSAGES],
        tuple(seconds),
        words[_CPU] / _NS,
        words[_DELAYED] / _NS,
        words[_WINDOW] / 1000,
        words[_SENDING],
        words[_OTHER],
        tuple(words[_NODES : _NODES + NUM_NODES]),
        tuple(inner),
    )
