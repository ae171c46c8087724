"""Reports of failed items: records that can be sent, reporters; and the judgement over them, without any flow."""

import logging
import pickle
import traceback
import warnings
from dataclasses import replace

import pytest

from dataflow.errors import TooManyFailures, WorkerTraceback
from dataflow.protocol import failures
from dataflow.protocol.failures import (
    Failure,
    FailureReporter,
    Report,
    Tolerance,
    failure_of,
    failure_reporter,
    reporting_to,
    traceback_of,
)


def raised(error):
    try:
        raise error
    except Exception as caught:
        return caught


def test_a_record_says_which_item_failed_and_how_and_travels():
    failure = failure_of("MapData(decode)", 17, 2, raised(ValueError("no image")))
    assert str(failure) == "MapData(decode): datapoint 17 of pass 2: ValueError: no image"
    assert "in raised" in failure.traceback
    assert pickle.loads(pickle.dumps(failure)) == failure


def test_a_traceback_is_written_where_warnings_are_errors(monkeypatch):
    format_exception = traceback.format_exception

    def as_in_python_3_15(error):
        warnings.warn("Module globals is missing a __spec__.loader", DeprecationWarning, stacklevel=1)
        return format_exception(error)

    monkeypatch.setattr(traceback, "format_exception", as_in_python_3_15)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "in raised" in traceback_of(raised(ValueError("no image")))


class Mute(Exception):
    def __str__(self):
        raise OSError


def test_an_error_that_cannot_be_told_is_recorded_by_its_type():
    failure = failure_of("MapData(f)", 0, 0, raised(Mute()))
    assert failure.kind.endswith("test_failures.Mute")
    assert failure.text == "<str() of it raises OSError>"


def test_a_record_names_the_workers_from_the_outermost():
    failure = Failure("MapData(f)", 3, 0, "KeyError", "'a'", "", ((1, 2), (0, 4)))
    assert str(failure) == "MapData(f): datapoint 3 of pass 0, worker 1 of 2, worker 0 of 4: KeyError: 'a'"


def test_only_the_code_of_a_worker_is_told_something():
    reporter = FailureReporter(3, (), lambda report: None)
    assert failure_reporter() is None
    with reporting_to(reporter):
        assert failure_reporter() is reporter
        with reporting_to(None):
            assert failure_reporter() is None
    assert failure_reporter() is None


def test_a_teller_adds_the_worker_and_leaves_that_of_one_further_in():
    reports: list[Report] = []
    reporter = FailureReporter(1, ((1, 2),), reports.append)
    for path in ((), ((1, 2), (3, 4))):
        reporter.report_skipped(Failure("n", 0, 0, "k", "t", "", path), ValueError(), judged=False)
    assert [report.failure.path for report in reports] == [((1, 2),), ((1, 2), (3, 4))]


def test_items_that_go_through_several_nodes_are_seen_once():
    reports: list[Report] = []
    reporter = FailureReporter(0.5, (), reports.append)
    for below, above in ((120, 100), (200, 190)):
        reporter.record_seen("below", below)
        reporter.record_seen("above", above)
        reporter.report_seen()
    assert [report.seen for report in reports] == [120, 80]


def test_a_warning_that_cannot_be_sent_is_dropped():
    def refuse(report):
        raise ValueError

    FailureReporter(None, (), refuse).report_warning("words")  # the next step of the worker finds out


def test_of_items_that_any_worker_may_do_again_the_last_are_known(monkeypatch):
    monkeypatch.setattr(failures, "_MAX_RECORDS", 2)
    tolerance, error = Tolerance("MapData", 100, shared=True), raised(ValueError("no"))
    for position in (0, 1, 1, 2, 2, 1, 0):
        tolerance.skip(failure_of("MapData", position, 0, error), error)
    assert tolerance.num_failures == 4  # the first was forgotten for the third


# -- the judgement: numbers, fractions, who logs, what is kept ---------------------------------------------------------


