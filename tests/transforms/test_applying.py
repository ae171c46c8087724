"""Maps whose function fails: notes on errors, tolerated failures, and their budget."""

import functools
import logging
import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import (
    BatchData,
    DataFromList,
    Dropped,
    FixedSizeData,
    MapData,
    MapDataComponent,
    MultiProcessMapData,
    MultiThreadMapData,
    RepeatedData,
    TooManyFailures,
)
from dataflow.transforms.applying import Applied
from tests.support.contract import check_node


def numbers(n, **kwargs):
    return DataFromList([[k, str(k)] for k in range(n)], shuffle=False, **kwargs)


class WithoutText:
    def __call__(self, dp):
        return dp

    def __repr__(self):
        raise AssertionError("the text of a function, perhaps with all its data, is needed for failures only")


def test_a_pass_without_failures_makes_no_text_of_the_function():
    assert list(Applied("MapData", WithoutText(), lambda k: (0, k)).over([[1], [2]])) == [[1], [2]]


class Bad(Exception):
    pass


def bad_at(*positions):
    def decode(dp):
        number = dp[0] if isinstance(dp, list) else dp
        if number in positions:
            raise Bad(f"number {number}")
        return dp

    return decode


BOTH = pytest.mark.parametrize("node", [MapData, MapDataComponent])


def keep(dp):
    return dp


@pytest.mark.parametrize("node", [MapData, functools.partial(MapDataComponent, index=0)])
def test_a_map_with_a_failure_budget_is_a_node(node):
    check_node(lambda ds: node(ds, keep, max_failures=3))


# -- errors ------------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("budget", [None, 0])
def test_without_a_budget_the_error_is_raised_and_names_node_and_position(node, budget):
    df = node(numbers(9), bad_at(6), max_failures=budget)
    next(iter(df))  # an interrupted pass
    for use, where in ((list, "datapoint 6 of pass 1"), (lambda df: df[15], "datapoint 6 of pass 1")):
        with pytest.raises(Bad, match="number 6") as caught:
            use(df)
        (note,) = caught.value.__notes__
        assert f"{node.__name__}: " in note and "decode" in note and note.endswith(f", for {where}")
        assert "in decode" in "".join(traceback.format_exception(caught.value))
    assert df.failures == []


