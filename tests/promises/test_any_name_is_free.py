"""Any name is free for the attributes and methods of users' own nodes."""

import itertools

import pytest

import dataflow
from dataflow import (
    BatchData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    FixedSizeData,
    MapData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiThreadRunner,
    ProxyDataFlow,
    RandomMixData,
    ResumableData,
    RNGDataFlow,
)
from tests.support.every_node import EVERY_NODE, minimal
from tests.support.products import covering, only

NAMES = """
    action address addressable allocate anchors annotations arena args array at attributes augment aug axis
    background backend batch batch_size batches begin bins bounds box boxes bucket buckets buffer bytes cache cached
    call callback categories channel channels check chunk chunks classes cleanup close codec collate columns
    compared components config context continues copy count counts crop cursor data dataset datasets decode decoder
    depth description dims directory done draws dtype encode encoder end endless engine entries entropy epoch epochs
    error errors examples executor extra failures fields file filename files filter first flags flow flows fn folder
    format frames func function generator grain group groups handle handles headers height image images index
    indexed indexes indices info init input inputs instance items iterator job jobs joins key keys kernel kind label
    labels last length level life limit lines list load loader lock log logger longest map mapping mask masks
    maximum mean memory message meta metadata minimum mode model name names next node num num_proc num_workers
    objects offset offsets open options order original output outputs own_rank own_root owner parameters parse paths
    path pid pipe place pool position prefetch prepare process processes progress queue random range rank read
    reader ready records remote_inputs repeat report reproducible reset root rows run run_pass sample samples scale
    schedule seed self_test session shape shapes shard shuffle size socket source split stack stands_for start state
    state_dict statistics std step steps stop stream strict subset table target task tasks thread threads timeout
    title tolerance trace train transform unaddressable update url value values version video wait width window word
    words worker workers
""".split()  # noqa: SIM905 (a list of words)
INPUT = {"ds"}  # what ProxyDataFlow itself promises
ALL = [name for word in NAMES for name in (word, f"_{word}")]


def raise_if_called(self):
    raise AssertionError("the package called a method of the user's")


def takes_more(self, *arguments):
    raise AssertionError("the package called a method of the user's")


def make_node(kind, how, names):
    """A node as users write them: `kind` says from which class, `how` what the names are."""

    def __init__(self):
        if kind == "transform":
            ProxyDataFlow.__init__(self, DataFromList([[1], [2]], shuffle=False))
        if how == "attribute":
            for name in names:
                setattr(self, name, ["a", "b"])

    def __iter__(self):
        for k, dp in enumerate(self.ds if kind == "transform" else ([1], [2])):
            if kind == "rng":
                self.rng.integers(5)
            if how == "attribute":
                assert all(vars(self)[name] == ["a", "b"] for name in names), "an attribute was overwritten"
            if how == "class attribute":
                assert all(getattr(self, name) == 224 for name in values), "a class attribute was overwritten"
            assert dp == [k + 1]
            yield dp

    values = dict.fromkeys(set(names) - {"reset_state", *(INPUT if kind == "transform" else ())}, 224)
    # A method `close` without parameters is the documented way to release what a node holds.
    methods = {name: takes_more if name == "close" else raise_if_called for name in names} if how == "method" else {}
    body = values if how == "class attribute" else methods
    bases = {"source": DataFlow, "transform": ProxyDataFlow, "rng": RNGDataFlow}
    body = {**body, "__init__": __init__, "__iter__": __iter__, "__len__": lambda self: 2}
    return type("Mine", (bases[kind],), body)()


POSITIONS = {
    "alone": (lambda df: df, [[1], [2]]),
    "below a map": (lambda df: MapData(df, lambda dp: dp), [[1], [2]]),
    "below a batch": (lambda df: BatchData(df, 2, use_list=True), [[[1, 2]]]),
    "in a mixture": (lambda df: RandomMixData([df, DataFromList([[3]])]), [[1], [2], [3]]),
    "below a fixed size": (lambda df: FixedSizeData(df, 2, keep_state=False), [[1], [2]]),
    "in a thread": (lambda df: MultiThreadRunner(lambda: df, 5, 1, strict=True), [[1], [2]]),
    "in a process": (lambda df: MultiProcessRunner(df, 5, 1, strict=True), [[1], [2]]),
    "below a parallel map": (lambda df: MultiProcessMapData(df, 1, lambda dp: dp, strict=True), [[1], [2]]),
    "in a spawned process": (lambda df: MultiProcessRunner(df, 5, 1, strict=True, context="spawn"), [[1], [2]]),
}
KINDS = ("source", "transform", "rng")
SPAWNED = "in a spawned process"


