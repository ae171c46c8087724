import pickle

import numpy as np
import pytest

from dataflow.errors import Dropped, LengthUnknown, NotAddressable, ShapeMismatch
from dataflow.sources.in_memory import DataFromList
from dataflow.transforms.mapping import MapData
from dataflow.transforms.selecting import FlattenData, SelectComponent


def one(dp):
    return DataFromList([dp])


@pytest.mark.parametrize(
    ("dp", "idxs", "expected"),
    [
        (["a", "b", "c"], [2, 0], ["c", "a"]),
        (("a", "b"), (1, 1), ["b", "b"]),
        ({"x": 1, "y": 2}, ["y"], {"y": 2}),
        ([1, 2], [-1], [2]),
        ([1, 2], [], []),
    ],
)
def test_components_are_chosen_in_order(dp, idxs, expected):
    df = SelectComponent(one(dp), idxs)
    assert list(df) == [expected] == [df[0]] == list(pickle.loads(pickle.dumps(df)))


def test_a_hole_is_passed_on():
    df = SelectComponent(MapData(DataFromList([[0], [1]], shuffle=False), lambda dp: dp if dp[0] else None), [0])
    assert list(df) == [[1]] == df[0:2]


@pytest.mark.parametrize("idxs", [0, "label"])
def test_a_single_index_raises_with_the_correct_form(idxs):
    with pytest.raises(TypeError, match=r"write \["):
        SelectComponent(one([1]), idxs)


@pytest.mark.parametrize("mask", [[True, False], np.array([False, True])], ids=["list", "array"])
def test_a_mask_raises_with_the_positions_of_it(mask):
    with pytest.raises(TypeError, match=r"flatnonzero\(mask\)"):
        SelectComponent(one([1, 2]), mask)
    assert list(SelectComponent(one([1, 2]), np.flatnonzero(mask))) == [[np.arange(1, 3)[mask].item()]]


def test_a_missing_component_is_named_with_the_available_ones():
    with pytest.raises(KeyError, match=r"no component 'z'.*\['x'\]"):
        list(SelectComponent(one({"x": 1}), ["z"]))


def test_components_come_one_by_one():
    assert list(FlattenData(DataFromList([[1, 2], [], (3, [4])], shuffle=False))) == [[1], [2], (3,), ([4],)]


@pytest.mark.parametrize("dp", [{"a": 1}, 5, "text"])
def test_dicts_and_bare_values_are_not_flattened(dp):
    with pytest.raises(TypeError, match=f"got a {type(dp).__name__}"):
        list(FlattenData(one(dp)))


def test_a_flattened_flow_has_no_length_and_no_index():
    df = FlattenData(one([1]))
    with pytest.raises(LengthUnknown, match="FlattenData"):
        len(df)
    with pytest.raises(NotAddressable, match="FlattenData"):
        df[0]


# -- flattening with a known number of components ----------------------------------------------------------------------


def test_a_number_of_components_gives_a_length_and_indexes():
    df = FlattenData(DataFromList([[1, 2, 3], (4, 5, 6)], shuffle=False), num=3)
    assert len(df) == 6
    assert list(df) == df[0:6] == [[1], [2], [3], (4,), (5,), (6,)]
    assert [df[k] for k in (5, 0, 7)] == [(6,), [1], [2]]
    assert df._df_grain == 3


def test_adjacent_components_of_one_datapoint_are_made_once():
    made = []
    df = FlattenData(MapData(DataFromList(range(4), shuffle=False), lambda k: made.append(k) or [k, k]), num=2)
    assert len(df[1:7]) == 6
    assert made == [0, 1, 2, 3]


def test_components_of_a_dropped_datapoint_are_dropped():
    ds = MapData(DataFromList([[1, 2], [3, 4]], shuffle=False), lambda dp: dp if dp[0] > 1 else None)
    df = FlattenData(ds, num=2)
    assert list(df) == df[0:4] == [[3], [4]]
    with pytest.raises(Dropped):
        df[1]


@pytest.mark.parametrize("ask", [list, lambda df: df[0]])
def test_another_number_of_components_raises(ask):
    with pytest.raises(ShapeMismatch, match="num=3, but a datapoint has 2 components"):
        ask(FlattenData(DataFromList([[1, 2]]), num=3))


def test_the_number_is_at_least_1():
    with pytest.raises(ValueError, match="num must be an integer ≥ 1"):
        FlattenData(DataFromList([[1, 2]]), num=0)
