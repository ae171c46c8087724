"""The one loop against fakes, and below runners and maps: each race is forced, none is waited for."""

import contextlib
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import MapData
from dataflow.errors import DataFlowTerminated, NotReentrant, TimeoutError, WorkerDied
from dataflow.protocol.failures import Report
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import state_of
from dataflow.runners import engine, feeding, supervisor
from dataflow.runners.backends import Links
from dataflow.runners.engine import Engine, Plan, WaitTimer
from dataflow.runners.schedules import MixedSchedule
from dataflow.system import worker_pool
from dataflow.system.worker_errors import LostWorker
from dataflow.transport.codec import ObjectCodec
from dataflow.transport.flow_control import Credit, Window
from dataflow.transport.messages import Kind, Message
from tests.support.fakes import FakeChannel, FakeReceiver, FakeWorker
from tests.support.faults import deadline
from tests.support.hand_stepped import HandStepped
from tests.support.hand_stepped_runners import Clock, HandMap, HandRunner, N, answer, double, expected, idle, numbers
from tests.support.waits import LIMIT, wait_until


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    """Fakes end when the test says so, and waiting for them is no sleep: the engine is busy for the grace period."""
    monkeypatch.setattr(worker_pool, "_GRACE", 0.05)


def plan_of(channel, credit, num, start):
    links = Links(channel, ObjectCodec(), credit, None)
    return Plan("Runner", Stream(0), links, range(num), start, MixedSchedule())


