"""Whose generator a function draws from: seeded global ones, held ones, and the node's own."""

import copy
import functools
import itertools
import pickle
import random
import subprocess
import sys
import types

import numpy as np
import pytest

import dataflow
from dataflow import (
    BatchData,
    DataFromGenerator,
    DataFromList,
    FilterData,
    MapData,
    MapDataComponent,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessMapDataComponentSharedArray,
    MultiThreadMapData,
    MultiThreadRunner,
    NotReproducible,
    ParallelData,
    RandomMapData,
    RayMapData,
    RepeatedData,
    ResumableData,
    RNGDataFlow,
    ShardData,
)
from dataflow.protocol import first_calls
from dataflow.protocol.generators import drawn_from, global_generators, held_generators, states_of
from dataflow.protocol.state import Promise


@pytest.fixture(autouse=True)
def seed():
    dataflow.seed(1)
    yield
    dataflow.seed(None)


def numbers(n=12):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def draw(dp):
    return [dp[0], random.random(), float(np.random.rand()), float(np.random.normal())]


def draw_one(k):
    return random.random(), float(np.random.rand())


def reseed(dp):
    random.seed(dp[0])
    np.random.seed(dp[0])
    return draw(dp)


def seeded(n=12):
    return MapData(numbers(n), draw, seed_globals=True)


def one_pass(df):
    with df:
        return list(df)


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if "draws random numbers" in record.getMessage()]


