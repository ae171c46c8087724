"""The node protocol: base classes `DataFlow`, `ProxyDataFlow` and `RNGDataFlow`.

A node has two methods that yield its datapoints. Both receive the pass and the place in the chain (`stream`) from the
node above, and store neither:

- ``_df_run_pass(p, stream)`` yields the datapoints of pass `p` in order;
- ``_df_at(blocks, stream)`` takes arrays of indexes into the endless sequence of passes and yields one datapoint per
  index, or `HOLE` where a map dropped it.

A pass, ``df[i]`` and all that parallel code needs of a flow follow from these two. Only the flow that the user
iterates counts passes, in its `FlowState`. A node written by a user, with nothing but ``__iter__``, is wrapped
(`user_nodes`).

`DataFlow` declares the traits of a node: where its random numbers come from, and what a pass of it is. Features that
promise identical datapoints (shards, saved states, strict runners) read these traits; a node that differs from the
default overrides them.

Names: the protocol between nodes has the prefix ``_df_`` and is declared here, so that any other name is free for the
attributes and methods of users' own nodes. No other underscored name is used across modules.
"""

from __future__ import annotations

import inspect
import operator
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from sys import _getframe, modules
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self, SupportsIndex, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import Dropped, LengthUnknown, NotAddressable
from dataflow.protocol.datapoint import HOLE, present
from dataflow.protocol.passes import (
    UserCode,
    fill_files,
    innermost_pass,
    next_pass,
    open_flow,
    pick,
    root_stream,
    running_code,
    running_passes,
)
from dataflow.protocol.seeding import Depth, IndexRngs, Rng, Spread, Stream, rng
from dataflow.protocol.state import Drops, state_of
from dataflow.protocol.user_nodes import found_inputs, made_by_code, super_pass, tracked_reset, wrap_user_node

if TYPE_CHECKING:
    from typing import Generic as GenericIn  # DataFlow is generic to type checkers only

    from typing_extensions import TypeVar as TypeVarWithDefault  # that of typing has no default before Python 3.13

    from dataflow.observe.figures import FlowStatistics
    from dataflow.protocol.failures import Failure

__all__ = [
    "Blocks",
    "DataFlow",
    "ProxyDataFlow",
    "RNGDataFlow",
    "T_co",
    "T_in",
    "close_flow",
    "depth_above",
    "require_flow",
]


# -- base classes ------------------------------------------------------------------------------------------------------


T = TypeVar("T")

T_in = TypeVar("T_in")
"""The type of the datapoints that a function gets from the input of its node."""

if TYPE_CHECKING:
    T_co = TypeVarWithDefault("T_co", covariant=True, default=Any)
    """The type of a datapoint. Flows only yield datapoints, so a flow of bools is one of integers."""
else:
    T_co = TypeVar("T_co", covariant=True)
    GenericIn = {T_co: object}

Blocks = Iterable[NDArray[np.int64]]
"""Finite arrays of indexes, int64 (k,). Each is requested after the datapoints of the one before were yielded, or by a
node that makes several at a time (`AsyncMapData`) some hundred datapoints earlier."""

_OF_THIS_PROCESS: Final = frozenset(
    {"_df_state", "_df_snapshot", "_df_has_told", "_df_run_pass", "_df_at", "_df_kernel"}
)
"""Attributes of a node that belong to this process: state, and methods wrapped by a sampler or the profiler."""

_MAP_STYLE_READERS: Final = ("torch.utils.data", "torchdata.")
"""Packages that read a map-style dataset: its indexes from 0 to its length, in every epoch."""

_RESET = 1  # purpose word of the generator for reset_state, outside of passes


