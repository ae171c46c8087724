"""Random numbers depend on (root, turns, level, pass, position) and on nothing else."""

import copy
import functools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.protocol import seeding
from dataflow.protocol.seeding import IndexRngs, Positions, Rng, Stream, Table, permutation, rng

pytestmark = pytest.mark.usefixtures("unseeded")

SMALL = st.integers(0, 3)
TURNS = st.lists(st.tuples(SMALL, st.integers(1, 3)), max_size=3).map(tuple)
PLACES = st.tuples(TURNS, SMALL, SMALL, SMALL)
DRAWS = {
    "random": lambda rng: rng.random(),
    "normal": lambda rng: rng.normal(),
    "integers": lambda rng: rng.integers(0, 100, dtype=np.uint8),
    "binomial": lambda rng: rng.binomial(40, 0.5),
    "shuffled": lambda rng: rng.permutation(5).tolist(),
    "spawned": lambda rng: rng.spawn(2)[1].random(),
}


def words_of(place):
    turns, level, p, purpose = place
    return Stream(1, turns).words(level, p, purpose=purpose)


@given(PLACES, PLACES)
def test_two_places_never_have_the_same_words(one, other):
    assert (words_of(one) == words_of(other)) == (one == other)


@given(PLACES, PLACES)
def test_two_places_never_have_the_same_numbers(one, other):
    equal = rng(words_of(one)).random(4).tolist() == rng(words_of(other)).random(4).tolist()
    assert equal == (one == other)


def test_the_first_input_goes_straight_on_and_the_others_turn():
    stream = Stream(5)
    assert stream.turn(3, 0) is stream
    assert stream.turn(3, 1) != stream.turn(3, 2)
    assert stream.turn(3, 1) != stream.turn(4, 1)
    assert stream.turn(1, 2).turn(3, 4).turns == ((1, 2), (3, 4))


def test_a_root_of_its_own_replaces_the_root_alone():
    stream = Stream(5, ((1, 1),))
    assert stream.words(2, 3, root=9) == (9, *stream.words(2, 3)[1:])


def test_a_stream_survives_pickling():
    stream = Stream(5, ((1, 1),))
    assert pickle.loads(pickle.dumps(stream)) == stream


def test_seed_fixes_the_root_until_none_is_given():
    seeding.seed(7)
    assert seeding.current_root() == 7
    seeding.seed(np.int64(8))
    assert seeding.current_root() == 8
    seeding.seed(None)
    assert seeding.current_root() is None


@pytest.mark.parametrize(("wrong", "error"), [(-1, ValueError), (1.5, TypeError), ("1", TypeError)])
def test_what_is_no_seed_is_refused_and_changes_nothing(wrong, error):
    seeding.seed(3)
    with pytest.raises(error):
        seeding.seed(wrong)
    assert seeding.current_root() == 3


def test_fresh_roots_differ():
    assert len({seeding.fresh_root() for _ in range(100)}) == 100


def test_the_old_names_of_random_state_work():
    numbers = rng((1, 2))
    assert isinstance(numbers.rand(), float)
    assert isinstance(numbers.randn(), float)
    assert numbers.rand(2, 3).shape == (2, 3)
    assert numbers.randn(4).shape == (4,)
    assert numbers.random_sample().__class__ is float
    assert numbers.random_sample((2, 2)).shape == (2, 2)
    assert type(numbers.randint(5)) is int
    assert numbers.randint(3, 5, size=100).min() >= 3
    assert numbers.randint(3, 5, size=100).max() <= 4
    assert numbers.randint(10, size=(2, 2)).dtype == np.int64
    assert numbers.randint(10, size=3, dtype=np.uint8).dtype == np.uint8
    assert numbers.randint([1, 1, 1], [2, 3, 4]).shape == (3,)


def test_the_new_names_of_generator_work():
    numbers = rng((1, 2))
    assert isinstance(numbers, np.random.Generator)
    assert numbers.integers(1, 2) == 1
    assert sorted(numbers.permutation(3)) == [0, 1, 2]
    assert numbers.choice(["a"]) == "a"


