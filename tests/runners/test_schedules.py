"""Schedules with a fake task queue: what is handed out, what is issued again, what is ignored."""

import itertools
import json
import operator
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.errors import WorkerDied
from dataflow.protocol.datapoint import HOLE
from dataflow.protocol.kept_in_workers import KeptInWorker
from dataflow.protocol.state import Kept
from dataflow.runners.rebatching import WorkerBatch
from dataflow.runners.schedules import IndexRanges, ItemEnd, MapTasks, MixedSchedule, OnePass
from dataflow.transport.message_layout import NO_ROOM
from dataflow.transport.messages import Kind, Message
from dataflow.transport.task_queue import PAIRED


class PaperSlot:
    def __init__(self, number, datapoints, first):
        self.number, self.encoded, self.first = number, datapoints, operator.index(first)
        self.taken_by = None
        self.put, self.discarded = 1, False
        self.start, self.stop = 0, len(datapoints) if len(datapoints) > 1 else datapoints[0]
        self.given_to = None

    def may_have_begun(self, worker):
        return self.given_to == worker and self.taken_by is None

    def put_back(self, dead=None):
        if dead is None or self.taken_by == dead:
            self.taken_by = self.given_to = None
        self.put += 1

    def ask(self, number, start, stop):
        del self.slots[self.number]
        self.number, self.start, self.stop = number, start, stop
        self.slots[number] = self
        self.put_back()

    def discard(self):
        self.discarded = True

    def datapoints(self):
        return self.encoded


class FakeTaskQueue:
    """Has room for so many tasks."""

    def __init__(self, room=10**6):
        self.room = room
        self.slots = {}
        self.dropped = 0
        self.is_full = False
        self.last = {}

    def set_full(self, is_full):
        assert is_full is not self.is_full, "workers are told changes only"
        self.is_full = is_full

    def encode(self, dp, *, is_only_task):
        return dp if is_only_task or self.waiting < self.room else NO_ROOM

    @property
    def waiting(self):
        return sum(not queued.discarded for queued in self.slots.values())

    def put(self, number, first, encoded, *, is_only_task, hold=False):
        if self.waiting >= self.room and not is_only_task:
            return None
        self.slots[number] = PaperSlot(number, list(encoded), first)
        self.slots[number].slots = self.slots
        self.slots[number].put = 0 if hold else 1
        return self.slots[number]

    def take(self, number, worker):
        self.slots[number].taken_by = worker
        self.last[worker] = number
        return self.slots[number].encoded

    def last_taken(self, worker):
        return self.last.get(worker)

    def drop(self):
        self.dropped += 1

    def close(self):
        self.slots.clear()

    def pump(self):
        pass

    def let_take(self, num_workers):
        self.taking = num_workers


class Item:
    """A datapoint or result that can be referred to weakly."""


def schedule_of(num=2, buffer_size=4, *, ordered=True, room=10**6):
    return MapTasks(FakeTaskQueue(room), num, buffer_size, ordered=ordered, continues=False)


def ranges_of(task_queue, num_workers, ahead, *, longest=512, **options):
    return IndexRanges(task_queue, num_workers, ahead, longest=longest, **options)


def fill(schedule, datapoints):
    for dp in datapoints:
        assert schedule.has_room()
        schedule.add(dp)


def answer(schedule, number, worker=0, *results):
    datapoints = schedule.task_queue.take(number, worker)
    receive(schedule, number, *(results or datapoints), worker=worker)


def receive(schedule, number, *results, worker=0, kind=Kind.DATA, error=None, nbytes=0, pace=0.0):
    """A message of `worker` with results of the task `number` arrives."""
    schedule.receive(Message(kind, worker, len(results), nbytes, (), number, pace), list(results), error)


def take(schedule):
    """What the engine does when the consumer asks for more."""
    schedule.issue_tasks()
    return schedule.take()


def drained(schedule):
    found = []
    while (ready := take(schedule)) is not None:
        found.append(ready)
        schedule.handed_out()
    return found


def test_results_wait_for_those_before_them():
    schedule = schedule_of()
    fill(schedule, "abcd")
    answer(schedule, 2)
    answer(schedule, 1, 1)
    assert drained(schedule) == []
    answer(schedule, 0)
    assert drained(schedule) == [["a"], ["b"], ["c"]]


def test_without_order_they_do_not():
    schedule = schedule_of(ordered=False)
    fill(schedule, "abcd")
    answer(schedule, 2)
    answer(schedule, 0)
    assert drained(schedule) == [["c"], ["a"]]


def test_what_waits_for_its_turn_takes_up_room():
    schedule = schedule_of()
    fill(schedule, "abcd")
    for number in (1, 2, 3):
        answer(schedule, number)
    assert drained(schedule) == [] and not schedule.has_room()
    answer(schedule, 0)
    assert take(schedule) == ["a"] and not schedule.has_room()  # it is in the consumer's hands
    schedule.handed_out()
    assert schedule.has_room()


def test_what_was_handed_out_makes_room_once():
    schedule = schedule_of()
    schedule.handed_out()  # nothing, as before the first result
    fill(schedule, "abcd")
    answer(schedule, 0)
    assert take(schedule) == ["a"]
    for _ in range(2):  # as long as nothing else has come
        schedule.handed_out()
        assert schedule.under_way == 3


def test_a_second_result_for_a_task_is_ignored():
    schedule = schedule_of()
    fill(schedule, "ab")
    answer(schedule, 0, 0, "first")
    answer(schedule, 0, 1, "second")
    assert drained(schedule) == [["first"]]


def test_what_comes_for_a_pass_that_was_broken_off_is_ignored():
    schedule = schedule_of()
    fill(schedule, "abc")
    answer(schedule, 0)
    schedule.begin_pass(100)
    assert all(queued.discarded for queued in schedule.task_queue.slots.values()) and schedule.task_queue.dropped
    fill(schedule, "xy")
    answer(schedule, 1)
    answer(schedule, 3)
    assert drained(schedule) == [["x"]]
    assert schedule.task_queue.slots[3].first == 100


def test_holes_are_left_out_and_make_room():
    schedule = schedule_of(buffer_size=2)
    fill(schedule, "ab")
    answer(schedule, 0, 0, HOLE)
    assert take(schedule) == []
    schedule.handed_out()
    assert schedule.has_room()


def test_an_exception_comes_in_its_turn_after_the_results_of_its_task():
    schedule = schedule_of(1, 40)
    schedule.per_task = 3
    fill(schedule, "abcdef")
    answer(schedule, 1)
    receive(schedule, 0, "a")
    receive(schedule, 0, kind=Kind.TASK_FAILED, error=ValueError("b"))
    assert take(schedule) == ["a"]
    error = take(schedule)
    assert isinstance(error, ValueError) and not hasattr(error, "__notes__")  # the worker has said where


def test_a_result_that_cannot_be_decoded_is_named_by_the_index_of_its_datapoint():
    schedule = schedule_of(1, 40)
    schedule.per_task = 3
    schedule.begin_pass(10)
    fill(schedule, "abc")
    receive(schedule, 0, "a", error=ValueError("b"))
    assert take(schedule) == ["a"]
    assert take(schedule).__notes__ == ["it was made of the datapoint at index 11 of the input"]
    schedule.begin_pass(PAIRED)
    fill(schedule, [(17, "a"), (13, "b"), (15, "c")])
    receive(schedule, 1, "a", error=ValueError("b"))
    assert take(schedule) == ["a"]
    assert not hasattr(take(schedule), "__notes__")  # of pairs, the worker alone knows the index


