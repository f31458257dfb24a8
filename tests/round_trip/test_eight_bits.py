"""Weights that a file stores in eight bits: frozen as they are, or read as real numbers that learn; counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import pockfarm
from compiler.frontend.file.integer_arithmetic import has_integer_arithmetic
from compiler.graph import Array
from pockfarm.errors import PockfarmError

RANDOM = np.random.default_rng(0)
BYTES = RANDOM.integers(-128, 128, (4, 3)).astype(np.int8)
SCALES = (RANDOM.random(3) / 100 + 0.01).astype(np.float32)
X = RANDOM.standard_normal((8, 4)).astype(np.float32)
TIMES: Mapping[str, tuple[Sequence[onnx.NodeProto], Mapping[str, Array]]] = {
    "by one scale": (
        [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wd"])],
        {"w": BYTES, "s": SCALES[0], "z": np.asarray(3, np.int8)},
    ),
    "by a scale for each output": (
        [helper.make_node("DequantizeLinear", ["w", "s"], ["wd"], axis=1)],
        {"w": BYTES, "s": SCALES},
    ),
    "without signs": (
        [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wd"], axis=1)],
        {"w": BYTES.view(np.uint8), "s": SCALES, "z": np.asarray([1, 128, 255], np.uint8)},
    ),
    "by arithmetic": (
        [
            helper.make_node("Cast", ["w"], ["f"], to=1),
            helper.make_node("Sub", ["f", "z"], ["g"]),
            helper.make_node("Mul", ["g", "s"], ["wd"]),
        ],
        {"w": BYTES, "s": SCALES, "z": np.asarray(2, np.float32)},
    ),
    "by other arithmetic": (
        [
            helper.make_node("Cast", ["w"], ["f"], to=1),
            helper.make_node("Div", ["f", "s"], ["g"]),
            helper.make_node("Add", ["g", "z"], ["wd"]),
        ],
        {"w": BYTES, "s": 1 / SCALES, "z": np.asarray(2, np.float32)},
    ),
    "transposed before": (
        [
            helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
            helper.make_node("DequantizeLinear", ["t", "s"], ["wd"], axis=1),
        ],
        {"w": BYTES.T, "s": SCALES},
    ),
}


def model_of(name: str, *, bias: bool) -> bytes:
    nodes, stored = TIMES[name]
    tail = [helper.make_node("MatMul", ["x", "wd"], ["h" if bias else "y"])]
    if bias:
        tail.append(helper.make_node("Add", ["h", "b"], ["y"]))
        stored = {**stored, "b": np.asarray([0.5, -0.25, 1.0], np.float32)}
    graph = helper.make_graph(
        [*nodes, *tail],
        "net",
        [helper.make_tensor_value_info("x", 1, ["N", 4])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.asarray(array), tensor) for tensor, array in stored.items()],
    )
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    )


def run_onnx(model: bytes) -> Array:
    """What the file computes, as written: ONNX Runtime's optimizer multiplies in eight bits."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["y"], {"x": X})[0])


def trained(model: bytes, **spec: object) -> tuple[pockfarm.FineTuned, Array]:
    answer = run_onnx(model)
    settings = {"batch": 8, "loss": {"kind": "mse"}, "optimizer": {"learning_rate": 0.1}, **spec}
    tuned = pockfarm.fine_tune(model, None, {"x": X, "y": answer + 1}, spec=settings, steps=5)
    assert tuned.losses[0] == pytest.approx(1.0, rel=1e-5)
    after = run_onnx(tuned.onnx)
    assert float(np.square(after - answer - 1).mean()) < tuned.losses[-1] < tuned.losses[0]
    return tuned, after


@pytest.mark.parametrize("name", TIMES)
def test_they_learn_as_real_numbers(name: str) -> None:
    tuned, _ = trained(model_of(name, bias=False), quantized="dequantize")
    assert set(tuned.changed) == {"wd"}
    (warning,) = [warning for warning in tuned.warnings if warning.code == "model.eight_bits"]
    assert warning.message.startswith("12 weights ")


@pytest.mark.parametrize("name", TIMES)
def test_they_stay_as_they_are_stored_and_are_counted(name: str) -> None:
    model = model_of(name, bias=True)
    tuned, _ = trained(model)
    assert set(tuned.changed) == {"b"}
    before, after = (onnx.load_from_string(file).graph for file in (model, tuned.onnx))
    assert list(after.node) == list(before.node)
    assert [tensor for tensor in after.initializer if tensor.name != "b"] == [
        tensor for tensor in before.initializer if tensor.name != "b"
    ]
    (warning,) = [warning for warning in tuned.warnings if warning.code == "model.eight_bits"]
    assert warning.message == "12 weights in eight bits are frozen, as they are stored"


def test_a_plan_that_trains_nothing_else_says_what_lets_them_learn() -> None:
    with pytest.raises(PockfarmError, match=r"12 weights in eight bits .*`quantized: dequantize`"):
        trained(model_of("by one scale", bias=False))


