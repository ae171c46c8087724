"""A flow that changes after its workers have started: the next pass is one of the new flow."""

import array
import collections
import ctypes
import functools
import gc
import importlib
import itertools
import json
import logging
import mmap
import multiprocessing
import random
import sys
import types
import weakref
from pathlib import Path

import numpy as np
import pytest

from dataflow import (
    BatchData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    FixedSizeData,
    MapData,
    MixData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    NotAddressable,
    NotPicklable,
    NotReproducible,
    ParallelData,
    ProxyDataFlow,
    RepeatedData,
)
from dataflow.protocol.changes import ImportCheck, Snapshot
from dataflow.protocol.state import state_of
from tests.support import products
from tests.support.fakes import each_method
from tests.support.products import covering

RUNNERS = {
    "process": lambda ds: ParallelData(ds, 1),
    "forkserver": lambda ds: ParallelData(ds, 1, context="forkserver"),
    "spawn": lambda ds: ParallelData(ds, 1, context="spawn"),
    "two": lambda ds: ParallelData(ds, 2),
    "pipes": lambda ds: MultiProcessRunner(ds, 10, 2, strict=True),
    "default": lambda ds: MultiProcessRunnerZMQ(ds, 1),
    "thread": lambda ds: ParallelData(ds, 2, backend="thread"),
    "no workers": lambda ds: ParallelData(ds, 0),
}
FULL = {"two", "pipes", "spawn"}  # what others have together


def each_of(*names):
    return pytest.mark.parametrize(
        "make", [pytest.param(RUNNERS[name], id=name, marks=[pytest.mark.full] * (name in FULL)) for name in names]
    )


every_runner = each_of(*RUNNERS)
FACTOR = 1


class Scale:
    """A callable object."""

    factor = 1

    def __call__(self, dp):
        return [dp[0] * self.factor]


class Numbers(DataFlow):
    """A user's own node."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return ([k] for k in range(self.n))

    def __len__(self):
        return self.n


def by_global(dp):
    return [dp[0] * FACTOR]


def by_argument(dp, factor):
    return [dp[0] * factor]


def by_weight(dp, weights):
    return [float(weights.flat[dp[0]])]


def source(n, first=0):
    return DataFromList([[k] for k in range(first, first + n)], shuffle=False)


def numbers(df):
    return [np.ravel(dp[0]).tolist() for dp in df]


@every_runner
def test_a_list_that_has_grown(make):
    data = [[k] for k in range(6)]
    with make(BatchData(DataFromList(data, shuffle=False), 2, remainder=True)) as df:
        assert numbers(df) == [[0, 1], [2, 3], [4, 5]]
        data += [[100], [101], [102]]
        for _ in range(2):
            assert numbers(df) == [[0, 1], [2, 3], [4, 5], [100, 101], [102]]
        del data[1:]
        assert numbers(df) == [[0]]


@every_runner
def test_another_input_and_another_parameter(make):
    batches = BatchData(source(4), 2)
    with make(batches) as df:
        assert numbers(df) == [[0, 1], [2, 3]]
        batches.batch_size = 4
        assert numbers(df) == [[0, 1, 2, 3]]
        batches.ds = source(8)
        assert numbers(df) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        df.ds = source(2, first=50)
        assert numbers(df) == [[50], [51]]


@each_of("process", "two", "forkserver", "spawn", "thread")
def test_attributes_of_functions_and_of_their_objects(make):
    scale = Scale()
    with make(MapData(source(2), functools.partial(Scale.__call__, scale))) as df:
        assert numbers(df) == [[0], [1]]
        scale.factor = 3
        assert numbers(df) == [[0], [3]]


def test_attributes_of_a_class_closures_and_globals(monkeypatch):
    factor = 1

    class Own(Scale):
        pass

    def by_closure(dp):
        return [dp[0] * factor]

    for func in (Own(), by_closure, by_global):
        with ParallelData(MapData(source(2), func), 2, context="fork") as df:
            assert numbers(df) == [[0], [1]]
            factor = 5
            Own.factor = 5
            monkeypatch.setattr(f"{__name__}.FACTOR", 5)
            assert numbers(df) == [[0], [5]]
        factor = Own.factor = 1
        monkeypatch.undo()


class ByMethod:
    """A callable object whose methods read a global variable."""

    def __call__(self, dp):
        return [dp[0] * self.factor]

    @property
    def factor(self):
        return self.of_helper()

    @staticmethod
    def of_helper():
        return FACTOR


class DerivedFromIt(ByMethod):
    pass


class ReadsGlobal(DataFlow):
    """A user's own node whose loop reads a global variable."""

    def __iter__(self):
        return ([k * FACTOR] for k in range(2))

    def __len__(self):
        return 2


class ScalesItself(MapData):
    """A user's own map whose function is a method."""

    def __init__(self, ds):
        super().__init__(ds, self.scaled)

    def scaled(self, dp):
        return by_global(dp)


