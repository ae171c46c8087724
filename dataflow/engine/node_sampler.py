"""Sampler: looks what a worker's thread is executing, many times a second, and counts it for the innermost node.

It runs in another thread of the worker (the flusher of the batching sender), so a datapoint costs nothing more.

A frame belongs to a node by its code: functions of the user are known by their code object, methods by that of the
class, and helpers by the file of the class, if only one node of the chain has it. In a worker process, nodes that share
a class register the frame of their generator once per pass; the nodes of a worker thread belong to the user's process
and are left as they are. Functions in C have no frame and count for the node that calls them; so does a user's node for
what it calls. ``f_locals`` is never read: it would keep datapoints alive.

The interpreter lets another thread run when the worker's thread waits, or sends, or after the switch interval. To see
it elsewhere, too, the sampler sleeps for a varying time and then wakes up with a short switch interval, which it
restores.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, Final

from dataflow.base import DataFlow, ProxyDataFlow, RNGDataFlow
from dataflow.channel.worker_counters import InnerTotals, WorkerActivity, WorkerCounters
from dataflow.passes import walk
from dataflow.state import state_of

__all__ = ["NodeSampler"]

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SENDER: Final = os.path.join(_PACKAGE, "channel", "batching_sender.py")
_CREDIT: Final = os.path.join(_PACKAGE, "channel", "flow_control.py")
_CHANNELS: Final = frozenset(os.path.join(_PACKAGE, "channel", name) for name in ("local.py", "zeromq.py"))
_ZMQ: Final = f"{os.sep}zmq{os.sep}"
_OWN: Final = frozenset({"jobs.py", "worker_main.py", "node_sampler.py"})  # engine files of this worker itself
_BASES: Final = frozenset({object, DataFlow, ProxyDataFlow, RNGDataFlow})
_MAX_FRAMES: Final = 200  # looked at per sample
_SWITCH_SECONDS: Final = 1e-4  # the switch interval while a sample is taken
_SPREAD_SECONDS: Final = (2e-3, 3e-2)  # at least and at most; between, as long as a message takes
_TICKS_PER_SAMPLE: Final = ((250, 2), (1000, 4))  # in the first 2 seconds, and the first 8
_MOST_TICKS_PER_SAMPLE: Final = 12
_GOLDEN: Final = 0.618034
_SLOW_TICKS: Final = 8  # samples between two looks at processor times and at runners inside
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
        self._phase = 0.0  # of the next sample, 0 to 1
        self._spread = _SPREAD_SECONDS[0]  # seconds: samples fall anywhere in a message
        nodes = list(walk(flow, everywhere=True))
        # Not the nodes: a sampler of an abandoned thread must not keep them alive.
        self._runners = [(k, weakref.ref(node)) for k, node in enumerate(nodes) if node._df_has_workers]
        self._inside = {k: _positions(k, nodes) for k, _ in self._runners}
        codes = [_codes_of(node) for node in nodes]
        self._codes = codes  # keeps them, and so their ids
        self._by_code: dict[int, int] = _unique(set(map(id, found)) for found in codes)
        self._by_file: dict[str, int] = _unique(_files_of(node) for node in nodes)
        if len(self._runners) == 1:  # it waits for its workers there
            self._by_file.update(dict.fromkeys(_files_of_runners(), self._runners[0][0]))
        self._by_frame: dict[int, int] = {}
        self._steps: dict[int, dict[Any, Any]] = {}
        here = {id(node) for node in walk(flow)} if threading.current_thread() is threading.main_thread() else set()
        for k, node in enumerate(nodes):
            if id(node) in here and any(type(other) is type(node) for other in nodes if other is not node):
                self._register_frames(node, k)
            if id(node) in here and hasattr(type(node), "_df_kernel"):
                self._name_steps(node, k)
        self._cpu_clock = None if _CLOCK is None else _CLOCK(self._thread)
        self._schedstat = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._start = self._processor_times()

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
        """Often at first, so that a short run has enough samples; then seldom, so that they cost next to nothing."""
        return next((n for below, n in _TICKS_PER_SAMPLE if self._num_ticks < below), _MOST_TICKS_PER_SAMPLE)

    def _sample(self) -> None:
        interval = sys.getswitchinterval()
        is_longer = interval > _SWITCH_SECONDS
        self._phase = (self._phase + _GOLDEN) % 1
        try:
            if is_longer:  # otherwise another sampler of this process has just shortened it
                sys.setswitchinterval(_SWITCH_SECONDS)
            time.sleep(self._phase * self._spread)
            frame = sys._current_frames().get(self._thread)
            if frame is not None and self._counters.state == WorkerActivity.BUSY:
                self._count(frame)
            del frame
        finally:
            if is_longer:
                sys.setswitchinterval(interval)

    def _count(self, frame: FrameType | None) -> None:
        by_frame, by_code, by_file = self._by_frame, self._by_code, self._by_file
        innermost = "" if frame is None else frame.f_code.co_filename
        if innermost == _CREDIT:
            return  # it has given way to another process
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            node = by_frame.get(id(frame))
            if node is None:
                code = frame.f_code
                node = by_code.get(id(code))
                if node is None:
                    node = by_file.get(code.co_filename)
                    if node is None and code.co_filename == _SENDER:
                        # In a system call it waits for a processor, which the receiver has got.
                        if innermost not in _CHANNELS and _ZMQ not in innermost:
                            self._counters.sample_sending()
                        return
            if node is not None:
                self._counters.sample_node(node)
                return
            frame = frame.f_back
        self._counters.sample_other()

    def _register_frames(self, node: Any, k: int) -> None:
        """Let the generators of a node register their frames: its methods are replaced in this instance."""
        here, there = weakref.ref(self), weakref.ref(node)
        for name in ("_df_run_pass", "_df_at"):
            vars(node)[name] = functools.partial(_registered, here, getattr(type(node), name), there, k)

    def _name_steps(self, node: Any, k: int) -> None:
        """Give the steps of a map, which call its function, code of their own: they run below no generator."""
        steps: dict[Any, Any] = {}
        self._steps[k] = steps  # keeps their code
        add = functools.partial(self._own_code, k)
        vars(node)["_df_kernel"] = functools.partial(
            _with_own_step, type(node)._df_kernel, weakref.ref(node), steps, add
        )

    def _own_code(self, k: int, func: types.FunctionType) -> types.FunctionType:
        code = func.__code__.replace()
        made = types.FunctionType(code, func.__globals__, func.__name__, func.__defaults__, func.__closure__)
        self._by_code[id(code)] = k
        return made

    def register(self, generator: Any, k: int) -> None:
        """Let the frame of a generator belong to a node, unless it already belongs to one."""
        frame = getattr(generator, "gi_frame", None)
        if frame is not None and id(frame) not in self._by_frame:
            key = id(frame)
            self._by_frame[key] = k
            weakref.finalize(generator, self._by_frame.pop, key, None).atexit = False

    def _processor_times(self) -> tuple[float, float]:
        """Processor time of the thread, and how long it was ready without a processor, in seconds."""
        try:
            cpu = 0.0 if self._cpu_clock is None else time.clock_gettime(self._cpu_clock)
        except OSError:
            cpu = 0.0
        try:
            with open(self._schedstat) as file:
                return cpu, int(file.read().split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            return cpu, 0.0

    def _look_inside(self) -> None:
        """Record the totals of the runners inside of this worker."""
        slot = 0
        for k, ref in self._runners:
            node = ref()
            observer = None if node is None else state_of(node).observer
            if observer is not None:
                found, samples = observer.totals()
                self._counters.set_inner(slot, InnerTotals(k, *_values(found)))
                self._counters.set_nodes_of_inner(self._inside.get(k, ()), samples)
                slot += 1


def _values(totals: InnerTotals) -> tuple[Any, ...]:
    """All but the position of the node."""
    return totals.num_workers, totals.datapoints, totals.nbytes, totals.consumer, totals.workers


def _registered(sampler_ref: Any, begin: Any, node_ref: Any, k: int, *args: Any) -> Iterator[Any]:
    datapoints: Iterator[Any] = begin(node_ref(), *args)
    sampler = sampler_ref()
    if sampler is not None:
        sampler.register(datapoints, k)
    return datapoints


def _with_own_step(begin: Any, node_ref: Any, steps: dict[Any, Any], add: Any, *args: Any) -> Any:
    """The kernel of a map, whose steps run code that belongs to this map only."""
    applied = begin(node_ref(), *args)
    func = type(applied).step
    if func not in steps:
        steps[func] = add(func)
    vars(applied)["step"] = types.MethodType(steps[func], applied)
    return applied


def _positions(runner: int, nodes: Sequence[Any]) -> list[int]:
    """For each node in the workers of a runner, in the order of their samples, its position among all nodes."""
    if not nodes[runner]._df_remote_inputs:
        return [runner]  # a map
    known = {id(node): k for k, node in enumerate(nodes)}
    first = next(iter(nodes[runner]._df_inputs), None)
    return [] if first is None else [known[id(node)] for node in walk(first, everywhere=True)]


def _unique(keys_of_nodes: Iterator[set[Any]]) -> dict[Any, int]:
    """The keys that belong to one node only, and its position."""
    found: dict[Any, int] = {}
    shared: set[Any] = set()
    for k, keys in enumerate(keys_of_nodes):
        shared |= {key for key in keys if key in found}
        found.update(dict.fromkeys(keys, k))
    return {key: k for key, k in found.items() if key not in shared}


def _codes_of(node: Any) -> set[CodeType]:
    """The code of the methods of a node's class, and of the functions among its attributes."""
    codes: set[CodeType] = set()
    for cls in type(node).__mro__:
        if cls not in _BASES:
            for value in vars(cls).values():
                _add_codes(codes, value)
    for value in vars(node).values():
        _add_codes(codes, value)
    return codes