def test_a_batch_stands_for_all_results_of_its_task():
    schedule = schedule_of(1, 40)
    schedule.per_task = 3
    fill(schedule, "abcdef")
    receive(schedule, 0, ["abc"], kind=Kind.BATCH)
    answer(schedule, 1)
    batch, singles = drained(schedule)
    assert [type(batch[0]), batch[0]] == [WorkerBatch, [["abc"]]] and singles == ["d", "e", "f"]
    assert schedule.under_way == 0


def test_results_may_come_in_parts():
    schedule = schedule_of(1, 40)
    schedule.per_task = 3
    fill(schedule, "abc")
    answer(schedule, 0, 0, "a")
    receive(schedule, 0, "b")
    assert drained(schedule) == []
    receive(schedule, 0, "c")
    assert drained(schedule) == [["a", "b", "c"]]


@pytest.mark.parametrize("ordered", [True, False])
def test_what_has_come_of_a_late_task_is_taken_out_once(ordered):
    schedule = schedule_of(2, 40, ordered=ordered)
    schedule.per_task = 3
    fill(schedule, "abcdef")
    schedule.task_queue.take(0, 0)
    schedule.task_queue.take(1, 1)
    receive(schedule, 1, "d", worker=1)
    assert schedule.take_unfinished() == ([] if ordered else ["d"])
    receive(schedule, 0, "a", HOLE)
    assert schedule.take_unfinished() == ["a"] and schedule.take_unfinished() == [] and schedule.has_dropped
    schedule.replaced(0)  # the task is done again, whole
    receive(schedule, 0, "a", HOLE, "c")
    receive(schedule, 1, "e", "f", worker=1)
    assert drained(schedule) == [["c"], ["d", "e", "f"] if ordered else ["e", "f"]]
    assert schedule.under_way == 0


def test_what_has_come_of_a_late_task_in_which_a_worker_has_ended_is_taken_out_once():
    schedule = one_task(5)
    receive(schedule, 0, 0, 1)
    dies(schedule, 0, 3)
    (number,) = numbers_asked(schedule)
    assert schedule.take_unfinished() == [0, 1]
    answer(schedule, number, 0, 2)
    assert schedule.take_unfinished() == [2]
    (number,) = numbers_asked(schedule)
    dies(schedule, number, 0, error=(error := WorkerDied("3 ended its worker twice")))
    assert drained(schedule) == [[], error]


def test_a_batch_of_a_task_of_which_single_datapoints_were_taken_out_is_split():
    schedule = schedule_of(1, 40)
    schedule.per_task = 3
    fill(schedule, "abc")
    answer(schedule, 0, 0, ["a"])
    assert schedule.take_unfinished() == [["a"]]
    schedule.replaced(0)
    receive(schedule, 0, [["a", "b", "c"]], kind=Kind.BATCH)
    assert drained(schedule) == [[["b"], ["c"]]]


def test_what_a_dead_worker_had_taken_and_what_no_worker_has_is_put_back():
    schedule = schedule_of(2, 8)
    fill(schedule, "abcd")
    schedule.task_queue.take(0, 0)
    schedule.task_queue.take(1, 1)
    schedule.replaced(0)
    assert [schedule.task_queue.slots[k].put for k in range(4)] == [2, 1, 2, 2]


def test_a_worker_that_takes_a_task_while_it_is_put_back_for_a_dead_one_keeps_it():
    schedule = schedule_of()
    fill(schedule, "a")
    queued = schedule.task_queue.slots[0]
    put_back = queued.put_back

    def taken_before(dead=None):
        queued.taken_by = 1
        put_back(dead)

    queued.put_back = taken_before
    schedule.replaced(0)
    assert (queued.taken_by, queued.put) == (1, 2)


def test_a_worker_that_is_not_replaced_dies_of_its_last_task():
    schedule = schedule_of(2, 8)
    fill(schedule, "abcd")
    for number in (0, 2):
        schedule.task_queue.take(number, 0)
    death = WorkerDied("it died")
    assert schedule.lost(0, death)
    assert schedule.task_queue.slots[0].put == 2  # it may have been done, but its result has not left the worker
    for number in (0, 1):
        answer(schedule, number, 1)
    assert drained(schedule) == [["a"], ["b"], [], death]


def test_nobody_waits_for_a_task_when_nobody_is_left_to_do_it():
    schedule = schedule_of(2, 8)
    fill(schedule, "abcd")
    schedule.task_queue.take(0, 0)
    schedule.task_queue.take(1, 1)
    assert schedule.lost(1, WorkerDied("1"))
    assert schedule.lost(0, WorkerDied("0"))  # in its turn, at once
    assert [type(found) for found in drained(schedule)[1:]] == [WorkerDied, list, WorkerDied]


def test_a_worker_that_had_nothing_is_no_tasks_death():
    schedule = schedule_of()
    fill(schedule, "a")
    assert not schedule.lost(0, WorkerDied("idle"))


def test_a_task_holds_five_to_twenty_milliseconds_of_work():
    schedule = schedule_of(2, 400)
    sizes = []
    for pace in (1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 2e-5, 4e-4, 2e-4, 1e-2):
        receive(schedule, 0, pace=pace)
        sizes.append(schedule.per_task)
    assert sizes == [2, 4, 8, 16, 32, 64, 100, 100, 100, 50, 50, 2]


def test_a_task_holds_six_mebibytes_of_results():
    schedule = schedule_of(2, 400)
    sizes = []
    for nbytes in (0, 10, 1 << 18, 1 << 18, 1 << 18, 1 << 20, 1, 1 << 30):
        receive(schedule, 0, "result", nbytes=nbytes, pace=1e-6)
        sizes.append(schedule.per_task)
    assert sizes == [2, 4, 8, 16, 24, 6, 6, 1]  # one large datapoint among small ones counts for a while
    for _ in range(300):
        receive(schedule, 0, "result", nbytes=1)
    receive(schedule, 0, pace=1e-6)
    assert schedule.per_task == 2


@pytest.mark.parametrize(
    ("buffer_size", "longest", "per_task"),
    [(200, 41, 40), (200, 40, 40), (200, 39, 34), (200, 50, 50), (7, 3, 3), (1, 1, 1)],
)
def test_long_tasks_are_of_the_size_of_which_a_number_fills_the_buffer(buffer_size, longest, per_task):
    schedule = schedule_of(1, buffer_size)
    nbytes = schedule.max_bytes_per_task // longest
    for _ in range(10):
        receive(schedule, 0, "result", nbytes=nbytes, pace=1e-6)
    assert schedule.per_task == per_task


