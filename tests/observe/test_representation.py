"""`repr(df)` shows the chain: its nodes, their parameters and workers; it never raises, and it reads no data."""

import collections
import enum
import functools
import html
import multiprocessing
import pathlib
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import dataflow
from dataflow import (
    BatchData,
    ConcatData,
    DataFlow,
    DataFromIterable,
    DataFromList,
    FakeData,
    JoinData,
    MapData,
    MapDataComponent,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    ProxyDataFlow,
    RandomChooseData,
    RayMapData,
    RayRunner,
    RemoteDataZMQ,
    RNGDataFlow,
    SelectComponent,
    ShuffleData,
)
from dataflow.observe import representation
from dataflow.protocol.fingerprints import describe, describe_flow
from tests.support.every_node import EVERY_NODE, decode, lmdb_file, minimal, with_rng


class Augment:
    def __call__(self, dp):
        return dp


def numbers(n=4):
    return DataFromList([[k] for k in range(n)], shuffle=False)


# -- typical chains ----------------------------------------------------------------------------------------------------


def runner_chain():
    df = MapData(DataFromList([[k] for k in range(60_000)]), decode)
    return BatchData(MultiProcessRunnerZMQ(df, num_proc=4, strict=True), 32)


def map_chain():
    df = SelectComponent(DataFromList([[k] for k in range(100)], shuffle=True, seed=7), [0])
    return BatchData(MultiProcessMapData(df, 2, Augment(), strict=True, ordered=False, context="spawn"), 8, True)


def joined_chain():
    images = MapData(numbers(), functools.partial(with_rng, rng=None))
    labels = ConcatData([numbers(2), BatchData(FakeData([[2, 3], []], 5), 5)])
    return ShuffleData(JoinData([images, labels]))


def nested_runners():
    inner = MultiProcessRunner(MapDataComponent(numbers(), decode, index=1), 50, 2)
    return MultiThreadRunner(lambda: JoinData([numbers(), inner]), 10, 1)


def ray_chain():
    df = RayMapData(numbers(), 2, decode, strict=True, actor_options={"num_cpus": 2, "resources": {"gpu": 1}})
    return RayRunner(MultiThreadMapData(df, 0, decode, strict=True), 3, strict=True)


class Scaled(ProxyDataFlow):
    def __init__(self, ds, factor, offset=0, *, func=None, table=None):
        super().__init__(ds)
        self.factor = factor
        self.offset = offset
        self.func = func
        self.table = table
        self._cache = {}

    def __iter__(self):
        for dp in self.ds:
            yield [self.factor * dp[0] + self.offset]


def users_chain():
    below = numbers()
    return RandomChooseData(
        [(Scaled(below, 2.5, func=decode, table=np.zeros(5)), 0.75), (Scaled(below, 1, offset=3), 0.25)]
    )


CHAINS = {
    runner_chain: """\
BatchData(batch_size=32)                        length 1,875
MultiProcessRunnerZMQ(num_proc=4, strict=True)  4 processes over ZeroMQ, strict, ordered
  MapData(func=decode)
  DataFromList([…] of 60,000, shuffle=True)""",
    map_chain: """\
BatchData(batch_size=8, remainder=True)  length 13
MultiProcessMapData(map_func=<Augment>)  2 processes over ZeroMQ (spawn), strict, unordered
SelectComponent(idxs=[0])
DataFromList([…] of 100, shuffle=True, seed=7)""",
    joined_chain: """\
ShuffleData()
JoinData()                     length 3
├─ MapData(func=partial(with_rng))
│  DataFromList([…] of 4, shuffle=False)
└─ ConcatData()                length 3
   ├─ DataFromList([…] of 2, shuffle=False)
   └─ BatchData(batch_size=5)  length 1
      FakeData([(2, 3), ()], size=5)""",
    nested_runners: """\
MultiThreadRunner(num_thread=1)      1 thread, default mode
  JoinData()
  ├─ DataFromList([…] of 4, shuffle=False)
  └─ MultiProcessRunner(num_proc=2)  2 processes over pipes, default mode
       MapDataComponent(func=decode, index=1)
       DataFromList([…] of 4, shuffle=False)""",
    ray_chain: """\
RayRunner(num_proc=3, strict=True)                                     3 Ray actors, strict, ordered
  MultiThreadMapData(num_thread=0, map_func=decode, strict=True)       no workers, strict, ordered
  RayMapData(map_func=decode, actor_options={'num_cpus'… {'gpu': 1}})  2 Ray actors, strict, ordered
  DataFromList([…] of 4, shuffle=False)""",
    users_chain: """\
RandomChooseData()  probabilities 0.75, 0.25
├─ Scaled(factor=2.5, func=decode)
│  DataFromList([…] of 4, shuffle=False)
└─ Scaled(factor=1, offset=3)
   DataFromList([…] of 4, shuffle=False)  the same node again""",
}


