"""The errors: one tree, as drawn, and every one of them travels between processes."""

import inspect
import pickle
import re

import pytest

from dataflow import errors

BASES = {
    "LengthUnknown": (NotImplementedError, TypeError),
    "NotAddressable": (TypeError,),
    "Dropped": (LookupError,),
    "NotReproducible": (ValueError,),
    "StateMismatch": (ValueError,),
    "ShapeMismatch": (ValueError,),
    "NotPicklable": (TypeError,),
    "TimeoutError": (RuntimeError, TimeoutError),
    "WorkerError": (RuntimeError,),
    "WorkerDied": (RuntimeError,),
    "SenderLost": (RuntimeError,),
    "ReceiverLost": (RuntimeError,),
    "FileDamaged": (ValueError,),
    "NotStorable": (TypeError,),
    "PickleRefused": (ValueError,),
    "MissingExtra": (ImportError,),
}

TREE = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, errors.DataFlowError) and value is not errors.DataFlowError
]


def name_of(value):
    return value.__name__


def test_the_drawn_tree_equals_the_classes():
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__)
    assert drawn == [error.__name__ for error in TREE]


def test_the_drawing_names_the_foreign_bases():
    for line in errors.__doc__.splitlines():
        if named := re.search(r"── (\w+) .*\(also (.*)\)", line):
            foreign = {base.__name__ for base in BASES[named[1]]}
            assert set(re.findall(r"\w*(?:Error)", named[2])) == foreign


def test_all_lists_every_error():
    assert set(errors.__all__) == {"DataFlowError", "WorkerTraceback", *map(name_of, TREE)}


@pytest.mark.parametrize("error", TREE, ids=name_of)
def test_an_error_derives_from_what_ported_code_catches(error):
    assert issubclass(error, (errors.DataFlowError, Exception))
    for base in BASES.get(error.__name__, ()):
        assert issubclass(error, base)
    foreign = [base for base in error.__bases__ if base is not errors.DataFlowError]
    assert set(foreign) == set(BASES.get(error.__name__, ()))


@pytest.mark.parametrize("error", TREE, ids=name_of)
def test_an_error_has_one_sentence_of_documentation(error):
    assert inspect.getdoc(error)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", [*TREE, errors.DataFlowError, errors.WorkerTraceback], ids=name_of)
def test_an_error_survives_pickling_with_its_attributes(error, protocol):
    original = error("what happened")
    original.note = [1]
    copy = pickle.loads(pickle.dumps(original, protocol))
    assert type(copy) is error
    assert str(copy) == str(original)
    assert vars(copy) == vars(original)


def test_a_dead_worker_keeps_its_particulars_when_pickled():
    died = errors.WorkerDied("killed", worker=2, num_workers=8, pid=4711, exitcode=-9)
    copy = pickle.loads(pickle.dumps(died))
    assert (copy.worker, copy.num_workers, copy.pid, copy.exitcode) == (2, 8, 4711, -9)
    assert str(copy) == "killed"


def test_a_dead_worker_is_told_by_name_only():
    with pytest.raises(TypeError):
        errors.WorkerDied("killed", 2)


def test_the_text_of_a_worker_traceback_stands_on_lines_of_its_own():
    cause = errors.WorkerTraceback("Traceback:\n  here\n")
    assert str(cause) == "\n\nTraceback:\n  here"
    assert cause.text == "Traceback:\n  here\n"
