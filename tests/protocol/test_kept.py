"""What users' nodes keep from pass to pass goes to the process that resumes, and to the successor of a worker."""

import array
import asyncio
import ctypes
import dataclasses
import datetime
import enum
import functools
import io
import itertools
import json
import multiprocessing
import os
import queue
import random
import signal
import sys
import threading
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dataflow import (
    BatchData,
    CacheData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    FilterData,
    JoinData,
    MapData,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    NotReproducible,
    ResumableData,
    StateMismatch,
    seed,
)
from dataflow.protocol import kept_values
from tests.support.contract import plain

pytestmark = pytest.mark.usefixtures("unseeded")

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


def insert(df):
    df.kept[len(df.kept), "key"] = [1.5, None, b"\x00"]
    return sorted(df.kept)


def shift(df):
    df.kept[:] = np.roll(df.kept, 1) * 2
    return df.kept.tolist()


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


def of_random(df):
    return df.kept.gauss(0, 1)


def of_state(df):
    return df.kept.standard_normal()


class Schedule:
    def __init__(self):
        self.myself = self.other = self
        self.lock = threading.Lock()
        self.epoch = 0
        self.inner = SimpleNamespace(generator=np.random.default_rng(1), names=[])


def of_object(df):
    df.kept.inner.names.append(df.kept.epoch)
    return [df.kept.epoch, int(df.kept.inner.generator.integers(1000)), *df.kept.inner.names]


def next_epoch(df):
    df.kept.epoch += 1


class OfSlots:
    __slots__ = ("epoch",)

    def __init__(self):
        self.epoch = 0


def draw(rng):
    return int(rng.integers(1000))


def closure(rng):
    return lambda: [rng.random()]


def default(rng):
    return lambda rng=rng: [rng.random()]


def wrapped(rng):
    return functools.lru_cache(maxsize=0)(closure(rng))


@dataclasses.dataclass(frozen=True)
class Frozen:
    epoch: int


class OfLibrary:
    """As an augmentation that draws from its own generators, one of them in a list."""

    def __init__(self):
        self.num_calls = 0
        self.inner = [SimpleNamespace(rng=random.Random(3)), {"state": np.random.RandomState(4)}]

    def __call__(self):
        self.num_calls += 1
        return [self.inner[0].rng.random(), self.inner[1]["state"].uniform()]


OfLibrary.__module__ = "numpy.made_here"  # where a library's class is defined


def replace_frozen(df):
    df.kept = Frozen(df.kept.epoch + 1)


def next_day(df):
    df.kept += np.timedelta64(1, "D")


def count_letters(df):
    df.kept.update("ab")
    return sorted(df.kept.items())


def append_to_each(df):
    df.kept["x"].append(len(df.kept))
    df.kept[len(df.kept)] = []
    return [list(held) for held in df.kept.values()]


class Mode(enum.Enum):
    FIRST = 1
    SECOND = 2
    THIRD = 3


def next_mode(df):
    df.kept = Mode(df.kept.value % 3 + 1)


def in_object(df):
    next_mode(df.kept)


HOUR = datetime.timedelta(hours=1)
NOW = datetime.datetime(2026, 1, 31, 23, tzinfo=datetime.timezone(HOUR))


def next_date(df):
    df.kept = {day + datetime.timedelta(1): path / "a" for day, path in df.kept.items()}


def increase(df):
    df.kept = [df.kept[0] + 1, df.kept[1] / 3, range(len(df.kept[2]) + 1)]


def value_of_epoch(df):
    return df.kept.epoch


def put_one(df):
    df.kept.put([df.kept.qsize(), np.zeros(2)])
    return df.kept.qsize()


def toggle(df):
    (df.kept.clear if df.kept.is_set() else df.kept.set)()


def acquire(df):
    df.kept.acquire(blocking=False)
    return df.kept._value


def count_in_map(df):
    df.kept["n"] = df.kept["n"] + 1
    return df.kept["n"]


def write_text(df):
    df.kept.write("x")
    return df.kept.getvalue()


def read_byte(df):
    return list(df.kept.read(1))


def count_here(df):
    df.kept.n += 1
    return df.kept.n


def keeping(step, end=None, **attributes):
    """A node with several attributes."""
    df = Keeping(None, step, end)
    vars(df).update(attributes)
    return df


def twice(held, step):
    """A node that has the same object in two attributes, and in a closure."""
    return keeping(lambda df: [step(df.kept), len(held), len(df.again)], kept=held, again=held)


def seen_through(array, step):
    return keeping(step, kept=array, window=array[1:])


def also_inside(held):
    return {"kept": held, "inside": SimpleNamespace(held=held)}


OPENED = []


@pytest.fixture(autouse=True)
def _closing():
    yield
    while OPENED:
        OPENED.pop().close()


def opened(mode="r", path=__file__):
    OPENED.append(open(path, mode))  # noqa: SIM115
    return OPENED[-1]


def of_local(n):
    held = threading.local()
    held.n = n
    return held


CONSTANT = [0, 0]


def replace_constant(df):
    df.kept = [df.kept[0] + 1, *df.kept[1:]]
    return [*df.kept, *CONSTANT]


def exchange(df):
    df.kept, df.other = df.other, df.kept


