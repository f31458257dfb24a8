"""A step with batch statistics, noise and dropout in standard ONNX operators, by ONNX Runtime and in float64."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime

from compiler.export.training import export_training
from compiler.graph import Array
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.pipeline import derive_training_step
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.step.plan import resolve_plan
from compiler.values import Value
from tests.compiler.frontend.cases.case import floats
from tests.compiler.frontend.onnx_graphs import imported, model_of, node
from tests.compiler.graph_interpreter import evaluate_graph

SPEC = TrainingSpec.parse({"batch": 4, "batch_norm": "train", "dropout": "train"})


def _model() -> bytes:
    norm = ("bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")
    nodes = [
        node("Conv", ["x", "conv.weight"], ["h"], kernel_shape=[3, 3]),
        node("BatchNormalization", ["h", *norm], ["n"]),
        node("RandomNormalLike", ["n"], ["noise"], scale=0.1),
        node("Add", ["n", "noise"], ["m"]),
        node("Dropout", ["m", "ratio"], ["d"]),
        node("GlobalAveragePool", ["d"], ["p"]),
        node("Flatten", ["p"], ["y"]),
    ]
    arrays = {"conv.weight": floats(5, 3, 3, 3), "ratio": np.asarray(0.3, np.float32)}
    arrays |= {name: np.abs(floats(5, seed=seed)) + 0.5 for seed, name in enumerate(norm)}
    return model_of(nodes, {"x": ("f32", ("batch", 3, 6, 6))}, initializers=arrays)


def test_a_step_agrees_and_goes_on() -> None:
    graph = run_passes(imported(_model(), batch=4, batch_norm="train", dropout="train"), FORWARD_PASSES)
    step = derive_training_step(graph, resolve_plan(graph, SparsePlan.parse("full")), SPEC)
    rng = np.random.default_rng(0)
    named = {"random_seed": 5, "random_step": 3, "learning_rate": 0.1}
    feeds: dict[Value, Array] = {}
    for value in step.graph.inputs:
        tensor = step.graph.types[value]
        if value.role == "hyper":
            feeds[value] = np.asarray(named[value.kind], tensor.element.numpy)
        elif tensor.dtype == "f32":
            feeds[value] = rng.standard_normal(tensor.shape).astype(np.float32)
        else:
            feeds[value] = rng.integers(0, 5, tensor.shape)
    model = export_training(step)
    metadata = {entry.key: entry.value for entry in onnx.load_from_string(model).metadata_props}
    assert set(json.loads(metadata["hyper"])) == set(named)
    assert {"bn.running_mean", "bn.running_var"} <= set(json.loads(metadata["updates"]))
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    every = {step.graph.name_of(value): array for value, array in {**feeds, **step.graph.arrays}.items()}
    names = [item.name for item in session.get_outputs()]
    outputs = dict(
        zip(names, session.run(names, {item.name: every[item.name] for item in session.get_inputs()}), strict=True)
    )
    expected = evaluate_graph(step.graph, feeds)
    for output in step.graph.outputs:
        np.testing.assert_allclose(outputs[step.graph.name_of(output)], expected[output], rtol=2e-4, atol=1e-5)
    assert not np.allclose(outputs["bn.running_mean'"], every["bn.running_mean"])
