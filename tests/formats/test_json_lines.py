"""JSON Lines files: which lines are datapoints, and which line is invalid."""

import json
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import DiskCacheData, FileDamaged, JSONLinesData, MapData, MultiProcessRunnerZMQ, TooManyFailures
from dataflow.formats.json_lines import LinesData
from tests.support.contract import check_node, seeded
from tests.support.waits import LIMIT

ROWS = [{"text": f"Zeile {k} \u00e4", "n": k} for k in range(12)]


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def lines(rows=ROWS):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "rows.jsonl", lines())


def test_every_line_is_a_datapoint(path):
    with JSONLinesData(path) as df:
        assert len(df) == 12 and list(df) == ROWS and df[13] == ROWS[1]
    check_node(lambda: JSONLinesData(path, shuffle=True), source=True)


def test_a_folder_may_have_more_files_than_a_process_may_open(tmp_path, monkeypatch):
    monkeypatch.setattr("dataflow.formats.positional._MAX_OPEN", 2)
    for k in range(5):
        write(tmp_path / f"{k}.jsonl", lines([{"n": 2 * k}, {"n": 2 * k + 1}]))
    num_before = len(os.listdir("/dev/fd"))
    with JSONLinesData(tmp_path) as df:
        assert [dp["n"] for dp in df] == [*range(10)]
        assert [df[k]["n"] for k in (9, 0, 5, 1)] == [9, 0, 5, 1]
        assert len(os.listdir("/dev/fd")) == num_before + 2


BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (b"", []),
        (b"\n", []),
        (b" \n[1]", [2]),
        (b"[1]\n", [1]),
        (b"[1]\n\n[2]", [1, 3]),
        (b" [1]\n", [1]),
    ],
)
def test_a_byte_order_mark_is_no_part_of_the_first_line(text, numbers, tmp_path):
    path = write(tmp_path / "rows.jsonl", BOM + text)
    with JSONLinesData(path) as df, LinesData([str(path)]) as raw:
        assert list(df) == [[k + 1] for k in range(len(numbers))]
        assert [number for _, number, _, _ in raw] == numbers
    path = write(tmp_path / "rows.jsonl", b"1\n" + BOM + b"2\n")
    with JSONLinesData(path) as df, pytest.raises(FileDamaged, match="line 2 is not JSON"):
        list(df)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
@pytest.mark.parametrize("text", ["[1]", "[1]\n[2]\n"])
def test_a_file_that_is_not_utf_8_is_refused(encoding, text, tmp_path, path):
    other = write(tmp_path / "other.jsonl", text.encode(encoding))
    with JSONLinesData(other) as df, pytest.raises(ValueError, match=r"other\.jsonl is not UTF-8.*iconv"):
        list(df)
    with JSONLinesData([other, path], max_failures=1) as df:
        assert list(df) == ROWS


def test_a_number_beyond_the_floats_is_not_read_as_infinity(tmp_path):
    path = write(tmp_path / "rows.jsonl", '{"x": [1e308, -1e-400, Infinity]}\n{"x": -1e400}\n')
    with JSONLinesData(path) as df:
        assert df[0] == {"x": [1e308, -0.0, float("inf")]}
        with pytest.raises(FileDamaged, match=r"line 2 is not JSON .*number '-1e400' is beyond the largest float"):
            df[1]


@given(
    st.lists(st.sampled_from(["{}", "[1, 2]", '"a"', "3", " 4 ", "", "   ", "\r", "\t5\r"])),
    st.booleans(),
    st.sampled_from([1, 2, 3, 100]),
)
def test_lines_of_white_space_are_left_out(tmp_path_factory, found, has_end, piece):
    text = "\n".join(found) + ("\n" if has_end else "")
    path = write(tmp_path_factory.getbasetemp() / "any.jsonl", text)
    values = [(number, json.loads(line)) for number, line in enumerate(found, 1) if line.strip()]
    with pytest.MonkeyPatch.context() as patched, JSONLinesData(path) as df:
        patched.setattr("dataflow.formats.json_lines._PIECE", piece)
        assert list(df) == [value for _, value in values] and len(df) == len(values)
        places = [(number, offset) for _, number, offset, _ in df.ds]
    assert [number for number, _ in places] == [number for number, _ in values]
    assert all(text.encode()[max(offset - 1, 0) : offset] in {b"", b"\n"} for _, offset in places)


