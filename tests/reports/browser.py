"""A headless Chromium, that of PyQt6-WebEngine: opens a page without a network, and prints as JSON what it shows.

``python browser.py PATH [WIDTH SCHEME]``, in a process of its own: Qt keeps threads and processes until the end. The
button is pressed that copies the text.
"""

import json
import os
import sys

READ = """
(() => ({
    figures: document.getElementById("statistics").textContent,
    verdict: document.querySelector(".verdict").textContent,
    tables: [...document.querySelectorAll("table")].map(
        table => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent))),
    labels: [...document.querySelectorAll("svg")].map(svg => svg.getAttribute("aria-label")),
    drawn: [...document.querySelectorAll("svg")].map(svg => svg.getBoundingClientRect().width > 0),
    titles: [...document.querySelectorAll("h2, h3")].map(title => title.textContent),
    label: document.getElementById("copy").textContent,
    width: innerWidth,
    scrolled: document.documentElement.scrollWidth,
    background: getComputedStyle(document.body).backgroundColor,
    images: [...document.images].map(image => image.complete && image.naturalWidth > 0),
}))()
"""
SECONDS = 60


def main(path, width="1000", scheme="light"):
    os.environ |= {
        "QT_QPA_PLATFORM": "offscreen",
        "QTWEBENGINE_CHROMIUM_FLAGS": "--no-sandbox --disable-gpu --hide-scrollbars "
        f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
        "QTWEBENGINE_DISABLE_SANDBOX": "1",
    }
    from PyQt6.QtCore import QTimer, QUrl
    from PyQt6.QtWebEngineCore import QWebEnginePage, QWebEngineSettings, QWebEngineUrlRequestInterceptor
    from PyQt6.QtWebEngineWidgets import QWebEngineView
    from PyQt6.QtWidgets import QApplication

    console, blocked = [], []

    class Page(QWebEnginePage):
        def javaScriptConsoleMessage(self, level, message, line, source):
            console.append(message)

    class Blocker(QWebEngineUrlRequestInterceptor):
        def interceptRequest(self, info):
            if info.requestUrl().scheme() not in {"file", "data"}:
                blocked.append(info.requestUrl().toString())
                info.block(True)

    app = QApplication(sys.argv[:1])
    view = QWebEngineView()
    page, blocker = Page(view), Blocker()
    page.setUrlRequestInterceptor(blocker)
    # Otherwise Chromium itself would refuse such requests, and nobody would see them.
    page.settings().setAttribute(QWebEngineSettings.WebAttribute.LocalContentCanAccessRemoteUrls, True)

    page.settings().setAttribute(QWebEngineSettings.WebAttribute.JavascriptCanAccessClipboard, True)

    def shown(content):
        clipboard = app.clipboard().text()
        print(json.dumps({"console": console, "blocked": blocked, "content": content, "clipboard": clipboard}))
        app.quit()

    def pressed(_):
        QTimer.singleShot(500, lambda: page.runJavaScript(READ, shown))

    page.loadFinished.connect(lambda _: page.runJavaScript('document.getElementById("copy").click()', pressed))
    view.setPage(page)
    view.resize(int(width), 800)
    view.show()
    page.load(QUrl.fromLocalFile(path))
    QTimer.singleShot(SECONDS * 1000, app.quit)
    app.exec()


if __name__ == "__main__":
    main(*sys.argv[1:])
