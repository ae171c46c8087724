"""What the nodes of a user keep from pass to pass in their attributes: a number of epochs, a buffer, a generator.

A pass of such a node depends on the passes before it, which a process that resumes, or the successor of a worker, has
not made. So whoever lets one begin gives it what it would have kept: `kept_by` says what has changed since the first
pass, as JSON; `give` takes it to the nodes of another process, and `restore` puts it into their attributes. What
cannot be given (see `kept_changes`) is refused.

Nodes below `CacheData` keep nothing: it makes one pass of them, which is the first in any process. Nodes that are not
found in the chain, but begun by the code of another node, cannot be given anything either. What they keep is refused.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

from dataflow.errors import NotReproducible
from dataflow.protocol.kept_in_workers import CURE, KeptInWorker, differing, kept_in_worker, warn_of_change
from dataflow.protocol.passes import Node, UserCode, known_length, makes_passes_by_code, renew, walk
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import RESET, Kept, Taken, state_of

__all__ = [
    "check_kept",
    "end_left_passes",
    "give",
    "kept_by",
    "note_reset",
    "own_nodes",
    "parts_of_workers",
    "report",
    "reading_ahead",
    "require_found",
    "require_kept",
    "restore",
    "warn_of_changes",
]


def own_nodes(ds: Node) -> list[Any]:
    """The nodes from `ds` down, below workers too, of which a user's code makes the passes, one after the other."""
    return list(filter(makes_passes_by_code, walk(ds, everywhere=True, uncached=True)))


def kept_by(ds: Node) -> list[dict[str, Any]]:
    """What each of the `own_nodes` keeps, by attribute: what has changed since the first pass of all, as JSON."""
    here = {id(df) for df in walk(ds)}
    return [_changes(df) if id(df) in here else kept_in_worker(df).reported for df in own_nodes(ds)]


def _changes(df: Node) -> dict[str, Any]:
    from dataflow.protocol.kept_changes import changes  # which few flows need

    return changes(df)


def report(parts: Sequence[KeptInWorker], kept: Sequence[dict[str, Any]]) -> None:
    """Remember what nodes below workers keep, as a worker has reported it at the end of a pass.

    Raises:
        NotReproducible: It was not the only pass of a node at that time.
    """
    for part, reported in zip(parts, kept, strict=True):
        part.changed = next(iter(differing(reported, part.before)), "")
        part.reported, part.is_due = reported, False
        if part.here is not None:
            part.here.ahead = part
    for part in parts:
        df = part.node()
        if df is not None and part.changed:
            if part.follows_lost:
                warn_of_change(df, part.changed)
            if part.overlaps:
                part.require_alone(df, part.changed)


def give(ds: Node, kept: Sequence[dict[str, Any] | None], *, to_workers_only: bool = False) -> None:
    """Give nodes what they keep as their next pass begins: `restore` puts it into attributes, here or in workers.

    Args:
        ds: The flow.
        kept: What each of the `own_nodes` gets; None for one that has it.
        to_workers_only: The next pass follows the last one, which was left early: nodes here keep what they have.
            Otherwise it follows from `kept`, and no node looks at what was read ahead before.
    """
    if not to_workers_only:
        for df in walk(ds, everywhere=True):
            state_of(df).continued.begin_again()
            state_of(df).continued.lost = None
    here = {id(df) for df in walk(ds)}
    for df, given in zip(own_nodes(ds), kept, strict=True):
        if given is None:
            continue
        if id(df) not in here or not to_workers_only:
            part = kept_in_worker(df)
            part.reported, part.is_due, part.is_for_both = given, True, id(df) in here
            part.is_loaded = not to_workers_only
            part.taken = part.taken if to_workers_only else None
        if id(df) in here and not to_workers_only:
            of_node = state_of(df).part(Kept)
            of_node.given, of_node.ahead = given, None


def parts_of_workers(runner: Node, ds: Node, taken: Taken, *, are_copies: bool) -> list[KeptInWorker]:
    """What is known of the `own_nodes` of `ds`, whose next pass a worker of `runner` makes.

    Args:
        runner: The runner.
        ds: Its input.
        taken: Of the pass.
        are_copies: The worker has copies of the nodes. Otherwise it is a thread that has the nodes themselves, as far
            as the workers of runners below it do not.

    Raises:
        NotReproducible: Another pass of a node that keeps something is not over.
    """
    direct = {id(df) for df in walk(ds)}  # not those of workers of the worker
    nodes = own_nodes(ds)
    parts = [kept_in_worker(df) for df in nodes]
    for df, part in zip(nodes, parts, strict=True):
        is_same = part.runner() is runner
        part.begin(df, runner, taken)
        part.has_itself, part.follows_lost = not are_copies, taken.follows_lost
        if are_copies or id(df) in direct:
            with state_of(df).lock:  # a thread may reset it now
                _continue_with_last(df, part, is_same=is_same, are_copies=are_copies)
        part.before = part.before if part.overlaps else part.reported
    return parts


