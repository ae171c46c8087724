import itertools
from itertools import islice

import numpy as np
import pytest

from dataflow.errors import Dropped, LengthUnknown, NotReentrant, NotReproducible, ShapeMismatch
from dataflow.protocol.base import DataFlow
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromGenerator
from dataflow.transforms.augmenting import RandomMapData
from dataflow.transforms.batching import BatchData, BatchDataByShape
from dataflow.transforms.caching import CacheData
from dataflow.transforms.joining import ConcatData, JoinData
from dataflow.transforms.mapping import MapData, MapDataComponent
from dataflow.transforms.repeating import FixedSizeData, RepeatedData
from dataflow.transforms.resuming import ResumableData
from dataflow.transforms.shuffling import LocallyShuffleData


def numbers(n):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def vectors(df):
    return [batch[0].tolist() for batch in df]


@pytest.mark.parametrize(
    ("n", "size", "remainder", "expected"),
    [
        (5, 2, False, [[0, 1], [2, 3]]),
        (5, 2, True, [[0, 1], [2, 3], [4]]),
        (4, 2, True, [[0, 1], [2, 3]]),
        (3, 5, True, [[0, 1, 2]]),
        (0, 1, True, []),
        (3, 1, False, [[0], [1], [2]]),
    ],
)
def test_batches_and_their_number(n, size, remainder, expected):
    df = BatchData(numbers(n), size, remainder)
    assert vectors(df) == expected == vectors(df[0 : len(expected)])
    assert len(df) == len(expected)


@pytest.mark.parametrize("make", [list, tuple, lambda values: dict(enumerate(values))])
def test_components_are_stacked_and_lists_are_kept_as_lists(make):
    ds = DataFromList([make([np.full((2, 3), k), k]) for k in range(4)], shuffle=False)
    (batch,) = BatchData(ds, 4)
    assert type(batch) is (dict if isinstance(ds.lst[0], dict) else list)
    assert batch[0].shape == (4, 2, 3) and batch[1].dtype == np.int32
    (kept,) = BatchData(ds, 4, use_list=True)
    assert kept[1] == [0, 1, 2, 3] and isinstance(kept[0], list)


def test_a_batch_larger_than_a_pass_raises_with_both_numbers():
    with pytest.raises(ValueError, match="batch_size 6 is more than the 5"):
        BatchData(numbers(5), 6)
    assert len(BatchData(numbers(5), 6, remainder=True)) == 1


def test_a_flow_without_a_length_can_be_batched():
    df = BatchData(DataFromGenerator(lambda: iter([[0], [1], [2]])), 2, remainder=True)
    assert vectors(df) == [[0, 1], [2]]
    with pytest.raises(LengthUnknown):
        len(df)


def test_an_endless_flow_may_be_shorter_than_a_batch():
    df = BatchData(LocallyShuffleData(numbers(3), 2), 5)
    assert [len(batch) for batch in vectors(itertools.islice(df, 3))] == [5, 5, 5]
    df = BatchData(RepeatedData(numbers(3), -1), 5)
    assert vectors(itertools.islice(df, 2)) == [[0, 1, 2, 0, 1], [2, 0, 1, 2, 0]] == vectors(df[0:2])


def test_iteration_fills_up_after_a_dropped_datapoint_and_addressing_raises():
    df = BatchData(MapData(numbers(6), lambda dp: dp if dp[0] != 1 else None), 2)
    assert vectors(df) == [[0, 2], [3, 4]]
    for index in (0, 1):
        with pytest.raises(Dropped, match="BatchData counts"):
            df[index]


def test_different_shapes_are_named():
    df = BatchData(DataFromList([[np.zeros(2)], [np.zeros(3)]], shuffle=False), 2)
    with pytest.raises(ShapeMismatch, match=r"\(2,\), \(3,\)"):
        list(df)


