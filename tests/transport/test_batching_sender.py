"""The batching sender: nothing is lost, doubled or reordered between the worker's thread and the flusher's."""

import itertools
import pickle
import re
import threading
import time

import numpy as np
import pytest

from dataflow.errors import WorkerError, WorkerTraceback
from dataflow.protocol.failures import Failure, Report
from dataflow.transport.batching_sender import BatchingSender, Stopped
from dataflow.transport.codec import ArrayCodec, ObjectCodec
from dataflow.transport.current_item import CurrentItem, position_in
from dataflow.transport.flow_control import Credit, Window
from dataflow.transport.messages import ConsumerGone, Kind
from dataflow.transport.worker_counters import totals_of
from tests.support.fakes import FakeSender
from tests.support.faults import Interrupted
from tests.support.waits import LIMIT, wait_until

WIDE = Window(1_000_000)


class Loopback:
    """A batching sender between credit counters and a fake sender."""

    def __init__(self, window=WIDE, codec=None, before=lambda message: None, max_bytes=1 << 20, num_workers=1, **more):
        self.credit = Credit(num_workers, shared=False)
        self.sender = FakeSender(before)
        self.codec = codec or ArrayCodec(num_workers, max_bytes)
        self.encoder = self.codec.port(0).open_encoder()
        self.decoder = self.codec.open_decoder()
        self.batching_sender = BatchingSender(0, self.sender, self.encoder, self.credit.port(0).quota(window), **more)
        self._arrived = []
        self._num_decoded = 0

    def data(self):
        return [message for message in self.sender.sent if message.kind is Kind.DATA]

    def arrived(self):
        """All datapoints so far; every message is decoded once, as a consumer does."""
        for message in self.data()[self._num_decoded :]:
            self._arrived += self.decoder.decode(0, message.body)
            self._num_decoded += 1
        return self._arrived

    def grant(self, message):
        """The consumer begins with a message."""
        if message.kind is Kind.DATA:
            self.credit.grant(0, message.count, message.nbytes, message.queued)

    def hand_out(self, message):
        """The consumer is through with a message."""
        self.grant(message)
        if message.kind is Kind.DATA:
            self.credit.done(0, message.count)

    def close(self):
        self.batching_sender.close(1)
        self.codec.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Silence:
    """A flow that gives `count` numbers, and then waits for an event."""

    def __init__(self, count, more=0):
        self.numbers = range(count), range(count, count + more)
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __iter__(self):
        yield from ([k] for k in self.numbers[0])
        self.reached.set()
        self.go_on.wait(2 * LIMIT)
        yield from ([k] for k in self.numbers[1])


def test_what_is_put_arrives_once_and_in_order():
    with Loopback() as loopback:
        loopback.batching_sender.hello()
        assert loopback.batching_sender.put_all([k] for k in range(5000)) == 5000
        loopback.batching_sender.ended()
        assert loopback.arrived() == [[k] for k in range(5000)]
        assert [loopback.sender.sent[0].kind, loopback.sender.sent[-1].kind] == [Kind.HELLO, Kind.ENDED]


def test_headers_name_the_task_of_the_results_and_once_the_pace_of_the_last_one():
    with Loopback() as loopback:
        loopback.batching_sender.begin_task(7, 0, 0.0)
        loopback.batching_sender.put_all([k] for k in range(1000))
        loopback.batching_sender.begin_task(8, 1000, 0.25)
        loopback.batching_sender.put_all([k] for k in range(1000, 3000))
        sent = loopback.sender.sent
        assert [message.task for message in sent] == sorted(message.task for message in sent)
        first, *later = (message for message in sent if message.task == 8)
        assert later and first.pace == 0.25 and {message.pace for message in (*later, sent[0])} == {0.0}
        assert sum(message.count for message in (first, *later)) == 2000
        assert loopback.arrived() == [[k] for k in range(3000)]


