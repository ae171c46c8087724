"""Batches of sequences of different lengths."""

import itertools

import numpy as np
import pytest

from dataflow.errors import LengthUnknown, NotAddressable, ShapeMismatch
from dataflow.protocol.datapoint import allocating
from dataflow.sources.in_memory import DataFromList
from dataflow.transforms.padding import BucketBatchData, PadBatchData
from dataflow.transforms.repeating import RepeatedData
from dataflow.transforms.resuming import ResumableData


def flow(datapoints):
    return DataFromList(datapoints, shuffle=False)


def padded(*sequences, **options):
    """The padded batch of one component."""
    ((batch, *_),) = PadBatchData(flow([[sequence] for sequence in sequences]), len(sequences), **options)
    return batch


@pytest.mark.parametrize("make", [list, tuple, np.array])
def test_sequences_are_padded_at_the_end_to_the_longest(make):
    batch = padded(make([1, 2, 3]), make([4]), make([5, 6]))
    assert batch.tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]]
    assert batch.dtype == np.int64


@pytest.mark.parametrize(
    ("sequences", "dtype"),
    [
        (([1.5], [2.5, 3.5]), np.float32),
        (([True], [False, True]), np.bool_),
        ((np.ones(2, "u1"), np.ones(1, "u1")), np.uint8),
        ((np.ones(2, "u1"), np.ones(1, "i2")), np.int16),
        (([np.int16(1)], [np.int16(2), np.int16(3)]), np.int16),
        (([], [1.5]), np.float32),
        (([], []), np.int64),
        (([1, 2], np.ones(1, "i4")), np.int64),
    ],
)
def test_the_dtype_is_that_of_the_elements(sequences, dtype):
    batch = padded(*sequences)
    assert batch.dtype == dtype and batch.shape == (2, max(map(len, sequences)))


def test_arrays_are_padded_along_their_first_axis():
    batch = padded(np.ones((2, 3), "f4"), np.full((4, 3), 2, "f4"), pad_value=-1)
    assert batch.shape == (2, 4, 3) and batch.dtype == np.float32
    assert batch[0, :, 0].tolist() == [1, 1, -1, -1] and batch[1, :, 0].tolist() == [2] * 4
    boxes = padded([[1, 2, 3, 4]], [], [[5, 6, 7, 8], [9, 9, 9, 9]])
    assert boxes.shape == (3, 2, 4) and boxes[1].tolist() == [[0] * 4] * 2
    assert padded(np.zeros((0, 4)), np.ones((2, 4))).shape == (2, 2, 4)
    with pytest.raises(ShapeMismatch, match=r"component 0 .*beyond the first axis.*\(2, 3\), \(2, 4\)"):
        padded(np.ones((2, 3)), np.ones((2, 4)))


def test_longer_sequences_lose_their_end():
    assert padded([1, 2, 3], [4], max_length=2).tolist() == [[1, 2], [4, 0]]
    assert padded(np.ones((3, 2)), np.ones((1, 2)), max_length=2).shape == (2, 2, 2)
    assert padded([1], [4], max_length=9).shape == (2, 1), "it is no minimum"


WORDS = [{"ids": [5, 6, 7], "tags": [1, 1, 1], "label": 3}, {"ids": [8], "tags": [2], "label": 4}]


def test_keys_choose_what_is_padded_and_a_dict_what_with():
    (batch,) = PadBatchData(flow(WORDS), 2, pad_value={"tags": -100})
    assert batch["ids"].tolist() == [[5, 6, 7], [8, 0, 0]] and batch["tags"].tolist() == [[1, 1, 1], [2, -100, -100]]
    assert batch["label"].tolist() == [3, 4] and batch["label"].dtype == np.int64
    with pytest.raises(ShapeMismatch, match=r"component 'tags' is a list of different lengths .*3, 1.*PadBatchData"):
        list(PadBatchData(flow(WORDS), 2, keys=["ids"]))
    pairs = flow([[[1, 2], np.zeros((2, 2))], [[3], np.ones((2, 2))]])
    for key in (0, -2):
        (batch,) = PadBatchData(pairs, 2, keys=[key], mask=True)
        assert [column.shape for column in batch] == [(2, 2), (2, 2, 2), (2, 2), (2,)]


