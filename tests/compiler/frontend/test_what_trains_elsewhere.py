"""Files that no PyTorch exporter wrote: each float initializer trains, as in the twin written by hand beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import NodeProto, numpy_helper
from torch import Tensor, nn

from compiler.graph import Array
from compiler.spec.documents import SparsePlan
from tests.compiler.frontend.onnx_graphs import model_of, node
from tests.compiler.frontend.training import BATCH, STEPS, draw_labels, reference_updates, train, update_problems

FULL = SparsePlan.parse("full")


def _constant(name: str, value: float) -> NodeProto:
    return node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value, np.float32)))


def _agrees(nodes: list[NodeProto], twin: nn.Module, shape: tuple[int, ...], folder: Path, kernels: Path) -> list[str]:
    """Train file and twin, whose parameters are the file's initializers; returns what the compile warned of."""
    stored: dict[str, Array] = {name: tensor.detach().numpy() for name, tensor in twin.named_parameters()}
    model = model_of(nodes, {"x": ("f32", ("batch", *shape))}, initializers=stored)
    torch.manual_seed(1)
    inputs = torch.randn(BATCH * STEPS, *shape)
    labels = draw_labels(twin, (inputs,))
    found = train(model, FULL, {"x": inputs.numpy()}, labels.numpy(), folder, kernels)
    exact = reference_updates(twin, (inputs,), labels)
    assert {name: array.shape for name, array in found.after.items()} == {k: v.shape for k, v in stored.items()}
    assert not found.constants_changed
    assert not update_problems(found.before, found.updates, exact)
    return [f"{warning['where']} {warning['message']}" for warning in found.warnings]


class _OneElement(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3))
        self.s = nn.Parameter(torch.full(shape, 0.7134218))

    def forward(self, x: Tensor) -> Tensor:
        return (x * 0.5) @ self.w * self.s


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1, 1)], ids=str)
def test_one_element_of_every_shape_learns_and_a_constant_node_does_not(
    shape: tuple[int, ...], tmp_path: Path, kernel_cache: Path
) -> None:
    torch.manual_seed(4)
    nodes = [
        _constant("half", 0.5),
        node("Mul", ["x", "half"], ["halved"]),
        node("MatMul", ["halved", "w"], ["product"]),
        node("Mul", ["product", "s"], ["y"]),
    ]
    _agrees(nodes, _OneElement(shape), (2, 2, 4), tmp_path, kernel_cache)


class _SharedZeros(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
        self.zeros = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.a + self.zeros) @ self.b + self.zeros


def test_a_fill_vector_that_is_read_twice_is_one_parameter_and_is_told(tmp_path: Path, kernel_cache: Path) -> None:
    torch.manual_seed(4)
    nodes = [
        node("MatMul", ["x", "a"], ["p"]),
        node("Add", ["p", "zeros"], ["h"]),
        node("Tanh", ["h"], ["t"]),
        node("MatMul", ["t", "b"], ["q"]),
        node("Add", ["q", "zeros"], ["y"]),
    ]
    warnings = _agrees(nodes, _SharedZeros(), (4,), tmp_path, kernel_cache)
    assert any("zeros" in warning for warning in warnings)


class _Computed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.g = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3) * 0.4)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w.abs() * self.g.exp()


def test_what_a_file_computes_from_initializers_is_computed_in_the_step(tmp_path: Path, kernel_cache: Path) -> None:
    torch.manual_seed(4)
    nodes = [
        node("Abs", ["w"], ["size"]),
        node("Exp", ["g"], ["gain"]),
        node("MatMul", ["x", "size"], ["product"]),
        node("Mul", ["product", "gain"], ["y"]),
    ]
    _agrees(nodes, _Computed(), (4,), tmp_path, kernel_cache)
