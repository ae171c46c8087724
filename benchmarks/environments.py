"""Virtual environments, one per contender: created at the first use, and again when the requirements change."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["python_of"]

FOLDER = Path(__file__).parent / ".envs"


def python_of(name: str, requirements: Sequence[str] | None) -> str:
    """The interpreter of environment `name`; the running one if `requirements` is None."""
    if requirements is None:
        return sys.executable
    folder = FOLDER / name
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join(requirements)
    if not stamp.exists() or stamp.read_text("utf-8") != wanted:
        print(f"installing {name}: {', '.join(requirements)}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        # pip runs in that folder, because it would count a project in the current one as installed.
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], cwd=folder, check=True)
        stamp.write_text(wanted, "utf-8")
    return str(python)
