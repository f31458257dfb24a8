"""The comparison itself: whatever is left out, added, misnamed or turned is noticed, however small its update is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.spec.documents import SparsePlan
from tests.compiler.agreement.cases import classes, vectors
from tests.compiler.agreement.harness import (
    Built,
    Case,
    Optimizer,
    State,
    StepResult,
    build,
    problems,
    run_step,
    start_problems,
)
from tests.compiler.agreement.module_reference import ModuleReference
from tests.compiler.agreement.onnx_checks import moved_otherwise
from tests.compiler.agreement.reference import what_learns
from tests.compiler.agreement.step_binary import native_target
from tests.models import export

SMALL = 1e-4
"""Of its weight: an update that must not be overlooked."""


class SmallUpdates(nn.Module):
    """Two square layers, a scalar and a buffer; nothing here has a kink."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.tensor(0.8))
        self.register_buffer("shift", torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x + self.shift))) * self.scale


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> tuple[Built, StepResult]:
    """One step, so slow that no update is larger than a few ten-thousandths of its weight."""
    torch.manual_seed(2)
    module = SmallUpdates().eval()
    model = export(module, (torch.randn(2, 6),), exporter="dynamo-unoptimized")
    plan = SparsePlan.parse({"name": "most", "preset": "full", "update": [{"parameters": ["second.bias"], "ratio": 0}]})
    settings = {"kind": "sgd", "learning_rate": 4e-4, "momentum": 0.9}
    case = Case(model, ModuleReference.of(module), plan, 8, vectors(6), classes(6), settings)
    built = build(case, native_target(), tmp_path_factory.mktemp("step"), kernel_cache)
    optimizer = Optimizer(built)
    weights = {name: array.astype(np.float64) for name, array in built.reference.initial().items()}
    return built, run_step(built, optimizer, weights, optimizer.fresh(weights), 1, case.draw(0))


def _share(result: StepResult, name: str) -> float:
    """An update, relative to its weight."""
    start = result.before[name].astype(np.float64)
    return float(np.linalg.norm(result.expected[name] - start) / np.linalg.norm(start))


def test_the_step_is_right_and_its_updates_are_small(step: tuple[Built, StepResult]) -> None:
    built, result = step
    assert problems(built, result) == []
    assert 0.1 * SMALL < min(_share(result, name) for name in built.plan) < SMALL
    assert max(_share(result, name) for name in built.plan) < 10 * SMALL


def _moved(result: StepResult, name: str, change: Callable[[np.ndarray], np.ndarray]) -> StepResult:
    """The result with another update of one weight; what the optimizer saw stays right."""
    start = result.before[name].astype(np.float64)
    update = change(result.after[name].astype(np.float64) - start)
    return replace(result, after={**result.after, name: (start + update).astype(np.float32)})


@pytest.mark.parametrize(
    "change",
    [lambda u: 0 * u, lambda u: 0.95 * u, lambda u: 1.05 * u, lambda u: -u],
    ids=["left out", "too small", "too large", "uphill"],
)
def test_a_wrong_update_of_any_parameter_is_noticed(
    step: tuple[Built, StepResult], change: Callable[[np.ndarray], np.ndarray]
) -> None:
    built, result = step
    for name in built.plan:
        assert any(name in found for found in problems(built, _moved(result, name, change))), name


def test_a_turned_update_is_noticed(step: tuple[Built, StepResult]) -> None:
    built, result = step
    for name in ("first.weight", "second.weight"):
        assert problems(built, _moved(result, name, np.transpose)), name


def test_a_missing_or_extra_or_renamed_parameter_is_noticed(step: tuple[Built, StepResult]) -> None:
    built, result = step
    for name in built.reference.initial():
        assert problems(built, replace(result, after=_without(result.after, name))), name
        renamed = {**_without(result.after, name), f"{name}_": result.after[name]}
        assert problems(built, replace(result, after=renamed)), name
        assert start_problems(built.reference.initial(), renamed), name
    extra: State = {**result.after, "shift": np.zeros(6, np.float32)}
    assert problems(built, replace(result, after=extra)) == ["shift is no parameter of the author's"]


def _without(tensors: State, name: str) -> State:
    return {key: array for key, array in tensors.items() if key != name}


def test_a_frozen_parameter_that_moves_or_holds_optimizer_state_is_noticed(step: tuple[Built, StepResult]) -> None:
    built, result = step
    moved = {**result.after, "second.bias": np.nextafter(result.after["second.bias"], np.float32(1))}
    assert problems(built, replace(result, after=moved)) == ["frozen second.bias changed"]
    learning = {**result.after, "optimizer.momentum.second.bias": np.zeros(6, np.float32)}
    assert problems(built, replace(result, after=learning)) == ["second.bias learns, and should not"]
    lost = _without(result.after, "optimizer.momentum.scale")
    assert problems(built, replace(result, after=lost)) == ["scale has no optimizer state"]


def test_a_parameter_that_stays_behind_in_the_training_graph_is_noticed(step: tuple[Built, StepResult]) -> None:
    """Each by its own change, however much more others move: here one moves a two-thousandth of another."""
    built, result = step
    assert moved_otherwise(result.before, result.after, result.after, 1) == []
    for name in built.plan:
        for factor in (0.0, 0.95, -1.0):
            wrong = _moved(result, name, partial(np.multiply, factor)).after
            (found,) = moved_otherwise(result.before, result.after, wrong, 1)
            assert found.startswith(f"{name}: ")
    start = {"w": np.ones((8, 8), np.float32), "b": np.zeros(8, np.float32)}
    after = {"w": start["w"] + np.float32(0.1), "b": np.full(8, 1e-4, np.float32)}
    assert np.linalg.norm(after["b"]) < 1e-3 * np.linalg.norm(after["w"] - start["w"])
    assert moved_otherwise(start, after, after, 10) == []
    (found,) = moved_otherwise(start, after, {**after, "b": start["b"]}, 10)
    assert found.startswith("b: ")


def test_another_layout_at_the_start_is_noticed() -> None:
    torch.manual_seed(0)
    wanted = ModuleReference.of(SmallUpdates()).initial()
    assert start_problems(wanted, wanted) == []
    assert start_problems(wanted, {**wanted, "first.weight": wanted["first.weight"].T}) == [
        "first.weight has other values"
    ]
    assert start_problems(wanted, {**wanted, "scale": wanted["scale"].reshape(1)}) == [
        "scale has shape (1,) instead of ()"
    ]


def test_a_plan_means_what_its_rules_say_on_the_authors_names() -> None:
    plan = SparsePlan.parse(
        {
            "name": "mixed",
            "preset": "bias-only",
            "update": [
                {"parameters": ["first.*"], "ratio": 0.5, "kind": "weight"},
                {"parameters": ["second.bias"], "ratio": 0},
            ],
        }
    )
    reference = ModuleReference.of(SmallUpdates())
    assert what_learns(plan, reference) == {
        "first.weight": (slice(None), slice(0, 3)),
        "first.bias": (slice(None),),
    }
    last = SparsePlan.parse("last-layer")
    assert what_learns(last, reference, ("second.weight",)) == {"second.weight": (slice(None), slice(0, 6))}
