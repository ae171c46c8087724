"""Columns of tables: what their rows and batches are, of every kind of value, and what would lose its meaning."""

import contextlib
import datetime
import importlib
import uuid

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import ShapeMismatch, TableData
from tests.formats.tables import GROUP, NUM, arrow, arrow_table, parquet


def values_of(column, *, batch=True):
    rows = [row["c"] for row in TableData(arrow_table(c=column))]
    return (rows, TableData(arrow_table(c=column), batch_size=len(column))[0]["c"]) if batch else rows


def test_missing_values_are_none_or_nan():
    pa = arrow()
    rows, batch = values_of(pa.array([1.5, None, float("nan")]))
    assert rows[:2] == [1.5, None] and np.isnan(rows[2]) and np.isnan(batch[1:]).all()
    rows, batch = values_of(pa.array([5, None], pa.timestamp("s")))
    assert rows == [np.datetime64(5, "s"), None] and np.isnat(batch[1])
    rows = values_of(pa.array([True, None]), batch=False)
    assert rows == [True, None] and type(rows[0]) is np.bool_
    rows, batch = values_of(["a", None])
    assert rows == batch.tolist() == ["a", None]
    rows = values_of(pa.array([1, None], "int16"), batch=False)
    assert rows == [1, None] and type(rows[0]) is np.int16
    rows = values_of(pa.array([[1], None, [2, None]]), batch=False)
    assert rows[0].tolist() == [1] and rows[1] is None and rows[2] == [2, None]


def test_times_categories_bytes_and_records_have_a_form():
    pa = arrow()
    day = datetime.datetime(2026, 11, 22, 12)
    rows, batch = values_of([day, None])
    assert batch.dtype == np.dtype("M8[us]") and rows[0] == np.datetime64(day) and np.isnat(batch[1])
    rows, batch = values_of(pa.array(["a", "b", "a"]).dictionary_encode())
    assert rows == batch.tolist() == ["a", "b", "a"] and batch.dtype.kind == "U"
    rows, batch = values_of([b"\0a", b"b\0"])
    assert rows == batch.tolist() == [b"\0a", b"b\0"] and batch.dtype == object
    rows, batch = values_of([{"bytes": b"1", "path": None}] * 2)
    assert rows == batch.tolist() == [{"bytes": b"1", "path": None}] * 2


def test_lists_are_arrays_where_they_can_be():
    pa = arrow()
    rows, batch = values_of([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])
    assert batch.shape == (2, 2, 2) and rows[1].tolist() == [[5, 6], [7, 8]]
    rows = values_of([[1, 2], [], [3]], batch=False)
    assert [row.tolist() for row in rows] == [[1, 2], [], [3]] and rows[1].dtype == np.int64
    assert values_of([[[1], [2, 3]], [[4]]], batch=False)[0] == [[1], [2, 3]]
    rows, batch = values_of([["a", "b"], ["c", "d"]])
    assert rows == batch.tolist() == [["a", "b"], ["c", "d"]]
    rows, batch = values_of(pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6.0)), 3).slice(1))
    assert batch.tolist() == [[3, 4, 5]] == [row.tolist() for row in rows]
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12).reshape(3, 2, 2))
    rows, batch = values_of(tensors)
    assert batch.shape == (3, 2, 2) and rows[1].tolist() == [[4, 5], [6, 7]]


@pytest.mark.parametrize("values", [[[1, 2], [3, None], []], [[True], [None], []]])
def test_a_row_of_a_list_does_not_depend_on_the_rows_that_are_read_with_it(values):
    df = TableData(arrow().table({"x": values}))
    together, alone = [row["x"] for row in df], [df[k]["x"] for k in range(len(df))]
    assert list(map(type, together)) == list(map(type, alone)) == [np.ndarray, list, np.ndarray]
    assert [getattr(value, "dtype", None) for value in together] == [getattr(value, "dtype", None) for value in alone]
    assert together[1] == alone[1] == values[1]
    assert together[0].tolist() == alone[0].tolist() == values[0]


