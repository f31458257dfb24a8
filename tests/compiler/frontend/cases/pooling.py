"""Import rows of the family: pooling."""

from __future__ import annotations

from collections.abc import Iterator

from tests.compiler.frontend.cases.case import IMAGE, Case


def cases() -> Iterator[Case]:
    window = {"kernel_shape": [3, 3], "strides": [2, 2]}
    for op in ("MaxPool", "AveragePool"):
        yield Case(op, (IMAGE,), {**window, "pads": [1, 0, 1, 1]})
        yield Case(op, (IMAGE,), {**window, "ceil_mode": 1}, label="ceil")
        yield Case(op, (IMAGE,), {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1}, label="ceil-drop")
        yield Case(op, (IMAGE,), {**window, "auto_pad": "SAME_UPPER"}, label="same")
    yield Case("AveragePool", (IMAGE,), {**window, "pads": [1, 1, 1, 1], "count_include_pad": 1}, label="counted")
