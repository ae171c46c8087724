"""AsyncMapData: exact passes of coroutines, the event loop and its setup, and how calls end."""

import asyncio
import contextlib
import contextvars
import gc
import os
import random
import re
import subprocess
import sys
import textwrap
import threading
import weakref
from typing import ClassVar

import numpy as np
import pytest

import dataflow
from dataflow import (
    AsyncMapData,
    BatchData,
    DataFromGenerator,
    DataFromList,
    DataFromQueue,
    FixedSizeData,
    MapData,
    NotReproducible,
    ParallelData,
    RandomMapData,
    RepeatedData,
    ResumableData,
    RNGDataFlow,
    ShardData,
    ShuffleData,
    TooManyFailures,
)
from dataflow.errors import TimeoutError
from dataflow.protocol import event_loop
from dataflow.transforms import awaiting
from tests.support.contract import check_node
from tests.support.forks import in_child
from tests.support.products import covering
from tests.support.threads import loop_ended_by_close
from tests.support.waits import LIMIT, wait_until

SIZE = 30


def numbers(n=SIZE):
    return DataFromList([[k] for k in range(n)], shuffle=False)


async def same(dp):
    await asyncio.sleep(0)
    return dp


async def mixed(dp):
    """Later datapoints are done earlier; every fifth is dropped."""
    for _ in range(7 - dp[0] % 7):
        await asyncio.sleep(0)
    return None if dp[0] % 5 == 2 else [dp[0] * 10]


EXPECTED = [[k * 10] for k in range(SIZE) if k % 5 != 2]


def mixed_now(dp):
    return None if dp[0] % 5 == 2 else [dp[0] * 10]


