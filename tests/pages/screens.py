"""Pictures of the built pages, to be looked at: ``make screens`` writes them into site/screens/.

Needs PyQt6-WebEngine.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.browser import open_pages
from tests.support.http_server import serving_folder

__all__ = ["take_pictures"]

PAGES = {
    "home": "",
    "benchmarks": "benchmarks/",
    "case-studies": "case-studies/",
    "howto": "howto/is-my-loader-the-bottleneck/",
    "report": "howto/report.html",
}
WIDTHS = 1280, 400
HEIGHT = 2400
TIMEOUT = 300.0  # seconds for the pages of one width


def take_pictures(site: Path, folder: Path, pages: Mapping[str, str], widths: Sequence[int]) -> list[Path]:
    """Write a picture of each page at each width, light and dark; return the files."""
    folder.mkdir(exist_ok=True)
    written = []
    with serving_folder(site) as server:
        urls = [f"{server.url}/{page}" for page in pages.values()]
        for width in widths:
            for scheme in ("light", "dark"):
                files = [folder / f"{name}-{width}-{scheme}.png" for name in pages]
                names = [str(file) for file in files]
                open_pages(urls, "0", width=width, height=HEIGHT, scheme=scheme, pictures=names, timeout=TIMEOUT)
                written += files
    return written


if __name__ == "__main__":
    built = Path(sys.argv[1])
    print(*take_pictures(built, built / "screens", PAGES, WIDTHS), sep="\n")
