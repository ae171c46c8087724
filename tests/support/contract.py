"""What every node promises, checked by one call: `check_node(make)`.

A new node's test is this call and what is special about the node.
"""

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dataflow.errors import DataFlowTerminated, NotAddressable, NotReentrant
from dataflow.protocol.base import DataFlow
from dataflow.protocol.passes import known_length
from dataflow.protocol.seeding import Stream, seed
from dataflow.sources.in_memory import DataFromList
from dataflow.testing import check_node as check_promises

SIZE = 8  # datapoints of the inputs below
MAX = 60  # datapoints looked at of a pass that never ends
KINDS: dict[type, Callable[[int], Any]] = {
    list: lambda k: [np.full(2, k, np.float32), k],
    tuple: lambda k: (np.full(2, k, np.float32), k),
    dict: lambda k: {0: np.full(2, k, np.float32), 1: k},
}


class OldStyle(DataFlow):
    """A node as tensorpack's users write it: three methods, and a call of reset_state that it counts on."""

    def __init__(self, kind: type = list) -> None:
        self.kind = kind
        self.resets = 0

    def __iter__(self):
        assert self.resets, "iterated before reset_state"
        for k in range(SIZE):
            yield KINDS[self.kind](k)

    def __len__(self):
        return SIZE

    def reset_state(self):
        self.resets += 1


def listed(kind: type = list) -> DataFromList:
    """A shuffled list: every pass is another one, so that passes cannot be taken for each other."""
    return DataFromList([KINDS[kind](k) for k in range(SIZE)])


@contextmanager
def seeded(n: int) -> Iterator[None]:
    seed(n)
    try:
        yield
    finally:
        seed(None)


