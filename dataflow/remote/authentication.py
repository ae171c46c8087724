"""ZeroMQ's authenticator in a thread, which accepts clients whose public key is listed (ZAP, RFC 27).

Imported only where keys are used, because it imports asyncio.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any, Final

import zmq
from zmq.auth.thread import ThreadAuthenticator

__all__ = ["DOMAIN", "start_authenticator"]

DOMAIN: Final = "dataflow"

_started: Final[weakref.WeakSet[ThreadAuthenticator]] = weakref.WeakSet()
_inherited: Final[list[object]] = []  # through a fork: kept, so that ZeroMQ's objects in them are not finalised


def start_authenticator(context: zmq.Context[Any], allowed: Sequence[bytes]) -> ThreadAuthenticator:
    """Accept the owners of these public keys, in Z85, on the sockets of `context` with the domain `DOMAIN`."""
    authenticator = ThreadAuthenticator(context)
    authenticator.configure_curve_callback(DOMAIN, _ListedKeys(allowed))
    _started.add(authenticator)
    try:
        authenticator.start()
    except BaseException:
        authenticator.stop()
        raise
    return authenticator


class _ListedKeys:
    def __init__(self, allowed: Sequence[bytes]) -> None:
        self._allowed = frozenset(allowed)

    def callback(self, domain: str, key: bytes) -> bool:
        return key in self._allowed


def _forget() -> None:
    """In a child, just after the fork: drop the parent's authenticator; stopping it would wake the parent's thread."""
    for authenticator in list(_started):
        _inherited.append((authenticator.pipe, authenticator.zap_socket))
        authenticator.pipe = authenticator.zap_socket = None  # type: ignore[assignment]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
