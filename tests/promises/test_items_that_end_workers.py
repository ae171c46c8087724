"""Items that hang, or end their worker: killed, made again, and left out when they have done so twice."""

import ctypes
import faulthandler
import itertools
import logging
import os
import signal
import sys
import threading

import pytest

from dataflow import (
    BatchData,
    DataFromGenerator,
    DataFromList,
    MapData,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    ParallelData,
    RepeatedData,
    ShuffleData,
    TooManyFailures,
    WorkerDied,
)
from dataflow.errors import WorkerTraceback
from dataflow.protocol.state import state_of
from dataflow.system.worker_process import ProcessWorker
from dataflow.transport.batching_sender import BatchingSender
from tests.support.fakes import METHODS
from tests.support.faults import deadline, processes_of
from tests.support.waits import LIMIT, wait_until

N = 24
BAD = (5, 14)
TIMEOUT = 1.0  # seconds for one item: what is good takes far less, also on a busy machine


def stop():
    signal.raise_signal(signal.SIGSTOP)  # into this thread: see `crash`


def deadlock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def loop():
    while True:
        pass


def never_return_from_c():
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # holds the interpreter's lock


def deaf():
    signal.pthread_sigmask(signal.SIG_SETMASK, set(signal.valid_signals()))
    deadlock()


def grow_until_killed():
    memory = [bytes(1 << 20) for _ in range(8)]
    os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does
    del memory


def crash():
    faulthandler.disable()
    # Into this thread: another one may take long over a signal to the process, as Ray's handler does.
    signal.raise_signal(signal.SIGSEGV)


HANGS = {f.__name__: f for f in (stop, deadlock, loop, never_return_from_c, deaf)}
KILLERS = {f.__name__: f for f in (grow_until_killed, crash)}
KILLERS |= {"_exit": lambda: os._exit(3), "sys.exit": lambda: sys.exit(3)}
STRIKES = HANGS | KILLERS


class Planted:
    """Does something bad for each bad number; squares the others."""

    def __init__(self, name, bad=BAD):
        self.name = name
        self.bad = bad

    def __call__(self, dp):
        if dp[0] in self.bad:
            STRIKES[self.name]()
        return [dp[0] ** 2]


def numbers(n=N):
    return DataFromList([[k] for k in range(n)], shuffle=False)


PLACES = {
    "zmq": lambda func, num, **more: MultiProcessRunnerZMQ(MapData(numbers(), func), num, strict=True, **more),
    "process": lambda func, num, **more: MultiProcessRunner(MapData(numbers(), func), 9, num, strict=True, **more),
    "parallel": lambda func, num, **more: ParallelData(MapData(numbers(), func), num, **more),
    "batches": lambda func, num, **more: ParallelData(BatchData(MapData(numbers(), func), 4), num, **more),
    "map": lambda func, num, **more: MultiProcessMapData(numbers(), num, func, strict=True, **more),
    "map-and-batch": lambda func, num, **more: MultiProcessMapAndBatchData(
        numbers(), num, func, 4, remainder=True, strict=True, **more
    ),
}


