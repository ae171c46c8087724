"""`to_torch`: a flow under torch's DataLoader, with and without workers, ranks and saved states."""

import json
import logging
import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dataflow
from dataflow import (
    BatchData,
    DataFlow,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    FixedSizeData,
    MapData,
    MixData,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    RandomMapData,
    RepeatedData,
    ResumableData,
    ShardData,
    ShuffleData,
    to_torch,
)
from dataflow.errors import LengthUnknown, MissingExtra, NotReproducible, StateMismatch
from dataflow.protocol.passes import known_length
from tests.support import own_nodes
from tests.support.contract import seeded
from tests.support.waits import LIMIT

torch = pytest.importorskip("torch")
data = torch.utils.data

N = 23


def shuffled(n=N):
    return DataFromList([[np.full(3, k, np.float32), k] for k in range(n)])


def generated(n=N):
    return DataFromGenerator(lambda: iter([[np.zeros(1), k] for k in range(n)]))


def loader(dataset, num_workers=0, **options):
    context = "fork" if num_workers else None
    return data.DataLoader(
        dataset, num_workers=num_workers, **{"batch_size": None, "multiprocessing_context": context, **options}
    )


def labels(datapoints):
    return [int(label) for _, label in datapoints]


@pytest.fixture
def log(tmp_path):
    """The file to which this process and its workers log."""
    handler = logging.FileHandler(tmp_path / "log.txt", encoding="utf-8")
    logger = logging.getLogger("dataflow")
    logger.addHandler(handler)
    yield tmp_path / "log.txt"
    logger.removeHandler(handler)
    handler.close()


OF_TORCHDATA = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with torch 2.13


# -- one process -------------------------------------------------------------------------------------------------------


def test_it_is_an_iterable_dataset_with_the_length_of_a_pass():
    dataset = to_torch(BatchData(shuffled(), 5, remainder=True))
    assert isinstance(dataset, data.IterableDataset)
    assert len(dataset) == 5 == len(loader(dataset))
    with pytest.raises(LengthUnknown):
        len(to_torch(generated()))
    assert known_length(to_torch(generated())) is None


def test_every_iteration_is_the_next_pass_with_tensors():
    with seeded(4):
        dataset = to_torch(BatchData(shuffled(), 4))
        expected = [list(BatchData(shuffled(), 4)[p * 5 : p * 5 + 5]) for p in range(3)]
    with seeded(4):
        for wanted in expected:
            for (images, numbers), (array, vector) in zip(loader(dataset), wanted, strict=True):
                assert (images.dtype, numbers.dtype) == (torch.float32, torch.int64)
                assert images.tolist() == array.tolist() and numbers.tolist() == vector.tolist()


def test_the_batches_may_also_be_made_by_the_data_loader():
    dataset = to_torch(DataFromList([{"x": np.ones(2, "f4"), "y": k, "z": 0.5} for k in range(6)], shuffle=False))
    (batch,) = data.DataLoader(dataset, batch_size=6)
    assert batch["x"].shape == (6, 2) and batch["y"].tolist() == list(range(6))
    assert (batch["y"].dtype, batch["z"].dtype) == (torch.int64, torch.float32)


