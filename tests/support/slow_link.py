"""A TCP connection between two machines that are far apart: a proxy that delays every byte, stalls, and breaks."""

import contextlib
import selectors
import socket
import threading
import time
from collections import deque

_AT_ONCE = 1 << 16


class _Way:
    """Bytes from one end to the other, on their way for `delay` seconds."""

    def __init__(self, source, target):
        self.source = source
        self.target = target
        self.under_way = deque()  # (when it arrives, bytes)
        self.num_bytes = 0
        self.ended = False


class SlowLink:
    """Forwards connections to `target`, a pair of host and port; bandwidth is not limited.

    Args:
        target: Where connections go.
        delay: Seconds that a byte takes, in each direction.

    Attributes:
        address: Where to connect.
        max_under_way: The most bytes that were on their way at once, in one direction of a connection.
    """

    def __init__(self, target, delay):
        self.target = target
        self.delay = delay
        self.max_under_way = 0
        self._stalled_until = 0.0
        self._ways = []
        self._closed = self._broken = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, name="slow link")
        self._thread.start()

    def stall(self, seconds):
        """Let nothing through for a while: packets are lost, and sent again when the cable is back."""
        self._stalled_until = time.monotonic() + seconds

    def cut(self):
        """Close all connections; what is on its way is lost. New ones may follow."""
        self._broken = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._closed = True
        self._thread.join()

    def _run(self):
        with self._listener:
            while not self._closed:
                if self._broken:
                    self._close_all()
                    self._broken = False
                self._accept()
                self._read()
                self._deliver()
            self._close_all()

    def _accept(self):
        with contextlib.suppress(BlockingIOError):
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection(self.target)
            except OSError:
                near.close()
                return
            for end in (near, far):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ways += [_Way(near, far), _Way(far, near)]

    def _read(self):
        with selectors.DefaultSelector() as selector:
            for way in self._ways:
                if not way.ended:
                    selector.register(way.source, selectors.EVENT_READ, way)
            if not selector.get_map():
                time.sleep(0.0005)
            for key, _ in selector.select(0.0005):
                way = key.data
                try:
                    data = way.source.recv(_AT_ONCE)
                except OSError:
                    data = b""
                way.ended = not data
                way.under_way.append((time.monotonic() + self.delay, memoryview(data)))
                way.num_bytes += len(data)
                self.max_under_way = max(self.max_under_way, way.num_bytes)

    def _deliver(self):
        now = time.monotonic()
        if now < self._stalled_until:
            return
        for way in self._ways:
            while way.under_way and way.under_way[0][0] <= now:
                due, data = way.under_way[0]
                try:
                    sent = way.target.send(data) if data else way.target.shutdown(socket.SHUT_WR) or 0
                except BlockingIOError:
                    break
                except OSError:
                    sent = len(data)
                way.num_bytes -= sent
                if sent < len(data):
                    way.under_way[0] = due, data[sent:]
                    break
                way.under_way.popleft()

    def _close_all(self):
        for way in self._ways:
            way.source.close()
        self._ways.clear()
