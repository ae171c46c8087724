"""Inputs of sources: none of a built-in one, and those that a user's subclass holds."""

from dataflow import DataFromIterable, DataFromList, MapData


def one_fails(dp):
    return [1 // dp[0]]


def below():
    return MapData(DataFromList([[k] for k in range(3)], shuffle=False), one_fails, max_failures=1)


class Own(DataFromList):
    """A source in name, which reads a flow in its own code."""

    def __init__(self, ds):
        super().__init__([[0]])
        self.hidden = ds

    def __iter__(self):
        yield from self.hidden


def names(df):
    return [line.split("(")[0].strip() for line in repr(df).splitlines()]


def test_a_flow_that_a_built_in_source_reads_is_not_its_input():
    df = DataFromIterable(below())
    assert list(df) == [[1], [0]]
    assert names(df) == ["DataFromIterable"] and df.failures == []


def test_a_flow_that_a_users_source_holds_is_its_input():
    df = Own(below())
    assert list(df) == [[1], [0]]
    assert names(df) == ["Own", "MapData", "DataFromList"] and [failure.position for failure in df.failures] == [0]
