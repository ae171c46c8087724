"""What runs in an actor, without one."""

import threading

import pytest

from dataflow.ray.actor import ActorTaskReader, Chunking, ReplyBuffer
from dataflow.ray.object_store_codec import ObjectStoreEncoder
from dataflow.transport.messages import Kind, Message
from dataflow.transport.task_queue import WHOLE
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
