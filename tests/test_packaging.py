"""What a user installs: the source archive and the wheel made from it are whole, and work outside of the checkout."""

import email
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import dataflow
from release.readme import for_an_index

ROOT = Path(__file__).parents[1]
TIMEOUT = 300.0  # seconds for a build or an installation
OUT_OF_IT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "site", "results")

PROGRAM = """
import dataflow
from dataflow import BatchData, DataFromList, MapData, MultiProcessRunnerZMQ

def double(dp):
    return [2 * dp[0]]

if __name__ == "__main__":
    print(dataflow.__file__)
    print(dataflow.__version__)
    ds = BatchData(MapData(DataFromList([[k] for k in range(6)], shuffle=False), double), 3)
    with MultiProcessRunnerZMQ(ds, 1, strict=True, context="spawn") as df:
        print([batch[0].tolist() for batch in df])
"""


def setuptools_is_recent():
    """Whether what pyproject.toml asks of the build is installed here, so that nothing has to be fetched."""
    try:
        return int(importlib.metadata.version("setuptools").partition(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        return False


builds = pytest.mark.skipif(not setuptools_is_recent(), reason="builds need setuptools 77 or later")


def run(*command, cwd, environment=None):
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        timeout=TIMEOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def build(kind, source, folder):
    """Let the build backend make one file, as pip does it, in this environment."""
    run(sys.executable, "-c", f"from setuptools.build_meta import *; build_{kind}({str(folder)!r})", cwd=source)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    checkout = shutil.copytree(ROOT, folder / "checkout", ignore=OUT_OF_IT)  # a build leaves files in its source
    (folder / "made").mkdir()
    return build("sdist", checkout, folder / "made")


@pytest.fixture(scope="module")
def wheel(archive, tmp_path_factory):
    """Made from the source archive, so what is missing there is missing here."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    (folder / "made").mkdir()
    return build("wheel", source, folder / "made")


@pytest.fixture
def installed(wheel, tmp_path):
    """An interpreter with our wheel and, so that nothing has to be fetched, the other packages of this one."""
    python = make_environment(tmp_path, "--without-pip")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel, cwd=tmp_path)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = run(python, "-c", code, cwd=tmp_path, environment=clean()).strip()
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(site, "others.pth").write_text("\n".join(sorted(others)))  # their own .pth files are not read: no checkout
    return python


def make_environment(folder, *options):
    run(sys.executable, "-m", "venv", *options, folder / "env", cwd=folder)
    return folder / "env" / "bin" / "python"


def clean():
    """The environment's variables, without those that lead an interpreter to the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def check_it_works(python, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    place, version, batches = run(python, script, cwd=tmp_path, environment=clean()).splitlines()
    assert Path(place).is_relative_to(tmp_path)
    assert version == dataflow.__version__
    assert batches == "[[0, 2, 4], [6, 8, 10]]"
    assert "convert" in run(python, "-m", "dataflow", "--help", cwd=tmp_path, environment=clean())


@builds
def test_the_archive_has_what_a_build_needs(archive):
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "dataflow/py.typed", "dataflow/__init__.py"} <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs", "."))]


@builds
def test_the_wheel_has_every_module_and_no_test(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = email.message_from_bytes(file.read(metadata))
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "dataflow").rglob("*.py")}
    others = {name for name in names if ".dist-info/" not in name}
    assert others == package | {"dataflow/py.typed"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert about["Version"] == dataflow.__version__
    assert about["Requires-Python"] == project["requires-python"]
    needed = [text for text in about.get_all("Requires-Dist") if "extra ==" not in text]
    assert sorted(needed) == sorted(project["dependencies"])


@builds
@pytest.mark.full
def test_the_wheel_works_outside_of_the_checkout(installed, tmp_path):
    check_it_works(installed, tmp_path)


@builds
@pytest.mark.full
def test_the_wheel_works_with_nothing_but_what_it_asks_for(wheel, tmp_path):
    """Fetches the dependencies, so it needs a package registry."""
    python = make_environment(tmp_path)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    check_it_works(python, tmp_path)


def test_the_readme_for_an_index_has_no_relative_link_or_picture():
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = for_an_index(readme, "https://git.example/dataflow/", "v1.2.3")
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    assert targets and all(target.startswith("https://git.example/dataflow/blob/v1.2.3/") for target in targets)
    assert "![" in readme and "![" not in shown
    assert "[Benchmarks](https://git.example/dataflow/blob/v1.2.3/docs/benchmarks.md)" in shown


def test_without_a_repository_its_links_are_plain_text():
    readme = "![A plot](docs/plot.svg)\n\nSee [the `map`](docs/map.md#here), [it](https://a.example/b).\n"
    assert for_an_index(readme, "", "v1") == "See the `map`, [it](https://a.example/b).\n"
    assert not re.search(r"\]\((?!https?:)", for_an_index((ROOT / "README.md").read_text("utf-8"), "", "v1"))


def test_the_changes_of_the_first_release_fit_a_page():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert dataflow.__version__ in text
    assert len(text.splitlines()) < 80
