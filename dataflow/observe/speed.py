"""Speed measurement: a node that measures datapoints per second."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from dataflow.errors import TimeoutError
from dataflow.observe.gathering import statistics_of
from dataflow.protocol.base import DataFlow, ProxyDataFlow, T_co
from dataflow.protocol.parameters import whole_number
from dataflow.protocol.passes import known_length
from dataflow.protocol.pauses import paused, pausing, resumed
from dataflow.protocol.seeding import Stream

__all__ = ["TestDataSpeed"]

_log = logging.getLogger("dataflow.observe.speed")


class TestDataSpeed(ProxyDataFlow[T_co]):
    """Measure how many datapoints per second a flow yields.

    `start` measures one pass. Iterating the node measures the pass first, and then yields it from its beginning; an
    input that continues where it stopped, such as a generator, continues after the measured datapoints. A
    `TimeoutError` of the input ends the measurement; the next step of the same iterator begins the pass itself.

    Args:
        ds: The flow to measure.
        size: Number of datapoints to measure, at least 1; fewer if the pass ends earlier.
        warmup: Number of datapoints to read before the measurement.

    Raises:
        ValueError: `size` is less than 1, or `warmup` is negative.

    Example:
        >>> speed = TestDataSpeed(DataFromList([[k] for k in range(100)]), size=50).start()
        >>> speed > 0
        True
    """

    __test__: ClassVar[bool] = False  # pytest would collect a class of this name

    def __init__(self, ds: DataFlow[T_co], size: int = 5000, warmup: int = 0) -> None:
        super().__init__(ds)
        size, warmup = whole_number(self, "size", size), whole_number(self, "warmup", warmup)
        if size < 1 or warmup < 0:
            raise ValueError(f"size must be at least 1 and warmup at least 0, got size={size} and warmup={warmup}")
        self.test_size = size
        self.warmup = warmup

    @property
    def _df_parameters(self) -> dict[str, Any]:
        return {**super()._df_parameters, "size": self.test_size}

    def start(self) -> float:
        """Measure a pass of the input, with a progress bar on stderr that shows who waits, the consumer or the workers.

        Returns:
            Datapoints per second, also logged; 0.0 if the pass ended during the warmup.
        """
        return self._measure(iter(self.ds))

    start_test = start

    _df_takes = 1

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        waits = self._df_waits
        return pausing(self._after_measuring(p, stream, waits), waits)

    def _after_measuring(self, p: int, stream: Stream, waits: bool) -> Iterator[Any]:
        try:
            self._measure(self.ds._df_run_pass(p, stream))
            pause = None
        except TimeoutError as error:
            pause = paused(error, waits)
        if pause is not None:
            _log.warning("nothing was measured: a step of %s raised TimeoutError", type(self.ds).__name__)
            yield pause
        yield from resumed(self.ds._df_run_pass(p, stream), waits)

    def _measure(self, datapoints: Iterator[Any]) -> float:
        warm = _exhaust(self._bar(itertools.islice(datapoints, self.warmup), self.warmup)) if self.warmup else 0
        total = self._measurable()
        bar = self._bar(itertools.islice(datapoints, self.test_size), total)  # imports it, which takes long
        begin = time.perf_counter()
        count = _exhaust(bar)
        seconds = time.perf_counter() - begin
        name = type(self.ds).__name__
        if not count:
            _log.warning(
                "nothing left to measure: the pass of %s ended after %d datapoints, and warmup is %d",
                name,
                warm,
                self.warmup,
            )
            return 0.0
        speed = count / max(seconds, 1e-9)  # the clock may not advance during one datapoint
        _log.info("%s: %.6g datapoints per second (%d in %.3g seconds)", name, speed, count, seconds)
        return speed

    def _measurable(self) -> int:
        length = None if self.ds._df_endless else known_length(self.ds)
        return self.test_size if length is None else min(self.test_size, max(length - self.warmup, 0))

    def _bar(self, datapoints: Iterable[Any], total: int) -> Iterable[Any]:
        from dataflow.observe.progress import FlowBar

        return FlowBar(datapoints, total=total, unit="dp", miniters=1, smoothing=0.2, waits=self._waits)

    def _waits(self) -> str:
        return statistics_of(self.ds).waits


def _exhaust(datapoints: Iterable[Any]) -> int:
    count = 0
    for _ in datapoints:
        count += 1
    return count
