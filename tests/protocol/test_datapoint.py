"""Components, and how several datapoints become one batch."""

import copy
import math
import pickle
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.errors import ShapeMismatch
from dataflow.protocol.datapoint import (
    HOLE,
    allocating,
    component,
    components,
    empty,
    is_datapoint,
    present,
    replaced,
    selected,
    stack,
    stack_column,
)

Pair = namedtuple("Pair", ["x", "y"])


def stacked(*values):
    """The batch of one component."""
    (batch,) = stack([[value] for value in values])
    return batch


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_hole_stays_the_one_hole(duplicate):
    assert duplicate(HOLE) is HOLE
    assert duplicate([HOLE])[0] is HOLE


def test_holes_are_left_out_and_everything_else_stays():
    array = np.zeros(2)
    assert list(present([HOLE, None, 0, HOLE, array])) == [None, 0, array]


def test_lists_tuples_and_dicts_have_components():
    assert list(components(["a", "b"])) == [(0, "a"), (1, "b")]
    assert list(components(("a",))) == [(0, "a")]
    assert list(components({"k": 1})) == [("k", 1)]
    assert [is_datapoint(dp) for dp in ([], (), {}, Pair(1, 2), "ab", np.zeros(2), None)] == [True] * 4 + [False] * 3


@pytest.mark.parametrize("dp", ["ab", np.zeros(2), 5, None, {1, 2}])
def test_what_has_no_components_is_named(dp):
    for look_inside in (components, lambda dp: replaced(dp, 0, 1), lambda dp: stack([dp])):
        with pytest.raises(TypeError, match=type(dp).__name__):
            look_inside(dp)


@pytest.mark.parametrize("dp", ["name.png", b"bytes"])
def test_characters_are_no_components(dp):
    with pytest.raises(TypeError, match=rf"got {type(dp).__name__}: wrap it as \[value\]"):
        component(dp, 0)


@pytest.mark.parametrize(
    ("dp", "key", "error", "text"),
    [
        ([1, 2], 2, IndexError, "0 to 1"),
        ((1, 2), -3, IndexError, "0 to 1"),
        ([1], "a", TypeError, "'a'"),
        ([], 0, IndexError, r"no component 0 .* there are \[\]"),
        ({"a": 1}, "b", KeyError, r"'b'.*\['a'\]"),
        ({"a": 1}, [], TypeError, r"\['a'\]"),
        (5, 0, TypeError, r"got int: wrap it as \[value\]"),
    ],
)
def test_a_missing_component_is_named_with_what_there_is(dp, key, error, text):
    with pytest.raises(error, match=text) as caught:
        component(dp, key)
    assert caught.value.__cause__ is not None
    if not isinstance(dp, dict) or error is TypeError:
        with pytest.raises(error, match=text):
            replaced(dp, key, 0)


def test_a_component_is_found_by_index_from_either_end_and_by_key():
    assert component([1, 2], -1) == 2
    assert component(Pair(1, 2), 1) == 2
    assert component({"a": 1}, "a") == 1


def test_replacing_gives_a_list_or_dict_and_leaves_the_original():
    for original, key, expected in [([1, 2], 0, [9, 2]), ((1, 2), 1, [1, 9]), (Pair(1, 2), 0, [9, 2])]:
        before = copy.copy(original)
        assert replaced(original, key, 9) == expected
        assert original == before
    ordered = OrderedDict(a=1, b=2)
    out = replaced(ordered, "a", 9)
    assert type(out) is OrderedDict
    assert (out["a"], ordered["a"]) == (9, 1)


def test_selecting_keeps_the_given_order_and_the_kind():
    assert selected(["a", "b", "c"], [2, 0, 0]) == ["c", "a", "a"]
    assert list(selected({"a": 1, "b": 2}, ["b", "a"]).items()) == [("b", 2), ("a", 1)]
    with pytest.raises(KeyError, match="'x'"):
        selected({"a": 1}, ["x"])
    with pytest.raises(IndexError, match="no component 3"):
        selected((1,), [3])


