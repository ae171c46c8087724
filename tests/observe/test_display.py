"""PrintData: its output, how often it prints, and that all datapoints are passed on."""

import collections
import copy
import itertools

import numpy as np
import pytest

from dataflow.observe.display import PrintData
from dataflow.protocol.base import DataFlow


class Source(DataFlow):
    _df_indexed = True

    def __init__(self, *datapoints):
        self.datapoints = datapoints

    def __len__(self):
        return len(self.datapoints)

    def _df_run_pass(self, p, stream):
        return iter(self.datapoints)

    def _df_at(self, blocks, stream):
        return (self.datapoints[k % len(self)] for ix in blocks for k in ix)


def printed(capsys, *components, **options):
    """The lines of one printed datapoint, without heading and indent of the components."""
    dp = list(components)
    (passed_on,) = PrintData(Source(dp), **options)
    assert passed_on is dp
    heading, first, *lines = capsys.readouterr().out.splitlines()
    assert heading == "DataFlow Info:"
    assert first == f"datapoint 1 of 1 with {len(dp)} components:"
    return [line[3:] for line in lines]


VALUES = [
    (np.arange(6, dtype=np.int32).reshape(2, 3), "ndarray:int32 of shape (2, 3) in range [0, 5]"),
    (np.array([1 / 3, -1], np.float32), "ndarray:float32 of shape (2,) in range [-1, 0.333333]"),
    (np.array([1, np.nan, 3]), "ndarray:float64 of shape (3,) in range [1, 3], 1 NaN"),
    (np.array([np.nan] * 2), "ndarray:float64 of shape (2,) 2 NaN"),
    (np.array([np.inf, 1], np.float16), "ndarray:float16 of shape (2,) in range [1, inf]"),
    (np.zeros((0, 3)), "ndarray:float64 of shape (0, 3)"),
    (np.array(7), "ndarray:int64 of shape () in range [7, 7]"),
    (np.array([True, False]), "ndarray:bool of shape (2,) in range [False, True]"),
    (np.array(["a", "bc"]), "ndarray:<U2 of shape (2,)"),
    (np.array([b"a"]), "ndarray:|S1 of shape (1,)"),
    (np.array([None, "x"], object), "ndarray:object of shape (2,)"),
    (np.zeros(2, "i4,f8"), "ndarray:[('f0', '<i4'), ('f1', '<f8')] of shape (2,)"),
    (np.array([1 + 2j]), "ndarray:complex128 of shape (1,)"),
    (
        np.array(["2020-01-02", "NaT", "2021-03-04"], "M8[D]"),
        "ndarray:datetime64[D] of shape (3,) in range [2020-01-02, 2021-03-04], 1 NaT",
    ),
    (np.array([1, 5], "m8[s]"), "ndarray:timedelta64[s] of shape (2,) in range [1 seconds, 5 seconds]"),
    (np.ma.array([1, 9, 2], mask=[0, 1, 0]), "MaskedArray:int64 of shape (3,) in range [1, 2]"),
    (np.ma.array([1], mask=[1]), "MaskedArray:int64 of shape (1,)"),
    (np.array([1, 2], ">u2"), "ndarray:>u2 of shape (2,) in range [1, 2]"),
    (None, "None"),
    ("text", "str of length 4 with value 'text'"),
    ("x" * 1000, "str of length 1000 with value 'xxxxxxxxxxxx...xxxxxxxxxxxxx'"),
    (b"\0\xff", r"bytes of length 2 with value b'\x00\xff'"),
    (True, "bool with value True"),
    (3, "int with value 3"),
    (0.5, "float with value 0.5"),
    (np.float32(0.5), "float32 with value 0.5"),
    (np.datetime64("2020"), "datetime64 with value 2020"),
    (np.str_("ab"), "str_ of length 2 with value np.str_('ab')"),
    (range(3), "range"),
    ([], "list of length 0"),
    ({}, "dict of length 0"),
]


@pytest.mark.parametrize(("value", "line"), VALUES, ids=[line for _, line in VALUES])
def test_a_value_is_outlined_in_one_line(value, line, capsys):
    if isinstance(value, np.str_) and np.lib.NumpyVersion(np.__version__) < "2.0.0":
        line = line.replace("np.str_('ab')", "'ab'")
    assert printed(capsys, value) == [f"0: {line}"]