def grow_kept(df):
    df.kept.append(len(df.kept))
    return [list(df.kept), list(df.other)]


HELD_TWICE = {  # what is the same object as at first stays the same one
    "list": lambda: twice([], lambda held: held.append(1)),
    "deque": lambda: twice(deque([1, 2], 5), lambda held: held.append(1)),
    "dict": lambda: twice({}, lambda held: held.setdefault(len(held), 1)),
    "set": lambda: twice({1}, lambda held: held.add(len(held))),
    "defaultdict": lambda: twice(defaultdict(int), lambda held: held[len(held)]),
    "bytearray": lambda: twice(bytearray(), lambda held: held.append(1)),
    "array": lambda: seen_through(np.zeros(3), lambda df: [df.kept.__iadd__(1).tolist(), df.window.tolist()]),
    "list in an object": lambda: keeping(
        lambda df: [df.kept.append(1), len(df.inside.held)],
        **also_inside([]),
    ),
    "constant": lambda: Keeping(CONSTANT, replace_constant),
    "lists that are exchanged": lambda: keeping(grow_kept, exchange, kept=[1], other=[2, 3]),
}


KEPT = {
    **{f"{name} that is held twice": make for name, make in HELD_TWICE.items()},
    "Queue": lambda: Keeping(queue.Queue(), put_one),
    "LifoQueue": lambda: Keeping(
        SimpleNamespace(inside=queue.LifoQueue()), lambda df: put_one(SimpleNamespace(kept=df.kept.inside))
    ),
    "Event": lambda: Keeping(threading.Event(), lambda df: df.kept.is_set(), toggle),
    "Semaphore": lambda: Keeping(threading.Semaphore(20), acquire),
    "ChainMap": lambda: Keeping(ChainMap({}, {"n": 1}), count_in_map),
    "StringIO": lambda: Keeping(io.StringIO("text"), write_text),
    "BytesIO": lambda: Keeping(io.BytesIO(bytes(range(50))), read_byte),
    "file": lambda: Keeping(opened("rb"), read_byte),
    "text file": lambda: Keeping(opened(), lambda df: df.kept.readline()),
    "bit generator": lambda: Keeping(np.random.PCG64(1), lambda df: df.kept.random_raw()),
    "number behind what cannot be given": lambda: Keeping(Training(), value_of_epoch, next_epoch),
    "private slot": lambda: Keeping(PrivateSlot(), next_of_slot),
    "slots of an object": lambda: Keeping(OfSlots(), lambda df: df.kept.epoch, next_epoch),
    "frozen object": lambda: Keeping(Frozen(0), lambda df: df.kept.epoch, replace_frozen),
    "object of a library": lambda: Keeping(OfLibrary(), lambda df: df.kept()),
    "objects of a library": lambda: Keeping((OfLibrary(), [OfLibrary()]), lambda df: df.kept[0]() + df.kept[1][0]()),
    "method of a generator": lambda: Keeping(random.Random(5).random, lambda df: df.kept()),
    "partial": lambda: Keeping(functools.partial(draw, rng=np.random.default_rng(6)), lambda df: df.kept()),
    "closure": lambda: Keeping(closure(random.Random(7)), lambda df: df.kept()),
    "member of an enumeration": lambda: Keeping(Mode.FIRST, lambda df: df.kept.name, next_mode),
    "member in an object": lambda: Keeping(SimpleNamespace(kept=Mode.FIRST), lambda df: df.kept.kept.name, in_object),
    "dates and paths": lambda: Keeping({datetime.date(2026, 1, 30): Path("a")}, lambda df: repr(df.kept), next_date),
    "time with a zone": lambda: Keeping(NOW, lambda df: repr(df.kept), lambda df: setattr(df, "kept", df.kept + HOUR)),
    "other numbers": lambda: Keeping([Decimal("0.1"), Fraction(1, 3), range(2)], lambda df: repr(df.kept), increase),
    "UserDict": lambda: Keeping(UserDict(), insert),
    "UserList": lambda: Keeping(UserList(), lambda df: list(df.kept), grow),
    "default": lambda: Keeping(default(random.Random(8)), lambda df: df.kept()),
    "wrapped function": lambda: Keeping(wrapped(random.Random(9)), lambda df: df.kept()),
    "Counter": lambda: Keeping(Counter(), count_letters),
    "defaultdict": lambda: Keeping(defaultdict(list), append_to_each),
    "OrderedDict": lambda: Keeping(OrderedDict(), insert),
    "complex": lambda: Keeping(1j, value, add),
    "bytearray": lambda: Keeping(bytearray(b"a"), lambda df: bytes(df.kept), append_text),
    "array of dates": lambda: Keeping(np.array(["2026-01-01"], "M8[D]"), lambda df: str(df.kept), next_day),
    "object": lambda: Keeping(Schedule(), of_object, next_epoch),
    "number": lambda: Keeping(0, value, add),
    "number that changes at each step": lambda: Keeping(1, double),
    "float": lambda: Keeping(0.1, value, add),
    "infinite": lambda: Keeping(-1e308, double),
    "number of NumPy": lambda: Keeping(np.float32(0.1), lambda df: float(df.kept), add),
    "text": lambda: Keeping("ä", append_text),
    "bytes": lambda: Keeping(b"\xff", append_text),
    "list": lambda: Keeping([], lambda df: list(df.kept), grow),
    "nested list": lambda: Keeping([(0,), {1}, frozenset({2})], lambda df: len(df.kept), grow),
    "deque that is full": lambda: Keeping(deque([7, 8], 2), drop_first),
    "dict": lambda: Keeping({}, insert),
    "array": lambda: Keeping(np.arange(4, dtype=">i2"), shift),
    "Generator": lambda: Keeping(np.random.default_rng(1), of_pcg),
    "Generator of MT19937": lambda: Keeping(np.random.Generator(np.random.MT19937(1)), of_pcg),
    "Generator of Philox": lambda: Keeping(np.random.Generator(np.random.Philox(1)), of_pcg),
    "RandomState": lambda: Keeping(np.random.RandomState(1), of_state),
    "Random": lambda: Keeping(random.Random(1), of_random),
}


