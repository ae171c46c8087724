"""Checks for tests of your own nodes and flows: `check_node` and `assert_same_data`.

Example:
    >>> from dataflow.testing import assert_same_data, check_node
    >>> def make():
    ...     return BatchData(DataFromList([[k] for k in range(7)], shuffle=False), 2)
    >>> check_node(make, start_methods=[])
    >>> assert_same_data(make(), BatchData(DataFromList([[k] for k in (0, 1, 2, 4)], shuffle=False), 2))
    Traceback (most recent call last):
    AssertionError: datapoint 1 of pass 0 differs: component 0 is np.int32(3), and np.int32(4), at [1]
"""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Final

from dataflow.errors import DataFlowTerminated, Dropped, NotReentrant, NotReproducible
from dataflow.protocol.base import DataFlow, require_flow
from dataflow.protocol.digests import difference, digest
from dataflow.protocol.parameters import start_methods as known_start_methods
from dataflow.protocol.passes import known_length, walk, without_order
from dataflow.protocol.seeding import current_root, seed
from dataflow.protocol.state import Drops, state_of
from dataflow.runners.runners import MultiProcessRunnerZMQ, MultiThreadRunner
from dataflow.system.pickling import dumps, loads
from dataflow.transforms.resuming import ResumableData

__all__ = ["assert_same_data", "check_node"]

_END: Final = object()
_SEED: Final = 7
_NUM_PASSES: Final = 3


def assert_same_data(a: DataFlow, b: DataFlow, passes: int = 1, *, num: int | None = None) -> None:
    """Check that two flows yield the same datapoints, bit for bit, with the same types.

    Flows that draw random numbers need a seed: call `dataflow.seed` first.

    Args:
        a: A flow.
        b: The flow that is compared with it.
        passes: The number of passes to compare.
        num: The number of datapoints of each pass to compare; None for all.

    Raises:
        AssertionError: They differ; the message names the first datapoint that does, its component, and how.
        ValueError: A pass never ends, and `num` is not given.
        NotStorable: A datapoint holds a value that cannot be compared; the message names the component.
    """
    for ds in (a, b):
        require_flow(ds, "assert_same_data")
        if ds._df_endless and num is None:
            raise ValueError(f"a pass of {type(ds).__name__} never ends: say how many datapoints to compare, as num=")
    for p in range(passes):
        _assert_same(DataFlow.__iter__(a), DataFlow.__iter__(b), p, num)


def _assert_same(ones: Iterator[Any], others: Iterator[Any], p: int, num: int | None) -> None:
    k = 0
    while num is None or k < num:
        one, other = next(ones, _END), next(others, _END)
        if one is _END or other is _END:
            if one is not other:
                which = ("first", "second") if one is _END else ("second", "first")
                raise AssertionError(f"pass {p} of the {which[0]} flow has {k} datapoints, and of the {which[1]} more")
            return
        if (found := difference(one, other)) is not None:
            raise AssertionError(f"datapoint {k} of pass {p} differs: {found}")
        del one, other  # a reference would keep them in memory during the next step
        k += 1


def check_node(
    make: Callable[[], DataFlow],
    *,
    continues: bool | None = None,
    picklable: bool = True,
    start_methods: Iterable[str] | None = None,
    num: int = 100,
) -> None:
    """Check what every node promises, for a flow with the node on top.

    - *passes*: a flow can be iterated again and again, and a pass has as many datapoints as its length says;
    - *datapoints stay*: none changes after it was yielded, in later passes either;
    - *fresh instances are equal*: with the same seed, another instance yields the same passes;
    - *reset*: `reset_state` may be called at any time, and changes nothing;
    - *passes are independent*: a pass is the same if the one before was left early, or closed;
    - *two loops at once* get a pass each, or the earlier one raises `NotReentrant`;
    - *copies*: a deep copy, and a pickle as a runner makes it, are new flows that yield the same;
    - *index access*: `df[k]` yields what a loop does, in any order;
    - *closing*: live loops raise `DataFlowTerminated`, and a new one works;
    - *resuming*: `ResumableData` continues at any datapoint;
    - *workers*: the flow yields the same in a thread, and in a process, under each start method.

    The last two are left out where the order of the datapoints is not defined, as in a default runner of several
    workers.

    Args:
        make: Makes a new flow at each call. It need not be seeded. Short passes of some ten datapoints are enough.
        continues: Whether a pass goes on where the last one stopped, so that passes need not be independent; None asks
            the nodes, which know it of those of dataflow.
        picklable: Whether the flow can be sent to another process.
        start_methods: The start methods of processes to try; None for all of this system. None of them, ``[]``, saves
            some seconds.
        num: The number of datapoints of a pass that are looked at.

    Raises:
        AssertionError: A promise is broken; the message names it.
    """
    check = _Check(make, continues, num)
    with _seeded():
        check.run("passes", check.iterates_again_and_again)
        check.run("datapoints stay", check.datapoints_stay)
        check.run("fresh instances are equal", check.fresh_instances_are_equal)
        check.run("reset", check.is_reset_at_any_time)
        if not check.continues:
            check.run("passes are independent", check.passes_are_independent)
        check.run("two loops at once", check.two_loops_at_once)
        check.run("copies", partial(check.copies_are_new, picklable))
        check.run("index access", check.indexes_give_the_same)
        check.run("closing", check.closing_ends_loops)
        if not check.has_order:  # so that nothing else is promised, and ResumableData and strict runners refuse it
            return
        check.run("resuming", check.resumes_anywhere)
        if check.is_outermost:
            return
        check.run("workers", check.is_the_same_in_a_thread)
        if picklable:
            for method in known_start_methods() if start_methods is None else start_methods:
                check.run(f"workers, {method}", partial(check.is_the_same_in_processes, method))


