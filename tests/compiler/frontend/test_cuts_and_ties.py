"""Gradients that a module cuts off, tensors that it ties, and equal ones that an exporter stored once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.graph import Graph
from compiler.rewriting.evaluate import evaluate_graph
from compiler.spec.documents import LossSpec, SparsePlan
from compiler.step.autodiff import differentiate
from compiler.step.loss import attach_loss
from compiler.step.plan import resolve_plan
from tests.compiler.frontend.onnx_graphs import imported
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
    assert found.keys() == dict(wide.named_parameters()).keys()
    for name, parameter in wide.named_parameters():
        own, gradient = found[name]
        array = step.graph.parameters[own].to_file(values[gradient])
        assert parameter.grad is not None
        np.testing.assert_allclose(array, parameter.grad.numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("exporter", DYNAMO)
def test_no_gradient_passes_a_detach(exporter: Exporter) -> None:
    torch.manual_seed(1)
    module, x = StraightThrough(), torch.randn(5, 4)
    graph = graph_of(module, x, exporter)
    assert not [warning for warning in graph.warnings if warning.code == "model.detached"]
    assert_gradients(graph, module, x)


@pytest.mark.parametrize("exporter", DYNAMO)
def test_tied_tensors_have_the_first_of_their_names(exporter: Exporter) -> None:
    torch.manual_seed(2)
    module, ids = Tied(), torch.randint(0, 9, (3, 5))
    assert_gradients(graph_of(module, ids, exporter), module, ids)


@pytest.mark.parametrize("exporter", DYNAMO)
def test_an_unused_layer_gives_no_other_one_its_name(exporter: Exporter) -> None:
    graph = graph_of(Unused(), torch.randn(2, 4), exporter)
    assert set(graph.named_parameters()) == {"layer.weight", "layer.bias"}
