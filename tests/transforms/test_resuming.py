import copy
import functools
import itertools
import json
import queue
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import (
    BatchData,
    BucketBatchData,
    CacheData,
    ConcatData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    DataFromQueue,
    DiskCacheData,
    Dropped,
    FilterData,
    FixedSizeData,
    FlattenData,
    JoinData,
    LocallyShuffleData,
    MapData,
    MultiProcessMapAndBatchData,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    NotReproducible,
    PackData,
    PrintData,
    ProxyDataFlow,
    RandomChooseData,
    RandomMapData,
    RepeatedData,
    ResumableData,
    RNGDataFlow,
    ShuffleData,
    StateMismatch,
    TimeoutError,
)
from dataflow.protocol.fingerprints import describe_flow
from tests.support.chains import CHAINS, DROPPING, odd_only
from tests.support.contract import plain, seeded
from tests.support.pauses import Late, LateInOrder
from tests.support.waits import LIMIT, wait_until


def numbers(n, **kwargs):
    return DataFromList([[k] for k in range(n)], **kwargs)


def taken(df, num):
    """The next `num` datapoints of a loop that is then left."""
    return [plain(dp) for dp in itertools.islice(df, num)]


def steps(df, num):
    """The next `num` datapoints of a program that runs epoch after epoch."""
    found = []
    while len(found) < num:
        before = len(found)
        found += taken(df, num - len(found))
        assert len(found) > before, "two empty passes would be a hang"
    return found


def resumed(make, state):
    """The flow that another process resumes from a saved state: it has a different root seed."""
    df = ResumableData(make())
    df.load_state_dict(json.loads(json.dumps(state)))
    return df


def saved_after(make, num):
    df = ResumableData(make())
    found = steps(df, num)
    return found, df.state_dict()


def check_every_place(make, num, places=None):
    with seeded(11):
        expected = steps(ResumableData(make()), num)
    for k in range(num) if places is None else places:
        with seeded(11):
            found, state = saved_after(make, k)
        assert found == expected[:k]
        df = resumed(make, state)
        middle = (num - k) // 2
        found += steps(df, middle)
        found += steps(resumed(make, df.state_dict()), num - len(found))
        assert found == expected