@pytest.mark.parametrize("make", CHAINS, ids=lambda make: make.__name__)
def test_a_typical_chain_is_shown_like_this(make):
    df = make()
    assert repr(df) == str(df) == f"{df}" == CHAINS[make]


def test_no_length_is_asked_of_the_users_code_or_of_a_file():
    class Counts(ProxyDataFlow):
        def __iter__(self):
            yield from self.ds

        def __len__(self):
            assert not built, "the length was asked for"
            return 4

    built = False
    guarded = DataFromIterable([[1]])
    guarded.iterable = NoCopy()
    chains = [BatchData(MapData(ds, decode), 2) for ds in (Counts(numbers()), numbers(), numbers())]
    chains[1].ds.ds = guarded
    chains[2].ds.ds = dataflow.LMDBData.__new__(dataflow.LMDBData)
    built = True
    assert not any("length" in repr(df) for df in chains)


def test_shared_nodes_take_no_time():
    df = numbers()
    for _ in range(60):  # a length would ask 2**60 nodes
        df = JoinData([df, df])
    assert "length" not in repr(df)


def test_a_notebook_shows_a_table():
    df = BatchData(MultiProcessRunnerZMQ(MapData(numbers(10), lambda dp: dp), num_proc=4, strict=True), 5)
    rows = re.findall("<tr>(.*?)</tr>", df._repr_html_())
    cells = [[html.unescape(re.sub("<.*?>", "", cell)) for cell in re.findall("<td.*?</td>", row)] for row in rows[1:]]
    assert [cell[1:] for cell in cells] == [
        ["2", ""],
        ["10", "4 processes over ZeroMQ, strict, ordered"],
        ["10", ""],
        ["10", ""],
    ]
    assert [cell[0] for cell in cells][1] == "MultiProcessRunnerZMQ(num_proc=4, strict=True)"
    assert "<lambda> at test_representation.py:" in cells[2][0]


def square(dp):
    return [dp[0] ** 2]


def test_the_tutorial_shows_what_is_printed():
    tutorial = pathlib.Path(__file__).parents[2] / "docs" / "tutorial"
    first = BatchData(MapData(DataFromList([[k, "odd"] for k in range(10)]), decode), 4)
    runner = BatchData(dataflow.ParallelData(MapData(numbers(10), square), 4), 5)
    for page, df in (("1-first-chain.md", first), ("3-parallel.md", runner)):
        assert f"```text\n{df}\n```" in (tutorial / page).read_text("utf-8")


# -- all classes -------------------------------------------------------------------------------------------------------


