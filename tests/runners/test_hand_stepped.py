"""Runners and maps over workers that the test steps by hand: every race is chosen, none is waited for."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import DataFromList, MapData, WorkerDied
from dataflow.protocol.state import state_of
from dataflow.runners import engine, feeding, supervisor
from dataflow.runners.maps import ParallelMap
from dataflow.runners.options import WorkerOptions
from dataflow.runners.runners import Runner
from dataflow.transport.flow_control import Window
from dataflow.transport.messages import Kind
from tests.support.faults import deadline
from tests.support.hand_stepped import HandStepped

N = 12
LIMIT = 60.0


class HandRunner(Runner):
    def __init__(self, ds, num, backend, **options):
        super().__init__([ds], WorkerOptions.of(self, num, options), backend, Window(4), 4)


class HandMap(ParallelMap):
    def __init__(self, ds, num, backend, **options):
        super().__init__(ds, double, WorkerOptions.of(self, num, options), backend, 6)


def double(dp):
    return [2 * dp[0]]


def numbers(n=N):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def answer(worker, kind):
    """All results that a task asks for: of a runner, a range of indexes; of a map, its datapoints."""
    task = worker.task
    if kind is HandMap:
        return [double(dp) for dp in task.datapoints[task.start : task.stop]]
    (count,) = task.datapoints
    return [[(task.first + k) % N] for k in range(count)[task.start : task.stop]]


def expected(kind):
    return [double([k]) if kind is HandMap else [k] for k in range(N)]


def idle(backend):
    raise AssertionError("the consumer waits, and no worker has anything to do")


KINDS = pytest.mark.parametrize("kind", [HandRunner, HandMap])


@KINDS
def test_results_that_come_in_reverse_are_handed_out_in_order(kind):
    def last_first(backend):
        takers = [worker for worker in backend.workers.values() if worker.take()]
        assert takers or idle(backend)
        for worker in reversed(takers):
            worker.say(Kind.DATA, *answer(worker, kind))

    with kind(numbers(), 2, HandStepped(last_first), strict=True) as df:
        assert list(df) == list(df) == expected(kind)


@KINDS
def test_a_task_of_a_dead_worker_is_done_by_its_successor_and_what_it_had_sent_counts_once(kind):
    deaths = []

    def step(backend):
        worker = backend.workers[0]
        if worker.code is not None:
            return  # the supervisor is about to see it
        assert worker.take() or idle(backend)
        results = answer(worker, kind)
        if len(results) > 1 and not deaths:
            worker.say(Kind.DATA, results[0])  # a part of them
            worker.code = -9
            deaths.append(worker)
        else:
            worker.say(Kind.DATA, *results)

    with kind(numbers(), 1, HandStepped(step), strict=True, max_restarts=1) as df, deadline(LIMIT):
        assert [*df, *df, *df] == 3 * expected(kind)
    assert deaths


@KINDS
def test_a_death_that_nothing_replaces_is_raised_after_what_was_sent_before_it(kind):
    def step(backend):
        worker = backend.workers[0]
        if worker.take() is None:
            worker.code = -11
        else:
            worker.say(Kind.DATA, *answer(worker, kind)[:1])
            worker.code = -11

    found = []
    with kind(numbers(), 1, HandStepped(step), strict=True) as df, pytest.raises(WorkerDied, match="SIGSEGV"):
        found.extend(df)
    assert found == expected(kind)[: len(found)]


@KINDS
def test_late_results_of_a_pass_that_was_broken_off_are_ignored(kind):
    """Worker 1 takes a task of the first pass, and has its results ready in the middle of the second."""
    late = []

    def step(backend):
        slow, quick = backend.workers[1], backend.workers[0]
        if slow.task is None:
            assert slow.take()
            late.extend(answer(slow, kind))
        elif quick.take():
            quick.say(Kind.DATA, *answer(quick, kind))
        else:
            slow.say(Kind.DATA, *late)
            slow.task, late[:] = None, []

    with kind(numbers(), 2, HandStepped(step), strict=True, ordered=False) as df, deadline(LIMIT):
        iterator = iter(df)
        first = next(iterator)
        assert first not in late
        iterator.close()
        assert sorted(df) == expected(kind)


@KINDS
def test_a_death_in_a_pass_that_was_broken_off_is_raised_by_the_next(kind):
    """Nobody is left to do the work: without the error, the next pass would never end."""

    def step(backend):
        worker = backend.workers[0]
        if worker.task is None:
            assert worker.take()
            worker.say(Kind.DATA, *answer(worker, kind))
        elif worker.take():
            worker.code = -9  # with a task

    with kind(numbers(), 1, HandStepped(step), strict=True, ordered=False) as df, deadline(LIMIT):
        iterator = iter(df)
        assert next(iterator) == expected(kind)[0]
        engine = state_of(df).resource
        while engine.workers[0].code is None or not engine._death_in_schedule:  # it is seen, and not raised yet
            with engine.lock:
                step(df._df_backend) if engine.workers[0].code is None else engine._check_workers(0.0)
        iterator.close()
        with pytest.raises(WorkerDied, match="SIGKILL"):
            list(df)


def test_the_end_of_a_default_runner_waits_for_a_death_that_no_restart_covers():
    def step(backend):
        worker = backend.workers[0]
        worker.say(Kind.DATA, *([k] for k in range(N)))
        worker.code = -9

    with HandRunner(numbers(), 1, HandStepped(step)) as df, pytest.raises(WorkerDied, match="SIGKILL after 12"):
        list(df)


def test_a_default_runner_gives_out_what_comes_and_goes_on_with_a_successor():
    def step(backend):
        worker = backend.workers[0]
        worker.say(Kind.DATA, *([k] for k in range(5)))
        worker.code = -9

    with HandRunner(numbers(), 1, HandStepped(step), max_restarts=10) as df, deadline(LIMIT):
        assert [k for (k,) in df] == [k % 5 for k in range(N)]


class Clock:
    """Stands for `time`: between two looks at it, as much time passes as the test says."""

    def __init__(self, step):
        self.now = 0.0
        self.step = step

    def monotonic(self):
        self.now += self.step
        return self.now

    perf_counter = monotonic


@contextlib.contextmanager
def time_passes(step):
    """How far a source is read, and when workers are checked, depends on time: on that of a `Clock`."""
    clock = Clock(step)
    with pytest.MonkeyPatch.context() as patched:
        for module in (feeding, engine, supervisor):
            patched.setattr(module, "time", clock)
        yield


@KINDS
@given(
    data=st.data(),
    num=st.integers(1, 3),
    restarts=st.integers(0, 2),
    seconds=st.sampled_from([0.0, 5e-5, 1e-3, 0.1, 1.0]),
)
def test_whatever_the_workers_do_every_datapoint_comes_once_and_in_order(kind, data, num, restarts, seconds):
    """Results in parts, deaths at any moment, restarts, loops that are broken off, and sources that take their time."""
    unsent = {}

    def step(backend):
        able = [worker for worker in backend.workers.values() if worker.code is None]
        for worker in able:
            if worker not in unsent and worker.take():
                unsent[worker] = answer(worker, kind)
        busy = [worker for worker in able if worker in unsent]
        if busy:  # otherwise they have died, which the supervisor is about to see
            worker = data.draw(st.sampled_from(busy))
            if data.draw(st.integers(0, 19)) == 0:
                worker.code = -9
                return
            count = data.draw(st.integers(1, len(unsent[worker])))
            worker.say(Kind.DATA, *unsent[worker][:count])
            unsent[worker] = unsent[worker][count:]
            if not unsent[worker]:
                del unsent[worker]

    flow = kind(numbers(), num, HandStepped(step), strict=True, max_restarts=restarts)
    with flow as df, deadline(LIMIT), time_passes(seconds):
        for _ in range(3):
            found, stop = [], data.draw(st.integers(0, N))
            try:
                for dp in df:
                    found.append(dp)
                    if len(found) == stop:
                        break
                else:
                    assert len(found) == N
            except WorkerDied:
                assert found == expected(kind)[: len(found)]
                return
            assert found == expected(kind)[: len(found)]


def test_a_flow_that_is_stepped_by_hand_is_what_it_is_without_workers():
    assert list(HandMap(numbers(), 0, HandStepped(idle), strict=True)) == list(MapData(numbers(), double))