def test_a_task_that_fails_sends_its_exception_after_its_results():
    def results():
        yield [1]
        raise ValueError("no second")

    with Loopback() as loopback:
        loopback.batching_sender.begin_task(3, 0, 0.5)
        with pytest.raises(ValueError) as raised:
            loopback.batching_sender.put_all(results())
        loopback.batching_sender.fail_task(raised.value)
        *before, last = loopback.sender.sent
        assert [(message.kind, message.count) for message in before] == [(Kind.DATA, 1)]
        assert (last.kind, last.task, last.count) == (Kind.TASK_FAILED, 3, 0)


def test_a_result_that_cannot_be_sent_is_named_by_the_index_of_its_datapoint():
    with Loopback() as loopback:
        loopback.batching_sender.begin_task(3, 40, 0.0)
        with pytest.raises(Exception) as raised:
            loopback.batching_sender.put_all([[1], [2], [threading.Lock()]])
        *_, what, where = raised.value.__notes__  # from Python 3.14 on, those of pickle go first
        assert what.startswith("what was made, component 0 of type lock cannot be sent")
        assert where == "it was made of the datapoint at index 42 of the input"


def test_a_batch_and_the_end_of_a_pass_are_kinds_of_messages():
    with Loopback() as loopback:
        loopback.batching_sender.begin_task(5, 0, 0.0)
        loopback.batching_sender.put_all(iter([[np.arange(3)]]), Kind.BATCH)
        loopback.batching_sender.put_all([[1]])
        loopback.batching_sender.end_pass()
        assert [(message.kind, message.count, message.task) for message in loopback.sender.sent] == [
            (Kind.BATCH, 1, 5),
            (Kind.DATA, 1, 5),
            (Kind.PASS_ENDED, 0, 5),
        ]


def test_order_holds_while_the_flusher_races_with_the_worker():
    """The sender dawdles now and then, so that flusher and worker meet at the lock again and again."""
    turn = itertools.count()

    def dawdle(message):
        if next(turn) % 7 == 0:
            threading.Event().wait(0.003)
        loopback.grant(message)

    loopback = Loopback(Window(40), before=dawdle)
    with loopback:
        loopback.batching_sender.put_all([k] for k in range(20_000))
        loopback.batching_sender.ended()
        assert loopback.arrived() == [[k] for k in range(20_000)]
        assert sum(message.count for message in loopback.data()) == 20_000
        assert loopback.sender.sent[-1].kind is Kind.ENDED


def test_what_was_collected_goes_before_the_last_words():
    for last_words in (
        lambda batching_sender: batching_sender.ended(),
        lambda batching_sender: batching_sender.left(SystemExit(3), 3),
        lambda batching_sender: batching_sender.failed(ValueError("x")),
    ):
        with Loopback() as loopback:
            loopback.batching_sender.put_all([k] for k in range(1001))
            last_words(loopback.batching_sender)
            assert len(loopback.arrived()) == 1001
            assert loopback.sender.sent[-1].kind is not Kind.DATA


@pytest.mark.parametrize("has_left", [False, True])
def test_a_message_in_which_a_signal_handler_raises_arrives_once(has_left):
    def interrupt(message):
        loopback.sender.before = loopback.sender.after = lambda message: None
        raise Interrupted

    with Loopback() as loopback:
        setattr(loopback.sender, "after" if has_left else "before", interrupt)
        with pytest.raises(Interrupted) as raised:
            loopback.batching_sender.put_all([[k] for k in range(3)])
        loopback.batching_sender.failed(raised.value)
        assert loopback.arrived() == [[0]] and loopback.sender.sent[-1].kind is Kind.ERROR
        # What was counted is what arrived: the consumer is through with it, and the window is empty again.
        for message in loopback.data():
            loopback.hand_out(message)
        quota = loopback.batching_sender._quota
        assert quota.all_done() and quota.window_in_use() == 0
        assert totals_of(loopback.credit.counters_of(0)).datapoints == 1


def test_a_message_holds_half_of_the_window_at_most(monkeypatch):
    Clock(monkeypatch)
    loopback = Loopback(Window(30))
    loopback.sender.before = loopback.grant
    with loopback:
        loopback.batching_sender.put_all([k] for k in range(3000))
        counts = [message.count for message in loopback.data()]
    assert max(counts) == 15
    assert counts[:5] == [1, 2, 4, 8, 15]  # it grows from one


