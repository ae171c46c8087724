"""What tests of the network share."""

import logging
import random
import socket

import pytest

from dataflow.remote import receiving, sending
from dataflow.remote.sending import Connection

FIXED = range(20_000, 30_000)  # ports that the system gives to nobody who lets it choose


@pytest.fixture
def free_address():
    """An address that nobody uses, for those that must know it before it is bound."""
    ports = random.SystemRandom()
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", ports.choice(FIXED)))
            except OSError:
                continue
            return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def waiting(monkeypatch):
    """Sets how many seconds senders wait until they are welcome, and how many for every answer after that."""

    def wait_for(*, welcome, answer):
        real = Connection.wait_welcome

        def wait_welcome(self):
            self._timeout = welcome
            found = real(self)
            self._timeout = answer
            return found

        monkeypatch.setattr(Connection, "wait_welcome", wait_welcome)

    return wait_for


@pytest.fixture
def soon(monkeypatch):
    """The seconds after which both sides log now that nobody of ours has come."""
    monkeypatch.setattr(receiving, "_WARN_AFTER", 0.2)
    monkeypatch.setattr(sending, "_WARN_AFTER", 0.2)
    return 0.2


@pytest.fixture
def warnings_of(caplog):
    """The warnings that a module has logged, beside those of messages that were refused."""

    def messages(module):
        return [
            record.getMessage()
            for record in caplog.records
            if record.name == module.__name__
            and record.levelno == logging.WARNING
            and "refused a message" not in record.getMessage()
        ]

    return messages
