"""Sampler: records many times a second which node a worker's thread is executing; the innermost one counts.

It runs in another thread of the worker (the flusher of the batching sender), so a datapoint costs nothing more. It
sleeps for a varying time, so that samples fall anywhere in a message. `observe.frame_owners` tells which node a frame
belongs to. In a worker process, the steps of each map run code of their own, because a map runs below no generator; the
nodes of a worker thread belong to the user's process and are left as they are.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import types
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from dataflow.observe.frame_owners import PACKAGE, FrameOwners, sleep_until_interrupting
from dataflow.protocol.passes import walk
from dataflow.protocol.state import state_of
from dataflow.system.machine import processor_times
from dataflow.transport.worker_counters import WorkerActivity, WorkerCounters

__all__ = ["NodeSampler"]

_SENDER: Final = os.path.join(PACKAGE, "transport", "batching_sender.py")
_CREDIT: Final = os.path.join(PACKAGE, "transport", "flow_control.py")
_CHANNELS: Final = frozenset(os.path.join(PACKAGE, "transport", name) for name in ("local_channel.py", "zeromq.py"))
_ZMQ: Final = f"{os.sep}zmq{os.sep}"
_OWN: Final = frozenset({"jobs.py", "worker_main.py"})  # files of runners that are of this worker itself
_MAX_FRAMES: Final = 200  # looked at per sample
_SPREAD_SECONDS: Final = (2e-3, 3e-2)  # minimum and maximum; between them, the duration of a message
_TICKS_PER_SAMPLE: Final = ((250, 2), (1000, 4))  # in the first 2 seconds, and the first 8
_MAX_TICKS_PER_SAMPLE: Final = 12
_SLOW_TICKS: Final = 8  # ticks between two readings of processor times and of runners inside
_CLOCK: Final = getattr(time, "pthread_getcpuclockid", None)


class NodeSampler:
    """Samples the thread that makes it.

    Args:
        flow: The flow that this thread iterates.
        counters: Where the samples are counted, by the position of a node in ``walk(flow, everywhere=True)``.
        window_in_use: Returns the part of the worker's window in use.
    """

    def __init__(self, flow: Any, counters: WorkerCounters, window_in_use: Callable[[], float]) -> None:
        self._counters = counters
        self._window_in_use = window_in_use
        self._thread = threading.get_ident()
        self._num_ticks = 0
        self._spread = _SPREAD_SECONDS[0]  # seconds: samples fall anywhere in a message
        nodes = list(walk(flow, everywhere=True))
        # Not the nodes: a sampler of an abandoned thread must not keep them alive.
        self._runners = [(k, weakref.ref(node)) for k, node in enumerate(nodes) if node._df_has_workers]
        self._owners = FrameOwners(nodes)
        if len(self._runners) == 1:  # it waits for its workers there
            self._owners.add_files(_files_of_runners(), self._runners[0][0])
        self._steps: dict[int, dict[Any, Any]] = {}
        here = {id(node) for node in walk(flow)} if threading.current_thread() is threading.main_thread() else set()
        for k, node in enumerate(nodes):
            if id(node) in here and hasattr(type(node), "_df_kernel"):
                self._name_steps(node, k)
        self._cpu_clock = None if _CLOCK is None else _CLOCK(self._thread)
        self._task = f"self/task/{threading.get_native_id()}"
        # The counters may hold the times of a worker that this one replaces, and go on from there.
        now, before = self._processor_times(), counters.processor_times
        self._start = now[0] - before[0], now[1] - before[1]

    def tick(self) -> None:
        """Take a sample. Called by another thread."""
        counters = self._counters
        self._num_ticks += 1
        if self._num_ticks % self._ticks_per_sample() == 0 and counters.state == WorkerActivity.BUSY:
            self._sample()
        if self._num_ticks % _SLOW_TICKS == 1 or self._num_ticks < _SLOW_TICKS:
            cpu, delayed = self._processor_times()
            counters.set_processor_times(cpu - self._start[0], delayed - self._start[1])
            counters.set_window(self._window_in_use())
            low, high = _SPREAD_SECONDS
            self._spread = min(high, max(low, counters.seconds_per_message))
            self._look_inside()

    def _ticks_per_sample(self) -> int:
        """Few at first, so that a short run has enough samples; more later, so that sampling costs next to nothing."""
        return next((n for below, n in _TICKS_PER_SAMPLE if self._num_ticks < below), _MAX_TICKS_PER_SAMPLE)

    def _sample(self) -> None:
        from dataflow.system.thread_frames import stack_of  # which the consumer does not need

        sleep_until_interrupting(0.0, self._spread)
        # The user's switch interval holds again, so the worker hardly runs on while its stack is read.
        stack = stack_of(self._thread, _MAX_FRAMES)
        if stack and self._counters.state == WorkerActivity.BUSY:  # not if it began to wait meanwhile
            self._count(stack)

    def _count(self, stack: list[FrameType]) -> None:
        files = [frame.f_code.co_filename for frame in stack]
        file = files[0]
        if file == _CREDIT:
            return  # it has given way to another process
        in_sender = _SENDER in files
        if in_sender:
            del stack[files.index(_SENDER) :]
        node = self._owners.innermost(stack)
        if node is not None:
            self._counters.sample_node(node)
        elif not in_sender or any(map(self._owners.owners, stack)):
            self._counters.sample_other()
        elif file not in _CHANNELS and _ZMQ not in file:
            # In a system call it waits for a processor, which the receiver has got.
            self._counters.sample_sending()

    def _name_steps(self, node: Any, k: int) -> None:
        """Give the steps of a map, which call its function, code of their own: they run below no generator."""
        steps: dict[Any, Any] = {}
        self._steps[k] = steps  # keeps their code
        add = functools.partial(self._own_code, k)
        # Weakly: the node would hold itself, and only the garbage collector would free it.
        vars(node)["_df_kernel"] = functools.partial(
            _with_own_step, type(node)._df_kernel, weakref.ref(node), steps, add
        )

    def _own_code(self, k: int, func: types.FunctionType) -> types.FunctionType:
        code = func.__code__.replace()
        made = types.FunctionType(code, func.__globals__, func.__name__, func.__defaults__, func.__closure__)
        self._owners.add_code(code, k)
        return made

    def _processor_times(self) -> tuple[float, float]:
        """Processor time of the thread, and how long it was ready without a processor, in seconds."""
        try:
            cpu = 0.0 if self._cpu_clock is None else time.clock_gettime(self._cpu_clock)
        except OSError:  # the thread has ended, and its clock with it
            cpu = 0.0
        _, delayed = processor_times(self._task) or (0.0, 0.0)
        return cpu, delayed

    def _look_inside(self) -> None:
        """Record what the runners inside of this worker have received."""
        slot = 0
        for k, ref in self._runners:
            node = ref()
            metrics = None if node is None else state_of(node).metrics
            if metrics is not None:
                self._counters.set_inner(slot, metrics.totals(k))
                slot += 1


def _with_own_step(begin: Any, node_ref: Any, steps: dict[Any, Any], add: Any, *args: Any) -> Any:
    """The kernel of a map, whose steps run code that belongs to this map only."""
    applied = begin(node_ref(), *args)
    func = type(applied).step
    if func not in steps:
        steps[func] = add(func)
    vars(applied)["step"] = types.MethodType(steps[func], applied)
    return applied


def _files_of_runners() -> list[str]:
    """The files in which a runner inside of a worker works and waits."""
    room = os.path.join(PACKAGE, "runners")
    return [os.path.join(room, name) for name in os.listdir(room) if name not in _OWN]
