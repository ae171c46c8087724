"""Classes and functions of the main program, on the way to workers and back: the same, wherever the program is."""

import enum
import functools
import gc
import os
import pickle
import sys
import textwrap
import types

import numpy as np
import pytest

from dataflow import MapData, MultiProcessRunner
from dataflow.sources.in_memory import DataFromList
from dataflow.system import pickling
from dataflow.system.pickling import (
    ForkedMain,
    ImportedMain,
    dumps,
    dumps_back,
    dumps_task,
    imported_main,
    loads,
    main_importable,
)
from dataflow.transport.nested_arrays import NestedUnpickler, ToWorkers
from tests.support.main_program import SAID, run

PLACES = ["file", "command", "stdin", "module", "package", "notebook"]
CONTEXTS = ["fork", "spawn", "forkserver"]


def check_program(place, context, directory):
    ended = run(place, context, directory)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == SAID


@pytest.mark.parametrize("place", ["file", "notebook"])
def test_what_the_main_program_defines_is_the_same_in_workers_and_back(place, tmp_path):
    check_program(place, "forkserver", tmp_path)  # spawn is in full: each of its workers costs half a second


@pytest.mark.full
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("place", PLACES)
def test_so_it_is_wherever_the_program_is(place, context, tmp_path):
    check_program(place, context, tmp_path)


# -- the main module ---------------------------------------------------------------------------------------------------

SOURCE = """
    import collections
    import enum
    from os import path as where

    class Ours:
        class Inner:
            pass

        @property
        def size(self):
            return SIZE

    class Label(enum.Enum):
        CAT = 1

    def deep():
        return [BELOW for _ in range(3)]

    def calls():
        return deep()

    def sets():
        global RUN
        RUN = 3

    def uses():
        return (lambda: RUN)()

    make = lambda: Ours()
    Odd = collections.namedtuple("Other", "a")
    if Ours:
        def conditional(): pass
    try:
        Tried = int
    except NameError:
        pass
    if __name__ != "__main__":
        imported_only = 1
    else:
        BELOW = 7
    if __name__ == "__main__":
        SIZE = [1, 2]
        class Guarded: pass
        def guarded(): return Ours
        for k in range(3): pass
"""


