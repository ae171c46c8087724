"""Which pass the workers of a DataLoader make: under every start method, number of workers and order of loops."""

import contextlib
import copy
import gc
import itertools
import multiprocessing
import os
import pickle
import threading
from types import SimpleNamespace

import pytest

import dataflow
from dataflow import (
    DataFlow,
    DataFromGenerator,
    DataFromList,
    FixedSizeData,
    MixData,
    MultiProcessRunnerZMQ,
    RandomMapData,
    RepeatedData,
    to_torch,
)
from dataflow.errors import NotReproducible, StateMismatch
from dataflow.frameworks import worker_groups
from tests.support.contract import seeded
from tests.support.waits import LIMIT

torch = pytest.importorskip("torch")
data = torch.utils.data

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more than there are cores

N = 13
SEED = 5
OF_TORCHDATA = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with torch 2.13
CONTEXTS = ["fork", pytest.param("spawn", marks=pytest.mark.full), pytest.param("forkserver", marks=pytest.mark.full)]


def with_draw(dp, rng):
    return [dp[0], int(rng.integers(10**9))]


def with_draw_twice(dp, rng):
    return with_draw(with_draw(dp, rng), rng)


def make_flow():
    return RandomMapData(DataFromList([[k] for k in range(N)]), with_draw)


def generated():
    return RandomMapData(DataFromGenerator(lambda: iter([[k] for k in range(N)])), with_draw)


@pytest.fixture(autouse=True)
def root_seed():
    with seeded(SEED):
        yield


@pytest.fixture(scope="module")
def passes():
    """The datapoints of each pass; what was drawn for them tells the passes apart."""
    with seeded(SEED):
        flow = make_flow()
        return [sorted(map(tuple, flow)) for _ in range(12)]


def loader(dataset, num_workers=0, context="fork", kind=data.DataLoader, **options):
    return kind(
        dataset,
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context=context if num_workers else None,
        **options,
    )


def values(datapoints):
    return [(int(k), int(drawn)) for k, drawn in datapoints]


def complete(datapoints):
    return sorted(values(datapoints))


def begun(datapoints, num):
    """The first datapoints of a loop that is then left."""
    return values(itertools.islice(datapoints, num))


# -- orders of loops ---------------------------------------------------------------------------------------------------


def in_turn(found, other, dataset, passes):
    assert [complete(found) for _ in range(3)] == passes[:3]


def left_early(found, other, dataset, passes):
    assert {*begun(found, 3)} <= {*passes[0]}
    iter(found)  # without a step
    assert {*begun(found, 1)} <= {*passes[2]}
    assert [complete(found) for _ in range(2)] == passes[3:5]


def two_loaders(found, other, dataset, passes):
    for p in range(0, 4, 2):
        assert complete(found) == passes[p]
        assert complete(other) == passes[p + 1]
    one, two = iter(found), iter(other)
    together = list(zip(one, two, strict=True))
    assert complete(dp for dp, _ in together) == passes[4]
    assert complete(dp for _, dp in together) == passes[5]


def beside_the_main_process(found, other, dataset, passes):
    assert complete(found) == passes[0]
    assert {*begun(dataset, 2)} <= {*passes[1]}
    assert complete(found) == passes[2]
    assert complete(dataset) == passes[3]
    assert complete(found) == passes[4]


def a_loop_in_a_loop(found, other, dataset, passes):
    outer = iter(found)
    first = begun(outer, 2)
    # Persistent workers have one iterator, which the next loop begins again.
    inner = iter(other if found.persistent_workers else found)
    assert complete(inner) == passes[1]
    assert sorted(first + values(outer)) == passes[0]


def collected_in_the_middle(found, other, dataset, passes):
    iterator = iter(found)
    next(iterator)
    del iterator
    gc.collect()
    assert complete(found) == passes[1]
    del found
    gc.collect()
    assert complete(other) == passes[2]


ORDERS = [in_turn, left_early, two_loaders, beside_the_main_process, a_loop_in_a_loop, collected_in_the_middle]
QUICK = {("fork", 1, False, True), ("fork", 2, True, True)}
CASES = [
    pytest.param(
        order,
        *how,
        marks=[] if how in QUICK else [pytest.mark.full],
        id=f"{order.__name__}-{how[0]}-{how[1]}{'-persistent' * how[2]}-{'same' if how[3] else 'other'}",
    )
    for how in itertools.product(("fork", "spawn", "forkserver"), range(4), (False, True), (True, False))
    for order in ORDERS
    if how[1] or (how[0] == "fork" and not how[2])  # without workers there is one way
    # These start slowly, and torch in each worker.
    if how[0] == "fork" or (how[3] and order in {left_early, two_loaders})
]


