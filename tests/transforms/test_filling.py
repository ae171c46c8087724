"""Batches whose source may write into any memory that it has yielded: of large arrays, and of several sources."""

import itertools
from functools import partial

import numpy as np
import pytest

from dataflow import (
    BatchData,
    ConcatData,
    DataFromGenerator,
    FixedSizeData,
    MapData,
    MixData,
    ParallelData,
    TimeoutError,
)
from dataflow.errors import ShapeMismatch
from dataflow.transforms.filling import Filling
from tests.support.pauses import Late, LateInOrder

SHAPE = (128, 64)  # of float64: 64 KiB
SMALL = (3, 2)


def one_buffer(start=0, num=100, make=lambda image, k: [image, k], shape=SHAPE):
    buffer = np.zeros(shape)
    for k in range(start, start + num):
        buffer[:] = k
        yield make(buffer, k)


def two_buffers(start=0, num=100):
    buffers = np.zeros((2, *SHAPE))
    for k in range(start, start + num):
        buffers[k % 2] = k
        yield [buffers[k % 2], k]


def new_arrays(start=0, num=100, shape=SHAPE):
    return ([np.full(shape, float(k)), k] for k in range(start, start + num))


def begins_to_use_one_again():
    yield from new_arrays(0, 37)
    yield from one_buffer(37, 63)


def check(batches, numbers, shape=SHAPE):
    """Each row of the images holds the number beside it, and these are `numbers`."""
    found = []
    for images, ks in batches:
        assert images.shape == (len(ks), *shape) and images.dtype == np.float64 and ks.dtype == np.int32
        assert (images == ks[:, None, None]).all()
        found += ks.tolist()
    assert found == [*numbers]


@pytest.mark.parametrize("source", [one_buffer, two_buffers, new_arrays, begins_to_use_one_again])
@pytest.mark.parametrize("above", [lambda ds: ds, lambda ds: ParallelData(ds, 1, strict=True)], ids=["here", "worker"])
def test_each_batch_holds_what_was_yielded(source, above):
    with above(BatchData(DataFromGenerator(source), 8, remainder=True)) as df:
        check(df, range(100))
        check(df, range(100))


@pytest.mark.parametrize("shape", [SHAPE, SMALL])
def test_a_source_with_one_buffer_that_joins_a_few_datapoints_later_gives_right_batches(shape):
    sources = (partial(new_arrays, 0), partial(one_buffer, 50), partial(new_arrays, 63))
    parts = [DataFromGenerator(partial(source, shape=shape)) for source in sources]
    parts = [FixedSizeData(part, size) for part, size in zip(parts, (50, 13, 37), strict=True)]
    check(BatchData(ConcatData(parts), 10), range(100), shape)


@pytest.mark.parametrize("shape", [SHAPE, SMALL])
def test_a_source_with_one_buffer_of_which_a_mixture_takes_few_gives_right_batches(shape):
    flows = [
        DataFromGenerator(partial(new_arrays, shape=shape)),
        DataFromGenerator(partial(one_buffer, 1000, shape=shape)),
    ]
    for images, ks in itertools.islice(BatchData(MixData(flows, [30, 2], seed=0), 16), 20):
        assert (images == ks[:, None, None]).all()


@pytest.mark.parametrize("make", [
    lambda image, k: {"image": image, "k": k},
    lambda image, k: (image, k),
    lambda image, k: [image, [k, image[0, 0]]],
    lambda image, k: [image, image[:2]],
    lambda image, k: [image.T, str(k)],
    lambda image, k: [image.astype(">f4") if k % 2 else image.astype(">f4").copy(), k],
    lambda image, k: [np.asfortranarray(image), np.float16(k)],
    lambda image, k: [image.astype("M8[s]"), b"bytes"],
    lambda image, k: [image, image.astype(object)],
], ids=range(9))  # fmt: skip
def test_a_batch_is_the_one_of_new_arrays(make):
    given = list(BatchData(DataFromGenerator(partial(one_buffer, num=12, make=make)), 5, remainder=True))
    new = one_buffer(num=12, make=lambda image, k: make(image.copy(), k))
    expected = [BatchData.aggregate_batch(group) for group in in_groups(new, 5)]
    assert len(given) == len(expected) == 3
    for batch, wanted in zip(given, expected, strict=True):
        assert type(batch) is type(wanted)
        keys = batch if isinstance(batch, dict) else range(len(batch))
        assert [*keys] == [*(wanted if isinstance(wanted, dict) else range(len(wanted)))]
        for key in keys:
            assert batch[key].dtype == wanted[key].dtype
            np.testing.assert_array_equal(batch[key], wanted[key])


