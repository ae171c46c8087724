"""The books of tasks, against a tray of paper: what is handed out, what is asked for again, what is ignored."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.datapoint import HOLE
from dataflow.errors import WorkerDied
from dataflow.parallel.dispatch import Dispatch
from dataflow.parallel.spans import OnePass, Spans
from dataflow.parallel.tasks import END, Failed, Mark
from dataflow.transport.parcels import NO_ROOM


class PaperSlot:
    def __init__(self, number, datapoints, first):
        self.number, self.datapoints, self.first = number, datapoints, first
        self.taken_by = None
        self.put, self.discarded = 1, False

    def put_back(self):
        self.taken_by = None
        self.put += 1

    def discard(self):
        self.discarded = True


class PaperTray:
    """Has room for so many tasks."""

    def __init__(self, room=10**6):
        self.room = room
        self.slots = {}
        self.dropped = 0

    def encode(self, dp, *, alone):
        return dp if alone or self.waiting < self.room else NO_ROOM

    @property
    def waiting(self):
        return sum(not slot.discarded for slot in self.slots.values())

    def put(self, number, first, encoded, *, alone):
        if self.waiting >= self.room and not alone:
            return None
        self.slots[number] = PaperSlot(number, list(encoded), first)
        return self.slots[number]

    def take(self, number, worker):
        self.slots[number].taken_by = worker
        return self.slots[number].datapoints

    def drop(self):
        self.dropped += 1

    def pump(self):
        pass


def dispatch(num=2, buffer_size=4, *, ordered=True, room=10**6):
    return Dispatch(PaperTray(room), num, buffer_size, ordered=ordered, continues=False)


def fill(desk, datapoints):
    for dp in datapoints:
        assert desk.has_room()
        desk.give(dp)


def answer(desk, number, worker=0, *results):
    datapoints = desk.tray.take(number, worker)
    desk.heard(worker, [Mark(number, 0.0), *(results or datapoints)], None)


def drained(desk):
    found = []
    while (ready := desk.ready()) is not None:
        found.append(ready)
        desk.handed_out()
    return found


def test_results_wait_for_those_before_them():
    desk = dispatch()
    fill(desk, "abcd")
    answer(desk, 2)
    answer(desk, 1, 1)
    assert drained(desk) == []
    answer(desk, 0)
    assert drained(desk) == [["a"], ["b"], ["c"]]


def test_without_order_they_do_not():
    desk = dispatch(ordered=False)
    fill(desk, "abcd")
    answer(desk, 2)
    answer(desk, 0)
    assert drained(desk) == [["c"], ["a"]]


def test_what_waits_for_its_turn_takes_up_room():
    desk = dispatch()
    fill(desk, "abcd")
    for number in (1, 2, 3):
        answer(desk, number)
    assert drained(desk) == [] and not desk.has_room()
    answer(desk, 0)
    assert desk.ready() == ["a"] and not desk.has_room()  # it is in the consumer's hands
    desk.handed_out()
    assert desk.has_room()


def test_a_second_result_for_a_task_is_ignored():
    desk = dispatch()
    fill(desk, "ab")
    answer(desk, 0, 0, "first")
    answer(desk, 0, 1, "second")
    assert drained(desk) == [["first"]]


def test_what_comes_for_a_pass_that_was_broken_off_is_ignored():
    desk = dispatch()
    fill(desk, "abc")
    answer(desk, 0)
    desk.begin_pass(100)
    assert all(slot.discarded for slot in desk.tray.slots.values()) and desk.tray.dropped
    fill(desk, "xy")
    answer(desk, 1)
    answer(desk, 3)
    assert drained(desk) == [["x"]]
    assert desk.tray.slots[3].first == 100


def test_holes_are_left_out_and_make_room():
    desk = dispatch(buffer_size=2)
    fill(desk, "ab")
    answer(desk, 0, 0, HOLE)
    assert desk.ready() == []
    desk.handed_out()
    assert desk.has_room()


def test_an_exception_comes_in_its_turn_after_the_results_of_its_task():
    desk = dispatch(1, 40)
    desk.per_task = 3
    fill(desk, "abcdef")
    answer(desk, 1)
    desk.heard(0, [Mark(0, 0.0), "a", Failed(ValueError("b"), "a note", placed=True)], None)
    assert desk.ready() == ["a"]
    error = desk.ready()
    assert isinstance(error, ValueError) and error.__notes__ == ["a note"]


def test_results_may_come_in_parts():
    desk = dispatch(1, 40)
    desk.per_task = 3
    fill(desk, "abc")
    desk.tray.take(0, 0)
    desk.heard(0, [Mark(0, 0.0), "a"], None)
    desk.heard(0, ["b"], None)
    assert drained(desk) == []
    desk.heard(0, ["c"], None)
    assert drained(desk) == [["a", "b", "c"]]


def test_what_a_dead_worker_had_taken_and_what_nobody_has_is_put_back():
    desk = dispatch(2, 8)
    fill(desk, "abcd")
    desk.tray.take(0, 0)
    desk.tray.take(1, 1)
    desk.heard(0, [Mark(0, 0.0)], None)
    desk.replaced(0)
    assert [desk.tray.slots[k].put for k in range(4)] == [2, 1, 2, 2]


def test_a_worker_that_is_not_replaced_dies_of_its_last_task():
    desk = dispatch(2, 8)
    fill(desk, "abcd")
    for number in (0, 2):
        desk.tray.take(number, 0)
    death = WorkerDied("it died")
    assert desk.lost(0, death)
    assert desk.tray.slots[0].put == 2  # it may have been done, but its result has not left the worker
    for number in (0, 1):
        answer(desk, number, 1)
    assert drained(desk) == [["a"], ["b"], [], death]


def test_nobody_waits_for_a_task_when_nobody_is_left_to_do_it():
    desk = dispatch(2, 8)
    fill(desk, "abcd")
    desk.tray.take(0, 0)
    desk.tray.take(1, 1)
    assert desk.lost(1, WorkerDied("1"))
    assert desk.lost(0, WorkerDied("0"))  # in its turn, at once
    assert [type(found) for found in drained(desk)[1:]] == [WorkerDied, list, WorkerDied]


def test_a_worker_that_had_nothing_is_no_tasks_death():
    desk = dispatch()
    fill(desk, "a")
    assert not desk.lost(0, WorkerDied("idle"))


def test_a_task_holds_five_to_twenty_milliseconds_of_work():
    desk = dispatch(2, 400)
    sizes = []
    for pace in (1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 2e-5, 4e-4, 2e-4, 1e-2):
        desk.heard(0, [Mark(0, pace)], None)
        sizes.append(desk.per_task)
    assert sizes == [2, 4, 8, 16, 32, 64, 100, 100, 100, 50, 50, 2]


def test_a_task_holds_six_mebibytes_of_results():
    desk = dispatch(2, 400)
    sizes = []
    for nbytes in (0, 10, 1 << 18, 1 << 18, 1 << 18, 1 << 20, 1, 1 << 30):
        desk.heard(0, [Mark(0, 1e-6), "result"], None, nbytes)
        sizes.append(desk.per_task)
    assert sizes == [2, 4, 8, 16, 24, 6, 6, 1]  # one large datapoint among small ones counts for a while
    for _ in range(300):
        desk.heard(0, ["result"], None, 1)
    desk.heard(0, [Mark(0, 1e-6)], None)
    assert desk.per_task == 2


def test_a_full_tray_is_asked_again_when_results_have_come():
    desk = dispatch(1, 8, room=1)
    fill(desk, "a")
    desk.give("b")
    assert not desk.has_room()  # one is held that finds no place
    answer(desk, 0)
    assert drained(desk) == [["a"]]
    assert desk.has_room() and list(desk.tray.slots) == [0, 1]


@settings(max_examples=40)
@given(st.data(), st.integers(1, 3), st.integers(1, 12), st.booleans(), st.integers(1, 5))
def test_whatever_happens_everything_is_handed_out_once(data, num, buffer_size, ordered, room):
    desk = dispatch(num, buffer_size, ordered=ordered, room=room)
    source, found, taken = iter(range(12)), [], {}
    for _ in range(150):
        if desk.exhausted:
            break
        while desk.has_room() and (dp := next(source, None)) is not None:
            desk.give(dp)
        desk.pause()
        if source.__length_hint__() == 0:
            desk.end()
        free = [n for n, slot in desk.tray.slots.items() if slot.taken_by is None and not slot.discarded]
        worker = data.draw(st.integers(0, num - 1))
        what = data.draw(st.sampled_from(["take", "answer", "answer", "die", "hand out"]))
        if what == "take" and free and worker not in taken:
            taken[worker] = free[0]
            desk.tray.take(free[0], worker)
        elif what == "answer" and worker in taken:
            answer(desk, taken.pop(worker), worker)
        elif what == "die":
            taken.pop(worker, None)
            desk.replaced(worker)
        elif what == "hand out":
            found += itertools.chain.from_iterable(drained(desk))
    found += itertools.chain.from_iterable(drained(desk))
    assert found == list(range(len(found))) if ordered else len(set(found)) == len(found)
    assert not desk.exhausted or sorted(found) == list(range(12))


# -- spans -------------------------------------------------------------------------------------------------------------


def spans_asked(desk):
    return [(slot.first, slot.datapoints[0]) for slot in desk.tray.slots.values()]


def test_spans_cover_the_pass_and_no_more_than_the_bound():
    desk = Spans(PaperTray(), 2, 3, grain=1, ordered=True)
    desk.begin_pass(10, 8)
    assert desk.ready() is None
    assert spans_asked(desk) == [(10 + k, 1) for k in range(6)]
    for number in range(6):
        desk.heard(0, [Mark(number, 0.0), number], None)
        assert desk.ready() == [number]
        desk.handed_out()
    desk.refill()
    assert spans_asked(desk)[-2:] == [(16, 1), (17, 1)]
    assert desk.read_all and not desk.exhausted


def test_spans_end_where_a_grain_ends():
    desk = Spans(PaperTray(), 1, None, grain=4, ordered=True)
    desk.per_task = 6
    desk.begin_pass(0, 30)
    desk.refill()
    assert spans_asked(desk) == [(0, 8), (8, 8), (16, 8), (24, 6)]


def test_an_empty_span_is_exhausted_at_once():
    desk = Spans(PaperTray(), 1, None, grain=1, ordered=True)
    desk.begin_pass(5, 0)
    assert desk.ready() is None and desk.exhausted


# -- whole passes ------------------------------------------------------------------------------------------------------


def test_a_pass_is_handed_out_as_it_comes_and_goes_on_after_a_death():
    desk = OnePass(PaperTray())
    desk.begin_pass(7)
    assert spans_asked(desk) == [(7, 1)]
    desk.heard(0, [Mark(0, 0.0), "a", "b"], None)
    assert drained(desk) == [["a", "b"]]
    desk.tray.take(0, 0)
    desk.replaced(0)
    assert desk.tray.slots[0].put == 2
    desk.heard(0, [Mark(0, 0.0), "a"], None)
    desk.heard(0, ["b", "c", END], None)
    assert drained(desk) == [["c"]] and desk.exhausted


def test_what_is_left_of_a_pass_that_was_broken_off_is_ignored():
    desk = OnePass(PaperTray())
    desk.begin_pass(0)
    desk.heard(0, [Mark(0, 0.0), "a"], None)
    desk.begin_pass(1)
    desk.heard(0, ["b", END], None)
    assert drained(desk) == [] and not desk.exhausted
    desk.heard(0, [Mark(1, 0.0), Failed(KeyError("x"), "", placed=True)], None)
    (error,) = drained(desk)
    assert isinstance(error, KeyError)
    with pytest.raises(KeyError):
        raise error
