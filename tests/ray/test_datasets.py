"""A pass of a flow as a Ray dataset, and a Ray dataset as a flow; and what tasks of Ray Data read, without Ray."""

import importlib.util
import itertools
import pickle
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dataflow import (
    BatchData,
    ConcatData,
    DataFlow,
    DataFlowError,
    DataFlowTerminated,
    DataFromGenerator,
    DataFromList,
    FilterData,
    FixedSizeData,
    LengthUnknown,
    MapData,
    MissingExtra,
    MixData,
    MultiProcessRunner,
    NotAddressable,
    NotPicklable,
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
from dataflow.ray.datasets import FlowPass, Shard, from_ray_dataset, ray_column, to_ray_dataset
from dataflow.system.pickling import dumps
from tests.support.contract import check_node, plain, seeded
from tests.support.faults import TwoArguments
from tests.support.stacks import is_inside
from tests.support.waits import LIMIT, wait_until

MISSING = [name for name in ("ray", "pandas", "pyarrow") if importlib.util.find_spec(name) is None]
ON_RAY = [
    pytest.mark.ray,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}"),
    pytest.mark.filterwarnings(r"ignore:::ray\."),  # what Ray says of itself
    pytest.mark.usefixtures("data"),
]


def on_ray(test):
    """Run it in a session of its own, with Ray Data."""
    for mark in ON_RAY:
        test = mark(test)
    return test


@pytest.fixture
def data(cluster):
    """The package ray.data, set so that blocks keep their order, and are given out as they come."""
    import ray.data

    context = ray.data.DataContext.get_current()
    options = context.execution_options
    kept = context.enable_progress_bars, context.target_max_block_size, options.preserve_order
    context.enable_progress_bars, context.target_max_block_size, options.preserve_order = False, 1 << 12, True
    yield ray.data
    context.enable_progress_bars, context.target_max_block_size, options.preserve_order = kept


def noise(dp, rng):
    return [dp[0], rng.random((2, 2), np.float32), str(dp[0])]


def chain(n=50):
    return RandomMapData(DataFromList([[k] for k in range(n)]), noise)


NAMES = ["number", "noise", "text"]


def numbers_of(ds, name="number"):
    return [row[name] for row in ds.iter_rows()]


# -- a flow as a dataset -----------------------------------------------------------------------------------------------


@on_ray
def test_a_dataset_is_the_next_pass_of_the_flow_in_its_order_however_often_it_is_read():
    with seeded(4):
        df, same = chain(), chain()
        for _ in range(2):
            ds = to_ray_dataset(df, NAMES, num_shards=3, rows_per_block=8)
            expected = list(same)
            for _ in range(2):
                rows = list(ds.iter_rows())
                assert [row["number"] for row in rows] == [dp[0] for dp in expected]
                assert [row["text"] for row in rows] == [dp[2] for dp in expected]
                assert all(np.array_equal(row["noise"], dp[1]) for row, dp in zip(rows, expected, strict=True))
        assert list(rows[0]) == NAMES


@on_ray
def test_without_a_seed_all_shards_draw_from_one_root():
    ds = to_ray_dataset(chain(), NAMES, num_shards=3)
    assert sorted(numbers_of(ds)) == list(range(50))
    assert numbers_of(ds) == numbers_of(ds)


@on_ray
def test_the_number_of_shards_follows_from_the_number_of_blocks_and_of_cpus(data):
    import ray

    def num_blocks(n, **kwargs):
        return to_ray_dataset(DataFromList([[k] for k in range(n)]), ["k"], **kwargs).materialize().num_blocks()

    assert num_blocks(10) == 1
    assert num_blocks(10, rows_per_block=5) == 2
    assert num_blocks(20, rows_per_block=1) == 2 * ray.cluster_resources()["CPU"]
    assert num_blocks(10, num_shards=5) == 5


