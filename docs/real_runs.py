"""Hook of MkDocs: runs a flow while the documents are built, and adds its report, as a page and as a terminal shows it.

So what the page shows is what this version does.
"""

import io
import re
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from rich.console import Console
from rich.text import Text

from dataflow import BatchData, DataFlow, DataFromList, MapData, ParallelData

SECONDS = 4.0
SHAPE = (160, 240, 3)


def photo(k: int) -> bytes:
    """Coloured waves, compressed."""
    y, x = np.mgrid[: SHAPE[0], : SHAPE[1]]
    waves = [np.sin((x * (c + 1 + k % 5) + y * (k % 7)) / 40) for c in range(3)]
    return zlib.compress((127.5 + 127.5 * np.stack(waves, -1)).astype(np.uint8).tobytes(), 9)


def decode(dp: Any) -> Any:
    """Decompress a photograph, and mirror every other one."""
    data, label = dp
    array = np.frombuffer(zlib.decompress(data), np.uint8).reshape(SHAPE)
    return [array[:, :: 1 - 2 * (label % 2)], label]


def make_flow() -> DataFlow:
    """Photographs in batches; two workers decode them."""
    photos = DataFromList([[photo(k), k % 10] for k in range(200)])
    return BatchData(ParallelData(MapData(photos, decode), 2), 20)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add `howto/report.html` and `howto/top.svg`."""
    with make_flow() as df, tempfile.TemporaryDirectory() as directory:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for _ in df:
                pass
        page = Path(directory, "report.html")
        df.report(page)
        made = {"howto/report.html": page.read_text(), "howto/top.svg": _as_shown_in_a_terminal(df.report())}
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def _as_shown_in_a_terminal(text: str) -> str:
    console = Console(record=True, file=io.StringIO(), width=100)
    console.print(Text(text))
    svg = console.export_svg(title="python -m dataflow top photos:make_flow")
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # it would load fonts from elsewhere