def test_a_message_is_full_after_half_of_the_bytes():
    loopback = Loopback(Window(3, 30_000))
    loopback.sender.before = loopback.grant
    with loopback:
        loopback.batching_sender.put_all([bytes(1000)] for _ in range(500))
        assert max(message.nbytes for message in loopback.data()) <= 15_500


def test_the_worker_gives_way_after_each_message(monkeypatch):
    Clock(monkeypatch)  # on a slow machine, messages would be shorter
    loopback = Loopback(Window(4))
    story = []
    monkeypatch.setattr(type(loopback.batching_sender._quota), "yield_processor", lambda self: story.append("way"))
    loopback.sender.before = lambda message: (story.append(message.count), loopback.hand_out(message))
    loopback.batching_sender._target = 2
    loopback.batching_sender.put_all([k] for k in range(5))
    assert story == [2, "way", 2, "way", 1, "way"]
    loopback.close()


def test_bytes_counted_are_bytes_granted():
    loopback = Loopback(Window(5))
    loopback.sender.before = loopback.grant
    with loopback:
        loopback.batching_sender.put_all([bytes(k)] for k in range(100))
        loopback.batching_sender.flush()
        assert sum(m.nbytes for m in loopback.data()) == sum(
            len(loopback.encoder.encode([bytes(k)])) for k in range(100)
        )


@pytest.mark.parametrize("window", [1, 2, 3, 50])
def test_the_worker_runs_ahead_by_its_window_and_one_in_its_hands(window):
    loopback, steps = Loopback(Window(window)), []

    def flow():
        for k in itertools.count():
            steps.append(k)
            yield [k]

    def work():
        with pytest.raises(Stopped):
            loopback.batching_sender.put_all(flow())

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: len(loopback.arrived()) == window, LIMIT, "the window did not fill")
    assert len(steps) == window
    enough = -(-window // 4)  # who has waited goes on once a quarter is free
    loopback.credit.grant(0, enough, 0, 0)
    wait_until(lambda: len(loopback.arrived()) == window + enough, LIMIT, "credit had no effect")
    assert len(steps) == window + enough
    loopback.credit.stop()
    worker.join(LIMIT)
    assert not worker.is_alive()
    loopback.close()


def test_a_datapoint_does_not_wait_for_the_next():
    """Messages have grown long; then the flow stops in the middle of one."""
    flow = Silence(3005)
    with Loopback() as loopback:
        worker = threading.Thread(target=lambda: loopback.batching_sender.put_all(flow))
        worker.start()
        assert flow.reached.wait(LIMIT)
        wait_until(
            lambda: len(loopback.arrived()) == 3005, LIMIT, lambda: f"{len(loopback.arrived())} of 3005 were sent"
        )
        flow.go_on.set()
        worker.join()


def test_a_datapoint_is_written_before_the_next_step():
    def reused():
        dp = [None]
        for k in range(100):
            dp[0] = k
            yield dp

    with Loopback() as loopback:
        loopback.batching_sender.put_all(reused())
        loopback.batching_sender.flush()
        assert loopback.arrived() == [[k] for k in range(100)]


def test_a_stopped_worker_stops_at_the_next_step():
    with Loopback() as loopback:
        loopback.credit.stop()
        with pytest.raises(Stopped):
            loopback.batching_sender.put_all(itertools.repeat([0]))
    assert loopback.sender.closed_with == 0.0  # no consumer: nothing to wait for


def test_an_outbox_that_was_not_stopped_is_closed_with_patience():
    loopback = Loopback()
    loopback.batching_sender.close(7.0)
    loopback.codec.close()
    assert loopback.sender.closed_with == 7.0


@pytest.mark.parametrize(
    ("dp", "component"),
    [
        ([1, lambda: 0], r"component 1 of type function"),
        ({"a": 1, "b": (_ for _ in ())}, r"component 'b' of type generator"),
        ((lambda: 0,), r"component 0 of type function"),
        (lambda: 0, r"datapoint 2 of the pass cannot"),
    ],
)
def test_what_cannot_be_sent_is_named_with_its_place_and_the_cure(dp, component):
    with Loopback() as loopback:
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)) as caught:
            loopback.batching_sender.put_all(iter([[0], [1], dp]))
        note = caught.value.__notes__[-1]
        assert "datapoint 2 of the pass" in note and "MultiThreadRunner" in note
        assert re.search(component, note)
        loopback.batching_sender.failed(caught.value)
        assert loopback.arrived() == [[0], [1]]  # what was well goes first


