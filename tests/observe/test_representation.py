"""`repr(df)` shows the chain: its nodes, their parameters and workers; it never raises, and it reads no data."""

import functools
import html
import multiprocessing
import pathlib
import re
import subprocess
import sys
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
├─ Scaled(factor=2.5, func=decode, table=array(float64, (5,)))
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
    chains = [BatchData(MapData(ds, decode), 2) for ds in (Counts(numbers()), numbers())]
    chains[1].ds.ds = dataflow.LMDBData.__new__(dataflow.LMDBData)
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
    assert cls.__name__ in repr(df) and cls.__name__ in df._repr_html_()


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


class WithText:
    def __repr__(self):
        return "WithText(1) at 0x7f00"


class SeveralLines:
    def __repr__(self):
        return "   a  b\n0  1  2"


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
        (functools.partial(decode, [1]), "partial(decode)"),
        (functools.lru_cache(decode), "decode"),
        (np.zeros((3, 4), np.float32), "array(float32, (3, 4))"),
        ([1, 2.5, "a"], "[1, 2.5, 'a']"),
        ((1,), "(1,)"),
        ([[1, 2], [[3]]], "[[1, 2], [[...]]]"),
        (list(range(60_000)), "[0, 1, 2, 3, 4, 5, 6, 7, ...]"),
        ({"a": 1, "password": 2, "more": {"token": "x", "b": 2}}, "{'a': 1, 'more': {'b': 2}}"),
        ("x" * 100, f"'{'x' * 28}…{'x' * 29}'"),
        ("a\nb\x1b[1m", r"'a\nb\x1b[1m'"),
        (Raises(), "<Raises>"),
        ([Raises()], "[<Raises>]"),
        (WithText(), "WithText(1)"),
        (SeveralLines(), "<SeveralLines>"),
        (numbers(), "DataFromList(…)"),
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
    assert one_of(endless) == "[1, [1, [...]]]"


def test_data_are_not_read():
    read = []

    def datapoints():
        read.append(1)
        yield [1]

    assert "<generator object" in repr(DataFromIterable(datapoints()))
    assert not read


def test_a_packed_list_is_shown_by_its_length():
    assert repr(DataFromList([[1], [2]], packed=True)) == "DataFromList([…] of 2, shuffle=True, packed=True)"


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_context_is_shown_by_its_start_method(context):
    for chosen in (context, multiprocessing.get_context(context)):
        df = MultiProcessRunner(numbers(), 5, 1, context=chosen)
        assert f"num_proc=1, context='{context}')  1 process over pipes ({context})" in repr(df)


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
    assert one_of(dict.fromkeys(names.split(), "abc")) == "{}"
    for name in ("num_tokens", "max_tokens", "token_count", "key", "keys", "passes", "tokenizer", "author"):
        assert one_of({name: 7}) == f"{{{name!r}: 7}}"


# -- users' nodes ------------------------------------------------------------------------------------------------------


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
    assert repr(Inherits(numbers())) == "<Inherits>"


def test_a_class_that_passes_keywords_on_shows_those_of_its_base():
    class Wraps(MapData):
        def __init__(self, *args, extra="x", **more):
            super().__init__(*args, **more)
            self.extra = extra

    df = Wraps(numbers(), decode, extra="y", max_failures=3)
    assert repr(df).splitlines()[0] == "Wraps(extra='y', func=decode, max_failures=3)"


def test_inputs_of_any_name_are_found():
    class Switch(DataFlow):
        def __init__(self, flows, mode):
            self.flows = flows
            self.mode = mode

        def __iter__(self):
            yield from self.flows["a"]

    assert repr(Switch({"a": numbers(1), "b": numbers(2)}, "x")) == (
        "Switch(flows={'a': DataFromList(…), 'b': DataFromList(…)}, mode='x')\n"
        "├─ DataFromList([…] of 1, shuffle=False)\n└─ DataFromList([…] of 2, shuffle=False)"
    )


def test_a_repr_of_the_users_own_may_show_the_chain():
    class Named(ProxyDataFlow):
        def __repr__(self):
            return f"named {super().__repr__()}"

    df = Named(numbers())
    assert repr(df) == "named Named()\nDataFromList([…] of 4, shuffle=False)"
    assert repr(MapData(df, decode)) == "MapData(func=decode)\nNamed()\nDataFromList([…] of 4, shuffle=False)"


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


def test_import_does_not_load_the_module():
    code = (
        "import sys\nfrom dataflow import DataFromList\ndf = DataFromList([1])\n"
        "assert 'dataflow.observe.representation' not in sys.modules\nrepr(df)\n"
        "assert 'dataflow.observe.representation' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_node_that_cannot_be_shown_is_shown_by_name(monkeypatch):
    def refuse(*_):
        raise ValueError

    monkeypatch.setattr(representation, "_parameters", refuse)
    assert repr(MapData(numbers(), abs)).splitlines() == ["<MapData>", "<DataFromList>"]
