"""The version is in one place, from which the build reads it."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dataflow

ROOT = Path(__file__).parents[1]


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


def test_the_citation_has_the_version():
    assert f"\nversion: {dataflow.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