@on_ray
def test_a_dataset_goes_on_like_any_other():
    ds = to_ray_dataset(chain(), NAMES).map_batches(lambda batch: {"double": 2 * batch["number"]})
    assert sorted(numbers_of(ds, "double")) == [2 * k for k in range(50)]
    assert to_ray_dataset(chain(), NAMES).count() == 50


@on_ray
def test_a_dataset_does_not_go_on_with_other_weights():
    mixture = MixData(
        [DataFromList([[k] for k in range(begin, begin + 8)], shuffle=False) for begin in (0, 100)], [1, 1]
    )
    df = FixedSizeData(mixture, 4)
    assert [row["k"] for row in to_ray_dataset(df, ["k"]).take_all()] == [0, 100, 1, 101]
    mixture.weights = [0, 1]
    with pytest.raises(ValueError, match="weights were"):
        to_ray_dataset(df, ["k"])


@on_ray
def test_an_empty_pass_is_an_empty_dataset():
    assert to_ray_dataset(DataFromList([], shuffle=False), ["x"]).take_all() == []


@on_ray
def test_a_dataset_of_an_endless_flow_is_read_until_the_loop_is_left():
    df = RepeatedData(DataFromList([[k] for k in range(500)], shuffle=False), -1)
    ds = to_ray_dataset(df, ["k"], num_shards=2, rows_per_block=64)
    batches = [batch["k"].tolist() for batch in itertools.islice(ds.iter_batches(batch_size=64), 10)]
    assert batches[:2] == [list(range(64)), list(range(128, 192))]  # the first shard never ends
    assert to_ray_dataset(df, ["k"]).limit(503).take_all()[-3:] == [{"k": 0}, {"k": 1}, {"k": 2}]


def three():
    return iter([[0], [1], [2]])


@on_ray
def test_what_cannot_be_addressed_is_read_by_one_task():
    assert numbers_of(to_ray_dataset(DataFromGenerator(three), ["k"]), "k") == [0, 1, 2]
    with pytest.raises(NotAddressable, match="among 2 shards by index, but DataFromGenerator is only a sequence"):
        to_ray_dataset(DataFromGenerator(three), ["k"], num_shards=2)


def nothing_there(dp):
    raise LookupError("nothing there")


@on_ray
@pytest.mark.parametrize(
    ("df", "error", "message"),
    [
        pytest.param(
            ConcatData([DataFromList([[np.ones(2)]] * 3), DataFromList([[np.ones(3)]] * 3)]),
            ShapeMismatch,
            r"column 'x' of a Ray dataset .* float64 \(2,\) and float64 \(3,\)",
            id="shapes",
        ),
        pytest.param(DataFromList([[1, 2]]), ValueError, "1 names of columns", id="names"),
        pytest.param(MapData(DataFromList([[1]]), nothing_there), LookupError, "nothing there", id="its own"),
    ],
)
def test_an_error_in_a_task_arrives_as_its_own_type(df, error, message):
    with pytest.raises(error, match=message):
        to_ray_dataset(df, ["x"], num_shards=2).take_all()


@on_ray
def test_a_flow_that_cannot_be_sent_is_named_and_no_pass_is_used_up():
    df = DataFromList([[threading.Lock()]], shuffle=False)
    with pytest.raises(NotPicklable, match=r"^DataFromList.lst \(a list\) .*inside the worker$"):
        to_ray_dataset(df, ["x"])
    df.lst = [[1], [2]]
    with seeded(0):
        shuffled = DataFromList(list(range(20)))
        expected = DataFromList([[k] for k in range(20)])
        shuffled.lst = [[k] for k in range(20)]
        shuffled.lock = threading.Lock()
        with pytest.raises(NotPicklable):
            to_ray_dataset(shuffled, ["x"])
        del shuffled.lock
        assert numbers_of(to_ray_dataset(shuffled, ["x"]), "x") == [dp[0] for dp in expected]


