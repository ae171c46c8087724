"""Datapoints to what a message carries, and back.

A datapoint is encoded at once, before the flow's next step: the flow may go on to change what it has yielded. What is
collected for one message is its bytes, never the datapoint.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, Protocol

from dataflow.transport.failures import pack_failure, unpack_failure

__all__ = ["Codec", "ObjectCodec", "PickleCodec", "Undecodable"]


class Undecodable(Exception):
    """A datapoint of a message cannot be read; the cause says why.

    Attributes:
        before: The datapoints of the message that come before it.
    """

    def __init__(self, before: list[Any]) -> None:
        super().__init__(f"datapoint {len(before)} of a message cannot be read")
        self.before = before


class Codec(Protocol):
    """How the datapoints of one channel are written and read."""

    def encode(self, dp: Any) -> Any:
        """One datapoint, as it is now."""

    def nbytes(self, encoded: Any) -> int:
        """What it counts against a window."""

    def join(self, encoded: Sequence[Any]) -> Any:
        """The body of a message."""

    def decode(self, body: Any) -> list[Any]:
        """The datapoints of a message. Raises `Undecodable`."""

    def encode_failure(self, error: BaseException, note: str) -> Any:
        """The body of a message about an exception."""

    def decode_failure(self, body: Any) -> BaseException:
        """The exception of such a message."""


class ObjectCodec:
    """Between threads: the datapoint itself travels."""

    def encode(self, dp: Any) -> Any:
        return dp

    def nbytes(self, encoded: Any) -> int:
        return 0

    def join(self, encoded: Sequence[Any]) -> Any:
        return encoded

    def decode(self, body: Any) -> list[Any]:
        return list(body)

    def encode_failure(self, error: BaseException, note: str) -> Any:
        error.add_note(note)
        return error

    def decode_failure(self, body: BaseException) -> BaseException:
        return body


class PickleCodec:
    """Between processes of one machine, which trust each other: one pickle for each datapoint."""

    def encode(self, dp: Any) -> bytes:
        return pickle.dumps(dp, pickle.HIGHEST_PROTOCOL)

    def nbytes(self, encoded: bytes) -> int:
        return len(encoded)

    def join(self, encoded: Sequence[bytes]) -> Sequence[bytes]:
        return encoded

    def decode(self, body: Sequence[Any]) -> list[Any]:
        datapoints: list[Any] = []
        try:
            datapoints.extend(map(pickle.loads, body))
        except Exception as error:
            raise Undecodable(datapoints) from error
        return datapoints

    def encode_failure(self, error: BaseException, note: str) -> Any:
        return [pack_failure(error, note=note)]

    def decode_failure(self, body: Sequence[Any]) -> BaseException:
        return unpack_failure(body[0])
