"""What an author meant by a model: its parameters under their names, and a training step's loss and gradients.

No reference asks the compiler anything: not for parameters, names, layouts, what folds, or what a plan trains.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from compiler.spec.documents import SparsePlan

torch.set_num_threads(1)  # tests run side by side: more threads than cores make PyTorch spin

Loss = Literal["cross_entropy", "mse"]
Window = tuple[slice, ...]
"""The part of a parameter that learns, in its file's axes."""


class Reference(ABC):
    """A model as a differentiable function of its author's parameters, in file layout throughout."""

    loss: Loss = "cross_entropy"

    @abstractmethod
    def initial(self) -> dict[str, np.ndarray]:
        """Every parameter that the author made, float32."""

    @abstractmethod
    def channel_axes(self) -> Mapping[str, int]:
        """Weight of a layer -> the axis that runs over the layer's input channels (its own channels if depth-wise)."""

    @abstractmethod
    def logits(
        self, weights: Mapping[str, torch.Tensor], feeds: Mapping[str, np.ndarray], real: torch.dtype
    ) -> torch.Tensor:
        """Forward pass in precision `real`."""

    @abstractmethod
    def watched_logits(
        self, weights: Mapping[str, torch.Tensor], feeds: Mapping[str, np.ndarray], real: torch.dtype
    ) -> tuple[torch.Tensor, float]:
        """The same, and how close it comes to a point where it has no derivative (a ReLU at 0, a tie in a pool)."""

    def loss_and_gradients(
        self,
        weights: Mapping[str, np.ndarray],
        feeds: Mapping[str, np.ndarray],
        labels: np.ndarray,
        real: torch.dtype,
        *,
        channels_last: bool = False,
        scale: float = 1.0,
    ) -> tuple[float, dict[str, np.ndarray]]:
        """The mean loss and its gradient by every parameter, `scale` times as large on its way."""
        leaves = {name: _laid_out(leaf, channels_last).requires_grad_() for name, leaf in _leaves(weights, real)}
        loss = mean_loss(self.loss, self.logits(leaves, feeds, real), as_tensor(labels, real))
        return Forward(leaves, loss).loss_and_gradients(scale)

    def watched(
        self, weights: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray], labels: np.ndarray
    ) -> Forward:
        """The forward pass of a step in float64, and how smooth the function is there."""
        leaves = {name: leaf.requires_grad_() for name, leaf in _leaves(weights, torch.float64)}
        logits, margin = self.watched_logits(leaves, feeds, torch.float64)
        return Forward(leaves, mean_loss(self.loss, logits, as_tensor(labels, torch.float64)), margin)


@dataclass(frozen=True)
class Forward:
    """A forward pass whose gradients may be asked for once."""

    leaves: Mapping[str, torch.Tensor]
    loss: torch.Tensor
    margin: float = float("nan")
    """The smallest distance of an input from a kink, if that was watched."""

    def loss_and_gradients(self, scale: float = 1.0) -> tuple[float, dict[str, np.ndarray]]:
        """The mean loss and its gradient by every parameter, `scale` times as large on its way."""
        (self.loss * scale).backward()
        return self.loss.item(), {
            name: (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad / scale).numpy()
            for name, leaf in self.leaves.items()
        }


def mean_loss(kind: Loss, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy over the last axis, or the mean squared error."""
    if kind == "mse":
        return F.mse_loss(output, labels)
    return F.cross_entropy(output.reshape(-1, output.shape[-1]), labels.reshape(-1))


def what_learns(plan: SparsePlan, reference: Reference, last_layer: tuple[str, ...] = ()) -> dict[str, Window]:
    """What a plan means on the author's own names: parameter -> the part that learns; others are frozen.

    A bias is called so. `last_layer` names what the author calls the last layer.
    """
    shapes = {name: array.shape for name, array in reference.initial().items()}
    presets = {"full": "*", "bias-only": "*bias"}
    chosen = {
        name: 1.0
        for name in shapes
        if fnmatchcase(name, presets.get(plan.preset, "")) or (plan.preset == "last-layer" and name in last_layer)
    }
    for rule in plan.rules:
        for name in shapes:
            kind = "bias" if name.endswith("bias") else "weight"
            if rule.kind in ("any", kind) and any(fnmatchcase(name, pattern) for pattern in rule.parameters):
                chosen[name] = rule.ratio
    axes = reference.channel_axes()
    return {name: _window(shapes[name], axes.get(name), chosen[name]) for name in shapes if chosen.get(name, 0.0) > 0}


def _window(shape: tuple[int, ...], channel_axis: int | None, ratio: float) -> Window:
    """All of it, or the first ceil(ratio C) input channels."""
    window = [slice(None)] * len(shape)
    if channel_axis is not None:
        window[channel_axis] = slice(0, max(1, math.ceil(ratio * shape[channel_axis] - 1e-9)))
    return tuple(window)


def _laid_out(tensor: torch.Tensor, channels_last: bool) -> torch.Tensor:
    if channels_last and tensor.dim() == 4:
        return tensor.to(memory_format=torch.channels_last)
    return tensor


def _leaves(weights: Mapping[str, np.ndarray], real: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, as_tensor(array, real)) for name, array in weights.items())


def as_tensor(array: np.ndarray, real: torch.dtype) -> torch.Tensor:
    """A copy; floats in precision `real`."""
    tensor = torch.from_numpy(np.array(array))
    return tensor.to(real) if tensor.is_floating_point() else tensor
