"""Imports from where names were in tensorpack.dataflow: the error says that everything is at the top level."""

import importlib
import importlib.util
import re
import subprocess
import sys

import pytest

import dataflow
from dataflow import old_places

MISSING = [
    "base",
    "common",
    "dataflow",
    "dftools",
    "format",
    "parallel",
    "parallel_map",
    "prefetch",
    "raw",
    "serialize",
]
LEFT_OUT = ["image", "imgaug", "dataset", "utils"]
EXISTING = [  # room, and a name of tensorpack's that stands elsewhere here
    ("remote", "send_dataflow_zmq"),
    ("remote", "RemoteDataZMQ"),
]


@pytest.mark.parametrize("module", MISSING)
def test_a_module_that_is_gone_names_the_import_to_write(module):
    statements = (
        f"import dataflow.{module}",
        f"from dataflow.{module} import Anything",
        f"from dataflow import {module}",
    )
    for statement in statements:
        with pytest.raises(
            ModuleNotFoundError, match=r"everything (public )?is at the top level, as in from dataflow import"
        ):
            exec(statement, {})
    assert f"dataflow.{module}" not in sys.modules


@pytest.mark.parametrize("module", MISSING)
def test_the_import_that_is_named_works(module):
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(f"dataflow.{module}")
    exec(str(caught.value).partition(" as in ")[2], {})


@pytest.mark.parametrize("module", LEFT_OUT)
def test_a_module_that_is_left_out_names_what_to_use(module):
    for statement in (
        f"import dataflow.{module}",
        f"from dataflow import {module}",
        f"from dataflow.{module} import X",
    ):
        with pytest.raises(
            ModuleNotFoundError, match=rf"no dataflow.{module}\. .* left out.*(MapData|DataFromList|seed)"
        ):
            exec(statement, {})


@pytest.mark.parametrize(("module", "name"), EXISTING)
def test_a_module_that_has_another_meaning_names_the_import_to_write(module, name):
    with pytest.raises(ImportError, match=rf"{name} is not in dataflow.{module}: .* from dataflow import {name}$"):
        exec(f"from dataflow.{module} import {name}", {})
    exec(f"from dataflow import {name}", {})


@pytest.mark.parametrize("module", ["remote"])
def test_what_nobody_ever_had_is_an_ordinary_error(module):
    found = importlib.import_module(f"dataflow.{module}")
    assert not hasattr(found, "Nothing") and not hasattr(found, "__warningregistry_of_nobody__")
    with pytest.raises(AttributeError, match=f"module 'dataflow.{module}' has no attribute 'Nothing'"):
        found.Nothing  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec(f"from dataflow.{module} import Nothing", {})


def test_modules_of_ours_are_found():
    for statement in (
        "from dataflow.protocol.base import DataFlow",
        "from dataflow.runners import runners",
        "import dataflow.remote",
    ):
        exec(statement, {})
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'dataflow\.nothing'"):
        importlib.import_module("dataflow.nothing")
    with pytest.raises(ModuleNotFoundError, match="No module named 'nothing'"):
        importlib.import_module("nothing")
    assert importlib.util.find_spec("nothing") is None


def test_it_is_asked_last_and_once():
    old_places.watch()
    assert sys.meta_path.count(old_places.OldPlaces) == 1
    code = "import sys, dataflow; print(sys.meta_path[-1].__name__)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == ["OldPlaces"]


def test_a_module_of_that_name_that_a_user_has_added_is_found(tmp_path, monkeypatch):
    (tmp_path / "common.py").write_text("x = 5")
    monkeypatch.setattr(dataflow, "__path__", [*dataflow.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "dataflow.common", raising=False)
    assert importlib.import_module("dataflow.common").x == 5
    del sys.modules["dataflow.common"], dataflow.common  # not by monkeypatch, which would put them back


OLD = {  # what was in one folder or file before, in the words of the table
    f"dataflow.{old}": f"dataflow.{room}.{name or old.rpartition('.')[2]}"
    for room, modules in old_places._NOW_IN.items()
    for old, _, name in (module.partition("=") for module in modules.split())
}


@pytest.mark.parametrize("old", OLD)
def test_a_module_that_has_moved_names_its_new_place(old):
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(old)
    assert re.search(rf"\b{re.escape(OLD[old])}\b", str(caught.value))
    assert importlib.util.find_spec(OLD[old]) is not None
    exec(str(caught.value).partition(" as in ")[2], {})
