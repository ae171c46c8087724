"""Name tables: what each public name of tensorpack.dataflow and ELEKTRONN is called here, or what replaces it.

The names are those of tensorpack 0.11 and of its stand-alone package `dataflow`, with the names and parameters that
versions from 0.8 on had; and those of ``training/parallelisation.py`` of ELEKTRONN 1 and 2.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = [
    "GONE_KEYWORDS",
    "KEYWORDS",
    "KEYWORD_ONLY",
    "RENAMED_METHODS",
    "REPLACED_PACKAGES",
    "TAKES_OWN_FLOWS",
    "TAKES_OWN_FLOWS_AS",
    "WORTH_A_LOOK",
    "WORTH_A_LOOK_AT_LOAD",
    "Missing",
    "Moved",
    "MovedModule",
    "Target",
    "is_ours",
    "star_names",
    "target_of",
]


@dataclass(frozen=True)
class Moved:
    """A name that exists here.

    Attributes:
        module: The module to import it from.
        name: Its name there.
        length: Number of parts of the dotted name that it replaces.
    """

    module: str
    name: str
    length: int


@dataclass(frozen=True)
class MovedModule:
    """A module whose names are in another module here; `length` as in `Moved`."""

    module: str
    length: int


@dataclass(frozen=True)
class Missing:
    """A name without a counterpart; `length` as in `Moved`.

    Attributes:
        text: Why, and what to do.
        is_known: Whether it is a name of the predecessors at all.
    """

    text: str
    length: int
    is_known: bool = True


Target = Moved | MovedModule | Missing

_SAME: Final = (
    # base
    "DataFlow",
    "ProxyDataFlow",
    "RNGDataFlow",
    "DataFlowTerminated",
    # raw
    "FakeData",
    "DataFromQueue",
    "DataFromList",
    "DataFromGenerator",
    "DataFromIterable",
    # common
    "TestDataSpeed",
    "PrintData",
    "BatchData",
    "BatchDataByShape",
    "FixedSizeData",
    "MapData",
    "MapDataComponent",
    "RepeatedData",
    "RepeatedDataPoint",
    "RandomChooseData",
    "RandomMixData",
    "JoinData",
    "ConcatData",
    "SelectComponent",
    "LocallyShuffleData",
    "CacheData",
    # parallel
    "MultiProcessRunner",
    "MultiProcessRunnerZMQ",
    "MultiThreadRunner",
    "PrefetchData",
    "MultiProcessPrefetchData",
    "PrefetchDataZMQ",
    "MultiThreadPrefetchData",
    "PlasmaPutData",
    "PlasmaGetData",
    # parallel_map
    "MultiThreadMapData",
    "MultiProcessMapData",
    "MultiProcessMapDataZMQ",
    "MultiProcessMapAndBatchData",
    "MultiProcessMapAndBatchDataZMQ",
    "MultiProcessMapDataComponentSharedArray",
    # format, serialize
    "HDF5Data",
    "LMDBData",
    "LMDBDataDecoder",
    "SVMLightData",
    "LMDBSerializer",
    "NumpySerializer",
    "TFRecordSerializer",
    "HDF5Serializer",
    # remote
    "send_dataflow_zmq",
    "RemoteDataZMQ",
)
_PRESENT: Final = {**{name: name for name in _SAME}, "ThreadedMapData": "MultiThreadMapData"}

_IMAGES: Final = "its image nodes are left out: call any image library in the function of MapData or MapDataComponent"
_AUGMENT: Final = (
    "its augmentors are left out: call any augmentation library in MapData, or in RandomMapData, which passes a random "
    "generator to the function"
)
_DATASETS: Final = "its loaders of public datasets are left out: read them with DataFromList or a source of your own"
_LMDB: Final = "write LMDBSerializer.save(df, path)"
_TFRECORD: Final = "write TFRecordSerializer.save(df, path)"
_MISSING: Final = {
    "imgaug": _AUGMENT,
    "AugmentImageComponent": _AUGMENT,
    "AugmentImageCoordinates": _AUGMENT,
    "AugmentImageComponents": _AUGMENT,
    "ImageFromFile": _IMAGES,
    "dataset": _DATASETS,
    "dftools": f"its functions are methods now: for dump_dataflow_to_lmdb {_LMDB}, for dump_dataflow_to_tfrecord "
    f"{_TFRECORD}",
    "LMDBDataPoint": "write LMDBSerializer.load(path, pickle=True), if tensorpack wrote the file; over a LMDBData, "
    "LMDBDataDecoder with a function that decodes the value",
    "TFRecordData": "write TFRecordSerializer.load(path, pickle=True), if tensorpack wrote the file; size= is optional",
    "PrefetchOnGPUs": "it is left out: use MultiProcessRunnerZMQ, and set the device in worker_init=",
    "CaffeLMDB": "it is left out: LMDBDataDecoder with a decoder of your own reads such files",
}
"""Names that `from tensorpack.dataflow import *` brings, too."""

_MISSING_IN_MODULES: Final = {
    "DataFlowReentrantGuard": "flows need no guard: a second iteration takes over, and the first raises NotReentrant",
    "DiskCacheData": "it is left out, and dataflow.DiskCacheData is another class: use LMDBSerializer.load(path)",
    "DiskCacheSerializer": "it is left out: use LMDBSerializer or TFRecordSerializer",
    "TFFuncMapper": "it is left out: call the function in MapData",
    "dump_dataflow_to_lmdb": _LMDB,
    "dump_dataflow_to_tfrecord": _TFRECORD,
    "dump_dataflow_to_process_queue": "use a runner, or fill a queue in a loop over the flow",
    "ExpReplay": "its reinforcement learning is left out",
    "RLEnvironment": "its reinforcement learning is left out",
}
"""Names of modules of tensorpack.dataflow, of the present version or of older ones."""

_MODULES: Final = frozenset(
    {
        *("base", "common", "format", "image", "parallel"),
        *("parallel_map", "prefetch", "raw", "remote", "serialize"),
    }
)
_OF_THE_PACKAGE: Final = frozenset({"dataset", "dftools", "imgaug"})  # modules in it, whose names are all left out
_UTILS: Final = (
    "its utilities are left out: logging is in the standard library; tqdm, and numpy.random.default_rng, in packages "
    "of their own"
)
_SEED: Final = ("dataflow", "seed")

_ELEKTRONN: Final = frozenset({"elektronn", "elektronn2"})
_SHARED: Final = frozenset({"BackgroundProc", "SharedMem", "SharedQ", "TimeoutError"})
_ELEKTRONN_MISSING: Final = {"Proc": "it is the process inside of BackgroundProc: use BackgroundProc or SharedQ"}

REPLACED_PACKAGES: Final = frozenset({"dataflow", "elektronn", "elektronn2", "tensorpack"})
"""Top-level packages whose imports may have to change."""

_OF_PROCESSES: Final = {"nr_prefetch": "num_prefetch", "nr_proc": "num_proc"}
_OF_THREADS: Final = {"nr_prefetch": "num_prefetch", "nr_thread": "num_thread"}
_NUM_PROC: Final = {"nr_proc": "num_proc"}
KEYWORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "MultiProcessRunner": _OF_PROCESSES,
    "PrefetchData": _OF_PROCESSES,
    "MultiProcessPrefetchData": _OF_PROCESSES,
    "MultiProcessRunnerZMQ": _NUM_PROC,
    "PrefetchDataZMQ": _NUM_PROC,
    "MultiThreadRunner": _OF_THREADS,
    "MultiThreadPrefetchData": _OF_THREADS,
    "MultiThreadMapData": {"nr_thread": "num_thread"},
    "MultiProcessMapData": _NUM_PROC,
    "MultiProcessMapDataZMQ": _NUM_PROC,
    "MultiProcessMapAndBatchData": _NUM_PROC,
    "MultiProcessMapAndBatchDataZMQ": _NUM_PROC,
    "RepeatedData": {"nr": "num"},
    "RepeatedDataPoint": {"nr": "num"},
    "LocallyShuffleData": {"nr_reuse": "num_reuse"},
    "PrintData": {"label": "name"},
}
"""Parameters of older versions: for each class, old names and present ones."""

KEYWORD_ONLY: Final[Mapping[str, Mapping[int, str]]] = {
    "MultiThreadMapData": {3: "buffer_size", 4: "strict"},
    "MultiProcessMapData": {3: "buffer_size", 4: "strict"},
    "MultiProcessMapDataZMQ": {3: "buffer_size", 4: "strict"},
}
"""Parameters that older versions took by position: for each class, positions and names."""

GONE_KEYWORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "DataFromGenerator": {"size": "is gone: for a flow with a length, write FixedSizeData(DataFromGenerator(…), size)"},
    "send_dataflow_zmq": {
        "print_interval": "is gone: leave it out",
        "format": "only None is possible: RemoteDataZMQ receives, not an operation of TensorFlow",
    },
}
"""Parameters of older versions that have no counterpart."""

RENAMED_METHODS: Final = {"start_test": "start"}
"""Methods of `TestDataSpeed`."""

WORTH_A_LOOK: Final = {
    "send_dataflow_zmq": "sends one pass and returns; for an endless one, send RepeatedData(df, -1)",
    "RemoteDataZMQ": "receives from send_dataflow_zmq of this library only: change both ends together. It raises where "
    "it binds to an address that other machines can reach: pass keys (curve=), or insecure=True",
    "PlasmaPutData": "uses the object store of a Ray cluster: see the extra ray",
    "PlasmaGetData": "uses the object store of a Ray cluster: see the extra ray",
}
"""Names that mean something else here than before."""

_LOADED: Final = "if tensorpack wrote the file, it holds pickles: write load(path, pickle=True)"
WORTH_A_LOOK_AT_LOAD: Final = dict.fromkeys(("LMDBSerializer", "NumpySerializer", "TFRecordSerializer"), _LOADED)
"""Classes whose `load` may need another argument than before."""

TAKES_OWN_FLOWS: Final = frozenset(
    {
        "BatchQueueInput",
        "DataParallelInferenceRunner",
        "DatasetPredictorBase",
        "FeedInput",
        "FeedfreeInput",
        "InferenceRunner",
        "MultiProcessDatasetPredictor",
        "QueueInput",
        "SimpleDatasetPredictor",
        "TFDatasetInput",
        "apply_default_prefetch",
    }
)
"""Names of tensorpack, outside of its dataflow, that accept only dataflows of its own."""

TAKES_OWN_FLOWS_AS: Final = {"AutoResumeTrainConfig": "dataflow", "TrainConfig": "dataflow"}
"""Further ones, which take them as this parameter, their first."""


def target_of(dotted: str) -> Target | None:
    """Return what a dotted name of the predecessors, or the beginning of one, has become.

    Args:
        dotted: A full name, such as ``tensorpack.dataflow.common.BatchData.__init__``.

    Returns:
        None for a name that does not belong to the predecessors' dataflows.

    Example:
        >>> target_of("tensorpack.dataflow.prefetch.ThreadedMapData.__init__")
        Moved(module='dataflow', name='MultiThreadMapData', length=4)
        >>> target_of("tensorpack.models.Conv2D") is None
        True
    """
    match dotted.split("."):
        case ["tensorpack", "utils", "fix_rng_seed", *_]:
            return Moved(*_SEED, length=3)
        case ["tensorpack", "utils", "utils", "fix_rng_seed", *_]:
            return Moved(*_SEED, length=4)
        case ["tensorpack", "fix_rng_seed", *_]:
            return Moved(*_SEED, length=2)
        case ["tensorpack" | "dataflow", "dataflow", *rest]:
            return _in_dataflow(rest, 2) or _unknown(rest, 2)
        case ["tensorpack", name, *rest]:
            return _in_dataflow([name, *rest], 1) if name in _OF_THE_PACKAGE else _named(name, 1)
        case ["dataflow", "utils", *rest]:
            return _in_utils(rest)
        case ["dataflow", *rest] if rest:
            return _in_dataflow(rest, 1)
        case [package, "training" | "utils", "parallelisation", *rest] if package in _ELEKTRONN:
            return _in_parallelisation(rest)
    return None


def _in_dataflow(rest: list[str], before: int) -> Target | None:
    """`rest` is what follows tensorpack.dataflow, or the like, whose length is `before`."""
    match rest:
        case []:
            return MovedModule("dataflow", before)
        case [package, *names] if package in _OF_THE_PACKAGE:
            name = names[0] if names else package
            return Missing(_MISSING_IN_MODULES.get(name, _MISSING[package]), before + min(len(rest), 2))
        case [module] if module in _MODULES and (before == 2 or module != "remote"):
            return MovedModule("dataflow", before + 1)
        case [module, name, *_] if module in _MODULES:
            found = _named(name, before + 1)
            if found is None and name in _MISSING_IN_MODULES:
                return Missing(_MISSING_IN_MODULES[name], before + 2)
            return found or (_unknown([module, name], before) if before == 2 else None)
    return _named(rest[0], before)


def _named(name: str, before: int) -> Target | None:
    if name in _PRESENT:
        return Moved("dataflow", _PRESENT[name], length=before + 1)
    if name in _MISSING:
        return Missing(_MISSING[name], before + 1)
    return None


def _unknown(rest: list[str], before: int) -> Missing:
    text = "it is not a public name of tensorpack.dataflow, and nothing here replaces it"
    return Missing(text, before + len(rest), is_known=False)


def _in_utils(rest: list[str]) -> Target:
    """`rest` is what follows the `dataflow.utils` of the stand-alone package."""
    name = rest[-1] if rest else ""
    if name == "fix_rng_seed":
        return Moved(*_SEED, length=2 + len(rest))
    return Missing(_UTILS, 2 + len(rest))


def _in_parallelisation(rest: list[str]) -> Target:
    if not rest:
        return MovedModule("dataflow", 3)
    name = rest[0]
    if name in _SHARED:
        return Moved("dataflow", name, length=4)
    why = _ELEKTRONN_MISSING.get(name, "it is not a public name of ELEKTRONN, and nothing here replaces it")
    return Missing(why, 4)


def star_names(module: str) -> frozenset[str]:
    """The names that ``from module import *`` brings and that this library answers for."""
    if module.partition(".")[0] in _ELEKTRONN:
        return _SHARED | _ELEKTRONN_MISSING.keys()
    return frozenset(_PRESENT) | _MISSING.keys()


def is_ours(name: str) -> bool:
    """Whether ``from dataflow import name`` finds something."""
    if hasattr(sys.modules.get("dataflow"), name):
        return True
    try:
        return importlib.util.find_spec(f"dataflow.{name}") is not None
    except ModuleNotFoundError:  # a module of tensorpack
        return False
