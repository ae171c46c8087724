"""Encoder and decoder: what arrives is what was yielded, in every detail, and no block is lost on the way."""

import collections
import enum
import functools
import itertools
import pickle
import sys
import threading
import weakref
from types import SimpleNamespace

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.transport import array_codec
from dataflow.transport.arena import LARGE_BYTES, ArenaFile, MemoryLimit
from dataflow.transport.array_codec import ArrayDecoder, ArrayEncoder, Undecodable
from dataflow.transport.message_layout import NO_ROOM, Description
from tests.support.threads import switching_often

MIB = 1 << 20
Pair = collections.namedtuple("Pair", "left right")


@pytest.fixture
def eager_threads():
    """Threads change turns after every few instructions."""
    with switching_often():
        yield


class Wire:
    """Both ends in this process."""

    def __init__(self, limit=16 * MIB):
        self.memory_limit = MemoryLimit(limit, 1)
        self.file = ArenaFile(self.memory_limit)
        arena = self.file.new_arena(0)
        self.writer, self.reader = arena.open_writer(), arena.open_reader()
        self.encoder, self.decoder = ArrayEncoder(self.writer), ArrayDecoder([self.reader])

    def encode(self, dp):
        item = self.encoder.encode(dp)
        return self.encoder.encode_inline(dp) if item is NO_ROOM else item

    def send(self, *datapoints):
        body, _ = self.encoder.join([self.encode(dp) for dp in datapoints])
        return self.decoder.decode(0, [bytes(frame) for frame in body])

    def free_blocks(self, nbytes=LARGE_BYTES):
        """How many blocks could be taken now."""
        blocks = list(iter(lambda: self.writer.take(nbytes), None))
        for block in blocks:
            self.writer.give_back(block)
        return len(blocks)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.memory_limit.close()


def same_values(a, b):
    """Bit by bit, the padding of structures left out."""
    if a.dtype.names is not None:
        return all(same_values(a[name], b[name]) for name in a.dtype.names)
    if a.dtype.hasobject:
        return a.tolist() == b.tolist()
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


def check_same(original, copy):
    assert type(copy) is type(original)
    if isinstance(original, np.ndarray):
        assert (copy.dtype, copy.shape) == (original.dtype, original.shape)
        assert copy.dtype.str == original.dtype.str
        assert same_values(original, copy)
        assert copy.flags.writeable and copy.flags.aligned
        assert not copy.size or not np.may_share_memory(original, copy)
        flags = original.flags
        is_fortran = flags.f_contiguous and not flags.c_contiguous
        assert copy.flags.f_contiguous if is_fortran else copy.flags.c_contiguous
    elif isinstance(original, list | tuple):
        assert len(copy) == len(original)
        for pair in zip(original, copy, strict=True):
            check_same(*pair)
    elif isinstance(original, dict):
        assert list(copy) == list(original)
        check_same(list(original.values()), list(copy.values()))
    else:
        assert copy == original or repr(copy) == repr(original) == "nan"


# -- arrays ------------------------------------------------------------------------------------------------------------

SHAPES = [(), (1,), (0,), (0, 3), (3, 0, 2), (5,), (3, 4), (2, 3, 4), (1, 1), (2047,), (9000,), (70, 80), (9, 8, 90)]
LAYOUTS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "reversed": lambda a: a[tuple(slice(None, None, -1) for _ in a.shape)],
    "sliced": lambda a: a[tuple(slice(None, None, 2) for _ in a.shape)],
    "transposed": lambda a: a.T,
    "turned": lambda a: np.moveaxis(a, -1, 0) if a.ndim else a,
    "broadcast": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "read only": lambda a: np.broadcast_to(a, a.shape),
    "a part": lambda a: a[1:] if a.ndim else a,
}


def filled(dtype, shape, start):
    """An array in which no two neighbours are alike."""
    out = np.ndarray(shape, dtype)
    if dtype.names is not None:
        for k, name in enumerate(dtype.names):
            field = out[name]
            base = dtype.fields[name][0].base
            field[...] = filled(base, field.shape, start + k)
    elif dtype.itemsize:
        ramp = (np.arange(out.size) + start) % 127
        if dtype.kind in "Mm":
            values = ramp.astype("i8").view(f"{dtype.kind}8{dtype.str[3:]}")
        elif dtype.kind == "V":
            values = np.resize(ramp.astype("u1"), out.size * dtype.itemsize).view(dtype)
        else:
            values = ramp.astype(dtype)
        out[...] = values.reshape(shape)
    return out


NAMED_DTYPES = [
    "S0",
    "U0",
    "V0",
    "V5",
    "g",
    "G",
    "M8",
    "m8",
    [],
    "?",
    "f2",
    "u8",
    ">U3",
    "S3",
    ">c16",
    [("a", "i4", (2,))],
]
DTYPES = st.one_of(
    hnp.scalar_dtypes(),
    hnp.nested_dtypes(max_leaves=3, max_itemsize=64).filter(lambda dtype: dtype.subdtype is None),
    st.sampled_from(NAMED_DTYPES).map(np.dtype),
    st.just(np.dtype([("a", "i1"), ("b", ">f8")], align=True)),
)


@given(st.lists(st.tuples(DTYPES, st.sampled_from(SHAPES), st.sampled_from(sorted(LAYOUTS))), min_size=1, max_size=4))
def test_every_array_arrives_writable_with_its_type_and_order(kinds):
    arrays = [LAYOUTS[layout](filled(dtype, shape, k)) for k, (dtype, shape, layout) in enumerate(kinds)]
    with Wire() as wire:
        copies = wire.send(*[[a] for a in arrays], arrays, {f"{k}": a for k, a in enumerate(arrays)}, *arrays)
        for original, (copy,) in zip(arrays, copies, strict=False):
            check_same(original, copy)
        check_same(arrays, copies[len(arrays)])
        check_same(arrays, list(copies[len(arrays) + 1].values()))
        check_same(arrays, copies[len(arrays) + 2 :])


