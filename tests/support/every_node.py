"""Every public node, made with as few arguments as it takes."""

import queue

import numpy as np
import pytest

import dataflow

__all__ = ["EVERY_NODE", "decode", "lmdb_file", "minimal", "with_rng"]


def decode(dp):
    return dp


def with_rng(dp, rng):
    return dp


def _numbers():
    return dataflow.DataFromList([[k] for k in range(4)], shuffle=False)


def lmdb_file(folder):
    path = str(folder / "numbers.lmdb")
    dataflow.LMDBSerializer.save(_numbers(), path)
    return path


def _hdf5_file(folder):
    pytest.importorskip("h5py")
    path = str(folder / "numbers.h5")
    dataflow.HDF5Serializer.save(_numbers(), path)
    return path


def _prefetch_to_device():
    pytest.importorskip("torch")
    return dataflow.PrefetchToDevice(_numbers(), "cpu")


def _svmlight_file(folder):
    path = folder / "numbers.svm"
    path.write_text("1 1:2.5\n", "utf-8")
    return str(path)


def _text_file(folder, name, data=b""):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return str(path)


def _image_folder(folder):
    _text_file(folder / "cat", "1.jpg")
    return str(folder)


def fill(*arrays):
    pass


async def fetch(dp):
    return dp


async def arriving():
    yield [1]


