"""Parquet files: what is read, and when; files that differ, and files that are damaged."""

import collections
import datetime
import importlib
import importlib.util
import os

import numpy as np
import pytest

from dataflow import FileDamaged, TableData, TooManyFailures
from tests.formats.tables import KEPT, NUM, arrow, arrow_table, batches, damaged, numbers, parquet, with_bad_text


def test_a_row_group_is_read_when_it_is_requested(tmp_path, monkeypatch):
    module = pytest.importorskip("pyarrow.parquet")
    path = parquet(tmp_path / "rows.parquet")
    read = collections.Counter()
    original = module.ParquetFile.read_row_group

    def counted(self, group, **options):
        read[group, tuple(options["columns"])] += 1
        return original(self, group, **options)

    monkeypatch.setattr(module.ParquetFile, "read_row_group", counted)
    with TableData(path, columns=["id"], batch_size=2, remainder=True) as df:
        assert len(df) == 12 and not read
        assert df[3]["id"].tolist() == [6, 7] and read == {(1, ("id",)): 1}
        list(df)
        assert read == {(group, ("id",)): 1 for group in range(5)}


def test_row_groups_without_rows_are_left_out(tmp_path):
    module = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    with module.ParquetWriter(path, arrow_table(a=[1]).schema) as writer:
        for rows in ([], [1], [], [2, 3]):
            writer.write_table(arrow_table(a=arrow().array(rows, "int64")))
    assert [row["a"] for row in TableData(path)] == [1, 2, 3]


def test_few_parquet_files_are_open_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("dataflow.formats.parquet._MAX_OPEN", 2)
    before = len(os.listdir("/proc/self/fd"))
    paths = [parquet(tmp_path / f"{k}.parquet", arrow_table(a=[k])) for k in range(5)]
    with TableData(paths) as df:
        assert [row["a"] for row in df] == list(range(5))
        assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_column_that_only_later_files_have_is_not_lost(tmp_path):
    write = importlib.import_module("pyarrow.parquet").write_table
    write(arrow_table(x=[1]), tmp_path / "a.parquet")
    write(arrow_table(x=[2], y=[3]), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet has a column 'y', which .*a\.parquet has not.*columns="):
        len(TableData(tmp_path))
    assert list(TableData(tmp_path, columns=["x"])) == [{"x": 1}, {"x": 2}]
    with TableData(tmp_path, max_failures=1) as df:
        assert list(df) == [{"x": 1}] and "column 'y'" in df.failures[0].text


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_damaged_file_is_named_with_its_part(tmp_path):
    path = tmp_path / "rows.parquet"
    parquet(path, compression="zstd", column_encoding="PLAIN", use_dictionary=False)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(FileDamaged, match=r"rows\.parquet, its footer: it cannot be decoded"):
        len(TableData(path))
    path.write_bytes(data[:30] + b"\xff" * 20 + data[50:])
    with TableData(path) as df, pytest.raises(FileDamaged, match=r"rows\.parquet, row group 0"):
        list(df)


def test_a_row_group_whose_columns_can_be_read_one_by_one_is_damaged_as_a_whole(tmp_path, monkeypatch):
    module = pytest.importorskip("pyarrow.parquet")
    path = parquet(tmp_path / "rows.parquet")
    original = module.ParquetFile.read_row_group

    def fail_for_several(self, group, columns, **options):
        if len(columns) > 1:
            raise arrow().ArrowInvalid("several")
        return original(self, group, columns=columns, **options)

    monkeypatch.setattr(module.ParquetFile, "read_row_group", fail_for_several)
    with TableData(path) as df, pytest.raises(FileDamaged, match=r"row group 0 .*several"):
        next(iter(df))


def test_a_damaged_row_group_is_named_by_its_rows_and_column(tmp_path):
    message = r"rows\.parquet, row group 1 \(rows 5 to 9\), column 's': it cannot be decoded"
    for options in ({}, {"batch_size": 5}, {"shuffle": True}):
        with TableData(damaged(tmp_path), **options) as df, pytest.raises(FileDamaged, match=message):
            list(df)
    with TableData(damaged(tmp_path), columns=["k"]) as df:
        assert numbers(df) == list(range(NUM))


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 3}], ids=["", "shuffle"])
def test_rows_of_a_damaged_row_group_are_skipped_and_counted(options, tmp_path):
    with TableData(damaged(tmp_path), max_failures=5, **options) as df:
        for p in range(2):
            assert sorted(numbers(df)) == KEPT
            assert len(df.failures) == 5 * (p + 1)
    with TableData(damaged(tmp_path), max_failures=4, **options) as df, pytest.raises(TooManyFailures):
        list(df)