def arena_addresses():
    """The address ranges of memory files that are mapped into this process."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
        lines = [line.split() for line in file if "/memfd:" in line]
    return [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]


def test_tensors_share_memory_with_the_arena_and_keep_it_in_use():
    source = DataFromList([[np.full((64, 1024), k, np.float32), k] for k in range(8)], shuffle=False)
    with MultiProcessRunnerZMQ(source, 1, strict=True) as runner:
        kept = []
        for image, label in loader(to_torch(runner)):
            kept.append(image)
            addresses = arena_addresses()
            assert any(begin <= image.data_ptr() < end for begin, end in addresses), "not a copy"
            assert int(label) == len(kept) - 1
        assert len({image.data_ptr() for image in kept}) == 8
        assert [int(image[5, 5]) for image in kept] == list(range(8)), "no block was used again"


def test_default_runners_and_endless_flows_go_on_in_one_process():
    with MultiProcessRunnerZMQ(DataFromList([[0, k] for k in range(5)], shuffle=False), 1) as runner:
        dataset = to_torch(runner)
        assert [labels(loader(dataset)) for _ in range(2)] == [list(range(5))] * 2
        with pytest.raises(NotReproducible, match="MultiProcessRunnerZMQ"):
            to_torch(MultiProcessRunnerZMQ(shuffled(), 2)).state_dict()
    endless = to_torch(RepeatedData(DataFromList([[0, k] for k in range(5)], shuffle=False), -1))
    found = []
    for _ in range(2):
        for dp in loader(endless):
            found.append(int(dp[1]))
            if len(found) % 3 == 0:
                break
    assert found == [0, 1, 2, 3, 4, 0]


# -- workers of a DataLoader and ranks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}], ids=["new workers", "the same workers"])
def test_workers_share_each_pass_and_every_pass_has_another_order(options):
    with seeded(8):
        dataset = to_torch(shuffled())
        alone = [labels(to_torch(shuffled())) for _ in range(1)]
        found = loader(dataset, 2, **options)
        passes = [labels(found) for _ in range(3)]
        next(iter(found))
        passes.append(labels(found))
    assert [sorted(one) for one in passes] == [list(range(N))] * 4
    assert passes[0] == alone[0], "two workers in turn give the order of one process"
    assert len(set(map(tuple, passes))) == 4
    with seeded(8):
        assert passes[:3] == [labels(shuffled()[p * N : p * N + N]) for p in range(3)]


def test_a_base_seed_that_is_drawn_again_does_not_repeat_the_pass():
    found = loader(to_torch(shuffled()), 2)
    passes = []
    for _ in range(3):
        torch.manual_seed(5)
        passes.append(labels(found))
    assert [sorted(one) for one in passes] == [list(range(N))] * 3
    assert len(set(map(tuple, passes))) == 3


def test_workers_started_by_spawn_share_each_pass():
    with seeded(8):
        found = loader(to_torch(shuffled()), 1, multiprocessing_context="spawn")
        assert [labels(found) for _ in range(2)] == [labels(shuffled()[p * N : p * N + N]) for p in range(2)]


@pytest.mark.parametrize("source", [shuffled, generated])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_share_each_pass(source, num_workers):
    with seeded(1):
        for p in range(2):
            parts = [labels(loader(to_torch(source(), rank=rank, world_size=2), num_workers)) for rank in range(2)]
            assert list(map(len, parts)) == [12, 11]
            assert sorted(parts[0] + parts[1]) == list(range(N)), p
        parts = [
            labels(loader(to_torch(source(), rank=rank, world_size=2, drop_uneven=True), num_workers))
            for rank in range(2)
        ]
        assert list(map(len, parts)) == [11, 11] and len({*parts[0], *parts[1]}) == 22


def test_the_length_is_that_of_the_rank():
    for rank, (even, all_of_them) in enumerate([(7, 8), (7, 8), (7, 7)]):
        assert len(to_torch(shuffled(), rank=rank, world_size=3)) == all_of_them
        assert len(to_torch(shuffled(), rank=rank, world_size=3, drop_uneven=True)) == even


def test_without_a_seed_ranks_cannot_share_a_random_flow():
    for source in (shuffled(), MapData(OwnDraws(), list)):
        with pytest.raises(NotReproducible, match=r"dataflow\.seed"):
            next(iter(to_torch(source, rank=0, world_size=2)))
    assert labels(to_torch(DataFromList([[0, k] for k in range(5)], shuffle=False), rank=1, world_size=2)) == [1, 3]


class OwnDraws(dataflow.RNGDataFlow):
    def __iter__(self):
        for _ in range(6):
            yield [0, int(self.rng.integers(100))]


def test_a_mixture_of_several_workers_cannot_be_shared():
    mixed = MultiProcessRunnerZMQ(shuffled(), 2)
    with pytest.raises(NotReproducible, match="Pass strict=True to MultiProcessRunnerZMQ"):
        next(iter(to_torch(mixed, rank=0, world_size=2)))


@pytest.mark.parametrize(
    "wrong", [{"rank": 2, "world_size": 2}, {"rank": 0}, {"world_size": 2}, {"rank": -1, "world_size": 2}]
)
def test_a_wrong_rank_is_named(wrong):
    with pytest.raises(ValueError, match="to_torch: "):
        to_torch(shuffled(), **wrong)


def test_the_rank_is_that_of_torch_distributed_or_of_the_environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    in_order = DataFromList([[0, k] for k in range(6)], shuffle=False)
    dataset = to_torch(in_order)
    assert labels(dataset) == list(range(6))
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="the environment has WORLD_SIZE, but not both"):
        len(dataset)
    monkeypatch.setenv("RANK", "2")
    assert labels(dataset) == [2, 5]
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert labels(dataset) == [1, 3, 5]
    sent = pickle.loads(pickle.dumps(dataset))
    monkeypatch.undo()
    assert labels(sent) == [1, 3, 5], "where it is sent, torch.distributed may not be initialised"


@pytest.mark.parametrize(
    "make",
    [lambda ds: MultiProcessRunnerZMQ(ds, 2, strict=True), lambda ds: MultiThreadMapData(ds, 2, list, strict=True)],
    ids=["runner", "map"],
)
def test_a_runner_within_workers_is_exact_and_warned_about_once(make, log):
    found = loader(to_torch(make(shuffled())), 2)
    for _ in range(2):
        assert sorted(labels(found)) == list(range(N))
    (warning,) = log.read_text("utf-8").splitlines()
    assert warning.startswith("Multi") and "2 workers of a DataLoader: num_workers=0 is enough" in warning


def test_one_of_the_workers_says_that_each_makes_the_whole_pass(log):
    found = loader(to_torch(generated(), rank=0, world_size=2), 2, persistent_workers=True)
    for _ in range(2):
        assert sorted(labels(found)) == list(range(0, N, 2))
    (warning,) = log.read_text("utf-8").splitlines()
    assert "each of the 2 ranks makes the whole pass" in warning


def test_ranks_share_the_work_of_a_strict_runner():
    with seeded(3):
        parts = []
        for rank in range(2):
            with MultiProcessRunnerZMQ(BatchData(shuffled(), 3, remainder=True), 2, strict=True) as runner:
                dataset = to_torch(runner, rank=rank, world_size=2)
                parts.append([flat(loader(dataset)) for _ in range(2)])
                assert len(dataset) == 4
    for one, other in zip(*parts, strict=True):
        assert sorted(one + other) == list(range(N))


def test_lambdas_are_sent_to_workers_started_by_spawn():
    dataset = to_torch(MapData(DataFromList([[0, 1], [0, 2]], shuffle=False), lambda dp: [0, dp[1] * 10]))
    assert labels(loader(dataset, 1, multiprocessing_context="spawn")) == [10, 20]


# -- a flow itself in a DataLoader -------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_flow_itself_is_refused_with_the_cure(num_workers):
    context = "fork" if num_workers else None
    with pytest.raises(TypeError, match=r"DataFromList is not a map-style dataset.*dataflow\.to_torch\(df\)"):
        next(iter(data.DataLoader(shuffled(), batch_size=4, num_workers=num_workers, multiprocessing_context=context)))


@pytest.mark.parametrize(
    "read",
    [
        lambda df: next(iter(data.DataLoader(df, batch_size=None))),
        lambda df: next(iter(data.DataLoader(df, batch_size=None, shuffle=True))),
        lambda df: next(iter(data.DataLoader(data.Subset(df, [0, 1]), batch_size=None))),
        lambda df: next(iter(data.DataLoader(data.Subset(df, [0, 1]), batch_size=2))),
        lambda df: data.random_split(df, [3, len(df) - 3])[0][0],
        lambda df: data.ConcatDataset([df, df])[N],
        lambda df: data.StackDataset(df)[0],
    ],
    ids=["loader", "shuffled", "subset", "batches of a subset", "split", "concatenated", "stacked"],
)
def test_torch_cannot_read_a_flow_by_index(read):
    with pytest.raises(TypeError, match=r"DataFromList is not a map-style dataset.*dataflow\.to_torch\(df\)"):
        read(shuffled())
    assert labels([shuffled()[N]]), "everybody else can"


def test_a_map_style_dataset_of_ones_own_may_read_a_flow_by_index():
    class Own(data.Dataset):
        def __init__(self):
            self.df = DataFromList([[0, k] for k in range(4)], shuffle=False)

        def __len__(self):
            return 4

        def __getitem__(self, k):
            return self.df[k]

    assert labels(data.DataLoader(Own(), batch_size=None)) == list(range(4))


def test_what_is_no_flow_is_refused():
    with pytest.raises(TypeError, match="to_torch expects a dataflow, got list"):
        to_torch([1, 2])
    with pytest.raises(TypeError, match="drop_uneven must be True or False"):
        to_torch(shuffled(), drop_uneven="no")


@pytest.mark.parametrize(
    "wrap",
    [lambda ds: ds, lambda ds: BatchData(ds, 2), lambda ds: MultiProcessRunnerZMQ(ds, 2, strict=True)],
    ids=["outermost", "below batches", "in workers"],
)
def test_a_flow_that_counts_itself_is_refused(wrap):
    with pytest.raises(TypeError, match=r"pass the flow without ResumableData\. The data set has state_dict"):
        to_torch(wrap(ResumableData(shuffled())))


@pytest.mark.parametrize("held", [lambda ds: ds, loader], ids=["data set", "loader"])
def test_a_data_set_below_a_data_set_is_refused(held):
    with pytest.raises(TypeError, match="DataFromIterable reads a data set of to_torch"):
        to_torch(MapData(DataFromIterable(held(to_torch(shuffled()))), list))


# -- saved states ------------------------------------------------------------------------------------------------------


def test_a_state_is_json_and_continues_in_the_middle_of_a_pass():
    with seeded(3):
        dataset = to_torch(shuffled())
        labels(dataset)
        iterator = iter(dataset)
        begun = [int(next(iterator)[1]) for _ in range(9)]
        state = json.loads(json.dumps(dataset.state_dict()))
        rest = labels(iterator)
        following = labels(dataset)
    other = to_torch(shuffled())
    other.load_state_dict(state)
    assert labels(other) == rest and sorted(begun + rest) == list(range(N))
    assert labels(other) == following


def test_a_state_of_a_complete_pass_continues_with_the_next():
    with seeded(3):
        dataset = to_torch(shuffled())
        labels(dataset)
        state = dataset.state_dict()
        following = labels(dataset)
        before_any = to_torch(shuffled())
        assert before_any.state_dict()["pass"] == 0
    other = to_torch(shuffled())
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert labels(other) == following


@pytest.mark.parametrize("source", [shuffled, generated])
def test_a_state_of_the_last_datapoint_leaves_nothing_of_its_pass(source):
    with seeded(3):
        dataset = to_torch(source())
        iterator = iter(dataset)
        begun = [int(next(iterator)[1]) for _ in range(N)]
        state = dataset.state_dict()
        del iterator
        resumed = to_torch(source())
        resumed.load_state_dict(state)
        assert sorted(begun) == list(range(N)) and labels(resumed) == []
        assert labels(resumed) == labels(source()[N : 2 * N] if source is shuffled else source())


def test_a_state_of_another_flow_is_refused():
    state = to_torch(shuffled()).state_dict()
    with pytest.raises(StateMismatch, match="BatchData"):
        to_torch(BatchData(shuffled(), 2)).load_state_dict(state)
    with pytest.raises(StateMismatch, match="ShuffleData"):
        to_torch(ShuffleData(ShardData(shuffled(), 0, 1))).load_state_dict(state)


def in_batches(rank, world_size, batch_size, source=None):
    """The flow makes the batches, and `to_torch` the shares."""
    ds = RandomMapData(shuffled(53) if source is None else source(53), drawn)
    return to_torch(BatchData(ds, batch_size), rank=rank, world_size=world_size, drop_uneven=True)


def drawn(dp, rng):
    return [*dp, int(rng.integers(10**6))]


def rows(batches):
    return [tuple(map(int, row)) for _, *columns in batches for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("source", [shuffled, generated])
@pytest.mark.parametrize("new", [(2, 6), (1, 12), (4, 3), (2, 5)], ids=str)
def test_a_job_continues_on_another_number_of_ranks(source, new):
    with seeded(3):
        df = RandomMapData(source(53), drawn)
        whole = [[tuple(map(int, dp[1:])) for dp in df] for _ in range(2)]
        ranks = [in_batches(rank, 3, 4, source) for rank in range(3)]
        iterators = [iter(loader(dataset)) for dataset in ranks]
        for _ in range(2):
            for iterator in iterators:
                next(iterator)
        states = [json.dumps(dataset.state_dict()) for dataset in ranks]
        assert len(set(states)) == 1
        ranks = [in_batches(rank, *new, source) for rank in range(new[0])]
        passes = []
        for dataset in ranks:
            dataset.load_state_dict(json.loads(states[0]))
        for _ in range(2):
            loops = [list(loader(dataset)) for dataset in ranks]
            passes.append([row for step in zip(*loops, strict=True) for row in rows(step)])
    per_step = new[0] * new[1]
    assert passes[0] == whole[0][24 : 24 + (53 - 24) // per_step * per_step]
    assert passes[1] == whole[1][: 53 // per_step * per_step]


@OF_TORCHDATA
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shard", ["to_torch", "drop", "keep", "repeat"])
def test_the_steps_of_two_passes_do_not_depend_on_ranks_workers_and_tails(shard, num_workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def build(make, rank, world_size):
        if shard == "to_torch":
            dataset = in_batches(rank, world_size, 12 // world_size)
        else:
            ds = ShardData(RandomMapData(shuffled(53), drawn), rank, world_size, shard)
            dataset = to_torch(BatchData(ds, 12 // world_size), rank=0, world_size=1)
        return make(dataset, None, num_workers=num_workers, multiprocessing_context="fork" if num_workers else None)

    with seeded(3):
        df = RandomMapData(shuffled(53), drawn)
        whole = [[tuple(map(int, dp[1:])) for dp in df] for _ in range(2)]
        for make, world_size in [(data.DataLoader, 1), (data.DataLoader, 3), (stateful, 2)]:
            loaders = [build(make, rank, world_size) for rank in range(world_size)]
            for p in range(2):
                steps = list(zip(*map(list, loaders), strict=shard in {"to_torch", "drop"}))
                assert len(steps) >= 4
                for s, step in enumerate(steps[:4]):
                    assert sorted(rows(step)) == sorted(whole[p][12 * s : 12 * s + 12])


@OF_TORCHDATA
def test_stateful_data_loader_continues_on_another_number_of_ranks():
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def build(rank, world_size):
        return stateful(in_batches(rank, world_size, 12 // world_size), batch_size=None)

    with seeded(3):
        whole = [tuple(map(int, dp[1:])) for dp in RandomMapData(shuffled(53), drawn)]
        loaders = [build(rank, 3) for rank in range(3)]
        states = []
        for loader in loaders:
            next(iter(loader))
            states.append(pickle.loads(pickle.dumps(loader.state_dict())))
        loaders = [build(rank, 2) for rank in range(2)]
        for loader, state in zip(loaders, states, strict=False):
            loader.load_state_dict(state)
        assert [row for step in zip(*loaders, strict=True) for row in rows(step)] == whole[12:48]


OF_OTHER_RANKS = """
from torchdata.stateful_dataloader import StatefulDataLoader
import dataflow
from dataflow import StateMismatch
from tests.frameworks.test_torch_dataset import in_batches

