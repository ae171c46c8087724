import itertools
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataflow
from dataflow import MultiProcessRunnerZMQ, MultiThreadMapData, MultiThreadRunner, ParallelData
from dataflow.errors import EmptyPass, LengthUnknown, NotReproducible, StateMismatch
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromGenerator
from dataflow.transforms.awaiting import AsyncMapData
from dataflow.transforms.batching import BatchData
from dataflow.transforms.caching import CacheData
from dataflow.transforms.filtering import FilterData
from dataflow.transforms.joining import JoinData
from dataflow.transforms.mapping import MapData
from dataflow.transforms.mixing import MixData, RandomChooseData, RandomMixData, _Shares
from dataflow.transforms.repeating import FixedSizeData, RepeatedData
from dataflow.transforms.resuming import ResumableData
from dataflow.transforms.selecting import SelectComponent
from dataflow.transforms.sharding import ShardData
from dataflow.transforms.shuffling import LocallyShuffleData, ShuffleData
from tests.support.contract import OldStyle, seeded


def numbers(n, start=0):
    return DataFromList(range(start, start + n), shuffle=False)


def generated(n):
    return DataFromGenerator(lambda: iter(range(n)))


class TaskOwnership(MapData):
    """The input, with a wrong length."""

    def __init__(self, ds, length):
        super().__init__(ds, abs)
        self.length = length

    def __len__(self):
        return self.length


def test_all_are_mixed_and_each_keeps_its_order():
    df = RandomMixData([numbers(20), numbers(30, 100), numbers(0)])
    first, second = list(df), list(df)
    assert len(df) == 50 and first != second
    for found in (first, second):
        assert [k for k in found if k < 100] == list(range(20))
        assert [k for k in found if k >= 100] == list(range(100, 130))
        assert found != sorted(found)


def test_a_mixture_is_the_same_with_and_without_indexes():
    with seeded(3):
        by_index = list(RandomMixData([numbers(9), numbers(9, 100)]))
        in_order = list(RandomMixData([TaskOwnership(generated(9), 9), numbers(9, 100)]))
    assert by_index == in_order


def test_lengths_are_read_at_every_pass():
    lst = [0]
    df = RandomMixData([DataFromList(lst, shuffle=False), numbers(3, 100)])
    assert len(list(df)) == 4
    lst.append(1)
    assert sorted(df) == [0, 1, 100, 101, 102] and len(df) == 5


def test_a_flow_shorter_than_its_length_leaves_the_others_complete():
    df = RandomMixData([TaskOwnership(generated(2), 9), numbers(5, 100)])
    assert sorted(df) == [0, 1, 100, 101, 102, 103, 104]


def test_what_a_flow_has_beyond_its_length_comes_at_the_end_unless_it_never_ends():
    df = RandomMixData([TaskOwnership(generated(5), 2), numbers(3, 100)])
    for found in (list(df), list(df)):
        assert sorted(found[:5]) == [0, 1, 100, 101, 102] and found[5:] == [2, 3, 4]
    endless = MultiThreadMapData(numbers(2), 1, lambda dp: dp)
    assert sorted(RandomMixData([endless, numbers(2, 100)])) == [0, 1, 100, 101]
    endless.close()


def test_only_empty_flows_give_an_empty_pass():
    df = RandomMixData([numbers(0), numbers(0)])
    assert list(df) == [] == df[0:0]
    with pytest.raises(IndexError, match="empty"):
        df[0]


def test_a_mixture_needs_lengths():
    df = RandomMixData([numbers(3), generated(3)])
    with pytest.raises(LengthUnknown):
        iter(df)
    with pytest.raises(LengthUnknown, match="never ends"):
        iter(RandomMixData([RepeatedData(numbers(3), -1)]))


def test_a_seed_makes_a_mixture_repeatable():
    def mixed(seed):
        return list(RandomMixData([numbers(9), numbers(9, 100)], seed=seed))

    def chosen(seed):
        return list(RandomChooseData([numbers(9), numbers(9, 100)], seed=seed))

    for draw in (mixed, chosen):
        assert draw(1) == draw(1) != draw(2)
    with pytest.raises(ValueError, match="-1"):
        mixed(-1)


@pytest.mark.parametrize("pair", [tuple, list])
def test_flows_are_chosen_with_their_probability(pair):
    endless = [RepeatedData(numbers(1, k), -1) for k in range(3)]
    df = RandomChooseData([pair(entry) for entry in zip(endless, (0.7, 0.2, 0.1), strict=True)])
    count = Counter(itertools.islice(df, 4000))
    assert df._df_endless
    assert abs(count[0] / 4000 - 0.7) < 0.05 and abs(count[2] / 4000 - 0.1) < 0.05