READERS = {
    "function": lambda: MapData(source(2), by_global),
    "object": lambda: MapData(source(2), ByMethod()),
    "derived": lambda: MapData(source(2), DerivedFromIt()),
    "method": lambda: MapData(source(2), ByMethod().__call__),
    "partial": lambda: MapData(source(2), functools.partial(ByMethod.__call__, ByMethod())),
    "node": ReadsGlobal,
    "own map": lambda: ScalesItself(source(2)),
}
AROUND = {
    "runner": lambda ds, method: ParallelData(ds, 1, context=method),
    "default": lambda ds, method: MultiProcessRunnerZMQ(ds, 1, context=method),
    "map": lambda ds, method: MultiProcessMapData(ds.ds, 1, ds.func, strict=True, context=method),
}


@pytest.mark.parametrize(("reader", "around"), covering([*READERS], [*AROUND]))
def test_a_global_variable_that_any_code_of_the_user_reads(reader, around, monkeypatch):
    ds = READERS[reader]()
    if around == "map" and isinstance(ds, ReadsGlobal):
        pytest.skip("it has no function")
    with AROUND[around](ds, "fork") as df:
        assert numbers(df) == [[0], [1]]
        monkeypatch.setattr(f"{__name__}.FACTOR", 5)
        assert numbers(df) == [[0], [5]]


@pytest.mark.parametrize(
    ("reader", "around", "method"),
    [
        ("object", "map", "forkserver"),
        ("node", "runner", "forkserver"),
        *(
            pytest.param(reader, around, method, marks=pytest.mark.full)
            for reader, around, method in [
                ("object", "runner", "forkserver"),
                ("object", "runner", "spawn"),
                ("object", "map", "spawn"),
                ("node", "runner", "spawn"),
            ]
        ),
    ],
)
def test_a_global_variable_of_methods_that_the_workers_do_not_get_is_named(reader, around, method, monkeypatch):
    with AROUND[around](READERS[reader](), method) as df:
        assert numbers(df) == [[0], [1]]
        monkeypatch.setattr(f"{__name__}.FACTOR", 5)
        with pytest.raises(NotPicklable, match=r"(of_helper|__iter__).* reads the global variable FACTOR of .*is 5"):
            list(df)


class Slotted:
    """A callable object without a dict."""

    __slots__ = ("factor",)

    def __init__(self):
        self.factor = 1

    def __call__(self, dp):
        return [dp[0] * self.factor]


SETTINGS = {"factor": 1}
FACTOR_OF = SETTINGS.get
SLOTTED = Slotted()
CONFIG = types.ModuleType("config_of_changes")


def of_a_dict(dp):
    return [dp[0] * SETTINGS["factor"]]


def of_a_bound_method(dp):
    return [dp[0] * FACTOR_OF("factor")]


def of_an_object(dp):
    return SLOTTED(dp)


def of_a_module(dp):
    return [dp[0] * CONFIG.factor]


def of_a_class(dp):
    return ByMethod()(dp)


class Holds(MapData):
    """A user's own map, whose function is used by other maps, too."""

    def __init__(self):
        super().__init__(source(2), self.scaled)
        self.factor = 1

    def scaled(self, dp):
        return [dp[0] * self.factor]


HOLDS = Holds()


@pytest.mark.parametrize(
    ("func", "change"),
    [
        (of_a_dict, lambda patch: patch.setitem(SETTINGS, "factor", 5)),
        (of_a_bound_method, lambda patch: patch.setitem(SETTINGS, "factor", 5)),
        (of_an_object, lambda patch: patch.setattr(SLOTTED, "factor", 5)),
        (of_a_module, lambda patch: patch.setattr(CONFIG, "factor", 5)),
        (of_a_class, lambda patch: patch.setattr(f"{__name__}.FACTOR", 5)),
        (of_a_class, lambda patch: patch.setattr(ByMethod, "factor", 5)),
        (HOLDS.scaled, lambda patch: patch.setattr(HOLDS, "factor", 5)),
    ],
    ids=["dict", "its method", "slots", "module", "class", "its attribute", "method of a node"],
)
def test_what_global_variables_refer_to(func, change, monkeypatch):
    CONFIG.factor = 1
    with MultiProcessMapData(source(2), 1, func, strict=True, context="fork") as df:
        assert numbers(df) == [[0], [1]]
        change(monkeypatch)
        assert numbers(df) == [[0], [5]]


def test_logging_does_not_start_workers_again():
    logger = logging.getLogger(__name__)

    def func(dp):
        logger.debug("never shown")
        return dp

    with MultiProcessMapData(source(2), 1, func, strict=True) as df:
        list(df)
        before = state_of(df).resource
        func([0])  # the logger remembers that it is not enabled
        list(df)
        assert state_of(df).resource is before


def counting(dp):
    global COUNT  # noqa: PLW0603
    COUNT += 1
    return dp


