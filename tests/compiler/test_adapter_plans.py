"""Plans with adapters: which layers they mean, how adapters begin, and what a person reads when a plan does not fit."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.errors import ModelError, PlanError
from compiler.frontend.importer import import_model
from compiler.graph import Graph
from compiler.origins import Adapter, Origins
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.spec.documents import SparsePlan
from compiler.step.adapters import Adapted, attach_adapters
from compiler.step.plan import resolve_plan
from compiler.trained.adapters import adapter_files, merged
from tests.models import export


class Block(nn.Module):
    """Every kind of layer that an adapter may be asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.q_proj, self.v_proj = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.grouped, self.dilated = nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.Conv2d(4, 4, 3, dilation=2)
        self.tall = nn.Conv1d(6, 6, 3, padding=1)
        self.table = nn.Embedding(11, 6)
        self.scores = nn.Linear(6, 11, bias=False)
        self.scores.weight = self.table.weight
        self.scale = nn.Parameter(torch.ones(4, 1))
        self.left = nn.Parameter(torch.randn(6, 6))
        self.head = nn.Linear(11, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.table(tokens)
        x = self.v_proj(self.q_proj(x)) + self.q_proj(x)
        y = self.dilated(self.grouped(self.norm(self.conv(x[:, None])))) * self.scale[:, :, None]
        x = self.tall(x.transpose(1, 2)).transpose(1, 2) + y.mean((1, 2, 3))[:, None, None]
        return self.head(self.scores(torch.matmul(self.left, x)).mean(1))


@pytest.fixture(scope="module")
def model() -> bytes:
    torch.manual_seed(0)
    module = Block().eval()
    return export(
        module,
        (torch.randint(0, 11, (2, 6)),),
        input_names=("tokens",),
        exporter="dynamo-unoptimized",
        dynamic_batch=False,
    )


def graph_of(model: bytes, batch_norm: str = "frozen") -> Graph:
    return run_passes(import_model(model, input_shapes={}, batch=2, batch_norm=batch_norm), FORWARD_PASSES)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def graph(model: bytes) -> Graph:
    return graph_of(model)


def adapted(graph: Graph, *targets: str, rules: tuple[str, ...] = (), **lora: object) -> Adapted:
    update = [{"parameters": [rule]} for rule in rules]
    plan = SparsePlan.parse({"lora": {"targets": list(targets), "rank": 2, **lora}, "update": update})
    return attach_adapters(graph, resolve_plan(graph, plan), plan.lora)


def modules(made: Adapted) -> list[str]:
    return [one.module for one in made.graph.origins.adapters]


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("q_proj", ["q_proj"]),
        ("*_proj", ["q_proj", "v_proj"]),
        ("v_proj.weight", ["v_proj"]),
        ("all-linear", ["q_proj", "v_proj"]),
        ("conv", ["conv"]),
        ("embed", ["embed"]),
        ("*", ["embed", "q_proj", "v_proj", "conv", "head"]),
    ],
)
def test_a_target_means_layers(graph: Graph, target: str, wanted: list[str]) -> None:
    made = adapted(graph, target)
    assert sorted(modules(made)) == sorted(wanted)
    learning = {made.graph.parameters[value].name for value in made.plan}
    assert learning == {name for one in made.graph.origins.adapters for name in one.names}


def test_what_a_wildcard_leaves_out_is_said(graph: Graph) -> None:
    (told,) = adapted(graph, "*").graph.warnings[len(graph.warnings) :]
    assert told.code == "plan.adapters_left_out"
    assert "take no adapter" in told.message
    assert not adapted(graph, "q_proj").graph.warnings[len(graph.warnings) :]


def test_a_rank_above_that_of_the_weight_is_told(graph: Graph) -> None:
    (told,) = adapted(graph, "q_proj", rank=7).graph.warnings[len(graph.warnings) :]
    assert (told.code, told.where) == ("plan.adapter_rank", "plan.lora.rank")
    assert "q_proj" in told.message
    assert not adapted(graph, "q_proj", rank=6).graph.warnings[len(graph.warnings) :]


