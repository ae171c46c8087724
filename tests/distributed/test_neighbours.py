"""Large arrays from actors on the consumer's own machine."""

import gc
import os

import numpy as np
import pytest

from dataflow.descriptors import shared_memory_file
from dataflow.distributed import neighbours
from dataflow.distributed.crates import CrateCodec
from dataflow.distributed.neighbours import NeighbourCodec, codec_for_actors
from dataflow.transport.blocks import LARGE_BYTES
from dataflow.transport.leases import Base
from dataflow.transport.messages import Kind, Message
from tests.distributed.drafts import Drafts

pytestmark = pytest.mark.skipif(not neighbours.machine(), reason="no process can open what another has open")
LARGE = 10_000  # float64


@pytest.fixture
def codec():
    codec = NeighbourCodec(2, 1 << 20, copy=False)
    yield codec
    codec.close()
    gc.collect()


def large(value):
    return np.full(LARGE, float(value))


def sent(encoder, *datapoints):
    return encoder.join([encoder.encode(dp) for dp in datapoints])[0]


def travels(body):
    """Whether there are arrays in the message itself."""
    return any(len(frame) >= LARGE_BYTES for frame in body if not isinstance(frame, range))


def is_in_place(array):
    return type(array.base) is Base


def test_an_array_does_not_travel_and_counts_as_if_it_did(codec):
    encoder, decoder = codec.port(1).open_encoder(), codec.open_decoder()
    small = np.full(1000, 7.0)
    body = sent(encoder, [1, large(1), small], [2, large(2), small])
    assert not travels(body)
    assert Message(Kind.DATA, 1, 2, 0, body).queued >= 2 * (large(0).nbytes + small.nbytes)
    found = decoder.decode(1, body)
    assert [(dp[0], dp[1].tolist(), dp[2].tolist()) for dp in found] == [
        (k, large(k).tolist(), small.tolist()) for k in (1, 2)
    ]
    assert is_in_place(found[0][1])


def test_many_small_arrays_do_not_travel_either(codec):
    encoder, decoder = codec.port(0).open_encoder(), codec.open_decoder()
    body = sent(encoder, *([np.full(1000, k)] for k in range(20)))
    assert not travels(body)
    assert [int(dp[0].sum()) for dp in decoder.decode(0, body)] == [1000 * k for k in range(20)]


@pytest.mark.parametrize("copied", [False, True])
def test_arrays_may_be_written_to_exactly_if_they_could_be_from_anywhere(copied):
    codec = NeighbourCodec(1, 1 << 20, copy=copied)
    decoder = codec.open_decoder()
    for encoder in (codec.port(0).open_encoder(), CrateCodec(copy=copied).port(0).open_encoder()):
        ((array,),) = decoder.decode(0, sent(encoder, [large(3)]))
        assert array.flags.writeable == copied
    codec.close()


def test_what_finds_no_room_travels_in_the_same_message(codec):
    encoder, decoder = codec.port(0).open_encoder(), codec.open_decoder()
    body = sent(encoder, *([k, large(k), np.full(100, k)] for k in range(30)))
    assert travels(body)
    found = decoder.decode(0, body)
    assert [(k, array.tolist(), small.tolist()) for k, array, small in found] == [
        (k, large(k).tolist(), [k] * 100) for k in range(30)
    ]
    assert {is_in_place(array) for _, array, _ in found} == {True, False}
    assert Message(Kind.DATA, 0, 30, 0, body).queued >= 30 * large(0).nbytes
    del found, body
    assert not travels(sent(encoder, [large(1)]))  # there is room again


def test_what_is_too_large_for_the_arena_travels(codec):
    encoder, decoder = codec.port(0).open_encoder(), codec.open_decoder()
    huge = np.arange(1 << 18)
    ((found,),) = decoder.decode(0, sent(encoder, [huge]))
    assert (found == huge).all() and not is_in_place(found)
    array = encoder.allocate((1 << 18,), np.dtype(float))
    assert array.shape == (1 << 18,)


