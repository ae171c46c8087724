"""A process ends with its parent, whatever it is doing."""

import os
import signal

import pytest

from dataflow.system.descriptors import passing_to_child, pipe
from dataflow.system.worker_process import hold_on
from tests.support.waits import LIMIT, wait_until


def child(lifeline, body):
    with passing_to_child(lifeline):
        pid = os.fork()
    if not pid:
        try:
            body()
        finally:
            os._exit(5)
    return pid


def ended(pid):
    found, status = os.waitpid(pid, os.WNOHANG)
    return (os.waitstatus_to_exitcode(status),) if found else None


def spin():
    while True:
        sum(range(10**12))  # holds the interpreter's lock, and never looks for signals of Python


@pytest.mark.parametrize("doing", [signal.pause, spin], ids=["waits", "computes"])
def test_a_process_is_killed_when_the_other_end_is_closed(doing):
    held, lifeline = pipe()
    ready, say = pipe()

    def body():
        hold_on(held)
        os.write(say_fd, b"r")
        doing()

    say_fd = os.dup(say.fd)
    pid = child(held, body)
    assert os.read(ready.fd, 1) == b"r"
    assert ended(pid) is None
    lifeline.close()
    assert wait_until(lambda: ended(pid), LIMIT, "survives") == (-signal.SIGKILL,)
    os.close(say_fd)
    for end in (held, ready, say):
        end.close()


def test_a_parent_that_has_gone_before_is_noticed_at_once():
    held, lifeline = pipe()
    lifeline.close()
    pid = child(held, lambda: hold_on(held))
    assert wait_until(lambda: ended(pid), LIMIT, "survives") == (-signal.SIGKILL,)
    held.close()
