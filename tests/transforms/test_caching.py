import collections
import contextlib
import copy
import dataclasses
import datetime
import pickle
import threading
from collections import namedtuple
from functools import partial

import numpy as np
import pytest

from dataflow.errors import DataFlowTerminated, SourceExhausted
from dataflow.protocol.base import DataFlow
from dataflow.runners.maps import MultiThreadMapData
from dataflow.runners.parallel_data import ParallelData
from dataflow.runners.runners import MultiThreadRunner
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromGenerator
from dataflow.transforms.caching import CacheData
from dataflow.transforms.joining import JoinData
from dataflow.transforms.mapping import MapData
from dataflow.transforms.repeating import RepeatedData
from dataflow.transforms.shuffling import LocallyShuffleData
from tests.support.contract import seeded
from tests.support.flows import listed, overtaking

Sample = namedtuple("Sample", "image label")


class Counted:
    """A source that counts how many datapoints it made."""

    def __init__(self, n=6, addressable=True):
        self.made = 0
        lst = [[k] for k in range(n)]
        ds = DataFromList(lst, shuffle=False) if addressable else DataFromGenerator(lambda: iter(lst))
        self.ds = MapData(ds, self.make)

    def make(self, dp):
        self.made += 1
        return dp


KINDS = pytest.mark.parametrize("addressable", [True, False])
SHUFFLES = pytest.mark.parametrize("shuffle", [False, True])


def values(df):
    return [dp[0] for dp in df]


def in_one_buffer(layout, n=4):
    """A source that yields one array again and again, with other values."""
    buffer = np.zeros((2, 3), order="F")

    def make():
        for k in range(n):
            buffer[:] = k
            yield layout(buffer)

    return make


LAYOUTS = {
    "list": lambda array: [array],
    "tuple in a dict": lambda array: {"x": (array, 1)},
    "list in a list": lambda array: [[array], 2],
    "named tuple": lambda array: Sample(array, 0),
    "part of it": lambda array: [array[1:]],
    "subclass": lambda array: [array.view(np.ma.MaskedArray)],
}


def arrays_in(value):
    if isinstance(value, np.ndarray):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [array for item in items for array in arrays_in(item)]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@SHUFFLES
def test_what_a_source_keeps_in_one_buffer_is_copied(layout, shuffle):
    df = CacheData(DataFromGenerator(in_one_buffer(layout)), shuffle)
    for _ in range(2):
        found = [arrays_in(dp) for dp in df]
        assert sorted(array.flat[0] for (array,) in found) == [0, 1, 2, 3]
        assert all((array == array.flat[0]).all() for (array,) in found)


def test_a_map_that_yields_one_array_again_and_again_is_cached_by_position():
    buffer = np.zeros(1)

    def fill(dp):
        buffer[:] = dp[0]
        return [buffer]

    df = CacheData(MapData(DataFromList([[k] for k in range(4)], shuffle=False), fill))
    for _ in range(2):
        assert values(df) == [0, 1, 2, 3]


def test_copies_keep_their_memory_order_and_are_made_once():
    df = CacheData(DataFromGenerator(in_one_buffer(LAYOUTS["list"])))
    first, second = list(df), list(df)
    assert all(dp[0].flags.f_contiguous and not dp[0].flags.writeable for dp in first)
    assert all(np.shares_memory(one[0], two[0]) for one, two in zip(first, second, strict=True))


def test_arrays_that_nobody_else_writes_are_not_copied(tmp_path):
    arrays = [np.arange(3), np.arange(4)]
    for cached, array in zip(CacheData(DataFromList([[a] for a in arrays], shuffle=False)), arrays, strict=True):
        assert np.shares_memory(cached[0], array)
    np.save(tmp_path / "rows.npy", np.arange(6).reshape(2, 3))
    for mode, is_copied in (("r", False), ("r+", True), ("c", True)):
        rows = np.load(tmp_path / "rows.npy", mmap_mode=mode)
        for rows_as in (rows, np.asarray(rows)):
            (dp, _) = CacheData(DataFromGenerator(partial(map, lambda row: [row], rows_as)))
            assert np.shares_memory(dp[0], rows) != is_copied


