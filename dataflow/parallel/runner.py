"""What all runners share: a whole flow, in each of N workers, and the mixture of what they make."""

from __future__ import annotations

import logging
import operator
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from multiprocessing.context import BaseContext
from typing import Any, Final, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dataflow.base import Blocks, DataFlow
from dataflow.errors import NotAddressable
from dataflow.life import Life, life_of, terminated
from dataflow.parallel.addressing import Addressed, is_consecutive
from dataflow.parallel.desk import Desk
from dataflow.parallel.engine import Engine
from dataflow.parallel.jobs import Produce
from dataflow.parallel.passing import Passing
from dataflow.parallel.plan import Plan
from dataflow.parallel.spans import OnePass, Spans
from dataflow.parallel.staffing import UNBOUNDED, Placed, Processes, queued_bytes
from dataflow.parallel.tasking import Address, WholePasses
from dataflow.parallel.terms import initialise, steps_told, tolerance_of
from dataflow.passes import known_length, open_flow
from dataflow.seeding import Stream
from dataflow.transforms.repeating import passes_on
from dataflow.transport.credit import Window
from dataflow.transport.shared_tray import SharedTray
from dataflow.transport.trays import ThreadTray, Tray

__all__ = ["ProcessRunner", "Runner", "queued_bytes", "window_of"]

_LOG = logging.getLogger(__name__)
_DEFAULT_WINDOW: Final = Window(count=50, nbytes=256 << 10)
_TRAY_BYTES: Final = 1 << 20
_STEP_SECONDS: Final = 0.2
_LONGEST_STEP: Final = 128


