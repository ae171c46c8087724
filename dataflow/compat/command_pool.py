"""Pool of worker processes that run commands: started together, monitored, and stopped.

Guarantees, in addition to those of the supervisor:

- A worker that waits for a command uses no CPU, and stops waiting when the consumer closes its end or dies.
- A command is received whole or not at all; it is acknowledged once everything that it requires is written.
- Only the process that started a pool uses or stops it.

One thread at a time, except for `close` of a pool that is no longer in use.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from typing import Final, Protocol

from dataflow.errors import TimeoutError
from dataflow.protocol.seeding import derived, seed
from dataflow.runners.supervisor import Supervisor
from dataflow.system.cleanup import close_at_exit
from dataflow.system.descriptors import Descriptor, closed_on_error, counted, no_fork
from dataflow.system.interrupts import signals_deferred
from dataflow.system.worker_errors import died, ending_if_forked, exit_code, late
from dataflow.system.worker_info import worker_info_of
from dataflow.system.worker_pool import grace
from dataflow.system.worker_process import Payload, ProcessWorker, context_of, end_if_main_is_imported
from dataflow.transport.exceptions import pack_failure, unpack_failure
from dataflow.transport.local_channel import PipeChannel
from dataflow.transport.messages import ConsumerGone, Kind, Message, Port, Sender

__all__ = ["MAX_COMMAND_BYTES", "CommandPool", "Skill"]

MAX_COMMAND_BYTES: Final = 64 << 10
"""Maximum size of one command: the socket buffer takes that many bytes from a sender, so sending never blocks."""

_PREFIX: Final = struct.Struct("<I")  # length of a command
_DESCRIPTORS: Final = 8  # descriptors that this process needs for a pool
_PER_WORKER: Final = 8  # and for each of its workers, while they start
_DIED: Final = partial(died, workers_name="n_proc", work="the target", made="result")
_GRACE: Final = 0.25  # fraction of the usual grace period: results still in progress are not needed


class Skill(Protocol):
    """Description of what a worker can do; picklable while a process is started."""

    payload: Payload
    files: tuple[Descriptor, ...]
    """Descriptors that a forked worker must inherit."""

    def open(self) -> Callable[[bytes, Descriptor | None], None]:
        """Prepare, in the worker; return the function that runs a command, and closes the memory that came with it."""


class CommandPool:
    """Worker processes, one for each skill.

    Args:
        owner: Name of the class that users see, for messages.
        context: How processes are started: a multiprocessing context, a start method, or None for the default.
        skills: What each worker can do.
        words: Seed of the pool; every worker gets one of its own.
        reseed: Whether flows that are made in a worker are seeded too, because the user has fixed a root.

    Attributes:
        acknowledged: For each worker: the seconds that each command took, of those not yet removed by the consumer.
        failures: Errors of the workers that have failed or died.

    Raises:
        NotImplementedError: This system has no such processes.
    """

    def __init__(
        self,
        owner: str,
        context: BaseContext | str | None,
        skills: Sequence[Skill],
        words: tuple[int, ...],
        *,
        reseed: bool,
    ) -> None:
        if sys.platform == "win32":
            raise NotImplementedError(f"{owner} needs the pipes and signals of POSIX. Use WSL, or threads")
        end_if_main_is_imported()
        n, context = len(skills), context_of(context)
        self.acknowledged: list[deque[float]] = [deque() for _ in range(n)]
        self.failures: dict[int, BaseException] = {}
        self._owner = owner
        self._pid = os.getpid()
        with signals_deferred(), closed_on_error(), counted(owner, _DESCRIPTORS + _PER_WORKER * n):
            channel = PipeChannel(n)
            self._sockets = [_CommandSocket() for _ in skills]
            factories = []
            for k, (skill, commands) in enumerate(zip(skills, self._sockets, strict=True)):
                info = worker_info_of(k, n)
                own = (*words, k, n)
                note = f"raised in worker {k} of {n} of {owner}"
                loop = _CommandLoop(k, skill, commands, channel.port(k), derived(own) if reseed else None, note)
                factories.append(
                    partial(ProcessWorker, context, info, own, loop, loop.descriptors(), loop.close_in_parent)
                )
            self._supervisor = Supervisor(owner, channel, factories, request_stop=self._close_sockets, died=_DIED)
            try:
                close_at_exit(self)
            except BaseException:
                self._supervisor.stop(0)  # the program is ending, and nothing else would stop them
                raise

    def send(self, worker: int, data: bytes, memory: Descriptor | None = None) -> None:
        """Send a command to a worker."""
        self._sockets[worker].send(data, memory)

    def wait(self, timeout: float) -> None:
        """Wait for a message or the end of a worker, `timeout` seconds at most. An interrupt in here is harmless."""
        self._supervisor.wait(timeout)

    def receive_all(self) -> None:
        """Read all messages into `acknowledged` and `failures`. An interrupt in here requires `close`."""
        supervisor, now = self._supervisor, time.monotonic()
        self._handle_all(now)
        for death in supervisor.check(now):
            self.failures[death.worker] = death.error
        if self._handle_all(now):  # the check found messages of a worker that has ended
            for death in supervisor.check(now):
                self.failures[death.worker] = death.error

    def late(self, timeout: float) -> TimeoutError:
        """Return the error for `timeout` seconds without a result."""
        again = "It stays usable: call get again, with a longer timeout"
        return late(self._owner, timeout, self._supervisor.descriptions(), made="result", again=again)

    def close(self) -> None:
        """Stop the workers and close everything. Idempotent; no-op in a forked child."""
        if os.getpid() == self._pid:
            self._supervisor.stop(_GRACE * grace())

    def _close_sockets(self) -> None:
        with ExitStack() as last:  # all, whatever one of them raises
            for commands in self._sockets:
                last.callback(commands.close)

    def _handle_all(self, now: float) -> bool:
        """Handle all messages that have come; return whether there were any."""
        found = False
        while (message := self._supervisor.receive_nowait(now)) is not None:
            found, worker = True, message.worker
            if message.kind is Kind.DATA:
                self.acknowledged[worker].append(message.pace)
            elif message.kind is Kind.ERROR:
                self.failures[worker] = unpack_failure(message.body[0])
            elif message.kind is Kind.LEFT:
                self.failures[worker] = self._supervisor.left(message).error
                self.failures[worker].__cause__ = unpack_failure(message.body[0])  # its traceback shows where
        return found


class _CommandSocket:
    """Socket for commands from the consumer to one worker. Picklable while a process is started: the worker's end."""

    def __init__(self) -> None:
        with no_fork:
            ours, theirs = socket.socketpair()
            self._ours: Descriptor | None = Descriptor(ours.detach())
            self.theirs = Descriptor(theirs.detach())

    def send(self, data: bytes, memory: Descriptor | None) -> None:
        """Send a command. No-op if the worker has ended: the wait for its acknowledgement detects that."""
        assert self._ours is not None and len(data) <= MAX_COMMAND_BYTES, "a command is short, and from the consumer"
        message = _PREFIX.pack(len(data)) + data
        with _opened(self._ours) as end, suppress(BrokenPipeError, ConnectionResetError):
            # The descriptor goes with the first byte; what did not fit, if anything, follows without.
            sent = socket.send_fds(end, [message], [] if memory is None else [memory.fd])
            end.sendall(message[sent:])

    def close(self) -> None:
        """Close the consumer's end: no more commands. Idempotent."""
        assert self._ours is not None, "a worker closes nothing"
        self._ours.close()
        self.theirs.close()

    def receive(self) -> tuple[bytes, Descriptor | None] | None:
        """Wait, in the worker, for the next command; None when the consumer has closed its end."""
        with _opened(self.theirs) as end, suppress(ConnectionResetError):
            # No more than the prefix: the next command may have come as well, and its descriptor belongs to its first
            # byte.
            data, fds, _, _ = socket.recv_fds(end, _PREFIX.size, 1)
            memory = Descriptor(fds[0]) if fds else None
            prefix = _rest(end, data, _PREFIX.size)
            body = None if prefix is None else _rest(end, b"", _PREFIX.unpack(prefix)[0])
            if body is not None:
                return body, memory
        return None

    def __getstate__(self) -> dict[str, object]:
        return {"_ours": None, "theirs": self.theirs}


