"""Programs with alternatives, and how a map or a flow of them is described.

Each row is the source of a program, with alternatives between double angle quotes: «one|
another». All programs of a row must have different descriptions (CHANGES, OF_LIBRARIES), or all the same (EQUAL). A row
that is refused (REFUSED) begins with words of the error. A program without `func` and `df` has a `func` that returns k.
"""

import itertools
import re

from dataflow import DataFromList, MapData
from dataflow.protocol.fingerprints import describe

HEAD = """
import abc, array, contextlib, copy, datetime, enum, functools, itertools, logging, operator, os, pickle, random, re
import struct, sys, threading, types, typing, uuid, weakref
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple
import numpy as np
from dataflow import *
"""


def variants(template):
    """The programs that a row stands for: the k-th has the k-th of all alternatives."""
    choices = [re.split(r"\|\n?", found) for found in re.findall(r"«(.*?)»", template, re.DOTALL)]
    for k in range(max(map(len, choices))):
        numbers = itertools.count()
        yield re.sub(r"«.*?»", lambda _, k=k, n=numbers: choices[next(n)][k], template, flags=re.DOTALL)


def described(source):
    """The description of a map by `func`, or of the flow `df`, of a program."""
    program = {"__name__": "job"}
    if not re.search(r"\b(func|df)\b", source):
        source += "\ndef func(dp): return k"
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
---
k = np.zeros(«2|3», "V0")
---
import tempfile
file = tempfile.NamedTemporaryFile()
k = np.memmap(file, np.uint8, "w+", shape=2)
k[0] = «1|2»
---
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
func = re.compile("«a|b|(a)»").sub
---
func = re.compile("a"«|, re.I|, re.M»).sub
---
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
func = operator.itemgetter(«0|1|slice(2)»)
---
func = operator.attrgetter("«real|imag»")
---
func = operator.methodcaller("«a|b»", 1)
---
func = str.«upper|lower|title»
---
func = functools.partial(«min|max», 1)
---
func = functools.partial(max, «1|2|default=1|key=len»)
---
func = functools.partial(functools.partial(max, «1|2»), 3)
---
@functools.lru_cache
def func(dp): return «1|2»
---
SIZE = «1|2»
@functools.cache
def helper(x): return SIZE
def func(dp): return helper(1)
---
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
def twice(f):
    @functools.wraps(f)
    def wrapper(dp): return f(f(dp))
    return wrapper
@twice
def func(dp): return [dp[0] + «1|2»]
---
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
---
class Mine(dict): pass
k = Mine(a=«1|2»)
---
class Mine(float): pass
k = Mine(«1|2»)
---
class Mine(int): pass
k = Mine(«1|2»)
---
class Mine(str): pass
k = Mine("«a|b»")
---
class Mine(tuple): pass
k = Mine((1, «1|2»))
---
class Mine(set): pass
k = Mine({1, «1|2»})
---
class Mine(bytes): pass
k = Mine(b"«a|b»")
---
class Mine(str): pass
k = Mine("a")
k.size = «1|2»
def func(dp): return k.size
---
class Mine(np.ndarray): pass
k = np.arange(«3|4»).view(Mine)
---
class Mine(np.ndarray): pass
k = np.arange(3).view(Mine)
k.unit = "«m|s»"
def func(dp): return k.unit
---
k = np.ma.array([1, 2], mask=[0, «0|1»])
---
k = np.ma.array([1, 2], mask=[0, 1], fill_value=«3|4»)
def func(dp): return k.filled()
---
k = OrderedDict(«a=1, b=2|b=2, a=1|a=1, b=3»)
---
k = OrderedDict(a=1, b=2)
«pass|k.move_to_end("a")»
def func(dp): return list(k)
---
k = Counter("«aab|abb»")
---
k = defaultdict(«list|int|lambda: 3|lambda: 4»)
def func(dp): return k[1]
---
k = deque([1, «2|3»]«|, 5»)
---
P = namedtuple("P", "«x y|x z|y x»")
def func(dp): return P(1, 2)._fields
---
P = namedtuple("P", "x y")
k = P(1, «2|3»)
---
k = ChainMap({1: «2|3»})
def func(dp): return k[1]
---
config = SimpleNamespace(size=«224|256»)
def func(dp): return config.size
---
from argparse import Namespace
config = Namespace(size=«224|256»)
def func(dp): return config.size
---
k = MappingProxyType({1: «1|2»})
def func(dp): return k[1]
---
class Mode(enum.Enum):
    ONE = «1|2»
