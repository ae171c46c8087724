"""Run the suite as two halves at a time: ``python -m tests``, with the arguments of pytest.

Each half has a session of its own, so that the watch over processes in one does not see those of the other. Half of the
machine waits in most tests: for a death to be noticed, a timeout, a start.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

ONE = ("tests/parallel", "tests/engine")
OTHER = ("tests", "dataflow", "--ignore=tests/parallel", "--ignore=tests/engine")


def run_halves(halves: Sequence[Sequence[str]], arguments: Sequence[str]) -> int:
    """Run all halves at once; show what the first says as it comes, and then the others.

    Returns:
        The highest exit code.
    """
    kept = [None, *(tempfile.TemporaryFile() for _ in halves[1:])]  # noqa: SIM115 (closed below)
    running = [start([*half, *arguments], output) for half, output in zip(halves, kept, strict=True)]
    try:
        codes = [half.wait() for half in running]
    finally:
        for half in running:  # only if this was interrupted
            half.terminate()
            half.wait()
    sys.stdout.flush()
    for output in kept[1:]:
        output.seek(0)
        sys.stdout.buffer.write(output.read())
        output.close()
    return max(codes)


def start(arguments: Sequence[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    print("pytest", *arguments, flush=True)
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.Popen(command, stdout=output, start_new_session=True)


if __name__ == "__main__":
    sys.exit(run_halves((ONE, OTHER), sys.argv[1:]))
