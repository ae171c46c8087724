"""Codes to values: what was packed comes back, and no bytes crash the interpreter or take memory for a mere claim."""

import threading

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import FileDamaged, NotStorable, PickleRefused
from dataflow.formats.records import RecordDecoder, RecordEncoder
from dataflow.transport import packing, unpacking
from dataflow.transport.packing import ALIGNMENT, MAX_LEVELS, MAX_SIZELESS, Code, pack
from dataflow.transport.unpacking import Unpacker
from tests.formats.files import assert_same
from tests.formats.hostile import SKELETONS, extension, record, verdicts_of


def through(dp, **options):
    return RecordDecoder("file", **options).decode(RecordEncoder(**options).encode(dp), 0)


# -- what a writer has written -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [tuple, frozenset])
def test_as_many_levels_as_the_writer_allows_come_back_in_a_thread_with_a_small_stack(kind):
    dp, found = kind(), []
    for _ in range(MAX_LEVELS):
        dp = kind([dp])
    size = threading.stack_size(512 << 10)
    try:
        thread = threading.Thread(target=lambda: found.append(through(dp)))
        thread.start()
    finally:
        threading.stack_size(size)
    thread.join()
    assert found == [dp]
    with pytest.raises(NotStorable, match=f"more than {MAX_LEVELS} levels"):
        pack(kind([dp]))


@pytest.mark.parametrize("levels", range(6))
def test_large_containers_come_back_from_any_level(levels):
    array, many = np.arange(300), list(range(2000))
    dp = [tuple(many), set(many), "x" * 5000, np.str_("y" * 5000), {str(k): k for k in many}, array]
    for _ in range(levels):
        dp = (1, dp, array + 1, bytearray(3000))
    assert_same(through([dp, array]), [dp, array])


@pytest.mark.parametrize("dtype", [np.dtype([]), "S0", "V0"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (MAX_SIZELESS,)])
def test_elements_without_a_size_come_back(dtype, shape):
    array = np.ndarray(shape, dtype, bytearray(1))
    for _ in range(2):
        assert_same(through([array, 1]), [array, 1])


NAMES = ["it's", 'say "a"', "a\\b", "a\nb", "ü\ud800", "'\"", "__import__('os')", "1+1", "{[(", ""]


def test_dtypes_with_any_names_of_fields_come_back():
    dtype = np.dtype(
        [(name or "none", "<i4", (2,)) for name in NAMES] + [("inner", [(name, "u1") for name in NAMES[1:3]])]
    )
    assert_same(through([np.zeros(3, dtype), np.zeros((), dtype)[()]]), [np.zeros(3, dtype), np.zeros((), dtype)[()]])


def test_dtypes_of_many_fields_come_back_and_too_many_are_refused_by_the_writer(monkeypatch):
    array = np.zeros(2, [(f"field_{k}", "<f8") for k in range(1000)])
    assert_same(through([array]), [array])
    monkeypatch.setattr(packing, "MAX_NAME", 1000)
    with pytest.raises(NotStorable, match=r"component 0 has a dtype of 1000 fields.*Make one array"):
        pack([array])


def test_an_array_of_objects_beside_plain_values_comes_back_again_and_again():
    decoder, dp = RecordDecoder("file", pickled=True), [1, np.array([1, None], object)]
    data = RecordEncoder(pickled=True).encode(dp)
    for _ in range(3):
        found = decoder.decode(data, 0)
        assert found[0] == 1 and found[1].tolist() == [1, None]


def test_layouts_that_all_differ_are_not_all_remembered(monkeypatch):
    monkeypatch.setattr(unpacking, "_MAX_LAYOUTS_BYTES", 100)
    unpacker = Unpacker(0)
    for k in range(1, 50):
        skeleton, (array,) = pack([np.zeros(k, "u1")])
        data = bytearray(skeleton + bytes(-len(skeleton) % ALIGNMENT) + array.tobytes())
        assert_same(unpacker.unpack(data, len(skeleton)), [array])
    assert unpacker.unpack(pack([2]).skeleton, 2) == [2]


# -- anybody's bytes ---------------------------------------------------------------------------------------------------


