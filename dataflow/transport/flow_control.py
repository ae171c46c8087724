"""Credit-based flow control: counters in shared memory that bound how far each worker runs ahead of the consumer.

Guarantees:

- Every counter has one writer and is one aligned word of 8 bytes, so there is no lock that a killed process could leave
  taken. One word has several writers: the hint that the consumer has something to do. A wrong hint costs one system
  call.
- A worker waits while the datapoints that it made and the consumer has not yet handed out fill its window; it checks
  the stop flag while it waits. At least one datapoint may always be under way.
- A waiting worker sleeps for a limited time, 20 µs at first, and checks again. So no memory barrier is needed: a store
  that becomes visible late costs one more sleep. The limit is 2 ms for up to four workers. Of more, each sleeps
  longer, in proportion, so that all together do not wake up more often; but no worker oversleeps: it halves its limit
  when it finds more than half of its window free, and doubles it when it finds little more than a quarter.
- A worker that has had to wait waits until a quarter of its window is free (Clark's cure for TCP's silly window
  syndrome, RFC 813). Otherwise each datapoint that the consumer takes would wake its worker for a message of one.
- The counters of what a worker has done (`worker_counters`) are beside those of the credit.
- A worker that has sent a message yields the processor if the consumer already had something to do; it does not wait.
  Otherwise, with more processes than processors, the consumer would wait for whole time slices while the windows fill
  up, and then all workers would wait for the consumer.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dataflow.system.descriptors import Descriptor
from dataflow.transport.arena import WORD_BYTES, SharedWords
from dataflow.transport.worker_counters import NUM_WORDS, WorkerActivity, WorkerCounters

if TYPE_CHECKING:
    from dataflow.transport.current_item import CurrentItem
    from dataflow.transport.turns import Jobserver

__all__ = ["Credit", "CreditPort", "Quota", "Room", "Window"]


# -- Layout of the counters --------------------------------------------------------------------------------------------


# Per worker: one cache line for the words of the consumer, one for those of the worker, and what it has done.
_CREDIT_WORDS: Final = 16
_WORDS: Final = _CREDIT_WORDS + NUM_WORDS
# Index in the block before those of the workers; set by senders, cleared by the consumer before it waits.
_BUSY: Final = 0
_STARTED: Final = 1  # set by the consumer once it has started all workers
_COUNT, _BYTES, _FRAMES, _DONE, _STOP, _REPORTS = range(6)  # written by the consumer
_MADE, _ITEM, _TOKEN = 8, 9, 10  # written by the worker
_now: Final = time.perf_counter
_MIN_SLEEP: Final = 20e-6
_MAX_SLEEP: Final = 2e-3
_ENOUGH: Final = 0.25  # of the window
_WORKERS_AWAKE: Final = 4  # that may check so often
# Yields the processor; no-op if no other process is ready.
_sched_yield: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)
_MAX_AT_ONCE: Final = 8 << 20  # bytes: the fewer blocks are in use at a time, the more of them stay in the caches


@dataclass(frozen=True, slots=True)
class Window:
    """Limits on what may be under way for one worker, which continues while either `count` or `nbytes` is not used up.

    Attributes:
        count: Datapoints.
        nbytes: Bytes, arrays included.
        max_queued: Bytes in messages, without those in shared memory, at which the worker waits in any case; 0 for no
            such limit.
    """

    count: int
    nbytes: int = 0
    max_queued: int = 0


@dataclass(slots=True)  # not frozen: that would double the time to make one
class Room:
    """What may be made next: while either `count` or `nbytes` is not used up, and `max_bytes` in any case is not."""

    count: int
    nbytes: int
    max_bytes: int


class Credit:
    """The consumer's side: credit counters for each worker.

    Args:
        num_workers: The number of workers.
        shared: Whether they are processes.
        jobserver: Says which of them work; None if all work at the same time.
    """

    def __init__(self, num_workers: int, *, shared: bool, jobserver: Jobserver | None = None) -> None:
        self._counters = SharedWords("dataflow-credit", (1 + num_workers) * _WORDS, shared=shared)
        self._num_workers = num_workers
        self.jobserver = jobserver

    def port(self, worker: int) -> CreditPort:
        """The description of the counters of `worker`."""
        return CreditPort(self._counters, worker, self.jobserver)

    def grant(self, worker: int, count: int, nbytes: int, queued: int) -> None:
        """Grant credit for `count` datapoints of `worker` that begin to be handed out.

        `queued` bytes of its messages are used up.
        """
        words, start = self._counters.words, _start_of(worker)
        # In any order: the counters only rise, so a worker that reads an old one finds less room than there is.
        words[start + _FRAMES] += queued
        words[start + _COUNT] += count
        words[start + _BYTES] += nbytes

    def done(self, worker: int, count: int) -> None:
        """Record that `count` datapoints of `worker` have all been handed out, and the consumer asks for more."""
        self._counters.words[_start_of(worker) + _DONE] += count

    def report_received(self, worker: int) -> None:
        """Record that one report of `worker` was received."""
        self._counters.words[_start_of(worker) + _REPORTS] += 1

    def counters_of(self, worker: int) -> list[int]:
        """A copy of the counters of what `worker` has done, for `worker_counters.totals_of`; none after `close`."""
        start = _start_of(worker) + _CREDIT_WORDS
        return self._counters.words[start : start + NUM_WORDS].tolist()

    def started(self) -> None:
        """Record that all workers were started: those that wait for it begin to work."""
        self._counters.words[_STARTED] = 1
        if self.jobserver is not None:
            self.jobserver.begin()

    def idle(self) -> None:
        """Record that the consumer has nothing to do and is about to wait."""
        self._counters.words[_BUSY] = 0

    def stop(self) -> None:
        """Request every worker to stop at its next step."""
        words = self._counters.words
        for start in _starts(words):
            words[start + _STOP] = 1
        # After the flags, so that a worker that a token wakes up finds its flag set.
        if self.jobserver is not None:
            self.jobserver.stop(self._num_workers)

    def item_of(self, worker: int) -> int:
        """What `worker` makes, in a word as in `current_item`."""
        return self._counters.words[_start_of(worker) + _ITEM]

    def late_after(self, timeout: float) -> tuple[float, str]:
        """After how many seconds with the same word a worker is late, if it may spend `timeout` seconds on a datapoint.

        Returns these, and what it did, as the end of a sentence about it.
        """
        return timeout, f"spent more than item_timeout={timeout:g} seconds on it"

    def died(self, worker: int) -> None:
        """Record that `worker` has died, and that all messages which it has sent were received.

        It makes nothing now, and what it has made and not sent will never be handed out.
        """
        words, start = self._counters.words, _start_of(worker)
        words[start + _ITEM] = 0  # otherwise the first datapoint of its successor
        words[start + _MADE] = words[start + _COUNT]  # otherwise others would wait until its datapoints are done
        if self.jobserver is not None:
            self.jobserver.died(has_token=bool(words[start + _TOKEN]))
        words[start + _TOKEN] = 0

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        self._counters.close()
        if self.jobserver is not None:
            self.jobserver.close()


def _start_of(worker: int) -> int:
    """Index of the first counter of `worker`."""
    return (1 + worker) * _WORDS


def _starts(words: memoryview) -> range:
    """Indexes of the first counters of all workers."""
    return range(_WORDS, len(words), _WORDS)


class CreditPort:
    """Description of one worker's credit counters; picklable while a process is started."""

    def __init__(self, counters: SharedWords, worker: int, jobserver: Jobserver | None) -> None:
        self._counters = counters
        self._worker = worker
        self._jobserver = jobserver

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Descriptors that a forked worker has to inherit."""
        jobserver = () if self._jobserver is None else self._jobserver.descriptors()
        return (*self._counters.descriptors(), *jobserver)

    def quota(self, window: Window) -> Quota:
        """Open the worker's side, in the worker."""
        return Quota(
            self._counters.words,
            self._worker,
            window,
            yields=bool(self._counters.descriptors()),
            jobserver=self._jobserver,
        )


