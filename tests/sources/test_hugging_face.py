"""Hugging Face datasets are sequences of rows: `DataFromList` reads them, and `TableData` their columns."""

import numpy as np
import pytest

from dataflow import BatchData, DataFromList, MapData, MultiProcessRunnerZMQ, TableData
from tests.support.contract import check_node, plain, seeded
from tests.support.waits import LIMIT

datasets = pytest.importorskip("datasets")

NUM = 8


@pytest.fixture(autouse=True)
def no_thread_of_tqdm(monkeypatch):
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)


def dataset():
    columns = {"tokens": [list(range(k % 3 + 1)) for k in range(NUM)], "label": list(range(NUM))}
    return datasets.Dataset.from_dict(columns)


def test_rows_are_dicts_whose_lists_are_lists():
    df = DataFromList(dataset(), shuffle=False)
    assert len(df) == NUM and df[NUM + 2] == {"tokens": [0, 1, 2], "label": 2}
    assert [row["label"] for row in df] == list(range(NUM))
    assert repr(df) == "DataFromList(<Dataset>, shuffle=False)"


def test_with_format_decides_on_types():
    df = DataFromList(dataset().with_format("numpy"), shuffle=False)
    assert plain(df[4]) == plain({"tokens": np.array([0, 1]), "label": np.int64(4)})
    (batch,) = BatchData(MapData(df, lambda dp: {"label": dp["label"]}), NUM)
    assert batch["label"].dtype == np.int64


def test_it_is_a_node():
    ds = dataset().with_format("numpy").select(range(1, NUM))
    check_node(lambda: DataFromList(ds), source=True)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
def test_strict_workers_give_the_same_as_one_process(method):
    ds = dataset().with_format("numpy")
    with seeded(2):
        expected = [plain(dp) for dp in DataFromList(ds)]
        with MultiProcessRunnerZMQ(DataFromList(ds), 2, strict=True, context=method, timeout=LIMIT) as df:
            assert [plain(dp) for dp in df] == expected


def test_its_columns_are_an_arrow_table():
    ds = dataset().select([5, 1, 3])
    (batch,) = TableData(ds.with_format("arrow")[:], columns=["label"], batch_size=3)
    assert batch["label"].tolist() == [5, 1, 3]


def test_what_is_no_sequence_raises_with_the_remedy():
    with pytest.raises(TypeError, match=r"choose one of 'train', 'test', as in lst\['train'\]"):
        DataFromList(dataset().train_test_split(0.5))
    with pytest.raises(TypeError, match="use DataFromIterable"):
        DataFromList(dataset().to_iterable_dataset())
    with pytest.raises(TypeError, match=r"use DataFromList\(dataset\)"):
        TableData(dataset())