def test_what_learns_by_a_rule_takes_no_adapter(graph: Graph) -> None:
    with_adapters = adapted(graph, "*_proj", rules=("v_proj.*",))
    assert modules(with_adapters) == ["q_proj"]
    assert "v_proj.weight" in {with_adapters.graph.parameters[value].name for value in with_adapters.plan}
    with pytest.raises(PlanError, match=r"^plan\.lora\.targets\[0\]: 'v_proj\.weight' .* rule "):
        adapted(graph, "v_proj", rules=("v_proj.*",))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("grouped", r"'grouped\.weight' .* convolutions in groups"),
        ("dilated", "is a dilated convolution"),
        ("tall", "as convolutions .* of rank 1 or 3 do"),
        ("table", "it is tied"),
        ("left", "multiplies with it from the left"),
        ("scale", "'scale' cannot take an adapter"),
        ("norm", r"'norm' matches norm\.weight, norm\.bias, "),
        ("q_porj", "no layer is called 'q_porj'.*did you mean q_proj"),
        ("x.*", "no layer is called 'x\\.\\*'"),
    ],
)
def test_what_cannot_take_an_adapter_is_refused_by_name(graph: Graph, target: str, message: str) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        adapted(graph, target)
    assert caught.value.where == "plan.lora.targets[0]"
    assert len(str(caught.value).splitlines()) <= 3


def test_more_that_does_not_fit(graph: Graph, model: bytes) -> None:
    with pytest.raises(PlanError, match=r"^plan\.lora\.kind: 'embed' .* dora "):
        adapted(graph, "embed", kind="dora")
    with pytest.raises(PlanError, match=r"^plan\.lora\.targets\[0\]: 'conv\.weight' .* norm "):
        adapted(graph_of(model, "fold"), "conv")
    once = adapted(graph, "q_proj").graph
    with pytest.raises(PlanError, match=r"^plan\.lora: .* 'q_proj\.lora_A\.weight' "):
        adapted(once, "q_proj")


