"""Digests: hashes of canonical bytes, which tell whether two flows yield the same data, on any machines.

The bytes of a value hold its type, and of an array its dtype, its shape and its values as little-endian numbers. So
they are the same on every machine and under every version of Python and NumPy. The order of a dict or a set does not
matter.

Values are not described as in `fingerprints`: those texts hold code, which differs between versions, and they are
compared with caches that were written before, as digests are with files.

A file of digests is text: a line for each block of datapoints of a pass, one for the end of each pass, and the total.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import hashlib
import pathlib
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import NotStorable
from dataflow.protocol.base import DataFlow, depth_above
from dataflow.protocol.datapoint import as_number_or_array
from dataflow.protocol.passes import known_length, promise, require_order, require_seed
from dataflow.protocol.seeding import current_root
from dataflow.protocol.state import Promise

__all__ = ["Digests", "compare", "difference", "digest", "digest_lines", "read_digests"]

_MAX_LEVELS: Final = 100  # of nested containers
_FIRST_LINE: Final = "dataflow digest, version 1"
_BY_REPR: Final = (
    datetime.date,  # and datetime
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    range,
    slice,
)

Path = tuple[Any, ...]
Put = Callable[[bytes], object]


# -- values ------------------------------------------------------------------------------------------------------------


def digest(value: Any) -> bytes:
    """The digest of a datapoint, or of any part of one: 16 bytes, equal if and only if the values are.

    Raises:
        NotStorable: It holds a value without canonical bytes; the message names the component.
    """
    hashed = _new()
    _put(hashed.update, value, ())
    found: bytes = hashed.digest()
    return found


def _new() -> Any:
    return hashlib.blake2b(digest_size=16)


def _put(put: Put, value: Any, path: Path) -> None:
    """Give the canonical bytes of a value to `put`. Each part says where it ends, so no two values have the same."""
    kind = type(value)
    if kind is np.ndarray:
        _put_array(put, value, path)
    elif value is None or kind is bool:
        put(b"N" if value is None else b"T" if value else b"F")
    elif kind is int:
        _put_text(put, b"i", hex(value))
    elif kind is float:
        put(b"f" + struct.pack("<d", value))
    elif kind is complex:
        put(b"c" + struct.pack("<dd", value.real, value.imag))
    elif kind is str:
        _put_text(put, b"s", value)
    elif kind is bytes or kind is bytearray:
        _put_bytes(put, b"b" if kind is bytes else b"y", bytes(value))
    elif isinstance(value, np.generic):
        put(b"g")
        if isinstance(value, np.str_ | np.bytes_):  # an array would lose NULs at the end
            _put(put, str.__str__(value) if isinstance(value, np.str_) else bytes(value), path)
        else:
            _put_array(put, np.asarray(value), path)
    else:
        _put_other(put, value, path)


def _put_other(put: Put, value: Any, path: Path) -> None:
    if len(path) > _MAX_LEVELS:
        raise NotStorable(f"{_named(path[:3])} holds more than {_MAX_LEVELS} levels of containers: flatten it")
    kind = type(value)
    if isinstance(value, np.ma.MaskedArray):
        put(b"m")
        _put_array(put, np.ma.getmaskarray(value), path)
        _put_array(put, np.asarray(value.filled(0)), path)
    elif isinstance(value, np.ndarray):
        _put_array(put, np.asarray(value), path)
    elif isinstance(value, enum.Enum):
        _put_text(put, b"e", f"{kind.__qualname__}.{value.name}")
    elif isinstance(value, list | tuple):
        _put_kind(put, b"l" if isinstance(value, list) else b"t", kind, {list, tuple}, len(value))
        for k, item in enumerate(value):
            _put(put, item, (*path, k))
    elif isinstance(value, dict):
        _put_kind(put, b"d", kind, {dict}, len(value))
        for key_bytes, key in sorted(((_bytes_of(key, path), key) for key in value), key=lambda pair: pair[0]):
            _put_bytes(put, b"k", key_bytes)
            _put(put, value[key], (*path, key))
    elif isinstance(value, set | frozenset):
        _put_kind(put, b"S" if isinstance(value, set) else b"Z", kind, {set, frozenset}, len(value))
        for item_bytes in sorted(_bytes_of(item, path) for item in value):
            _put_bytes(put, b"k", item_bytes)
    elif dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        _put_kind(put, b"D", kind, set(), len(fields))
        for field in fields:
            _put_text(put, b"k", field.name)
            _put(put, getattr(value, field.name), (*path, field.name))
    elif isinstance(value, _BY_REPR):
        _put_text(put, b"r", repr(value))
    elif isinstance(value, pathlib.PurePath):
        _put_text(put, b"p", value.as_posix())
    else:
        try:
            array = as_number_or_array(value, None)
        except TypeError:
            array = None
        if not isinstance(array, np.ndarray):
            raise NotStorable(
                f"{_named(path)} is of type {kind.__module__}.{kind.__qualname__}, which has no canonical bytes to "
                "digest. Make it an array, a number, text, or containers of them, by MapData below"
            )
        _put_text(put, b"L", f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}")
        _put_array(put, array, path)


def _put_array(put: Put, array: NDArray[Any], path: Path) -> None:
    dtype = array.dtype
    shape = ",".join(map(str, array.shape))
    if dtype.names is not None:
        _put_text(put, b"R", f"{shape} {len(dtype.names)}")
        for name in dtype.names:  # not the bytes between the fields, which are undefined
            _put_text(put, b"k", name)
            _put_array(put, array[name], (*path, name))
    elif dtype.hasobject:
        _put_text(put, b"O", f"{shape} {dtype.kind}")
        for k, item in enumerate(array.ravel().tolist()):
            _put(put, item, (*path, k))
    elif dtype.char in "gG":
        raise NotStorable(
            f"{_named(path)} has the dtype {dtype}, whose bytes differ between machines. Convert it to float64 or "
            "complex128 below, with MapDataComponent"
        )
    else:
        little = dtype.newbyteorder("<")
        _put_text(put, b"a", f"{dtype.name if dtype.isbuiltin == 2 else little.str} {shape}")
        put(array.astype(little, copy=False).tobytes())


def _put_text(put: Put, tag: bytes, text: str) -> None:
    _put_bytes(put, tag, text.encode("utf-8", "surrogatepass"))


def _put_bytes(put: Put, tag: bytes, data: bytes) -> None:
    put(tag + struct.pack("<q", len(data)) + data)


def _put_kind(put: Put, tag: bytes, kind: type, plain: set[type], num: int) -> None:
    _put_text(put, tag, f"{num} {'' if kind in plain else kind.__qualname__}")


def _bytes_of(value: Any, path: Path) -> bytes:
    parts: list[bytes] = []
    _put(parts.append, value, path)
    return b"".join(parts)


def _named(path: Path) -> str:
    return "component " + " / ".join(map(repr, path)) if path else "the datapoint"


def difference(one: Any, other: Any) -> str | None:
    """How two datapoints differ, as a sentence about the first component that does; None if they are the same.

    Raises:
        NotStorable: One holds a value without canonical bytes.
    """
    return None if digest(one) == digest(other) else _difference(one, other, ())


def _difference(one: Any, other: Any, path: Path) -> str:
    where, kind, its = _named(path), type(one), type(other)
    if kind is not its:
        return f"{where} is of type {kind.__name__}, and {its.__name__}"
    if isinstance(one, list | tuple) and len(one) != len(other):
        return f"{where} has {len(one)} components, and {len(other)}"
    if isinstance(one, dict) and one.keys() != other.keys():
        return f"{where} has the components {list(one)}, and {list(other)}"
    if isinstance(one, list | tuple | dict):
        for key in one if isinstance(one, dict) else range(len(one)):
            if digest(one[key]) != digest(other[key]):
                return _difference(one[key], other[key], (*path, key))
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"{where} is {one.dtype} {one.shape}, and {other.dtype} {other.shape}"
        for index in np.ndindex(one.shape):
            if digest(one[index]) != digest(other[index]):
                at = f", at [{', '.join(map(str, index))}]" if index else ""
                return f"{where} is {one[index]!r}, and {other[index]!r}{at}"
    return f"{where} is {one!r:.80}, and {other!r:.80}"


# -- flows -------------------------------------------------------------------------------------------------------------


def digest_lines(
    df: DataFlow, num: int | None = None, *, block: int = 1, rank: int = 0, world_size: int = 1
) -> Iterator[str]:
    """The lines of a file of digests.

    Args:
        df: The flow.
        num: The number of datapoints, of as many passes as are needed; None stands for one pass.
        block: Datapoints per digest; a block ends with its pass.
        rank: If `df` is the share of one rank, which one.
        world_size: The number of ranks.

    Raises:
        NotReproducible: The datapoints, or their order, do not follow from a seed.
        NotStorable: A datapoint has no canonical bytes.
        ValueError: `num` is missing for an endless flow, or a pass is empty; or the flow is the share of another rank.
    """
    _require_digestible(df, num, rank, world_size)
    yield _FIRST_LINE
    yield f"seed {current_root()}"
    yield f"block {block}"
    yield f"rank {rank} of {world_size}"
    total, num_taken = _new(), 0
    for p in count():
        num_here = 0
        datapoints = DataFlow.__iter__(df)
        wanted = None if num is None else num - num_taken
        for line, num_up_to in _pass_lines(islice(datapoints, wanted), p, block):
            num_here = num_up_to
            total.update(line.encode())
            yield line
        num_taken += num_here
        if num_here != wanted or known_length(df) == num_here:
            line = f"end {p} {num_here}"
            total.update(line.encode())
            yield line
            if not num_here and num_taken != num:
                raise ValueError(f"pass {p} of {type(df).__name__} is empty")
        if num is None or num_taken == num:
            break
    yield f"total {num_taken} {total.hexdigest()}"


def _pass_lines(datapoints: Iterable[Any], p: int, block: int) -> Iterator[tuple[str, int]]:
    """A line for each block of a pass, and the number of datapoints up to there."""
    hashed, num = _new(), 0
    for num, dp in enumerate(datapoints, 1):
        try:
            hashed.update(digest(dp))
        except NotStorable as error:
            raise NotStorable(f"datapoint {num - 1} of pass {p}: {error}") from error
        if num % block == 0:
            yield f"{p} {num - block} {hashed.hexdigest()}", num
            hashed = _new()
    if num % block:
        yield f"{p} {num - num % block} {hashed.hexdigest()}", num


def _require_digestible(df: DataFlow, num: int | None, rank: int, world_size: int) -> None:
    require_order(df, "", "another run has other digests")
    if current_root() is None:
        require_seed(df, "", "in each run", " in the module, or give --seed")
    if num is None and df._df_endless:
        raise ValueError(f"a pass of {type(df).__name__} never ends: say how many datapoints to digest, with --num")
    ranks = depth_above(df).ranks
    if ranks and world_size > 1 and ranks != (rank,):
        raise ValueError(f"the flow is the share of rank {ranks[0]}, and --rank says {rank}")
    promise(df, Promise("digest"))


# -- files -------------------------------------------------------------------------------------------------------------


class Digests(NamedTuple):
    """What a file of digests holds."""

    name: str
    seed: str
    block: int
    rank: int
    world_size: int
    blocks: dict[tuple[int, int], str]  # by pass and first position, in order
    ends: dict[int, int]  # datapoints of each pass that was digested to its end
    num: int

    def passes(self) -> list[int]:
        return sorted({p for p, _ in self.blocks} | self.ends.keys())


def read_digests(lines: Iterable[str], name: str) -> Digests:
    """Read what `digest_lines` has made.

    Raises:
        ValueError: It is no such file, or a part of it is missing or changed.
    """
    rows = [line.split() for line in lines if line.strip()]
    if not rows or " ".join(rows[0]) != _FIRST_LINE:
        raise ValueError(f"{name} is no file of digests of this version: it does not begin with {_FIRST_LINE!r}")
    if rows[-1][0] != "total":
        raise ValueError(f"{name} is incomplete: its last line is not the total. Digest the flow again")
    try:
        seed, block, rank, world_size = rows[1][1], int(rows[2][1]), int(rows[3][1]), int(rows[3][3])
        total, blocks, ends = _new(), {}, {}
        for row in rows[4:-1]:
            total.update(" ".join(row).encode())
            if row[0] == "end":
                ends[int(row[1])] = int(row[2])
            else:
                blocks[int(row[0]), int(row[1])] = row[2]
        num, expected = int(rows[-1][1]), rows[-1][2]
    except (IndexError, ValueError):
        raise ValueError(f"{name} is damaged: a line is not as `digest` writes it. Digest the flow again") from None
    if total.hexdigest() != expected:
        raise ValueError(f"{name} is damaged: its lines do not give its total. Digest the flow again")
    return Digests(name, seed, block, rank, world_size, blocks, ends, num)


def compare(files: Sequence[Digests]) -> str | None:
    """The first difference, as a sentence; None if all are equal.

    The shares of all ranks are compared with the whole, which comes first; other files each with the first one.

    Raises:
        ValueError: The files cannot be compared: blocks of different sizes, or a rank that is missing.
    """
    if len(files) < 2:
        raise ValueError("two files are compared at least")
    whole, *others = files
    for other in others:
        if other.block != whole.block:
            raise ValueError(
                f"{whole.name} has blocks of {whole.block} datapoints, and {other.name} of {other.block}: digest both "
                "with the same --block"
            )
    if any(other.world_size > 1 for other in others) and whole.world_size == 1:
        return _difference_of_shares(whole, others)
    for other in others:
        if (other.rank, other.world_size) != (whole.rank, whole.world_size):
            raise ValueError(
                f"{whole.name} is of rank {whole.rank} of {whole.world_size}, and {other.name} of rank {other.rank} of "
                f"{other.world_size}: give the whole first, then the shares of all ranks"
            )
        if (found := _first_difference(whole, other)) is not None:
            return found
    return None


def _first_difference(one: Digests, other: Digests) -> str | None:
    seeds = f"; their seeds are {one.seed} and {other.seed}" if one.seed != other.seed else ""
    for p in sorted({*one.passes(), *other.passes()}):
        begin = 0
        while True:
            here, there = one.blocks.get((p, begin)), other.blocks.get((p, begin))
            if here is None and there is None:
                break
            if here is None or there is None:
                shorter, longer = (one, other) if here is None else (other, one)
                return f"{shorter.name} ends before {_place(p, begin, one.block)}, which {longer.name} has{seeds}"
            if here != there:
                return (
                    f"{one.name} and {other.name} differ first in {_place(p, begin, one.block)}"
                    f"{_found_elsewhere(one, other, p, begin)}{seeds}"
                )
            begin += one.block
    return None


def _found_elsewhere(one: Digests, other: Digests, p: int, begin: int) -> str:
    """Where in the same pass the other file has the block, for messages."""
    if one.block > 1:
        return ""
    wanted = one.blocks[p, begin]
    found = next((k for (q, k), value in other.blocks.items() if q == p and value == wanted and k >= begin), None)
    if found is not None:
        return f": {other.name} has it as datapoint {found}"
    return f": {other.name} has it nowhere from there on in this pass"


def _difference_of_shares(whole: Digests, shares: Sequence[Digests]) -> str | None:
    world_size = shares[0].world_size
    if sorted(share.rank for share in shares) != list(range(world_size)) or any(
        share.world_size != world_size for share in shares
    ):
        found = ", ".join(f"{share.rank} of {share.world_size}" for share in shares)
        raise ValueError(f"the whole is compared with the shares of all ranks, each once; these are the ranks {found}")
    if whole.block > 1:
        raise ValueError("shares are compared datapoint by datapoint: digest them, and the whole, with --block 1")
    for p in whole.passes():
        n = whole.ends.get(p)
        num_known = sum(q == p for q, _ in whole.blocks)
        covered: set[int] = set()
        for share in shares:
            for k in count():
                found_here = share.blocks.get((p, k))
                if found_here is None:
                    break
                position = k * world_size + share.rank
                if n is not None and n <= position < -(-n // world_size) * world_size:
                    position %= n  # tail="repeat"
                elif position >= num_known:
                    if n is None:
                        break  # not digested
                    return f"{share.name} has {_place(p, k, 1)}, and its pass has none at position {position}"
                if whole.blocks[p, position] != found_here:
                    return f"{share.name} differs first from {whole.name} in {_place(p, k, 1)}, at position {position}"
                covered.add(position)
        missing = sorted({*range(num_known)} - covered)
        is_tail = n is not None and missing == list(range(n - n % world_size, n))
        ended = all(p in share.ends for share in shares)
        if missing and not (is_tail and ended):
            return f"{_place(p, missing[0], 1)} of {whole.name} is in no share"
    for share in shares:
        later = [p for p in share.passes() if p not in whole.passes()]
        if later:
            return f"{share.name} has pass {later[0]}, and {whole.name} has not"
    return None


def _place(p: int, begin: int, block: int) -> str:
    if block == 1:
        return f"datapoint {begin} of pass {p}"
    return f"the block of datapoints {begin} to {begin + block - 1} of pass {p}"
