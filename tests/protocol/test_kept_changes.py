"""What has changed since the first pass is given, or refused by what it is, was, or is held by."""

import array
import asyncio
import ctypes
import datetime
import functools
import io
import itertools
import multiprocessing
import os
import queue
import random
import threading
from collections import deque
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest

from dataflow import DataFlow, DataFromList, NotReproducible, ResumableData
from tests.protocol.keeping import (
    ABOVE,
    HOUR,
    NUM,
    Keeping,
    OfLibrary,
    Schedule,
    Tensor,
    Training,
    append_text,
    check_resuming,
    drop_first,
    grow,
    keeping,
    next_epoch,
    opened,
    passes,
    put_one,
    read_byte,
    value_of_epoch,
    value_of_none,
)
from tests.support.products import covering

pytestmark = pytest.mark.usefixtures("unseeded", "files_closed")


class History(list):
    pass


def replace_object(df):
    df.kept = SimpleNamespace(epoch=1)


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


@pytest.mark.parametrize(("name", "above"), covering([*REFUSED], ["alone", "in a thread"]))
def test_what_cannot_be_given_is_refused_when_it_is_saved(name, above):
    make, message = REFUSED[name]
    with ResumableData(ABOVE[above](make)) as df:
        df.state_dict()
        next(iter(df))
        df.state_dict()
    with ResumableData(ABOVE[above](make)) as df:
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


def test_another_file_is_refused(tmp_path):
    (tmp_path / "a").touch()
    with ResumableData(
        Keeping(opened(), value_of_none, lambda df: setattr(df, "kept", opened(path=tmp_path / "a")))
    ) as df:
        passes(df, 2)
        with pytest.raises(NotReproducible, match=r"another file, .*a"):
            df.state_dict()


def test_what_is_read_of_a_pipe_is_refused():
    reads, writes = os.pipe()
    os.write(writes, b"abcdefghi")
    with open(reads, "rb") as file, open(writes, "wb"), ResumableData(Keeping(file, read_byte)) as df:
        passes(df, 2)
        with pytest.raises(NotReproducible, match="is held over several passes"):
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
