"""Wrong arguments: every public class refuses them in its constructor, and names the parameter and the cure."""

import functools
import inspect
import multiprocessing
import queue
import re
from fractions import Fraction
from multiprocessing.context import BaseContext
from types import SimpleNamespace

import numpy as np
import pytest

import dataflow
from dataflow import (
    AsyncMapData,
    BackgroundData,
    BackgroundProc,
    BatchData,
    BatchDataByShape,
    CacheData,
    ConcatData,
    DataFlow,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    DataFromQueue,
    FakeData,
    FetchData,
    FilterData,
    FixedSizeData,
    FlattenData,
    JoinData,
    LocallyShuffleData,
    MapData,
    MapDataComponent,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessMapDataComponentSharedArray,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    ParallelData,
    RandomChooseData,
    RandomMapData,
    RandomMixData,
    RayMapData,
    RayRunner,
    RemoteDataZMQ,
    RepeatedData,
    RepeatedDataPoint,
    ShardData,
    SharedQ,
    ShuffleData,
    TableData,
)
from dataflow.protocol import parameters as checks
from dataflow.runners.worker_node import WorkerNode


def numbers(n=8):
    return DataFromList([[k, k] for k in range(n)], shuffle=False)


def same(dp):
    return dp


async def same_later(dp):
    return dp


def target():
    return np.zeros(2, np.int16)


MADE = {  # every class with what it needs
    AsyncMapData: lambda: {"ds": numbers(), "func": same_later},
    BackgroundData: lambda: {"target": target},
    BackgroundProc: lambda: {"target": target, "dtypes": ["i2"], "shapes": [(2,)], "n_proc": 0},
    BatchData: lambda: {"ds": numbers(), "batch_size": 2},
    CacheData: lambda: {"ds": numbers()},
    DataFromList: lambda: {"lst": [[1]]},
    DataFromQueue: lambda: {"queue": queue.Queue()},
    FakeData: lambda: {"shapes": [(2,)]},
    FetchData: lambda: {"ds": numbers()},
    FilterData: lambda: {"ds": numbers(), "predicate": same},
    FixedSizeData: lambda: {"ds": numbers(), "size": 2},
    LocallyShuffleData: lambda: {"ds": numbers(), "buffer_size": 2},
    MapData: lambda: {"ds": numbers(), "func": same},
    MapDataComponent: lambda: {"ds": numbers(), "func": same},
    MultiProcessMapAndBatchData: lambda: {"ds": numbers(), "num_proc": 2, "map_func": same, "batch_size": 2},
    MultiProcessMapData: lambda: {"ds": numbers(), "num_proc": 2, "map_func": same},
    MultiProcessMapDataComponentSharedArray: lambda: {
        "ds": numbers(),
        "nr_proc": 2,
        "map_func": same,
        "output_shape": (2,),
        "output_dtype": "f4",
    },
    MultiProcessRunner: lambda: {"ds": numbers(), "num_prefetch": 2, "num_proc": 2},
    MultiProcessRunnerZMQ: lambda: {"ds": numbers(), "num_proc": 2},
    MultiThreadMapData: lambda: {"ds": numbers(), "num_thread": 2, "map_func": same},
    MultiThreadRunner: lambda: {"get_df": numbers, "num_prefetch": 2, "num_thread": 2},
    ParallelData: lambda: {"ds": numbers()},
    RandomMapData: lambda: {"ds": numbers(), "func": same},
    RandomMixData: lambda: {"df_lists": [numbers()]},
    RayMapData: lambda: {"ds": numbers(), "num_proc": 2, "map_func": same},
    RayRunner: lambda: {"ds": numbers(), "num_proc": 2},
    RemoteDataZMQ: lambda: {"addr1": "tcp://127.0.0.1:*"},
    RepeatedData: lambda: {"ds": numbers(), "num": 2},
    RepeatedDataPoint: lambda: {"ds": numbers(), "num": 2},
    ShardData: lambda: {"ds": numbers(), "rank": 0, "world_size": 2},
    SharedQ: dict,
    ShuffleData: lambda: {"ds": numbers()},
}

