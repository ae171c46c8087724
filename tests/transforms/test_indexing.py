"""Index arithmetic: which indexes are asked for, in which blocks, and what belongs where."""

import itertools

import numpy as np
import pytest

from dataflow import (
    BatchData,
    DataFlow,
    DataFromList,
    Dropped,
    FlattenData,
    MapData,
    ProxyDataFlow,
    RepeatedData,
    RepeatedDataPoint,
    TimeoutError,
)
from dataflow.protocol.datapoint import HOLE
from dataflow.protocol.passes import pick, root_stream
from dataflow.protocol.state import Drops, state_of
from dataflow.transforms import indexing


def blocks_of(iterator, num=None):
    blocks = list(itertools.islice(iterator, num))
    assert all(block.dtype == np.int64 for block in blocks)
    return [block.tolist() for block in blocks]


@pytest.mark.parametrize(
    ("begin", "end", "lengths"),
    [(0, 0, []), (3, 4, [1]), (0, 256, [256]), (5, 262, [256, 1]), (5, 517, [256, 256]), (5, 518, [256, 256, 1])],
)
def test_consecutive_indexes_come_in_blocks_that_cover_them(begin, end, lengths):
    blocks = blocks_of(indexing.consecutive(begin, end))
    assert list(map(len, blocks)) == lengths
    assert list(itertools.chain.from_iterable(blocks)) == list(range(begin, end))


def test_indexes_onwards_never_end_and_a_block_ends_at_what_is_wanted():
    blocks = blocks_of(indexing.onwards(7, 300), 6)
    assert list(map(len, blocks)) == [256, 44] * 3
    assert list(itertools.chain.from_iterable(blocks)) == list(range(7, 907))
    assert list(map(len, blocks_of(indexing.onwards(0), 3))) == [256] * 3


class Recorded(DataFlow):
    """Records what is asked of it: passes have three datapoints, the last of which is dropped."""

    _df_addressable = True
    _df_endless = property(lambda self: self.endless)

    def __init__(self, *, endless):
        self.endless = endless
        self.asked = []

    def _df_num_from(self, begin):
        self.asked.append(begin)
        return 3

    def _df_at(self, blocks, stream):
        self.asked.append((blocks_of(blocks, 2), stream))
        return iter([[0], [1], HOLE])

    def _df_run_pass(self, p, stream):
        self.asked.append((p, stream))
        return iter([[p]])


def test_a_finite_pass_is_read_by_the_indexes_of_the_pass():
    for read in (indexing.pass_by_index, indexing.order_by_index):
        df = Recorded(endless=False)
        stream = root_stream(df)
        assert list(read(df, 2, stream)) == [[0], [1]]
        assert df.asked[0] == stream.begin and df.asked[1][0] == [[6, 7, 8]] and df.asked[1][1] is stream


def test_an_endless_order_continues_where_the_last_pass_stopped():
    df = Recorded(endless=True)
    stream = root_stream(df)
    assert [list(itertools.islice(indexing.order_by_index(df, p, stream), 1)) for p in range(2)] == [[[0]], [[1]]]
    ((blocks, asked),) = df.asked
    assert [block[0] for block in blocks] == [0, 256] and asked is stream


@pytest.mark.parametrize("make", [lambda ds: RepeatedDataPoint(ds, 2), FlattenData, lambda ds: FlattenData(ds, num=2)])
def test_a_loop_over_an_endless_flow_that_is_left_loses_no_part_of_a_datapoint(make):
    df = make(RepeatedData(DataFromList([[1, 2], [3, 4]], shuffle=False), -1))
    whole = list(itertools.islice(make(df.ds), 12))
    assert [dp for _ in range(4) for dp in itertools.islice(df, 3)] == whole


def test_an_input_of_which_each_pass_takes_as_many_is_read_by_index_if_it_is_endless():
    df = Recorded(endless=True)
    stream = root_stream(df)
    assert list(indexing.pass_from(df, 2, 5, stream)) == [[0], [1]]
    assert df.asked[0][0] == [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]] and df.asked[0][1] is stream
    for endless, num_taken in ((True, None), (False, 5)):
        df = Recorded(endless=endless)
        assert list(indexing.pass_from(df, 2, num_taken, stream)) == [[2]]
        assert df.asked == [(2, stream)]


class WithoutOrder(Recorded):
    _df_reproducible = False


def test_an_input_whose_passes_have_no_order_is_read_by_index_unless_it_is_endless():
    df = WithoutOrder(endless=False)
    stream = root_stream(df)
    assert list(indexing.pass_from(df, 2, 5, stream)) == [[0], [1]]
    assert df.asked[0] == stream.begin and df.asked[1] == ([[6, 7, 8]], stream)
    df = WithoutOrder(endless=True)
    assert list(indexing.pass_from(df, 2, None, stream)) == [[2]]
    assert df.asked == [(2, stream)]


class Weighted(Recorded):
    """Has a mixture below, with these weights."""

    weights = "1 and 2"

    def _df_weights(self):
        return (self.weights,)


@pytest.mark.parametrize("endless", [False, True])
def test_passes_that_are_read_by_index_cannot_continue_with_other_weights(endless):
    df = Weighted(endless=endless)
    stream = root_stream(df)

    def read(p, stream=stream):
        return list(indexing.pass_from(df, p, 5, stream) if endless else indexing.pass_by_index(df, p, stream))

    assert read(0) == read(1) == [[0], [1]]
    df.weights = "2 and 1"
    with pytest.raises(ValueError, match=r"^MixData: weights were 1 and 2 when .* and are 2 and 1 now"):
        read(2)
    assert read(0, stream.turn(0, 1)) == [[0], [1]]  # another place in the chain has passes of its own


