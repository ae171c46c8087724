"""Code of users' nodes and sources that draws from global generators."""

import random
from random import shuffle

import numpy as np
import pytest

import dataflow
from dataflow import (
    DataFlow,
    DataFromAsyncIterable,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    MapData,
    NotReproducible,
    ParallelData,
    ProxyDataFlow,
    ResumableData,
    RNGDataFlow,
    ShardData,
)
from dataflow.protocol import first_steps

DRAWS = "the code of {} draws random numbers from the global generator of {}.*RNGDataFlow"


@pytest.fixture(autouse=True)
def seed():
    dataflow.seed(1)
    yield
    dataflow.seed(None)


def numbers(n=12):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def shuffled():
    data = list(range(12))
    random.shuffle(data)
    yield from ([k] for k in data)


def shuffled_by_name():
    data = list(range(12))
    shuffle(data)
    return [[k] for k in data]


async def shuffled_later():
    for dp in shuffled():
        yield dp


class Permuted(DataFlow):
    def __iter__(self):
        yield from ([k] for k in np.random.permutation(12).tolist())


class Augmented(ProxyDataFlow):
    def __iter__(self):
        for dp in self.ds:
            yield [dp[0], random.random()]


class Passing(ProxyDataFlow):
    def __iter__(self):
        yield from self.ds


def draw(dp):
    return [dp[0], random.random()]


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if "draws random numbers" in record.getMessage()]


class TestRefusal:
    @pytest.mark.parametrize(
        ("make", "name", "generator"),
        [
            (lambda: DataFromGenerator(shuffled), "DataFromGenerator", "random"),
            (lambda: DataFromGenerator(shuffled_by_name), "DataFromGenerator", "random"),
            (lambda: DataFromIterable(shuffled()), "DataFromIterable", "random"),
            (lambda: DataFromAsyncIterable(shuffled_later), "DataFromAsyncIterable", "random"),
            (Permuted, "Permuted", "numpy.random"),
            (lambda: Augmented(Passing(numbers())), "Augmented", "random"),
            (lambda: Passing(Augmented(numbers())), "Augmented", "random"),
        ],
    )
    def test_a_share_of_a_pass_that_each_rank_draws_for_itself_is_refused(self, make, name, generator):
        for rank in range(2):
            with ShardData(make(), rank, 2) as df, pytest.raises(NotReproducible, match=DRAWS.format(name, generator)):
                list(df)

    @pytest.mark.parametrize("make", [lambda: DataFromGenerator(shuffled), Permuted, lambda: Augmented(numbers())])
    def test_a_pass_that_is_to_be_resumed_is_refused_in_every_loop(self, make):
        df = ResumableData(make())
        for _ in range(3):
            with pytest.raises(NotReproducible, match=r"^ResumableData: the code of"):
                list(df)

    def test_what_a_runner_alone_may_do_its_shares_and_resumed_passes_may_not(self, caplog):
        with ParallelData(Permuted(), 1) as df:
            assert sorted(df) == [[k] for k in range(12)]
        assert len(warnings_of(caplog)) == 1
        for above in (ResumableData, lambda df: ShardData(df, 0, 2)):
            with above(ParallelData(Permuted(), 1)) as df, pytest.raises(NotReproducible, match="the code of Permuted"):
                list(df)

    def test_what_was_only_a_warning_is_refused_later(self, caplog):
        source = Permuted()
        with ParallelData(source, 0) as df:
            list(df)
        assert len(warnings_of(caplog)) == 1
        with pytest.raises(NotReproducible, match="the code of Permuted"):
            list(ResumableData(source))


class TestWhatIsAllowed:
    def test_without_a_promise_nothing_is_looked_at(self, monkeypatch):
        monkeypatch.setattr(first_steps, "states_of", lambda generators: pytest.fail("looked"))
        assert len(list(Augmented(DataFromGenerator(shuffled)))) == 12

    def test_nothing_is_looked_at_after_the_first_steps(self, monkeypatch):
        looks = []
        monkeypatch.setattr(first_steps, "states_of", lambda generators: looks.append(generators) or {})
        df = ResumableData(Passing(numbers(100)))
        list(df)
        count = len(looks)
        assert count < 30
        assert list(df) == list(numbers(100))
        assert len(looks) <= count + 2

    def test_each_datapoint_is_there_once_however_short_the_pass_is(self):
        for n in range(20):
            df = ResumableData(Passing(numbers(n)))
            for _ in range(3):
                assert list(df) == list(numbers(n))

    def test_self_rng_is(self):
        class Shuffled(RNGDataFlow):
            def __iter__(self):
                yield from ([k] for k in self.rng.permutation(12).tolist())

        assert sorted(dp for rank in range(2) for dp in ShardData(Shuffled(), rank, 2)) == [[k] for k in range(12)]

    def test_code_that_seeds_the_generator_itself_is(self, caplog):
        def seeded():
            random.seed(7)
            yield from ([random.random()] for _ in range(12))

        random.seed(7)
        found = [dp for rank in range(2) for dp in ShardData(DataFromGenerator(seeded), rank, 2)]
        assert sorted(found) == sorted(seeded())
        assert not warnings_of(caplog)

    @pytest.mark.parametrize("num_workers", [0, 1])
    def test_a_map_below_that_seeds_for_each_datapoint_is(self, num_workers, caplog):
        df = Passing(MapData(numbers(), draw, seed_globals=True))
        expected = list(df)
        with ResumableData(ParallelData(df, num_workers)) as resumable:
            assert list(resumable) == expected
        assert not warnings_of(caplog)

    def test_draws_of_a_map_below_are_put_down_to_the_map(self, caplog):
        for node in (Passing(MapData(numbers(), draw)), Augmented(MapData(numbers(), draw))):
            list(ResumableData(node))
        assert ["MapData" in text for text in warnings_of(caplog)] == [True, True]

    def test_another_thread_may_draw_meanwhile(self, caplog):
        class Waiting(ProxyDataFlow):
            def __iter__(self):
                for dp in self.ds:
                    random.random()
                    yield dp

        with dataflow.ParallelData(Waiting(numbers()), 1, backend="thread") as df:
            assert list(df) == list(numbers())
        assert len(warnings_of(caplog)) == 1  # it may have been another thread, so this is no error
