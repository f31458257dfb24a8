"""Small models that are hard to compile: the compiler's own work grows with their nodes, and not with their tricks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.explain import explain_plan
from compiler.kernels.canonical import canonical
from compiler.kernels.expressions import MOST_NODES, Binary, Expr, Ref, Unary, size, substitute_refs
from compiler.pipeline import walk
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load

Links = Callable[[str, int], list[onnx.NodeProto]]


def tanh_plus_sigmoid(x: str, link: int) -> list[onnx.NodeProto]:
    """Each link reads the one before twice."""
    return [
        helper.make_node("Tanh", [x], [f"tanh{link}"]),
        helper.make_node("Sigmoid", [x], [f"sigmoid{link}"]),
        helper.make_node("Add", [f"tanh{link}", f"sigmoid{link}"], [f"h{link}"]),
    ]


def swish(x: str, link: int) -> list[onnx.NodeProto]:
    """As people write it by hand."""
    return [
        helper.make_node("Sigmoid", [x], [f"gate{link}"]),
        helper.make_node("Mul", [x, f"gate{link}"], [f"h{link}"]),
    ]


def tanh(x: str, link: int) -> list[onnx.NodeProto]:
    return [helper.make_node("Tanh", [x], [f"h{link}"])]


def matmul(x: str, link: int) -> list[onnx.NodeProto]:
    return [helper.make_node("MatMul", [x, "square"], [f"h{link}"])]


def chain(links: Links, count: int) -> bytes:
    nodes, x = [], "x"
    for link in range(count):
        nodes += links(x, link)
        x = f"h{link}"
    nodes.append(helper.make_node("MatMul", [x, "last"], ["y"]))
    rng = numpy.random.default_rng(0)
    weights = [
        numpy_helper.from_array((0.1 * rng.standard_normal(shape)).astype(numpy.float32), name)
        for name, shape in (("square", (4, 4)), ("last", (4, 2)))
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, width]) for name, width in (("x", 4), ("y", 2))
    ]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def calls_to_plan(model: bytes) -> int:
    """Functions that are called until the step's memory is planned: work that no other load on the machine changes."""
    settings = BuildSettings(
        plan=SparsePlan.parse("full"), spec=TrainingSpec.parse({"batch": 2}), target=load("x86-64-v3")
    )
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        explain_plan(model, settings)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("links", [tanh_plus_sigmoid, swish, tanh, matmul])
def test_work_grows_with_the_nodes(links: Links) -> None:
    calls_to_plan(chain(links, 4))  # what is read once
    once, twice = (calls_to_plan(chain(links, count)) for count in (60, 120))
    assert twice < 2.4 * once, (once, twice)


def test_what_reads_itself_twice_is_not_fused_for_ever() -> None:
    settings = BuildSettings(
        plan=SparsePlan.parse("full"), spec=TrainingSpec.parse({"batch": 2}), target=load("x86-64-v3")
    )
    programs: Any = next(stage.made for stage in walk(chain(tanh_plus_sigmoid, 40), settings) if stage.name == "fuse")
    sizes = [size(expr) for program in programs for call in program.calls for expr in getattr(call.spec, "exprs", ())]
    assert max(sizes) <= MOST_NODES
    assert max(sizes) > MOST_NODES // 4, "fusion goes as far as it may"


def test_an_expression_that_shares_its_parts_is_measured_and_renumbered_once_each() -> None:
    expr: Expr = Ref(0)
    for _ in range(200):
        expr = Binary("add", expr, expr)
    assert size(expr) == 2**201 - 1
    moved = substitute_refs(expr, lambda operand: Ref(operand + 1))
    assert size(moved) == size(expr)


def test_a_deep_expression_has_a_text() -> None:
    expr: Expr = Ref(0)
    for _ in range(MOST_NODES):
        expr = Unary("tanh", expr)
    assert canonical(expr).count("Unary") == MOST_NODES