def test_a_flow_without_datapoints_is_counted_as_such():
    with Loopback() as loopback:
        assert loopback.batching_sender.put_all([]) == 0


def test_the_worker_notices_that_the_consumer_has_gone():
    with Loopback() as loopback:
        loopback.sender.gone = True
        with pytest.raises(ConsumerGone):
            loopback.batching_sender.put_all(itertools.repeat([0]))


def test_what_the_flusher_meets_the_worker_meets_too(monkeypatch):
    """A message that the flusher could not send is not passed over in silence."""
    Clock(monkeypatch, flushes=True)  # messages of 1, 2, 4, …: at 1000 one is begun, and the flusher has to send it
    flow, failed, errors = Silence(1000, more=1000), threading.Event(), []

    def once(message):
        if threading.current_thread().name == "dataflow-flusher" and not failed.is_set():
            failed.set()
            raise MemoryError("no room for the message")

    with Loopback(before=once) as loopback:

        def work():
            try:
                loopback.batching_sender.put_all(flow)
                loopback.batching_sender.flush()
            except MemoryError as error:
                errors.append(error)

        worker = threading.Thread(target=work)
        worker.start()
        assert flow.reached.wait(LIMIT)
        assert failed.wait(LIMIT)
        flow.go_on.set()
        worker.join(LIMIT)
        assert errors or loopback.arrived() == [[k] for k in range(2000)]


def test_the_flusher_ends_with_the_sender(monkeypatch):
    Clock(monkeypatch)
    before = threading.active_count()
    with Loopback() as loopback:
        loopback.batching_sender.put_all([k] for k in range(100))
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


# -- how long a message is ---------------------------------------------------------------------------------------------


class Clock:
    """Stands for `time`; every step of the flow takes as long as the test says.

    By default the flusher sends nothing: it would, on a machine on which these steps take longer than that.
    """

    def __init__(self, monkeypatch, step=0.0, *, flushes=False):
        self.now = 0.0
        self.step = step
        self.sleep = time.sleep
        monkeypatch.setattr("dataflow.transport.batching_sender.time", self)
        if not flushes:
            monkeypatch.setattr("dataflow.transport.batching_sender._FLUSH_INTERVAL", 10 * LIMIT)

    def perf_counter(self):
        return self.now

    def flow(self, count):
        for k in range(count):
            self.now += self.step
            yield [k]