def test_a_long_task_that_is_handed_out_leaves_the_room_for_another():
    schedule = schedule_of(2, 200)
    for _ in range(10):
        receive(schedule, -1, "result", nbytes=schedule.max_bytes_per_task // 41, pace=1e-6)
    for _ in range(5):
        schedule.add_encoded([*range(schedule.room_in_task())])
    assert not schedule.has_room()
    for number in range(20):
        answer(schedule, number)
        assert len(take(schedule)) == 40 and schedule.room_in_task() == 1 and not schedule.has_room()
        schedule.handed_out()
        assert schedule.room_in_task() == 40
        schedule.add_encoded([*range(40)])


def test_a_full_task_queue_is_tried_again_when_results_have_come():
    schedule = schedule_of(1, 8, room=1)
    fill(schedule, "a")
    schedule.add("b")
    assert not schedule.has_room()  # one is held that finds no place
    answer(schedule, 0)
    assert drained(schedule) == [["a"]]
    assert schedule.has_room() and list(schedule.task_queue.slots) == [0, 1]


@settings(max_examples=40)
@given(st.data(), st.integers(1, 3), st.integers(1, 12), st.booleans(), st.integers(1, 5))
def test_whatever_happens_everything_is_handed_out_once(data, num, buffer_size, ordered, room):
    schedule = schedule_of(num, buffer_size, ordered=ordered, room=room)
    source, found, taken = iter(range(12)), [], {}
    for _ in range(150):
        if schedule.exhausted:
            break
        while schedule.has_room() and (dp := next(source, None)) is not None:
            schedule.add(dp)
        schedule.pause()
        if source.__length_hint__() == 0:
            schedule.end()
        free = [
            n for n, queued in schedule.task_queue.slots.items() if queued.taken_by is None and not queued.discarded
        ]
        worker = data.draw(st.integers(0, num - 1))
        what = data.draw(st.sampled_from(["take", "answer", "answer", "die", "hand out"]))
        if what == "take" and free and worker not in taken:
            taken[worker] = free[0]
            schedule.task_queue.take(free[0], worker)
        elif what == "answer" and worker in taken:
            answer(schedule, taken.pop(worker), worker)
        elif what == "die":
            taken.pop(worker, None)
            schedule.replaced(worker)
        elif what == "hand out":
            found += itertools.chain.from_iterable(drained(schedule))
    found += itertools.chain.from_iterable(drained(schedule))
    assert found == list(range(len(found))) if ordered else len(set(found)) == len(found)
    assert not schedule.exhausted or sorted(found) == list(range(12))


def test_a_task_of_which_two_workers_have_sent_results_has_those_of_the_one_that_sent_most():
    schedule = schedule_of(2, 40)
    schedule.per_task = 3
    fill(schedule, "abc")
    receive(schedule, 0, "a", "b")
    receive(schedule, 0, "z", worker=1)
    assert schedule.take_unfinished() == ["a", "b"]


def test_the_only_worker_left_dies_of_its_first_task_with_what_it_has_sent():
    schedule = schedule_of(1, 40)
    schedule.per_task = 3
    fill(schedule, "abcdef")
    for number in (0, 1):
        schedule.task_queue.take(number, 0)
    receive(schedule, 0, "a")
    death = WorkerDied("it died")
    assert schedule.lost(0, death)
    assert drained(schedule) == [["a"], death]


def test_of_a_worker_that_dies_of_its_last_task_the_results_of_another_are_not_kept():
    schedule = schedule_of(3, 40)
    schedule.per_task = 3
    fill(schedule, "abcdef")
    for number in (0, 1):
        schedule.task_queue.take(number, 0)
    receive(schedule, 0, "a")
    death = WorkerDied("it died")
    assert schedule.lost(0, death)
    answer(schedule, 0, 1)
    assert drained(schedule) == [["a", "b", "c"], [], death]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("before", ["missing", "done", "handed out"])
def test_a_death_is_raised_in_its_turn_unless_a_task_before_it_cannot_be_done(before, ordered):
    schedule = schedule_of(2, 8, ordered=ordered)
    fill(schedule, "ab")
    assert not schedule.lost(0, WorkerDied("idle"))
    if before != "missing":
        answer(schedule, 0, 1)
    if before == "handed out":
        assert take(schedule) == ["a"]
    schedule.task_queue.take(1, 1)
    assert schedule.lost(1, WorkerDied("busy")) is (before != "missing" or not ordered)


def test_of_workers_only_those_that_are_to_take_tasks_count():
    schedule = schedule_of(4, 16)
    receive(schedule, 0, pace=1e-6)
    receive(schedule, 0, pace=1e-6)
    assert schedule.per_task == 2
    schedule.set_workers(1, 5)
    assert (schedule.num_taking, schedule.task_queue.taking) == (1, 1)
    for per_task in (4, 8, 8):
        receive(schedule, 0, pace=1e-6)
        assert schedule.per_task == per_task
    schedule.set_workers(4, 5)
    assert schedule.per_task == 2
    for worker in range(4):  # of five
        schedule.task_queue.slots.clear()
        assert not schedule.lost(worker, WorkerDied("idle"))
    fill(schedule, "abcd")
    for number in (0, 1):
        schedule.task_queue.take(number, 4)
    assert schedule.lost(4, WorkerDied("last"))
    assert len(drained(schedule)) == 2  # its first task was the one


def test_a_map_continues_after_its_source_has_ended():
    schedule = MapTasks(FakeTaskQueue(), 2, 4, ordered=True, continues=True)
    assert schedule.continues and not schedule_of().continues
    schedule.end()
    assert schedule.all_issued is True and schedule.exhausted
    schedule.resume()
    assert schedule.all_issued is False and not schedule.exhausted


@pytest.mark.parametrize("holes", [True, False])
def test_holes_of_a_pass_are_handed_out_if_they_are_wanted(holes):
    schedule = schedule_of()
    schedule.begin_pass(0, holes=holes)
    fill(schedule, "a")
    answer(schedule, 0, 0, HOLE)
    assert drained(schedule) == [[HOLE] if holes else []] and schedule.has_dropped is not holes
    schedule.begin_pass(0)
    assert not schedule.keeps_holes


def test_what_is_discarded_is_forgotten():
    for schedule in (schedule_of(), OnePass(FakeTaskQueue())):
        schedule.begin_pass(5)
        schedule.discard()
        assert schedule.index == 0 and schedule.under_way == 0 and drained(schedule) == []


def test_there_is_room_for_what_is_left_of_a_task_and_of_the_buffer():
    schedule = schedule_of(1, 8)
    schedule.per_task = 3
    assert schedule.room_in_task() == 3
    schedule.add_encoded(["a"])
    assert (schedule.room_in_task(), schedule.under_way, ranges_issued(schedule)) == (2, 1, [])
    schedule.add_encoded(["b", "c"])
    assert schedule.task_queue.slots[0].encoded == ["a", "b", "c"]
    assert (schedule.room_in_task(), schedule.under_way) == (3, 3)
    schedule.add_encoded(["d", "e", "f", "g"])
    assert (schedule.room_in_task(), schedule.under_way) == (1, 7)
    schedule.add_encoded(["h"])
    assert schedule.room_in_task() == 1 and not schedule.has_room()


def test_a_task_is_issued_while_it_is_not_done():
    schedule = schedule_of()
    fill(schedule, "a")
    assert schedule.has_issued(0) and not schedule.has_issued(1)
    answer(schedule, 0)
    assert not schedule.has_issued(0)


def test_datapoints_of_workers_without_tasks_come_as_they_arrive_and_an_error_after_those_before_it():
    schedule = MixedSchedule()
    error = ValueError("x")
    for number, results, raised in ((0, "ab", None), (0, "c", error), (0, "", error)):
        receive(schedule, number, *results, error=raised)
    assert not schedule.has_issued(0) and not schedule.exhausted and schedule.take_unfinished() == []
    assert not schedule.lost(0, error)
    assert drained(schedule) == [["a", "b"], ["c"], error, error]
    receive(schedule, 0, "d")
    schedule.close()
    assert schedule.take() is None


class PickyQueue(FakeTaskQueue):
    """Encodes only text."""

    def encode(self, dp, *, is_only_task):
        if "bad" in dp:
            raise TypeError("it cannot be pickled")
        return super().encode(dp, is_only_task=is_only_task)


@pytest.mark.parametrize("paired", [False, True])
def test_a_datapoint_that_cannot_be_sent_is_named_by_its_index_and_takes_no_room(paired):
    schedule = MapTasks(PickyQueue(), 1, 40, ordered=True, continues=False, per_task=3)
    schedule.begin_pass(PAIRED if paired else 10)
    fill(schedule, [(7, "a"), (5, "b")] if paired else "ab")
    with pytest.raises(TypeError) as caught:
        schedule.add((12, "bad") if paired else "bad")
    (note,) = caught.value.__notes__
    assert note.startswith("the datapoint at index 12 of the input cannot be sent to a worker. Give out arrays")
    assert schedule.under_way == 2 and schedule.has_room()
    fill(schedule, [(6, "c")] if paired else "c")
    assert schedule.task_queue.slots[0].encoded == ([(7, "a"), (5, "b"), (6, "c")] if paired else ["a", "b", "c"])


def test_of_pairs_the_index_is_that_of_the_pair():
    schedule = MapTasks(FakeTaskQueue(), 1, 4, ordered=True, continues=False, per_task=2, length=10)
    schedule.begin_pass(PAIRED, holes=True)
    fill(schedule, [(17, "a"), (13, "b")])
    for position in (1, 0):
        item = dies(schedule, numbers_asked(schedule)[0], position)
        if position:
            answer(schedule, numbers_asked(schedule)[0], 0, "A")
    assert (item.in_pass, item.position, len(item.ends)) == (1, 3, 2)
    assert drained(schedule) == [["A", HOLE]]
    fill(schedule, [(13, "b"), (12, "c")])
    (number,) = numbers_asked(schedule)
    assert of_task(number, schedule)[1] - of_task(number, schedule)[0] == 1  # what is left without it
    receive(schedule, number, error=(error := ValueError("cannot be decoded")))
    assert drained(schedule)[-1] is error and not hasattr(error, "__notes__")  # an index of the flow would mislead


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_short_task_waits_only_while_each_worker_has_a_long_one(num_workers):
    schedule = schedule_of(num_workers, 16)
    schedule.per_task = 4
    schedule.add_encoded(["a"])
    schedule.pause()
    schedule.add_encoded([*"bcde"])
    schedule.add_encoded([*"fg"])
    answer(schedule, 0)
    assert drained(schedule) == [["a"]]
    issued = [queued.encoded for queued in schedule.task_queue.slots.values()]
    if num_workers == 2:  # one of them has nothing to do
        assert issued == [["a"], [*"bcde"], [*"fg"]]
    else:
        assert issued == [["a"], [*"bcde"]]
        schedule.add_encoded([*"hi"])
        assert schedule.task_queue.slots[2].encoded == [*"fghi"]


def test_a_short_task_is_issued_once_the_long_one_is_done():
    schedule = schedule_of(1, 8)
    schedule.per_task = 4
    schedule.add_encoded([*"abcd"])
    schedule.add_encoded(["e"])
    schedule.pause()
    assert list(schedule.task_queue.slots) == [0] and not schedule.is_idle
    answer(schedule, 0)
    assert take(schedule) == [*"abcd"] and schedule.task_queue.slots[1].encoded == ["e"]


def test_what_was_collected_is_issued_if_there_is_no_room_for_the_next():
    schedule = schedule_of(1, 40, room=0)
    schedule.per_task = 3
    fill(schedule, "a")
    assert not schedule.task_queue.slots
    schedule.add("b")
    assert schedule.task_queue.slots[0].encoded == ["a"] and not schedule.has_room()


class CrowdedQueue(FakeTaskQueue):
    """Has room for the bytes of any datapoint, and for so many tasks."""

    def encode(self, dp, *, is_only_task):
        return dp


def test_what_was_collected_is_kept_until_there_is_room_for_the_task():
    schedule = MapTasks(CrowdedQueue(room=1), 1, 40, ordered=True, continues=False, per_task=2)
    fill(schedule, "abcd")
    assert list(schedule.task_queue.slots) == [0]
    answer(schedule, 0)
    assert drained(schedule) == [["a", "b"]] and schedule.task_queue.slots[1].encoded == ["c", "d"]
    ranges = ranges_of(CrowdedQueue(room=1), 1, 8, grain=1, ordered=True)
    ranges.begin_pass(0, 2)
    ranges.issue_tasks()
    assert ranges_issued(ranges) == [(0, 1)] and ranges.under_way == 1 and not ranges.all_issued


@pytest.mark.parametrize("ordered", [True, False])
def test_results_of_ranges_wait_for_those_before_them_if_they_are_ordered(ordered):
    schedule = ranges_of(FakeTaskQueue(), 1, 8, grain=1, ordered=ordered)
    schedule.begin_pass(0, 2)
    schedule.issue_tasks()
    answer(schedule, 1, 0, "b")
    assert drained(schedule) == ([] if ordered else [["b"]])


def test_a_datapoint_that_finds_no_room_is_issued_alone_once_nothing_else_is_under_way():
    schedule = schedule_of(1, 8, room=0)
    fill(schedule, "a")
    schedule.add("b")
    answer(schedule, 0)
    assert take(schedule) == ["a"] and list(schedule.task_queue.slots) == [0]  # "a" is in the consumer's hands
    schedule.handed_out()
    take(schedule)
    assert list(schedule.issued) == [1] and schedule.has_room() and schedule.under_way == 1


@pytest.mark.parametrize("room", [1, 10])
def test_a_schedule_that_is_closed_keeps_nothing_alive_and_ignores_what_comes(room):
    schedule = MapTasks(FakeTaskQueue(room), 1, 40, ordered=False, continues=False, per_task=2)
    items = [Item() for _ in range(7)]
    fill(schedule, items[:2])
    receive(schedule, 0, *items[2:4])
    fill(schedule, items[4:6])
    schedule.add(items[6])  # collected, or without room
    receive(schedule, 1, Item())
    kept = [weakref.ref(item) for item in items]
    schedule.close()
    del items
    assert not any(item() for item in kept)
    receive(schedule, 1, "a", "b")
    assert not schedule.has_issued(1) and schedule.take() is None and schedule.take_unfinished() == []


# -- spans -------------------------------------------------------------------------------------------------------------


def ranges_issued(schedule):
    return [(queued.first, queued.encoded[0]) for queued in schedule.task_queue.slots.values()]


def test_spans_cover_the_pass_and_no_more_than_the_bound():
    schedule = ranges_of(FakeTaskQueue(), 2, 3, grain=1, ordered=True)
    schedule.begin_pass(10, 8)
    assert take(schedule) is None
    assert ranges_issued(schedule) == [(10 + k, 1) for k in range(6)]
    for number in range(6):
        receive(schedule, number, number)
        assert take(schedule) == [number]
        schedule.handed_out()
    schedule.refill()
    assert ranges_issued(schedule)[-2:] == [(16, 1), (17, 1)]
    assert schedule.all_issued and not schedule.exhausted


def test_workers_are_told_that_there_are_no_tasks_until_results_are_taken():
    schedule = ranges_of(FakeTaskQueue(), 1, 4, grain=1, ordered=True)
    schedule.begin_pass(0, 12)
    take(schedule)
    assert schedule.task_queue.is_full and 0 < len(schedule.issued) < 12
    while not schedule.exhausted:
        for number in list(schedule.issued):
            answer(schedule, number, 0, *range(schedule.issued[number].count))
        take(schedule)
        schedule.handed_out()
    assert not schedule.task_queue.is_full  # the pass is over: there is no work

    schedule = schedule_of(1, buffer_size=2)
    schedule.begin_pass(0)
    take(schedule)
    assert not schedule.task_queue.is_full  # the source is what workers wait for
    fill(schedule, [1, 2])
    take(schedule)
    assert schedule.task_queue.is_full
    schedule.end()
    take(schedule)
    assert not schedule.task_queue.is_full


def test_spans_end_where_a_grain_ends():
    schedule = ranges_of(FakeTaskQueue(), 1, None, grain=4, ordered=True)
    schedule.per_task = 6
    schedule.begin_pass(0, 30)
    schedule.refill()
    assert ranges_issued(schedule) == [(0, 8), (8, 8), (16, 8), (24, 6)]
    schedule = ranges_of(FakeTaskQueue(), 1, None, grain=5, ordered=True)
    schedule.per_task = 6
    schedule.begin_pass(0, 23)
    schedule.refill()
    assert ranges_issued(schedule) == [(0, 10), (10, 10), (20, 3)]


def test_an_empty_span_is_exhausted_at_once():
    schedule = ranges_of(FakeTaskQueue(), 1, None, grain=1, ordered=True)
    schedule.begin_pass(5, 0)
    assert take(schedule) is None and schedule.exhausted


def test_with_a_limit_in_bytes_as_much_is_under_way_as_recent_datapoints_allow():
    schedule = ranges_of(FakeTaskQueue(), 2, None, grain=1, ordered=True, bytes_per_worker=100)
    assert schedule.ahead() == 1
    for nbytes, ahead in ((10.0, 10), (1000.0, 1), (1.0, 50)):
        schedule.bytes_each = nbytes
        assert schedule.ahead() == ahead
    schedule.per_task = 100
    schedule.bytes_each = 0.1
    assert schedule.ahead() == 300
    schedule = ranges_of(FakeTaskQueue(), 2, 4, grain=1, ordered=True, bytes_per_worker=100)
    schedule.bytes_each = 10.0
    assert schedule.ahead() == 4
    receive(schedule, 0, *range(4), nbytes=200)
    assert schedule.ahead() == 2


@pytest.mark.parametrize(
    ("num", "least", "count", "lengths"),
    [
        (2, 8, 20, [8, 6, 3, 2, 1]),
        (2, 8, 21, [8, 7, 3, 2, 1]),
        (4, 10, 17, [5, 3, 3, 3, 3]),  # but not shorter than a quarter
        (2, 2, 5, [2, 2, 1]),
        (4, 2, 5, [2, 1, 1, 1]),
    ],
)
def test_towards_the_end_of_a_pass_ranges_become_shorter_so_that_all_workers_have_some(num, least, count, lengths):
    schedule = ranges_of(FakeTaskQueue(), num, None, grain=1, ordered=True, least=least)
    schedule.begin_pass(0, count)
    schedule.refill()
    firsts = itertools.accumulate(lengths, initial=0)
    assert ranges_issued(schedule) == list(zip(firsts, lengths, strict=False))


def test_ranges_of_no_least_length_are_not_shorter_towards_the_end():
    schedule = ranges_of(FakeTaskQueue(), 2, None, grain=1, ordered=True)
    schedule.per_task = 6
    schedule.begin_pass(0, 20)
    schedule.refill()
    assert ranges_issued(schedule) == [(0, 6), (6, 6), (12, 6), (18, 2)]


def test_a_range_that_begins_inside_of_a_grain_ends_where_one_ends():
    schedule = ranges_of(FakeTaskQueue(), 1, None, grain=4, ordered=True)
    schedule.per_task = 6
    schedule.begin_pass(3, 30)
    schedule.refill()
    assert ranges_issued(schedule) == [(3, 9), (12, 8), (20, 8), (28, 5)]


@pytest.mark.parametrize(("ahead", "longest"), [(1, 1), (7, 3), (None, 1 << 7)])
def test_a_range_is_half_of_what_may_be_under_way_at_most(ahead, longest):
    schedule = ranges_of(FakeTaskQueue(), 1, ahead, grain=1, ordered=True)
    for _ in range(7):
        receive(schedule, 0, pace=1e-6)
    assert schedule.per_task == longest


@pytest.mark.parametrize(("least", "longest"), [(1, 100), (99, 100), (101, 101), (4096, 4096), (5000, 4096)])
def test_a_range_is_as_long_as_the_links_allow_or_as_a_node_asks_for(least, longest):
    schedule = ranges_of(FakeTaskQueue(), 1, None, longest=100, grain=1, ordered=True, least=least)
    for _ in range(13):
        receive(schedule, 0, pace=1e-7)
    assert schedule.per_task == longest


def test_no_range_is_issued_without_room_even_if_a_worker_has_only_one():
    schedule = ranges_of(FakeTaskQueue(), 2, 1, grain=1, ordered=True)
    schedule.begin_pass(0, 10)
    schedule.refill()
    assert ranges_issued(schedule) == [(0, 1), (1, 1)]


def test_a_queue_without_room_gets_one_range_at_a_time():
    schedule = ranges_of(FakeTaskQueue(room=0), 2, None, grain=1, ordered=True)
    schedule.begin_pass(0, 10)
    schedule.refill()
    assert ranges_issued(schedule) == [(0, 1)] and schedule.under_way == 1


def test_positions_that_were_picked_are_the_task():
    schedule = ranges_of(FakeTaskQueue(), 1, 8, grain=1, ordered=True)
    schedule.per_task = 2
    schedule.begin_pass(0, 4, np.array([17, 13, 19, 15]))
    schedule.refill()
    assert [slot.encoded[0].tolist() for slot in schedule.task_queue.slots.values()] == [[17, 13], [19, 15]]


def test_an_endless_pass_is_never_all_issued_and_one_that_is_discarded_is():
    schedule = ranges_of(FakeTaskQueue(), 1, 8, grain=1, ordered=True)
    assert schedule.all_issued
    schedule.begin_pass(0, None)
    schedule.refill()
    assert schedule.under_way == 8 and not schedule.all_issued and not schedule.keeps_holes
    schedule.discard()
    assert schedule.index == 0 and schedule.all_issued


def test_a_pause_issues_a_short_task_if_workers_are_short_of_tasks():
    schedule = schedule_of(1, 40)
    schedule.per_task = 2
    fill(schedule, "a")
    schedule.pause()
    fill(schedule, "b")
    schedule.pause()
    fill(schedule, "c")
    schedule.pause()
    schedule.issue_tasks()
    assert [slot.encoded for slot in schedule.task_queue.slots.values()] == [["a"], ["b"]]
    schedule.end()
    schedule.issue_tasks()
    assert schedule.task_queue.slots[2].encoded == ["c"]
    fixed = MapTasks(FakeTaskQueue(), 1, 40, ordered=True, continues=False, per_task=2)
    fill(fixed, "a")
    fixed.pause()
    assert not fixed.task_queue.slots


@pytest.mark.parametrize("per_task", [1, 3])
def test_tasks_of_a_fixed_length_stay_as_long_as_they_are_however_fast_they_are_done(per_task):
    schedule = MapTasks(FakeTaskQueue(), 1, 40, ordered=True, continues=False, per_task=per_task)
    for pace in (1e-6, 1e-6, 1.0):
        receive(schedule, 0, pace=pace)
        assert schedule.per_task == per_task
    schedule.set_workers(1, 1)
    assert schedule.per_task == per_task


@pytest.mark.parametrize("buffer_size", [3, 7])
def test_a_buffer_of_fewer_than_two_datapoints_for_each_task_has_tasks_of_one(buffer_size):
    schedule = schedule_of(2, buffer_size)
    receive(schedule, 0, pace=1e-6)
    assert schedule.per_task == 1
    fill(schedule, "a")
    assert schedule.task_queue.slots[0].first == 0 and not schedule.has_dropped


def test_tasks_of_five_milliseconds_stay_as_they_are():
    schedule = schedule_of(1, 40)
    receive(schedule, 0, pace=5e-3)
    assert schedule.per_task == 1


# -- whole passes ------------------------------------------------------------------------------------------------------


def test_a_pass_is_handed_out_as_it_comes_and_goes_on_after_a_death():
    schedule = OnePass(FakeTaskQueue())
    schedule.begin_pass(7)
    assert ranges_issued(schedule) == [(7, (0, "", [], False, False, False))]
    receive(schedule, 0, "a", "b")
    assert drained(schedule) == [["a", "b"]]
    schedule.task_queue.take(0, 0)
    schedule.replaced(0)
    assert schedule.task_queue.slots[1].put == 2
    receive(schedule, 1, "a")
    receive(schedule, 1, "b", "c")
    receive(schedule, 1, kind=Kind.PASS_ENDED)
    assert drained(schedule) == [["c"]] and schedule.exhausted


def test_what_is_left_of_a_pass_that_was_broken_off_is_ignored():
    schedule = OnePass(FakeTaskQueue())
    schedule.begin_pass(0)
    receive(schedule, 0, "a")
    schedule.begin_pass(1)
    receive(schedule, 0, "b")
    receive(schedule, 0, kind=Kind.PASS_ENDED)
    assert drained(schedule) == [] and not schedule.exhausted
    receive(schedule, 1, kind=Kind.TASK_FAILED, error=KeyError("x"))
    (error,) = drained(schedule)
    assert isinstance(error, KeyError)
    with pytest.raises(KeyError):
        raise error


def test_passes_are_numbered_and_described_even_for_a_queue_without_room():
    schedule = OnePass(FakeTaskQueue(room=0))
    for p in range(3):
        schedule.begin_pass(p, "stream", has_left=p == 1, repeated=p == 2)
        assert schedule.task_queue.slots[p].encoded == [(p, "stream", [], False, p == 1, p == 2)]
    assert not schedule.lost(0, WorkerDied("no tasks of its own"))


def test_passes_are_numbered_on_after_those_of_the_schedule_before():
    numbers = itertools.count()
    first, second = OnePass(FakeTaskQueue(), numbers), OnePass(FakeTaskQueue(), numbers)
    for p in range(2):
        first.begin_pass(p)
    second.begin_pass(0)
    assert second.task_queue.slots[0].encoded[0][0] == 2


def test_what_nodes_keep_goes_with_the_pass_and_comes_back_at_its_end_only():
    nodes = [KeptInWorker(), KeptInWorker()]
    nodes[1].reported, nodes[1].is_due, nodes[1].here = {"n": 1}, True, Kept()
    schedule = OnePass(FakeTaskQueue())
    schedule.begin_pass(0, nodes=nodes)
    assert schedule.task_queue.slots[0].encoded == [(0, "", [{}, {"n": 1}], True, False, False)]
    receive(schedule, 0, "a")
    assert nodes[1].reported == {"n": 1} and nodes[1].is_due
    body = (json.dumps([{"m": 2}, {"n": 3}]).encode(),)
    schedule.receive(Message(Kind.PASS_ENDED, 0, 0, 0, body, 0), [], None)
    assert [node.reported for node in nodes] == [{"m": 2}, {"n": 3}] and not nodes[1].is_due
    assert nodes[1].here.ahead is nodes[1]  # what a copy has changed, the node here does not have
    schedule.begin_pass(1, nodes=nodes)
    receive(schedule, 1, kind=Kind.PASS_ENDED)
    assert [node.reported for node in nodes] == [{}, {}]


def test_what_a_successor_makes_again_is_skipped_datapoint_by_datapoint():
    schedule = OnePass(FakeTaskQueue())
    schedule.begin_pass(0)
    receive(schedule, 0, *"abcd")
    schedule.task_queue.take(0, 0)
    schedule.replaced(0)
    for dp in "abcde":
        receive(schedule, 1, dp)
    assert drained(schedule) == [["a", "b", "c", "d"], ["e"]]


def test_of_a_pass_the_datapoint_after_all_that_was_sent_is_the_one_in_which_its_worker_has_ended():
    schedule = OnePass(FakeTaskQueue())
    schedule.begin_pass(7)
    assert schedule.ended(0, ItemEnd("idle"), 1, sent_all=False) is None  # it has not taken the pass
    answer(schedule, 0, 0, "a", "b")
    assert schedule.ended(0, ItemEnd("unknown"), None, sent_all=False) is None
    assert schedule.ended(0, ItemEnd("known"), None, sent_all=True).position == 2
    assert schedule.ended(0, ItemEnd("said"), 4, sent_all=True).position == 4


# -- workers that end in a datapoint -----------------------------------------------------------------------------------


def of_task(number, schedule):
    queued = schedule.task_queue.slots[number]
    return queued.first + queued.start, queued.first + queued.stop


def one_task(count):
    schedule = MapTasks(FakeTaskQueue(), 1, count, ordered=True, continues=False, per_task=count, length=count)
    fill(schedule, range(count))
    schedule.end()
    schedule.task_queue.take(0, 0)
    return schedule


def dies(schedule, number, position=None, *, sent_all=False, error=None):
    """The worker has taken a part, and dies in it: its successor is asked for the next."""
    schedule.task_queue.take(number, 0)
    item = schedule.ended(0, ItemEnd("died"), position, sent_all=sent_all)
    if item is not None and len(item.ends) == 2:
        schedule.leave_out(item, error)
    schedule.replaced(0)
    return item


def numbers_asked(schedule):
    return list(schedule.issued)


def test_what_a_worker_may_have_died_of_is_tried_alone_and_left_out_at_the_second_death_that_is_known():
    schedule = one_task(5)
    receive(schedule, 0, 0)
    assert dies(schedule, 0) is None  # in 1, 2, 3 or 4
    for k in (1, 2):
        (number,) = numbers_asked(schedule)
        assert of_task(number, schedule) == (k, k + 1)
        if k == 1:
            answer(schedule, number, 0, k)
    for explained, times in ((1, 1), (0, 2)):
        (number,) = numbers_asked(schedule)
        item = dies(schedule, number)
        assert (item.position, item.in_pass, item.explained, len(item.ends)) == (2, 0, explained, times)
    for k in (3, 4):
        (number,) = numbers_asked(schedule)
        answer(schedule, number, 0, k)
    assert drained(schedule) == [[0, 1, 3, 4]] and schedule.exhausted


def test_two_workers_that_are_killed_from_outside_are_held_against_no_datapoint():
    schedule = one_task(5)
    assert dies(schedule, 0) is None  # in any of them
    (number,) = numbers_asked(schedule)
    assert len(dies(schedule, number).ends) == 1  # the second happens to come while the suspects are tried
    for k in range(5):
        (number,) = numbers_asked(schedule)
        answer(schedule, number, 0, k)
    assert drained(schedule) == [[0, 1, 2, 3, 4]] and schedule.exhausted


def test_a_worker_elsewhere_may_have_died_in_a_later_task_that_it_was_given():
    schedule = MapTasks(FakeTaskQueue(), 2, 6, ordered=True, continues=False, per_task=2, length=6)
    fill(schedule, range(6))
    schedule.end()
    for number in (1, 2):
        schedule.task_queue.slots[number].given_to = 0
    assert dies(schedule, 0) is None  # in any of them; it was in 3
    while (number := numbers_asked(schedule)[0]) is not None:
        start, stop = of_task(number, schedule)
        assert stop == start + 1  # all are tried alone
        if start == 3:
            break
        answer(schedule, number, 0, start)
    item = dies(schedule, number)
    assert (item.position, item.explained, len(item.ends)) == (3, 1, 1)
    item = dies(schedule, max(numbers_asked(schedule)))
    assert (item.position, item.explained, len(item.ends)) == (3, 0, 2)
    item = dies(schedule, max(numbers_asked(schedule)))
    assert (item.explained, len(item.ends)) == (0, 1)  # the first end was that of the other
    while numbers_asked(schedule):
        number = numbers_asked(schedule)[0]
        answer(schedule, number, 0, *range(*of_task(number, schedule)))
    assert drained(schedule) == [[0, 1], [2], [4, 5]]


def test_an_end_that_is_explained_explains_no_end_of_another_worker():
    schedule = MapTasks(FakeTaskQueue(), 2, 4, ordered=True, continues=False, per_task=2, length=4)
    fill(schedule, range(4))
    for worker in range(2):
        schedule.task_queue.take(worker, worker)
        assert schedule.ended(worker, ItemEnd("died"), None, sent_all=False) is None
        schedule.replaced(worker)
    items = [dies(schedule, number) for number in numbers_asked(schedule)]
    assert [(item.position, item.explained, len(item.ends)) for item in items] == [(0, 1, 1), (2, 1, 1)]


def test_where_it_is_known_what_a_worker_made_the_rest_is_done_in_few_parts():
    schedule = one_task(9)
    assert dies(schedule, 0, 4).position == 4
    (number,) = numbers_asked(schedule)
    assert of_task(number, schedule) == (0, 4)
    answer(schedule, number, 0, 0, 1, 2, 3)
    (number,) = numbers_asked(schedule)
    assert of_task(number, schedule) == (4, 5)
    assert len(dies(schedule, number, 0).ends) == 2
    (number,) = numbers_asked(schedule)
    assert of_task(number, schedule) == (5, 9)
    answer(schedule, number, 0, 5, 6, 7, 8)
    assert drained(schedule) == [[0, 1, 2, 3, 5, 6, 7, 8]]


def test_what_a_worker_had_sent_of_the_parts_before_is_kept_at_each_end():
    schedule = one_task(9)
    receive(schedule, 0, 0, 1)
    assert dies(schedule, 0, 4).position == 4
    assert numbers_asked(schedule) == [1] and of_task(1, schedule) == (2, 4)
    answer(schedule, 1, 0, 2)
    item = schedule.ended(0, ItemEnd("died"), 1, sent_all=False)
    assert (item.position, item.ends) == (3, (ItemEnd("died"),))
    assert schedule.take_unfinished() == [0, 1, 2]
    schedule.replaced(0)
    assert numbers_asked(schedule) == [2] and of_task(2, schedule) == (3, 4)


def test_a_worker_that_is_not_replaced_ends_its_task_with_what_came_of_all_parts():
    schedule = one_task(5)
    receive(schedule, 0, 0)
    dies(schedule, 0, 3)
    answer(schedule, 1, 0, 1)
    schedule.ended(0, ItemEnd("died"), 0, sent_all=False)
    death = WorkerDied("it died")
    assert schedule.lost(0, death)
    assert drained(schedule) == [[0, 1], death]


def test_what_is_suspected_stays_suspected_after_an_unknown_end_elsewhere():
    schedule = one_task(6)
    assert dies(schedule, 0, 4).position == 4
    (number,) = numbers_asked(schedule)
    assert of_task(number, schedule) == (0, 4)
    assert dies(schedule, number) is None
    parts = []
    while numbers_asked(schedule):
        (number,) = numbers_asked(schedule)
        parts.append(of_task(number, schedule))
        answer(schedule, number, 0, *range(*parts[-1]))
    assert parts == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]