def test_no_record_crashes_the_interpreter_or_takes_much_memory():
    assert set(verdicts_of("records").values()) == {"FileDamaged"}


@pytest.mark.parametrize("name", SKELETONS)
def test_a_record_that_no_writer_makes_is_damaged_and_the_error_says_where_and_what_to_do(name):
    if verdicts_of("records")[name] != "FileDamaged":
        pytest.fail("it is not safe to read it here")
    decoder, good = RecordDecoder("file"), RecordEncoder().encode([1, np.arange(3)])
    with pytest.raises(FileDamaged, match="copy it again from where it came, or save it again") as caught:
        decoder.decode(record(*SKELETONS[name]), 3, 1000)
    assert "file, record 3" in str(caught.value) and "at byte 1024 of the file" in str(caught.value)
    assert (caught.value.path, caught.value.offset) == ("file", 1024)
    assert_same(decoder.decode(good, 0), [1, np.arange(3)])  # as before


@pytest.mark.parametrize("size", [None, 1 << 40, (1 << 40) + 5])
def test_a_size_that_a_compressed_record_claims_is_not_believed(size):
    zstandard = pytest.importorskip("zstandard")
    if size is None:
        body = b"no frame of zstd"
    else:  # a frame's head, with a content of that many bytes; and an empty last block
        body = b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"
        assert zstandard.frame_content_size(body) == size
    with pytest.raises(FileDamaged, match="decompressed") as caught:
        RecordDecoder("file").decode(record(b"\x90", body=body, flags=1, size=size), 0, 1000)
    assert caught.value.offset == 1024 and "MemoryError" not in str(caught.value)


def refused_or_read(skeleton, content):
    offset = 24
    try:
        RecordDecoder("file", foreign=False).decode(record(skeleton, content), 0, 0)
    except FileDamaged as error:
        offset = error.offset
    except PickleRefused:
        pass
    assert offset == 24  # behind the header


@given(st.binary(max_size=200), st.binary(max_size=100))
def test_any_bytes_are_damaged_or_give_values(skeleton, content):
    refused_or_read(skeleton, content)


ATOMS = (
    st.none()
    | st.integers(-(2**63), 2**64 - 1)
    | st.binary(max_size=20)
    | st.sampled_from(["<f8", "|S0", "V2000000000", "C", "F", "U", "S", "{'names':['a'],'formats':['<f8']}", "a"])
    | st.sampled_from([1 << 33, 1 << 62, -1])
)
CODES = st.sampled_from([code for code in Code if code != Code.PICKLE] + [77])
FORGED = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.integers(0, 9) | st.text(max_size=2), inner, max_size=2)
        | st.builds(lambda code, value: msgpack.ExtType(code, msgpack.packb(value)), CODES, inner)
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(FORGED, st.binary(max_size=64))
def test_any_codes_in_codes_are_damaged_or_give_values(value, content):
    refused_or_read(msgpack.packb(value), content)


@settings(max_examples=100)
@given(st.data())
def test_skeletons_with_a_wrong_byte_are_damaged_or_give_values(data):
    dp = [1, (np.arange(6.0).reshape(2, 3), {1, 2}), np.float32(2), {"a": (b"x", 1j, 2**80)}, "text" * 300]
    skeleton, arrays = pack(dp)
    changed = bytearray(skeleton)
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    del changed[data.draw(st.integers(0, len(changed))) :]
    refused_or_read(bytes(changed), arrays[0].tobytes())


def test_a_pickle_in_a_record_is_refused_at_any_level():
    for levels in range(6):
        data = msgpack.packb([msgpack.ExtType(Code.PICKLE, b"\x80\x04N.")])
        for _ in range(levels):
            data = b"\x91" + msgpack.packb(msgpack.ExtType(Code.TUPLE, data))
        with pytest.raises(PickleRefused, match="file, record 0: a component was pickled"):
            RecordDecoder("file").decode(record(data), 0)


def test_an_order_that_is_none_is_that_of_c():
    found = RecordDecoder("file").decode(record(extension(Code.ARRAY, "|u1", [2], 7), b"ab"), 0)
    assert_same(found, [np.frombuffer(b"ab", "u1")])
