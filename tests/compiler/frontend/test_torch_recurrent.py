"""Gate tensors that PyTorch's exporters folded are the module's again; damaged files end in typed errors."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from compiler.errors import LimitExceeded, ModelError
from compiler.frontend.importer import import_model
from tests.compiler.frontend import test_control
from tests.compiler.frontend.cases.case import Case
from tests.compiler.frontend.cases.recurrent import WIDTH, operands
from tests.compiler.frontend.mutations import SMALL, disturb, mutations
from tests.compiler.frontend.onnx_graphs import imported
from tests.models import Exporter, export

LIMITS = replace(SMALL, nodes=2000)


@cache
def layers(exporter: Exporter) -> tuple[nn.Module, bytes]:
    torch.manual_seed(2)
    module = nn.Sequential(nn.LSTM(4, 3, bidirectional=True, batch_first=True)).eval()
    call = Last(module[0])
    return call, export(call, (torch.randn(2, 5, 4),), exporter=exporter, dynamic_batch=False)


class Last(nn.Module):
    """What a layer says last; the layer is the model's own, so its tensors have no path."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.again = layer, nn.GRU(6, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.layer(x)[0])[0][:, -1]


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_folded_tensors_are_the_modules(exporter: Exporter) -> None:
    module, model = layers(exporter)
    graph = imported(model)
    own = {name: value.detach().numpy() for name, value in module.named_parameters()}
    held = {p.name: p.to_file(graph.arrays[value]) for value, p in graph.parameters.items()}
    assert held.keys() == own.keys()
    for name, array in own.items():
        np.testing.assert_array_equal(held[name], array)
    assert not graph.unlearnable


def test_a_name_that_something_else_has_stays_that() -> None:
    """The layer learns as the file holds it then."""
    proto = onnx.load_from_string(layers("torchscript")[1])
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "layer.bias_ih_l0"))
    names = set(imported(proto.SerializeToString()).named_parameters())
    assert "again.weight_ih_l0" in names
    assert "layer.weight_ih_l0" not in names


SEEDS = {
    "torchscript": lambda: layers("torchscript")[1],
    "dynamo": lambda: layers("dynamo")[1],
    "branch": lambda: test_control.chosen(2),
    "loop": lambda: test_control.counted(3),
}


@pytest.mark.parametrize("name", SEEDS)
def test_damaged_files_end_in_typed_errors(name: str) -> None:
    rng = random.Random(7)
    damaged = list(mutations(SEEDS[name](), 150, seed=8))
    for _ in range(100):
        proto = onnx.load_from_string(SEEDS[name]())
        graphs = [proto.graph]
        for graph in graphs:
            graphs += [attribute.g for made in graph.node for attribute in made.attribute if attribute.g.node]
        inner = onnx.ModelProto(graph=rng.choice(graphs), opset_import=proto.opset_import)
        with contextlib.suppress(IndexError):
            disturb(inner, rng)
        rng.choice(graphs).CopyFrom(inner.graph)
        damaged.append(proto.SerializeToString())
    for model in damaged:
        with contextlib.suppress(ModelError, LimitExceeded):
            import_model(model, input_shapes={}, batch=2, batch_norm="fold", limits=LIMITS)


def test_the_graph_does_not_grow_with_the_steps() -> None:

    def nodes(steps: int) -> int:
        case = Case("LSTM", tuple(operands("LSTM", steps=steps)), {"hidden_size": WIDTH}, 3)
        return len(imported(case.model(), batch=steps).nodes)

    assert nodes(5) == nodes(500)