class Slots(DataFlow):
    __slots__ = ("epoch",)

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        for k in range(NUM):
            yield [k, self.epoch]
        self.epoch += 1


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


class InReset(DataFlow):
    def reset_state(self):
        self.rng = np.random.default_rng(5)

    def __iter__(self):
        for k in range(NUM):
            yield [k, int(self.rng.integers(1000))]


NODES = {**KEPT, "slots": Slots, "value of the class": OfClass, "position": Began, "made in reset_state": InReset}


def in_process(make, context="fork"):
    return MultiProcessRunnerZMQ(make(), 1, strict=True, context=context)


def in_thread(make):
    return MultiThreadRunner(make, 5, 1, strict=True)


ABOVE = {
    "alone": lambda make: make(),
    "below other nodes": lambda make: BatchData(FilterData(JoinData([make(), make()]), bool), 1, use_list=True),
    "in a thread": in_thread,
    "below a parallel map": lambda make: MultiThreadMapData(make(), 2, list, strict=True),
    "in a thread in a thread": lambda make: in_thread(lambda: in_thread(make)),
}
IN_PROCESSES = [
    pytest.param(in_process, id="in a process"),
    pytest.param(functools.partial(in_process, context="forkserver"), id="under forkserver"),
    pytest.param(functools.partial(in_process, context="spawn"), id="in a spawned process", marks=pytest.mark.full),
]


def passes(df, num):
    return [[plain(dp) for dp in df] for _ in range(num)]


def saved(df):
    return json.loads(json.dumps(df.state_dict()))


def check_resuming(make):
    seed(1)
    expected = passes(make(), PASSES)
    for p, offset in itertools.product(range(PASSES), range(NUM + 1)):
        with ResumableData(make()) as df:
            passes(df, p)
            assert [plain(dp) for _, dp in zip(range(offset), df, strict=False)] == expected[p][:offset]
            state = saved(df)
        with ResumableData(make()) as resumed:
            resumed.load_state_dict(state)
            if offset < NUM:
                assert [plain(dp) for dp in resumed] == expected[p][offset:]
            assert passes(resumed, PASSES - p - 1) == expected[p + 1 :]


def nodes_and_places():
    """Every node alone and, in full, in one of the other places in turn; two of the nodes in all places."""
    others = itertools.cycle([above for above in ABOVE if above != "alone"])
    for node in NODES:
        if node in {"number that changes at each step", "Generator"}:
            yield from ((node, above) for above in ABOVE)
        else:
            yield node, "alone"
            yield pytest.param(node, next(others), marks=pytest.mark.full)


@pytest.mark.parametrize(("node", "above"), list(nodes_and_places()))
def test_a_pass_is_resumed_with_what_its_nodes_keep(node, above):
    check_resuming(lambda: ABOVE[above](NODES[node]))


@pytest.mark.parametrize("name", ["number", "position", pytest.param("Generator", marks=pytest.mark.full)])
@pytest.mark.parametrize("above", IN_PROCESSES)
def test_workers_of_other_processes_get_it(name, above):
    seed(1)
    if above is not in_process:
        name = "position"  # functions of this file are sent by name, local ones are not
        make = Began
    else:
        make = NODES[name]
    expected = passes(make(), 3)
    with ResumableData(above(make)) as df:
        passes(df, 1)
        assert plain(next(iter(df))) == expected[1][0]
        state = saved(df)
    with ResumableData(above(make)) as resumed:
        resumed.load_state_dict(state)
        assert [plain(dp) for dp in resumed] == expected[1][1:]
        assert passes(resumed, 1) == expected[2:]


def test_the_state_says_what_is_kept_and_nothing_else():
    df = ResumableData(Keeping(0, value, add))
    assert "kept" not in df.state_dict()
    passes(df, 2)
    assert df.state_dict()["kept"] == [{"kept": 2}]


def test_a_state_that_is_loaded_later_goes_back():
    df = ResumableData(OfClass())
    first = df.state_dict()
    expected = passes(df, 2)
    second = df.state_dict()
    passes(df, 2)
    df.load_state_dict(first)
    assert passes(df, 2) == expected
    df.load_state_dict(second)
    assert [dp[1] for dp in df] == [2] * NUM


def test_a_generator_that_others_hold_is_set_and_not_replaced():
    def make():
        generator = np.random.default_rng(3)
        return Keeping(generator, lambda df: int(generator.integers(1000)))

    check_resuming(make)


