"""ELEKTRONN's interface, for ported code: arrays in shared memory, and background processes that fill them."""

from dataflow.errors import TimeoutError as TimeoutError
from dataflow.shared.arrays import SharedMem
from dataflow.shared.background import BackgroundProc
from dataflow.shared.fifo import SharedQ
from dataflow.shared.source import BackgroundData

__all__ = ["BackgroundData", "BackgroundProc", "SharedMem", "SharedQ"]
