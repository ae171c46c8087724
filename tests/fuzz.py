"""Coverage-guided fuzzing of what parses foreign bytes: ``python -m tests.fuzz [--seconds 10] [NAME …]``.

atheris changes bytes so that they reach more and more branches of `dataflow`. Each parser has a process of its own, and
begins with bytes that our own writers make; checksums that are right are added where a parser would go no further
without. What is JSON is also edited as such: the bytes then say which parts of it become which others.

A finding is an exception that is not documented, ten seconds without a result, or two gigabytes of memory. Its bytes
are kept in a file that is named; ``python -m tests.fuzz NAME --replay FILE`` runs them again. Documented are errors of
this package, and what a parser says of a file of another program that it cannot use: a ValueError of one of the given
texts.
"""

import argparse
import contextlib
import copy
import functools
import importlib
import io
import json
import logging
import os
import random
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import atheris
import numpy as np

MODULES = (  # whose branches guide the fuzzing
    *(
        f"dataflow.formats.{name}"
        for name in ("npz", "npy", "hdf5", "lmdb", "records", "foreign", "tfrecord", "webdataset")
    ),
    *(
        f"dataflow.formats.{name}"
        for name in ("json_lines", "svmlight", "index_files", "tables", "columns", "positional")
    ),
    *(f"dataflow.remote.{name}" for name in ("frames", "keys", "peer_messages")),
    *(
        f"dataflow.{name}"
        for name in ("transport.unpacking", "transforms.resuming", "transforms.elastic", "transforms.mixing")
    ),
    *(f"dataflow.protocol.{name}" for name in ("fingerprints", "changes", "kept", "kept_values", "generator_states")),
)
with atheris.instrument_imports(include=["dataflow"]):
    for module in MODULES:
        importlib.import_module(module)

import dataflow  # noqa: E402
from dataflow.formats.checksums import ALGORITHM, checksum, masked_crc32c  # noqa: E402
from dataflow.formats.records import RecordDecoder, RecordEncoder  # noqa: E402
from dataflow.remote import frames, keys, peer_messages  # noqa: E402

NUM_READ = 5000  # datapoints: a file may hold millions that are empty
LIMITS = ("-timeout=10", "-rss_limit_mb=2048", "-max_len=4096", f"-artifact_prefix={tempfile.gettempdir()}/fuzz-")
ROWS = [[k, np.full(2, k, np.uint8), "text"] for k in range(3)]
DAMAGED = (dataflow.FileDamaged, dataflow.PickleRefused)
SPLIT = b"\xff|\xff"  # between the parts of bytes for several files or frames


class Parser(NamedTuple):
    read: Callable[[bytes, Path], object]
    begin: Callable[[Path], Iterable[bytes]]  # bytes to begin with
    documented: tuple[type[Exception], ...]
    refusals: str = ""  # a pattern of the texts of ValueErrors


def is_documented(parser: Parser, error: Exception) -> bool:
    is_refusal = type(error) is ValueError and parser.refusals and re.search(parser.refusals, str(error))
    return bool(is_refusal) or isinstance(error, parser.documented)


def rows() -> Any:
    return dataflow.DataFromList(ROWS, shuffle=False)


def read_all(load: Callable[..., Any], path: Path, **options: Any) -> None:
    with load(os.fspath(path), **options) as df:
        deque(islice(df, NUM_READ), 0)


OTHERS: list[Any] = [  # parts of JSON that no writer of ours puts there, or puts elsewhere
    *(None, True, -1, 0, 1, 2, 3, 1 << 31, 1 << 40, (1 << 62) - 1, 1 << 62, 1 << 63, 1 << 64, 10**30, 1.5, 1e300),
    *("", "0", "2", "a", "\ud800", "list", "dict", "alone", "array", "scalar", "record", "int", "bytes", "object"),
    *("holds", "Generator", "ShardData"),
    *("<i8", "|u1", "<U3", "|S0", "|O", "(2,)<i4", "[('a', '<i4')]", "{0: [1, 2], 5: [1]}", "'{'", "[" * 500),
    *([], [0], [1 << 40], [1 << 32] * 2, [1] * 70, [[]], {}, {"a": 1}, [None]),
]


