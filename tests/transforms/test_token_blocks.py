"""`PackData`: each token once, in blocks of one size; the same blocks by index, in workers, and after resuming."""

import itertools
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import (
    AsyncMapData,
    BatchData,
    DataFromGenerator,
    DataFromList,
    Dropped,
    FilterData,
    FixedSizeData,
    MapData,
    MapDataComponent,
    MixData,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    NotAddressable,
    PackData,
    RandomMapData,
    RepeatedData,
    ResumableData,
    SelectComponent,
    ShapeMismatch,
    ShardData,
    ShuffleData,
    TestDataSpeed,
)
from tests.support.contract import seeded


def documents_of(lengths, dtype=np.int32):
    """Documents whose tokens all differ."""
    ends = np.cumsum([0, *lengths])
    return [np.arange(1 + begin, 1 + end).astype(dtype) for begin, end in itertools.pairwise(ends.tolist())]


def listed(lengths, **options):
    return DataFromList(documents_of(lengths), shuffle=False, **options)


def plain(blocks):
    return [{key: (array.dtype.str, array.tolist()) for key, array in block.items()} for block in blocks]


def split(documents, size, pad_value=0):
    """What ``policy="split"`` does, token by token."""
    rows = [(token, number, k) for number, tokens in enumerate(documents) for k, token in enumerate(tokens)]
    blocks = []
    for begin in range(0, len(rows), size):
        block = rows[begin : begin + size]
        numbers = list(dict.fromkeys(number for _, number, _ in block))
        missing = size - len(block)
        blocks.append((
            [int(token) for token, _, _ in block] + [pad_value] * missing,
            [numbers.index(number) + 1 for _, number, _ in block] + [0] * missing,
            [k for _, _, k in block] + [0] * missing,
        ))  # fmt: skip
    return blocks


def as_lists(blocks):
    return [tuple(block[name].tolist() for name in ("tokens", "segment_ids", "positions")) for block in blocks]


LENGTHS = st.lists(st.integers(0, 12), max_size=12)


# -- each token once ---------------------------------------------------------------------------------------------------


@given(lengths=LENGTHS, size=st.integers(1, 9), dtype=st.sampled_from(["int32", "uint16", "int64", "float32"]))
def test_documents_follow_one_another_and_are_cut_where_a_block_ends(lengths, size, dtype):
    documents = documents_of(lengths, dtype)
    blocks = list(PackData(DataFromList(documents, shuffle=False), size, pad_value=7))
    assert as_lists(blocks) == split(documents, size, 7)
    assert {block["tokens"].dtype.name for block in blocks} <= {dtype}
    assert {block[name].dtype.name for block in blocks for name in ("segment_ids", "positions")} <= {"int32"}


@given(lengths=LENGTHS, size=st.integers(1, 9), window=st.integers(1, 5))
def test_whole_documents_are_fitted_into_blocks_and_no_token_is_lost(lengths, size, window):
    documents = documents_of(lengths)
    blocks = list(PackData(DataFromList(documents, shuffle=False), size, policy="fit", window=window))
    found = {}
    for tokens, ids, positions in as_lists(blocks):
        assert sorted(filter(None, ids)) == list(filter(None, ids)) and set(ids) <= set(range(size + 1))
        for number in set(ids) - {0}:
            here = [k for k, other in enumerate(ids) if other == number]
            assert here == list(range(here[0], here[-1] + 1))
            (document,) = (k for k, other in enumerate(documents) if tokens[here[0]] in other)
            piece = [(tokens[k], positions[k]) for k in here]
            assert piece == [
                (int(documents[document][at]), at) for at in range(positions[here[0]], positions[here[-1]] + 1)
            ]
            found.setdefault(document, []).append(len(piece))
        assert all(token == 0 for token, number in zip(tokens, ids, strict=True) if number == 0)
    for k, length in enumerate(lengths):  # cut only if it is longer than a block
        whole, rest = divmod(length, size)
        assert sorted(found.get(k, []), reverse=True) == [size] * whole + [rest] * (rest > 0)


