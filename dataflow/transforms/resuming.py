"""Resumable flows: save the position of a flow, and continue from it in another process."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from dataflow.errors import NotReproducible, StateMismatch, TimeoutError
from dataflow.protocol.base import Blocks, DataFlow, ProxyDataFlow, T_co
from dataflow.protocol.datapoint import HOLE, present
from dataflow.protocol.fingerprints import Description, changed_code, describe_again, describe_flow, difference
from dataflow.protocol.kept import (
    check_kept,
    end_left_passes,
    give,
    kept_by,
    own_nodes,
    require_found,
    require_kept,
    restore,
)
from dataflow.protocol.parameters import whole_number
from dataflow.protocol.passes import known_length, picked_here, promise, require_order, require_seed, root_stream, walk
from dataflow.protocol.pauses import paused, pausing, resumed
from dataflow.protocol.seeding import Stream, current_root
from dataflow.protocol.state import FlowState, Promise, state_of
from dataflow.transforms.elastic import Change, Division, division_of, has_dropped_above
from dataflow.transforms.indexing import consecutive, onwards
from dataflow.transforms.sharding import batches_of

__all__ = ["ResumableData", "Resumed", "begin_of"]

_log = logging.getLogger("dataflow.transforms")

_VERSION: Final = 2
_READABLE: Final = (1, 2)  # without `position`, and with
_KINDS: Final = {"version": int, "root": str, "pass": int, "offset": int, "flow": dict}
_LARGEST: Final = 2**62  # indexes are int64
_ROOT_DIGITS: Final = 4000  # Python converts no longer text
_NOTHING: Final = object()
_OUTERMOST: Final = (
    "ResumableData must be the outermost node: it counts the datapoints that the loop receives. Move it to the top of "
    "the chain"
)
_ELSEWHERE: Final = "so it cannot be started in another process"
_STANDALONE: Final = (
    f"{_ELSEWHERE}. Put the datapoints into a list (DataFromList), or use a node whose passes are independent, such as "
    "FixedSizeData(…, keep_state=False)"
)


class ResumableData(ProxyDataFlow[T_co]):
    """Save the position of a flow, and continue from it: later, elsewhere, under another runner.

    `state_dict` may be called at any time, even between two datapoints, and records which datapoint comes next. If the
    flow can be addressed, resuming is immediate at any position; otherwise the pass is computed again up to that point
    and discarded. This node must be the outermost one, because it counts the datapoints that the loop has received.

    If `state_dict` was called in the middle of a pass, the first loop after `load_state_dict` gets the rest of that
    pass. If the pass was complete, it gets the next one. `skip` leaves out datapoints.

    Args:
        ds: The flow.

    Raises:
        NotReproducible: The order of `ds` is not defined, because a runner mixes the datapoints of several workers, or
            other code fills a queue; or `ds` cannot be addressed and continues where its last pass stopped. The message
            names the node.
        Dropped: A map dropped a datapoint below a node that counts, so that positions are undefined.

    Example:
        >>> def make_flow():
        ...     return ResumableData(BatchData(DataFromList([[k] for k in range(100)]), 8))
        >>> df = make_flow()
        >>> for step, batch in enumerate(df):
        ...     if step == 4:
        ...         state = df.state_dict()
        ...         break
        >>> resumed = make_flow()
        >>> resumed.load_state_dict(state)
        >>> rest = list(resumed)
        >>> len(rest), [batch[0].tolist() for batch in rest] == [batch[0].tolist() for batch in df[5:12]]
        (7, True)
    """

    _df_counts_passes = True
    _df_promise = Promise("ResumableData")

    def __init__(self, ds: DataFlow[T_co]) -> None:
        super().__init__(ds)
        _require_order(ds)
        # Made now, because attributes of a user's node may change while it runs.
        self._described = describe_flow(ds)

    def reset_state(self) -> None:
        """Prepare the flow in the process that iterates it. Optional: the first `iter` does it."""
        promise(self, self._df_promise)
        super().reset_state()

    def state_dict(self) -> dict[str, Any]:
        """The position of the flow, as JSON: version, root seed, pass and offset of the next datapoint, and the chain.

        `offset` counts what the loop receives in the pass; `position` counts what all ranks together have taken from
        what they divide, and is None where that is undefined, such as while datapoints of a pass without a length are
        still to be skipped, or of several passes of a node of your own. With several iterations, it is the position of
        the most recent one. After the same step, it is the same on every rank.

        Raises:
            NotReproducible: No seed is set, and each of several ranks draws other numbers.
        """
        flow_state = state_of(self)
        with flow_state.lock:
            mark = flow_state.part(Resumed).bookmark or begin_of(flow_state)
            asked = mark.num_asked_left > 0
            while True:
                kept, description = mark.kept, mark.description
                p, num, begin, num_before = self._place(mark, on_any_rank=True)
                if mark.kept is kept:  # otherwise the loop of another thread has come to another pass meanwhile
                    break
            n = known_length(self, begin)
            # Passes are to be made to their ends, until which other ranks have steps of other sizes.
            is_ahead = asked and (n is None or num > n) and not self.ds._df_endless
            kept = kept_by(self.ds) if kept is None else kept
            if description is None or p != mark.p:  # the pass has not begun
                description = self._description()
        if p:
            require_found(self.ds)
            require_kept(self.ds, kept)
        division = division_of(self.ds)
        is_defined = division.broken is None and (
            self.ds._df_addressable or not has_dropped_above(division.unit, self.ds)
        )
        return {
            "version": _VERSION,
            "root": str(self._root_of_all_ranks(mark)),
            "pass": p,
            "offset": num_before + num,
            "position": begin + num * division.per_step if is_defined and not is_ahead else None,
            "flow": description,
            **({"kept": kept} if any(kept) else {}),
        }

    def _description(self) -> Description:
        """The description of the flow as it is now."""
        description = self._described = describe_again(self.ds, self._described)
        return description

    def _root_of_all_ranks(self, mark: _Bookmark) -> int:
        """The root seed for the state: where none is set and there are several ranks, each has drawn another one."""
        if not mark.is_drawn or not self._has_ranks:
            return mark.root
        cure = ", with the same n on every rank, before the loop"
        require_seed(self, "ResumableData: ", "on each rank, and no state is valid for all", cure)
        return 0  # it decides nothing

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was saved: the next loop begins there.

        The root seed of the state becomes that of this flow. If the program calls `dataflow.seed`, that must be before,
        and with the same number; afterwards it is an error in the middle of a pass. Functions
        are compared by name; if their code has changed, a warning names them.

        A state of a chain with a shard may be loaded with another number of ranks, and then with another size of the
        batches: the job continues after the datapoints that all ranks together have had, and a warning says what has
        changed.

        Args:
            state: What `state_dict` returned, also after JSON.

        Raises:
            StateMismatch: `state` is malformed, or belongs to another chain, another seed or another version; or the
                number of ranks has changed, and a node above the shard has an order of its own on each rank. Also as
                the next loop begins: `dataflow.seed` was called in between.
        """
        self._df_load(state)

    def _df_load(self, state: Mapping[str, Any], *, elastic: bool = True) -> None:
        """Load a state; `elastic` says whether ranks and sizes of batches may differ."""
        _check_form(state)
        p, offset, position = state["pass"], state["offset"], state.get("position")
        kept = _kept_in(state, self.ds)
        division = division_of(self.ds)
        n, per_step = known_length(self.ds), division.per_step
        # Indexes and positions are the same only where the flow can be addressed.
        num_made = offset if position is None else max(offset, -(-position // per_step))
        num = p * (n or 0) + num_made if self.ds._df_addressable else None
        description = self._description()
        found = difference(state["flow"], description, self.ds, num)
        change: Change | None = None
        if found is None:
            changed = changed_code(state["flow"], description)
        else:
            change = self._change_since(state, division, found, elastic=elastic)
            changed = list(change.code)
        root = int(state["root"])
        if current_root() not in {None, root}:
            raise StateMismatch(
                f"the state was saved with the seed {root}, but this program has called "
                f"dataflow.seed({current_root()}). Leave out the call, or use the same number"
            )
        within = 0 if position is None else position - offset * (per_step if change is None else change.old_per_step)
        if change is not None and not 0 <= within < change.old_per_step:
            raise _damaged(position, p, f"{change.old_per_step} datapoints in each step, of which {offset} were made")
        mark = self._bookmark(
            p, offset, position if change is not None or 0 < within < per_step else None, root, division
        )
        if position is not None:
            mark.num_certain = mark.offset if n is None else 0
        elif "position" in state and not self.ds._df_endless and (n is None or offset > n):
            mark.offset, mark.num_skipped, mark.num_asked = 0, offset, offset  # some were still to be skipped
        if change is not None and change.world_size != change.old_world_size:
            _log.warning("resumes on %s", change)
        if changed:
            _log.warning(
                "the code of %s has changed since the state was saved: positions and random numbers continue, and from "
                "here on the new code makes the datapoints",
                ", ".join(changed),
            )
        flow_state = state_of(self)
        with flow_state.lock:
            end_left_passes(self.ds)
            give(self.ds, kept)
            flow_state.entropy, flow_state.fixed = root, True
            flow_state.passes, flow_state.part(Resumed).bookmark = mark.p, mark

    def _change_since(self, state: Mapping[str, Any], division: Division, found: str, *, elastic: bool) -> Change:
        """What has changed in the chain since `state` was saved: its ranks, and no more.

        Raises:
            StateMismatch: More has changed, or the ranks must not change.
        """
        unit_n, position = known_length(division.unit), state.get("position")
        by_index = division.unit._df_addressable and position is not None
        index = state["pass"] * (unit_n or 0) + position if by_index else None
        change = division.change_since(state["flow"], self._description(), index)
        is_same = change.world_size == change.old_world_size
        if change.other is not None or (is_same and list(change.sizes) != list(change.old_sizes)):
            raise _another_chain(found if is_same or change.other is None else change.other, division)
        if not elastic or division.broken is not None:
            raise _another_chain(found, division)
        if position is None:
            raise StateMismatch(
                f"{found}, and the state does not say how far all ranks were: it has version 1; or a map above "
                "the shard has dropped datapoints, and only the rank that did so knows; or datapoints were still to be "
                "skipped, of a pass without a length or beyond its end. Use the same number of ranks; filter below the "
                "shard; save after the step that follows skip()"
            )
        return change

    def _bookmark(self, p: int, offset: int, position: int | None, root: int, division: Division) -> _Bookmark:
        """The bookmark at `position` of what the ranks divide in pass `p`; without one, at `offset`."""
        per_step, begin = division.per_step, 0
        n, length = known_length(self.ds, longest=True), known_length(division.unit)
        if position is not None and position != offset * per_step:
            offset, begin = position // per_step, position if position % per_step else 0
            if begin and division.broken is not None:
                raise StateMismatch(f"{_not_whole(position, per_step)}, and {_cure(division)}")
            if begin and _repeats_batches(division):
                raise StateMismatch(
                    f'{_not_whole(position, per_step)}, and ShardData(…, tail="repeat") above batches fills up passes '
                    "from their beginning. Put it directly below the batches, or use another tail"
                )
        if begin and length is not None and begin > length:
            raise _damaged(position, p, f"{length} datapoints")
        may_be_ahead = position is None and bool(own_nodes(self.ds))  # by what was still to be skipped
        if not begin and n is not None and ((offset > n and not may_be_ahead) or p > _LARGEST // max(n, 1)):
            raise _damaged(offset, p, f"{n} datapoints")
        mark = _Bookmark(p, Stream(root), 0 if begin else offset, loaded=True)
        mark.begin, mark.num_before = begin, offset if begin else 0
        return mark

    def _place(self, mark: _Bookmark, *, on_any_rank: bool = False) -> tuple[int, int, int, int]:
        """Pass, offset, `begin` and `num_before` of the next datapoint that is not skipped.

        With `on_any_rank`, a pass of which another rank has one more is not over.
        """
        p, num, begin, num_before = mark.p, mark.offset + mark.num_skipped, mark.begin, mark.num_before
        n, num_here = known_length(self), known_length(self, begin)
        # Where a node keeps something from pass to pass, each pass has to be made to its end.
        if n is None or num_here is None or num < num_here or own_nodes(self.ds):
            return p, num, begin, num_before
        if on_any_rank and num == num_here and num != known_length(self, begin, longest=True):
            return p, num, begin, num_before
        num -= num_here
        return (p + 1 + num // n, num % n, 0, 0) if n else (p + 1, 0, 0, 0)

    def skip(self, num: int) -> None:
        """Leave out the next `num` datapoints (batches, if this node is above them), such as after a spike of the loss.

        A running loop goes on after them; if none is running, the next loop begins there. What is left out beyond the
        end of a pass is left out of the passes that follow. If the flow can be addressed, this takes no time, and
        positions are counted, also those of dropped datapoints; otherwise the datapoints are computed and discarded.
        `state_dict` includes it. With several iterations, it is the most recent one. Another thread than that of the
        loop may call this, too: what the loop has not received yet is left out.

        Args:
            num: Number of datapoints, at least 0.

        Example:
            >>> df = ResumableData(DataFromList([[k] for k in range(6)], shuffle=False))
            >>> for dp in df:
            ...     print(dp)
            ...     if dp == [1]:
            ...         df.skip(3)
            [0]
            [1]
            [5]
        """
        num = whole_number(self, "num", num, 0)
        flow_state = state_of(self)
        resumed_at = flow_state.part(Resumed)
        with flow_state.lock:
            mark = resumed_at.bookmark = resumed_at.bookmark or begin_of(flow_state)
            if mark.num_skipped + num > _LARGEST:
                raise ValueError(f"ResumableData: num must be an integer ≤ {_LARGEST - mark.num_skipped}, got {num}")
            mark.num_skipped += num
            mark.num_asked += num

    # -- node protocol -------------------------------------------------------------------------------------------------

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        flow_state = state_of(self)
        if stream != root_stream(self) or p >= flow_state.passes:
            raise TypeError(_OUTERMOST)
        resumed_at = flow_state.part(Resumed)
        with flow_state.lock:  # what another thread skips goes to this iteration, or is found by it
            before = resumed_at.bookmark
            if before is not None and before.p == p:
                _require_root(before, stream, flow_state)
            mark = resumed_at.bookmark = _Bookmark(p, stream)
            restore(self.ds)
            mark.kept, mark.description = kept_by(self.ds), self._description()
            if before is not None:
                mark.num_asked = before.num_asked_left
                mark.num_skipped, before.num_skipped = before.num_skipped, 0
                # The one pass of an endless flow has no end: a loop continues where the last one stopped.
                goes_on = (self.ds._df_endless and self.ds._df_addressable) or (before.loaded and before.p == p)
                if goes_on and before.root == stream.root:
                    mark.num_skipped += before.offset
                    mark.begin, mark.num_before = before.begin, before.num_before
                    mark.num_certain = before.num_certain
            is_at_begin = not mark.num_skipped and not mark.begin
            if not is_at_begin and known_length(self):
                # A rank that has nothing left goes on with its first step, before which all ranks have the same state.
                place = self._place(mark, on_any_rank=True)
                mark.p, mark.num_skipped, mark.begin, mark.num_before = place
                flow_state.passes = max(flow_state.passes, mark.p + 1)
        if is_at_begin:
            return self._count(mark, stream)
        waits = self._df_waits
        return pausing(self._rest(mark, stream, waits), waits)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        if not picked_here():
            raise TypeError(_OUTERMOST)  # a node above reads by index, and would ignore the position
        return super()._df_at(blocks, stream)

    def _rest(self, mark: _Bookmark, stream: Stream, waits: bool) -> Iterator[Any]:
        """What is left after what is skipped: of this pass, or of one that follows."""
        first: Any = _NOTHING
        while first is _NOTHING:
            begin = mark.begin
            if mark.kept is None:  # a pass that follows
                with state_of(self).lock:
                    mark.kept, mark.description = kept_by(self.ds), self._description()
            datapoints = self._count(mark, stream)
            while True:
                try:
                    first = next(datapoints, _NOTHING)
                    break
                except TimeoutError as error:
                    pause = paused(error, waits)
                yield pause
            if first is _NOTHING:
                if mark.num_ended < mark.num_certain:
                    mark.num_skipped = 0
                    raise StateMismatch(
                        f"the state was saved after {mark.num_certain} datapoints of pass {mark.p - 1}, and that pass "
                        f"has ended after {mark.num_ended}: the state is damaged, or the code or the data have changed"
                    )
                mark.num_certain = 0
                if not mark.num_ended and not begin:
                    return
                state_of(self).passes = max(state_of(self).passes, mark.p + 1)
        yield first
        del first  # a reference would keep it in memory during the pass
        yield from resumed(datapoints, waits)

    def _count(self, mark: _Bookmark, stream: Stream) -> Iterator[Any]:
        """The datapoints from the bookmark to the end of its pass; the bookmark moves with them."""
        state_of(self).continued.require_same_weights(stream, self)
        repeated = self._df_promise.refuses
        stream = replace(stream, begin=mark.begin, shared=self._has_ranks, repeated=repeated)
        if self.ds._df_addressable:
            return chain.from_iterable(self._parts(mark, stream))
        datapoints = self.ds._df_run_pass(mark.p, replace(stream, standalone=_STANDALONE))
        return chain(present(map(mark.advance_in_order, datapoints)), mark.end_pass())

    def _parts(self, mark: _Bookmark, stream: Stream) -> Iterator[Iterator[Any]]:
        """Iterators over the rest of a pass: one, and another after each `skip`, which ends the one before."""
        n = None if self.ds._df_endless else self.ds._df_num_from(mark.begin)
        while True:
            mark.pass_over(n)
            begin = mark.offset
            blocks = onwards(begin) if n is None else consecutive(mark.p * n + begin, (mark.p + 1) * n)
            yield present(map(mark.advance, self.ds._df_at(blocks, stream)))
            # What is skipped from here on is left out of the next pass.
            if not mark.num_skipped or mark.offset == n:
                yield mark.end_pass()
                return

    @property
    def _has_ranks(self) -> bool:
        return any(df._df_own_rank is not None for df in walk(self.ds, everywhere=True))


class _Bookmark:
    """The position of an iteration: in pass `p`, before the datapoint at `offset`, without the next `num_skipped`.

    The offset counts positions if the flow can be addressed, so that dropped datapoints count too; otherwise it counts
    datapoints. In the rest of a pass that another number of ranks had begun, it counts from there on.

    The thread that iterates changes it without a lock, and others may add to `num_skipped` at any time: CPython changes
    from one thread to another at calls and at the ends of loops only, and no method reads what it changes before one.
    """

    def __init__(self, p: int, stream: Stream, offset: int = 0, *, loaded: bool = False) -> None:
        self.p = p
        self.root = stream.root
        self.is_drawn = stream.drawn  # so that other processes have drawn another root
        self.offset = offset
        self.loaded = loaded  # from a saved state: pass `p` begins here
        self.num_skipped = 0  # still to be left out, of this pass or of those that follow
        self.num_asked = 0  # by the user, of these or of those that were left out
        self.begin = 0  # the position of what the ranks divide at which they begin this pass
        self.num_before = 0  # the offset there
        self.num_certain = 0  # how many datapoints pass `p` has at least, if a saved state says so
        self.num_ended = 0  # datapoints of the pass that ended last, from where it began here
        self.kept: list[dict[str, Any]] | None = None  # by users' nodes as pass `p` began; None if it has not
        self.description: Description | None = None  # of the flow as pass `p` began; None if it has not

    @property
    def num_asked_left(self) -> int:
        """How many are still to be left out because the user has asked for it, rather than to come to a position."""
        return min(self.num_skipped, self.num_asked)

    def advance(self, dp: Any) -> Any:
        """Count `dp` as yielded, and return it; end the `map` that calls this if it is skipped."""
        if self.num_skipped:
            raise StopIteration
        self.offset += 1
        return dp

    def advance_in_order(self, dp: Any) -> Any:
        """Count `dp`, and return it, or a hole if it is skipped."""
        self.offset += 1
        if self.num_skipped:
            self.num_skipped -= 1
            return HOLE
        return dp

    def pass_over(self, n: int | None) -> None:
        """Move by what is skipped, at most to the end of a pass of `n` datapoints."""
        num = self.num_skipped if n is None else min(self.num_skipped, n - self.offset)
        self.offset, self.num_skipped = self.offset + num, self.num_skipped - num  # which may have grown since

    def end_pass(self) -> Iterator[Any]:
        """An empty iterator that moves the bookmark to the next pass when it is read."""
        self.num_ended = self.offset
        self.p, self.offset, self.begin, self.num_before = self.p + 1, 0, 0, 0
        self.kept = self.description = None
        yield from ()


class Resumed:
    """Where the iteration begun last is; None before the first. The lock of the `FlowState` guards it."""

    bookmark: _Bookmark | None = None


def begin_of(state: FlowState, p: int = 0) -> _Bookmark:
    """The bookmark at the beginning of pass `p`; before the first iteration, that is pass 0.

    The number of passes in `state` does not say it: another thread may have counted an iteration that it only begins.
    """
    return _Bookmark(p, Stream(state.root(), drawn=current_root() is None and not state.fixed))


def _require_root(mark: _Bookmark, stream: Stream, flow_state: FlowState) -> None:
    """Check that the position of a loaded state is one in the pass that begins."""
    if mark.loaded and mark.root != stream.root and (mark.offset or mark.begin):
        flow_state.passes = mark.p  # this one has not begun
        raise StateMismatch(
            f"the state was saved with the seed {mark.root}, in the middle of pass {mark.p}, but since it was loaded, "
            f"this program has called dataflow.seed({stream.root}), whose passes have another order. Call "
            "dataflow.seed before load_state_dict, with the same number; or leave out the call"
        )


def _not_whole(position: int, per_step: int) -> str:
    return f"the state was saved after {position} datapoints of a pass, which are not whole steps of {per_step}"


def _damaged(number: int | None, p: int, has: str) -> StateMismatch:
    return StateMismatch(f"the state is damaged: it names datapoint {number} of pass {p}, but a pass has {has}")


def _repeats_batches(division: Division) -> bool:
    shard = division.shard
    return shard is not None and shard.tail == "repeat" and batches_of(shard.ds) is not None


def _another_chain(found: str, division: Division) -> StateMismatch:
    if division.broken is None or not found.startswith("ShardData.world_size"):
        return StateMismatch(
            f"the state was saved from another chain: {found}. Build the same chain to resume; runners, and how many "
            "workers they have, may differ"
        )
    return StateMismatch(f"the state was saved from another chain: {found}, and {_cure(division)}")


def _cure(division: Division) -> str:
    name = type(division.broken).__name__
    if division.broken is division.shard:
        return (
            "one shard divides the share of another, so that no position says how far all ranks together were. Use the "
            "same number of ranks, or only one shard, with num_workers=0 in a DataLoader"
        )
    return (
        f"{name}, above the shard, has an order, random numbers or a number of steps of its own on each rank. Use the "
        f"same number of ranks; or put ShardData directly below or above the batches, so that {name} is below it"
    )


def _require_order(ds: DataFlow) -> None:
    require_order(ds, "ResumableData: ", "there is no position to resume from")
    continuing = None if ds._df_addressable else ds._df_continuing()
    if continuing is not None:
        name = continuing._df_title
        cure = _STANDALONE if getattr(continuing, "strict", True) else f"{_ELSEWHERE}. Pass strict=True to {name}"
        raise NotReproducible(f"ResumableData: a pass of {name} continues where the last one stopped, {cure}")


def _kept_in(state: Mapping[str, Any], ds: DataFlow) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = state.get("kept") or [{} for _ in own_nodes(ds)]
    try:
        check_kept(ds, kept)
    except (ValueError, TypeError, AttributeError) as error:
        raise StateMismatch(
            f"the state is damaged: 'kept', what nodes of your own keep from pass to pass: {error}"
        ) from error
    return kept


def _check_form(state: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping) or not isinstance(state.get("version"), int):
        raise StateMismatch("this is not a state of ResumableData: load what state_dict() returned")
    if state["version"] not in _READABLE:
        raise StateMismatch(
            f"the state has version {state['version']}, this dataflow reads versions up to {_VERSION}: resume with the "
            "version that saved it"
        )
    for key, kind in _KINDS.items():
        if not isinstance(state.get(key), kind):
            raise StateMismatch(f"the state is damaged: {key!r} is {state.get(key)!r}, not of type {kind.__name__}")
    # `isdecimal` is also true of digits of other scripts.
    position = state.get("position")
    numbers = (state["pass"], state["offset"], 0 if position is None else position)
    if not (state["root"].isdecimal() and state["root"].isascii()) or any(
        type(number) is not int or not 0 <= number <= _LARGEST for number in numbers
    ):
        raise StateMismatch("the state is damaged: seed, pass and offset are non-negative integers, and no larger ones")
    if len(state["root"]) > _ROOT_DIGITS:
        raise StateMismatch("the state is damaged: its root seed is too long")