@pytest.mark.parametrize(
    "array",
    [
        np.array([{}, None, (1,)], dtype=object),
        np.array([[np.zeros(5), 1]], dtype=object),
        np.ma.masked_array([1.0, 2.0], [True, False], fill_value=9),
        np.ma.masked_array(np.arange(20_000), np.arange(20_000) % 3 == 0),
        np.arange(4).reshape(2, 2).view(np.matrix),
        np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", ">f8")]),
        np.array([(1, None)], dtype=[("a", "i4"), ("b", "O")]),
    ],
    ids=lambda array: f"{type(array).__name__}-{array.dtype}-{array.size}",
)
def test_what_is_not_a_plain_array_arrives_as_numpy_pickles_it(array):
    with Wire() as wire:
        for copy in (wire.send([array])[0][0], wire.send(array)[0], wire.send({"x": [array]})[0]["x"][0]):
            assert type(copy) is type(array)
            assert (copy.dtype, copy.shape) == (array.dtype, array.shape)
            assert repr(copy) == repr(array)
            assert copy.flags.writeable
            if isinstance(array, np.ma.MaskedArray):
                assert copy.fill_value == array.fill_value and copy.mask.tolist() == array.mask.tolist()


@pytest.mark.parametrize(
    "size", [0, 1, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, MIB - 4096, MIB, MIB + 1, 5 * MIB]
)
def test_any_size_arrives_also_one_that_is_larger_than_the_arena(size):
    array = np.arange(size, dtype=np.uint32).astype(np.uint8)
    with Wire(MIB) as wire:
        for _ in range(3):  # the block comes back each time
            ((copy, _),) = wire.send([array, "x"])
            check_same(array, copy)
            assert wire.reader.num_leases() == (LARGE_BYTES <= size <= MIB)
            del copy
        assert wire.reader.num_leases() == 0


def test_large_arrays_are_read_in_place_and_small_ones_pin_nothing():
    with Wire() as wire:
        copies = wire.send([np.zeros(100), np.zeros(10_000)], [np.zeros(100), np.zeros(10_000)])
        assert wire.reader.num_leases() == 2
        small, large = copies[0]
        del copies
        assert wire.reader.num_leases() == 1
        assert small.base is None or small.base.nbytes == small.nbytes
        del large
        assert wire.reader.num_leases() == 0


def test_what_the_consumer_does_to_an_array_changes_no_other():
    array = np.arange(5000.0)
    with Wire() as wire:
        copies = wire.send([array], [array], [array[:10]], [array[:10]])
        for k, (copy,) in enumerate(copies):
            copy += k
            copy.sort()
        for k, (copy,) in enumerate(copies):
            assert copy[0] == k and copy[-1] == len(copy) - 1 + k
        assert array[0] == 0


# -- datapoints --------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1


class Thing:
    """A user's own class that holds an array."""

    def __init__(self, array):
        self.array = array

    def __eq__(self, other):
        return type(other) is Thing and same_values(self.array, other.array)

    def __hash__(self):
        return 0

    def __repr__(self):
        return f"Thing({self.array})"


class Listed(list):
    """A list with an attribute."""

    name = None


def one_line(value):
    """`repr` without line breaks: as the name of a test, it is the same each time the tests are collected."""
    return " ".join(repr(value).replace("\\n", " ").split())


PLAIN = [
    7,
    -(1 << 80),
    1.5,
    float("nan"),
    True,
    None,
    "text",
    b"bytes",
    bytearray(b"x"),
    2j,
    ...,
    range(3),
    {1, 2},
    frozenset(),
    Colour.RED,
    np.float32(3),
    np.datetime64("2020-01-01"),
    b"numpy\nndarray\n" * 9,
    "numpy\nndarray\n" * 9,
    int,
    slice(1, 2),
]


@pytest.mark.parametrize("dp", [*PLAIN, [], (), {}, [[], ()], {"a": {}}], ids=one_line)
def test_plain_values_arrive_as_pickle_gives_them(dp):
    with Wire() as wire:
        for around in (
            dp,
            [dp],
            (dp, 1),
            {"k": dp},
            [dp, np.zeros(3)],
            (np.zeros(9000), dp),
            {"a": np.zeros(3), "b": dp},
        ):
            (copy,) = wire.send(around)
            check_same(around, copy)


POOL = {"small": np.arange(9), "large": np.arange(6000.0), "fortran": np.ones((60, 70), order="F"), "zero": np.array(5)}
LEAVES = st.one_of(
    st.sampled_from([value for value in PLAIN if repr(value) != "nan"]), st.sampled_from(sorted(POOL)).map(POOL.get)
)
KEYS = st.one_of(st.sampled_from(["a", "b", 1, 2.5, (1, 2), None, True, b"k", Colour.RED]))
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=3).map(collections.OrderedDict),
        st.lists(inner, max_size=3).map(Listed),
    ),
    max_leaves=8,
)


def arrays_in(value):
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from arrays_in(item)
    elif isinstance(value, dict):
        yield from arrays_in(list(value.values()))


@given(st.lists(NESTED, min_size=1, max_size=6))
def test_many_datapoints_of_any_kind_travel_in_one_message(datapoints):
    with Wire(2 * MIB) as wire:
        copies = wire.send(*datapoints)
        everything = []
        for original, copy in zip(datapoints, copies, strict=True):
            check_same(original, copy)
            pairs = list(zip(arrays_in(original), arrays_in(copy), strict=True))
            # What is one object inside a datapoint stays one, and what is not is not.
            for (a, b), (c, d) in itertools.combinations(pairs, 2):
                assert (a is c) is (b is d)
            everything.append({id(b) for _, b in pairs})
        for first, second in itertools.combinations(everything, 2):
            assert not first & second  # datapoints share nothing
        expected = wire.reader.num_leases()
        del copies, copy, pairs
        a = b = c = d = None
        assert wire.reader.num_leases() == 0 or expected == 0


def test_one_array_in_many_places_of_a_datapoint_stays_one():
    for array in (np.arange(5), np.arange(5000)):
        shared = [array]
        with Wire() as wire:
            first, second = wire.send([array, array], [array, shared, {"x": (array,)}, shared])
            assert first[0] is first[1]
            assert second[0] is second[1][0] is second[2]["x"][0]
            assert second[1] is second[3]
            assert first[0] is not second[0]
            first[0][:] = 0
            assert second[0].tolist() == array.tolist()
            del first, second


def test_views_of_one_array_arrive_apart():
    array = np.arange(9000)
    with Wire() as wire:
        ((first, second),) = wire.send([array, array[:]])
        first[:] = 0
        assert second.tolist() == array.tolist()


class Key:
    """Found by identity, like every object that says nothing else."""

    def __repr__(self):
        return "Key()"


