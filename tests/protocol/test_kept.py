"""What users' nodes keep from pass to pass goes to the process that resumes, and to the successor of a worker."""

import functools
import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest

from dataflow import (
    CacheData,
    ConcatData,
    DataFlow,
    DataFromGenerator,
    MapData,
    MultiProcessRunnerZMQ,
    NotReproducible,
    ProxyDataFlow,
    RepeatedData,
    ResumableData,
    StateMismatch,
    seed,
)
from dataflow.protocol.kept import reading_ahead
from dataflow.protocol.seeding import Stream
from tests.protocol.keeping import (
    ABOVE,
    NUM,
    TWO,
    Began,
    Keeping,
    OfClass,
    add,
    as_it_is,
    check_resuming,
    double,
    in_process,
    in_thread,
    in_thread_in_process,
    of_pcg,
    passes,
    saved,
    value,
)
from tests.support.contract import plain
from tests.support.interrupts import act_at_each_line
from tests.support.waits import LIMIT

pytestmark = pytest.mark.usefixtures("unseeded")


IN_PROCESSES = [
    pytest.param(in_process, id="in a process"),
    pytest.param(functools.partial(in_process, context="forkserver"), id="under forkserver"),
    pytest.param(functools.partial(in_process, context="spawn"), id="in a spawned process", marks=pytest.mark.full),
]


SIMPLE = {
    "number": lambda: Keeping(0, value, add),
    "position": Began,
    "Generator": lambda: Keeping(np.random.default_rng(1), of_pcg),
}


def doubling():
    return Keeping(1, double)


@pytest.mark.parametrize("name", ["number", "position", pytest.param("Generator", marks=pytest.mark.full)])
@pytest.mark.parametrize("above", IN_PROCESSES)
def test_workers_of_other_processes_get_it(name, above):
    seed(1)
    if above is not in_process:
        name = "position"  # functions of this file are sent by name, local ones are not
        make = Began
    else:
        make = SIMPLE[name]
    expected = passes(make(), 3)
    with ResumableData(above(make)) as df:
        passes(df, 1)
        assert plain(next(iter(df))) == expected[1][0]
        state = saved(df)
    with ResumableData(above(make)) as resumed:
        resumed.load_state_dict(state)
        assert [plain(dp) for dp in resumed] == expected[1][1:]
        assert passes(resumed, 1) == expected[2:]


def test_the_state_says_what_is_kept_and_nothing_else():
    df = ResumableData(Keeping(0, value, add))
    assert "kept" not in df.state_dict()
    passes(df, 2)
    assert df.state_dict()["kept"] == [{"kept": 2}]


def test_a_state_that_is_loaded_later_goes_back():
    df = ResumableData(OfClass())
    first = df.state_dict()
    expected = passes(df, 2)
    second = df.state_dict()
    passes(df, 2)
    df.load_state_dict(first)
    assert passes(df, 2) == expected
    df.load_state_dict(second)
    assert [dp[1] for dp in df] == [2] * NUM


@pytest.mark.parametrize(
    "above",
    [in_process, in_thread, ABOVE["below a parallel map"], ABOVE["in a thread in a thread"]],
    ids=["process", "thread", "map", "in a thread in a thread"],
)
def test_a_state_that_is_loaded_after_a_loop_that_was_left_early_goes_back(above):
    with ResumableData(above(lambda: Keeping(0, value, add))) as df:
        first = df.state_dict()
        expected = passes(df, 2)
        second = df.state_dict()
        next(iter(df))
        df.load_state_dict(first)
        assert passes(df, 2) == expected
        next(iter(df))
        df.load_state_dict(second)
        assert passes(df, 1) == [[("list", [k, 2]) for k in range(NUM)]]


class Gated(DataFlow):
    """It counts its passes, each of which ends once the gate is open."""

    gate = threading.Event()

    def __init__(self):
        self.kept = 0

    def __iter__(self):
        for k in range(NUM):
            yield [k, self.kept]
        assert self.gate.wait(LIMIT)
        self.kept += 1


def test_a_pass_that_was_left_may_end_in_threads_of_threads_after_a_state_was_loaded():
    with ResumableData(ABOVE["in a thread in a thread"](Gated)) as df:
        first = df.state_dict()
        Gated.gate.set()
        expected = passes(df, 2)
        Gated.gate.clear()
        left = iter(df)
        next(left)
        time.sleep(0.2)  # in which the outer thread begins to wait for the end of the pass
        left.close()
        df.load_state_dict(first)
        Gated.gate.set()
        time.sleep(0.2)  # in which it ends
        assert passes(df, 2) == expected


