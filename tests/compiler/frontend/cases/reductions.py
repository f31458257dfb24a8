"""Import rows of the family: reductions."""

from __future__ import annotations

from collections.abc import Iterator

from tests.compiler.frontend.cases.case import IMAGE, Case, X, ints


def cases() -> Iterator[Case]:
    for op in ("Max", "Min", "Mean", "L1", "L2", "SumSquare", "LogSumExp"):
        yield Case(f"Reduce{op}", (X, ints(1)))
        yield Case(f"Reduce{op}", (X,), {"axes": [0, -1], "keepdims": 0}, opset=13, label="opset-13")
    yield Case("ReduceSum", (X, ints(0, 2)), {"keepdims": 0})
    yield Case("ReduceSum", (X,), label="all")
    yield Case("ReduceSum", (X, ints()), {"noop_with_empty_axes": 1}, label="none")
    yield Case("GlobalAveragePool", (IMAGE,))
    yield Case("GlobalMaxPool", (IMAGE,))