@settings(max_examples=settings.default.max_examples // 2)
@given(CHAINS, st.data())
def test_any_chain_resumes_where_it_was_saved_also_twice(df, data):
    num = min(3 * len(df), 30)
    places = data.draw(st.lists(st.integers(0, num - 1), min_size=1, max_size=4, unique=True))
    check_every_place(lambda: copy.deepcopy(df), num, places)


@settings(max_examples=settings.default.max_examples // 4)
@given(DROPPING, st.data())
def test_a_dropped_datapoint_counts_as_a_position(df, data):
    with seeded(11):
        lengths = [len(list(df)) for _ in range(4)]
    num = sum(itertools.takewhile(bool, lengths))
    if num:
        places = data.draw(st.lists(st.integers(0, num - 1), min_size=1, max_size=4, unique=True))
        check_every_place(lambda: copy.deepcopy(df), num, places)


class Walk(RNGDataFlow):
    """A node of a user: without a length, and different in every pass."""

    def __init__(self, ds):
        self.ds = ds
        self.num_seen = 0

    def __iter__(self):
        for dp in self.ds:
            self.num_seen += 1
            if self.rng.random() < 0.8:
                yield [dp[0], float(self.rng.random())]


def count():
    for k in range(7):
        yield [k]


def pair(dp):
    return [dp[0], dp[0]]


def triple(dp):
    return [dp[0]] * 3


CHAINS_TO_REPLAY = {
    "choose": lambda: RandomChooseData([(numbers(5), 0.3), (numbers(20), 0.7)]),
    "filter": lambda: FilterData(numbers(9), odd_only),
    "generator": lambda: BatchData(DataFromGenerator(count), 3, remainder=True),
    "generator cached": lambda: CacheData(DataFromGenerator(count), shuffle=True),
    "generator mapped": lambda: RandomMapData(DataFromGenerator(count), lambda dp, rng: [dp[0], rng.random()]),
    "endless within": lambda: FilterData(FixedSizeData(RepeatedData(numbers(3), -1), 4), odd_only),
    "restarting": lambda: FixedSizeData(DataFromGenerator(count), 4, keep_state=False),
    "user": lambda: Walk(ConcatData([numbers(6), MapData(numbers(6), pair)])),
}


@pytest.mark.parametrize(
    "places",
    [pytest.param((0, 3, 8, 13), id="some"), pytest.param(range(16), id="every", marks=pytest.mark.full)],
)
@pytest.mark.parametrize("make", CHAINS_TO_REPLAY.values(), ids=CHAINS_TO_REPLAY)
def test_a_flow_without_indexes_is_computed_again_up_to_the_position(make, places):
    check_every_place(make, 16, places)


def test_an_endless_flow_resumes_too():
    check_every_place(lambda: RepeatedData(ShuffleData(numbers(4)), -1), 20)


def test_the_first_loop_gets_the_rest_of_the_pass_and_the_next_one_a_complete_pass():
    def make():
        return numbers(5, shuffle=False)

    _, state = saved_after(make, 3)
    df = resumed(make, state)
    assert [list(df), list(df)] == [[[3], [4]], [[k] for k in range(5)]]
    assert df.state_dict()["pass"] == 2


@pytest.mark.parametrize("make", [lambda: numbers(5), lambda: DataFromGenerator(count)], ids=["length", "none"])
@pytest.mark.parametrize("to_the_end", [False, True])
def test_a_complete_pass_resumes_at_the_next(make, to_the_end):
    with seeded(3):
        expected = ResumableData(make())
        first, second = (list(expected), list(expected))
        df = ResumableData(make())
        iterator = iter(df)
        for _ in first:
            next(iterator)
        if to_the_end:
            assert list(iterator) == []
        state = df.state_dict()
        if to_the_end or df.addressable:
            assert (state["pass"], state["offset"]) == (1, 0)
    found = resumed(make, state)
    assert list(found) == second
    assert found.state_dict()["pass"] == 2


def test_a_loaded_but_unused_state_is_saved_unchanged():
    _, state = saved_after(lambda: numbers(5), 3)
    assert resumed(lambda: numbers(5), state).state_dict() == state


def test_the_state_of_a_flow_that_was_not_iterated_is_its_beginning():
    with seeded(3):
        df = ResumableData(numbers(5))
        state = df.state_dict()
        expected = list(df)
    assert list(resumed(lambda: numbers(5), state)) == expected


def test_closing_and_resetting_keep_the_position():
    df = ResumableData(numbers(9))
    taken(df, 4)
    state = df.state_dict()
    df.close()
    assert df.state_dict() == state
    df.reset_state()
    assert df.state_dict() == state


def test_the_most_recent_iteration_is_saved():
    df = ResumableData(numbers(5))
    first, second = iter(df), iter(df)
    next(second)
    next(first)
    next(first)
    assert (df.state_dict()["pass"], df.state_dict()["offset"]) == (1, 1)


def test_loading_goes_back_in_the_same_process_too():
    with seeded(3):
        df = ResumableData(numbers(9))
        taken(df, 4)
        state = df.state_dict()
        expected = taken(df, 9)
        df.load_state_dict({**state, "pass": 1, "offset": 0})
        assert taken(df, 9) == expected


def test_any_index_is_reached_at_once():
    begin = time.monotonic()
    df = ResumableData(FixedSizeData(ShuffleData(numbers(1000)), 30_000_000))
    state = {**df.state_dict(), "pass": 3, "offset": 10_000_000}
    df.load_state_dict(state)
    found = next(iter(df))
    with seeded(int(state["root"])):
        assert found == FixedSizeData(ShuffleData(numbers(1000)), 30_000_000)[100_000_000]
    assert time.monotonic() - begin < 20  # takes milliseconds, unless every index is counted


# -- skipping ----------------------------------------------------------------------------------------------------------


def check_skipping(make, num, skips):
    """Check a program that skips `skips[k]` datapoints once it has received `k`, and what resumes from its state."""
    with seeded(11):
        expected = steps(ResumableData(make()), num + sum(skips.values()) + 5)
        df, found = ResumableData(make()), []
        df.skip(skips.get(0, 0))
        while len(found) < num:
            before = len(found)
            for dp in df:
                found.append(plain(dp))
                df.skip(skips.get(len(found), 0))
                if len(found) == num:
                    break
            assert len(found) > before, "two empty passes would be a hang"
    for k in sorted(skips):
        del expected[k : k + skips[k]]
    assert found == expected[:num]
    assert steps(resumed(make, df.state_dict()), 5) == expected[num : num + 5]


@settings(max_examples=settings.default.max_examples // 2)
@given(CHAINS, st.dictionaries(st.integers(0, 12), st.integers(0, 30), max_size=3))
def test_any_chain_skips_datapoints(df, skips):
    check_skipping(lambda: copy.deepcopy(df), 12, skips)


@pytest.mark.parametrize("make", CHAINS_TO_REPLAY.values(), ids=CHAINS_TO_REPLAY)
@pytest.mark.parametrize(
    "skips", [{0: 3}, {2: 1, 5: 2}, {0: 1, 1: 30, 2: 2}, {12: 25}], ids=["first", "within", "passes", "last"]
)
def test_a_flow_without_indexes_skips_datapoints(make, skips):
    check_skipping(make, 12, skips)


def test_an_endless_flow_skips_datapoints():
    check_skipping(lambda: RepeatedData(ShuffleData(numbers(4)), -1), 12, {0: 5, 3: 1, 12: 9})


def test_skipped_positions_count_dropped_datapoints_where_the_flow_can_be_addressed():
    df = ResumableData(MapData(numbers(10, shuffle=False), odd_only))
    iterator = iter(df)
    assert next(iterator) == [1]
    df.skip(5)
    assert (df.state_dict()["offset"], list(iterator)) == (7, [[7], [9]])


def test_batches_are_skipped_below_which_resumable_data_stands():
    df = ResumableData(BatchData(numbers(12, shuffle=False), 2))
    df.skip(4)
    assert [batch[0].tolist() for batch in df] == [[8, 9], [10, 11]]


@pytest.mark.parametrize("wrap", [MapData, lambda ds, f: MultiThreadMapData(ds, 2, f, buffer_size=4, strict=True)])
def test_what_is_skipped_by_index_is_not_computed(wrap):
    seen = []

    def see(dp):
        seen.append(dp[0])
        return dp

    with ResumableData(wrap(numbers(20_000, shuffle=False), see)) as df:
        df.skip(10)
        iterator = iter(df)
        assert next(iterator) == [10]
        df.skip(15_000)
        assert next(iterator) == [15_011]
        df.skip(20_000)
        assert list(iterator) == []
        assert next(iter(df)) == [15_012]
    assert 9 not in seen
    assert len(seen) < 5_000


@pytest.mark.parametrize("late", [Late, LateInOrder])
def test_a_timeout_while_datapoints_are_skipped_loses_none(late):
    df = ResumableData(late(numbers(10, shuffle=False)))
    df.skip(2)
    iterator, found, num_late = iter(df), [], 0
    while len(found) < 5:
        try:
            found.append(next(iterator)[0])
        except TimeoutError:
            num_late += 1
            continue
        if found == [2, 3]:
            df.skip(3)
    assert found == [2, 3, 7, 8, 9]
    assert num_late


def test_the_most_recent_iteration_skips():
    df = ResumableData(numbers(6, shuffle=False))
    first, second = iter(df), iter(df)
    assert (next(first), next(second)) == ([0], [0])
    df.skip(2)
    assert (next(first), next(second)) == ([1], [3])


@pytest.mark.parametrize("make", [numbers, lambda n: FilterData(numbers(n), bool)], ids=["by index", "whole passes"])
def test_another_thread_skips_exactly_as_many(make):
    df = ResumableData(make(5))
    received, is_over = 0, threading.Event()

    def iterate():
        nonlocal received
        while not is_over.is_set():
            for _ in df:
                received += 1

    previous = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=iterate)
    thread.start()
    skipped, positions = 0, []
    try:
        for k in range(200):
            df.skip(k % 7)
            skipped += k % 7
            state = df.state_dict()
            positions.append((state["pass"], state["offset"]))
            wait_until(lambda before=received: received > before, LIMIT, "the loop does not go on")
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(previous)
    state = df.state_dict()
    n = len(list(make(5)))
    assert state["pass"] * n + state["offset"] == received + skipped
    assert positions == sorted(positions)


def test_a_state_that_another_thread_asks_for_as_the_first_loop_begins_is_at_the_beginning(monkeypatch):
    df, states = ResumableData(numbers(5)), []
    original = ResumableData._df_run_pass

    def run_pass(self, p, stream):  # the pass has its number, and no bookmark yet
        thread = threading.Thread(target=lambda: states.append(df.state_dict()))
        thread.start()
        thread.join()
        return original(self, p, stream)

    monkeypatch.setattr(ResumableData, "_df_run_pass", run_pass)
    assert len(list(df)) == 5
    assert [(state["pass"], state["offset"]) for state in states] == [(0, 0)]


def test_what_another_thread_skips_as_a_loop_begins_is_skipped(monkeypatch):
    df = ResumableData(numbers(10, shuffle=False))
    df.skip(1)
    original = ResumableData._place
    skipping = threading.Thread(target=df.skip, args=[2])

    def place(self, mark, **options):
        found = original(self, mark, **options)
        skipping.start()
        skipping.join(0.2)  # it has to wait until the loop has begun
        return found

    monkeypatch.setattr(ResumableData, "_place", place)
    iterator = iter(df)
    monkeypatch.setattr(ResumableData, "_place", original)
    skipping.join()
    assert [dp[0] for dp in iterator] == [*range(3, 10)]


def test_a_state_that_is_loaded_ends_what_was_skipped_before():
    df = ResumableData(numbers(6, shuffle=False))
    state = df.state_dict()
    df.skip(2)
    assert df.state_dict()["offset"] == 2
    df.load_state_dict(state)
    df.skip(1)
    assert [dp[0] for dp in df] == [1, 2, 3, 4, 5]


class Numbered(ProxyDataFlow):
    """Keeps a number that changes with each datapoint."""

    num = 0

    def __iter__(self):
        for dp in self.ds:
            self.num += 1
            yield [*dp, self.num]


class Unsized(Numbered):
    def __len__(self):
        raise NotImplementedError


@pytest.mark.parametrize("kind", [Numbered, Unsized, lambda ds: DataFromGenerator(ds.__iter__)])
def test_states_that_were_saved_before_what_is_skipped_was_read_are_loaded_again_and_again(kind):
    def make():
        return kind(numbers(5, shuffle=False))

    df = make()
    expected = [plain(dp) for _ in range(4) for dp in df]
    df = ResumableData(make())
    df.skip(7)
    for num in (7, 10, 10, 10):
        state = df.state_dict()
        assert (state["pass"], state["offset"], state["position"]) == (0, num, None)
        df = resumed(make, state)
        df.skip(3 * (num == 7))
    assert steps(df, 5) == expected[10:15]


@pytest.mark.parametrize(("num_before", "num_skipped"), [(3, 4), (5, 2), (2, 9)])
def test_what_a_node_keeps_is_saved_as_its_pass_began_also_where_that_followed_in_one_loop(num_before, num_skipped):
    def make():
        return Numbered(numbers(5, shuffle=False))

    df = make()
    expected = [plain(dp) for _ in range(4) for dp in df]
    df = ResumableData(make())
    iterator = iter(df)
    for _ in range(num_before):
        next(iterator)
    df = resumed(make, df.state_dict())
    df.skip(num_skipped)
    num = num_before + num_skipped
    assert taken(df, 2) == expected[num : num + 2]
    assert steps(resumed(make, df.state_dict()), 3) == expected[num + 2 : num + 5]


def test_a_state_that_another_thread_asks_for_as_a_pass_ends_holds_what_nodes_keep_there(monkeypatch):
    df = ResumableData(Numbered(numbers(3, shuffle=False)))
    iterator, original = iter(df), ResumableData._place
    next(iterator)

    def place(self, mark, **options):
        found = original(self, mark, **options)
        list(iterator)  # as the loop of another thread
        return found

    monkeypatch.setattr(ResumableData, "_place", place)
    state = df.state_dict()
    monkeypatch.setattr(ResumableData, "_place", original)
    assert (state["pass"], state["offset"], state["kept"]) == (1, 0, [{"num": 3}])


@pytest.mark.parametrize(("num", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError), (2**63, ValueError)])
def test_an_invalid_number_to_skip_is_refused_and_nothing_is_lost(num, error):
    df = ResumableData(numbers(6, shuffle=False))
    iterator = iter(df)
    assert next(iterator) == [0]
    with pytest.raises(error, match="ResumableData: num must be "):
        df.skip(num)
    assert next(iterator) == [1]
    assert df.state_dict()["offset"] == 2


# -- seeds -------------------------------------------------------------------------------------------------------------


def test_an_unseeded_program_takes_over_the_seed():
    df = ResumableData(numbers(50))
    iterator = iter(df)
    next(iterator)
    state = df.state_dict()
    assert list(resumed(lambda: numbers(50), state)) == list(iterator)


def test_the_same_seed_is_accepted_and_another_one_raises():
    with seeded(5):
        _, state = saved_after(lambda: numbers(5), 2)
        resumed(lambda: numbers(5), state)
    with seeded(6), pytest.raises(StateMismatch, match=r"with the seed 5, .* called dataflow.seed\(6\)"):
        resumed(lambda: numbers(5), state)


@pytest.mark.parametrize("make", [lambda: numbers(20), lambda: FilterData(numbers(20), bool)])
def test_another_seed_after_loading_is_refused_in_the_middle_of_a_pass_and_the_position_is_kept(make):
    with seeded(5):
        expected = [plain(dp) for dp in make()]
        _, state = saved_after(make, 2)
    df = resumed(make, state)
    message = r"with the seed 5, in the middle of pass 0, .* called dataflow.seed\(6\).* before load_state_dict"
    for _ in range(2):
        with seeded(6), pytest.raises(StateMismatch, match=message):
            next(iter(df))
    with seeded(5):
        assert [plain(dp) for dp in df] == expected[2:]


def test_another_seed_after_loading_wins_at_the_beginning_of_a_pass():
    with seeded(5):
        _, state = saved_after(lambda: numbers(20), 20)
    df = resumed(lambda: numbers(20), state)
    with seeded(6):
        assert list(df) == numbers(20)[20:40]


# -- states of other chains --------------------------------------------------------------------------------------------

OTHER_CHAINS = {
    "it had BatchData in place of MapData": lambda: MapData(BatchData(numbers(10), 2), pair),
    "BatchData.batch_size was 2 and is 3": lambda: BatchData(MapData(numbers(10), pair), 3),
    "DataFromList had 10 datapoints and has 11": lambda: BatchData(MapData(numbers(11), pair), 2),
    "MapData.func was pair and is triple": lambda: BatchData(MapData(numbers(10), triple), 2),
    "DataFromList.shuffle was True and is False": lambda: BatchData(MapData(numbers(10, shuffle=False), pair), 2),
    "DataFromList.seed was None and is 3": lambda: BatchData(MapData(numbers(10, seed=3), pair), 2),
    "it had MapData in place of ConcatData": lambda: BatchData(ConcatData([numbers(10)]), 2),
}


@pytest.mark.parametrize(("message", "make"), OTHER_CHAINS.items(), ids=OTHER_CHAINS)
def test_a_state_of_another_chain_raises_with_the_difference(message, make):
    _, state = saved_after(lambda: BatchData(MapData(numbers(10), pair), 2), 1)
    with pytest.raises(StateMismatch, match=message):
        resumed(make, state)


def test_the_number_of_inputs_is_compared():
    _, state = saved_after(lambda: ConcatData([numbers(3), numbers(3)]), 1)
    with pytest.raises(StateMismatch, match="ConcatData had 2 inputs and has 3"):
        resumed(lambda: ConcatData([numbers(3), numbers(3), numbers(3)]), state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "version 3, this dataflow reads versions up to 2"),
        ({"version": None}, "not a state of ResumableData"),
        ({"root": 5}, "'root' is 5"),
        ({"root": "x"}, "non-negative integers"),
        ({"offset": -1}, "non-negative integers"),
        ({"pass": "1"}, "'pass' is '1'"),
        ({"flow": None}, "'flow' is None"),
    ],
    ids=str,
)
def test_an_invalid_state_raises(change, message):
    df = ResumableData(numbers(3))
    with pytest.raises(StateMismatch, match=message):
        df.load_state_dict({**df.state_dict(), **change})
    with pytest.raises(StateMismatch, match="not a state"):
        df.load_state_dict([])


