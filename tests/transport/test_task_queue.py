"""Task queues: an idle worker takes the next task; each task runs at least once."""

import os
import queue
import threading
from array import array

import numpy as np
import pytest

from dataflow.transport import shared_task_queue
from dataflow.transport.message_layout import NO_ROOM
from dataflow.transport.shared_task_queue import SharedTaskQueue
from dataflow.transport.task_queue import ThreadTaskQueue
from tests.support.waits import LIMIT, wait_until

MAKE = {"thread": ThreadTaskQueue, "shared": lambda: SharedTaskQueue(1 << 20)}


class Stage:
    """An open task queue, and the task readers of two workers, all in this process."""

    def __init__(self, kind):
        self.task_queue = MAKE[kind]()
        self.readers = [self.task_queue.port(worker).open() for worker in range(2)]
        self.task_queue.open()

    def put(self, number, *datapoints, first=0):
        return self.task_queue.put(
            number, first, [self.task_queue.encode(dp, is_only_task=False) for dp in datapoints], is_only_task=False
        )

    def receive(self, worker=0):
        """The next task; fails if there is none."""
        found = queue.SimpleQueue()
        thread = threading.Thread(target=lambda: found.put(self.readers[worker].receive()), daemon=True)
        thread.start()
        return found.get(timeout=LIMIT)

    def tokens(self):
        """How many are in the pipe."""
        import array
        import fcntl
        import termios

        size = array.array("i", [0])
        fcntl.ioctl(self.task_queue._read.fd, termios.FIONREAD, size)
        return size[0] // 16


@pytest.fixture(params=MAKE)
def kind(request):
    return request.param


@pytest.fixture
def stage(kind):
    stage = Stage(kind)
    yield stage
    stage.task_queue.close()
    vars(stage).clear()  # pytest keeps the stage, and with it the memory


def test_tasks_are_taken_in_order_with_their_datapoints(stage):
    tasks = [stage.put(k, [k, "a"], {"x": np.arange(k)}, first=10 * k) for k in range(3)]
    assert [queued.taken_by for queued in tasks] == [None] * 3
    for k in range(3):
        task = stage.receive(k % 2)
        assert (task.number, task.first) == (k, 10 * k)
        assert repr(list(task.datapoints)) == repr([[k, "a"], {"x": np.arange(k)}])
        assert tasks[k].taken_by == k % 2
        assert stage.readers[k % 2].is_wanted()
        tasks[k].discard()
        assert not stage.readers[k % 2].is_wanted()


def test_an_idle_worker_waits_for_the_next_task_or_the_end(stage):
    found = queue.SimpleQueue()

    def work():
        while (task := stage.readers[0].receive()) is not None:
            found.put(task.number)
        found.put("end")

    thread = threading.Thread(target=work)
    thread.start()
    stage.put(7, [1])
    assert found.get(timeout=LIMIT) == 7
    stage.task_queue.stop()
    assert found.get(timeout=LIMIT) == "end"
    thread.join(LIMIT)
    if isinstance(stage.task_queue, ThreadTaskQueue):
        assert stage.receive(1) is None  # every worker receives it


def test_the_task_that_a_worker_has_taken_last_is_known(stage):
    first, second = stage.put(1, [0], [1]), stage.put(2, ["x"])
    assert [stage.task_queue.last_taken(worker) for worker in (0, 1)] == [None, None]
    stage.receive(0)
    assert [stage.task_queue.last_taken(worker) for worker in (0, 1)] == [1, None]
    first.ask(7, 1, 2)
    stage.receive(0)
    stage.receive(0)
    assert (first.taken_by, second.taken_by, stage.task_queue.last_taken(0)) == (0, 0, 2)


def test_what_was_put_back_is_taken_again_as_it_was(stage):
    queued = stage.put(1, [np.arange(20_000)])
    task = stage.receive(0)
    if stage.task_queue.__class__ is SharedTaskQueue:
        task.datapoints[0][0][:] = -1  # the worker's own
    queued.put_back()
    assert queued.taken_by is None
    again = stage.receive(1)
    assert again.number == 1 and queued.taken_by == 1
    if stage.task_queue.__class__ is SharedTaskQueue:
        assert (again.datapoints[0][0] == np.arange(20_000)).all()


