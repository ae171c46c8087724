"""Compressed files: each reader of a format that others compress names the compression, and the cure."""

import bz2
import gzip
import lzma

import pytest

from dataflow import FileDamaged, JSONLinesData, SVMLightData, TFRecordSerializer, WebDatasetData
from dataflow.formats.compressed_files import HEAD_BYTES, compressed
from tests.formats.files import TFRECORD, write_shard


def zstd(data):
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


COMPRESSED = {
    "gzip": (gzip.compress, "gunzip"),
    "bzip2": (bz2.compress, "bunzip2"),
    "xz": (lzma.compress, "unxz"),
    "zstd": (zstd, "unzstd"),
}
READERS = {
    "jsonl": (lambda path: path.write_text('{"a": 1}\n' * 100), JSONLinesData, "lines"),
    "svm": (lambda path: path.write_text("1 1:0.5\n" * 100), SVMLightData, "lines"),
    "tar": (lambda path: write_shard(path, [("a.txt", b"one")]), WebDatasetData, "samples"),
    "tfrecord": (lambda path: TFRECORD.saved(path.parent, [[1]] * 9), TFRecordSerializer.load, "records"),
}


@pytest.mark.parametrize("program", COMPRESSED)
@pytest.mark.parametrize("end", READERS)
def test_a_compressed_file_is_refused_with_the_command_that_decompresses_it(end, program, tmp_path):
    (write, read, what), (compress, command) = READERS[end], COMPRESSED[program]
    path = tmp_path / f"file.{end}"
    if end == "tfrecord":
        pytest.importorskip("google_crc32c")
    write(path)
    path.write_bytes(compress(path.read_bytes()))
    message = rf"file\.{end} is compressed with {program}, so its {what} cannot be .*: decompress it \({command}\)"
    with pytest.raises(ValueError, match=message) as caught, read(str(path)) as df:
        len(df)
    assert isinstance(caught.value, FileDamaged) == (end == "tfrecord")


@pytest.mark.parametrize("head", [b"", b"\x1f\x8b", b"BZh9.txt\0\0", b"BZhang.txt", b"PK\3\4", b'{"a": 1}\n'])
def test_a_file_that_only_begins_alike_is_not_compressed(head):
    assert len(head) <= HEAD_BYTES and compressed("file", head, "lines") is None
