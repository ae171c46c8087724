"""Tables: rows and batches of every kind of table, and what is wrong with one."""

import importlib
import importlib.util
import pickle
from collections import UserList
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import (
    BatchData,
    DataFromList,
    Dropped,
    FileDamaged,
    FilterData,
    MapData,
    MultiProcessRunner,
    ResumableData,
    ShapeMismatch,
    TableData,
    TooManyFailures,
)
from dataflow.formats.tables import _TableReader
from tests.formats.tables import (
    COLUMNS,
    KEPT,
    NUM,
    arrow,
    arrow_table,
    batches,
    damaged,
    numbers,
    parquet,
    with_bad_text,
)
from tests.support.contract import check_node, plain, seeded
from tests.support.products import covering
from tests.support.waits import LIMIT


def chunked_table():
    table = arrow_table()
    return arrow().concat_tables([table.slice(0, 9), table.slice(9, 2), table.slice(11)])


def data_frame():
    return pytest.importorskip("pandas").DataFrame(COLUMNS, index=range(100, 100 + NUM))


def polars_frame():
    pytest.importorskip("pyarrow")
    return pytest.importorskip("polars").DataFrame(COLUMNS)


def two_files(folder):
    table = arrow_table()
    (folder / "inner").mkdir(exist_ok=True)
    parquet(folder / "a.parquet", table.slice(0, 13))
    parquet(folder / "inner" / "b.parquet", table.slice(13))
    parquet(folder / "_hidden.parquet", table)
    return str(folder)


KINDS = {
    "dict": lambda folder: COLUMNS,
    "arrays": lambda folder: {name: np.array(values) for name, values in COLUMNS.items()},
    "pandas": lambda folder: data_frame(),
    "polars": lambda folder: polars_frame(),
    "arrow": lambda folder: arrow_table(),
    "arrow in chunks": lambda folder: chunked_table(),
    "parquet": lambda folder: parquet(folder / "rows.parquet"),
    "parquet folder": two_files,
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def as_python(row):
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()}


ROWS = [{name: values[k] for name, values in COLUMNS.items()} for k in range(NUM)]


@every_kind
def test_rows_are_dicts_by_column(make, tmp_path):
    with TableData(make(tmp_path)) as df:
        assert len(df) == NUM and [as_python(row) for row in df] == ROWS
        assert as_python(df[NUM + 7]) == ROWS[7]
        row = df[3]
        assert (type(row["id"]), type(row["x"]), type(row["name"])) == (np.int64, np.float64, str)
        chosen = TableData(make(tmp_path), columns=["name", "id"])
        assert chosen[4] == {"name": "row 4", "id": 4} and list(chosen[4]) == ["name", "id"]


def alike(batch):
    """Text may have another width."""
    return {name: plain(value if value.dtype.kind != "U" else value.tolist()) for name, value in batch.items()}


@every_kind
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"block_shuffle": 7}], ids=["", "shuffle", "block_shuffle"])
def test_batches_of_columns_are_those_of_batch_data(make, options, tmp_path):
    table = make(tmp_path)
    for size, remainder in ((4, False), (4, True), (NUM, False), (30, True)):
        with seeded(4), TableData(table, batch_size=size, remainder=remainder, **options) as df:
            expected = BatchData(TableData(table, **options), size, remainder=remainder)
            assert len(df) == len(expected)
            for _ in range(2):
                batches, others = list(df), list(expected)
                for batch, other in zip(batches, others, strict=True):
                    assert alike(batch) == alike(other)
                    for value in batch.values():
                        assert (value.flags.writeable and value.flags.owndata) or value.base.flags.owndata
            assert alike(df[len(df)]) == alike(expected[len(df)])


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            make, id=name, marks=[] if name in {"arrays", "arrow in chunks", "parquet"} else [pytest.mark.full]
        )
        for name, make in KINDS.items()
    ],
)
def test_it_is_a_node(make, tmp_path):
    table = make(tmp_path)
    check_node(lambda: TableData(table, shuffle=True), source=True)
    check_node(lambda: TableData(table, batch_size=4, block_shuffle=6), source=True)


def as_batch(df):
    return [plain(batch) for batch in df]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["arrays", "parquet"])
def test_strict_workers_give_the_same_as_one_process(kind, method, tmp_path):
    table = KINDS[kind](tmp_path)
    with seeded(2):
        expected = as_batch(TableData(table, batch_size=3, shuffle=True))
        df = TableData(table, batch_size=3, shuffle=True)
        with MultiProcessRunner(df, 5, 2, strict=True, context=method, timeout=LIMIT) as runner:
            assert as_batch(runner) == expected


