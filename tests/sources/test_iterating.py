import itertools

import pytest

from dataflow.errors import LengthUnknown, NotReentrant, SourceExhausted
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromGenerator, DataFromIterable
from dataflow.transforms.joining import JoinData
from dataflow.transforms.mapping import MapData
from dataflow.transforms.repeating import FixedSizeData

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
