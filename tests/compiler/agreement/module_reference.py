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
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.compiler.agreement.folded_norms import fold_norms, norms_in_order, norms_that_follow
from tests.compiler.agreement.reference import Loss, Reference, as_tensor

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
FOLDED_BIAS = "weight_bias"
"""How PyTorch's exporter calls the bias of a convolution without one that it folded a norm into."""


@dataclass(frozen=True)
class ModuleReference(Reference):
    """A module as a differentiable function of its parameters; `names` maps a file's name to the module's."""

    module: nn.Module
    inputs: tuple[str, ...] = ("input",)
    names: Mapping[str, str] = field(default_factory=dict)
    loss: Loss = "cross_entropy"

    @classmethod
    def folded(
        cls,
        module: nn.Module,
        inputs: tuple[str, ...] = ("input",),
        loss: Loss = "cross_entropy",
        example: tuple[torch.Tensor, ...] = (),
    ) -> ModuleReference:
        """The reference of a module whose norms are folded into the convolutions before them.

        With an example these are the ones that compute what a norm alone reads; without, all norms follow one.
        """
        if not any(isinstance(layer, _BatchNorm) for layer in module.modules()):
            return cls.of(module, inputs, loss)
        own = copy.deepcopy(module).double()
        with Throughout(torch.float64):
            new = fold_norms(own, norms_that_follow(own, example) if example else norms_in_order(own))
        gone = {f"{path}." for path, layer in own.named_modules() if isinstance(layer, nn.Identity)}
        names = {
            name: name for name, _ in own.named_parameters() if name not in new and not name.startswith(tuple(gone))
        }
        # Only a convolution's new bias is called after its weight.
        layers = {bias: own.get_submodule(bias.removesuffix("bias").removesuffix(".")) for bias in new}
        names |= {
            bias if isinstance(layers[bias], nn.Linear) else f"{bias.removesuffix('bias')}{FOLDED_BIAS}": bias
            for bias in new
        }
        return cls(own.float(), inputs, names, loss)

    @classmethod
    def of(
        cls, module: nn.Module, inputs: tuple[str, ...] = ("input",), loss: Loss = "cross_entropy"
    ) -> ModuleReference:
        """The reference of a module as it is."""
        return cls(module, inputs, {name: name for name, _ in module.named_parameters()}, loss)

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

    def logits(
        self, weights: Mapping[str, torch.Tensor], feeds: Mapping[str, np.ndarray], real: torch.dtype
    ) -> torch.Tensor:
        """The module's forward pass with these parameters and its own buffers."""
        tensors = {self.names[name]: tensor for name, tensor in weights.items()}
        for name, held in (*self.module.named_buffers(), *self.module.named_parameters()):
            if name not in tensors:
                tensors[name] = as_tensor(held.detach().numpy(), real)
        arguments = tuple(as_tensor(feeds[name], real) for name in self.inputs)
        with Throughout(real):
            return torch.func.functional_call(self.module, self._everywhere(tensors), arguments, tie_weights=False)

    def watched_logits(
        self, weights: Mapping[str, torch.Tensor], feeds: Mapping[str, np.ndarray], real: torch.dtype
    ) -> tuple[torch.Tensor, float]:
        """The same, and the smallest distance of any ReLU's, ReLU6's or pool's input from a kink."""
        with _Margins() as seen:
            return self.logits(weights, feeds, real), seen.smallest

    def _everywhere(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors under every name of a layer's own; a layer of two names once.

        `functional_call` ties by itself, but leaves a layer that has two names with what it was called with.
        """
        held = [*self.module.named_parameters(), *self.module.named_buffers()]
        first = {id(tensor): name for name, tensor in held}
        found = {}
        for path, layer in self.module.named_modules():
            for name, tensor in (*layer.named_parameters(path, False), *layer.named_buffers(path, False)):
                found[name] = tensors[first[id(tensor)]]
        return found


class Throughout(TorchFunctionMode):
    """Whatever a module makes or casts in float32 on its way is in precision `real`."""

    def __init__(self, real: torch.dtype) -> None:
        super().__init__()
        self.real, self.outside = real, torch.get_default_dtype()

    def __enter__(self) -> Throughout:
        torch.set_default_dtype(self.real)
        super().__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        torch.set_default_dtype(self.outside)

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            return args[0].to(self.real)
        wide = [self.real if argument is torch.float32 else argument for argument in args]
        named = {key: self.real if value is torch.float32 else value for key, value in (kwargs or {}).items()}
        return func(*wide, **named)


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
    "leaky_relu": lambda x, *settings: _bounds(x, 0.0),
    "hardswish": lambda x: _bounds(x, -3.0, 3.0),
    "hardsigmoid": lambda x: _bounds(x, -3.0, 3.0),
    "relu": lambda x: _bounds(x, 0.0),
    "hardtanh": lambda x, low, high: _bounds(x, low, high),
    "max_pool2d_with_indices": _pool,
}
