"""WebDataset shards: naming, the index, damage, and the same samples as the library itself gives."""

import contextlib
import io
import json
import os
import pickle
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import (
    BatchData,
    DiskCacheData,
    FileDamaged,
    MapData,
    MultiProcessRunnerZMQ,
    TooManyFailures,
    WebDatasetData,
)
from dataflow.formats.index_files import write_index
from dataflow.formats.positional import open_positional
from tests.formats.files import npy, write_shard
from tests.support.contract import check_node, plain, seeded
from tests.support.waits import LIMIT

NUM = 12


def sample(k):
    return {"npy": npy(np.full(3, k)), "cls": b"%d" % k, "json": json.dumps({"k": k}).encode()}


def files_of_samples(numbers):
    return [(f"train/{k:04d}.{end}", data) for k in numbers for end, data in sample(k).items()]


@pytest.fixture
def shards(tmp_path):
    return [write_shard(tmp_path / f"s-{k:03d}.tar", files_of_samples(range(4 * k, 4 * k + 4))) for k in range(3)]


def keys(df):
    return [dp["__key__"] for dp in df]


def test_samples_are_dicts_by_extension(shards):
    with WebDatasetData(shards) as df:
        assert len(df) == NUM and keys(df) == [f"train/{k:04d}" for k in range(NUM)]
        assert df[NUM + 5] == {"__key__": "train/0005", **sample(5)}
        assert all(type(value) is bytes for name, value in df[2].items() if name != "__key__")
    with WebDatasetData(shards, decode=True) as df:
        dp = df[7]
        assert dp["cls"] == 7 and dp["json"] == {"k": 7} and dp["npy"].tolist() == [7, 7, 7]


def test_it_is_a_node(shards):
    check_node(lambda: WebDatasetData(shards), source=True)
    check_node(lambda: WebDatasetData(shards, block_shuffle=5, decode={"cls": int}), source=True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the library leaves its file open
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_samples_are_those_of_webdataset(form, tmp_path):
    long = "x" * (60 if form == tarfile.USTAR_FORMAT else 150)
    files = [
        ("__meta__", b"1"),
        ("__meta__/a.txt", b"1"),
        ("a.JPG", b"1"),
        ("a.seg.png", b"2" * 511),
        ("dir.d/b.jpg", b"3" * 512),
        ("b.jpg", b"4" * 513),
        ("no_extension", b"5"),
        (".hidden", b"6"),
        (f"{long}/{long}.txt", b"8"),
        ("dir/b\u00e4r.txt", b"9"),
        ("a.txt", b""),
    ]
    path = write_shard(tmp_path / "s.tar", files, form)
    expected = [
        {"__key__": "a", "jpg": b"1", "seg.png": b"2" * 511},
        {"__key__": "dir.d/b", "jpg": b"3" * 512},
        {"__key__": "b", "jpg": b"4" * 513},
        {"__key__": f"{long}/{long}", "txt": b"8"},
        {"__key__": "dir/b\u00e4r", "txt": b"9"},
        {"__key__": "a", "txt": b""},
    ]
    with WebDatasetData(path) as df:
        assert list(df) == expected and df[4] == expected[4]
    library = pytest.importorskip("webdataset")
    theirs = [dict(found) for found in library.WebDataset(path, shardshuffle=False)]
    assert [
        {name: value for name, value in dp.items() if name not in {"__url__", "__local_path__"}} for dp in theirs
    ] == (expected)


def test_hidden_files_are_left_out(tmp_path):
    path = write_shard(tmp_path / "s.tar", [("d/._a.jpg", b"1"), ("d/a.jpg", b"2"), (".b.jpg", b"3"), ("d/c", b"4")])
    with WebDatasetData(path) as df:
        assert list(df) == [{"__key__": "d/a", "jpg": b"2"}]


def test_what_is_no_file_is_left_out(tmp_path):
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as tar:
        folder = tarfile.TarInfo("a.d")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        link = tarfile.TarInfo("latest")
        link.type, link.linkname = tarfile.SYMTYPE, "y" * 200
        tar.addfile(link)
        info = tarfile.TarInfo("b.txt")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"1"))
    with WebDatasetData(path) as df:
        assert list(df) == [{"__key__": "b", "txt": b"1"}]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_what_is_no_file_has_no_content_whatever_its_size(kind, form, tmp_path):
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w", format=form) as tar:
        info = tarfile.TarInfo("train")
        info.type, info.size, info.pax_headers = kind, 2048, {"size": "2048"}
        tar.addfile(info)
        for k in range(4):
            info = tarfile.TarInfo(f"train/{k}.txt")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"%d" % k))
    with tarfile.open(path) as tar:
        assert [info.name for info in tar if info.isreg()] == [f"train/{k}.txt" for k in range(4)]
    with WebDatasetData(path, decode=True) as df:
        assert list(df) == [{"__key__": f"train/{k}", "txt": f"{k}"} for k in range(4)]


