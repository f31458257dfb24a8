"""Import rows of the family: scaling."""

from __future__ import annotations

from collections.abc import Iterator

from tests.compiler.frontend.cases.case import IMAGE, Case, F, X


def cases() -> Iterator[Case]:
    yield Case("LRN", (IMAGE,), {"size": 3})
    yield Case("LRN", (IMAGE,), {"size": 5, "alpha": 0.3, "beta": 0.6, "bias": 2.0}, label="settings")
    yield Case("LRN", ((F, (2, 5, 3, 2)),), {"size": 9, "alpha": 0.5}, label="wider-than-the-channels")
    for p in (1, 2):
        yield Case("LpNormalization", (X,), {"p": p, "axis": 1}, label=f"p-{p}")
    yield Case("LpNormalization", (X,), label="default")
    yield Case("MeanVarianceNormalization", (IMAGE,))
    yield Case("MeanVarianceNormalization", (IMAGE,), {"axes": [0, 1, 2, 3]}, label="all-axes")
    yield Case("MeanVarianceNormalization", (X,), {"axes": [-1]}, label="rows")
