"""What cannot be imported is refused with a typed error that names the node and says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from compiler.errors import ModelError, ModelShapeError, UnsupportedOperator
from compiler.frontend.importer import import_model
from tests.compiler.frontend.onnx_graphs import Shape, imported, model_of, node
from tests.compiler.named import evaluate_named

ROWS: dict[str, tuple[str, Shape]] = {"x": ("f32", ("batch", 3, 4))}
IMAGE: dict[str, tuple[str, Shape]] = {"x": ("f32", ("batch", 4, 6, 6))}


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def _case(op_type: str, inputs: dict[str, tuple[str, Shape]], message: str, *known: np.ndarray, **attributes: object):  # type: ignore[no-untyped-def]
    names = [*inputs, *(f"k{i}" for i in range(len(known)))]
    stored = {f"k{i}": array for i, array in enumerate(known)}
    return model_of(
        [node(op_type, names, ["y"], **attributes)], inputs, initializers=stored, infer_shapes=False
    ), message


UNSUPPORTED = {
    "operator": _case(
        "StringSplit",
        ROWS,
        r"'make_y' \(StringSplit\): .* others of the \d+ operators",
    ),
    "attribute": _case("Relu", ROWS, r"\(Relu\): attribute 'slope' is not supported", slope=1),
    "conv of vectors": _case("Conv", {"x": ("f32", (2, 4))}, r"\(Conv\): convolves rank 2", _ones(4, 4)),
    "4-d pool": _case("MaxPool", {"x": ("f32", (2, 3, 4, 4, 4, 4))}, r"pools rank 6", kernel_shape=[2, 2, 2, 2]),
    "run-time k": _case("TopK", {**ROWS, "k": ("i64", (2,))}, r"\(TopK\): k \(input 'k'\) is only known"),
    "large determinant": _case("Det", {"x": ("f32", (2, 5, 5))}, r"\(Det\): .* 5 rows, the limit is 4"),
    "run-time Unique": _case("Unique", ROWS, r"Unique is not supported on values"),
    "run-time shape": _case("Reshape", {**ROWS, "s": ("i64", (2,))}, r"target shape \(input 's'\) is only known"),
    "overlapping unpool": _case(
        "MaxUnpool", {**IMAGE, "i": ("i64", IMAGE["x"][1])}, r"\(MaxUnpool\): its windows overlap", kernel_shape=[2, 2]
    ),
    "deformable conv": _case("DeformConv", {**IMAGE, "o": IMAGE["x"]}, r"operator DeformConv is not supported"),
}

PLAINLY: Mapping[str, Any] = {"input_shapes": {}, "batch": 2, "batch_norm": "fold"}

CONTRADICTORY = {
    "reshape": _case("Reshape", ROWS, r"\(Reshape\).*does not reshape to \[5, 5\]", np.asarray([5, 5])),
    "broadcast": _case("Add", ROWS, r"\(Add\): shapes .* do not broadcast", _ones(5)),
    "matmul": _case("MatMul", ROWS, r"\(MatMul\)", _ones(5, 5)),
    "conv channels": _case("Conv", IMAGE, r"does not fit 4 input channels", _ones(4, 3, 3, 3)),
    "gather index": _case("Gather", ROWS, r"index 9 of an axis of extent 3", np.asarray([9]), axis=1),
    "axis": _case("Softmax", ROWS, r"axis 7 of a tensor of rank 3", axis=7),
    "mixed types": _case("Add", ROWS, r"types f32 and i64", np.asarray([1])),
    "split": _case("Split", ROWS, r"does not split into \[3\]", np.asarray([3]), axis=2),
    "attribute type": _case("Softmax", ROWS, r"attribute 'axis' must be an integer", axis="last"),
    "kernel": _case("Conv", IMAGE, r"kernel_shape contradicts", _ones(4, 4, 3, 3), kernel_shape=[5, 5]),
    "oversized kernel": _case("Conv", IMAGE, r"\(Conv\)", _ones(4, 4, 9, 9)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_models_name_the_node_and_the_reason(name: str) -> None:
    model, message = UNSUPPORTED[name]
    with pytest.raises(UnsupportedOperator, match=message) as caught:
        imported(model)
    assert "make_y" in caught.value.where


@pytest.mark.parametrize("name", CONTRADICTORY)
def test_contradictory_models_name_the_node(name: str) -> None:
    model, message = CONTRADICTORY[name]
    with pytest.raises(ModelError, match=message) as caught:
        imported(model)
    assert "make_y" in caught.value.where
    assert caught.value.cause == "model"


@pytest.mark.parametrize("opset", [6, 29])
def test_opsets_outside_the_range_are_refused(opset: int) -> None:
    model = model_of([node("Relu", ["x"], ["y"])], ROWS, opset=opset)
    with pytest.raises(UnsupportedOperator, match=rf"opset {opset} is outside 7 to 28"):
        imported(model)


@pytest.mark.parametrize("opset", [7, 13, 17, 23, 28])
def test_opsets_inside_the_range_are_accepted(opset: int) -> None:
    imported(model_of([node("Relu", ["x"], ["y"])], ROWS, opset=opset))


@pytest.mark.parametrize(
    ("nodes", "outputs", "message"),
    [
        ([node("Relu", ["z"], ["y"])], ["y"], "reads 'z'"),
        ([node("Relu", ["y"], ["h"]), node("Relu", ["x"], ["y"])], ["y"], "reads 'y'"),
        ([node("Relu", ["x"], ["y"]), node("Relu", ["x"], ["y"])], ["y"], "'y' is defined twice"),
        ([node("Relu", ["x"], ["x"])], ["x"], "'x' is defined twice"),
        ([node("Relu", ["x"], ["y"])], ["q"], "output 'q': no node makes it"),
        ([node("Relu", ["x"], ["y"])], [], "no output"),
        ([node("Relu", ["x"], ["h"])], ["x"], "output 'x': no node computes it"),
    ],
)
def test_graphs_that_are_not_in_single_assignment_form(
    nodes: list[onnx.NodeProto], outputs: list[str], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        imported(model_of(nodes, ROWS, outputs, infer_shapes=False))


def test_an_unused_unsupported_type_of_input_is_named() -> None:
    value = helper.make_tensor_value_info("x", onnx.TensorProto.STRING, [2, 3])
    output = helper.make_tensor_value_info("y", onnx.TensorProto.STRING, [2, 3])
    graph = helper.make_graph([node("Identity", ["x"], ["y"])], "g", [value], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
    with pytest.raises(UnsupportedOperator, match=r"^input 'x': .* string; "):
        imported(model)


def test_an_empty_run_time_tensor_is_refused() -> None:
    with pytest.raises(ModelShapeError, match="is empty"):
        imported(
            model_of(
                [node("Expand", ["x", "s"], ["y"])],
                {"x": ("f32", ("batch", 1))},
                initializers={"s": np.asarray([2, 0])},
                infer_shapes=False,
            )
        )


def test_a_slice_of_nothing_is_left_out_of_what_it_joins() -> None:
    nodes = [node("Slice", ["x", "a", "a", "a"], ["h"]), node("Concat", ["h", "x"], ["y"], axis=1)]
    model = model_of(nodes, {"x": ("f32", ("batch", 3))}, initializers={"a": np.asarray([1])}, infer_shapes=False)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(evaluate_named(imported(model, batch=2), {"x": x})["y"], x)


def test_local_functions_are_expanded() -> None:
    body = [node("Mul", ["a", "a"], ["b"])]
    square = helper.make_function("local", "Square", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    graph = helper.make_graph(
        [helper.make_node("Square", ["x"], ["y"], name="call", domain="local")],
        "g",
        [helper.make_tensor_value_info("x", 1, ["batch", 3])],
        [helper.make_tensor_value_info("y", 1, ["batch", 3])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, functions=[square], opset_imports=opsets, ir_version=10)
    assert [made.op for made in imported(model.SerializeToString())] == ["mul"]


def test_outputs_that_are_one_value_or_no_computation_are_refused() -> None:
    nodes = [node("Relu", ["x"], ["h"]), node("Identity", ["h"], ["y"])]
    with pytest.raises(ModelError, match="output 'y': is the same value as output 'h'"):
        import_model(model_of(nodes, ROWS, ["h", "y"]), **PLAINLY, outputs=["h", "y"])
    with pytest.raises(ModelError, match="output 'k': no node computes it"):
        imported(model_of([node("Relu", ["x"], ["y"])], ROWS, ["k", "y"], {"k": _ones(3)}))


def test_an_output_that_its_operator_does_not_have_is_refused_by_name() -> None:
    model = model_of([node("Relu", ["x"], ["y", "more"])], ROWS, outputs=("y", "more"), infer_shapes=False)
    with pytest.raises(ModelError, match=r"^output 'more': no node "):
        import_model(model, **PLAINLY, outputs=["more"])


@pytest.mark.parametrize("variance", [-1.0, np.nan, -2e-5])
def test_a_variance_that_is_not_positive_is_refused(variance: float) -> None:
    stored = {name: _ones(4) for name in ("scale", "bias", "mean")} | {"variance": _ones(4) * np.float32(variance)}
    conv = node("Conv", ["x", "weight"], ["h"])
    norm = node("BatchNormalization", ["h", *stored], ["y"])
    model = model_of([conv, norm], IMAGE, initializers={"weight": _ones(4, 4, 3, 3), **stored})
    with pytest.raises(ModelError, match=r"\(BatchNormalization\): .* not positive"):
        imported(model)