def edited(state, where, value):
    found = json.loads(json.dumps(state))
    place = found
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    return found


EDITS = [
    *((("flow", key), value) for key in ("inputs", "parameters", "code") for value in (5, None, "x", [5])),
    *((("flow", "type"), value) for value in (5, None, "x", [], {})),
    *((("flow", "inputs", 0, "type"), value) for value in (5, None, [])),
    *((("flow", "inputs", 0), value) for value in (5, None, [], {})),
    *((("flow", "inputs", 0, "inputs"), value) for value in (5, {}, [1, 2])),
    (("flow", "code"), {"func": ""}),
    (("flow", "code"), {"func": 5}),
    *(((key,), value) for key in ("pass", "offset") for value in (2**63, 2**62 + 1, -1, True, 1.0, "1", None, [])),
    *((("position",), value) for value in (2**63, -1, True, 1.0, "1", [])),
    (("offset",), 21),
    (("pass",), 2**61),
    *((("root",), value) for value in ("-1", "1.5", "", "\u0663", "9" * 5000, 5, None)),
    *((("version",), value) for value in (3, 0, "1", None)),
]


@pytest.mark.parametrize(("where", "value"), EDITS)
def test_an_edited_state_is_refused_and_never_anything_else(where, value):
    def make():
        return ResumableData(MapData(DataFromList([[k] for k in range(20)]), list))

    df = make()
    next(iter(df))
    state = df.state_dict()
    other = make()
    with pytest.raises(StateMismatch):
        other.load_state_dict(edited(state, where, value))
    other.load_state_dict(edited(state, ("offset",), 20))
    assert len(list(other)) == 20, "nothing is left of the pass: the next one begins"


