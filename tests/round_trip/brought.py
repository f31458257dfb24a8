"""The models that make the round trip, each as its user brings it: no wrapper, outputs as the library gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tests.zoo import catalogue
from tests.zoo.entry import Calls

Norms = Literal["fold", "frozen", "train"]


@dataclass(frozen=True)
class Brought:
    """A module in evaluation mode, what it is called with, labels, the output that the loss reads (empty: the only)."""

    name: str
    module: nn.Module
    example: Any
    labels: Tensor
    output: str = ""
    loss: str = "cross_entropy"
    norms: Norms = "frozen"

    def logits(self, module: nn.Module, example: Any = None) -> Tensor:
        """What the loss reads of a module's outputs."""
        example = self.example if example is None else example
        given = module(**example) if isinstance(example, Mapping) else module(*example)
        return given if not self.output else getattr(given, self.output)


class EncoderClassifier(nn.Module):
    """PyTorch's own encoder under a classifier; its attention reads merged projections."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, **settings)
        self.embed = nn.Embedding(20, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens)).mean(1))


class NormNet(nn.Module):
    """Norms after convolutions with and without bias, one that stands alone, one of a scale that is partly 0."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.norm3 = nn.BatchNorm2d(6)
        self.depthwise = nn.Conv2d(6, 6, 3, groups=6, bias=False)
        self.norm4 = nn.BatchNorm2d(6, affine=False)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x))) + x
        x = torch.relu(self.norm3(x))
        x = torch.relu(self.norm4(self.depthwise(x)))
        return self.head(x.mean((2, 3)))


class Upsampler(nn.Module):
    """Norms after transposed convolutions: plain, in groups, and with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.up1, self.norm1 = nn.ConvTranspose2d(3, 6, 2, stride=2, bias=False), nn.BatchNorm2d(6)
        self.up2, self.norm2 = nn.ConvTranspose2d(6, 4, 3, groups=2, padding=1), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.up1(x)))
        x = torch.relu(self.norm2(self.up2(x)))
        return self.head(x.mean((2, 3)))


def of_zoo(name: str, norms: Norms = "frozen", seed: int = 1) -> Brought:
    """An entry of the zoo; a `transformers` model is called by keyword, and gives what it gives."""
    entry = catalogue.ENTRIES[name]
    module, tensors = catalogue.build(entry), catalogue.draw(entry, seed)
    example: Any = tensors
    output = ""
    with torch.no_grad():
        shape = module(*tensors).shape
    if isinstance(module, Calls):
        example, output, module = dict(zip(module.names, tensors, strict=True)), str(module.field), module.model
    generator = torch.Generator().manual_seed(2)
    if entry.loss == "mse":
        labels = torch.randn(shape, generator=generator)
    else:
        labels = torch.randint(0, shape[-1], shape[:-1], generator=generator)
    return Brought(name, module, example, labels, output, entry.loss, norms)


def encoder(norms: Norms = "frozen") -> Brought:
    """A plain `nn.TransformerEncoder`."""
    torch.manual_seed(0)
    return Brought(
        "nn.TransformerEncoder", EncoderClassifier().eval(), (torch.randint(0, 20, (3, 7)),), torch.randint(0, 5, (3,))
    )


def norm_net(norms: Norms, kind: type[nn.Module] = NormNet) -> Brought:
    """A net of norms of every kind, as trained ones are."""
    torch.manual_seed(0)
    module = kind()
    with torch.no_grad():
        for norm in module.modules():
            if isinstance(norm, nn.BatchNorm2d):
                assert norm.running_mean is not None
                assert norm.running_var is not None
                norm.running_mean.normal_(0, 0.2)
                norm.running_var.uniform_(0.7, 1.3)
                if norm.affine:
                    norm.weight.uniform_(0.8, 1.2)
                    norm.bias.normal_(0, 0.1)
    name = f"{'norms' if kind is NormNet else 'transposed'} {norms}"
    return Brought(name, module.eval(), (torch.randn(8, 3, 9, 9),), torch.randint(0, 4, (8,)), norms=norms)