def expected(place, bad=BAD):
    """The numbers of a pass without the bad items, and the positions that are listed."""
    if place == "batches":  # the item is a batch
        without = {k // 4 for k in bad}
        return [k * k for k in range(N) if k // 4 not in without], sorted(without)
    return [k * k for k in range(N) if k not in bad], sorted(bad)


def found_in(df, place):
    if "batch" in place:
        return [int(k) for (column,) in df for k in column]
    return [k for (k,) in df]


OPTIONS = {"max_failures": len(BAD), "max_restarts": 2, "item_timeout": TIMEOUT, "timeout": LIMIT}


def check_planted(name, place, method, num, bad=BAD, num_passes=2):
    """Exact passes without the planted items, each of which is named once."""
    numbers_left, positions = expected(place, bad)
    with PLACES[place](Planted(name, bad), num, context=method, **OPTIONS) as df, deadline(LIMIT):
        for p in range(num_passes):
            assert found_in(df, place) == numbers_left
            listed = [failure for failure in df.failures if failure.in_pass == p]
            assert sorted(failure.position for failure in listed) == positions
        for failure in df.failures:
            assert failure.kind == "dataflow.errors.WorkerDied" and "ended its worker twice" in failure.text
            assert ("item_timeout=1 " in failure.text) == (name in HANGS)
            assert (f"in {name}" in failure.traceback) == (name in HANGS and name != "stop")
        assert state_of(getattr(df, "_mapped", df)).resource._supervisor.restarts_left == 2  # all were given back


# Every two of a hazard, a place and a start method, with one worker or with two in turn.
CASES = [
    (name, place, METHODS[(i + k) % 3], 1 + (i + k // 3) % 2)
    for (i, name), (k, place) in itertools.product(enumerate(STRIKES), enumerate(PLACES))
]
# Every hazard and place occurs among the quick ones; a loop takes processor time until it is killed.
QUICK = {
    (name, [*PLACES][k % 6], "fork" if k % 4 else "forkserver", 2) for k, name in enumerate(STRIKES) if name != "loop"
}
QUICK.add(("deaf", "batches", "fork", 1))  # the first datapoint of a worker blocks the signals of its only thread
CASES += sorted(QUICK.difference(CASES))
TWO_PASSES = {("deadlock", "process"), ("never_return_from_c", "batches"), ("_exit", "process")}  # of the quick ones


@pytest.mark.parametrize(
    ("name", "place", "method", "num"),
    [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.full]) for case in CASES],
)
def test_a_pass_is_exact_without_what_hangs_or_kills(name, place, method, num, request):
    is_quick = request.node.get_closest_marker("full") is None
    # Each end takes a second, or the start of an interpreter.
    bad = BAD[:1] if is_quick and (name in HANGS.keys() - {"stop"} or method == "spawn") else BAD
    check_planted(name, place, method, num, bad, 1 if is_quick and (name, place) not in TWO_PASSES else 2)


# -- what is not tolerated ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["parallel", "map"])
def test_without_a_budget_the_run_ends_with_an_error_that_names_the_item(place):
    options = OPTIONS | {"max_failures": None, "max_restarts": 5}
    found = []
    with (
        PLACES[place](Planted("_exit"), 1, **options) as df,
        pytest.raises(WorkerDied, match=r"datapoint 5 of pass 0 of \w+ ended its worker twice: .* exit code 3"),
        deadline(LIMIT),
    ):
        found.extend(k for (k,) in df)
    assert found == [k * k for k in range(5)]


def test_a_hang_that_no_restart_covers_names_the_item_and_shows_the_stacks():
    with (
        PLACES["map"](Planted("deadlock"), 1, **OPTIONS | {"max_restarts": 0}) as df,
        pytest.raises(WorkerDied, match=r"making datapoint 5 of pass 0, spent more than item_timeout=1 ") as caught,
        deadline(LIMIT),
    ):
        list(df)
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    assert "in deadlock" in str(caught.value.__cause__) and "in chunk" not in str(caught.value.__cause__)


def test_a_death_that_no_restart_covers_names_the_item():
    with (
        PLACES["map"](Planted("_exit"), 1, **OPTIONS | {"max_restarts": 0}) as df,
        pytest.raises(WorkerDied) as caught,
        deadline(LIMIT),
    ):
        list(df)
    assert "it was making datapoint 5 of pass 0" in caught.value.__notes__


def test_a_budget_that_is_used_up_ends_the_run():
    with (
        PLACES["parallel"](Planted("grow_until_killed"), 1, **OPTIONS | {"max_failures": 1}) as df,
        pytest.raises(TooManyFailures, match="max_failures=1") as caught,
        deadline(LIMIT),
    ):
        list(df)
    assert [failure.position for failure in caught.value.failures] == list(BAD)
    assert isinstance(caught.value.__cause__, WorkerDied)


class Heavy(Planted):
    """Its first results are still under way when the worker ends."""

    def __call__(self, dp):
        return [*super().__call__(dp), bytes((1 << 23) * (dp[0] < BAD[0]))]


HEAVY = {"max_restarts": 1, "max_bytes": 1 << 28, "timeout": LIMIT}


@pytest.mark.parametrize("method", [METHODS[0], *(pytest.param(m, marks=pytest.mark.full) for m in METHODS[1:])])
@pytest.mark.parametrize("place", ["parallel", "map"])
def test_what_comes_before_an_item_that_ends_its_worker_twice_is_made_again_if_it_went_with_the_worker(place, method):
    options = HEAVY | {"context": method}
    found = []
    with (
        PLACES[place](Heavy("grow_until_killed"), 1, **options) as df,
        pytest.raises(WorkerDied, match=r"datapoint 5 of pass 0 of \w+ ended its worker twice"),
        deadline(LIMIT),
    ):
        found.extend(k for k, _ in df)
    assert found == [k * k for k in range(5)]


@pytest.mark.parametrize("more", [{"strict": True, "ordered": False}, {}])
def test_without_order_the_error_comes_after_what_has_come(more):
    options = OPTIONS | {"max_failures": None, "max_restarts": 1} | more
    found = []
    with (
        MultiProcessMapData(numbers(), 1, Planted("grow_until_killed", (0,)), **options) as df,
        pytest.raises(WorkerDied, match=r"datapoint 0 of pass 0 of \w+ ended its worker twice"),
        deadline(LIMIT),
    ):
        found.extend(k for (k,) in df)
    assert set(found) < {k * k for k in range(1, N)}


def count_only(sender, taken):
    sender._sent += len(taken)


def test_deaths_with_no_item_to_blame_count_as_before_while_the_rest_is_made_again():
    import multiprocessing

    num_started = multiprocessing.Value("i", 0)

    def init():
        num_started.value += 1
        if num_started.value > 2:  # the item has ended two workers
            os._exit(7)
        BatchingSender._send_collected = count_only  # what came before it goes with them

    options = HEAVY | {"context": "fork"}
    with (
        PLACES["map"](Planted("grow_until_killed"), 1, worker_init=init, **options) as df,
        pytest.raises(WorkerDied, match="exit code 7"),
        deadline(LIMIT),
    ):
        list(df)
    assert num_started.value == 4  # restart 1, of at most 1


@pytest.mark.parametrize("name", ["deadlock", "grow_until_killed"])
def test_a_sequence_that_cannot_be_addressed_cannot_be_continued_without_an_item(name):
    flow = MapData(DataFromGenerator(lambda: ([k] for k in range(N))), Planted(name))
    found = []
    with (
        MultiProcessRunner(flow, 9, 1, strict=True, **OPTIONS | {"max_restarts": 5}) as df,
        pytest.raises(WorkerDied, match=r"datapoint 5 of pass 0 .* twice: .*cannot be left out") as caught,
        deadline(LIMIT),
    ):
        found.extend(k for (k,) in df)
    assert found == [k * k for k in range(5)]
    assert ("in deadlock" in str(caught.value.__cause__)) == (name == "deadlock")


def test_default_runners_and_threads_take_no_item_timeout():
    with pytest.raises(ValueError, match="item_timeout=1 needs strict=True"):
        MultiProcessRunner(numbers(), 5, 1, item_timeout=1)
    with pytest.raises(TypeError, match="item_timeout"):
        MultiThreadMapData(numbers(), 1, Planted("stop"), item_timeout=1)
    with pytest.raises(TypeError, match="item_timeout"):
        MultiThreadRunner(numbers, 5, 1, strict=True, item_timeout=1)
    with pytest.raises(TypeError, match='item_timeout= is an option of backend="process"'):
        ParallelData(numbers(), 1, backend="thread", item_timeout=1)
    for wrong in (0, -1, "soon"):
        with pytest.raises((TypeError, ValueError), match="item_timeout"):
            ParallelData(numbers(), 1, item_timeout=wrong)


# -- what does not count -----------------------------------------------------------------------------------------------


def test_an_item_that_ends_its_worker_once_is_made_again(caplog):
    import multiprocessing

    done = multiprocessing.Value("b", False)

    def once(dp):
        if dp[0] == 5 and not done.value:
            done.value = True
            deadlock()
        return dp

    with PLACES["map"](once, 2, **OPTIONS) as df, deadline(LIMIT):
        assert list(df) == [[k] for k in range(N)]
        assert df.failures == []
        assert state_of(df).resource._supervisor.restarts_left == 1  # one of them
    assert ["restart 1, of at most 2" in message for message in caplog.messages] == [True]


def test_threads_that_exit_are_the_end_of_their_item_too():
    with MultiThreadMapData(
        numbers(), 2, Planted("sys.exit"), strict=True, max_restarts=2, max_failures=2, timeout=LIMIT
    ) as df:
        assert found_in(df, "map") == expected("map")[0]
        assert sorted(failure.position for failure in df.failures) == sorted(BAD)


def wait_long():
    threading.Event().wait(2 * TIMEOUT)


class SlowReset(MapData):
    def reset_state(self):
        wait_long()
        super().reset_state()


def test_initialising_and_waiting_for_the_consumer_do_not_count():
    flow = SlowReset(numbers(200), lambda dp: [dp[0], bytes(1 << 18)])
    options = OPTIONS | {"max_restarts": 0, "max_bytes": 1 << 20}
    for make in (MultiProcessRunnerZMQ, lambda ds, num, **more: MultiProcessRunner(ds, 2, num, **more)):
        with make(flow, 2, strict=True, worker_init=wait_long, **options) as df, deadline(LIMIT):
            for k, dp in enumerate(df):
                assert dp[0] == k
                if k == 20:
                    wait_long()  # the workers wait for memory, or in the midst of sending


def test_a_consumer_and_workers_that_were_stopped_together_blame_no_item():
    from tests.promises.test_workers_end_with_the_program import Program

    with Program(
        """
        from tests.promises.test_items_that_end_workers import slowly, numbers
        if __name__ == "__main__":
            df = MultiProcessMapData(numbers(), 1, slowly, strict=True, item_timeout=2, context="fork")
            tell("ready")
            tell([k for k, in df] == list(range(24)), df.failures)
        """
    ) as program:
        assert program.read() == "ready"
        wait_until(lambda: program.read() == "begun", LIMIT, "no item begins")
        group = os.getpgid(program.process.pid)
        os.killpg(group, signal.SIGSTOP)
        threading.Event().wait(3)
        os.killpg(group, signal.SIGCONT)
        assert program.read() == "True []"


def slowly(dp):
    if dp[0] == 3:
        print("begun", flush=True)
        threading.Event().wait(1)
    return dp


# -- again -------------------------------------------------------------------------------------------------------------


def test_what_was_left_out_is_not_tried_again_when_its_index_is_read_again(tmp_path):
    def func(dp):
        if dp[0] == 5:
            with open(tmp_path / "tries", "a") as file:
                file.write(".")
            os._exit(3)
        return dp

    with ParallelData(MapData(numbers(), func), 1, **OPTIONS) as inner, deadline(LIMIT):
        found = [k for (k,) in MapData(RepeatedData(inner, 1), lambda dp: dp)]
        assert found == [k for k in range(N) if k != 5]
        engine = state_of(inner).resource
        again = engine.begin_pass(lambda: engine.schedule.begin_pass(0, N))
        assert [k for chunk in iter(lambda: engine.chunk(again, LIMIT), None) for (k,) in chunk] == found
    assert (tmp_path / "tries").read_text() == ".."


@pytest.mark.parametrize("make", [MultiProcessMapData, MultiThreadMapData])
def test_maps_whose_datapoints_are_read_in_any_order_leave_out_the_same_and_name_it(make):
    with make(numbers(), 2, Planted("sys.exit"), strict=True, max_restarts=2, max_failures=2, timeout=LIMIT) as inner:
        df = ShuffleData(inner)
        for _ in range(2):
            assert sorted(found_in(df, "map")) == expected("map")[0]
        assert sorted({(failure.in_pass, failure.position) for failure in df.failures}) == [
            (p, k) for p in range(2) for k in BAD
        ]


def test_a_budget_of_a_runner_around_counts_what_ends_a_worker_inside():
    source = DataFromGenerator(lambda: ([k] for k in range(N)))
    inner = MultiProcessMapData(source, 1, Planted("grow_until_killed"), strict=True, max_restarts=1, timeout=LIMIT)
    with MultiProcessRunner(inner, 9, 1, strict=True, max_failures=2, context="fork", timeout=LIMIT) as df:
        assert found_in(df, "map") == expected("map")[0]
        assert [failure.position for failure in df.failures] == list(BAD)
        assert df.failures[0].path == ((0, 1), (0, 1))


# -- what cannot be killed ---------------------------------------------------------------------------------------------


def test_a_worker_that_does_not_end_when_it_is_killed_is_left_behind_named_and_replaced(monkeypatch, caplog):
    immortal = []

    def begin_kill(worker):
        if not immortal:  # the first, as one that waits for a dead mount
            immortal.append(worker)
        elif worker is not immortal[0]:
            worker._process.kill()

    monkeypatch.setattr("dataflow.runners.supervisor._KILL_SECONDS", 0.3)
    monkeypatch.setattr(ProcessWorker, "begin_kill", begin_kill)
    try:
        with PLACES["map"](Planted("deadlock", (5,)), 2, **OPTIONS) as df, deadline(LIMIT):
            assert found_in(df, "map") == expected("map", (5,))[0]
            assert [failure.position for failure in df.failures] == [5]
            assert immortal[0].pid not in [process.pid for process in processes_of(df)]
        left = [message for message in caplog.messages if "left behind" in message]  # others may be late
        (message,) = [message for message in left if f"(pid {immortal[0].pid}, " in message]
        assert "has not ended" in message
        assert not immortal[0].has_ended()
        immortal[0]._process.join()  # as `multiprocessing` does at exit: does not wait
    finally:
        process = immortal[0]._process
        os.kill(process.pid, signal.SIGKILL)
        type(process).join(process)
        immortal[0].release()
        process.close()


def test_workers_that_are_stopped_are_never_continued(monkeypatch):
    sent = []
    kill = os.kill
    monkeypatch.setattr(os, "kill", lambda pid, number: (sent.append(number), kill(pid, number)))
    options = OPTIONS | {"context": "fork"}  # others compare what workers import, and would refuse the patch
    with PLACES["map"](Planted("stop", (5,)), 1, **options) as df, deadline(LIMIT):
        assert found_in(df, "map") == expected("map", (5,))[0]
    assert signal.SIGCONT not in sent


def test_skipped_items_are_logged_once_and_restarts_with_the_reason(caplog):
    with caplog.at_level(logging.WARNING), PLACES["map"](Planted("_exit", (5,)), 1, **OPTIONS) as df:
        list(df)
    skipped = [message for message in caplog.messages if message.startswith("skipped")]
    assert skipped == [
        "skipped MultiProcessMapData: datapoint 5 of pass 0, worker 0 of 1: dataflow.errors.WorkerDied: ended its "
        "worker twice: each time, it ended with exit code 3"
    ]
    assert sum("restart" in message for message in caplog.messages) == 2