@pytest.fixture
def main(tmp_path, monkeypatch):
    """The main module, made from `SOURCE`."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SOURCE))
    return become_main(monkeypatch, path)


def become_main(monkeypatch, path):
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules.get("__mp_main__"))
    exec(compile(path.read_text(), path, "exec"), vars(module))
    return module


def test_what_importing_binds_is_sent_by_reference(main):
    seen = imported_main()
    names = [seen.name_of(vars(main)[name]) for name in ("Ours", "Label", "calls", "make", "Odd", "conditional")]
    assert names == ["Ours", "Label", "calls", "make", "Odd", "conditional"]
    assert seen.name_of(main.Ours.Inner) == "Ours.Inner"
    for obj in (main.Ours, main.Label, main.Label.CAT, main.make, main.Odd, main.Odd(1), main.calls):
        assert type(loads(dumps(obj, main=seen))) is type(obj)
        assert b"cloudpickle" not in dumps(obj, main=seen)
    assert loads(dumps(main.Odd, main=seen)) is main.Odd


def test_what_is_bound_below_the_guard_is_sent_by_value(main):
    seen = imported_main()
    assert seen.name_of(main.Guarded) is seen.name_of(main.guarded) is None
    assert b"cloudpickle" in dumps(main.Guarded(), main=seen)
    del sys.modules["__main__"].Guarded  # as in a worker
    assert type(loads(dumps(main.guarded, main=seen))()) is type


def test_what_is_not_found_by_its_name_is_sent_by_value(main):
    def local():
        return 1

    assert imported_main().name_of(local) is None
    assert loads(dumps(local, main=imported_main()))() == 1


def test_what_was_added_later_is_sent_by_value(main):
    exec("class Later: pass", vars(main))
    assert imported_main().name_of(main.Later) is None


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("calls", {"BELOW": 7}),
        ("Ours", {"SIZE": [1, 2]}),
        ("uses", {"RUN": 4}),
        ("make", {"SIZE": [1, 2]}),
        ("Odd", {}),
    ],
)
def test_variables_that_get_their_values_later_are_sent_along(main, name, variables):
    main.RUN = 4
    obj = vars(main)[name]
    assert imported_main().variables(obj) == variables
    data = dumps([obj], main=imported_main())
    for late in variables:
        del vars(main)[late]  # as in a worker
    assert loads(data) == [obj]
    assert {late: vars(main)[late] for late in variables} == variables


def test_a_variable_that_cannot_be_sent_is_left_out(main):
    main.BELOW = (k for k in range(3))
    main.RUN = 4
    data = dumps([main.calls, main.uses], main=imported_main())
    del main.BELOW, main.RUN
    loads(data)
    assert main.RUN == 4
    assert not hasattr(main, "BELOW")


class Counted:
    """Pickled in `num` steps, of which the first raises `error`."""

    num = 0

    def __init__(self, error=None):
        self.error = error

    def __reduce__(self):
        type(self).num += 1
        if self.error is not None and type(self).num == 1:
            raise self.error
        return bytes, (bytes(10_000),)


def test_a_variable_that_is_too_large_is_not_pickled_again(main, monkeypatch):
    monkeypatch.setattr(Counted, "num", 0)
    main.BELOW = Counted()
    with pytest.raises(OverflowError, match="too large"):
        dumps(main.calls, main=imported_main(), max_bytes=1000)
    assert Counted.num == 1


def test_an_error_that_comes_once_is_raised(main, monkeypatch):
    monkeypatch.setattr(Counted, "num", 0)
    main.BELOW = Counted(RuntimeError("once"))
    with pytest.raises(RuntimeError, match="once"):
        dumps(main.calls, main=imported_main())


def test_what_came_by_value_is_found_in_the_main_module_until_a_later_one_comes(main):
    first, second = dumps(main.guarded), dumps(main.guarded)
    there = main.guarded
    assert loads(first) is not there and main.guarded is there  # what the program has is not replaced
    del main.guarded  # as in a worker
    one = loads(first)
    assert main.guarded is one
    other = loads(second)
    assert main.guarded is other is not one


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ({}, False),
        ({"__file__": "<stdin>"}, False),
        ({"__file__": "/none/such.py"}, False),
        ({"__file__": __file__}, True),
        ({"__file__": __file__, "__spec__": types.SimpleNamespace(name="package.module")}, True),
        ({"__file__": __file__, "__spec__": types.SimpleNamespace(name="package.__main__")}, False),
        ({"__file__": __file__, "__spec__": types.SimpleNamespace(name="__main__")}, False),
    ],
)
def test_whether_workers_import_the_main_program(monkeypatch, attributes, found):
    module = types.ModuleType("__main__")
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setitem(sys.modules, "__mp_main__", None)
    assert (imported_main() is not None) == found
    from multiprocessing import spawn

    with main_importable():
        reported = {"init_main_from_name", "init_main_from_path"} & spawn.get_preparation_data("").keys()
        assert bool(reported) == (found or "__spec__" in attributes)
    assert getattr(module, "__file__", None) == attributes.get("__file__")


def test_a_source_that_cannot_be_read_says_nothing(tmp_path):
    module = types.ModuleType("__main__")
    assert ImportedMain(module, None).variables(print) == {}
    (tmp_path / "bad.py").write_text("class")
    assert ImportedMain(module, str(tmp_path / "bad.py")).variables(become_main) == {}
    assert ImportedMain(module, str(tmp_path / "archive.zip" / "main.py")).variables(become_main) == {}


def test_a_forked_worker_has_the_classes_that_were_there(main):
    seen = ForkedMain()
    old = main.Label
    assert (seen.name_of(old), seen.name_of(main.calls)) == ("Label", None)
    main.Label = enum.Enum("Label", "DOG", module="__main__")
    assert seen.name_of(old) is seen.name_of(main.Label) is None


def test_a_class_that_a_forked_worker_has_is_sent_by_reference(main):
    data = dumps_task(main.Ours, ForkedMain(), 5)
    assert b"cloudpickle" not in data and pickle.loads(data) is main.Ours


def test_arrays_in_objects_of_the_main_program_stay_beside_the_pickle(main):
    for seen, by_value in ((imported_main(), False), (None, True)):
        sent = [main.Guarded() if by_value else main.Odd(1), {"a": np.arange(3)}]
        body, arrays = ToWorkers(forked=False, main=seen).nested(sent)
        first, second = NestedUnpickler(body, iter(arrays)).load()
        assert type(first) is type(sent[0]) and second["a"] is arrays[0] is sent[1]["a"]
        assert (b"cloudpickle" in body) == by_value


# -- the way back ------------------------------------------------------------------------------------------------------


def test_what_was_sent_by_value_comes_back_as_it_was(main):
    class Local:
        pass

    sent = loads(dumps([main.Guarded, Local, Local()]))
    assert sent[:2] == [main.Guarded, Local]  # here, where both sides are one process
    for obj in (Local, Local(), {"a": [Local()]}, main.Guarded()):
        assert type(pickle.loads(dumps_back(obj))) is type(obj)


class OfMeta(type):
    def __eq__(cls, other):
        return cls is other

    __hash__ = None


class Unhashable(metaclass=OfMeta):
    pass


def test_a_class_that_is_not_hashable_comes_back_beside_one_that_was_sent():
    class Local:
        pass

    dumps(Local)
    first, second = pickle.loads(dumps_back([Local(), Unhashable]))
    assert type(first) is Local and second is Unhashable


def test_a_class_that_a_forked_worker_has_inherited_is_found_by_its_address_as_long_as_it_lives(monkeypatch):
    class First:
        pass

    class Other(First):
        pass

    class Both(Other, First):
        pass

    monkeypatch.setattr(pickling._inheritance, "forked", True)
    monkeypatch.setattr(pickling, "_is_inherited_class", {Both: True})
    back = dumps_back(Both())
    assert type(pickle.loads(back)) is type(pickle.loads(back)) is Both
    monkeypatch.undo()
    look_up, earlier = pickling._class_reference.__wrapped__, iter([lambda: None])  # the reference to one that is gone
    with monkeypatch.context() as patched:
        patched.setattr(
            pickling, "_class_reference", functools.cache(lambda *key: next(earlier, None) or look_up(*key))
        )
        assert type(pickle.loads(back)) is Both  # made again at the same address
    del Both
    gc.collect()
    with pytest.raises(pickle.UnpicklingError, match=r"Both does not exist any more"):
        pickle.loads(back)


def test_what_was_never_sent_is_refused_as_by_pickle():
    class Local:
        pass

    with pytest.raises((pickle.PicklingError, AttributeError), match="Local"):
        dumps_back(Local())
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        dumps_back(lambda: 0)


def test_what_is_gone_by_then_is_an_error(main):
    class Local:
        pass

    dumps(Local)
    back = dumps_back(Local())
    del Local
    gc.collect()
    with pytest.raises(pickle.UnpicklingError, match="does not exist any more"):
        pickle.loads(back)
    back = dumps_back(main.Odd(1))
    main.Odd = 3
    with pytest.raises(pickle.UnpicklingError, match="has no Odd any more"):
        pickle.loads(back)


def test_tasks_are_single_pickles_that_may_be_joined(main):
    body = dumps_task([main.Guarded()], imported_main(), 3)
    assert type(pickle.loads(body)[0]) is main.Guarded


def local_class():
    class Local:
        def __init__(self, x):
            self.x = x

    return Local


def test_a_local_class_that_a_forked_worker_has_inherited_comes_back_as_the_same():
    kind = local_class()
    other = local_class()
    source = DataFromList([[kind(k), other(k)] for k in range(3)], shuffle=False)
    with MultiProcessRunner(MapData(source, lambda dp: [*dp, kind(dp[0].x)]), 5, 1, context="fork", strict=True) as df:
        for k, got in enumerate(df):
            assert [type(value) for value in got] == [kind, other, kind]
            assert [value.x for value in got] == [k] * 3


def test_a_local_class_that_a_worker_has_made_is_refused():
    df = MapData(DataFromList([[1]]), lambda dp: [local_class()(dp[0])])
    with (
        MultiProcessRunner(df, 5, 1, context="fork", strict=True) as runner,
        pytest.raises((pickle.PicklingError, AttributeError), match="Local"),
    ):
        list(runner)


def test_keys_name_the_process():
    assert f"{os.getpid()}." in repr(dumps(lambda: 0))


def test_what_only_lives_here_travels_by_value():
    factor = 3
    assert pickle.loads(dumps(lambda k: k * factor))(2) == 6


@pytest.mark.parametrize("value", [bytes(1000), np.zeros(1000), list(range(10_000)), [np.zeros(4)] * 3 + ["x" * 2000]])
def test_what_is_too_large_is_found_out_early(value):
    assert pickle.loads(dumps(value, max_bytes=100_000)) is not None
    with pytest.raises(OverflowError, match="too large"):
        dumps(value, max_bytes=900)
    small = dumps([1, 2], max_bytes=900)
    assert pickle.loads(small) == [1, 2]