class TestSeededGlobals:
    def test_a_datapoint_is_the_same_by_loop_and_by_index_and_differs_between_passes(self):
        df = seeded()
        first, second = list(df), list(df)
        assert first == df[:12]
        assert second == df[12:24]
        assert len({dp[1] for dp in first + second}) == len({dp[2] for dp in first + second}) == 24

    def test_the_seed_decides(self):
        first = list(seeded())
        dataflow.seed(1)
        assert list(seeded()) == first
        dataflow.seed(2)
        assert list(seeded()) != first

    @pytest.mark.parametrize("num_workers", [0, 1, 3])
    def test_every_number_of_processes_gives_the_same(self, num_workers):
        expected = list(seeded())
        assert one_pass(ParallelData(seeded(), num_workers)) == expected

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_parallel_maps_give_the_same(self, num_workers):
        expected = list(seeded())
        df = MultiProcessMapData(numbers(), num_workers, draw, strict=True, seed_globals=True)
        with df:
            assert list(df) == expected
            assert df[13] == seeded()[13]
        batches = MultiProcessMapAndBatchData(numbers(), num_workers, draw, 4, strict=True, seed_globals=True)
        found = [row for batch in one_pass(batches) for row in batch[1].tolist()]
        assert found == [row for batch in BatchData(seeded(), 4) for row in batch[1].tolist()]
        shared = MultiProcessMapDataComponentSharedArray(
            numbers(), num_workers, draw_one, (2,), "f8", strict=True, seed_globals=True
        )
        assert [dp[0].tolist() for dp in one_pass(shared)] == [dp[1:3] for dp in expected]

    def test_ray_takes_it(self):
        assert list(RayMapData(numbers(), 0, draw, strict=True, seed_globals=True)) == list(seeded())

    def test_a_component_and_an_input_without_index(self):
        expected = [dp[1:3] for dp in seeded()]
        assert [list(dp[0]) for dp in MapDataComponent(numbers(), draw_one, seed_globals=True)] == expected
        df = MapData(DataFromGenerator(lambda: ([k] for k in range(12))), draw, seed_globals=True)
        assert [dp[1:3] for dp in df] == expected

    def test_shards_and_resumed_runs_give_the_same(self):
        expected = list(seeded())
        assert [list(ShardData(seeded(), rank, 2)) for rank in range(2)] == [expected[::2], expected[1::2]]
        df = ResumableData(seeded())
        for _ in zip(range(5), df, strict=False):
            pass
        resumed = ResumableData(seeded())
        resumed.load_state_dict(df.state_dict())
        assert list(resumed) == expected[5:]

    def test_a_dropped_datapoint_changes_no_other(self):
        whole = list(seeded())
        df = MapData(MapData(numbers(), lambda dp: dp if dp[0] % 3 else None), draw, seed_globals=True)
        assert list(df) == [dp for dp in whole if dp[0] % 3]

    def test_the_generators_of_the_consumer_are_left_as_they_were(self):
        random.seed(3)
        np.random.seed(3)
        np.random.normal()  # leaves a number behind for the next call
        before = random.getstate(), repr(np.random.get_state())
        df = MapData(numbers(), lambda dp: draw(dp) if dp[0] < 5 else 1 / 0, seed_globals=True)
        with pytest.raises(ZeroDivisionError):
            list(df)
        assert (random.getstate(), repr(np.random.get_state())) == before

    def test_torch_is_seeded_if_it_is_imported(self):
        torch = pytest.importorskip("torch")
        torch.manual_seed(1)
        before = torch.get_rng_state()
        df = MapData(numbers(), lambda dp: [float(torch.rand(()))], seed_globals=True)
        assert list(df) == df[:12]
        assert len(set(map(tuple, df[:12]))) == 12
        assert torch.equal(torch.get_rng_state(), before)

    def test_torch_that_a_call_imports_and_draws_from_is_refused(self):
        pytest.importorskip("torch")
        script = (
            "import dataflow\n"
            "def late(dp):\n"
            "    import torch\n"
            "    return [float(torch.rand(()))]\n"
            "list(dataflow.MapData(dataflow.DataFromList([[1]]), late, seed_globals=True))\n"
        )
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
        assert "Import torch at the top of the file" in ran.stderr

    def test_threads_share_the_generators_and_are_refused(self):
        with pytest.raises(ValueError, match="all threads share"):
            MultiThreadMapData(numbers(), 2, draw, strict=True, seed_globals=True)
        with pytest.raises(ValueError, match=r"seed_globals=True.*Use processes"):
            MultiThreadRunner(seeded, 10, 2, strict=True)
        with pytest.raises(ValueError, match=r"seed_globals=True.*Use processes"):
            ParallelData(BatchData(seeded(), 2), 2, backend="thread")
        assert len(list(MultiThreadMapData(numbers(), 0, draw, strict=True, seed_globals=True))) == 12

    def test_two_ways_to_draw_are_refused(self):
        with pytest.raises(ValueError, match="choose one"):
            MultiProcessMapData(numbers(), 1, draw, strict=True, with_rng=True, seed_globals=True)

    def test_states_and_texts_change_only_where_it_is_on(self):
        assert "seed_globals" not in str(ResumableData(MapData(numbers(), draw)).state_dict())
        assert "seed_globals=True" in repr(seeded())
        assert list(pickle.loads(pickle.dumps(seeded()))) == list(seeded())


