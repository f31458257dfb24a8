"""Training in PyTorch float64 on the module itself: `torch.optim.SGD` on `named_parameters()`.

Norms are in evaluation mode. With folded ones the weights learn through weight' = weight * factor: a step of weight' by
its gradient is one of weight by its own gradient over factor squared. So the same optimizer runs on gradients divided
so; momentum is linear in them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tests.compiler.agreement.folded_norms import norms_that_follow
from tests.compiler.agreement.module_reference import Throughout
from tests.round_trip.brought import Brought

Weights = dict[str, np.ndarray]


def trained(brought: Brought, steps: int, settings: Mapping[str, float], real: torch.dtype) -> Weights:
    """The module's state after training in precision `real`, as float64."""
    module = copy.deepcopy(brought.module).to(real)
    fold = _folding(module, brought) if brought.norms == "fold" else lambda: None
    learning = [tensor for tensor in module.parameters() if tensor.requires_grad]
    optimizer = torch.optim.SGD(learning, **settings)
    labels = brought.labels.to(real) if brought.labels.is_floating_point() else brought.labels
    module.train(brought.norms == "train")
    with Throughout(real):
        for _ in range(steps):
            optimizer.zero_grad()
            output = brought.logits(module, in_precision(brought.example, real))
            mean_loss(brought.loss, output, labels).backward()
            fold()
            optimizer.step()
    return {name: tensor.detach().double().numpy() for name, tensor in module.state_dict().items()}


def careful_rate(brought: Brought) -> float:
    """A learning rate whose first step moves the weights by a thousandth, so that random nets do not diverge."""
    module = copy.deepcopy(brought.module)
    mean_loss(brought.loss, brought.logits(module), brought.labels).backward()
    learning = [tensor for tensor in module.parameters() if tensor.grad is not None]
    weights = sum(float(tensor.square().sum()) for tensor in learning) ** 0.5
    gradients = sum(float(tensor.grad.square().sum()) for tensor in learning if tensor.grad is not None) ** 0.5
    return float(f"{min(0.01, 1e-3 * weights / gradients):.1e}")


def mean_loss(kind: str, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy over the last axis, or the mean squared error."""
    if kind == "mse":
        return F.mse_loss(output, labels)
    return F.cross_entropy(output.reshape(-1, output.shape[-1]), labels.reshape(-1))


def in_precision(example: Any, real: torch.dtype) -> Any:
    """The example's real numbers in a precision."""

    def cast(value: Any) -> Any:
        return value.to(real) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    if isinstance(example, Mapping):
        return {name: cast(value) for name, value in example.items()}
    return tuple(map(cast, example))


def _folding(module: nn.Module, brought: Brought) -> Callable[[], None]:
    """What turns the gradients of the module's parameters into those that folded norms have."""
    before = norms_that_follow(copy.deepcopy(module).double(), tuple(in_precision(brought.example, torch.float64)))
    pairs = {
        path: name
        for path, name in before.items()
        if isinstance(module.get_submodule(name), nn.Conv2d | nn.ConvTranspose2d)
    }
    # A norm without scale and shift of its own has nothing to fold into a parameter.
    norms = {path: part for path, part in module.named_modules() if isinstance(part, _BatchNorm) and part.affine}

    def fold() -> None:
        for path, norm in norms.items():
            spread = (norm.running_var + norm.eps).sqrt()
            if path in pairs:
                _through_layer(module.get_submodule(pairs[path]), norm, norm.weight.detach() / spread)
            else:
                _alone(norm, spread)

    return fold


def _through_layer(conv: nn.Module, norm: _BatchNorm, factor: torch.Tensor) -> None:
    assert isinstance(conv, nn.Conv2d | nn.ConvTranspose2d)
    assert conv.weight.grad is not None
    if isinstance(conv, nn.ConvTranspose2d):  # [I, O / groups, ...]: the groups' outputs lie one below another
        of_rows = factor.reshape(conv.groups, -1).repeat_interleave(len(conv.weight) // conv.groups, dim=0)
        conv.weight.grad /= of_rows.square()[:, :, None, None]
    else:
        conv.weight.grad /= factor.square()[:, None, None, None]
    norm.weight.grad = None
    if conv.bias is not None:
        conv.bias.grad = None


def _alone(norm: _BatchNorm, spread: torch.Tensor) -> None:
    """y = x * f + s: the gradients of f and s, and what their steps are for scale and shift."""
    assert norm.weight.grad is not None
    assert norm.bias.grad is not None
    assert norm.running_mean is not None
    by_factor = spread * norm.weight.grad + norm.running_mean * norm.bias.grad
    norm.bias.grad = norm.bias.grad + norm.running_mean * by_factor
    norm.weight.grad = spread * by_factor
