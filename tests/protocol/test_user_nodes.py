"""Nodes written by users for tensorpack, with nothing but ``__iter__``, work unchanged."""

import _thread
import dataclasses
import gc
import pickle
import queue
import threading
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from dataflow import (
    BatchData,
    DataFromGenerator,
    DataFromList,
    JoinData,
    MapData,
    MultiProcessRunnerZMQ,
    MultiThreadRunner,
    ParallelData,
    ResumableData,
    ShardData,
    ShuffleData,
)
from dataflow.errors import DataFlowTerminated, LengthUnknown, NotAddressable, NotReproducible, TimeoutError
from dataflow.protocol import seeding
from dataflow.protocol.base import DataFlow, ProxyDataFlow, RNGDataFlow
from dataflow.protocol.fingerprints import describe
from dataflow.protocol.passes import RunningPass, copy_chain, open_flow, root_stream
from dataflow.protocol.state import flows_in, state_of
from tests.support.waits import LIMIT, wait_until


@pytest.fixture(autouse=True)
def seeded():
    seeding.seed(1)
    yield
    seeding.seed(None)


class Passes(DataFlow):
    """A built-in node: datapoints tell pass and turns, so that a test sees which pass the node ran."""

    def __init__(self, n=2):
        self.n = n

    def __len__(self):
        return self.n

    def _df_run_pass(self, p, stream):
        return iter([[p, k, *stream.turns] for k in range(self.n)])


class Join(DataFlow):
    """A built-in node over several inputs."""

    def __init__(self, *flows):
        self.flows = flows

    @property
    def _df_inputs(self):
        return self.flows

    def _df_run_pass(self, p, stream):
        passes = [ds._df_run_pass(p, stream.turn(self._df_depth.level, j)) for j, ds in enumerate(self.flows)]
        return map(list, zip(*passes, strict=True))


class Through(ProxyDataFlow):
    def __iter__(self):
        yield from self.ds


class Noise(RNGDataFlow):
    def __init__(self, n=3):
        self.n = n

    def __iter__(self):
        for _ in range(self.n):
            yield [self.rng.random()]


def first(passes):
    return [dp[0] for dp in passes]


def test_a_node_with_only_iter_is_a_flow():
    class Squares(DataFlow):
        def __iter__(self):
            return ([k * k] for k in range(3))

    df = Squares()
    assert list(df) == list(df) == list(df.get_data()) == [[0], [1], [4]]
    assert bool(df)
    assert not df.addressable
    for length in (len, DataFlow.size):
        with pytest.raises(LengthUnknown, match="Squares"):
            length(df)


def test_the_old_names_alone_are_enough():
    class Old(DataFlow):
        def get_data(self):
            yield [1]

        def size(self):
            return 1

    df = Old()
    assert list(df) == list(df.get_data()) == [[1]]
    assert len(df) == df.size() == 1


def test_both_names_may_be_defined_and_call_each_other():
    class NewCallsOld(DataFlow):
        def __iter__(self):
            return self.get_data()

        def get_data(self):
            yield [1]

        def __len__(self):
            return self.size()

        def size(self):
            return 1

    class OldCallsNew(DataFlow):
        def get_data(self):
            return iter(self)

        def __iter__(self):
            yield [1]

        def size(self):
            return len(self)

        def __len__(self):
            return 1

    for df in (NewCallsOld(), OldCallsNew()):
        assert list(df) == list(df.get_data()) == [[1]]
        assert len(df) == df.size() == 1


def test_a_length_that_raises_the_plain_error_does_not_poison_list():
    class Unknown(Through):
        def __len__(self):
            raise NotImplementedError()

    df = Unknown(Passes())
    assert len(list(df)) == 2
    with pytest.raises(LengthUnknown, match="Unknown") as caught:
        len(df)
    assert type(caught.value.__cause__) is NotImplementedError
    with pytest.raises(LengthUnknown):
        df.size()


def test_a_mistake_in_a_length_comes_through():
    class Wrong(Through):
        def __len__(self):
            return {}["missing"]

    with pytest.raises(KeyError, match="missing"):
        len(Wrong(Passes()))


class Odd(ProxyDataFlow):
    """Changes the number of datapoints, and inherits the length."""

    def __iter__(self):
        yield from (dp for k, dp in enumerate(self.ds) if k % 2)