@pytest.mark.parametrize("offset", [4, 10**15])
def test_a_position_behind_the_end_of_a_pass_is_refused_as_the_pass_ends(offset):
    """The length of the pass is not known before."""

    def make():
        return ResumableData(DataFromGenerator(lambda: iter([[1], [2], [3]])))

    df = make()
    next(iter(df))
    state = df.state_dict()
    other = make()
    other.load_state_dict(edited(state, ("offset",), 3))
    assert len(list(other)) == 3, "nothing is left of the pass: the next one begins"
    other.load_state_dict({**state, "offset": offset, "position": offset})
    with pytest.raises(StateMismatch, match=f"after {offset} datapoints of pass 0, and that pass has ended after 3"):
        list(other)
    assert len(list(other)) == 3
    other = make()
    other.load_state_dict(state)
    other.skip(3)
    assert list(other) == [[2], [3]], "what is skipped may be of the next pass"


class InSlots(DataFlow):
    __slots__ = ("_unread", "factor")

    def __init__(self, factor):
        self.factor = self._unread = factor

    def __iter__(self):
        return iter([[k * self.factor] for k in range(5)])

    def __len__(self):
        return 5


def test_parameters_in_slots_are_compared():
    df = ResumableData(InSlots(2))
    next(iter(df))
    state = df.state_dict()
    resumed = ResumableData(InSlots(2))
    resumed.load_state_dict(state)
    assert list(resumed) == [[2], [4], [6], [8]]
    with pytest.raises(StateMismatch, match=r"another chain: InSlots.factor was 2 and is 3"):
        ResumableData(InSlots(3)).load_state_dict(state)


