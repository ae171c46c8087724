"""Run what a change is likely to break, in a minute: ``python -m tests.essential [ROOM] [-- arguments of pytest]``.

Without a room, the files listed here. With one, all tests and doctests of that room, or of that module. What is slow,
starts a Ray cluster or belongs to a whole product of cases is left out of both; `make ci` and `make test-full` have it.
"""

import sys
from pathlib import Path

from tests.__main__ import run_parts

ROOT = Path(__file__).parents[1]
TOO_SLOW = ["-m", "not slow and not ray and not full"]
ONE = (
    "tests/runners/test_liveness.py",
    "tests/runners/test_runners.py",
    "tests/promises/test_every_runner_yields_the_same.py",
    "tests/runners/test_maps.py",
    "tests/promises/test_workers_end_with_the_program.py",
    "tests/system",
)
OTHER = (
    "tests/test_architecture.py",
    "tests/test_imports.py",
    "tests/protocol/test_base.py",
    "tests/observe/test_representation.py",
    "tests/protocol/test_state.py",
    "tests/protocol/test_seeding.py",
    "tests/promises/test_chains_yield_the_same.py",
    "tests/promises/test_unlike_tensorpack.py",
    "tests/sources",
    "tests/transforms",
    "tests/observe/test_display.py",
    "tests/observe/test_speed.py",
    "tests/formats/test_saving.py",
    "tests/formats/test_disk_cache.py",
    "tests/remote/test_receiving.py",
    "tests/compat/test_fifo.py",
)


def main(arguments: list[str]) -> int:
    split = arguments.index("--") if "--" in arguments else len(arguments)
    rooms, options = arguments[:split], arguments[split + 1 :]
    parts = [paths_of(room) for room in rooms] or [ONE, OTHER]
    return run_parts(parts, [*TOO_SLOW, *options])


def paths_of(room: str) -> list[str]:
    """The tests of a room and its doctests, or those of one module."""
    of_room = (f"tests/{room}", f"dataflow/{room}")
    of_module = (f"tests/test_{room}.py", f"tests/*/test_{room}.py", f"dataflow/{room}.py", f"dataflow/*/{room}.py")
    found = [place for place in of_room if (ROOT / place).exists()] or [
        path.relative_to(ROOT).as_posix() for pattern in of_module for path in ROOT.glob(pattern)
    ]
    if not found:
        names = sorted(path.name for path in (ROOT / "tests").iterdir() if (path / "__init__.py").exists())
        raise SystemExit(f"there is no room {room!r}; there are {', '.join(names)}")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
