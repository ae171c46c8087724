"""What the tests of tables share: tables of Arrow, and parquet files, also such as are damaged."""

import pytest

NUM = 23
GROUP = 5  # rows of a row group
COLUMNS = {
    "id": list(range(NUM)),
    "x": [k / 2 for k in range(NUM)],
    "even": [k % 2 == 0 for k in range(NUM)],
    "name": [f"row {k}" for k in range(NUM)],
    "pair": [[k, k + 1] for k in range(NUM)],
}


def arrow():
    return pytest.importorskip("pyarrow")


def arrow_table(**columns):
    return arrow().table(columns or COLUMNS)


def parquet(path, table=None, **options):
    module = pytest.importorskip("pyarrow.parquet")
    module.write_table(arrow_table() if table is None else table, str(path), **{"row_group_size": GROUP} | options)
    return str(path)


def with_bad_text(*bad, num=NUM):
    """An Arrow table whose column ``s`` has bytes that are not UTF-8 in some rows."""
    pa = arrow()
    text = pa.array([b"\xff" if k in bad else b"row %d" % k for k in range(num)], pa.binary())
    return pa.table({"k": range(num), "s": pa.StringArray.from_buffers(num, *text.buffers()[1:])})


def damaged(folder):
    """A parquet file whose column ``s`` is damaged in row group 1, which holds the rows 5 to 9."""
    module = pytest.importorskip("pyarrow.parquet")
    table = with_bad_text()
    path = parquet(folder / "rows.parquet", table, compression="zstd", use_dictionary=False)
    column = module.ParquetFile(path).metadata.row_group(1).column(1)
    with open(path, "r+b") as file:
        file.seek(column.data_page_offset + column.total_compressed_size // 2)
        file.write(b"\xff" * 16)
    return path


KEPT = [k for k in range(NUM) if not 5 <= k < 10]
"""The rows of `damaged` that can be read."""


def numbers(df):
    return [int(row["k"]) for row in df]


def batches(df):
    return [batch["k"].tolist() for batch in df]