def test_a_damaged_description_raises():
    df = ResumableData(numbers(3))
    with pytest.raises(StateMismatch, match="another chain"):
        df.load_state_dict({**df.state_dict(), "flow": {}})


@pytest.mark.parametrize(
    "make",
    [
        lambda: MultiProcessRunnerZMQ(numbers(9), 1),
        lambda: MultiProcessRunnerZMQ(MultiProcessRunnerZMQ(numbers(9), 3), 2),
        lambda: MultiThreadRunner(lambda: numbers(9), 5, 2),
        lambda: numbers(9, packed=True),
    ],
    ids=["one", "nested", "threads", "packed"],
)
def test_runners_and_packing_do_not_change_the_chain(make):
    assert describe_flow(BatchData(make(), 2)) == describe_flow(BatchData(numbers(9), 2))


def scaled(body, size=1):
    """A program's function `scale`, which calls another one."""
    program = {"__name__": "job", "SIZE": size}
    exec(f"def helper(x):\n    {body}\ndef scale(dp): return [helper(dp[0]) * SIZE]", program)
    return program["scale"]


@pytest.mark.parametrize("wrap", [lambda f: f, functools.partial, lambda f: Holder(f).call])
def test_changed_code_is_one_warning_and_the_flow_resumes(caplog, wrap):
    def make(body, size=1):
        return ResumableData(BatchData(MapData(DataFromList(range(9), shuffle=False), wrap(scaled(body, size))), 3))

    state = json.loads(json.dumps(make("return x").state_dict()))
    for same in ("return x  # a comment", "'Words.'; return x"):
        make(same).load_state_dict(state)
    assert not caplog.records
    for body, size in (("return x + 1", 1), ("return x", 2)):
        caplog.clear()
        make(body, size).load_state_dict(state)
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert record.getMessage().startswith("the code of MapData.func has changed since the state was saved")