def test_a_second_token_of_a_task_that_was_taken_is_dropped(stage):
    first = stage.put(1, [1])
    first.put_back()  # as after a death: it is unknown whether the dead worker had read the token
    stage.put(2, [2])
    assert stage.receive(0).number == 1
    assert stage.receive(0).number == 2


def test_what_was_discarded_is_not_taken(stage):
    first = stage.put(1, [1])
    first.discard()
    stage.put(2, [2])
    assert stage.receive(0).number == 2


def test_a_part_that_is_asked_for_comes_first_and_under_its_own_number_only(stage):
    first = stage.put(1, [0], [1], [2], [3], first=10)
    stage.put(2, ["x"])
    task = stage.receive(0)
    assert task.number == 1 and stage.readers[0].is_wanted()
    first.ask(7, 1, 3)
    assert not stage.readers[0].is_wanted() and first.taken_by is None
    part = stage.receive(1)
    assert (part.number, part.first, part.start, part.stop) == (7, 10, 1, 3)
    assert list(part.datapoints) == [[0], [1], [2], [3]] and first.taken_by == 1
    assert stage.receive(1).number == 2  # whose token was read before that of the part
    first.discard()
    stage.put(3, [3])
    assert stage.receive(0).number == 3


def test_a_reader_that_keeps_a_token_has_a_turn_until_it_has_used_it():
    stage = Stage("shared")
    first = stage.put(1, [0], [1])
    stage.put(2, ["x"])
    stage.receive(0)
    first.ask(7, 0, 1)
    stage.receive(1)
    stage.task_queue.let_take(0)
    assert stage.readers[1].may_take() and stage.readers[1].wait_until_may_take()
    assert stage.receive(1).number == 2
    assert not stage.readers[1].may_take()
    stage.task_queue.close()


# -- between processes -------------------------------------------------------------------------------------------------


def test_memory_that_holds_another_task_by_now_is_not_taken_for_the_first():
    stage = Stage("shared")
    stage.put(1, [1]).discard()
    queued = stage.put(2, [2])  # at the same place: the lowest free block
    task = stage.receive(0)  # finds the token of the first one before
    assert (task.number, task.datapoints) == (2, [[2]])
    assert queued.taken_by == 0
    stage.task_queue.close()


def test_memory_that_holds_an_array_of_the_number_of_a_task_is_not_taken_for_it():
    stage = Stage("shared")
    number = 1 << 12
    small, large = (stage.put(number + k, [np.zeros(20_000)]) for k in range(2))
    small.discard()
    large.discard()
    stage.put(2, [np.full(60_000, number)])  # over both places, whose tokens are still in the pipe
    task = stage.receive(0)
    assert task.number == 2 and (task.datapoints[0][0] == number).all()
    stage.task_queue.close()


@pytest.mark.parametrize("when", ["after the frames", "after the arrays"])
def test_a_task_that_is_discarded_while_it_is_copied_is_thrown_away(when, monkeypatch):
    stage = Stage("shared")
    queued = stage.put(1, [np.arange(20_000)])
    reader = stage.readers[0]
    if when == "after the frames":
        copy = reader._frames
        monkeypatch.setattr(reader, "_frames", lambda *args: (copy(*args), queued.discard(), stage.put(2, [2]))[0])
    else:
        decode = reader._decoder.decode
        monkeypatch.setattr(
            reader._decoder, "decode", lambda *args: (decode(*args), queued.discard(), stage.put(2, [2]))[0]
        )
    found = queue.SimpleQueue()
    threading.Thread(target=lambda: found.put(reader.receive()), daemon=True).start()
    wait_until(lambda: queued._blocks == (), LIMIT, "nothing was discarded")
    monkeypatch.undo()
    assert found.get(timeout=LIMIT).number == 2
    stage.task_queue.close()


def test_a_token_that_went_with_its_worker_is_written_once_more():
    stage = Stage("shared")
    queued = stage.put(1, [1])
    os.read(stage.task_queue._read.fd, 16)  # a worker reads it, and is killed before it writes its number
    assert queued.taken_by is None
    queued.put_back()
    assert stage.receive(1).number == 1
    stage.task_queue.close()