def test_a_first_pass_that_differs_from_its_length_is_logged_once(caplog):
    df = Odd(Passes(6))
    for _ in range(2):
        assert len(first(df)) == 3
    (message,) = caplog.messages
    assert message.startswith("a pass of Odd had 3 datapoints, but its len() is 6")
    assert message.endswith("if the number is not known in advance, let __len__ raise NotImplementedError")


def test_a_pass_of_its_length_or_left_early_logs_nothing(caplog):
    df = Through(Passes(6))
    next(iter(df))
    list(df)
    list(Odd(Through(Passes(0))))
    assert caplog.messages == []


def test_a_node_below_others_compares_its_length_too(caplog):
    assert len(list(Through(Odd(Passes(6))))) == 3
    assert [message.split(" had")[0] for message in caplog.messages] == ["a pass of Odd", "a pass of Through"]


class OnlyLength(ProxyDataFlow):
    """Changes the length, and inherits the datapoints."""

    def __len__(self):
        return 2


class Twice(OnlyLength):
    def __iter__(self):
        for dp in super().__iter__():
            yield from (dp, dp)

    def __len__(self):
        return 12


@pytest.mark.parametrize(
    ("above", "num"),
    [
        (lambda ds: ds, 6),
        (lambda ds: BatchData(ds, 2), 3),
        (lambda ds: ParallelData(ds, 0), 6),
        (lambda ds: MultiThreadRunner(lambda: ds, 5, 1, strict=True), 6),
        (ResumableData, 6),
    ],
)
def test_a_node_that_overrides_only_its_length_is_logged_once(above, num, caplog):
    with above(OnlyLength(Passes(6))) as df:
        for _ in range(2):
            assert len(list(df)) == num
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message.startswith("a pass of OnlyLength had 6 datapoints, but its len() is 2")


def test_a_node_of_the_right_length_logs_nothing_and_goes_on_after_a_timeout(caplog):
    assert len(list(Twice(Passes(6)))) == 12
    assert len(list(OnlyLength(Passes(2)))) == 2
    go = threading.Event()

    def late():
        go.wait(LIMIT)
        yield from ([k] for k in range(3))

    with MultiThreadRunner(lambda: DataFromGenerator(late), 5, 1, strict=True, timeout=0.2) as runner:
        steps = iter(OnlyLength(runner))
        with pytest.raises(TimeoutError):
            next(steps)
        go.set()
        assert list(steps) == [[0], [1], [2]]
    assert [text.split(",")[0] for text in caplog.messages] == ["a pass of OnlyLength had 3 datapoints"]


def drops(dp):
    return None if dp[0] == 2 else dp


