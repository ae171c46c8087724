"""Arguments that several nodes check alike: inputs, their order and end, dtypes, and values that pad."""

import math

import numpy as np
import pytest

from dataflow.errors import NotAddressable
from dataflow.runners.maps import MultiThreadMapData
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromGenerator
from dataflow.transforms.arguments import fits
from dataflow.transforms.batching import BatchData
from dataflow.transforms.caching import CacheData
from dataflow.transforms.joining import ConcatData, JoinData
from dataflow.transforms.padding import PadBatchData
from dataflow.transforms.repeating import RepeatedData
from dataflow.transforms.shuffling import ShuffleData


def numbers(n):
    return DataFromList([[k] for k in range(n)], shuffle=False)


@pytest.mark.parametrize("node", [JoinData, ConcatData])
def test_inputs_are_one_or_more_flows(node):
    with pytest.raises(ValueError, match="at least one"):
        node([])
    with pytest.raises(TypeError, match="DataFromList"):
        node([numbers(1), [[1]]])
    with pytest.raises(TypeError, match="a list of dataflows"):
        node(numbers(1))
    with pytest.raises(IndexError, match="empty"):
        node([numbers(0), numbers(0)])[0]


def test_an_input_without_indexes_or_end_raises():
    with pytest.raises(NotAddressable, match="ShuffleData reads its input by index, but DataFromGenerator is only"):
        ShuffleData(DataFromGenerator(lambda: iter([1])))
    with pytest.raises(ValueError, match="a pass of RepeatedData never ends"):
        ShuffleData(RepeatedData(numbers(3), -1))


def test_the_node_that_breaks_the_order_or_has_no_end_is_named_with_the_cure():
    unordered = MultiThreadMapData(numbers(3), 1, abs)
    with pytest.raises(NotAddressable, match="Pass strict=True to MultiThreadMapData, or put ShuffleData below it"):
        ShuffleData(unordered)
    with pytest.raises(NotAddressable, match=r"DataFromGenerator is only a sequence of passes\. Put ShuffleData below"):
        ShuffleData(BatchData(DataFromGenerator(lambda: iter([[1]])), 1))
    with pytest.raises(
        ValueError, match="BatchData never ends, because one of RepeatedData does not: cut it with Fixed"
    ):
        CacheData(BatchData(RepeatedData(numbers(3), -1), 2))


@pytest.mark.parametrize("node", [BatchData, PadBatchData])
def test_integers_have_the_byte_order_of_this_machine_and_others_are_refused_by_name(node):
    rows = DataFromList([[[1]], [[2]]], shuffle=False)
    (batch,) = node(rows, 2, int_dtype=np.dtype("i2").newbyteorder("S"))
    assert batch[0].dtype == np.int16 and batch[0].dtype.isnative and batch[0].tolist() == [[1], [2]]
    with pytest.raises(TypeError, match=f"^{node.__name__}: int_dtype must be an integer dtype, .* got 'f4'"):
        node(rows, 2, int_dtype="f4")


def test_what_a_dtype_can_hold_as_padding():
    assert fits(0, np.dtype("V2")) and not fits(0, np.dtype("i4,i4")) and not fits(0, np.dtype("U1"))


@pytest.mark.parametrize(
    ("dtype", "held", "not_held"),
    [
        ("u1", (0, 255, 1.0), (-1, 256, 0.5)),
        ("i1", (-128, 127), (-129, 128)),
        ("?", (0, 1, True), (2, -1, 0.5)),
        ("f2", (0.1, -65504, math.inf, math.nan), (1e5,)),
        ("c8", (1e38, -math.inf), (1e39,)),
    ],
)
def test_a_number_fits_within_the_limits_of_a_dtype(dtype, held, not_held):
    assert all(fits(value, np.dtype(dtype)) for value in held)
    assert not any(fits(value, np.dtype(dtype)) for value in not_held)
