"""Item watch: workers that spend too long on one datapoint are found and killed.

The consumer looks at the words of its workers (`transport.current_item`) whenever it checks them. `ItemWatch` decides
who is late, and is pure: it knows no clock and no process. `LateWorkers` asks a late worker for its stacks, and kills
it.

Guarantees:

- Time counts while the consumer looks: between two looks at most a quarter of the limit. So a program that was stopped
  and continued, or is away from its loop for long, finds no worker late that has had no time.
- A word that has changed begins anew: the worker has finished a datapoint, or has waited for the consumer.
- A worker is killed only after everything that had come from it was entered in the schedule, and only if it still makes
  the same datapoint then. It may finish it at any moment: before the decision, the changed word ends the matter; after
  it, the result is dropped, and the datapoint is made again by another worker.
- A worker that is stopped by a signal, or waits in the kernel, writes no stacks. It is never continued; it is killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dataflow.runners.schedules import ItemEnd
from dataflow.runners.supervisor import Supervisor
from dataflow.system.stacks import StackFile
from dataflow.transport.current_item import position_in
from dataflow.transport.flow_control import Credit

__all__ = ["ItemWatch", "LateWorkers"]

_MAX_PART: Final = 0.25
_STACK_SECONDS: Final = 0.1  # that a worker gets to write its stacks


class ItemWatch:
    """Watches the workers of one engine.

    Args:
        timeout: Seconds that a worker may spend on one datapoint.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._looked_at: float | None = None
        self._counted: dict[int, tuple[int, float]] = {}  # by worker: its word, and the seconds that have counted

    def overdue(self, words: Sequence[int], now: float) -> list[int]:
        """The workers that have spent more than the limit on the datapoints of these words; 0 is none."""
        passed = 0.0 if self._looked_at is None else min(now - self._looked_at, _MAX_PART * self.timeout)
        self._looked_at = now
        before, self._counted = self._counted, {}
        for worker, word in enumerate(words):
            if word:
                known, counted = before.get(worker, (0, 0.0))
                self._counted[worker] = word, counted + passed if known == word else 0.0
        return [worker for worker, (_, counted) in self._counted.items() if counted >= self.timeout]


class LateWorkers:
    """Ends the workers of one engine that have spent too long on a datapoint. Called under the engine's lock.

    Args:
        timeout: Seconds that a worker may spend on one datapoint.
        supervisor: The supervisor of the workers.
        credit: Their credit counters, which hold their words.
        stacks: Where they write their stacks; None if they cannot.
    """

    def __init__(self, timeout: float, supervisor: Supervisor, credit: Credit, stacks: StackFile | None) -> None:
        limit, self._reason = credit.late_after(timeout)
        self._watch = ItemWatch(limit)
        self._supervisor = supervisor
        self._credit = credit
        self._stacks = stacks
        self._asked: tuple[int, int, float] | None = None  # a worker for its stacks; its word, and when
        self._killed: dict[int, tuple[int | None, ItemEnd]] = {}  # by worker: what it was making, and its end

    def check(self, now: float) -> None:
        """Ask a worker that is late for its stacks; kill it at a later call, if it still makes the same datapoint."""
        supervisor, item_of = self._supervisor, self._credit.item_of
        words = [item_of(k) if supervisor.is_running(k) else 0 for k in range(len(supervisor.workers))]
        late = self._watch.overdue(words, now)
        if self._asked is not None and (self._asked[0] not in late or words[self._asked[0]] != self._asked[1]):
            self._asked = None
        if not late:
            return
        supervisor.check_soon(now)  # while messages arrive, the next look would come half a second later
        if self._asked is None:
            self._asked = late[0], words[late[0]], now
            asked = supervisor.workers[late[0]]
            # A pid that was reaped may be that of another process by now, which must not get the signal.
            if self._stacks is not None and asked.pid is not None and not asked.has_ended():
                self._stacks.ask(asked.pid)
            return
        worker, word, since = self._asked
        if now - since < _STACK_SECONDS or supervisor.has_unread(worker) or supervisor.workers[worker].has_ended():
            return
        # Read after `has_unread` has drained the channel: a worker clears its word before it sends. So if the word is
        # the same, all that the worker has sent before this datapoint is in the schedule.
        if item_of(worker) == word:
            self._asked = None
            stack = "" if self._stacks is None else self._stacks.read()
            self.kill(worker, position_in(word), self._reason, stack, now)

    def kill(self, worker: int, position: int | None, reason: str, stack: str, now: float) -> None:
        """Kill a worker that is late: by its words, or because it says so itself.

        Args:
            worker: The worker.
            position: What it was making, in the part that it was asked for; None if unknown.
            reason: What it did, as the end of a sentence about it.
            stack: The stacks of its threads.
            now: The time.
        """
        # Kept here, since the word in shared memory may change until the signal arrives.
        self._killed[worker] = position, ItemEnd(reason, stack, is_late=True)
        self._supervisor.end(worker, now)

    def end_of(self, worker: int) -> tuple[int | None, ItemEnd | None]:
        """What a worker that has ended was making, in the part that it was asked for; and its end, if it was late."""
        return self._killed.pop(worker, None) or (position_in(self._credit.item_of(worker)), None)
