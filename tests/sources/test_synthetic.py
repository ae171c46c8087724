import numpy as np
import pytest

from dataflow.sources.synthetic import FakeData
from tests.support.contract import seeded


def test_components_have_the_requested_shape_and_dtype():
    df = FakeData([(2, 3), [4], ()], size=3, dtype=["float32", np.uint8, np.dtype(">f8")])
    for dp in df:
        assert [(array.shape, array.dtype.str) for array in dp] == [((2, 3), "<f4"), ((4,), "|u1"), ((), ">f8")]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int64", ">i4"])
def test_numbers_lie_in_the_domain_and_fill_it(dtype):
    values = next(iter(FakeData([(2000,)], dtype=dtype, domain=(3, 7))))[0]
    assert values.dtype == dtype and values.min() < 4 and values.max() >= 6
    assert (values >= 3).all() and (values <= 7).all()


def test_integers_in_the_default_domain_are_zero_and_bools_are_both():
    (zeros,) = next(iter(FakeData([(100,)], dtype="int32")))
    (bools,) = next(iter(FakeData([(100,)], dtype=bool)))
    assert not zeros.any() and 0 < bools.sum() < 100


def test_every_component_may_have_a_domain():
    low, high = FakeData([(50,), (50,)], domain=[(0, 1), (8, 9)])[0]
    assert low.max() < 1 and high.min() >= 8


def test_datapoints_and_passes_differ():
    df = FakeData([(4,)], size=3)
    seen = {dp[0].tobytes() for _ in range(2) for dp in df}
    assert len(seen) == 6


def test_without_random_one_datapoint_is_repeated_in_fresh_lists_with_shared_arrays():
    df = FakeData([(2,), (3,)], size=2, random=False)
    (first, second), others = df, list(df)
    assert all(other[k] is others[0][k] and (other[k] != first[k]).any() for other in others for k in range(2))
    with seeded(4):
        df = FakeData([(2,)], size=2, random=False)
        assert [dp[0].tolist() for _ in range(3) for dp in df] == [df[k][0].tolist() for k in range(6)]
    assert len({tuple(df[k][0].tolist()) for k in range(6)}) == 3
    assert first is not second and all(a is b for a, b in zip(first, second, strict=True))


def test_its_own_seed_replaces_the_root():
    def value(seed):
        return FakeData([(1,)], seed=seed)[5][0].item()

    assert value(3) == value(3) != value(4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dtype": ["float32"]}, ValueError, "1 dtypes for 2 shapes"),
        ({"domain": [(0, 1)] * 3}, ValueError, "3 domains for 2 shapes"),
        ({"domain": (1, 0)}, ValueError, r"\(1, 0\)"),
        ({"domain": (0, float("inf"))}, ValueError, "finite"),
        ({"size": -1}, ValueError, "-1"),
        ({"size": 2.5}, TypeError, r"size must be an integer ≥ 0, got 2\.5"),
        ({"dtype": "U3"}, TypeError, "U3"),
        ({"shapes": [3, 4]}, TypeError, "list of shapes"),
    ],
)
def test_invalid_arguments_raise(arguments, error, message):
    with pytest.raises(error, match=message):
        FakeData(**{"shapes": [(1,), (2,)], **arguments})


@pytest.mark.parametrize("random", [False, True])
def test_a_size_of_zero_gives_empty_passes(random):
    df = FakeData([(1,)], size=0, random=random)
    assert list(df) == []
    with pytest.raises(IndexError, match="empty"):
        df[0]
