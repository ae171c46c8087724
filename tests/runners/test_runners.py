"""What a runner promises: the flow's own data, streams that differ and repeat, passes, resets, refusals."""

import copy
import functools
import logging
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import psutil
import pytest

import dataflow
from dataflow import (
    DataFlow,
    DataFlowTerminated,
    DataFromList,
    MapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadRunner,
    NotReentrant,
    ProxyDataFlow,
    ShardData,
    worker_info,
)
from dataflow.runners.engine import Engine
from tests.support.fakes import (
    KINDS,
    PROCESS_KINDS,
    Calls,
    Draws,
    Forever,
    Numbers,
    each_method,
    every_runner,
    runner,
)
from tests.support.products import covering, rotating
from tests.support.stacks import is_inside
from tests.support.waits import LIMIT, wait_until

pytestmark = pytest.mark.usefixtures("unseeded")

ROOT = os.path.dirname(os.path.dirname(dataflow.__file__))
FORK = [("process", "fork"), ("zmq", "fork"), ("thread", None)]
all_runners = pytest.mark.parametrize("case", every_runner())
kinds = rotating("case", dict(zip(KINDS[:2], FORK, strict=False)), always={"thread": FORK[2]})
process_runners = pytest.mark.parametrize("case", [p for p in every_runner() if p.id != "thread"])
spawning_runners = pytest.mark.parametrize("case", [p for p in every_runner(spawn=True) if p.id != "thread"])


# -- one worker --------------------------------------------------------------------------------------------------------


@all_runners
def test_one_worker_gives_the_flows_own_data_in_its_own_order(case):
    with runner(case, lambda: Numbers(7)) as df:
        assert len(df) == 7
        for _ in range(3):
            assert list(df) == [[k] for k in range(7)]


@all_runners
def test_one_worker_gives_the_random_numbers_of_the_flow_itself(case):
    dataflow.seed(11)
    alone = Draws(6)
    expected = [[value for _, value in alone] for _ in range(3)]
    with runner(case, lambda: Draws(6)) as df:
        assert [[value for _, value in df] for _ in range(3)] == expected


@kinds
def test_datapoints_of_every_type_arrive_as_they_are(case):
    datapoints = [[1, "a"], (2, b"b"), {"x": np.arange(3)}, 7, None, [[[]]], np.float32(2), [np.zeros(100_000)]]

    class Anything(DataFlow):
        def __iter__(self):
            yield from datapoints

        def __len__(self):
            return len(datapoints)

    with runner(case, Anything) as df:
        assert [repr(dp) for dp in df] == [repr(dp) for dp in datapoints]


# -- several workers ---------------------------------------------------------------------------------------------------


def streams(case, num, passes=1):
    """The numbers that came from each worker, in their order."""
    found = {k: [] for k in range(num)}
    with runner(case, Draws, num, prefetch=2) as df:
        iterator = iter(df)
        while min(map(len, found.values())) < 10 * passes:
            for k, value in iterator:
                found[k].append(value)
            iterator = iter(df)
    return {k: values[: 10 * passes] for k, values in found.items()}


@functools.cache
def streams_under_fork(root):
    dataflow.seed(root)
    return streams(("process", "fork"), 3)


@all_runners
def test_every_worker_has_another_random_stream_and_the_same_seed_the_same_streams(case):
    dataflow.seed(5)
    first = streams(case, 3)
    assert len({tuple(values) for values in first.values()}) == 3
    assert len({value for values in first.values() for value in values}) == 30
    assert streams_under_fork(5) == first  # whatever the runner and the start method
    assert not set(map(tuple, streams_under_fork(6).values())) & set(map(tuple, first.values()))


@kinds
def test_the_first_worker_has_the_stream_of_a_single_one(case):
    dataflow.seed(5)
    assert streams(case, 3)[0] == streams(case, 1)[0]


@kinds
def test_without_a_seed_two_runners_differ(case):
    assert streams(case, 1) != streams(case, 1)


@kinds
def test_a_pass_is_as_many_datapoints_as_the_flow_has_whatever_the_number_of_workers(case):
    with runner(case, lambda: Numbers(10), 2, prefetch=3) as df:
        passes = [list(df) for _ in range(6)]
    assert [len(datapoints) for datapoints in passes] == [10] * 6
    counts = Counter(k for datapoints in passes for (k,) in datapoints)
    assert set(counts) <= set(range(10)) and sum(counts.values()) == 60


