"""Start, reset, failure and close of a flow are one step each, whichever threads call them."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from dataflow import (
    BatchData,
    DataFlow,
    DataFlowTerminated,
    DataFromList,
    MapData,
    MultiThreadMapData,
    MultiThreadRunner,
    NotReentrant,
    TooManyFailures,
)
from dataflow.protocol.state import state_of
from dataflow.runners.worker_node import WorkerNode
from dataflow.system.session import Session
from tests.support.faults import deadline
from tests.support.forks import exit_code_of_fork, in_child
from tests.support.threads import loop_ended_by_close
from tests.support.waits import LIMIT, wait_until

SIZE = 6
ENDS = (DataFlowTerminated, NotReentrant)


class Broken(Exception):
    """What the function raises."""


class Function:
    """The function of a map, which may be told to fail."""

    fails = False

    def __call__(self, dp: Any) -> Any:
        if self.fails:
            raise Broken
        return dp


def listed() -> DataFromList:
    return DataFromList([[k] for k in range(SIZE)], shuffle=False)


MAKES = {
    "a strict map": lambda f: MultiThreadMapData(listed(), 2, f, strict=True),
    "a default map": lambda f: MultiThreadMapData(listed(), 2, f),
    "a strict runner": lambda f: MultiThreadRunner(lambda: MapData(listed(), f), 4, 2, strict=True),
    "a runner": lambda f: MultiThreadRunner(lambda: MapData(listed(), f), 4, 1),
    "batches of a map": lambda f: BatchData(MultiThreadMapData(listed(), 1, f, strict=True), 2),
    "no workers": lambda f: MultiThreadMapData(listed(), 0, f, strict=True, max_failures=3),
}


class Transitions(RuleBasedStateMachine):
    """Two threads iterate one flow, and others do what they like with it: nothing but the errors that say so."""

    def __init__(self) -> None:
        super().__init__()
        self.function = Function()
        self.threads = [ThreadPoolExecutor(1) for _ in range(2)]
        self.steps: list[Iterator[Any]] = [iter(()), iter(())]
        self.df: DataFlow | None = None

    def teardown(self) -> None:
        if self.df is not None:
            self.df.close()
        for thread in self.threads:
            thread.shutdown()

    def in_thread(self, k: int, func: Any) -> Any:
        return self.threads[k].submit(func).result(LIMIT)

    def flow(self, name: str) -> DataFlow:
        if self.df is None:
            self.df = MAKES[name](self.function)
        return self.df

    @rule(k=st.integers(0, 1), name=st.sampled_from(sorted(MAKES)))
    def begin(self, k: int, name: str) -> None:
        df = self.flow(name)
        with contextlib.suppress(*ENDS):
            self.steps[k] = self.in_thread(k, lambda: iter(df))

    @rule(k=st.integers(0, 1), num=st.integers(1, 4))
    def step(self, k: int, num: int) -> None:
        for _ in range(num):
            try:
                self.in_thread(k, lambda: next(self.steps[k], None))
            except (*ENDS, Broken, TooManyFailures):
                return

    @rule(k=st.integers(0, 1))
    def reset(self, k: int) -> None:
        if self.df is not None:
            self.in_thread(k, self.df.reset_state)

    @rule(k=st.integers(0, 1))
    def close(self, k: int) -> None:
        if self.df is not None:
            self.in_thread(k, self.df.close)

    @rule(fails=st.booleans())
    def fail(self, fails: bool) -> None:
        self.function.fails = fails

    @rule()
    def look(self) -> None:
        if self.df is not None:
            self.df.statistics()

    @rule()
    def restart(self) -> None:
        """After a reset, whatever came before, a pass is complete."""
        if self.df is not None:
            self.function.fails = False
            self.df.reset_state()
            assert next(iter(self.df))

    @rule()
    def fork(self) -> None:
        """A forked child steps what the threads have begun, and then has a flow of its own."""
        if self.df is not None:
            assert in_child(self.in_fork) == "returned 1"

    def in_fork(self) -> int:
        assert self.df is not None
        signal.alarm(int(LIMIT))  # a child that hangs ends
        for steps in self.steps:
            with contextlib.suppress(*ENDS, Broken, TooManyFailures):
                next(steps, None)
        self.function.fails = False
        self.df.reset_state()
        found = len(list(islice(self.df, 1)))
        self.df.close()
        return found


@pytest.mark.filterwarnings("ignore")
def test_threads_that_take_a_few_turns():
    run_state_machine_as_test(
        Transitions,
        settings=settings(max_examples=15, stateful_step_count=20, deadline=None, database=None, derandomize=True),
    )


@pytest.mark.filterwarnings("ignore")
def test_threads_that_take_turns_get_datapoints_or_an_error_that_says_why():
    run_state_machine_as_test(
        Transitions, settings=settings(max_examples=20, stateful_step_count=20, deadline=None, database=None)
    )


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_threads_that_take_turns_for_long():
    run_state_machine_as_test(
        Transitions, settings=settings(max_examples=200, stateful_step_count=40, deadline=None, database=None)
    )


@pytest.mark.parametrize("name", ["a strict map", "a strict runner", "batches of a map", "no workers"])
def test_a_reset_while_others_begin_loops(name):
    df, errors, num_resets, over = MAKES[name](Function()), [], 0, threading.Event()

    def loop() -> None:
        while not over.is_set():
            try:
                for _ in df:
                    pass
            except ENDS:
                pass
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=loop) for _ in range(2)]
    with deadline(60):
        for thread in threads:
            thread.start()
        while num_resets < 25 and not errors:
            df.reset_state()
            num_resets += 1
        over.set()
        for thread in threads:
            thread.join()
        df.close()
    assert errors == [] and num_resets


def test_a_pass_that_meets_a_reset_has_the_failure_budget_of_its_own_workers():
    df = MultiThreadMapData(listed(), 1, Function(), strict=True)
    assert isinstance(df, WorkerNode)
    inside, go_on = threading.Event(), threading.Event()
    start = type(df)._df_start

    def slow_start(self: Any, stream: Any) -> Any:
        inside.set()
        assert go_on.wait(LIMIT)
        return start(self, stream)

    assert len(list(df)) == SIZE
    vars(df)["_df_start"] = slow_start.__get__(df)
    resetting = threading.Thread(target=df.reset_state)
    resetting.start()
    assert inside.wait(LIMIT)  # the old workers are not closed yet
    found: list[Any] = []
    iterating = threading.Thread(target=lambda: found.append(len(list(df))))
    iterating.start()
    go_on.set()
    resetting.join(LIMIT)
    iterating.join(LIMIT)
    assert found == [SIZE]
    df.close()


def test_a_child_that_is_forked_during_a_reset_can_use_the_flow():
    inside, go_on = threading.Event(), threading.Event()

    class Slow(DataFlow):
        blocks = True

        def reset_state(self):
            if self.blocks:
                inside.set()
                assert go_on.wait(LIMIT)

        def __iter__(self):
            yield [1]

    df = Slow()
    resetting = threading.Thread(target=df.reset_state)
    resetting.start()
    assert inside.wait(LIMIT)

    def use() -> bool:
        df.blocks = False
        return list(df) == [[1]]

    try:
        assert exit_code_of_fork(use) == 0
    finally:
        go_on.set()
        resetting.join(LIMIT)


def test_an_interrupt_as_a_flow_is_closed_leaves_it_usable():
    class Interrupting(Session):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "closed" and value:
                signal.raise_signal(signal.SIGINT)

    df = MultiThreadMapData(listed(), 1, Function(), strict=True)
    assert len(list(df)) == SIZE
    state_of(df).session = Interrupting()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            df.close()
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(list(df)) == SIZE
    df.close()


def test_close_reaches_a_loop_that_waits():
    gate = threading.Event()
    df = MultiThreadMapData(listed(), 1, lambda dp: gate.wait(LIMIT) and dp, strict=True)
    with loop_ended_by_close(df):
        wait_until(lambda: df.statistics().runners and df.statistics().runners[0].workers, LIMIT, "no workers")
        closing = threading.Thread(target=df.close)
        closing.start()
    gate.set()
    closing.join(LIMIT)
