import asyncio
import itertools
import threading

import pytest

import dataflow
from dataflow.errors import DataFlowTerminated, LengthUnknown, NotReentrant, SourceExhausted
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromAsyncIterable, DataFromGenerator, DataFromIterable
from dataflow.transforms.awaiting import AsyncMapData
from dataflow.transforms.batching import BatchData
from dataflow.transforms.joining import ConcatData, JoinData
from dataflow.transforms.mapping import MapData
from dataflow.transforms.repeating import FixedSizeData, RepeatedData
from dataflow.transforms.shuffling import ShuffleData
from tests.support.threads import loop_ended_by_close
from tests.support.waits import LIMIT

BOTH = pytest.mark.parametrize("source", [DataFromGenerator, DataFromIterable])


def some():
    for k in range(4):
        yield [k]


@BOTH
def test_an_iterable_yields_pass_after_pass(source):
    df = source([[0], [1]])
    assert [list(df) for _ in range(3)] == [[[0], [1]]] * 3


def test_a_function_is_called_for_every_pass():
    calls = []
    df = DataFromGenerator(lambda: calls.append(None) or [len(calls)])
    assert [list(df), list(df)] == [[1], [2]]


@BOTH
def test_a_generator_object_continues_where_it_stopped(source):
    df = source(some())
    assert next(iter(df)) == [0]
    assert list(df) == [[1], [2], [3]]


@BOTH
def test_an_exhausted_generator_object_raises_with_the_remedy(source):
    df = source(some())
    assert len(list(df)) == 4
    for _ in range(2):
        with pytest.raises(SourceExhausted, match="function that makes it"):
            list(df)


def test_a_function_that_returns_a_generator_object_which_was_read_to_its_end_is_refused():
    made, arrived = some(), arriving()
    for df in (DataFromGenerator(lambda: made), DataFromAsyncIterable(lambda: arrived)):
        with df:
            assert list(df)
            with pytest.raises(SourceExhausted, match="has returned a generator that was read to its end"):
                list(df)


@BOTH
def test_a_generator_object_stopped_after_its_last_datapoint_is_exhausted(source):
    df = FixedSizeData(source(some()), 4)
    assert len(list(df)) == 4
    with pytest.raises(SourceExhausted):
        list(df)


@BOTH
def test_an_empty_generator_object_gives_one_empty_pass(source):
    df = source(iter([]))
    assert list(df) == []
    with pytest.raises(SourceExhausted):
        list(df)


@BOTH
def test_a_generator_object_serves_one_iteration_at_a_time(source):
    df = source(some())
    first, second = iter(df), iter(df)
    assert next(second) == [0]
    with pytest.raises(NotReentrant, match=source.__name__):
        next(first)
    assert list(second) == [[1], [2], [3]]


def test_a_generator_object_that_is_joined_twice_is_shared():
    df = DataFromIterable(iter(range(4)))
    lists = MapData(df, lambda k: [k])
    assert list(JoinData([lists, lists])) == [[0, 1], [2, 3]]


def test_the_length_of_an_iterable_is_that_at_construction():
    lst = [1, 2]
    df = DataFromIterable(lst)
    lst.append(3)
    assert len(df) == 2
    with pytest.raises(LengthUnknown, match="count"):
        len(DataFromIterable(itertools.count()))


def test_a_generator_function_has_no_length_but_list_works():
    df = DataFromGenerator(some)
    with pytest.raises(LengthUnknown):
        len(df)
    assert len(list(df)) == 4
    assert len(DataFromGenerator([1, 2])) == 2


@pytest.mark.parametrize("above", [list, lambda df: list(RepeatedData(df, 4)), lambda df: list(ConcatData([df] * 4))])
def test_a_function_that_raises_stop_iteration_does_not_end_the_pass_above(above):
    df = DataFromGenerator(iter([[[1]], [[2]]]).__next__)
    with pytest.raises(RuntimeError, match="DataFromGenerator: what makes a pass raised StopIteration"):
        [above(df) for _ in range(3)]


def test_an_error_in_the_generator_is_raised():
    def bad():
        yield [0]
        raise KeyError("in the generator")

    for df in (DataFromGenerator(bad), DataFromGenerator(bad())):
        with pytest.raises(KeyError, match="in the generator"):
            list(df)


@pytest.mark.parametrize("value", [5, None])
@BOTH
def test_a_source_needs_an_iterable(source, value):
    with pytest.raises(TypeError, match=f"{source.__name__} expects an iterable"):
        source(value)


