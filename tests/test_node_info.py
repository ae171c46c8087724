import queue

import pytest

from dataflow import (
    BatchData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    DataFromQueue,
    FixedSizeData,
    FlattenData,
    JoinData,
    LocallyShuffleData,
    MapData,
    MultiProcessRunnerZMQ,
    MultiThreadRunner,
    RandomMixData,
    RepeatedData,
    RepeatedDataPoint,
    ShardData,
    ShuffleData,
)
from dataflow.protocol.passes import walk
from dataflow.protocol.seeding import Stream


def numbers():
    return DataFromList([[k] for k in range(6)])


@pytest.mark.parametrize(
    ("make", "grain"),
    [
        (numbers, 1),
        (lambda: RepeatedDataPoint(numbers(), 3), 3),
        (lambda: MapData(RepeatedDataPoint(RepeatedDataPoint(numbers(), 3), 2), list), 6),
        (lambda: BatchData(RepeatedDataPoint(numbers(), 6), 4), 3),
        (lambda: BatchData(RepeatedDataPoint(numbers(), 3), 3), 1),
        (lambda: FlattenData(RepeatedDataPoint(numbers(), 2), num=2), 4),
        (lambda: ShuffleData(RepeatedDataPoint(numbers(), 2)), 1),
        (lambda: ShardData(RepeatedDataPoint(numbers(), 2), 0, 2), 1),
        (lambda: JoinData([RepeatedDataPoint(numbers(), 2)] * 2), 1),
    ],
)
def test_blocks_of_grain_indexes_share_work(make, grain):
    assert make()._df_grain == grain


def test_only_what_gives_the_same_order_again_is_reproducible():
    assert all(
        df._df_reproducible
        for df in (numbers(), LocallyShuffleData(numbers(), 3), MultiProcessRunnerZMQ(numbers(), 1), DataFlow())
    )
    mixed = (MultiProcessRunnerZMQ(numbers(), 2), MultiThreadRunner(numbers, 5, 2), DataFromQueue(queue.Queue()))
    assert not any(df._df_reproducible for df in mixed)


def test_what_goes_on_where_it_stopped_says_so():
    iterator = iter([[1]])
    going_on = (
        RepeatedData(numbers(), -1),
        FixedSizeData(numbers(), 4),
        LocallyShuffleData(numbers(), 3),
        DataFromGenerator(iterator),
        MultiProcessRunnerZMQ(numbers(), 1),
    )
    assert all(df._df_continues for df in going_on)
    beginning_anew = (RepeatedData(numbers(), 2), FixedSizeData(numbers(), 4, keep_state=False), numbers(),
                      DataFromGenerator(lambda: iterator), DataFromGenerator([[1]]))  # fmt: skip
    assert not any(df._df_continues for df in beginning_anew)


def test_a_runner_stands_for_its_input():
    ds = numbers()
    assert ds._df_stands_for is ds
    assert MultiProcessRunnerZMQ(ds, 2)._df_stands_for is ds


def test_a_rank_belongs_to_all_above_it_along_first_inputs():
    shard = ShardData(RepeatedData(numbers(), 2), 1, 3)
    assert (
        shard._df_depth.ranks,
        MapData(shard, list)._df_depth.ranks,
        ShardData(MapData(shard, list), 0, 2)._df_depth.ranks,
    ) == (
        (),
        (1,),
        (1,),
    )
    assert RandomMixData([numbers(), shard])._df_depth.ranks == ()
    assert ShardData(numbers(), 0, 1)._df_own_rank is None
    stream = Stream(1)
    above, below = ShuffleData(shard)._df_words(stream, 0), ShuffleData(shard.ds)._df_words(stream, 0)
    assert above[: len(below)] == below and above[len(below) :] == (1,)


def test_what_is_compared_of_a_node_are_its_public_attributes():
    df = BatchData(numbers(), 2)
    df._private = 5
    assert df._df_compared == {"ds": df.ds, "batch_size": 2, "remainder": False, "use_list": False, "seed": None}
    assert ShuffleData(numbers(), seed=5)._df_compared["seed"] == 5


def test_a_walk_may_go_on_behind_workers():
    df = MapData(MultiProcessRunnerZMQ(ShuffleData(numbers()), 1), list)
    assert [type(node).__name__ for node in walk(df)] == ["MapData", "MultiProcessRunnerZMQ"]
    assert [type(node).__name__ for node in walk(df, everywhere=True)][2:] == ["ShuffleData", "DataFromList"]