def test_batches_of_a_damaged_row_group_are_skipped_and_it_is_tried_once(tmp_path, monkeypatch):
    module = pytest.importorskip("pyarrow.parquet")
    path = damaged(tmp_path)
    read = collections.Counter()
    original = module.ParquetFile.read_row_group

    def counted(self, group, **options):
        read[group] += 1
        return original(self, group, **options)

    monkeypatch.setattr(module.ParquetFile, "read_row_group", counted)
    with TableData(path, batch_size=1, max_failures=0.5) as df:
        assert [k for batch in batches(df) for k in batch] == KEPT
    assert read[1] == 3, "all columns, and then each of them until the damaged one"


def test_a_file_that_cannot_be_used_counts_as_one_row_that_failed(tmp_path):
    paths = [parquet(tmp_path / f"{k}.parquet", with_bad_text(num=k)) for k in (3, 4, 5, 2)]
    (tmp_path / "4.parquet").write_bytes(b"PAR1 but nothing else")
    parquet(tmp_path / "5.parquet", arrow_table(k=[1]))
    missing = "memory://data/nowhere.parquet" if importlib.util.find_spec("fsspec") else None
    paths += [missing] if missing else []
    for first in (0, 1):
        order = paths[first:] + paths[:first]
        with TableData(order, columns=["k", "s"], max_failures=5) as df:
            assert sorted(numbers(df)) == [0, 0, 1, 1, 2] and len(df) == 7 + bool(missing)
            found = " ".join(failure.text for failure in df.failures)
            assert "4.parquet, its footer" in found and "5.parquet has no column 's'" in found
            assert not missing or missing in found
    for wanted in ([paths[1]], paths[1:2] * 2):
        with pytest.raises(FileDamaged, match=r"4\.parquet, its footer"):
            len(TableData(wanted, max_failures=5))
    with pytest.raises(ValueError, match="has no column 'x'"):
        len(TableData(paths, columns=["x"], max_failures=9))
    with pytest.raises(FileDamaged, match=r"4\.parquet, its footer"):
        len(TableData(paths))


@pytest.mark.parametrize("is_nested", [False, True])
def test_times_of_96_bits_that_nanoseconds_have_not_are_refused(is_nested, tmp_path):
    pa = arrow()
    path = str(tmp_path / "spark.parquet")

    def write(*years):
        times = [datetime.datetime(year, 1, 1) for year in years]
        column = pa.array([[time] for time in times] if is_nested else times)
        table = pa.table({"t": column, "id": np.arange(len(years))})
        write_table = importlib.import_module("pyarrow.parquet").write_table
        write_table(table, path, use_deprecated_int96_timestamps=True, row_group_size=2)

    write(1700, 2200)
    rows = [np.ravel(row["t"])[0] for row in TableData(path)]
    assert rows == [np.datetime64("1700-01-01"), np.datetime64("2200-01-01")]
    write(2020, 2021, 2022, 9999)
    with pytest.raises(FileDamaged, match=r"row group 1 .*column 't': a time lies outside of the years 1677 to 2262"):
        list(TableData(path))
    assert [row["id"] for row in TableData(path, max_failures=2)] == [0, 1]
    assert len(list(TableData(path, columns=["id"]))) == 4
