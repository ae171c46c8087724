"""Resumable flows: save the position of a flow, and continue from it in another process."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from dataflow.base import Blocks, DataFlow, ProxyDataFlow
from dataflow.datapoint import present
from dataflow.errors import NotReproducible, StateMismatch, TimeoutError
from dataflow.fingerprints import changed_code, described, difference
from dataflow.passes import known_length, picked_here, promise, root_stream, walk
from dataflow.pauses import Pause, limited, paused, pausing, resumed
from dataflow.seeding import Stream, current_root
from dataflow.state import Promise, state_of
from dataflow.transforms.indexing import consecutive, onwards

__all__ = ["ResumableData"]

_log = logging.getLogger("dataflow.transforms")

_VERSION: Final = 1
_KINDS: Final = {"version": int, "root": str, "pass": int, "offset": int, "flow": dict}
_LARGEST: Final = 2**62  # indexes are int64
_ROOT_DIGITS: Final = 4000  # Python converts no longer text
_NOTHING: Final = object()
_OUTERMOST: Final = (
    "ResumableData must be the outermost node: it counts the datapoints that the loop receives. Move it to the top of "
    "the chain"
)
_STANDALONE: Final = (
    "so it cannot be started in another process. Put the datapoints into a list (DataFromList), or use a node whose "
    "passes are independent, such as FixedSizeData(…, keep_state=False)"
)


class ResumableData(ProxyDataFlow):
    """Save the position of a flow, and continue from it: later, elsewhere, under another runner.

    `state_dict` may be called at any time, even between two datapoints, and records which datapoint comes next. If the
    flow can be addressed, resuming is immediate at any position; otherwise the pass is computed again up to that point
    and discarded. This node must be the outermost one, because it counts the datapoints that the loop has received.

    If `state_dict` was called in the middle of a pass, the first loop after `load_state_dict` gets the rest of that
    pass. If the pass was complete, it gets the next one.

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

    def __init__(self, ds: DataFlow) -> None:
        super().__init__(ds)
        _require_order(ds)
        # Checked now, because attributes of a user's node may change while it runs.
        self._description = described(ds)

    def reset_state(self) -> None:
        """Prepare the flow in the process that iterates it. Optional: the first `iter` does it."""
        promise(self, self._df_promise)
        super().reset_state()

    def state_dict(self) -> dict[str, Any]:
        """The position of the flow, as JSON: version, root seed, pass and offset of the next datapoint, and the chain.

        With several iterations, it is the position of the most recent one.
        """
        flow_state = state_of(self)
        mark = flow_state.bookmark or _Bookmark(flow_state.passes, 0, flow_state.root())
        p, offset = mark.p, mark.offset
        n = known_length(self)
        if n is not None and offset >= n:
            p, offset = p + 1, 0
        return {"version": _VERSION, "root": str(mark.root), "pass": p, "offset": offset, "flow": self._description}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was saved: the next loop begins there.

        The root seed of the state becomes that of this flow, unless the program has called `dataflow.seed`. Functions
        are compared by name; if their code has changed, a warning names them.

        Args:
            state: What `state_dict` returned, also after JSON.

        Raises:
            StateMismatch: `state` is malformed, or belongs to another chain, another seed or another version.
        """
        _check_form(state)
        n = known_length(self)
        # Indexes and positions are the same only where the flow can be addressed.
        num = state["pass"] * (n or 0) + state["offset"] if self.ds._df_addressable else None
        found = difference(state["flow"], self._description, self.ds, num)
        if found is not None:
            raise StateMismatch(
                f"the state was saved from another chain: {found}. Build the same chain to resume; runners, and how "
                "many workers they have, may differ"
            )
        if changed := changed_code(state["flow"], self._description):
            _log.warning(
                "the code of %s has changed since the state was saved: positions and random numbers continue, and from "
                "here on the new code makes the datapoints",
                ", ".join(changed),
            )
        if n is not None and (state["offset"] > n or state["pass"] > _LARGEST // max(n, 1)):
            raise StateMismatch(
                f"the state is damaged: it names datapoint {state['offset']} of pass {state['pass']}, but a pass has "
                f"{n} datapoints"
            )
        root = int(state["root"])
        if current_root() not in {None, root}:
            raise StateMismatch(
                f"the state was saved with the seed {root}, but this program has called "
                f"dataflow.seed({current_root()}). Leave out the call, or use the same number"
            )
        flow_state = state_of(self)
        flow_state.entropy, flow_state.fixed = root, True
        flow_state.passes = state["pass"]
        flow_state.bookmark = _Bookmark(state["pass"], state["offset"], root, loaded=True)

    # -- node protocol -------------------------------------------------------------------------------------------------

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        flow_state = state_of(self)
        if stream != root_stream(self) or p >= flow_state.passes:
            raise TypeError(_OUTERMOST)
        loaded: _Bookmark | None = flow_state.bookmark
        mark = _Bookmark(p, 0, stream.root)
        flow_state.bookmark = mark
        if self.ds._df_endless and self.ds._df_addressable and loaded is not None and loaded.root == stream.root:
            mark.offset = loaded.offset  # its one pass has no end: a loop continues where the last one stopped
            return self._counted(mark, stream)
        if loaded is None or not loaded.loaded or loaded.p != p or loaded.root != stream.root or not loaded.offset:
            return self._counted(mark, stream)
        mark.offset = loaded.offset
        waits = self._df_waits
        return pausing(self._rest(mark, stream, waits), waits)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        if not picked_here():
            raise TypeError(_OUTERMOST)  # a node above reads by index, and would ignore the position
        return super()._df_at(blocks, stream)

    def _rest(self, mark: _Bookmark, stream: Stream, waits: bool) -> Iterator[Any]:
        """The rest of the pass; or the next pass if the state was saved right after the last datapoint."""
        p = mark.p
        datapoints = self._counted(mark, stream)
        first: Any = Pause
        while first is Pause:
            try:
                first = next(datapoints, _NOTHING)
            except TimeoutError as error:
                pause = paused(error, waits)
            if first is Pause:
                yield pause
        if first is not _NOTHING:
            yield first
            del first  # a reference would keep it in memory during the pass
        else:
            state_of(self).passes = max(state_of(self).passes, p + 2)
            datapoints = self._counted(mark, stream)
        yield from resumed(datapoints, waits)

    def _counted(self, mark: _Bookmark, stream: Stream) -> Iterator[Any]:
        """The datapoints from the bookmark to the end of its pass; the bookmark moves with them."""
        if not self.ds._df_addressable:
            standalone = replace(stream, standalone=_STANDALONE)
            datapoints = limited(self.ds._df_run_pass(mark.p, standalone), self._df_waits, None, mark.offset)
            return chain(map(mark.advance, datapoints), mark.end_pass())
        if self.ds._df_endless:
            blocks = onwards(mark.offset)
        else:
            n = len(self.ds)
            blocks = consecutive(mark.p * n + mark.offset, (mark.p + 1) * n)
        return chain(present(map(mark.advance, self.ds._df_at(blocks, stream))), mark.end_pass())


class _Bookmark:
    """The position of an iteration: in pass `p`, before the datapoint at `offset`.

    The offset counts positions if the flow can be addressed, so that dropped datapoints count too; otherwise it counts
    datapoints.
    """

    def __init__(self, p: int, offset: int, root: int, *, loaded: bool = False) -> None:
        self.p = p
        self.offset = offset
        self.root = root
        self.loaded = loaded  # from a saved state: pass `p` begins here

    def advance(self, dp: Any) -> Any:
        """Count `dp` as yielded, and return it."""
        self.offset += 1
        return dp

    def end_pass(self) -> Iterator[Any]:
        """An empty iterator that moves the bookmark to the next pass when it is read."""
        self.p, self.offset = self.p + 1, 0
        yield from ()


def _require_order(ds: DataFlow) -> None:
    for node in walk(ds, everywhere=True):
        name = type(node).__name__
        if not node._df_reproducible:
            raise NotReproducible(
                f"ResumableData: the order of the datapoints of {name} is not defined, so there is no position to "
                "resume from. Give a runner strict=True or one worker; put the datapoints of a queue into a list"
            )
    continuing = None if ds._df_addressable else ds._df_continuing()
    if continuing is not None:
        name = type(continuing).__name__
        raise NotReproducible(f"ResumableData: a pass of {name} continues where the last one stopped, {_STANDALONE}")


def _check_form(state: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping) or not isinstance(state.get("version"), int):
        raise StateMismatch("this is not a state of ResumableData: load what state_dict() returned")
    if state["version"] != _VERSION:
        raise StateMismatch(
            f"the state has version {state['version']}, this dataflow reads version {_VERSION}: resume with the "
            "version that saved it"
        )
    for key, kind in _KINDS.items():
        if not isinstance(state.get(key), kind):
            raise StateMismatch(f"the state is damaged: {key!r} is {state.get(key)!r}, not of type {kind.__name__}")
    # `isdecimal` is also true of digits of other scripts.
    numbers = (state["pass"], state["offset"])
    if not (state["root"].isdecimal() and state["root"].isascii()) or any(
        isinstance(number, bool) or not 0 <= number <= _LARGEST for number in numbers
    ):
        raise StateMismatch("the state is damaged: seed, pass and offset are non-negative integers, and no larger ones")
    if len(state["root"]) > _ROOT_DIGITS:
        raise StateMismatch("the state is damaged: its root seed is too long")
