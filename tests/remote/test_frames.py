"""Datapoints to frames and back: they come back as they were, and no bytes do any harm."""

import pickle

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dataflow.errors import NotStorable
from dataflow.remote import frames as writing
from dataflow.remote.frames import LARGE, FrameEncoder, FrameReader, Unreadable
from dataflow.transport.dtypes import dtype_name
from dataflow.transport.packing import Code
from tests.formats.hostile import SKELETONS, Hostile, extension, verdicts_of

MAX = 1 << 30


def frames_of(*datapoints):
    encoder = FrameEncoder(MAX)
    body, nbytes = encoder.join([encoder.encode(dp) for dp in datapoints])
    assert nbytes >= sum(len(frame) for frame in body) - 5
    return [bytearray(memoryview(frame)) for frame in body]


def through(*datapoints):
    return FrameReader().read(frames_of(*datapoints), len(datapoints))


def same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray | np.generic):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()
        if isinstance(expected, np.ndarray):
            assert found.flags.writeable and found.flags.aligned
            if expected.flags.c_contiguous or expected.flags.f_contiguous:
                assert found.flags.f_contiguous == expected.flags.f_contiguous
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            same(*pair)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            same(found[key], expected[key])
    else:
        assert found == expected or repr(found) == repr(expected)  # NaN


DTYPES = (hnp.scalar_dtypes() | hnp.array_dtypes(max_size=2)).filter(dtype_name)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
VALUES = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=4,
)


@settings(max_examples=60)
@given(st.lists(VALUES, max_size=3))
def test_datapoints_come_back_as_they_were(datapoints):
    same(through(*datapoints), datapoints)


LARGE_ARRAYS = {
    "C": np.arange(40_000, dtype=np.int32).reshape(200, 200),
    "Fortran": np.asfortranarray(np.arange(40_000).reshape(200, 200)),
    "strided": np.arange(400_000, dtype=">i4")[::5],
    "times": np.arange(40_000).astype("M8[s]"),
    "structured": np.zeros(40_000, [("a", "u1"), ("b", "<f8", 2)]),
    "just large": np.zeros(LARGE, np.uint8),
    "just small": np.zeros(LARGE - 1, np.uint8),
    "text": np.full(40_000, "wort"),
}


@pytest.mark.parametrize("name", LARGE_ARRAYS)
def test_large_arrays_travel_in_frames_of_their_own(name):
    array = LARGE_ARRAYS[name]
    assert len(frames_of([array, 1], [2, array])) == (4 if array.nbytes >= LARGE else 2)
    same(through([array, 1], (2, {"a": array}), array), [[array, 1], (2, {"a": array}), array])


