"""`send_dataflow_zmq`: sends one pass of a flow to a receiver."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from dataflow.base import DataFlow, require_flow
from dataflow.channel.batching_sender import BatchingSender, Stopped
from dataflow.channel.protocols import ConsumerGone
from dataflow.errors import ReceiverLost
from dataflow.passes import known_length
from dataflow.remote.addresses import check_address, check_open
from dataflow.remote.agreement import HEARTBEAT, HWM_BYTES, check_heartbeat, check_seconds, make_agreement
from dataflow.remote.connection import Connection
from dataflow.remote.frame_encoder import FrameEncoder
from dataflow.remote.keys import SENDER, load_keys
from dataflow.remote.messages import Hello

__all__ = ["send_dataflow_zmq"]

_LOG = logging.getLogger(__name__)
_OWNER: Final = "send_dataflow_zmq"
_FLUSH: Final = 0.5  # seconds


def send_dataflow_zmq(
    df: DataFlow,
    addr: str,
    hwm: int | None = None,
    format: str | None = None,
    bind: bool = False,
    *,
    hwm_bytes: int = HWM_BYTES,
    heartbeat: float = HEARTBEAT,
    timeout: float | None = None,
    curve: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    name: str | None = None,
) -> int:
    """Send one pass of a flow to a `RemoteDataZMQ`, and its end. Send ``RepeatedData(df, -1)`` to send endlessly.

    Arrays, numbers, text, bytes and containers of them arrive with their types. Nothing is pickled, so other types
    cannot be sent.

    Args:
        df: The flow; it stays open.
        addr: Address, ``tcp://HOST:PORT`` or ``ipc://PATH``.
        hwm: Datapoints that may be under way. None leaves it to the receiver.
        format: None. Tensorpack's other formats are not supported.
        bind: Bind to the address. If false, connect to a receiver that is bound there.
        hwm_bytes: Bytes that may be under way in any case; the smaller number of both sides applies.
        heartbeat: Seconds between heartbeats. After three without one, the receiver raises. Increase it if the flow
            calls native code that keeps the interpreter's lock for as long as that.
        timeout: Seconds to wait for a receiver, and later for its progress; None waits without limit.
        curve: A directory that ``python -m dataflow keys`` has made, or the file ``sender.key_secret`` in it;
            see `RemoteDataZMQ`.
        insecure: Bind to an address that other machines can reach without `curve`.
        name: Identity of the sender, as the receiver counts `num_senders`: calls with one name are passes of one
            sender, each of which takes part in another pass of the receiver. None stands for the calling thread, which
            is right unless each pass is sent by a process of its own.

    Returns:
        Number of datapoints that the receiver has taken: all of them; or fewer, if it was closed before.

    Raises:
        ReceiverLost: The connection broke, the receiver has failed, or it refuses our key.
        TimeoutError: No receiver had room, or took anything, for `timeout` seconds.
        NotStorable: A datapoint cannot be sent without pickling; the message names the component.
        ValueError: An address is malformed, or can be reached from other machines without keys.

    Source:
        `send_dataflow_zmq` of tensorpack.dataflow, which sends endlessly.
    """
    require_flow(df, _OWNER)
    check_address(_OWNER, addr)
    if bind:
        check_open(_OWNER, addr, curve=curve is not None, insecure=insecure)
    if format is not None:
        raise ValueError(f"{_OWNER}: format is None, got {format!r}: there is one format, which RemoteDataZMQ reads")
    check_heartbeat(_OWNER, heartbeat)
    if timeout is not None:
        check_seconds(_OWNER, "timeout", timeout)
    where = f"{socket.gethostname()} (pid {os.getpid()})"
    terms = make_agreement(_OWNER, hwm, hwm_bytes)
    keys = None if curve is None else load_keys(curve, SENDER)
    # The pass begins before a socket is open: workers that the flow starts inherit none, and start working at once.
    datapoints = iter(df)
    connection = Connection(
        _OWNER,
        addr,
        bind=bind,
        terms=terms,
        hello=Hello(where, name or _source(where), float(heartbeat), None if df._df_endless else known_length(df)),
        timeout=timeout,
        keys=keys,
    )
    try:
        return _send(datapoints, connection, encrypted=keys is not None)
    except ReceiverLost as lost:
        if not lost.closed:
            raise
        _LOG.info("%s", lost)
        return lost.taken
    finally:
        connection.close(_FLUSH)


class _ThisThread(threading.local):
    token = ""  # distinguishes the threads of a process; Python may reuse an ident


_here = _ThisThread()


def _source(where: str) -> str:
    """Return the unique name of the calling thread. A forked child has another process id."""
    _here.token = _here.token or secrets.token_hex(8)
    return f"{where} {_here.token}"


def _send(datapoints: Iterator[Any], connection: Connection, *, encrypted: bool) -> int:
    window, max_bytes = connection.wait_welcome()
    sender = BatchingSender(
        0, connection, FrameEncoder(max_bytes, encrypted=encrypted), connection.credit.port(0).quota(window)
    )
    try:
        sender.put_all(datapoints)
        connection.wait_done()
    except (Stopped, ConsumerGone):
        connection.raise_lost()
        raise
    except Exception as error:
        with suppress(ConsumerGone):
            sender.failed(error, "")
        raise
    finally:
        sender.close(_FLUSH)
    return connection.taken
