"""Rules by module, layer and last biases; presets that leave out; schemes by structure: against the user's module."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from compiler.errors import PlanError
from compiler.frontend.importer import import_model
from compiler.graph import Graph
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.step.loss import attach_loss
from compiler.step.plan import decide_plan, resolve_plan
from compiler.step.planning.layers import layers_of, reached_by_loss
from tests.models import export, transformers_model


def graph_of(model: bytes) -> Graph:
    return run_passes(import_model(model, input_shapes={}, batch=2, batch_norm="fold"), FORWARD_PASSES)


def learns(graph: Graph, plan: str | Mapping[str, object], loss: str = "") -> dict[str, int]:
    """Name -> channels that learn; 0: all."""
    reach = reached_by_loss(attach_loss(graph, TrainingSpec.parse({"loss": {"output": loss}}).loss)) if loss else None
    found = resolve_plan(graph, SparsePlan.parse(plan), reach)
    return {graph.names[value]: part.size for value, part in found.items()}


class Block(nn.Module):
    """An inverted bottleneck, perhaps with a squeeze between, or a bottleneck."""

    def __init__(self, width: int, hidden: int, *, squeeze: bool = False, dense: bool = False) -> None:
        super().__init__()
        self.last, self.first = nn.Conv2d(hidden, width, 1), nn.Conv2d(width, hidden, 1)
        self.middle = nn.Conv2d(hidden, hidden, 3, padding=1, groups=1 if dense else hidden)
        self.gate = nn.Conv2d(hidden, hidden, 1) if squeeze else None

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.middle(torch.relu(self.first(x))))
        if self.gate is not None:
            y = y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        return x + self.last(y)


class Net(nn.Module):
    """Four blocks of three kinds, whose order in the module is not that of the forward pass, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.other = nn.Linear(8, 3), nn.Linear(8, 5)
        self.b = nn.ModuleList([Block(8, 16), Block(8, 16, squeeze=True), Block(8, 4, dense=True), Block(8, 16)])
        self.stem = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        for block in self.b:
            x = block(x)
        x = x.mean((2, 3))
        return self.head(x), self.other(x)


@pytest.fixture(scope="module")
def net() -> Graph:
    torch.manual_seed(0)
    model = export(Net().eval(), (torch.randn(2, 3, 6, 6),), output_names=("logits", "aside"))
    return graph_of(model)


ORDER = [
    "stem",
    "b.0.first",
    "b.0.middle",
    "b.0.last",
    "b.1.first",
    "b.1.middle",
    "b.1.gate",
    "b.1.last",
    "b.2.first",
    "b.2.middle",
    "b.2.last",
    "b.3.first",
    "b.3.middle",
    "b.3.last",
    "head",
    "other",
]


def both(*modules: str) -> set[str]:
    return {f"{module}.{kind}" for module in modules for kind in ("weight", "bias")}


def test_layers_are_counted_in_forward_order(net: Graph) -> None:
    assert [net.names[layer.weights[0]] for layer in layers_of(net)] == [f"{name}.weight" for name in ORDER]
    assert [net.names[layer.biases[0]] for layer in layers_of(net)] == [f"{name}.bias" for name in ORDER]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"modules": ["b.[02]", "head"]}, both(*(name for name in ORDER if name.startswith(("b.0", "b.2", "head"))))),
        ({"modules": "b.*.middle", "kind": "bias"}, {f"b.{number}.middle.bias" for number in range(4)}),
        ({"modules": "*.first", "kind": "weight"}, {f"b.{number}.first.weight" for number in range(4)}),
        ({"layers": [0, "4-6", -1]}, both("stem", "b.1.first", "b.1.middle", "b.1.gate", "other")),
        ({"layers": 2, "kind": "weight"}, {"b.0.middle.weight"}),
        ({"last_biases": 5}, {f"{name}.bias" for name in ORDER[-5:]}),
    ],
)
def test_a_selector_means(net: Graph, rule: dict[str, object], expected: set[str]) -> None:
    assert set(learns(net, {"update": [rule]})) == expected


