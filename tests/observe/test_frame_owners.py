"""Frames of a stack are distinguished by node, also where nodes share code."""

import sys

import pytest

from dataflow import BatchData, BatchDataByShape, DataFlow, DataFromList, JoinData, MapData, ProxyDataFlow
from dataflow.observe.frame_owners import FrameOwners
from dataflow.protocol.passes import open_flow, root_stream, walk


class Reached(BaseException):
    """Ends the flow at the place whose stack was read; no node turns it into another error."""


class Reader:
    """Reads the stack of the thread that calls it."""

    def __init__(self):
        self.owners = self.found = None

    def read(self):
        if self.owners is not None:
            frame, stack = sys._getframe(1), []
            while frame is not None:
                stack.append(frame)
                frame = frame.f_back
            self.found = self.owners.innermost(stack)
            raise Reached


READER = Reader()


class Reads:
    """A component whose conversion to an array reads the stack."""

    def __array__(self, *args, **kwargs):
        READER.read()

    @property
    def shape(self):
        READER.read()


def reads(dp):
    READER.read()
    return dp


def other(dp):
    return dp


class Same(ProxyDataFlow):
    def __iter__(self):
        yield from self.steps()

    def steps(self):
        yield from self.ds


class Source(DataFlow):
    def __iter__(self):
        READER.read()
        yield [1]


def numbers():
    return DataFromList([[k] for k in range(8)], shuffle=False)


def unreadable():
    return DataFromList([[Reads()] for _ in range(64)], shuffle=False)


def by_shape(ds):
    return BatchDataByShape(ds, 2, 0)


CHAINS = {  # a flow, and the position of the node that is executed
    "a function": (lambda: BatchData(MapData(numbers(), reads), 2), 1),
    "a user's source below nodes of one class": (lambda: Same(Same(Source())), 2),
    "a batch, which is stacked elsewhere": (lambda: BatchData(unreadable(), 2), 0),
    "the inner one of two built-in nodes": (lambda: by_shape(by_shape(unreadable())), 1),
    "the inner one of three": (lambda: by_shape(by_shape(BatchData(by_shape(unreadable()), 2))), 3),
    "the second branch": (lambda: JoinData([BatchData(numbers(), 2), BatchData(MapData(numbers(), reads), 2)]), 4),
    "either of two branches": (lambda: JoinData([by_shape(unreadable()), by_shape(unreadable())]), None),
}


def executed(df):
    stream = root_stream(df)
    open_flow(df, stream)
    READER.owners, READER.found = FrameOwners(list(walk(df))), "not reached"
    try:
        with pytest.raises(Reached):
            list(df._df_run_pass(0, stream))
    finally:
        READER.owners = None
    return READER.found


@pytest.mark.parametrize("name", CHAINS)
def test_the_innermost_node_is_found(name):
    make, node = CHAINS[name]
    assert executed(make()) == node


def test_a_stack_without_nodes_belongs_to_none():
    assert FrameOwners(list(walk(MapData(numbers(), other)))).innermost([sys._getframe()]) is None
