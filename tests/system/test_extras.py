"""Optional packages are imported when they are needed, and named with their extra where they are missing."""

import xml.dom.minidom

import pytest

from dataflow.errors import MissingExtra
from dataflow.system.extras import optional


def test_a_package_that_is_installed_is_imported():
    assert optional("xml.dom.minidom", "xml", "XML files need") is xml.dom.minidom


def test_a_missing_package_is_named_with_its_purpose_and_its_extra():
    message = r'^Tables need the package no_such_package: pip install "dataflow-runners\[tables\]"$'
    with pytest.raises(MissingExtra, match=message) as caught:
        optional("no_such_package", "tables", "Tables need")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_package_that_lacks_what_it_needs_itself_counts_as_missing(tmp_path, monkeypatch):
    (tmp_path / "made_by_a_test.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtra, match="the package made_by_a_test") as caught:
        optional("made_by_a_test", "made", "This test needs")
    assert caught.value.__cause__.name == "no_such_package"
