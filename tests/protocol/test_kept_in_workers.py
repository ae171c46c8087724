"""Two passes of a node at the same time, at least one of them in a worker, and passes here after those of workers."""

import itertools
import pickle
import threading
from dataclasses import replace
from weakref import ref

import pytest

from dataflow import (
    AsyncMapData,
    ConcatData,
    DataFlow,
    FixedSizeData,
    JoinData,
    MapData,
    MultiProcessMapData,
    MultiThreadMapData,
    NotReproducible,
    RepeatedData,
    ResumableData,
)
from dataflow.protocol.kept import parts_of_workers, report
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import Taken
from tests.protocol.keeping import NUM, TWO, Keeping, add, as_it_is, in_process, in_thread, passes, value

pytestmark = pytest.mark.usefixtures("unseeded")


def add_and_value(df):
    add(df)
    return df.kept


class Counting(DataFlow):
    """It counts its passes as they begin."""

    def __init__(self):
        self.kept = 0

    def __iter__(self):
        self.kept += 1
        yield from ([k, self.kept] for k in range(NUM))


CHANGING = {
    "as a pass begins": Counting,
    "at each step": lambda: Keeping(0, add_and_value),
    "as a pass ends": lambda: Keeping(0, value, add),
}
AT_THE_SAME_TIME = "two passes were made at the same time"


@pytest.mark.parametrize(
    ("when", "first", "second"),
    [
        pytest.param(when, *two, marks=() if when == "as a pass begins" or two == TWO[3] else pytest.mark.full)
        for when, two in itertools.product(CHANGING, TWO[1:])
    ],
)
def test_passes_of_a_node_at_the_same_time_are_refused_if_it_keeps_something(first, second, when):
    node = CHANGING[when]()
    with (
        JoinData([first(lambda: node), second(lambda: node)]) as df,
        pytest.raises(NotReproducible, match=rf"\.kept .*{AT_THE_SAME_TIME}.*make one {type(node).__name__} for each"),
    ):
        list(df)


class MakesWhenNeeded(DataFlow):
    def __init__(self):
        self.lock = None

    def __iter__(self):
        self.lock = self.lock or threading.Lock()
        with self.lock:
            numbers = list(range(NUM))
        yield from ([k] for k in numbers)


@pytest.mark.parametrize(("first", "second"), [(in_process, as_it_is), (as_it_is, in_thread), (in_thread, in_process)])
def test_passes_of_a_node_at_the_same_time_are_made_if_it_keeps_nothing(first, second):
    node = MakesWhenNeeded()
    with JoinData([first(lambda: node), second(lambda: node)]) as df:
        assert [list(df), list(df)] == [[[k, k] for k in range(NUM)]] * 2


@pytest.mark.parametrize("above", [in_thread, in_process])
@pytest.mark.parametrize("make", [Counting, lambda: MapData(Counting(), list)], ids=["itself", "below a map"])
def test_a_loop_over_a_node_follows_one_over_its_runner(make, above):
    expected = passes(make(), 4)
    df = make()
    with above(lambda: df) as runner:
        assert [passes(flow, 1)[0] for flow in (runner, df, runner, df)] == expected


@pytest.mark.parametrize("above", [in_thread, in_process])
@pytest.mark.parametrize("make", [Counting, lambda: MapData(Counting(), list)], ids=["itself", "below a map"])
def test_a_pass_that_has_begun_before_that_of_a_worker_is_refused_only_as_it_goes_on_to_its_end(make, above):
    df = make()
    begun = iter(df)
    assert next(begun) == [0, 1]
    with above(lambda: df) as runner:
        assert list(runner) == [[k, 2] for k in range(NUM)]
        assert next(begun)[0] == 1
        with pytest.raises(NotReproducible, match=AT_THE_SAME_TIME):
            list(begun)
        assert list(runner) == [[k, 3] for k in range(NUM)]


@pytest.mark.parametrize("above", [in_thread, in_process])
@pytest.mark.parametrize("make", [Counting, lambda: MapData(Counting(), list)], ids=["itself", "below a map"])
def test_a_pass_beside_one_of_a_worker_that_is_not_over_is_refused(make, above):
    df = make()
    with above(lambda: df) as runner:
        begun = iter(runner)
        next(begun)
        with pytest.raises(NotReproducible, match=AT_THE_SAME_TIME):
            list(df)
        begun.close()


