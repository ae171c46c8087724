"""Reports of failed items: records that can be sent, and reporters."""

import pickle
import traceback
import warnings

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


def test_what_is_seen_is_reported_where_it_is_judged_above():
    sent = []
    for limit, num in ((3, 0), (0.5, 1)):
        tolerance = Tolerance("MapData", 0.5, FailureReporter(limit, (), sent.append))
        tolerance.seen = 100
        tolerance.check_seen()
        assert [report.seen for report in sent] == [100] * num


def test_of_items_that_any_worker_may_do_again_the_last_are_known(monkeypatch):
    monkeypatch.setattr(failures, "_MAX_RECORDS", 2)
    tolerance, error = Tolerance("MapData", 100, shared=True), raised(ValueError("no"))
    for position in (0, 1, 1, 2, 2, 1, 0):
        tolerance.skip(failure_of("MapData", position, 0, error), error)
    assert tolerance.num_failures == 4  # the first was forgotten for the third
