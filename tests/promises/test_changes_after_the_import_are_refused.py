"""What the program changes in a module after its import is missing in workers that import it: they say so."""

import functools
import importlib
import sys
import textwrap

import pytest

from dataflow import DataFromList, MapData, MultiProcessMapData, NotPicklable, ParallelData
from dataflow.protocol.changes import Snapshot

MODULE = "module_of_imported"
SOURCE = """
    import collections, concurrent.futures, functools, logging, random, re, threading, time
    import numpy as np
    from dataflow import DataFromList

    SETTINGS = {"factor": 1, "deep": [{"a": (1, 2)}], "of": {"c", "d"}}
    NAMES = ["a", "b"]
    NUMBERS = {1, 2}
    TABLE = np.arange(4)
    RECENT = collections.deque([1, 2])
    ORDERED = collections.OrderedDict(a=1, b=2)
    HANDLERS = {"a": lambda dp: dp}
    INNER = DataFromList([[1]], shuffle=False)
    FACTOR = 1
    CACHE, BY_NAME, COUNTS, FILLED = {}, {}, collections.Counter(), []
    LOG, LOCK, PATTERN, RNG = logging.getLogger(__name__), threading.Lock(), re.compile("a+"), np.random.default_rng()
    OWN, HIDDEN = random.Random(), object()
    POOL, LOCAL = concurrent.futures.ThreadPoolExecutor(1), threading.local()
    START = time.time()
    LINES = (line for line in "abc")

    class Config:
        factor = 1
        def __init__(self):
            self.width = 1
            self.seen = {}
            self.num_calls = 0
            self.memo = None
        def configure(self, width):
            self.width = width
        def __call__(self, dp):
            self.num_calls += 1
            self.seen[dp] = self.width
            return self.remembered(dp)
        def __setattr__(self, name, value):
            self.__dict__[name] = value
        def remembered(self, dp):
            self.memo = dp
            return dp

    class Slotted:
        __slots__ = ("width",)
        def __init__(self):
            self.width = 1

    class State:
        pass

    CONFIG, SLOTTED, STATE = Config(), Slotted(), State()
    STATE.count = STATE.width = 0

    def helper(dp):
        return dp

    def scaled(factor):
        def around(func):
            def inner(dp):
                return func(dp) * factor[0]
            return inner
        return around

    @functools.lru_cache
    def cached(dp):
        return dp

    def remembers(func):
        found, num_calls = {}, 0
        def inner(dp):
            nonlocal num_calls
            num_calls += 1
            if dp not in found:
                found[dp] = func(dp)
            return found[dp]
        return inner

    @scaled([1])
    def decorated(dp):
        return dp

    @remembers
    def remembered(dp):
        return dp

    def func(dp, table=[1, 2]):
        LOG.debug("%s s", time.time() - START)
        with LOCK:
            if dp not in CACHE:
                CACHE[dp] = cached(dp)
        BY_NAME.setdefault(dp, 1)
        COUNTS[dp] += 1
        FILLED.append(dp)
        STATE.count += 1
        used = SETTINGS, NAMES, NUMBERS, TABLE, RECENT, ORDERED, HANDLERS, INNER, FACTOR
        used += PATTERN, RNG, OWN, HIDDEN, LINES, POOL, LOCAL
        return len(used), helper(dp), CONFIG(dp), SLOTTED.width, STATE.width, decorated(dp), remembered(dp)
"""

