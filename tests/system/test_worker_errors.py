"""What an error about a worker says, from its exit code, and from what it did in several attempts."""

import signal

import pytest

from dataflow.system.worker_errors import ends_of_item, explanation


@pytest.mark.parametrize(
    ("exitcode", "what", "cure"),
    [
        (-signal.SIGTERM, "was killed by SIGTERM", "a user or another process on this machine sent it"),
        (-signal.SIGKILL, "was killed by SIGKILL", "out of memory"),
        (-signal.SIGSEGV, "was killed by SIGSEGV", "a native library crashed in it"),
        (-99, "was killed by signal 99", "what sends this signal on this machine"),
    ],
)
def test_a_signal_is_named_with_its_cause(exitcode, what, cure):
    found = explanation(exitcode, has_connected=True)
    assert found[0] == what and cure in found[1]


def test_different_ends_are_named_one_by_one():
    assert ends_of_item(["hung", "hung"]) == "ended its worker twice: each time, it hung"
    assert ends_of_item(["hung", "was killed", "left"]) == (
        "ended its worker 3 times: first, it hung; then, it was killed; then, it left"
    )
