"""A flow whose worker does something that is hard to end. Programs that start often import it: it imports little."""

import ctypes
import os
import time
from collections.abc import Iterator
from typing import Any

from dataflow import DataFlow
from tests.support.waits import LIMIT


class Busy(DataFlow):
    """[pid] once; then what `what` says."""

    def __init__(self, what: str = "wait for credit", size: int = 0) -> None:
        self.what = what
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield [os.getpid(), bytes(self.size)]
            if self.what == "sleep":
                time.sleep(2 * LIMIT)
            elif self.what == "hold the interpreter":
                hold_the_interpreter(int(2 * LIMIT))


def hold_the_interpreter(seconds: int) -> None:
    """A call into C that does not give the interpreter's lock back."""
    ctypes.PyDLL(None).sleep(seconds)
