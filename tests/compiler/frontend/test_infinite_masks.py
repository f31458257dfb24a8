"""Infinity in a stored tensor: what a mask hides by, or damage to a weight."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from compiler.errors import ModelError
from compiler.graph import Array
from tests.compiler.frontend.onnx_graphs import assert_agrees, imported, model_of, node
from tests.models import export


def _floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


HIDING = np.array([[0.25, -np.inf, -np.inf], [0.5, 0.75, -np.inf], [1.0, 1.25, 1.5]], np.float32)
"""Biases that grow with the distance, and keys that are hidden: more numbers than a mask of zeros has."""
SCORES = {"x": ("f32", ("batch", 3, 3))}


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Add", ["x", "mask"], ["s"])],
        [node("Unsqueeze", ["mask", "axis"], ["u"]), node("Add", ["u", "x"], ["s"])],
        [node("Transpose", ["mask"], ["t"]), node("Sub", ["t", "x"], ["s"])],
        [node("Greater", ["x", "mask"], ["c"]), node("Where", ["c", "x", "mask"], ["s"])],
        [node("MatMul", ["x", "weight"], ["h"]), node("Add", ["h", "mask"], ["s"])],
    ],
    ids=["added", "moved and added", "what is taken from", "chosen", "beside a product"],
)
def test_minus_infinity_that_only_hides_is_a_mask(nodes: list[onnx.NodeProto]) -> None:
    """It does not learn, whatever other numbers stand beside it."""
    stored = {"mask": HIDING, "axis": np.array([0]), "weight": _floats(3, 3)}
    model = model_of([*nodes, node("Softmax", ["s"], ["y"])], SCORES, initializers=stored)
    graph = imported(model)
    assert_agrees(model, graph)
    assert set(graph.named_parameters()) <= {"weight"}


@pytest.mark.parametrize("number", [-np.inf, np.inf, np.nan], ids=str)
@pytest.mark.parametrize(
    "nodes",
    [
        [node("MatMul", ["x", "weight"], ["y"])],
        [node("Mul", ["x", "weight"], ["y"])],
        [node("Add", ["x", "weight"], ["h"]), node("MatMul", ["h", "weight"], ["y"])],
        [node("Transpose", ["weight"], ["t"]), node("Gemm", ["row", "t"], ["g"]), node("Add", ["x", "g"], ["y"])],
    ],
    ids=["matrix", "scale", "added once and multiplied once", "moved and multiplied"],
)
def test_a_weight_that_is_no_number_is_refused(nodes: list[onnx.NodeProto], number: float) -> None:
    weight = np.zeros((3, 3), np.float32)
    weight[1, 1] = number
    model = model_of(nodes, SCORES, initializers={"weight": weight, "row": _floats(1, 3)})
    with pytest.raises(ModelError, match=r"parameter 'weight': holds NaN or Inf.*damaged"):
        imported(model)


@pytest.mark.parametrize("number", [np.inf, np.nan], ids=str)
def test_what_is_added_may_hold_no_other_infinity_than_minus(number: float) -> None:
    mask = np.array([[0.5, number, 0.25]], np.float32)
    model = model_of([node("Add", ["x", "mask"], ["y"])], SCORES, initializers={"mask": mask})
    with pytest.raises(ModelError, match="holds NaN or Inf"):
        imported(model)


class HidingParameter(torch.nn.Module):
    """Scores beside a matrix that learns, and one that hides, which the author calls a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.mask = (torch.nn.Parameter(torch.from_numpy(x)) for x in (_floats(3, 3), HIDING))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ self.weight + self.mask, -1)


def test_a_recorded_parameter_that_hides_is_told_not_to_learn() -> None:
    """Its numbers would learn in PyTorch; minus infinity in a checkpoint is what damaged weights look like."""
    model = export(HidingParameter(), (torch.zeros(2, 3, 3),), exporter="dynamo-unoptimized")
    graph = imported(model)
    assert set(graph.named_parameters()) == {"weight"}
    assert [(warning.code, warning.where) for warning in graph.warnings] == [("model.mask_parameter", "mask")]
