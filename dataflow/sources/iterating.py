"""Iterable sources: datapoints from anything that Python can iterate.

An iterable that can be iterated repeatedly yields a new pass each time. An iterator, such as a generator object, can be
read only once: a pass continues where the last one stopped, and another pass after its end raises `SourceExhausted`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from functools import partial
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Any
from weakref import proxy

from dataflow.errors import LengthUnknown, SourceExhausted, TimeoutError
from dataflow.protocol.base import T_co
from dataflow.protocol.parameters import deferred_function, deferred_kind, deferred_result
from dataflow.protocol.passes import RunningPass, begun_by_code, code_of, enter_code, leave_code, used_up, watched_steps
from dataflow.protocol.pauses import require_waiting
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import state_of
from dataflow.sources.source import Source
from dataflow.sources.table_hints import cure_of
from dataflow.system.session import Session

if TYPE_CHECKING:
    from dataflow.protocol.first_steps import WatchedSteps

__all__ = ["DataFromAsyncIterable", "DataFromGenerator", "DataFromIterable"]

_NOTHING = object()


class _Iterated(Source[T_co]):
    """A source over an iterable, or over a function that makes one."""

    _touched = False  # whether the iterator, which can be read only once, has been read

    @property
    def _df_continues(self) -> bool:
        return any(isinstance(value, Iterator) for value in self._df_compared.values())

    _df_calls = True

    def _read(self, iterable: Iterable[Any], p: int, stream: Stream) -> Iterator[Any]:
        if not isinstance(iterable, Iterator):
            return begun_by_code(self, p, stream, lambda: iterable)
        begin = partial(self._remaining, iterable, stream)
        return state_of(self).continued.take(stream, begin, self)

    def _remaining(self, iterator: Iterator[Any], stream: Stream) -> Iterator[Any]:
        read_before, self._touched = self._touched, True
        frame = enter_code(RunningPass(proxy(self), 0, stream))  # this node keeps the iterator, which must not hold it
        try:
            watch = watched_steps(self, stream)
            first = next(iterator, _NOTHING) if watch is None else watch.call(partial(next, iterator, _NOTHING))
            if first is not _NOTHING:
                yield first
                del first  # a reference would keep it in memory during the pass
                if watch is None or not (yield from watch.steps(iterator)):
                    yield from iterator
                return
        except TimeoutError as error:
            require_waiting(error, False, code_of(self))
            raise
        finally:
            leave_code(frame)
        if read_before:
            raise SourceExhausted(
                f"{type(self).__name__} was given a {type(iterator).__name__}, which can be read once and has nothing "
                "left for another pass. Pass the function that makes it to DataFromGenerator, without calling it"
            )


class DataFromGenerator(_Iterated[T_co]):
    """The datapoints of an iterable, or of a function that returns one; the function is called for every pass.

    Args:
        gen: A function without parameters that returns an iterable (a generator function, for example), or an iterable.

    Raises:
        TypeError: `gen` is neither a function nor an iterable.
        SourceExhausted: `gen` is, or returns, a generator object that was read to its end, and another pass is
            requested.

    Example:
        >>> def count():
        ...     yield [0]
        ...     yield [1]
        >>> df = DataFromGenerator(count)
        >>> list(df), list(df)
        ([[0], [1]], [[0], [1]])
    """

    def __init__(self, gen: Iterable[T_co] | Callable[[], Iterable[T_co]]) -> None:
        deferred = (deferred_function if callable(gen) else deferred_result)(gen, of_source=True)
        if deferred is not None:
            raise TypeError(f"DataFromGenerator: gen is {deferred}")
        if not callable(gen) and not _iterable(gen):
            raise TypeError(
                f"DataFromGenerator expects an iterable or a function that returns one as gen, got {type(gen).__name__}"
            )
        if (cure := cure_of(gen)) is not None:
            raise TypeError(f"DataFromGenerator: gen is a {type(gen).__name__}: {cure}")
        self.gen = gen

    def __len__(self) -> int:
        try:
            return len(self.gen)  # type: ignore[arg-type]
        except TypeError:
            raise LengthUnknown("a pass of DataFromGenerator has no known length") from None

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return begun_by_code(self, p, stream, self.gen) if callable(self.gen) else self._read(self.gen, p, stream)


class DataFromIterable(_Iterated[T_co]):
    """The datapoints of an iterable.

    Its length, if it has one, is read once, in the constructor.

    Args:
        iterable: Anything that Python can iterate.

    Raises:
        TypeError: `iterable` is not an iterable.
        SourceExhausted: `iterable` is an iterator that was read to its end, and another pass is requested.

    Example:
        >>> df = DataFromIterable(zip("ab", [1, 2]))
        >>> list(df)
        [('a', 1), ('b', 2)]
    """

    def __init__(self, iterable: Iterable[T_co]) -> None:
        if (deferred := deferred_result(iterable, of_source=True)) is not None:
            raise TypeError(f"DataFromIterable: iterable is {deferred}")
        if not _iterable(iterable):
            cure = (
                "DataFromGenerator takes a function" if callable(iterable) else "pass a list of datapoints, for example"
            )
            raise TypeError(f"DataFromIterable expects an iterable, got {type(iterable).__name__}: {cure}")
        if (cure := cure_of(iterable)) is not None:  # type: ignore[assignment]
            raise TypeError(f"DataFromIterable: iterable is a {type(iterable).__name__}: {cure}")
        self.iterable = iterable
        try:
            self._length: int | None = len(iterable)  # type: ignore[arg-type]
        except TypeError:
            self._length = None

    def __len__(self) -> int:
        if self._length is None:
            raise LengthUnknown(
                f"a pass of DataFromIterable has no known length: a {type(self.iterable).__name__} has no len()"
            )
        return self._length

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return self._read(self.iterable, p, stream)


class DataFromAsyncIterable(Source[T_co]):
    """The datapoints of an async iterable; the function that makes it is called for every pass.

    It runs on an event loop in a thread of this process, the one of `AsyncMapData`: also in a notebook, which has a
    loop of its own. Each datapoint is requested when the consumer asks for it. When a loop is left, the iterable is
    closed, which is waited for, for up to five seconds.

    Args:
        make: A function without parameters that returns an async iterable; an async generator function, for example.

    Raises:
        TypeError: `make` is no such function, or it returns something else.
        SourceExhausted: `make` returns an async generator object that was read to its end.

    Example:
        >>> import asyncio
        >>> async def count():
        ...     for k in range(3):
        ...         await asyncio.sleep(0.01)
        ...         yield [k]
        >>> with DataFromAsyncIterable(count) as df:
        ...     list(df), list(df)
        ([[0], [1], [2]], [[0], [1], [2]])
    """

    _df_calls = True

    def __init__(self, make: Callable[[], AsyncIterable[T_co]]) -> None:
        kind = deferred_kind(make)
        if hasattr(make, "__aiter__"):
            got = f"a {type(make).__name__}, which is an async iterable itself. Pass the function, without calling it"
        elif not callable(make):
            got = f"a {type(make).__name__}. DataFromIterable takes an iterable"
        elif kind == "a coroutine":
            got = "a coroutine function. Yield the datapoints in it, which makes it an async generator function"
        elif kind == "a generator":
            got = "a generator function. DataFromGenerator takes it"
        else:
            self.make = make
            return
        raise TypeError(
            "DataFromAsyncIterable expects a function that returns an async iterable, such as an async generator "
            f"function, as make, got {got}"
        )

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return self._elements(RunningPass(self, p, stream), watched_steps(self, stream), state_of(self).session)

    def _elements(self, code: RunningPass, watch: WatchedSteps | None, session: Session) -> Iterator[Any]:
        from dataflow.protocol.event_loop import AsyncSteps, loop_user  # they import asyncio, which few programs need

        elements = AsyncSteps(loop_user(self, session), self._begin, code).elements()
        if watch is None or not (yield from watch.steps(elements)):
            yield from elements

    def _begin(self) -> AsyncIterable[Any]:
        made = self.make()
        if isinstance(made, AsyncGeneratorType) and made.ag_frame is None:
            raise used_up(type(self).__name__, "make")
        if hasattr(type(made), "__aiter__"):
            return made
        cure = "DataFromGenerator takes a function that returns an iterable" if _iterable(made) else "return one"
        raise TypeError(
            f"DataFromAsyncIterable: make has returned a {type(made).__name__}, which is no async iterable: {cure}"
        )

    def reset_state(self) -> None:
        """End the iterations under way."""
        super().reset_state()
        state_of(self).own(self, None)


def _iterable(value: Any) -> bool:
    return not isinstance(value, type) and (hasattr(value, "__iter__") or hasattr(value, "__getitem__"))