FIRST_LINES = {
    "DataFromAsyncIterable": "DataFromAsyncIterable(arriving)",
    "DataFromGenerator": "DataFromGenerator(fill)",
    "DataFromIterable": "DataFromIterable([…] of 1)",
    "DataFromQueue": "DataFromQueue(<Queue>)",
    "FakeData": "FakeData([(2,)], size=3)",
    "AsyncMapData": "AsyncMapData(func=fetch)",
    "BatchDataByShape": "BatchDataByShape(batch_size=2, idx=0)  length 2",
    "BucketBatchData": "BucketBatchData(batch_size=2, key=decode, boundaries=[2])",
    "FetchData": "FetchData(key='path', retries=1)",
    "FilterData": "FilterData(predicate=bool)",
    "FixedSizeData": "FixedSizeData(size=2)  length 2",
    "MixData": "MixData(weights=[1.0])",
    "PackData": "PackData(size=3, lengths=array(int64, (4,)))  length 2",
    "PadBatchData": "PadBatchData(batch_size=2)  length 2",
    "PrefetchToDevice": "PrefetchToDevice(device='cpu')",
    "RandomChooseData": "RandomChooseData()",
    "ShardData": "ShardData(rank=0, world_size=2)  length 2",
    "TestDataSpeed": "TestDataSpeed(size=10)",
    "BackgroundData": "BackgroundData(fill, dtypes=[float32], shapes=[(3,)], n_proc=2)  2 processes, ordered",
    "LMDBDataDecoder": "LMDBDataDecoder(decoder=with_rng)",
    "TableData": "TableData({'x': [1]}, shuffle=False)",
    "RemoteDataZMQ": "RemoteDataZMQ('tcp://127.0.0.1:*')",
    "MultiProcessMapAndBatchData": (
        "MultiProcessMapAndBatchData(map_func=decode, batch_size=2)  2 processes over ZeroMQ, default mode, length 2"
    ),
    "MultiThreadRunner": "MultiThreadRunner(num_thread=2)  2 threads, default mode",
}


def test_a_map_and_its_batches_are_one_node():
    df = MultiProcessMapAndBatchData(numbers(), 2, decode, 2)
    assert repr(df).splitlines() == [
        "MultiProcessMapAndBatchData(map_func=decode, batch_size=2)  2 processes over ZeroMQ, default mode, length 2",
        "DataFromList([…] of 4, shuffle=False)",
    ]


def test_the_table_has_every_public_node():
    public = {name: getattr(dataflow, name) for name in dataflow.__all__}
    nodes = {name for name, cls in public.items() if isinstance(cls, type) and issubclass(cls, DataFlow)}
    assert nodes == set(EVERY_NODE)


@pytest.mark.parametrize("name", EVERY_NODE)
def test_every_public_node_is_shown_by_name(name, tmp_path):
    df = minimal(name, tmp_path)
    first, *_ = repr(df).splitlines()
    assert first.startswith(f"{getattr(dataflow, name).__name__}(")
    assert "0x" not in repr(df).replace(str(tmp_path), "")
    assert "not initialised" not in first
    assert first == FIRST_LINES.get(name, first)


@pytest.mark.parametrize("name", EVERY_NODE)
def test_a_node_before_its_init_is_shown(name):
    cls = getattr(dataflow, name)
    df = cls.__new__(cls)
    assert repr(df).startswith(f"{cls.__name__}(") and df._repr_html_().startswith("<table")


def test_files_are_shown_by_path(tmp_path):
    path = lmdb_file(tmp_path)
    assert repr(dataflow.LMDBData(path)).startswith("LMDBData('")
    assert repr(dataflow.LMDBSerializer.load(path)).startswith("LMDBRecords('")


# -- values ------------------------------------------------------------------------------------------------------------


def nested():
    return lambda dp: dp


class Raises:
    def __repr__(self):
        raise RuntimeError("no text")


class NoCopy:
    """Data that must not be read or measured."""

    def fail(self, *args):
        raise AssertionError("the data were read")

    __iter__ = __len__ = __getitem__ = __next__ = __repr__ = __str__ = fail
    __bool__ = __eq__ = __getattr__ = __format__ = fail
    __hash__ = None


class LazyList(list):
    def fail(self, *args):
        raise AssertionError("the data were read")

    __iter__ = __len__ = __getitem__ = __repr__ = __bool__ = __eq__ = __contains__ = fail
    __hash__ = None


