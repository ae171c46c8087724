"""States of random generators are set in the generators that are there."""

import numpy as np
import pytest

from dataflow import NotReproducible, ResumableData, StateMismatch
from tests.protocol.keeping import Keeping, check_resuming, passes

pytestmark = pytest.mark.usefixtures("unseeded")


def test_a_generator_that_others_hold_is_set_and_not_replaced():
    def make():
        generator = np.random.default_rng(3)
        return Keeping(generator, lambda df: int(generator.integers(1000)))

    check_resuming(make)


def of_mt19937(pos):
    return {"bit_generator": "MT19937", "state": {"key": [1] * 624, "pos": pos}, "has_gauss": 0, "gauss": 0.0}


def of_philox(pos):
    numbers = {"counter": [0] * 4, "key": [1] * 2}
    return {"bit_generator": "Philox", "state": numbers, "buffer": [1] * 4, "buffer_pos": pos, "uinteger": 0} | {
        "has_uint32": 0
    }


@pytest.mark.parametrize(
    ("make", "description", "last"),
    [
        (lambda: np.random.Generator(np.random.MT19937(1)), lambda pos: ["Generator", "MT19937", of_mt19937(pos)], 624),
        (lambda: np.random.Generator(np.random.Philox(1)), lambda pos: ["Generator", "Philox", of_philox(pos)], 4),
        (lambda: np.random.RandomState(1), lambda pos: ["RandomState", of_mt19937(pos)], 624),
    ],
    ids=["MT19937", "Philox", "RandomState"],
)
def test_a_generator_gets_no_place_behind_its_numbers(make, description, last):
    """NumPy takes any, and reads other memory there."""

    def load(pos):
        df = ResumableData(Keeping(make(), lambda df: float(df.kept.uniform())))
        passes(df, 1)
        df.load_state_dict({**df.state_dict(), "kept": [{"kept": description(pos)}]})
        return df

    for pos in (1, last):
        assert len(list(load(pos))) > 0
    for pos in (-1, last + 1, 10**8, 2**40, 1.0, True, "1", None):
        with pytest.raises(StateMismatch, match=r"the state is damaged: 'kept'.* is "):
            load(pos)


def test_generators_of_torch():
    torch = pytest.importorskip("torch")

    def make():
        return Keeping(torch.Generator().manual_seed(1), lambda df: int(torch.randint(1000, (), generator=df.kept)))

    check_resuming(make)
    with ResumableData(Keeping(torch.zeros(2), lambda df: df.kept.add_(1).tolist())) as df:
        passes(df, 2)
        with pytest.raises(NotReproducible, match=r"Keeping.kept \(.*\) is kept"):
            df.state_dict()
