"""Checks of ZeroMQ addresses: their syntax, and which machines can reach a bound address."""

from __future__ import annotations

import ipaddress
from typing import Final

__all__ = ["check_address", "check_open"]

_TCP: Final = "tcp://"
_IPC: Final = "ipc://"


def check_address(owner: str, address: str) -> str:
    """Return `address` if it is a valid tcp:// or ipc:// address.

    Raises:
        ValueError: `address` is malformed; the message shows examples.
    """
    if isinstance(address, str):
        if address.startswith(_IPC) and len(address) > len(_IPC):
            return address
        host, _, port = address.removeprefix(_TCP).rpartition(":")
        if address.startswith(_TCP) and host and (port == "*" or (port.isdecimal() and int(port) < 1 << 16)):
            return address
    raise ValueError(
        f"{owner}: an address is tcp://HOST:PORT, such as tcp://127.0.0.1:5555, or ipc://PATH, got {address!r}"
    )


def check_open(owner: str, address: str, *, curve: bool, insecure: bool) -> None:
    """Check that an address without keys cannot be reached from the network.

    Raises:
        ValueError: `address` can be reached from other machines, without `curve` and without `insecure`.
    """
    if curve or insecure or not address.startswith(_TCP) or _is_loopback(address):
        return
    raise ValueError(
        f"{owner}: {address} can be reached from other machines, and without keys whoever reaches it may send "
        "datapoints or read them. Make keys with python -m dataflow keys DIR and pass curve=DIR on both sides; bind "
        "to 127.0.0.1; or, in a network that you trust, pass insecure=True"
    )


def _is_loopback(address: str) -> bool:
    host = address.removeprefix(_TCP).rpartition(":")[0].strip("[]")
    if host in {"localhost", "lo"}:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name, an interface or *
        return False
