"""Kinds of datapoints, joined skeletons, and columns of arrays: what one end writes, the other restores."""

import itertools
import marshal
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from dataflow.transport.arena import LARGE_BYTES, LOCATION, Block
from dataflow.transport.message_layout import (
    NESTED,
    PROTOCOL,
    VERSION,
    ColumnReader,
    ColumnWriter,
    DatapointKind,
    Description,
    has_padding,
    join,
    load,
    load_skeletons,
    name_of,
    split_skeletons,
    without_padding,
)

IMAGE = np.arange(12, dtype=np.uint8).reshape(3, 4)
PADDED = np.zeros(2, np.dtype([("a", "i1"), ("b", "i4")], align=True))


class FakeArena:
    """Blocks by their status byte; it has room for so many."""

    def __init__(self, room=10**6):
        self.blocks = {}
        self.room = room

    def write(self, data):
        if len(self.blocks) == self.room:
            return None
        self.blocks[len(self.blocks)] = data
        return Block(len(self.blocks) - 1, 7, len(data))

    def leases(self, locations, shape, dtype, order="C"):
        return [
            np.ndarray(shape, dtype, bytearray(self.blocks[status]), order=order)
            for status, start in locations
            if start == 7
        ]


# -- kinds of datapoints -----------------------------------------------------------------------------------------------


def row_of(dp):
    return list(dp.values()) if type(dp) is dict else list(dp)


def kind_of(dp):
    return DatapointKind(dp, list(map(type, row_of(dp))))


@pytest.mark.parametrize(
    ("dp", "arrays", "single", "is_row", "is_simple"),
    [
        ([IMAGE, 7], [0], 0, True, True),
        ((7, "text", IMAGE), [2], 2, True, True),
        ({"a": 1.5, "b": IMAGE}, [1], 1, True, True),
        ({None: IMAGE}, [0], None, True, False),
        ([IMAGE, 2j, IMAGE], [0, 2], None, False, True),
        ([IMAGE, [1]], [0], 0, False, False),
        ([IMAGE, 1, 1.5, True, None, "text", b"bytes"], [0], 0, True, True),
        ([IMAGE, 1, 1.5, True, None, "text", b"bytes", 2j], [0], 0, False, True),
        ([1, 1.5, True, None], [], None, True, True),
        ([1, "text"], [], None, False, True),
        ({"a": 1}, [], None, False, True),
    ],
)
def test_what_follows_from_the_types_of_a_datapoint(dp, arrays, single, is_row, is_simple):
    kind = kind_of(dp)
    assert (kind.type, kind.types) == (type(dp), list(map(type, row_of(dp))))
    assert (kind.array_indexes, kind.single_array, kind.is_row, kind.is_simple) == (arrays, single, is_row, is_simple)
    assert kind.gaps == (type(dp) is tuple, arrays, list(dp) if type(dp) is dict else None)
    assert (kind.pick is None) is (len(arrays) < 2)
    if kind.pick is not None:
        assert all(picked is row_of(dp)[k] for k, picked in zip(arrays, kind.pick(row_of(dp)), strict=True))


def test_the_keys_of_a_dict_are_those_of_its_kind_if_their_types_and_order_are_the_same():
    kind = kind_of({"a": 1, 1: 2})
    assert kind.has_names_of({"a": 3, 1: 4}) and kind.has_names_of({"".join("a"): 3, 1: 4})
    for long in ("a key", "another"):  # two equal objects
        assert kind_of({f"{long} that is long": 1}).has_names_of({f"{long} that is long": 2})
    for other in ({"a": 1}, {"a": 1, True: 2}, {"a": 1, 1.0: 2}, {1: 2, "a": 1}, {"a": 1, 1: 2, "b": 3}, {}):
        assert not kind.has_names_of(other)


def test_what_arrays_are_like_is_learned_unless_each_must_be_inspected():
    dp = [IMAGE, 7, IMAGE.astype(">f4")]
    kind = kind_of(dp)
    assert kind.learn([dp[0], dp[2]])
    assert kind.last == [(np.dtype("u1"), "|u1", (3, 4), 12), (np.dtype(">f4"), ">f4", (3, 4), 48)]
    assert kind.shapes == [(3, 4), (3, 4)] and kind.form == (kind.gaps, [("|u1", "C"), (">f4", "C")])
    earlier = kind.form
    assert kind.learn([IMAGE[0], IMAGE[0]])
    assert (kind.shapes, kind.form[1]) == ([(4,), (4,)], [("|u1", "C")] * 2) and earlier[1][1] == (">f4", "C")
    for array in (np.array([None]), PADDED):
        kind = kind_of([IMAGE, array])
        assert not kind.learn([IMAGE, array])
        assert (kind.last, kind.form) == ([(None, None, None, 0)] * 2, (kind.gaps, [("", "C")] * 2))