def edited(value: Any, data: bytes) -> Any:
    """A copy of JSON in which `data` change some parts: three bytes and the way to a part, each time."""
    root, changes = [json.loads(json.dumps(value))], io.BytesIO(data)
    while len(change := changes.read(3)) == 3:
        holder, key = root, 0
        for step in changes.read(change[0] % 12):
            inside = holder[key]
            if not isinstance(inside, list | dict) or not inside:
                break
            holder, key = inside, [*(inside if isinstance(inside, dict) else range(len(inside)))][step % len(inside)]
        other = copy.deepcopy(OTHERS[change[2] % len(OTHERS)])
        match change[1] % 8:
            case 0 if holder is not root:
                del holder[key]
            case 1 if isinstance(holder, list) and holder is not root:
                holder.append(holder[key])
            case 2 if isinstance(holder[key], int):
                holder[key] += change[2] - 128
            case 3 if isinstance(holder, dict):
                holder[str(other)] = holder[key]
            case _:
                holder[key] = other
    return root[0]


def begin_edits(folder: Path) -> Iterable[bytes]:
    """Bytes for `edited`: no edit, and one of each kind at several levels."""
    yield b""
    for level in range(7):
        yield from (bytes([level, kind, 7 * level, *[level] * level]) for kind in range(5))


# -- files -------------------------------------------------------------------------------------------------------------


def read_npz(data: bytes, folder: Path) -> None:
    (folder / "f.npz").write_bytes(data)
    read_all(dataflow.NumpySerializer.load, folder / "f.npz", shuffle=False)


def begin_npz(folder: Path) -> Iterable[bytes]:
    dataflow.NumpySerializer.save(rows(), folder / "f.npz", overwrite=True)
    yield (folder / "f.npz").read_bytes()
    foreign = io.BytesIO()
    np.savez_compressed(foreign, buffer=np.array([{"a": 1}], object))
    yield foreign.getvalue()


def read_npz_members(data: bytes, folder: Path) -> None:
    """An archive whose checksums are right; each member is a part."""
    with zipfile.ZipFile(folder / "f.npz", "w") as archive:
        for k, part in enumerate(data.split(SPLIT)):
            name, _, content = part.partition(b"\n")
            with contextlib.suppress(ValueError):  # zipfile ends a name where it has a zero
                archive.writestr(name.decode("latin-1").partition("\0")[0] or str(k), content)
    read_all(dataflow.NumpySerializer.load, folder / "f.npz", shuffle=False)


def begin_npz_members(folder: Path) -> Iterable[bytes]:
    dataflow.NumpySerializer.save(rows(), folder / "f.npz", overwrite=True)
    with zipfile.ZipFile(folder / "f.npz") as archive:
        yield SPLIT.join(info.filename.encode() + b"\n" + archive.read(info) for info in archive.infolist())


def read_npz_table(data: bytes, folder: Path) -> None:
    """What a file says about its rows, edited."""
    if not (folder / "g.npz").exists():
        dataflow.NumpySerializer.save(rows(), folder / "g.npz")
    with zipfile.ZipFile(folder / "g.npz") as made, zipfile.ZipFile(folder / "f.npz", "w") as archive:
        for info in made.infolist():
            content = made.read(info)
            is_table = info.filename == "dataflow.json"
            archive.writestr(info.filename, json.dumps(edited(json.loads(content), data)) if is_table else content)
    read_all(dataflow.NumpySerializer.load, folder / "f.npz", shuffle=False)


def read_hdf5(data: bytes, folder: Path) -> None:
    """What a file says about its rows: the rest is read by HDF5."""
    import h5py

    if not (folder / "f.h5").exists():
        dataflow.HDF5Serializer.save(rows(), folder / "f.h5")
    with h5py.File(folder / "f.h5", "r+") as file:
        (name,) = file.attrs
        file.attrs[name] = np.bytes_(data)
    read_all(dataflow.HDF5Serializer.load, folder / "f.h5", shuffle=False)


def read_hdf5_table(data: bytes, folder: Path) -> None:
    """What a file says about its rows, edited."""
    read_hdf5(json.dumps(edited(json.loads(next(iter(begin_hdf5(folder)))), data)).encode(), folder)


