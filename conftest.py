"""What tests and doctests share: the names that an example may use, and the watch for what is left behind."""

import hypothesis
import numpy as np
import pytest

import dataflow

pytest_plugins = ["tests.support.leaks", "tests.support.faults", "tests.support.seeds"]

# A deadline, or a check of how fast examples are made, would measure how busy the machine is.
hypothesis.settings.register_profile(
    "dataflow", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("dataflow")


@pytest.fixture(scope="session", autouse=True)
def names_for_doctests(doctest_namespace):
    doctest_namespace.update({name: getattr(dataflow, name) for name in getattr(dataflow, "__all__", ())})
    doctest_namespace.update(dataflow=dataflow, np=np)
