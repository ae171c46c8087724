"""Which pass a data set of torch yields: the workers of a DataLoader have the same one, or raise."""

import gc
import itertools
import multiprocessing
import os
import pickle
import threading
from types import SimpleNamespace

import pytest

from dataflow import DataFromList, ParallelData, to_torch
from dataflow.errors import NotReproducible
from dataflow.frameworks import torch_dataset
from tests.support.contract import seeded
from tests.support.waits import LIMIT

torch = pytest.importorskip("torch")
data = torch.utils.data

N = 20
CONTEXTS = ("fork", "spawn", "forkserver")


def source():
    return DataFromList(range(N))


def loader(dataset, num_workers=2, context="fork", **options):
    chosen = context if num_workers else None
    return data.DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=chosen, **options)


def numbers(steps):
    return [int(k) for k in steps]


def is_pass(found, p):
    """Whether these are the datapoints of pass `p`, in their order."""
    return found == numbers(source()[p * N : p * N + N])


pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more than there are cores


@pytest.fixture(autouse=True)
def one_seed():
    with seeded(3):
        yield


# -- one loader --------------------------------------------------------------------------------------------------------


def check_passes(context, num_workers, persistent, early, same_seed, rank):
    """Four passes, of which some are left early: the others are those of their numbers."""
    world = {} if rank is None else {"rank": rank, "world_size": 2}
    dataset = to_torch(source(), **world)
    found = loader(dataset, num_workers, context, persistent_workers=persistent)
    for p in range(4):
        if same_seed:
            torch.manual_seed(0)
        if not persistent:
            found = loader(dataset, num_workers, context)
        steps = iter(found)
        if early and p % 2 == 0:
            next(steps)
            del steps
            gc.collect()
            continue
        whole = numbers(source()[p * N : p * N + N])
        assert numbers(steps) == (whole if rank is None else whole[rank::2]), p


QUICK = [
    (context, num_workers, persistent, early, True, None)
    for context, num_workers in (("fork", 2), ("fork", 0), ("forkserver", 1))
    for persistent, early in ((False, True), (True, True))
    if num_workers or not persistent
]
FULL = [
    case
    for case in itertools.product(CONTEXTS, (0, 1, 2, 3), (False, True), (False, True), (False, True), (None, 1))
    if case not in QUICK and (case[1] or (not case[2] and case[0] == "fork"))
]


@pytest.mark.slow
@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(case, marks=pytest.mark.full) for case in FULL)], ids=str)
def test_each_iteration_is_the_pass_of_its_number(case):
    check_passes(*case)


@pytest.mark.slow
def test_an_iteration_that_nobody_reads_is_a_pass():
    dataset = to_torch(source())
    for _ in range(2):
        steps = iter(loader(dataset, 1))
        del steps
    assert is_pass(numbers(loader(dataset)), 2)


@pytest.mark.slow
def test_iterations_with_and_without_workers_are_counted_together():
    dataset = to_torch(source())
    for p, num_workers in enumerate((0, 2, 0, 0, 1)):
        assert is_pass(numbers(loader(dataset, num_workers)), p)
    next(iter(dataset))
    assert is_pass(numbers(loader(dataset)), 6)


# -- several loaders, and other forks ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_two_loaders_at_a_time_have_a_pass_each(context):
    dataset = to_torch(source())
    one, other = iter(loader(dataset, 2, context)), iter(loader(dataset, 1, context))
    found = [[], []]
    for pair in zip(one, other, strict=True):
        for k, number in enumerate(pair):
            found[k].append(int(number))
    assert is_pass(found[0], 0) and is_pass(found[1], 1)


@pytest.mark.slow
@pytest.mark.parametrize("num_others", [0, 1])
def test_persistent_workers_raise_once_the_data_set_was_iterated_elsewhere(num_others):
    dataset = to_torch(source())
    found = loader(dataset, 2, persistent_workers=True)
    assert is_pass(numbers(found), 0) and is_pass(numbers(found), 1)
    assert is_pass(numbers(loader(dataset, num_others)), 2)
    with pytest.raises(NotReproducible, match="another to_torch"):
        numbers(found)
    del found
    assert is_pass(numbers(loader(dataset)), 3)


@pytest.mark.slow
def test_forks_by_others_shift_no_number():
    dataset, other = to_torch(source()), to_torch(source())
    stop = threading.Event()

    def fork_again_and_again():
        while not stop.is_set():
            pid = os.fork()
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)

    thread = threading.Thread(target=fork_again_and_again)
    thread.start()
    try:
        for p in range(4):
            assert is_pass(numbers(loader(dataset)), p)
            with ParallelData(source(), 1) as runner:
                assert len(list(runner)) == N
            next(iter(loader(other, 1)))
            pickle.dumps(dataset)
    finally:
        stop.set()
        thread.join(LIMIT)


