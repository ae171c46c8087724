"""The outbox: nothing is lost, doubled or reordered between the worker's thread and the flusher's."""

import itertools
import pickle
import re
import threading

import pytest

from dataflow.transport.channel import ConsumerGone
from dataflow.transport.codec import ObjectCodec, PickleCodec
from dataflow.transport.credit import Credit, Window
from dataflow.transport.messages import Kind
from dataflow.transport.outbox import Outbox, Stopped
from tests.support.fakes import FakeSender
from tests.support.waits import wait_until

WIDE = Window(1_000_000)


class Line:
    """An outbox between a credit and a fake sender."""

    def __init__(self, window=WIDE, codec=None, before=lambda message: None):
        self.credit = Credit(1, shared=False)
        self.sender = FakeSender(before)
        self.codec = codec or PickleCodec()
        self.outbox = Outbox(0, self.sender, self.codec, self.credit.allowance(0, window))

    def data(self):
        return [message for message in self.sender.sent if message.kind is Kind.DATA]

    def arrived(self):
        return [dp for message in self.data() for dp in self.codec.decode(message.body)]

    def grant(self, message):
        if message.kind is Kind.DATA:
            self.credit.grant(0, message.count, message.nbytes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.outbox.close(1)


def test_what_is_put_arrives_once_and_in_order():
    with Line() as line:
        line.outbox.hello()
        assert line.outbox.put_all([k] for k in range(5000)) == 5000
        line.outbox.ended()
        assert line.arrived() == [[k] for k in range(5000)]
        assert [line.sender.sent[0].kind, line.sender.sent[-1].kind] == [Kind.HELLO, Kind.ENDED]


@pytest.mark.slow
def test_order_holds_while_the_flusher_races_with_the_worker():
    """The sender dawdles now and then, so that flusher and worker meet at the lock again and again."""
    turn = itertools.count()

    def dawdle(message):
        if next(turn) % 7 == 0:
            threading.Event().wait(0.003)
        line.grant(message)

    line = Line(Window(40), before=dawdle)
    with line:
        line.outbox.put_all([k] for k in range(20_000))
        line.outbox.ended()
        assert line.arrived() == [[k] for k in range(20_000)]
        assert sum(message.count for message in line.data()) == 20_000
        assert line.sender.sent[-1].kind is Kind.ENDED


def test_what_was_collected_goes_before_the_last_words():
    for last_words in (
        lambda outbox: outbox.ended(),
        lambda outbox: outbox.left(SystemExit(3), "whose", 3),
        lambda outbox: outbox.failed(ValueError("x"), "note"),
    ):
        with Line() as line:
            line.outbox.put_all([k] for k in range(1001))
            last_words(line.outbox)
            assert len(line.arrived()) == 1001
            assert line.sender.sent[-1].kind is not Kind.DATA


def test_a_message_holds_a_third_of_the_window_at_most():
    line = Line(Window(30))
    line.sender.before = line.grant
    with line:
        line.outbox.put_all([k] for k in range(3000))
        counts = [message.count for message in line.data()]
    assert max(counts) == 10
    assert counts[:4] == [1, 2, 4, 8] or max(counts[:4]) <= 8  # it grows from one


def test_a_message_is_full_after_a_third_of_the_bytes():
    line = Line(Window(50, 30_000))
    line.sender.before = line.grant
    with line:
        line.outbox.put_all([bytes(1000)] for _ in range(500))
        assert max(message.nbytes for message in line.data()) <= 11_500


def test_bytes_counted_are_bytes_granted():
    line = Line(Window(5))
    line.sender.before = line.grant
    with line:
        line.outbox.put_all([bytes(k)] for k in range(100))
        line.outbox.flush()
        assert sum(m.nbytes for m in line.data()) == sum(len(PickleCodec().encode([bytes(k)])) for k in range(100))


@pytest.mark.parametrize("window", [1, 2, 3, 50])
def test_the_worker_runs_ahead_by_its_window_and_one_in_its_hands(window):
    line, steps = Line(Window(window)), []

    def flow():
        for k in itertools.count():
            steps.append(k)
            yield [k]

    def work():
        with pytest.raises(Stopped):
            line.outbox.put_all(flow())

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: len(line.arrived()) == window, 5, "the window did not fill")
    assert len(steps) == window + 1
    line.credit.grant(0, 1, 0)
    wait_until(lambda: len(line.arrived()) == window + 1, 5, "credit had no effect")
    assert len(steps) == window + 2
    line.credit.stop()
    worker.join(5)
    assert not worker.is_alive()
    line.outbox.close(1)