_MINIMAL = {  # how to make each; a lambda may take a folder
    "DataFlow": dataflow.DataFlow,
    "ProxyDataFlow": lambda: dataflow.ProxyDataFlow(_numbers()),
    "RNGDataFlow": dataflow.RNGDataFlow,
    "DataFromAsyncIterable": lambda: dataflow.DataFromAsyncIterable(arriving),
    "DataFromGenerator": lambda: dataflow.DataFromGenerator(fill),
    "DataFromIterable": lambda: dataflow.DataFromIterable([[1]]),
    "DataFromList": lambda: dataflow.DataFromList([[1]]),
    "DataFromQueue": lambda: dataflow.DataFromQueue(queue.Queue()),
    "FakeData": lambda: dataflow.FakeData([[2]], 3),
    "ImageFolderData": lambda folder: dataflow.ImageFolderData(_image_folder(folder)),
    "AsyncMapData": lambda: dataflow.AsyncMapData(_numbers(), fetch),
    "BatchData": lambda: dataflow.BatchData(_numbers(), 2),
    "BatchDataByShape": lambda: dataflow.BatchDataByShape(_numbers(), 2, 0),
    "BucketBatchData": lambda: dataflow.BucketBatchData(_numbers(), 2, key=decode, boundaries=[2]),
    "CacheData": lambda: dataflow.CacheData(_numbers()),
    "ConcatData": lambda: dataflow.ConcatData([_numbers()]),
    "FilterData": lambda: dataflow.FilterData(_numbers(), bool),
    "FixedSizeData": lambda: dataflow.FixedSizeData(_numbers(), 2),
    "FlattenData": lambda: dataflow.FlattenData(_numbers()),
    "JoinData": lambda: dataflow.JoinData([_numbers()]),
    "LocallyShuffleData": lambda: dataflow.LocallyShuffleData(_numbers(), 2),
    "MapData": lambda: dataflow.MapData(_numbers(), decode),
    "MapDataComponent": lambda: dataflow.MapDataComponent(_numbers(), abs),
    "MixData": lambda: dataflow.MixData([_numbers()], [1]),
    "PackData": lambda: dataflow.PackData(_numbers(), 3, lengths=[1] * 4),
    "PadBatchData": lambda: dataflow.PadBatchData(_numbers(), 2),
    "RandomChooseData": lambda: dataflow.RandomChooseData([_numbers()]),
    "RandomMapData": lambda: dataflow.RandomMapData(_numbers(), with_rng),
    "RandomMixData": lambda: dataflow.RandomMixData([_numbers()]),
    "RepeatedData": lambda: dataflow.RepeatedData(_numbers(), 2),
    "RepeatedDataPoint": lambda: dataflow.RepeatedDataPoint(_numbers(), 2),
    "ResumableData": lambda: dataflow.ResumableData(_numbers()),
    "SelectComponent": lambda: dataflow.SelectComponent(_numbers(), [0]),
    "ShardData": lambda: dataflow.ShardData(_numbers(), 0, 2),
    "ShuffleData": lambda: dataflow.ShuffleData(_numbers()),
    "PrintData": lambda: dataflow.PrintData(_numbers()),
    "TestDataSpeed": lambda: dataflow.TestDataSpeed(_numbers(), 10),
    "MultiProcessMapAndBatchData": lambda: dataflow.MultiProcessMapAndBatchData(_numbers(), 2, decode, 2),
    "MultiProcessMapAndBatchDataZMQ": lambda: dataflow.MultiProcessMapAndBatchDataZMQ(_numbers(), 2, decode, 2),
    "MultiProcessMapData": lambda: dataflow.MultiProcessMapData(_numbers(), 2, decode),
    "MultiProcessMapDataZMQ": lambda: dataflow.MultiProcessMapDataZMQ(_numbers(), 2, decode),
    "MultiProcessMapDataComponentSharedArray": lambda: dataflow.MultiProcessMapDataComponentSharedArray(
        _numbers(), 2, decode, (3,), "f4"
    ),
    "MultiThreadMapData": lambda: dataflow.MultiThreadMapData(_numbers(), 2, decode),
    "MultiProcessRunner": lambda: dataflow.MultiProcessRunner(_numbers(), 5, 2),
    "MultiProcessRunnerZMQ": lambda: dataflow.MultiProcessRunnerZMQ(_numbers(), 2),
    "MultiThreadRunner": lambda: dataflow.MultiThreadRunner(_numbers, 5, 2),
    "PrefetchToDevice": _prefetch_to_device,
    "BackgroundData": lambda: dataflow.BackgroundData(fill, [np.float32], [(3,)], 2),
    "FetchData": lambda: dataflow.FetchData(_numbers(), "path", retries=1),
    "DiskCacheData": lambda folder: dataflow.DiskCacheData(_numbers(), folder / "cache.lmdb"),
    "HDF5Data": lambda folder: dataflow.HDF5Data(_hdf5_file(folder)),
    "LMDBData": lambda folder: dataflow.LMDBData(lmdb_file(folder)),
    "LMDBDataDecoder": lambda folder: dataflow.LMDBDataDecoder(dataflow.LMDBData(lmdb_file(folder)), with_rng),
    "SVMLightData": lambda folder: dataflow.SVMLightData(_svmlight_file(folder)),
    "JSONLinesData": lambda folder: dataflow.JSONLinesData(_text_file(folder, "rows.jsonl")),
    "TableData": lambda: dataflow.TableData({"x": [1]}),
    "WebDatasetData": lambda folder: dataflow.WebDatasetData(_text_file(folder, "a.tar")),
    "RemoteDataZMQ": lambda: dataflow.RemoteDataZMQ("tcp://127.0.0.1:*"),
    "PlasmaGetData": lambda: dataflow.PlasmaGetData(_numbers()),
    "PlasmaPutData": lambda: dataflow.PlasmaPutData(_numbers()),
    "RayMapData": lambda: dataflow.RayMapData(_numbers(), 2, decode),
    "RayRunner": lambda: dataflow.RayRunner(_numbers(), 2),
    "ParallelData": lambda: dataflow.ParallelData(_numbers(), 2),
    "MultiProcessPrefetchData": lambda: dataflow.MultiProcessPrefetchData(_numbers(), 5, 2),
    "MultiThreadPrefetchData": lambda: dataflow.MultiThreadPrefetchData(_numbers, 5, 2),
    "PrefetchData": lambda: dataflow.PrefetchData(_numbers(), 5, 2),
    "PrefetchDataZMQ": lambda: dataflow.PrefetchDataZMQ(_numbers(), 2),
}

EVERY_NODE = [*_MINIMAL]
"""Their names."""


def minimal(name, folder):
    """The node of this name; its files, if it needs some, are written into `folder`."""
    make = _MINIMAL[name]
    return make(folder) if getattr(make, "__code__", fill.__code__).co_argcount else make()
