"""Programs for the predecessors run after they were rewritten, look as before, and what is left is named."""

import ast
import functools
import os
import re
import subprocess
import sys

import pytest

from tests.compat.ports import PORTS
from tests.compat.predecessors import ELEKTRONN, TENSORPACK
from tests.compat.programs import LEFT, PROGRAMS

pytest.importorskip("libcst")
from dataflow.compat import rewriting
from dataflow.compat.rewriting import rewritten

ROOT = __file__.rpartition("/tests/")[0]
NEEDS = {
    "files": ["lmdb", "h5py", "google_crc32c"],
    "an LMDB of ImageNet": ["lmdb", "google_crc32c"],
    "speech with CTC": ["lmdb"],
}


@functools.cache  # several tests look at each program
def result_of(source):
    return rewritten(source.encode())


def text_of(source):
    return result_of(source).source.decode()


def ported(name):
    """A program of PORTS after it was rewritten, and then changed by hand."""
    before, _, by_hand = PORTS[name]
    after = text_of(before)
    for old, new in by_hand:
        assert old in after, after
        after = after.replace(old, new)
    return after


def findings_in(source, kind="left"):
    return [(found.line, found.name) for found in result_of(source).findings if found.kind == kind]


# A process for all programs, which forks one for each: they share the time of the imports, and nothing else.
DRIVER = """
import faulthandler, os, runpy, sys, traceback
import numpy, dataflow.__main__

for number, folder in enumerate(sys.argv[1:]):
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        log = os.open("log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.dump_traceback_later(120, exit=True)  # one that hangs fails by itself, and its log says where
        try:
            runpy.run_path("script.py", run_name="__main__")
            code = 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The exit code and the output of each rewritten program."""
    folders = {name: tmp_path_factory.mktemp("program") for name in [*PROGRAMS, *PORTS]}
    for name, folder in folders.items():
        (folder / "script.py").write_text(text_of(PROGRAMS[name]) if name in PROGRAMS else ported(name))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *map(str, folders.values())],
        env=os.environ | {"PYTHONPATH": ROOT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    codes = done.stdout.split()
    return {
        name: (int(code), (folder / "log").read_text())
        for (name, folder), code in zip(folders.items(), codes, strict=True)
    }


@pytest.mark.parametrize("name", [*PROGRAMS, *PORTS])
def test_a_rewritten_program_runs(name, ran):
    for package in NEEDS.get(name, []):
        pytest.importorskip(package)
    code, log = ran[name]
    assert code == 0, log


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_of_the_predecessors_is_left_in_a_program(name):
    after = text_of(PROGRAMS[name])
    assert not re.search(r"\b(tensorpack|elektronn2?|nr_prefetch|nr_thread|start_test|dataflow\.dataflow)\b", after)
    assert findings_in(PROGRAMS[name]) == []


@pytest.mark.parametrize("name", PORTS)
def test_a_program_is_ported_by_what_is_reported(name):
    before, reported, _ = PORTS[name]
    assert {found for _, found in findings_in(before)} == reported
    assert "tensorpack" not in ported(name)
    assert findings_in(ported(name)) == []


@pytest.mark.parametrize("name", [*PROGRAMS, *LEFT])
def test_rewriting_again_changes_nothing(name):
    once = text_of(PROGRAMS[name] if name in PROGRAMS else LEFT[name][0])
    assert text_of(once) == once


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_stays_and_is_named(name):
    before, after, left = LEFT[name]
    assert text_of(before) == after
    assert findings_in(before) == left


def test_the_programs_use_every_public_name():
    used = set()
    for source in [*PROGRAMS.values(), *(before for before, _, _ in LEFT.values())]:
        for node in ast.walk(ast.parse(source)):
            used |= {node.attr} if isinstance(node, ast.Attribute) else set()
            used |= {node.id} if isinstance(node, ast.Name) else set()
            used |= {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
    assert set(TENSORPACK) | set(ELEKTRONN) <= used


def test_only_what_is_renamed_changes():
    before = PROGRAMS["names from the package"]
    assert text_of(before) == before.replace("tensorpack.dataflow", "dataflow").replace("nr_proc", "num_proc")


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_encoding_and_newlines_are_kept(encoding, newline):
    cookie = "latin-1" if encoding == "latin-1" else "utf-8"
    lines = [
        f"# -*- coding: {cookie} -*-",
        "from tensorpack.dataflow import MapData, imgaug",
        "é = 'ü'  # ö",
        "\tx" * 0,
    ]
    before = newline.join(lines).encode(encoding)
    after = rewritten(before).source
    lines[1:2] = ["from dataflow import MapData", "from tensorpack.dataflow import imgaug"]
    assert after == newline.join(lines).encode(encoding)


@pytest.mark.parametrize(
    "source",
    ["", "\n", "import os", "from . import dataflow\nfrom .dataflow import PrefetchData\n", "x = 1; import numpy"],
)
def test_a_program_without_predecessors_stays_as_it_is(source):
    done = rewritten(source.encode())
    assert (done.source, done.findings) == (source.encode(), ())


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (b"print 'hello'\n", "line 1, column 1 is not valid Python 3"),
        (b"x = (1,\n", "not valid Python 3"),
        (b"# -*- coding: none-such -*-\n", "cannot be decoded"),
        (b"x = '\xff'\n", "cannot be decoded"),
    ],
)
def test_what_is_no_program_is_an_error_that_says_where(source, text):
    with pytest.raises(ValueError, match=text):
        rewritten(source)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from tensorpack.dataflow import send_dataflow_zmq", "send_dataflow_zmq"),
        ("import tensorpack.dataflow as D\nD.RemoteDataZMQ('tcp://x')", "RemoteDataZMQ"),
        ("from tensorpack.dataflow import *\nLMDBSerializer.load('a')", "LMDBSerializer.load"),
    ],
)
def test_what_means_something_else_now_is_named_once(source, name):
    ((_, found),) = findings_in(source, "look")
    assert found == name
    if not name.endswith(".load"):  # what is loaded is as old as before
        assert findings_in(text_of(source), "look") == []