class Stage:
    """An engine whose workers, channel and clock are in the hands of the test."""

    def __init__(self, *messages, num=1, receiver=None):
        self.receiver = receiver or FakeReceiver(messages)
        self.channel = FakeChannel(self.receiver)
        self.credit = Credit(num, shared=False)
        self.workers = [FakeWorker(k, num) for k in range(num)]
        start = iter(self.workers)
        self.engine = Engine(plan_of(self.channel, self.credit, num, lambda spec: next(start)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.workers:
            worker.code = 0 if worker.code is None else worker.code
        self.engine.close()

    def take(self, generation, timeout=LIMIT):
        chunk = self.engine.chunk(generation, timeout)
        return None if chunk is None else list(chunk)


def data(*datapoints, worker=0):
    return Message(Kind.DATA, worker, len(datapoints), 0, datapoints)


def error(text="broken", worker=0):
    return Message(Kind.ERROR, worker, body=ValueError(text))


def ended(worker=0):
    return Message(Kind.ENDED, worker)


def test_chunks_come_in_the_order_of_their_messages():
    with Stage(Message(Kind.HELLO, 0), data(1, 2), data(3)) as stage:
        generation = stage.engine.take_over()
        assert [stage.take(generation), stage.take(generation)] == [[1, 2], [3]]


def test_what_was_left_of_a_chunk_is_given_out_next():
    with Stage(data(1, 2, 3), data(4)) as stage:
        generation = stage.engine.take_over()
        assert next(stage.engine.chunk(generation, LIMIT)) == 1
        assert stage.take(generation) == [2, 3]
        assert stage.take(generation) == [4]


def test_a_later_iteration_takes_the_rest_of_the_chunk_away_from_the_earlier():
    with Stage(data(1, 2, 3)) as stage:
        first = stage.engine.take_over()
        chunk = stage.engine.chunk(first, LIMIT)
        assert next(chunk) == 1
        second = stage.engine.take_over()
        assert list(chunk) == []
        with pytest.raises(NotReentrant):
            stage.engine.chunk(first, LIMIT)
        assert stage.take(second) == [2, 3]


def nothing():
    pass


def test_a_pass_that_must_not_disturb_another_begins_only_if_none_is_under_way():
    with Stage(data(1)) as stage:
        engine = stage.engine
        first = engine.begin_pass(nothing)
        assert engine.begin_pass_if_free(nothing) is None
        assert stage.take(first) == [1]
        engine.abandon(first)
        second = engine.begin_pass_if_free(nothing)
        assert second is not None and not engine.is_free
        engine.session.check(second)


class Held:
    """A lock that is taken by nobody, at which another thread acts before each call enters."""

    def __init__(self, lock, act):
        self.lock = lock
        self.act = act

    def __enter__(self):
        self.act()
        return self.lock.__enter__()

    def __exit__(self, *args):
        return self.lock.__exit__(*args)


def test_a_pass_that_another_thread_is_about_to_begin_is_not_disturbed():
    """It has told the previous iteration to give way, and waits for the lock."""
    with Stage(data(1)) as stage:
        engine, lock, found = stage.engine, stage.engine.lock, []

        def by_another():
            engine.lock = lock
            found.append(engine.begin_pass_if_free(nothing))

        engine.lock = Held(lock, by_another)
        generation = engine.begin_pass(nothing)
        assert found == [None]
        assert stage.take(generation) == [1]


def test_a_pass_that_must_not_disturb_another_does_not_wait_for_the_lock():
    with Stage() as stage, ThreadPoolExecutor(1) as pool, stage.engine.lock:
        assert pool.submit(stage.engine.begin_pass_if_free, nothing).result(LIMIT) is None
        assert stage.engine.is_free


def test_what_comes_while_another_takes_over_goes_to_the_later():
    """The later claims while the earlier waits: nothing was taken yet, so nothing is lost."""
    with Stage() as stage:
        first = stage.engine.take_over()
        generations = []

        def take_over():
            stage.receiver.during = lambda: None
            generations.append(stage.engine.take_over())
            stage.receiver.inbox.append(data(1, 2))

        stage.receiver.during = take_over
        with pytest.raises(NotReentrant):
            stage.engine.chunk(first, LIMIT)
        assert stage.take(generations[0]) == [1, 2]


def test_a_thread_that_waits_lets_another_one_go_on():
    with Stage() as stage:
        first, waiting = stage.engine.take_over(), threading.Event()
        stage.receiver.during = waiting.set
        errors = []

        def earlier():
            try:
                stage.engine.chunk(first, LIMIT)
            except NotReentrant as found:
                errors.append(found)

        thread = threading.Thread(target=earlier, daemon=True)
        thread.start()
        assert waiting.wait(LIMIT)
        stage.engine.take_over()
        thread.join(LIMIT)
        assert errors


def test_a_thread_that_waits_lets_another_one_close():
    with Stage() as stage:
        generation, waiting = stage.engine.take_over(), threading.Event()
        stage.receiver.during = waiting.set
        closer = threading.Thread(target=lambda: waiting.wait(LIMIT) and stage.engine.close(), daemon=True)
        closer.start()
        with pytest.raises(DataFlowTerminated):
            stage.engine.chunk(generation, LIMIT)
        closer.join(LIMIT)


def test_closing_twice_and_from_several_threads_ends_each_worker_once():
    with Stage(num=2) as stage:
        closers = [threading.Thread(target=stage.engine.close) for _ in range(4)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(LIMIT)
    assert [worker.story.count("release") for worker in stage.workers] == [1, 1]
    assert stage.receiver.closed


def test_what_a_dead_worker_had_sent_is_given_out_before_its_death():
    with Stage(data(1), data(2)) as stage:
        generation = stage.engine.take_over()
        stage.workers[0].code = -9
        assert [stage.take(generation), stage.take(generation)] == [[1], [2]]
        with pytest.raises(WorkerDied, match=r"SIGKILL after 2 datapoints") as caught:
            stage.take(generation)
        assert (caught.value.worker, caught.value.exitcode, caught.value.pid) == (0, -9, 40_000)


def test_what_arrives_late_from_a_dead_worker_is_given_out_before_its_death():
    """Its death is seen first; its last message comes while the engine makes sure that there is silence."""
    with Stage() as stage:
        generation = stage.engine.take_over()
        stage.workers[0].code = 0
        waits = iter(range(100))

        def late():
            if next(waits) == 1:
                stage.receiver.inbox += [data(7), error()]

        stage.receiver.during = late
        assert stage.take(generation) == [7]
        with pytest.raises(ValueError, match=r"broken"):
            stage.take(generation)


def test_a_death_is_seen_while_others_deliver():
    with Stage(num=2) as stage:
        generation = stage.engine.take_over()
        stage.workers[1].code = -11

        def consume():
            while True:
                stage.receiver.inbox.append(data(0))  # one at a time: who is given no credit sends no more
                stage.take(generation)

        with pytest.raises(WorkerDied, match=r"worker 1 of 2 .*SIGSEGV"):
            consume()


def test_an_error_is_raised_after_what_was_sent_before_it_and_remembered_after():
    with Stage(data(1), error("no"), data(2, worker=1), num=2) as stage:
        generation = stage.engine.take_over()
        assert stage.take(generation) == [1]
        with pytest.raises(ValueError, match=r"no"):
            stage.take(generation)
        for use in (lambda: stage.take(generation), stage.engine.take_over):
            with pytest.raises(DataFlowTerminated, match=r"failed before, with ValueError: no.*reset_state"):
                use()
        assert [worker.story[-1] for worker in stage.workers] == ["release", "release"]


def test_a_stop_iteration_of_a_worker_is_no_end():
    stop = Message(Kind.ERROR, 0, body=StopIteration("no device"))
    with Stage(data(1), stop) as stage:
        generation = stage.engine.take_over()
        assert stage.take(generation) == [1]
        with pytest.raises(RuntimeError, match=r"a worker of .*raised StopIteration: no device") as caught:
            stage.take(generation)
        assert type(caught.value.__cause__) is StopIteration


def test_an_exit_is_a_death_that_names_the_code():
    leaving = Message(Kind.LEFT, 0, 3, body=SystemExit(3))
    with Stage(data(1), leaving) as stage:
        generation = stage.engine.take_over()
        assert stage.take(generation) == [1]
        with pytest.raises(WorkerDied, match=r"exit code 3"):
            stage.take(generation)


@pytest.mark.parametrize("has_died", [False, True])
def test_a_worker_that_is_lost_with_its_machine_is_blamed_on_no_datapoint(has_died, monkeypatch):
    blamed = []
    with Stage(data(1), Message(Kind.LEFT, 0, 1, body=LostWorker("it is down", has_died=has_died))) as stage:
        monkeypatch.setattr(stage.engine.schedule, "ended", lambda *args, **_: blamed.append(args))
        generation = stage.engine.take_over()
        assert stage.take(generation) == [1]
        with pytest.raises(WorkerDied) as caught:
            stage.take(generation)
        assert "it is down" in str(caught.value.__cause__) and len(blamed) == has_died


def test_what_a_worker_that_is_being_ended_still_says_is_not_heard():
    with Stage(error("late", worker=0), data(1, worker=1), num=2) as stage:
        stage.engine._supervisor.ending[0] = 0.0
        assert stage.take(stage.engine.take_over()) == [1]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, OSError])
@pytest.mark.parametrize("has_taken", [False, True])
def test_an_interrupt_within_the_schedule_or_before_its_results_are_kept_ends_the_run(monkeypatch, kind, has_taken):
    def interrupted(*args):
        raise kind

    with Stage(data(1)) as stage:
        generation = stage.engine.take_over()
        if has_taken:
            monkeypatch.setattr(engine, "iter", interrupted, raising=False)
        else:
            monkeypatch.setattr(stage.engine.schedule, "take", interrupted)
        with pytest.raises(kind):
            stage.take(generation)
        with pytest.raises(DataFlowTerminated, match=kind.__name__):
            stage.engine.take_over()


def test_the_first_error_is_raised_whatever_is_reported_after_it():
    report = Message(Kind.REPORT, 1, body=Report(None, None, False, 5))
    with Stage(error("first"), report, error("second", worker=1), num=2) as stage:
        generation = stage.engine.take_over()
        for _ in range(3):
            stage.engine._step(0.0, silent=False)
        with pytest.raises(ValueError, match="first"):
            stage.take(generation)


def test_what_is_left_of_a_chunk_is_dropped_if_its_pass_ends_in_a_death():
    with Stage(data(1, 2)) as stage:
        generation = stage.engine.take_over()
        assert next(stage.engine.chunk(generation, LIMIT)) == 1
        stage.workers[0].code = -9
        with pytest.raises(WorkerDied):
            stage.engine.end_pass(generation)
        assert list(stage.engine._chunk) == []


def test_a_signal_in_a_takeover_waits_until_the_rest_of_the_chunk_is_kept(monkeypatch):
    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return iter(*args)

    with Stage(data(1, 2, 3)) as stage:
        assert next(stage.engine.chunk(stage.engine.take_over(), LIMIT)) == 1
        with monkeypatch.context() as patched:
            patched.setattr(engine, "iter", interrupted, raising=False)
            with pytest.raises(KeyboardInterrupt):
                stage.engine.take_over()
        assert stage.take(stage.engine.take_over()) == [2, 3]


def test_when_all_have_ended_there_is_nothing_more_and_their_death_is_no_news():
    with Stage(ended(0), data(1, worker=1), ended(1), num=2) as stage:
        generation = stage.engine.take_over()
        stage.workers[0].code = 0
        assert stage.take(generation) == [1]
        assert stage.take(generation) is None
        assert stage.take(stage.engine.take_over()) is None


def test_a_worker_that_has_ended_well_does_not_end_the_others():
    with Stage(ended(0), num=2) as stage:
        generation = stage.engine.take_over()
        stage.workers[0].code = 0
        with pytest.raises(TimeoutError):
            stage.take(generation, 0.05)
        stage.receiver.inbox.append(data(5, worker=1))
        assert stage.take(generation) == [5]


def test_it_watches_workers_that_owe_a_result():
    with Stage(data(1), num=3) as stage:
        for k, worker in enumerate(stage.workers):
            worker.sentinel = 100 + k
        generation = stage.engine.take_over()
        watched = []

        def wait():
            watched.append(tuple(stage.receiver.watched))
            if len(watched) == 1:
                stage.receiver.inbox.append(ended(0))
            elif len(watched) == 2:
                stage.workers[1].code = -9  # it is not watched while what it had sent may still be under way
            elif (102,) in watched:
                stage.receiver.inbox.append(data(2, worker=2))

        stage.receiver.during = wait
        assert [stage.take(generation), stage.take(generation)] == [[1], [2]]
        # Without descriptors it only looks whether there are messages.
        assert list(dict.fromkeys(filter(None, watched))) == [(100, 101, 102), (101, 102), (102,)]


def test_late_is_told_with_the_state_of_every_worker_and_nothing_is_closed():
    with Stage(num=2) as stage:
        generation = stage.engine.take_over()
        with pytest.raises(TimeoutError, match=r"0\.05 seconds \(worker 0: pid 40000, waiting; worker 1: pid 40001"):
            stage.take(generation, 0.05)
        stage.receiver.inbox.append(data(1))
        assert stage.take(generation) == [1]


def test_credit_is_given_as_a_chunk_is_begun():
    with Stage(data(1, 2, 3)) as stage:
        quota = stage.credit.port(0).quota(Window(3))
        quota.spend(3, 0)
        give_up = threading.Timer(LIMIT, stage.credit.stop)
        give_up.start()
        stage.engine.chunk(stage.engine.take_over(), LIMIT)
        assert quota.wait_for_room() is not None
        give_up.cancel()
        give_up.join()


def test_workers_see_that_the_consumer_is_idle_before_it_waits(monkeypatch):
    with Stage(data(1)) as stage:
        story = []
        monkeypatch.setattr(stage.credit, "idle", lambda: story.append("idle"))
        stage.receiver.during = lambda: (story.append("wait"), stage.receiver.inbox.append(data(2)))
        generation = stage.engine.take_over()
        assert stage.take(generation) == [1]
        assert story == []
        assert stage.take(generation) == [2]
        assert story == ["idle", "wait"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_while_waiting_does_no_harm(interrupt):
    with Stage() as stage:
        generation = stage.engine.take_over()

        def interrupted():
            stage.receiver.during = lambda: None
            raise interrupt

        stage.receiver.during = interrupted
        with pytest.raises(interrupt):
            stage.take(generation)
        stage.receiver.inbox.append(data(1))
        assert stage.take(stage.engine.take_over()) == [1]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_that_may_have_lost_a_message_ends_the_run(interrupt):
    class Loses(FakeReceiver):
        def receive_nowait(self):
            message = super().receive_nowait()
            if message is not None:
                raise interrupt

    with Stage(receiver=Loses([data(1)])) as stage:
        generation = stage.engine.take_over()
        with pytest.raises(interrupt):
            stage.take(generation)
        with pytest.raises(DataFlowTerminated, match=interrupt.__name__):
            stage.engine.take_over()
        assert stage.workers[0].story[-1] == "release"


def test_an_interrupt_while_it_looks_in_the_middle_of_a_chunk_ends_the_run_too():
    class Loses(FakeReceiver):
        losing = False

        def receive_nowait(self):
            message = super().receive_nowait()
            if message is not None and self.losing:
                raise KeyboardInterrupt
            return message

    receiver = Loses([data(1, 2, 3)])
    with Stage(receiver=receiver, num=2) as stage:
        generation = stage.engine.take_over()
        assert next(stage.engine.chunk(generation, LIMIT)) == 1
        stage.workers[1].code = -9
        receiver.inbox.append(data(4))
        receiver.losing = True
        with pytest.raises(KeyboardInterrupt):
            wait_until(lambda: stage.engine.chunk(generation, LIMIT) is None, LIMIT, "the workers are not checked")
        with pytest.raises(DataFlowTerminated, match="KeyboardInterrupt"):
            stage.engine.take_over()


def test_a_token_is_lent_while_nothing_comes_and_one_is_added_for_a_worker_that_is_replaced(monkeypatch):
    tokens = []
    with Stage(num=2) as stage:
        stage.engine.jobserver = SimpleNamespace(
            lend=lambda: tokens.append("lent"), replace=lambda: tokens.append("added")
        )
        generation = stage.engine.take_over()
        with pytest.raises(TimeoutError):
            stage.take(generation, 0.05)
        assert set(tokens) == {"lent"}
        stage.engine._supervisor.restarts_left = 1
        monkeypatch.setattr(stage.engine._supervisor, "restart", lambda worker, error: None)
        stage.workers[0].code = -9
        with pytest.raises(TimeoutError):
            stage.take(generation, 0.5)
        assert tokens.count("added") == 1


def test_if_the_consumers_end_cannot_be_opened_the_workers_are_ended():
    workers = [FakeWorker(0, 2), FakeWorker(1, 2)]
    start = iter(workers)
    channel, credit = FakeChannel(OSError("no descriptors left")), Credit(2, shared=True)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"no descriptors"):
        Engine(plan_of(channel, credit, 2, lambda spec: next(start)))
    assert [worker.story[-2:] for worker in workers] == [["kill", "release"]] * 2
    assert channel.closed and len(os.listdir("/proc/self/fd")) < before


def test_if_a_worker_cannot_be_started_the_others_are_ended():
    first, channel = FakeWorker(0, 2), FakeChannel(FakeReceiver())

    def start(spec):
        if spec:
            raise BlockingIOError("no processes left")
        return first

    with pytest.raises(BlockingIOError):
        Engine(plan_of(channel, Credit(2, shared=False), 2, start))
    assert first.story[-2:] == ["kill", "release"] and channel.closed


def test_an_interrupt_while_workers_are_awaited_leaves_none_of_them_behind():
    with Stage(num=3) as stage:

        def interrupted():
            for worker in stage.workers:
                worker.on_join = lambda: None
            raise KeyboardInterrupt

        stage.workers[1].on_join = interrupted
        with pytest.raises(KeyboardInterrupt):
            stage.engine.close()
        assert [worker.story[-1] for worker in stage.workers] == ["release"] * 3
        assert stage.receiver.closed and stage.channel.closed


def test_a_forked_process_looks_after_no_worker_of_its_parent(monkeypatch):
    with Stage(num=1) as stage:
        generation = stage.engine.take_over()
        stage.workers[0].code = -9
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: -1)
            stage.engine.end_pass(generation)
        with pytest.raises(WorkerDied):
            stage.engine.end_pass(generation)