@KINDS
@SHUFFLES
def test_every_datapoint_is_made_once(addressable, shuffle):
    source = Counted(addressable=addressable)
    df = CacheData(source.ds, shuffle)
    for _ in range(3):
        assert sorted(values(df)) == list(range(6))
    assert source.made == 6


@KINDS
@SHUFFLES
def test_an_interrupted_pass_leaves_no_partial_cache(addressable, shuffle):
    source = Counted(addressable=addressable)
    df = CacheData(source.ds, shuffle)
    for _, _ in zip(range(4), df, strict=False):
        pass
    assert sorted(values(df)) == list(range(6)) == sorted(values(df))
    assert source.made == 6


def test_an_interrupted_generator_object_is_cached_completely():
    df = CacheData(DataFromGenerator([k] for k in range(6)))
    next(iter(df))
    assert values(df) == list(range(6)) == values(df)


@KINDS
def test_every_pass_is_shuffled_including_the_first(addressable):
    with seeded(1):
        df = CacheData(Counted(30, addressable).ds, shuffle=True)
        passes = [tuple(values(df)) for _ in range(3)]
    assert len({*passes, tuple(range(30))}) == 4


@SHUFFLES
def test_the_order_does_not_depend_on_how_the_input_was_read(shuffle):
    with seeded(1):
        assert values(CacheData(Counted().ds, shuffle)) == values(CacheData(Counted(addressable=False).ds, shuffle))


def test_always_the_first_pass_of_the_input_is_read():
    with seeded(1):
        df, ds = CacheData(DataFromList(range(20))), DataFromList(range(20))
        first = list(ds)
        assert list(df) == list(df) == first == df[40:60]


@KINDS
def test_reset_and_close_empty_the_cache(addressable):
    source = Counted(addressable=addressable)
    df = CacheData(source.ds)
    for number, empty in enumerate((df.reset_state, df.close, df.close), start=1):
        list(df)
        assert source.made == 6 * number
        empty()


@KINDS
@SHUFFLES
def test_another_input_is_read_anew(addressable, shuffle):
    df = CacheData(Counted(2, addressable).ds, shuffle)
    assert sorted(values(df)) == [0, 1]
    for n in (3, 3, 2):
        source = Counted(n, addressable)
        df.ds = MapData(source.ds, lambda dp: [dp[0] + 7])
        for _ in range(2):
            assert sorted(values(df)) == [k + 7 for k in range(n)]
        assert source.made == n


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda df: pickle.loads(pickle.dumps(df))])
def test_a_copy_has_its_own_empty_cache(clone):
    df = CacheData(DataFromList([[1]]))
    list(df)
    source = Counted()
    other = clone(df)
    other.ds = source.ds
    list(other)
    assert source.made == 6 and values(df) == [1]


@KINDS
def test_arrays_are_read_only_from_the_first_pass_on_and_containers_are_fresh(addressable):
    dps = [[np.zeros(2), [np.ones(1)], {"x": (np.ones(1), [1])}], (np.zeros(2), [1]), Sample(np.zeros(2), 1)]
    ds = DataFromList(dps, shuffle=False) if addressable else DataFromGenerator(lambda: dps)
    df = CacheData(ds)
    for _ in range(2):
        first, second, third = df
        assert type(first) is list and type(second) is tuple and type(third) is Sample
        for array in (first[0], first[1][0], first[2]["x"][0], second[0], third.image):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 5
        first[1].append("more")
        first[2]["x"][1].append("more")
        first[2]["y"] = "more"
        second[1].append("more")
        first.append("more")
    assert [len(dp) for dp in df] == [3, 2, 2]
    first, second, _ = df
    assert len(first[1]) == 1 and list(first[2]) == ["x"] and first[2]["x"][1] == [1] and second[1] == [1]
    assert dps[0][0].flags.writeable


class Listed(list):
    pass


@dataclasses.dataclass
class Held:
    array: np.ndarray


