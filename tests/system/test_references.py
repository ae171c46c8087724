"""What code reads and imports, and which library a module belongs to."""

import importlib
import sys
import types
from itertools import count

import numpy as np
import pytest

from dataflow.system.references import (
    MISSING,
    Variable,
    array_checksum,
    globals_of,
    held_by,
    imports_of,
    library_of,
    reads_of,
)

NUMBERS = count()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a new module or package, and returns its name."""
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(tmp_path)

    def make(source="", *, installed=False, **inside):
        name = f"module_{next(NUMBERS)}_of_references"
        folder = (tmp_path / "site-packages" if installed else tmp_path) / name
        folder.mkdir(parents=True)
        for path, text in {"__init__": source, **inside}.items():
            (folder / f"{path}.py").write_text(text)
        return name

    yield make
    for name in [name for name in sys.modules if "_of_references" in name]:
        del sys.modules[name]


def function_of(source, **namespace):
    exec(f"def function():\n    {source}", namespace)
    return namespace["function"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os.path; os.path.sep", ("os.path", 0, ("path", "sep"), True)),
        ("import os.path as p; p.sep", ("os.path", 0, (), False)),
        ("global os; import os.path", ("os.path", 0, (), True)),
        ("from os import path", ("os", 0, ("path",), False)),
        ("from . import path", ("", 1, ("path",), False)),
    ],
)
def test_an_import_inside_a_function_is_read(source, found):
    assert reads_of(function_of(source).__code__).imports == (found,)


def test_a_relative_import_is_that_of_the_package(module):
    package = module(inner="SIZE = 3")
    function = function_of("from .inner import SIZE", __package__=package)
    assert [variable.value for variable in imports_of(function, load=True)] == [3]


def test_a_module_of_a_package_is_loaded_only_where_that_is_asked_for(module):
    package = module(inner="SIZE = 3")
    function = function_of(f"from {package} import inner; inner.SIZE")
    assert [*imports_of(function, load=False)] == []
    assert [variable.value.SIZE for variable in imports_of(function, load=True)] == [3]


@pytest.mark.parametrize("error", ["AttributeError", "ModuleNotFoundError", "RuntimeError"])
def test_what_a_module_cannot_give_on_demand_is_missing(module, error):
    lazy = module(f"def __getattr__(name): raise {error}(name)")
    function = function_of("return lazy.extra.load()", lazy=importlib.import_module(lazy))
    assert [*globals_of(function)] == [Variable("lazy.extra", MISSING, lazy)]
    function = function_of(f"from {lazy} import extra")
    assert [*imports_of(function, load=True)] == [Variable(f"{lazy}.extra", MISSING, lazy)]


def test_what_a_module_gives_on_demand_is_followed(module):
    lazy = module("def __getattr__(name): return [name]")
    function = function_of("return lazy.extra", lazy=importlib.import_module(lazy))
    assert [*globals_of(function)] == [Variable("lazy.extra", ["extra"], lazy)]


def test_a_variable_of_an_outer_function_that_has_no_value_yet_is_missing():
    def function():
        return later

    assert [*held_by(function)] == [("later", MISSING)]
    later = 1
    assert [*held_by(function)] == [("later", 1)]


def test_a_library_that_nothing_has_installed_has_the_version_that_it_says(module):
    name = module("__version__ = '1.5'", installed=True)
    __import__(name)
    assert library_of(name) == f"{name} 1.5"
    name = module(installed=True)
    __import__(name)
    assert library_of(name) is None


def test_what_stands_for_a_module_belongs_to_no_library(monkeypatch):
    name = f"module_{next(NUMBERS)}_of_references"
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace())
    assert library_of(name) is None


def test_a_large_array_and_its_transpose_differ():
    array = np.random.default_rng(0).random((2048, 2048))
    assert array_checksum(array) != array_checksum(array.T)
    assert array_checksum(array) == array_checksum(array.copy())
