"""What decides which datapoints a flow yields is in its description, and what decides nothing is not."""

import functools
import importlib.machinery
import json
import math
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from dataflow import BatchData, DataFlow, DataFromList, FakeData, MapData, RandomChooseData, ShardData
from dataflow.protocol import fingerprints
from dataflow.protocol.fingerprints import describe, describe_flow, describe_imported, difference
from tests.protocol.described_programs import CHANGES, EQUAL, OF_LIBRARIES, REFUSED, described, variants

ROOT = Path(__file__).parents[2]


class Node(DataFlow):
    def __init__(self, **parameters):
        vars(self).update(parameters)

    def method(self):
        return self


def scale(dp, by=1):
    return dp


def text(value):
    return describe_flow(Node(value=value))["parameters"]["value"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, "5"),
        (True, "True"),
        (float("nan"), "nan"),
        (np.float32(0.5), "0.5"),
        (np.dtype(">i4"), "dtype('>i4')"),
        ([1, ("a", None)], "[1, ['a', None]]"),
        ({"a": 1}, "{'a': 1}"),
        (scale, "scale"),
        (functools.partial(scale, by=2), "partial(scale, [], {'by': 2})"),
        (Node().method, "Node.method"),
        (np.zeros(3), "ndarray"),
        (list(range(33)), "list"),
        (object(), "object"),
        ("x" * 500, "'" + "x" * 199 + "… of 502"),
    ],
    ids=str,
)
def test_a_parameter_is_a_text_without_an_address(value, expected):
    assert text(value) == expected


def test_flows_are_inputs_and_private_attributes_are_ignored():
    flow = DataFromList([[1]])
    found = describe_flow(Node(ds=flow, many=[flow], named={"a": flow}, _private=5))
    assert found["parameters"] == {"seed": "None"}
    assert [ds["type"] for ds in found["inputs"]] == ["DataFromList"]
    assert "df_lists" not in describe_flow(RandomChooseData([(flow, 1.0)]))["parameters"]


def test_a_description_is_the_same_after_json():
    df = BatchData(MapData(FakeData([(2, 3)], 20, dtype="uint8"), scale), 4)
    assert json.loads(json.dumps(describe_flow(df))) == describe_flow(df)


def test_a_description_of_the_same_chain_does_not_differ():
    def make(rank=0):
        return BatchData(MapData(ShardData(DataFromList(range(9)), rank, 2), scale, max_failures=rank), 2)

    assert difference(describe_flow(make()), describe_flow(make(1))) is None


def test_the_node_that_differs_is_named_not_those_above_it():
    def make(n):
        return BatchData(DataFromList([[k] for k in range(n)]), 2)

    assert (
        difference(describe_flow(make(20)), describe_flow(make(30)))
        == "a pass of DataFromList had 20 datapoints and has 30"
    )


def test_added_and_removed_parameters_are_named():
    assert difference(describe_flow(Node(a=1)), describe_flow(Node(b=2))) == "Node.a was 1 and is missing"


def test_a_state_says_nothing_of_code_in_what_cannot_be_described():
    deep = []
    for _ in range(70):
        deep = [deep]
    holding = Node()
    holding.call = functools.partial(scale, by=deep)
    for value in (deep, (scale, deep), type("Holding", (), {"call": functools.partial(scale, by=deep)})):
        assert "value" not in describe_flow(Node(value=value))["code"]
    assert "value" in describe_flow(Node(value=(scale, [1])))["code"]


# -- what a module has -------------------------------------------------------------------------------------------------


class Unpicklable:
    def __init__(self, size):
        self.size = size

    def __reduce__(self):
        raise TypeError


def imported(value):
    return describe_imported(value, frozenset(), frozenset())


def test_what_a_module_has_is_described_by_its_content(tmp_path):
    assert imported({Node(size=1)}) == imported({Node(size=1)}) != imported({Node(size=2)})
    assert imported(Unpicklable(1)) == imported(Unpicklable(1)) != imported(Unpicklable(2))
    assert imported([math]) == "list(module math)"


def test_a_file_in_memory_is_described_by_its_path(tmp_path):
    def mapped(name):
        return imported(np.memmap(tmp_path / name, np.uint8, "w+", shape=4))

    assert mapped("a") == mapped("a") != mapped("b")
    assert str(tmp_path / "a") in mapped("a")