@pytest.mark.parametrize("name", ["seed", "get_state", "set_state"])
def test_what_would_break_reproducibility_is_refused_with_a_sentence(name):
    with pytest.raises(TypeError, match=r"dataflow\.seed"):
        getattr(rng((1,)), name)()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copied_generator_goes_on_with_the_same_numbers_on_its_own(duplicate):
    numbers = rng((1, 2))
    numbers.random(3)
    twin = duplicate(numbers)
    assert type(twin) is Rng
    expected = numbers.random(3).tolist()
    assert twin.random(3).tolist() == expected
    assert twin.rand() == numbers.rand()


def test_spawned_generators_are_ours_and_differ():
    children = rng((1, 2)).spawn(3)
    assert [type(child) for child in children] == [Rng] * 3
    assert len({child.random() for child in children}) == 3


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@given(positions=st.lists(st.integers(0, 40), min_size=1, max_size=12))
def test_the_numbers_of_a_position_do_not_depend_on_what_was_drawn_before(draw, positions):
    shared = Positions((1, 2))
    for position in positions:
        drawn = draw(shared.at(position))
        assert drawn == draw(Positions((1, 2)).at(position))
        shared.at(position).integers(0, 2, size=position, dtype=np.uint32)  # leaves half a word in the buffer


def test_positions_and_passes_differ():
    first = Positions((1, 2))
    numbers = [first.at(k).random() for k in (0, 1, 2, 2**32, 2**63)]
    assert len({*numbers, Positions((1, 3)).at(0).random()}) == len(numbers) + 1


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_a_permutation_holds_every_index_once(n):
    order = permutation((1, 2), n)
    assert order.dtype == np.uint32
    assert sorted(order) == list(range(n))
    assert permutation((1, 2), n).tolist() == order.tolist()


def test_a_table_makes_a_value_once_for_each_key_and_forgets_it_when_pickled():
    made = []
    table = Table()

    def make(key):
        made.append(key)
        return key

    answers = [table.get(key, functools.partial(make, key)) for key in "aabba"]
    assert answers == list("aabba")
    assert made == list("aba")
    pickle.loads(pickle.dumps(table)).get("a", functools.partial(make, "a"))
    assert made == list("abaa")


@pytest.mark.parametrize("part", [lambda numbers: numbers, lambda numbers: numbers.bit_generator], ids=["rng", "bits"])
def test_a_generator_that_is_kept_stays_that_of_its_position(part):
    shared = Positions((1, 2))
    kept = [part(shared.at(k)) for k in range(4)]
    for k, numbers in reversed(list(enumerate(kept))):
        found = numbers if isinstance(numbers, Rng) else np.random.Generator(numbers)
        assert found.random() == Positions((1, 2)).at(k).random()


def test_a_generator_that_nobody_keeps_is_moved():
    shared = Positions((1, 2))
    first = id(shared.at(0))
    assert all(id(shared.at(k)) == first for k in range(5))


def test_an_index_is_a_position_of_a_pass():
    stream = Stream(1)
    rngs = IndexRngs(functools.partial(stream.words, 2), 5)
    for index in (0, 7, 3, 23):
        p, k = divmod(index, 5)
        expected = Positions(stream.words(2, p)).at(k).random()
        assert rngs.at(index).random() == rngs.of(p, k).random() == expected
    endless = IndexRngs(functools.partial(stream.words, 2), None)
    assert endless.at(23).random() == Positions(stream.words(2, 0)).at(23).random()


def test_ranks_make_another_key_and_a_drawn_root_the_same():
    stream = Stream(1, ((0, 2),))
    assert stream.words(1, 2, ranks=(0,)) != stream.words(1, 2) != stream.words(1, 2, ranks=(1,))
    drawn = Stream(1, ((0, 2),), drawn=True)
    assert drawn == stream and hash(drawn) == hash(stream)
    assert drawn.turn(3, 1).drawn and not stream.turn(3, 1).drawn
