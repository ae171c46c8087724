"""How many workers get work: the decision, for workers whose work is known."""

from dataclasses import dataclass, replace
from itertools import groupby
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.runners import scaling
from dataflow.runners.scaling import Load, Scaling, WorkerCount
from dataflow.transport.worker_counters import WorkerActivity

SECONDS = 0.25


@dataclass
class Work:
    """Workers that compute and sleep for each datapoint, and a consumer that needs time for it, too."""

    compute: float  # seconds of a datapoint on a core
    sleep: float = 0.0
    consume: float = 1e-6
    cores: int = 2
    each: float = 0.0  # seconds by which a datapoint takes longer for each worker: they are in each other's way
    memory: float = 0.0  # part of their time in which they wait for memory
    is_short: bool = False
    locked: float = 0.0  # part of the computing during which a thread holds the interpreter's lock

    def load(self, num: int) -> Load:
        own = self.compute + self.sleep + self.each * num
        possible = min(num / own, self.cores / max(1e-9, self.compute + self.each * num))
        if self.locked:
            possible = min(possible, 1 / (self.locked * self.compute))
        rate = min(possible, 1 / self.consume)
        used = rate / possible  # of the workers' time
        computing = rate * (self.compute + self.each * num) * SECONDS
        busy = used * num * SECONDS
        delayed = max(0.0, busy - computing - rate * self.sleep * SECONDS)
        if self.locked:  # the system does not know that they wait for the lock
            delayed = max(0.0, computing - self.cores * SECONDS)
        waiting = SECONDS * (1 - rate * self.consume)
        memory = self.memory * num * SECONDS
        return Load(
            seconds=SECONDS,
            datapoints=int(rate * SECONDS),
            waiting=waiting,
            busy=busy - memory,
            computing=computing,
            delayed=delayed,
            memory=memory,
            idle=num * SECONDS - busy,
            process=computing if self.locked else 0.0,
            memory_is_short=self.is_short,
        )


def numbers(count: WorkerCount, work: Work, intervals: int = 20) -> list[int]:
    return [count.next(work.load(count.num)) for _ in range(intervals)]


def test_workers_that_compute_become_as_many_as_there_are_cores():
    assert numbers(WorkerCount(1, 32, 4), Work(5e-3, cores=4))[-1] == 4
    assert max(numbers(WorkerCount(1, 32, 4), Work(5e-3, cores=4))) == 4


def test_workers_that_sleep_become_as_many_as_there_may_be():
    assert numbers(WorkerCount(1, 32, 2), Work(1e-5, sleep=5e-3))[-1] == 32


def test_workers_that_sleep_become_as_many_as_the_cores_can_feed():
    count = WorkerCount(1, 256, 2)
    numbers(count, Work(1e-3, sleep=9e-3), 200)
    assert 16 <= count.num <= 32  # 20 keep two cores busy


def test_threads_that_wait_for_the_lock_of_the_interpreter_do_not_become_more():
    compute = Work(5e-3, cores=4, locked=1.0)
    tried = numbers(WorkerCount(1, 32, 4, are_threads=True), compute, 200)
    assert tried[-1] == 1 and max(tried) == 2
    assert max(numbers(WorkerCount(8, 32, 4, are_threads=True), compute)) == 8
    assert max(numbers(WorkerCount(8, 32, 4), compute)) > 8  # by their own times, they seem to wait for something else


def test_threads_that_sleep_become_as_many_as_the_lock_allows():
    count = WorkerCount(1, 256, 4, are_threads=True)
    tried = numbers(count, Work(1e-3, sleep=29e-3, cores=4, locked=1.0), 300)
    assert count.num == max(tried) == 32  # 30 keep the lock busy


def test_threads_that_release_the_lock_become_as_many_as_the_cores_can_feed():
    count = WorkerCount(1, 256, 8, are_threads=True)
    numbers(count, Work(1e-3, sleep=9e-3, cores=8, locked=0.01), 300)
    assert count.num >= 64  # 80 keep eight cores busy


def test_one_is_enough_for_a_consumer_that_hardly_waits():
    assert numbers(WorkerCount(1, 32, 8), Work(1e-3, consume=2e-3, cores=8)) == [1] * 20