def test_memory_comes_from_the_surrounding_worker_except_for_objects():
    asked = []

    def make(shape, dtype):
        asked.append((shape, dtype))
        return np.ones(shape, dtype)

    with allocating(make):
        assert empty(3).tolist() == [1, 1, 1]
        assert empty((2, 1), "u1").dtype == np.uint8
        assert empty([2], object).tolist() == [None, None]
        assert stacked(np.array([None]), np.array(["x"], object)).tolist() == [[None], ["x"]]
    assert asked == [((3,), np.dtype(float)), ((2, 1), np.dtype("u1"))]
    assert empty(2).shape == (2,)
    assert len(asked) == 2


def test_memory_comes_from_elsewhere_only_inside_the_block():
    with pytest.raises(KeyError), allocating(np.ones):
        raise KeyError
    assert empty((2, 2)).flags.c_contiguous


DTYPES = [
    ([1, 2], np.int32),
    ([1.5, 2.5], np.float32),
    ([True, False], np.bool_),
    ([1j, 2j], np.complex64),
    ([True, 2], np.int32),
    ([1, 2.7], np.float64),
    ([True, 2.5], np.float32),
    ([np.int8(1), np.int8(2)], np.int8),
    ([np.float64(1), np.float64(2)], np.float64),
    ([np.float16(1), np.float32(2)], np.float32),
    ([np.bool_(True), np.bool_(False)], np.bool_),
    ([np.uint8(1), 2], np.int32),
    ([np.int64(2**40), 1], np.int64),
    ([np.float64(1), 1.5], np.float64),
    ([np.zeros((), np.uint8), np.ones((), np.uint8)], np.uint8),
    ([np.zeros(2, np.uint8), np.ones(2, np.int16)], np.int16),
    ([np.zeros((), np.float64), 1.5], np.float64),
    ([np.zeros(2, ">f4"), np.ones(2, ">f4")], ">f4"),
    ([np.datetime64("2020-01-01"), np.datetime64("2020-01-02T03")], "M8[h]"),
    ([np.array(["2020"], "M8[Y]"), np.array(["NaT"], "M8[Y]")], "M8[Y]"),
    ([np.array(["a"]), np.array(["abc"])], "U3"),
    ([np.zeros(2, "i4,f8"), np.ones(2, "i4,f8")], "i4,f8"),
    ([np.zeros(2, "i4,f8")[0], np.ones(2, "i4,f8")[1]], "i4,f8"),
]


@pytest.mark.parametrize(("values", "dtype"), DTYPES, ids=[f"{v[0]!r:.30} {d}" for v, d in DTYPES])
def test_a_batch_has_the_dtype_of_its_components(values, dtype):
    batch = stacked(*values)
    assert batch.dtype == dtype
    assert batch.shape == (len(values), *np.shape(values[0]))
    for row, value in zip(batch, values, strict=True):
        np.testing.assert_array_equal(row, value)


@pytest.mark.parametrize("wrong", [2**31, -(2**31) - 1, 2**40, 2**70])
@pytest.mark.parametrize("others", [[1], [np.int64(1)], [1.5]])
def test_an_int_that_does_not_fit_into_int32_is_an_error_with_the_cure(wrong, others):
    with pytest.raises(OverflowError, match=rf"component 0 holds the Python int {wrong}.*int32.*np.int64"):
        stacked(*others, wrong)


def test_the_largest_ints_fit():
    assert stacked(2**31 - 1, -(2**31)).tolist() == [2**31 - 1, -(2**31)]


def test_text_becomes_an_array_of_text_and_bytes_keep_every_byte():
    assert stacked("a", "bcd").dtype == "U3"
    assert stacked("ä", np.str_("b")).tolist() == ["ä", "b"]
    data = [b"a\0\0", b"\xff", b""]
    batch = stacked(*data)
    assert batch.dtype == object
    assert batch.tolist() == data
    assert all(type(value) is bytes for value in batch)


