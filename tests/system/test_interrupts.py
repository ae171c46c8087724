"""Signals are deferred within a section, and delivered as it ends."""

# ruff: noqa: PT012 - what raises is the end of the section, which is the block

import os
import signal
import threading
import time

import pytest

from dataflow.system.interrupts import deliver_signals, signal_arrived, signals_deferred
from tests.support.interrupts import act_at_each_line
from tests.support.waits import LIMIT, wait_until


class Received(Exception):
    """Raised by a handler."""


@pytest.fixture
def usr1():
    """A handler of the user that raises."""

    def raise_received(signum, frame):
        raise Received(signum)

    before = signal.signal(signal.SIGUSR1, raise_received)
    yield raise_received
    assert signal.getsignal(signal.SIGUSR1) is raise_received
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_is_raised_as_the_outermost_section_ends(usr1, signum):
    steps = []
    with pytest.raises((KeyboardInterrupt, Received)):
        with signals_deferred():
            with signals_deferred():
                os.kill(os.getpid(), signum)  # to the process: any thread may get it
                wait_until(signal_arrived, LIMIT, "no signal has arrived")
                steps.append("inner")
            steps.append("outer")
        steps.append("after")
    assert steps == ["inner", "outer"] and not signal_arrived()


def test_a_signal_that_arrives_twice_is_delivered_once(usr1):
    with pytest.raises(KeyboardInterrupt), signals_deferred():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    with signals_deferred():
        pass


def test_each_of_two_signals_is_delivered_though_the_first_raises(usr1):
    with pytest.raises(KeyboardInterrupt) as caught, signals_deferred():
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGINT)
    assert isinstance(caught.value.__context__, Received)


def test_an_error_of_the_section_is_the_context_of_the_interrupt():
    with pytest.raises(KeyboardInterrupt) as caught, signals_deferred():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("of the section")
    assert isinstance(caught.value.__context__, ValueError)


def test_an_error_without_a_signal_passes():
    with pytest.raises(ValueError, match="of the section"), signals_deferred():
        raise ValueError("of the section")


def test_between_two_steps_of_a_section_signals_can_be_delivered():
    with signals_deferred():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            deliver_signals()
        deliver_signals()


def test_who_takes_too_long_is_interrupted_by_the_same_signal_again(monkeypatch):
    monkeypatch.setattr("dataflow.system.interrupts._AGAIN", 0)
    with signals_deferred(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_has_no_handler_in_python_stays_as_it_is(handler):
    before = signal.signal(signal.SIGWINCH, handler)
    with signals_deferred():
        assert signal.getsignal(signal.SIGWINCH) == handler
        signal.raise_signal(signal.SIGWINCH)
        assert not signal_arrived()
    assert signal.getsignal(signal.SIGWINCH) == handler
    signal.signal(signal.SIGWINCH, before)


def test_a_handler_that_is_exchanged_within_a_section_stays(usr1):
    received = []
    with signals_deferred():
        signal.signal(signal.SIGUSR1, lambda *_: received.append(1))
    signal.raise_signal(signal.SIGUSR1)
    assert received == [1]
    signal.signal(signal.SIGUSR1, usr1)


def test_a_handler_that_was_kept_from_a_section_stands_for_the_users_after_it(usr1):
    with signals_deferred():
        kept = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, kept)
    with pytest.raises(Received):
        signal.raise_signal(signal.SIGUSR1)
    with signals_deferred():
        pass  # which puts the user's back


def test_a_handler_that_calls_the_one_found_in_a_section_calls_it_once(usr1):
    received = []
    with signals_deferred():
        found = signal.signal(signal.SIGUSR1, lambda *given: (received.append(1), found(*given)))
    with signals_deferred():
        pass
    with pytest.raises(Received):
        signal.raise_signal(signal.SIGUSR1)
    assert received == [1]
    signal.signal(signal.SIGUSR1, usr1)


def test_a_section_of_a_finaliser_may_come_between_any_two_steps_of_another(usr1):
    """Where Python collects garbage: a handler of ours that stayed would ignore Ctrl-C from then on."""

    def section():
        with signals_deferred():
            pass

    def run(traced):
        with pytest.raises(Received), traced(section), signals_deferred():
            signal.raise_signal(signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR1) is usr1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    act_at_each_line(run, "system/interrupts.py", 21)


def test_a_signal_that_is_to_be_ignored_by_then_is_not_delivered(usr1):
    with signals_deferred():
        signal.raise_signal(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, usr1)


@pytest.mark.parametrize(("text", "raises"), [("signal only works in main thread", False), ("another", True)])
def test_a_section_that_may_set_no_handler_defers_nothing(usr1, text, raises, monkeypatch):
    set_handler = signal.signal

    def refuse(signum, handler):
        if signum == signal.SIGTERM or handler is usr1:
            return set_handler(signum, handler)
        raise ValueError(text)

    with monkeypatch.context() as patched:
        patched.setattr(signal, "signal", refuse)
        expected = pytest.raises(ValueError, match=text) if raises else pytest.raises(Received)
        with expected, signals_deferred():
            signal.raise_signal(signal.SIGUSR1)
            raise AssertionError("the signal was deferred")


def test_an_interrupt_while_handlers_are_restored_leaves_none_of_ours(usr1, monkeypatch):
    set_handler, section = signal.signal, signals_deferred()

    def interrupted(signum, handler):
        set_handler(signum, handler)
        monkeypatch.undo()
        raise KeyboardInterrupt

    section.__enter__()
    monkeypatch.setattr(signal, "signal", interrupted)
    with pytest.raises(KeyboardInterrupt):
        section.__exit__(None, None, None)


def test_in_other_threads_a_section_does_nothing():
    handlers = []

    def run():
        with signals_deferred():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def test_a_forked_child_has_the_handlers_of_its_parent_and_none_of_its_signals():
    with pytest.raises(KeyboardInterrupt), signals_deferred():
        signal.raise_signal(signal.SIGINT)
        pid = os.fork()
        if not pid:
            os._exit(0 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 1)
        assert os.waitpid(pid, 0)[1] == 0


def test_in_a_finaliser_a_signal_comes_a_moment_later():
    with pytest.raises(KeyboardInterrupt):
        _drop()


def _drop():
    class Thing:
        def __del__(self):
            with signals_deferred(later=True):
                signal.raise_signal(signal.SIGINT)

    Thing()
    threading.Event().wait(LIMIT)


def test_where_no_thread_can_be_started_a_finaliser_delivers_at_once(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(KeyboardInterrupt), signals_deferred(later=True):
        signal.raise_signal(signal.SIGINT)


def test_a_finaliser_that_takes_longer_is_not_interrupted():
    finished = []

    class Thing:
        def __del__(self):
            with signals_deferred(later=True):
                signal.raise_signal(signal.SIGINT)
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                pass
            finished.append(True)

    def drop():
        thing = Thing()
        del thing
        threading.Event().wait(LIMIT)

    with pytest.raises(KeyboardInterrupt):
        drop()
    assert finished
