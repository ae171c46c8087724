"""Whatever decides what a function returns is in the fingerprint of a cache; and what decides nothing is not.

Each row is the source of a program, with alternatives between double angle quotes: «one|
another». All programs of a row
must have different descriptions (CHANGES), or all the same (EQUAL). A row with a word of an error is refused.
"""

import importlib.machinery
import itertools
import math
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from dataflow import DataFromList, MapData
from dataflow.protocol.fingerprints import describe

ROOT = Path(__file__).parents[2]
HEAD = "import os\nimport numpy as np\nfrom dataflow import *\n"


def variants(template):
    """The programs that a row stands for: the k-th has the k-th of all alternatives."""
    choices = [re.split(r"\|\n?", found) for found in re.findall(r"«(.*?)»", template, re.DOTALL)]
    for k in range(max(map(len, choices))):
        numbers = itertools.count()
        yield re.sub(r"«.*?»", lambda _, k=k, n=numbers: choices[next(n)][k], template, flags=re.DOTALL)


def described(source):
    """The description of a map by `func`, or of the flow `df`, of a program."""
    program = {"__name__": "job"}
    try:
        exec(compile(HEAD + source, "job.py", "exec"), program)
        df = program.get("df")
        return describe(MapData(DataFromList([[1]], shuffle=False), program["func"]) if df is None else df)
    finally:
        if "file" in program:
            program["file"].close()
        program.get("after", int)()


def rows(text):
    return [row.strip("\n") for row in re.split(r"\n---\n", text.strip("\n"))]