class GlobalNumbers(DataFlow):
    """What the global generators draw, and who drew it."""

    def __iter__(self):
        while True:
            yield [worker_info().index, random.random(), float(np.random.rand())]


def first_of_each(case, num):
    with runner(case, GlobalNumbers, num, prefetch=1) as df:
        found = {}
        for k, *drawn in df:
            found.setdefault(k, drawn)
            if len(found) == num:
                break
        return found


@functools.cache
def first_of_each_under_fork(root):
    dataflow.seed(root)
    return first_of_each(("zmq", "fork"), 2)


@process_runners
def test_global_generators_differ_between_workers_and_repeat_under_the_same_seed(case):
    dataflow.seed(3)
    first = first_of_each(case, 2)
    assert first[0][0] != first[1][0] and first[0][1] != first[1][1]
    assert first_of_each_under_fork(3) == first
    assert first_of_each_under_fork(4) != first


def test_global_generators_differ_between_ranks():
    dataflow.seed(3)
    shards = [ShardData(DataFromList([[k] for k in range(8)], shuffle=False), rank, 2) for rank in (0, 1)]
    drawn = []
    for shard in shards:
        with MultiProcessRunnerZMQ(MapData(shard, lambda dp: [np.random.rand()]), 1, timeout=LIMIT) as df:
            drawn.append(list(df))
    assert len(drawn[0]) == len(drawn[1]) == 4 and drawn[0] != drawn[1]


@kinds
def test_the_consumers_own_global_generators_are_left_alone(case):
    random.seed(1), np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1), np.random.seed(1)
    with runner(case, lambda: Numbers(3)) as df:
        list(df)
    assert (random.random(), np.random.rand()) == expected


class MakesItsOwn(DataFlow):
    """A flow that makes another one in the worker."""

    def __iter__(self):
        for _, value in Draws(3):
            yield [value]


@each_method
def test_a_seed_reaches_flows_that_users_make_in_workers(method):
    def drawn():
        with runner(("zmq", method), MakesItsOwn) as df:
            return list(islice(df, 6))

    dataflow.seed(9)
    first = drawn()
    assert drawn() == first
    dataflow.seed(None)
    assert drawn() != first


# -- what travels to a worker ------------------------------------------------------------------------------------------


@spawning_runners
def test_lambdas_closures_and_classes_of_a_function_travel(case):
    factor = 3
    scale = lambda k: k * factor  # noqa: E731 (it is a lambda that is to travel)

    class Scaled(ProxyDataFlow):
        def __iter__(self):
            for (k,) in self.ds:
                yield [scale(k)]

    with runner(case, lambda: Scaled(Numbers(4))) as df:
        assert list(df) == [[0], [3], [6], [9]]


MAIN = """
import sys
from dataflow import DataFlow, MultiProcessRunner, MultiProcessRunnerZMQ

FACTOR = 5

def scaled(k):
    return k * FACTOR

class Mine(DataFlow):
    def __iter__(self):
        yield from ([scaled(k)] for k in range(3))
    def __len__(self):
        return 3

if __name__ == "__main__":
    for df in MultiProcessRunner(Mine(), 5, 1, context="spawn"), MultiProcessRunnerZMQ(Mine(), context="forkserver"):
        print(list(df))
"""


def test_what_a_script_defines_travels_and_the_script_ends_without_a_word(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(MAIN))
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[[0], [5], [10]]\n" * 2, "", 0)


class FromQueue(DataFlow):
    def __init__(self, queue):
        self.queue = queue

    def __iter__(self):
        while True:
            yield [self.queue.get(timeout=LIMIT)]


@each_method
def test_a_flow_may_hold_a_queue_of_multiprocessing(method):
    queue = multiprocessing.get_context(method).Queue()
    with runner(("process", method), lambda: FromQueue(queue)) as df:
        df.reset_state()
        for k in range(3):  # after the start, which is no reason for another one
            queue.put(k)
        assert list(islice(df, 3)) == [[0], [1], [2]]
    queue.close()
    queue.join_thread()


# -- passes ------------------------------------------------------------------------------------------------------------