NO_NUMBERS = (2.5, float("nan"), float("inf"), True, np.True_, "many", "4", [2], {}, object(), np.array([1, 2]), same)
NO_SECONDS = (float("nan"), -1, True, "many", [2], {}, object(), np.array([1, 2]), same)
NO_FLAGS = ("False", "yes", 2, -1, 0.5, [], {}, object(), np.array([1, 2]), same)
NO_FUNCTIONS = (1, 2.5, "func", [same], {}, object(), np.zeros(2))
NO_CONTEXTS = ("spwan", "thread", "", 1, True, ["fork"], multiprocessing, same)
NO_MAPPINGS = (1, "x", [1], [("a", 1)], {1: 2}, same)
NO_ARGUMENTS = (4, "abc", {"a": 1}, {1}, np.zeros(2), None)

WRONG = {  # parameter: what it refuses, in every class that has it
    **dict.fromkeys(("timeout", "item_timeout", "start_timeout", "heartbeat"), NO_SECONDS),
    **dict.fromkeys(("num_proc", "num_thread", "nr_proc", "n_proc", "max_restarts"), (None, -1, *NO_NUMBERS)),
    **dict.fromkeys(("num_prefetch", "hwm", "seed"), (-1, *NO_NUMBERS)),
    **dict.fromkeys(("rank", "world_size"), (-1, *NO_NUMBERS)),
    "num_concurrent": (None, 0, -1, *NO_NUMBERS),
    "num_workers": (-1, *NO_NUMBERS),
    "retries": (None, -1, *NO_NUMBERS),
    "storage_options": NO_MAPPINGS,
    "max_bytes": (0, 1000, -1, *NO_NUMBERS),
    "buffer_size": (0, -1, *NO_NUMBERS),
    **dict.fromkeys(
        ("shuffle", "packed", "random", "remainder", "use_list", "keep_state", "strict", "ordered", "with_rng"),
        NO_FLAGS,
    ),
    **dict.fromkeys(("copy", "profile", "reuse", "validate", "bind", "insecure"), NO_FLAGS),
    **dict.fromkeys(("func", "map_func", "predicate"), (None, *NO_FUNCTIONS)),
    **dict.fromkeys(("target", "get_df"), (None, *NO_FUNCTIONS)),
    **dict.fromkeys(("default_target", "worker_init", "setup"), NO_FUNCTIONS),
    "context": NO_CONTEXTS,
    **dict.fromkeys(("target_kwargs", "default_kwargs", "actor_options"), NO_MAPPINGS),
    **dict.fromkeys(("target_args", "default_args"), NO_ARGUMENTS),
    "curve": (1, ["a"], object()),
    "address": (1, ["a"], object()),
    "thread_limit": (0, -1, *NO_NUMBERS[:6]),
}
FLOWS = ("ds",)
NO_FLOWS = (None, [[1]], ((1,),), np.zeros((2, 2)), 1, "x", same, DataFromList, range(3), iter([[1]]))

ELSEWHERE = {(LocallyShuffleData, "buffer_size")}  # tested with the sizes of the other nodes

ACCEPT_NONE = {(MultiProcessRunnerZMQ, "num_proc"), (RayRunner, "num_proc")}  # for one worker


def cases():
    for kind in MADE:
        for name in inspect.signature(kind).parameters:
            for wrong in () if (kind, name) in ELSEWHERE else WRONG.get(name, NO_FLOWS if name in FLOWS else ()):
                if wrong is not None or (kind, name) not in ACCEPT_NONE:
                    yield kind, name, wrong


