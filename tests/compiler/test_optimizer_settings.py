"""Which parameters an optimizer's groups mean, what is told of them, and that new optimizers fuse as old ones do."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest
import torch
from torch import nn

from compiler.call_passes import fusion_passes
from compiler.codegen.linking.tables import FORMS
from compiler.errors import SpecError
from compiler.frontend.importer import import_model
from compiler.graph import Graph, Parameter
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.pipeline import derive_training_step, make_programs
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.spec.optimizer import OptimizerSpec
from compiler.step.adafactor import factored_axes
from compiler.step.optimizer import HYPER_KINDS, Settings
from compiler.step.plan import resolve_plan
from compiler.step.training import TrainingGraph
from compiler.targets import load
from tests.models import export


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(64, 96), nn.LayerNorm(96), nn.Linear(96, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.norm(self.first(x))))


@functools.cache
def graph() -> Graph:
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model = export(net, (torch.randn(4, 64),))
    return run_passes(import_model(model, input_shapes={}, batch=4, batch_norm="fold"), FORWARD_PASSES)


def derive(optimizer: Mapping[str, object], plan: str = "full", **more: object) -> TrainingGraph:
    spec = TrainingSpec.parse({"batch": 4, "optimizer": optimizer, **more})
    return derive_training_step(graph(), resolve_plan(graph(), SparsePlan.parse(plan)), spec)


def settings(*groups: Mapping[str, object]) -> dict[str, Settings]:
    """What each parameter's update says."""
    step = derive({"kind": "adamw", "weight_decay": 0.5, "groups": list(groups)})
    makers = {output: node for node in step.graph.nodes for output in node.outputs}
    found = {}
    for node in step.graph.nodes:
        if node.op == "adamw_update":
            scaled = makers.get(node.inputs[4])
            factor = 1.0 if scaled is None else float(step.graph.arrays[scaled.inputs[1]])
            decay = node.attrs["weight_decay"]
            assert isinstance(decay, float)
            found[node.parameter] = Settings(decay, factor)
    return found


def test_no_decay_of_biases_and_norms_is_one_line() -> None:
    found = settings({"kind": "vector", "weight_decay": 0})
    assert {name for name, own in found.items() if own.weight_decay == 0} == {
        "first.bias",
        "norm.weight",
        "norm.bias",
        "second.bias",
    }
    assert found["first.weight"] == Settings(0.5)


def test_later_groups_override_what_they_name() -> None:
    found = settings(
        {"parameters": ["first.*"], "weight_decay": 0.1, "learning_rate_factor": 0.25},
        {"parameters": ["*"], "kind": "bias", "weight_decay": 0.0},
        {"parameters": ["second.*"], "kind": "weight", "learning_rate_factor": 4.0},
    )
    assert found["first.weight"] == Settings(0.1, 0.25)
    assert found["first.bias"] == Settings(0.0, 0.25)
    assert found["second.weight"] == Settings(0.5, 4.0)
    assert found["second.bias"] == Settings(0.0)
    assert found["norm.weight"] == Settings(0.5)


@pytest.mark.parametrize(
    ("group", "text", "hint"),
    [
        ({"parameters": ["frist.weight"]}, "no parameter is called 'frist.weight'", "first.weight"),
        ({"parameters": ["*.weight"], "kind": "bias"}, "matches 3 parameters, none of kind bias", "did you mean"),
    ],
)
def test_a_group_of_nothing_is_refused(group: Mapping[str, object], text: str, hint: str) -> None:
    with pytest.raises(SpecError, match=text) as problem:
        derive({"groups": [{"weight_decay": 0}, group]})
    assert problem.value.where == "spec.optimizer.groups[1]"
    assert hint in problem.value.hint


def test_a_group_of_frozen_parameters_is_told() -> None:
    optimizer = {"groups": [{"parameters": ["first.*"], "weight_decay": 0.1}, {"weight_decay": 0.2}]}
    step = derive(optimizer, "last-layer")
    (told,) = [warning for warning in step.graph.warnings if warning.code.startswith("optimizer.")]
    assert (told.code, told.where) == ("optimizer.group_frozen", "spec.optimizer.groups[0]")
    assert "first.weight" in told.message