def func(dp): return Mode.ONE.value
---
class Mode(enum.Enum):
    ONE = 1
    TWO = 2
    def twice(self): return self.value * «2|3»
k = Mode.«ONE|TWO»
def func(dp): return k.twice()
---
class Mode(enum.IntFlag):
    A = 1
    B = 2
k = «Mode.A|Mode.B|Mode.A + Mode.B»
---
class Size(enum.Enum):
    def __new__(cls, code, pixels):
        member = object.__new__(cls)
        member._value_, member.pixels = code, pixels
        return member
    SMALL = ("s", «224|256»)
    LARGE = ("l", 512)
k = Size.LARGE
---
class Mode(enum.Enum):
    A = 1
    B = 2
Mode.A.next, Mode.B.next = Mode.B, [Mode.«A|B»]
k = Mode.A
---
@dataclass
class Config:
    size: int = «224|256»
    def __call__(self, dp): return self.size
func = Config()
---
@dataclass
class Config:
    sizes: list = field(default_factory=lambda: [«224|256»])
def func(dp): return Config().sizes
---
@dataclass(frozen=«True|False»)
class Config:
    size: int = 1
def func(dp): return Config()
---
@dataclass(slots=True)
class Config:
    size: int = 1
k = Config(«1|2»)
def func(dp): return k.size
---
@dataclass
class Config:
    «a: int = 1; b: int = 1|b: int = 1; a: int = 1»
def func(dp): return repr(Config())
---
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
---
k = np.zeros(2, np.dtype("f4", metadata={"unit": «1|2»}))
def func(dp): return k.dtype.metadata
---
k = np.array([«0.0|-0.0|np.nan|1»])
---
k = np.array([«1|2|None|"a"|[1]|True|1.0»], dtype=object)
---
k = np.arange(6).reshape(«2, 3|3, 2|6|1, 6»)
---
k = np.array(["«a|b»", "cc"])
---
k = np.datetime64("2020-01-0«1|2»")
---
k = np.array(["2020-01-0«1|2»"], "M8[«D|D»]")
---
k = «np.float32(1)|np.float64(1)|np.int8(1)|np.uint8(1)|np.bool_(1)|np.str_("1")|np.bytes_(b"1")»
---
k = np.zeros(1, [("a", "i4")])[0]
k["a"] = «1|2»
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
rng = random.Random(«1|2»)
def func(dp): return rng.random()
---
k = datetime.«date(2020, 1, 1)|date(2020, 1, 2)|timedelta(1)|timedelta(2)»
---
k = «Decimal("1")|Decimal("1.0")|Fraction(1)|Fraction(1, 2)»
---
k = Path("«a|b|a/b»")
---
k = uuid.UUID(int=«1|2»)
---
k = array.array("«i|f|h»", [1, 2])
---
k = bytearray(b"«a|b»")
---
k = slice(«1|2|1, 2|1, 2, 3|None»)
def func(dp): return dp[k]
---
k = [1]
k.append(«k|1|[k]|[[1]]»)
---
k = {}
k["self"] = k
k["size"] = «1|2»
---
class Tree:
    def __init__(self, parent, size):
        self.parent, self.size, self.children = parent, size, []
        if parent: parent.children.append(self)
k = Tree(None, 1)
Tree(Tree(k, 2), «3|4»)
---
class A:
    def __init__(self, k): self.k = k
one = A(1)
k = [one, «one|A(1)|A(2)»]
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
lock = threading.Lock()
def func(dp):
    with lock: return «1|2»
---
log = logging.getLogger(__name__)
def func(dp):
    log.info("x")
    return «1|2»
