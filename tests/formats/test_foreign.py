"""Datapoints that others have written: pickles, msgpack-numpy, and attacks in their manner."""

import pickle

import msgpack
import msgpack_numpy
import numpy as np
import pytest

from dataflow import FileDamaged, PickleRefused
from dataflow.formats.records import RecordDecoder
from tests.formats.files import assert_same
from tests.formats.hostile import Hostile, msgpack_attacks, verdicts_of

pytestmark = pytest.mark.usefixtures("no_harm")


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


def test_lengths_that_a_foreign_record_claims_take_no_memory():
    assert set(verdicts_of("foreign").values()) <= {"Damaged", "read"}


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