def test_a_second_worker_that_makes_it_slower_gets_no_work_and_is_tried_ever_less_often():
    tried = numbers(WorkerCount(1, 32, 2), Work(1e-5, each=1e-4), 100)
    at = [k for k, (before, after) in enumerate(zip([1, *tried], tried, strict=False)) if after > before]
    assert tried[-1] == 1 and len(at) == 3
    assert at[2] - at[1] > 1.5 * (at[1] - at[0])


def test_workers_that_wait_for_a_core_become_fewer_if_that_is_not_slower():
    assert numbers(WorkerCount(16, 64, 2), Work(5e-3))[-1] == 2


def test_workers_of_a_consumer_that_hardly_waits_become_fewer():
    assert numbers(WorkerCount(16, 16, 16), Work(1e-3, consume=5e-4, cores=16), 60)[-1] <= 4


def test_workers_that_wait_for_memory_become_fewer():
    assert numbers(WorkerCount(8, 8, 8), Work(1e-3, consume=3e-4, cores=8, memory=0.3), 60)[-1] < 8


def test_time_in_which_workers_wait_for_a_core_does_not_count_as_work():
    crowded = Work(1e-5, consume=6.5e-6)
    assert crowded.load(8).delayed > crowded.load(8).busy / 2
    assert numbers(WorkerCount(8, 64, 2), crowded)[-1] == 2


def test_hardly_any_free_memory_leaves_one_worker():
    count = WorkerCount(8, 8, 8)
    assert numbers(count, Work(1e-4, sleep=5e-3, cores=8, consume=4e-3, is_short=True), 80)[-1] == 1
    assert count.reason == "there is hardly any free memory"


def test_a_cost_that_changes_is_noticed():
    count = WorkerCount(1, 32, 4)
    cheap = Work(1e-4, consume=1e-3, cores=4)
    assert numbers(count, cheap)[-1] == 1
    assert numbers(count, replace(cheap, compute=2e-2))[-1] == 4
    assert numbers(count, cheap, 60)[-1] < 4


def test_no_more_are_wanted_than_can_be_started():
    count = WorkerCount(1, 32, 2)
    numbers(count, Work(1e-5, sleep=5e-3), 7)
    count.limit(4)
    assert count.num <= 4
    assert max(numbers(count, Work(1e-5, sleep=5e-3))) == 4


def load_of(**amounts) -> Load:
    """The load of an interval of ten seconds, in which workers were busy and computed unless something else is said."""
    return Load(
        **(
            {"seconds": 10.0, "datapoints": 1000, "waiting": 9.0, "busy": 10.0, "computing": 10.0}
            | {"delayed": 0.0, "memory": 0.0, "idle": 0.0}
            | amounts
        )
    )


BEGIN = "to begin with"
WANTED = [
    # cores, number, load, number wanted, why
    (4, 3, load_of(busy=0.0, computing=0.0), 3, BEGIN),
    (4, 5, load_of(busy=7.5, memory=2.5), 2, "they wait for room within max_bytes"),
    (4, 5, load_of(busy=6.0, computing=6.0, memory=2.0, idle=2.0), 5, BEGIN),
    (4, 8, load_of(waiting=0.9, busy=6.0, idle=4.0), 8, "the consumer hardly waits"),
    (4, 8, load_of(waiting=0.9, busy=5.0, idle=5.0), 8, "the consumer hardly waits"),
    (4, 8, load_of(waiting=0.9, busy=4.0, idle=6.0), 4, "the consumer hardly waits"),
    (4, 8, load_of(waiting=0.9, busy=6.0, delayed=4.0, idle=4.0), 2, "the consumer hardly waits"),
    (16, 8, load_of(waiting=1.0, busy=4.0, idle=6.0), 8, BEGIN),
    (16, 8, load_of(busy=6.9, idle=3.1), 8, BEGIN),
    (32, 8, load_of(busy=7.0, computing=7.0, idle=3.0), 16, "the consumer waits, and there are free cores"),
    (12, 8, load_of(), 12, "the consumer waits, and there are free cores"),
    (4, 8, load_of(computing=2.0, delayed=2.0), 16, "they wait for something other than a core"),
    (4, 8, load_of(computing=2.0, delayed=3.0), 8, BEGIN),
    (4, 4, load_of(), 4, BEGIN),
    (4, 4, load_of(delayed=9.0), 4, BEGIN),
    (4, 8, load_of(busy=8.0, delayed=0.35 * 8), 4, "they wait for a core"),
    (4, 8, load_of(delayed=1.0), 8, BEGIN),
    (2, 9, load_of(delayed=5.0), 4, "they wait for a core"),
]