# -- skeletons ---------------------------------------------------------------------------------------------------------


def pickled(value):
    return pickle.dumps(value, PROTOCOL)


def marshalled(value):
    return marshal.dumps(value, VERSION)


SKELETONS = {
    "none": [],
    "rows": [marshalled([1, 2.5]), marshalled((None,)), marshalled([])],
    "pickles": [pickled({"a": 1}), pickled("text"), pickled([b"x" * 300])],
    "a pickle first": [pickled({1}), marshalled([1]), marshalled([2]), pickled("a"), pickled("b")],
    "a row first": [marshalled([1]), pickled("a"), pickled("b" * 70), marshalled([2, 3]), marshalled([4])],
}


@pytest.mark.parametrize("name", SKELETONS)
def test_skeletons_are_loaded_by_one_call_and_split_into_what_they_were(name):
    bodies = SKELETONS[name]
    frames, nbytes = join(bodies, FakeArena().write)
    data, lengths = frames
    assert load_skeletons(data, lengths) == [load(body) for body in bodies]
    assert nbytes == sum(map(len, bodies))
    if lengths:
        assert list(split_skeletons(memoryview(data), lengths)) == bodies


# -- columns -----------------------------------------------------------------------------------------------------------


def int64(*values):
    return np.array(values, np.int64).tobytes()


def described(shapes, data, like=("|u1", "C")):
    writer = ColumnWriter()
    return writer.column(like, tuple(shapes), data), writer.details, writer.small


def test_arrays_that_are_alike_have_one_description_and_no_details():
    pieces = [bytes([k] * 6) for k in range(3)]
    assert described([(2, 3)] * 3, pieces) == ([("|u1", (2, 3), "C", 3, False, False)], [], pieces)
    blocks = [Block(k, 0, 6) for k in range(3)]
    runs, details, small = described([(2, 3)] * 3, blocks, ("|u1", "F"))
    assert (runs, small) == ([("|u1", (2, 3), "F", 3, False, True)], [])
    assert details == [LOCATION.pack(k, 0) for k in range(3)]


def test_arrays_that_differ_in_the_first_dimension_only_have_one_description():
    pieces = [bytes(6), b"", bytes(3)]
    lengths = int64(2, 0, 1)
    assert described([(2, 3), (0, 3), (1, 3)], pieces) == ([("|u1", (3,), "C", 3, True, False)], [lengths], pieces)
    assert described([(2,), (0,), (1,)], pieces) == ([("|u1", (), "C", 3, True, False)], [lengths], pieces)
    mixed = [bytes(3), Block(4, 5, 6)]
    assert described([(1, 3), (2, 3)], mixed) == (
        [("|u1", (3,), "C", 2, True, True)],
        [int64(1, 2), LOCATION.pack(-(2**63), 0), LOCATION.pack(4, 5)],
        mixed[:1],
    )
    assert described([(3,), (3,)], [Block(4, 5, 6), bytes(3)])[0] == [("|u1", (), "C", 2, True, True)]


@pytest.mark.parametrize(
    ("shapes", "order"), [([(2, 3), (2, 4)], "C"), ([(2, 3), (1, 3)], "F"), ([(), (1,)], "C"), ([(1,), (1, 2)], "C")]
)
def test_other_arrays_are_described_one_by_one_where_they_differ(shapes, order):
    pieces = [bytes(8), bytes(8), Block(1, 2, 3), bytes(8)]
    runs, details, small = described([shapes[0], *shapes, shapes[1]], pieces, ("|u1", order))
    assert runs == [
        ("|u1", shapes[0], order, 2, False, False),
        ("|u1", shapes[1], order, 1, False, True),
        ("|u1", shapes[1], order, 1, False, False),
    ]
    assert (details, small) == ([LOCATION.pack(1, 2)], [bytes(8)] * 3)


def test_as_many_arrays_as_layouts_are_described():
    with pytest.raises(ValueError, match="zip"):
        ColumnWriter().column_apart([("|u1", (1,), "C")] * 2, [b"x"])


def test_details_that_were_cut_off_are_no_shorter_column():
    reader = ColumnReader(memoryview(int64(1, 2, -(2**63), 0)), memoryview(bytes(9)), FakeArena().leases)
    runs = [(np.dtype("u1"), (), "C", 2, True, True, 1)]
    with pytest.raises(ValueError, match="zip"):
        reader.read(runs)


# -- messages ----------------------------------------------------------------------------------------------------------