@kinds
def test_after_a_break_the_next_pass_goes_on_where_the_workers_are(case):
    with runner(case, lambda: Numbers(10)) as df:
        for (k,) in df:
            if k == 3:
                break
        assert list(df) == [[k] for k in (4, 5, 6, 7, 8, 9, 0, 1, 2, 3)]
        assert list(df) == [[k] for k in (4, 5, 6, 7, 8, 9, 0, 1, 2, 3)]


@kinds
def test_a_flow_without_a_length_never_ends_which_is_said_once(case, caplog):
    with caplog.at_level(logging.INFO, "dataflow"), runner(case, Forever) as df:
        for _ in range(2):
            assert len(list(islice(df, 200))) == 200
        with pytest.raises(TypeError):
            len(df)
    (record,) = [r for r in caplog.records if "never end" in r.getMessage()]
    assert "Forever" in record.getMessage() and "strict=True" in record.getMessage()


class Nothing(DataFlow):
    def __iter__(self):
        return iter(())


class NothingThoughItSaysSo(Nothing):
    def __len__(self):
        return 3


@pytest.mark.parametrize(("case", "num", "flow"), covering(FORK, [1, 2], [Nothing, NothingThoughItSaysSo]))
def test_an_empty_flow_ends_with_a_warning(case, num, flow, caplog):
    with caplog.at_level(logging.WARNING, "dataflow"), runner(case, flow, num) as df:
        assert list(df) == []
        assert list(df) == []
    assert "empty" in caplog.text


class OnlyTheFirst(DataFlow):
    """Empty in every worker but the first."""

    def __iter__(self):
        yield from ([k] for k in range(4 if worker_info().index == 0 else 0))

    def __len__(self):
        return 4


@kinds
def test_a_worker_whose_flow_is_empty_leaves_the_pass_to_the_others(case):
    with runner(case, OnlyTheFirst, 2) as df:
        for _ in range(3):
            assert list(df) == [[0], [1], [2], [3]]


class Short(DataFlow):
    """Two datapoints, in passes that claim five."""

    def __iter__(self):
        yield from ([k] for k in range(2))

    def __len__(self):
        return 5


@kinds
def test_a_pass_has_the_length_that_the_flow_tells(case):
    with runner(case, Short) as df:
        assert list(df) == [[0], [1], [0], [1], [0]]
        assert list(df) == [[1], [0], [1], [0], [1]]


@kinds
def test_no_worker_is_the_same_as_one_without_any_process(case):
    def data(num):
        dataflow.seed(2)
        with runner(case, lambda: Draws(4), num) as df:
            return [[value for _, value in islice(df, stop)] for stop in (None, 2, None)]

    assert data(0) == data(1)
    df = runner(case, WhoIs, 0)
    assert next(iter(df)) == [os.getpid(), threading.get_ident()]


class WhoIs(DataFlow):
    def __iter__(self):
        while True:
            yield [os.getpid(), threading.get_ident()]


# -- refusals ----------------------------------------------------------------------------------------------------------


@kinds
def test_negative_numbers_are_refused(case):
    with pytest.raises(ValueError, match="-1"):
        runner(case, lambda: Numbers(1), -1)
    with pytest.raises(ValueError, match="-2"):
        runner(case, lambda: Numbers(1), prefetch=-2)
    with pytest.raises(ValueError, match="number of seconds > 0"):
        runner(case, lambda: Numbers(1), timeout=0)


@kinds
def test_numbers_of_another_type_are_refused(case):
    for wrong in ("2", 1.5, [1]):
        with pytest.raises(TypeError):
            runner(case, lambda: Numbers(1), wrong)
        with pytest.raises(TypeError):
            runner(case, lambda: Numbers(1), prefetch=wrong)


@kinds
def test_a_plain_list_is_refused_with_the_name_of_the_cure(case):
    with pytest.raises(TypeError, match="DataFromList"):
        runner(case, lambda: [[1], [2]])


def test_a_thread_runner_wants_a_function_that_makes_a_flow():
    with pytest.raises(TypeError, match="pass a function"):
        MultiThreadRunner(Numbers(3), 5, 1)
    with pytest.raises(TypeError, match="pass a function"):
        MultiThreadRunner([[1]], 5, 1)


