"""What tests of formats share as fixtures."""

import pickle

import pytest

from tests.formats.hostile import Hostile


@pytest.fixture
def no_harm():
    """Nothing hostile is unpickled during the test; whatever is would be noticed."""
    pickle.loads(pickle.dumps(Hostile()))
    assert Hostile.harmed == [1]
    Hostile.harmed.clear()
    yield
    assert Hostile.harmed == []
