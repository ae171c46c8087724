"""Process runners where address space or the size of files is limited, as on many clusters."""

import subprocess
import sys

import pytest

from tests.support.fakes import each_method
from tests.support.waits import LIMIT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the limits are not enforced"),
]

PROGRAM = """
import resource, sys
import numpy as np
from dataflow import DataFromList, MapData, MultiProcessMapData, MultiProcessRunner, ParallelData
limit = getattr(resource, sys.argv[1]), (int(sys.argv[2]), int(sys.argv[2]))

def image(dp):
    return [dp[0], np.full(300_000, dp[0], np.uint8)]

if __name__ == "__main__":
    resource.setrlimit(*limit)
    source, options = DataFromList([[k] for k in range(40)], shuffle=False), dict(context=sys.argv[3], timeout=100)
    for make in (
        lambda: ParallelData(MapData(source, image), 2, **options),
        lambda: MultiProcessRunner(MapData(source, image), 5, 1, **options),
        lambda: MultiProcessMapData(MapData(source, image), 2, MapData(source, list).func, strict=True, **options),
    ):
        with make() as df:
            assert [(k, (a == k).all()) for k, a in df] == [(k, True) for k in range(40)]
    print("ran")
"""


def run(tmp_path, name, most, method):
    (tmp_path / "main.py").write_text(PROGRAM)
    return subprocess.run(
        [sys.executable, str(tmp_path / "main.py"), name, str(most), method],
        capture_output=True, text=True, check=False, timeout=LIMIT,
    )  # fmt: skip


@each_method
def test_process_runners_run_with_a_few_gigabytes_of_addresses(method, tmp_path):
    done = run(tmp_path, "RLIMIT_AS", 4 << 30, method)
    assert done.stdout == "ran\n", done.stderr


def test_a_limit_on_the_size_of_files_is_named(tmp_path):
    done = run(tmp_path, "RLIMIT_FSIZE", 1 << 30, "fork")
    assert "(ulimit -f). Lift that limit, or pass a smaller max_bytes" in done.stderr
