"""A model twice as deep takes twice the work to compile, counted in calls of Python functions: not a matter of time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from compiler.pipeline import walk
from compiler.program.program import MemoryPlan
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.sample import sample

BATCH, WIDTH = 16411, 64
"""Values that leave the cache, so that some are worth making again; a prime, so that no run is cut by the batch."""


def _mlp(layer: int) -> list[NodeProto]:
    """A residual block of two products."""
    x, y, own = f"x{layer}", f"x{layer + 1}", f"mlp{layer}"
    return [
        helper.make_node("MatMul", [x, f"{own}.0.weight"], [f"{own}.a"]),
        helper.make_node("Relu", [f"{own}.a"], [f"{own}.b"]),
        helper.make_node("MatMul", [f"{own}.b", f"{own}.1.weight"], [f"{own}.c"]),
        helper.make_node("Add", [x, f"{own}.c"], [y]),
    ]


def _gate(layer: int) -> list[NodeProto]:
    """A residual block that multiplies by what it is gated with, and that a norm follows."""
    x, y, own = f"x{layer}", f"x{layer + 1}", f"gate{layer}"
    return [
        helper.make_node("MatMul", [x, f"{own}.0.weight"], [f"{own}.a"]),
        helper.make_node("Sigmoid", [f"{own}.a"], [f"{own}.b"]),
        helper.make_node("Mul", [x, f"{own}.b"], [f"{own}.c"]),
        helper.make_node("MatMul", [f"{own}.c", f"{own}.1.weight"], [f"{own}.d"]),
        helper.make_node("Add", [x, f"{own}.d"], [f"{own}.e"]),
        helper.make_node("LayerNormalization", [f"{own}.e", f"{own}.norm.weight"], [y], axis=-1),
    ]


def _model(block: Callable[[int], list[NodeProto]], layers: int) -> bytes:
    nodes = [node for layer in range(layers) for node in block(layer)]
    rng, names = np.random.default_rng(0), sorted({name for node in nodes for name in node.input if "weight" in name})
    shapes = {name: (WIDTH,) if "norm" in name else (WIDTH, WIDTH) for name in names}
    arrays = [numpy_helper.from_array(rng.normal(size=shapes[name]).astype("f"), name) for name in names]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, WIDTH]) for name in ("x0", f"x{layers}")]
    graph = helper.make_graph(nodes, "deep", ends[:1], ends[1:], arrays)
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


def _function_calls(model: bytes) -> int:
    """Of a compile up to the memory plan."""
    spec = TrainingSpec.parse({"batch": BATCH, "threads": 2, "optimizer": {"kind": "sgd", "momentum": 0.9}})
    settings = BuildSettings(plan=SparsePlan.of_preset("full"), spec=spec, target=load("x86-64-v4"))
    count, before = 0, sys.getprofile()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        stages: Iterator[object] = (stage.product for stage in walk(model, settings))
        assert any(isinstance(made, MemoryPlan) for made in stages)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("block", sample([_mlp, _gate], {"_gate"}, lambda block: block.__name__))
def test_work_is_linear_in_depth(block: Callable[[int], list[NodeProto]]) -> None:
    _function_calls(_model(block, 2))  # what is computed once in a process
    eight, sixteen, thirty_two = (_function_calls(_model(block, layers)) for layers in (8, 16, 32))
    assert thirty_two - sixteen < 2.01 * (sixteen - eight)
