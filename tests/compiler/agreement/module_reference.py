"""The meaning of a file that PyTorch exported: the exported module itself and its own `named_parameters()`.

Its buffers stay what they are. Where a plan trains folded norms, this folds them on a copy of the module, by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.compiler.agreement.reference import Reference, as_tensor

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
FOLDED_BIAS = "weight_bias"
"""How PyTorch's exporter calls the bias of a convolution without one that it folded a norm into."""


@dataclass(frozen=True)
class ModuleReference(Reference):
    """A module as a differentiable function of its parameters; `names` maps a file's name to the module's."""

    module: nn.Module
    inputs: tuple[str, ...] = ("input",)
    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def folded(cls, module: nn.Module, inputs: tuple[str, ...] = ("input",)) -> ModuleReference:
        """The reference of a module whose norms are folded into the convolutions before them."""
        own = copy.deepcopy(module).double()
        new = _fold_norms(own)
        names = {name: name for name, _ in own.named_parameters() if name not in new}
        names |= {f"{bias.removesuffix('bias')}{FOLDED_BIAS}": bias for bias in new}
        return cls(own.float(), inputs, names)

    @classmethod
    def of(cls, module: nn.Module, inputs: tuple[str, ...] = ("input",)) -> ModuleReference:
        """The reference of a module as it is."""
        return cls(module, inputs, {name: name for name, _ in module.named_parameters()})

    def initial(self) -> dict[str, np.ndarray]:
        """Every parameter of the module, float32."""
        own = dict(self.module.named_parameters())
        return {name: own[inner].detach().numpy().copy() for name, inner in self.names.items()}

    def channel_axes(self) -> dict[str, int]:
        """Input channels of convolutions and linear layers."""
        axes = {}
        for path, module in self.module.named_modules():
            if isinstance(module, _TRANSPOSED):
                axes[f"{path}.weight"] = 0
            elif isinstance(module, _CONVOLUTIONS):
                axes[f"{path}.weight"] = 0 if module.groups > 1 and module.weight.shape[1] == 1 else 1
            elif isinstance(module, nn.Linear):
                axes[f"{path}.weight"] = 1
        return axes

    def kink_margin(self, weights: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray]) -> float:
        """The smallest distance of any ReLU's, ReLU6's or pool's input from a kink."""
        wide = {name: as_tensor(array, torch.float64) for name, array in weights.items()}
        with torch.no_grad(), _Margins() as seen:
            self.logits(wide, feeds, torch.float64)
        return seen.smallest

    def logits(
        self, weights: Mapping[str, torch.Tensor], feeds: Mapping[str, np.ndarray], real: torch.dtype
    ) -> torch.Tensor:
        """The module's forward pass with these parameters and its own buffers."""
        tensors = {name: as_tensor(buffer.numpy(), real) for name, buffer in self.module.named_buffers()}
        tensors |= {self.names[name]: tensor for name, tensor in weights.items()}
        arguments = tuple(as_tensor(feeds[name], real) for name in self.inputs)
        return torch.func.functional_call(self.module, tensors, arguments)


def _fold_norms(module: nn.Module) -> list[str]:
    """Fold every norm into the convolution registered before it; returns the biases that this made.

    y = (conv(x) - mean) / sqrt(var + eps) * scale + shift, statistics frozen.
    """
    made = []
    previous: tuple[str, nn.Module] = ("", module)
    for path, layer in list(module.named_modules()):
        if isinstance(layer, _NORMS):
            name, conv = previous
            assert isinstance(conv, (*_CONVOLUTIONS, *_TRANSPOSED)), f"{path} does not follow a convolution"
            assert conv.bias is None
            factor = layer.weight / (layer.running_var + layer.eps).sqrt()
            if isinstance(conv, _TRANSPOSED):
                inputs, group = conv.weight.shape[0] // conv.groups, conv.weight.shape[1]
                scale = factor.reshape(conv.groups, 1, group).expand(-1, inputs, -1).reshape(-1, group)
            else:
                scale = factor[:, None]
            conv.weight = nn.Parameter((conv.weight * scale[(..., *[None] * (conv.weight.dim() - 2))]).detach())
            conv.bias = nn.Parameter((layer.bias - layer.running_mean * factor).detach())
            module.set_submodule(path, nn.Identity())
            made.append(f"{name}.bias")
        if not list(layer.children()):
            previous = (path, layer)
    return made


class _Margins(TorchDispatchMode):
    """Watches the operators that run, and keeps the smallest distance of an input from a kink."""

    def __init__(self) -> None:
        super().__init__()
        self.smallest = float("inf")

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        margin = _MARGINS.get(func._schema.name.removeprefix("aten::"))
        if margin is not None:
            self.smallest = min(self.smallest, margin(*args))
        return func(*args, **(kwargs or {}))


def _bounds(x: torch.Tensor, *bounds: float) -> float:
    return min((x - bound).abs().min().item() for bound in bounds)


def _pool(x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int] = (0, 0)) -> float:
    padded = F.pad(x, (padding[1], padding[1], padding[0], padding[0]), value=-1.0)
    windows = F.unfold(padded.flatten(0, 1)[:, None], kernel, stride=stride)
    first, second = windows.topk(2, dim=1).values.unbind(dim=1)
    live = first > 0  # zeros come from a ReLU that blocks the gradient whichever of them wins
    return (first - second)[live].min().item() if live.any() else float("inf")


_MARGINS: Mapping[str, Callable[..., float]] = {
    "relu": lambda x: _bounds(x, 0.0),
    "hardtanh": lambda x, low, high: _bounds(x, low, high),
    "max_pool2d_with_indices": _pool,
}
