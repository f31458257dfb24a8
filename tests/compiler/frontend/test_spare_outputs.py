"""Outputs that no loss reads do not keep a model from training: what they alone need is left out, and that is said."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from compiler.errors import ModelError, UnsupportedOperator
from compiler.frontend.importer import import_model
from compiler.graph import Graph
from tests.compiler.frontend.onnx_graphs import model_of, node

WEIGHT = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
SPARE = {
    "a shape that data decide": ([node("NonZero", ["h"], ["z"])], UnsupportedOperator, "'z' has as many rows"),
    "an operator of another standard": (
        [helper.make_node("Normalizer", ["h"], ["z"], name="last", domain="ai.onnx.ml")],
        UnsupportedOperator,
        "'ai.onnx.ml'",
    ),
    "an operator of a runtime": (
        [helper.make_node("Gelu", ["h"], ["g"], name="joined", domain="com.microsoft"), node("Neg", ["g"], ["z"])],
        UnsupportedOperator,
        "'com.microsoft'",
    ),
    "text": ([node("Cast", ["h"], ["z"], to=onnx.TensorProto.STRING)], UnsupportedOperator, "a cast at run time"),
    "a constant": ([node("Shape", ["x"], ["z"])], ModelError, "no node computes it"),
    "the same once more": ([node("Identity", ["h"], ["z"])], ModelError, "'y'"),
}


def graph_of(case: str, *outputs: str) -> Graph:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Identity", ["h"], ["y"]), *SPARE[case][0]]
    model = model_of(nodes, {"x": ("f32", (2, 3))}, ["y", "z"], {"w": WEIGHT}, infer_shapes=False)
    return import_model(model, input_shapes={}, batch=2, batch_norm="fold", outputs=outputs)


@pytest.mark.parametrize("case", SPARE)
@pytest.mark.parametrize("outputs", [(), ("y",)])
def test_what_nobody_reads_is_left_out(case: str, outputs: tuple[str, ...]) -> None:
    graph = graph_of(case, *outputs)
    assert [graph.name_of(value) for value in graph.outputs] == ["y"]
    (warning,) = [warning for warning in graph.warnings if warning.code == "model.outputs_left_out"]
    assert warning.where == "z"
    assert SPARE[case][2] in warning.message


@pytest.mark.parametrize("case", [case for case in SPARE if case != "the same once more"])
def test_what_a_loss_reads_is_refused(case: str) -> None:
    _, error, part = SPARE[case]
    with pytest.raises(error, match=part):
        graph_of(case, "z")


def test_a_weight_that_is_an_output_too_is_left_out() -> None:
    model = model_of(
        [node("MatMul", ["x", "w"], ["y"])], {"x": ("f32", (2, 3))}, ["y", "w"], {"w": WEIGHT}, infer_shapes=False
    )
    graph = import_model(model, input_shapes={}, batch=2, batch_norm="fold")
    assert [graph.name_of(value) for value in graph.outputs] == ["y"]
    assert [parameter.name for parameter in graph.parameters.values()] == ["w"]


def test_an_output_that_does_without_is_named() -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("NonZero", ["y"], ["z"])]
    model = model_of(nodes, {"x": ("f32", (2, 3))}, ["z", "y"], {"w": WEIGHT}, infer_shapes=False)
    with pytest.raises(UnsupportedOperator) as refused:
        import_model(model, input_shapes={}, batch=2, batch_norm="fold")
    assert refused.value.hint.endswith("name an output that does without it, as in loss: {output: y}")
    assert import_model(model, input_shapes={}, batch=2, batch_norm="fold", outputs=("y",)).outputs
