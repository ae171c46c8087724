"""Tensors on their way to a device, a few datapoints ahead of the training loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dataflow.errors import TimeoutError
from dataflow.frameworks.tensors import import_torch, tensor_maker
from dataflow.protocol.base import Blocks, DataFlow, ProxyDataFlow, T_co
from dataflow.protocol.kept import reading_ahead
from dataflow.protocol.parameters import whole_number
from dataflow.protocol.pauses import Pause, pausing
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import Taken, state_of

__all__ = ["PrefetchToDevice"]


class PrefetchToDevice(ProxyDataFlow[T_co]):
    """Datapoints as torch tensors on a device, copied there ahead of the loop.

    On a CUDA device, arrays are copied into pinned memory, and from there to the device on a stream of its own, while
    the loop computes; the current stream of the loop waits for each copy before it is used. Other devices get plain
    copies. Numbers and arrays become tensors as by `to_torch`: Python integers and int32 become int64. Text stays.

    Args:
        ds: The input: datapoints of arrays, tensors and numbers, usually batches. Put a DataLoader into
            `DataFromIterable`.
        device: The device, as torch names it: "cuda", "cuda:1", "cpu", or a torch.device.
        depth: How many datapoints are on the device ahead of the one that the loop has, at least 1.

    Raises:
        MissingExtra: torch is not installed.

    Example:
        >>> df = BatchData(DataFromList([[np.ones(3), k] for k in range(8)]), 4)
        >>> for images, labels in PrefetchToDevice(df, "cpu"):  # doctest: +SKIP
        ...     print(images.device, labels.dtype)
        cpu torch.int64
        cpu torch.int64

    Source:
        ``prefetch_to_device`` of Flax, and the notes of torch on pinned memory and streams. The CUDA part follows
        their documents; tests check the order of its calls, without a GPU.
    """

    _df_run_settings = frozenset({"device", "depth"})
    _df_takes = 1

    def __init__(self, ds: DataFlow, device: Any, depth: int = 2) -> None:
        super().__init__(ds)
        self.device = str(import_torch("PrefetchToDevice needs").device(device))
        self.depth = whole_number(self, "depth", depth, 1)

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        name = type(self).__name__
        if self.ds._df_endless:  # a loop continues with what was read ahead
            return state_of(self).continued.take(stream, partial(self._endless, p, stream), self)
        below, taken = reading_ahead(self, stream, name)
        return self._ahead(self.ds._df_run_pass(p, below), taken)

    def _endless(self, p: int, stream: Stream) -> Iterator[Any]:
        return self._ahead(self.ds._df_run_pass(p, stream), Taken(stream))

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return self._ahead(self.ds._df_at(blocks, stream), Taken(stream))

    def _ahead(self, datapoints: Iterator[Any], taken: Taken) -> Iterator[Any]:
        waits = self._df_waits
        return pausing(self._steps(datapoints, taken, waits), waits)

    def _steps(self, datapoints: Iterator[Any], taken: Taken, waits: bool) -> Iterator[Any]:
        """Yield each datapoint when `depth` further copies have begun; a failure comes after those before it."""
        torch = import_torch("PrefetchToDevice needs")
        send = (
            _cuda_sender(torch, self.device)
            if torch.device(self.device).type == "cuda"
            else _sender(torch, self.device)
        )
        waiting: deque[Callable[[], Any]] = deque()
        failure: BaseException | None = None
        pause: Pause | None = None
        try:
            while True:
                try:
                    waiting.append(send(next(datapoints)))
                except StopIteration:
                    break
                except Exception as error:
                    if not (waits and isinstance(error, TimeoutError)):
                        failure = error
                        break
                    pause = Pause(error)
                if pause is not None:
                    yield pause  # outside of `except`, which would keep the error and its frames until the next step
                    pause = None
                if len(waiting) > self.depth:
                    taken.add_one()
                    yield waiting.popleft()()
            while waiting:
                taken.add_one()
                yield waiting.popleft()()
            taken.is_over = True
        finally:
            taken.stop()
        if failure is not None:
            try:
                raise failure
            finally:
                failure = None  # the traceback holds this frame


Sender = Callable[[Any], Callable[[], Any]]
"""Begins to copy a datapoint, and returns the function that returns the copy, ready for use."""


def _sender(torch: Any, device: str) -> Sender:
    convert = tensor_maker(torch)

    def send(dp: Any) -> Callable[[], Any]:
        copy = _each_tensor(torch, convert(dp), lambda tensor: tensor.to(device, copy=True))
        return lambda: copy

    return send


def _cuda_sender(torch: Any, device: str) -> Sender:
    convert = tensor_maker(torch)
    side = torch.cuda.Stream(device)

    def copied(tensor: Any) -> Any:
        pinned = tensor if tensor.is_cuda or tensor.is_pinned() else tensor.pin_memory()
        return pinned.to(device, non_blocking=True)  # torch keeps pinned memory until the copy is done

    def send(dp: Any) -> Callable[[], Any]:
        with torch.cuda.stream(side):
            copies = _each_tensor(torch, convert(dp), copied)
            done = side.record_event()

        def ready() -> Any:
            current = torch.cuda.current_stream(device)
            current.wait_event(done)  # makes the stream wait, and not this thread

            def in_use(tensor: Any) -> Any:
                # Its memory belongs to the other stream, which could reuse it for a copy while this one still reads.
                tensor.record_stream(current)
                return tensor

            return _each_tensor(torch, copies, in_use)

        return ready

    return send


def _each_tensor(torch: Any, value: Any, function: Callable[[Any], Any]) -> Any:
    """A nested datapoint with `function` applied to its tensors."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _each_tensor(torch, item, function) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_each_tensor(torch, item, function) for item in value]
        if isinstance(value, list):
            return items
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value
