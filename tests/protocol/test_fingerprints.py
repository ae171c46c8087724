import functools
import json
import math

import numpy as np
import pytest

from dataflow import BatchData, DataFlow, DataFromList, FakeData, MapData, RandomChooseData, ShardData
from dataflow.protocol import fingerprints
from dataflow.protocol.fingerprints import describe_flow, describe_imported, difference


class Node(DataFlow):
    def __init__(self, **parameters):
        vars(self).update(parameters)

    def method(self):
        return self


def scale(dp, by=1):
    return dp


def text(value):
    return describe_flow(Node(value=value))["parameters"]["value"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, "5"),
        (True, "True"),
        (float("nan"), "nan"),
        (np.float32(0.5), "0.5"),
        (np.dtype(">i4"), "dtype('>i4')"),
        ([1, ("a", None)], "[1, ['a', None]]"),
        ({"a": 1}, "{'a': 1}"),
        (scale, "scale"),
        (functools.partial(scale, by=2), "partial(scale, [], {'by': 2})"),
        (Node().method, "Node.method"),
        (np.zeros(3), "ndarray"),
        (list(range(33)), "list"),
        (object(), "object"),
        ("x" * 500, "'" + "x" * 199 + "… of 502"),
    ],
    ids=str,
)
def test_a_parameter_is_a_text_without_an_address(value, expected):
    assert text(value) == expected


def test_flows_are_inputs_and_private_attributes_are_ignored():
    flow = DataFromList([[1]])
    found = describe_flow(Node(ds=flow, many=[flow], named={"a": flow}, _private=5))
    assert found["parameters"] == {"seed": "None"}
    assert [ds["type"] for ds in found["inputs"]] == ["DataFromList"]
    assert "df_lists" not in describe_flow(RandomChooseData([(flow, 1.0)]))["parameters"]


def test_a_description_is_the_same_after_json():
    df = BatchData(MapData(FakeData([(2, 3)], 20, dtype="uint8"), scale), 4)
    assert json.loads(json.dumps(describe_flow(df))) == describe_flow(df)


def test_a_description_of_the_same_chain_does_not_differ():
    def make(rank=0):
        return BatchData(MapData(ShardData(DataFromList(range(9)), rank, 2), scale, max_failures=rank), 2)

    assert difference(describe_flow(make()), describe_flow(make(1))) is None


def test_the_node_that_differs_is_named_not_those_above_it():
    def make(n):
        return BatchData(DataFromList([[k] for k in range(n)]), 2)

    assert (
        difference(describe_flow(make(20)), describe_flow(make(30)))
        == "a pass of DataFromList had 20 datapoints and has 30"
    )


def test_added_and_removed_parameters_are_named():
    assert difference(describe_flow(Node(a=1)), describe_flow(Node(b=2))) == "Node.a was 1 and is missing"


def test_a_state_says_nothing_of_code_in_what_cannot_be_described():
    deep = []
    for _ in range(70):
        deep = [deep]
    holding = Node()
    holding.call = functools.partial(scale, by=deep)
    for value in (deep, (scale, deep), type("Holding", (), {"call": functools.partial(scale, by=deep)})):
        assert "value" not in describe_flow(Node(value=value))["code"]
    assert "value" in describe_flow(Node(value=(scale, [1])))["code"]


# -- what a module has -------------------------------------------------------------------------------------------------


class Unpicklable:
    def __init__(self, size):
        self.size = size

    def __reduce__(self):
        raise TypeError


def imported(value):
    return describe_imported(value, frozenset(), frozenset())


def test_what_a_module_has_is_described_by_its_content(tmp_path):
    assert imported({Node(size=1)}) == imported({Node(size=1)}) != imported({Node(size=2)})
    assert imported(Unpicklable(1)) == imported(Unpicklable(1)) != imported(Unpicklable(2))
    assert imported([math]) == "list(module math)"


def test_a_file_in_memory_is_described_by_its_path(tmp_path):
    def mapped(name):
        return imported(np.memmap(tmp_path / name, np.uint8, "w+", shape=4))

    assert mapped("a") == mapped("a") != mapped("b")
    assert str(tmp_path / "a") in mapped("a")


def test_what_is_too_large_has_no_description(monkeypatch):
    assert imported(np.zeros(100)) is not None
    monkeypatch.setattr(fingerprints, "_MAX_BYTES", 799)
    assert imported(np.zeros(100)) is None
    monkeypatch.setattr(fingerprints, "_MAX_VALUES", 9)
    assert imported([0] * 9) is None and imported([0] * 8) is not None
