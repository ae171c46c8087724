"""A program without ``if __name__ == "__main__":``: said so where that is the cause, and no matter where it is not."""

import pytest

from dataflow.system.worker_errors import NO_GUARD, explanation
from tests.support.main_program import run

HEAD = """
import numpy as np
from dataflow import (
    BackgroundData, BackgroundProc, DataFromList, MultiProcessMapAndBatchData, MultiProcessMapData, MultiProcessRunner,
    MultiProcessRunnerZMQ, MultiThreadRunner, SharedMem, SharedQ
)

print("imported")
data = DataFromList([[bytes(1000)] for k in range(200)], shuffle=False)  # more than a pipe holds

def fill(mp_arrays, shapes):
    SharedMem.shm2ndarray(mp_arrays[0], shapes[0])[:] = 1
"""

PROGRAMS = {
    "MultiProcessRunnerZMQ": """
with MultiProcessRunnerZMQ(data, 2, context=CONTEXT, strict=True, timeout=60) as df:
    print(len(list(df)))
""",
    "MultiProcessRunner": """
with MultiProcessRunner(data, 5, 2, context=CONTEXT, strict=True, timeout=60, max_restarts=1) as df:
    print(len(list(df)))
""",
    "MultiProcessMapData": """
with MultiProcessMapData(data, 1, list, context=CONTEXT, strict=True, timeout=60) as df:
    print(len(list(df)))
""",
    "MultiProcessMapAndBatchData": """
with MultiProcessMapAndBatchData(DataFromList([[k] for k in range(2000)]), 1, list, 10, context=CONTEXT, strict=True,
                                 timeout=60) as df:
    print(len(list(df)))
""",
    "MultiThreadRunner": """
make = lambda: MultiProcessRunner(data, 5, 1, context=CONTEXT, strict=True, timeout=60)
with MultiThreadRunner(make, 5, 1, strict=True, timeout=60) as df:
    print(len(list(df)))
""",
    "nested MultiProcessRunner": """
inner = MultiProcessMapData(data, 1, list, context=CONTEXT, strict=True, timeout=60)
with MultiProcessRunner(inner, 5, 1, context="fork", strict=True, timeout=60) as df:
    print(len(list(df)))
""",
    "BackgroundProc": """
with BackgroundProc(np.ones, target_args=(200,), dtypes=[np.float64], shapes=[(200,)], context=CONTEXT) as proc:
    print(int(proc.get()[0].sum()))
""",
    "SharedQ": """
with SharedQ(context=CONTEXT) as queue:
    queue.startproc([np.int64], [(200,)], fill)
    print(int(queue.get()[0].sum()))
""",
    "BackgroundData": """
source = BackgroundData(np.ones, target_args=(200,), dtypes=[np.float64], shapes=[(200,)], context=CONTEXT)
print(int(next(iter(source))[0].sum()))
source.close()
""",
}


def check_no_guard(name, context, directory):
    ended = run("file", context, directory, HEAD + PROGRAMS[name])
    assert ended.returncode == 1
    message = ended.stderr[ended.stderr.rindex("WorkerDied: worker") :]  # with notes of outer runners behind it
    assert "this program starts workers itself, because it has no guard" in message
    assert '\n\n    if __name__ == "__main__":\n        main()\n' in message
    assert ended.stderr.count("Traceback") <= 4, "workers print nothing"  # those of the consumer, with its causes
    assert not list(directory.glob("dataflow-*"))


@pytest.mark.parametrize(("name", "context"), [("MultiProcessRunnerZMQ", "spawn"), ("SharedQ", "forkserver")])
def test_a_program_without_a_guard_is_told_so(name, context, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    check_no_guard(name, context, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_so_is_every_class_with_processes(name, context, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    check_no_guard(name, context, tmp_path)


def check_none_needed(name, place, context, directory):
    ended = run(place, context, directory, HEAD + PROGRAMS[name])
    assert (ended.returncode, ended.stdout.split()) == (0, ["imported", "200"]), ended.stderr


def test_from_standard_input_no_guard_is_needed(tmp_path):
    check_none_needed("MultiProcessRunner", "stdin", "forkserver", tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
@pytest.mark.parametrize("place", ["stdin", "command", "package", "notebook"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_where_workers_do_not_import_the_program_no_guard_is_needed(name, place, context, tmp_path):
    check_none_needed(name, place, context, tmp_path)


def test_only_a_worker_that_never_connected_is_said_to_lack_a_guard():
    assert "guard" in explanation(NO_GUARD, has_connected=False)[1]
    assert "guard" not in explanation(NO_GUARD, has_connected=True)[1]
    assert "guard" not in explanation(1, has_connected=False)[1]