def _continue_with_last(df: Node, part: KeptInWorker, *, is_same: bool, are_copies: bool) -> None:
    """Let the next pass of `df` continue with what has changed last: `part.reported`, given to its worker if due.

    - If a state was loaded, or the last pass was left early: with what was loaded, or with what that pass began with,
      unless a pass here has taken it meanwhile. It is given to the worker.
    - A copy: with what the last pass has changed, here or in any copy, and what the user has changed here since. It is
      given if a worker of this runner has not made that pass (`is_same`), or something has changed after it.
    - A thread that has the node itself: with what the node has. What a copy has changed since is given.
    """
    from dataflow.protocol.kept_changes import undone  # which few flows need
    from dataflow.protocol.kept_values import describe

    of_node = state_of(df).part(Kept)
    has_taken = part.is_for_both and of_node.given is None  # a pass here, so it is what the attributes have
    if part.is_due and not has_taken:
        part.reported = (undone(df) if are_copies else {}) | part.reported
        of_node.given = None if part.is_for_both else of_node.given
    elif are_copies or of_node.ahead is not None:
        before, part.reported = part.reported, _changes(df)
        part.is_due = part.is_due or not is_same or part.reported != before or RESET in before
    else:
        part.is_due = False
    part.seen = describe(df)
    part.here, of_node.ahead = (of_node, part) if are_copies else (None, None)


def note_reset(ds: Node, *, are_copies: bool, is_closed: bool) -> None:
    """Note that a runner is closed or reset, whose workers make passes of `ds`: what nodes keep, they kept before.

    A new worker resets its nodes before it is given what they keep, which would replace what the reset has made, such
    as a generator. So it resets them again afterwards (`RESET`). Without workers, it is a second reset as well.
    """
    direct = {id(df): df for df in walk(ds)}
    for df in own_nodes(ds):
        part, of_node = kept_in_worker(df), state_of(df).part(Kept)
        has_itself = not are_copies and id(df) in direct
        if part.is_loaded:
            continue  # this comes after the reset
        if are_copies or (has_itself and of_node.ahead is not None):
            from dataflow.protocol.kept_values import describe  # which few flows need

            part.reported, part.is_due, part.is_for_both = _changes(df), False, False
            part.here, part.seen, of_node.ahead = of_node, describe(df), part
        if part.reported or part.runner() is not None:  # a pass has begun
            part.reported = {**part.reported, RESET: is_closed or part.reported.get(RESET, False)}
    if not are_copies:
        for df in direct.values():
            state_of(df).ready = False  # even if a thread of another runner uses it


def end_left_passes(ds: Node) -> None:
    """End the passes that were left early, before nodes are given anything else, where threads have the nodes here.

    Such a thread notices that at its next datapoint, and changes what a node keeps until then.
    """
    for df in walk(ds):
        taken = state_of(df).continued.taken
        if df._df_has_workers and not df._df_is_copied and taken is not None and not taken.is_over:
            state_of(df).end_session()  # waits for the thread


def restore(ds: Node) -> None:
    """Let a pass of `ds` begin: what its nodes were given becomes their attributes, except below workers."""
    nodes = list(filter(makes_passes_by_code, walk(ds, uncached=True)))
    if nodes:
        from dataflow.protocol.kept_changes import put  # which few flows need

        put(nodes, renew)
    here = {id(df) for df in walk(ds)}
    for df in own_nodes(ds):
        if id(df) not in here:
            kept_in_worker(df).is_loaded = False  # a reset by the code of this pass comes after that


def warn_of_changes(ds: Node, kept: Sequence[dict[str, Any] | None]) -> None:
    """Log once what a pass has changed that was left early, after it had been read ahead: it is not known how far.

    Args:
        ds: The flow.
        kept: What its nodes kept as that pass began; None for one that is not to be looked at.
    """
    for df, now, before in zip(own_nodes(ds), kept_by(ds), kept, strict=True):
        changed = differing(now, now if before is None else before)
        if changed:
            warn_of_change(df, changed[0])


