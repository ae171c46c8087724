"""Random generators that are not this library's: those of `random`, NumPy and torch, and those that functions hold.

The global ones can be seeded for each datapoint (`SeededGlobals`). Whether a function has drawn from one is seen from
its state before and after the call (`drawn_from`): a generator that the function seeds itself does not count. A seed
that gives the state from before looks like a draw in a single call, so functions that may seed (`may_seed`) are judged
by several.
"""

from __future__ import annotations

import itertools
import operator
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from functools import partial
from types import FunctionType, GeneratorType
from typing import Any, Final

import numpy as np

from dataflow.protocol.seeding import Rng
from dataflow.protocol.state import is_flow
from dataflow.system.references import MAX_ITEMS, is_of_library, parts, reached, reads_of

__all__ = [
    "SeededGlobals",
    "drawn_from",
    "global_generators",
    "global_states",
    "held_generators",
    "held_numbers",
    "holds_global",
    "may_seed",
    "mentions_globals",
    "names_any",
    "states_of",
    "set_global_states",
]


# -- Global generators -------------------------------------------------------------------------------------------------


def global_states() -> tuple[Any, Any, Any]:
    """The states of the global generators of `random`, NumPy and, if it is imported, torch (on the CPU)."""
    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(legacy=False), torch and torch.default_generator.get_state()


def set_global_states(states: tuple[Any, Any, Any]) -> None:
    """Put the global generators into states that `global_states` has returned."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    if states[2] is not None:
        sys.modules["torch"].default_generator.set_state(states[2])


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
        saved = global_states()
        try:
            return self._call_seeded(words, value)
        finally:
            set_global_states(saved)

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
    """Whether code that `func` reaches names a module with a global generator."""
    return names_any(func, frozenset({"random", "torch", "rand", "randn", "randint"}))


# -- Generators that a function holds ----------------------------------------------------------------------------------


_SEEDING: Final = frozenset({"seed", "manual_seed", "setstate", "set_state", "state", "__setstate__"})


def held_generators(func: object) -> dict[str, Any]:
    """The random generators that `func` reaches through closures, defaults, partials, attributes and globals, by name.

    Those that are global to their module are not among them.
    """
    apart = {id(generator) for generator in global_generators().values()}
    found: dict[str, Any] = {}
    for where, value in _reached(func):
        if _is_generator(value) and id(value) not in apart:
            apart.add(id(value))
            name = where.partition(" in ")[0]
            found[f"{name}, {len(found) + 1}" if name in found else name] = value
    return found


def held_numbers(func: object, *, in_libraries: bool = True) -> dict[str, Any]:
    """The numbers in attributes and closures that `func` reaches, and how far its iterators are, by name.

    Without `in_libraries`, those in objects of libraries are left out, such as that of a semaphore.
    """
    found: dict[str, Any] = {}
    for where, value in reached([("func", func)], _parts if in_libraries else _parts_of_user):
        if type(value) in (int, float):
            found[where] = value
        elif isinstance(value, itertools.count):
            found[where] = repr(value)
        elif isinstance(value, Iterator) and hasattr(value, "__length_hint__"):
            found[where] = operator.length_hint(value)
    return found


def may_seed(func: object) -> bool:
    """Whether code that `func` reaches names a way to set the state of a generator."""
    return names_any(func, _SEEDING)


def holds_global(func: object) -> bool:
    """Whether `func` reaches a method of a global generator by another name, as of ``from random import shuffle``."""
    apart = {id(generator) for generator in global_generators().values()}
    return any(id(getattr(value, "__self__", None)) in apart for _, value in _reached(func) if callable(value))


def names_any(func: object, names: Set[str]) -> bool:
    """Whether code that `func` reaches has one of these names."""
    found = [value for _, value in _reached(func)]
    methods = [item for kind in found if isinstance(kind, type) for item in vars(kind).values()]  # also of libraries
    codes = [item.__code__ for item in found + methods if isinstance(item, FunctionType)]
    codes += [item.gi_code for item in found if isinstance(item, GeneratorType)]
    return any(not names.isdisjoint(reads_of(code).names) for code in codes)


def _reached(func: object) -> Iterator[tuple[str, Any]]:
    return reached([("func", func)], _parts)


def _is_generator(value: object) -> bool:
    if isinstance(value, random.Random | np.random.Generator | np.random.RandomState | np.random.BitGenerator):
        return not isinstance(value, random.SystemRandom)
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Generator", ()))


def _parts(where: str, value: Any) -> Iterable[tuple[str, Any]]:
    if _is_generator(value):
        return ()
    if isinstance(value, list | tuple) and value and _is_generator(value[0]):
        return [(f"{where}[{k}]", item) for k, item in enumerate(value[:MAX_ITEMS])]
    if isinstance(value, type) and is_of_library(value):
        return [(f"{value.__name__}.{name}", item) for name, item in vars(value).copy().items() if _is_generator(item)]
    found = parts(where, value)
    if is_flow(value):  # the nodes that it holds are called by themselves
        return [(name, item) for name, item in found if "._df_" not in name and not is_flow(item)]
    return found


def _parts_of_user(where: str, value: Any) -> Iterable[tuple[str, Any]]:
    kind = type(value)
    is_object = kind.__module__ != "builtins" and not isinstance(value, type | partial)
    return () if is_object and is_of_library(kind) else _parts(where, value)


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