class TestNoticed:
    """A function that draws from a global generator is named where the same datapoints are promised."""

    @pytest.mark.parametrize(
        ("wrap", "owner"),
        [
            (lambda df: ParallelData(df, 0), "ParallelData"),
            (ResumableData, "ResumableData"),
            (lambda df: ShardData(df, 0, 2), "ShardData"),
            (lambda df: ResumableData(BatchData(df, 2)), "ResumableData"),
        ],
    )
    def test_in_this_process_once(self, wrap, owner, caplog):
        df = wrap(MapData(numbers(), draw))
        list(df), list(df)
        (text,) = warnings_of(caplog)
        assert text.startswith(
            f"{owner}: draw, the function of MapData, draws random numbers from the global generator"
        )
        assert "random and numpy.random" in text
        assert "seed_globals=True" in text

    @pytest.mark.parametrize("make", [
        lambda: ParallelData(MapData(numbers(60), draw), 2),
        lambda: MultiProcessMapData(numbers(60), 2, draw, strict=True),
        lambda: ParallelData(ParallelData(MapData(numbers(60), draw), 1), 1),
    ])  # fmt: skip
    def test_in_workers_once_for_all_of_them(self, make, caplog):
        one_pass(make())
        assert len(warnings_of(caplog)) == 1

    def test_by_index_where_the_consumer_makes_the_datapoint_itself(self, caplog):
        with ParallelData(MapData(numbers(60), draw), 1) as df:
            for k in range(10):
                df[k]
        assert len(warnings_of(caplog)) == 1

    @pytest.mark.parametrize("backend", ["process", "thread"])
    def test_by_index_it_is_known_whether_other_threads_may_draw_meanwhile(self, backend, monkeypatch):
        given = []
        monkeypatch.setattr("dataflow.runners.runners.promise", lambda df, promise: given.append(promise))
        with ParallelData(MapData(numbers(60), draw), 1, backend=backend) as df:
            df[0]
        assert given == [Promise("ParallelData", shares_process=backend == "thread")]

    def test_a_map_without_workers(self, caplog):
        df = MultiProcessMapData(numbers(), 0, draw, strict=True)
        list(df), list(df)
        assert len(warnings_of(caplog)) == 1

    @pytest.mark.parametrize(
        "make",
        [
            lambda: MapData(numbers(), draw),  # nobody promises anything
            lambda: ResumableData(seeded()),
            lambda: ResumableData(MapData(numbers(), reseed)),
            lambda: ResumableData(RandomMapData(numbers(), lambda dp, rng: [rng.random()])),
            lambda: ShardData(dataflow.ShuffleData(MapData(numbers(), lambda dp: dp)), 0, 2),
        ],
    )
    def test_no_false_alarm(self, make, caplog):
        df = make()
        for _ in df:
            draw([0])  # the consumer's own
        assert not warnings_of(caplog)

    def test_the_predicate_of_a_filter(self, caplog):
        list(ParallelData(FilterData(numbers(), lambda dp: random.random() < 2), 0))
        assert len(warnings_of(caplog)) == 1

    def test_nothing_is_looked_at_after_the_first_calls(self, monkeypatch):
        looks = []
        monkeypatch.setattr(first_calls, "states_of", lambda generators: looks.append(generators) or {})
        df = ResumableData(MapData(numbers(30), draw))
        list(df), list(df), df[3]
        assert 2 <= len(looks) <= 32


HELD = r"draws random numbers from a generator that it holds \(.*RandomMapData, or with_rng=True"


def draws_from(dp, random):
    return [random.random()]


def drawing(generator):
    return MapData(numbers(60), lambda dp: [drawn(generator)])


def seeding(generator, seed):
    """A function that seeds the generator that it holds, and draws as many numbers as the datapoint says."""

    def func(dp):
        generator.seed(seed(dp[0]))
        return [drawn(generator) for _ in range(1 + dp[0] * 5 % 12)]

    return func