def test_all_memory_is_free_when_all_is_done():
    stage = Stage("shared")
    tasks = [stage.put(k, [np.full(30_000, k), np.zeros(9), "text"]) for k in range(3)]
    in_use = lambda: sum(stage.task_queue.writer.memory.statuses[:])  # noqa: E731
    assert in_use() >= 6
    for k, queued in enumerate(tasks):
        stage.receive(k % 2)
        queued.discard()
    stage.task_queue.encode([np.zeros(50_000)], is_only_task=False)
    stage.task_queue.drop()
    assert in_use() == 0
    stage.task_queue.close()


def test_there_is_no_room_for_more_than_the_share_unless_it_is_alone():
    stage = Stage("shared")
    stage.put(1, [np.zeros(700_000, np.uint8)])
    assert stage.task_queue.encode([np.zeros(700_000, np.uint8)], is_only_task=False) is NO_ROOM
    large = stage.task_queue.encode([np.zeros(3_000_000, np.uint8)], is_only_task=True)
    assert large is not NO_ROOM
    stage.task_queue.put(2, 0, [large], is_only_task=True)
    assert [stage.receive(0).number, stage.receive(1).number] == [1, 2]
    stage.task_queue.close()


def test_more_tokens_than_a_pipe_holds_are_written_as_there_is_room():
    stage = Stage("shared")
    tasks = [stage.put(k, k) for k in range(50)]
    for _ in range(150):
        for queued in tasks:
            queued.put_back()
    assert stage.tokens() * 16 <= 65536
    assert stage.task_queue._tokens
    seen = {stage.receive(0).number for _ in range(50)}
    assert seen == set(range(50))
    assert stage.put(99, 99) is not None
    for queued in tasks:
        queued.discard()
    stage.task_queue.stop()  # what is left of the tokens is dropped
    stage.task_queue.close()


def test_a_task_queue_that_was_never_opened_can_be_closed():
    for make in MAKE.values():
        task_queue = make()
        task_queue.close()
        task_queue.close()


def test_only_the_first_workers_have_a_turn_if_there_are_fewer_turns(stage):
    assert all(reader.may_take() for reader in stage.readers)
    stage.task_queue.let_take(1)
    assert [reader.may_take() for reader in stage.readers] == [True, False]
    stage.put(0, "a")
    assert stage.receive().datapoints[0] == "a"


def test_workers_see_whether_there_are_no_tasks_until_results_are_taken(stage):
    for is_full in (True, False):
        stage.task_queue.set_full(is_full)
        assert [reader.is_full() for reader in stage.readers] == [is_full] * 2


@pytest.mark.parametrize("how", ["let_take", "stop"])
def test_a_worker_without_a_turn_waits_until_it_has_one_or_there_are_no_more_tasks(stage, how):
    stage.task_queue.let_take(1)
    stage.put(0, "a")
    found = []
    thread = threading.Thread(target=lambda: found.append(stage.readers[1].wait_until_may_take()), daemon=True)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()  # a task does not end its wait
    if how == "stop":
        assert stage.receive().number == 0
        stage.task_queue.stop()
    else:
        stage.task_queue.let_take(2)
    thread.join(LIMIT)
    assert found == [how == "let_take"]
    if how == "stop":
        assert stage.receive(worker=1) is None


def test_a_queue_that_was_closed_does_nothing_more():
    stage = Stage("shared")
    queued = stage.put(1, [np.zeros(20_000)])
    task_queue = stage.task_queue
    task_queue.close()
    queued.discard()
    queued.ask(2, 0, 1)
    task_queue.drop()
    task_queue.pump()


def test_a_datapoint_that_is_larger_than_any_may_be_is_refused():
    task_queue = SharedTaskQueue(1 << 20, 1 << 20)
    task_queue.open()
    with pytest.raises(MemoryError, match="a datapoint for a worker has more than"):
        task_queue.encode([np.zeros(3 << 20, np.uint8)], is_only_task=True)
    task_queue.close()


def test_lengths_that_another_task_has_left_are_not_read():
    words = memoryview(array("Q", [1, 0, 0, 0, 1, 1 << 40, 7]))
    assert shared_task_queue._SharedTaskReader._frames(words, 0) == []
    words[5] = 8
    assert [frame.tobytes() for frame in shared_task_queue._SharedTaskReader._frames(words, 0)] == [b"\7" + bytes(7)]


def test_large_bytes_come_out_of_their_block():
    stage = Stage("shared")
    sent = [b"x" * 300_000, "y" * 300_000]
    stage.put(1, sent)
    assert stage.receive().datapoints == [sent]
    stage.task_queue.close()
