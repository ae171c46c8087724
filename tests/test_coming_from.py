"""The tables of docs/coming-from.md: the calls of both sides give the same datapoints.

Of each row, `ours` are calls that stand in it as they are run here, and `theirs` what the other library makes of the
same data. tf.data is replaced by Python that does the same: a test compares it with TensorFlow, if that is installed.
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dataflow

pytestmark = [
    pytest.mark.filterwarnings(  # webdataset leaves files open
        "ignore:unclosed file:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from.md").read_text("utf-8")
LITDATA = "litData and MosaicML Streaming"
LIBRARIES = ("torch.utils.data", "torchdata", "tf.data", "grain", "Hugging Face datasets", "WebDataset", LITDATA)


class Row(NamedTuple):
    """A row whose sides are compared.

    Attributes:
        ours: Expressions for flows, as on the page.
        theirs: For each, a function that returns the expected datapoints, given the module of the other library.
        unordered: Whether the order is random on both sides.
    """

    ours: tuple[str, ...]
    theirs: tuple[Callable[[Any], Any], ...]
    unordered: bool = False


def numbers() -> Any:
    return dataflow.DataFromList(range(10), shuffle=False)


def batches(values: Any, n: int) -> list[Any]:
    values = list(values)
    return [values[k : k + n] for k in range(0, len(values), n)]


def shards(count: int) -> list[list[int]]:
    return [list(range(rank, 10, count)) for rank in range(count)]


NAMES: dict[str, Any] = {
    **{name: getattr(dataflow, name) for name in dataflow.__all__ if name[0].isupper()},
    "df": numbers(),
    "lists": dataflow.MapData(numbers(), lambda k: [k, -k]),
    "dfs": [numbers(), dataflow.MapData(numbers(), lambda k: k + 100)],
    "weights": [1, 1],
    "probs": [1.0, 0.0],
    "num": 20,
    "a": dataflow.MapData(numbers(), lambda k: [k]),
    "b": dataflow.MapData(numbers(), lambda k: [-k]),
    "dataset": [k * k for k in range(10)],
    "iterable": range(10),
    "source": range(10),
    "indices": [7, 2, 2],
    "rank": 1,
    "world_size": 3,
    "n": 4,
    "func": lambda k: k + 1,
    "is_even": lambda k: k % 2 == 0,
    "function": lambda: iter(range(10)),
    "collate": sum,
}


def squares(torch: Any) -> Any:
    class Squares(torch.utils.data.Dataset):
        def __init__(self, values: Any = None) -> None:
            self.values = NAMES["dataset"] if values is None else values

        def __len__(self) -> int:
            return len(self.values)

        def __getitem__(self, k: int) -> Any:
            return self.values[k]

    return Squares


def loaded(torch: Any, dataset: Any, **options: Any) -> list[Any]:
    return list(torch.utils.data.DataLoader(dataset, **({"batch_size": None} | options)))


def ten(torch: Any) -> Any:
    return squares(torch)(list(range(10)))


def sampled(torch: Any, rank: int, drop_last: bool) -> Any:
    sampler = torch.utils.data.DistributedSampler
    return list(sampler(range(10), num_replicas=3, rank=rank, shuffle=False, drop_last=drop_last))


def iterable_of(torch: Any) -> Any:
    class Numbers(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(10))

    return Numbers()


def pairs(torch: Any, kind: str) -> Any:
    a, b = squares(torch)(list(range(10))), squares(torch)([-k for k in range(10)])
    if kind == "concat":
        return [[k] for k in loaded(torch, torch.utils.data.ConcatDataset([a, b]))]
    return loaded(torch, torch.utils.data.StackDataset(a, b))


def node(nodes: Any, values: Any = range(10)) -> Any:
    return nodes.IterableWrapper(list(values))


def passes(nodes: Any, made: Any, count: int | None = None) -> list[Any]:
    return list(itertools.islice(nodes.Loader(made), count))


def multi(nodes: Any, weights: list[float], which: str) -> Any:
    made = {"0": node(nodes), "1": node(nodes, range(100, 110))}
    criteria = {"FIRST": "FIRST_DATASET_EXHAUSTED", "ALL": "ALL_DATASETS_EXHAUSTED"}[which]
    return passes(
        nodes, nodes.MultiNodeWeightedSampler(made, dict(zip("01", weights, strict=True)), stop_criteria=criteria)
    )


def ds(grain: Any, values: Any = range(10)) -> Any:
    return grain.MapDataset.source(list(values))


def hf(datasets: Any, values: Any = range(10)) -> Any:
    return datasets.Dataset.from_list([{"x": k} for k in values])


def column(rows: Any) -> list[Any]:
    return [row["x"] for row in rows]


STREAMED = """
import json, sys
from litdata.streaming import StreamingDataset
from litdata.streaming.writer import BinaryWriter