def build(world_size):
    dataset = in_batches(0, world_size, 12 // world_size)
    return StatefulDataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")

dataflow.seed(3)
saved = build(3)
iterator = iter(saved)
next(iterator)
state = saved.state_dict()
same, other = build(3), build(2)
same.load_state_dict(state)
print(len(list(same)), len(list(iterator)))
other.load_state_dict(state)
try:
    list(other)
except StateMismatch as error:
    print(error)
"""


@OF_TORCHDATA
def test_stateful_data_loader_with_workers_refuses_a_state_of_another_number_of_ranks():
    pytest.importorskip("torchdata")
    command = [sys.executable, "-c", OF_OTHER_RANKS]  # nobody joins the workers of the refused loader
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT)
    assert done.stdout.startswith("3 3\n") and "world_size" in done.stdout


def test_what_saves_in_a_worker_is_not_loaded_with_another_number_of_workers():
    state = {**to_torch(shuffled()).state_dict(), "workers": 2}
    with pytest.raises(StateMismatch, match=r"one of 2 workers of a DataLoader.*num_workers=0"):
        to_torch(shuffled()).load_state_dict(state)


FLOWS = {
    "by index": lambda: BatchData(shuffled(), 2, remainder=True),
    "replayed": lambda: BatchData(generated(), 2, remainder=True),
    "a mixture": lambda: BatchData(FixedSizeData(MixData([shuffled(), shuffled(7)], [3, 1]), N), 2, remainder=True),
}


def flat(batches):
    return [number for _, numbers in batches for number in numbers.tolist()]


@OF_TORCHDATA
@pytest.mark.parametrize("make", FLOWS.values(), ids=FLOWS)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "stop", [pytest.param(1, marks=pytest.mark.full), 4, pytest.param(11, marks=pytest.mark.full), 12]
)
def test_stateful_data_loader_resumes(make, num_workers, stop):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def build():
        context = "fork" if num_workers else None
        return stateful(to_torch(make()), batch_size=None, num_workers=num_workers, multiprocessing_context=context)

    with seeded(6):
        found = build()
        whole = [flat(found) for _ in range(3)]
        found = build()
        flat(found)
        iterator = iter(found)
        begun = flat([next(iterator) for _ in range(stop)])
        state = pickle.loads(pickle.dumps(found.state_dict()))
        del iterator
        resumed = build()
        resumed.load_state_dict(state)
        assert begun + flat(resumed) == whole[1]
        assert flat(resumed) == whole[2]


@OF_TORCHDATA
@pytest.mark.parametrize("num_workers", [0, 2])
def test_stateful_data_loader_continues_with_the_next_pass_after_a_complete_one(num_workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def build():
        context = "fork" if num_workers else None
        return stateful(to_torch(shuffled()), batch_size=None, num_workers=num_workers, multiprocessing_context=context)

    with seeded(6):
        found = build()
        whole = [labels(found) for _ in range(2)]
        found = build()
        labels(found)
        state = found.state_dict()
        resumed = build()
        resumed.load_state_dict(state)
        assert labels(resumed) == whole[1]


# -- without torch -----------------------------------------------------------------------------------------------------


def test_a_missing_torch_is_named_with_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"to_torch needs the package torch: pip install .*\[torch\]"):
        to_torch(shuffled())


class Plain(DataFlow):
    def __iter__(self):
        yield from ([0, k] for k in range(5))


def test_users_nodes_work_and_are_shared():
    assert [labels(to_torch(Plain(), rank=rank, world_size=2)) for rank in range(2)] == [[0, 2, 4], [1, 3]]


def test_nothing_is_logged_in_one_process(caplog):
    with caplog.at_level(logging.WARNING), MultiProcessRunnerZMQ(shuffled(), 1, strict=True) as runner:
        assert len(labels(loader(to_torch(runner)))) == N
    assert not caplog.records


def drawing():
    generator = random.Random(1)
    return MapData(DataFromList([[k] for k in range(N)], shuffle=False), lambda dp: [dp[0], generator.random()])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_generator_that_a_function_holds_is_refused_where_processes_share_a_pass(num_workers):
    dataset = to_torch(drawing(), rank=0, world_size=1 if num_workers else 2)
    with pytest.raises(Exception, match="draws random numbers from a generator that it holds") as caught:
        list(loader(dataset, num_workers))
    assert num_workers or caught.type is NotReproducible


def test_in_one_process_it_is_refused_where_a_state_is_saved_or_loaded(caplog):
    dataset = to_torch(drawing())
    state = dataset.state_dict()
    assert len(list(dataset)) == N
    assert "to_torch: drawing" in caplog.text
    with pytest.raises(NotReproducible, match="generator that it holds"):
        dataset.state_dict()
    resumed = to_torch(drawing())
    resumed.load_state_dict(state)
    with pytest.raises(NotReproducible, match="generator that it holds"):
        list(resumed)


def permuted():
    numbers = list(range(N))
    random.shuffle(numbers)
    yield from ([k] for k in numbers)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_source_that_draws_from_a_global_generator_is_refused_where_processes_share_a_pass(num_workers):
    dataset = to_torch(DataFromGenerator(permuted), rank=0, world_size=1 if num_workers else 2)
    with pytest.raises(Exception, match="the code of DataFromGenerator draws random numbers") as caught:
        list(loader(dataset, num_workers))
    assert num_workers or caught.type is NotReproducible


def test_in_one_process_such_a_source_is_refused_where_a_state_is_saved(caplog):
    dataset = to_torch(DataFromGenerator(permuted))
    assert sorted(int(k) for (k,) in dataset) == list(range(N))
    assert "to_torch: the code of DataFromGenerator" in caplog.text
    with pytest.raises(NotReproducible, match="the code of DataFromGenerator"):
        dataset.state_dict()


def test_the_seed_that_a_data_loader_draws_for_its_workers_is_no_reason_to_refuse(caplog):
    def numbers():
        for batch in data.DataLoader(list(range(N)), batch_size=1):
            yield [int(batch)]

    assert [int(k) for (k,) in to_torch(DataFromGenerator(numbers), rank=0, world_size=2)] == list(range(0, N, 2))
    assert "draws random numbers" not in caplog.text


@pytest.mark.parametrize(("num_workers", "batch_size", "is_refused"), [
    (0, None, False), (0, 3, True), (1, None, True), (1, 3, True),
])  # fmt: skip
def test_one_buffer_is_refused_where_a_data_loader_keeps_tensors(num_workers, batch_size, is_refused):
    def source():
        buffer = np.zeros(2)
        for k in range(9):
            buffer[:] = k
            yield [buffer]

    made = loader(to_torch(DataFromGenerator(source)), num_workers, batch_size=batch_size)
    if not is_refused:
        assert [int(tensor[0]) for (tensor,) in made] == list(range(9))
        return
    with pytest.raises(ValueError, match="was overwritten with a later one"):
        list(made)


def test_batches_of_tensors_in_one_buffer_are_right():
    def source():
        buffer = torch.zeros(2, dtype=torch.bfloat16)
        for k in range(8):
            buffer[:] = k
            yield [buffer.float(), k] if k % 2 else [buffer, k]

    def batches(datapoints):
        return [(images.tolist(), ks.tolist()) for images, ks in BatchData(datapoints, 2, collate=stacked)]

    def stacked(dps):
        return [torch.stack([image.float() for image, _ in dps]).numpy(), np.array([k for _, k in dps])]

    copies = DataFromList([[image.clone(), k] for image, k in source()], shuffle=False)
    assert len(batches(copies)) == 4
    with pytest.raises(ValueError, match="has changed while the batch was made"):
        batches(DataFromGenerator(source))

    def floats():
        buffer = torch.zeros(2)
        for k in range(8):
            buffer[:] = k
            yield [buffer]

    assert [images[:, 0].tolist() for (images,) in BatchData(DataFromGenerator(floats), 2)] == [
        [0, 1], [2, 3], [4, 5], [6, 7]
    ]  # fmt: skip


# -- a training job: two processes of torch.distributed, each with a DataLoader of two workers -------------------------

ROOT = Path(__file__).parents[2]
TIMEOUT = 180.0  # seconds for both processes, each of which starts workers for each pass
PASSES = 2  # this, and N, are also in the program


RANK = """
import json, sys
import numpy as np
import torch
from torch.utils.data import DataLoader
import dataflow
from dataflow import BatchData, DataFromGenerator, DataFromList, RandomMapData, to_torch

N, PASSES = 23, 2


def noisy(dp, rng):
    return [dp[0], dp[1], rng.integers(10**6)]


def generate():
    return iter([[np.zeros(3, "f4"), k, 0] for k in range(N)])


def shuffled():
    return RandomMapData(DataFromList([[np.full(3, k, "f4"), k] for k in range(N)]), noisy)


FLOWS = {
    "by index": shuffled,
    "replayed": lambda: DataFromGenerator(generate),
    "batches": lambda: BatchData(shuffled(), 3, remainder=True),
}

if __name__ == "__main__":
    rank, meeting, out = int(sys.argv[1]), *sys.argv[2:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    dataflow.seed(42)
    found = {}
    for name, make in FLOWS.items():
        for drop_uneven in (False, True):
            dataset = to_torch(make(), drop_uneven=drop_uneven)
            loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
            found[f"{name}, {drop_uneven}"] = passes = []
            for _ in range(PASSES):
                datapoints = [(numbers.dtype == torch.int64, numbers, drawn) for _, numbers, drawn in loader]
                assert all(is_int64 for is_int64, _, _ in datapoints)
                pairs = [[numbers.flatten().tolist(), drawn.flatten().tolist()] for _, numbers, drawn in datapoints]
                passes.append(pairs)
                if drop_uneven:  # one step of training each: this never ends if the counts differ
                    for _ in datapoints:
                        torch.distributed.all_reduce(torch.ones(1))
            if name != "replayed":
                assert len(dataset) == len(passes[0])
    torch.distributed.destroy_process_group()
    with open(out, "w") as file:
        json.dump(found, file)
"""


def run_ranks(folder):
    """What each of two ranks has got, by case and pass: pairs of lists, of numbers and of what was drawn for them."""
    pytest.importorskip("torch.distributed")
    (folder / "rank.py").write_text(RANK, "utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    environment |= {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    meeting, outs = (folder / "meeting").as_uri(), [folder / f"{rank}.json" for rank in range(2)]
    logs = [folder / f"{rank}.log" for rank in range(2)]
    ranks = []
    try:
        for rank in range(2):
            with open(logs[rank], "w") as log:
                command = [sys.executable, str(folder / "rank.py"), str(rank), meeting, str(outs[rank])]
                streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                ranks.append(subprocess.Popen(command, env=environment, start_new_session=True, **streams))
        for rank, process in enumerate(ranks):
            assert process.wait(TIMEOUT) == 0, logs[rank].read_text("utf-8")
    finally:
        for process in ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the workers of its DataLoader
                process.wait()
    return [json.loads(out.read_text("utf-8")) for out in outs]


def pairs_of(steps):
    return [pair for numbers, drawn in steps for pair in zip(numbers, drawn, strict=True)]


def test_two_ranks_with_two_workers_each_get_every_datapoint_of_a_pass_once(tmp_path):
    one, other = run_ranks(tmp_path)
    orders = []
    for case in one:
        name, _, drop_uneven = case.partition(", ")
        for p in range(PASSES):
            steps = one[case][p], other[case][p]
            pairs = [*pairs_of(steps[0]), *pairs_of(steps[1])]
            numbers = [number for number, _ in pairs]
            if drop_uneven == "True":
                assert len(steps[0]) == len(steps[1]) == {"batches": 4}.get(name, 11)
                assert len(set(numbers)) == len(numbers) >= 22
            else:
                assert abs(len(steps[0]) - len(steps[1])) <= 1
                assert sorted(numbers) == list(range(N))
            if name == "by index":
                orders.append((p, tuple(numbers)))
                assert len({drawn for _, drawn in pairs}) > 20, "each datapoint has random numbers of its own"
    assert len(set(orders)) == 4, "each pass has an order of its own"


@pytest.mark.parametrize("shape", ["function", "dict of lists", "predicate", "nested"])
def test_ranks_that_share_flows_in_code_need_a_seed(shape):
    def shares():
        return [to_torch(own_nodes.SHAPES[shape](own_nodes.shuffled), rank=rank, world_size=2) for rank in range(2)]

    dataflow.seed(None)
    with pytest.raises(NotReproducible, match=r"no seed is set, so DataFromList draws different numbers (in|on) each"):
        list(shares()[0])
    dataflow.seed(1)
    whole = list(own_nodes.SHAPES[shape](own_nodes.shuffled))
    first, second = map(list, shares())
    assert [first[k // 2] if k % 2 == 0 else second[k // 2] for k in range(len(whole))] == whole
    dataflow.seed(None)
