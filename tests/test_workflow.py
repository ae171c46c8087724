"""What runs before a change is merged: the targets of the Makefile, the workflow, and the documents agree."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import costs, essential
from tests.__main__ import INTERRUPTS, parts_of

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_target_that_a_page_names_exists(page):
    named = re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text("utf-8"), re.MULTILINE)
    assert set(named) <= TARGETS


def test_every_target_is_listed_by_make_help():
    listed = re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE)
    assert set(listed) == TARGETS
    phony = re.search(r"^\.PHONY: (.+)", MAKEFILE, re.MULTILINE)
    assert set(phony[1].split()) == TARGETS


def test_what_is_required_of_a_change_is_one_target():
    assert "make ci" in (ROOT / ".ci" / "run").read_text("utf-8")
    dry = subprocess.run(["make", "-n", "ci"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "ruff check" in dry and "mypy --strict" in dry and "mkdocs build --strict" in dry
    assert '-m tests -m "not slow and not full"' in dry and '-m tests -m "slow and not full"' in dry


def test_the_essential_tests_exist_and_a_room_is_found_by_its_name():
    assert all((ROOT / path).exists() for path in (*essential.ONE, *essential.OTHER))
    assert essential.paths_of("transforms") == ["tests/transforms", "dataflow/transforms"]
    assert essential.paths_of("seeding") == ["tests/protocol/test_seeding.py", "dataflow/protocol/seeding.py"]
    with pytest.raises(SystemExit, match=r"no room 'kitchen'; there are .*transforms"):
        essential.paths_of("kitchen")


@pytest.mark.parametrize("mark", ["not slow and not full", "full or not full"])
def test_each_file_is_in_one_of_the_parts_that_run_at_a_time(mark):
    def is_in(part, file):
        ignored = [option.removeprefix("--ignore=") for option in part if option.startswith("--ignore=")]
        return any(file.startswith(place) for place in part) and not any(file.startswith(place) for place in ignored)

    parts = parts_of(["-m", mark])
    words = [part[part.index("-k") + 1] for part in parts if "-k" in part]
    once = [part for part in parts if "-k" not in part]
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    found = {file: sum(is_in(part, file) for part in once) for file in files}
    assert len(found) > 200 and {file for file in found if found[file] != 1} == ({INTERRUPTS} if words else set())
    assert not words or found[INTERRUPTS] == 0


SHARED = """
import pytest
from tests.support.shares import of_this_run, shared_inside

@pytest.mark.parametrize("k", [0, 1, *(pytest.param(k, marks=pytest.mark.full) for k in range(2, 9))])
def test_many(k): print("case", "many", k)

@pytest.mark.full
@pytest.mark.parametrize("k", range(2))
def test_few(k): print("case", "few", k)

@shared_inside
@pytest.mark.parametrize("k", range(3))
def test_inside(k):
    for number in of_this_run(range(4)): print("case", "inside", k, number)
"""


def test_three_runs_of_the_full_suite_take_each_case(tmp_path):
    tmp_path.joinpath("test_shared.py").write_text(SHARED)
    command = [sys.executable, "-m", "pytest", "-qs", "-W", "ignore", "-p", "tests.support.shares", "--randomly-seed"]

    def cases(seed, shares):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TEST_SHARES": shares}
        said = subprocess.run(
            [*command, seed], cwd=tmp_path, env=env, text=True, capture_output=True, check=True
        ).stdout
        return {tuple(line.split()[1:]) for line in re.findall("case .*", said)}

    everything = cases("5", "1")
    runs = [cases(str(seed), "3") for seed in range(3)]
    assert everything == set().union(*runs)
    always = set.intersection(*runs)
    assert always == {("many", "0"), ("many", "1"), ("few", "0"), ("few", "1")}
    assert sum(len(run - always) for run in runs) == len(everything - always) == 7 + 3 * 4


def test_every_slow_test_exists():
    names = costs.SLOW.read_text("utf-8").splitlines()
    assert names == sorted(set(names))
    assert not [name for name in names if " at 0x" in name], "these names are others in each run: give the cases ids"
    for name in names:
        path, *_, test = name.partition("[")[0].split("::")
        is_doctest = "." in test
        assert is_doctest or f"def {test}(" in (ROOT / path).read_text("utf-8"), name


def test_of_a_test_with_several_cases_one_stays_quick(tmp_path):
    logs = [tmp_path / "first.txt", tmp_path / "second.txt"]
    logs[0].write_text("0.9 a::with_cases[thread]\n0.1 a::with_cases[zmq]\n1.5 a::alone\n0.3 a::two[1]\n")
    logs[1].write_text("0.8 a::with_cases[thread]\n0.3 a::with_cases[zmq]\n0.9 a::alone\n0.2 a::two[2]\n")
    assert costs.slow_ones(costs.measured(logs)) == ["a::two[1]", "a::with_cases[thread]"]
    with_all = {"a::all[zmq]": 1.0, "a::all[fork]": 1.1, "a::alone": 2.0, "a::quick": 0.99}
    assert costs.slow_ones(with_all) == ["a::all[fork]", "a::all[zmq]", "a::alone"]


def test_the_essential_tests_need_nothing_heavy():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    names = {re.match(r"[a-z0-9_-]+", text)[0] for text in extras["quick"]}
    assert names.isdisjoint({"ray", "scikit-learn", "opencv-python-headless", "pandas", "torch"})
    assert set(extras["quick"]) <= set(extras["test"])


WITHOUT_HEAVY = """
import sys
for name in ("ray", "sklearn", "scipy", "cv2", "pandas", "torch"):
    sys.modules[name] = None
import pytest
sys.exit(pytest.main(["--collect-only", "-q", "tests"]))
"""


@pytest.mark.full
def test_all_tests_are_collected_without_heavy_packages():
    command = [sys.executable, "-c", WITHOUT_HEAVY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout


def test_the_workflow_runs_each_python_and_another_processor():
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    rows = workflow["jobs"]["test"]["strategy"]["matrix"]["include"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"]
    supported = {text.rpartition(" ")[2] for text in classifiers if re.search(r":: 3\.\d+$", text)}
    assert {row["python"] for row in rows} == supported
    assert [row["python"] for row in rows if row.get("optional")] == ["3.15"]
    assert any(row["machine"].endswith("-arm") for row in rows)
    for job in workflow["jobs"].values():
        commands = [step["run"] for step in job["steps"] if "run" in step]
        assert commands and all(command.split()[1] in TARGETS for command in commands)
