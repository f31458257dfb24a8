"""Recurrent kernels over odd shapes, against PyTorch's cells in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from compiler.graph import Array
from compiler.kernels.cells import CELLS
from compiler.kernels.spec import RecurrenceSpec
from tests.kernel_harness.launch import run_kernel

SHAPES = [(5, 13, 37, None), (2, 1, 130, "x86-64-v3"), (1, 4, 16, None), (4, 70, 48, None)]
"""Steps, samples, width, target: tails of rows and columns, one sample, one step, samples shared out to threads."""
GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "tanh": (0,), "relu": (0,)}
"""Where each of the cell's gates lies in PyTorch's order (i f g o; r z n)."""


def by_torch(cell: str, reverse: bool, x: Array, r: Array, start: Array, bias: Array, d_y: Array) -> list[Array]:
    """y, and the gradients of x, start, r and the bias, of a layer whose input projection is the identity."""
    steps, _, gates = x.shape
    width = r.shape[1]

    def theirs(array: Array) -> torch.Tensor:
        parts = np.split(array, CELLS[cell].gates, axis=0)
        inverse = [GATES[cell].index(i) for i in range(len(parts))]
        return torch.from_numpy(np.concatenate([parts[i] for i in inverse]))

    kinds: dict[str, Any] = {"lstm": torch.nn.LSTMCell, "gru": torch.nn.GRUCell}
    make = kinds.get(cell, lambda i, h: torch.nn.RNNCell(i, h, nonlinearity=cell))
    module = make(gates, width).double()
    hidden_bias = np.zeros(gates)
    if cell == "gru":
        hidden_bias[2 * width :] = bias
    with torch.no_grad():
        module.weight_ih.copy_(theirs(np.eye(gates)))
        module.weight_hh.copy_(theirs(r))
        module.bias_ih.zero_()
        module.bias_hh.copy_(theirs(hidden_bias))
    inputs = [torch.from_numpy(array).requires_grad_() for array in (x, start)]
    states: tuple[torch.Tensor, ...] = inputs[1].split(width, dim=-1)
    found: list[torch.Tensor] = [inputs[1]] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        out = module(inputs[0][t], states if cell == "lstm" else states[0])
        states = out if cell == "lstm" else (out,)
        found[t] = torch.cat(states, dim=-1)
    y = torch.stack(found)
    (y * torch.from_numpy(d_y)).sum().backward()
    return [y.detach().numpy(), *(tensor.grad.numpy() for tensor in inputs if tensor.grad is not None)]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("steps", "batch", "width", "target"), SHAPES)
def test_both_directions(cell: str, steps: int, batch: int, width: int, target: str | None) -> None:
    rng = np.random.default_rng(width)
    kind, reverse = CELLS[cell], width % 2 == 0
    x = rng.normal(size=(steps, batch, kind.gates * width))
    r = rng.normal(size=(kind.gates * width, width)) / np.sqrt(width)
    start = rng.normal(size=(batch, kind.states * width))
    bias, d_y = rng.normal(size=width), rng.normal(size=(steps, batch, kind.states * width))
    y, d_x, d_start = by_torch(cell, reverse, x, r, start, bias, d_y)

    def run(direction: Any, *inputs: Array) -> tuple[Array, ...]:
        spec = RecurrenceSpec(direction, cell, steps, batch, width, reverse, dtype="f32")  # type: ignore[arg-type]
        return run_kernel(spec, [array.astype(np.float32) for array in inputs], target=target)

    forward = run("forward", x, r, start, *([bias] if kind.has_bias else []))
    backward = run("backward", r, start, *forward, d_y)
    for got, want in zip((forward[0], *backward[:2]), (y, d_x, d_start), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