def scaled(**attributes: int) -> onnx.NodeProto:
    return helper.make_node("DequantizeLinear", ["w", "s"], ["wd"], **attributes)


def test_scales_of_blocks_are_those_of_the_standard() -> None:
    scales = (RANDOM.random((2, 3)) / 100 + 0.01).astype(np.float32)
    graph = helper.make_graph(
        [scaled(axis=0, block_size=2), helper.make_node("MatMul", ["x", "wd"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", 1, ["N", 4])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(BYTES, "w"), numpy_helper.from_array(scales, "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    tuned, _ = trained(model.SerializeToString(), quantized="dequantize")
    assert tuned.changed == ("wd",)


@pytest.mark.parametrize("block_size", [4, 10**12, -1])
def test_scales_that_fit_no_blocks_are_refused(block_size: int) -> None:
    graph = helper.make_graph(
        [scaled(axis=0, block_size=block_size), helper.make_node("MatMul", ["x", "wd"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", 1, ["N", 4])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(BYTES, "w"), numpy_helper.from_array(np.ones((2, 3), np.float32), "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    with pytest.raises(PockfarmError, match=r"the scale has shape \[2, 3\]"):
        pockfarm.fine_tune(model, None, {"x": X, "y": np.zeros((8, 3), np.float32)}, spec={"loss": {"kind": "mse"}})


CIRCLES: Mapping[str, Sequence[onnx.NodeProto]] = {
    "a sum": [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["p"]),
        helper.make_node("Add", ["p", "sum"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["y"], to=1),
    ],
    "a weight": [
        helper.make_node("Cast", ["t"], ["f"], to=1),
        helper.make_node("Transpose", ["f"], ["t"]),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ],
    "rows": [
        helper.make_node("Gather", ["w", "i"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["f"], to=1),
        helper.make_node("Mul", ["f", "one"], ["g"]),
        helper.make_node("Mul", ["g", "one"], ["f"]),
        helper.make_node("Add", ["x", "g"], ["y"]),
    ],
}


@pytest.mark.parametrize("name", CIRCLES)
def test_integers_that_go_round_in_a_circle_are_refused(name: str) -> None:
    stored = {"w": BYTES, "i": np.asarray([0, 1]), "one": np.asarray(1.0, np.float32)}
    model = file_of(CIRCLES[name], helper.make_tensor_value_info("x", 1, ["N", 4]), stored)
    with pytest.raises(PockfarmError, match=r"nothing before it makes|'f' is defined twice"):
        pockfarm.fine_tune(model, None, {"x": X, "y": np.zeros((8, 3), np.float32)}, spec={"loss": {"kind": "mse"}})


def test_those_of_a_branch_are_frozen_and_counted() -> None:
    branches = [
        helper.make_graph(
            [scaled(axis=1), helper.make_node("MatMul", ["x", "wd"], [f"{name} result"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name} result", 1, None)],
            [numpy_helper.from_array(BYTES, "w"), numpy_helper.from_array(SCALES, "s")],
        )
        for name in ("then", "else")
    ]
    nodes = [
        helper.make_node("If", ["yes"], ["h"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Add", ["h", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, ["N", 4])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.asarray(True), "yes"), numpy_helper.from_array(np.zeros(3, np.float32), "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    tuned, _ = trained(model, quantized="dequantize")
    assert tuned.changed == ("b",)
    messages = [warning.message for warning in tuned.warnings if warning.code == "model.eight_bits"]
    assert messages == ["12 weights in int8 are frozen: they lie in a branch, a function or a data file"]


ROWS: Mapping[str, tuple[Sequence[onnx.NodeProto], Mapping[str, Array]]] = {
    "by one scale": (
        [helper.make_node("DequantizeLinear", ["rows", "s", "z"], ["r"])],
        {"s": SCALES[0], "z": np.asarray(3, np.int8)},
    ),
    "by arithmetic": (
        [
            helper.make_node("Cast", ["rows"], ["f"], to=1),
            helper.make_node("Sub", ["f", "z"], ["g"]),
            helper.make_node("Mul", ["s", "g"], ["r"]),
        ],
        {"s": SCALES[0], "z": np.asarray(3, np.float32)},
    ),
    "by a scale for each row": (
        [
            helper.make_node("Cast", ["rows"], ["f"], to=1),
            helper.make_node("Gather", ["z", "x"], ["zero"]),
            helper.make_node("Sub", ["f", "zero"], ["g"]),
            helper.make_node("Gather", ["s", "x"], ["scale"]),
            helper.make_node("Mul", ["g", "scale"], ["r"]),
        ],
        {"s": np.full((4, 1), SCALES[0]), "z": np.full((4, 1), 3, np.float32)},
    ),
}


def file_of(nodes: Sequence[onnx.NodeProto], x: onnx.ValueInfoProto, stored: Mapping[str, Array]) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "net",
        [x],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.asarray(array), tensor) for tensor, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return bytes(model.SerializeToString())


def after_a_step(model: bytes, x: Array, answer: Array, *, learns: bool) -> Array:
    """The trained file's output, where one step began with a loss of 1 and the file's 12 weights were counted."""
    spec = {"batch": 8, "loss": {"kind": "mse"}, "optimizer": {"learning_rate": 0.1}}
    spec |= {"quantized": "dequantize"} if learns else {}
    tuned = pockfarm.fine_tune(model, None, {"x": x, "y": answer + 1}, spec=spec, steps=1)
    assert tuned.losses[0] == pytest.approx(1.0, rel=1e-5)
    assert len(tuned.changed) == (2 if learns else 1)
    (warning,) = [warning for warning in tuned.warnings if warning.code == "model.eight_bits"]
    assert warning.message.startswith("12 weights ")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(tuned.onnx, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["y"], {"x": x})[0])


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_an_embedding_in_eight_bits_is_a_weight_in_eight_bits(name: str, *, learns: bool) -> None:
    steps, stored = ROWS[name]
    nodes = [helper.make_node("Gather", ["w", "x"], ["rows"]), *steps, helper.make_node("Add", ["r", "b"], ["y"])]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.INT64, ["N", 2])
    ids = RANDOM.integers(0, 4, (8, 2))
    answer = (BYTES[ids].astype(np.float32) - 3) * SCALES[0]
    model = file_of(nodes, x, {"w": BYTES, "b": np.zeros(3, np.float32), **stored})
    after = after_a_step(model, ids, answer, learns=learns)
    gradient = np.full(answer.shape, -2 / answer.size)
    rows = np.zeros((4, 3))
    np.add.at(rows, ids.reshape(-1), gradient.reshape(-1, 3))
    expected = answer - 0.1 * gradient.sum((0, 1)) - (0.1 * rows[ids] if learns else 0)
    np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_a_scale_behind_a_product_is_the_weights(*, turned: bool, learns: bool) -> None:
    """It is no parameter: a step on what is in units of bytes would lead far away."""
    nodes = [
        helper.make_node("Cast", ["w"], ["f"], to=1),
        *([helper.make_node("Transpose", ["f"], ["t"])] if turned else []),
        helper.make_node("MatMul", ["x", "t" if turned else "f"], ["p"]),
        helper.make_node("Mul", ["p", "s"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["y"]),
    ]
    stored: dict[str, Array] = {"w": BYTES.T if turned else BYTES, "s": SCALES, "b": np.zeros(3, np.float32)}
    answer = X @ (BYTES * SCALES)
    x = helper.make_tensor_value_info("x", 1, ["N", 4])
    after = after_a_step(file_of(nodes, x, stored), X, answer, learns=learns)
    gradient = np.full(answer.shape, -2 / answer.size)
    expected = answer - 0.1 * gradient.sum(0) - (0.1 * X @ (X.T @ gradient) if learns else 0)
    np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("learns", [False, True])
def test_a_scale_that_also_rounds_a_bias_is_no_parameter(*, learns: bool) -> None:
    """It learned: the bias, divided by it, left the range of its integers in the trained file, and not in the step."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "q scale", "q zero"]),
        helper.make_node("Mul", ["q scale", "s"], ["unit"]),
        helper.make_node("Div", ["bias", "unit"], ["d"]),
        helper.make_node("Floor", ["d"], ["e"]),
        helper.make_node("Cast", ["e"], ["whole"], to=onnx.TensorProto.INT32),
        helper.make_node("MatMulInteger", ["q", "w", "q zero"], ["p"]),
        helper.make_node("Add", ["p", "whole"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["f"], to=1),
        helper.make_node("Mul", ["q scale", "s"], ["factor"]),
        helper.make_node("Mul", ["f", "factor"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["y"]),
    ]
    bias = RANDOM.standard_normal(3).astype(np.float32)
    stored: dict[str, Array] = {"w": BYTES, "s": SCALES[:1], "bias": bias, "b": np.zeros(3, np.float32)}
    model = file_of(nodes, helper.make_tensor_value_info("x", 1, ["N", 4]), stored)
    answer = run_onnx(model)
    after = after_a_step(model, X, answer, learns=learns)
    gradient = np.full(answer.shape, -2 / answer.size)
    expected = answer - 0.1 * gradient.sum(0) - (0.1 * X @ (X.T @ gradient) if learns else 0)
    np.testing.assert_allclose(after, expected, atol=2e-2 if learns else 1e-5)  # x is rounded to 1/255 of its range


def test_products_and_tables_of_an_ordinary_file_are_not_looked_at() -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["g"]), helper.make_node("MatMul", ["g", "w"], ["y"])]
    x = helper.make_tensor_value_info("x", 1, ["N", 4])
    for weight, is_rewritten in ((BYTES.astype(np.float32), False), (BYTES, True)):
        file = onnx.load_from_string(file_of(nodes, x, {"w": weight, "i": np.asarray([0])}))
        assert has_integer_arithmetic(file.graph) == is_rewritten
