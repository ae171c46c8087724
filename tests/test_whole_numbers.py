"""Numeric arguments: integers, also written as floats that are whole numbers; and fractions."""

from fractions import Fraction

import numpy as np
import pytest

import dataflow as df
from dataflow.protocol.parameters import count_or_fraction, whole_number


def numbers(n=8):
    return df.DataFromList([[k] for k in range(n)], shuffle=False)


def same(dp):
    return dp


@pytest.mark.parametrize("value", [4, 4.0, np.int8(4), np.uint64(4), np.float32(4), np.float64(4)])
def test_whole_numbers_become_ints(value):
    found = whole_number("Owner", "size", value)
    assert found == 4
    assert type(found) is int


@pytest.mark.parametrize("value", [2.5, float("inf"), float("nan"), np.float32(0.5)])
def test_fractions_are_refused_with_the_name_and_the_cure(value):
    with pytest.raises(TypeError, match=r"Owner: size must be an integer ≥ 1, got .*: round it"):
        whole_number("Owner", "size", value, 1, ": round it")


@pytest.mark.parametrize("value", [None, "4", "auto", True, np.bool_(True), [4], 4j, np.zeros(2)])
def test_what_is_no_number_is_refused_with_the_name_and_the_type(value):
    with pytest.raises(TypeError, match="Owner: size must be an integer, got "):
        whole_number("Owner", "size", value)


