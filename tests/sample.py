"""Which of many cases `make test` runs: those a test names, each for what only it shows. `make test-all` runs all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import product
from typing import Any, TypeVar

import pytest

Parameter = type(pytest.param())
T = TypeVar("T")


def sample(cases: Iterable[object], kept: Collection[str], named: Callable[[Any], str] = str) -> list[Any]:
    """`cases` as parameters with their names as ids, marked `thorough` unless `kept` has the name.

    A case is a value, which `named` names, or a `pytest.param` with an id.

    Raises: ValueError where `kept` has a name that no case has, so that no list outlives what it names.
    """
    parameters = _parameters(cases, named)
    if unknown := sorted(set(kept) - {parameter.id for parameter in parameters}):
        raise ValueError(f"no case is called {', '.join(unknown)}")
    return [
        parameter
        if parameter.id in kept
        else pytest.param(*parameter.values, marks=(*parameter.marks, pytest.mark.thorough), id=parameter.id)
        for parameter in parameters
    ]


def thinned(cases: Iterable[object], count: int, named: Callable[[Any], str] = str) -> list[Any]:
    """`sample` where cases are a matrix of which none shows a thing alone: keeps `count`, evenly apart, with both ends.

    Raises: ValueError if there are not more cases than that.
    """
    parameters = _parameters(cases, named)
    if not 2 <= count < len(parameters):
        raise ValueError(f"{len(parameters)} cases cannot be thinned to {count}")
    last = len(parameters) - 1
    numbers = {round(number * last / (count - 1)) for number in range(count)}
    return sample(parameters, [str(parameters[number].id) for number in numbers])


def _parameters(cases: Iterable[object], named: Callable[[Any], str]) -> list[Any]:
    return [case if isinstance(case, Parameter) else pytest.param(case, id=named(case)) for case in cases]


def some(cases: Iterable[T]) -> list[T]:
    """The cases of a loop that were looked for. Raises: AssertionError where there is none: it would show nothing."""
    listed = list(cases)
    assert listed, "no case was found, so the test shows nothing"
    return listed


def crossed(*axes: Iterable[object]) -> list[Any]:
    """Every combination of one value of each axis, as a case with the values' names as its id."""
    return [pytest.param(*values, id="-".join(map(str, values))) for values in product(*axes)]
