"""`PullChannel`: the channel from actors; the consumer requests a few replies of each in advance.

Guarantees:

- At most `in_flight` replies of a worker are requested, or have come and are not consumed. What a worker makes ahead of
  them is limited by its window. So the object store does not fill up while the consumer is slow, or has stopped.
- Replies of a worker are read in the order in which they were requested, up to the first that is lost: so the
  replies that were read are the beginning of the worker's output, and a successor can continue from there.
- An actor that is lost is killed before it is replaced: it may be alive, and only unreachable.
- An actor for which there is no room is reported after `start_timeout` seconds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dataflow.channel.flow_control import Credit
from dataflow.channel.messages import Kind, Message
from dataflow.descriptors import Descriptor
from dataflow.distributed.actor import Chunking, ReplyBuffer
from dataflow.distributed.cluster import ActorLost, ActorWorker
from dataflow.engine.worker_errors import died
from dataflow.errors import TimeoutError, WorkerDied

__all__ = ["PullChannel", "PullCredit"]

_COUNTED: Final = {Kind.DATA, Kind.REPORT}
_FINAL_KINDS: Final = {Kind.ENDED, Kind.ERROR, Kind.LEFT}
_MAX_REASON: Final = 400  # characters
_MAX_IDLE: Final = 0.01  # seconds between two checks while there is no reply to wait for


class _Actor:
    """State of one worker."""

    def __init__(self, worker: ActorWorker, started: float) -> None:
        self.worker = worker
        self.started: float | None = started  # when it was requested; None as soon as it has started
        self.replies: deque[Any] = deque()  # references of replies, the oldest first
        self.unread: deque[int] = deque()  # for each reply that has come: number of its counted messages not read yet


class PullChannel:
    """The channel to actors, and its receiver.

    Args:
        owner: Name of the runner's class, for messages.
        num_workers: Number of workers.
        chunking: When a reply is full.
        in_flight: Replies that are requested in advance.
        start_timeout: Seconds that an actor may take to start.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        owner: str,
        num_workers: int,
        chunking: Chunking,
        *,
        in_flight: int,
        start_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owner = owner
        self._cluster: Any = None  # the cluster of the actors, once there is one
        self._num_workers = num_workers
        self._chunking = chunking
        self._in_flight = in_flight
        self._start_timeout = start_timeout
        self._clock = clock
        self._actors: dict[int, _Actor] = {}
        self._inbox: deque[Message] = deque()

    # -- the channel ---------------------------------------------------------------------------------------------------

    def port(self, worker: int) -> _PullPort:
        return _PullPort(self, worker, self._chunking)

    def open_receiver(self) -> PullChannel:
        return self

    def close(self) -> None:
        self._actors.clear()
        self._inbox.clear()

    def register(self, worker: int, handle: ActorWorker) -> None:
        """Register the actor of a worker."""
        self._cluster = handle.cluster
        actor = self._actors[worker] = _Actor(handle, self._clock())
        for _ in range(self._in_flight):
            self._request(actor)

    def died(
        self, owner: str, worker: int, num_workers: int, pid: int | None, exitcode: int | None, received: int | None
    ) -> WorkerDied:
        """Return the error for a worker that has ended, with Ray's explanation if the actor was lost."""
        handle = self._actors[worker].worker
        if handle.lost is None:
            return died(owner, worker, num_workers, pid, exitcode, received)
        when = "before anything came from it" if received is None else f"after {received} datapoints"
        reason = str(handle.lost).strip().rpartition("\n")[2].strip()
        return WorkerDied(
            f"worker {worker} of {num_workers} of {owner} ({handle.state()}) is lost {when}, before it finished its "
            f'work; Ray says "{reason[:_MAX_REASON]}". If it was killed, memory may have run out: lower max_bytes, '
            "or give it more by actor_options={'memory': ...}. max_restarts= is how many such workers are replaced",
            worker=worker,
            num_workers=num_workers,
            pid=pid,
        )

    # -- the receiver --------------------------------------------------------------------------------------------------

    def take(self) -> Message | None:
        if not self._inbox:
            self._collect()
        return self._inbox.popleft() if self._inbox else None

    def wait(self, timeout: float, watched: Sequence[int] = ()) -> bool:
        if self._inbox or any(actor.worker.lost and not actor.worker.is_over for actor in self._actors.values()):
            return True
        requested = self._requested()
        if requested:
            try:
                return bool(self._cluster.wait(requested, timeout))
            except ActorLost:
                return True  # `take` finds the error
        time.sleep(min(timeout, _MAX_IDLE))
        return False

    def readmit(self, worker: int) -> _PullPort:
        return self.port(worker)

    def everyone_connected(self) -> None:
        """No-op: an actor has no address to close."""

    def stop(self) -> None:
        """No-op: no unread messages can block a worker."""

    def _requested(self) -> list[Any]:
        """Return all requested replies: those behind the first of a worker are fetched meanwhile."""
        return [reference for actor in self._actors.values() if not actor.worker.is_over for reference in actor.replies]

    def _collect(self) -> None:
        """Move the replies that have come into the inbox."""
        requested = self._requested()
        try:
            ready = set(self._cluster.wait(requested, 0, all_ready=True)) if requested else set()
        except ActorLost as error:  # then all are lost
            ready = set()
            for actor in self._actors.values():
                actor.worker.mark_lost(error)
        for number, actor in self._actors.items():
            if actor.started is not None:
                self._check_started(number, actor)
            while (
                actor.replies and actor.replies[0] in ready and actor.worker.lost is None and not actor.worker.is_over
            ):
                try:
                    messages = self._cluster.get(actor.replies.popleft())
                except ActorLost as error:
                    actor.worker.mark_lost(error)
                else:
                    self._receive(actor, messages)
            if actor.worker.lost is not None and not actor.worker.is_over:
                self._lose(number, actor)

    def _receive(self, actor: _Actor, messages: list[Message]) -> None:
        self._inbox.extend(messages)
        actor.worker.has_reported = actor.worker.has_reported or bool(messages)
        actor.worker.is_over = any(message.kind in _FINAL_KINDS for message in messages)
        num_counted = sum(message.kind in _COUNTED for message in messages)
        if num_counted:
            actor.unread.append(num_counted)
        elif not messages and (reason := actor.worker.ended_silently()):
            actor.worker.mark_lost(reason)  # otherwise it would give empty replies without end
        else:
            self._request(actor)

    def _lose(self, number: int, actor: _Actor) -> None:
        """Mark the actor as lost, and add the final message that it could not send itself."""
        actor.worker.is_over = True
        actor.replies.clear()
        actor.worker.kill()
        self._inbox.append(Message(Kind.LEFT, number, body=[actor.worker.lost]))

    def _check_started(self, number: int, actor: _Actor) -> None:
        assert actor.started is not None
        try:
            if actor.worker.has_started():
                actor.started = None
                return
        except ActorLost as error:
            actor.worker.mark_lost(error)
            return
        if self._clock() - actor.started > self._start_timeout:
            wanted, free = _resources(actor.worker.options), self._cluster.free()
            raise TimeoutError(
                f"worker {number} of {self._num_workers} of {self._owner} has not started within "
                f"{self._start_timeout:g} seconds. It requests {_listed(wanted)}; free in the cluster: {_listed(free)}."
                " Start fewer workers, let each request less by actor_options={'num_cpus': ...}, wait longer with "
                "start_timeout=, or add nodes; a runner inside an actor needs resources of its own"
            )

    # -- what is consumed ----------------------------------------------------------------------------------------------

    def consumed(self, worker: int) -> None:
        """Count a message of `worker` that was read: after the last one of a reply, another is requested."""
        actor = self._actors[worker]
        if actor.unread:
            actor.unread[0] -= 1
            if not actor.unread[0]:
                actor.unread.popleft()
                self._request(actor)

    def stop_workers(self) -> None:
        """Stop all workers."""
        for actor in self._actors.values():
            actor.worker.call("stop")

    def _request(self, actor: _Actor) -> None:
        if not actor.worker.is_over:
            reference = actor.worker.call("reply")
            if reference is not None:
                actor.replies.append(reference)


