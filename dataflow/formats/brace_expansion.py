"""Brace expansion of file names, as shells and WebDataset do it.

``{a,b}`` stands for either, ``{08..10}`` and ``{c..a}`` for a range, also downwards, ``{0..9..3}`` for every third of
one. Braces nest. Numbers are padded to one width if one of them begins with a zero. What is in braces otherwise stays.

Source:
    The package braceexpand, which WebDataset uses.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from itertools import product
from typing import Final

__all__ = ["expand_braces"]

_NUMBERS: Final = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
_LETTERS: Final = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?")
_ALPHABET: Final = string.ascii_uppercase + string.ascii_lowercase


def expand_braces(text: str) -> list[str]:
    """Return what `text` stands for.

    Raises:
        ValueError: A brace is not closed, or not opened.

    Example:
        >>> expand_braces("{train,test-{a,b}}-{08..10}.tar")[::4]
        ['train-08.tar', 'test-a-09.tar', 'test-b-10.tar']
    """
    parts: list[Sequence[str]] = []
    begin = level = 0
    for k, letter in enumerate(text):
        if letter == "{":
            if not level:
                parts.append([text[begin:k]])
                begin = k + 1
            level += 1
        elif letter == "}":
            level -= 1
            if not level:
                parts.append(_choices(text[begin:k]))
                begin = k + 1
        if level < 0:
            break
    if level:
        raise ValueError(f"{text!r} has a brace without its counterpart")
    return ["".join(chosen) for chosen in product(*parts, [text[begin:]])]


def _choices(inside: str) -> Sequence[str]:
    """Return what the inside of a pair of braces stands for."""
    if found := _NUMBERS.fullmatch(inside):
        first, last, step = found.groups()
        width = max(len(first), len(last)) if any(re.match("-?0.", end) for end in (first, last)) else 0
        return [f"{k:0{width}d}" for k in _range(int(first), int(last), step)]
    if found := _LETTERS.fullmatch(inside):
        first, last, step = found.groups()
        return [_ALPHABET[k] for k in _range(_ALPHABET.index(first), _ALPHABET.index(last), step)]
    items, level = [""], 0
    for letter in inside:
        level += (letter == "{") - (letter == "}")
        if letter == "," and not level:
            items.append("")
        else:
            items[-1] += letter
    found_in = [text for item in items for text in expand_braces(item)]
    return found_in if len(items) > 1 else ["{" + text + "}" for text in found_in]


def _range(first: int, last: int, step: str | None) -> range:
    by = int(step or 1) or 1
    return range(first, last + 1, by) if first < last else range(first, last - 1, -by)
