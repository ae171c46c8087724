"""`PullChannel`: the channel from actors; the consumer requests a few replies of each in advance.

Guarantees:

- At most `in_flight` replies of a worker are requested, or have come and are not consumed. What a worker makes ahead of
  them is limited by its window. So the object store does not fill up while the consumer is slow, or has stopped.
- Replies of a worker are read in the order in which they were requested, up to the first that is lost: so the
  replies that were read are the beginning of the worker's output, and a successor can continue from there.
- An actor that is lost is killed before it is replaced: it may be alive, and only unreachable.
- An actor for which there is no room is reported after `start_timeout` seconds.

Ray's streaming generators, with their backpressure, were tried in place of requested replies. An object costs less (0.7
of the time if it is small, 0.9 if it has 8 MiB), but when an actor has died, Ray drops the objects that it had finished
and nobody has asked for: with requested replies these are still read. The rest would stay: the worker needs the reply
buffer, because it does not yield, and a generator has no input, so tasks are still pushed.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dataflow.errors import TimeoutError, WorkerDied
from dataflow.ray.actor import Chunking, Reply, ReplyBuffer, max_wait
from dataflow.ray.cluster import ActorWorker
from dataflow.system.worker_errors import LostWorker, died
from dataflow.transport.current_item import unknown_item
from dataflow.transport.flow_control import Credit
from dataflow.transport.messages import DATA_KINDS, Channel, Kind, Message, Receiver
from dataflow.transport.worker_counters import NUM_WORDS, sums_of

__all__ = ["PullChannel", "PullCredit"]

_COUNTED: Final = (*DATA_KINDS, Kind.REPORT)
_FINAL_KINDS: Final = {Kind.ENDED, Kind.ERROR, Kind.LEFT}
_MAX_REASON: Final = 400  # characters
_MAX_IDLE: Final = 0.01  # seconds between two checks while there is no reply to wait for
_SILENT_TIMES: Final = 4  # times `item_timeout` that an actor may give no sign of life
_MIN_SILENT_SECONDS: Final = 10.0  # a busy machine may keep one that works from saying so for five


class PullChannel(Channel, Receiver):
    """The channel to actors, and its receiver. No unread messages can block a worker.

    Args:
        owner: Name of the runner's class, for messages.
        num_workers: Number of workers.
        chunking: When a reply is full.
        in_flight: Replies that are requested in advance.
        start_timeout: Seconds that an actor may take to start.

    Attributes:
        actors: The actor of each worker at present.
    """

    may_arrive_late = True

    def __init__(
        self,
        owner: str,
        num_workers: int,
        chunking: Chunking,
        *,
        in_flight: int,
        start_timeout: float,
    ) -> None:
        self._owner = owner
        self._cluster: Any = None  # the cluster of the actors, once there is one
        self._num_workers = num_workers
        self._chunking = chunking
        self._in_flight = in_flight
        self._start_timeout = start_timeout
        self.actors: dict[int, ActorWorker] = {}
        self._messages: deque[Message] = deque()
        self._counters: dict[int, list[int]] = {}  # of each worker, as of its last reply
        self._counted_before: dict[int, list[int]] = {}  # by the actors that it has replaced

    # -- the channel ---------------------------------------------------------------------------------------------------

    def port(self, worker: int) -> _PullPort:
        return _PullPort(self, worker, self._chunking)

    def open_receiver(self) -> PullChannel:
        return self

    def close(self) -> None:
        self.actors.clear()
        self._messages.clear()

    def register(self, worker: int, actor: ActorWorker) -> None:
        """Register the actor of a worker."""
        self._cluster = actor.cluster
        self.actors[worker] = actor
        if worker in self._counters:
            self._counted_before[worker] = self._counters[worker]
        for _ in range(self._in_flight):
            actor.request_reply()

    def counters_of(self, worker: int) -> list[int]:
        """What a worker has done, as of its last reply; zeros before the first."""
        return self._counters.get(worker, [0] * NUM_WORDS)

    def died(
        self, owner: str, worker: int, num_workers: int, pid: int | None, exitcode: int | None, received: int | None
    ) -> WorkerDied:
        """Return the error for a worker that has ended, with Ray's explanation if the actor was lost."""
        actor = self.actors[worker]
        if actor.lost is None:
            return died(owner, worker, num_workers, pid, exitcode, received)
        when = f"after {received} datapoints" if received else "before its first datapoint"
        reason = str(actor.lost).strip().rpartition("\n")[2].strip()
        return WorkerDied(
            f"worker {worker} of {num_workers} of {owner} ({actor.state()}) is lost {when}, before it finished its "
            f'work; Ray says "{reason[:_MAX_REASON]}". If it was killed, memory may have run out: lower max_bytes, '
            "or give it more by actor_options={'memory': ...}. max_restarts= is how many such workers are replaced",
            worker=worker,
            num_workers=num_workers,
            pid=pid,
        )

    # -- the receiver --------------------------------------------------------------------------------------------------

    def receive_nowait(self) -> Message | None:
        if not self._messages:
            self._collect()
        return self._messages.popleft() if self._messages else None

    def wait(self, timeout: float, watched: Sequence[int] = ()) -> bool:
        if self._messages or any(actor.lost and not actor.is_over for actor in self.actors.values()):
            return True
        requested = self._requested()
        if requested:
            try:
                return bool(self._cluster.wait(requested, timeout))
            except LostWorker:
                return True  # `receive_nowait` finds the error
        time.sleep(min(timeout, _MAX_IDLE))
        return False

    def port_of_successor(self, worker: int) -> _PullPort:
        return self.port(worker)

    def _requested(self) -> list[Any]:
        """Return all requested replies: those behind the first of a worker are fetched meanwhile."""
        return [reference for actor in self.actors.values() if not actor.is_over for reference in actor.replies]

    def _collect(self) -> None:
        """Move the replies that have come into `_messages`."""
        requested = self._requested()
        try:
            ready = set(self._cluster.wait(requested, 0, all_ready=True)) if requested else set()
        except LostWorker as error:  # then all are lost
            ready = set()
            for actor in self.actors.values():
                actor.mark_lost(error)
        for number, actor in self.actors.items():
            self._check_started(number, actor)
            # Only from the front: one that comes before those requested earlier waits for them.
            while actor.replies and actor.replies[0] in ready and actor.lost is None and not actor.is_over:
                try:
                    reply: Reply = self._cluster.get(actor.replies.popleft())
                except LostWorker as error:
                    actor.mark_lost(error)
                else:
                    actor.num_replies += 1
                    actor.is_ready = actor.is_ready or reply.is_ready
                    self._count(number, reply.counters)
                    self._receive(actor, reply.messages)
            if actor.lost is not None and not actor.is_over:
                self._lose(number, actor)

    def _count(self, number: int, counters: bytes) -> None:
        """Record what a worker has done, actors that it has replaced included."""
        if counters:
            words = array("Q", counters).tolist()
            before = self._counted_before.get(number)
            self._counters[number] = words if before is None else sums_of(before, words)

    def _receive(self, actor: ActorWorker, messages: list[Message]) -> None:
        self._messages.extend(messages)
        actor.is_over = any(message.kind in _FINAL_KINDS for message in messages)
        num_counted = sum(message.kind in _COUNTED for message in messages)
        if num_counted:
            # `consumed` requests another when the last of these was read; of a reply with none, nobody would.
            actor.unread.append(num_counted)
        elif not messages and (reason := actor.ended_silently()):
            actor.mark_lost(reason)  # otherwise it would give empty replies without end
        else:
            actor.request_reply()

    def _lose(self, number: int, actor: ActorWorker) -> None:
        """Mark the actor as lost, and add the final message that it could not send itself."""
        actor.is_over = True
        actor.replies.clear()
        actor.kill()
        self._messages.append(Message(Kind.LEFT, number, body=[actor.lost]))  # behind all that has come from it

    def _check_started(self, number: int, actor: ActorWorker) -> None:
        if not actor.has_started() and time.monotonic() - actor.started_at > self._start_timeout:
            wanted, free = _resources(actor.options), self._cluster.free()
            raise TimeoutError(
                f"worker {number} of {self._num_workers} of {self._owner} has not started within "
                f"{self._start_timeout:g} seconds. It requests {_listed(wanted)}; free in the cluster: {_listed(free)}."
                " Start fewer workers, let each request less by actor_options={'num_cpus': ...}, wait longer with "
                "start_timeout=, or add nodes; a runner inside an actor needs resources of its own"
            )


