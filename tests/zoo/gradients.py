"""A training step's loss and gradients as its graph means them (NumPy, float64) beside the module's own autograd.

It takes no kernels and no linker, so that every model and exporter can be looked at in minutes; what the compiled step
does with the graph is another comparison (`measure`).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from compiler.frontend.importer import import_model
from compiler.graph import Graph
from compiler.passes import FORWARD_PASSES, TRAINING_PASSES, run_passes
from compiler.spec.documents import LossSpec
from compiler.step.autodiff import differentiate
from compiler.step.loss import attach_loss
from compiler.step.plan import resolve_plan
from tests.compiler.agreement.harness import Batch, Case, State
from tests.compiler.agreement.yardstick import distance, vanishing
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import by_value

MAX_LOSS_ERROR = 1e-5
MAX_GRADIENT_ERROR = 1e-4
"""Relative, in float64, of weights in float32: what folding a norm rounds shows at 1e-6, a lost term at 1e-2."""


def import_case(case: Case) -> Graph:
    """The case's file as a graph."""
    return import_model(case.model, input_shapes={}, batch=case.batch, batch_norm=case.batch_norm)


def gradient_problems(case: Case, graph: Graph, batch: Batch) -> list[str]:
    """What the training graph says otherwise than the module in float64; empty if nothing."""
    feeds, labels = batch
    forward = run_passes(graph, FORWARD_PASSES)
    step = differentiate(attach_loss(forward, LossSpec(kind=case.reference.loss)), resolve_plan(forward, case.plan))
    training = run_passes(step.graph, TRAINING_PASSES)
    values = evaluate_graph(training, {**by_value(training, feeds), step.labels: labels})
    weights = case.reference.initial()
    exact_loss, exact = case.reference.loss_and_gradients(weights, feeds, labels, torch.float64)
    _, single = case.reference.loss_and_gradients(weights, feeds, labels, torch.float32)
    loss = float(values[step.loss])
    wrong = [] if abs(loss - exact_loss) <= MAX_LOSS_ERROR * abs(exact_loss) else [f"loss {loss} for {exact_loss}"]
    wrong += _missing(case, training, [training.parameters[value].name for value in step.gradients], exact)
    for value, gradient in step.gradients.items():
        parameter = training.parameters[value]
        whole = values[gradient].size == np.prod(parameter.file_shape, dtype=int)
        found = parameter.to_file(values[gradient]) if whole else None  # what learns in part is compared as a step
        if found is not None and parameter.name in exact:
            wrong += _problem(parameter.name, found, exact, single)
    return wrong


def _missing(case: Case, training: Graph, found: Collection[str], exact: State) -> list[str]:
    """Parameters that the plan lets learn and that the module has a gradient for, and the step none."""
    planned = {training.name_of(value) for value in resolve_plan(training, case.plan)} - set(found)
    return [f"no gradient of {name}" for name in planned & exact.keys() if np.linalg.norm(exact[name]) > 0]


def _problem(name: str, found: np.ndarray, exact: State, single: State) -> list[str]:
    """A gradient too far from the exact one; how far PyTorch's float32 is tells how ill-conditioned it is."""
    wanted = exact[name]
    if name in vanishing(exact):
        largest = max(float(np.linalg.norm(gradient)) for gradient in exact.values())
        noise = float(np.linalg.norm(found))
        return [f"gradient of {name} should vanish, is {noise:.3g}"] if noise > 1e-5 * largest else []
    error = distance(found.astype(np.float64).reshape(wanted.shape), wanted)
    if error <= MAX_GRADIENT_ERROR + 10 * distance(single[name], wanted):
        return []
    return [f"gradient of {name}: {error:.3g} from float64"]