def test_a_pass_ends_when_the_chosen_flow_has_no_more():
    df = RandomChooseData([numbers(3), numbers(50, 100)])
    assert not df._df_endless
    for _ in range(3):
        found = list(df)
        few = [k for k in found if k < 100]
        assert few == list(range(len(few)))
        assert len(few) == 3 or len(found) - len(few) == 50
    with pytest.raises(LengthUnknown):
        len(df)


def test_the_same_flow_twice_is_reset_once():
    old = OldStyle()
    assert list(RandomChooseData([old, old])) and old.resets == 1
    assert len(list(RandomMixData([old, old]))) == 16 and old.resets == 1


@pytest.mark.parametrize("weights", [(0.5, 0.4), (1.5, -0.5), (0.5, 0.5 + 1e-5), (float("nan"), 1)])
def test_probabilities_that_do_not_sum_to_1_are_listed(weights):
    with pytest.raises(ValueError, match=r"sum to 1, got \[.*which sum to"):
        RandomChooseData(list(zip([numbers(1), numbers(1)], weights, strict=True)))


def test_probabilities_need_not_sum_to_1_to_the_last_bit():
    assert 0.7 + 0.2 + 0.1 != 1.0
    RandomChooseData(list(zip([numbers(1)] * 3, (0.7, 0.2, 0.1), strict=True)))


def test_elements_must_be_flows():
    with pytest.raises(TypeError, match="not some of each"):
        RandomChooseData([numbers(1), (numbers(1), 0.5)])
    with pytest.raises(TypeError, match="DataFromList"):
        RandomChooseData([([1], 1.0)])
    with pytest.raises(TypeError, match="a list of dataflows"):
        RandomChooseData(numbers(1))
    for node in (RandomChooseData, RandomMixData):
        with pytest.raises(ValueError, match="at least one"):
            node([])


# -- MixData -----------------------------------------------------------------------------------------------------------


