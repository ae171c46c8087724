"""Senders for tests of the network: in a thread, in a process, and one that writes what it likes."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import zmq

from dataflow import DataFlow, DataFromList, send_dataflow_zmq
from dataflow.remote.peer_messages import Hello, PeerMessage, PeerMessageKind, pack, parse
from tests.support.waits import LIMIT, wait_until

LOOPBACK = "tcp://127.0.0.1:*"
ROOT = __file__.rpartition("/tests/")[0]


def numbers(n: int, start: int = 0) -> DataFlow:
    return DataFromList([[k] for k in range(start, start + n)], shuffle=False)


class Sending:
    """A pass that is sent from a thread of this process."""

    def __init__(self, df: Any, address: str, **options: Any) -> None:
        self.result: Any = None  # what the function returned, or the exception it raised
        self.thread = threading.Thread(target=self._send, args=(df, address), kwargs={"timeout": LIMIT} | options)
        self.thread.start()

    def _send(self, df: Any, address: str, **options: Any) -> None:
        try:
            self.result = send_dataflow_zmq(df, address, **options)
        except BaseException as error:
            self.result = error

    def wait_result(self) -> Any:
        self.thread.join(LIMIT)
        assert not self.thread.is_alive(), "the sender hangs"
        return self.result


@contextmanager
def sending_process(address: str, flow: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A process that sends the flow which the expression `flow` makes; it is killed in the end, if it still runs."""
    code = (
        "import sys, time; from dataflow import *\n"
        f"send_dataflow_zmq({flow}, {address!r}, {', '.join((f'timeout={LIMIT}', *options))})"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Stranger:
    """Writes whatever bytes to a receiver, and can behave like a sender as far as it likes."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 500)
        self.socket.setsockopt(zmq.SNDTIMEO, int(LIMIT * 1000))  # without a connection, sending waits
        self.socket.connect(address)
        self.sender = b"s" * 16
        self.run = bytes(16)

    def write(self, frames: Sequence[bytes]) -> None:
        self.socket.send_multipart(frames)

    def say(self, kind: PeerMessageKind, number: int = 0, count: int = 0, body: Sequence[bytes] = ()) -> None:
        self.write(pack(PeerMessage(kind, self.run, self.sender, number, count, body)))

    def hello(self, heartbeat: float = 30.0, announced: int | None = None) -> None:
        self.say(
            PeerMessageKind.HELLO,
            body=[Hello("a stranger", self.sender.hex() + str(id(self)), heartbeat, announced).pack()],
        )

    def answer(self, meanwhile: Callable[[], object] = lambda: None) -> PeerMessage:
        """The next message that comes."""

        def received() -> Any:
            meanwhile()
            return self.socket.poll(10) and self.socket.recv_multipart()

        message = parse(wait_until(received, LIMIT, "no answer"))
        assert message is not None
        return message

    def join(self, meanwhile: Callable[[], object]) -> None:
        """Be welcomed, while the receiver is made to take what comes."""
        self.hello()
        message = self.answer(meanwhile)
        assert message.kind is PeerMessageKind.WELCOME
        self.run = message.run

    def close(self) -> None:
        self.socket.close()
        self._context.term()

    def __enter__(self) -> "Stranger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def look(df: Any) -> None:
    """Make the receiver take what has come, without a datapoint."""
    receiver = df._df_state.resource
    assert list(receiver.receive()) == []
