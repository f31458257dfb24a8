"""Import rows of the families: functions, integers, powers, bounds, extremes, and products."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.compiler.frontend.cases.case import ROW, B, Case, F, N, X, ints

WHOLE = (N, (2, 3))
PERMUTED = (N, (2, 3))


def cases() -> Iterator[Case]:
    yield from _functions()
    yield from _integers()
    yield from _extremes()
    for axes in (ints(1), ints(0, 2), None):
        yield Case("ReduceProd", (X,) if axes is None else (X, axes), label=f"{axes}")
    yield Case("ReduceLogSum", (X, ints(1)), positive=True)
    for op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare"):
        yield Case(op, (WHOLE, ints(1)), label="int64")
    for op in ("ReduceMax", "ReduceMin"):
        yield Case(op, ((B, (2, 3)), ints(1)), label="bool", opset=20)


def _functions() -> Iterator[Case]:
    for op in ("Asinh", "Atan", "Cosh", "Round", "Sinh", "Tan"):
        yield Case(op, (X,))
    yield Case("Tan", (ROW,), label="row")
    for op in ("Acos", "Asin", "Atanh", "Acosh"):
        yield Case(op, (X,))  # NaN outside of where it is defined
    for detect in ({}, {"detect_negative": 0}, {"detect_positive": 0}, {"detect_positive": 0, "detect_negative": 0}):
        yield Case("IsInf", (X,), detect, label=" ".join(detect))
    yield Case("Shrink", (X,))
    yield Case("Shrink", (X,), {"bias": 0.3, "lambd": 0.8}, label="soft")
    yield Case("Swish", (X,), {"alpha": 0.7}, opset=24)


def _integers() -> Iterator[Case]:
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield Case(op, (WHOLE, (N, (2, 1))), integers=9)
    yield Case("BitwiseNot", (WHOLE,), integers=9)
    yield Case("Mod", (X, ROW), {"fmod": 1}, label="float")
    yield Case("Mod", ((N, (2, 3)), ints(-4, 2, 3)), label="int64", integers=9)
    yield Case("Mod", ((N, (2, 3)), ints(-4, 2, 3)), {"fmod": 1}, label="int64 fmod", integers=9)
    yield Case("Div", (WHOLE, ints(-2, 3, 2)), label="int64", integers=9)
    yield Case("Pow", (X, (N, (2, 3, 1))), label="to an integer", positive=True)
    yield Case("Pow", (WHOLE, ints(5)), label="of integers", integers=5)
    yield Case("Sign", (WHOLE,), label="int64")
    yield Case("Relu", ((N, (2, 3)),), label="int64")
    yield Case("Clip", (WHOLE, np.asarray(1), np.asarray(2)), label="int64", integers=5)
    yield Case("Clip", (X, None, (F, ())), label="to what is known at run time")


def _extremes() -> Iterator[Case]:
    for op in ("ArgMax", "ArgMin"):
        yield Case(op, (X,), {"axis": 1})
        yield Case(op, (X,), {"axis": -1, "keepdims": 0}, label="dropped")
        yield Case(op, ((N, (2, 7)),), {"axis": 1}, label="first of equal")
        yield Case(op, ((N, (2, 7)),), {"axis": 1, "select_last_index": 1}, label="last of equal")
    yield Case("Hardmax", (X,), {"axis": 1})
    yield Case("Hardmax", (X,))
