"""Products of cases, of which a selection that covers them is quick."""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import pytest


def covering(*choices: Sequence[Any]) -> list[Any]:
    """The product of `choices` as parameters of a test; what is not needed to cover it is marked `full`.

    Quick are the cases whose indexes add up to a multiple of the length of the shortest list that has a choice. Every
    choice occurs in them; with three or more such lists, every pair of choices does.
    """
    shortest = min((len(some) for some in choices if len(some) > 1), default=1)
    return [
        pytest.param(
            *(choice for _, choice in case), marks=[pytest.mark.full] if sum(k for k, _ in case) % shortest else []
        )
        for case in itertools.product(*map(enumerate, choices))
    ]


def rotating(name: str, choices: Mapping[str, Any], *, always: Mapping[str, Any] | None = None) -> Callable[[Any], Any]:
    """A decorator for tests that run with each choice for the parameter `name`: quick is another one for each test.

    Args:
        name: The parameter.
        choices: Each of them is quick with some tests.
        always: Further choices, quick with every test.
    """
    first = itertools.cycle(range(len(choices)))

    def parametrized(test: Any) -> Any:
        quick = next(first)
        cases = [
            pytest.param(choice, id=label, marks=[pytest.mark.full] * (k != quick))
            for k, (label, choice) in enumerate(choices.items())
        ]
        cases += [pytest.param(choice, id=label) for label, choice in (always or {}).items()]
        return pytest.mark.parametrize(name, cases)(test)

    return parametrized


def repeated(names: Iterable[str], num: int = 20, *, seldom: Collection[str] = ()) -> list[Any]:
    """Each name as a parameter of a test of a race: once in the quick suite, `num` times in the full one.

    Those of `seldom` are not in the quick suite.
    """
    return [
        pytest.param(name, id=f"{name}-{k}", marks=[pytest.mark.full] if k or name in seldom else [])
        for name, k in itertools.product(names, range(num))
    ]


def only(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases as parameters of a test; all but the `quick` ones are marked `full`."""
    quick, cases = list(quick), list(cases)
    assert all(case in cases for case in quick), "a quick case is none of the test's"
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[] if case in quick else [pytest.mark.full])
        for case in cases
    ]