@pytest.mark.parametrize("key", [float("nan"), Key(), (1, float("nan")), 2.0, None, np.float64(1), True], ids=repr)
def test_a_dict_may_have_any_keys(key):
    with Wire() as wire:
        for array in (np.arange(3), np.arange(5000)):
            (copy,) = wire.send({key: array, "plain": array + 1})
            assert len(copy) == 2
            assert [value.tolist() for value in copy.values()] == [array.tolist(), (array + 1).tolist()]
            assert [type(found) for found in copy] == [type(key), str]
            del copy


@pytest.mark.parametrize("array", [np.arange(5), np.arange(5000)], ids=["small", "large"])
def test_an_array_inside_a_users_object_arrives(array):
    kept = Listed([array])
    kept.name = array
    with Wire() as wire:
        for dp in ([Thing(array)], Thing(array), {"t": Thing(array), "a": array}, [[[Thing(array)]], array]):
            (copy,) = wire.send(dp)
            check_same(dp, copy)
        (copy,) = wire.send([kept])
        assert copy[0].name is copy[0][0]


def test_bytes_counted_for_a_message_are_those_counted_for_its_datapoints():
    datapoints = [[np.zeros(5)], 7, [np.zeros(5000), 1], {"a": [np.zeros(9)]}, (np.zeros(0),), [np.zeros((200, 90)).T]]
    with Wire() as wire:
        encoded, counted = [], 0
        for dp in datapoints:
            encoded.append(wire.encode(dp))
            counted += wire.encoder.nbytes
        assert wire.encoder.join(encoded)[1] == counted
        assert counted >= sum(array.nbytes for array in arrays_in(datapoints))


# -- one after the other -----------------------------------------------------------------------------------------------

IMAGE = np.arange(12, dtype=np.uint8).reshape(3, 4)
LARGE = np.arange(30_000, dtype=np.uint8).reshape(100, 300)
LIKE_THE_LAST = {
    "alike": [IMAGE + 1, 8],
    "another shape": [IMAGE.reshape(4, 3).copy(), 8],
    "another dtype": [IMAGE.astype(">u2"), 8],
    "another order": [np.asfortranarray(IMAGE), 8],
    "a view with gaps": [np.repeat(IMAGE, 2, axis=1)[:, ::2], 8],
    "a second array": [IMAGE + 1, IMAGE + 2],
    "a second array of the other byte order": [IMAGE + 1, IMAGE.astype(">u2")],
    "a second large array": [IMAGE + 1, LARGE],
    "an array inside": [IMAGE + 1, [IMAGE + 2]],
    "the array elsewhere": [8, IMAGE + 1],
    "no array": [8, 9],
    "nothing": [],
    "a tuple": (IMAGE + 1, 8),
    "a tuple too short": (),
    "a dict with the same key": {0: IMAGE + 1},
    "a dict with another key": {"a": IMAGE + 1},
    "objects": [np.array([1, "a"], object), 8],
    "long text": [IMAGE + 1, "a" * 500],
    "large": [LARGE + 1, 8],
    "an array alone": IMAGE + 1,
}


FIRST = {
    "a list": [IMAGE, 7],
    "a tuple": (IMAGE, 7),
    "a dict with a number as its key": {0: IMAGE},
    "a dict": {"a": IMAGE, "b": 1},
    "large": [LARGE, 7],
    "no array": [8, 9],
}


@pytest.mark.parametrize("name", LIKE_THE_LAST)
@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_what_the_last_datapoint_was_like_changes_nothing_about_the_next(first, name):
    dp = LIKE_THE_LAST[name]
    with Wire(MIB) as wire:
        before = wire.free_blocks()
        for copy, original in zip(wire.send(first, first, dp, first, dp), (first, first, dp, first, dp), strict=True):
            check_same(original, copy)
        del copy
        assert wire.free_blocks() == before


def itself_in(make, size):
    """A datapoint that contains an array and, through `make`, itself."""
    dp = [np.arange(size), None, 5]
    dp[1] = make(dp)
    return dp


CYCLES = {
    "a list": (lambda dp: dp, lambda dp: dp[1]),
    "deeper": (lambda dp: {"row": (dp,)}, lambda dp: dp[1]["row"][0]),
    "an object": (lambda dp: SimpleNamespace(row=dp), lambda dp: dp[1].row),
}


@pytest.mark.parametrize("name", CYCLES)
def test_a_datapoint_that_contains_itself_arrives_so(name):
    make, inner = CYCLES[name]
    with Wire() as wire:
        for size in (3, 5000):
            for dp in wire.send(itself_in(make, size), [np.arange(size), "x", 5], *[itself_in(make, size)] * 2):
                assert dp[0].tolist() == [*range(size)] and dp[2] == 5
                assert dp[1] == "x" or inner(dp) is dp
            del dp
        named = {"image": np.arange(3), "self": None}
        named["self"] = named
        for dp in wire.send({"image": np.arange(3), "self": {}}, named, named)[1:]:
            assert dp["self"] is dp and dp["image"].tolist() == [0, 1, 2]


def test_one_array_twice_stays_one_also_after_a_datapoint_with_one():
    with Wire() as wire:
        *_, (first, second) = wire.send([IMAGE, 7], [IMAGE, IMAGE])
        assert first is second


def test_short_datapoints_without_arrays_are_encoded_in_a_row():
    with Wire() as wire:
        for first in (1, [2, 0.5], None, "text", {"a": (1, 2)}):
            wire.encode(first)
            assert wire.encoder.plain
            out = []
            steps = iter([[3], 4, "five"])
            assert wire.encoder.encode_plain(steps, out) is NO_ROOM
            assert wire.decoder.decode(0, wire.encoder.join(out)[0]) == [[3], 4, "five"]
            assert wire.encoder.plain


@pytest.mark.parametrize(
    "other",
    [[IMAGE.astype(">u2"), 1], "a" * 100, [LARGE], lambda: 0, [np.array(3, ">i2")]],
    ids=["an image", "a long text", "a large array", "a function", "an array of one number"],
)
def test_the_first_datapoint_that_is_something_else_is_handed_back_unencoded(other):
    with Wire() as wire:
        wire.encode([1])
        out = []
        steps = iter([[3], other, [5]])
        assert wire.encoder.encode_plain(steps, out) is other
        assert not wire.encoder.plain
        assert len(out) == 1 and next(steps) == [5]


