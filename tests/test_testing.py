"""`dataflow.testing`: what it finds in broken nodes, and that it finds nothing in those of dataflow."""

import itertools
import os
import random
import threading
import time

import numpy as np
import pytest

from dataflow import (
    BatchData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    FilterData,
    LocallyShuffleData,
    MapData,
    ProxyDataFlow,
    RandomMapData,
    RepeatedData,
    RNGDataFlow,
    ShuffleData,
    worker_info,
)
from dataflow.testing import assert_same_data, check_node
from tests.support.contract import seeded

NUM = 6


def numbers(num=NUM):
    return DataFromList([[k, k + 0.5] for k in range(num)], shuffle=False)


class Own(ProxyDataFlow):
    """A node of a user, which passes on the datapoints."""

    def __iter__(self):
        yield from self.ds


class TooLong(Own):
    def __len__(self):
        return NUM + 1


class TooShort(Own):
    def __len__(self):
        return NUM - 1


class Shrinking(Own):
    num = NUM

    def __iter__(self):
        self.num -= 1
        yield from itertools.islice(self.ds, self.num)

    def __len__(self):
        return NUM


class Once(Own):
    def __init__(self, ds):
        super().__init__(ds)
        self.iterator = None

    def __iter__(self):
        if self.iterator is None:
            self.iterator = iter([[k] for k in range(NUM)])
        return self.iterator


class Counting(Own):
    num = 0

    def __iter__(self):
        for dp in self.ds:
            self.num += 1
            yield [*dp, self.num]


class CountingPasses(Own):
    num = 0

    def __iter__(self):
        self.num += 1
        for dp in self.ds:
            yield [*dp, self.num]


class CountingWholePasses(Own):
    num = 0

    def __iter__(self):
        for dp in self.ds:
            yield [*dp, self.num]
        self.num += 1


class OneBuffer(Own):
    def __iter__(self):
        buffer = np.zeros(2)
        for dp in self.ds:
            buffer[:] = dp
            yield [buffer]


class OneBufferForAllPasses(Own):
    """Each datapoint of a pass has a place of its own in the buffer, which the next pass uses again."""

    def __init__(self, ds):
        super().__init__(ds)
        self._buffer = np.zeros((NUM, 2))

    def __iter__(self):
        for row, dp in zip(self._buffer, self.ds, strict=True):
            row[:] = dp
            yield [row]


class OneList(Own):
    def __iter__(self):
        kept = []
        for dp in self.ds:
            kept.append(dp[0])
            yield [kept]


class InPlace(Own):
    def __iter__(self):
        for dp in self.ds:
            dp[0] += 1
            yield dp


class Held(Own):
    """Changes what its own list holds."""

    def __init__(self, ds):
        super().__init__(ds)
        self.arrays = [np.zeros(2) for _ in range(NUM)]

    def __iter__(self):
        for array in self.arrays:
            array += 1
            yield [array.copy()]


class GlobalNumpy(Own):
    def __iter__(self):
        for dp in self.ds:
            yield [*dp, np.random.random()]


class GlobalRandom(Own):
    def __iter__(self):
        order = list(self.ds)
        random.shuffle(order)
        yield from order


class UnseededGenerator(Own):
    def __init__(self, ds):
        super().__init__(ds)
        self.generator = np.random.default_rng()

    def __iter__(self):
        for dp in self.ds:
            yield [*dp, self.generator.random()]


class SeededGenerator(Own):
    def __init__(self, ds):
        super().__init__(ds)
        self.generator = np.random.default_rng(3)

    def __iter__(self):
        for dp in self.ds:
            yield [*dp, self.generator.random()]


class Entropy(Own):
    def __iter__(self):
        for dp in self.ds:
            yield [*dp, os.urandom(4)]


class Clock(Own):
    def __iter__(self):
        for dp in self.ds:
            yield [*dp, time.monotonic_ns()]


class Pid(Own):
    def __iter__(self):
        for dp in self.ds:
            yield [*dp, os.getpid()]