class Quota:
    """The worker's side of its credit counters.

    Args:
        words: All counters of the run.
        worker: Index of the worker.
        window: How far the worker may run ahead.
        yields: Whether the worker yields the processor to a consumer that is behind: one in another process of this
            machine.
        jobserver: Says when the worker works; None if always.

    Attributes:
        counters: Where the worker records what it has done.
        token: The worker's side of `jobserver`.
        waited: Seconds of the last wait for room; `counters` has them.
    """

    def __init__(
        self,
        words: memoryview,
        worker: int,
        window: Window,
        *,
        yields: bool = False,
        jobserver: Jobserver | None = None,
    ) -> None:
        self._all_words = words
        start = _start_of(worker)
        self._words = words[start : start + _CREDIT_WORDS]
        self.waited = 0.0
        self.counters = WorkerCounters(words[start + _CREDIT_WORDS : start + _WORDS])
        self._item = words, start + _ITEM
        has_token = words[start + _TOKEN : start + _TOKEN + 1]
        self.token = None if jobserver is None else jobserver.open(self.counters, has_token)
        self._window = window
        self._yields = yields
        self._longest = max(_MAX_SLEEP, _MAX_SLEEP * (len(words) // _WORDS - 1) / _WORKERS_AWAKE)
        self._max_sleep = _MAX_SLEEP  # at present, at most `_longest`
        # All are 0, unless this worker replaces another: then it continues with the counts received from that one.
        self._made = words[start + _COUNT]
        self._made_bytes = words[start + _BYTES]
        self._sent_bytes = words[start + _FRAMES]
        self._reported = words[start + _REPORTS]
        # The dead worker may have counted messages that never arrived, for which `all_done` would wait.
        words[start + _MADE] = self._made

    def current_item(self) -> CurrentItem:
        """Where the worker records what it makes, if somebody watches it."""
        from dataflow.transport.current_item import CurrentItem  # few runners need it

        return CurrentItem(*self._item)

    @property
    def stopped(self) -> bool:
        """Whether the consumer has requested the workers to stop."""
        return self._words[_STOP] != 0

    def spend(self, count: int, nbytes: int) -> None:
        """Record that `count` datapoints of `nbytes` are on their way."""
        self._made += count
        self._made_bytes += nbytes
        self._words[_MADE] = self._made

    def queue(self, nbytes: int) -> None:
        """Record that a message of `nbytes` was sent. Called by one thread at a time."""
        self._sent_bytes += nbytes

    def unlimited(self) -> Quota:
        """Return a quota without limits, for calibration."""
        words = memoryview(bytearray(2 * _WORDS * WORD_BYTES)).cast("Q")
        # So `all_done` is true: a calibration that finds no room must not wait for a consumer.
        words[_start_of(0) + _DONE] = sys.maxsize
        return Quota(words, 0, Window(sys.maxsize))

    def yield_processor(self) -> None:
        """Yield the processor after a message was sent, if the consumer already had something to do."""
        # The worker is a thread, which takes turns by the interpreter's lock, or runs on another machine.
        if not self._yields:
            return
        if self._all_words[_BUSY]:
            _sched_yield()
        # Every worker writes this word, and the consumer. A wrong value costs one system call.
        self._all_words[_BUSY] = 1

    def wait_for_start(self) -> None:
        """Wait until the consumer has started all workers, if there are more than a few.

        Those that were started first would keep the processors busy, with datapoints that nobody takes yet.
        """
        if self._longest == _MAX_SLEEP or not self._yields:
            return
        while not (self._all_words[_STARTED] or self.stopped):
            time.sleep(self._longest)

    def wait_for_room(self) -> Room | None:
        """Wait until datapoints may be made. Return how many; None if the worker has to stop."""
        self.waited = 0.0
        if (room := self._room()) is not None and not self.stopped:
            return room
        delay, began = _MIN_SLEEP if self._max_sleep == _MAX_SLEEP else self._max_sleep / 4, _now()
        state = WorkerActivity.MEMORY if self._is_queue_full() else WorkerActivity.BLOCKED
        self.counters.enter(state, began)
        self.counters.set_window(1.0)
        while not self.stopped:
            time.sleep(delay)
            room = self._room()
            if room is not None and (free := 1 - self.window_in_use()) >= _ENOUGH:
                self._adapt(free, delay)
                ended = _now()
                self.waited = ended - began
                # Before the datapoints are made: however long they take, that time is work.
                self.counters.add_wait(state, ended, self.waited)
                return room
            delay = min(2 * delay, self._max_sleep)
        return None

    def _adapt(self, free: float, slept: float) -> None:
        """Choose how long to sleep next time, by the last sleep and how much of the window was free after it."""
        if free > 2 * _ENOUGH:
            self._max_sleep = max(_MAX_SLEEP, self._max_sleep / 2)
        elif free < 1.5 * _ENOUGH and slept >= self._max_sleep:
            self._max_sleep = min(2 * self._max_sleep, self._longest)

    def window_in_use(self) -> float:
        """The part of the window that is in use, 0 to 1, by datapoints or by bytes, whichever is less."""
        window = self._window
        return min(
            (self._made - self._words[_COUNT]) / max(1, window.count),
            (self._made_bytes - self._words[_BYTES]) / window.nbytes if window.nbytes else 1.0,
        )

    def _is_queue_full(self) -> bool:
        limit = self._window.max_queued
        return limit > 0 and self._sent_bytes - self._words[_FRAMES] >= limit

    def wait_for_report_credit(self, max_outstanding: int) -> bool:
        """Wait until fewer than `max_outstanding` reports are outstanding, and count one more.

        Returns False if the worker has to stop.
        """
        delay = _MIN_SLEEP
        while not self.stopped:
            if self._reported - self._words[_REPORTS] < max_outstanding:
                self._reported += 1
                return True
            time.sleep(delay)
            delay = min(2 * delay, _MAX_SLEEP)
        return False

    def _room(self) -> Room | None:
        """What is left of the window, but at most half of it at once, so that the worker need not pause."""
        window, words = self._window, self._words
        count = window.count - (self._made - words[_COUNT])
        nbytes = window.nbytes - (self._made_bytes - words[_BYTES])
        max_bytes = (window.max_queued or sys.maxsize) - (self._sent_bytes - words[_FRAMES])
        if (count <= 0 and nbytes <= 0) or max_bytes <= 0:
            return None
        count, nbytes = min(count, window.count // 2 or 1), min(nbytes, window.nbytes // 2)
        return Room(max(0, count), max(0, nbytes), min(max_bytes, _MAX_AT_ONCE))

    def all_done(self) -> bool:
        """Return True if the consumer is done with all datapoints that all workers have made.

        The `done` count of another worker may already include datapoints that its `made` count does not: the flusher
        sends the contents of an unfinished message.
        """
        words = self._all_words
        # Race: another worker may send more after the look. Then this one sends the arrays of a single message inline.
        return all(words[k + _MADE] <= words[k + _DONE] for k in _starts(words))
