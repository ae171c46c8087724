"""How many workers get work: the decision, for workers whose work is known."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.runners.scaling import Load, WorkerCount

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
