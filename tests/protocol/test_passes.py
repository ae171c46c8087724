"""Passes: a flow that begins in the code of a node takes its root, place and pass from there."""

import copy
import gc
import itertools
import linecache
import pickle
import threading

import pytest

from dataflow import (
    BatchData,
    CacheData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    DataFromQueue,
    FixedSizeData,
    JoinData,
    LocallyShuffleData,
    MapData,
    MixData,
    MultiProcessMapData,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    NotReproducible,
    ProxyDataFlow,
    RepeatedData,
    ResumableData,
    RNGDataFlow,
    ShardData,
    ShuffleData,
    seed,
)
from dataflow.protocol import passes as passes_module
from dataflow.protocol.passes import renew, running_passes, walk
from dataflow.protocol.state import state_of
from tests.support.contract import seeded
from tests.support.interrupts import Interrupter, Tracer
from tests.support.own_nodes import ADDRESSABLE, KEEPING, SHAPES, shuffled
from tests.support.products import covering

pytestmark = pytest.mark.usefixtures("unseeded")

ALL = pytest.mark.parametrize("make", [lambda shape=shape: shape(shuffled) for shape in SHAPES.values()], ids=SHAPES)
NUM_PASSES = 3


def passes(df, num=NUM_PASSES):
    return [list(df) for _ in range(num)]


def in_processes(df, num):
    return MultiProcessRunnerZMQ(df, num, strict=True)


def in_threads(make, num):
    return MultiThreadRunner(make, 5, num, strict=True)


@ALL
def test_each_pass_is_new_and_follows_from_the_seed(make, request):
    seed(1)
    found = passes(make())
    assert found == passes(make())
    if "indexed" not in request.node.name:  # an index stands for the same datapoint in every pass
        assert len(set(map(repr, found))) == NUM_PASSES
    seed(2)
    assert passes(make()) != found


@pytest.mark.parametrize(("name", "where"), covering([*SHAPES], ["thread", "process"]))
def test_a_strict_worker_makes_the_same(name, where):
    def make():
        return SHAPES[name](shuffled)

    seed(1)
    expected = passes(make())
    with in_threads(make, 1) if where == "thread" else in_processes(make(), 1) as df:
        assert passes(df) == expected