@pytest.mark.parametrize("node", [BatchData, lambda ds, size: BatchDataByShape(ds, size, 0)])
def test_sizes_are_integers_from_1(node):
    for size in (0, -2):
        with pytest.raises(ValueError, match=f"batch_size must be an integer ≥ 1, got {size}"):
            node(numbers(3), size)
    for size in (True, "2", None):
        with pytest.raises(TypeError, match="batch_size must be an integer"):
            node(numbers(3), size)
    with pytest.raises(TypeError, match=r"batch_size must be an integer ≥ 1, got 2\.5"):
        node(numbers(3), 2.5)
    assert node(numbers(3), 2.0).batch_size == 2


@pytest.mark.parametrize("node", [BatchData, lambda ds, size, **options: BatchDataByShape(ds, size, 0, **options)])
def test_text_is_no_remainder(node):
    with pytest.raises(TypeError, match="remainder must be True or False, got 'no'"):
        node(numbers(3), 2, remainder="no")


def shapes(lengths):
    return DataFromList([{"a": np.zeros(length), "k": k} for k, length in enumerate(lengths)], shuffle=False)


def keys(df):
    return [batch["k"].tolist() for batch in df]


def test_there_is_one_incomplete_batch_per_shape_and_it_continues_in_the_next_pass():
    df = BatchDataByShape(shapes([1, 2, 1, 2, 2, 1, 3]), 2, "a")
    assert len(df) == 3
    assert keys(df) == [[0, 2], [1, 3], [5, 0]], "two of the pass, and one with the next"
    assert keys(df) == [[4, 1], [3, 4], [2, 5]]
    assert keys(df) == [[6, 6], [0, 2], [1, 3]]


class Sizes(DataFlow):
    """Passes of images of random sizes, as after augmentation."""

    def __init__(self, n, kinds, has_length=True):
        self.n, self.kinds, self.has_length = n, kinds, has_length
        self.rng_of_sizes = np.random.default_rng(3)
        self.num_passes = self.num_made = 0

    def __len__(self):
        if not self.has_length:
            raise NotImplementedError
        return self.n

    def __iter__(self):
        self.num_passes += 1
        for _ in range(self.n):
            self.num_made += 1
            yield [np.zeros((self.rng_of_sizes.integers(self.kinds), 2), "u1"), self.num_made]