def require_kept(ds: Node, kept: Sequence[dict[str, Any]]) -> None:
    """Check that everything in `kept` can be given to another process.

    Raises:
        NotReproducible: Something cannot; names it.
    """
    for df, changed in zip(own_nodes(ds), kept, strict=True):
        from dataflow.protocol.kept_changes import held_over  # which few flows need
        from dataflow.protocol.kept_values import is_opaque

        for name, description in {**changed, **held_over(df)}.items():
            if is_opaque(description):
                raise NotReproducible(
                    f"{type(df).__name__}.{name} ({description[1]}) is kept from pass to pass, and no state can hold "
                    f"it, so a pass could not begin in another process. {CURE}, or keep numbers from which __iter__ "
                    "makes it; what the datapoints do not depend on may be None until it is needed"
                )


def require_found(ds: Node) -> None:
    """Check that no node keeps anything that code of another node has begun, and that is not found in the chain.

    Raises:
        NotReproducible: One does; names it.
    """
    found = _changed_out_of_sight(ds)
    if found:
        raise NotReproducible(
            f"{found} is kept from pass to pass, in a flow that another node's code begins, so a pass could not begin "
            f"in another process. {CURE}; or keep the flow itself in an attribute of the node that iterates it"
        )


def _changed_out_of_sight(ds: Node) -> str:
    """Names what a node keeps that is no input, but was begun by the code of a node; or "" if there is none."""
    found = {id(df) for df in walk(ds)}
    seen: set[int] = set()
    waiting: list[Any] = [ds]
    while waiting:
        for df in walk(waiting.pop(), uncached=True):
            if id(df) in seen:
                continue
            seen.add(id(df))
            # Another thread may begin more: `valuerefs` makes its list in one step.
            references = state_of(df).part(UserCode).others.valuerefs()
            waiting += [other for other in (reference() for reference in references) if other is not None]
            if id(df) not in found and makes_passes_by_code(df):
                for name in _changes(df).keys() - {RESET}:
                    return f"{type(df).__name__}.{name}"
    return ""


def check_kept(ds: Node, kept: Any) -> None:
    """Check the form of what a saved state says of the `own_nodes` of `ds`.

    Raises:
        ValueError: It is damaged.
    """
    nodes = own_nodes(ds)
    if not isinstance(kept, list) or len(kept) != len(nodes):
        raise ValueError(f"it must describe {len(nodes)} nodes")
    for df, changed in zip(nodes, kept, strict=True):
        from dataflow.protocol.kept_values import make, may_be_set  # which few flows need

        for name, description in dict(changed).items():
            if name == RESET and isinstance(description, bool):
                continue
            if not may_be_set(df, name):
                raise ValueError(f"{type(df).__name__} cannot keep {name!r}")
            try:
                make(description, None)
            except Exception as error:
                raise ValueError(f"{type(df).__name__}.{name} is {reprlib.repr(description):.80}") from error


# -- Passes of which the consumer takes less than was read -------------------------------------------------------------


def reading_ahead(df: Node, stream: Stream, name: str) -> tuple[Stream, Taken]:
    """Begin a pass of the node `df`, called `name`, whose input is read in order, ahead of the consumer.

    After a pass that was left early, the passes of the input must stand alone: how much of it was read ahead depends on
    timing. If users' nodes keep something, that is logged.

    Returns:
        The stream for the input, and what counts the datapoints that the consumer takes.

    Raises:
        NotReproducible: Another pass of a node that keeps something is not over.
    """
    ahead = state_of(df).continued
    before, taken = ahead.taken, Taken(stream, ref(df))
    lost, ahead.lost = ahead.lost, None
    if lost is not None:
        taken.follows_lost = True
        warn_of_changes(df, lost.kept)
    if before is None or before.stream != stream:
        ahead.has_left = False
    else:
        ahead.has_left = ahead.has_left or not before.is_whole(known_length(df))
        # If the last datapoint was taken, but not the end, workers may have run what the code does after it.
        taken.follows_left = not before.is_over
        if taken.follows_left:
            warn_of_changes(df, before.kept)
            give(df, before.kept, to_workers_only=True)
    restore(df)
    taken.kept = kept_by(df)
    for node in filter(makes_passes_by_code, walk(df, uncached=True)):  # those of workers: `parts_of_workers`
        from dataflow.protocol.kept_values import describe  # which few flows need

        part = kept_in_worker(node)
        part.begin(node, df, taken)
        part.seen = describe(node)
    stream = replace(stream, ahead=taken)
    ahead.taken = taken  # last: another thread may begin a pass, too, and looks at what was kept before this one
    if ahead.has_left and not stream.standalone:
        reason = (
            f"and one was left early, after {name} had read ahead: it is not known where. Iterate whole passes; or cut "
            f"them above it, with FixedSizeData({name}(…), size), which continues with the next datapoint"
        )
        return replace(stream, standalone=reason), taken
    return stream, taken