def test_names_with_braces_and_folders_stand_for_shards(shards, tmp_path):
    for urls in (tmp_path / "s-{000..002}.tar", f"{tmp_path}/s-{{000,001,002}}.tar", tmp_path, str(tmp_path)):
        with WebDatasetData(urls) as df:
            assert keys(df) == [f"train/{k:04d}" for k in range(NUM)]
    with pytest.raises(FileNotFoundError, match=r"s-003\.tar"):
        WebDatasetData(tmp_path / "s-{000..003}.tar")


@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.full)])
def test_strict_workers_give_the_same_as_one_process(method, shards):
    with seeded(2):
        expected = [plain(dp) for dp in WebDatasetData(shards, decode=True, shuffle=True)]
        df = WebDatasetData(shards, decode=True, shuffle=True)
        with MultiProcessRunnerZMQ(df, 2, strict=True, context=method, timeout=LIMIT) as runner:
            assert [plain(dp) for dp in runner] == expected
    assert keys(pickle.loads(pickle.dumps(df))) != []


def test_many_shards_are_open_one_after_the_other(shards, monkeypatch):
    monkeypatch.setattr("dataflow.formats.positional._MAX_OPEN", 1)
    num_before = len(os.listdir("/dev/fd"))
    with WebDatasetData(shards, shuffle=True) as df:
        assert len(set(keys(df))) == NUM
        assert len(os.listdir("/dev/fd")) == num_before + 1


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
@pytest.mark.parametrize("keep", [False, True])
def test_a_sample_with_a_link_fails_and_names_the_cure(keep, kind, tmp_path):
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as tar:
        for name, target in [("a.cls", ""), ("a.jpg", ""), ("b.cls", "a.cls"), ("b.jpg", ""), ("c.jpg", "a.jpg")]:
            info = tarfile.TarInfo(name)
            if target:
                info.type, info.linkname = kind, target
            tar.addfile(info)
    for _ in range(2):  # the second time with the index of the first
        with WebDatasetData(path, keep_index=keep, max_failures=2) as df:
            assert list(df) == [{"__key__": "a", "cls": b"", "jpg": b""}] and len(df) == 3
            link, only_link = [failure.text for failure in df.failures]
        assert "s.tar: the sample 'b' has a link in place of its file with the extension 'cls'" in link
        assert "the sample 'c'" in only_link and "tar --hard-dereference -h" in only_link


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar")
def test_a_shard_made_as_the_error_says_has_the_content_of_its_links(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    os.link(tmp_path / "a.txt", tmp_path / "b.txt")
    (tmp_path / "c.txt").symlink_to("a.txt")
    path = tmp_path / "s.tar"
    command = ["tar", "--hard-dereference", "-h", "-cf", path, "a.txt", "b.txt", "c.txt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this tar does not know the option: {done.stderr}")
    with WebDatasetData(path, decode=True) as df:
        assert [dp["txt"] for dp in df] == ["one"] * 3


def test_an_index_that_was_made_without_links_is_made_again(tmp_path):
    path = write_shard(tmp_path / "s.tar", [("a.txt", b"one")])
    planted(path, "samples: begins, ends, sums of their files", [0, 1024, 7])
    with WebDatasetData(path) as df:
        assert keys(df) == ["a"]


# -- the index ---------------------------------------------------------------------------------------------------------


def no_search(*_):
    pytest.fail("the shard was searched again")


def test_an_index_is_kept_beside_a_shard(shards, monkeypatch):
    with WebDatasetData(shards) as df:
        assert len(df) == NUM and not os.path.exists(shards[0] + ".index")
    with WebDatasetData(shards, keep_index=True) as df:
        assert len(df) == NUM
    assert all(os.path.exists(path + ".index") for path in shards)
    monkeypatch.setattr("dataflow.formats.webdataset._scan", no_search)
    with WebDatasetData(shards) as df:
        assert keys(df)[3:6] == ["train/0003", "train/0004", "train/0005"]


def test_an_index_is_made_once_for_a_flow(shards, monkeypatch):
    df = WebDatasetData(shards)
    assert len(df) == NUM
    monkeypatch.setattr("dataflow.formats.webdataset._scan", no_search)
    df.close()
    with MultiProcessRunnerZMQ(df, 2, strict=True, context="fork", timeout=LIMIT) as runner:
        assert len(list(runner)) == NUM
    df.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:-1] + b"\7",
        lambda data: b"{}\n",
        lambda data: b"1",
        lambda data: b"[" * 4000 + b"\n",
    ],
)
def test_an_index_that_is_damaged_or_of_another_shard_is_made_again(spoil, shards):
    path = shards[0]
    with WebDatasetData(path, keep_index=True) as df:
        len(df)
    index = Path(path + ".index")
    index.write_bytes(spoil(index.read_bytes()))
    with WebDatasetData(path, keep_index=True) as df:
        assert len(list(df)) == 4
    write_shard(path, files_of_samples(range(7)))
    with WebDatasetData(path) as df:
        assert len(list(df)) == len(df) == 7