def test_threads_cannot_share_a_flow():
    shared = Numbers(3)
    with pytest.raises(ValueError, match="same flow twice"):
        MultiThreadRunner(lambda: shared, 5, 2)


def test_an_unknown_start_method_is_refused():
    with pytest.raises(ValueError, match="teleport"):
        list(MultiProcessRunnerZMQ(Numbers(3), context="teleport"))


def test_a_context_may_be_given_instead_of_a_name():
    with MultiProcessRunner(Numbers(3), 5, 1, context=multiprocessing.get_context("fork")) as df:
        assert list(df) == [[0], [1], [2]]


# -- resets, copies, closing -------------------------------------------------------------------------------------------


@kinds
def test_the_flow_is_reset_once_inside_every_worker_and_never_outside(case):
    resets = multiprocessing.RawArray("i", 3)
    with runner(case, lambda: Calls(resets), 2, prefetch=1) as df:
        df.reset_state()
        seen = set()
        for (k,) in df:
            seen.add(k)
            if seen == {0, 1}:
                break
        list(islice(df, 10))
        assert list(resets) == [1, 1, 0]
        df.reset_state()
        wait_until(lambda: list(resets) == [2, 2, 0], LIMIT, lambda: str(list(resets)))


@process_runners
def test_the_first_iteration_resets_if_needed(case):
    resets = multiprocessing.RawArray("i", 2)
    with runner(case, lambda: Calls(resets)) as df:
        assert list(islice(df, 3)) == [[0]] * 3
        assert list(resets) == [1, 0]


@kinds
def test_a_reset_starts_new_workers_and_ends_the_old(case):
    class Mark(DataFlow):
        def __iter__(self):
            while True:
                yield [os.getpid(), threading.get_ident()]

    with runner(case, Mark) as df:
        (first,) = islice(df, 1)
        df.reset_state()
        (second,) = islice(df, 1)
        if case[0] != "thread":
            assert first[0] != second[0] != os.getpid()
            with pytest.raises(ProcessLookupError):
                os.kill(first[0], 0)


@kinds
def test_an_iteration_ends_at_a_reset_or_a_close(case):
    with runner(case, lambda: Numbers(100)) as df:
        for end in (df.reset_state, df.close):
            iterator = iter(df)
            next(iterator)
            end()
            with pytest.raises(DataFlowTerminated):
                list(iterator)
        assert len(list(df)) == 100  # closed is not lost: it restarts


def workers_here():
    """Processes and threads that work for this process."""
    threads = {thread for thread in threading.enumerate() if thread.name.startswith("dataflow-worker")}
    return threads, set(multiprocessing.active_children())


@pytest.mark.parametrize(
    ("case", "clone"), covering(FORK, [copy.copy, copy.deepcopy, lambda df: pickle.loads(pickle.dumps(df))])
)
def test_a_copy_of_a_started_runner_is_not_started(case, clone):
    with runner(case, lambda: Numbers(5)) as df:
        it = iter(df)
        assert next(it) == [0]
        before = workers_here()
        twin = clone(df)
        assert workers_here() == before
        with twin:
            assert list(twin) == [[k] for k in range(5)]
        assert list(it) == [[k] for k in range(1, 5)]


@kinds
def test_a_dropped_runner_ends_its_workers(case):
    df = runner(case, Forever, 2)
    next(iter(df))
    del df  # the fixture sees what is left


@kinds
def test_closing_twice_and_closing_what_never_started_do_nothing(case):
    df = runner(case, lambda: Numbers(3))
    df.close()
    list(df)
    df.close()
    df.close()


# -- what is changed after the yield -----------------------------------------------------------------------------------