@pytest.mark.parametrize("above", [in_thread, in_process])
@pytest.mark.parametrize(("make", "is_kept"), [(Counting, True), (MakesWhenNeeded, False)])
def test_a_pass_after_one_of_a_worker_that_was_left_is_logged_for_a_node_that_keeps_something(
    make, is_kept, above, caplog
):
    df = make()
    with above(lambda: df) as runner:
        next(iter(runner))
        list(df)
        assert ["left early" in message for message in caplog.messages] == [True] * is_kept


@pytest.mark.parametrize("above", [in_thread, in_process])
def test_a_pass_that_is_begun_anew_while_its_iterator_is_held_is_no_second_one(above):
    with above(Counting) as runner:
        begun = iter(runner)
        next(begun)
        assert [k for k, _ in runner] == [k for k, _ in runner] == list(range(NUM))
        begun.close()


@pytest.mark.parametrize("above", [in_thread, in_process])
def test_a_pass_that_is_not_over_is_forgotten_as_a_state_is_loaded(above):
    node = Counting()
    with ResumableData(ConcatData([above(lambda: node), above(lambda: node)])) as df:
        first = df.state_dict()
        expected = list(df)
        begun = iter(df)
        assert len(list(itertools.islice(begun, NUM + 1))) == NUM + 1  # the second runner has begun its pass
        df.load_state_dict(first)
        assert list(df) == expected
        begun.close()


def same(dp):
    return dp


async def same_later(dp):
    return dp


AHEAD = {
    "AsyncMapData": lambda node: AsyncMapData(node, same_later, 2),
    "map in threads": lambda node: MultiThreadMapData(node, 2, same, buffer_size=4, strict=True),
    "map in processes": lambda node: MultiProcessMapData(node, 1, same, buffer_size=4, strict=True),
}
reads_ahead = pytest.mark.parametrize("ahead", AHEAD.values(), ids=AHEAD)


@pytest.mark.parametrize("when", CHANGING)
@pytest.mark.parametrize("order", [1, -1])
@reads_ahead
def test_a_pass_that_is_read_ahead_beside_another_is_refused_if_the_node_keeps_something(ahead, order, when):
    node = CHANGING[when]()
    inputs = [ahead(node), MapData(node, same)][::order]
    with JoinData(inputs) as df, pytest.raises(NotReproducible, match=AT_THE_SAME_TIME):
        list(df)
    with ahead(node) as df:
        assert len(list(df)) == len(list(node)) == len(list(df)) == NUM  # one after the other


@pytest.mark.parametrize(
    "beside", [in_thread, in_process, *(lambda make, ahead=ahead: ahead(make()) for ahead in AHEAD.values())]
)
def test_so_is_one_beside_another_that_is_read_ahead(beside):
    node = Counting()
    with (
        JoinData([AHEAD["AsyncMapData"](node), beside(lambda: node)]) as df,
        pytest.raises(NotReproducible, match=AT_THE_SAME_TIME),
    ):
        list(df)


@reads_ahead
def test_so_is_one_beside_another_that_was_read_to_its_end_by_what_reads_ahead_above(ahead):
    node = Counting()
    with (
        JoinData([AHEAD["map in threads"](ahead(node)), MapData(node, same)]) as df,
        pytest.raises(NotReproducible, match=AT_THE_SAME_TIME),
    ):
        list(df)


def test_what_reads_a_pass_ahead_here_is_not_sent_to_workers():
    stream = replace(Stream(1, ((2, 3),), standalone="and"), ahead=Taken(Stream(1), ref(Counting())))
    sent = pickle.loads(pickle.dumps(stream))
    assert sent == stream and sent.standalone == "and" and sent.ahead is None


@reads_ahead
def test_two_loops_in_each_other_are_two_passes(ahead):
    node = Counting()
    with ahead(node) as df, pytest.raises(NotReproducible, match=AT_THE_SAME_TIME):
        [list(node) for _ in df]


IN_ORDER = {
    "one that reads ahead above another": lambda node, ahead: ahead(MapData(ahead(node), same)),
    "above two passes": lambda node, ahead: ahead(JoinData([node, node])),
    "one pass after the other": lambda node, ahead: ConcatData([ahead(node), node, ahead(node)]),
    "repeated": lambda node, ahead: RepeatedData(ahead(RepeatedData(node, 2)), 2),
    "over the ends of passes": lambda node, ahead: ahead(FixedSizeData(node, NUM + 1)),
    "a runner below": lambda node, ahead: ahead(in_thread(lambda: node)),
    "a process below, to which its place is sent": lambda node, ahead: ahead(in_process(lambda: node, "forkserver")),
    "below a runner": lambda node, ahead: in_thread(lambda: ahead(node)),
}