CHANGED = {
    "plain": "FACTOR = 5",
    "dict": 'SETTINGS["factor"] = 5',
    "other keys": 'SETTINGS["new"] = 1',
    "deep": 'SETTINGS["deep"][0]["a"] = (1, 3)',
    "set in dict": 'SETTINGS["of"].add("e")',
    "list": 'NAMES.append("c")',
    "rebound": 'NAMES = ["a", "c"]',
    "set": "NUMBERS.add(3)",
    "array": "TABLE[2] = 7",
    "dtype": "TABLE = TABLE.astype(float)",
    "deque": "RECENT.append(3)",
    "ordered": 'ORDERED.move_to_end("a")',
    "lambda": 'HANDLERS["a"] = lambda dp: dp + 1',
    "flow": "INNER.lst.append([2])",
    "attribute": "CONFIG.width = 5",
    "method": "CONFIG.configure(5)",
    "slot": "SLOTTED.width = 5",
    "beside a counter": "STATE.width = 5",
    "class": "Config.factor = 5",
    "function": "def helper(dp): return dp + 1\nhelper.__qualname__ = 'other'",
    "method of a class": "Config.remembered = lambda self, dp: dp + 1",
    "default": "func.__defaults__[0].append(3)",
    "function attribute": "func.factor = 5",
    "closure": "decorated.__closure__[0].cell_contents[0] = 5",
    "another kind": "LOCK = 5",
}
NOT_CHANGED = {
    "nothing": "",
    "calls": "[func(k) for k in range(3)]",
    "draws": "RNG.random(), OWN.random()",
    "clock": "START += 1.5",
    "logger": "LOG.setLevel(10)",
    "held lock": "LOCK.acquire()",
    "iterator": "next(LINES)",
    "threads": "POOL.submit(int).result(), POOL.shutdown(); LOCAL.found = 1",
    "not read": "other = {1: 2}",
    "lru": "cached.cache_clear(); cached(7)",
    "same again": 'SETTINGS["factor"] = 5; SETTINGS["factor"] = 1',
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The module, imported, and a function that imports it anew, as a worker does."""
    (tmp_path / f"{MODULE}.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []

    def again():
        sys.modules.pop(MODULE, None)
        importlib.invalidate_caches()
        found.append(importlib.import_module(MODULE))
        return found[-1]

    yield again(), again
    sys.modules.pop(MODULE, None)


def flow(func):
    return MapData(DataFromList([1, 2], shuffle=False), func)


def imported(func):
    ds = flow(func)
    return Snapshot([ds, ds.ds], imported=True).imported


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_what_has_changed_since_the_import_is_refused(module, change):
    here, import_again = module
    exec(change, vars(here))
    check = imported(here.func)
    import_again()
    with pytest.raises(NotPicklable, match=f"of {MODULE}.* in the consumer, but .* in the worker"):
        check()


@pytest.mark.parametrize("change", NOT_CHANGED.values(), ids=NOT_CHANGED)
def test_what_has_not_or_changes_by_itself_is_not(module, change):
    here, import_again = module
    exec(change, vars(here))
    check = imported(here.func)
    import_again()
    check()


@pytest.mark.parametrize("change", [CHANGED[name] for name in ("array", "deep", "method", "default")])
def test_a_change_after_the_start_is_seen_in_the_next_pass(module, change):
    here, _ = module
    ds = flow(here.func)
    nodes = [ds, ds.ds]
    before = Snapshot(nodes, imported=True)
    assert before.difference(Snapshot(nodes, imported=True)) is None
    exec(change, vars(here))
    assert before.difference(Snapshot(nodes, imported=True)) is not None


def test_the_message_says_what_differs(module):
    here, import_again = module
    here.NAMES.append("c")
    check = imported(here.func)
    import_again()
    text = r"func reads the global variable NAMES of module_of_imported, which is \['a', 'b', 'c'\] in the consumer, "
    with pytest.raises(NotPicklable, match=text + r"but \['a', 'b'\] in the .*names=NAMES\), or start .* by fork"):
        check()


def by_module(name):
    """Functions that are sent by value, and read the module itself."""
    module = sys.modules[MODULE]
    return {
        "attribute": lambda dp: module.SETTINGS["factor"] * dp,
        "getattr": lambda dp: getattr(module, "SETTINGS")["factor"] * dp,  # noqa: B009
    }[name]


@pytest.mark.parametrize("name", ["attribute", "getattr"])
def test_functions_that_are_sent_by_value_read_modules(module, name):
    here, import_again = module
    here.SETTINGS["factor"] = 5
    func = by_module(name)
    check = imported(func)
    import_again()
    with pytest.raises(NotPicklable, match="SETTINGS"):
        check()


def test_an_import_inside_the_function(module):
    here, _ = module
    here.SETTINGS["factor"] = 5

    def func(dp):
        import module_of_imported

        return module_of_imported.SETTINGS["factor"] * dp

    check = imported(func)
    sys.modules.pop(MODULE)  # a worker has not imported it yet
    with pytest.raises(NotPicklable, match="SETTINGS"):
        check()


def test_what_is_too_large_is_refused_in_the_consumer(module, monkeypatch):
    here, _ = module
    monkeypatch.setattr("dataflow.protocol.fingerprints._MAX_VALUES", 100)
    here.NAMES += map(str, range(200))
    with pytest.raises(NotPicklable, match=r"NAMES of .* too large to be compared.*functools\.partial"):
        imported(here.func)


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.full)])
def test_real_workers(module, method):
    here, _ = module
    with MultiProcessMapData(DataFromList([1, 2], shuffle=False), 1, here.func, strict=True, context=method) as df:
        before = list(df)
        here.func(7)
        assert list(df) == before
        here.TABLE[0] = 9
        with pytest.raises(NotPicklable, match="TABLE"):
            list(df)
    with ParallelData(flow(functools.partial(here.helper)), 1, context=method) as df:
        assert list(df) == [1, 2]