def test_text_that_numpy_would_cut_is_refused():
    with pytest.raises(ShapeMismatch, match=r"NUL.*use_list"):
        stacked("a", "b\0")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (["a", 1], "int, str"),
        ([1, "a"], "int, str"),
        (["a", b"a"], "bytes, str"),
        ([np.array("a"), np.array(1)], "<U1, int64"),
        ([np.zeros(2, "i4,f8"), np.zeros(2)], "float64"),
        ([np.datetime64("2020"), 1.5], r"datetime64\[Y\], float32"),
        ([np.zeros(2, "M8[s]"), np.zeros(2)], r"datetime64\[s\], float64"),
        ([np.zeros(2, "M8[s]"), np.zeros(2, "m8[s]")], r"datetime64\[s\], timedelta64\[s\]"),
        ([np.datetime64("2020"), np.timedelta64(1, "Y")], r"datetime64\[Y\], timedelta64\[Y\]"),
        ([np.zeros(2, "m8[s]"), np.zeros(2, "i8")], r"timedelta64\[s\], int64"),
    ],
)
def test_kinds_that_have_no_common_dtype_are_named_with_the_component(values, named):
    with pytest.raises(ShapeMismatch, match=f"component 0 mixes .*{named}"):
        stacked(*values)


@pytest.mark.parametrize("value", [None, object(), {"a": 1}, slice(1)])
def test_a_component_without_an_array_form_is_named_with_the_cure(value):
    with pytest.raises(TypeError, match=f"component 1 is a {type(value).__name__}.*use_list=True"):
        stack([(0, value), (0, value)])


def test_masked_arrays_keep_their_masks():
    batch = stacked(np.ma.array([1, 2], mask=[0, 1]), np.array([3, 4]))
    assert isinstance(batch, np.ma.MaskedArray)
    assert batch.tolist() == [[1, None], [3, 4]]


def test_ragged_components_are_named_with_their_shapes():
    with pytest.raises(ShapeMismatch, match=r"component 1 .*\(2, 3\), \(2, 4\)\. .*BatchDataByShape.*use_list=True"):
        stack([[0, np.zeros((2, 3))], [0, np.zeros((2, 4))], [0, np.zeros((2, 3))]])
    with pytest.raises(ShapeMismatch, match=r"component 'x' .*\(\), \(1,\)"):
        stack([{"x": 1}, {"x": np.zeros(1)}])


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ({"a": 1}, {"b": 1}, r"a dict of \[\"'a'\"\] and a dict of \[\"'b'\"\]"),
        ({"a": 1}, {"a": 1, "b": 1}, "'b'"),
        ({"a": 1, "b": 1}, {"a": 1}, "'b'"),
        ([1], [1, 2], "a list of 1 and a list of 2"),
        ([1, 2], (1,), "a list of 2 and a tuple of 1"),
        ([1], {"a": 1}, "a list of 1 and a dict"),
        ({0: 1}, [1], "a dict .* and a list of 1"),
        ([1], np.zeros(1), "a list of 1 and a ndarray"),
    ],
)
def test_datapoints_of_different_forms_are_outlined(one, other, text):
    with pytest.raises(ShapeMismatch, match=text):
        stack([one, other])


def test_lists_and_tuples_may_mix_and_become_a_list():
    batch = stack([(1, "a"), [2, "b"], Pair(3, "c")])
    assert type(batch) is list
    assert [column.tolist() for column in batch] == [[1, 2, 3], ["a", "b", "c"]]


def test_dicts_become_a_dict_whatever_the_order_of_their_keys():
    batch = stack([{"a": 1, "b": 2}, {"b": 4, "a": 3}])
    assert {key: column.tolist() for key, column in batch.items()} == {"a": [1, 3], "b": [2, 4]}


