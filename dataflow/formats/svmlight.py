"""`SVMLightData`: the rows of an SVMlight (libsvm) file, a text format of a label and non-zero features per line."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow.formats.checksums import file_damaged
from dataflow.formats.json_lines import finite
from dataflow.formats.loading import DiskData, PathLike, Positions, Reader
from dataflow.formats.positional import Identity, PositionalFile
from dataflow.system.descriptors import closed_on_error

__all__ = ["SVMLightData"]

_MAX_FEATURES = 1 << 27  # that a file may claim: a gigabyte in each row


class SVMLightData(DiskData[list[Any]]):
    r"""The rows of an SVMlight file, as datapoints ``[features, label]``: float64 (num_features,) and a numpy float64.

    When the flow is opened, the file is read once, to find its lines and the number of features; 8 bytes per line
    stay in memory. The format has no checksums: a file that was cut off between two lines is not detected.

    Args:
        filename: The file. Comments (``#``) and ``qid:`` are ignored.
        shuffle: Draw a new order for every pass.
        num_features: Number of features of each row; None means the highest in the file, which may be
            134,217,728 then.
        zero_based: Whether the first feature is 0; None means that it is if the file has a feature 0.
        block_shuffle: Rows per block: shuffle the blocks, and the rows inside each, instead of all at once.
        seed: Root seed for this node's order, instead of the one of `dataflow.seed`.

    Raises:
        FileDamaged: A line cannot be parsed; the message gives the byte offset.
        ValueError: A feature is not below `num_features`, or the file is named as a compressed one.

    Example:
        >>> import os, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = os.path.join(folder.name, "rows.svm")
        >>> with open(path, "w") as file:
        ...     _ = file.write("1 1:0.5 3:2\n-1 2:1 # a comment\n")
        >>> df = SVMLightData(path, shuffle=False)
        >>> [(features.tolist(), float(label)) for features, label in df]
        [([0.5, 0.0, 2.0], 1.0), ([0.0, 1.0, 0.0], -1.0)]
        >>> df.close(); folder.cleanup()

    Source:
        tensorpack.dataflow, whose class of this name it replaces; scikit-learn's ``load_svmlight_file``.
    """

    def __init__(
        self,
        filename: PathLike,
        shuffle: bool = True,
        *,
        num_features: int | None = None,
        zero_based: bool | None = None,
        block_shuffle: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(filename, shuffle, block_shuffle=block_shuffle, seed=seed)
        self.num_features = num_features
        self.zero_based = zero_based

    def _df_open_reader(self) -> Reader:
        return _LineReader(self.path, self.num_features, self.zero_based)


class _LineReader:
    """An open file."""

    def __init__(self, path: str, num_features: int | None, zero_based: bool | None) -> None:
        self._path = path
        self._lines = array("Q")  # offset of each line
        self._max_features = _MAX_FEATURES if num_features is None else None
        with closed_on_error():
            self._file = PositionalFile(path)
            lowest, highest = self._scan()
            self._first = 0 if zero_based or (zero_based is None and lowest == 0) else 1
            if lowest < self._first:
                raise ValueError(f"{path} has a feature {lowest}, so it counts from 0: give zero_based=True")
            self._num_features = highest - self._first + 1 if num_features is None else num_features
            if highest - self._first >= self._num_features:
                raise ValueError(f"{path} has a feature {highest}, and num_features is {num_features}")

    @property
    def identities(self) -> Sequence[Identity]:
        return [self._file.identity]

    def __len__(self) -> int:
        return len(self._lines)

    def close(self) -> None:
        self._file.close()

    def read(self, positions: Positions) -> Iterator[Any]:
        self._file.require_unchanged()
        for k in positions.tolist():
            begin = self._lines[k]
            after = self._lines[k + 1] if k + 1 < len(self._lines) else self._file.size
            text = bytes(self._file.read(begin, after - begin, f"line {k}")).split(b"\n", 1)[0]
            label, columns, values = self._parse(text, begin)
            row = np.zeros(self._num_features)
            row[columns - self._first] = values
            yield [row, label]

    def _scan(self) -> tuple[int, int]:
        """Find the lines, and the lowest and highest feature."""
        from dataflow.observe.progress import Bar

        lowest, highest = 1, 0
        begin = 0
        with (
            self._file.stream() as stream,
            Bar(total=self._file.size, unit="B", unit_scale=True, delay=1, desc="lines") as bar,
        ):
            for text in stream:
                bar.update(len(text))
                if text.split(b"#", 1)[0].strip():
                    _, columns, _ = self._parse(text, begin)
                    self._lines.append(begin)
                    if len(columns):
                        lowest = min(lowest, int(columns.min()))
                        highest = max(highest, int(columns.max()))
                begin += len(text)
        if begin != self._file.size:
            raise file_damaged(self._path, "", f"it ends, {self._file.size - begin} bytes too early,", begin)
        return lowest, highest

    def _parse(self, text: bytes, begin: int) -> tuple[np.float64, NDArray[np.int64], NDArray[np.float64]]:
        try:
            label, *pairs = text.split(b"#", 1)[0].split()
            split = [pair.split(b":") for pair in pairs if not pair.startswith(b"qid:")]
            columns = np.array([int(column) for column, _ in split], np.int64)
            values = np.array([finite(value) for _, value in split], np.float64)
            if self._max_features is not None and (columns > self._max_features).any():
                raise ValueError(f"more than {self._max_features} features; if that is meant, give num_features")
            if len(columns) and (columns.min() < 0 or len(set(columns.tolist())) < len(columns)):
                raise ValueError("a feature is negative, or is there twice")
            return np.float64(finite(label)), columns, values
        except (ValueError, OverflowError) as error:
            raise file_damaged(
                self._path, "", f"a line that is not 'label feature:value …' ({error}),", begin
            ) from error
