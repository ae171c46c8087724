"""What is written is run: every Python block of the README and of docs/ works, in the order of its page.

The blocks of a page make one script, which runs in a folder and a process of its own, forked from one that has imported
this package; it keeps the page's line numbers, so a traceback points into it. A block below `<!-- not run -->` is only
compiled, and so is a block below `<!-- needs: name, name -->` where one of these packages is not installed. In a page
that runs blocks of the latter kind, warnings are no errors: they may be those of the packages.
"""

import ast
import importlib.util
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.faults import deadline

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TIMEOUT = 300.0  # seconds for the blocks of one page

BLOCK = re.compile(
    r"(?:^[ \t]*<!-- (?:(?P<unrun>not run)|needs: (?P<needs>[\w., ]+?)) -->\s*\n)?"
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,})python\b[^\n]*\n"
    r"(?P<code>.*?)"
    r"^(?P=indent)(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    line: int  # of the first line of code, counted from 0
    code: str
    is_run: bool
    needs: str = ""  # packages without which it is not run


def blocks_of(text: str) -> list[Block]:
    return [
        Block(
            line=text.count("\n", 0, match.start("code")),
            code=textwrap.dedent(match["code"]),
            is_run=match["unrun"] is None and all(map(is_installed, re.findall(r"[\w.]+", match["needs"] or ""))),
            needs=match["needs"] or "",
        )
        for match in BLOCK.finditer(text)
    ]


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package.partition(".")[0]) is not None


def script_of(blocks: list[Block]) -> str:
    lines: list[str] = []
    for block in blocks:
        if block.is_run:
            lines += [""] * (block.line - len(lines))
            lines += block.code.splitlines()
    return "\n".join(lines) + "\n" if lines else ""


def run_script(source: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = folder / "page.py"
    script.write_text(source, "utf-8")
    return subprocess.run(
        [sys.executable, *(options or ("-W", "error")), str(script)],
        cwd=folder,
        timeout=TIMEOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )


FORKING = """
import os, runpy, sys, warnings
import numpy, dataflow.runners.maps, dataflow.runners.runners

for line in sys.stdin:
    filters, folder = line.rstrip("\\n").split(" ", 1)
    if pid := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        continue
    os.chdir(folder)
    for descriptor, name in enumerate((os.devnull, "log", "log")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND), descriptor)
    sys.path[0], sys.warnoptions[:] = folder, [filters]
    warnings.simplefilter(filters)
    runpy.run_path(os.path.join(folder, "page.py"), run_name="__main__")
    break
"""


@pytest.fixture(scope="module")
def forking():
    """A process that runs `page.py` of the folder which it is told, in a fork."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def pages_with(is_wanted) -> list[object]:
    return [
        pytest.param(page, id=page.relative_to(ROOT).as_posix())
        for page in PAGES
        if page.exists() and any(map(is_wanted, blocks_of(page.read_text("utf-8"))))
    ]


@pytest.mark.parametrize("page", pages_with(lambda block: block.is_run))
def test_the_code_of_a_page_runs(page, tmp_path, forking):
    blocks = blocks_of(page.read_text("utf-8"))
    filters = "default" if any(block.is_run and block.needs for block in blocks) else "error"
    (tmp_path / "page.py").write_text(script_of(blocks), "utf-8")
    print(filters, tmp_path, file=forking.stdin, flush=True)
    with deadline(TIMEOUT):
        code = forking.stdout.readline()
    assert code == "0\n", f"the code of {page} failed:\n{(tmp_path / 'log').read_text()}"


# -- ten tasks of a newcomer -------------------------------------------------------------------------------------------

MAX_LINES = 15  # that are not empty
TASKS = {
    # the page in docs/howto, and text that only the block of the task has
    "a folder of images to batches": ("images-in-folders", "MultiProcessMapData(df, 2, decode"),
    "parquet to batches": ("tables-and-shards", "block_shuffle=200"),
    "a Hugging Face dataset with token lists to padded batches on torch": ("text", "datasets.Dataset.from_dict"),
    "WebDataset shards to a strict runner": ("tables-and-shards", "num_workers=2, strict=True"),
    "pandas to mini-batches": ("tables-and-shards", "pandas.DataFrame"),
    "a weighted mixture, resumed under another number of workers": ("weights-and-mixtures", "num_workers=3"),
    "torch DataLoader with 2 workers and 2 ranks": ("train-with-pytorch", "num_workers=2"),
    "StatefulDataLoader, resumed": ("train-with-pytorch", "resumed.load_state_dict"),
    "a Lightning trainer": ("train-with-pytorch", "trainer.fit"),
    "a notebook with lambdas and classes of its own under spawn": (
        "notebooks",
        "class Sample",
    ),  # see test_notebooks.py
}


def imported_by(code: str) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(alias.asname or alias.name).partition(".")[0] for node in nodes for alias in node.names}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_takes_fifteen_lines_with_its_imports(task):
    name, text = TASKS[task]
    blocks = blocks_of((ROOT / "docs" / "howto" / f"{name}.md").read_text("utf-8"))
    (block,) = [block for block in blocks if text in block.code]
    assert name == "notebooks" or block.is_run or block.needs, "nothing runs it"
    assert sum(bool(line.strip()) for line in block.code.splitlines()) <= MAX_LINES
    used = {node.id for node in ast.walk(ast.parse(block.code)) if isinstance(node, ast.Name)}
    elsewhere = {found for other in blocks for found in imported_by(other.code)} - imported_by(block.code)
    assert not used & elsewhere


@pytest.mark.parametrize("page", pages_with(lambda block: not block.is_run))
def test_code_that_is_not_run_compiles(page):
    for block in blocks_of(page.read_text("utf-8")):
        compile("\n" * block.line + block.code, str(page), "exec")


PAGE = """\
# A page

```python
count = 1
```

<!-- not run -->
```python
count = never_defined
```

- in a list:

    ```python title="two.py"
    if __name__ == "__main__":
        assert count == 1
        print("line", __import__("sys")._getframe().f_lineno)
    ```

```console
$ never run
```
"""


def test_the_blocks_of_a_page_share_names_and_keep_its_line_numbers(tmp_path):
    result = run_script(script_of(blocks_of(PAGE)), tmp_path)
    assert result.stdout == "line 17\n"
    assert result.returncode == 0


def test_a_block_that_fails_is_noticed(tmp_path):
    result = run_script(script_of(blocks_of(PAGE.replace("count == 1", "count == 2"))), tmp_path)
    assert result.returncode == 1
    assert 'page.py", line 16' in result.stdout


def test_a_block_runs_only_where_the_packages_that_it_needs_are_installed(tmp_path):
    page = """
<!-- needs: json, sys -->
```python
print("json")
```

<!-- needs: json, no_such_package -->
```python
print("missing")
```
"""
    blocks = blocks_of(page)
    assert [block.is_run for block in blocks] == [True, False]
    assert run_script(script_of(blocks), tmp_path).stdout == "json\n"


def test_workers_can_import_the_script_of_a_page(tmp_path):
    page = """
```python
import multiprocessing

def double(x):
    return 2 * x

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [21]))
```
"""
    assert run_script(script_of(blocks_of(page)), tmp_path).stdout == "[42]\n"