@contextmanager
def _seeded() -> Iterator[None]:
    before = current_root()
    seed(_SEED)
    try:
        yield
    finally:
        seed(before)


def _has_dropped(df: DataFlow) -> bool:
    """Whether a map has dropped a datapoint, which keeps its position: then a length counts positions."""
    return any(state_of(node).part(Drops).has_dropped for node in walk(df, everywhere=True))


class _Check:
    """The checks of one node. Datapoints are compared by their digests, so that a change later is found."""

    def __init__(self, make: Callable[[], DataFlow], continues: bool | None, num: int) -> None:
        self._make_flow = make
        self._num = num
        df = self._make()
        self.is_outermost = df._df_counts_passes  # as ResumableData, which no runner may wrap
        self.has_order = without_order(df) is None
        knows = df._df_continuing() is not None or df._df_endless
        self.run("closing", df.close)
        self.continues = knows if continues is None else continues
        self._expected: list[list[bytes]] = []

    def run(self, clause: str, check: Callable[[], None]) -> None:
        """Run a check; whatever it raises becomes an `AssertionError` that names the clause."""
        try:
            check()
        except AssertionError as error:
            raise AssertionError(f"{clause}: {error}") from error.__cause__
        except Exception as error:
            raise AssertionError(f"{clause}: {type(error).__name__}: {error}") from error

    def _make(self) -> DataFlow:
        return require_flow(self._make_flow(), "check_node: make()")

    def _pass(self, df: DataFlow) -> list[bytes]:
        return [digest(dp) for dp in islice(DataFlow.__iter__(df), self._num)]

    def _require(self, found: Sequence[bytes], p: int, when: str, begin: int = 0) -> None:
        """Check that these are the datapoints of pass `p`, from number `begin` on."""
        wanted = self._expected[p][begin:]
        if list(found) == wanted:
            return
        k = next((k for k, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), None)
        if k is None:
            raise AssertionError(
                f"pass {p} has {begin + len(found)} datapoints {when}, and {len(self._expected[p])} before"
            )
        where = next((j for j, one in enumerate(wanted) if one == found[k]), None)
        moved = "" if where is None else f": it is number {begin + where} there"
        raise AssertionError(f"datapoint {begin + k} of pass {p} is another one {when}{moved}")

    def iterates_again_and_again(self) -> None:
        with self._make() as df:
            for p in range(_NUM_PASSES):
                found = self._pass(df)
                self._expected.append(found)
                assert found, f"pass {p} is empty"
                length = None if df._df_endless or _has_dropped(df) else known_length(df)
                if length is not None:
                    wanted = min(length, self._num)
                    assert len(found) == wanted, f"len() is {length}, and pass {p} has {len(found)} datapoints"
            if length == self._num:  # a pass may have more
                num = sum(1 for _ in islice(DataFlow.__iter__(df), length + 1))
                assert num == length, f"len() is {length}, and pass {_NUM_PASSES} has more datapoints"
            assert bool(df) is True, "bool() of a flow is True"

    def datapoints_stay(self) -> None:
        with self._make() as df:
            kept = [list(islice(DataFlow.__iter__(df), self._num)) for _ in range(_NUM_PASSES)]
            for p, dps in enumerate(kept):
                when = "once that pass and others are over: datapoints share memory that is reused"
                self._require([*map(digest, dps)], p, when)

    def fresh_instances_are_equal(self) -> None:
        with self._make() as df:
            for p in range(_NUM_PASSES):
                self._require(self._pass(df), p, "in another instance with the same seed")

    def is_reset_at_any_time(self) -> None:
        with self._make() as df:
            df.reset_state()
            df.reset_state()
            self._require(self._pass(df), 0, "after reset_state()")
            if not self.continues:
                df.reset_state()
                self._require(self._pass(df), 1, "after reset_state() between passes")

    def passes_are_independent(self) -> None:
        half = len(self._expected[1]) // 2
        with self._make() as df:
            for _ in islice(DataFlow.__iter__(df), 1):
                pass
            for _ in islice(DataFlow.__iter__(df), half):
                pass
            self._require(
                self._pass(df), 2, "if the passes before were left early. If it goes on there, continues=True"
            )
        with self._make() as df:
            next(DataFlow.__iter__(df))
            df.close()
            self._require(self._pass(df), 1, "if the pass before was closed")

    def two_loops_at_once(self) -> None:
        with self._make() as df:
            first = DataFlow.__iter__(df)
            found: list[list[bytes]] = [[digest(next(first))], []]
            second = DataFlow.__iter__(df)
            found[1].append(digest(next(second)))
            try:
                for _ in range(max(map(len, self._expected[:2]))):
                    for k, iterator in enumerate((first, second)):
                        if len(found[k]) < self._num and (dp := next(iterator, _END)) is not _END:
                            found[k].append(digest(dp))
            except NotReentrant:
                return
            if not self.continues:
                self._require(found[0], 0, "while another loop runs")
                self._require(found[1], 1, "while another loop runs")

    def copies_are_new(self, picklable: bool) -> None:
        with self._make() as df:
            self._pass(df)
            copies: dict[str, DataFlow] = {}
            if picklable:
                copies = {"a deep copy": copy.deepcopy(df), "a pickle": loads(dumps(df))}
            for name, clone in copies.items():
                with clone:
                    for p in range(2):
                        self._require(self._pass(clone), p, f"in {name} of a flow that was iterated")

    def indexes_give_the_same(self) -> None:
        with self._make() as df:
            if not df.addressable:
                if type(df).__getitem__ is not DataFlow.__getitem__:  # of the user
                    self._require([digest(df[k]) for k in range(len(self._expected[0]))], 0, "by index")
                return
            n = self._num if df._df_endless else len(df)
            for p in range(1 if df._df_endless else 2):
                wanted = range(p * n, p * n + min(n, self._num))
                found = [dp for k in reversed(wanted) for dp in self._picked(df, k)]
                num = len(self._expected[p]) if n <= self._num else len(found)
                self._require([*found[::-1], *self._expected[p][num:]], p, "by index")
                self._require([*map(digest, df[wanted.start : wanted.stop]), *self._expected[p][num:]], p, "by a slice")
            try:
                df[-1]
            except IndexError:
                return
            raise AssertionError("df[-1] raises no IndexError, though the sequence of passes is endless")

    def _picked(self, df: DataFlow, index: int) -> list[bytes]:
        try:
            return [digest(df[index])]
        except Dropped:
            return []

    def closing_ends_loops(self) -> None:
        with self._make() as df:
            live = DataFlow.__iter__(df)
            next(live)
            df.close()
            df.close()
            try:
                next(live)
            except DataFlowTerminated:
                pass
            else:
                raise AssertionError("a live loop goes on after close(); it raises DataFlowTerminated")
            assert self._pass(df), "a flow that was closed can be iterated again"

    def resumes_anywhere(self) -> None:
        for k in {1, len(self._expected[0]) // 2, len(self._expected[0]) - 1} - {0}:
            try:
                df = self._resumable()
            except NotReproducible:
                assert self.continues, "ResumableData refuses the flow"
                return
            with df:
                for _ in islice(DataFlow.__iter__(df), k):
                    pass
                state = df.state_dict()
            with self._resumable() as resumed:
                resumed.load_state_dict(state)
                found = [digest(dp) for dp in islice(DataFlow.__iter__(resumed), len(self._expected[0]) - k)]
                self._require(found, 0, f"if it resumes after {k} datapoints", k)

    def _resumable(self) -> ResumableData:
        df = self._make()
        return df if isinstance(df, ResumableData) else ResumableData(df)

    def is_the_same_in_a_thread(self) -> None:
        self._require_of_runner(MultiThreadRunner(self._make, 4, 1, strict=True), "in a worker thread")

    def is_the_same_in_processes(self, method: str) -> None:
        with self._make() as df:
            numbers = (1, 2) if df.addressable else (1,)
        for num in numbers:
            context = multiprocessing.get_context(method)
            runner = MultiProcessRunnerZMQ(self._make(), num, strict=True, context=context)
            self._require_of_runner(runner, f"in {num} worker process{'es' if num > 1 else ''} ({method})")

    def _require_of_runner(self, runner: DataFlow, where: str) -> None:
        with runner:
            for p in range(1 if self.continues else 2):
                self._require(self._pass(runner), p, where)
