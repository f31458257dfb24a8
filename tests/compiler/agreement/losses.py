"""A loss as a spec says it beside what PyTorch computes in float64 on the module itself: value and every gradient."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from compiler.api import BuildSettings, compile_training
from compiler.bundle.archive import Bundle
from compiler.export.training import export_training
from compiler.graph import Graph
from compiler.passes import FORWARD_PASSES, TRAINING_PASSES, run_passes
from compiler.pipeline import derive_training_step
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.step.autodiff import differentiate
from compiler.step.loss import attach_loss
from compiler.step.plan import resolve_plan
from compiler.targets import load
from tests.compiler.agreement.step_binary import native_target
from tests.compiler.frontend.onnx_graphs import imported
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import by_value

FULL = SparsePlan.parse("full")
Arrays = Mapping[str, np.ndarray]
LARGE_STEP = 1024.0
"""So large that what a step has moved tells a small gradient in float32, too."""
Wanted = Callable[..., Tensor]
"""The loss, of the module's outputs and then the labels."""


def wanted(module: nn.Module, feeds: Arrays, labels: Arrays, loss: Wanted) -> tuple[float, dict[str, np.ndarray]]:
    """The loss and its gradients by the module's own names, in float64."""
    wide = module.double()
    outputs = wide(*(_wide(array) for array in feeds.values()))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    value = loss(*outputs, *(_wide(array) for array in labels.values()))
    wide.zero_grad()
    value.backward()
    gradients = {name: own.grad.numpy().copy() for name, own in wide.named_parameters() if own.grad is not None}
    module.float()
    return value.item(), gradients


def _wide(array: np.ndarray) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.double() if tensor.is_floating_point() else tensor


def found(
    model: bytes, spec: TrainingSpec, feeds: Arrays, labels: Arrays, learning: Iterable[str] = ("*",)
) -> tuple[float, dict[str, np.ndarray]]:
    """The same of the training graph, evaluated in float64."""
    plan = SparsePlan.parse({"update": [{"parameters": list(learning)}]})
    forward = run_passes(imported(model, batch=spec.batch, axes=spec.batch_axes()), FORWARD_PASSES)
    step = differentiate(attach_loss(forward, spec.loss), resolve_plan(forward, plan))
    graph = run_passes(step.graph, TRAINING_PASSES)
    given = {value: labels[array] for value, array in step.label_arrays.items()}
    assert len(given) == len(labels)
    values = evaluate_graph(graph, {**by_value(graph, feeds), **given})
    gradients = {forward.parameters[own].name: _in_file(forward, own, values[d]) for own, d in step.gradients.items()}
    return float(values[step.loss]), gradients


def _in_file(graph: Graph, own: Any, gradient: np.ndarray) -> np.ndarray:
    return graph.parameters[own].to_file(gradient)


def agree(one: tuple[float, Arrays], other: tuple[float, Arrays], tolerance: float = 1e-6) -> None:
    """Loss and gradients are those of the module, each tensor on its own scale."""
    assert one[0] == torch_approx(other[0], tolerance)
    assert one[1].keys() == other[1].keys()
    for name, gradient in other[1].items():
        error = np.abs(one[1][name].reshape(gradient.shape) - gradient).max()
        assert error <= tolerance * np.abs(gradient).max() + 1e-15, (name, error, np.abs(gradient).max())


def torch_approx(value: float, tolerance: float) -> Any:
    import pytest

    return pytest.approx(value, rel=tolerance, abs=1e-12)


def compiled(model: bytes, spec: TrainingSpec, cache: Path) -> Bundle:
    """The bundle of the whole model on this machine."""
    settings = BuildSettings(plan=FULL, spec=spec, target=load(native_target()), cache_dir=cache, jobs=1)
    return compile_training(model, settings)


def onnx_found(model: bytes, spec: TrainingSpec, feeds: Arrays, labels: Arrays) -> tuple[float, dict[str, np.ndarray]]:
    """The same of the step's ONNX file in ONNX Runtime: gradients are what plain SGD has moved."""
    forward = run_passes(imported(model, batch=spec.batch, axes=spec.batch_axes()), FORWARD_PASSES)
    step = derive_training_step(forward, resolve_plan(forward, FULL), spec)
    data = export_training(step)
    told = {entry.key: entry.value for entry in onnx.load_model_from_string(data).metadata_props}
    takes = told["labels"] if step.plain_labels else json.loads(told["labels"])
    given = {takes: labels["y"]} if isinstance(takes, str) else {takes[name]: array for name, array in labels.items()}
    (hyper,) = json.loads(told["hyper"]).values()
    state = {forward.parameters[own].name: forward.arrays[own] for own in forward.parameters}
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    values = {**feeds, **given, **state, hyper: np.asarray(LARGE_STEP, np.float32)}
    values = {one.name: values[one.name] for one in session.get_inputs()}
    results = dict(zip([one.name for one in session.get_outputs()], session.run(None, values), strict=True))
    updates = json.loads(told["updates"])
    gradients = {
        own.name: own.to_file((state[own.name] - results[updates[own.name]]) / LARGE_STEP)
        for own in forward.parameters.values()
        if own.name in updates
    }
    return float(results[told["loss"]]), gradients
