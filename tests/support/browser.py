"""A headless Chromium, that of PyQt6-WebEngine: opens pages one after the other, and reports what they show.

``python browser.py``, in a process of its own, since Qt keeps threads and processes until the end. It reads its task as
JSON, and prints as JSON, for each page, the console's messages, the addresses that it did not load, and the result of a
script.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["open_pages"]

SECONDS = 60  # for a page


def open_pages(
    urls: Sequence[str],
    script: str,
    *,
    width: int = 1000,
    height: int = 800,
    scheme: str = "light",
    click: str = "",
    pictures: Sequence[str] = (),
    timeout: float,
) -> list[dict[str, Any]]:
    """Open pages in a browser without a network.

    Args:
        urls: Addresses of pages. A page may load what has the same scheme and host.
        script: JavaScript, whose value is `content`.
        width: Of the window, pixels.
        height: Of the window, pixels.
        scheme: "light" or "dark", the colours of the system.
        click: Id of an element that is clicked before the script runs; the clipboard is read then.
        pictures: For each page the path of a file; what the window shows is written there, as PNG.
        timeout: Seconds for all pages.

    Returns:
        For each page `console`, `blocked`, `content` and `clipboard`.
    """
    window = {"width": width, "height": height, "scheme": scheme}
    task = json.dumps(
        {"urls": list(urls), "script": script, "click": click, "pictures": list(pictures), "window": window}
    )
    done = subprocess.run(
        [sys.executable, __file__], input=task, capture_output=True, text=True, timeout=timeout, check=False
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(urls), done.stderr
    return found


def main(urls: list[str], script: str, click: str, pictures: list[str], window: dict[str, Any]) -> None:
    os.environ |= {
        "QT_QPA_PLATFORM": "offscreen",
        "QTWEBENGINE_CHROMIUM_FLAGS": "--no-sandbox --disable-gpu --hide-scrollbars "
        f"--blink-settings=preferredColorScheme={0 if window['scheme'] == 'dark' else 1}",
        "QTWEBENGINE_DISABLE_SANDBOX": "1",
    }
    from PyQt6.QtCore import QTimer, QUrl
    from PyQt6.QtWebEngineCore import QWebEnginePage, QWebEngineSettings, QWebEngineUrlRequestInterceptor
    from PyQt6.QtWebEngineWidgets import QWebEngineView
    from PyQt6.QtWidgets import QApplication

    console: list[str] = []
    blocked: list[str] = []
    own = QUrl(urls[0])
    remaining, to_write = iter(urls), iter(pictures)

    class Page(QWebEnginePage):
        def javaScriptConsoleMessage(self, level: Any, message: str, line: int, source: str) -> None:
            console.append(message)

    class Blocker(QWebEngineUrlRequestInterceptor):
        def interceptRequest(self, info: Any) -> None:
            url = info.requestUrl()
            if url.scheme() not in {"data", "blob"} and (url.scheme(), url.authority()) != (
                own.scheme(),
                own.authority(),
            ):
                blocked.append(url.toString())
                info.block(True)

    app = QApplication(sys.argv[:1])
    view = QWebEngineView()
    page, blocker, watch = Page(view), Blocker(), QTimer()
    page.setUrlRequestInterceptor(blocker)
    # Otherwise Chromium itself would refuse such requests, and nobody would see them.
    page.settings().setAttribute(QWebEngineSettings.WebAttribute.LocalContentCanAccessRemoteUrls, True)
    page.settings().setAttribute(QWebEngineSettings.WebAttribute.JavascriptCanAccessClipboard, True)
    watch.timeout.connect(app.quit)

    def show(content: Any) -> None:
        clipboard = app.clipboard().text() if click else ""
        if pictures:
            view.grab().save(next(to_write))
        found = {"console": console, "blocked": blocked, "content": content, "clipboard": clipboard}
        print(json.dumps(found), flush=True)
        open_next()

    def read(_: Any = None) -> None:
        QTimer.singleShot(500 if click or pictures else 100, lambda: page.runJavaScript(script, show))

    def loaded(_: bool) -> None:
        if click:
            page.runJavaScript(f"document.getElementById({click!r}).click()", read)
        else:
            read()

    def open_next() -> None:
        url = next(remaining, None)
        if url is None:
            app.quit()
            return
        console.clear()
        blocked.clear()
        watch.start(SECONDS * 1000)
        page.load(QUrl(url))

    page.loadFinished.connect(loaded)
    view.setPage(page)
    view.resize(window["width"], window["height"])
    view.show()
    open_next()
    app.exec()


if __name__ == "__main__":
    main(**json.load(sys.stdin))
