"""Hints for tables of other libraries: which are told apart, and what is none."""

from types import SimpleNamespace

import numpy as np
import pytest

from dataflow import DataFromList
from dataflow.sources.table_hints import cure_of


def of_library(name, make):
    return lambda: make(pytest.importorskip(name))


TABLES = {
    "DataFrame": (
        of_library("pandas", lambda pandas: pandas.DataFrame({"x": [1]})),
        "DataFromList(df.values.tolist())",
    ),
    "Series": (of_library("pandas", lambda pandas: pandas.Series([1])), "DataFromList(series.tolist())"),
    "polars": (of_library("polars", lambda polars: polars.DataFrame({"x": [1]})), "DataFromList(df.rows())"),
    "as polars": (lambda: SimpleNamespace(to_dicts=list, rows=list, columns=["x"]), "DataFromList(df.rows())"),
    "Arrow": (of_library("pyarrow", lambda arrow: arrow.table({"x": [1]})), "TableData(table)"),
}


@pytest.mark.parametrize(("make", "cure"), TABLES.values(), ids=TABLES)
def test_a_table_has_the_hint_of_its_library(make, cure):
    assert cure in cure_of(make())


def test_the_class_of_a_table_is_none():
    pandas = pytest.importorskip("pandas")
    assert cure_of(pandas.DataFrame) is None


@pytest.mark.parametrize(
    "value", [[1], {"columns": 1}, np.zeros((2, 2)), DataFromList([1]), None], ids=lambda value: type(value).__name__
)
def test_what_has_rows_of_its_own_is_none(value):
    assert cure_of(value) is None
