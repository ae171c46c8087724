import functools
import traceback

import numpy as np
import pytest

from dataflow.errors import Dropped, MissingExtra
from dataflow.sources.in_memory import DataFromList
from dataflow.transforms.mapping import MapData, MapDataComponent


def numbers(n):
    return DataFromList([[k, str(k)] for k in range(n)], shuffle=False)


def test_the_function_gets_a_shallow_copy():
    array = np.zeros(2)
    lst = [[array, 1]]

    def change(dp):
        dp[1] = 5
        dp[0] += 1
        return dp

    assert next(iter(MapData(DataFromList(lst), change)))[1] == 5
    assert lst[0][1] == 1
    assert array.tolist() == [1, 1]  # documented: the array itself is shared


def test_none_drops_a_datapoint_and_every_other_keeps_its_index():
    df = MapData(numbers(4), lambda dp: None if dp[0] == 1 else dp)
    assert [dp[0] for dp in df] == [0, 2, 3] == [dp[0] for dp in df[0:4]]
    assert len(df) == 4 and df[2][0] == 2
    with pytest.raises(Dropped, match="index 1 of MapData"):
        df[1]


def test_a_hole_passes_through_the_maps_above_it():
    below = MapData(numbers(3), lambda dp: None if dp[0] == 1 else dp)
    df = MapDataComponent(MapData(below, list), str)
    assert df[0:3] == [["0", "0"], ["2", "2"]] == list(df)


@pytest.mark.parametrize("node", [MapData, MapDataComponent])
def test_an_error_of_the_function_is_the_same_error_with_a_note(node):
    def divide(_):
        return 1 // 0

    df = node(numbers(2), divide)
    for use in (list, lambda df: df[0]):
        with pytest.raises(ZeroDivisionError) as caught:
            use(df)
        assert f"{node.__name__}: " in caught.value.__notes__[0] and "divide" in caught.value.__notes__[0]
        assert "divide" in "".join(traceback.format_exception(caught.value))


def test_a_function_without_a_name_is_noted_too():
    with pytest.raises(ZeroDivisionError) as caught:
        list(MapData(numbers(1), functools.partial(lambda dp, k: 1 // k, k=0)))
    assert "functools.partial" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("dp", "index", "expected"),
    [([1, "a"], 0, [-1, "a"]), ((1, "a"), 0, [-1, "a"]), ({"x": 1, "y": 2}, "y", {"x": 1, "y": -2})],
)
def test_one_component_is_replaced(dp, index, expected):
    lst = [dp]
    df = MapDataComponent(DataFromList(lst), lambda value: -value, index)
    assert list(df) == [expected] and type(df[0]) is type(expected)
    assert lst == [dp]


def test_a_component_mapped_to_none_drops_the_datapoint():
    df = MapDataComponent(numbers(3), lambda k: None if k == 0 else k)
    assert [dp[0] for dp in df] == [1, 2]


def test_a_missing_component_is_named_by_the_map():
    with pytest.raises(IndexError, match="no component 7"):
        list(MapDataComponent(numbers(1), str, 7))
    with pytest.raises(KeyError, match="there are"):
        list(MapDataComponent(DataFromList([{"a": 1}]), str, "b"))


def test_a_map_needs_a_function_and_a_flow():
    with pytest.raises(TypeError, match="MapData expects a function, got int"):
        MapData(numbers(1), 5)
    with pytest.raises(TypeError, match="DataFromList"):
        MapData([[1]], str)


def test_a_function_that_raises_stop_iteration_does_not_silently_end_the_pass():
    def stop(dp):
        raise StopIteration

    for df in (MapData(DataFromList([[1], [2]], shuffle=False), stop), MapDataComponent(DataFromList([[1]]), stop)):
        with pytest.raises(RuntimeError, match="stop, raised StopIteration"):
            list(df)


def test_a_missing_package_is_no_failure_of_one_datapoint():
    def needs(dp):
        raise MissingExtra("install it")

    with pytest.raises(MissingExtra, match="install it"):
        list(MapData(DataFromList([[1], [2]]), needs, max_failures=2))
