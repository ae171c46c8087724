"""The metrics divides the consumer's time, and forgets what workers wait between two iterations."""

import threading

import pytest

from dataflow.observe import observer as module
from dataflow.observe.observer import RunnerMetrics
from dataflow.transport.flow_control import Credit, Window
from dataflow.transport.worker_counters import InnerTotals, WorkerActivity
from tests.support.interrupts import act_at_each_line


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(module, "_now", lambda: self.now)

    def pass_by(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def observe(num_workers=1):
    credit = Credit(num_workers, shared=False)
    counters = [credit.port(k).quota(Window(1)).counters for k in range(num_workers)]
    return RunnerMetrics(credit.counters_of, num_workers), counters, credit


def test_the_consumers_time_is_divided(clock):
    metrics, _, _ = observe()
    clock.pass_by(5)  # before the first iteration: nobody waits
    for _ in range(2):
        metrics.enter()
        metrics.enter()  # as a map does, which reads its input first
        clock.pass_by(1)
        metrics.read_source(1)
        clock.pass_by(3)
        metrics.waiting += 3
        clock.pass_by(0.5)
        metrics.datapoints += 4
        metrics.nbytes += 100
        metrics.leave()
        clock.pass_by(2)
    found, _ = metrics.statistics()
    times = (found.waiting_seconds, found.source_seconds, found.receiving_seconds, found.working_seconds)
    assert times == pytest.approx((6, 2, 1, 4))
    assert (found.datapoints, found.nbytes, found.seconds) == (8, 200, pytest.approx(18))


def test_the_processor_time_of_the_consumers_thread_is_read_at_times(clock, monkeypatch):
    times = [0.0, 0.0]
    monkeypatch.setattr(module, "processor_times", lambda thread: tuple(times))
    metrics, _, _ = observe()

    def iterate():
        metrics.enter()
        for _ in range(3):
            times[0] += 1
            times[1] += 0.25
            clock.pass_by(2)
            metrics.leave()
            metrics.enter()
        metrics.leave()
        metrics.end_iteration()

    for _ in range(2):
        iterate()
        times[0] += 100  # between two iterations: the user's program
    thread = threading.Thread(target=iterate)
    thread.start()
    thread.join()
    metrics.end_iteration()
    found, _ = metrics.statistics()
    assert (found.consumer_cpu_seconds, found.consumer_delayed_seconds) == (9, 2.25)


def test_time_between_two_iterations_is_no_work_of_the_consumer(clock):
    metrics, (counters,), _ = observe()
    counters.begin(clock.now)
    for _ in range(2):
        counters.enter(WorkerActivity.BLOCKED, clock.now)
        clock.pass_by(100)
        metrics.enter()
        clock.pass_by(1)
        counters.add_wait(WorkerActivity.BLOCKED, clock.now, 100.5)
        counters.add_step(clock.now, 0.5)
        metrics.leave()
        clock.pass_by(1)
        counters.add_step(clock.now, 1)
        metrics.enter()
        metrics.leave()
        metrics.end_iteration()
    clock.pass_by(50)
    found, workers = metrics.statistics()
    assert found.working_seconds == pytest.approx(2)
    (worker,) = workers
    assert worker.seconds[WorkerActivity.BLOCKED] == pytest.approx(1)  # while the consumer was there
    assert worker.seconds[WorkerActivity.BUSY] >= 3


@pytest.mark.parametrize("first", ["enter", "end_iteration"])
@pytest.mark.parametrize("second", ["enter", "end_iteration", "freeze", "statistics"])
def test_another_thread_may_close_the_flow_at_any_line(first, second):
    def run(traced):
        metrics, _, _ = observe()
        metrics.enter()
        metrics.leave()
        if first == "enter":
            metrics.end_iteration()
            metrics.enter()
            metrics.leave()
        with traced(getattr(metrics, second)):
            getattr(metrics, first)()
        metrics.statistics()

    act_at_each_line(run, "observe/observer.py", 5)


def test_a_worker_that_is_added_between_two_iterations_has_not_been_idle(clock):
    metrics, _, credit = observe(2)
    metrics._num_workers = 1  # one more is started below
    metrics.enter()
    metrics.leave()
    metrics.end_iteration()
    metrics.add_worker()
    clock.pass_by(5)
    metrics.enter()
    clock.pass_by(1)
    _, workers = metrics.statistics()
    assert len(workers) == 2
    credit.close()


def test_a_consumer_that_waits_now_is_seen_to_wait(clock):
    metrics, _, _ = observe()
    metrics.enter()
    clock.pass_by(7)
    assert metrics.statistics()[0].waiting_seconds == pytest.approx(7)
    metrics.waiting += 7
    metrics.leave()
    clock.pass_by(3)
    assert metrics.statistics()[0].waiting_seconds == pytest.approx(7)
    assert metrics.statistics()[0].working_seconds == pytest.approx(3)


def test_the_last_figures_stay(clock):
    metrics, (counters,), credit = observe()
    metrics.enter()
    counters.add_message(3, 30)
    metrics.datapoints += 3
    metrics.nbytes += 30
    metrics.leave()
    metrics.freeze()
    metrics.freeze()
    credit.close()
    clock.pass_by(100)
    found, workers = metrics.statistics()
    assert found.seconds == pytest.approx(0)
    assert workers[0].datapoints == 3
    assert found.history[-1].datapoints == 3
    assert metrics.totals(7) == InnerTotals(7, 3, 30, found.consumer_seconds)


def test_the_history_stays_short_and_complete(clock):
    metrics, _, _ = observe()
    for _ in range(3000):
        metrics.enter()
        clock.pass_by(0.06)
        metrics.datapoints += 1
        metrics.nbytes += 1
        metrics.leave()
        clock.pass_by(0.06)
    history = metrics.statistics()[0].history
    seconds = [moment.seconds for moment in history]
    assert 100 <= len(history) <= 400
    assert seconds == sorted(seconds)
    assert history[0].datapoints == 1
    assert history[-1].datapoints > 2900