def test_an_error_of_the_flow_passes_through():
    def flow():
        yield [1]
        raise ValueError("of the flow")

    with Wire() as wire, pytest.raises(ValueError, match="of the flow"):
        wire.encoder.encode_plain(flow(), [])


def test_many_small_arrays_travel_in_a_block_that_is_free_once_they_were_read():
    datapoints = [[np.full((28, 28), k, np.uint8), k] for k in range(200)]
    with Wire() as wire:
        before = wire.free_blocks()
        body, _ = wire.encoder.join([wire.encode(dp) for dp in datapoints])
        assert sum(map(len, body)) < 20_000
        assert wire.free_blocks(200 * 784) < wire.free_blocks(LARGE_BYTES)
        copies = wire.decoder.decode(0, body)
        assert wire.free_blocks() == before  # though all are kept
        for original, copy in zip(datapoints, copies, strict=True):
            check_same(original, copy)


def test_where_there_is_no_room_many_small_arrays_travel_in_the_message():
    datapoints = [[np.full((28, 28), k, np.uint8), k] for k in range(200)]
    with Wire(MIB) as wire:
        blocks = list(iter(lambda: wire.writer.take(LARGE_BYTES), None))
        body, _ = wire.encoder.join([wire.encode(dp) for dp in datapoints])
        assert blocks and sum(map(len, body)) > 200 * 784
        for original, copy in zip(datapoints, wire.decoder.decode(0, body), strict=True):
            check_same(original, copy)


ROWS_OF_NUMBERS = [
    [0, -1, 1 << 31, -(1 << 63), 1 << 200],
    (0.0, -0.0, 1e-320, float("inf"), 2.5),
    [True, False, None],
    [],
    (),
    [1] * 1000,
]
NO_ROWS_OF_NUMBERS = [[1, "a"], [np.float64(2.5), 1], [np.int64(3)], [Colour.RED], [2j], [(1, 2)], {"a": 1}, 5, "b"]


@pytest.mark.parametrize("with_array", [False, True], ids=["alone", "with an array"])
def test_rows_of_numbers_and_others_travel_in_one_message_in_any_order(with_array):
    rows = [*ROWS_OF_NUMBERS, *NO_ROWS_OF_NUMBERS]
    for datapoints in (ROWS_OF_NUMBERS, NO_ROWS_OF_NUMBERS, rows, rows[::-1], rows[::2] + rows[1::2], rows[5:7] * 3):
        if with_array:
            datapoints = [[*dp, IMAGE] if isinstance(dp, list) else dp for dp in datapoints]
        with Wire() as wire:
            copies = wire.send(*datapoints)
            check_same(datapoints, copies)
            assert repr(copies) == repr(datapoints)


def test_short_rows_of_numbers_in_a_row_mix_with_others():
    steps = [[1, 2.5], (None, True), [b"x", 1], [1, "a"], 7, {"a": 1}, [3, 4]]
    with Wire() as wire:
        out = []
        assert wire.encoder.encode_plain(iter(steps), out) is NO_ROOM
        copies = wire.decoder.decode(0, wire.encoder.join(out)[0])
        check_same(steps, copies)


def test_what_is_one_object_beside_numbers_stays_one():
    shared = ["x"]
    with Wire() as wire:
        _, copy = wire.send([1, 2], [1, shared, shared])
        assert copy[1] is copy[2]


def test_no_datapoint_is_lost_where_memory_is_short(monkeypatch):
    def load(*_):
        raise MemoryError

    monkeypatch.setattr(array_codec, "load_skeletons", load)
    with Wire() as wire:
        for datapoints in ([[1], ["text"]], [["text"], {"a": 1}]):
            check_same(datapoints, wire.send(*datapoints))
        with pytest.raises(Undecodable) as caught:
            wire.send([1], [2, 3.5])  # rows of numbers only
        assert caught.value.before == [] and isinstance(caught.value.__cause__, MemoryError)


LENGTHS = st.lists(st.sampled_from([0, 1, 2, 7, 100, 2100, 5000]), min_size=1, max_size=7)
TAILS = st.sampled_from([(), (2,), (3, 1), (0,), (2, 0, 3)])
RAGGED_DTYPES = st.sampled_from(["u1", "<i2", ">f8", "S3", "S0", "?", "M8[s]"]).map(np.dtype)


@given(LENGTHS, TAILS, RAGGED_DTYPES, st.sampled_from(["dict", "list", "nested", "alone"]))
def test_arrays_that_differ_in_their_first_dimension_arrive(lengths, tail, dtype, where):
    arrays = [filled(dtype, (length, *tail), k) for k, length in enumerate(lengths)]
    make = {
        "dict": lambda a: {"id": 1, "a": a, "text": "t" * 70, "b": a[:1].copy()},
        "list": lambda a: [1, a],
        "nested": lambda a: [[a], a],
        "alone": lambda a: a,
    }[where]
    datapoints = [make(array) for array in arrays]
    with Wire(2 * MIB) as wire:
        before = wire.free_blocks()
        copies = wire.send(*datapoints)
        check_same(datapoints, copies)
        for copy in arrays_in(copies):
            large = copy.nbytes >= LARGE_BYTES
            assert large or copy.base is None or copy.base.nbytes == copy.nbytes  # pins nothing
        del copies, copy
        assert wire.free_blocks() == before


def test_lengths_and_dimensions_may_change_from_one_datapoint_to_the_next():
    shapes = [(3,), (3,), (), (4, 2), (5, 2), (5, 3), (0,), (9000,), (2, 9000), (3, 9000)]
    for order in ("C", "F"):
        datapoints = [{"a": np.asarray(filled(np.dtype("f4"), shape, 0), order=order), "b": 1} for shape in shapes]
        with Wire() as wire:
            check_same(datapoints, wire.send(*datapoints))


def test_small_arrays_and_blocks_of_one_shape_arrive_in_one_message():
    with Wire() as wire:
        datapoints = [[LARGE + k, k] for k in range(4)]
        encoded = [(wire.encoder.encode_inline if k % 2 else wire.encode)(dp) for k, dp in enumerate(datapoints)]
        check_same(datapoints, wire.decoder.decode(0, wire.encoder.join(encoded)[0]))


