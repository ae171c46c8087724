"""A virtual environment for each contender, made when it is first needed and again when its requirements change."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["python_of"]

FOLDER = Path(__file__).parent / ".envs"


def python_of(name: str, requirements: Sequence[str] | None) -> str:
    """The interpreter of environment `name`; of this one where `requirements` is None."""
    if requirements is None:
        return sys.executable
    folder = FOLDER / name
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join(requirements)
    if not stamp.exists() or stamp.read_text("utf-8") != wanted:
        print(f"installing {name}: {', '.join(requirements)}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        # From that folder: pip takes the metadata of a project in the current one for something installed.
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], cwd=folder, check=True)
        stamp.write_text(wanted, "utf-8")
    return str(python)
