"""The share of the full suite that one run takes: another in each, so that a few runs take all of it.

Whole products of cases, and interrupts at every line, take hours. Of the cases of a test that are marked `full`,
`make test-full` takes every third: from the first, the second or the third on, as the seed of the run says
(``--randomly-seed``). With SHARES=1 it takes all.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["of_this_run", "shared_inside"]

_SHARES = int(os.environ.get("TEST_SHARES", "1"))
_first = [0]  # of the cases of each test

shared_inside = pytest.mark.full(is_shared=True)
"""Marks a test that is run in full only and takes `of_this_run` itself."""


def of_this_run(cases: Sequence[Any]) -> list[Any]:
    """Those of the cases that this run takes."""
    return list(cases[_first[0] :: _SHARES] if len(cases) >= _SHARES else cases)


@pytest.hookimpl(trylast=True)  # the plugin that has the seed decides on it first
def pytest_configure(config: pytest.Config) -> None:
    _first[0] = int(config.getoption("randomly_seed", 0)) % _SHARES


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("full")
        if mark is not None and not mark.kwargs.get("is_shared"):
            cases[item.nodeid.partition("[")[0]].append(item)
    taken = {item for some in cases.values() for item in of_this_run(sorted(some, key=lambda item: item.nodeid))}
    left_out = {item for some in cases.values() for item in some} - taken
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