def test_the_longest_document_that_fits_is_taken_and_the_oldest_does_not_wait():
    df = PackData(listed([3, 6, 2, 5, 3, 4]), 8, policy="fit", window=4)
    assert [[(block["segment_ids"] == k).sum() for k in (1, 2, 3)] for block in df] == [[3, 5, 0], [6, 2, 0], [3, 4, 0]]
    first = PackData(listed([1] + [8] * 5), 8, policy="fit", window=3)
    assert [(block["segment_ids"] > 0).sum() for block in first] == [8] * 5 + [1]


def test_fitting_pads_little_among_many_documents():
    lengths = np.random.default_rng(0).integers(1, 500, 2000)
    blocks = list(PackData(listed(lengths), 1024, policy="fit"))
    assert sum(lengths) / (len(blocks) * 1024) > 0.99


@pytest.mark.parametrize("tokens_at_once", [1, 100])
@pytest.mark.parametrize("policy", ["split", "fit"])
@pytest.mark.parametrize("change", [lambda tokens: tokens[::2], lambda tokens: tokens.astype(">i4")])
def test_documents_may_be_strided_or_in_another_byte_order(change, policy, tokens_at_once, monkeypatch):
    monkeypatch.setattr("dataflow.transforms.token_blocks._AT_ONCE", tokens_at_once)
    documents = documents_of([5, 9, 3, 20, 12, 2])
    changed = DataFromList([*map(change, documents)], shuffle=False)
    copied = DataFromList([np.array(change(tokens), np.int32) for tokens in documents], shuffle=False)
    blocks, expected = plain(PackData(changed, 4, policy=policy)), plain(PackData(copied, 4, policy=policy))
    assert blocks == expected and {block["tokens"][0] for block in blocks} == {np.dtype(np.int32).str}


def test_a_document_may_fill_several_blocks():
    assert as_lists(PackData(listed([10_000]), 4000)) == split(documents_of([10_000]), 4000)


def test_columns_are_cut_alike_and_have_pad_values_of_their_own():
    dps = [{"ids": [5, 6, 7], "mask": [False, True, True], "label": 1}, {"ids": [8], "mask": [True], "label": 0}]
    df = PackData(DataFromList(dps, shuffle=False), 3, key=["ids", "mask"], pad_value={"ids": 9})
    assert [{key: array.tolist() for key, array in block.items()} for block in df] == [
        {"ids": [5, 6, 7], "mask": [False, True, True], "segment_ids": [1, 1, 1], "positions": [0, 1, 2]},
        {"ids": [8, 9, 9], "mask": [True, False, False], "segment_ids": [1, 0, 0], "positions": [0, 0, 0]},
    ]
    assert {array.dtype.name for block in df for array in block.values()} == {"int64", "bool", "int32"}


@pytest.mark.parametrize(
    "dp", [[5, 6], (5, 6), np.array([5, 6]), [[5, 6]], [np.array([5, 6])], {"ids": [5, 6]}], ids=str
)
def test_tokens_are_the_datapoint_or_its_only_component(dp):
    (block,) = PackData(DataFromList([dp], shuffle=False), 2)
    assert block["tokens"].tolist() == [5, 6] and block["tokens"].dtype == np.int64


def test_lengths_are_those_of_the_source_below_what_selects_components():
    source = DataFromList([["a", [5, 6]], ["b", [7]]], shuffle=False)
    df = PackData(SelectComponent(source, [1]), 2, key=0, lengths=[2, 1])
    assert [block[0].tolist() for block in df] == [df[0][0].tolist(), df[1][0].tolist()] == [[5, 6], [7, 0]]


def test_a_component_of_a_list_is_named_by_its_position():
    (block,) = PackData(DataFromList([["a", [5, 6]]], shuffle=False), 2, key=1)
    assert block[1].tolist() == [5, 6]