def test_python_lists_are_kept_on_wish_whatever_they_hold():
    array = np.zeros(2)
    batch = stack([[None, array, 2**70], ["x", np.zeros(3), 1]], use_list=True)
    assert batch[0] == [None, "x"]
    assert batch[1][0] is array
    assert batch[2] == [2**70, 1]
    assert stack([{"a": 1}, {"a": 2}], use_list=True) == {"a": [1, 2]}


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3), (20, 30)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_any_layout_are_copied_into_one(shape, order):
    arrays = [np.asarray(np.random.default_rng(k).random(shape), order=order) for k in range(3)]
    batch = stacked(*arrays)
    assert batch.flags.c_contiguous
    np.testing.assert_array_equal(batch, np.stack(arrays))
    assert not any(np.shares_memory(batch, array) for array in arrays)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=6), st.integers(1, 3))
def test_unstacking_a_batch_gives_the_datapoints_back(numbers, width):
    datapoints = [[number] * width for number in numbers]
    assert [list(row) for row in zip(*stack(datapoints), strict=True)] == datapoints


KINDS_OF_NUMBERS = [bool, int, float, complex, *(np.dtype(code).type for code in "?bhiqBHIQefdgFD")]


@pytest.mark.parametrize("kind", KINDS_OF_NUMBERS)
def test_many_numbers_of_one_kind_are_stacked_as_few_of_several(kind):
    values = [kind(k % 2) for k in range(50)]
    python = {bool: np.bool_, int: np.int32, float: np.float32, complex: np.complex64}
    batch = stacked(*values)
    assert batch.dtype == python.get(kind, kind)
    assert batch.tolist() == values
    other = stacked(*values, np.zeros((), batch.dtype)[()])
    assert other.dtype == batch.dtype
    assert other.tolist()[:-1] == values


@pytest.mark.parametrize("kind", [int, *(np.dtype(code).type for code in "bBhHiIlLqQ")])
def test_integers_at_their_limits_are_stacked(kind):
    limits = np.iinfo(np.int32 if kind is int else kind)
    assert stacked(kind(limits.min), kind(limits.max)).tolist() == [limits.min, limits.max]


def test_python_floats_are_rounded_as_numpy_rounds_them():
    infinite = 2.0**128 - 2.0**103  # from here on
    numbers = [0.1, -0.0, 1e-40, 2.0**-149, 2.0**-150, 1 + 2.0**-24, 1 + 3 * 2.0**-24, -math.nextafter(infinite, 0)]
    assert stacked(*numbers).tobytes() == np.array(numbers, np.float32).tobytes()
    with pytest.raises(OverflowError, match="would be infinite as float32"):
        stacked(0.0, -infinite)


@pytest.mark.parametrize("datapoints", [[[1], [1, 2]], [[1], []], [(1,), [1, 2]], [[1, 2], [1]]])
def test_datapoints_of_one_component_and_of_others_are_refused(datapoints):
    with pytest.raises(ShapeMismatch, match="differ in their components"):
        stack(datapoints)


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", ">f4", "c8", "M8[s]", "S3", "U2", "O", "i4,f8", "V5", "T"])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3), (1, 2, 0), (5, 40), (2, 512)])
def test_arrays_alike_and_arrays_of_subclasses_give_the_same_batch(dtype, shape):
    if dtype == "T" and not hasattr(np.dtypes, "StringDType"):
        pytest.skip("numpy 1 has no such dtype")

    class Own(np.ndarray):
        pass

    arrays = [np.zeros(shape, dtype) for _ in range(5)]
    alike, others = stacked(*arrays), stacked(*arrays[:-1], arrays[-1].view(Own))
    assert alike.dtype == others.dtype == arrays[0].dtype
    assert alike.shape == others.shape == (5, *shape)
    np.testing.assert_array_equal(alike, others)


@pytest.mark.parametrize("other", [np.ones((2, 512), "i4"), np.ones((2, 512), ">f4"), np.ones((512, 2), "f4").T])
def test_arrays_of_one_size_are_stacked_by_value(other):
    arrays = [np.full((2, 512), 3, "f4"), other]
    batch = stacked(*arrays)
    np.testing.assert_array_equal(batch, np.stack(arrays))
    assert batch.dtype == np.result_type(*arrays)
    assert batch.flags.writeable and batch.flags.aligned and not np.shares_memory(batch, other)
    with pytest.raises(ShapeMismatch, match="component 0 has different shapes"):
        stacked(*arrays, np.ones((512, 2), "f4"))


