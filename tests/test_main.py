"""The command line: how a flow is named, and the commands keys, send and speed."""

import re
import subprocess
import sys
import textwrap
import threading

import pytest

import dataflow
from dataflow import DataFlow, RemoteDataZMQ
from dataflow.__main__ import flow_named, main
from tests.support.senders import LOOPBACK, ROOT
from tests.support.waits import LIMIT

FLOWS = """
from dataflow import DataFromList

flow = DataFromList([[k] for k in range(20)], shuffle=False)

def make():
    return flow

class Holder:
    flow = flow

number = 5
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "feeding_of_a_test.py").write_text(textwrap.dedent(FLOWS))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "feeding_of_a_test", raising=False)
    return "feeding_of_a_test"


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"dataflow {dataflow.__version__}\n"


@pytest.mark.parametrize("name", ["flow", "make", "Holder.flow"])
def test_a_flow_is_found_by_its_name_or_made_by_a_function(module, name):
    assert isinstance(flow_named(f"{module}:{name}"), DataFlow)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("flow", "name a flow as MODULE:FLOW"),
        (":flow", "name a flow as MODULE:FLOW"),
        ("no_such_module:flow", "there is no module 'no_such_module'"),
        ("no_such.module:flow", r"there is no module 'no_such\.module'"),
        ("feeding_of_a_test:water", "there is no 'water' in feeding_of_a_test"),
        ("feeding_of_a_test:number", "is a int, not a dataflow"),
    ],
)
def test_what_is_no_flow_is_named(module, name, text, capsys):
    with pytest.raises(ValueError, match=text):
        flow_named(name)
    assert main(["speed", name]) == 2
    assert re.search(text, capsys.readouterr().err)


def test_speed_prints_datapoints_per_second(module, capsys):
    assert main(["speed", f"{module}:make", "--size", "10", "--warmup", "2"]) == 0
    assert re.fullmatch(rf"{module}:make: [\d.e+]+ datapoints per second\n", capsys.readouterr().out)


def test_a_flow_shorter_than_its_warm_up_is_an_error_and_no_speed(module, capsys):
    assert main(["speed", f"{module}:make", "--warmup", "100000"]) == 1
    out, error = capsys.readouterr()
    assert out == "" and "no datapoint is left after --warmup 100000: give a smaller one" in error


def test_keys_are_made_and_listed(tmp_path, capsys):
    assert main(["keys", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [
        str(tmp_path / name) for name in ("sender.key", "sender.key_secret", "receiver.key", "receiver.key_secret")
    ]
    assert main(["keys", str(tmp_path)]) == 1
    assert "exists already" in capsys.readouterr().err


def test_an_open_address_is_refused_on_the_command_line(module, capsys):
    assert main(["send", f"{module}:flow", "tcp://0.0.0.0:*", "--bind"]) == 1
    assert "can be reached from other machines" in capsys.readouterr().err


def test_ctrl_c_ends_a_command_with_the_code_of_shells(module, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dataflow.__main__.send_dataflow_zmq", interrupted)
    assert main(["send", f"{module}:flow", "tcp://127.0.0.1:1"]) == 130


def test_a_sent_flow_is_counted(module, capsys):
    codes = []
    with RemoteDataZMQ(LOOPBACK, num_senders=1, timeout=LIMIT) as df:
        df.reset_state()
        sender = threading.Thread(target=lambda: codes.append(main(["send", f"{module}:flow", df.addresses[0]])))
        sender.start()
        assert len(list(df)) == 20
        sender.join(LIMIT)
    assert codes == [0] and ": 20 datapoints taken" in capsys.readouterr().out


def test_a_flow_is_sent_from_the_command_line_with_keys(module, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "dataflow", "keys", tmp_path / "k"], cwd=ROOT, check=True, capture_output=True
    )
    with RemoteDataZMQ(LOOPBACK, num_senders=1, curve=tmp_path / "k", timeout=LIMIT) as df:
        df.reset_state()
        sender = subprocess.Popen(
            [sys.executable, "-m", "dataflow", "send", f"{module}:flow", df.addresses[0], "--curve", tmp_path / "k"],
            cwd=ROOT,
            env={"PYTHONPATH": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert len(list(df)) == 20
        out, _ = sender.communicate(timeout=LIMIT)
    assert out.endswith(": 20 datapoints taken\n")
    assert sender.returncode == 0
