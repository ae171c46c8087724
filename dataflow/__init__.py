"""Composable dataflows: load and augment training data in the background, exactly and reproducibly.

Chain nodes, wrap the chain in a runner, iterate. A *dataflow* is an endless sequence of passes over datapoints. Nodes
wrap nodes; a runner moves the work of a flow into threads or processes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dataflow.old_places import watch as _watch_old_places

_NAMES_OF = {  # of each module: all public names, which are imported at their first use
    # The protocol
    "dataflow.protocol.base": "DataFlow ProxyDataFlow RNGDataFlow",
    "dataflow.errors": (
        "DataFlowError DataFlowTerminated Dropped EmptyPass FileDamaged LengthUnknown MissingExtra NotAddressable "
        "NotPicklable NotReentrant NotReproducible NotStorable PickleRefused ReceiverLost SenderLost "
        "ShapeMismatch SourceExhausted StateMismatch TimeoutError TooManyFailures WorkerDied WorkerError"
    ),
    "dataflow.protocol.datapoint": "empty",
    "dataflow.protocol.seeding": "seed",
    "dataflow.version": "__version__",
    "dataflow.system.worker_info": "WorkerInfo worker_info",
    # Sources
    "dataflow.sources.in_memory": "DataFromList",
    "dataflow.sources.iterating": "DataFromAsyncIterable DataFromGenerator DataFromIterable",
    "dataflow.sources.queues": "DataFromQueue",
    "dataflow.sources.synthetic": "FakeData",
    "dataflow.sources.folders": "ImageFolderData",
    # Transforms
    "dataflow.transforms.batching": "BatchData BatchDataByShape",
    "dataflow.transforms.augmenting": "RandomMapData",
    "dataflow.transforms.awaiting": "AsyncMapData",
    "dataflow.transforms.caching": "CacheData",
    "dataflow.transforms.filtering": "FilterData",
    "dataflow.transforms.joining": "ConcatData JoinData",
    "dataflow.transforms.mapping": "MapData MapDataComponent",
    "dataflow.transforms.mixing": "MixData RandomChooseData RandomMixData",
    "dataflow.transforms.padding": "BucketBatchData PadBatchData",
    "dataflow.transforms.token_blocks": "PackData",
    "dataflow.transforms.repeating": "FixedSizeData RepeatedData RepeatedDataPoint",
    "dataflow.transforms.resuming": "ResumableData",
    "dataflow.transforms.selecting": "FlattenData SelectComponent",
    "dataflow.transforms.sharding": "ShardData",
    "dataflow.transforms.shuffling": "LocallyShuffleData ShuffleData",
    # Diagnostics
    "dataflow.observe.display": "PrintData",
    "dataflow.observe.speed": "TestDataSpeed",
    "dataflow.observe.profiler": "profile",
    # Runners and parallel maps
    "dataflow.runners.map_variants": (
        "MultiProcessMapAndBatchData MultiProcessMapAndBatchDataZMQ MultiProcessMapDataComponentSharedArray"
    ),
    "dataflow.runners.maps": "MultiProcessMapData MultiProcessMapDataZMQ MultiThreadMapData",
    "dataflow.runners.runners": "MultiProcessRunner MultiProcessRunnerZMQ MultiThreadRunner",
    # The interface of ELEKTRONN: arrays in shared memory, and background processes that fill them
    "dataflow.compat.shared_arrays": "SharedMem",
    "dataflow.compat.background": "BackgroundProc",
    "dataflow.compat.fifo": "SharedQ",
    "dataflow.compat.background_data": "BackgroundData",
    # Formats: datapoints on disk
    "dataflow.formats.disk_cache": "DiskCacheData",
    "dataflow.formats.fetching": "FetchData",
    "dataflow.formats.hdf5": "HDF5Data HDF5Serializer",
    "dataflow.formats.lmdb": "LMDBData LMDBDataDecoder LMDBSerializer",
    "dataflow.formats.npz": "NumpySerializer",
    "dataflow.formats.svmlight": "SVMLightData",
    "dataflow.formats.tfrecord": "TFRecordSerializer",
    "dataflow.formats.json_lines": "JSONLinesData",
    "dataflow.formats.tables": "TableData",
    "dataflow.formats.webdataset": "WebDatasetData",
    # Over the network
    "dataflow.remote.receiving": "RemoteDataZMQ",
    "dataflow.remote.sending": "send_dataflow_zmq",
    # On a Ray cluster
    "dataflow.ray.datasets": "from_ray_dataset to_ray_dataset",
    "dataflow.ray.ray_runners": "RayMapData RayRunner",
    "dataflow.ray.object_store": "PlasmaGetData PlasmaPutData",
    "dataflow.runners.parallel_data": "ParallelData",
    # For training frameworks
    "dataflow.frameworks.device": "PrefetchToDevice",
    "dataflow.frameworks.torch_dataset": "to_torch",
    # Old names
    "dataflow.compat.aliases": "MultiProcessPrefetchData MultiThreadPrefetchData PrefetchData PrefetchDataZMQ",
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

# A star import must not shadow names such as `TimeoutError`, `seed`, `empty` and `profile`.
__all__ = [name for name in _MODULE_OF if name not in {"TimeoutError", "__version__", "empty", "profile", "seed"}]

if TYPE_CHECKING:  # the same for type checkers and editors, which read only this; tests/test_architecture.py compares
    # The protocol
    from dataflow.protocol.base import DataFlow as DataFlow, ProxyDataFlow as ProxyDataFlow, RNGDataFlow as RNGDataFlow
    from dataflow.errors import (
        DataFlowError as DataFlowError,
        DataFlowTerminated as DataFlowTerminated,
        Dropped as Dropped,
        EmptyPass as EmptyPass,
        FileDamaged as FileDamaged,
        LengthUnknown as LengthUnknown,
        MissingExtra as MissingExtra,
        NotAddressable as NotAddressable,
        NotPicklable as NotPicklable,
        NotReentrant as NotReentrant,
        NotReproducible as NotReproducible,
        NotStorable as NotStorable,
        PickleRefused as PickleRefused,
        ReceiverLost as ReceiverLost,
        SenderLost as SenderLost,
        ShapeMismatch as ShapeMismatch,
        SourceExhausted as SourceExhausted,
        StateMismatch as StateMismatch,
        TimeoutError as TimeoutError,
        TooManyFailures as TooManyFailures,
        WorkerDied as WorkerDied,
        WorkerError as WorkerError,
    )
    from dataflow.protocol.datapoint import empty as empty
    from dataflow.protocol.seeding import seed as seed
    from dataflow.version import __version__ as __version__
    from dataflow.system.worker_info import WorkerInfo as WorkerInfo, worker_info as worker_info

    # Sources
    from dataflow.sources.in_memory import DataFromList as DataFromList
    from dataflow.sources.iterating import (
        DataFromAsyncIterable as DataFromAsyncIterable,
        DataFromGenerator as DataFromGenerator,
        DataFromIterable as DataFromIterable,
    )
    from dataflow.sources.queues import DataFromQueue as DataFromQueue
    from dataflow.sources.synthetic import FakeData as FakeData
    from dataflow.sources.folders import ImageFolderData as ImageFolderData

    # Transforms
    from dataflow.transforms.batching import BatchData as BatchData, BatchDataByShape as BatchDataByShape
    from dataflow.transforms.augmenting import RandomMapData as RandomMapData
    from dataflow.transforms.awaiting import AsyncMapData as AsyncMapData
    from dataflow.transforms.caching import CacheData as CacheData
    from dataflow.transforms.filtering import FilterData as FilterData
    from dataflow.transforms.joining import ConcatData as ConcatData, JoinData as JoinData
    from dataflow.transforms.mapping import MapData as MapData, MapDataComponent as MapDataComponent
    from dataflow.transforms.mixing import (
        MixData as MixData,
        RandomChooseData as RandomChooseData,
        RandomMixData as RandomMixData,
    )
    from dataflow.transforms.padding import BucketBatchData as BucketBatchData, PadBatchData as PadBatchData
    from dataflow.transforms.token_blocks import PackData as PackData
    from dataflow.transforms.repeating import (
        FixedSizeData as FixedSizeData,
        RepeatedData as RepeatedData,
        RepeatedDataPoint as RepeatedDataPoint,
    )
    from dataflow.transforms.resuming import ResumableData as ResumableData
    from dataflow.transforms.selecting import FlattenData as FlattenData, SelectComponent as SelectComponent
    from dataflow.transforms.sharding import ShardData as ShardData
    from dataflow.transforms.shuffling import LocallyShuffleData as LocallyShuffleData, ShuffleData as ShuffleData

    # Diagnostics
    from dataflow.observe.display import PrintData as PrintData
    from dataflow.observe.speed import TestDataSpeed as TestDataSpeed
    from dataflow.observe.profiler import profile as profile

    # Runners and parallel maps
    from dataflow.runners.map_variants import (
        MultiProcessMapAndBatchData as MultiProcessMapAndBatchData,
        MultiProcessMapAndBatchDataZMQ as MultiProcessMapAndBatchDataZMQ,
        MultiProcessMapDataComponentSharedArray as MultiProcessMapDataComponentSharedArray,
    )
    from dataflow.runners.maps import (
        MultiProcessMapData as MultiProcessMapData,
        MultiProcessMapDataZMQ as MultiProcessMapDataZMQ,
        MultiThreadMapData as MultiThreadMapData,
    )
    from dataflow.runners.runners import (
        MultiProcessRunner as MultiProcessRunner,
        MultiProcessRunnerZMQ as MultiProcessRunnerZMQ,
        MultiThreadRunner as MultiThreadRunner,
    )

    # The interface of ELEKTRONN: arrays in shared memory, and background processes that fill them
    from dataflow.compat.shared_arrays import SharedMem as SharedMem
    from dataflow.compat.background import BackgroundProc as BackgroundProc
    from dataflow.compat.fifo import SharedQ as SharedQ
    from dataflow.compat.background_data import BackgroundData as BackgroundData

    # Formats: datapoints on disk
    from dataflow.formats.disk_cache import DiskCacheData as DiskCacheData
    from dataflow.formats.fetching import FetchData as FetchData
    from dataflow.formats.hdf5 import HDF5Data as HDF5Data, HDF5Serializer as HDF5Serializer
    from dataflow.formats.lmdb import (
        LMDBData as LMDBData,
        LMDBDataDecoder as LMDBDataDecoder,
        LMDBSerializer as LMDBSerializer,
    )
    from dataflow.formats.npz import NumpySerializer as NumpySerializer
    from dataflow.formats.svmlight import SVMLightData as SVMLightData
    from dataflow.formats.tfrecord import TFRecordSerializer as TFRecordSerializer
    from dataflow.formats.json_lines import JSONLinesData as JSONLinesData
    from dataflow.formats.tables import TableData as TableData
    from dataflow.formats.webdataset import WebDatasetData as WebDatasetData

    # Over the network
    from dataflow.remote.receiving import RemoteDataZMQ as RemoteDataZMQ
    from dataflow.remote.sending import send_dataflow_zmq as send_dataflow_zmq

    # On a Ray cluster
    from dataflow.ray.datasets import from_ray_dataset as from_ray_dataset, to_ray_dataset as to_ray_dataset
    from dataflow.ray.ray_runners import RayMapData as RayMapData, RayRunner as RayRunner
    from dataflow.ray.object_store import PlasmaGetData as PlasmaGetData, PlasmaPutData as PlasmaPutData
    from dataflow.runners.parallel_data import ParallelData as ParallelData

    # For training frameworks
    from dataflow.frameworks.device import PrefetchToDevice as PrefetchToDevice
    from dataflow.frameworks.torch_dataset import to_torch as to_torch

    # Old names
    from dataflow.compat.aliases import (
        MultiProcessPrefetchData as MultiProcessPrefetchData,
        MultiThreadPrefetchData as MultiThreadPrefetchData,
        PrefetchData as PrefetchData,
        PrefetchDataZMQ as PrefetchDataZMQ,
    )

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