def encoded(arrays, arena=None, skeleton=b"row", gaps=(False, [0], None)):
    """An encoded datapoint with these arrays; those of `LARGE_BYTES` in blocks."""
    orders = ["F" if a.flags.f_contiguous and not a.flags.c_contiguous else "C" for a in arrays]
    form = (gaps, [(name_of(a.dtype), order) for a, order in zip(arrays, orders, strict=True)])
    data = [
        a.tobytes(order) if a.nbytes < LARGE_BYTES else arena.write(a.tobytes(order))
        for a, order in zip(arrays, orders, strict=True)
    ]
    body = marshalled([skeleton])
    return body, form, [a.shape for a in arrays], data, len(body) + sum(a.nbytes for a in arrays)


def received(frames, arena):
    """The description of a message, and its arrays by group and column."""
    description, rest = Description(frames[2]), memoryview(frames[3])
    where = description.where(rest)
    small = rest[description.detail_bytes :] if where is None else memoryview(arena.blocks[where[0]])[: where[2]]
    reader = ColumnReader(rest, small, arena.leases)
    return description, [list(map(reader.read, columns)) for _, _, columns in description.groups]


RECORD = np.dtype([("a", "u1"), ("b", "<i4")])
COLUMNS = {
    "images": [IMAGE, IMAGE + 1, IMAGE + 2],
    "texts": [np.arange(3), np.arange(0), np.arange(7), np.arange(7)],
    "numbers": [np.array(5), np.array(6)],
    "empty": [np.zeros((2, 0, 3), "u1")] * 2,
    "empty, of several lengths": [np.zeros((2, 0, 3), "u1"), np.zeros((4, 0, 3), "u1"), np.zeros((4, 0, 3), "u1")],
    "without bytes, in the order of Fortran": [np.zeros((7, 8), [], order="F")] * 2,
    "in the order of Fortran": [np.asfortranarray(IMAGE), np.asfortranarray(IMAGE + 1)],
    "records": [np.array([(k, 2), (3, 4)], RECORD) for k in range(3)],
    "records in the order of Fortran": [np.asfortranarray(np.array([[(k, 2), (3, 4)]] * 3, RECORD)) for k in range(3)],
    "nothing alike": [IMAGE, IMAGE[0], np.array(2, "u1"), IMAGE],
    "nothing alike, and some large": [IMAGE, *(np.full(n * LARGE_BYTES, n, "u1") for n in (1, 2)), IMAGE + 1],
    "large": [np.full(LARGE_BYTES, k, "u1") for k in range(3)],
    "large, in the order of Fortran": [np.asfortranarray(np.arange(30_000).reshape(100, 300))] * 2,
    "large and small": [np.arange(n, dtype="<u4") for n in (3, 20_000, 0, 9, 30_000)],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_the_arrays_of_a_message_are_restored_column_by_column(name):
    arrays = COLUMNS[name]
    arena = FakeArena()
    items = [encoded([np.arange(2), a, np.arange(3)], arena, gaps=(False, [0, 1, 2], None)) for a in arrays]
    frames, nbytes = join(items, arena.write)
    assert nbytes == sum(item[-1] for item in items)
    _, ((before, found, after),) = received(frames, arena)
    assert [copy.tolist() for copy in before + after] == [[0, 1]] * len(arrays) + [[0, 1, 2]] * len(arrays)
    for array, copy in zip(arrays, found, strict=True):
        assert (copy.dtype, copy.shape, copy.tolist()) == (array.dtype, array.shape, array.tolist())
        assert (copy.flags.f_contiguous, copy.flags.c_contiguous) == (
            array.flags.f_contiguous,
            array.flags.c_contiguous,
        )
        assert copy.flags.writeable
        if array.nbytes < LARGE_BYTES:  # it keeps nothing alive but its own memory
            owner = copy if copy.base is None else copy.base
            assert memoryview(owner).nbytes == copy.nbytes
    for one, other in itertools.combinations(found, 2):
        assert not np.may_share_memory(one, other)


def test_runs_of_a_column_follow_one_another_whatever_they_are():
    arena = FakeArena()
    block = arena.write(b"block")
    details = LOCATION.pack(block.status, block.start) + int64(2, 1)
    reader = ColumnReader(memoryview(details), memoryview(b"abcdefgh"), arena.leases)
    small, large, ragged = (1, False, False, 2), (1, False, True, 5), (2, True, False, 1)
    shapes = [(2,), (5,), (), (2,)]
    runs = [(np.dtype("u1"), s, "C", *rest) for s, rest in zip(shapes, (small, large, ragged, small), strict=True)]
    assert [copy.tobytes() for copy in reader.read(runs)] == [b"ab", b"block", b"cd", b"e", b"fg"]


def test_what_is_between_the_fields_of_a_record_comes_from_the_message():
    data = b"".join([bytes([100 + k]) * PADDED.nbytes for k in range(5)])
    reader = ColumnReader(memoryview(b""), memoryview(data), FakeArena().leases)
    freed = [np.full(PADDED.nbytes, 255, np.uint8) for _ in range(5)]
    del freed  # their memory is what numpy takes for the copies
    copies = reader.read([(PADDED.dtype, PADDED.shape, "C", 5, False, False, PADDED.nbytes)])
    assert b"".join([copy.view(np.uint8) for copy in copies]) == data


@pytest.mark.parametrize(("nbytes", "room", "in_block"), [(0, 1, True), (-1, 1, False), (0, 0, False)])
def test_many_small_arrays_are_in_a_block_if_there_is_room(nbytes, room, in_block):
    arena = FakeArena(room)
    half = LARGE_BYTES // 2
    arrays = [np.full(half - 1, 1, "u1"), np.full(half + 1 + nbytes, 2, "u1")]
    frames, _ = join([encoded([array]) for array in arrays], arena.write)
    assert len(arena.blocks) == in_block and (len(frames[3]) < half) is in_block
    description, ((found,),) = received(frames, arena)
    assert [copy.tolist() for copy in found] == [array.tolist() for array in arrays]
    if in_block:
        assert description.where(memoryview(frames[3])) == (0, 7, LARGE_BYTES)


def test_datapoints_of_one_form_are_a_group():
    texts = [marshalled(["a"]), marshalled(["b"])]
    tuples = [encoded([IMAGE], gaps=(True, [0], None)) for _ in range(3)]
    layout = ("|u1", (2,), "C")
    nested = (pickled("n"), NESTED, [layout, layout], [b"ab", b"cd"], 50)
    arena = FakeArena()
    frames, nbytes = join([*texts, *tuples, texts[0], tuples[0], nested], arena.write)
    assert nbytes == sum(map(len, texts)) + len(texts[0]) + 4 * tuples[0][-1] + 50
    assert load_skeletons(*frames[:2]) == [["a"], ["b"], *[[b"row"]] * 3, ["a"], [b"row"], "n"]
    description, columns = received(frames, arena)
    gaps = (True, [0], None)
    assert [group[:2] for group in description.groups] == [(None, 2), (gaps, 3), (None, 1), (gaps, 1), (NESTED, 1)]
    assert [len(column) for group in columns for column in group] == [3, 1, 2]
    assert columns[4][0][1].tolist() == list(b"cd") and description.has_nested and description.may_be_kept


@pytest.mark.parametrize(("num_shapes", "num_pieces", "others"), [(2, 2, []), (2, 1, [(1, 1)]), (1, 2, [(1, 1)])])
def test_an_array_that_is_not_in_the_form_is_not_left_out_in_silence(num_shapes, num_pieces, others):
    body, form, shapes, data, nbytes = encoded([IMAGE])
    items = [(body, form, shapes * n, data * m, nbytes) for n, m in ((num_shapes, num_pieces), *others)]
    with pytest.raises(ValueError, match="zip"):
        join(items, FakeArena().write)


def test_descriptions_with_dtypes_that_a_user_could_change_are_not_kept():
    frames, _ = join([encoded([np.zeros(2, RECORD)])], FakeArena().write)
    description = Description(frames[2])
    assert not description.may_be_kept and not description.has_nested
    frames, _ = join([encoded([IMAGE])], FakeArena().write)
    assert Description(frames[2]).may_be_kept


# -- dtypes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "padded"),
    [
        ("f8", False),
        (RECORD, False),
        (PADDED.dtype, True),
        ([("a", PADDED.dtype), ("b", "i4")], True),
        ([("b", "i4"), ("a", PADDED.dtype, (2,))], True),
        (np.dtype({"names": ["a"], "formats": ["u1"], "itemsize": 3}), True),
        ("V5", False),
        ([], False),
    ],
)
def test_padding_is_between_or_after_fields_at_any_depth(dtype, padded):
    assert has_padding(np.dtype(dtype)) is padded


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_copy_without_padding_has_zeros_there(order):
    array = np.frombuffer(b"\x07" * 32, PADDED.dtype).reshape(2, 2)
    copy = without_padding(array, order)
    assert copy.tolist() == array.tolist() and copy.flags.f_contiguous is (order == "F")
    assert copy.tobytes(order).count(7) == 4 * 5


def test_a_dtype_is_named_by_text_unless_text_says_less():
    assert (name_of(np.dtype("i2")), name_of(np.dtype(">f4"))) == ("<i2", ">f4")
    of_another_package = SimpleNamespace(metadata=None, kind="f", isbuiltin=2, str="<f2")  # bfloat16, for example
    assert pickle.loads(name_of(of_another_package)) == of_another_package
    for dtype in (np.dtype("i4", metadata={"unit": "mm"}), RECORD, PADDED.dtype, np.dtype("V3")):
        found = pickle.loads(name_of(dtype))
        assert (found, found.metadata, found.isalignedstruct) == (dtype, dtype.metadata, dtype.isalignedstruct)
