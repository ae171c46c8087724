"""A pass kept on disk, and the fingerprint that says of what."""

import contextlib
import functools
import io
import itertools
import logging
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import dataflow
from dataflow import (
    BatchData,
    CacheData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    DiskCacheData,
    FileDamaged,
    FilterData,
    ImageFolderData,
    JSONLinesData,
    LengthUnknown,
    MapData,
    MapDataComponent,
    MultiProcessRunnerZMQ,
    MultiThreadRunner,
    NotReproducible,
    NotStorable,
    RandomMixData,
    RepeatedData,
    ResumableData,
    ShardData,
    ShuffleData,
    SVMLightData,
    TableData,
    WebDatasetData,
)
from dataflow.formats.checksums import masked_crc32
from dataflow.formats.records import RecordEncoder
from dataflow.formats.tfrecord import writing
from dataflow.protocol.fingerprints import describe
from tests.formats.files import FORMATS, LMDB, TFRECORD, assert_same, flow, images
from tests.support.contract import check_node, seeded

ROOT = Path(__file__).parents[2]


class Counted(DataFlow):
    """Says in a file how often it was iterated, also in another process."""

    def __init__(self, log, num=6):
        self.log = str(log)
        self.num = num

    def reset_state(self):
        with open(self.log, "a") as file:
            file.write("reset ")

    def __iter__(self):
        with open(self.log, "a") as file:
            file.write("pass ")
        for k in range(self.num):
            yield [k, np.full(3, k)]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache"


def expected():
    return [[k, np.full(3, k)] for k in range(6)]


def test_the_input_is_read_once_also_by_later_runs(log, path):
    for _ in range(2):
        with DiskCacheData(Counted(log), path) as df:
            for _ in range(2):
                assert_same(list(df), expected())
            assert len(df) == 6
    assert log.read_text() == "reset pass "


def test_it_is_addressable_whatever_the_input_is(log, path):
    with DiskCacheData(Counted(log), path) as df:
        assert df.addressable
        assert_same(df[8], expected()[2])
        with ShuffleData(df) as shuffled, seeded(1):
            assert sorted(dp[0] for dp in shuffled) == list(range(6))


def test_the_node_keeps_the_contract(tmp_path):
    paths = iter(range(1000))
    check_node(
        lambda: DiskCacheData(flow([[np.full(2, k), k] for k in range(8)]), tmp_path / str(next(paths))), source=True
    )


def odd_only(dp):
    return dp if dp[0] % 2 else None


@pytest.mark.parametrize("drops", [lambda ds: MapData(ds, odd_only), lambda ds: FilterData(ds, odd_only)])
@pytest.mark.parametrize(
    "above",
    [
        ShuffleData,
        CacheData,
        ResumableData,
        lambda ds: CacheData(ds, shuffle=True),
        lambda ds: RandomMixData([ds]),
        lambda ds: MapData(ShuffleData(MapData(ds, list)), list),
        lambda ds: ShuffleData(DiskCacheData(ShuffleData(ds), f"{ds.path}.above", fingerprint="x")),
    ],
)
def test_the_run_that_fills_the_file_yields_each_datapoint_once_if_a_map_drops(above, drops, path):
    with above(DiskCacheData(drops(flow([[k] for k in range(10)])), path)) as df:
        assert [sorted(df) for _ in range(2)] == [[[1], [3], [5], [7], [9]]] * 2
        assert len(df) == 5


def test_the_first_datapoint_by_index_is_that_of_a_filled_file(path):
    with seeded(1), ShuffleData(DiskCacheData(MapData(flow([[k] for k in range(10)]), odd_only), path)) as df:
        first = df[3]
        assert first == df[3] == df[3:4][0]


def test_ranks_divide_the_datapoints_of_a_file_that_the_first_one_fills(path):
    got = []
    for rank in range(2):
        cache = DiskCacheData(FilterData(flow([[k] for k in range(10)]), odd_only), path)
        with ShardData(cache, rank, 2, tail="keep") as df:
            got += list(df)
    assert sorted(got) == [[1], [3], [5], [7], [9]]


