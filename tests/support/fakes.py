"""Stand-ins: small flows, and ends of a channel and workers that do what a test wants of them."""

import itertools
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from dataflow import DataFlow, MultiProcessRunner, MultiProcessRunnerZMQ, MultiThreadRunner, RNGDataFlow, worker_info
from dataflow.system.descriptors import Descriptor
from dataflow.system.worker_info import WorkerInfo
from dataflow.transport.messages import ConsumerGone, Message, Receiver
from tests.support.waits import LIMIT

METHODS = ("fork", "forkserver", "spawn")
KINDS = ("process", "zmq", "thread")
PROCESS_KINDS = ("process", "zmq")
# Where the start method is all that differs. Runners under spawn are quick in `every_runner(spawn=True)`.
each_method = pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.full)])

# multiprocessing never gives its first block of shared memory back: it is made before anything is counted.
_KEPT = multiprocessing.RawArray("q", 1)


def every_runner(*, spawn: bool = False) -> list[Any]:
    """(kind, start method) of every runner.

    Each kind is quick under fork, one kind under forkserver, and, if `spawn` is given, one under spawn.
    """
    seldom = [("process", "forkserver"), ("zmq", "spawn"), *([] if spawn else [("process", "spawn")])]
    full = dict.fromkeys(seldom, (pytest.mark.full,))
    return [
        *(
            pytest.param(case, id="-".join(case), marks=full.get(case, ()))
            for case in itertools.product(PROCESS_KINDS, METHODS)
        ),
        pytest.param(("thread", None), id="thread"),
    ]


def runner(
    case: str | tuple[str, str | None],
    make: Callable[[], DataFlow],
    num: int = 1,
    *,
    prefetch: int | None = 5,
    timeout: float | None = LIMIT,
    **options: Any,
) -> DataFlow:
    """A runner of any kind over what `make` makes. The timeout is there so that no test can hang."""
    kind, method = (case, None) if isinstance(case, str) else case
    if kind == "thread":
        return MultiThreadRunner(make, prefetch, num, timeout=timeout, **options)
    if kind == "process":
        return MultiProcessRunner(make(), prefetch, num, timeout=timeout, context=method, **options)
    return MultiProcessRunnerZMQ(make(), num, prefetch, timeout=timeout, context=method, **options)


# -- flows -------------------------------------------------------------------------------------------------------------


