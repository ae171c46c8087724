import itertools

import numpy as np
import pytest

from dataflow.errors import Dropped, LengthUnknown, NotAddressable, ShapeMismatch
from dataflow.protocol.state import state_of
from dataflow.runners.maps import MultiThreadMapData
from dataflow.runners.parallel_data import ParallelData
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromGenerator, DataFromIterable
from dataflow.transforms import joining
from dataflow.transforms.batching import BatchData
from dataflow.transforms.joining import ConcatData, JoinData
from dataflow.transforms.mapping import MapData
from dataflow.transforms.repeating import RepeatedData
from dataflow.transforms.selecting import FlattenData
from dataflow.transforms.shuffling import LocallyShuffleData, ShuffleData
from tests.support.contract import OldStyle, seeded
from tests.support.flows import listed, overtaking


class Short(DataFromList):
    """Yields fewer datapoints than it is asked for."""

    def _df_at(self, blocks, stream):
        return itertools.islice(super()._df_at(blocks, stream), 2)


def test_an_input_that_yields_too_few_by_index_does_not_end_the_pass():
    df = ConcatData([Short([[k] for k in range(4)], shuffle=False), numbers(4, 10)])
    with pytest.raises(RuntimeError, match="Short has yielded fewer datapoints than it was asked for"):
        list(ShuffleData(df))


def numbers(n, start=0):
    return DataFromList([[start + k] for k in range(n)], shuffle=False)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([1], [2], [1, 2]),
        ((1, 2), (3,), [1, 2, 3]),
        ([1], (2,), [1, 2]),
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ([], [2], [2]),
    ],
)
def test_datapoints_are_put_side_by_side(left, right, expected):
    df = JoinData([DataFromList([left]), DataFromList([right])])
    assert list(df) == [expected] == [df[0]]


def test_keys_that_two_dicts_share_are_named():
    df = JoinData([DataFromList([{"a": 1, "b": 2}]), DataFromList([{"b": 3, "c": 4}])])
    for use in (list, lambda df: df[0]):
        with pytest.raises(ShapeMismatch, match=r"the key 'b'.*SelectComponent"):
            use(df)


@pytest.mark.parametrize("other", [{"a": 1}, 5])
def test_types_that_cannot_be_joined_are_named(other):
    with pytest.raises(TypeError, match=f"got list, {type(other).__name__}.*MapData"):
        list(JoinData([numbers(1), DataFromList([other])]))


def into(buffer):
    def fill(dp):
        buffer[:] = dp[0]
        return [buffer]

    return fill


def summed(buffer):
    return lambda dp: [into(buffer)(dp)[0].sum()]


def read_all(df):
    return [[np.ravel(item).tolist() for item in dp] for dp in df]


def read_by_index(df):
    return read_all(df[k] for k in range(3))


@pytest.mark.parametrize("make", [numbers, lambda n, start: DataFromIterable([[start + k] for k in range(n)])])
@pytest.mark.parametrize("other", [into, summed])
def test_inputs_that_fill_one_buffer_are_refused(make, other):
    buffer = np.zeros(2)
    df = JoinData([MapData(make(3, 0), into(buffer)), MapData(make(3, 50), other(buffer))])
    with pytest.raises(ValueError, match=r"JoinData: .* use the same memory.*array.copy"):
        list(df)


@pytest.mark.parametrize("read", [read_all, read_by_index])
def test_inputs_that_share_what_does_not_change_are_joined(read):
    one, constant = numbers(3), np.ones(1)
    df = JoinData([one, one, MapData(one, lambda dp: [*dp, constant]), MapData(one, lambda dp: [constant])])
    assert read(df) == [[[k], [k], [k], [1], [1]] for k in range(3)]
    own = JoinData([MapData(numbers(3), into(np.zeros(1))), MapData(numbers(3, 5), into(np.zeros(1)))])
    assert read(own) == [[[k], [k + 5]] for k in range(3)]


@pytest.mark.parametrize("nbytes", [1, 1 << 20])
def test_only_the_first_datapoints_are_compared(nbytes):
    large = np.zeros(nbytes, np.uint8)
    df = JoinData([MapData(numbers(100), lambda dp: [*dp, large]), numbers(100)])
    assert [[dp[0], dp[2]] for dp in df] == [[k, k] for k in range(100)]
    assert state_of(df).part(joining._LeftToCompare).num == 0
    assert [[dp[0], dp[2]] for dp in df] == [[k, k] for k in range(100)]


def test_an_error_of_an_input_stays_its_own():
    def fail(dp):
        raise ValueError("of the function")

    with pytest.raises(ValueError, match="of the function"):
        list(JoinData([numbers(2), MapData(numbers(2), fail)]))