def check_names(kind, how, names, position):
    make, expected = POSITIONS[position]
    for outermost in (lambda df: df, ResumableData):
        with outermost(make(make_node(kind, how, names))) as df:
            df.reset_state()
            for _ in range(2):
                found = list(df)
                assert (sorted(found) if position == "in a mixture" else found) == expected
            assert len(df) == len(expected)
            if isinstance(df, ResumableData):
                df.load_state_dict(df.state_dict())
                assert len(list(df)) in {0, len(expected)}


WAYS = ("attribute", "class attribute", "method")


@pytest.mark.parametrize(
    ("how", "kind", "position"),
    [
        *covering(WAYS, KINDS, [position for position in POSITIONS if position != SPAWNED]),
        *only([("attribute", "transform", SPAWNED)], itertools.product(WAYS, KINDS, [SPAWNED])),
    ],
)
def test_two_hundred_names_are_free_for_a_users_node(how, kind, position):
    assert len(NAMES) >= 200
    check_names(kind, how, [*ALL, *(() if kind == "transform" else INPUT)], position)


@pytest.mark.full
@pytest.mark.parametrize("name", ALL)
def test_each_name_alone_is_free(name):
    """In each way, of each kind of node, and in each position without processes; not in every product of these."""
    positions = [position for position in POSITIONS if "process" not in position and "parallel" not in position]
    ways = itertools.cycle(itertools.product(KINDS, WAYS))
    for (kind, how), position in zip(ways, [*positions, *positions[:3]], strict=False):
        check_names(kind, how, [name], position)


@pytest.mark.parametrize("base", [DataFlow, ProxyDataFlow, RNGDataFlow])
def test_what_a_node_inherits_is_public_or_has_the_prefix(base):
    public = {"addressable", "close", "failures", "get_data", "report", "reset_state", "size", "statistics", "trace"}
    own = {DataFlow: set(), ProxyDataFlow: {"ds"}, RNGDataFlow: {"rng"}}[base]
    others = [name for name in dir(base) if not (name.startswith("__") and name.endswith("__"))]
    assert {name for name in others if not name.startswith("_df_")} <= public | own | {"_repr_html_"}


@pytest.mark.parametrize("name", EVERY_NODE)
def test_completion_shows_what_a_user_may_call(name, tmp_path):
    df = minimal(name, tmp_path)
    public = [shown for shown in dir(df) if not shown.startswith("_")]
    assert len(public) <= (30 if hasattr(df, "num_workers") else 25), public


def flow_classes():
    found = [getattr(dataflow, name) for name in dataflow.__all__]
    return [cls for cls in found if isinstance(cls, type) and issubclass(cls, DataFlow)]


@pytest.mark.parametrize("cls", flow_classes())
def test_so_does_every_class_of_ours(cls):
    """Its instances have their parameters in addition."""
    public = [shown for shown in dir(cls) if not shown.startswith("_")]
    assert len(public) <= 15, public


def test_a_close_of_the_users_own_closes_what_the_node_holds():
    class Held(ProxyDataFlow):
        closed = 0

        def __iter__(self):
            yield from self.ds

        def close(self):
            self.closed += 1

    held = Held(DataFromList([[1]]))
    with MapData(BatchData(held, 1), lambda dp: dp) as df:
        list(df)
        below = iter(held.ds)
    assert held.closed == 1
    with pytest.raises(dataflow.DataFlowTerminated):
        next(below)  # closed although the user's method does not pass it on


@pytest.mark.parametrize("misuse", [list, len, lambda df: BatchData(df, 1)])
def test_a_forgotten_call_of_the_base_class_says_so(misuse):
    class Forgets(ProxyDataFlow):
        def __init__(self, ds):
            pass

        def __iter__(self):
            yield from self.ds

    with pytest.raises(AttributeError, match=r"Forgets has no input: its __init__ must call super\(\).__init__\(ds\)"):
        misuse(Forgets(DataFromList([[1]])))


def test_a_node_with_an_input_of_another_name_needs_no_ds():
    class Renamed(ProxyDataFlow):
        def __init__(self, flow):
            self.flow = flow

        def __iter__(self):
            yield from self.flow

        def __len__(self):
            return len(self.flow)

    assert list(MapData(Renamed(DataFromList([[1]])), lambda dp: dp)) == [[1]]
    assert list(DataFromGenerator(lambda: Renamed(DataFromList([[1]])))) == [[1]]
