"""The codec between processes: datapoints to bytes, at the yield, and back in the consumer.

The encoder takes the arrays out; the rest, the *skeleton*, is pickled. The decoder unpickles skeletons and fills their
gaps. An array of `LARGE_BYTES` or more goes into a block of the arena; a smaller one becomes bytes.

Guarantees:

- The encoded datapoint is a snapshot; the flow may change the datapoint afterwards.
- All or nothing: if the arena lacks room for one large array of a datapoint, no block is taken for the others.
- Identity survives within one datapoint: an array that occurs twice in it arrives as one object.
- The skeletons of many datapoints are loaded by one call: protocol 3 has explicit memo indexes and no frames, so the
  bodies of pickles can be joined into one list.
- An output buffer (a block that the flow itself has filled, see `dataflow.empty`) is sent without a copy only if
  nothing but the encoder can reach it: the reference counts of datapoint, array and base are the lowest that this path
  can show.

Which way a datapoint takes; the first line that fits:

    one array, of the same dtype as in the last datapoint   `_encode_like`, the fast path
    no component is an array                                `_encode_without`: marshalled or pickled whole
    an array twice, of objects, padded, or nested deeper    `_encode_nested`: pickle asks for each array
    any other                                               `encode`: the skeleton, and the arrays as bytes or blocks

A datapoint with one array, like the one before it, takes a fast path (`_encode_like`): without it, the benchmarks
`mnist` and `image` take 1.6 and 1.14 times the worker's CPU time in the encoder.

The decoder copies a small array out, so that a datapoint that is kept does not keep its whole message alive; an array
in a block of the arena is read in place. Both are writable. Messages often describe their arrays in the same way, so
descriptions are cached: without the cache, the benchmarks `image`, `ragged` and `batch` take 1.15 to 1.3 times the
consumer's CPU time in the decoder.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.protocol.failures import Report
from dataflow.transport.arena import LARGE_BYTES, Base, Block, BlockReaders, BlockWriter, OutputBufferCounts
from dataflow.transport.exceptions import pack_failure, pack_report, unpack_failure, unpack_report
from dataflow.transport.message_layout import (
    NESTED,
    NO_ROOM,
    NUMBERS,
    PLAIN_BYTES,
    PROTOCOL,
    ROWS,
    TEXTS,
    VERSION,
    ColumnReader,
    DatapointKind,
    Description,
    Layout,
    has_padding,
    join,
    load,
    load_skeletons,
    name_of,
    split_skeletons,
    without_padding,
)
from dataflow.transport.nested_arrays import Direction, NestedUnpickler, ToConsumer

__all__ = ["ArrayDecoder", "ArrayEncoder", "Undecodable"]


# -- Encoder -----------------------------------------------------------------------------------------------------------


_ARRAY: Final = np.ndarray  # exactly this type: the additions of a subclass would be lost
_ARRAY_INSIDE: Final = b"ndarray\n"  # names the class in every pickle that contains an array
_marshalled: Final = marshal.dumps


class ArrayEncoder:
    """The worker's end of the codec between processes.

    Args:
        arena: Where large arrays go.
        direction: How everything but arrays is pickled.
    """

    keeps_memory = True

    def __init__(self, arena: BlockWriter, direction: Direction | None = None) -> None:
        self._arena = arena
        self._direction = direction or ToConsumer()
        self._quick = self._direction.quick
        self._inline = False  # for this datapoint, every array becomes bytes
        self.nbytes = 0  # of the last encoded datapoint
        self.plain = False  # the last datapoint was short and without arrays, so the next one probably is too
        self._kind = DatapointKind([], [])  # of the last datapoint
        self._buffer_counts = OutputBufferCounts()

    def encode_plain(self, datapoints: Iterator[Any], encoded: MutableSequence[Any]) -> Any:
        """Encode datapoints as long as they are short and without arrays; append them to `encoded`.

        Returns:
            The first datapoint that does not qualify, to be passed to `encode`; `NO_ROOM` after the last.
        """
        pickled, append = self._quick, encoded.append
        for dp in datapoints:
            try:
                if type(dp) in ROWS:
                    for value in dp:
                        if type(value) not in NUMBERS:
                            body = pickled(dp, PROTOCOL)
                            break
                    else:
                        body = _marshalled(dp, VERSION)
                else:
                    body = pickled(dp, PROTOCOL)
            except Exception:
                self.plain = False  # `encode` raises the exception again
                return dp
            if len(body) > PLAIN_BYTES:
                self.plain = False  # it may contain an array, which must not be pickled whole
                return dp
            append(body)
        return NO_ROOM

    def encode(self, dp: Any) -> Any:
        """Encode one datapoint: bytes, or an `EncodedDatapoint` if it has arrays.

        Returns `NO_ROOM` if the arena has no room for its arrays now.
        """
        its_type = type(dp)
        kind = self._kind
        if (
            its_type is kind.type
            and kind.single_array is not None
            and (encoded := self._encode_like(dp, kind)) is not None
        ):
            return encoded
        if its_type is dict:
            row = list(dp.values())
        elif its_type in ROWS:
            row = list(dp)
        else:
            return self._encode_nested(dp) if its_type is _ARRAY else self._encode_without(dp, False)
        types = list(map(type, row))
        if types != kind.types or its_type is not kind.type or (its_type is dict and not kind.has_names_of(dp)):
            kind = self._new_kind(dp, types, row)
        if not kind.array_indexes:
            return self._encode_without(dp, kind.is_simple, kind.is_row)
        if not kind.has_plain_keys:
            return self._encode_nested(dp)
        arrays: Any = (row[kind.array_indexes[0]],) if kind.pick is None else kind.pick(row)
        num = len(arrays)
        # For two or three arrays, these are all pairs.
        maybe_twice = num > 1 and (
            num > 3 or arrays[0] is arrays[1] or arrays[0] is arrays[-1] or arrays[-2] is arrays[-1]
        )
        if maybe_twice and len(set(map(id, arrays))) < num:
            return self._encode_nested(dp)
        for index in kind.array_indexes:
            row[index] = None
        body = _marshalled(row, VERSION) if kind.is_row else self._pickle(row)  # before any block is taken
        if not kind.is_simple and len(body) > PLAIN_BYTES and _ARRAY_INSIDE in body:
            return self._encode_nested(dp)
        # From here on every array has the same number of references in this method: the counts depend on it.
        shapes: list[Any] = []
        # At most two turns: `learn`, below, records the dtypes of these arrays.
        while True:
            form: Any = kind.form
            data: list[Any] = []
            nbytes = len(body)
            has_output_buffers = False
            for array, (dtype, name, last, size) in zip(arrays, kind.last, strict=False):
                if array.dtype is not dtype and (name is None or name_of(array.dtype) != name):
                    break
                if (shape := array.shape) != last:
                    size = array.nbytes
                nbytes += size
                shapes.append(shape)
                flags = array.flags
                order: Any = "C"
                if not flags.c_contiguous:
                    order = "F" if flags.f_contiguous else "C"
                    if form is kind.form:
                        form = (kind.gaps, list(kind.form[1]))
                    form[1][len(data)] = (name, order)
                if size < LARGE_BYTES or self._inline:
                    data.append(array.tobytes(order))
                    continue
                base = array.base
                if base is not None and self._arena.is_output_buffer(base):
                    counts = sys.getrefcount(dp), sys.getrefcount(array), sys.getrefcount(base)
                    # First in the line, since the calibration learns the counts from this call. A part of an output
                    # buffer is copied, because a message gives only the start of a block.
                    if self._buffer_counts.unreachable(its_type, counts) and flags.c_contiguous and size == base.nbytes:
                        has_output_buffers = True
                        data.append(base)
                        continue
                block = self._arena.copy(array, order)
                if block is None:
                    self._give_back(data)
                    return NO_ROOM
                data.append(block)
            else:
                break
            # An array of another dtype than in the last datapoint of this kind.
            self._give_back(data)
            shapes.clear()
            if not kind.learn(arrays):
                return self._encode_nested(dp)
        self.nbytes = nbytes
        # The datapoint is certain to leave now, so output buffers can be handed over.
        return body, form, shapes, list(map(self._pass_on, data)) if has_output_buffers else data, nbytes

    def _new_kind(self, dp: Any, types: list[type], row: list[Any]) -> DatapointKind:
        """Return the kind of a datapoint that differs from the last one; `row` has its components."""
        kind = DatapointKind(dp, types)
        kind.learn([row[index] for index in kind.array_indexes])
        if kind.has_plain_keys:  # keys of other types are the user's objects and must not be kept alive
            self._kind = kind
        return kind

    def _encode_like(self, dp: Any, kind: DatapointKind) -> Any:
        """Fast path: encode a datapoint like the last one, with a single array. Return None if it is not like it."""
        if kind.names is not None and not kind.has_names_of(dp):
            return None
        row = list(dp if kind.names is None else dp.values())
        index: Any = kind.single_array
        try:
            array = row[index]
        except IndexError:
            return None
        dtype, name, shape, size = kind.last[0]
        shapes = kind.shapes
        if type(array) is not _ARRAY or array.dtype is not dtype or not array.flags.c_contiguous:
            return None
        if array.shape != shape:
            shape, size = array.shape, array.nbytes
            kind.last[0] = dtype, name, shape, size
            shapes = kind.shapes = (shape,)
        is_small = size < LARGE_BYTES or self._inline
        # Perhaps an output buffer, whose references `encode` counts: here there are others.
        if not is_small and type(array.base) is Base:
            return None
        row[index] = None
        for value in row:
            if type(value) not in TEXTS:
                body = self._pickle(row)
                if len(body) > PLAIN_BYTES and _ARRAY_INSIDE in body:
                    return None
                break
        else:
            body = _marshalled(row, VERSION)
        piece = array.tobytes() if is_small else self._arena.copy(array, "C")
        if piece is None:
            return NO_ROOM
        self.nbytes = nbytes = size + len(body)
        return body, kind.form, shapes, (piece,), nbytes

    def encode_inline(self, dp: Any) -> Any:
        """Encode one datapoint without using the arena."""
        self._inline = True
        try:
            return self.encode(dp)
        finally:
            self._inline = False

    def join(self, encoded: Sequence[Any]) -> tuple[list[Any], int]:
        """Return the body of a message, and the bytes of its datapoints."""
        return join(encoded, self._arena.write)

    def encode_failure(self, error: BaseException, note: str) -> list[Any]:
        """Return the body of an error message."""
        return [pack_failure(error, note=note)]

    def encode_report(self, report: Report, note: str) -> list[Any]:
        """Return the body of a report message."""
        return [pack_report(report, note=note)]

    def tidy(self) -> None:
        """Release unused memory."""
        self._arena.tidy()

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an output buffer for the flow to fill, in a block of the arena if there is room."""
        return self._arena.output_buffer(shape, dtype)

    # -- Datapoints with arrays ----------------------------------------------------------------------------------------

    def _encode_without(self, dp: Any, is_simple: bool, is_row: bool = False) -> Any:
        """Encode a datapoint none of whose components is an array."""
        body = _marshalled(dp, VERSION) if is_row else self._pickle(dp)
        self.nbytes = len(body)
        if self.nbytes <= PLAIN_BYTES:
            self.plain = True
        elif not is_simple and _ARRAY_INSIDE in body:
            return self._encode_nested(dp)
        return body

    def _pickle(self, value: Any) -> bytes:
        try:
            return self._quick(value, PROTOCOL)
        except Exception:
            # Classes may raise anything as they are pickled. What no pickler can write raises its error here.
            return self._direction.complete(value)

    def _give_back(self, data: list[Any]) -> None:
        for piece in data:
            if type(piece) is Block:
                self._arena.give_back(piece)

    def _encode_nested(self, dp: Any) -> Any:
        """Encode any value: pickle asks for each array in it, wherever it is."""
        body, arrays = self._direction.nested(dp)
        self.nbytes = len(body)
        layouts: list[Layout] = []
        data: list[Any] = []
        for array in arrays:
            order: Any = "C" if array.flags.c_contiguous or not array.flags.f_contiguous else "F"
            layouts.append((name_of(array.dtype), array.shape, order))
            self.nbytes += array.nbytes
            source, source_order = array, order
            if has_padding(array.dtype):
                source = without_padding(array, order).reshape(-1, order=order).view(np.uint8)
                source_order = "C"
            is_small = array.nbytes < LARGE_BYTES or self._inline
            piece = source.tobytes(source_order) if is_small else self._arena.copy(source, source_order)
            if piece is None:
                self._give_back(data)
                return NO_ROOM
            data.append(piece)
        return body, NESTED, layouts, data, self.nbytes

    def _pass_on(self, data: Any) -> bytes | Block:
        return self._arena.release(data) if isinstance(data, np.ndarray) else data

    def calibrate(self, run: Callable[[Iterator[Any]], Any]) -> None:
        """Measure the reference counts of an unshared output buffer, on the same path that encodes datapoints."""
        self._buffer_counts.calibrate(run, self._arena.output_buffer, self._arena.give_back_all)