def refusal(kind, name, wrong):
    try:
        kind(**{**MADE[kind](), name: wrong})
    except (TypeError, ValueError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_a_wrong_argument_is_named_by_the_constructor(kind):
    bad = []
    for _, name, wrong in (case for case in cases() if case[0] is kind):
        said = refusal(kind, name, wrong)
        # In a message about the input everybody knows what `ds` is: there the cure is what counts.
        if said is None or not re.search(rf"\b{name}\b", said) or len(said) > 600:
            bad.append((name, wrong, said))
    assert not bad


def test_the_table_of_wrong_arguments_knows_every_parameter_of_its_kinds():
    known = {name for _, name, _ in cases()}
    assert known >= WRONG.keys() and known >= set(FLOWS)


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_what_tensorpacks_programs_pass_as_a_flag_or_a_number_is_accepted(kind):
    given = MADE[kind]()
    for name in inspect.signature(kind).parameters:
        if name in {"remainder", "strict", "shuffle", "keep_state"}:
            given[name] = np.bool_(True)
        elif name in {"use_list", "random", "with_rng", "profile"}:
            given[name] = None
        elif name in {"num_proc", "num_thread", "nr_proc", "num_prefetch", "hwm"} and kind is not RemoteDataZMQ:
            given[name] = 2.0
    kind(**given)


@pytest.mark.parametrize("kind", [MultiProcessRunnerZMQ, MultiProcessRunner, MultiThreadRunner])
def test_whole_floats_are_numbers_of_workers(kind):
    name = "num_thread" if kind is MultiThreadRunner else "num_proc"
    with kind(**{**MADE[kind](), name: 1.0}) as df:
        assert df.num_workers == 1 and type(df.num_workers) is int
        assert list(df) == list(numbers())


MAKERS = {
    "BatchData batch_size": lambda n: BatchData(numbers(), n),
    "BatchDataByShape batch_size": lambda n: BatchDataByShape(numbers(), n, 0),
    "FixedSizeData size": lambda n: FixedSizeData(numbers(), n),
    "RepeatedData num": lambda n: RepeatedData(numbers(), n),
    "RepeatedDataPoint num": lambda n: RepeatedDataPoint(numbers(), n),
    "LocallyShuffleData buffer_size": lambda n: FixedSizeData(LocallyShuffleData(numbers(), n), 8),
    "LocallyShuffleData num_reuse": lambda n: FixedSizeData(LocallyShuffleData(numbers(), 3, n), 8),
    "LocallyShuffleData shuffle_interval": lambda n: FixedSizeData(LocallyShuffleData(numbers(), 3, 1, n), 8),
    "FakeData size": lambda n: FakeData([[2]], n),
    "FlattenData num": lambda n: FlattenData(BatchData(FakeData([[2]] * 2, 8), 1, use_list=True), num=n),
    "ShardData world_size": lambda n: ShardData(numbers(), 0, n),
    "TestDataSpeed size": lambda n: dataflow.TestDataSpeed(numbers(), n),
    "TestDataSpeed warmup": lambda n: dataflow.TestDataSpeed(numbers(), 2, n),
    "MultiThreadRunner num_prefetch": lambda n: MultiThreadRunner(numbers, n, 1, strict=True),
    "MultiThreadRunner num_thread": lambda n: MultiThreadRunner(numbers, 2, n, strict=True),
    "MultiThreadMapData num_thread": lambda n: MultiThreadMapData(numbers(), n, same, strict=True),
    "MultiThreadMapData buffer_size": lambda n: MultiThreadMapData(numbers(), 2, same, buffer_size=n, strict=True),
}
STARTS_PROCESSES = {
    "MultiProcessRunner num_proc": lambda n: MultiProcessRunner(numbers(), 2, n, strict=True),
    "MultiProcessRunnerZMQ num_proc": lambda n: MultiProcessRunnerZMQ(numbers(), n, strict=True),
    "MultiProcessRunnerZMQ hwm": lambda n: MultiProcessRunnerZMQ(numbers(), 1, n),
    "MultiProcessRunnerZMQ max_restarts": lambda n: MultiProcessRunnerZMQ(numbers(), 1, strict=True, max_restarts=n),
    "MultiProcessMapData num_proc": lambda n: MultiProcessMapData(numbers(), n, same, strict=True),
    "MultiProcessMapAndBatchData batch_size": lambda n: MultiProcessMapAndBatchData(numbers(), 1, same, n, strict=True),
    "SharedQ n_proc": SharedQ,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_node_takes_floats_that_are_whole_numbers(make):
    dataflow.seed(1)
    try:
        with make(2) as expected, make(2.0) as found:
            assert repr(list(found)) == repr(list(expected))
    finally:
        dataflow.seed(None)


EVERYTHING = MAKERS | STARTS_PROCESSES


@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.parametrize("value", [2.5, "2", True])
def test_a_fraction_and_what_is_no_number_are_refused_by_name(name, value):
    parameter = name.split()[1]
    wanted = parameter if parameter not in {"num_proc", "num_thread"} else "num_(proc|thread)"
    with pytest.raises((TypeError, ValueError), match=rf"{wanted} must be an integer"):
        EVERYTHING[name](value)


@pytest.mark.parametrize("name", STARTS_PROCESSES)
def test_what_starts_processes_takes_them_too(name):
    STARTS_PROCESSES[name](2.0).close()


def test_a_message_says_what_to_pass_instead():
    with pytest.raises(
        TypeError, match=r"MultiProcessRunner: num_proc must be an .* got None.* for example num_proc=4"
    ):
        MultiProcessRunner(numbers(), 2)
    with pytest.raises(
        TypeError,
        match=r"num_thread must be an integer ≥ 0 \(run in the consumer\), or \"auto\", got 'many'. Give the number of",
    ):
        MultiThreadMapData(numbers(), "many", same)
    with pytest.raises(TypeError, match=r"MultiProcessMapAndBatchData: num_proc .* got 2.5"):
        MultiProcessMapAndBatchData(numbers(), 2.5, same, 2)
    with pytest.raises(TypeError, match=r"MultiProcessMapData\(ds, 4, lambda dp: dp\)"):
        MultiProcessMapData(numbers(), 4)
    with pytest.raises(TypeError, match=r"target_args must be a tuple .* a tuple of one is \(4,\)"):
        BackgroundProc(target, target_args=4)
    with pytest.raises(TypeError, match=r"shapes=\[\(224, 224, 3\), \(\)\]"):
        FakeData((224, 224, 3))
    with pytest.raises(TypeError, match="dtype must be a numpy dtype such as 'float32'"):
        FakeData([(2,)], dtype="float3")
    with pytest.raises(TypeError, match="domain is"):
        FakeData([(2,)], domain=5)
    with pytest.raises(TypeError, match=r"dataflow\.seed: seed must be an integer ≥ 0, got 'x'"):
        dataflow.seed("x")


# -- start methods -----------------------------------------------------------------------------------------------------

WITH_CONTEXT = [kind for kind in MADE if "context" in inspect.signature(kind).parameters]


@pytest.mark.parametrize("kind", WITH_CONTEXT, ids=lambda kind: kind.__name__)
def test_a_start_method_is_checked_by_the_constructor(kind, monkeypatch):
    make = functools.partial(kind, **MADE[kind]())
    with pytest.raises(ValueError, match=r"context='spwan', but there is no such start method.*'spawn'"):
        make(context="spwan")
    with pytest.raises(TypeError, match=r'context such as multiprocessing.get_context\("spawn"\)'):
        make(context=multiprocessing)
    for good in (None, "fork", "spawn", "forkserver", multiprocessing.get_context("spawn")):
        make(context=good)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    make(context="spawn")
    with pytest.raises(ValueError, match="context='fork', but this platform lacks it; choose from 'spawn'"):
        make(context="fork")


def test_start_methods_that_other_libraries_add_are_none(monkeypatch):
    class Loky(BaseContext):
        _name = "loky"

    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["fork", "spawn", "loky"])
    assert checks.start_methods() == ["fork", "spawn"]
    for context in "loky", Loky():
        with pytest.raises(ValueError, match="context='loky', but there is no such start method"):
            checks.start_method("Owner", context)


def test_the_default_start_method_is_not_fixed_by_a_constructor(monkeypatch):
    def refuse(*_):
        raise AssertionError("the default was looked up")

    monkeypatch.setattr(multiprocessing, "get_context", refuse)
    assert checks.start_method("Owner", None) is None
    MultiProcessRunnerZMQ(numbers(), 2)


# -- keywords ----------------------------------------------------------------------------------------------------------


def test_a_keyword_that_is_not_in_the_signature_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        MultiProcessRunnerZMQ(numbers(), colour=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_reuse'"):
        MultiProcessRunnerZMQ(numbers(), num_reuse=2)


WITH_WORKERS = [kind for kind in MADE if issubclass(kind, WorkerNode | MultiProcessMapAndBatchData)]


@pytest.mark.parametrize("kind", WITH_WORKERS, ids=lambda kind: kind.__name__)
def test_every_runner_and_map_takes_num_workers_beside_its_old_name(kind):
    given = MADE[kind]()
    old = next((name for name in ("num_proc", "num_thread", "nr_proc") if name in given), None)
    if old is not None:
        with pytest.raises(TypeError, match=rf"{kind.__name__}: {old}=2 and num_workers=3 are two names .*; give one"):
            kind(**given, num_workers=3)
        del given[old]
    for number in (3, "auto"):
        shown = kind(**given, num_workers=number)._df_parameters
        assert shown["num_workers"] == number and old not in shown
    with pytest.raises(TypeError, match=rf"{kind.__name__}: num_workers must be an integer ≥ 0 .* got 'many'"):
        kind(**given, num_workers="many")


def test_without_a_number_of_workers_tensorpacks_default_holds():
    assert MultiProcessRunnerZMQ(numbers()).num_workers == RayRunner(numbers()).num_workers == 1


def test_a_shape_or_dtype_that_is_missing_is_named():
    for given in ({}, {"output_shape": (2,)}, {"output_dtype": "f4"}):
        with pytest.raises(TypeError, match=r"output_shape and output_dtype are those .* both are needed"):
            MultiProcessMapDataComponentSharedArray(numbers(), 2, same, **given)


def test_signatures_show_the_parameters():
    assert list(inspect.signature(MultiProcessRunnerZMQ).parameters)[:4] == ["ds", "num_proc", "hwm", "num_workers"]
    assert list(inspect.signature(RepeatedData).parameters) == ["ds", "num"]


class MyRunner(MultiProcessRunnerZMQ):
    def __init__(self, ds, **more):
        super().__init__(ds, **more)


def test_a_users_subclass_is_answered_by_its_own_name():
    with pytest.raises(TypeError, match="MyRunner got an unexpected keyword argument 'nr_proc'"):
        MyRunner(numbers(), nr_proc=2)


# -- flows and lists ---------------------------------------------------------------------------------------------------


class Duck:
    def reset_state(self):
        pass

    def __iter__(self):
        return iter([[1], [2]])

    def __len__(self):
        return 2


class Grown(DataFlow):
    __iter__ = Duck.__iter__
    __len__ = Duck.__len__


def test_what_only_looks_like_a_dataflow_is_refused_with_both_cures():
    with pytest.raises(TypeError, match=r"Duck does not derive .*class Duck\(dataflow.DataFlow\)"):
        BatchData(Duck(), 2)
    with pytest.raises(TypeError, match=r"without reset_state, .* wrap it in DataFromIterable"):
        ConcatData([Duck()])
    # And the cures work.
    assert [batch[0].tolist() for batch in BatchData(Grown(), 2)] == [[1, 2]]
    assert [batch[0].tolist() for batch in BatchData(DataFromIterable(Duck()), 2)] == [[1, 2]]


def test_what_is_no_flow_is_refused_with_what_makes_one():
    said = {
        "DataFromList": ([[1]], ((1,),), np.zeros((2, 2)), 5, None),
        "DataFromGenerator": (same, iter([[1]])),
        "the class MapData": (MapData,),
        "in DataFromIterable": ({"a": 1}, range(3), {1, 2}),
    }
    for cure, wrongs in said.items():
        for wrong in wrongs:
            with pytest.raises(TypeError, match=f"CacheData expects a dataflow, got {type(wrong).__name__}.*{cure}"):
                CacheData(wrong)
    with pytest.raises(TypeError, match="ds comes before any function"):
        MapData(same, numbers())


A, B = numbers(3), numbers(3)
MISPLACED = {
    "JoinData(a, b)": (lambda: JoinData(A, B), r"JoinData: df_lists is one list.*Write JoinData\(\[a, b\]\)"),
    "ConcatData(a, b)": (lambda: ConcatData(A, B), r"ConcatData: df_lists .*Write ConcatData\(\[a, b\]\)"),
    "RandomMixData(a, b)": (lambda: RandomMixData(A, B), r"RandomMixData: df_lists .*Write RandomMixData\(\[a, b"),
    "RandomChooseData(a, b)": (lambda: RandomChooseData(A, B), r"df_lists .*Write RandomChooseData\(\[a, b"),
    "JoinData(a)": (lambda: JoinData(A), r"JoinData: df_lists must be a list of dataflows, got one DataFromList"),
    "ConcatData(5)": (lambda: ConcatData(5), r"ConcatData: df_lists must be a list of dataflows, got int"),
    "pairs the wrong way round": (
        lambda: RandomChooseData([(0.7, A), (0.3, B)]),
        r"df_lists holds pairs \(flow, probability\), got \(0\.7, DataFromList\): write \(DataFromList\(…\), 0\.7\)",
    ),
    "a pair of flows": (lambda: RandomChooseData([(A, B)]), r"got a pair of two flows.*write \[a, b\]"),
}


@pytest.mark.parametrize(("make", "message"), MISPLACED.values(), ids=MISPLACED)
def test_flows_in_the_wrong_place_are_refused_with_the_cure(make, message):
    with pytest.raises(TypeError, match=message):
        make()


LISTS = [
    ({"a": 1}, r"list\(lst.items\(\)\)"),
    ({1, 2}, r"list\(lst\)"),
    (frozenset({1}), r"list\(lst\)"),
    (([k] for k in range(3)), r"list\(lst\).*DataFromGenerator"),
    (iter([1]), r"DataFromGenerator"),
    (zip([1], [2], strict=True), "DataFromGenerator"),
    (5, r"list\(range\(5\)\)"),
    (2.5, "into a list"),
    (None, "into a list"),
    ("train.txt", "name of a file"),
    (b"abc", "single characters"),
    (numbers(), "is a dataflow already"),
    (same, "DataFromGenerator"),
    (list, "DataFromGenerator"),
    (np.array(3), "into a list|DataFromIterable"),
    (Duck(), "DataFromIterable"),
]


@pytest.mark.parametrize(("lst", "cure"), LISTS, ids=lambda value: type(value).__name__)
def test_what_is_no_list_is_refused_with_the_cure(lst, cure):
    with pytest.raises(TypeError, match=rf"DataFromList expects a list of .* lst, got {type(lst).__name__}: .*{cure}"):
        DataFromList(lst)


class Rows:
    def __len__(self):
        return 2

    def __getitem__(self, k):
        return [(k, "ab"[k])][0]


def test_whatever_has_positions_is_a_list():
    assert [dp.tolist() for dp in DataFromList(np.array([[1, 2], [3, 4]]), shuffle=False)] == [[1, 2], [3, 4]]
    assert list(DataFromList(range(3), shuffle=False)) == [0, 1, 2]
    assert list(DataFromList(Rows(), shuffle=False)) == [(0, "a"), (1, "b")]


def test_tables_are_refused_with_what_gives_their_rows():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"x": [1, 2], "y": [3, 4]})
    for source in (DataFromList, DataFromIterable, DataFromGenerator):
        with pytest.raises(TypeError, match=rf"{source.__name__}.*DataFrame: TableData\(df\).*values.tolist"):
            source(table)
    with pytest.raises(TypeError, match=r"got Series: .*tolist"):
        DataFromList(table["x"])
    with pytest.raises(TypeError, match=r"expects a dataflow, got DataFrame: .*TableData"):
        MapData(table, same)
    # And the cures work.
    assert list(DataFromList(table.values.tolist(), shuffle=False)) == [[1, 3], [2, 4]]
    assert list(TableData(table)) == [{"x": 1, "y": 3}, {"x": 2, "y": 4}]


