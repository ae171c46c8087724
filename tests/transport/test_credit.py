"""Credit: how far a worker may run ahead, by a table; and the same words seen from every process."""

import multiprocessing
import os
import threading
import time

import pytest

from dataflow.descriptors import handing_over
from dataflow.transport.credit import Credit, Window
from tests.support.fakes import METHODS
from tests.support.waits import wait_until

WINDOWS = [
    # window, made (datapoints, bytes), handed out, used up?
    (Window(1), (0, 0), (0, 0), False),
    (Window(1), (1, 9), (0, 0), True),
    (Window(1), (1, 9), (1, 9), False),
    (Window(3), (2, 99), (0, 0), False),
    (Window(3), (3, 0), (0, 0), True),
    (Window(3), (7, 0), (4, 0), True),
    (Window(3), (7, 0), (5, 0), False),
    # with bytes: it goes on while either is left
    (Window(3, 100), (3, 99), (0, 0), False),
    (Window(3, 100), (2, 1000), (0, 0), False),
    (Window(3, 100), (3, 100), (0, 0), True),
    (Window(3, 100), (3, 1000), (1, 1), False),
    (Window(3, 100), (30, 99), (0, 0), False),
    # the consumer may be faster than the worker's own books
    (Window(1), (0, 0), (1, 9), False),
]


@pytest.mark.parametrize(("window", "made", "used", "used_up"), WINDOWS)
def test_a_window_is_used_up_when_both_its_measures_are(window, made, used, used_up):
    credit = Credit(2, shared=False)
    allowance = credit.allowance(1, window)
    allowance.spend(*made)
    credit.grant(1, *used)
    assert allowance.used_up is used_up


@pytest.mark.parametrize(
    ("window", "count", "nbytes"),
    [(Window(1), 1, 1 << 16), (Window(2), 1, 1 << 16), (Window(50), 16, 1 << 16), (Window(50, 300), 4096, 100)],
)
def test_a_message_is_a_third_of_the_window_at_most(window, count, nbytes):
    allowance = Credit(1, shared=False).allowance(0, window)
    assert (allowance.chunk_count, allowance.chunk_bytes) == (count, nbytes)


def test_every_worker_has_a_line_of_its_own():
    credit = Credit(3, shared=False)
    allowances = [credit.allowance(k, Window(1)) for k in range(3)]
    for allowance in allowances:
        allowance.spend(1, 1)
    credit.grant(1, 1, 1)
    assert [allowance.used_up for allowance in allowances] == [True, False, True]


def test_waiting_ends_with_credit():
    credit = Credit(1, shared=False)
    allowance = credit.allowance(0, Window(1))
    assert allowance.wait_for_credit()
    allowance.spend(1, 0)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(allowance.wait_for_credit()))
    waiting.start()
    assert not answers
    credit.grant(0, 1, 0)
    waiting.join(5)
    assert answers == [True]


def test_waiting_ends_when_all_are_told_to_stop():
    credit = Credit(2, shared=False)
    allowances = [credit.allowance(k, Window(1)) for k in range(2)]
    allowances[1].spend(1, 0)
    credit.stop()
    assert [allowance.stopped for allowance in allowances] == [True, True]
    assert [allowance.wait_for_credit() for allowance in allowances] == [False, False]


def test_who_waits_for_credit_uses_little_processor_time():
    allowance = Credit(1, shared=False).allowance(0, Window(1))
    allowance.spend(1, 0)
    began, used = time.monotonic(), time.thread_time()
    stop = threading.Timer(0.3, lambda: allowance.spend(-1, 0))
    stop.start()
    assert allowance.wait_for_credit()
    stop.join()
    assert time.thread_time() - used < 0.3 * (time.monotonic() - began)


def spend_and_wait(credit, end):
    allowance = credit.allowance(1, Window(2))
    allowance.spend(2, 10)
    os.write(end.fd, b"F" if allowance.used_up else b"?")
    os.write(end.fd, b"T" if allowance.wait_for_credit() else b"?")
    allowance.spend(1, 10)
    os.write(end.fd, b"?" if allowance.wait_for_credit() else b"S")


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_process_sees_what_the_consumer_grants_by_every_start_method(method):
    from dataflow.descriptors import pipe

    credit = Credit(2, shared=True)
    read, write = pipe()
    process = multiprocessing.get_context(method).Process(target=spend_and_wait, args=(credit, write))
    with handing_over(write, *credit.descriptors()):
        process.start()
    write.close()
    assert os.read(read.fd, 1) == b"F"
    credit.grant(1, 1, 5)
    assert os.read(read.fd, 1) == b"T"
    credit.stop()
    assert os.read(read.fd, 1) == b"S"
    process.join()
    assert process.exitcode == 0
    process.close()
    read.close()
    credit.close()


def test_closing_gives_every_descriptor_back_at_once():
    before = len(os.listdir("/proc/self/fd"))
    credit = Credit(4, shared=True)
    credit.close()
    credit.close()
    credit.stop()  # the consumer may tell them again
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_worker_goes_on_reading_after_the_consumer_has_closed():
    credit = Credit(1, shared=True)
    allowance = credit.allowance(0, Window(1))
    credit.stop()
    credit.close()
    wait_until(lambda: allowance.stopped, 1, "the flag is gone")
