"""Figures of a flow, gathered from its nodes: which runner a node runs in, and whose time it takes."""

from dataclasses import replace

import pytest

from dataflow import BatchData, DataFromList, JoinData, MapData, MultiProcessMapData, MultiProcessRunner, ProxyDataFlow
from dataflow.observe.figures import Figures
from dataflow.observe.gathering import statistics_of
from tests.observe.made_up import runner, workers


class Runs(ProxyDataFlow):
    """Stands for a node whose workers run what is below."""

    figures = None

    def _df_figures(self):
        return self.figures


def numbers():
    return DataFromList([[1], [2]], shuffle=False)


@pytest.mark.parametrize("reads_input", [False, True])
def test_nodes_below_a_runner_in_a_worker_are_those_of_its_workers(reads_input):
    decode = MapData(numbers(), list)
    inner = MultiProcessMapData(decode, 2, list) if reads_input else MultiProcessRunner(decode, 10, 2)  # never started
    other = MapData(numbers(), list)
    joined = JoinData([inner, other])
    outer = Runs(joined)
    nodes = [joined, inner, decode, decode.ds, other, other.ds]
    inside = replace(runner(workers(2)), node=1, reads_input=reads_input, name="Inner")
    below = [3, 1] if reads_input else [0, 0]  # what runs in its workers is not seen from the outer one
    outer.figures = Figures(runner(workers(1)), nodes, [1, 1, *below, 2, 0], [inside])
    found = statistics_of(BatchData(outer, 2))
    assert [(one.name, one.node, one.outer) for one in found.runners] == [
        ("MultiProcessRunnerZMQ", 1, None),
        ("Inner", 3, 0),
    ]
    by_row = [(node.runner, node.share) for node in found.nodes[2:]]
    if reads_input:  # as a parallel map does, whose input stays outside of its workers
        assert by_row == [(0, 1 / 8), (0, 1 / 8), (0, 3 / 8), (0, 1 / 8), (0, 2 / 8), (0, 0)]
    else:
        assert by_row == [(0, 1 / 4), (0, 1 / 4), (1, None), (1, None), (0, 2 / 4), (0, 0)]


def test_rows_without_a_node_and_nodes_without_figures_have_none():
    class Broken(ProxyDataFlow):
        def _df_figures(self):
            raise AttributeError("before __init__")

    found = statistics_of(Broken(JoinData([numbers() for _ in range(100)])))
    assert found.runners == () and len(found.nodes) < 100


def test_a_runner_in_a_worker_that_the_chain_does_not_show_is_left_out():
    hidden = Runs(numbers())
    outer = Runs(numbers())
    inside = replace(runner(workers(1)), node=1)
    outer.figures = Figures(runner(workers(1)), [outer.ds, hidden], [1, 1], [inside])
    assert len(statistics_of(outer).runners) == 1
