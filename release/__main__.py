"""Build the archives of a release, check them, and try the wheel in a clean environment of each Python that is found.

``python -m release --pythons "3.11 3.12" [--repository URL]``, as ``make dist`` does it. The archives are in dist/.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from release.readme import for_an_index

ROOT = Path(__file__).parents[1]
FILES = ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "dataflow", "pyproject.toml")
TIMEOUT = 900.0  # seconds for one command


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, timeout=TIMEOUT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def runs(python: str) -> bool:
    """Whether there is such an interpreter: the name alone may be that of a launcher."""
    try:
        return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def copy_to(folder: Path, repository: str) -> str:
    """Copy what the archives are made of, with the README for an index; return the version."""
    for name in FILES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    code = (folder / "dataflow/version.py").read_text("utf-8")
    version = code.partition('__version__: Final = "')[2].partition('"')[0]
    readme, project = folder / "README.md", folder / "pyproject.toml"
    readme.write_text(for_an_index(readme.read_text("utf-8"), repository, f"v{version}"), "utf-8")
    text = project.read_text("utf-8")
    if repository and "urls" not in tomllib.loads(text)["project"]:
        section = "[project.optional-dependencies]"
        project.write_text(
            text.replace(section, f'[project.urls]\nRepository = "{repository}"\n\n{section}', 1), "utf-8"
        )
    return version


def try_wheel(python: str, wheel: Path) -> None:
    """Install the wheel and what it needs into a new environment, and run the README's first program there."""
    program = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(python, "-m", "venv", folder / "env")
        inside = folder / "env/bin/python"
        run(inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=folder)
        run(inside, "-m", "pip", "check", cwd=folder)
        (folder / "train.py").write_text(program, "utf-8")
        shown = run(inside, "train.py", cwd=folder).splitlines()
        if shown != ["(50, 32, 32) (50,)"] * 20:
            raise SystemExit(f"{python}: the README's program has printed {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("--pythons", default="", help="versions to try the wheel with, where they are found")
    parser.add_argument("--repository", default="", help="the repository's address, unless pyproject.toml has it")
    options = parser.parse_args()
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"].get("urls", {})
    repository = options.repository or urls.get("Repository", "")
    if not repository:
        print("No address of the repository is known: the README has no links. Pass REPOSITORY=https://…")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        version = copy_to(Path(name), repository)
        run(sys.executable, "-m", "build", "--outdir", dist, name)
    archives = sorted(dist.iterdir())
    print(run(sys.executable, "-m", "twine", "check", "--strict", *archives), end="")
    (wheel,) = dist.glob("*.whl")
    pythons = [f"python{name}" for name in options.pythons.split() if runs(f"python{name}")]
    for python in pythons or [sys.executable]:
        try_wheel(python, wheel)
        print(f"{python}: installed, and the README's program runs")
    print(f"Version {version}: {', '.join(str(path.relative_to(ROOT)) for path in archives)}")


if __name__ == "__main__":
    main()