def test_a_saved_state_continues_in_the_middle(tmp_path):
    path = parquet(tmp_path / "rows.parquet")
    with seeded(2):
        df = ResumableData(TableData(path, batch_size=4, shuffle=True))
        iterator = iter(df)
        next(iterator)
        state = df.state_dict()
        rest = as_batch(iterator)
    again = ResumableData(TableData(path, batch_size=4, shuffle=True))
    again.load_state_dict(state)
    assert as_batch(again) == rest


def test_what_is_yielded_is_a_copy():
    table = {"x": np.arange(6.0), "m": np.zeros((6, 2))}
    for batch in TableData(table, batch_size=3):
        batch["x"] += 1
        batch["m"] += 1
    for row in TableData(table):
        row["m"] += 1
    assert table["x"].tolist() == [0, 1, 2, 3, 4, 5] and not table["m"].any()


def append(name):
    return lambda table: table[name].append("z")


def set_first(name, value):
    return lambda table: table[name].__setitem__(0, value)


def of_pandas(make):
    return lambda: make(pytest.importorskip("pandas"))


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: {"x": [0, 1]}, append("x")),
        (lambda: {"x": ["a", "b"]}, append("x")),
        (lambda: {"x": UserList(["a", "b"])}, append("x")),
        (lambda: {"x": [0, 1]}, lambda table: table.update(x=[5, 6, 7])),
        (lambda: {"x": np.array([0, 1])}, set_first("x", 7)),
        (lambda: {"x": np.array(["a", "b"], object)}, set_first("x", "z")),
        (lambda: np.array([("a", 1)], [("x", object), ("y", int)]), set_first("x", "z")),
        (of_pandas(lambda pandas: {"x": pandas.Series([0, 1])}), set_first("x", 7)),
        (of_pandas(lambda pandas: {"x": pandas.array([0, 1], "Int64")}), set_first("x", 7)),
        (of_pandas(lambda pandas: pandas.DataFrame({"x": [0, 1]})), lambda frame: frame.insert(0, "y", [5, 6])),
        (of_pandas(lambda pandas: pandas.DataFrame({"x": ["a"]})), lambda frame: frame.loc.__setitem__((0, "x"), "z")),
        (lambda: pytest.importorskip("polars").DataFrame({"x": [0, 1]}), lambda frame: frame.__setitem__((0, "x"), 7)),
    ],
)
def test_workers_that_open_a_table_after_it_was_changed_read_the_same(make, change):
    pytest.importorskip("pyarrow")
    table = make()
    df = TableData(table)
    assert len(list(df)) == len(df)
    change(table)
    assert [as_python(row) for row in df] == [as_python(row) for row in pickle.loads(pickle.dumps(df))]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.data())
def test_any_rows_of_any_parts_form_a_batch(sizes, data):
    pa = arrow()
    parts = [pa.table({"k": np.arange(size) + 10 * part}) for part, size in enumerate(sizes)]
    table = pa.concat_tables(parts)
    rows = table["k"].to_pylist()
    if rows:
        df = TableData(table, batch_size=data.draw(st.integers(1, len(rows))), shuffle=True, remainder=True)
        assert sorted(k for batch in df for k in batch["k"].tolist()) == rows


def test_few_row_groups_are_kept_of_a_large_file(tmp_path, monkeypatch):
    monkeypatch.setattr("dataflow.formats.tables._KEPT_BYTES", 100)
    module = pytest.importorskip("pyarrow.parquet")
    path = parquet(tmp_path / "rows.parquet")
    read = []
    original = module.ParquetFile.read_row_group
    monkeypatch.setattr(
        module.ParquetFile, "read_row_group", lambda self, k, **options: read.append(k) or original(self, k, **options)
    )
    with TableData(path, batch_size=NUM, shuffle=True) as df, seeded(1):
        list(df)
        assert len(df.reader()._kept) == 1
    assert sorted(read) == [0, 1, 2, 3, 4], "each once for a batch of all columns"


# -- kinds of tables ---------------------------------------------------------------------------------------------------


def test_no_columns_are_rows_without_components():
    assert list(TableData(arrow_table(a=[1, 2]), columns=[])) == [{}, {}]


