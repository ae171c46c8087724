"""Worker options: what a user may say about the workers of a runner or map."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from multiprocessing.context import BaseContext
from typing import Any, Final, Literal, ParamSpec, Self, SupportsIndex, TypedDict

from dataflow.protocol.failures import Budget
from dataflow.protocol.parameters import count_or_fraction, flag, function, seconds, start_method, whole_number
from dataflow.system.descriptors import soft_limit
from dataflow.system.machine import WORKERS_PER_CORE
from dataflow.system.native_threads import share_of_cores

__all__ = [
    "ACTOR_DEFAULTS",
    "AUTO",
    "ActorKeywords",
    "DESCRIPTORS_PER_WORKER",
    "MIN_BYTES",
    "NumWorkers",
    "ProcessKeywords",
    "ThreadLimitOption",
    "WORKING_PER_CORE",
    "WorkerKeywords",
    "WorkerOptions",
    "takes",
]

ThreadLimitOption = SupportsIndex | Literal["share"] | None
"""`thread_limit`: threads of each native library, "share" for a worker's share of the cores, None to leave them."""

AUTO: Final = "auto"
NumWorkers = SupportsIndex | Literal["auto"]
"""A number of workers; "auto" stands for as many as pay, see `WorkerOptions`."""

MIN_BYTES: Final = 1 << 20
"""The smallest `max_bytes`."""

DESCRIPTORS_PER_WORKER: Final = 4
"""Descriptors of the consumer for each worker process, at most."""

WORKING_PER_CORE: Final = 2
"""Processes for each core that work from the start. More get work only if that pays, or take turns."""

_NUM_BYTES: Final = ": it is a number of bytes, at least 1 MiB, or None for a share of the memory"
_MOST: Final = 32  # workers with "auto", at least: they may wait for a disk or a network instead of computing
_MIN_BYTES_EACH: Final = 4 << 20  # of `max_bytes`, for each of them


class WorkerKeywords(TypedDict, total=False):
    """The keyword arguments of all runners and maps; `WorkerOptions` describes them."""

    strict: bool
    ordered: bool
    timeout: float | None
    max_restarts: SupportsIndex
    max_failures: Budget | None
    max_workers: SupportsIndex | None
    worker_init: Callable[[], object] | None


class ProcessKeywords(WorkerKeywords, total=False):
    """The keyword arguments of those whose workers are processes."""

    context: BaseContext | str | None
    max_bytes: SupportsIndex | None
    thread_limit: ThreadLimitOption
    item_timeout: float | None


class ActorKeywords(WorkerKeywords, total=False):
    """The keyword arguments of those whose workers are Ray actors; `RayRunner` describes its own."""

    max_bytes: SupportsIndex | None
    thread_limit: ThreadLimitOption
    item_timeout: float | None
    copy: bool
    actor_options: Mapping[str, Any] | None
    address: str | None
    start_timeout: float


ACTOR_DEFAULTS: Final[dict[str, Any]] = {"copy": False, "actor_options": None, "address": None, "start_timeout": 60.0}
"""Those of the keyword arguments that are not in `WorkerOptions`."""


def _check_by(check: Callable[..., Any], *given: Any, **keywords: Any) -> dict[str, Any]:
    """For a field whose values, except its default, are checked: ``check(owner, name, value, *given, **keywords)``."""
    return {"check": lambda owner, name, value: check(owner, name, value, *given, **keywords)}


def _start_method(owner: object, name: str, value: Any) -> BaseContext | str | None:
    return start_method(owner, value)


