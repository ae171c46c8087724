import os

import pytest

from dataflow.workers.cores import available_cores, log_oversubscription

MANY = 4096


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine of many cores, all of which this process may use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(MANY)), raising=False)


@pytest.mark.parametrize(
    ("text", "cores"),
    [("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("max 100000", MANY), ("?", MANY), ("", MANY)],
)
def test_the_quota_of_a_container_counts(tmp_path, text, cores):
    (tmp_path / "cpu.max").write_text(text)
    assert available_cores(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("300000", 3), ("-1", MANY)])
def test_so_does_that_of_an_older_kernel(tmp_path, quota, cores):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert available_cores(tmp_path) == cores


def test_without_a_quota_the_affinity_counts(tmp_path, monkeypatch):
    assert available_cores(tmp_path) == MANY
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert available_cores(tmp_path) == 1


def test_an_unknown_number_of_cores_is_one(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores(tmp_path) == 1
