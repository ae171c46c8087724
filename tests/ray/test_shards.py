"""What tasks of Ray Data read, without Ray: the shards of a pass are the pass."""

import itertools
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from dataflow import (
    BatchData,
    ConcatData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    FilterData,
    MapData,
    ProxyDataFlow,
    RandomMapData,
    RepeatedData,
    RepeatedDataPoint,
    ShapeMismatch,
    WorkerError,
)
from dataflow.protocol.passes import root_stream
from dataflow.ray import datasets
from dataflow.ray.cluster import ClusterPayload
from dataflow.ray.datasets import FlowPass, Shard
from dataflow.system.pickling import dumps
from tests.support.contract import plain, seeded
from tests.support.faults import TwoArguments


def noise(dp, rng):
    return [dp[0], rng.random(3)]


def but_for_multiples_of_three(dp):
    return None if dp[0] % 3 == 0 else dp


def numbers(n=20, **kwargs):
    return DataFromList([[k, np.full((2, 2), k)] for k in range(n)], **kwargs)


CHAINS = {
    "a list": lambda: numbers(shuffle=False),
    "random": lambda: RandomMapData(numbers(), noise),
    "dropped": lambda: MapData(numbers(), but_for_multiples_of_three),
    "its first is dropped": lambda: MapData(numbers(shuffle=False), but_for_multiples_of_three),
    "a grain": lambda: RandomMapData(RepeatedDataPoint(numbers(7), 3), noise),
    "batches": lambda: BatchData(numbers(), 3),
    "no index": lambda: FilterData(numbers(), lambda dp: dp[0] % 2 == 1),
}


def read(df, num_shards=1, *, p=0, names=("x", "y"), rows_per_block=4, stop=None):
    packed = dumps(ClusterPayload(FlowPass(df, p, root_stream(df))))
    shards = [Shard(k, num_shards, tuple(names), rows_per_block) for k in range(num_shards)]
    return [list(itertools.islice(shard.read(packed), stop)) for shard in shards]


def rows(blocks):
    return [[plain(value) for value in row] for block in blocks for row in zip(*block.values(), strict=True)]


def as_rows(datapoints):
    """Datapoints as one stacks them: numbers have the dtype of a batch."""
    return [[plain(column[0]) for column in batch] for batch in BatchData(DataFromList(datapoints, shuffle=False), 1)]


@pytest.mark.parametrize("chain", [pytest.param(make, id=name) for name, make in CHAINS.items()])
@pytest.mark.parametrize("num_shards", [1, 2, 5, 30])
def test_the_shards_of_a_pass_are_the_pass(chain, num_shards):
    with seeded(3):
        df = chain()
        if not df.addressable:
            num_shards = 1
        for p in range(2):
            expected = as_rows(list(df))
            blocks = list(itertools.chain.from_iterable(read(df, num_shards, p=p)))
            assert rows(blocks) == expected
            assert all(len(block["x"]) <= 4 for block in blocks)


def test_a_shard_that_is_read_again_is_the_same():
    df = RandomMapData(numbers(), noise)  # and nobody has fixed a seed
    root_stream(df)
    packed = pickle.dumps(ClusterPayload(FlowPass(df, 1, root_stream(df))))
    shard = Shard(1, 2, ("x", "y"), 4)
    assert rows(shard.read(packed)) == rows(shard.read(packed))


def test_shards_of_an_endless_flow_take_blocks_in_turn():
    df = RepeatedData(DataFromList([[k] for k in range(100)], shuffle=False), -1)
    one, other = read(df, 2, names=("x",), rows_per_block=3, stop=2)
    assert [block["x"].tolist() for block in one] == [[0, 1, 2], [6, 7, 8]]
    assert [block["x"].tolist() for block in other] == [[3, 4, 5], [9, 10, 11]]


def test_dicts_give_the_columns_that_are_named():
    df = DataFromList([{"a": k, "b": -k, "c": str(k)} for k in range(3)], shuffle=False)
    ((block,),) = read(df, names=("c", "a"))
    assert list(block) == ["c", "a"]
    assert block["a"].tolist() == [0, 1, 2] and block["c"].tolist() == ["0", "1", "2"]
    with pytest.raises(KeyError, match="no component 'd' in a dict datapoint; there are"):
        read(df, names=("d",))


