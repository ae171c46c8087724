"""Digests of values and flows, and the command `digest`."""

import datetime
import enum
import queue
import random
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from operator import is_
from pathlib import PurePosixPath

import numpy as np
import pytest

from dataflow import (
    DataFromList,
    DataFromQueue,
    MultiProcessRunnerZMQ,
    NotReproducible,
    NotStorable,
    RepeatedData,
    ShardData,
    ShuffleData,
    seed,
)
from dataflow.__main__ import main
from dataflow.protocol.digests import compare, difference, digest, digest_lines, read_digests
from tests.support.contract import seeded

Pair = namedtuple("Pair", "one other")


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class OfUser(np.ndarray):
    pass


class OfLibrary:
    def __array__(self, dtype=None, copy=None):
        return np.arange(3)


@dataclass
class Record:
    text: str
    values: object


DIFFERENT = [
    None, False, True, 0, 1, -1, 2**70, 0.0, -0.0, 1.0, float("inf"), 1j, 1 + 0j, "", "1", "é", "\ud800", b"", b"1",
    bytearray(b"1"), [], [0], [[0]], [0, 0], [None], (), (0,), {}, {0: 0}, {0: 1}, {1: 0}, {"a": {"b": 0}}, {"a": {}},
    set(), {0}, frozenset(), frozenset({0}), OrderedDict(), Pair(0, 1), Pair(1, 0), Colour.RED, Colour.BLUE,
    Record("a", 0), Record("a", 1), Record("b", 0), datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1),
    datetime.timedelta(1), PurePosixPath("a/b"), range(3), np.int32(0), np.int64(0), np.float32(0), np.bool_(False),
    np.str_("1"), np.bytes_(b"1"), np.bytes_(b"1\0"), np.datetime64("2020-01-01"), np.datetime64("2020-01-01", "s"),
    np.array(0), np.array([0]), np.array([[0]]), np.array([0, 0]), np.array([], int), np.array([], "i4"),
    np.zeros((0, 2)), np.zeros((2, 0)), np.array([1.0]), np.array([1], "u8"), np.array(["a", "b"]), np.array(["ab"]),
    np.array([None]), np.array([None, 0], object), np.array([(1, 2)], [("a", "i4"), ("b", "i4")]),
    np.array([(1, 2)], [("a", "i4"), ("c", "i4")]), np.array([(1, 3)], [("a", "i4"), ("b", "i4")]),
    OfLibrary(), np.array([(1,)], [("a", "i4")]), np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0]),
    np.array([1, 2]), np.zeros(3, "V2"), np.zeros(3, "u2"), [1, 2], [[1], 2], [[1, 2]], [[], [[]]], [[[]], []],
]  # fmt: skip


def test_different_values_have_different_digests():
    digests = [digest([value]) for value in DIFFERENT]
    assert len(set(digests)) == len(DIFFERENT)
    assert digests == [digest([value]) for value in DIFFERENT]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.arange(6, dtype="<i4"), np.arange(6, dtype=">i4")),
        (np.arange(6, dtype="<f8").reshape(2, 3), np.asfortranarray(np.arange(6, dtype=">f8").reshape(2, 3))),
        (np.arange(12)[::2], np.arange(0, 12, 2)),
        (np.array([(1, 2.0)], "i4,f8"), np.array([(1, 2.0)], np.dtype("i4,f8", align=True))),
        (np.array(["a"], "<U3"), np.array(["a"], ">U3")),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1, 2, 3, 1024}, {1024, 3, 2, 1}),
        (np.array(["2020"], "<M8[s]"), np.array(["2020"], ">M8[s]")),
        (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 3], mask=[0, 1])),
        (np.arange(3), np.arange(3).view(OfUser)),
        (OfLibrary(), OfLibrary()),
    ],
)
def test_the_same_values_have_the_same_digest_however_they_lie_in_memory(one, other):
    assert digest([one]) == digest([other])
    assert difference([one], [other]) is None