@pytest.mark.parametrize(("cores", "num", "load", "wanted", "reason"), WANTED)
def test_a_load_suggests_a_number_and_says_why(cores, num, load, wanted, reason):
    found = WorkerCount(num, 64, cores).wanted(load)
    assert found == (wanted, reason) and type(found[0]) is int


def begun(first, cores, **options):
    """A count after its first interval, which tells nothing."""
    count = WorkerCount(first, 64, cores, **options)
    assert count.next(load_of(memory_is_short=True)) == first
    return count


def test_the_number_is_halved_while_there_is_hardly_any_memory():
    count = begun(9, 4)
    short = load_of(memory_is_short=True)
    assert [count.next(short) for _ in range(8)] == [4, 4, 4, 2, 2, 2, 1, 1]


def after_a_trial(count, trial):
    """The number after a trial with this load, and why."""
    before = count.num
    assert count.next(load_of(busy=10.0)) != before
    for _ in range(2):
        count.next(load_of())  # the workers start
    return count.next(trial), count.reason


def test_more_workers_stay_if_the_rate_grows_by_a_tenth_and_fewer_if_it_falls_by_less_than_a_twentieth():
    free = "the consumer waits, and there are free cores"
    assert after_a_trial(begun(2, 4), load_of(datapoints=1090)) == (2, "more were not faster")
    assert after_a_trial(begun(2, 4), load_of(datapoints=1101)) == (4, free)
    assert after_a_trial(begun(2, 4), load_of(datapoints=110, seconds=1.0)) == (2, "more were not faster")
    assert after_a_trial(begun(2, 4), load_of(datapoints=5500, seconds=50.0)) == (2, "more were not faster")
    for datapoints, found in ((940, (8, "fewer were slower")), (950, (4, "they wait for a core"))):
        count = begun(8, 4)
        assert count.next(load_of(delayed=9.0)) == 4
        for _ in range(2):
            count.next(load_of())
        assert (count.next(load_of(datapoints=datapoints)), count.reason) == found


def test_a_trial_whose_number_was_limited_to_the_one_before_has_not_failed():
    count = begun(2, 8)
    assert count.next(load_of()) == 4
    count.limit(2)
    for _ in range(2):
        count.next(load_of())
    count.next(load_of())
    assert count.reason == "the consumer waits, and there are free cores"
    assert count.next(load_of(waiting=0.9, busy=1.0, idle=9.0)) == 1  # the next trial is not put off


def test_workers_of_which_nothing_has_come_in_an_interval_become_more_at_once():
    assert begun(2, 4).next(load_of(datapoints=0)) == 4


def test_each_trial_that_fails_doubles_the_number_of_intervals_until_the_next():
    count = begun(2, 4)
    numbers = [count.next(load_of()) for _ in range(900)]
    lengths = [len(list(same)) for _, same in groupby(numbers)]
    assert lengths[::2][:6] == [3] * 6 and lengths[1::2][:5] == [3 + left for left in (16, 32, 64, 128, 256)]


def test_a_rate_of_half_or_twice_the_former_one_is_no_change_of_the_work_but_a_larger_is():
    for datapoints, changed in ((500, False), (2000, False), (499, True), (2001, True)):
        count = begun(2, 4)
        assert after_a_trial(count, load_of()) == (2, "more were not faster")
        for _ in range(2):
            count.next(load_of())
        assert count.next(load_of(datapoints=datapoints)) == (4 if changed else 2)


def test_threads_that_use_one_core_wait_for_the_lock():
    for process, reason in (
        (8.9, "they wait for something other than a core"),
        (9.0, "the consumer waits, and there are free cores"),
        (12.0, "the consumer waits, and there are free cores"),
        (12.1, "they wait for something other than a core"),
    ):
        count = begun(4, 8, are_threads=True)
        assert count.next(load_of(computing=1.0, process=process)) == 8
        assert count.reason == reason
    count = begun(20, 8, are_threads=True)
    assert count.next(load_of(waiting=0.5, busy=9.0, computing=1.0, idle=1.0, process=10.0)) == 3


