"""Functions whose calls compute nothing yet: coroutine functions, generator functions, and what they return."""

import asyncio
import functools
import inspect

import numpy as np
import pytest

import dataflow
from dataflow import (
    BackgroundData,
    BatchData,
    BucketBatchData,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    FilterData,
    LMDBDataDecoder,
    MapData,
    MapDataComponent,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessMapDataComponentSharedArray,
    MultiThreadMapData,
    ParallelData,
    RandomMapData,
    RayMapData,
    SharedQ,
)
from dataflow.protocol.passes import promise
from dataflow.protocol.state import FirstCalls, Promise, state_of


def numbers():
    return DataFromList([[k] for k in range(4)], shuffle=False)


async def fetch(dp, rng=None):
    return dp


async def stream(dp=None, rng=None):
    yield dp


def twice(dp, rng=None):
    yield dp
    yield dp


class Caller:
    def __init__(self, func):
        self.func = func

    async def __call__(self, dp):
        return dp

    async def method(self, dp):
        return dp


NODES = {
    "MapData": lambda f: MapData(numbers(), f),
    "MapDataComponent": lambda f: MapDataComponent(numbers(), f),
    "RandomMapData": lambda f: RandomMapData(numbers(), f),
    "FilterData": lambda f: FilterData(numbers(), f),
    "BatchData": lambda f: BatchData(numbers(), 2, collate=f),
    "BucketBatchData": lambda f: BucketBatchData(numbers(), 2, key=f, boundaries=[1]),
    "MultiThreadMapData": lambda f: MultiThreadMapData(numbers(), 0, f, strict=True),
    "MultiProcessMapData": lambda f: MultiProcessMapData(numbers(), 0, f, strict=True),
    "MultiProcessMapAndBatchData": lambda f: MultiProcessMapAndBatchData(numbers(), 0, f, 2, strict=True),
    "RayMapData": lambda f: RayMapData(numbers(), 0, f, strict=True),
    "MultiProcessMapDataComponentSharedArray": lambda f: MultiProcessMapDataComponentSharedArray(
        numbers(), 0, f, (1,), "float32"
    ),
    "LMDBDataDecoder": lambda f: LMDBDataDecoder(numbers(), f),
    "SharedQ": lambda f: SharedQ(default_target=f),
    "worker_init": lambda f: ParallelData(numbers(), 0, worker_init=f),
    "BackgroundData": BackgroundData,
}
# Classes whose function may be of such a kind, or whose argument is no function that makes datapoints.
OTHERS = {"AsyncMapData", "DataFromAsyncIterable", "DataFromGenerator", "MultiThreadRunner"}
FUNCTIONS = {
    "a coroutine function": fetch,
    "an async generator function": stream,
    "a generator function": twice,
}


def test_every_class_that_takes_a_function_is_tested_here():
    tested = OTHERS | {getattr(dataflow, name) for name in NODES if hasattr(dataflow, name)}
    for name in dataflow.__all__:
        kind = getattr(dataflow, name)
        if inspect.isclass(kind) and kind.__name__ == name and issubclass(kind, dataflow.DataFlow | SharedQ):
            parameters = inspect.signature(kind).parameters.values()
            takes_one = any("Callable" in str(p.annotation) and p.name != "worker_init" for p in parameters)
            assert not takes_one or name in OTHERS or kind in tested, name


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_the_constructor_refuses_a_function_that_computes_nothing_when_called(node, kind):
    with pytest.raises(TypeError, match=f"is {kind}: "):
        NODES[node](FUNCTIONS[kind])


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize(
    "func",
    [
        functools.partial(fetch, rng=1),
        functools.partial(functools.partial(fetch), rng=1),
        Caller(None),
        Caller(None).method,
        functools.partial(Caller(None)),
    ],
    ids=["partial", "partial of a partial", "object", "method", "partial of an object"],
)
def test_it_is_found_below_partials_methods_and_callable_objects(func, node):
    with pytest.raises(TypeError, match=r"a coroutine function: .*Use AsyncMapData"):
        NODES[node](func)


@pytest.mark.parametrize("node", ["MapData", "MapDataComponent", "FilterData", "BatchData", "MultiThreadMapData"])
@pytest.mark.parametrize(("func", "found"), [(twice, "a generator"), (stream, "an async generator")])
def test_what_a_function_returns_is_refused_at_the_first_datapoint(node, func, found):
    with pytest.raises(TypeError, match=f"has returned {found}: "):
        list(NODES[node](lambda value: func(value)))  # noqa: PLW0108 (it returns a generator, and is none)


def test_a_coroutine_that_a_function_returns_is_refused():
    made = []

    def make(dp):
        made.append(fetch(dp))
        return made[0]

    with pytest.raises(TypeError, match=r"has returned an awaitable \(coroutine\)"):
        list(MapData(numbers(), make))
    made[0].close()


def test_workers_refuse_it_too():
    df = MultiProcessMapData(numbers(), 1, lambda dp: twice(dp), strict=True)  # noqa: PLW0108
    with df, pytest.raises(TypeError, match="has returned a generator"):
        list(df)


def test_sources_take_generators_and_refuse_async_ones():
    assert list(DataFromGenerator(lambda: twice([1]))) == [[1], [1]]
    for gen, found in (
        (stream, "an async generator function"),
        (fetch, "a coroutine function"),
        (stream(), "an async"),
    ):
        with pytest.raises(TypeError, match=found):
            DataFromGenerator(gen)
    with pytest.raises(TypeError, match="has returned an async generator"):
        list(DataFromGenerator(lambda: stream()))  # noqa: PLW0108
    with pytest.raises(TypeError, match="an async generator"):
        DataFromIterable(stream())


def test_the_cure_works():
    with MultiThreadMapData(numbers(), 2, lambda dp: asyncio.run(fetch(dp)), strict=True) as df:
        assert list(df) == [[0], [1], [2], [3]]


def test_a_broken_promise_that_does_not_refuse_is_noted_and_logged_once(caplog):
    rng = np.random.default_rng(1)
    df = MapData(numbers(), lambda dp: [*dp, rng.random()])
    promise(df, Promise("to_torch", refuses=False))
    for _ in range(2):
        assert len(list(df)) == 4
    assert caplog.text.count("to_torch: ") == 1
    assert "draws random numbers from a generator that it holds" in state_of(df).part(FirstCalls).broken