def changed(value):
    """Change everything in a value that can be changed."""
    if isinstance(value, dict):
        for item in value.values():
            changed(item)
        value["new"] = 1
    elif isinstance(value, list | collections.deque):
        for item in value:
            changed(item)
        value.append(1)
    elif isinstance(value, tuple):
        for item in value:
            changed(item)
    elif isinstance(value, set):
        value.add(1)
    elif isinstance(value, bytearray):
        value += b"1"
    elif isinstance(value, Held):
        changed(value.array)
    elif isinstance(value, np.void):
        value["a"] = 9
    elif isinstance(value, np.ma.MaskedArray):
        value.mask[...] = True
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        for item in value.flat:
            changed(item)
        value[...] = None
    elif isinstance(value, np.ndarray):
        with contextlib.suppress(ValueError):
            value[...] = 9
    elif hasattr(value, "zero_"):
        value.zero_()


def of_objects(*values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


CHANGEABLE = {
    "array": lambda: np.ones(2),
    "ordered": lambda: collections.OrderedDict(x=np.ones(2)),
    "default": lambda: collections.defaultdict(list, x=[np.ones(2)]),
    "list's subclass": lambda: Listed([np.ones(2)]),
    "objects": lambda: of_objects([1], np.ones(2)),
    "named": lambda: Sample(np.ones(2), [of_objects([1])]),
    "inside": lambda: ({"x": (Listed([np.ones(2)]), 1)},),
    "dataclass": lambda: Held(np.ones(2)),
    "bytearray": lambda: bytearray(b"abc"),
    "set": lambda: {5, 6},
    "deque": lambda: collections.deque([[1]]),
    "void": lambda: np.array([(1, 2)], [("a", "i4"), ("b", "i4")])[0],
    "masked": lambda: np.ma.array([1, 2], mask=[True, False]),
    "records": lambda: np.rec.array([(1, 2)], [("a", "i4"), ("b", "i4")]),
    "tensor": lambda: pytest.importorskip("torch").ones(2),
}


@pytest.mark.parametrize("make", CHANGEABLE.values(), ids=CHANGEABLE.keys())
@KINDS
def test_what_a_consumer_changes_is_unchanged_in_the_next_pass(addressable, make):
    dps = [[make(), 1], {"x": make()}, make()]
    ds = DataFromList(dps, shuffle=False) if addressable else DataFromGenerator(lambda: dps)
    df = CacheData(ds)
    expected = [repr(dp) for dp in df]
    for _ in range(2):
        found = list(df)
        assert [repr(dp) for dp in found] == expected and list(map(type, found)) == list(map(type, dps))
        for dp in (*found, *(df[k] for k in range(3 * addressable))):
            changed(dp)
    assert [repr(dp) for dp in df] == expected


def test_what_cannot_be_copied_is_refused_by_type():
    df = CacheData(DataFromList([[1], [threading.Lock()]], shuffle=False))
    with pytest.raises(TypeError, match=r"CacheData keeps a lock that cannot be copied .*above CacheData"):
        list(df)


def test_what_cannot_be_changed_is_not_copied():
    values = [1, "a", b"a", None, datetime.date, np.float32(1), KINDS, len, (1, "a")]
    for value, again in zip(values, CacheData(DataFromList(values, shuffle=False)), strict=True):
        assert value is again or (value == again and type(value) in {tuple, type(KINDS)})


@KINDS
def test_dropped_datapoints_stay_dropped(addressable):
    source = Counted(addressable=addressable)
    df = CacheData(MapData(source.ds, lambda dp: dp if dp[0] % 2 else None))
    assert values(df) == [1, 3, 5] == values(df)
    assert source.made == 6


def shuffled():
    return DataFromList([[k] for k in range(30)])


class Making(DataFlow):
    """It makes its input when it is iterated."""

    def __iter__(self):
        yield from shuffled()


DRAWING = {
    "here": shuffled,
    "in a runner": lambda: MultiThreadRunner(shuffled, 10, 1, strict=True),
    "below a map in a runner": lambda: MapData(MultiThreadRunner(shuffled, 10, 1, strict=True), list),
    "in a user's node": Making,
    "in a function": lambda: DataFromGenerator(shuffled),
    "in a map": lambda: MapData(
        DataFromList([[k] for k in range(5)], shuffle=False), lambda dp: next(iter(shuffled()))
    ),
}


@pytest.mark.parametrize("make", DRAWING.values(), ids=DRAWING)
def test_a_cache_in_two_places_draws_in_both_and_anew_for_another_seed(make):
    with CacheData(make()) as df:
        with seeded(1):
            first = list(JoinData([df, df]))
            assert any(left != right for left, right in first)
        with seeded(2):
            assert list(JoinData([df, df])) != first


def test_a_cache_in_two_places_is_shared_if_nothing_below_may_draw():
    df = CacheData(DataFromList([[k] for k in range(6)], shuffle=False))
    assert [dp[0] == dp[1] for dp in JoinData([df, df])] == [True] * 6
    assert len(df._memory) == 1


def test_another_root_seed_draws_again():
    df = CacheData(DataFromList(range(30)))
    with seeded(1):
        first = list(df)
    with seeded(2):
        assert list(df) != first
    with seeded(1):
        assert list(df) == first


def test_a_cache_that_another_thread_begins_to_fill_meanwhile_drops_the_old_seed_all_the_same():
    df = CacheData(DataFromList(range(30)))

    class Old:
        """The place of a cache under another seed; as it is looked at, another thread remembers its own."""

        @property
        def root(self):
            df._memory[object()] = None
            return 0

    with seeded(1):
        list(df)
    df._memory[Old()] = df._memory[Old()] = None
    with seeded(2):
        assert sorted(df) == list(range(30))
    assert not any(isinstance(known, Old) for known in df._memory)


def test_an_input_that_fails_leaves_nothing_in_the_cache():
    failures = [True]

    def numbers():
        yield [0]
        if failures.pop():
            raise OSError("disk")
        failures.append(False)
        yield [1]

    df = CacheData(DataFromGenerator(numbers))
    first, second = iter(df), iter(df)
    assert next(first) == next(second) == [0]
    with pytest.raises(OSError, match="disk"):
        next(first)
    with pytest.raises(DataFlowTerminated, match="failed while another"):
        next(second)
    failures.append(False)
    assert values(df) == [0, 1]


def test_threads_that_share_a_cache_read_the_input_once():
    source = Counted(200, addressable=False)
    df = CacheData(source.ds)
    df.reset_state()
    found = []
    threads = [threading.Thread(target=lambda: found.append(values(df))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(range(200))] * 4


@pytest.mark.parametrize("make", [lambda ds: RepeatedData(ds, -1), lambda ds: LocallyShuffleData(ds, 2)])
def test_an_endless_input_raises(make):
    with pytest.raises(ValueError, match="FixedSizeData"):
        CacheData(make(DataFromList([1, 2])))


def test_an_exhausted_source_is_not_an_empty_cache():
    ds = DataFromGenerator(iter([[1]]))
    list(ds)
    df = CacheData(ds)
    for _ in range(2):
        with pytest.raises(SourceExhausted):
            list(df)


def test_a_list_that_has_grown_is_read_again():
    lst = [[0]]
    df = CacheData(DataFromList(lst, shuffle=False))
    assert values(df) == [0]
    lst.append([1])
    assert values(df) == [0, 1]
    assert values(CacheData(DataFromList([]))) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda ds, func: MultiThreadMapData(ds, 2, func, strict=True, ordered=False),
        lambda ds, func: ParallelData(MapData(ds, func), 2, backend="thread", ordered=False),
    ],
    ids=["map", "runner"],
)
def test_a_cache_that_is_left_early_has_each_datapoint_of_an_unordered_input_once(make):
    with CacheData(make(listed(40), overtaking()), shuffle=False) as df:
        assert next(iter(df)) == [0], "indexes are read in order"
        assert sorted(df) == sorted(df) == [[k] for k in range(40)]