def test_a_pass_ends_with_the_shortest():
    df = JoinData([numbers(5), numbers(2, 10), numbers(3, 20)])
    assert list(df) == [[0, 10, 20], [1, 11, 21]]
    assert len(df) == 2
    assert df[2] == [0, 10, 20]


def test_with_known_lengths_no_datapoint_is_read_in_vain():
    taken = []
    long = DataFromGenerator(lambda: (taken.append(k) or [k] for k in range(9)))
    long = FixedLength(long, 9)
    assert len(list(JoinData([long, numbers(3)]))) == 3
    assert taken == [0, 1, 2]


class FixedLength(RepeatedData):
    """The input, without a known length."""

    def __init__(self, ds, length):
        super().__init__(ds, 1)
        self.length = length

    def __len__(self):
        return self.length


def test_inputs_that_have_more_datapoints_than_their_length_are_joined_to_the_end():
    df = JoinData([FixedLength(FlattenData(MapData(numbers(3, k), lambda dp: dp * 2)), 3) for k in (0, 10)])
    assert list(df) == [[k, 10 + k] for k in (0, 0, 1, 1, 2, 2)]


def test_an_input_without_a_length_leaves_the_join_without_one():
    df = JoinData([DataFromGenerator(lambda: iter([[1], [2]])), numbers(5)])
    assert list(df) == [[1, 0], [2, 1]]
    with pytest.raises(LengthUnknown):
        len(df)


def test_an_endless_input_does_not_limit_the_length():
    df = JoinData([RepeatedData(numbers(2, 10), -1), numbers(3)])
    assert len(df) == 3 and not df._df_endless
    assert [list(df), list(df)] == [[[10, 0], [11, 1], [10, 2]], [[11, 0], [10, 1], [11, 2]]] == [df[0:3], df[3:6]]
    assert len(JoinData([LocallyShuffleData(numbers(2), 2), numbers(3)])) == 3


def test_only_endless_inputs_make_an_endless_join():
    df = JoinData([RepeatedData(numbers(2), -1), RepeatedData(numbers(3), -1)])
    assert df._df_endless and list(itertools.islice(df, 3)) == [[0, 0], [1, 1], [0, 2]] == df[0:3]


def test_a_flow_given_twice_is_reset_once_and_read_at_two_positions():
    old = OldStyle()
    assert all(dp[1] == dp[3] for dp in JoinData([old, old]))
    assert old.resets == 1
    with seeded(1):
        ds = DataFromList([[k] for k in range(30)])
        left, right = zip(*JoinData([ds, ds]), strict=True)
        assert sorted(left) == sorted(right) == list(range(30)) and left != right


def test_iteration_continues_after_a_dropped_datapoint_and_addressing_raises():
    df = JoinData([MapData(numbers(3), lambda dp: dp if dp[0] else None), numbers(3)])
    assert list(df) == [[1, 0], [2, 1]]
    with pytest.raises(Dropped, match="JoinData counts"):
        df[0]


def test_flows_are_read_one_after_the_other():
    df = ConcatData([numbers(2), numbers(0), DataFromIterable([[7]]), FlattenData(DataFromList([[8, 9]]))])
    assert list(df) == [[0], [1], [7], [8], [9]]
    with pytest.raises(LengthUnknown):
        len(df)
    with pytest.raises(NotAddressable, match="DataFromIterable"):
        df[0]


def test_a_concatenation_counts_its_passes():
    df = ConcatData([numbers(2), numbers(0), numbers(1, 5)])
    assert len(df) == 3 and df[0:7] == [[0], [1], [5], [0], [1], [5], [0]]
    endless = ConcatData([numbers(1), RepeatedData(numbers(2), -1)])
    assert endless._df_endless and not endless.addressable
    assert list(itertools.islice(endless, 4)) == [[0], [0], [1], [0]]


def test_dropped_datapoints_keep_their_index():
    df = ConcatData([MapData(numbers(2), lambda dp: dp if dp[0] else None), numbers(1)])
    assert list(df) == [[1], [0]] == df[0:3]
    with pytest.raises(Dropped):
        df[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda ds, func: MultiThreadMapData(ds, 2, func, strict=True, ordered=False),
        lambda ds, func: BatchData(
            ParallelData(MapData(ds, func), 2, backend="thread", ordered=False), 1, use_list=True
        ),
    ],
    ids=["map", "runner below batches"],
)
def test_datapoints_of_an_unordered_input_stand_beside_those_of_their_place(make):
    with JoinData([listed(40), make(listed(40), overtaking())]) as df:
        assert [(dp[0], *np.ravel(dp[1])) for dp in df] == [(k, k) for k in range(40)]
