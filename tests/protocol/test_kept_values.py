"""What nodes keep is described as JSON, of every kind that can be made again, and made from that."""

import dataclasses
import datetime
import enum
import functools
import io
import itertools
import json
import queue
import random
import sys
import threading
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dataflow import DataFlow, NotReproducible, ResumableData, StateMismatch
from dataflow.protocol import kept_values
from tests.protocol.keeping import (
    ABOVE,
    EVERY_POSITION,
    HOUR,
    NUM,
    SOME_POSITIONS,
    Began,
    Keeping,
    OfClass,
    OfLibrary,
    Schedule,
    Training,
    add,
    append_text,
    check_resuming,
    double,
    drop_first,
    grow,
    keeping,
    next_epoch,
    of_pcg,
    opened,
    passes,
    put_one,
    read_byte,
    value,
    value_of_epoch,
    value_of_none,
)

pytestmark = pytest.mark.usefixtures("unseeded", "files_closed")


def insert(df):
    df.kept[len(df.kept), "key"] = [1.5, None, b"\x00"]
    return sorted(df.kept)


def shift(df):
    df.kept[:] = np.roll(df.kept, 1) * 2
    return df.kept.tolist()


def of_random(df):
    return df.kept.gauss(0, 1)


def of_state(df):
    return df.kept.standard_normal()


def of_object(df):
    df.kept.inner.names.append(df.kept.epoch)
    return [df.kept.epoch, int(df.kept.inner.generator.integers(1000)), *df.kept.inner.names]


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


NOW = datetime.datetime(2026, 1, 31, 23, tzinfo=datetime.timezone(HOUR))


def next_date(df):
    df.kept = {day + datetime.timedelta(1): path / "a" for day, path in df.kept.items()}


def increase(df):
    df.kept = [df.kept[0] + 1, df.kept[1] / 3, range(len(df.kept[2]) + 1)]


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


def count_here(df):
    df.kept.n += 1
    return df.kept.n


def twice(held, step):
    """A node that has the same object in two attributes, and in a closure."""
    return keeping(lambda df: [step(df.kept), len(held), len(df.again)], kept=held, again=held)


def seen_through(array, step):
    return keeping(step, kept=array, window=array[1:])


def also_inside(held):
    return {"kept": held, "inside": SimpleNamespace(held=held)}


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


class InReset(DataFlow):
    def reset_state(self):
        self.rng = np.random.default_rng(5)

    def __iter__(self):
        for k in range(NUM):
            yield [k, int(self.rng.integers(1000))]


NODES = {**KEPT, "slots": Slots, "value of the class": OfClass, "position": Began, "made in reset_state": InReset}


def nodes_and_places():
    """Every node alone and, in full, in one of the other places in turn; two of the nodes in all places."""
    others = itertools.cycle([above for above in ABOVE if above != "alone"])
    for node in NODES:
        if node in {"number that changes at each step", "Generator"}:
            yield from ((node, above) for above in ABOVE)
        else:
            yield node, "alone"
            yield pytest.param(node, next(others), marks=pytest.mark.full)


@pytest.mark.parametrize(
    "positions",
    [
        pytest.param(SOME_POSITIONS, id="some"),
        pytest.param(EVERY_POSITION, id="every", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize(("node", "above"), list(nodes_and_places()))
def test_a_pass_is_resumed_with_what_its_nodes_keep(node, above, positions):
    check_resuming(lambda: ABOVE[above](NODES[node]), positions)


@pytest.mark.parametrize("path", [["args", 0, 0, 0], ["args", 1]])
def test_a_state_may_name_any_of_the_ways_to_a_generator(path):
    generator, wanted = random.Random(1), random.Random(2)
    held = functools.partial(draw, {"one": [generator]}, generator)
    version, numbers, gauss = wanted.getstate()
    assert kept_values.make(["holds", [[path, ["Random", version, list(numbers), gauss]]]], held) is held
    assert generator.getstate() == wanted.getstate()


def next_of_slot(df):
    return df.kept.step()


class PrivateSlot:
    __slots__ = ("__epoch",)

    def __init__(self):
        self.__epoch = 0

    def step(self):
        self.__epoch += 1
        return self.__epoch


def test_what_a_thread_keeps_for_itself_is_given_to_that_thread():
    check_resuming(lambda: Keeping(of_local(0), count_here))


def test_a_file_that_is_iterated_has_no_position():
    with ResumableData(Keeping(opened(), lambda df: next(df.kept))) as df:
        passes(df, 2)
        with pytest.raises(NotReproducible, match="whose position is unknown while it is iterated"):
            df.state_dict()


def test_tensors_on_a_device_count_their_changes():
    class Tensor(OnDevice):
        _version = 0

    Tensor.__module__ = "numpy.made_here"
    with ResumableData(Keeping(Tensor(), value_of_none, lambda df: setattr(df.kept, "_version", 1))) as df:
        passes(df, 2)
        with pytest.raises(NotReproducible, match="changed 1 times"):
            df.state_dict()


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
