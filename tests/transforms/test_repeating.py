import itertools
import logging

import pytest

from dataflow.errors import Dropped, EmptyPass, LengthUnknown, NotReentrant
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromGenerator, DataFromIterable
from dataflow.transforms.joining import JoinData
from dataflow.transforms.mapping import MapData
from dataflow.transforms.repeating import FixedSizeData, RepeatedData, RepeatedDataPoint
from tests.support.contract import seeded


def numbers(n):
    return DataFromList(range(n), shuffle=False)


def generated(n):
    return DataFromGenerator(lambda: iter(range(n)))


def never(_):
    return None


SOURCES = pytest.mark.parametrize("source", [numbers, generated, lambda n: DataFromIterable(range(n))])


@SOURCES
def test_a_number_of_passes_becomes_one(source):
    df = RepeatedData(source(3), 2)
    assert [list(df), list(df)] == [[0, 1, 2, 0, 1, 2]] * 2


def test_repeated_passes_are_consecutive_passes_of_the_input():
    with seeded(1):
        single, double = DataFromList(range(9)), RepeatedData(DataFromList(range(9)), 2)
        assert list(double) + list(double) == [k for _ in range(4) for k in single]


def test_the_length_is_that_of_all_passes_or_endless():
    assert len(RepeatedData(numbers(3), 4)) == 12
    assert not RepeatedData(numbers(3), 4)._df_endless
    with pytest.raises(LengthUnknown, match="never ends"):
        len(RepeatedData(numbers(3), -1))


@SOURCES
def test_an_endless_flow_continues_where_it_stopped(source):
    df = RepeatedData(source(3), -1)
    assert list(itertools.islice(df, 4)) == [0, 1, 2, 0]
    assert list(itertools.islice(df, 4)) == [1, 2, 0, 1]


@SOURCES
def test_an_endless_flow_over_an_empty_input_ends_with_a_warning(source, caplog):
    with caplog.at_level(logging.WARNING, "dataflow"):
        assert list(RepeatedData(source(0), -1)) == []
    assert "pass of" in caplog.text and "was empty" in caplog.text


@pytest.mark.parametrize(("num", "error"), [(0, ValueError), (-2, ValueError), (1.5, TypeError), (True, TypeError)])
def test_numbers_of_passes_are_minus_1_or_at_least_1(num, error):
    with pytest.raises(error, match=str(num)):
        RepeatedData(numbers(3), num)


def test_a_datapoint_is_repeated_as_the_same_object():
    first, second, *_ = RepeatedDataPoint(DataFromList([[1]]), 3)
    assert first is second


def test_a_repeated_datapoint_is_made_once_for_a_block():
    calls = []
    df = RepeatedDataPoint(MapData(numbers(4), lambda k: calls.append(k) or k), 5)
    assert df[0:20] == [k for k in range(4) for _ in range(5)]
    assert calls == [0, 1, 2, 3]
    assert [df[19], df[20], df[4], df[5]] == [3, 0, 0, 1]


def test_a_dropped_datapoint_is_dropped_as_often_as_it_was_repeated():
    df = RepeatedDataPoint(MapData(numbers(3), lambda k: None if k == 1 else k), 2)
    assert list(df) == [0, 0, 2, 2] == df[0:6]
    with pytest.raises(Dropped):
        df[3]


@SOURCES
def test_a_fixed_size_continues_where_the_last_pass_ended(source):
    df = FixedSizeData(source(5), 3)
    assert [list(df) for _ in range(4)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]


@SOURCES
def test_a_fixed_size_larger_than_a_pass_wraps(source):
    assert list(FixedSizeData(source(2), 5)) == [0, 1, 0, 1, 0]


@SOURCES
def test_without_state_every_pass_starts_over_also_after_a_break(source):
    df = FixedSizeData(source(5), 3, keep_state=False)
    assert next(iter(df)) == 0
    assert [list(df), list(df)] == [[0, 1, 2]] * 2


def test_without_state_no_pass_of_the_input_is_read_twice():
    with seeded(1):
        passes = [list(DataFromList(range(4))[4 * p : 4 * p + 4]) for p in range(4)]
        for df in (
            FixedSizeData(DataFromList(range(4)), 6, False),
            FixedSizeData(Plain(DataFromList(range(4))), 6, False),
        ):
            assert list(df) == [*passes[0], *passes[1][:2]]
            assert list(df) == [*passes[2], *passes[3][:2]]


class Plain(RepeatedData):
    """The same flow, without addressing."""

    def __init__(self, ds):
        super().__init__(ds, 1)

    @property
    def _df_indexed(self):
        return False


