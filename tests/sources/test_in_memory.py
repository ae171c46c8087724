import random
import re
from functools import cache
from typing import ClassVar

import numpy as np
import pytest

from dataflow import (
    FixedSizeData,
    MultiProcessRunnerZMQ,
    NotPicklable,
    NotReproducible,
    ParallelData,
    RepeatedData,
    ResumableData,
    ShardData,
)
from dataflow.errors import DataFlowTerminated
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.synthetic import FakeData
from tests.support.contract import plain, seeded
from tests.support.fakes import METHODS


def test_it_shuffles_by_default():
    assert list(DataFromList(range(5), shuffle=False)) == list(range(5))
    with seeded(1):
        assert list(DataFromList(range(50))) != list(range(50))


def test_every_pass_is_a_new_permutation():
    df = DataFromList(range(50))
    passes = [list(df) for _ in range(3)]
    assert all(sorted(found) == list(range(50)) for found in passes)
    assert len({tuple(found) for found in passes}) == 3


def test_its_own_seed_replaces_the_root():
    def order():
        return list(DataFromList(range(50), seed=3))

    assert order() == order() != list(DataFromList(range(50), seed=4))


def test_elements_are_yielded_without_a_copy():
    lst = [[0], [1]]
    assert all(dp is element for dp, element in zip(DataFromList(lst, shuffle=False), lst, strict=True))


def test_the_list_is_not_changed():
    lst = list(range(20))
    list(DataFromList(lst))
    assert lst == list(range(20))


def test_a_list_that_has_grown_is_read_to_its_new_end():
    lst = [[0]]
    df = DataFromList(lst, shuffle=False)
    assert list(df) == [[0]]
    lst.append([1])
    assert list(df) == [[0], [1]] and len(df) == 2


def test_one_block_of_indexes_may_hold_many_passes():
    with seeded(1):
        df = DataFromList(range(3))
        assert df[0:300] == [k for _ in range(100) for k in df]


def test_an_array_is_a_list_of_its_rows():
    rows = list(DataFromList(np.arange(6).reshape(3, 2), shuffle=False))
    assert [row.tolist() for row in rows] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_empty_list_has_empty_passes_and_no_index(shuffle):
    df = DataFromList([], shuffle=shuffle)
    assert list(df) == [] and len(df) == 0 and df[0:0] == []
    with pytest.raises(IndexError, match="empty"):
        df[0]


@pytest.mark.parametrize("lst", [{0: [1]}, {1, 2}, iter([1]), (k for k in range(2)), 5])
def test_other_types_than_lists_raise_with_the_remedy(lst):
    with pytest.raises(TypeError, match=r"DataFromIterable|list\("):
        DataFromList(lst)


class Files:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return [next(iter([]))] if index == 3 else [index]


class Cached(Files):
    __getitem__ = cache(Files.__getitem__)


@pytest.mark.parametrize("lst", [Files(), Cached()], ids=["method", "wrapped"])
@pytest.mark.parametrize(
    "read", [list, lambda ds: list(FixedSizeData(ds, 8)), lambda ds: ds[0:8], lambda ds: list(RepeatedData(ds, 2))]
)
def test_a_stop_iteration_of_its_list_does_not_end_the_pass(lst, read):
    with pytest.raises(RuntimeError, match="the list of DataFromList raised StopIteration for element 3"):
        read(DataFromList(lst, shuffle=False))


def test_a_negative_seed_raises_in_the_constructor():
    for make in (lambda: DataFromList([[1]], seed=-1), lambda: FakeData([(2,)], seed=-1)):
        with pytest.raises(ValueError, match="seed must be an integer ≥ 0, got -1"):
            make()


# -- packed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_packed_list_yields_the_same_as_the_list(shuffle):
    lst = [{"name": str(k), "image": np.full(3, k)} for k in range(30)]
    with seeded(4):
        flows = [DataFromList(lst, shuffle, packed=packed) for packed in (True, False)]
        found = [[plain(dp) for dp in df] + [plain(df[40])] for df in flows]
    assert found[0] == found[1]


