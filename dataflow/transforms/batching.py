"""Batching: nodes that stack several datapoints into one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import replace
from functools import partial
from itertools import takewhile
from operator import is_not
from typing import Any, ClassVar, Final, overload

import numpy as np
from numpy.typing import DTypeLike

from dataflow.errors import LengthUnknown, ShapeMismatch, TimeoutError
from dataflow.protocol.base import Blocks, DataFlow, ProxyDataFlow, T_co, T_in
from dataflow.protocol.datapoint import INT32, component, present, stack
from dataflow.protocol.failures import Budget
from dataflow.protocol.parameters import count_or_fraction, flag, function, whole_number
from dataflow.protocol.passes import known_length
from dataflow.protocol.pauses import Pause, limit, paused, pausing, resumed
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import state_of
from dataflow.transforms.applying import Place, RequestedBlocks, ToleratesFailures, Uncopied
from dataflow.transforms.arguments import integer_dtype
from dataflow.transforms.filling import Filling, stack_filled
from dataflow.transforms.grouping import (
    MemoryWatch,
    NextGroup,
    ReusedMemory,
    copy_datapoint,
    has_several_sources,
    may_reuse_memory,
)
from dataflow.transforms.indexing import none_dropped, passes_and_positions

__all__ = ["BatchData", "BatchDataByShape", "GroupedData"]


_END: Final = object()
_is_batch: Final = partial(is_not, _END)


class GroupedData(ToleratesFailures[T_co], ProxyDataFlow[T_co]):
    """Every `batch_size` consecutive datapoints as one; subclasses say how they are combined.

    Args:
        ds: The input.
        batch_size: Datapoints per batch, at least 1.
        remainder: Yield the last batch even if it is shorter.
        max_failures: How many batches may fail to be made.
    """

    _df_counts = True

    def __init__(self, ds: DataFlow, batch_size: int, remainder: bool, *, max_failures: Budget | None = None) -> None:
        super().__init__(ds)
        self.batch_size = whole_number(self, "batch_size", batch_size, 1)
        self.remainder = flag(self, "remainder", remainder)
        self.max_failures = count_or_fraction(self, "max_failures", max_failures)
        if not remainder:
            _require_one_batch(ds, self.batch_size, self)

    def _df_combiner(self) -> Callable[[list[Any]], Any]:
        """The function that makes a batch of a list of datapoints. It is chosen once for a pass."""
        raise NotImplementedError

    _df_hands_on: bool = False
    """Whether a batch holds the datapoints as they are."""

    _df_stacks: ClassVar[bool] = False
    """Whether `_df_combiner` takes a `Filling` as well as a list."""

    def _df_next_group(self, datapoints: Iterator[Any], num: float | None = math.inf) -> NextGroup:
        """The groups of `datapoints`, which are `num`; None if that is unknown, and the last group may be shorter."""
        if not may_reuse_memory(self.ds, everywhere=True):
            return NextGroup(datapoints, None)
        state = state_of(self)
        memory = state.part(ReusedMemory)
        if memory.source is not self.ds:  # another input was assigned
            vars(memory).clear()
            several = has_several_sources(self.ds)
            if self._df_hands_on:
                memory.is_reused, memory.may_copy, memory.compares_all = False, False, True if several else None
            elif several:
                memory.is_reused = True
            memory.source = self.ds  # last: another thread that finds it relies on the rest
        if self._df_hands_on:
            datapoints = state.part(MemoryWatch).over(datapoints, self._df_waits)
            # Workers watch what they make.
            return NextGroup(datapoints, memory if may_reuse_memory(self.ds) else None, None, num)
        return NextGroup(datapoints, memory, Filling.begin if self._df_stacks else None, num)

    @property
    def _df_takes(self) -> int | None:  # type: ignore[override]
        return self.batch_size

    @property
    def _df_grain(self) -> int:
        return self.ds._df_grain // math.gcd(self.ds._df_grain, self.batch_size)

    @property
    def _df_least_task(self) -> int:
        return -(-self.ds._df_least_task // self.batch_size)

    def __len__(self) -> int:
        return self._df_num_from(0)

    def _df_num_from(self, begin: int, *, longest: bool = False) -> int:
        own, below = self._begins(begin)
        whole, rest = divmod(max(0, self.ds._df_num_from(below, longest=longest) - own), self.batch_size)
        return whole + (self.remainder and rest > 0)

    def _begins(self, begin: int) -> tuple[int, int]:
        """Where the batches begin in their input, and where passes of the input begin: at a shard, if one is below."""
        return (0, begin) if not begin or _has_share(self.ds) else (begin, 0)

    def _df_input(self, p: int, stream: Stream) -> Iterator[Any]:
        """The datapoints of which the batches of pass `p` are made."""
        own, below = self._begins(stream.begin)
        datapoints = self.ds._df_run_pass(p, replace(stream, begin=below) if stream.begin else stream)
        return limit(datapoints, self._df_waits, None, own) if own else datapoints

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        # No variable may hold a batch or its datapoints: the receiver of a batch may reuse its memory.
        num: float | None = math.inf
        if self.remainder and not self.ds._df_endless:
            own, below = self._begins(stream.begin)
            n = known_length(self.ds, below)
            num = None if n is None else n - own
        taken = partial(self._df_next_group(self._df_input(p, stream), num).take, self.batch_size)
        groups = iter(taken, [])
        made = self._df_made(self._df_combiner(), lambda k: (p, k), stream)
        return present(made.over(groups if self.remainder else takewhile(self._is_whole, groups)))

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        n = None if self.ds._df_endless else self.ds._df_num_from(self._begins(stream.begin)[1])
        requested = RequestedBlocks(blocks, partial(known_length, self, stream.begin))
        made = self._df_made(self._df_combiner(), requested.place, (stream, RequestedBlocks))
        waits = self._df_waits
        return made.over(pausing(self._groups_at(requested.recorded(made), n, stream, waits), waits))

    def _groups_at(self, blocks: Blocks, n: int | None, stream: Stream, waits: bool) -> Iterator[Any]:
        """The datapoints of each batch; `n` is the number of datapoints in a pass of the input."""
        begin, below = self._begins(stream.begin)
        num_batches = None if n is None else self._df_num_from(stream.begin)
        stream = replace(stream, begin=below) if stream.begin else stream
        for block in blocks:
            if n is None or num_batches is None:
                first, size = begin + block * self.batch_size, np.full(len(block), self.batch_size)
            else:
                passes, positions = passes_and_positions(self, block, num_batches)
                within = begin + positions * self.batch_size
                first, size = passes * n + within, np.minimum(self.batch_size, n - within)
            spread = first[:, None] + np.arange(self.batch_size)
            wanted = spread[np.arange(self.batch_size) < size[:, None]]
            datapoints = none_dropped(self.ds._df_at([wanted], stream), self)
            group = self._df_next_group(datapoints)
            for num in size.tolist():
                while True:
                    try:
                        yield group.take(num)
                        break
                    except TimeoutError as error:
                        pause = paused(error, waits)
                    yield pause

    def _df_num_below(self, num: int) -> int | None:
        if self.ds._df_endless:
            return num * self.batch_size
        p, position = divmod(num, max(len(self), 1))
        return p * len(self.ds) + position * self.batch_size

    def _is_whole(self, group: list[Any]) -> bool:
        return len(group) == self.batch_size


def _has_share(df: DataFlow[Any]) -> bool:
    """Whether the datapoints of `df`, or those of which they are made, are the share of one rank."""
    while not df._df_is_share:
        if df._df_takes is None or not df._df_inputs:
            return False
        df = df._df_inputs[0]
    return True


class BatchData(GroupedData[T_co]):
    """Stack every `batch_size` datapoints into one.

    A component of shape ``(H, W, 3)`` becomes ``(batch_size, H, W, 3)`` with the same dtype; numbers become a vector:
    Python ints int32, Python floats float32. Tensors of torch, arrays of JAX, PIL images, and anything else with
    ``__array__`` or ``__dlpack__`` are read as arrays; so are lists of numbers, which must have one length. Batches
    are NumPy arrays. Lists and tuples become a list, dicts a dict.

    The source may yield one buffer again and again, or several by turns, with other values. With `use_list` or
    `collate`, datapoints are handed on as they are, so that is an error.

    Args:
        ds: Datapoints of one kind: same components, same shapes.
        batch_size: Datapoints per batch, at least 1.
        remainder: Yield the last batch even if it is shorter.
        use_list: Do not stack: every component of a batch is a Python list.
        int_dtype: The integer dtype of Python ints.
        collate: A function that gets the list of datapoints and returns the batch, in place of stacking. Arrays that it
            makes with `dataflow.empty` or `aggregate_batch` are sent from a worker without another copy.
        max_failures: How many batches of one pass may fail because their datapoints do not form one, as for `MapData`;
            they are skipped, logged, and listed in `failures`.

    Raises:
        ValueError: A pass of `ds` is shorter than one batch, and `remainder` is False, so there would be no batch.
        ShapeMismatch: Datapoints of one batch differ in shape, or lists in length. Names the component and lists the
            shapes or lengths found.
        OverflowError: A Python int does not fit into `int_dtype`, a Python float would be infinite as float32, or an
            integer or a date would be another one in the common dtype of the batch.

    Example:
        >>> df = BatchData(DataFromList([[np.zeros((4, 2)), k] for k in range(5)], shuffle=False), 2)
        >>> [(image.shape, label.tolist()) for image, label in df]
        [((2, 4, 2), [0, 1]), ((2, 4, 2), [2, 3])]
        >>> words = DataFromList([["a", 1], ["b", 2]], shuffle=False)
        >>> list(BatchData(words, 2, collate=dict))
        [{'a': 1, 'b': 2}]
    """

    @overload
    def __init__(
        self,
        ds: DataFlow[T_in],
        batch_size: int,
        remainder: bool = False,
        use_list: bool = False,
        *,
        int_dtype: DTypeLike = INT32,
        collate: Callable[[list[T_in]], T_co],
        max_failures: Budget | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        ds: DataFlow,
        batch_size: int,
        remainder: bool = False,
        use_list: bool = False,
        *,
        int_dtype: DTypeLike = INT32,
        collate: None = None,
        max_failures: Budget | None = None,
    ) -> None: ...
    def __init__(
        self,
        ds: DataFlow,
        batch_size: int,
        remainder: bool = False,
        use_list: bool = False,
        *,
        int_dtype: DTypeLike = INT32,
        collate: Callable[[list[Any]], Any] | None = None,
        max_failures: Budget | None = None,
    ) -> None:
        super().__init__(ds, batch_size, remainder, max_failures=max_failures)
        self.use_list = flag(self, "use_list", use_list)
        # Attributes only if they differ from the default: states and caches saved before there were any stay valid.
        if (dtype := integer_dtype(self, int_dtype)) != INT32:
            self.int_dtype = dtype
        if collate is not None:
            self.collate = function(self, "collate", collate, "gets a list of datapoints, and returns a batch")
            if use_list:
                raise ValueError("BatchData: collate takes the place of stacking: leave out use_list=True")

    _df_stacks = True

    @staticmethod
    def aggregate_batch(data_holder: Sequence[Any], use_list: bool = False, *, int_dtype: DTypeLike = INT32) -> Any:
        """Stack the datapoints `data_holder` into one batch, for nodes that choose the datapoints themselves.

        Args:
            data_holder: Datapoints of one kind, at least one.
            use_list: Do not stack: every component of the batch is a Python list.
            int_dtype: The integer dtype of Python ints.

        Raises:
            ShapeMismatch: The datapoints differ in components, or a component in shape or kind; names the component.

        Example:
            >>> BatchData.aggregate_batch([[1, "a"], [2, "b"]], use_list=True)
            [[1, 2], ['a', 'b']]
        """
        dtype = INT32 if int_dtype is INT32 else integer_dtype("BatchData", int_dtype)
        return stack(data_holder, use_list=use_list, int_dtype=dtype)

    @property
    def _df_calls(self) -> bool:  # type: ignore[override]
        return "collate" in vars(self)

    @property
    def _df_hands_on(self) -> bool:  # type: ignore[override]
        return self.use_list or vars(self).get("collate") is not None

    @property
    def _df_parameters(self) -> dict[str, Any]:
        given = vars(self)
        return {
            **super()._df_parameters,
            "int_dtype": given.get("int_dtype", INT32),
            "collate": given.get("collate"),
        }

    def _df_made(self, func: Callable[[Any], Any], place: Place, scope: Any) -> Uncopied:
        made = super()._df_made(func, place, scope)
        if vars(self).get("collate") is not None:
            made.check_first_calls(self)
        return made

    def _df_combiner(self) -> Callable[[list[Any]], Any]:
        given = vars(self)  # a method of this name, of a user's subclass, means something else
        collate: Callable[[list[Any]], Any] | None = given.get("collate")
        if collate is not None:
            return collate
        int_dtype = given.get("int_dtype", INT32)
        return partial(stack, use_list=True) if self.use_list else partial(stack_filled, int_dtype=int_dtype)


class BatchDataByShape(ProxyDataFlow[T_co]):
    """Batch datapoints that have the same shape in one component.

    There is one incomplete batch per shape, so memory grows with the number of shapes. Batches that are incomplete at
    the end of a pass are carried over to the next one. If `ds` has a length, a pass has exactly
    ``len(ds) // batch_size`` batches: it reads on into the following passes of `ds`, at most `batch_size` of them, and
    the next pass continues there. If `ds` has no length, a pass is one pass of `ds`.

    Only one iteration is possible at a time. After a loop that is left early, the incomplete batches are kept, and `ds`
    begins its next pass. `reset_state` drops them.

    Args:
        ds: The input.
        batch_size: Datapoints per batch, at least 1.
        idx: Position or key of the component whose shape decides.
        remainder: Yield incomplete batches at the end of each pass of `ds`, in the order of their first datapoints, and
            carry nothing over. The number of batches in a pass is then unknown.

    Raises:
        ValueError: A pass of `ds` is shorter than one batch, and `remainder` is False.
        ShapeMismatch: Too many shapes: `batch_size` more passes of `ds` do not complete enough batches. The message
            holds the number of shapes.

    Example:
        >>> images = [[np.zeros(shape)] for shape in [(2, 2), (3, 3), (2, 2), (3, 3), (2, 2)]]
        >>> df = BatchDataByShape(DataFromList(images, shuffle=False), 2, 0)
        >>> [batch[0].shape for batch in df], [batch[0].shape for batch in df]
        ([(2, 2, 2), (2, 3, 3)], [(2, 2, 2), (2, 3, 3)])
    """

    _df_indexed = False

    def __init__(self, ds: DataFlow, batch_size: int, idx: Any, *, remainder: bool = False) -> None:
        super().__init__(ds)
        self.batch_size = whole_number(self, "batch_size", batch_size, 1)
        self.idx = idx
        self.remainder = flag(self, "remainder", remainder)
        if not self.remainder:
            _require_one_batch(ds, self.batch_size, self)

    @property
    def _df_continues(self) -> bool:
        return not self.remainder

    def __len__(self) -> int:
        if self.remainder:
            raise LengthUnknown(
                "a pass of BatchDataByShape(…, remainder=True) has no known length: it depends on the shape of each "
                "datapoint"
            )
        return len(self.ds) // self.batch_size

    def reset_state(self) -> None:
        state_of(self).continued.forget()
        super().reset_state()

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self.remainder:
            waits = self._df_waits
            return pausing(self._with_remainders(p, stream, waits), waits)
        continued = state_of(self).continued
        gathering: _Gathering = continued.note(stream, _Gathering)
        gathering.p = p
        gathering.num_begun += 1
        batches = continued.take(stream, partial(self._batches, stream, gathering), self)
        return takewhile(_is_batch, batches)

    def _batches(self, stream: Stream, gathering: _Gathering) -> Iterator[Any]:
        waits = self._df_waits
        return pausing(self._gather(stream, gathering, waits), waits)

    def _gather(self, stream: Stream, gathering: _Gathering, waits: bool) -> Iterator[Any]:
        """The batches of pass after pass, with `_END` after those of each."""
        groups: dict[tuple[int, ...], list[Any]] = {}
        datapoints: Iterator[Any] | None = None  # the rest of pass `q` of the input; None between two passes
        q, is_empty = -1, True
        while True:
            begun, num_passes = gathering.num_begun, 0
            n = None if self.ds._df_endless else known_length(self.ds)
            num_left = None if n is None else n // self.batch_size
            while num_left != 0:
                if datapoints is None:
                    if num_passes > self.batch_size:
                        raise self._too_many(groups, num_left)
                    q, num_passes, is_empty = max(q + 1, gathering.p), num_passes + 1, True
                    datapoints = self.ds._df_run_pass(q, stream)
                for dp in resumed(datapoints, True) if waits else datapoints:
                    if type(dp) is Pause:
                        yield dp
                        continue
                    is_empty = False
                    shape = np.shape(component(dp, self.idx))
                    group = groups.setdefault(shape, [])
                    group.append(copy_datapoint(dp))
                    if len(group) == self.batch_size:
                        break
                else:
                    datapoints = None
                    if is_empty or num_left is None:
                        break  # this pass ends
                    continue
                num_left = None if num_left is None else num_left - 1
                del dp, group  # the receiver of the batch may reuse its memory
                yield stack(groups.pop(shape))
                if gathering.num_begun != begun:
                    break
            if gathering.num_begun == begun:
                yield _END
            elif num_left != 0:
                datapoints = None  # the loop was left early

    def _too_many(self, groups: Sized, num_left: int | None) -> ShapeMismatch:
        return ShapeMismatch(
            f"BatchDataByShape holds incomplete batches of {len(groups)} shapes: {self.batch_size + 1} passes of "
            f"{type(self.ds).__name__} did not complete the {len(self)} batches of one pass, {num_left} are missing. "
            "Bring the datapoints to fewer shapes (resize, pad, or round the sizes), lower batch_size, or pass "
            "remainder=True"
        )

    def _with_remainders(self, p: int, stream: Stream, waits: bool) -> Iterator[Any]:
        groups: dict[tuple[int, ...], list[Any]] = {}
        datapoints = self.ds._df_run_pass(p, stream)
        for dp in resumed(datapoints, True) if waits else datapoints:
            if type(dp) is Pause:
                yield dp
                continue
            shape = np.shape(component(dp, self.idx))
            group = groups.setdefault(shape, [])
            group.append(copy_datapoint(dp))
            if len(group) == self.batch_size:
                yield stack(groups.pop(shape))
        while groups:
            yield stack(groups.pop(next(iter(groups))))


class _Gathering:
    """State that all loops share, because incomplete batches are kept from loop to loop."""

    def __init__(self) -> None:
        self.p = 0  # the pass that was begun last
        self.num_begun = 0  # passes begun; if it changes during a pass, that loop was left early


def _require_one_batch(ds: DataFlow, batch_size: int, owner: object) -> None:
    n = None if ds._df_endless else known_length(ds)
    if n is not None and n < batch_size:
        raise ValueError(
            f"{type(owner).__name__}: batch_size {batch_size} is more than the {n} datapoints of a pass of "
            f"{type(ds).__name__}, so a pass would have no batch. Lower batch_size, or pass remainder=True"
        )