@pytest.mark.slow
def test_loaders_of_two_threads_do_not_mix():
    dataset = to_torch(source())
    found = [None] * 4

    def read(k):
        found[k] = numbers(loader(dataset))

    threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    passes = [numbers(source()[p * N : p * N + N]) for p in range(4)]
    assert sorted(found) == sorted(passes)


class Around(data.IterableDataset):
    """A user's data set around one of ours."""

    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        return iter(self.inner)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("around", [Around, lambda inner: data.ChainDataset([inner])], ids=["own", "chain"])
def test_a_data_set_around_it_gets_the_same_passes(around, context):
    dataset = around(to_torch(source()))
    for p in range(2):
        assert is_pass(numbers(loader(dataset, 2, context)), p)


HIDDEN = []


class Hiding(data.IterableDataset):
    """A data set that finds ours where nobody looks."""

    def __iter__(self):
        return iter(HIDDEN[0])


@pytest.mark.slow
def test_a_worker_whose_pass_is_not_known_raises():
    HIDDEN[:] = [to_torch(source())]
    with pytest.raises(NotReproducible, match="Pass the data set itself to DataLoader"):
        numbers(loader(Hiding(), 1))
    HIDDEN.clear()


def read_in_process(dataset, queue):
    queue.put([numbers(loader(dataset, 2, persistent_workers=False)) for _ in range(2)])


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_process_that_was_started_with_it_counts_from_there(context):
    """As Lightning starts ranks."""
    dataset = to_torch(source())
    next(iter(dataset))
    chosen = multiprocessing.get_context(context)
    queue = chosen.Queue()
    started = [chosen.Process(target=read_in_process, args=(dataset, queue)) for _ in range(2)]
    for process in started:
        process.start()
    found = [queue.get(timeout=LIMIT) for _ in started]
    for process in started:
        process.join(LIMIT)
        process.close()
    queue.close()
    queue.join_thread()
    for passes in found:
        assert is_pass(passes[0], 1) and is_pass(passes[1], 2)


def test_a_copy_counts_on_from_where_it_was_made():
    dataset = to_torch(source())
    next(iter(dataset))
    copy = pickle.loads(pickle.dumps(dataset))
    assert is_pass(numbers(copy), 1) and is_pass(numbers(dataset), 1)


class Iterator:
    """As that of a DataLoader with two workers."""

    def __init__(self):
        self._num_workers = 2


def test_a_worker_that_received_the_passes_of_another_raises():
    passes = torch_dataset.PassCounter()
    iterator = Iterator()
    first = passes.transfer(iterator)
    first.check(SimpleNamespace(id=0, num_workers=2))
    for wrong in ({"id": 1, "num_workers": 2}, {"id": 0, "num_workers": 3}):
        with pytest.raises(NotReproducible, match="was also sent elsewhere"):
            first.check(SimpleNamespace(**wrong))
    with pytest.raises(ValueError, match="may have 1024 workers, got 1025"):
        first.check(SimpleNamespace(id=0, num_workers=1025))


# -- positions ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_position_that_workers_have_is_refused_in_the_main_process():
    dataset = to_torch(source())
    before = dataset.state_dict()
    assert (before["pass"], before["offset"]) == (0, 0)
    for k, _ in enumerate(loader(dataset)):
        if k == 3:
            break
    with pytest.raises(NotReproducible, match=r"StatefulDataLoader of torchdata.*num_workers=0"):
        dataset.state_dict()
    assert is_pass(numbers(loader(dataset, 0)), 1)
    assert dataset.state_dict()["pass"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_state_that_was_loaded_in_the_main_process_is_refused_by_workers(context):
    dataset = to_torch(source())
    for k, _ in enumerate(dataset):
        if k == 3:
            break
    other = to_torch(source())
    other.load_state_dict(dataset.state_dict())
    with pytest.raises(NotReproducible, match=r"a state was loaded .* StatefulDataLoader of torchdata does that"):
        numbers(loader(other, 2, context))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with torch 2.13
@pytest.mark.parametrize("num_workers", [0, 2])
def test_passes_after_a_resumed_one_are_counted_from_there(num_workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def make():
        context = "fork" if num_workers else None
        options = {"num_workers": num_workers, "multiprocessing_context": context}
        return stateful(to_torch(source()), batch_size=None, **options)

    found = make()
    for _ in range(3):
        numbers(found)
    steps = iter(found)
    begun = [int(next(steps)) for _ in range(5)]
    state = found.state_dict()
    other = make()
    other.load_state_dict(state)
    whole = numbers(source()[3 * N : 4 * N])
    assert begun + numbers(other) == whole
    assert is_pass(numbers(other), 4)
