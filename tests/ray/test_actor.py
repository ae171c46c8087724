"""What runs in an actor, without one."""

import threading

import numpy as np
import pytest

from dataflow.ray.actor import ActorTaskReader, Chunking, ReplyBuffer
from dataflow.ray.object_store_codec import ObjectStoreDecoder, ObjectStoreEncoder
from dataflow.ray.push_queue import PushedTaskQueue
from dataflow.transport.message_layout import NO_ROOM
from dataflow.transport.messages import Kind, Message
from dataflow.transport.task_queue import WHOLE
from tests.ray.output_buffers import OutputBufferFlow
from tests.support.waits import LIMIT


def data(count, nbytes=0):
    return Message(Kind.DATA, 0, count, nbytes, [bytes(nbytes)])


# -- replies -----------------------------------------------------------------------------------------------------------


def test_a_reply_holds_what_was_sent_since_the_last_one_in_order():
    replies = ReplyBuffer(Chunking(100, 1000, 0))
    sent = [data(k) for k in range(5)]
    for message in sent[:3]:
        replies.send(message)
    first = replies.receive(0)
    for message in sent[3:]:
        replies.send(message)
    assert [*first, *replies.receive(0)] == sent
    assert replies.receive(0) == []


@pytest.mark.parametrize(
    ("chunking", "message"), [(Chunking(10, 10**9, None), data(5)), (Chunking(10**9, 10, None), data(1, 5))]
)
def test_a_reply_waits_until_it_is_full_and_takes_no_more(chunking, message):
    replies = ReplyBuffer(chunking)
    found = []
    taking = threading.Thread(target=lambda: found.append(replies.receive(LIMIT)))
    taking.start()
    replies.send(message)
    assert taking.is_alive()
    for _ in range(2):
        replies.send(message)
    taking.join(LIMIT)
    assert [len(reply) for reply in found] in ([2], [3])  # the third may have come while the second woke us
    replies.close()
    assert len(found[0]) + len(replies.receive(0)) == 3


@pytest.mark.parametrize("nothing_more", ["a task is finished", "an exception", "the end"])
def test_a_reply_does_not_wait_for_what_will_not_come(nothing_more):
    replies = ReplyBuffer(Chunking(10**9, 10**9, None))
    replies.send(data(1))
    if nothing_more == "a task is finished":
        replies.make_complete()
    elif nothing_more == "an exception":
        replies.send(Message(Kind.ERROR, 0))
    else:
        replies.close()
    assert replies.receive(LIMIT)[0] == data(1)


def test_a_reply_is_empty_after_some_time_with_nothing():
    assert ReplyBuffer(Chunking(1, 1, None)).receive(0.01) == []


# -- tasks -------------------------------------------------------------------------------------------------------------


def task(tasks, number, values):
    encoder = ObjectStoreEncoder()
    tasks.add(number, 10 * number, encoder.join([encoder.encode(value) for value in values])[0], 0, WHOLE)


def test_tasks_are_taken_in_order_and_those_forgotten_are_not():
    tasks = ActorTaskReader()
    for number in range(4):
        task(tasks, number, [number])
    assert tasks.receive().datapoints == [0]
    assert tasks.is_wanted()
    tasks.discard(3)
    assert not tasks.is_wanted()
    taken = tasks.receive()
    assert (taken.number, taken.first, taken.datapoints) == (3, 30, [3])
    tasks.stop()
    assert tasks.receive() is None


def test_who_waits_for_a_task_is_told_to_stop():
    tasks = ActorTaskReader()
    found = []
    waiting = threading.Thread(target=lambda: found.append(tasks.receive()))
    waiting.start()
    tasks.stop()
    waiting.join(LIMIT)
    assert found == [None]


class FakeActor:
    """An actor that only notes its calls."""

    is_over = False

    def __init__(self):
        self.calls = []
        self.tasks = []
        self.is_ready = True

    @property
    def takes_tasks(self):
        return self.is_ready and not self.is_over

    def call(self, method, *args):
        self.calls.append((method, args[0]))


def queue_for(*actors, ahead=2, max_bytes=10**6):
    return PushedTaskQueue(dict(enumerate(actors)), ahead, max_bytes)


