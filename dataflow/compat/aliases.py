"""Aliases: class names of older versions of tensorpack."""

from __future__ import annotations

from dataflow.runners.runners import MultiProcessRunner, MultiProcessRunnerZMQ, MultiThreadRunner

__all__ = ["MultiProcessPrefetchData", "MultiThreadPrefetchData", "PrefetchData", "PrefetchDataZMQ"]

PrefetchData = MultiProcessRunner
MultiProcessPrefetchData = MultiProcessRunner
PrefetchDataZMQ = MultiProcessRunnerZMQ
MultiThreadPrefetchData = MultiThreadRunner