COUNT = 0


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.full), "forkserver"])
def test_a_global_variable_that_the_workers_do_not_get_is_named(method, monkeypatch):
    with ParallelData(MapData(source(2), by_global), 1, context=method) as df:
        assert numbers(df) == [[0], [1]]
        monkeypatch.setattr(f"{__name__}.FACTOR", 5)
        text = r"the global variable FACTOR of .*test_changes, which is 5 in the consumer, but 1 in the.*factor=FACTOR"
        with pytest.raises(NotPicklable, match=text):
            list(df)
    with ParallelData(MapData(source(2), functools.partial(by_argument, factor=5)), 1, context=method) as df:
        assert numbers(df) == [[0], [5]]


PARSE = json.JSONDecoder(parse_float=float).decode


def parsed(dp):
    return [PARSE(str(dp[0]))]


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.full), "forkserver"])
def test_a_global_variable_that_cannot_be_sent_is_not(method):
    with ParallelData(MapData(source(2), parsed), 1, context=method) as df:
        assert numbers(df) == [[0], [1]]


def test_a_global_variable_that_the_function_itself_assigns_may_differ(monkeypatch):
    monkeypatch.setattr(f"{__name__}.COUNT", 5)
    with ParallelData(MapData(source(2), counting), 1, context="spawn") as df:
        assert numbers(df) == [[0], [1]]


def counting_in_a_class(dp):
    Scale.num_calls = Scale.factor
    return dp


def counting_in_a_module(dp):
    products.num_calls = 5
    return [dp, products.num_calls]


@pytest.mark.parametrize(
    ("func", "holder"), [(counting_in_a_class, Scale), (counting_in_a_module, products)], ids=["class", "module"]
)
def test_so_may_an_attribute_that_it_assigns_itself(func, holder, monkeypatch):
    monkeypatch.setattr(holder, "num_calls", 1, raising=False)
    monkeypatch.setattr(holder, "num_others", 1, raising=False)
    compared = " ".join(name for name, _ in ImportCheck([("func", func), ("holder", holder)]).entries())
    assert "num_others of" in compared and "num_calls of" not in compared


def test_what_a_module_without_source_has_is_no_time_of_its_import(monkeypatch):
    module = types.ModuleType("without_source_of_changes")
    module.START = 1
    monkeypatch.setitem(sys.modules, module.__name__, module)
    check = ImportCheck([("func", module)])
    check()
    module.START = 2
    with pytest.raises(NotPicklable, match="START of without_source_of_changes, which is 1 in the consumer, but 2 in"):
        check()


@pytest.mark.parametrize("kind", [MultiProcessMapData, MultiThreadMapData])
def test_a_map_whose_function_or_source_has_changed(kind):
    scale, data = Scale(), [[k] for k in range(3)]
    with kind(DataFromList(data, shuffle=False), 2, scale, strict=True) as df:
        assert numbers(df) == [[0], [1], [2]]
        scale.factor = 2
        assert numbers(df) == [[0], [2], [4]]
        df.func = lambda dp: [-dp[0]]
        data.append([3])
        assert numbers(df) == [[0], [-1], [-2], [-3]]


@pytest.mark.parametrize("make", [RUNNERS["process"], lambda ds: ParallelData(ds, 1, backend="thread")])
def test_an_attribute_of_a_users_own_node(make):
    own = Numbers(3)
    with make(own) as df:
        assert numbers(df) == [[0], [1], [2]]
        own.n = 1
        assert numbers(df) == [[0]]


class Weighted(ProxyDataFlow):
    def __init__(self, ds):
        super().__init__(ds)
        self.weight = 1

    def __iter__(self):
        for dp in self.ds:
            yield [dp[0] * self.weight]


class MyPath(type(Path())):
    label = None


def count_up():
    return ([k] for k in itertools.count())


@pytest.mark.parametrize("begin_anew", ["reset_state", "close"])
@pytest.mark.parametrize("make", [RUNNERS["process"], RUNNERS["default"]])
def test_new_workers_do_not_repeat_a_pass_that_continues(make, begin_anew):
    own = Weighted(FixedSizeData(DataFromGenerator(count_up), 3))
    with make(own) as df:
        assert numbers(df) == [[0], [1], [2]]
        own.weight = 10
        with pytest.raises(
            NotReproducible, match=r"FixedSizeData continues .* changed: Weighted.weight was 1 and is 10"
        ):
            numbers(df)
        own.weight = 1
        assert numbers(df) == [[3], [4], [5]]
        own.weight = 10
        getattr(df, begin_anew)()
        assert numbers(df) == [[0], [10], [20]]


