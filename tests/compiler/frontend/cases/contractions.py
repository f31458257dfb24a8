"""Import rows of the family: contractions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.compiler.frontend.cases.case import IMAGE, Case, F, X, floats


def cases() -> Iterator[Case]:
    bias = floats(5)
    yield Case("Gemm", ((F, (2, 3)), floats(5, 3), bias), {"transB": 1})
    yield Case("Gemm", ((F, (3, 3)), floats(3, 5), bias), {"alpha": 0.5, "beta": 2.0, "transA": 1}, label="scaled")
    yield Case("Gemm", ((F, (2, 3)), floats(3, 5)), label="no-bias")
    yield Case("Gemm", ((F, (2, 3)), (F, (2, 3))), {"transB": 1}, label="run-time")
    yield Case("MatMul", (X, floats(4, 5)))
    yield Case("MatMul", (X, (F, (2, 4, 5))), label="batched")
    yield Case("MatMul", (X, floats(4)), label="vector-right")
    yield Case("MatMul", (floats(3), X), label="vector-left")
    yield Case("MatMul", (floats(5, 3), X), label="matrix-left")
    yield Case("MatMul", ((F, (2, 1, 3, 4)), (F, (2, 5, 4, 3))), label="broadcast")
    yield Case("MatMul", ((F, (2, 5, 3, 4)), (F, (2, 1, 4, 3))), label="shared by heads")
    yield Case("MatMul", ((F, (2, 5, 6, 3, 4)), (F, (2, 1, 1, 4, 3))), label="shared by groups of heads")
    yield Case("MatMul", ((F, (2, 5, 3, 4)), floats(5, 4, 3)), label="shared by samples")
    yield Case("MatMul", ((F, (2, 1, 5, 3, 4)), (F, (2, 6, 1, 4, 3))), label="each shares an axis")
    norm = (floats(4), floats(4, seed=1), floats(4, seed=2), np.abs(floats(4, seed=3)) + 0.5)
    yield Case("BatchNormalization", (IMAGE, *norm), {"epsilon": 1e-3})
    yield Case("BatchNormalization", ((F, (2, 4)), *norm), label="rank-2")
