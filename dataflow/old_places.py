"""Import errors for module paths of tensorpack.dataflow, and of this package's past, which name the new places.

Programs written for tensorpack import from `tensorpack.dataflow.common`, `.raw`, `.base`, `.parallel` and so on.
For modules that do not exist here, the import finder `OldPlaces` raises the error: it is last in `sys.meta_path`, so it
is called only for modules that no other finder has found. A module that does exist (`remote`) raises it in its
``__getattr__``, through `moved`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["OldPlaces", "moved", "watch"]

_PACKAGE: Final = "dataflow"

_MOVED: Final = {
    "common": "BatchData",
    "dataflow": "BatchData",  # the stand-alone package has its modules in dataflow.dataflow
    "dftools": "send_dataflow_zmq",
    "format": "LMDBData",
    "parallel_map": "MultiProcessMapData",
    "prefetch": "PrefetchData",
    "raw": "DataFromList",
    "serialize": "LMDBSerializer",
}
"""Modules of tensorpack.dataflow, each with one of its names."""

_LEFT_OUT: Final = {
    "dataset": "Loaders of public datasets are left out: read them with DataFromList or a source of your own",
    "image": "Its nodes are left out: decode and augment with any image library in MapData",
    "utils": "It is left out, but for fix_rng_seed(n), which is dataflow.seed(n)",
    "imgaug": "It is left out: any augmentation library works in MapData, or in RandomMapData, which has a generator",
}

_NOW_IN: Final = {
    "compat": (
        "aliases migrate.files=rewritten_files migrate.names=old_names migrate.rewriting "
        "shared.arrays=shared_arrays shared.background shared.command_pool shared.fifo shared.layout "
        "shared.source=background_data shared.timing"
    ),
    "observe": (
        "diagnostics.display diagnostics.progress diagnostics.speed engine.node_sampler engine.observer "
        "profiling=profiler remote.receiver_figures reports.figures reports.gathering reports.page=report_page "
        "reports.text=report_text reports.tracing reports.verdict representation "
        "sampling.consumer=consumer_sampler sampling.frames=frame_owners"
    ),
    "protocol": (
        "base datapoint digests event_loop failures fingerprints parallel.changes parameters passes "
        "pauses seeding state user_nodes"
    ),
    "ray": (
        "distributed.actor distributed.backend=ray_backend distributed.cluster distributed.datasets "
        "distributed.object_store distributed.object_store_codec distributed.pull_channel "
        "distributed.push_queue distributed.runners=ray_runners"
    ),
    "remote": "remote.messages=peer_messages remote.options=peer_options",
    "runners": (
        "engine.engine engine.feeding engine.item_watch engine.jobs engine.liveness engine.rebatching "
        "engine.scaling engine.schedules engine.supervisor engine.worker_main parallel.backends "
        "parallel.map_variants parallel.maps parallel.options parallel.runners parallel.worker_node "
        "parallel_data"
    ),
    "sources": "memory.packed_list sources.tables=table_hints",
    "system": (
        "descriptors extras interrupts machine pickling references session urls workers.cleanup "
        "workers.info=worker_info workers.native_threads workers.pool=worker_pool workers.preload "
        "workers.process=worker_process workers.stacks workers.thread=worker_thread "
        "workers.worker_errors"
    ),
    "transforms": "transforms.gathering=grouping",
    "transport": (
        "channel.batching_sender channel.current_item channel.flow_control channel.local=local_channel "
        "channel.messages channel.shared_task_queue channel.task_queue channel.turns "
        "channel.worker_counters channel.zeromq codec.array_codec codec.exceptions codec.message_layout "
        "codec.nested_arrays codec.protocols=codec memory.arena serial.dtypes serial.packing "
        "serial.unpacking"
    ),
}
"""Rooms, each with the modules that came from elsewhere: ``package.module``, and ``=name`` where the name is new."""

_EXAMPLES: Final = {"aliases": "PrefetchData", "base": "DataFlow", "parallel": "PrefetchData", "shared": "SharedMem"}
"""Modules that programs have imported public names from, each with one of them."""


def _new_places() -> dict[str, str]:
    """The new path of each module that has moved, by its old path."""
    places = {}
    for room, modules in _NOW_IN.items():
        for old, _, name in (module.partition("=") for module in modules.split()):
            places[old] = f"{_PACKAGE}.{room}.{name or old.rpartition('.')[2]}"
    return places


def _place_of(module: str) -> str | None:
    """What has become of a module or package, as a clause; None if it has not moved."""
    places = _new_places()
    if module in places:
        return f"it is {places[module]} now"
    inside = [f"{old.partition('.')[2]} is {new}" for old, new in places.items() if old.startswith(f"{module}.")]
    return f"of its modules, {', '.join(inside)}" if inside else None


class OldPlaces:
    """Import finder that raises for modules of tensorpack.dataflow, and leaves all others to Python."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, module = fullname.partition(".")
        if package != _PACKAGE:
            return None
        # Without `name=`: a ModuleNotFoundError that has one is swallowed by `from dataflow import imgaug`.
        if module in _MOVED:
            example = f"from {_PACKAGE} import {_MOVED[module]}"
            raise ModuleNotFoundError(f"there is no {fullname}: everything is at the top level, as in {example}")
        if module in _LEFT_OUT:
            raise ModuleNotFoundError(f"there is no {fullname}. {_LEFT_OUT[module]}")
        if (place := _place_of(module)) is not None:
            example = f"from {_PACKAGE} import {_EXAMPLES.get(module, 'MapData')}"
            raise ModuleNotFoundError(
                f"there is no {fullname}: {place}; everything public is at the top level, as in {example}"
            )
        return None


def watch() -> None:
    """Install the import finder. Idempotent."""
    if OldPlaces not in sys.meta_path:
        sys.meta_path.append(OldPlaces)


def moved(module: str, name: str) -> Exception:
    """The error to raise in the ``__getattr__`` of an existing module, which says where `name` is now.

    It is an ImportError for a public name of the package, because ``from … import`` replaces the text of an
    AttributeError; for any other name it is the usual AttributeError.
    """
    if name in getattr(sys.modules.get(_PACKAGE), "__all__", ()):
        example = f"from {_PACKAGE} import {name}"
        return ImportError(f"{name} is not in {module}: everything is at the top level: {example}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