def test_of_two_that_are_left_either_may_be_the_one():
    schedule = one_task(2)
    assert dies(schedule, 0) is None
    assert of_task(numbers_asked(schedule)[0], schedule) == (0, 1)


def test_a_worker_at_the_end_of_its_part_has_ended_in_nothing():
    schedule = one_task(9)
    dies(schedule, 0, 4)
    (number,) = numbers_asked(schedule)
    assert dies(schedule, number, 4) is None


def test_both_ends_of_a_datapoint_are_told_and_without_a_length_it_is_in_the_first_pass():
    schedule = MapTasks(FakeTaskQueue(), 1, 3, ordered=True, continues=False, per_task=3)
    fill(schedule, "abc")
    schedule.task_queue.take(0, 0)
    assert schedule.ended(0, ItemEnd("first"), None, sent_all=False) is None
    schedule.replaced(0)
    schedule.task_queue.take(1, 0)
    assert schedule.ended(0, ItemEnd("second"), None, sent_all=False).ends == (ItemEnd("second"),)
    schedule.replaced(0)
    schedule.task_queue.take(2, 0)
    item = schedule.ended(0, ItemEnd("third"), None, sent_all=False)
    assert item.ends == (ItemEnd("second"), ItemEnd("third"))
    assert (item.in_pass, item.position, str(item)) == (0, 0, "datapoint 0 of pass 0")