@pytest.mark.parametrize("kinds", [1, 5, 60])
@pytest.mark.parametrize("batch_size", [1, 4, 8])
def test_a_pass_has_as_many_batches_as_its_length_and_nothing_is_lost(kinds, batch_size):
    source = Sizes(100, kinds)
    df = BatchDataByShape(source, batch_size, 0)
    batches = [list(df) for _ in range(8)]
    assert [len(found) for found in batches] == [len(df)] * 8 == [100 // batch_size] * 8
    given = [number for found in batches for _, column in found for number in column.tolist()]
    assert len(given) == len(set(given))
    assert source.num_made - len(given) < kinds * batch_size, "what is not given is held"
    assert source.num_passes <= 8 + kinds * batch_size // 100 + 1


def test_without_a_length_a_pass_is_one_of_the_input_and_incomplete_batches_are_carried_over():
    source = Sizes(10, 3, has_length=False)
    df = BatchDataByShape(source, 4, 0)
    with pytest.raises(LengthUnknown):
        len(df)
    given = []
    for p in range(1, 9):
        given += [number for _, column in df for number in column.tolist()]
        assert source.num_passes == p
        assert 10 * p - len(given) <= 3 * 3
    assert len(given) == len(set(given))


def test_after_a_break_incomplete_batches_stay_and_the_input_begins_its_next_pass():
    df = BatchDataByShape(shapes([1, 2, 1, 2, 2, 1, 3]), 2, "a")
    assert next(iter(df))["k"].tolist() == [0, 2]
    assert keys(df) == [[1, 1], [0, 2], [3, 4]], "1 was held; 3 to 6 of the first pass were never read"
    df.reset_state()
    assert keys(df) == [[0, 2], [1, 3], [5, 0]], "forgotten"


def test_a_loop_that_has_got_every_batch_is_not_an_early_exit():
    df = BatchDataByShape(shapes([1, 2, 1, 2, 2, 1, 3]), 2, "a")
    passes = [[batch["k"].tolist() for batch in islice(df, 3)] for _ in range(3)]
    assert passes == [[[0, 2], [1, 3], [5, 0]], [[4, 1], [3, 4], [2, 5]], [[6, 6], [0, 2], [1, 3]]]


def test_too_many_shapes_are_an_error_with_their_number():
    df = BatchDataByShape(Sizes(12, 10**5), 3, 0)
    with pytest.raises(ShapeMismatch, match=r"incomplete batches of 48 shapes: 4 passes of Sizes .* 4 are missing"):
        list(df)


def test_an_empty_pass_of_the_input_ends_the_pass():
    class Ends(Sizes):
        def __iter__(self):
            return iter(()) if self.num_passes else super().__iter__()

    df = BatchDataByShape(Ends(6, 4), 3, 0)
    assert len(list(df)) < 2
    assert list(df) == []


def test_the_later_of_two_iterations_takes_over_and_each_place_of_a_chain_has_separate_batches():
    df = BatchDataByShape(shapes([1, 2, 1, 2, 2, 1, 3]), 2, "a")
    first = iter(df)
    next(first)
    assert keys(df) == [[1, 1], [0, 2], [3, 4]]
    with pytest.raises(NotReentrant, match="a later iteration of BatchDataByShape"):
        next(first)
    alone = BatchDataByShape(shapes([1, 2, 1, 2, 2, 1, 3]), 2, "a")
    both = ConcatData([alone, alone])
    assert keys(both) == [[0, 2], [1, 3], [5, 0]] * 2
    assert keys(both) == [[4, 1], [3, 4], [2, 5]] * 2


def test_it_cannot_be_resumed_but_with_the_remainders_it_can():
    with pytest.raises(NotReproducible, match="BatchDataByShape continues where the last one stopped"):
        ResumableData(BatchDataByShape(shapes([1, 2, 1]), 2, "a"))
    assert len(list(ResumableData(BatchDataByShape(shapes([1, 2, 1]), 2, "a", remainder=True)))) == 2


def test_a_batch_that_no_pass_can_fill_raises():
    with pytest.raises(ValueError, match="batch_size 4 is more than the 3 datapoints"):
        BatchDataByShape(shapes([1, 1, 1]), 4, "a")
    assert keys(BatchDataByShape(shapes([1, 1, 1]), 4, "a", remainder=True)) == [[0, 1, 2]]


class Padded(BatchData):
    """As in a public face detector: pads, then aggregates."""

    def __iter__(self):
        holder = []
        for dp in self.ds:
            holder.append(dp)
            if len(holder) == self.batch_size:
                n = max(len(vector) for (vector,) in holder)
                yield BatchData.aggregate_batch([[np.pad(v, (0, n - len(v)))] for (v,) in holder], self.use_list)
                del holder[:]
        if self.remainder and holder:
            yield self.aggregate_batch(holder, use_list=True)


def test_a_subclass_can_choose_the_datapoints_of_its_batches():
    df = Padded(DataFromList([[np.ones(k + 1)] for k in range(5)], shuffle=False), 2, remainder=True)
    first, second, (rest,) = df
    assert [first[0].shape, second[0].shape] == [(2, 2), (2, 4)]
    assert [vector.shape for vector in rest] == [(5,)]
    with pytest.raises(ShapeMismatch, match="component 'a'"):
        BatchData.aggregate_batch([{"a": np.zeros(1)}, {"a": np.zeros(2)}])


def keep_but_2(dp):
    return None if dp[0] == 2 else dp


@pytest.mark.parametrize(
    "counts",
    [
        lambda ds: BatchData(ds, 2),
        lambda ds: JoinData([CacheData(ds), numbers(5)]),
        lambda ds: JoinData([ds, numbers(5)]),
        lambda ds: FixedSizeData(ds, 3),
        lambda ds: JoinData([numbers(5), BatchData(MapDataComponent(ds, lambda k: k), 1)]),
    ],
)
@pytest.mark.parametrize("dropping", [MapData, lambda ds, f: RandomMapData(ds, lambda dp, rng: f(dp))])
def test_a_node_that_counts_agrees_with_its_iteration_or_raises_dropped(counts, dropping):
    df = counts(dropping(numbers(5), keep_but_2))
    expected = [repr(dp) for dp in df]
    for index in range(len(expected)):
        with pytest.raises(Dropped, match="counts datapoints"):
            df[index]
    with pytest.raises(Dropped):
        df[0:2]
    fresh = counts(dropping(numbers(5), keep_but_2))
    found = []
    for index in range(len(expected)):  # without a loop before, in order
        try:
            found.append(repr(fresh[index]))
        except Dropped:
            found.append(None)
    first = found.index(None)
    assert found[:first] == expected[:first]
    assert not any(found[first:])


def test_remainder_yields_incomplete_batches_at_the_end_and_keeps_none():
    df = BatchDataByShape(shapes([1, 2, 1, 2, 2, 1, 3]), 2, "a", remainder=True)
    for _ in range(2):
        assert [batch["k"].tolist() for batch in df] == [[0, 2], [1, 3], [4], [5], [6]]


def test_numbers_have_a_shape_too_and_a_missing_component_is_named():
    df = BatchDataByShape(numbers(4), 2, 0)
    assert vectors(df) == [[0, 1], [2, 3]]
    with pytest.raises(IndexError, match="no component 3"):
        list(BatchDataByShape(numbers(4), 2, 3))
    with pytest.raises(LengthUnknown, match="BatchDataByShape"):
        len(BatchDataByShape(numbers(4), 2, 0, remainder=True))


def test_python_ints_have_the_dtype_that_is_asked_for():
    (batch,) = BatchData(numbers(4), 4, int_dtype=np.int64)
    assert batch[0].dtype == np.int64
    assert next(iter(BatchData(numbers(4), 4)))[0].dtype == np.int32, "as in tensorpack"
    assert BatchData.aggregate_batch([[1], [2**40]], int_dtype="i8")[0].tolist() == [1, 2**40]
    for wrong in ("f4", "nonsense", None):
        with pytest.raises(TypeError, match="int_dtype must be an integer dtype"):
            BatchData(numbers(4), 4, int_dtype=wrong)
    with pytest.raises(OverflowError, match=r"int32.*int_dtype=np\.int64"):
        list(BatchData(DataFromList([[2**40]]), 1))


def test_a_function_can_make_the_batch():
    df = BatchData(numbers(5), 2, collate=lambda group: {"sum": sum(k for (k,) in group)}, remainder=True)
    assert list(df) == [{"sum": 1}, {"sum": 5}, {"sum": 4}] == df[0:3]
    with pytest.raises(TypeError, match="BatchData expects a function, got int: collate gets a list of datapoints"):
        BatchData(numbers(5), 2, collate=3)
    with pytest.raises(ValueError, match="leave out use_list=True"):
        BatchData(numbers(5), 2, collate=list, use_list=True)
    assert "collate=<lambda>" in repr(df) and "collate" not in repr(BatchData(numbers(5), 2))


def test_states_saved_before_there_were_these_parameters_stay_valid():
    compared = BatchData(numbers(5), 2)._df_compared
    assert {"int_dtype", "collate"}.isdisjoint(compared)
    assert BatchData(numbers(5), 2, int_dtype=np.int64)._df_compared["int_dtype"] == np.int64