def test_the_index_behind_a_symbolic_link_is_that_of_the_file(shards, tmp_path, monkeypatch):
    link = tmp_path / "link.tar"
    link.symlink_to(shards[0])
    with WebDatasetData(link, keep_index=True) as df:
        assert len(df) == 4
    assert os.path.exists(shards[0] + ".index") and not os.path.lexists(f"{link}.index")
    monkeypatch.setattr("dataflow.formats.webdataset._scan", no_search)
    with WebDatasetData(link) as df:
        assert len(list(df)) == 4


OTHER_SHARDS = {
    "samples are divided elsewhere": [("a.txt", b"1"), ("a.cls", b"1"), ("b.txt", b"1"), ("c.cls", b"1")],
    "samples are merged": [("a.txt", b"1"), ("a.cls", b"1"), ("a.jpg", b"1"), ("a.png", b"1")],
    "another key": [("a.txt", b"1"), ("a.cls", b"1"), ("c.txt", b"1"), ("c.cls", b"1")],
    "another extension": [("a.txt", b"1"), ("a.cls", b"1"), ("b.txt", b"1"), ("b.jpg", b"1")],
    "one more sample": [("a.txt", b"1"), ("a.cls", b"1"), ("b.txt", b"1"), ("b.cls", b"1"), ("c.cls", b"1")],
    "one more file": [("a.txt", b"1"), ("a.cls", b"1"), ("b.txt", b"1"), ("b.cls", b"1"), ("b.jpg", b"1")],
    "one file less": [("a.txt", b"1"), ("a.cls", b"1"), ("b.txt", b"1")],
    "another size": [("a.txt", b"1"), ("a.cls", b"1"), ("b.txt", b"1"), ("b.cls", b"12")],
    "a sample instead of a folder": [("a.txt", b"1"), ("a.cls", b"1"), ("b.txt", b""), ("c.cls", b"")],
}


@pytest.mark.parametrize("files", OTHER_SHARDS.values(), ids=OTHER_SHARDS.keys())
def test_another_shard_of_the_same_size_behind_a_url_is_refused_by_its_index(files, tmp_path):
    pytest.importorskip("fsspec")
    before = [("a.txt", b"1"), ("a.cls", b"1"), ("b.txt", b"1"), ("b.cls", b"1")]
    path = write_shard(tmp_path / "s.tar", before)
    with WebDatasetData(path, keep_index=True) as df:
        expected = list(df)
    url = f"file://{path}"
    with WebDatasetData(url) as df:
        assert list(df) == expected
    size = os.path.getsize(path)
    write_shard(path, files)
    assert os.path.getsize(path) == size
    with WebDatasetData(url) as df, pytest.raises(FileDamaged, match=r"s\.tar\.index, says: delete the index"):
        list(df)
    with WebDatasetData(path) as df:  # the time of the file itself is compared, too
        assert sum(len(dp) - 1 for dp in df) == len(files)