class TestHeld:
    """A function that draws from a generator that it holds is refused where the same datapoints are promised."""

    @pytest.mark.parametrize(
        "kind",
        [
            random.Random,
            np.random.default_rng,
            np.random.RandomState,
            lambda seed: np.random.Generator(np.random.MT19937(seed)),
            lambda seed: np.random.Generator(np.random.Philox(seed)),
            lambda seed: np.random.Generator(np.random.SFC64(seed)),
        ],
    )
    @pytest.mark.parametrize("where", ["closure", "default", "partial", "attribute", "global", "class", "method"])
    def test_wherever_it_holds_it_and_at_the_first_datapoint(self, kind, where):
        df = ResumableData(MapData(numbers(1), holding(kind(1), where)))
        for _ in range(10):
            with pytest.raises(NotReproducible, match=HELD):
                list(df)

    @pytest.mark.parametrize(
        ("wrap", "owner"),
        [
            (lambda df: ParallelData(df, 0), "ParallelData"),
            (lambda df: ShardData(df, 0, 2), "ShardData"),
            (lambda df: ResumableData(BatchData(df, 2)), "ResumableData"),
            (lambda df: MultiProcessMapData(numbers(), 0, df.func, strict=True), "MultiProcessMapData"),
            (lambda df: ParallelData(FilterData(numbers(), df.func), 0), "ParallelData"),
            (lambda df: ResumableData(BatchData(numbers(), 2, collate=lambda g: df.func(g[0]))), "ResumableData"),
            (lambda df: ResumableData(MapData(numbers(), df.func, seed_globals=True)), "ResumableData"),
            (lambda df: MultiThreadMapData(numbers(), 2, df.func, strict=True), "MultiThreadMapData"),
            (lambda df: ParallelData(df, 2, backend="thread"), "ParallelData"),
        ],
    )
    def test_whoever_promises(self, wrap, owner):
        with pytest.raises(NotReproducible, match=f"{owner}: .*the function of .*{HELD}"):
            one_pass(wrap(drawing(random.Random(1))))

    @pytest.mark.parametrize(
        "make",
        [
            lambda df: ParallelData(df, 2),
            lambda df: MultiProcessMapData(numbers(60), 2, df.func, strict=True),
            lambda df: ParallelData(ParallelData(df, 1), 1),
        ],
    )
    def test_the_error_of_a_worker_arrives(self, make):
        with pytest.raises(NotReproducible, match=HELD):
            one_pass(make(drawing(np.random.default_rng(1))))

    def test_so_does_that_of_a_datapoint_by_index_which_the_consumer_makes_itself(self):
        with ParallelData(drawing(np.random.default_rng(1)), 1) as df, pytest.raises(NotReproducible, match=HELD):
            [df[k] for k in range(10)]

    def test_it_is_no_failure_that_a_budget_tolerates(self):
        df = MapData(numbers(), holding(random.Random(1), "closure"), max_failures=100)
        with pytest.raises(NotReproducible, match=HELD):
            list(ResumableData(df))

    def test_one_of_several_and_one_that_is_named_like_a_module(self):
        pair = [random.Random(1), random.Random(2)]
        with pytest.raises(NotReproducible, match=r"holds \(pair\)"):
            list(ResumableData(MapData(numbers(), lambda dp: [pair[0].random()])))
        with pytest.raises(NotReproducible, match=r"holds \(pair, 2\)"):
            list(ResumableData(MapData(numbers(), lambda dp: [pair[1].random()])))
        with pytest.raises(NotReproducible, match=r"holds \(func.keywords\['random'\]\)"):
            list(ResumableData(MapData(numbers(), functools.partial(draws_from, random=pair[0]))))

    def test_one_of_a_hundred(self):
        many = [random.Random(k) for k in range(100)]
        with pytest.raises(NotReproducible, match=r"holds \(many\)"):
            list(ResumableData(MapData(numbers(), lambda dp: [many[dp[0]].random()])))

    def test_a_helper_method_that_draws_from_a_global_variable_or_a_module(self):
        for name in ("RANDOM", "GENERATORS.random"):
            with pytest.raises(NotReproducible, match=rf"holds \({name}\)"):
                list(ResumableData(MapData(numbers(), DrawsInHelper(name))))

    def test_a_function_that_can_seed_and_does_not_is_refused_after_some_calls(self):
        generator = random.Random(1)
        df = MapData(numbers(), lambda dp: [generator.seed(1) if dp[0] > 100 else generator.random()])
        with pytest.raises(NotReproducible, match=HELD):
            list(ResumableData(df))

    @pytest.mark.parametrize("kind", [random.Random, np.random.RandomState])
    @pytest.mark.parametrize("seed", [lambda k: k, lambda k: 0])
    def test_a_generator_that_the_function_seeds_is_right(self, kind, seed):
        df = MapData(numbers(), seeding(kind(0), seed))
        assert list(ResumableData(df)) == list(MapData(numbers(), seeding(kind(9), seed)))

    @pytest.mark.parametrize(
        "func",
        [
            lambda dp, g: [drawn(copy.deepcopy(g))],
            lambda dp, g: [np.random.Generator(g.bit_generator.jumped(dp[0])).random()],
            lambda dp, g: [dp[0]],
        ],
    )
    def test_a_generator_that_stays_as_it_is_is_right(self, func):
        made = functools.partial(func, g=np.random.default_rng(1))
        assert list(ResumableData(MapData(numbers(), made))) == list(MapData(numbers(), made))

    def test_a_generator_whose_state_cannot_be_read_is_left_alone(self):
        class Odd(random.Random):
            def getstate(self):
                raise NotImplementedError

        assert len(list(ResumableData(drawing(Odd(1))))) == 60

    def test_where_nobody_promises_anything_nothing_happens(self, caplog):
        assert len(list(drawing(random.Random(1)))) == 60
        with MultiThreadMapData(numbers(), 2, holding(random.Random(1), "closure")) as df:
            assert len(list(itertools.islice(df, 30))) == 30
        assert not warnings_of(caplog)

    def test_a_generator_of_torch(self):
        torch = pytest.importorskip("torch")
        generator = torch.Generator().manual_seed(0)
        with pytest.raises(NotReproducible, match=HELD):
            list(ResumableData(MapData(numbers(1), lambda dp: [float(torch.rand((), generator=generator))])))
        generator.manual_seed(0)
        df = MapData(numbers(), lambda dp: [float(torch.rand((), generator=generator.manual_seed(dp[0])))])
        assert list(ResumableData(df)) == list(df)