@pytest.mark.parametrize("path", [["args", 0, 0, 0], ["args", 1]])
def test_a_state_may_name_any_of_the_ways_to_a_generator(path):
    generator, wanted = random.Random(1), random.Random(2)
    held = functools.partial(draw, {"one": [generator]}, generator)
    version, numbers, gauss = wanted.getstate()
    assert kept_values.make(["holds", [[path, ["Random", version, list(numbers), gauss]]]], held) is held
    assert generator.getstate() == wanted.getstate()


def test_below_a_cache_nothing_is_kept():
    check_resuming(lambda: CacheData(Keeping(np.random.default_rng(1), of_pcg), shuffle=False))


@pytest.mark.parametrize("strict", [in_process, in_thread], ids=["process", "thread"])
def test_whole_passes_in_a_worker_are_those_of_the_node_itself(strict):
    with strict(OfClass) as df:
        assert passes(df, 3) == passes(OfClass(), 3)


@pytest.mark.parametrize("reads_ahead", [in_thread, ABOVE["below a parallel map"]], ids=["runner", "map"])
def test_after_a_loop_that_was_left_early_what_changes_at_each_step_is_logged_once(reads_ahead, caplog):
    with reads_ahead(KEPT["number that changes at each step"]) as df:
        passes(df, 1)
        assert not caplog.records
        for _ in range(2):
            assert plain(next(iter(df)))
            assert len(list(df)) == NUM
        (message,) = [record.getMessage() for record in caplog.records]
        assert message.startswith("Keeping.kept is kept from pass to pass, and a pass was left early")


@pytest.mark.parametrize("reads_ahead", [in_thread, in_process], ids=["thread", "process"])
def test_a_worker_begins_the_pass_after_one_that_was_left_early_as_that_one(reads_ahead):
    seed(1)
    with reads_ahead(KEPT["number that changes at each step"]) as df:
        passes(df, 2)
        for _ in range(2):
            assert plain(next(iter(df))) == ("list", [0, 128])
        assert passes(df, 1) == [[("list", [k, 128 << k]) for k in range(NUM)]]


@pytest.mark.parametrize("reads_ahead", [in_thread, ABOVE["below a parallel map"]], ids=["runner", "map"])
def test_after_a_loop_that_was_left_early_a_node_that_keeps_nothing_goes_on(reads_ahead):
    with reads_ahead(lambda: MapData(DataFromGenerator(lambda: iter([[1], [2], [3]])), list)) as df:
        for _ in range(3):
            assert plain(next(iter(df)))
        assert len(list(df)) == 3


@pytest.mark.parametrize("runner", [in_process, in_thread], ids=["process", "thread"])
def test_what_the_user_changes_between_passes_counts(runner):
    own = Keeping(0, value, add)
    with runner(lambda: own) as df:
        assert [dp[1] for dp in [*df, *df]] == [0] * NUM + [1] * NUM
        own.kept = 10
        assert [dp[1] for dp in [*df, *df]] == [10] * NUM + [11] * NUM


class KillsItself(DataFlow):
    """In its second pass its first process is killed."""

    def __init__(self, mark):
        self.epoch = 0
        self.mark = str(mark)

    def __iter__(self):
        for k in range(NUM):
            if self.epoch == 1 and k == 1 and not os.path.exists(self.mark):
                open(self.mark, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            yield [k, self.epoch]
        self.epoch += 1


def test_the_successor_of_a_worker_gets_it(tmp_path):
    with MultiProcessRunnerZMQ(KillsItself(tmp_path / "killed"), 1, strict=True, max_restarts=1) as df:
        assert passes(df, 3) == [[("list", [k, p]) for k in range(NUM)] for p in range(3)]
        assert (tmp_path / "killed").exists()


# -- What cannot be given ----------------------------------------------------------------------------------------------


class History(list):
    pass


def replace_object(df):
    df.kept = SimpleNamespace(epoch=1)


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


def next_of_slot(df):
    return df.kept.step()


class PrivateSlot:
    __slots__ = ("__epoch",)

    def __init__(self):
        self.__epoch = 0

    def step(self):
        self.__epoch += 1
        return self.__epoch


def value_of_none(df):
    return 1


def increment(df):
    df.kept[0] += 1


def increase_value(df):
    df.kept.value += 1


def spawn_lazily(df):
    df.kept = df.kept or np.random.default_rng(1)
    return len(df.kept.spawn(1))


def count_lazily(df):
    df.kept = df.kept or itertools.count()
    return next(df.kept)


def map_lazily(df):
    df.kept = df.kept or map(int, itertools.count())
    return next(df.kept)


def shuffle_in_place(df):
    random.Random(1).shuffle(df.kept)


def replace_by_list(df):
    df.kept = [df.kept]


def holding(value, step, end=None):
    return lambda: Keeping(value(), step, end)


def switch(df):
    df.kept = df.other


def two(first, other):
    """A node with two objects, and an attribute that is one of them."""
    return lambda: keeping(lambda df: 1, switch, first=first, other=other, kept=first)


def switch_inside(df):
    df.kept.now = df.kept.b


def next_of_library(df):
    df.kept["n"] += 1


class Epoch(int):
    pass


class Day(datetime.date):
    pass


class Amount(Decimal):
    pass


class Struct(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int)]


