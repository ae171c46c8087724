"""What a map reads of its input: many steps at a time, and none too early."""

import itertools
import time

import pytest

from dataflow import DataFlow, DataFromGenerator, MultiThreadMapData
from dataflow.protocol.seeding import Stream
from dataflow.runners.feeding import SourceReader, passes_of
from dataflow.transport.message_layout import NO_ROOM

STREAM = Stream(5, ())


def as_text(datapoints, encoded):
    """Encodes numbers."""
    for dp in datapoints:
        if not isinstance(dp, int):
            return dp
        encoded.append(str(dp))
    return NO_ROOM


def read(reading, max_count=10, encode=as_text):
    plain = []
    return reading.read(max_count, encode, plain), plain


class Passes(DataFlow):
    """Each pass has other datapoints."""

    def __init__(self, *passes):
        self.passes = iter(passes)
        self.begun = 0

    def __iter__(self):
        self.begun += 1
        yield from next(self.passes)


def test_as_many_are_read_as_were_asked_for():
    steps = iter(range(10))
    reading = SourceReader([steps])
    assert read(reading, 3) == (NO_ROOM, ["0", "1", "2"])
    assert next(steps) == 3


def test_what_is_read_is_encoded_before_the_next_step():
    def steps():
        reused = [0]
        for k in range(3):
            reused[0] = k
            yield reused

    plain = []
    reading = SourceReader([steps()])
    reading.read(9, lambda dps, encoded: [encoded.append(repr(dp)) for dp in dps] and NO_ROOM, plain)
    assert plain == ["[0]", "[1]", "[2]"]


def test_what_cannot_be_encoded_so_is_given_as_it_is():
    reading = SourceReader([iter([1, "other", 2])])
    assert read(reading) == ("other", ["1"])
    assert read(reading) == (NO_ROOM, ["2"])
    assert read(SourceReader([iter("x")]), encode=None) == ("x", [])


def test_the_next_pass_begins_when_something_of_it_is_asked_for():
    df = Passes([1, 2], [3], [])
    reading = SourceReader(passes_of(df, itertools.count(), STREAM))
    assert df.begun == 0
    assert read(reading) == (NO_ROOM, ["1", "2"]) and df.begun == 1
    assert read(reading) == (NO_ROOM, ["3"]) and df.begun == 2
    assert next(reading) is reading


def test_after_an_empty_pass_there_is_no_other():
    df = Passes([1], [], [2])
    reading = SourceReader(passes_of(df, itertools.count(), STREAM))
    assert [read(source)[1] for source in itertools.islice(reading, 9)] == [["1"], []]
    assert read(reading) == (NO_ROOM, []) and df.begun == 2


def test_one_pass_is_one():
    df = Passes([1], [2])
    assert [text for source in SourceReader(passes_of(df, [0], STREAM)) for text in read(source)[1]] == ["1"]


def test_after_an_exception_it_is_over():
    def steps():
        yield 1
        raise ValueError("here")

    reading = SourceReader([steps()])
    plain = []
    with pytest.raises(ValueError, match="here"):
        reading.read(9, as_text, plain)
    assert plain == ["1"] and list(reading) == []


def test_a_loop_after_an_exception_of_the_input_begins_a_pass():
    class Fails(DataFlow):
        failed = False

        def __iter__(self):
            for k in range(5):
                if k == 3 and not self.failed:
                    self.failed = True
                    raise ValueError("once")
                yield [k]

        def __len__(self):
            return 5

    with MultiThreadMapData(Fails(), 1, lambda dp: dp) as df:
        found = []
        with pytest.raises(ValueError, match="once"):
            found.extend(df)
        assert [*found, *itertools.islice(df, 2)] == [[k] for k in (0, 1, 2, 0, 1)]


def test_an_interrupt_in_the_source_ends_the_iteration_for_the_statistics():
    def interrupted():
        yield from range(100)
        raise KeyboardInterrupt

    with MultiThreadMapData(DataFromGenerator(interrupted), 1, lambda dp: dp, buffer_size=10) as df:
        with pytest.raises(KeyboardInterrupt):
            list(itertools.islice(df, 200))
        before = df.statistics().runners[0]
        time.sleep(0.3)
        after = df.statistics().runners[0]
    assert after.waiting_seconds == before.waiting_seconds
    assert after.receiving_seconds == before.receiving_seconds
