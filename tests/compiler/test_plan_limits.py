"""What a plan of many patterns costs on a model of many names: each pattern once, once per compile, up to a limit."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest

from compiler import naming, pipeline
from compiler.errors import CompileError, PlanError, SpecError
from compiler.frontend.importer import import_model
from compiler.graph import Graph
from compiler.naming import Comparisons, cost
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.stages import STAGES
from compiler.step.adapters import chosen_layers
from compiler.step.optimizer import group_warnings, settings_of
from compiler.step.plan import decide_plan
from compiler.step.planning import names
from compiler.targets import load
from tests.compiler.frontend.onnx_graphs import model_of, node

LAYERS = 6
NAMES = 2 * LAYERS


@cache
def stack() -> bytes:
    """Linears in a row, with biases."""
    nodes, data = [], "x"
    tensors: dict[str, np.ndarray] = {}
    for number in range(LAYERS):
        weight, bias, end = f"l{number}.weight", f"l{number}.bias", "y" if number == LAYERS - 1 else f"r{number}"
        tensors |= {weight: np.eye(4, dtype=np.float32) + number, bias: np.ones(4, np.float32) + number}
        nodes += [node("MatMul", [data, weight], [f"m{number}"]), node("Add", [f"m{number}", bias], [f"a{number}"])]
        nodes += [node("Relu", [f"a{number}"], [end])]
        data = end
    return model_of(nodes, {"x": ("f32", (2, 4))}, initializers=tensors)


def graph() -> Graph:
    return import_model(stack(), input_shapes={}, batch=2, batch_norm="fold")


class Counted(Comparisons):
    """Remembers all that were made."""

    made: list[Comparisons]

    def __init__(self, error: type[CompileError]) -> None:
        super().__init__(error)
        self.made.append(self)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Comparisons]:
    made: list[Comparisons] = []
    monkeypatch.setattr(Counted, "made", made, raising=False)
    monkeypatch.setattr(names, "Comparisons", Counted)
    return made


def count_of(plan: dict[str, object], counted: list[Comparisons]) -> int:
    del counted[:]
    decide_plan(graph(), SparsePlan.parse(plan))
    (one,) = counted
    return one.count


@pytest.mark.parametrize(
    "selector", [{"parameters": "l*"}, {"modules": "l*"}, {"layers": "0-5"}], ids=lambda one: next(iter(one))
)
def test_a_pattern_counts_once_however_often_a_rule_names_it(
    selector: dict[str, str], counted: list[Comparisons]
) -> None:
    ((field, pattern),) = selector.items()
    once = count_of({"update": [{field: [pattern]}]}, counted)
    assert once == count_of({"update": [{field: [pattern] * 500}]}, counted) <= 2 * NAMES


def test_names_without_wildcards_are_looked_up(counted: list[Comparisons]) -> None:
    every = [f"l{number}.{kind}" for number in range(LAYERS) for kind in ("weight", "bias")]
    assert count_of({"update": [{"parameters": every}]}, counted) == NAMES


def test_a_compile_resolves_its_plan_once(counted: list[Comparisons]) -> None:
    spec = TrainingSpec.parse("{batch: 2, loss: {kind: mse}}")
    settings = BuildSettings(SparsePlan.parse("{update: [{layers: [0, 2]}]}"), spec, load("x86-64-v3"))
    list(itertools.islice(pipeline.walk(stack(), settings), STAGES.index("loss")))
    assert len(counted) == 1


@pytest.mark.parametrize(
    ("plan", "where"),
    [
        ({"update": [{"parameters": "l0.*"}, {"parameters": ["l*", "*.weight", "*.bias"]}]}, "plan.update[1]"),
        ({"update": [{"parameters": "*"}] * 3}, "plan.update[1]"),
        ({"update": [{"modules": ["l0*", "l1*", "l[2]", "l[3]", "l[4]"]}]}, "plan.update[0]"),
        ({"update": [{"layers": ["0-5", "1-5", "2-5", "3-5", "4-5", 5]}, {"layers": "0-5"}]}, "plan.update[0]"),
        ({"preset": "full", "frozen": ["*.bias", "l0.*", "l1.*"]}, "plan.frozen"),
    ],
    ids=["globs", "rules", "modules", "spans", "frozen"],
)
def test_comparisons_have_a_limit_that_the_refusal_names(
    plan: dict[str, object], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide_plan(graph(), SparsePlan.parse(plan))
    monkeypatch.setattr(naming, "MAX_COMPARISONS", 30)
    with pytest.raises(PlanError, match="more than 30 comparisons") as refusal:
        decide_plan(graph(), SparsePlan.parse(plan))
    assert refusal.value.where == where
    assert "fewer patterns" in refusal.value.hint


def test_groups_of_the_optimizer_have_the_same_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    own = graph()
    learning = decide_plan(own, SparsePlan.parse("full")).updates
    globs = {"groups": [{"parameters": ["l0.*", "l1.*"]}, {"parameters": ["*"] * 100}]}
    optimizer = TrainingSpec.parse({"optimizer": globs}).optimizer
    monkeypatch.setattr(naming, "MAX_COMPARISONS", 3 * NAMES)
    settings_of(own, optimizer, learning)
    monkeypatch.setattr(naming, "MAX_COMPARISONS", 3 * NAMES - 1)
    for ask in (settings_of, group_warnings):
        with pytest.raises(SpecError, match="comparisons") as refusal:
            ask(own, optimizer, learning)
        assert refusal.value.where == "spec.optimizer.groups[1]"


def test_targets_of_adapters_have_the_same_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = ["l0", *["l*"] * 100, "l[12]"]
    assert len(chosen_layers(graph(), targets, ()).layers) == LAYERS
    monkeypatch.setattr(naming, "MAX_COMPARISONS", 3 * LAYERS - 1)
    with pytest.raises(PlanError, match="comparisons") as refusal:
        chosen_layers(graph(), targets, ())
    assert refusal.value.where == "plan.lora.targets[101]"


def test_long_patterns_on_long_names_count_as_long_as_they_take() -> None:
    """A thousand letters, of which none ends a match, took as much of the limit as one, and minutes."""
    compared = Comparisons(PlanError)
    names = {"a" * 1000 + str(number): None for number in range(4)}
    compared.matching("*" + "a" * 600 + "b", names, "plan")
    assert compared.count > 100 * len(names)
    with pytest.raises(PlanError, match="comparisons"):
        compared.add(cost("*" + "a" * 60_000, list(names) * 1000), "plan")
