"""Batching sender: encodes a worker's datapoints at once and collects them in messages, bounded by its window.

Guarantees:

- A datapoint is encoded before the flow takes its next step.
- The worker never runs ahead of the consumer by more than its window, plus the datapoint that it is working on.
- A datapoint that was put never waits for a later one for more than `_FLUSH_INTERVAL` seconds (as long as the flow lets
  other threads run): the flusher thread sends what has been collected.
- Messages leave in the order in which their datapoints were put: both threads take from the same end of one deque,
  under one lock, and only the worker's own thread appends.
- A signal handler of the user that raises while a message is sent doubles no datapoint: a message of which a part has
  left counts as sent, and the channel completes it.
- A process forked by the flow's code sends nothing: it raises an error when it has completed a message.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dataflow.protocol.failures import Report
from dataflow.system.session import forked_off
from dataflow.transport.codec import Encoder
from dataflow.transport.flow_control import Quota, Room
from dataflow.transport.message_layout import NO_ROOM, PLAIN_BYTES
from dataflow.transport.messages import NO_TASK, Kind, Message, Sender
from dataflow.transport.worker_counters import WorkerActivity

if TYPE_CHECKING:
    from dataflow.transport.current_item import CurrentItem
    from dataflow.transport.turns import JobToken

__all__ = ["BatchingSender", "SenderFailed", "Stopped"]

_FLUSH_INTERVAL: Final = 0.008
_SECONDS: Final = 1e-3  # a message that fills up faster may be longer
_LONG: Final = 3  # times that: one that fills up slower is made shorter
_MAX: Final = 640  # 700 new containers alive would trigger garbage collections, which would find nothing
_MIN_SLEEP: Final = 50e-6
_MAX_SLEEP: Final = 2e-3
_MAX_REPORTS: Final = 64  # under way: while a flow yields only failures, no window bounds it

Look: TypeAlias = Callable[[Iterator[Any], int, MutableSequence[Any]], int]


class Stopped(Exception):
    """The consumer has requested the worker to stop."""


class SenderFailed(Exception):
    """The sender cannot work in this process: the worker ends, not only its task. The cause is the reason."""


class BatchingSender:
    """One worker's sender of messages to the consumer.

    Args:
        worker: Index of the worker.
        sender: Its end of the channel.
        encoder: Its end of the codec.
        quota: How far it may run ahead.
        note: Added to an exception that is sent: names the runner and the worker that raised it.
        seconds: For how long datapoints are collected before they are sent: one to three times that.
        item: Where it records which datapoint of a task the worker makes; None if nobody watches it.

    Attributes:
        counters: Where the worker records what it has done.
    """

    def __init__(
        self,
        worker: int,
        sender: Sender,
        encoder: Encoder,
        quota: Quota,
        *,
        note: str = "",
        seconds: float = _SECONDS,
        item: CurrentItem | None = None,
    ) -> None:
        self._worker = worker
        self._sender = sender
        self._encoder = encoder
        self._quota = quota
        self.counters = quota.counters
        self._item = item
        self._note = note
        self._seconds = seconds
        self._collected: deque[Any] = deque()  # encoded; the worker's thread appends, either thread takes and sends
        self._target = 1  # datapoints per message, at present
        self._sent = 0  # datapoints
        # The header of the next messages. Written by the worker's thread, while nothing is collected.
        self._kind, self._task, self._pace = Kind.DATA, NO_TASK, 0.0
        self._first = 0  # index of the task's first datapoint
        # Held to take from `_collected` until what was taken is sent: otherwise the two threads could change the order.
        self._sending = threading.Lock()
        self._flusher: threading.Thread | None = None
        self._closed = threading.Event()
        self._awake = threading.Event()  # ends a wait of the flusher
        self._tick: Callable[[], object] | None = None  # called by the flusher now and then
        self._tick_interval = _FLUSH_INTERVAL  # seconds between two of these calls, at least
        self._memory_seconds = 0.0  # spent waiting for room in the arena, for the message under way
        self._pid = os.getpid()

    def hello(self) -> None:
        """Report that the worker is connected."""
        self._send(Message(Kind.HELLO, self._worker))

    def wait_for_start(self) -> bool:
        """Wait until the worker may begin, so that those started first do not keep the others from starting.

        Returns False if it has to stop.
        """
        if self._quota.token is None:
            self._quota.wait_for_start()
        else:
            self._take(self._quota.token)
        return not self._quota.stopped

    def watch(self, tick: Callable[[], object], interval: float) -> None:
        """Let the flusher thread call `tick` now and then.

        Args:
            tick: Takes a sample of what the worker does. An exception of it ends the calls.
            interval: Seconds between two calls, at least.
        """
        self._tick, self._tick_interval = tick, max(interval, _FLUSH_INTERVAL)
        if self._item is not None:
            # Before the first datapoint: the signal that asks for stacks needs a thread that does not block it, and a
            # flow may block all signals in this one.
            self._start_flusher()

    def calibrate_encoder(self) -> None:
        """Calibrate the encoder by encoding sample datapoints on this path, without sending them."""
        calibrator = BatchingSender(self._worker, _DiscardingSender(), self._encoder, self._quota.unlimited())
        self._encoder.calibrate(calibrator.put_all)
        calibrator.close(0)

    def begin_task(self, number: int, first: int, pace: float) -> None:
        """Begin the task `number`: all results that follow belong to it.

        Everything that was put before has been sent, since `put_all`, `fail_task` and `end_pass` flush.

        Args:
            number: The task, for the headers of its messages.
            first: Index of its first datapoint, for errors.
            pace: Seconds per datapoint of the last task, for the header of its first message.
        """
        self._task, self._first, self._pace = number, first, pace

    def recorded(self, steps: Iterable[Any]) -> Iterable[Any]:
        """The steps of a task, each of which is recorded as the current item, if somebody watches it."""
        return steps if self._item is None else self._item.recorded(steps)

    def put_all(self, datapoints: Iterable[Any], kind: Kind = Kind.DATA, *, look_at_first: Look | None = None) -> int:
        """Put the datapoints of one pass, or the results of one task. Return how many there were.

        Args:
            datapoints: Each is encoded before the next step.
            kind: `Kind.BATCH` if the only datapoint is a batch of all results of the task.
            look_at_first: Called before each message, with the datapoints, how many it may have, and where to; it
                moves some of them there, and returns how many. For an encoder that sends datapoints themselves; None if
                nothing has to look at them.

        Raises:
            Stopped: The consumer has requested the worker to stop.
            TypeError: A datapoint cannot be encoded; a note names its position and component.
        """
        self._kind = kind
        steps = iter(datapoints)
        start, quota, token = self._sent, self._quota, self._quota.token
        ended = time.perf_counter()
        while True:
            if token is not None and token.is_needed(ended):
                quota.counters.enter(WorkerActivity.NOTHING, ended)
                self._take(token)
                ended = time.perf_counter()
            # After a flush nothing is collected, so the flusher does not count datapoints while this looks for room.
            room = quota.wait_for_room()
            if room is None:
                raise Stopped
            before = self._sent
            began = time.perf_counter()
            self._memory_seconds = 0.0
            self._fill(steps, room, start, look_at_first)
            self.flush()
            count = self._sent - before
            last, ended = ended, time.perf_counter()
            quota.counters.add_step(ended, ended - last - quota.waited - self._memory_seconds)
            if not count:
                return before - start
            self._adapt(count, ended - began)
            quota.yield_processor()

    def _fill(self, steps: Iterator[Any], room: Room, start: int, look_at_first: Look | None) -> None:
        """Put datapoints until there are enough for a message, or the pass has ended."""
        encoder, collected = self._encoder, self._collected
        if encoder.plain:
            max_count = min(self._target, max(1, room.count, room.nbytes // PLAIN_BYTES))
            if look_at_first is not None:
                max_count -= look_at_first(steps, max_count, collected)
            # Into the deque itself, one by one: the flusher may send the first ones while the flow makes the next.
            dp = encoder.encode_plain(islice(steps, max_count), collected)
            if dp is NO_ROOM:
                return
            steps = chain([dp], steps)
            del dp
        encode = encoder.encode
        max_count, min_bytes, max_bytes = room.count, min(room.nbytes, room.max_bytes), room.max_bytes
        nbytes = 0
        for count, dp in enumerate(islice(steps, self._target), 1):
            try:
                item = encode(dp)
                if item is NO_ROOM:
                    item = self._encode_when_there_is_room(dp)
                    max_count = min_bytes = 0
            # Raised while it waited for room: nothing is wrong with the datapoint.
            except Stopped:
                raise
            except Exception as error:
                self._explain(error, start, dp)
                raise
            collected.append(item)
            nbytes += encoder.nbytes
            if nbytes >= min_bytes and (count >= max_count or nbytes >= max_bytes):
                break

    def fail_task(self, error: BaseException) -> None:
        """Send the exception that ended the task, after all results that were put before."""
        self.flush()
        body = self._encoder.encode_failure(error, self._note)
        self._send(Message(Kind.TASK_FAILED, self._worker, 0, 0, body, self._task, self._pace))

    def end_pass(self, kept: Sequence[bytes] = ()) -> None:
        """Report that the task, a pass, is complete, and what nodes keep for the next one."""
        self.flush()
        self._send(Message(Kind.PASS_ENDED, self._worker, body=list(kept), task=self._task, pace=self._pace))

    def report(self, report: Report) -> None:
        """Send a report of a step of the flow, after all datapoints that were put before.

        Raises:
            Stopped: The consumer has requested the worker to stop.
        """
        # Within a batch, one datapoint may fail: the batch goes on after the report.
        is_within_item = self._item is not None and self._item.end()
        self.flush()
        if not self._quota.wait_for_report_credit(_MAX_REPORTS):
            raise Stopped
        self._send(Message(Kind.REPORT, self._worker, body=self._encoder.encode_report(report, self._note)))
        if self._item is not None and is_within_item:
            self._item.resume()

    def ended(self) -> None:
        """Report that a pass was empty."""
        self.flush()
        self._send(Message(Kind.ENDED, self._worker))

    def failed(self, error: BaseException) -> None:
        """Send the exception that the flow raised, after all datapoints that were put before.

        No-op in a forked child.
        """
        if os.getpid() != self._pid:
            return
        self.flush()
        self._send(Message(Kind.ERROR, self._worker, body=self._encoder.encode_failure(error, self._note)))

    def left(self, error: SystemExit, exitcode: int) -> None:
        """Report that the flow called sys.exit, after all datapoints that were put before."""
        self.flush()
        body = self._encoder.encode_failure(error, self._note)
        self._send(Message(Kind.LEFT, self._worker, count=exitcode, body=body))

    def flush(self) -> None:
        """Send the datapoints collected so far. What may have to wait begins here, so no datapoint is being made."""
        self._check_process()
        if self._item is not None:
            self._item.end()
        with self._sending:
            if self._collected:
                # Only this thread appends, so `clear` loses nothing. The flusher has to take them one after the other.
                taken = list(self._collected)
                self._collected.clear()
                self._send_collected(taken)

    def close(self, flush: float) -> None:
        """Close the sender once all messages have left, or after `flush` seconds.

        If the consumer stopped the worker, close at once.
        """
        # A forked child has no flusher to join, and the end of the channel is its parent's.
        if os.getpid() != self._pid:
            return
        self._closed.set()
        # After `_closed`, which the flusher looks at once it is awake.
        self._awake.set()
        self._quota.counters.end()
        if self._quota.token is not None:
            # Before the join, which may take as long as the flusher sends: another worker can use the token.
            self._quota.token.end()
        if self._flusher is not None:
            self._flusher.join()
        # After the join, because the flusher sends, too.
        self._sender.close(0.0 if self._quota.stopped else flush)

    # -- Message length, waiting for room, flushing --------------------------------------------------------------------

    def _adapt(self, count: int, took: float) -> None:
        if took < self._seconds:
            if count >= self._target:
                was_single, self._target = self._target == 1, min(2 * self._target, _MAX)
                if was_single:
                    self._awake.set()  # after `_target`, from which the flusher finds out how long to wait
        elif took > _LONG * self._seconds:
            self._target = max(1, count // 2)
        if self._target > 1 or self._encoder.keeps_memory or self._tick is not None:
            self._start_flusher()

    def _take(self, token: JobToken) -> None:
        """Wait for the worker's next token."""
        token.wait()
        self._start_flusher()  # which looks at the token
        # After `wait`: the flusher waits for a shorter time if it finds the token held.
        self._awake.set()

    def _start_flusher(self) -> None:
        """Start the flusher thread, unless it runs."""
        if self._flusher is None:
            flusher = threading.Thread(target=self._keep_flushing, name="dataflow-flusher", daemon=True)
            try:
                flusher.start()
            except RuntimeError as error:  # there is no thread to join
                raise SenderFailed from error
            self._flusher = flusher

    def _encode_when_there_is_room(self, dp: Any) -> Any:
        """Encode a datapoint although the arena is full.

        While the consumer holds datapoints of any worker that it has not handed out, it will free blocks: wait. Once it
        has handed out all and blocks are still missing, the consumer keeps the arrays. Then the arrays travel in the
        message, and each worker has only one such message at a time, so the queue stays bounded.
        """
        # The consumer frees blocks only of datapoints that it has, so what is collected goes first.
        self.flush()
        delay, began = _MIN_SLEEP, time.perf_counter()
        self._quota.counters.enter(WorkerActivity.MEMORY, began)
        try:
            while not self._quota.stopped:
                # Before the attempt, which then finds everything that the consumer has freed until it was done.
                all_done = self._quota.all_done()
                item = self._encoder.encode(dp)
                if item is not NO_ROOM:
                    return item
                if all_done:
                    return self._encoder.encode_inline(dp)
                time.sleep(delay)
                delay = min(2 * delay, _MAX_SLEEP)
            raise Stopped
        finally:
            ended = time.perf_counter()
            self._memory_seconds += ended - began
            self._quota.counters.add_wait(WorkerActivity.MEMORY, ended, ended - began)

    def _keep_flushing(self) -> None:
        next_tick, token = 0.0, self._quota.token
        while not self._closed.is_set():
            is_idle = self._target == 1 and not self._encoder.keeps_memory and (token is None or not token.is_held)
            self._awake.wait(self._tick_interval if is_idle else _FLUSH_INTERVAL)
            # Whatever was set before this line is looked at below, or in the next turn of the loop.
            self._awake.clear()
            if token is not None:
                token.check(time.perf_counter())
            try:
                if self._tick is not None and (now := time.monotonic()) >= next_tick:
                    next_tick = now + self._tick_interval
                    self._tick()
            except Exception:  # the samples are for statistics only, and messages depend on this thread
                self._tick = None
            try:
                with self._sending:
                    # The worker's thread may append at the same time.
                    if taken := [self._collected.popleft() for _ in range(len(self._collected))]:
                        self._send_collected(taken)
                # Without the lock: returning pages takes long, and the arena has a lock of its own.
                self._encoder.tidy()
            except Exception:
                continue  # a lasting failure is raised in the worker's own thread, at its next message

    def _send_collected(self, taken: list[Any]) -> None:
        """Send items taken from the front of `_collected`."""
        count = len(taken)
        begun: list[Any] = []
        try:
            body, nbytes = self._encoder.join(taken)
            message = Message(self._kind, self._worker, count, nbytes, body, self._task, self._pace)
            # Counted before the message can arrive: a worker that waits for room compares the datapoints made with
            # those done.
            self._quota.spend(count, nbytes)
            self._quota.counters.add_message(count, nbytes)
            try:
                self._sender.send(message, begun)
            except BaseException:
                if begun:
                    self._record_sent(message)
                else:
                    self._quota.spend(-count, -nbytes)
                    self._quota.counters.add_message(-count, -nbytes, -1)
                raise
            self._record_sent(message)
        except BaseException:
            if not begun:  # otherwise these datapoints would be sent twice
                self._collected.extendleft(reversed(taken))  # the messages that follow must not have a gap before them
            raise

    def _record_sent(self, message: Message) -> None:
        self._quota.queue(message.queued)
        self._sent += message.count
        self._pace = 0.0

    def _explain(self, error: Exception, start: int, dp: Any) -> None:
        """Add a note that names the datapoint and the component that cannot be sent."""
        with self._sending:
            # With the lock held, as the flusher moves datapoints from one number to the other.
            position = self._sent + len(self._collected) - start
        parts: Sequence[tuple[Any, Any]] = ()
        if isinstance(dp, dict):
            parts = list(dp.items())
        elif isinstance(dp, list | tuple):
            parts = list(enumerate(dp))
        component = ""
        for key, value in parts:
            try:
                self._encoder.encode(value)
            except Exception:
                component = f", component {key!r} of type {type(value).__name__}"
                break
        cure = "Yield arrays, numbers, text and containers of them, or use"
        if self._task == NO_TASK:
            error.add_note(
                f"datapoint {position} of the pass{component} cannot be sent to another process. {cure} "
                "MultiThreadRunner, which sends nothing"
            )
        else:
            error.add_note(
                f"what was made{component} cannot be sent to another process. {cure} threads, which send nothing"
            )
            error.add_note(f"it was made of the datapoint at index {self._first + position} of the input")

    def _check_process(self) -> None:
        """Raise in a forked child. Called before the lock is taken; the flusher may have held it at the fork."""
        if os.getpid() != self._pid:
            raise forked_off(self._pid)

    def _send(self, message: Message) -> None:
        self._check_process()
        with self._sending:
            self._sender.send(message)


class _DiscardingSender:
    """A sender that discards every message."""

    def send(self, message: Message, begun: list[Any] | None = None) -> None:
        pass

    def close(self, flush: float) -> None:
        pass