def test_messages_grow_while_they_are_quickly_filled_and_shrink_when_they_are_not(monkeypatch):
    clock = Clock(monkeypatch, step=1e-6)
    with Loopback() as loopback:
        loopback.batching_sender.put_all(clock.flow(2000))
        grown = [message.count for message in loopback.data()]
        assert grown[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
        clock.step = 1e-4
        loopback.batching_sender.put_all(clock.flow(2000))
        shrunk = [message.count for message in loopback.data()][len(grown) :]
        assert shrunk[:2] == [640, 320] and shrunk[-2] == 20  # more than 1 ms and less than 3 ms
        clock.step = 1.0
        before = len(loopback.data())
        loopback.batching_sender.put_all(clock.flow(40))
        assert [message.count for message in loopback.data()][before:][-3:] == [1, 1, 1]


@pytest.mark.parametrize(("seconds", "count"), [(1e-3, 16), (5e-4, 8), (2.5e-4, 4)])
def test_a_message_holds_what_is_made_in_the_given_time(seconds, count, monkeypatch):
    clock = Clock(monkeypatch, step=1e-4)
    with Loopback(seconds=seconds) as loopback:
        loopback.batching_sender.put_all(clock.flow(200))
        assert [message.count for message in loopback.data()][-3] == count


def test_a_message_has_an_upper_bound_however_fast_the_flow(monkeypatch):
    clock = Clock(monkeypatch)
    with Loopback() as loopback:
        loopback.batching_sender.put_all(clock.flow(20_000))
        assert max(message.count for message in loopback.data()) == 640


def test_what_may_be_queued_is_not_exceeded_by_more_than_one_datapoint(monkeypatch):
    """Also not by the first message after small datapoints have made messages long."""
    most, size = 100_000, 30_000
    clock, queued, max_seen = Clock(monkeypatch), 0, 0

    def flow():
        yield from ([k] for k in range(1000))
        yield from ([bytes(size)] for _ in range(200))

    def before(message):
        nonlocal queued, max_seen
        if message.kind is Kind.DATA:
            queued += message.queued
            max_seen = max(max_seen, queued)
            if queued >= most:  # the consumer receives only when it must
                loopback.credit.grant(0, 5000, 1 << 40, queued)
                queued = 0

    with Loopback(Window(1_000_000, 1 << 30, max_queued=most), before=before) as loopback:
        worker = threading.Thread(target=lambda: loopback.batching_sender.put_all(flow()))
        worker.start()
        worker.join(LIMIT)
        assert not worker.is_alive()
        assert most <= max_seen < most + 1.1 * size
    assert clock.now == 0


def test_one_datapoint_may_always_be_under_way():
    loopback = Loopback(Window(5, max_queued=10))
    loopback.sender.before = loopback.grant
    with loopback:
        loopback.batching_sender.put_all([bytes(1000)] for _ in range(10))
        assert [message.count for message in loopback.data()] == [1] * 10


# -- the arena is full -------------------------------------------------------------------------------------------------


def image(k, nbytes=100_000):
    return [np.full(nbytes, k % 251, np.uint8), k]


def check_images(arrived, count, nbytes=100_000):
    assert [k for _, k in arrived] == list(range(count))
    assert all(array.nbytes == nbytes and (array == k % 251).all() for array, k in arrived)


def worker_of(loopback, flow):
    def work():
        try:
            loopback.batching_sender.put_all(flow)
            loopback.batching_sender.flush()
        except Stopped:
            pass

    worker = threading.Thread(target=work)
    worker.start()
    return worker


@pytest.mark.parametrize("nbytes", [20_000, 100_000, 1 << 20, 3 << 20])
def test_a_consumer_that_keeps_everything_gets_everything(nbytes):
    count = 3 * (1 << 20) // nbytes + 5
    loopback = Loopback(Window(50, 1 << 18))
    loopback.sender.before = loopback.hand_out
    with loopback:
        worker = worker_of(loopback, (image(k, nbytes) for k in range(count)))
        wait_until(lambda: len(loopback.arrived()) == count, LIMIT, lambda: f"{len(loopback.arrived())} of {count}")
        worker.join()
        check_images(loopback.arrived(), count, nbytes)


def test_while_the_consumer_has_something_left_the_worker_waits_for_it_and_sends_nothing_inline():
    with Loopback(Window(1000)) as loopback:
        worker = worker_of(loopback, (image(k) for k in range(100)))
        wait_until(lambda: sum(message.count for message in loopback.data()) == 10, LIMIT, "the arena did not fill")
        num_received, arrays = 0, []
        while len(arrays) < 100:
            # One at a time: the worker goes on as each array dies.
            wait_until(
                lambda num_received=num_received: len(loopback.data()) > num_received,
                LIMIT,
                f"nothing came after {num_received}",
            )
            message = loopback.data()[num_received]
            loopback.grant(message)
            for array, k in loopback.decoder.decode(0, message.body):
                assert (array == k % 251).all()
                arrays.append(k)
            del array
            loopback.credit.done(0, message.count)
            num_received += 1
        worker.join(LIMIT)
        assert arrays == list(range(100))
        assert max(message.queued for message in loopback.data()) < 5000


def test_who_waits_for_another_workers_datapoints_goes_inline_when_those_are_done_with():
    with Loopback(Window(1000), num_workers=2) as loopback:
        other = loopback.credit.port(1).quota(Window(10))
        other.spend(3, 0)
        worker = worker_of(loopback, (image(k) for k in range(12)))
        wait_until(lambda: len(loopback.arrived()) == 10, LIMIT, "the arena did not fill")
        loopback.credit.grant(0, 10, 1 << 30, 1 << 20)
        loopback.credit.done(0, 10)
        loopback.credit.done(1, 2)
        assert len(loopback.arrived()) == 10
        loopback.credit.done(1, 1)
        wait_until(lambda: len(loopback.arrived()) == 11, LIMIT, "it did not go inline")
        loopback.credit.done(0, 1)
        wait_until(lambda: len(loopback.arrived()) == 12, LIMIT, "the next did not go inline")
        worker.join(LIMIT)
        check_images(loopback.arrived(), 12)


def test_a_worker_that_waits_for_room_can_be_stopped():
    with Loopback(Window(1000)) as loopback:
        worker = worker_of(loopback, (image(k) for k in range(100)))
        wait_until(lambda: sum(message.count for message in loopback.data()) == 10, LIMIT, "the arena did not fill")
        loopback.credit.stop()
        worker.join(LIMIT)
        assert not worker.is_alive()


def test_idle_pages_are_given_back_while_the_flow_is_silent(monkeypatch):
    monkeypatch.setattr("dataflow.transport.arena._IDLE_SECONDS", 0.05)
    flow = Silence(0)

    def slow():
        for k in range(5):
            yield image(k)
            clock.now += 1.0  # messages stay at one datapoint
        yield from flow

    clock = Clock(monkeypatch, flushes=True)
    with Loopback() as loopback:
        worker = worker_of(loopback, slow())
        assert flow.reached.wait(LIMIT)
        check_images(loopback.arrived(), 5)
        loopback.arrived().clear()
        wait_until(lambda: loopback.codec.memory_limit.held() == [0], LIMIT, "the pages were kept")
        flow.go_on.set()
        worker.join(LIMIT)


# -- the calibration ---------------------------------------------------------------------------------------------------


def test_the_calibration_sends_nothing_and_leaves_nothing_taken_or_running():
    before = threading.active_count()
    with Loopback() as loopback:
        loopback.batching_sender.calibrate_encoder()
        assert loopback.sender.sent == []
        assert loopback.codec.memory_limit.held() == [0]
        assert threading.active_count() == before


def drawn(loopback, k):
    array = loopback.encoder.allocate((1 << 18,), np.dtype(np.uint8))
    array[...] = k
    return array


def expressions(loopback):
    for k in range(20):
        yield [drawn(loopback, k)]


def variables(loopback):
    for k in range(20):
        dp = [drawn(loopback, k)]
        yield dp


@pytest.mark.parametrize(("flow", "copied"), [(expressions, False), (variables, True)])
def test_after_the_calibration_a_output_buffer_is_passed_on_without_a_copy_if_unshared(flow, copied, monkeypatch):
    monkeypatch.setattr("dataflow.transport.arena._IDLE_SECONDS", 10 * LIMIT)
    with Loopback(Window(1)) as loopback:
        loopback.batching_sender.calibrate_encoder()
        worker = worker_of(loopback, flow(loopback))
        for k in range(20):
            wait_until(lambda k=k: len(loopback.data()) > k, LIMIT, "nothing came")
            message = loopback.data()[k]
            ((array,),) = loopback.decoder.decode(0, message.body)
            assert (array == k).all()
            del array
            loopback.hand_out(message)
        worker.join(LIMIT)
        # A copy needs a block beside the output buffer's; and so does the next one, while the variable holds the last.
        assert (loopback.codec.memory_limit.held() == [1 << 18]) is not copied


def test_a_calibration_where_others_hold_all_memory_ends():
    with Loopback(num_workers=2) as loopback:
        assert loopback.codec.memory_limit.reserve(1, 1 << 20)
        loopback.batching_sender.calibrate_encoder()
        loopback.codec.memory_limit.give_back(1, 1 << 20)
        assert loopback.codec.memory_limit.held() == [0, 0]
        loopback.batching_sender.put_all([[loopback.encoder.allocate((1 << 18,), np.dtype(np.uint8))]])
        assert len(loopback.arrived()) == 1


def test_between_threads_nothing_is_calibrated():
    loopback = Loopback(codec=ObjectCodec())
    loopback.batching_sender.calibrate_encoder()
    assert loopback.sender.sent == []
    loopback.batching_sender.put_all([[1], 2, None, "three"])
    assert loopback.arrived() == [[1], 2, None, "three"]
    loopback.close()


def test_a_report_within_a_batch_is_no_end_of_it():
    words = memoryview(bytearray(16)).cast("Q")
    item = CurrentItem(words, 1)
    loop = Loopback(item=item)
    report = Report(None, None, False, 1)
    loop.batching_sender.report(report)
    assert words[1] == 0
    item.begin(5)
    loop.batching_sender.report(report)
    assert position_in(words[1]) == 5
    assert [message.kind for message in loop.sender.sent] == [Kind.REPORT] * 2
    loop.close()


# -- reports -----------------------------------------------------------------------------------------------------------


FAILURE = Failure("MapData(f)", 3, 0, "ValueError", "bad", "there")


class Worker:
    """A worker's batching sender, and the consumer's credit counters."""

    def __init__(self, codec):
        self.codec = codec
        self.credit = Credit(1, shared=False)
        self.sender = FakeSender()
        encoder = codec.port(0).open_encoder()
        quota = self.credit.port(0).quota(Window(100))
        self.batching_sender = BatchingSender(0, self.sender, encoder, quota, note="in worker 0")

    def close(self):
        self.batching_sender.close(0)
        self.codec.close()
        self.credit.close()


@pytest.fixture(params=[ObjectCodec, lambda: ArrayCodec(1, 1 << 20)], ids=["objects", "arrays"])
def worker(request):
    worker = Worker(request.param())
    yield worker
    worker.close()
    vars(worker).clear()  # the arena's mapping lives as long as its writer


def raised(error):
    try:
        raise error
    except Exception as caught:
        return caught


def test_a_report_comes_between_the_datapoints_around_it(worker):
    def steps():
        for k in range(6):
            if k == 3:
                worker.batching_sender.report(Report(FAILURE, raised(ValueError("bad")), False, 4))
            yield [k]

    worker.batching_sender.put_all(steps())
    worker.batching_sender.flush()
    decoder = worker.codec.open_decoder()
    story = []
    for message in worker.sender.sent:
        if message.kind is Kind.DATA:
            story += [dp[0] for dp in decoder.decode(0, message.body)]
        else:
            assert message.kind is Kind.REPORT
            report = decoder.decode_report(message.body)
            assert (report.failure, report.judged, report.seen) == (FAILURE, False, 4)
            assert type(report.error) is ValueError and str(report.error) == "bad"
            assert report.error.__notes__[-1] == "in worker 0"
            story.append("report")
    assert story == [0, 1, 2, "report", 3, 4, 5]


def test_a_report_may_have_no_failure(worker):
    worker.batching_sender.report(Report(None, None, False, 100))
    report = worker.codec.open_decoder().decode_report(worker.sender.sent[0].body)
    assert (report.failure, report.error, report.seen) == (None, None, 100)


def test_an_error_that_cannot_be_pickled_is_reported_all_the_same():
    worker = Worker(ArrayCodec(1, 1 << 20))
    error = ValueError(threading.Lock())
    worker.batching_sender.report(Report(FAILURE, raised(error), True, 0))
    report = worker.codec.open_decoder().decode_report(worker.sender.sent[0].body)
    assert type(report.error) is WorkerError and report.judged
    assert isinstance(report.error.__cause__, WorkerTraceback)
    worker.close()


def test_reports_that_nobody_hears_are_bounded(worker):
    sent = worker.sender.sent

    def report_for_ever():
        try:
            while True:
                worker.batching_sender.report(Report(None, None, False, 1))
        except Stopped:
            pass

    thread = threading.Thread(target=report_for_ever)
    thread.start()
    wait_until(lambda: len(sent) == 64, LIMIT, lambda: f"{len(sent)} reports")
    for _ in range(10):
        worker.credit.report_received(0)
    wait_until(lambda: len(sent) == 74, LIMIT, lambda: f"{len(sent)} reports")
    worker.credit.stop()
    thread.join(LIMIT)
    assert not thread.is_alive() and len(sent) == 74
