"""What every node promises, checked by one call: `check_node(make)`.

It calls `dataflow.testing.check_node`, which users have, with lists, tuples, dicts and a node in tensorpack's style
below the node, and adds what is particular to the nodes of this package. A new node's test is this call and what is
special about the node.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dataflow.errors import DataFlowTerminated, NotAddressable, NotReentrant
from dataflow.protocol.base import DataFlow
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
    stateful: bool  # goes on where the last pass stopped
    addressable: bool


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
        cases = [Case(make, stateful, addressable)]
    else:
        cases = [Case(lambda kind=kind: make(listed(kind)), stateful, addressable) for kind in kinds]
        if not needs_addressing:
            cases.append(Case(lambda: make(OldStyle(kinds[0])), stateful or stateful_unaddressed, addressable=False))
        else:
            with pytest.raises(NotAddressable, match="OldStyle is only a sequence of passes"):
                make(OldStyle())
    for case in cases:
        check_promises(case.make, continues=case.stateful or None, picklable=picklable, start_methods=[], num=MAX)
        with seeded(7):
            is_over_when_broken_off(case)
            is_addressable_or_names_the_node(case)
            serves_two_iterations_at_once(case, later_only=case.stateful or exclusive)


def is_over_when_broken_off(case: Case) -> None:
    """A pass that is left counts, and a stateful node goes on; closing also ends an iteration that was not begun."""
    with case.make() as df:
        expected = [*one_pass(df), *one_pass(df)]
    df = case.make()
    next(iter(df))
    found = one_pass(df)
    begin = 1 if case.stateful else len(expected) - len(found)
    assert found == expected[begin : begin + len(found)]
    later = iter(df)
    df.close()
    with pytest.raises(DataFlowTerminated, match="iterate it again"):
        next(later)


def is_addressable_or_names_the_node(case: Case) -> None:
    df = case.make()
    assert df.addressable is case.addressable
    if case.addressable:
        return
    with pytest.raises(NotAddressable, match=type(df._df_unaddressable()).__name__):
        df[0]
    if not df._df_indexed:
        with pytest.raises(NotAddressable, match=type(df).__name__):
            df._df_at([np.arange(1)], Stream(0))


def serves_two_iterations_at_once(case: Case, *, later_only: bool) -> None:
    df = case.make()
    first = iter(df)
    next(first)
    second = iter(df)
    next(second)
    if not later_only:
        next(first)
        return
    with pytest.raises(NotReentrant, match="a later iteration"):
        next(first)
    next(second)
