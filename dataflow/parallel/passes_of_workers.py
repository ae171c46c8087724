"""Passes over nodes with workers: what an iteration or an index access yields, with and without `strict`.

`WorkerPasses` is for iteration: a loop over a strict runner or map gets a pass of its own; otherwise it continues with
the mixture that the workers make. `IndexedWorkers` is for index access: a node above asks a strict runner or map for
indexes, and its workers make them, one block at a time.

Guarantees of index access:

- The datapoints are those that the flow itself has at these indexes, whichever process makes them.
- Running iterations are not disturbed: while an iteration is under way, or at another place in the chain, the
  datapoints are made in the calling process. So are those that the user picks (``df[index]``), and single ones.
- A block is requested when all datapoints of the one before it were given out; so workers may idle between two blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dataflow.base import Blocks, DataFlow
from dataflow.engine.engine import NodeEngine, PassEngine
from dataflow.engine.worker_main import initialise
from dataflow.interrupts import signals_deferred
from dataflow.parallel.worker_setup import WorkerSetup, reported_steps
from dataflow.passes import known_length, passes_on, picked_here
from dataflow.seeding import Stream
from dataflow.state import FlowState, state_of
from dataflow.workers.info import worker_info

__all__ = ["IndexedWorkers", "WorkerPasses", "is_consecutive", "until_over"]


# -- Index access ------------------------------------------------------------------------------------------------------


class IndexedWorkers(WorkerSetup):
    """A node whose workers can be asked for indexes."""

    @property
    def _df_grain(self) -> int:
        return self.ds._df_grain * max(1, self.num_workers)  # so that every worker gets a part

    def _df_at_in_consumer(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        """The datapoints at these indexes, made in the calling process."""
        raise NotImplementedError

    def _df_steps_of_block(self, engine: Any, block: NDArray[np.int64], stream: Stream) -> Iterator[Any] | None:
        """Ask the workers for a block: its datapoints, with holes. None if they cannot be asked."""
        raise NotImplementedError

    def _df_at_in_workers(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        """The datapoints at these indexes, made by the workers if they can be asked."""
        for block in blocks:
            engine = None if picked_here() or len(block) < 2 else self._free_engine(stream)
            made = None if engine is None else self._df_steps_of_block(engine, block, stream)
            yield from self._df_at_in_consumer([block], stream) if made is None else made

    def _free_engine(self, stream: Stream) -> PassEngine | None:
        state = state_of(self)
        with state.lock:
            engine = state.resource
            if isinstance(engine, NodeEngine) and engine.stream.turns != stream.turns:
                return None  # a node in two places has workers at one only: starting others for each block costs more
            engine = self._df_engine_at(stream)
        return engine if isinstance(engine, PassEngine) and engine.is_free else None


def is_consecutive(block: NDArray[np.int64]) -> bool:
    """Whether each index is its predecessor plus one."""
    return bool((np.diff(block) == 1).all())


# -- Iteration ---------------------------------------------------------------------------------------------------------


T = TypeVar("T")


class WorkerPasses(IndexedWorkers):
    """A node whose workers repeat their work endlessly, or share each pass."""

    strict: bool = False
    ordered: bool = False  # whether datapoints come in the order of the pass

    def _df_strict_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        """Exactly the datapoints of pass `p`."""
        raise NotImplementedError

    def _df_mixed_pass(self, stream: Stream) -> Iterator[Any]:
        """The next datapoints of the mixture: as many as a pass has for a runner, endlessly many for a map."""
        raise NotImplementedError

    @property
    def _df_indexed(self) -> bool:
        return self.strict

    @property
    def _df_parameters(self) -> dict[str, Any]:
        return {**super()._df_parameters, "ordered": self.ordered or not self.strict}

    @property
    def _df_summary(self) -> str:
        n, (noun, way) = self.num_workers, self._df_worker_kind
        plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
        workers = f"{n} {noun if n == 1 else plural}{way}" if n else "no workers"
        order = "strict, ordered" if self.ordered else "strict, unordered"
        return f"{workers}, {order if self.strict else 'default mode'}"

    @property
    def _df_ends_if_strict(self) -> bool:
        return not self.strict and not self.ds._df_endless

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self.strict and self._df_endless:
            # Its one pass has no end: as without workers, a loop continues where the last one stopped.
            begin = partial(self._df_strict_pass, 0, stream)
            return self._alive(state_of(self).continued.take(stream, begin, type(self).__name__))
        if self.strict:
            return self._df_strict_pass(p, stream)
        state = state_of(self)
        if not state.warned:
            state.warned = True
            if _is_first_worker():
                self._df_warn_of_default()
        return iter(()) if known_length(self) == 0 else self._df_mixed_pass(stream)

    def _df_passes_here(self, ds: DataFlow, stream: Stream) -> Iterator[Any]:
        """Pass after pass of `ds`, made in the consumer: a loop continues where the last one stopped."""
        return self._df_continued_by(lambda p: self._df_reported_here(partial(passes_on, ds, stream, p))(), stream)

    def _df_continued_by(self, begin: Callable[[int], Iterator[T]], stream: Stream) -> Iterator[T]:
        """The iterator on which loops continue where the last one stopped; `begin` makes the first, from a pass."""
        state = state_of(self)
        p = state.begun
        state.begun += 1
        return state.continued.take(stream, lambda: begin(p), type(self).__name__)

    def _df_reported_here(self, begin: Callable[[], Iterator[Any]]) -> Callable[[], Iterator[Any]]:
        """Wrap `begin` so that failures in the consumer are reported as they would be in a worker."""
        return begin if self.num_workers or self.max_failures is None else partial(reported_steps, begin, self)

    def reset_state(self) -> None:
        """Stop the workers, if there are any, and start new ones. Their flows are reset inside each worker."""
        if self.num_workers:
            stream = state_of(self).stream
            assert stream is not None, "reset_state was wrapped: it finds its place"
            self._df_start(stream)  # before an input that is read here has threads, or files that a child would inherit
        else:
            self._df_begin_failures()
            if self.worker_init is not None:
                initialise(self.worker_init)
        if not self.num_workers or not self._df_remote_inputs:
            super().reset_state()

    def _alive(self, datapoints: Iterator[Any]) -> Iterator[Any]:
        """Yield from `datapoints`, keeping this node alive; iterators that outlive the loop must not hold it."""
        yield from datapoints

    def _df_warn_of_default(self) -> None:
        """Log once what a pass without `strict` is, where that may be surprising."""
        raise NotImplementedError


def _is_first_worker() -> bool:
    """Whether to log here what happens in every worker: true in the main process and in the first worker."""
    here = worker_info()
    return here is None or not any(index for index, _ in here.path)


def until_over(
    chunks: Iterable[Iterator[Any]], engine: PassEngine, generation: object, state: FlowState, held: object
) -> Iterator[Any]:
    """The datapoints of a strict pass; `held` stays alive as long as they are iterated.

    A generator rather than `itertools.chain`, because several threads may step it. The losing threads get a ValueError
    ("generator already executing") and disturb nothing; `chain` would drop its chunks then, or crash.
    """
    try:
        for chunk in chunks:
            yield from chunk
    finally:
        with signals_deferred(later=True):  # it may be dropped, after a break
            if engine.failed:
                state.settle()
            engine.abandon(generation)
