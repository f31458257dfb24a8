"""Models and plans that choose channels, and what each plan means on the author's own names and elements.

Sets are worked out here in NumPy, from the module's parameters in its own layout: nothing is asked of the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from compiler.spec.documents import SparsePlan
from tests.compiler.agreement.harness import Case
from tests.compiler.agreement.module_reference import ModuleReference
from tests.compiler.agreement.reference import Window
from tests.models import InvertedResidualNet, ResNet, export, randomize_norms, transformer_encoder

State = Mapping[str, np.ndarray]
Windows = dict[str, Window]


@dataclass(frozen=True)
class Chosen:
    """A case, and the part of each parameter that learns."""

    case: Case
    windows: Windows
    copied: Sequence[str] = ()
    """Parameters that cannot lie with the others, of which the build says so."""


def at(axis: int, channels: Sequence[int] | np.ndarray) -> Window:
    """These places along an axis; everything along those before it."""
    return (*[slice(None)] * axis, np.asarray(channels))  # type: ignore[arg-type]


def norms(array: np.ndarray, axis: int, inner: int = 1) -> np.ndarray:
    """The sum of squares of each unit of `inner` neighbours along an axis."""
    rows = np.moveaxis(array.astype(np.float64), axis, 0)
    return np.square(rows).reshape(rows.shape[0] // inner, -1).sum(axis=1)


def largest(total: np.ndarray, ratio: float) -> np.ndarray:
    """The numbers of the largest, ascending."""
    return np.sort(np.argsort(-total, kind="stable")[: int(np.ceil(ratio * len(total)))])


def channels_of(units: Sequence[int] | np.ndarray, inner: int) -> np.ndarray:
    """The channels of units of `inner` neighbours."""
    return (np.asarray(units)[:, None] * inner + np.arange(inner)).reshape(-1)


def _case(module: nn.Module, draw: Callable[[int], Tensor], classes: int, plan: str) -> Case:
    model = export(module.eval(), (draw(2),))

    def feeds(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
        torch.manual_seed(int(rng.integers(1 << 31)))
        return {"input": draw(batch).numpy()}

    reference = ModuleReference.folded(module, ("input",))
    return Case(model, reference, SparsePlan.parse(plan), 2, feeds, lambda rng, n: rng.integers(0, classes, n))


def _images(batch: int) -> Tensor:
    return torch.randn(batch, 3, 16, 16)


def _seeded(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(5)
    module = build()
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    randomize_norms(module)
    return module.eval()


MOBILENET = """
update:
  - {parameters: ["blocks.1.expand.0.weight"], channels: {ratio: 0.25, select: magnitude}}
  - {parameters: ["blocks.1.project.0.*"], channels: {ratio: 0.4, select: magnitude, along: output}}
  - {parameters: ["blocks.2.*"], channels: {ratio: 0.3, select: magnitude, along: ffn}, kind: weight}
  - {parameters: ["blocks.3.depthwise.0.weight"], channels: [1, 4, 9, 40]}
  - {parameters: ["blocks.3.project.0.weight"], channels: {indices: [1, 4, 7, 30], along: input}}
  - {parameters: ["classifier.weight"], channels: {ratio: 0.25, select: magnitude}}
"""


def mobilenet() -> Chosen:
    """Inverted residuals: nested, disjoint and conflicting sets on residual, hidden and depth-wise channels."""
    blocks = [(3, 1, 8, 1), (3, 6, 8, 1), (3, 6, 8, 1), (5, 6, 16, 2)]
    module = _seeded(lambda: InvertedResidualNet(8, blocks, 32, 4))
    case = _case(module, _images, 4, MOBILENET)
    w = case.reference.initial()
    hidden = [w[f"blocks.2.{name}.0.weight"] for name in ("expand", "depthwise", "project")]
    units = largest(norms(hidden[0], 0) + norms(hidden[1], 0) + norms(hidden[2], 1), 0.3)
    expand, project = w["blocks.1.expand.0.weight"], w["blocks.1.project.0.weight"]
    own = norms(project, 0) + norms(w["blocks.1.project.0.weight_bias"], 0)
    windows = {
        "blocks.1.expand.0.weight": at(1, largest(norms(expand, 1), 0.25)),
        "blocks.1.project.0.weight": at(0, largest(own, 0.4)),
        "blocks.1.project.0.weight_bias": at(0, largest(own, 0.4)),
        "blocks.2.expand.0.weight": at(0, units),
        "blocks.2.depthwise.0.weight": at(0, units),
        "blocks.2.project.0.weight": at(1, units),
        "blocks.3.depthwise.0.weight": at(0, [1, 4, 9, 40]),
        "blocks.3.project.0.weight": at(1, [1, 4, 7, 30]),
        "classifier.weight": at(1, largest(norms(w["classifier.weight"], 1), 0.25)),
    }
    alone = ("blocks.1.project.0.weight", "blocks.1.project.0.weight_bias", "blocks.3.project.0.weight")
    return Chosen(case, windows, alone)


RESNET = """
update:
  - {parameters: ["layers.1.body.0.*"], channels: {ratio: 0.25, select: magnitude, along: output}}
  - {parameters: ["layers.2.body.0.weight"], channels: {ratio: 0.25, select: magnitude}}
  - {parameters: ["layers.2.body.3.weight"], channels: {indices: [0, 3, 5, 21], along: input}}
  - {parameters: ["fc.weight"], channels: {indices: [1, 2, 30]}}
  - {parameters: ["fc.bias"], channels: {indices: [1, 3], along: output}}