def test_a_forked_process_neither_takes_nor_closes(monkeypatch):
    with Stage(data(1)) as stage:
        generation = stage.engine.take_over()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            with pytest.raises(DataFlowTerminated, match=r"forked"):
                stage.engine.chunk(generation, LIMIT)
            stage.engine.close()
        assert stage.workers[0].story == []
        assert stage.take(generation) == [1]


def test_takeovers_of_many_threads_neither_lose_nor_double():
    numbers, taken = iter(range(0, 3_000_000, 3)), []

    class Endless(FakeReceiver):
        def receive_nowait(self):
            k = next(numbers)
            return data(k, k + 1, k + 2)

    with Stage(receiver=Endless()) as stage:

        def consume():
            for _ in range(200):
                try:
                    generation = stage.engine.take_over()
                    for _ in range(20):
                        for dp in stage.engine.chunk(generation, LIMIT):
                            taken.append(dp)
                except NotReentrant:
                    continue

        threads = [threading.Thread(target=consume, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: not any(thread.is_alive() for thread in threads), LIMIT, "threads hang")
        taken += stage.engine.chunk(stage.engine.take_over(), LIMIT)
    assert sorted(taken) == list(range(len(taken)))


# -- how long the consumer has waited, without a clock -----------------------------------------------------------------


def advance_until(wait_timer, end, step=0.05, begin=0.0):
    now = begin
    while now <= end:
        wait_timer.advance(now)
        now += step


def test_silence_for_the_whole_time_is_too_long():
    wait_timer = WaitTimer()
    advance_until(wait_timer, 0.9)
    assert not wait_timer.is_over(1, silent=True)
    advance_until(wait_timer, 1.1, begin=0.9)
    assert wait_timer.is_over(1, silent=True)
    assert not wait_timer.is_over(None, silent=True)


def test_a_datapoint_resets_it():
    wait_timer = WaitTimer()
    advance_until(wait_timer, 2)
    wait_timer.reset()
    assert not wait_timer.is_over(1, silent=True)
    wait_timer.advance(100)
    assert not wait_timer.is_over(1, silent=True)


def test_earlier_messages_are_received_first_even_if_new_ones_keep_coming():
    wait_timer = WaitTimer()
    advance_until(wait_timer, 1.05)
    assert not wait_timer.is_over(1, silent=False)
    wait_timer.advance(1.1)
    assert not wait_timer.is_over(1, silent=False)
    wait_timer.advance(1.2)
    assert wait_timer.is_over(1, silent=False)


def test_time_in_a_slow_source_or_a_debugger_does_not_count():
    wait_timer = WaitTimer()
    for now in (0, 60, 120):
        wait_timer.advance(now)
    assert not wait_timer.is_over(1, silent=True)


# -- runners and maps whose workers are stepped by hand ----------------------------------------------------------------


KINDS = pytest.mark.parametrize("kind", [HandRunner, HandMap])


@KINDS
def test_results_that_come_in_reverse_are_handed_out_in_order(kind):
    def last_first(backend):
        takers = [worker for worker in backend.workers.values() if worker.take()]
        assert takers or idle(backend)
        for worker in reversed(takers):
            worker.say(Kind.DATA, *answer(worker, kind))

    with kind(numbers(), 2, HandStepped(last_first), strict=True) as df:
        assert list(df) == list(df) == expected(kind)


@KINDS
def test_a_task_of_a_dead_worker_is_done_by_its_successor_and_what_it_had_sent_counts_once(kind):
    deaths = []

    def step(backend):
        worker = backend.workers[0]
        if worker.code is not None:
            return  # the supervisor is about to see it
        assert worker.take() or idle(backend)
        results = answer(worker, kind)
        if len(results) > 1 and not deaths:
            worker.say(Kind.DATA, results[0])  # a part of them
            worker.code = -9
            deaths.append(worker)
        else:
            worker.say(Kind.DATA, *results)

    with kind(numbers(), 1, HandStepped(step), strict=True, max_restarts=1) as df, deadline(LIMIT):
        assert [*df, *df, *df] == 3 * expected(kind)
    assert deaths


@KINDS
def test_a_death_that_nothing_replaces_is_raised_after_what_was_sent_before_it(kind):
    def step(backend):
        worker = backend.workers[0]
        if worker.take() is None:
            worker.code = -11
        else:
            worker.say(Kind.DATA, *answer(worker, kind)[:1])
            worker.code = -11

    found = []
    with kind(numbers(), 1, HandStepped(step), strict=True) as df, pytest.raises(WorkerDied, match="SIGSEGV"):
        found.extend(df)
    assert found == expected(kind)[: len(found)]


@KINDS
def test_late_results_of_a_pass_that_was_broken_off_are_ignored(kind):
    """Worker 1 takes a task of the first pass, and has its results ready in the middle of the second."""
    late = []

    def step(backend):
        slow, quick = backend.workers[1], backend.workers[0]
        if slow.task is None:
            assert slow.take()
            late.extend(answer(slow, kind))
        elif quick.take():
            quick.say(Kind.DATA, *answer(quick, kind))
        else:
            slow.say(Kind.DATA, *late)
            slow.task, late[:] = None, []

    with kind(numbers(), 2, HandStepped(step), strict=True, ordered=False) as df, deadline(LIMIT):
        iterator = iter(df)
        first = next(iterator)
        assert first not in late
        iterator.close()
        assert sorted(df) == expected(kind)


@KINDS
def test_a_death_in_a_pass_that_was_broken_off_is_raised_by_the_next(kind):
    """Nobody is left to do the work: without the error, the next pass would never end."""

    def step(backend):
        worker = backend.workers[0]
        if worker.task is None:
            assert worker.take()
            worker.say(Kind.DATA, *answer(worker, kind))
        elif worker.take():
            worker.code = -9  # with a task

    with kind(numbers(), 1, HandStepped(step), strict=True, ordered=False) as df, deadline(LIMIT):
        iterator = iter(df)
        assert next(iterator) == expected(kind)[0]
        engine = state_of(df).resource
        while engine.workers[0].code is None or not engine._death_in_schedule:  # it is seen, and not raised yet
            with engine.lock:
                step(df._df_backend) if engine.workers[0].code is None else engine._check_workers(0.0)
        iterator.close()
        with pytest.raises(WorkerDied, match="SIGKILL"):
            list(df)


def test_the_end_of_a_default_runner_waits_for_a_death_that_no_restart_covers():
    def step(backend):
        worker = backend.workers[0]
        worker.say(Kind.DATA, *([k] for k in range(N)))
        worker.code = -9

    with HandRunner(numbers(), 1, HandStepped(step)) as df, pytest.raises(WorkerDied, match="SIGKILL after 12"):
        list(df)


def test_a_default_runner_gives_out_what_comes_and_goes_on_with_a_successor():
    def step(backend):
        worker = backend.workers[0]
        worker.say(Kind.DATA, *([k] for k in range(5)))
        worker.code = -9

    with HandRunner(numbers(), 1, HandStepped(step), max_restarts=10) as df, deadline(LIMIT):
        assert [k for (k,) in df] == [k % 5 for k in range(N)]


@contextlib.contextmanager
def time_passes(step):
    """How far a source is read, and when workers are checked, depends on time: on that of a `Clock`."""
    clock = Clock(step)
    with pytest.MonkeyPatch.context() as patched:
        for module in (feeding, engine, supervisor):
            patched.setattr(module, "time", clock)
        yield


@KINDS
@given(
    data=st.data(),
    num=st.integers(1, 3),
    restarts=st.integers(0, 2),
    seconds=st.sampled_from([0.0, 5e-5, 1e-3, 0.1, 1.0]),
)
def test_whatever_the_workers_do_every_datapoint_comes_once_and_in_order(kind, data, num, restarts, seconds):
    """Results in parts, deaths at any moment, restarts, loops that are broken off, and sources that take their time."""
    unsent = {}
    quotas = {}

    def step(backend):
        able = [worker for worker in backend.workers.values() if worker.code is None]
        for worker in able:
            if worker not in quotas:
                quotas[worker] = worker.credit.quota(Window(N))
            if worker not in unsent and worker.take():
                unsent[worker] = answer(worker, kind)
        busy = [worker for worker in able if worker in unsent]
        if busy:  # otherwise they have died, which the supervisor is about to see
            worker = data.draw(st.sampled_from(busy))
            if data.draw(st.integers(0, 19)) == 0:
                worker.code = -9
                return
            count = data.draw(st.integers(1, len(unsent[worker])))
            quotas[worker].spend(count, 0)
            end = data.draw(st.sampled_from([*8 * ["goes on"], "before it sends", "after"]))
            worker.code = None if end == "goes on" else -9
            if end == "before it sends":
                return
            worker.say(Kind.DATA, *unsent[worker][:count])
            unsent[worker] = unsent[worker][count:]
            if not unsent[worker]:
                del unsent[worker]

    flow = kind(numbers(), num, HandStepped(step), strict=True, max_restarts=restarts)
    with flow as df, deadline(LIMIT), time_passes(seconds):
        for _ in range(3):
            found, stop = [], data.draw(st.integers(0, N))
            try:
                for dp in df:
                    found.append(dp)
                    if len(found) == stop:
                        break
                else:
                    assert len(found) == N
                    assert all(quota.all_done() for quota in quotas.values()), "others would wait for memory"
            except WorkerDied:
                assert found == expected(kind)[: len(found)]
                return
            assert found == expected(kind)[: len(found)]


@KINDS
def test_what_a_worker_has_sent_before_it_died_is_done_with_when_it_was_handed_out(kind):
    """Otherwise, the others would wait for its memory for ever. Its message and its end are found in one step."""
    quotas = []

    def step(backend):
        worker = backend.workers[0]
        if worker.take():
            quotas.append(worker.credit.quota(Window(N)))
            results = answer(worker, kind)[: None if len(quotas) > 1 else 1]
            quotas[-1].spend(len(results), 0)
            worker.say(Kind.DATA, *results)
            worker.code = None if len(quotas) > 1 else -9

    with (
        kind(numbers(), 1, HandStepped(step), strict=True, max_restarts=1) as df,
        deadline(LIMIT),
        time_passes(1.0),
    ):
        assert list(df) == expected(kind)
        assert len(quotas) > 1 and quotas[0].all_done()


def test_a_flow_that_is_stepped_by_hand_is_what_it_is_without_workers():
    assert list(HandMap(numbers(), 0, HandStepped(idle), strict=True)) == list(MapData(numbers(), double))