class Identity(Own):
    made: list = []  # noqa: RUF012 - kept alive, so that none has the id of one before it

    def __init__(self, ds):
        super().__init__(ds)
        self.made.append(self)

    def __iter__(self):
        for dp in self.ds:
            yield [*dp, id(self)]


class SharedByAll(Own):
    order: list = []  # noqa: RUF012 - the fault

    def __iter__(self):
        self.order.append(0)
        for dp in self.ds:
            yield [*dp, len(self.order)]


class Hashes(Own):
    """The order of a set of texts is another one in each process that does not inherit it."""

    def __iter__(self):
        yield from ([text] for text in {f"number {k}" for k, _ in self.ds})


class ByWorker(Own):
    def __iter__(self):
        for dp in self.ds:
            yield [*dp, worker_info() is None]


class ByThread(Own):
    def __iter__(self):
        for dp in self.ds:
            yield [*dp, threading.current_thread().name]


class WithLock(Own):
    def __init__(self, ds):
        super().__init__(ds)
        self.lock = threading.Lock()


class Forgetful(Own):
    offset = 0

    def __init__(self, ds):
        super().__init__(ds)
        self.offset = 5

    def __iter__(self):
        for dp in self.ds:
            yield [dp[0] + self.offset]

    def __getstate__(self):
        state = super().__getstate__()
        del state["offset"]
        return state


class Started(Own):
    """Keeps its position in its copies."""

    position = 0

    def __iter__(self):
        try:
            for dp in self.ds:
                self.position += 1
                yield [*dp, self.num_before]
        finally:
            self.position = 0

    def __getstate__(self):
        return {**super().__getstate__(), "num_before": 1}

    num_before = 0


class ResetAppends(Own):
    def __init__(self, ds):
        super().__init__(ds)
        self.files = []

    def reset_state(self):
        super().reset_state()
        self.files.append("file")

    def __iter__(self):
        for dp in self.ds:
            yield [*dp, len(self.files)]


class ResetRewinds(Own):
    """A counter of passes of its own, which a reset sets back."""

    num = 0

    def reset_state(self):
        super().reset_state()
        self.num = 0

    def __iter__(self):
        self.num += 1
        for dp in self.ds:
            yield [*dp, self.num]


class ClosedForGood(Own):
    is_closed = False

    def close(self):
        super().close()
        self.is_closed = True

    def __iter__(self):
        if not self.is_closed:
            yield from self.ds


class ClosingRaises(Own):
    def close(self):
        super().close()
        raise OSError("closing")


class OtherIndexes(Own):
    def __getitem__(self, index):
        return self.ds[index + 1]


class GoesOn(Own):
    """Its loops have one iterator, and the second one begins it anew."""

    def __iter__(self):
        self.iterator = iter(self.ds)
        while (dp := next(self.iterator, None)) is not None:
            yield dp


class EndsWithAnError(Own):
    def __iter__(self):
        iterator = iter(self.ds)
        while True:
            yield next(iterator)


class Empty(Own):
    def __iter__(self):
        yield from ()


class Peeks(RNGDataFlow):
    """Draws in its constructor."""

    def __init__(self, ds):
        self.ds = ds
        self.order = np.random.permutation(NUM)

    def __iter__(self):
        datapoints = list(self.ds)
        yield from (datapoints[k] for k in self.order)


class Numbered:
    """A function whose results depend on the calls before."""

    num = 0

    def __call__(self, dp, rng=None):
        self.num += 1
        return [*dp, self.num]


def draws_elsewhere(dp, rng):
    return [*dp, np.random.random()]