def test_masks_and_lengths_follow_their_components():
    (batch,) = PadBatchData(flow(WORDS), 2, mask=True, keys=["ids", "tags"])
    assert [*batch] == ["ids", "tags", "label", "ids_mask", "ids_length", "tags_mask", "tags_length"]
    assert batch["ids_mask"].tolist() == [[True] * 3, [True, False, False]]
    assert batch["ids_length"].tolist() == [3, 1]
    assert (batch["ids_mask"].dtype, batch["ids_length"].dtype) == (np.bool_, np.int64)
    _, _, mask, lengths = next(iter(PadBatchData(flow([[[1, 2, 3], 0], [[], 1]]), 2, mask=True, max_length=2)))
    assert mask.tolist() == [[True, True], [False, False]] and lengths.tolist() == [2, 0]
    with pytest.raises(ShapeMismatch, match="'ids_mask', which is there already"):
        list(PadBatchData(flow([{"ids": [1], "ids_mask": 1}]), 1, mask=True))


def test_batches_are_made_in_the_memory_of_the_worker():
    made = []

    def make(shape, dtype):
        made.append(np.full(shape, 7, dtype))
        return made[-1]

    with allocating(make):
        (batch,) = PadBatchData(flow([[[1, 2], 0.5], [[3], 1.5]]), 2, mask=True)
    assert all(any(column is own for own in made) for column in batch)
    assert batch[0].tolist() == [[1, 2], [3, 0]] and batch[2].tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"keys": ["label"]}, TypeError, "component 'label' is a int, which has no length to pad"),
        ({"keys": ["text"]}, KeyError, "no component 'text'"),
        ({"pad_value": 0.5}, TypeError, "pad_value 0.5 does not fit into component 'ids', which is int64"),
        ({"pad_value": float("nan")}, TypeError, "does not fit"),
        ({"pad_value": 2**70}, TypeError, "does not fit"),
    ],
)
def test_what_does_not_fit_is_named(options, error, text):
    with pytest.raises(error, match=text):
        list(PadBatchData(flow(WORDS), 2, **options))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"keys": "ids"}, TypeError, r"keys must be a list .*write \['ids'\]"),
        ({"pad_value": "x"}, TypeError, "pad_value must be a number"),
        ({"pad_value": {"ids": None}}, TypeError, "pad_value must be a number"),
        ({"max_length": 0}, ValueError, "max_length must be an integer ≥ 1"),
        ({"mask": "no"}, TypeError, "mask must be True or False"),
        ({"int_dtype": "f4"}, TypeError, "int_dtype must be an integer dtype"),
        ({"int_dtype": None}, TypeError, "int_dtype must be an integer dtype"),
    ],
)
@pytest.mark.parametrize(
    "node", [PadBatchData, lambda ds, n, **options: BucketBatchData(ds, n, key=len, boundaries=[1], **options)]
)
def test_wrong_parameters_are_named(node, options, error, text):
    with pytest.raises(error, match=text):
        node(flow(WORDS), 2, **options)


def test_padding_with_what_fits():
    assert np.isnan(padded([1.5], [], pad_value=float("nan"))).sum() == 1
    assert padded([True], [], pad_value=True).all()
    assert padded([1], [], pad_value=np.int8(-1), int_dtype=np.int16).dtype == np.int16


# -- buckets -----------------------------------------------------------------------------------------------------------


def lengths(*numbers):
    return flow([{"ids": [k + 1] * length, "k": k} for k, length in enumerate(numbers)])


def length(dp):
    return len(dp["ids"])


def test_batches_have_similar_lengths_and_nothing_is_dropped():
    df = BucketBatchData(lengths(2, 9, 5, 4, 1, 12, 30), 2, key=length, boundaries=[5, 10], mask=True)
    for _ in range(2):
        batches = list(df)
        assert sorted(k for batch in batches for k in batch["k"].tolist()) == list(range(7))
        for batch in batches:
            buckets = {(n >= 5) + (n >= 10) for n in batch["ids_length"].tolist()}
            assert len(buckets) == 1 and len(batch["k"]) <= 2
            assert batch["ids"].shape[1] == batch["ids_length"].max()
    assert [batch["k"].tolist() for batch in batches] == [[1, 2], [0, 3], [5, 6], [4]]


def test_a_boundary_belongs_to_the_bucket_above_it():
    df = BucketBatchData(lengths(4, 5, 6), 3, key=length, boundaries=[5])
    assert [batch["k"].tolist() for batch in df] == [[0], [1, 2]]
    assert len(list(BucketBatchData(lengths(4, 5, 6), 3, key=length, boundaries=[]))) == 1


def test_buckets_cannot_be_addressed_but_resumed_and_endless():
    df = BucketBatchData(lengths(4, 5, 6), 2, key=length, boundaries=[5])
    with pytest.raises(LengthUnknown, match="BucketBatchData"):
        len(df)
    with pytest.raises(NotAddressable):
        df[0]
    resumable = ResumableData(df)
    iterator = iter(resumable)
    next(iterator)
    other = ResumableData(BucketBatchData(lengths(4, 5, 6), 2, key=length, boundaries=[5]))
    other.load_state_dict(resumable.state_dict())
    assert [batch["k"].tolist() for batch in other] == [[0]]
    endless = BucketBatchData(RepeatedData(lengths(4, 5, 6), -1), 2, key=length, boundaries=[5])
    assert [batch["k"].tolist() for batch in itertools.islice(endless, 3)] == [[1, 2], [0, 0], [1, 2]]