class Metrics:
    """Totals of a runner, as its engine counts them."""

    def __init__(self):
        self.seconds = self.waiting = 0.0
        self.datapoints = 0
        self.workers = [self.worker(0.0), self.worker(0.0)]

    def worker(self, scale):
        seconds = {state: scale * state for state in WorkerActivity}
        return SimpleNamespace(cpu=scale / 2, delayed=scale / 4, seconds=seconds)

    def statistics(self):
        figures = SimpleNamespace(
            consumer_seconds=self.seconds, datapoints=self.datapoints, waiting_seconds=self.waiting
        )
        return figures, self.workers


@pytest.fixture
def measured(monkeypatch):
    """A `Scaling` of two workers, its metrics, and the loads that its count was given, which then wants three."""
    monkeypatch.setattr(scaling, "memory_is_short", lambda: True)
    monkeypatch.setattr(scaling, "time", SimpleNamespace(process_time=lambda: 7.0 * metrics.seconds))
    metrics, loads = Metrics(), []
    count = SimpleNamespace(num=2, next=lambda load: loads.append(load) or 3)
    found = Scaling(count, metrics, lambda k: (3.0 * metrics.seconds, 1.0 * metrics.seconds) if k else None)
    assert found.due == 0.0
    return found, metrics, loads


def test_a_load_is_what_has_changed_in_an_interval(measured):
    found, metrics, loads = measured
    assert found.next(5.0, ready=True) == 2 and found.due == pytest.approx(5.15)
    metrics.seconds, metrics.waiting, metrics.datapoints = 0.5, 0.25, 8
    metrics.workers = [metrics.worker(1.0), metrics.worker(2.0)]
    assert found.next(6.0, ready=True) == 3
    expected = Load(
        seconds=0.5,
        datapoints=8,
        waiting=0.25,
        busy=3.0 * WorkerActivity.BUSY,
        computing=0.5 + 1.5,
        delayed=0.25 + 0.5,
        memory=3.0 * WorkerActivity.MEMORY,
        idle=3.0 * (WorkerActivity.STARVED + WorkerActivity.BLOCKED),
        process=3.5,
        memory_is_short=True,
    )
    assert loads == [expected]
    metrics.seconds, metrics.datapoints = 1.0, 18
    metrics.workers = [metrics.worker(0.5), metrics.worker(2.0)]  # the first was replaced
    assert found.next(7.0, ready=True) == 3
    last = loads[-1]
    assert (last.seconds, last.datapoints, last.waiting, last.busy, last.computing) == (0.5, 10, 0.0, 0.0, 1.25)


def test_an_interval_is_long_enough_if_each_worker_has_made_four_datapoints_or_after_ten_seconds(measured):
    found, metrics, loads = measured
    for seconds, datapoints, num in (
        (0.0, 0, 2),
        (0.125, 8, 2),
        (0.15, 8, 3),
        (0.5, 15, 2),
        (10.0, 15, 2),
        (10.15, 15, 3),
    ):
        metrics.seconds, metrics.datapoints = seconds, datapoints
        assert found.next(1.0, ready=True) == num, seconds
    assert [load.datapoints for load in loads] == [8, 7]


def test_no_interval_begins_before_all_workers_have_begun(measured):
    found, metrics, loads = measured
    assert found.next(1.0, ready=True) == 2
    metrics.seconds, metrics.datapoints = 1.0, 100
    assert found.next(2.0, ready=False) == 2
    metrics.seconds, metrics.datapoints = 2.0, 200
    assert found.next(3.0, ready=True) == 2 and not loads
    metrics.seconds, metrics.datapoints = 3.0, 300
    assert found.next(4.0, ready=True) == 3 and loads[0].datapoints == 100


@pytest.mark.parametrize("first", [1, 5])
@given(data=st.data())
def test_the_number_stays_between_one_and_the_maximum(first, data):
    most = data.draw(st.integers(first, 40))
    count = WorkerCount(first, most, data.draw(st.integers(1, 16)), are_threads=data.draw(st.booleans()))
    part = st.floats(0, 10, allow_nan=False)
    for _ in range(data.draw(st.integers(1, 30))):
        load = Load(
            data.draw(st.floats(0.01, 10)),
            data.draw(st.integers(0, 10**6)),
            *(data.draw(part) for _ in range(7)),
            memory_is_short=data.draw(st.booleans()),
        )
        assert 1 <= count.next(load) <= most
        assert count.num <= most