def planted(path, kind, offsets):
    """Write an index with these offsets that fits the file by size and time."""
    file = open_positional(path)
    write_index(file, kind, np.array(offsets, np.uint64))
    file.close()


def test_an_extended_header_of_many_records_is_read_in_one_step(tmp_path):
    info = tarfile.TarInfo("pax")
    info.type, records = tarfile.XHDTYPE, b"5 a=\n" * 400_000 + b"12 path=b.c\n"
    info.size = len(records)
    header = info.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512)
    path = tmp_path / "s.tar"
    path.write_bytes(header + Path(write_shard(tmp_path / "t.tar", [("a.txt", b"one")])).read_bytes())
    begin = time.process_time()
    with WebDatasetData(path) as df:
        assert list(df) == [{"__key__": "b", "c": b"one"}]
    assert time.process_time() - begin < LIMIT / 4  # the copy of all that follows, for each record: several minutes


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_an_extended_header_larger_than_any_is_damage(kind, tmp_path):
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, (1 << 26) + 1
    path = tmp_path / "s.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT))
    os.truncate(path, 2 * info.size)  # no bytes on the disk
    with WebDatasetData(path) as df, pytest.raises(FileDamaged, match=f"extended header would have {info.size} bytes"):
        list(df)


@pytest.mark.parametrize(
    "records", [b"5 a=", b"0 a=\n", b"-1 a=\n", b"2 a=\n", b"99 a=\n", b"5", b"1" * 5000 + b" a=\n"]
)
def test_an_extended_header_that_is_damaged_is_named(records, tmp_path):
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(records)
    header = info.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512)
    path = tmp_path / "s.tar"
    path.write_bytes(header + Path(write_shard(tmp_path / "t.tar", [("a.txt", b"one")])).read_bytes())
    with (
        WebDatasetData(path) as df,
        pytest.raises(FileDamaged, match="there is an invalid extended header at byte 512"),
    ):
        list(df)


def test_an_index_that_cannot_be_right_is_made_again(shards):
    for offsets in ([], [0], [0, 0, 0], [0, 1 << 40, 7], [512, 0, 1024, 512, 7, 7]):
        planted(shards[0], "samples: begins, ends, sums of their files and links", offsets)
        with WebDatasetData(shards[0]) as df:
            assert len(list(df)) == 4
    for end in (512, 7000):
        planted(shards[0], "samples: begins, ends, sums of their files and links", [0, end, 7])
        with WebDatasetData(shards[0]) as df, pytest.raises(FileDamaged, match="delete the index"):
            list(df)


# -- names -------------------------------------------------------------------------------------------------------------