BROKEN = {
    "a length that is too large": (TooLong, "passes: len"),
    "a length that is too small": (TooShort, "passes: len"),
    "passes that become shorter": (Shrinking, "passes: len"),
    "one iterator for all passes": (Once, "passes: pass 1 is empty"),
    "an error at the end": (EndsWithAnError, "passes: RuntimeError"),
    "no datapoints": (Empty, "passes: pass 0 is empty"),
    "one buffer": (OneBuffer, "datapoints stay: datapoint 0 of pass 0"),
    "one buffer for all passes": (lambda ds: OneBufferForAllPasses(ShuffleData(ds)), "datapoints stay: .* pass 0"),
    "one list that grows": (OneList, "datapoints stay: datapoint 0 of pass 0"),
    "numpy.random": (GlobalNumpy, "datapoints stay|fresh instances"),
    "random": (GlobalRandom, "datapoints stay|fresh instances"),
    "a generator without a seed": (UnseededGenerator, "datapoints stay|fresh instances"),
    "entropy": (Entropy, "datapoints stay|fresh instances"),
    "the clock": (Clock, "datapoints stay|fresh instances"),
    "its own id": (Identity, "datapoints stay|fresh instances"),
    "a list of the class": (SharedByAll, "datapoints stay|fresh instances"),
    "a draw in the constructor": (Peeks, "datapoints stay|fresh instances"),
    "datapoints changed in place": (InPlace, "passes|datapoints stay|fresh instances|reset|independent|index"),
    "a generator that goes on": (SeededGenerator, "passes are independent: datapoint 0 of pass 2"),
    "a counter of datapoints": (Counting, "passes are independent: datapoint 0 of pass 2"),
    "a counter of whole passes": (CountingWholePasses, "passes are independent: datapoint 0 of pass 2"),
    "a list that it changes": (Held, "passes are independent: datapoint 1 of pass 2"),
    "a counter of passes": (CountingPasses, "two loops at once: datapoint 1 of pass 0"),
    "a reset that appends": (ResetAppends, "reset: datapoint 0 of pass 0"),
    "a reset that rewinds": (ResetRewinds, "reset: datapoint 0 of pass 1"),
    "closing for good": (ClosedForGood, "independent: .* closed|closing"),
    "an error in closing": (ClosingRaises, "closing: OSError"),
    "other indexes": (OtherIndexes, "index access: datapoint 0 of pass 0 .*: it is number 1 there"),
    "one iterator for two loops": (GoesOn, "two loops at once"),
    "a lock": (WithLock, "copies: .*lock"),
    "an attribute that a pickle lacks": (Forgetful, "copies: datapoint 0 of pass 0"),
    "an attribute that a copy adds": (Started, "copies: datapoint 0 of pass 0"),
    "a function that counts its calls": (lambda ds: MapData(ds, Numbered()), "passes are independent"),
    "a random function that draws elsewhere": (lambda ds: RandomMapData(ds, draws_elsewhere), "fresh|datapoints stay"),
    "the thread": (ByThread, "workers: datapoint 0 of pass 0"),
    "whether it is in a worker": (ByWorker, "workers: datapoint 0 of pass 0"),
}  # fmt: skip
BROKEN_IN_PROCESSES = {
    "the process": (Pid, "fork", "workers, fork: datapoint 0 of pass 0"),
    "the order of a set": (Hashes, "spawn", "workers, spawn: datapoint"),
}


@pytest.mark.parametrize(("wrap", "message"), BROKEN.values(), ids=BROKEN)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_broken_node_is_found(wrap, message):
    with pytest.raises(AssertionError, match=message):
        check_node(lambda: wrap(numbers()), start_methods=[])


@pytest.mark.parametrize(("wrap", "method", "message"), BROKEN_IN_PROCESSES.values(), ids=BROKEN_IN_PROCESSES)
def test_a_node_that_is_broken_in_processes_is_found(wrap, method, message):
    with pytest.raises(AssertionError, match=message):
        check_node(lambda: wrap(numbers(20)), start_methods=[method])


def odd(dp):
    return dp[0] % 2


def half(dp):
    return dp if odd(dp) else None


def count():
    yield from ([k] for k in range(NUM))


