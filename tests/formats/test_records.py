"""Records, checksums, and what others have written in their place."""

import pickle
import sys
import threading
from importlib.util import find_spec
from typing import ClassVar

import msgpack
import msgpack_numpy
import numpy as np
import pytest

from dataflow import FileDamaged, MissingExtra, NotStorable, PickleRefused
from dataflow.formats import checksums, tfrecord
from dataflow.formats.checksums import checksum, crc32c, masked_crc32c
from dataflow.formats.records import RecordDecoder, RecordEncoder, is_last, is_record, mark_last
from tests.formats.files import FORMATS, FREE, LMDB, TFRECORD, assert_same, by_name
from tests.formats.hostile import msgpack_attacks, ownership, verdicts_of


class Hostile:
    """Unpickling it would do harm."""

    harmed: ClassVar[list[int]] = []

    def __reduce__(self):
        return Hostile.harmed.append, (1,)


@pytest.fixture(autouse=True)
def no_harm():
    Hostile.harmed.clear()
    yield
    assert Hostile.harmed == []


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


# -- what others have written ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_is_read_on_request_only(protocol):
    data = pickle.dumps([1, np.arange(3)], protocol)
    with pytest.raises(PickleRefused, match="this datapoint was pickled"):
        RecordDecoder("file").decode(data, 0)
    assert_same(RecordDecoder("file", pickled=True).decode(data, 0), [1, np.arange(3)])
    with pytest.raises(PickleRefused):
        RecordDecoder("file").decode(pickle.dumps(Hostile(), protocol), 0)
    with pytest.raises(FileDamaged, match="a pickle that cannot be read"):
        RecordDecoder("file", pickled=True).decode(data[:-5], 0)


def dumps_as_tensorpack(value):
    return msgpack.packb(value, use_bin_type=True, default=msgpack_numpy.encode)


def test_msgpack_numpy_is_read_and_its_arrays_are_writable():
    value = {"image": np.arange(6, dtype=">i2").reshape(2, 3), "k": [np.float32(1.5), 3, "ü"], 5: 1 + 2j}
    found = RecordDecoder("file").decode(dumps_as_tensorpack(value), 0)
    assert_same(found, value)
    found["image"][0, 0] = 9
    rows = np.zeros(2, [("a", "<i4"), ("b", "<f8")])
    assert_same(RecordDecoder("file").decode(dumps_as_tensorpack([rows]), 0), [rows])


def test_msgpack_numpys_pickles_are_refused():
    data = dumps_as_tensorpack([np.array([1, Hostile()], object)])
    with pytest.raises(PickleRefused, match="an array of Python objects was pickled"):
        RecordDecoder("file").decode(data, 0)
    hidden = msgpack.packb({b"nd": True, b"kind": b"O", b"data": pickle.dumps(Hostile()), b"type": "|O", b"shape": [1]})
    with pytest.raises(PickleRefused):
        RecordDecoder("file").decode(hidden, 0)
    for kind in (b"V", b"", "O", None):
        forged = msgpack.packb(
            {b"nd": True, b"kind": kind, b"type": [["a", "|O"]], b"data": bytes(8), b"shape": [1]}, use_bin_type=True
        )
        with pytest.raises((FileDamaged, PickleRefused)):
            RecordDecoder("file").decode(forged, 0)


def test_no_attack_in_the_manner_of_msgpack_numpy_is_unpickled_or_takes_memory():
    pack, unpack = msgpack.packb, msgpack.unpackb
    tried = 0
    for attack in msgpack_attacks(pickle.dumps(Hostile())):
        for inside in (attack, [attack], {"a": [1, attack]}):
            with pytest.raises((FileDamaged, PickleRefused)):
                RecordDecoder("file").decode(msgpack.packb(inside, use_bin_type=True), 0)
            tried += 1
    assert tried > 300 and Hostile.harmed == []
    assert (msgpack.packb, msgpack.unpackb) == (pack, unpack)  # it was not patched


def test_lengths_that_a_foreign_record_claims_take_no_memory(monkeypatch):
    assert set(verdicts_of("foreign").values()) <= {"Damaged", "read"}
    # Older releases of msgpack allocate what nested lists claim.
    monkeypatch.setattr("dataflow.transport.unpacking._WALKED_FROM", 0)
    with pytest.raises(FileDamaged, match="a declared length exceeds the data"):
        RecordDecoder("file").decode(ownership(1 << 18), 3)


def test_msgpack_numpys_pickles_are_read_where_that_is_asked_for():
    dp = [np.array([1, None, "a"], object), 5]
    found = RecordDecoder("file", pickled=True).decode(dumps_as_tensorpack(dp), 0)
    assert found[0].tolist() == [1, None, "a"] and found[1] == 5


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((2, 0), "<f4"),
        np.array(5.0),
        np.zeros(3, [("a", "<i4", (2,)), ("b", [("c", "u1"), ("d", "<f8")])]),
        np.array(["ä", "b"]),
        np.array([b"x", b"yz"]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.bool_(True),
        np.int8(-3),
        np.complex64(1 + 2j),
        {"nd": "a dict of the user's"},
        {b"nd": True, "type": 3},
    ],
    ids=repr,
)
def test_what_msgpack_numpy_writes_comes_back(value):
    data = dumps_as_tensorpack([value])
    expected = msgpack.unpackb(data, object_hook=msgpack_numpy.decode, strict_map_key=False)
    assert_same(RecordDecoder("file").decode(data, 0), expected)


@pytest.mark.parametrize("data", [b"", b"\xc0\xc0", b"ab", b"\xd9\xff", b"\x93\x01"])
def test_what_is_nothing_of_all_this_is_damaged(data):
    with pytest.raises(FileDamaged, match="neither a record of dataflow, nor msgpack, nor a pickle"):
        RecordDecoder("file").decode(data, 0)


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
