"""Turns: of many workers that compute on few cores, a few at a time make datapoints.

If all of them did, each would make a few datapoints between two waits: each time it is woken up, and finds its memory
in no cache. A worker with a turn goes on for half a second, and then lets another one.

A turn is a byte in a pipe that all workers read. The kernel wakes up the worker that has waited longest; the one that
gives the turn back may get it again before that one runs.

Guarantees:

- No turn lasts longer than about `_SECONDS`. A datapoint that takes longer is finished without one.
- Workers that wait for something other than a core, a disk or a network, do so all at the same time: one that is found
  waiting while it has a turn works without turns for `_WITHOUT` seconds.
- The others go on if a worker with a turn is killed or stopped: a worker that was replaced leaves a turn, and whenever
  the consumer has waited and got nothing, it lends one, which is used once. A worker that waits for a turn is woken up
  at the end by another one that is lent; if the consumer is gone, its lifeline ends it.
- Nothing here blocks the consumer.
"""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import suppress
from typing import Final

from dataflow.channel.worker_counters import WorkerActivity, WorkerCounters
from dataflow.descriptors import Descriptor, pipe
from dataflow.machine import processor_times

__all__ = ["Turn", "Turns"]

_OWN: Final = b"o"  # is given back
_LENT: Final = b"l"  # is not
_SECONDS: Final = 0.5
_WITHOUT: Final = 2.0
_ENOUGH: Final = 0.02  # seconds of work after which it is known whether a worker computes
_COMPUTING: Final = 0.5  # part of that time on a core


class Turns:
    """The consumer's side; picklable while a process is started.

    Args:
        num: How many workers have a turn at the same time.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self._read, self._write = pipe()
        os.set_blocking(self._write.fd, False)

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Descriptors that a forked worker has to inherit."""
        return (self._read, self._write)

    def begin(self) -> None:
        """Let the first workers begin."""
        self._put(_OWN * self.num)

    def lend(self) -> None:
        """Let one more worker have a turn, once, if all turns are taken."""
        left = select.poll()
        left.register(self._read.fd, select.POLLIN)
        if not left.poll(0):
            self._put(_LENT)

    def replace(self) -> None:
        """Add a turn: a worker has died, possibly with one."""
        self._put(_OWN)

    def stop(self, num_workers: int) -> None:
        """Wake up all workers that wait for a turn. No-op after `close`."""
        if self._write.fd >= 0:
            self._put(_LENT * num_workers)

    def _put(self, turns: bytes) -> None:
        os.write(self._write.fd, turns)  # never full: it holds `num` turns, one that was lent, and those of `stop`

    def open(self, counters: WorkerCounters) -> Turn:
        """Open the worker's side, in the worker's thread."""
        return Turn(self._read, self._write, counters)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        self._read.close()
        self._write.close()


class Turn:
    """The worker's side.

    `wait` and `end` are called by the worker's thread, `check` by its second one. If both give a turn back at the same
    time, one of them does; if one gives back the next turn in place of the last, the worker only waits again. In a
    process forked by the flow's code the descriptors are closed.

    Args:
        read: Where turns come from.
        write: Where they are given back.
        counters: What the worker has done.
    """

    def __init__(self, read: Descriptor, write: Descriptor, counters: WorkerCounters) -> None:
        self._read = read
        self._write = write
        self._counters = counters
        self._thread = f"self/task/{threading.get_native_id()}"
        self._held: list[bytes] = []  # one, or none
        self._began = 0.0
        self._times = 0.0, 0.0  # of work and on a core, as the turn began
        self._without = 0.0  # until this time, the worker takes no turns

    @property
    def is_held(self) -> bool:
        """Whether the worker has a turn."""
        return bool(self._held)

    def is_needed(self, now: float) -> bool:
        """Whether the worker has to wait for a turn before it goes on, at the time `now` of ``time.perf_counter()``."""
        return now >= self._without and (not self._held or now - self._began >= _SECONDS)

    def wait(self) -> None:
        """Give back the turn that the worker has, and wait for the next."""
        self.end()
        turn = os.read(self._read.fd, 1)
        self._began = time.perf_counter()
        self._counters.enter(WorkerActivity.BUSY, self._began)
        self._times = self._worked(self._began)
        self._held.append(turn)

    def check(self, now: float) -> None:
        """Give back the turn if it has taken long, or if the worker waits for something other than a core."""
        if not self._held:
            return
        busy, computed = (after - before for before, after in zip(self._times, self._worked(now), strict=True))
        if busy >= _ENOUGH and computed < _COMPUTING * busy:
            self._without = now + _WITHOUT
            self.end()
        elif now - self._began >= _SECONDS:
            self.end()

    def end(self) -> None:
        """Give back the turn, if the worker has one."""
        with suppress(IndexError):  # it has none
            if self._held.pop() == _OWN:
                os.write(self._write.fd, _OWN)

    def _worked(self, now: float) -> tuple[float, float]:
        """Seconds that the worker was busy, without those in which it was ready to run; and those on a core."""
        _, delayed = processor_times(self._thread) or (0.0, 0.0)
        return self._counters.busy_seconds(now) - delayed, time.process_time()
