"""The contract of all formats, checked for every serializer and its loader."""

import copy
import functools
import itertools
import os
import pickle
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import dataflow
from dataflow import DataFlowTerminated, FixedSizeData, MapData, MissingExtra, MultiProcessRunnerZMQ, ResumableData
from tests.formats.files import (
    COLUMNS,
    FORMATS,
    FREE,
    HDF5,
    LMDB,
    TFRECORD,
    arrays_in,
    assert_same,
    by_name,
    flow,
    images,
    opened,
)
from tests.support.contract import check_node, seeded
from tests.support.products import covering

ROOT = Path(__file__).parents[2]
TIMEOUT = 600.0  # seconds

every_format = pytest.mark.parametrize("form", FORMATS, ids=by_name)


@pytest.fixture
def path(form, tmp_path):
    return form.saved(tmp_path, images())


@every_format
def test_tensorpacks_expectations_hold(form, path):
    df = TFRECORD.load(path, size=32) if form is TFRECORD else form.load(path, shuffle=False)
    df.reset_state()
    with df:
        for _ in range(2):
            assert_same(list(df), images())
        assert len(df) == 32


@pytest.mark.parametrize(
    ("form", "order"),
    covering(FORMATS, [{"shuffle": False}, {"shuffle": True}, {"shuffle": True, "block_shuffle": 3}]),
    ids=lambda value: getattr(value, "name", None),
)
def test_the_loader_keeps_the_contract(form, order, tmp_path):
    path = form.saved(tmp_path, [[np.full(2, k), k] for k in range(8)])
    check_node(lambda: form.load(path, **order), source=True)


@every_format
def test_shuffling_is_a_permutation_which_the_seed_decides(form, path):
    with seeded(3), opened(form, path, shuffle=True) as df:
        passes = [[dp[1][0, 0, 0] for dp in df] for _ in range(3)]
    with seeded(3), opened(form, path, shuffle=True) as df:
        assert [dp[1][0, 0, 0] for dp in df] == passes[0]
    expected = sorted(dp[1][0, 0, 0] for dp in images())
    assert all(sorted(found) == expected for found in passes)
    assert len({tuple(found) for found in passes}) == 3


@every_format
def test_blocks_stay_together_when_blocks_are_shuffled(form, tmp_path):
    path = form.saved(tmp_path, [[k] for k in range(20)])
    with seeded(5), opened(form, path, shuffle=True, block_shuffle=6) as df:
        found = [k for (k,) in df]
    assert sorted(found) == list(range(20))
    assert found != list(range(20))
    changes = [k for k in range(1, 20) if found[k] // 6 != found[k - 1] // 6]
    assert len(changes) == 3  # four blocks, each in one piece
    assert any(found[k + 1] < found[k] for k in range(19) if found[k] // 6 == found[k + 1] // 6)


@every_format
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": "False"}, "shuffle must be True or False, got 'False'"),
        ({"shuffle": 2}, "shuffle must be True or False, got 2"),
        ({"shuffle": True, "block_shuffle": "x"}, "block_shuffle must be an integer ≥ 1, got 'x'"),
        ({"shuffle": True, "block_shuffle": True}, "block_shuffle must be an integer ≥ 1, got True"),
        ({"shuffle": True, "block_shuffle": 1.5}, "block_shuffle must be an integer ≥ 1, got 1.5"),
    ],
)
def test_options_of_another_type_are_refused_by_name(form, options, message, tmp_path):
    path = form.saved(tmp_path, [[1]])
    with pytest.raises(TypeError, match=message):
        form.load(path, **options)


@every_format
def test_any_position_can_be_asked_for_in_any_order(form, path):
    expected = images()
    with opened(form, path) as df:
        for index in (31, 0, 7, 40, 7):
            assert_same(df[index], expected[index % 32])
        assert_same(df[30:34], [*expected[30:], *expected[:2]])


@every_format
def test_arrays_are_writable_and_share_no_memory(form, path):
    with opened(form, path) as df:
        first, second = list(df), list(df)
    arrays = arrays_in([first, second])
    assert len(arrays) == 64
    for array in arrays:
        assert array.flags.writeable and array.flags.aligned
        array[...] = 0
    assert not any(np.shares_memory(a, b) for a in arrays[:3] for b in arrays[1:] if a is not b)
    with opened(form, path) as df:
        assert_same(list(df), images())


@every_format
def test_an_unstarted_and_a_started_loader_can_be_pickled(form, path):
    with opened(form, path) as df:
        for _ in range(2):
            with pickle.loads(pickle.dumps(df)) as clone, copy.copy(df) as other:
                assert_same([clone[2], other[2]], [images()[2]] * 2)
            next(iter(df))


