"""Bytes that no writer of ours makes, and a program that reads them where that may crash: in a process of its own.

``python -m tests.formats.hostile READER`` reads all of them in a thread with a small stack, watches how much memory
each takes, and prints as JSON what became of it. READER is "records", "frames" or "foreign".
"""

import functools
import json
import re
import resource
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import msgpack

from dataflow.formats.checksums import checksum
from dataflow.formats.foreign import unpack_foreign
from dataflow.formats.records import RecordDecoder
from dataflow.remote.frames import FrameReader
from dataflow.transport.packing import Code

TIMEOUT = 300.0
STACK_BYTES = 512 << 10
MUCH_BYTES = 256 << 20  # of addresses, whether they are touched or not
MAX_BYTES = 8 << 30  # what the program may take before the system refuses it
HEADER = struct.Struct("<BBHIQI")


def record(skeleton, content=b"", *, body=None, flags=0, size=None):
    """A record with a checksum that is right; `content` is what its arrays lie in."""
    if body is None:
        body = skeleton + bytes(-(HEADER.size + 4 + len(skeleton)) % 16 if content else 0) + content
    size = len(body) if size is None else size
    header = HEADER.pack(0xC1, 2, flags, len(skeleton), HEADER.size + 4 + len(body), size & 0xFFFFFFFF)
    return header + checksum(body, checksum(header)).to_bytes(4, "little") + body


def extension(code, *content):
    return msgpack.packb([msgpack.ExtType(code, msgpack.packb(list(content)))])


def nested(code, levels, inner=b"\x90"):
    data = inner
    for _ in range(levels):
        data = b"\x91" + msgpack.packb(msgpack.ExtType(code, data))
    return data


