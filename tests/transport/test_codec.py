"""Codecs: a datapoint is written at once, and comes back as it was then."""

import numpy as np
import pytest

from dataflow.errors import WorkerError, WorkerTraceback
from dataflow.transport.codec import ObjectCodec, PickleCodec


def through(codec, *datapoints):
    return codec.decode(codec.join([codec.encode(dp) for dp in datapoints]))


@pytest.mark.parametrize("dp", [[1, "a"], (1, 2), {"x": b"y"}, 7, None, [], [[1], {2: (3,)}]], ids=repr)
@pytest.mark.parametrize("codec", [ObjectCodec(), PickleCodec()], ids=lambda codec: type(codec).__name__)
def test_a_datapoint_comes_back_equal_and_of_its_type(codec, dp):
    (copy,) = through(codec, dp)
    assert copy == dp and type(copy) is type(dp)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.arange(6).reshape(2, 3).T,
        np.arange(20)[::3],
        np.zeros((0, 3), np.float32),
        np.array(5, np.int8),
        np.arange(3, dtype=">i4"),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        np.ma.masked_array([1, 2], [True, False]),
        np.asfortranarray(np.ones((3, 4))),
        np.array([{}, None], dtype=object),
    ],
    ids=lambda a: f"{a.dtype.str if not a.dtype.fields else 'struct'}-{a.shape}",
)
def test_every_kind_of_array_comes_back_as_it_was(array):
    ((copy,),) = through(PickleCodec(), [array])
    assert type(copy) is type(array)
    assert (copy.dtype, copy.shape, copy.tolist()) == (array.dtype, array.shape, array.tolist())
    assert copy.flags.writeable


def test_what_is_changed_after_the_yield_arrives_as_it_was():
    codec = PickleCodec()
    dp = [0, np.zeros(2)]
    written = []
    for k in range(3):
        dp[0] = k
        dp[1][:] = k
        written.append(codec.encode(dp))
    assert [(k, a.tolist()) for k, a in codec.decode(codec.join(written))] == [(k, [k, k]) for k in range(3)]


def test_an_array_twice_in_a_datapoint_stays_one_and_two_datapoints_share_none():
    array = np.zeros(3)
    first, second = through(PickleCodec(), [array, array], [array, array])
    assert first[0] is first[1] and second[0] is second[1]
    first[0][:] = 1
    assert second[0].tolist() == [0, 0, 0]


def test_what_cannot_be_written_raises_at_once():
    with pytest.raises(Exception, match="lambda"):
        PickleCodec().encode([lambda: 0])


def test_bytes_are_counted_between_processes_only():
    assert PickleCodec().nbytes(PickleCodec().encode([bytes(1000)])) >= 1000
    assert ObjectCodec().nbytes([bytes(1000)]) == 0


def test_between_threads_the_object_itself_travels():
    dp = [object()]
    assert through(ObjectCodec(), dp)[0] is dp
    error = ValueError("x")
    codec = ObjectCodec()
    assert codec.decode_failure(codec.encode_failure(error, "whose")) is error
    assert error.__notes__ == ["whose"]


def test_between_processes_an_exception_travels_as_a_copy_with_its_traceback():
    codec = PickleCodec()
    copy = codec.decode_failure(codec.encode_failure(ValueError("x"), "whose"))
    assert type(copy) is ValueError and copy.__notes__ == ["whose"]
    assert type(copy.__cause__) is WorkerTraceback
    assert type(codec.decode_failure(codec.encode_failure(ValueError(lambda: 0), ""))) is WorkerError