class Reuses(DataFlow):
    """Yields the same list and the same arrays again and again."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        small, large = np.zeros(3), np.zeros(self.size)
        dp = [None, small, large, small]
        for k in range(60):
            dp[0] = k
            small[:] = k
            large[:] = k
            yield dp

    def __len__(self):
        return 60


@pytest.mark.parametrize(("size", "prefetch", "kind"), covering([1, 10_000], [0, 1, 2, 5, 50, None], PROCESS_KINDS))
def test_what_the_flow_changes_after_the_yield_arrives_as_it_was(kind, prefetch, size):
    with runner((kind, "fork"), lambda: Reuses(size), prefetch=prefetch) as df:
        datapoints = [*df, *df]
    for position, (k, small, large, again) in enumerate(datapoints):
        assert k == position % 60
        assert (small == k).all() and (large == k).all() and again is small
    assert len({id(small) for _, small, *_ in datapoints}) == 120


# -- two iterations ----------------------------------------------------------------------------------------------------


@kinds
def test_the_later_of_two_iterations_wins_and_nothing_is_lost_between_them(case):
    with runner(case, Forever, prefetch=50) as df:
        first = iter(df)
        taken = [next(first) for _ in range(20)]
        second = iter(df)
        with pytest.raises(NotReentrant):
            next(first)
        taken += [next(second) for _ in range(100)]
        with pytest.raises((NotReentrant, StopIteration)):
            next(first)
        assert taken == [[k] for k in range(120)]


@kinds
def test_iterations_of_several_threads_share_an_unbroken_sequence(case):
    """Again and again another thread takes over, in the middle of a step of the one before."""
    taken, errors, ready = [], [], threading.Barrier(4)

    with runner(case, Forever, prefetch=20) as df:

        def consume():
            ready.wait()
            for _ in range(15):
                try:
                    for k, (value,) in enumerate(df):
                        taken.append(value)
                        if k == 10:
                            break
                except NotReentrant:
                    pass
                except BaseException as error:
                    errors.append(error)
                    raise

        threads = [threading.Thread(target=consume, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        assert not errors
        assert sorted(taken) == list(range(len(taken)))
        assert [value for (value,) in islice(df, 3)] == [len(taken) + k for k in range(3)]


@kinds
def test_a_waiting_iteration_ends_when_another_thread_closes(case):
    class Stuck(DataFlow):
        def __iter__(self):
            yield [0]
            release.wait(LIMIT)  # a process is killed meanwhile

    release = threading.Event()
    df = runner(case, Stuck)
    iterator = iter(df)
    assert next(iterator) == [0]
    ended = []

    def wait():
        with pytest.raises(DataFlowTerminated):
            next(iterator)
        ended.append(True)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    wait_until(lambda: is_inside(waiting, Engine.chunk), LIMIT, "it does not wait")
    closers = [threading.Thread(target=df.close) for _ in range(3)]
    for closer in closers:
        closer.start()
    waiting.join(LIMIT)
    assert ended
    release.set()
    for closer in closers:
        closer.join(LIMIT)


# -- at once -----------------------------------------------------------------------------------------------------------


class Stalls(DataFlow):
    """Five datapoints, and no more until it is let go."""

    def __init__(self, release):
        self.release = release

    def __iter__(self):
        for k in range(5):
            yield [k]
        self.release.wait(2 * LIMIT)


def event_for(case):
    """One that a runner's worker and its consumer share."""
    kind, method = case
    return threading.Event() if kind == "thread" else multiprocessing.get_context(method).Event()


@pytest.mark.parametrize("case", every_runner())
def test_what_was_made_arrives_though_the_flow_makes_no_more(case):
    release = event_for(case)
    with runner(case, lambda: Stalls(release), prefetch=50) as df:
        assert list(islice(df, 5)) == [[k] for k in range(5)]
        release.set()


# -- time limits -------------------------------------------------------------------------------------------------------


class StallsOnce(DataFlow):
    """Waits, once, until it is let go."""

    def __init__(self, release):
        self.release = release

    def __iter__(self):
        k = 0
        while True:
            yield [k]
            k += 1
            if k == 3:
                self.release.wait(LIMIT)


@kinds
def test_a_late_datapoint_is_an_error_that_names_the_workers_and_the_flow_stays_usable(case):
    release = event_for(case)
    with runner(case, lambda: StallsOnce(release)) as df:
        assert list(islice(df, 3)) == [[0], [1], [2]]
        df.options = replace(df.options, timeout=0.2)  # from here on nothing comes
        iterator = iter(df)
        with pytest.raises(dataflow.TimeoutError, match=r"for 0.2 seconds .*worker 0: .*(pid \d+, |thread )") as caught:
            next(iterator)
        assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, TimeoutError)
        release.set()
        df.options = replace(df.options, timeout=LIMIT)
        assert list(islice(df, 3)) == [[3], [4], [5]]


# -- forked processes --------------------------------------------------------------------------------------------------