def which(df, begin, end):
    """Counts of the inputs of a mixture of `numbers(…, 1000 * j)`."""
    return Counter(k // 1000 for k in df[begin:end])


def inputs(num):
    return [numbers(7 + j, 1000 * j) for j in range(num)]


WEIGHTS = st.lists(
    st.one_of(st.integers(0, 5), st.floats(0, 1, allow_subnormal=False), st.sampled_from([1e-9, 1 / 3, 0.1, 1e9])),
    min_size=1,
    max_size=6,
).filter(lambda weights: sum(weights) > 1e-12)


@settings(max_examples=40)
@given(WEIGHTS, st.sampled_from([None, 5]), st.integers(0, 10**9))
def test_every_block_of_1000_has_the_weights(weights, seed, block):
    df = MixData(inputs(len(weights)), weights, seed)
    count = which(df, 1000 * block, 1000 * block + 1000)
    assert count.total() == 1000
    for j, weight in enumerate(weights):
        assert abs(count[j] - 1000 * weight / sum(weights)) < 1 + 1e-6


@settings(max_examples=20)
@given(WEIGHTS)
def test_each_input_is_read_in_its_order_without_a_gap(weights):
    df = MixData(inputs(len(weights)), weights)
    expected = [itertools.cycle(ds.lst) for ds in df.df_lists]
    found = df[0:3000]
    assert found == [next(expected[k // 1000]) for k in found]
    assert found[990:2010] == df[990:2010] and found[1500] == df[1500]


def test_over_many_blocks_the_shares_are_the_weights():
    weights = [0.1234567, 0.5, 1 / 7, 0.00012]
    num_blocks = 20_000
    total = _Shares(weights).before(num_blocks)
    assert sum(total) == 1000 * num_blocks
    for count, weight in zip(total, weights, strict=True):
        assert abs(count - 1000 * num_blocks * weight / sum(weights)) < 5


def test_whole_numbers_hold_in_any_1000_consecutive_and_are_spread_evenly():
    df = MixData(inputs(3), [0.7, 0.2, 0.1])
    for begin in (0, 1, 333, 1777):
        assert which(df, begin, begin + 1000) == {0: 700, 1: 200, 2: 100}
    for begin in range(0, 2000, 10):
        assert abs(which(df, begin, begin + 10)[0] - 7) <= 1


def test_a_seed_shuffles_each_block():
    one, same, other = (MixData(inputs(2), [3, 1], seed) for seed in (1, 1, 2))
    assert one[0:2000] == same[0:2000] != other[0:2000]
    even = MixData(inputs(2), [3, 1])
    assert [k // 1000 for k in one[0:1000]] != [k // 1000 for k in one[1000:2000]]
    assert [k // 1000 for k in even[0:1000]] == [k // 1000 for k in even[1000:2000]]


@pytest.mark.parametrize("seed", [None, 3])
def test_a_mixture_by_weight_is_the_same_with_and_without_indexes(seed):
    by_index = MixData([numbers(9), numbers(4, 100)], [2, 1], seed)
    in_order = MixData([generated(9), numbers(4, 100)], [2, 1], seed)
    assert not in_order.addressable
    assert list(itertools.islice(by_index, 2500)) == list(itertools.islice(in_order, 2500)) == by_index[0:2500]
    assert next(iter(in_order)) == by_index[2500], "a loop goes on where the last one stopped"


def test_a_mixture_by_weight_never_ends():
    df = MixData([numbers(3)], [5])
    with pytest.raises(LengthUnknown, match="MixData never ends"):
        len(df)
    assert list(FixedSizeData(df, 5)) == [0, 1, 2, 0, 1]
    endless = RepeatedData(numbers(2, 50), -1)
    assert MixData([endless, numbers(1)], [1, 1])[0:4] == [50, 0, 51, 0]


def test_an_input_of_weight_0_is_never_read_and_may_be_empty():
    df = MixData([numbers(3), numbers(0)], [1, 0])
    assert df[0:4] == [0, 1, 2, 0] == list(itertools.islice(df, 4))
    for others in (numbers(3), generated(3)):
        with pytest.raises(EmptyPass, match=r"MixData: a pass of input 1 \(DataFromList\) is empty"):
            list(itertools.islice(MixData([others, numbers(0)], [1, 1]), 4))


def test_what_a_map_drops_keeps_its_position():
    df = MixData([MapData(numbers(4), lambda k: k if k != 1 else None), numbers(1, 100)], [1, 1])
    assert df[0:8] == [0, 100, 100, 2, 100, 3, 100] == list(itertools.islice(df, 7))


@pytest.mark.parametrize(
    ("weights", "error", "text"),
    [
        ([1], ValueError, "2 flows and 1 weights"),
        ([1, 2, 3], ValueError, "2 flows and 3 weights"),
        ([1, -1], ValueError, "finite numbers from 0"),
        ([0, 0], ValueError, "one at least is above 0"),
        ([1, float("nan")], ValueError, "finite"),
        ([1, float("inf")], ValueError, "finite"),
        (["1", 1], TypeError, "numbers from 0, got '1'"),
        ([True, 1], TypeError, "got True"),
        ("11", TypeError, "a list of numbers"),
        (None, TypeError, "a list of numbers"),
        (0.5, TypeError, "a list of numbers"),
        ({}, ValueError, r"a schedule begins at position 0, .* are \[\]"),
        ({1000: [8, 2], 3000: [1, 3]}, ValueError, r"a schedule begins at position 0, .* are \[1000, 3000\]"),
        ({3000: [8, 2], 0: [1, 3]}, ValueError, r"a schedule begins at position 0, .* are \[3000, 0\]"),
        ({0: [8, 2], 3000: [1, 3], 20: [1, 1]}, ValueError, r"positions of a schedule increase, got \[0, 3000, 20\]"),
        ({0: [8, 2], 2**63: [1, 3]}, ValueError, "at most"),
        ({"0": [8, 2]}, TypeError, "got the key '0'"),
        ({0: [8, 2], 0.5: [1, 3]}, TypeError, "got the key 0.5"),
        ({0: [8, 2], True: [1, 3]}, TypeError, "got the key True"),
        ({0: [8, 2], 3000: [1]}, ValueError, "2 flows and 1 weights"),
        ({0: [8, 2], 3000: [0, 0]}, ValueError, "one at least is above 0"),
        ({0: 8, 3000: 2}, TypeError, "a list of numbers"),
        ({3, 5}, TypeError, "a list of numbers"),
    ],
)
def test_wrong_weights_are_named(weights, error, text):
    with pytest.raises(error, match=text):
        MixData([numbers(1), numbers(1)], weights)


@pytest.mark.parametrize("make", [numbers, generated])
def test_weights_that_change_count_at_once_or_are_refused(make):
    df = MixData([make(9), numbers(9, 100)], [1, 0])
    assert list(itertools.islice(df, 3)) == [0, 1, 2]
    df.weights = [0, 1]
    assert make is generated or df[:3] == [100, 101, 102]
    with pytest.raises(ValueError, match=r"weights were \[1.0, 0.0\] .* reset_state\(\)"):
        next(iter(df))
    df.reset_state()
    assert list(itertools.islice(df, 3)) == [100, 101, 102]
    df.weights[0] = 1
    df.reset_state()
    assert list(itertools.islice(df, 3)) == [0, 100, 1]
    df.weights = [1]
    with pytest.raises(ValueError, match="2 flows and 1 weights"):
        next(iter(df))


async def changed(dp):
    return abs(dp)


@pytest.mark.parametrize(
    "above",
    [
        lambda ds: MapData(ds, abs),
        lambda ds: BatchData(MapData(ds, lambda k: [k]), 1),
        lambda ds: ShardData(ds, 0, 2),
        lambda ds: MapData(FilterData(ds, bool), abs),
        lambda ds: FixedSizeData(ds, 3),
        lambda ds: FixedSizeData(MapData(ds, abs), 3, keep_state=False),
        lambda ds: ParallelData(ds, 0),
        lambda ds: MultiThreadMapData(ds, 2, abs, buffer_size=4, strict=True),
        lambda ds: LocallyShuffleData(ds, 2),
        lambda ds: JoinData([MapData(ds, lambda k: [k]), DataFromList([[0]] * 3)]),
        # These read passes of a flow with an end by index.
        lambda ds: ParallelData(FixedSizeData(ds, 4), 1),
        lambda ds: ParallelData(MapData(FixedSizeData(ds, 4), abs), 2),
        lambda ds: MultiThreadMapData(MapData(FixedSizeData(ds, 4), abs), 2, abs, strict=True),
        lambda ds: AsyncMapData(MapData(FixedSizeData(ds, 4), abs), changed),
        lambda ds: ShardData(FixedSizeData(ds, 4), 0, 2),
        lambda ds: ShuffleData(FixedSizeData(ds, 4)),
        lambda ds: ResumableData(FixedSizeData(ds, 4)),
        lambda ds: MapData(ParallelData(FixedSizeData(ds, 4), 1), abs),
        lambda ds: ResumableData(ParallelData(FixedSizeData(ds, 4), 1)),
    ],
)
def test_no_loop_above_goes_on_with_other_weights(above):
    """It would repeat datapoints of one flow, and leave out some of another."""
    mixture = MixData([numbers(9), numbers(9, 100)], [1, 0])
    with above(mixture) as df:
        list(itertools.islice(df, 3))
        mixture.weights = [0, 1]
        with pytest.raises((ValueError, NotReproducible), match="weights"):
            next(iter(df))
        df.close()
        assert np.max(next(iter(df))) >= 100


def test_what_is_cached_stays_whatever_the_weights_are_meanwhile():
    mixture = MixData([numbers(9), numbers(9, 100)], [1, 0])
    df = ShardData(CacheData(FixedSizeData(mixture, 4)), 0, 2)
    assert list(df) == [0, 2]
    mixture.weights = [0, 1]
    assert list(df) == [0, 2]


def test_wrong_inputs_of_a_mixture_by_weight_are_named():
    with pytest.raises(
        TypeError, match=r"dfs must be a list of dataflows, got one DataFromList\. Write MixData\(\[a, b\]"
    ):
        MixData(numbers(1), numbers(1))
    with pytest.raises(TypeError, match=r"weights must be a list of numbers.*got DataFromList"):
        MixData([numbers(1)], numbers(1))
    with pytest.raises(ValueError, match="MixData: seed must be an integer ≥ 0"):
        MixData([numbers(1)], [1], seed=-1)


def test_a_mixture_by_weight_is_resumed_and_sharded_under_any_number_of_workers():
    def mixture():
        return MixData([ShuffleData(numbers(9)), ShuffleData(numbers(30, 100))], [0.25, 0.75])

    with seeded(5):
        whole = mixture()[0:120]
        with MultiProcessRunnerZMQ(mixture(), 2, strict=True) as two:
            resumable = ResumableData(two)
            assert list(itertools.islice(resumable, 50)) == whole[:50]
            state = resumable.state_dict()
        for num_proc in (0, 3):
            with MultiProcessRunnerZMQ(mixture(), num_proc, strict=True) as other:
                resumed = ResumableData(other)
                resumed.load_state_dict(state)
                assert list(itertools.islice(resumed, 50)) == whole[50:100]
        shards = [ShardData(mixture(), rank, 2)[0:60] for rank in range(2)]
        assert [k for pair in zip(*shards, strict=True) for k in pair] == whole


# -- schedules ---------------------------------------------------------------------------------------------------------


FAR = 10**13


def far(num):
    """Inputs that do not repeat within a test."""
    return [numbers(FAR, FAR * j) for j in range(num)]


def split(found):
    """The number of the input and the index in it, of each datapoint."""
    return [divmod(dp, FAR) for dp in found]


def begins_of(phases):
    return itertools.accumulate((length for length, _ in phases[:-1]), initial=0)


SCHEDULES = st.lists(
    st.tuples(st.integers(1, 2500), st.tuples(*[st.sampled_from([0, 1, 2, 0.3, 7])] * 3).filter(any)),
    min_size=1,
    max_size=5,
).map(lambda phases: {begin: list(weights) for (_, weights), begin in zip(phases, begins_of(phases), strict=True)})


@given(schedule=SCHEDULES, seed=st.sampled_from([None, 3]))
def test_each_phase_has_its_weights_and_each_input_continues(schedule, seed):
    df = MixData(far(3), schedule, seed)
    begins = [*schedule, [*schedule][-1] + 2200]
    found = split(df[0 : begins[-1]])
    for (begin, weights), end in zip(schedule.items(), begins[1:], strict=True):
        plainly = MixData(far(3), weights, None)
        for start in range(begin, end - 999, 1000):
            count = Counter(j for j, _ in found[start : start + 1000])
            assert all(abs(count[j] - 1000 * weights[j] / sum(weights)) < 1 + 1e-6 for j in range(3))
        if seed is None:
            assert [j for j, _ in found[begin:end]] == [j for j, _ in split(plainly[0 : end - begin])]
    for j in range(3):
        here = [k for number, k in found if number == j]
        assert here == list(range(len(here)))
    assert split(df[k] for k in begins[:-1]) == [found[k] for k in begins[:-1]]
    assert split(df[7 : begins[-1] : 97]) == found[7::97]


@pytest.mark.parametrize("seed", [None, 3])
def test_a_schedule_is_the_same_in_order_as_by_index_and_in_workers(seed):
    schedule = {0: [2, 1], 700: [0, 1], 701: [1, 3], 2600: [1, 0]}
    by_index = MixData([numbers(9), numbers(4, 100)], schedule, seed)
    in_order = MixData([generated(9), numbers(4, 100)], schedule, seed)
    expected = by_index[0:3000]
    assert not in_order.addressable
    assert list(itertools.islice(in_order, 3000)) == list(itertools.islice(by_index, 3000)) == expected
    assert next(iter(in_order)) == by_index[3000]

    def make():
        return FixedSizeData(MixData([numbers(9), numbers(4, 100)], schedule, seed), 3000)

    with MultiThreadRunner(make, 8, 2, strict=True) as df:
        assert list(df) == expected


def test_a_schedule_of_one_phase_is_a_list_of_weights():
    for seed in (None, 3):
        assert MixData(far(2), {0: [8, 2]}, seed)[0:2500] == MixData(far(2), [8, 2], seed)[0:2500]
        later = MixData(far(2), {0: [8, 2], 2200: [5, 5]}, seed)
        assert later[0:2200] == MixData(far(2), [8, 2], seed)[0:2200]


def test_a_flow_that_only_a_later_phase_reads_must_not_be_empty():
    with pytest.raises(EmptyPass, match="a pass of input 1"):
        MixData([numbers(3), numbers(0)], {0: [1, 0], 50: [1, 1]})[0]


def test_positions_far_ahead_are_found_at_once():
    df = MixData(far(2), {0: [8, 2], 10**12 + 7: [5, 5]})
    assert sorted(split(df[10**12 + 7 : 10**12 + 9])) == [(0, 8 * 10**11 + 6), (1, 2 * 10**11 + 1)]


async def later(k):
    return k


def batches(ds, num):
    return BatchData(MapData(ds, lambda k: [k]), num)


@pytest.mark.parametrize(
    "above",
    [
        lambda ds: ds,
        lambda ds: FixedSizeData(ds, 400),
        lambda ds: batches(ds, 10),
        lambda ds: SelectComponent(batches(FixedSizeData(ds, 405), 10), [0]),
        lambda ds: ShardData(batches(ds, 5), 1, 2),
        lambda ds: ShuffleData(FixedSizeData(ds, 400)),
        lambda ds: MultiThreadRunner(lambda: FixedSizeData(ds, 400), 5, 1, strict=True),
        lambda ds: MultiThreadMapData(FixedSizeData(ds, 400), 2, str, strict=True),
        lambda ds: AsyncMapData(ds, later),
    ],
    ids=["itself", "cut", "batches", "batches of passes", "shards", "shuffled", "runner", "map", "async map"],
)
def test_a_state_is_loaded_if_schedules_agree_up_to_its_position(above):
    def make(schedule):
        return ResumableData(above(MixData([numbers(9), numbers(4, 100)], schedule)))

    def after(state, schedule, num):
        with make(schedule) as df:
            df.load_state_dict(state)
            return [str(dp) for dp in itertools.islice(df, num)]

    dataflow.seed(4)
    try:
        with make([8, 2]) as df:
            assert len(list(itertools.islice(df, 30))) == 30
            state = json.loads(json.dumps(df.state_dict()))
        longer = {0: [8, 2], 900: [5, 5]}
        with make(longer) as df:
            expected = [str(dp) for dp in itertools.islice(df, 40)][30:]
        assert after(state, longer, 10) == expected
        for other in ({0: [8, 2], 20: [5, 5]}, {0: [8, 3], 900: [5, 5]}, {0: [5, 5]}):
            with pytest.raises(StateMismatch, match=r"MixData.weights was \[8.0, 2.0\] and is \{0"):
                after(state, other, 1)
    finally:
        dataflow.seed(None)


@pytest.mark.parametrize("last", [600, 599])
def test_a_border_at_the_position_of_a_state_belongs_to_what_is_to_come(last):
    def make(schedule):
        return ResumableData(batches(MixData([numbers(9), numbers(4, 100)], schedule), 20))

    df = make([8, 2])
    list(itertools.islice(df, 30))
    resumed = make({0: [8, 2], last: [0, 1]})
    if last == 600:
        resumed.load_state_dict(df.state_dict())
        assert min(next(iter(resumed))[0]) >= 100
    else:
        with pytest.raises(StateMismatch):
            resumed.load_state_dict(df.state_dict())


def test_a_position_that_is_not_known_needs_equal_schedules():
    def make(schedule):
        mixture = FixedSizeData(MixData([numbers(9), numbers(4, 100)], schedule), 100)
        return ResumableData(FilterData(mixture, bool))

    df = make([8, 2])
    next(iter(df))
    with pytest.raises(StateMismatch, match=r"MixData.weights was"):
        make({0: [8, 2], 10**6: [5, 5]}).load_state_dict(df.state_dict())


@pytest.mark.parametrize("num", [3, 40, 1100])
def test_long_schedules_are_compared_as_a_whole(num):
    def make(last):
        phases = {k * 10: [1, 1 + k % 2] for k in range(num)}
        return ResumableData(MixData([numbers(9), numbers(4, 100)], {**phases, num * 10: last}))

    df = make([1, 5])
    list(itertools.islice(df, 10 * num))
    make([5, 1]).load_state_dict(df.state_dict())
    list(itertools.islice(df, 1))
    make([1, 5]).load_state_dict(df.state_dict())
    with pytest.raises(StateMismatch, match=r"MixData.weights was"):
        make([5, 1]).load_state_dict(df.state_dict())


def test_the_weights_of_many_flows_are_compared_as_a_whole():
    def make(last):
        return ResumableData(MixData([numbers(3)] * 40, [1] * 39 + [last]))

    make(2).load_state_dict(make(2).state_dict())
    state = make(2).state_dict()
    with pytest.raises(StateMismatch, match=r"MixData.weights was"):
        make(3).load_state_dict(state)


def test_an_edited_text_of_weights_is_another():
    df = ResumableData(MixData([numbers(9), numbers(4)], [8, 2]))
    state = df.state_dict()
    hostile = ["'{'", "['{', 'b']", "-" * 5000 + "1", "[" * 150 + "{" + "}" + "]" * 150, "[" * 5000]
    for text in ("", "[", "{0: [8.0, 2.0], 'a': 1}", "5", "x", *hostile):
        damaged = json.loads(json.dumps(state))
        damaged["flow"]["parameters"]["weights"] = text
        with pytest.raises(StateMismatch):
            df.load_state_dict(damaged)


def test_no_positions_of_a_mixture_are_no_datapoints():
    df = MixData([DataFromList([[1]]), DataFromList([[2]])], [1, 1])
    assert df[3:3] == [] and len(df[3:5]) == 2