class _Computed(Generic[T]):
    """A computed attribute that a user's node may replace by assignment, which a `property` would refuse."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, node: None, owner: type) -> Self: ...
    @overload
    def __get__(self, node: object, owner: type) -> T: ...
    def __get__(self, node: object | None, owner: type) -> Self | T:
        return self if node is None else self._compute(node)


class DataFlow(GenericIn[T_co]):
    """An endless sequence of passes over datapoints.

    Iterate it with a plain loop: each ``for dp in df`` is one pass. A subclass defines ``__iter__``, and ``__len__`` if
    it knows how many datapoints a pass has. `reset_state` is for setup that must happen in the iterating process; the
    first `iter` calls it unless it was called before.

    To a type checker, ``DataFlow[T]`` yields datapoints of type `T`; a bare ``DataFlow`` is ``DataFlow[Any]``.

    Example:
        >>> class Squares(DataFlow):
        ...     def __iter__(self):
        ...         for k in range(4):
        ...             yield [k * k]
        ...     def __len__(self):
        ...         return 4
        >>> list(Squares())
        [[0], [1], [4], [9]]
    """

    _df_user_written: ClassVar[bool] = False
    """Whether ``__iter__`` was written by a user."""

    # -- traits of a node, which subclasses override -------------------------------------------------------------------

    _df_draws: bool = False
    """Whether this node draws random numbers."""

    _df_own_root: int | None = None
    """The node's own root seed (`seed=` of random nodes), used instead of the one received from above."""

    _df_own_rank: int | None = None
    """The rank of this shard; None for other nodes, and for the only shard."""

    _df_run_settings: ClassVar[frozenset[str]] = frozenset()
    """Attributes that affect how this node runs, not which datapoints it yields: a fingerprint ignores them."""

    _df_remote_inputs: ClassVar[bool] = False
    """Whether the inputs are reset and iterated by workers, outside this process or thread."""

    _df_caches: ClassVar[bool] = False
    """Whether the node keeps one pass of its input in memory, and makes no other."""

    _df_fills_file: ClassVar[bool] = False
    """Whether the node fills a file with its first pass, in ``_df_fill_file(stream)``, unless the file is there."""

    _df_counts_passes: ClassVar[bool] = False
    """Whether the node keeps a position of its own, so that it counts passes also where code begins it."""

    _df_calls: bool = False
    """Whether the node calls the user's code, in which flows may begin."""

    _df_holds: ClassVar[bool] = False
    """Whether the node is a source that holds its datapoints in memory, where they stay as they are."""

    _df_counts: bool = False
    """Whether the node counts datapoints, so that its indexes are undefined once one below it was dropped."""

    _df_has_workers: ClassVar[bool] = False
    """Whether the node is of a class that has workers."""

    _df_takes: int | None = None
    """How many datapoints of the input each datapoint is made of, in order: 1 for a map, or the size of a batch. None
    if that is no fixed number, or the order is another one."""

    _df_is_share: ClassVar[bool] = False
    """Whether the node is the share of one rank."""

    @property
    def _df_indexed(self) -> bool:
        """Whether this node itself can be addressed, given inputs that can."""
        return False

    # -- random numbers ------------------------------------------------------------------------------------------------

    @property
    def _df_depth(self) -> Depth:
        """What is below this node, along first inputs."""
        first = self._df_first()
        return Depth() if first is None else depth_above(first)

    @property
    def _df_joins(self) -> bool:
        """Whether this node has several inputs, each with a stream of its own."""
        return len(self._df_inputs) > 1

    def _df_spread(self, begin: int) -> Spread:
        """The positions of this node in the pass that shards below divide from `begin` on.

        What is drawn for a datapoint belongs to its position there, not to the rank: so it is the same for any number
        of ranks. Where one datapoint is made of several, and in code of the user, numbers differ between ranks.
        """
        if self._df_one_to_one:
            spread: Spread = self._df_first()._df_spread(begin)
            return spread
        return Spread(ranks=self._df_depth.ranks)

    def _df_num_from(self, begin: int, *, longest: bool = False) -> int:
        """Datapoints of a pass that begins at position `begin` (`Stream.begin`): ``len(self)`` for 0.

        With `longest`, it is that of the rank which has most.
        """
        return len(self)

    @property
    def _df_one_to_one(self) -> bool:
        """Whether the datapoint at each index is made of the one of the input at that index."""
        return self._df_takes == 1 and not self._df_user_written

    def _df_first(self) -> Any:
        return next(iter(self._df_inputs), None)

    def _df_words(self, stream: Stream, p: int, *, purpose: int = 0) -> tuple[int, ...]:
        """The key of this node's random numbers in pass `p`."""
        level, _, ranks = self._df_depth
        return stream.words(level, p, root=self._df_own_root, purpose=purpose, ranks=ranks)

    def _df_index_rngs(self, stream: Stream, n: int | None) -> IndexRngs:
        """The generators for this node's indexes, with `n` datapoints per pass; None for an endless flow.

        The result can be pickled and holds no reference to the node: a map sends it to its workers, which get the
        generator of each index from it. `RandomMapData` uses it in this process, so both draw the same numbers.
        """
        first, stride, ranks = self._df_spread(stream.begin)
        words = partial(stream.words, self._df_depth.level, root=self._df_own_root, ranks=ranks)
        return IndexRngs(words, n, first, stride)

    # -- passes --------------------------------------------------------------------------------------------------------

    @property
    def _df_reproducible(self) -> bool:
        """Whether this node yields the same datapoints in the same order whenever seed and pass are the same.

        A runner that mixes the datapoints of several workers does not.
        """
        return not (self._df_remote_inputs and self._df_joins)

    @property
    def _df_continues(self) -> bool:
        """Whether a pass continues where the last one stopped, so that it depends on the passes before it.

        Such a pass is begun by `state.Continued`, or after `state.require_continuing`: both refuse where it has to
        follow from the seed. `_df_continuing` answers for a whole chain.
        """
        return self._df_remote_inputs and not self._df_indexed

    def _df_continuing(self) -> DataFlow | None:
        """The first node, from above, whose passes depend on the passes before; None if all follow from the seed."""
        if self._df_addressable and not self._df_endless:
            return None  # read by index
        if self._df_continues:
            return self
        return next((found for ds in self._df_inputs if (found := ds._df_continuing()) is not None), None)

    def _df_weights(self) -> tuple[str, ...]:
        """The weights of this mixture, and of those below: what continues on them needs the ones that it began with."""
        return tuple(weights for ds in self._df_inputs for weights in ds._df_weights())

    @property
    def _df_may_have_dropped(self) -> bool:
        """Whether this node may have left out datapoints, in this process or in a worker."""
        drops = state_of(self).part(Drops)
        return drops.has_dropped or drops.has_skipped

    @property
    def _df_waits(self) -> bool:
        """Whether a step may raise `TimeoutError`, because this node or one below has a `timeout`."""
        return any(ds._df_waits for ds in self._df_inputs)

    @property
    def _df_ends_if_strict(self) -> bool:
        """Whether passes of this node are endless only because it is not ``strict=True``."""
        return False

    @property
    def _df_grain(self) -> int:
        """Number of consecutive indexes that share work: blocks of a multiple of it repeat no work."""
        return 1

    @property
    def _df_least_task(self) -> int:
        """Least number of indexes in a task of a runner: with fewer, this node or one below would be idle in part."""
        return max((ds._df_least_task for ds in self._df_inputs), default=1)

    @property
    def _df_reports_below(self) -> bool:
        """Whether this node records the failures of all nodes below it."""
        return False

    # -- text ----------------------------------------------------------------------------------------------------------

    @property
    def _df_title(self) -> str:
        """The user's name for this node, in messages."""
        return type(self).__name__

    @property
    def _df_parameters(self) -> dict[str, Any]:
        """For `repr`: values of constructor parameters that the node keeps under another name, or in another form."""
        return {"seed": self._df_own_root}

    @property
    def _df_summary(self) -> str:
        """For `repr`: what is shown beside the node, such as the number of its workers."""
        return ""

    # -- statistics ----------------------------------------------------------------------------------------------------

    def _df_figures(self) -> Any:
        """For statistics: the `observe.figures.Figures` of the node's workers; None without workers."""
        return None

    # -- saved states and caches ---------------------------------------------------------------------------------------

    @property
    def _df_stands_for(self) -> Any:
        """The node that yields the same datapoints without workers: for a runner its input, otherwise the node itself.

        A saved state records only that node, so it can be loaded under another runner, or with another number of
        workers.
        """
        return self._df_first() if self._df_remote_inputs else self

    @property
    def _df_compared(self) -> dict[str, Any]:
        """The parameters that a saved state compares in addition to types and lengths: the public attributes."""
        settings = self._df_run_settings
        found = {
            name: value
            for name, value in _attributes(self).items()
            if not name.startswith("_") and name not in settings
        }
        return {**found, "seed": self._df_own_root}

    @property
    def _df_deciding(self) -> dict[str, Any]:
        """The attributes that may decide the datapoints: all but the settings of runs, and what is made in a run."""
        settings, made = self._df_run_settings, made_by_code(self)
        return {
            name: value
            for name, value in _attributes(self).items()
            if not (name in settings or name in made or name in _OF_THIS_PROCESS)
        }

    def _df_agrees(self, parameter: str, saved: str, here: str, num: int | None) -> bool:
        """Whether two texts of a parameter give the same datapoints before index `num`, though they differ."""
        return False

    def _df_num_below(self, num: int) -> int | None:
        """The index of the input before which all lies that the datapoints before index `num` are made from.

        It may be too large; None if it is unknown.
        """
        return None

    @property
    def _df_files(self) -> Sequence[str]:
        """Files, folders and URLs that the datapoints come from: a cache compares sizes and times of change."""
        return ()

    # -- construction --------------------------------------------------------------------------------------------------

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        node = super().__new__(cls)
        # With a dict of its own, CPython reads `self.name` faster, once anything has looked into `__dict__`: a quarter
        # less overhead per datapoint of a user's node (`user node` of benchmarks.nodes).
        node.__dict__ = {}
        code = running_code()
        if code is not None:
            state_of(node).part(UserCode).made_in = code.token
        return node

    # -- hooks for subclasses ------------------------------------------------------------------------------------------

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        """The datapoints of pass `p`, in order."""
        raise NotImplementedError(f"{type(self).__name__} defines no __iter__")

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        """One datapoint, or `HOLE`, for each index of each block."""
        raise NotAddressable(f"{type(self).__name__} cannot be addressed")

    def _df_origins(self, indexes: NDArray[np.int64], stream: Stream) -> NDArray[np.int64]:
        """The position in the source of the datapoint at each index, where this node and those below only reorder.

        Raises:
            NotAddressable: A node does more than reorder or map its datapoints, one by one; the message names it.
        """
        raise NotAddressable(f"{type(self).__name__} does more than reorder the datapoints of a source, or map each")

    def _df_column(self, name: str) -> NDArray[Any]:
        """One column of the table that this source reads, in the order of its rows.

        Raises:
            TypeError: This node reads no table.
        """
        raise TypeError(f"{type(self).__name__} has no columns")

    @property
    def _df_inputs(self) -> Sequence[DataFlow]:
        """The inputs: found among the attributes of a user's node, declared by built-in ones."""
        return found_inputs(self)

    @property
    def _df_endless(self) -> bool:
        """Whether a pass never ends."""
        return False

    @property
    def _df_addressable(self) -> bool:
        return self._df_unaddressable() is None

    @_Computed
    def failures(self) -> list[Failure]:
        """The datapoints that this node and those below have skipped within their `max_failures`, in workers too.

        Of each node, or of all workers of a runner, the last 1,000 since it was reset; those of this node come first.
        """
        found: dict[int, Failure] = {}
        waiting: list[DataFlow] = [self]
        nodes: dict[int, DataFlow] = {}
        while waiting:
            node = waiting.pop()
            if id(node) not in nodes:
                nodes[id(node)] = node
                waiting += () if node._df_reports_below else reversed(node._df_inputs)
        for node in nodes.values():
            tolerance = state_of(node).tolerance
            # Without workers, a runner records what a node below has recorded, too.
            found.update((id(failure), failure) for failure in (() if tolerance is None else tolerance.failures))
        return list(found.values())

    def _df_close(self) -> None:
        """Close this node and its inputs, all of them even if one raises. Idempotent."""
        state = state_of(self)
        with ExitStack() as last:
            for ds in reversed((*self._df_inputs, *state.part(UserCode).others.values())):
                last.callback(close_flow, ds)
            last.callback(state.end_session)  # is called first

    # -- public methods ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[T_co]:
        return super_pass(self) if self._df_user_written else next_pass(self)

    def __len__(self) -> int:
        raise LengthUnknown(f"a pass of {type(self).__name__} has no known length")

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        """The chain, one node per line from the outside in; what a runner runs in its workers is indented.

        A line holds the parameters that differ from their defaults, and the length of a pass where a node changes it.
        Data are not read, and nothing is started.
        """
        from dataflow.observe.representation import chain_text  # imported when it is first used

        return chain_text(self)

    def _repr_html_(self) -> str:
        """The chain as a table with lengths, for notebooks."""
        from dataflow.observe.representation import chain_html  # imported when it is first used

        return chain_html(self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[T_co]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        """The datapoint at `index` of the endless sequence of passes, or a list of those of a slice.

        Pure: the result depends on (seed, index) alone, and no iteration is affected.

        Raises:
            NotAddressable: A node of the chain cannot be addressed; the message names it.
            Dropped: A map dropped this datapoint (a slice leaves it out).
            TypeError: torch asks, for a DataLoader or a Subset.
        """
        if "torch.utils.data" in modules and _getframe(1).f_globals.get("__name__", "").startswith(_MAP_STYLE_READERS):
            raise _not_map_style(self)
        breaks = self._df_unaddressable()
        if breaks is not None:
            raise NotAddressable(
                f"{type(self).__name__} cannot be addressed, because {type(breaks).__name__} is only a sequence of "
                "passes: iterate it instead, or put the datapoints into a list (DataFromList)"
            )
        stream = root_stream(self)
        if open_flow(self, stream):
            fill_files(self, stream)
        if isinstance(index, slice):
            indexes = _indexes(index)
            # Made to the end inside of `pick`: a generator would run after it.
            return pick(lambda: list(present(self._df_at([indexes], stream))))
        index = operator.index(index)
        if index < 0:
            raise IndexError(
                f"index {index} is negative: the sequence of passes is endless, so there is no end to count from"
            )
        (dp,) = pick(lambda: tuple(self._df_at([np.array([index], dtype=np.int64)], stream)))
        if dp is HOLE:
            raise Dropped(f"the datapoint at index {index} of {type(self).__name__} was dropped: a map returned None")
        return dp

    def __getitems__(self, indexes: Any) -> Any:
        """Not supported: torch asks for it if a flow is given to a DataLoader, which would repeat one pass."""
        raise _not_map_style(self)

    @_Computed
    def addressable(self) -> bool:
        """Whether ``df[index]`` works: every node of the chain must support it."""
        return self._df_addressable

    def _df_unaddressable(self) -> DataFlow | None:
        """The first node, from above, that cannot be addressed; None if all can."""
        if self._df_user_written or not self._df_indexed:
            return self
        return next((broken for ds in self._df_inputs if (broken := ds._df_unaddressable()) is not None), None)

    @tracked_reset
    def reset_state(self) -> None:
        """Prepare the flow in the process that iterates it. Optional: the first `iter` does it.

        Calling it again renews workers and files; the count of passes continues.
        """
        for ds in self._df_inputs:
            ds.reset_state()

    def close(self) -> None:
        """Stop workers and close files, upstream too. Live iterators then raise `DataFlowTerminated`.

        Iterating the flow again resets it first.
        """
        if state_of(self).part(UserCode).closes_alone != threading.get_ident():
            self._df_close()

    def statistics(self) -> FlowStatistics:
        """Where the time goes: the figures of all nodes and workers, since the workers were started.

        Works at any time and from any thread: before the first pass, while the flow runs, after it was closed or has
        failed. Reading costs the workers nothing. ``dataclasses.asdict`` makes what ``json.dump`` writes.

        While the flow is iterated, a call lets a thread look for ten seconds at what the consumer does: from then on
        the nodes that run outside of the workers have shares, too. Without workers, these are all figures.

        Example:
            >>> df = MultiThreadRunner(lambda: DataFromList([[1], [2]]), 10, 1, strict=True)
            >>> datapoints = list(df)
            >>> df.statistics().runners[0].datapoints
            2
        """
        from dataflow.observe.consumer_sampler import consumer_shares
        from dataflow.observe.gathering import statistics_of  # imported when it is first used

        return statistics_of(self, consumer_shares(self))

    def report(self, path: str | os.PathLike[str] | None = None) -> str:
        """Say where the time goes: a tree of the nodes with their shares and rates, and what the bottleneck is.

        Nodes that run outside of the workers have shares if the flow was sampled, see `statistics`; without workers,
        call it in the loop. Called by another thread than the one that iterates, it waits for up to half a second for
        the first samples.

        Args:
            path: Where to write the report as an HTML page, with charts over time and sample datapoints; None returns
                text.

        Returns:
            The text, or the path.

        Raises:
            ValueError: `path` does not end with .html.
        """
        from dataflow.observe.consumer_sampler import consumer_shares
        from dataflow.observe.gathering import report_of  # imported when it is first used

        return report_of(self, DataFlow, path, consumer_shares(self, wait=True))

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write what each worker did over time, in Chrome's trace format, for ui.perfetto.dev.

        Args:
            path: The file; a name that ends with .json.
        """
        from dataflow.observe.gathering import write_trace  # imported when it is first used

        write_trace(self, path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        close_flow(self)

    def get_data(self) -> Iterator[T_co]:
        """Old name of ``iter(df)``."""
        return DataFlow.__iter__(self)

    def size(self) -> int:
        """Old name of ``len(df)``."""
        return len(self)

    def __getstate__(self) -> Any:
        if self._df_user_written:
            found_inputs(self)  # which notes in the node what its code has made
        found: Any = super().__getstate__()
        attributes, slots = found if isinstance(found, tuple) else (found, None)
        state = {name: value for name, value in (attributes or {}).items() if name not in _OF_THIS_PROCESS}
        return state if slots is None else (state, slots)

    # -- users' own nodes ----------------------------------------------------------------------------------------------

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        wrap_user_node(cls)

    if not TYPE_CHECKING:

        def __class_getitem__(cls, kind: Any) -> type[Self]:
            """The class itself: ``DataFlow[int]`` differs from it to type checkers only."""
            if isinstance(kind, int | slice):
                raise TypeError(f"{cls.__name__} is a class and has no datapoints: make a flow of it before [{kind}]")
            return cls


class _MissingInput:
    """Descriptor of the attribute `ds` of a node whose `__init__` has not set it: reading it raises."""

    def __get__(self, node: object | None, owner: type) -> Self:
        if node is None:
            return self
        raise AttributeError(
            f"{type(node).__name__} has no input: its __init__ must call super().__init__(ds), or set self.ds"
        )


class ProxyDataFlow(DataFlow[T_co]):
    """A node with one input, whose datapoints it passes on unchanged unless a subclass overrides that.

    Args:
        ds: The input.

    Raises:
        TypeError: `ds` is not a dataflow; the message names the source to wrap it in.
    """

    ds: DataFlow
    if not TYPE_CHECKING:
        ds = _MissingInput()  # replaced by the attribute that `__init__` sets

    def __init__(self, ds: DataFlow) -> None:
        self.ds = require_flow(ds, type(self).__name__)

    @property
    def _df_inputs(self) -> Sequence[DataFlow]:
        return found_inputs(self) if self._df_user_written else (self.ds,)

    @property
    def _df_indexed(self) -> bool:
        return True

    @property
    def _df_endless(self) -> bool:
        first = self._df_first()
        return first is not None and bool(first._df_endless)

    @property
    def _df_grain(self) -> int:
        return self.ds._df_grain

    def __len__(self) -> int:
        return len(self.ds)

    def _df_num_from(self, begin: int, *, longest: bool = False) -> int:
        is_inherited = type(self).__len__ is ProxyDataFlow.__len__
        return self.ds._df_num_from(begin, longest=longest) if is_inherited else len(self)

    def _df_num_below(self, num: int) -> int | None:
        return num if self._df_one_to_one else super()._df_num_below(num)

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return self.ds._df_run_pass(p, stream)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return self.ds._df_at(blocks, stream) if self._df_indexed else super()._df_at(blocks, stream)

    def _df_origins(self, indexes: NDArray[np.int64], stream: Stream) -> NDArray[np.int64]:
        return self.ds._df_origins(indexes, stream) if self._df_one_to_one else super()._df_origins(indexes, stream)


class RNGDataFlow(DataFlow[T_co]):
    """A node that draws random numbers from `self.rng`.

    Example:
        >>> class Noise(RNGDataFlow):
        ...     def __iter__(self):
        ...         for _ in range(3):
        ...             yield [self.rng.normal()]
        >>> dataflow.seed(1); first = list(Noise())
        >>> dataflow.seed(1); first == list(Noise())
        True
        >>> dataflow.seed(None)
    """

    _df_draws = True

    _df_rng: Rng | None = None
    """The generator that the user has assigned to `rng`, used instead of ours."""

    @property
    def rng(self) -> Rng:
        """A `numpy.random.Generator` that is renewed every pass and differs in every worker.

        Its numbers follow from the root seed, the place in the chain and the pass. It also has the old methods `rand`,
        `randn`, `randint` and `random_sample`.

        In the function of a map that is this node, as of ``class Augment(MapData, RNGDataFlow)``, it is the generator
        of the datapoint.

        Raises:
            NotReproducible: It is read in the function of another map.
        """
        own = self._df_rng
        if own is not None:
            return own
        # Usually `__iter__` draws itself, called by the frame of its pass (`user node that draws` of benchmarks.nodes).
        try:
            running = running_passes.get(id(_getframe(2))) or innermost_pass()
        except ValueError:  # read by a script itself: no frame has called it
            running = None
        if running is not None and running.df is self and (found := running.rng) is not None:
            return found
        state = state_of(self)
        applied = _calling_map()
        if applied is not None:
            drawn: Rng = applied.rng_of(self)
            return drawn
        code = state.part(UserCode)
        if code.rng is None:
            stream = state.stream or Stream(state.root())
            code.rng = rng(self._df_words(stream, 0, purpose=_RESET))
        return code.rng

    @rng.setter
    def rng(self, value: Rng) -> None:
        self._df_rng = value


def _calling_map() -> Any:
    """The innermost `Applied` whose function is being called in this thread; None outside, or if a reset is nearer."""
    frame: FrameType | None = _getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module == "dataflow.protocol.user_nodes" and frame.f_code.co_name == "_reset":
            return None
        # Found by module and method: its class is defined above this module.
        if module.startswith("dataflow.transforms.") and hasattr(found := frame.f_locals.get("self"), "rng_of"):
            return found
        frame = frame.f_back
    return None


def _attributes(node: DataFlow) -> dict[str, Any]:
    from dataflow.system.references import attributes_of  # imported when it is first used

    return dict(attributes_of(node))


def depth_above(ds: DataFlow) -> Depth:
    """The `Depth` of a node whose first input is `ds`."""
    level, num_calling, ranks = ds._df_depth
    own = () if ds._df_own_rank is None else (ds._df_own_rank,)
    return Depth(level + (ds._df_draws or ds._df_joins), num_calling + ds._df_calls, (*ranks, *own))


def close_flow(df: DataFlow) -> None:
    """Close `df`, even if a user's node uses the name `close` for something else.

    A user's own `close` is called if it is a method without parameters, which closes what the node holds. An attribute
    of that name, or a method with parameters, has another meaning and is not called. What is below is closed even if
    it raises.
    """
    own = getattr(type(df), "close", None)
    try:
        if own is not DataFlow.close and "close" not in vars(df) and _takes_self_only(own):
            df.close()
    finally:
        df._df_close()


def _takes_self_only(method: object) -> bool:
    code = getattr(method, "__code__", None)
    return (
        code is not None
        and code.co_argcount == 1
        and not code.co_kwonlyargcount
        and not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    )


def require_flow(ds: Any, owner: str, name: str = "ds") -> DataFlow:
    """Return `ds` if it is a dataflow.

    Args:
        ds: The user's argument.
        owner: The class that needs it.
        name: The parameter.

    Raises:
        TypeError: `ds` is not a dataflow; the message names the source to wrap it in.
    """
    if isinstance(ds, DataFlow):
        return ds
    raise TypeError(f"{owner} expects a dataflow, got {type(ds).__name__}: {_cure(ds, name)}")


def _cure(ds: Any, name: str) -> str:
    """What to pass as `name` instead of `ds`."""
    if isinstance(ds, type):
        return f"{name} is the class {ds.__name__}, not an instance of it"
    if ds is None or isinstance(ds, bool | int | float | complex | str | bytes):
        return f"{name} is a source, such as DataFromList(datapoints), or any other node"
    if hasattr(ds, "__iter__") and callable(getattr(ds, "reset_state", None)):  # tensorpack accepted such objects
        return (
            f"{name} has __iter__ and reset_state, as a dataflow has, but {type(ds).__name__} does not derive from "
            f"dataflow.DataFlow. Derive it: class {type(ds).__name__}(dataflow.DataFlow). Or, if it works without "
            "reset_state, which is not called then, wrap it in DataFromIterable"
        )
    if isinstance(ds, list | tuple | np.ndarray):
        return f"wrap {name} in DataFromList"
    if hasattr(ds, "iloc") or (hasattr(ds, "to_pylist") and hasattr(ds, "column_names")):
        return f"wrap {name} in TableData"
    if not isinstance(ds, Iterator) and hasattr(ds, "__len__") and hasattr(ds, "__getitem__"):
        return (
            f"wrap {name} in DataFromList, if its elements have the positions 0, 1, 2, …, otherwise in DataFromIterable"
        )
    if callable(ds):
        return f"{name} comes before any function. To get datapoints from a function, use DataFromGenerator"
    return f"wrap {name} in DataFromIterable or DataFromGenerator"


def _not_map_style(df: DataFlow) -> TypeError:
    return TypeError(
        f"{type(df).__name__} is not a map-style dataset: torch would read the same pass again and again. Pass "
        "DataLoader(dataflow.to_torch(df), batch_size=None), with the batches made by BatchData; or iterate the flow "
        "itself"
    )


def _indexes(index: slice) -> NDArray[np.int64]:
    start = 0 if index.start is None else operator.index(index.start)
    stop = -1 if index.stop is None else operator.index(index.stop)
    step = 1 if index.step is None else operator.index(index.step)
    if start < 0 or stop < 0 or step < 1:
        raise IndexError(
            f"{index}: the sequence of passes is endless; give a stop, non-negative bounds and a positive step"
        )
    return np.arange(start, stop, step, dtype=np.int64)
