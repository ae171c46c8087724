"""What goes wrong in tensorpack.dataflow, one row each: what a user would try, and what happens here instead."""

import ast
import itertools
import pickle
import queue

import numpy as np
import pytest

import dataflow as df
from dataflow import (
    BatchData,
    BatchDataByShape,
    CacheData,
    ConcatData,
    DataFlow,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    DataFromQueue,
    FakeData,
    FixedSizeData,
    JoinData,
    LocallyShuffleData,
    MapData,
    PrintData,
    RandomChooseData,
    RandomMixData,
    RepeatedData,
    RepeatedDataPoint,
    RNGDataFlow,
    SelectComponent,
    TestDataSpeed,
)
from tests.support.contract import OldStyle, seeded


def numbers(n=3, start=0):
    return DataFromList([[start + k] for k in range(n)], shuffle=False)


def generated():
    return DataFromGenerator(lambda: iter([[0], [1], [2]]))


def batched(values):
    (batch,) = BatchData(DataFromList([[value] for value in values], shuffle=False), len(values))
    return batch[0]


def taken(flow, num):
    return list(itertools.islice(flow, num))


class Noise(RNGDataFlow):
    def __iter__(self):
        for _ in range(4):
            yield [self.rng.rand()]


class OldNames(DataFlow):
    def get_data(self):
        yield from ([0], [1])

    def size(self):
        return 2


class RaisesPlainly(OldStyle):
    def __len__(self):
        raise NotImplementedError


def two_seeded_flows_differ():
    with seeded(1):
        first, second = zip(*JoinData([Noise(), Noise()]), strict=True)
    return set(first).isdisjoint(second)


def a_seeded_program_repeats_itself():
    def run():
        with seeded(1):
            flow = Noise()
            return list(flow), list(flow)

    return run() == run() and run()[0] != run()[1]


def half_consumed_iterators_lock_nothing():
    flow = numbers()
    held = iter(flow)
    return next(held), list(flow), next(held)


def reset_twice():
    flow = numbers()
    flow.reset_state()
    flow.reset_state()
    return list(flow)


def rng_before_reset():
    return 0 <= Noise().rng.rand() < 1


def terminated_is_an_exception():
    flow = numbers()
    iterator = iter(flow)
    flow.close()
    try:
        next(iterator)
    except Exception as error:
        return type(error).__name__
    return None


def queue_with_an_end():
    q = queue.Queue()
    for value in ([1], None):
        q.put(value)
    return list(DataFromQueue(q, sentinel=None))


def queue_without_producer():
    return next(iter(DataFromQueue(queue.Queue(), timeout=0.01)))


def caller_keeps_the_order_of_the_list():
    lst = list(range(50))
    list(DataFromList(lst))
    return lst == list(range(50))


def read_twice(source):
    flow = source([k] for k in range(3))
    return list(flow) and list(flow)


def speed_of_a_flow_in_use():
    flow = numbers(20)
    flow.reset_state()
    return TestDataSpeed(flow, size=10).start() > 0


def speed_with_too_much_warmup():
    return TestDataSpeed(numbers(3), size=5, warmup=9).start()


def printed(value):
    return len(list(PrintData(DataFromList([[value]]))))


def shape_batches_in_two_passes():
    flow = BatchDataByShape(DataFromList([[np.full(1 + k % 2, k)] for k in range(3)], shuffle=False), 2, 0)
    return [[batch[0][:, 0].tolist() for batch in flow] for _ in range(2)]


def fixed_size_after_a_break():
    flow = FixedSizeData(numbers(5), 3, keep_state=False)
    next(iter(flow))
    return list(flow)


def cached_arrays_cannot_be_spoilt():
    flow = MapData(CacheData(DataFromList([[np.ones(1)]])), lambda dp: [np.multiply(dp[0], 2, out=dp[0])])
    return list(flow)


def selected_dicts_travel():
    flow = SelectComponent(DataFromList([{"a": 1, "b": 2}]), ["b"])
    return list(pickle.loads(pickle.dumps(flow)))


def chosen_by(pair):
    flows = [numbers(), numbers(3, 10), numbers(3, 20)]
    return len(list(RandomChooseData([pair(entry) for entry in zip(flows, (0.7, 0.2, 0.1), strict=True)]))) > 0


def mixed_after_growth():
    lst = [[0]]
    flow = RandomMixData([DataFromList(lst), numbers(0)])
    lst.append([1])
    return sorted(flow)


