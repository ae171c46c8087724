"""Records, their checksums, and pickles in them."""

import pickle
import sys
import threading

import msgpack
import numpy as np
import pytest

from dataflow import FileDamaged, MissingExtra, NotStorable, PickleRefused
from dataflow.formats import checksums, tfrecord
from dataflow.formats.checksums import checksum, crc32c, masked_crc32c
from dataflow.formats.records import RecordDecoder, RecordEncoder, is_last, is_record, mark_last
from tests.formats.files import FREE, TFRECORD, assert_same, by_name
from tests.formats.hostile import Hostile

pytestmark = pytest.mark.usefixtures("no_harm")


# -- checksums ---------------------------------------------------------------------------------------------------------

VECTORS = [  # RFC 3720, appendix B.4
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (
        bytes.fromhex("01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018")
        + bytes.fromhex("28000000 00000000 02000000 00000000"),
        0xD9963A56,
    ),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_crc32c_has_the_values_of_the_standard(data, expected):
    assert crc32c(data) == expected
    assert crc32c(memoryview(bytearray(data))) == expected


def test_crc32c_says_what_installs_its_package(monkeypatch, tmp_path):
    path = TFRECORD.saved(tmp_path, [[1]])
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    monkeypatch.setattr(checksums, "crc32c_function", checksums.crc32c_function.__wrapped__)
    monkeypatch.setattr(tfrecord, "crc32c_function", checksums.crc32c_function)
    for use in (lambda: TFRECORD.load(path), lambda: TFRECORD.saved(tmp_path, [[1]]), lambda: crc32c(b"")):
        with pytest.raises(MissingExtra, match=r"TFRecord files need .* pip install \"dataflow-runners\[tfrecord\]\""):
            use()


def test_a_masked_checksum_is_turned_and_shifted():
    crc = crc32c(b"123456789")
    turned = ((crc >> 15) | (crc << 17)) & 0xFFFFFFFF
    assert masked_crc32c(b"123456789") == (turned + 0xA282EAD8) % 2**32


@pytest.mark.parametrize("size", [1, 100, 8191, 8192, 8200, 100_003])
def test_a_checksum_notices_every_kind_of_small_change(size):
    data = bytearray(np.random.default_rng(size).bytes(size))
    expected = checksum(bytes(data))
    for place in {0, size // 2, size - 1, *range(0, size, 997)}:
        for bit in (0, 3, 7):
            data[place] ^= 1 << bit
            assert checksum(bytes(data)) != expected
            data[place] ^= 1 << bit
    assert checksum(bytearray(data)) == checksum(memoryview(data)) == expected
    assert checksum(data, 7) != expected
    if size > 10_000:  # pages that have changed places
        page = bytes(data[:4096])
        data[:4096], data[4096:8192] = data[4096:8192], page
        assert checksum(data) != expected


# -- records -----------------------------------------------------------------------------------------------------------


def test_a_record_is_known_by_its_first_byte():
    record = RecordEncoder().encode([1])
    assert is_record(record) and not is_last(record)
    last = mark_last(record)
    assert is_last(last)
    assert RecordDecoder("x").decode(last, 0) == RecordDecoder("x").decode(record, 0) == [1]
    assert not is_record(b"") and not is_record(pickle.dumps([1])) and not is_record(msgpack.packb([1]))


@pytest.mark.parametrize("compress", [None, "zstd"])
@pytest.mark.parametrize("dp", [[1, np.arange(5)], {"text": "abc"}, [np.zeros(3000)]], ids=["array", "text", "large"])
def test_a_record_that_was_cut_or_changed_is_damaged(dp, compress):
    record = RecordEncoder(compress=compress).encode(dp)
    decoder = RecordDecoder("file", foreign=False)
    for size in {*range(min(len(record), 60)), len(record) - 1}:
        with pytest.raises(FileDamaged, match="record 3"):
            decoder.decode(record[:size], 3)
    for bit in range(0, 8 * len(record), max(1, len(record) // 40)):
        changed = bytearray(record)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FileDamaged) as caught:
            decoder.decode(bytes(changed), 3, 1000)
        assert caught.value.path == "file" and caught.value.offset >= 1000
    with pytest.raises(FileDamaged):
        decoder.decode(record + b"\0", 3)


def test_a_record_of_a_later_version_says_so():
    record = bytearray(RecordEncoder().encode([1]))
    record[1] = 9
    with pytest.raises(FileDamaged, match="the record has format version 9, and this release reads version 2: upgrade"):
        RecordDecoder("file").decode(bytes(record), 0)


def test_many_skeletons_are_not_all_remembered():
    decoder, encode = RecordDecoder("file"), RecordEncoder().encode
    for k in range(3000):
        assert_same(decoder.decode(encode([np.arange(2), k]), k), [np.arange(2), k])


def test_a_skeleton_that_returns_gives_fresh_containers():
    decoder, record = RecordDecoder("file"), RecordEncoder().encode([[1], {"a": 2}, np.arange(2)])
    first, second = decoder.decode(record, 0), decoder.decode(record, 0)
    assert first[0] is not second[0] and first[1] is not second[1]
    record = RecordEncoder().encode([1, np.arange(2)])
    first = decoder.decode(record, 0)
    first[0] = "changed"
    assert_same(decoder.decode(record, 0), [1, np.arange(2)])


def test_a_record_that_has_changed_since_it_was_verified_is_damaged_if_it_cannot_be_read():
    record = RecordEncoder().encode([np.arange(5), "text"])
    decoder = RecordDecoder("file")
    assert_same(decoder.decode(record, 0), [np.arange(5), "text"])
    changed = bytearray(record)
    changed[24] = 0xC1  # which no msgpack begins with
    with pytest.raises(FileDamaged, match="the checksum of a record does not match"):
        decoder.decode(bytes(changed), 0, verify=False)


def test_a_record_that_was_verified_before_is_what_was_written():
    decoder, encode = RecordDecoder("file"), RecordEncoder().encode
    for dp in ([np.arange(3), 5], [np.arange(3), 500], ["text", 1], [np.zeros(0), 5], {"a": 1}, "x" * 300):
        record = encode(dp)
        decoder.decode(record, 0)
        for data in (record, memoryview(record), np.frombuffer(record, np.uint8)):
            assert_same(decoder.decode(data, 0, verify=False), dp)
    first, second = (decoder.decode(encode([np.arange(3) + k, 5]), 0, verify=not k) for k in range(2))
    assert_same([first, second], [[np.arange(3), 5], [np.arange(3) + 1, 5]])
    assert second[0].flags.writeable


# -- pickles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FREE, ids=by_name)
def test_objects_are_pickled_on_request_and_unpickled_on_request(form, tmp_path):
    dps = [[1, Odd(k), np.array([k, None], object)] for k in range(3)]
    with pytest.raises(NotStorable, match="pickle=True"):
        form.saved(tmp_path, dps)
    path = form.saved(tmp_path, dps, pickle=True)
    with form.load(path, shuffle=False) as df, pytest.raises(PickleRefused, match="load it with pickle=True"):
        list(df)
    with form.load(path, shuffle=False, pickle=True) as df:
        assert [(dp[0], dp[1].value, dp[2].tolist()) for dp in df] == [(1, k, [k, None]) for k in range(3)]
    with pytest.raises(NotStorable, match=r"component 1 is of type .*, which cannot be pickled"):
        form.saved(tmp_path, [[1, threading.Lock()]], pickle=True)


class Odd:
    def __init__(self, value):
        self.value = value


def test_a_hostile_record_is_refused():
    record = RecordEncoder(pickled=True).encode([1, {"a": (Hostile(),)}])
    with pytest.raises(PickleRefused, match="file, record 5"):
        RecordDecoder("file").decode(record, 5)