class Lies:
    @property
    def __class__(self):
        raise AssertionError("the class was asked for")


class Mode(enum.IntEnum):
    TRAIN = 1


class Whole(int):
    pass


def endless_partial():
    found = functools.partial(decode)
    found.__setstate__((found, (), {}, {}))
    return found


class WithText:
    def __repr__(self):
        return "WithText(1)\nand more at 0x7f00"


def one_of(value):
    """The text of a value, as a parameter."""
    df = MapDataComponent(numbers(), decode)
    df.index = value
    return repr(df).splitlines()[0].removeprefix("MapDataComponent(func=decode, index=").removesuffix(")")


def values():
    """Values and their texts. A function: objects that other tests may find must not stay."""
    return [
        (decode, "decode"),
        (nested, "nested"),
        (len, "len"),
        (str.upper, "str.upper"),
        (np.sin, "sin"),
        (int, "int"),
        (Augment, "Augment"),
        (Augment(), "<Augment>"),
        (Augment().__call__, "Augment.__call__"),
        (functools.partial(decode, [1]), "partial(decode)"),
        (functools.partial(functools.partial(Augment(), 1), 2), "partial(<Augment>)"),
        (functools.lru_cache(decode), "decode"),
        (np.zeros((3, 4), np.float32), "array(float32, (3, 4))"),
        (np.zeros(2, [("a", int), ("b", object)]), "array([('a', '<i8'), ('b', 'O')], (2,))"),
        (np.float32(0.1), "0.1"),
        (np.dtype("f4"), "'float32'"),
        ([1, 2.5, "a"], "[1, 2.5, 'a']"),
        ((1,), "(1,)"),
        ([], "[]"),
        (set(), "set()"),
        ({1, 2}, "{1, 2}"),
        ([[1, 2], [[3]]], "[[1, 2], [[…]]]"),
        (list(range(60_000)), "[…] of 60,000"),
        (tuple(range(60_000)), "(…) of 60,000"),
        (dict.fromkeys(range(10)), "{…} of 10"),
        (collections.OrderedDict(a=1), "{'a': 1}"),
        (collections.deque([1]), "[1]"),
        (
            {"a": 1, "password": 2, "more": {"token": "x"}},
            "{'a': 1, 'password': <hidden>, 'more': {'token': <hidden>}}",
        ),
        (range(10), "range(0, 10)"),
        (..., "Ellipsis"),
        ("x" * 100, f"'{'x' * 28}…{'x' * 29}'"),
        ("a\nb\x1b[1m", r"'a\nb\x1b[1m'"),
        (10**5000, "<int>"),
        (Raises(), "<Raises>"),
        ([Raises()], "[<Raises>]"),
        (NoCopy(), "<NoCopy>"),
        (LazyList([1, 2, 3]), "<LazyList>"),
        (Lies(), "<Lies>"),
        (object(), "<object>"),
        (WithText(), "WithText(1)"),
        (Mode.TRAIN, "Mode.TRAIN"),
        (Whole(3), "3"),
        (endless_partial(), "partial(partial(partial(…)))"),
        (numbers(), "DataFromList(…)"),
        ((k for k in "abc"), "<generator values.<locals>.<genexpr>>"),
        (pathlib.PurePosixPath("a/b"), "PurePosixPath('a/b')"),
        ("https://me:pass@host/file?token=abc#x", "'https://host/file'"),
        ("host=a password=abc", "'host=a password=<hidden>'"),
        (b"s3://bucket/file?key=abc", "b's3://bucket/file'"),
    ]


@pytest.mark.parametrize("k", range(len(values())), ids=[text for _, text in values()])
def test_a_value_is_shown_in_short(k):  # by number: pytest would look into the values
    value, text = values()[k]
    assert one_of(value) == text


def test_a_lambda_is_shown_by_file_and_line():
    line = nested.__code__.co_firstlineno + 1
    assert one_of(nested()) == f"<lambda> at test_representation.py:{line}"