def test_a_packed_list_gives_copies():
    lst = [[np.zeros(2)] for _ in range(3)]
    df = DataFromList(lst, shuffle=False, packed=True)
    for (array,) in df:
        array += 1
    assert [array.tolist() for (array,) in df] == [[0, 0]] * 3
    lst.append([np.ones(2)])
    assert len(df) == 3


def test_an_array_may_be_packed_too():
    df = DataFromList(np.arange(6).reshape(3, 2), shuffle=False, packed=True)
    assert [row.tolist() for row in df] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("lst", [[[k] for k in range(300_000)], [[1]], ([1], [2])], ids=["long", "short", "tuple"])
def test_a_list_of_any_length_is_packed_only_on_request(lst):
    assert DataFromList(lst).lst is lst
    assert DataFromList(lst, shuffle=False)[0] is lst[0]


def test_a_datapoint_that_cannot_be_packed_is_named():
    with pytest.raises(NotPicklable, match=r"index 2, of type list, .* packed=False"):
        DataFromList([[1], [2], [lambda: 0]], packed=True)


@pytest.mark.parametrize("method", METHODS)
def test_workers_read_a_packed_list(method):
    ds = DataFromList([[k] for k in range(20)], shuffle=False, packed=True)
    with MultiProcessRunnerZMQ(ds, 1, context=method, timeout=60) as df:
        assert list(df) == [[k] for k in range(20)]


def test_a_dict_of_datasets_is_no_dataset():
    class DatasetDict(dict):
        column_names: ClassVar = {"train": ["a"], "test": ["a"]}

    with pytest.raises(TypeError, match=r"choose one of 'train', 'test', as in lst\['train'\]"):
        DataFromList(DatasetDict(train=[1], test=[2]))


class Drawing:
    """Elements that draw from a generator that the sequence holds."""

    def __init__(self):
        self.generator = random.Random(1)

    def __len__(self):
        return 12

    def __getitem__(self, k):
        return [k, self.generator.random()]


class DrawingGlobally(Drawing):
    def __init__(self):
        pass

    def __getitem__(self, k):
        return [k, random.random()]


class Counting(Drawing):
    def __init__(self):
        self.num = 0

    def __getitem__(self, k):
        self.num += 1
        return [k, self.num]


class Plain(Drawing):
    def __getitem__(self, k):
        return [k, random.Random(k).random(), iter(())]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("above", [ResumableData, lambda df: ShardData(df, 0, 2), lambda df: ParallelData(df, 1)])
def test_elements_that_draw_from_a_generator_of_the_sequence_are_refused_in_every_loop(above, shuffle):
    with seeded(1), above(DataFromList(Drawing(), shuffle=shuffle)) as df:
        for _ in range(2):
            with pytest.raises(
                (NotReproducible, DataFlowTerminated),
                match=r"Drawing.__getitem__.*holds \(.*generator\).*RandomMapData",
            ):
                list(df)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(DrawingGlobally, "global generator of random.*lst.__getitem__, seed_globals=True"), (Counting, "changes .*num")],
)
def test_elements_that_are_counted_or_drawn_globally_are_logged_once(kind, text, caplog):
    list(DataFromList(kind(), shuffle=False))
    assert not caplog.records  # nobody has promised anything
    df = ResumableData(DataFromList(kind(), shuffle=False))
    assert len(list(df)) == len(list(df)) == 12
    (record,) = caplog.records
    assert re.search(text, record.getMessage())


def test_other_elements_may_be_anything(caplog):
    assert [dp[:2] for dp in ResumableData(DataFromList(Plain(), shuffle=False))] == [
        [k, random.Random(k).random()] for k in range(12)
    ]
    assert not caplog.records