@pytest.mark.parametrize("policy", ["split", "fit"])
def test_a_source_may_use_one_buffer_for_all_documents(policy):
    def documents():
        buffer = np.empty(3, np.int32)
        for k in range(4):
            buffer[:] = k
            yield buffer

    tokens = np.concatenate([block["tokens"] for block in PackData(DataFromGenerator(documents), 4, policy=policy)])
    assert sorted(tokens[tokens > 0]) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_empty_documents_are_counted_in_one_warning(caplog):
    lengths = [0, 3, 0, 0, 2]
    for options in ({}, {"lengths": lengths}):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            df = PackData(listed(lengths), 2, **options)
            assert as_lists(df) == as_lists(df) == split(documents_of(lengths), 2)
        assert [record.getMessage() for record in caplog.records] == [
            "PackData: 3 of 5 documents have no tokens, and contribute nothing"
        ]


def test_empty_documents_have_no_dtype():
    documents = [[], np.array([]), np.array([4], np.uint16), []]
    (block,) = PackData(DataFromList(documents, shuffle=False), 2)
    assert block["tokens"].dtype == np.uint16 and block["tokens"].tolist() == [4, 0]


@pytest.mark.parametrize("lengths", [None, []])
def test_a_pass_without_documents_has_no_blocks(lengths):
    df = PackData(DataFromList([], shuffle=False), 4, lengths=lengths)
    assert list(df) == []


def test_documents_that_a_filter_or_a_map_drops_are_left_out():
    documents = documents_of([3, 1, 4, 2])
    long = [tokens for tokens in documents if len(tokens) > 1]
    kept = FilterData(DataFromList(documents, shuffle=False), lambda tokens: len(tokens) > 1)
    mapped = MapData(DataFromList(documents, shuffle=False), lambda tokens: tokens if len(tokens) > 1 else None)
    assert as_lists(PackData(kept, 4)) == as_lists(PackData(mapped, 4)) == split(long, 4)


def test_an_endless_pass_continues_without_losing_a_token():
    df = PackData(RepeatedData(listed([3, 4, 5]), -1), 2)
    taken = [block["tokens"] for _ in range(6) for block in itertools.islice(df, 3)]
    assert np.concatenate(taken).tolist() == list(itertools.islice(itertools.cycle(range(1, 13)), 36))
    with pytest.raises(ValueError, match="never ends"):
        PackData(RepeatedData(listed([3]), -1), 2, lengths=[3])


# -- by index, in workers, and after resuming --------------------------------------------------------------------------


def doubled(tokens):
    return tokens * 2


async def doubled_later(tokens):
    return 2 * tokens


def shifted(tokens, rng):
    return tokens + rng.integers(1000, dtype=np.int32)


REORDERED = {
    "list": DataFromList,
    "shuffle": lambda documents: ShuffleData(DataFromList(documents, shuffle=False)),
    "map": lambda documents: ShuffleData(MapData(DataFromList(documents), doubled)),
    "random map": lambda documents: RandomMapData(ShuffleData(DataFromList(documents)), shifted),
    "component": lambda documents: SelectComponent(
        MapDataComponent(ShuffleData(DataFromList([[tokens, 1] for tokens in documents])), doubled), [0]
    ),
    "repeated": lambda documents: RepeatedData(ShuffleData(DataFromList(documents)), 2),
    "thread map": lambda documents: MultiThreadMapData(DataFromList(documents), 2, doubled, strict=True),
    "async map": lambda documents: AsyncMapData(ShuffleData(DataFromList(documents)), doubled_later),
    "async map, as completed": lambda documents: AsyncMapData(DataFromList(documents), doubled_later, ordered=False),
    "timed": lambda documents: TestDataSpeed(ShuffleData(DataFromList(documents)), 10),
}


