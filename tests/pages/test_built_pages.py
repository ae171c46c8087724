"""The built pages: links lead somewhere, nothing is loaded from elsewhere, and assistants find all of them.

To build them takes half a minute of the processor, so what looks at them is not in the quick suite; `make check` builds
them too, where a link that is broken in a page's source is an error.
"""

import importlib.util
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
LOADING = {"src", "srcset", "poster", "data"}


class Found(HTMLParser):
    """The ids of a page, where its links lead, and what it loads."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads, self.title, self._open = set(), [], [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        self._open = tag
        if tag in {"a", "area"} and given.get("href"):
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in {"canonical", "alternate"} and given.get("href"):
            (self.links if given["rel"] in {"next", "prev"} else self.loads).append(given["href"])
        self.loads += [given[name] for name in LOADING & given.keys() if given[name]]

    def handle_data(self, data):
        if self._open == "title" and not self.title:
            self.title = data


@pytest.fixture(scope="module")
def pages(built):
    return {path: Found(path.read_text("utf-8")) for path in sorted(built.rglob("*.html"))}


def broken(link, page, pages, root):
    """Why a link of a page leads nowhere, or None."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None if parts.scheme in {"http", "https", "mailto", "data"} else f"{link}: of another kind"
    base = root if parts.path.startswith("/") else page.parent
    target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else page
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return f"{link}: no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].ids:
        return f"{link}: no such place"
    return None


@pytest.mark.full
def test_no_link_is_broken(pages, built):
    found = {
        f"{page.relative_to(built)}: {why}"
        for page, content in pages.items()
        for link in content.links + content.loads
        if page.name != "404.html" and (why := broken(link, page, pages, built))
    }
    assert not found
    assert len(pages) > 30


@pytest.mark.full
def test_nothing_is_loaded_from_elsewhere(pages, built):
    loads = {(page.name, load) for page, content in pages.items() for load in content.loads}
    for style in built.rglob("*.css"):
        loads |= {(style.name, load) for load in re.findall(r"url\(['\"]?([^'\")]+)", style.read_text("utf-8"))}
    elsewhere = {(name, load) for name, load in loads if urlsplit(load).scheme != "data" and urlsplit(load).netloc}
    assert not elsewhere
    assert len(loads) > 20


def test_a_broken_link_and_a_load_from_elsewhere_are_found(tmp_path):
    page, other = tmp_path / "index.html", tmp_path / "other.html"
    page.write_text('<a href="other.html#here">x</a><a href="other.html#there">x</a><a href="gone/">x</a>')
    other.write_text('<p id="here"><img src="https://example.org/x.png"><link rel="stylesheet" href="//example.org/y">')
    pages = {path: Found(path.read_text()) for path in (page, other)}
    assert [broken(link, page, pages, tmp_path) for link in pages[page].links] == [
        None,
        "other.html#there: no such place",
        "gone/: no such file",
    ]
    assert pages[other].loads == ["https://example.org/x.png", "//example.org/y"]


@pytest.mark.full
def test_assistants_find_every_page_with_what_it_is_about(pages, built):
    text = (built / "llms.txt").read_text("utf-8")
    assert text.startswith("# dataflow\n\n> ")
    rows = re.findall(r"^- \[(.+?)\]\((.*?)\): (.+)$", text, re.MULTILINE)
    listed = {(built / url / "index.html").resolve() for _, url, _ in rows}
    sources = [path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")]
    assert listed == {built / ("" if name == Path("index") else name) / "index.html" for name in sources}
    assert len(rows) == len(listed)
    assert all(description != title for title, _, description in rows)


@pytest.mark.full
def test_titles_for_search_engines_are_headings_and_differ(pages, built):
    titles = [content.title for page, content in pages.items() if page.name == "index.html"]
    assert len(set(titles)) == len(titles)
    assert "Resume training in the middle of an epoch - dataflow" in titles


@pytest.mark.full
def test_a_promise_and_an_example_lead_to_their_source(built):
    home = (built / "index.html").read_text("utf-8")
    tests = (built / "tests" / "index.html").read_text("utf-8")
    promised = re.findall(r'href="tests/#(test_\w+)"', home)
    assert len(promised) == 5
    assert all(f'id="{name}"' in tests for name in promised)
    assert tests.count("kill_some") == 2  # the function that the test calls, too
    assert "def shift_and_noise" in re.sub(
        "<.*?>", "", (built / "examples" / "digits" / "index.html").read_text("utf-8")
    )


def test_a_link_to_a_test_that_does_not_exist_is_an_error():
    exceptions = pytest.importorskip("mkdocs.exceptions")
    spec = importlib.util.spec_from_file_location("pages_hook", ROOT / "docs" / "pages.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    source = hook.source_of(Path(__file__), "test_a_broken_link_and_a_load_from_elsewhere_are_found")
    assert all(f"\n{name}(" in f"\n{source}" for name in ("class Found", "def broken"))
    with pytest.raises(exceptions.PluginError, match=r"test_gone in tests/pages/test_built_pages\.py"):
        hook.source_of(Path(__file__), "test_gone")


def test_each_example_is_in_the_gallery_with_a_small_picture():
    text = (ROOT / "docs" / "examples.md").read_text("utf-8")
    programs = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert set(re.findall(r"\]\(\.\./examples/(\w+)\.py\)", text)) == programs
    pictures = {path.stem: path.stat().st_size for path in (ROOT / "docs" / "pictures").iterdir()}
    assert set(re.findall(r"\]\(pictures/(\w+)\.png\)", text)) == programs == set(pictures)
    assert max(pictures.values()) < 100_000


def test_the_number_of_the_front_page_is_that_of_the_readme():
    readme = (ROOT / "README.md").read_text("utf-8")
    number = re.search(r"^\| JPEG files.*?\| ([\d.]+×) \|", readme, re.MULTILINE)[1]
    assert f"**{number}** as many images per second" in (ROOT / "docs" / "index.md").read_text("utf-8")
