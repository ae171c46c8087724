"""Which workers are late, by their words; and that the decision to kill one holds against a result on its way."""

import pytest

from dataflow import WorkerDied
from dataflow.protocol.state import state_of
from dataflow.runners import engine, item_watch, supervisor
from dataflow.runners.item_watch import ItemWatch
from dataflow.transport.flow_control import Window
from dataflow.transport.messages import Kind
from tests.support.faults import deadline
from tests.support.hand_stepped import HandStepped
from tests.support.hand_stepped_runners import Clock, HandMap, HandRunner, N, answer, expected, idle, numbers
from tests.support.waits import LIMIT


def test_time_counts_as_long_as_the_word_stays():
    watch = ItemWatch(1.0)
    assert [watch.overdue([7, 0], k / 8) for k in range(9)] == [[]] * 8 + [[0]]
    assert watch.overdue([8, 0], 1.2) == []  # another datapoint
    assert watch.overdue([8, 9], 1.3) == []


def test_a_consumer_that_looks_seldom_or_was_stopped_finds_nobody_late_at_once():
    watch = ItemWatch(1.0)
    found = [watch.overdue([7], 1000.0 * k) for k in range(5)]
    assert found == [[], [], [], [], [0]]  # a quarter of the limit, each time


def test_a_worker_that_waits_is_not_late():
    watch = ItemWatch(1.0)
    assert [watch.overdue([7 if k % 2 else 0], k / 5) for k in range(40)] == [[]] * 40


class Times:
    """Workers stepped by hand, of which one spends too long on a datapoint; `race` may interfere as it is killed."""

    def __init__(self, kind, *, late=5, always=False):
        self.kind, self.late, self.always = kind, late, always
        self.num_late = 0
        self.race = lambda worker: None

    def step(self, backend):
        worker = backend.workers[0]
        if worker.code is not None or worker.busy:
            return  # the watch, or the supervisor, is about to see it
        assert worker.take() or idle(backend)
        results = answer(worker, self.kind)
        first = worker.task.first + worker.task.start
        k = self.late - first
        if 0 <= k < len(results) and (self.always or not self.num_late):
            self.num_late += 1
            worker.busy = True
            worker.say(Kind.DATA, *results[:k])
            worker.item.begin(k)
            worker.rest = results[k:]
            self.race(worker)
        else:
            worker.say(Kind.DATA, *results)


class Backend(HandStepped):
    def _start(self, spec):
        worker = super()._start(spec)
        worker.item, worker.busy = spec.credit.quota(Window(1)).current_item(), False
        return worker


@pytest.fixture(autouse=True)
def time_passes(monkeypatch):
    clock = Clock(0.05)
    for module in (engine, supervisor):
        monkeypatch.setattr(module, "time", clock)
    return clock


KINDS = pytest.mark.parametrize("kind", [HandRunner, HandMap])
OPTIONS = {"strict": True, "item_timeout": 2, "max_restarts": 1, "max_failures": 1}


@KINDS
def test_a_datapoint_that_takes_too_long_once_is_made_again(kind):
    times = Times(kind)
    with kind(numbers(), 1, Backend(times.step), **OPTIONS) as df, deadline(LIMIT):
        assert list(df) == expected(kind) and df.failures == []
    assert times.num_late == 1


@KINDS
def test_a_datapoint_that_takes_too_long_twice_is_left_out(kind):
    times = Times(kind, always=True)
    with kind(numbers(), 1, Backend(times.step), **OPTIONS) as df, deadline(LIMIT):
        assert list(df) == [dp for k, dp in enumerate(expected(kind)) if k != 5]
        assert [(failure.position, failure.in_pass) for failure in df.failures] == [(5, 0)]
        assert state_of(df).resource._supervisor.restarts_left == 1
    assert times.num_late == 2


@KINDS
def test_results_that_come_after_the_decision_are_dropped(kind, monkeypatch):
    """Right after the kill, what the worker was making arrives, with the rest of its task."""
    times = Times(kind)
    end = supervisor.Supervisor.end

    def end_too_late(self, worker, now):
        late = self.workers[worker]
        end(self, worker, now)
        late.say(Kind.DATA, *[["wrong"]] * len(late.rest))

    monkeypatch.setattr(supervisor.Supervisor, "end", end_too_late)
    with kind(numbers(), 1, Backend(times.step), **OPTIONS) as df, deadline(LIMIT):
        assert list(df) == expected(kind) and df.failures == []


@KINDS
def test_a_result_that_has_come_before_the_decision_prevents_it(kind, monkeypatch):
    """The worker is found late and asked for its stacks; then its result arrives, and it makes nothing any more."""
    times = Times(kind)
    check = item_watch.LateWorkers.check
    told = []

    def check_then_finish(self, now):
        check(self, now)
        if self._asked is not None and not told:
            worker = self._supervisor.workers[self._asked[0]]
            told.append(worker)
            worker.item.end()
            worker.say(Kind.DATA, *worker.rest)
            worker.busy = False

    monkeypatch.setattr(item_watch.LateWorkers, "check", check_then_finish)
    with kind(numbers(), 1, Backend(times.step), **OPTIONS) as df, deadline(LIMIT):
        assert list(df) == expected(kind) and df.failures == []
        assert told and state_of(df).resource._supervisor.restarts_left == 1


@KINDS
def test_a_result_that_nobody_has_read_puts_the_decision_off(kind, monkeypatch):
    """The result of an item before is on its way when the worker is found late: it is entered first."""
    times = Times(kind)
    unread = []
    has_unread = supervisor.Supervisor.has_unread

    def one_comes(self, worker):
        if not unread:
            late = self.workers[worker]
            unread.append(late)
            late.say(Kind.DATA, late.rest.pop(0))  # that of the very datapoint, whose word has not changed yet
        return has_unread(self, worker)

    monkeypatch.setattr(supervisor.Supervisor, "has_unread", one_comes)
    with kind(numbers(), 1, Backend(times.step), **OPTIONS) as df, deadline(LIMIT):
        assert list(df) == expected(kind) and df.failures == []
    assert unread


@KINDS
def test_a_worker_that_is_late_and_cannot_be_replaced_ends_the_run(kind):
    times = Times(kind)
    found = []
    with (
        kind(numbers(), 1, Backend(times.step), **OPTIONS | {"max_restarts": 0}) as df,
        pytest.raises(WorkerDied, match="datapoint 5 of pass 0, spent more than item_timeout=2"),
        deadline(LIMIT),
    ):
        found.extend(df)
    assert found == expected(kind)[: len(found)] and len(found) <= N