def test_what_is_too_large_has_no_description(monkeypatch):
    assert imported(np.zeros(100)) is not None
    monkeypatch.setattr(fingerprints, "_MAX_BYTES", 799)
    assert imported(np.zeros(100)) is None
    monkeypatch.setattr(fingerprints, "_MAX_VALUES", 9)
    assert imported([0] * 9) is None and imported([0] * 8) is not None


# -- whatever decides what a function returns, and what decides nothing ------------------------------------------------


def test_the_table_is_large_enough():
    assert sum(len(list(variants(row))) - 1 for row in CHANGES) >= 200
    assert len(EQUAL) >= 60


@pytest.mark.parametrize("row", CHANGES, ids=range(len(CHANGES)))
def test_a_change_is_noticed(row):
    found = {}
    for source in variants(row):
        assert found.setdefault(described(source), source) == source


@pytest.mark.parametrize("row", OF_LIBRARIES, ids=range(len(OF_LIBRARIES)))
def test_a_change_of_what_a_library_made_is_noticed(row):
    pytest.importorskip(re.split(r"[ .\n]", row)[1])
    found = {}
    for source in variants(row):
        text = described(source)
        assert found.setdefault(text, source) == source
        assert described(source) == text


def test_a_function_of_an_extension_module_of_the_program_changes_with_its_file(tmp_path, monkeypatch):
    """Of one without a module to compile: a function of `math` says that it is from there."""
    module = types.ModuleType("extension_of_the_program")
    module.__file__ = str(tmp_path / f"it{importlib.machinery.EXTENSION_SUFFIXES[0]}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(math.cbrt, "__module__", module.__name__)
    found = set()
    for content in ("one", "other", "third one"):
        Path(module.__file__).write_text(content)
        found.add(describe(MapData(DataFromList([[1]]), math.cbrt)))
    assert len(found) == 3


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.split("\n")[0])
def test_what_cannot_be_described_is_refused_with_the_cure(row):
    message, source = row.split("\n", 1)
    with pytest.raises(TypeError, match=rf"{message}.*fingerprint="):
        described(source)


@pytest.mark.parametrize("row", EQUAL, ids=range(len(EQUAL)))
def test_what_decides_nothing_changes_nothing(row):
    found = [described(source) for source in variants(row)]
    assert found == [found[0]] * len(found)


# -- modules, processes ------------------------------------------------------------------------------------------------

PROGRAM = """
import enum, functools, logging, os, re, sys
import numpy as np
import project.config as config
from project import tools
from dataflow import *

log = logging.getLogger(__name__)
SIZES = {"small", "large", "huge", 3, (1, 2)}

class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"

class Scale:
    by = {Mode.FAST, Mode.SLOW}
    def __init__(self, k): self.k = k
    def __call__(self, dp): return [dp[0] * self.k * config.SIZE, len(SIZES)]

def late(dp):
    from project.tools import twice
    import project.later
    return [twice(k) for k in dp] + [project.later.ONE]

def build():
    df = DataFromList([[1], [2]], shuffle=False)
    df = MapData(MapData(df, Scale(2)), lambda dp: [tools.twice(dp[0]), *dp])
    return MapDataComponent(MapData(df, late), {2: 3}.get, 1)
"""
CONFIG = "SIZE = 224\nUNUSED = 1\n"
TOOLS = "FACTOR = 2\ndef twice(x): return x * FACTOR\n"
LATER = "ONE = 1\n"
MAIN = """
if __name__ == '__main__':
    from dataflow.protocol.fingerprints import describe
    print(describe(build()))
"""


@pytest.fixture
def project(tmp_path):
    """A function that writes a program of several modules, and returns the description that a new process finds."""

    def run(*, program=PROGRAM, way=("job.py",), hash_seed="0"):
        package = tmp_path / "project"
        package.mkdir(exist_ok=True)
        files = {"__init__": "", "config": CONFIG, "tools": TOOLS, "later": LATER}
        for name, source in files.items():
            (package / f"{name}.py").write_text(source)
        (tmp_path / "job.py").write_text(program + MAIN)
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, *way]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.full)])
def test_every_program_is_described_alike_in_another_process(step):
    program = (
        "from dataflow.protocol.fingerprints import digest\nfrom tests.protocol.described_programs import *\n"
        f"for row in CHANGES[::{step}] + EQUAL:\n"
        "    for source in variants(row): print(digest(described(source)), repr(source))"
    )
    outputs = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=200
        )
        outputs.append(done.stdout.splitlines())
    assert [pair for pair in zip(*outputs, strict=True) if pair[0] != pair[1]] == []


