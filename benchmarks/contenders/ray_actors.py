"""Ray actors: RayRunner, and a hand-written loop over equal actors, with chunks of the same size."""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from benchmarks.contenders import Variant, ray_data
from benchmarks.contenders.ours import flow
from benchmarks.workloads import Workload
from dataflow import RayRunner

REQUIRES = ("ray==2.60.0", "pyzmq", "msgpack", "msgpack-numpy", "tqdm", "cloudpickle")  # the rest is what we need
IMPORTS = ("ray",)
ENVIRONMENT = ray_data.ENVIRONMENT

CHUNK_BYTES, CHUNK_ITEMS, IN_FLIGHT = 8 << 20, 4096, 2  # the defaults of the runner


class Source:
    """An actor that returns its next datapoints on request."""

    def __init__(self, workload: Workload, index: int, num_workers: int) -> None:
        self.stream = workload.source(index, num_workers)

    def chunk(self, count: int) -> list[Any]:
        return list(itertools.islice(self.stream, count))


def looped(ray: Any, workload: Workload, num_workers: int, options: dict[str, Any]) -> Iterator[Any]:
    """The datapoints of actors that are started with these options."""
    count = min(CHUNK_ITEMS, CHUNK_BYTES // workload.max_bytes) if workload.max_bytes else CHUNK_ITEMS
    actor = ray.remote(**options)(Source)
    actors = [actor.remote(workload, index, num_workers) for index in range(num_workers)]
    return pulled(ray.get, actors, max(1, count))


def pulled(get: Callable[[Any], list[Any]], actors: list[Any], count: int) -> Iterator[Any]:
    """The datapoints of the actors in turn; the next chunks of each are requested ahead."""
    pending = deque((actor, actor.chunk.remote(count)) for _ in range(IN_FLIGHT) for actor in actors)
    while True:
        actor, reference = pending.popleft()
        datapoints = get(reference)
        pending.append((actor, actor.chunk.remote(count)))
        yield from datapoints


def variants(cluster: Callable[[int], AbstractContextManager[Any]], options: dict[str, Any]) -> dict[str, Variant]:
    """The runner and the loop.

    Args:
        cluster: Takes a number of workers; yields the package ray, connected to a cluster with room for them.
        options: Those of the actors.
    """

    @contextmanager
    def runner(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
        with cluster(num_workers), RayRunner(flow(workload), num_workers, actor_options=options) as df:
            yield iter(df)

    @contextmanager
    def loop(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
        with cluster(num_workers) as ray:
            yield looped(ray, workload, num_workers, options)

    return {
        name: Variant(stream, workloads=("small", "image", "batch"), in_processes=False, runs_source=False)
        for name, stream in (("runner", runner), ("loop", loop))  # not among the peers of runners on one machine
    }


VARIANTS = variants(ray_data.local_cluster, {"num_cpus": 1})