@pytest.mark.parametrize(
    "table",
    [{"a": [1, 2, 3], "b": range(3)}, np.zeros(3, [("a", "f4")]), "DataFrame", "parquet"],
    ids=["dict", "array", "DataFrame", "parquet"],
)
def test_no_columns_of_any_table_are_as_many_rows(table, tmp_path):
    if isinstance(table, str):
        frame = pytest.importorskip("pandas").DataFrame({"a": [1, 2, 3]})
        arrow()
        if table == "parquet":
            frame.to_parquet(tmp_path / "a.parquet")
        table = frame if table == "DataFrame" else tmp_path
    assert list(TableData(table, columns=[])) == [{}] * 3
    assert list(TableData(table, columns=[], batch_size=2, remainder=True)) == [{}] * 2
    assert list(TableData({}, columns=[])) == []


def test_no_columns_of_a_dict_whose_columns_differ_in_length_are_refused():
    assert list(TableData({"a": [1, 2], "b": [1]}, columns=["b"])) == [{"b": 1}]
    with pytest.raises(ValueError, match="the columns differ in length"):
        TableData({"a": [1, 2], "b": [1]}, columns=[])


def test_a_column_of_pandas_that_arrow_has_no_form_for_is_named():
    pandas = pytest.importorskip("pandas")
    arrow()
    frame = pandas.DataFrame({"ok": [1, 2], "mixed": pandas.Categorical([1, "a"])})
    with pytest.raises(ValueError, match="column 'mixed' of the dtype category cannot be read"):
        TableData(frame)[0]


class Flaky:
    """A column that raises only when several rows are read, or batches."""

    def __init__(self, num=1):
        self.num_left = num

    def rows(self, selection):
        self.num_left -= 1
        if self.num_left >= 0:
            raise MemoryError("for a moment")
        return [0] * 2

    batch = rows


def test_what_does_not_fail_again_row_by_row_is_raised_as_it_was():
    reader = _TableReader(["a"], [2], lambda number: ({"a": Flaky()}, 0), lambda number: ("the table", 0))
    (row,) = reader.read(np.array([1]), with_errors=True)
    assert type(row.error) is MemoryError
    reader.close()
    with pytest.raises(MemoryError, match="for a moment"):
        reader.batch(np.array([0, 1]))


NO_COLUMNS = [b"abc", "abc", bytearray(b"abc"), memoryview(b"abc"), {1, 2}, {1: 2}, {}.keys(), 5, None, np.array(5)]


@pytest.mark.parametrize("values", NO_COLUMNS, ids=lambda value: type(value).__name__)
def test_what_is_no_column_is_refused(values):
    with pytest.raises(TypeError, match=f"column 'x' is a {type(values).__name__}; a column is a list or an array"):
        TableData({"x": values})


def test_a_mask_is_refused_by_name():
    column = np.ma.array([1, 2], mask=[False, True])
    with pytest.raises(ValueError, match=r"column 'x' is a masked array.*\.filled"):
        TableData({"x": column})
    assert [row["x"] for row in TableData({"x": np.ma.array([1, 2])})] == [1, 2]
    pa = arrow()
    assert [row["x"] for row in TableData({"x": pa.array(column.data, mask=column.mask)})] == [1, None]


def test_objects_of_polars_are_refused_by_name():
    pytest.importorskip("pyarrow")
    polars = pytest.importorskip("polars")
    column = polars.Series("c", [{1, 2}, {3}], dtype=polars.Object)
    for table in (polars.DataFrame({"c": column}), {"c": column}):
        with pytest.raises(ValueError, match=r"column 'c' holds Python objects, .*to_list"):
            TableData(table)
    assert TableData({"c": column.to_list()})[0] == {"c": {1, 2}}


@pytest.mark.parametrize("named", ["folder", "list"])
def test_columns_in_the_names_of_folders_are_not_lost(named, tmp_path):
    write = importlib.import_module("pyarrow.parquet").write_table
    paths = [tmp_path / "run=7" / f"year={year}" / "month=1" / "rows.parquet" for year in (2025, 2026)]
    for path in paths:
        path.parent.mkdir(parents=True)
        write(arrow_table(x=[1], month=[1]), path)
    source = tmp_path / "run=7" if named == "folder" else list(map(str, paths))
    with pytest.raises(ValueError, match=r"column 'year' is in the names of folders.*columns="):
        len(TableData(source))
    assert list(TableData(source, columns=["x"])) == [{"x": 1}] * 2
    assert list(TableData(paths[0])) == [{"x": 1, "month": 1}], "no other file is named"
    for path in paths:
        write(arrow_table(x=[1], month=[1], year=[2025]), path)
    assert len(TableData(source)) == 2