GENERATOR = random.Random(1)


class Holder:
    generator = None

    def __init__(self, generator=None):
        if generator is not None:
            self.generator = generator

    def __call__(self, dp):
        return [drawn(self.generator)]


def drawn(generator):
    return generator.random() if hasattr(generator, "random") else generator.rand()


RANDOM = random.Random(1)
GENERATORS = types.ModuleType("generators_of_the_program")
GENERATORS.random = random.Random(2)


class DrawsInHelper:
    def __init__(self, name):
        self.name = name

    def __call__(self, dp):
        return [self.drawn()]

    def drawn(self):
        return RANDOM.random() if self.name == "RANDOM" else GENERATORS.random.random()


def holding(generator, where):
    if where == "closure":
        return lambda dp: [drawn(generator)]
    if where == "default":
        return lambda dp, g=generator: [drawn(g)]
    if where == "partial":
        return functools.partial(lambda g, dp: [drawn(g)], generator)
    if where == "attribute":
        return Holder(generator)
    if where == "method":
        draw = generator.random if hasattr(generator, "random") else generator.rand
        return lambda dp: [draw()]
    if where == "class":
        return type("Held", (Holder,), {"generator": generator})()
    namespace = {"drawn": drawn, "generator": generator}
    exec("def func(dp):\n    return [drawn(generator)]", namespace)
    return namespace["func"]


class TestStates:
    def test_draws_are_told_from_seeds(self):
        generators = global_generators()
        for draws in (1, 100, 624, 10_000):
            before = states_of(generators)
            np.random.rand(draws)
            assert drawn_from(before, states_of(generators)) == ["numpy.random"]
            before = states_of(generators)
            np.random.seed(draws)
            np.random.rand(draws)
            assert drawn_from(before, states_of(generators)) == []

    def test_the_global_generators_are_not_held(self):
        assert held_generators(draw) == {}


class Augment(MapData, RNGDataFlow):
    def __init__(self, ds):
        super().__init__(ds, self.augment)

    def augment(self, dp):
        return [dp[0], self.rng.randint(1 << 30), self.rng.randint(1 << 30)]


class Apart(RNGDataFlow):
    def augment(self, dp):
        return [dp[0], self.rng.randint(1 << 30)]


