"""`x[mask] = value` as PyTorch's exporter writes it becomes a choice; values, and gradients, are the module's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.errors import UnsupportedOperator
from compiler.graph import Graph
from compiler.spec.documents import LossSpec, SparsePlan
from compiler.step.autodiff import differentiate
from compiler.step.loss import attach_loss
from compiler.step.plan import resolve_plan
from tests.compiler.frontend.onnx_graphs import imported
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import by_value
from tests.models import Exporter, export
from tests.sample import sample


class Clipped(nn.Module):
    """A number in place of some elements, another in place of what a parameter says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.low = nn.Linear(4, 5), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        y[y < -0.5] = self.low
        y[y > 0.8] = 0.0
        return y


class MaskToken(nn.Module):
    """A learned row in place of masked positions, as masked models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.layer = nn.Parameter(torch.randn(4)), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1.0
        y[x[..., 0] > 0] = self.token
        return self.layer(y)


class AsMany(nn.Module):
    """As many numbers as the mask has ones: which goes where depends on data."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1.0
        y[x > 0.5] = y[x > 0.5] * 0.5
        return y


def _exported(module: nn.Module, x: Tensor, exporter: Exporter) -> Graph:
    model = export(module, (x,), input_names=("x",), exporter=exporter, dynamic_batch=False)
    return imported(model, batch=len(x))


@pytest.mark.parametrize("exporter", sample(["dynamo", "dynamo-unoptimized"], ["dynamo"]))
@pytest.mark.parametrize(
    ("make", "shape"),
    [(Clipped, (6, 4)), (MaskToken, (6, 4)), (MaskToken, (3, 5, 4))],
    ids=["clipped", "rows", "tokens"],
)
def test_a_masked_write_is_a_choice(make: type[nn.Module], shape: tuple[int, ...], exporter: Exporter) -> None:
    torch.manual_seed(4)
    module = make()
    x = torch.randn(shape)
    graph = _exported(module, x, exporter)
    assert graph.named_parameters().keys() == dict(module.named_parameters()).keys()
    step = attach_loss(graph, LossSpec(kind="mse"))
    step = differentiate(step, resolve_plan(graph, SparsePlan.parse("full")))
    exact = make().double()
    exact.load_state_dict(module.state_dict())
    loss = nn.functional.mse_loss(exact(x.double()), torch.zeros_like(module(x)).double())
    loss.backward()
    labels = np.zeros(module(x).shape, np.float32)
    values = evaluate_graph(step.graph, {**by_value(step.graph, {"x": x.numpy()}), step.labels: labels})
    assert float(values[step.loss]) == pytest.approx(loss.item(), rel=1e-6)
    for value, gradient in step.gradients.items():
        parameter = step.graph.parameters[value]
        wanted = dict(exact.named_parameters())[parameter.name].grad
        assert wanted is not None
        assert float(wanted.abs().max()) > 0
        np.testing.assert_allclose(parameter.to_file(values[gradient]), wanted.numpy(), rtol=1e-5, atol=1e-7)


def test_values_whose_number_depends_on_data_are_refused() -> None:
    with pytest.raises(UnsupportedOperator, match=r"torch\.where"):
        _exported(AsMany(), torch.randn(3, 4), "dynamo-unoptimized")