@kinds
def test_a_forked_process_starts_workers_of_its_own_and_leaves_the_parents_alone(case):
    with runner(case, Forever) as df:
        iterator = iter(df)
        assert next(iterator) == [0]
        pid = os.fork()
        if not pid:
            code = 1
            try:
                with pytest.raises(DataFlowTerminated):
                    list(iterator)
                code = 2
                assert list(islice(df, 3)) == [[0], [1], [2]]
                df.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert list(islice(iterator, 3)) == [[1], [2], [3]]


# -- how far workers run ahead -----------------------------------------------------------------------------------------


def settled(made, least=1):
    """What the workers have made, once all have begun, all together have made `least`, and none of them makes more.

    A worker that only has a pause looks the same. So what is given back is never too much, but it may be too little.
    """
    last = []

    def unchanged():
        last.append(list(made))
        return len(last) > 5 and last[-5:] == [last[-1]] * 5 and all(last[-1]) and sum(last[-1]) >= least

    wait_until(unchanged, LIMIT, lambda: f"still running, or less than {least}: {last[-3:]}")
    return last[-1]


@pytest.mark.parametrize(("prefetch", "case"), covering([0, 1, 2, 5, 50], FORK))
def test_a_worker_makes_no_more_than_twice_the_bound_and_two_ahead(case, prefetch):
    made = multiprocessing.RawArray("q", 2)
    with runner(case, lambda: Forever(made), 2, prefetch=prefetch) as df:
        df.reset_state()
        assert max(settled(made)) <= 2 * prefetch + 2
        assert min(made) >= 1  # at least one is always under way
        taken = [0, 0]
        for number in (1, 1, 5, 40, 1):
            # Which worker made it is unknown: the sum of both is bounded too.
            taken[0] += len(list(islice(df, number)))
            ahead = sum(settled(made, taken[0] + 1)) - taken[0]  # at least one, as before
            assert ahead <= 2 * (2 * prefetch + 2)


@pytest.mark.parametrize(("prefetch", "case"), covering([0, 1, 2, 5, 50], FORK))
def test_the_bound_holds_in_the_middle_of_the_data_too(case, prefetch):
    made = multiprocessing.RawArray("q", 1)
    with runner(case, lambda: Forever(made), prefetch=prefetch) as df:
        iterator, taken = iter(df), 0
        for number in (1, 2, 3, 17, 64, 100):
            taken += len(list(islice(iterator, number)))
            assert settled(made)[0] - taken <= 2 * prefetch + 2


@pytest.mark.parametrize("case", FORK[:2], ids=KINDS[:2])
@pytest.mark.parametrize(("size", "least", "most"), [(0, 50, 40_000), (100_000, 50, 102), (3000, 60, 300)])
def test_by_default_fifty_or_a_quarter_of_a_mebibyte_are_under_way(case, size, least, most):
    made = multiprocessing.RawArray("q", 1)
    with runner(case, lambda: Forever(made, size), prefetch=None) as df:
        df.reset_state()
        assert settled(made, least if case[0] == "zmq" else 1)[0] <= most  # a pipe holds 64 KiB and no more


def test_threads_have_a_bound_too_where_none_is_given():
    made = multiprocessing.RawArray("q", 1)
    with runner("thread", lambda: Forever(made), prefetch=None) as df:
        df.reset_state()
        assert settled(made)[0] <= 102


@kinds
def test_a_nested_runner_keeps_its_bound_as_well(case):
    made = multiprocessing.RawArray("q", 1)
    with runner(case, lambda: runner("process", lambda: Forever(made), prefetch=3), prefetch=2) as df:
        df.reset_state()
        assert settled(made)[0] <= (2 * 3 + 2) + (2 * 2 + 2)


@pytest.mark.parametrize("case", FORK[:2], ids=KINDS[:2])
def test_the_memory_of_a_consumer_that_pauses_is_bounded(case):
    with runner(case, lambda: Forever(size=1_000_000), prefetch=5) as df:
        before = psutil.Process().memory_info().rss
        made = multiprocessing.RawArray("q", 1)
        with runner(case, lambda: Forever(made, 1_000_000), prefetch=5) as other:
            other.reset_state()
            settled(made)
        next(iter(df))
        assert psutil.Process().memory_info().rss - before < 60_000_000