MAKERS = {
    "BatchData batch_size": lambda n: df.BatchData(numbers(), n),
    "BatchDataByShape batch_size": lambda n: df.BatchDataByShape(numbers(), n, 0),
    "FixedSizeData size": lambda n: df.FixedSizeData(numbers(), n),
    "RepeatedData num": lambda n: df.RepeatedData(numbers(), n),
    "RepeatedDataPoint num": lambda n: df.RepeatedDataPoint(numbers(), n),
    "LocallyShuffleData buffer_size": lambda n: df.FixedSizeData(df.LocallyShuffleData(numbers(), n), 8),
    "LocallyShuffleData num_reuse": lambda n: df.FixedSizeData(df.LocallyShuffleData(numbers(), 3, n), 8),
    "LocallyShuffleData shuffle_interval": lambda n: df.FixedSizeData(df.LocallyShuffleData(numbers(), 3, 1, n), 8),
    "FakeData size": lambda n: df.FakeData([[2]], n),
    "FlattenData num": lambda n: df.FlattenData(df.BatchData(df.FakeData([[2]] * 2, 8), 1, use_list=True), num=n),
    "ShardData world_size": lambda n: df.ShardData(numbers(), 0, n),
    "TestDataSpeed size": lambda n: df.TestDataSpeed(numbers(), n),
    "TestDataSpeed warmup": lambda n: df.TestDataSpeed(numbers(), 2, n),
    "MultiThreadRunner num_prefetch": lambda n: df.MultiThreadRunner(numbers, n, 1, strict=True),
    "MultiThreadRunner num_thread": lambda n: df.MultiThreadRunner(numbers, 2, n, strict=True),
    "MultiThreadMapData num_thread": lambda n: df.MultiThreadMapData(numbers(), n, same, strict=True),
    "MultiThreadMapData buffer_size": lambda n: df.MultiThreadMapData(numbers(), 2, same, buffer_size=n, strict=True),
}
STARTS_PROCESSES = {
    "MultiProcessRunner num_proc": lambda n: df.MultiProcessRunner(numbers(), 2, n, strict=True),
    "MultiProcessRunnerZMQ num_proc": lambda n: df.MultiProcessRunnerZMQ(numbers(), n, strict=True),
    "MultiProcessRunnerZMQ hwm": lambda n: df.MultiProcessRunnerZMQ(numbers(), 1, n),
    "MultiProcessRunnerZMQ max_restarts": lambda n: df.MultiProcessRunnerZMQ(numbers(), 1, strict=True, max_restarts=n),
    "MultiProcessMapData num_proc": lambda n: df.MultiProcessMapData(numbers(), n, same, strict=True),
    "MultiProcessMapAndBatchData batch_size": lambda n: df.MultiProcessMapAndBatchData(
        numbers(), 1, same, n, strict=True
    ),
    "SharedQ n_proc": df.SharedQ,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_node_takes_floats_that_are_whole_numbers(make):
    df.seed(1)
    try:
        with make(2) as expected, make(2.0) as found:
            assert repr(list(found)) == repr(list(expected))
    finally:
        df.seed(None)


EVERYTHING = MAKERS | STARTS_PROCESSES


@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.parametrize("value", [2.5, "2", True])
def test_a_fraction_and_what_is_no_number_are_refused_by_name(name, value):
    parameter = name.split()[1]
    wanted = parameter if parameter not in {"num_proc", "num_thread"} else "num_(proc|thread)"
    with pytest.raises((TypeError, ValueError), match=rf"{wanted} must be an integer"):
        EVERYTHING[name](value)


@pytest.mark.parametrize("name", STARTS_PROCESSES)
def test_what_starts_processes_takes_them_too(name):
    STARTS_PROCESSES[name](2.0).close()


A, B = numbers(3), numbers(3)
WRONG = {
    "JoinData(a, b)": (lambda: df.JoinData(A, B), r"JoinData: df_lists is one list.*Write JoinData\(\[a, b\]\)"),
    "ConcatData(a, b)": (lambda: df.ConcatData(A, B), r"ConcatData: df_lists .*Write ConcatData\(\[a, b\]\)"),
    "RandomMixData(a, b)": (lambda: df.RandomMixData(A, B), r"RandomMixData: df_lists .*Write RandomMixData\(\[a, b"),
    "RandomChooseData(a, b)": (lambda: df.RandomChooseData(A, B), r"df_lists .*Write RandomChooseData\(\[a, b"),
    "JoinData(a)": (lambda: df.JoinData(A), r"JoinData: df_lists must be a list of dataflows, got one DataFromList"),
    "ConcatData(5)": (lambda: df.ConcatData(5), r"ConcatData: df_lists must be a list of dataflows, got int"),
    "pairs the wrong way round": (
        lambda: df.RandomChooseData([(0.7, A), (0.3, B)]),
        r"df_lists holds pairs \(flow, probability\), got \(0\.7, DataFromList\): write \(DataFromList\(…\), 0\.7\)",
    ),
    "a pair of flows": (lambda: df.RandomChooseData([(A, B)]), r"got a pair of two flows.*write \[a, b\]"),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_flows_in_the_wrong_place_are_refused_with_the_cure(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(("given", "budget"), [(None, None), (0, 0), (5, 5), (np.int64(5), 5), (0.25, 0.25)])
def test_a_budget_is_a_number_or_a_fraction(given, budget):
    assert count_or_fraction("MapData", "max_failures", given) == budget
    assert type(count_or_fraction("MapData", "max_failures", given)) is type(budget)


def test_a_budget_may_be_given_as_any_kind_of_fraction():
    assert (
        count_or_fraction("MapData", "max_failures", Fraction(1, 4))
        == count_or_fraction("MapData", "max_failures", np.float32(0.25))
        == 0.25
    )


@pytest.mark.parametrize("wrong", [-1, -0.5, 0.0, 1.0, 1.5, float("nan"), float("inf"), np.int64(-3)])
def test_a_budget_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=r"MapData: max_failures must be an integer ≥ 0, or a fraction .* got"):
        count_or_fraction("MapData", "max_failures", wrong)


@pytest.mark.parametrize("wrong", [True, False, "3", [1], 1j])
def test_a_budget_that_is_no_number_is_refused(wrong):
    with pytest.raises(TypeError, match="MapData: max_failures must be an integer ≥ 0"):
        count_or_fraction("MapData", "max_failures", wrong)
