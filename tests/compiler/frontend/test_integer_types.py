"""Inputs of narrow integers are read as int32 where nodes only move them until they are reals; others are refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import pockfarm
from pockfarm.errors import PockfarmError
from tests.compiler.frontend.onnx_graphs import node

WEIGHT = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
TO_REALS = (
    node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
    node("Cast", ["t"], ["f"], to=TensorProto.FLOAT),
    node("Div", ["f", "most"], ["d"]),
    node("Flatten", ["d"], ["q"]),
    node("MatMul", ["q", "w"], ["y"]),
)
NARROW = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16)


def model_of(element_type: int, *nodes: onnx.NodeProto) -> bytes:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", element_type, ["N", 4, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(np.float32(255), "most")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return bytes(model.SerializeToString())


def fine_tuned(model: bytes, x: np.ndarray) -> pockfarm.FineTuned:
    spec = {"batch": 8, "loss": {"kind": "mse"}, "optimizer": {"learning_rate": 0.1}}
    y = onnxruntime.InferenceSession(model).run(["y"], {"x": x})[0]
    return pockfarm.fine_tune(model, None, {"x": x, "y": y + 1}, spec=spec, steps=3)


@pytest.mark.parametrize("element_type", NARROW, ids=[TensorProto.DataType.Name(code) for code in NARROW])
def test_a_file_trains_on_them_and_keeps_its_type(element_type: int) -> None:
    numpy_type = np.iinfo(helper.tensor_dtype_to_np_dtype(element_type))
    x = np.random.default_rng(1).integers(numpy_type.min, numpy_type.max, (8, 4, 3), numpy_type.dtype, endpoint=True)
    tuned = fine_tuned(model_of(element_type, *TO_REALS), x)
    assert tuned.losses[0] == pytest.approx(1.0, rel=1e-4)
    assert tuned.changed == ("w",)
    assert "model.integer_type" in {warning.code for warning in tuned.warnings}
    assert onnx.load_from_string(tuned.onnx).graph.input[0].type.tensor_type.elem_type == element_type


def test_arithmetic_that_would_wrap_around_is_refused() -> None:
    model = model_of(
        TensorProto.UINT8,
        node("Add", ["x", "x"], ["twice"]),
        node("Identity", ["twice"], ["x2"]),
        *[
            node("Cast", ["x2"], ["t"], to=TensorProto.FLOAT),
            node("Flatten", ["t"], ["q"]),
            node("MatMul", ["q", "w"], ["y"]),
        ],
    )
    with pytest.raises(PockfarmError, match="input 'x': has element type uint8"):
        fine_tuned(model, np.full((8, 4, 3), 200, np.uint8))
