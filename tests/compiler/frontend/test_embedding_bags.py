"""Embedding bags as PyTorch's exporters write them (loops over the bags) become one lookup and a reduction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.graph import Graph
from tests.compiler.frontend.onnx_graphs import imported
from tests.compiler.named import evaluate_named
from tests.models import export

IDS = torch.tensor([[1, 2, 5], [9, 9, 0]])
FLAT, OFFSETS = torch.tensor([1, 1, 3, 7]), torch.tensor([0, 1, 1, 3])
"""The second of four bags is empty."""


class Bag(nn.Module):
    """A table, summed over bags that are rows of the input, or that begin at offsets."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(10, 4, mode=mode)

    def forward(self, ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        return self.table(ids, offsets)


def graph_of(module: nn.Module, inputs: tuple[Tensor, ...], exporter: str) -> Graph:
    names = ("ids", "offsets")[: len(inputs)]
    model = export(module, inputs, input_names=names, exporter=exporter, dynamic_batch=False)  # type: ignore[arg-type]
    return imported(model, batch=len(inputs[-1]))


@pytest.mark.parametrize(
    ("mode", "exporter", "inputs"),
    [
        ("sum", "dynamo", (IDS,)),
        ("mean", "dynamo-unoptimized", (FLAT, OFFSETS)),
        ("max", "dynamo-unoptimized", (FLAT, OFFSETS)),
        ("mean", "torchscript", (IDS,)),
        ("max", "torchscript", (FLAT, OFFSETS)),
    ],
    ids=str,
)
def test_a_bag_is_one_reduction(mode: str, exporter: str, inputs: tuple[Tensor, ...]) -> None:
    torch.manual_seed(2)
    module = Bag(mode).eval()
    graph = graph_of(module, inputs, exporter)
    assert len(graph.nodes) < 30
    assert graph.named_parameters().keys() == {"table.weight"}
    feeds = {graph.names[value]: tensor.numpy() for value, tensor in zip(graph.inputs, inputs, strict=True)}
    found = evaluate_named(graph, feeds)["logits"]
    np.testing.assert_allclose(found, module(*inputs).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_bags_of_one_size_are_sums_over_an_axis() -> None:
    """Nodes do not grow with the number of bags, and nothing is scattered."""
    sizes = []
    for rows in (2, 50):
        ids = torch.arange(rows * 3).reshape(rows, 3) % 10
        graph = graph_of(Bag("sum").eval(), (ids,), "torchscript")
        assert "scatter_elements_add" not in [node.op for node in graph.nodes]
        sizes.append(len(graph.nodes))
    assert sizes[0] == sizes[1]