class PullCredit(Credit):
    """What the consumer has consumed. A worker's own counters are granted by its `WorkerActor`."""

    def __init__(self, channel: PullChannel, num_workers: int) -> None:
        super().__init__(num_workers, shared=False)
        self._channel = channel

    def grant(self, worker: int, count: int, nbytes: int, queued: int) -> None:
        self._channel.consumed(worker)

    def heard(self, worker: int) -> None:
        self._channel.consumed(worker)

    def done(self, worker: int, count: int) -> None:
        """No-op: no worker waits for it."""

    def stop(self) -> None:
        self._channel.stop_workers()


class _PullPort:
    """A worker's end, as a description: it arrives as the worker's `ReplyBuffer`."""

    def __init__(self, channel: PullChannel, worker: int, chunking: Chunking) -> None:
        self._channel = channel
        self._worker = worker
        self._chunking = chunking

    def descriptors(self) -> tuple[Descriptor, ...]:
        return ()

    def open(self) -> ReplyBuffer:
        return ReplyBuffer(self._chunking)

    def hand_over(self) -> None:
        """No-op."""

    def register(self, actor: ActorWorker) -> None:
        """Register `actor` as the worker."""
        self._channel.register(self._worker, actor)

    def __reduce__(self) -> tuple[Any, ...]:
        return ReplyBuffer, (self._chunking,)


def _resources(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources that an actor with these options requests, under the cluster's names."""
    named = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus"), "memory": options.get("memory")}
    return named | dict(options.get("resources") or {})


def _listed(resources: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(resources.items()) if amount) or "nothing"
