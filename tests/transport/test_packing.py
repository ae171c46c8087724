"""Values to codes: what a datapoint becomes in msgpack and beside it; what has no code is refused, and named."""

import collections
import threading

import msgpack
import numpy as np
import pytest

from dataflow import NotStorable
from dataflow.transport import packing
from dataflow.transport.packing import MAX_SIZELESS, Code, pack


def codes_in(skeleton):
    """The extension types of a list, in order."""
    return [value.code if isinstance(value, msgpack.ExtType) else None for value in msgpack.unpackb(skeleton)]


def test_arrays_stay_beside_in_the_order_in_which_they_are_named():
    first, second, third = np.arange(3), np.zeros((2, 2), "f4"), np.ones(5, "u1")
    skeleton, arrays = pack([first, {"deep": (second,)}, third])
    assert all(found is array for found, array in zip(arrays, [first, second, third], strict=True))
    assert codes_in(skeleton) == [Code.ARRAY, None, Code.ARRAY]
    assert third.tobytes() not in skeleton


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (7, None),
        (2**64 - 1, None),
        (-(2**63), None),
        (2**64, Code.INTEGER),
        (-(2**63) - 1, Code.INTEGER),
        (True, None),
        ("text", None),
        (b"bytes", None),
        ([1], None),
        ((1,), Code.TUPLE),
        (1j, Code.COMPLEX),
        (np.float32(1), Code.SCALAR),
        (np.str_("a\0"), Code.SCALAR),
        (bytearray(2), Code.BYTEARRAY),
        ({1}, Code.SET),
        (frozenset({1}), Code.FROZENSET),
    ],
    ids=repr,
)
def test_what_msgpack_lacks_has_a_code(value, code):
    assert codes_in(pack([value]).skeleton) == [code]


Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("value", "described"),
    [
        (object(), "of type object,"),
        (Pair(1, 2), r"of type .*\.Pair,"),
        (np.array([None]), r"an array of Python objects \(object\),"),
        (np.ma.masked_equal([1, 2], 2), r"of type numpy\.ma\.[\w.]*MaskedArray,"),
    ],
    ids=["object", "named tuple", "array of objects", "masked array"],
)
def test_what_has_no_code_is_pickled_only_if_that_is_asked_for(value, described):
    with pytest.raises(NotStorable, match=f"^component 0 / 'key' / 1 is {described} which has no form on disk"):
        pack([{"key": (0, value)}])
    assert codes_in(pack([value], pickled=True).skeleton) == [Code.PICKLE]


def test_what_cannot_be_pickled_either_is_named():
    with pytest.raises(NotStorable, match=r"^component 1 is of type _thread\.lock, which cannot be pickled") as caught:
        pack([0, threading.Lock()], pickled=True)
    assert isinstance(caught.value.__cause__, TypeError)


def test_more_elements_without_a_size_than_the_reader_takes_are_refused_by_the_writer():
    with pytest.raises(NotStorable, match=r"component 1 has 1048577 elements without a size.*Store its shape"):
        pack([0, np.ndarray((MAX_SIZELESS + 1,), "V0", bytearray(1))])


def test_what_msgpack_cannot_hold_is_not_storable(monkeypatch):
    def refuse(*_):
        raise ValueError("bytes object is too large")

    monkeypatch.setattr(packing, "_dumps", refuse)
    with pytest.raises(NotStorable, match="a datapoint of type list cannot be stored: bytes object is too large"):
        pack([1])
