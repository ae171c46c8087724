"""Key files, and which peers they let in."""

import gc
import os
import shutil
from contextlib import suppress

import numpy as np
import pytest
import zmq
import zmq.auth

from dataflow import DataFromIterable, ReceiverLost, RemoteDataZMQ, TimeoutError
from dataflow.remote.keys import RECEIVER, SENDER, load_keys, make_keys
from tests.support.senders import LOOPBACK, Sending, Stranger, numbers
from tests.support.waits import LIMIT

pytestmark = pytest.mark.skipif(not zmq.has("curve"), reason="this ZeroMQ was built without CURVE")


@pytest.fixture
def keys(tmp_path):
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_secret_keys_are_readable_by_their_owner_only_and_at_any_time(umask, tmp_path, monkeypatch):
    modes = []
    create = zmq.auth.create_certificates

    def created(folder, name):
        modes.append((folder / f"{name}.key_secret").stat().st_mode & 0o777)  # before anything is written
        return create(folder, name)

    monkeypatch.setattr(zmq.auth, "create_certificates", created)
    before = os.umask(umask)
    try:
        made = make_keys(tmp_path / "keys")
    finally:
        os.umask(before)
    assert modes == [0o600, 0o600]
    assert [path.stat().st_mode & 0o777 for path in made if path.suffix == ".key_secret"] == [0o600, 0o600]
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700


def test_keys_are_certificates_of_zmq_and_know_each_other(keys):
    assert zmq.auth.load_certificate(keys / "sender.key_secret")[0] == zmq.auth.load_certificate(keys / "sender.key")[0]
    assert len(zmq.auth.load_certificates(keys)) == 2
    ours, theirs = load_keys(keys, SENDER), load_keys(keys / "receiver.key_secret", RECEIVER)
    assert ours.peers == (theirs.public,) and theirs.peers == (ours.public,)
    assert len({ours.public, ours.secret, theirs.public, theirs.secret}) == 4


def test_keys_that_are_there_are_never_overwritten(keys):
    before = (keys / "sender.key_secret").read_text()
    (keys / "sender.key").unlink()
    (keys / "receiver.key").unlink()
    with pytest.raises(FileExistsError, match=r"sender\.key_secret exists already"):
        make_keys(keys)
    assert (keys / "sender.key_secret").read_text() == before
    assert not (keys / "receiver.key").exists()


def test_keys_are_not_written_through_a_link(tmp_path):
    (tmp_path / "sender.key_secret").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        make_keys(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_key_that_others_may_read_is_refused_with_the_cure(keys):
    (keys / "receiver.key_secret").chmod(0o640)
    with pytest.raises(PermissionError, match="chmod 600"):
        RemoteDataZMQ(LOOPBACK, curve=keys).reset_state()


def test_a_missing_key_is_reported_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="python -m dataflow keys DIR"):
        RemoteDataZMQ(LOOPBACK, curve=tmp_path).reset_state()


@pytest.mark.parametrize(
    "text",
    [
        *("", "public: x\n", "public-key", 'public-key = "x"', "\0\xff", "public-key = é", "secret-key = " + 40 * "a"),
        *(f"public-key = {40 * char}" for char in "~#é"),
        f"public-key = {40 * 'a'}\nsecret-key = {40 * '~'}",
    ],
)
@pytest.mark.parametrize("name", ["sender.key_secret", "receiver.key"])
def test_what_is_no_certificate_is_refused(text, name, keys):
    (keys / name).write_text(text, "utf-8")
    with pytest.raises(ValueError, match=r"key.* is not a certificate"):
        load_keys(keys, SENDER)


def test_a_public_key_in_place_of_a_secret_one_is_refused(keys):
    (keys / "receiver.key").chmod(0o600)
    with pytest.raises(ValueError, match=r"no secret key. Pass a file \*\.key_secret"):
        load_keys(keys / "receiver.key", RECEIVER)


@pytest.mark.parametrize(("name", "missing"), [(SENDER, "receiver.key"), (RECEIVER, "sender.key")])
def test_a_missing_peer_is_named(name, missing, keys):
    (keys / missing).unlink()
    with pytest.raises(FileNotFoundError, match=missing.partition(".")[0]):
        load_keys(keys, name)


