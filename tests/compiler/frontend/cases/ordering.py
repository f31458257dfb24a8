"""Import rows of the family: the largest and smallest, running sums and products."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.compiler.frontend.cases.case import Case, F, N, X, ints


def cases() -> Iterator[Case]:
    yield Case("TopK", (X, ints(2)), outputs=2)
    yield Case("TopK", ((F, (2, 7, 3)), ints(4)), {"axis": 1, "largest": 0}, outputs=2, label="smallest")
    yield Case("TopK", ((N, (2, 9)), ints(9)), outputs=2, label="all-whole-numbers")
    for exclusive in (0, 1):
        for reverse in (0, 1):
            attributes = {"exclusive": exclusive, "reverse": reverse}
            yield Case("CumSum", (X, np.asarray(exclusive - 1)), attributes, label=f"{exclusive}-{reverse}")
            yield Case("CumProd", (X, np.asarray(1)), attributes, opset=26, label=f"{exclusive}-{reverse}")
    yield Case("CumSum", ((N, (2, 5)), np.asarray(1)), label="whole-numbers")
