"""Skeletons: arrays at any depth stay beside the pickle, each once; what a receiver cannot find travels by value."""

import sys
import threading

import numpy as np
import pytest

from dataflow.system.pickling import dumps, loads
from dataflow.transport.nested_arrays import NestedUnpickler, ToConsumer, ToWorkers

DIRECTIONS = {
    "to the consumer": ToConsumer,
    "to forked workers": lambda: ToWorkers(forked=True, main=None),
    "to other workers": lambda: ToWorkers(forked=False, main=None),
}
each_direction = pytest.mark.parametrize("make", DIRECTIONS.values(), ids=DIRECTIONS)


def there(body, arrays):
    return NestedUnpickler(body, iter(arrays)).load()


@each_direction
def test_arrays_at_any_depth_stay_beside_the_pickle_each_once_and_in_order(make):
    first, second = np.arange(1000), np.ones((20, 30), "f4")
    body, arrays = make().nested({"a": [first, (second, {"b": first})], "c": second})
    assert len(arrays) == 2 and arrays[0] is first and arrays[1] is second
    assert len(body) < first.nbytes
    copy = there(body, [array.copy() for array in arrays])
    assert (copy["a"][0] == first).all() and (copy["c"] == second).all()
    assert copy["a"][1][1]["b"] is copy["a"][0] and copy["a"][1][0] is copy["c"]


@each_direction
def test_what_is_no_plain_array_is_in_the_pickle(make):
    sent = [np.array([{"any": "thing"}], object), np.ma.masked_equal([1, 2], 2), np.float32(5)]
    body, arrays = make().nested(sent)
    objects, masked, number = there(body, arrays)
    assert all(type(array) is np.ndarray and array.dtype != object for array in arrays)
    assert objects.tolist() == [{"any": "thing"}] and masked.tolist() == [1, None]
    assert type(number) is np.float32 and number == 5


@each_direction
def test_an_array_of_objects_may_hold_arrays(make):
    inner = np.arange(500)
    outer = np.empty(2, object)
    outer[:] = [inner, None]
    body, arrays = make().nested([outer])
    assert arrays[0] is inner
    assert there(body, arrays)[0][0] is inner


@each_direction
def test_numpys_texts_keep_their_zeros_at_the_end(make):
    texts = [np.str_("a\0\0"), np.bytes_(b"b\0"), np.str_("")]
    for body, arrays in (make().nested([texts]), (make().complete([texts]), []), (make().quick([texts], 3), [])):
        (copy,) = there(body, arrays)
        assert copy == texts and [len(text) for text in copy] == [3, 2, 0]
        assert [type(text) for text in copy] == [np.str_, np.bytes_, np.str_]


@each_direction
def test_what_came_by_value_is_sent_too_and_its_arrays_beside(make):
    class Local:
        def __init__(self, array):
            self.array = array

    sent = loads(dumps(Local(np.arange(1000))))
    body, arrays = make().nested([sent])
    assert arrays[0] is sent.array
    (copy,) = there(body, arrays)
    assert type(copy).__name__ == "Local" and copy.array is sent.array


@each_direction
def test_what_cannot_be_pickled_raises(make):
    for send in (make().nested, make().complete):
        with pytest.raises(TypeError, match="lock"):
            send([np.zeros(3), threading.Lock()])


class OfMain:
    """As if the main program had defined it."""

    __module__ = "__main__"


@pytest.mark.parametrize("name", ["quick", "nested"])
def test_a_class_of_the_main_program_goes_by_its_name_to_forked_workers_alone(name, monkeypatch):
    def sent(direction):
        return direction.quick([OfMain()], 3) if name == "quick" else direction.nested([OfMain()])[0]

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["__main__"], "OfMain", OfMain, raising=False)
        by_name, by_value = sent(ToWorkers(forked=True, main=None)), sent(ToWorkers(forked=False, main=None))
        assert type(there(by_name, [])[0]) is OfMain
    assert b"c__main__\nOfMain\n" in by_name and b"c__main__\n" not in by_value
    assert type(there(by_value, [])[0]).__name__ == "OfMain"
