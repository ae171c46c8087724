"""An HTTP server on the loopback, in a thread of the test, whose replies the test decides."""

import asyncio
import contextlib
import mimetypes
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.waits import LIMIT, wait_until


@dataclass
class Reply:
    """What the server sends.

    Attributes:
        body: All of it; a HEAD request gets its headers only.
        status: The status.
        headers: Further headers; an empty one is left out.
        sends: How many bytes of the body are sent before the connection is closed; None for all.
        held: Whether nothing is sent until `Server.release` is called.
    """

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    sends: int | None = None
    held: bool = False


Answer = Callable[[str, int], Reply]
"""From the path of a request, and the number of requests for it so far, from 1, to the reply."""


class Server:
    """The server.

    Attributes:
        url: Where it is, without a slash at the end.
        requests: The number of requests by method and path.
        running: How many requests run.
        most: How many ran at a time.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._writers: weakref.WeakSet[asyncio.StreamWriter] = weakref.WeakSet()
        self.url = ""
        self.requests: Counter[str] = Counter()
        self.running = self.most = 0
        self._thread = threading.Thread(target=self._run)

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._released.set)

    @contextlib.contextmanager
    def active(self) -> Iterator["Server"]:
        self._thread.start()
        wait_until(lambda: self.url, LIMIT, "the server does not listen")
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._loop.run_forever()
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(task)
        self._loop.run_until_complete(asyncio.sleep(0))  # a transport closes its socket in the next step of the loop
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
                self.requests[f"{method} {path}"] += 1
                self.running += 1
                self.most = max(self.most, self.running)
                try:
                    reply = self._answer(path, self.requests[f"{method} {path}"])
                    if reply.held:
                        await self._released.wait()
                finally:
                    self.running -= 1
                headers = {"Content-Length": str(len(reply.body)), **reply.headers}
                lines = [
                    f"HTTP/1.1 {reply.status} text",
                    *(f"{name}: {value}" for name, value in headers.items() if value),
                ]
                writer.write("\r\n".join([*lines, "", ""]).encode())
                if method != "HEAD":
                    writer.write(reply.body[: reply.sends])
                await writer.drain()
                if reply.sends is not None:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    with Server(answer).active() as server:
        yield server


def serving_folder(folder: Path) -> contextlib.AbstractContextManager[Server]:
    """Answer requests with the files of a folder."""

    def answer(path: str, _: int) -> Reply:
        file = folder / path.partition("?")[0].lstrip("/")
        file = file / "index.html" if file.is_dir() else file
        if not file.is_file():
            return Reply(status=404)
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        return Reply(file.read_bytes(), headers={"Content-Type": kind})

    return serving(answer)