def _thread_limit(owner: object, name: str, value: Any) -> int | str | None:
    if value is None or (isinstance(value, str) and value == "share"):
        return value
    return whole_number(owner, name, value, 1, alternatives=', "share", or None for no limit')


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The keyword arguments of runners and parallel maps. Those of threads have no use for the last four.

    Args:
        owner: The class that the user has called, for messages.
        workers_name: Its parameter for the number of workers.
        num_workers: Number of workers. 0 does their work in the consumer, for a debugger.
        auto: Whether the user has left the number of workers open, by "auto". Parallel maps and strict runners then
            begin with one worker, and add more while that pays: `num_workers` is the maximum. Default runners,
            `MultiThreadRunner` and Ray actors are as many as this process may use cores.
        adapts: Whether workers are added while that pays.
        max_workers: With "auto", the maximum; None for the larger of 32 and four for each core that this process may
            use, as far as descriptors and `max_bytes` allow.
        strict: Whether a pass is exactly one of the flow without workers.
        ordered: With `strict`, whether the order is kept, too. By index, such as below `CacheData`, it always is.
        timeout: Seconds that the consumer waits for a datapoint; None waits as long as the workers are alive.
        max_restarts: How many workers, in total, may fail (be killed, crash, exit) and be replaced. What a failed
            worker had sent is handed out. With `strict`, and in maps, what it had been asked for is made again, so that
            nothing is lost or doubled. A default runner's new worker begins with the first of its passes. The next
            failure raises `WorkerDied`. With `strict`, and in maps, a datapoint in which a worker has failed for the
            second time is not made again, and these failures do not count: it is skipped if `max_failures` allows it;
            otherwise `WorkerDied` names it, where an exception of the flow would come: if the order is kept, after
            every datapoint before it.
        max_failures: How many datapoints may be skipped because the function of a map raised, or a source or a batch
            failed, apart from nodes with a `max_failures` of their own: a number for each pass (in a default runner,
            for each pass of a worker), or a fraction of all datapoints seen by all workers together, judged once there
            are 100. Skipped datapoints are logged in the consumer, and listed by `failures`.
        worker_init: Called without arguments once in each worker, before the flow is reset there; with `strict`, and in
            maps, when the worker gets its first work.
        context: Start method, or a multiprocessing context; None is ``multiprocessing.get_context()``. Lambdas and
            closures may be sent under each.
        max_bytes: Bytes of all datapoints under way, in shared memory and in messages, at least 1 MiB; None means a
            quarter of the memory of the machine or container, at most 1 GiB, and inside a worker that worker's share.
            A map uses a quarter for the input of the workers, and the rest for their results.
        thread_limit: Threads that BLAS, OpenMP and OpenCV may use in each worker: a number; "share" for an equal part
            of the cores, or fewer where fewer were set before; None to leave them alone. Libraries that are loaded
            before the limit is set need the package `threadpoolctl` (the extra `threads`). OpenCV that was imported
            before a fork uses one thread.
        item_timeout: Seconds that a worker may spend on one datapoint of this node: of a runner over batches, a batch;
            of a map, one call of its function. `worker_init`, the reset of the flow, and waiting for the consumer or
            for memory do not count. A worker that takes longer writes the stacks of its threads, if it can, is killed,
            and counts as failed, see `max_restarts`. Runners need `strict`. None for no limit.

    Raises:
        TypeError: An option has the wrong type.
        ValueError: A number is out of range, or there is no such start method.

    Example:
        >>> WorkerOptions(owner="MultiProcessRunner", num_workers=2.0, strict=True).num_workers
        2
        >>> WorkerOptions(owner="MultiProcessRunner", num_workers=2, context="spwan")
        Traceback (most recent call last):
        ValueError: MultiProcessRunner: context='spwan', but there is no such start method; choose from ...
    """

    owner: str
    workers_name: str = "num_proc"
    num_workers: int
    auto: bool = False
    adapts: bool = False
    strict: bool = field(default=False, metadata=_check_by(flag))
    ordered: bool = field(default=True, metadata=_check_by(flag))
    timeout: float | None = field(
        default=None, metadata=_check_by(seconds, cure="; None waits as long as the workers are alive")
    )
    max_restarts: int = field(
        default=0, metadata=_check_by(whole_number, 0, ": it is the number of workers that may die and are replaced")
    )
    max_failures: Budget | None = field(default=None, metadata=_check_by(count_or_fraction))
    max_workers: int | None = field(default=None, metadata=_check_by(whole_number, 1))
    worker_init: Callable[[], object] | None = field(
        default=None, metadata=_check_by(function, "is called without arguments in each worker")
    )
    context: BaseContext | str | None = field(default=None, metadata={"check": _start_method})
    max_bytes: int | None = field(default=None, metadata=_check_by(whole_number, MIN_BYTES, _NUM_BYTES))
    thread_limit: int | Literal["share"] | None = field(default="share", metadata=_check_by(_thread_limit))
    item_timeout: float | None = field(default=None, metadata=_check_by(seconds, cure="; None for no limit"))

    def adapting(self, memory: int | None) -> Self:
        """These options for a node that begins with one worker and adds more while that pays.

        Args:
            memory: Bytes of all datapoints under way; None for no limit.
        """
        limits = [soft_limit() // 2 // DESCRIPTORS_PER_WORKER]
        if memory is not None:
            limits.append(memory // _MIN_BYTES_EACH)
        most = max(_MOST, WORKERS_PER_CORE * share_of_cores(1)) if self.max_workers is None else self.max_workers
        return replace(self, num_workers=max(1, min(most, *limits)), adapts=True)

    @property
    def is_crowded(self) -> bool:
        """Whether there are more workers than work well at the same time, if they compute."""
        return self.num_workers > WORKING_PER_CORE * share_of_cores(1)

    @property
    def shown_number(self) -> str:
        """The number of workers, for a message."""
        return f"at most {self.num_workers}" if self.adapts else str(self.num_workers)

    @classmethod
    def of(
        cls,
        node: object,
        num_workers: Any,
        given: Any,
        old: tuple[str, Any] = ("num_workers", None),
        default: Any = None,
    ) -> Self:
        """The options of `node`.

        Args:
            node: For messages.
            num_workers: The number of workers; None if the user has not given it.
            given: The keyword arguments in ``**options``.
            old: Name and value of tensorpack's parameter for the number of workers.
            default: The number if neither is given; None if one has to be.

        Raises:
            TypeError: Both are given, or neither.
        """
        owner, (name, number) = type(node).__name__, old
        if num_workers is not None and number is not None:
            raise TypeError(
                f"{owner}: {name}={number!r:.100} and num_workers={num_workers!r:.100} are two names of the number of "
                "workers; give one of them"
            )
        if num_workers is not None:
            name, number = "num_workers", num_workers
        number = default if number is None else number
        auto = isinstance(number, str) and number == AUTO
        number = share_of_cores(1) if auto else number
        return cls(owner=owner, workers_name=name, num_workers=number, auto=auto, **given)

    def __post_init__(self) -> None:
        owner, name = self.owner, self.workers_name
        example = f". Give the number of workers, for example {name}=4"
        in_consumer = ' (run in the consumer), or "auto"'
        number = whole_number(owner, name, self.num_workers, 0, example, alternatives=in_consumer)
        checked = {
            option.name: option.metadata["check"](owner, option.name, value)
            for option in fields(self)
            if option.metadata and (value := getattr(self, option.name)) is not option.default
        }
        most = checked.get("max_workers")
        if most is not None:
            if not self.auto:
                raise TypeError(
                    f'{owner}: max_workers={most} is the maximum for {name}="auto", and '
                    f"{name}={self.num_workers!r:.100}"
                )
            number = min(number, most)
        checked["num_workers"] = number
        checked["ordered"] = checked.get("ordered", True) and checked.get("strict", False)
        for name, value in checked.items():
            object.__setattr__(self, name, value)


P = ParamSpec("P")


def takes(keywords: type, **defaults: Any) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Give a constructor with ``**options`` the signature that lists them, and refuse all others.

    Args:
        keywords: The `TypedDict` of its options.
        defaults: Those that differ here.
    """
    known = {option.name: option.default for option in fields(WorkerOptions)} | ACTOR_DEFAULTS | defaults

    def decorated(init: Callable[P, None]) -> Callable[P, None]:
        signature = inspect.signature(init)
        own = [one for one in signature.parameters.values() if one.kind is not _REST]
        listed = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=known[name], annotation=annotation)
            for name, annotation in keywords.__annotations__.items()
        ]
        shown = [
            one.replace(annotation=_Annotation(getattr(one.annotation, "__forward_arg__", one.annotation)))
            if one.annotation is not inspect.Parameter.empty
            else one
            for one in (*own, *listed)
        ]
        vars(init)["__signature__"] = signature.replace(parameters=shown, return_annotation=None)
        names = {one.name for one in shown}

        @functools.wraps(init)
        def checked(*args: P.args, **kwargs: P.kwargs) -> None:
            if unknown := [name for name in kwargs if name not in names]:
                raise TypeError(f"{type(args[0]).__name__} got an unexpected keyword argument {unknown[0]!r}")
            init(*args, **kwargs)

        return checked

    return decorated


class _Annotation(str):
    """The text of an annotation, which `help` shows as it was written: without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


_REST: Final = inspect.Parameter.VAR_KEYWORD