options, ranks = json.loads(sys.argv[1])
writer = BinaryWriter("chunks", chunk_size=3)
for k in range(10):
    writer[k] = k
writer.done()
writer.merge()
found = []
for rank in range(ranks):
    dataset = StreamingDataset("chunks", **options)
    dataset.distributed_env = type(dataset.distributed_env)(world_size=ranks, global_rank=rank, num_nodes=1)
    found.append(list(dataset))
print(json.dumps(found))
"""


def streamed(ranks: int = 1, **options: Any) -> list[list[int]]:
    """The numbers as a dataset of litData in the working directory, read by each rank; litData leaves files open."""
    command = [sys.executable, "-c", STREAMED, json.dumps([options, ranks])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    found: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def tar(webdataset: Any) -> Any:
    import io
    import tarfile

    path = Path("shard-0000.tar")
    if not path.exists():
        with tarfile.open(path, "w") as file:
            for k in range(10):
                info = tarfile.TarInfo(f"{k:06d}.cls")
                info.size = len(data := b"%d" % k)
                file.addfile(info, io.BytesIO(data))
    return webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False).decode().to_tuple("cls")


def first(made: Any) -> list[Any]:
    return [value for (value,) in made]


COMPARED: dict[str, dict[str, Row]] = {
    "torch.utils.data": {
        "`Dataset` with": Row(
            ("DataFromList(dataset, shuffle=False)",), (lambda torch: loaded(torch, squares(torch)()),)
        ),
        "`IterableDataset`": Row(("DataFromGenerator(function)",), (lambda torch: loaded(torch, iterable_of(torch)),)),
        "`shuffle=True`": Row(("ShuffleData(df)",), (lambda torch: loaded(torch, ten(torch), shuffle=True),), True),
        "`batch_size`": Row(
            ("BatchData(df, n, remainder=True)", "BatchData(df, n)"),
            (
                lambda torch: loaded(torch, ten(torch), batch_size=4),
                lambda torch: loaded(torch, ten(torch), batch_size=4, drop_last=True),
            ),
        ),
        "`collate_fn`": Row(
            ("BatchData(df, n, remainder=True, collate=collate)",),
            (lambda torch: loaded(torch, ten(torch), batch_size=4, collate_fn=sum),),
        ),
        "`DistributedSampler(": Row(
            ('ShardData(df, rank, world_size, tail="repeat")', "ShardData(df, rank, world_size)"),
            (lambda torch: sampled(torch, 1, False), lambda torch: sampled(torch, 1, True)),
        ),
        "`Subset`": Row(
            (
                "MapData(DataFromList(indices, shuffle=False), dataset.__getitem__)",
                "ConcatData([a, b])",
                "JoinData([a, b])",
            ),
            (
                lambda torch: loaded(torch, torch.utils.data.Subset(squares(torch)(), [7, 2, 2])),
                lambda torch: pairs(torch, "concat"),
                lambda torch: pairs(torch, "stack"),
            ),
        ),
    },
    "torchdata": {
        "`IterableWrapper": Row(("DataFromIterable(iterable)",), (lambda nodes: passes(nodes, node(nodes)),)),
        "`SamplerWrapper": Row(
            ("DataFromList(dataset)",),
            (lambda nodes: passes(nodes, nodes.MapStyleWrapper(NAMES["dataset"], [3, 1, 2, 0, 4, 9, 8, 7, 6, 5])),),
            True,
        ),
        "`ParallelMapper": Row(
            ("MultiThreadMapData(df, n, func, strict=True)", "MultiProcessMapData(df, n, func, strict=True)"),
            (
                lambda nodes: passes(nodes, nodes.ParallelMapper(node(nodes), NAMES["func"], 2, method="thread")),
                lambda nodes: passes(nodes, nodes.ParallelMapper(node(nodes), NAMES["func"], 2, method="thread")),
            ),
        ),
        "`in_order=False`": Row(
            ("MultiThreadMapData(df, n, func, strict=True, ordered=False)",),
            (lambda nodes: passes(nodes, nodes.ParallelMapper(node(nodes), NAMES["func"], 2, in_order=False)),),
            True,
        ),
        "`Batcher": Row(
            ("BatchData(df, n)", "BatchData(df, n, remainder=True)", "FlattenData(lists)"),
            (
                lambda nodes: passes(nodes, nodes.Batcher(node(nodes), 4)),
                lambda nodes: passes(nodes, nodes.Batcher(node(nodes), 4, drop_last=False)),
                lambda nodes: [[k] for k in passes(nodes, nodes.Unbatcher(node(nodes, [[k, -k] for k in range(10)])))],
            ),
        ),
        "`MultiNodeWeightedSampler": Row(
            ("RandomChooseData(list(zip(dfs, probs)))", "RandomMixData(dfs)"),
            (lambda nodes: multi(nodes, [1.0, 1e-30], "FIRST"), lambda nodes: sorted(multi(nodes, [1.0, 1.0], "ALL"))),
            True,
        ),
    },
    "tf.data": {
        "`from_tensor_slices`": Row(
            (
                "DataFromList(dataset, shuffle=False)",
                "DataFromGenerator(function)",
                "DataFromList(range(n), shuffle=False)",
            ),
            (lambda _: NAMES["dataset"], lambda _: range(10), lambda _: range(4)),
        ),
        "`map(": Row(
            (
                "MultiThreadMapData(df, n, func, strict=True)",
                "MultiThreadMapData(df, n, func, strict=True, ordered=False)",
            ),
            (lambda _: range(1, 11), lambda _: range(1, 11)),
            True,
        ),
        "`shuffle(buffer_size)": Row(("ShuffleData(df)",), (lambda _: range(10),), True),
        "`batch(n)": Row(
            ("BatchData(df, n, remainder=True)", "BatchData(df, n)"),
            (lambda _: batches(range(10), 4), lambda _: batches(range(8), 4)),
        ),
        "`padded_batch": Row(("PadBatchData(df, n, remainder=True)",), (lambda _: batches(range(10), 4),)),
        "`repeat(n)": Row(
            ("RepeatedData(df, n)", "FixedSizeData(df, n, keep_state=False)"),
            (lambda _: list(range(10)) * 4, lambda _: range(4)),
        ),
        "`zip`": Row(
            ("JoinData([a, b])", "ConcatData([a, b])"),
            (
                lambda _: [[k, -k] for k in range(10)],
                lambda _: [[k] for k in range(10)] + [[-k] for k in range(10)],
            ),
        ),
        "`sample_from_datasets": Row(
            ("FixedSizeData(MixData(dfs, weights), num, keep_state=False)", "RandomChooseData(list(zip(dfs, probs)))"),
            (lambda _: [*range(10), *range(100, 110)], lambda _: range(10)),
            True,
        ),
        "`unbatch": Row(
            ("FlattenData(lists)", "FilterData(df, is_even)"),
            (lambda _: [[k] for pair in range(10) for k in (pair, -pair)], lambda _: range(0, 10, 2)),
        ),
        "`cache()": Row(("CacheData(df)",), (lambda _: range(10),)),
        "`shard(": Row(('ShardData(df, rank, world_size, tail="keep")',), (lambda _: shards(3)[1],)),
    },
    "grain": {
        "`MapDataset.source": Row(("DataFromList(source, shuffle=False)",), (lambda grain: list(ds(grain)),)),
        "`seed(n)": Row(("ShuffleData(df)",), (lambda grain: list(ds(grain).seed(3).shuffle()),), True),
        "`map`": Row(
            ("MapData(df, func)", "FilterData(df, is_even)"),
            (
                lambda grain: list(ds(grain).map(NAMES["func"])),
                lambda grain: list(ds(grain).filter(NAMES["is_even"]).to_iter_dataset()),
            ),
        ),
        "`batch(n)`": Row(
            ("BatchData(df, n, remainder=True)", "BatchData(df, n)"),
            (lambda grain: list(ds(grain).batch(4)), lambda grain: list(ds(grain).batch(4, drop_remainder=True))),
        ),
        "`MapDataset.mix": Row(
            ("FixedSizeData(MixData(dfs, weights), num, keep_state=False)",),
            (lambda grain: list(grain.MapDataset.mix([ds(grain), ds(grain, range(100, 110))], [1, 1])),),
            True,
        ),
        "`ds[rank::world_size]": Row(
            ('ShardData(df, rank, world_size, tail="keep")', "ShardData(df, rank, world_size)"),
            (lambda grain: list(ds(grain)[1::3]), lambda grain: list(ds(grain)[1:9:3])),
        ),
        "`mp_prefetch": Row(
            ('ParallelData(df, n, backend="thread")',),
            (lambda grain: list(ds(grain).to_iter_dataset(grain.ReadOptions(num_threads=2))),),
        ),
    },
    "Hugging Face datasets": {
        "`dataset[i]": Row(
            ("MapData(DataFromList(indices, shuffle=False), dataset.__getitem__)",),
            (lambda datasets: column(hf(datasets, NAMES["dataset"]).select([7, 2, 2])),),
        ),
        "`map(f, num_proc": Row(
            ("MultiProcessMapData(df, n, func, strict=True)",),
            (lambda datasets: column(hf(datasets).map(lambda row: {"x": row["x"] + 1})),),
        ),
        "`iter(batch_size": Row(
            ("BatchData(df, n, remainder=True)", "BatchData(df, n)"),
            (
                lambda datasets: [batch["x"] for batch in hf(datasets).iter(batch_size=4)],
                lambda datasets: [batch["x"] for batch in hf(datasets).iter(batch_size=4, drop_last_batch=True)],
            ),
        ),
        "`shuffle(seed": Row(
            ("ShuffleData(df)", "FilterData(df, is_even)"),
            (
                lambda datasets: column(hf(datasets).shuffle(seed=4)),
                lambda datasets: column(hf(datasets).filter(lambda row: row["x"] % 2 == 0)),
            ),
            True,
        ),
        "`interleave_datasets(datasets, probabilities)": Row(
            ("RandomChooseData(list(zip(dfs, probs)))",),
            (
                lambda datasets: column(
                    datasets.interleave_datasets(
                        [hf(datasets), hf(datasets, range(100, 110))], probabilities=[1.0, 0.0], seed=1
                    )
                ),
            ),
        ),
        "`interleave_datasets(datasets)": Row(
            ("FixedSizeData(MixData(dfs, weights), num, keep_state=False)", "ConcatData(dfs)"),
            (
                lambda datasets: column(datasets.interleave_datasets([hf(datasets), hf(datasets, range(100, 110))])),
                lambda datasets: column(datasets.concatenate_datasets([hf(datasets), hf(datasets, range(100, 110))])),
            ),
            True,
        ),
    },
    "WebDataset": {
        "`batched(n)`": Row(
            ("BatchData(df, n, remainder=True)", "BatchData(df, n)", "FlattenData(lists)"),
            (
                lambda w: [b[0] for b in tar(w).batched(4)],
                lambda w: [b[0] for b in tar(w).batched(4, partial=False)],
                lambda w: [[k] for pair in range(10) for k in (pair, -pair)],
            ),
        ),
        "`with_epoch": Row(("FixedSizeData(df, n)",), (lambda w: first(tar(w).with_epoch(4)),)),
        "`RandomMix": Row(
            ("RandomChooseData(list(zip(dfs, probs)))", "RandomMixData(dfs)"),
            (
                lambda w: first(w.RandomMix([tar(w), tar(w)], [1, 0])),
                lambda w: w.RandomMix([NAMES["dfs"][0], NAMES["dfs"][1]], [1, 1], longest=True),
            ),
            True,
        ),
    },
    LITDATA: {
        "`StreamingDataset(": Row(
            ("ShuffleData(df)",), (lambda litdata: streamed(shuffle=True, seed=3)[0],), unordered=True
        ),
    },
}

# Rows of which no sides are compared, with the reason.
NOT_COMPARED = {
    "torch.utils.data": {
        "`WeightedRandomSampler`": "draws with replacement: MixData keeps the shares instead",
        "`pin_memory=True`": "needs a device",
        "`StatefulDistributedSampler`": "a state: tests/transforms/test_elastic.py",
        "`sampler.set_epoch": "says that nothing is needed",
        "`seed=0`": "sets a seed",
        "`generator=`": "other random numbers",
        "`worker_init_fn` for anything": "no datapoints",
        "`StatefulDataLoader`": "tests/frameworks",
        "`TensorDataset": "the right side of the row of `Dataset`",
        "`random_split": "random; the right side of the row of `Subset`",
        "`prefetch_factor": "no datapoints",
        "`persistent_workers": "no datapoints",
        "`timeout=`": "no datapoints",
        "`get_worker_info": "no datapoints",
        "memory that grows": "no datapoints",
    },
    "torchdata": {
        "`Prefetcher": "no datapoints",
        "`PinMemory`": "needs a device",
        "`Cycler": "endless, and not in every version",
        "`Loader(node)`": "a state: the block above the table",
    },
    "tf.data": {
        "`TFRecordDataset": "a file: tests/formats",
        "`prefetch": "no datapoints",
        "`apply(": "an error: tests/protocol/test_failures.py",
        "`tf.train.Checkpoint": "a state",
    },
    "grain": {
        "`ds[i]`": "test_an_element_that_a_filter_has_dropped",
        "`random_map": "other random numbers",
        "elastic iterators": "a state: tests/transforms/test_elastic.py",
        "`get_state()`": "a state: the block above the table",
        "`WindowShuffle": "another order",
    },
    "Hugging Face datasets": {
        "`DataCollatorWithPadding`": "needs a tokenizer",
        "`split_dataset_by_node": "test_shards_of_hugging_face_make_up_the_same_pass",
        "`IterableDataset.state_dict": "a state: tests/protocol/test_state.py",
    },
    "WebDataset": {
        "`WebDataset(urls)`": "a random order: the block above the table",
        "`decode(": "the block above the table",
        "`to_tuple": "the block above the table",
        "`handler": "an error: tests/protocol/test_failures.py",
        "`split_by_node`": "shards of files, not of samples",
        "`pipe:curl": "needs a server",
        "`ShardWriter`": "the block above the table",
    },
    LITDATA: {
        "ranks and world size": "says that nothing is needed",
        "`drop_last=True`": "test_ranks_of_litdata_that_drop_the_rest_have_as_many",
        "`StreamingDataLoader.state_dict()`": "a state: tests/transforms/test_resuming.py",
        "elastic determinism": "a state: tests/transforms/test_elastic.py",
        "chunks that litData": "a state: tests/transforms/test_elastic.py",
    },
}
MODULES = {
    "torch.utils.data": "torch",
    "torchdata": "torchdata.nodes",
    "tf.data": "builtins",
    "grain": "grain",
    "Hugging Face datasets": "datasets",
    "WebDataset": "webdataset",
    LITDATA: "litdata",
}


def rows_of(library: str) -> list[tuple[str, str]]:
    section = PAGE.partition(f"\n## {library}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(left, right) for left, right in rows if right != "now"]


def plain(value: Any) -> Any:
    """A datapoint as numbers and lists, without the types of arrays, tensors and sequences."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [plain(part) for part in value] if isinstance(value, list | tuple | range) else value


