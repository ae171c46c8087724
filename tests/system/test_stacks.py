"""Stacks that a worker writes when it is asked."""

import os
import threading

from dataflow.system.stacks import StackFile


def test_who_is_asked_writes_what_its_threads_do():
    stacks = StackFile()
    stacks.register()
    stacks.ask(os.getpid())
    assert "test_who_is_asked_writes" in stacks.read()
    stacks.close()


def test_once_it_is_closed_nobody_is_asked_and_there_is_none():
    stacks = StackFile()
    stacks.close()
    stacks.ask(threading.get_native_id())  # which would end this process
    assert stacks.read() == ""
