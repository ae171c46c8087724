"""Values of every kind through everything that stacks, converts, stores or sends: equal, or refused by name."""

import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import pathlib
import re
import uuid

import numpy as np
import pytest

from dataflow import BatchData, CacheData, DataFromList, DiskCacheData, JSONLinesData, MultiProcessRunnerZMQ, TableData
from dataflow.remote.frames import FrameEncoder, FrameReader
from dataflow.transport.arena import ArenaFile, MemoryLimit
from dataflow.transport.array_codec import ArrayDecoder, ArrayEncoder
from dataflow.transport.message_layout import NO_ROOM
from tests.formats.files import HDF5, LMDB, NPZ, TFRECORD, exact
from tests.support.waits import LIMIT

# -- values ------------------------------------------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Point:
    x: int
    y: list


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    __slots__ = ()


class Listed(list):
    pass


def of_objects(*values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


def filled(name, shape=(2, 3)):
    """An array of that dtype with limits, and with NaN or NaT where it has that."""
    dtype = np.dtype(name)
    size = int(np.prod(shape))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        flat = np.resize(np.array([limits.min, limits.max, 1], dtype), size)
    elif dtype.kind in "fc":
        flat = np.resize(np.array([np.nan, -np.inf, -0.0, np.finfo(dtype).max, 0.1], dtype), size)
    elif dtype.kind in "mM":
        flat = np.resize(np.array([5, np.iinfo("i8").min, -7]).astype("i8"), size).view(f"{dtype.kind}8{dtype.str[3:]}")
        flat = flat.astype(dtype)
    else:
        flat = np.resize(np.arange(3) % 2, size).astype(dtype)
    return flat.reshape(shape)


NUMBERS = ["?", *"bBhHiIlLqQefdgFDG", *(f"datetime64[{unit}]" for unit in ("D", "ns", "Y", "25s")), "timedelta64[ms]"]
NUMBERS += [np.dtype(name).newbyteorder(">").str for name in NUMBERS if np.dtype(name).itemsize > 1]
QUICK = ["?", "l", ">i2", "e", "g", ">c8", "datetime64[ns]", ">m8[ms]"]
RECORD = np.dtype([("a", "i1"), ("b", ">f8"), ("c", [("d", "U2")], (2,))], align=True)

MORE = {
    "0-d": np.array(5),
    "empty": np.zeros((0, 3), "f4"),
    "without elements' size": np.zeros(3, "S0"),
    "reversed": np.arange(6)[::-1],
    "strided": np.arange(24).reshape(4, 6)[::2, ::3],
    "Fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "broadcast": np.broadcast_to(np.arange(3), (2, 3)),
    "text array": np.array(["a\0b", "", "\u00e4\U0001f600"]),
    "big-endian text": np.array(["a\0b", "c"]).astype(">U3"),
    "bytes array": np.array([b"a\0b", b"c"]),
    "void": np.array([b"a\0", b"\0b"], "V2"),
    "padded record": np.zeros(3, RECORD),
    "padded record, 0-d": np.zeros((), RECORD)[()],
    "packed record": np.array([(1, 2.5)], "i4,f8"),
    "objects": of_objects(1, "a", None, [2]),
    "arrays in an array": of_objects(np.arange(2), np.arange(3)),
    "masked": np.ma.array([1, 2], mask=[True, False]),
    "unmasked": np.ma.array([1, 2]),
    "mask of a scalar": np.ma.masked,
    "record array": np.rec.array([(1, 2.5)], "i4,f8"),
    "NumPy's int": np.int16(5),
    "NumPy's big-endian float": np.array([0.1], ">f8")[0],
    "NumPy's long double": np.longdouble("0.1"),
    "NumPy's time": np.datetime64("2026-11-24T12", "h"),
    "NumPy's NaT": np.datetime64("NaT", "s"),
    "NumPy's str": np.str_("a\0"),
    "NumPy's bytes": np.bytes_(b"a\0"),
    "NumPy's bool": np.True_,
    "int": 5,
    "int beyond int32": 2**40,
    "int beyond float64": 2**53 + 1,
    "int beyond int64": 2**63 + 1025,
    "int beyond uint64": 2**70,
    "negative int beyond int64": -(2**63) - 1,
    "bool": True,
    "float": 0.1,
    "float beyond float32": 1e300,
    "NaN": float("nan"),
    "infinity": -float("inf"),
    "negative zero": -0.0,
    "complex": complex(-0.0, float("nan")),
    "None": None,
    "str": "a\u00e4\U0001f600",
    "empty str": "",
    "inner NUL": "a\0b",
    "trailing NUL": "a\0",
    "surrogate": "\udc80",
    "bytes": b"a\0b\0",
    "bytearray": bytearray(b"a\0"),
    "memoryview": memoryview(b"abc"),
    "list": [1, 2.5, "a", None, b"\0"],
    "empty list": [],
    "list of ints": [1, 2**40],
    "nested lists": [[1, 2], [3, 4]],
    "ragged lists": [[1], [2, 3]],
    "list of large ints": [2**53 + 1, 0.5],
    "list of text": ["a", "b\0"],
    "mixed list": [1, "a"],
    "list of arrays": [np.arange(2), np.array(["a"])],
    "tuple": (1, (2, [3])),
    "dict": {"a": 1, "b": {"c": np.arange(2)}},
    "dict of other keys": {1: 2, None: 3, (1, 2): 4, 1.5: 5, b"a": 6},
    "OrderedDict": collections.OrderedDict(b=1, a=2),
    "defaultdict": collections.defaultdict(list, a=[1]),
    "Counter": collections.Counter("aab"),
    "named tuple": Pair(1, np.arange(2)),
    "list's subclass": Listed([1]),
    "deque": collections.deque([1, 2]),
    "dataclass": Point(1, [2]),
    "Enum": Color.RED,
    "IntEnum": Level.LOW,
    "str's subclass": Text("a"),
    "set": {1, "a"},
    "frozenset": frozenset({1, (2, 3)}),
    "range": range(3),
    "Decimal": decimal.Decimal("0.1"),
    "Fraction": fractions.Fraction(1, 3),
    "datetime": datetime.datetime(2026, 11, 24, 12, 0, 0, 1),
    "datetime with a zone": datetime.datetime(2026, 11, 24, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
    "date": datetime.date(2026, 11, 24),
    "timedelta": datetime.timedelta(microseconds=1),
    "path": pathlib.PurePosixPath("a/b"),
    "UUID": uuid.UUID(int=7),
    "slice": slice(1, 2),
    "type": int,
    "function": len,
}
VALUES = {**{name: filled(name) for name in NUMBERS}, **MORE}


def whole(value):
    """NumPy's text with the NULs at its end, which `tolist` strips."""
    return "".join([value]) if isinstance(value, str) else b"".join([value])


def identical(value):
    """A form that is equal for equal values of equal types only."""
    if isinstance(value, np.str_ | np.bytes_):
        return type(value), whole(value)
    if isinstance(value, np.ndarray) and value.dtype == object:
        return type(value), value.shape, [identical(item) for item in value.ravel().tolist()]
    if isinstance(value, np.ma.MaskedArray):
        return type(value), exact(value.data), exact(np.ma.getmaskarray(value))
    return exact(value)


def plainly(value):
    """A form that is equal for equal values, whatever holds them."""
    if isinstance(value, np.ma.MaskedArray) and value.mask.any():
        return "masked", value.tolist()
    if isinstance(value, str | bytes):
        return whole(value)
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind in "mM":
            return exact(np.asarray(value).astype(value.dtype.newbyteorder("=")))[1:]
        if value.dtype.char in "gG":
            return [repr(item) for item in np.asarray(value).ravel()]
        value = np.asarray(value).tolist()
    if isinstance(value, list | tuple | range):
        return [plainly(item) for item in value]
    if isinstance(value, dict):
        return [(plainly(key), plainly(item)) for key, item in value.items()]
    if isinstance(value, float | complex):
        return repr(complex(value))
    return int(value) if isinstance(value, bool) else value


def rounded(value):
    """As `plainly`, with Python's floats as float32, which batches and tensors make of them."""
    if isinstance(value, float | complex) and not isinstance(value, np.generic):
        with np.errstate(over="ignore"):
            return plainly(np.float32(value) if isinstance(value, float) else np.complex64(value))
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return plainly(value)


# -- routes ------------------------------------------------------------------------------------------------------------


def through_codec(value, _):
    limit = MemoryLimit(1 << 24, 1)
    file = ArenaFile(limit)
    try:
        arena = file.new_arena(0)
        encoder, decoder = ArrayEncoder(arena.open_writer()), ArrayDecoder([arena.open_reader()])
        item = encoder.encode([value])
        body, _ = encoder.join([encoder.encode_inline([value]) if item is NO_ROOM else item])
        return decoder.decode(0, [bytes(frame) for frame in body])[0][0]
    finally:
        file.close()
        limit.close()


def through_runner(value, _):
    with MultiProcessRunnerZMQ(DataFromList([[value]], shuffle=False), 1, strict=True, timeout=LIMIT) as df:
        return next(iter(df))[0]


def through_frames(value, _):
    encoder = FrameEncoder(1 << 24)
    body, _ = encoder.join([encoder.encode([value])])
    return FrameReader().read([bytearray(memoryview(frame)) for frame in body], 1)[0][0]


def through_cache(value, _):
    df = CacheData(DataFromList([[value]], shuffle=False))
    list(df)
    return next(iter(df))[0]


def through_disk_cache(value, folder):
    with DiskCacheData(DataFromList([[value]], shuffle=False), folder / "cache", fingerprint="x") as df:
        list(df)
        return next(iter(df))[0]


def through_file(form):
    def through(value, folder):
        with form.load(form.saved(folder, [[value], [value]]), shuffle=False) as df:
            return df[1][0]

    return through


def through_json(value, folder):
    path = folder / "rows.jsonl"
    path.write_text(_or_skip(lambda: json.dumps([value])) + "\n")
    with JSONLinesData(path) as df:
        return df[0][0]


def _or_skip(make):
    """Return what another library makes of a value; skip it, if that is nothing."""
    try:
        return make()
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":  # of Polars
            raise Unsupported from error
        raise


class Unsupported(Exception):
    """Another library has no form for a value."""


def through_table(value, _):
    return TableData({"c": [value, value]})[1]["c"]


def through_table_batch(value, _):
    return TableData({"c": [value, value]}, batch_size=2)[0]["c"][1]


def through_column(value, _):
    num = _or_skip(lambda: len(value))
    if not num:
        raise Unsupported
    return TableData({"c": value}, batch_size=num)[0]["c"]


def through_library(make):
    """Rows and batches of another library's table are those that it has itself."""

    def through(value, _):
        column = _or_skip(lambda: make([value, value]))
        own = _or_skip(lambda: _listed(column)[1])
        for options in ({}, {"batch_size": 2}, {"batch_size": 2, "shuffle": True}):
            found = TableData({"c": column}, **options)[0]["c"]
            found = found[1] if options else found
            assert plainly(_as_list(found)) == plainly(_as_list(own)), f"{found!r} is not {own!r}"
        return value

    return through


def _listed(column):
    return next(getattr(column, name)() for name in ("to_pylist", "to_list", "tolist") if hasattr(column, name))


def _as_list(value):
    if repr(value) == "NaT":
        return None
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def of_arrow(values):
    return pytest.importorskip("pyarrow").array(values)


def of_pandas(values):
    return pytest.importorskip("pandas").Series(values)


def of_polars(values):
    pytest.importorskip("pyarrow")
    return pytest.importorskip("polars").Series("c", values)


def through_batch(value, _):
    with BatchData(DataFromList([[value], [value]], shuffle=False), 2) as df:
        return next(iter(df))[0][1]


def through_tensor(value, _):
    from dataflow.frameworks.tensors import tensor_maker

    return tensor_maker(pytest.importorskip("torch"))([value])[0]


def through_ray(value, _):
    from dataflow.ray.datasets import ray_column

    accessor = pytest.importorskip("ray.data.block").BlockAccessor
    if not isinstance(value, np.ndarray) or not value.ndim or not value.size:
        raise Unsupported
    block = accessor.batch_to_block({"x": ray_column("x", value)})
    found = accessor.for_block(block).to_numpy(["x"])["x"]
    if value.dtype.kind in "mM":  # in seconds, if Arrow lacks the unit
        return found.astype(value.dtype)
    return np.array(found.tolist(), value.dtype) if value.dtype.char in "gG" else found


EXACT = {
    "codec": through_codec,
    "runner": through_runner,
    "cache": through_cache,
    "network": through_frames,
    "disk cache": through_disk_cache,
    **{form.name: through_file(form) for form in (LMDB, TFRECORD, NPZ, HDF5)},
}
EQUAL = {
    "JSON lines": through_json,
    "row of a table": through_table,
    "batch of a table": through_table_batch,
    "column of a table": through_column,
    "Arrow": through_library(of_arrow),
    "pandas": through_library(of_pandas),
    "polars": through_library(of_polars),
    "Ray": through_ray,
}
ROUNDED = {"batch": through_batch, "tensor": through_tensor}
NAMES = {  # what a refusal has to name
    "codec": "memoryview",
    "runner": "memoryview",
    "cache": "CacheData keeps a ",
    **dict.fromkeys(("network", "disk cache", "lmdb", "tfrecord", "npz", "h5"), "component "),
    "batch": "component |overflow",
    "tensor": "tensor|torch",
    "Ray": "column 'x'",
}
NO_FORM = {"memoryview"}  # all else goes between processes, and into a cache


def verdicts(route, values, folder, form=None):
    """Values that a route has changed, or refused without a name; and the names of those that it has refused."""
    through = (EXACT | EQUAL | ROUNDED)[route]
    form = form or (identical if route in EXACT else rounded if route in ROUNDED else plainly)
    wrong, refused = {}, set()
    for number, (name, value) in enumerate(values.items()):
        place = folder / str(number)
        place.mkdir()
        before = form(value)
        try:
            found = through(value, place)
        except Unsupported:
            continue
        except AssertionError as error:
            wrong[name] = str(error)
        except Exception as error:
            refused.add(name)
            if not re.search(NAMES.get(route, "column 'c'"), str(error)):
                wrong[name] = repr(error)
        else:
            if form(found) != before:
                wrong[name] = found
    return wrong, refused


def check(route, values, folder):
    wrong, refused = verdicts(route, values, folder)
    assert not wrong
    if route in {"codec", "runner", "cache"}:
        assert refused == NO_FORM & values.keys()
    elif route == "row of a table":
        assert not refused


SOME = {**{name: VALUES[name] for name in QUICK}, **MORE}
FEW = {name: value for k, (name, value) in enumerate(SOME.items()) if k % 4 == 0}  # where files are written
FEWER = {name: value for k, (name, value) in enumerate(SOME.items()) if k % 12 == 0}  # where a process is started
HEAVY = ("runner", "disk cache", "lmdb", "tfrecord", "npz", "h5")
ALL = (*EXACT, *EQUAL, *ROUNDED)


@pytest.fixture(scope="module")
def started_libraries():
    """Polars starts a runtime, which stays, with the first time."""
    with contextlib.suppress(Unsupported, pytest.skip.Exception):
        EQUAL["polars"](MORE["datetime"], None)


needs_a_library = pytest.mark.filterwarnings(r"ignore:::(ray|pandas)", "ignore:`use_p")


@needs_a_library
@pytest.mark.usefixtures("started_libraries")
@pytest.mark.parametrize("route", [route for route in ALL if route not in {*HEAVY, "Ray"}])
def test_a_value_comes_out_equal_or_is_refused_by_name(route, tmp_path):
    check(route, SOME, tmp_path)


@pytest.mark.parametrize("route", HEAVY)
def test_some_values_come_out_of_files_and_workers(route, tmp_path):
    if package := {"lmdb": "lmdb", "h5": "h5py"}.get(route):
        pytest.importorskip(package)
    check(route, FEWER if route == "runner" else FEW, tmp_path)


@pytest.mark.parametrize("step", [1, -2])
def test_padding_is_zero_in_files_and_on_the_network(step, tmp_path):
    dtype = np.dtype([("a", "i1"), ("b", "i8")], align=True)
    array = np.full(16 * 8, 7, np.uint8).view(dtype)
    array["a"], array["b"] = 1, np.arange(8) + 1000
    array = array[::step]
    expected = np.zeros(array.shape, dtype)
    expected["a"], expected["b"] = array["a"], array["b"]
    for form in (TFRECORD, NPZ):
        assert expected.tobytes() in pathlib.Path(form.saved(tmp_path, [[array]])).read_bytes()
    encoder = FrameEncoder(1 << 24)
    body, _ = encoder.join([encoder.encode([array])])
    assert expected.tobytes() in b"".join(map(bytes, map(memoryview, body)))


@pytest.mark.parametrize("route", [*EXACT, "row of a table", "batch of a table", *ROUNDED])
def test_tensors_come_out_equal_or_are_refused_by_name(route, tmp_path):
    torch = pytest.importorskip("torch")
    values = {
        "numbers": torch.arange(6).reshape(2, 3),
        "view": torch.arange(6.0)[::2],
        "bool": torch.tensor(True),
        "bfloat16": torch.ones(2, dtype=torch.bfloat16),
        "gradient": torch.ones(2, requires_grad=True),
        "nested": {"x": [torch.zeros(0)]},
    }
    wrong, _ = verdicts(route, values, tmp_path, _lists_in)
    assert not wrong


def _lists_in(value):
    if isinstance(value, dict | list):
        return [_lists_in(item) for item in (value.values() if isinstance(value, dict) else value)]
    return value.tolist()


@pytest.mark.full
@needs_a_library
@pytest.mark.usefixtures("started_libraries")
@pytest.mark.parametrize("route", ALL)
def test_every_value_comes_out_equal_or_is_refused_by_name(route, tmp_path):
    check(route, VALUES, tmp_path)
