"""Recurrent classifiers against PyTorch in float64: every cell, both exporters, the module's own tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compiler.passes import FORWARD_PASSES, TRAINING_PASSES, run_passes
from compiler.spec.documents import LossSpec
from compiler.step.autodiff import differentiate
from compiler.step.loss import attach_loss
from compiler.step.plan import resolve_plan
from tests.compiler.agreement.cases import classes, plan
from tests.compiler.agreement.harness import Case, Optimizer, build, problems, run_step
from tests.compiler.agreement.module_reference import ModuleReference
from tests.compiler.agreement.onnx_checks import ten_steps_on_onnx_runtime
from tests.compiler.agreement.step_binary import native_target
from tests.compiler.frontend.onnx_graphs import imported
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import by_value
from tests.models import Exporter, export
from tests.sample import sample

BATCH, STEPS, FEATURES, CLASSES = 3, 7, 6, 3


class Encoder(nn.Module):
    """A recurrent layer of PyTorch's inside another module."""

    def __init__(self, kind: type[nn.RNNBase], width: int, **settings: Any) -> None:
        super().__init__()
        self.cell = kind(FEATURES, width, batch_first=True, **settings)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, states = self.cell(x)
        return (y, *states) if isinstance(states, tuple) else (y, states)


class Classifier(nn.Module):
    """A linear layer on one step and on the last states of a recurrent one."""

    def __init__(self, kind: type[nn.RNNBase], width: int = 5, **settings: Any) -> None:
        super().__init__()
        self.encoder = Encoder(kind, width, **settings)
        both = settings.get("bidirectional", False)
        layers = settings.get("num_layers", 1) * (1 + both)
        states = 2 if kind is nn.LSTM else 1
        self.head = nn.Linear(width * (1 + both + layers * states), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y, *states = self.encoder(x)
        return self.head(torch.cat([y[:, 2], *(state.transpose(0, 1).flatten(1) for state in states)], dim=1))


class Loop(nn.Module):
    """Cells in a loop of Python's, one feeding the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(FEATURES, 4), nn.GRUCell(4, 5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h, c = x.new_zeros(x.shape[0], 4), x.new_zeros(x.shape[0], 4)
        state = x.new_zeros(x.shape[0], 5)
        for t in range(4):
            h, c = self.first(x[:, t], (h, c))
            state = self.second(h, state)
        return self.head(state)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "lstm": partial(Classifier, nn.LSTM),
    "deep-lstm": partial(Classifier, nn.LSTM, num_layers=2, bidirectional=True, dropout=0.1),
    "plain-lstm": partial(Classifier, nn.LSTM, bias=False, bidirectional=True),
    "gru": partial(Classifier, nn.GRU),
    "deep-gru": partial(Classifier, nn.GRU, num_layers=2, bidirectional=True),
    "rnn": partial(Classifier, nn.RNN, num_layers=2),
    "relu": partial(Classifier, nn.RNN, nonlinearity="relu", bidirectional=True),
    "loop": Loop,
}
EXPORTS: list[tuple[str, Exporter]] = [
    ("lstm", "dynamo"),
    ("deep-lstm", "dynamo-unoptimized"),
    ("deep-lstm", "torchscript"),
    ("plain-lstm", "dynamo"),
    ("plain-lstm", "torchscript"),
    ("gru", "dynamo"),
    ("deep-gru", "dynamo-unoptimized"),
    ("deep-gru", "torchscript"),
    ("rnn", "dynamo"),
    ("relu", "torchscript"),
    ("loop", "dynamo"),
    ("loop", "torchscript"),
]
BUILT: list[tuple[str, Exporter]] = [("deep-lstm", "dynamo"), ("gru", "torchscript"), ("relu", "dynamo-unoptimized")]


KEPT = {"plain-lstm-dynamo"} | {f"{name}-torchscript" for name, exporter in EXPORTS[::2] if exporter == "torchscript"}
"""Each way that each exporter writes a cell; PyTorch's own takes seconds."""


def _named(cases: list[tuple[str, Exporter]]) -> list[Any]:
    return [pytest.param(*case, id="-".join(case)) for case in cases]


def exported(name: str, exporter: Exporter) -> tuple[nn.Module, bytes]:
    torch.manual_seed(1)
    module = MODULES[name]().eval()
    for value in module.parameters():
        nn.init.normal_(value, std=0.5)
    return module, export(module, (torch.randn(BATCH, STEPS, FEATURES),), exporter=exporter)


def feeds(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
    return {"input": rng.normal(size=(batch, STEPS, FEATURES)).astype(np.float32)}


@pytest.mark.parametrize(("name", "exporter"), sample(_named(EXPORTS), KEPT))
def test_gradients_are_the_modules(name: str, exporter: Exporter) -> None:
    """In float64, so that nothing but the meaning of the file is compared."""
    module, model = exported(name, exporter)
    rng = np.random.default_rng(3)
    batch, labels = feeds(rng, BATCH), classes(CLASSES)(rng, BATCH)
    loss = F.cross_entropy(module.double()(torch.from_numpy(batch["input"]).double()), torch.from_numpy(labels))
    loss.backward()
    forward = run_passes(imported(model, batch=BATCH), FORWARD_PASSES)
    step = differentiate(attach_loss(forward, LossSpec()), resolve_plan(forward, plan("full")))
    graph = run_passes(step.graph, TRAINING_PASSES)
    values = evaluate_graph(graph, {**by_value(graph, batch), step.labels: labels})
    assert values[step.loss] == pytest.approx(loss.item(), rel=1e-6)
    found = {
        graph.parameters[own].name: graph.parameters[own].to_file(values[made]) for own, made in step.gradients.items()
    }
    want = {key: value.grad.numpy() for key, value in module.named_parameters() if value.grad is not None}
    assert found.keys() == want.keys()
    for key, gradient in want.items():
        np.testing.assert_allclose(found[key], gradient, rtol=1e-5, atol=1e-6 * np.abs(gradient).max(), err_msg=key)


@pytest.mark.parametrize(("name", "exporter"), sample(_named(BUILT), {"gru-torchscript"}))
def test_the_step_is_the_module(name: str, exporter: Exporter, tmp_path: Path, kernel_cache: Path) -> None:
    module, model = exported(name, exporter)
    case = Case(model, ModuleReference.of(module), plan("full"), BATCH, feeds, classes(CLASSES))
    built = build(case, native_target(), tmp_path, kernel_cache)
    optimizer = Optimizer(built)
    weights = {key: array.astype(np.float64) for key, array in built.reference.initial().items()}
    state = optimizer.fresh(weights)
    for t in (1, 2):
        result = run_step(built, optimizer, weights, state, t, case.draw(t))
        assert not problems(built, result)
        _, exact = built.reference.loss_and_gradients(weights, *case.draw(t), torch.float64)
        weights, state = optimizer.step(weights, state, exact, t)
    ten_steps_on_onnx_runtime(built)
