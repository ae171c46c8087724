"""`RemoteDataZMQ`: the source that receives datapoints from other processes or machines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from dataflow.base import DataFlow
from dataflow.errors import TimeoutError
from dataflow.interrupts import signals_deferred
from dataflow.parameters import flag
from dataflow.remote.addresses import check_address, check_open
from dataflow.remote.agreement import HEARTBEAT, HWM_BYTES, check_heartbeat, check_seconds, make_agreement
from dataflow.remote.keys import RECEIVER, load_keys
from dataflow.remote.receiving_socket import ReceivingSocket
from dataflow.seeding import Stream
from dataflow.sources.source import Source
from dataflow.state import state_of

__all__ = ["RemoteDataZMQ"]

_OWNER: Final = "RemoteDataZMQ"


class RemoteDataZMQ(Source):
    """The datapoints that `send_dataflow_zmq` sends, from other processes or other machines.

    Senders come and go; their datapoints are mixed, those of each sender in order. With `num_senders` a pass ends
    when that many senders have ended, each with as many datapoints as it announces; a sender that comes
    too early waits for the next pass. Without it, a pass never ends. A pass that is left with `break` continues
    in the next loop.

    Every datapoint is handed out at most once. A lost sender is an error, never a shorter pass.

    Args:
        addr1: Address, ``tcp://HOST:PORT`` or ``ipc://PATH``. With port ``*`` the system chooses; see `addresses`.
        addr2: A second such address.
        hwm: Datapoints that each sender may have under way. None: 50, or 8 MiB if that is more.
        bind: Bind to the address. If false, connect to senders that are bound there.
        num_senders: Number of senders in a pass, at least 1. None: passes never end.
        hwm_bytes: Bytes that each sender may have under way, at both ends together, in any case; also the largest
            datapoint.
        heartbeat: Seconds between heartbeats of the connections. Each sender announces its own heartbeat; it counts as
            lost after three of those.
        timeout: Seconds without a datapoint after which to raise; None waits without limit.
        curve: A directory that ``python -m dataflow keys`` has made, or the file ``receiver.key_secret`` in it: the
            connection is encrypted, and only senders whose public key is in the same directory are accepted.
        insecure: Bind to an address that other machines can reach without `curve`.

    Raises:
        SenderLost: A sender was silent for three heartbeats, its flow has failed, or datapoints of it are
            missing.
        TimeoutError: No datapoint came for `timeout` seconds. The flow stays usable.
        DataFlowTerminated: The flow was closed, or has failed before.
        ValueError: An address is malformed, or can be reached from other machines without keys.
        OSError: The address is in use, when the flow is first iterated or reset.

    Example:
        >>> import threading
        >>> df = RemoteDataZMQ("tcp://127.0.0.1:*", num_senders=1)
        >>> df.reset_state()
        >>> sender = threading.Thread(target=send_dataflow_zmq, args=(DataFromIterable([[1], [2]]), df.addresses[0]))
        >>> sender.start()
        >>> list(df)
        [[1], [2]]
        >>> sender.join(); df.close()

    Source:
        `RemoteDataZMQ` of tensorpack.dataflow.
    """

    _df_run_settings = frozenset({"bind", "curve", "heartbeat", "hwm", "hwm_bytes", "insecure", "timeout"})

    def __init__(
        self,
        addr1: str,
        addr2: str | None = None,
        hwm: int | None = None,
        bind: bool = True,
        *,
        num_senders: int | None = None,
        hwm_bytes: int = HWM_BYTES,
        heartbeat: float = HEARTBEAT,
        timeout: float | None = None,
        curve: str | os.PathLike[str] | None = None,
        insecure: bool = False,
    ) -> None:
        bind, insecure = flag(_OWNER, "bind", bind), flag(_OWNER, "insecure", insecure)
        for addr in (addr1,) if addr2 is None else (addr1, addr2):
            check_address(_OWNER, addr)
            if bind:
                check_open(_OWNER, addr, curve=curve is not None, insecure=insecure)
        if num_senders is not None and (type(num_senders) is not int or num_senders < 1):
            raise ValueError(f"{_OWNER}: num_senders is an integer from 1, or None, got {num_senders!r}")
        make_agreement(_OWNER, hwm, hwm_bytes)
        check_heartbeat(_OWNER, heartbeat)
        if timeout is not None:
            check_seconds(_OWNER, "timeout", timeout)
        self.addr1 = addr1
        self.addr2 = addr2
        self.hwm = hwm
        self.bind = bind
        self.num_senders = num_senders
        self.hwm_bytes = hwm_bytes
        self.heartbeat = heartbeat
        self.timeout = timeout
        if curve is not None and not isinstance(curve, str | os.PathLike):
            raise TypeError(
                f"{_OWNER}: curve is a directory that python -m dataflow keys has made, or a key file, "
                f"got {curve!r:.100}"
            )
        self.curve = curve
        self.insecure = insecure

    @property
    def addresses(self) -> tuple[str, ...]:
        """The bound addresses, with the ports that the system has chosen; empty before the first reset or iteration."""
        inbox = state_of(self).resource
        return inbox.addresses if isinstance(inbox, ReceivingSocket) else ()

    @property
    def _df_endless(self) -> bool:
        return self.num_senders is None

    @property
    def _df_reproducible(self) -> bool:
        return False

    @property
    def _df_continues(self) -> bool:
        return True

    def reset_state(self) -> None:
        """Open the socket, unless it is open: senders that are connected stay connected."""
        DataFlow.reset_state(self)
        self._open()

    def _open(self) -> ReceivingSocket:
        life = state_of(self)
        with signals_deferred(), life.lock:
            inbox = life.resource
            if isinstance(inbox, ReceivingSocket) and inbox.usable:
                return inbox
            keys = None if self.curve is None else load_keys(self.curve, RECEIVER)
            life.own(self, None)  # the old one is closed before the new one takes its address
            inbox = ReceivingSocket(
                type(self).__name__,
                [addr for addr in (self.addr1, self.addr2) if addr is not None],
                bind=self.bind,
                num_senders=self.num_senders,
                terms=make_agreement(_OWNER, self.hwm, self.hwm_bytes),
                heartbeat=self.heartbeat,
                keys=keys,
            )
            life.own(self, inbox)
            return inbox

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        life = state_of(self)
        inbox = life.resource
        if not isinstance(inbox, ReceivingSocket):
            inbox = self._open()
        begin = partial(_received, inbox, self.timeout)
        return self._kept(life.continued.take(stream, begin, type(self).__name__))

    def _kept(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Keep a reference to the flow while a loop runs; otherwise it could be collected, and so be closed."""
        yield from steps


def _received(inbox: ReceivingSocket, timeout: float | None) -> Iterator[Any]:
    inbox.begin()
    since = time.monotonic()
    while True:
        chunk = inbox.chunk()
        if chunk is None:
            return
        some = False
        for dp in chunk:
            some = True
            yield dp
            del dp  # not kept while waiting for the next one
        now = time.monotonic()
        if some:
            since = now
        elif timeout is not None and now - since >= timeout:
            raise TimeoutError(
                f"{_OWNER} received no datapoint for {timeout:g} seconds ({inbox.state()}). See whether the senders "
                "run and can reach this address, and whether their keys are those of this side; or raise timeout"
            )
