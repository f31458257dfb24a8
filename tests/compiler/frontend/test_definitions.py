"""Operators without an import row are what the standard defines them to be, by other operators; so are a model's own
functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from compiler.errors import LimitExceeded, ModelError, UnsupportedOperator
from compiler.frontend import importer
from compiler.frontend.file.prescan import ModelLimits
from compiler.frontend.importer import import_model
from compiler.frontend.rows import ROWS
from tests.compiler.frontend.cases import CASES, Case
from tests.compiler.frontend.onnx_graphs import assert_agrees, feeds_for, imported, model_of, node

LEFT_OUT = ("Bernoulli", "CastLike", "DynamicQuantizeLinear")
"""Bernoulli draws at random; CastLike is folded before rows are asked; DynamicQuantizeLinear is defined by a cast to
bytes, which nothing computes in."""


def _is_defined(case: Case) -> bool:
    schema = onnx.defs.get_schema(case.op_type, case.opset, "")
    return bool(schema.has_function or schema.has_context_dependent_function) and case.op_type not in LEFT_OUT


Without = Callable[[str], None]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Without:
    """Takes an import row out of the table."""

    def take(op_type: str) -> None:
        rows = {name: rule for name, rule in ROWS.items() if name != op_type}
        monkeypatch.setattr(importer, "ROWS", rows)

    return take


@pytest.mark.parametrize("case", [case for case in CASES if _is_defined(case)], ids=lambda case: case.name)
def test_an_operator_without_its_row_agrees_with_onnx_runtime(case: Case, without: Without) -> None:
    without(case.op_type)
    model = case.model()
    graph = imported(model)
    assert {made.layer for made in graph} <= {"make_y0", "output y0"}
    assert_agrees(model, graph, feeds_for(graph, positive=case.positive, integers=case.integers))


DEFINED_ONLY: dict[str, tuple[tuple[str, ...], dict[str, Any], int]] = {
    "MeanVarianceNormalization": (("x",), {"axes": [0, 2, 3]}, 18),
    "MeanVarianceNormalization-13": (("x",), {}, 13),
    "SoftmaxCrossEntropyLoss": (("x", "labels"), {"reduction": "mean"}, 18),
    "SoftmaxCrossEntropyLoss-none": (("x", "labels"), {"reduction": "none"}, 13),
    "NegativeLogLikelihoodLoss": (("x", "labels"), {"reduction": "sum"}, 22),
    "CenterCropPad": (("x", "shape"), {"axes": [1, 3]}, 18),
}


@pytest.mark.parametrize("name", DEFINED_ONLY)
def test_defined_operators_agree_with_onnx_runtime(name: str, without: Without) -> None:
    without(name.partition("-")[0])
    operands, attributes, opset = DEFINED_ONLY[name]
    kinds = {"x": ("f32", ("batch", 4, 5, 3)), "labels": ("i64", ("batch", 5, 3))}
    known = {"shape": np.asarray([3, 7])}
    made = node(name.partition("-")[0], operands, ["y"], **attributes)
    inputs = {key: kind for key, kind in kinds.items() if key in operands}
    stored = {key: array for key, array in known.items() if key in operands}
    model = model_of([made], inputs, initializers=stored, opset=opset)
    assert_agrees(model, imported(model))


def test_a_definition_that_needs_what_there_is_not_names_the_operator() -> None:
    schedule = node("BlackmanWindow", ["n"], ["y"])
    model = model_of([schedule], {"n": ("i64", ("batch",))}, infer_shapes=False)
    with pytest.raises(UnsupportedOperator, match=r"^node 'make_y' \(BlackmanWindow\): .* Loop: "):
        imported(model)


# --------------------------------------------------------------------------------------------- a model's own functions


def _function(
    name: str, inputs: list[str], outputs: list[str], nodes: list[onnx.NodeProto], opset: int = 18, **more: object
) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, inputs, outputs, nodes, opsets, **more)


def _calling(
    nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto], outputs: tuple[str, ...] = ("y",)
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["batch", 3])],
        [helper.make_tensor_value_info(name, 1, ["batch", 3]) for name in outputs],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


def _call(name: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(name, inputs, outputs, name=f"call_{outputs[0]}", domain="local", **attributes)


def _elu(by: str) -> onnx.NodeProto:
    made = helper.make_node("Elu", ["a"], ["b"])
    made.attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name=by))
    return made


def test_functions_call_functions_and_hand_on_attributes() -> None:
    inner = _function("Bent", ["a", "more"], ["b"], [_elu("slope")], attributes=["slope"])
    again = helper.make_node("Bent", ["a"], ["h"], domain="local")
    again.attribute.append(onnx.AttributeProto(name="slope", type=onnx.AttributeProto.FLOAT, ref_attr_name="outer"))
    outer = _function(
        "Twice",
        ["a"],
        ["c", "h"],
        [again, helper.make_node("Mul", ["h", "a"], ["c"])],
        attribute_protos=[helper.make_attribute("outer", 0.5)],
    )
    calls = [_call("Twice", ["x"], ["z", "unread"], outer=2.0), _call("Twice", ["z"], ["y", "h"])]
    model = _calling(calls, [inner, outer], ("y", "h"))
    assert_agrees(model, imported(model))


def test_a_function_that_hands_its_input_on() -> None:
    same = _function("Same", ["a"], ["a"], [])
    model = _calling([_call("Same", ["x"], ["z"]), helper.make_node("Neg", ["z"], ["y"])], [same])
    assert [made.op for made in imported(model)] == ["neg"]


@pytest.mark.parametrize(
    ("functions", "error", "message"),
    [
        ([_function("F", ["a"], ["b"], [_call("F", ["a"], ["b"])])], ModelError, "calls itself"),
        ([_function("F", ["a"], ["b"], [node("Relu", ["x"], ["b"])])], ModelError, "reads 'x', which nothing"),
        ([_function("F", [], ["b"], [node("Relu", ["b"], ["b"])])], ModelError, "nothing before it makes"),
        ([_function("F", ["a"], ["b"], [node("Relu", ["a"], ["c"])])], ModelError, "nothing in its body makes 'b'"),
        ([_function("F", [], ["b"], [node("Constant", [], ["b"], value_float=1.0)])], ModelError, "1 inputs and 1 out"),
        ([_function("F", ["a"], ["b"], [node("Relu", ["a"], ["b"])], opset=6)], UnsupportedOperator, "'F': opset 6"),
        ([_function("F", ["a"], ["b"], [node("Unique", ["a"], ["b"])])], UnsupportedOperator, "make_b' .Unique"),
    ],
)
def test_functions_that_make_no_sense_are_refused(
    functions: list[onnx.FunctionProto], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        imported(_calling([_call("F", ["x"], ["y"])], functions))


def test_functions_that_double_at_each_level_meet_the_limit() -> None:
    levels = [_function("F0", ["a"], ["b"], [node("Relu", ["a"], ["b"])])]
    for level in range(1, 30):
        calls = [_call(f"F{level - 1}", ["a"], ["h"]), _call(f"F{level - 1}", ["h"], ["b"])]
        levels.append(_function(f"F{level}", ["a"], ["b"], calls))
    with pytest.raises(LimitExceeded, match=r"^graph: 536,870,912 nodes .* 50,000$"):
        imported(_calling([_call("F29", ["x"], ["y"])], levels))


def test_definitions_count_as_the_nodes_that_they_are(without: Without) -> None:
    without("MeanVarianceNormalization")
    model = model_of([node("MeanVarianceNormalization", ["x"], ["y"])], {"x": ("f32", ("batch", 3, 2, 2))})
    with pytest.raises(LimitExceeded, match=r"^node 'make_y' .* more than 5 nodes "):
        import_model(model, input_shapes={}, batch=2, batch_norm="fold", limits=ModelLimits(nodes=5))
