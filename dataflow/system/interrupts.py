"""Deferred signals: run a section that must not be interrupted half-way, then deliver the signals that arrived.

Python runs signal handlers in the main thread, between any two of its instructions. Ctrl-C raises there: also between
the call that opened a descriptor or started a process and the assignment that remembers it. Guarantees:

- Within `signals_deferred`, in the main thread, no handler runs. Signals that arrived are delivered when the outermost
  section ends, each signal once. If the section raises, its exception is the context of what a handler raises.
- `deliver_signals` is a point within a section at which nothing is half done: signals that arrived are delivered there.
- In a finaliser, where nothing can be raised, the signal is sent again, a moment later (``later=True``).
- Code that waits within a section waits for at most two seconds, and checks `signal_arrived` meanwhile. If something
  takes longer nevertheless, the same signal, arriving again after a second, interrupts it at once.
- Only handlers written in Python are deferred: the default action, an ignored signal and a handler installed by a C
  library are left alone. A handler that is replaced within a section stays replaced.
- A forked child has the handlers of its parent, and defers nothing.

A signal mask does not defer them: it holds for one thread, the kernel hands the signal to another (`import numpy` makes
some), and Python runs the handler in the main thread anyway. It only keeps a signal from ending a system call of this
thread (`signals_blocked`).

Races. Installing several handlers is not atomic. A handler that raises may interrupt it; and Python may collect garbage
between any two steps, so that a finaliser begins and ends a section of its own there. Neither does harm: only `depth`,
set last and cleared first, decides whether a signal is deferred, and each stand-in knows the handler that it replaced,
which it calls wherever it is left in place. The next section to end puts that handler back.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

__all__ = ["deliver_signals", "signal_arrived", "signals_blocked", "signals_deferred"]

_AGAIN: Final = 1.0  # seconds after which the same signal, arriving again, is no longer deferred
_MOMENT: Final = 0.02  # seconds
_MAX_MOMENT: Final = 2.0
_SIGNALS: Final = tuple(sorted(signal.valid_signals()))

_Handler = Callable[[int, FrameType | None], Any]


class _StandIn:
    """The handler of a signal in a section: keeps the signal for later, and anywhere else does what it stands for."""

    def __init__(self, handler: _Handler) -> None:
        self.handler = handler

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if _deferral.depth and now - _deferral.arrived.setdefault(signum, now) < _AGAIN:
            return
        _deferral.arrived.pop(signum, None)  # delivered here, and not once more at the end of the section
        self.handler(signum, frame)


class _Deferral:
    """The state of deferral in the main thread: one per process, since only the main thread has handlers."""

    def __init__(self) -> None:
        self.depth = 0  # number of nested sections entered
        self.stand_ins: dict[int, _StandIn] = {}  # by signal: the last, which may be in its place or not
        self.arrived: dict[int, float] = {}  # by signal: when it arrived first, in the order of arrival


_deferral: Final = _Deferral()


class signals_deferred:
    """Within the block no signal handler interrupts this thread; after it, handlers run for the signals that arrived.

    Blocks may be nested, which costs next to nothing; the outermost one takes some ten microseconds. No-op in threads
    other than the main thread.

    Args:
        later: The block is part of a finaliser, or of a generator that is dropped, where Python only reports
            exceptions. So the signals that arrived are sent to this process again, a moment after the block.
    """

    __slots__ = ("_is_entered", "_later")

    def __init__(self, *, later: bool = False) -> None:
        self._later = later

    def __enter__(self) -> None:
        self._is_entered = threading.current_thread() is threading.main_thread() and _enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_entered:
            # The code of the finaliser or generator: the signals are sent again when it has returned.
            _leave(sys._getframe(1).f_code if self._later else None)


@contextmanager
def signals_blocked(*signums: int) -> Iterator[None]:
    """Within the block, no signal ends a system call of this thread early; the kernel keeps those that arrive.

    For `zmq.Context.term`: ended early by a signal, with a handler of whatever kind, it never closes what it has open.

    Args:
        signums: The signals; none for all.
    """
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signums or _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def signal_arrived() -> bool:
    """Whether a signal is waiting for the end of the section: then the section should end soon."""
    return bool(_deferral.arrived) and threading.current_thread() is threading.main_thread()


def deliver_signals() -> None:
    """Run the handlers of the signals that arrived since the section began. They may raise."""
    if _deferral.arrived and threading.current_thread() is threading.main_thread():
        _deliver()


def _enter() -> bool:
    deferral = _deferral
    if deferral.depth:
        deferral.depth += 1
        return True
    try:
        # Not by `signal.getsignal`: its enumerations take ten times as long, and a message may be sent in a section.
        for signum, handler in zip(_SIGNALS, map(_signal.getsignal, _SIGNALS), strict=True):
            if not callable(handler):
                continue
            if isinstance(handler, _StandIn):  # left by an interrupt, or put back by who found it in a section
                deferral.stand_ins[signum] = handler
                continue
            stand_in = deferral.stand_ins.get(signum)
            if stand_in is None or stand_in.handler is not handler:
                stand_in = deferral.stand_ins[signum] = _StandIn(handler)
            signal.signal(signum, stand_in)
    except BaseException as error:
        _restore()
        if isinstance(error, ValueError) and "main thread" in str(error):
            return False  # Python was started in another thread: no handler runs here
        raise
    deferral.depth = 1  # last: see Races above
    return True


def _leave(finaliser: CodeType | None) -> None:
    deferral = _deferral
    if deferral.depth != 1:  # 0: this is a forked child, which defers nothing
        deferral.depth = max(0, deferral.depth - 1)
        return
    deferral.depth = 0  # first: see Races above
    try:
        try:
            _restore()
        except BaseException:  # interrupted by a handler that is already restored
            _restore()
            raise
    finally:
        if finaliser is None:
            _deliver()
        else:
            _send_later(finaliser)


def _send_later(finaliser: CodeType) -> None:
    arrived = dict(_deferral.arrived)
    if not arrived:
        return
    _deferral.arrived.clear()  # first: from here on another handler may interrupt
    thread = threading.Thread(target=_send, args=(tuple(arrived), finaliser), name="dataflow-signals", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads can be started: do it here and now
        _deferral.arrived.update(arrived)
        _deliver()


def _send(signums: tuple[int, ...], finaliser: CodeType) -> None:
    main = threading.main_thread().ident or 0
    end = time.monotonic() + _MAX_MOMENT
    while _is_running(finaliser, main) and time.monotonic() < end:
        time.sleep(_MOMENT)
    # The main thread gives up the interpreter's lock as it begins to wait; a signal between that and the system call
    # would not end the wait.
    time.sleep(_MOMENT)
    for signum in signums:
        # To that thread: Python would run the handler there anyway, but a system call that it waits in has to end, too.
        signal.pthread_kill(main, signum)


def _is_running(code: CodeType, thread: int) -> bool:
    from dataflow.system.thread_frames import stack_of  # which few signals need

    return any(frame.f_code is code for frame in stack_of(thread))


def _restore() -> None:
    for signum, stand_in in list(_deferral.stand_ins.items()):
        # Otherwise it was replaced within the section, and stays. None is forgotten: a finaliser may come between the
        # line that notes a stand-in and the one that installs it.
        found: object = signal.getsignal(signum)
        if found is stand_in:
            signal.signal(signum, stand_in.handler)


def _deliver() -> None:
    """Run the handler of each signal that arrived, even if the handler of another one raises."""
    deferral = _deferral
    signum = next(iter(deferral.arrived), None)
    if signum is None:
        return
    # Before the handler is called: one that raises is not called again.
    del deferral.arrived[signum]
    found = signal.getsignal(signum)
    handler = found.handler if isinstance(found, _StandIn) else found
    try:
        if callable(handler):
            handler(signum, inspect.currentframe())
    finally:
        _deliver()


def _forget() -> None:
    """In a forked child: discard the signals that arrived, which are for the parent."""
    _deferral.arrived.clear()
    if _deferral.depth:
        _deferral.depth = 0
        _restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