---
@functools.singledispatch
def func(dp): return dp
@func.register
def of_numbers(dp: int): return «1|2»
---
class A:
    method = functools.partialmethod(lambda self, k, dp: k, «1|2»)
func = A().method
---
func = np.vectorize(lambda x: x + «1|2»)
---
func = np.poly1d([1, «2|3»])
---
k = np.longdouble(«1|2»)
---
k = np.array([1, «2|3»], np.longdouble)
---
k = np.rec.array([(1, «2|3»)], dtype=[("a", "i4"), ("b", "i4")])
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
T = typing.TypeVar("T")
class Config(typing.Generic[T]):
    size: typing.«Optional[T]|List[T]»
def func(dp): return Config
---
k = [np.array([«1|2»]), "a"]
---
class Numbers(DataFlow):
    __slots__ = ("num",)
    def __init__(self, num): self.num = num
    def __iter__(self): yield self.num
df = Numbers(«1|2»)
"""
)


OF_LIBRARIES = rows(
    """
import torch
k = torch.arange(«3|4|3.0|3, dtype=torch.int32»)
---
import torch
k = torch.zeros(«2, 3|3, 2|6|2, 3, dtype=torch.bfloat16|0|2, 3, requires_grad=True»)
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
---
import pandas as pd
k = pd.DataFrame({"a": [1, «2|3|2.0»]})
---
import pandas as pd
k = pd.Series(["a", "«b|c»"], name="x")
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
---
import scipy.sparse as sp
k = sp.csr_matrix(np.diag([1., «2|3»]))
---
import scipy.special as s
func = s.«expit|logit»
---
from PIL import Image
k = Image.fromarray(np.full((2, 2), «1|2», np.uint8))
---
import jax.numpy as jnp
k = jnp.arange(«3|4»)
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


REFUSED = rows(
    """
more than 60 levels of containers
k = []
for _ in range(70): k = [k]
---
sets in objects in sets
class A:
    def __init__(self, held): self.held = held
k = A(1)
for _ in range(9): k = A({k})
---
array Sub holds a generator
class Sub(np.ndarray): pass
k = np.array([(n for n in [1])], object).view(Sub)
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


EQUAL = rows(
    '''
k = "«__main__|__mp_main__»"
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
@functools.lru_cache
def helper(x): return x
«|helper(1)|helper(2)»
def func(dp): return helper(dp[0])
---
class A:
    __slots__ = ("k",)
    def __call__(self, dp): return dp
func = A()
func.k = 1
«|func.__reduce_ex__(4)»
---
class Mode(enum.Flag):
    A = 1
    B = 2
«|Mode(3)»
def func(dp): return Mode.A
---
class Mode(enum.Enum):
    A = 1
    @functools.cached_property
    def twice(self): return 2 * self.value
«|Mode.A.twice»
def func(dp): return Mode.A.twice
---
class A(abc.ABC):
    def __call__(self, dp): return dp
func = A()
«|isinstance(3, A)»
---
«|random.random()»
def func(dp): return random.random()
---
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
log = logging.getLogger("«a|b»")
def func(dp): log.info("x")
---
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
---
k = np.arange(4).reshape(2, 2)«|.copy(order="F")»
---
k = np.zeros(2, np.dtype([("a", "i1"), ("b", "i4")], align=True))«|.copy()»
---
k = [«"ab"|"a" + "b"|str(b"ab", "ascii")|"".join(["a", "b"])»]
---
k = [«(1, 2), (1, 2)|*[(1, 2)] * 2|tuple([1, 2]), tuple([1, 2])»]
---
k = [«[1], [1]|*[[1]] * 2»]
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
func = re.compile("a").sub
«|re.purge()»
---
class A:
    def __init__(self): self.k = [1, {2: 3}]
    def __call__(self, dp): return self.k
func = «A()|copy.copy(A())|copy.deepcopy(A())»
---
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
@contextlib.contextmanager
def scope(): yield 1
def func(dp):
    with scope(): return 1«|  # one»
---
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
---
k = range(«5|0, 5|0, 5, 1»)
---
k = «1e3|1000.0|10.0 * 100»
'''
)
