"""What is sent to a worker, from any room: whole, by value, or not at all."""

import pickle
import threading

import numpy as np
import pytest

from dataflow.errors import NotPicklable
from dataflow.system.pickling import dumps
from dataflow.system.worker_process import Payload


def test_what_only_lives_here_travels_by_value():
    factor = 3
    assert pickle.loads(dumps(lambda k: k * factor))(2) == 6


@pytest.mark.parametrize("value", [bytes(1000), np.zeros(1000), list(range(10_000)), [np.zeros(4)] * 3 + ["x" * 2000]])
def test_what_is_too_large_is_found_out_early(value):
    assert pickle.loads(dumps(value, max_bytes=100_000)) is not None
    with pytest.raises(OverflowError, match="too large"):
        dumps(value, max_bytes=900)
    small = dumps([1, 2], max_bytes=900)
    assert pickle.loads(small) == [1, 2]


def test_what_cannot_be_sent_is_named_with_the_cure():
    with pytest.raises(NotPicklable, match=r"lock.*cannot be sent to a worker process.*context=\"fork\""):
        pickle.dumps(Payload(threading.Lock()))