def test_a_worker_has_ended_in_the_task_that_it_has_taken_last_whatever_its_number():
    schedule = MapTasks(FakeTaskQueue(), 1, 9, ordered=True, continues=False, per_task=3, length=9)
    fill(schedule, range(9))
    schedule.end()
    assert dies(schedule, 0, 1).position == 1
    part = next(number for number in numbers_asked(schedule) if number > 2)
    schedule.task_queue.take(part, 0)  # before the tasks that wait; it has made all of it, and has not sent it
    schedule.task_queue.take(1, 0)
    item = schedule.ended(0, ItemEnd("died"), 2, sent_all=False)
    assert (item.position, item.ends) == (5, (ItemEnd("died"),))
    schedule.replaced(0)
    assert len(numbers_asked(schedule)) == 3


def test_a_worker_whose_last_task_is_done_or_taken_by_another_has_ended_in_nothing_that_is_known():
    schedule = MapTasks(FakeTaskQueue(), 2, 6, ordered=True, continues=False, per_task=3, length=6)
    fill(schedule, range(6))
    schedule.end()
    schedule.task_queue.take(0, 0)
    schedule.task_queue.take(1, 0)
    schedule.task_queue.take(1, 1)  # both saw it as free
    assert schedule.ended(0, ItemEnd("died"), 0, sent_all=False) is None
    assert schedule.ended(1, ItemEnd("died"), 0, sent_all=False).position == 3


