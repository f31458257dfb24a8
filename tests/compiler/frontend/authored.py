"""Small PyTorch modules whose trainable parameters are known by construction: their author wrote them.

Each holds one thing that exporters hide: arithmetic on a parameter, a buffer, a one-element parameter, sharing.
`named_parameters()` of the module is the truth about what a plan can train; nothing here asks the importer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, WIDTH = 3, 4


# ----------------------------------------------------------------------------------------- arithmetic on parameters


class ExpScale(nn.Module):
    """A product scaled by exp of a learned logarithm per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.log_scale = nn.Parameter(torch.randn(CLASSES) * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * torch.exp(self.log_scale)


class GemmaNorm(nn.Module):
    """RMSNorm as in Gemma: the learned weight is the distance from one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH) * 0.3)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.head(normed * (1.0 + self.weight))


class PositiveWeight(nn.Module):
    """A product with the magnitudes of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.V = nn.Parameter(torch.randn(WIDTH, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.V.abs()


class WeightNorm(nn.Module):
    """A weight as direction and length, row by row: g * V / ||V||."""

    def __init__(self) -> None:
        super().__init__()
        self.V = nn.Parameter(torch.randn(CLASSES, WIDTH))
        self.g = nn.Parameter(torch.rand(CLASSES, 1) + 0.5)
        self.bias = nn.Parameter(torch.randn(CLASSES) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.g * self.V / self.V.pow(2).sum(1, keepdim=True).sqrt()
        return F.linear(x, weight, self.bias)


class PartlyFolded(nn.Module):
    """A parameter that is read as it is, and through arithmetic as well."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x * self.gain) * (1.0 + self.gain))


class TransposedProduct(nn.Module):
    """A product with the transpose of a weight that is no Linear's."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(CLASSES, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.W.T


class UnrolledRnn(nn.Module):
    """An RNNCell over three time steps from a zero state: the first step multiplies a weight by zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], WIDTH, dtype=x.dtype)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


# ------------------------------------------------------------------------------------------ buffers


class Standardised(nn.Module):
    """Input mean and deviation as buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(WIDTH))
        self.register_buffer("deviation", torch.rand(WIDTH) + 0.5)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x - self.mean) / self.deviation)


class Unsaved(nn.Module):
    """A buffer that no state dict holds (non-persistent)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.randn(WIDTH), persistent=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.shift)


class FixedProjection(nn.Module):
    """A random projection that never learns, then a layer that does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("projection", torch.randn(WIDTH, 6))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x @ self.projection))


class SinusoidalPositions(nn.Module):
    """A fixed table of positions, added to the input."""

    def __init__(self, positions: int = 3) -> None:
        super().__init__()
        angles = torch.arange(positions)[:, None] * torch.exp(-math.log(100.0) * torch.arange(0, WIDTH, 2) / WIDTH)
        self.register_buffer("table", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x + self.table).mean(1))


class GroupNormNet(nn.Module):
    """GroupNorm of 24 channels in four groups; at opset 18 the file holds ones and zeros of InstanceNormalization."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 24, 1), nn.GroupNorm(4, 24), nn.Tanh())
        nn.init.uniform_(self.body[1].weight, 0.5, 1.5)
        nn.init.normal_(self.body[1].bias, 0, 0.2)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class FreshGroupNorm(nn.Module):
    """Fresh norms: the LayerNorm's four ones and zeros are equal to those that the exporter makes for four groups."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 24, 1), nn.GroupNorm(WIDTH, 24), nn.Tanh())
        self.neck = nn.Sequential(nn.Linear(24, WIDTH), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.neck(self.body(x).mean((2, 3))))


class EqualBuffer(nn.Module):
    """A buffer of ones beside a fresh norm's scale of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("gain", torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.norm(x) * self.gain) * self.gain)


# ------------------------------------------------------------------------------------------ one-element parameters


class Scaled(nn.Module):
    """Logits times a learned tensor of one element."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)
        self.scale = nn.Parameter(torch.full(shape, 0.7))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * self.scale


class Temperature(nn.Module):
    """Logits divided by a learned scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) / self.temperature


class FreshTemperature(nn.Module):
    """A learned scalar that starts at one: the exporter's optimizer drops a product with one."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * self.temperature


class FreshShift(nn.Module):
    """A learned scalar that starts at zero: the exporter's optimizer drops a sum with zero."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x) + self.shift))


class EqualLiteral(nn.Module):
    """A learned scalar of the same value as a number in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x * 0.5)) * self.scale


class ReZero(nn.Module):
    """Residual branches weighted by scalars that start at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.alphas = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer, alpha in zip(self.layers, self.alphas, strict=True):
            x = x + alpha * torch.tanh(layer(x))
        return self.head(x)


class OneByOne(nn.Module):
    """A linear layer of one input and one output, weight (1, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze = nn.Linear(WIDTH, 1)
        self.gain = nn.Linear(1, 1)
        self.head = nn.Linear(1, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.gain(self.squeeze(x))))


# ------------------------------------------------------------------------------------------ sharing