@pytest.mark.parametrize(
    "make",
    [
        lambda ds, f: ParallelData(MapData(ds, f), 2),
        lambda ds, f: MultiProcessMapData(ds, 2, f, strict=True),
    ],
    ids=["runner", "map"],
)
def test_a_loop_does_not_go_on_with_the_workers_of_another_function(make):
    scale = Scale()
    scale.factor = 1
    endless = RepeatedData(source(3), -1)
    with make(endless, scale) as df:
        assert [dp for dp, _ in zip(df, range(4), strict=False)] == [[0], [1], [2], [0]]
        scale.factor = 10
        with pytest.raises(NotReproducible, match=r"continues where .*factor was 1 and is 10"):
            next(iter(df))
        df.close()
        assert [dp for dp, _ in zip(df, range(4), strict=False)] == [[0], [10], [20], [0]]


def test_what_nodes_keep_in_default_workers_is_said_to_begin_anew_once(caplog):
    own = Weighted(source(2))
    with MultiProcessRunnerZMQ(own, 1) as df:
        for own.weight in range(3):
            assert numbers(df) == [[0], [own.weight]]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "MultiProcessRunnerZMQ starts its workers again, because its flow has changed: Weighted.weight was 0 and is 1. "
        "What Weighted keeps from pass to pass begins anew there"
    ]


def test_workers_that_an_interrupt_has_ended_are_followed_by_none_that_repeats_a_pass():
    with ParallelData(FixedSizeData(DataFromGenerator(count_up), 3), 1) as df:
        for _ in range(2):
            assert next(zip(*[iter(df)] * 3, strict=True)) == ([0], [1], [2])
            df.reset_state()
        next(zip(*[iter(df)] * 3, strict=True))
        state_of(df).resource.session.interrupted = True  # as in the step after the last datapoint
        with pytest.raises(NotReproducible, match=r"FixedSizeData continues .* was interrupted"):
            numbers(df)


@pytest.mark.parametrize("context", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.full)])
def test_a_path_that_is_used_is_no_change(context):
    path = Path("here") / "there"
    df = MapData(source(2), functools.partial(by_weight, weights={0: 0, 1: 1, "path": path, "kind": MyPath("a")}))
    before = Snapshot([df], imported=context != "fork")
    path.exists(), hash(path), path.parent
    assert before.difference(Snapshot([df], imported=context != "fork")) is None
    df.func.keywords["weights"]["kind"].label = "other"
    assert "label" in before.difference(Snapshot([df], imported=context != "fork"))


@each_of("process", "two", "forkserver", "spawn", "thread")
def test_a_long_list_that_is_shuffled_in_place_and_an_array_that_is_scaled(make):
    data = [[k] for k in range(100)]
    weights = np.arange(400.0).reshape(20, 20).T
    df = make(MapData(DataFromList(data, shuffle=False), functools.partial(by_weight, weights=weights)))
    with df:
        assert [dp[0] for dp in df] == [float(weights.flat[k]) for k in range(100)]
        random.Random(1).shuffle(data)
        weights *= 2
        assert [dp[0] for dp in df] == [float(weights.flat[dp[0]]) for dp in data]


def nested(k):
    return {"label": k, "parts": [(k, "a"), [0.5, None]]}


def set_number(held):
    held[57] = 1000


def set_nested(held):
    held[57]["parts"][1][0] = -0.5


def replace_object(held):
    held[57] = object()


class Sample:
    def __init__(self, path, label):
        self.path = Path(path)
        self.label = label
        self.boxes = [np.zeros(4)]


class SlottedSample:
    __slots__ = ("label", "path")

    def __init__(self, path, label):
        self.path, self.label = path, label


class Samples(list):
    pass


class OfLibrary:
    """Its object remembers something when it is used."""

    def __init__(self, label):
        self.label, self.boxes, self._cache = label, [label], 0

    def __str__(self):
        self._cache += 1
        return "text"


class SlotsOfLibrary:
    __slots__ = ("label",)

    def __init__(self, label):
        self.label = label


OfLibrary.__module__ = SlotsOfLibrary.__module__ = "numpy.made_here"


def masked(k):
    return np.ma.masked_less(np.arange(5), k % 3)


def family():
    """Objects that refer to what holds them all."""
    parent = Sample("a", 0)
    parent.children = [Sample("a", k) for k in range(100)]
    for child in parent.children:
        child.parent = parent
    return parent.children


def relabel(held):
    held[57].label = -1


def relabel_beside_a_path(held):
    held[57][1] = -1


def relabel_nested(held):
    held[57]["sample"].label = -1


def move_box(held):
    held[57].boxes[0][2] = 1


def exchange_one(held):
    held.remove(57)
    held.add(-1)


class Held:
    def __init__(self, number):
        self.number = number

    def method(self, dp):
        return [self.number]


def closure(held):
    return lambda dp: [held, dp]


def set_byte(held):
    held[57] = 1


class OwnArray(np.ndarray):
    """An array of the user."""


