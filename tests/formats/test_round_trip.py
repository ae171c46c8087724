"""Every dtype, in every structure, in every format: what comes back is what went in, or it was refused by name."""

import tempfile

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from dataflow import NotStorable
from dataflow.formats.records import RecordDecoder, RecordEncoder
from dataflow.transport.dtypes import dtype_name, dtype_of
from tests.formats.files import COLUMNS, FORMATS, arrays_in, assert_same, by_name, exact

DTYPES = [
    *("?", "i1", "<i2", ">i4", "i8", "u1", "<u2", ">u8", "f2", "<f4", ">f4", "f8", "g", "c8", ">c16"),
    *("S5", "<U3", ">U2", "M8[ns]", ">M8[D]", "m8[s]", "V6"),
    [("x", "<f4"), ("y", ">i2", (2, 3)), ("when", "M8[us]")],
    {"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [3, 8], "itemsize": 24},
    np.dtype([("a", "i1"), ("b", "f8"), ("c", [("d", "i2")])], align=True),
]
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def arrays():
    """Arrays of any content, whatever their dtype, also such as no program would write (NaNs with a payload)."""

    @st.composite
    def draw_one(draw):
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        shape = draw(SHAPES)
        if dtype.kind in "?bU" or dtype.names:  # of these not every byte is a value
            array = np.zeros(shape, dtype)
            if dtype.kind == "b":
                array = draw(st_np.arrays(bool, shape))
            elif dtype.kind == "U":
                array[...] = draw(
                    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=3)
                )
            return array
        size = dtype.itemsize * int(np.prod(shape))
        data = draw(st.binary(min_size=size, max_size=size)) if size <= 64 else bytes(size)
        if dtype.char == "g":  # ten bytes of sixteen are a value
            return np.frombuffer(data, "u1").astype(dtype)[: int(np.prod(shape))].reshape(shape)
        return np.frombuffer(data, dtype).reshape(shape).copy() if size else np.zeros(shape, dtype)

    return st.one_of(
        draw_one(),
        draw_one().map(np.asfortranarray),
        draw_one().map(lambda array: array[..., ::-1] if array.ndim else array),
    )