# -- Decoder -----------------------------------------------------------------------------------------------------------


_MAX_DESCRIPTIONS: Final = 64
_LONG: Final = 4096  # descriptions of at least this many bytes are not cached


class Undecodable(Exception):
    """A datapoint could not be decoded.

    Its cause gives the reason; `before` holds the datapoints that precede it in the message.
    """

    def __init__(self, before: list[Any]) -> None:
        super().__init__()
        self.before = before


class ArrayDecoder:
    """The consumer's end of the codec between processes.

    Args:
        arenas: The arena of each worker, with its large arrays.
    """

    def __init__(self, arenas: BlockReaders) -> None:
        self._arenas = arenas
        self._descriptions: dict[bytes, Description] = {}  # cache, by their bytes

    def decode(self, worker: int, body: Sequence[Any]) -> list[Any]:
        """Decode the datapoints of a message."""
        data, lengths, *described = body
        groups, has_nested = self._arrays(worker, *described) if described else ([], False)
        try:
            skeletons = None if has_nested else load_skeletons(data, lengths)
        except Exception as error:
            if not len(lengths):  # rows of numbers only: they cannot be told apart, and only memory can be short
                raise Undecodable([]) from error
            skeletons = None  # loading them one by one shows which one fails
        if skeletons is None:
            return _decode_apart(data, lengths, groups)
        if len(groups) == 1:
            gaps, _, columns = groups[0]
            return _complete(skeletons, gaps, columns)
        if not groups:
            return skeletons
        datapoints = []
        start = 0
        for gaps, count, columns in groups:
            datapoints += _complete(skeletons[start : start + count], gaps, columns)
            start += count
        return datapoints

    def decode_failure(self, body: Sequence[Any]) -> BaseException:
        """Decode the exception of an error message."""
        return unpack_failure(body[0])

    def decode_report(self, body: Sequence[Any]) -> Report:
        """Decode the report of a report message."""
        return unpack_report(body[0])

    def _arrays(self, worker: int, described: Any, rest: Any) -> tuple[list[tuple[Any, int, list[Any]]], bool]:
        """Return groups of consecutive datapoints, and whether any datapoint is nested.

        A group is (gaps, number of datapoints, arrays by component).
        """
        description, rest = self._description(bytes(described)), memoryview(rest)
        arena = self._arenas[worker]
        where = description.where(rest)
        try:
            small = rest[description.detail_bytes :] if where is None else arena.read(*where)
            reader = ColumnReader(rest, small, arena.leases)
            groups = []
            for gaps, count, columns in description.groups:
                groups.append((gaps, count, list(map(reader.read, columns))))
            return groups, description.has_nested
        finally:
            if where is not None:  # all arrays were copied out
                arena.free(where[0])

    def _description(self, data: bytes) -> Description:
        try:
            return self._descriptions[data]
        except KeyError:
            description = Description(data)
            if len(data) < _LONG and description.may_be_kept:
                if len(self._descriptions) >= _MAX_DESCRIPTIONS:
                    # All at once, which costs least: messages that all differ must not fill the memory.
                    self._descriptions.clear()
                self._descriptions[data] = description
            return description


def _decode_apart(data: Any, lengths: Any, groups: Sequence[Any]) -> list[Any]:
    """Decode the datapoints of a message one by one."""
    datapoints: list[Any] = []
    bodies = split_skeletons(data, lengths)
    for gaps, count, columns in groups or [(None, None, [])]:
        arrays = [iter(column) for column in columns]
        for body in islice(bodies, count):
            try:
                skeleton = NestedUnpickler(body, arrays[0]).load() if gaps == NESTED else load(body)
            except Exception as error:
                raise Undecodable(datapoints) from error
            datapoints += _complete([skeleton], gaps, arrays)
    return datapoints


def _complete(skeletons: list[Any], gaps: Any, columns: Sequence[Iterable[Any]]) -> list[Any]:
    """Fill the gaps of skeletons that all have the same gaps."""
    if gaps is None or gaps == NESTED:
        return skeletons
    is_tuple, indexes, names = gaps
    for index, column in zip(indexes, columns, strict=True):
        for skeleton, array in zip(skeletons, column, strict=False):  # in this order: a column may be shared
            skeleton[index] = array
    if names is not None:
        return [dict(zip(names, skeleton, strict=False)) for skeleton in skeletons]
    return list(map(tuple, skeletons)) if is_tuple else skeletons
