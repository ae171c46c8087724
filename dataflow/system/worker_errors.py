"""Errors about workers that died, failed or are late: what happened, why, and what to do."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from dataflow.errors import TimeoutError, WorkerDied, WorkerTraceback
from dataflow.system.session import forked_off

__all__ = [
    "LostWorker",
    "NO_GUARD",
    "died",
    "ended_twice",
    "ending_if_forked",
    "ends_of_item",
    "exit_code",
    "explanation",
    "how_it_ended",
    "late",
    "late_in",
    "unreadable",
]

NO_GUARD: Final = 78
"""Exit code of a worker whose main program starts workers while the worker imports it."""


class LostWorker(Exception):
    """A worker in a cluster is gone or unreachable, or its output was lost; the text is the cluster's explanation.

    Attributes:
        has_died: Whether its process is known to have died, and not because of its machine or by this program.
    """

    def __init__(self, text: str, *, has_died: bool = False) -> None:
        super().__init__(text)
        self.has_died = has_died


_CRASHES = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"}


def explanation(
    exitcode: int | None, *, has_connected: bool, work: str = "the flow", workers_name: str = "num_proc"
) -> tuple[str, str]:
    """Explain what happened, and how to fix it.

    Args:
        exitcode: Exit code of the worker, negative for a signal; None if unknown.
        has_connected: Whether the worker has sent anything.
        work: The user's word for what ran in the worker.
        workers_name: The parameter for the number of workers.
    """
    if exitcode == NO_GUARD and not has_connected:
        return (
            "ended",
            "under spawn and forkserver every worker imports the main program, and there this program starts workers "
            "itself, because it has no guard. Put what it runs into a function, and call that below a guard:\n\n"
            '    if __name__ == "__main__":\n        main()\n',
        )
    if exitcode is None or exitcode >= 0:
        code = "" if exitcode is None else f" with exit code {exitcode}"
        cure = f"something in {work} called sys.exit or os._exit. Raise an exception instead: it reaches the consumer"
        if not has_connected:
            cure = (
                "it could not start, and what it printed says more (under spawn and forkserver, it imports the main "
                f"program first, and that must not fail there); or {cure}"
            )
        return f"ended{code}", cure
    try:
        number = signal.Signals(-exitcode)
    except ValueError:
        return f"was killed by signal {-exitcode}", "see dmesg, and what sends this signal on this machine"
    if number.name in _CRASHES:
        return (
            f"was killed by {number.name}",
            f"a native library crashed in it. Run with {workers_name}=0 under python -X faulthandler to see where",
        )
    if number.name == "SIGKILL":
        return (
            "was killed by SIGKILL",
            f"the kernel may have run out of memory. Lower {workers_name} or the buffer size, or see dmesg",
        )
    return f"was killed by {number.name}", "a user or another process on this machine sent it; see dmesg"


def died(
    owner: str,
    worker: int,
    num_workers: int,
    pid: int | None,
    exitcode: int | None,
    received: int | None,
    *,
    workers_name: str = "num_proc",
    work: str = "the flow",
    made: str = "datapoint",
) -> WorkerDied:
    """Make the error for a worker that ended without an exception.

    Args:
        owner: Name of the runner's class.
        worker: Index of the worker.
        num_workers: How many there were.
        pid: Its process id; None for a thread.
        exitcode: Its exit code, negative for a signal.
        received: Datapoints received from it; None if it ended before it connected.
        workers_name: The runner's parameter for the number of workers.
        work: The user's word for what ran in the worker.
        made: The user's word for one thing that a worker makes.
    """
    worker_name = f"worker {worker} of {num_workers} of {owner} ({'a thread' if pid is None else f'pid {pid}'})"
    has_connected = received is not None
    happened, cure = explanation(exitcode, has_connected=has_connected, work=work, workers_name=workers_name)
    when = f"after {received} {made}s, before it finished its work" if received else f"before its first {made}"
    message = f"{worker_name} {happened} {when}; {cure}"
    return WorkerDied(message, worker=worker, num_workers=num_workers, pid=pid, exitcode=exitcode)


def how_it_ended(exitcode: int | None) -> str:
    """What happened to a worker, as the end of a sentence about it."""
    return explanation(exitcode, has_connected=True)[0]


def late_in(owner: str, died: WorkerDied, reason: str, item: object, stack: str) -> WorkerDied:
    """Make the error for a worker that was killed because it has spent too long on one datapoint.

    Args:
        owner: Name of the runner's class.
        died: The error for its death.
        reason: What it did, as the end of a sentence about it.
        item: The datapoint; None if it had made it, or that is unknown.
        stack: The stacks of its threads; empty if there are none.
    """
    error = WorkerDied(
        f"worker {died.worker} of {died.num_workers} of {owner} (pid {died.pid}) was making {item or 'a datapoint'}, "
        f"{reason}, and was killed{'; the stacks show where it was' * bool(stack)}. Raise item_timeout, or repair what "
        "it does there. With max_restarts= and max_failures=, such datapoints are left out",
        worker=died.worker,
        num_workers=died.num_workers,
        pid=died.pid,
        exitcode=died.exitcode,
    )
    error.__cause__ = WorkerTraceback(stack) if stack else None
    return error


def ends_of_item(reasons: Sequence[str]) -> str:
    """What a datapoint has done to its workers, as the end of a sentence about it.

    Args:
        reasons: What each worker did, or what happened to it, as the end of a sentence about the worker.
    """
    times = "twice" if len(reasons) == 2 else f"{len(reasons)} times"
    if len(set(reasons)) == 1:
        return f"ended its worker {times}: each time, it {reasons[0]}"
    return f"ended its worker {times}: first, it {'; then, it '.join(reasons)}"


def ended_twice(owner: str, item: object, what: str, *, can_be_left_out: bool) -> WorkerDied:
    """Make the error for a datapoint in which workers have ended.

    Args:
        owner: Name of the runner's class.
        item: The datapoint.
        what: The text of `ends_of_item`.
        can_be_left_out: Whether those after it can be made without it.
    """
    cure = "max_failures= leaves out such datapoints"
    if not can_be_left_out:
        cure = (
            "it cannot be left out, because the flow below cannot be addressed, so nothing after it can be made "
            "without it. Move the work into a parallel map"
        )
    return WorkerDied(f"{item} of {owner} {what}. It is not tried again; {cure}")


def unreadable(owner: str, worker: int, num_workers: int, position: int, broken: BaseException) -> BaseException:
    """Make the error for a datapoint that arrived and cannot be decoded: the exception raised, with a note."""
    error = broken.__cause__ or broken
    error.add_note(
        f"datapoint {position} of worker {worker} of {num_workers} of {owner} was sent, but cannot be unpickled in the "
        "consumer. Yield arrays, numbers, text and containers of them"
    )
    return error


def late(
    owner: str,
    timeout: float | None,
    states: Sequence[str],
    *,
    made: str = "datapoint",
    again: str = "The same iterator waits again: continue with it, raise timeout=",
) -> TimeoutError:
    """Make the error for `timeout` seconds without a datapoint.

    Args:
        owner: Name of the runner's class.
        timeout: Seconds.
        states: What each worker is doing.
        made: The user's word for what did not come.
        again: How to wait again, as the beginning of a sentence.
    """
    workers = "; ".join(f"worker {k}: {state}" for k, state in enumerate(states))
    return TimeoutError(
        f"no {made} from {owner} for {timeout:g} seconds ({workers}). {again}, or look at a worker with py-spy dump "
        "--pid PID"
    )


# -- How a worker's process ends ---------------------------------------------------------------------------------------


@contextmanager
def ending_if_forked() -> Iterator[None]:
    """Context manager: a child that user code forks inside the block ends with the block.

    Nothing is flushed, closed or reported: everything that it has inherited belongs to the worker.
    """
    pid = os.getpid()
    try:
        yield
    except BaseException as error:
        _end_if_forked(pid, error)
        raise
    _end_if_forked(pid, None)


def _end_if_forked(pid: int, error: BaseException | None) -> None:
    if os.getpid() == pid:
        return
    code = 0
    if isinstance(error, SystemExit):
        code = exit_code(error)
        error = None
    elif error is None:
        error = forked_off(pid)
    with suppress(Exception):
        if error is not None:
            code = 1
            traceback.print_exception(error)
        sys.stderr.flush()
    os._exit(code)


def exit_code(exit: SystemExit) -> int:
    """The exit code of a process that ends with `exit`."""
    if exit.code is None:
        return 0
    return exit.code & 0xFF if isinstance(exit.code, int) else 1
