"""Every built page in a headless Chromium. Needs PyQt6-WebEngine and MkDocs: ``make test-browser``."""

import pytest

from tests.pages.screens import take_pictures
from tests.support.browser import open_pages
from tests.support.http_server import serving_folder
from tests.support.waits import LIMIT

pytest.importorskip("PyQt6.QtWebEngineCore", exc_type=ImportError)

READ = """
(() => ({
    width: innerWidth,
    scrolled: document.documentElement.scrollWidth,
    images: [...document.images].filter(image => image.loading != "lazy" && !(image.complete && image.naturalWidth))
        .map(image => image.src),
    background: getComputedStyle(document.body).backgroundColor,
}))()
"""


def open_all(folder, width, scheme):
    """What is wrong with the pages of a folder: sentences."""
    wrong = []
    with serving_folder(folder) as server:
        paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
        urls = [f"{server.url}/{path.removesuffix('index.html')}" for path in paths if path != "404.html"]
        found = open_pages(urls, READ, width=width, scheme=scheme, timeout=5 * LIMIT)
    for path, page in zip(paths[paths[0] == "404.html" :], found, strict=True):
        content = page["content"]
        assert content["width"] == width
        wrong += [f"{path}: {message}" for message in page["console"]]
        wrong += [f"{path} loads {url}" for url in page["blocked"]]
        wrong += [f"{path} does not show {url}" for url in content["images"]]
        if content["scrolled"] > width:
            wrong.append(f"{path} is {content['scrolled']} pixels wide in a window of {width}")
    return wrong


@pytest.mark.full
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_every_page_opens_without_errors_and_fits_the_window(width, scheme, built):
    assert open_all(built, width, scheme) == []


def test_a_picture_shows_the_page_in_its_colours(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text(
        "<style>body { background: #def } @media (prefers-color-scheme: dark) { body { background: #123 } }</style>"
    )
    written = take_pictures(tmp_path / "site", tmp_path / "screens", {"home": ""}, widths=(300,))
    assert [path.name for path in written] == ["home-300-light.png", "home-300-dark.png"]
    from PyQt6.QtGui import QImage

    pictures = [QImage(str(path)) for path in written]
    assert [picture.width() for picture in pictures] == [300, 300]
    assert [picture.pixelColor(9, 9).name() for picture in pictures] == ["#ddeeff", "#112233"]


def test_what_is_wrong_with_a_page_is_found(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text("<p>Fine.")
    (tmp_path / "b.html").write_text(
        "<div style='width: 900px'>wide</div><img src='none.png'><img src='http://127.0.0.1:9/picture.png'>"
        "<script>console.error('an error')</script>"
    )
    wrong = "\n".join(open_all(tmp_path, 400, "light"))
    for part in ("b.html: an error", "does not show", "loads http://127.0.0.1:9/picture.png", "pixels wide"):
        assert part in wrong
    assert "a/index.html" not in wrong
