"""Every entry of the zoo, by family."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo import (
    images,
    signals,
    torchvision_models,
    transformers_models,
    unnamed_fields,
    unnamed_images,
    unnamed_others,
    unnamed_sequences,
)
from tests.zoo.entry import Entry

FAMILIES: dict[str, tuple[Entry, ...]] = {
    "torchvision": torchvision_models.ENTRIES,
    "transformers": transformers_models.ENTRIES,
    "images": images.ENTRIES,
    "signals": signals.ENTRIES,
    "unnamed images": unnamed_images.ENTRIES,
    "unnamed sequences": unnamed_sequences.ENTRIES,
    "unnamed fields": unnamed_fields.ENTRIES,
    "unnamed others": unnamed_others.ENTRIES,
}
ENTRIES: dict[str, Entry] = {entry.name: entry for entries in FAMILIES.values() for entry in entries}


def build(entry: Entry, seed: int = 0) -> nn.Module:
    """The seeded module in evaluation mode, with norms away from 0 and 1, so that a wrong one shows."""
    torch.manual_seed(seed)
    module = entry.make()
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is not None:
            layer.running_mean.normal_(0, 0.2)
            layer.running_var.uniform_(0.7, 1.3)
        if getattr(layer, "weight", None) is not None and type(layer).__name__.endswith("Norm"):
            nn.init.uniform_(layer.weight, 0.8, 1.2)
        if isinstance(layer, nn.modules.batchnorm._BatchNorm | nn.LayerNorm | nn.GroupNorm) and layer.bias is not None:
            nn.init.uniform_(layer.weight, 0.8, 1.2)
            nn.init.normal_(layer.bias, 0, 0.1)
    return module.eval()


def draw(entry: Entry, seed: int, batch: int | None = None) -> tuple[Tensor, ...]:
    """A seeded batch of inputs."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(make(generator, batch or entry.batch) for make in entry.inputs.values())