def test_a_file_that_workers_fill_with_fewer_datapoints_than_were_divided_is_an_error_once(path):
    def make():
        return MultiThreadRunner(lambda: ShuffleData(cache()), 2, 1, strict=True)

    def cache():
        return DiskCacheData(MapData(flow([[k] for k in range(10)]), odd_only), path)

    with (
        make() as df,
        pytest.raises(LengthUnknown, match="filled now, with 5 datapoints, but before, 10 were expected"),
    ):
        list(df)
    with make() as df:
        assert sorted(df) == [[1], [3], [5], [7], [9]]


def test_a_length_that_is_unknown_before_the_file_is_filled_says_what_to_do(path):
    with DiskCacheData(FilterData(flow([[k] for k in range(10)]), odd_only), path) as cache:
        with pytest.raises(LengthUnknown, match=r"known once .* is filled: iterate DiskCacheData itself once first"):
            len(cache)
        for _ in cache:
            break
        assert len(cache) == 5


def test_arrays_may_be_changed_without_changing_the_cache(log, path):
    with DiskCacheData(Counted(log), path) as df:
        for dp in df:
            dp[1][...] = 9
        assert_same(list(df), expected())


def test_a_run_that_is_broken_off_leaves_nothing(path):
    def fail():
        yield [1]
        raise RuntimeError("no more")

    with DiskCacheData(DataFromGenerator(fail), path) as df, pytest.raises(RuntimeError, match="no more"):
        list(df)
    assert os.listdir(path.parent) == []
    unstorable = flow([[1], [lambda: 0]])
    with DiskCacheData(unstorable, path, fingerprint="x") as df, pytest.raises(NotStorable, match="1: component 0"):
        list(df)
    assert os.listdir(path.parent) == []


class Flaky:
    """Fails for the third datapoint at its first calls."""

    def __init__(self, num_failures):
        self.num_left = num_failures

    def __call__(self, dp):
        if dp == [2] and self.num_left:
            self.num_left -= 1
            raise OSError("unreachable")
        return dp


def flaky(num_failures=1, **more):
    return MapData(DataFromList([[k] for k in range(6)], shuffle=False), Flaky(num_failures), **more)


def test_a_pass_with_skipped_datapoints_is_read_but_not_kept(path, caplog):
    with caplog.at_level(logging.WARNING), DiskCacheData(flaky(max_failures=3), path, fingerprint="x") as df:
        assert list(df) == list(df) == [[0], [1], [3], [4], [5]] and len(df) == 5
        assert os.listdir(os.path.dirname(path)) == []
        assert "is not kept: datapoints were skipped within max_failures" in caplog.text
        assert "MapData(" in caplog.text and "datapoint 2 of pass 0: OSError: unreachable). Repair" in caplog.text
    with df:
        assert list(df) == [[k] for k in range(6)]
    with DiskCacheData(flaky(9), path, fingerprint="x") as df:
        assert len(list(df)) == 6, "it was kept when it was whole"


def test_a_worker_keeps_no_pass_with_skipped_datapoints(path):
    df = DiskCacheData(flaky(), path, fingerprint="x")
    with (
        MultiProcessRunnerZMQ(df, 1, max_failures=3, timeout=60) as runner,
        pytest.raises(NotReproducible, match="is not kept: datapoints were skipped"),
    ):
        list(runner)
    assert not os.path.exists(path)


def test_another_fingerprint_fills_it_anew_and_says_why(log, path, caplog):
    with DiskCacheData(Counted(log), path) as df:
        list(df)
    with caplog.at_level(logging.WARNING), DiskCacheData(Counted(log, num=3), path) as df:
        assert len(list(df)) == len(df) == 3
    assert "because the flow has changed" in caplog.text
    assert "-  num = 6" in caplog.text and "+  num = 3" in caplog.text


