"""The root seed of the process, which no test may leave set."""

from collections.abc import Iterator

import pytest

import dataflow


@pytest.fixture
def unseeded() -> Iterator[None]:
    """Forget the root seed after the test."""
    yield
    dataflow.seed(None)
