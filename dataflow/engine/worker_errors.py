"""Error messages about workers that died, failed or are late: what happened, why, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from dataflow.errors import TimeoutError, WorkerDied
from dataflow.workers.exit_reasons import explanation

__all__ = ["died", "late", "unreadable"]


def died(
    owner: str, worker: int, num_workers: int, pid: int | None, exitcode: int | None, received: int | None
) -> WorkerDied:
    """Make the error for a worker that ended without an exception.

    Args:
        owner: Name of the runner's class.
        worker: Index of the worker.
        num_workers: How many there were.
        pid: Its process id; None for a thread.
        exitcode: Its exit code, negative for a signal.
        received: Datapoints received from it; None if it ended before it connected.
    """
    worker_name = f"worker {worker} of {num_workers} of {owner} ({'a thread' if pid is None else f'pid {pid}'})"
    happened, cure = explanation(exitcode, has_connected=received is not None)
    silent = received is None
    when = "before anything came from it" if silent else f"after {received} datapoints, before it finished its work"
    message = f"{worker_name} {happened} {when}; {cure}"
    return WorkerDied(message, worker=worker, num_workers=num_workers, pid=pid, exitcode=exitcode)


def unreadable(owner: str, worker: int, num_workers: int, position: int, broken: BaseException) -> BaseException:
    """Make the error for a datapoint that arrived and cannot be decoded: the exception raised, with a note."""
    error = broken.__cause__ or broken
    error.add_note(
        f"datapoint {position} of worker {worker} of {num_workers} of {owner} was sent, but cannot be unpickled in the "
        "consumer. Yield arrays, numbers, text and containers of them"
    )
    return error


def late(owner: str, timeout: float | None, states: Sequence[str]) -> TimeoutError:
    """Make the error for `timeout` seconds without a datapoint; `states` describes what each worker is doing."""
    workers = "; ".join(f"worker {k}: {state}" for k, state in enumerate(states))
    return TimeoutError(
        f"no datapoint from {owner} for {timeout:g} seconds ({workers}). The flow stays usable: iterate it again, "
        "raise timeout=, or look at a worker with py-spy dump --pid PID"
    )