@pytest.mark.parametrize(("order", "context", "num_workers", "persistent", "same_seed"), CASES)
def test_every_loop_is_the_next_pass(order, context, num_workers, persistent, same_seed, passes):
    class Seeded(data.DataLoader):
        def __iter__(self):
            if same_seed:
                torch.manual_seed(0)
            return super().__iter__()

    dataset = to_torch(make_flow())
    options = {"persistent_workers": True} if persistent else {}
    found, other = (loader(dataset, num_workers, context, kind=Seeded, **options) for _ in range(2))
    order(found, other, dataset, passes)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("make", [make_flow, generated])
def test_ranks_share_every_pass(make, context, monkeypatch):
    dataset = to_torch(make())
    monkeypatch.setenv("WORLD_SIZE", "2")
    ranks = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        ranks.append(loader(pickle.loads(pickle.dumps(dataset)), 2, context))  # as sent to the process of the rank
    flow = make()
    for _ in range(3):
        assert sorted(complete(ranks[0]) + complete(ranks[1])) == complete(flow)


def test_two_data_sets_count_alone_and_may_be_in_one_loader(passes):
    one, two = to_torch(make_flow()), to_torch(make_flow())
    assert complete(loader(one, 2)) == passes[0]
    assert complete(loader(two, 2)) == passes[0]
    both = loader(data.ChainDataset([one, two]), 2, persistent_workers=True)
    for p in range(1, 3):
        assert complete(both) == sorted(passes[p] * 2)
    assert complete(loader(one, 1)) == passes[3] and complete(two) == passes[3]


def test_loaders_of_two_threads_do_not_mix(passes):
    dataset = to_torch(make_flow())
    found = [None] * 4

    def read(k):
        found[k] = complete(loader(dataset, 2))

    threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(found) == sorted(passes[:4])


class Wrapped(data.IterableDataset):
    def __init__(self, dataset):
        self.parts = {"a": [dataset]}

    def __iter__(self):
        yield from self.parts["a"][0]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
def test_a_data_set_within_another_is_found(context, passes):
    found = loader(Wrapped(to_torch(make_flow())), 1, context)
    assert [complete(found) for _ in range(2)] == passes[:2]


# -- what is no start of workers ---------------------------------------------------------------------------------------


def test_forks_and_pickles_by_others_count_nothing(passes):
    dataset = to_torch(make_flow())
    found = loader(dataset, 2)
    stop = threading.Event()

    def fork():
        while True:
            pid = os.fork()
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)
            copy.copy(dataset)
            pickle.dumps(dataset)
            if stop.is_set():
                return

    forking = threading.Thread(target=fork)
    forking.start()
    try:
        for p in range(3):
            assert complete(found) == passes[p]
            with MultiProcessRunnerZMQ(make_flow(), 2, strict=True) as runner:
                assert complete(loader(to_torch(runner))) == passes[0]
    finally:
        stop.set()
        forking.join(LIMIT)


