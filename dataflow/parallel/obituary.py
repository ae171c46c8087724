"""What a consumer reads when a worker has died or is late: what happened, why, and what to do."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from dataflow.errors import TimeoutError, WorkerDied

__all__ = ["died", "late"]

_CRASHES = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"}


def died(
    owner: str, worker: int, num_workers: int, pid: int | None, exitcode: int | None, received: int | None
) -> WorkerDied:
    """The error for a worker that ended without an exception.

    Args:
        owner: Name of the runner's class.
        worker: Index of the worker.
        num_workers: How many there were.
        pid: Its process id; None for a thread.
        exitcode: Its exit code, negative for a signal.
        received: Datapoints that came from it; None if it never came so far as to connect.
    """
    who = f"worker {worker} of {num_workers} of {owner} ({'a thread' if pid is None else f'pid {pid}'})"
    happened, cure = _explanation(exitcode, heard=received is not None)
    silent = received is None
    when = "before anything came from it" if silent else f"after {received} datapoints, before it finished its work"
    message = f"{who} {happened} {when}; {cure}"
    return WorkerDied(message, worker=worker, num_workers=num_workers, pid=pid, exitcode=exitcode)


def _explanation(exitcode: int | None, *, heard: bool) -> tuple[str, str]:
    if exitcode is None or exitcode >= 0:
        code = "" if exitcode is None else f" with exit code {exitcode}"
        cure = "something in the flow called sys.exit or os._exit. Raise an exception instead: it reaches the consumer"
        if not heard:
            cure = (
                "it could not start, and what it printed tells more (under spawn and forkserver, the main program must "
                f'guard its code with if __name__ == "__main__"); or {cure}'
            )
        return f"ended{code}", cure
    try:
        number = signal.Signals(-exitcode)
    except ValueError:
        return f"was killed by signal {-exitcode}", "see dmesg, and what sends this signal on this machine"
    if number.name in _CRASHES:
        return (
            f"was killed by {number.name}",
            "a native library crashed in it. Run with num_proc=0 under python -X faulthandler to see where",
        )
    if number.name == "SIGKILL":
        return (
            "was killed by SIGKILL",
            "the kernel may have run out of memory. Lower num_proc or the buffer size, or see dmesg",
        )
    return f"was killed by {number.name}", "somebody or something on this machine sends it; see dmesg"


def late(owner: str, timeout: float, states: Sequence[str]) -> TimeoutError:
    """The error when no datapoint has come for `timeout` seconds; `states` tells what each worker is doing."""
    workers = "; ".join(f"worker {k}: {state}" for k, state in enumerate(states))
    return TimeoutError(
        f"no datapoint from {owner} for {timeout:g} seconds ({workers}). The flow stays usable: iterate it again, "
        "raise timeout=, or look at a worker with py-spy dump --pid PID"
    )
