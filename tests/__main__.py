"""Run the suite as four parts at a time, or more for the full one: ``python -m tests``, with the arguments of pytest.

Each part has a session of its own, so that the watch over processes in one does not see those of the others. Most tests
wait: for a death to be noticed, a timeout, a start. Bytecode of the package is written first, whatever the environment
says: hundreds of interpreters import it.
"""

import compileall
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

# These take equally long, with what is left as the fourth. Each has much that waits, and much that computes.
PARTS = (
    ("tests/runners", "tests/remote", "tests/system"),
    ("tests/promises", "tests/compat"),
    ("tests/transforms", "tests/transport", "tests/ray", "tests/observe"),
)
INTERRUPTS = "tests/promises/test_ctrl_c_is_safe.py"
# In full, these take longest, most of it waiting: several at a time.
IN_FULL = (
    *(
        (INTERRUPTS, "-k", words)
        for words in ("every_line and map", "every_line and not map", "refuses", "not every_line and not refuses")
    ),
    ("tests/transforms",),
    ("tests/compat", "tests/promises/test_chains_yield_the_same.py"),
    (
        "tests/promises/test_faults_of_maps_reach_the_loop.py",
        "tests/promises/test_faults_reach_the_loop.py",
        "tests/promises/test_items_that_end_workers.py",
    ),
)


def parts_of(arguments: Sequence[str]) -> list[tuple[str, ...]]:
    in_full = "full or not full" in arguments and "-k" not in arguments
    own = {place for part in IN_FULL for place in part if place.startswith("tests/")} if in_full else set()
    parts = [tuple(place for place in part if place not in own) for part in PARTS]
    others = [place for part in PARTS for place in part]
    parts.append(("tests", "dataflow", *(f"--ignore={place}" for place in others)))
    ignored = [f"--ignore={place}" for place in sorted(own) if place not in others]
    return [(*part, *ignored) for part in parts] + (list(IN_FULL) if in_full else [])


def run_parts(parts: Sequence[Sequence[str]], arguments: Sequence[str]) -> int:
    """Run all parts at once; show what the first says as it comes, and then the others.

    Returns:
        The highest exit code, or number of a signal.
    """
    kept = [None, *(tempfile.TemporaryFile() for _ in parts[1:])]  # noqa: SIM115 (closed below)
    running = [start([*part, *arguments], output) for part, output in zip(parts, kept, strict=True)]
    try:
        codes = [part.wait() for part in running]
    finally:
        for part in running:  # only if this was interrupted
            part.terminate()
            part.wait()
    sys.stdout.flush()
    for output in kept[1:]:
        output.seek(0)
        sys.stdout.buffer.write(output.read())
        output.close()
    return max(map(abs, codes))  # one that was killed has a negative code


def start(arguments: Sequence[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    print("pytest", *arguments, flush=True)
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.Popen(command, stdout=output, start_new_session=True)


if __name__ == "__main__":
    for folder in ("dataflow", "tests/support"):
        compileall.compile_dir(folder, quiet=2)
    sys.exit(run_parts(parts_of(sys.argv[1:]), sys.argv[1:]))
