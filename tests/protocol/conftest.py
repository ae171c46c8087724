"""What tests of the protocol share."""

import pytest

from tests.protocol.keeping import OPENED


@pytest.fixture
def files_closed():
    """Close the files that nodes of the test keep."""
    yield
    while OPENED:
        OPENED.pop().close()