SHAPES = st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=2, max_size=5)


@given(SHAPES, st.data())
def test_shapes_that_differ_are_refused_whatever_numpy_would_make_of_them(shapes, data):
    dtypes = data.draw(st.lists(st.sampled_from(["f4", "f4", "i8"]), min_size=len(shapes), max_size=len(shapes)))
    arrays = [np.ones(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    if len(set(shapes)) == 1:
        assert stacked(*arrays).dtype == np.result_type(*dtypes)
        np.testing.assert_array_equal(stacked(*arrays), np.stack(arrays))
        return
    with pytest.raises(ShapeMismatch, match="component 0 has different shapes"):
        stacked(*arrays)


def test_a_worker_batches_in_its_own_memory_whatever_the_components():
    made = []

    def make(shape, dtype):
        made.append(np.full(shape, 7, dtype))
        return made[-1]

    with allocating(make):
        image = np.ones((20, 20), "f4")
        batch = stack([[np.ones((2, 2), "f4"), k, float(k), np.int64(k), np.ones(()), image] for k in range(3)])
    assert [array is own for array, own in zip(batch, made, strict=True)] == [True] * 6
    assert [array.dtype.name for array in batch] == ["float32", "int32", "float32", "int64", "float64", "float32"]
    assert batch[1].tolist() == [0, 1, 2]


# -- lists, and arrays of other libraries ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([[1, 2, 3], [4, 5, 6]], np.int32),
        ([[1.5], [2.5]], np.float32),
        ([[True, False], [True, True]], np.bool_),
        ([[1, 2.5], [3, 4]], np.float64),
        ([[], []], np.int32),
        ([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], np.int32),
        ([[np.int8(1)], [np.int8(2)]], np.int8),
        ([[np.ones(2, "f4"), np.zeros(2, "f4")], [np.ones(2, "f4"), np.ones(2, "f4")]], np.float32),
        ([["a", "bc"], ["d", "e"]], "U2"),
    ],
)
def test_lists_of_one_length_are_stacked(kind, values, dtype):
    batch = stacked(*map(kind, values))
    assert batch.dtype == dtype
    assert batch.shape == np.shape(values)
    np.testing.assert_array_equal(batch, values)


def test_a_list_and_an_array_are_stacked():
    assert stacked([1, 2], np.array([3, 4], np.int16)).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ShapeMismatch, match=r"component 0 has different shapes within one batch: \(1,\), \(\)"):
        stacked([1], 2)


def test_lists_of_different_lengths_are_named_with_the_cure():
    with pytest.raises(ShapeMismatch, match=r"component 't' is a list of different lengths .*: 3, 1. .*PadBatchData"):
        stack([{"t": [1, 2, 3]}, {"t": [4]}, {"t": [4]}])
    with pytest.raises(ShapeMismatch, match=r"component 0 .* different lengths"):
        stacked([[1], [2, 3]], [[1], [2, 3]])
    with pytest.raises(TypeError, match="component 0 is a NoneType"):
        stacked([1, None], [1, 2])


class OnlyDlpack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnlyArray:
    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


@pytest.mark.parametrize("kind", [OnlyArray, OnlyDlpack])
def test_what_can_become_an_array_is_stacked_in_the_memory_of_the_worker(kind):
    made = []

    def make(shape, dtype):
        made.append(np.empty(shape, dtype))
        return made[-1]

    with allocating(make):
        batch = stacked(*(kind(np.full((2, 3), k, np.float32)) for k in range(4)))
    assert batch is made[0] and batch.dtype == np.float32 and batch[:, 0, 0].tolist() == [0, 1, 2, 3]


def test_what_cannot_become_an_array_is_named_with_the_reason():
    class OnGpu:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("it is on a GPU")

    with pytest.raises(TypeError, match=r"component 'x' is a OnGpu that cannot become an array .it is on a GPU"):
        stack([{"x": OnGpu()}])


EXACT = 2**53 + 1