CASES = [(library, row) for library in LIBRARIES for row in COMPARED[library]]


@pytest.mark.usefixtures("unseeded")
@pytest.mark.parametrize(("library", "start"), CASES)
def test_both_sides_of_a_row_give_the_same(library, start, tmp_path, monkeypatch):
    module = pytest.importorskip(MODULES[library])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # no thread for progress bars of the other library
    dataflow.seed(3)
    row = COMPARED[library][start]
    ((_, right),) = [(left, right) for left, right in rows_of(library) if left.startswith(start)]
    for ours, theirs in zip(row.ours, row.theirs, strict=True):
        assert f"`{ours}`" in right
        is_batched = "BatchData(" in ours and "collate" not in ours  # of datapoints with one component
        flow = eval(ours, NAMES | ({"df": NAMES["a"]} if is_batched else {}))
        mine = [plain(dp[0] if is_batched else dp) for dp in flow]
        other = [plain(dp) for dp in theirs(module)]
        flow.close()
        assert (sorted(mine) == sorted(other)) if row.unordered else mine == other


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_row_is_compared_or_says_why_not(library):
    starts = [*COMPARED[library], *NOT_COMPARED[library]]
    for left, _ in rows_of(library):
        assert sum(left.startswith(start) for start in starts) == 1, left
    assert len(starts) == len(rows_of(library))


