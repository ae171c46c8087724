"""Two clusters: one in this process, for most tests; and Ray, in a session of its own.

Ray leaves threads and descriptors in a process that was connected once, and starts processes when it likes. So all
tests marked `ray` are run by one child, in which the watch over processes looks at the cluster as a whole; their
reports come back here.
"""

import contextlib
import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict

import pytest

import dataflow
from dataflow.ray import cluster as rays
from dataflow.ray.ray_backend import RayBackend
from tests.ray.fake_cluster import FakeCluster
from tests.support import leaks
from tests.support.waits import LIMIT, wait_until

REPORTS = "DATAFLOW_TEST_REPORTS"  # where the child writes them; set in the child only
RAN_APART = pytest.StashKey[dict]()
SILENT_SECONDS = 600.0  # in which no test ends: one hangs, also on a machine that is busy
# Each is requested by one test. Ray 2.60 sometimes never gives back the resources of an actor that was killed at the
# moment when its worker process was leased ("Ignoring granted lease for canceled lease request" in gcs_server.out), so
# a test that reads how much of a resource is free shares it with no other.
OWN_RESOURCES = ("of the test of close", "of the test without room")
ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all sockets on 127.0.0.1
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # else it writes into the home directory
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}


@pytest.fixture
def fake(monkeypatch):
    """A cluster in this process; actors get the fates that a test adds to `fake.fates`."""
    cluster = FakeCluster()
    monkeypatch.setattr(RayBackend, "make_cluster", lambda address: cluster)
    monkeypatch.setattr(rays, "_START_SECONDS", 0.1)  # one that has not started by then never does
    yield cluster
    cluster.actors.clear()  # pytest keeps the cluster, and they what they were sent
    dataflow.seed(None)


@pytest.fixture(scope="session")
def cluster(own_temporary_directory):
    """The package ray, connected to a cluster of this machine, which leaves no process behind."""
    import ray

    leaks._start_servants()
    before = leaks.processes()
    ray.init(
        address="local",
        num_cpus=4,
        resources=dict.fromkeys(OWN_RESOURCES, 4),
        object_store_memory=256 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="critical",
    )
    yield ray
    ray.shutdown()

    def left():
        return {name for key, name in leaks.processes().items() if key not in before}

    wait_until(lambda: not left(), LIMIT, lambda: f"left behind: {left()}")


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    """Every test is watched, but for those on a cluster."""
    if request.node.get_closest_marker("ray") is None:
        request.getfixturevalue("nothing_left_behind")
    yield
    gc.collect()


# -- a session of its own ----------------------------------------------------------------------------------------------


def pytest_runtest_protocol(item, nextitem):
    if item.get_closest_marker("ray") is None or REPORTS in os.environ:
        return None
    if RAN_APART not in item.session.stash:
        item.session.stash[RAN_APART] = run_apart(item.session)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for data in item.session.stash[RAN_APART][item.nodeid]:
        report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
        if report.skipped:
            report.longrepr = tuple(report.longrepr)  # JSON has made a list of it
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    item.session._setupstate.teardown_exact(nextitem)  # of what tests before it in its file have set up
    return True


def run_apart(session):
    """Run all tests of the session that are marked `ray` in a child: their reports, by test.

    A test that has none, because the child ended or took too long, failed: other tests of the session go on.
    """
    names = [item.nodeid for item in session.items if item.get_closest_marker("ray") is not None]
    found = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        reports, output = os.path.join(directory, "reports"), os.path.join(directory, "output")
        environment = {**os.environ, **ENVIRONMENT, REPORTS: reports, "TEST_SHARES": "1"}  # all of these
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:randomly",
            "-p",
            "no:cacheprovider",
            "-m",
            "",
            *names,
        ]
        with open(reports, "w"), open(output, "w") as out:
            child = subprocess.Popen(
                command, cwd=session.config.rootpath, env=environment, stdout=out, stderr=out, start_new_session=True
            )
            faulthandler.cancel_dump_traceback_later()  # pytest allows so long for one test
            size = -1
            try:
                while child.poll() is None and size != (size := os.path.getsize(reports)):
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(SILENT_SECONDS)
                if child.poll() is None:
                    print(f"no test has ended for {SILENT_SECONDS} s", file=out)
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
        with open(reports, "a+") as lines:
            lines.seek(0)
            for report in map(json.loads, lines):
                found[report["nodeid"]].append(report)
        with open(output) as text:
            reported = text.read()
    for item in session.items:
        if item.nodeid in names and item.nodeid not in found:
            why = f"the session with Ray ended with code {child.returncode} before this test:\n{reported}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
            found[item.nodeid] = [item.config.hook.pytest_report_to_serializable(config=item.config, report=report)]
            reported = "(it said what is shown above)"
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if REPORTS in os.environ and (report.when == "call" or report.outcome != "passed"):
        with open(os.environ[REPORTS], "a") as lines:
            data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
            lines.write(json.dumps(data, default=repr) + "\n")
    return report
