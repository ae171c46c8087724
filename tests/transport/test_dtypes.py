"""Properties of dtypes that equality ignores (metadata, alignment) stay with their own arrays."""

import itertools
import re
import threading

import numpy as np
import pytest

from dataflow import (
    BatchData,
    DataFromList,
    HDF5Data,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    RemoteDataZMQ,
    send_dataflow_zmq,
)
from dataflow.protocol.datapoint import stack
from dataflow.transport.dtypes import dtype_of
from dataflow.transport.message_layout import name_of
from tests.support.products import covering

h5py = pytest.importorskip("h5py")

PLAIN = np.dtype("i4")
MARKED = np.dtype("i4", metadata={"unit": "mm"})
OTHER = np.dtype("i4", metadata={"unit": "kg"})
ENUM = h5py.enum_dtype({"RED": 0, "GREEN": 1}, basetype="i4")
RECORD = np.dtype([("a", "i1"), ("b", "i4")], align=True)
RECORD_MARKED = np.dtype([("a", "i1"), ("b", MARKED)], align=True)
RECORD_UNALIGNED = np.dtype({"names": ["a", "b"], "formats": ["i1", "i4"], "offsets": [0, 4], "itemsize": 8})
NESTED = np.dtype([("c", RECORD_MARKED, (2,))])
NESTED_PLAIN = np.dtype([("c", RECORD, (2,))])
BIG = np.dtype(">i4", metadata={"unit": "mm"})
DTYPES = [
    PLAIN,
    MARKED,
    OTHER,
    ENUM,
    RECORD,
    RECORD_MARKED,
    RECORD_UNALIGNED,
    NESTED,
    NESTED_PLAIN,
    BIG,
    np.dtype(">i4"),
]


def said(dtype):
    """All that a dtype says, in a form that is equal for what is the same only."""
    if dtype.subdtype is not None:
        return "elements", said(dtype.base), dtype.shape
    fields = {name: (said(dtype[name]), dtype.fields[name][1]) for name in dtype.names or ()}
    return dtype.str, None if dtype.metadata is None else dict(dtype.metadata), dtype.isalignedstruct, fields


def test_the_dtypes_of_these_tests_are_equal_where_it_matters():
    assert PLAIN == MARKED == OTHER == ENUM and hash(PLAIN) == hash(MARKED)
    assert RECORD == RECORD_MARKED == RECORD_UNALIGNED and NESTED == NESTED_PLAIN
    assert len({repr(said(dtype)) for dtype in DTYPES}) == len(DTYPES)


def arrays(dtype, size):
    return [np.zeros(size, dtype), np.zeros((2, size), dtype).T, np.zeros((), dtype), np.zeros((0, 2), dtype)]


def datapoints(size, order):
    """All dtypes side by side and one after the other, in components of their own and deeper."""
    some = list(itertools.permutations(DTYPES, 2)) if order is None else [(DTYPES[k], DTYPES[0]) for k in order]
    dps = [[np.zeros(size, one), np.zeros(size, other), k] for k, (one, other) in enumerate(some)]
    dps += [{"a": np.zeros(size, one), "b": [np.zeros(size, other)]} for one, other in some]
    dps += [[array] for one, _ in some for array in arrays(one, size)]
    return dps


def all_said(value):
    if isinstance(value, np.ndarray):
        return said(value.dtype), value.shape
    if isinstance(value, dict):
        return {key: all_said(item) for key, item in value.items()}
    return [all_said(item) for item in value] if isinstance(value, list) else value


RUNS = {
    "zmq": lambda df: MultiProcessRunnerZMQ(df, 1, timeout=60),
    "pipes": lambda df: MultiProcessRunner(df, 5, 1, timeout=60),
    "strict": lambda df: MultiProcessRunnerZMQ(df, 2, strict=True, timeout=60),
    "map": lambda df: MultiProcessMapData(df, 1, list_or_dict, strict=True, timeout=60),
}


def list_or_dict(dp):
    return dp


@pytest.mark.parametrize(("name", "size"), covering([*RUNS], [3, 5000]))
def test_a_dtype_arrives_with_its_own_arrays_only(name, size):
    dps = datapoints(size, None if size == 3 else range(len(DTYPES)))
    with RUNS[name](DataFromList(dps, shuffle=False)) as df:
        for found, expected in zip(df, dps, strict=True):
            assert all_said(found) == all_said(expected)


def test_names_differ_where_dtypes_do():
    for one, other in itertools.permutations(DTYPES, 2):
        assert name_of(one) != name_of(other)
    assert name_of(PLAIN) == "<i4" == name_of(np.dtype("int32"))


@pytest.mark.parametrize("name", ["(2,)<i4", "2i4", "|O"])
def test_a_name_that_none_of_our_dtypes_has_is_refused(name):
    with pytest.raises(ValueError, match=f"the dtype {re.escape(repr(name))}"):
        dtype_of(name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("first", [True, False])
def test_a_batch_has_metadata_only_if_all_of_its_arrays_have(dtype, first):
    plain = {PLAIN: PLAIN, RECORD: RECORD, NESTED: NESTED_PLAIN, BIG: np.dtype(">i4")}[dtype]
    column = [[np.zeros(2, dtype)], [np.zeros(2, plain)]]
    (mixed,) = stack(column if first else column[::-1])
    assert said(mixed.dtype)[1] is None and "mm" not in repr(said(mixed.dtype)) + repr(mixed.dtype.metadata)
    (same,) = stack([[np.zeros(2, dtype)], [np.zeros(2, dtype)]])
    assert said(same.dtype) == said(dtype)


def double(dp):
    return dp


def test_batches_of_workers_have_none_from_other_batches():
    dps = [[np.zeros(3, MARKED if k < 4 else PLAIN)] for k in range(8)]
    dps[3] = [np.zeros(3, PLAIN)]
    expected = [{"unit": "mm"}, None, None, None]
    flow = DataFromList(dps, shuffle=False)
    assert [dp[0].dtype.metadata for dp in BatchData(flow, 2)] == expected
    with MultiProcessMapAndBatchData(flow, 1, double, 2, strict=True, timeout=60) as df:
        assert [dp[0].dtype.metadata for dp in df] == expected


def test_the_network_gives_no_array_the_metadata_of_another():
    receiver = RemoteDataZMQ("tcp://127.0.0.1:*", num_senders=1, timeout=60)
    receiver.reset_state()
    dps = [[np.zeros(3, dtype)] for dtype in (MARKED, PLAIN, RECORD_MARKED, RECORD, PLAIN)]
    sender = threading.Thread(
        target=send_dataflow_zmq, args=(DataFromList(dps, shuffle=False), receiver.addresses[0]), daemon=True
    )
    sender.start()
    with receiver:
        found = [dp[0].dtype for dp in receiver]
    sender.join(60)
    assert found == [dp[0].dtype for dp in dps]
    assert found[1].metadata is None and found[3]["b"].metadata is None and found[4].metadata is None


def test_the_enum_of_a_dataset_is_that_of_its_rows_only(tmp_path):
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("enum", (4, 2), ENUM)
        file.create_dataset("plain", (4, 2), PLAIN)
    with HDF5Data(path, ["enum", "plain"], shuffle=False) as df:
        for one, other in df:
            assert h5py.check_enum_dtype(one.dtype) == {"RED": 0, "GREEN": 1} and other.dtype.metadata is None
        with MultiProcessRunnerZMQ(df, 1, timeout=60) as runner:
            assert [h5py.check_enum_dtype(array.dtype) for dp in runner for array in dp] == [
                {"RED": 0, "GREEN": 1},
                None,
            ] * 4
