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
    LengthUnknown,
    MissingExtra,
    NotAddressable,
    NotPicklable,
    NotReentrant,
    ShapeMismatch,
    SourceExhausted,
    TimeoutError as TimeoutError,
    WorkerDied,
    WorkerError,
)
from dataflow.datapoint import allocate as empty  # noqa: F401 (public, but not for a star import)
from dataflow.seeding import seed as seed
from dataflow.workers.place import WorkerInfo, worker_info

# Sources: where datapoints come from
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromGenerator, DataFromIterable
from dataflow.sources.queues import DataFromQueue
from dataflow.sources.synthetic import FakeData

# Transforms: what happens to them on the way
from dataflow.transforms.batching import BatchData, BatchDataByShape

from dataflow.transforms.caching import CacheData
from dataflow.transforms.joining import ConcatData, JoinData
from dataflow.transforms.mapping import MapData, MapDataComponent
from dataflow.transforms.mixing import RandomChooseData, RandomMixData
from dataflow.transforms.repeating import FixedSizeData, RepeatedData, RepeatedDataPoint
from dataflow.transforms.selecting import FlattenData, SelectComponent
from dataflow.transforms.shuffling import LocallyShuffleData

# Diagnostics: what people see of them
from dataflow.diagnostics.display import PrintData
from dataflow.diagnostics.speed import TestDataSpeed

# Runners: where the work is done
from dataflow.parallel.runners import MultiProcessRunner, MultiProcessRunnerZMQ, MultiThreadRunner

# Old names
from dataflow.aliases import MultiProcessPrefetchData, MultiThreadPrefetchData, PrefetchData, PrefetchDataZMQ

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
    "LengthUnknown",
    "MissingExtra",
    "NotAddressable",
    "NotPicklable",
    "NotReentrant",
    "ShapeMismatch",
    "SourceExhausted",
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
    "FixedSizeData",
    "FlattenData",
    "JoinData",
    "LocallyShuffleData",
    "MapData",
    "MapDataComponent",
    "RandomChooseData",
    "RandomMixData",
    "RepeatedData",
    "RepeatedDataPoint",
    "SelectComponent",
    # Diagnostics
    "PrintData",
    "TestDataSpeed",
    # Runners
    "MultiProcessRunner",
    "MultiProcessRunnerZMQ",
    "MultiThreadRunner",
    # Old names
    "MultiProcessPrefetchData",
    "MultiThreadPrefetchData",
    "PrefetchData",
    "PrefetchDataZMQ",
]
