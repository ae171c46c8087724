"""Flows from elsewhere, with real sockets on this machine."""

import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import zmq

from dataflow import (
    BatchData,
    DataFlow,
    DataFlowTerminated,
    DataFromGenerator,
    DataFromIterable,
    MapData,
    MultiProcessRunnerZMQ,
    NotReentrant,
    NotStorable,
    ReceiverLost,
    RemoteDataZMQ,
    RepeatedData,
    SenderLost,
    TimeoutError,
    send_dataflow_zmq,
)
from dataflow.remote import receiving
from dataflow.remote.receiving import ReceivingSocket
from tests.support.faults import deadline
from tests.support.forks import in_child
from tests.support.pauses import Gate, patiently, taken_patiently
from tests.support.products import covering
from tests.support.senders import LOOPBACK, ROOT, Sending, numbers, sending_process
from tests.support.stacks import is_inside
from tests.support.waits import LIMIT, wait_until


def receiver(num_senders=1, address=LOOPBACK, **options):
    df = RemoteDataZMQ(address, num_senders=num_senders, **{"timeout": LIMIT, **options})
    df.reset_state()
    return df


# -- passes ------------------------------------------------------------------------------------------------------------


def test_a_pass_arrives_in_order_and_ends_exactly():
    with receiver() as df:
        sending = Sending(numbers(3000), df.addresses[0])
        assert [k for (k,) in df] == list(range(3000))
        assert sending.wait_result() == 3000


def test_each_call_sends_one_pass():
    with receiver() as df:
        for start in (0, 100):
            sending = Sending(numbers(50, start), df.addresses[0])
            assert [k for (k,) in df] == list(range(start, start + 50))
            assert sending.wait_result() == 50


