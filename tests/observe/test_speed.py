"""TestDataSpeed: the measured speed, and that datapoints are unchanged."""

import logging
from types import SimpleNamespace

import pytest

from dataflow.observe.speed import TestDataSpeed
from tests.observe.made_up import Endless, Passes


def test_pytest_does_not_collect_the_class():
    assert TestDataSpeed.__test__ is False


def test_start_returns_and_logs_datapoints_per_second(caplog, capsys):
    with caplog.at_level(logging.INFO, "dataflow.observe.speed"):
        speed = TestDataSpeed(Passes(100), size=50).start()
    assert isinstance(speed, float)
    assert speed > 0
    assert f"{speed:.6g} datapoints per second (50 in" in caplog.text
    shown = capsys.readouterr()
    assert "50/50" in shown.err
    assert "dp/s" in shown.err
    assert shown.out == ""


def test_the_time_in_which_the_bar_is_made_does_not_count(monkeypatch):
    now = [0.0]
    make = TestDataSpeed._bar

    def slow(self, datapoints, total):
        now[0] += 100  # the import of tqdm
        return make(self, datapoints, total)

    class Timed(Passes):
        def _df_run_pass(self, p, stream):
            for dp in super()._df_run_pass(p, stream):
                now[0] += 1
                yield dp

    monkeypatch.setattr(TestDataSpeed, "_bar", slow)
    monkeypatch.setattr("dataflow.observe.speed.time", SimpleNamespace(perf_counter=lambda: now[0]))
    for warmup in (0, 3):
        assert TestDataSpeed(Timed(10), size=5, warmup=warmup).start() == 1.0


@pytest.mark.parametrize(
    ("make", "size", "warmup", "taken"),
    [
        (lambda: Passes(10), 4, 0, 4),
        (lambda: Passes(10), 4, 3, 7),
        (lambda: Passes(10), 4, 8, 10),
        (lambda: Passes(10), 5000, 0, 10),
        (Endless, 20, 5, 25),
    ],
)
def test_exactly_the_requested_number_is_read(make, size, warmup, taken):
    ds = make()
    assert TestDataSpeed(ds, size, warmup).start() > 0
    assert ds.taken == taken


@pytest.mark.parametrize(("n", "warmup"), [(3, 5), (3, 3), (0, 0), (0, 2)])
def test_a_warmup_that_leaves_nothing_is_logged_without_an_error(n, warmup, caplog):
    assert TestDataSpeed(Passes(n), size=4, warmup=warmup).start() == 0.0
    assert "nothing left to measure: the pass of Passes" in caplog.text


def test_iterating_measures_and_then_passes_the_pass_on_from_its_beginning(capsys):
    df = TestDataSpeed(ds := Passes(3), size=2)
    assert [list(df), list(df)] == [[[p, k] for k in range(3)] for p in range(2)]
    assert ds.taken == 2 * (2 + 3)
    assert "2/2" in capsys.readouterr().err
    assert len(df) == 3


def test_a_flow_that_was_reset_or_started_may_be_measured_by_its_old_name_too():
    ds = Passes(10)
    ds.reset_state()
    next(iter(ds))
    df = TestDataSpeed(ds, size=2)
    df.reset_state()
    assert df.start() > 0
    assert df.start_test() > 0
    assert next(iter(ds))[0] == 3, "each measurement is a pass of the input"


def test_an_exception_in_the_flow_is_raised():
    class Fails(Passes):
        def _df_run_pass(self, p, stream):
            yield [1]
            raise KeyError("mine")

    for measure in (TestDataSpeed.start, list):
        with pytest.raises(KeyError, match="mine"):
            measure(TestDataSpeed(Fails(1)))


@pytest.mark.parametrize("wrong", [{"size": 0}, {"size": -1}, {"warmup": -1}])
def test_invalid_sizes_raise(wrong):
    with pytest.raises(ValueError, match="size"):
        TestDataSpeed(Passes(1), **wrong)
