"""The contract of all nodes, checked for every source."""

import pytest

from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromAsyncIterable, DataFromGenerator, DataFromIterable
from dataflow.sources.synthetic import FakeData
from tests.support.contract import check_node, listed


def count():
    for k in range(6):
        yield [k]


async def arriving():
    for k in range(6):
        yield [k]


SOURCES = {
    "DataFromAsyncIterable": (lambda: DataFromAsyncIterable(arriving), {"addressable": False}),
    "DataFromGenerator": (lambda: DataFromGenerator(count), {"addressable": False}),
    "DataFromIterable": (lambda: DataFromIterable(range(6)), {"addressable": False}),
    "DataFromList": (lambda: DataFromList([[k] for k in range(6)], shuffle=False), {}),
    "DataFromList shuffle": (lambda: listed(tuple), {}),
    "DataFromList packed": (lambda: DataFromList([[k] for k in range(6)], packed=True), {}),
    "DataFromList seed": (lambda: DataFromList(range(6), seed=3), {}),
    "FakeData": (lambda: FakeData([(2, 2), ()], size=5), {}),
    "FakeData repeated": (lambda: FakeData([(2, 2)], size=5, random=False), {}),
}


@pytest.mark.parametrize(("make", "traits"), SOURCES.values(), ids=SOURCES)
def test_the_source_keeps_the_contract(make, traits):
    check_node(make, source=True, **traits)
