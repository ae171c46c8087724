"""Pool of workers that run commands: started together, monitored, and stopped.

Guarantees:

- Every wait has a limit, and notices the end of a worker at once, through a descriptor.
- Drain before you judge: results that a worker acknowledged before it died or failed count.
- Only the process that started a pool uses or stops it.
- After `close` no process and no descriptor of the pool is left. A signal that arrives within start or close is
  raised when that is complete, or undone.

One thread at a time, except for `close` of a pool that is no longer in use.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.context import BaseContext
from typing import Final

from dataflow.channel.local import PipeChannel
from dataflow.channel.messages import Kind, Message
from dataflow.codec.exceptions import unpack_failure
from dataflow.descriptors import Descriptor, closed_on_error, counted
from dataflow.errors import WorkerDied
from dataflow.interrupts import signals_deferred
from dataflow.seeding import derived
from dataflow.shared.command_loop import ANSWER, CommandLoop, Skill
from dataflow.shared.commands import CommandSender
from dataflow.workers.cleanup import close_at_exit
from dataflow.workers.exit_reasons import explanation
from dataflow.workers.info import WorkerInfo, worker_info_of
from dataflow.workers.pool import Worker, WorkerPool, grace
from dataflow.workers.process import ProcessWorker, end_if_main_is_imported

__all__ = ["CommandPool", "context_of"]

_SETTLE: Final = 0.5  # seconds within which an exit code is known
_DESCRIPTORS: Final = 8  # descriptors that this process needs for a pool
_PER_WORKER: Final = 8  # and for each of its workers, while they start
_PATIENCE: Final = 0.25  # fraction of the usual grace period: results still in progress are not needed


def context_of(owner: str, context: BaseContext | str | None) -> BaseContext:
    """Return the multiprocessing context that a user means.

    Raises:
        NotImplementedError: This system has no such processes.
    """
    if sys.platform == "win32":
        raise NotImplementedError(f"{owner} needs the pipes and signals of POSIX. Use WSL, or threads")
    return context if isinstance(context, BaseContext) else multiprocessing.get_context(context)


class CommandPool:
    """Worker processes, one for each skill.

    Args:
        owner: Name of the class that users see, for messages.
        context: How processes are started.
        skills: What each worker can do.
        words: Seed of the pool; every worker gets one of its own.
        reseed: Whether flows that are made in a worker are seeded too, because the user has fixed a root.
    """

    def __init__(
        self, owner: str, context: BaseContext, skills: Sequence[Skill], words: tuple[int, ...], *, reseed: bool
    ) -> None:
        end_if_main_is_imported()
        n = len(skills)
        self.owner = owner
        self.answers: list[deque[float]] = [deque() for _ in range(n)]  # of each worker: seconds that each command took
        self.verdicts: dict[int, BaseException] = {}  # of workers that have failed or died
        self._pid = os.getpid()
        self._connected: set[int] = set()  # workers that have sent at least one message
        self._done = [0] * n  # number of acknowledgements from each
        with signals_deferred(), closed_on_error(), counted(owner, _DESCRIPTORS + _PER_WORKER * n):
            self._start(context, skills, words, reseed=reseed)

    def _start(self, context: BaseContext, skills: Sequence[Skill], words: tuple[int, ...], *, reseed: bool) -> None:
        n, owner = len(skills), self.owner
        self._books = [CommandSender() for _ in skills]
        channel = PipeChannel(n)
        infos = [worker_info_of(k, n) for k in range(n)]
        factories = []
        for k, (skill, book, info) in enumerate(zip(skills, self._books, infos, strict=True)):
            own = (*words, *(word for pair in info.path for word in pair))
            note = f"raised in worker {k} of {n} of {owner}"
            command_loop = CommandLoop(k, skill, book, channel.port(k), derived(own) if reseed else None, note)
            factories.append(partial(_made, context, info, own, command_loop))
        with ExitStack() as undo:
            undo.callback(self._close_books)
            undo.callback(channel.close)
            self._pool = WorkerPool(factories)
            undo.callback(self._pool.stop, 0)
            self._receiver = channel.open_receiver()
            undo.callback(self._receiver.close)
            close_at_exit(self)
            undo.pop_all()

    def command(self, worker: int, data: bytes, memory: Descriptor | None = None) -> None:
        """Send a command to a worker."""
        self._books[worker].give(data, memory)

    def wait(self, timeout: float) -> None:
        """Wait for a message or the end of a worker, `timeout` seconds at most. An interrupt in here is harmless."""
        self._receiver.wait(timeout, self._pool.sentinels(but=self.verdicts))

    def receive(self) -> None:
        """Read all messages into `answers` and `verdicts`. An interrupt in here requires `close`."""
        ended = [k for k in self._pool.ended() if k not in self.verdicts]
        # A worker that has ended has written all it will ever write: now it is read to the end.
        while (message := self._receiver.receive_nowait()) is not None or self._receiver.wait(0):
            if message is not None:
                self._enter(message)
        for k in ended:
            if k not in self.verdicts:
                worker = self._pool.workers[k]
                if worker.exitcode() is None:  # the fork server has collected it, and is about to report that
                    worker.join(_SETTLE)
                self.verdicts[k] = self._death(k, worker.exitcode())

    def states(self) -> str:
        """Describe what each worker is doing, for a message."""
        return "; ".join(f"worker {k}: {worker.state()}" for k, worker in enumerate(self._pool.workers))

    def close(self) -> None:
        """Stop the workers and close everything. Idempotent; no-op in a forked child."""
        if os.getpid() != self._pid:
            return
        with signals_deferred(), ExitStack() as last:  # every step, whatever one of them raises
            last.callback(self._pool.stop, _PATIENCE * grace())
            last.callback(self._receiver.close)
            last.callback(self._close_books)

    def _close_books(self) -> None:
        for book in self._books:
            book.close()

    def _enter(self, message: Message) -> None:
        worker = message.worker
        self._connected.add(worker)
        if message.kind is Kind.DATA:
            self._done[worker] += 1
            self.answers[worker].append(ANSWER.unpack(message.body[0])[0])
        elif message.kind is Kind.ERROR:
            self.verdicts[worker] = unpack_failure(message.body[0])
        elif message.kind is Kind.LEFT:
            self.verdicts[worker] = self._death(worker, message.count)
            self.verdicts[worker].__cause__ = unpack_failure(message.body[0])  # tells where

    def _death(self, worker: int, exitcode: int | None) -> WorkerDied:
        n, pid = len(self._books), self._pool.workers[worker].pid
        has_connected = worker in self._connected
        happened, cure = explanation(
            exitcode, has_connected=has_connected, work="the target", inline="n_proc=0", less="n_proc"
        )
        done = self._done[worker]
        when = f"after {done} results" if done else "before its first result"
        return WorkerDied(
            f"worker {worker} of {n} of {self.owner} (pid {pid}) {happened} {when}; {cure}",
            worker=worker,
            num_workers=n,
            pid=pid,
            exitcode=exitcode,
        )


def _made(context: BaseContext, info: WorkerInfo, seed: tuple[int, ...], command_loop: CommandLoop) -> Worker:
    descriptors = (
        *command_loop.port.descriptors(),
        *command_loop.commands.descriptors(),
        *command_loop.skill.descriptors(),
    )
    return ProcessWorker(context, info, seed, command_loop, descriptors, partial(_close_in_parent, command_loop))


def _close_in_parent(command_loop: CommandLoop) -> None:
    command_loop.skill.close_in_parent()
    command_loop.port.close_in_parent()
    command_loop.commands.close_in_parent()
