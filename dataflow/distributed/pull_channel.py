"""`PullChannel`: datapoints from actors, each of which the consumer asks for its next few replies.

Guarantees:

- At most `in_flight` replies of a worker are requested, or have come and are not used up. What a worker makes ahead of
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
from dataflow.distributed.actor_worker import ActorWorker
from dataflow.distributed.cluster import ActorLost
from dataflow.engine.worker_errors import died
from dataflow.errors import TimeoutError, WorkerDied

__all__ = ["PullChannel", "Demand"]

_COUNTED: Final = {Kind.DATA, Kind.REPORT}
_LAST_WORDS: Final = {Kind.ENDED, Kind.ERROR, Kind.LEFT}
_MAX_REASON: Final = 400  # characters
_MAX_IDLE: Final = 0.01  # seconds between two checks while there is no reply to wait for


class _Line:
    """State of one worker."""

    def __init__(self, worker: ActorWorker, started: float) -> None:
        self.worker = worker
        self.started: float | None = started  # when it was requested; None as soon as it has started
        self.asked: deque[Any] = deque()  # references of replies, the oldest first
        self.unused: deque[int] = deque()  # for each reply that has come: number of its counted messages not read yet


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
        self._lines: dict[int, _Line] = {}
        self._inbox: deque[Message] = deque()

    # -- the channel ---------------------------------------------------------------------------------------------------

    def port(self, worker: int) -> _PullPort:
        return _PullPort(self, worker, self._chunking)

    def open_receiver(self) -> PullChannel:
        return self

    def close(self) -> None:
        self._lines.clear()
        self._inbox.clear()

    def introduce(self, worker: int, actor: ActorWorker) -> None:
        """Register the actor of a worker."""
        self._cluster = actor.cluster
        line = self._lines[worker] = _Line(actor, self._clock())
        for _ in range(self._in_flight):
            self._ask(line)

    def died(
        self, owner: str, worker: int, num_workers: int, pid: int | None, exitcode: int | None, received: int | None
    ) -> WorkerDied:
        """Return the error for a worker that has ended, with Ray's explanation if the actor was lost."""
        actor = self._lines[worker].worker
        if actor.lost is None:
            return died(owner, worker, num_workers, pid, exitcode, received)
        when = "before anything came from it" if received is None else f"after {received} datapoints"
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
        if not self._inbox:
            self._collect()
        return self._inbox.popleft() if self._inbox else None

    def wait(self, timeout: float, watched: Sequence[int] = ()) -> bool:
        if self._inbox or any(line.worker.lost and not line.worker.is_over for line in self._lines.values()):
            return True
        asked = self._asked()
        if asked:
            try:
                return bool(self._cluster.wait(asked, timeout))
            except ActorLost:
                return True  # `receive_nowait` finds the error
        time.sleep(min(timeout, _MAX_IDLE))
        return False

    def port_of_successor(self, worker: int) -> _PullPort:
        return self.port(worker)

    def stop_accepting(self) -> None:
        """No-op: an actor has no address to close."""

    def stop(self) -> None:
        """No-op: no unread messages can block a worker."""

    def _asked(self) -> list[Any]:
        """Return all requested replies: those behind the first of a worker are fetched meanwhile."""
        return [reference for line in self._lines.values() if not line.worker.is_over for reference in line.asked]

    def _collect(self) -> None:
        """Move the replies that have come into the inbox."""
        asked = self._asked()
        try:
            ready = set(self._cluster.wait(asked, 0, all_ready=True)) if asked else set()
        except ActorLost as error:  # then all are lost
            ready = set()
            for line in self._lines.values():
                line.worker.lose(error)
        for number, line in self._lines.items():
            if line.started is not None:
                self._look_for(number, line)
            while line.asked and line.asked[0] in ready and line.worker.lost is None and not line.worker.is_over:
                try:
                    messages = self._cluster.get(line.asked.popleft())
                except ActorLost as error:
                    line.worker.lose(error)
                else:
                    self._process_reply(line, messages)
            if line.worker.lost is not None and not line.worker.is_over:
                self._lose(number, line)

    def _process_reply(self, line: _Line, messages: list[Message]) -> None:
        self._inbox.extend(messages)
        line.worker.has_answered = line.worker.has_answered or bool(messages)
        line.worker.is_over = any(message.kind in _LAST_WORDS for message in messages)
        num_counted = sum(message.kind in _COUNTED for message in messages)
        if num_counted:
            line.unused.append(num_counted)
        elif not messages and (reason := line.worker.ended_in_silence()):
            line.worker.lose(reason)  # otherwise it would give empty replies without end
        else:
            self._ask(line)

    def _lose(self, number: int, line: _Line) -> None:
        """Mark the actor as lost, and add the final message that it could not send itself."""
        line.worker.is_over = True
        line.asked.clear()
        line.worker.kill()
        self._inbox.append(Message(Kind.LEFT, number, body=[line.worker.lost]))

    def _look_for(self, number: int, line: _Line) -> None:
        assert line.started is not None
        try:
            if line.worker.has_started():
                line.started = None
                return
        except ActorLost as error:
            line.worker.lose(error)
            return
        if self._clock() - line.started > self._start_timeout:
            wanted, free = _resources(line.worker.options), self._cluster.free()
            raise TimeoutError(
                f"worker {number} of {self._num_workers} of {self._owner} has not started within "
                f"{self._start_timeout:g} seconds. It asks for {_listed(wanted)}; free in the cluster: {_listed(free)}."
                " Start fewer workers, let each ask for less by actor_options={'num_cpus': ...}, wait longer with "
                "start_timeout=, or add nodes; a runner inside an actor needs resources of its own"
            )

    # -- what is used up -----------------------------------------------------------------------------------------------

    def used(self, worker: int) -> None:
        """Count a message of `worker` that was read: after the last one of a reply, another reply is requested."""
        line = self._lines[worker]
        if line.unused:
            line.unused[0] -= 1
            if not line.unused[0]:
                line.unused.popleft()
                self._ask(line)

    def stop_workers(self) -> None:
        """Stop all workers."""
        for line in self._lines.values():
            line.worker.call("stop")

    def _ask(self, line: _Line) -> None:
        if not line.worker.is_over:
            reference = line.worker.call("reply")
            if reference is not None:
                line.asked.append(reference)


