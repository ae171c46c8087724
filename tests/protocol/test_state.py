"""What a flow remembers in this process, and iterators that go on from pass to pass."""

import copy
import os
import pickle
import threading

import pytest

from dataflow.errors import DataFlowTerminated, NotReentrant
from dataflow.protocol import seeding
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import Continued, FlowState, state_of
from tests.support.forks import exit_code_of_fork
from tests.support.waits import LIMIT, wait_until

HERE = Stream(1)
THERE = Stream(1, ((0, 1),))


class Plain:
    """Anything with attributes has a life."""


class Numbers:
    """A node that never waits, above no mixture."""

    _df_waits = False

    def _df_weights(self):
        return ()


def numbers():
    return iter(range(100))


def take(continued, stream=HERE, begin=numbers):
    return continued.take(stream, begin, Numbers())


def test_a_flow_has_one_life_in_a_process():
    df = Plain()
    state = state_of(df)
    assert state_of(df) is state
    assert state_of(Plain()) is not state


@pytest.mark.parametrize("_", range(20))
def test_threads_that_meet_continue_with_one_state(_):
    df, found, gate = Plain(), [], threading.Barrier(4)

    def meet():
        gate.wait()
        found.append(state_of(df))

    threads = [threading.Thread(target=meet) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


def test_threads_that_meet_in_a_forked_process_continue_with_one_state(monkeypatch):
    """Both have seen that the state is that of the parent before either has made another."""
    df, found, gate = Plain(), [], threading.Barrier(2)
    state_of(df).pid = -1  # as in a forked process
    make = FlowState.__init__
    monkeypatch.setattr(FlowState, "__init__", lambda state: (gate.wait(LIMIT), make(state))[1])
    threads = [threading.Thread(target=lambda: found.append(state_of(df))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    first, second = found
    assert first is second is state_of(df) and first.pid == os.getpid()


def test_a_forked_process_finds_a_fresh_life_and_leaves_the_old_one_alone():
    df = Plain()
    state = state_of(df)
    state.passes = 3
    take(state.continued)

    def fresh():
        mine = state_of(df)
        return mine is not state and mine.passes == 0 and state_of(df) is mine and state.passes == 3

    assert exit_code_of_fork(fresh) == 0
    assert state_of(df) is state


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copied_life_is_a_new_one(duplicate):
    state = FlowState()
    state.passes, state.ready = 4, True
    assert (duplicate(state).passes, duplicate(state).ready) == (0, False)


def test_the_root_is_the_fixed_one_or_entropy_drawn_once():
    state, other = FlowState(), FlowState()
    assert state.root() == state.root() != other.root()
    seeding.seed(5)
    try:
        assert state.root() == other.root() == 5
    finally:
        seeding.seed(None)
    assert state.root() == state.root() != 5


def test_a_pass_goes_on_where_the_last_one_stopped():
    continued = Continued()
    assert next(take(continued)) == 0
    assert next(take(continued)) == 1
    steps = take(continued)
    assert [next(steps), next(steps)] == [2, 3]
    steps.close()
    assert next(take(continued)) == 4


def test_what_ended_begins_again():
    continued = Continued()
    assert [list(take(continued, begin=lambda: iter("ab"))) for _ in range(2)] == [["a", "b"]] * 2


def test_the_later_taker_wins_at_the_call():
    continued = Continued()
    earlier = take(continued)
    assert next(earlier) == 0
    later = take(continued)
    with pytest.raises(NotReentrant, match="Numbers took over"):
        next(earlier)
    assert next(later) == 1
    with pytest.raises(StopIteration):
        next(earlier)


def test_places_do_not_share_an_iterator():
    continued = Continued()
    here, there = take(continued), take(continued, THERE)
    assert [next(here), next(here), next(there), next(here)] == [0, 1, 0, 2]


def test_another_root_begins_anew_and_forgets_the_old():
    continued = Continued()
    next(take(continued))
    assert next(take(continued, Stream(2))) == 0
    assert next(take(continued)) == 0


def test_an_error_in_the_iterator_comes_through_and_the_next_pass_begins_anew():
    def broken():
        yield 1
        raise KeyError("mine")

    continued = Continued()
    steps = take(continued, begin=broken)
    assert next(steps) == 1
    with pytest.raises(KeyError, match="mine"):
        next(steps)
    assert next(take(continued, begin=broken)) == 1


def test_whoever_steps_a_dropped_iterator_finds_the_flow_closed():
    continued = Continued()
    steps, there = take(continued), take(continued, THERE)
    continued.drop()
    for closed in (steps, there):
        with pytest.raises(DataFlowTerminated, match="Numbers was closed"):
            next(closed)
    assert next(take(continued)) == 0


def test_a_thread_that_was_overtaken_keeps_its_step_and_is_refused_the_next():
    entered, go_on = threading.Event(), threading.Event()

    def slow():
        entered.set()
        assert go_on.wait(LIMIT)
        yield from "abc"

    continued, outcome = Continued(), []

    def iterate():
        try:
            outcome.extend(take(continued, begin=slow))
        except NotReentrant:
            outcome.append(NotReentrant)

    thread = threading.Thread(target=iterate)
    thread.start()
    assert entered.wait(LIMIT)
    later = take(continued, begin=slow)  # while the earlier one is in the middle of its step
    go_on.set()
    thread.join(LIMIT)
    assert outcome == ["a", NotReentrant]
    assert list(later) == ["b", "c"]


def test_every_datapoint_goes_to_exactly_one_taker():
    continued, taken, stop = Continued(), [], threading.Event()

    def iterate():
        while not stop.is_set():
            mine = []
            try:
                for number in take(continued, begin=lambda: iter(range(10**9))):
                    mine.append(number)
                    if stop.is_set():
                        break
            except NotReentrant:
                pass
            taken.extend(mine)

    threads = [threading.Thread(target=iterate) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(taken) > 2000, LIMIT, "the takers got nowhere")
    stop.set()
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(taken) == list(range(len(taken)))


# -- parts -------------------------------------------------------------------------------------------------------------


class Notes:
    def __init__(self):
        self.seen = []


def test_each_owner_keeps_its_own_state_which_is_not_pickled():
    df = Plain()
    notes = state_of(df).part(Notes)
    notes.seen.append(1)
    assert state_of(df).part(Notes) is notes
    assert state_of(pickle.loads(pickle.dumps(df))).part(Notes).seen == []


def test_a_flow_that_stands_for_another_remembers_the_same():
    df, other = Plain(), Plain()
    state_of(df).share(Notes, state_of(other))
    assert state_of(df).part(Notes) is state_of(other).part(Notes)


def test_under_another_seed_what_nodes_note_is_forgotten():
    continued = Continued()
    first = continued.note(HERE, list)
    assert continued.note(HERE, list) is first and continued.note(THERE, list) is not first
    continued.note(Stream(2), list)
    assert continued.note(HERE, list) is not first


def test_a_flow_that_was_closed_since_it_failed_has_nothing_to_release():
    FlowState().settle()
