"""Import rows of the family: normalization."""

from __future__ import annotations

from collections.abc import Iterator

from tests.compiler.frontend.cases.case import IMAGE, Case, F, X, floats


def cases() -> Iterator[Case]:
    for op in ("Softmax", "LogSoftmax"):
        yield Case(op, (X,))
        yield Case(op, (X,), {"axis": 1}, label="axis-1")
    yield Case("LayerNormalization", (X, floats(4), floats(4, seed=1)), {"epsilon": 1e-3})
    yield Case("LayerNormalization", (X, floats(3, 4)), {"axis": 1}, label="two-axes")
    yield Case("LayerNormalization", (X, floats(3, 4), floats(3, 4, seed=1)), {"axis": -2}, 3, label="moments")
    yield Case("RMSNormalization", (X, floats(4)), {"epsilon": 1e-3}, opset=23)
    yield Case("InstanceNormalization", (IMAGE, floats(4), floats(4, seed=1)))
    yield Case("GroupNormalization", (IMAGE, floats(4), floats(4, seed=1)), {"num_groups": 2}, opset=21)
    two = floats(2), floats(2, seed=1)
    yield Case("GroupNormalization", (IMAGE, *two), {"num_groups": 2}, label="per-group")
    for rank in (1, 3):
        data = (F, (2, 4, *(3, 2, 5)[:rank]))
        yield Case("InstanceNormalization", (data, floats(4), floats(4, seed=1)), label=f"rank-{rank}")
