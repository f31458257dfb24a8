"""Pools and transposed convolutions of one node against PyTorch: ties, zeros, what ONNX Runtime has not, limits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from compiler.errors import LimitExceeded
from compiler.passes import FORWARD_PASSES, run_passes
from tests.compiler.frontend.onnx_graphs import imported, model_of, node
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.passes.gradients import with_gradients

ROW, IMAGE, VOLUME = (2, 3, 11), (2, 3, 6, 7), (2, 2, 5, 6, 7)
ATTRIBUTES: dict[str, object] = {"strides": [2, 2], "pads": [0, 1, 0, 1], "dilations": [3, 3], "output_padding": [2, 2]}
POOLS: dict[str, tuple[str, tuple[int, ...], dict[str, object], Callable[[Tensor], Tensor]]] = {
    "row": ("MaxPool", ROW, {"kernel_shape": [3], "strides": [2]}, lambda x: F.max_pool1d(x, 3, 2)),
    "dilated row": (
        "MaxPool",
        ROW,
        {"kernel_shape": [3], "dilations": [2], "pads": [1, 1]},
        lambda x: F.max_pool1d(x, 3, 1, 1, 2),
    ),
    "dilated image": (
        "MaxPool",
        IMAGE,
        {"kernel_shape": [2, 3], "dilations": [3, 2], "strides": [2, 1]},
        lambda x: F.max_pool2d(x, (2, 3), (2, 1), 0, (3, 2)),
    ),
    "volume": ("MaxPool", VOLUME, {"kernel_shape": [2, 3, 2]}, lambda x: F.max_pool3d(x, (2, 3, 2), 1)),
    "dilated volume": (
        "MaxPool",
        VOLUME,
        {"kernel_shape": [2, 2, 2], "dilations": [2, 2, 3], "pads": [1, 0, 1, 1, 0, 1]},
        lambda x: F.max_pool3d(x, 2, 1, (1, 0, 1), (2, 2, 3)),
    ),
    "norm of zeros": ("LpPool", IMAGE, {"kernel_shape": [2, 2]}, lambda x: F.lp_pool2d(x, 2, 2, 1)),
    "third norm": ("LpPool", IMAGE, {"kernel_shape": [2, 2], "p": 3}, lambda x: F.lp_pool2d(x.abs(), 3, 2, 1)),
}


@pytest.mark.parametrize("name", POOLS)
def test_ties_go_to_the_first_and_zeros_have_no_slope(name: str) -> None:
    op_type, shape, attributes, pool = POOLS[name]
    model = model_of([node(op_type, ["x"], ["y"], **attributes)], {"x": ("f32", shape)}, infer_shapes=False)
    levels = np.random.default_rng(0).integers(0, 3, shape).astype(np.float64)
    _agrees(model, levels, pool)


def test_output_padding_above_the_stride() -> None:
    """ONNX Runtime refuses it, although the standard and PyTorch allow it below the dilation."""
    random = np.random.default_rng(0)
    w, bias = (random.normal(size=size).astype(np.float32) for size in ((3, 4, 2, 3), (4,)))
    made = node("ConvTranspose", ["x", "w", "b"], ["y"], **ATTRIBUTES)
    model = model_of([made], {"x": ("f32", IMAGE)}, initializers={"w": w, "b": bias}, infer_shapes=False)
    wide = [torch.from_numpy(array.astype(np.float64)) for array in (w, bias)]
    _agrees(model, random.normal(size=IMAGE), lambda x: F.conv_transpose2d(x, *wide, 2, (0, 1), 2, 1, 3))


def _agrees(model: bytes, x: np.ndarray, function: Callable[[Tensor], Tensor]) -> None:
    """Value, and gradient of the sum of its squares."""
    forward = run_passes(imported(model, batch=x.shape[0]), FORWARD_PASSES)
    graph = with_gradients(forward, forward.inputs)
    values = evaluate_graph(graph, {forward.inputs[0]: x})
    leaf = torch.from_numpy(x).requires_grad_()
    y = function(leaf)
    (y * y).sum().backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(values[graph.outputs[0]], y.detach().numpy(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(values[graph.outputs[1]], leaf.grad.numpy(), rtol=1e-6, atol=1e-9)


HUGE: dict[str, tuple[str, tuple[int, ...], dict[str, object]]] = {
    "taps of a maximum": ("MaxPool", (1, 1, 1000), {"kernel_shape": [400], "dilations": [2]}),
    "weights of a mean": (
        "AveragePool",
        (1, 1, 8, 8),
        {"kernel_shape": [30000, 30000], "dilations": [2, 2], "pads": [60000] * 4},
    ),
    "taps of a volume": ("MaxPool", (1, 1, 900, 2, 2), {"kernel_shape": [300, 1, 1], "dilations": [2, 1, 1]}),
}


@pytest.mark.parametrize("name", HUGE)
def test_small_nodes_that_ask_for_much_are_refused(name: str) -> None:
    op_type, shape, attributes = HUGE[name]
    made = node(op_type, ["x"], ["y"], **attributes)
    model = model_of([made], {"x": ("f32", shape)}, opset=19, infer_shapes=False)
    with pytest.raises(LimitExceeded, match=op_type):
        imported(model, batch=1)
