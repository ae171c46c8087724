"""Datapoints as torch tensors: which dtype, and whose memory."""

from collections import namedtuple

import numpy as np
import pytest

from dataflow.frameworks.tensors import tensor_maker

torch = pytest.importorskip("torch")
convert = tensor_maker(torch)
Pair = namedtuple("Pair", ["x", "y"])


@pytest.mark.parametrize("dtype", ["bool", "u1", "i1", "i2", "i8", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 4)])
def test_arrays_share_their_memory_and_keep_their_dtype(dtype, shape):
    array = np.zeros(shape, dtype)
    tensor = convert(array)
    assert tensor.data_ptr() == array.ctypes.data or array.size == 0
    assert tensor.numpy().dtype == array.dtype and tuple(tensor.shape) == shape


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (5, torch.int64),
        (True, torch.bool),
        (2.5, torch.float32),
        (np.int32(5), torch.int64),
        (np.int16(5), torch.int16),
        (np.float64(2.5), torch.float64),
        (np.arange(3, dtype=np.int32), torch.int64),
        (np.arange(3, dtype=">i4"), torch.int64),
        (np.arange(3, dtype=">f8"), torch.float64),
    ],
)
def test_numbers_and_int32_become_what_torch_wants(value, dtype):
    tensor = convert(value)
    assert tensor.dtype == dtype
    assert np.array_equal(tensor.numpy(), np.asarray(value))


def test_what_torch_cannot_share_is_copied():
    array = np.arange(6.0).reshape(2, 3)
    assert convert(array[:, ::-1]).tolist() == [[2, 1, 0], [5, 4, 3]]
    array.flags.writeable = False
    tensor = convert(array)
    tensor[0, 0] = 9
    assert array[0, 0] == 0


@pytest.mark.parametrize("value", [np.zeros(3, "i1,f8")["f1"], np.zeros(3, "i1,i4")["f1"], np.zeros(3, "f8,f8")["f1"]])
def test_fields_of_records_are_copied_where_torch_cannot_read_them(value):
    value[...] = [1, 2, 3]
    assert convert(value).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (np.ma.array([1, 2], mask=[True, False]), TypeError, "a masked array would lose its mask"),
        (np.ma.masked, TypeError, "a masked array would lose its mask"),
        (np.ones(2, "g"), TypeError, "torch has no float128|torch has no longdouble"),
        (np.clongdouble(1), TypeError, "torch has no c"),
        (2**63, OverflowError, "integer 9223372036854775808 does not fit"),
        (-(2**63) - 1, OverflowError, "does not fit into an int64 tensor"),
        (1e300, OverflowError, r"number 1e\+300 would be infinite in a torch\.float32 tensor: yield a NumPy scalar"),
        (complex(1e308, 1e308), OverflowError, r"would be infinite in a torch\.complex64 tensor"),
    ],
)
@pytest.mark.skipif(np.dtype("g").itemsize == 8, reason="no long doubles here")
def test_what_a_tensor_cannot_hold_is_refused(value, error, message):
    for dp in (value, [1, {"x": (value,)}]):
        with pytest.raises(error, match=message):
            convert(dp)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 3.4e38, float("inf"), float("nan"), complex(0, float("inf"))])
def test_numbers_at_the_limits_are_tensors(value):
    assert np.allclose(convert(value).item(), value, equal_nan=True)


def test_structure_and_everything_else_stay():
    text, day, records = np.array(["a"]), np.datetime64("2020-01-01"), np.zeros(2, "i4,f8")
    dp = {"a": [1, (2, "b")], "p": Pair(3, None), "text": text, "bytes": b"c", "day": day, "records": records}
    out = convert(dp)
    assert out["a"][0].item() == 1 and type(out["a"][1]) is tuple and out["a"][1][1] == "b"
    assert type(out["p"]) is Pair and out["p"].x.item() == 3 and out["p"].y is None
    assert out["text"] is text and out["bytes"] == b"c" and out["day"] is day and out["records"] is records
    tensor = torch.ones(2)
    assert convert([tensor])[0] is tensor
