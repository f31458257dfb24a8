"""Gradients that a module cuts off, tensors that it ties, and equal ones that an exporter stored once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.errors import PlanError
from compiler.graph import Graph
from compiler.spec.documents import LossSpec, SparsePlan
from compiler.step.autodiff import differentiate
from compiler.step.loss import attach_loss
from compiler.step.plan import resolve_plan
from tests.compiler.frontend.onnx_graphs import imported
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import by_value
from tests.models import Exporter, export

DYNAMO: tuple[Exporter, ...] = ("dynamo", "dynamo-unoptimized")


class StraightThrough(nn.Module):
    """Rounds, and lets gradients pass as if it did not; a target beside it gets none at all."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.target = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        near = torch.floor(z * 8 + 0.5) / 8
        return self.decoder(z + (near - z).detach()) * torch.sigmoid(self.target(z.detach()))


class Tied(nn.Module):
    """A table that the head reads; a bias that belongs to the module and to its own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(9))
        self.embed = nn.Embedding(9, 4)
        self.scores = nn.Linear(4, 9)
        self.scores.weight, self.scores.bias = self.embed.weight, self.bias

    def forward(self, ids: Tensor) -> Tensor:
        return self.scores(self.embed(ids))


class Chooses(nn.Module):
    """A layer that only an index depends on, and one behind a cut: neither has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.table, self.head = nn.Linear(4, 3), nn.Embedding(3, 4), nn.Linear(4, 3)
        self.target = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        picked = self.table(self.router(x).argmax(-1))
        return self.head(picked + self.target(x).detach())


class Unused(nn.Module):
    """A layer that nothing reads is no other name of one that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.layer = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def graph_of(module: nn.Module, x: Tensor, exporter: Exporter) -> Graph:
    return imported(export(module.eval(), (x,), exporter=exporter, dynamic_batch=False), batch=x.shape[0])


def assert_gradients(graph: Graph, module: nn.Module, x: Tensor) -> None:
    """A step's gradients of the mean square of the output, beside PyTorch's in float64."""
    plan = resolve_plan(graph, SparsePlan.of_preset("full"))
    step = differentiate(attach_loss(graph, LossSpec(kind="mse")), plan)
    wide = module.double()
    output = wide(x.double() if x.is_floating_point() else x)
    output.square().mean().backward()
    labels = np.zeros(tuple(output.shape), np.float32)
    values = evaluate_graph(step.graph, {**by_value(step.graph, {"input": x.numpy()}), step.labels: labels})
    found = {step.graph.parameters[own].name: (own, gradient) for own, gradient in step.gradients.items()}
    reached = {name: parameter.grad for name, parameter in wide.named_parameters() if parameter.grad is not None}
    assert found.keys() == reached.keys()
    for name, exact in reached.items():
        own, gradient = found[name]
        array = step.graph.parameters[own].to_file(values[gradient])
        np.testing.assert_allclose(array, exact.numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("exporter", DYNAMO)
def test_no_gradient_passes_a_detach(exporter: Exporter) -> None:
    torch.manual_seed(1)
    module, x = StraightThrough(), torch.randn(5, 4)
    graph = graph_of(module, x, exporter)
    assert not [warning for warning in graph.warnings if warning.code == "model.detached"]
    assert_gradients(graph, module, x)


def test_what_no_gradient_reaches_stays_and_is_told() -> None:
    """As PyTorch leaves a parameter alone whose gradient is None."""
    torch.manual_seed(3)
    module, x = Chooses(), torch.randn(5, 4)
    graph = graph_of(module, x, "dynamo-unoptimized")
    assert_gradients(graph, module, x)
    step = differentiate(attach_loss(graph, LossSpec(kind="mse")), resolve_plan(graph, SparsePlan.of_preset("full")))
    (warning,) = [warning for warning in step.graph.warnings if warning.code == "plan.no_gradient"]
    assert "router.weight" in warning.message
    only = SparsePlan.parse({"name": "routers", "update": [{"parameters": ["router.*"]}]})
    with pytest.raises(PlanError, match=r"^plan: .* router\.weight, router\.bias \("):
        differentiate(attach_loss(graph, LossSpec(kind="mse")), resolve_plan(graph, only))


@pytest.mark.parametrize("exporter", DYNAMO)
def test_tied_tensors_have_the_first_of_their_names(exporter: Exporter) -> None:
    torch.manual_seed(2)
    module, ids = Tied(), torch.randint(0, 9, (3, 5))
    assert_gradients(graph_of(module, ids, exporter), module, ids)


@pytest.mark.parametrize("exporter", DYNAMO)
def test_an_unused_layer_gives_no_other_one_its_name(exporter: Exporter) -> None:
    graph = graph_of(Unused(), torch.randn(2, 4), exporter)
    assert set(graph.named_parameters()) == {"layer.weight", "layer.bias"}
