"""Codecs: a datapoint is written at once, and comes back as it was then."""

import os
import pickle

import numpy as np
import pytest

from dataflow.errors import WorkerError, WorkerTraceback
from dataflow.transport.codec import ArrayCodec, ObjectCodec
from dataflow.transport.messages import Kind, Message


@pytest.fixture
def arrays():
    codec = ArrayCodec(1, 1 << 20)
    yield codec
    codec.close()


@pytest.fixture(params=["threads", "processes"])
def codec(request, arrays):
    return ObjectCodec() if request.param == "threads" else arrays


def through(codec, *datapoints):
    encoder = codec.port(0).open_encoder()
    body, _ = encoder.join([encoder.encode(dp) for dp in datapoints])
    return codec.open_decoder().decode(0, body)


@pytest.mark.parametrize("dp", [[1, "a"], (1, 2), {"x": b"y"}, 7, None, "text", [], [[1], {2: (3,)}]], ids=repr)
def test_a_datapoint_comes_back_equal_and_of_its_type(codec, dp):
    (copy,) = through(codec, dp)
    assert copy == dp and type(copy) is type(dp)


@pytest.mark.parametrize("dp", [[1, 2, 3], 7, "seven", None])
def test_messages_of_any_datapoints_know_what_they_hold_in_the_queue(codec, dp):
    encoder = codec.port(0).open_encoder()
    body, nbytes = encoder.join([encoder.encode(dp)] * 3)
    message = Message(Kind.DATA, 0, 3, nbytes, body)
    assert (message.queued > 0) is (codec.__class__ is ArrayCodec)  # between threads nothing is copied


def test_what_is_changed_after_the_yield_arrives_as_it_was(arrays):
    encoder = arrays.port(0).open_encoder()
    dp = [0, np.zeros(2), np.zeros(5000)]
    written = []
    for k in range(3):
        dp[0] = k
        dp[1][:] = k
        dp[2][:] = k
        written.append(encoder.encode(dp))
    copies = arrays.open_decoder().decode(0, encoder.join(written)[0])
    assert [(k, a.tolist(), set(b.tolist())) for k, a, b in copies] == [(k, [k, k], {k}) for k in range(3)]


def test_what_cannot_be_written_raises_at_once(arrays):
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        arrays.port(0).open_encoder().encode([lambda: 0])


def test_bytes_are_counted_between_processes_only(arrays):
    for codec, expected in ((ObjectCodec(), 0), (arrays, 20_000)):
        encoder = codec.port(0).open_encoder()
        for dp in ([bytes(20_000)], [np.zeros(20_000, "u1")], [np.zeros((20, 1000), "u1"), 7]):
            item = encoder.encode(dp)
            assert expected <= encoder.nbytes <= expected * 1.1
            _, nbytes = encoder.join([item, item])
            assert nbytes == 2 * encoder.nbytes


def test_between_threads_the_object_itself_travels():
    dp = [object()]
    assert through(ObjectCodec(), dp)[0] is dp
    error = ValueError("x")
    codec = ObjectCodec()
    assert codec.decode_failure(codec.encode_failure(error, "whose")) is error
    assert error.__notes__ == ["whose"]
    codec.calibrate(list)
    codec.tidy()
    codec.close()
    assert codec.allocate((2, 3), np.dtype("f4")).base is None


def test_between_processes_an_exception_travels_as_a_copy_with_its_traceback(arrays):
    encoder, decoder = arrays.port(0).open_encoder(), arrays.open_decoder()
    copy = decoder.decode_failure(encoder.encode_failure(ValueError("x"), "whose"))
    assert type(copy) is ValueError and copy.__notes__ == ["whose"]
    assert type(copy.__cause__) is WorkerTraceback
    assert type(decoder.decode_failure(encoder.encode_failure(ValueError(lambda: 0), ""))) is WorkerError


def test_every_worker_writes_into_an_arena_of_its_own():
    codec = ArrayCodec(3, 1 << 20)
    encoders = [codec.port(k).open_encoder() for k in range(3)]
    decoder = codec.open_decoder()
    bodies = [encoder.join([encoder.encode([np.full(20_000, k, "u1")])])[0] for k, encoder in enumerate(encoders)]
    assert [set(decoder.decode(k, bodies[k])[0][0].tolist()) for k in (2, 0, 1)] == [{2}, {0}, {1}]
    assert [held > 0 for held in codec.memory_limit.held()] == [True] * 3
    codec.close()


def test_closing_gives_every_descriptor_back_and_may_be_repeated():
    before = len(os.listdir("/proc/self/fd"))
    codec = ArrayCodec(4, 1 << 20)
    assert len(os.listdir("/proc/self/fd")) > before
    codec.close()
    codec.close()
    assert len(os.listdir("/proc/self/fd")) == before
