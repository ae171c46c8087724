import itertools
from collections import Counter

import pytest

from dataflow.errors import LengthUnknown
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromGenerator
from dataflow.transforms.mapping import MapData
from dataflow.transforms.mixing import RandomChooseData, RandomMixData
from dataflow.transforms.repeating import RepeatedData
from tests.support.contract import OldStyle, seeded


def numbers(n, start=0):
    return DataFromList(range(start, start + n), shuffle=False)


def generated(n):
    return DataFromGenerator(lambda: iter(range(n)))


class TaskOwnership(MapData):
    """The input, with a wrong length."""

    def __init__(self, ds, length):
        super().__init__(ds, abs)
        self.length = length

    def __len__(self):
        return self.length


def test_all_are_mixed_and_each_keeps_its_order():
    df = RandomMixData([numbers(20), numbers(30, 100), numbers(0)])
    first, second = list(df), list(df)
    assert len(df) == 50 and first != second
    for found in (first, second):
        assert [k for k in found if k < 100] == list(range(20))
        assert [k for k in found if k >= 100] == list(range(100, 130))
        assert found != sorted(found)


def test_a_mixture_is_the_same_with_and_without_indexes():
    with seeded(3):
        by_index = list(RandomMixData([numbers(9), numbers(9, 100)]))
        in_order = list(RandomMixData([TaskOwnership(generated(9), 9), numbers(9, 100)]))
    assert by_index == in_order


def test_lengths_are_read_at_every_pass():
    lst = [0]
    df = RandomMixData([DataFromList(lst, shuffle=False), numbers(3, 100)])
    assert len(list(df)) == 4
    lst.append(1)
    assert sorted(df) == [0, 1, 100, 101, 102] and len(df) == 5


def test_a_flow_shorter_than_its_length_leaves_the_others_complete():
    df = RandomMixData([TaskOwnership(generated(2), 9), numbers(5, 100)])
    assert sorted(df) == [0, 1, 100, 101, 102, 103, 104]


def test_only_empty_flows_give_an_empty_pass():
    df = RandomMixData([numbers(0), numbers(0)])
    assert list(df) == [] == df[0:0]
    with pytest.raises(IndexError, match="empty"):
        df[0]


def test_a_mixture_needs_lengths():
    df = RandomMixData([numbers(3), generated(3)])
    with pytest.raises(LengthUnknown):
        iter(df)
    with pytest.raises(LengthUnknown, match="never ends"):
        iter(RandomMixData([RepeatedData(numbers(3), -1)]))


def test_a_seed_makes_a_mixture_repeatable():
    def mixed(seed):
        return list(RandomMixData([numbers(9), numbers(9, 100)], seed=seed))

    def chosen(seed):
        return list(RandomChooseData([numbers(9), numbers(9, 100)], seed=seed))

    for draw in (mixed, chosen):
        assert draw(1) == draw(1) != draw(2)
    with pytest.raises(ValueError, match="-1"):
        mixed(-1)


@pytest.mark.parametrize("pair", [tuple, list])
def test_flows_are_chosen_with_their_probability(pair):
    endless = [RepeatedData(numbers(1, k), -1) for k in range(3)]
    df = RandomChooseData([pair(entry) for entry in zip(endless, (0.7, 0.2, 0.1), strict=True)])
    count = Counter(itertools.islice(df, 4000))
    assert df._df_endless
    assert abs(count[0] / 4000 - 0.7) < 0.05 and abs(count[2] / 4000 - 0.1) < 0.05


def test_a_pass_ends_when_the_chosen_flow_has_no_more():
    df = RandomChooseData([numbers(3), numbers(50, 100)])
    assert not df._df_endless
    for _ in range(3):
        found = list(df)
        few = [k for k in found if k < 100]
        assert few == list(range(len(few)))
        assert len(few) == 3 or len(found) - len(few) == 50
    with pytest.raises(LengthUnknown):
        len(df)


def test_the_same_flow_twice_is_reset_once():
    old = OldStyle()
    assert list(RandomChooseData([old, old])) and old.resets == 1
    assert len(list(RandomMixData([old, old]))) == 16 and old.resets == 1


@pytest.mark.parametrize("weights", [(0.5, 0.4), (1.5, -0.5), (0.5, 0.5 + 1e-5)])
def test_probabilities_that_do_not_sum_to_1_are_listed(weights):
    with pytest.raises(ValueError, match=r"sum to 1, got \[.*which sum to"):
        RandomChooseData(list(zip([numbers(1), numbers(1)], weights, strict=True)))


def test_probabilities_need_not_sum_to_1_to_the_last_bit():
    assert 0.7 + 0.2 + 0.1 != 1.0
    RandomChooseData(list(zip([numbers(1)] * 3, (0.7, 0.2, 0.1), strict=True)))


def test_elements_must_be_flows():
    with pytest.raises(TypeError, match="not some of each"):
        RandomChooseData([numbers(1), (numbers(1), 0.5)])
    with pytest.raises(TypeError, match="DataFromList"):
        RandomChooseData([([1], 1.0)])
    with pytest.raises(TypeError, match="a list of dataflows"):
        RandomChooseData(numbers(1))
    for node in (RandomChooseData, RandomMixData):
        with pytest.raises(ValueError, match="at least one"):
            node([])
