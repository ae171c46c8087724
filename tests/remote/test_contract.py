"""The receiver keeps the promises of all nodes, as far as those can be kept by what others send."""

import threading
import weakref
from contextlib import suppress

from dataflow import DataFromList, ReceiverLost, RemoteDataZMQ, TimeoutError, send_dataflow_zmq
from dataflow.protocol.state import state_of
from tests.support.contract import check_node
from tests.support.senders import LOOPBACK
from tests.support.waits import LIMIT


class Feeding:
    has_begun = False


class Fed(RemoteDataZMQ):
    """A receiver with a sender of its own, in a thread that sends pass after pass until nobody listens."""

    def reset_state(self):
        super().reset_state()
        if not state_of(self).part(Feeding).has_begun:
            state_of(self).part(Feeding).has_begun = True
            threading.Thread(target=send_for_ever, args=(self.addresses[0], weakref.ref(self)), daemon=True).start()

    def close(self):
        super().close()
        state_of(self).part(Feeding).has_begun = False


def send_for_ever(address, receiver):
    df = DataFromList([[k] for k in range(6)], shuffle=False)
    try:
        while receiver() is not None:
            with suppress(TimeoutError):  # nobody takes anything at present
                send_dataflow_zmq(df, address, timeout=1, heartbeat=0.5)
    except ReceiverLost:
        pass


def test_the_receiver_keeps_the_contract(waiting):
    waiting(welcome=1, answer=LIMIT)
    check_node(
        lambda: Fed(LOOPBACK, num_senders=1, timeout=LIMIT, heartbeat=0.5),
        source=True,
        stateful=True,
        addressable=False,
    )