def test_of_the_tasks_of_the_last_worker_the_one_that_is_handed_out_first_ends_with_its_death():
    schedule = MapTasks(FakeTaskQueue(), 1, 6, ordered=True, continues=False, per_task=3, length=6)
    fill(schedule, range(6))
    schedule.end()
    dies(schedule, 0, 2)
    part = next(number for number in numbers_asked(schedule) if number > 1)
    schedule.task_queue.take(1, 0)
    answer(schedule, part, 0, 0)
    death = WorkerDied("died")
    assert schedule.lost(0, death)
    assert drained(schedule) == [[0], death]


def test_what_had_come_of_a_later_task_is_kept_if_its_worker_may_have_begun_it():
    schedule = MapTasks(FakeTaskQueue(), 2, 6, ordered=True, continues=False, per_task=3, length=6)
    fill(schedule, range(6))
    schedule.end()
    schedule.task_queue.slots[1].given_to = 0
    schedule.task_queue.take(0, 0)
    receive(schedule, 1, 3)
    assert schedule.ended(0, ItemEnd("died"), None, sent_all=False) is None
    schedule.replaced(0)
    assert sorted(of_task(number, schedule) for number in numbers_asked(schedule)) == [(0, 1), (4, 5)]


def test_of_picked_positions_the_one_that_was_picked_is_left_out():
    schedule = ranges_of(FakeTaskQueue(), 1, 8, grain=1, ordered=True, length=10)
    schedule.per_task = 4
    picked = np.array([17, 13, 19, 15])
    schedule.begin_pass(0, 4, picked, holes=True)
    schedule.issue_tasks()
    for _ in range(2):
        item = dies(schedule, numbers_asked(schedule)[0], 0)
    assert (item.in_pass, item.position) == (1, 7)
    schedule.begin_pass(0, 2, np.array([13, 17]), holes=True)
    schedule.issue_tasks()
    answer(schedule, numbers_asked(schedule)[0], 0, 13)
    assert drained(schedule) == [[13, HOLE]]


