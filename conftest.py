"""What tests and doctests share: the names that an example may use, and the watch for what is left behind."""

import doctest
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest

import dataflow

pytest_plugins = ["tests.support.leaks", "tests.support.faults", "tests.support.seeds", "tests.support.shares"]

# Packages that some Python has no wheel of. Where one is not installed, a test that needs it is skipped.
MISSING = [package for package in ("h5py", "lmdb", "ray", "zstandard") if importlib.util.find_spec(package) is None]

# A deadline, or a check of how fast examples are made, would measure how busy the machine is.
hypothesis.settings.register_profile(
    "dataflow", deadline=None, print_blob=True, max_examples=40, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("dataflow")
hypothesis.settings.register_profile("full", hypothesis.settings.get_profile("dataflow"), max_examples=150)
hypothesis.settings.register_profile(  # for `make mutants`, which runs each test hundreds of times
    "mutants",
    hypothesis.settings.get_profile("dataflow"),
    max_examples=10,
    derandomize=True,
    database=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)

collect_ignore = ["tests/fuzz.py", "tests/mutants.py"]  # need atheris, mutmut

SLOW = frozenset(Path(__file__).with_name("tests").joinpath("slow.txt").read_text("utf-8").splitlines())


def pytest_configure(config: pytest.Config) -> None:
    is_full = "full" in config.getoption("markexpr").replace("not full", "")
    if is_full and config.getoption("--hypothesis-profile") is None:
        hypothesis.settings.load_profile("full")
    if sys.version_info >= (3, 15):  # where a fork counts the thread of pytest that watches over `faulthandler_timeout`
        config.addinivalue_line("filterwarnings", r"ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is marked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid in SLOW:
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    error = None if call.excinfo is None else call.excinfo.value
    if isinstance(error, doctest.UnexpectedException):
        error = error.exc_info[1]
    needed = [package for package in MISSING if isinstance(error, ImportError) and package in str(error)]
    if needed:
        report.outcome, report.longrepr = "skipped", (str(item.path), item.location[1], f"needs {needed[0]}")
    return report


@pytest.fixture(scope="session", autouse=True)
def names_for_doctests(doctest_namespace):
    doctest_namespace.update({name: getattr(dataflow, name) for name in getattr(dataflow, "__all__", ())})
    doctest_namespace.update(dataflow=dataflow, np=np)


@pytest.fixture(autouse=True)
def no_seed_left():
    """The root seed belongs to one test."""
    yield
    dataflow.seed(None)
