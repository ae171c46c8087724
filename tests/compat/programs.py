"""Programs for the predecessors, which together use all their public names, in the ways in which programs do."""

# Each program asserts what it should see, once it has been rewritten. They are text: nothing here can import them.
PROGRAMS = {
    "names from the package": '''
#!/usr/bin/env python
# -*- coding: utf-8 -*-
"""Trains on made-up images."""
import numpy as np
from tensorpack.dataflow import (
    DataFromList, MapData, MapDataComponent,  # the chain
    BatchData, PrefetchDataZMQ,
)


def get_data(batch_size):
    ds = DataFromList([[k, k % 10] for k in range(40)], shuffle = False)   # odd   spaces stay
    ds = MapDataComponent(ds, lambda k: np.full((4, 4), k, dtype='float32'), 0)
    ds = MapData(ds, lambda dp: [dp[0] / 255, dp[1]])
    ds = PrefetchDataZMQ(ds, nr_proc=1)
    ds = BatchData(ds, batch_size,
                   remainder=not True)
    return ds


if __name__ == '__main__':
    df = get_data(8)
    df.reset_state()
    for epoch in range(2):
        batches = [labels.tolist() for images, labels in df.get_data()]
        assert len(batches) == df.size() == 5, batches
    df.close()
''',
    "a star import": """
from tensorpack.dataflow import *
from tensorpack.dataflow.common import *

a = DataFromList([[k] for k in range(4)], shuffle=False)
b = FakeData([[2, 2]], size=4, dtype='uint8', domain=(0, 9))
joined = JoinData([a, b])
assert [len(dp) for dp in joined] == [2] * 4
assert len(ConcatData([a, a])) == 8
assert len(list(RandomMixData([a, a]))) == 8
assert next(iter(RandomChooseData([(a, 0.5), (a, 0.5)])))[0] in range(4)
assert [dp for dp in SelectComponent(joined, [0])] == [[0], [1], [2], [3]]
assert len(list(FixedSizeData(a, 6))) == 6
assert [k for k, in RepeatedDataPoint(a, nr=2)] == [0, 0, 1, 1, 2, 2, 3, 3]
assert len(RepeatedData(a, nr=3)) == 12
shuffled = LocallyShuffleData(a, 2, nr_reuse=1)
assert next(iter(shuffled))[0] in range(4)
assert list(CacheData(a)) == list(a)
shapes = BatchDataByShape(b, 2, idx=0)
assert [batch.shape for batch, in shapes] == [(2, 2, 2)] * 2
PrintData(a, label='four', num=1)
workers = PrefetchData(a, nr_prefetch=2, nr_proc=1)
assert [k for k, in workers] == [0, 1, 2, 3]
workers.close()
""",
    "everything from tensorpack itself": """
import os
from tensorpack import *

df = MapData(DataFromList(list(range(6)), shuffle=False), lambda k: k + 1)
df = MultiProcessPrefetchData(df, nr_prefetch=4, nr_proc=1)
df.reset_state()
assert list(df) == [1, 2, 3, 4, 5, 6] and os.sep
df.close()
""",
    "an alias of the package": """
import tensorpack.dataflow as D

df = D.FakeData([(3,), ()], 20, random=False)
df = D.common.MapData(df, lambda dp: dp[:1])
speed = D.TestDataSpeed(df, size=10, warmup=2)
speed.start_test()
assert len(D.parallel.PrefetchDataZMQ(df, nr_proc=1)) == 20
""",
    "modules of the package": """
from tensorpack.dataflow.base import DataFlow, ProxyDataFlow, RNGDataFlow, DataFlowTerminated
from tensorpack.dataflow.raw import DataFromList, DataFromGenerator
from tensorpack.dataflow.common import BatchData as Batch, MapData
from tensorpack.dataflow.prefetch import PrefetchData, ThreadedMapData
from tensorpack.dataflow.parallel import MultiProcessRunner as Runner, MultiThreadPrefetchData
from tensorpack.dataflow.parallel import MultiProcessRunnerZMQ


class Numbers(RNGDataFlow):
    def size(self):
        return 8

    def get_data(self):
        for _ in range(8):
            yield [self.rng.randint(10)]


class Doubled(ProxyDataFlow):
    def __iter__(self):
        for k, in self.ds:
            yield [2 * k]


class Prefetched(PrefetchData):
    def __init__(self, ds):
        super(Prefetched, self).__init__(ds, nr_prefetch=3, nr_proc=1)


assert issubclass(Numbers, DataFlow) and issubclass(DataFlowTerminated, BaseException)
df = Batch(Doubled(Numbers()), 4)
assert [len(batch) for batch, in df.get_data()] == [4, 4]
with Prefetched(Numbers()) as prefetched, Runner(Numbers(), 3, 1) as runner:
    assert len(list(prefetched)) == len(list(runner)) == 8
with MultiProcessRunnerZMQ(Numbers(), 1) as runner:
    assert len(list(runner)) == 8
with MultiThreadPrefetchData(Numbers, nr_prefetch=2, nr_thread=1) as threads:
    assert len(list(threads)) == 8
with ThreadedMapData(DataFromList([1, 2, 3], False), 1, lambda k: k, 2, True) as mapped:
    assert list(mapped) == [1, 2, 3]
assert list(DataFromGenerator(lambda: iter([[1]]))) == [[1]]
""",
    "the package under another name": """
from tensorpack import dataflow as df, dataflow
import tensorpack as tp


class Sum(df.ProxyDataFlow):
    def __iter__(self):
        for dp in self.ds:
            yield [sum(dp)]


ds = Sum(dataflow.DataFromList([[1, 2], [3, 4]], shuffle=False))
ds = tp.dataflow.RepeatedData(ds, nr=2)
assert list(tp.dataflow.common.CacheData(ds)) == [[3], [7], [3], [7]]
assert tp.DataFlow is dataflow.DataFlow
""",
    "dotted names": """
import os, tensorpack.dataflow
import tensorpack.dataflow.common

items = tensorpack.dataflow.DataFromIterable([[1], [2], [3]])
try:
    from tensorpack.dataflow import MultiThreadRunner
except ImportError:
    from dataflow import MultiThreadRunner
if os.name: import tensorpack.dataflow.raw as raw; queued = raw.DataFromQueue
runner = MultiThreadRunner(lambda: tensorpack.dataflow.common.MapData(items, lambda dp: dp), 2, 1)
assert sorted(list(runner)) == [[1], [2], [3]]
runner.close()
import queue
q = queue.Queue()
q.put([5])
assert next(iter(queued(q))) == [5]
""",
    "parallel maps": """
from functools import partial
from tensorpack.dataflow.parallel_map import (MultiThreadMapData, MultiProcessMapDataZMQ,
                                              MultiProcessMapAndBatchDataZMQ)
from tensorpack.dataflow import MultiProcessMapData, MultiProcessMapAndBatchData, DataFromList


def work(k):
    return [k * k]


source = DataFromList(list(range(20)), shuffle=False)
for make in (partial(MultiThreadMapData, nr_thread=2), partial(MultiProcessMapDataZMQ, nr_proc=1)):
    with make(source, map_func=work, buffer_size=10, strict=True) as df:
        assert sorted(k for k, in df) == [k * k for k in range(20)]
with MultiProcessMapDataZMQ(source, 1, work, 10, True) as df:
    assert len(list(df)) == 20
with MultiProcessMapData(source, nr_proc=1, map_func=work, strict=True) as df:
    assert len(list(df)) == 20
assert MultiProcessMapAndBatchData is MultiProcessMapAndBatchDataZMQ
with MultiProcessMapAndBatchDataZMQ(source, 1, work, 5) as df:
    assert len(next(iter(df))[0]) == 5
""",
    "a shared array": """
import numpy as np
from tensorpack.dataflow.parallel_map import MultiProcessMapDataComponentSharedArray
from tensorpack.dataflow.raw import DataFromList

df = DataFromList([[k, -k] for k in range(6)], shuffle=False)
df = MultiProcessMapDataComponentSharedArray(df, nr_proc=1, map_func=lambda k: np.full(3, k),
                                             output_shape=(3,), output_dtype='float32')
df.reset_state()
assert [label for array, label in (next(it) for it in [iter(df)] * 6)] == [0, -1, -2, -3, -4, -5]
df.close()
""",
    "files": """
import os
import lmdb, h5py
import numpy as np
from tensorpack.dataflow import DataFromList, LMDBSerializer, NumpySerializer, TFRecordSerializer
from tensorpack.dataflow.serialize import HDF5Serializer
from tensorpack.dataflow.format import HDF5Data, LMDBData, LMDBDataDecoder, SVMLightData

df = DataFromList([[np.full(2, k), k] for k in range(5)], shuffle=False)
LMDBSerializer.save(df, 'a.lmdb', write_frequency=2)
TFRecordSerializer.save(df, 'a.tfrecord')
NumpySerializer.save(df, 'a.npz')
HDF5Serializer.save(df, 'a.h5', ['image', 'label'])
for loaded in (LMDBSerializer.load('a.lmdb', shuffle=False), TFRecordSerializer.load('a.tfrecord'),
               NumpySerializer.load('a.npz', shuffle=False), HDF5Data('a.h5', ['image', 'label'], shuffle=False)):
    assert [label for _, label in loaded] == [0, 1, 2, 3, 4], loaded
db = lmdb.open('b.lmdb', subdir=False)
with db.begin(write=True) as txn:
    txn.put(b'00', b'x')
db.close()
raw = LMDBData('b.lmdb', shuffle=False, keys='{:0>2d}') if False else LMDBData('b.lmdb', shuffle=False)
assert list(LMDBDataDecoder(raw, lambda k, v: [v.decode()])) == [['x']]
with open('c.svm', 'w') as f:
    f.write('1 1:0.5 2:1\\n0 2:3\\n')
assert len(list(SVMLightData('c.svm', shuffle=False))) == 2
""",
    "the network": """
import itertools, socket, threading
from tensorpack.dataflow.remote import RemoteDataZMQ, send_dataflow_zmq
from tensorpack.dataflow import DataFromList

with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    address = 'tcp://127.0.0.1:%d' % s.getsockname()[1]
limits = dict(hwm=10, timeout=60)  # the time is new, and ends this program if it fails
ds = DataFromList([[k] for k in range(10)], shuffle=False)
sender = threading.Thread(target=send_dataflow_zmq, args=(ds, address), kwargs=limits)
with RemoteDataZMQ(address, **limits) as df:
    sender.start()
    df.reset_state()
    assert [k for k, in itertools.islice(df, 10)] == list(range(10))
sender.join(60)
""",
    "plasma": """
from tensorpack.dataflow.parallel import PlasmaPutData, PlasmaGetData

assert issubclass(PlasmaGetData, object) and PlasmaPutData
""",
    "the stand-alone package": """
import dataflow as D
from dataflow.dataflow import DataFromList, PrefetchDataZMQ as Prefetch
from dataflow.dataflow.common import TestDataSpeed
from dataflow import MultiThreadPrefetchData
from dataflow.utils.utils import fix_rng_seed

fix_rng_seed(42)
first = list(D.DataFromList(list(range(30))))
D.utils.fix_rng_seed(42)
assert list(D.dataflow.raw.DataFromList(list(range(30)))) == first
df = Prefetch(DataFromList([1, 2, 3], shuffle=False), nr_proc=1)
assert list(df) == [1, 2, 3]
df.close()
TestDataSpeed(D.DataFromList([1], False), 10).start_test()
with MultiThreadPrefetchData(lambda: D.DataFromList([1], False), nr_prefetch=2, nr_thread=1) as df:
    assert list(df) == [1]
""",
    "ELEKTRONN2": """
import numpy as np
from elektronn2.training.parallelisation import BackgroundProc, SharedQ, TimeoutError
from elektronn2.training import parallelisation as par


def getbatch(n):
    return np.zeros((n, 2), np.float32), np.ones(n, np.int16)


def fill(mp_arrays, shapes, value):
    array = par.SharedMem.shm2ndarray(mp_arrays[0], shapes[0])
    array[:] = value


bg = BackgroundProc(getbatch, n_proc=1, target_args=(3,))
data, label = bg.get(timeout=60)
assert data.shape == (3, 2) and label.dtype == np.int16 and TimeoutError
bg.shutdown()
Q = SharedQ()
Q.startproc([np.float32], [(2, 2)], fill, target_args=(7,))
assert Q.get()[0].sum() == 28
Q.shutdown()
""",
    "ELEKTRONN": """
import numpy as np
import elektronn.training.parallelisation
from elektronn.training.parallelisation import *

assert elektronn.training.parallelisation.SharedMem is SharedMem
handle = SharedMem.ndarray2shm(np.arange(4))
assert SharedMem.shm2ndarray(handle, (2, 2)).tolist() == [[0, 1], [2, 3]]
with BackgroundProc([np.float32], [(2,)], lambda: np.ones(2, np.float32), n_proc=1) as bg:
    assert bg.get()[0].tolist() == [1, 1]
with SharedQ(n_proc=1) as q:
    pass
""",
}