def test_values_that_contain_themselves_end():
    endless: list[Any] = [1]
    endless.append(endless)
    assert one_of(endless) == "[1, [1, […]]]"


def test_data_are_neither_read_nor_measured():
    class Items(NoCopy):
        pass

    data = DataFromList.__new__(DataFromList)
    data.lst, data.shuffle = Items(), True
    assert repr(data) == "DataFromList(<Items>, shuffle=True)"
    read = []

    def datapoints():
        read.append(1)
        yield [1]

    assert repr(DataFromIterable(datapoints())).endswith(".<locals>.datapoints>)")
    assert not read


def test_a_packed_list_is_shown_by_its_length():
    assert repr(DataFromList([[1], [2]], packed=True)) == "DataFromList([…] of 2, shuffle=True, packed=True)"


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_context_is_shown_by_its_start_method(context):
    for chosen in (context, multiprocessing.get_context(context)):
        df = MultiProcessRunner(numbers(), 5, 1, context=chosen)
        assert f"num_proc=1, context='{context}')  1 process over pipes ({context})" in repr(df)


@pytest.mark.slow
def test_the_default_start_method_is_left_open():
    code = (
        "import multiprocessing, multiprocessing.context\n"
        "from dataflow import *\n"
        "df = MultiProcessRunner(DataFromList([[1]]), 5, 1, context=multiprocessing.context._default_context)\n"
        "assert '1 process over pipes, default' in repr(df)\n"
        "assert '1 process over ZeroMQ, default' in repr(MultiProcessRunnerZMQ(DataFromList([[1]])))\n"
        "multiprocessing.set_start_method('spawn')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_secrets_are_left_out():
    df = RemoteDataZMQ("tcp://127.0.0.1:5555", curve="/home/me/secret")
    assert repr(df) == "RemoteDataZMQ('tcp://127.0.0.1:5555', curve=<hidden>)"
    names = "token hf_token accessToken PASSWORD db_passwd api_key apiKey client_secret credentials AWS_ACCESS_KEY_ID"
    for name in names.split():
        assert "abc" not in repr(with_attributes({name: "abc"})), name
    for name in ("num_tokens", "max_tokens", "token_count", "key", "keys", "passes", "tokenizer", "author"):
        assert f"{name}=7" in repr(with_attributes({name: 7})), name


# -- users' nodes ------------------------------------------------------------------------------------------------------


class Mine(DataFlow):
    def __iter__(self):
        yield [1]


def with_attributes(attributes):
    df = Mine()
    vars(df).update(attributes)
    return df


def test_a_users_node_shows_five_plain_attributes():
    own = {"a": 1, "_b": 2, "c": "x", "d": [1], "e": decode, "f": None, "g": Raises(), "h": 2.5, "i": True, "j": 3}
    assert repr(with_attributes(own)) == "Mine(a=1, c='x', e=decode, h=2.5, i=True)"


NAMES = """
    ds inputs data repr name kind text num_workers df_lists lst iterable strict shuffle probabilities dataflows
    statistics failures close size reset_state seed func
""".split()  # noqa: SIM905 (a list of words)


class LikesAny:
    """Something whose attributes are there, whatever they are called."""

    def __getattr__(self, name):
        raise AssertionError(f"{name} was asked for")


@pytest.mark.parametrize("base", [DataFlow, ProxyDataFlow, RNGDataFlow, MapData, BatchData, JoinData, DataFromList])
@pytest.mark.parametrize("make_value", [lambda: 7, str, list, NoCopy, lambda: LazyList([1]), Raises, Lies, LikesAny])
def test_any_name_may_hold_any_value(base, make_value):
    value = make_value()

    class Own(base):
        def __init__(self):
            pass

        def __iter__(self):
            yield [1]

    class Inherited(base):
        pass

    for cls in (Own, Inherited):
        for name in NAMES:
            df = cls.__new__(cls)
            vars(df)[name] = value
            assert repr(df).splitlines()[0].startswith(f"{cls.__name__}(")
        df = cls.__new__(cls)
        vars(df).update(dict.fromkeys([*NAMES, "two words", "", 3], value))
        assert repr(df).splitlines()[0].startswith(f"{cls.__name__}(")


def test_a_forgotten_call_of_the_base_class_is_no_error():
    class Forgets(ProxyDataFlow):
        def __init__(self, ds, factor):
            self.factor = factor

        def __iter__(self):
            yield from self.ds

    class Inherits(BatchData):
        def __init__(self, ds):
            pass

    assert repr(Forgets(numbers(), 3)) == "Forgets(factor=3)"
    assert repr(Inherits(numbers())) == "Inherits()  not initialised"


def test_a_node_without_an_init_of_its_own_shows_its_attributes():
    class Counts(ProxyDataFlow):
        def __iter__(self):
            yield from self.ds

    class Batches(BatchData):
        pass

    class Wraps(MapData):
        def __init__(self, *args, extra="x", **more):
            super().__init__(*args, **more)
            self.extra = extra
            self.num_seen = 3

    df = Counts(numbers())
    df.num_seen = 3
    assert repr(df).splitlines()[0] == "Counts(num_seen=3)"
    assert (
        repr(Batches(numbers(), 2, use_list=True)).splitlines()[0] == "Batches(batch_size=2, use_list=True)  length 2"
    )
    assert repr(Wraps(numbers(), decode, max_failures=3)).splitlines()[0] == (
        "Wraps(func=decode, max_failures=3, num_seen=3)"
    )


def test_an_init_without_a_signature_is_no_error():
    class Odd(DataFlow):
        __init__ = functools.partial(print, end="")

        def __iter__(self):
            yield [1]

    Odd.__init__.__signature__ = 3
    df = Odd.__new__(Odd)
    df.n = 2
    assert repr(df) == "Odd(n=2)"


def test_inputs_of_any_name_are_found():
    class Switch(DataFlow):
        def __init__(self, flows, mode):
            self.flows = flows
            self.mode = mode

        def __iter__(self):
            yield from self.flows["a"]

    assert repr(Switch({"a": numbers(1), "b": numbers(2)}, "x")) == (
        "Switch(mode='x')\n├─ DataFromList([…] of 1, shuffle=False)\n└─ DataFromList([…] of 2, shuffle=False)"
    )


def test_a_repr_of_the_users_own_is_respected():
    class Named(ProxyDataFlow):
        def __iter__(self):
            yield from self.ds

        def __repr__(self):
            return f"named {super().__repr__()}"

    @dataclass(eq=False)
    class Fields(DataFlow):
        ds: DataFlow
        n: int = 3

        def __iter__(self):
            yield from self.ds

    Fields.__qualname__ = "Fields"

    class Broken(Mine):
        def __repr__(self):
            return 5

    df = Named(numbers())
    assert repr(MapData(df, decode)) == "MapData(func=decode)\nnamed Named()\nDataFromList([…] of 4, shuffle=False)"
    assert repr(df) == "named Named()\nDataFromList([…] of 4, shuffle=False)"
    assert repr(MapData(Broken(), decode)) == "MapData(func=decode)\n<Broken>"
    fields = "Fields(ds=DataFromList([…] of 4, shuffle=False), n=3)"
    assert repr(MapData(Fields(numbers()), decode)).splitlines()[1].endswith(fields)


def test_nodes_that_show_their_input_cost_no_more_than_their_number():
    calls = 0

    class Shows(ProxyDataFlow):
        def __repr__(self):
            nonlocal calls
            calls += 1
            return f"Shows({self.ds!r})"

    df = numbers()
    for _ in range(20):
        df = MapData(Shows(df), decode)
    assert repr(df).count("\n") == 40
    assert calls <= 40


# -- shapes of chains --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrap",
    [
        lambda df: MapData(df, decode),
        lambda df: Scaled(df, 2),
        lambda df: JoinData([df]),
    ],
)
def test_a_deep_chain_is_shown_whole(wrap):
    df = numbers()
    for _ in range(2000):
        df = wrap(df)
    assert repr(df).count("\n") == 2000


