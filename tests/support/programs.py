"""Programs that a test writes into a file and runs."""

import subprocess
import sys
from pathlib import Path

from tests.support.waits import LIMIT


def printed(program: str, place: Path, *arguments: str) -> str:
    """What a program prints, run from a file in the folder `place`."""
    file = place / "program.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, file, *arguments], stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT
    )
    return done.stdout.strip()