@given(
    name=st.sampled_from(list(REORDERED)),
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=10).filter(any),
    size=st.integers(1, 9),
)
def test_blocks_are_the_same_by_index(name, lengths, size):
    make, documents = REORDERED[name], documents_of(lengths)
    with seeded(3), PackData(make(documents), size, lengths=lengths) as df, PackData(make(documents), size) as plainly:
        n = len(df)
        passes = [plain(plainly) for _ in range(2)]
        assert [plain(df) for _ in range(2)] == passes
        assert [len(blocks) for blocks in passes] == [n, n]
        assert plain(df[k] for k in reversed(range(2 * n))) == [*passes[0], *passes[1]][::-1]
        assert plain(df[0 : 2 * n : 3]) == [*passes[0], *passes[1]][::3]
        assert df[0:0] == []


@settings(max_examples=15)
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=10).filter(any), size=st.integers(1, 5))
def test_workers_make_the_same_blocks(lengths, size):
    def make():
        return PackData(ShuffleData(DataFromList(documents_of(lengths))), size, lengths=lengths)

    with seeded(5):
        expected = [plain(df) for df in [make()] for _ in range(2)]
        with MultiThreadRunner(make, 4, 3, strict=True) as df:
            assert [plain(df) for _ in range(2)] == expected


def test_processes_make_the_same_blocks():
    def make(**options):
        return PackData(ShuffleData(DataFromList(documents_of(range(50)))), 64, **options)

    with seeded(5):
        expected = plain(make())
        with MultiProcessRunnerZMQ(make(lengths=range(50)), 2, strict=True) as df:
            assert plain(df) == expected
        with MultiProcessRunnerZMQ(make(policy="fit"), 1, strict=True) as df:
            assert plain(df) == plain(make(policy="fit"))


OPTIONS = {"split": {}, "lengths": {"lengths": [5, 0, 7, 3, 9, 4]}, "fit": {"policy": "fit", "window": 3}}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_pass_resumes_at_every_block(name):
    def make():
        return ResumableData(PackData(ShuffleData(listed([5, 0, 7, 3, 9, 4])), 4, **OPTIONS[name]))

    with seeded(3):
        df = make()
        expected = plain(df) + plain(df)
    for num in range(len(expected)):
        with seeded(3):
            df = make()
            taken, passes = [], 0
            while len(taken) < num:
                taken += plain(itertools.islice(df, num - len(taken)))
                passes += 1
            state = df.state_dict()
        resumed = make()
        resumed.load_state_dict(state)
        rest = plain(resumed)
        assert rest == expected[num : num + len(rest)] and rest, num


def test_shards_below_hold_each_token_once_together():
    def make(rank):
        return PackData(ShardData(ShuffleData(listed(range(1, 20))), rank, 3, tail="keep"), 8)

    with seeded(9):
        tokens = np.concatenate([block["tokens"] for rank in range(3) for block in make(rank)])
    assert sorted(tokens[tokens > 0]) == list(range(1, 191))


def test_a_mixture_is_packed_shuffled_and_batched():
    mixture = FixedSizeData(MixData([listed([3, 5]), listed([4])], [1, 1]), 10)
    (batch,) = BatchData(ShuffleData(PackData(listed([8, 4]), 4, lengths=[8, 4])), 3)
    assert batch["tokens"].shape == (3, 4)
    assert sum((block["segment_ids"] > 0).sum() for block in PackData(mixture, 4)) == 39


