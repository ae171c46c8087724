"""Map engine: reads the source for a while, hands out the results that have come, and repeats.

Guarantees:

- The source is read in the consumer's own thread, and never under the engine's lock: another thread that closes the
  flow does not wait for it.
- It is read as far as `buffer_size` allows, but no longer than `_BURST` seconds at a time while results are there.
- A datapoint is encoded before the source takes its next step.
- An exception of the source is raised after everything that was read before it.
"""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Iterator
from typing import Any, Final

from dataflow.codec.message_layout import NO_ROOM
from dataflow.engine.engine import PassEngine
from dataflow.engine.source_reader import SourceReader

__all__ = ["MapEngine"]

_BURST: Final = 2e-3
_SHORT: Final = 2e-4  # seconds; while a few datapoints are read faster, more may be read at a time
_MAX_AT_ONCE: Final = 256


class MapEngine(PassEngine):
    """An engine whose workers process what the consumer reads."""

    _num_at_once = 1  # maximum number of datapoints read between two checks of results and time

    def resume(self) -> object:
        """Take over, and continue with the work under way. Return the generation of this iteration."""
        generation = self.take_over()
        with self.lock:
            self.check(generation)
            self.schedule.resume()
        return generation

    def steps(
        self, generation: object, source: Iterator[SourceReader], timeout: float | None
    ) -> Iterator[Iterator[Any]]:
        """Yield chunks of results until the source has ended and all are handed out.

        Args:
            generation: Of this iteration.
            source: Iterator over `SourceReader` objects, stepped once before each read.
            timeout: As for `chunk`.
        """
        failure: Exception | None = None
        reading = True
        while True:
            more = False
            if reading:
                self.check_process()
                try:
                    reading, more = self._read(generation, source)
                except Exception as error:
                    if os.getpid() != self.pid:  # in a child that the source has forked
                        raise
                    self._end_source(generation)  # raises instead if the iteration was superseded or the flow is closed
                    failure, reading = error, False
            chunk = self.chunk(generation, timeout, wait=not more)
            if chunk is None:
                break
            yield chunk
        if failure is not None:
            raise failure

    def _read(self, generation: object, source: Iterator[SourceReader]) -> tuple[bool, bool]:
        """Read for a while. Return whether the source continues, and whether more could be read at once."""
        schedule, lock, check = self.schedule, self.lock, self.check
        with lock:
            check(generation)
            if not operator.length_hint(self.current_chunk):
                self.finish_chunk()
        now = time.perf_counter()
        until = now + _BURST
        while True:
            with lock:
                check(generation)
                if not schedule.has_room():
                    schedule.pause()
                    return True, False
                encode_plain, max_count = schedule.plain_encoder(), min(self._num_at_once, schedule.room_in_task())
            reading = next(source, None)
            if reading is None:
                self._end_source(generation)
                return False, False
            plain: list[Any] = []
            other: Any = NO_ROOM
            began = now
            try:
                other = reading.read(max_count, encode_plain, plain)
            except BaseException:
                next(source, None)  # release what the source keeps for the next loop
                raise
            finally:
                if os.getpid() == self.pid:  # not in a child that the source has forked
                    with lock:
                        # If passes continue one another, the datapoints belong to the iteration that took over.
                        check(self.generation if schedule.continues else generation)
                        schedule.add_encoded(plain)
                        if other is not NO_ROOM:
                            schedule.add(other)
                            del other
            self.check_process()
            now = time.perf_counter()
            took = now - began
            if took > _SHORT:
                self._num_at_once = max(1, int(max_count * _SHORT / took))
            elif self._num_at_once < 2 * max_count:
                self._num_at_once = min(2 * max_count, _MAX_AT_ONCE)
            if now > until:
                with lock:
                    check(self.generation if schedule.continues else generation)
                    schedule.pause()
                return True, True

    def _end_source(self, generation: object) -> None:
        with self.lock:
            self.check(generation)
            self.schedule.send()
            self.schedule.end()