def test_a_fingerprint_of_ones_own(log, path):
    for num, name in ((6, "v1"), (3, "v1"), (3, "v2")):
        with DiskCacheData(Counted(log, num), path, fingerprint=name) as df:
            assert len(list(df)) == (6 if name == "v1" else 3)
            assert df.description == f"fingerprint {name}" and len(df.fingerprint) == 32


def test_a_file_that_is_no_cache_is_not_replaced(log, tmp_path):
    path = TFRECORD.saved(tmp_path, images(4))
    before = Path(path).read_bytes()
    with DiskCacheData(Counted(log), path) as df, pytest.raises(FileExistsError, match="not a cache"):
        list(df)
    assert Path(path).read_bytes() == before


def test_a_file_whose_head_is_not_that_of_a_cache_is_not_replaced(log, path):
    with writing(path, masked_crc32, overwrite=True) as write:
        write(RecordEncoder().encode({"version": 1, "other": 2}))
    with DiskCacheData(Counted(log), path) as df, pytest.raises(FileExistsError, match="not a cache"):
        list(df)
    with writing(path, masked_crc32, overwrite=True) as write:
        write(RecordEncoder().encode({"version": 1, "fingerprint": 2}))
    with DiskCacheData(Counted(log), path) as df:
        assert len(list(df)) == 6


def test_a_damaged_cache_is_filled_anew(log, path, caplog):
    with DiskCacheData(Counted(log), path) as df:
        list(df)
    path.write_bytes(path.read_bytes()[:-30])
    with caplog.at_level(logging.WARNING), DiskCacheData(Counted(log), path) as df:
        assert_same(list(df), expected())
    assert "will be filled again" in caplog.text
    assert log.read_text() == "reset pass " * 2


def test_of_several_workers_one_fills_it(log, path):
    with MultiProcessRunnerZMQ(DiskCacheData(Counted(log), path), 2, timeout=60) as runner:
        # Passes end once the file is there, since it says how long they are.
        found = list(itertools.islice(itertools.chain.from_iterable(itertools.repeat(runner)), 24))
    assert log.read_text() == "reset pass "
    assert {dp[0] for dp in found} == set(range(6))
    assert sorted(os.listdir(path.parent)) == ["cache", "cache.index", "log"]


def test_workers_below_it_are_started_only_to_fill_it(path):
    for _ in range(2):
        with DiskCacheData(MultiProcessRunnerZMQ(flow([[1], [2]]), 1, timeout=60), path, fingerprint="x") as df:
            assert list(df) == [[1], [2]]


@pytest.mark.parametrize("first", ["file.lmdb", Path("file.lmdb")])
def test_tensorpacks_reader_is_told_from_it(first):
    with pytest.raises(TypeError, match="it reads no file, as tensorpack's does"):
        DiskCacheData(first, True)


def test_a_pass_without_end_is_refused(path):
    with pytest.raises(ValueError, match="never ends"):
        DiskCacheData(RepeatedData(flow([[1]]), -1), path)


# -- fingerprints ------------------------------------------------------------------------------------------------------


def one(dp):
    return [dp[0] + 1]


def another(dp):
    return [dp[0] + 2]


def adder(k):
    return lambda dp: [dp[0] + k]


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, dp):
        return [dp[0] * self.factor]

    def method(self, dp):
        return dp


DIFFERENT = [
    lambda: flow([[1], [2]]),
    lambda: flow([[1], [3]]),
    lambda: DataFromList([[1], [2]], shuffle=True),
    lambda: DataFromList([[1], [2]], shuffle=True, seed=3),
    lambda: flow([[np.arange(2)]]),
    lambda: flow([[np.arange(2, dtype="i4")]]),
    lambda: flow([list(range(1000))]),
    lambda: flow([[*range(999), 0]]),
    lambda: flow([["x" * 500]]),
    lambda: flow([["x" * 499]]),
    lambda: flow([[{3, 1, 2}, b"x", 1.5, None]]),
    lambda: MapData(flow([[1]]), one),
    lambda: MapData(flow([[1]]), another),
    lambda: MapData(flow([[1]]), adder(1)),
    lambda: MapData(flow([[1]]), adder(2)),
    lambda: MapData(flow([[1]]), functools.partial(one)),
    lambda: MapData(flow([[1]]), functools.partial(one, k=2)),
    lambda: MapData(flow([[1]]), Scale(1)),
    lambda: MapData(flow([[1]]), Scale(2)),
    lambda: MapData(flow([[1]]), Scale(2).method),
    lambda: MapData(flow([[1]]), lambda dp: dp if dp[0] in {"a", "b"} else None),
    lambda: MapData(flow([[1]]), lambda dp: dp if dp[0] in {"a", "c"} else None),
    lambda: MapDataComponent(flow([[1]]), np.sqrt),
    lambda: MapDataComponent(flow([[1]]), len),
    lambda: BatchData(flow([[1], [2]]), 1),
    lambda: BatchData(flow([[1], [2]]), 2),
]


