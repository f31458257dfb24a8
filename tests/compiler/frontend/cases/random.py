"""Import rows of the family: random. What they draw is looked at in `test_random.py`."""

from __future__ import annotations

from collections.abc import Iterator

from tests.compiler.frontend.cases.case import Case, F, X


def cases() -> Iterator[Case]:
    yield Case("RandomNormalLike", (X,), {"mean": 1.0, "scale": 2.0}, drawn=True)
    yield Case("RandomNormalLike", (X,), {"seed": 3.0}, label="seeded", drawn=True)
    yield Case("RandomUniformLike", (X,), {"low": -1.0, "high": 3.0}, drawn=True)
    yield Case("RandomUniformLike", (("i64", (2, 3)),), {"dtype": 1}, label="typed", drawn=True)
    yield Case("Bernoulli", ((F, (2, 3)),), drawn=True)
    yield Case("Bernoulli", ((F, (2, 3)),), {"dtype": 9}, label="bool", drawn=True)
    for op in ("RandomNormal", "RandomUniform"):
        yield Case(op, (), {"shape": [2, 3]}, drawn=True)
