"""What a worker runs: how it begins, what it sends of each task, and what it closes."""

import logging
import sys
import threading
from itertools import islice

import numpy as np
import pytest

from dataflow import (
    DataFlow,
    DataFromGenerator,
    DataFromList,
    MapData,
    MultiProcessRunner,
    MultiThreadRunner,
    NotPicklable,
    WorkerDied,
    worker_info,
)
from dataflow.protocol.datapoint import HOLE
from dataflow.protocol.passes import root_stream
from dataflow.runners.jobs import Address, Apply, ApplyAndBatch, PassTask, Produce, TaskInput, WholePasses
from dataflow.transport.batching_sender import BatchingSender
from dataflow.transport.codec import ObjectCodec
from dataflow.transport.flow_control import Credit, Window
from dataflow.transport.messages import DATA_KINDS, Kind
from dataflow.transport.task_queue import PAIRED, WHOLE, Task
from tests.support.fakes import FakeSender, each_method, every_runner, runner
from tests.support.faults import deadline
from tests.support.products import rotating
from tests.support.waits import LIMIT, wait_until

SEEN: list[tuple[str, int | None]] = []  # what has happened in this process, in order


KINDS = rotating("case", {"process": "process", "zmq": "zmq"}, always={"thread": "thread"})


@pytest.fixture(autouse=True)
def nothing_seen():
    SEEN.clear()
    yield
    SEEN.clear()


def note(what):
    here = worker_info()
    SEEN.append((what, None if here is None else here.index))


class Story(DataFlow):
    """Yields endlessly what has happened here to the worker in which it runs."""

    def reset_state(self):
        note("reset")

    def __iter__(self):
        while True:
            here = worker_info()
            index = None if here is None else here.index
            yield [index, [what for what, where in SEEN if where == index]]


def init():
    note("init")


# -- worker_init -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", every_runner())
def test_a_worker_is_prepared_once_before_its_flow_is_reset(case):
    with runner(case, Story, 2, worker_init=init) as df:
        found = {}
        for index, story in df:
            found[index] = story
            if len(found) == 2:
                break
    assert found == {0: ["init", "reset"], 1: ["init", "reset"]}


def test_without_workers_the_consumer_is_prepared():
    with MultiProcessRunner(Story(), 5, 0, worker_init=init) as df:
        assert next(iter(df)) == [None, ["init", "reset"]]
        next(iter(df))
        assert len(SEEN) == 2


def fail():
    raise OSError(5, "no such device")


@KINDS
def test_an_exception_in_it_is_the_consumers_with_a_note(case):
    with runner(case, Story, worker_init=fail) as df, pytest.raises(OSError, match="no such device") as caught:
        next(iter(df))
    assert caught.value.__notes__[0] == "raised by worker_init: fail"
    assert caught.value.__notes__[1].startswith("raised in worker 0 of 1 of Multi")
    if case != "thread":
        assert "in fail" in str(caught.value.__cause__)


@KINDS
def test_a_stop_iteration_in_it_does_not_end_the_pass(case):
    stopped = pytest.raises(RuntimeError, match=r"a worker of Multi.* raised StopIteration")
    with runner(case, lambda: numbers(8), 2, strict=True, worker_init=lambda: next(iter([]))) as df, stopped:
        list(df)


@KINDS
def test_a_program_that_is_ended_by_it_is_a_dead_worker(case):
    with runner(case, Story, worker_init=sys.exit) as df, pytest.raises(WorkerDied):
        next(iter(df))


class Shares(DataFlow):
    def __init__(self, box):
        self.box = box

    def __iter__(self):
        while True:
            yield [list(self.box)]


@each_method
def test_what_it_shares_with_the_flow_stays_shared_and_it_may_be_a_lambda(method):
    box = []
    with runner(("process", method), lambda: Shares(box), worker_init=lambda: box.append("prepared")) as df:
        assert next(iter(df)) == [["prepared"]]
    assert box == []


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()
    df = runner(("process", "spawn"), Story, worker_init=lambda: lock)
    with pytest.raises(NotPicklable, match=r"worker_init .* cannot be sent.*lock.* Make what it needs inside it"):
        next(iter(df))

    class Holds(Shares):
        def __init__(self):
            self.box = lock

    with pytest.raises(NotPicklable, match=r"Holds.box"):  # prepared or not, a node is named
        next(iter(runner(("process", "spawn"), Holds, worker_init=init)))


