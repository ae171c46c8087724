"""Directories of processes that were killed: found by their names, and removed by whoever saw the end."""

import glob
import os
import subprocess
import sys
import tempfile
import textwrap

import pytest

from dataflow import DataFromList, MultiProcessRunnerZMQ
from dataflow.scratch import fresh_directory, new_prefix, remove_left
from tests.support.waits import LIMIT, wait_until


def left(prefix="dataflow-"):
    return glob.glob(os.path.join(tempfile.gettempdir(), f"{prefix}*"))


def test_a_directory_is_ones_own():
    directory = fresh_directory()
    assert os.stat(directory).st_mode & 0o777 == 0o700
    assert directory in left()
    os.rmdir(directory)


def test_what_a_process_and_those_below_it_have_left_is_found_and_nothing_else():
    prefix = new_prefix()
    code = """
        import sys
        from dataflow.scratch import adopt_prefix, fresh_directory, new_prefix

        adopt_prefix(sys.argv[1])
        fresh_directory()
        adopt_prefix(new_prefix())
        open(fresh_directory() + "/s", "w").close()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), prefix], check=True, timeout=LIMIT)
    other = fresh_directory()
    assert len(left(prefix)) == 2
    remove_left(prefix)
    assert left(prefix) == []
    assert left() == [other]
    os.rmdir(other)


@pytest.mark.slow
def test_a_nest_that_is_closed_while_its_inner_workers_start_leaves_nothing():
    """The worker in between is killed before those below it have connected: they take too long, being spawned."""
    df = MultiProcessRunnerZMQ(MultiProcessRunnerZMQ(DataFromList([[1]]), 2, context="spawn"), 1)
    try:
        df.reset_state()
        wait_until(lambda: left("dataflow-??????-"), LIMIT, "the inner runner's directory")
    finally:
        df.close()
    assert left() == []