@on_ray
@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"names": "x"}, TypeError, "names is a list of the names of columns, got 'x'"),
        ({"names": [1]}, TypeError, "names is a list"),
        ({"names": []}, ValueError, "one name for each column"),
        ({"names": ["x", "x"]}, ValueError, "one name for each column"),
        ({"num_shards": 0}, ValueError, "num_shards must be an integer ≥ 1, got 0"),
        ({"rows_per_block": 0}, ValueError, "rows_per_block must be an integer ≥ 1"),
        ({"df": [[1]]}, TypeError, "to_ray_dataset expects a dataflow, got list: wrap df in DataFromList"),
    ],
)
def test_wrong_parameters(kwargs, error, message):
    with pytest.raises(error, match=message):
        to_ray_dataset(**{"df": DataFromList([[1]]), "names": ["x"]} | kwargs)


@on_ray
def test_what_ray_data_needs_besides_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"Ray Data needs the package pandas: pip install .*\[ray-data\]"):
        to_ray_dataset(DataFromList([[1]]), ["x"])


# -- a dataset as a flow -----------------------------------------------------------------------------------------------


@on_ray
def test_rows_are_datapoints_with_the_columns_in_the_order_of_their_names():
    with seeded(4):
        expected = list(chain(20))
        ds = to_ray_dataset(chain(20), NAMES, num_shards=2)
    df = from_ray_dataset(ds, ["text", "noise", "number"])
    for _ in range(2):
        rows = list(df)
        assert [(text, number) for text, _, number in rows] == [(dp[2], dp[0]) for dp in expected]
        assert all(np.array_equal(row[1], dp[1]) for row, dp in zip(rows, expected, strict=True))
    assert type(rows[0]) is list and type(rows[0][2]) is np.int32
    assert not df.addressable


@on_ray
def test_batches_are_datapoints_and_the_last_may_be_shorter():
    with seeded(4):
        expected = list(chain(20))
        df = from_ray_dataset(to_ray_dataset(chain(20), NAMES), ["number", "noise"], batch_size=8)
    batches = list(df)
    assert [noises.shape for _, noises in batches] == [(8, 2, 2), (8, 2, 2), (4, 2, 2)]
    assert np.concatenate([number for number, _ in batches]).tolist() == [dp[0] for dp in expected]
    assert batches[0][1].dtype == np.float32


@on_ray
@pytest.mark.parametrize("batch_size", [None, 5])
def test_arrays_are_writable_and_keep_no_block_alive(batch_size, data):
    for dp in from_ray_dataset(data.range_tensor(20, shape=(3,), override_num_blocks=2), ["data"], batch_size):
        array = dp[0]
        array[:] = 7
        assert array.flags.owndata or batch_size


@on_ray
def test_the_length_is_known_where_the_dataset_is_materialized(data):
    ds = data.range(10, override_num_blocks=2)
    with pytest.raises(LengthUnknown, match=r"ds\.materialize\(\)"):
        len(from_ray_dataset(ds, ["id"]))
    assert len(from_ray_dataset(ds.materialize(), ["id"])) == 10
    assert len(from_ray_dataset(ds.materialize(), ["id"], 4)) == 3
    assert sorted(from_ray_dataset(ds, ["id"])) == [[k] for k in range(10)]


@on_ray
def test_a_column_that_is_not_there_is_an_error_that_lists_those_that_are(data):
    with pytest.raises(KeyError, match=r"no component 'x' in a dict datapoint; there are \['id'\]"):
        list(from_ray_dataset(data.range(3, override_num_blocks=1), ["x"]))