@pytest.mark.parametrize(
    "make",
    [
        lambda pandas, pa: pandas.array([EXACT, None], dtype="Int64"),
        lambda pandas, pa: pandas.Series([EXACT, None], dtype="Int64"),
        lambda pandas, pa: pandas.Categorical([EXACT, None]),
        lambda pandas, pa: pandas.DataFrame({"x": [0.5, 1.5], "id": [EXACT, 1]}),
        lambda pandas, pa: pa.array([EXACT, None]),
        lambda pandas, pa: pa.chunked_array([[EXACT], [None]]),
        lambda pandas, pa: pa.array([[EXACT, None], [1]]),
        lambda pandas, pa: pa.table({"x": [0.5, None], "id": [EXACT, None]}),
    ],
)
def test_integers_of_which_numpy_would_make_floats_are_refused(make):
    value = make(pytest.importorskip("pandas"), pytest.importorskip("pyarrow"))
    with pytest.raises(TypeError, match="NumPy makes floats of its integers: fill in those that are missing"):
        stacked(value)


def test_columns_of_which_numpy_loses_nothing_are_stacked():
    pandas, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    for exact in (pandas.array([EXACT, 2], dtype="Int64"), pa.array([EXACT, 2])):
        assert stacked(exact).tolist() == [[EXACT, 2]] and stacked(exact).dtype == np.int64
    for floats in (pandas.array([1.5, None], dtype="Float64"), pa.array([1.5, None])):
        np.testing.assert_array_equal(stacked(floats), [[1.5, math.nan]])
    assert stacked(pa.array(["a", None]).dictionary_encode()).tolist() == [["a", None]]
    assert stacked(pa.table({"id": [1, 2], "x": [0.5, None]}))[0, :, 0].tolist() == [1, 2]


def test_tensors_are_stacked():
    torch = pytest.importorskip("torch")
    batch = stack([[torch.full((2, 2), k, dtype=torch.float16), torch.tensor(k)] for k in range(3)])
    assert [column.dtype for column in batch] == [np.float16, np.int64] and batch[0].shape == (3, 2, 2)
    with pytest.raises(TypeError, match=r"component 0 is a Tensor .*detach"):
        stacked(torch.ones(2, requires_grad=True))
    with pytest.raises(ShapeMismatch, match=r"\(2,\), \(3,\)"):
        stacked(torch.ones(2), torch.ones(3))


def test_jax_arrays_are_stacked():
    jnp = pytest.importorskip("jax.numpy")
    batch = stack([[jnp.full((2,), k, jnp.float32), jnp.ones((2,), jnp.bfloat16)] for k in range(3)])
    assert batch[0].tolist() == [[0, 0], [1, 1], [2, 2]] and batch[0].dtype == np.float32
    assert str(batch[1].dtype) == "bfloat16" and batch[1].shape == (3, 2)


def test_images_are_stacked():
    image = pytest.importorskip("PIL.Image")
    batch = stacked(*(image.new("RGB", (4, 3), (k, 0, 0)) for k in range(2)))
    assert batch.shape == (2, 3, 4, 3) and batch.dtype == np.uint8 and batch[:, 0, 0, 0].tolist() == [0, 1]


@pytest.mark.parametrize("code", [*"bBhHiIqQ"])
def test_python_ints_have_the_dtype_that_is_asked_for(code):
    dtype = np.dtype(code)
    limits = np.iinfo(dtype)
    (batch, nested, mixed) = stack([[limits.max, [limits.min], True], [limits.min, [limits.max], 1]], int_dtype=dtype)
    assert batch.tolist() == [limits.max, limits.min] and nested.tolist() == [[limits.min], [limits.max]]
    assert (batch.dtype, nested.dtype, mixed.dtype) == (dtype, dtype, dtype)
    for values in ([limits.max + 1, 0], [2**80, 0], [[0], [limits.min - 1]], [limits.max + 1, np.int8(1)]):
        with pytest.raises(OverflowError, match=f"does not fit into {dtype}") as caught:
            stack([[value] for value in values], int_dtype=dtype)
        assert ("int_dtype=np.int64" in str(caught.value)) == (dtype != np.int64)


