"""The options of workers: the threads of native libraries, the maximum number of workers, and what users see."""

import inspect
import os
import pydoc
import re
import signal
import subprocess
import sys
import textwrap
from dataclasses import fields

import pytest

from dataflow import (
    DataFlow,
    DataFromList,
    MapData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadRunner,
    ParallelData,
    WorkerDied,
)
from dataflow.runners.options import ACTOR_DEFAULTS, WorkerOptions
from dataflow.runners.parallel_data import ParallelKeywords
from tests.support.fakes import METHODS, runner
from tests.support.flows import listed
from tests.support.products import only
from tests.support.waits import LIMIT

# -- threads of native libraries ---------------------------------------------------------------------------------------

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")


def blas_threads():
    """Threads that numpy's BLAS would use, here."""
    import threadpoolctl

    (numpy_blas, *_) = [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    return numpy_blas


class Threads(DataFlow):
    def __init__(self, method=None):
        self.inner = method

    def __iter__(self):
        while True:
            yield [blas_threads(), {name: os.environ.get(name) for name in VARIABLES}]


@pytest.fixture
def blas():
    """BLAS with three threads, in this process; no variable says otherwise."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    with pytest.MonkeyPatch.context() as patch, threadpoolctl.threadpool_limits(3, "blas"):
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        if blas_threads() != 3:
            pytest.skip("numpy's BLAS has a fixed number of threads")
        yield


@pytest.mark.parametrize("method", METHODS)
def test_blas_uses_as_many_threads_in_a_worker_as_it_is_allowed(method, blas):
    with runner(("process", method), Threads, thread_limit=2) as df:
        num, variables = next(iter(df))
    assert num == 2 and set(variables.values()) == {"2"}
    assert blas_threads() == 3 and not set(VARIABLES) & set(os.environ), "the main process is left as it was"


def test_by_default_the_cores_are_shared_among_the_workers(blas, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    for num, expected in ((1, 3), (2, 2), (4, 1), (5, 1)):  # one worker may use four, and has three
        with MultiProcessRunnerZMQ(Threads(), num, context="fork") as df:
            assert next(iter(df))[0] == expected


def test_a_share_leaves_alone_who_has_set_fewer_and_a_number_does_not(blas, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_NUM_THREADS", "64")
    with MultiProcessRunnerZMQ(Threads(), 2, context="fork") as df:
        num, variables = next(iter(df))
    assert num == 3 and variables["OMP_NUM_THREADS"] == "1" and variables["MKL_NUM_THREADS"] == "4"
    with MultiProcessRunnerZMQ(Threads(), 1, thread_limit=4, context="fork") as df:
        num, variables = next(iter(df))
    assert num == 4 and set(variables.values()) == {"4"}


def test_threads_may_be_left_alone(blas):
    with MultiProcessRunner(Threads(), 5, 2, thread_limit=None, context="fork") as df:
        assert next(iter(df)) == [3, dict.fromkeys(VARIABLES)]


def test_threads_and_the_consumer_itself_are_left_alone(blas):
    with MultiThreadRunner(Threads, 5, 2) as df:
        assert next(iter(df)) == [3, dict.fromkeys(VARIABLES)]
    with MultiProcessRunner(Threads(), 5, 0, thread_limit=1) as df:
        assert next(iter(df)) == [3, dict.fromkeys(VARIABLES)]


def test_workers_in_a_worker_share_what_it_has(blas):
    inner = MultiProcessRunner(Threads(), 5, 2)
    with MultiProcessRunner(inner, 5, 1, thread_limit=2, context="fork") as df:
        assert next(iter(df))[0] == 1


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "all"])
@pytest.mark.parametrize("case", ["process", "zmq"])
def test_a_limit_that_makes_no_sense_is_refused(case, wrong):
    with pytest.raises(
        (TypeError, ValueError), match=r'Multi\w+: thread_limit must be an integer ≥ 1, "share", or None'
    ):
        runner(case, Threads, thread_limit=wrong)


def run(script):
    """In a program of its own: OpenCV's threads are those of a process, and this one has many tests before it."""
    pytest.importorskip("cv2")
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout.split()


def test_opencv_that_was_used_before_a_fork_neither_hangs_nor_crowds():
    """Asking it for another number of threads would wait endlessly for those of the parent."""
    script = """
        import cv2, numpy as np, os
        from dataflow import DataFromList, MapData, MultiProcessRunner
        image = np.zeros((2000, 2000, 3), np.uint8)
        cv2.setNumThreads(4)
        cv2.GaussianBlur(image, (9, 9), 3)  # its threads run now
        def blur(dp):
            cv2.GaussianBlur(image, (9, 9), 3)
            return [cv2.getNumThreads(), len(os.listdir("/proc/self/task"))]
        for limit in (1, 2, 3, "share"):
            df = MapData(DataFromList([[0]], shuffle=False), blur)
            with MultiProcessRunner(df, 1, 1, thread_limit=limit, context="fork", timeout=60) as df:
                print(*next(iter(df))[:1])
        print(cv2.getNumThreads())
    """
    assert run(script) == ["1", "1", "1", "1", "4"]


@pytest.mark.parametrize("where", only(["worker_init"], ["function", "worker_init", "reset"]))
def test_opencv_that_a_worker_loads_itself_is_limited_too(where):
    script = f"""
        import sys
        from dataflow import DataFlow, MultiProcessRunnerZMQ
        def load():
            import cv2
        class Flow(DataFlow):
            def reset_state(self):
                {"load()" if where == "reset" else "pass"}
            def __iter__(self):
                import cv2
                while True:
                    yield [cv2.getNumThreads()]
        for limit in (1, 3):
            init = load if {where == "worker_init"} else None
            with MultiProcessRunnerZMQ(Flow(), 1, thread_limit=limit, worker_init=init, context="fork") as df:
                print(*next(iter(df)))
        assert "cv2" not in sys.modules
    """
    assert run(script) == ["1", "3"]


def test_without_threadpoolctl_the_environment_is_set_all_the_same():
    script = """
        import os, sys
        sys.modules["threadpoolctl"] = None
        from dataflow import DataFromList, MapData, MultiProcessRunner
        df = MapData(DataFromList([[0]]), lambda dp: [os.environ["OMP_NUM_THREADS"]])
        with MultiProcessRunner(df, 1, 1, thread_limit=2, context="fork") as df:
            print(*next(iter(df)))
    """
    assert run(script) == ["2"]


# -- the maximum number of workers -------------------------------------------------------------------------------------


def test_a_maximum_without_auto_is_refused():
    with pytest.raises(TypeError, match=r'max_workers=8 is the maximum for num_workers="auto", and num_workers=2'):
        ParallelData(listed(200), 2, max_workers=8)
    with pytest.raises(ValueError, match="max_workers"):
        ParallelData(listed(200), max_workers=0)


@pytest.mark.parametrize(("max_bytes", "expected"), [(None, 32), (16 << 20, 4), (1 << 20, 1)])
def test_the_maximum_depends_on_the_memory_limit(max_bytes, expected, monkeypatch):
    monkeypatch.setattr("dataflow.runners.options.share_of_cores", lambda num: 2)
    assert ParallelData(listed(200), max_bytes=max_bytes).num_workers == expected


def test_the_maximum_depends_on_the_cores_and_on_descriptors(monkeypatch):
    monkeypatch.setattr("dataflow.runners.options.share_of_cores", lambda num: 16)
    assert ParallelData(listed(200)).num_workers == 64
    monkeypatch.setattr("dataflow.runners.options.soft_limit", lambda: 96)
    assert ParallelData(listed(200)).num_workers < 20


def test_the_maximum_holds_where_the_number_does_not_adapt(monkeypatch):
    monkeypatch.setattr("dataflow.runners.options.share_of_cores", lambda num: 4)
    made = []

    def make():
        made.append(listed(200))
        return made[-1]

    for most, expected in (None, 4), (3, 3), (8, 4):
        assert MultiThreadRunner(make, 5, "auto", strict=True, max_workers=most).num_workers == expected
        assert len(made) == expected
        made.clear()
        assert MultiProcessRunner(listed(200), 5, "auto", max_workers=most).num_workers == expected


def test_the_printed_chain_says_auto_and_at_most():
    assert repr(ParallelData(listed(200), max_workers=5)).startswith("ParallelData(max_workers=5)  at most 5 processes")
    assert 'num_proc="auto"' in repr(MultiProcessMapData(listed(200), "auto", list)).replace("'", '"')


# -- What users see of the options -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MultiProcessRunner, MultiProcessRunnerZMQ, MultiThreadRunner, ParallelData])
def test_help_shows_a_signature_as_a_person_would_write_it(kind):
    text = str(inspect.signature(kind))
    assert "timeout: float | None = None, max_restarts: SupportsIndex = 0" in text
    assert re.search(r"ForwardRef|'DataFlow'|inspect\.", text) is None
    margin = r"[\s|]+"  # from Python 3.13 on, a long signature has a line for each parameter
    assert re.sub(margin, "", kind.__name__ + text) in re.sub(margin, "", pydoc.plain(pydoc.render_doc(kind)))


def test_each_option_is_known_to_editors_and_described():
    """A type checker needs the names of keyword arguments in a `TypedDict`; everything else stands at the field."""
    options = {field.name: field for field in fields(WorkerOptions)}
    taken = [name for name, field in options.items() if field.metadata]
    assert sorted({*taken, *ACTOR_DEFAULTS}) == sorted(ParallelKeywords.__annotations__)
    described = re.findall(r"^    (\w+): ", inspect.getdoc(WorkerOptions).partition("Raises:")[0], re.MULTILINE)
    assert sorted(described) == sorted(options)


def test_a_killed_worker_names_the_parameter_of_its_runner():
    flow = MapData(DataFromList([[1]]), lambda dp: os.kill(os.getpid(), signal.SIGKILL))
    for kind, name in ((ParallelData, "num_workers"), (MultiProcessRunnerZMQ, "num_proc")):
        with kind(flow, 1, strict=True) as df, pytest.raises(WorkerDied, match=f"Lower {name} or the buffer size"):
            list(df)