class DrawsInReset(MapData, RNGDataFlow):
    def __init__(self, ds):
        super().__init__(ds, self.add)

    def reset_state(self):
        super().reset_state()
        self.offset = self.rng.randint(1 << 30)

    def add(self, dp):
        return [dp[0], self.offset]


class TestOwnGenerator:
    def test_in_the_function_of_the_node_itself_it_belongs_to_the_datapoint(self):
        expected = list(Augment(numbers()))
        df = Augment(numbers())
        assert df[3] == df[3] == expected[3]
        assert len({number for dp in expected for number in dp[1:]}) == 24
        assert [list(ShardData(Augment(numbers()), rank, 2)) for rank in range(2)] == [expected[::2], expected[1::2]]

    @pytest.mark.parametrize("num_workers", [0, 1, 3])
    @pytest.mark.parametrize("node", [Augment, DrawsInReset])
    def test_every_number_of_workers_gives_the_same(self, node, num_workers):
        expected = list(node(numbers()))
        assert one_pass(ParallelData(node(numbers()), num_workers)) == expected

    def test_threads_give_the_same(self):
        assert one_pass(ParallelData(Augment(numbers()), 2, backend="thread")) == list(Augment(numbers()))

    @pytest.mark.parametrize(
        "make",
        [
            lambda f: MapData(numbers(), f),
            lambda f: MapDataComponent(numbers(), lambda k: f([k])),
            lambda f: RandomMapData(numbers(), lambda dp, rng: f(dp)),
            lambda f: FilterData(numbers(), f),
            lambda f: BatchData(numbers(), 2, collate=lambda group: f(group[0])),
            lambda f: MultiProcessMapData(numbers(), 0, f, strict=True),
        ],
    )
    def test_in_the_function_of_another_node_it_is_refused(self, make):
        with pytest.raises(NotReproducible, match=r"Apart\.rng was read in .* Use RandomMapData"):
            list(make(Apart().augment))

    def test_over_an_endless_flow(self):
        df = Augment(RepeatedData(numbers(3), -1))
        assert df[:7] == [dp for dp, _ in zip(df, range(7), strict=False)]


# -- Numbers that a function changes -----------------------------------------------------------------------------------


class Counter:
    def __init__(self):
        self.num = 0
        self.first = 0
        self.steps = itertools.count()
        self.left = iter(range(100))

    def count(self, dp):
        self.num += 1
        return [*dp, self.num]

    def step(self, dp):
        return [*dp, next(self.steps)]

    def take(self, dp):
        return [*dp, next(self.left)]

    def prepare(self, dp):
        self.first = 1
        return dp


def nonlocal_counter():
    num = 0

    def count(dp):
        nonlocal num
        num += 1
        return [*dp, num]

    return count


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (lambda: Counter().count, "num"),
        (lambda: Counter().step, "steps"),
        (lambda: Counter().take, "left"),
        (nonlocal_counter, "num in"),
        (lambda: Counter().prepare, None),
        (lambda: list, None),
    ],
    ids=["attribute", "itertools.count", "iterator", "closure", "prepared once", "built in"],
)
def test_a_number_that_a_function_changes_in_each_call_is_logged_once(func, name, caplog):
    list(MapData(numbers(), func()))
    assert not caplog.records  # nobody has promised anything
    for df in ResumableData(MapData(numbers(), func())), MultiThreadMapData(numbers(), 2, func(), strict=True):
        caplog.clear()
        with df:
            assert len(list(df)) == len(list(df)) == 12
        found = [record.getMessage() for record in caplog.records]
        assert len(found) == (name is not None), found
        assert name is None or (name in found[0] and "in each call: every worker counts for itself" in found[0])


def test_numbers_that_are_drawn_from_a_bare_bit_generator_are_noticed():
    bits = np.random.PCG64(1)
    before = states_of({"bits": bits})
    assert drawn_from(before, states_of({"bits": bits})) == []
    np.random.Generator(bits).random()
    assert drawn_from(before, states_of({"bits": bits})) == ["bits"]
