"""The author's file with other elements: ONNX Runtime computes with them, and nothing else in the file changes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.errors import ModelError
from compiler.origins import Origins, Reading
from compiler.trained.stored import StoredModel

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def model() -> bytes:
    """y = x @ w + b, z = x @ w2 + b: one `b` for both."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"], name="first"),
        helper.make_node("Add", ["xw", "b"], ["y"], name="add"),
        helper.make_node("Identity", ["w"], ["w2"], name="same"),
        helper.make_node("MatMul", ["x", "w2"], ["xw2"], name="second"),
        helper.make_node("Add", ["xw2", "b"], ["z"], name="add2"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in ("y", "z")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
    held = [numpy_helper.from_array(W, "w"), numpy_helper.from_array(np.zeros(3, np.float32), "b")]
    graph = helper.make_graph(nodes, "g", [x], ends, held)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10, producer_name="me"
    ).SerializeToString()


READINGS = (
    Reading("xw", 1, "w", "head.weight", "Transpose", (1, 0)),
    Reading("y", 1, "b", "head.bias"),
    Reading("xw2", 1, "w2", "tail.weight", "Transpose", (1, 0)),
    Reading("z", 1, "b", "tail.bias"),
)


def run(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    y, z = session.run(None, {"x": np.array([[1.0, 10.0]], np.float32)})
    return np.asarray(y)[0], np.asarray(z)[0]


def test_tensors_are_found_under_the_authors_names_and_layouts() -> None:
    stored = StoredModel(model(), Origins(readings=READINGS))
    assert np.array_equal(stored.tensor("head.weight"), W.T)
    assert np.array_equal(stored.tensor("tail.weight"), W.T)
    assert np.array_equal(stored.tensor("tail.bias"), np.zeros(3))
    assert np.array_equal(stored.tensor("w"), W)
    with pytest.raises(ModelError, match="does not hold"):
        stored.tensor("gone")


def test_what_all_readers_see_alike_changes_in_place() -> None:
    data = model()
    stored = StoredModel(data, Origins())
    files, added = stored.with_tensors({"w": W * 2, "b": np.ones(3, np.float32)})
    new = files.as_one()
    for found in run(new):
        assert np.array_equal(found, np.array([1.0, 10.0]) @ (2 * W) + 1)
    assert added == ()
    before, after = (onnx.load_from_string(one) for one in (data, new))
    for proto in (before, after):
        del proto.graph.initializer[:]
    assert before == after


def test_tensors_that_were_stored_once_part_where_they_differ() -> None:
    stored = StoredModel(model(), Origins(readings=READINGS))
    changed = {
        "head.weight": W.T * 2,
        "head.bias": np.ones(3, np.float32),
        "tail.weight": W.T * 3,
        "tail.bias": np.full(3, 5, np.float32),
    }
    files, added = stored.with_tensors(changed)
    new = files.as_one()
    y, z = run(new)
    assert np.array_equal(y, np.array([1.0, 10.0]) @ (2 * W) + 1)
    assert np.array_equal(z, np.array([1.0, 10.0]) @ (3 * W) + 5)
    assert sorted(added) == ["head.weight", "tail.bias", "tail.weight"]
    onnx.checker.check_model(onnx.load_from_string(new))


def test_what_the_file_makes_of_a_tensor_that_learned_stays() -> None:
    readings = (Reading("xw2", 1, "w2", "w2"),)
    files, added = StoredModel(model(), Origins(readings=readings)).with_tensors({"w": W * 2})
    new = files.as_one()
    y, z = run(new)
    assert np.array_equal(y, np.array([1.0, 10.0]) @ (2 * W))
    assert np.array_equal(z, np.array([1.0, 10.0]) @ W)
    assert added == ("w'",)


def test_what_stays_keeps_the_files_own_initializer() -> None:
    stored = StoredModel(model(), Origins(readings=READINGS))
    files, added = stored.with_tensors({"head.bias": np.ones(3, np.float32)})
    new = files.as_one()
    y, z = run(new)
    assert np.array_equal(y - z, np.ones(3))
    assert added == ("head.bias",)


def test_a_bias_that_the_exporter_dropped_is_an_input_again() -> None:
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], name="fc")]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(W, "w")])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10).SerializeToString()
    stored = StoredModel(data, Origins(readings=(Reading("y", 2, "", "fc.bias"),)))
    files, added = stored.with_tensors({"fc.bias": np.ones(3, np.float32)})
    new = files.as_one()
    session = onnxruntime.InferenceSession(new, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.ones((1, 2), np.float32)})
    assert np.array_equal(np.asarray(found)[0], W.sum(0) + 1)
    assert added == ("fc.bias",)
    assert stored.with_tensors({}).added == ()
