"""Gathers the figures of a flow: from its nodes, and from the runners among them that have started workers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from dataflow.observe.figures import Figures, FlowStatistics, NodeStatistics, RunnerStatistics
from dataflow.observe.report_page import Sample, page_of, png_of
from dataflow.observe.report_text import report_text
from dataflow.observe.representation import chain_rows
from dataflow.observe.tracing import trace_of
from dataflow.protocol.passes import walk

__all__ = ["report_of", "statistics_of", "write_trace"]

_NUM_SAMPLES: Final = 3
_MAX_SHOWN: Final = 80  # characters of a component


def statistics_of(df: Any, in_consumer: Mapping[int, float] | None = None) -> FlowStatistics:
    """The figures of the flow that ends with `df`.

    Args:
        df: The outermost node.
        in_consumer: Shares of nodes that run in the consumer, by the id of the node.
    """
    rows = chain_rows(df)
    position: dict[int, int] = {}  # of a node, by its id: where it stands first
    for k, row in enumerate(rows):
        if row.node is not None:
            position.setdefault(id(row.node), k)
    runners: list[RunnerStatistics] = []
    runs_in: dict[int, int] = {}  # row -> runner
    shares: dict[int, float] = {}
    for k, row in enumerate(rows):
        figures: Figures | None = None
        if row.node is not None and position[id(row.node)] == k:
            try:
                figures = row.node._df_figures()
            except Exception:  # a node whose __init__ was not completed
                figures = None
        if figures is None:
            continue
        outer = len(runners)
        runners.append(replace(figures.statistics, node=k))
        places = [position.get(id(node)) for node in figures.nodes]
        runs_in.update((place, outer) for place in places if place is not None)
        # The counters have words for a limited number of nodes, so there may be fewer samples.
        counts = {place: num for place, num in zip(places, figures.samples, strict=False) if place is not None}
        if num := sum(counts.values()):
            shares.update((place, count / num) for place, count in counts.items())
        for inner in figures.inner:
            place = places[inner.node]
            if place is not None:
                for node in _nodes_in_workers(figures.nodes[inner.node]):
                    if (below := position.get(id(node))) is not None:
                        runs_in[below] = len(runners)
                        shares.pop(below, None)
                runners.append(replace(inner, node=place, outer=outer))
    for k, row in enumerate(rows):
        if k not in runs_in and in_consumer and id(row.node) in in_consumer and position[id(row.node)] == k:
            shares[k] = in_consumer[id(row.node)]
    nodes = tuple(
        NodeStatistics(row.text, row.prefix, row.note, row.length, runs_in.get(k), shares.get(k))
        for k, row in enumerate(rows)
    )
    return FlowStatistics(nodes, tuple(runners))


def _nodes_in_workers(runner: Any) -> Iterator[Any]:
    """The nodes that the workers of a runner run; none for a map, whose workers call its function only."""
    return walk(runner.ds, everywhere=True) if runner._df_remote_inputs else iter(())


def report_of(df: Any, kind: type, path: str | os.PathLike[str] | None, in_consumer: Mapping[int, float]) -> str:
    """The report as text, or written as a page to `path`, which is returned; otherwise as for `statistics_of`."""
    statistics = statistics_of(df, in_consumer)
    if path is None:
        return report_text(statistics)
    name = os.fspath(path)
    if not name.endswith((".html", ".htm")):
        raise ValueError(
            f"report writes an HTML page, so path must end with .html, got {name!r}. For text, use report()"
        )
    with open(name, "w", encoding="utf-8") as file:
        file.write(page_of(statistics, _samples(df, kind)))
    return name


def write_trace(df: Any, path: str | os.PathLike[str]) -> None:
    """Write the trace of the flow that ends with `df`."""
    made = trace_of(statistics_of(df))
    with open(path, "w", encoding="utf-8") as file:
        json.dump(made, file)


# -- Sample datapoints -------------------------------------------------------------------------------------------------


def _samples(df: Any, kind: Any) -> list[list[Sample]]:
    """The first datapoints of the outermost node that can be addressed and has no workers, neither itself nor below.

    So no iteration is disturbed, and no worker is started for it.
    """
    for row in chain_rows(df):
        node = row.node
        try:
            # The property of `DataFlow`: a user's node may have an attribute of this name.
            if node is not None and not _has_workers(node) and kind.addressable.__get__(node, type(node)):
                return [_sample(kind.__getitem__(node, k)) for k in range(_NUM_SAMPLES)]
        except Exception:  # fewer datapoints, or a function that fails: the report is of use without samples
            continue
    return []


def _has_workers(node: Any) -> bool:
    return node._df_has_workers or any(map(_has_workers, node._df_inputs))


def _sample(dp: Any) -> list[Sample]:
    parts = dp.items() if isinstance(dp, dict) else enumerate(dp) if isinstance(dp, list | tuple) else [("", dp)]
    return [Sample(str(key), *_show(value)) for key, value in parts]


def _show(value: Any) -> tuple[str, bytes | None]:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        text = repr(value)
        return (text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"), None
    text = f"{dtype} {tuple(shape)}"
    return text, png_of(value) if hasattr(value, "tobytes") and value.size else None
