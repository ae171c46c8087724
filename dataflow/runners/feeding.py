"""Feeding: reads the source of a map for a while, hands out the results that have come, and repeats.

Guarantees:

- The source is read in the consumer's own thread, and never under the engine's lock: another thread that closes the
  flow does not wait for it.
- It is read as far as `buffer_size` allows, but no longer than `_BURST` seconds at a time while results are there.
- A datapoint is encoded before the source takes its next step.
- Only one thread reads at a time: `SourceReader` has a lock, which is taken once for many steps, because to take it
  costs as much as a step of a user's node.
- A pass begins only when its first datapoint is asked for. An empty pass or an exception ends the reading.
- An exception of the source is raised after everything that was read before it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from dataflow.errors import TimeoutError
from dataflow.protocol.base import DataFlow
from dataflow.protocol.pauses import paused, pausing
from dataflow.protocol.seeding import Stream
from dataflow.runners.engine import Engine
from dataflow.runners.schedules import MapTasks
from dataflow.transport.message_layout import NO_ROOM
from dataflow.transport.task_queue import PlainEncoder

__all__ = ["Feeder", "SourceReader", "passes_of"]


# -- Reader of the input -----------------------------------------------------------------------------------------------


def passes_of(ds: DataFlow, numbers: Iterable[int], stream: Stream) -> Iterator[Iterator[Any]]:
    """The passes with these numbers, each of which begins when it is asked for."""
    return (ds._df_run_pass(p, stream) for p in numbers)


class SourceReader:
    """Passes that are being read.

    It is an iterator that returns itself as long as datapoints may be left, so wrappers that guard the steps of
    iterators guard reading too.
    """

    def __init__(self, passes: Iterable[Iterator[Any]], *, waits: bool = False) -> None:
        self._passes = iter(passes)
        self._waits = waits  # whether a pass may raise `TimeoutError`, and continues after it
        self._lock = threading.Lock()
        self._current: Iterator[Any] | None = None  # None between two passes
        self._is_empty = True  # no datapoint of the current pass was read so far
        self._is_over = False

    def __iter__(self) -> SourceReader:
        return self

    def __next__(self) -> SourceReader:
        # Read without the lock, as a hint: `read` looks again under it.
        if self._is_over:
            raise StopIteration
        return self

    def read(self, max_count: int, encode_plain: PlainEncoder | None, plain: list[Any]) -> Any:
        """Read up to `max_count` datapoints, and append them to `plain`, encoded by `encode_plain`.

        Returns:
            A datapoint that `encode_plain` does not encode, or any datapoint if it is None; otherwise `NO_ROOM`.
        """
        with self._lock:
            if self._is_over:  # another thread has read to the end
                return NO_ROOM
            return self._read(max_count, encode_plain, plain)

    # A function of its own: in CPython 3.11, what a tracer raises at a `try` within a `with` leaves the `with` unended.
    def _read(self, max_count: int, encode_plain: PlainEncoder | None, plain: list[Any]) -> Any:
        try:
            current = self._current = self._current or next(self._passes, None)
            if current is None:
                self._is_over = True
                return NO_ROOM
            other = next(current, NO_ROOM) if encode_plain is None else encode_plain(islice(current, max_count), plain)
        except BaseException as error:
            # A generator that has raised is finished, and its next step would look like a normal end. Only where nodes
            # wait do iterators survive a `TimeoutError`.
            self._is_over = not (self._waits and isinstance(error, TimeoutError))
            self._is_empty = self._is_empty and not plain
            raise
        if other is not NO_ROOM or plain:
            self._is_empty = False
        # Fewer than were asked for: the pass has ended. If it was empty, all that follow would be, too.
        if other is NO_ROOM and (encode_plain is None or len(plain) < max_count):
            self._current, self._is_over, self._is_empty = None, self._is_empty, True
        return other


# -- A pass of the map -------------------------------------------------------------------------------------------------


_BURST: Final = 2e-3  # seconds of reading, after which results that have come are handed out
_SHORT: Final = 2e-4  # seconds; while a few datapoints are read faster, more may be read at a time
_MAX_AT_ONCE: Final = 256


class Feeder:
    """One pass of a map: what is read becomes tasks of the engine's workers.

    Args:
        engine: The engine of the map.
        generation: Of this iteration.
        source: Iterator over `SourceReader` objects, stepped once before each read.
    """

    def __init__(self, engine: Engine[MapTasks], generation: object, source: Iterator[SourceReader]) -> None:
        self._engine = engine
        self._generation = generation
        self._source = source
        self._num_at_once = 1  # maximum number of datapoints read between two checks of results and time

    def chunks(self, timeout: float | None, waits: bool) -> Iterator[Iterator[Any]]:
        """Yield chunks of results until the source has ended and all are handed out.

        Args:
            timeout: As for `Engine.chunk`.
            waits: Whether the engine or the source may raise `TimeoutError`, after which the next step continues.
        """
        return pausing(self._chunks(timeout, waits), waits)

    def _chunks(self, timeout: float | None, waits: bool) -> Iterator[Any]:
        session = self._engine.session
        failure: Exception | None = None
        late: TimeoutError | None = None  # of the source: raised when what was read before is handed out
        pause: Any = None
        reading = True
        while True:
            more = False
            if late is not None and self._pause_source():
                error, late = late, None
                pause = paused(error, waits)
                del error  # its traceback holds this frame, and so the datapoints in it
                yield pause
                pause = None
            if reading and late is None:
                session.check_process()
                self._engine.metrics.enter()
                try:
                    reading, more = self._read()
                except Exception as error:
                    if not session.is_own:  # in a child that the source has forked
                        raise
                    if waits and isinstance(error, TimeoutError):
                        late = error
                        continue
                    self._end_source()  # raises instead if the iteration was superseded or the flow is closed
                    failure, reading = error, False
                except BaseException:  # Ctrl-C in the source: the loop is left
                    self._engine.metrics.end_iteration()
                    raise
            try:
                # Without waiting while the source has more: the workers would run dry meanwhile.
                chunk = self._engine.chunk(self._generation, timeout, wait=not more)
            except TimeoutError as error:
                pause = paused(error, waits and not session.failed)
            # Yielded outside of `except`, where the error and its frames would stay alive until the next step.
            if pause is not None:
                yield pause
                pause = None
                continue
            if chunk is None:
                break
            yield chunk
        if failure is not None:
            raise failure

    def _read(self) -> tuple[bool, bool]:
        """Read for a while. Return whether the source continues, and whether more could be read at once."""
        engine, source = self._engine, self._source
        schedule, lock, session = engine.schedule, engine.lock, engine.session
        with lock:
            session.check(self._generation)
            engine.release_chunk()
        now = time.perf_counter()
        until = now + _BURST
        while True:
            with lock:
                session.check(self._generation)
                if not schedule.has_room():
                    schedule.pause()
                    return True, False
                encode_plain = schedule.task_queue.plain_encoder()
                max_count = min(self._num_at_once, schedule.room_in_task())
            reading = next(source, None)
            if reading is None:
                self._end_source()
                return False, False
            plain: list[Any] = []
            other: Any = NO_ROOM
            began = now
            try:
                # Not under the engine's lock: a `close` in another thread must not wait for the user's code.
                other = reading.read(max_count, encode_plain, plain)
            except TimeoutError:  # the source may continue
                raise
            except BaseException:
                next(source, None)  # release what the source keeps for the next loop
                raise
            finally:
                # Also after an exception: what was read before it is handed out first.
                if session.is_own:  # not in a child that the source has forked
                    with lock:
                        self._check_reader()
                        schedule.add_encoded(plain)
                        if other is not NO_ROOM:
                            schedule.add(other)
                            del other
            session.check_process()  # a child that the source has forked ends here, and does not read on for its parent
            now = time.perf_counter()
            took = now - began
            engine.metrics.read_source(took)
            if took > _SHORT:
                self._num_at_once = max(1, int(max_count * _SHORT / took))
            elif self._num_at_once < 2 * max_count:
                self._num_at_once = min(2 * max_count, _MAX_AT_ONCE)
            if now > until:
                with lock:
                    self._check_reader()
                    schedule.pause()
                return True, True

    def _check_reader(self) -> None:
        """Check the session, with what was just read in hand.

        If passes continue one another, it belongs to the iteration that took over in the meantime.
        """
        self._engine.session.check(None if self._engine.schedule.continues else self._generation)

    def _pause_source(self) -> bool:
        """Issue what was read so far; return whether the workers have nothing to do."""
        with self._engine.lock:
            self._engine.session.check(self._generation)
            self._engine.release_chunk()
            self._engine.schedule.pause()
            return self._engine.schedule.is_idle

    def _end_source(self) -> None:
        with self._engine.lock:
            self._engine.session.check(self._generation)
            self._engine.schedule.send()
            self._engine.schedule.end()
