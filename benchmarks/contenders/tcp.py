"""TCP on the loopback interface: one process sends to the consumer, ours with and without keys, and pickled frames."""

import multiprocessing
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from benchmarks.contenders import Variant
from benchmarks.workloads import Workload
from dataflow import DataFlow, RemoteDataZMQ, send_dataflow_zmq
from dataflow.remote.keys import make_keys

REQUIRES = None
IMPORTS = ()


class Source(DataFlow):
    """A node as a user writes it."""

    def __init__(self, make_datapoints: Callable[[], Iterator[Any]]) -> None:
        self.make_datapoints = make_datapoints

    def __iter__(self) -> Iterator[Any]:
        return self.make_datapoints()


@contextmanager
def sender(target: Callable[..., Any], *args: Any) -> Iterator[None]:
    process = multiprocessing.get_context("fork").Process(target=target, args=args, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def free_address() -> str:
    """For a sender that is started first: a forked process must not inherit the consumer's open socket."""
    with zmq.Context() as context, context.socket(zmq.PULL) as probe:
        probe.bind("tcp://127.0.0.1:*")
        return probe.getsockopt_string(zmq.LAST_ENDPOINT)


def send_ours(address: str, workload: Workload, keys: str | None) -> None:
    send_dataflow_zmq(Source(workload.source), address, curve=keys)


def ours(*, curve: bool) -> Variant:
    @contextmanager
    def open_stream(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
        with tempfile.TemporaryDirectory() as folder:
            keys = str(Path(folder) / "keys") if curve else None
            if keys:
                make_keys(keys)
            address = free_address()
            with sender(send_ours, address, workload, keys), RemoteDataZMQ(address, curve=keys) as df:
                yield iter(df)

    return variant(open_stream)


def send_pickled(address: str, workload: Workload, copy: bool) -> None:
    """Protocol 5 with its buffers out of band, each in a frame; the high-water mark as many messages as the window."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.set_hwm(workload.window)
        socket.connect(address)
        for dp in workload.source():
            buffers: list[pickle.PickleBuffer] = []
            head = pickle.dumps(dp, 5, buffer_callback=buffers.append)
            socket.send_multipart([head, *buffers], copy=copy)


def pickled(*, copy: bool) -> Variant:
    @contextmanager
    def open_stream(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
        address = free_address()
        with (
            sender(send_pickled, address, workload, copy),
            zmq.Context() as context,
            context.socket(zmq.PULL) as socket,
        ):
            socket.set_hwm(workload.window)
            socket.bind(address)
            yield received(socket)

    return variant(open_stream)


def received(socket: Any) -> Iterator[Any]:
    while True:
        head, *buffers = socket.recv_multipart(copy=False)
        yield pickle.loads(head.buffer, buffers=[frame.buffer for frame in buffers])


def variant(open_stream: Callable[..., Any]) -> Variant:
    # Not among the peers of runners: one sender, over the network.
    return Variant(
        open_stream, workloads=("small", "image", "batch"), workers=(1,), in_processes=False, runs_source=False
    )


VARIANTS = {
    "ours": ours(curve=False),
    "ours-curve": ours(curve=True),
    "pickle5": pickled(copy=True),  # a datapoint arrives as it was when it was sent, as in this library
    "pickle5-uncopied": pickled(copy=False),  # the sender must never change its arrays
}