def test_a_load_that_says_whether_it_unpickles_is_not_named():
    assert findings_in("from tensorpack.dataflow import *\nLMDBSerializer.load('a', pickle=True)", "look") == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from tensorpack import *\n\n\nBatchData('é', 2)", (4, "BatchData")),
        ("from tensorpack.dataflow import *\nFakeData, imgaug", (2, "imgaug")),
        ('def f(df: "Text"): return BatchData(df, 2)\nfrom tensorpack import *', (1, "BatchData")),
    ],
)
def test_a_name_that_the_changes_leave_undefined_is_reported(source, name, monkeypatch):
    replace = rewriting._Rewriter._replace_statement

    def without_the_last(self, statement, texts):
        replace(self, statement, texts[:-1])

    assert name not in findings_in(source) or name[1] == "imgaug"
    monkeypatch.setattr(rewriting._Rewriter, "_replace_statement", without_the_last)
    found = [found.text for found in rewritten(source.encode()).findings if (found.line, found.name) == name]
    assert "nothing defines it after the changes: import it by hand, or define it" in found


def test_with_a_module_of_its_own_called_dataflow_a_program_stays_as_it_is():
    own = "from dataflow import mine\n"
    assert rewritten(own.encode(), own="/dataflow.py").findings == ()
    source = own + "from tensorpack.dataflow import imgaug, BatchData\n"
    done = rewritten(source.encode(), own="/dataflow.py")
    assert done.after == source
    assert [(found.line, found.name) for found in done.findings] == [(2, "dataflow"), (2, "imgaug")]
    assert "/dataflow.py" in done.findings[0].text


def test_a_variable_that_was_a_module_before_is_no_finding():
    source = "import tensorpack.dataflow as df\ndf = df.BatchData(df.FakeData([[2]], 9), 3)\ndf.size(), df.unknown"
    assert text_of(source) == source.replace("tensorpack.", "")
    assert findings_in(source) == []
    assert findings_in("import tensorpack.dataflow as df\ndf.unknown") == [(2, "df.unknown")]


def test_only_the_arguments_of_what_is_made_are_renamed():
    source = (
        "from tensorpack.dataflow import *\nsuper().__init__(nr_proc=1)\nclass A(PrefetchData):\n"
        "    def __init__(self):\n        make().__init__(nr_proc=1)\n        super().__init__(nr_proc=1)\n"
    )
    after = text_of(source).splitlines()
    assert after[1] == "super().__init__(nr_proc=1)"
    assert after[4:] == ["        make().__init__(nr_proc=1)", "        super().__init__(num_proc=1)"]


def test_a_star_import_of_what_is_left_out_is_named():
    source = "from tensorpack.dataflow.imgaug import *\nFlip"
    assert text_of(source) == source
    assert findings_in(source) == [(1, "tensorpack.dataflow.imgaug.*")]


def test_a_keyword_that_is_given_twice_is_left():
    source = "from tensorpack.dataflow import *\nPrefetchDataZMQ(ds, num_proc=1, nr_proc=2)"
    assert findings_in(source) == [(2, "nr_proc")]