def listed(*values):
    return DataFromList([[value] for value in values], shuffle=False)


@pytest.mark.parametrize(
    ("df", "num_shards", "message"),
    [
        pytest.param(listed(np.ones(2), np.ones(3)), 1, r"\(2,\) and \(3,\)", id="in a block"),
        pytest.param(listed(*[np.ones(2)] * 4, *[np.ones(3)] * 4), 1, r"float64 \(2,\).*float64 \(3,\)", id="blocks"),
        pytest.param(
            ConcatData([listed(*[np.ones(2)] * 4), listed(*[np.ones(3)] * 4)]), 2, r"\(2,\).*\(3,\)", id="shards"
        ),
        pytest.param(listed(*[1] * 4, *[1.5] * 4), 2, r"int32 \(\) and float32 \(\)", id="dtypes"),
        pytest.param(listed(1, 1.5), 1, r"int32 \(\) and float64 \(\)", id="dtypes in a block"),
    ],
)
def test_a_column_has_one_form(df, num_shards, message):
    with pytest.raises(ShapeMismatch, match=f"^column 'x' of a Ray dataset .* {message}. Resize, pad or convert"):
        read(df, num_shards, names=("x",))


def test_texts_of_any_length_are_one_form():
    blocks = read(listed("a", "bb", "", "dd", "a longer one"), names=("x",))[0]
    assert [text for block in blocks for text in block["x"].tolist()] == ["a", "bb", "", "dd", "a longer one"]


@pytest.mark.parametrize("names", [("x",), ("x", "y", "z")])
def test_there_is_a_name_for_every_component(names):
    with pytest.raises(ValueError, match=rf"given {len(names)} names of columns, .* and datapoints have 2 components"):
        read(numbers(), names=names)


def test_other_mismatches_keep_their_message():
    with pytest.raises(ShapeMismatch, match="differ in their components"):
        read(DataFromList([[1, 2], {"a": 1, "b": 2}], shuffle=False))


class Raises(ProxyDataFlow):
    def __init__(self, ds, make):
        super().__init__(ds)
        self.make = make

    def __iter__(self):
        yield from self.ds
        raise self.make()


class OfThisFile(Exception):
    pass


def test_an_exception_that_survives_pickling_is_raised_as_it_is():
    class OfThisTest(Exception):
        """Cannot be found by its name, like one of a script; it travels by value."""

    for kind in (OfThisFile, OfThisTest):
        with pytest.raises(kind, match="nothing there"):
            read(Raises(numbers(), lambda kind=kind: kind("nothing there")))


def test_another_one_becomes_a_worker_error_with_its_type_and_text():
    with pytest.raises(WorkerError, match="TwoArguments: code 3 at /here") as caught:
        read(Raises(numbers(), lambda: TwoArguments(3, "/here")))
    assert isinstance(caught.value.__cause__, TwoArguments)


class Watched(DataFlow):
    resets, closes = 0, 0

    def __iter__(self):
        for k in range(10):
            yield [k]

    def reset_state(self):
        type(self).resets += 1

    def close(self):
        type(self).closes += 1
        super().close()


def test_the_flow_is_reset_once_and_closed_at_the_end_or_when_nobody_reads_on():
    Watched.resets = Watched.closes = 0
    packed = pickle.dumps(ClusterPayload(FlowPass(Watched(), 0, root_stream(Watched()))))
    assert len(list(Shard(0, 1, ("x",), 4).read(packed))) == 3
    assert (Watched.resets, Watched.closes) == (1, 1)
    blocks = Shard(0, 1, ("x",), 4).read(packed)
    next(blocks)
    blocks.close()
    assert (Watched.resets, Watched.closes) == (2, 2)


def test_a_generator_is_one_shard():
    blocks = read(DataFromGenerator(three), names=("x",))
    assert [block["x"].tolist() for block in blocks[0]] == [[0, 1, 2]]


def three():
    return iter([[0], [1], [2]])


def test_no_developer_interface_of_ray_data_is_used():
    text = Path(datasets.__file__).read_text("utf-8")
    assert not re.search(
        r"ray\.data\.(block|datasource|_internal)|Datasource|ReadTask|BlockMetadata|BlockAccessor", text
    )
