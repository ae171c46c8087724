"""The consumer's books of a map: what was read, and what of it was given to the workers.

Guarantees, besides those of `TaskSchedule`:

- At most `buffer_size` datapoints are read and not yet handed out, those that wait for a slower one included.
- What the tray has no room for is tried again when results have come; it has room for whatever is alone in it.
"""

from __future__ import annotations

from typing import Any, Final

from dataflow.channel.task_queue import TaskQueue
from dataflow.codec.message_layout import NO_ROOM
from dataflow.engine.task_schedule import TaskSchedule

__all__ = ["MapTasks"]

_NOTHING: Final = object()


class MapTasks(TaskSchedule):
    """The desk of a map.

    Args:
        task_queue: From which the workers take.
        num_workers: How many they are.
        buffer_size: How many datapoints may be under way.
        ordered: Whether results are handed out in the order in which their datapoints were read.
        continues: Whether one pass goes on with what the last one has left.
        per_task: How many datapoints every task has, but for the last of a pass; None for what pays.
    """

    def __init__(
        self,
        task_queue: TaskQueue,
        num_workers: int,
        buffer_size: int,
        *,
        ordered: bool,
        continues: bool,
        per_task: int | None = None,
    ) -> None:
        super().__init__(task_queue, num_workers, per_task or max(1, buffer_size // (2 * num_workers)), ordered=ordered)
        self._is_fixed = per_task is not None
        if per_task is not None:
            self.per_task = self.min_per_task = per_task
        self.continues = continues
        self._buffer_size = buffer_size
        self._held: Any = _NOTHING  # read, and not encoded, as there was no room
        self._collected: list[Any] = []  # encoded, for the next task
        self._ended = False  # the source has no more

    def begin(self, index: int = 0) -> None:
        self._held, self._collected, self._ended = _NOTHING, [], False
        super().begin(index)

    def begin_pass(self, index: int) -> None:
        """A pass begins, of which the first datapoint has this index."""
        self.begin(index)

    def resume(self) -> None:
        """A pass begins, and goes on with what is under way."""
        self._ended = False

    def has_room(self) -> bool:
        """Whether one more datapoint may be read."""
        return self.under_way < self._buffer_size and self._held is _NOTHING

    def room_in_task(self) -> int:
        """How many datapoints may be read before a task is given."""
        return max(1, min(self._buffer_size - self.under_way, self.per_task - len(self._collected)))

    def plain_encoder(self) -> Any:
        """What encodes many datapoints at once, while they come as the last one was; else None."""
        return self.task_queue.plain_encoder()

    def give_encoded(self, items: list[Any]) -> None:
        """These were read and encoded so."""
        self.under_way += len(items)
        self._collected += items
        if len(self._collected) >= self.per_task:
            self.send()

    def give(self, dp: Any) -> None:
        """A datapoint was read."""
        self.under_way += 1
        self._held = dp
        self._encode()

    def pause(self) -> None:
        """Nothing more is read for now: what is collected does not wait for more, if the workers want it."""
        if not self.has_enough and not self._is_fixed:
            self.send()

    def send(self) -> None:
        """Give the workers what is collected, if there is room for it."""
        if self._collected and self.ask(self._collected, len(self._collected)):
            self._collected = []

    def end(self) -> None:
        """The source has no more."""
        self._ended = True

    def _encode(self) -> None:
        try:
            item = self.task_queue.encode(self._held, alone=False)
            if item is NO_ROOM:
                self.send()
                if self._collected or not self.is_idle:
                    return  # whose memory will be free
                item = self.task_queue.encode(self._held, alone=True)
        except Exception as error:
            self._held = _NOTHING
            self.under_way -= 1
            error.add_note(
                f"the datapoint at index {self.index + len(self._collected)} of the input cannot be sent to a worker. "
                "Give out arrays, numbers, text and containers of them, or use MultiThreadMapData, which sends nothing"
            )
            raise
        self._held = _NOTHING
        self._collected.append(item)
        if len(self._collected) >= self.per_task:
            self.send()

    def refill(self) -> None:
        self.task_queue.pump()
        if self._held is not _NOTHING:
            self._encode()
        if len(self._collected) >= self.per_task or self._held is not _NOTHING or self._ended:
            self.send()
        else:
            self.pause()

    @property
    def read_all(self) -> bool:
        return self._ended and not self._collected and self._held is _NOTHING

    def close(self) -> None:
        self._held, self._collected = _NOTHING, []
        super().close()
