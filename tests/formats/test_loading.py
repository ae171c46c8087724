"""What all nodes over files share: their paths, and a reader that is opened once."""

import os
import threading

import pytest

from dataflow import JSONLinesData
from dataflow.protocol.state import state_of
from tests.formats.files import NPZ


class InBytes(os.PathLike):
    def __fspath__(self):
        return b"rows.jsonl"


def test_a_path_is_text():
    with pytest.raises(TypeError, match=r"a path is text, got .*InBytes"):
        JSONLinesData(InBytes())


class Lying:
    """A lock that another thread has had, and used, just before."""

    def __init__(self, act):
        self.act = act
        self.lock = threading.RLock()

    def __enter__(self):
        self.act()
        return self.lock.__enter__()

    def __exit__(self, *args):
        return self.lock.__exit__(*args)


def test_of_two_threads_that_begin_at_once_one_opens_the_file(tmp_path):
    with NPZ.load(NPZ.saved(tmp_path, [[1]])) as df:
        state, lock, opened = state_of(df), state_of(df).lock, []

        def by_another():
            state.lock = lock
            opened.append(df.reader())

        state.lock = Lying(by_another)
        assert df.reader() is opened[0]