class TwoScales(nn.Module):
    """One head, its bias fresh, over two scales of the input: genuinely shared."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.body(x))
        return self.head(y) * 2.0 + self.head(torch.tanh(y * 0.5))


class FreshPair(nn.Module):
    """Two layers of one width with fresh zero biases: equal, but each its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        for layer in (self.first, self.second):
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class TiedBiases(nn.Module):
    """Two layers that share one bias, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.bias = self.first.bias
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class FreshEncoder(nn.Module):
    """A fresh nn.TransformerEncoder: its layers are deep copies, random matrices included."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class TokenModel(nn.Module):
    """An embedding and an output layer of the same shape: tied, or only equal."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 7, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        else:
            with torch.no_grad():
                self.head.weight.copy_(self.embed.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embed(tokens))))


class TwinProjections(nn.Module):
    """Two linear layers with equal weights and biases: copies, not the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.load_state_dict(self.first.state_dict())
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


# ------------------------------------------------------------------------------------------ the cases


@dataclass(frozen=True)
class Authored:
    """A module, how to draw its inputs, and what its exports cannot tell.

    `folded`: parameters that the dynamo exporter computes with, or drops, by default: its file cannot train them.
    `recovered`: those that it computes with by what has an inverse: they are known to rounding.
    `torchscript`: whether that exporter's file tells all of the module's parameters, and `unlabelled` the buffers that
    it does not tell from parameters.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]
    folded: frozenset[str] = frozenset()
    recovered: frozenset[str] = frozenset()
    torchscript: bool = True
    unlabelled: frozenset[str] = frozenset()

    def module(self) -> nn.Module:
        """The module, seeded, in evaluation mode."""
        torch.manual_seed(7)
        return self.make().eval()

    def batches(self, samples: int) -> tuple[Tensor, ...]:
        """Seeded samples."""
        torch.manual_seed(11)
        return self.inputs(samples)


def _rows(samples: int) -> tuple[Tensor, ...]:
    return (torch.randn(samples, WIDTH),)


def _sequences(samples: int) -> tuple[Tensor, ...]:
    return (torch.randn(samples, 3, WIDTH),)


def _wide_sequences(samples: int) -> tuple[Tensor, ...]:
    return (torch.randn(samples, 3, 8),)


def _images(samples: int) -> tuple[Tensor, ...]:
    return (torch.randn(samples, 2, 3, 3),)


def _tokens(samples: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, 7, (samples, 3)),)


def _names(*names: str) -> frozenset[str]:
    return frozenset(names)


CASES: Mapping[str, Authored] = {
    "exp-scale": Authored(ExpScale, _rows, recovered=_names("log_scale")),
    "one-plus-weight": Authored(GemmaNorm, _rows, folded=_names("weight"), torchscript=False),
    "magnitudes": Authored(PositiveWeight, _rows, folded=_names("V")),
    "weight-norm": Authored(WeightNorm, _rows, folded=_names("V", "g"), torchscript=False),
    "partly-folded": Authored(PartlyFolded, _rows, folded=_names("gain"), torchscript=False),
    "transposed-product": Authored(TransposedProduct, _rows, torchscript=False),
    "unrolled-rnn": Authored(UnrolledRnn, _sequences),
    "standardised-input": Authored(Standardised, _rows, unlabelled=_names("mean", "deviation")),
    "unsaved-buffer": Authored(Unsaved, _rows),
    "fixed-projection": Authored(FixedProjection, _rows, unlabelled=_names("projection")),
    "sinusoidal-positions": Authored(SinusoidalPositions, _sequences, unlabelled=_names("table")),
    "group-norm": Authored(GroupNormNet, _images, torchscript=False),
    "fresh-group-norm": Authored(FreshGroupNorm, _images, torchscript=False),
    "equal-buffer": Authored(EqualBuffer, _rows, torchscript=False),
    "scalar": Authored(lambda: Scaled(()), _rows),
    "one-element": Authored(lambda: Scaled((1,)), _rows),
    "one-by-one-scale": Authored(lambda: Scaled((1, 1)), _rows),
    "one-by-one-by-one": Authored(lambda: Scaled((1, 1, 1)), _sequences),
    "temperature": Authored(Temperature, _rows),
    "fresh-temperature": Authored(FreshTemperature, _rows, folded=_names("temperature")),
    "fresh-shift": Authored(FreshShift, _rows, folded=_names("shift")),
    "equal-literal": Authored(EqualLiteral, _rows),
    "rezero": Authored(ReZero, _rows),
    "one-by-one-weight": Authored(OneByOne, _rows),
    "two-scales": Authored(TwoScales, _rows),
    "fresh-pair": Authored(FreshPair, _rows),
    "tied-biases": Authored(TiedBiases, _rows),
    "tied-embedding": Authored(lambda: TokenModel(tied=True), _tokens),
    "equal-embedding": Authored(lambda: TokenModel(tied=False), _tokens, torchscript=False),
    "twin-projections": Authored(TwinProjections, _rows),
    "fresh-encoder": Authored(FreshEncoder, _wide_sequences),
}
