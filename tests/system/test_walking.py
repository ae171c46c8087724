"""Walking through folders: what os.walk finds, links, and no loops."""

import os

import pytest

from dataflow.system.walking import walk


def files_from(folder):
    return sorted(
        os.path.relpath(os.path.join(inner, name), folder) for inner, _, names in walk(str(folder)) for name in names
    )


def make(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


def test_without_links_it_yields_what_os_walk_yields(tmp_path):
    make(tmp_path, "a/1", "a/b/2", "c/3", "4")
    (tmp_path / "empty").mkdir()
    assert list(walk(str(tmp_path))) == list(os.walk(tmp_path))


def test_folders_that_are_removed_from_the_list_are_not_entered(tmp_path):
    make(tmp_path, "a/1", "b/2")
    found = []
    for _, folders, names in walk(str(tmp_path)):
        folders[:] = [name for name in folders if name != "a"]
        found += names
    assert found == ["2"]


def test_a_folder_that_two_links_lead_to_is_found_under_both_names(tmp_path):
    make(tmp_path, "pool/1", "data/own")
    for name in ("data/x", "data/y"):
        (tmp_path / name).symlink_to("../pool", target_is_directory=True)
    assert files_from(tmp_path / "data") == ["own", "x/1", "y/1"]


@pytest.mark.parametrize("target", [".", "..", "../.."])
def test_a_link_to_a_folder_above_ends_there(target, tmp_path):
    make(tmp_path, "a/b/1", "a/2")
    (tmp_path / "a" / "b" / "loop").symlink_to(target, target_is_directory=True)
    assert files_from(tmp_path) == ["a/2", "a/b/1"]


def test_two_folders_that_link_to_each_other_have_an_end(tmp_path):
    make(tmp_path, "a/1", "b/2")
    (tmp_path / "a" / "b").symlink_to("../b", target_is_directory=True)
    (tmp_path / "b" / "a").symlink_to("../a", target_is_directory=True)
    assert files_from(tmp_path) == ["a/1", "a/b/2", "b/2", "b/a/1"]


def test_a_link_that_leads_nowhere_is_a_name_as_for_os_walk(tmp_path):
    (tmp_path / "nowhere").symlink_to("missing")
    (tmp_path / "itself").symlink_to("itself")
    assert files_from(tmp_path) == ["itself", "nowhere"]


def test_a_folder_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        list(walk(str(tmp_path / "missing")))
