"""Main loop of a worker process: receive a command, run it, acknowledge it."""

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
"""The body of an acknowledgement: seconds that the command took."""


class Skill(Protocol):
    """Description of what a worker can do; picklable while a process is started."""

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Return the descriptors that a forked worker must inherit."""

    def close_in_parent(self) -> None:
        """Called once the worker was started, or could not be: close what only the worker may hold."""

    def open(self) -> Callable[[Command], None]:
        """Prepare, in the worker, and return the function that runs each command."""


@dataclass
class CommandLoop:
    """Description of one worker, and its main function: calling it runs the worker to its end.

    A command is acknowledged once everything it asks for is written: the consumer reads acknowledged results only.

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
    """Context manager: a child that user code forks inside the block ends with the block; see `end_if_forked`."""
    try:
        yield
    except BaseException as error:
        end_if_forked(pid, error)
        raise
    end_if_forked(pid, None)
