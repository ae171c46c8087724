"""Hook of MkDocs: what search engines, assistants and readers of tests need, made of the pages themselves.

- Search engines get the first heading of a page as its title, and its first paragraph as its description.
- `llms.txt` lists all pages with both, for assistants.
- A link to a test, ``../tests/room/test_file.py#test_name``, leads to a page that shows the test with the functions of
  its file that it calls. If there is no such test, the build fails.
- A link to an example, ``../examples/file.py``, leads to a page with its source.
"""

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((?:\.\./)+(tests/[\w/]+\.py)#(\w+)\)")
EXAMPLE = re.compile(r"\]\((?:\.\./)+(examples/\w+)\.py\)")
TESTS = "tests.md"
MAX_DESCRIPTION = 200  # characters


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page with the tests, and one for each example, that other pages link to."""
    texts = [file.content_string for file in files.documentation_pages()]
    linked = {link for text in texts for link in LINK.findall(text)}
    text = "# Tests of what the pages promise\n\nEach of them runs before a change is merged.\n"
    for path, name in sorted(linked):
        text += f"\n## {name} {{ #{name} }}\n\nFrom `{path}`:\n\n```python\n{source_of(ROOT / path, name)}\n```\n"
    pages = {TESTS: text}
    for path in {path for text in texts for path in EXAMPLE.findall(text)}:
        source = (ROOT / path).with_suffix(".py").read_text("utf-8")
        pages[f"{path}.md"] = f"# {path}.py\n\n```python\n{source}```\n"
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Add `llms.txt`: the pages that are in no section first."""
    sections: dict[str, list[str]] = {"Pages": []}
    for page in nav.pages:
        title, description = title_and_description(page.file.content_string)
        section = page.ancestors[-1].title if page.ancestors else "Pages"
        sections.setdefault(section, []).append(f"- [{title}]({page.url}): {description}")
    lists = ["\n".join([f"## {section}", "", *lines]) for section, lines in sections.items()]
    text = "\n\n".join([f"# {config.site_name}", f"> {config.site_description}", *lists])
    files.append(File.generated(config, "llms.txt", content=text + "\n"))
    return nav


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Give the page its title and description, and lead links to tests and examples to theirs."""
    title, description = title_and_description(page.file.content_string)
    page.meta = {"title": title, "description": description, **page.meta}
    up = "../" * page.file.src_uri.count("/")
    return EXAMPLE.sub(rf"]({up}\1.md)", LINK.sub(rf"]({up}{TESTS}#\2)", markdown))


def title_and_description(text: str) -> tuple[str, str]:
    """The first heading, and the beginning of the first paragraph, of a page in Markdown."""
    title = re.search(r"^# (.+)", text, re.MULTILINE)
    if title is None:
        raise PluginError(f"a page has no heading: {text[:80]!r}")
    prose = re.sub(r"^([ \t]*```).*?^\1", "", text[title.end() :], flags=re.MULTILINE | re.DOTALL)
    paragraph = re.search(r"^[A-Za-z`*\[].*?(?=\n\n|\Z)", prose, re.MULTILINE | re.DOTALL)
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", paragraph[0] if paragraph else title[1])
    sentences = re.split(r"(?<=[.!?]) ", " ".join(plain.split()))
    while len(sentences) > 1 and len(" ".join(sentences)) > MAX_DESCRIPTION:
        del sentences[-1]
    return title[1], " ".join(sentences).rstrip(":")


def source_of(path: Path, name: str) -> str:
    """The source of a function of a file, below that of the functions and classes of the file that it needs."""
    text = path.read_text("utf-8") if path.is_file() else ""
    defined = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    if name not in defined:
        raise PluginError(f"a page links to {name} in {path.relative_to(ROOT)}, where there is no such test")
    needed, new = {name}, [name]
    while new:
        found = {node.id for node in ast.walk(defined[new.pop()]) if isinstance(node, ast.Name)}
        new += (found & defined.keys()) - needed
        needed |= found & defined.keys()
    nodes = sorted((defined[each] for each in needed), key=lambda node: node.lineno)
    first_lines = [min([node.lineno, *(mark.lineno for mark in node.decorator_list)]) for node in nodes]
    lines = text.splitlines()
    return "\n\n\n".join(
        "\n".join(lines[first - 1 : node.end_lineno]) for first, node in zip(first_lines, nodes, strict=True)
    )