def in_groups(datapoints, size):
    while group := [*itertools.islice(datapoints, size)]:
        yield group


OTHER_FORMS = {
    "another shape": (lambda image: [image[1:], 0], "127, 64"),
    "one that would be broadcast": (lambda image: [image[:1], 0], "1, 64"),
    "no array": (lambda image: ["text", 0], "mixes ndarray, str"),
    "a number": (lambda image: [1.5, 0], "shape"),
    "another length": (lambda image: [image], "differ in their components"),
    "another kind": (lambda image: {0: image, 1: 0}, "differ in their components"),
    "no datapoint": (lambda image: 5, "differ in their components"),
}


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("name", OTHER_FORMS)
def test_a_datapoint_of_another_form_is_an_error_of_its_batch(name, at):
    make, text = OTHER_FORMS[name]

    def source():
        for dp in one_buffer(num=9):
            yield make(dp[0]) if dp[1] == 3 + at else dp

    df = BatchData(DataFromGenerator(source), 3, max_failures=1)
    check(df, [0, 1, 2, 6, 7, 8])
    with pytest.raises((ShapeMismatch, TypeError), match=text):
        list(BatchData(DataFromGenerator(source), 3))


@pytest.mark.parametrize("dtype", ["f4", "u1", "i8"])
def test_dtypes_that_differ_have_a_common_one_as_in_any_batch(dtype):
    def source():
        for dp in one_buffer(num=8):
            yield [dp[0].astype(dtype), dp[1]] if dp[1] % 4 == 2 else dp

    check(BatchData(DataFromGenerator(source), 4), range(8))


@pytest.mark.parametrize("late", [Late, LateInOrder])
def test_what_was_taken_before_a_timeout_stays_in_its_batch(late):
    df = BatchData(late(MapData(DataFromGenerator(one_buffer), lambda dp: dp)), 8, remainder=True)
    batches, found, num_late = iter(df), [], 0
    while True:
        try:
            found.append(next(batches))
        except TimeoutError:
            num_late += 1
        except StopIteration:
            break
    check(found, range(100))
    assert num_late > 50


def test_a_batch_that_may_be_long_takes_no_memory_in_advance():
    (batch,) = BatchData(DataFromGenerator(partial(one_buffer, num=5)), 10**9, remainder=True)
    check([batch], range(5))


def test_an_incomplete_batch_does_not_keep_the_memory_of_a_whole_one():
    *_, (images, _) = BatchData(DataFromGenerator(partial(one_buffer, num=9)), 8, remainder=True)
    assert images.base is None or images.base.nbytes == images.nbytes


class Refuses(np.ndarray):
    """An array that cannot be copied while it says so."""

    refuses = True

    def copy(self, *args):
        if self.refuses:
            raise KeyboardInterrupt
        return super().copy(*args)


def test_columns_that_an_interrupt_has_left_unequal_make_no_datapoint():
    """The image is there, the value beside it is not."""
    value = np.zeros(3).view(Refuses)
    filling = Filling([np.ones(SHAPE), 1], 4)
    with pytest.raises(KeyboardInterrupt):
        filling.extend(iter([[np.full(SHAPE, 2.0), value]]))
    filling.extend(iter([[np.full(SHAPE, 3.0), 3]]))
    images, ks = filling.stacked(np.dtype(np.int32))
    assert images[:, 0, 0].tolist() == ks.tolist() == [1, 3]
