"""What runs in a worker process, from its first step to its last: it waits for an order, does it, and says so."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from dataflow.channel.messages import Kind, Message
from dataflow.channel.protocols import ConsumerGone, Port, Sender
from dataflow.codec.exceptions import pack_failure
from dataflow.descriptors import Descriptor
from dataflow.seeding import seed
from dataflow.shared.commands import Command, CommandSender
from dataflow.workers.exit_reasons import end_if_forked, exit_code

__all__ = ["ANSWER", "CommandLoop", "Skill"]

ANSWER: Final = struct.Struct("<d")
"""The body of an answer: seconds that the work took."""


class Skill(Protocol):
    """What a worker can do, as a description; picklable while a process is started."""

    def descriptors(self) -> tuple[Descriptor, ...]:
        """What a forked worker has to inherit."""

    def hand_over(self) -> None:
        """The worker was started, or could not be: close what only it may hold."""

    def open(self) -> Callable[[Command], None]:
        """Get ready, in the worker: gives what is called with each order."""


@dataclass
class CommandLoop:
    """All that one worker needs, as a description. Calling it is the worker's life.

    An order is answered when all that it asks for is written: what was not answered is nobody's to read.

    Attributes:
        worker: Index of the worker.
        skill: What it can do.
        commands: Where its orders come from.
        port: Its end of the channel.
        root: Root seed for flows that are made in it; None where the user has fixed none.
        note: What to add to an exception: whose worker raised it.
    """

    worker: int
    skill: Skill
    commands: CommandSender
    port: Port
    root: int | None
    note: str

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
        pid = os.getpid()
        try:
            if self.root is not None:
                seed(self.root)
            with _ending_if_forked(pid):
                work = self.skill.open()
            while (command := self.commands.receive()) is not None:
                began = time.perf_counter()
                with _ending_if_forked(pid):
                    work(command)
                took = ANSWER.pack(time.perf_counter() - began)
                sender.send(Message(Kind.DATA, self.worker, count=1, body=[took]))
        except ConsumerGone:
            raise
        except SystemExit as exit:
            body = [pack_failure(exit, note=self.note)]
            sender.send(Message(Kind.LEFT, self.worker, count=exit_code(exit), body=body))
        except BaseException as error:
            sender.send(Message(Kind.ERROR, self.worker, body=[pack_failure(error, note=self.note)]))


@contextmanager
def _ending_if_forked(pid: int) -> Iterator[None]:
    """A child that the user's code forks inside the block ends with the block: see `end_if_forked`."""
    try:
        yield
    except BaseException as error:
        end_if_forked(pid, error)
        raise
    end_if_forked(pid, None)
