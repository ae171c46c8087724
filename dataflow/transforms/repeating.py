"""Repetition: nodes that repeat passes or datapoints, or change the size of a pass."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any

import numpy as np

from dataflow.errors import Dropped, EmptyPass, LengthUnknown, NotReentrant, TimeoutError
from dataflow.protocol.base import Blocks, DataFlow, ProxyDataFlow, T_co
from dataflow.protocol.datapoint import HOLE
from dataflow.protocol.parameters import flag, whole_number
from dataflow.protocol.passes import known_length, passes_on
from dataflow.protocol.pauses import flatten, limit, paused, pausing
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import state_of
from dataflow.transforms.arguments import endless_input
from dataflow.transforms.indexing import Indexes, none_dropped, onwards, pass_in_order

__all__ = ["FixedSizeData", "RepeatedData", "RepeatedDataPoint"]

_logger = logging.getLogger("dataflow.transforms")

_MANY = 1_000_000  # indexes without a datapoint after which a flow of unknown length counts as empty


class RepeatedData(ProxyDataFlow[T_co]):
    """Several passes of the input as one.

    With ``num=-1`` a pass never ends; the next loop continues where the last one stopped. If a pass
    of the input is empty, the endless flow ends with a warning.

    Args:
        ds: The input.
        num: How many passes of `ds` make one pass; -1 for an endless pass.

    Raises:
        ValueError: `num` is neither -1 nor at least 1.

    Example:
        >>> df = RepeatedData(DataFromList([[1], [2]], shuffle=False), 2)
        >>> len(df), list(df)
        (4, [[1], [2], [1], [2]])
    """

    def __init__(self, ds: DataFlow[T_co], num: int) -> None:
        super().__init__(ds)
        self.num = whole_number(self, "num", num)
        if self.num != -1:
            whole_number(self, "num", num, 1, alternatives=", or -1 for no end")

    @property
    def _df_endless(self) -> bool:
        return self.num == -1 or self.ds._df_endless

    @property
    def _df_continues(self) -> bool:
        return self.num == -1

    def __len__(self) -> int:
        if self.num == -1:
            raise LengthUnknown(
                "a pass of RepeatedData(…, -1) never ends; wrap it in FixedSizeData(df, size) to give it a length"
            )
        return len(self.ds) * self.num

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        self._warn_if_useless()
        if self.num == -1:
            return state_of(self).continued.take(stream, partial(self._endless, stream), self)
        passes = range(p * self.num, (p + 1) * self.num)
        return chain.from_iterable(map(self.ds._df_run_pass, passes, repeat(stream)))

    def _df_origins(self, indexes: Indexes, stream: Stream) -> Indexes:
        return self.ds._df_origins(indexes, stream)

    def _warn_if_useless(self) -> None:
        """Log once that the input already repeats endlessly because it is not strict."""
        flow_state = state_of(self)
        if flow_state.warned:
            return
        flow_state.warned = True
        if not self.ds._df_endless:
            return
        cause, name = endless_input(self.ds)
        if cause._df_ends_if_strict:
            _logger.warning(
                "RepeatedData(…, %d) has no effect: the first pass of its input never ends, because %s repeats its "
                "own input. Pass strict=True to %s, or leave out RepeatedData",
                self.num,
                name,
                name,
            )

    def _endless(self, stream: Stream) -> Iterator[Any]:
        return chain(passes_on(self.ds, stream), self._ended())

    def _ended(self) -> Iterator[Any]:
        _logger.warning("RepeatedData(…, -1) ends, because a pass of %s was empty", type(self.ds).__name__)
        yield from ()


class RepeatedDataPoint(ProxyDataFlow[T_co]):
    """Repeat every datapoint several times in a row: the same object each time.

    Args:
        ds: The input.
        num: Number of repetitions, at least 1.

    Example:
        >>> list(RepeatedDataPoint(DataFromList([[1], [2]], shuffle=False), 2))
        [[1], [1], [2], [2]]
    """

    def __init__(self, ds: DataFlow[T_co], num: int) -> None:
        super().__init__(ds)
        self.num = whole_number(self, "num", num, 1)

    def __len__(self) -> int:
        return len(self.ds) * self.num

    @property
    def _df_grain(self) -> int:
        return self.ds._df_grain * self.num

    @property
    def _df_least_task(self) -> int:
        return self.ds._df_least_task * self.num

    @property
    def _df_continues(self) -> bool:
        return self._df_endless

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return pass_in_order(self, stream, partial(self._in_order, p, stream))

    def _in_order(self, p: int, stream: Stream) -> Iterator[Any]:
        return flatten(map(repeat, self.ds._df_run_pass(p, stream), repeat(self.num)), self._df_waits)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return chain.from_iterable(map(partial(self._read, stream), blocks))

    def _read(self, stream: Stream, indexes: Indexes) -> Iterator[Any]:
        # Adjacent indexes of one datapoint request it once.
        below = indexes // self.num
        first = np.flatnonzero(np.diff(below, prepend=-1))
        lengths = np.diff(first, append=len(below))
        return flatten(map(repeat, self.ds._df_at([below[first]], stream), lengths.tolist()), self._df_waits)


class _Place:
    """The position at which a flow with dropped datapoints continues."""

    def __init__(self) -> None:
        self.next: int | None = None  # the index after the last datapoint yielded; None while none was dropped
        self.generation: object = None  # of the most recent iteration


class FixedSizeData(ProxyDataFlow[T_co]):
    """Passes of a given size, shorter or longer than those of the input.

    With ``keep_state=True`` a pass continues in the input where the last one ended: pass `p` of a flow that can be
    addressed holds its datapoints from index ``p * size``, even after a pass that was left early. If a map below drops
    datapoints, it begins after the last datapoint that was yielded, and the following datapoints fill up the pass. With
    ``keep_state=False`` every pass begins with a new pass of the input.

    Args:
        ds: The input.
        size: Datapoints per pass, at least 1.
        keep_state: Continue where the last pass ended.

    Raises:
        EmptyPass: A pass of the input is empty.

    Example:
        >>> df = FixedSizeData(DataFromList([[k] for k in range(3)], shuffle=False), 2)
        >>> [list(df) for _ in range(3)]
        [[[0], [1]], [[2], [0]], [[1], [2]]]
    """

    _df_counts = True
    _df_endless = False

    def __init__(self, ds: DataFlow[T_co], size: int, keep_state: bool = True) -> None:
        super().__init__(ds)
        self._size = whole_number(self, "size", size, 1)
        self.keep_state = flag(self, "keep_state", keep_state)

    @property
    def _df_parameters(self) -> dict[str, Any]:
        return {**super()._df_parameters, "size": self._size}

    def __len__(self) -> int:
        return self._size

    @property
    def _df_continues(self) -> bool:
        return self.keep_state

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        if known_length(self.ds) == 0:
            raise self._empty()
        return none_dropped(self.ds._df_at(map(self._below, blocks), stream), self)

    def _df_num_below(self, num: int) -> int | None:
        return int(self._below(np.array([num]))[0])

    def _below(self, indexes: Indexes) -> Indexes:
        if self.keep_state or self.ds._df_endless:
            return indexes
        passes, positions = np.divmod(indexes, self._size)
        n = len(self.ds)
        below: Indexes = passes * (-(-self._size // n) * n) + positions
        return below

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        n = known_length(self.ds)
        if n == 0:
            raise self._empty()
        if self.ds._df_addressable:
            if self.ds._df_endless:
                state_of(self).continued.require_same_weights(stream, self)
            begin = int(self._below(np.array([p * self._size]))[0])
            most = 2 * n if n else _MANY
            place = state_of(self).continued.note(stream, _Place) if self.keep_state else _Place()
            generation = place.generation = object()
            begin = begin if place.next is None else place.next
            datapoints = pausing(self._present(begin, most, stream, place, generation), self._df_waits)
        elif self.keep_state and self.ds._df_endless and self.ds._df_continues:
            datapoints = self.ds._df_run_pass(p, stream)  # continues where it stopped
        elif self.keep_state:
            begin_again = partial(passes_on, self.ds, stream)
            datapoints = state_of(self).continued.take(stream, begin_again, self)
        else:
            datapoints = passes_on(self.ds, stream, p * (-(-self._size // n) if n else self._size))
        return limit(chain(datapoints, self._ended()), self._df_waits, self._size)

    def _present(self, begin: int, most: int, stream: Stream, place: _Place, generation: object) -> Iterator[Any]:
        """The datapoints from index `begin` that are present; ends after `most` holes in a row.

        After the first hole it keeps `place` up to date, at which the next pass begins.

        Raises:
            Dropped: There is a hole, so the next pass depends on this one, and must not.
        """
        holes = 0
        has_dropped = place.next is not None
        if stream.standalone and has_dropped:
            raise self._continues(stream)
        waits = self._df_waits
        numbered = enumerate(self.ds._df_at(onwards(begin, self._size), stream), start=begin + 1)
        while True:
            try:
                for index, dp in numbered:
                    if dp is HOLE:
                        if stream.standalone and self.keep_state:
                            raise self._continues(stream)
                        holes, has_dropped = holes + 1, True
                        if holes >= most:
                            return
                        continue
                    holes = 0
                    if has_dropped:
                        if place.generation is not generation:
                            raise self._taken_over()
                        place.next = index
                    yield dp
                return
            except TimeoutError as error:
                pause = paused(error, waits)
            yield pause

    def _taken_over(self) -> NotReentrant:
        return NotReentrant(
            f"a later iteration of {type(self).__name__} took over; it can serve one at a time, because a map below "
            "drops datapoints, so that a pass continues where the last one stopped. Make one flow for each loop"
        )

    def _continues(self, stream: Stream) -> Dropped:
        return Dropped(
            "a map below FixedSizeData has dropped a datapoint, so a pass of FixedSizeData continues where the last "
            f"one stopped, {stream.standalone}"
        )

    def _ended(self) -> Iterator[Any]:
        raise self._empty()
        yield

    def _empty(self) -> EmptyPass:
        name = type(self.ds).__name__
        return EmptyPass(
            f"FixedSizeData needs {self._size} datapoints, but a pass of {name} is empty: check its source"
        )
