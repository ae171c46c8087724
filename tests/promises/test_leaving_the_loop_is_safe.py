"""Passes that are left early, where what is below is read ahead: the next one is exact, or refused."""

import itertools

import pytest

from dataflow import (
    DataFlow,
    DataFromGenerator,
    DataFromList,
    Dropped,
    FilterData,
    FixedSizeData,
    FlattenData,
    LocallyShuffleData,
    MapData,
    MixData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    NotReproducible,
    RandomChooseData,
    RepeatedData,
    seed,
)
from tests.support.products import covering

pytestmark = pytest.mark.usefixtures("unseeded")

LENGTH = 40


def listed(num=200):
    return DataFromList([[k] for k in range(num)], shuffle=False)


def not_one(dp):
    return None if dp[0] % 3 == 1 else dp


def always(dp):
    return True


def count():
    return ([k] for k in range(200))


CONTINUING = {
    "generator": (lambda: FixedSizeData(DataFromGenerator(count), LENGTH), NotReproducible),
    "iterator": (lambda: FixedSizeData(DataFromGenerator([k] for k in itertools.count()), LENGTH), NotReproducible),
    "local shuffle": (lambda: FixedSizeData(LocallyShuffleData(listed(), 5), LENGTH), NotReproducible),
    "choice": (lambda: FixedSizeData(RandomChooseData([listed(), listed()]), LENGTH), NotReproducible),
    "dropped below a filter": (
        lambda: FilterData(FixedSizeData(MapData(listed(), not_one), LENGTH), always),
        Dropped,
    ),
}
INDEPENDENT = {
    "addressed": lambda: FlattenData(FixedSizeData(listed(), LENGTH)),
    "filtered": lambda: FilterData(listed(LENGTH), always),
    "new passes": lambda: FixedSizeData(DataFromGenerator(count), LENGTH, keep_state=False),
    "cut mixture": lambda: FlattenData(FixedSizeData(MixData([listed(), listed()], [1, 2]), LENGTH)),
}
AHEAD = {
    "thread runner": lambda ds: MultiThreadRunner(lambda: ds, 10, 1, strict=True),
    "thread map": lambda ds: MultiThreadMapData(ds, 2, list, strict=True),
    "process runner": lambda ds: MultiProcessRunner(ds, 10, 1, strict=True, context="fork"),  # carries iterators
    "process map": lambda ds: MultiProcessMapData(ds, 1, list, strict=True),
    "nested": lambda ds: MultiThreadRunner(
        lambda: FilterData(MultiThreadRunner(lambda: ds, 3, 1, strict=True), always), 10, 1, strict=True
    ),
}


def taken(df, num):
    return [dp for _, dp in zip(range(num), df, strict=False)]


@pytest.mark.parametrize(("flow", "ahead"), covering([*CONTINUING], [*AHEAD]))
def test_a_pass_after_one_that_was_left_early_is_refused_if_it_continues(flow, ahead):
    seed(1)
    make, error = CONTINUING[flow]
    with AHEAD[ahead](make()) as df:
        list(df)
        taken(df, 3)
        with pytest.raises(error, match="continues where the last one stopped, and one was left early"):
            list(df)


def test_after_close_it_begins_anew():
    with MultiThreadRunner(lambda: FixedSizeData(DataFromGenerator(count), LENGTH), 10, 1, strict=True) as df:
        assert taken(df, 3)
        df.close()
        assert list(df) == [[k] for k in range(LENGTH)]


@pytest.mark.parametrize(("flow", "ahead"), covering([*CONTINUING], [*AHEAD]))
def test_whole_passes_continue(flow, ahead):
    seed(1)
    make, _ = CONTINUING[flow]
    alone = make()
    with AHEAD[ahead](make()) as df:
        for _ in range(3):
            assert list(df) == list(alone)


@pytest.mark.parametrize("kind", ["thread runner", "thread map", "process runner"])
def test_a_pass_of_known_length_is_whole_when_all_is_taken(kind):
    with AHEAD[kind](FixedSizeData(DataFromGenerator(count), LENGTH)) as df:
        assert taken(df, LENGTH) == [[k] for k in range(LENGTH)]
        assert taken(df, LENGTH) == [[k] for k in range(LENGTH, 2 * LENGTH)]


@pytest.mark.parametrize(("flow", "ahead"), covering([*INDEPENDENT], [*AHEAD]))
def test_independent_passes_are_exact_after_one_that_was_left_early(flow, ahead):
    seed(1)
    alone = INDEPENDENT[flow]()
    with AHEAD[ahead](INDEPENDENT[flow]()) as df:
        for num in 3, 0, LENGTH:
            assert taken(df, num) == taken(alone, num)


def test_above_the_runner_what_was_read_ahead_is_handed_out():
    with FixedSizeData(MultiThreadRunner(lambda: DataFromGenerator(count), 10, 1, strict=True), LENGTH) as df:
        assert taken(df, 3) + taken(df, 3) == [[k] for k in range(6)]


def test_an_endless_flow_continues():
    with MultiThreadRunner(lambda: RepeatedData(DataFromGenerator(count), -1), 10, 1, strict=True) as df:
        assert taken(df, 3) + taken(df, 3) == [[k] for k in range(6)]


class Dies(DataFlow):
    """Its worker exits at a datapoint of the second pass, once."""

    def __init__(self, ds, mark):
        self.ds, self.mark = ds, mark

    def __iter__(self):
        for dp in self.ds:
            if dp[0] == LENGTH + 5 and not self.mark.exists():
                self.mark.touch()
                raise SystemExit(1)
            yield dp


@pytest.mark.parametrize("kind", ["thread runner", "process runner"])
def test_a_successor_does_not_repeat_a_pass_that_continues(kind, tmp_path):
    options = {"strict": True, "max_restarts": 1}
    flow = Dies(FixedSizeData(DataFromGenerator(count), LENGTH), tmp_path / "died")
    runner = (
        MultiThreadRunner(lambda: flow, 10, 1, **options)
        if kind == "thread runner"
        else MultiProcessRunnerZMQ(flow, 1, **options)
    )
    with runner as df:
        assert list(df) == [[k] for k in range(LENGTH)]
        with pytest.raises(NotReproducible, match=r"FixedSizeData continues .* but the worker .* has died"):
            list(df)