def test_columns_of_pandas_keep_their_kind():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "int": pandas.array([1, None], dtype="Int32"),
            "text": ["a", None],
            "cat": pandas.Categorical(["u", "v"]),
            "list": [[1, 2], [3]],
            "when": pandas.to_datetime(["2026-11-22", "2026-11-23"]),
        }
    )
    rows = list(TableData(frame))
    assert [row["int"] for row in rows] == [1, None] and [row["text"] for row in rows] == ["a", None]
    assert [row["cat"] for row in rows] == ["u", "v"] and rows[1]["list"].tolist() == [3]
    assert rows[0]["when"] == np.datetime64("2026-11-22")


def test_a_dict_may_hold_columns_of_any_library():
    pa, pandas = arrow(), pytest.importorskip("pandas")
    table = {"a": pa.array([1, 2]), "b": pandas.Series([3, 4], index=[7, 8]), "c": pa.chunked_array([["x"], ["y"]])}
    assert [as_python(row) for row in TableData(table)] == [{"a": 1, "b": 3, "c": "x"}, {"a": 2, "b": 4, "c": "y"}]


def test_a_dict_and_a_data_frame_of_the_same_columns_are_the_same_table():
    arrow()
    pandas = pytest.importorskip("pandas")
    columns = {
        "id": pandas.array([2**53 + 1, None], dtype="Int64"),
        "code": pandas.Index([2**53 + 1, None], dtype="Int64"),
        "cat": pandas.Categorical(["u", None]),
        "text": pandas.array(["a", None], dtype="string"),
        "is": pandas.array([True, None], dtype="boolean"),
        "x": pandas.Series([0.5, 1.5]).array,
        "few": pandas.arrays.SparseArray([0, 3]),
    }
    rows = [as_python(row) for row in TableData(columns)]
    assert rows == [as_python(row) for row in TableData(pandas.DataFrame(columns))]
    assert rows[0] == {"id": 2**53 + 1, "code": 2**53 + 1, "cat": "u", "text": "a", "is": True, "x": 0.5, "few": 0}
    assert rows[1] == {"id": None, "code": None, "cat": None, "text": None, "is": None, "x": 1.5, "few": 3}
    with pytest.raises(ValueError, match=r"column 'when' .* has times of the zone Europe/Berlin"):
        TableData({"when": pandas.DatetimeIndex(["2026-11-22"], tz="Europe/Berlin")})


def test_large_rows_are_converted_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr("dataflow.formats.tables._AT_ONCE", 300)
    df = TableData(arrow_table(c=[b"x" * 100] * 50))
    assert 1 <= df.reader()._num_at_once(0) <= 3
    assert len(list(df)) == 50


def test_a_structured_array_is_a_table():
    array = np.array([(1, 2.5), (3, 4.5)], [("k", "i2"), ("x", "f4")])
    (batch,) = TableData(array, batch_size=2)
    assert (batch["k"].dtype, batch["x"].tolist()) == (np.dtype("i2"), [2.5, 4.5])


def test_an_empty_table_has_empty_passes():
    for table in ({"x": []}, {"x": np.zeros(0)}, {}):
        for options in ({}, {"batch_size": 2}):
            df = TableData(table, **options)
            assert list(df) == [] and len(df) == 0
            with pytest.raises(IndexError, match=r"no batches|holds no datapoints"):
                df[0]


# -- what is wrong -----------------------------------------------------------------------------------------------------


@every_kind
def test_a_missing_column_is_named_with_the_table(make, tmp_path):
    with pytest.raises(ValueError, match=r"(the |\.parquet).* has no column 'nam'; there are .*Did you mean 'name'\?"):
        len(TableData(make(tmp_path), columns=["id", "nam"]))


def test_values_that_form_no_batch_are_named_by_file_column_and_row(tmp_path):
    table = arrow_table(id=range(20), tokens=[[1, 2]] * 17 + [[3]] + [[1, 2]] * 2, age=[*range(12), None, *range(7)])
    path = parquet(tmp_path / "rows.parquet", table)
    parquet(tmp_path / "0.parquet", table.slice(0, 8))
    for source in (path, str(tmp_path)):
        for column, size, message in (
            ("tokens", 4, "row 17: the value is a list of 1"),
            ("age", 7, "row 12: the value is m"),
        ):
            message = rf"rows\.parquet, column '{column}', {message}"
            with (
                TableData(source, columns=[column], batch_size=size) as df,
                pytest.raises(ShapeMismatch, match=message),
            ):
                list(df)
    with pytest.raises(ShapeMismatch, match=r"the dict, column 't', row 1: the value has the shape \(1,\)"):
        list(TableData({"t": [[1, 2], [3]]}, batch_size=2))