class Numbers(DataFlow):
    """[0], [1], … as a user would write it."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[list[int]]:
        for k in range(self.n):
            yield [k]

    def __len__(self) -> int:
        return self.n


class Forever(DataFlow):
    """[0], [1], … without an end and without a length; counts what it makes where the test can see it."""

    def __init__(self, made: Any = None, size: int = 0) -> None:
        self.made = made  # a shared integer per worker
        self.size = size

    def __iter__(self) -> Iterator[list[Any]]:
        k = 0
        here = worker_info()
        while True:
            if self.made is not None:
                self.made[here.path[-1][0] if here else 0] = k + 1
            yield [k, bytes(self.size)] if self.size else [k]
            k += 1


class Draws(RNGDataFlow):
    """Who it is, and a random number."""

    def __init__(self, n: int = 5) -> None:
        self.n = n

    def __iter__(self) -> Iterator[list[int]]:
        here = worker_info()
        for _ in range(self.n):
            yield [here.index if here else -1, int(self.rng.integers(2**62))]

    def __len__(self) -> int:
        return self.n


class Where(DataFlow):
    """One datapoint endlessly: the path of the worker, and the process; slowly, so that many leave cores to others."""

    def __iter__(self) -> Iterator[list[Any]]:
        here = worker_info()
        while True:
            time.sleep(1e-3)
            yield [here.path if here else (), os.getpid()]


class Calls(DataFlow):
    """Counts, where every process sees it, how often it was reset; says so in its only component."""

    def __init__(self, resets: Any) -> None:
        self.resets = resets

    def reset_state(self) -> None:
        here = worker_info()
        self.resets[here.index if here else -1] += 1

    def __iter__(self) -> Iterator[list[int]]:
        here = worker_info()
        while True:
            yield [here.index if here else -1]


# -- ends of a channel -------------------------------------------------------------------------------------------------


class FakeSender:
    """Keeps what is sent; `before` and `after` are called with every message, and may wait or raise."""

    def __init__(self, before: Callable[[Message], None] = lambda message: None) -> None:
        self.before = before
        self.after: Callable[[Message], None] = lambda message: None  # called when it has left
        self.sent: list[Message] = []
        self.gone = False
        self.closed_with: float | None = None

    def send(self, message: Message, begun: list[Any] | None = None) -> None:
        self.before(message)
        if self.gone:
            raise ConsumerGone
        self.sent.append(message)
        if begun is not None:
            begun.append(True)
        self.after(message)

    def close(self, flush: float) -> None:
        self.closed_with = flush


def receive(receiver: Receiver, timeout: float, watched: Sequence[int] = ()) -> Message | None:
    """The next message; None after `timeout` seconds, or if only a watched descriptor is readable."""
    deadline = time.monotonic() + timeout
    while (message := receiver.receive_nowait()) is None:
        if not receiver.wait(max(0.0, deadline - time.monotonic()), watched):
            return None
    return message


class FakeReceiver:
    """Gives the messages in `inbox`; `during` is called at every `wait`, when nothing is left to be taken."""

    may_arrive_late = True

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self.inbox = deque(messages)
        self.during: Callable[[], None] = lambda: None
        self.watched: Sequence[int] = ()
        self.stopped = 0
        self.closed = 0

    def receive_nowait(self) -> Message | None:
        return self.inbox.popleft() if self.inbox else None

    def wait(self, timeout: float, watched: Sequence[int] = ()) -> bool:
        self.watched = watched
        self.during()
        return bool(self.inbox)

    def stop(self) -> None:
        self.stopped += 1

    def close(self) -> None:
        self.closed += 1


class FakeChannel:
    """Hands out one receiver, or raises what it was given instead."""

    def __init__(self, receiver: FakeReceiver | BaseException) -> None:
        self.receiver = receiver
        self.closed = 0

    def port(self, worker: int) -> Any:
        return None

    def open_receiver(self) -> FakeReceiver:
        if isinstance(self.receiver, BaseException):
            raise self.receiver
        return self.receiver

    def close(self) -> None:
        self.closed += 1


class FakeWorker:
    """A worker whose end is set from outside."""

    def __init__(self, index: int = 0, count: int = 1, *, sentinel: int | None = None, stubborn: bool = False) -> None:
        self.info = WorkerInfo(index, count, ((index, count),))
        self.pid: int | None = 40_000 + index
        self.sentinel = sentinel
        self.code: int | None = None
        self.stubborn = stubborn  # ends neither on request nor when killed
        self.on_join: Callable[[], None] = lambda: None
        self.story: list[str] = []

    def start(self) -> None:
        """It runs from the beginning."""

    def task(self) -> int | None:
        return self.pid

    def has_ended(self) -> bool:
        return self.code is not None

    def exitcode(self) -> int | None:
        return self.code

    def state(self) -> str:
        return f"pid {self.pid}, waiting"

    def join(self, timeout: float) -> bool:
        self.story.append("join")
        self.on_join()
        return self.code is not None

    def kill(self) -> bool:
        self.story.append("kill")
        if self.stubborn:
            return False
        self.code = -9
        return True

    def begin_kill(self) -> None:
        self.story.append("begin to kill")
        if not self.stubborn:
            self.code = -9

    def leave_behind(self) -> None:
        self.story.append("leave behind")

    def release(self) -> None:
        self.story.append("release")


def open_descriptor(descriptor: Descriptor) -> bool:
    """Whether the operating system knows it."""
    try:
        os.fstat(descriptor.fd)
    except OSError:
        return False
    return True


class Trap:
    """Unpickling it creates the file `path`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")