def _add_codes(codes: set[CodeType], value: Any) -> None:
    """Add the code of a function, and of the functions inside of it."""
    for _ in range(4):  # decorators and partial functions
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, types.MethodType | classmethod | staticmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        else:
            break
    code = getattr(value, "__code__", None)
    if code is None and not isinstance(value, type | types.ModuleType | DataFlow):
        code = getattr(inspect.getattr_static(type(value), "__call__", None), "__code__", None)
    wrapped = getattr(value, "__wrapped__", None) if isinstance(value, types.FunctionType) else None
    if wrapped is not None:
        _add_codes(codes, wrapped)
    if isinstance(code, CodeType):
        codes.add(code)
        codes.update(inner for inner in code.co_consts if isinstance(inner, CodeType))


def _files_of_runners() -> list[str]:
    """The files in which a runner inside of a worker works and waits."""
    rooms = [os.path.join(_PACKAGE, room) for room in ("engine", "parallel")]
    return [os.path.join(room, name) for room in rooms for name in os.listdir(room) if name not in _OWN]


def _files_of(node: Any) -> set[str]:
    """The files of a built-in node's classes: helper functions in them work for it."""
    modules = (sys.modules.get(cls.__module__) for cls in type(node).__mro__ if cls not in _BASES)
    files = {getattr(module, "__file__", None) for module in modules}
    return {file for file in files if file is not None and file.startswith(_PACKAGE)}
