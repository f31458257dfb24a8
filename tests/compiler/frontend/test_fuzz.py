"""Whatever bytes come in, only a typed error about the model or a limit comes out; anything else fails the test."""

from __future__ import annotations

import contextlib
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import LimitExceeded, ModelError
from compiler.frontend.file.prescan import prescan
from compiler.frontend.importer import import_model
from compiler.graph import Node
from compiler.ops import OPERATORS
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import NotDifferentiable
from compiler.step import autodiff
from compiler.values import Value
from tests.compiler.frontend.carrying_on import FAILED, TRAINS, campaign
from tests.compiler.frontend.cases import CASES, Case
from tests.compiler.frontend.mutations import SEEDS, SMALL, disturb, exported, mutations
from tests.models import Exporter


def _import(model: bytes) -> None:
    """Import and let only errors through that a user can act on."""
    with contextlib.suppress(ModelError, LimitExceeded):
        import_model(model, input_shapes={}, batch=2, batch_norm="fold", limits=SMALL)


@pytest.mark.parametrize("name", SEEDS)
def test_mutated_files(name: str) -> None:
    for model in mutations(SEEDS[name], 300, seed=1):
        _import(model)


def test_mutated_structure() -> None:
    """Valid protobuf with wrong meaning: swapped operands, odd shapes, other operators and attributes."""
    rng = random.Random(2)
    for seed_model in SEEDS.values():
        for _ in range(150):
            proto = onnx.load_from_string(seed_model)
            disturb(proto, rng)
            _import(proto.SerializeToString())


@pytest.mark.parametrize("exporter", ["dynamo", "dynamo-unoptimized", "torchscript"])
def test_mutated_exports(exporter: Exporter) -> None:
    """Files whose exporter's record of the module is damaged, or no longer fits the graph."""
    seed_model = exported(exporter)
    for model in mutations(seed_model, 200, seed=4):
        _import(model)
    rng = random.Random(5)
    for _ in range(150):
        proto = onnx.load_from_string(seed_model)
        for _ in range(rng.choice((1, 3))):
            disturb(proto, rng)
        told = [item for node in proto.graph.node for item in node.metadata_props] + [*proto.graph.metadata_props]
        for item in rng.sample(told, min(3, len(told))):
            item.value = rng.choice((rng.choice(told).value, "", item.value[: len(item.value) // 2]))
        _import(proto.SerializeToString())


@pytest.mark.parametrize("case", CASES[::4], ids=lambda case: case.name)
def test_mutated_operators(case: Case) -> None:
    for model in mutations(case.model(), 40, seed=3):
        _import(model)


@given(st.binary(max_size=400))
@settings(max_examples=300)
def test_arbitrary_bytes(data: bytes) -> None:
    _import(data)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 7), st.binary(max_size=30)), max_size=8))
@settings(max_examples=300)
def test_arbitrary_fields_through_the_scan(fields: list[tuple[int, int, bytes]]) -> None:
    data = b"".join(bytes([(number << 3 | wire) & 0xFF, len(body)]) + body for number, wire, body in fields)
    with contextlib.suppress(ModelError, LimitExceeded):
        prescan(data)


def test_nearly_right_models_are_refused_or_train_rightly(tmp_path: Path) -> None:
    """Carried on through plan, loss, differentiation, passes and placement; `make fuzz` goes on for longer."""
    outcomes = campaign(seed=6, seconds=math.inf, most=60, folder=tmp_path)
    assert not outcomes[FAILED], "what failed is told above"
    assert outcomes[TRAINS] > 5
    assert len(outcomes) > 4


@pytest.mark.thorough
def test_wrong_gradients_do_not_go_unnoticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the gradient of one operator doubled."""
    add = OPERATORS["add"]
    assert not isinstance(add.grad, NotDifferentiable)
    right = add.grad

    def doubled(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
        return right(b, node, b.emit("add", d_output, d_output), wanted)

    monkeypatch.setattr(autodiff, "OPERATORS", {**OPERATORS, "add": replace(add, grad=doubled)})
    assert campaign(seed=6, seconds=math.inf, most=60, folder=tmp_path)[FAILED] > 3


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