def test_a_worker_that_has_sent_all_has_ended_in_the_next_datapoint():
    schedule = one_task(3)
    receive(schedule, 0, 0)
    assert dies(schedule, 0, sent_all=True).position == 1


def test_a_result_in_a_part_that_cannot_be_decoded_comes_after_those_before_the_part():
    schedule = MapTasks(FakeTaskQueue(), 1, 9, ordered=True, continues=False, per_task=9, length=9)
    schedule.begin_pass(20)
    fill(schedule, "abcdefghi")
    answer(schedule, 0, 0, "a", "b")
    dies(schedule, 0, 6)
    (number,) = numbers_asked(schedule)
    receive(schedule, number, "c", error=(error := ValueError("d")))
    assert drained(schedule) == [["a", "b", "c"], error]
    assert error.__notes__ == ["it was made of the datapoint at index 23 of the input"]


@pytest.mark.parametrize("error", [None, WorkerDied("1 ended its worker twice")])
def test_tasks_with_and_without_what_is_left_out_are_given_out_once(error):
    schedule = ranges_of(FakeTaskQueue(), 1, 8, grain=1, ordered=True, length=6)
    schedule.per_task = 3
    schedule.begin_pass(0, 3, holes=True)
    schedule.issue_tasks()
    dies(schedule, numbers_asked(schedule)[0], 1)
    answer(schedule, numbers_asked(schedule)[0], 0, 0)
    dies(schedule, numbers_asked(schedule)[0], 0, error=error)
    schedule.begin_pass(0, 6, holes=True)
    schedule.issue_tasks()
    asked = numbers_asked(schedule)
    assert sorted(of_task(number, schedule) for number in asked) == [(0, 1), (3, 6)]
    assert [schedule.task_queue.slots[number].put for number in asked] == [1, 1]
    for number in asked:
        answer(schedule, number, 0, *range(*of_task(number, schedule)))
    while asked := numbers_asked(schedule):
        answer(schedule, asked[0], 0, *range(*of_task(asked[0], schedule)))
    assert drained(schedule) == ([[0, HOLE, 2], [3, 4, 5]] if error is None else [[0], error, [3, 4, 5]])


