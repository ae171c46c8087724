"""`BackgroundData`: a source whose datapoints come from background processes that call one function repeatedly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any, SupportsIndex

from dataflow.compat.background import BackgroundProc, checked_options, time_limit
from dataflow.errors import TimeoutError
from dataflow.protocol.base import T_co
from dataflow.protocol.parameters import chosen_start_method
from dataflow.protocol.pauses import paused, pausing
from dataflow.protocol.seeding import Stream, derived, root_seed
from dataflow.protocol.state import state_of
from dataflow.sources.source import Source

__all__ = ["BackgroundData"]


class BackgroundData(Source[T_co]):
    """The results of `BackgroundProc` as an endless dataflow of lists of arrays, which chains with every node.

    A pass never ends; `FixedSizeData` above it makes passes of a given length. The processes keep running when a loop
    is left with `break`, and the next pass continues there.

    Args:
        target: What the processes call: it returns one array, or a list or tuple of arrays, always of the same shapes
            and dtypes.
        dtypes: The dtype of each array. Without it the target is called once, in this process, to find out.
        shapes: The shape of each array; one for each dtype.
        n_proc: Number of processes. With 0, the consumer calls the target itself, for debugging.
        target_args: Arguments of the target, always the same.
        target_kwargs: Its keyword arguments.
        ordered: Take the results of the processes in turn; False takes the first that is ready.
        seed: Root seed of this node, instead of the one of `dataflow.seed`.
        timeout: Seconds that the consumer waits for a datapoint; None waits as long as the processes are alive.
        context: Start method, or a multiprocessing context; None is ``multiprocessing.get_context()``.

    Raises:
        WorkerDied: A process was killed, crashed or exited; the message says which and how, and what to do.
        TimeoutError: No datapoint came for `timeout` seconds.

    Example:
        >>> def get_batch():
        ...     return np.random.random((4, 8, 8)), np.zeros(4, np.int16)
        >>> with FixedSizeData(BackgroundData(get_batch, n_proc=2), 3) as df:
        ...     [(data.shape, label.dtype) for data, label in df]
        [((4, 8, 8), dtype('int16')), ((4, 8, 8), dtype('int16')), ((4, 8, 8), dtype('int16'))]
    """

    _df_run_settings = frozenset({"context", "timeout"})
    _df_draws = True
    _df_endless = True
    _df_continues = True

    def __init__(
        self,
        target: Callable[..., Any],
        dtypes: Sequence[Any] | None = None,
        shapes: Sequence[Any] | None = None,
        n_proc: SupportsIndex = 1,
        target_args: Sequence[Any] = (),
        target_kwargs: Mapping[str, Any] | None = None,
        *,
        ordered: bool = True,
        seed: int | None = None,
        timeout: float | None = None,
        context: BaseContext | str | None = None,
    ) -> None:
        name = type(self).__name__
        _, self.n_proc, self.context, self.ordered = checked_options(
            name, target, n_proc, target_args, target_kwargs, context, ordered
        )
        self.target = target
        self.dtypes = dtypes
        self.shapes = shapes
        self.target_args = target_args
        self.target_kwargs = target_kwargs
        self._df_own_root = root_seed(self, seed)
        self.timeout = time_limit(name, timeout)

    @property
    def _df_reproducible(self) -> bool:
        """Whether the order of datapoints is the same in every run; not if it depends on which process is first."""
        return self.ordered or self.n_proc in {0, 1}

    @property
    def _df_parameters(self) -> dict[str, Any]:
        return {
            **super()._df_parameters,
            "target_args": self.target_args or (),
            "target_kwargs": self.target_kwargs or None,
            "context": chosen_start_method(self.context) or None,
        }

    @property
    def _df_summary(self) -> str:
        start = chosen_start_method(self.context)
        processes = f"{self.n_proc} process{'' if self.n_proc == 1 else 'es'}{start and f' ({start})'}"
        return f"{processes if self.n_proc else 'no workers'}, {'ordered' if self.ordered else 'unordered'}"

    @property
    def _df_waits(self) -> bool:
        return self.timeout is not None

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return state_of(self).continued.take(stream, partial(self._results, stream), self)

    def reset_state(self) -> None:
        """Stop the processes, if there are any; the next pass starts new ones."""
        state = state_of(self)
        state.continued.drop()
        state.own(self, None)

    def _results(self, stream: Stream) -> Iterator[Any]:
        return pausing(self._made(self._processes().at(stream, partial(self._open, stream))), self._df_waits)

    def _made(self, source: BackgroundProc) -> Iterator[Any]:
        waits = self._df_waits
        while True:
            try:
                dp: Any = list(source.get(self.timeout))
            except TimeoutError as error:
                dp = paused(error, waits)
            yield dp

    def _processes(self) -> _Processes:
        state = state_of(self)
        with state.lock:
            if not isinstance(state.resource, _Processes):
                state.own(self, _Processes())
            processes = state.resource
            assert isinstance(processes, _Processes)
            return processes

    def _open(self, stream: Stream) -> BackgroundProc:
        state = state_of(self)
        words = self._df_words(stream, state.begun)  # new processes draw different numbers
        state.begun += 1
        return _Background(
            self.target,
            self.dtypes,
            self.shapes,
            self.n_proc,
            self.target_args,
            self.target_kwargs,
            ordered=self.ordered,
            seed=derived(words),
            context=self.context,
        )


class _Background(BackgroundProc):
    """`BackgroundProc` with other names in its messages."""

    owner = "BackgroundData"
    restart = "reset_state()"
    seeded_by_worker = False  # its seed is that of a place in the chain, and any worker of a strict runner may have it


class _Processes:
    """The processes of one flow, one set for each place that it has in a chain."""

    def __init__(self) -> None:
        self._open: dict[Stream, BackgroundProc] = {}

    def at(self, stream: Stream, begin: Callable[[], BackgroundProc]) -> BackgroundProc:
        """Return the processes at `stream`; `begin` starts them if there are none."""
        if stream not in self._open:
            for old in [old for old in self._open if old.root != stream.root]:  # the user has changed the seed
                self._open.pop(old).close()
            self._open[stream] = begin()
        return self._open[stream]

    def close(self) -> None:
        """Stop all processes. Idempotent."""
        while self._open:
            self._open.popitem()[1].close()
