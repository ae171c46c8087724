"""Composable dataflows: load and augment training data in the background, exactly and reproducibly.

Chain nodes, wrap the chain in a runner, iterate. A *dataflow* is an endless sequence of passes over datapoints. Nodes
wrap nodes; a runner moves the work of a flow into threads or processes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dataflow.old_places import watch as _watch_old_places

if TYPE_CHECKING:  # for type checkers and editors; at run time each name is imported at its first use
    # The protocol
    from dataflow.base import DataFlow, ProxyDataFlow, RNGDataFlow
    from dataflow.errors import (
        DataFlowError,
        DataFlowTerminated,
        Dropped,
        EmptyPass,
        FileDamaged,
        LengthUnknown,
        MissingExtra,
        NotAddressable,
        NotPicklable,
        NotReentrant,
        NotReproducible,
        NotStorable,
        PickleRefused,
        ReceiverLost,
        SenderLost,
        ShapeMismatch,
        SourceExhausted,
        StateMismatch,
        TimeoutError as TimeoutError,
        TooManyFailures,
        WorkerDied,
        WorkerError,
    )
    from dataflow.datapoint import empty as empty
    from dataflow.seeding import seed as seed
    from dataflow.version import __version__ as __version__
    from dataflow.workers.info import WorkerInfo, worker_info

    # Sources
    from dataflow.sources.folders import ImageFolderData
    from dataflow.sources.in_memory import DataFromList
    from dataflow.sources.iterating import DataFromAsyncIterable, DataFromGenerator, DataFromIterable
    from dataflow.sources.queues import DataFromQueue
    from dataflow.sources.synthetic import FakeData

    # Transforms
    from dataflow.transforms.batching import BatchData, BatchDataByShape
    from dataflow.transforms.augmenting import RandomMapData
    from dataflow.transforms.caching import CacheData
    from dataflow.transforms.awaiting import AsyncMapData
    from dataflow.transforms.filtering import FilterData
    from dataflow.transforms.joining import ConcatData, JoinData
    from dataflow.transforms.mapping import MapData, MapDataComponent
    from dataflow.transforms.mixing import MixData, RandomChooseData, RandomMixData
    from dataflow.transforms.padding import BucketBatchData, PadBatchData
    from dataflow.transforms.repeating import FixedSizeData, RepeatedData, RepeatedDataPoint
    from dataflow.transforms.resuming import ResumableData
    from dataflow.transforms.selecting import FlattenData, SelectComponent
    from dataflow.transforms.sharding import ShardData
    from dataflow.transforms.shuffling import LocallyShuffleData, ShuffleData
    from dataflow.transforms.token_blocks import PackData

    # Diagnostics
    from dataflow.diagnostics.display import PrintData
    from dataflow.diagnostics.speed import TestDataSpeed
    from dataflow.profiling import profile as profile

    # Runners and parallel maps
    from dataflow.parallel.map_variants import (
        MultiProcessMapAndBatchData,
        MultiProcessMapAndBatchDataZMQ,
        MultiProcessMapDataComponentSharedArray,
    )
    from dataflow.parallel.maps import MultiProcessMapData, MultiProcessMapDataZMQ, MultiThreadMapData
    from dataflow.parallel.runners import MultiProcessRunner, MultiProcessRunnerZMQ, MultiThreadRunner

    # The interface of ELEKTRONN: arrays in shared memory, and background processes that fill them
    from dataflow.shared.arrays import SharedMem
    from dataflow.shared.background import BackgroundProc
    from dataflow.shared.fifo import SharedQ
    from dataflow.shared.source import BackgroundData

    # Formats: datapoints on disk
    from dataflow.formats.disk_cache import DiskCacheData
    from dataflow.formats.fetching import FetchData
    from dataflow.formats.hdf5 import HDF5Data, HDF5Serializer
    from dataflow.formats.lmdb import LMDBData, LMDBDataDecoder, LMDBSerializer
    from dataflow.formats.npz import NumpySerializer
    from dataflow.formats.json_lines import JSONLinesData
    from dataflow.formats.svmlight import SVMLightData
    from dataflow.formats.tables import TableData
    from dataflow.formats.tfrecord import TFRecordSerializer
    from dataflow.formats.webdataset import WebDatasetData

    # Over the network
    from dataflow.remote.receiving import RemoteDataZMQ
    from dataflow.remote.sending import send_dataflow_zmq

    # On a Ray cluster
    from dataflow.distributed.datasets import from_ray_dataset, to_ray_dataset
    from dataflow.distributed.runners import RayMapData
    from dataflow.distributed.object_store import PlasmaGetData, PlasmaPutData
    from dataflow.distributed.runners import RayRunner
    from dataflow.parallel_data import ParallelData

    # For training frameworks
    from dataflow.frameworks.device import PrefetchToDevice
    from dataflow.frameworks.torch_dataset import to_torch

    # Old names
    from dataflow.aliases import MultiProcessPrefetchData, MultiThreadPrefetchData, PrefetchData, PrefetchDataZMQ

__all__ = [
    # The protocol. A star import must not shadow names such as `TimeoutError`, `seed`, `empty` and `profile`.
    "DataFlow",
    "ProxyDataFlow",
    "RNGDataFlow",
    "WorkerInfo",
    "worker_info",
    # Errors
    "DataFlowError",
    "DataFlowTerminated",
    "Dropped",
    "EmptyPass",
    "FileDamaged",
    "LengthUnknown",
    "MissingExtra",
    "NotAddressable",
    "NotPicklable",
    "NotReentrant",
    "NotReproducible",
    "NotStorable",
    "PickleRefused",
    "ReceiverLost",
    "SenderLost",
    "ShapeMismatch",
    "SourceExhausted",
    "StateMismatch",
    "TooManyFailures",
    "WorkerDied",
    "WorkerError",
    # Sources
    "DataFromAsyncIterable",
    "DataFromGenerator",
    "DataFromIterable",
    "DataFromList",
    "DataFromQueue",
    "FakeData",
    "ImageFolderData",
    # Transforms
    "AsyncMapData",
    "BatchData",
    "BatchDataByShape",
    "BucketBatchData",
    "CacheData",
    "ConcatData",
    "FilterData",
    "FixedSizeData",
    "FlattenData",
    "JoinData",
    "LocallyShuffleData",
    "MapData",
    "MapDataComponent",
    "MixData",
    "PackData",
    "PadBatchData",
    "RandomChooseData",
    "RandomMapData",
    "RandomMixData",
    "RepeatedData",
    "RepeatedDataPoint",
    "ResumableData",
    "SelectComponent",
    "ShardData",
    "ShuffleData",
    # Diagnostics
    "PrintData",
    "TestDataSpeed",
    # Runners and parallel maps
    "MultiProcessMapAndBatchData",
    "MultiProcessMapAndBatchDataZMQ",
    "MultiProcessMapData",
    "MultiProcessMapDataComponentSharedArray",
    "MultiProcessMapDataZMQ",
    "MultiProcessRunner",
    "MultiProcessRunnerZMQ",
    "MultiThreadMapData",
    "MultiThreadRunner",
    # The interface of ELEKTRONN
    "BackgroundData",
    "BackgroundProc",
    "SharedMem",
    "SharedQ",
    # Formats
    "DiskCacheData",
    "FetchData",
    "HDF5Data",
    "HDF5Serializer",
    "JSONLinesData",
    "LMDBData",
    "LMDBDataDecoder",
    "LMDBSerializer",
    "NumpySerializer",
    "SVMLightData",
    "TFRecordSerializer",
    "TableData",
    "WebDatasetData",
    # Over the network
    "RemoteDataZMQ",
    "send_dataflow_zmq",
    # On a Ray cluster
    "PlasmaGetData",
    "PlasmaPutData",
    "RayMapData",
    "RayRunner",
    "ParallelData",
    "from_ray_dataset",
    "to_ray_dataset",
    # For training frameworks
    "PrefetchToDevice",
    "to_torch",
    # Old names and old places
    "MultiProcessPrefetchData",
    "MultiThreadPrefetchData",
    "PrefetchData",
    "PrefetchDataZMQ",
]

# The module of each public name. tests/test_architecture.py keeps this table, the imports above and `__all__` equal.
_MODULE_OF = {
    # The protocol
    "DataFlow": "dataflow.base",
    "ProxyDataFlow": "dataflow.base",
    "RNGDataFlow": "dataflow.base",
    "DataFlowError": "dataflow.errors",
    "DataFlowTerminated": "dataflow.errors",
    "Dropped": "dataflow.errors",
    "EmptyPass": "dataflow.errors",
    "FileDamaged": "dataflow.errors",
    "LengthUnknown": "dataflow.errors",
    "MissingExtra": "dataflow.errors",
    "NotAddressable": "dataflow.errors",
    "NotPicklable": "dataflow.errors",
    "NotReentrant": "dataflow.errors",
    "NotReproducible": "dataflow.errors",
    "NotStorable": "dataflow.errors",
    "PickleRefused": "dataflow.errors",
    "ReceiverLost": "dataflow.errors",
    "SenderLost": "dataflow.errors",
    "ShapeMismatch": "dataflow.errors",
    "SourceExhausted": "dataflow.errors",
    "StateMismatch": "dataflow.errors",
    "TimeoutError": "dataflow.errors",
    "TooManyFailures": "dataflow.errors",
    "WorkerDied": "dataflow.errors",
    "WorkerError": "dataflow.errors",
    "empty": "dataflow.datapoint",
    "seed": "dataflow.seeding",
    "__version__": "dataflow.version",
    "WorkerInfo": "dataflow.workers.info",
    "worker_info": "dataflow.workers.info",
    # Sources
    "DataFromList": "dataflow.sources.in_memory",
    "DataFromAsyncIterable": "dataflow.sources.iterating",
    "DataFromGenerator": "dataflow.sources.iterating",
    "DataFromIterable": "dataflow.sources.iterating",
    "DataFromQueue": "dataflow.sources.queues",
    "FakeData": "dataflow.sources.synthetic",
    "ImageFolderData": "dataflow.sources.folders",
    # Transforms
    "BatchData": "dataflow.transforms.batching",
    "BatchDataByShape": "dataflow.transforms.batching",
    "RandomMapData": "dataflow.transforms.augmenting",
    "AsyncMapData": "dataflow.transforms.awaiting",
    "CacheData": "dataflow.transforms.caching",
    "FilterData": "dataflow.transforms.filtering",
    "ConcatData": "dataflow.transforms.joining",
    "JoinData": "dataflow.transforms.joining",
    "MapData": "dataflow.transforms.mapping",
    "MapDataComponent": "dataflow.transforms.mapping",
    "MixData": "dataflow.transforms.mixing",
    "RandomChooseData": "dataflow.transforms.mixing",
    "RandomMixData": "dataflow.transforms.mixing",
    "BucketBatchData": "dataflow.transforms.padding",
    "PackData": "dataflow.transforms.token_blocks",
    "PadBatchData": "dataflow.transforms.padding",
    "FixedSizeData": "dataflow.transforms.repeating",
    "RepeatedData": "dataflow.transforms.repeating",
    "RepeatedDataPoint": "dataflow.transforms.repeating",
    "ResumableData": "dataflow.transforms.resuming",
    "FlattenData": "dataflow.transforms.selecting",
    "SelectComponent": "dataflow.transforms.selecting",
    "ShardData": "dataflow.transforms.sharding",
    "LocallyShuffleData": "dataflow.transforms.shuffling",
    "ShuffleData": "dataflow.transforms.shuffling",
    # Diagnostics
    "PrintData": "dataflow.diagnostics.display",
    "TestDataSpeed": "dataflow.diagnostics.speed",
    "profile": "dataflow.profiling",
    # Runners and parallel maps
    "MultiProcessMapAndBatchData": "dataflow.parallel.map_variants",
    "MultiProcessMapAndBatchDataZMQ": "dataflow.parallel.map_variants",
    "MultiProcessMapDataComponentSharedArray": "dataflow.parallel.map_variants",
    "MultiProcessMapData": "dataflow.parallel.maps",
    "MultiProcessMapDataZMQ": "dataflow.parallel.maps",
    "MultiThreadMapData": "dataflow.parallel.maps",
    "MultiProcessRunner": "dataflow.parallel.runners",
    "MultiProcessRunnerZMQ": "dataflow.parallel.runners",
    "MultiThreadRunner": "dataflow.parallel.runners",
    # The interface of ELEKTRONN: arrays in shared memory, and background processes that fill them
    "SharedMem": "dataflow.shared.arrays",
    "BackgroundProc": "dataflow.shared.background",
    "SharedQ": "dataflow.shared.fifo",
    "BackgroundData": "dataflow.shared.source",
    # Formats: datapoints on disk
    "DiskCacheData": "dataflow.formats.disk_cache",
    "FetchData": "dataflow.formats.fetching",
    "HDF5Data": "dataflow.formats.hdf5",
    "HDF5Serializer": "dataflow.formats.hdf5",
    "LMDBData": "dataflow.formats.lmdb",
    "LMDBDataDecoder": "dataflow.formats.lmdb",
    "LMDBSerializer": "dataflow.formats.lmdb",
    "NumpySerializer": "dataflow.formats.npz",
    "SVMLightData": "dataflow.formats.svmlight",
    "TFRecordSerializer": "dataflow.formats.tfrecord",
    "JSONLinesData": "dataflow.formats.json_lines",
    "TableData": "dataflow.formats.tables",
    "WebDatasetData": "dataflow.formats.webdataset",
    # Over the network
    "RemoteDataZMQ": "dataflow.remote.receiving",
    "send_dataflow_zmq": "dataflow.remote.sending",
    # On a Ray cluster
    "from_ray_dataset": "dataflow.distributed.datasets",
    "to_ray_dataset": "dataflow.distributed.datasets",
    "RayMapData": "dataflow.distributed.runners",
    "PlasmaGetData": "dataflow.distributed.object_store",
    "PlasmaPutData": "dataflow.distributed.object_store",
    "RayRunner": "dataflow.distributed.runners",
    "ParallelData": "dataflow.parallel_data",
    # For training frameworks
    "PrefetchToDevice": "dataflow.frameworks.device",
    "to_torch": "dataflow.frameworks.torch_dataset",
    # Old names
    "MultiProcessPrefetchData": "dataflow.aliases",
    "MultiThreadPrefetchData": "dataflow.aliases",
    "PrefetchData": "dataflow.aliases",
    "PrefetchDataZMQ": "dataflow.aliases",
}

_watch_old_places()

if not TYPE_CHECKING:  # otherwise a type checker would accept any misspelt name

    def __getattr__(name: str) -> Any:
        """Import a public name, or a module of this package, at its first use."""
        if name in _MODULE_OF:
            value = getattr(import_module(_MODULE_OF[name]), name)
            globals()[name] = value
            return value
        if not name.startswith("_"):
            try:
                return import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as error:
                if error.name not in {None, f"{__name__}.{name}"}:
                    raise  # the module exists, but a package that it needs does not
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_MODULE_OF, *(name for name in globals() if name.startswith("__"))]
