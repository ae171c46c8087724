"""Reports between datapoints: their order, their way through each codec, and how many may be under way."""

import threading

import pytest

from dataflow.errors import WorkerError, WorkerTraceback
from dataflow.protocol.failures import Failure, Report
from dataflow.transport.batching_sender import BatchingSender, Stopped
from dataflow.transport.codec import ArrayCodec, ObjectCodec
from dataflow.transport.flow_control import Credit, Window
from dataflow.transport.messages import Kind
from tests.support.fakes import FakeSender
from tests.support.waits import LIMIT, wait_until

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


def test_a_worker_in_the_place_of_another_may_report_as_many():
    credit = Credit(1, shared=False)
    for _ in range(100):
        credit.report_received(0)
    quota = credit.port(0).quota(Window(1))
    credit.stop()
    assert not quota.wait_for_report_credit(1), "who is to stop reports nothing"
    credit.close()