@pytest.mark.parametrize("encrypted", [True, False])
@pytest.mark.parametrize("name", LARGE_ARRAYS)
def test_arrays_that_were_cut_in_pieces_are_whole_again(name, encrypted, monkeypatch):
    monkeypatch.setattr(writing, "_PIECE_BYTES", 10_007)
    monkeypatch.setattr(writing, "_CUT_BYTES", LARGE)
    array = LARGE_ARRAYS[name]
    encoder = FrameEncoder(MAX, encrypted=encrypted)
    body, _ = encoder.join([encoder.encode([array, 1]), encoder.encode((2, array))])
    pieces = -(-array.nbytes // 10_007) if array.nbytes >= LARGE else 0
    assert len(body) == 2 + 2 * pieces
    frames = [memoryview(frame) for frame in body]
    same(FrameReader().read(frames, 2), [[array, 1], (2, array)])
    if pieces:
        for broken in (frames[:-1], [*frames, b"x"], [*frames[:-1], bytes(frames[-1]) + b"x"]):
            with pytest.raises(Unreadable):
                FrameReader().read(broken, 2)


@pytest.mark.parametrize(
    ("nbytes", "sizes"),
    [
        ((20 << 20) - 1, [(20 << 20) - 1]),
        (20 << 20, [1 << 19] * 40),
        ((20 << 20) + 1, [1 << 19] * 40 + [1]),
    ],
)
def test_very_large_arrays_are_cut_also_without_keys(nbytes, sizes):
    array = np.zeros(nbytes, np.uint8)
    array[-1] = 7
    assert [len(frame) for frame in frames_of([array])[2:]] == sizes
    same(through([array]), [[array]])


def test_an_array_is_written_as_it_is_at_the_yield():
    encoder, array = FrameEncoder(MAX), np.zeros(LARGE, np.uint8)
    small = np.zeros(3)
    written = encoder.encode([array, small])
    array[:], small[:] = 7, 7
    body, _ = encoder.join([written])
    (found,) = FrameReader().read([memoryview(frame) for frame in body], 1)
    assert not found[0].any() and not found[1].any()


def test_a_small_array_that_is_kept_does_not_keep_its_message():
    (dp,) = through([np.zeros(10), 1])
    assert dp[0].base is None


@pytest.mark.parametrize(
    "value",
    [object(), lambda: 0, np.array([None]), np.zeros(2, [("a", "O")]), np.ma.zeros(3), type("L", (list,), {})()],
)
def test_what_would_have_to_be_pickled_is_refused_with_its_place(value):
    with pytest.raises(NotStorable, match=r"component 1 .*cannot be sent over the network, because nothing is pickled"):
        FrameEncoder(MAX).encode([0, value])


def test_what_has_too_many_levels_is_refused_as_everywhere():
    value = []
    for _ in range(2000):
        value = [value]
    with pytest.raises(NotStorable) as caught:
        FrameEncoder(MAX).encode(value)
    assert "over the network" not in str(caught.value)


def test_layouts_are_remembered_up_to_a_number(monkeypatch):
    monkeypatch.setattr(writing, "_MAX_LAYOUTS", 2)
    encoder = FrameEncoder(MAX)
    for _ in range(2):
        arrays = [[np.full(k, k)] for k in range(1, 5)]
        frames, _ = encoder.join([encoder.encode(dp) for dp in arrays])
        found = FrameReader().read([bytearray(memoryview(frame)) for frame in frames], 4)
        same([*found], arrays)
    assert len(encoder._layouts) <= 2 and encoder.encode_report(None, "") == []


def test_a_datapoint_that_is_larger_than_may_be_under_way_is_refused():
    encoder = FrameEncoder(1000)
    encoder.encode([np.zeros(100)])
    for dp in ([np.zeros(1001, np.uint8)], [bytes(1001)], [np.zeros(600, np.uint8)] * 2):
        with pytest.raises(ValueError, match=r"Raise hwm_bytes of the receiver"):
            encoder.encode(dp)


# -- anybody's bytes ---------------------------------------------------------------------------------------------------


EVIL = pickle.dumps(Hostile())
BAD = {
    "nothing": (b"",),
    "no frames": (),
    "a pickle": (EVIL, b""),
    "our pickle extension": (msgpack.packb([msgpack.ExtType(Code.PICKLE, EVIL)]), b""),
    "msgpack-numpy's objects": (
        msgpack.packb([{b"nd": True, b"type": b"O", b"kind": b"O", b"shape": [1], b"data": EVIL}]),
        b"x",
    ),
    **SKELETONS,
    "bytes too many": (extension(Code.ARRAY, "<f8", [2], "C"), bytes(17)),
    "a frame too many": (b"\x91\x01", b"", b"frame"),
    "a frame too few": (extension(Code.ARRAY, "|u1", [LARGE], "C"), b""),
    "a frame cut off": (extension(Code.ARRAY, "|u1", [LARGE], "C"), b"", bytes(LARGE - 1)),
    "no list": (b"\x01", b""),
    "another count": (b"\x92\x01\x01", b""),
}


@pytest.mark.parametrize("name", BAD)
def test_bytes_that_are_no_datapoints_are_refused_and_do_nothing(name):
    reader = FrameReader()
    with pytest.raises(Unreadable):
        reader.read([memoryview(frame) for frame in BAD[name]], 1)
    assert not Hostile.harmed
    assert reader.read(frames_of([1]), 1) == [[1]]  # as before


def test_no_bytes_crash_a_receiver_or_take_much_memory():
    assert set(verdicts_of("frames").values()) == {"Unreadable"}


def test_as_many_levels_as_the_writer_allows_come_through():
    dp = ()
    for _ in range(100):
        dp = (dp,)
    assert through(dp) == [dp]


@given(st.lists(st.binary(max_size=200), max_size=4), st.integers(0, 3))
def test_any_bytes_are_refused_or_give_plain_values(frames, count):
    try:
        found = FrameReader().read([memoryview(frame) for frame in frames], count)
    except Unreadable:
        return
    assert len(found) == count


@settings(max_examples=60)
@given(VALUES, st.data())
def test_frames_with_a_wrong_byte_are_refused_or_give_plain_values(dp, data):
    frames = frames_of(dp)
    victim = frames[data.draw(st.sampled_from([k for k, frame in enumerate(frames) if frame]))]
    victim[data.draw(st.integers(0, len(victim) - 1))] ^= data.draw(st.integers(1, 255))
    del victim[data.draw(st.integers(0, len(victim))) :]
    try:
        found = FrameReader().read(frames, 1)
    except Unreadable:
        return
    assert len(found) == 1
