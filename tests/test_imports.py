"""What is imported, and when: the package alone, the names that are used, and what a worker needs."""

import ast
import importlib
import importlib.util
import os
import pickle
import pydoc
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

import dataflow
from tests.support.waits import LIMIT

ROOT = Path(__file__).parents[1]
HEAVY = {"asyncio", "cloudpickle", "cv2", "h5py", "lmdb", "msgpack", "multiprocessing", "pandas", "ray", "scipy"}
HEAVY |= {"sklearn", "torch", "tqdm", "zmq", "pyarrow", "polars", "fsspec", "datasets", "webdataset"}
HEAVY |= {"PIL", "aiohttp", "jax", "libcst", "lightning", "torchdata"}
NOT_IN_ALL = {"TimeoutError", "__version__", "empty", "profile", "seed"}
REEXPORTED = ("TimeoutError", "__version__", "empty", "seed")

NODES = "dataflow.DataFromList, dataflow.MapData, dataflow.BatchData"
CHAIN = "list(dataflow.BatchData(dataflow.MapData(dataflow.DataFromList([[1], [2]]), list), 2))"
LOADED = "import sys; print(*sys.modules)"

LOOKING = """
import sys

def loaded(dp):
    return [" ".join(sys.modules)]
"""
WORKER = """
import sys
from looking import loaded

if __name__ == "__main__":
    from dataflow import DataFromList, MapData, MultiProcessRunner, MultiProcessRunnerZMQ
    ds = MapData(DataFromList([[k] for k in range(2)], shuffle=False), loaded)
    runner = {"pipes": lambda: MultiProcessRunner(ds, 2, 1, context="spawn"),
              "zmq": lambda: MultiProcessRunnerZMQ(ds, 1, context="spawn")}[sys.argv[1]]()
    with runner:
        print(next(iter(runner))[0])
"""


def run(*arguments):
    """Run a fresh interpreter, against this checkout whether or not it is installed."""
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": search_path},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(code):
    return set(run("-c", f"{code}\n{LOADED}").split())


def packages(modules):
    return {name.partition(".")[0] for name in modules}


def ours(modules):
    return {name for name in modules if name.startswith("dataflow.")}


def test_the_package_alone_loads_nothing():
    loaded = loaded_by("import dataflow")
    assert ours(loaded) == {"dataflow.old_places"}  # which answers imports of modules that tensorpack had
    assert packages(loaded).isdisjoint(HEAVY | {"numpy"})
    without = loaded_by("pass")  # an interpreter loads what its site-packages ask for
    assert packages(loaded - without) <= {"dataflow"} | sys.stdlib_module_names


@pytest.mark.parametrize(
    "code", [pytest.param(NODES, id="touched", marks=pytest.mark.full), pytest.param(CHAIN, id="iterated")]
)
def test_nodes_load_no_runner(code):
    loaded = loaded_by(f"import dataflow; {code}")
    assert packages(loaded).isdisjoint(HEAVY)
    assert {name.split(".")[1] for name in ours(loaded) if name.count(".") > 1} == {
        "protocol",
        "sources",
        "system",
        "transforms",
    }


def test_the_package_needs_no_more_than_it_did():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {re.match(r"[\w-]+", requirement)[0] for requirement in project["dependencies"]}
    assert needed == {"cloudpickle", "msgpack", "msgpack-numpy", "numpy", "pyzmq", "tqdm"}


def test_a_table_of_arrays_needs_no_other_package():
    loaded = loaded_by("import dataflow as d; list(d.TableData({'x': [1, 2]}, batch_size=2)); d.WebDatasetData")
    assert packages(loaded).isdisjoint(HEAVY - {"multiprocessing"})


def test_a_runner_without_sockets_loads_no_zmq():
    names = ["MultiProcessRunner", "MultiThreadRunner", "MultiProcessMapData", "SharedQ"]
    assert packages(loaded_by(f"from dataflow import {', '.join(names)}")).isdisjoint(HEAVY - {"multiprocessing"})


def test_a_runner_loads_no_more_of_the_reports_than_their_figures():
    loaded = ours(loaded_by("import dataflow; dataflow.MultiProcessRunnerZMQ; dataflow.RemoteDataZMQ"))
    reports = {"figures", "gathering", "report_page", "report_text", "tracing", "verdict"}
    assert {name.rpartition(".")[2] for name in loaded} & reports == {"figures"}


def test_the_runners_load_few_modules():
    loaded = ours(loaded_by("import dataflow; dataflow.MultiProcessRunnerZMQ; dataflow.MultiProcessRunner"))
    rooms = {name.rpartition(".")[0] for name in loaded}  # packages that are empty apart from their documentation
    assert len(loaded - rooms) <= 53, sorted(loaded - rooms)