def test_an_object_with_shape_and_dtype_is_shown_like_an_array(capsys):
    class Tensor:
        shape = (2, 3)
        dtype = "bfloat16"

    assert printed(capsys, Tensor()) == ["0: Tensor:bfloat16 of shape (2, 3)"]


def test_nested_lists_and_dicts_are_shown_to_a_depth_and_a_length(capsys):
    value = [[1, [2, [3]]], {"a": 1, "b": (2,)}, 3, 4, 5]
    assert printed(capsys, value, max_depth=3, max_list=2) == [
        "0: list of length 5",
        "   0: list of length 2",
        "      0: int with value 1",
        "      1: list of length 2",
        "   1: dict of length 2",
        "      'a': int with value 1",
        "      'b': tuple of length 1",
        "   ...",
    ]
    assert printed(capsys, value, max_depth=1) == ["0: list of length 5"]
    assert printed(capsys, [1, 2], max_list=0) == ["0: list of length 2", "   ..."]


def test_a_list_that_holds_itself_ends(capsys):
    value = [1]
    value.append(value)
    assert len(printed(capsys, value)) == 5


def test_a_dict_datapoint_shows_its_keys_and_a_mapping_inside_is_opened(capsys):
    list(PrintData(Source({"x": 1, 2: collections.ChainMap({"k": 1})})))
    assert capsys.readouterr().out.splitlines()[1:] == [
        "datapoint 1 of 1 with 2 components:",
        "   'x': int with value 1",
        "   2: ChainMap of length 1",
        "      'k': int with value 1",
    ]


def test_a_datapoint_without_components_is_tolerated(capsys):
    list(PrintData(Source(np.zeros(2))))
    expected = "datapoint 1 of 1 is ndarray:float64 of shape (2,) in range [0, 0]"
    assert capsys.readouterr().out.splitlines()[1] == expected


def test_the_name_is_in_the_heading_which_is_printed_once(capsys):
    list(PrintData(Source([1], [2], [3]), num=2, name="mine"))
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("DataFlow Info (mine):") == 1
    assert [line for line in lines if line.startswith("datapoint")] == [
        "datapoint 1 of 2 with 1 components:",
        "datapoint 2 of 2 with 1 components:",
    ]


def count_printed(capsys):
    return capsys.readouterr().out.count("datapoint")


def test_the_first_datapoints_since_the_reset_are_printed_over_passes(capsys):
    df = PrintData(Source([1], [2]), num=3)
    counts = []
    for _ in range(3):
        assert list(df) == [[1], [2]]
        counts.append(count_printed(capsys))
    assert counts == [2, 1, 0]
    df.reset_state()
    next(iter(df))
    assert count_printed(capsys) == 1
    list(df)
    assert count_printed(capsys) == 2


def test_no_datapoint_is_read_ahead(capsys):
    taken = []

    class Counts(DataFlow):
        def _df_run_pass(self, p, stream):
            for k in itertools.count():
                taken.append(k)
                yield [k]

    steps = iter(PrintData(Counts(), num=2))
    for k in range(4):
        assert next(steps) == [k]
        assert taken == list(range(k + 1))
    assert count_printed(capsys) == 2


@pytest.mark.parametrize("num", [0, -1])
def test_nothing_is_printed_if_num_is_0(num, capsys):
    assert list(PrintData(Source([1]), num=num)) == [[1]]
    assert capsys.readouterr().out == ""


def test_a_pass_without_datapoints_prints_nothing(capsys):
    assert list(PrintData(Source())) == []
    assert capsys.readouterr().out == ""


def test_addressing_passes_through_and_prints_nothing(capsys):
    df = PrintData(Source([1], [2]))
    assert df[1] == [2]
    assert df[0:4] == [[1], [2]] * 2
    assert capsys.readouterr().out == ""
    assert len(df) == 2


def test_a_copy_prints_again(capsys):
    df = PrintData(Source([1]))
    list(df)
    list(copy.deepcopy(df))
    assert count_printed(capsys) == 2