def test_several_senders_make_one_pass_and_each_keeps_its_order():
    with receiver(3) as df:
        sizes = [10, 500, 200]
        senders = [Sending(numbers(size, 1000 * k), df.addresses[0]) for k, size in enumerate(sizes)]
        found = [k for (k,) in df]
        assert sorted(found) == [1000 * k + i for k, size in enumerate(sizes) for i in range(size)]
        for k in range(3):
            ours = [value for value in found if value // 1000 == k]
            assert ours == sorted(ours)
        assert [sending.wait_result() for sending in senders] == sizes


def test_a_pass_with_nothing_in_it_ends():
    with receiver() as df:
        sending = Sending(DataFromIterable([]), df.addresses[0])
        assert list(df) == []
        assert sending.wait_result() == 0


def test_a_fast_sender_does_not_send_two_passes_in_one():
    class Twice(Sending):
        def _send(self, df, address, **options):
            super()._send(df, address, **options)
            super()._send(df, address, **options)

    with receiver(2) as df:
        senders = [Twice(numbers(5), df.addresses[0])]
        stream = iter(df)
        first = [next(stream) for _ in range(5)]
        receiving = df._df_state.resource
        registry = receiving.registry

        def second_call_has_come():
            assert list(receiving.receive()) == []
            return registry.describe() == "1 of 2 senders have come, 1 have ended; 1 wait for the next pass"

        wait_until(second_call_has_come, LIMIT, registry.describe)
        senders.append(Twice(numbers(5, 100), df.addresses[0]))
        expected = [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]
        assert sorted(k for (k,) in [*first, *stream]) == expected
        assert sorted(k for (k,) in df) == expected
        assert [sending.wait_result() for sending in senders] == [5, 5]


def test_who_comes_too_early_is_in_the_next_pass():
    with receiver(heartbeat=0.5) as df:
        first = Sending(DataFromIterable([[0]] * 20), df.addresses[0], heartbeat=0.5)
        stream = iter(df)
        next(stream)
        second = Sending(DataFromIterable([[1]] * 20), df.addresses[0], heartbeat=0.5)
        assert [k for (k,) in stream] == [0] * 19
        assert first.wait_result() == 20
        assert [k for (k,) in df] == [1] * 20
        assert second.wait_result() == 20


def test_a_socket_file_is_an_address_too_and_is_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket has to be short
    with receiver(address="ipc://s", hwm=1) as df:
        sending = Sending(numbers(50), "ipc://s", hwm=1)
        assert len(list(df)) == 50
        assert sending.wait_result() == 50
    assert not list(tmp_path.iterdir())


def test_two_addresses_are_one_flow(free_address):
    with RemoteDataZMQ(LOOPBACK, free_address, num_senders=2, timeout=LIMIT) as df:
        df.reset_state()
        assert df.addresses[1] == free_address
        senders = [Sending(numbers(5), address) for address in df.addresses]
        assert len(list(df)) == 10
        assert [sending.wait_result() for sending in senders] == [5, 5]


@pytest.mark.parametrize("sender_first", [True, False])
def test_the_sender_may_be_the_one_who_is_bound(sender_first, free_address):
    df = RemoteDataZMQ(free_address, bind=False, num_senders=1, timeout=LIMIT, heartbeat=0.5)
    with df:
        if not sender_first:
            df.reset_state()
        for start in (0, 10):  # the next call binds again
            sending = Sending(numbers(5, start), free_address, bind=True, heartbeat=0.5)
            assert [k for (k,) in df] == list(range(start, start + 5))
            assert sending.wait_result() == 5


def test_without_a_number_passes_do_not_end():
    with receiver(None) as df:
        assert df._df_endless
        sending = Sending(RepeatedData(numbers(3), -1), df.addresses[0])
        assert [k for (k,) in itertools.islice(df, 7)] == [0, 1, 2, 0, 1, 2, 0]
    assert sending.wait_result() >= 7  # closed: the sender ends, and says how many were taken


def test_a_pass_broken_off_goes_on_in_the_next_loop():
    with receiver() as df:
        sending = Sending(numbers(100), df.addresses[0])
        assert [k for (k,) in itertools.islice(df, 10)] == list(range(10))
        assert [k for (k,) in df] == list(range(10, 100))
        assert sending.wait_result() == 100


def test_arrays_arrive_writable_and_as_they_were_at_the_yield():
    def reused():
        image = np.zeros((300, 300), np.float32)
        for k in range(20):
            image[:] = k
            yield [image, k]

    with receiver() as df:
        sending = Sending(DataFromGenerator(reused), df.addresses[0])
        for image, k in list(df):
            assert (image == k).all()
            image += 1
        assert sending.wait_result() == 20


def test_the_receiver_can_be_pickled_and_its_copy_opens_its_own_socket():
    with receiver() as df, pickle.loads(pickle.dumps(df)) as copy:
        copy.reset_state()
        assert copy.addresses and copy.addresses != df.addresses


def test_the_old_order_of_parameters_holds():
    df = RemoteDataZMQ("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", 7, False)
    assert (df.hwm, df.bind) == (7, False)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_senders": 0}, "num_senders must be an integer ≥ 1"),
        ({"hwm": 0}, "hwm must be an integer ≥ 1"),
        ({"hwm_bytes": 10}, "hwm_bytes must be an integer ≥ 65536"),
        ({"heartbeat": 0}, "heartbeat is from 0.05 to 600 seconds"),
        ({"timeout": -1}, "timeout must be a number of seconds > 0"),
    ],
)
def test_a_wrong_argument_is_named(options, text):
    with pytest.raises(ValueError, match=text):
        RemoteDataZMQ(LOOPBACK, **options)
    if "num_senders" not in options:
        with pytest.raises(ValueError, match=text):
            send_dataflow_zmq(numbers(1), LOOPBACK, **options)


def test_what_is_no_flow_or_another_format_is_refused():
    with pytest.raises(TypeError, match="wrap df in DataFromList"):
        send_dataflow_zmq([[1]], LOOPBACK)
    with pytest.raises(ValueError, match="there is one format"):
        send_dataflow_zmq(numbers(1), LOOPBACK, format="zmq_ops")


def test_an_address_in_use_is_named_with_the_cure():
    with receiver() as df, pytest.raises(OSError, match=r"cannot bind to .* in use.*tcp://127\.0\.0\.1:\*"):
        RemoteDataZMQ(df.addresses[0]).reset_state()


def test_a_flow_with_workers_is_sent():
    with receiver() as df, MultiProcessRunnerZMQ(numbers(100), num_proc=1, context="forkserver") as workers:
        sending = Sending(workers, df.addresses[0])
        assert [k for (k,) in df] == list(range(100))
        assert sending.wait_result() == 100


