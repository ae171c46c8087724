"""Options of both ends: addresses, limits of what may be under way, heartbeat, timeout and keys; checked alike."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dataflow.protocol.parameters import seconds, whole_number
from dataflow.remote.keys import Keys, load_keys
from dataflow.remote.peer_messages import MAX_HEARTBEAT, MIN_HEARTBEAT, SendLimits

__all__ = ["HEARTBEAT", "HWM_BYTES", "PeerOptions", "check_options", "socket_file"]

HEARTBEAT: Final = 2.0
"""Default heartbeat interval in seconds; three heartbeats may be missed."""

HWM_BYTES: Final = 256 << 20
"""Default limit of bytes under way between one sender and its receiver."""

_MIN_BYTES: Final = 1 << 16
_TCP: Final = "tcp://"
_IPC: Final = "ipc://"
_ABSTRACT: Final = "ipc://@"  # a name on Linux, not a file


@dataclass(frozen=True)
class PeerOptions:
    """What sender and receiver have in common, as `check_options` returns it.

    Attributes:
        owner: Class or function that the user has called, for messages.
        addresses: One or two addresses.
        bind: Whether to bind to the addresses; otherwise connect to them.
        limits: How far a sender may run ahead, as this side wants it.
        heartbeat: Seconds between heartbeats.
        timeout: Seconds to wait for an answer or a datapoint that is due; None waits without limit.
        curve: Where the keys of this side are; None if it uses none.
    """

    owner: str
    addresses: tuple[str, ...]
    bind: bool
    limits: SendLimits
    heartbeat: float = HEARTBEAT
    timeout: float | None = None
    curve: str | os.PathLike[str] | None = None

    def keys(self, side: str) -> Keys | None:
        """Load the keys of this side: `SENDER` or `RECEIVER`. For errors see `load_keys`."""
        return None if self.curve is None else load_keys(self.curve, side)


def check_options(
    owner: str,
    addresses: Sequence[str],
    *,
    bind: bool,
    hwm: Any,
    hwm_bytes: Any,
    heartbeat: Any,
    timeout: Any,
    curve: Any,
    insecure: bool,
) -> PeerOptions:
    """Check the options that sender and receiver have in common.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: An address is malformed, or open to other machines or users without keys; or a number is out of
            range.
    """
    for address in addresses:
        _check_address(owner, address)
        if curve is None and not insecure and (bind or address.startswith(_ABSTRACT)):
            _check_reachable(owner, address)
    if curve is not None and not isinstance(curve, str | os.PathLike):
        raise TypeError(
            f"{owner}: curve must be a directory that python -m dataflow keys has made, or a key file, "
            f"got {curve!r:.100}"
        )
    if hwm is not None:
        hwm = whole_number(owner, "hwm", hwm, 1, ": it is a number of datapoints, or None for a default")
    hwm_bytes = whole_number(owner, "hwm_bytes", hwm_bytes, _MIN_BYTES, ": it is a number of bytes")
    if not MIN_HEARTBEAT <= seconds(owner, "heartbeat", heartbeat, or_zero=True) <= MAX_HEARTBEAT:
        raise ValueError(f"{owner}: heartbeat is from {MIN_HEARTBEAT} to {MAX_HEARTBEAT:g} seconds, got {heartbeat!r}")
    if timeout is not None:
        seconds(owner, "timeout", timeout, cure="; None waits without limit")
    limits = SendLimits(hwm or 0, hwm_bytes)
    return PeerOptions(owner, tuple(addresses), bind, limits, float(heartbeat), timeout, curve)


def socket_file(address: str) -> str | None:
    """The absolute path of the file of a local socket; None if the address has no file."""
    if not address.startswith(_IPC) or address.startswith(_ABSTRACT):
        return None
    return os.path.abspath(address.removeprefix(_IPC))


def _check_address(owner: str, address: str) -> None:
    if isinstance(address, str):
        if address.startswith(_IPC) and len(address) > len(_IPC):
            return
        host, _, port = address.removeprefix(_TCP).rpartition(":")
        if address.startswith(_TCP) and host and (port == "*" or (port.isdecimal() and int(port) < 1 << 16)):
            return
    raise ValueError(
        f"{owner}: an address is tcp://HOST:PORT, such as tcp://127.0.0.1:5555, or ipc://PATH, got {address!r}"
    )


def _check_reachable(owner: str, address: str) -> None:
    """Check that an address, to be bound without keys, cannot be reached from the network.

    Nor, if it is that of a local socket, by other users: an abstract name has no permissions, as a file has. Any of
    them may have bound it, too, so it is checked on the side that connects as well.
    """
    if address.startswith(_ABSTRACT):
        raise ValueError(
            f"{owner}: {address} can be reached by every user of this machine, because an abstract socket has no "
            "permissions; without keys, any of them may send datapoints or read them. Use the path of a file, as in "
            "ipc:///PATH; make keys with python -m dataflow keys DIR and pass curve=DIR on both sides; or, on a "
            "machine whose users you trust, pass insecure=True"
        )
    host = address.removeprefix(_TCP).rpartition(":")[0].strip("[]")
    if address.startswith(_IPC) or host in {"localhost", "lo"}:
        return
    try:
        if ipaddress.ip_address(host).is_loopback:
            return
    except ValueError:  # a host name, an interface or *
        pass
    raise ValueError(
        f"{owner}: {address} can be reached from other machines; without keys, any of them may send datapoints or read "
        "them. Make keys with python -m dataflow keys DIR and pass curve=DIR on both sides; bind to 127.0.0.1; or, in "
        "a network that you trust, pass insecure=True"
    )