CHILD = """
def work():
    from dataflow.protocol.fingerprints import describe
    print(describe(build()), flush=True)

if __name__ == "__main__":
    import multiprocessing
    for method in ("fork", "spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=work)
        process.start()
        process.join()
"""


def test_another_process_with_another_hash_seed_or_start_method_finds_the_same(project):
    first = project()
    assert "SIZE = 224" in first
    imported = "import job; from dataflow.protocol.fingerprints import describe; print(describe(job.build()))"
    assert project(hash_seed="2", way=["-c", imported]) == first
    assert project(program=PROGRAM + CHILD) == first * 4


@pytest.mark.full  # quick are the ways above
def test_a_program_that_is_run_as_a_module_finds_the_same(project):
    assert project(hash_seed="1", way=["-m", "job"]) == project()


FORKS = """
import importlib, json, os, sys
from dataflow.protocol.fingerprints import describe
code, variants = json.load(sys.stdin)
for files in variants:
    for name, source in files.items():
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "w") as file:
            file.write(source)
    child = os.fork()
    if not child:
        importlib.invalidate_caches()
        exec(code)
        print(json.dumps(describe(flow)), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def described_with(folder, code, variants):
    """The descriptions of the `flow` that `code` makes, with the files of each variant, each in a process of its own.

    These are forks of one process, which has imported none of the files: what takes long is its import of the package.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FORKS],
        cwd=folder,
        env=environment,
        input=json.dumps([code, variants]),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_modules_of_the_program_are_followed(tmp_path):
    def files(config=CONFIG, tools=TOOLS, later=LATER):
        modules = {"__init__": "", "config": config, "tools": tools, "later": later}
        return {"job.py": PROGRAM, **{f"project/{name}.py": source for name, source in modules.items()}}

    first, same, *changed = described_with(
        tmp_path,
        "import job; flow = job.build()",
        [
            files(),
            files(config=CONFIG.replace("UNUSED = 1", "UNUSED = 2"), tools="# a comment\n\n" + TOOLS),
            files(config="SIZE = 256\n"),
            files(tools=TOOLS.replace("FACTOR = 2", "FACTOR = 3")),
            files(tools=TOOLS.replace("x *", "x +")),
            files(later="ONE = 2\n"),
        ],
    )
    assert same == first
    assert len({first, *changed}) == 5


INSTALLED = """
import sys
sys.path[:0] = ["site-packages"]
import plain, space.part, own_project
from dataflow import DataFromList, MapData
def func(dp): return plain.f(dp), space.part.f(dp), own_project.f(dp)
def later(dp):
    import space.part
    return space.part.f(dp)
flow = MapData(MapData(DataFromList([[1]]), func), later)
"""


def test_installed_packages_count_by_version_and_what_was_installed_from_its_folder_by_code(tmp_path):
    def installed(name, module, version, code):
        info = f"site-packages/{name}-1.dist-info"
        return {
            f"site-packages/{module}": f"def f(dp): return {code}",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/RECORD": f"{module},,\n",
        }

    def files(plain=("1.0", "1"), part=("1.0", "1"), own=("1.0", "1")):
        return {
            **installed("plain", "plain.py", *plain),
            **installed("space_part", "space/part.py", *part),
            **installed("own_project", "own_project.py", *own),
            "site-packages/own_project-1.dist-info/direct_url.json": '{"url": "file:///x", "dir_info": {}}',
        }

    first, same, *changed = described_with(
        tmp_path,
        INSTALLED,
        [
            files(),
            files(plain=("1.0", "2"), part=("1.0", "2")),
            files(plain=("1.1", "1")),
            files(part=("1.1", "1")),
            files(own=("1.0", "2")),
        ],
    )
    assert same == first
    assert len({first, *changed}) == 4
