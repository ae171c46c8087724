"""Mistakes that mypy and pyright must find: each line says which error, and one that is not found is an error itself.

Nothing here is run.
"""

# pyright: standard, reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Iterator

import numpy as np

from dataflow import (
    AsyncMapData,
    BatchData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    FilterData,
    ImageFolderData,
    MapData,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiThreadMapData,
    MultiThreadRunner,
    ParallelData,
    RandomMapData,
    ResumableData,
    ShuffleData,
    TableData,
)
from tests.typed.flows import (
    Doubled,
    Row,
    Sample,
    Squares,
    decode,
    even,
    fetched,
    fetched_by,
    lengths,
    noisy,
    numbers,
    rows,
    samples,
    session,
    texts,
)


def summed(flow: DataFlow[int]) -> int:
    return sum(flow)


class Words(DataFlow[str]):
    def __iter__(self) -> Iterator[int]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return iter(())


def functions_of_another_datapoint() -> None:
    MapData(texts, even)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    MapData(numbers, decode)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    MapData(MapData(numbers, even), even)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    FilterData(texts, lambda text: text > 2)  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue]
    RandomMapData(texts, noisy)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RandomMapData(numbers, even)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AsyncMapData(texts, fetched)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AsyncMapData(numbers, fetched_by)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AsyncMapData(texts, fetched_by, setup=session)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    AsyncMapData(numbers, even)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    MultiThreadMapData(texts, 2, even)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    MultiProcessMapData(texts, 2, even)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    MultiProcessMapData(numbers, 2, noisy)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    MultiProcessMapData(numbers, 2, even, with_rng=True)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    MultiProcessMapAndBatchData(texts, 2, even, 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    BatchData(numbers, 2, collate=lengths)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]


def fields_that_do_not_exist() -> None:
    MapData(DataFromList(samples), lambda sample: sample.lable)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    print(DataFromList(samples)[0].lable)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    print(DataFromList(rows)[0]["lable"])  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]
    ShuffleData(texts)[0].bit_length()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    ParallelData(numbers, 2)[0].upper()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    for _, _, _ in DataFromList([("a.png", 1)]):  # type: ignore[misc]  # pyright: ignore[reportAssignmentType]
        pass
    with ResumableData(texts) as resumable:
        resumable[0].bit_length()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def other_values_and_flows() -> None:
    MapData([1, 2], even)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ShuffleData([1, 2])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    DataFromList(5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    DataFromList({"a": 1})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    DataFromGenerator(lambda: 5)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
    Doubled(texts)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    MultiThreadRunner(Squares(), 2, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    numbers["a"]  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    summed(texts)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    summed(ImageFolderData("photos"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def strings() -> DataFlow[str]:
    return numbers  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def of_rows(of_samples: DataFlow[Sample]) -> DataFlow[Row]:
    return of_samples  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def of_numbers() -> DataFlow[int]:
    return TableData({"x": np.zeros(2)})  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
