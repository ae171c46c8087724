"""The codec for an object store: a large array is a buffer of its message, and nobody can change it afterwards."""

import threading

import numpy as np
import pytest

from dataflow.ray.object_store_codec import ObjectStoreDecoder, ObjectStoreEncoder
from tests.ray.output_buffers import OutputBufferFlow


def sent(encoder, *datapoints):
    return encoder.join([encoder.encode(dp) for dp in datapoints])[0]


def test_a_large_array_is_a_buffer_of_its_message():
    encoder = ObjectStoreEncoder()
    large = np.arange(10_000)
    body = sent(encoder, [1, large], [2, large])
    assert [frame.nbytes for frame in body[5:]] == [large.nbytes] * 2
    (one, two) = ObjectStoreDecoder(copy=False).decode(0, body)
    assert (one[1] == large).all() and np.shares_memory(one[1], body[5])
    assert not np.shares_memory(ObjectStoreDecoder(copy=True).decode(0, body)[0][1], body[5])
    assert not np.shares_memory(two[1], large)


def test_many_small_arrays_are_one_buffer():
    body = sent(ObjectStoreEncoder(), *([np.full(1000, k)] for k in range(20)))
    assert len(body) == 6 and body[5].nbytes == 20 * 8000
    assert [int(dp[0].sum()) for dp in ObjectStoreDecoder(copy=False).decode(0, body)] == [1000 * k for k in range(20)]


def test_what_nobody_else_can_reach_is_sent_without_a_copy():
    flow = OutputBufferFlow(ObjectStoreEncoder())
    flow.put(keep=False)
    flow.put(keep=True)
    flow.finish()
    assert [body[5].ctypes.data == address for body, address in zip(flow.bodies, flow.addresses, strict=True)] == [
        True,
        False,
    ]
    flow.kept[0][...] = 2
    assert (ObjectStoreDecoder(copy=False).decode(0, flow.bodies[1])[0][0] == 1).all()


def test_a_datapoint_that_fails_half_way_leaves_nothing():
    encoder = ObjectStoreEncoder()
    with pytest.raises(TypeError):
        encoder.encode([np.zeros(10_000), [np.zeros(10_000), threading.Lock()]])
    encoder.encode([np.zeros(10_000)])  # and is never sent
    sent(encoder, [np.zeros(10_000)])
    assert encoder._writer._buffers == {}


def test_a_buffer_that_somebody_reads_stays_as_it_is():
    encoder = ObjectStoreEncoder()
    large = np.zeros(10_000)
    view = sent(encoder, [large])[5][100:200]
    large[...] = 1
    for _ in range(10):
        sent(encoder, [large])
    assert not view.any()