@pytest.fixture
def mapped():
    """Makes nodes, which are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(AsyncMapData(*args, **kwargs))


class Gate:
    """Holds calls back, and counts those that run, are cancelled, or are done."""

    def __init__(self, opened=False):
        self.is_open = opened
        self.running = self.most = self.begun = self.cancelled = self.done = 0

    async def __call__(self, dp):
        self.begun += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            while not self.is_open:
                await asyncio.sleep(0.001)
            self.done += 1
            return dp
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


def loop_threads():
    return [thread for thread in threading.enumerate() if thread.name == "dataflow-event-loop"]


# -- Passes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("has_setup", "num"), covering([False, True], [1, 3, 64]))
def test_it_is_a_node(has_setup, num):
    made = []

    def make(ds):
        made.append(AsyncMapData(ds, with_value if has_setup else same, num, setup=constant if has_setup else None))
        return made[-1]

    check_node(make)
    for df in made:
        df.close()


@contextlib.asynccontextmanager
async def constant():
    yield 1


async def with_value(dp, value):
    assert value == 1
    return await same(dp)


@pytest.mark.parametrize("num", [1, 2, 7, 64])
def test_passes_are_those_of_a_map_in_order(mapped, num):
    df = mapped(numbers(), mixed, num)
    assert list(df) == list(df) == EXPECTED
    assert df[: 2 * SIZE] == 2 * EXPECTED
    with pytest.raises(dataflow.Dropped):
        df[2]
    assert len(df) == SIZE


def test_without_order_all_come(mapped):
    later = asyncio.Event()

    async def first_after_sixth(dp):
        if dp[0] == 5:
            later.set()
        elif dp[0] == 0:
            await later.wait()
        return dp

    df = mapped(numbers(), first_after_sixth, 10, ordered=False)
    found = list(df)
    assert found != sorted(found) == [[k] for k in range(SIZE)]
    assert df[3:6] == [[3], [4], [5]]  # by index, there is an order
    assert sorted(mapped(DataFromGenerator(lambda: iter([[1], [2]])), same, ordered=False)) == [[1], [2]]


@pytest.mark.parametrize("n", [0, 1, 5])
def test_short_passes_and_those_without_a_length_end(mapped, n):
    assert list(mapped(DataFromGenerator(lambda: ([k] for k in range(n))), same)) == [[k] for k in range(n)]
    if n:
        assert list(mapped(numbers(n), same)) == [[k] for k in range(n)]


def test_endless_inputs_continue(mapped):
    df = mapped(RepeatedData(numbers(4), -1), same, 2)
    cut = FixedSizeData(df, 3)
    assert [list(cut), list(cut)] == [[[0], [1], [2]], [[3], [0], [1]]]


def test_an_endless_input_without_a_map_continues_by_index():
    df = AsyncMapData(RepeatedData(numbers(3), -1), same, 2)
    with df:
        steps = iter(df)
        assert [next(steps)[0] for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("ordered", [False, True])
def test_what_was_dropped_below_and_in_the_function_is_left_out(ordered):
    def keeps_even(dp):
        return dp if dp[0] % 2 == 0 else None

    for source in (MapData(numbers(12), keeps_even), DataFromGenerator(lambda: ([k] for k in range(0, 12, 2)))):
        with AsyncMapData(source, mixed, 3, ordered=ordered) as df:
            assert sorted(df) == [[0], [40], [60], [80], [100]]
    with AsyncMapData(MapData(numbers(12), keeps_even), same, 3, ordered=ordered) as df:
        assert df[:6] == [[0], [2], [4]]


def test_a_fraction_of_failures_is_judged_during_the_pass():
    num_called = []

    async def fails_at_first(dp):
        num_called.append(1)
        if dp[0] < 50:
            raise ValueError("no")
        return dp

    with AsyncMapData(numbers(1000), fails_at_first, 4, max_failures=0.1) as df, pytest.raises(TooManyFailures):
        list(df)
    assert len(num_called) < 300


def test_a_loop_that_something_else_blocks_is_named(mapped):
    is_blocked, release = threading.Event(), threading.Event()

    async def block():
        is_blocked.set()
        release.wait(LIMIT)

    user = event_loop.LoopUser("Another")
    df = mapped(numbers(), same, timeout=0.05)
    next(iter(df))  # from here on it uses the loop
    user.spawn(block(), contextvars.copy_context())
    assert is_blocked.wait(LIMIT)
    steps = iter(df)
    with pytest.raises(TimeoutError, match="a call blocks the event loop"):
        next(steps)
    release.set()
    assert list(after_pauses(steps)) == list(numbers())
    user.close()


def test_the_function_gets_a_copy(mapped):
    async def change(dp):
        dp[0] += 1
        return dp

    ds = DataFromList([[k] for k in range(5)], shuffle=False)
    assert list(mapped(ds, change)) == [[k + 1] for k in range(5)]
    assert list(ds) == [[k] for k in range(5)]


def test_as_many_calls_run_as_are_allowed_and_no_more_is_read(mapped):
    gate, read = Gate(), []

    def source():
        for k in range(100):
            read.append(k)
            yield [k]

    df = mapped(DataFromGenerator(source), gate, 4)
    found = []
    thread = threading.Thread(target=lambda: found.extend(df))
    thread.start()
    wait_until(lambda: len(read) == 16 and gate.running == 4, LIMIT, "not as many as are allowed")
    gate.is_open = True
    thread.join(LIMIT)
    assert found == [[k] for k in range(100)]
    assert gate.most == 4


# -- Other nodes -------------------------------------------------------------------------------------------------------


def is_plain(make, *, drops=True):
    """Whether a chain over the node yields what it yields over `MapData`."""
    dataflow.seed(11)
    try:
        df = make(AsyncMapData(numbers(), mixed if drops else same, 5))
        try:
            found = [[str(dp) for dp in df] for _ in range(2)]
        finally:
            df.close()
        expected = two_passes(make(MapData(numbers(), mixed_now if drops else plain)))
        return found == [[str(dp) for dp in one] for one in expected]
    finally:
        dataflow.seed(None)


def two_passes(df):
    with df:
        return [list(df), list(df)]


CHAINS = {
    "batches": lambda ds: BatchData(ds, 4),
    "shuffled": ShuffleData,
    "a shard": lambda ds: ShardData(ds, 1, 3, tail="keep"),
    "random numbers above": lambda ds: RandomMapData(ds, lambda dp, rng: [*dp, rng.integers(1000)]),
    "resuming": ResumableData,
    "repeated": lambda ds: RepeatedData(ds, 2),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_below_other_nodes_it_is_a_map(chain):
    assert is_plain(CHAINS[chain], drops=chain != "a shard")


@pytest.mark.parametrize("strict", [True, False])
def test_below_process_runners_it_is_a_map(strict):
    options = {"num_workers": 2 if strict else 1, "strict": strict, "context": "fork"}
    assert is_plain(lambda ds: ParallelData(ds, **options))
    assert is_plain(lambda ds: BatchData(ParallelData(ds, **options), 4))
    assert is_plain(lambda ds: ParallelData(BatchData(ds, 4), **options), drops=False)


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.full)])
def test_below_a_runner_whose_processes_are_not_forked_it_is_a_map(method):
    assert is_plain(lambda ds: ParallelData(ds, 1, context=method))


def test_below_thread_runners_it_is_a_map():
    assert is_plain(lambda ds: ParallelData(ds, 3, backend="thread"))
    assert not loop_threads()


def test_above_runners_it_is_a_map(mapped):
    assert list(mapped(ParallelData(numbers(), 2), mixed)) == EXPECTED
    df = mapped(ParallelData(BatchData(numbers(), 5), 2), same)
    assert np.concatenate([dp[0] for dp in df]).tolist() == list(range(SIZE))


def test_resuming_yields_the_rest(mapped):
    df = ResumableData(mapped(numbers(), mixed, 3))
    iterator = iter(df)
    begin = [next(iterator) for _ in range(7)]
    state = df.state_dict()
    again = ResumableData(mapped(numbers(), mixed, 8))
    again.load_state_dict(state)
    assert begin + list(again) == EXPECTED


def test_a_runner_gives_its_workers_tasks_that_keep_the_calls_running():
    df = AsyncMapData(numbers(1000), same, 64)
    assert df._df_least_task == 256
    assert BatchData(df, 100)._df_least_task == 3
    assert ShuffleData(BatchData(df, 32))._df_least_task == 8
    assert ParallelData(df, 2)._df_least_task == 512
    assert MapData(numbers(), mixed_now)._df_least_task == 1


def test_workers_keep_many_calls_running_across_tasks():
    shared = os.memfd_create("most")

    async def note(dp):
        running.add(dp[0])
        await asyncio.sleep(0.01)
        os.pwrite(shared, bytes([len(running)]), dp[0])
        running.discard(dp[0])
        return dp

    running = set()
    try:
        with ParallelData(AsyncMapData(numbers(400), note, 16), 2, context="fork") as df:
            assert list(df) == [[k] for k in range(400)]
        seen = os.pread(shared, 400, 0)
    finally:
        os.close(shared)
    assert max(seen) == 16


# -- Failures ----------------------------------------------------------------------------------------------------------


async def fails_at_7(dp):
    if dp[0] == 7:
        raise ValueError("seven")
    return dp


def test_an_exception_comes_in_its_place_with_its_position(mapped):
    df, found = mapped(numbers(), fails_at_7, 4), []
    with pytest.raises(ValueError, match="seven") as caught:
        found.extend(iter_into(df, found))
    assert found == [[k] for k in range(7)]
    assert caught.value.__notes__ == ["raised by the function of AsyncMapData: fails_at_7, for datapoint 7 of pass 0"]
    assert df[0:3] == [[0], [1], [2]]
    with pytest.raises(ValueError, match="seven") as caught:
        df[SIZE + 7]
    assert "for datapoint 7 of pass 1" in caught.value.__notes__[0]


def iter_into(df, found):
    for dp in df:
        found.append(dp)
    return []


def test_failures_are_tolerated_within_their_budget(mapped, caplog):
    df = mapped(numbers(), fails_at_7, 4, max_failures=1)
    assert list(df) == [[k] for k in range(SIZE) if k != 7]
    (failure,) = df.failures
    assert (failure.node, failure.position, failure.kind) == ("AsyncMapData(fails_at_7)", 7, "ValueError")
    assert "skipped AsyncMapData(fails_at_7): datapoint 7 of pass 0" in caplog.text

    async def always(dp):
        raise KeyError(dp[0])

    with pytest.raises(TooManyFailures, match="2 datapoints of one pass failed"):
        list(mapped(numbers(), always, 4, max_failures=1))


def test_a_runner_counts_the_failures_of_its_workers():
    with ParallelData(AsyncMapData(numbers(), fails_at_7, 4), 2, max_failures=1) as df:
        assert list(df) == [[k] for k in range(SIZE) if k != 7]
        assert [failure.position for failure in df.failures] == [7]


def test_failures_of_the_input_come_after_what_was_read_before(mapped):
    def source():
        yield [0]
        yield [1]
        raise OSError("gone")

    found = []
    with pytest.raises(OSError, match="gone"):
        iter_into(mapped(DataFromGenerator(source), same, 4), found)
    assert found == [[0], [1]]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_exceptions_of_every_kind_reach_the_consumer_and_the_loop_goes_on(mapped, error):
    async def raises(dp):
        raise error

    with pytest.raises(error) as caught:
        list(mapped(numbers(), raises, 3))
    if error is asyncio.CancelledError:
        assert "for datapoint 0 of pass 0" in caught.value.__notes__[0]
    assert list(mapped(numbers(), same)) == list(numbers())


def test_a_result_that_has_not_run_is_refused(mapped):
    async def forgotten(dp):
        made.append(same(dp))
        return made[0]

    made = []
    with pytest.raises(TypeError, match="has returned a coroutine, which has not run yet: await it"):
        list(mapped(numbers(1), forgotten))
    made[0].close()


class Noise(RNGDataFlow):
    def __iter__(self):
        yield [0]


def test_the_generator_of_a_node_cannot_be_read_in_the_function(mapped):
    noise = Noise()

    async def draws(dp):
        return [noise.rng.random()]

    with pytest.raises(NotReproducible, match=r"Noise\.rng was read in"):
        list(mapped(numbers(), draws, max_failures=SIZE))  # all of them would fail, and not for what they are


def test_a_flow_that_begins_in_the_function_has_the_place_of_the_datapoint(mapped):
    async def draws(dp):
        await asyncio.sleep(0)
        return [next(iter(ShuffleData(numbers(50))))[0]]

    dataflow.seed(3)
    try:
        first = list(mapped(numbers(), draws, 5))
        assert list(mapped(numbers(), draws, 2)) == first
        assert len({k for (k,) in first}) > 10
    finally:
        dataflow.seed(None)


# -- Durations ---------------------------------------------------------------------------------------------------------


async def hangs_at_3(dp):
    if dp[0] == 3:
        await asyncio.Event().wait()
    return dp


def test_a_call_that_takes_too_long_fails_alone(mapped):
    df = mapped(numbers(), hangs_at_3, 4, item_timeout=0.05, max_failures=1)
    assert list(df) == [[k] for k in range(SIZE) if k != 3]
    (failure,) = df.failures
    assert failure.kind == "TimeoutError"
    assert failure.text == "the call took longer than item_timeout=0.05 seconds"
    found = []
    with pytest.raises(TimeoutError.__mro__[3], match="item_timeout") as caught:
        iter_into(mapped(numbers(), hangs_at_3, 4, item_timeout=0.05), found)
    assert not isinstance(caught.value, TimeoutError)  # which would be a pause
    assert found == [[0], [1], [2]]


def test_a_call_that_ignores_its_cancellation_is_left_behind(mapped, caplog, monkeypatch):
    monkeypatch.setattr(awaiting, "_GRACE", 0.05)
    release = threading.Event()

    async def ignores(dp):
        while dp[0] == 3 and not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)
        return dp

    df = mapped(numbers(), ignores, 4, item_timeout=0.05, max_failures=1)
    assert list(df) == [[k] for k in range(SIZE) if k != 3]
    assert "did not end within 0.05 more, and is left behind" in caplog.text
    release.set()


def test_a_late_consumer_waits_again_with_the_same_iterator(mapped):
    gate = Gate()
    df = mapped(numbers(), gate, 4, timeout=0.05)
    iterator = iter(df)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"calls of .* in number, the first, for datapoint 0 of pass 0"):
            next(iterator)
    gate.is_open = True
    assert list(after_pauses(iterator)) == [[k] for k in range(SIZE)]


def after_pauses(iterator):
    while True:
        try:
            yield next(iterator)
        except TimeoutError:
            continue
        except StopIteration:
            return


def test_a_pause_of_the_input_is_one_of_the_node(mapped):
    import queue

    items = queue.Queue()
    df = mapped(DataFromQueue(items, timeout=0.05), same, 4)
    iterator = iter(df)
    items.put([1])
    assert next(after_pauses(iterator)) == [1]
    with pytest.raises(TimeoutError, match="DataFromQueue"):
        next(iterator)
    items.put([2])
    assert next(after_pauses(iterator)) == [2]


# -- Setup -------------------------------------------------------------------------------------------------------------


class Client:
    """An async context manager that notes what happens to it."""

    events: ClassVar = []

    async def __aenter__(self):
        self.events.append(("enter", os.getpid(), threading.current_thread().name))
        self.task = asyncio.current_task()
        return self

    async def __aexit__(self, *_):
        assert asyncio.current_task() is self.task
        self.events.append(("leave", os.getpid(), threading.current_thread().name))


@pytest.fixture
def events(monkeypatch):
    monkeypatch.setattr(Client, "events", [])
    return Client.events


async def asks(dp, client):
    assert isinstance(client, Client)
    return dp


def test_setup_is_entered_once_and_left_by_close(events):
    df = AsyncMapData(numbers(), asks, setup=Client)
    assert not events  # not before the first pass
    assert list(df) == list(df) == list(numbers())
    assert df[3] == [3]
    next(iter(df))
    assert [event[0] for event in events] == ["enter"]
    assert events[0][2] == "dataflow-event-loop"
    df.close()
    df.close()
    assert [event[0] for event in events] == ["enter", "leave"]
    assert not loop_threads()
    with df:
        assert list(df) == list(numbers())
    assert [event[0] for event in events] == ["enter", "leave"] * 2


def test_setup_is_left_when_the_flow_is_collected(events):
    df = AsyncMapData(numbers(), asks, setup=Client)
    next(iter(df))
    del df
    assert [event[0] for event in events] == ["enter", "leave"]


def test_what_setup_has_made_is_freed_with_the_closed_flow():
    made = []

    class Noted(Client):
        async def __aenter__(self):
            made.append(weakref.ref(self))
            return self

        async def __aexit__(self, *_):
            pass

    df = AsyncMapData(numbers(), asks, setup=Noted)
    gc.disable()
    try:
        assert list(df)
        df.close()
        assert [client() for client in made] == [None]
    finally:
        gc.enable()


def test_each_node_has_its_own_value_on_one_loop(events):
    with AsyncMapData(AsyncMapData(numbers(), asks, setup=Client), asks, setup=Client) as df:
        assert list(df) == list(numbers())
        assert len(loop_threads()) == 1
        assert [event[0] for event in events] == ["enter"] * 2
    assert [event[0] for event in events] == ["enter", "enter", "leave", "leave"]


def test_setup_is_entered_once_in_each_worker(tmp_path):
    read, write = os.pipe()

    @contextlib.asynccontextmanager
    async def noting():
        os.write(write, b"e")
        (tmp_path / str(os.getpid())).touch()
        yield
        os.write(write, b"l")

    async def ignores(dp, value):
        while len(os.listdir(tmp_path)) < 2:  # one worker could make all before the other has begun
            await asyncio.sleep(0.01)
        return dp

    try:
        with ParallelData(AsyncMapData(numbers(900), ignores, 4, setup=noting), 2, context="fork") as df:
            assert list(df) == list(df) == list(numbers(900))
        assert sorted(os.read(read, 10)) == sorted(b"elel")
    finally:
        os.close(read)
        os.close(write)


def test_a_setup_that_fails_is_tried_again_by_the_next_iteration():
    attempts = []

    @contextlib.asynccontextmanager
    async def setup():
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("no server")
        yield 1

    with AsyncMapData(numbers(), with_value, setup=setup) as df:
        with pytest.raises(OSError, match="no server") as caught:
            list(df)
        assert "raised by setup of AsyncMapData" in caught.value.__notes__[0]
        assert list(df) == list(numbers())


def test_what_is_no_context_manager_is_refused():
    with pytest.raises(
        TypeError, match=r"setup, .*lambda.*, has returned a int, and an async context manager is needed"
    ):
        list(AsyncMapData(numbers(), with_value, setup=lambda: 3))
    for setup in (3, same, constant.__wrapped__):
        with pytest.raises(TypeError, match="setup is a function that returns an async context manager"):
            AsyncMapData(numbers(), with_value, setup=setup)


def test_an_error_as_the_setup_is_left_is_logged(caplog):
    @contextlib.asynccontextmanager
    async def setup():
        yield 1
        raise OSError("left badly")

    with AsyncMapData(numbers(), with_value, setup=setup) as df:
        list(df)
    assert "the context manager of setup" in caplog.text
    assert "left badly" in caplog.text


def test_the_consumer_waits_for_setup_as_for_a_datapoint():
    release = threading.Event()

    @contextlib.asynccontextmanager
    async def setup():
        while not release.is_set():
            await asyncio.sleep(0.001)
        yield 1

    with AsyncMapData(numbers(), with_value, setup=setup, timeout=0.05) as df:
        iterator = iter(df)
        with pytest.raises(TimeoutError, match="its setup has not returned"):
            next(iterator)
        release.set()
        assert list(after_pauses(iterator)) == list(numbers())


# -- Ends --------------------------------------------------------------------------------------------------------------


class OneOfEight(Gate):
    """Lets the first datapoint pass only, once seven others run."""

    async def __call__(self, dp):
        while dp[0] == 0 and self.running < 7 and not self.is_open:
            await asyncio.sleep(0.001)
        return dp if dp[0] == 0 else await super().__call__(dp)


def test_a_loop_that_is_left_cancels_what_runs(mapped):
    gate = OneOfEight()
    df = mapped(numbers(), gate, 8)
    for _ in df:
        assert gate.running >= 7
        break
    assert gate.running == 0
    assert gate.cancelled == gate.begun >= 7
    gate.is_open = True
    assert list(df) == list(numbers())


def test_close_ends_a_step_that_waits_in_another_thread():
    gate = Gate()
    with loop_ended_by_close(df := AsyncMapData(numbers(), gate, 8)) as errors:
        wait_until(lambda: gate.running == 8, LIMIT, "the calls do not run")
        df.close()
    assert "was closed while it was being iterated" in str(errors[0])
    assert gate.running == 0
    assert not loop_threads()


def test_calls_that_do_not_end_are_named_and_left_behind(caplog, monkeypatch):
    monkeypatch.setattr(event_loop, "_GRACE", 0.05)
    monkeypatch.setattr(event_loop, "SLICE", 0.05)
    release = threading.Event()

    async def blocks(dp):
        release.wait(LIMIT)
        return dp

    try:
        with AsyncMapData(numbers(), blocks, 2, timeout=0.05) as df, pytest.raises(TimeoutError, match="running calls"):
            list(df)
    finally:
        release.set()
    assert "calls of test_calls_that_do_not_end" in caplog.text
    assert "the thread is left behind" in caplog.text
    wait_until(lambda: not loop_threads(), LIMIT, "the loop goes on")


def test_a_pass_left_early_over_an_input_that_continues_is_refused(mapped):
    df = mapped(DataFromGenerator(iter([[k] for k in range(100)])), same, 2)
    next(iter(df))
    with pytest.raises(NotReproducible, match="AsyncMapData had read ahead"):
        list(df)


def test_ctrl_c_leaves_nothing():
    program = """
        import asyncio, os, signal, threading
        from dataflow import AsyncMapData, DataFromList

        async def hang(dp):
            if dp[0] == 20:
                os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0 if dp[0] < 10 else 1000)
            return dp

        df, found = AsyncMapData(DataFromList([[k] for k in range(100)], shuffle=False), hang, 32), []
        try:
            for dp in df:
                found.append(dp)
        except KeyboardInterrupt:
            print("interrupted", len(found) <= 10)
        df.close()
        print(threading.active_count(), [*df[3:5]])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout.splitlines() == ["interrupted True", "1 [[3], [4]]"], done.stderr
    assert not done.stderr