@KINDS
def test_what_is_no_function_is_refused(case):
    with pytest.raises(TypeError, match=r"Multi\w+ expects a function, got int: worker_init is called"):
        runner(case, Story, worker_init=5)


# -- tasks -------------------------------------------------------------------------------------------------------------


class Tasks:
    """Gives a worker these tasks, and then no more; it wants the results of so many steps."""

    def __init__(self, *tasks, wanted=10**9):
        self.tasks, self.wanted = list(tasks), wanted

    def may_take(self):
        return True

    def is_full(self):
        return False

    def receive(self):
        return self.tasks.pop(0) if self.tasks else None

    def is_wanted(self):
        self.wanted -= 1
        return self.wanted >= 0


def sent(job, *tasks, **more):
    """The messages of a worker that runs the job: kind, number of the task, and datapoints or the exception."""
    codec, credit, sender = ObjectCodec(), Credit(1, shared=False), FakeSender()
    encoder, decoder = codec.port(0).open_encoder(), codec.open_decoder()
    batching_sender = BatchingSender(0, sender, encoder, credit.port(0).quota(Window(1000)))
    try:
        job.run(batching_sender, Tasks(*tasks, **more))
        batching_sender.flush()
    finally:
        batching_sender.close(0)
        job.close()
    found = []
    for message in sender.sent:
        if message.kind in DATA_KINDS:
            content = list(decoder.decode(0, message.body))
        else:
            content = decoder.decode_failure(message.body) if message.kind is Kind.TASK_FAILED else None
        if message.kind is Kind.DATA and found and found[-1][:2] == (Kind.DATA, message.task):
            found[-1][2].extend(content)  # how many are in one message depends on time
        else:
            found.append((message.kind, message.task, content))
    return found


def mapped(kind, func, *args):
    node = MapData(numbers(12), func)
    stream = root_stream(node)
    task_input = TaskInput(node.ds, 12)
    node.ds = task_input
    return kind(node, stream, task_input, *args)


def numbers(n):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def ten_times(dp):
    return [10 * dp[0]]


def test_a_map_applies_its_node_to_the_datapoints_of_each_task():
    job = mapped(Apply, ten_times)
    found = sent(job, Task(0, 0, [[0], [1]]), Task(1, 2, [[2], [3], [4]], 1, 2), Task(2, PAIRED, [(7, [7]), (5, [5])]))
    assert found == [(Kind.DATA, 0, [[0], [10]]), (Kind.DATA, 1, [[30]]), (Kind.DATA, 2, [[70], [50]])]