@pytest.mark.parametrize(
    ("wrap", "wrap_value"),
    [
        (lambda pa, kind: kind, lambda value: value),
        (lambda pa, kind: pa.list_(kind), lambda value: [value]),
        (lambda pa, kind: pa.struct([("t", kind)]), lambda value: {"t": value}),
        (lambda pa, kind: pa.map_(pa.string(), kind), lambda value: [("t", value)]),
    ],
)
def test_nanoseconds_of_a_time_of_day_are_not_lost(wrap, wrap_value):
    pa = arrow()
    column = pa.array([wrap_value(2000), wrap_value(999), None], wrap(pa, pa.time64("ns")))
    df = TableData(pa.table({"t": column}))
    assert df[0] == {"t": wrap_value(datetime.time(microsecond=2))} and df[2] == {"t": None}
    with pytest.raises(ValueError, match=r"column 't', row 1: .*which datetime.time lacks .*cast the column before"):
        list(df)
    with TableData(pa.table({"t": column}), max_failures=1) as rest:
        assert len(list(rest)) == 2


def test_rows_of_records_are_copies():
    records = np.array([(1, 2.0)], [("k", "i4"), ("x", "f8")])
    (row,) = TableData({"r": records})
    row["r"]["k"] = 5
    assert records["k"][0] == 1


def test_batches_of_objects_in_a_dict():
    (batch,) = TableData({"a": [np.ones(2), np.zeros(2)], "b": [[1, 2], [3, 4]], "c": [None, 1]}, batch_size=2)
    assert batch["a"].shape == batch["b"].shape == (2, 2) and batch["c"].tolist() == [None, 1]


def arrow_values(kind):
    """Values of an Arrow type, some of them missing."""
    types = arrow().types
    if types.is_struct(kind):
        found = st.fixed_dictionaries({field.name: arrow_values(field.type) for field in kind})
    elif types.is_list(kind):
        found = st.lists(arrow_values(kind.value_type), max_size=2)
    elif types.is_fixed_size_list(kind):
        found = st.lists(arrow_values(kind.value_type), min_size=2, max_size=2)
    else:
        found = {"int32": st.integers(0, 9), "double": st.floats(0, 1), "string": st.sampled_from(["a", "\0", ""])}[
            str(kind)
        ]
    return found | st.none()


def nested_columns():
    pa = arrow()
    simple = st.sampled_from([pa.int32(), pa.float64(), pa.string()])
    kinds = st.recursive(
        simple,
        lambda kind: (
            kind.map(pa.list_) | kind.map(lambda k: pa.list_(k, 2)) | kind.map(lambda k: pa.struct([("q", k)]))
        ),
        max_leaves=3,
    )
    return kinds.flatmap(
        lambda kind: st.lists(arrow_values(kind), min_size=1, max_size=4).map(lambda v: pa.array(v, kind))
    )


def without_arrays(value):
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [without_arrays(item) for item in value]
    if isinstance(value, dict):
        return {name: without_arrays(item) for name, item in value.items()}
    return None if isinstance(value, float) and np.isnan(value) else value


@settings(max_examples=50)
@given(st.data())
def test_values_of_any_arrow_type_are_those_that_arrow_gives(data):
    column = data.draw(nested_columns())
    column = column.slice(data.draw(st.integers(0, len(column) - 1)))
    expected = column.to_pylist()
    assert [without_arrays(value) for value in values_of(column, batch=False)] == expected
    with contextlib.suppress(ShapeMismatch):
        (batch,) = TableData(arrow_table(c=column), batch_size=len(column))
        assert [without_arrays(value) for value in batch["c"]] == expected


def tensors_with_nulls():
    pa = arrow()
    kind = pa.fixed_shape_tensor(pa.int32(), (2, 2))
    storage = pa.array([[1, 2, 3, 4], None, [5, 6, 7, 8], None], pa.list_(pa.int32(), 4))
    return pa.ExtensionArray.from_storage(kind, storage)


def test_tensors_keep_their_shape_beside_missing_ones():
    rows = values_of(tensors_with_nulls(), batch=False)
    assert [row if row is None else row.tolist() for row in rows] == [[[1, 2], [3, 4]], None, [[5, 6], [7, 8]], None]
    df = TableData(arrow_table(c=tensors_with_nulls()), batch_size=2)
    with pytest.raises(ShapeMismatch, match=r"column 'c', row 1: the value is missing \(null\)"):
        df[0]
    there = arrow().concat_arrays([tensors_with_nulls().slice(0, 1), tensors_with_nulls().slice(2, 1)])
    table = arrow().concat_tables([arrow_table(c=tensors_with_nulls()), arrow_table(c=there)])
    assert list(TableData(table))[4]["c"].tolist() == [[1, 2], [3, 4]]
    some = arrow().concat_arrays([there, tensors_with_nulls().slice(1, 1)])
    df = TableData(arrow_table(c=some), batch_size=2)
    assert df[0]["c"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]


