"""Jobserver: of many workers that compute on few cores, those that hold a token make datapoints, a few at a time.

If all of them did, each would make a few datapoints between two waits: each time it is woken up, and finds its memory
in no cache. A worker with a token goes on for half a second, and then lets another one.

A token is a byte in a pipe that all workers read. The kernel wakes up the worker that has waited longest; the one that
gives the token back may get it again before that one runs.

Guarantees:

- No token is held longer than about `_SECONDS`. A datapoint that takes longer is finished without one.
- Workers that wait for something other than a core, a disk or a network, do so all at the same time: one that is found
  waiting while it has a token works without tokens for `_WITHOUT` seconds.
- The others go on if a worker with a token is killed or stopped: its token is added again when it is replaced, and
  whenever the consumer has waited and got nothing, it lends one, which is used once. A worker that waits for a token is
  woken up at the end by one that is lent; if the consumer is gone, its lifeline ends it.
- Restarts make no tokens: a worker says in shared memory whether it has one.
- Nothing here blocks the consumer.
"""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import suppress
from typing import Final

from dataflow.system.descriptors import Descriptor, pipe
from dataflow.system.machine import processor_times
from dataflow.transport.worker_counters import WorkerActivity, WorkerCounters

__all__ = ["JobToken", "Jobserver"]

_OWN: Final = b"o"  # is given back
_LENT: Final = b"l"  # is not
_SECONDS: Final = 0.5
_WITHOUT: Final = 2.0
_ENOUGH: Final = 0.02  # seconds of work after which it is known whether a worker computes
_COMPUTING: Final = 0.5  # part of that time on a core


class Jobserver:
    """The consumer's side; picklable while a process is started.

    Args:
        num: How many workers have a token at the same time.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self._num_lost = 0  # tokens of dead workers
        self._read, self._write = pipe()
        # For the workers as well, which share this open file.
        os.set_blocking(self._write.fd, False)

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Descriptors that a forked worker has to inherit."""
        return (self._read, self._write)

    def begin(self) -> None:
        """Let the first workers begin."""
        self._put(_OWN * self.num)

    def lend(self) -> None:
        """Let one more worker have a token, once, if all tokens are taken."""
        left = select.poll()
        left.register(self._read.fd, select.POLLIN)
        # Race: a worker may give a token back after the look. Then there is one too many, but a lent one is used once.
        if not left.poll(0):
            self._put(_LENT)

    def died(self, *, has_token: bool) -> None:
        """Record that a worker has died, and whether it had a token."""
        self._num_lost += has_token

    def replace(self) -> None:
        """Add the tokens of workers that have died."""
        lost, self._num_lost = self._num_lost, 0
        self._put(_OWN * lost)

    def stop(self, num_workers: int) -> None:
        """Wake up all workers that wait for a token. No-op after `close`."""
        if self._write.fd >= 0:
            self._put(_LENT * num_workers)

    def _put(self, tokens: bytes) -> None:
        os.write(self._write.fd, tokens)  # never full: it holds `num` tokens, one that was lent, and those of `stop`

    def open(self, counters: WorkerCounters, has_token: memoryview) -> JobToken:
        """Open the worker's side, in the worker's thread."""
        return JobToken(self._read, self._write, counters, has_token)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        self._read.close()
        self._write.close()


class JobToken:
    """The worker's side.

    `wait` and `end` are called by the worker's thread, `check` by its second one. If both give a token back at the same
    time, one of them does; if one gives back the next token in place of the last, the worker only waits again. In a
    process forked by the flow's code the descriptors are closed.

    Args:
        read: Where tokens come from.
        write: Where they are given back.
        counters: What the worker has done.
        has_token: A word in shared memory, by which the consumer knows whether the worker has a token to give back.
    """

    def __init__(self, read: Descriptor, write: Descriptor, counters: WorkerCounters, has_token: memoryview) -> None:
        self._read = read
        self._write = write
        self._counters = counters
        self._has_token = has_token
        self._thread = f"self/task/{threading.get_native_id()}"
        self._held: list[bytes] = []  # one, or none
        self._began = 0.0
        self._times = 0.0, 0.0  # of work and on a core, as the token began
        self._without = 0.0  # until this time, the worker takes no tokens

    @property
    def is_held(self) -> bool:
        """Whether the worker has a token."""
        return bool(self._held)

    def is_needed(self, now: float) -> bool:
        """Whether the worker has to wait for a token before it goes on, at `now` of ``time.perf_counter()``."""
        return now >= self._without and (not self._held or now - self._began >= _SECONDS)

    def wait(self) -> None:
        """Give back the token that the worker has, and wait for the next."""
        # First: it may be the only token, and the read below would wait for what this worker has itself.
        self.end()
        # Never returns at the end of the file, since this worker has a write end itself: `stop` or a loan wakes it up.
        token = os.read(self._read.fd, 1)
        # Race: a worker that is killed before this line takes the token with it. Then the others are lent some.
        self._has_token[0] = token == _OWN
        self._began = time.perf_counter()
        self._counters.enter(WorkerActivity.BUSY, self._began)
        self._times = self._worked(self._began)
        # Last: the second thread judges the token by these times as soon as it sees one.
        self._held.append(token)

    def check(self, now: float) -> None:
        """Give back the token if it has taken long, or if the worker waits for something other than a core."""
        if not self._held:
            return
        busy, computed = (after - before for before, after in zip(self._times, self._worked(now), strict=True))
        if busy >= _ENOUGH and computed < _COMPUTING * busy:
            self._without = now + _WITHOUT
            self.end()
        elif now - self._began >= _SECONDS:
            self.end()

    def end(self) -> None:
        """Give back the token, if the worker has one."""
        with suppress(IndexError):  # it has none
            # `pop` is one step of the interpreter: if both threads give the token back, one finds the list empty.
            if self._held.pop() == _OWN:
                os.write(self._write.fd, _OWN)
                # Race: a worker that is killed before this line leaves one token too many; or the worker's thread has
                # the next token already, which is lost if the worker is killed with it.
                self._has_token[0] = False

    def _worked(self, now: float) -> tuple[float, float]:
        """Seconds that the worker was busy, without those in which it was ready to run; and those on a core."""
        _, delayed = processor_times(self._thread) or (0.0, 0.0)
        return self._counters.busy_seconds(now) - delayed, time.process_time()
