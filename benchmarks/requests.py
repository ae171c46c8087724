"""Many small files over HTTP, beside the ways of other libraries: ``python -m benchmarks.requests``.

A server on the loopback, in a process of its own, answers each request after 50 to 150 ms, and 3 % of them with the
status 503. Every contender fetches the same files, in order, in a process of its own, in turn with the others. Ideal
are ``files * latency / 64`` seconds. The CPU time is that of the contender and its workers, without its start.
"""

import argparse
import asyncio
import http.client
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from benchmarks.environments import python_of

__all__ = ["CONTENDERS", "Run", "content", "missed", "table"]

ROOT = Path(__file__).parents[1]
REQUIRES = ("torch==2.13.0", "spdl==0.8.0", "fsspec[http]>=2024.2", "numpy>=1.26", "cloudpickle>=3.0", "tqdm>=4.65")
LATENCY = 0.1  # seconds, on average
FAILING = 0.03  # of all requests
SIZE = 20_000  # bytes of a file
NUM_CONCURRENT = 64
NUM_WORKERS = 32
ATTEMPTS = 6
TIMEOUT = 300.0  # seconds for one run

OURS, BARE = "FetchData", "aiohttp and a semaphore"
MAX_TIME = 1.4  # times the ideal
MAX_CPU = 1.5  # times that of the bare loop


class Run(NamedTuple):
    """One run of a contender: seconds in all, and seconds of CPU time for each file."""

    seconds: float
    cpu: float


