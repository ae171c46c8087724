"""The types of flows: what type checkers infer holds for the values, and costs nothing at run time."""

import pickle
from collections import abc
from typing import Any, Generic, TypeVar, get_args, get_origin, is_typeddict

import pytest

import dataflow
from dataflow import DataFlow, DataFromList, MapData, ProxyDataFlow
from tests.typed import flows

T = TypeVar("T")


def holds(value: object, kind: Any) -> bool:
    """Whether `value` is of the type `kind`, with the elements that it has."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if hasattr(origin, "__value__"):  # an alias, as NumPy has from Python 3.12 on
        return holds(value, origin.__value__)
    if is_typeddict(kind):
        return isinstance(value, dict) and value.keys() == kind.__annotations__.keys()
    if kind is float:
        return isinstance(value, float | int)
    if origin is tuple:
        return isinstance(value, tuple) and all(map(holds, value, args)) and len(value) == len(args)
    if origin is list:
        return isinstance(value, list) and all(holds(element, args[0]) for element in value)
    if origin is dict:
        return isinstance(value, dict) and all(map(holds, value.items(), [tuple[args]] * len(value)))
    return isinstance(value, origin or kind)


@pytest.mark.parametrize(
    ("value", "kind"),
    [([1], list[str]), ({"a": 1}, dict[str, str]), ((1,), tuple[int, int]), ({"text": "a"}, flows.Row), ("a", int)],
)
def test_another_type_is_found(value, kind):
    assert not holds(value, kind)


@pytest.mark.parametrize("expected", flows.EXPECTED, ids=lambda function: function.__name__)
def test_the_values_have_the_types_that_a_checker_infers(expected, monkeypatch):
    wrong, num = [], 0

    def compare(value, kind):
        nonlocal num
        num += 1
        if not holds(value, kind):
            wrong.append((num, value, kind))

    monkeypatch.setattr(flows, "assert_type", compare)
    expected()
    assert num >= 3 and not wrong


def test_a_flow_of_a_type_is_the_class_itself():
    assert DataFlow[int] is DataFlow
    assert MapData[list[int]] is MapData
    assert MapData["Sample"] is MapData
    assert DataFlow.__mro__ == (DataFlow, object)
    typed = DataFromList[int]([1, 2], shuffle=False)
    assert vars(typed).keys() == vars(DataFromList([1, 2], shuffle=False)).keys()
    assert repr(typed) == repr(DataFromList([1, 2], shuffle=False))
    assert list(pickle.loads(pickle.dumps(typed))) == [1, 2]


class Halves(ProxyDataFlow[float]):
    def __iter__(self):
        yield from (number / 2 for number in self.ds)


class OfAnyType(ProxyDataFlow[T], Generic[T]):
    pass


class OfAnyTypeFirst(Generic[T], ProxyDataFlow[T]):
    pass


@pytest.mark.parametrize("make", [Halves, OfAnyType, OfAnyTypeFirst, OfAnyType[float]])
def test_a_users_node_may_name_its_type(make):
    numbers = DataFromList[int]([2, 4], shuffle=False)
    plain = [1.0, 2.0] if make is Halves else [2, 4]
    df = make(numbers)
    assert list(df) == list(df) == plain
    assert list(pickle.loads(pickle.dumps(df))) == plain
    assert isinstance(df, abc.Iterable)


@pytest.mark.parametrize("index", [0, slice(2)])
def test_an_index_of_a_class_is_refused(index):
    with pytest.raises(TypeError, match="DataFromList is a class and has no datapoints: make a flow"):
        DataFromList[index]


def test_every_public_class_of_flows_may_be_given_a_type():
    kinds = [value for name in dataflow.__all__ if isinstance(value := getattr(dataflow, name), type)]
    flow_kinds = [kind for kind in kinds if issubclass(kind, DataFlow)]
    assert len(flow_kinds) > 50
    assert all(kind[int] is kind for kind in flow_kinds)