"""


def resnet() -> Chosen:
    """Residual channels behind Relu and pools; a pinned output, whose bias is kept alone."""
    case = _case(_seeded(lambda: ResNet((1, 1, 1), 8, 1, 4)), _images, 4, RESNET)
    w = case.reference.initial()
    first = norms(w["layers.1.body.0.weight"], 0) + norms(w["layers.1.body.0.weight_bias"], 0)
    windows = {
        "layers.1.body.0.weight": at(0, largest(first, 0.25)),
        "layers.1.body.0.weight_bias": at(0, largest(first, 0.25)),
        "layers.2.body.0.weight": at(1, largest(norms(w["layers.2.body.0.weight"], 1), 0.25)),
        "layers.2.body.3.weight": at(1, [0, 3, 5, 21]),
        "fc.weight": at(1, [1, 2, 30]),
        "fc.bias": at(0, [1, 3]),
    }
    return Chosen(case, windows, ("fc.bias",))


def _tokens(batch: int) -> Tensor:
    return torch.randint(0, 100, (batch, 16))


ENCODER = """
update:
  - {parameters: ["layers.1.query.*", "layers.1.key.*", "layers.1.value.*", "layers.1.output.weight"],
     channels: {indices: [0, 2], along: heads, heads: 4}}
  - parameters: ["layers.0.query.weight", "layers.0.output.weight"]
    channels: {ratio: 0.25, select: magnitude, along: heads}
  - {parameters: ["layers.1.up.*", "layers.1.down.weight"], channels: {ratio: 0.25, select: magnitude, along: ffn}}
  - {parameters: ["layers.0.down.*"], channels: {indices: [3, 9, 31], along: output}}
  - {parameters: ["embed.weight"], channels: {indices: [3, 9], along: output}}
"""


def encoder() -> Chosen:
    """Separate query, key and value; hidden units; channels of the residual stream."""
    case = _case(_seeded(transformer_encoder), _tokens, 4, ENCODER)
    w = case.reference.initial()
    heads = channels_of([0, 2], 8)
    early = norms(w["layers.0.query.weight"], 0, 8) + norms(w["layers.0.output.weight"], 1, 8)
    best = channels_of(largest(early, 0.25), 8)
    up, bias, down = (w[f"layers.1.{name}"] for name in ("up.weight", "up.bias", "down.weight"))
    units = largest(norms(up, 0) + norms(bias, 0) + norms(down, 1), 0.25)
    windows = {
        f"layers.1.{name}.{kind}": at(0, heads) for name in ("query", "key", "value") for kind in ("weight", "bias")
    }
    windows |= {
        "layers.1.output.weight": at(1, heads),
        "layers.0.query.weight": at(0, best),
        "layers.0.output.weight": at(1, best),
        "layers.1.up.weight": at(0, units),
        "layers.1.up.bias": at(0, units),
        "layers.1.down.weight": at(1, units),
        "layers.0.down.weight": at(0, [3, 9, 31]),
        "layers.0.down.bias": at(0, [3, 9, 31]),
        "embed.weight": at(1, [3, 9]),
    }
    return Chosen(case, windows)


class Block(nn.Module):
    """As in GPT-2: one product for query, key and value; as in LLaMA: a gated feed-forward block."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, positions, width = x.shape
        split = (batch, positions, self.heads, width // self.heads)
        q, k, v = (part.reshape(split).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, dim=2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, positions, width))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Token ids [batch, positions] -> logits [batch, classes]."""

    def __init__(self, width: int = 32, heads: int = 4, hidden: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.h = nn.Sequential(*(Block(width, heads, hidden) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.h(self.embed(tokens))).mean(1))


DECODER = """
update:
  - {parameters: ["h.1.qkv.*", "h.1.proj.weight"], channels: {indices: [1, 3], along: heads}}
  - {parameters: ["h.1.gate.*", "h.1.up.*", "h.1.down.*"], channels: {ratio: 0.25, select: magnitude, along: ffn}}
  - {parameters: ["h.0.qkv.weight", "h.0.proj.weight"], channels: {ratio: 0.5, select: magnitude, along: heads}}
  - {parameters: ["h.0.down.weight"], channels: {ratio: 0.5, select: first, along: ffn}}
  - {parameters: ["h.0.gate.weight"], channels: {indices: [7, 20]}}
  - {parameters: ["head.weight"], ratio: 0.25}