# Programs of which something is left, each with the lines and names that are reported.
LEFT = {
    "augmentation": (
        """
from tensorpack.dataflow import imgaug, dataset, AugmentImageComponent, AugmentImageComponents, BatchData
from tensorpack.dataflow.image import ImageFromFile, AugmentImageCoordinates
from tensorpack.dataflow.imgaug import Flip

df = dataset.ILSVRC12('/path', 'train')
df = AugmentImageComponent(df, [imgaug.Resize(256), Flip(horiz=True)])
df = BatchData(df, 64)
""",
        """
from dataflow import BatchData
from tensorpack.dataflow import imgaug, dataset, AugmentImageComponent, AugmentImageComponents
from tensorpack.dataflow.image import ImageFromFile, AugmentImageCoordinates
from tensorpack.dataflow.imgaug import Flip

df = dataset.ILSVRC12('/path', 'train')
df = AugmentImageComponent(df, [imgaug.Resize(256), Flip(horiz=True)])
df = BatchData(df, 64)
""",
        [
            (2, "imgaug"),
            (2, "dataset"),
            (2, "AugmentImageComponent"),
            (2, "AugmentImageComponents"),
            (3, "ImageFromFile"),
            (3, "AugmentImageCoordinates"),
            (4, "Flip"),
        ],
    ),
    "formats that are left out": (
        """
from tensorpack.dataflow.format import CaffeLMDB, DiskCacheData
from tensorpack.dataflow.serialize import DiskCacheSerializer
from tensorpack.dataflow import dftools
from tensorpack.dataflow.dftools import dump_dataflow_to_lmdb
""",
        """
from tensorpack.dataflow.format import CaffeLMDB, DiskCacheData
from tensorpack.dataflow.serialize import DiskCacheSerializer
from tensorpack.dataflow import dftools
from tensorpack.dataflow.dftools import dump_dataflow_to_lmdb
""",
        [
            (2, "CaffeLMDB"),
            (2, "DiskCacheData"),
            (3, "DiskCacheSerializer"),
            (4, "dftools"),
            (5, "dump_dataflow_to_lmdb"),
        ],
    ),
    "a trainer": (
        """
from tensorpack import *
from tensorpack.dataflow import BatchData

class Model(ModelDesc):
    pass

df = BatchData(PrefetchDataZMQ(get(), 4), 32)
launch_train_with_config(TrainConfig(model=Model(), data=QueueInput(df)))
""",
        """
from tensorpack import *
from dataflow import PrefetchDataZMQ
from dataflow import BatchData

class Model(ModelDesc):
    pass

df = BatchData(PrefetchDataZMQ(get(), 4), 32)
launch_train_with_config(TrainConfig(model=Model(), data=QueueInput(df)))
""",
        [(9, "QueueInput")],
    ),
    "trainers that are imported by name": (
        """
import tensorpack as tp
from tensorpack.train import TrainConfig, AutoResumeTrainConfig
from tensorpack.input_source import QueueInput
from tensorpack.predict.dataset import SimpleDatasetPredictor as Predictor
df = tp.dataflow.BatchData(source, 2)
TrainConfig(df, model=None), TrainConfig(dataflow=df), AutoResumeTrainConfig(data=QueueInput(df))
Predictor(config, df), tp.InferenceRunner(df, [])
""",
        """
import tensorpack as tp
import dataflow
from tensorpack.train import TrainConfig, AutoResumeTrainConfig
from tensorpack.input_source import QueueInput
from tensorpack.predict.dataset import SimpleDatasetPredictor as Predictor
df = dataflow.BatchData(source, 2)
TrainConfig(df, model=None), TrainConfig(dataflow=df), AutoResumeTrainConfig(data=QueueInput(df))
Predictor(config, df), tp.InferenceRunner(df, [])
""",
        [
            (7, "TrainConfig(dataflow=…)"),
            (7, "TrainConfig(dataflow=…)"),
            (7, "QueueInput"),
            (8, "SimpleDatasetPredictor"),
            (8, "InferenceRunner"),
        ],
    ),
    "functions of dftools": (
        """
from tensorpack import RNGDataFlow, dftools
import tensorpack.dataflow as D
dftools.dump_dataflow_to_lmdb(RNGDataFlow(), 'a')
D.dftools.dump_dataflow_to_tfrecord(D.FakeData([[2]]), 'b')
D.dump_dataflow_to_lmdb
""",
        """
from dataflow import RNGDataFlow
from tensorpack import dftools
import dataflow as D
dftools.dump_dataflow_to_lmdb(RNGDataFlow(), 'a')
D.dftools.dump_dataflow_to_tfrecord(D.FakeData([[2]]), 'b')
D.dump_dataflow_to_lmdb
""",
        [
            (4, "dftools.dump_dataflow_to_lmdb"),
            (5, "D.dftools.dump_dataflow_to_tfrecord"),
            (6, "D.dump_dataflow_to_lmdb"),
        ],
    ),
    "a star import that brought old names": (
        """
from tensorpack.dataflow import *
dftools.dump_dataflow_to_lmdb(LMDBDataPoint('a'), 'b')
PrefetchOnGPUs(TFRecordData('a'), [0])
""",
        """
from dataflow import *
from tensorpack.dataflow import LMDBDataPoint, PrefetchOnGPUs, TFRecordData, dftools
dftools.dump_dataflow_to_lmdb(LMDBDataPoint('a'), 'b')
PrefetchOnGPUs(TFRecordData('a'), [0])
""",
        [(3, "dftools"), (3, "LMDBDataPoint"), (4, "PrefetchOnGPUs"), (4, "TFRecordData")],
    ),
    "other modules of tensorpack, used after an import of its dataflow": (
        """
import tensorpack.dataflow.common
df = tensorpack.dataflow.BatchData(tensorpack.FakeData([[2]]), 2)
tensorpack.logger.info(df)
def f(x: "tensorpack.dataflow.DataFlow"): pass
""",
        """
import tensorpack.dataflow.common
import dataflow
df = dataflow.BatchData(dataflow.FakeData([[2]]), 2)
tensorpack.logger.info(df)
def f(x: "tensorpack.dataflow.DataFlow"): pass
""",
        [],
    ),
    "classes that may be something else": (
        """
try:
    from tensorpack.dataflow import PrefetchDataZMQ
except ImportError:
    PrefetchDataZMQ = None
try:
    from tensorpack.dataflow import PrefetchData
except ImportError:
    from elsewhere import PrefetchData
PrefetchDataZMQ(x, nr_proc=2), PrefetchData(x, 2, nr_proc=2)
""",
        """
try:
    from dataflow import PrefetchDataZMQ
except ImportError:
    PrefetchDataZMQ = None
try:
    from dataflow import PrefetchData
except ImportError:
    from elsewhere import PrefetchData
PrefetchDataZMQ(x, num_proc=2), PrefetchData(x, 2, nr_proc=2)
""",
        [(10, "nr_proc")],
    ),
    "names that a star import of this library would hide": (
        """
from mine import *
from tensorpack.dataflow import *
df = FilterData(PrefetchData(FakeData([[2]]), 2, 1), imgaug)
""",
        """
from mine import *
from dataflow import FakeData, PrefetchData
from tensorpack.dataflow import imgaug
df = FilterData(PrefetchData(FakeData([[2]]), 2, 1), imgaug)
""",
        [(4, "imgaug")],
    ),
    "parameters that are gone": (
        """
from tensorpack.dataflow import *
a = DataFromGenerator(f, size=3), DataFromGenerator(f, 3), DataFromGenerator(f)
send_dataflow_zmq(a, 'tcp://host:1', print_interval=5)
""",
        """
from dataflow import *
a = DataFromGenerator(f, size=3), DataFromGenerator(f, 3), DataFromGenerator(f)
send_dataflow_zmq(a, 'tcp://host:1', print_interval=5)
""",
        [
            (3, "DataFromGenerator(size=…)"),
            (3, "DataFromGenerator(…, size)"),
            (4, "send_dataflow_zmq(print_interval=…)"),
        ],
    ),
    "addresses that other machines can reach": (
        """
from tensorpack.dataflow import RemoteDataZMQ as R, send_dataflow_zmq
R("tcp://0.0.0.0:2222"), R("tcp://127.0.0.1:1", addr2="tcp://*:5"), R(address)
R("tcp://localhost:1"), R("ipc://a"), R("tcp://host:1", bind=False), R("tcp://host:1", insecure=True)
send_dataflow_zmq(df, "tcp://host:1"), send_dataflow_zmq(df, "tcp://host:1", bind=True)
""",
        """
from dataflow import RemoteDataZMQ as R, send_dataflow_zmq
R("tcp://0.0.0.0:2222"), R("tcp://127.0.0.1:1", addr2="tcp://*:5"), R(address)
R("tcp://localhost:1"), R("ipc://a"), R("tcp://host:1", bind=False), R("tcp://host:1", insecure=True)
send_dataflow_zmq(df, "tcp://host:1"), send_dataflow_zmq(df, "tcp://host:1", bind=True)
""",
        [
            (3, 'RemoteDataZMQ("tcp://0.0.0.0:2222")'),
            (3, 'RemoteDataZMQ("tcp://*:5")'),
            (5, 'send_dataflow_zmq("tcp://host:1")'),
        ],
    ),
    "a module of one's own that is called dataflow": (
        """
from dataflow import BatchData, make_batches
import dataflow as D
D.make_batches(D.BatchData)
""",
        """
from dataflow import BatchData, make_batches
import dataflow as D
D.make_batches(D.BatchData)
""",
        [(2, "make_batches"), (4, "D.make_batches")],
    ),
    "processes of ELEKTRONN": (
        """
from elektronn2.training.parallelisation import Proc, BackgroundProc
from elektronn2.training import parallelisation, trainer
""",
        """
from dataflow import BackgroundProc
from elektronn2.training.parallelisation import Proc
import dataflow as parallelisation
from elektronn2.training import trainer
""",
        [(2, "Proc")],
    ),
    "a variable called dataflow": (
        """
import tensorpack.dataflow
dataflow = tensorpack.dataflow.DataFromList([1], shuffle=False)
""",
        """
import dataflow as dataflow_runners
dataflow = dataflow_runners.DataFromList([1], shuffle=False)
""",
        [],
    ),
    "the utilities of the stand-alone package": (
        """
from dataflow.utils import logger
from dataflow import imgaug, PrefetchData
import dataflow as D
D.dataset.Mnist('train')
""",
        """
from dataflow.utils import logger
from dataflow import imgaug, PrefetchData
import dataflow as D
D.dataset.Mnist('train')
""",
        [(2, "logger"), (3, "imgaug"), (5, "D.dataset.Mnist")],
    ),
}