class Holder:
    def __init__(self, func):
        self.func = func

    def call(self, dp):
        return self.func(dp)


def test_changed_code_of_a_users_node_is_one_warning(caplog):
    def make(length):
        class Source(DataFlow):
            def __iter__(self):
                yield from ([k] for k in range(length(2)))

        return ResumableData(Source())

    state = make(lambda n: n).state_dict()
    for length, expected in ((lambda n: n, []), (lambda n: n + 0, ["the code of the class Source"])):
        caplog.clear()
        make(length).load_state_dict(state)
        messages = [record.getMessage() for record in caplog.records]
        assert [message.split(" has")[0] for message in messages if "code" in message] == expected


@pytest.mark.parametrize(
    "change", [lambda flow: flow.pop("code"), lambda flow: flow.update(code={"func": "3.99 0123456789abcdef"})]
)
def test_a_state_without_comparable_code_is_loaded_in_silence(caplog, change):
    def make():
        return ResumableData(MapData(DataFromList(range(9)), scaled("return x")))

    state = make().state_dict()
    change(state["flow"])
    make().load_state_dict(state)
    assert not caplog.records


def test_data_text_and_versions_are_not_code(caplog):
    def make(data, path):
        return ResumableData(MapData(DataFromList(range(9)), lambda dp: [data, path, np.sum(data), open]))

    state = make(np.zeros(3), "/data").state_dict()
    make(np.ones(4), "/elsewhere").load_state_dict(state)
    assert not caplog.records