def put(task_queue, *numbers):
    return [
        task_queue.put(number, number, [task_queue.encode(number, is_only_task=True)], is_only_task=False)
        for number in numbers
    ]


def test_tasks_go_to_who_has_the_fewest_and_no_more_than_so_many():
    one, other = FakeActor(), FakeActor()
    task_queue = queue_for(one, other)
    slots = put(task_queue, *range(6))
    assert one.calls == [("add_task", 0), ("add_task", 2)] and other.calls == [("add_task", 1), ("add_task", 3)]
    assert [queued.taken_by for queued in slots] == [0, 1, None, None, None, None]  # at work on the first of theirs
    slots[1].discard()
    task_queue.pump()
    assert other.calls[-1] == ("add_task", 4) and slots[3].taken_by == 1


def test_nobody_is_given_a_task_before_it_was_heard_of():
    actor = FakeActor()
    actor.is_ready = False
    task_queue = queue_for(actor)
    put(task_queue, 0)
    assert actor.calls == []
    actor.is_ready = True
    task_queue.pump()
    assert actor.calls == [("add_task", 0)]


def test_what_a_lost_worker_had_is_dealt_again_before_all_others_and_nothing_else_is():
    one, other = FakeActor(), FakeActor()
    task_queue = queue_for(one, other)
    slots = put(task_queue, *range(6))
    one.is_over = True
    for queued in slots:
        queued.put_back(0)
    assert other.calls == [("add_task", 1), ("add_task", 3)]
    slots[1].discard(), slots[3].discard()
    task_queue.pump()
    assert other.calls[2:] == [("add_task", 0), ("add_task", 2)]


def test_of_two_workers_that_are_lost_at_once_the_second_keeps_its_tasks_until_it_is_judged():
    """It may have died in any of them."""
    one, other, third = FakeActor(), FakeActor(), FakeActor()
    third.is_ready = False
    task_queue = queue_for(one, other, third)
    slots = put(task_queue, *range(6))
    one.is_over = other.is_over = third.is_ready = True
    for worker in (0, 1):
        assert slots[3].may_have_begun(1)
        for queued in slots:
            queued.put_back(worker)
    assert not slots[3].may_have_begun(1) and third.calls[0] == ("add_task", 0)


def test_a_part_of_a_task_is_the_only_task_of_its_worker():
    """So that a worker that dies has died in it."""
    one, other = FakeActor(), FakeActor()
    task_queue = queue_for(one, other)
    slots = put(task_queue, 0, 1, 2, 3)
    assert slots[2].may_have_begun(0) and not slots[0].may_have_begun(0) and not slots[2].may_have_begun(1)
    slots[0].ask(4, 1, 2)  # the worker has task 2, too
    assert one.calls == [("add_task", 0), ("add_task", 2)]
    slots[2].discard()
    task_queue.pump()
    put(task_queue, 5)
    assert one.calls[2:] == [("add_task", 4)] and slots[0].taken_by == 0
    slots[0].discard()
    task_queue.pump()
    assert one.calls[3:] == [("add_task", 5)]


def test_tasks_are_bounded_in_bytes_unless_one_is_alone():
    actor = FakeActor()
    task_queue = queue_for(actor, max_bytes=1000)
    (queued,) = [task_queue.put(0, 0, [task_queue.encode(bytes(2000), is_only_task=True)], is_only_task=True)]
    assert task_queue.encode(1, is_only_task=False) is NO_ROOM
    assert task_queue.encode(1, is_only_task=True) is not NO_ROOM
    queued.discard()
    assert task_queue.encode(1, is_only_task=False) is not NO_ROOM


def test_workers_are_told_once_what_is_wanted_no_more():
    actor = FakeActor()
    task_queue = queue_for(actor)
    for queued in put(task_queue, 0, 1, 2):
        queued.discard()
    task_queue.drop()
    task_queue.drop()
    assert actor.calls == [("add_task", 0), ("add_task", 1), ("discard_tasks", 3)]
    put(task_queue, 3)
    assert actor.calls[-1] == ("add_task", 3)


# -- arrays ------------------------------------------------------------------------------------------------------------


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