def test_what_differs_has_another_description_and_what_is_built_alike_has_the_same():
    descriptions = [describe(make()) for make in DIFFERENT]
    assert descriptions == [describe(make()) for make in DIFFERENT]
    assert len(set(descriptions)) == len(descriptions)


def test_using_a_flow_does_not_change_its_description(tmp_path):
    for make in DIFFERENT[:4]:
        df = make()
        before = describe(df)
        list(df)
        df.reset_state()
        assert describe(df) == before


def test_another_process_finds_the_same_description():
    program = "from tests.formats.test_disk_cache import *\nprint([describe(make()) for make in DIFFERENT])"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # this process has another, a random one
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{[describe(make()) for make in DIFFERENT]}\n"


def test_a_file_below_counts_by_size_and_time(tmp_path):
    path = TFRECORD.saved(tmp_path, images(4))
    before = describe(TFRECORD.load(path))
    assert before == describe(TFRECORD.load(path))
    os.utime(path, (1, 1))
    assert describe(TFRECORD.load(path)) != before


def test_what_nobody_can_compare_is_named(path):
    with pytest.raises(TypeError, match=r"DataFromGenerator.gen holds a generator.*fingerprint="):
        DiskCacheData(DataFromGenerator(k for k in range(3)), path)
    with DiskCacheData(DataFromGenerator([k] for k in range(3)), path, fingerprint="x") as df:
        assert list(df) == [[0], [1], [2]] == list(df)


def test_seeding_does_not_change_the_file(path):
    found = []
    for seed in (1, 2):
        dataflow.seed(seed)
        with DiskCacheData(DataFromList([[k] for k in range(20)]), path) as df:
            found.append(list(df))
    dataflow.seed(None)
    assert found[0] == found[1] != sorted(found[0])


@pytest.mark.parametrize("content", [b"my notes\n" * 100, b"\xc1\x02" * 50, b"x", bytes(5000)])
def test_a_file_of_another_kind_is_never_replaced(log, path, content):
    path.write_bytes(content)
    with DiskCacheData(Counted(log), path) as df, pytest.raises(FileExistsError, match="not a cache"):
        list(df)
    assert path.read_bytes() == content and log.read_text() == ""


@pytest.mark.parametrize("place", [0, 9, 200, -1])
def test_a_cache_that_is_damaged_anywhere_is_filled_again(log, path, place):
    with DiskCacheData(Counted(log), path) as df:
        list(df)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with DiskCacheData(Counted(log), path) as df:
        assert_same(list(df), expected())


def test_an_empty_file_may_become_a_cache(log, path):
    path.touch()
    with DiskCacheData(Counted(log), path) as df:
        assert_same(list(df), expected())


# -- what decides the datapoints ---------------------------------------------------------------------------------------

PROGRAM = """
import sys
from dataflow import DataFromList, DiskCacheData, MapData
SIZE = int(sys.argv[1])
def resize(dp): return [dp[0] * SIZE]
with DiskCacheData(MapData(DataFromList([[1], [2]], shuffle=False), resize), "cache") as df:
    print(list(df))
"""


