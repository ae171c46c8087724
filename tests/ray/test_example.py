"""The example of a cluster that loses a node does what its first lines promise."""

import importlib.util
import re

import pytest

from tests.test_examples import assert_ended_quietly, needs_digits, run_example

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]


@needs_digits
@pytest.mark.full  # quick is test_on_ray.py::test_killed_actors_change_nothing
def test_a_node_that_is_killed_in_mid_pass_changes_nothing() -> None:
    run = run_example("cluster.py", "--epochs", "10")
    assert_ended_quietly(run)
    assert "killed   one of the nodes, in the middle of pass 5" in run.stdout
    assert "14370 datapoints: each of 1437 digits exactly once in each of 10 passes: yes" in run.stdout
    assert "the order is that of the run without a cluster: yes" in run.stdout
    alone, cluster = re.findall(r"^(?:alone|cluster)  +([\d.]+)% right", run.stdout, re.MULTILINE)
    assert alone == cluster
    assert "Another was started in its place: restart 1, of at most 1" in run.stderr