def numbers_of(tf: Any) -> Any:
    return tf.data.Dataset.range(10)


def pair_of(tf: Any) -> tuple[Any, Any]:
    return numbers_of(tf), numbers_of(tf).map(lambda k: k + 100)


# The rows of tf.data in TensorFlow itself, as on the left side of the page.
IN_TENSORFLOW: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "`from_tensor_slices`": (
        lambda tf: tf.data.Dataset.from_tensor_slices(NAMES["dataset"]),
        lambda tf: tf.data.Dataset.from_generator(NAMES["function"], tf.int64),
        lambda tf: tf.data.Dataset.range(4),
    ),
    "`map(": (
        lambda tf: numbers_of(tf).map(NAMES["func"], num_parallel_calls=4),
        lambda tf: numbers_of(tf).map(NAMES["func"], num_parallel_calls=4, deterministic=False),
    ),
    "`shuffle(buffer_size)": (lambda tf: numbers_of(tf).shuffle(10),),
    "`batch(n)": (lambda tf: numbers_of(tf).batch(4), lambda tf: numbers_of(tf).batch(4, drop_remainder=True)),
    "`padded_batch": (lambda tf: numbers_of(tf).padded_batch(4),),
    "`repeat(n)": (lambda tf: numbers_of(tf).repeat(4), lambda tf: numbers_of(tf).take(4)),
    "`zip`": (
        lambda tf: tf.data.Dataset.zip((numbers_of(tf), numbers_of(tf).map(lambda k: -k))),
        lambda tf: numbers_of(tf).concatenate(numbers_of(tf).map(lambda k: -k)).batch(1),
    ),
    "`sample_from_datasets": (
        lambda tf: tf.data.Dataset.sample_from_datasets(pair_of(tf), [0.5, 0.5]),
        lambda tf: tf.data.Dataset.sample_from_datasets(pair_of(tf), [1.0, 0.0], stop_on_empty_dataset=True),
    ),
    "`unbatch": (
        lambda tf: numbers_of(tf).map(lambda k: tf.stack([k, -k])).unbatch().batch(1),
        lambda tf: numbers_of(tf).filter(lambda k: k % 2 == 0),
    ),
    "`cache()": (lambda tf: numbers_of(tf).cache(),),
    "`shard(": (lambda tf: numbers_of(tf).shard(3, 1),),
}


