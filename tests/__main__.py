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

INTERRUPTS = "tests/promises/test_ctrl_c_is_safe.py"
TRANSFORMS = "tests/transforms"
CHAINS = "tests/promises/test_chains_yield_the_same.py"
ENDS = (
    "tests/promises/test_faults_of_maps_reach_the_loop.py",
    "tests/promises/test_faults_reach_the_loop.py",
    "tests/promises/test_items_that_end_workers.py",
)
# In full, these take longest, most of it waiting: several at a time.
IN_FULL = (
    *(
        (INTERRUPTS, "-k", words)
        for words in ("every_line and map", "every_line and not map", "refuses", "not every_line and not refuses")
    ),
    (TRANSFORMS, CHAINS),
    ENDS,
)
# The first and the last of these wait most: for Ray, and for the ends of processes. What else is in which part makes
# all of them take equally long.
WAITING = ("tests/ray", "tests/compat", "tests/remote", "tests/promises/test_workers_end_with_the_program.py")
OTHER = (
    "tests/promises/test_arrays_are_yours.py",
    "tests/promises/test_remote_passes_are_complete.py",
    "tests/promises/test_strangers_execute_nothing.py",
    *ENDS,
    "tests/system",
    "tests/transport",
    TRANSFORMS,
    CHAINS,
)
RUNNERS = ("tests/runners", "tests/promises")
RUNNERS += tuple(f"--ignore={place}" for place in (*OTHER, *WAITING))
REST = ("tests", "dataflow", *(f"--ignore={place}" for place in (*RUNNERS[:2], *OTHER, *WAITING)))


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
    given = sys.argv[1:]
    in_full = any("full" in argument for argument in given) and "-k" not in given
    parts = [RUNNERS, OTHER, REST, WAITING]
    if in_full:
        parts[:2] = [
            (*RUNNERS, f"--ignore={INTERRUPTS}"),
            tuple(k for k in OTHER if k not in {*ENDS, TRANSFORMS, CHAINS}),
        ]
        parts += IN_FULL
    sys.exit(run_parts(parts, given))