def test_views_of_text_and_bytes_are_text_and_bytes():
    pa = arrow()
    table = pa.table({"a": pa.array(["x", None], pa.string_view()), "b": pa.array([b"1", b"2"], pa.binary_view())})
    assert list(TableData(table)) == [{"a": "x", "b": b"1"}, {"a": None, "b": b"2"}]


def test_shuffled_batches_of_views_inside_lists_and_records():
    pytest.importorskip("pyarrow")
    polars = pytest.importorskip("polars")
    columns = {
        "list": [["a", str(k)] for k in range(NUM)],
        "record": [{"t": str(k), "n": [str(k)]} for k in range(NUM)],
        "nested": [[[str(k)], ["b"]] for k in range(NUM)],
        "bytes": [[b"%d" % k, None] for k in range(NUM)],
    }
    for options in ({}, {"shuffle": True}):
        df = TableData(polars.DataFrame(columns), batch_size=5, remainder=True, **options)
        for name, values in columns.items():
            found = [value for batch in df for value in without_arrays(batch[name])]
            assert sorted(found, key=repr) == sorted(values, key=repr)
        rows = list(TableData(polars.DataFrame(columns).slice(3), **options))
        assert sorted((row["record"] for row in rows), key=repr) == sorted(columns["record"][3:], key=repr)


def test_lists_that_differ_between_row_groups_are_named(tmp_path):
    path = parquet(tmp_path / "rows.parquet", arrow_table(t=[[1]] * GROUP + [[1, 2]] * GROUP))
    for options in ({}, {"shuffle": True, "seed": 1}):
        with (
            TableData(path, batch_size=2 * GROUP, **options) as df,
            pytest.raises(ShapeMismatch, match="column 't', row"),
        ):
            list(df)


LARGE = 2**53 + 1


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], np.int64),
        ([2**63, 1], np.uint64),
        ([1, 0.5], np.float64),
        ([LARGE - 1, 0.5, float("nan"), float("inf")], np.float64),
        ([LARGE, 0.5], None),
        ([LARGE, 0.5, float("nan")], None),
        ([2**63 + 1025, -1], None),
        ([-(2**63), 2**63], np.float64),
        ([2**63 + 1, 2**64 - 1], np.uint64),
        ([LARGE, 1j], None),
        ([2**70, 1], object),
        ([[1, 2], [3, 2**63]], np.float64),
        ([[1, -2], [3, 2**63 + 1]], None),
        ([[1, 2], [3, 2**63 + 1]], None),
        ([[LARGE, 0.5], [1, 2]], None),
        ([np.int64(-1), np.uint64(2**63 + 1)], None),
        ([np.float32(0.1), np.float64(0.1)], np.float64),
        ([np.array([1]), np.array(["a"])], None),
        ([[1], ["a"]], None),
        ([np.array([-1]), np.array([2**63 + 1], np.uint64)], None),
        ([np.datetime64("9999-12-31"), np.datetime64(1, "ns")], None),
        ([np.datetime64("2020"), np.timedelta64(1, "Y")], None),
        ([np.array([1], "m8[s]"), np.array([1])], None),
        ([np.str_("a"), "b"], str),
        ([np.str_("a\0"), "b\0"], object),
        ([np.bytes_(b"a\0"), b"b"], object),
        ([b"a\0", "b"], object),
        (["a", 1], object),
        ([True, 2], np.int64),
        ([np.ma.array([1], mask=[True]), np.ma.array([2])], None),
    ],
    ids=repr,
)
def test_rows_of_a_list_are_its_values_and_so_are_those_of_a_batch(values, kind):
    rows = [row["c"] for row in TableData({"c": values})]
    for row, value in zip(rows, values, strict=True):
        assert without_arrays(row) == without_arrays(value), "also where a batch would round it"
    df = TableData({"c": values}, batch_size=len(values))
    if kind is None:
        with pytest.raises(ShapeMismatch, match=r"the dict, column 'c', row \d: the value"):
            df[0]
    else:
        batch = df[0]["c"]
        assert np.issubdtype(batch.dtype, kind)
        assert without_arrays(batch) == [without_arrays(value) for value in values]


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = arrow_table(a=[1], b=[2], c=[3]).rename_columns(["x", "x", "y"])
    path = str(tmp_path / "rows.parquet")
    importlib.import_module("pyarrow.parquet").write_table(table, path)
    for source in (table, path):
        with pytest.raises(ValueError, match="has two columns 'x': rename one"):
            len(TableData(source))
        assert TableData(source, columns=["y"])[0] == {"y": 3}