CHANGES = {  # of one element
    "list": (lambda: list(range(100)), set_number),
    "nested list": (lambda: [nested(k) for k in range(100)], set_nested),
    "list of objects": (lambda: [object() for _ in range(100)], replace_object),
    "list of the user's objects": (lambda: [Sample("a", k) for k in range(100)], relabel),
    "list of objects with slots": (lambda: [SlottedSample("a", k) for k in range(100)], relabel),
    "list of objects that refer to their parent": (family, relabel),
    "list of objects with arrays": (lambda: [Sample("a", k) for k in range(100)], move_box),
    "list of labels beside objects": (lambda: [[Path("a"), k] for k in range(100)], relabel_beside_a_path),
    "list of lists of the user's": (lambda: [Samples([k, k]) for k in range(100)], relabel_beside_a_path),
    "list of sets beside objects": (lambda: [[Path("a"), {k}] for k in range(100)], lambda held: held[57][1].add(-1)),
    "dict of the user's objects": (lambda: {k: {"sample": Sample("a", k)} for k in range(100)}, relabel_nested),
    "list of objects of a library": (lambda: [OfLibrary(k) for k in range(100)], relabel),
    "what they hold": (lambda: [OfLibrary(k) for k in range(100)], lambda held: held[57].boxes.append(1)),
    "list of objects of a library with slots": (lambda: [SlotsOfLibrary(k) for k in range(100)], relabel),
    "list of namespaces": (lambda: [types.SimpleNamespace(label=k) for k in range(100)], relabel),
    "list of bytearrays beside objects": (
        lambda: [[Path("a"), bytearray(1)] for _ in range(100)],
        lambda held: held[57][1].append(1),
    ),
    "list of masks beside objects": (
        lambda: [[Path("a"), masked(k)] for k in range(100)],
        lambda held: held[57][1].__setitem__(4, np.ma.masked),
    ),
    "list of arrays of objects": (
        lambda: [[Path("a"), np.array([{"label": k}])] for k in range(100)],
        lambda held: held[57][1][0].update(label=-1),
    ),
    "list of partials": (
        lambda: [functools.partial(by_weight, weights=np.zeros(1)) for _ in range(100)],
        lambda held: held[57].keywords["weights"].fill(1),
    ),
    "list of bound methods": (
        lambda: [Sample("a", k).__eq__ for k in range(100)],
        lambda held: setattr(held[57].__self__, "label", -1),
    ),
    "list of methods of the user": (
        lambda: [Held(k).method for k in range(100)],
        lambda held: setattr(held[57].__self__, "number", -1),
    ),
    "list of closures": (
        lambda: [closure([k]) for k in range(100)],
        lambda held: held[57].__closure__[0].cell_contents.append(1),
    ),
    "list of functions that are exchanged": (
        lambda: [closure([0]) for _ in range(100)],
        lambda held: held.__setitem__(57, lambda dp: dp),
    ),
    "factory of a dict": (
        lambda: collections.defaultdict(closure([0])),
        lambda held: held.default_factory.__closure__[0].cell_contents.append(1),
    ),
    "proxy": (lambda: types.MappingProxyType({k: [k] for k in range(100)}), lambda held: held[57].append(1)),
    "values of a dict": ({k: [k] for k in range(100)}.values, lambda held: next(iter(held)).append(1)),
    "values of a small dict": ({1: [1]}.values, lambda held: next(iter(held)).append(1)),
    "memoryview": (lambda: memoryview(bytearray(100)), set_byte),
    "memoryview of an array": (lambda: memoryview(np.zeros(100, np.uint8)), set_byte),
    "array over a memoryview": (lambda: np.asarray(memoryview(bytearray(100))), set_byte),
    "array over one of the standard library": (lambda: np.asarray(array.array("B", [0] * 100)), set_byte),
    "array of C": (ctypes.c_ubyte * 100, set_byte),
    "tuple": (lambda: tuple(nested(k) for k in range(100)), set_nested),
    "dict": (lambda: {k: nested(k) for k in range(100)}, set_nested),
    "set": (lambda: set(range(100)), exchange_one),
    "deque": (lambda: collections.deque(range(100)), set_number),
    "bytearray": (lambda: bytearray(100), lambda held: held.__setitem__(57, 1)),
    "array of the standard library": (lambda: array.array("d", [0.5] * 100), set_number),
    "array": (lambda: np.zeros(1000), set_number),
    "strided array": (lambda: np.full((100, 100), -1)[::2, 3:50].T, lambda held: np.put(held[3], 5, -2)),
    "list of bytes": (lambda: [b"x" * 100_000] * 100, set_number),
    "array of objects": (lambda: np.array([None, *map(nested, range(99))]), lambda held: held[57].update(label=1000)),
    "masked array": (lambda: np.ma.masked_less(np.arange(100), 7), set_number),
    "its mask": (lambda: np.ma.masked_less(np.arange(100), 7), lambda held: held.mask.__setitem__(57, True)),
    "subclass of an array": (lambda: np.zeros(100).view(OwnArray), set_number),
    "large list": (lambda: [b"x" * 1_000_000] * 100, lambda held: held.__setitem__(0, b"")),
    "one element of a large array": (
        lambda: np.zeros((10**4, 10**3 + 1)).T,
        lambda held: held.__setitem__((57, 57), 1),
    ),
    "last element of a large array": (lambda: np.zeros(3 * 10**7 + 1, np.uint8), lambda held: held.__setitem__(-1, 1)),
    "two elements that are exchanged": (
        lambda: np.arange(10**7),
        lambda held: held.__setitem__([57, 58], held[[58, 57]]),
    ),
    "two rows that are exchanged": (
        lambda: np.arange(10**7).reshape(-1, 1000),
        lambda held: held.__setitem__([57, 58], held[[58, 57]]),
    ),
    "alike rows that are reversed": (
        lambda: np.tile(np.arange(1024), (1 << 12, 1)),
        lambda held: held.__setitem__(slice(None), held[:, ::-1].copy()),
    ),
    "large array with gaps": (lambda: np.zeros(10**7)[::2], lambda held: held.__setitem__(0, 1)),
    "array that is too large": (lambda: np.zeros(300 << 20, np.uint8), lambda held: held.__setitem__(0, 1)),
    "large array": (lambda: np.zeros(10**7), lambda held: np.add(held, 1, out=held)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_one_element_of_what_workers_have_a_copy_of(name):
    make, change = CHANGES[name]
    held = make()
    df = MapData(source(2), functools.partial(by_weight, weights=held))
    before, same = Snapshot([df]), Snapshot([df])
    assert before.difference(same) is None
    change(held)
    assert "weights" in before.difference(Snapshot([df]))


def test_what_is_written_again_with_the_same_values_has_not_changed():
    held = [nested(k) for k in range(100)]
    df = MapData(source(2), functools.partial(by_weight, weights=held))
    before = Snapshot([df])
    held[57] = nested(57)
    assert before.difference(Snapshot([df])) is None


def test_objects_of_others_that_remember_something_have_not_changed():
    """A path keeps its text once somebody has asked for it; a list may hold itself."""
    held = [[Path(f"{k}"), k, Sample("a", k), len, Sample, lambda: 0, OfLibrary(k)] for k in range(100)]
    held[0].append(held)
    df = MapData(source(2), functools.partial(by_weight, weights=held))
    before = Snapshot([df])
    assert [str(path) for path, *_ in held][9] == "9" and str(held[9][6]) == "text"
    assert before.difference(Snapshot([df])) is None


class Unsized:
    """Its length is not known."""

    def __call__(self, dp):
        return dp

    def __len__(self):
        raise ValueError


def test_an_object_whose_length_raises_is_no_change():
    df = MapData(source(2), Unsized())
    assert Snapshot([df]).difference(Snapshot([df])) is None


def test_a_file_in_memory_is_no_change_for_workers_that_are_forked(tmp_path):
    weights = np.memmap(tmp_path / "weights", np.uint8, "w+", shape=8)
    df = MapData(source(2), functools.partial(by_weight, weights=np.asarray(weights)))
    before = Snapshot([df])
    weights[:] = 5
    assert before.difference(Snapshot([df])) is None


def test_a_batch_that_a_function_holds_has_changed():
    (batch,) = next(iter(BatchData(DataFromList([[np.ones((20, 20))]] * 3, shuffle=False), 3)))
    df = MapData(source(2), functools.partial(by_weight, weights=batch))
    before = Snapshot([df])
    batch[:] = 5
    assert "content" in before.difference(Snapshot([df]))


def bytes_in(held):
    return np.frombuffer(held, np.uint8)


def test_an_array_over_a_tensor_has_changed():
    weights = pytest.importorskip("torch").zeros(3).numpy()
    df = MapData(source(2), functools.partial(by_weight, weights=weights))
    before = Snapshot([df])
    weights[:] = 5
    assert "content" in before.difference(Snapshot([df]))


@pytest.mark.parametrize(
    "view", [lambda held: held, lambda held: memoryview(held).cast("B"), bytes_in, lambda _: mmap.mmap(-1, 100)]
)
def test_memory_of_multiprocessing_is_no_change_for_workers_that_are_forked(view):
    shared = (ctypes.c_ubyte * 100).from_buffer(mmap.mmap(-1, 100))
    shared._wrapper = None  # as of `multiprocessing.RawArray`, whose memory would be left behind
    held = view(shared)
    df = MapData(source(2), functools.partial(by_weight, weights=held))
    before = Snapshot([df])
    held[57] = 1
    assert before.difference(Snapshot([df])) is None


@pytest.mark.parametrize("context", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.full)])
def test_memory_that_processes_share_is_no_change_unless_workers_get_a_copy(context):
    weights = np.frombuffer(mmap.mmap(-1, 80))[::-1]
    df = MapData(source(2), functools.partial(by_weight, weights=weights))
    with ParallelData(df, 1, context=context) as df:
        assert numbers(df) == [[0], [0]]
        before = state_of(df).resource
        weights += 7
        assert numbers(df) == [[7], [7]]
        assert (state_of(df).resource is before) == (context == "fork")