class PullCredit(Credit):
    """What the consumer has consumed. A worker's own counters are granted by its `WorkerActor`.

    Args:
        channel: The channel from the actors.
        num_workers: Number of workers.
    """

    def __init__(self, channel: PullChannel, num_workers: int) -> None:
        super().__init__(num_workers, shared=False)
        self._channel = channel

    def item_of(self, worker: int) -> int:
        """What `worker` makes: it is unknown what, if it has tasks and owes a reply, and nothing otherwise.

        One that has opened its flow, and whose replies are all requested, waits for nothing. It watches itself, so
        here only matters whether it gives any sign of life.
        """
        actor = self._channel.actors.get(worker)
        if actor is None or actor.lost is not None or not (actor.tasks and actor.replies):
            return 0
        return unknown_item(actor.num_replies)

    def late_after(self, timeout: float) -> tuple[float, str]:
        # C code that lets other threads run only between its calls delays a reply by several of them.
        seconds = max_wait(timeout) + max(_SILENT_TIMES * timeout, _MIN_SILENT_SECONDS)
        reason = (
            f"gave no sign of life for {seconds:g} seconds, with item_timeout={timeout:g}: it is stopped, or C code "
            "holds the interpreter's lock"
        )
        return seconds, reason

    def grant(self, worker: int, count: int, nbytes: int, queued: int) -> None:
        self._channel.actors[worker].consumed()

    def report_received(self, worker: int) -> None:
        self._channel.actors[worker].consumed()

    def done(self, worker: int, count: int) -> None:
        """No-op: no worker waits for it."""

    def counters_of(self, worker: int) -> list[int]:
        return self._channel.counters_of(worker)

    def stop(self) -> None:
        for actor in self._channel.actors.values():
            actor.call("stop")


class _PullPort(ReplyBuffer):
    """A worker's end, as a description: it arrives as the worker's `ReplyBuffer`."""

    def __init__(self, channel: PullChannel, worker: int, chunking: Chunking) -> None:
        super().__init__(chunking)
        self._channel = channel
        self._worker = worker

    def register(self, actor: ActorWorker) -> None:
        """Register `actor` as the worker."""
        self._channel.register(self._worker, actor)

    def __reduce__(self) -> tuple[Any, ...]:
        return ReplyBuffer, (self.chunking,)


def _resources(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources that an actor with these options requests, under the cluster's names."""
    named = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus"), "memory": options.get("memory")}
    return named | dict(options.get("resources") or {})


def _listed(resources: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(resources.items()) if amount) or "nothing"