@ALL
def test_without_a_seed_a_strict_worker_has_the_root_of_its_consumer(make):
    with JoinData([make(), in_threads(make, 1)]) as joined:
        joined._df_streams = lambda stream: [stream, stream]  # the same place for both
        assert all(dp[: len(dp) // 2] == dp[len(dp) // 2 :] for dp in joined)


@ALL
def test_it_resumes_in_any_pass(make):
    seed(1)
    expected = passes(make())
    df = ResumableData(make())
    for p in range(NUM_PASSES):
        num = min(p, len(expected[p]))
        assert list(itertools.islice(df, num)) == expected[p][:num]
        resumed = ResumableData(make())
        resumed.load_state_dict(df.state_dict())
        rest = list(resumed)
        assert rest == expected[p][num:] if num else rest in (expected[p], expected[p - 1])
        df = ResumableData(make())
        df.load_state_dict(resumed.state_dict())


@pytest.mark.parametrize("shape", KEEPING.values(), ids=KEEPING)
def test_what_keeps_something_does_as_well(shape, request):
    test_each_pass_is_new_and_follows_from_the_seed(lambda: shape(shuffled), request)
    seed(1)
    test_it_resumes_in_any_pass(lambda: shape(shuffled))
    expected = passes(shape(shuffled))
    for df in in_threads(lambda: shape(shuffled), 1), in_processes(shape(shuffled), 1):
        with df:
            assert passes(df) == expected


@ALL
def test_two_places_of_a_chain_draw_different_numbers(make):
    seed(1)
    left, right = make(), make()
    joined = list(JoinData([left, right]))
    assert any(dp[: len(dp) // 2] != dp[len(dp) // 2 :] for dp in joined)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, id=name, marks=[pytest.mark.full] * (name in {"made in a map", "read by a list"}))
        for name, shape in ADDRESSABLE.items()  # quick are two maps, and a list that is shuffled
    ],
)
def test_any_worker_makes_the_datapoints_of_an_index(shape):
    seed(1)
    expected = passes(shape(shuffled))
    df = shape(shuffled)
    n = len(df)
    assert [df[p * n : (p + 1) * n] for p in range(NUM_PASSES)] == expected
    for num in 2, 3:
        with in_threads(lambda: shape(shuffled), num) as runner:
            assert passes(runner) == expected
    with in_processes(shape(shuffled), 2) as runner:
        assert passes(runner) == expected


@pytest.mark.parametrize("parallel", [MultiThreadMapData, MultiProcessMapData])
def test_functions_of_a_parallel_map_are_called_at_the_same_places(parallel):
    def draw(dp):
        return None if dp[0] == 2 else [*dp, *itertools.chain.from_iterable(shuffled())]

    def below():
        return MapData(MapData(shuffled(), draw), draw)

    seed(1)
    expected = [MapData(below(), draw)[p * 6 : p * 6 + 6] for p in range(NUM_PASSES)]
    for num in 0, 1, 3:
        if num:
            with parallel(below(), num, draw, strict=True) as df:
                assert passes(df) == expected


def test_a_dropped_datapoint_changes_no_place():
    def draw(dp):
        return [*dp, *next(iter(shuffled()))]

    for num in range(4):
        df = MapData(ShuffleData(MapData(shuffled(), lambda dp, num=num: None if dp[0] % 4 == num else dp)), draw)
        seed(1)
        assert passes(df) == [df[6 * p : 6 * p + 6] for p in range(NUM_PASSES)]


def test_loops_over_an_endless_flow_have_the_places_of_its_indexes():
    def draw(dp):
        return [*dp, *next(iter(shuffled()))]

    df = MapData(RepeatedData(shuffled(), -1), draw)
    seed(1)
    assert [dp for _ in range(3) for dp in itertools.islice(df, 4)] == df[:12]


def test_a_cache_of_flows_in_code_follows_the_seed():
    for shape in SHAPES.values():
        df = CacheData(shape(shuffled))
        with seeded(1):
            first = list(df)
        with seeded(2):
            assert list(df) != first


class Inner(DataFlow):
    """It keeps a flow where it is not found."""

    def __init__(self, make):
        self.kept = {"a": [make()]}

    def __iter__(self):
        yield from itertools.islice(self.kept["a"][0], 4)


CONTINUING = {
    "RepeatedData": lambda: RepeatedData(shuffled(), -1),
    "MixData": lambda: MixData([shuffled(), shuffled()], [1, 1]),
    "LocallyShuffleData": lambda: LocallyShuffleData(shuffled(), 3),
    "FixedSizeData": lambda: FixedSizeData(DataFromGenerator(shuffled), 4),
}


@pytest.mark.parametrize(("name", "make"), CONTINUING.items(), ids=CONTINUING)
def test_a_kept_flow_that_continues_is_not_resumed(name, make):
    seed(1)
    assert len(set(map(repr, passes(Inner(make))))) == NUM_PASSES
    with pytest.raises(NotReproducible, match=f"a pass of {name} continues .* started in another process"):
        list(ResumableData(Inner(make)))


@pytest.mark.parametrize(("name", "make"), CONTINUING.items(), ids=CONTINUING)
def test_a_kept_flow_that_continues_is_refused_after_a_pass_that_was_left_early(name, make):
    seed(1)
    expected = passes(Inner(make))
    with in_threads(lambda: Inner(make), 1) as df:
        assert passes(df) == expected
        assert next(iter(df))
        with pytest.raises(NotReproducible, match=f"a pass of {name} continues .* was left early"):
            list(df)


@pytest.mark.parametrize(("name", "make"), CONTINUING.items(), ids=CONTINUING)
def test_a_kept_flow_that_continues_is_refused_in_a_map(name, make):
    flow = make()
    df = MapData(shuffled(), lambda dp: [*dp, *next(iter(flow))])
    with pytest.raises(NotReproducible, match=f"a pass of {name} continues .* MapData may be called .* in any order"):
        list(df)


def test_an_undefined_order_in_code_is_refused():
    import queue

    with pytest.raises(NotReproducible, match="the order of the datapoints of DataFromQueue is not defined"):
        list(ResumableData(Inner(lambda: DataFromQueue(queue.Queue()))))
    mixed = DataFromGenerator(lambda: MultiThreadRunner(shuffled, 3, 2))
    with pytest.raises(NotReproducible, match="the order of the datapoints of MultiThreadRunner is not defined"):
        list(ResumableData(mixed))


def numbers_of_mixed_workers(dp):
    with MultiThreadRunner(lambda: shuffled(4), 2, 2) as mixed:
        return [*dp, *(next(iter(mixed)))]


@pytest.mark.parametrize(
    "make",
    [
        lambda ds, func: ResumableData(MapData(ds, func)),
        lambda ds, func: ShardData(MapData(ds, func), 0, 2),
        lambda ds, func: MultiThreadRunner(lambda: MapData(ds, func), 5, 2, strict=True),
        lambda ds, func: MultiThreadMapData(ds, 1, func, strict=True),
        lambda ds, func: MultiProcessMapData(ds, 1, func, strict=True),
        lambda ds, func: ResumableData(MultiThreadMapData(ds, 1, func, strict=True)),
        lambda ds, func: ResumableData(BatchData(ds, 2, collate=lambda group: func(group[0]))),
    ],
    ids=["resumable", "shard", "runner", "threads", "processes", "resumable threads", "collate"],
)
def test_an_undefined_order_in_a_function_is_refused_at_its_first_datapoint(make):
    seed(1)
    with make(DataFromList([[k] for k in range(6)], shuffle=False), numbers_of_mixed_workers) as df:
        with pytest.raises(NotReproducible, match=r"of MultiThreadRunner is not defined.* strict=True") as caught:
            next(iter(df))
        assert "in the function of" in str(caught.value)


def test_an_undefined_order_in_a_function_is_the_users_affair_where_nothing_is_promised():
    assert len(list(MapData(DataFromList([[1], [2]], shuffle=False), numbers_of_mixed_workers))) == 2


class Counting(DataFlow):
    """It counts how often it was reset and closed."""

    def __init__(self):
        self.resets = self.closings = 0

    def reset_state(self):
        self.resets += 1

    def close(self):
        self.closings += 1

    def __iter__(self):
        yield [self.resets]


def test_a_kept_flow_is_reset_and_closed_with_the_node_whose_code_begins_it():
    flow = Counting()
    for df in Inner(lambda: flow), MapData(shuffled(2), lambda dp: next(iter(flow))):
        flow.resets = flow.closings = 0
        assert next(iter(df)) == next(iter(df)) == [1]
        df.reset_state()
        assert next(iter(df)) == [2]
        df.close()
        assert flow.closings == 1
        assert next(iter(df)) == [3]
        df.close()


class DrawnOnce(RNGDataFlow):
    def reset_state(self):
        super().reset_state()
        self.drawn = int(self.rng.integers(1 << 30))

    def __iter__(self):
        yield [self.drawn]


def test_what_a_kept_flow_draws_in_reset_state_does_not_depend_on_the_call():
    def flow():
        kept = DrawnOnce()
        return MapData(shuffled(4), lambda dp: [dp[0], *next(iter(kept))])

    seed(1)
    expected = sorted(flow())
    seed(1)
    assert sorted([flow()[k] for k in (3, 1, 2, 0)]) == expected
    with in_threads(flow, 3) as df:
        assert sorted(df) == expected


def test_slots_are_copied_and_sent():
    df = SHAPES["slots"](shuffled)
    df.extra = 1
    for made in copy.copy(df), pickle.loads(pickle.dumps(df)):
        assert made.extra == 1 and len(list(made)) == 6


def test_a_walk_may_go_on_behind_workers():
    df = MapData(MultiProcessRunnerZMQ(ShuffleData(shuffled()), 1), list)
    assert [type(node).__name__ for node in walk(df)] == ["MapData", "MultiProcessRunnerZMQ"]
    assert [type(node).__name__ for node in walk(df, everywhere=True)][2:] == ["ShuffleData", "DataFromList"]


class Tens(RNGDataFlow):
    def __iter__(self):
        for k in range(3):
            yield [10 * k]


@pytest.fixture
def no_collection():
    """The passes of other tests are not closed at a line that is traced."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("above", [lambda df: df, lambda df: BatchData(df, 1)], ids=["alone", "below a node"])
def test_an_interrupt_as_a_pass_begins_leaves_no_pass_behind(above, no_collection):
    """Which a later frame with the same id would take for its own."""
    kept, points = [], []  # what is kept is not closed while lines are traced

    def begin():
        kept.append(iter(above(Tens())))
        next(kept[-1])

    begin()  # imports
    with Tracer(lambda point: points.append(point) or True, "protocol/passes.py"):
        begin()
    kept.clear()
    gc.collect()
    before = dict(running_passes)
    for point in points:
        if linecache.getline(passes_module.__file__, point[1]).strip() == "try:":
            continue  # where CPython runs no handler, and what a tracer raises passes by an outer `try`
        interrupter = Interrupter(point)
        with pytest.raises(KeyboardInterrupt), interrupter.tracer:
            begin()
        kept.clear()
        assert running_passes == before, point
    assert len(points) > 10


@pytest.mark.parametrize("is_closed_elsewhere", [False, True])
def test_a_node_is_renewed_alone_and_another_thread_may_close_it_meanwhile(is_closed_elsewhere):
    class Renewed(ProxyDataFlow):
        def close(self):
            super().close()
            if is_closed_elsewhere:
                thread = threading.Thread(target=ProxyDataFlow.close, args=(self,))
                thread.start()
                thread.join()

    df = Renewed(Tens())
    list(df)
    sessions = [state_of(df).session, state_of(df.ds).session]
    renew(df, is_closed=True)
    assert [session.closed for session in sessions] == [is_closed_elsewhere] * 2
