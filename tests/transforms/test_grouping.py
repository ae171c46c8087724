"""Sources that use memory again: one buffer, or several by turns."""

import itertools
import weakref
from collections import OrderedDict, defaultdict, deque, namedtuple
from functools import partial

import numpy as np
import pytest

import dataflow
from dataflow import (
    AsyncMapData,
    BatchData,
    BatchDataByShape,
    BucketBatchData,
    ConcatData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    JoinData,
    LocallyShuffleData,
    MapData,
    MultiProcessMapAndBatchData,
    MultiThreadMapData,
    MultiThreadRunner,
    PadBatchData,
    ParallelData,
    RandomChooseData,
    RandomMixData,
    RepeatedDataPoint,
)
from dataflow.transforms import grouping as gathering
from dataflow.transforms.grouping import copy_datapoint
from tests.support.contract import check_node

SHAPE = (2, 3)


def whole_array():
    buffer = np.zeros(SHAPE)
    for k in range(7):
        buffer[:] = k
        yield [buffer, k]


def views_of_it():
    buffer = np.zeros(SHAPE)
    for k in range(7):
        buffer[:] = k
        yield (buffer[:], k)


def lists():
    row = [0, [0, 0]]
    for k in range(7):
        row[0], row[1][:] = k, [k, k]
        yield row


def plain_lists():
    row = [0, "0"]
    for k in range(7):
        row[:] = k, str(k)
        yield row


def dicts():
    row = {"x": np.zeros(SHAPE), "k": 0}
    for k in range(7):
        row["x"][:], row["k"] = k, k
        yield row


def last_in_tuples():
    buffer = np.zeros(SHAPE)
    for k in range(7):
        buffer[:] = k
        yield k, str(k), buffer


def of_several_kinds():
    row = [0]
    for k in range(7):
        row[0] = np.array(k) if k % 3 == 2 else k
        yield row


Pair = namedtuple("Pair", ["array", "k"])


class Row(list):
    """A list with a name."""


def _of_class(make):
    def source():
        buffer = np.zeros(SHAPE)
        for k in range(7):
            buffer[:] = k
            yield make(buffer, k)

    return source


OF_CLASSES = {
    "namedtuple": _of_class(Pair),
    "subclass of list": _of_class(lambda buffer, k: Row([buffer, k])),
    "OrderedDict": _of_class(lambda buffer, k: OrderedDict(x=buffer, k=k)),
    "defaultdict": _of_class(lambda buffer, k: defaultdict(int, x=buffer, k=k)),
    "inside": _of_class(lambda buffer, k: [Pair(buffer, buffer)]),
}


def turns(num):
    buffers = [np.zeros(SHAPE) for _ in range(num)]
    for k in range(12):
        buffers[k % num][:] = k
        yield [buffers[k % num]]


def plain(batches):
    return [[np.asarray(value).tolist() for value in (b.values() if isinstance(b, dict) else b)] for b in batches]


def kept(source):
    return DataFromList([deep(dp) for dp in source()], shuffle=False)


def deep(value):
    if isinstance(value, Pair):
        return Pair(*map(deep, value))
    if isinstance(value, list | tuple):
        return type(value)(map(deep, value))
    return {key: deep(item) for key, item in value.items()} if isinstance(value, dict) else np.copy(value)[()]


BATCHING = {
    "BatchData": lambda ds: BatchData(ds, 3, remainder=True),
    "BatchData of mapped": lambda ds: BatchData(MapData(ds, lambda dp: dp), 3, remainder=True),
    "PadBatchData": lambda ds: PadBatchData(ds, 3, remainder=True),
    "MultiProcessMapAndBatchData": lambda ds: MultiProcessMapAndBatchData(
        ds, 0, lambda dp: dp, 3, strict=True, remainder=True
    ),
}


@pytest.mark.parametrize(
    "source", [whole_array, views_of_it, lists, plain_lists, dicts, last_in_tuples, of_several_kinds]
)
@pytest.mark.parametrize("make", BATCHING.values(), ids=BATCHING)
def test_one_buffer_gives_right_batches(source, make):
    assert plain(make(DataFromGenerator(source))) == plain(make(kept(source)))


