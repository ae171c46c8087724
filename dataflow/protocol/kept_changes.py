"""What has changed in the attributes of a user's node since its first pass: for a saved state, or a reason against one.

As the code of a node begins its first pass in this process, its attributes are described, and those of later passes
compared with that. What differs can be given to another process, where `put` makes it again, or is refused: by what it
is (`kept_values`), by what has been there before, or since something else holds it, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count, cycle, repeat
from operator import length_hint
from types import FunctionType, GeneratorType
from typing import Any, Final

import numpy as np

from dataflow.protocol.generator_states import HAS_SPAWNED
from dataflow.protocol.kept_values import (
    OPAQUE,
    Places,
    describe,
    is_opaque,
    is_stream,
    make,
    parts_of,
)
from dataflow.protocol.state import RESET, Kept, is_flow, state_of
from dataflow.system.references import COLLECTIONS, attributes_of, parts, reached

__all__ = [
    "begin_pass",
    "call_unseen",
    "catch_up",
    "changed_since",
    "changes",
    "end_pass",
    "held_over",
    "put",
    "undone",
]

_NOT_THERE: Final = "an object that was not there at first"


def begin_pass(df: Any, renew: Callable[[Any, bool], None]) -> None:
    """Remember what the node `df` has as its code begins a pass; first it gets what a worker has changed."""
    part = state_of(df).part(Kept)
    if part.ahead is not None:
        catch_up(df, renew)
    note_first(df)
    part.iterators = _iterators_of(df)


def catch_up(df: Any, renew: Callable[[Any, bool], None]) -> None:
    """Let the node `df` get what the copy of a worker has changed, which has made its last pass (`put`)."""
    part = state_of(df).part(Kept)
    part.given, part.ahead = changes(df) if part.ahead.reported else None, None
    put([df], renew)


def end_pass(df: Any) -> None:
    """Remember which iterators the pass has not replaced."""
    part = state_of(df).part(Kept)
    part.iterators = _not_replaced(df, part)


def held_over(df: Any) -> dict[str, Any]:
    """The iterators that a pass of the node `df` has found, also the running one, and that it has not replaced."""
    return _refused(_not_replaced(df, state_of(df).part(Kept)))


def _iterators_of(df: Any) -> dict[str, Any]:
    return {name: value for name, value in attributes_of(df) if is_stream(value)}


def _not_replaced(df: Any, part: Kept) -> dict[str, Any]:
    found = attributes_of(df) if part.iterators else ()  # mostly none
    return {name: value for name, value in found if part.iterators.get(name, df) is value}


def _refused(iterators: Mapping[str, Any]) -> dict[str, Any]:
    return {name: [OPAQUE, f"{held!r:.80} is held over several passes"] for name, held in iterators.items()}


def _is_unfinished(iterator: Any) -> bool:
    """Whether an iterator that a pass has left behind is known to have more: a pass may go on with it."""
    if isinstance(iterator, GeneratorType):
        return iterator.gi_frame is not None
    try:
        return isinstance(iterator, count | cycle | repeat) or length_hint(iterator) > 0
    except Exception:  # of a user's class
        return False


def note_first(df: Any) -> dict[str, Any]:
    """What the node `df` had in its attributes as its first pass began here: what it has now, if none has begun."""
    part = state_of(df).part(Kept)
    first = part.first
    if first is None:
        places = Places()
        first = describe(df, places)
        part.first, part.held, part.iterators = first, places.held, _iterators_of(df)
    return first


def put(nodes: Sequence[Any], renew: Callable[[Any, bool], None]) -> None:
    """Let a pass begin: what its nodes were given becomes their attributes.

    Args:
        nodes: The nodes.
        renew: Resets a node, and closes it before if that is true. It is called for those that were reset after they
            had kept what they are given.
    """
    to_renew = []
    for df in nodes:
        first = note_first(df)
        part = state_of(df).part(Kept)
        given, part.given = part.given, None
        if given is not None:
            if RESET in given:
                to_renew.append((df, given[RESET]))
            _put(df, part, {name: text for name, text in given.items() if name != RESET}, first)
    for df, is_closed in to_renew:
        renew(df, is_closed)


def _put(df: Any, part: Kept, given: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    part.named.update(given)
    described = describe(df, Places(part.held))
    wanted = {**first, **given}
    for name, text in wanted.items():
        if not is_opaque(text) and described.get(name) != text:
            held = part.held.get((name,), lambda: None)()
            setattr(df, name, make(text, getattr(df, name, None) if held is None else held))
    for name, text in described.items():
        if not is_opaque(text) and name not in wanted:
            delattr(df, name)  # the code has made it since, and will again; a class may have a value of the same name


def changes(df: Any) -> dict[str, Any]:
    """What the node `df` keeps: what has changed since the first pass of all.

    What cannot be given and stands where there was nothing or None is left out: it is made when it is first needed.
    """
    part = state_of(df).part(Kept)
    if part.given is not None:
        return part.given  # not in the attributes yet
    changed = {} if part.first is None else _changes_here(df, part, part.first)
    ahead = part.ahead
    if part.first is not None and ahead is None and not state_of(df).ready:
        changed[RESET] = True  # the next pass resets it
    if ahead is not None and ahead.reported:
        now, before = describe(df), ahead.seen  # what the user has changed here since that pass began counts
        changed |= {name: kept for name, kept in ahead.reported.items() if now.get(name) == before.get(name)}
    return changed


def call_unseen(df: Any, reset: Callable[[], object]) -> None:
    """Call `reset`: what it changes in the node `df` is no change by the user, which would count more than `ahead`."""
    before = describe(df)
    reset()
    ahead, now = state_of(df).part(Kept).ahead, describe(df)
    if ahead is not None:
        ahead.seen = {**ahead.seen, **{name: text for name, text in now.items() if before.get(name) != text}}


def undone(df: Any) -> dict[str, Any]:
    """What has changed in the attributes of the node `df` since its first pass, as it was then: for a copy of now."""
    first = state_of(df).part(Kept).first
    if first is None:
        return {}
    now = describe(df)
    return {name: text for name, text in first.items() if not is_opaque(text) and now.get(name) != text}


def _changes_here(df: Any, part: Kept, first: Mapping[str, Any]) -> dict[str, Any]:
    changed, places = {}, Places(part.held)
    for name, now in describe(df, places).items():
        before = first.get(name)
        reason = _refusal(before, now)
        if _has_changed(before, now, reason):
            changed[name] = [OPAQUE, reason] if reason else now
        elif name in part.named and not is_opaque(now):
            changed[name] = now
    made = [(name, value) for name in changed if not is_opaque(changed[name]) for value in places.made.get(name, ())]
    for name in _held_twice(df, made) if made else ():
        changed[name] = [OPAQUE, "it was not there at first, and something else holds it, or an element of it, too"]
    left = {name: value for name, value in _iterators_of(df).items() if _is_unfinished(value)}
    return changed | _refused(_not_replaced(df, part) | left)


def changed_since(df: Any, before: Mapping[str, Any]) -> list[str]:
    """The attributes of the node `df` that have changed since they were described as `before`."""
    now = describe(df)
    pairs = ((name, before.get(name), now.get(name)) for name in {**now, **before})
    return [name for name, old, new in pairs if _has_changed(old, new, _refusal(old, new))]


def _has_changed(before: Any, now: Any, reason: str) -> bool:
    is_made_when_needed = before is None and reason and reason != HAS_SPAWNED
    return now != before and not is_made_when_needed


def _refusal(before: Any, now: Any) -> str:
    """Why `now` cannot be given where `before` was at first; "" if it can, or has not changed."""
    if now == before or not isinstance(now, list):
        return ""
    kind = now[0]
    is_alike = isinstance(before, list) and before[0] == kind
    if kind == OPAQUE:
        return str(now[1])
    if kind == "new":
        return _NOT_THERE if now[1][0] == "holds" else _refusal(before, now[1])
    if kind == "Generator":
        return "" if now[3:] == (before[3:] if is_alike else []) else HAS_SPAWNED
    if kind not in ("object", "holds", "file"):
        return ""
    if kind == "file" and is_alike:
        return "" if before[2] == now[2] else f"another file, {now[2]}"
    if kind == "holds" and is_alike and [path for path, _ in before[1]] == [path for path, _ in now[1]]:
        if before[2:] != now[2:]:
            return str(now[2]) if now[2:] else _NOT_THERE  # which is a flow
        pairs = zip(before[1], now[1], strict=True)
        return next((reason for (_, old), (_, new) in pairs if (reason := _refusal(old, new))), "")
    if kind == "object" and is_alike and before[1] == now[1]:
        held = dict(before[2])
        reasons = ((name, _refusal(held[name], part)) for name, part in now[2] if held.get(name) is not None)
        return next((f".{name}: {reason}" for name, reason in reasons if reason), "")
    return _NOT_THERE


def _held_twice(df: Any, made: Sequence[tuple[str, Any]]) -> list[str]:
    """The attributes of which something that a resume would make anew is held by more than that: there would be two."""
    num_held = Counter(id(value) for _, value in reached([("", df), ("", type(df))], _referred))
    return [
        name
        for name, value in made
        if num_held[id(value)] > 1
        or (type(value) is np.ndarray and value.base is not None and num_held[id(value.base)] > 1)
    ]


def _referred(where: str, value: Any) -> list[tuple[str, Any]]:
    """What a value refers to; of a function and a class, also what their code reads."""
    if isinstance(value, FunctionType | type):
        return list(parts(where, value))
    if is_flow(value):
        found = [part for name, part in attributes_of(value) if not name.startswith("_df_")]
        is_own = value._df_user_written  # the datapoints that a source of ours holds are nobody's state
        return [(where, part) for part in found if is_own or not isinstance(part, (*COLLECTIONS, np.ndarray))]
    if isinstance(value, np.ndarray):
        return [] if value.base is None else [(where, value.base)]
    return [(where, type(value)), *((where, part) for _, part in parts_of(value))]