def test_a_user_may_derive_from_a_source_and_add_an_input():
    class Labelled(DataFromIterable):
        def __init__(self):
            super().__init__("ab")
            self.labels = DataFromList([1, 2], shuffle=False)

        def __iter__(self):
            yield from zip(super().__iter__(), self.labels, strict=True)

    assert list(Labelled()) == [("a", 1), ("b", 2)]


# -- Async iterables ---------------------------------------------------------------------------------------------------


async def arriving():
    for k in range(4):
        await asyncio.sleep(0)
        yield [k]


def test_an_async_iterable_is_made_for_every_pass():
    with DataFromAsyncIterable(arriving) as df:
        assert [list(df), list(df)] == [[[0], [1], [2], [3]]] * 2
        with pytest.raises(LengthUnknown):
            len(df)
        with BatchData(MapData(df, lambda dp: [dp[0] + 1]), 2) as batches:
            assert [dp[0].tolist() for dp in batches] == [[1, 2], [3, 4]]


def test_each_element_is_requested_by_the_consumer_and_the_iterable_is_closed_by_one_task():
    events, tasks = [], set()

    async def noted():
        tasks.add(asyncio.current_task())
        try:
            for k in range(4):
                events.append(k)
                yield [k]
        finally:
            await asyncio.sleep(0)
            tasks.add(asyncio.current_task())
            events.append("closed")

    with DataFromAsyncIterable(noted) as df:
        for dp in df:
            assert events[-1] == dp[0]
            if dp == [1]:
                break
        assert events == [0, 1, "closed"]
        assert len(tasks) == 1
        assert len(list(df)) == 4
    assert not [thread for thread in threading.enumerate() if thread.name == "dataflow-event-loop"]


def test_an_exception_of_an_async_iterable_comes_in_its_place():
    async def fails():
        yield [0]
        raise OSError("gone")

    with DataFromAsyncIterable(fails) as df:
        steps = iter(df)
        assert next(steps) == [0]
        with pytest.raises(OSError, match="gone"):
            next(steps)


def test_a_timeout_of_another_flow_does_not_look_as_if_the_pass_went_on():
    """Whoever waits again after it would find the end of the pass."""

    async def late():
        yield [0]
        raise dataflow.TimeoutError("late")

    async def same(dp):
        return dp

    above = AsyncMapData(DataFromList([[5]]), same, timeout=LIMIT)
    iterator = iter(ConcatData([DataFromAsyncIterable(late), above]))
    assert next(iterator) == [0]
    with pytest.raises(DataFlowTerminated, match="left the code of DataFromAsyncIterable, which cannot continue"):
        next(iterator)


def test_close_ends_a_wait_for_an_async_iterable():
    waiting = threading.Event()

    async def never():
        waiting.set()
        await asyncio.Event().wait()
        yield []

    with loop_ended_by_close(df := DataFromAsyncIterable(never)) as errors:
        assert waiting.wait(LIMIT)
        df.close()
    assert "was closed while it was being iterated" in str(errors[0])


def test_a_flow_that_begins_in_an_async_iterable_has_its_place():
    async def draws():
        yield next(iter(ShuffleData(DataFromList([[k] for k in range(100)], shuffle=False))))

    dataflow.seed(5)
    try:
        with DataFromAsyncIterable(draws) as df:
            passes = [list(df) for _ in range(3)]
        with DataFromAsyncIterable(draws) as again:
            assert [list(again) for _ in range(3)] == passes
        assert len({str(one) for one in passes}) > 1
    finally:
        dataflow.seed(None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (arriving(), "an async iterable itself. Pass the function, without calling it"),
        ([[1]], "got a list. DataFromIterable takes an iterable"),
        (some, "got a generator function. DataFromGenerator takes it"),
    ],
)
def test_what_makes_no_async_iterable_is_refused(make, message):
    with pytest.raises(TypeError, match=message):
        DataFromAsyncIterable(make)


def test_what_returns_no_async_iterable_is_refused():
    async def coroutine():
        return []

    with pytest.raises(TypeError, match=r"a coroutine function\. Yield the datapoints in it"):
        DataFromAsyncIterable(coroutine)
    with DataFromAsyncIterable(lambda: [[1]]) as df, pytest.raises(TypeError, match="make has returned a list"):
        list(df)