def test_clipping_says_what_it_keeps() -> None:
    (told,) = [
        warning for warning in derive({"clip_norm": 1.0}).graph.warnings if warning.code == "optimizer.clip_norm"
    ]
    assert f"{4 * sum(parameter.numel() for parameter in Net().parameters()):,} bytes" in told.message


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"kind": "lion", "eps": 1e-8}, "spec.optimizer.eps"),
        ({"kind": "adafactor", "clip_threshold": 0.5}, "spec.optimizer.clip_threshold"),
        ({"clip_norm": 0}, "spec.optimizer.clip_norm"),
        ({"groups": [{"weight_decya": 0}]}, "spec.optimizer.groups[0].weight_decya"),
    ],
)
def test_fields_that_do_not_fit_are_refused(spec: Mapping[str, object], where: str) -> None:
    with pytest.raises(SpecError) as problem:
        TrainingSpec.parse({"optimizer": spec})
    assert problem.value.where == where


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(SpecError, match="momentum") as problem:
        derive({"nesterov": True})
    assert problem.value.where == "spec.optimizer.nesterov"


def test_every_number_that_an_optimizer_is_fed_has_a_form() -> None:
    assert {kind for kinds in HYPER_KINDS.values() for kind in kinds} == FORMS.keys()


def test_a_spec_without_new_fields_keeps_its_text() -> None:
    text = TrainingSpec.parse({"optimizer": {"momentum": 0.9}}).canonical_json()
    assert '"optimizer":{"kind":"sgd","learning_rate":0.01,"momentum":0.9,"weight_decay":0.0}' in text
    assert "accumulate" not in text
    assert OptimizerSpec(kind="sgd", momentum=0.9) == TrainingSpec.parse(text).optimizer


# -------------------------------------------------------------------------------------------------------------- fusion


def calls(optimizer: Mapping[str, object], *, accumulate: int = 1) -> list[tuple[str, bool]]:
    """Of the train program after fusion: the phase of each call, and whether it updates as well."""
    programs, _ = make_programs(graph(), derive(optimizer, accumulate=accumulate), fusion_passes(load("x86-64-v3")))
    return sorted((call.phase, call.updates) for call in programs[0].calls)


@pytest.mark.parametrize("kind", [{"nesterov": True, "momentum": 0.9}, {"kind": "adam"}, {"kind": "lion"}])
def test_elementwise_updates_go_into_products_as_momentum_does(kind: Mapping[str, object]) -> None:
    old = calls({"momentum": 0.9})
    assert ("backward", True) in old
    assert calls(kind) == old


def test_groups_and_micro_batches_cost_no_call_beside_the_rates() -> None:
    old = calls({"kind": "adamw"})
    assert calls({"kind": "adamw", "groups": [{"kind": "vector", "weight_decay": 0}]}) == old
    assert calls({"kind": "adamw"}, accumulate=4) == old
    programs, _ = make_programs(graph(), derive({"kind": "adamw"}, accumulate=4), fusion_passes(load("x86-64-v3")))
    assert [program.name for program in programs] == ["train", "forward", "accumulate"]
    assert sum(call.updates for call in programs[2].calls) == sum(call.updates for call in programs[0].calls)


@pytest.mark.parametrize(
    ("file", "view", "perm", "last", "before"),
    [
        ((8, 5), (8, 5), (1, 0), (0,), (1,)),
        ((8, 4, 1, 1), (8, 4), (1, 0), (), ()),
        ((8, 1, 3, 5), (8, 3, 5), (1, 2, 0), (1,), (0,)),
        ((8, 4, 3, 3), (8, 4, 3, 3), (2, 3, 1, 0), (1,), (0,)),
        ((8, 4, 7), (8, 4, 1, 7), (2, 3, 1, 0), (1,), (2,)),
        ((12, 5), (3, 4, 5), (2, 0, 1), (0,), (1, 2)),
        ((1, 6), (6,), (0,), (0,), ()),
    ],
)
def test_the_authors_last_axes_are_found_inside(
    file: tuple[int, ...], view: tuple[int, ...], perm: tuple[int, ...], last: tuple[int, ...], before: tuple[int, ...]
) -> None:
    assert factored_axes(Parameter("w", file, view, perm, "weight", "fc")) == (last, before)