@pytest.mark.parametrize("bind", [True, False])
def test_datapoints_travel_encrypted(bind, keys, free_address):
    address = LOOPBACK if bind else free_address
    with RemoteDataZMQ(address, bind=bind, num_senders=1, curve=keys, timeout=LIMIT) as df:
        df.reset_state()
        sending = Sending(numbers(100), (*df.addresses, address)[0], bind=not bind, curve=keys)
        assert [k for (k,) in df] == list(range(100))
        assert sending.wait_result() == 100


def test_large_arrays_travel_encrypted_and_arrive_writable(keys):
    images = [np.random.default_rng(k).random((500, 500)) for k in range(5)]
    with RemoteDataZMQ(LOOPBACK, num_senders=1, curve=keys, timeout=LIMIT) as df:
        df.reset_state()
        sending = Sending(DataFromIterable([[image] for image in images]), df.addresses[0], curve=keys)
        for (found,), image in zip(list(df), images, strict=True):
            assert (found == image).all() and found.flags.writeable
        assert sending.wait_result() == 5


def receive_from_friend_and(keys, intrude):
    """What arrives, and what became of an intruder that came first."""
    with RemoteDataZMQ(LOOPBACK, num_senders=1, curve=keys, timeout=0.6) as df:
        df.reset_state()
        intruder = intrude(df.addresses[0])
        with pytest.raises(TimeoutError, match="keys are those of this side"):
            next(iter(df))
        df.timeout = LIMIT
        friend = Sending(numbers(10), df.addresses[0], curve=keys)
        assert [k for (k,) in df] == list(range(10))
        assert friend.wait_result() == 10
        return intruder.wait_result()


def other_keys(keys, tmp_path, *, knows_receiver):
    make_keys(tmp_path / "others")
    if knows_receiver:
        shutil.copy(keys / "receiver.key", tmp_path / "others")
    return tmp_path / "others"


def test_an_unknown_sender_key_is_refused_and_told_why(keys, tmp_path):
    wrong = other_keys(keys, tmp_path, knows_receiver=True)
    lost = receive_from_friend_and(keys, lambda address: Sending(numbers(5), address, curve=wrong))
    assert isinstance(lost, ReceiverLost) and "copy our public" in str(lost) and not lost.closed


def test_a_wrong_receiver_key_ends_with_its_reason_when_the_time_is_over(keys, tmp_path):
    wrong = other_keys(keys, tmp_path, knows_receiver=False)
    late = receive_from_friend_and(keys, lambda address: Sending(numbers(5), address, curve=wrong, timeout=4))
    assert isinstance(late, TimeoutError) and "its key is not the public key" in str(late)


def test_a_sender_without_a_key_is_not_heard(keys):
    lost = receive_from_friend_and(keys, lambda address: Sending(numbers(5), address, timeout=1))
    assert isinstance(lost, ReceiverLost | TimeoutError)


def test_a_stranger_without_a_key_cannot_even_knock(keys):
    class Knocking(Stranger):
        def wait_result(self):
            assert not self.socket.poll(0)
            self.socket.setsockopt(zmq.LINGER, 0)
            self.close()

    def intrude(address):
        stranger = Knocking(address)
        stranger.socket.setsockopt(zmq.SNDTIMEO, 0)
        with suppress(zmq.Again):  # refused already: the connection is closed
            stranger.hello()
        return stranger

    receive_from_friend_and(keys, intrude)


def test_a_second_sender_key_is_let_in_by_one_more_file(keys, tmp_path):
    other = other_keys(keys, tmp_path, knows_receiver=True)
    shutil.copy(other / "sender.key", keys / "other.key")
    assert len(load_keys(keys, RECEIVER).peers) == 2
    with RemoteDataZMQ(LOOPBACK, num_senders=2, curve=keys, timeout=LIMIT) as df:
        df.reset_state()
        senders = [Sending(numbers(5), df.addresses[0], curve=path) for path in (keys / "sender.key_secret", other)]
        assert len(list(df)) == 10
        assert [sending.wait_result() for sending in senders] == [5, 5]


def test_a_forked_child_leaves_the_authenticator_of_its_parent_alone(keys):
    with RemoteDataZMQ(LOOPBACK, num_senders=1, curve=keys, timeout=LIMIT) as df:
        df.reset_state()
        pid = os.fork()
        if not pid:
            try:
                df.close()
                del df
                gc.collect()
            finally:
                os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        sending = Sending(numbers(10), df.addresses[0], curve=keys)
        assert [k for (k,) in df] == list(range(10))
        assert sending.wait_result() == 10