class Runner(Addressed):
    """What all runners share: N workers, each of which repeats its whole flow for ever."""

    remote_inputs = True

    def __init__(self, ds: DataFlow, num_workers: SupportsIndex, window: Window, timeout: float | None) -> None:
        super().__init__(ds)
        self.set_staff(num_workers, window, timeout)

    strict: bool = False
    ordered: bool = False  # whether the order is that of a pass

    def set_strict(self, strict: bool, ordered: bool) -> None:
        """Check and keep what the user gave; to be called last.

        Raises:
            NotAddressable: Several workers shall share each pass, and a flow cannot be addressed.
        """
        self.strict, self.ordered = bool(strict), bool(strict and ordered)
        broken = next((node for ds in self.flows() if (node := ds.unaddressable()) is not None), None)
        if strict and self.num_workers > 1 and broken is not None:
            raise NotAddressable(
                f"{type(self).__name__} with strict=True and {self.num_workers} workers shares each pass by index, and "
                f"{type(broken).__name__} cannot be addressed. Use one worker, or leave this flow in one process and "
                f"move the work after it into workers: MultiProcessMapData(ds, {self.num_workers}, func, strict=True)"
            )

    @property
    def shares_items(self) -> bool:
        return self.strict

    @property
    def by_index(self) -> bool:
        """Whether its workers are asked for indexes."""
        return self.strict and all(ds.addressable for ds in self.flows())

    def flows(self) -> Sequence[DataFlow]:
        """The flow of each worker."""
        return [self.ds] * self.num_workers

    def jobs(self, stream: Stream) -> Sequence[Any]:
        if self.strict:
            kind = Address if self.by_index else WholePasses
            return [kind(ds, stream, self.note(k)) for k, ds in enumerate(self.flows())]
        begun = life_of(self).begun
        return [Produce(ds, stream.turn(self.level, k), begun) for k, ds in enumerate(self.flows())]

    def make_strict_tray(self) -> Tray:
        """How indexes go to the workers."""
        return ThreadTray()

    def make_tray(self) -> Tray | None:
        return self.make_strict_tray() if self.strict else None

    def make_desk(self, tray: Tray | None) -> Desk:
        if tray is None:
            return super().make_desk(tray)
        if not self.by_index:
            return OnePass(tray)
        ahead = None if self.window.nbytes else self.window.count
        return Spans(tray, self.num_workers, ahead, grain=self.ds.grain, ordered=self.ordered)

    def make_engine(self, plan: Plan, stream: Stream) -> Placed:
        return Passing(plan, stream) if self.strict else super().make_engine(plan, stream)

    def window_of_worker(self) -> Window:
        return UNBOUNDED if self.by_index else self.window

    # -- the node ------------------------------------------------------------------------------------------------------

    @property
    def indexed(self) -> bool:
        return self.strict

    @property
    def joins(self) -> bool:
        return self.num_workers > 1 and not self.strict

    @property
    def endless(self) -> bool:
        return self.ds.endless if self.strict else known_length(self) is None

    @property
    def reproducible(self) -> bool:
        return self.ordered if self.strict and self.num_workers > 1 else super().reproducible

    def at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        if not self.strict:
            return DataFlow.at(self, blocks, stream)
        return self.at_work(blocks, stream) if self.num_workers else self.at_home(blocks, stream)

    def at_home(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        open_flow(self.ds, stream)
        return self.ds.at(blocks, stream)

    def steps_of_block(self, engine: Any, block: NDArray[np.int64], stream: Stream) -> Iterator[Iterator[Any]]:
        picked = None if is_consecutive(block) else block
        first = int(block[0]) if picked is None else 0
        ticket = engine.begin_pass(first, len(block), picked, holes=True)
        return _strict_chunks(engine, ticket, self.timeout, life_of(self), self)

    def run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self.strict and self.endless:
            # Its one pass has no end: as without workers, a loop goes on where the last one stopped.
            begin = partial(self._strict_pass, 0, stream)
            return self._alive(life_of(self).continued.take(stream, begin, type(self).__name__))
        if self.strict:
            return self._strict_pass(p, stream)
        length = known_length(self)
        if length is None:
            self._warn_endless()
        if length == 0:
            return iter(())
        life, owner = life_of(self), type(self).__name__
        if self.num_workers == 0:
            begin = partial(passes_on, self.ds, stream, life.begun)
            if self.max_failures is not None:
                begin = partial(steps_told, begin, self)
            life.begun += 1
            return islice(life.continued.take(stream, begin, owner), length)
        engine = self.engine_at(stream)
        life.begun += 1
        return chain.from_iterable(self._chunks(engine, engine.claim(), length))

    def _strict_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self.num_workers == 0:
            begin = partial(self.ds.run_pass, p, stream)
            datapoints = begin() if self.max_failures is None else steps_told(begin, self)
            return _until_closed(datapoints, life_of(self), life_of(self).session, type(self).__name__)
        engine: Passing = self.engine_at(stream)
        tolerance_of(self).begin_pass()
        if not self.by_index:
            ticket = engine.begin_pass(p)
        elif self.ds.endless:
            ticket = engine.begin_pass(0, None)
        else:
            length = len(self.ds)
            ticket = engine.begin_pass(p * length, length)
        held = None if self.ds.endless else self
        return chain.from_iterable(_strict_chunks(engine, ticket, self.timeout, life_of(self), held))

    def _alive(self, datapoints: Iterator[Any]) -> Iterator[Any]:
        """The same; and whoever iterates it holds this node, as what goes on from loop to loop must not."""
        yield from datapoints

    def reset_state(self) -> None:
        """Stop the workers, if there are any, and start new ones. The flow is reset inside each."""
        if self.num_workers == 0:
            self.begin_terms()
            if self.worker_init is not None:
                initialise(self.worker_init)
            super().reset_state()
        else:
            stream = life_of(self).stream
            assert stream is not None, "reset_state was wrapped: it finds its place"
            self.start(stream)

    def _chunks(self, engine: Engine, ticket: object, length: int | None) -> Iterator[Iterator[Any]]:
        left = sys.maxsize if length is None else length
        step = 1  # datapoints after which the engine is asked again, as it looks at the workers: about `_STEP_SECONDS`
        while left:
            try:
                chunk = engine.chunk(ticket, self.timeout)
            except BaseException:
                if engine.failed:
                    life_of(self).settle()
                raise
            if chunk is None:
                _LOG.warning("%s has ended: in every worker, a pass of its flow was empty", type(self).__name__)
                return
            here = min(left, step, operator.length_hint(chunk))
            left -= here
            began = time.monotonic()
            yield islice(chunk, here)
            took = time.monotonic() - began
            if took > _STEP_SECONDS:
                step = max(1, int(here * _STEP_SECONDS / took))
            elif here == step:
                step = min(2 * step, _LONGEST_STEP)

    def _warn_endless(self) -> None:
        if not life_of(self).warned:
            life_of(self).warned = True
            _LOG.info(
                "%s over %s, which has no length: its passes never end. Leave the loop with break, or give it a length "
                "with FixedSizeData",
                type(self).__name__,
                type(self.ds).__name__,
            )


def _until_closed(datapoints: Iterator[Any], life: Life, session: object, name: str) -> Iterator[Any]:
    try:
        while life.session is session:
            yield next(datapoints)  # no variable: it would keep the datapoint alive until the next step
    except StopIteration:
        return
    raise terminated(name)


def _strict_chunks(
    engine: Passing, ticket: object, timeout: float | None, life: Life, held: object
) -> Iterator[Iterator[Any]]:
    """The chunks of a pass; `held` lives as long as somebody iterates them."""
    try:
        while (chunk := engine.chunk(ticket, timeout)) is not None:
            yield chunk
    finally:
        if engine.failed:
            life.settle()
        engine.abandon(ticket)


class ProcessRunner(Processes, Runner):
    """Runners whose workers are processes."""

    def __init__(
        self,
        ds: DataFlow,
        num_proc: SupportsIndex,
        window: Window,
        timeout: float | None,
        context: BaseContext | str | None,
        max_bytes: SupportsIndex | None,
    ) -> None:
        super().__init__(ds, num_proc, window, timeout)
        self.set_processes(context, max_bytes)

    def make_strict_tray(self) -> Tray:
        return SharedTray(_TRAY_BYTES, _TRAY_BYTES)


def window_of(given: int | None, name: str) -> Window:
    """How far a worker may run ahead, from what the user gave."""
    if given is None:
        return _DEFAULT_WINDOW
    if operator.index(given) < 0:
        raise ValueError(f"{name} is a number of datapoints, got {given}")
    return Window(count=max(1, operator.index(given)))
