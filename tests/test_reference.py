"""The reference: every public name has its entry, the tables give one name for each idea, and old names stand last."""

import re
import tomllib
from pathlib import Path

import pytest

import dataflow
from dataflow.compat import aliases

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
PUBLIC = {*dataflow.__all__, "TimeoutError", "empty", "profile", "seed"}
# Extras for work on the library.
NOT_FOR_USERS = {"browser", "check", "coverage", "dist", "docs", "frameworks", "fuzz", "mutants", "quick", "test"}
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", PAGE, re.MULTILINE))
OLD = SECTIONS["Old names"]


def names_in(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell)) & PUBLIC


def rows_of(section: str) -> list[list[str]]:
    return [re.split(r"(?<!\\)\|", line.strip("|")) for line in section.splitlines() if line.startswith("| ")]


def test_every_public_name_has_one_entry():
    entries = re.findall(r"^::: dataflow\.(\w+)$", PAGE, re.MULTILINE)
    shown = re.findall(r"^      heading: (\w+)$", PAGE, re.MULTILINE)
    old = {name for row in rows_of(OLD) for name in names_in(row[0])}
    assert len(entries) == len(set(entries))
    assert set(entries) | set(shown) | old == PUBLIC
    assert not set(shown) & old


def test_the_tables_name_each_idea_once_and_the_old_names_are_last():
    assert list(SECTIONS)[-1] == "Old names"
    old = {name for row in rows_of(OLD) for name in names_in(row[0])}
    assert old == {*aliases.__all__, "MultiProcessMapDataZMQ", "MultiProcessMapAndBatchDataZMQ"}
    for row in rows_of(OLD):
        for name in names_in(row[0]):
            (now,) = names_in(row[1])
            assert getattr(dataflow, name) is getattr(dataflow, now)
    named = [
        name
        for title, section in SECTIONS.items()
        if title not in {"Old names", "Extras"}
        for row in rows_of(section)
        for name in sorted(names_in(row[0]))
    ]
    assert sorted(named) == sorted(set(named))
    errors = {name for name in PUBLIC if issubclass_of_error(name)}
    assert set(named) == PUBLIC - old - errors


def issubclass_of_error(name: str) -> bool:
    value = getattr(dataflow, name)
    return isinstance(value, type) and issubclass(value, BaseException)


def test_every_extra_is_listed_in_the_reference_and_in_the_readme():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    listed = {name for row in rows_of(SECTIONS["Extras"]) for name in re.findall(r"`([a-z0-9-]+)`", row[0])}
    assert listed == set(extras) - NOT_FOR_USERS
    assert all(f"`{name}`" in README for name in listed)


def test_every_command_is_listed():
    from dataflow.__main__ import main

    commands = re.findall(r"`python -m dataflow (\w+)", SECTIONS["Commands"])
    assert commands == sorted(commands)
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0


def test_the_readme_links_reference_howtos_and_examples():
    for target in ("docs/reference.md", "docs/index.md#how-to", "examples/README.md", "docs/coming-from.md"):
        assert f"]({target})" in README
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    howtos = {path.name for path in (ROOT / "docs" / "howto").glob("*.md")}
    assert {name for name in howtos if f"howto/{name}" in index} == howtos
