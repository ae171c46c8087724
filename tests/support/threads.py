"""Several threads that step one iterator, or that change a weak set which another one lists."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from dataflow import DataFlow, DataFlowTerminated, NotReentrant
from tests.support.waits import LIMIT

THREADS = 8


@contextmanager
def switching_often(interval: float = 1e-5) -> Iterator[None]:
    """The interpreter changes threads that often, in seconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def stepped_by_threads(iterator: Iterator[Any], most: int, num_threads: int = THREADS) -> list[Any]:
    """What several threads get together; a step that was lost to another thread is made again.

    Args:
        iterator: All of them step it, to its end.
        most: Datapoints after which they stop, for one that has no end; each thread may take one more.
        num_threads: How many there are.

    Raises:
        BaseException: What one of them met.
    """
    found: list[Any] = []
    errors: list[BaseException] = []
    start = threading.Barrier(num_threads)

    def step() -> None:
        start.wait(LIMIT)
        while len(found) < most and not errors:
            try:
                found.append(next(iterator))
            except StopIteration:
                return
            except BaseException as error:
                if not isinstance(error, NotReentrant) and str(error) != "generator already executing":
                    errors.append(error)
                elif not found:  # workers start: do not take the processor from them
                    time.sleep(1e-3)

    threads = [threading.Thread(target=step, daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return found


@contextmanager
def loop_ended_by_close(df: DataFlow) -> Iterator[list[DataFlowTerminated]]:
    """Another thread iterates `df`, which the code within closes; then the list has the error that ended the loop."""
    errors: list[DataFlowTerminated] = []

    def loop() -> None:
        try:
            list(df)
        except DataFlowTerminated as error:
            errors.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    yield errors
    thread.join(LIMIT)
    assert len(errors) == 1, "the loop has not been ended"


class Interrupted(WeakSet[Any]):
    """While it is iterated for the first time, another thread takes its turn."""

    other_thread: Callable[[], object] | None = None

    def __iter__(self) -> Iterator[Any]:
        for member in super().__iter__():
            if self.other_thread is not None:
                turn, self.other_thread = self.other_thread, None
                turn()
            yield member
