"""Batch norms folded into the layers before them, on a module, as an exporter does it on a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def fold_norms(module: nn.Module, norms: Mapping[str, str]) -> list[str]:
    """Fold batch norms (path -> path of the layer before) where they are; returns the biases that this made or changed.

    y = (layer(x) - mean) / sqrt(var + eps) * scale + shift, statistics frozen.
    """
    made = []
    for path, name in norms.items():
        norm, layer = module.get_submodule(path), module.get_submodule(name)
        factor = norm.weight / (norm.running_var + norm.eps).sqrt()
        bias = layer.bias if layer.bias is not None else torch.zeros_like(norm.bias)
        layer.weight = nn.Parameter((layer.weight * _per_output(layer, factor)).detach())
        layer.bias = nn.Parameter((norm.bias + (bias - norm.running_mean) * factor).detach())
        module.set_submodule(path, nn.Identity())
        made.append(f"{name}.bias")
    return made


def _per_output(layer: nn.Module, factor: torch.Tensor) -> torch.Tensor:
    """A factor for each output channel, as the layer's weight has them: [O, ...]; transposed [I, O / groups, ...]."""
    ones = [1] * (layer.weight.dim() - 2)
    if not isinstance(layer, _ConvTransposeNd):
        return factor.view(-1, 1, *ones)
    inputs, outputs = layer.weight.shape[0] // layer.groups, layer.weight.shape[1]
    return factor.view(layer.groups, 1, outputs).expand(-1, inputs, -1).reshape(-1, outputs, *ones)


def norms_in_order(module: nn.Module) -> dict[str, str]:
    """Every batch norm -> the convolution registered before it."""
    found = {}
    previous: tuple[str, nn.Module] = ("", module)
    for path, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            assert isinstance(previous[1], _ConvNd), f"{path} does not follow a convolution"
            found[path] = previous[0]
        if not list(layer.children()):
            previous = (path, layer)
    return found


def norms_that_follow(module: nn.Module, example: tuple[torch.Tensor, ...]) -> dict[str, str]:
    """Norms that alone read what a convolution or linear layer computes: norm -> that layer, each called once."""
    made: dict[int, str] = {}
    found: dict[str, str] = {}
    kept: list[torch.Tensor] = []  # so that no identity is given twice
    handles = []

    def watch(path: str) -> Callable[..., None]:
        def hook(layer: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            kept.append(output)
            if isinstance(layer, _BatchNorm):
                if id(inputs[0]) in made:
                    found[path] = made[id(inputs[0])]
            else:
                made[id(output)] = path

        return hook

    for path, layer in module.named_modules():
        if isinstance(layer, _BatchNorm | _ConvNd | nn.Linear):
            handles.append(layer.register_forward_hook(watch(path)))
    with torch.no_grad(), _Readers() as readers:
        module(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in example))
    for handle in handles:
        handle.remove()
    shared = {path for tensor, path in made.items() if readers.times[tensor] > 1}
    return {norm: layer for norm, layer in found.items() if layer not in shared}


class _Readers(TorchDispatchMode):
    """Counts the operators that read each tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.times: Counter[int] = Counter()
        self.kept: list[torch.Tensor] = []  # so that no identity is given twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self.kept += leaves
        self.times.update(map(id, leaves))
        return func(*args, **(kwargs or {}))