def test_lists_steps_and_globs_stand_for_shards(shards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.rename(shards[2], "s-0[0]2.tar")
    for urls, numbers in {
        "s-000.tar::s-001.tar": [0, 1],
        "s-{001..000}.tar": [1, 0],
        "s-{000..002..3}.tar::s-001.tar": [0, 1],
        "s-*.tar": [0, 1, 2],
        "s-00?.tar": [0, 1],
        "**/s-00[01].tar": [0, 1],
        "s-0[0]2.tar": [2],  # a file of that name
        "s-{001,0[0]2}.tar": [1, 2],
        f"file://{tmp_path}/s-00*.tar": [0, 1],
        f"file://{tmp_path}/s-00{{1,0}}.tar::s-001.tar": [1, 0, 1],
        f"{tmp_path}/s-{{000,001}}.tar": [0, 1],
    }.items():
        if "file:" in urls:
            pytest.importorskip("fsspec")
        with WebDatasetData(urls) as df:
            assert keys(df)[::4] == [f"train/{4 * k:04d}" for k in numbers], urls
    with pytest.raises(FileNotFoundError, match="no file matches this glob"):
        WebDatasetData("t-*.tar")
    with pytest.raises(ValueError, match="a brace without its counterpart"):
        WebDatasetData("s-{000..001.tar")


@pytest.mark.parametrize(
    "urls", ["pipe:cat t.tar", "pipe:curl -s https://host/t-{00..11}.tar?a=*", "s.tar::pipe:cat t.tar"]
)
def test_a_command_is_refused(urls):
    with pytest.raises(ValueError, match=r"pipe:.* names a command, .* give a path, or a URL that fsspec knows"):
        WebDatasetData(urls)


def test_a_file_may_be_named_as_a_command_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_shard(tmp_path / "pipe:cat t.tar", [("a.txt", b"one")])
    with WebDatasetData("pipe:cat t.tar") as df:
        assert keys(df) == ["a"]


# -- sparse files ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar")
@pytest.mark.parametrize(
    "form", [["--format=gnu"], *(["--format=pax", f"--sparse-version={v}"] for v in ("0.0", "0.1", "1.0"))]
)
@pytest.mark.parametrize("num", [1, 60])  # more than one header can describe
def test_a_sparse_file_is_refused_and_other_samples_are_read(num, form, tmp_path):
    with open(tmp_path / "a.bin", "wb") as file:
        file.truncate(1 << 20)
        for k in range(num):
            file.seek(8192 * k)
            file.write(b"x" * 512)
    (tmp_path / "b.txt").write_bytes(b"one")
    path = tmp_path / "s.tar"
    command = ["tar", "--sparse", *form, "-cf", path, "a.bin", "b.txt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this tar does not make them: {done.stderr}")
    assert os.path.getsize(path) < 1 << 20
    message = r"s\.tar: the sample 'a' has a sparse file with the extension 'bin', .*: make it without --sparse"
    with WebDatasetData(path) as df, pytest.raises(ValueError, match=message):
        list(df)
    with WebDatasetData(path, max_failures=1) as df:
        assert list(df) == [{"__key__": "b", "txt": b"one"}]


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_shard_cut_off_anywhere_is_noticed(shards):
    data = Path(shards[0]).read_bytes()
    path = shards[1]
    samples = [dp["__key__"] for dp in WebDatasetData(shards[0])]
    num_whole = data.rstrip(b"\0")
    for end in range(1, len(num_whole), 517):
        Path(path).write_bytes(data[:end])
        with WebDatasetData(path, max_failures=1) as df:
            found = keys(df)
            assert found == samples[: len(found)] and len(df) == len(found) + 1
            assert df.failures[0].kind.endswith("FileDamaged") and path in df.failures[0].text
        with WebDatasetData(path) as df, pytest.raises(FileDamaged, match=r"s-001\.tar.* at byte"):
            list(df)


def test_a_shard_without_its_end_is_cut_off(shards):
    data = Path(shards[0]).read_bytes().rstrip(b"\0")
    Path(shards[0]).write_bytes(data + bytes(-len(data) % 512))
    with WebDatasetData(shards[0]) as df, pytest.raises(FileDamaged, match="the end of the archive is missing"):
        list(df)


def joined(path, num, num_zeros, tmp_path):
    """Write two archives one after the other; the end of the first is marked after `num` blocks."""
    first = Path(write_shard(tmp_path / "x.tar", [(f"x{k:02d}.txt", b"") for k in range(num)])).read_bytes()
    second = Path(write_shard(tmp_path / "y.tar", [("y.txt", b"1")])).read_bytes()
    content = first if num_zeros is None else first[: 512 * num] + bytes(512 * num_zeros)
    path.write_bytes(content + second)
    return len(content)


@pytest.mark.parametrize("num_zeros", [None, 1, 2])  # as many as programs write, and less
@pytest.mark.parametrize("num", [0, 1, 17, 18, 19, 20, 39])
def test_a_second_archive_in_a_shard_is_noticed(num, num_zeros, tmp_path):
    path = tmp_path / "xy.tar"
    begin = joined(path, num, num_zeros, tmp_path)
    with WebDatasetData(path, max_failures=1) as df:
        assert keys(df) == [f"x{k:02d}" for k in range(num)]
        assert f"xy.tar: another archive begins at byte {begin} of the file" in df.failures[0].text
    with (
        WebDatasetData(path, keep_index=True) as df,
        pytest.raises(FileDamaged, match="tar -Af instead of cat") as caught,
    ):
        list(df)
    assert caught.value.offset == begin
    assert not os.path.exists(f"{path}.index")


def test_a_second_archive_behind_a_url_is_noticed(tmp_path):
    pytest.importorskip("fsspec")
    joined(tmp_path / "xy.tar", 3, None, tmp_path)
    with WebDatasetData(f"file://{tmp_path}/xy.tar") as df, pytest.raises(FileDamaged, match="another archive begins"):
        list(df)


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar")
def test_archives_that_are_joined_as_the_error_says_have_all_samples(tmp_path):
    joined(tmp_path / "xy.tar", 3, None, tmp_path)
    command = ["tar", "-Af", "x.tar", "y.tar"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this tar does not join archives: {done.stderr}")
    with WebDatasetData(tmp_path / "x.tar") as df:
        assert keys(df) == ["x00", "x01", "x02", "y"]


@pytest.mark.parametrize("tail", [b"", b"\0", bytes(512), b"signature", b"signature" * 100])
def test_what_follows_the_end_and_is_no_archive_is_left_out(tail, shards):
    with open(shards[0], "ab") as file:
        file.write(tail)
    with WebDatasetData(shards[0]) as df:
        assert len(list(df)) == 4


def test_the_zeros_after_the_end_are_not_read_to_the_last(shards):
    os.truncate(shards[0], 1 << 38)  # no bytes on the disk, and more than any memory
    with WebDatasetData(shards[0]) as df:
        assert len(list(df)) == 4


@pytest.mark.parametrize("garbage", [b"no tar" * 1000, b"", b"\xff" * 512, b"1" * 700])
def test_garbage_is_one_datapoint_that_fails(garbage, shards, caplog):
    Path(shards[1]).write_bytes(garbage)
    with WebDatasetData(shards, max_failures=1) as df:
        assert [dp["cls"] for dp in df] == [b"0", b"1", b"2", b"3", b"8", b"9", b"10", b"11"]
        assert len(df) == 9 and shards[1] in df.failures[0].text
    assert f"{shards[1]}: 0 samples are read, and the rest counts as one that failed" in caplog.text
    Path(shards[2]).write_bytes(garbage)
    with WebDatasetData(shards, max_failures=1) as df, pytest.raises(TooManyFailures):
        list(df)


def test_a_failure_is_raised_again_in_each_pass_without_notes_of_the_last(shards):
    Path(shards[0]).write_bytes(b"garbage" * 100)
    with WebDatasetData(shards) as df:
        for _ in range(2):
            with pytest.raises(FileDamaged) as caught:
                list(df)
            assert len(caught.value.__notes__) == 1


def test_a_flipped_bit_in_a_header_is_noticed_also_behind_the_index(shards):
    path = Path(shards[0])
    with WebDatasetData(shards[0], keep_index=True) as df:
        assert len(df) == 4
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with WebDatasetData(shards[0], max_failures=1) as df:
        assert len(list(df)) == 3 and "there are other files than its index" in df.failures[0].text


@settings(max_examples=50)
@given(st.data())
def test_any_damage_of_headers_is_noticed_or_harmless(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.tar"
    form = data.draw(st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
    write_shard(path, [("d/a.txt", b"1"), (f"{'x' * 90}/b.txt", b"2" * 600), ("c.cls", b"3")], form)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content.rstrip(b"\0")) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with WebDatasetData(path) as df, contextlib.suppress(FileDamaged, ValueError):
        assert len(list(df)) == len(df)


def with_size(path, at, field):
    """Write another size into the header at an offset of a shard, and its checksum."""
    content = bytearray(Path(path).read_bytes())
    content[at + 124 : at + 136] = field
    content[at + 148 : at + 156] = b" " * 8
    content[at + 148 : at + 156] = b"%06o\0 " % sum(content[at : at + 512])
    Path(path).write_bytes(content)
    return path


def test_a_size_below_zero_is_damage(tmp_path):
    path = with_size(write_shard(tmp_path / "s.tar", [("a.txt", b"1")]), 0, b"-0000001000\0")
    with WebDatasetData(path) as df, pytest.raises(FileDamaged, match="would have -512 bytes"):
        list(df)


def test_a_size_may_be_a_binary_number_or_stand_in_an_extended_header(tmp_path):
    """As that of a file of 8 GB and more."""
    path = with_size(write_shard(tmp_path / "s.tar", [("a.txt", b"1" * 600)]), 0, b"\x80" + (600).to_bytes(11))
    with WebDatasetData(path, decode=True) as df:
        assert list(df) == [{"__key__": "a", "txt": "1" * 600}]
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "of all files"}) as tar:
        info = tarfile.TarInfo("b.txt")
        info.size, info.pax_headers = 600, {"size": "600"}
        tar.addfile(info, io.BytesIO(b"2" * 600))
    with_size(path, 4 * 512, b"%011o\0" % 0)
    with WebDatasetData(path, decode=True) as df:
        assert list(df) == [{"__key__": "b", "txt": "2" * 600}]


def test_a_shard_without_samples_is_none(shards, tmp_path):
    empty = write_shard(tmp_path / "empty.tar", [("no_extension", b"1")])
    with WebDatasetData([empty, *shards[:1], empty]) as df:
        assert keys(df) == [f"train/{k:04d}" for k in range(4)]


def test_a_shard_that_is_cut_off_while_it_is_read_fails_datapoint_by_datapoint(shards):
    with WebDatasetData(shards, max_failures=4) as df:
        steps = iter(df)
        next(steps)
        os.truncate(shards[1], 100)
        assert len(list(steps)) == NUM - 5
        assert "s-001.tar: the file ends, " in df.failures[0].text


# -- decoding ----------------------------------------------------------------------------------------------------------


def test_an_extension_of_two_parts_is_decoded_by_its_last(tmp_path):
    path = write_shard(tmp_path / "s.tar", [("a.x.txt", b"1"), ("a.y.txt", b"2"), ("a.jpg", b"3")])
    with WebDatasetData(path, decode={"txt": bytes.decode, "y.txt": int, ".JPG": len}) as df:
        assert df[0] == {"__key__": "a", "x.txt": "1", "y.txt": 2, "jpg": 1}
    with WebDatasetData(path, decode={"txt": bytes.decode}) as df:
        assert repr(df).splitlines()[0].endswith("decode={'txt': bytes.decode})") or "decode=" in repr(df)


def test_a_number_beyond_the_floats_is_not_decoded_as_infinity(tmp_path):
    path = write_shard(tmp_path / "s.tar", [("a.json", b"[1e308, Infinity]"), ("b.json", b"[-1e400]")])
    with WebDatasetData(path, decode=True) as df:
        assert df[0]["json"] == [1e308, float("inf")]
        with pytest.raises(ValueError, match=r"sample 'b', extension 'json': .*'-1e400' is beyond the largest float"):
            df[1]


def test_a_file_that_cannot_be_decoded_is_named_and_skipped_within_the_budget(tmp_path):
    path = write_shard(tmp_path / "s.tar", [("a.cls", b"1"), ("b.cls", b"one"), ("c.cls", b"3")])
    message = r"s\.tar, sample 'b', extension 'cls': it cannot be decoded \(ValueError"
    with WebDatasetData(path, decode=True) as df, pytest.raises(ValueError, match=message):
        list(df)
    with WebDatasetData(path, decode=True, max_failures=1) as df:
        assert [dp["cls"] for dp in df] == [1, 3] and "sample 'b'" in df.failures[0].text


def test_two_files_of_one_extension_are_an_error(tmp_path):
    path = write_shard(tmp_path / "s.tar", [("a.txt", b"1"), ("a.TXT", b"2")])
    with WebDatasetData(path) as df, pytest.raises(ValueError, match=r"s\.tar: the sample 'a' has two files .*'txt'"):
        list(df)


@pytest.mark.parametrize("decode", ["rgb", 3, {"cls": 1}, [int]])
def test_a_decoder_of_another_type_is_refused(decode, shards):
    with pytest.raises(TypeError, match="decode is None, True, or a dict"):
        WebDatasetData(shards, decode=decode)


def as_pair(dp):
    return [dp["npy"], dp["cls"]]


def test_samples_become_batches(shards):
    df = BatchData(MapData(WebDatasetData(shards, decode=True), as_pair), 6)
    assert [labels.tolist() for _, labels in df] == [list(range(6)), list(range(6, 12))]


def test_a_cache_notices_that_a_shard_has_changed(shards, tmp_path):
    for num in (4, 5):
        write_shard(shards[0], files_of_samples(range(num)))
        with DiskCacheData(WebDatasetData(shards[0]), tmp_path / "file.cache") as df:
            assert len(list(df)) == num


def test_a_cache_is_valid_with_and_without_a_kept_index(shards, tmp_path):
    fingerprints = {
        DiskCacheData(WebDatasetData(shards[0], keep_index=keep), tmp_path / "file.cache").fingerprint
        for keep in (False, True)
    }
    assert len(fingerprints) == 1
