"""The exported training graph, run by ONNX Runtime, does the step that PyTorch's autograd describes."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

from compiler.export.training import export_training
from compiler.frontend.importer import import_model
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.pipeline import derive_training_step
from compiler.step.plan import resolve_plan
from tests.compiler.agreement.cases import CASES
from tests.compiler.agreement.reference import what_learns
from tests.compiler.named import by_name


@pytest.mark.parametrize("name", sorted(CASES))
def test_one_step_on_onnx_runtime(name: str) -> None:
    case = CASES[name]()
    graph = run_passes(
        import_model(case.model, input_shapes={}, batch=case.batch, batch_norm=case.batch_norm), FORWARD_PASSES
    )
    plan = resolve_plan(graph, case.plan)
    step = derive_training_step(graph, plan, case.spec)
    session = onnxruntime.InferenceSession(
        export_training(step, weights="embedded"), providers=["CPUExecutionProvider"]
    )
    feeds, labels = case.batches(1)[0]
    values = {**feeds, "labels": labels, "hyper.learning_rate": 0.01}
    values |= {"hyper.bias_correction_1": 0.1, "hyper.bias_correction_2_sqrt": 0.001**0.5}
    values |= {graph.names[value]: graph.arrays[value] for value in plan}
    values |= {
        graph.name_of(value): np.zeros(step.graph.types[value].shape, np.float32) for value in step.optimizer_state
    }
    wanted = {item.name for item in session.get_inputs()}
    outputs = [item.name for item in session.get_outputs()]
    fed = {key: np.float32(v).reshape(()) if isinstance(v, float) else v for key, v in values.items() if key in wanted}
    found = dict(zip(outputs, session.run(outputs, {k: np.asarray(v) for k, v in fed.items()}), strict=True))

    reference = case.reference
    meant = what_learns(case.plan, reference, case.last_layer)
    assert set(by_name(graph, plan)) == set(meant)
    loss, exact = reference.loss_and_gradients(reference.initial(), feeds, labels, torch.float64)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    kind = "exp_avg" if case.optimizer["kind"] == "adamw" else "momentum"
    scale = 0.1 if kind == "exp_avg" else 1.0
    largest = max(float(np.linalg.norm(exact[parameter])) for parameter in meant)
    for value, part in plan.items():
        parameter = graph.names[value]
        gradient = graph.parameters[value].to_inside(exact[parameter])
        if not part.is_whole:
            gradient = np.take(gradient, range(part.start, part.start + part.size), axis=part.axis)
        assert gradient.size == exact[parameter][meant[parameter]].size, parameter
        moment = found[f"optimizer.{kind}.{parameter}'"]
        error = float(np.linalg.norm(moment / scale - gradient))
        assert error < 2e-4 * float(np.linalg.norm(gradient)) + 1e-7 * largest, parameter
