"""A pass over the network is complete and in order, or an error says so: delay, stalls, gaps, broken connections."""

import contextlib
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from dataflow import DataFromGenerator, ReceiverLost, RemoteDataZMQ, SenderLost, TimeoutError
from dataflow.remote.peer_messages import PeerMessageKind
from tests.support.faults import deadline
from tests.support.senders import LOOPBACK, ROOT, Sending, Stranger, look, numbers
from tests.support.slow_link import SlowLink
from tests.support.waits import LIMIT, wait_until

DELAYS = [0.001, 0.05]
SIZE = 10_000  # bytes


@contextlib.contextmanager
def link_to(df, delay):
    host, port = df.addresses[0].removeprefix("tcp://").rsplit(":", 1)
    with SlowLink((host, int(port)), delay) as link:
        yield link


@contextlib.contextmanager
def receiver(**options):
    with RemoteDataZMQ(LOOPBACK, num_senders=1, **{"timeout": LIMIT, **options}) as df:
        df.reset_state()
        yield df


def arrays(num, goes_on=None):
    """So many arrays; after the first, the sender waits for an event."""

    def generate():
        for k in range(num):
            if k == 1 and goes_on is not None:
                goes_on.wait(LIMIT)
            yield [k, np.full(SIZE, k % 251, np.uint8)]

    return DataFromGenerator(generate)


@pytest.mark.parametrize("delay", DELAYS)
def test_passes_are_complete_and_in_order(delay):
    with receiver() as df, link_to(df, delay) as link:
        for _ in range(2):
            sending = Sending(arrays(200), link.address)
            found = list(df)
            assert [k for k, _ in found] == list(range(200))
            assert all((array == k % 251).all() for k, array in found)
            assert sending.wait_result() == 200


@pytest.mark.parametrize(("hwm", "least"), [(None, 4 << 20), (300, 150 * SIZE), (20, 10 * SIZE)])
def test_as_much_is_under_way_as_the_window_holds(hwm, least):
    """A window that holds the product of bandwidth and delay keeps the connection busy."""
    with receiver(hwm=hwm, heartbeat=LIMIT / 4) as df, link_to(df, 0.001) as link:
        goes_on = threading.Event()
        sending = Sending(arrays(2000, goes_on), link.address, heartbeat=LIMIT / 4)
        datapoints = iter(df)
        next(datapoints)
        link.stall(LIMIT)  # as long a delay as a loaded machine needs to fill the window
        goes_on.set()
        wait_until(lambda: link.max_under_way >= least, LIMIT, lambda: f"{link.max_under_way} bytes are under way")
        link.stall(0)
        assert sum(1 for _ in datapoints) == 1999
        assert sending.wait_result() == 2000
        assert least <= link.max_under_way <= (12 << 20 if hwm is None else 2 * hwm * SIZE)


def test_a_stall_shorter_than_three_heartbeats_loses_nothing():
    stall_and_go_on(1.5)


@pytest.mark.full
def test_a_cable_that_is_out_for_five_seconds_loses_nothing():
    stall_and_go_on(5.0)


def stall_and_go_on(seconds):
    with receiver(heartbeat=seconds) as df, link_to(df, 0.001) as link:
        sending = Sending(arrays(2000), link.address, heartbeat=seconds)
        datapoints = iter(df)
        found = [next(datapoints)[0] for _ in range(100)]
        link.stall(seconds)
        began = time.monotonic()
        found += [k for k, _ in datapoints]
        assert found == list(range(2000)) and time.monotonic() - began >= 0.5 * seconds
        assert sending.wait_result() == 2000


def test_a_stall_is_reported_after_timeout_and_the_pass_goes_on():
    found = []

    def take(num):
        for k, _ in df:
            found.append(k)
            if len(found) == num:
                break

    with receiver(heartbeat=5.0, timeout=0.5) as df, link_to(df, 0.001) as link:
        sending = Sending(arrays(2000), link.address, heartbeat=5.0)
        while len(found) < 100:  # on a loaded machine, the first may come late
            with contextlib.suppress(TimeoutError):
                take(100)
        link.stall(3.0)
        with pytest.raises(TimeoutError, match=r"received no datapoint for 0\.5 seconds"):
            take(2000)
        while len(found) < 2000:
            with contextlib.suppress(TimeoutError):
                take(2000)
        assert list(df) == []
        assert found == list(range(2000))
        assert sending.wait_result() == 2000


def test_a_connection_that_breaks_is_an_error_at_both_ends():
    found = []

    def take(df, link):
        for k, _ in df:
            found.append(k)
            if len(found) == 100:
                link.cut()

    with receiver(heartbeat=0.5) as df, link_to(df, 0.001) as link:
        sending = Sending(arrays(100_000), link.address, heartbeat=0.5)
        with pytest.raises(SenderLost):
            take(df, link)
        assert found == list(range(len(found)))
        assert isinstance(sending.wait_result(), ReceiverLost)
        df.reset_state()
        again = Sending(numbers(10), df.addresses[0], heartbeat=0.5)
        assert list(df) == [[k] for k in range(10)]
        assert again.wait_result() == 10


@contextlib.contextmanager
def stranger_in_a_pass():
    """A receiver that has begun a pass, and a sender that has joined it and says what the test wants."""
    with receiver() as df:
        iter(df)
        df._df_state.resource.begin_pass()
        with Stranger(df.addresses[0]) as sender:
            sender.join(lambda: look(df))
            yield df, sender