def begin_hdf5(folder: Path) -> Iterable[bytes]:
    import h5py

    if not (folder / "g.h5").exists():
        dataflow.HDF5Serializer.save(rows(), folder / "g.h5")
    with h5py.File(folder / "g.h5") as file:
        yield bytes(next(iter(file.attrs.values())))


def read_record(data: bytes, folder: Path) -> None:
    RecordDecoder("file").decode(data, 3, 1000)


def read_own_record(data: bytes, folder: Path) -> None:
    """A record of ours with a checksum that is right."""
    header = bytearray(data[:20].ljust(20, b"\0"))
    header[0], header[1] = 0xC1, 2
    body = data[20:]
    struct.pack_into("<Q", header, 8, 24 + len(body))
    RecordDecoder("file").decode(bytes(header) + checksum(body, checksum(header)).to_bytes(4, "little") + body, 3)


def begin_records(folder: Path) -> Iterable[bytes]:
    import msgpack
    import msgpack_numpy

    for row in (*ROWS, {"a": (1, 2.5, {3}), "b": np.arange(6.0).reshape(2, 3), "c": [None, 1 << 70, 1j]}):
        yield RecordEncoder().encode(row)
        yield RecordEncoder(compress="zstd").encode(row)
    yield msgpack.packb(ROWS[0], default=msgpack_numpy.encode)


def begin_own_records(folder: Path) -> Iterable[bytes]:
    return (data[:20] + data[24:] for data in begin_records(folder) if data[0] == 0xC1)


def read_lmdb(data: bytes, folder: Path) -> None:
    """A mark, a list of keys as in tensorpack's files, and pairs of keys and records; an empty part is left out."""
    import lmdb

    mark, listed, *pairs = data.split(SPLIT) if data.count(SPLIT) else (data, b"")
    (folder / "f.lmdb").unlink(missing_ok=True)
    environment = lmdb.open(os.fspath(folder / "f.lmdb"), subdir=False, lock=False, sync=False, map_size=1 << 20)
    with environment, environment.begin(write=True) as transaction:
        for key, value in (
            (b"!dataflow", mark),
            (b"__keys__", listed),
            *(pair.split(b"\n", 1) for pair in pairs if b"\n" in pair),
        ):
            if value and 0 < len(key) < 500:
                transaction.put(key, value)
    for load in (dataflow.LMDBSerializer.load, dataflow.LMDBData):
        read_all(load, folder / "f.lmdb", shuffle=False)


def begin_lmdb(folder: Path) -> Iterable[bytes]:
    import msgpack

    mark = msgpack.packb({"version": 2, "size": 2, "checksum": ALGORITHM})
    keys = [b"%08d" % k for k in range(2)]
    ours = [key + b"\n" + RecordEncoder().encode(row, key) for key, row in zip(keys, ROWS, strict=False)]
    theirs = [key + b"\n" + msgpack.packb([1, "a"]) for key in keys]
    yield SPLIT.join([mark, b"", *ours])
    yield SPLIT.join([b"", b"", *theirs])
    yield SPLIT.join([b"", msgpack.packb(keys), *theirs])


def read_tfrecord(data: bytes, folder: Path) -> None:
    """An index, unless it is empty, and records: with checksums that are right, if there are several parts."""
    index, *parts = data.split(SPLIT)
    path = folder / "f.tfrecord"
    head = [struct.pack("<Q", len(part)) for part in parts]
    framed = [
        size + masked_crc32c(size).to_bytes(4, "little") + part + masked_crc32c(part).to_bytes(4, "little")
        for size, part in zip(head, parts, strict=True)
    ]
    path.write_bytes(b"".join(framed) if parts else index)
    with_index(path, index if parts else b"", "tfrecord")
    read_all(dataflow.TFRecordSerializer.load, path, shuffle=False)


def begin_tfrecord(folder: Path) -> Iterable[bytes]:
    dataflow.TFRecordSerializer.save(rows(), folder / "g.tfrecord", overwrite=True)
    yield (folder / "g.tfrecord").read_bytes()
    records = [RecordEncoder().encode(row) for row in ROWS]
    yield SPLIT.join([b"", *records])
    yield SPLIT.join([index_of(folder / "g.tfrecord"), *records])