def has_two(dp):
    if len(dp["tokens"]) != 2:
        raise ValueError(f"row {dp['id']} has {len(dp['tokens'])} tokens")
    return dp


def test_bad_rows_are_skipped_and_counted_by_a_map(tmp_path):
    df = MapData(TableData({"id": [0, 1, 2], "tokens": [[1, 2], [3], [4, 5]]}), has_two, max_failures=1)
    (batch,) = BatchData(df, 2)
    assert batch["id"].tolist() == [0, 2] and df.failures[0].text == "row 1 has 1 tokens"


def test_columns_of_different_lengths_are_listed():
    with pytest.raises(ValueError, match=r"differ in length.*\{'a': 2, 'b': 1\}"):
        TableData({"a": [1, 2], "b": [1]})
    with pytest.raises(TypeError, match="column 'a' is a int"):
        TableData({"a": 1})


@pytest.mark.parametrize(
    ("table", "cure"),
    [
        (DataFromList([1]), "a dataflow already"),
        (7, "a dict of columns"),
        (np.zeros(3), "DataFromList"),
        ([{"a": 1}], "DataFromList"),
        (iter([]), "a dict of columns"),
        (SimpleNamespace(set_format=print), "use DataFromList"),
        (SimpleNamespace(collect=print), r"pass the result of its collect\(\)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_table_raises_with_the_remedy(table, cure):
    with pytest.raises(TypeError, match=f"TableData expects a table, got .*{cure}"):
        TableData(table)


def test_a_stream_of_arrow_is_refused_before_it_is_read():
    stream = arrow_table().to_reader()
    with pytest.raises(TypeError, match=r"got RecordBatchReader: a stream .* only once, so .* its read_all\(\)"):
        TableData(stream)
    assert len(TableData(stream.read_all())) == NUM


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"columns": "x"}, TypeError, r"write \['x'\]"),
        ({"columns": ["x", "x"]}, ValueError, "twice"),
        ({"batch_size": 0}, ValueError, "batch_size must be an integer ≥ 1, got 0"),
        ({"block_shuffle": 0}, ValueError, "block_shuffle must be an integer ≥ 1"),
        ({"shuffle": "no"}, TypeError, "shuffle must be True or False"),
        ({"seed": -1}, ValueError, "seed must be an integer ≥ 0"),
        ({"max_failures": -1}, ValueError, "max_failures must be"),
    ],
)
def test_arguments_are_checked_in_the_constructor(options, error, message):
    with pytest.raises(error, match=message):
        TableData({"x": [1]}, **options)


def test_a_batch_larger_than_the_table_raises():
    with pytest.raises(ValueError, match="batch_size 3 is more than the 2 rows"):
        list(TableData({"x": [1, 2]}, batch_size=3))


def test_files_that_are_missing_empty_or_different_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        TableData(tmp_path / "nowhere.parquet")
    with pytest.raises(FileNotFoundError, match=r"no file that ends in \.parquet"):
        TableData(tmp_path)
    with pytest.raises(ValueError, match="empty list"):
        TableData([])
    first = parquet(tmp_path / "0.parquet", arrow_table(a=[1], b=["x"]))
    with pytest.raises(ValueError, match=r"1\.parquet has no column 'b'"):
        len(TableData([first, parquet(tmp_path / "1.parquet", arrow_table(a=[1]))]))
    other = parquet(tmp_path / "2.parquet", arrow_table(a=[1.5], b=["x"]))
    with pytest.raises(ValueError, match=r"column 'a' is double in .*2\.parquet, and int64 in .*0\.parquet"):
        len(TableData([first, other]))
    assert len(TableData([first, other], columns=["b"])) == 2


# -- what is skipped ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_file", [True, False], ids=["file", "memory"])
def test_a_value_that_cannot_be_read_is_named_by_column_and_row(in_file, tmp_path):
    table = with_bad_text(7, 8)
    table = parquet(tmp_path / "rows.parquet", table) if in_file else table
    place = r"rows\.parquet" if in_file else "the table"
    error = FileDamaged if in_file else ValueError
    with TableData(table) as df:
        iterator = iter(df)
        assert [int(next(iterator)["k"]) for _ in range(7)] == list(range(7)), "the rows before it come first"
        with pytest.raises(error, match=rf"{place}, column 's', row 7: the value cannot be read \(UnicodeDecodeError"):
            next(iterator)
    for options in ({"batch_size": 10}, {"batch_size": 10, "shuffle": True, "seed": 0}):
        with TableData(table, **options) as df, pytest.raises(error, match=rf"{place}, column 's', row [78]: "):
            list(df)