@pytest.mark.parametrize("source", OF_CLASSES.values(), ids=OF_CLASSES)
@pytest.mark.parametrize("make", BATCHING.values(), ids=BATCHING)
def test_one_buffer_in_containers_of_any_class_gives_right_batches(source, make):
    if source is OF_CLASSES["inside"] and make is BATCHING["PadBatchData"]:
        return  # it pads arrays, not what holds them
    assert plain(make(DataFromGenerator(source))) == plain(make(kept(source)))


class WithDlpack:
    """An array of a library that has no `copy`, as frames of video have."""

    def __init__(self, buffer):
        self.buffer = buffer

    def __dlpack__(self, **options):
        return self.buffer.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.buffer.__dlpack_device__()


class WithInterface:
    def __init__(self, buffer):
        self.buffer = buffer
        self.__array_interface__ = buffer.__array_interface__


def of_arrow(buffer):
    pa = pytest.importorskip("pyarrow")
    return pa.Array.from_buffers(pa.float64(), buffer.size, [None, pa.py_buffer(buffer)])


@pytest.mark.parametrize("kind", [WithDlpack, WithInterface, of_arrow])
@pytest.mark.parametrize("start", [0, 8])
def test_one_buffer_of_a_library_without_copies_gives_no_wrong_batch(kind, start):
    def source():
        buffer = np.zeros(3)
        for k in range(24):
            if k < start:
                buffer = np.zeros(3)
            buffer[:] = k
            yield [kind(buffer)]

    batches = BatchData(DataFromGenerator(source), 4)
    if start:
        with pytest.raises(ValueError, match="has changed while the batch was made"):
            list(batches)
    else:
        assert [batch[0][:, 0].tolist() for batch in batches] == np.arange(24).reshape(6, 4).tolist()


def test_one_buffer_in_an_array_of_objects_gives_right_batches():
    def source():
        buffer = np.zeros(2)
        for k in range(6):
            buffer[:] = k
            yield [np.array([buffer, None], object)]

    batches = [[row[0][0] for row in rows] for (rows,) in BatchData(DataFromGenerator(source), 3)]
    assert batches == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("make", [
    lambda ds: BatchDataByShape(ds, 3, 0, remainder=True),
    lambda ds: BucketBatchData(ds, 3, key=lambda dp: len(dp[0]), boundaries=[5]),
])  # fmt: skip
def test_one_buffer_gives_right_batches_where_datapoints_wait(make):
    assert plain(make(DataFromGenerator(whole_array))) == plain(make(kept(whole_array)))


def new_for_the_first(num, start=0):
    """From datapoint `start` on: a new array for the first datapoint of each batch, then one buffer."""
    buffer = np.zeros(SHAPE)
    for k in range(24):
        array = buffer if k >= start and k % num else np.zeros(SHAPE)
        array[:] = k
        yield [array]


@pytest.mark.parametrize(
    "source",
    [*(partial(turns, num) for num in (2, 3, 4, 5)), *(partial(new_for_the_first, num) for num in (2, 3, 4))],
)
@pytest.mark.parametrize("make", [lambda ds: BatchData(ds, 4), lambda ds: ParallelData(BatchData(ds, 4), 0)])
def test_several_buffers_give_right_batches(source, make):
    df = make(DataFromGenerator(source))
    assert plain(df) == plain(df) == plain(BatchData(kept(source), 4))


@pytest.mark.parametrize("size", [3, 4, 5])
@pytest.mark.parametrize("start", [4, 5, 8, 9])
def test_a_source_that_begins_to_use_memory_again_is_found_out(size, start):
    df = BatchData(DataFromGenerator(partial(new_for_the_first, 4, start)), size)
    expected = plain(BatchData(kept(partial(new_for_the_first, 4, start)), size))
    with pytest.raises(ValueError, match=r"datapoint . of a batch has changed .* Yield copies"):
        list(df)
    assert plain(df) == expected


