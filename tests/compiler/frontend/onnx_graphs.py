"""Small ONNX models for tests, and the comparison of an imported graph with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from compiler.frontend.importer import import_model
from compiler.frontend.scope import BatchNormMode, DropoutMode
from compiler.graph import Array, Graph
from compiler.passes import find_problem
from compiler.spec.inputs import BatchAxis
from tests.compiler.named import evaluate_named

ELEMENT_TYPES = {"f32": 1, "i32": 6, "i64": 7, "bool": 9}
Shape = Sequence[int | str | None]


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: object) -> onnx.NodeProto:
    """A node named after its first output."""
    return helper.make_node(op_type, list(inputs), list(outputs), name=f"make_{outputs[0]}", **attributes)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[str, Shape]],
    outputs: Sequence[str] = ("y",),
    initializers: Mapping[str, Array] | None = None,
    *,
    opset: int = 18,
    producer: str = "",
    infer_shapes: bool = True,
) -> bytes:
    """Bytes of a model; `inputs` gives our element type and the shape by name."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, ELEMENT_TYPES[kind], shape) for name, (kind, shape) in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (initializers or {}).items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10, producer_name=producer
    )
    if infer_shapes:
        model = onnx.shape_inference.infer_shapes(model)
    for value in model.graph.output:
        # What shape inference cannot type (operators defined by a function body) is float in these tests.
        value.type.tensor_type.elem_type = value.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
    return bytes(model.SerializeToString())


def imported(
    model: bytes,
    *,
    batch: int = 2,
    batch_norm: BatchNormMode = "fold",
    dropout: DropoutMode = "ignore",
    axes: Mapping[str, BatchAxis] | None = None,
    **shapes: tuple[int, ...],
) -> Graph:
    """The imported graph, checked for being well formed."""
    graph = import_model(
        model, input_shapes=shapes, batch=batch, batch_norm=batch_norm, dropout=dropout, batch_axes=axes
    )
    assert find_problem(graph) == ""
    return graph


def feeds_for(graph: Graph, seed: int = 0, *, integers: int = 3, positive: bool = False) -> dict[str, Array]:
    """Random inputs; integers are below `integers`."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in graph.data_inputs():
        name, tensor = graph.names[value], graph.types[value]
        if tensor.dtype == "f32":
            drawn = rng.standard_normal(tensor.shape)
            feeds[name] = (np.abs(drawn) + 0.5 if positive else drawn).astype(np.float32)
        elif tensor.dtype == "bool":
            feeds[name] = rng.random(tensor.shape) < 0.5
        else:
            kind = np.int64 if tensor.dtype == "i64" else np.int32
            feeds[name] = rng.integers(0, integers, tensor.shape).astype(kind)
    return feeds


def run_onnx(model: bytes, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime makes of it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [np.asarray(found) for found in session.run(list(names), dict(feeds))]


def assert_agrees(
    model: bytes, graph: Graph, feeds: Mapping[str, Array] | None = None, *, tolerance: float = 2e-5
) -> None:
    """Every output of the imported graph, evaluated in float64, against ONNX Runtime in float32."""
    feeds = feeds_for(graph) if feeds is None else feeds
    values = evaluate_named(graph, feeds)
    outputs = {graph.names[value]: graph.types[value] for value in graph.outputs}
    for (name, tensor), expected in zip(outputs.items(), run_onnx(model, list(outputs), feeds), strict=True):
        found = values[name]
        assert found.shape == expected.shape == tensor.shape
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(found, expected, err_msg=name)