TEXT = st.text(max_size=5)  # surrogates included
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.complex_numbers(),
    TEXT,
    st.binary(max_size=5),
)
SCALARS = st.sampled_from(
    [
        np.float32(1.5),
        np.float64("nan"),
        np.int8(-3),
        np.uint64(2**64 - 1),
        np.bool_(True),
        np.complex64(1j),
        np.longdouble(0.1),
        np.datetime64("2020-02-29"),
        np.datetime64("NaT", "s"),
        np.timedelta64(5, "ms"),
        np.str_("ä"),
        np.bytes_(b"ab"),
        np.float16(2),
        np.zeros(1, [("x", "i4"), ("y", "f8")])[0],
        np.void(b"raw"),
    ]
)
KEYS = st.one_of(
    TEXT, st.integers(-5, 5), st.tuples(st.integers(0, 3), TEXT), st.binary(max_size=3), st.none(), st.booleans()
)
VALUES = st.recursive(
    st.one_of(
        PLAIN,
        SCALARS,
        arrays(),
        st.binary(max_size=4).map(bytearray),
        st.frozensets(st.integers(0, 9)),
        st.sets(TEXT, max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=8,
)  # fmt: skip


@given(VALUES)
@example([np.arange(6).reshape(2, 3).T, np.asfortranarray(np.ones((2, 3)))])
def test_a_record_gives_back_what_went_in(value):
    decoder = RecordDecoder("x")
    record = RecordEncoder().encode(value)
    for verify in (True, False, True):  # a skeleton that returns is read another way
        found = decoder.decode(record, 0, verify=verify)
        assert_same(found, value)
        assert all(array.flags.writeable for array in arrays_in(found))


@given(VALUES)
@settings(max_examples=30)
def test_a_compressed_record_gives_back_what_went_in(value):
    assert_same(RecordDecoder("x").decode(RecordEncoder(compress="zstd").encode(value), 0), value)


def test_the_order_of_memory_survives_in_a_record():
    dp = [np.asfortranarray(np.ones((2, 3))), np.ones((2, 3)), np.ones((4, 6))[::2, ::2]]
    first, second, third = RecordDecoder("x").decode(RecordEncoder().encode(dp), 0)
    assert first.flags.f_contiguous and second.flags.c_contiguous and third.flags.c_contiguous


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dtype_has_a_name_from_which_it_comes_back(dtype):
    dtype = np.dtype(dtype)
    found = dtype_of(dtype_name(dtype))
    assert found == dtype and found.isalignedstruct == dtype.isalignedstruct
    assert repr(found) == repr(dtype)


@pytest.mark.parametrize("dtype", [object, [("a", object)], [("a", "i4"), ("b", [("c", object)])]])
def test_objects_have_no_name(dtype):
    assert dtype_name(np.dtype(dtype)) is None
    with pytest.raises(ValueError, match="Python objects"):
        dtype_of("|O")


@pytest.mark.parametrize("form", FORMATS, ids=by_name)
@given(data=st.data())
@settings(max_examples=25)
def test_a_file_gives_back_what_went_in_or_refuses_it_by_name(form, data):
    first = data.draw(
        st.one_of(
            st.lists(VALUES, max_size=4),
            st.lists(VALUES, max_size=4).map(tuple),
            st.dictionaries(KEYS, VALUES, max_size=3),
            VALUES,
        )
    )
    others = data.draw(st.lists(VALUES, max_size=2))
    dps = [first, first, *others]
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = form.saved(folder, dps)
        except NotStorable as error:
            refused = str(error)
        else:
            refused = ""
        if refused:
            assert form in COLUMNS and refused.startswith("datapoint ")
            return
        with form.load(path, shuffle=False) as df:
            found = list(df)
            if form in COLUMNS:  # keys that come in another order come in that of the first datapoint
                assert [exact_unordered(dp) for dp in found] == [exact_unordered(dp) for dp in dps]
            else:
                assert_same(found, dps)
            assert all(array.flags.writeable for array in arrays_in(found))


def exact_unordered(dp):
    return exact({key: dp[key] for key in sorted(dp, key=repr)} if type(dp) is dict else dp)


@pytest.mark.parametrize("form", FORMATS, ids=by_name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_goes_into_every_format(form, dtype, tmp_path):
    array = np.zeros((2, 3), dtype)
    dps = [[array, array[0], array[0, 0], np.zeros((0, 2), dtype), np.array(array[0, 0])] for _ in range(3)]
    with form.load(form.saved(tmp_path, dps), shuffle=False) as df:
        assert_same(list(df), dps)


class Opaque:
    pass


@pytest.mark.parametrize("form", FORMATS, ids=by_name)
@pytest.mark.parametrize(
    ("dp", "message"),
    [
        ([1, Opaque()], r"datapoint 1: component '?1.* of type .*Opaque"),
        ({"a": 1, "b": [lambda: 0]}, r"datapoint 1: component 'b'.* of type function"),
        ([np.array([1, None])], r"datapoint 1: component '?0.* an array of Python objects"),
        ([np.ma.array([1])], r"datapoint 1: component '?0.*MaskedArray"),
        ([[np.zeros(1, [("x", object)])]], "datapoint 1: component '?0.* / 0 is an array of Python objects"),
    ],
    ids=["object", "function", "objects", "masked", "nested"],
)  # fmt: skip
def test_what_has_no_form_is_refused_by_name(form, dp, message, tmp_path):
    good = [1, 2] if len(dp) > 1 else ["text"]
    good = {"a": 1, "b": "text"} if type(dp) is dict else ["text", "text"][: len(dp)] if len(dp) == 1 else [1, "text"]
    with pytest.raises(NotStorable, match=message):
        form.saved(tmp_path, [good, dp])
    assert not list(tmp_path.iterdir())


def test_too_many_levels_are_refused():
    deep = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(NotStorable, match="more than 100 levels"):
        RecordEncoder().encode([deep])