def test_counters_of_a_user_node_do_not_change_the_chain(caplog):
    df = ResumableData(Walk(numbers(20)))
    taken(df, 5)
    assert df.ds.num_seen
    resumed(lambda: Walk(numbers(20)), df.state_dict())
    assert not caplog.records


# -- changes while the flow is used ------------------------------------------------------------------------------------


def test_the_state_describes_the_flow_as_its_pass_began():
    df = ResumableData(BatchData(numbers(20), 2))
    list(df)
    df.ds.batch_size = 4
    before = df.state_dict()
    steps(df, 3)
    within = df.state_dict()
    df.ds.batch_size = 5
    assert df.state_dict()["flow"] == within["flow"]
    for state in (before, within):
        with pytest.raises(StateMismatch, match=r"BatchData.batch_size was 4 and is 2"):
            resumed(lambda: BatchData(numbers(20), 2), state)
    with pytest.raises(StateMismatch, match=r"BatchData.batch_size was 4 and is 5"):
        df.load_state_dict(within)
    df.ds.batch_size = 4
    rest = taken(df, 5)
    df.load_state_dict(before)
    assert len(list(df)) == 5
    assert len(rest) == 5


def test_the_state_describes_a_list_that_has_grown_and_another_input():
    data = [[k] for k in range(4)]
    df = ResumableData(MapData(DataFromList(data, shuffle=False), pair))
    steps(df, 4)
    data.append([4])
    taken(df, 2)
    with pytest.raises(StateMismatch, match="DataFromList had 5 datapoints and has 4"):
        resumed(lambda: MapData(DataFromList(data[:4], shuffle=False), pair), df.state_dict())
    df.ds.ds = BatchData(df.ds.ds, 1)
    assert df.state_dict()["flow"]["inputs"][0]["type"] == "DataFromList"
    list(df)
    assert df.state_dict()["flow"]["inputs"][0]["type"] == "BatchData"


def test_a_state_of_the_run_that_fills_a_file_is_loaded_in_the_next_run(tmp_path):
    def make():
        source = DataFromList([[k] for k in range(10)], shuffle=False)
        return BatchData(DiskCacheData(FilterData(source, lambda dp: dp[0] % 2), tmp_path / "cache"), 2)

    expected, state = saved_after(make, 1)
    assert expected + list(map(plain, resumed(make, state))) == [plain(dp) for dp in make()]


# -- flows that cannot be resumed --------------------------------------------------------------------------------------

UNDEFINED = {
    "MultiProcessRunnerZMQ": lambda: BatchData(MultiProcessRunnerZMQ(numbers(9), 2), 3),
    "MultiThreadRunner": lambda: MultiThreadRunner(lambda: numbers(9), 5, 2),
    "DataFromQueue": lambda: DataFromQueue(queue.Queue()),
}
CONTINUING = {
    "LocallyShuffleData": lambda: LocallyShuffleData(numbers(9), 3),
    "FixedSizeData": lambda: BatchData(FixedSizeData(DataFromGenerator(count), 3), 2),
    "RepeatedData": lambda: JoinData([DataFromGenerator(count), RepeatedData(numbers(3), -1)]),
    "DataFromGenerator": lambda: DataFromGenerator(count()),
    "MultiProcessRunnerZMQ": lambda: MultiProcessRunnerZMQ(numbers(9), 1),
}


