"""What tests of the network share."""

import socket

import pytest


@pytest.fixture
def free_address():
    """An address that nobody uses at this moment, for whoever must know it before it is bound."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"
