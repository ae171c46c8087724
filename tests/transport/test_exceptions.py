"""Exceptions on their way: as they were where that is possible, else their type and text, never another error."""

import os
import pickle
import re
import subprocess
import sys
import traceback

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.errors import ShapeMismatch, WorkerDied, WorkerError, WorkerTraceback
from dataflow.transport.exceptions import pack_failure, unpack_failure


class TwoArguments(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class KeywordOnly(Exception):
    def __init__(self, *, path):
        super().__init__(f"no such thing: {path}")
        self.path = path


class Prefixes(Exception):
    """Loads without an error, with another text."""

    def __init__(self, text):
        super().__init__(f"sorry: {text}")


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Opaque:
    """Pickles well; its repr shows its address."""

    def __init__(self, value):
        self.value = value


class Disguised(Exception):
    """Pickles as something that is no exception."""

    def __reduce__(self):
        return os.getenv, ("HOME",)


class Gone(Exception):
    """Pickles where it is raised, and cannot be loaded where it arrives."""


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def travelled(error, note="raised in worker 1 of 2 of Runner"):
    return unpack_failure(pack_failure(raised(error), note=note))


FAITHFUL = [
    ValueError("a", 1, None),
    KeyError("k"),
    ZeroDivisionError(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    FileNotFoundError(2, "No such file or directory", "x.txt"),
    subprocess.CalledProcessError(3, ["ls"], b"out", b"err"),
    TwoArguments(7, "seven"),
    KeywordOnly(path="/x"),
    Prefixes("no"),
    Disguised("x"),
    ShapeMismatch("(2,) and (3,)"),
    WorkerDied("worker 0 died", worker=3, num_workers=4, pid=9, exitcode=-9),
    ExceptionGroup("several", [ValueError(1), TypeError("x")]),
    ValueError(np.arange(3)),
    KeyboardInterrupt("stop"),
    StopIteration(3),
    ImportError("no module", name="m", path="/p"),
]


@pytest.mark.parametrize("error", FAITHFUL, ids=lambda error: type(error).__name__)
def test_an_exception_arrives_as_it_was_raised(error):
    copy = travelled(error)
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert repr(copy.args) == repr(error.args)
    for name, value in vars(error).items():
        assert repr(getattr(copy, name)) == repr(value)


def test_attributes_that_an_exception_keeps_outside_its_dict_arrive():
    copy = travelled(FileNotFoundError(2, "No such file or directory", "x.txt"))
    assert (copy.errno, copy.filename) == (2, "x.txt")
    assert travelled(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")).reason == "bad"
    assert travelled(ImportError("no", name="m")).name == "m"


def test_arguments_that_have_no_speaking_repr_arrive_too():
    copy = travelled(ValueError(Opaque(5)))
    assert type(copy) is ValueError
    assert copy.args[0].value == 5


def local_error():
    class Local(Exception):
        pass

    return Local("from a function")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (local_error(), r"Local: from a function"),
        (ValueError("a lambda", lambda: 0), r"ValueError: \('a lambda', <function"),
        (raised(Unspeakable("x")), None),
    ],
    ids=["local class", "unpicklable argument", "no words"],
)
def test_what_does_not_survive_arrives_as_type_and_text(error, text):
    copy = travelled(error)
    if text is None:  # it pickles well: only its text is beyond us
        assert type(copy) is Unspeakable
    else:
        assert type(copy) is WorkerError
        assert re.search(text, str(copy))


def test_an_exception_that_neither_pickles_nor_speaks_still_arrives():
    class Both(Unspeakable):
        pass

    copy = travelled(Both("x"))
    assert type(copy) is WorkerError
    assert "Both: <str() of it raises RuntimeError>" in str(copy)


def test_the_cause_is_the_traceback_of_the_worker_and_the_note_says_whose():
    copy = travelled(TwoArguments(1, "x"), note="raised in worker 1 of 2 of Runner")
    assert type(copy.__cause__) is WorkerTraceback
    assert "in raised" in str(copy.__cause__)
    assert "TwoArguments: 1: x" in str(copy.__cause__)
    assert copy.__notes__ == ["raised in worker 1 of 2 of Runner"]
    assert travelled(local_error(), note="whose").__notes__ == ["whose"]


def test_the_cause_of_the_exception_is_shown_in_the_traceback():
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as error:
        copy = unpack_failure(pack_failure(error, note=""))
    assert "KeyError: 'inner'" in str(copy.__cause__)
    assert "direct cause" in "".join(traceback.format_exception(copy))


def test_an_exception_whose_class_is_missing_where_it_arrives_is_told_as_text(monkeypatch):
    packed = pack_failure(raised(Gone("lost", 3)), note="whose")
    monkeypatch.delattr(sys.modules[__name__], "Gone")
    copy = unpack_failure(packed)
    assert type(copy) is WorkerError
    assert "Gone: ('lost', 3)" in str(copy)
    assert copy.__notes__ == ["whose"]
    assert type(copy.__cause__) is WorkerTraceback


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(plain, max_size=4), st.dictionaries(st.sampled_from(["a", "b", "c"]), plain, max_size=3))
def test_any_arguments_and_attributes_arrive(args, attributes):
    error = ValueError(*args)
    vars(error).update(attributes)
    copy = travelled(error)
    assert type(copy) is ValueError
    assert copy.args == tuple(args)
    assert {name: getattr(copy, name) for name in attributes} == attributes


@given(plain, plain)
def test_a_constructor_with_its_own_arguments_is_not_called_again(code, text):
    copy = travelled(TwoArguments(code, text))
    assert type(copy) is TwoArguments
    assert (copy.code, copy.text, str(copy)) == (code, text, f"{code}: {text}")


def test_nothing_is_left_of_the_original_but_a_note():
    error = raised(ValueError("x"))
    pack_failure(error, note="n")
    assert error.args == ("x",)
    assert pickle.loads(pickle.dumps(error)).args == ("x",)