def mask_one(df):
    df.kept[len(df.kept) // 2] = np.ma.masked


def change_one_of_array(df):
    df.kept[57] = 1


class Synchronized:
    """As `multiprocessing.Value`, whose memory would be left behind."""

    def __init__(self):
        self.held = ctypes.c_int(0)

    def get_obj(self):
        return self.held

    value = property(lambda self: self.held.value, lambda self, value: setattr(self.held, "value", value))


Synchronized.__module__ = "multiprocessing.made_here"


class OwnRandom(random.Random):
    pass


class Many:
    def __init__(self):
        self.held = [Schedule()]
        vars(self).update({f"mode{k}": SimpleNamespace(epoch=0) for k in range(80)})


def call(df):
    return df.kept()


def counting_function():
    def count():
        count.num_calls += 1

    count.num_calls = 0
    return count


def counting_closure():
    num_calls = 0

    def count():
        nonlocal num_calls
        num_calls += 1

    return count


EASY, HARD = EASY_AND_HARD = [SimpleNamespace(epoch=1), SimpleNamespace(epoch=2)]
_TWICE = "was not there at first, and something else holds it"

REFUSED = {
    "behind the end": (
        holding(io.BytesIO, lambda df: df.kept.seek(df.kept.tell() + 1)),
        "BytesIO at 6, behind its end",
    ),
    "memoryview": (holding(lambda: memoryview(bytearray(8)), increment), "memoryview of shape"),
    "mask": (holding(lambda: np.ma.masked_less(np.arange(5), 1), value_of_none, mask_one), "MaskedArray of shape"),
    "one object in an array": (
        holding(lambda: np.array([*[None] * 99, SimpleNamespace()]), value_of_none, change_one_of_array),
        "ndarray of shape",
    ),
    "SimpleQueue": (holding(queue.SimpleQueue, put_one), r"SimpleQueue, qsize\(\) is 6"),
    "Queue of asyncio": (holding(asyncio.Queue, lambda df: df.kept.put_nowait(1)), r"Queue, qsize\(\) is 6"),
    "Event of other processes": (
        holding(multiprocessing.Event, value_of_none, lambda df: df.kept.set()),
        r"is_set\(\) is True",
    ),
    "Lock": (holding(threading.Lock, value_of_none, lambda df: df.kept.acquire(blocking=False)), r"locked\(\) is True"),
    "number of ctypes": (holding(lambda: ctypes.c_int(0), increase_value), "c_int, memoryview"),
    "Structure": (holding(lambda: Struct(0), lambda df: setattr(df.kept, "n", df.kept.n + 1)), "Struct, memoryview"),
    "number of other processes": (holding(Synchronized, increase_value), "Synchronized, mem"),
    "own number": (
        holding(lambda: Epoch(0), value_of_none, lambda df: setattr(df, "kept", Epoch(df.kept + 1))),
        "Epoch of 2",
    ),
    "own date": (
        holding(lambda: Day(2026, 1, 1), value_of_none, lambda df: setattr(df, "kept", df.kept + 24 * HOUR)),
        r"Day, .*\(2026, 1, 3\)",
    ),
    "own decimal": (
        holding(lambda: Amount(0), value_of_none, lambda df: setattr(df, "kept", Amount(df.kept + 1))),
        r"Amount, Decimal\('2'\)",
    ),
    "own generator": (holding(lambda: OwnRandom(1), lambda df: df.kept.random()), "OwnRandom of a state"),
    "SeedSequence": (
        holding(lambda: np.random.SeedSequence(1), lambda df: len(df.kept.spawn(1))),
        "SeedSequence of a state",
    ),
    "generator that spawns": (
        holding(lambda: np.random.default_rng(1), lambda df: len(df.kept.spawn(1))),
        "spawned others",
    ),
    "spawning in a list": (
        holding(lambda: [np.random.default_rng(1)], lambda df: len(df.kept[0].spawn(1))),
        "list of length 1, digest",
    ),
    "generator made when needed, that spawns": (holding(lambda: None, spawn_lazily), "spawned others"),
    "attribute of a function": (holding(counting_function, call), "with {'.num_calls': 6}"),
    "variable of a closure": (holding(counting_closure, call), "with {'num_calls': 6}"),
    "object among many": (
        holding(Many, value_of_none, lambda df: setattr(df.kept.mode70, "epoch", 1)),
        "with more than 50 objects",
    ),
    "switch of objects": (two(SimpleNamespace(a=1), SimpleNamespace(a=2)), _TWICE),
    "switch of lists": (two([1], [2]), _TWICE),
    "switch of generators": (two(random.Random(1), random.Random(2)), _TWICE),
    "switch of global objects": (holding(lambda: EASY, value_of_none, lambda df: setattr(df, "kept", HARD)), _TWICE),
    "switch of elements": (
        lambda: keeping(
            lambda df: 1,
            lambda df: setattr(df, "kept", df.all[1]),
            all=EASY_AND_HARD,
            kept=EASY,
        ),
        _TWICE,
    ),
    "switch inside": (
        holding(
            lambda: SimpleNamespace(a=EASY, b=HARD, now=EASY),
            value_of_none,
            switch_inside,
        ),
        r"\.now: what is in kept.b",
    ),
    "number beside an object of a library": (
        holding(lambda: {"lib": OfLibrary(), "n": 0}, value_of_none, next_of_library),
        "dict of length 2, digest",
    ),
    "flow beside an object of a library": (
        holding(lambda: {"lib": OfLibrary()}, value_of_none, lambda df: df.kept.update(flow=DataFromList([[1]]))),
        "object that was not there at first",
    ),
    "number beside something large": (
        holding(
            lambda: {"data": list(range(3000)), "lock": threading.Lock()},
            lambda df: df.kept["data"].append(df.kept["data"].pop(0)),
        ),
        "dict of length 2, digest",
    ),
    "another class of a library": (
        holding(OfLibrary, value_of_none, lambda df: setattr(df, "kept", Tensor())),
        "Tensor of shape",
    ),
    "iterator made when needed": (holding(lambda: None, count_lazily), "count.* is held over several passes"),
    "iterator of unknown length": (holding(lambda: None, map_lazily), "map.* is held over several passes"),
    "long list in an object": (
        lambda: Keeping(Training(), value_of_epoch, lambda df: df.kept.log.append(1)),
        r"\.log: list of length 2002",
    ),
    "long list that is shuffled": (
        lambda: Keeping(list(range(2000)), lambda df: df.kept[0], shuffle_in_place),
        "list of length 2000, digest",
    ),
    "full deque": (
        lambda: Keeping(deque(range(2000), 2000), lambda df: df.kept[0], lambda df: df.kept.rotate(1)),
        "deque of length 2000, digest",
    ),
    "large array": (
        lambda: Keeping(np.arange(5000), lambda df: int(df.kept[0]), lambda df: df.kept.__iadd__(1)),
        r"ndarray of shape \(5000,\), digest",
    ),
    "large set": (
        lambda: Keeping(set(range(2000)), lambda df: 1, lambda df: df.kept.add(-len(df.kept))),
        "set of length 2002",
    ),
    "one element of a large set": (
        lambda: Keeping(set(range(2000)), lambda df: 1, lambda df: df.kept.add(df.kept.pop() + 10_000)),
        "set of length 2000, digest",
    ),
    "one element of a long list": (
        lambda: Keeping([0.5] * 2000, lambda df: df.kept[1], lambda df: df.kept.__setitem__(1, df.kept[1] / 2)),
        "list of length 2000, digest",
    ),
    "lists in lists": (
        lambda: Keeping(functools.reduce(lambda inside, _: [inside], range(400), 0), lambda df: 1, replace_by_list),
        "list of length 1, digest",
    ),
    "one element of a large dict": (
        lambda: Keeping(dict.fromkeys(range(2000), 1), lambda df: df.kept[1], lambda df: df.kept.update({1: 2})),
        "dict of length 2000, digest",
    ),
    "one element of a large array": (
        lambda: Keeping(np.zeros(5000), lambda df: int(df.kept[1]), lambda df: df.kept.put(1, df.kept[1] + 1)),
        r"ndarray of shape \(5000,\), digest",
    ),
    "large text": (lambda: Keeping("a" * 200_000, lambda df: 1, append_text), "str of length 200002"),
    "array of the standard library": (
        lambda: Keeping(array.array("d", [0.5]), lambda df: df.kept[0], lambda df: df.kept.append(1)),
        "array of length 3, digest",
    ),
    "number beside an array of a library": (
        lambda: Keeping([Tensor(), 0], lambda df: df.kept[1], lambda df: df.kept.__setitem__(1, df.kept[1] + 1)),
        "list of length 2, digest",
    ),
    "another function": (lambda: Keeping(grow, lambda df: 1, lambda df: setattr(df, "kept", drop_first)), "drop_first"),
    "iterator": (lambda: Keeping(itertools.count(), lambda df: next(df.kept)), "count.* is held over several passes"),
    "long list": (lambda: Keeping(list(range(2000)), lambda df: len(df.kept), grow), "list of length 2002"),
    "list of the user's objects": (
        lambda: Keeping([Schedule()], lambda df: len(df.kept), lambda df: df.kept.append(1)),
        "list of length 3",
    ),
    "object in a dict": (
        lambda: Keeping(
            {"a": [Schedule()]}, lambda df: 1, lambda df: next_epoch(SimpleNamespace(kept=df.kept["a"][0]))
        ),
        "dict of length 1, digest",
    ),
    "class of a list": (lambda: Keeping(History(), lambda df: len(df.kept), grow), "History of length 2, digest"),
    "object where there was a number": (
        lambda: Keeping(5, lambda df: 1, lambda df: setattr(df, "kept", Schedule())),
        "object that was not there at first",
    ),
    "set of what has no order": (
        lambda: Keeping({"a", *range(2000)}, lambda df: 1, lambda df: df.kept.add(-1)),
        "set of length 2002",
    ),
    "another object": (lambda: Keeping(Schedule(), lambda df: 1, replace_object), "object that was not there at first"),
    "list of objects": (lambda: Keeping([object()], lambda df: len(df.kept), grow), "list of length 3"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("above", [ABOVE["alone"], ABOVE["in a thread"]], ids=["alone", "in a thread"])
def test_what_cannot_be_given_is_refused_when_it_is_saved(make, message, above):
    with ResumableData(above(make)) as df:
        df.state_dict()
        next(iter(df))
        df.state_dict()
    with ResumableData(above(make)) as df:
        passes(df, 1)
        assert len(list(df)) == NUM  # the loop goes on
        with pytest.raises(NotReproducible, match=rf"Keeping.kept \(.*{message}.*\) is kept .* variable of __iter__"):
            df.state_dict()


def test_rows_that_something_else_holds_are_refused():
    """A resume would make them anew, beside those that the other attribute has."""
    rows = [[0], [0]]
    with ResumableData(keeping(lambda df: increment(SimpleNamespace(kept=df.now)), kept=rows, now=rows[0])) as df:
        passes(df, 2)
        with pytest.raises(NotReproducible, match=rf"Keeping.kept \(it {_TWICE}"):
            df.state_dict()


def test_an_iterator_of_the_running_pass_that_was_made_by_the_last_one_is_refused():
    with ResumableData(Keeping(None, map_lazily)) as df:
        passes(df, 1)
        df.state_dict()  # it is not known yet
        next(iter(df))
        with pytest.raises(NotReproducible, match=r"map.* is held over several passes"):
            df.state_dict()


def test_iterators_and_files_that_each_pass_makes_are_not_kept():
    class Reads(DataFlow):
        def __init__(self):
            self.numbers = self.file = None

        def __iter__(self):
            self.numbers, self.file = map(int, range(NUM)), opened("rb")
            yield from ([k, list(self.file.read(1))] for k in self.numbers)

    check_resuming(Reads)


def test_a_datapoint_of_an_input_is_given_though_its_source_holds_it_too():
    class Last(DataFlow):
        def __init__(self, ds):
            self.ds = ds
            self.last = [[7]]

        def __iter__(self):
            for dp in self.ds:
                yield [*dp, *self.last[-1]]
                self.last = [*self.last[-1:], dp]

    check_resuming(lambda: Last(DataFromList([[k] for k in range(NUM)], shuffle=True)))


def test_what_a_thread_keeps_for_itself_is_given_to_that_thread():
    check_resuming(lambda: Keeping(of_local(0), count_here))


def test_another_file_is_refused(tmp_path):
    (tmp_path / "a").touch()
    with ResumableData(
        Keeping(opened(), value_of_none, lambda df: setattr(df, "kept", opened(path=tmp_path / "a")))
    ) as df:
        passes(df, 2)
        with pytest.raises(NotReproducible, match=r"another file, .*a"):
            df.state_dict()


def test_a_file_that_is_iterated_has_no_position():
    with ResumableData(Keeping(opened(), lambda df: next(df.kept))) as df:
        passes(df, 2)
        with pytest.raises(NotReproducible, match="whose position is unknown while it is iterated"):
            df.state_dict()


def test_what_is_read_of_a_pipe_is_refused():
    reads, writes = os.pipe()
    os.write(writes, b"abcdefghi")
    with open(reads, "rb") as file, open(writes, "wb"), ResumableData(Keeping(file, read_byte)) as df:
        passes(df, 2)
        with pytest.raises(NotReproducible, match="is held over several passes"):
            df.state_dict()


def test_tensors_on_a_device_count_their_changes():
    class Tensor(OnDevice):
        _version = 0

    Tensor.__module__ = "numpy.made_here"
    with ResumableData(Keeping(Tensor(), value_of_none, lambda df: setattr(df.kept, "_version", 1))) as df:
        passes(df, 2)
        with pytest.raises(NotReproducible, match="changed 1 times"):
            df.state_dict()


def test_an_iterator_that_is_exchanged_is_not_held_over_several_passes():
    df = ResumableData(Keeping(iter([1]), lambda df: 1, lambda df: setattr(df, "kept", None)))
    passes(df, 1)
    assert "kept" not in df.state_dict()


def test_what_is_made_when_it_is_first_needed_is_not_kept():
    class Lazy(DataFlow):
        def __init__(self):
            self.data = self.other = None

        def __iter__(self):
            if self.data is None:
                self.data, self.other = np.arange(5000), object()
            yield from ([int(k)] for k in self.data[:NUM])

    check_resuming(Lazy)


class Hiding(DataFlow):
    """It iterates a flow that is not found in it."""

    def __init__(self, ds):
        self.flows = [("name", ds)]

    def __iter__(self):
        for _, ds in self.flows:
            yield from ds


@pytest.mark.parametrize("above", [ABOVE["alone"], ABOVE["in a thread"]], ids=["alone", "in a thread"])
def test_what_a_flow_keeps_that_is_not_found_is_refused(above):
    def save_in_the_third_pass(df):
        passes(df, 2)
        df.state_dict()

    message = r"OfClass.epoch is kept .* in a flow that another node's code begins"
    with ResumableData(above(lambda: Hiding(OfClass()))) as df, pytest.raises(NotReproducible, match=message):
        save_in_the_third_pass(df)
    with ResumableData(above(lambda: Hiding(MapData(DataFromGenerator(lambda: iter([[1]])), list)))) as df:
        passes(df, 2)
        df.state_dict()


def test_a_function_may_not_begin_a_flow_that_keeps_something():
    flow = OfClass()
    df = MapData(DataFromGenerator(lambda: iter([[1], [2]])), lambda dp: [*dp, list(flow)])
    with pytest.raises(
        NotReproducible, match=r"OfClass.epoch is kept from pass to pass, .* called for its datapoints in"
    ):
        list(df)


@pytest.mark.parametrize(
    "kept",
    [
        0,
        [],
        [{}, {}],
        [{"__class__": 1}],
        [{"_df_state": 1}],
        [{"reset_state": 1}],
        [{"kept": ["eval", 1]}],
        [{"kept": ["made", "builtins", "eval", ["tuple", ["1"]]]}],
        [{"kept": ["made", "datetime", "date", ["tuple", ["today"]]]}],
        [{"kept": ["file", -1, "name"]}],
        [{"kept": ["file", "1", "name"]}],
        [{"kept": ["BytesIO", ["bytes", ""], 1 << 40]}],
        [{"kept": ["BytesIO", "text", 0]}],
        [{"kept": ["new", 5]}],
        [{"kept": ["BitGenerator", "eval", {}]}],
        [{"kept": ["made", "this", "s", ["tuple", []]]}],
        [{"kept": ["made", "fractions", "Fraction", ["tuple", ["1e999999999"]]]}],
        [{"kept": functools.reduce(lambda inner, _: [inner], range(100_000), [])}],
        [{"kept": ["Random", 3, list(random.Random(1).getstate()[1]), "x"]}],
        [3],
        [{"a b": 1}],
    ],
)
def test_a_damaged_description_is_refused(kept):
    df = ResumableData(Keeping(0, value, add))
    passes(df, 1)
    state = {**df.state_dict(), "kept": kept}
    if kept in (0, []):
        del state["kept"]
        df.load_state_dict({**state, "kept": []})
        return
    with pytest.raises(StateMismatch, match="the state is damaged"):
        ResumableData(Keeping(0, value, add)).load_state_dict(state)
    assert "this" not in sys.modules, "an import runs code"


def of_mt19937(pos):
    return {"bit_generator": "MT19937", "state": {"key": [1] * 624, "pos": pos}, "has_gauss": 0, "gauss": 0.0}


def of_philox(pos):
    numbers = {"counter": [0] * 4, "key": [1] * 2}
    return {"bit_generator": "Philox", "state": numbers, "buffer": [1] * 4, "buffer_pos": pos, "uinteger": 0} | {
        "has_uint32": 0
    }


@pytest.mark.parametrize(
    ("make", "description", "last"),
    [
        (lambda: np.random.Generator(np.random.MT19937(1)), lambda pos: ["Generator", "MT19937", of_mt19937(pos)], 624),
        (lambda: np.random.Generator(np.random.Philox(1)), lambda pos: ["Generator", "Philox", of_philox(pos)], 4),
        (lambda: np.random.RandomState(1), lambda pos: ["RandomState", of_mt19937(pos)], 624),
    ],
    ids=["MT19937", "Philox", "RandomState"],
)
def test_a_generator_gets_no_place_behind_its_numbers(make, description, last):
    """NumPy takes any, and reads other memory there."""

    def load(pos):
        df = ResumableData(Keeping(make(), lambda df: float(df.kept.uniform())))
        passes(df, 1)
        df.load_state_dict({**df.state_dict(), "kept": [{"kept": description(pos)}]})
        return df

    for pos in (1, last):
        assert len(list(load(pos))) > 0
    for pos in (-1, last + 1, 10**8, 2**40, 1.0, True, "1", None):
        with pytest.raises(StateMismatch, match=r"the state is damaged: 'kept'.* is "):
            load(pos)


@pytest.mark.parametrize("held", [np.array([object()]), np.ones(2000), object(), open, {"a": object()}, [Schedule()]])
def test_other_values_are_not_described(held):
    df = Keeping(held, value)
    described = kept_values.describe(df)
    assert "kept" not in described or kept_values.is_opaque(described["kept"])


class OnDevice:
    """An array that is not in the memory of the processor."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError

    def __len__(self):
        return 3


OnDevice.__module__ = "numpy.made_here"


def test_of_what_cannot_be_compared_no_change_is_noticed():
    for held in (OnDevice(), SimpleNamespace(log=list(range(2000)), device=OnDevice())):
        assert "OnDevice" not in json.dumps(kept_values.describe(Keeping(held, value)))


def test_a_generator_that_is_held_twice_is_one():
    rng = np.random.default_rng(1)
    df = Keeping(lambda: (rng, np.random.random), value)
    df.again = [rng, random.random]
    described = json.dumps(kept_values.describe(df))
    assert described.count('"bit_generator"') == 2 and "MT19937" not in described


def test_generators_of_torch():
    torch = pytest.importorskip("torch")

    def make():
        return Keeping(torch.Generator().manual_seed(1), lambda df: int(torch.randint(1000, (), generator=df.kept)))

    check_resuming(make)
    with ResumableData(Keeping(torch.zeros(2), lambda df: df.kept.add_(1).tolist())) as df:
        passes(df, 2)
        with pytest.raises(NotReproducible, match=r"Keeping.kept \(.*\) is kept"):
            df.state_dict()