CHANGES = rows(
    """
k = (lambda: «1|2»).__code__
def func(dp): return k.co_consts
---
x = [«1|2»]
for _ in range(50): x = [x, x]
def func(dp): return x
---
class A: pass
k = [A() for _ in range(1200)]
k[-1].size = «1|2»
def func(dp): return k
---
k = np.zeros(«2|3», "V0")
def func(dp): return k
---
import tempfile
file = tempfile.NamedTemporaryFile()
k = np.memmap(file, np.uint8, "w+", shape=2)
k[0] = «1|2»
def func(dp): return k
---
import types
m = types.ModuleType("module_of_the_program")
m.size = «1|2»
def func(dp): return getattr(m, "size")
---
def func(dp): return [dp[0] * «1|2|1.0|True|-1|0.0|-0.0|"1"|b"1"|None|1j|-1j|(1,)|(1, 2)|...»]
---
def func(dp): return [dp[0] «+|-|*|/|//|%|**|@|<|>|==|and|or» 2]
---
def func(dp): return dp in {«"a"|"b"|"a", "b"|1, "a"|(1,)|True|1.0»}
---
def func(dp): return dp.«real|imag|conjugate()»
---
def func(dp): return «len|sum|max|sorted|list»(dp)
---
def func(dp, k=«1|2|True|None|[1]|(1,)|{}|{1: 2}|{1: 3}|set()|{1}|np.float32(1)|np.float64(1)|np.arange(3)|
np.ones(3)»): return [k]
---
def func(dp, *, k=«1|2»): return [k]
---
def func(dp, «a=1, b=2|b=1, a=2»): return [a]
---
def func(dp):
    for k in range(3):
        if k > 1: «break|return 1|pass|raise ValueError»
---
def func(dp):
    try: return dp[0]
    except «KeyError|IndexError|(KeyError, IndexError)»: return 1
---
def func(dp): return [lambda x: x + «1|2» for _ in dp]
---
def func(dp):
    def inner(): return «1|2»
    return inner()
---
def func(dp):
    class Inner: size = «1|2»
    return Inner.size
---
func = lambda dp: dp[«0|1|-1|:|::2»]
---
def func(dp): return f"{dp[0]:«d|x|5d»}"
---
SIZE = «224|256|224.0|"224"|None|[224]|(224,)|{224: 1}|frozenset({224})|range(224)|np.array(224)|
np.int64(224)|complex(224)|b"224"|float("nan")|1 << 5000|1 << 5001|-0.0|0.0|False|0»
def func(dp): return [dp[0] * SIZE]
---
SIZE = «1|2»
def helper(x): return x * SIZE
def func(dp): return helper(dp[0])
---
def deepest(x): return x + «1|2»
def deeper(x): return deepest(x)
def helper(x): return deeper(x)
def func(dp): return helper(dp[0])
---
def even(n): return n == 0 or odd(n - 1)
def odd(n): return n != «0|1» and even(n - 1)
def func(dp): return even(dp[0])
---
SIZE = «1|2»
func = lambda dp: [SIZE]
---
SIZE = «1|2»
def func(dp): return [SIZE for _ in dp]
---
SIZE = «1|2»
def func(dp): return [[SIZE for _ in dp] for _ in dp]
---
SIZE = «1|2»
def func(dp): return (lambda: (lambda: SIZE)())()
---
SIZE = «1|2»
def func(dp):
    class Inner:
        value = SIZE
    return Inner.value
---
SIZE = «1|2»
class func:
    def __new__(cls, dp): return [SIZE]
---
SIZE = «1|2»
def func(dp): return [globals()["SIZE"]]
---
SIZE = «1|2»
def func(dp): return eval("SIZE")
---
«# nothing|len = max»
def func(dp): return len(dp)
---
«import math as m|import cmath as m»
def func(dp): return m.sqrt(dp[0])
---
import math
math.scale = «1|2|1.0|"1"»
def after(): del math.scale
def func(dp): return math.scale
---
import builtins
builtins.scale = «1|2»
def after(): del builtins.scale
def func(dp): return scale
---
from math import «sin|cos|tan» as f
def func(dp): return f(dp[0])
---
def func(dp):
    from math import «sin|cos» as f
    return f(dp[0])
---
def func(dp):
    import «math|cmath» as m
    return m.sqrt(1)
---
def make(k): return lambda dp: [dp[0] * k]
func = make(«1|2|1.0|True|"a"|[1, 2]|[2, 1]|[[1], 2]|{"a": 1}|{"a": 2}|{"b": 1}|{1, 2}|{1, 3}|{(1, "a")}|
np.eye(2)|np.eye(3)|np.eye(2, dtype="f4")»)
---
def make(k): return lambda dp: k.get(dp[0])
func = make({«1: 2, 3: 4|3: 4, 1: 2|1: 2|1: 4, 3: 2|1: 2, 3: 4.0|True: 2, 3: 4»})
---
def make():
    k = «1|2»
    def inner(): return k
    def outer(dp): return inner()
    return outer
func = make()
---
func = {1: «1|2»}.get
---
func = "«x{}|y{}»".format
---
func = "abc".«index|find|count»
---
import re
func = re.compile("«a|b|(a)»").sub
---
import re
func = re.compile("a"«|, re.I|, re.M»).sub
---
import re
func = re.compile("a").«sub|split|match»
---
func = np.arange(«3|4»).take
---
func = np.array([1, «2|3»]).take
---
func = [«1|2»].__contains__
---
func = («1|2»).__add__
---
func = np.«sqrt|square|sin|sum|asarray|float32|float64»
---
import operator
func = operator.itemgetter(«0|1|slice(2)»)
---
import operator
func = operator.attrgetter("«real|imag»")
---
import operator
func = operator.methodcaller("«a|b»", 1)
---
func = str.«upper|lower|title»
---
import functools
func = functools.partial(«min|max», 1)
---
import functools
func = functools.partial(max, «1|2|default=1|key=len»)
---
import functools
func = functools.partial(functools.partial(max, «1|2»), 3)
---
import functools
@functools.lru_cache
def func(dp): return «1|2»
---
import functools
SIZE = «1|2»
@functools.cache
def helper(x): return SIZE
def func(dp): return helper(1)
---
import functools
def twice(f):
    @functools.wraps(f)
    def wrapper(dp): return f(f(dp))
    return wrapper
def thrice(f):
    @functools.wraps(f)
    def wrapper(dp): return f(f(f(dp)))
    return wrapper
@«twice|thrice»
def func(dp): return dp
---
import functools
def twice(f):
    @functools.wraps(f)
    def wrapper(dp): return f(f(dp))
    return wrapper
@twice
def func(dp): return [dp[0] + «1|2»]
---
import functools
def deco(k):
    def decorate(f):
        @functools.wraps(f)
        def wrapper(dp): return [f(dp), k]
        return wrapper
    return decorate
@deco(«1|2»)
def func(dp): return dp
---
def func(dp): return [func.k]
func.k = «1|2»
---
import contextlib
@contextlib.contextmanager
def scope(): yield «1|2»
def func(dp):
    with scope() as k: return [k]
---
class Scale:
    def __init__(self, k): self.k = k
    def __call__(self, dp): return [dp[0] «*|+» self.k]
func = Scale(1)
---
class Scale:
    def __init__(self, k): self.k = k
    def __call__(self, dp): return [dp[0] * self.k]
func = Scale(«1|2|1.0|[1]|np.ones(2)»)
---
class Base:
    def __call__(self, dp): return [dp[0] * «1|2»]
class Scale(Base): pass
func = Scale()
---
class Base:
    def helper(self): return «1|2»
class Scale(Base):
    def __call__(self, dp): return self.helper()
func = Scale()
---
class Scale:
    k = «1|2|"a"|[1]|{1: 2}»
    def __call__(self, dp): return self.k
func = Scale()
---
class Scale:
    k = «1|2»
    @classmethod
    def call(cls, dp): return cls.k
func = Scale.call
---
class Scale:
    @staticmethod
    def call(dp): return «1|2»
func = Scale.call
---
class Scale:
    @property
    def k(self): return «1|2»
    def __call__(self, dp): return self.k
func = Scale()
---
import functools
class Scale:
    @functools.cached_property
    def k(self): return «1|2»
    def __call__(self, dp): return self.k
func = Scale()
---
class Scale:
    def method(self, dp): return «1|2»
func = Scale().method
---
class Scale:
    def __init__(self, k): self.k = k
    def method(self, dp): return self.k
func = Scale(«1|2»).method
---
import types
class Scale: pass
func = types.MethodType(lambda self, dp: «1|2», Scale())
---
class Base:
    __slots__ = ("k",)
class Scale(Base):
    __slots__ = ("other",)
    def __call__(self, dp): return self.k
func = Scale()
func.k = «1|2»
---
class Meta(type):
    def size(cls): return «1|2»
class Scale(metaclass=Meta):
    def __call__(self, dp): return type(self).size()
func = Scale()
---
class Field:
    def __get__(self, obj, kind=None): return «1|2»
class Scale:
    k = Field()
    def __call__(self, dp): return self.k
func = Scale()
---
class Mine(«dict|list|set|str»): pass
k = Mine()
def func(dp): return k
---
class Mine(dict):
    def __missing__(self, key): return «1|2»
k = Mine()
def func(dp): return k[dp[0]]
---
class Mine(«dict|list|tuple|str|set|frozenset|bytes|bytearray»): pass
func = Mine().__len__
---
class Mine(list): pass
k = Mine([1, «2|3»])
def func(dp): return k
---
class Mine(dict): pass
k = Mine(a=«1|2»)
def func(dp): return k
---
class Mine(float): pass
k = Mine(«1|2»)
def func(dp): return k
---
class Mine(int): pass
k = Mine(«1|2»)
def func(dp): return k
---
class Mine(str): pass
k = Mine("«a|b»")
def func(dp): return k
---
class Mine(tuple): pass
k = Mine((1, «1|2»))
def func(dp): return k
---
class Mine(set): pass
k = Mine({1, «1|2»})
def func(dp): return k
---
class Mine(bytes): pass
k = Mine(b"«a|b»")
def func(dp): return k
---
class Mine(str): pass
k = Mine("a")
k.size = «1|2»
def func(dp): return k.size
---
class Mine(np.ndarray): pass
k = np.arange(«3|4»).view(Mine)
def func(dp): return k
---
class Mine(np.ndarray): pass
k = np.arange(3).view(Mine)
k.unit = "«m|s»"
def func(dp): return k.unit
---
k = np.ma.array([1, 2], mask=[0, «0|1»])
def func(dp): return k
---
k = np.ma.array([1, 2], mask=[0, 1], fill_value=«3|4»)
def func(dp): return k.filled()
---
from collections import OrderedDict
k = OrderedDict(«a=1, b=2|b=2, a=1|a=1, b=3»)
def func(dp): return k
---
from collections import OrderedDict
k = OrderedDict(a=1, b=2)
«pass|k.move_to_end("a")»
def func(dp): return list(k)
---
from collections import Counter
k = Counter("«aab|abb»")
def func(dp): return k
---
from collections import defaultdict
k = defaultdict(«list|int|lambda: 3|lambda: 4»)
def func(dp): return k[1]
---
from collections import deque
k = deque([1, «2|3»]«|, 5»)
def func(dp): return k
---
from collections import namedtuple
P = namedtuple("P", "«x y|x z|y x»")
def func(dp): return P(1, 2)._fields
---
from collections import namedtuple
P = namedtuple("P", "x y")
k = P(1, «2|3»)
def func(dp): return k
---
from collections import ChainMap
k = ChainMap({1: «2|3»})
def func(dp): return k[1]
---
from types import SimpleNamespace
config = SimpleNamespace(size=«224|256»)
def func(dp): return config.size
---
from argparse import Namespace
config = Namespace(size=«224|256»)
def func(dp): return config.size
---
from types import MappingProxyType
k = MappingProxyType({1: «1|2»})
def func(dp): return k[1]
---
import enum
class Mode(enum.Enum):
    ONE = «1|2»
def func(dp): return Mode.ONE.value
---
import enum
class Mode(enum.Enum):
    ONE = 1
    TWO = 2
    def twice(self): return self.value * «2|3»
k = Mode.«ONE|TWO»
def func(dp): return k.twice()
---
import enum
class Mode(enum.IntFlag):
    A = 1
    B = 2
k = «Mode.A|Mode.B|Mode.A + Mode.B»
def func(dp): return k
---
from dataclasses import dataclass
@dataclass
class Config:
    size: int = «224|256»
    def __call__(self, dp): return self.size
func = Config()
---
from dataclasses import dataclass, field
@dataclass
class Config:
    sizes: list = field(default_factory=lambda: [«224|256»])
def func(dp): return Config().sizes
---
from dataclasses import dataclass
@dataclass(frozen=«True|False»)
class Config:
    size: int = 1
def func(dp): return Config()
---
from dataclasses import dataclass
@dataclass(slots=True)
class Config:
    size: int = 1
k = Config(«1|2»)
def func(dp): return k.size
---
from dataclasses import dataclass
@dataclass
class Config:
    «a: int = 1; b: int = 1|b: int = 1; a: int = 1»
def func(dp): return repr(Config())
---
from typing import NamedTuple
class P(NamedTuple):
    x: int = «1|2»
def func(dp): return P()
---
k = np.dtype(«"f4"|"f8"|">f4"|[("a", "f4")]|[("b", "f4")]|[("a", "f4"), ("b", "f4")]|("f4", (2,))|("f4", (3,))»)
def func(dp): return np.zeros(2, k)
---
k = np.dtype([("a", "i1"), ("b", "i4")], align=«True|False»)
def func(dp): return np.zeros(2, k)
---
k = np.zeros(2, [("«a|b»", "f4")])
def func(dp): return k
---
k = np.zeros(2, np.dtype("f4", metadata={"unit": «1|2»}))
def func(dp): return k.dtype.metadata
---
k = np.array([«0.0|-0.0|np.nan|1»])
def func(dp): return k
---
k = np.array([«1|2|None|"a"|[1]|True|1.0»], dtype=object)
def func(dp): return k
---
k = np.arange(6).reshape(«2, 3|3, 2|6|1, 6»)
def func(dp): return k
---
k = np.array(["«a|b»", "cc"])
def func(dp): return k
---
k = np.datetime64("2020-01-0«1|2»")
def func(dp): return k
---
k = np.array(["2020-01-0«1|2»"], "M8[«D|D»]")
def func(dp): return k
---
k = «np.float32(1)|np.float64(1)|np.int8(1)|np.uint8(1)|np.bool_(1)|np.str_("1")|np.bytes_(b"1")»
def func(dp): return k
---
k = np.zeros(1, [("a", "i4")])[0]
k["a"] = «1|2»
def func(dp): return k
---
rng = np.random.default_rng(«1|2»)
def func(dp): return rng.random()
---
rng = np.random.RandomState(«1|2»)
def func(dp): return rng.rand()
---
rng = np.random.Generator(np.random.«PCG64|Philox|SFC64»(1))
def func(dp): return rng.random()
---
import random
rng = random.Random(«1|2»)
def func(dp): return rng.random()
---
import datetime
k = datetime.«date(2020, 1, 1)|date(2020, 1, 2)|timedelta(1)|timedelta(2)»
def func(dp): return k
---
from decimal import Decimal
from fractions import Fraction
k = «Decimal("1")|Decimal("1.0")|Fraction(1)|Fraction(1, 2)»
def func(dp): return k
---
from pathlib import Path
k = Path("«a|b|a/b»")
def func(dp): return k
---
import uuid
k = uuid.UUID(int=«1|2»)
def func(dp): return k
---
import array
k = array.array("«i|f|h»", [1, 2])
def func(dp): return k
---
k = bytearray(b"«a|b»")
def func(dp): return k
---
k = slice(«1|2|1, 2|1, 2, 3|None»)
def func(dp): return dp[k]
---
k = [1]
k.append(«k|1|[k]|[[1]]»)
def func(dp): return k
---
k = {}
k["self"] = k
k["size"] = «1|2»
def func(dp): return k
---
class Tree:
    def __init__(self, parent, size):
        self.parent, self.size, self.children = parent, size, []
        if parent: parent.children.append(self)
k = Tree(None, 1)
Tree(Tree(k, 2), «3|4»)
def func(dp): return k
---
class A:
    def __init__(self, k): self.k = k
one = A(1)
k = [one, «one|A(1)|A(2)»]
def func(dp): return k
---
class A:
    def __init__(self, k): self.k = k
k = {A(1), A(«2|3»)}
def func(dp): return len(k)
---
class A:
    def __init__(self, k): self.k = k
    def __reduce__(self): return A, (self.k,)
    def __call__(self, dp): return self.k
func = A(«1|2»)
---
class A:
    def __init__(self, k): self.k = k
    def __getstate__(self): return {"k": self.k}
    def __call__(self, dp): return self.k
func = A(«1|2»)
file = func.file = open(os.devnull)
---
def gen():
    yield «1|2»
df = DataFromGenerator(gen)
---
class Source(DataFlow):
    size = «1|2»
    def __iter__(self): yield [self.size]
df = Source()
---
class Source(DataFlow):
    def __iter__(self): yield from self.helper()
    def helper(self): yield «1|2»
df = Source()
---
class Source(DataFlow):
    def __iter__(self): yield 1
    def __len__(self): return «1|2»
df = Source()
---
class Base(DataFlow):
    def values(self): return [«1|2»]
class Source(Base):
    def __iter__(self): yield self.values()
df = Source()
---
class Double(ProxyDataFlow):
    def __iter__(self):
        for dp in self.ds: yield [dp[0] * «1|2»]
df = Double(DataFromList([[1]]))
---
class Aug(MapData, RNGDataFlow):
    def __init__(self, ds, k):
        self.k = k
        super().__init__(ds, self.work)
    def work(self, dp): return [self.k «*|+» dp[0]]
df = Aug(DataFromList([[1]]), 1)
---
class Aug(MapData):
    def __init__(self, ds, k):
        self.k = k
        super().__init__(ds, self.work)
    def work(self, dp): return [self.k * dp[0]]
df = Aug(DataFromList([[1]]), «1|2»)
---
df = DataFromGenerator(lambda: iter(DataFromList([[«1|2»]])))
---
inner = DataFromList([[«1|2»]])
df = DataFromGenerator(lambda: iter(inner))
---
df = BatchData(DataFromList([[1], [2]]), «1|2»)
---
df = DataFromList([[1], [2]], «shuffle=True|shuffle=False|seed=3|seed=4»)
---
df = «DataFromList([[1]])|BatchData(DataFromList([[1]]), 1)|RepeatedData(DataFromList([[1]]), 2)|
RepeatedData(DataFromList([[1]]), 3)|FixedSizeData(DataFromList([[1]]), 3)»
---
df = «ConcatData|JoinData|ZipData»([DataFromList([[1]]), DataFromList([[2]])]) if "«ConcatData|JoinData|
ZipData»" != "ZipData" else BatchData(DataFromList([[1]]), 1)
---
df = ConcatData([DataFromList([[1]]), DataFromList([[«2|3»]])])
---
df = DataFromList([[«1|1.0|True|"1"|np.float32(1)|np.ones(1)|None|[1]|(1,)|{1: 1}»]])
---
from string import Template
k = Template("«a|b»")
def func(dp): return k.substitute()
---
def func(dp):
    global state
    return state
state = «1|2»
---
import abc
class Base(abc.ABC):
    @abc.abstractmethod
    def call(self): ...
class Work(Base):
    def call(self): return «1|2»
    def __call__(self, dp): return self.call()
func = Work()
---
class Op:
    def __init__(self, *ops): self.ops = ops
    def __call__(self, dp):
        for op in self.ops: dp = op(dp)
        return dp
func = Op(lambda dp: dp, lambda dp: [dp[0] + «1|2»])
---
async def work(): return «1|2»
def func(dp):
    import asyncio
    return asyncio.run(work())
---
def func(dp):
    x = dp[0]
    match x:
        case «1|2|[1]»: return 5
    return 6
---
def func(dp): return «dp|[*dp]|(dp,)|{**dp}|{*dp}|[dp]»
---
def func(dp, /, «a=1|*a|**a|*, a=1»): return dp
---
class A:
    def __getattr__(self, name): return «1|2»
k = A()
def func(dp): return k.anything
---
import threading
lock = threading.Lock()
def func(dp):
    with lock: return «1|2»
---
import logging
log = logging.getLogger(__name__)
def func(dp):
    log.info("x")
    return «1|2»
---
import functools
@functools.singledispatch
def func(dp): return dp
@func.register
def of_numbers(dp: int): return «1|2»
---
import functools
class A:
    method = functools.partialmethod(lambda self, k, dp: k, «1|2»)
func = A().method
---
func = np.vectorize(lambda x: x + «1|2»)
---
func = np.poly1d([1, «2|3»])
---
k = np.longdouble(«1|2»)
def func(dp): return k
---
k = np.array([1, «2|3»], np.longdouble)
def func(dp): return k
---
k = np.rec.array([(1, «2|3»)], dtype=[("a", "i4"), ("b", "i4")])
def func(dp): return k
---
class Registry:
    items = []
    def __init_subclass__(cls): Registry.items.append(cls)
class One(Registry):
    def f(self): return «1|2»
def func(dp): return [cls().f() for cls in Registry.items]
---
def helper(x): return «1|2»
table = {"f": helper}
def func(dp): return table["f"](dp)
---
from unittest import mock
func = mock.Mock(return_value=«1|2»)
---
import json
def mine(text): return «1|2»
old, json.loads = json.loads, mine
def func(dp): return json.loads(dp)
def after(): json.loads = old
---
import functools
class A:
    @functools.cached_property
    def size(self): return 3
    def __call__(self, dp): return self.size
func = A()
func.size = «4|5»
---
class Config:
    size: «int|float|"str"|list[int]|list[str]|dict»
def func(dp): return Config
---
import typing
T = typing.TypeVar("T")
class Config(typing.Generic[T]):
    size: typing.«Optional[T]|List[T]»
def func(dp): return Config
---
k = [np.array([«1|2»]), "a"]
def func(dp): return k
---
class Numbers(DataFlow):
    __slots__ = ("num",)
    def __init__(self, num): self.num = num
    def __iter__(self): yield self.num
df = Numbers(«1|2»)
"""
)


