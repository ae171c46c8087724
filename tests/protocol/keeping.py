"""Nodes that keep something from pass to pass, and the check that their passes can be resumed."""

import datetime
import itertools
import json
import random
import threading
from types import SimpleNamespace

import numpy as np

from dataflow import (
    BatchData,
    DataFlow,
    FilterData,
    JoinData,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    ResumableData,
    seed,
)
from tests.support.contract import plain

NUM = 3  # datapoints in a pass
PASSES = 4


class Keeping(DataFlow):
    """It yields what `step` makes of what it keeps, and `end` is called after the last datapoint."""

    def __init__(self, kept, step, end=None):
        self.kept = kept
        self.step = step
        self.end = end

    def __iter__(self):
        for k in range(NUM):
            yield [k, self.step(self)]
        if self.end is not None:
            self.end(self)


def add(df):
    df.kept += 1


def grow(df):
    df.kept.append(len(df.kept))


def drop_first(df):
    grow(df)
    return list(df.kept)


def double(df):
    df.kept *= 2
    return df.kept


def append_text(df):
    df.kept += type(df.kept)(b"x") if isinstance(df.kept, bytes | bytearray) else "x"
    return df.kept


def value(df):
    return df.kept


def of_pcg(df):
    return int(df.kept.integers(1000))


class Schedule:
    def __init__(self):
        self.myself = self.other = self
        self.lock = threading.Lock()
        self.epoch = 0
        self.inner = SimpleNamespace(generator=np.random.default_rng(1), names=[])


def next_epoch(df):
    df.kept.epoch += 1


class OfLibrary:
    """As an augmentation that draws from its own generators, one of them in a list."""

    def __init__(self):
        self.num_calls = 0
        self.inner = [SimpleNamespace(rng=random.Random(3)), {"state": np.random.RandomState(4)}]

    def __call__(self):
        self.num_calls += 1
        return [self.inner[0].rng.random(), self.inner[1]["state"].uniform()]


OfLibrary.__module__ = "numpy.made_here"  # where a library's class is defined


HOUR = datetime.timedelta(hours=1)


def value_of_epoch(df):
    return df.kept.epoch


def put_one(df):
    df.kept.put([df.kept.qsize(), np.zeros(2)])
    return df.kept.qsize()


def read_byte(df):
    return list(df.kept.read(1))


def keeping(step, end=None, **attributes):
    """A node with several attributes."""
    df = Keeping(None, step, end)
    vars(df).update(attributes)
    return df


OPENED = []


def opened(mode="r", path=__file__):
    OPENED.append(open(path, mode))  # noqa: SIM115
    return OPENED[-1]


class OfClass(DataFlow):
    """What it keeps is a value of its class at first."""

    epoch = 0

    def __iter__(self):
        for k in range(NUM):
            yield [k, self.epoch]
        self.epoch += 1


class Began(DataFlow):
    """It counts in an attribute, and begins anew in each pass."""

    def __iter__(self):
        self.k = 0
        while self.k < NUM:
            yield [self.k]
            self.k += 1


def in_thread(make):
    return MultiThreadRunner(make, 5, 1, strict=True)


ABOVE = {
    "alone": lambda make: make(),
    "below other nodes": lambda make: BatchData(FilterData(JoinData([make(), make()]), bool), 1, use_list=True),
    "in a thread": in_thread,
    "below a parallel map": lambda make: MultiThreadMapData(make(), 2, list, strict=True),
    "in a thread in a thread": lambda make: in_thread(lambda: in_thread(make)),
}


def passes(df, num):
    return [[plain(dp) for dp in df] for _ in range(num)]


def saved(df):
    return json.loads(json.dumps(df.state_dict()))


EVERY_POSITION = list(itertools.product(range(PASSES), range(NUM + 1)))  # pass, and datapoints of it
SOME_POSITIONS = [(p, (p + 1) % (NUM + 1)) for p in range(PASSES)]  # each pass, and each number of datapoints


def check_resuming(make, positions=EVERY_POSITION):
    seed(1)
    expected = passes(make(), PASSES)
    for p, offset in positions:
        with ResumableData(make()) as df:
            passes(df, p)
            assert [plain(dp) for _, dp in zip(range(offset), df, strict=False)] == expected[p][:offset]
            state = saved(df)
        with ResumableData(make()) as resumed:
            resumed.load_state_dict(state)
            if offset < NUM:
                assert [plain(dp) for dp in resumed] == expected[p][offset:]
            assert passes(resumed, PASSES - p - 1) == expected[p + 1 :]


class Tensor:
    """As of a library whose arrays a state cannot hold."""

    def __array__(self, dtype=None, copy=None):
        return np.arange(3)


Tensor.__module__ = "numpy.made_here"


class Training:
    """Its epoch stands behind attributes that a state cannot hold."""

    def __init__(self):
        self.log = list(range(2000))
        self.lock = threading.Lock()
        self.weights = Tensor()
        self.epoch = 0


def value_of_none(df):
    return 1


def in_process(make, context="fork"):
    return MultiProcessRunnerZMQ(make(), 1, strict=True, context=context)


def as_it_is(make):
    return make()


def in_thread_in_process(make):
    return in_process(lambda: in_thread(make))


TWO = [*itertools.product([as_it_is, in_process, in_thread], repeat=2), (in_process, in_thread_in_process)]