@pytest.mark.parametrize(
    "wrap",
    [lambda df: MultiProcessRunner(df, 5, 1), lambda df: JoinData([numbers(), df]), lambda df: JoinData([df, df])],
)
def test_deep_nesting_is_cut(wrap):
    df = numbers()
    for _ in range(200):
        df = wrap(df)
    lines = repr(df).splitlines()
    assert len(lines) < 100
    assert max(map(len, lines)) <= 100
    assert any(line.strip(" │├└─") == "…" for line in lines)


def test_a_node_that_stands_twice_is_shown_once():
    df = MapData(numbers(), decode)
    assert repr(JoinData([df, df])) == (
        "JoinData()\n├─ MapData(func=decode)\n│  DataFromList([…] of 4, shuffle=False)\n"
        "└─ MapData(func=decode)  the same node again"
    )


def test_a_node_that_contains_itself_has_an_end():
    df = MapData(numbers(), decode)
    df.ds = BatchData(df, 2)
    assert repr(df) == ("MapData(func=decode)\nBatchData(batch_size=2)\nMapData(func=decode)  the same node again")


def test_many_inputs_are_counted():
    lines = repr(ConcatData([numbers() for _ in range(1000)])).splitlines()
    assert len(lines) == 13
    assert lines[-1] == "└─ … 989 more"