@BOTH
def test_positions_are_right_in_blocks_of_any_size(node):
    df = RepeatedData(node(numbers(7), bad_at(5)), 3)
    for use in (lambda df: df[0:14], lambda df: df[5:6], lambda df: df[3:21:2], lambda df: df[19]):
        with pytest.raises(Bad) as caught:
            use(df)
        assert ", for datapoint 5 of pass " in caught.value.__notes__[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@BOTH
def test_base_exceptions_are_never_tolerated(node, error):
    def stop(_):
        raise error

    df = node(numbers(3), stop, max_failures=10)
    with pytest.raises(error):
        list(df)
    assert df.failures == []


@BOTH
def test_stop_iteration_is_a_failure_and_does_not_end_the_pass(node):
    def stop(value):
        if (value[0] if isinstance(value, list) else value) == 1:
            raise StopIteration
        return value

    df = node(numbers(4), stop, max_failures=1)
    assert [dp[0] for dp in df] == [0, 2, 3]
    assert df.failures[0].kind == "RuntimeError"
    assert "raised StopIteration" in df.failures[0].text


class Reserved(Exception):
    """An exception that lets nobody read the attributes that it has not."""

    def __getattr__(self, name):
        raise KeyError(name)


@pytest.mark.parametrize("kind", [MapData, MultiThreadMapData, MultiProcessMapData])
def test_an_exception_that_takes_no_note_is_raised_all_the_same(kind):
    def func(dp):
        raise Reserved("bad")

    df = kind(numbers(3), func) if kind is MapData else kind(numbers(3), 1, func, strict=True, buffer_size=2)
    with df, pytest.raises(Reserved) as caught:  # `match` would read the notes, too
        list(df)
    assert caught.value.args == ("bad",)


@pytest.mark.parametrize("wrong", [True, -1, 1.0, float("nan"), "5"])
@BOTH
def test_an_invalid_budget_raises(node, wrong):
    with pytest.raises((TypeError, ValueError), match=f"{node.__name__}: max_failures must be"):
        node(numbers(1), keep, max_failures=wrong)


# -- tolerated failures ------------------------------------------------------------------------------------------------


@BOTH
def test_failures_within_the_budget_are_dropped_logged_and_listed(node, caplog):
    df = node(numbers(6), bad_at(1, 4), max_failures=2)
    with caplog.at_level(logging.WARNING, "dataflow"):
        assert [dp[0] for dp in df] == [0, 2, 3, 5]
    assert len(df) == 6
    assert [(failure.position, failure.in_pass, failure.text) for failure in df.failures] == [
        (1, 0, "number 1"),
        (4, 0, "number 4"),
    ]
    failure = df.failures[0]
    assert failure.node.startswith(f"{node.__name__}(") and "decode" in failure.node
    assert failure.kind.endswith("test_applying.Bad")
    assert "in decode" in failure.traceback
    assert pickle.loads(pickle.dumps(df.failures)) == df.failures
    first, second = (record.getMessage() for record in caplog.records)
    assert "datapoint 1 of pass 0" in first and "number 1" in first and node.__name__ in first
    assert "datapoint 4 of pass 0" in second


@BOTH
def test_one_failure_too_many_is_an_error_with_the_list_and_the_last_one_as_its_cause(node):
    df = node(numbers(9), bad_at(1, 4, 6), max_failures=2)
    received = []
    with pytest.raises(TooManyFailures, match=f"{node.__name__}: 3 datapoints of one pass .* max_failures=2") as caught:
        received.extend(dp[0] for dp in df)
    assert [failure.position for failure in caught.value.failures] == [1, 4, 6]
    assert isinstance(caught.value.__cause__, Bad) and str(caught.value.__cause__) == "number 6"
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.failures == caught.value.failures


def test_every_pass_has_the_full_budget():
    df = MapData(numbers(5), bad_at(1, 4), max_failures=2)
    for _ in range(5):
        assert [dp[0] for dp in df] == [0, 2, 3]
    assert [failure.in_pass for failure in df.failures] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_a_reset_clears_the_failures_and_closing_does_not():
    df = MapData(numbers(3), bad_at(1), max_failures=1)
    list(df)
    df.close()
    assert len(df.failures) == 1
    df.reset_state()
    assert df.failures == []


def test_a_copy_has_failures_of_its_own():
    df = MapData(numbers(3), bad_at(1), max_failures=1)
    list(df)
    copy = pickle.loads(pickle.dumps(MapData(numbers(3), keep, max_failures=1)))
    assert copy.max_failures == 1 and copy.failures == []


def test_a_fraction_of_all_datapoints_may_fail():
    fine = MapData(numbers(400), bad_at(*range(0, 400, 10)), max_failures=0.11)
    assert len(list(fine)) == 360
    many = MapData(numbers(400), bad_at(*range(0, 400, 5)), max_failures=0.11)
    with pytest.raises(TooManyFailures, match="12 of the 56 datapoints seen") as caught:
        list(many)
    assert caught.value.failures[-1].position == 55
    assert isinstance(caught.value.__cause__, Bad)


def test_a_short_pass_does_not_lose_all_its_datapoints():
    df = MapData(numbers(60), bad_at(*range(60)), max_failures=0.4)
    with pytest.raises(TooManyFailures, match="41 of the 41"):
        list(df)


def test_datapoints_dropped_by_a_map_below_are_not_counted():
    below = MapData(numbers(6), lambda dp: None if dp[0] % 2 else dp)
    df = MapData(below, bad_at(4), max_failures=1)
    assert [dp[0] for dp in df] == [0, 2]
    assert df.failures[-1].position == 2  # the third datapoint received
    assert df[0:6] == [[0, "0"], [2, "2"]]
    assert df.failures[-1].position == 4  # addressed, it is the index


def test_two_maps_have_separate_budgets():
    df = MapData(MapDataComponent(numbers(6), bad_at(1, 2), max_failures=2), bad_at(4), max_failures=1)
    assert [dp[0] for dp in df] == [0, 3, 5]
    assert len(df.failures) == 3 and len(df.ds.failures) == 2


def test_a_missing_component_is_a_failure_of_the_item():
    df = MapDataComponent(DataFromList([[1, 2], [3]], shuffle=False), keep, 1, max_failures=1)
    assert list(df) == [[1, 2]]
    assert df.failures[0].kind == "IndexError"


# -- addressed ---------------------------------------------------------------------------------------------------------


def test_a_failed_datapoint_keeps_its_index_and_is_dropped():
    df = MapData(numbers(4), bad_at(1), max_failures=1)
    assert df[2] == [2, "2"]
    for _ in range(3):  # the same item each time
        with pytest.raises(Dropped, match="index 1"):
            df[1]
    assert [dp[0] for dp in df[0:8]] == [0, 2, 3, 0, 2, 3]


def test_a_node_that_counts_cannot_be_addressed_above_it_but_iterated():
    df = BatchData(MapData(numbers(5), bad_at(1), max_failures=1), 2)
    assert [batch[0].tolist() for batch in df] == [[0, 2], [3, 4]]
    with pytest.raises(Dropped, match="BatchData counts"):
        df[0]


def test_beyond_the_budget_addressing_raises_too():
    df = MapData(numbers(6), bad_at(1, 3), max_failures=1)
    with pytest.raises(TooManyFailures):
        df[0:6]
    assert [dp[0] for dp in FixedSizeData(MapData(numbers(6), bad_at(1), max_failures=1), 3)] == [0, 2, 3]


@given(
    n=st.integers(1, 30),
    bad=st.sets(st.integers(0, 29)),
    dropped=st.sets(st.integers(0, 29)),
    budget=st.integers(1, 30),
    sizes=st.lists(st.integers(1, 20), max_size=4),
)
def test_a_pass_and_its_indexes_tolerate_the_same_failures(n, bad, dropped, budget, sizes):
    below = MapData(numbers(n), lambda dp: None if dp[0] in dropped else dp)
    failing = sorted(k for k in bad - dropped if k < n)
    good = [k for k in range(n) if k not in bad | dropped]

    def iterated(df):
        return [dp[0] for dp in df]

    def addressed(df):
        found, start = [], 0
        for size in [*sizes, n]:
            found += [dp[0] for dp in df[start : min(n, start + size)]]
            start += size
        return found

    for use in (iterated, addressed):
        df = MapData(below, bad_at(*bad), max_failures=budget)
        if len(failing) > budget:
            with pytest.raises(TooManyFailures) as caught:
                use(df)
            assert len(caught.value.failures) == budget + 1
        else:
            assert use(df) == good
            assert [int(failure.text.split()[1]) for failure in df.failures] == failing
            if use is addressed:
                assert [failure.position for failure in df.failures] == failing


# -- cost --------------------------------------------------------------------------------------------------------------


def test_without_a_budget_an_item_costs_one_call_of_the_kernel():
    calls = []
    applied = Applied("MapData", keep, lambda k: calls.append(k) or (0, k))
    step = applied.step
    assert applied.over([[1]]).__reduce__()[1][0] == step, "map() calls the kernel itself, with nothing in between"
    assert list(applied.over([[1]])) == [[1]] and calls == [], "positions are computed only after a failure"


def test_a_flow_may_begin_in_a_function_that_no_node_calls():
    flow = DataFromList([[7]], shuffle=False)
    assert list(Applied("MapData", lambda dp: list(flow), lambda k: (0, k)).over([[1]])) == [[[7]]]