def test_passes_of_an_endless_input_continue_one_another_and_those_of_another_are_its_own():
    ds = DataFromList([[k] for k in range(3)], shuffle=False)
    endless = RepeatedData(ds, -1)
    stream = root_stream(endless)

    def first_of(df, p, num_taken):
        return [dp[0] for dp in itertools.islice(indexing.pass_from(df, p, num_taken, stream), 4)]

    assert [first_of(endless, p, 4) for p in range(2)] == [[0, 1, 2, 0], [1, 2, 0, 1]]
    assert [first_of(ds, p, 4) for p in range(2)] == [[0, 1, 2]] * 2


def test_the_pass_and_the_position_of_an_index_are_quotient_and_remainder():
    ds = DataFromList([[0]], shuffle=False)
    passes, positions = indexing.passes_and_positions(ds, np.array([0, 4, 5, 13]), 5)
    assert (passes.tolist(), positions.tolist()) == ([0, 0, 1, 2], [0, 4, 0, 3])
    assert [part.tolist() for part in indexing.passes_and_positions(ds, np.array([0, 3]), 1)] == [[0, 3], [0, 0]]
    assert [part.tolist() for part in indexing.passes_and_positions(ds, np.array([], np.int64), 0)] == [[], []]
    with pytest.raises(IndexError, match=r"^DataFromList is empty: there is no datapoint at index 7$"):
        indexing.passes_and_positions(ds, np.array([7]), 0)


def test_entries_of_the_tables_of_several_passes_come_in_the_order_of_the_positions():
    asked = []

    def tables(p):
        asked.append(p)
        return np.arange(4) + 10 * p, -np.arange(4) - 10 * p

    found = indexing.reorder(np.array([2, 0, 2, 1]), np.array([3, 1, 0, 2]), tables)
    assert [column.tolist() for column in found] == [[23, 1, 20, 12], [-23, -1, -20, -12]]
    assert asked == [0, 1, 2]
    found = indexing.reorder(np.array([2, 0, 2]), np.array([3, 1, 0]), tables)
    assert [column.tolist() for column in found] == [[23, 1, 20], [-23, -1, -20]]
    found = indexing.reorder(np.array([1, 1]), np.array([3, 0]), lambda p: (np.arange(4, dtype=np.uint64) + p,))
    assert [(column.dtype, column.tolist()) for column in found] == [(np.int64, [4, 1])]
    assert indexing.reorder(np.array([], np.int64), np.array([], np.int64), tables) == []


def test_a_hole_ends_what_counts_datapoints_with_an_error_that_names_the_node():
    ds = DataFromList([[0]], shuffle=False)
    datapoints = indexing.none_dropped(iter([[1], [2], HOLE, [3]]), ds)
    assert [next(datapoints), next(datapoints)] == [[1], [2]]
    with pytest.raises(Dropped, match=r"^DataFromList counts datapoints, and one below it was dropped"):
        next(datapoints)
    assert state_of(ds).part(Drops).has_dropped is True
    ds = DataFromList([[0]], shuffle=False)
    assert list(indexing.none_dropped(iter([[1], [2]]), ds)) == [[1], [2]]


def test_an_item_of_a_flow_below_which_one_was_dropped_before_is_refused():
    dropping = MapData(DataFromList([[k] for k in range(4)], shuffle=False), lambda dp: None if dp == [3] else dp)
    df = BatchData(dropping, 2)
    assert df[0][0].tolist() == [0, 1]
    assert len(list(dropping)) == 3
    assert dropping[0] == [0]  # its own positions are those of its input
    with pytest.raises(Dropped, match=r"^BatchData counts datapoints, and one below it was dropped"):
        df[0]


class WithWorkers(ProxyDataFlow):
    """As its inputs are made by workers, most walks over the nodes end here."""

    _df_remote_inputs = True


def test_what_was_dropped_below_workers_is_noticed_too_and_what_a_node_has_skipped_is_its_own():
    ds = DataFromList([[0]], shuffle=False)
    df = WithWorkers(ds)

    def picked(node):
        return pick(lambda: list(indexing.none_dropped(iter([[1]]), node)))

    assert picked(df) == [[1]]
    state_of(ds).part(Drops).has_skipped = True
    assert picked(ds) == [[1]]
    with pytest.raises(Dropped, match="WithWorkers counts datapoints"):
        picked(df)
    assert list(indexing.none_dropped(iter([[1]]), df)) == [[1]]  # it is iterated: holes will be seen


class Late:
    """Steps, one of which comes too late."""

    def __init__(self):
        self.steps = iter([[1], TimeoutError("late"), [2]])

    def __iter__(self):
        return self

    def __next__(self):
        if isinstance(step := next(self.steps), Exception):
            raise step
        return step


class Waiting(DataFlow):
    _df_waits = True


def test_after_a_timeout_what_counts_datapoints_continues():
    datapoints = indexing.none_dropped(Late(), Waiting())
    assert next(datapoints) == [1]
    with pytest.raises(TimeoutError, match=r"^late$"):
        next(datapoints)
    assert list(datapoints) == [[2]]
