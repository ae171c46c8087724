"""Worker node: what all runners and parallel maps share: their options, the start of their workers, and their passes.

A node with workers is options (`WorkerOptions`), a backend (`Backend`), and what its class adds: the job of each worker
and the schedule. The engine starts with the first pass, at one place in the chain of nodes.

Iteration: a loop over a strict runner or map gets a pass of its own; otherwise it continues with the mixture that the
workers make. Index access: a node above asks a strict runner or map for indexes, and its workers make them, one block
at a time.

Guarantees of index access:

- The datapoints are those that the flow itself has at these indexes, whichever process makes them.
- Running iterations are not disturbed: while an iteration is under way, or at another place in the chain, the
  datapoints are made in the calling process. So are those that the user picks (``df[index]``), and single ones.
- A runner requests a block when all datapoints of the one before it were given out; so its workers may idle between two
  blocks. A map reads on into the following blocks, as far as its buffer allows.

Failures of single items: in the worker, `MapData` and its subclasses report them, in `_df_run_pass` and in `_df_at`:
they call `failures.failure_reporter()`, yield `HOLE` for an item that failed, and report it under the index that they
were asked for, which must be its position in the pass. Wherever a job steps a flow, it lets `Stopped` and
`ConsumerGone` pass: a report may raise them in the middle of a step.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import NotReproducible, TimeoutError
from dataflow.observe.figures import Figures
from dataflow.observe.observer import figures_of
from dataflow.protocol.base import Blocks, DataFlow, ProxyDataFlow, T_co
from dataflow.protocol.failures import FailureReporter, Report, Tolerance, failure_reporter, reporting_to
from dataflow.protocol.kept import note_reset
from dataflow.protocol.passes import known_length, passes_on, picked_here, promise, walk
from dataflow.protocol.pauses import paused, pausing, resumed
from dataflow.protocol.seeding import Stream, current_root
from dataflow.protocol.state import FlowState, Promise, Taken, require_continuing, state_of
from dataflow.runners.backends import Backend, Links, Tasks, queued_bytes
from dataflow.runners.engine import Engine, Plan
from dataflow.runners.jobs import Job, initialise
from dataflow.runners.options import AUTO, WORKING_PER_CORE, WorkerOptions
from dataflow.runners.schedules import Schedule
from dataflow.runners.worker_main import FlowPayload, WorkerSpec
from dataflow.system.descriptors import closed_on_error, counted
from dataflow.system.interrupts import signals_deferred
from dataflow.system.machine import available_cores
from dataflow.system.native_threads import share_of_cores
from dataflow.system.session import terminated
from dataflow.system.worker_info import is_first_worker, worker_info_of
from dataflow.system.worker_pool import Worker
from dataflow.system.worker_process import context_of
from dataflow.transport.flow_control import Window

if TYPE_CHECKING:
    from dataflow.protocol.changes import Snapshot
    from dataflow.runners.scaling import WorkerCount

__all__ = ["UNBOUNDED", "WorkerNode", "is_consecutive"]


T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)

UNBOUNDED: Final = Window(sys.maxsize // 4)
"""The window of a worker that makes only what it is asked for."""

_OPTIONS: Final = frozenset(field.name for field in fields(WorkerOptions))


class WorkerNode(ProxyDataFlow[T_co]):
    """Base class of runners and parallel maps.

    Args:
        ds: The input.
        options: The user's options.
        backend: What a worker is, and how its datapoints come.

    Attributes:
        options: The user's options.
    """

    _df_has_workers = True
    _df_run_settings = _OPTIONS | {"_df_backend", "backend", "buffer_size", "options"}

    _df_snapshot: Snapshot | None = None
    """What the workers were given; None before they were started."""

    def __init__(self, ds: DataFlow, options: WorkerOptions, backend: Backend) -> None:
        super().__init__(ds)
        self.options = options
        self._df_backend = backend

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OPTIONS:
            raise AttributeError(
                f"{name} of {type(self).__name__} cannot be changed, since workers were given it: make another node "
                f"with {name}={value!r:.40}"
            )
        super().__setattr__(name, value)

    # -- hooks for subclasses ------------------------------------------------------------------------------------------

    def _df_nodes_of_workers(self) -> Iterable[DataFlow]:
        """The nodes that the workers have, for finding out whether they have changed."""
        raise NotImplementedError

    @property
    def _df_is_copied(self) -> bool:
        """Whether each worker has copies of these nodes; otherwise it sees what changes in them."""
        return True

    def _df_tasks(self) -> Tasks:
        """What the consumer sends to the workers."""
        raise NotImplementedError

    def _df_window(self) -> Window:
        """How far a worker may run ahead."""
        raise NotImplementedError

    def _df_jobs(self, stream: Stream) -> Sequence[Job]:
        """The job of each worker."""
        raise NotImplementedError

    def _df_schedule(self, links: Links, stream: Stream) -> Schedule:
        """The schedule: issued tasks, and results that wait to be handed out."""
        raise NotImplementedError

    def _df_strict_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        """Exactly the datapoints of pass `p`."""
        raise NotImplementedError

    def _df_mixed_pass(self, stream: Stream) -> Iterator[Any]:
        """The next datapoints of the mixture: as many as a pass has for a runner, endlessly many for a map."""
        raise NotImplementedError

    def _df_at_in_consumer(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        """The datapoints at these indexes, made in the calling process."""
        raise NotImplementedError

    def _df_steps_of_block(
        self, engine: Engine[Any], block: NDArray[np.int64], following: Iterator[NDArray[np.int64]], stream: Stream
    ) -> Iterator[Any] | None:
        """Ask the workers for a block: its datapoints, with holes. None if they cannot be asked.

        Those of the blocks `following` come too, as far as they are taken from there.
        """
        raise NotImplementedError

    def _df_warn_of_default(self) -> None:
        """Log once what a pass without `strict` is, where that may be surprising."""
        raise NotImplementedError

    # -- public attributes ---------------------------------------------------------------------------------------------

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return self.options.num_workers

    @property
    def strict(self) -> bool:
        """Whether a pass is exactly one of the flow without workers."""
        return self.options.strict

    @property
    def ordered(self) -> bool:
        """Whether datapoints come in the order of the pass."""
        return self.options.ordered

    # -- text ----------------------------------------------------------------------------------------------------------

    @property
    def _df_title(self) -> str:
        return self.options.owner

    @property
    def _df_parameters(self) -> dict[str, Any]:
        options = self.options
        given = {name: getattr(options, name) for name in _OPTIONS}
        return {
            **super()._df_parameters,
            **given,
            "num_workers": None,
            options.workers_name: AUTO if options.auto else options.num_workers,
            "ordered": options.ordered or not options.strict,
            **self._df_backend.parameters(options),
        }

    @property
    def _df_summary(self) -> str:
        n, (noun, way) = self.num_workers, self._df_backend.describe(self.options)
        number = self.options.shown_number
        workers = f"{number} {noun if n == 1 else _plural(noun)}{way}" if n else "no workers"
        order = "strict, ordered" if self.ordered else "strict, unordered"
        return f"{workers}, {order if self.strict else 'default mode'}"

    @property
    def _df_reports_below(self) -> bool:
        return self._df_remote_inputs and self.num_workers > 0

    # -- starting workers ----------------------------------------------------------------------------------------------

    def _df_engine_at(self, stream: Stream) -> Engine[Any]:
        """The engine for this place in the chain, whose workers have the flow as it is now; started if necessary."""
        state = state_of(self)
        with state.lock:  # of two threads that begin, one starts the workers
            engine = state.resource
            if isinstance(engine, Engine) and engine.stream == stream and not engine.session.interrupted:
                # An engine that has failed is not started again, so that its error cannot go unnoticed.
                change = None if engine.session.failed else self._df_change()
                if change is None:
                    return engine
                anew = self._df_begin_anew(change)
                level = logging.WARNING if anew else logging.INFO
                text = "%s starts its workers again, because its flow has changed: %s%s"
                _LOG.log(level, text, self._df_title, change, anew)
            # Another seed or another place in the chain: other random numbers, so other workers. After an interrupt
            # that has ended the workers, the user begins again.
            return self._df_start(stream)

    def _df_change(self) -> str | None:
        """How the flow differs from that which the workers were given; None if it does not."""
        before = self._df_snapshot
        return None if before is None else before.difference(self._take_snapshot())

    def _df_begin_anew(self, change: str) -> str:
        """What new workers do not have of the passes before, as the end of a sentence; "" for nothing.

        Args:
            change: Why they are started.

        Raises:
            NotReproducible: Without that, they would repeat datapoints.
        """
        return ""

    def _df_not_continued(self, df: DataFlow, change: str) -> NotReproducible:
        """The error that new workers would not go on where the passes of the node `df` have stopped."""
        return NotReproducible(
            f"a pass of {type(df).__name__} continues where the last one stopped, but the workers of {self._df_title} "
            f"would start again, because its flow has changed: {change}. Change it back; or call close(), after "
            "which the data begin anew"
        )

    def _take_snapshot(self) -> Snapshot:
        from dataflow.protocol.changes import Snapshot  # which workers do not need

        nodes = self._df_nodes_of_workers()
        deep, forks = self._df_backend.own_process, self._df_backend.is_forked(self.options)
        return Snapshot(nodes, self, attributes=self._df_is_copied, deep=deep, imported=deep and not forks)

    def _df_start(self, stream: Stream) -> Engine[Any]:
        """Stop the workers, if there are any, and start new ones. A failed or interrupted start leaves nothing behind.

        Raises:
            OSError: There are too few descriptors, processes or threads, or there is too little memory.
        """
        state, options, backend = state_of(self), self.options, self._df_backend
        if self._df_remote_inputs:  # they begin anew in new workers
            state.continued.begin_again()
        before = state.resource
        if isinstance(before, Engine) and before.stream.turns != stream.turns:
            before.session.begins_elsewhere()
        with signals_deferred(), closed_on_error():
            state.own(self, None)
            # `start` must not hold the node, which could then never be collected: its finaliser holds the engine, and
            # the engine holds `start`.
            start = backend.starter(options)  # may raise, so before there is anything to close
            if options.auto:
                name, number = options.workers_name, options.shown_number
                _LOG.info('%s with %s="auto" has workers: %s', options.owner, name, number)
            # Before the start: what the user changes while the workers start is noticed by the next pass.
            self._df_snapshot = self._take_snapshot()
            with counted(options.owner, backend.num_descriptors(options)):
                engine = Engine(self._df_plan(stream, start, self._df_links()))
            state.own(self, engine)
            state.metrics = engine.metrics
            if _LOG.isEnabledFor(logging.INFO):
                _LOG.info("%s", self._df_started(engine))
            return engine

    def _df_started(self, engine: Engine[Any]) -> str:
        """What was started, for the log."""
        options, backend, window = self.options, self._df_backend, self._df_window()
        noun, way = backend.describe(options)
        n, memory, threads = len(engine.workers), backend.memory(options), backend.thread_limit(options)
        jobserver = engine.jobserver
        ahead = f" or {window.nbytes:,} bytes" if window.nbytes else ""
        pids = [str(worker.pid) for worker in engine.workers if worker.pid is not None] if backend.own_process else []
        limits = [
            *([] if memory is None else [f"at most {memory:,} bytes under way"]),
            *([] if window is UNBOUNDED else [f"{window.count:,} datapoints{ahead} ahead for each"]),
            *([] if threads is None else [f"native threads: {threads.count} each"]),
            *([f"they take turns while they compute, {jobserver.num} at a time"] if jobserver is not None else []),
        ]
        if backend.name == "process":
            limits.insert(0, f"start method {context_of(options.context).get_start_method()}")
        started = f"{options.owner} has started {n} {noun if n == 1 else _plural(noun)}{way}"
        return "; ".join([started, *([f"pids {', '.join(pids)}"] if pids else []), *limits])

    def _df_links(self) -> Links:
        """What lies between the consumer and its workers."""
        return self._df_backend.links(self.options, self._df_tasks())

    def _df_promised(self) -> Promise:
        """What a strict runner or map promises about the datapoints that its workers make, or itself in their place."""
        return Promise(self.options.owner, shares_process=not self._df_backend.own_process)

    def _df_plan(self, stream: Stream, start: Callable[[WorkerSpec], Worker], links: Links) -> Plan[Any]:
        options, backend = self.options, self._df_backend
        n, memory, window = options.num_workers, backend.memory(options), self._df_window()
        threads = backend.thread_limit(options)
        infos = [worker_info_of(k, n) for k in range(n)]
        imported = None if self._df_snapshot is None else self._df_snapshot.imported
        tolerance = self._df_begin_failures()
        promised = self._df_promised() if options.strict else None
        specs = [
            WorkerSpec(
                worker=k,
                payload=FlowPayload(
                    replace(job, worker_init=options.worker_init, promise=promised, hands_on=not backend.own_process)
                ),
                port=links.channel.port(k),
                encoder=links.codec.port(k),
                credit=links.credit.port(k),
                window=window if memory is None else replace(window, max_queued=queued_bytes(memory) // n),
                info=infos[k],
                seed=(stream.root, *(word for pair in infos[k].path for word in pair), *self._df_depth.ranks),
                reseed=backend.own_process and current_root() is not None,
                memory=None if memory is None else memory // n,
                note=f"raised in worker {k} of {n} of {options.owner}",
                task_queue=None if links.task_queue is None else links.task_queue.port(k),
                budget=tolerance.inherited,
                threads=threads,
                check_imports=imported,
                item_timeout=options.item_timeout,
                stacks=links.stacks,
            )
            for k, job in enumerate(self._df_jobs(stream))
        ]
        return Plan(
            options.owner,
            stream,
            links,
            specs,
            start,
            self._df_schedule(links, stream),
            options.max_restarts,
            tolerance,
            self._df_worker_count(links),
            n - 1 if options.adapts else 0,
            options.item_timeout,
        )

    def _df_worker_count(self, links: Links) -> WorkerCount | None:
        """What decides how many workers get work; None if all do."""
        options, backend, cores, n = self.options, self._df_backend, share_of_cores(1), self.num_workers
        are_processes = backend.own_process and backend.adds_workers
        if not (options.adapts or (n > 1 and are_processes and links.task_queue is not None)):
            return None
        from dataflow.runners.scaling import WorkerCount  # default runners do not need it

        first = 1 if options.adapts else min(n, WORKING_PER_CORE * cores)
        return WorkerCount(first, n, cores, are_threads=not backend.own_process)

    def _df_begin_failures(self) -> Tolerance:
        """Make the `Tolerance` that counts the failures of the workers about to be started."""
        options = self.options
        # Any worker may do any item: then a failed item counts once, whichever worker does it.
        shared = options.strict or not self._df_remote_inputs
        tolerance = Tolerance(options.owner, options.max_failures, failure_reporter(), shared=shared)
        state_of(self).tolerance = tolerance
        return tolerance

    def _df_figures(self) -> Figures | None:
        metrics = state_of(self).metrics
        if metrics is None:
            return None
        options, backend = self.options, self._df_backend
        # The nodes that a worker runs, in the order in which its samples count.
        nodes = list(walk(self.ds, everywhere=True)) if self._df_remote_inputs else [self]
        statistics, samples, inner = figures_of(metrics, nodes)
        tolerance = state_of(self).tolerance
        statistics = replace(
            statistics,
            name=options.owner,
            backend=backend.name,
            reads_input=not self._df_remote_inputs,
            cores=available_cores(),
            adapts=options.adapts,
            max_bytes=backend.memory(options),
            failures=0 if tolerance is None else tolerance.num_failures,
        )
        return Figures(statistics, nodes, samples, inner)

    def reset_state(self) -> None:
        """Stop the workers, if there are any, and start new ones. Their flows are reset inside each worker."""
        if self.strict and not (self.num_workers and self._df_remote_inputs):
            for df in (self, self.ds):
                promise(df, Promise(self.options.owner))
        if self.num_workers:
            stream = state_of(self).stream
            assert stream is not None, "reset_state was wrapped: it finds its place"
            if self.strict or self._df_remote_inputs:
                state_of(self).continued.forget()
            self._df_note_reset(is_closed=False)
            self._df_start(stream)  # before an input that is read here has threads, or files that a child would inherit
        else:
            self._df_begin_failures()
            if self.options.worker_init is not None:
                initialise(self.options.worker_init)
        if not self.num_workers or not self._df_remote_inputs:
            super().reset_state()

    def _df_close(self) -> None:
        try:
            self._df_note_reset(is_closed=True)
        finally:
            super()._df_close()

    def _df_note_reset(self, *, is_closed: bool) -> None:
        """Note for the nodes below that this node is closed or reset, unless it is closed already."""
        if self.strict and self._df_remote_inputs and state_of(self).resource is not None:
            note_reset(self.ds, are_copies=self._df_is_copied, is_closed=is_closed)

    # -- iteration -----------------------------------------------------------------------------------------------------

    @property
    def _df_indexed(self) -> bool:
        return self.strict

    @property
    def _df_waits(self) -> bool:
        return self.options.timeout is not None or super()._df_waits

    @property
    def _df_ends_if_strict(self) -> bool:
        return not self.strict and not self.ds._df_endless

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self.strict and self._df_endless:
            # Its one pass has no end: as without workers, a loop continues where the last one stopped.
            if state_of(self).continued.holds(stream) and (change := self._df_change()) is not None:
                raise self._df_not_continued(self, change)
            begin = partial(self._df_strict_pass, 0, stream)
            waits = self._df_waits
            steps = state_of(self).continued.take(stream, begin, self)
            return pausing(self._alive(steps, waits), waits)
        if self.strict:
            return self._df_strict_pass(p, stream)
        require_continuing(stream, self.options.owner)
        state = state_of(self)
        if not state.warned:
            state.warned = True
            if is_first_worker():
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
        return state.continued.take(stream, lambda: begin(p), self)

    def _df_reported_here(self, begin: Callable[[], Iterator[Any]]) -> Callable[[], Iterator[Any]]:
        """Wrap `begin` so that failures in the consumer are reported as they would be in a worker."""
        return begin if self.options.max_failures is None else partial(_report_failures, begin, self)

    def _df_steps_of_pass(
        self,
        chunks: Iterable[Iterator[Any]],
        engine: Engine[Any],
        generation: object,
        held: object,
        taken: Taken | None = None,
    ) -> Iterator[Any]:
        """The datapoints of a strict pass; `held` stays alive as long as they are iterated, and `taken` counts them."""
        waits = self._df_waits
        return pausing(_until_over(chunks, engine, generation, state_of(self), held, taken, waits), waits)

    def _alive(self, datapoints: Iterator[Any], waits: bool) -> Iterator[Any]:
        """Yield from `datapoints`, keeping this node alive; iterators that outlive the loop must not hold it."""
        yield from resumed(datapoints, waits)

    # -- index access --------------------------------------------------------------------------------------------------

    @property
    def _df_grain(self) -> int:
        return self.ds._df_grain * max(1, self.num_workers)  # so that every worker gets a part

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        if not self.strict:
            return DataFlow._df_at(self, blocks, stream)
        if not self.num_workers:
            return self._df_at_in_consumer(blocks, stream)
        return pausing(self._at_in_workers(blocks, stream), self._df_waits)

    def _at_in_workers(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        """The datapoints at these indexes, made by the workers if they can be asked."""
        checked, waits, blocks = False, self._df_waits, iter(blocks)
        for block in blocks:
            engine = None if picked_here() or len(block) < 2 else self._free_engine(stream, checked=checked)
            checked = True
            # `blocks` is the iterator of this loop: what a map reads on from there does not come again.
            made = None if engine is None else self._df_steps_of_block(engine, block, blocks, stream)
            made = self._df_at_in_consumer([block], stream) if made is None else made
            yield from resumed(made, waits)

    def _free_engine(self, stream: Stream, *, checked: bool) -> Engine[Any] | None:
        """The engine, if it looks free; `checked` says that the flow was compared for an earlier block."""
        state = state_of(self)
        with state.lock:
            engine = state.resource
            if isinstance(engine, Engine) and engine.stream.turns != stream.turns:
                return None  # a node in two places has workers at one only: starting others for each block costs more
            if isinstance(engine, Engine) and not engine.is_free:
                return None  # nor is an iteration disturbed because the flow has changed
            if not checked or not isinstance(engine, Engine) or engine.stream != stream:
                engine = self._df_engine_at(stream)
        return engine if engine.is_free else None


def _plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def is_consecutive(block: NDArray[np.int64]) -> bool:
    """Whether each index is its predecessor plus one."""
    return bool((np.diff(block) == 1).all())


def _until_over(
    chunks: Iterable[Iterator[Any]],
    engine: Engine[Any],
    generation: object,
    state: FlowState,
    held: object,
    taken: Taken | None,
    waits: bool,
) -> Iterator[Any]:
    """The steps of a strict pass.

    A generator rather than `itertools.chain`, because several threads may step it. The losing threads get a ValueError
    ("generator already executing") and disturb nothing; `chain` would drop its chunks then, or crash.
    """
    taken = Taken(engine.stream) if taken is None else taken
    try:
        while True:
            try:
                for chunk in chunks:
                    taken.add(chunk)
                    yield from chunk
                break
            except TimeoutError as error:
                pause = paused(error, waits and not engine.session.failed)
            yield pause  # outside of `except`, which would keep the error and its frames until the next step
        taken.is_over = True
    finally:
        with signals_deferred(later=True):  # a generator that is dropped ends here, where Python only prints exceptions
            taken.stop()  # before `abandon`, which empties the chunk: it counts what is left of that
            if engine.session.failed:
                state.settle()
            engine.abandon(generation)


# -- failures of single items, without workers -------------------------------------------------------------------------


def _report_failures(begin: Callable[[], Iterator[Any]], owner: WorkerNode) -> Iterator[Any]:
    """Iterate a flow in the consumer, reporting failures of its nodes as in a worker of `owner`.

    Its steps raise `TooManyFailures` when the budget is used up.
    """
    # Not `owner` itself, which keeps this iterator; nor the tolerance, which a reset replaces.
    state_ref = weakref.ref(state_of(owner))

    def process(report: Report) -> None:
        state = state_ref()
        too_many = None if state is None or state.tolerance is None else state.tolerance.process_report(report)
        if too_many is not None:
            raise too_many

    waits = owner._df_waits
    state = state_of(owner)
    with state.lock:  # a reset in another thread replaces it
        if state.tolerance is None:
            raise terminated(owner.options.owner)
        reporter = FailureReporter(state.tolerance.inherited, (), process)
    return pausing(_steps(begin, reporter, waits), waits)


def _steps(begin: Callable[[], Iterator[Any]], reporter: FailureReporter, waits: bool) -> Iterator[Any]:
    with reporting_to(reporter):
        steps = begin()
    try:
        while True:
            try:
                # For each step: between two steps this thread runs the user's loop, and other flows.
                with reporting_to(reporter):
                    dp = next(steps)
            except TimeoutError as error:
                dp = paused(error, waits)
            yield dp
    except StopIteration:
        return