@pytest.mark.parametrize("size", [2, 3, 8, 33])
def test_no_batch_is_wrong_before_one_buffer_is_found_out(size):
    for start in range(size, 2 * size):

        def late(start=start):
            buffer = np.zeros(SHAPE)
            for k in range(4 * size):
                array = buffer if k >= start else np.zeros(SHAPE)
                array[:] = k
                yield [array]

        right, found = plain(BatchData(kept(late), size)), []
        batches = iter(BatchData(DataFromGenerator(late), size))
        with pytest.raises(ValueError, match="has changed while the batch"):
            found.extend(plain([batch]) for batch in batches)
        assert [dp for batch in found for dp in batch] == right[: len(found)]


@pytest.mark.parametrize("size", [3, 4, 8, 33])
@pytest.mark.parametrize("num", [2, 3, 7, 32])
def test_one_batch_at_most_is_wrong_before_several_buffers_are_found_out(size, num):
    for start in range(size, 2 * size):

        def late(start=start):
            buffers = [np.zeros(SHAPE) for _ in range(num)]
            for k in range(4 * size):
                array = buffers[k % num] if k >= start else np.zeros(SHAPE)
                array[:] = k
                yield [array]

        right, found = plain(BatchData(kept(late), size)), []
        batches = iter(BatchData(DataFromGenerator(late), size))
        if num >= size:  # a batch is stacked before its memory is used again
            assert plain(batches) == right
            continue
        with pytest.raises(ValueError, match="has changed while the batch"):
            found.extend(plain([batch]) for batch in batches)
        assert len(found) <= (start + size - 1) // size
        assert [dp for batch in found[: start // size] for dp in batch] == right[: start // size]


def test_an_incomplete_batch_is_looked_at_too():
    def late():
        yield from ([np.full(SHAPE, k)] for k in range(4))
        buffer = np.zeros(SHAPE)
        for k in range(3):
            buffer[:] = k
            yield [buffer]

    with pytest.raises(ValueError, match="datapoint 0 of a batch has changed"):
        list(BatchData(DataFromGenerator(late), 4, remainder=True))


def test_the_same_datapoint_several_times_is_no_mistake():
    dp = [np.ones(SHAPE), 1]
    assert [batch[1].tolist() for batch in BatchData(DataFromList([dp] * 4), 2)] == [[1, 1]] * 2
    assert [batch[0].shape for batch in BatchData(RepeatedDataPoint(DataFromList([dp] * 3), 2), 3)] == [(3, *SHAPE)] * 2
    nan = [float("nan"), np.array([np.nan])]
    assert len(list(BatchData(DataFromList([nan, [0.0, np.zeros(1)]] * 2, shuffle=False), 2))) == 2


@pytest.mark.parametrize("container", [list, dict])
def test_a_list_that_is_used_again_is_noticed_though_its_numbers_are_equal(container):
    """At first all, then the two that are compared."""
    numbers = [1.5] * 20 + [2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 8.75, 9.5, 9.5]

    def again():
        dp = [0.0] if container is list else {0: 0.0}
        for number in numbers:
            dp[0] = float(str(number))  # another object
            yield dp

    batches = list(BatchData(DataFromGenerator(again), 10))
    assert [number for batch in batches for number in batch[0].tolist()] == numbers


def test_what_is_shared_is_copied_and_compared_in_one_batch_only(monkeypatch):
    copies, compared = [], []
    held = gathering._held
    monkeypatch.setattr(gathering, "copy_datapoint", lambda dp: copies.append(dp) or copy_datapoint(dp))
    monkeypatch.setattr(gathering, "_held", lambda part: compared.append(part) or held(part))
    shared = [np.ones(SHAPE), 1]
    batches = list(BatchData(DataFromGenerator(lambda: [shared] * 40), 10))
    assert plain(batches) == plain(BatchData(kept(lambda: [shared] * 40), 10))
    assert sum(type(dp) is list for dp in copies) == 40
    assert sum(type(part) is list for part in compared) == 2 * 10


def test_two_are_compared_of_what_is_new_and_in_one_batch_of_four_another(monkeypatch):
    compared = []
    held = gathering._held
    monkeypatch.setattr(gathering, "_held", lambda part: compared.append(part) or held(part))
    list(BatchData(DataFromGenerator(lambda: ([np.full(SHAPE, k)] for k in range(40))), 10))
    assert sum(type(part) is list for part in compared) == 2 * 10 + 2 * (2 * 3 + 1)


def test_a_buffer_that_is_used_again_later_is_not_taken_for_one_that_does_not_change():
    def late():
        buffer = np.zeros(SHAPE)
        for k in range(12):
            buffer[:] = max(0, k - 5)
            yield [buffer]

    def used_again():
        yield from ([np.zeros(SHAPE)] for _ in range(8))
        yield from map(list, whole_array())

    assert plain(BatchData(DataFromGenerator(late), 4)) == plain(BatchData(kept(late), 4))
    df = BatchData(DataFromGenerator(used_again), 4)
    with pytest.raises(ValueError, match="has changed while the batch"):
        list(df)
    assert plain(df) == plain(BatchData(kept(used_again), 4))


def test_nothing_is_copied_where_no_code_can_use_memory_again(monkeypatch):
    monkeypatch.setattr(gathering, "copy_datapoint", None)
    rows = DataFromList([[np.ones(SHAPE)] for _ in range(8)])
    assert len(list(BatchData(JoinData([rows, rows]), 4))) == 2
    with pytest.raises(TypeError):
        list(BatchData(MapData(rows, lambda dp: dp), 4))


def test_what_is_kept_as_a_list_is_not_copied():
    dp = [np.ones(SHAPE)]
    batch = next(iter(BatchData(DataFromList([dp, dp]), 2, use_list=True)))
    assert batch[0][0] is dp[0]


async def same(dp):
    return dp


HANDING_ON = {
    "threads": lambda ds: ParallelData(ds, 1, backend="thread"),
    "threads by default": lambda ds: MultiThreadRunner(lambda: ds, 4, 1),
    "thread map": lambda ds: MultiThreadMapData(ds, 2, lambda dp: dp, strict=True),
    "thread map by default": lambda ds: MultiThreadMapData(ds, 2, lambda dp: dp),
    "LocallyShuffleData": lambda ds: LocallyShuffleData(ds, 4),
    "AsyncMapData": lambda ds: AsyncMapData(ds, same, num_concurrent=4),
    "use_list": lambda ds: BatchData(ds, 2, use_list=True),
    "collate": lambda ds: BatchData(ds, 2, collate=list),
}
NUM = 700


class Numbers(DataFlow):
    """Datapoints in `num` buffers by turns, from datapoint `start` on."""

    def __init__(self, num, start=0):
        self.num, self.start = num, start

    def __len__(self):
        return NUM

    def __iter__(self):
        buffers = [np.zeros(SHAPE) for _ in range(self.num)]
        for k in range(NUM):
            array = buffers[k % self.num] if k >= self.start else np.zeros(SHAPE)
            array[:] = k
            yield [array]


@pytest.mark.parametrize("ds", [Numbers(1), Numbers(3), Numbers(40), Numbers(1, start=500)], ids=str)
@pytest.mark.parametrize("make", HANDING_ON.values(), ids=HANDING_ON)
def test_what_would_be_handed_on_and_overwritten_is_refused(make, ds):
    with (
        make(ds) as df,
        pytest.raises(ValueError, match=r"was overwritten with a later one|has changed while the batch"),
    ):
        list(itertools.islice(df, NUM))


@pytest.mark.usefixtures("unseeded")
@pytest.mark.parametrize("words", [{"use_list": True}, {"collate": list}], ids=repr)
@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize("mix", [
    lambda rows, ds: ConcatData([rows, ds]),
    lambda rows, ds: RandomMixData([rows, ds]),
    lambda rows, ds: RandomChooseData([rows, ds]),
    lambda rows, ds: Numbers(ds.num, start=NUM - 20),
])  # fmt: skip
def test_a_batch_that_hands_on_raises_in_place_of_one_that_would_be_wrong(mix, num, words):
    def make(source):
        dataflow.seed(3)
        return mix(DataFromList([[np.full(SHAPE, -k)] for k in range(600)], shuffle=False), source)

    ds = Numbers(num)
    right = plain(BatchData(MapData(make(ds), copy_datapoint), 4, **words))
    found = []
    with pytest.raises(ValueError, match=r"was overwritten with a later one|has changed while the batch"):
        found.extend(plain([batch]) for batch in BatchData(make(ds), 4, **words))
    assert [dp for batch in found for dp in batch] == right[: len(found)]


def bytes_and_queue():
    row = [bytearray(2), deque([0])]
    for k in range(7):
        row[0][0] = row[1][0] = k
        yield row[:]


class Record:
    def __init__(self):
        self.k = self.inner = None


class Slots:
    __slots__ = ("k",)


def one_record():
    record = Record()
    for k in range(7):
        record.k = k
        yield [record]


def one_record_with_slots():
    record = Slots()
    for k in range(7):
        record.k = k
        yield record


def one_record_in_others():
    inner = Slots()
    for k in range(7):
        record = Record()
        record.inner, inner.k = inner, k
        yield {"record": record}


def one_array_in_records():
    array = np.zeros(SHAPE)
    for k in range(7):
        record = Record()
        record.inner = array
        array[:] = k
        yield (record,)


RECORDS = [one_record, one_record_with_slots, one_record_in_others, one_array_in_records]


@pytest.mark.parametrize("make", HANDING_ON.values(), ids=HANDING_ON)
@pytest.mark.parametrize("source", RECORDS)
def test_an_object_of_a_users_class_that_changes_is_refused(source, make):
    with (
        make(DataFromGenerator(source)) as df,
        pytest.raises(ValueError, match=r"was overwritten with a later one|has changed while the batch"),
    ):
        list(itertools.islice(df, 7))


@pytest.mark.parametrize("data", [
    np.zeros(3 << 20),
    [np.zeros(2)] * 101,
    {"rows": [0] * 101},
    [np.zeros(1 << 20), np.zeros(2 << 20)],
], ids=["array", "list", "dict", "arrays"])  # fmt: skip
def test_of_all_data_that_an_object_may_refer_to_little_is_looked_at(data, monkeypatch):
    noted = []
    held_of = gathering._held

    def held(part):
        noted.append(part)
        return held_of(part)

    monkeypatch.setattr(gathering, "_held", held)

    def source():
        dataset = Record()
        dataset.k = data
        for k in range(6):
            record = Record()
            record.k, record.inner = k, dataset
            yield [record]

    assert len(list(BatchData(DataFromGenerator(source), 2, use_list=True))) == 3
    assert any(isinstance(part, Record) for part in noted)
    assert all(part.nbytes <= 1 << 23 for part in noted if isinstance(part, np.ndarray))
    assert all(len(part) <= 100 for part in noted if isinstance(part, list | dict))


class Resource(Record):
    """What the datapoints share; it refers to itself."""

    def __init__(self):
        super().__init__()
        self.inner, self._num_uses = self, 0

    def use(self):
        self._num_uses += 1
        self.__dict__.setdefault("first", self._num_uses)


@pytest.mark.parametrize("make", HANDING_ON.values(), ids=HANDING_ON)
def test_what_an_object_keeps_for_itself_is_no_change_of_the_datapoint(make):
    shared = Resource()

    def source():
        for k in range(8):
            yield [k, shared]
            shared.use()

    with make(DataFromGenerator(source)) as df:
        assert sum(1 for _ in itertools.islice(df, 4)) == 4
    assert shared.first == 1


@pytest.mark.parametrize(
    "source",
    [whole_array, views_of_it, lists, plain_lists, dicts, last_in_tuples, *OF_CLASSES.values(), bytes_and_queue],
)
def test_every_part_of_a_datapoint_is_looked_at(source):
    with pytest.raises(ValueError, match="was overwritten with a later one"):
        list(BatchData(DataFromGenerator(source), 2, use_list=True))


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("make", [
    lambda func, num: MultiThreadMapData(DataFromList([[k] for k in range(NUM)]), num, func, strict=True),
    lambda func, num: ParallelData(MapData(DataFromList([[k] for k in range(NUM)]), func), num, backend="thread"),
])  # fmt: skip
def test_a_function_that_returns_one_buffer_is_refused_in_threads(make, num_workers):
    buffer = np.zeros(SHAPE)

    def func(dp):
        buffer[:] = dp[0]
        return [buffer]

    with make(func, num_workers) as df, pytest.raises(ValueError, match="was overwritten with a later one"):
        list(df)


def test_a_coroutine_function_that_returns_one_buffer_is_refused():
    buffer = np.zeros(SHAPE)

    async def func(dp):
        buffer[:] = dp[0]
        return [buffer]

    source = DataFromList([[k] for k in range(NUM)], shuffle=False)
    with AsyncMapData(source, func, 4) as df, pytest.raises(ValueError, match="was overwritten with a later one"):
        list(df)


@pytest.mark.parametrize("make", HANDING_ON.values(), ids=HANDING_ON)
def test_what_does_not_change_is_handed_on_as_it_is(make):
    same_array, arrays = np.ones(SHAPE), [np.full(SHAPE, k) for k in range(NUM)]
    with make(DataFromGenerator(lambda: ([array, same_array] for array in arrays))) as df:
        for _ in range(2):
            taken = list(itertools.islice(df, NUM // 2))
            assert len({id(part) for part in _arrays_of(taken)} - {*map(id, arrays), id(same_array)}) == 0
            for array in arrays:
                array += 1


def _arrays_of(value):
    return [value] if isinstance(value, np.ndarray) else [array for item in value for array in _arrays_of(item)]


def test_what_a_function_changes_in_place_is_no_datapoint_that_was_overwritten():
    def double(dp):
        dp[0] *= 2
        return dp

    arrays = [np.full(SHAPE, k) for k in range(NUM)]
    held = MapData(DataFromList([[array] for array in arrays], shuffle=False), lambda dp: dp)
    with MultiThreadMapData(held, 2, double, strict=True) as df:
        for p in range(1, 4):
            assert [int(array[0, 0]) for (array,) in df] == [k << p for k in range(NUM)]


@pytest.mark.parametrize("num", [1, 2, 5])
def test_large_datapoints_are_compared_too_while_somebody_has_them(num, monkeypatch):
    monkeypatch.setattr(gathering, "_FIRST_BYTES", 1)
    with pytest.raises(ValueError, match="was overwritten with a later one"):
        list(BatchData(Numbers(num), 2, use_list=True))


def test_large_datapoints_are_not_kept_alive(monkeypatch):
    monkeypatch.setattr(gathering, "_FIRST_BYTES", 1)
    made = []

    def source():
        for k in range(NUM):
            array = np.full(SHAPE, k)
            made.append(weakref.ref(array))
            yield [array]

    datapoints = iter(LocallyShuffleData(DataFromGenerator(source), 4))
    for _ in range(20):
        next(datapoints)
    assert sum(ref() is not None for ref in made) <= 4 + 3


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_large_array_is_noted_by_a_checksum_of_all_values(order):
    array = np.zeros((3, 1000, 1000), order=order)
    noted = gathering._note(array)
    assert len(noted[1]) < 1 << 18
    array[1, 234, 567] = 1
    assert gathering._has_changed(noted)


def test_a_large_array_that_datapoints_share_is_noted_once_in_a_batch(monkeypatch):
    sums = []
    monkeypatch.setattr(gathering, "crc32", lambda data: sums.append(len(data)) or 0)
    table = np.zeros((2, 1000, 1000))
    list(BatchData(DataFromGenerator(lambda: ([k, table] for k in range(8))), 8, use_list=True))
    assert len(sums) == 8 + 7 + 1 + 8  # the watch notes and compares each; the batch notes once, and compares each


class Rare(DataFlow):
    """One buffer, which holds 1 in three of 320 datapoints."""

    def __len__(self):
        return 320

    def __iter__(self):
        label = np.zeros(1, np.int64)
        for k in range(320):
            label[0] = k in (75, 140, 205)
            yield [np.full(3, k), label]


@pytest.mark.parametrize(
    "make", [lambda ds: BatchData(ds, 32), lambda ds: PadBatchData(ds, 32), lambda ds: BatchDataByShape(ds, 32, 0)]
)
def test_values_that_are_equal_in_the_first_batch_hide_no_later_ones(make):
    assert sum(int(np.sum(batch[1])) for batch in make(Rare())) == 3


def test_equal_values_hide_no_later_ones_in_batches_that_hand_on():
    with pytest.raises(ValueError, match="has changed while the batch was made"):
        list(BatchData(Rare(), 32, use_list=True))


@pytest.mark.parametrize("has_length", [False, True])
def test_a_shorter_last_batch_is_looked_at_too(has_length):
    class Late(DataFlow):
        def __iter__(self):
            buffer = np.zeros(1)
            for k in range(42):
                array = buffer if k >= 39 else np.zeros(1)
                array[:] = k
                yield [array]

        if has_length:

            def __len__(self):
                return 42

    with pytest.raises(ValueError, match="has changed while the batch was made"):
        list(BatchData(Late(), 11, remainder=True))
    assert len(list(BatchData(Late(), 11))) == 3


def test_records_that_are_views_of_one_buffer_are_copied():
    def source():
        buffer = np.zeros(1, [("x", "i4")])
        for k in range(8):
            buffer["x"] = k
            yield [buffer[0]]

    batches = list(BatchData(DataFromGenerator(source), 2))
    assert [batch[0]["x"].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(ValueError, match="has changed while the batch was made"):
        list(BatchData(DataFromGenerator(source), 2, use_list=True))


def test_a_view_does_not_hide_the_array_at_the_same_address():
    def source():
        buffer = np.zeros(4)
        for k in range(8):
            buffer[1:] = k
            yield [buffer, buffer[:1]]

    with pytest.raises(ValueError, match="was overwritten with a later one"):
        list(LocallyShuffleData(DataFromGenerator(source), 4))


def test_another_input_is_looked_at_from_its_beginning():
    df = BatchData(Numbers(1, start=NUM), 4)
    list(df)
    df.ds = Numbers(1)
    assert plain(df) == plain(BatchData(MapData(Numbers(1), copy_datapoint), 4))


def test_nothing_is_compared_of_what_comes_from_workers(monkeypatch):
    with MultiThreadRunner(lambda: Numbers(1, start=NUM), 4, 1, strict=True) as runner:
        df = BatchData(runner, 4, use_list=True)
        assert df._df_next_group(iter(()))._memory is None


class OneBuffer(DataFlow):
    def __iter__(self):
        return itertools.islice(whole_array(), 3)


def test_the_contract_finds_a_source_that_uses_memory_again():
    with pytest.raises(AssertionError, match="datapoints share memory that is reused"):
        check_node(OneBuffer, source=True, addressable=False)


class Item:
    def __init__(self, number):
        self.number = number


def of_objects():
    """An own array for each datapoint of the first batch, then one that is emptied, so that memory comes again."""
    for k in range(12):
        if k < 5:
            array = np.empty(1, object)
        array[0] = None
        array[0] = Item(k)
        yield [array]


def test_an_object_in_the_memory_of_one_that_is_gone_is_another_one():
    batches = iter(BatchData(DataFromGenerator(of_objects), 4))
    assert [item.number for item in next(batches)[0].flat] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="datapoint 0 of a batch has changed while the batch was made"):
        next(batches)