def test_tables_of_arrow_are_refused_with_what_gives_their_rows():
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"x": [1, 2]})
    with pytest.raises(TypeError, match=r"got Table: TableData\(table\)"):
        DataFromList(table)
    with pytest.raises(TypeError, match=r"expects a dataflow, got Table: .*TableData"):
        MapData(table, same)
    assert list(TableData(table)) == [{"x": 1}, {"x": 2}]


def test_tables_are_known_by_what_they_can_do():
    frame = SimpleNamespace(to_dicts=list, rows=list, columns=["x"])
    with pytest.raises(TypeError, match=r"DataFromList\(df.rows\(\)\)"):
        DataFromList(frame)


# -- the checks themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [3, 3.0, np.int8(3), np.float32(3), np.array(3)])
def test_a_whole_number_becomes_an_int(value):
    found = checks.whole_number("Owner", "size", value, 0)
    assert found == 3 and type(found) is int


@pytest.mark.parametrize("value", [4, 4.0, np.int8(4), np.uint64(4), np.float32(4), np.float64(4)])
def test_whole_numbers_become_ints(value):
    found = checks.whole_number("Owner", "size", value)
    assert found == 4
    assert type(found) is int


@pytest.mark.parametrize("value", [2.5, float("inf"), float("nan"), np.float32(0.5)])
def test_fractions_are_refused_with_the_name_and_the_cure(value):
    with pytest.raises(TypeError, match=r"Owner: size must be an integer ≥ 1, got .*: round it"):
        checks.whole_number("Owner", "size", value, 1, ": round it")