def test_digests_are_those_of_other_machines_and_versions():
    value = [np.arange(3, dtype=np.float32), {"text": "é", "label": 7}, (None, True, 0.5)]
    assert digest(value).hex() == "a609090579df1600db22860394d9ac67"


@pytest.mark.parametrize("value", [object(), len, np.longdouble(1), np.zeros(2, np.longdouble), iter([])])
def test_values_without_canonical_bytes_are_refused_by_their_place(value):
    with pytest.raises(NotStorable, match="component 'x' / 1 "):
        digest({"x": [0, value]})


def test_containers_that_hold_themselves_are_refused():
    value = []
    value.append(value)
    with pytest.raises(NotStorable, match="more than 100 levels"):
        digest(value)


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ([1, 2], [1], "the datapoint has 2 components, and 1"),
        ([1], (1,), "the datapoint is of type list, and tuple"),
        ({"a": 1}, {"b": 1}, r"the datapoint has the components \['a'\], and \['b'\]"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "component 'a' / 1 is 2, and 3"),
        ({1: 0}, {True: 0}, "the datapoint is {1: 0}, and {True: 0}"),
        ([np.zeros(2, "f4")], [np.zeros(2)], r"component 0 is float32 \(2,\), and float64 \(2,\)"),
        ([np.zeros((2, 2))], [np.array([[0, 0], [-0.0, 1]])], r"component 0 is .*0.0.*, and .*-0.0.*, at \[1, 0\]"),
    ],
)
def test_the_first_component_that_differs_is_named(one, other, found):
    with pytest.raises(AssertionError, match=found):
        assert difference(one, other) is None, difference(one, other)


# -- files -------------------------------------------------------------------------------------------------------------


def digested(df, num=None, name="a.txt", **options):
    return read_digests(digest_lines(df, num, **options), name)


def listed(datapoints):
    return DataFromList(datapoints, shuffle=False)


def numbers(num):
    return [[np.full(2, k, np.float32), k] for k in range(num)]


def planted(random, datapoints):
    """One random change; returns the changed datapoints, and the position of the first difference."""
    found, k = list(datapoints), random.randrange(len(datapoints))
    kind = random.choice(["swap", "drop", "duplicate", "value", "dtype", "shuffle", "insert"])
    if kind == "swap":
        j = random.choice([j for j in range(len(found)) if j != k])
        found[k], found[j] = found[j], found[k]
        return found, min(k, j)
    if kind == "drop":
        del found[k]
    elif kind == "duplicate":
        found.insert(k, found[k])
        k += 1
    elif kind == "value":
        array = found[k][0].copy()
        array[random.randrange(2)] = np.nextafter(array[0], np.float32(np.inf))
        found[k] = [array, found[k][1]]
    elif kind == "dtype":
        found[k] = [found[k][0].astype(np.float64), found[k][1]]
    elif kind == "shuffle":
        tail = found[k:]
        while len(tail) > 1 and all(map(is_, tail, found[k:])):
            random.shuffle(tail)
        if len(tail) == 1:
            return planted(random, datapoints)
        first = next(j for j, (one, other) in enumerate(zip(tail, found[k:], strict=True)) if one is not other)
        found[k:] = tail
        k += first
    else:
        found.insert(k, [np.zeros(2, np.float32), -1])
    return found, k


def test_a_thousand_planted_changes_are_found_and_the_first_is_named():
    numbers_of_blocks = random.Random(4)
    datapoints = numbers(40)
    whole = {block: digested(listed(datapoints), block=block) for block in (1, 7)}
    for _ in range(1000):
        changed, first = planted(numbers_of_blocks, datapoints)
        block = numbers_of_blocks.choice([1, 1, 1, 7])
        found = compare([whole[block], digested(listed(changed), name="b.txt", block=block)])
        assert found is not None
        begin = first // block * block
        place = f"datapoint {begin} of" if block == 1 else f"datapoints {begin} to {begin + 6} of"
        assert place in found, (found, first)


