"""A user's program that prints what travels between it and its workers, and how the tests start it in any place."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import collections, dataclasses, enum, sys
import numpy as np
from dataflow import (
    BackgroundProc, DataFlow, DataFromList, MapData, MultiProcessMapData, MultiProcessRunner, MultiProcessRunnerZMQ,
    SharedMem, SharedQ,
)

@dataclasses.dataclass
class Sample:
    x: object

@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: object

Pair = collections.namedtuple("Pair", "a b")
Odd = collections.namedtuple("AnotherName", "a b")  # not found by its own name

class Label(enum.Enum):
    CAT = 1

class Level(enum.IntEnum):
    LOW = 0

class MyError(Exception):
    def __init__(self, sample):
        super().__init__("mine")
        self.sample = sample

class Outer:
    class Inner:
        pass

class Redefined:
    pass
Old = Redefined

class Redefined:
    pass

def local_class():
    class Local:
        pass
    return Local

Local = local_class()
FACTOR = None

def helper(x):
    return x * FACTOR * OFFSET

def kinds(k):
    return [Sample(k), Slotted(k), Pair(k, k), Odd(k, k), Label.CAT, Level.LOW, Outer.Inner(), helper,
            {"deep": [Sample(np.full(3000, k))]}, MyError(Sample(k)), LAST(), *(make() for make in BELOW)]

def work(dp):
    (sample,) = dp
    assert type(sample) is Sample, "another class in the worker"
    if sample.x == 90:
        raise MyError(sample)
    return [*kinds(sample.x), helper(1)]

class Source(DataFlow):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        for sample in self.samples:
            assert type(sample) is Sample, "another class in the worker"
            yield work([sample])

def fill(mp_arrays, shapes, sample):
    if type(sample) is not Sample:
        raise TypeError("another class in the worker")
    if sample.x == 90:
        raise MyError(sample)
    SharedMem.shm2ndarray(mp_arrays[0], shapes[0])[:] = helper(sample.x)

def array(sample):
    if type(sample) is not Sample:
        raise TypeError("another class in the worker")
    if sample.x == 90:
        raise MyError(sample)
    return np.full(2, helper(sample.x))

def check(got, k):
    types = [type(value) for value in got]
    expected = [Sample, Slotted, Pair, Odd, Label, Level, Outer.Inner, type(helper), dict, MyError, LAST]
    assert types[:11] == expected, types
    assert got[4] is Label.CAT and got[7] is helper and got[-1] == 2 * 5, got
    (deep,) = got[8]["deep"]
    assert type(deep) is Sample and (deep.x == k).all() and type(got[9].sample) is Sample
    assert types[11:-1] == BELOW, types

def caught(run):
    try:
        run()
    except MyError as error:
        assert type(error.sample) is Sample
        return "caught"
    return "nothing raised"

def main(context):
    global FACTOR
    FACTOR = 2
    numbers = [Sample(k) for k in range(3)]
    bad = [Sample(90)]
    def wrapped(samples):
        return DataFromList([[sample] for sample in samples], shuffle=False)
    results = {}
    with MultiProcessRunner(Source(numbers), 5, 1, context=context, strict=True, timeout=60) as df:
        for k, got in enumerate(df):
            check(got, k)
    with MultiProcessRunnerZMQ(MapData(wrapped(numbers + bad), work), 1, context=context, timeout=60) as df:
        print("runner", caught(lambda: list(df)))
    with MultiProcessMapData(wrapped(numbers + bad), 1, work, context=context, strict=True, timeout=60) as df:
        def loop():
            for k, got in enumerate(df):
                check(got, k)
        print("map", caught(loop))
        print("map again", caught(lambda: df.reset_state() or loop()))
    inner = MultiProcessRunner(MapData(wrapped(numbers), work), 5, 1, context=context, strict=True, timeout=60)
    with MultiProcessRunner(inner, 5, 1, context=context, strict=True, timeout=60) as df:
        for k, got in enumerate(df):
            check(got, k)
    with MultiProcessMapData(wrapped(numbers + bad), 1, work, context=context, strict=True, max_failures=1,
                             timeout=60) as df:
        assert len(list(df)) == 3
    with BackgroundProc(array, target_args=(Sample(3),), dtypes=[np.int64], shapes=[(2,)], context=context) as proc:
        assert proc.get()[0].tolist() == [30, 30]
    with BackgroundProc(array, target_args=(Sample(90),), dtypes=[np.int64], shapes=[(2,)], context=context) as proc:
        print("background", caught(proc.get))
    with SharedQ(context=context) as queue:
        for k in (1, 2, 90, 4):
            queue.startproc([np.int64], [(2,)], fill, (Sample(k),))
        assert queue.get()[0].tolist() == [10, 10]
        queue.startproc([np.int64], [(2,)], fill, (Sample(5),))  # by a process that was used before
        assert queue.get()[0].tolist() == [20, 20]
        print("job", caught(queue.get))
        assert [queue.get()[0][0] for _ in range(2)] == [40, 50]
    print("done")

class Last:
    pass
LAST = Last

if __name__ == "__main__":
    OFFSET = 5

    class Below:
        pass
    BELOW = [Below, Old, Local]
    main(CONTEXT)
"""

SAID = [
    "runner caught",
    "map caught",
    "map again caught",
    "background caught",
    "job caught",
    "done",
]

NOTEBOOK = """
import re, sys, types
main = types.ModuleType("__main__")
sys.modules["__main__"] = main
for cell in re.split("\\n\\n(?=[^ ])", open({path!r}).read()):
    exec(compile(cell, "<ipython-input>", "exec"), vars(main))
"""


def run(place: str, context: str, directory: Path, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    """Run `program`, in which CONTEXT is the start method, in a place: how it comes to be the main program."""
    text = program.replace("CONTEXT", repr(context))
    path = directory / "program.py"
    path.write_text(text)
    stdin = None
    if place == "file":
        command = [str(path)]
    elif place == "command":
        command = ["-c", text]
    elif place == "stdin":
        command, stdin = ["-"], text
    elif place == "module":
        package = directory / "package"
        package.mkdir()
        (package / "__init__.py").touch()
        path.rename(package / "program.py")
        command = ["-m", "package.program"]
    elif place == "package":
        package = directory / "package"
        package.mkdir()
        path.rename(package / "__main__.py")
        command = ["-m", "package"]
    else:
        assert place == "notebook"
        command = ["-c", NOTEBOOK.format(path=str(path))]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{directory}"}
    return subprocess.run(
        [sys.executable, *command],
        input=stdin,
        stdin=None if stdin is not None else subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        timeout=180,
        cwd=directory,
        env=environment,
    )
