"""Run what a change is likely to break, in a minute: ``python -m tests.essential [ROOM] [-- arguments of pytest]``.

Without a room, the files listed here. With one, all tests and doctests of that room, or of that module. What is slow,
starts a Ray cluster or belongs to a whole product of cases is left out of both; `make test` has it.
"""

import sys
from pathlib import Path

from tests.__main__ import run_parts

ROOT = Path(__file__).parents[1]
TOO_SLOW = ["-m", "not slow and not ray and not full"]
ONE = (
    "tests/engine/test_liveness.py",
    "tests/parallel/test_runners.py",
    "tests/parallel/test_strict.py",
    "tests/parallel/test_maps.py",
    "tests/parallel/test_deaths.py",
    "tests/workers",
)
OTHER = (
    "tests/test_architecture.py",
    "tests/test_imports.py",
    "tests/test_base.py",
    "tests/test_repr.py",
    "tests/test_state.py",
    "tests/test_seeding.py",
    "tests/test_footguns.py",
    "tests/sources",
    "tests/transforms",
    "tests/diagnostics",
    "tests/formats/test_saving.py",
    "tests/formats/test_disk_cache.py",
    "tests/remote/test_receiving.py",
    "tests/shared/test_fifo.py",
)


def main(arguments: list[str]) -> int:
    split = arguments.index("--") if "--" in arguments else len(arguments)
    rooms, options = arguments[:split], arguments[split + 1 :]
    parts = [paths_of(room) for room in rooms] or [ONE, OTHER]
    return run_parts(parts, [*TOO_SLOW, *options])


def paths_of(room: str) -> list[str]:
    """The tests of a room and its doctests; of a module that stands alone, too."""
    places = (f"tests/{room}", f"tests/test_{room}.py", f"dataflow/{room}", f"dataflow/{room}.py")
    found = [place for place in places if (ROOT / place).exists()]
    if not found:
        names = sorted(path.name for path in (ROOT / "tests").iterdir() if (path / "__init__.py").exists())
        raise SystemExit(f"there is no room {room!r}; there are {', '.join(names)}")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