@pytest.mark.parametrize(("name", "make"), UNDEFINED.items(), ids=UNDEFINED)
def test_an_undefined_order_raises(name, make):
    cure = "Put its datapoints into a list" if name == "DataFromQueue" else f"Pass strict=True to {name}"
    with pytest.raises(NotReproducible, match=f"the order of the datapoints of {name} is not defined, so .*{cure}"):
        ResumableData(make())


@pytest.mark.parametrize(("name", "make"), CONTINUING.items(), ids=CONTINUING)
def test_a_flow_that_depends_on_earlier_passes_raises(name, make):
    with pytest.raises(NotReproducible, match=f"a pass of {name} continues where"):
        ResumableData(make())


def test_a_dropped_datapoint_below_a_node_that_counts_raises():
    df = ResumableData(BatchData(MapData(numbers(9, shuffle=False), odd_only), 2))
    with pytest.raises(Dropped, match="BatchData counts"):
        list(df)


class Twice(DataFlow):
    def __init__(self, ds):
        self.ds = ds

    def __iter__(self):
        yield from self.ds


class Passing(DataFlow):
    def __init__(self, ds):
        self.ds = ds

    def __iter__(self):
        yield from self.ds


def not_one(dp):
    return None if dp[0] % 3 == 1 else dp


def inverted(dp):
    return [6 // (dp[0] % 3 - 1), dp[0]]


OVER_COUNTS = {
    "FlattenData": FlattenData,
    "FilterData": lambda ds: FilterData(ds, lambda dp: True),
    "RandomChooseData": lambda ds: RandomChooseData([ds]),
    "BucketBatchData": lambda ds: BucketBatchData(ds, 2, key=lambda dp: dp[0], boundaries=[3]),
    "PackData": lambda ds: PackData(ds, 1),
    "own node": Passing,
}


@pytest.mark.parametrize("drop", [not_one, inverted])
@pytest.mark.parametrize("above", OVER_COUNTS.values(), ids=OVER_COUNTS)
def test_a_count_of_datapoints_that_depends_on_dropped_ones_raises(above, drop):
    def flow():
        return above(FixedSizeData(MapData(numbers(6, shuffle=False), drop, max_failures=0.5), 3))

    with pytest.raises(Dropped, match=r"below FixedSizeData has dropped .* cannot be started in another process"):
        steps(ResumableData(flow()), 20)


def test_a_state_that_was_saved_before_the_first_dropped_datapoint_is_right():
    def flow():
        return ResumableData(FlattenData(FixedSizeData(MapData(numbers(6, shuffle=False), not_five), 2)))

    def not_five(dp):
        return None if dp[0] == 5 else dp

    df = flow()
    assert list(itertools.islice(df, 2)) == [[0], [1]] and next(iter(df)) == [2]
    resumed = flow()
    resumed.load_state_dict(df.state_dict())
    assert list(resumed) == [[3]]
    for each in df, resumed:
        with pytest.raises(Dropped):
            list(each)


@pytest.mark.parametrize("above", [PrintData, Twice, lambda ds: MapData(ds, pair)], ids=["built in", "user", "map"])
def test_it_must_be_the_outermost_node(above):
    with pytest.raises(TypeError, match="must be the outermost node"):
        list(above(ResumableData(numbers(3))))


@pytest.mark.parametrize(
    "above",
    [
        ShuffleData,
        lambda ds: RepeatedData(ds, 2),
        lambda ds: ConcatData([ds, numbers(2)]),
        ResumableData,
        lambda ds: ResumableData(BatchData(ds, 2)),
        lambda ds: MultiProcessRunnerZMQ(ds, 2, strict=True),
    ],
    ids=["shuffled", "repeated", "joined", "twice", "twice, batches", "runner"],
)
def test_a_node_above_that_reads_by_index_does_not_ignore_the_position(above):
    resumable = ResumableData(numbers(4, shuffle=False))
    resumable.load_state_dict({**resumable.state_dict(), "offset": 2})
    assert resumable[0] == [0], "picking by index is pure"
    with pytest.raises(TypeError, match="must be the outermost node"):
        list(above(resumable))


def test_a_state_of_batches_made_by_workers_is_loaded_without_workers():
    def by_workers(num_workers):
        return MultiProcessMapAndBatchData(numbers(10), num_workers, list, 2, strict=True)

    states = [ResumableData(df).state_dict()["flow"] for df in (by_workers(1), by_workers(3))]
    assert states[0] == states[1] == ResumableData(BatchData(MapData(numbers(10), list), 2)).state_dict()["flow"]
