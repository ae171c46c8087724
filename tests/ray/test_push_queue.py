"""The task queue of actors: who is pushed which task, when, and what becomes of it if its worker is lost."""

from dataflow.ray.push_queue import PushedTaskQueue
from dataflow.transport.message_layout import NO_ROOM


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
