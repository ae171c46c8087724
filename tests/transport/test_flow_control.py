"""Credit: how far a worker may run ahead, by a table; and the same words seen from every process."""

import multiprocessing
import os
import pickle
import threading
import time
from dataclasses import dataclass
from multiprocessing.context import set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

import pytest

from dataflow.system.descriptors import passing_to_child, pipe
from dataflow.transport.current_item import position_in
from dataflow.transport.flow_control import Credit, Window
from dataflow.transport.worker_counters import WorkerActivity, totals_of
from tests.support.fakes import each_method
from tests.support.waits import LIMIT, wait_until

WINDOWS = [
    # window, made (datapoints, bytes), begun by the consumer, room?
    (Window(1), (0, 0), (0, 0), True),
    (Window(1), (1, 9), (0, 0), False),
    (Window(1), (1, 9), (1, 9), True),
    (Window(3), (2, 99), (0, 0), True),
    (Window(3), (3, 0), (0, 0), False),
    (Window(3), (7, 0), (4, 0), False),
    (Window(3), (7, 0), (5, 0), True),
    # with bytes: it goes on while either is left
    (Window(3, 100), (3, 99), (0, 0), True),
    (Window(3, 100), (2, 1000), (0, 0), True),
    (Window(3, 100), (3, 100), (0, 0), False),
    (Window(3, 100), (3, 1000), (1, 1), True),
    (Window(3, 100), (30, 99), (0, 0), True),
    # the consumer may be faster than the worker's own books
    (Window(1), (0, 0), (1, 9), True),
]


def make_quota(window, credit=None):
    return (credit or Credit(1, shared=False)).port(0).quota(window)


