"""Pauses: iterators that survive the `TimeoutError` that they raise, so that their next step waits again.

A generator is finished once an exception has left it: whoever steps it again finds a normal end, and the rest of the
pass is lost. So where a node of a chain may wait for too long (`DataFlow._df_waits`, read when the pass begins), no
`TimeoutError` leaves a generator of ours. It catches the error, keeps what it has collected, and yields a `Pause`;
`pausing` raises the error from there to whoever steps it, and the generator continues with its next step:

    while True:
        try:
            for dp in datapoints:
                yield dp
            return
        except TimeoutError as error:
            pause = paused(error, waits)
        yield pause

The `try` stands around the loop, so it costs nothing per datapoint; where no node waits, nothing else is added.

Guarantees, where a node waits:

- Every iterator of a pass, or of indexes, raises a `TimeoutError` from below, and continues with its next step. Of
  Python's own, `map` over one input, `filter`, `takewhile` and `chain` of given iterators do. `islice` does not
  (`limit`), nor does `chain.from_iterable` if the error comes from what lists the iterators (`flatten`); `map` over
  several inputs loses what the first ones gave (`side_by_side`), and `list` all (extend one that is kept).
- User-written code never sees a `Pause`: the error is raised into it. If it lets the error through, it cannot continue,
  and the next step of its pass raises `DataFlowTerminated`.
- The same holds if the error came from a worker, which has ended with it.
- A flow that such code reads without being an input of its node is not seen by `_df_waits`. There the error is raised
  as `DataFlowTerminated` at once (`require_waiting`): nothing would be left to raise it at the next step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

from dataflow.errors import DataFlowTerminated, TimeoutError

__all__ = ["Pause", "flatten", "limit", "paused", "pausing", "require_waiting", "resumed", "side_by_side"]

T = TypeVar("T")


class Pause:
    """What a generator yields in place of a `TimeoutError` that would finish it.

    Args:
        error: The error. It is held only until it is raised: its traceback holds the frames of the consumer.
    """

    __slots__ = ("_errors",)

    def __init__(self, error: TimeoutError) -> None:
        self._errors = [error]

    def take(self) -> TimeoutError:
        return self._errors.pop()


def paused(error: TimeoutError, waits: bool) -> Pause:
    """What a generator yields in place of `error`; raise it if `pausing` would not be there to raise it."""
    if not waits:
        raise error
    return Pause(error)


def pausing(steps: Iterator[T], waits: bool, ended: str = "a worker") -> Iterator[T]:
    """The datapoints of the generator `steps`; with `waits`, the errors in its pauses are raised.

    Args:
        steps: The generator, which is returned itself without `waits`.
        waits: Whether a node of the chain may raise `TimeoutError`.
        ended: What has ended if a `TimeoutError` leaves the generator itself, for messages.
    """
    return _Steps(steps, ended) if waits else steps


def require_waiting(error: TimeoutError, waits: bool, ended: str) -> None:
    """Check that `pausing` is there to say, at the next step, that `ended`, which `error` leaves, cannot continue.

    Raises:
        DataFlowTerminated: It is not.
    """
    if not waits:
        raise DataFlowTerminated(_over(error, ended)) from error


def _over(error: TimeoutError, ended: str) -> str:
    return (
        f"this pass ended with a TimeoutError ({error}), because the error left {ended}, which cannot continue. "
        "Iterate the flow again; to continue after a timeout, catch the error there and step the same iterator again, "
        "or put timeout= on a node above"
    )


class _Steps(Iterator[Any]):
    """An iterator over a generator that yields pauses. Two threads that step it at once get what a generator gives."""

    def __init__(self, steps: Iterator[Any], ended: str) -> None:
        self._steps = steps
        self._ended = ended
        self._terminated = ""  # why the generator is finished, if it has not ended normally

    def __next__(self) -> Any:
        try:
            dp = next(self._steps)
        except StopIteration:
            if self._terminated:
                raise DataFlowTerminated(self._terminated) from None
            raise
        except TimeoutError as error:
            self._terminated = _over(error, self._ended)
            raise
        except DataFlowTerminated as error:
            self._terminated = str(error)
            raise
        if type(dp) is Pause:
            raise dp.take()
        return dp

    def close(self) -> None:
        """End the pass, as the method of a generator."""
        self._steps.close()  # type: ignore[attr-defined]


def resumed(datapoints: Iterator[Any], waits: bool) -> Iterator[Any]:
    """For ``yield from`` in a generator that is given to `pausing`: the datapoints, and the pauses between them.

    Without `waits` there are none, and this is a way to iterate that does not close `datapoints` if it is left.
    """
    return _resumed(datapoints) if waits else islice(datapoints, None)


def _resumed(datapoints: Iterator[Any]) -> Iterator[Any]:
    while True:
        try:
            yield from islice(datapoints, None)  # which it does not close if it is left
            return
        except TimeoutError as error:
            pause = Pause(error)
        yield pause


def flatten(parts: Iterator[Iterable[Any]], waits: bool) -> Iterator[Any]:
    """The elements of all parts, as ``chain.from_iterable``, which ends if an exception of `parts` leaves it."""
    return pausing(_flatten(parts), True) if waits else chain.from_iterable(parts)


def _flatten(parts: Iterator[Iterable[Any]]) -> Iterator[Any]:
    for part in resumed(parts, True):
        if type(part) is Pause:
            yield part
        else:
            yield from part


def limit(datapoints: Iterator[T], waits: bool, stop: int | None, start: int = 0) -> Iterator[T]:
    """The datapoints from number `start` to before number `stop`, as `islice`, which no exception may leave."""
    return pausing(_limit(datapoints, stop, start), True) if waits else islice(datapoints, start, stop)


def _limit(datapoints: Iterator[Any], stop: int | None, start: int) -> Iterator[Any]:
    k = 0
    while stop is None or k < stop:
        try:
            dp = next(datapoints)
        except StopIteration:
            return
        except TimeoutError as error:
            dp = Pause(error)
        else:
            k += 1
        if type(dp) is Pause or k > start:
            yield dp
        del dp


def side_by_side(inputs: Sequence[Iterator[Any]], waits: bool) -> Iterator[tuple[Any, ...]]:
    """The datapoints of all inputs at the same position, as `zip`, until one has no more."""
    return pausing(_rows(inputs), True) if waits else zip(*inputs, strict=False)


def _rows(inputs: Sequence[Iterator[Any]]) -> Iterator[Any]:
    row: list[Any] = []
    while True:
        try:
            for datapoints in inputs[len(row) :]:
                row.append(next(datapoints))  # noqa: PERF401 - what was taken before a timeout is kept
        except StopIteration:
            return
        except TimeoutError as error:
            pause = Pause(error)
        else:
            whole, row = tuple(row), []
            yield whole
            del whole
            continue
        yield pause