def test_an_interrupted_pass_counts_if_the_input_is_addressable():
    df = FixedSizeData(numbers(5), 3)
    assert next(iter(df)) == 0
    assert list(df) == [3, 4, 0]
    df = FixedSizeData(generated(5), 3)
    assert next(iter(df)) == 0
    assert list(df) == [1, 2, 3]


def test_a_pass_is_filled_up_when_a_map_below_drops():
    def even(k):
        return None if k % 2 else k

    assert list(FixedSizeData(MapData(numbers(6), even), 5)) == [0, 2, 4, 0, 2]
    assert list(FixedSizeData(MapData(generated(6), even), 5)) == [0, 2, 4, 0, 2]
    with pytest.raises(Dropped, match="FixedSizeData counts"):
        FixedSizeData(MapData(numbers(6), even), 5)[0:2]


@pytest.mark.parametrize("keep_state", [True, False])
@pytest.mark.parametrize(
    "ds", [numbers(0), generated(0), DataFromIterable([]), MapData(numbers(3), never), MapData(generated(3), never)]
)
def test_an_empty_input_is_an_error(ds, keep_state):
    with pytest.raises(EmptyPass, match="needs 2 datapoints"):
        list(FixedSizeData(ds, 2, keep_state))


def test_an_empty_input_has_no_index_either():
    with pytest.raises(EmptyPass):
        FixedSizeData(numbers(0), 2)[0]


def test_an_endless_input_continues_with_and_without_state():
    for keep_state in (True, False):
        df = FixedSizeData(RepeatedData(numbers(4), -1), 3, keep_state)
        assert [list(df), list(df)] == [[0, 1, 2], [3, 0, 1]] == [df[0:3], df[3:6]]


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_start_at_1(size):
    with pytest.raises(ValueError, match=f"got {size}"):
        FixedSizeData(numbers(3), size)
    with pytest.raises(ValueError, match=f"got {size}"):
        RepeatedDataPoint(numbers(3), size)


def drops(n, keep):
    return MapData(DataFromList([[k] for k in range(n)], shuffle=False), lambda dp: dp if keep(dp[0]) else None)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 13])
def test_over_an_input_that_drops_no_datapoint_is_given_twice_or_left_out(size):
    df = FixedSizeData(drops(12, lambda k: k % 3 == 0), size)
    given = [k for _ in range(6) for (k,) in df]
    assert given == list(itertools.islice(itertools.cycle([0, 3, 6, 9]), 6 * size))


def test_before_the_first_hole_a_pass_begins_at_its_index_and_behind_it_where_the_last_one_ended():
    df = FixedSizeData(drops(20, lambda k: k != 13), 4)
    assert [k for (k,) in itertools.islice(df, 2)] == [0, 1]
    assert [k for (k,) in df] == [4, 5, 6, 7], "nothing was dropped so far"
    assert [k for (k,) in df] == [8, 9, 10, 11]
    assert [k for (k,) in itertools.islice(df, 2)] == [12, 14]
    assert [k for (k,) in df] == [15, 16, 17, 18]
    assert [k for (k,) in df] == [19, 0, 1, 2]


def test_over_an_input_that_drops_the_later_of_two_iterations_takes_over():
    df = FixedSizeData(drops(12, lambda k: k % 2), 3)
    first, second = iter(df), None
    assert next(first) == [1]
    second = iter(df)
    assert next(second) == [3]
    with pytest.raises(NotReentrant, match="a later iteration of FixedSizeData"):
        next(first)
    assert [k for (k,) in second] == [5, 7]
    df.close()
    assert [k for (k,) in df] == [7, 9, 11], "again at the index of pass 2"


def test_two_places_of_a_chain_hold_a_position_each():
    fixed = FixedSizeData(drops(12, lambda k: k % 3 == 0), 3)
    df = JoinData([fixed, fixed])
    assert [dp for _ in range(3) for dp in df] == [[k, k] for k in [0, 3, 6, 9, 0, 3, 6, 9, 0]]


def test_without_keep_state_an_input_that_drops_starts_over():
    df = FixedSizeData(drops(12, lambda k: k % 3 == 0), 3, keep_state=False)
    assert [[k for (k,) in df] for _ in range(3)] == [[0, 3, 6]] * 3


def test_the_end_of_an_endless_input_that_cannot_be_strict_is_not_asked_for(caplog):
    df = RepeatedData(RepeatedData(numbers(2), -1), 3)
    assert [dp for dp, _ in zip(df, range(3), strict=False)] == [0, 1, 0]
    assert not caplog.records