def test_results_of_an_earlier_try_are_ignored():
    schedule = one_task(3)
    dies(schedule, 0, 1)
    receive(schedule, 0, "late", "late", "late")
    stop = 0
    while stop < 3:
        (number,) = numbers_asked(schedule)
        start, stop = of_task(number, schedule)
        answer(schedule, number, 0, *range(start, stop))
    assert drained(schedule) == [[0, 1, 2]]


def test_a_worker_that_had_made_everything_has_ended_in_nothing():
    schedule = one_task(3)
    receive(schedule, 0, 0, 1)
    assert dies(schedule, 0, 1) is None  # the word is still that of a datapoint that has come
    (number,) = numbers_asked(schedule)
    assert of_task(number, schedule) == (2, 3)


def test_a_hole_is_kept_for_what_was_left_out_and_it_is_not_asked_for_again():
    schedule = ranges_of(FakeTaskQueue(), 1, 8, grain=1, ordered=True, length=4)
    schedule.per_task = 4
    for p in range(2):
        schedule.begin_pass(4, 4, holes=True)
        schedule.issue_tasks()
        (number,) = numbers_asked(schedule)
        if p == 0:
            for position in (2, 2):
                item = dies(schedule, number, position - of_task(number, schedule)[0] + 4)
                while of_task(number := numbers_asked(schedule)[0], schedule)[0] < 6 and position == 2:
                    answer(schedule, number, 0, *range(*of_task(number, schedule)))
            assert (item.position, item.in_pass) == (2, 1)
        while numbers_asked(schedule):
            (number,) = numbers_asked(schedule)
            schedule.task_queue.take(number, 0)
            start, stop = of_task(number, schedule)
            assert not start <= 6 < stop
            receive(schedule, number, *range(start, stop))
        assert drained(schedule) == [[4, 5, HOLE, 7]]


@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_in_place_of_a_datapoint_comes_after_what_is_before_it(ordered):
    schedule = MapTasks(FakeTaskQueue(), 1, 6, ordered=ordered, continues=False, per_task=3, length=6)
    fill(schedule, range(6))
    schedule.end()
    error = WorkerDied("4 ended its worker twice")
    schedule.task_queue.take(0, 0)  # and its results go with the worker
    for position in (1, 0):
        (*_, number) = [number for number in numbers_asked(schedule) if of_task(number, schedule)[0] >= 3]
        item = dies(schedule, number, position, error=error)
        if position:  # what is before it is done again
            (number,) = [number for number in numbers_asked(schedule) if of_task(number, schedule) == (3, 4)]
            answer(schedule, number, 0, 3)
    assert item.position == 4
    ready = [[3], error]
    if ordered:
        assert drained(schedule) == []  # it waits for its turn
        answer(schedule, 0, 0, 0, 1, 2)
        ready = [[0, 1, 2], *ready]
    assert drained(schedule) == ready


def test_an_index_at_which_an_error_came_is_not_asked_for_again():
    schedule = ranges_of(FakeTaskQueue(), 1, 8, grain=1, ordered=True, length=4)
    schedule.per_task = 4
    schedule.begin_pass(0, 4)
    schedule.issue_tasks()
    error = WorkerDied("0 ended its worker twice")
    for _ in range(2):
        dies(schedule, numbers_asked(schedule)[0], 0, error=error)
    schedule.begin_pass(0, 4)
    assert drained(schedule) == [[], error]


def test_of_a_pass_without_an_index_the_datapoint_is_known_and_cannot_be_left_out():
    schedule = OnePass(FakeTaskQueue())
    schedule.begin_pass(7)
    receive(schedule, 0, "a")
    assert dies(schedule, 0, 0) is None  # made again for another reason
    error = WorkerDied("3 ended its worker twice")
    first = dies(schedule, 1, 3, error=error)
    second = dies(schedule, 2, 3, error=error)
    assert (second.in_pass, second.position, len(first.ends), len(second.ends)) == (7, 3, 1, 2)
    assert second.number < 0
    assert of_task(3, schedule) == (7, 10)  # again, up to it
    receive(schedule, 3, "a", "b")
    assert dies(schedule, 3, 3) is None  # no more than these three were to be made
    receive(schedule, 4, "a", "b", "c")
    assert drained(schedule) == [["a"], ["b"], ["c"], error] and schedule.exhausted


def test_a_pass_that_is_shorter_when_it_is_made_again_ends_with_the_error_too():
    schedule = OnePass(FakeTaskQueue())
    schedule.begin_pass(0)
    error = WorkerDied("1 ended its worker twice")
    for number in range(2):
        dies(schedule, number, 1, error=error)
    receive(schedule, 2, kind=Kind.PASS_ENDED)
    assert drained(schedule) == [error] and schedule.exhausted


def test_of_a_pass_that_has_come_up_to_a_datapoint_nothing_is_made_again_before_its_error():
    schedule = OnePass(FakeTaskQueue())
    schedule.begin_pass(0)
    receive(schedule, 0, "a")
    error = WorkerDied("1 ended its worker twice")
    for number in range(2):
        dies(schedule, number, 1, error=error)
    assert drained(schedule) == [["a"], error] and schedule.exhausted
    schedule.begin_pass(1)
    receive(schedule, 2, "a", "b")
    receive(schedule, 2, kind=Kind.PASS_ENDED)
    assert drained(schedule) == [["a", "b"]] and schedule.exhausted
