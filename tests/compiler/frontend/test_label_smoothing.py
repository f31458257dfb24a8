"""A cross-entropy with label smoothing, which PyTorch's exporter drops, is what the module computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.errors import UnsupportedOperator
from compiler.graph import Graph
from tests.compiler.frontend.onnx_graphs import imported
from tests.compiler.named import evaluate_named
from tests.models import export

LABELS = torch.tensor([0, 2, -100, 3])


class Smoothed(nn.Module):
    """The loss alone, of images too."""

    def __init__(self, reduction: str, weight: Tensor | None = None) -> None:
        super().__init__()
        self.loss = nn.CrossEntropyLoss(weight, reduction=reduction, label_smoothing=0.1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(x, y)


def _graph(module: nn.Module, x: Tensor, y: Tensor) -> Graph:
    model = export(module, (x, y), input_names=("x", "y"), exporter="dynamo-unoptimized", dynamic_batch=False)
    return imported(model, batch=len(x))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(("shape", "labels"), [((4, 5), LABELS), ((4, 5, 2), torch.stack([LABELS, LABELS.flip(0)], 1))])
def test_smoothing_is_put_back(reduction: str, shape: tuple[int, ...], labels: Tensor) -> None:
    torch.manual_seed(1)
    module, x = Smoothed(reduction), torch.randn(shape)
    found = evaluate_named(_graph(module, x, labels), {"x": x.numpy(), "y": labels.numpy()})["logits"]
    plain = nn.CrossEntropyLoss(reduction=reduction)(x, labels).numpy()
    wanted = module(x.double(), labels).numpy()
    assert float(np.abs(plain - wanted).max()) > 1e-2
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


def test_class_weights_beside_it_are_refused() -> None:
    module = Smoothed("mean", torch.ones(5))
    with pytest.raises(UnsupportedOperator, match=r" label_smoothing=0\.1 .* class weights"):
        _graph(module, torch.randn(4, 5), LABELS)