def test_an_end_with_another_count_is_an_error_that_says_how_many_are_missing():
    with stranger_in_a_pass() as (df, sender):
        sender.say(PeerMessageKind.DATA, 0, 1, [b"\x91\x91\x01", b""])
        sender.say(PeerMessageKind.END, 5)
        with pytest.raises(SenderLost, match="it has sent 5 datapoints, so 4 are missing") as lost:
            list(df)
        assert lost.value.received == 1


def test_a_gap_between_datapoints_is_an_error():
    with stranger_in_a_pass() as (df, sender):
        sender.say(PeerMessageKind.DATA, 3, 1, [b"\x91\x91\x01", b""])
        with pytest.raises(SenderLost, match="so 3 are missing"):
            list(df)


def test_a_receiver_that_pauses_for_long_is_not_lost_though_no_more_messages_are_read(monkeypatch):
    """Heartbeats come while nothing is taken: at last ZeroMQ reads no more, and answers nothing."""
    monkeypatch.setattr("dataflow.remote.router._MAX_WAITING", 5)
    with receiver(heartbeat=0.2) as df:
        sending = Sending(numbers(1000), df.addresses[0], heartbeat=0.2, hwm=100)
        datapoints = iter(df)
        first = next(datapoints)
        time.sleep(20 * 0.2)
        assert [first, *datapoints] == [[k] for k in range(1000)]
        assert sending.wait_result() == 1000


# -- network namespaces, where the system has them ---------------------------------------------------------------------

SPACE, NEAR, FAR = "dataflow-test", "dataflow-near", "dataflow-far"
NEAR_ADDRESS, FAR_ADDRESS = "10.213.77.1", "10.213.77.2"


def command(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)


def set_up(*words):
    done = command(*words)
    if done.returncode:
        pytest.skip(f"{' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def network(request):
    """A network between this process and a namespace, with delay and loss. Yields the command that begins one there."""
    if os.geteuid() or not shutil.which("tc") or not shutil.which("ip"):
        pytest.skip("only root can make network namespaces, with the programs ip and tc")
    try:
        set_up("ip", "netns", "add", SPACE)
        set_up("ip", "link", "add", NEAR, "type", "veth", "peer", "name", FAR)
        set_up("ip", "link", "set", FAR, "netns", SPACE)
        inside = ("ip", "netns", "exec", SPACE)
        for prefix, device, address in [((), NEAR, NEAR_ADDRESS), (inside, FAR, FAR_ADDRESS)]:
            set_up(*prefix, "ip", "addr", "add", f"{address}/24", "dev", device)
            set_up(*prefix, "ip", "link", "set", device, "up")
            set_up(*prefix, "tc", "qdisc", "add", "dev", device, "root", *request.param)
        yield inside
    finally:
        command("ip", "netns", "del", SPACE)  # takes its device along, and so the other end
        command("ip", "link", "del", NEAR)


DELAYS_AND_LOSS = [("netem", "delay", "1ms"), ("netem", "delay", "50ms"), ("netem", "delay", "1ms", "loss", "0.1%")]


@pytest.mark.full
@pytest.mark.parametrize("network", DELAYS_AND_LOSS, ids=" ".join, indirect=True)
@pytest.mark.parametrize("cut", [0.0, 5.0])
def test_between_network_namespaces_nothing_is_lost(network, cut):
    program = textwrap.dedent(
        f"""
        import sys
        import numpy as np
        from dataflow import DataFromGenerator, send_dataflow_zmq

        def generate():
            for k in range(5000):
                yield [k, np.full({SIZE}, k % 251, np.uint8)]

        send_dataflow_zmq(DataFromGenerator(generate), sys.argv[1], heartbeat=5.0, timeout={LIMIT})
        """
    )
    address = f"tcp://{NEAR_ADDRESS}:*"
    with RemoteDataZMQ(address, num_senders=1, heartbeat=5.0, timeout=LIMIT, insecure=True) as df:
        df.reset_state()
        words = [*network, sys.executable, "-c", program, df.addresses[0]]
        with subprocess.Popen(words, cwd=ROOT) as sender:
            found = []
            for k, array in df:
                found.append(k)
                assert (array == k % 251).all()
                if cut and len(found) == 100:
                    command("ip", "link", "set", NEAR, "down")
                    time.sleep(cut)
                    command("ip", "link", "set", NEAR, "up")
            assert found == list(range(5000))
            assert sender.wait(LIMIT) == 0


@pytest.mark.full
@pytest.mark.parametrize("network", [("pfifo", "limit", "1000")], ids=" ".join, indirect=True)
def test_a_cable_that_stays_out_is_noticed_at_both_ends(network):
    program = textwrap.dedent(
        """
        import sys
        from dataflow import DataFromList, ReceiverLost, RepeatedData, send_dataflow_zmq

        try:
            send_dataflow_zmq(RepeatedData(DataFromList([[0]]), -1), sys.argv[1], heartbeat=1.0)
        except ReceiverLost as error:
            assert "the connection has broken" in str(error)
            sys.exit(5)
        """
    )
    with RemoteDataZMQ(f"tcp://{NEAR_ADDRESS}:*", num_senders=1, heartbeat=1.0, insecure=True) as df:
        df.reset_state()
        words = [*network, sys.executable, "-c", program, df.addresses[0]]
        with subprocess.Popen(words, cwd=ROOT) as sender:
            datapoints = iter(df)
            next(datapoints)
            command("ip", "link", "set", NEAR, "down")
            with deadline(LIMIT), pytest.raises(SenderLost):
                for _ in datapoints:
                    pass
            assert sender.wait(LIMIT) == 5