def test_messages_that_say_the_same_of_their_arrays_differ_in_the_rest(monkeypatch):
    """Lengths, values and blocks; each description is read once."""
    described = []
    monkeypatch.setattr(array_codec, "Description", lambda data: described.append(data) or Description(data))
    many = [[LARGE + k, filled(np.dtype("f4"), (3,), k), {"n": k}] for k in range(4)]
    ragged = [[[filled(np.dtype("i2"), (n, 2), n), n] for n in lengths] for lengths in ([1, 2, 30], [30, 0, 7])]
    with Wire() as wire:
        for k in (1, 2):
            check_same(many[:k], wire.send(*many[:k]))  # the kind is learnt
        described.clear()
        kept = [wire.send(dp) for dp in many]
        for original, (copy,) in zip(many, kept, strict=True):
            check_same(original, copy)
        assert len(described) <= 1
        for datapoints in (ragged[0], *ragged):
            check_same(datapoints, wire.send(*datapoints))
        assert len(described) == len(set(described)) <= 3


@pytest.mark.parametrize("room", [True, False])
def test_small_arrays_may_be_in_a_block_or_in_the_message_where_all_else_is_the_same(room):
    datapoints = [[np.full((28, 28), k, np.uint8), filled(np.dtype("f4"), (k % 5,), k)] for k in range(60)]
    with Wire(MIB) as wire:
        check_same(datapoints, wire.send(*datapoints))
        blocks = [] if room else list(iter(lambda: wire.writer.take(LARGE_BYTES), None))
        check_same(datapoints, wire.send(*datapoints))
        assert room == (not blocks)


def test_descriptions_of_ever_new_arrays_are_not_kept_for_ever():
    with Wire() as wire:
        for n in range(1, 300):
            check_same([np.zeros((n, 1))], wire.send([np.zeros((n, 1))])[0])
        assert 0 < len(wire.decoder._descriptions) <= 64
        nested = [[[np.zeros(k)] for k in range(2000)]]
        before = set(wire.decoder._descriptions)
        check_same(nested, wire.send(*nested))
        assert set(wire.decoder._descriptions) == before  # a long one is not kept


def test_who_renames_the_fields_of_an_array_changes_no_later_one():
    original = np.zeros(3, [("a", "i4"), ("b", "f4")])
    with Wire() as wire:
        for _ in range(3):
            ((copy,),) = wire.send([original])
            assert copy.dtype.names == ("a", "b")
            copy.dtype.names = ("x", "y")


def test_datapoints_of_ever_new_kinds_arrive_and_their_keys_are_not_kept():
    with Wire() as wire:
        key = Key()
        kept = weakref.ref(key)
        (copy,) = wire.send({key: IMAGE})
        assert len(copy) == 1
        del key
        assert kept() is None
        for k in range(1100):
            check_same({f"{k}": IMAGE, "b": k}, wire.send({f"{k}": IMAGE, "b": k})[0])


# -- dicts -------------------------------------------------------------------------------------------------------------


class Name(str):
    """A user's own text, which equals any other with the same characters."""

    __slots__ = ()


EQUAL_KEYS = {
    "numbers": [1, True, 1.0, np.int64(1), 1 + 0j],
    "texts": ["a", Name("a"), np.str_("a")],
    "tuples": [(1,), (True,), (1.0,)],
}


@pytest.mark.parametrize("name", EQUAL_KEYS)
@pytest.mark.parametrize("num_arrays", [1, 2])
def test_keys_that_are_equal_but_of_other_types_stay_what_they_are(name, num_arrays):
    for first, second in itertools.permutations(EQUAL_KEYS[name], 2):
        datapoints = [{key: 5, **{f"{k}": IMAGE + k for k in range(num_arrays)}} for key in (first, second, first)]
        with Wire() as wire:
            copies = wire.send(*datapoints)
            assert [type(next(iter(copy))) for copy in copies] == [type(first), type(second), type(first)]
            for original, copy in zip(datapoints, copies, strict=True):
                check_same(original, copy)


@pytest.mark.parametrize("num_arrays", [1, 2, 4])
def test_keys_keep_their_order(num_arrays):
    arrays = {f"{k}": IMAGE + k for k in range(num_arrays)}
    datapoints = [
        {"x": 1, "y": 2, **arrays},
        {"y": 3, "x": 4, **arrays},
        {"x": 5, "y": 6, **arrays},
        {**arrays, "x": 7, "y": 8},
        {"x": 9, **arrays},
        {"x": 1, "y": 2, "z": 3, **arrays},
    ]
    with Wire() as wire:
        for first, second in itertools.product(datapoints, repeat=2):
            for original, copy in zip((first, second, first), wire.send(first, second, first), strict=True):
                check_same(original, copy)


STRANGE_KEYS = [
    "",
    "'",
    '"',
    "\\",
    "\n",
    "{",
    "}: lambda",
    "lambda",
    "v0",
    "None",
    "\0",
    "\ud800",
    "é",
    "a b",
    "\u2028",
]


@pytest.mark.parametrize("keys", [*([key] for key in STRANGE_KEYS), STRANGE_KEYS, range(-2, 70), [0, "a"], [10**5000]])
def test_any_texts_and_numbers_may_be_keys(keys):
    dp = {key: k or IMAGE for k, key in enumerate(keys)}
    with Wire() as wire:
        copies = wire.send(dp, dp | {next(iter(dp)): IMAGE + 1})
        assert copies[1].keys() == dp.keys()
        check_same(list(dp), list(copies[0]))
        check_same(list(dp.values()), list(copies[0].values()))
        assert copies[0] is not copies[1]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 300, 1000])
def test_a_dict_may_have_many_keys(count):
    dp = {f"key {k}": IMAGE + k % 99 if k % 3 == 0 else k for k in range(count)}
    with Wire() as wire:
        for copy in wire.send(dp, dp, dp):
            check_same(dp, copy)


@pytest.mark.parametrize("key", ["a", 1, None, Colour.RED, np.float64(1), (1, Name("a"))], ids=repr)
def test_a_dict_without_arrays_may_have_any_keys(key):
    dp = {key: 1, "text": "x" * 99}
    with Wire() as wire:
        for copy in wire.send(dp, {key: 1}, dp):
            assert copy in (dp, {key: 1})
            assert list(map(type, copy)) == list(map(type, dp))[: len(copy)]


def test_keys_are_sent_once_for_many_datapoints():
    with Wire() as wire:
        for extra in ({}, {"other": {1, 2}}, {"more": IMAGE}):
            datapoints = [{f"a long key {k}": "text", "array": IMAGE + k, **extra} for k in (7,) * 50]
            body, _ = wire.encoder.join([wire.encode(dp) for dp in datapoints])
            assert b"".join(map(bytes, body)).count(b"a long key") == 1
            assert body[0].startswith(pickle.PROTO) is ("other" in extra)  # text and numbers need no pickle
            check_same(datapoints, wire.decoder.decode(0, body))


