"""Coverage-guided fuzzing of what parses foreign bytes: ``python -m tests.fuzz [--seconds 10] [NAME …]``.

atheris changes bytes so that they reach more and more branches of `dataflow`. Each parser has a process of its own, and
begins with bytes that our own writers make; checksums that are right are added where a parser would go no further
without. A finding is an exception that is not documented, ten seconds without a result, or two gigabytes of memory. Its
bytes are kept in a file that is named; ``python -m tests.fuzz NAME --replay FILE`` runs them again.
"""

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import atheris
import numpy as np

MODULES = (  # whose branches guide the fuzzing
    *(f"dataflow.formats.{name}" for name in ("npz", "hdf5", "lmdb", "records", "foreign", "tfrecord", "webdataset")),
    *(f"dataflow.formats.{name}" for name in ("json_lines", "index_files", "tables", "columns", "positional")),
    *(f"dataflow.remote.{name}" for name in ("frames", "keys", "peer_messages")),
    *(f"dataflow.{name}" for name in ("transport.unpacking", "transforms.resuming", "transforms.elastic")),
    *(f"dataflow.protocol.{name}" for name in ("fingerprints", "changes", "kept", "kept_values")),
)
with atheris.instrument_imports(include=["dataflow"]):
    for module in MODULES:
        importlib.import_module(module)

import dataflow  # noqa: E402
from dataflow.formats.checksums import ALGORITHM, checksum, masked_crc32c  # noqa: E402
from dataflow.formats.records import RecordDecoder, RecordEncoder  # noqa: E402
from dataflow.remote import frames, keys, peer_messages  # noqa: E402

LIMITS = ("-timeout=10", "-rss_limit_mb=2048", "-max_len=4096", f"-artifact_prefix={tempfile.gettempdir()}/fuzz-")
ROWS = [[k, np.full(2, k, np.uint8), "text"] for k in range(3)]
DAMAGED = (dataflow.FileDamaged, dataflow.PickleRefused)
SPLIT = b"\xff|\xff"  # between the parts of bytes for several files or frames


class Parser(NamedTuple):
    read: Callable[[bytes, Path], object]
    begin: Callable[[Path], Iterable[bytes]]  # bytes to begin with
    documented: tuple[type[Exception], ...]


def rows() -> Any:
    return dataflow.DataFromList(ROWS, shuffle=False)


def read_all(load: Callable[..., Any], path: Path, **options: Any) -> None:
    with load(os.fspath(path), **options) as df:
        list(df)


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


def read_hdf5(data: bytes, folder: Path) -> None:
    """What a file says about its rows: the rest is read by HDF5."""
    import h5py

    if not (folder / "f.h5").exists():
        dataflow.HDF5Serializer.save(rows(), folder / "f.h5")
    with h5py.File(folder / "f.h5", "r+") as file:
        (name,) = file.attrs
        file.attrs[name] = np.bytes_(data)
    read_all(dataflow.HDF5Serializer.load, folder / "f.h5", shuffle=False)


def begin_hdf5(folder: Path) -> Iterable[bytes]:
    import h5py

    dataflow.HDF5Serializer.save(rows(), folder / "g.h5", overwrite=True)
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


def read_lines(data: bytes, folder: Path) -> None:
    (folder / "f.jsonl").write_bytes(data)
    read_all(dataflow.JSONLinesData, folder / "f.jsonl")


def begin_lines(folder: Path) -> Iterable[bytes]:
    yield b'{"text": "a", "label": 1e3}\r\n\n["\\u00e9", null, true, -0.5, {}]\n12345678901234567890'


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
    """A node of a user, which keeps attributes."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.last = None

    def __iter__(self) -> Any:
        for k in range(3):
            self.last = [k]
            self.seen[str(k)] = self.seen.get(str(k), 0) + 1
            yield [k]


def flows() -> list[Any]:
    addressable = dataflow.BatchData(dataflow.DataFromList([[k] for k in range(7)], seed=1), 2)
    return [dataflow.ResumableData(df) for df in (addressable, Drawing())]


def read_state(data: bytes, folder: Path) -> None:
    """A state of the first flow, or if the first byte says so, of the second."""
    try:
        state = json.loads(data[1:])
    except (ValueError, RecursionError):
        return
    df = flows()[data[0] % 2]
    df.load_state_dict(state)
    list(df)


def begin_states(folder: Path) -> Iterable[bytes]:
    for k, df in enumerate(flows()):
        list(df)
        for _ in df:
            break
        yield bytes([k]) + json.dumps(df.state_dict()).encode()


PARSERS = {
    "npz": Parser(read_npz, begin_npz, (*DAMAGED, ValueError)),
    "npz-members": Parser(read_npz_members, begin_npz_members, (*DAMAGED, ValueError)),
    "hdf5": Parser(read_hdf5, begin_hdf5, (*DAMAGED, ValueError)),
    "lmdb-records": Parser(read_record, begin_records, DAMAGED),
    "own-records": Parser(read_own_record, begin_own_records, DAMAGED),
    "tfrecord": Parser(read_tfrecord, begin_tfrecord, DAMAGED),
    "tar": Parser(read_tar, begin_tar, (*DAMAGED, ValueError)),
    "json-lines": Parser(read_lines, begin_lines, (*DAMAGED, ValueError)),
    "frames": Parser(read_frames, begin_frames, (frames.Unreadable,)),
    "peer-messages": Parser(read_peer_message, begin_peer_messages, ()),
    "keys": Parser(read_keys, begin_keys, (ValueError, FileNotFoundError)),
    "states": Parser(read_state, begin_states, (dataflow.StateMismatch,)),
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
        except parser.documented:
            pass

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
