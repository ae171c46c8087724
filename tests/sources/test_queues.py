import multiprocessing
import pickle
import queue
import types

import numpy as np
import pytest

from dataflow import MultiThreadMapData
from dataflow.errors import NotAddressable, NotReproducible, TimeoutError
from dataflow.sources import queues
from dataflow.sources.queues import DataFromQueue
from tests.support.threads import loop_ended_by_close
from tests.support.waits import LIMIT, wait_until


def filled(*values):
    q = queue.Queue()
    for value in values:
        q.put(value)
    return q


def test_the_sentinel_ends_a_pass_and_the_next_one_continues_after_it():
    df = DataFromQueue(filled([1], "end", [2], [3], "end"), sentinel="end")
    assert [list(df), list(df)] == [[[1]], [[2], [3]]]
    assert not df._df_endless


def test_without_a_sentinel_a_pass_has_no_end():
    df = DataFromQueue(filled(None, None))
    iterator = iter(df)
    assert df._df_endless and [next(iterator), next(iterator)] == [None, None]
    assert pickle.loads(pickle.dumps(queues.DataFromQueue(CanBePickled())))._df_endless


class CanBePickled:
    def get(self, timeout):
        raise queue.Empty


def test_a_sentinel_from_another_process_is_a_copy_that_equals_it():
    end = ("end", 1000)
    assert list(DataFromQueue(filled([1], ("end", 1000)), sentinel=end)) == [[1]]


def test_arrays_are_not_sentinels():
    found = list(DataFromQueue(filled([np.zeros(2)], np.zeros(2), [1]), sentinel=[1], timeout=LIMIT))
    assert len(found) == 2


def test_a_multiprocessing_queue_works_too():
    q = multiprocessing.Queue()
    for value in ([1], [2], None):
        q.put(value)
    assert list(DataFromQueue(q, sentinel=None, timeout=LIMIT)) == [[1], [2]]
    q.close()
    q.join_thread()


def test_a_timeout_raises_and_leaves_the_flow_usable():
    q = filled([1])
    df = DataFromQueue(q, timeout=0.02)
    with pytest.raises(TimeoutError, match=r"0\.02 seconds"):
        list(df)
    q.put([2])
    assert next(iter(df)) == [2]


def test_datapoints_that_were_read_ahead_of_a_pass_left_early_are_not_lost_in_silence():
    ds = DataFromQueue(filled(*range(20), None), sentinel=None, timeout=LIMIT)
    with MultiThreadMapData(ds, 2, abs, strict=True) as df:
        assert next(iter(df)) == 0
        with pytest.raises(NotReproducible, match=r"a pass of DataFromQueue continues .* had read ahead"):
            list(df)
    with MultiThreadMapData(DataFromQueue(filled(1, None, 2, None), sentinel=None), 2, abs, strict=True) as df:
        assert [list(df), list(df)] == [[1], [2]]


def test_closing_from_another_thread_ends_the_wait():
    df = DataFromQueue(queue.Queue())
    with loop_ended_by_close(df):
        wait_until(lambda: df.queue.not_empty._waiters, LIMIT, "no thread waits for the queue")
        df.close()


def test_queue_and_timeout_are_checked():
    with pytest.raises(TypeError, match="expects a queue"):
        DataFromQueue([1])
    with pytest.raises(TypeError, match="expects a queue"):
        DataFromQueue({})
    with pytest.raises(ValueError, match="0"):
        DataFromQueue(queue.Queue(), timeout=0)


def test_a_queue_has_no_index_and_no_length():
    df = DataFromQueue(queue.Queue())
    with pytest.raises(NotAddressable, match="DataFromQueue"):
        df[0]
    with pytest.raises(NotImplementedError):
        len(df)


def test_a_long_wait_looks_in_between_whether_the_flow_was_closed(monkeypatch):
    now, looks = 100.0, []

    class Empty(queue.Queue):
        """One from which nothing comes while a clock runs that stands still otherwise."""

        def get(self, timeout):
            nonlocal now
            now += timeout
            looks.append(timeout)
            raise queue.Empty

    monkeypatch.setattr(queues, "time", types.SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(queues, "_SLICE", 2.0)
    with pytest.raises(TimeoutError, match=r"no datapoint for 7\.0 seconds"):
        next(iter(DataFromQueue(Empty(), timeout=7)))
    assert looks == [2.0, 2.0, 2.0, 1.0]