class TestCommonDtype:
    """A batch has one dtype: floats may be rounded in it, but no integer and no date becomes another one."""

    @pytest.mark.parametrize(
        "values",
        [
            [np.datetime64("2020-01-01T00:00:00", "ns"), np.datetime64("9999-12-31", "D")],
            [np.array(["2020-01-01"], "M8[ns]"), np.array(["9999-12-31"], "M8[D]")],
            [np.timedelta64(2**62, "s"), np.timedelta64(1, "ns")],
            [np.uint64(2**63 + 1025), np.int64(1)],
            [np.array([1.0]), np.array([2**53 + 1])],
            [np.array([2**64 - 1], "u8"), np.array([1])],
            [np.int64(-(2**53) - 1), 0.5],
            [np.int64(2**53 + 1), 1j],
            [np.array([(1,)], [("a", "f8")]), np.array([(2**53 + 1,)], [("a", "i8")])],
            [np.ma.array([2**53 + 1], mask=[False]), np.ma.array([0.5])],
        ],
    )
    def test_what_would_be_another_value_raises(self, values):
        with pytest.raises(OverflowError, match=r"component 'x' holds .*another value as"):
            stack_column(values, "x")

    @pytest.mark.parametrize(
        ("values", "unit"),
        [
            ([np.datetime64("2020-01-01", "ns"), np.datetime64("9999-12-31", "D")], r"datetime64\[s\]"),
            ([np.timedelta64(2**62, "s"), np.timedelta64(1, "ns")], r"timedelta64\[s\]"),
        ],
    )
    def test_the_cure_names_a_unit_of_the_same_kind(self, values, unit):
        with pytest.raises(OverflowError, match=f"such as {unit}"):
            stack_column(values, "x")

    @pytest.mark.parametrize("values", [[1e300, 1.0], [complex(1e300), 1j], [1e300, np.float32(1)]])
    def test_what_would_be_infinite_raises(self, values):
        with pytest.raises(OverflowError, match="would be infinite as"):
            stack_column(values, "x")

    @pytest.mark.parametrize(
        "values",
        [
            [np.datetime64("2020-01-01T00:00:00", "ns"), np.datetime64("2021-12-31", "D"), np.datetime64("NaT", "s")],
            [np.timedelta64(5, "s"), np.timedelta64(1, "ns")],
            [np.uint64(5), np.int64(-1)],
            [np.uint64(2**63), np.int64(1)],
            [2**31 - 1, 0.5],
            [np.array([True]), np.array([3], np.int8)],
        ],
    )
    def test_what_stays_the_same_is_stacked(self, values):
        out = stack_column(values, "x")
        assert [one == value or np.isnat(one) for one, value in zip(out, values, strict=True)] == [True] * len(values)

    def test_infinity_and_nan_stay_what_they_are(self):
        assert stack_column([float("inf"), float("nan"), 0.1], "x").tolist() == pytest.approx(
            [float("inf"), float("nan"), 0.1], nan_ok=True
        )

    def test_a_masked_element_among_numbers_stays_masked(self):
        masked = np.ma.array([1.0, 2.0], mask=[True, False])
        assert stack_column([masked[0], masked[1], 3], "x").mask.tolist() == [True, False, False]

    def test_objects_keep_their_kind(self):
        column = np.empty(2, object)
        column[:] = ["a", 1]
        assert stack_column([column, column], "x").tolist() == [["a", 1], ["a", 1]]


@pytest.mark.parametrize("key", [2, "a"])
def test_a_component_that_a_list_lacks_is_named(key):
    with pytest.raises((IndexError, TypeError, KeyError), match=repr(key)):
        selected([0, 1], [1, key])


class Half(float):
    pass


class Wave(complex):
    pass


def test_classes_of_numbers_become_what_the_numbers_become():
    assert stacked(Half(0.5), 1.5).dtype == np.float32
    assert stacked(Wave(1j), 1.5).dtype == np.complex64