def fail(tolerance, position=0, p=0, *, in_pass=0, error=None, path=(), judged=False):
    try:
        raise error or ValueError(f"item {position}")
    except ValueError as caught:
        failure = replace(failure_of("MapData(f)", position, p, caught), path=path)
        tolerance.skip(failure, caught, in_pass=in_pass, judged=judged)


def test_a_number_of_failures_is_borne_and_one_more_is_too_many():
    tolerance = Tolerance("MapData", 2)
    fail(tolerance, 3)
    fail(tolerance, 5)
    with pytest.raises(
        TooManyFailures, match=r"MapData: 3 datapoints of one pass failed, more than max_failures=2"
    ) as e:
        fail(tolerance, 9)
    assert [failure.position for failure in e.value.failures] == [3, 5, 9]
    assert "datapoint 9 of pass 0: ValueError: item 9" in str(e.value)
    assert str(e.value.__cause__) == "item 9"
    assert e.value.__cause__.__traceback__ is not None


def test_every_pass_has_the_whole_number():
    tolerance = Tolerance("MapData", 1)
    for p in range(10):
        fail(tolerance, 3, in_pass=p)
    assert tolerance.num_failures == 10


def test_an_item_that_is_done_again_fails_once():
    tolerance = Tolerance("MapData", 1)
    for _ in range(5):
        fail(tolerance, 3)
    with pytest.raises(TooManyFailures):
        fail(tolerance, 4)


@pytest.mark.parametrize("num_workers", [1, 2, 100])
def test_a_number_that_suffices_for_one_worker_suffices_for_any_number_of_them(num_workers):
    tolerance = Tolerance("Runner", 2)
    for p in range(3):
        for position in (4, 7):
            for worker in range(num_workers):
                tolerance.begin_pass()  # whatever the consumer calls a pass
                fail(tolerance, position, p, in_pass=None, path=((worker, num_workers),))
    with pytest.raises(TooManyFailures):
        fail(tolerance, 9, 2, in_pass=None, path=((0, num_workers),))


def test_workers_that_share_a_pass_share_the_number_and_fail_at_the_same_item_once():
    tolerance = Tolerance("Map", 1, shared=True)
    for worker in (0, 1, 1):
        fail(tolerance, 3, in_pass=None, path=((worker, 2),))
    tolerance.begin_pass()
    fail(tolerance, 4, in_pass=None, path=((0, 2),))
    with pytest.raises(TooManyFailures):
        fail(tolerance, 5, in_pass=None, path=((1, 2),))


def test_a_fraction_is_of_all_items_seen():
    tolerance = Tolerance("MapData", 0.1)
    for k in range(50):
        tolerance.seen += 10
        fail(tolerance, k)
    tolerance.seen = 510
    fail(tolerance, 509)  # 51 of 510
    tolerance.seen = 512
    expected = r"52 of the 512 datapoints seen \(10.2 %\) failed, more than max_failures=0.1 allows"
    with pytest.raises(TooManyFailures, match=expected) as caught:
        fail(tolerance, 511)
    assert str(caught.value.__cause__) == "item 511"


def test_a_fraction_of_few_items_is_that_of_a_hundred():
    tolerance = Tolerance("MapData", 0.1)
    for k in range(10):
        tolerance.seen += 1
        fail(tolerance, k)
    tolerance.seen += 1
    with pytest.raises(TooManyFailures, match=r"11 of the 11 datapoints seen \(100 %\)"):
        fail(tolerance, 10)


def test_what_was_judged_below_counts_for_no_parent():
    tolerance = Tolerance("Runner", 1)
    for k in range(5):
        fail(tolerance, k, judged=True)
    assert len(tolerance.failures) == 5
    fail(tolerance, 5)
    with pytest.raises(TooManyFailures):
        fail(tolerance, 6)


