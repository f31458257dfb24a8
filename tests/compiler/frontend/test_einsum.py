"""Einsum where ONNX Runtime has no answer: ellipses that broadcast against each other, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.errors import ModelError
from tests.compiler.frontend.cases.case import Case, F, floats
from tests.compiler.frontend.onnx_graphs import imported, model_of, node
from tests.compiler.named import evaluate_named


@pytest.mark.parametrize(
    ("equation", "x", "y"),
    [
        ("...a,...a->...", (2, 1, 4), (3, 4)),
        ("...ij,...jk", (2, 3, 4, 5), (5, 2)),
        ("b...,...->b...", (2, 3, 1), (1, 4)),
        ("ij...,jk...->ik...", (2, 3, 1), (3, 5, 6)),
    ],
)
def test_ellipses_broadcast(equation: str, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    other = floats(*y)
    graph = imported(Case("Einsum", ((F, x), other), {"equation": equation}, opset=13).model())
    value = floats(*x, seed=3)
    np.testing.assert_allclose(evaluate_named(graph, {"x0": value})["y0"], np.einsum(equation, value, other), atol=1e-5)


@pytest.mark.parametrize("equation", ["ij->k", "ij->ii", "i", "ijk", "i1->i", "ij,jk->ik", "ij->i->j", "ij)->i", ""])
def test_equations_that_say_nothing_are_refused(equation: str) -> None:
    """ONNX's own shape inference does not come back from some of these."""
    model = model_of([node("Einsum", ["x"], ["y"], equation=equation)], {"x": (F, (2, 3))}, infer_shapes=False)
    with pytest.raises(ModelError, match="make_y"):
        imported(model)