@pytest.mark.parametrize("chain", IN_ORDER.values(), ids=IN_ORDER)
@reads_ahead
def test_what_reads_ahead_in_order_yields_what_no_workers_yield(chain, ahead, caplog):
    def as_it_is(ds):
        return MapData(ds, same)

    expected = passes(chain(Counting(), as_it_is), 4)
    with chain(Counting(), ahead) as df:
        assert passes(df, 4) == expected
    assert caplog.messages == []


@reads_ahead
def test_a_pass_after_one_that_was_read_ahead_and_left_is_logged(ahead, caplog):
    node = Counting()
    with ahead(node) as df:
        begun = iter(df)
        next(begun)
        begun.close()
        list(node)
        assert ["left early" in message for message in caplog.messages] == [True]


@reads_ahead
def test_what_was_read_ahead_is_over_as_the_flow_is_closed(ahead):
    node = Counting()
    df = ahead(node)
    begun = iter(df)
    next(begun)
    df.close()
    assert len(list(node)) == NUM
    del begun


class KeepsWhatItHasMade(DataFlow):
    def __init__(self):
        self.numbers = None

    def __iter__(self):
        if self.numbers is None:
            self.numbers = list(range(NUM))
        yield from ([k] for k in self.numbers)


@pytest.mark.parametrize(
    "above", [in_thread, in_process, *(lambda make, ahead=ahead: ahead(make()) for ahead in AHEAD.values())]
)
def test_what_an_earlier_pass_has_changed_is_no_reason_to_refuse_two_at_the_same_time(above):
    node = KeepsWhatItHasMade()
    with above(lambda: node) as runner:
        expected = list(runner)
        for first, second in [(runner, node), (node, runner)]:
            begun = iter(first)
            assert [next(begun), *second, *begun] == [expected[0], *expected, *expected[1:]]


@pytest.mark.parametrize("above", [in_thread, in_process])
def test_a_pass_that_is_not_over_is_forgotten_as_its_runner_is_closed(above):
    node = Counting()
    with above(lambda: node) as runner, above(lambda: node) as other:
        begun = iter(runner)
        next(begun)
        runner.close()
        assert len(list(other)) == NUM
        begun.close()


@pytest.mark.parametrize("renew", ["close", "reset_state"])
@pytest.mark.parametrize(("make", "is_kept"), [(Counting, True), (MakesWhenNeeded, False)])
def test_a_pass_after_one_that_was_left_is_logged_even_if_its_runner_begins_anew(make, is_kept, renew, caplog):
    node = make()
    with in_process(lambda: node) as runner:
        next(iter(runner))
        getattr(runner, renew)()
        list(node)
        assert ["left early" in message for message in caplog.messages] == [True] * is_kept


def test_what_a_thread_has_changed_counts_from_the_beginning_of_its_own_pass():
    node = Counting()
    with in_thread(lambda: node) as runner, in_process(lambda: node) as other:
        begun = iter(runner)
        next(begun)
        iter(other)
        with pytest.raises(NotReproducible, match=AT_THE_SAME_TIME):
            list(begun)


def test_a_pass_is_refused_at_once_if_a_worker_that_is_ahead_of_the_loop_has_changed_something():
    node = Counting()
    with in_process(lambda: node) as runner, in_process(lambda: node) as other:
        parts = parts_of_workers(runner, node, Taken(Stream(1)), are_copies=True)
        report(parts, [{"kept": 1}])
        with pytest.raises(NotReproducible, match=AT_THE_SAME_TIME):
            list(node)
        with pytest.raises(NotReproducible, match=AT_THE_SAME_TIME):
            list(other)
        parts[0].taken.is_over = True
        assert [*node, *other] == [[k, p] for p in (2, 3) for k in range(NUM)]


def test_a_worker_whose_pass_goes_on_after_another_is_refused_if_it_has_changed_something():
    node = Counting()
    begun = iter(node)
    next(begun)
    with in_process(lambda: node) as runner:
        parts = parts_of_workers(runner, node, Taken(Stream(1)), are_copies=True)
        assert list(begun) == [[k, 1] for k in range(1, NUM)]
        report(parts, [{}])
        with pytest.raises(NotReproducible, match=AT_THE_SAME_TIME):
            report(parts, [{"kept": 2}])
