"""What a process may use: cores by affinity and by the quotas of control groups."""

import os
from pathlib import Path

import pytest

from dataflow import DataFromList, MultiProcessRunner
from dataflow.system.machine import (
    available_cores,
    default_max_bytes,
    max_address_space,
    memory_is_short,
    processor_times,
)
from tests.support.machines import set_groups

MANY = 4096


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine of many cores, all of which this process may use, with its control groups in `tmp_path`."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(MANY)), raising=False)
    set_groups(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("text", "cores"),
    [("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("max 100000", MANY), ("?", MANY), ("", MANY)],
)
def test_the_quota_of_a_container_counts(tmp_path, text, cores):
    (tmp_path / "cpu.max").write_text(text)
    assert available_cores() == cores


@pytest.mark.parametrize(("quota", "cores"), [("300000", 3), ("-1", MANY)])
def test_so_does_that_of_an_older_kernel(tmp_path, quota, cores):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert available_cores() == cores


@pytest.mark.parametrize(
    ("outer", "inner", "cores"),
    [("300000", "max", 3), ("max", "200000", 2), ("300000", "200000", 2), ("max", "max", MANY)],
)
def test_the_strictest_of_the_groups_around_a_process_counts(tmp_path, monkeypatch, outer, inner, cores):
    group = tmp_path / "mounted" / "user.slice" / "job"
    group.mkdir(parents=True)
    (group.parent / "cpu.max").write_text(f"{outer} 100000")
    (group / "cpu.max").write_text(f"{inner} 100000")
    set_groups(monkeypatch, tmp_path / "mounted", "0::/user.slice/job")
    assert available_cores() == cores


def test_a_group_of_an_older_kernel_has_a_path_of_its_own(tmp_path, monkeypatch):
    group = tmp_path / "mounted" / "cpu,cpuacct" / "docker" / "job"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("250000")
    (group / "cpu.cfs_period_us").write_text("100000")
    set_groups(monkeypatch, tmp_path / "mounted", "5:memory:/elsewhere", "4:cpu,cpuacct:/docker/job", "0::/")
    assert available_cores() == 2


@pytest.mark.parametrize("lines", [("0::/../../of-another-namespace", "1:cpu:/missing"), ()])
def test_groups_that_cannot_be_read_limit_nothing(tmp_path, monkeypatch, lines):
    set_groups(monkeypatch, tmp_path / "mounted", *lines)
    assert available_cores() == MANY


@pytest.mark.parametrize(("num_workers", "lines"), [(8, 0), (9, 1)])
def test_more_than_four_workers_per_core_are_one_line_in_the_log(monkeypatch, caplog, num_workers, lines):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    caplog.set_level("INFO", "dataflow.system.machine")
    df = MultiProcessRunner(DataFromList([[k] for k in range(9)], shuffle=False), 2, num_workers, strict=True)
    with df:
        assert len(list(df)) == len(list(df)) == 9
    found = [record.getMessage() for record in caplog.records if record.name == "dataflow.system.machine"]
    assert len(found) == lines
    assert all("MultiProcessRunner has 9 workers, and this process may use 2 cores" in line for line in found)


def test_without_a_quota_the_affinity_counts(monkeypatch):
    assert available_cores() == MANY
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert available_cores() == 1


def test_an_unknown_number_of_cores_is_one(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores() == 1


@pytest.mark.parametrize(("most", "memory"), [(1 << 30, 1 << 28), (6 << 30, 1 << 30), (None, 1 << 30)])
def test_a_limit_of_address_space_counts_as_memory_does(most, memory, monkeypatch):
    import resource

    limit = resource.RLIM_INFINITY if most is None else most
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit) if which == resource.RLIMIT_AS else None)
    monkeypatch.setattr(os, "sysconf", lambda name: 1 << 20)  # a page, and the number of pages
    assert max_address_space() == most
    assert default_max_bytes() == memory


def test_memory_of_which_the_system_does_not_tell_is_neither_limited_nor_short(monkeypatch):
    import resource

    def refuse(*_):
        raise OSError

    monkeypatch.setattr(resource, "getrlimit", refuse)
    monkeypatch.setattr(Path, "read_text", refuse)
    assert max_address_space() is None
    assert not memory_is_short()


@pytest.mark.parametrize("error", [OSError, MemoryError])
def test_times_that_cannot_be_read_are_unknown(error, monkeypatch):
    def refused(*_, **__):
        raise error

    monkeypatch.setattr("builtins.open", refused)
    assert processor_times("thread-self") is None