def has_room(quota, credit):
    """Whether it answers at once; otherwise it answers after `stop`, in its sleep."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataflow.transport.flow_control.time", SimpleNamespace(sleep=lambda seconds: credit.stop()))
        return quota.wait_for_room() is not None


@pytest.mark.parametrize(("window", "made", "begun", "expected"), WINDOWS)
def test_a_window_is_used_up_when_both_its_measures_are(window, made, begun, expected):
    credit = Credit(2, shared=False)
    quota = credit.port(1).quota(window)
    quota.spend(*made)
    credit.grant(1, *begun, 0)
    assert has_room(quota, credit) is expected


QUEUED = [
    # most queued, sent, received, room?
    (0, 1 << 40, 0, True),  # no such bound
    (100, 0, 0, True),
    (100, 99, 0, True),
    (100, 100, 0, False),
    (100, 500, 0, False),
    (100, 500, 401, True),
    (100, 500, 500, True),
    (1, 10, 10, True),  # one datapoint, however large, may always be under way
]


@pytest.mark.parametrize(("most", "sent", "received", "expected"), QUEUED)
def test_queued_bytes_are_bounded_whatever_is_left_of_the_window(most, sent, received, expected):
    credit = Credit(1, shared=False)
    quota = make_quota(Window(1000, 1 << 30, max_queued=most), credit)
    quota.queue(sent)
    credit.grant(0, 0, 0, received)
    assert has_room(quota, credit) is expected


@pytest.mark.parametrize(
    ("window", "count", "nbytes"),
    [
        (Window(1), 1, 0),
        (Window(2), 1, 0),
        (Window(50), 25, 0),
        (Window(50, 300), 25, 150),
        (Window(51, 301), 25, 150),
    ],
)
def test_a_message_is_half_of_the_window_at_most(window, count, nbytes):
    room = make_quota(window).wait_for_room()
    assert (room.count, room.nbytes) == (count, nbytes)


@pytest.mark.parametrize(
    ("made", "count", "nbytes"),
    [
        ((25, 0), 5, 150),
        ((29, 290), 1, 10),
        ((30, 0), 0, 150),
        ((40, 250), 0, 50),
        ((3, 300), 15, 0),
        ((3, 999), 15, 0),
    ],
)
def test_a_message_is_what_is_left_of_the_window_at_most(made, count, nbytes):
    quota = make_quota(Window(30, 300))
    quota.spend(*made)
    room = quota.wait_for_room()
    assert (room.count, room.nbytes) == (count, nbytes)


def test_a_message_is_no_longer_if_the_consumer_is_faster_than_the_workers_own_books():
    credit = Credit(1, shared=False)
    quota = make_quota(Window(1), credit)
    credit.grant(0, 1, 9, 0)
    assert quota.wait_for_room().count == 1


def test_credit_that_is_granted_in_parts_adds_up():
    credit = Credit(1, shared=False)
    quota = make_quota(Window(10, 100, max_queued=10), credit)
    quota.spend(10, 100)
    quota.queue(10)
    for part in ((1, 10, 1), (3, 30, 3)):
        credit.grant(0, *part)
        credit.done(0, 5)
    room = quota.wait_for_room()
    assert (room.count, room.nbytes, room.max_bytes) == (4, 40, 4) and quota.all_done()


def test_a_worker_that_replaces_another_continues_with_what_was_received_from_that_one(naps):
    credit = Credit(2, shared=False)
    first = credit.port(1).quota(window := Window(10, 100, max_queued=10))
    first.spend(3, 30)
    first.queue(3)
    assert first.wait_for_report_credit(1)
    credit.report_received(1)
    credit.grant(1, 2, 20, 2)
    credit.done(1, 2)
    assert not first.all_done()
    second = credit.port(1).quota(window)
    assert second.all_done()  # the third will not come
    second.spend(9, 90)
    second.queue(9)
    room = second.wait_for_room()
    assert (room.count, room.nbytes, room.max_bytes) == (1, 10, 1)
    assert second.wait_for_report_credit(1) and not naps
    naps.then = credit.stop
    assert not second.wait_for_report_credit(1)


def test_a_message_is_as_long_in_bytes_as_may_still_be_queued():
    credit = Credit(1, shared=False)
    quota = make_quota(Window(30, max_queued=100), credit)
    quota.queue(70)
    assert quota.wait_for_room().max_bytes == 30
    credit.grant(0, 1, 0, 50)
    assert quota.wait_for_room().max_bytes == 80


def test_a_message_is_never_much_longer_than_eight_mebibytes():
    for window in (Window(30), Window(30, max_queued=1 << 40)):
        assert make_quota(window).wait_for_room().max_bytes == 8 << 20


def test_every_worker_has_a_line_of_its_own():
    def room_of(worker):
        credit = Credit(3, shared=False)
        quotas = [credit.port(k).quota(Window(1)) for k in range(3)]
        for quota in quotas:
            quota.spend(1, 1)
        credit.grant(1, 1, 1, 0)
        return has_room(quotas[worker], credit)

    assert [room_of(k) for k in range(3)] == [False, True, False]


def test_nothing_is_left_when_the_consumer_is_done_with_what_every_worker_has_made():
    credit = Credit(2, shared=False)
    first, second = (credit.port(k).quota(Window(5)) for k in range(2))
    assert first.all_done()
    first.spend(2, 0)
    second.spend(1, 0)
    credit.grant(0, 2, 0, 0)
    assert not first.all_done()  # begun is not done
    credit.done(0, 2)
    assert not first.all_done()
    assert not second.all_done()
    credit.done(1, 1)
    assert first.all_done()
    assert second.all_done()


def test_datapoints_that_are_done_with_before_their_worker_has_counted_them_keep_nobody_waiting():
    """The flusher sends what stands in an unfinished message; its worker may then be silent for long."""
    credit = Credit(2, shared=False)
    first, second = (credit.port(k).quota(Window(5)) for k in range(2))
    second.spend(1, 0)
    credit.done(1, 3)
    assert first.all_done()


def test_what_a_worker_that_has_died_had_made_and_not_sent_keeps_nobody_waiting():
    credit = Credit(2, shared=False)
    dead, other = (credit.port(k).quota(Window(5)) for k in range(2))
    dead.spend(3, 0)
    credit.grant(0, 2, 0, 0)
    credit.died(0)
    assert not other.all_done(), "the consumer has two of them"
    credit.done(0, 2)
    assert other.all_done()


def test_an_unlimited_quota_never_waits():
    quota = make_quota(Window(1, max_queued=1)).unlimited()
    for _ in range(3):
        quota.spend(1000, 1 << 30)
        quota.queue(1 << 30)
        assert quota.wait_for_room() is not None
        assert quota.all_done()


def test_waiting_ends_with_credit():
    credit = Credit(1, shared=False)
    quota = credit.port(0).quota(Window(1))
    assert quota.wait_for_room().count == 1
    quota.spend(1, 0)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(quota.wait_for_room()))
    waiting.start()
    assert not answers
    credit.grant(0, 1, 0, 0)
    waiting.join(LIMIT)
    assert [room.count for room in answers] == [1]


def test_waiting_ends_when_all_are_stopped():
    credit = Credit(2, shared=False)
    quotas = [credit.port(k).quota(Window(1)) for k in range(2)]
    quotas[1].spend(1, 0)
    credit.stop()
    assert [quota.stopped for quota in quotas] == [True, True]
    assert [quota.wait_for_room() for quota in quotas] == [None, None]


def test_who_waits_for_credit_seldom_wakes_up(monkeypatch):
    credit = Credit(1, shared=False)
    quota = credit.port(0).quota(Window(1))
    quota.spend(1, 0)
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        if sum(naps) > 0.3:
            credit.grant(0, 1, 0, 0)

    monkeypatch.setattr("dataflow.transport.flow_control.time", SimpleNamespace(sleep=sleep))
    assert quota.wait_for_room()
    assert len(naps) < 200


@pytest.fixture
def naps(monkeypatch):
    """The sleeps of whoever waits; `naps.then`, if set, is called after each."""

    class Naps(list):
        then = None

        def sleep(self, seconds):
            self.append(seconds)
            self.then()

    found = Naps()
    monkeypatch.setattr("dataflow.transport.flow_control.time", found)
    return found


def test_sleeps_double_from_20_microseconds_to_2_milliseconds_and_the_wait_is_recorded(naps, monkeypatch):
    clock = iter([7.0, 9.5])
    monkeypatch.setattr("dataflow.transport.flow_control._now", lambda: next(clock))
    credit = Credit(1, shared=False)
    quota = make_quota(Window(1), credit)
    quota.wait_for_room()
    assert quota.waited == 0.0
    quota.spend(1, 0)
    naps.then = lambda: len(naps) == 9 and credit.grant(0, 1, 0, 0)
    assert quota.wait_for_room().count == 1
    assert naps == [20e-6 * 2**k for k in range(7)] + [2e-3] * 2
    assert quota.waited == 2.5
    assert totals_of(credit.counters_of(0)).window == 1.0


@pytest.mark.parametrize(
    ("window", "state"), [(Window(1), WorkerActivity.BLOCKED), (Window(1, max_queued=1), WorkerActivity.MEMORY)]
)
def test_a_worker_is_busy_from_the_end_of_a_wait_on_however_long_the_next_datapoint_takes(
    window, state, naps, monkeypatch
):
    clock = iter([7.0, 9.5])
    monkeypatch.setattr("dataflow.transport.flow_control._now", lambda: next(clock))
    credit = Credit(1, shared=False)
    quota = make_quota(window, credit)
    quota.spend(1, 0)
    quota.queue(1)

    def grant():
        assert quota.counters.state == state
        assert totals_of(credit.counters_of(0), 8.0).seconds[state] == pytest.approx(1.0)
        credit.grant(0, 1, 0, 1)

    naps.then = grant
    assert quota.wait_for_room().count == 1
    assert quota.counters.state == WorkerActivity.BUSY
    seconds = totals_of(credit.counters_of(0), 60.0).seconds
    assert seconds[state] == pytest.approx(2.5) and seconds[WorkerActivity.BUSY] == pytest.approx(50.5)


@pytest.mark.parametrize(
    ("limit", "sent", "received", "for_memory"),
    [(0, 5, 0, False), (1, 1, 0, True), (100, 99, 0, False), (100, 100, 0, True), (100, 150, 60, False)],
)
def test_what_a_worker_waits_for_is_recorded(naps, limit, sent, received, for_memory):
    credit = Credit(1, shared=False)
    quota = make_quota(Window(1, max_queued=limit), credit)
    quota.spend(1, 0)
    quota.queue(sent)
    credit.grant(0, 0, 0, received)
    naps.then = credit.stop
    assert quota.wait_for_room() is None
    activity = WorkerActivity.MEMORY if for_memory else WorkerActivity.BLOCKED
    assert totals_of(credit.counters_of(0), time.perf_counter()).seconds[activity] > 0


@pytest.mark.parametrize(
    ("free", "sleeps"),
    [
        (2, [2e-3, 4e-3, 8e-3, 16e-3, 32e-3, 32e-3]),
        (3, [2e-3] * 6),
    ],
)
def test_who_finds_little_of_its_window_free_sleeps_twice_as_long(naps, free, sleeps):
    """Three eighths are neither little nor much."""
    assert longest_sleeps(naps, [free] * 6) == sleeps


@pytest.mark.parametrize(("free", "sleeps"), [(4, [16e-3] * 3), (5, [16e-3, 8e-3, 4e-3]), (8, [16e-3, 8e-3, 4e-3])])
def test_who_finds_more_than_half_of_its_window_free_sleeps_half_as_long(naps, free, sleeps):
    assert longest_sleeps(naps, [2, 2, 2, *[free] * 3])[3:] == sleeps


def test_who_finds_little_of_its_window_free_after_a_short_sleep_sleeps_no_longer(naps):
    assert longest_sleeps(naps, [2, 2, 2, 2], num_naps=1) == [2e-3] * 4
    assert longest_sleeps(naps, [5, 5], num_naps=1) == [2e-3] * 2


def longest_sleeps(naps, frees, num_naps=None):
    """The last sleep of each wait, after which so much of a window of eight is free; the first is a quarter of it.

    Without `num_naps`, a wait ends after two equal sleeps: the longest at that time.
    """
    credit = Credit(64, shared=False)
    quota = credit.port(0).quota(Window(8))
    quota.spend(8, 0)
    found = []
    for free in frees:
        naps.clear()
        naps.then = lambda free=free: (
            (len(naps) == num_naps if num_naps else naps[-2:-1] == naps[-1:]) and credit.grant(0, free, 0, 0)
        )
        assert quota.wait_for_room()
        quota.spend(free, 0)
        assert naps[0] == (20e-6 if num_naps or max(naps) == 2e-3 else max(naps) / 4)
        found.append(2e-3 if num_naps else naps[-1])
    return found


@pytest.mark.parametrize(
    ("window", "made", "begun", "part"),
    [
        (Window(1), (1, 0), (0, 0), 1.0),
        (Window(1), (3, 0), (0, 0), 1.0),
        (Window(4), (3, 7), (2, 0), 0.25),
        (Window(4, 100), (1, 50), (0, 0), 0.25),
        (Window(10, 100), (9, 20), (0, 0), 0.2),
        (Window(10, 100), (9, 60), (1, 20), 0.4),
    ],
)
def test_the_part_of_a_window_that_is_in_use_is_that_of_the_smaller_measure(window, made, begun, part):
    credit = Credit(1, shared=False)
    quota = make_quota(window, credit)
    quota.spend(*made)
    credit.grant(0, *begun, 0)
    assert quota.window_in_use() == part


def test_what_was_made_and_sent_before_counts(naps):
    credit = Credit(1, shared=False)
    quota = make_quota(Window(10, 100, max_queued=10), credit)
    for _ in range(3):
        quota.spend(1, 30)
        quota.queue(3)
    room = quota.wait_for_room()
    assert (room.count, room.nbytes, room.max_bytes) == (5, 10, 1)


def test_reports_are_outstanding_until_they_are_received(naps):
    credit = Credit(2, shared=False)
    quota = credit.port(1).quota(Window(1))
    naps.then = credit.stop
    assert quota.wait_for_report_credit(2) and quota.wait_for_report_credit(2) and not naps
    naps.then = lambda: len(naps) == 9 and credit.report_received(1)
    assert quota.wait_for_report_credit(2)
    assert naps == [20e-6 * 2**k for k in range(7)] + [2e-3] * 2
    for _ in range(2):
        credit.report_received(1)
    naps.clear()
    assert quota.wait_for_report_credit(2) and quota.wait_for_report_credit(2) and not naps
    naps.then = credit.stop
    assert not quota.wait_for_report_credit(2) and len(naps) == 1


def test_a_worker_in_the_place_of_another_may_report_as_many():
    credit = Credit(1, shared=False)
    for _ in range(100):
        credit.report_received(0)
    quota = credit.port(0).quota(Window(1))
    credit.stop()
    assert not quota.wait_for_report_credit(1), "who is to stop reports nothing"
    credit.close()


def test_what_a_worker_makes_is_known_until_it_is_replaced():
    credit = Credit(3, shared=False)
    items = [credit.port(k).quota(Window(1)).current_item() for k in range(3)]
    for k in range(3):
        items[k].begin(4 + k)
    assert [position_in(credit.item_of(k)) for k in range(3)] == [4, 5, 6]
    credit.died(1)
    assert [credit.item_of(k) != 0 for k in range(3)] == [True, False, True]
    assert credit.late_after(2.0) == (2.0, "spent more than item_timeout=2 seconds on it")


def test_a_jobserver_is_told_what_the_consumer_sees():
    told = []

    class FakeJobserver:
        def __getattr__(self, name):
            return lambda *arguments, **named: told.append((name, *arguments, *([named] if named else [])))

    for jobserver in (None, FakeJobserver()):
        credit = Credit(3, shared=False, jobserver=jobserver)
        credit.started()
        credit.died(1)
        credit.stop()
        credit.close()
    assert told == [("begin",), ("died", {"has_token": False}), ("stop", 3), ("close",)]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("has_jobserver", [True, False])
def test_a_worker_inherits_the_counters_and_its_side_of_the_jobserver(shared, has_jobserver):
    jobserver = SimpleNamespace(
        descriptors=lambda: ("a", "b"), open=lambda counters, word: ("opened with", counters), close=lambda: None
    )
    credit = Credit(2, shared=shared, jobserver=jobserver if has_jobserver else None)
    port = credit.port(1)
    own, others = port.descriptors()[:shared], port.descriptors()[shared:]
    assert len(own) == shared and None not in own and others == (("a", "b") if has_jobserver else ())
    quota = port.quota(Window(1))
    assert quota.token == (("opened with", quota.counters) if has_jobserver else None)
    credit.close()


def naps_of(monkeypatch, num_workers, rate, waits=30):
    """How long the first worker slept each time it had no credit; the consumer takes `rate` datapoints per second."""
    credit = Credit(num_workers, shared=False)
    quota = credit.port(0).quota(Window(40))
    naps, taken = [], 0.0

    def sleep(seconds):
        nonlocal taken
        naps.append(seconds)
        whole, taken = int(taken), taken + rate * seconds
        credit.grant(0, int(taken) - whole, 0, 0)

    monkeypatch.setattr("dataflow.transport.flow_control.time", SimpleNamespace(sleep=sleep))
    for _ in range(waits):
        quota.spend(quota.wait_for_room().count, 0)
    return naps


def test_who_has_waited_waits_until_a_quarter_of_its_window_is_free(monkeypatch):
    credit = Credit(1, shared=False)
    quota = credit.port(0).quota(Window(40))
    quota.spend(39, 0)
    assert quota.wait_for_room().count == 1, "it has not waited"
    quota.spend(1, 0)
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        credit.grant(0, 1, 0, 0)

    monkeypatch.setattr("dataflow.transport.flow_control.time", SimpleNamespace(sleep=sleep))
    assert quota.wait_for_room().count == 10 == len(naps)


def test_the_more_workers_the_longer_each_sleeps_but_none_oversleeps(monkeypatch):
    assert max(naps_of(monkeypatch, 4, rate=100)) == 2e-3
    assert max(naps_of(monkeypatch, 64, rate=100)) == 32e-3
    assert max(naps_of(monkeypatch, 64, rate=5000)[-20:]) <= 4e-3, "20 datapoints, half of the window"


def test_many_workers_wait_until_all_are_started(monkeypatch):
    def naps_before(num_workers, end):
        credit = Credit(num_workers, shared=True)
        naps = []

        def sleep(seconds):
            naps.append(seconds)
            if len(naps) == 3:
                end(credit)

        monkeypatch.setattr("dataflow.transport.flow_control.time", SimpleNamespace(sleep=sleep))
        quota = credit.port(num_workers - 1).quota(Window(1))
        quota.wait_for_start()
        credit.close()
        return naps

    assert naps_before(4, Credit.started) == []
    assert naps_before(64, Credit.started) == naps_before(64, Credit.stop) == [32e-3] * 3


@pytest.fixture
def shared():
    credit = Credit(2, shared=True)
    yield credit
    credit.close()


def test_who_waits_in_another_process_sees_that_it_is_to_stop(shared):
    quota = shared.port(0).quota(Window(1))
    quota.spend(1, 0)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(quota.wait_for_room()))
    waiting.start()
    shared.stop()
    waiting.join(LIMIT)
    assert answers == [None]


@pytest.fixture
def yielded(monkeypatch):
    """Grows each time that a processor is given away."""
    times = []
    monkeypatch.setattr("dataflow.transport.flow_control._sched_yield", lambda: times.append(1))
    return times


def test_who_has_sent_gives_way_if_the_consumer_had_something_to_do_before(shared, yielded):
    one, other = (shared.port(k).quota(Window(5)) for k in range(2))
    one.yield_processor()
    assert len(yielded) == 0
    other.yield_processor()
    one.yield_processor()
    assert len(yielded) == 2
    shared.idle()
    other.yield_processor()
    assert len(yielded) == 2
    one.yield_processor()
    assert len(yielded) == 3


def test_a_thread_gives_way_by_the_interpreters_lock_alone(yielded):
    for quota in (make_quota(Window(5)), make_quota(Window(5)).unlimited()):
        quota.yield_processor()
        quota.yield_processor()
    assert not yielded


@dataclass
class Duplicate:
    """A descriptor as `spawn` passes it on."""

    fd: int

    def detach(self):
        return self.fd


def test_a_worker_that_unpickles_its_port_reads_the_memory_of_the_consumer(shared):
    set_spawning_popen(SimpleNamespace(DupFd=Duplicate, duplicate_for_child=os.dup))
    try:
        pickled = ForkingPickler.dumps(shared.port(1))
    finally:
        set_spawning_popen(None)
    port = pickle.loads(pickled)
    quota = port.quota(Window(1))
    assert not quota.stopped
    shared.stop()
    assert quota.stopped
    for descriptor in port.descriptors():
        descriptor.close()


def spend_and_wait(line, end):
    quota = line.quota(Window(2))
    quota.spend(2, 10)
    os.write(end.fd, b"?" if quota.all_done() else b"F")
    os.write(end.fd, b"T" if quota.wait_for_room() else b"?")
    quota.spend(1, 10)
    os.write(end.fd, b"?" if quota.wait_for_room() else b"S")


@each_method
def test_a_worker_process_sees_what_the_consumer_grants_by_every_start_method(method):
    credit = Credit(2, shared=True)
    read, write = pipe()
    process = multiprocessing.get_context(method).Process(target=spend_and_wait, args=(credit.port(1), write))
    with passing_to_child(write, *credit.port(1).descriptors()):
        process.start()
    write.close()
    assert os.read(read.fd, 1) == b"F"
    credit.grant(1, 1, 5, 0)
    assert os.read(read.fd, 1) == b"T"
    credit.stop()
    assert os.read(read.fd, 1) == b"S"
    process.join()
    assert process.exitcode == 0
    process.close()
    read.close()
    credit.close()


def test_closing_gives_every_descriptor_back_at_once():
    before = len(os.listdir("/proc/self/fd"))
    credit = Credit(4, shared=True)
    credit.close()
    credit.close()
    credit.stop()  # the consumer may stop them twice
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_worker_goes_on_reading_after_the_consumer_has_closed():
    credit = Credit(1, shared=True)
    quota = credit.port(0).quota(Window(1))
    credit.stop()
    credit.close()
    wait_until(lambda: quota.stopped, LIMIT, "the flag is gone")
