"""Run the suite as two halves at a time: ``python -m tests``, with the arguments of pytest.

Each half has a session of its own, so that the watch over processes in one does not see those of the other. Half of the
machine waits in most tests: for a death to be noticed, a timeout, a start.
"""

import subprocess
import sys
import tempfile

ONE = ("tests/parallel",)
OTHER = ("tests", "dataflow", "--ignore=tests/parallel")


def main() -> int:
    with tempfile.TemporaryFile() as kept:
        one = start(ONE, None)
        other = start(OTHER, kept)
        try:
            codes = [one.wait(), other.wait()]
        finally:
            for half in (one, other):  # only if this was interrupted
                half.terminate()
                half.wait()
        kept.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(kept.read())
    return max(codes)


def start(paths, output):
    print("pytest", *paths, *sys.argv[1:], flush=True)
    command = [sys.executable, "-m", "pytest", *paths, *sys.argv[1:]]
    return subprocess.Popen(command, stdout=output, start_new_session=True)


if __name__ == "__main__":
    sys.exit(main())