def test_an_exception_comes_after_the_results_before_it_and_the_next_task_is_done():
    def func(dp):
        return [12 // (dp[0] - 2)]

    before, failed, after = sent(mapped(Apply, func), Task(0, 0, [[0], [1], [2], [3]]), Task(1, 4, [[4]]))
    assert before == (Kind.DATA, 0, [[-6], [-12]]) and after == (Kind.DATA, 1, [[6]])
    assert failed[:2] == (Kind.TASK_FAILED, 0) and type(failed[2]) is ZeroDivisionError


def test_results_that_stack_are_one_batch_and_others_are_sent_apart():
    def func(dp):
        return None if dp[0] == 3 else [dp[0] if dp[0] < 6 else float(dp[0])]

    tasks = [Task(k, 2 * k, [[2 * k], [2 * k + 1]]) for k in range(4)]
    tasks += [Task(4, 8, [[1]]), Task(5, 8, [[5], [6]]), Task(6, PAIRED, [(0, [0]), (1, [1])])]
    found = sent(mapped(ApplyAndBatch, func, 2), *tasks)
    batches = {number: content[0][0].tolist() for kind, number, content in found if kind is Kind.BATCH}
    assert batches == {0: [0, 1], 2: [4, 5], 3: [6.0, 7.0]}
    apart = {number: content for kind, number, content in found if kind is Kind.DATA}
    assert apart == {1: [[2], HOLE], 4: [[1]], 5: [[5], [6.0]], 6: [[0], [1]]}
    assert len(found) == 7


def test_indexes_are_made_of_a_number_or_of_themselves():
    df = numbers(10)
    tasks = Task(0, 2, [3]), Task(1, 0, [np.array([7, 1])]), Task(2, 4, [4], 1, 3)
    found = sent(Address(df, root_stream(df)), *tasks)
    assert found == [(Kind.DATA, 0, [[2], [3], [4]]), (Kind.DATA, 1, [[7], [1]]), (Kind.DATA, 2, [[5], [6]])]


@pytest.mark.parametrize("kind", ["address", "apply", "batch"])
def test_a_task_that_ends_early_without_an_error_is_refused(kind):
    class Short(MapData):
        def _df_at(self, blocks, stream):
            return islice(super()._df_at(blocks, stream), 2)

    node = Short(numbers(5), ten_times)
    stream, task_input = root_stream(node), TaskInput(node.ds, 5)
    if kind == "address":
        job, task = Address(node, stream), Task(0, 0, [4])
    else:
        node.ds = task_input
        job = Apply(node, stream, task_input) if kind == "apply" else ApplyAndBatch(node, stream, task_input, 4)
        task = Task(0, 0, [[k] for k in range(4)])
    data, failed = sent(job, task)
    assert data == (Kind.DATA, 0, [[0], [10]])
    assert failed[0] is Kind.TASK_FAILED and "Short made 2 of 4 datapoints in a worker" in str(failed[2])


def pass_task(number, **more):
    return Task(number, number, [PassTask(number, "", [], False, False)], **more)


@pytest.mark.parametrize(("stop", "wanted"), [(WHOLE, 2), (2, 10**9)])
def test_a_pass_ends_early_where_no_more_of_it_is_wanted(stop, wanted):
    df = numbers(5)
    found = sent(WholePasses(df, root_stream(df)), pass_task(0, stop=stop), wanted=wanted)
    assert found == [(Kind.DATA, 0, [[0], [1]]), (Kind.PASS_ENDED, 0, None)]


def test_the_pass_after_one_that_ended_early_is_whole():
    df = numbers(3)
    found = sent(WholePasses(df, root_stream(df)), pass_task(0, stop=1), pass_task(1))
    assert found[2:] == [(Kind.DATA, 1, [[0], [1], [2]]), (Kind.PASS_ENDED, 1, None)]


def test_without_tasks_pass_follows_pass_until_one_is_empty():
    class Shrinking(DataFlow):
        length = 3

        def __iter__(self):
            self.length -= 1
            yield from ([k] for k in range(self.length))

    df = Shrinking()
    *data, end = sent(Produce(df, root_stream(df), 0))
    assert [dp for _, _, content in data for dp in content] == [[0], [1], [0]]
    assert end[0] is Kind.ENDED


def test_a_worker_that_ends_while_the_other_goes_on_is_named(caplog):
    def make():
        return DataFromGenerator(lambda: iter([[7]] * (1 - worker_info().index)))

    with caplog.at_level(logging.WARNING, "dataflow"), MultiThreadRunner(make, 5, 2, timeout=LIMIT) as df:
        steps = iter(df)
        with deadline(LIMIT):
            while "worker 1 of 2 makes no further datapoints, because pass 0 of DataFromG" not in caplog.text:
                assert next(steps) == [7]


# -- the end -----------------------------------------------------------------------------------------------------------


def test_a_thread_that_ends_late_does_not_close_what_its_successor_has_opened(monkeypatch):
    class File(DataFlow):
        opened = closed_by = None
        late = threading.Event()

        def reset_state(self):
            super().reset_state()
            self.opened = threading.current_thread()

        def close(self):
            if self.opened is not threading.current_thread():
                File.closed_by = threading.current_thread()
            super().close()

        def __iter__(self):
            for k in range(10):
                if k == 3 and not File.late.is_set():
                    File.late.set()
                    sys.exit(1)
                yield [k]

    close = WholePasses.close

    def slow(job):
        if not has_served.is_set():
            wait_until(has_served.is_set, LIMIT, "the successor has not served")
            close(job)
            has_closed.set()
        else:
            close(job)

    has_served, has_closed = threading.Event(), threading.Event()
    monkeypatch.setattr(WholePasses, "close", slow)
    monkeypatch.setattr("dataflow.system.worker_pool._GRACE", 0.01)
    with MultiThreadRunner(File, 5, 1, strict=True, timeout=LIMIT, max_restarts=1) as df, deadline(LIMIT):
        assert list(df) == [[k] for k in range(10)]  # made by the successor, from the fourth on
        has_served.set()
        wait_until(has_closed.is_set, LIMIT, "the first thread has not ended")
        assert File.closed_by is None
        assert list(df) == [[k] for k in range(10)]