def test_a_worker_may_be_the_one_who_receives(free_address):
    remote = RemoteDataZMQ(free_address, num_senders=1, timeout=LIMIT)
    sending = Sending(RepeatedData(numbers(10), -1), free_address, timeout=2 * LIMIT)
    with MultiProcessRunnerZMQ(remote, num_proc=1, timeout=LIMIT) as df:
        assert [k for (k,) in itertools.islice(df, 12)] == [*range(10), 0, 1]
    lost = sending.wait_result()  # a worker that is stopped may have had time to say so, or not
    assert isinstance(lost, int | ReceiverLost)


# -- how far senders run ahead -----------------------------------------------------------------------------------------


class Counted(DataFlow):
    def __init__(self, nbytes):
        self.nbytes = nbytes
        self.made = 0

    def __iter__(self):
        while True:
            self.made += 1
            yield [np.zeros(self.nbytes, np.uint8)]


def made_ahead(df, flow, **options):
    """How many datapoints are made for a consumer that takes one, and then none."""
    sending = Sending(flow, df.addresses[0], **options)
    stream = iter(df)
    next(stream)
    made = -1

    def settled():
        nonlocal made
        before, made = made, flow.made
        time.sleep(0.2)
        return flow.made == made == before

    wait_until(settled, LIMIT, "the sender runs on and on")
    df.close()
    sending.wait_result()
    return made


def test_bytes_under_way_are_bounded_at_both_ends_together():
    with receiver(None, hwm=1000, hwm_bytes=10 << 20) as df:
        assert made_ahead(df, Counted(1 << 20)) <= 10 + 2 + 4  # what is in hand; a message that was begun


@pytest.mark.parametrize("side", ["receiver", "sender", "both"])
def test_datapoints_under_way_are_bounded(side):
    options = {"hwm": 5}
    theirs = options if side != "sender" else {}
    ours = {"sender": options, "receiver": {}, "both": {"hwm": 9}}[side]
    with receiver(None, **theirs) as df:
        assert made_ahead(df, Counted(1), **ours) <= 2 * 5 + 2


def test_a_datapoint_that_is_too_large_for_the_receiver_is_refused_by_the_sender():
    with receiver(hwm_bytes=1 << 20) as df:
        sending = Sending(DataFromIterable([[np.zeros(2 << 20, np.uint8)]]), df.addresses[0])
        with pytest.raises(SenderLost, match="Raise hwm_bytes of the receiver"):
            list(df)
        assert isinstance(sending.wait_result(), ValueError)


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_flow_that_raises_is_told_to_both_sides_after_what_it_had_made():
    def broken():
        yield from ([k] for k in range(5))
        raise KeyError("no such file")

    with receiver() as df:
        sending = Sending(DataFromGenerator(broken), df.addresses[0])
        found = []
        with pytest.raises(SenderLost, match="its flow raised KeyError: 'no such file'") as lost:
            found.extend(df)
        assert len(found) == lost.value.received == 5
        assert lost.value.announced is None
        assert isinstance(sending.wait_result(), KeyError)


def test_an_unsendable_datapoint_is_named_to_both_sides():
    with receiver() as df:
        sending = Sending(DataFromIterable([[1], [2, {3: object()}]]), df.addresses[0])
        with pytest.raises(SenderLost, match="component 1 / 3"):
            list(df)
        error = sending.wait_result()
        assert isinstance(error, NotStorable)
        assert "datapoint 1 of the pass, component 1" in error.__notes__[0]


NUMBERS = "RepeatedData(DataFromList([[k] for k in range(100)], shuffle=False), -1)"
MANY = f"FixedSizeData(MapData({NUMBERS}, lambda dp: time.sleep(0.002) or dp), 100_000)"


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.full)])
def test_a_lost_sender_raises_within_its_heartbeats_and_says_what_it_had_announced(end):
    with receiver(2, heartbeat=0.5) as df, sending_process(df.addresses[0], MANY, "heartbeat=0.5") as process:
        honest = Sending(RepeatedData(numbers(10), -1), df.addresses[0])
        stream = iter(df)
        next(dp for dp in stream if dp[0] >= 10)
        process.send_signal(end)
        with (
            deadline(LIMIT),
            pytest.raises(SenderLost, match=rf"\(pid {process.pid}\) is lost: no message came.*of the 100000") as lost,
        ):
            for _ in stream:
                pass
        assert lost.value.announced == 100_000
        assert lost.value.received > 0
        result = honest.wait_result()
        assert isinstance(result, ReceiverLost) and "it has failed with SenderLost" in str(result)