def test_a_column_of_a_table_holds_the_lengths():
    pyarrow = pytest.importorskip("pyarrow")
    from dataflow import TableData

    lengths = [3, 0, 5, 2]
    ids = pyarrow.array(documents_of(lengths), pyarrow.list_(pyarrow.int32()))
    table = pyarrow.table({"ids": ids, "num": lengths, "share": [0.5] * 4, "some": [3, None, 5, 2]})
    rows = TableData(table, shuffle=True)
    with seeded(4):
        df = PackData(ShuffleData(rows), 4, key="ids", lengths="num")
        assert plain(df[0:3]) == plain(PackData(ShuffleData(rows), 4, key="ids")) and len(df) == 3
    with pytest.raises(ValueError, match=r"whole numbers from 0, .* got 'share'"):
        PackData(rows, 4, key="ids", lengths="share")
    with pytest.raises(ShapeMismatch, match="column 'some', row 1: the value is missing"):
        PackData(rows, 4, key="ids", lengths="some")
    with pytest.raises(NotAddressable, match="TableData does more than reorder"):
        PackData(TableData(table, columns=["num"], batch_size=2), 4, key="num", lengths="num")
    with pytest.raises(TypeError, match="DataFromList has no columns"):
        PackData(listed([3]), 4, lengths="num")


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"lengths": [3, 2**31]}, {"policy": "fit"}], ids=str)
def test_a_document_whose_positions_do_not_fit_into_int32_is_named(options):
    endless = np.broadcast_to(np.int8(1), 2**31)  # takes no memory
    df = PackData(DataFromList([np.ones(3, np.int8), endless], shuffle=False), 2, **options)
    with pytest.raises(OverflowError, match="document 1 of pass 0 has 2147483648 tokens, at most 2147483647"):
        list(df)


@pytest.mark.parametrize("policy", ["split", "fit"])
@pytest.mark.parametrize(
    ("documents", "options", "error", "message"),
    [
        ([np.int32([1]), np.uint16([2])], {}, TypeError, "'tokens' is uint16 in document 1 of pass 0, and int32 in"),
        ([[1], np.int32([2])], {}, TypeError, "is int32 in document 1 of pass 0, and int64 in"),
        ([np.int32([1]), np.array([2], ">i4")], {}, TypeError, "is >i4 in document 1 of pass 0, and int32 in"),
        ([{"a": [1, 2], "b": [1]}], {"key": ["a", "b"]}, ShapeMismatch, "document 0 .*: 'a' has 2, 'b' has 1"),
        ([{"a": [], "b": [1]}], {"key": ["a", "b"]}, ShapeMismatch, "'a' has 0, 'b' has 1"),
        ([{"a": [1, 2]}], {"key": "b"}, KeyError, "'b'"),
        ([{"a": [1], "b": [1]}], {}, TypeError, r"document 0 of pass 0 has the components \['a', 'b'\]: name the one"),
        ([[[1], [2]]], {}, TypeError, r"has the components \[0, 1\]"),
        (["text"], {}, TypeError, "'tokens' of document 0 of pass 0 is no list or array of numbers, but of type str"),
        ([["a", "b"]], {"key": 0}, TypeError, "of type str"),
        ([[np.array(["a"])]], {}, TypeError, "of type array of <U1"),
        ([[np.array([None])]], {}, TypeError, "of type array of object"),
        ([np.zeros((2, 3))], {}, ShapeMismatch, r"has the shape \(2, 3\): tokens have one axis"),
        ([[[[1], [2]]]], {}, ShapeMismatch, r"has the shape \(2, 1\)"),
        ([np.ma.array([1, 2])], {}, TypeError, "masked array"),
        ([np.uint16([1])], {"pad_value": -100}, TypeError, "pad_value -100 does not fit .*'tokens', .* uint16"),
    ],
)  # fmt: skip
def test_bad_documents_are_named(policy, documents, options, error, message):
    with pytest.raises(error, match=message):
        list(PackData(DataFromList(documents, shuffle=False), 4, policy=policy, **options))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"size": 0}, ValueError, "size must be an integer ≥ 1"),
        ({"size": "8"}, TypeError, "size must be an integer ≥ 1"),
        ({"window": 0}, ValueError, "window must be an integer ≥ 1"),
        ({"policy": "best"}, ValueError, "policy must be \"split\" or \"fit\", got 'best'"),
        ({"key": []}, ValueError, "got an empty list"),
        ({"key": ["a", "a"]}, ValueError, "'a' twice"),
        ({"key": "positions"}, ValueError, "'positions' of its own"),
        ({"pad_value": "0"}, TypeError, "pad_value must be a number"),
        ({"pad_value": {"ids": 0}}, ValueError, r"pad_value names 'ids', .*\['tokens'\]"),
        ({"lengths": [3]}, ValueError, "there are 1 lengths, and DataFromList has 2 datapoints"),
        ({"lengths": [3, -1]}, ValueError, "whole numbers from 0"),
        ({"lengths": [3.5, 1]}, ValueError, "whole numbers from 0"),
        ({"lengths": [[3], [1]]}, ValueError, "whole numbers from 0"),
        ({"lengths": [3, 2], "policy": "fit"}, ValueError, 'policy="split" only'),
    ],
)  # fmt: skip
def test_bad_parameters_are_named(options, error, message):
    with pytest.raises(error, match=message):
        PackData(listed([3, 2]), **{"size": 4, **options})