def tens_of(dp, counter):
    counter.value += 10
    return [counter.value]


@each_method
def test_workers_of_any_start_method_share_memory_of_multiprocessing(method):
    counter = multiprocessing.get_context(method).Value("q", 0)
    df = MapData(source(2), functools.partial(tens_of, counter=counter))
    with ParallelData(df, 1, context=method) as df:
        assert numbers(df) == [[10], [20]]
        before = state_of(df).resource
        counter.value = 7
        assert numbers(df) == [[17], [27]]
        assert state_of(df).resource is before


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_a_queue_that_the_program_fills_is_no_change(kind):
    queue = getattr(multiprocessing.get_context("fork"), kind)()
    df = MapData(source(2), functools.partial(tens_of, counter=queue))
    before = Snapshot([df])
    queue.put(1)  # starts a thread, which takes it from the buffer
    assert before.difference(Snapshot([df])) is None
    queue._buffer.append(2)  # as if the thread had not come to it yet
    assert before.difference(Snapshot([df])) is None
    queue._buffer.clear()
    queue.close()
    queue.join_thread()


def test_what_a_manager_holds_is_no_change_for_workers_but_for_a_file():
    with multiprocessing.get_context("fork").Manager() as manager:
        held = manager.list()
        df = MapData(source(2), functools.partial(tens_of, counter=held))
        for_workers, for_a_file = Snapshot([df]), Snapshot([df], shared=True)
        held.append(1)
        assert for_workers.difference(Snapshot([df])) is None
        assert "len of" in for_a_file.difference(Snapshot([df], shared=True))


