"""No format reads, or writes, a file as a whole: memory stays flat."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.formats.files import COLUMNS, FORMATS, LMDB, TFRECORD

ROOT = Path(__file__).parents[2]
TIMEOUT = 600.0  # seconds

PROGRAM = """
import pathlib, re, sys
import numpy as np
from dataflow import DataFromGenerator
from tests.formats.files import FORMATS

def memory():  # without mapped pages of files, which are the system's cache: LMDB maps its file
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) // 1024

form = next(form for form in FORMATS if form.name == sys.argv[1])
num = int(sys.argv[3])
image = np.random.default_rng(0).integers(0, 256, (256, 1024), np.uint8)

peak = 0

def images():
    global peak
    for k in range(num):
        if k % 16 == 0:
            peak = max(peak, memory())
        image[0, 0] = k % 256
        yield [k, image]

form.save(DataFromGenerator(images), sys.argv[2])
for options in ({"shuffle": False}, {"shuffle": True}, {"shuffle": True, "block_shuffle": 16}):
    with form.load(sys.argv[2], **options) as df:
        seen = 0
        for dp in df:
            seen += dp[1][0, 0] == dp[0] % 256
            if seen % 16 == 0:
                peak = max(peak, memory())
        assert seen == num, seen
print(peak)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "mebibytes"),
    [
        *(pytest.param(form, 256, id=form.name) for form in (LMDB, TFRECORD)),
        *(pytest.param(form, 256, id=form.name, marks=pytest.mark.full) for form in COLUMNS),
        *(pytest.param(form, 2048, id=f"{form.name}-2GiB", marks=pytest.mark.full) for form in FORMATS),
    ],
)
def test_a_file_that_is_larger_than_the_memory_it_takes(form, mebibytes, tmp_path):
    if package := {"lmdb": "lmdb", "h5": "h5py"}.get(form.name):
        pytest.importorskip(package)
    path = form.file(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, form.name, path, str(4 * mebibytes)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    Path(path).unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200, f"{done.stdout} MiB for a file of {mebibytes} MiB"
