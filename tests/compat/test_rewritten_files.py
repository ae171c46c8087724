"""`python -m dataflow migrate`: a diff, files that are replaced at once, and a sentence for what cannot be read."""

import os
import re
import stat
import sys

import pytest

import dataflow
from dataflow.__main__ import main

pytest.importorskip("libcst")

OLD = "from tensorpack.dataflow import MapData\n"
NEW = "from dataflow import MapData\n"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(OLD)
    return path


def test_the_changes_are_printed_as_a_diff_and_the_file_stays(script, capsys):
    assert main(["migrate", str(script)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"--- {script}", f"+++ {script}", "@@ -1 +1 @@", f"-{OLD[:-1]}", f"+{NEW[:-1]}"]
    assert err == "files: 1, to change with --write: 1, not read: 0; places to change by hand: 0\n"
    assert script.read_text() == OLD


def test_write_replaces_the_file_and_keeps_mode_and_link(script, tmp_path, capsys):
    script.chmod(0o750)
    link = tmp_path / "link.py"
    link.symlink_to(script)
    assert main(["migrate", "--write", str(link)]) == 0
    assert capsys.readouterr().err.startswith("files: 1, changed: 1, ")
    assert script.read_text() == NEW and link.is_symlink()
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.py", "train.py"]
    before = script.stat()
    assert main(["migrate", "--write", str(link)]) == 0
    assert script.stat().st_mtime_ns == before.st_mtime_ns and script.stat().st_ino == before.st_ino
    assert capsys.readouterr().out == ""


def test_what_is_left_is_printed_with_its_place_and_fails(script, capsys):
    script.write_text("from tensorpack.dataflow import imgaug")
    assert main(["migrate", str(script)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{script}:1:33: imgaug: its augmentors are left out: call any")
    assert err.endswith("; places to change by hand: 1\n")


def test_a_diff_says_where_the_last_line_has_no_end(script, capsys):
    script.write_text(OLD.strip())
    assert main(["migrate", str(script)]) == 0
    assert capsys.readouterr().out.count("\\ No newline at end of file\n") == 2


def make_binary(path):
    path.write_bytes(b"\x00\xff")


@pytest.mark.parametrize(
    ("name", "make", "text"),
    [
        ("folder", lambda path: path.mkdir(), r"folder is a directory: name its files, as in .*folder/\*\.py"),
        ("cells.ipynb", lambda path: path.write_text("{}"), "cells.ipynb is a notebook: export it as a script"),
        ("none.py", lambda path: None, "No such file or directory: .*none.py"),
        ("old.py", lambda path: path.write_text("print 1"), "old.py: line 1, column 1 is not valid Python 3.*2to3"),
        ("binary.py", make_binary, r"binary\.py: .*(decoded|not valid)"),
    ],
)
def test_what_cannot_be_migrated_gets_a_sentence_and_the_other_files_are_migrated(
    name, make, text, script, tmp_path, capsys
):
    make(tmp_path / name)
    assert main(["migrate", "--write", str(tmp_path / name), str(script)]) == 1
    err = capsys.readouterr().err
    first, *_, last = err.splitlines()
    assert re.search(text, first), first
    assert last == "files: 2, changed: 1, not read: 1; places to change by hand: 0"
    assert script.read_text() == NEW


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_gets_a_sentence(script, capsys):
    script.chmod(0)
    assert main(["migrate", str(script)]) == 1
    assert "Permission denied" in capsys.readouterr().err


def test_without_libcst_the_extra_is_named(script, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "libcst", None)
    assert main(["migrate", str(script)]) == 1
    assert 'pip install "dataflow-runners[migrate]"' in capsys.readouterr().err


def test_notes_that_say_the_same_are_one_line_with_all_places(script, capsys):
    uses = "".join(f"imgaug.Resize({k})\n" for k in range(3))
    script.write_text(f"from tensorpack.dataflow import *\nImageFromFile\n{uses}AugmentImageComponent(imgaug.Flip)\n")
    assert main(["migrate", str(script)]) == 1
    *notes, last = capsys.readouterr().err.splitlines()
    assert [note.removeprefix(str(script)).partition(": its ")[0] for note in notes] == [
        ":2:1: ImageFromFile",
        ":3:1: imgaug, AugmentImageComponent",
    ]
    assert notes[1].endswith("(also lines 4, 5, 6)")
    assert last.endswith("; places to change by hand: 6")


def test_of_many_names_that_need_the_same_the_first_are_named(script, capsys):
    names = [f"D.name_{k}" for k in range(6)]
    script.write_text(f"import tensorpack.dataflow as D\n{', '.join(names)}\n")
    assert main(["migrate", str(script)]) == 1
    note, _ = capsys.readouterr().err.splitlines()
    assert f":2:1: {', '.join(names[:4])}, …: it is not a public name" in note


@pytest.mark.parametrize(
    "own", ["dataflow.py", "dataflow/__init__.py", "../src/dataflow.py", "../dataflow/__init__.py"]
)
def test_a_module_of_the_project_that_is_called_dataflow_is_reported(own, tmp_path, capsys):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "train.py"
    script.write_text(OLD)
    module = (tmp_path / "scripts" / own).resolve()
    module.parent.mkdir(parents=True, exist_ok=True)
    module.touch()
    assert main(["migrate", "--write", str(script)]) == 1
    first, _ = capsys.readouterr().err.splitlines()
    assert f"{script}:1:6: dataflow: {str(module).removesuffix('/__init__.py')} has the name of this library" in first
    assert script.read_text() == OLD


def test_a_dataflow_module_above_the_package_of_a_file_is_reported(tmp_path, capsys):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "dataflow.py").touch()
    script = tmp_path / "package" / "train.py"
    script.write_text(OLD)
    assert main(["migrate", str(script)]) == 1
    assert "dataflow.py has the name of this library" in capsys.readouterr().err


def test_a_folder_without_an_init_and_this_library_are_no_modules_of_the_project(script, tmp_path, capsys):
    (tmp_path / "dataflow").mkdir()
    assert main(["migrate", str(script)]) == 0
    (tmp_path / "dataflow").rmdir()
    (tmp_path / "dataflow").symlink_to(os.path.dirname(dataflow.__file__))
    assert main(["migrate", str(script)]) == 0
    assert "files: 1, to change" in capsys.readouterr().err