@pytest.mark.parametrize("in_file", [True, False], ids=["file", "memory"])
def test_bad_rows_are_skipped_and_counted(in_file, tmp_path):
    table = with_bad_text(7, 8, 20)
    table = parquet(tmp_path / "rows.parquet", table) if in_file else table
    with TableData(table, max_failures=3) as df:
        for _ in range(2):
            assert numbers(df) == [k for k in range(NUM) if k not in {7, 8, 20}] and len(df) == NUM
        assert [failure.position for failure in df.failures] == [7, 8, 20] * 2
        assert all("column 's', row" in failure.text and failure.node == "TableData" for failure in df.failures)
        assert numbers(df[6:10]) == [6, 9]
        with pytest.raises(Dropped):
            df[7]
    with TableData(table, max_failures=2) as df, pytest.raises(TooManyFailures, match="row 20"):
        list(df)
    with TableData(table, shuffle=True, max_failures=3, seed=1) as df:
        assert sorted(numbers(df)) == [k for k in range(NUM) if k not in {7, 8, 20}]
    with TableData(table, batch_size=4, remainder=True, max_failures=3) as df:
        assert batches(df) == [[0, 1, 2, 3], [12, 13, 14, 15], [16, 17, 18, 19]]
        assert [failure.position for failure in df.failures] == [1, 2, 5]
        assert batches(df[0:4]) == [[0, 1, 2, 3], [12, 13, 14, 15]]


def test_a_batch_of_rows_that_form_no_array_is_skipped():
    df = TableData({"k": [0, 1, 2, 3], "t": [[1], [1, 2], [3], [4]]}, batch_size=2, max_failures=1)
    assert batches(df) == [[2, 3]] and "column 't', row 1" in df.failures[0].text


def test_the_budget_of_a_runner_holds_for_rows(tmp_path):
    for options, expected in (({}, KEPT), ({"batch_size": 5}, [*range(5), *range(10, 20)])):
        df = TableData(damaged(tmp_path), **options)
        with MultiProcessRunner(df, 5, 2, strict=True, max_failures=5, context="fork", timeout=LIMIT) as runner:
            assert [int(k) for dp in runner for k in np.atleast_1d(dp["k"])] == expected
            assert len(runner.failures) == (1 if options else 5)


def test_a_part_that_could_not_be_read_for_another_reason_is_tried_again(tmp_path, monkeypatch):
    module = pytest.importorskip("pyarrow.parquet")
    path = parquet(tmp_path / "rows.parquet", with_bad_text())
    original = module.ParquetFile.read_row_group
    num_left = 1

    def failing_once(self, group, **options):
        nonlocal num_left
        if group == 1 and num_left:
            num_left -= 1
            raise OSError(5, "Input/output error")
        return original(self, group, **options)

    monkeypatch.setattr(module.ParquetFile, "read_row_group", failing_once)
    with TableData(path, max_failures=5) as df:
        assert numbers(df) == KEPT and "Input/output error" in df.failures[0].text
        assert numbers(df) == list(range(NUM))


@pytest.mark.parametrize(
    ("kind", "options"),
    covering(
        ["arrow", "parquet"],
        [{"shuffle": True, "max_failures": 3}, {"batch_size": 4, "block_shuffle": 6, "max_failures": 0.5}],
    ),
)
def test_a_budget_changes_nothing_where_nothing_fails(kind, options, tmp_path):
    table = KINDS[kind](tmp_path)
    check_node(lambda: TableData(table, **options), source=True)


def test_rows_may_be_filtered_below_a_batch():
    df = FilterData(TableData({"k": range(6)}), lambda dp: dp["k"] % 2 == 0)
    assert [batch["k"].tolist() for batch in BatchData(df, 3)] == [[0, 2, 4]]


def test_the_chain_shows_where_the_data_are():
    df = TableData({"x": [1]}, batch_size=2, shuffle=True)
    assert repr(df) == "TableData({'x': [1]}, batch_size=2, shuffle=True)"
    pytest.importorskip("pandas")
    assert repr(TableData(data_frame())) == "TableData(<DataFrame>, shuffle=False)"