def test_a_loop_over_an_endless_flow_that_is_left_loses_nothing_in_the_buckets():
    df = BucketBatchData(RepeatedData(lengths(9, 9, 1), -1), 2, key=length, boundaries=[5])
    taken = [batch["k"].tolist() for _ in range(6) for batch in itertools.islice(df, 1)]
    assert taken == [[0, 1], [0, 1], [2, 2], [0, 1], [0, 1], [2, 2]]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"key": 5}, TypeError, "key gets a datapoint"),
        ({"boundaries": 5}, TypeError, "boundaries must be a list"),
        ({"boundaries": ["a"]}, TypeError, "boundaries must be a list"),
        ({"boundaries": [5, 5]}, ValueError, "boundaries must increase"),
        ({"boundaries": [5, float("nan")]}, ValueError, "boundaries must increase"),
        ({"batch_size": 0}, ValueError, "batch_size must be an integer ≥ 1"),
    ],
)
def test_wrong_buckets_are_named(options, error, text):
    with pytest.raises(error, match=text):
        BucketBatchData(lengths(1), **{"batch_size": 2, "key": length, "boundaries": [1]} | options)


@pytest.mark.parametrize("wrong", [None, "5", float("nan")])
def test_a_key_that_is_no_number_is_named(wrong):
    with pytest.raises(TypeError, match="key returns the length of a datapoint, a number, got"):
        list(BucketBatchData(lengths(1), 2, key=lambda dp: wrong, boundaries=[1]))


class TestPadValuesByComponent:
    def rows(self):
        return DataFromList([([1, 2], 0, [5.0]), ([1], 1, [6.0, 7.0])], shuffle=False)

    @pytest.mark.parametrize("key", [-1, 2])
    @pytest.mark.parametrize("keys", [None, [-1], [2]])
    def test_positions_count_from_either_end(self, key, keys):
        df = PadBatchData(
            DataFromList([([1], 0, [5.0]), ([2], 1, [6.0, 7.0])], shuffle=False), 2, pad_value={key: 9}, keys=keys
        )
        assert next(iter(df))[2].tolist() == [[5, 9], [6, 7]]

    @pytest.mark.parametrize(("key", "error"), [("tokens", TypeError), (3, IndexError), (-4, IndexError)])
    def test_a_component_that_does_not_exist_is_refused(self, key, error):
        with pytest.raises(error, match="no component"):
            list(PadBatchData(self.rows(), 2, pad_value={key: 9}))
        with pytest.raises(KeyError, match="no component"):
            list(PadBatchData(DataFromList([{"x": [1]}] * 2), 2, pad_value={"y": 9}))

    def test_a_component_that_is_not_padded_is_refused(self):
        with pytest.raises(TypeError, match=r"pad_value names component 1, which is not padded: .* \[0, 2\]"):
            list(PadBatchData(self.rows(), 2, pad_value={1: 9}))
        with pytest.raises(TypeError, match="names component 0, which is not padded"):
            list(PadBatchData(DataFromList([([1], [2])] * 2), 2, pad_value={0: 9}, keys=[1]))

    def test_a_value_that_would_be_infinite_does_not_fit(self):
        with pytest.raises(TypeError, match="does not fit"):
            list(PadBatchData(self.rows(), 2, pad_value={2: 1e300}))
        assert np.isinf(next(iter(PadBatchData(self.rows(), 2, pad_value={2: float("inf")})))[2][0, 1])


@pytest.mark.parametrize("keys", [None, [0]])
def test_a_masked_array_is_refused(keys):
    rows = [[np.ma.array([1.0, 2.0], mask=[True, False])], [np.array([1.0])]]
    with pytest.raises(TypeError, match="component 0 is a masked array, whose mask would be lost"):
        list(PadBatchData(DataFromList(rows, shuffle=False), 2, keys=keys))


def test_sequences_whose_common_dtype_changes_a_value_are_refused():
    rows = [[np.array([2**53 + 1])], [np.array([0.5, 1])]]
    with pytest.raises(OverflowError, match="component 0 holds 9007199254740993"):
        list(PadBatchData(DataFromList(rows, shuffle=False), 2))
    with pytest.raises(OverflowError, match="infinite"):
        list(PadBatchData(DataFromList([[[1e300]], [[1.0, 2.0]]], shuffle=False), 2))
