"""Error messages about workers that died, failed, are late or are closed: what happened, why, and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from dataflow.errors import DataFlowTerminated, NotReentrant, TimeoutError, WorkerDied
from dataflow.workers.exit_reasons import explanation

__all__ = ["died", "failed_before", "forked", "late", "superseded", "unreadable"]


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


def failed_before(owner: str, failure: BaseException) -> DataFlowTerminated:
    """Make the error for using a flow that has already failed with `failure`."""
    before = traceback.format_exception_only(failure)[0].strip()
    return DataFlowTerminated(f"{owner} has failed before, with {before}. Call reset_state() to restart it")


def forked(owner: str, pid: int) -> DataFlowTerminated:
    """Make the error for a forked process that continues an iteration of its parent `pid`."""
    return DataFlowTerminated(
        f"this iteration of {owner} belongs to process {pid}, of which this process was forked; iterate the flow "
        "again, which starts workers of its own"
    )


def superseded(owner: str) -> NotReentrant:
    """Make the error for the earlier of two concurrent iterations."""
    return NotReentrant(
        f"a later iteration of {owner} took over; it can serve one at a time, because it has one pool of workers. Make "
        "one node for each loop"
    )