@on_ray
def test_every_rank_gets_its_share_of_a_split(data):
    shares = data.range(40, override_num_blocks=4).streaming_split(2, equal=True)
    found = [[], []]

    def consume(rank):
        df = from_ray_dataset(shares[rank], ["id"])
        for _ in range(2):
            found[rank].append([int(k) for (k,) in df])

    ranks = [threading.Thread(target=consume, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(LIMIT)
    for epoch in range(2):
        assert len(found[0][epoch]) == len(found[1][epoch]) == 20
        assert sorted(found[0][epoch] + found[1][epoch]) == list(range(40))


class FakeDataset:
    """Rows without tasks, and a note of which readings are open."""

    def __init__(self, rows=12, rows_per_block=5):
        self.rows = rows
        self.rows_per_block = rows_per_block
        self.readings = 0
        self.closed = 0
        self.gate = None  # what the second block waits for

    def iter_batches(self, *, batch_size, batch_format):
        assert batch_format == "numpy"
        return self.read(batch_size or self.rows_per_block)

    def read(self, size):
        self.readings += 1
        try:
            for first in range(0, self.rows, size):
                if first and self.gate is not None:
                    self.wait_at_the_gate()
                ids = np.arange(first, min(first + size, self.rows))
                yield {"id": ids, "twice": np.stack([ids, ids], 1)}
        finally:
            self.closed += 1

    def wait_at_the_gate(self):
        assert self.gate.wait(LIMIT)


def from_fake():
    return from_ray_dataset(FakeDataset(), ["twice", "id"])


@on_ray
def test_it_is_a_node_like_any_other():
    check_node(from_fake, source=True, addressable=False)


@on_ray
def test_a_reading_ends_with_the_loop():
    ds = FakeDataset()
    df = from_ray_dataset(ds, ["id"])
    list(df)
    assert (ds.readings, ds.closed) == (1, 1)
    for _ in df:
        break
    assert (ds.readings, ds.closed) == (2, 2)


@on_ray
def test_closing_the_flow_ends_readings_that_somebody_still_holds():
    ds = FakeDataset()
    df = MapData(from_ray_dataset(ds, ["id"]), lambda dp: dp)
    held = [iter(df), iter(df)]
    for iterator in held:
        next(iterator)
    df.close()
    assert (ds.readings, ds.closed) == (2, 2)
    with pytest.raises(DataFlowTerminated):
        next(held[0])
    assert len(list(df)) == 12


@on_ray
def test_closing_the_flow_during_a_step_lets_the_step_close_the_reading():
    ds = FakeDataset()
    ds.gate = threading.Event()
    df = from_ray_dataset(ds, ["id"])
    ended = []

    def consume():
        try:
            for _ in df:
                pass
        except DataFlowTerminated as error:
            ended.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    wait_until(lambda: is_inside(consumer, FakeDataset.wait_at_the_gate), LIMIT, "the step did not begin")
    df.close()
    assert ds.closed == 0
    ds.gate.set()
    consumer.join(LIMIT)
    assert ended and ds.closed == 1


@on_ray
def test_a_forked_process_does_not_use_its_parents_connection():
    with pytest.raises(DataFlowError, match="forked"), MultiProcessRunner(from_fake(), 10, 1, context="fork") as df:
        list(df)


@on_ray
def test_a_process_without_a_connection_says_so(monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(DataFlowError, match="not connected to the Ray cluster of the dataset"):
        list(from_fake())


@on_ray
def test_what_is_no_dataset_is_named():
    with pytest.raises(TypeError, match="got list"):
        from_ray_dataset([1], ["x"])
    with pytest.raises(TypeError, match="got DataFromList; for the other direction there is to_ray_dataset"):
        from_ray_dataset(DataFromList([[1]]), ["x"])
    with pytest.raises(TypeError, match="from_ray_dataset: names is a list of the names of columns, got 'id'"):
        from_ray_dataset(FakeDataset(), "id")
    with pytest.raises(ValueError, match="batch_size must be an integer ≥ 1, got 0"):
        from_ray_dataset(FakeDataset(), ["id"], 0)


# -- values ------------------------------------------------------------------------------------------------------------


def of_objects(*values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


NUMBERS = [
    "?",
    "i1",
    "u8",
    ">i4",
    ">u2",
    ">f8",
    "f2",
    "g",
    "c8",
    ">c16",
    ">M8[s]",
    "M8[D]",
    "M8[ns]",
    "m8[h]",
    "m8[ms]",
]
PRESERVED = [
    *(np.arange(4).astype(np.dtype(name)) for name in NUMBERS),
    *(np.arange(4).astype(np.dtype(name)).reshape(2, 2) for name in NUMBERS),
    np.array(["a\0b", "c"]),
    np.array([["a\0b", "c"]]),
    np.array([["a\0b", "c"]]).astype(">U3"),
    np.array([b"a\0b", b"c"]),
    of_objects("a\0b", "c\0"),
    of_objects(b"a\0b", b"c\0"),
    np.array([np.nan, np.inf, -0.0]),
    np.array(["2020-01-01", "NaT"], "M8[D]"),
    np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.zeros((2, 0)),
]
REFUSED = [
    (of_objects(None, 1), "holds Python objects"),
    (of_objects(2**70, 1), "holds Python objects"),
    (of_objects("a", b"a"), "holds Python objects"),
    (np.ma.array([1, 2], mask=[0, 1]), "is a masked array"),
    (np.array([1], "m8[M]"), "use the unit s, ms, us or ns"),
    (np.array([2**62], "M8[Y]"), "use the unit s, ms, us or ns"),
    (np.array([1], "M8[ps]"), "use the unit s, ms, us or ns"),
]


@on_ray
@pytest.mark.parametrize("column", PRESERVED, ids=lambda column: f"{column.dtype.str}{column.shape}")
def test_a_column_is_the_same_in_ray(column):
    accessor = pytest.importorskip("ray.data.block").BlockAccessor
    block = accessor.batch_to_block({"x": ray_column("x", column)})
    found = accessor.for_block(block).to_numpy(["x"])["x"]
    assert found.shape[0] == column.shape[0]
    if found.dtype.kind in "Mm":
        assert np.array_equal(found, column, equal_nan=True)
    else:
        assert repr(found.tolist()) == repr(column.tolist())


@on_ray
@pytest.mark.parametrize(("column", "message"), REFUSED, ids=lambda value: str(getattr(value, "dtype", "")))
def test_a_column_that_ray_would_change_is_refused_by_name(column, message):
    with pytest.raises(ShapeMismatch, match=f"column 'x' .*{message}.*MapDataComponent before to_ray_dataset"):
        ray_column("x", column)


@on_ray
def test_big_endian_arrays_and_text_with_nul_come_back_from_a_dataset():
    dps = [[np.arange(3, dtype=">i4") + k, f"a\0{k}", b"b\0"] for k in range(6)]
    df = to_ray_dataset(DataFromList(dps, shuffle=False), ["x", "text", "data"], 2)
    rows = sorted(df.take_all(), key=lambda row: row["text"])
    assert [[row["x"].tolist(), row["text"], row["data"]] for row in rows] == [[x.tolist(), t, b] for x, t, b in dps]


# -- what tasks read: the shards of a pass are the pass ----------------------------------------------------------------


def three_drawn(dp, rng):
    return [dp[0], rng.random(3)]


def but_for_multiples_of_three(dp):
    return None if dp[0] % 3 == 0 else dp


def numbers(n=20, **kwargs):
    return DataFromList([[k, np.full((2, 2), k)] for k in range(n)], **kwargs)


CHAINS = {
    "a list": lambda: numbers(shuffle=False),
    "random": lambda: RandomMapData(numbers(), three_drawn),
    "dropped": lambda: MapData(numbers(), but_for_multiples_of_three),
    "its first is dropped": lambda: MapData(numbers(shuffle=False), but_for_multiples_of_three),
    "a grain": lambda: RandomMapData(RepeatedDataPoint(numbers(7), 3), three_drawn),
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
    df = RandomMapData(numbers(), three_drawn)  # and nobody has fixed a seed
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


def test_no_developer_interface_of_ray_data_is_used():
    text = Path(datasets.__file__).read_text("utf-8")
    assert not re.search(
        r"ray\.data\.(block|datasource|_internal)|Datasource|ReadTask|BlockMetadata|BlockAccessor", text
    )