def content(number: int) -> bytes:
    """The bytes of a file."""
    return (b"%08d" % number) * (SIZE // 8)


# -- the server --------------------------------------------------------------------------------------------------------


class Answering(asyncio.Protocol):
    """One connection of the server."""

    drawn = random.Random(0)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        number = int(data.split(b" ", 2)[1][1:])
        fails = self.drawn.random() < FAILING
        body = b"" if fails else content(number)
        head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (b"503 Busy" if fails else b"200 OK", len(body))
        delay = LATENCY * (0.5 + self.drawn.random())
        asyncio.get_running_loop().call_later(delay, self.transport.write, head + body)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# -- the contenders ----------------------------------------------------------------------------------------------------

Urls = Sequence[str]


def fetch_data(urls: Urls) -> Iterator[bytes]:
    from dataflow import DataFromList, FetchData

    with FetchData(DataFromList([[url] for url in urls], shuffle=False), 0, NUM_CONCURRENT, retries=ATTEMPTS) as df:
        for (data,) in df:
            yield data


async def get(session: Any, url: str) -> bytes:
    """One file, by aiohttp."""
    for _ in range(ATTEMPTS):
        async with session.get(url) as response:
            if response.status == 200:
                data: bytes = await response.read()
                return data
        await asyncio.sleep(0.05)
    raise OSError(url)


def async_map(urls: Urls) -> Iterator[bytes]:
    import aiohttp

    from dataflow import AsyncMapData, DataFromList

    async def func(dp: Any, session: Any) -> Any:
        return [await get(session, dp[0])]

    ds = DataFromList([[url] for url in urls], shuffle=False)
    with AsyncMapData(ds, func, NUM_CONCURRENT, setup=aiohttp.ClientSession) as df:
        for (data,) in df:
            yield data


def bare_loop(urls: Urls) -> Iterator[bytes]:
    import aiohttp

    async def run() -> list[bytes]:
        limit = asyncio.Semaphore(NUM_CONCURRENT)

        async def one(session: Any, url: str) -> bytes:
            async with limit:
                return await get(session, url)

        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(*(one(session, url) for url in urls))

    yield from asyncio.run(run())


_local = threading.local()


def get_blocking(url: str) -> bytes:
    """One file, by a connection of this thread."""
    parts = urlsplit(url)
    if not hasattr(_local, "connection"):
        _local.connection = http.client.HTTPConnection(parts.netloc)
    for _ in range(ATTEMPTS):
        _local.connection.request("GET", parts.path)
        response = _local.connection.getresponse()
        data: bytes = response.read()
        if response.status == 200:
            return data
        time.sleep(0.05)
    raise OSError(url)


def thread_map(urls: Urls) -> Iterator[bytes]:
    from dataflow import DataFromList, MultiThreadMapData

    ds = DataFromList([[url] for url in urls], shuffle=False)
    with MultiThreadMapData(ds, NUM_CONCURRENT, lambda dp: [get_blocking(dp[0])], strict=True) as df:
        for (data,) in df:
            yield data


def thread_pool(urls: Urls) -> Iterator[bytes]:
    with ThreadPoolExecutor(NUM_CONCURRENT) as pool:
        yield from pool.map(get_blocking, urls)


class Files:
    """A map-style dataset."""

    def __init__(self, urls: Urls) -> None:
        self.urls = urls

    def __len__(self) -> int:
        return len(self.urls)

    def __getitem__(self, index: int) -> bytes:
        return get_blocking(self.urls[index])


def torch_loader(urls: Urls) -> Iterator[bytes]:
    from torch.utils.data import DataLoader

    yield from DataLoader(Files(urls), batch_size=None, num_workers=NUM_WORKERS)  # type: ignore[arg-type]


def spdl_pipeline(urls: Urls) -> Iterator[bytes]:
    import aiohttp
    from spdl.pipeline import PipelineBuilder

    sessions: list[Any] = []

    async def one(url: str) -> bytes:
        if not sessions:
            sessions.append(aiohttp.ClientSession())
        return await get(sessions[0], url)

    builder = PipelineBuilder().add_source(urls).pipe(one, concurrency=NUM_CONCURRENT, output_order="input")
    pipeline = builder.add_sink(4 * NUM_CONCURRENT).build(num_threads=1)
    with pipeline.auto_stop():
        yield from pipeline.get_iterator()


CONTENDERS: dict[str, Callable[[Urls], Iterator[bytes]]] = {
    OURS: fetch_data,
    BARE: bare_loop,
    "AsyncMapData and aiohttp": async_map,
    "MultiThreadMapData, 64 threads": thread_map,
    "ThreadPoolExecutor, 64 threads": thread_pool,
    "torch DataLoader, 32 workers": torch_loader,
    "SPDL, 64 coroutines": spdl_pipeline,
}


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(name: str, port: str, num: int) -> Run:
    """Fetch the files once, in this process."""
    read, url = CONTENDERS[name], f"http://127.0.0.1:{port}/"
    assert len(list(read([f"{url}0"]))) == 1  # imports packages
    urls = [f"{url}{k}" for k in range(num)]
    before, begun = spent(), time.perf_counter()
    for number, data in enumerate(read(urls)):
        assert data == content(number), f"file {number} is wrong"
    assert number == num - 1
    return Run(time.perf_counter() - begun, (spent() - before) / num)


def spent() -> float:
    """Seconds of CPU time of this process and of its workers that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def missed(runs: dict[str, list[Run]], num: int) -> list[str]:
    """The targets that were missed."""
    ours = statistics.median(run.seconds for run in runs[OURS]) / ideal(num)
    pairs = zip(runs[OURS], runs[BARE], strict=True)
    cpu = statistics.median(mine.cpu / bare.cpu for mine, bare in pairs)
    return [
        f"{what}: {found:.2f}, at most {bound} is wanted"
        for what, found, bound in (("seconds / ideal", ours, MAX_TIME), ("CPU / bare loop", cpu, MAX_CPU))
        if found > bound
    ]


def ideal(num: int) -> float:
    return num * LATENCY / NUM_CONCURRENT


def table(runs: dict[str, list[Run]], num: int) -> str:
    """The medians as Markdown."""
    lines = [
        "| contender | seconds | of the ideal | CPU for each file, µs | of the bare loop |",
        "|:--|--:|--:|--:|--:|",
    ]
    for name, found in runs.items():
        seconds, cpu = statistics.median(run.seconds for run in found), statistics.median(run.cpu for run in found)
        ratio = statistics.median(run.cpu / bare.cpu for run, bare in zip(found, runs[BARE], strict=True))
        lines.append(f"| {name} | {seconds:.2f} | {seconds / ideal(num):.2f} | {cpu * 1e6:,.0f} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.requests", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each contender, in turn (%(default)s)")
    parser.add_argument("--files", type=int, default=2000, help="(%(default)s)")
    parser.add_argument("--python", help="an interpreter that has torch, spdl and aiohttp, to install none")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        asyncio.run(serve())
    if chosen.measure:
        print(json.dumps(measure(*chosen.measure, chosen.files)), flush=True)
        os._exit(0)  # without waiting for what a contender leaves
    python = chosen.python or python_of("requests", REQUIRES)
    command = [python, "-m", "benchmarks.requests", "--files", str(chosen.files)]
    runs: dict[str, list[Run]] = {name: [] for name in CONTENDERS}
    with subprocess.Popen([*command, "--serve"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            for _ in range(chosen.runs):
                for name, found in runs.items():
                    one = [*command, "--measure", name, port]
                    done = subprocess.run(one, cwd=ROOT, stdout=subprocess.PIPE, timeout=TIMEOUT, check=True)
                    found.append(Run(*json.loads(done.stdout)))
                    print(name, *(f"{value:.4g}" for value in found[-1]), file=sys.stderr, flush=True)
        finally:
            server.kill()
    print(table(runs, chosen.files))
    wrong = missed(runs, chosen.files)
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
