"""What all runners share: a whole flow, in each of N workers, and the mixture of what they make."""

from __future__ import annotations

import logging
import multiprocessing
import operator
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing.context import BaseContext
from typing import Any, ClassVar, Final, SupportsIndex

from dataflow.base import DataFlow, ProxyDataFlow
from dataflow.life import life_of
from dataflow.parallel.engine import Engine, Plan
from dataflow.parallel.jobs import Produce
from dataflow.parallel.memory import default_max_bytes
from dataflow.parallel.payload import Payload
from dataflow.parallel.serving import Service
from dataflow.passes import known_length
from dataflow.seeding import Stream, current_root
from dataflow.transforms.repeating import passes_on
from dataflow.transport.channel import Channel
from dataflow.transport.codec import ArrayCodec, Codec
from dataflow.transport.credit import Credit, Window
from dataflow.workers.crew import Worker
from dataflow.workers.place import place_of
from dataflow.workers.process import ProcessWorker

__all__ = ["ProcessRunner", "Runner", "queued_bytes", "window_of"]

_LOG = logging.getLogger(__name__)
_DEFAULT_WINDOW: Final = Window(count=50, nbytes=256 << 10)
_LEAST_BYTES: Final = 1 << 20
_STEP_SECONDS: Final = 0.2
_LONGEST_STEP: Final = 128


class Runner(ProxyDataFlow):
    """What all runners share: N workers, each of which repeats its whole flow for ever."""

    remote_inputs = True
    own_process: ClassVar[bool] = False  # whether a worker has global state of its own

    def __init__(self, ds: DataFlow, num_workers: SupportsIndex, window: Window, timeout: float | None) -> None:
        super().__init__(ds)
        self.num_workers = operator.index(num_workers)
        if self.num_workers < 0:
            raise ValueError(f"the number of workers is 0 (run in the consumer) or more, got {num_workers}")
        if timeout is not None and timeout <= 0:
            raise ValueError(f"timeout is a number of seconds above 0, or None, got {timeout}")
        self.window = window
        self.timeout = timeout

    # -- the choices ---------------------------------------------------------------------------------------------------

    def flows(self) -> Sequence[DataFlow]:
        """The flow of each worker."""
        return [self.ds] * self.num_workers

    def make_channel(self) -> tuple[Channel, Codec, Credit]:
        """How datapoints come from the workers."""
        raise NotImplementedError

    def memory(self) -> int | None:
        """Bytes that may be under way; None where nothing is copied."""
        return None

    def starter(self) -> Callable[[Service], Worker]:
        """What starts a worker. It must not hold the runner, which could never be collected then."""
        raise NotImplementedError

    # -- the node ------------------------------------------------------------------------------------------------------

    @property
    def indexed(self) -> bool:
        return False

    @property
    def joins(self) -> bool:
        return self.num_workers > 1

    @property
    def endless(self) -> bool:
        return known_length(self) is None

    def run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        length = known_length(self)
        if length is None:
            self._warn_endless()
        if length == 0:
            return iter(())
        life, owner = life_of(self), type(self).__name__
        if self.num_workers == 0:
            begin = partial(passes_on, self.ds, stream, life.begun)
            life.begun += 1
            return islice(life.continued.take(stream, begin, owner), length)
        engine = self._engine(stream)
        life.begun += 1
        return self._take(engine, engine.claim(), length)

    def reset_state(self) -> None:
        """Stop the workers, if there are any, and start new ones. The flow is reset inside each."""
        if self.num_workers == 0:
            super().reset_state()
        else:
            stream = life_of(self).stream
            assert stream is not None, "reset_state was wrapped: it finds its place"
            self._start(stream)

    # -- workers -------------------------------------------------------------------------------------------------------

    def _engine(self, stream: Stream) -> Engine:
        life = life_of(self)
        with life.lock:  # of two threads that begin, one starts
            engine = life.resource
            if isinstance(engine, _Placed) and engine.stream == stream:
                return engine
            # Seeded anew, or at another place in the chain: other random numbers, so other workers.
            return self._start(stream)

    def _start(self, stream: Stream) -> Engine:
        life = life_of(self)
        life.own(self, None)
        level, owner, n = self.level, type(self).__name__, self.num_workers
        places = [place_of(k, n) for k in range(n)]
        start = self.starter()  # may refuse: before there is anything to close
        channel, codec, credit = self.make_channel()
        memory = self.memory()
        services = [
            Service(
                worker=k,
                payload=Payload(Produce(ds, stream.turn(level, k), life.begun)),
                port=channel.port(k),
                encoder=codec.port(k),
                credit=credit,
                window=self.window if memory is None else replace(self.window, most_queued=queued_bytes(memory) // n),
                place=places[k],
                seed=(stream.root, *(word for pair in places[k].path for word in pair)),
                reseed=self.own_process and current_root() is not None,
                memory=None if memory is None else memory // n,
                note=f"raised in worker {k} of {n} of {owner}",
            )
            for k, ds in enumerate(self.flows())
        ]
        engine = _Placed(Plan(owner, channel, codec, credit, services, start), stream)
        life.own(self, engine)
        return engine

    def _take(self, engine: Engine, ticket: object, length: int | None) -> Iterator[Any]:
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
            yield from islice(chunk, here)
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


class _Placed(Engine):
    """An engine that knows for which place in the chain it was started."""

    def __init__(self, plan: Plan, stream: Stream) -> None:
        self.stream = stream
        super().__init__(plan)


class ProcessRunner(Runner):
    """Runners whose workers are processes."""

    own_process = True

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
        self.context = context
        self.max_bytes = None if max_bytes is None else operator.index(max_bytes)
        if self.max_bytes is not None and self.max_bytes < _LEAST_BYTES:
            raise ValueError(f"max_bytes is at least {_LEAST_BYTES} (1 MiB), got {max_bytes}")

    def memory(self) -> int:
        return max(_LEAST_BYTES, default_max_bytes()) if self.max_bytes is None else self.max_bytes

    def make_codec(self) -> ArrayCodec:
        """Arrays in shared memory, the rest in messages: both together stay within `max_bytes`."""
        memory = self.memory()
        return ArrayCodec(self.num_workers, memory - queued_bytes(memory))

    def starter(self) -> Callable[[Service], Worker]:
        if sys.platform == "win32":
            raise NotImplementedError(
                f"{type(self).__name__} needs the pipes and signals of POSIX. On Windows use MultiThreadRunner, or WSL"
            )
        context = self.context if isinstance(self.context, BaseContext) else multiprocessing.get_context(self.context)
        return partial(_start_process, context)


def queued_bytes(max_bytes: int) -> int:
    """The part of `max_bytes` that is for messages; the rest is for arrays in shared memory."""
    return max_bytes // 8


def window_of(given: int | None, name: str) -> Window:
    """How far a worker may run ahead, from what the user gave."""
    if given is None:
        return _DEFAULT_WINDOW
    if operator.index(given) < 0:
        raise ValueError(f"{name} is a number of datapoints, got {given}")
    return Window(count=max(1, operator.index(given)))


def _start_process(context: BaseContext, service: Service) -> Worker:
    descriptors = (
        *service.port.descriptors(),
        *service.encoder.descriptors(),
        *service.credit.descriptors(),
    )
    worker = ProcessWorker(context, service.place, service.seed, service, descriptors)
    service.port.hand_over()
    return worker