class Demand(Credit):
    """What the consumer has used up. In a worker it counts the grants of its `WorkerActor`."""

    def __init__(self, asking: PullChannel, num_workers: int) -> None:
        super().__init__(num_workers, shared=False)
        self._asking = asking

    def grant(self, worker: int, count: int, nbytes: int, queued: int) -> None:
        self._asking.used(worker)

    def report_received(self, worker: int) -> None:
        self._asking.used(worker)

    def done(self, worker: int, count: int) -> None:
        """No-op: no worker waits for it."""

    def stop(self) -> None:
        self._asking.stop_workers()


class _PullPort:
    """A worker's end, as a description: it arrives as the worker's `ReplyBuffer`."""

    def __init__(self, asking: PullChannel, worker: int, chunking: Chunking) -> None:
        self._asking = asking
        self._worker = worker
        self._chunking = chunking

    def descriptors(self) -> tuple[Descriptor, ...]:
        return ()

    def open(self) -> ReplyBuffer:
        return ReplyBuffer(self._chunking)

    def close_in_parent(self) -> None:
        """No-op."""

    def introduce(self, actor: ActorWorker) -> None:
        """Register `actor` as the worker."""
        self._asking.introduce(self._worker, actor)

    def __reduce__(self) -> tuple[Any, ...]:
        return ReplyBuffer, (self._chunking,)


def _resources(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources that an actor with these options requests, under the cluster's names."""
    named = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus"), "memory": options.get("memory")}
    return named | dict(options.get("resources") or {})


def _listed(resources: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(resources.items()) if amount) or "nothing"