def test_a_global_constant_of_the_program_fills_the_file_again(tmp_path):
    (tmp_path / "job.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    outputs = []
    for size in ("1", "224", "224"):
        done = subprocess.run(
            [sys.executable, "job.py", size], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        outputs.append((done.stdout, "filled again" in done.stderr, "SIZE = 224" in done.stderr))
    assert outputs == [
        ("[[1], [2]]\n", False, False),
        ("[[224], [448]]\n", True, True),
        ("[[224], [448]]\n", False, False),
    ]


def lines_of(folder):
    path = folder / "rows.jsonl"
    path.write_text('{"a": 1}\n')
    return path, lambda: JSONLinesData(path)


def sparse_rows_of(folder):
    path = folder / "a.svmlight"
    path.write_text("1 1:2\n0 2:3\n")
    return path, lambda: SVMLightData(path)


def shards_of(folder):
    path = folder / "s.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("0.cls")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"1"))
    return path, lambda: WebDatasetData(path)


def table_of(folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"a": [1, 2]})
    path = folder / "a.parquet"
    parquet.write_table(table, path)
    return path, lambda: TableData(path)


def lmdb_folder_of(folder):
    place = folder / "data"
    place.mkdir()
    LMDB.save(flow([[1], [2]]), place, overwrite=True)
    return place / "data.mdb", lambda: LMDB.load(place)


def images_of(packed):
    def make(folder):
        path = folder / "images" / "cat" / "1.png"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
        return path, lambda: ImageFolderData(folder / "images", packed=packed)

    return make


def many_images_of(folder):
    path, load = images_of(False)(folder)
    for k in range(100):
        path.with_name(f"{k}.png").write_bytes(b"x")
    return path, load


def saved_by(form):
    def make(folder):
        path = Path(form.saved(folder, images(3)))
        return path, lambda: form.load(path)

    return make


SOURCES = {
    **{form.name: saved_by(form) for form in FORMATS},
    "a folder of LMDB": lmdb_folder_of,
    "JSON lines": lines_of,
    "shards": shards_of,
    "sparse rows": sparse_rows_of,
    "parquet": table_of,
    "images": images_of(False),
    "packed images": images_of(True),
    "many images": many_images_of,
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("wrap", [lambda df: df, lambda df: DataFromGenerator(lambda: iter(df))])
def test_a_file_that_a_source_names_counts_by_size_and_time(tmp_path, name, wrap):
    path, load = SOURCES[name](tmp_path)
    before = describe(wrap(load()))
    assert describe(wrap(load())) == before
    status = os.stat(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1000))
    later = describe(wrap(load()))
    with open(path, "ab") as file:
        file.write(b"\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with contextlib.suppress(FileDamaged):
        assert describe(wrap(load())) not in {before, later}
    assert before != later


def test_a_replaced_image_fills_the_file_again(tmp_path, path):
    def read(dp):
        return [Path(dp[0]).read_bytes(), dp[1]]

    image, load = SOURCES["images"](tmp_path)
    found = []
    for content in (b"old", b"other", b"other"):
        if content != image.read_bytes():
            image.write_bytes(content)
        with DiskCacheData(MapData(load(), read), path) as df:
            found.append((list(df), describe(df.ds)))
    assert [dps for dps, _ in found] == [[[b"old", 0]], [[b"other", 0]], [[b"other", 0]]]
    assert found[0][1] != found[1][1] == found[2][1]


def test_a_replaced_file_behind_a_url_counts(tmp_path):
    system = pytest.importorskip("fsspec").filesystem("memory")
    try:
        descriptions = []
        for content in (b'{"a": 1}\n', b'{"a": 12}\n'):
            system.pipe("/cached/rows.jsonl", content)
            system.pipe("/cached/images/cat/1.png", content)
            descriptions += [
                describe(JSONLinesData("memory://cached/rows.jsonl")),
                describe(ImageFolderData("memory://cached/images")),
            ]
            assert descriptions[-1] == describe(ImageFolderData("memory://cached/images"))
        assert len(set(descriptions)) == 4
    finally:
        system.rm("/cached", recursive=True)


def test_a_function_that_was_pickled_is_the_same(tmp_path):
    cloudpickle = pytest.importorskip("cloudpickle")
    k, table = 3, {"a": np.arange(3)}

    def helper(x):
        return x * k + table["a"].sum()

    for make in (
        lambda: lambda dp: [helper(dp[0])],
        lambda: functools.partial(helper, 2),
        lambda: Scale(table),
        lambda: Scale(helper).method,
    ):
        df = MapData(flow([[1]]), make())
        assert (
            describe(cloudpickle.loads(cloudpickle.dumps(df))) == describe(df) == describe(MapData(flow([[1]]), make()))
        )


def test_cells_of_a_notebook_are_described_alike_when_they_are_run_again():
    found = []
    for number, size in enumerate((1, 1, 2)):
        program = {"__name__": "__main__", "_": number, "In": [""] * number}
        exec(compile(f"SIZE = {size}\ndef func(dp): return [dp[0] * SIZE]", f"<cell {number}>", "exec"), program)
        found.append(describe(MapData(flow([[1]]), program["func"])))
    assert found[0] == found[1] != found[2]


def test_a_constant_that_changes_after_the_cache_was_created_is_noticed(path, caplog):
    program = {"__name__": "job", "SIZE": 1}
    exec("def func(dp): return [dp[0] * SIZE]", program)
    data = [[1], [2]]

    def cache():
        return DiskCacheData(MapData(DataFromList(data, shuffle=False), program["func"]), path)

    with cache() as df:
        program["SIZE"] = 2
        assert list(df) == [[2], [4]] == list(df)
        assert not caplog.records
        program["SIZE"] = 5
        assert sorted(ShuffleData(df)) == [[5], [10]]
        program["SIZE"] = 4
        assert df[1] == [8]
        caplog.clear()
        program["SIZE"] = 3
        assert list(df) == [[3], [6]] == list(df)
        data.append([3])
        assert list(df) == [[3], [6], [9]] == list(df)
        assert len(caplog.records) == 2
    with cache() as df:
        assert list(df) == [[3], [6], [9]]
    assert len(caplog.records) == 2


def test_numbers_that_change_after_the_cache_was_created_are_noticed(path, tmp_path, caplog):
    weights = np.memmap(tmp_path / "weights", np.uint8, "w+", shape=1)

    def cache():
        return DiskCacheData(MapData(flow([[1]]), lambda dp: [int(weights[0])]), path)

    with cache() as df:
        weights[:] = 5
        assert list(df) == [[5]]
    weights[:] = 0
    with cache() as df:
        assert list(df) == [[0]]
    assert len(caplog.records) == 1


def test_weights_of_torch_that_change_after_the_cache_was_created_are_noticed(path, caplog):
    torch = pytest.importorskip("torch")

    def cache(weight):
        net = torch.nn.Linear(1, 1)
        net.bias.data[:] = net.weight.data[:] = 0
        df = DiskCacheData(MapData(flow([[1]]), lambda dp: [net.weight.item()]), path)
        with torch.no_grad():
            net.weight += weight
        return df

    with cache(5) as df:
        assert list(df) == [[5]]
    with cache(0) as df:
        assert list(df) == [[0]]
    assert len(caplog.records) == 1


def test_what_a_node_counts_while_it_fills_the_file_is_no_change(path, caplog):
    class Counting(DataFlow):
        num = 0

        def __iter__(self):
            self.num += 1
            yield [self.num]

    with DiskCacheData(Counting(), path) as df:
        assert [list(df) for _ in range(3)] == [[[1]]] * 3
    with DiskCacheData(Counting(), path) as df:
        assert [list(df) for _ in range(3)] == [[[1]]] * 3
    assert not caplog.records


def test_another_function_with_the_same_code_keeps_the_file(path, caplog):
    def make(k):
        return lambda dp: [dp[0] + 1]

    with DiskCacheData(MapData(flow([[1]]), make(1)), path) as df:
        assert list(df) == [[2]]
        reader = df._reader()
        df.ds.func = make(2)
        assert list(df) == [[2]] and df._reader() is reader
    assert not caplog.records