def test_several_threads_may_show_a_chain():
    df = runner_chain()
    found = []
    threads = [threading.Thread(target=lambda: found.extend(repr(df) for _ in range(50))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {CHAINS[runner_chain]}
    assert len(found) == 200


# -- nothing else changes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", CHAINS, ids=lambda make: make.__name__)
def test_a_repr_changes_neither_attributes_nor_fingerprints(make):
    df = make()
    before = dict(vars(df)), describe_flow(df)
    repr(df)
    assert (dict(vars(df)), describe_flow(df)) == before
    assert describe_flow(make()) == before[1]


def test_fingerprints_hold_no_repr_of_a_node():
    class Holds:
        def __init__(self, df):
            self.df = df

        def __call__(self, dp):
            return dp

    text = describe(MapData(numbers(), Holds(1)))
    assert "DataFromList(" not in text + describe(MapData(numbers(), decode))
    assert "…" not in str(describe_flow(runner_chain()))


def test_a_chain_that_runs_is_shown():
    with MultiThreadRunner(numbers, 5, 2, strict=True) as df:
        iterator = iter(df)
        next(iterator)
        assert repr(df).startswith(
            "MultiThreadRunner(num_thread=2, strict=True)  2 threads, strict, ordered\n  DataFrom"
        )
        next(iterator)


@pytest.mark.slow
def test_import_does_not_load_the_module():
    code = (
        "import sys\nfrom dataflow import DataFromList\ndf = DataFromList([1])\n"
        "assert 'dataflow.observe.representation' not in sys.modules\nrepr(df)\n"
        "assert 'dataflow.observe.representation' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_cannot_be_shown_is_shown_by_name(monkeypatch):
    def refuse(*_):
        raise ValueError

    df = MapData(DataFromList([[1]]), abs)
    with monkeypatch.context() as patched:
        patched.setattr(representation, "_parameters", refuse)
        assert repr(df).splitlines()[0].startswith("MapData(…)")
    monkeypatch.setattr(representation, "chain_rows", refuse)
    assert repr(df) == "<MapData>" and df._repr_html_() == "<pre>&lt;MapData&gt;</pre>"


def test_a_value_that_cannot_be_compared_is_shown():
    class Odd(int):
        def __eq__(self, other):
            raise ValueError

        __hash__ = int.__hash__

    assert representation._differ(Odd(1), Odd(2)) and not representation._differ(1, 1)
