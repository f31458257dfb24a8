"""Models that are nearly right: bytes changed at random, or valid protobuf with wrong meaning."""

from __future__ import annotations

import random
from collections.abc import Iterator

import onnx
import torch
from torch import nn

from compiler.frontend.file.prescan import ModelLimits
from compiler.frontend.rows import ROWS
from examples.models import MODELS
from tests.models import Exporter, export

SMALL = ModelLimits(folded_bytes=1 << 22, tensor_elements=1 << 22)
SEEDS: dict[str, bytes] = {
    "mlp": MODELS["mlp"](features=5, hidden=4, classes=3),
    "small_cnn": MODELS["small_cnn"](width=4),
    "transformer": MODELS["transformer_encoder"](tokens=5, positions=4, width=8, heads=2, layers=1),
}


def mutations(model: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Files of which a few bytes are changed, lost or added."""
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(model)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    data[at] ^= 1 << rng.randrange(8)
                case 2:
                    del data[at : at + rng.randrange(1, 9)]
                case _:
                    data[at:at] = rng.randbytes(rng.randrange(1, 9))
        yield bytes(data)


def disturb(proto: onnx.ModelProto, rng: random.Random) -> None:
    """Swap operands, shapes, operators or attributes for others, in place."""
    made = rng.choice([node for node in proto.graph.node if node.input])
    values = [name for other in proto.graph.node for name in (*other.input, *other.output)]
    match rng.randrange(7):
        case 0:
            made.op_type = rng.choice(sorted(ROWS))
        case 1:
            made.input[rng.randrange(len(made.input))] = rng.choice(values)
        case 2:
            del made.input[rng.randrange(len(made.input)) :]
        case 3 if proto.graph.initializer:
            tensor = rng.choice(proto.graph.initializer)
            tensor.dims[:] = rng.choice(([], [0], [tensor.dims[0], 1] if tensor.dims else [1], [1 << 40], [-1]))
        case 4:
            name = rng.choice(("axis", "perm", "strides", "pads", "group", "to", "keepdims", "kernel_shape"))
            made.attribute.append(
                onnx.helper.make_attribute(name, rng.choice(([0], [-1, 5], 3, -9, 1 << 40, 0.5, "x")))
            )
        case 5:
            made.input.append(rng.choice(values))
        case _:
            proto.opset_import[0].version = rng.randrange(0, 30)


def exported(exporter: Exporter) -> bytes:
    """A model of PyTorch with something of all that exporters change."""
    torch.manual_seed(0)
    return export(Exported().eval(), (torch.randn(2, 3, 6, 6),), exporter=exporter, dynamic_batch=False)


class Exported(nn.Module):
    """Something of all that exporters change: norms that fold and that do not, zero biases, equal and tied tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.PReLU(4))
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        for layer in (self.first, self.second):
            nn.init.zeros_(layer.bias)
        self.scale = nn.Parameter(torch.zeros(4))
        self.token = nn.Parameter(torch.randn(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, z = self.body(x).mean((2, 3)).split(1)
        y = torch.cat([y, z]) + self.token.expand(2, -1)
        return self.second(self.first(y) * (1 + self.scale)) @ self.first.weight.t()