@pytest.mark.parametrize("make", [list, tuple, lambda parts: dict(zip("abc", parts, strict=True))])
def test_arrays_of_objects_are_met_in_each_of_many_datapoints_that_are_alike(make):
    objects = np.array([{}, (1, "two")], dtype=object)
    with Wire() as wire:
        check_same([make([IMAGE, objects, 3])] * 4, wire.send(*[make([IMAGE, objects, 3])] * 4))


@pytest.mark.parametrize("num_arrays", [1, 2])
def test_a_component_may_change_its_dtype_and_shape_from_datapoint_to_datapoint(num_arrays):
    arrays = [
        np.full(shape, k).astype(dtype) for k, dtype in enumerate(("u1", ">i4", "f8", "M8[s]")) for shape in (3, (2, 4))
    ]
    arrays += [np.zeros(2, [("x", "u1"), ("y", "f4")]), np.zeros(2, [("x", "u1"), ("z", "f4")]), np.array(["é", "ab"])]
    datapoints = [[array] * num_arrays + [k] for k, array in enumerate(arrays + arrays[::-1])]
    datapoints = [[part.copy() if k else part for k, part in enumerate(dp[:-1])] + dp[-1:] for dp in datapoints]
    with Wire() as wire:
        check_same(datapoints, wire.send(*datapoints))


def test_datapoints_whose_arrays_differ_in_dtype_do_not_share_a_description():
    with Wire() as wire:
        alike = [[np.full(2, k, "i4"), k] for k in range(3)]
        others = [[np.full(2, k, "f4"), k] for k in range(3)]
        body, _ = wire.encoder.join([wire.encode(dp) for dp in (*alike, *others, *alike)])
        groups, _ = pickle.loads(body[2])
        assert [count for _, count, _ in groups] == [3, 3, 3]


TEXTS = ["", "a" * 300, "é€😀", "\ud800 alone", "\0", "ndarray\n" * 20, b"", b"\0\xff" * 200, b"numpy\nndarray\n" * 9]


@pytest.mark.parametrize("make", [list, tuple, lambda row: {f"{k}": value for k, value in enumerate(row)}])
@pytest.mark.parametrize("num_arrays", [0, 1, 2])
def test_texts_beside_arrays_arrive(make, num_arrays):
    rows = [[text, 1, None, 2.5, True, *(IMAGE + k for k in range(num_arrays))] for text in TEXTS]
    datapoints = [make(row) for row in [*rows, TEXTS, [*TEXTS, IMAGE], *rows]]
    with Wire() as wire:
        copies = wire.send(*datapoints)
        for original, copy in zip(datapoints, copies, strict=True):
            check_same(original, copy)
        assert repr(copies) == repr(datapoints)


NO_TEXTS = [
    Name("a"),
    np.str_("a"),
    np.bytes_(b"a"),
    bytearray(b"a"),
    Colour.RED,
    np.float64(2.5),
    np.int64(3),
    2j,
    (1,),
]


@pytest.mark.parametrize("value", [*NO_TEXTS, [IMAGE], {"x": IMAGE}, Thing(IMAGE)], ids=one_line)
@pytest.mark.parametrize("num_arrays", [1, 2])
def test_what_only_looks_like_text_or_a_number_arrives_as_it_is(value, num_arrays):
    for make in (list, tuple, lambda row: {f"{k}": value for k, value in enumerate(row)}):
        plain = make(["text", *(IMAGE + k for k in range(num_arrays)), b"bytes"])
        dp = make([value, *(IMAGE + k for k in range(num_arrays)), b"bytes"])
        with Wire() as wire:
            for original, copy in zip((plain, dp, plain, dp), wire.send(plain, dp, plain, dp), strict=True):
                check_same(original, copy)


COMPONENTS = st.one_of(
    st.sampled_from([*(value for value in PLAIN if repr(value) != "nan"), *TEXTS]),
    st.sampled_from(sorted(POOL)).map(lambda name: POOL[name] + 1),
    st.sampled_from([[POOL["small"]], Thing(POOL["small"])]),
)
PLAIN_KEYS = st.lists(st.sampled_from(["a", "b", "c", 1, "1", True, 1.0, Name("a")]), unique=True, max_size=5)


@given(st.lists(PLAIN_KEYS, min_size=1, max_size=3), st.lists(st.integers(0, 2), max_size=12), st.data())
def test_dicts_of_few_kinds_arrive_in_any_order(kinds, turns, data):
    datapoints = [{key: data.draw(COMPONENTS) for key in kinds[turn % len(kinds)]} for turn in turns]
    with Wire() as wire:
        copies = wire.send(*datapoints)
        for original, copy in zip(datapoints, copies, strict=True):
            check_same(original, copy)
            assert list(map(type, copy)) == list(map(type, original))


# -- no room, and failures ---------------------------------------------------------------------------------------------


def test_where_there_is_no_room_for_all_arrays_of_a_datapoint_none_is_taken():
    with Wire(MIB) as wire:
        array = np.ones(400_000, np.uint8)
        before = wire.free_blocks()
        for dp in (
            [array, array + 1, array + 2],
            [[array], [array + 1, array + 2]],
            {"a": array, "b": array + 1, "c": array + 2},
        ):
            assert wire.encoder.encode(dp) is NO_ROOM
            assert wire.free_blocks() == before
        ((first, second, third),) = wire.send([array, array + 1, array + 2])
        assert (first[0], second[0], third[0]) == (1, 2, 3)
        assert wire.reader.num_leases() == 0


def test_what_is_encoded_inline_takes_no_block():
    with Wire(MIB) as wire:
        array = np.ones((100, 3000), np.uint8)
        item = wire.encoder.encode_inline([array, array.T])
        assert wire.memory_limit.held() == [0]
        assert wire.encoder.nbytes >= 2 * array.nbytes
        ((copy, turned),) = wire.decoder.decode(0, wire.encoder.join([item])[0])
        check_same([array, array.T], [copy, turned])
        assert wire.encoder.encode([array]) is not None  # only that once
        assert wire.memory_limit.held() != [0]