@pytest.mark.full
def test_with_the_heartbeat_that_is_the_default_a_killed_sender_is_known():
    with receiver(1) as df, sending_process(df.addresses[0], MANY) as process:
        stream = iter(df)
        next(stream)
        process.kill()
        with deadline(LIMIT), pytest.raises(SenderLost):
            for _ in stream:
                pass


def test_a_failed_flow_says_what_was_before_and_starts_afresh():
    with receiver() as df:
        broken = Sending(MapData(numbers(3), lambda dp: 1 / 0), df.addresses[0])
        with pytest.raises(SenderLost):
            list(df)
        assert isinstance(broken.wait_result(), ZeroDivisionError)
        with pytest.raises(DataFlowTerminated, match=r"has failed before, with .*ZeroDivisionError.*reset_state"):
            list(df)
        df.reset_state()
        sending = Sending(numbers(3), df.addresses[0])
        assert len(list(df)) == 3
        sending.wait_result()


def test_a_slow_flow_gives_signs_of_life():
    def slow():
        yield [0]
        enough = receiving._now + 3.5 * 0.5  # as the receiver counts; who is silent for three heartbeats is lost
        wait_until(lambda: receiving._now > enough, LIMIT, "the receiver does not wait")
        yield [1]

    with receiver() as df:
        receiving = df._df_state.resource
        sending = Sending(DataFromGenerator(slow), df.addresses[0], heartbeat=0.5)
        assert list(df) == [[0], [1]]
        assert sending.wait_result() == 2


def test_a_consumer_that_stays_away_longer_than_all_heartbeats_blames_nobody():
    with receiver(heartbeat=0.3) as df:
        sending = Sending(numbers(5000), df.addresses[0], heartbeat=0.3, hwm=50)
        for count, _ in enumerate(df):
            if count % 2000 == 1000:
                time.sleep(1.1)
        assert sending.wait_result() == 5000


def test_a_receiver_that_is_not_there_is_named_when_the_time_is_over(free_address):
    with pytest.raises(TimeoutError, match=r"no receiver at tcp://.* within 0\.3 seconds: no answer has come"):
        send_dataflow_zmq(numbers(1), free_address, timeout=0.3)
    with pytest.raises(TimeoutError, match=r"no receiver at tcp://.* within 0\.3 seconds: no answer has come"):
        send_dataflow_zmq(numbers(1), LOOPBACK, bind=True, timeout=0.3)


def test_a_connection_that_breaks_before_an_answer_is_named_when_the_time_is_over(free_address):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as other:
        other.bind(free_address)
        sending = Sending(numbers(1), free_address, timeout=2)
        other.recv_multipart()  # so they are connected
        other.close(linger=0)
        late = sending.wait_result()
    assert isinstance(late, TimeoutError) and "2 seconds: the connection broke before an answer came" in str(late)


def test_a_receiver_that_takes_nothing_is_named_when_the_time_is_over(waiting):
    waiting(welcome=LIMIT, answer=0.5)
    with receiver() as df:
        sending = Sending(RepeatedData(numbers(10), -1), df.addresses[0])
        next(iter(df))
        late = sending.wait_result()
        assert isinstance(late, TimeoutError) and "has taken nothing for 0.5 seconds" in str(late)


def test_no_datapoint_in_time_says_who_is_there_and_the_flow_stays_usable():
    with receiver(timeout=0.3) as df:
        with pytest.raises(TimeoutError, match=r"for 0\.3 seconds \(0 of 1 senders have come"):
            list(df)
        df.timeout = LIMIT
        sending = Sending(numbers(3), df.addresses[0])
        assert len(list(df)) == 3
        sending.wait_result()


def test_a_loop_that_goes_on_has_the_timeout_of_now():
    with receiver(timeout=0.01) as df:
        for timeout in (0.01, 0.02, 0.03):
            df.timeout = timeout
            with pytest.raises(TimeoutError, match=f"for {timeout} seconds"):
                list(df)
        df.timeout = None
        sending = Sending(numbers(3), df.addresses[0])
        assert len(list(df)) == 3
        sending.wait_result()