def test_a_forked_process_counts_alone(passes):
    dataset = to_torch(make_flow())
    assert complete(dataset) == passes[0]
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            os._exit(0 if complete(dataset) == passes[1] == complete(copy.copy(to_torch(make_flow()))) else 3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3, "a new data set begins with pass 0"
    assert complete(dataset) == passes[1]


def read_in_process(dataset, queue):
    queue.put([complete(loader(dataset, 2)) for _ in range(2)])


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
def test_a_process_that_was_started_with_it_counts_from_there(context, passes):
    """As Lightning starts ranks."""
    dataset = to_torch(make_flow())
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
    assert found == [passes[1:3]] * 2


def test_a_copy_counts_on_from_where_it_was_made(passes):
    dataset = to_torch(make_flow())
    next(iter(dataset))
    sent = pickle.loads(pickle.dumps(dataset))
    assert complete(sent) == complete(dataset) == passes[1]


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_worker_that_was_given_the_data_set_of_another_raises():
    member = worker_groups.Member(torch.zeros(21, dtype=torch.int64), 0, 2, keeps=False)
    assert member.number(SimpleNamespace(id=0, num_workers=2), 0) == 0
    for wrong in ({"id": 1, "num_workers": 2}, {"id": 0, "num_workers": 3}):
        with pytest.raises(NotReproducible, match="has the data set of worker 0 of 2"):
            member.number(SimpleNamespace(**wrong), 0)


class Late(data.IterableDataset):
    def __iter__(self):
        yield from to_torch(make_flow())


class Hidden(data.IterableDataset):
    def __init__(self, dataset):
        self.read = lambda: dataset

    def __iter__(self):
        yield from self.read()


@pytest.mark.parametrize("make", [Late, lambda: Hidden(to_torch(make_flow()))], ids=["made in the worker", "hidden"])
def test_a_worker_without_a_number_is_refused(make):
    with pytest.raises(NotReproducible, match="the pass has no number"):
        list(loader(make(), 1))


@pytest.mark.parametrize("persistent", [False, True])
def test_a_data_set_that_is_iterated_twice_in_a_pass_is_refused(persistent):
    dataset = to_torch(make_flow())
    with pytest.raises(NotReproducible, match="iterated the data set twice in one pass"):
        list(loader(data.ChainDataset([dataset, dataset]), 2, persistent_workers=persistent))


def peek(worker):
    next(iter(data.get_worker_info().dataset))


def test_a_worker_init_fn_that_iterates_the_data_set_is_refused():
    with pytest.raises(NotReproducible, match="iterated the data set twice in one pass"):
        list(loader(to_torch(make_flow()), 1, worker_init_fn=peek))


def test_without_the_iterator_of_torch_workers_raise(monkeypatch):
    monkeypatch.setattr(worker_groups, "_started", lambda: None)  # another torch, with other names
    with pytest.raises(NotReproducible, match="the pass has no number"):
        list(loader(to_torch(make_flow()), 1))


def test_later_passes_that_are_not_counted_raise(monkeypatch):
    monkeypatch.setattr(worker_groups._Group, "begin", lambda group, p: None)
    found = loader(to_torch(make_flow()), 1, persistent_workers=True)
    assert len(list(found)) == N
    with pytest.raises(NotReproducible, match="iterated the data set twice"):
        list(found)


def test_another_seed_after_persistent_workers_have_started_is_refused(passes):
    found = loader(to_torch(make_flow()), 1, persistent_workers=True)
    assert complete(found) == passes[0]
    dataflow.seed(SEED + 1)
    with pytest.raises(NotReproducible, match=r"dataflow\.seed\(6\) was called after the persistent workers"):
        iter(found)
    dataflow.seed(SEED)
    assert complete(found) == passes[1]


@pytest.mark.parametrize("persistent", [False, True])
def test_passes_that_continue_are_refused_in_workers(persistent):
    found = loader(to_torch(RepeatedData(make_flow(), -1)), 1, persistent_workers=persistent)
    next(iter(found))
    with pytest.raises(NotReproducible, match="the passes of RepeatedData continue where the last one stopped"):
        next(iter(found))


@pytest.mark.parametrize(
    ("num_workers", "options"),
    [
        (0, {}),
        (2, {"context": "fork"}),
        (2, {"context": "spawn"}),
        (2, {"context": "fork", "persistent_workers": True}),
    ],
)
def test_passes_do_not_go_on_with_other_weights(num_workers, options):
    mixture = MixData(
        [DataFromList([[k] for k in range(begin, begin + 8)], shuffle=False) for begin in (0, 100)], [1, 1]
    )
    found = loader(to_torch(FixedSizeData(mixture, 4)), num_workers, **options)
    assert sorted(int(k) for (k,) in found) == [0, 1, 100, 101]
    mixture.weights = [0, 1]
    with pytest.raises(ValueError, match=r"weights were \[1.0, 1.0\] when the first loop"):
        list(found)
    mixture.weights = [1, 1]
    if "persistent_workers" in options:  # they have been given another list
        with pytest.raises(NotReproducible, match=r"changed since they started: MixData .* is another object"):
            list(found)
    else:
        assert sorted(int(k) for (k,) in found) == [4, 5, 104, 105]  # a pass that raised counts, too


def test_a_flow_that_changed_after_persistent_workers_have_started_is_refused(passes):
    flow = make_flow()
    found = loader(to_torch(flow), 1, persistent_workers=True)
    assert complete(found) == passes[0]
    flow.func = with_draw_twice
    with pytest.raises(NotReproducible, match=r"changed since they started: RandomMapData\.func is another object"):
        iter(found)
    flow.func = with_draw
    assert complete(found) == passes[1]


class Epochs(DataFlow):
    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        for k in range(3):
            yield [k, self.epoch]
        self.epoch += 1


@pytest.mark.parametrize("persistent", [False, True])
def test_what_a_node_keeps_is_refused_in_the_later_passes_of_workers(persistent):
    dataset = to_torch(Epochs())
    found = loader(dataset, 2, persistent_workers=persistent)
    assert len(complete(found)) == 3
    for _ in range(2):
        with pytest.raises(NotReproducible, match=r"to_torch: .* keeps something from pass to pass.* num_workers=0"):
            complete(found)
    with pytest.raises(NotReproducible, match="keeps something from pass to pass"):
        complete(loader(dataset, 0))
    alone = loader(to_torch(Epochs()), 0)
    assert [complete(alone), complete(alone)] == [[(k, p) for k in range(3)] for p in range(2)]


def test_what_a_node_keeps_is_seen_in_a_later_pass_if_the_first_was_left_early():
    found = loader(to_torch(Epochs()), 1)
    next(iter(found))
    with pytest.raises(NotReproducible, match=r"Epochs.epoch keeps something from pass to pass"):
        complete(found)


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_is_refused_while_workers_count(persistent, passes):
    dataset = to_torch(make_flow())
    found = loader(dataset, 2, persistent_workers=persistent)
    begun(found, 2)
    for _ in range(2):
        with pytest.raises(NotReproducible, match=r"Use StatefulDataLoader of torchdata.*num_workers=0"):
            dataset.state_dict()
        complete(found)
    assert {*begun(dataset, 2)} <= {*passes[3]}
    state = dataset.state_dict()
    assert (state["pass"], state["offset"]) == (3, 2)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
def test_a_state_that_was_loaded_into_the_data_set_is_refused_in_workers(context, passes):
    dataset = to_torch(make_flow())
    first = begun(dataset, 4)
    dataset.load_state_dict(dataset.state_dict())
    with pytest.raises(StateMismatch, match="save and load with StatefulDataLoader"):
        list(loader(dataset, 1, context))
    sent = pickle.loads(pickle.dumps(dataset))
    assert sorted(first + values(sent)) == passes[0] and complete(sent) == passes[1]
    assert sorted(first + values(dataset)) == passes[0]
    assert complete(loader(dataset, 1)) == passes[1], "then there is none"


def test_an_iteration_that_has_not_begun_is_at_the_start_of_its_pass():
    dataset = to_torch(make_flow())
    begun(dataset, 4)
    iterator = iter(dataset)
    state = dataset.state_dict()
    assert (state["pass"], state["offset"]) == (1, 0)
    rest = values(iterator)
    other = to_torch(make_flow())
    other.load_state_dict(state)
    assert values(other) == rest


def test_a_seed_of_the_process_that_has_sent_the_data_set_is_compared():
    state = to_torch(make_flow()).state_dict()
    dataflow.seed(SEED + 1)
    sent = pickle.dumps(to_torch(make_flow()))
    dataflow.seed(None)
    with pytest.raises(StateMismatch, match=r"dataflow\.seed\(6\)"):
        pickle.loads(sent).load_state_dict(state)


@OF_TORCHDATA
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("num_workers", [2, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 3))])
@pytest.mark.parametrize("num", [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 3, N - 1, N))])
@pytest.mark.parametrize("root", [SEED, pytest.param(None, marks=pytest.mark.full)], ids=["seed", "drawn"])
def test_workers_resume_with_and_without_persistent_workers(context, persistent, num_workers, num, root):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    dataflow.seed(root)

    def build():
        return loader(to_torch(make_flow()), num_workers, context, stateful, persistent_workers=persistent)

    found = build()
    values(found)
    iterator = iter(found)
    before = values(next(iterator) for _ in range(num))
    state = pickle.loads(pickle.dumps(found.state_dict()))
    whole = before + values(iterator)
    following = [values(found) for _ in range(2)]
    resumed = build()
    resumed.load_state_dict(state)
    assert before + values(resumed) == whole
    dataset = resumed.dataset
    assert values(resumed) == following[0]
    resumed = loader(dataset, num_workers, context)
    assert values(resumed) == following[1], "another loader of the same data set goes on"


@OF_TORCHDATA
def test_a_state_that_is_loaded_again_in_the_same_process_sets_the_count():
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    found = loader(to_torch(make_flow()), 2, kind=stateful)
    whole = [values(found) for _ in range(2)]
    iterator = iter(found)
    next(iterator)
    state = found.state_dict()
    whole += [values(iterator), *(values(found) for _ in range(3))]
    for _ in range(2):
        found.load_state_dict(state)
        assert [values(found) for _ in range(3)] == whole[2:5]
