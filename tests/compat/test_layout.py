"""What fits into an agreed place, and what is refused: never a broadcast, never a value that was bent."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dataflow import ShapeMismatch
from dataflow.compat.layout import Layout, components_of, store


def stored(result, *wanted):
    views = [np.full(shape, 1, dtype) for dtype, shape in wanted]
    store(views, result)
    return views


def test_one_array_is_a_result_and_so_is_a_list_tuple_or_generator_of_arrays():
    array = np.arange(3)
    for result in (array, [array], (array,), (part for part in [array])):
        assert stored(result, ("i8", (3,)))[0].tolist() == [0, 1, 2]
    assert stored([2.5, np.float32(1), [[1, 2]]], ("f8", ()), ("f4", ()), ("u1", (1, 2)))[0] == 2.5
    assert stored(7, ("i2", ()))[0] == 7


@pytest.mark.parametrize("result", [None, {"data": np.zeros(3)}, {1, 2}], ids=["None", "dict", "set"])
def test_what_is_no_list_of_arrays_is_named(result):
    with pytest.raises(TypeError, match=f"returned (a )?{'None' if result is None else type(result).__name__}.*list"):
        components_of(result)


MISFITS = {
    "broadcast": (np.zeros(1), ("f8", (3,)), ShapeMismatch, r"component 0.*\(1,\).*\(3,\)"),
    "scalar": (5.0, ("f8", (3,)), ShapeMismatch, r"\(\).*\(3,\)"),
    "transposed": (np.zeros((2, 3)), ("f8", (3, 2)), ShapeMismatch, r"\(2, 3\).*\(3, 2\)"),
    "float too large for an integer": (np.array([300.7, 1]), ("u1", (2,)), OverflowError, r"float64.*300.7.*uint8"),
    "float below 0 for an unsigned integer": (np.array([0.5, -1.0]), ("u1", (2,)), OverflowError, "-1.0.*uint8"),
    "float a little too large": (np.array([2.0**63]), ("i8", (1,)), OverflowError, "float64.*int64"),
    "NaN into integer": (np.array([np.nan, 1.0]), ("i4", (2,)), OverflowError, "nan.*int32"),
    "infinite into integer": (np.array([np.inf, 1.0], "f4"), ("i8", (2,)), OverflowError, "inf.*int64"),
    "complex into integer": (np.zeros(2, complex), ("i4", (2,)), TypeError, "complex128.*int32"),
    "text into integer": (np.array(["1"]), ("i4", (1,)), TypeError, "<U1.*int32"),
    "complex into float": (np.zeros(2, complex), ("f4", (2,)), TypeError, "complex128.*float32"),
    "negative into unsigned": (np.array([-5]), ("u1", (1,)), OverflowError, "int64.*-5.*uint8"),
    "float into bool": (np.array([1.0]), ("?", (1,)), TypeError, "bool"),
    "int into bool": (np.array([1]), ("?", (1,)), TypeError, "bool"),
    "object": (np.array([None, 1.0]), ("f8", (2,)), TypeError, "object"),
    "None": ([None], ("f8", (2,)), TypeError, "component 0.*None"),
    "masked": (np.ma.masked_array([1.0, 2.0], [0, 1]), ("f8", (2,)), TypeError, "filled"),
    "int too large": (np.array([40_000]), ("i2", (1,)), OverflowError, r"int64.*from 40000 to 40000.*int16"),
    "int too small": (np.array([-129], "i2"), ("i1", (1,)), OverflowError, "-129"),
    "unsigned too large": (np.array([200], "u1"), ("i1", (1,)), OverflowError, "uint8.*int8"),
    "plain int too large": ([[300]], ("u1", (1,)), OverflowError, "300"),
    "plain int below 0": ([[-1]], ("u1", (1,)), OverflowError, "-1"),
    "float too large": (np.array([1e300]), ("f4", (1,)), OverflowError, "1e\\+300.*float32"),
    "int too large for a float": (np.array([70_000]), ("f2", (1,)), OverflowError, "70000.*float16"),
    "complex too large": (np.array([1 + 1e300j]), ("c8", (1,)), OverflowError, "complex64"),
    "text too long": (np.array(["abcd"]), ("U2", (1,)), OverflowError, "<U4.*<U2"),
    "time too fine": (np.array(["2020-01-01T10"], "M8[h]"), ("M8[D]", (1,)), OverflowError, "datetime64"),
    "time too far": (np.array(["9999-01-01"], "M8[D]"), ("M8[ns]", (1,)), OverflowError, "9999"),
    "structure": (np.array([(300,)], [("a", "i8")]), ([("a", "i1")], (1,)), OverflowError, r"'<i8'.*'i1'"),
}


@pytest.mark.parametrize(("result", "wanted", "error", "text"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_is_an_error_with_both_sides(result, wanted, error, text):
    with pytest.raises(error, match=text):
        stored(result, wanted)


def test_too_few_and_too_many_arrays_are_an_error_with_all_shapes():
    for result in (np.zeros(3), [np.zeros(3)] * 3):
        with pytest.raises(ShapeMismatch, match=r"returned [13] arrays.*\(3,\).*agreed were 2.*\(3,\), \(2, 2\)"):
            stored(result, ("f8", (3,)), ("f8", (2, 2)))


def test_what_fits_is_converted():
    assert stored(np.array([1.5, np.inf, np.nan]), ("f4", (3,)))[0].tolist()[:2] == [1.5, np.inf]
    assert stored(np.array([-7, 30_000]), (">i2", (2,)))[0].tolist() == [-7, 30_000]
    assert stored(np.array([2.7, -2.7, 0.0]), ("i2", (3,)))[0].tolist() == [2, -2, 0]
    assert stored(np.array([255, 0]), ("u1", (2,)))[0].tolist() == [255, 0]
    assert stored([[1.5, 2]], ("i8", (2,)))[0].tolist() == [1, 2]
    assert stored(np.zeros(0), ("u1", (0,)))[0].size == 0
    assert stored(np.array([True, False]), ("f4", (2,)))[0].tolist() == [1, 0]
    assert stored(np.array(["ab", "c"], "U7"), ("U2", (2,)))[0].tolist() == ["ab", "c"]
    assert stored(np.array(["2020-01-02", "NaT"], "M8[ns]"), ("M8[D]", (2,)))[0].astype(str).tolist()[0] == "2020-01-02"
    assert stored(np.zeros((0, 3)), ("f4", (0, 3)))[0].shape == (0, 3)
    assert stored(np.zeros(0, "i8"), ("i2", (0,)))[0].size == 0


INTEGERS = st.sampled_from(["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i2", ">u4"])


@given(data=st.data(), source=INTEGERS, target=INTEGERS)
def test_integers_arrive_unchanged_or_not_at_all(data, source, target):
    array = data.draw(hnp.arrays(source, st.integers(0, 5)))
    limits = np.iinfo(target)
    fits = all(limits.min <= value <= limits.max for value in array.tolist())
    try:
        (found,) = stored(array, (target, array.shape))
    except OverflowError:
        assert not fits
    else:
        assert fits and found.tolist() == array.tolist()


@given(data=st.data(), source=st.sampled_from(["f2", "f4", "f8", ">f4"]), target=INTEGERS)
def test_floats_for_integers_lose_what_is_behind_the_point_as_by_assignment(data, source, target):
    array = data.draw(hnp.arrays(source, st.integers(0, 5)))
    limits = np.iinfo(target)
    fits = all(math.isfinite(value) and limits.min <= math.trunc(value) <= limits.max for value in array.tolist())
    try:
        (found,) = stored(array, (target, array.shape))
    except OverflowError:
        assert not fits
    else:
        original = np.zeros(array.shape, target)
        original[...] = array
        assert fits and found.tolist() == original.tolist() == list(map(math.trunc, array.tolist()))


FLOATS = st.sampled_from(["f2", "f4", "f8", ">f4", "c8", "c16"])


@given(data=st.data(), source=FLOATS, target=FLOATS)
def test_floats_are_rounded_and_never_become_infinite(data, source, target):
    array = data.draw(hnp.arrays(source, st.integers(0, 5)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = array.astype(target)
    try:
        (found,) = stored(array, (target, array.shape))
    except OverflowError:
        assert finite_parts(expected) != finite_parts(array)
    except TypeError:
        assert np.dtype(source).kind == "c" and np.dtype(target).kind == "f"
    else:
        assert np.array_equal(found, expected, equal_nan=True)
        assert finite_parts(found) == finite_parts(array)


def finite_parts(array):
    """Which parts are finite; a complex number may be infinite in one of them before, and in both afterwards."""
    return [np.isfinite(part).tolist() for part in (array.real, array.imag)]


def test_a_layout_is_described_by_two_lists_of_one_length():
    layout = Layout.of("x", ["f4", np.int16], [(2, 3), 5])
    assert layout.shapes == ((2, 3), (5,)) and layout.nbytes == 128
    assert layout.dtypes == (np.dtype("f4"), np.dtype("i2"))
    with pytest.raises(ValueError, match="2 dtypes for 1 shapes"):
        Layout.of("x", ["f4", "f4"], [(2, 3)])
    for dtypes, shapes in (("f4", [(3,)]), (np.float32, [(3,)]), (["f4"], 3)):
        with pytest.raises(TypeError, match="list with one entry for each"):
            Layout.of("x", dtypes, shapes)