def _opened(descriptor: Descriptor) -> socket.socket:
    """A socket object with a duplicate of the descriptor, since it closes its own."""
    end = socket.socket(fileno=os.dup(descriptor.fd))
    end.setblocking(True)  # whatever `socket.setdefaulttimeout` says, which a program may call for its downloads
    return end


def _rest(end: socket.socket, data: bytes, wanted: int) -> bytes | None:
    """Return `data` and the bytes after it, `wanted` in all; None if the other end was closed before."""
    parts = bytearray(data)
    while len(parts) < wanted:
        more = end.recv(wanted - len(parts))
        if not more:
            return None
        parts += more
    return bytes(parts)


@dataclass
class _CommandLoop:
    """Description of one worker, and its main function: receive a command, run it, acknowledge it.

    Attributes:
        worker: Index of the worker.
        skill: What the worker can do.
        commands: Source of its commands.
        port: Its end of the channel.
        root: Root seed for flows that are made in the worker; None if the user has fixed none.
        note: Text added to an exception: the owner of the worker.
    """

    worker: int
    skill: Skill
    commands: _CommandSocket
    port: Port
    root: int | None
    note: str

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Return the descriptors that a forked worker must inherit."""
        return (*self.port.descriptors(), self.commands.theirs, *self.skill.files)

    def close_in_parent(self) -> None:
        """Called once the worker was started, or could not be: close what only the worker may hold."""
        self.skill.payload.close_in_parent()
        self.port.close_in_parent()
        self.commands.theirs.close()  # otherwise sending to a worker that has died would succeed

    def __call__(self) -> None:
        sender = self.port.open()
        try:
            sender.send(Message(Kind.HELLO, self.worker))
            self._serve(sender)
        except ConsumerGone:
            pass
        finally:
            sender.close(0)

    def _serve(self, sender: Sender) -> None:
        try:
            if self.root is not None:
                seed(self.root)
            with ending_if_forked():
                run = self.skill.open()
            while (command := self.commands.receive()) is not None:
                began = time.perf_counter()
                with ending_if_forked():
                    run(*command)
                sender.send(Message(Kind.DATA, self.worker, count=1, pace=time.perf_counter() - began))
        except ConsumerGone:
            raise
        except SystemExit as exit:
            body = [pack_failure(exit, note=self.note)]
            sender.send(Message(Kind.LEFT, self.worker, count=exit_code(exit), body=body))
        except BaseException as error:
            sender.send(Message(Kind.ERROR, self.worker, body=[pack_failure(error, note=self.note)]))
