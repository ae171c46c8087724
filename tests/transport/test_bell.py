"""Bells: rung before, during and after a wait; by another process; with nobody there."""

import multiprocessing
import os
import threading

import pytest

from dataflow.descriptors import handing_over
from dataflow.transport.bell import HAS_BELLS, Bell
from tests.support.fakes import METHODS
from tests.support.waits import LIMIT

pytestmark = pytest.mark.skipif(not HAS_BELLS, reason="there is no eventfd")


@pytest.fixture
def bell():
    bell = Bell()
    yield bell
    bell.close()


def test_a_ring_is_remembered_until_it_is_heard_and_several_are_one(bell):
    assert not bell.quiet()
    bell.ring()
    bell.ring()
    bell.wait(LIMIT)
    assert not bell.quiet()


def test_a_wait_ends_by_a_ring(bell):
    rung = []
    ringing = threading.Timer(0.05, lambda: (rung.append(True), bell.ring()))
    ringing.start()
    bell.wait(LIMIT)
    assert rung
    ringing.join()
    assert not bell.quiet()


def test_a_wait_ends_without_one(bell):
    bell.wait(0.001)
    assert not bell.quiet()


@pytest.mark.parametrize("method", METHODS)
def test_another_process_rings_by_every_start_method(bell, method):
    process = multiprocessing.get_context(method).Process(target=bell.ring)
    with handing_over(bell.descriptor):
        process.start()
    bell.wait(LIMIT)
    process.join()
    assert process.exitcode == 0
    process.close()


def test_closing_gives_the_descriptor_back():
    before = len(os.listdir("/proc/self/fd"))
    bell = Bell()
    bell.close()
    bell.close()
    assert len(os.listdir("/proc/self/fd")) == before
