"""The states of random generators as JSON: of those of `random` and NumPy, and of torch on the CPU.

A description is a list: the name of the kind, and the arguments of the function that sets the state. It is set in the
generator that is there, if that is of the same kind: others may hold it.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

__all__ = ["HAS_SPAWNED", "SETTERS", "describe_generator", "is_generator"]

HAS_SPAWNED: Final = "a generator that has spawned others"
_BIT_GENERATORS: Final = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}


def is_generator(value: Any) -> bool:
    """Whether `value` is a generator whose state can be described; one of a subclass may have more."""
    kind = type(value)
    if kind is np.random.Generator:
        return type(value.bit_generator).__name__ in _BIT_GENERATORS
    if kind.__name__ == "Generator" and kind.__module__.partition(".")[0] == "torch":
        return str(value.device) == "cpu"
    return kind in (random.Random, np.random.RandomState) or kind in _BIT_GENERATORS.values()


def describe_generator(value: Any) -> list[Any]:
    """The state of a generator; of one of NumPy, also how many others it has spawned, if any, which cannot be set."""
    kind = type(value)
    if kind is random.Random:
        version, numbers, gauss = value.getstate()
        return ["Random", version, list(numbers), gauss]
    if kind is np.random.RandomState:
        return ["RandomState", _with_lists(value.get_state(legacy=False))]
    if kind in _BIT_GENERATORS.values():
        return ["BitGenerator", kind.__name__, _with_lists(value.state)]
    if kind is np.random.Generator:
        bits = value.bit_generator
        spawned = getattr(getattr(bits, "seed_seq", None), "n_children_spawned", 0)
        return ["Generator", type(bits).__name__, _with_lists(bits.state), *([spawned] if spawned else [])]
    return ["torch.Generator", base64.b64encode(value.get_state().numpy().tobytes()).decode()]


def _with_lists(state: Any) -> Any:
    """The state of a bit generator of NumPy, which has arrays, and takes lists."""
    if isinstance(state, dict):
        return {name: _with_lists(held) for name, held in state.items()}
    return state.tolist() if isinstance(state, np.ndarray | np.generic) else state


def _checked(state: Any) -> Any:
    """The state of a bit generator of NumPy, which takes places in its numbers as they are: beyond, a draw would crash.

    Raises:
        ValueError: It is not a place.
    """
    for name, held, most in (("pos", state["state"], 624), ("buffer_pos", state, 4)):  # of MT19937, of Philox
        place = held.get(name, 0)
        if type(place) is not int or not 0 <= place <= most:
            raise ValueError(f"{name} is {place!r}, not an integer from 0 to {most}")
    return state


def _set_random(old: Any, version: int, numbers: Sequence[int], gauss: float | None) -> random.Random:
    made = old if type(old) is random.Random else random.Random()
    made.setstate((version, tuple(numbers), None if gauss is None else float(gauss)))
    return made


def _set_random_state(old: Any, state: Mapping[str, Any]) -> np.random.RandomState:
    made = old if type(old) is np.random.RandomState else np.random.RandomState()
    made.set_state(_checked(state))
    return made


def _set_bit_generator(old: Any, name: str, state: Mapping[str, Any]) -> Any:
    kind = _BIT_GENERATORS[name]
    made = old if type(old).__name__ == name else kind()
    made.state = _checked(state)
    return made


def _set_generator(old: Any, name: str, state: Mapping[str, Any], num_spawned: int = 0) -> np.random.Generator:
    held = old.bit_generator if type(old) is np.random.Generator else None
    bits = _set_bit_generator(held, name, state)
    return old if bits is held else np.random.Generator(bits)


def _set_torch(old: Any, text: str) -> Any:
    import torch

    made = torch.Generator() if old is None else old
    made.set_state(torch.from_numpy(np.frombuffer(base64.b64decode(text), np.uint8).copy()))
    return made


SETTERS: Final[dict[str, Callable[..., Any]]] = {
    "Random": _set_random,
    "RandomState": _set_random_state,
    "BitGenerator": _set_bit_generator,
    "Generator": _set_generator,
    "torch.Generator": _set_torch,
}
"""By the name of the kind: the function that sets the state of the generator that is there, or else of a new one."""
