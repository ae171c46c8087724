"""Variants of the process map: one that also batches its results, and one for a component of fixed shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex, Unpack

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dataflow.errors import ShapeMismatch
from dataflow.protocol.base import DataFlow, T_co, T_in
from dataflow.protocol.datapoint import empty
from dataflow.protocol.failures import Failure
from dataflow.protocol.parameters import flag, function, whole_number
from dataflow.protocol.pauses import pausing
from dataflow.protocol.seeding import Rng, Stream
from dataflow.runners.backends import ProcessBackend
from dataflow.runners.maps import ParallelMap
from dataflow.runners.options import NumWorkers, ProcessKeywords, WorkerOptions, takes
from dataflow.runners.rebatching import regroup
from dataflow.transforms.applying import name_of
from dataflow.transforms.batching import BatchData
from dataflow.transforms.mapping import MapData, MapDataComponent

__all__ = [
    "MultiProcessMapAndBatchData",
    "MultiProcessMapAndBatchDataZMQ",
    "MultiProcessMapDataComponentSharedArray",
]

_BATCHES: int = 10  # batches that the buffer holds by default


class _MapBelow(ParallelMap[T_co]):
    """The map below the batches of `MultiProcessMapAndBatchData`: texts and figures show the two as one node."""

    _df_title = "MultiProcessMapAndBatchData"


class MultiProcessMapAndBatchData(BatchData[T_co]):
    """Apply a function to every datapoint in `num_proc` processes, and batch the results.

    Idle processes take as many datapoints as a batch has, and stack the results where they are made.

    With ``strict=True`` a pass is exactly that of ``BatchData(MapData(ds, map_func), batch_size, remainder)``. By
    default passes never end, as for `MultiProcessMapData`; ``len`` is the number of batches that ``len(ds)``
    datapoints make.

    Args:
        ds: The input. It is reset and read in this process.
        num_proc: Processes, or "auto" for as many as pay. 0 calls the function in the consumer, for a debugger.
        map_func: Takes a datapoint and returns one; returns None to drop it.
        batch_size: Datapoints per batch, at least 1.
        buffer_size: Datapoints, not batches, that may be read and not yet handed out, at least `batch_size`; None means
            ten batches.
        num_workers: The same as `num_proc`, under the name that all runners and maps know.
        remainder: With `strict`, give out the last batch of a pass even if it is shorter.
        use_list: Do not stack: every component of a batch is a Python list.
        with_rng: Whether the function is called as ``map_func(dp, rng)``, as for `MultiProcessMapData`.
        seed_globals: Seed `random`, `np.random` and torch before each call, as for `MapData`.
        options: Those of `MultiProcessMapData`: see `WorkerOptions`.

    Example:
        >>> df = DataFromList([[k] for k in range(5)], shuffle=False)
        >>> with MultiProcessMapAndBatchData(df, 2, lambda dp: [dp[0] ** 2], 2, strict=True) as batches:
        ...     [squares.tolist() for (squares,) in batches]
        [[0, 1], [4, 9]]

    Source:
        tensorpack.dataflow, whose class of this name it replaces.
    """

    @takes(ProcessKeywords)
    def __init__(
        self,
        ds: DataFlow[T_in],
        num_proc: NumWorkers | None = None,
        map_func: Callable[[T_in], Any] | Callable[[T_in, Rng], Any] | None = None,
        batch_size: SupportsIndex | None = None,
        buffer_size: SupportsIndex | None = None,
        *,
        num_workers: NumWorkers | None = None,
        remainder: bool = False,
        use_list: bool = False,
        with_rng: bool = False,
        seed_globals: bool = False,
        **options: Unpack[ProcessKeywords],
    ) -> None:
        use_list = flag(self, "use_list", use_list)
        batch_size = whole_number(self, "batch_size", batch_size, 1)
        cure = f": it counts datapoints, at least as many as a batch has ({batch_size}); None means {_BATCHES} batches"
        size = _BATCHES * batch_size
        if buffer_size is not None:
            size = whole_number(self, "buffer_size", buffer_size, batch_size, cure)
        # Lists are made here: they contain no arrays for which building them in a worker would pay.
        per_task = 1 if use_list else batch_size
        checked = WorkerOptions.of(self, num_workers, options, ("num_proc", num_proc))
        mapped: _MapBelow[Any] = _MapBelow(
            ds,
            map_func,
            checked,
            ProcessBackend(),
            size,
            with_rng=with_rng,
            seed_globals=seed_globals,
            batch_size=per_task,
        )
        super().__init__(mapped, batch_size, remainder, use_list)
        self._mapped = mapped

    @property
    def _df_parameters(self) -> dict[str, Any]:
        mapped, size = self._mapped, _BATCHES * self.batch_size
        shown = {**super()._df_parameters, **vars(mapped), **mapped._df_parameters}
        return {**shown, "buffer_size": None if mapped.buffer_size == size else mapped.buffer_size}

    @property
    def _df_summary(self) -> str:
        return self._mapped._df_summary

    def _df_figures(self) -> Any:
        figures = self._mapped._df_figures()
        return None if figures is None else figures._replace(nodes=[self])

    @property
    def _df_stands_for(self) -> Any:
        return BatchData(self._mapped, self.batch_size, self.remainder, self.use_list)

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if not self._mapped.num_workers:
            return super()._df_run_pass(p, stream)
        waits, results = self._df_waits, self._df_input(p, stream)
        batches = regroup(results, self.batch_size, remainder=self.remainder, use_list=self.use_list, waits=waits)
        return pausing(batches, waits)

    @property
    def failures(self) -> list[Failure]:
        """The last 1,000 items that were skipped in all workers since they were started."""
        return self._mapped.failures


MultiProcessMapAndBatchDataZMQ = MultiProcessMapAndBatchData


class _Shaped:
    """A function whose results are arrays of one shape and dtype, written directly into the worker's output buffer."""

    def __init__(self, func: Callable[[Any], Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.func = func
        self.shape = shape
        self.dtype = dtype
        self.__qualname__ = name_of(func)

    def __call__(self, component: Any) -> NDArray[Any] | None:
        made = self.func(component)
        if made is None:
            return None
        if np.shape(made) != self.shape:
            raise ShapeMismatch(
                f"{self.__qualname__} returned an array of shape {np.shape(made)}, and output_shape is {self.shape}"
            )
        out = empty(self.shape, self.dtype)
        out[...] = made
        return out


class MultiProcessMapDataComponentSharedArray(ParallelMap[T_co]):
    """Apply a function to one component of every datapoint, in processes; what it returns has one shape and dtype.

    Arrays go through shared memory in all parallel maps. This one also checks their shape, converts them, and writes
    them directly into the output buffer from which they are sent.

    Args:
        ds: The input. It is reset and read in this process.
        nr_proc: Processes, or "auto" for as many as pay. 0 calls the function in the consumer.
        map_func: Takes the component and returns an array of `output_shape`, or None to drop the datapoint.
        output_shape: Shape of the returned array.
        output_dtype: Its dtype; arrays of another dtype are converted, as by assignment.
        index: Position of the component, or its key in a dict.
        num_workers: The same as `nr_proc`, under the name that all runners and maps know.
        buffer_size: As for `MultiProcessMapData`.
        seed_globals: Seed `random`, `np.random` and torch before each call, as for `MapData`.
        options: Those of `MultiProcessMapData`: see `WorkerOptions`.

    Raises:
        ShapeMismatch: The function returned another shape; the message names it.

    Example:
        >>> df = DataFromList([[np.zeros((4, 2), np.uint8), k] for k in range(3)], shuffle=False)
        >>> with MultiProcessMapDataComponentSharedArray(df, 2, lambda a: a.sum(1), (4,), "f4", strict=True) as sums:
        ...     [(array.shape, array.dtype.name, label) for array, label in sums]
        [((4,), 'float32', 0), ((4,), 'float32', 1), ((4,), 'float32', 2)]

    Source:
        tensorpack.dataflow, whose class of this name paired arrays with the labels of others.
    """

    @takes(ProcessKeywords)
    def __init__(
        self,
        ds: DataFlow,
        nr_proc: NumWorkers | None = None,
        map_func: Callable[[Any], Any] | None = None,
        output_shape: int | tuple[int, ...] | None = None,
        output_dtype: DTypeLike | None = None,
        index: Any = 0,
        *,
        num_workers: NumWorkers | None = None,
        buffer_size: int = 200,
        with_rng: bool = False,
        seed_globals: bool = False,
        **options: Unpack[ProcessKeywords],
    ) -> None:
        func = function(self, "map_func", map_func, "is called with the component")
        if flag(self, "with_rng", with_rng):
            raise TypeError(f"{type(self).__name__}: with_rng= is for whole datapoints; use MultiProcessMapData")
        try:
            if output_shape is None or output_dtype is None:
                raise TypeError("both are needed")
            self.output_shape = tuple(np.empty(output_shape, np.bool_).shape)
            self.output_dtype = np.dtype(output_dtype)
            if self.output_dtype.hasobject:
                raise ValueError("Python objects have no shared memory")
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"{type(self).__name__}: output_shape and output_dtype are those of the array that map_func returns, "
                f"such as (32, 32) and 'float32', got {output_shape!r:.100} and {output_dtype!r:.100}: {error}"
            ) from None
        self.index = index
        checked = WorkerOptions.of(self, num_workers, options, ("nr_proc", nr_proc))
        shaped = _Shaped(func, self.output_shape, self.output_dtype)
        super().__init__(ds, shaped, checked, ProcessBackend(), buffer_size, seed_globals=seed_globals)

    @property
    def _df_parameters(self) -> dict[str, Any]:
        return {**super()._df_parameters, "output_dtype": str(self.output_dtype)}

    def _df_node_in_worker(self, ds: DataFlow) -> MapData:
        return MapDataComponent(ds, self.func, self.index, seed_globals=self.seed_globals)