def test_pieces_of_a_large_file_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr("dataflow.formats.json_lines._PIECE", 7)
    monkeypatch.setattr("dataflow.formats.json_lines._AT_ONCE", 50)
    path = write(tmp_path / "rows.jsonl", "\n\n".join(lines().splitlines()))
    with JSONLinesData(path) as df:
        assert list(df) == ROWS and df[5] == ROWS[5]


def test_several_files_follow_each_other(tmp_path):
    for number, rows in enumerate((ROWS[:5], [], ROWS[5:])):
        write(tmp_path / f"{number}.jsonl", lines(rows))
    write(tmp_path / "notes.txt", "no JSON")
    names = [tmp_path / f"{number}.jsonl" for number in (0, 1, 2)]
    for paths in (tmp_path, names, str(tmp_path)):
        with JSONLinesData(paths) as df:
            assert list(df) == ROWS and df[7] == ROWS[7] and df[12] == ROWS[0]
    with seeded(1), JSONLinesData(tmp_path, shuffle=True) as df:
        assert sorted(row["n"] for row in df) == list(range(12))


@pytest.mark.parametrize("text", ["{oops}", '{"a": 1} {"b": 2}', "\xff", "nul", "null", '{"a": 1', "[" * 9999])
def test_an_invalid_line_is_named_by_file_and_number(text, tmp_path):
    begin = '{"a": 1}\n\n'
    path = write(tmp_path / "rows.jsonl", (begin + text + "\n3\n").encode("latin-1"))
    with JSONLinesData(path) as df, pytest.raises(FileDamaged, match=r"rows\.jsonl, line 3 is ") as caught:
        list(df)
    assert (caught.value.path, caught.value.offset) == (str(path), len(begin))
    with JSONLinesData(path, max_failures=1) as df:
        assert list(df) == [{"a": 1}, 3] and len(df) == 3
        assert "line 3 is" in df.failures[0].text and df.failures[0].position == 1
    with JSONLinesData([path, path], max_failures=1) as df, pytest.raises(TooManyFailures, match="line 3"):
        list(df)


def test_the_budget_of_a_runner_holds_for_lines(tmp_path):
    path = write(tmp_path / "rows.jsonl", lines().replace('{"text": "Zeile 5', "x"))
    with MultiProcessRunnerZMQ(
        JSONLinesData(path), 2, strict=True, max_failures=1, context="fork", timeout=LIMIT
    ) as df:
        assert list(df) == ROWS[:5] + ROWS[6:]
        assert "line 6" in df.failures[0].text


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
def test_strict_workers_give_the_same_as_one_process(method, path):
    with seeded(2):
        expected = list(JSONLinesData(path, block_shuffle=4))
        df = JSONLinesData(path, block_shuffle=4)
        with MultiProcessRunnerZMQ(df, 2, strict=True, context=method, timeout=LIMIT) as runner:
            assert list(runner) == expected


def test_the_lines_are_found_once(path, monkeypatch):
    df = JSONLinesData(path)
    assert len(df) == 12
    monkeypatch.setattr("dataflow.formats.json_lines._lines_of", lambda *_: pytest.fail("the file was searched again"))
    df.close()
    assert df[3] == ROWS[3]
    monkeypatch.undo()
    df.close()
    write(path, lines(ROWS[:2]))
    assert list(df) == ROWS[:2]
    assert list(pickle.loads(pickle.dumps(df))) == ROWS[:2]
    df.close()


def test_an_empty_file_has_empty_passes(tmp_path):
    with JSONLinesData(write(tmp_path / "rows.jsonl", "")) as df:
        assert list(df) == [] and len(df) == 0
        with pytest.raises(IndexError, match=r"rows\.jsonl holds no datapoints"):
            df[0]


def test_a_cache_notices_that_the_file_has_changed(path, tmp_path):
    cache = tmp_path / "file.cache"
    for rows in (ROWS, ROWS[:3]):
        write(path, lines(rows))
        with DiskCacheData(JSONLinesData(path), cache) as df:
            assert list(df) == rows


def test_the_chain_shows_the_file(path):
    assert repr(JSONLinesData("docs/../README.md", max_failures=3)) == (
        "JSONLinesData('docs/../README.md', max_failures=3)\nLinesData(['docs/../README.md'], shuffle=False)"
    )
    assert next(iter(MapData(LinesData([str(path)]), lambda dp: [dp[-1]]))) == [lines().splitlines()[0].encode()]
