"""Import rows of the family: elementwise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.compiler.frontend.cases.case import ROW, B, Case, F, N, X, floats, ints, scalar


def cases() -> Iterator[Case]:
    for op in ("Abs", "Neg", "Exp", "Tanh", "Sigmoid", "Erf", "Relu", "Floor", "Ceil", "Sign", "Sin", "Cos", "IsNaN"):
        yield Case(op, (X,))
    for op in ("Log", "Sqrt", "Reciprocal"):
        yield Case(op, (X,), positive=True)
    for op in ("Add", "Sub", "Mul", "Div", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
        yield Case(op, (X, ROW))
    yield Case("Add", ((N, (2, 3)), (N, (2, 1))), label="int64")
    yield Case("Equal", ((N, (2, 3)), (N, (2, 1))))
    yield Case("Equal", ((B, (2, 3)), (B, (2, 3))), label="bool")
    for op in ("And", "Or", "Xor"):
        yield Case(op, ((B, (2, 3)), (B, (2, 1))))
    yield Case("Not", ((B, (2, 3)),))
    for op in ("Max", "Min", "Sum", "Mean"):
        yield Case(op, (X, ROW, floats(4)))
    yield Case("Where", ((B, (2, 3, 1)), X, ROW))
    yield Case("Where", ((B, (2, 3)), (N, (2, 3)), ints(4)), label="int64")
    yield Case("Identity", (X,))
    yield Case("Dropout", (X, scalar(0.5), np.asarray(False)))
    for code, kind in ((1, N), (7, F), (6, F), (9, F), (1, B)):
        yield Case("Cast", ((kind, (2, 3)),), {"to": code}, label=f"{kind}-to-{code}")
    yield Case("CastLike", ((N, (2, 3)), (F, (2, 1))))
    for power in (1.0, 2.0, 3.0, 4.0, 0.5, -0.5, -1.0, 1.5):
        yield Case("Pow", (X, scalar(power)), label=str(power), positive=True)
    yield Case("Pow", (X, ROW), label="run-time", positive=True)
    yield Case("Clip", (X, scalar(-0.5), scalar(0.5)))
    yield Case("Clip", (X, None, scalar(0.5)), label="high")
    yield Case("Clip", (X, scalar(0.0), None), label="relu")
    yield Case("Clip", (X, scalar(0.0), scalar(3.4028235e38)), label="no-bound")
    yield Case("Clip", (X,), label="none")