def test_a_later_rule_overrides_by_any_selector(net: Graph) -> None:
    plan = {
        "update": [{"modules": "b.3"}, {"layers": -5, "kind": "weight", "ratio": 0.5}, {"last_biases": 4, "ratio": 0}]
    }
    assert learns(net, plan) == {
        "b.3.first.weight": 4,
        "b.3.first.bias": 0,
        "b.3.middle.weight": 0,
        "b.3.last.weight": 0,
    }


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"modules": "b.7"}, r"no module is called 'b\.7' \(did you mean"),
        ({"modules": "head", "kind": "any", "ratio": 0.5, "layers": 1}, "modules and layers stand in one rule"),
        ({"kind": "bias"}, "nothing is selected"),
        ({"layers": 16}, r"no layer 16 \(the model has 16 layers, 0 to 15\)"),
        ({"layers": "7-16"}, "there is no layer 7-16"),
        ({"layers": -17}, "there is no layer -17"),
        ({"layers": "5-4"}, "expected layer numbers, .* got '5-4'"),
        ({"last_biases": 17}, "no 17 last layers: the model has 16"),
        ({"last_biases": 0}, "expected an integer from 1"),
    ],
)
def test_what_matches_nothing_is_refused(net: Graph, rule: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        resolve_plan(net, SparsePlan.parse({"update": [rule]}))


def test_presets_leave_out_what_the_loss_does_not_reach(net: Graph) -> None:
    everything = set(net.named_parameters())
    assert set(learns(net, "full", "logits")) == everything - both("other")
    assert set(learns(net, "full", "aside")) == everything - both("head")
    assert set(learns(net, "last-layer", "logits")) == both("head")
    assert set(learns(net, "last-layer", "aside")) == both("other")
    reach = reached_by_loss(attach_loss(net, TrainingSpec.parse("loss: {output: logits}").loss))
    (told,) = decide_plan(net, SparsePlan.of_preset("full"), reach).warnings
    assert (told.code, "other.weight" in told.message) == ("plan.left_out", True)
    assert decide_plan(net, SparsePlan.parse("update: [{parameters: '*'}]"), reach).warnings == ()


def test_a_scheme_finds_bottlenecks_of_every_kind(net: Graph) -> None:
    plan = {
        "scheme": {"kind": "bottlenecks", "weight_blocks": 2, "skip_blocks": 1, "bias_blocks": 1, "ratios": [0.25, 1]}
    }
    assert learns(net, plan, "logits") == {
        "b.1.first.weight": 2,
        "b.2.first.weight": 0,
        "b.3.first.bias": 0,
        "b.3.middle.bias": 0,
        "b.3.last.bias": 0,
        "head.weight": 0,
        "head.bias": 0,
    }


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("{scheme: {kind: bottlenecks, weight_blocks: 5}}", "last 6 blocks, the model has 4"),
        (
            "{scheme: {kind: bottlenecks, weight_blocks: 2, bias_blocks: 2, ratios: [1]}}",
            "1 ratios for 2 weight_blocks",
        ),
        ("{scheme: {kind: transformer}}", "no block of this kind: an attention"),
        ("pockengine-mobilenetv2", r"^plan\.preset pockengine-mobilenetv2: .* last 7 blocks"),
        ("tiny-training-mcunet", "no 22 last layers: the model has 16"),
    ],
)
def test_a_scheme_that_does_not_fit_says_what_is_missing(net: Graph, plan: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        resolve_plan(net, SparsePlan.parse(plan))


BERT_FIRST = (
    *(f"attention.{name}" for name in ("self.query", "self.key", "self.value", "output.dense")),
    "intermediate.dense",
)
GPT2_FIRST = ("attn.c_attn", "attn.c_proj", "mlp.c_fc")
LLAMA_FIRST = (*(f"self_attn.{name}_proj" for name in "qkvo"), "mlp.gate_proj", "mlp.up_proj")
"""Projections of a block's attention, and the first linears of its feed-forward part."""


@pytest.mark.parametrize(
    ("name", "prefix", "first", "biases"),
    [
        ("bert", "model.bert.encoder.layer.1", BERT_FIRST, 8),
        pytest.param("gpt2", "model.transformer.h.1", GPT2_FIRST, 6, marks=pytest.mark.thorough),
        pytest.param("llama", "model.model.layers.1", LLAMA_FIRST, 0, marks=pytest.mark.thorough),
    ],
)
def test_a_scheme_finds_transformer_blocks(name: str, prefix: str, first: tuple[str, ...], biases: int) -> None:
    """Projections and the first feed-forward linears of the last block, found though no name is known."""
    module, inputs, names = transformers_model(name)
    graph = graph_of(export(module, inputs(2), input_names=names))
    found = learns(graph, "scheme: {kind: transformer, weight_blocks: 1, bias_blocks: 1, head: false}")
    assert {one for one in found if one.endswith(".weight")} == {f"{prefix}.{one}.weight" for one in first}
    known = [one for one in dict(module.named_parameters()) if one.startswith(prefix) and one.endswith(".bias")]
    assert len(known) == biases
    assert set(known) <= set(found)