@pytest.mark.parametrize("value", [None, "4", "auto", True, np.bool_(True), [4], 4j, np.zeros(2)])
def test_what_is_no_number_is_refused_with_the_name_and_the_type(value):
    with pytest.raises(TypeError, match="Owner: size must be an integer, got "):
        checks.whole_number("Owner", "size", value)


@pytest.mark.parametrize(("given", "budget"), [(None, None), (0, 0), (5, 5), (np.int64(5), 5), (0.25, 0.25)])
def test_a_budget_is_a_number_or_a_fraction(given, budget):
    assert checks.count_or_fraction("MapData", "max_failures", given) == budget
    assert type(checks.count_or_fraction("MapData", "max_failures", given)) is type(budget)


def test_a_budget_may_be_given_as_any_kind_of_fraction():
    assert (
        checks.count_or_fraction("MapData", "max_failures", Fraction(1, 4))
        == checks.count_or_fraction("MapData", "max_failures", np.float32(0.25))
        == 0.25
    )


@pytest.mark.parametrize("wrong", [-1, -0.5, 0.0, 1.0, 1.5, float("nan"), float("inf"), np.int64(-3)])
def test_a_budget_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=r"MapData: max_failures must be an integer ≥ 0, or a fraction .* got"):
        checks.count_or_fraction("MapData", "max_failures", wrong)


@pytest.mark.parametrize("wrong", [True, False, "3", [1], 1j])
def test_a_budget_that_is_no_number_is_refused(wrong):
    with pytest.raises(TypeError, match="MapData: max_failures must be an integer ≥ 0"):
        checks.count_or_fraction("MapData", "max_failures", wrong)


class Unshowable:
    def __repr__(self):
        raise RuntimeError("no")


def test_messages_are_short_and_on_one_line():
    for wrong in ("x" * 1000, np.zeros((100, 100)), Unshowable(), ["a\nb"]):
        with pytest.raises(TypeError) as caught:
            checks.whole_number("Owner", "size", wrong, 1)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_seconds_may_be_any_real_number():
    assert checks.seconds("Owner", "timeout", np.float32(0.5)) == 0.5
    assert checks.seconds("Owner", "timeout", float("inf")) == float("inf")
    assert checks.seconds("Owner", "timeout", 0, or_zero=True) == 0
    with pytest.raises(ValueError, match="Owner: timeout must be a number of seconds > 0, got 0"):
        checks.seconds("Owner", "timeout", 0)