def train(weight):
    with importlib.import_module("torch").no_grad():
        weight += 1


def train_uncounted(weight):
    weight.data.add_(1)  # which torch does not count


TENSORS = {  # of each, how it is made, and what of it changes
    "tensor": (lambda torch: torch.zeros(3), lambda held: held),
    "number": (lambda torch: torch.tensor(1), lambda held: held),
    "numbers that NumPy does not have": (lambda torch: torch.zeros(3, dtype=torch.bfloat16), lambda held: held),
    "complex numbers": (lambda torch: torch.zeros(3, dtype=torch.complex64).conj(), lambda held: held),
    "tensor with gaps": (lambda torch: torch.zeros(8, 8).T[::2, 1:3], lambda held: held),
    "sequence of modules": (
        lambda torch: torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(40)]),
        lambda held: held[37].weight,
    ),
    "module of very many parts": (
        lambda torch: torch.nn.Sequential(
            *[torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(30)]) for _ in range(30)]
        ),
        lambda held: held[29][29].weight,
    ),
    "buffer": (lambda torch: torch.nn.BatchNorm1d(2), lambda held: held.running_var),
    "list of modules": (lambda torch: [torch.nn.Linear(1, 1) for _ in range(100)], lambda held: held[57].weight),
    "names and weights": (lambda torch: {str(k): torch.zeros(2) for k in range(100)}, lambda held: held["57"]),
    "the user's objects with modules": (
        lambda torch: [Sample("a", torch.nn.Sequential(torch.nn.Linear(1, 1))) for _ in range(100)],
        lambda held: held[57].label[0].weight,
    ),
}


@pytest.mark.parametrize("change", [train, train_uncounted])
@pytest.mark.parametrize("name", TENSORS)
def test_weights_of_torch_that_are_trained_in_place(name, change):
    make, weight = TENSORS[name]
    held = make(pytest.importorskip("torch"))
    df = MapData(source(2), functools.partial(by_weight, weights=held))
    before, same = Snapshot([df]), Snapshot([df])
    assert before.difference(same) is None
    change(weight(held))
    assert "weights" in before.difference(Snapshot([df]))


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_a_tensor_that_is_too_large_for_a_checksum_counts_how_often_it_was_changed(dtype):
    torch = pytest.importorskip("torch")
    held = torch.zeros(300 << 20, dtype=getattr(torch, dtype))
    df = MapData(source(2), functools.partial(by_weight, weights=held))
    before, same = Snapshot([df]), Snapshot([df])
    assert before.difference(same) is None
    held[7] = 1
    assert "content" in before.difference(Snapshot([df]))


def test_a_sparse_tensor_counts_how_often_it_was_changed():
    torch = pytest.importorskip("torch")
    held = torch.eye(3).to_sparse()
    df = MapData(source(2), functools.partial(by_weight, weights=held))
    before, same = Snapshot([df]), Snapshot([df])
    assert before.difference(same) is None
    held *= 2
    assert "content" in before.difference(Snapshot([df]))


def test_an_unfinished_module_and_a_tensor_without_data_are_no_change():
    torch = pytest.importorskip("torch")
    unfinished = torch.nn.Linear.__new__(torch.nn.Linear)
    df = MapData(source(2), functools.partial(by_weight, weights=[unfinished, torch.zeros(3, device="meta")]))
    assert Snapshot([df]).difference(Snapshot([df])) is None


