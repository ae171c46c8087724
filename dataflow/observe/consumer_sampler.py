"""Samples the consumer: which node outside of the workers the thread that iterates a flow is executing.

A thread does it for some seconds after figures or a report were asked for, while the flow is iterated. So a program
that asks for no report pays nothing.

Guarantees:

- The thread ends some seconds after the last request, or when the flow is closed or collected.
- The figures are those since the workers were started, as far as the flow was sampled; without workers, all of them.
"""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from dataflow.observe.frame_owners import FrameOwners, sleep_until_interrupting
from dataflow.protocol.passes import walk
from dataflow.protocol.state import state_of
from dataflow.system.thread_frames import stack_of

__all__ = ["ConsumerSampler", "consumer_shares"]

_SECONDS: Final = 10.0  # that a request lasts
_SHORTEST: Final = 1e-3  # seconds between two samples
_LONGEST: Final = 21e-3
_ENOUGH: Final = 20  # samples, before shares are known
_PATIENCE: Final = 0.5  # seconds that a report waits for so many
_MAX_FRAMES: Final = 1000  # of a stack; the user's program may be deep


def consumer_shares(df: Any, *, wait: bool = False) -> dict[int, float]:
    """Part of the consumer's time in each node that it runs itself, by the id of the node. Asks for more samples.

    Args:
        df: The flow.
        wait: Whether another thread than the consumer may wait for the first samples, for up to half a second.

    Returns:
        Empty if it is not known: without such nodes, or if the flow was not sampled.
    """
    try:
        state = state_of(df)
        nodes = list(walk(df))
        if not any(map(_has_metrics, nodes)):
            nodes = list(walk(df, everywhere=True))  # without workers, runners have none of their own
    except Exception:  # a node whose __init__ was not completed
        return {}
    if all(map(_has_metrics, nodes)):
        return {}
    with state.lock:
        if state.sampler is None or not state.sampler.knows(nodes):
            state.sampler = ConsumerSampler(nodes)
        sampler: ConsumerSampler = state.sampler
    sampler.request()
    if wait:
        sampler.wait_for_samples()
    return sampler.shares()


def _has_metrics(node: Any) -> bool:
    """Whether the consumer's time in a node is known from its metrics: a runner, a parallel map, or a receiver."""
    return state_of(node).metrics is not None


class ConsumerSampler:
    """Samples the thread that iterates a flow.

    Args:
        nodes: The nodes that this thread runs, from the outside in, with those that have metrics.
    """

    def __init__(self, nodes: list[Any]) -> None:
        self._owners = FrameOwners(nodes)
        # Not the nodes: the thread must not keep them alive.
        self._nodes = [weakref.ref(node) for node in nodes]
        self._observed = [k for k, node in enumerate(nodes) if _has_metrics(node)]
        self._all_metrics: list[Any] = []
        self._counts = [0] * len(nodes)
        self._num = 0  # samples
        self._until = 0.0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._enough = threading.Event()

    def knows(self, nodes: list[Any]) -> bool:
        """Whether these are its nodes, and the same ones have metrics."""
        observed = [k for k, node in enumerate(nodes) if _has_metrics(node)]
        return observed == self._observed and [id(ref()) for ref in self._nodes] == [id(node) for node in nodes]

    def request(self) -> None:
        """Take samples for some seconds from now on, if the flow is iterated."""
        with self._lock:
            self._until = time.monotonic() + _SECONDS
            # The thread decides under the same lock to end: it is prolonged here, or another one is started.
            if self._consumer() is not None and self._thread is None:
                self._stopped.clear()
                thread = threading.Thread(target=self._run, name="dataflow-sampler", daemon=True)
                with suppress(RuntimeError):  # no more threads, or the interpreter ends: there are no shares then
                    thread.start()
                    self._thread = thread

    def wait_for_samples(self) -> None:
        """Wait for the first samples, up to half a second. No-op in the consumer itself."""
        with self._lock:
            waits = self._thread is not None and self._consumer() != threading.get_ident()
        if waits:
            self._enough.wait(_PATIENCE)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        # Not under the lock, which the thread takes before it ends.
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def shares(self) -> dict[int, float]:
        """Part of the samples of each node without metrics, by its id; empty if there are too few."""
        # Without the lock: the thread may count a sample more for a node meanwhile, hence the minimum below.
        num, counts = self._num, self._counts
        if num < _ENOUGH:
            return {}
        nodes = [(k, ref()) for k, ref in enumerate(self._nodes) if k not in self._observed]
        return {id(node): min(1.0, counts[k] / num) for k, node in nodes}

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._stopped.is_set() or time.monotonic() >= self._until or self._nodes[0]() is None:
                    self._thread = None
                    return
            sleep_until_interrupting(_SHORTEST, _LONGEST)
            with self._lock:
                consumer = self._consumer()
            # No variable for the stack: it would keep the consumer's datapoints alive while this thread sleeps.
            if consumer is not None:
                self._count(stack_of(consumer, _MAX_FRAMES))

    def _consumer(self) -> int | None:
        """The thread that iterates the flow, if one does. Under the lock."""
        top = self._nodes[0]()
        if top is None:
            return None
        nodes = [self._nodes[k]() for k in self._observed]
        all_metrics = [state_of(node).metrics for node in nodes if node is not None]
        if all_metrics != self._all_metrics:  # workers were started
            self._all_metrics = all_metrics
            self._counts = [0] * len(self._counts)
            self._num = 0
            self._enough.clear()
        if not self._observed:  # without workers, the flow's own session says who iterates it
            iterating = state_of(top).session.iterating
            return None if iterating is None else iterating[0]
        found = (metrics.consumer for metrics in all_metrics if metrics is not None)
        return next((thread for thread in found if thread is not None), None)

    def _count(self, stack: list[FrameType]) -> None:
        if not stack:
            return  # the thread has ended
        node = self._owners.innermost(stack)
        self._num += 1
        if node is not None:
            self._counts[node] += 1
        if self._num >= _ENOUGH:
            self._enough.set()
