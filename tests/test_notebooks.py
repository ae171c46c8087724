"""Notebooks: the tour has the outputs that it shows, and the cells of the page about notebooks run, as in a kernel.

The cells run in a process whose main program is no file, as that of a kernel. Where nbclient and a kernel are
installed, the tour runs in that, too; ``jupyter nbconvert --execute --inplace examples/tour.ipynb`` renews its outputs.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOUR = ROOT / "examples" / "tour.ipynb"
PAGE = ROOT / "docs" / "howto" / "notebooks.md"
TIMEOUT = 120.0  # seconds for all cells
BLOCK = re.compile(r"^<!-- not run -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

KERNEL = """
import ast, contextlib, io, json, multiprocessing, sys, types

cells, method = json.load(open(sys.argv[1])), sys.argv[2]
multiprocessing.set_start_method(method)
main = types.ModuleType("__main__")
sys.modules["__main__"] = main
outputs = []
for number, cell in enumerate(cells):
    name = f"<ipython-input-{number}>"
    tree = ast.parse(cell, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(tree, name, "exec"), vars(main))
        value = eval(compile(ast.Expression(last.value), name, "eval"), vars(main)) if last is not None else None
    outputs.append([out.getvalue(), "" if value is None else repr(value)])
json.dump(outputs, sys.stdout)
"""


def code_cells():
    return [cell for cell in json.loads(TOUR.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


def is_compared(cell):
    return "not-compared" not in cell["metadata"].get("tags", [])


def outputs_of(cell):
    """What a cell has printed, and the text of its value."""
    printed, value = "", ""
    for output in cell["outputs"]:
        assert output["output_type"] in {"stream", "execute_result"}, output
        if output["output_type"] == "stream":
            assert output["name"] == "stdout", "".join(output["text"])
            printed += "".join(output["text"])
        else:
            value += "".join(output["data"]["text/plain"])
    return [printed, value]


def run_cells(cells, method, folder):
    (folder / "cells.json").write_text(json.dumps(cells), "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", KERNEL, "cells.json", method],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
def test_the_tour_has_the_outputs_that_it_shows(method, tmp_path):
    cells = code_cells()
    outputs = run_cells(["".join(cell["source"]) for cell in cells], method, tmp_path)
    for cell, output in zip(cells, outputs, strict=True):
        assert not is_compared(cell) or output == outputs_of(cell), "".join(cell["source"])


def test_the_tour_is_a_valid_notebook_with_outputs():
    notebook = json.loads(TOUR.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert [cell["execution_count"] for cell in code_cells()] == list(range(1, len(code_cells()) + 1))
    assert sum(bool(cell["outputs"]) for cell in code_cells()) == len(code_cells())


def test_the_tour_runs_in_a_kernel(tmp_path, monkeypatch):
    pytest.importorskip("ipykernel")
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    command = [sys.executable, "-c", EXECUTE.format(str(TOUR)), nbclient.__name__, nbformat.__name__]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ran = [cell for cell in json.loads(done.stdout)["cells"] if cell["cell_type"] == "code"]
    for cell, before in zip(ran, code_cells(), strict=True):
        assert not is_compared(cell) or outputs_of(cell) == outputs_of(before), "".join(cell["source"])


# In a process of its own: the client and its kernel leave sockets and threads behind.
EXECUTE = """
import nbclient, nbformat
notebook = nbformat.read({!r}, as_version=4)
nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
print(nbformat.writes(notebook))
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
def test_the_page_about_notebooks_runs_as_a_notebook(method, tmp_path):
    cells = BLOCK.findall(PAGE.read_text("utf-8"))
    assert len(cells) == PAGE.read_text("utf-8").count("```python")
    outputs = run_cells(cells, method, tmp_path)
    assert [printed for printed, _ in outputs if printed] == ["[0, 1, 2]\n"]


def test_a_notebook_with_lambdas_and_classes_takes_fifteen_lines():
    first = BLOCK.findall(PAGE.read_text("utf-8"))[0]
    assert "lambda" in first and "class" in first and 'context="spawn"' in first
    assert len(textwrap.dedent(first).splitlines()) <= 15


REPORTS = [
    """
from dataflow import BatchData, DataFromList, MapData, ParallelData
df = BatchData(ParallelData(MapData(DataFromList([[k] for k in range(40)]), lambda dp: dp), 1, context="fork"), 2)
""",
    "print(df.report().splitlines()[0].split()[0], df.statistics().runners)",
    """
import threading
def watch():
    while not over.is_set():
        df.statistics(), df.report()
over, watcher = threading.Event(), threading.Thread(target=watch)
watcher.start()
datapoints = list(df)
over.set()
watcher.join()
""",
    "print(df.statistics().runners[0].datapoints)\ndf.close()",
    "print(df.statistics().runners[0].datapoints, df.report('report.html'))",
]


def test_figures_and_reports_work_in_cells(tmp_path):
    outputs = run_cells(REPORTS, "fork", tmp_path)
    assert [printed for printed, _ in outputs] == ["", "node ()\n", "", "40\n", "40 report.html\n"]
    assert (tmp_path / "report.html").exists()
