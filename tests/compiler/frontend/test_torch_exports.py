"""PyTorch modules exported by each of its exporters, imported, against PyTorch itself in float64."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from compiler.graph import Array, Graph
from tests.compiler.agreement.harness import start_problems
from tests.compiler.agreement.module_reference import FOLDED_BIAS, ModuleReference
from tests.compiler.frontend.onnx_graphs import imported
from tests.compiler.named import evaluate_named
from tests.models import FAMILIES, Exporter, build, export, transformers_model
from tests.sample import crossed, sample
from tests.sharing import sharing

EXPORTERS: tuple[Exporter, ...] = ("dynamo", "dynamo-unoptimized", "torchscript")
SLICED = {
    "bert": "model.bert.embeddings.position_embeddings.weight",
    "distilbert": "model.distilbert.embeddings.position_embeddings.weight",
    "gpt2": "model.transformer.wpe.weight",
}
"""Tables of which the dynamo exporter keeps the rows that a fixed length reads, under a name of its own making."""
TRANSFORMERS = ("bert", "distilbert", "vit", "gpt2", "llama")
FAMILIES_KEPT = [
    "resnet18-dynamo-unoptimized",
    "transformer_encoder-dynamo",
    "mlp-torchscript",
]
TRANSFORMERS_KEPT = ["vit-torchscript"]
BOTH_WAYS = list(product(TRANSFORMERS, ("dynamo", "torchscript")))


@cache
def _exported(name: str, exporter: Exporter) -> bytes:
    """Exports take seconds; several tests read the same one."""
    if name in FAMILIES:
        family = FAMILIES[name]
        return export(build(name), family.inputs(2), input_names=family.input_names, exporter=exporter)
    model, inputs, names = transformers_model(name)
    return export(model, inputs(2), input_names=names, exporter=exporter)


def _agrees(graph: Graph, model: nn.Module, names: tuple[str, ...], inputs: tuple[torch.Tensor, ...]) -> None:
    """The graph in float64 against the module in float64; weights are equal but for the rounding of folded norms."""
    feeds: dict[str, Array] = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
    doubled = model.double()
    with torch.no_grad():
        real = tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs)
        expected = doubled(*real).numpy()
    model.float()
    found = evaluate_named(graph, feeds)["logits"]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize(("name", "exporter"), sample(crossed(FAMILIES, EXPORTERS), FAMILIES_KEPT))
def test_families_agree_and_fold(name: str, exporter: Exporter) -> None:
    family = FAMILIES[name]
    model = build(name)
    graph = imported(_exported(name, exporter), batch=3)
    _agrees(graph, model, family.input_names, family.inputs(3))
    assert not any(made.op == "sub" for made in graph)
    # Every norm leaves with its convolution, whose weight it scales; its shift is the convolution's bias.
    wanted = ModuleReference.folded(model, family.input_names).initial()
    found = {
        own: parameter.to_file(graph.arrays[graph.value_called(own)])
        for own, parameter in graph.named_parameters().items()
    }
    if exporter == "dynamo-unoptimized":  # no exporter named the new biases
        wanted = {own.replace(FOLDED_BIAS, "bias"): array for own, array in wanted.items()}
    if exporter == "torchscript" and wanted.keys() != dict(model.named_parameters()).keys():
        # This exporter calls what it folded `onnx::Conv_12`: the tensors are the module's, in its order.
        wanted = dict(zip(found, _in_order_of(found, wanted), strict=True))
    assert start_problems(wanted, found) == []


def _in_order_of(found: dict[str, Array], wanted: dict[str, Array]) -> list[Array]:
    """The wanted tensors, each beside the nearest found one of its shape, so that none is used twice."""
    rest = list(wanted.values())
    ordered = []
    for array in found.values():
        alike = [i for i, one in enumerate(rest) if one.shape == array.shape]
        assert alike, f"a tensor of shape {array.shape} too many"
        ordered.append(rest.pop(min(alike, key=lambda i: float(np.abs(rest[i] - array).max()))))
    assert not rest
    return ordered


@pytest.mark.thorough
@pytest.mark.parametrize("name", sample(["mobilenet_v2", "resnet18"], ["resnet18"]))
def test_frozen_norms_keep_every_parameter_of_the_module(name: str) -> None:
    family = FAMILIES[name]
    model = build(name)
    graph = imported(_exported(name, "dynamo-unoptimized"), batch=3, batch_norm="frozen")
    _agrees(graph, model, family.input_names, family.inputs(3))
    state = dict(model.named_parameters())
    assert set(graph.named_parameters()) == set(state)
    for parameter_name, parameter in graph.named_parameters().items():
        stored = parameter.to_file(graph.arrays[graph.value_called(parameter_name)])
        np.testing.assert_array_equal(stored, state[parameter_name].detach().numpy())


@pytest.mark.thorough
def test_fresh_norms_leave_biases_that_a_plan_can_name() -> None:
    """Fresh norms fold into all-zero biases, which PyTorch's exporter drops."""
    torch.manual_seed(0)
    model = FAMILIES["mcunet"].build().eval()
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    fresh = imported(export(model, FAMILIES["mcunet"].inputs(2)), batch=2)
    biases = {name for name, parameter in fresh.named_parameters().items() if parameter.kind == "bias"}
    assert len(biases) == norms + 1 > 20
    assert all(fresh.named_parameters()[name].created for name in biases - {"classifier.bias"})


def test_training_mode_exports_lose_dropout_and_batch_statistics() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 5)
    )
    images = torch.randn(2, 3, 8, 8)
    onnx_bytes = export(model.train(), (images,))
    graph = imported(onnx_bytes)
    _agrees(graph, model.eval(), ("input",), (images,))


@pytest.mark.parametrize(("name", "exporter"), sample(sharing("exported", BOTH_WAYS), TRANSFORMERS_KEPT))
def test_transformers_agree(name: str, exporter: Exporter) -> None:
    model, inputs, names = transformers_model(name)
    graph = imported(_exported(name, exporter), batch=3)
    _agrees(graph, model, names, inputs(3))


@pytest.mark.parametrize(
    ("name", "exporter"),
    sample(sharing("exported", product(TRANSFORMERS, EXPORTERS)), [*TRANSFORMERS_KEPT, "llama-dynamo-unoptimized"]),
)
def test_parameters_have_the_names_and_layouts_of_the_module(name: str, exporter: Exporter) -> None:
    """So that a plan can name them, and the module can load what was trained."""
    model, _, _ = transformers_model(name)
    graph = imported(_exported(name, exporter), batch=2)
    state = dict(model.named_parameters())
    missing = set(state) - set(graph.named_parameters())
    assert missing == ({SLICED[name]} if exporter == "dynamo" and name in SLICED else set())
    assert len(graph.parameters) == len(state)
    for own in set(graph.named_parameters()) & set(state):
        stored = graph.named_parameters()[own].to_file(graph.arrays[graph.value_called(own)])
        np.testing.assert_array_equal(stored, state[own].detach().numpy(), err_msg=own)
    for table in missing:
        (rows,) = (graph.arrays[graph.value_called(own)] for own in set(graph.named_parameters()) - set(state))
        np.testing.assert_array_equal(rows.reshape(-1, rows.shape[-1]), state[table].detach().numpy()[: rows.shape[-2]])
        assert any(table in warning.where for warning in graph.warnings)
