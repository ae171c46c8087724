"""Random generators that are not this library's: those of `random`, NumPy and torch, and those that functions hold.

The global ones can be seeded for each datapoint (`SeededGlobals`). Whether a function has drawn from one is seen from
its state before and after the call (`drawn_from`): a generator that the function seeds itself does not count. A seed
that gives the state from before looks like a draw in a single call, so functions that may seed (`may_seed`) are judged
by several.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np

from dataflow.base import DataFlow
from dataflow.parameters import called_by
from dataflow.seeding import Rng

__all__ = [
    "SeededGlobals",
    "drawn_from",
    "global_generators",
    "held_generators",
    "may_seed",
    "mentions_globals",
    "states_of",
]


# -- Global generators -------------------------------------------------------------------------------------------------


class SeededGlobals:
    """`func`, called with the global generators of `random`, NumPy and torch (on the CPU) seeded for the datapoint.

    In a worker process they stay as the function leaves them; elsewhere they are restored after each call.

    Args:
        func: Takes one argument.
        rng: Returns the datapoint's own generator, at its beginning.
        restores: Whether to restore the generators, because other code of this process draws from them.
    """

    def __init__(self, func: Callable[[Any], Any], rng: Callable[[], Rng], restores: bool) -> None:
        self._func = func
        self._rng = rng
        self._restores = restores
        self.__qualname__ = getattr(func, "__qualname__", None) or repr(func)

    def __call__(self, value: Any) -> Any:
        words = self._rng().bit_generator.random_raw(5)
        if not self._restores:
            return self._call_seeded(words, value)
        torch = sys.modules.get("torch")
        saved = random.getstate(), np.random.get_state(legacy=False), torch and torch.default_generator.get_state()
        try:
            return self._call_seeded(words, value)
        finally:
            random.setstate(saved[0])
            np.random.set_state(saved[1])
            if torch is not None:
                torch.default_generator.set_state(saved[2])

    def _call_seeded(self, words: Any, value: Any) -> Any:
        first, second, *_, last = words.tolist()
        random.seed(first << 64 | second)
        np.random.seed(words[2:4].view(np.uint32))
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.default_generator.manual_seed(last >> 1)
            return self._func(value)
        out = self._func(value)
        if "torch" in sys.modules:
            self._require_nothing_drawn(sys.modules["torch"])
        return out

    def _require_nothing_drawn(self, torch: Any) -> None:
        """The call has imported torch, whose generator was not seeded for it."""
        if not torch.equal(torch.default_generator.get_state(), torch.Generator().get_state()):
            raise RuntimeError(
                f"{self.__qualname__} has imported torch and drawn from its generator within one call, so that "
                "seed_globals=True could not seed it before. Import torch at the top of the file"
            )


_NUMPY: Final[Any] = np.random.random.__self__  # type: ignore[attr-defined]  # the global RandomState
_RANDOM: Final[Any] = random.random.__self__  # type: ignore[attr-defined]


def global_generators() -> dict[str, Any]:
    """The global generators, by the name of their module."""
    found = {"random": _RANDOM, "numpy.random": _NUMPY}
    torch = getattr(sys.modules.get("torch"), "default_generator", None)
    return found if torch is None else found | {"torch": torch}


def mentions_globals(func: object) -> bool:
    """Whether the code of a function names a module with a global generator."""
    func = getattr(func, "__func__", func)
    while isinstance(func, partial):
        func = func.func
    code = getattr(func, "__code__", None) or getattr(called_by(func), "__code__", None)
    return code is not None and not names_in(code).isdisjoint({"random", "torch", "rand", "randn", "randint"})


# -- Generators that a function holds ----------------------------------------------------------------------------------


_MAX_OBJECTS: Final = 1000
_MAX_ITEMS: Final = 32  # a longer list is data, and is not searched
_SEEDING: Final = frozenset({"seed", "manual_seed", "setstate", "set_state", "state", "__setstate__"})
_ATOMS: Final = (bool, int, float, complex, str, bytes, type(None), np.ndarray, ModuleType, BuiltinFunctionType)


def held_generators(func: object) -> dict[str, Any]:
    """The random generators that `func` reaches through closures, defaults, partials, attributes and globals, by name.

    Those that are global to their module are not among them.
    """
    found: dict[str, Any] = {}
    for name, value in _reached(func):
        if _is_generator(value):
            found[f"{name}, {len(found) + 1}" if name in found else name] = value
    return found


def may_seed(func: object) -> bool:
    """Whether code that `func` reaches, of functions and methods, names a way to set the state of a generator."""
    reached = [value for _, value in _reached(func)]
    methods = [item for kind in reached if isinstance(kind, type) for item in vars(kind).values()]
    codes = (item.__code__ for item in reached + methods if isinstance(item, FunctionType))
    return any(not _SEEDING.isdisjoint(names_in(code)) for code in codes)


def _reached(func: object) -> Iterator[tuple[str, Any]]:
    seen = {id(generator) for generator in global_generators().values()}
    kept = [("it", func)]  # also keeps temporary objects, and so their ids
    for name, value in kept:
        if len(kept) > _MAX_OBJECTS:
            break
        if id(value) in seen or isinstance(value, _ATOMS):
            continue
        seen.add(id(value))
        yield name, value
        if not _is_generator(value):
            kept += _parts(value, name)


def _is_generator(value: object) -> bool:
    if isinstance(value, random.Random | np.random.Generator | np.random.RandomState | np.random.BitGenerator):
        return not isinstance(value, random.SystemRandom)
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Generator", ()))


def _parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What an object refers to, with names for messages."""
    if isinstance(value, FunctionType):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield variable, cell.cell_contents
            except ValueError:  # nothing is assigned yet
                pass
        yield from (("a default", item) for item in value.__defaults__ or ())
        yield from (value.__kwdefaults__ or {}).items()
        yield from ((used, value.__globals__[used]) for used in names_in(value.__code__) if used in value.__globals__)
    elif isinstance(value, MethodType):
        yield from ((name, value.__func__), ("self", value.__self__))
    elif isinstance(value, partial):
        yield from ((name, value.func), ("an argument", value.args), *value.keywords.items())
    elif isinstance(value, list | tuple | set | frozenset | Mapping) and len(value) <= _MAX_ITEMS:
        yield from ((name, item) for item in (list(value.values()) if isinstance(value, Mapping) else list(value)))
    elif isinstance(value, type):
        yield from ((f"{value.__name__}.{key}", item) for key, item in vars(value).items() if _is_generator(item))
        return
    if not isinstance(value, type):
        called = called_by(value)
        if isinstance(called, FunctionType):
            yield name, called
        yield from ((type(value).__name__, kind) for kind in type(value).__mro__ if kind is not object)
        for key, item in list(getattr(value, "__dict__", {}).items()):
            if not key.startswith("_df_") and not isinstance(item, DataFlow):  # other nodes are called by themselves
                yield f"{type(value).__name__}.{key}", item
        for key in (slot for kind in type(value).__mro__ for slot in _slots(kind)):
            if hasattr(value, key):
                yield f"{type(value).__name__}.{key}", getattr(value, key)


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def names_in(code: CodeType) -> set[str]:
    """The names of globals and attributes in a function's code, and in the functions that it makes."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


# -- States ------------------------------------------------------------------------------------------------------------


_WORDS: Final = 624  # of the state of a Mersenne Twister
_MAX_TWISTS: Final = 2000  # how much a single call may draw, in states, to be told from a seed


def states_of(generators: Mapping[str, Any]) -> dict[str, Any]:
    """The states of generators, to be compared with `drawn_from`."""
    found = {}
    for name, generator in generators.items():
        with suppress(Exception):  # of a class of the user, which has no state, or one of its own
            found[name] = _state_of(generator)
    return found


def _state_of(generator: Any) -> tuple[Any, Any]:
    """A pair: what a seed changes, and what each draw changes. Of a Mersenne Twister: its words, and where it is."""
    if isinstance(generator, random.Random):
        _, words, gauss = generator.getstate()
        return words[:-1], (words[-1], gauss)
    if isinstance(generator, np.random.RandomState):
        state: Any = generator.get_state(legacy=False)
        return _of_bit_generator(state)
    if isinstance(generator, np.random.Generator):
        generator = generator.bit_generator
    if isinstance(generator, np.random.BitGenerator):
        return _of_bit_generator(generator.state)
    return generator.initial_seed(), generator.get_state().numpy().tobytes()


def _of_bit_generator(state: Any) -> tuple[Any, Any]:
    inner = state["state"]
    if state["bit_generator"] == "MT19937":
        return tuple(inner["key"].tolist()), (inner["pos"], *(item for key, item in state.items() if key != "state"))
    with np.printoptions(threshold=sys.maxsize):
        return repr(inner.get("inc", inner.get("key"))), repr(state)


def drawn_from(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names of the generators that were drawn from, but not seeded, between two calls of `states_of`."""
    return [name for name, state in before.items() if name in after and _follows(state, after[name])]


def _follows(before: tuple[Any, Any], after: tuple[Any, Any]) -> bool:
    """Whether numbers were drawn between two states."""
    if before == after:
        return False
    if not isinstance(before[0], tuple):
        return bool(before[0] == after[0])
    if before[0] == after[0]:
        return bool(before[1][0] <= after[1][0])
    drawn, seeded = _twister(before[0], before[1][0]), _twister(after[0], 0)
    first = seeded.random_raw()  # of the words of the new state: the old one arrives there, or was seeded
    drawn.random_raw(_WORDS - before[1][0], output=False)
    return any(first in drawn.random_raw(_WORDS * 100)[::_WORDS] for _ in range(_MAX_TWISTS // 100))


def _twister(words: tuple[int, ...], position: int) -> np.random.MT19937:
    made = np.random.MT19937(0)
    state: Any = {"bit_generator": "MT19937", "state": {"key": np.array(words, np.uint32), "pos": position}}
    made.state = state
    return made
