"""From format to format, in Python and on the command line."""

import os
import pickle
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from dataflow.__main__ import main
from dataflow.formats.converting import SUFFIXES, convert, format_of
from tests.formats.files import COLUMNS, FORMATS, LMDB, NPZ, TFRECORD, assert_same, by_name, flow, images
from tests.formats.test_lmdb import as_tensorpack, pickled


@pytest.mark.parametrize("source", FORMATS, ids=by_name)
@pytest.mark.parametrize("target", FORMATS, ids=by_name)
def test_every_format_becomes_every_other(source, target, tmp_path):
    src, dst = source.saved(tmp_path, images(8)), target.file(tmp_path, "other")
    assert convert(src, dst) == 8
    with target.load(dst, shuffle=False) as df:
        assert_same(list(df), images(8))


def test_svmlight_is_read(tmp_path):
    (tmp_path / "file.svm").write_text("1 1:2\n0 3:1\n")
    convert(tmp_path / "file.svm", tmp_path / "file.npz")
    with NPZ.load(tmp_path / "file.npz", shuffle=False) as df:
        assert_same(df[0], [np.array([2.0, 0, 0]), np.float64(1)])
    with pytest.raises(ValueError, match="read only"):
        convert(tmp_path / "file.npz", tmp_path / "other.svm")


def test_tables_lines_and_shards_are_read(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"k": 1}\n{"k": 2}\n')
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        tar.add(tmp_path / "rows.jsonl", "a.jsonl")
    assert convert(tmp_path / "rows.jsonl", tmp_path / "rows.npz") == 2
    assert convert(tmp_path / "s.tar", tmp_path / "s.tfrecord") == 1
    with TFRECORD.load(tmp_path / "s.tfrecord") as df:
        assert df[0] == {"__key__": "a", "jsonl": (tmp_path / "rows.jsonl").read_bytes()}
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        pytest.importorskip("pyarrow").table({"k": [1, 2], "v": [[1.5], [2.5]]}), tmp_path / "t.parquet"
    )
    assert convert(tmp_path / "t.parquet", tmp_path / "t.npz") == 2
    with NPZ.load(tmp_path / "t.npz", shuffle=False) as df:
        assert_same(df[1], {"k": np.int64(2), "v": np.array([2.5])})
    with pytest.raises(ValueError, match="parquet files are read only"):
        convert(tmp_path / "t.npz", tmp_path / "other.parquet")


def test_a_format_is_told_by_the_name(tmp_path):
    assert {suffix: format_of(f"a.b/file{suffix.upper()}") for suffix in SUFFIXES} == SUFFIXES
    LMDB.save(flow([[1]]), tmp_path)
    assert format_of(tmp_path) == "lmdb"
    with pytest.raises(ValueError, match=r"one of \.lmdb \.mdb \.h5"):
        format_of("file.zip")
    with pytest.raises(FileNotFoundError):
        convert(tmp_path / "none.lmdb", tmp_path / "x.npz")


def test_the_command_line_converts(tmp_path, capsys):
    src, dst = LMDB.saved(tmp_path, images(8)), str(tmp_path / "out.h5")
    arguments = ["convert", src, dst, "--data-paths", "label,image", "--compress", "gzip"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{dst}: 8 datapoints\n"
    assert main(arguments) == 1
    assert "there is such a file already" in capsys.readouterr().err
    assert main([*arguments, "--overwrite"]) == 0
    assert main(["convert", dst, str(tmp_path / "out.npz"), "--data-paths", "image"]) == 0
    with NPZ.load(tmp_path / "out.npz", shuffle=False) as df:
        assert_same(df[2], [images(8)[2][1]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{lmdb}", "{folder}/x.zip"], "is inferred from its extension"),
        (["{folder}/none.lmdb", "{folder}/x.npz"], "No such file"),
        (["{lmdb}", "{folder}/x.npz", "--compress", "zstd"], "npz files are not compressed"),
        (["{lmdb}", "{folder}/x.tfrecord", "--compress", "x"], "compress must be 'zstd' or None, got 'x'"),
        (["{pickled}", "{folder}/x.tfrecord"], "load it with pickle=True"),
        (["{lmdb}", "{folder}/x.npz", "--data-paths", "a"], "lmdb and npz files have none"),
        (["{lmdb}", "{folder}/x.h5", "--data-paths", "a"], "1 names for 2 components"),
    ],
)
def test_what_goes_wrong_is_one_sentence(arguments, message, tmp_path, capsys):
    files = {
        "lmdb": LMDB.saved(tmp_path, images(3)),
        "pickled": as_tensorpack(tmp_path / "tensorpack.lmdb", images(3), pickled),
        "folder": tmp_path,
    }
    assert main(["convert", *(text.format(**files) for text in arguments)]) == 1
    error = capsys.readouterr().err
    assert message in error and error.startswith("python -m dataflow convert: ") and "Traceback" not in error
    assert sorted(os.listdir(tmp_path)) == ["file.lmdb", "tensorpack.lmdb"]


def test_tensorpacks_files_are_converted_on_request(tmp_path):
    src = as_tensorpack(tmp_path / "tensorpack.lmdb", images(8), pickle.dumps)
    assert main(["convert", src, str(tmp_path / "x.lmdb"), "--pickle"]) == 0
    with LMDB.load(tmp_path / "x.lmdb", shuffle=False) as df:  # arrays and numbers need no pickle any more
        assert_same(list(df), images(8))


@pytest.mark.parametrize("form", COLUMNS, ids=by_name)
def test_what_does_not_fit_is_said_before_anything_is_left(form, tmp_path, capsys):
    src = LMDB.saved(tmp_path, [[np.zeros(k)] for k in range(3)])
    assert main(["convert", src, form.file(tmp_path, "x")]) == 1
    assert "datapoint 1: component '0'" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["file.lmdb"]


def test_it_is_a_program(tmp_path):
    src = LMDB.saved(tmp_path, images(3))
    program = [sys.executable, "-m", "dataflow"]
    done = subprocess.run([*program, "convert", src, tmp_path / "x.npz"], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("x.npz: 3 datapoints\n")
    wrong = subprocess.run(program, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "COMMAND" in wrong.stderr