@pytest.mark.parametrize(
    ("channel", "needed"),
    [
        ("pipes", {"multiprocessing"}),
        pytest.param("zmq", {"multiprocessing", "zmq"}, marks=pytest.mark.full),
    ],
)
def test_a_spawned_worker_loads_what_its_flow_needs(channel, needed, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WORKER)
    (tmp_path / "looking.py").write_text(LOOKING)  # what is defined in the script itself travels by cloudpickle
    loaded = run(str(script), channel).split()
    assert packages(loaded) & HEAVY == needed
    rooms = {name.split(".")[1] for name in ours(loaded)}
    assert rooms.isdisjoint({"compat", "formats", "ray", "remote"})
    assert not any(
        name.endswith((".runners.runners", ".maps", ".engine", ".display", ".speed")) for name in ours(loaded)
    )


def test_every_public_name_is_there_and_is_listed():
    names = {*dataflow.__all__, *NOT_IN_ALL}
    assert all(hasattr(dataflow, name) for name in names)
    assert names <= set(dir(dataflow))
    assert {name for name in dir(dataflow) if not name.startswith("_")} == names - {"__version__"}


def test_a_star_import_brings_all_names():
    names = {}
    exec("from dataflow import *", names)
    del names["__builtins__"]
    assert set(names) == set(dataflow.__all__)


def test_a_name_is_looked_up_once():
    code = f"import dataflow; assert 'MapData' not in vars(dataflow); {NODES}; assert 'MapData' in vars(dataflow)"
    run("-c", code)


@pytest.mark.parametrize("name", ["errors", "compat", "formats", "transforms"])
def test_rooms_are_reached_without_an_import_of_their_own(name):
    run("-c", f"import dataflow, types; assert isinstance(dataflow.{name}, types.ModuleType)")


@pytest.mark.parametrize("name", ["MapDatta", "_private", "__wrapped__", "no such name"])
def test_a_name_that_is_not_there_raises_as_of_any_module(name):
    with pytest.raises(AttributeError, match=f"module 'dataflow' has no attribute '{name}'"):
        getattr(dataflow, name)
    with pytest.raises(ImportError):
        exec(f"from dataflow import {name.replace(' ', '')}")


def test_a_package_that_is_missing_is_not_taken_for_a_name_that_is(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "dataflow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy.typing", None)
    fresh = importlib.import_module("dataflow")
    with pytest.raises(ModuleNotFoundError, match=r"numpy\.typing"):
        fresh.MapData  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"numpy\.typing"):
        fresh.testing  # noqa: B018


def test_classes_are_pickled_by_the_module_that_defines_them():
    for name in dataflow.__all__:
        value = getattr(dataflow, name)
        assert not isinstance(value, types.ModuleType)
        assert pickle.loads(pickle.dumps(value)) is value


@pytest.mark.full
def test_a_type_checker_knows_every_name_and_no_other():
    api = pytest.importorskip("mypy.api")
    names = sorted({*dataflow.__all__, *NOT_IN_ALL})
    code = "\n".join(["import dataflow", *(f"print(dataflow.{name})" for name in names), "dataflow.MapDatta"])
    out, _, _ = api.run(["--strict", "--follow-imports=silent", "--config-file=", "--no-incremental", "-c", code])
    errors = [line for line in out.splitlines() if "error:" in line]
    assert len(errors) == 1, out
    assert 'Module has no attribute "MapDatta"' in errors[0]


def test_forty_lines_of_help_show_signature_parameters_and_example():
    lines = pydoc.render_doc(dataflow.ParallelData, renderer=pydoc.plaintext).splitlines()[:40]
    parts = ["ParallelData(", "ds: DataFlow", "num_workers: ", "Example:", ">>> with ParallelData(df, 2)", "Args:"]
    assert re.search(".*?".join(map(re.escape, parts)), "\n".join(lines), re.DOTALL)


def test_a_type_checker_may_take_each_name_from_the_package():
    """Without implicit re-export a type checker accepts `import X as X` only, or what `__all__` lists."""
    source = (ROOT / "dataflow" / "__init__.py").read_text()
    aliases = [
        alias for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    explicit = {alias.name for alias in aliases if alias.asname == alias.name}
    assert explicit >= set(REEXPORTED)
    assert not set(REEXPORTED) & set(dataflow.__all__)
    assert all(hasattr(dataflow, name) for name in REEXPORTED)


PROGRAM = """
import dataflow
from dataflow import BatchData, DataFromList, TimeoutError, __version__, empty, seed

seed(1)
dataflow.seed(None)
text: str = dataflow.__version__ + __version__
array = empty((2, 3), "f4")
shape: tuple[int, ...] = dataflow.empty(3).shape
try:
    for dp in BatchData(DataFromList([[1], [2]]), 2):
        pass
except (TimeoutError, dataflow.TimeoutError):
    pass
"""


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_a_strictly_checked_program_may_use_them(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(program)]
    found = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