def zoned():
    kind = arrow().timestamp("us", "Europe/Berlin")
    return arrow().array([datetime.datetime(2026, 7, 1, 12)], kind)


def period():
    pandas = pytest.importorskip("pandas")
    return arrow().array(pandas.Series(pandas.period_range("2026-01", periods=1, freq="M")))


LOSSY = {
    "zone": (zoned, "has times of the zone Europe/Berlin.*UTC"),
    "zone in a list": (lambda: arrow().ListArray.from_arrays([0, 1], zoned()), "has times of the zone"),
    "zone in a record": (lambda: arrow().StructArray.from_arrays([zoned()], ["t"]), "has times of the zone"),
    "zone in a category": (lambda: zoned().dictionary_encode(), "has times of the zone"),
    "period": (period, r"extension type pandas\.period.*to_timestamp"),
    "tensor in a list": (lambda: arrow().ListArray.from_arrays([0, 1], tensors_with_nulls()), "tensors inside lists"),
    "opaque": (
        lambda: arrow().ExtensionArray.from_storage(arrow().opaque(arrow().int64(), "t", "v"), arrow().array([1])),
        r"extension type arrow\.opaque",
    ),
}


@pytest.mark.parametrize(("make", "message"), LOSSY.values(), ids=LOSSY.keys())
def test_types_that_would_lose_their_meaning_are_refused_by_name(make, message, tmp_path):
    table = arrow_table(good=[1], bad=make().slice(0, 1))
    path = str(tmp_path / "rows.parquet")
    importlib.import_module("pyarrow.parquet").write_table(table, path)
    in_file = [path] if importlib.import_module("pyarrow.parquet").read_schema(path) == table.schema else []
    for source in (table, {"bad": table["bad"]}, *in_file):
        with pytest.raises(ValueError, match=f"column 'bad' of .* {message}"):
            len(TableData(source))
    assert TableData(path, columns=["good"])[0] == TableData(table, columns=["good"])[0] == {"good": 1}


def test_extension_types_whose_meaning_is_known_and_utc():
    pa = arrow()
    rows, batch = values_of(pa.array([datetime.datetime(2026, 7, 1)], pa.timestamp("s", "UTC")))
    assert rows[0] == batch[0] == np.datetime64("2026-07-01T00:00:00")
    stored = pa.array([1, None, 0], pa.int8())
    rows = values_of(pa.ExtensionArray.from_storage(pa.bool8(), stored), batch=False)
    assert rows == [True, None, False] and type(rows[0]) is np.bool_
    known = uuid.UUID(int=7)
    rows, batch = values_of(pa.array([known.bytes, None], pa.uuid()))
    assert rows == batch.tolist() == [known, None]
    rows, batch = values_of(pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}'])))
    assert rows == batch.tolist() == ['{"a": 1}']


def test_times_of_a_zone_in_pandas_and_polars_are_refused():
    pandas = pytest.importorskip("pandas")
    when = pandas.Series(pandas.to_datetime(["2026-07-01"]))
    for zone, is_refused in (("Europe/Berlin", True), ("UTC", False)):
        frame = pandas.DataFrame({"when": when.dt.tz_localize(zone), "n": 1})
        for table in (frame, {"when": frame["when"]}):
            if is_refused:
                with pytest.raises(ValueError, match=r"column 'when' of .* zone Europe/Berlin"):
                    TableData(table)
            else:
                assert TableData(table)[0]["when"] == np.datetime64("2026-07-01")
    frame = pandas.DataFrame({"p": pandas.period_range("2026-01", periods=2, freq="M")})
    with pytest.raises(ValueError, match=r"column 'p' of the DataFrame has the extension type pandas\.period"):
        TableData(frame)
