"""The protocol: passes, resetting, lengths, addressing, closing, copies."""

import copy
import itertools
import pickle
import queue
import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import (
    BatchData,
    DataFromGenerator,
    DataFromList,
    DataFromQueue,
    FixedSizeData,
    FlattenData,
    JoinData,
    LocallyShuffleData,
    MapData,
    MultiProcessRunnerZMQ,
    MultiThreadRunner,
    RandomMixData,
    RepeatedData,
    RepeatedDataPoint,
    ShardData,
    ShuffleData,
)
from dataflow.errors import DataFlowTerminated, Dropped, LengthUnknown, NotAddressable
from dataflow.protocol import seeding
from dataflow.protocol.base import DataFlow, ProxyDataFlow, RNGDataFlow, require_flow
from dataflow.protocol.datapoint import HOLE
from dataflow.protocol.passes import known_length, walk
from dataflow.protocol.seeding import Stream
from tests.support.forks import exit_code_of_fork

pytestmark = pytest.mark.usefixtures("unseeded")


class Shuffled(DataFlow):
    """Addressable and random: every pass is a permutation."""

    _df_draws = True
    _df_indexed = True

    def __init__(self, n=4):
        self.n = n
        self.resets = 0

    def __len__(self):
        return self.n

    def reset_state(self):
        self.resets += 1

    def _df_run_pass(self, p, stream):
        return ([k] for k in self._order(p, stream))

    def _df_at(self, blocks, stream):
        return ([self._order(int(i) // self.n, stream)[int(i) % self.n]] for ix in blocks for i in ix)

    def _order(self, p, stream):
        return seeding.permutation(self._df_words(stream, p), self.n).tolist()


class Drop(ProxyDataFlow):
    """Drop the datapoints that hold `value`."""

    def __init__(self, ds, value):
        super().__init__(ds)
        self.value = value

    def _df_run_pass(self, p, stream):
        return (dp for dp in self.ds._df_run_pass(p, stream) if dp[0] != self.value)

    def _df_at(self, blocks, stream):
        return (HOLE if dp[0] == self.value else dp for dp in self.ds._df_at(blocks, stream))


class Joined(DataFlow):
    _df_indexed = True

    def __init__(self, *flows):
        self.flows = flows

    @property
    def _df_inputs(self):
        return self.flows

    def __len__(self):
        return min(map(len, self.flows))

    def _df_run_pass(self, p, stream):
        passes = [ds._df_run_pass(p, stream.turn(self._df_depth.level, j)) for j, ds in enumerate(self.flows)]
        return ([value for dp in dps for value in dp] for dps in zip(*passes, strict=True))

    def _df_at(self, blocks, stream):
        copies = itertools.tee(blocks, len(self.flows))
        views = [ds._df_at(copies[j], stream.turn(self._df_depth.level, j)) for j, ds in enumerate(self.flows)]
        return ([value for dp in dps for value in dp] for dps in zip(*views, strict=True))


class Noise(RNGDataFlow):
    def __iter__(self):
        for _ in range(3):
            yield [self.rng.random()]


class Endless(DataFlow):
    _df_endless = True

    def _df_run_pass(self, p, stream):
        return ([p, k] for k in itertools.count())


CHAINS = {
    "source": Shuffled,
    "proxy": lambda: ProxyDataFlow(Shuffled()),
    "joined": lambda: Joined(Shuffled(), ProxyDataFlow(Shuffled())),
    "joined twice": lambda: Joined(*[Shuffled()] * 3),
    "joins joined": lambda: Joined(Joined(Shuffled(), Shuffled()), Joined(Shuffled(), Shuffled())),
}
COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {k}": (lambda df, k=k: pickle.loads(pickle.dumps(df, k))) for k in range(6)},
}


# -- resetting ---------------------------------------------------------------------------------------------------------


def test_the_first_iteration_resets_every_node_once():
    df = ProxyDataFlow(ds := Shuffled())
    assert len(list(df)) == 4
    list(df)
    assert ds.resets == 1


def test_resetting_beforehand_and_again_is_allowed():
    df = ProxyDataFlow(ds := Shuffled())
    df.reset_state()
    list(df)
    assert ds.resets == 1
    df.reset_state()
    df.reset_state()
    assert len(list(df)) == 4
    assert ds.resets == 3


def test_an_instance_in_two_places_of_a_node_is_reset_once():
    df = Joined(ds := Shuffled(), ds)
    df.reset_state()
    list(df)
    assert ds.resets == 1


def test_an_instance_in_two_places_of_a_chain_is_reset_once():
    df = Joined(ProxyDataFlow(ds := Shuffled()), ProxyDataFlow(ProxyDataFlow(ds)))
    list(df)
    assert ds.resets == 1
    df.reset_state()
    assert ds.resets == 2


def test_what_was_started_before_it_was_wrapped_is_not_reset_again():
    next(iter(ds := Shuffled()))
    list(ProxyDataFlow(ds))
    assert ds.resets == 1


def test_a_failed_reset_is_tried_again():
    class Flaky(Shuffled):
        def reset_state(self):
            super().reset_state()
            if self.resets == 1:
                raise OSError("no such file")

    df = ProxyDataFlow(Flaky())
    with pytest.raises(OSError, match="no such file"):
        iter(df)
    assert len(list(df)) == 4


# -- passes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("between", [lambda df: None, lambda df: df.reset_state(), lambda df: df.close()])
def test_the_count_of_passes_goes_on(between):
    seeding.seed(1)
    df, twin = ProxyDataFlow(Shuffled(50)), ProxyDataFlow(Shuffled(50))
    expected = [list(twin) for _ in range(3)]
    passes = []
    for _ in range(3):
        passes.append(list(df))
        between(df)
    assert passes == expected
    assert passes[0] != passes[1] != passes[2]


def test_a_pass_broken_off_counts_as_used():
    seeding.seed(1)
    df, twin = Shuffled(50), Shuffled(50)
    expected = [list(twin) for _ in range(3)]
    next(iter(df))
    iter(df)
    assert list(df) == expected[2]


def test_passes_may_be_interleaved():
    df = Shuffled(50)
    both = list(zip(df, df, strict=True))
    assert [one for one, _ in both] == df[0:50]
    assert [other for _, other in both] == df[50:100]


def test_only_the_flow_that_the_user_iterates_counts():
    seeding.seed(1)
    df = ProxyDataFlow(ds := Shuffled(50))
    list(df)
    assert list(ds) == list(ProxyDataFlow(Shuffled(50)))


def test_list_bool_and_unpacking_work_on_every_flow():
    class Plain(DataFlow):
        def _df_run_pass(self, p, stream):
            return iter([[1], [2]])

    df = Plain()
    assert bool(df)
    assert bool(Shuffled(0))
    assert list(df) == [*df] == [[1], [2]]
    assert [1] in df
    assert list(Shuffled(0)) == []


def test_a_flow_that_defines_nothing_says_so():
    with pytest.raises(NotImplementedError, match="DataFlow defines no __iter__"):
        iter(DataFlow())


# -- length ------------------------------------------------------------------------------------------------------------


def test_the_length_is_that_of_the_input():
    df = ProxyDataFlow(Shuffled(7))
    assert len(df) == df.size() == known_length(df) == 7


@pytest.mark.parametrize("error", [LengthUnknown, NotImplementedError, TypeError])
def test_an_unknown_length_is_caught_in_every_way(error):
    df = ProxyDataFlow(Endless())
    with pytest.raises(error, match="Endless has no known length"):
        len(df)
    assert known_length(df) is None
    assert df._df_endless


# -- random numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [*CHAINS.values(), Noise], ids=[*CHAINS, "noise"])
def test_the_same_seed_gives_the_same_passes(make):
    def passes(seed):
        seeding.seed(seed)
        df = make()
        return [list(df) for _ in range(6)]

    assert passes(1) == passes(1) != passes(2)


def test_without_a_seed_flows_differ_and_each_agrees_with_itself():
    one, other = Shuffled(50), Shuffled(50)
    assert list(one) != list(other)
    assert one[0:50] == one[0:50]


def test_numbers_are_renewed_every_pass():
    df = Noise()
    drawn = {number for _ in range(5) for (number,) in df}
    assert len(drawn) == 15


def test_the_inputs_of_a_join_draw_differently():
    for make in (lambda: Joined(Shuffled(50), Shuffled(50), Shuffled(50)), lambda: Joined(*[Shuffled(50)] * 3)):
        columns = list(zip(*make(), strict=True))
        assert len(set(columns)) == 3


def test_wrapping_changes_no_number():
    seeding.seed(3)
    bare, wrapped = Shuffled(50), ProxyDataFlow(ProxyDataFlow(Shuffled(50)))
    assert list(bare) == list(wrapped)
    assert list(Joined(Noise(), Shuffled(3))) == list(ProxyDataFlow(Joined(ProxyDataFlow(Noise()), Shuffled(3))))


def test_a_level_counts_what_draws_or_joins_along_first_inputs():
    source = Shuffled()
    above = [ProxyDataFlow(source), ProxyDataFlow(ProxyDataFlow(source))]
    assert [df._df_depth.level for df in (source, *above)] == [0, 1, 1]
    join = Joined(ProxyDataFlow(source), source)
    assert (join._df_depth.level, ProxyDataFlow(join)._df_depth.level) == (1, 2)
    assert ProxyDataFlow(Endless())._df_depth.level == 0
    assert not Joined(source)._df_joins


def test_a_root_of_its_own_is_independent_of_the_seed():
    def passes(seed):
        seeding.seed(seed)
        df = Shuffled(50)
        df._df_own_root = 9
        return list(df)

    assert passes(1) == passes(2)


def test_rng_works_before_and_outside_of_a_pass():
    seeding.seed(1)
    df, twin = Noise(), Noise()
    assert df.rng.random() == twin.rng.random()
    before = df.rng
    list(df)
    assert df.rng is not before, "the first iteration resets"
    assert df.rng is df.rng


# -- addressing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", CHAINS.values(), ids=CHAINS)
@settings(max_examples=settings.default.max_examples // 2)
@given(seed=st.integers(0, 2**64), broken_off=st.integers(0, 3))
def test_a_pass_equals_its_addressed_datapoints(make, seed, broken_off):
    seeding.seed(seed)
    df = make()
    n = len(df)
    assert df.addressable
    for _ in range(broken_off):
        next(iter(df))
    for p in range(broken_off, broken_off + 2):
        expected = [df[p * n + k] for k in range(n)]
        assert df[p * n : (p + 1) * n] == expected
        assert list(df) == expected
    assert make()[0 : 5 * n : 3] == df[0 : 5 * n : 3]


def test_addressing_needs_no_seed_and_moves_nothing():
    df = ProxyDataFlow(Shuffled(50))
    addressed = df[0:50]
    assert [df[np.int32(3)], df[True]] == [addressed[3], addressed[1]]
    assert list(df) == addressed


def test_empty_slices_are_empty():
    df = Shuffled()
    assert df[:0] == df[3:3] == df[5:2] == []
    assert df[np.int64(1) : np.uint8(3)] == df[1:3]


@pytest.mark.parametrize("index", [-1, slice(None), slice(3, None), slice(-1, 3), slice(0, -1), slice(0, 3, 0)])
def test_an_endless_sequence_has_no_end_to_count_from(index):
    with pytest.raises(IndexError, match="endless"):
        Shuffled()[index]


@pytest.mark.parametrize("index", ["a", 1.0, None, slice(0.5, 3), slice("a")])
def test_what_is_no_index_is_refused(index):
    with pytest.raises(TypeError):
        Shuffled()[index]


def test_an_index_beyond_64_bits_is_refused():
    with pytest.raises(OverflowError):
        Shuffled()[2**63]


def test_the_node_that_breaks_the_chain_is_named():
    df = ProxyDataFlow(Joined(Shuffled(), ProxyDataFlow(Endless())))
    assert not df.addressable
    assert type(df._df_unaddressable()) is Endless
    with pytest.raises(NotAddressable, match=r"ProxyDataFlow .* because Endless .*DataFromList") as caught:
        df[0]
    assert isinstance(caught.value, TypeError)
    with pytest.raises(NotAddressable):
        df[0:1]


def test_a_dropped_datapoint_keeps_its_position():
    seeding.seed(1)
    df = Drop(Shuffled(4), 2)
    place = df.ds[0:4].index([2])
    with pytest.raises(Dropped, match=f"index {place} of Drop"):
        df[place]
    assert df[0:4] == list(df)
    assert len(df[0:8]) == 6


# -- closing -----------------------------------------------------------------------------------------------------------


def test_a_live_iterator_of_a_closed_flow_raises():
    df = ProxyDataFlow(Shuffled())
    steps, unstarted = iter(df), iter(df)
    next(steps)
    df.close()
    df.close()
    for closed in (steps, unstarted):
        with pytest.raises(DataFlowTerminated, match="ProxyDataFlow was closed"):
            next(closed)
    assert list(steps) == []
    assert len(list(df)) == 4


@pytest.mark.parametrize("first", [False, True])
def test_everything_is_closed_even_if_a_close_raises(first):
    closed = []

    class Closes(DataFlow):
        def __iter__(self):
            yield [0]

        def close(self):
            super().close()
            closed.append(self)

    class Fails(ProxyDataFlow):
        def close(self):
            if not first:
                super().close()
            raise OSError("the device is busy")

    inputs = [Fails(Closes()), Closes()]
    df = JoinData(inputs)
    steps = iter(df)
    next(steps)
    with pytest.raises(OSError, match="the device is busy"):
        df.close()
    assert {inputs[0].ds, inputs[1]} == set(closed)
    with pytest.raises(DataFlowTerminated):
        next(steps)


def test_with_closes_the_flow_upstream_too_and_a_new_iteration_resets():
    with ProxyDataFlow(ds := Shuffled()) as df:
        steps = iter(ds)
        assert len(list(df)) == 4
    with pytest.raises(DataFlowTerminated, match="Shuffled"):
        next(steps)
    assert ds.resets == 1
    list(df)
    assert ds.resets == 2


def test_with_lets_an_exception_through():
    with pytest.raises(KeyError), ProxyDataFlow(Shuffled()):
        raise KeyError


def test_an_unread_datapoint_is_not_kept_alive():
    class Big:
        alive = 0

        def __init__(self):
            Big.alive += 1

        def __del__(self):
            Big.alive -= 1

    class Source(DataFlow):
        def _df_run_pass(self, p, stream):
            return ([Big()] for _ in range(3))

    for dp in ProxyDataFlow(Source()):
        del dp
        assert Big.alive == 0


# -- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_a_copy_is_an_unstarted_flow(duplicate):
    seeding.seed(1)
    df = ProxyDataFlow(Shuffled(50))
    df.reset_state()
    steps = iter(df)
    next(steps)
    twin = duplicate(df)
    assert "_life" not in vars(twin)
    assert list(twin) == df[0:50], "it begins with pass 0"
    next(steps)
    assert list(df) == df[50:100]


def test_a_started_flow_in_a_forked_process_starts_its_own():
    df = ProxyDataFlow(ds := Shuffled(50))
    seeding.seed(1)
    list(df)

    def starts_afresh():
        fresh = list(df) == df[0:50] and ds.resets == 2
        df.close()
        return fresh

    assert exit_code_of_fork(starts_afresh) == 0
    assert list(df) == df[50:100]
    assert ds.resets == 1


# -- structure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "cure"), [([[1]], "DataFromList"), (((1,),), "DataFromList"), (range(3), "DataFromIterable")]
)
def test_what_is_no_dataflow_is_refused_with_the_cure(wrong, cure):
    with pytest.raises(TypeError, match=rf"ProxyDataFlow expects a dataflow, got {type(wrong).__name__}.*{cure}"):
        ProxyDataFlow(wrong)
    df = Shuffled()
    assert require_flow(df, "Owner") is df


def test_walking_visits_each_node_once_from_above():
    shared = Shuffled()
    left, right = ProxyDataFlow(shared), ProxyDataFlow(shared)
    df = Joined(left, right)
    assert list(walk(df)) == [df, left, shared, right]


def test_walking_and_resetting_stop_where_workers_take_over():
    class Elsewhere(ProxyDataFlow):
        _df_remote_inputs = True

        def reset_state(self):
            pass

        def _df_run_pass(self, p, stream):
            return iter([[p]])

    df = ProxyDataFlow(elsewhere := Elsewhere(ds := Shuffled()))
    assert list(walk(df)) == [df, elsewhere]
    assert list(df) == [[0]]
    assert ds.resets == 0


def test_a_node_in_two_places_reports_its_failures_once():
    ds = MapData(DataFromList([[0], [1]], shuffle=False), lambda dp: [1 / dp[0]], max_failures=5)
    df = JoinData([ds, ds])
    assert len(list(df)) == 1
    assert len(df.failures) == len(ds.failures) == 2


@pytest.mark.parametrize("reads", ["df[0]", "df.__getitems__([0])"])
def test_a_loader_that_would_read_the_same_pass_again_is_refused(reads, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.data", types.ModuleType("torch.utils.data"))
    df = Shuffled()
    assert df[0]
    with pytest.raises(TypeError, match=r"Shuffled is not a map-style dataset.*to_torch"):
        eval(reads, {"__name__": "torch.utils.data._utils.fetch", "df": df})


# -- what a node says of itself ----------------------------------------------------------------------------------------


def numbers():
    return DataFromList([[k] for k in range(6)])


@pytest.mark.parametrize(
    ("make", "grain"),
    [
        (numbers, 1),
        (lambda: RepeatedDataPoint(numbers(), 3), 3),
        (lambda: MapData(RepeatedDataPoint(RepeatedDataPoint(numbers(), 3), 2), list), 6),
        (lambda: BatchData(RepeatedDataPoint(numbers(), 6), 4), 3),
        (lambda: BatchData(RepeatedDataPoint(numbers(), 3), 3), 1),
        (lambda: FlattenData(RepeatedDataPoint(numbers(), 2), num=2), 4),
        (lambda: ShuffleData(RepeatedDataPoint(numbers(), 2)), 1),
        (lambda: ShardData(RepeatedDataPoint(numbers(), 2), 0, 2), 1),
        (lambda: JoinData([RepeatedDataPoint(numbers(), 2)] * 2), 1),
    ],
)
def test_blocks_of_grain_indexes_share_work(make, grain):
    assert make()._df_grain == grain


def test_only_what_gives_the_same_order_again_is_reproducible():
    assert all(
        df._df_reproducible
        for df in (numbers(), LocallyShuffleData(numbers(), 3), MultiProcessRunnerZMQ(numbers(), 1), DataFlow())
    )
    mixed = (MultiProcessRunnerZMQ(numbers(), 2), MultiThreadRunner(numbers, 5, 2), DataFromQueue(queue.Queue()))
    assert not any(df._df_reproducible for df in mixed)


def test_what_goes_on_where_it_stopped_says_so():
    iterator = iter([[1]])
    going_on = (
        RepeatedData(numbers(), -1),
        FixedSizeData(numbers(), 4),
        LocallyShuffleData(numbers(), 3),
        DataFromGenerator(iterator),
        MultiProcessRunnerZMQ(numbers(), 1),
    )
    assert all(df._df_continues for df in going_on)
    beginning_anew = (RepeatedData(numbers(), 2), FixedSizeData(numbers(), 4, keep_state=False), numbers(),
                      DataFromGenerator(lambda: iterator), DataFromGenerator([[1]]))  # fmt: skip
    assert not any(df._df_continues for df in beginning_anew)


def test_a_runner_stands_for_its_input():
    ds = numbers()
    assert ds._df_stands_for is ds
    assert MultiProcessRunnerZMQ(ds, 2)._df_stands_for is ds


def test_a_rank_belongs_to_all_above_it_along_first_inputs():
    shard = ShardData(RepeatedData(numbers(), 2), 1, 3)
    assert (
        shard._df_depth.ranks,
        MapData(shard, list)._df_depth.ranks,
        ShardData(MapData(shard, list), 0, 2)._df_depth.ranks,
    ) == (
        (),
        (1,),
        (1,),
    )
    assert RandomMixData([numbers(), shard])._df_depth.ranks == ()
    assert ShardData(numbers(), 0, 1)._df_own_rank is None
    stream = Stream(1)
    above, below = ShuffleData(shard)._df_words(stream, 0), ShuffleData(shard.ds)._df_words(stream, 0)
    assert above[: len(below)] == below and above[len(below) :] == (1,)


def test_what_is_compared_of_a_node_are_its_public_attributes():
    df = BatchData(numbers(), 2)
    df._private = 5
    assert df._df_compared == {"ds": df.ds, "batch_size": 2, "remainder": False, "use_list": False, "seed": None}
    assert ShuffleData(numbers(), seed=5)._df_compared["seed"] == 5
