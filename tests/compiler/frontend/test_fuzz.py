"""Whatever bytes come in, only a typed error about the model or a limit comes out; anything else fails the test."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from compiler.errors import LimitExceeded, ModelError
from compiler.frontend.importer import import_model
from compiler.frontend.limits import ModelLimits
from compiler.frontend.prescan import prescan
from compiler.frontend.rows import ROWS
from examples.models import MODELS
from tests.compiler.frontend.operator_cases import CASES, Case
from tests.models import Exporter, export

SMALL = ModelLimits(folded_bytes=1 << 22, tensor_elements=1 << 22)
SEEDS: dict[str, bytes] = {
    "mlp": MODELS["mlp"](features=5, hidden=4, classes=3),
    "small_cnn": MODELS["small_cnn"](width=4),
    "transformer": MODELS["transformer_encoder"](tokens=5, positions=4, width=8, heads=2, layers=1),
}


def _import(model: bytes) -> None:
    """Import and let only errors through that a user can act on."""
    with contextlib.suppress(ModelError, LimitExceeded):
        import_model(model, input_shapes={}, batch=2, batch_norm="fold", limits=SMALL)


def _mutations(model: bytes, count: int, seed: int) -> Iterator[bytes]:
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


@pytest.mark.parametrize("name", SEEDS)
def test_mutated_files(name: str) -> None:
    for model in _mutations(SEEDS[name], 300, seed=1):
        _import(model)


def test_mutated_structure() -> None:
    """Valid protobuf with wrong meaning: swapped operands, odd shapes, other operators and attributes."""
    rng = random.Random(2)
    for seed_model in SEEDS.values():
        for _ in range(150):
            proto = onnx.load_from_string(seed_model)
            _disturb(proto, rng)
            _import(proto.SerializeToString())


@pytest.mark.parametrize("exporter", ["dynamo", "dynamo-unoptimized", "torchscript"])
def test_mutated_exports(exporter: Exporter) -> None:
    """Files whose exporter's record of the module is damaged, or no longer fits the graph."""
    torch.manual_seed(0)
    seed_model = export(Exported().eval(), (torch.randn(2, 3, 6, 6),), exporter=exporter, dynamic_batch=False)
    for model in _mutations(seed_model, 200, seed=4):
        _import(model)
    rng = random.Random(5)
    for _ in range(150):
        proto = onnx.load_from_string(seed_model)
        for _ in range(rng.choice((1, 3))):
            _disturb(proto, rng)
        told = [item for node in proto.graph.node for item in node.metadata_props] + [*proto.graph.metadata_props]
        for item in rng.sample(told, min(3, len(told))):
            item.value = rng.choice((rng.choice(told).value, "", item.value[: len(item.value) // 2]))
        _import(proto.SerializeToString())


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


def _disturb(proto: onnx.ModelProto, rng: random.Random) -> None:
    made = rng.choice([node for node in proto.graph.node if node.input])
    values = [name for other in proto.graph.node for name in (*other.input, *other.output)]
    match rng.randrange(7):
        case 0:
            made.op_type = rng.choice(sorted(ROWS))
        case 1:
            made.input[rng.randrange(len(made.input))] = rng.choice(values)
        case 2:
            del made.input[rng.randrange(len(made.input)) :]
        case 3:
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


@pytest.mark.parametrize("case", CASES[::4], ids=lambda case: case.name)
def test_mutated_operators(case: Case) -> None:
    for model in _mutations(case.model(), 40, seed=3):
        _import(model)


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_arbitrary_bytes(data: bytes) -> None:
    _import(data)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 7), st.binary(max_size=30)), max_size=8))
@settings(max_examples=300, deadline=None)
def test_arbitrary_fields_through_the_scan(fields: list[tuple[int, int, bytes]]) -> None:
    data = b"".join(bytes([(number << 3 | wire) & 0xFF, len(body)]) + body for number, wire, body in fields)
    with contextlib.suppress(ModelError, LimitExceeded):
        prescan(data)


def test_the_published_range_bomb() -> None:
    """136 bytes that ask for 17 GB."""
    nodes = [
        onnx.helper.make_node("Range", ["a", "b", "c"], ["r"]),
        onnx.helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    known = [("a", 0), ("b", 1 << 32), ("c", 1)]
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", 7, ["n"])],
        [onnx.helper.make_tensor_value_info("y", 7, None)],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in known],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    with pytest.raises(LimitExceeded, match=r"Range.*34,359,738,368 bytes at compile time"):
        import_model(model.SerializeToString(), input_shapes={}, batch=2, batch_norm="fold")