def plain(value: Any) -> Any:
    """The same in types that `==` compares as a whole."""
    if isinstance(value, np.ndarray | np.generic):
        return "array", value.dtype.str, value.tolist()
    if isinstance(value, list | tuple):
        return type(value).__name__, [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def one_pass(df: DataFlow) -> list[Any]:
    """The next pass, or the beginning of one that never ends."""
    return [plain(dp) for dp in itertools.islice(df, MAX)]


@dataclass(frozen=True)
class Case:
    make: Callable[[], DataFlow]
    stateful: bool  # goes on where the last pass stopped, and so can serve one iteration at a time
    addressable: bool
    picklable: bool
    exclusive: bool = False  # can serve one iteration at a time, though passes are independent

    def passes(self, num: int) -> list[list[Any]]:
        with seeded(7):
            df = self.make()
            return [one_pass(df) for _ in range(num)]


def check_node(
    make: Callable[..., DataFlow],
    *,
    source: bool = False,
    stateful: bool = False,
    stateful_unaddressed: bool = False,
    addressable: bool = True,
    needs_addressing: bool = False,
    picklable: bool = True,
    exclusive: bool = False,
    kinds: tuple[type, ...] = (list, tuple, dict),
) -> None:
    """Check what every node promises.

    Args:
        make: Makes a flow of which a pass has at least two datapoints; over the input that it is given, unless
            `source` is true. Dicts have the keys 0 and 1.
        source: `make` takes nothing.
        stateful: A pass goes on where the last one stopped.
        stateful_unaddressed: It does so where the input cannot be addressed.
        addressable: ``df[i]`` works where it works for the input.
        needs_addressing: The node refuses an input that cannot be addressed, and names it.
        picklable: The flow can be pickled.
        exclusive: The later of two iterations at once takes over, though no pass goes on with another.
        kinds: Kinds of datapoints that the node works on.
    """
    if source:
        cases = [Case(make, stateful, addressable, picklable, exclusive)]
    else:
        lists = [
            Case(lambda kind=kind: make(listed(kind)), stateful, addressable, picklable, exclusive) for kind in kinds
        ]
        old_style = Case(
            lambda: make(OldStyle(kinds[0])), stateful or stateful_unaddressed, False, picklable, exclusive
        )
        cases = [*lists, *(() if needs_addressing else (old_style,))]
        if needs_addressing:
            with pytest.raises(NotAddressable, match="OldStyle is only a sequence of passes"):
                make(OldStyle())
    if picklable:
        check_promises(cases[0].make, continues=cases[0].stateful or None, start_methods=[], num=MAX)
    for case in cases:
        for check in CHECKS:
            check(case)


def iterates_again_and_again(case: Case) -> None:
    with seeded(7):
        df = case.make()
        for _ in range(3):
            found = one_pass(df)
            assert len(found) >= 2
            length = known_length(df)
            assert df._df_endless or length in {None, len(found)}
        if not df._df_endless:
            assert isinstance(list(df), list)  # also without a length
    assert bool(df) is True


def yields_new_arrays(case: Case) -> None:
    with seeded(7):
        df = case.make()
        kept = [(dp, plain(dp)) for dp in itertools.islice(df, MAX)]
    assert [plain(dp) for dp, _ in kept] == [before for _, before in kept], "a datapoint changed after it was yielded"


def is_reset_by_whoever_comes_first(case: Case) -> None:
    expected = case.passes(2)
    with seeded(7):
        df = case.make()
        df.reset_state()
        df.reset_state()
        assert one_pass(df) == expected[0]
        if not case.stateful:
            df.reset_state()
            assert one_pass(df) == expected[1]


def copies_are_unstarted(case: Case) -> None:
    expected = case.passes(2)
    with seeded(7):
        df = case.make()
        one_pass(df)
        clones = [copy.copy(df), copy.deepcopy(df), pickle.loads(pickle.dumps(df))] if case.picklable else []
        # A shallow copy shares its inputs, with whatever they remember.
        for clone in clones[1:] if case.stateful else clones:
            assert [one_pass(clone), one_pass(clone)] == expected


def same_seed_gives_the_same(case: Case) -> None:
    assert case.passes(3) == case.passes(3)


def closing_ends_live_iterations_only(case: Case) -> None:
    with seeded(7):
        df = case.make()
        live = [iter(df)]
        next(live[0])
        if not case.stateful:
            live.append(iter(df))  # not started
        df.close()
        df.close()
        for iterator in live:
            with pytest.raises(DataFlowTerminated, match="iterate it again"):
                next(iterator)
        assert len(one_pass(df)) >= 2
        with df:
            iterator = iter(df)
            next(iterator)
        with pytest.raises(DataFlowTerminated):
            next(iterator)


def two_iterations_at_once(case: Case) -> None:
    with seeded(7):
        df = case.make()
        first = iter(df)
        next(first)
        second = iter(df)
        next(second)
        if case.stateful or case.exclusive:
            with pytest.raises(NotReentrant, match="a later iteration"):
                next(first)
            next(second)
            return
    expected = case.passes(2)
    with seeded(7):
        df = case.make()
        pairs = itertools.islice(itertools.zip_longest(iter(df), iter(df)), MAX)
        both = [[plain(dp) for dp in column if dp is not None] for column in zip(*pairs, strict=True)]
    assert both == expected


def addressing_gives_the_same_as_iterating(case: Case) -> None:
    with seeded(7):
        df = case.make()
        assert df.addressable is case.addressable
        if not case.addressable:
            with pytest.raises(NotAddressable, match=type(df._df_unaddressable()).__name__):
                df[0]
            if not df._df_indexed:
                with pytest.raises(NotAddressable, match=type(df).__name__):
                    df._df_at([np.arange(1)], Stream(0))
            return
        if df._df_endless:
            assert one_pass(df) == plain(df[:MAX])[1]
            return
        n = len(df)
        iterator = iter(df)
        next(iterator)  # pass 0 is broken off
        assert one_pass(df) == [plain(df[n + k]) for k in range(n)] == plain(df[n : 2 * n])[1]
        assert one_pass(df) == plain(df[2 * n : 3 * n])[1]
        with pytest.raises(IndexError, match="endless"):
            df[-1]


def a_pass_broken_off_is_over(case: Case) -> None:
    expected = case.passes(2)
    with seeded(7):
        df = case.make()
        next(iter(df))
        found = one_pass(df)
    if case.stateful:
        assert found[: MAX - 1] == [*expected[0], *expected[1]][1 : len(found[: MAX - 1]) + 1]
    else:
        assert found == expected[1]


CHECKS = (
    iterates_again_and_again,
    yields_new_arrays,
    is_reset_by_whoever_comes_first,
    copies_are_unstarted,
    same_seed_gives_the_same,
    closing_ends_live_iterations_only,
    two_iterations_at_once,
    addressing_gives_the_same_as_iterating,
    a_pass_broken_off_is_over,
)
