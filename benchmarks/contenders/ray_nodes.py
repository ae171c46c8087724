"""Ray actors on another node than the consumer: RayRunner, and a hand-written loop over equal actors.

The two nodes have object stores of their own, so every datapoint crosses a connection between them. Both run on this
machine (`ray.cluster_utils`): the connection is the loopback interface, and they share the processors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.contenders import ray_actors, ray_data

REQUIRES = ray_actors.REQUIRES
IMPORTS = ray_actors.IMPORTS
ENVIRONMENT = ray_data.ENVIRONMENT | {"RAY_AUTH_MODE": "disabled"}  # other machines cannot reach the nodes

STORE_BYTES = 1_000_000_000
AWAY = {"num_cpus": 1, "resources": {"away": 1}}  # what only the other node has


@contextmanager
def two_nodes(num_workers: int) -> Iterator[Any]:
    """The package ray, connected to a node without workers; another node has room for `num_workers` of them."""
    import ray
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
    try:
        cluster.add_node(num_cpus=num_workers, resources={"away": num_workers}, **store)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield ray
    finally:
        ray.shutdown()
        cluster.shutdown()


VARIANTS = ray_actors.variants(two_nodes, AWAY)