@pytest.mark.parametrize(
    "dp",
    [
        [np.zeros(5000), lambda: 0],
        [np.zeros(5000), [np.zeros(5000), lambda: 0]],
        {"a": np.zeros(5000), "b": (_ for _ in ())},
        [np.zeros(5000), np.array([lambda: 0], dtype=object)],
        (np.zeros(5000), Thing(lambda: 0)),
    ],
)
def test_what_cannot_be_encoded_takes_no_block_with_it(dp):
    with Wire(MIB) as wire:
        before = wire.free_blocks()
        for _ in range(3):
            with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
                wire.encoder.encode(dp)
        assert wire.free_blocks() == before


@pytest.mark.parametrize(
    "last", [np.array([{}], dtype=object), np.array([(None, 1)], dtype="O,i4"), np.full(9000, None)]
)
def test_an_array_of_objects_beside_a_large_array_costs_no_block(last):
    with Wire(MIB) as wire:
        before = wire.free_blocks()
        for _ in range(3):
            for dp in ([np.zeros(5000), last], [last, np.zeros(5000)], {"a": np.zeros(5000), "b": last}):
                (copy,) = wire.send(dp)
                assert wire.reader.num_leases() == 1
                del copy
        assert wire.free_blocks() == before


class Unreadable:
    """Pickles well; loading it raises."""

    def __reduce__(self):
        return int, ("no number",)


@pytest.mark.parametrize(
    "bad", [Unreadable(), [Unreadable()], [np.zeros(3), Unreadable()], [[np.zeros(9000), Unreadable()]]]
)
def test_what_came_before_an_unreadable_datapoint_is_handed_out_whatever_it_was(bad):
    datapoints = [[1], [2, 3.5], ["text"], (np.arange(5000), 2), [4], [IMAGE, 1], {"x": IMAGE, "y": "text"}, [6]]
    with Wire() as wire:
        for k in range(len(datapoints) + 1):
            before, after = datapoints[:k], datapoints[k:]
            with pytest.raises(Undecodable) as caught:
                wire.send(*before, bad, *after, [3])
            check_same(before, caught.value.before)
            assert isinstance(caught.value.__cause__, ValueError)
            check_same(datapoints, wire.send(*datapoints))  # the next message is read as ever
            del caught


# -- output buffers ---------------------------------------------------------------------------------------------------

OUTPUT_BUFFER = (LARGE_BYTES * 4,)


def calibrated(wire):
    """Let the encoder see the path of `sends`."""
    wire.encoder.calibrate(lambda datapoints: sends(wire, datapoints))
    return wire


def sends(wire, datapoints):
    encoded = []
    for dp in datapoints:
        item = wire.encoder.encode(dp)
        encoded.append(item)
    del dp
    return encoded


def output_buffer(wire, value):
    array = wire.encoder.allocate(OUTPUT_BUFFER, np.dtype(np.uint8))
    array[...] = value
    return array


def copies_made(wire, flow):
    """Blocks taken beside the output buffers themselves; and what arrives."""
    calibrated(wire)
    encoded = sends(wire, flow)
    taken = sum(wire.memory_limit.held()) // OUTPUT_BUFFER[0]
    return taken, wire.decoder.decode(0, wire.encoder.join(encoded)[0])


ROWS = {
    "a list": lambda a: [a()],
    "a tuple": lambda a: (a(),),
    "a dict": lambda a: {"x": a()},
    "first of a list": lambda a: [a(), 1, np.zeros(3)],
    "last of a list": lambda a: [1, np.zeros(3), a()],
    "in the middle of a tuple": lambda a: (1, a(), "x"),
    "in the middle of a dict": lambda a: {"b": np.zeros(3), "x": a(), "a": 1},
}


@pytest.mark.parametrize("name", ROWS)
def test_a_output_buffer_that_is_unshared_is_passed_on_without_a_copy(name):
    with Wire() as wire:
        taken, (copy,) = copies_made(wire, (ROWS[name](lambda: output_buffer(wire, 7)) for _ in range(1)))
        assert taken == 1
        check_same(ROWS[name](lambda: np.full(OUTPUT_BUFFER, 7, np.uint8)), copy)
        assert wire.reader.num_leases() == 1
        del copy
        assert wire.free_blocks(OUTPUT_BUFFER[0]) == wire.memory_limit.limit // OUTPUT_BUFFER[0]


@pytest.mark.parametrize("name", ["a list", "a tuple", "a dict"])
def test_two_output_buffers_in_a_datapoint_are_both_passed_on(name):
    pair = {"a list": lambda: [one(), two()], "a tuple": lambda: (one(), two()), "a dict": lambda: {0: one(), 1: two()}}
    with Wire() as wire:
        one, two = (lambda: output_buffer(wire, 1)), (lambda: output_buffer(wire, 2))
        taken, (copy,) = copies_made(wire, (pair[name]() for _ in range(1)))
        assert taken == 2
        assert [copy[0][0], copy[1][0]] == [1, 2]


