"""Expressions, and the types that mypy and pyright must infer for them. `make check` runs both over this file.

tests/test_typed.py runs it, and compares the values with these types.
"""

import asyncio
import queue
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

import numpy as np
from numpy.typing import NDArray

from dataflow import (
    AsyncMapData,
    BatchData,
    CacheData,
    ConcatData,
    DataFlow,
    DataFromAsyncIterable,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    DataFromQueue,
    FakeData,
    FilterData,
    FixedSizeData,
    JoinData,
    LocallyShuffleData,
    MapData,
    MapDataComponent,
    MixData,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    PackData,
    ParallelData,
    PrintData,
    ProxyDataFlow,
    RandomChooseData,
    RandomMapData,
    RandomMixData,
    RepeatedData,
    RepeatedDataPoint,
    ResumableData,
    RNGDataFlow,
    ShardData,
    ShuffleData,
    TableData,
)


@dataclass
class Sample:
    path: str
    label: int


class Row(TypedDict):
    text: str
    label: int


def decode(sample: Sample) -> NDArray[np.float32]:
    return np.full(4, sample.label, np.float32)


def even(number: int) -> str | None:
    return None if number % 2 else str(number)


def listed(text: str) -> list[str]:
    return [text]


def noisy(number: int, rng: np.random.Generator) -> float:
    return number + float(rng.random())


async def fetched(number: int) -> bytes:
    await asyncio.sleep(0)
    return bytes([number])


async def fetched_by(number: int, session: str) -> tuple[str, int]:
    await asyncio.sleep(0)
    return session, number


@asynccontextmanager
async def session() -> AsyncGenerator[str, None]:
    yield "session"


async def counted() -> AsyncIterator[int]:
    yield 1


def words() -> Iterator[str]:
    yield from ("a", "b")


class Squares(DataFlow[int]):
    def __iter__(self) -> Iterator[int]:
        yield from (0, 1, 4)


class Doubled(ProxyDataFlow[int]):
    def __init__(self, ds: DataFlow[int]) -> None:
        super().__init__(ds)

    def __iter__(self) -> Iterator[int]:
        return (2 * number for number in self.ds)


class Draws(RNGDataFlow[float]):
    def __iter__(self) -> Iterator[float]:
        yield float(self.rng.random())


class Untyped(DataFlow):
    pass


class Pairs:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, k: int) -> tuple[str, int]:
        return str(k), k


def first(df: DataFlow) -> Any:  # a bare DataFlow passes mypy --strict
    return df[0]


def lengths(batch: list[str]) -> dict[str, int]:
    return {word: len(word) for word in batch}


def untyped(value: Any) -> Any:
    return value


samples = [Sample("a.png", 0), Sample("b.png", 1)]
rows: list[Row] = [{"text": "a", "label": 0}, {"text": "b", "label": 1}]
numbers = DataFromList([2, 4, 6], shuffle=False)
texts = DataFromList(["a", "b", "c"], shuffle=False)
lists = [[1, 2], [3, 4]]
pairs = DataFromList(lists)
waiting: queue.Queue[bytes] = queue.Queue()
for _ in range(3):
    waiting.put(b"x")


def sources() -> None:

    assert_type(numbers, DataFromList[int])
    assert_type(numbers[0], int)
    assert_type(numbers[0:2], list[int])
    assert_type(next(iter(texts)), str)
    assert_type(list(numbers), list[int])
    assert_type(numbers.get_data(), Iterator[int])
    assert_type(DataFromList(samples)[0], Sample)
    assert_type(DataFromList(samples)[0].label, int)
    assert_type(DataFromList(rows)[0], Row)
    assert_type(DataFromList(rows)[0]["label"], int)
    assert_type(DataFromList([("a.png", 1)])[0], tuple[str, int])
    assert_type(DataFromList(Pairs())[0], tuple[str, int])
    assert_type(DataFromList(range(3))[0], int)
    assert_type(DataFromList(np.zeros(3))[0], Any)
    assert_type(pairs[0], list[int])
    assert_type(DataFromList([["a.png", 1]])[0], Any)
    assert_type(DataFromList([{"image": "a.png", "label": 1}])[0], Any)
    assert_type(DataFromGenerator(words), DataFromGenerator[str])
    assert_type(next(iter(DataFromGenerator(["a"]))), str)
    assert_type(next(iter(DataFromIterable(zip("ab", [1, 2], strict=True)))), tuple[str, int])
    assert_type(next(iter(DataFromAsyncIterable(counted))), int)
    assert_type(next(iter(DataFromQueue(waiting))), bytes)
    assert_type(FakeData([(2, 3), ()])[0], list[NDArray[Any]])
    assert_type(TableData({"x": [1, 2]})[0], dict[str, Any])
    assert_type(TableData({"x": [1, 2]}, batch_size=2)[0]["x"], Any)
    assert_type(Squares(), Squares)
    assert_type(next(iter(Squares())), int)
    assert_type(next(iter(Draws())), float)
    assert_type(first(numbers), Any)


