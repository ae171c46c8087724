"""Programs in the manner of tensorpack's examples and tutorials, of versions from 0.8 on, ported in full.

Each is the program; the names that `migrate` reports; and what a reader of the reports then writes instead, as pairs of
texts. What the program asserts has to hold after that.
"""

PORTS = {
    "ResNet on ImageNet": (
        """
import argparse, os
import numpy as np
from tensorpack import *
from tensorpack.dataflow import imgaug, dataset
from tensorpack.dataflow import AugmentImageComponent, PrefetchDataZMQ, BatchData, MultiThreadMapData


def fbresnet_augmentor(isTrain):
    return [imgaug.ResizeShortestEdge(8), imgaug.CenterCrop((4, 4))]


def get_imagenet_dataflow(datadir, name, batch_size, augmentors, parallel=None):
    if parallel is None:
        parallel = min(2, os.cpu_count())
    if name == 'train':
        ds = dataset.ILSVRC12(datadir, name, shuffle=True)
        ds = AugmentImageComponent(ds, augmentors, copy=False)
        ds = PrefetchDataZMQ(ds, nr_proc=1, hwm=20)
        ds = BatchData(ds, batch_size, remainder=False)
    else:
        ds = dataset.ILSVRC12Files(datadir, name, shuffle=False)
        aug = imgaug.AugmentorList(augmentors)

        def mapf(dp):
            im, cls = dp
            return aug.augment(im), cls
        ds = MultiThreadMapData(ds, parallel, mapf, buffer_size=10, strict=True)
        ds = BatchData(ds, batch_size, remainder=True)
        ds = PrefetchDataZMQ(ds, 1)
    return ds


train = get_imagenet_dataflow('.', 'train', 4, fbresnet_augmentor(True))
train.reset_state()
assert [im.shape for im, cls in train] == [(4, 4, 4, 3)] * 2
val = get_imagenet_dataflow('.', 'val', 4, fbresnet_augmentor(False))
val.reset_state()
assert [cls.tolist() for im, cls in val] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
""",
        {"imgaug", "dataset", "AugmentImageComponent"},
        [
            ("from tensorpack import *\n", ""),
            ("from tensorpack.dataflow import imgaug, dataset\n", ""),
            ("from tensorpack.dataflow import AugmentImageComponent\n", "from dataflow import DataFromList, MapData\n"),
            ("[imgaug.ResizeShortestEdge(8), imgaug.CenterCrop((4, 4))]", "lambda im: im[2:-2, 2:-2]"),
            ("dataset.ILSVRC12(datadir, name", "DataFromList([[np.ones((8, 8, 3)), k] for k in range(10)]"),
            ("dataset.ILSVRC12Files(datadir, name", "DataFromList([[np.ones((8, 8, 3)), k] for k in range(10)]"),
            (
                "AugmentImageComponent(ds, augmentors, copy=False)",
                "MapData(ds, lambda dp: [augmentors(dp[0]), dp[1]])",
            ),
            ("imgaug.AugmentorList(augmentors)", "augmentors"),
            ("aug.augment(im)", "aug(im)"),
        ],
    ),
    "Faster R-CNN": (
        """
import numpy as np
from tensorpack.dataflow import (
    DataFromList, MapData, MapDataComponent, MultiProcessMapDataZMQ, MultiThreadMapData,
    TestDataSpeed, imgaug)
from tensorpack.utils import logger
from tensorpack.utils.argtools import log_once, memoized


class MalformedData(BaseException):
    pass


def get_train_dataflow():
    roidbs = [{'file_name': '%d.jpg' % k, 'boxes': np.zeros((k % 3, 4), 'float32')} for k in range(12)]
    num = len(roidbs)
    roidbs = list(filter(lambda img: len(img['boxes']) > 0, roidbs))
    logger.info("Filtered {} images. #images remaining: {}".format(num - len(roidbs), len(roidbs)))
    ds = DataFromList(roidbs, shuffle=True)

    def preprocess(roidb):
        try:
            if roidb['file_name'] == '4.jpg':
                raise MalformedData("no foreground")
        except MalformedData as e:
            log_once("Input {} is filtered for training: {}".format(roidb['file_name'], e), 'warn')
            return None
        return dict(image=np.zeros((4, 4, 3)), gt_boxes=roidb['boxes'])
    return MultiProcessMapDataZMQ(ds, 2, preprocess, buffer_size=6)


def get_eval_dataflow(shard=0, num_shards=1):
    roidbs = [['%d.jpg' % k, k] for k in range(9)]
    per_shard = len(roidbs) // num_shards
    range_ = (shard * per_shard, (shard + 1) * per_shard if shard + 1 < num_shards else len(roidbs))
    ds = DataFromList(roidbs[range_[0]: range_[1]], shuffle=False)
    return MapDataComponent(ds, lambda fname: np.full((2, 2), len(fname)), 0)


ds = get_train_dataflow()
TestDataSpeed(ds, 20).start()
it = iter(ds)
assert all(len(next(it)['gt_boxes']) > 0 for _ in range(20))
assert ds.size() == 8
found = []
for shard in range(2):
    df = get_eval_dataflow(shard, 2)
    df.reset_state()
    found += [img_id for img, img_id in df.get_data()]
assert found == list(range(9))
""",
        {"imgaug"},
        [
            ("from tensorpack.dataflow import imgaug\n", ""),
            ("from tensorpack.utils import logger\n", "import logging\nlogger = logging.getLogger()\n"),
            ("from tensorpack.utils.argtools import log_once, memoized\n", "def log_once(text, level):\n    pass\n"),
        ],
    ),
    "DQN": (
        """
import numpy as np
import threading
from tensorpack.dataflow import *
from tensorpack.callbacks.base import Callback
from tensorpack.train import TrainConfig


class ExpReplay(DataFlow, Callback):
    def __init__(self, batch_size, memory_size):
        self.batch_size = batch_size
        self.mem = np.arange(memory_size)
        self._populated = threading.Event()

    def get_data(self):
        while True:
            idx = self.rng.randint(len(self.mem) - 1, size=self.batch_size)
            yield [self.mem[idx], np.zeros(self.batch_size, dtype='uint8')]

    def reset_state(self):
        super(ExpReplay, self).reset_state()
        self.rng = np.random.RandomState(3)


replay = ExpReplay(5, 50)
config = TrainConfig(dataflow=FixedSizeData(replay, 4), steps_per_epoch=10)
df = FixedSizeData(replay, 4)
df.reset_state()
states = [state for state, reward in df]
assert [len(state) for state in states] == [5] * 4
""",
        {"TrainConfig(dataflow=…)"},
        [
            ("from tensorpack.callbacks.base import Callback\n", "class Callback(object):\n    pass\n"),
            ("from tensorpack.train import TrainConfig\n", "TrainConfig = dict\n"),
        ],
    ),
    "HED": (
        """
import numpy as np
from tensorpack.dataflow import dataset, BatchDataByShape, MapDataComponent, PrefetchDataZMQ, AugmentImageComponents
from tensorpack.dataflow.imgaug import Flip


def get_data(name):
    isTrain = name == 'train'
    ds = dataset.BSDS500(name, shuffle=True)
    ds = MapDataComponent(ds, lambda x: (x >= 0.5).astype('float32'), index=1)
    if isTrain:
        augmentors = [Flip(horiz=True)]
        ds = AugmentImageComponents(ds, augmentors, (0, 1), copy=False)
        ds = BatchDataByShape(ds, 2, idx=0)
        ds = PrefetchDataZMQ(ds, nr_proc=1)
    return ds


df = get_data('train')
df.reset_state()
assert {image.shape for image, edge in df} <= {(2, 4, 6), (2, 6, 4)}
assert len(df) == 4
""",
        {"dataset", "AugmentImageComponents", "Flip"},
        [
            (
                "from tensorpack.dataflow import dataset, AugmentImageComponents\n",
                "from dataflow import DataFromList, MapData\n",
            ),
            ("from tensorpack.dataflow.imgaug import Flip\n", ""),
            (
                "dataset.BSDS500(name",
                "DataFromList([[np.ones(s), np.ones(s)] for s in [(4, 6), (6, 4)] * 4]",
            ),
            ("[Flip(horiz=True)]", "np.fliplr"),
            (
                "AugmentImageComponents(ds, augmentors, (0, 1), copy=False)",
                "MapData(ds, lambda dp: [augmentors(x) for x in dp])",
            ),
        ],
    ),
    "Char-RNN": (
        """
import numpy as np
from collections import Counter
from tensorpack import RNGDataFlow, BatchData, RepeatedData, PrefetchData
from tensorpack.utils import fix_rng_seed

fix_rng_seed(7)


class CharRNNData(RNGDataFlow):
    def __init__(self, text, size):
        self.seq_length = 5
        self._size = size
        self.char2idx = {c: i for i, (c, n) in enumerate(sorted(Counter(text).items()))}
        self.whole_seq = np.array([self.char2idx[c] for c in text], dtype='int32')

    def size(self):
        return self._size

    def get_data(self):
        random_starts = self.rng.randint(0, self.whole_seq.shape[0] - self.seq_length - 1, (self._size,))
        for st in random_starts:
            seq = self.whole_seq[st:st + self.seq_length + 1]
            yield [seq[:-1], seq[1:]]


ds = CharRNNData('in xanadu did kubla khan a stately pleasure dome decree', 20)
ds = BatchData(ds, 10)
ds = PrefetchData(ds, nr_prefetch=4, nr_proc=1)
ds = RepeatedData(ds, nr=2)
ds.reset_state()
pairs = list(ds.get_data())
assert len(pairs) == ds.size() == 4
assert all(x.shape == y.shape == (10, 5) and (x[:, 1:] == y[:, :-1]).all() for x, y in pairs)
""",
        set(),
        [],
    ),
    "DCGAN": (
        """
import numpy as np
import tensorpack.dataflow as D
import tensorpack.dataflow.imgaug as aug


def get_data(files):
    ds = D.ImageFromFile(files, channel=3, shuffle=True)
    ds = D.AugmentImageComponent(ds, [aug.Resize(4)])
    ds = D.LocallyShuffleData(ds, 6, nr_reuse=1)
    ds = D.FixedSizeData(ds, 12)
    ds = D.BatchData(ds, 4)
    ds = D.PrefetchDataZMQ(ds, nr_proc=1)
    return ds


df = get_data(['%d.jpg' % k for k in range(12)])
df.reset_state()
batches = [images for images, in df]
assert len(batches) == 3 and all(b.shape == (4, 4, 4, 3) for b in batches)
""",
        {"D.ImageFromFile", "D.AugmentImageComponent", "tensorpack.dataflow.imgaug"},
        [
            ("import tensorpack.dataflow.imgaug as aug\n", ""),
            (
                "D.ImageFromFile(files, channel=3, shuffle=True)",
                "D.MapData(D.DataFromList([[f] for f in files], shuffle=True), lambda dp: [np.zeros((8, 8, 3))])",
            ),
            (
                "D.AugmentImageComponent(ds, [aug.Resize(4)])",
                "D.MapDataComponent(ds, lambda im: im[::2, ::2], 0)",
            ),
        ],
    ),
    "an LMDB of ImageNet": (
        """
import numpy as np
from tensorpack.dataflow import *
from tensorpack.dataflow.dftools import dump_dataflow_to_tfrecord


class BinaryILSVRC12(RNGDataFlow):
    def get_data(self):
        for k in range(12):
            yield [np.arange(k + 1, dtype='uint8'), k]

    def size(self):
        return 12


ds0 = BinaryILSVRC12()
ds1 = PrefetchDataZMQ(ds0, nr_proc=1)
dftools.dump_dataflow_to_lmdb(ds1, 'ILSVRC-train.lmdb')
dump_dataflow_to_tfrecord(ds0, 'ILSVRC-train.tfrecord')

ds = LMDBData('ILSVRC-train.lmdb', shuffle=False)
ds = LocallyShuffleData(ds, 6)
ds = PrefetchData(ds, 5, 1)
ds = LMDBDataPoint(ds)
ds = MapDataComponent(ds, lambda x: int(x.sum()), 0)
ds.reset_state()
it = iter(ds)
seen = [next(it) for _ in range(12)]
assert all(total == k * (k + 1) // 2 for total, k in seen), seen
again = LMDBDataPoint('ILSVRC-train.lmdb', shuffle=False)
assert [k for _, k in again] == [k for _, k in TFRecordData('ILSVRC-train.tfrecord', size=12)] == list(range(12))
""",
        {"dftools", "dump_dataflow_to_tfrecord", "LMDBDataPoint", "TFRecordData"},
        [
            ("from tensorpack.dataflow import LMDBDataPoint, TFRecordData, dftools\n", ""),
            ("from tensorpack.dataflow.dftools import dump_dataflow_to_tfrecord\n", ""),
            ("dftools.dump_dataflow_to_lmdb(", "LMDBSerializer.save("),
            ("dump_dataflow_to_tfrecord(", "TFRecordSerializer.save("),
            (
                "ds = LMDBData('ILSVRC-train.lmdb', shuffle=False)\n",
                "ds = LMDBSerializer.load('ILSVRC-train.lmdb', shuffle=False)\n",
            ),
            ("ds = LMDBDataPoint(ds)\n", ""),
            ("LMDBDataPoint(", "LMDBSerializer.load("),
            ("TFRecordData(", "TFRecordSerializer.load("),
        ],
    ),
    "data from another machine": (
        """
import itertools, threading
from tensorpack.dataflow import DataFromGenerator, FixedSizeData, MapData, TestDataSpeed
from tensorpack.dataflow.remote import send_dataflow_zmq, RemoteDataZMQ


def numbers():
    for k in range(30):
        yield [k, 'x' * k]


df = DataFromGenerator(numbers, size=30)
address = 'tcp://0.0.0.0:0'
received = RemoteDataZMQ('tcp://0.0.0.0:2222', hwm=100)
sender = threading.Thread(target=send_dataflow_zmq, args=(MapData(df, lambda dp: [dp[0] + 1, dp[1]]), address))
sender.start()
received.reset_state()
assert [len(text) + 1 for _, text in itertools.islice(received, 30)] == list(range(1, 31))
sender.join(60)
TestDataSpeed(df, size=10).start_test()
""",
        {"DataFromGenerator(size=…)", "RemoteDataZMQ('tcp://0.0.0.0:2222')"},
        [
            ("DataFromGenerator(numbers, size=30)", "FixedSizeData(DataFromGenerator(numbers), 30, keep_state=False)"),
            ("'tcp://0.0.0.0:0'", "'ipc://pipe'"),
            ("RemoteDataZMQ('tcp://0.0.0.0:2222', hwm=100)", "RemoteDataZMQ(address, hwm=100, timeout=60)"),
            ("sender.join(60)\n", "received.close()\nsender.join(60)\n"),
        ],
    ),
    "a queue between processes": (
        """
import queue, threading
from tensorpack.dataflow import DataFromQueue, DataFromList, MultiProcessPrefetchData, RandomMixData, ConcatData
from tensorpack.dataflow import dftools
from tensorpack.dataflow.base import DataFlowTerminated

source = DataFromList([[k] for k in range(10)], shuffle=False)
q, proc = dftools.dump_dataflow_to_process_queue(source, 20, 1)
proc.start()
ds = DataFromQueue(q)
it = iter(ds)
assert [next(it)[0] for _ in range(10)] == list(range(10))
proc.join()
mixed = RandomMixData([source, ConcatData([source, source])])
df = MultiProcessPrefetchData(mixed, 5, 1)
df.reset_state()
assert sorted(k for k, in df) == sorted(3 * list(range(10)))
assert df.size() == 30 and issubclass(DataFlowTerminated, BaseException)
""",
        {"dftools.dump_dataflow_to_process_queue"},
        [
            ("from tensorpack.dataflow import dftools\n", ""),
            (
                "q, proc = dftools.dump_dataflow_to_process_queue(source, 20, 1)\n",
                "q = queue.Queue(20)\nproc = threading.Thread(target=lambda: [q.put(dp) for dp in source])\n",
            ),
        ],
    ),
    "one process for each GPU": (
        """
import os
from tensorpack import *
from tensorpack.utils.gpu import get_nr_gpu


class Source(DataFlow):
    def __iter__(self):
        for k in range(6):
            yield [k]

    def __len__(self):
        return 6


class Doubled(ProxyDataFlow):
    def __init__(self, ds, nr):
        super(Doubled, self).__init__(RepeatedDataPoint(ds, nr=nr))

    def get_data(self):
        for dp in self.ds.get_data():
            yield [2 * dp[0]]


df = PrefetchOnGPUs(Doubled(Source(), 2), [0])
df.reset_state()
assert [k for k, in df] == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10]
assert len(SelectComponent(df, [0])) == df.size() == 12
logger.info('done')
""",
        {"PrefetchOnGPUs"},
        [
            ("from tensorpack import *\n", "import logging\nlogger = logging.getLogger()\n"),
            ("from tensorpack.utils.gpu import get_nr_gpu\n", "from dataflow import MultiProcessRunnerZMQ\n"),
            ("PrefetchOnGPUs(Doubled(Source(), 2), [0])", "MultiProcessRunnerZMQ(Doubled(Source(), 2), 1)"),
        ],
    ),
    "pairs of digits": (
        """
import numpy as np
import tensorpack.dataflow
from tensorpack import dataflow as flows
from tensorpack.dataflow import dataset, RNGDataFlow
try:
    from tensorpack.dataflow import PrefetchDataZMQ
except ImportError:
    PrefetchDataZMQ = None


class MnistPairs(dataset.Mnist):
    def __init__(self, train_or_test):
        super(MnistPairs, self).__init__(train_or_test, shuffle=False)
        self.data_dict = [[k, k + 10] for k in range(10)]

    def pick(self, label):
        return self.data_dict[label][self.rng.randint(2)]

    def get_data(self):
        while True:
            y = self.rng.randint(2)
            a, b = self.rng.choice(10, 2, replace=False)
            b = a if y == 0 else b
            yield [self.pick(a), self.pick(b), y]


class Fixed(tensorpack.dataflow.FixedSizeData):
    def __init__(self, ds):
        tensorpack.dataflow.FixedSizeData.__init__(self, ds, 40)


ds = Fixed(MnistPairs('train'))
ds = flows.JoinData([ds, flows.FakeData([[2]], 40, random=False)])
ds = flows.BatchData(ds, 8)
if PrefetchDataZMQ is not None:
    ds = PrefetchDataZMQ(ds, nr_proc=1)
tensorpack.logger.info('%d batches', ds.size())
ds.reset_state()
for a, b, y, fake in ds.get_data():
    assert ((a % 10 == b % 10) == (y == 0)).all() and fake.shape == (8, 2)
""",
        {"dataset"},
        [
            ("from tensorpack.dataflow import dataset\n", ""),
            ("dataset.Mnist", "RNGDataFlow"),
            ("super(MnistPairs, self).__init__(train_or_test, shuffle=False)", "pass"),
            ("import tensorpack.dataflow\n", ""),
            ("tensorpack.logger.info", "print"),
        ],
    ),
    "speech with CTC": (
        """
import numpy as np, lmdb
from tensorpack.dataflow import LMDBDataDecoder, LMDBData, CacheData, PrintData, ProxyDataFlow, MapData
from tensorpack.dataflow.common import TestDataSpeed, RepeatedData, DataFlow


class TIMITBatch(ProxyDataFlow):
    def __init__(self, ds, batch):
        self.batch = batch
        self.ds = ds

    def size(self):
        return self.ds.size() // self.batch

    def get_data(self):
        itr = self.ds.get_data()
        for _ in range(self.size()):
            feats = [next(itr) for b in range(self.batch)]
            seqlen = np.array([len(f[0]) for f in feats])
            padded = np.zeros((self.batch, seqlen.max()))
            for b, (f, label) in enumerate(feats):
                padded[b, :len(f)] = f
            yield [padded, [label for f, label in feats], seqlen]


db = lmdb.open('timit.mdb', subdir=False)
with db.begin(write=True) as txn:
    for k in range(8):
        txn.put(b'%08d' % k, bytes(range(k + 1)))
db.close()
ds = LMDBData('timit.mdb', shuffle=False)
ds = LMDBDataDecoder(ds, lambda k, v: [np.frombuffer(v, 'uint8'), int(k)])
ds = CacheData(PrintData(ds, num=1, label='timit'), shuffle=True)
ds = TIMITBatch(MapData(ds, lambda dp: dp if dp[1] >= 0 else None), 4)
TestDataSpeed(ds, size=2).start_test()
ds.reset_state()
assert isinstance(ds, DataFlow) and len(list(RepeatedData(ds, nr=2))) == 4
for feats, labels, seqlen in ds.get_data():
    assert (seqlen == np.array(labels) + 1).all() and feats.shape == (4, seqlen.max())
""",
        set(),
        [],
    ),
    "parameters in a partial": (
        """
from functools import partial
import tensorpack.dataflow as df
from tensorpack import dataflow
from tensorpack.dataflow.parallel_map import ThreadedMapData

ds = df.DataFromIterable([[k] for k in range(6)])
ds = dataflow.PrefetchDataZMQ(ds, nr_proc=1)
make = partial(ThreadedMapData, nr_thread=1, strict=True)
ds = make(ds, map_func=lambda dp: [dp[0] + 1])
ds.reset_state()
assert [k for k, in ds] == [1, 2, 3, 4, 5, 6]
mapped = df.MultiProcessMapData(df.DataFromList([[1], [2]], False), 1, lambda dp: dp, 2, True)
assert list(mapped) == [[1], [2]]
choose = df.RandomChooseData([(df.RepeatedData(mapped, -1), 1.)])
assert next(iter(choose)) in ([1], [2])
""",
        set(),
        [],
    ),
}