def test_what_nobody_else_can_reach_is_sent_without_a_copy(codec):
    encoder, decoder = codec.port(0).open_encoder(), codec.open_decoder()
    drafts = Drafts(encoder)
    gave_back = encoder._crate._arena._touched
    drafts.put(keep=False)
    assert len(gave_back) == 1  # blocks that were ever written to
    drafts.put(keep=True)
    assert len(gave_back) == 3
    drafts.finish()
    drafts.kept[0][...] = 2
    assert [float(decoder.decode(0, body)[0][0].sum()) for body in drafts.bodies] == [5000, 5000]
    drafts.kept.clear()


def test_memory_is_used_again_when_nobody_reads_it_any_more_and_not_before(codec):
    encoder, decoder = codec.port(0).open_encoder(), codec.open_decoder()

    def arrived(value):
        return decoder.decode(0, sent(encoder, [large(value)]))[0][0]

    first = arrived(1)
    address, view = first.ctypes.data, first[100:200]
    del first
    assert arrived(2).ctypes.data != address
    assert (view == 1).all()
    del view
    assert arrived(3).ctypes.data == address


def test_arrays_outlive_the_codec(codec):
    encoder, decoder = codec.port(0).open_encoder(), codec.open_decoder()
    ((array,),) = decoder.decode(0, sent(encoder, [large(5)]))
    codec.close()
    sent(encoder, [large(6)])  # it may not know yet
    assert (array == 5).all()


def test_nothing_of_a_lost_worker_is_given_to_its_successor(codec):
    lost, decoder = codec.port(0).open_encoder(), codec.open_decoder()
    ((array,),) = decoder.decode(0, sent(lost, [large(1)]))
    codec.renew(0)
    successor = codec.port(0).open_encoder()
    body = sent(successor, [large(2)])
    for _ in range(3):
        sent(lost, [large(9)])  # it lives on
    ((found,),) = decoder.decode(0, body)
    assert is_in_place(found) and (found == 2).all() and (array == 1).all()


# -- who cannot reach it -----------------------------------------------------------------------------------------------


def all_travel(encoder, decoder):
    body = sent(encoder, [1, large(1)])
    ((_, array),) = decoder.decode(0, body)
    assert (array == 1).all()
    return travels(body)


def test_actors_on_other_machines_send_everything(codec, monkeypatch):
    port, decoder = codec.port(0), codec.open_decoder()
    assert not all_travel(port.open_encoder(), decoder)
    monkeypatch.setattr(neighbours, "machine", lambda: "another")
    assert all_travel(port.open_encoder(), decoder)


def test_so_do_those_that_may_not_open_it(codec, monkeypatch):
    port, decoder = codec.port(0), codec.open_decoder()

    def refuse(*args):
        raise PermissionError

    monkeypatch.setattr(neighbours, "_opened", refuse)
    assert all_travel(port.open_encoder(), decoder)


def test_another_file_with_the_same_number_is_not_opened(codec, monkeypatch):
    port, decoder = codec.port(0), codec.open_decoder()
    other = shared_memory_file("other", 1 << 20)
    for descriptor in codec._arenas[0][0].descriptors():
        os.dup2(other.fd, descriptor.fd)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", lambda *args: pytest.fail("it was opened"))
        encoder = port.open_encoder()
    assert all_travel(encoder, decoder)
    other.close()


def test_where_nobody_can_no_memory_is_made(monkeypatch):
    monkeypatch.setattr(neighbours, "machine", lambda: "")
    assert type(codec_for_actors(3, 1 << 20, copy=False)) is CrateCodec


def test_an_end_that_nobody_holds_leaves_nothing_open(codec):
    before = len(os.listdir("/proc/self/fd"))
    encoder = codec.port(0).open_encoder()
    assert len(os.listdir("/proc/self/fd")) > before
    del encoder
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
