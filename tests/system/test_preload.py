"""What the fork server does once: each of its workers has it, and none does it again."""

from tests.support.programs import printed

IMPORTS = """
import sys
import os
sys.before = {os.getpid(): set(sys.modules)}
import numpy
from dataflow import BatchData, DataFromList, MapData, ParallelData

def imported(dp):
    new = set(sys.modules) - sys.before[os.getpid()]
    return [sorted(name for name in new if name.startswith(("dataflow", "importlib", "numpy")))]

def note():
    sys.before.setdefault(os.getpid(), set(sys.modules))  # from Python 3.14 on the server imports this program

if __name__ == "__main__":
    df = BatchData(MapData(DataFromList([[1]]), imported), 1, use_list=True)
    with ParallelData(df, 1, context="forkserver", worker_init=note) as df:
        print(*next(iter(df)))
"""


def test_a_worker_of_the_fork_server_imports_nothing_that_the_server_has_not(tmp_path):
    assert printed(IMPORTS, tmp_path) == "[[]]"
