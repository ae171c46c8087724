"""What each result took: added up in `statistics()`, and logged where that is asked for."""

import logging

import pytest

from dataflow import BackgroundProc, SharedQ
from tests.compat.targets import drawn, fill
from tests.support.waits import LIMIT


def test_the_profile_of_a_background_process_is_logged_and_added_up(caplog):
    caplog.set_level(logging.INFO, "dataflow")
    with BackgroundProc(drawn, profile=True, n_proc=2) as bg:
        for _ in range(3):
            bg.get(timeout=LIMIT)
        found = bg.statistics()
        assert found.num_results == 3 and found.seconds_made > 0 and found.seconds_waited >= 0
        with pytest.raises(AttributeError):
            found.num_results = 0
    lines = [record.message for record in caplog.records]
    assert len(lines) == 3 and "worker 0 made a result in" in lines[0] and "worker 1" in lines[1]


def test_the_profile_of_a_queue_is_logged_and_added_up(caplog):
    caplog.set_level(logging.INFO, "dataflow")
    with SharedQ(profile=True) as queue:
        queue.startproc(["i8"], [1], fill, (1,))
        queue.get(timeout=LIMIT)
        assert queue.statistics().num_results == 1 and queue.statistics().seconds_made > 0
    assert "SharedQ: a worker made a result in" in caplog.text