def test_without_a_budget_failures_are_reported_and_not_judged(caplog):
    reports = []
    tolerance = Tolerance("MapData", None, FailureReporter(3, ((0, 1),), reports.append))
    for k in range(20):
        fail(tolerance, k)
    assert [report.failure.position for report in reports] == list(range(20))
    assert not any(report.judged for report in reports)
    assert not caplog.records, "it is logged once, by the last that gets it"


def test_a_budget_in_a_worker_reports_that_it_has_judged():
    reports = []
    tolerance = Tolerance("MapData", 1, FailureReporter(3, (), reports.append))
    fail(tolerance, 0)
    with pytest.raises(TooManyFailures):
        fail(tolerance, 1)
    assert [report.judged for report in reports] == [True, True], "all failures are reported before the end"


def test_a_worker_tells_of_items_seen_where_a_fraction_is_asked_for():
    reports = []
    tolerance = Tolerance("MapData", None, FailureReporter(0.5, (), reports.append))
    for k in range(1, 1001):
        tolerance.seen += 1
        if tolerance.seen >= tolerance.due:
            tolerance.report_seen()
        assert k - sum(report.seen for report in reports) < max(8, k / 16)
    assert len(reports) <= 60
    number = Tolerance("MapData", None, FailureReporter(5, (), reports.append))
    assert number.due > 10**9, "a number needs to know nothing of good items"


def report_of(num_workers, seen):
    return Report(
        Failure("MapData(f)", 0, 0, "ValueError", "bad", "", ((0, num_workers),)), ValueError("bad"), False, seen
    )


def test_reports_of_all_workers_are_judged_together():
    tolerance = Tolerance("Runner", 0.1)
    assert tolerance.process_report(Report(None, None, False, 95)) is None
    for _ in range(13):
        assert tolerance.process_report(report_of(2, 1)) is None  # 13 of 108 that were reported, and of up to 22 others
    verdict = tolerance.process_report(report_of(2, 1))
    assert isinstance(verdict, TooManyFailures)
    assert str(verdict.__cause__) == "bad"


def test_what_many_workers_have_seen_and_not_reported_counts_as_seen():
    """Each of 64 workers may have seen eight: 1 % of 512 may fail."""
    tolerance = Tolerance("Runner", 0.01)
    for _ in range(5):
        assert tolerance.process_report(report_of(64, 1)) is None
    assert isinstance(tolerance.process_report(report_of(64, 1)), TooManyFailures)


def test_a_verdict_from_a_worker_gets_the_last_error_back_as_its_cause():
    tolerance = Tolerance("Runner", None)
    last = ValueError("last")
    last.__cause__ = WorkerTraceback("there")
    tolerance.process_report(Report(Failure("MapData(f)", 0, 0, "ValueError", "last", ""), last, True, 0))
    verdict = TooManyFailures("too many")
    verdict.__cause__ = WorkerTraceback("text")
    assert tolerance.complete(verdict).__cause__ is last
    other = KeyError("a")
    assert tolerance.complete(other).__cause__ is None


def test_the_last_thousand_records_are_kept():
    tolerance = Tolerance("MapData", 5000)
    for k in range(1200):
        fail(tolerance, k)
    assert [failure.position for failure in tolerance.failures] == list(range(200, 1200))
    assert tolerance.num_failures == 1200


def test_the_log_names_the_first_failures_and_does_not_drown(caplog):
    tolerance = Tolerance("MapData", 10_000)
    with caplog.at_level(logging.WARNING, "dataflow"):
        for k in range(5000):
            fail(tolerance, k)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "skipped MapData(f): datapoint 0 of pass 0: ValueError: item 0"
    assert "doubled" in lines[9]
    assert lines[-1].startswith("skipped 4096 so far, at last MapData(f): datapoint 4095 ")
    assert len(lines) < 25


def test_nodes_without_a_budget_inherit_one():
    parent = FailureReporter(7, (), lambda report: None)
    assert Tolerance("Runner", None).inherited is None
    assert Tolerance("Runner", 3).inherited == 3
    assert Tolerance("Runner", None, parent).inherited == 7
    assert Tolerance("Runner", 0, parent).inherited == 0
