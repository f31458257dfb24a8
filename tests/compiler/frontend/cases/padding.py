"""Import rows of the family: borders added and taken away."""

from __future__ import annotations

from collections.abc import Iterator

from tests.compiler.frontend.cases.case import Case, F, X, ints, scalar


def cases() -> Iterator[Case]:
    yield Case("Pad", (X, ints(0, 1, 2, 0, 0, 1), scalar(0.5)))
    yield Case("Pad", (X, ints(0, -1, 2, 0, 0, -1)), label="negative")
    yield Case("Pad", (X, ints(1, 2), None, ints(-1)), label="axes")
    yield Case("Pad", ((F, (1, 3, 4)), ints(0, 1, 2, 1, 0, 1), (F, (1,))), label="run-time-value")
    for mode in ("reflect", "edge", "wrap"):
        yield Case("Pad", (X, ints(0, 1, 2, 0, 2, 1)), {"mode": mode}, opset=19, label=mode)
        yield Case("Pad", (X, ints(1, -1, 2, 1), None, ints(2, 1)), {"mode": mode}, opset=19, label=f"{mode}-negative")
    yield Case("CenterCropPad", ((F, (2, 5, 4)), ints(2, 2, 7)))
    yield Case("CenterCropPad", ((F, (2, 6, 4)), ints(5, 3)), {"axes": [-1, 1]}, label="axes")