@pytest.mark.parametrize(("first", "second"), [two for two in TWO if two != (as_it_is, as_it_is)])
def test_whoever_makes_the_next_pass_of_a_node_continues_with_what_it_keeps(first, second):
    def chain(first, second):
        df = Keeping(0, value, add)
        return ConcatData([first(lambda: df), second(lambda: df)])

    expected = passes(chain(as_it_is, as_it_is), 5)
    with chain(first, second) as df:
        assert passes(df, 3) == expected[:3]
    with ResumableData(chain(first, second)) as df:
        states = [saved(df)]
        for k in range(2):
            assert passes(df, 1) == expected[k : k + 1]
            states.append(saved(df))
        for k in (1, 0, 2):
            df.load_state_dict(states[k])
            assert passes(df, 3) == expected[k : k + 3]
    with ResumableData(chain(first, second)) as df:
        df.load_state_dict(states[1])
        assert passes(df, 2) == expected[1:3]


class Seeded(DataFlow):
    """Counts its passes and resets, and draws from a generator that each reset makes anew, or only the first."""

    def __init__(self, once=False, mark=None):
        self.once = once
        self.mark = mark  # a file that is there once a pass has killed its process
        self.num = self.resets = 0
        self.generator = None

    def reset_state(self):
        self.resets += 1
        if not self.once or self.generator is None:
            self.generator = np.random.default_rng(5)

    def __len__(self):
        return NUM

    def __iter__(self):
        self.num += 1
        for k in range(NUM):
            if self.mark is not None and self.num == 3 and k == 1 and not os.path.exists(self.mark):
                open(self.mark, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            yield [self.num, self.resets, int(self.generator.integers(1000))]


def in_thread_in_thread(make):
    return in_thread(lambda: in_thread(make))


def in_process_in_process(make):
    return in_process(lambda: in_process(make))


@pytest.mark.parametrize(
    ("renew", "once"),
    [
        ("close", False),
        ("reset_state", True),
        pytest.param("close", True, marks=pytest.mark.full),
        pytest.param("reset_state", False, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize(
    "above",
    [
        in_thread,
        in_process,
        in_thread_in_thread,
        in_thread_in_process,
        pytest.param(in_process_in_process, marks=pytest.mark.full),
        pytest.param(functools.partial(in_process, context="forkserver"), id="forkserver", marks=pytest.mark.full),
    ],
)
def test_a_reset_comes_after_what_was_kept_and_before_a_state_that_is_loaded(above, renew, once):
    def make():
        return Seeded(once)

    def loops(df):
        found = [list(df), list(df)]
        for _ in range(2):
            getattr(df, renew)()
            found += [list(df), list(df)]
        return found

    expected = loops(make())
    assert (expected[2][0][2] == expected[0][0][2]) is not once
    with above(make) as df:
        assert loops(df) == expected

    def resumed(df):
        getattr(df, renew)()
        states = [saved(df)]
        passes(df, 2)
        states.append(saved(df))
        getattr(df, renew)()
        datapoints = iter(df)
        found = [next(datapoints)]
        states.append(saved(df))
        found += datapoints
        df.load_state_dict(states[1])
        getattr(df, renew)()
        return [*found, *df], states

    with ResumableData(make()) as df:
        expected, states = resumed(df)
    with ResumableData(above(make)) as df:
        found, same = resumed(df)
    assert found == expected
    for state in (states, same):
        for k, rest in ((1, expected[NUM:]), (2, expected[1:NUM])):
            for resumes in (make, above):
                with ResumableData(resumes(make) if resumes is above else make()) as df:
                    df.load_state_dict(state[k])
                    assert [dp[::2] for dp in df] == [dp[::2] for dp in rest]


@pytest.mark.parametrize("above", [as_it_is, in_thread, in_process, in_thread_in_process])
def test_a_state_that_is_saved_after_close_says_that_a_reset_is_next(above):
    with ResumableData(above(Seeded)) as df:
        passes(df, 1)
        df.close()
        state = saved(df)
        expected = list(df)
    for resumes in (as_it_is, above):
        with ResumableData(resumes(Seeded)) as df:
            df.load_state_dict(state)
            assert list(df) == expected
    damaged = {**state, "kept": [{**state["kept"][0], "reset_state()": 1}]}
    with pytest.raises(StateMismatch, match="cannot keep 'reset_state"):
        ResumableData(above(Seeded)).load_state_dict(damaged)


class Exclusive(ProxyDataFlow):
    """Opens something that can be open once in a process, and counts its passes."""

    def __init__(self, ds):
        super().__init__(ds)
        self.num = 0
        self.is_open = False

    def reset_state(self):
        super().reset_state()
        assert not self.is_open, "it is open already"
        self.is_open = True

    def close(self):
        super().close()
        self.is_open = False

    def __iter__(self):
        assert self.is_open
        self.num += 1
        for dp in self.ds:
            yield [self.num, *dp]


@pytest.mark.parametrize("above", [in_process, in_thread, in_thread_in_process])
def test_what_close_has_closed_is_closed_before_the_second_reset(above):
    def loops(df):
        found = []
        for _ in range(3):
            found += [list(df), list(df)]
            df.close()
        return found

    assert loops(above(lambda: Exclusive(Seeded()))) == loops(Exclusive(Seeded()))


class Renewing(ProxyDataFlow):
    """It resets its input as each of its passes begins."""

    def __iter__(self):
        self.ds.reset_state()
        yield from self.ds


@pytest.mark.parametrize("inner", [in_thread, in_process])
def test_a_reset_by_the_code_of_a_pass_comes_after_the_state_with_which_the_pass_begins(inner):
    def resumed(above, inner):
        with ResumableData(above(lambda: Renewing(inner(Seeded)))) as df:
            states, found = [], []
            for _ in range(3):
                found.append([dp[::2] for dp in df])
                states.append(saved(df))
            for state in states:
                df.load_state_dict(state)
                found.append([dp[::2] for dp in df])
        return found

    expected = resumed(as_it_is, as_it_is)
    assert resumed(as_it_is, inner) == resumed(in_thread, inner) == expected


class CountsResets(DataFlow):
    """It keeps nothing from pass to pass."""

    def __init__(self):
        self.resets = 0

    def reset_state(self):
        self.resets += 1

    def __iter__(self):
        for k in range(NUM):
            yield [k, self.resets]


@pytest.mark.parametrize("above", [in_process, in_thread, in_thread_in_thread, in_thread_in_process])
def test_a_node_that_counts_its_resets_counts_those_of_all_workers(above):
    def loops(df):
        found = [list(df)]
        for renew in (df.close, df.reset_state, df.close):
            renew()
            found += [[next(iter(df))], list(df)]
        df.close()
        return found

    assert loops(above(CountsResets)) == loops(CountsResets())


@pytest.mark.parametrize("above", [in_process, in_thread])
def test_a_pass_after_a_reset_that_is_left_early_is_not_logged_for_a_node_that_keeps_nothing(above, caplog):
    with above(lambda: Keeping(0, value)) as df:
        passes(df, 1)
        df.reset_state()
        for _ in range(2):
            next(iter(df))
        assert not caplog.records


def test_code_may_reset_a_flow_that_it_holds_out_of_sight_as_a_whole():
    def loops(above):
        df = above(lambda: Hiding(MapData(Seeded(), list)))
        found = [list(df)]
        for renew in (df.reset_state, df.close):
            renew()
            found.append(list(df))
        df.close()
        return found

    expected = loops(as_it_is)
    assert [dp[1] for (dp, *_) in expected] == [1, 2, 3]
    assert loops(in_thread) == expected


@pytest.mark.parametrize("renew", ["close", "reset_state"])
def test_what_a_flow_keeps_that_is_not_found_is_refused_in_a_worker_that_has_not_made_the_passes_before(renew):
    def loops(df):
        found = [list(df), list(df)]
        getattr(df, renew)()
        return [*found, list(df)]

    assert loops(in_thread(lambda: Hiding(OfClass()))) == loops(Hiding(OfClass()))
    with (
        in_process(lambda: Hiding(OfClass())) as df,
        pytest.raises(NotReproducible, match=r"OfClass.epoch is kept .* in a flow that another node's code begins"),
    ):
        loops(df)


def test_the_successor_of_a_worker_that_was_reset_is_reset_too(tmp_path):
    def loops(df):
        found = [list(df), list(df)]
        df.close()
        return [*found, list(df), list(df)]

    mark = str(tmp_path / "killed")
    with MultiProcessRunnerZMQ(Seeded(mark=mark), 1, strict=True, max_restarts=1) as df:
        found = loops(df)
    assert os.path.exists(mark)
    assert found == loops(Seeded())


@pytest.mark.parametrize("renew", ["close", "reset_state"])
@pytest.mark.parametrize(("first", "second"), [*itertools.product([in_process, in_thread], repeat=2)])
def test_a_reset_of_one_of_two_runners_over_a_node_resets_it(first, second, renew):
    def loops(first, second):
        df = Seeded()
        with first(lambda: df) as one, second(lambda: df) as other:
            found = [list(one), list(other)]
            for renewed, next_one in ((one, one), (one, other), (other, one), (other, other)):
                getattr(renewed, renew)()
                found += [list(next_one), list(one), list(other)]
        return [[(dp[0], dp[2]) for dp in each] for each in found]

    assert loops(first, second) == loops(lambda make: MapData(make(), list), lambda make: MapData(make(), list))


class CountsLate(DataFlow):
    """Changes what it keeps after its first datapoint, too, once it may go on."""

    def __init__(self):
        self.num = 0
        self.may_go_on = threading.Event()

    def __iter__(self):
        self.num += 1
        yield self.num
        self.may_go_on.wait(LIMIT)
        self.num += 10
        yield self.num


@pytest.mark.parametrize("other", [as_it_is, in_thread])
def test_a_pass_that_was_left_ends_before_a_state_is_loaded_for_another(other):
    node = CountsLate()
    node.may_go_on.set()
    with ResumableData(ConcatData([other(lambda: node), in_thread(lambda: node)])) as df:
        states, expected = [saved(df)], [list(df)]
        assert expected == [[1, 11, 12, 22]]
        df.load_state_dict(states[0])
        for k, num in enumerate(df):
            if k == 1:
                node.may_go_on.clear()
            if num == 12:  # the thread waits, or is about to
                break
        # It goes on while the state is loaded; that it has done so by then, nobody can tell from here.
        timer = threading.Timer(0.1, node.may_go_on.set)
        timer.start()
        df.load_state_dict(states[0])
        assert list(df) == expected[0]
        timer.join()


@pytest.mark.parametrize(("first", "second"), [*itertools.product([in_process, in_thread], repeat=2)])
def test_two_runners_over_one_node_get_what_the_user_changes_between_passes(first, second):
    df = Keeping(0, value)
    with first(lambda: df) as one, second(lambda: df) as other:
        for epoch in range(3):
            df.kept = epoch
            assert passes(one, 1) == passes(other, 1) == [[("list", [k, epoch]) for k in range(NUM)]]


def test_another_thread_may_begin_to_read_ahead_at_any_line():
    df = RepeatedData(Keeping(0, value, add), 1)

    def begin():
        return reading_ahead(df, Stream(1), "Runner")

    def run(traced):
        begin()
        with traced(begin):
            begin()

    act_at_each_line(run, "protocol/kept.py", 10)


def test_below_a_cache_nothing_is_kept():
    check_resuming(lambda: CacheData(Keeping(np.random.default_rng(1), of_pcg), shuffle=False))


@pytest.mark.parametrize("strict", [in_process, in_thread], ids=["process", "thread"])
def test_whole_passes_in_a_worker_are_those_of_the_node_itself(strict):
    with strict(OfClass) as df:
        assert passes(df, 3) == passes(OfClass(), 3)


@pytest.mark.parametrize("reads_ahead", [in_thread, ABOVE["below a parallel map"]], ids=["runner", "map"])
def test_after_a_loop_that_was_left_early_what_changes_at_each_step_is_logged_once(reads_ahead, caplog):
    with reads_ahead(doubling) as df:
        passes(df, 1)
        assert not caplog.records
        for _ in range(2):
            assert plain(next(iter(df)))
            assert len(list(df)) == NUM
        (message,) = [record.getMessage() for record in caplog.records]
        assert message.startswith("Keeping.kept is kept from pass to pass, and a pass was left early")


def close(df, node):
    df.close()


def reset(df, node):
    df.reset_state()


def change(df, node):
    node.other = object()  # for which a runner of processes starts others


@pytest.mark.parametrize(
    ("reads_ahead", "begin_anew"),
    [*itertools.product([in_thread, in_process, ABOVE["below a parallel map"]], [close, reset]), (in_process, change)],
)
def test_after_a_loop_that_was_left_early_it_is_logged_even_if_the_flow_begins_anew(reads_ahead, begin_anew, caplog):
    for step, is_kept in ((double, True), (value, False)):
        node = Keeping(1, step)
        with reads_ahead(lambda node=node: node) as df:
            assert len(list(df)) == NUM
            begin_anew(df, node)
            assert len(list(df)) == NUM
            assert caplog.messages == []
            assert plain(next(iter(df)))
            begin_anew(df, node)
            assert len(list(df)) == NUM
            assert len(list(df)) == NUM
        assert ["Keeping.kept is kept" in message for message in caplog.messages] == [True] * is_kept
        caplog.clear()
    with ResumableData(reads_ahead(doubling)) as df:
        state = saved(df)
        assert plain(next(iter(df)))
        begin_anew(df, df.ds)
        df.load_state_dict(state)
        assert passes(df, 1) == passes(ResumableData(doubling()), 1)
        assert caplog.messages == []


@pytest.mark.parametrize("reads_ahead", [in_thread, in_process], ids=["thread", "process"])
def test_a_worker_begins_the_pass_after_one_that_was_left_early_as_that_one(reads_ahead):
    seed(1)
    with reads_ahead(doubling) as df:
        passes(df, 2)
        for _ in range(2):
            assert plain(next(iter(df))) == ("list", [0, 128])
        assert passes(df, 1) == [[("list", [k, 128 << k]) for k in range(NUM)]]


@pytest.mark.parametrize("reads_ahead", [in_thread, ABOVE["below a parallel map"]], ids=["runner", "map"])
def test_after_a_loop_that_was_left_early_a_node_that_keeps_nothing_goes_on(reads_ahead):
    with reads_ahead(lambda: MapData(DataFromGenerator(lambda: iter([[1], [2], [3]])), list)) as df:
        for _ in range(3):
            assert plain(next(iter(df)))
        assert len(list(df)) == 3


@pytest.mark.parametrize("runner", [in_process, in_thread], ids=["process", "thread"])
def test_what_the_user_changes_between_passes_counts(runner):
    own = Keeping(0, value, add)
    with runner(lambda: own) as df:
        assert [dp[1] for dp in [*df, *df]] == [0] * NUM + [1] * NUM
        own.kept = 10
        assert [dp[1] for dp in [*df, *df]] == [10] * NUM + [11] * NUM


class KillsItself(DataFlow):
    """In its second pass its first process is killed."""

    def __init__(self, mark):
        self.epoch = 0
        self.mark = str(mark)

    def __iter__(self):
        for k in range(NUM):
            if self.epoch == 1 and k == 1 and not os.path.exists(self.mark):
                open(self.mark, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            yield [k, self.epoch]
        self.epoch += 1


def test_the_successor_of_a_worker_gets_it(tmp_path):
    with MultiProcessRunnerZMQ(KillsItself(tmp_path / "killed"), 1, strict=True, max_restarts=1) as df:
        assert passes(df, 3) == [[("list", [k, p]) for k in range(NUM)] for p in range(3)]
        assert (tmp_path / "killed").exists()


class Hiding(DataFlow):
    """It iterates a flow that is not found in it."""

    def __init__(self, ds):
        self.flows = [("name", ds)]

    def __iter__(self):
        for _, ds in self.flows:
            yield from ds


@pytest.mark.parametrize("above", [ABOVE["alone"], ABOVE["in a thread"]], ids=["alone", "in a thread"])
def test_what_a_flow_keeps_that_is_not_found_is_refused(above):
    def save_in_the_third_pass(df):
        passes(df, 2)
        df.state_dict()

    message = r"OfClass.epoch is kept .* in a flow that another node's code begins"
    with ResumableData(above(lambda: Hiding(OfClass()))) as df, pytest.raises(NotReproducible, match=message):
        save_in_the_third_pass(df)
    with ResumableData(above(lambda: Hiding(MapData(DataFromGenerator(lambda: iter([[1]])), list)))) as df:
        passes(df, 2)
        df.state_dict()


def test_a_function_may_not_begin_a_flow_that_keeps_something():
    flow = OfClass()
    df = MapData(DataFromGenerator(lambda: iter([[1], [2]])), lambda dp: [*dp, list(flow)])
    with pytest.raises(
        NotReproducible, match=r"OfClass.epoch is kept from pass to pass, .* called for its datapoints in"
    ):
        list(df)