def maps() -> None:

    assert_type(MapData(DataFromList(samples), decode), MapData[NDArray[np.float32]])
    assert_type(MapData(DataFromList(samples), decode)[0].dtype, np.dtype[np.float32])
    assert_type(MapData(numbers, even)[0], str)
    assert_type(MapData(numbers, lambda number: number / 2)[0], float)
    assert_type(MapData(numbers, lambda number: (number, str(number)) if number else None)[0], tuple[int, str])
    assert_type(MapData(MapData(numbers, even), len)[0], int)
    assert_type(MapData(numbers, untyped)[0], Any)
    assert_type(MapDataComponent(DataFromList([("a", 1)]), str.upper)[0], Any)
    assert_type(RandomMapData(numbers, noisy)[0], float)
    assert_type(AsyncMapData(numbers, fetched)[0], bytes)
    assert_type(AsyncMapData(numbers, fetched_by, setup=session)[0], tuple[str, int])
    assert_type(MultiThreadMapData(numbers, 2, even, strict=True)[0], str)
    assert_type(MultiProcessMapData(numbers, 2, even, strict=True)[0], str)
    assert_type(MultiProcessMapData(numbers, 2, lambda number: [number], strict=True)[0], list[int])
    assert_type(MultiProcessMapData(numbers, map_func=even, num_workers=2, strict=True)[0], str)
    assert_type(MultiProcessMapData(numbers, 2, noisy, with_rng=True, strict=True)[0], float)
    assert_type(MultiProcessMapAndBatchData(texts, 2, listed, 2, strict=True)[0], Any)


def nodes_that_keep_the_type() -> None:

    assert_type(FilterData(numbers, lambda number: number > 2), FilterData[int])
    assert_type(next(iter(FilterData(numbers, bool))), int)
    assert_type(ShuffleData(numbers)[0], int)
    assert_type(next(iter(LocallyShuffleData(numbers, 2))), int)
    assert_type(RepeatedData(texts, 2)[0], str)
    assert_type(RepeatedDataPoint(texts, 2)[0], str)
    assert_type(FixedSizeData(texts, 2)[0], str)
    assert_type(CacheData(texts)[0], str)
    assert_type(ShardData(texts, 0, 2)[0], str)
    assert_type(PrintData(texts)[0], str)
    assert_type(ResumableData(texts)[0], str)
    assert_type(ConcatData([numbers, numbers])[0], int)
    assert_type(RandomMixData([texts, texts])[0], str)
    assert_type(MixData([texts, texts], [1, 2])[0], str)
    assert_type(next(iter(RandomChooseData([(texts, 0.5), (texts, 0.5)]))), str)
    assert_type(next(iter(Doubled(numbers))), int)


def nodes_that_combine_datapoints() -> None:

    assert_type(BatchData(pairs, 2)[0], Any)
    assert_type(BatchData(texts, 2, collate=lengths)[0], dict[str, int])
    assert_type(BatchData(texts, 2, collate=len), BatchData[int])
    assert_type(JoinData([pairs, pairs])[0], Any)
    assert_type(JoinData[list[int]]([pairs, pairs])[0], list[int])
    assert_type(PackData(DataFromList([[1, 2], [3]]), 2), PackData)
    assert_type(next(iter(PackData(DataFromList([[1, 2], [3]]), 2)))["tokens"], NDArray[Any])


def runners() -> None:

    assert_type(ParallelData(numbers, 2)[0], int)
    assert_type(ParallelData(MapData(numbers, even), 2), ParallelData[str])
    assert_type(MultiProcessRunnerZMQ(numbers, 2, strict=True)[0], int)
    assert_type(MultiProcessRunnerZMQ(numbers, num_workers=2, strict=True)[0], int)
    assert_type(MultiProcessRunner(numbers, 2, 2, strict=True)[0], int)
    assert_type(MultiThreadRunner(lambda: texts, 2, 1, strict=True)[0], str)
    with ParallelData(numbers, 0) as running:
        assert_type(running, ParallelData[int])
        for number in running:
            assert_type(number, int)


def annotations(more: DataFlow[float] = numbers, of_any: DataFlow[object] = texts, unknown: DataFlow = numbers) -> None:
    assert_type(more[0], float)
    assert_type(of_any[0], object)
    assert_type(unknown[0], Any)


EXPECTED = (sources, maps, nodes_that_keep_the_type, nodes_that_combine_datapoints, runners, annotations)