def test_the_shape_of_a_tensor_is_part_of_it():
    held = pytest.importorskip("torch").zeros(2, 2)
    df = MapData(source(2), functools.partial(by_weight, weights=held))
    before = Snapshot([df])
    held.unsqueeze_(1)
    assert "content" in before.difference(Snapshot([df]))


def test_a_tensor_of_shared_memory_is_no_change_for_workers_that_are_forked():
    held = pytest.importorskip("torch").zeros(4).share_memory_()
    df = MapData(source(2), functools.partial(by_weight, weights=held))
    before, sent = Snapshot([df]), Snapshot([df], imported=True)
    held += 1
    assert before.difference(Snapshot([df])) is None
    assert "content" in sent.difference(Snapshot([df], imported=True))


class Scored(ProxyDataFlow):
    """A user's node with a network."""

    def __init__(self, ds, net):
        super().__init__(ds)
        self.net = net

    def __iter__(self):
        for _ in self.ds:
            yield [self.net.weight.item()]


@pytest.mark.parametrize(
    "make",
    [
        lambda net: MultiProcessMapData(source(1), 1, lambda dp: [net.weight.item()], strict=True),
        lambda net: ParallelData(Scored(source(1), net), 1),
    ],
    ids=["function", "node"],
)
def test_workers_have_the_weights_of_a_network_that_is_trained_between_passes(make):
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad(), make(net) as df:
        for weight in (1, 2, 3):
            net.weight.fill_(weight)
            assert numbers(df) == [[weight]]


def test_weights_of_a_mixture():
    mix = MixData([source(10), source(10, first=50)], [1, 0])
    with ParallelData(mix, 2) as df:
        assert df[:2] == [[0], [1]]
        mix.weights = [0, 1]
        assert df[:2] == [[50], [51]]
        steps = iter(df)
        assert [next(steps), next(steps)] == [[50], [51]]


def test_a_node_above_reads_the_changed_flow():
    data = [[k] for k in range(600)]
    with ParallelData(DataFromList(data, shuffle=False), 2) as df:
        above = BatchData(df, 300)
        assert [batch[0][-1] for batch in above] == [299, 599]
        data += [[k] for k in range(600, 900)]
        assert [batch[0][-1] for batch in above] == [299, 599, 899]


def test_an_unchanged_flow_keeps_its_workers():
    func = Scale()
    with ParallelData(MapData(source(4), func), 2) as df:
        list(df)
        before = state_of(df).resource
        for _ in range(3):
            list(df)
        assert state_of(df).resource is before


class Annotated(Numbers):
    """Its annotations are made when they are first read, and remembered in the class."""

    more: int


def test_annotations_that_are_read_are_no_change():
    with ParallelData(Annotated(2), 1, strict=True) as df:
        assert numbers(df) == [[0], [1]]
        before = state_of(df).resource
        assert Annotated.__annotations__
        assert numbers(df) == [[0], [1]]
        assert state_of(df).resource is before


@pytest.mark.parametrize("name", ["timeout", "max_restarts", "strict", "num_workers", "worker_init"])
def test_an_option_cannot_be_changed(name):
    df = ParallelData(source(4), 1)
    with pytest.raises(AttributeError, match=f"{name} of ParallelData cannot be changed"):
        setattr(df, name, 5)
    assert list(MapData(ParallelData(source(2), 0), list)) == [[0], [1]]


@pytest.mark.parametrize("make", [lambda ds: ParallelData(ds, 1), lambda ds: MultiProcessMapData(ds, 1, list)])
def test_what_is_remembered_of_a_flow_does_not_keep_it_alive(make):
    df = make(source(4))
    next(iter(df))
    engine, gone = state_of(df).resource, weakref.ref(df)
    gc.disable()
    try:
        del df
        assert gone() is None and engine.session.closed
    finally:
        gc.enable()


def test_a_failed_flow_stays_failed_even_if_it_changes():
    batches = BatchData(MapData(source(4), lambda dp: 1 / 0), 2)
    with ParallelData(batches, 2) as df:
        with pytest.raises(ZeroDivisionError):
            list(df)
        batches.batch_size = 4
        with pytest.raises(Exception, match="failed before"):
            list(df)


def test_a_flow_that_can_no_longer_be_shared_is_refused():
    with ParallelData(source(4), 2) as df:
        list(df)
        df.ds = DataFromGenerator(lambda: [[1]])
        with pytest.raises(NotAddressable, match="DataFromGenerator cannot be addressed"):
            list(df)


def test_assigning_ds_does_not_reach_the_flows_of_several_threads():
    with MultiThreadRunner(lambda: source(3), 2, 2, strict=True) as df:
        assert len(list(df)) == 3
        df.ds = source(5)
        with pytest.raises(ValueError, match="flows that get_df has made"):
            list(df)
