"""Composable dataflows: chain nodes, wrap the chain in a runner, iterate.

A *dataflow* is an endless sequence of passes over datapoints. Nodes wrap nodes; a runner moves the work of a flow into
threads or processes.
"""

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
from dataflow.workers.place import WorkerInfo, worker_info

# Sources: where datapoints come from
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromGenerator, DataFromIterable
from dataflow.sources.queues import DataFromQueue
from dataflow.sources.synthetic import FakeData

# Transforms: what happens to them on the way
from dataflow.transforms.batching import BatchData, BatchDataByShape

from dataflow.transforms.augmenting import RandomMapData
from dataflow.transforms.caching import CacheData
from dataflow.transforms.filtering import FilterData
from dataflow.transforms.joining import ConcatData, JoinData
from dataflow.transforms.mapping import MapData, MapDataComponent
from dataflow.transforms.mixing import RandomChooseData, RandomMixData
from dataflow.transforms.repeating import FixedSizeData, RepeatedData, RepeatedDataPoint
from dataflow.transforms.resuming import ResumableData
from dataflow.transforms.selecting import FlattenData, SelectComponent
from dataflow.transforms.sharding import ShardData
from dataflow.transforms.shuffling import LocallyShuffleData, ShuffleData

# Diagnostics: what people see of them
from dataflow.diagnostics.display import PrintData
from dataflow.diagnostics.speed import TestDataSpeed

# Runners and parallel maps: where the work is done
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
from dataflow.formats.hdf5 import HDF5Data, HDF5Serializer
from dataflow.formats.lmdb import LMDBData, LMDBDataDecoder, LMDBSerializer
from dataflow.formats.npz import NumpySerializer
from dataflow.formats.svmlight import SVMLightData
from dataflow.formats.tfrecord import TFRecordSerializer

# Over the network
from dataflow.remote.receiver import RemoteDataZMQ
from dataflow.remote.sending import send_dataflow_zmq

# On a Ray cluster
from dataflow.distributed.datasets import from_ray_dataset, to_ray_dataset
from dataflow.distributed.mapping import RayMapData
from dataflow.distributed.object_store import PlasmaGetData, PlasmaPutData
from dataflow.distributed.runner import RayRunner

# Old names and old places
from dataflow.aliases import MultiProcessPrefetchData, MultiThreadPrefetchData, PrefetchData, PrefetchDataZMQ
from dataflow.old_places import watch as _watch_old_places

_watch_old_places()

__all__ = [
    # The protocol. `TimeoutError`, `seed` and `empty` are importable too, but no star import shadows a name of yours.
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
    "DataFromGenerator",
    "DataFromIterable",
    "DataFromList",
    "DataFromQueue",
    "FakeData",
    # Transforms
    "BatchData",
    "BatchDataByShape",
    "CacheData",
    "ConcatData",
    "FilterData",
    "FixedSizeData",
    "FlattenData",
    "JoinData",
    "LocallyShuffleData",
    "MapData",
    "MapDataComponent",
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
    "HDF5Data",
    "HDF5Serializer",
    "LMDBData",
    "LMDBDataDecoder",
    "LMDBSerializer",
    "NumpySerializer",
    "SVMLightData",
    "TFRecordSerializer",
    # Over the network
    "RemoteDataZMQ",
    "send_dataflow_zmq",
    # On a Ray cluster
    "PlasmaGetData",
    "PlasmaPutData",
    "RayMapData",
    "RayRunner",
    "from_ray_dataset",
    "to_ray_dataset",
    # Old names and old places
    "MultiProcessPrefetchData",
    "MultiThreadPrefetchData",
    "PrefetchData",
    "PrefetchDataZMQ",
]
