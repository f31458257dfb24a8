"""Gradients where the chain rule is 0 times infinity: PyTorch's for its functions, as its exporters compose them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compiler.graph import Graph
from compiler.passes import FORWARD_PASSES, run_passes
from tests.compiler.frontend.onnx_graphs import imported, model_of, node
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.passes.gradients import with_gradients
from tests.models import Exporter, export

Function = Callable[[Tensor], Tensor]
COUNT = 4
POINTS = torch.tensor([[0.0] * COUNT, [1.0, -2.0, 0.0, 3.0], [2.0] * COUNT])
"""A length of zero, elements of zero in one that is not, and a spread of zero."""
WEIGHTS = torch.tensor([0.5, -1.0, 2.0, 0.25])
ORDERS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, torch.inf, -1.0)


def norm_of(order: float) -> Function:
    return lambda x: x.norm(p=order, dim=-1)


BY_BOTH: dict[str, Function] = {
    **{f"norm of order {order}": norm_of(order) for order in ORDERS},
    "norm over two axes": lambda x: torch.linalg.matrix_norm(x.unflatten(-1, (2, 2))),
    "length of one": lambda x: F.normalize(x, p=3.0, dim=-1),
    "similarity": lambda x: F.cosine_similarity(x, WEIGHTS.to(x)[None], dim=-1),
    "deviation": lambda x: x.std(-1),
    "deviation of all there is": lambda x: x.std(-1, unbiased=False, keepdim=True),
    "product": lambda x: x.prod(-1),
    "logarithm of a sigmoid": lambda x: F.logsigmoid(200 * x),
    "loss of logits": lambda x: F.binary_cross_entropy_with_logits(200 * x, (x > 0).to(x), reduction="none"),
}
BY_DYNAMO: dict[str, Function] = {
    "distance": lambda x: F.pairwise_distance(x, x * torch.tensor([1.0, 1.0, 1.0, 2.0]).to(x), p=3.0, eps=0.0),
    "angle": lambda x: torch.atan2(x[..., :2], x[..., 2:]),
    "angle of equals": lambda x: torch.atan2(x, x * 1.0),
    "sine over angle": torch.sinc,
    "loss of a saturated sigmoid": lambda x: F.binary_cross_entropy(
        torch.sigmoid(200 * x), (x > 1.5).to(x), reduction="none"
    ),
}
"""The TorchScript exporter has no form of these, or one whose values are not PyTorch's."""


class Each(nn.Module):
    """Each function of a part of the input of its own, side by side."""

    def __init__(self, functions: dict[str, Function]) -> None:
        super().__init__()
        self.functions = list(functions.values())

    def forward(self, x: Tensor) -> Tensor:
        parts = (function(x[:, place]) for place, function in enumerate(self.functions))
        return torch.cat([part.reshape(x.shape[0], -1) for part in parts], 1)


def by_torch(module: nn.Module, x: Tensor) -> list[np.ndarray]:
    """What it gives, and the gradient of the sum of its squares."""
    leaf = x.double().requires_grad_()
    y = module(leaf)
    (y * y).sum().backward()
    assert leaf.grad is not None
    return [y.detach().numpy(), leaf.grad.numpy()]


def by_graph(graph: Graph, x: Tensor) -> list[np.ndarray]:
    forward = run_passes(graph, FORWARD_PASSES)
    training = with_gradients(forward, forward.inputs)
    with np.errstate(all="ignore"):
        values = evaluate_graph(training, {forward.inputs[0]: x.double().numpy()})
    return [values[value] for value in training.outputs]


@pytest.mark.parametrize(
    ("exporter", "functions"),
    [("dynamo", {**BY_BOTH, **BY_DYNAMO}), ("dynamo-unoptimized", {**BY_BOTH, **BY_DYNAMO}), ("torchscript", BY_BOTH)],
    ids=["dynamo", "unoptimized", "torchscript"],
)
def test_what_pytorch_composes_has_pytorchs_slope(exporter: Exporter, functions: dict[str, Function]) -> None:
    module = Each(functions)
    x = POINTS[:, None].repeat(1, len(functions), 1)
    graph = imported(export(module, (x,), exporter=exporter, dynamic_batch=False), batch=len(POINTS))
    (y, gradient), (value, slope) = by_torch(module, x), by_graph(graph, x)
    assert np.isfinite(gradient).all(), "all of them are finite in PyTorch"
    np.testing.assert_allclose(value, y, rtol=1e-5, atol=1e-6)
    for place, name in enumerate(functions):
        np.testing.assert_allclose(slope[:, place], gradient[:, place], rtol=2e-5, atol=1e-6, err_msg=name)


SLOPES: dict[str, tuple[Function, bool]] = {
    "root": (torch.sqrt, False),
    "square root as a power": (lambda x: x**0.5, False),
    "cube root": (lambda x: x ** (1 / 3), False),
    "root above a constant": (lambda x: torch.sqrt((x * x).sum(-1) + 1e-3), False),
    "inverse square": (lambda x: 1 / ((x - 1) ** 2).sum(-1), False),
    "root of a cube": (lambda x: torch.sqrt((x * x * x).sum(-1)), False),
    "root of squares": (lambda x: torch.sqrt((x * x).sum(-1)), True),
}


@pytest.mark.parametrize("name", SLOPES)
def test_only_sums_that_are_flat_where_they_vanish_are_norms(name: str) -> None:
    """Whatever else has an infinite slope keeps it, as in PyTorch; for NaN at a norm's zero stands its least slope."""
    function, is_norm = SLOPES[name]
    x = torch.tensor([[0.0] * COUNT, [1.0, 2.0, 0.0, 3.0]])
    graph = run_passes(imported(export(Each({name: function}), (x[:, None],), dynamic_batch=False)), FORWARD_PASSES)
    assert ("safe_power" in {entry.op for entry in graph.nodes}) == is_norm
    wanted = by_torch(Each({name: function}), x[:, None])[1]
    if is_norm:
        assert np.isnan(wanted[0]).all()
        wanted = np.nan_to_num(wanted)
    np.testing.assert_allclose(by_graph(graph, x[:, None])[1], wanted, rtol=2e-5)


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize(
    "pole",
    [
        node("Div", ["x", "x"], ["h"]),
        node("Log", ["x"], ["h"]),
        node("Reciprocal", ["x"], ["h"]),
        node("Sqrt", ["x"], ["h"]),
    ],
    ids=lambda entry: entry.op_type,
)
def test_what_a_choice_leaves_out_has_no_slope(pole: onnx.NodeProto, taken: bool) -> None:
    """In either branch; where it is taken, its slope is its own."""
    branches = ["h", "other"] if taken else ["other", "h"]
    limit = node("Greater" if taken else "LessOrEqual", ["x", "zero"], ["c"])
    stored = {"zero": np.zeros((), np.float32), "other": np.full((), 3.0, np.float32)}
    model = model_of([pole, limit, node("Where", ["c", *branches], ["y"])], {"x": ("f32", (2, 3))}, initializers=stored)
    x = torch.tensor([[0.0, 4.0, -1.0], [0.25, 0.0, 9.0]])
    value, gradient = by_graph(imported(model), x)
    leaf = torch.where(x > 0, x, 1.0).double().requires_grad_()
    functions = {"Div": lambda v: v / v, "Log": torch.log, "Reciprocal": torch.reciprocal, "Sqrt": torch.sqrt}
    y = torch.where(x > 0, functions[pole.op_type](leaf), 3.0)
    (y * y).sum().backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(value, y.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-12, atol=1e-15)