@pytest.mark.parametrize(("num_senders", "at"), covering([1, 2, None], [0, 7]))
def test_an_iterator_waits_again_and_nothing_is_lost(num_senders, at, tmp_path):
    gate, num = Gate(tmp_path / "open", at), 20
    with receiver(num_senders, timeout=0.1) as df:
        senders = [Sending(MapData(numbers(num), gate), df.addresses[0]) for _ in range(num_senders or 1)]
        batches = iter(BatchData(df, 5))
        found = taken_patiently(batches, num * len(senders) // 5, gate.open)
        if num_senders is None:
            for _ in range(2):
                with pytest.raises(TimeoutError, match=r"0\.1 seconds"):
                    next(batches)
        else:
            assert patiently(batches)[0] == []
        assert sorted(k for (batch,) in found for k in batch) == sorted([*range(num)] * len(senders))
        assert [sending.wait_result() for sending in senders] == [num] * len(senders)


@pytest.mark.parametrize("bind", [True, False])
def test_a_receiver_process_that_is_killed_ends_its_sender(bind, free_address):
    flow = f"RemoteDataZMQ({free_address!r}, bind={bind}, heartbeat=0.5)"
    code = f"from dataflow import RemoteDataZMQ\nfor dp in {flow}: print(dp, flush=True)"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    slow = MapData(RepeatedData(numbers(10), -1), lambda dp: time.sleep(0.002) or dp)
    sending = Sending(slow, free_address, bind=not bind, heartbeat=0.5, timeout=2 * LIMIT)
    process.stdout.readline()
    process.kill()
    process.communicate()
    lost = sending.wait_result()
    assert isinstance(lost, ReceiverLost) and "the connection has broken" in str(lost) and not lost.closed


# -- closing, threads, forks -------------------------------------------------------------------------------------------


def test_closing_from_another_thread_ends_a_wait():
    df = receiver(timeout=None)

    def close():
        wait_until(lambda: is_inside(threading.main_thread(), ReceivingSocket.receive), LIMIT, "nobody waits")
        df.close()

    closing = threading.Thread(target=close)
    closing.start()
    with deadline(2 * LIMIT), pytest.raises(DataFlowTerminated, match="iterate it again"):
        next(iter(df))
    closing.join()


def test_a_closed_flow_can_be_iterated_again(free_address):
    df = receiver(address=free_address)
    for _ in range(2):
        sending = Sending(numbers(3), free_address)
        assert len(list(df)) == 3
        sending.wait_result()
        df.close()


def test_the_later_of_two_loops_goes_on_and_no_datapoint_is_lost():
    with receiver() as df:
        sending = Sending(numbers(1000), df.addresses[0])
        first = iter(df)
        found = [next(first) for _ in range(10)]
        second = iter(df)
        found.append(next(second))
        with pytest.raises(NotReentrant):
            next(first)
        found.extend(second)
        assert [k for (k,) in found] == list(range(1000))
        sending.wait_result()


def test_a_forked_child_opens_its_own_socket_and_leaves_ours_alone(free_address):
    with receiver() as df:
        stream = iter(df)
        sending = Sending(numbers(100), df.addresses[0])
        next(stream)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                df.close()  # that of the child, which has opened nothing
                with pytest.raises(DataFlowTerminated, match="from which this process was forked"):
                    list(stream)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(list(stream)) == 99
        assert sending.wait_result() == 100


def test_a_process_can_fork_while_somebody_receives():
    with receiver() as df:
        sending = Sending(numbers(100), df.addresses[0])
        stream = iter(df)
        next(stream)
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join()
        assert child.exitcode == 0
        assert len(list(stream)) == 99
        sending.wait_result()


def test_a_loop_keeps_a_flow_that_nobody_else_holds(free_address):
    sending = Sending(numbers(10), free_address)
    assert [k for (k,) in RemoteDataZMQ(free_address, num_senders=1, timeout=LIMIT)] == list(range(10))
    assert sending.wait_result() == 10


def test_a_flow_that_nobody_holds_closes_its_socket(free_address):
    df = receiver(address=free_address)
    next(iter([df]))
    del df
    receiver(address=free_address).close()


# -- forked children ---------------------------------------------------------------------------------------------------


def test_a_child_of_the_receiver_cannot_go_on_for_it():
    got, said = [], set()
    with receiver() as df, deadline(4 * LIMIT):
        sending = Sending(numbers(3000), df.addresses[0])
        iterator = iter(df)
        for (k,) in iterator:
            if k in {100, 101, 2000}:
                said.add(in_child(lambda: next(iterator)))
            got.append(k)
        assert sending.wait_result() == 3000
    assert got == list(range(3000))
    assert [reported.split(":")[0] for reported in said] == ["DataFlowTerminated"]


@pytest.mark.parametrize("how", ["raise", "go on"])
def test_a_child_that_a_sender_forks_cannot_send_for_it(how):
    code = f"""
import os, sys
from dataflow import DataFromList, MapData, send_dataflow_zmq
parent = os.getpid()
def fork(dp):
    if dp[0] in (50, 51, 200) and os.getpid() == parent:
        pid = os.fork()
        if pid == 0:
            if {how!r} == "raise":
                raise KeyError("in the child")
            return [-7]
        os.waitpid(pid, 0)
    return dp
df = MapData(DataFromList([[k] for k in range(300)], shuffle=False), fork)
try:
    print(send_dataflow_zmq(df, ADDRESS, timeout={LIMIT}))
except BaseException as error:
    print(type(error).__name__, "in the parent" if os.getpid() == parent else "in the child", flush=True)
    if os.getpid() != parent:
        os._exit(0)
    raise
"""
    with receiver() as df, deadline(4 * LIMIT):
        process = subprocess.Popen(
            [sys.executable, "-c", code.replace("ADDRESS", repr(df.addresses[0]))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert [k for (k,) in df] == list(range(300))
        out, _ = process.communicate(timeout=LIMIT)
    kind = "KeyError" if how == "raise" else "DataFlowTerminated"
    assert out.splitlines() == [f"{kind} in the child"] * 3 + ["300"]


def test_what_is_assigned_before_the_socket_is_opened_counts():
    with RemoteDataZMQ(LOOPBACK, num_senders=1) as df:
        df.addr1 = "tcp://127.0.0.2:*"
        df.reset_state()
        assert df.addresses[0].startswith("tcp://127.0.0.2:")
        df.close()
        df.addr1 = "tcp://0.0.0.0:*"
        with pytest.raises(ValueError, match="RemoteDataZMQ"):  # as in the constructor
            df.reset_state()


# -- peers that are none of ours ---------------------------------------------------------------------------------------


class Consuming:
    """A loop over a receiver in a thread of its own."""

    def __init__(self, df):
        self.found = []
        self._thread = threading.Thread(target=self._run, args=(df,))
        self._thread.start()

    def _run(self, df):
        try:
            for (k,) in df:
                self.found.append(k)
        except DataFlowTerminated:
            pass

    def join(self):
        self._thread.join(LIMIT)
        assert not self._thread.is_alive(), "the receiver hangs"


@pytest.mark.parametrize("kind", [zmq.PUSH, zmq.PUB, zmq.REQ, None], ids=["push", "pub", "req", "nobody"])
def test_a_receiver_logs_once_that_no_sender_of_ours_has_come(kind, soon, warnings_of):
    with RemoteDataZMQ(LOOPBACK) as df, zmq.Context() as context:
        df.reset_state()
        peer = None
        if kind is not None:
            peer = context.socket(kind)
            peer.setsockopt(zmq.LINGER, 0)
            peer.setsockopt(zmq.SNDTIMEO, 1000)
            peer.connect(df.addresses[0])
            peer.send(pickle.dumps([1, 2]))  # as tensorpack's sender does
        consuming = Consuming(df)
        wait_until(lambda: warnings_of(receiving), LIMIT, "nothing was logged")
        sending = Sending(numbers(5), df.addresses[0])
        wait_until(lambda: len(consuming.found) == 5, LIMIT, "an honest sender is not served")
        assert sending.wait_result() == 5
        if peer is not None:
            peer.close()
        address = df.addresses[0]
        df.close()
        consuming.join()
    (message,) = warnings_of(receiving)
    for part in (address, "0.2 seconds", "send_dataflow_zmq", "tensorpack", "curve=", "timeout="):
        assert part in message


def test_a_receiver_of_ours_that_has_met_a_sender_logs_nothing(soon, warnings_of):
    with RemoteDataZMQ(LOOPBACK, timeout=3 * soon) as df:
        df.reset_state()
        sending = Sending(numbers(3), df.addresses[0])
        found = []
        with pytest.raises(TimeoutError):
            found.extend(df)
        assert sending.wait_result() == 3
    assert not warnings_of(receiving)


def test_a_receiver_that_is_given_time_logs_nothing(warnings_of):
    with RemoteDataZMQ(LOOPBACK, timeout=0.2) as df, pytest.raises(TimeoutError):
        next(iter(df))
    assert not warnings_of(receiving)
