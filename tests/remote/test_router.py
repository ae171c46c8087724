"""The socket of either end: what it does to the memory of its process."""

import gc
import os
import platform
import socket
import subprocess
import sys

import pytest
import zmq
from zmq.auth.thread import AuthenticationThread

from dataflow.remote.keys import Keys
from dataflow.remote.peer_messages import PeerMessage, PeerMessageKind, SendLimits, pack
from dataflow.remote.peer_options import PeerOptions
from dataflow.remote.router import Router
from tests.support.faults import is_interrupted_at
from tests.support.senders import ROOT
from tests.support.waits import LIMIT, wait_until

FAULTS = """
import resource
import numpy as np
from dataflow import RemoteDataZMQ

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        frames = [np.ones(3 << 20, np.uint8) for _ in range(4)]
        del frames
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with RemoteDataZMQ("tcp://127.0.0.1:*", num_senders=1) as df:
    df.reset_state()
    page_faults()
    print(page_faults())
"""


def page_faults(**variables):
    """Of making and dropping four blocks of 768 pages each, 20 times, in a process that receives."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    result = subprocess.run(
        [sys.executable, "-c", FAULTS], env=clean | variables, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return int(result.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other ways")
def test_memory_of_frames_stays_mapped_unless_the_user_has_told_malloc_otherwise():
    assert page_faults() < 6_000  # of 61,440
    assert page_faults(MALLOC_TRIM_THRESHOLD_="131072") > 30_000


def router(*addresses, bind=False, keys=None):
    options = PeerOptions("Owner", addresses, bind, SendLimits(0, 1000), heartbeat=1.0)
    return Router(options, keys, max_bytes=1000, max_unsent=0)


def test_what_zeromq_refuses_is_an_error_that_names_the_owner_and_leaves_nothing():
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Owner: ZeroMQ says"):
        router("tcp://nonsense")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_is_replaced_only_if_it_is_a_socket_that_nobody_listens_on(tmp_path):
    path = tmp_path / "s"
    first = router(f"ipc://{path}", bind=True)
    with pytest.raises(OSError, match=r"Owner cannot bind to ipc://.* in use"):
        router(f"ipc://{path}", bind=True)
    assert path.is_socket()
    first.close(0)
    with socket.socket(socket.AF_UNIX) as killed:  # as a program that was killed leaves it
        killed.bind(str(path))
    router(f"ipc://{path}", bind=True).close(0)
    path.write_text("data")
    with pytest.raises(OSError, match="in use"):
        router(f"ipc://{path}", bind=True)
    assert path.read_text() == "data"


def test_a_message_on_a_closed_socket_is_an_error_and_not_a_peer_that_is_gone():
    made = router("tcp://127.0.0.1:1")
    assert made.send(b"nobody", PeerMessage(PeerMessageKind.CALL)) is False
    made.close(0)
    made.close(0)
    with pytest.raises(zmq.ZMQError):
        made.send(b"nobody", PeerMessage(PeerMessageKind.CALL))


def test_wherever_a_signal_handler_raises_a_message_is_sent_whole_or_not_at_all():
    """A part that is sent alone would make one message of two."""
    first, second = (PeerMessage(PeerMessageKind.DATA, number=k, count=1, body=[b"x" * k, b"end"]) for k in (1, 2))
    bound = router("tcp://127.0.0.1:*", bind=True)
    connected = router(*bound.addresses)
    (peer,) = connected.peers

    def received():
        bound.wait(LIMIT)
        _, frames = bound.receive_nowait()
        return [bytes(frame) for frame in frames]

    try:
        wait_until(lambda: connected.send(peer, second), LIMIT, "not connected")
        assert received() == pack(second)
        k, is_interrupted = 0, True
        while is_interrupted:
            is_interrupted = is_interrupted_at(k, lambda: connected.send(peer, first))
            connected.send(peer, second)
            if (frames := received()) == pack(first):
                frames = received()
            assert frames == pack(second)
            k += 1
        assert bound.receive_nowait() is None
    finally:
        connected.close(0)
        bound.close(0)


def test_only_the_own_file_of_a_local_socket_is_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = router("ipc://s", bind=True)
    (tmp_path / "s").unlink()  # by a program that does not ask whether the address is in use
    second = router("ipc://s", bind=True)
    monkeypatch.chdir("/")
    first.close(0)
    assert (tmp_path / "s").is_socket()
    second.close(0)
    assert not (tmp_path / "s").exists()


def test_the_file_of_a_local_socket_is_removed_if_a_later_address_cannot_be_bound(tmp_path):
    with pytest.raises(OSError, match="cannot bind"):
        router(f"ipc://{tmp_path}/s", f"ipc://{tmp_path}/missing/s", bind=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names without files")
def test_a_file_that_is_called_like_an_abstract_socket_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"@{os.path.basename(tmp_path)}-{os.getpid()}"
    made = router(f"ipc://{path.name}", bind=True)
    path.touch()
    made.close(0)
    assert path.exists()


def test_who_connects_needs_the_one_key_of_that_peer():
    public, secret = zmq.curve_keypair()
    with pytest.raises(ValueError, match="holds 2 public keys of peers; to connect, keep only"):
        router("tcp://127.0.0.1:1", keys=Keys(public, secret, (public, public)))


def test_an_authenticator_that_cannot_be_started_is_stopped(monkeypatch):
    def refuse(thread):
        raise MemoryError

    monkeypatch.setattr(AuthenticationThread, "start", refuse)
    public, secret = zmq.curve_keypair()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(MemoryError):
        router("tcp://127.0.0.1:*", bind=True, keys=Keys(public, secret, (public,)))
    gc.collect()  # its finaliser would use a socket that is closed by now
    assert len(os.listdir("/proc/self/fd")) == before