def ownership(num_bytes):
    """Lists in lists, each of which claims what all the bytes could hold."""
    data = (b"\xdd" + (num_bytes // 2).to_bytes(4, "big")) * 1000
    return data + bytes(num_bytes - len(data))


def claims_at_every_level(levels, num_bytes):
    data = bytes(num_bytes)
    for _ in range(levels):
        data = (b"\xdd" + (num_bytes // 2).to_bytes(4, "big")) * 1000 + msgpack.packb(msgpack.ExtType(Code.TUPLE, data))
    return data


SKELETONS = {
    "an unknown extension": (msgpack.packb([msgpack.ExtType(77, b"")]), b""),
    "an array of objects": (extension(Code.ARRAY, "|O", [1], "C"), bytes(8)),
    "a structure with objects": (extension(Code.ARRAY, "{'names':['a'],'formats':['O']}", [1], "C"), bytes(8)),
    "too long a claim": (extension(Code.ARRAY, "<f8", [1 << 40], "C"), b""),
    "longer than any memory": (extension(Code.ARRAY, "<f8", [1 << 62, 1 << 62], "C"), b""),
    "a shape of text": (extension(Code.ARRAY, "<f8", ["a", 1 << 33], "C"), b""),
    "a shape of long text": (extension(Code.ARRAY, "<f8", ["a" * 100, 1 << 33], "C"), b""),
    "a shape of bytes": (extension(Code.ARRAY, "<f8", [b"a", 1 << 33], "C"), b""),
    "a shape of lists": (extension(Code.ARRAY, "<f8", [[1], 1 << 33], "C"), b""),
    "a shape of truth": (extension(Code.ARRAY, "|u1", [True], "C"), b"x"),
    "a shape that is text": (extension(Code.ARRAY, "|u1", "1", "C"), b"x"),
    "a shape below zero": (extension(Code.ARRAY, "<f8", [-1, -1], "C"), bytes(8)),
    "many dimensions": (extension(Code.ARRAY, "<f8", [1] * 1000, "C"), bytes(8)),
    "many elements without a size": (extension(Code.ARRAY, "|S0", [1 << 40], "C"), b""),
    "many structures without a size": (
        extension(Code.ARRAY, "{'names':[],'formats':[],'offsets':[],'itemsize':0}", [1 << 40], "C"),
        b"",
    ),
    "a scalar of two gigabytes": (extension(Code.SCALAR, "|V2000000000", b""), b""),
    "a scalar of other two gigabytes": (extension(Code.SCALAR, "V2000000000", b""), b""),
    "a scalar cut off": (extension(Code.SCALAR, "<f8", bytes(7)), b""),
    "a scalar of objects": (extension(Code.SCALAR, "|O", bytes(8)), b""),
    "a dtype that is code": (extension(Code.ARRAY, "{__import__('os')}", [1], "C"), bytes(8)),
    "a dtype that is a number": (extension(Code.ARRAY, 7, [1], "C"), bytes(8)),
    "a deep dtype": (extension(Code.ARRAY, "{" + "-" * 16_000 + "1}", [1], "C"), bytes(8)),
    "a dtype of many brackets": (extension(Code.ARRAY, "{" + "[" * 16_000, [1], "C"), bytes(8)),
    "a dtype of some brackets": (extension(Code.ARRAY, "{" * 190 + "}" * 190, [1], "C"), bytes(8)),
    "a dtype that is a sum": (extension(Code.ARRAY, "{" + "1+" * 8_000 + "1}", [1], "C"), bytes(8)),
    "an endless dtype": (extension(Code.ARRAY, "{" + "-" * 200_000 + "1}", [1], "C"), bytes(8)),
    "a dtype of many numbers": (extension(Code.ARRAY, "{" + "1," * 500_000 + "}", [1], "C"), bytes(8)),
    "some tuples": (nested(Code.TUPLE, 300), b""),
    "tuples without end": (nested(Code.TUPLE, 5000), b""),
    "sets without end": (nested(Code.FROZENSET, 5000), b""),
    "as many tuples as may be, and one": (nested(Code.TUPLE, 102), b""),
    "lists without end": (b"\x91" * 100_000, b""),
    "a tuple of nothing": (msgpack.packb([msgpack.ExtType(Code.TUPLE, b"\xc0")]), b""),
    "a tuple cut off": (nested(Code.TUPLE, 50, b"\x92\x90"), b""),
    "a tuple with something behind it": (nested(Code.TUPLE, 50, b"\x90\x90"), b""),
    "a set of lists": (extension(Code.SET, []), b""),
    "claimed lengths": (b"\xdd\xff\xff\xff\xff" * 1000, b""),
    "claims of what could be there": (ownership(1 << 18), b""),
    "claims in a tuple": (nested(Code.TUPLE, 1, ownership(1 << 18)), b""),
    "claims in deep tuples": (nested(Code.TUPLE, 50, ownership(1 << 18)), b""),
    "claims at every level": (claims_at_every_level(80, 1 << 18), b""),
    "claims in a number": (msgpack.packb([msgpack.ExtType(Code.SCALAR, ownership(1 << 18))]), b""),
    "claims in an array": (msgpack.packb([msgpack.ExtType(Code.ARRAY, ownership(1 << 18))]), b""),
    "something behind it": (b"\x91" + msgpack.packb(bytes(2000)) + b"\x01", b""),
    "bytes too few": (extension(Code.ARRAY, "<f8", [2], "C"), bytes(15)),
    "a complex number cut off": (msgpack.packb([msgpack.ExtType(Code.COMPLEX, b"123")]), b""),
    "a number that is none": (msgpack.packb([msgpack.ExtType(Code.INTEGER, b"9" * 10_000)]), b""),
    "keys that are lists": (b"\x91\x81\x90\x01", b""),
}
"""A list of one component that cannot be read, and the bytes of its arrays."""


class Hostile:
    """Unpickling it does harm, which is counted."""

    harmed: ClassVar[list[int]] = []

    def __reduce__(self):
        return harm, ()


def harm():
    Hostile.harmed.append(1)


def claimed(kind=b"", dtype="<f8", shape=(1,), data=bytes(64), nd=True, form=bytes):
    """An array in the manner of msgpack-numpy, of which each part may be a lie."""
    parts = {
        "nd": nd,
        "kind": kind,
        "type": dtype,
        "shape": list(shape) if type(shape) is tuple else shape,
        "data": data,
    }
    return {(key.encode() if form is bytes else key): value for key, value in parts.items()}


def msgpack_attacks(pickled):
    """Arrays in the manner of msgpack-numpy; those that hold the pickle must not be unpickled."""
    for form in (bytes, str):
        for kind in (b"O", "O"):
            yield claimed(kind, "|O", data=pickled, form=form)
            yield claimed(kind, "<f8", data=pickled, form=form)
            whole = claimed(kind, "|O", data=pickled, form=form)
            yield {key: value for key, value in whole.items() if key not in {b"type", "type", b"shape", "shape"}}
    for kind in (b"", b"V", "O ", b"o", None, 7):
        for nd in (True, False, 1, None, "True"):
            yield claimed(kind, "|O", nd=nd)
            yield claimed(kind, b"|O", nd=nd)
            yield claimed(kind, "O,i4", nd=nd)
            yield claimed(kind, "(2,)O", nd=nd)
            yield claimed(kind, "object", nd=nd)
            yield claimed(kind, [["a", "|O"]], nd=nd)
            yield claimed(kind, [["a", [["b", "<i4"], ["c", "|O", [2]]]]], nd=nd)
    yield claimed(dtype="|S0", shape=(1 << 40,), data=b"")
    yield claimed(dtype=[], shape=(1 << 40,), data=b"")
    yield claimed(dtype="|S0", shape=("a" * 100, 1 << 40), data=b"")
    yield claimed(dtype="<f8", shape=(1 << 62, 1 << 62))
    yield claimed(dtype="<f8", shape=(-1, -8))
    yield claimed(dtype="<f8", shape="11")
    yield claimed(dtype="<f8", shape=(True,))
    yield claimed(dtype="|V2000000000", nd=False)
    yield claimed(dtype="i4," * 100_000)
    yield claimed(dtype={"names": ["a"], "formats": ["O"]})
    yield claimed(dtype=7)
    deep = "|O"
    for _ in range(60):
        deep = [["a", deep]]
    yield claimed(b"V", deep)


def read_record(skeleton, content):
    RecordDecoder("file").decode(record(skeleton, content), 3, 1000)


def read_frames(skeleton, content):
    FrameReader().read([skeleton, content], 1)


def read_foreign(skeleton, content):
    unpack_foreign(skeleton, pickled=False)


READERS = {"records": read_record, "frames": read_frames, "foreign": read_foreign}


@functools.cache
def verdicts_of(reader):
    """What the program says: a name for each of `SKELETONS`."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.formats.hostile", reader],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode} {done.stdout[-300:]} {done.stderr[-3000:]}"
    verdicts = json.loads(done.stdout)
    assert list(verdicts) == list(SKELETONS)
    return verdicts


def peak_bytes():
    """The most addresses that this process has had at once."""
    return int(re.search(r"VmPeak:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10


def main(reader):
    limit = peak_bytes() + MAX_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    verdicts = {}

    def read_all():
        for name, (skeleton, content) in SKELETONS.items():
            print(name, file=sys.stderr, flush=True)  # the last one, if this crashes
            before = peak_bytes()
            try:
                READERS[reader](skeleton, content)
                verdict = "read"
            except Exception as error:
                verdict = "much memory" if "MemoryError" in f"{type(error)} {error}" else type(error).__name__
            verdicts[name] = "much memory" if peak_bytes() - before > MUCH_BYTES else verdict

    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=read_all)
    thread.start()
    thread.join()
    json.dump(verdicts, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
