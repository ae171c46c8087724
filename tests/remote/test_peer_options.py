"""Addresses: what is one, and which may be bound without keys."""

from functools import partial

import pytest

from dataflow import RemoteDataZMQ, send_dataflow_zmq
from dataflow.remote.peer_options import HEARTBEAT, HWM_BYTES, check_options
from tests.support.senders import numbers

LOOPBACK = ["tcp://127.0.0.1:5", "tcp://127.8.8.8:*", "tcp://localhost:5", "tcp://[::1]:5", "ipc://x"]
OPEN = [
    "tcp://0.0.0.0:5",
    "tcp://*:5",
    "tcp://[::]:5",
    "tcp://10.0.0.1:5",
    "tcp://eth0:*",
    "tcp://host.example:5",
    "tcp://127.0.0.1.evil.example:5",
    "tcp://2130706433:5",
]


def check(address, *, curve=None, insecure=False):
    check_options(
        "me",
        [address],
        bind=True,
        hwm=None,
        hwm_bytes=HWM_BYTES,
        heartbeat=HEARTBEAT,
        timeout=None,
        curve=curve,
        insecure=insecure,
    )


@pytest.mark.parametrize("address", LOOPBACK)
def test_this_machine_alone_may_be_let_in_without_keys(address):
    check(address)


@pytest.mark.parametrize("address", OPEN)
def test_other_machines_are_let_in_with_keys_or_on_purpose_only(address):
    check(address, curve="keys")
    check(address, insecure=True)
    with pytest.raises(ValueError, match=r"python -m dataflow keys DIR .*insecure=True"):
        check(address)


@pytest.mark.parametrize("address", OPEN)
def test_binding_without_keys_is_refused_before_a_socket_is_made(address):
    with pytest.raises(ValueError, match=r"RemoteDataZMQ: .* can be reached from other machines"):
        RemoteDataZMQ(address)
    with pytest.raises(ValueError, match=r"RemoteDataZMQ: .* can be reached from other machines"):
        RemoteDataZMQ("tcp://127.0.0.1:*", address)
    with pytest.raises(ValueError, match=r"send_dataflow_zmq: .* can be reached from other machines"):
        send_dataflow_zmq(numbers(1), address, bind=True)
    RemoteDataZMQ(address, bind=False)  # connects, and lets nobody in
    RemoteDataZMQ(address, insecure=True)


def test_an_abstract_name_lets_in_every_user_and_so_needs_keys_too():
    for call in (RemoteDataZMQ, partial(send_dataflow_zmq, numbers(1))):
        for bind in (True, False):  # any of them may also have bound it, where this side connects
            with pytest.raises(ValueError, match=r"ipc://@name can be reached by every user .*ipc:///PATH.*curve=DIR"):
                call("ipc://@name", bind=bind)
    check("ipc://@name", curve="keys")
    RemoteDataZMQ("ipc://@name", insecure=True)
    RemoteDataZMQ("ipc://@name", bind=False, insecure=True)


@pytest.mark.parametrize("name", ["bind", "insecure"])
def test_text_is_no_flag(name):
    options = {"bind": True, name: "False"}
    for call in (RemoteDataZMQ, partial(send_dataflow_zmq, numbers(1))):
        with pytest.raises(TypeError, match=f"{name} must be True or False, got 'False'"):
            call("tcp://*:*", **options)


@pytest.mark.parametrize("address", ["", "127.0.0.1:5", "tcp://127.0.0.1", "tcp://:5", "tcp://h:99999", "ipc://", 5])
def test_what_is_no_address_is_refused_with_an_example(address):
    with pytest.raises(ValueError, match=r"such as tcp://127\.0\.0\.1:5555"):
        RemoteDataZMQ(address)
    with pytest.raises(ValueError, match=r"such as tcp://127\.0\.0\.1:5555"):
        send_dataflow_zmq(numbers(1), address)