"""


def decoder() -> Chosen:
    """A fused query, key and value, of which each part holds the heads; a gate beside the first layer."""
    case = _case(_seeded(Decoder), _tokens, 4, DECODER)
    w = case.reference.initial()
    gate, up, down = (w[f"h.1.{name}.weight"] for name in ("gate", "up", "down"))
    units = largest(norms(gate, 0) + norms(up, 0) + norms(down, 1), 0.25)
    fused = norms(w["h.0.qkv.weight"], 0, 8).reshape(3, 4).sum(axis=0)
    best = largest(fused + norms(w["h.0.proj.weight"], 1, 8), 0.5)
    windows = {
        "h.1.qkv.weight": at(0, _in_each(channels_of([1, 3], 8))),
        "h.1.qkv.bias": at(0, _in_each(channels_of([1, 3], 8))),
        "h.1.proj.weight": at(1, channels_of([1, 3], 8)),
        "h.1.gate.weight": at(0, units),
        "h.1.up.weight": at(0, units),
        "h.1.down.weight": at(1, units),
        "h.0.qkv.weight": at(0, _in_each(channels_of(best, 8))),
        "h.0.proj.weight": at(1, channels_of(best, 8)),
        "h.0.down.weight": at(1, range(24)),
        "h.0.gate.weight": at(1, [7, 20]),
        "head.weight": at(1, range(8)),
    }
    return Chosen(case, windows, ("head.weight",))


def _in_each(channels: np.ndarray) -> np.ndarray:
    """The channels in query, key and value, 32 apart."""
    return np.concatenate([channels + 32 * part for part in range(3)])


class Grouped(nn.Module):
    """Convolutions in groups, a join of two halves, and a product behind flattened images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.grouped = nn.Conv2d(16, 32, 3, 1, 1, groups=4)
        self.left, self.right = nn.Conv2d(32, 8, 1), nn.Conv2d(32, 8, 1)
        self.fold = nn.Conv2d(16, 6, 3, 2, 1)
        self.fc = nn.Linear(6 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.grouped(torch.relu(self.stem(x))))
        x = torch.relu(torch.cat([self.left(x), self.right(x)], 1))
        return self.fc(torch.flatten(torch.relu(self.fold(x)), 1))


GROUPED = """
update:
  - {parameters: ["stem.*"], channels: {indices: [5, 7, 12], along: output}}
  - {parameters: ["grouped.weight"], channels: {indices: [1, 3]}}
  - {parameters: ["left.*"], channels: {indices: [0, 4], along: output}}
  - {parameters: ["right.weight"], channels: {indices: [2, 3, 11]}}
  - {parameters: ["fold.*"], channels: {indices: [1, 4], along: output}}
  - {parameters: ["fc.weight"], channels: {indices: [16, 17, 80, 95]}}
"""


def grouped() -> Chosen:
    """The same input channels of each group; sets that no order of whole channels makes a range of."""
    case = _case(_seeded(Grouped), _images, 4, GROUPED)
    windows = {
        "stem.weight": at(0, [5, 7, 12]),
        "stem.bias": at(0, [5, 7, 12]),
        "grouped.weight": at(1, [1, 3]),
        "left.weight": at(0, [0, 4]),
        "left.bias": at(0, [0, 4]),
        "right.weight": at(1, [2, 3, 11]),
        "fold.weight": at(0, [1, 4]),
        "fold.bias": at(0, [1, 4]),
        "fc.weight": at(1, [16, 17, 80, 95]),
    }
    return Chosen(case, windows, ("stem.weight", "stem.bias", "right.weight", "fc.weight"))


CASES: Mapping[str, Callable[[], Chosen]] = {
    "mobilenet": mobilenet,
    "resnet": resnet,
    "encoder": encoder,
    "decoder": decoder,
    "grouped": grouped,
}
