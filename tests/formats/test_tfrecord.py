"""TFRecord files as TensorFlow writes them, and their index."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from dataflow import FileDamaged, MapData, TFRecordSerializer
from dataflow.formats.checksums import masked_crc32c
from dataflow.formats.index_files import write_index
from dataflow.formats.positional import open_positional
from dataflow.formats.tfrecord import RecordReader
from tests.formats.files import TFRECORD, assert_same, flow, images

# Made by hand from the description of the format: length 5, its masked CRC-32C, "hello", and that of it.
HELLO = bytes.fromhex("0500000000000000") + bytes.fromhex("eab2043e") + b"hello" + bytes.fromhex("bb1f1c19")


def framed(data):
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def write(path, *records):
    Path(path).write_bytes(b"".join(map(framed, records)))
    return str(path)


def test_the_framing_is_that_of_the_specification():
    crc = 0x9A71BB4C  # CRC-32C of "hello"
    assert struct.unpack("<I", HELLO[-4:])[0] == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
    assert framed(b"hello") == HELLO


def test_a_file_of_tensorflow_gives_its_records(tmp_path):
    # A tf.train.Example with the feature "label" of int64 [3]; bytes of its protocol buffer.
    example = bytes.fromhex("0a100a0e0a056c6162656c12051a030a0103")
    path = write(tmp_path / "file.tfrecords", b"hello", example, b"")
    with TFRecordSerializer.load(path, raw=True) as df:
        assert list(df) == [[b"hello"], [example], [b""]] == list(df)
        assert df[1] == [example] and len(df) == 3
    with MapData(TFRecordSerializer.load(path, raw=True), lambda dp: [len(dp[0])]) as df:
        assert list(df) == [[5], [18], [0]]
    with TFRecordSerializer.load(path) as df, pytest.raises(FileDamaged, match="nor msgpack"):
        list(df)


def test_the_index_is_made_once_and_kept_beside_the_file(tmp_path, monkeypatch):
    path = write(tmp_path / "file.tfrecord", *(b"%d" % k for k in range(5)))
    with TFRecordSerializer.load(path, raw=True) as df:
        assert len(df) == 5
    assert sorted(os.listdir(tmp_path)) == ["file.tfrecord", "file.tfrecord.index"]
    monkeypatch.setattr("dataflow.formats.tfrecord._scan", lambda file: pytest.fail("the file was searched again"))
    with TFRecordSerializer.load(path, raw=True) as df:
        assert df[4] == [b"4"]


@pytest.mark.parametrize("offsets", [[], [0], [0] * 6, [0, 7], [0, 1 << 40], "whole", "reversed"])
def test_an_index_that_cannot_be_right_is_made_again(offsets, tmp_path):
    path = TFRECORD.saved(tmp_path, [[k] for k in range(5)])
    file = open_positional(path)
    right = np.arange(6) * file.size // 5
    planted = {"whole": right[[0, -1]], "reversed": right[::-1]}.get(offsets) if isinstance(offsets, str) else offsets
    write_index(file, "records", np.array(planted, np.uint64))
    file.close()
    with TFRecordSerializer.load(path) as df:
        assert list(df) == [[k] for k in range(5)]


def test_a_file_that_has_grown_is_read_to_its_new_end(tmp_path):
    path = write(tmp_path / "file.tfrecord", b"a", b"b")
    with TFRecordSerializer.load(path, raw=True) as df:
        assert len(df) == 2
        write(path, b"a", b"b", b"c")
        df.reset_state()
        assert list(df) == [[b"a"], [b"b"], [b"c"]]


@pytest.mark.parametrize("size", [1, 70_000, 3 << 20])
def test_records_of_any_size_are_found(size, tmp_path):
    records = [bytes([k]) * (size + k) for k in range(4)] + [b""]
    path = write(tmp_path / "file.tfrecord", *records)
    with TFRecordSerializer.load(path, raw=True) as df:
        assert [dp[0] for dp in df] == records
        assert df[2] == [records[2]]


@pytest.mark.parametrize(
    ("place", "what"), [(3, "the checksum of a length"), (9, "of a length"), (13, "of a record"), (18, "of a record")]
)
def test_every_checksum_is_verified_when_the_index_is_made(place, what, tmp_path):
    content = bytearray(HELLO * 3)
    content[21 + place] ^= 16
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(FileDamaged, match=f"record 1: .*{what}") as caught:
        len(TFRecordSerializer.load(path, raw=True))
    assert caught.value.offset in {21, 33}
    assert os.listdir(tmp_path) == ["file"]


def test_a_foreign_record_is_verified_when_it_is_read_for_the_first_time(tmp_path):
    path = write(tmp_path / "file", b"hello", b"world")
    with TFRecordSerializer.load(path, raw=True) as df:
        assert len(df) == 2
    status = os.stat(path)
    content = bytearray(Path(path).read_bytes())
    content[content.index(b"world")] ^= 1
    Path(path).write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # the index still fits
    with TFRecordSerializer.load(path, raw=True) as df:
        assert df[0] == [b"hello"]
        for _ in range(2):
            with pytest.raises(FileDamaged, match="record 1"):
                df[1]


def test_tensorpacks_files_are_read_on_request(tmp_path):
    import pickle

    path = write(tmp_path / "file.tfrecord", *(pickle.dumps(dp, -1) for dp in images(8)))
    with TFRecordSerializer.load(path, size=8, pickle=True) as df:
        assert_same(list(df), images(8))


def test_files_of_ours_may_be_joined(tmp_path):
    paths = []
    for name in ("a", "b"):
        paths.append(str(tmp_path / name))
        TFRecordSerializer.save(flow([[name, k] for k in range(3)]), paths[-1])
    joined = tmp_path / "joined"
    joined.write_bytes(b"".join(Path(path).read_bytes() for path in paths))
    with TFRecordSerializer.load(joined) as df:
        assert list(df) == [[name, k] for name in "ab" for k in range(3)]


def test_a_file_without_records_has_none(tmp_path):
    path = TFRECORD.saved(tmp_path, [])
    reader = RecordReader(path)
    assert len(reader) == 0 and list(reader.read(np.arange(0))) == []
    reader.close()


def test_large_arrays_are_aligned(tmp_path):
    path = TFRECORD.saved(tmp_path, [[k, np.full(1000, 1.5), np.full(10_000, 2.5)] for k in range(3)])
    with TFRecordSerializer.load(path) as df:
        for _ in range(2):
            for _, small, large in df:
                assert small.flags.aligned and large.flags.aligned and large.flags.writeable
