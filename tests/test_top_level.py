"""What `import dataflow` offers beside the names of `__all__`: the version, and names that no star import brings."""

import ast
import importlib.util
import pydoc
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dataflow

ROOT = Path(__file__).parents[1]
REEXPORTED = ("TimeoutError", "__version__", "empty", "seed")

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


def test_the_version_is_a_literal_that_the_build_reads():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"] and "version" in project["project"]["dynamic"]
    module, _, name = project["tool"]["setuptools"]["dynamic"]["version"]["attr"].rpartition(".")
    source = (ROOT / Path(*module.split("."))).with_suffix(".py").read_text()
    # The build does not import the package, whose dependencies it does not have.
    literals = {
        statement.target.id: ast.literal_eval(statement.value)
        for statement in ast.parse(source).body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and statement.value is not None
    }
    assert dataflow.__version__ == literals[name]
    assert dataflow.__version__.split(".")[0].isdecimal()


def test_the_build_finds_the_version():
    pytest.importorskip("setuptools", minversion="77")
    code = "from setuptools.config.pyprojecttoml import read_configuration as r; print(r('pyproject.toml')['project'])"
    found = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert f"'version': '{dataflow.__version__}'" in found.stdout, found.stderr


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


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_a_strictly_checked_program_may_use_them(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(program)]
    found = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