@pytest.mark.parametrize("start", COMPARED["tf.data"])
def test_tensorflow_does_what_stands_in_for_it(start):
    tf = pytest.importorskip("tensorflow")
    row = COMPARED["tf.data"][start]
    for stand_in, make in zip(row.theirs, IN_TENSORFLOW[start], strict=True):
        found = [plain(dp) for dp in make(tf).as_numpy_iterator()]
        expected = [plain(dp) for dp in stand_in(None)]
        assert (sorted(found) == sorted(expected)) if row.unordered else found == expected


@pytest.mark.usefixtures("unseeded")
def test_ranks_of_litdata_that_drop_the_rest_have_as_many(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("litdata")
    ours = [len(list(dataflow.ShardData(numbers(), rank, 3))) for rank in range(3)]
    assert ours == [*map(len, streamed(3, drop_last=True))] == [3, 3, 3]


def test_shards_of_hugging_face_make_up_the_same_pass():
    distributed = pytest.importorskip("datasets.distributed")
    theirs = [distributed.split_dataset_by_node(hf(pytest.importorskip("datasets")), r, 3) for r in range(3)]
    ours = [list(dataflow.ShardData(numbers(), r, 3, tail="keep")) for r in range(3)]
    assert [len(shard) for shard in ours] == [len(shard) for shard in theirs]
    assert sorted(itertools.chain(*ours)) == sorted(itertools.chain(*map(column, theirs))) == list(range(10))


def test_an_element_that_a_filter_has_dropped():
    grain = pytest.importorskip("grain")
    is_even = NAMES["is_even"]
    assert ds(grain).filter(is_even)[1] is None
    with pytest.raises(dataflow.NotAddressable):
        dataflow.FilterData(numbers(), is_even)[1]
    with pytest.raises(dataflow.Dropped):
        dataflow.MapData(numbers(), lambda k: k if is_even(k) else None)[1]
