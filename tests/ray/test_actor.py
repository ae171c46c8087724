"""What runs in an actor, without one."""

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from dataflow.ray.actor import ActorTaskReader, Chunking, ReplyBuffer, WorkerActor
from dataflow.ray.object_store_codec import ObjectStoreEncoder
from dataflow.system.pickling import dumps
from dataflow.system.worker_info import worker_info_of
from dataflow.transport.messages import Kind, Message
from dataflow.transport.task_queue import WHOLE
from tests.support.waits import LIMIT, wait_until


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


# -- the actor ---------------------------------------------------------------------------------------------------------


@dataclass
class NeverRuns:
    """As much of a `WorkerSpec` as is needed before it runs."""

    info: Any = None
    credit: Any = None
    task_queue: Any = None
    item_timeout: Any = None
    seed: Any = None

    def __call__(self):
        raise AssertionError("it runs")


def test_an_actor_that_was_told_to_stop_before_its_work_begins_does_not_run_it():
    actor = WorkerActor()
    actor.prepare = lambda spec: spec
    stopping = threading.Thread(target=actor.stop)
    stopping.start()
    wait_until(lambda: actor._is_stopped, LIMIT, "it is not told")
    actor.work(dumps(NeverRuns(worker_info_of(0, 1))))
    stopping.join(LIMIT)
    assert not stopping.is_alive()