def test_a_datapoint_does_not_wait_for_the_next():
    """Messages have grown long; then the flow stops in the middle of one."""
    blocked, go_on = threading.Event(), threading.Event()

    def flow():
        for k in range(3005):
            yield [k]
        blocked.set()
        go_on.wait(10)

    with Line() as line:
        worker = threading.Thread(target=lambda: line.outbox.put_all(flow()))
        worker.start()
        assert blocked.wait(5)
        wait_until(lambda: len(line.arrived()) == 3005, 5, lambda: f"{len(line.arrived())} of 3005 were sent")
        go_on.set()
        worker.join()


def test_a_datapoint_is_written_before_the_next_step():
    def reused():
        dp = [None]
        for k in range(100):
            dp[0] = k
            yield dp

    with Line() as line:
        line.outbox.put_all(reused())
        line.outbox.flush()
        assert line.arrived() == [[k] for k in range(100)]


def test_who_is_told_to_stop_stops_at_the_next_step():
    with Line() as line:
        line.credit.stop()
        with pytest.raises(Stopped):
            line.outbox.put_all(itertools.repeat([0]))
    assert line.sender.closed_with == 0.0  # nobody listens: nothing to wait for


def test_an_outbox_that_was_not_stopped_is_closed_with_patience():
    line = Line()
    line.outbox.close(7.0)
    assert line.sender.closed_with == 7.0


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
    with Line() as line:
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)) as caught:
            line.outbox.put_all(iter([[0], [1], dp]))
        (note,) = caught.value.__notes__
        assert "datapoint 2 of the pass" in note and "MultiThreadRunner" in note
        assert re.search(component, note)
        line.outbox.failed(caught.value, "whose")
        assert line.arrived() == [[0], [1]]  # what was well goes first


def test_a_flow_without_datapoints_is_counted_as_such():
    with Line() as line:
        assert line.outbox.put_all([]) == 0


def test_the_worker_hears_that_the_consumer_has_gone():
    with Line() as line:
        line.sender.gone = True
        with pytest.raises(ConsumerGone):
            line.outbox.put_all(itertools.repeat([0]))


def test_what_the_flusher_meets_the_worker_meets_too():
    """A message that the flusher could not send is not passed over in silence."""
    blocked, go_on, failed = threading.Event(), threading.Event(), threading.Event()

    def flow():
        for k in range(1000):
            yield [k]
        blocked.set()
        go_on.wait(10)
        for k in range(1000, 2000):
            yield [k]

    def once(message):
        if threading.current_thread().name == "dataflow-flusher" and blocked.is_set() and not failed.is_set():
            failed.set()
            raise MemoryError("no room for the message")

    errors = []
    line = Line(before=once)

    def work():
        try:
            line.outbox.put_all(flow())
            line.outbox.flush()
        except MemoryError as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    assert blocked.wait(5)
    assert failed.wait(5)
    go_on.set()
    worker.join(5)
    line.outbox.close(1)
    assert errors or line.arrived() == [[k] for k in range(2000)]


def test_no_flusher_runs_where_messages_hold_one_datapoint():
    line = Line(Window(1), codec=ObjectCodec())
    line.sender.before = line.grant
    before = threading.active_count()
    line.outbox.put_all([k] for k in range(100))
    assert threading.active_count() == before
    line.outbox.close(1)
