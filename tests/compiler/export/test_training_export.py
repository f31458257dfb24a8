"""The exported training step, run by ONNX Runtime, against the same graph evaluated in float64."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import pytest

from compiler.errors import InternalError
from compiler.export.onnx_model import to_model_proto_bytes
from compiler.export.training import export_graph, export_training
from compiler.frontend.importer import import_model
from compiler.graph import Array, Graph, TensorType
from compiler.ops.record import OnnxNode
from compiler.passes import FORWARD_PASSES, TRAINING_PASSES, run_passes
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.step.autodiff import differentiate
from compiler.step.loss import attach_loss
from compiler.step.optimizer import add_optimizer
from compiler.step.plan import resolve_plan
from compiler.step.training import TrainingGraph
from compiler.values import Value
from examples.models import MODELS
from tests.compiler.graph_interpreter import evaluate_graph

SGD = {"kind": "sgd", "momentum": 0.9, "weight_decay": 0.01}
SMALL: Mapping[str, bytes] = {
    "mlp": MODELS["mlp"](features=9, hidden=8),
    "small_cnn": MODELS["small_cnn"](width=8),
    "transformer_encoder": MODELS["transformer_encoder"](tokens=20, positions=6, width=16, layers=1),
    "resnet18": MODELS["resnet18"](width=8, resolution=32, classes=5),
}


def _step(name: str, *, optimizer: Mapping[str, object] = SGD, plan: object = "full") -> TrainingGraph:
    spec = TrainingSpec.parse({"batch": 2, "optimizer": dict(optimizer)})
    graph = run_passes(import_model(SMALL[name], input_shapes={}, batch=2, batch_norm="fold"), FORWARD_PASSES)
    step = attach_loss(graph, spec.loss)
    chosen = resolve_plan(step.graph, SparsePlan.parse(plan))  # type: ignore[arg-type]
    step = differentiate(step, chosen)
    step = add_optimizer(step, spec.optimizer, chosen)
    return step.with_graph(run_passes(step.graph, TRAINING_PASSES))


def _feeds(graph: Graph) -> dict[Value, Array]:
    rng = np.random.default_rng(0)
    feeds: dict[Value, Array] = {}
    for value in graph.inputs:
        tensor = graph.types[value]
        if tensor.dtype != "f32":
            feeds[value] = rng.integers(0, 2, tensor.shape)
        elif value.role == "hyper":
            feeds[value] = np.asarray(0.1, np.float32)
        else:
            drawn = rng.standard_normal(tensor.shape).astype(np.float32)
            feeds[value] = np.abs(drawn) * np.float32(0.1) if value.role == "state" else drawn
    return feeds


def _by_file(graph: Graph, feeds: Mapping[Value, Array]) -> dict[str, Array]:
    """In a file that no model's name troubles, values are called as people read them."""
    return {graph.name_of(value): array for value, array in feeds.items()}


def _session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _run(model: bytes, feeds: Mapping[str, Array]) -> dict[str, Array]:
    session = _session(model)
    wanted = {value.name for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    found = session.run(names, {name: array for name, array in feeds.items() if name in wanted})
    return dict(zip(names, found, strict=True))


NO_DECAY = {"kind": "vector", "weight_decay": 0.0, "learning_rate_factor": 2.0}
OTHERS: Mapping[str, Mapping[str, object]] = {
    "nesterov": {**SGD, "nesterov": True},
    "adam": {"kind": "adam", "weight_decay": 0.1},
    "lion": {"kind": "lion", "weight_decay": 0.1, "groups": [NO_DECAY]},
    "adafactor": {"kind": "adafactor", "weight_decay": 0.1, "clip_norm": 0.1, "groups": [NO_DECAY]},
}


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        *((name, optimizer) for name in SMALL for optimizer in (SGD, {"kind": "adamw"})),
        *(("small_cnn", optimizer) for optimizer in OTHERS.values()),
    ],
)
def test_a_full_step_agrees(name: str, optimizer: Mapping[str, object]) -> None:
    step = _step(name, optimizer=optimizer)
    feeds = _feeds(step.graph)
    found = _run(export_training(step), _by_file(step.graph, {**feeds, **step.graph.arrays}))
    expected = evaluate_graph(step.graph, feeds)
    assert set(found) == {step.graph.name_of(output) for output in step.graph.outputs}
    for output in step.graph.outputs:
        array = found[step.graph.name_of(output)]
        assert array.shape == step.graph.types[output].shape
        distance = np.linalg.norm(array - expected[output]) / (np.linalg.norm(expected[output]) + 1e-9)
        assert distance < 1e-5, str(output)