def test_the_table_is_large_enough():
    assert sum(len(list(variants(row))) - 1 for row in CHANGES) >= 200
    assert len(EQUAL) >= 60


@pytest.mark.parametrize("row", CHANGES, ids=range(len(CHANGES)))
def test_a_change_is_noticed(row):
    found = {}
    for source in variants(row):
        assert found.setdefault(described(source), source) == source


OF_LIBRARIES = rows(
    """
import torch
k = torch.arange(«3|4|3.0|3, dtype=torch.int32»)
def func(dp): return k
---
import torch
k = torch.zeros(«2, 3|3, 2|6|2, 3, dtype=torch.bfloat16|0|2, 3, requires_grad=True»)
def func(dp): return k
---
import torch
m = torch.nn.Linear(2, 2)
torch.nn.init.constant_(m.weight, «1|2»)
torch.nn.init.constant_(m.bias, 1)
def func(dp): return m(dp)
---
import torch
class Net(torch.nn.Module):
    def forward(self, x): return x * «1|2»
m = Net()
def func(dp): return m(dp)
---
import torch
m = torch.nn.Sequential(torch.nn.ReLU()«|, torch.nn.ReLU()»)
def func(dp): return m(dp)
---
import torch
m = torch.nn.Dropout(«0.5|0.6»)
def func(dp): return m(dp)
---
import torch
m = torch.nn.Dropout(0.5)
m.«train|eval»()
func = m
---
import torch
g = torch.Generator().manual_seed(«1|2»)
def func(dp): return torch.rand(3, generator=g)
---
import torch
func = torch.«sin|cos|as_tensor|float32»
if not callable(func): func = func.__repr__
---
import torch
@torch.no_grad()
def func(dp): return dp + «1|2»
---
import torch
k = torch.device("«cpu|meta»")
def func(dp): return k
---
import torch
func = torch.arange(«3|4»).tolist
---
import torch
class Data(torch.utils.data.Dataset):
    def __init__(self, k): self.k = k
    def __getitem__(self, i): return [self.k[i]]
    def __len__(self): return 2
df = DataFromList(Data([1, «2|3»]))
---
import torch
k = torch.nn.Parameter(torch.ones(«1|2»))
def func(dp): return k
---
import pandas as pd
k = pd.DataFrame({"a": [1, «2|3|2.0»]})
def func(dp): return k
---
import pandas as pd
k = pd.Series(["a", "«b|c»"], name="x")
def func(dp): return k
---
import pandas as pd
k = pd.DataFrame({"a": [1, 2]}, index=[0, «1|2»])
df = TableData(k)
---
import polars as pl
k = pl.DataFrame({"a": [1, «2|3»]})
df = TableData(k)
---
import pyarrow as pa
k = pa.table({"a": [1, «2|3»]})
df = TableData(k)
---
import pyarrow as pa
k = pa.array([1, «2|3»])
def func(dp): return k
---
import scipy.sparse as sp
k = sp.csr_matrix(np.diag([1., «2|3»]))
def func(dp): return k
---
import scipy.special as s
func = s.«expit|logit»
---
from PIL import Image
k = Image.fromarray(np.full((2, 2), «1|2», np.uint8))
def func(dp): return k
---
import jax.numpy as jnp
k = jnp.arange(«3|4»)
def func(dp): return k
---
import jax
f = jax.jit(lambda x: x + «1|2»)
def func(dp): return f(dp)
---
import torchvision.transforms as T
t = T.Compose([T.Resize(«3|4»)])
func = t
---
import torchvision.transforms.v2 as T
func = T.Compose([T.Resize(«3|4»)])
---
import torchvision.transforms.functional as F
def func(dp): return F.resize(dp, «3|4»)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("row", OF_LIBRARIES, ids=range(len(OF_LIBRARIES)))
def test_a_change_of_what_a_library_made_is_noticed(row):
    pytest.importorskip(re.split(r"[ .\n]", row)[1])
    found = {}
    for source in variants(row):
        text = described(source)
        assert found.setdefault(text, source) == source
        assert described(source) == text


REFUSED = rows(
    """
more than 60 levels of containers
k = []
for _ in range(70): k = [k]
def func(dp): return k
---
sets in objects in sets
class A:
    def __init__(self, held): self.held = held
k = A(1)
for _ in range(9): k = A({k})
def func(dp): return k
---
array Sub holds a generator
class Sub(np.ndarray): pass
k = np.array([(n for n in [1])], object).view(Sub)
def func(dp): return k
---
holds a generator
df = DataFromGenerator(k for k in range(3))
---
holds a TextIOWrapper
file = open(os.devnull)
def func(dp): return file.read()
---
holds a TextIOWrapper
def make(held): return lambda dp: held.read()
file = open(os.devnull)
func = make(file)
---
holds a BufferedReader
class A:
    def __call__(self, dp): return self.held.read()
func = A()
file = func.held = open(os.devnull, "rb")
---
holds a generator
values = (k for k in range(3))
def func(dp): return next(values)
---
holds a list_iterator
values = iter([1])
def func(dp): return next(values)
---
holds a map
values = map(abs, [1])
def func(dp): return next(values)
---
holds a count
import itertools
values = itertools.count()
def func(dp): return next(values)
---
holds a socket
import socket
values = socket.socket()
values.close()
def func(dp): return values
---
holds a memoryview
values = memoryview(b"abc")
def func(dp): return values[0]
---
holds a ufunc
func = np.frompyfunc(lambda x: x + 1, 1, 1)
---
holds a Struct
import struct
func = struct.Struct("i").pack
---
names helper, which does not exist yet
def func(dp): return helper(dp)
---
uses import_module
import importlib
def func(dp): return importlib.import_module("math").sin(1)
---
uses __import__
def func(dp): return __import__("math").sin(1)
---
uses sys.modules
import sys
def func(dp): return sys.modules[__name__].SIZE
---
uses __subclasses__
class A: pass
def func(dp): return [cls.size for cls in A.__subclasses__()]
---
uses __doc__
def func(dp): return func.__doc__
---
uses __annotations__
class A:
    size: int
def func(dp): return A.__annotations__
---
k in func holds a ReferenceType
import weakref
class A: pass
one = A()
k = weakref.ref(one)
def func(dp): return k()
---
holds a A
class A:
    def __reduce__(self): raise TypeError
    def __call__(self, dp): return dp
func = A()
"""
)


def test_a_function_of_an_extension_module_of_the_program_changes_with_its_file(tmp_path, monkeypatch):
    """Of one without a module to compile: a function of `math` says that it is from there."""
    module = types.ModuleType("extension_of_the_program")
    module.__file__ = str(tmp_path / f"it{importlib.machinery.EXTENSION_SUFFIXES[0]}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(math.cbrt, "__module__", module.__name__)
    found = set()
    for content in ("one", "other", "third one"):
        Path(module.__file__).write_text(content)
        found.add(describe(MapData(DataFromList([[1]]), math.cbrt)))
    assert len(found) == 3


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.split("\n")[0])
def test_what_cannot_be_described_is_refused_with_the_cure(row):
    message, source = row.split("\n", 1)
    with pytest.raises(TypeError, match=rf"{message}.*fingerprint="):
        described(source)


EQUAL = rows(
    '''
k = "«__main__|__mp_main__»"
def func(dp): return k
---
def func(dp): return dp  «|# a comment|# another»
---
«|\n\n\n|# moved\n»def func(dp): return dp
---
def func(dp):
    «"""Old."""|"""New: words."""»
    return dp
---
class A:
    """«Old|New»."""
    def __call__(self, dp):
        """«Old|New»."""
        return dp
func = A()
---
def func(dp):
    x = (dp[0] +«|\n         »1)
    return x
---
def func(dp):
    «x|y» = dp
    return «x|y»
---
def func(«dp: list|dp»): return dp
---
def func(dp)«| -> list»: return dp
---
UNUSED = «1|2»
def func(dp): return dp
---
def unused(): return «1|2»
def func(dp): return dp
---
class Unused:
    size = «1|2»
def func(dp): return dp
---
size = «1|2»
def func(dp): return dp.size
---
k = {«"a", "b", "c"|"c", "a", "b"»}
def func(dp): return dp in k
---
k = frozenset([«1, 2, "x"|"x", 2, 1»])
def func(dp): return dp in k
---
k = {«(1, "a"), (2, "b")|(2, "b"), (1, "a")»}
def func(dp): return dp in k
---
import functools
@functools.lru_cache
def helper(x): return x
«|helper(1)|helper(2)»
def func(dp): return helper(dp[0])
---
import pickle
class A:
    __slots__ = ("k",)
    def __call__(self, dp): return dp
func = A()
func.k = 1
«|func.__reduce_ex__(4)»
---
import enum
class Mode(enum.Flag):
    A = 1
    B = 2
«|Mode(3)»
def func(dp): return Mode.A
---
import abc
class A(abc.ABC):
    def __call__(self, dp): return dp
func = A()
«|isinstance(3, A)»
---
import random
«|random.random()»
def func(dp): return random.random()
---
import random
«|random.random()»
def func(dp): return random.randint(0, 3)
---
from random import randint, random, shuffle
«|random()»
def func(dp): return randint(0, 3) + random()
---
«|np.random.rand()»
def func(dp): return np.random.rand()
---
rand = np.random.rand
«|np.random.rand()»
def func(dp): return rand()
---
import logging
log = logging.getLogger("«a|b»")
def func(dp): log.info("x")
---
import threading
lock = threading.«Lock|Lock»()
«|lock.acquire()»
def func(dp):
    with lock: return dp
---
from math import sin
def func(dp): return sin(dp[0])
OTHER = «sin|None»
---
«one = 1|one = 0 + 1»
def func(dp): return one
---
k = np.arange(4)«|.copy()|[:]»
def func(dp): return k
---
k = np.arange(4).reshape(2, 2)«|.copy(order="F")»
def func(dp): return k
---
k = np.zeros(2, np.dtype([("a", "i1"), ("b", "i4")], align=True))«|.copy()»
def func(dp): return k
---
k = [«"ab"|"a" + "b"|str(b"ab", "ascii")|"".join(["a", "b"])»]
def func(dp): return k
---
k = [«(1, 2), (1, 2)|*[(1, 2)] * 2|tuple([1, 2]), tuple([1, 2])»]
def func(dp): return k
---
k = [«[1], [1]|*[[1]] * 2»]
def func(dp): return k
---
k = 1000
j = «k|500 + 500|int("1000")»
def func(dp): return [k, j]
---
class A: pass
func = A()
«func.a = 1; func.b = 2|func.b = 2; func.a = 1»
A.__call__ = lambda self, dp: dp
---
class A:
    «def f(self): return 1|def g(self): return 2»
    «def g(self): return 2|def f(self): return 1»
    def __call__(self, dp): return dp
func = A()
---
«import math, re|import re, math»
def func(dp): return math.sqrt(dp[0])
---
import re
func = re.compile("a").sub
«|re.purge()»
---
import copy
class A:
    def __init__(self): self.k = [1, {2: 3}]
    def __call__(self, dp): return self.k
func = «A()|copy.copy(A())|copy.deepcopy(A())»
---
import copy
class A:
    def __init__(self): self.me, self.k = self, 1
    def __call__(self, dp): return self.k
func = «A()|copy.deepcopy(A())»
---
def make(k): return lambda dp: k
func = make(1)
«|func = make(1)»
---
def make():
    def inner(dp): return inner
    return inner
func = make()
«|func = make()»
---
df = DataFromList([[1], [2]], packed=«True|False»)
---
df = MapData(DataFromList([[1]]), abs«|, max_failures=3»)
---
df = «MapData(DataFromList([[1]]), abs)|MultiThreadMapData(DataFromList([[1]]), 2, abs, strict=True)|
MultiProcessMapData(DataFromList([[1]]), 3, abs, strict=True)|
MultiProcessMapData(DataFromList([[1]]), 2, abs, strict=True, buffer_size=9)»
---
df = «DataFromList([[1]])|MultiProcessRunnerZMQ(DataFromList([[1]]), 2, strict=True)|
MultiThreadRunner(lambda: DataFromList([[1]]), 2, 2, strict=True)»
---
df = DataFromList([[1], [2]])
«|list(df)|df.reset_state()|df[0]»
---
df = MapData(DataFromList([[1], [2]]), lambda dp: dp)
«|list(df)|repr(df)|df.close()»
---
class Source(DataFlow):
    def __iter__(self): yield 1
df = Source()
«|list(df)|df.reset_state()»
---
class Aug(MapData, RNGDataFlow):
    def __init__(self, ds): super().__init__(ds, self.work)
    def work(self, dp): return [self.rng.random()]
df = Aug(DataFromList([[1]]))
«|list(df)»
---
import dataflow
«|dataflow.seed(3)|dataflow.seed(4)»
df = DataFromList([[1]])
dataflow.seed(None)
---
import os
«|os.environ["UNUSED_HERE"] = "1"»
def func(dp): return os.environ.get("UNUSED_HERE")
---
import contextlib
@contextlib.contextmanager
def scope(): yield 1
def func(dp):
    with scope(): return 1«|  # one»
---
from dataclasses import dataclass
@dataclass
class A:
    size: int = 1
«|A(); repr(A()); A() == A()»
def func(dp): return A()
---
assert True«|, "always"»
def func(dp): return dp
---
if «True|1»:
    def func(dp): return dp
---
def func(dp):
    return «(dp)|((dp))|dp»
---
import sys
def func(dp): return sys.maxsize
«|sys.setrecursionlimit(sys.getrecursionlimit())»
---
from os import environ
environ["OF_A_TEST"] = "«1|2»"
def func(dp): return environ.get("OF_A_TEST")
del environ["OF_A_TEST"]
---
from sys import stderr
def func(dp): print(dp, file=stderr)  «|# aside»
---
class Lazy:
    def __getattr__(self, name): raise «RuntimeError|RuntimeError»
k = Lazy()
def func(dp): return k
---
k = range(«5|0, 5|0, 5, 1»)
def func(dp): return k
---
k = «1e3|1000.0|10.0 * 100»
def func(dp): return k
'''
)


@pytest.mark.parametrize("row", EQUAL, ids=range(len(EQUAL)))
def test_what_decides_nothing_changes_nothing(row):
    found = [described(source) for source in variants(row)]
    assert found == [found[0]] * len(found)


# -- modules, processes ------------------------------------------------------------------------------------------------

PROGRAM = """
import enum, functools, logging, os, re, sys
import numpy as np
import project.config as config
from project import tools
from dataflow import *

log = logging.getLogger(__name__)
SIZES = {"small", "large", "huge", 3, (1, 2)}

class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"

class Scale:
    by = {Mode.FAST, Mode.SLOW}
    def __init__(self, k): self.k = k
    def __call__(self, dp): return [dp[0] * self.k * config.SIZE, len(SIZES)]

def late(dp):
    from project.tools import twice
    import project.later
    return [twice(k) for k in dp] + [project.later.ONE]

def build():
    df = DataFromList([[1], [2]], shuffle=False)
    df = MapData(MapData(df, Scale(2)), lambda dp: [tools.twice(dp[0]), *dp])
    return MapDataComponent(MapData(df, late), {2: 3}.get, 1)
"""
CONFIG = "SIZE = 224\nUNUSED = 1\n"
TOOLS = "FACTOR = 2\ndef twice(x): return x * FACTOR\n"
LATER = "ONE = 1\n"
MAIN = """
if __name__ == '__main__':
    from dataflow.protocol.fingerprints import describe
    print(describe(build()))
"""


@pytest.fixture
def project(tmp_path):
    """A function that writes a program of several modules, and returns the description that a new process finds."""

    def run(*, config=CONFIG, tools=TOOLS, later=LATER, program=PROGRAM, way=("job.py",), hash_seed="0"):
        package = tmp_path / "project"
        package.mkdir(exist_ok=True)
        files = {"__init__": "", "config": config, "tools": tools, "later": later}
        for name, source in files.items():
            (package / f"{name}.py").write_text(source)
        (tmp_path / "job.py").write_text(program + MAIN)
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, *way]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.slow
def test_every_program_is_described_alike_in_another_process():
    program = (
        "from dataflow.protocol.fingerprints import digest\nfrom tests.protocol.test_fingerprint_changes import *\n"
        "for row in CHANGES + EQUAL:\n"
        "    for source in variants(row): print(digest(described(source)), repr(source))"
    )
    outputs = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=200
        )
        outputs.append(done.stdout.splitlines())
    assert [pair for pair in zip(*outputs, strict=True) if pair[0] != pair[1]] == []


CHILD = """
def work():
    from dataflow.protocol.fingerprints import describe
    print(describe(build()), flush=True)

if __name__ == "__main__":
    import multiprocessing
    for method in ("fork", "spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=work)
        process.start()
        process.join()
"""


@pytest.mark.slow
def test_another_process_with_another_hash_seed_or_start_method_finds_the_same(project):
    first = project()
    assert "SIZE = 224" in first
    assert project(hash_seed="1", way=["-m", "job"]) == first
    imported = "import job; from dataflow.protocol.fingerprints import describe; print(describe(job.build()))"
    assert project(hash_seed="2", way=["-c", imported]) == first
    assert project(program=PROGRAM + CHILD) == first * 4


@pytest.mark.slow
def test_modules_of_the_program_are_followed(project):
    first = project()
    assert project(config=CONFIG.replace("UNUSED = 1", "UNUSED = 2"), tools="# a comment\n\n" + TOOLS) == first
    changed = [
        project(config="SIZE = 256\n"),
        project(tools=TOOLS.replace("FACTOR = 2", "FACTOR = 3")),
        project(tools=TOOLS.replace("x *", "x +")),
        project(later="ONE = 2\n"),
    ]
    assert len({first, *changed}) == 5


INSTALLED = """
import sys
sys.path[:0] = ["site-packages"]
import plain, space.part, own_project
from dataflow.protocol.fingerprints import describe
from dataflow import DataFromList, MapData
def func(dp): return plain.f(dp), space.part.f(dp), own_project.f(dp)
def later(dp):
    import space.part
    return space.part.f(dp)
print(describe(MapData(MapData(DataFromList([[1]]), func), later)))
"""


@pytest.mark.slow
def test_installed_packages_count_by_version_and_what_was_installed_from_its_folder_by_code(tmp_path):
    def install(name, module, version, code, origin=None):
        path = tmp_path / "site-packages" / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def f(dp): return {code}")
        info = tmp_path / "site-packages" / f"{name}-1.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text(f"{module},,\n")
        if origin is not None:
            (info / "direct_url.json").write_text(origin)

    def described_with(plain=("1.0", "1"), part=("1.0", "1"), own=("1.0", "1")):
        install("plain", "plain.py", *plain)
        install("space_part", "space/part.py", *part)
        install("own_project", "own_project.py", *own, origin='{"url": "file:///x", "dir_info": {}}')
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", INSTALLED]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=100
        )
        return done.stdout

    first = described_with()
    assert described_with(plain=("1.0", "2"), part=("1.0", "2")) == first
    changed = [described_with(plain=("1.1", "1")), described_with(part=("1.1", "1")), described_with(own=("1.0", "2"))]
    assert len({first, *changed}) == 4