def with_index(path: Path, data: bytes, kind: str) -> None:
    """Put an index beside the file: the offsets in `data`, or `data` itself if that is one."""
    index = Path(os.path.realpath(path) + ".index")
    index.unlink(missing_ok=True)
    if data.startswith(b"{"):
        index.write_bytes(data)
    elif data:
        status = path.stat()
        head = {"of": [status.st_size, status.st_mtime_ns], "kind": kind, "offsets": len(data) // 8}
        head |= {"algorithm": ALGORITHM, "checksum": checksum(data)}
        index.write_bytes(json.dumps(head).encode() + b"\n" + data)


def index_of(path: Path) -> bytes:
    return Path(os.path.realpath(path) + ".index").read_bytes().partition(b"\n")[2]


def read_tar(data: bytes, folder: Path) -> None:
    """A shard, and its index unless that is empty."""
    index, _, shard = data.rpartition(SPLIT)
    read_shard(index, shard, folder)


def read_tar_headers(data: bytes, folder: Path) -> None:
    """A shard in which the checksums of the headers are right."""
    shard = bytearray(data)
    for at in range(0, len(shard) - 511, 512):
        if shard[at + 148 : at + 154].isdigit() or shard[at + 257 : at + 262] == b"ustar":
            shard[at + 148 : at + 156] = b" " * 8
            shard[at + 148 : at + 156] = b"%06o\0 " % sum(shard[at : at + 512])
    read_shard(b"", bytes(shard) + bytes(1024), folder)


def read_shard(index: bytes, shard: bytes, folder: Path) -> None:
    path = folder / "f.tar"
    path.write_bytes(shard)
    with_index(path, index, "webdataset")
    read_all(dataflow.WebDatasetData, path, decode=True)


def begin_tar(folder: Path) -> Iterable[bytes]:
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        shard = io.BytesIO()
        with tarfile.open(fileobj=shard, mode="w", format=form) as tar:
            long = "é" * (30 if form == tarfile.USTAR_FORMAT else 60)
            for name, content in (("a.txt", b"one"), ("a.cls", b"1"), (f"{long}.json", b"[1]"), ("b.npy", b"")):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        data = shard.getvalue().rstrip(b"\0") + bytes(1024)
        data += bytes(-len(data) % 512)
        yield data
        (folder / "g.tar").write_bytes(data)
        read_all(dataflow.WebDatasetData, folder / "g.tar", keep_index=True)
        yield index_of(folder / "g.tar") + SPLIT + data


def begin_tar_headers(folder: Path) -> Iterable[bytes]:
    for data in begin_tar(folder):
        yield data.rpartition(SPLIT)[2].rstrip(b"\0")
    content = b"1\n0\n512\n".ljust(512, b"\0") + b"x" * 512
    info = tarfile.TarInfo("GNUSparseFile/a.bin")
    info.size = len(content)
    info.pax_headers = {f"GNU.sparse.{name}": value for name, value in (("major", "1"), ("minor", "0"))}
    info.pax_headers |= {"GNU.sparse.name": "a.bin", "GNU.sparse.realsize": "5000"}
    yield info.tobuf(tarfile.PAX_FORMAT) + content
    sparse = tarfile.TarInfo("a.bin")
    sparse.type, sparse.size = tarfile.GNUTYPE_SPARSE, 512
    header = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    header[386:410], header[483:495] = b"%011o\0%011o\0" % (1024, 512), b"%011o\0" % 4096
    yield bytes(header) + b"x" * 512


def read_lines(data: bytes, folder: Path) -> None:
    (folder / "f.jsonl").write_bytes(data)
    read_all(dataflow.JSONLinesData, folder / "f.jsonl")


def begin_lines(folder: Path) -> Iterable[bytes]:
    yield b'{"text": "a", "label": 1e3}\r\n\n["\\u00e9", null, true, -0.5, {}]\n12345678901234567890'


def read_svmlight(data: bytes, folder: Path) -> None:
    (folder / "f.svm").write_bytes(data)
    read_all(dataflow.SVMLightData, folder / "f.svm")


def begin_svmlight(folder: Path) -> Iterable[bytes]:
    yield b"1 qid:3 0:0.5 3:2 # a comment\r\n\n-1e3 2:inf\n"


# -- network -----------------------------------------------------------------------------------------------------------


def read_frames(data: bytes, folder: Path) -> None:
    count, body = data[:1], [bytearray(part) for part in data[1:].split(SPLIT)]
    frames.FrameReader().read(body, count[0] if count else 0)


def begin_frames(folder: Path) -> Iterable[bytes]:
    encoder = frames.FrameEncoder(1 << 30)
    for datapoints in (ROWS, [{"a": (1, b"x"), "b": np.float32(2)}], [[np.zeros(3), np.array("text")]]):
        body, _ = encoder.join([encoder.encode(dp) for dp in datapoints])
        yield bytes([len(datapoints)]) + SPLIT.join(bytes(frame) for frame in body)


def read_peer_message(data: bytes, folder: Path) -> None:
    message = peer_messages.parse(data.split(SPLIT))
    if message is not None:
        peer_messages.Hello.parse(message.body)
        peer_messages.SendLimits.parse(message.body)
        _ = message.text


def begin_peer_messages(folder: Path) -> Iterable[bytes]:
    kind = peer_messages.PeerMessageKind
    hello = peer_messages.Hello("host", "source", 2.0, 5)
    for one, body in ((kind.HELLO, hello.pack()), (kind.WELCOME, peer_messages.SendLimits(5, 100).pack())):
        message = peer_messages.PeerMessage(one, b"r" * 8, b"s" * 16, 1, 2, [body])
        yield SPLIT.join(bytes(part) for part in peer_messages.pack(message))


def read_keys(data: bytes, folder: Path) -> None:
    secret, _, public = data.partition(SPLIT)
    path = folder / "sender.key_secret"
    path.write_bytes(secret)
    path.chmod(0o600)
    (folder / "receiver.key").write_bytes(public)
    keys.load_keys(folder, keys.SENDER)


def begin_keys(folder: Path) -> Iterable[bytes]:
    with tempfile.TemporaryDirectory() as made:
        keys.make_keys(made)
        yield SPLIT.join((Path(made) / name).read_bytes() for name in ("sender.key_secret", "receiver.key"))


# -- saved states ------------------------------------------------------------------------------------------------------


class Drawing(dataflow.DataFlow):
    """A node of a user, which keeps attributes. It works with whatever a state may put into them."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self.last = None
        self.generators = [np.random.default_rng(1), np.random.RandomState(2), random.Random(3)]
        self.twister = np.random.Generator(np.random.MT19937(4))
        self.counter = np.random.Generator(np.random.Philox(5))

    def __iter__(self) -> Any:
        for k in range(3):
            self.last = [k, (1, {2}), b"3", np.arange(4), deque([5], 6), 7j]
            self.seen = {str(k): self.seen}
            for generator in (self.twister, self.counter, *np.ravel(np.array(self.generators, object))):
                if hasattr(generator, "uniform"):
                    generator.uniform(0, 1)
            yield [k]


def numbers() -> Any:
    return dataflow.DataFromList([[k] for k in range(7)], seed=1)


FLOWS: list[Callable[[], Any]] = [
    lambda: dataflow.BatchData(numbers(), 2),
    Drawing,
    lambda: dataflow.MixData([numbers(), numbers()], {0: [1, 2], 5: [2, 1]}, seed=2),
    lambda: dataflow.BatchData(dataflow.ShardData(numbers(), 0, 2), 2),
]


def load_state(number: int, state: Any) -> None:
    if isinstance(state, dict) and state.get("position") is None and state.get("offset") not in range(1000):
        return  # saved after skip(), which takes as long as what it leaves out
    df = dataflow.ResumableData(FLOWS[number]())
    df.load_state_dict(state)
    deque(islice(df, NUM_READ), 0)


def read_state(data: bytes, folder: Path) -> None:
    """A state of the flow that the first byte names."""
    try:
        state = json.loads(data[1:])
    except (ValueError, RecursionError):
        return
    load_state(data[0] % len(FLOWS), state)


@functools.cache
def saved_states() -> list[Any]:
    found = []
    for make in FLOWS:
        df = dataflow.ResumableData(make())
        deque(islice(df, 7), 0)
        next(iter(df))
        found.append(df.state_dict())
    return found


def begin_states(folder: Path) -> Iterable[bytes]:
    for k, state in enumerate(saved_states()):
        yield bytes([k]) + json.dumps(state).encode()


def read_edited_state(data: bytes, folder: Path) -> None:
    number = sum(data[:1]) % len(FLOWS)
    load_state(number, edited(saved_states()[number], data[1:]))


def begin_edited_states(folder: Path) -> Iterable[bytes]:
    return (bytes([k]) + data for k in range(len(FLOWS)) for data in begin_edits(folder))


NO_ROWS = r"the arrays differ in length|has no rows|which datapoints cannot have|is an npy file"
NO_SAMPLES = "two files with|has a link in place of|has a sparse file|it cannot be decoded"
PARSERS = {
    "npz": Parser(read_npz, begin_npz, DAMAGED, NO_ROWS),
    "npz-members": Parser(read_npz_members, begin_npz_members, DAMAGED, NO_ROWS),
    "npz-table": Parser(read_npz_table, begin_edits, DAMAGED),
    "hdf5": Parser(read_hdf5, begin_hdf5, DAMAGED),
    "hdf5-table": Parser(read_hdf5_table, begin_edits, DAMAGED),
    "lmdb": Parser(read_lmdb, begin_lmdb, DAMAGED),
    "lmdb-records": Parser(read_record, begin_records, DAMAGED),
    "own-records": Parser(read_own_record, begin_own_records, DAMAGED),
    "tfrecord": Parser(read_tfrecord, begin_tfrecord, DAMAGED),
    "tar": Parser(read_tar, begin_tar, DAMAGED, NO_SAMPLES),
    "tar-headers": Parser(read_tar_headers, begin_tar_headers, DAMAGED, NO_SAMPLES),
    "json-lines": Parser(read_lines, begin_lines, DAMAGED, "is not UTF-8"),
    "svmlight": Parser(read_svmlight, begin_svmlight, DAMAGED),
    "frames": Parser(read_frames, begin_frames, (frames.Unreadable,)),
    "peer-messages": Parser(read_peer_message, begin_peer_messages, ()),
    "keys": Parser(read_keys, begin_keys, (FileNotFoundError,), "is not a (secret )?certificate"),
    "states": Parser(read_state, begin_states, (dataflow.StateMismatch,)),
    "edited-states": Parser(read_edited_state, begin_edited_states, (dataflow.StateMismatch,)),
}


def fuzz(name: str, folder: str, seconds: int, replay: str | None) -> None:
    """Fuzz one parser in this process, which ends then."""
    parser = PARSERS[name]
    logging.disable()
    warnings.simplefilter("ignore")
    where = Path(folder)  # the parent removes it: libFuzzer ends this process at once
    corpus = where / "corpus"
    corpus.mkdir()
    for k, data in enumerate(parser.begin(where)):
        (corpus / str(k)).write_bytes(data)

    def run(data: bytes) -> None:
        try:
            parser.read(data, where)
        except Exception as error:
            if not is_documented(parser, error):
                raise

    atheris.Setup([sys.argv[0], *LIMITS, f"-max_total_time={seconds}", replay or str(corpus)], run)
    atheris.Fuzz()


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("names", nargs="*", choices=[*PARSERS, []], metavar="NAME", help=", ".join(PARSERS))
    options.add_argument("--seconds", type=int, default=10, help="for each parser")
    options.add_argument("--replay", help="a file with the bytes of a finding")
    options.add_argument("--folder", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.folder:
        fuzz(given.names[0], given.folder, given.seconds, given.replay)
    failed = []
    for name in given.names or PARSERS:
        command = [sys.executable, "-m", "tests.fuzz", name, f"--seconds={given.seconds}"]
        command += [f"--replay={given.replay}"] if given.replay else []
        with tempfile.TemporaryDirectory() as folder:
            command.append(f"--folder={folder}")
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
        lines = done.stderr.splitlines()
        if done.returncode:
            failed.append(name)
            print(*(line for line in lines if not line.startswith(("INFO", "#"))), sep="\n")
        print(f"{name}: {'FINDING' if done.returncode else 'nothing found'}; {(lines or [''])[-1]}", flush=True)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