@pytest.mark.parametrize("name", ["mlp", "small_cnn"])
def test_a_sparse_step_agrees_and_leaves_the_rest_alone(name: str) -> None:
    chosen = "fc2.weight" if name == "mlp" else "pointwise.weight"
    plan = {"update": [{"parameters": ["*.bias"]}, {"parameters": [chosen], "ratio": 0.5}]}
    step = _step(name, plan=plan)
    feeds = {**_feeds(step.graph), **step.graph.arrays}
    found = _run(export_training(step), _by_file(step.graph, feeds))
    weight = step.graph.value_called(chosen)
    updated = found[f"{chosen}'"]
    axis = step.graph.parameters[weight].channel_axis
    assert axis is not None
    half = updated.shape[axis] // 2
    before, after = np.moveaxis(feeds[weight], axis, 0), np.moveaxis(updated, axis, 0)
    np.testing.assert_array_equal(before[half:], after[half:])
    assert not np.allclose(before[:half], after[:half], atol=1e-6)


def test_feeding_the_outputs_back_trains() -> None:
    step = _step("mlp")
    feeds = _by_file(step.graph, {**_feeds(step.graph), **step.graph.arrays})
    feeds["hyper.learning_rate"] = np.asarray(0.05, np.float32)
    model = export_training(step)
    losses = []
    for _ in range(20):
        found = _run(model, feeds)
        losses.append(float(found["loss"]))
        named = {step.graph.name_of(value): step.graph.name_of(updated) for value, updated in step.updates.items()}
        feeds.update({name: found[updated] for name, updated in named.items()})
    assert losses[-1] < 0.1 * losses[0]


def test_embedded_weights_make_frozen_parameters_initializers() -> None:
    step = _step("mlp", plan="last-layer")
    proto = onnx.load_from_string(export_training(step, weights="embedded"))
    inputs = {value.name for value in proto.graph.input}
    stored = {tensor.name for tensor in proto.graph.initializer}
    assert "fc1.weight" in stored - inputs
    assert "fc3.weight" in inputs - stored


def test_the_same_step_gives_the_same_bytes_and_says_what_it_holds() -> None:
    step = _step("small_cnn")
    model = export_training(step)
    assert model == export_training(_step("small_cnn"))
    proto = onnx.load_from_string(model)
    onnx.checker.check_model(proto, full_check=True)
    assert {entry.domain for entry in proto.opset_import} == {""}
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    names = step.graph.name_of
    assert json.loads(metadata["updates"]) == {names(value): names(updated) for value, updated in step.updates.items()}
    assert (metadata["loss"], metadata["logits"], metadata["labels"]) == ("loss", "logits", "labels")
    assert json.loads(metadata["hyper"]) == {"learning_rate": "hyper.learning_rate"}
    assert json.loads(metadata["state"])["optimizer.momentum.conv.weight"] == ["momentum", "conv.weight"]
    layout = json.loads(metadata["layout.conv.weight"])
    assert layout["perm"] == list(step.graph.named_parameters()["conv.weight"].perm)


@pytest.mark.parametrize("name", SMALL)
def test_an_imported_graph_exports_to_what_it_was(name: str) -> None:
    graph = import_model(SMALL[name], input_shapes={}, batch=2, batch_norm="fold")
    feeds = _by_file(graph, _feeds(graph))
    again, original = _run(export_graph(graph, name=name), feeds), _run(SMALL[name], feeds)
    np.testing.assert_allclose(again["logits"], original["logits"], rtol=1e-5, atol=1e-5)


def test_invalid_nodes_are_refused_here() -> None:
    tensor = TensorType("f32", (2,))
    with pytest.raises(InternalError, match="not valid ONNX"):
        to_model_proto_bytes(
            nodes=[OnnxNode("Relu", ("nowhere",), ("y",))],
            inputs={"x": tensor},
            outputs={"y": tensor},
            initializers={},
            name="bad",
        )


def test_attributes_and_constants_of_every_kind() -> None:
    nodes = [
        OnnxNode("Constant", (), ("k",), {"value": np.asarray(2.0, np.float32)}),
        OnnxNode("Constant", (), ("shape",), {"value": np.asarray([3, 2], np.int64)}),
        OnnxNode("Mul", ("x", "k"), ("double",)),
        OnnxNode("Reshape", ("double", "shape"), ("r",), {"allowzero": 0}),
        OnnxNode("LeakyRelu", ("r",), ("l",), {"alpha": 0.5}),
        OnnxNode("Transpose", ("l",), ("t",), {"perm": (1, 0)}),
        OnnxNode("Pad", ("t", "pads"), ("y",), {"mode": "constant"}),
    ]
    model = to_model_proto_bytes(
        nodes=nodes,
        inputs={"x": TensorType("f32", (2, 3))},
        outputs={"y": TensorType("f32", (3, 3))},
        initializers={"pads": np.asarray([0, 0, 1, 0], np.int64)},
        name="kinds",
    )
    x = np.asarray([[-1, 2, 3], [4, 5, -6]], np.float32)
    rows = (2 * x).reshape(3, 2)
    expected = np.pad(np.where(rows < 0, rows / 2, rows).T, ((0, 1), (0, 0)))
    np.testing.assert_array_equal(_run(model, {"x": x})["y"], expected)