KEEPERS = {
    "nothing": lambda dp, array: None,
    "the datapoint": lambda dp, array: dp,
    "the array": lambda dp, array: array,
    "a view": lambda dp, array: array[3:5],
    "another view": lambda dp, array: array.view("u4"),
    "a memoryview": lambda dp, array: memoryview(array),
    "only the base": lambda dp, array: array.base,
    "a view of the base": lambda dp, array: array.base[1:3],
    "a memoryview of the base": lambda dp, array: memoryview(array.base),
    "ctypes": lambda dp, array: array.ctypes,
    "an iterator over the datapoint": lambda dp, array: iter(dp),
    "an iterator over the array": lambda dp, array: array.flat,
    "a closure": lambda dp, array: lambda: array,
    "values": lambda dp, array: dp.values() if isinstance(dp, dict) else iter(dp),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", KEEPERS)
def test_a_output_buffer_is_copied_if_a_reference_to_it_is_kept(name, row):
    kept = []

    def flow(wire):
        made = [output_buffer(wire, 7)]
        handed = [ROWS[row](functools.partial(made.__getitem__, 0))]
        kept.append(KEEPERS[name](handed[0], made[0]))
        made.clear()
        yield handed.pop()

    with Wire() as wire:
        taken, (copy,) = copies_made(wire, flow(wire))
        assert taken == (1 if name == "nothing" else 2)
        check_same(ROWS[row](lambda: np.full(OUTPUT_BUFFER, 7, np.uint8)), copy)
        kept.clear()


SHAPED = {
    "a part": lambda a: a[1:],
    "every second": lambda a: a[::2],
    "reversed": lambda a: a[::-1],
    "a broadcast view": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "a transposed view": lambda a: a.reshape(2, -1).T,
    "nothing of it": lambda a: a[:0],
}


@pytest.mark.parametrize("name", SHAPED)
def test_a_part_of_a_output_buffer_arrives_as_that_part(name):
    with Wire() as wire:
        _, (copy,) = copies_made(
            wire, ([SHAPED[name](np.cumsum(output_buffer(wire, 1), out=output_buffer(wire, 0)))] for _ in range(1))
        )
        check_same([SHAPED[name](np.cumsum(np.ones(OUTPUT_BUFFER, np.uint8), dtype=np.uint8))], copy)


def test_one_output_buffer_twice_in_a_datapoint_arrives_as_one_copy():
    def flow(wire):
        array = output_buffer(wire, 7)
        yield [array, array]
        yield [array, array[:]]

    with Wire() as wire:
        _, (first, second) = copies_made(wire, flow(wire))
        assert first[0] is first[1]
        assert not np.may_share_memory(second[0], second[1])
        assert first[0][0] == second[0][0] == second[1][0] == 7


def test_a_output_buffer_deep_in_a_datapoint_is_copied():
    with Wire() as wire:
        taken, (copy,) = copies_made(wire, ([[output_buffer(wire, 7)]] for _ in range(1)))
        assert taken == 2
        assert (copy[0][0] == 7).all()


def test_a_output_buffer_that_is_yielded_again_and_again_arrives_as_it_was_each_time():
    def flow(wire):
        array = output_buffer(wire, 0)
        for k in range(20):
            array[...] = k
            yield [array]
        yield {"x": array}

    with Wire() as wire:
        _, copies = copies_made(wire, flow(wire))
        assert [int(copy[0][0]) for copy in copies[:-1]] == list(range(20))
        assert all((copy[0] == copy[0][0]).all() for copy in copies[:-1])


def test_where_the_counts_were_never_learnt_output_buffers_are_copied():
    with Wire() as wire:
        (copy,) = wire.send([output_buffer(wire, 7)])
        assert sum(wire.memory_limit.held()) == 2 * OUTPUT_BUFFER[0]
        assert (copy[0] == 7).all()


@pytest.mark.parametrize(
    "odd",
    [
        lambda value: 5,  # does not count at all
        lambda value: sys.getrefcount(value) if type(value) is np.ndarray else 1,  # does not count lists
        lambda value: sys.getrefcount(value) + (type(value) is list) * next(ODD),
    ],
)
def test_where_the_counts_look_odd_output_buffers_are_copied(odd, monkeypatch):
    with Wire() as wire:
        monkeypatch.setattr("dataflow.transport.array_codec.sys", Counting(odd))
        taken, (copy,) = copies_made(wire, ([output_buffer(wire, 7)] for _ in range(1)))
        monkeypatch.undo()
        assert taken == 2
        assert (copy[0] == 7).all()


ODD = itertools.count()


class Counting:
    def __init__(self, getrefcount):
        self.getrefcount = getrefcount


def test_the_calibration_leaves_no_block_taken_and_no_memory_held():
    with Wire() as wire:
        before = wire.free_blocks()
        calibrated(wire)
        assert wire.memory_limit.held() == [0]
        assert wire.free_blocks() == before


def test_a_calibration_without_room_is_harmless():
    with Wire(MIB) as wire:
        wire.memory_limit.reserve(0, MIB)
        wire.encoder.calibrate(lambda datapoints: [wire.encode(dp) for dp in datapoints])
        wire.memory_limit.give_back(0, MIB)
        (copy,) = wire.send([output_buffer(wire, 7)])
        assert (copy[0] == 7).all()


def test_output_buffers_that_die_while_others_are_encoded_free_their_blocks_only(eager_threads):
    """A flow may drop its output buffers in any thread, also while the worker encodes."""
    with Wire(8 * MIB) as wire:
        calibrated(wire)
        output_buffers, ended, bad = collections.deque(), threading.Event(), []

        def drop():
            while not ended.is_set() or output_buffers:
                if output_buffers:
                    output_buffers.popleft()

        dropper = threading.Thread(target=drop)
        dropper.start()
        arrived = collections.deque()
        for k in range(700):
            output_buffers.append(output_buffer(wire, 255))
            (item,) = sends(wire, ([output_buffer(wire, k % 251)] for _ in range(1)))
            if item is not None:
                arrived.append((k, wire.decoder.decode(0, wire.encoder.join([item])[0])))
            while len(arrived) > 5:
                number, ((array,),) = arrived.popleft()
                if not (array == number % 251).all():
                    bad.append(number)
            if k % 50 == 0:
                wire.encoder.tidy()
        ended.set()
        dropper.join()
        assert not bad


# -- padding -----------------------------------------------------------------------------------------------------------

PADDED = [
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
    np.dtype({"names": ["a", "b"], "formats": ["u1", "u1"], "offsets": [1, 7], "itemsize": 12}),
    np.dtype([("a", np.dtype([("b", "i1"), ("c", "i4")], align=True)), ("d", "i4")]),
    np.dtype([("a", np.dtype([("b", "i1"), ("c", "i4")], align=True), (2,))]),
]


@pytest.mark.parametrize("dtype", PADDED, ids=str)
@pytest.mark.parametrize("shape", [(3,), (), (9000,), (70, 80)])
@pytest.mark.parametrize("layout", ["C", "F", "reversed", "sliced"])
def test_padding_arrives_as_zeros_and_not_as_what_was_in_memory(dtype, shape, layout):
    size = int(np.prod(shape)) * dtype.itemsize
    array = np.full(size, 7, np.uint8).view(dtype).reshape(shape)
    junk = np.full(size, 9, np.uint8)
    array[...] = filled(dtype, shape, 1)
    array = LAYOUTS[layout](array) if shape else array
    with Wire() as wire:
        for dp in ([array], {"x": [array]}, [array, array.copy()]):
            wire.send([junk], [junk])  # whose block is used again
            (copy,) = wire.send(dp)
            found = copy["x"][0] if isinstance(dp, dict) else copy[0]
            check_same(array, found)
            in_memory = found if found.flags.c_contiguous else found.T
            expected = np.zeros(in_memory.shape, dtype)
            expected[...] = in_memory
            assert in_memory.tobytes() == expected.tobytes()