def test_equal_flows_are_equal_over_several_passes_and_in_workers():
    with seeded(3):
        df = ShuffleData(listed(numbers(10)))
        one = digested(df, 25)
        with MultiProcessRunnerZMQ(ShuffleData(listed(numbers(10))), 1, strict=True) as runner:
            assert compare([one, digested(runner, 25)]) is None
        assert (one.num, one.ends, len(one.blocks)) == (25, {0: 10, 1: 10}, 25)
        other = digested(ShuffleData(listed(numbers(10))), name="b.txt")
        assert compare([one, other]) == "b.txt ends before datapoint 0 of pass 1, which a.txt has"
    with seeded(4):
        assert "their seeds are 3 and 4" in compare([one, digested(ShuffleData(listed(numbers(10))), 25)])


@pytest.mark.parametrize("tail", ["drop", "keep", "repeat"])
@pytest.mark.parametrize("num", [12, 13])
def test_shares_make_up_the_whole(tail, num):
    def shares(passes=1):
        found = []
        for r in range(3):
            share = ShardData(df(), r, 3, tail)
            found.append(digested(share, passes * len(share), name=f"{r}.txt", rank=r, world_size=3))
        return found

    def df():
        return ShuffleData(listed(numbers(num)))

    with seeded(3):
        whole = digested(df(), 2 * num)
        assert compare([whole, *reversed(shares(2))]) is None
        assert compare([whole, *shares()]) == "datapoint 0 of pass 1 of a.txt is in no share"
        assert compare([digested(df(), num - 1), *shares(2)]) == "0.txt has pass 1, and a.txt has not"
        assert compare([digested(df()), *shares()]) is None
        first, second, third = shares()
    with seeded(8):
        others = shares()
    assert "1.txt differs first from a.txt in datapoint" in compare([whole, first, others[1], third])
    with pytest.raises(ValueError, match=r"of all ranks, each once; these are the ranks 0 of 3, 2 of 3$"):
        compare([whole, first, third])
    with pytest.raises(ValueError, match="give the whole first"):
        compare([first, second])


def test_a_share_that_ends_early_or_late_is_found():
    datapoints = numbers(12)
    whole = digested(listed(datapoints))

    def share(rank, chosen):
        return digested(listed(chosen), rank=rank, world_size=3, name=f"{rank}.txt")

    shares = [share(rank, datapoints[rank::3]) for rank in range(3)]
    assert compare([whole, *shares]) is None
    short = share(1, datapoints[1:-3:3])
    assert compare([whole, shares[0], short, shares[2]]) == "datapoint 10 of pass 0 of a.txt is in no share"
    long = share(1, [*datapoints[1::3], datapoints[1]])
    found = compare([whole, shares[0], long, shares[2]])
    assert found == "1.txt has datapoint 4 of pass 0, and its pass has none at position 13"


def test_a_flow_that_is_not_reproducible_is_refused():
    with pytest.raises(NotReproducible, match=r"no seed is set, so ShuffleData draws different numbers in each run"):
        list(digest_lines(ShuffleData(listed(numbers(3)))))
    with pytest.raises(NotReproducible, match="the order of the datapoints of DataFromQueue is not defined"):
        list(digest_lines(DataFromQueue(queue.Queue())))
    with pytest.raises(ValueError, match="never ends: say how many"):
        list(digest_lines(RepeatedData(listed(numbers(3)), -1)))
    with pytest.raises(ValueError, match="the share of rank 1, and --rank says 0"):
        list(digest_lines(ShardData(listed(numbers(4)), 1, 2), rank=0, world_size=2))
    with pytest.raises(NotStorable, match=r"^datapoint 1 of pass 0: component 0 is of type builtins.object"):
        list(digest_lines(listed([[0], [object()]])))


@pytest.mark.parametrize("num", [None, 4])
def test_a_pass_without_datapoints_is_refused(num):
    with pytest.raises(ValueError, match="pass 0 of DataFromList is empty"):
        list(digest_lines(listed([]), num))


