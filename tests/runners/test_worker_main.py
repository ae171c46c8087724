"""What is sent to a worker: by value what only lives here, and a complaint that names what cannot be sent."""

import threading
import types
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

from dataflow import DataFlow, JoinData, NotPicklable, ProxyDataFlow
from dataflow.protocol.seeding import Stream
from dataflow.runners.jobs import Produce
from dataflow.runners.worker_main import FlowPayload
from tests.support.fakes import Numbers, runner


def travelled(value):
    return ForkingPickler.loads(ForkingPickler.dumps(FlowPayload(value))).load()


class Holds(ProxyDataFlow):
    def __init__(self, ds, thing):
        super().__init__(ds)
        self.thing = thing


def test_under_fork_the_object_itself_arrives():
    value = object()
    assert FlowPayload(value).load() is value


def test_lambdas_closures_and_local_classes_travel_by_value():
    factor = 3

    class Local:
        def scaled(self, k):
            return k * factor

    assert travelled(lambda k: k + factor)(1) == 4
    assert travelled(Local()).scaled(2) == 6


def test_a_flow_travels_as_it_is_and_unstarted():
    df = Holds(Numbers(3), np.arange(4))
    list(df)
    job = travelled(Produce(df, Stream(5, ((1, 2),)), 0))
    assert job.stream == Stream(5, ((1, 2),))
    assert job.flow.thing.tolist() == [0, 1, 2, 3] and list(job.flow) == [[0], [1], [2]]


@pytest.mark.parametrize("thing", [threading.Lock(), (k for k in ())], ids=["lock", "generator"])
@pytest.mark.parametrize("kind", ["process", "zmq"])
def test_what_cannot_be_sent_is_named_with_its_node_and_the_cure(kind, thing):
    df = runner((kind, "spawn"), lambda: Holds(Holds(Numbers(3), 1), thing))
    with pytest.raises(NotPicklable, match=r"Holds\.thing \(a \w+\) cannot be sent.*reset_state.*fork") as caught:
        next(iter(df))
    assert isinstance(caught.value, TypeError)
    df.close()


def test_under_fork_nothing_is_pickled():
    with runner(("zmq", "fork"), lambda: Holds(Numbers(2), threading.Lock())) as df:
        assert list(df) == [[0], [1]]


def test_the_node_below_a_list_of_inputs_is_named():
    df = runner(("zmq", "spawn"), lambda: JoinData([Numbers(3), Holds(Numbers(3), threading.Lock())]))
    with pytest.raises(NotPicklable, match=r"Holds\.thing .*cannot be sent"):
        next(iter(df))


class Several(DataFlow):
    """A user's node with inputs in a dict, and others that it does not show."""

    def __init__(self, shown, pairs):
        self.shown = shown
        self.pairs = pairs

    def __iter__(self):
        yield from ()


def test_the_node_below_a_dict_of_inputs_is_named():
    df = runner(("zmq", "spawn"), lambda: Several({"a": Holds(Numbers(3), threading.Lock())}, []))
    with pytest.raises(NotPicklable, match=r"Holds\.thing .*cannot be sent"):
        next(iter(df))


def test_an_attribute_with_flows_that_are_no_inputs_is_named_itself():
    df = runner(("zmq", "spawn"), lambda: Several({}, [(0.5, Holds(Numbers(3), threading.Lock()))]))
    with pytest.raises(NotPicklable, match=r"Several\.pairs \(a list\) cannot be sent"):
        next(iter(df))


def test_where_no_part_is_to_blame_the_error_itself_is_named():
    payload = FlowPayload.__new__(FlowPayload)
    text = payload.complaint(types.SimpleNamespace(worker_init=None), ValueError("all of it together"))
    assert text == "the flow cannot be sent to a worker process: all of it together"