def test_formats_of_remote_flows_are_reported():
    source = """
from tensorpack.dataflow import send_dataflow_zmq as send
send(df, addr, 50, "zmq_ops")
send(df, addr, hwm=50, format="zmq_op")
send(df, addr, 50, None, True), send(df, addr, format=None), send(df, addr, 50, *more)
"""
    assert findings_in(source) == [
        (3, 'send_dataflow_zmq(…, "zmq_ops")'),
        (4, "send_dataflow_zmq(format=…)"),
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if x: from tensorpack.dataflow import MapData, imgaug", "if x: from dataflow import MapData; "),
        ("import tensorpack; tensorpack.BatchData; tensorpack.logger", "import tensorpack; import dataflow; "),
        ("import tensorpack\ntensorpack.BatchData", "import dataflow\ndataflow.BatchData"),
        ("from tensorpack.dataflow.common import *\nBatchData", "from dataflow import *\nBatchData"),
        (
            "from tensorpack.dataflow import *\nimgaug",
            "from dataflow import *\nfrom tensorpack.dataflow import imgaug\n",
        ),
        ("from tensorpack import *\nfrom tensorpack.dataflow import *\nBatchData", "from dataflow import *\nBatchData"),
        ("from tensorpack.dataflow import *\nfrom tensorpack import *\nBatchData", "from dataflow import *\nfrom data"),
        (
            "def f():\n    import tensorpack.dataflow as D\n    D.raw.FakeData",
            "def f():\n    import dataflow as D\n    D.F",
        ),
        (
            "from tensorpack.utils import logger, fix_rng_seed",
            "from dataflow import seed as fix_rng_seed\nfrom tensorp",
        ),
        (
            "from tensorpack.dataflow import PrefetchData as P, PrefetchData",
            "from dataflow import PrefetchData as P, PrefetchData",
        ),
        ("import dataflow.common\ndataflow.common.MapData", "import dataflow\ndataflow.MapData"),
        (
            "import dataflow\ndef f():\n    dataflow = 1\ndataflow.ThreadedMapData",
            "import dataflow\ndef f():\n    dataflow = 1\ndataflow.MultiThreadMapData",
        ),
        ("from dataflow import common\ncommon.PrefetchData", "import dataflow as common\ncommon.PrefetchData"),
        (
            "from tensorpack.dataflow import *\nThreadedMapData",
            "from dataflow import *\nfrom dataflow import MultiThreadMapData as ThreadedMapData\nThreadedMapData",
        ),
        ("import elektronn2.training.parallelisation as p\np.SharedQ", "import dataflow as p\np.SharedQ"),
        (
            "import elektronn2.training.parallelisation\nelektronn2.training.parallelisation.SharedQ, elektronn2.other",
            "import elektronn2.training.parallelisation\nimport dataflow\ndataflow.SharedQ, elektronn2.other",
        ),
        ("import tensorpack.dataflow\nx = tensorpack.dataflow", "import dataflow\nx = dataflow"),
        (
            "import tensorpack.dataflow.dftools\ntensorpack.dataflow.MapData",
            "import tensorpack.dataflow.dftools\nimport dataflow\ndataflow.MapData",
        ),
        ("import tensorpack.models\nMapData", "import tensorpack.models\nMapData"),
        (
            "import os, tensorpack.dataflow.common as c, tensorpack.dataflow.raw\nc, tensorpack.dataflow.raw.FakeData",
            "import os\nimport dataflow\nimport dataflow as c\nc, dataflow.FakeData",
        ),
        ("import tensorpack.dataflow as D\nx = D", "import dataflow as D\nx = D"),
        (
            "import tensorpack.dataflow, tensorpack.dataflow.common\ntensorpack.dataflow.BatchData",
            "import dataflow\ndataflow.BatchData",
        ),
        (
            "import tensorpack.dataflow as D, tensorpack.dataflow.common as D\nD.raw.FakeData",
            "import dataflow as D, dataflow as D\nD.FakeData",
        ),
        (
            "from tensorpack.dataflow import BatchData as P, PrefetchData as P\nP(ds, 2)",
            "from dataflow import BatchData as P, PrefetchData as P\nP(ds, 2)",
        ),
        ("import tensorpack.dataflow\ndataflow = 1\ntensorpack.dataflow.raw.FakeData", "import dataflow as dataflow_"),
        ("from tensorpack.utils import *\nlogger", "from tensorpack.utils import *\nlogger"),
        (
            "from tensorpack.utils import *\nlogger, fix_rng_seed(3)",
            "from tensorpack.utils import *\nfrom dataflow import seed as fix_rng_seed\nlogger, fix_rng_seed(3)",
        ),
        (
            "from tensorpack import *\nfrom tensorpack.dataflow import *\nfix_rng_seed(BatchData)",
            "from dataflow import seed as fix_rng_seed\nfrom dataflow import *\nfix_rng_seed(BatchData)",
        ),
        (
            "from tensorpack import *\nfrom tensorpack.dataflow import *\nlogger, BatchData",
            "from tensorpack import *\nfrom dataflow import *\nlogger, BatchData",
        ),
        (
            "from tensorpack import *  # first\nfrom tensorpack.dataflow import *\nBatchData",
            "pass  # first\nfrom dataflow import *\nBatchData",
        ),
    ],
)
def test_forms_of_imports(before, after):
    once = text_of(before)
    assert once.startswith(after)
    compile(once, "program", "exec")
    assert text_of(once) == once