def test_files_that_cannot_be_compared_are_refused():
    def share(rank, block):
        return digested(
            ShardData(listed(numbers(6)), rank, 2), name=f"{rank}.txt", rank=rank, world_size=2, block=block
        )

    one, two = (digested(listed(numbers(6)), block=block) for block in (1, 2))
    with pytest.raises(ValueError, match="two files are compared at least"):
        compare([one])
    with pytest.raises(ValueError, match=r"blocks of 1 datapoints, and a.txt of 2: digest both with the same --block"):
        compare([one, two])
    with pytest.raises(ValueError, match="digest them, and the whole, with --block 1"):
        compare([two, share(0, 2), share(1, 2)])
    assert compare([one, share(0, 1), share(1, 1)]) is None


def test_a_damaged_file_is_refused():
    lines = list(digest_lines(listed(numbers(4))))
    for change, message in [
        (lines[1:], "does not begin with"),
        ([], "does not begin with"),
        (lines[:-1], "is incomplete"),
        ([*lines[:5], *lines[6:]], "do not give its total"),
        ([*lines[:3], *lines[4:]], "a line is not as"),
    ]:
        with pytest.raises(ValueError, match=message):
            read_digests(change, "a.txt")


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder with a module `feeding`, and returns exit code, stdout and stderr."""
    (tmp_path / "feeding.py").write_text(
        "import dataflow\n"
        "def make(shuffle=True, num=10):\n"
        "    return dataflow.DataFromList([[k] for k in range(num)], shuffle=shuffle)\n"
        "def sorted(): return make(False)\n"
        "def longer(): return make(False, 12)\n"
        "def share(): return dataflow.ShardData(make(False, 12))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*arguments, to=None):
        try:
            code = main(["digest", *arguments])
        except SystemExit as error:
            code = error.code
        out, err = capsys.readouterr()
        if to is not None:
            (tmp_path / to).write_text(out)
        return code, out, err

    yield run
    seed(None)


def test_the_command_says_by_its_exit_code_whether_data_are_equal(command, monkeypatch):
    assert command("feeding:sorted", to="a.txt")[0] == 0
    assert command("feeding:make", "--seed", "3", to="b.txt")[0] == 0
    seed(None)
    assert command("feeding:longer", to="c.txt")[0] == 0
    assert command("--compare", "a.txt", "a.txt") == (0, "equal: 10 datapoints\n", "")
    code, out, _ = command("--compare", "a.txt", "b.txt")
    assert (code, "a.txt and b.txt differ first in datapoint 0 of pass 0: b.txt has it as datapoint" in out) == (
        1,
        True,
    )
    assert command("--compare", "a.txt", "c.txt")[:2] == (
        1,
        "a.txt ends before datapoint 10 of pass 0, which c.txt has\n",
    )
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert command("feeding:share", "--rank", str(rank), "--world-size", "2", to=f"{rank}.txt")[0] == 0
    assert command("--compare", "c.txt", "0.txt", "1.txt") == (0, "equal: 12 datapoints\n", "")
    assert command("--compare", "a.txt", "0.txt", "1.txt")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give a flow, or --compare"),
        (["feeding:sorted", "--compare", "a", "b"], 2, "give a flow, or --compare"),
        (["feeding:sorted", "--rank", "1"], 2, "belong together"),
        (["feeding:sorted", "--rank", "2", "--world-size", "2"], 2, "ranks count from 0"),
        (["feeding:sorted", "--block", "0"], 2, "are at least 1"),
        (["feeding:sorted", "--seed", "-1"], 2, "a number from 0"),
        (["feeding:nothing"], 2, "there is no 'nothing'"),
        (["feeding:make"], 1, "no seed is set, so DataFromList draws"),
        (["--compare", "none.txt", "none.txt"], 2, "none.txt"),
        (["--compare", "feeding.py"], 2, "does not begin with"),
    ],
)
def test_wrong_usage_is_no_difference(command, arguments, code, message):
    found, _, err = command(*arguments)
    assert (found, message in err) == (code, True), err