def fails(dp):
    return [10 // (dp[0] - 2)]


@pytest.mark.parametrize("func", [drops, fails])
def test_a_default_runner_says_that_passes_are_shorter_than_its_length(func, caplog):
    source = DataFromList([[k] for k in range(10)], shuffle=False)
    with MultiThreadRunner(lambda: Through(MapData(source, func, max_failures=1)), 20, 1) as df:
        assert len(list(df)) == 10
    assert "a pass of Through had 9 datapoints, but its len() is 10" in caplog.text
    assert "MapData has left out datapoints: with strict=True, a pass ends where it ends in the flow" in caplog.text
    with MultiThreadRunner(lambda: Through(MapData(source, func, max_failures=1)), 20, 1, strict=True) as df:
        assert len(list(df)) == 9


def test_a_class_with_a_length_of_its_own_alone_is_a_sequence_of_passes():
    class Half(ProxyDataFlow):
        def __len__(self):
            return len(self.ds) // 2

    df = Half(DataFromList([[k] for k in range(4)], shuffle=False))
    assert [len(list(df)) for _ in range(2)] == [4, 4] and len(df) == 2
    with pytest.raises(NotAddressable, match="Half cannot be addressed"):
        df[0]
    with ParallelData(df, 1) as runner:
        assert [list(runner) for _ in range(2)] == [[[0], [1], [2], [3]]] * 2


def test_a_class_attribute_with_a_name_of_ours_keeps_its_value():
    class Sized(DataFlow):
        size = 224
        get_data = "a path"

        def __iter__(self):
            yield [self.size, self.get_data]

        def __len__(self):
            return 1

    class Derived(Sized):
        def __len__(self):
            return 1

    assert list(Sized()) == list(Derived()) == [[224, "a path"]] and len(Derived()) == 1


def test_reset_state_that_is_no_method_is_refused():
    with pytest.raises(TypeError, match="reset_state must be a method"):

        class Wrong(DataFlow):
            reset_state = True


def test_the_input_gets_the_pass_of_its_node():
    df = Through(Through(Passes()))
    assert [first(df) for _ in range(3)] == [[0, 0], [1, 1], [2, 2]]


def test_iterating_the_input_twice_gives_the_passes_p_and_p_plus_1():
    class Twice(ProxyDataFlow):
        def __iter__(self):
            yield from self.ds
            yield from self.ds

    df = Twice(Passes(1))
    assert [first(df), first(df)] == [[0, 1], [1, 2]]


def test_iterating_the_input_late_gives_the_pass_of_that_time():
    class Late(ProxyDataFlow):
        def __iter__(self):
            yield ["header"]
            yield from self.ds

    ds = Passes(1)
    df = Late(ds)
    early, later = iter(df), iter(df)
    assert [next(early), next(later)] == [["header"]] * 2
    assert first(ds) == [0], "iterating the input by itself gives its own pass"
    assert [next(later)[0], next(early)[0]] == [1, 0]
    assert first(ds) == [1]


def test_one_user_node_in_two_places_is_told_two_streams():
    class Late(ProxyDataFlow):
        def __iter__(self):
            yield ["header"]
            yield from self.ds

    late = Late(Passes(1))
    df = Join(late, late)
    for p in range(2):
        assert list(df) == [[["header"]] * 2, [[p, 0], [p, 0, (0, 1)]]]


def test_one_random_node_in_two_places_draws_what_two_would_draw():
    noise = Noise()
    assert list(Join(noise, noise)) == list(Join(Noise(), Noise()))
    ((one, other), *_) = Join(noise, noise)
    assert one != other


def test_two_user_nodes_over_the_same_input_are_told_apart():
    ds = Passes(3)
    df = Join(Through(ds), Through(ds))
    assert [one[2:] + other[2:] for one, other in df] == [[(0, 1)]] * 3


def test_a_user_node_with_the_same_instance_twice_gets_two_passes_of_it():
    class Zipped(DataFlow):
        def __init__(self, one, other):
            self.one, self.other = one, other

        def __iter__(self):
            return map(list, zip(self.one, self.other, strict=True))

    ds = Passes(1)
    assert list(Zipped(ds, ds)) == [[[0, 0], [1, 0]]]
    assert list(Zipped(ds, Passes(1))) == [[[0, 0], [0, 0, (0, 1)]]]


@pytest.mark.parametrize("kind", [list, tuple, lambda flows: dict(enumerate(flows))])
def test_inputs_are_found_in_lists_tuples_and_dicts(kind):
    class Chain(DataFlow):
        def __init__(self, flows):
            self.name = "chain"
            self.flows = kind(flows)

        def __iter__(self):
            for ds in self.flows.values() if isinstance(self.flows, dict) else self.flows:
                yield from ds

    flows = [Passes(1), Passes(1), Passes(1)]
    df = Chain(flows)
    assert list(df._df_inputs) == flows
    assert [list(df), list(df)] == [[[p, 0], [p, 0, (0, 1)], [p, 0, (0, 2)]] for p in range(2)]


def test_a_pass_broken_off_leaves_nothing_told():
    df = Through(ds := Passes())
    for _ in df:
        break
    unfinished = iter(df)
    next(unfinished)
    assert first(ds) == [0, 0]
    assert first(df) == [2, 2]


def test_an_exception_in_the_middle_leaves_nothing_told():
    class Fails(ProxyDataFlow):
        def __iter__(self):
            for dp in self.ds:
                yield dp
                raise KeyError("mine")

    df = Fails(ds := Passes())
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            list(df)
    assert first(ds) == [0, 0]
    assert next(iter(df))[0] == 2


def test_super_iter_gives_the_pass_of_the_built_in_class():
    class Marked(Passes):
        def __iter__(self):
            for dp in super().__iter__():
                yield ["mine", *dp]

    class Old(Passes):
        def get_data(self):
            for dp in super().get_data():
                yield ["mine", *dp]

    for df in (Marked(1), Old(1)):
        assert [list(df), list(df)] == [[["mine", 0, 0]], [["mine", 1, 0]]]
        assert first(Through(df)) == ["mine"]


def test_super_iter_twice_gives_two_passes_and_may_come_late():
    class Twice(Passes):
        def __iter__(self):
            yield ["header"]
            yield from super().__iter__()
            yield from super().__iter__()

    twice = Twice(1)
    assert list(twice) == [["header"], [0, 0], [1, 0]]
    assert list(Join(twice, twice))[1:] == [[[p, 0], [p, 0, (0, 1)]] for p in (0, 1)]


def test_a_subclass_of_a_subclass_may_call_super_or_define_nothing():
    class Doubled(Through):
        def __iter__(self):
            for dp in super().__iter__():
                yield dp
                yield dp

    class Inherits(Doubled):
        pass

    for kind in (Doubled, Inherits):
        df = kind(Passes(1))
        assert [first(df), first(df)] == [[0, 0], [1, 1]]


def test_a_node_may_return_any_iterator():
    class Returns(ProxyDataFlow):
        def __init__(self, ds, make):
            super().__init__(ds)
            self.make = make

        def __iter__(self):
            return self.make(self.ds)

    for make in (iter, lambda ds: map(list, ds), lambda ds: list(ds).__iter__(), lambda ds: zip(ds, strict=True)):
        assert len(list(Returns(Passes(), make))) == 2


def test_a_node_that_returns_no_iterator_fails_as_python_says():
    class Wrong(DataFlow):
        def __iter__(self):
            return 5

    with pytest.raises(TypeError, match="int"):
        list(Wrong())


def test_a_break_does_not_close_an_iterator_that_the_user_holds():
    class Stream(DataFlow):
        def __init__(self):
            self.kept = ([k] for k in range(5))

        def __iter__(self):
            return self.kept

    df = Stream()
    for _ in df:
        break
    assert list(df) == [[1], [2], [3], [4]]


def test_a_broken_off_pass_runs_the_finally_of_a_generator():
    done = []

    class Files(ProxyDataFlow):
        def __iter__(self):
            try:
                yield from self.ds
            finally:
                done.append("closed")

    steps = iter(Files(Passes()))
    next(steps)
    steps.close()
    assert done == ["closed"]


def test_a_stop_iteration_in_a_users_generator_is_no_silent_end():
    class Leaks(ProxyDataFlow):
        def __iter__(self):
            for dp in self.ds:
                next(iter(()))
                yield dp

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(Leaks(Passes()))


def test_reset_state_may_forget_super_and_its_input():
    reset = []

    class Source(Passes):
        def reset_state(self):
            reset.append("source")

    class Forgets(Through):
        def reset_state(self):
            reset.append("node")

    df = Forgets(Source())
    list(df)
    list(df)
    assert reset == ["node", "source"]
    df.reset_state()
    assert reset == ["node", "source", "node"]


def test_reset_state_runs_once_in_a_chain_of_super_calls():
    reset = []

    class A(ProxyDataFlow):
        def reset_state(self):
            super().reset_state()
            reset.append("A")

    class B(A):
        def reset_state(self):
            super().reset_state()
            reset.append("B")

    list(B(A(Passes())))
    assert reset == ["A", "A", "B"]


def test_code_of_a_node_may_reset_what_it_begins_again_and_again_in_a_forked_worker():
    class Inner(DataFlow):
        def __init__(self):
            self.resets = 0

        def reset_state(self):
            self.resets += 1

        def __iter__(self):
            yield [self.resets]

    class Outer(DataFlow):
        def __iter__(self):
            inner = Inner()
            for _ in range(3):
                inner.reset_state()
                yield from inner

    with MultiProcessRunnerZMQ(Outer(), 1, strict=True, context="fork") as df:
        assert list(df) == list(Outer()) == [[1], [2], [3]]


def test_an_input_that_reset_state_makes_is_reset_and_told():
    reset = []

    class Source(Passes):
        def reset_state(self):
            reset.append(self.n)

    class Makes(DataFlow):
        def reset_state(self):
            self.ds = Source(3)

        def __iter__(self):
            return iter(self.ds)

    df = Makes()
    assert [first(df), first(df)] == [[0] * 3, [1] * 3]
    assert reset == [3]


def test_init_need_not_call_super():
    class Bare(ProxyDataFlow, RNGDataFlow):
        def __init__(self, ds):
            self.ds = ds

        def __iter__(self):
            for dp in self.ds:
                yield [*dp, self.rng.rand()]

    df = Bare(Passes())
    assert len(df) == 2
    assert [dp[:2] for dp in df] == [[0, 0], [0, 1]]


@pytest.mark.parametrize("bases", [(ProxyDataFlow, RNGDataFlow), (RNGDataFlow, ProxyDataFlow)])
def test_a_random_proxy_works_in_both_orders_of_its_bases(bases):
    class Jitter(*bases):
        def __iter__(self):
            for dp in self.ds:
                yield [dp[0], self.rng.random()]

    def passes():
        df = Jitter(Passes())
        return [list(df), list(df)]

    assert passes() == passes()
    assert len({number for dps in passes() for _, number in dps}) == 4
    assert Through(Jitter(Passes()))._df_depth.level == 1


def test_a_flow_that_is_made_in_a_pass_is_shuffled_anew_in_every_pass():
    class Source(RNGDataFlow):
        def __iter__(self):
            yield from self.rng.permutation(100).tolist()

    class Makes(DataFlow):
        def __iter__(self):
            yield list(Source())
            yield list(ProxyDataFlow(Source()))

    def passes():
        df = Makes()
        return [order for _ in range(3) for order in df]

    assert passes() == passes()
    assert len(set(map(tuple, passes()))) == 6
    ((one, other), *_) = Join(Makes(), Makes())
    assert one != other


def test_an_input_that_is_iterated_in_reset_state_keeps_its_place():
    class Early(ProxyDataFlow):
        def reset_state(self):
            super().reset_state()
            self.kept = iter(self.ds)

        def __iter__(self):
            return self.kept

    assert list(Join(Early(Passes(1)), Early(Passes(1)))) == [[[0, 0], [0, 0, (0, 1)]]]


def test_an_rng_that_the_user_sets_is_the_users():
    class Own(RNGDataFlow):
        def reset_state(self):
            super().reset_state()
            self.rng = "mine"

        def __iter__(self):
            yield [self.rng]

    assert list(Own()) == [["mine"]]
    assert list(pickle.loads(pickle.dumps(Noise()))) == list(Noise())


def test_a_script_itself_may_draw_outside_of_a_pass():
    """No frame has called it; a thread that Python has not started runs code like that, too."""
    found = {"node": RNGDataFlow()}
    _thread.start_new_thread(exec, ("drawn = node.rng.random()", found))
    wait_until(lambda: "drawn" in found, LIMIT, "nothing was drawn")


def test_numbers_drawn_in_reset_state_follow_the_seed():
    class Shuffled(RNGDataFlow):
        def reset_state(self):
            super().reset_state()
            self.order = self.rng.permutation(100).tolist()

        def __iter__(self):
            yield self.order

    def order(seed, df):
        seeding.seed(seed)
        df.reset_state()
        return next(iter(df))

    df = Shuffled()
    assert order(1, df) == order(1, Shuffled())
    assert order(2, df) == order(2, Shuffled()) != order(1, df)


def test_a_users_numbers_do_not_repeat_those_of_the_class_below():
    class Base(RNGDataFlow):
        def _df_run_pass(self, p, stream):
            return iter([seeding.rng(self._df_words(stream, p)).random()])

    class Mine(Base):
        def __iter__(self):
            for number in super().__iter__():
                yield [number, self.rng.random()]

    ((drawn, mine),) = Mine()
    assert drawn != mine


def test_a_built_in_node_below_a_user_class_is_not_addressable():
    class Addressable(Passes):
        _df_indexed = True

        def _df_at(self, blocks, stream):
            return ([0, k] for ix in blocks for k in ix)

    class Mine(Addressable):
        def __iter__(self):
            return super().__iter__()

    assert Addressable().addressable
    assert ProxyDataFlow(Addressable())[1] == [0, 1]
    with pytest.raises(NotAddressable, match="ProxyDataFlow cannot be addressed, because Mine"):
        ProxyDataFlow(Mine())[0]


def test_a_built_in_style_subclass_takes_a_users_class_over_again():
    class Mine(Passes):
        def __iter__(self):
            yield ["mine"]

    class Again(Mine):
        def _df_run_pass(self, p, stream):
            return iter([["again", p]])

    df = Again()
    assert [list(df), list(df)] == [[["again", 0]], [["again", 1]]]


def test_dataclasses_and_abstract_classes_may_be_flows():
    @dataclasses.dataclass
    class Record(ProxyDataFlow):
        ds: DataFlow
        factor: int = 2

        def __iter__(self):
            for dp in self.ds:
                yield [self.factor * dp[-1]]

    class Abstract(DataFlow, ABC):
        @abstractmethod
        def __iter__(self): ...

    class Concrete(Abstract):
        def __iter__(self):
            yield [1]

    df = Record(Record(Passes()))
    df.reset_state()
    assert list(df) == list(df)
    with pytest.raises(TypeError, match="abstract"):
        Abstract()
    assert list(Concrete()) == [[1]]


def test_a_deep_chain_of_user_nodes_is_told_from_above():
    df = Passes(1)
    for _ in range(150):
        df = Through(df)
    assert [first(df), first(df)] == [[0], [1]]
    assert df.addressable is False


def test_an_iteration_that_is_left_after_the_next_has_begun_does_not_end_that_one():
    df = Through(Passes())
    first, second = iter(df), iter(df)
    next(first)
    next(second)
    session = state_of(df).session
    of_second = session.iterating
    first.close()
    assert session.iterating is of_second is not None
    second.close()
    assert session.iterating is None
    first, second = iter(df), iter(df)
    next(first)
    next(second)
    df.close()
    for steps in (first, second):
        with pytest.raises(DataFlowTerminated, match="Through"):
            next(steps)


def test_code_that_iterates_a_resumable_flow_gets_its_passes_in_turn():
    def taken():
        inner = ResumableData(ShuffleData(DataFromList([[k] for k in range(6)], shuffle=False)))

        class Hides(DataFlow):
            def __init__(self):
                self.read = lambda: list(inner)

            def __iter__(self):
                yield self.read()

        df = Hides()
        return [*df, *df, *df]

    found = taken()
    assert found == taken() and all(sorted(one) == [[k] for k in range(6)] for one in found)
    assert len({str(one) for one in found}) == 3


@pytest.mark.parametrize("of_node", [False, True])
def test_processes_that_share_what_a_flow_in_code_draws_need_a_seed(of_node):
    seeding.seed(None)

    class Makes(DataFlow):
        def __iter__(self):
            yield from ShuffleData(DataFromList([[k] for k in range(4)], shuffle=False))

    def makes(dp):
        return next(iter(ShuffleData(DataFromList([[0], [1]], shuffle=False))))

    df = Makes() if of_node else MapData(DataFromGenerator(lambda: iter([[0], [1]])), makes)
    with pytest.raises(
        NotReproducible, match="different numbers in each process, and their shares of a pass would over"
    ):
        list(ShardData(df, 0, 2))


def test_two_threads_may_iterate_one_user_node_and_get_a_pass_each():
    df = Through(Through(Passes(200)))
    passes, gate = [], threading.Barrier(4)

    def iterate(steps):
        gate.wait()
        passes.append(first(steps))

    threads = [threading.Thread(target=iterate, args=[iter(df)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(passes) == [[p] * 200 for p in range(4)]


# -- many steps at a time ----------------------------------------------------------------------------------------------


class Draws(RNGDataFlow):
    """Iterates its input for every datapoint, and draws."""

    def __init__(self, ds):
        self.ds = ds

    def __iter__(self):
        while True:
            (dp,) = self.ds
            yield [*dp, int(self.rng.integers(1000))]


def in_steps_of(few, datapoints):
    while found := list(islice(datapoints, few)):
        yield from found


@pytest.mark.parametrize("few", [1, 2, 5])
def test_many_steps_at_a_time_give_the_same_pass(few):
    for df in (Through(Passes(7)), Draws(Passes(1)), Through(Draws(Passes(1))), Passes(7)):
        stream = root_stream(df)
        open_flow(df, stream)
        for p in (0, 3):
            many = in_steps_of(few, df._df_run_pass(p, stream))
            assert list(islice(many, 7)) == list(islice(df._df_run_pass(p, stream), 7))


def test_between_the_steps_nothing_is_told():
    df = Through(ds := Passes())
    stream = root_stream(df)
    open_flow(df, stream)
    steps = df._df_run_pass(5, stream)
    assert next(steps) == [5, 0]
    assert first(ds) == [0, 0], "iterating the input by itself gives its own pass"
    assert next(steps) == [5, 1]


class Closeable:
    """An iterator, no generator, with a method of the name that generators have."""

    def __init__(self, datapoints, log):
        self.datapoints = datapoints
        self.log = log

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.datapoints)

    def close(self):
        self.log.append("closed")


def test_an_iterator_with_a_method_close_is_not_closed_at_a_break():
    class ItsOwn(DataFlow):
        def __init__(self, ds):
            self.ds, self.log = ds, []

        def __iter__(self):
            return Closeable(iter(self.ds), self.log)

    df = ItsOwn(Passes())
    assert [list(islice(df, 1)), list(islice(df, 1))] == [[[0, 0]], [[1, 0]]]
    assert df.log == []


def test_what_a_helper_calls_deep_below_the_users_code_finds_the_pass():
    class Deep(RNGDataFlow):
        def __init__(self, ds):
            self.ds = ds

        def dig(self, depth):
            if depth:
                return self.dig(depth - 1)
            return [*next(iter(self.ds)), int(self.rng.integers(1 << 30))]

        def __iter__(self):
            yield from map(self.dig, [0, 50])

    seeding.seed(3)
    try:
        df = Deep(Passes())
        passes = [list(df), list(df)]
        # Iterated twice in pass p, the input gives p and p + 1.
        assert [[dp[0] for dp in found] for found in passes] == [[0, 1], [1, 2]]
        assert len({dp[-1] for found in passes for dp in found}) == 4
        again = Deep(Passes())
        assert [list(again), list(again)] == passes
    finally:
        seeding.seed(None)


def test_a_pass_that_another_thread_steps_is_not_found_in_this_one():
    inside, go_on = threading.Event(), threading.Event()

    class Waits(DataFlow):
        def __init__(self, ds):
            self.ds = ds

        def __iter__(self):
            inside.set()
            assert go_on.wait(20)
            yield from self.ds

    df = Waits(ds := Passes())
    assert [first(ds), first(ds)] == [[0, 0], [1, 1]]
    found = []
    thread = threading.Thread(target=lambda: found.append(first(df)))
    thread.start()
    assert inside.wait(20)
    assert first(ds) == [2, 2], "the pass that this thread begins is the next of its own"
    go_on.set()
    thread.join(20)
    assert found == [[0, 0]], "pass 0 of its node, and so of the input"


def test_a_pass_is_forgotten_when_it_ends_however_it_ends():
    class Source(DataFlow):
        def __iter__(self):
            yield from range(3)

    class Above(ProxyDataFlow):
        def __iter__(self):
            yield from self.ds

    class Failing(DataFlow):
        def __iter__(self):
            yield 0
            raise ValueError

    df, failing = Above(Source()), Failing()
    for _ in range(5):
        assert list(df) == [0, 1, 2]
        next(iter(df))  # broken off
        with pytest.raises(ValueError):
            list(failing)
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, RunningPass)]


@pytest.mark.parametrize("name", ["__iter__", "get_data"])
def test_a_mixin_that_is_no_flow_may_define_the_iteration(name):
    def iterate(self):
        yield from ([k * self.factor] for k in range(3))

    mixin = type("Mixin", (), {name: iterate})

    class Flow(mixin, DataFlow):
        factor = 2

    class Later(Flow):
        factor = 3

    for df, expected in ((Flow(), [[0], [2], [4]]), (Later(), [[0], [3], [6]])):
        assert list(df) == list(df.get_data()) == list(MapData(df, lambda dp: dp)) == expected


def test_a_mixin_behind_the_flow_defines_nothing():
    class Mixin:
        def __iter__(self):
            raise AssertionError

    class Flow(ProxyDataFlow, Mixin):
        pass

    assert list(Flow(DataFromList([[1], [2]], shuffle=False))) == [[1], [2]]


# -- which attributes hold flows ---------------------------------------------------------------------------------------


class Weighted(DataFlow):
    """A user's node that keeps its inputs in pairs, as `RandomChooseData` does."""

    def __init__(self, pairs):
        self.pairs = pairs
        self.table = [(k, k) for k in range(3)]

    def __iter__(self):
        for ds, weight in self.pairs:
            yield from ([*dp, weight] for dp in ds)


def test_inputs_in_pairs_are_found():
    flows = [DataFromList([[k]], shuffle=False) for k in range(2)]
    df = Weighted([(flows[0], 0.25), (flows[1], 0.75)])
    assert list(df._df_inputs) == flows
    copies = copy_chain(df)
    assert [pair[1] for pair in copies[id(df)].pairs] == [0.25, 0.75]
    assert [ds for ds, _ in copies[id(df)].pairs] == [copies[id(ds)] for ds in flows]
    assert copies[id(df)].table is df.table


def test_weights_beside_inputs_are_in_the_fingerprint_of_a_cache():
    def text(weight):
        return describe(Weighted([(DataFromList([[1]], shuffle=False), weight)]))

    assert text(0.5) == text(0.5) != text(0.75)


@pytest.mark.parametrize(
    "value", [3, "text", [], (), {}, [()], [[1, 2]], {"a": 1}, [(1, DataFromList([[1]]))], range(10**9)]
)
def test_data_hold_no_flows(value):
    assert flows_in(value) == []


class Prefetching(ProxyDataFlow):
    """Reads its input in a thread of its own."""

    def __iter__(self):
        received = queue.Queue(2)

        def read():
            try:
                for dp in self.ds:
                    received.put(dp)
                received.put(None)
            except BaseException as error:
                received.put(error)

        threading.Thread(target=read, daemon=True).start()
        yield from self.taken_from(received)

    def taken_from(self, received):
        for dp in iter(received.get, None):
            if isinstance(dp, BaseException):
                raise dp
            yield dp


class PrefetchingByMethod(Prefetching):
    def __iter__(self):
        received = queue.Queue()
        thread = threading.Thread(target=self.read, args=[received])
        thread.start()
        thread.join()
        yield from self.taken_from(received)

    def read(self, received):
        for dp in self.ds:
            received.put(dp)
        received.put(None)


@pytest.mark.parametrize("prefetching", [Prefetching, PrefetchingByMethod])
class TestAnInputThatIsReadInAThreadOfTheNode:
    def test_has_the_pass_of_the_node(self, prefetching):
        plain = DataFromList(list(range(6)))
        expected = [list(plain) for _ in range(3)]
        df = prefetching(DataFromList(list(range(6))))
        assert [list(df) for _ in range(3)] == expected
        with ParallelData(prefetching(DataFromList(list(range(6)))), 1) as runner:
            assert [list(runner) for _ in range(3)] == expected

    def test_is_resumed(self, prefetching):
        df = ResumableData(prefetching(DataFromList([[k] for k in range(6)])))
        list(df)
        datapoints = iter(df)
        list(islice(datapoints, 3))
        state = df.state_dict()
        resumed = ResumableData(prefetching(DataFromList([[k] for k in range(6)])))
        resumed.load_state_dict(state)
        assert list(resumed) == list(datapoints)

    def test_has_its_place_in_a_join(self, prefetching):
        flows = [DataFromList([[k] for k in range(6)]) for _ in range(2)]
        assert list(JoinData([prefetching(df) for df in flows])) == list(JoinData(flows))

    def test_may_be_iterated_by_others_meanwhile(self, prefetching):
        source = DataFromList(list(range(6)))
        first = list(DataFromList(list(range(6))))
        datapoints = iter(prefetching(source))
        next(datapoints)
        found = []
        thread = threading.Thread(target=lambda: found.extend(source))
        thread.start()
        thread.join(LIMIT)
        assert found == first  # the first pass of the user's own
        list(datapoints)


class ReadingLate(ProxyDataFlow):
    def __iter__(self):
        yield "begun"
        with ThreadPoolExecutor(1) as pool:
            yield from pool.submit(lambda: list(self.ds)).result()


def test_a_thread_that_may_read_for_several_passes_is_refused():
    node = ReadingLate(DataFromList(list(range(6)), shuffle=False))
    passes = [iter(node) for _ in range(2)]
    assert [next(datapoints) for datapoints in passes] == ["begun", "begun"]
    with pytest.raises(NotReproducible, match=r"2 passes of ReadingLate are under way.*Call iter\(self.ds\) in"):
        next(passes[0])


def test_a_pass_that_was_left_is_not_meant():
    node = Prefetching(DataFromList(list(range(6)), shuffle=False))
    left = iter(node)
    next(left)
    assert list(node) == list(range(6))
    assert list(left) == list(range(1, 6))