SOUND = {
    "batches": lambda: BatchData(ShuffleData(numbers()), 2),
    "a filter": lambda: FilterData(numbers(), odd),
    "a map that drops": lambda: MapData(numbers(), half),
    "a buffer of a shuffle": lambda: LocallyShuffleData(numbers(), 3),
    "endless": lambda: RepeatedData(ShuffleData(numbers()), -1),
    "a generator": lambda: DataFromGenerator(count),
    "a node of a user": lambda: Own(ShuffleData(numbers())),
    "a long one": lambda: ShuffleData(numbers(250)),
}


@pytest.mark.parametrize("make", SOUND.values(), ids=SOUND)
def test_nothing_is_found_in_a_sound_node(make):
    check_node(make, start_methods=[])


@pytest.mark.parametrize("length", [NUM - 1, NUM + 1])
def test_a_length_that_is_wrong_by_one_is_found_where_no_more_is_looked_at(length):
    class Wrong(Own):
        def __len__(self):
            return length

    with pytest.raises(AssertionError, match=f"passes: len.. is {length}"):
        check_node(lambda: Wrong(numbers()), start_methods=[], num=length)


def test_all_start_methods_are_tried_and_the_seed_stays():
    with seeded(5):
        check_node(lambda: Own(ShuffleData(numbers())))
        import dataflow.protocol.seeding

        assert dataflow.protocol.seeding.current_root() == 5


def test_a_node_that_is_known_to_continue_is_exempt_from_independence_only():
    check_node(lambda: Continuing(numbers()), continues=True, start_methods=[])
    with pytest.raises(AssertionError, match="datapoints stay"):
        check_node(lambda: UnseededGenerator(numbers()), continues=True, start_methods=[])


class Continuing(DataFlow):
    """A node that goes on where its last pass stopped, and begins anew in a copy."""

    def __init__(self, ds):
        self.ds = ds
        self.num = 0

    def __iter__(self):
        for _ in range(NUM):
            self.num += 1
            yield [self.num]

    def __getstate__(self):
        return {**super().__getstate__(), "num": 0}

    def __deepcopy__(self, memo):
        return Continuing(self.ds)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda dps: dps[:4], "pass 0 of the second flow has 4 datapoints, and of the first more"),
        (lambda dps: [*dps, dps[0]], "pass 0 of the first flow has 6 datapoints, and of the second more"),
        (lambda dps: [dps[1], dps[0], *dps[2:]], "datapoint 0 of pass 0 differs: component 0 is 0, and 1"),
        (lambda dps: [*dps[:2], [2.0, 2.5], *dps[3:]], "datapoint 2 .* component 0 is of type int, and float"),
        (lambda dps: [*dps[:2], [2], *dps[3:]], "datapoint 2 .* the datapoint has 2 components, and 1"),
        (lambda dps: [*dps[:5], [5, -5.5]], "datapoint 5 .* component 1 is 5.5, and -5.5"),
    ],
)
def test_the_first_datapoint_that_differs_is_named(change, message):
    datapoints = [[k, k + 0.5] for k in range(NUM)]
    with pytest.raises(AssertionError, match=message):
        assert_same_data(DataFromList(datapoints, shuffle=False), DataFromList(change(list(datapoints)), shuffle=False))


def test_later_passes_are_compared_too():
    with seeded(3):
        assert_same_data(ShuffleData(numbers()), DataFromList([[k, k + 0.5] for k in range(NUM)]), passes=0)
        assert_same_data(ShuffleData(numbers()), ShuffleData(numbers()), passes=3)
        with pytest.raises(AssertionError, match="of pass 0 differs"):
            assert_same_data(ShuffleData(numbers()), numbers())


def test_endless_flows_are_compared_up_to_a_number():
    with pytest.raises(ValueError, match="never ends: say how many"):
        assert_same_data(RepeatedData(numbers(), -1), RepeatedData(numbers(), -1))
    assert_same_data(RepeatedData(numbers(), -1), numbers(), num=NUM)
    with pytest.raises(TypeError, match="assert_same_data"):
        assert_same_data([[1]], numbers())


def test_a_flow_that_cannot_be_sent_is_checked_in_this_process():
    check_node(lambda: WithLock(numbers()), picklable=False)