def a_flow_listed_twice_is_reset_once():
    resets = []
    for node in (ConcatData, JoinData, RandomMixData):
        old = OldStyle()
        list(node([old, old]))
        resets.append(old.resets)
    return resets


def nothing_is_lost_behind_the_shortest():
    source = DataFromIterable(iter(range(6)))
    longer = FixedSizeData(MapData(source, lambda k: [k]), 3)
    pairs = list(JoinData([longer, numbers(2)]))
    return pairs, next(iter(longer))


def cache_after_a_break(flow):
    cached = CacheData(flow)
    next(iter(cached))
    return len(list(cached))


def first_shuffled_pass():
    with seeded(1):
        return next(iter(CacheData(numbers(50), shuffle=True))) != [0]


# (what a user would try, the answer: a value, or an error and what its message says)
ROWS = {
    # Before reset_state, and twice
    "nothing works before reset_state": (lambda: list(numbers()), [[0], [1], [2]]),
    "a shuffled list before reset_state": (lambda: len(list(DataFromList([1, 2]))), 2),
    "LocallyShuffleData before reset_state": (lambda: len(taken(LocallyShuffleData(numbers(), 2), 4)), 4),
    "reset_state twice": (reset_twice, [[0], [1], [2]]),
    "rng is None before reset_state": (rng_before_reset, True),
    # Lengths
    "list of a flow without a length": (lambda: list(generated()), [[0], [1], [2]]),
    "list of a flow whose length raises": (lambda: len(list(RaisesPlainly())), 8),
    "bool of a flow without a length": (lambda: bool(generated()), True),
    "bool of an empty flow": (lambda: bool(numbers(0)), True),
    "a batch of a flow without a length": (lambda: len(list(BatchData(generated(), 2))), 1),
    "len without a length": (lambda: len(generated()), (NotImplementedError, "no known length")),
    "len without a length, for Python": (lambda: len(generated()), (TypeError, "no known length")),
    "len of an endless flow": (lambda: len(RepeatedData(numbers(), -1)), (NotImplementedError, "never ends")),
    # The protocol
    "old names": (lambda: (list(OldNames()), len(OldNames())), ([[0], [1]], 2)),
    "a half-consumed iterator": (half_consumed_iterators_lock_nothing, ([0], [[0], [1], [2]], [1])),
    "a used flow is pickled": (lambda: list(pickle.loads(pickle.dumps(numbers()))), [[0], [1], [2]]),
    "DataFlowTerminated is an Exception": (terminated_is_an_exception, "DataFlowTerminated"),
    "two seeded flows are the same": (two_seeded_flows_differ, True),
    "a seeded program differs every time": (a_seeded_program_repeats_itself, True),
    "a list where a flow is expected": (lambda: BatchData([[1]], 1), (TypeError, "DataFromList")),
    # Sources
    "FakeData with too few domains": (lambda: FakeData([(1,), (1,)], domain=[(0, 1)]), (ValueError, "1 domains for 2")),
    "FakeData with too few dtypes": (lambda: FakeData([(1,), (1,)], dtype=["int8"]), (ValueError, "1 dtypes for 2")),
    "a queue without an end": (queue_with_an_end, [[1]]),
    "a queue without a producer": (queue_without_producer, (df.TimeoutError, "seconds")),
    "the caller's list is shuffled": (caller_keeps_the_order_of_the_list, True),
    "a generator object twice": (lambda: read_twice(DataFromGenerator), (df.SourceExhausted, "function that makes")),
    "an iterator twice": (lambda: read_twice(DataFromIterable), (df.SourceExhausted, "function that makes")),
    # Diagnostics
    "the speed of a flow in use": (speed_of_a_flow_in_use, True),
    "warmup longer than the flow": (speed_with_too_much_warmup, 0.0),
    "PrintData on numpy 2": (lambda: printed(np.ones(2)), 1),
    "PrintData of an empty array": (lambda: printed(np.empty(0)), 1),
    "PrintData of text": (lambda: printed(np.array(["a"])), 1),
    "PrintData of objects": (lambda: printed(np.array([None])), 1),
    # Batches
    "a batch larger than the flow": (lambda: BatchData(numbers(), 4), (ValueError, "batch_size 4 is more than the 3")),
    "shapes that differ become None": (
        lambda: batched([np.zeros(1), np.zeros(2)]),
        (df.ShapeMismatch, r"\(1,\), \(2,"),
    ),
    "bool becomes int32": (lambda: batched([True, False]).dtype, np.dtype(bool)),
    "an int that does not fit becomes None": (lambda: batched([2**40]), (OverflowError, "1099511627776")),
    "trailing NULs of bytes are lost": (lambda: batched([b"a\0", b"b"]).tolist(), [b"a\0", b"b"]),
    "bytes that are no ASCII become None": (lambda: batched([b"\xff"]).tolist(), [b"\xff"]),
    "the first element decides on the dtype": (lambda: np.allclose(batched([1, 2.7]), [1, 2.7]), True),
    "extra keys are dropped": (
        lambda: list(BatchData(DataFromList([{"a": 1}, {"a": 1, "b": 2}], shuffle=False), 2)),
        (df.ShapeMismatch, "components"),
    ),
    "longer datapoints are cut": (
        lambda: list(BatchData(DataFromList([[1], [1, 2]], shuffle=False), 2)),
        (df.ShapeMismatch, "components"),
    ),
    "shape batches go on in the next epoch": (shape_batches_in_two_passes, [[[0, 2]], [[1, 1]]]),
    "len of shape batches with remainders": (
        lambda: len(BatchDataByShape(numbers(), 2, 0, remainder=True)),
        (df.LengthUnknown, "shape"),
    ),
    # Sizes
    "FixedSizeData of size 0": (lambda: FixedSizeData(numbers(), 0), (ValueError, "got 0")),
    "FixedSizeData of nothing": (lambda: list(FixedSizeData(numbers(0), 2)), (df.EmptyPass, "needs 2 datapoints")),
    "FixedSizeData goes on after a break": (fixed_size_after_a_break, [[0], [1], [2]]),
    "RepeatedData of nothing spins": (lambda: list(RepeatedData(numbers(0), -1)), []),
    "RepeatedDataPoint 0 times": (lambda: RepeatedDataPoint(numbers(), 0), (ValueError, "got 0")),
    "a tiny shuffle buffer divides by zero": (lambda: len(taken(LocallyShuffleData(numbers(), 1), 5)), 5),
    # Arrays changed in place
    "a map spoils the cache": (cached_arrays_cannot_be_spoilt, (ValueError, "read-only")),
    # Components
    "a selected dict becomes a list": (selected_dicts_travel, [{"b": 2}]),
    # Several flows
    "0.7 + 0.2 + 0.1 is not 1": (lambda: chosen_by(tuple), True),
    "probabilities in lists": (lambda: chosen_by(list), True),
    "a mixture's lengths are frozen, its last flow is empty": (mixed_after_growth, [[0], [1]]),
    "an inaccurate length in a mixture": (lambda: len(list(RandomMixData([MapData(numbers(), lambda dp: None)]))), 0),
    "a flow listed twice is reset twice": (a_flow_listed_twice_is_reset_once, [1, 1, 1]),
    "keys that collide are overwritten": (
        lambda: list(JoinData([DataFromList([{"a": 1}]), DataFromList([{"a": 2}])])),
        (df.ShapeMismatch, "the key 'a'"),
    ),
    "a list joined with a dict gives its keys": (
        lambda: list(JoinData([numbers(1), DataFromList([{"a": 2}])])),
        (TypeError, "list, dict"),
    ),
    "datapoints behind the shortest are lost": (nothing_is_lost_behind_the_shortest, ([[0, 0], [1, 1]], [2])),
    "a join of a flow with itself": (lambda: list(JoinData([CacheData(numbers(1))] * 2)), [[0, 0]]),
    # Caches
    "a break freezes a partial cache": (lambda: cache_after_a_break(numbers(10)), 10),
    "a break freezes a partial cache of a generator": (lambda: cache_after_a_break(generated()), 3),
    "the first pass of a cache is not shuffled": (first_shuffled_pass, True),
}


@pytest.mark.parametrize(("attempt", "answer"), ROWS.values(), ids=ROWS)
def test_what_went_wrong_goes_right(attempt, answer):
    if isinstance(answer, tuple) and isinstance(answer[0], type):
        error, message = answer
        with pytest.raises(error, match=message):
            attempt()
    else:
        assert attempt() == answer


def test_every_row_has_a_name_of_its_own():
    with open(__file__) as source:
        tree = ast.parse(source.read())
    (rows,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "ROWS")
    assert len(rows.keys) == len(ROWS)