@pytest.mark.parametrize("lengths", [[2**62, 2**62], np.array([2**63, 0], np.uint64)])
def test_lengths_whose_sum_would_overflow_are_refused(lengths):
    with pytest.raises(OverflowError, match=r"lengths say that there are 9\.22e\+18 tokens, at most 2\^62"):
        PackData(listed([3, 2]), 4, lengths=lengths)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda ds: FilterData(ds, len), "FilterData is only a sequence of passes"),
        (lambda ds: ShardData(ds, 0, 2), "ShardData does more than reorder"),
        (lambda ds: MapData(FixedSizeData(ds, 3), len), "FixedSizeData does more than reorder"),
        (lambda ds: MixData([ds, ds], [1, 1]), "never ends"),
    ],
)
def test_lengths_are_refused_where_documents_cannot_be_found_by_them(make, name):
    with pytest.raises((NotAddressable, ValueError), match=name):
        PackData(make(listed([3, 2])), 4, lengths=[3, 2])


@pytest.mark.parametrize("lengths", [[3, 3, 5], [3, 1, 5], [3, 2, 4], [3, 0, 7]])
def test_other_lengths_than_those_of_the_documents_raise(lengths):
    with pytest.raises(ShapeMismatch, match=r"document \d of pass 0 has \d tokens, and lengths= says \d"):
        list(PackData(listed([3, 2, 5]), 4, lengths=lengths))


def test_a_list_that_has_grown_raises():
    documents = documents_of([3, 2])
    df = PackData(DataFromList(documents, shuffle=False), 4, lengths=[3, 2])
    documents.append(documents[0])
    with pytest.raises(ValueError, match="there are 2 lengths, and DataFromList has 3"):
        list(df)


def test_a_dropped_document_raises_with_lengths():
    ds = MapData(listed([3, 2, 5]), lambda tokens: None if len(tokens) == 2 else tokens)
    with pytest.raises(Dropped, match="PackData counts datapoints"):
        list(PackData(ds, 4, lengths=[3, 2, 5]))


@pytest.mark.parametrize("bad", ["an error", "a text"])
@pytest.mark.parametrize("lengths", [None, [3] * 40])
def test_blocks_that_were_complete_come_before_an_error(bad, lengths):
    def fails(dp):
        if dp[0] == 30:
            if bad == "a text":
                return "text"
            raise KeyError("damaged")
        return np.full(3, dp[0])

    df = PackData(MapData(DataFromList([[k] for k in range(40)], shuffle=False), fails), 2, lengths=lengths)
    found = []
    with pytest.raises((KeyError, TypeError), match=r"damaged|no list or array"):
        found.extend(df)
    tokens = np.concatenate([block["tokens"] for block in found])
    assert tokens.tolist() == [k for k in range(30) for _ in range(3)]


def test_nothing_is_read_ahead_of_a_pass_that_the_next_one_continues():
    def count():
        yield from ([k] for k in itertools.count())

    df = PackData(FixedSizeData(DataFromGenerator(count), 50, keep_state=True), 1)
    next(iter(df))
    assert next(iter(df))["tokens"].tolist() == [1]