@pytest.mark.parametrize(
    ("lora", "where", "message"),
    [
        ({}, "plan.lora.targets", "a name or a list of names"),
        ({"targets": "a", "rank": 0}, "plan.lora.rank", "an integer from 1 to 4096"),
        ({"targets": "a", "alpha": -1}, "plan.lora.alpha", "from 0 to"),
        ({"targets": "a", "kind": "qlora"}, "plan.lora.kind", "one of lora, dora"),
        ({"targets": "a", "export": "merge"}, "plan.lora.export", "one of merged, peft"),
        ({"targets": "a", "rnak": 8}, "plan.lora.rnak", "did you mean 'rank'"),
    ],
)
def test_wrong_plans_say_where_and_what(lora: dict[str, object], where: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        SparsePlan.parse({"lora": lora})
    assert caught.value.where == where
    assert message in str(caught.value)


def test_a_plan_without_adapters_keeps_its_digest() -> None:
    assert "lora" not in SparsePlan.of_preset("full").canonical_json()
    plan = SparsePlan.parse({"lora": {"targets": "q_proj"}})
    assert plan.name == "lora"
    assert SparsePlan.parse(plan.canonical_json()) == plan


def test_adapters_begin_as_pefts_do(graph: Graph) -> None:
    """A within 1 / sqrt(inputs) and spread evenly, B zero; the same for the same seed, whatever else is adapted."""
    first, again, other = (
        adapted(graph, "q_proj", rank=64),
        adapted(graph, "*_proj", rank=64),
        adapted(graph, "q_proj", rank=64, seed=1),
    )
    a, b = _array(first, "q_proj.lora_A.weight"), _array(first, "q_proj.lora_B.weight")
    assert a.shape == (64, 6)
    assert b.shape == (6, 64)
    assert not b.any()
    reference = nn.Linear(6, 64)  # which peft's A begins as
    bound = float(np.abs(reference.weight.detach().numpy()).max())
    assert abs(np.abs(a).max() / bound - 1) < 0.05
    assert abs(a.std() * 3**0.5 * 6**0.5 - 1) < 0.1
    assert abs(a.mean()) < 0.05
    assert np.array_equal(a, _array(again, "q_proj.lora_A.weight"))
    assert not np.array_equal(a, _array(other, "q_proj.lora_A.weight"))
    assert not np.array_equal(a, _array(again, "v_proj.lora_A.weight"))
    table = adapted(graph, "embed", rank=64)
    assert not _array(table, "embed.lora_embedding_A").any()
    assert abs(_array(table, "embed.lora_embedding_B").std() - 1) < 0.1


def _array(made: Adapted, name: str) -> np.ndarray:
    value = next(value for value, known in made.graph.parameters.items() if known.name == name)
    return made.graph.parameters[value].to_file(made.graph.arrays[value])


def _adapter(**other: object) -> Adapter:
    told: dict[str, object] = {
        "weight": "m.fc.weight",
        "module": "m.fc",
        "form": "linear",
        "rank": 1,
        "alpha": 2.0,
        "rslora": False,
        "out_axis": 0,
        "a": "m.fc.lora_A.weight",
        "b": "m.fc.lora_B.weight",
        "magnitude": "",
        "export": "merged",
    }
    return Adapter(**{**told, **other})  # type: ignore[arg-type]


def test_origins_keep_adapters() -> None:
    origins = Origins(adapters=(_adapter(),))
    assert Origins.from_json(origins.to_json()) == origins
    assert "adapters" not in Origins().to_json()


def test_merged_weights_are_rounded_once() -> None:
    tensors = {
        "m.fc.weight": np.array([[1.0, 0.0]], np.float32),
        "m.fc.lora_A.weight": np.array([[2.0**-24, 0.5]], np.float32),
        "m.fc.lora_B.weight": np.array([[0.75]], np.float32),
        "length": np.array([2.0], np.float32),
    }
    assert merged(_adapter(), tensors).tolist() == [[float(np.float32(1 + 1.5 * 2.0**-24)), 0.75]]
    lengthened = merged(_adapter(magnitude="length"), tensors)
    assert abs(float(np.linalg.norm(lengthened.astype(np.float64))) - 2) < 1e-6
    zeros = {"m.fc.weight": np.zeros((1, 2), np.float32), "m.fc.lora_B.weight": np.zeros((1, 1), np.float32)}
    nothing = {**tensors, **zeros}
    assert not merged(_adapter(magnitude="length"), nothing).any()


def test_what_peft_has_no_place_for_is_refused() -> None:
    tensors = {name: np.zeros((1, 1), np.float32) for name in ("m.fc.lora_A.weight", "m.fc.lora_B.weight", "m.scale")}
    with pytest.raises(ModelError, match=r"^bundle: "):
        adapter_files((), {}, (), ())
    with pytest.raises(ModelError, match=r"^adapter: m\.scale "):
        adapter_files((_adapter(),), tensors, ("m.scale",), ())
    with pytest.raises(ModelError, match=r"^adapter: head\.bias "):
        adapter_files((_adapter(module="pre_head", weight="pre_head.weight"),), tensors, ("head.bias",), ())
    with pytest.raises(ModelError, match=r"^adapter: w: "):
        adapter_files((_adapter(weight="w", module="w"),), tensors, (), ())


def test_peft_finds_the_adapted_modules_alone() -> None:
    """`peft` takes a path for the end of others; a pattern it takes whole."""
    tensors = {name: np.zeros((1, 1), np.float32) for name in ("m.fc.lora_A.weight", "m.fc.lora_B.weight")}
    assert adapter_files((_adapter(),), tensors, (), ("m.fc.weight", "n.fc.weight")).config["target_modules"] == [
        "m.fc"
    ]
    target_modules = adapter_files((_adapter(),), tensors, (), ("m.fc.weight", "deep.m.fc.weight")).config[
        "target_modules"
    ]
    assert isinstance(target_modules, str)
    assert [one for one in ("m.fc", "deep.m.fc", "mxfc") if re.fullmatch(target_modules, one)] == ["m.fc"]
