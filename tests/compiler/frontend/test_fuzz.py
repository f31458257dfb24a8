"""Whatever bytes come in, only a typed error about the model or a limit comes out; anything else fails the test."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compiler.errors import LimitExceeded, ModelError
from compiler.frontend.importer import import_model
from compiler.frontend.prescan import prescan
from compiler.frontend.rows import ROWS
from compiler.limits import ModelLimits
from examples.models import MODELS
from tests.compiler.frontend.operator_cases import CASES, Case

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


def _disturb(proto: onnx.ModelProto, rng: random.Random) -> None:
    made = rng.choice(proto.graph.node)
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