def test_the_interpreter_exits_with_calls_running():
    program = """
        import asyncio, contextlib
        from dataflow import AsyncMapData, DataFromList

        @contextlib.asynccontextmanager
        async def setup():
            yield 1
            print("left", flush=True)

        async def hang(dp, value):
            await asyncio.sleep(0 if dp[0] < 1 else 1000)
            return dp

        df = AsyncMapData(DataFromList([[k] for k in range(100)], shuffle=False), hang, 32, setup=setup)
        iterator = iter(df)
        print(next(iterator))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout.splitlines() == ["[0]", "left"]
    assert not done.stderr


# -- Processes, threads and other loops --------------------------------------------------------------------------------


def test_a_forked_child_has_a_loop_of_its_own(mapped):
    before = len(epolls())  # those of libraries, which a child inherits
    df = mapped(numbers(), mixed, 4)
    live = iter(df)
    next(live)
    assert len(epolls()) > before
    assert in_child(lambda: next(live)).startswith("DataFlowTerminated: this iteration of AsyncMapData belongs to")
    assert in_child(lambda: list(df) == EXPECTED) == "returned True"
    assert in_child(lambda: len(epolls())) == f"returned {before}"
    assert [*live] == EXPECTED[1:]


def epolls():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "eventpoll" in os.readlink(f"/proc/self/fd/{fd}"):
                found.append(fd)
    return found


def test_it_works_within_a_running_loop(mapped):
    async def cell():
        df = mapped(numbers(), mixed, 4)
        return list(df)

    assert asyncio.run(cell()) == EXPECTED


def test_its_own_loop_cannot_wait_for_itself(mapped):
    inner = mapped(numbers(), same)
    list(inner)

    async def nested(dp):
        return next(iter(inner))

    async def in_a_thread(dp):
        return [*dp, *await asyncio.to_thread(lambda: inner[1])]

    with pytest.raises(RuntimeError, match=r"would wait for itself\. Iterate it in a function .* asyncio\.to_thread"):
        list(mapped(numbers(), nested))
    assert list(mapped(numbers(2), in_a_thread)) == [[0, 1], [1, 1]]


def test_calls_see_the_context_of_the_consumer(mapped):
    from contextvars import ContextVar

    variable = ContextVar("variable", default=0)

    async def reads(dp):
        before = variable.get()
        variable.set(dp[0])  # for this call only
        await asyncio.sleep(0)
        return [before]

    variable.set(5)
    assert list(mapped(numbers(), reads)) == [[5]] * SIZE


def test_the_thread_ends_with_its_last_user():
    first, second = AsyncMapData(numbers(), same), AsyncMapData(numbers(), same)
    list(first), list(second)
    (thread,) = loop_threads()
    first.close()
    assert loop_threads() == [thread]
    second.close()
    assert not loop_threads()


def test_a_callback_that_raises_does_not_end_the_loop(mapped, caplog):
    async def schedules(dp):
        asyncio.get_running_loop().call_soon(sys.exit)
        await asyncio.sleep(0.001)
        return dp

    assert list(mapped(numbers(3), schedules)) == list(numbers(3))
    assert "the loop continues" in caplog.text


# -- Arguments ---------------------------------------------------------------------------------------------------------


async def stream(dp):
    yield dp


def plain(dp):
    return dp


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (plain, r"func, plain, is no coroutine function \(async def\). Use MapData .* MultiThreadMapData"),
        (lambda dp: same(dp), "is no coroutine function"),  # noqa: PLW0108
        (stream, "func, stream, is an async generator function: return a value"),
        (3, r"expects a coroutine function \(async def\) as func, got int"),
    ],
)
def test_other_functions_are_refused(func, message):
    with pytest.raises(TypeError, match=message):
        AsyncMapData(numbers(), func)


def test_partials_and_callable_objects_are_coroutine_functions(mapped):
    import functools

    async def add(number, dp):
        return [dp[0] + number]

    assert list(mapped(numbers(2), functools.partial(add, 5))) == [[5], [6]]
    assert list(mapped(numbers(2), Gate(opened=True))) == [[0], [1]]


@pytest.mark.parametrize(
    ("parameters", "kind"),
    [
        ({"num_concurrent": 0}, ValueError),
        ({"ordered": "yes"}, TypeError),
        ({"item_timeout": 0}, ValueError),
        ({"timeout": "1"}, TypeError),
        ({"max_failures": -1}, ValueError),
    ],
)
def test_arguments_are_checked(parameters, kind):
    with pytest.raises(kind, match=next(iter(parameters))):
        AsyncMapData(numbers(), same, **parameters)


def drawing_from_a_held_generator():
    generator = np.random.default_rng(3)

    async def draw(dp):
        await asyncio.sleep(0)
        return [*dp, int(generator.integers(1000))]

    return draw


def counting():
    num = 0

    async def count(dp):
        nonlocal num
        num += 1
        return [*dp, num]

    return count


async def drawing(dp):
    return [*dp, random.random()]


@pytest.mark.parametrize("runner", [lambda df: df, lambda df: ParallelData(df, 1)])
def test_a_function_that_draws_from_a_generator_that_it_holds_is_refused_in_every_loop(runner):
    with ResumableData(runner(AsyncMapData(numbers(), drawing_from_a_held_generator()))) as df:
        for _ in range(2):
            with pytest.raises(NotReproducible, match=r"generator that it holds \(generator\).*RandomMapData below it"):
                list(df)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (counting, "of AsyncMapData, changes num in func in each call"),
        (lambda: drawing, "global generator of random.*RandomMapData below it"),
    ],
)
def test_a_function_that_counts_or_draws_from_a_global_generator_is_logged_once(make, text, caplog):
    with AsyncMapData(numbers(), make()) as df:
        list(df)
    assert not caplog.records  # nobody has promised anything
    with ResumableData(AsyncMapData(numbers(), make())) as df:
        assert len(list(df)) == len(list(df)) == SIZE
    (record,) = caplog.records
    assert re.search(text, record.getMessage())


def test_a_semaphore_and_a_generator_of_the_call_are_no_reason_to_warn(caplog):
    semaphore = asyncio.Semaphore(2)

    async def work(dp):
        async with semaphore:
            await asyncio.sleep(0)
            return [*dp, random.Random(dp[0]).random()]

    with ResumableData(AsyncMapData(numbers(), work)) as df:
        assert list(df) == [[k, random.Random(k).random()] for k in range(SIZE)]
    assert not caplog.records