@pytest.mark.parametrize(
    ("form", "context"),
    [
        pytest.param(
            form,
            context,
            id=f"{form.name}-{context}",
            marks=[pytest.mark.full] * ((form is HDF5) != (context == "spawn")),
        )
        for form, context in itertools.product(FORMATS, ["fork", "spawn"])
    ],
)
def test_a_worker_opens_its_own_file(form, context, path):
    with opened(form, path) as df:
        assert_same(df[1], images()[1])  # it is open here, too
        with MultiProcessRunnerZMQ(df, 1, context=context, timeout=60) as runner:
            assert_same(list(runner), images())
        assert_same(df[1], images()[1])


@every_format
def test_two_flows_and_two_threads_may_read_one_file(form, path):
    expected = images()
    found = []
    with opened(form, path) as df, opened(form, path) as other:
        pairs = list(zip(df, other, strict=True))
        threads = [threading.Thread(target=lambda: found.append(list(df))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        other.close()
        assert_same(df[5], expected[5])
    assert_same([a for a, _ in pairs], expected)
    assert len(found) == 2
    for datapoints in found:
        assert_same(datapoints, expected)


@every_format
def test_resetting_while_a_pass_is_under_way_opens_the_file_anew(form, path):
    with opened(form, path) as df:
        iterator = iter(df)
        next(iterator)
        df.reset_state()
        list(df)


@every_format
def test_an_iteration_that_outlives_its_flow_says_so(form, path):
    df = opened(form, path)
    chain = MapData(df, lambda dp: dp)
    iterator = iter(chain)
    next(iterator)
    df.close()
    try:
        rest = list(iterator)
    except DataFlowTerminated:
        rest = images()[1:]
    assert_same(rest, images()[1:])  # or all of it had been read before
    df.close()


@every_format
def test_an_existing_file_is_not_overwritten_unless_told(form, path):
    before = Path(path).read_bytes()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        form.save(flow([[1]]), path)
    assert Path(path).read_bytes() == before
    form.save(flow([[1]]), path, overwrite=True)
    with opened(form, path) as df:
        assert list(df) == [[1]]


@every_format
def test_a_missing_file_or_folder_is_named(form, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        form.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="make it first"):
        form.save(flow([[1]]), tmp_path / "no" / "folder")


@every_format
def test_a_flow_without_end_and_no_flow_are_refused(form, tmp_path):
    with pytest.raises(ValueError, match="never ends"):
        form.save(dataflow.RepeatedData(flow([[1]]), -1), form.file(tmp_path))
    with pytest.raises(TypeError, match=r"\.save expects a dataflow, got list: wrap df in DataFromList"):
        form.save([[1]], form.file(tmp_path))
    assert os.listdir(tmp_path) == []


@every_format
@pytest.mark.parametrize("num", [0, 1])
def test_short_files_are_files(form, num, tmp_path):
    path = form.saved(tmp_path, [[7, np.arange(3)]] * num)
    with opened(form, path) as df, opened(form, path, shuffle=True, block_shuffle=4) as shuffled:
        assert len(df) == len(list(df)) == len(list(shuffled)) == num
        if not num:
            with pytest.raises(IndexError, match="no datapoints"):
                df[0]


@every_format
def test_reused_arrays_are_stored_as_they_are_when_they_come(form, tmp_path):
    def reuse():
        array = np.zeros(4)
        for k in range(700):
            array[:] = k
            yield [array]

    path = form.file(tmp_path)
    form.save(dataflow.DataFromGenerator(reuse), path)
    with opened(form, path) as df:
        assert [int(dp[0][3]) for dp in df] == list(range(700))


@every_format
def test_what_is_on_disk_does_not_change_while_it_is_read(form, path):
    with opened(form, path) as df:
        iterator = iter(df)
        first = next(iterator)
        form.save(flow([[0, np.zeros((28, 28, 3))]]), path, overwrite=True)
        assert_same([first, *iterator], images())  # the old file, which is open
        df.reset_state()
        assert len(df) == 1


@pytest.mark.parametrize("form", FREE, ids=by_name)
def test_compressed_records_come_back(form, tmp_path):
    dps = [[k, np.zeros((50, 50)), "text"] for k in range(20)]
    plain = os.path.getsize(form.saved(tmp_path, dps))
    path = form.saved(tmp_path, dps, compress="zstd")
    assert os.path.getsize(path) < plain / 4
    with opened(form, path) as df:
        for _ in range(2):
            assert_same(list(df), dps)
            assert all(array.flags.writeable for array in arrays_in(list(df)))
    with pytest.raises(ValueError, match="'zstd' or None, got 'bzip'"):
        form.save(flow(dps), form.file(tmp_path, "other"), compress="bzip")


@every_format
def test_the_size_that_was_asked_for_is_kept(form, path):
    if form is TFRECORD:
        df = TFRECORD.load(path, size=40)
        assert isinstance(df, FixedSizeData)
        with df:
            assert len(list(df)) == len(df) == 40


@every_format
def test_chains_over_a_loader_are_addressable(form, path):
    with MapData(opened(form, path, shuffle=True), lambda dp: [dp[0]]) as df, seeded(1):
        assert df.addressable
        assert list(df) == df[:32]


@every_format
def test_a_saved_state_may_be_loaded_where_the_file_lies_elsewhere(form, path, tmp_path):
    with seeded(4), ResumableData(opened(form, path, shuffle=True)) as df:
        iterator = iter(df)
        for _ in range(5):
            next(iterator)
        state = df.state_dict()
        rest = list(iterator)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with ResumableData(opened(form, form.saved(elsewhere, images()), shuffle=True)) as df:
        df.load_state_dict(state)
        assert_same(list(df), rest)


@pytest.mark.parametrize(
    ("form", "kind"),
    covering(FORMATS, ["MultiProcessRunnerZMQ", "MultiThreadRunner"]),
    ids=lambda value: getattr(value, "name", value),
)
def test_strict_runners_share_a_file_by_index(form, kind, path):
    with seeded(4), opened(form, path, shuffle=True) as df:
        expected = list(df)
    make = functools.partial(opened, form, path, shuffle=True)
    with seeded(4):
        df = make if kind == "MultiThreadRunner" else make()
        sizes = (5, 2) if kind == "MultiThreadRunner" else (2,)
        with getattr(dataflow, kind)(df, *sizes, strict=True, timeout=60) as runner:
            assert_same(list(runner), expected)


@pytest.mark.parametrize("missing", ["lmdb", "h5py", "zstandard"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(missing, monkeypatch, tmp_path):
    extra = {"lmdb": "lmdb", "h5py": "hdf5", "zstandard": "zstd"}[missing]
    monkeypatch.setitem(sys.modules, missing, None)
    (tmp_path / "file").write_bytes(b"")
    tried = 0
    for form in FORMATS:
        if missing == "zstandard" and (form not in FREE or (form is LMDB and find_spec("lmdb") is None)):
            continue
        if (missing, form.name) in {("lmdb", "h5"), ("h5py", "lmdb")} or (
            missing != "zstandard" and form.name not in {"lmdb", "h5"}
        ):
            continue
        tried += 1
        options = {"compress": "zstd"} if missing == "zstandard" else {}
        with pytest.raises(MissingExtra, match=rf'pip install "dataflow-runners\[{extra}\]"'):
            form.saved(tmp_path, [[1]], **options)
        if not options:
            with pytest.raises(MissingExtra):
                form.load(tmp_path / "file")
    assert tried


# -- memory ------------------------------------------------------------------------------------------------------------


PROGRAM = """
import pathlib, re, sys
import numpy as np
from dataflow import DataFromGenerator
from tests.formats.files import FORMATS

def memory():  # without mapped pages of files, which are the system's cache: LMDB maps its file
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) // 1024

form = next(form for form in FORMATS if form.name == sys.argv[1])
num = int(sys.argv[3])
image = np.random.default_rng(0).integers(0, 256, (256, 1024), np.uint8)

peak = 0

def images():
    global peak
    for k in range(num):
        if k % 16 == 0:
            peak = max(peak, memory())
        image[0, 0] = k % 256
        yield [k, image]

form.save(DataFromGenerator(images), sys.argv[2])
for options in ({"shuffle": False}, {"shuffle": True}, {"shuffle": True, "block_shuffle": 16}):
    with form.load(sys.argv[2], **options) as df:
        seen = 0
        for dp in df:
            seen += dp[1][0, 0] == dp[0] % 256
            if seen % 16 == 0:
                peak = max(peak, memory())
        assert seen == num, seen
print(peak)
"""


@pytest.mark.parametrize(
    ("form", "mebibytes"),
    [
        *(pytest.param(form, 256, id=form.name) for form in (LMDB, TFRECORD)),
        *(pytest.param(form, 256, id=form.name, marks=pytest.mark.full) for form in COLUMNS),
        *(pytest.param(form, 2048, id=f"{form.name}-2GiB", marks=pytest.mark.full) for form in FORMATS),
    ],
)
def test_a_file_that_is_larger_than_the_memory_it_takes(form, mebibytes, tmp_path):
    if package := {"lmdb": "lmdb", "h5": "h5py"}.get(form.name):
        pytest.importorskip(package)
    path = form.file(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, form.name, path, str(4 * mebibytes)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    Path(path).unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200, f"{done.stdout} MiB for a file of {mebibytes} MiB"
