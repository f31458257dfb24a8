"""What `full` trains is exactly what the module's author meant, whoever exported it; what cannot learn is refused.

Each case is exported, compiled for this machine and run; every parameter's update is compared with the author's own
module in PyTorch float64.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from compiler.errors import PlanError
from compiler.spec.documents import SparsePlan
from compiler.step.plan import decide_plan, resolve_plan
from tests.compiler.frontend.authored import CASES, Authored
from tests.compiler.frontend.onnx_graphs import imported
from tests.compiler.frontend.training import (
    BATCH,
    STEPS,
    Trained,
    draw_labels,
    parameter_groups,
    reference_updates,
    train,
    under_own_names,
    update_problems,
)
from tests.compiler.named import stored
from tests.models import Exporter, export
from tests.sample import sample
from tests.sharing import sharing

EXPORTS: dict[str, tuple[Exporter, int]] = {
    "dynamo-18": ("dynamo", 18),
    "dynamo-20": ("dynamo", 20),  # PyTorch's default opset
    "unoptimized": ("dynamo-unoptimized", 18),
    "torchscript": ("torchscript", 18),
}
EVERY_WAY = ("group-norm", "fresh-group-norm", "unrolled-rnn", "fresh-encoder")
"""Trained from each export. Of the others, every import is compared with the module, and one of dynamo's is trained."""
FULL = SparsePlan.parse("full")
PAIRS = [(name, how) for name in CASES for how in EXPORTS]


def _folds(name: str, how: str) -> bool:
    return bool(CASES[name].folded) and how.startswith("dynamo")


def _tells(name: str, how: str) -> bool:
    """True if the file tells, one way or the other, what each parameter is."""
    return how != "torchscript" or CASES[name].torchscript


FOLDED = [pair for pair in PAIRS if _folds(*pair)]
TRAINABLE = [pair for pair in PAIRS if not _folds(*pair) and _tells(*pair)]
RUN = [
    (name, how)
    for name, how in TRAINABLE
    if how in ("dynamo-18", "torchscript") or name in EVERY_WAY or (how == "unoptimized" and CASES[name].folded)
]
LIKE_ANOTHER = ("one-element", "one-by-one-scale", "equal-literal", "temperature", "unsaved-buffer", "fresh-pair")
ALSO_TORCHSCRIPT = (
    "standardised-input",
    "fixed-projection",
    "sinusoidal-positions",
    "magnitudes",
    "two-scales",
    "tied-embedding",
    "unrolled-rnn",
    "one-by-one-by-one",
    "fresh-temperature",
)
TRAINED = [
    f"{name}-{how}"
    for name, how in RUN
    if (how == "dynamo-18" and name not in (*LIKE_ANOTHER, *ALSO_TORCHSCRIPT))
    or (how == "torchscript" and name in ALSO_TORCHSCRIPT)
    or (how == "dynamo-20" and name == "group-norm")
][::2]
"""Trained in `make test`: every other module once, by the exporter that tells least of it."""
UNTOLD = [pair for pair in PAIRS if not _tells(*pair)]


@cache
def _exported(name: str, how: str) -> bytes:
    """Exports take half a second; several tests read the same one."""
    case, (exporter, opset) = CASES[name], EXPORTS[how]
    return export(case.module(), case.batches(BATCH), exporter=exporter, opset=opset)


def _frozen(names: Collection[str]) -> SparsePlan:
    """Everything but `names`."""
    rules = [{"parameters": sorted(names), "ratio": 0.0}] if names else []
    return SparsePlan.parse({"name": "all-but-some", "preset": "full", "update": rules})


def _train(name: str, how: str, plan: SparsePlan, folder: Path, kernels: Path, **spec: object) -> Trained:
    case = CASES[name]
    inputs = case.batches(BATCH * STEPS)
    labels = draw_labels(case.module(), inputs)
    return train(_exported(name, how), plan, {"input": inputs[0].numpy()}, labels.numpy(), folder, kernels, **spec)


def _problems(case: Authored, found: Trained, *, frozen: Collection[str] = ()) -> list[str]:
    """What a run did not do as the author's module does, under the module's first names."""
    module, inputs = case.module(), case.batches(BATCH * STEPS)
    exact = reference_updates(module, inputs, draw_labels(module, inputs), frozen=frozen)
    own = under_own_names(module, found.after)
    start = {own[name]: array for name, array in found.before.items()}
    updates = {own[name]: update for name, update in found.updates.items()}
    assert len(updates) == len(found.updates), f"a shared parameter is there twice: {sorted(own)}"
    return update_problems(start, updates, exact)


@pytest.mark.parametrize(("name", "how"), sample(sharing("authored", TRAINABLE), TRAINED))
def test_parameters_have_the_names_and_layouts_of_the_module(name: str, how: str) -> None:
    case = CASES[name]
    module = case.module()
    graph = imported(_exported(name, how))
    state = dict(module.named_parameters(remove_duplicate=False))
    open_ends = case.unlabelled if how == "torchscript" else frozenset()
    own = under_own_names(module, graph.named_parameters())
    assert sorted(own.values()) == sorted({*parameter_groups(module), *open_ends})
    for found in graph.named_parameters().keys() - open_ends:
        expected = state[found].detach().numpy()
        assert graph.named_parameters()[found].file_shape == expected.shape, found
        rounding = 1e-6 if found in case.recovered and how.startswith("dynamo") else 0.0
        np.testing.assert_allclose(stored(graph)[found], expected, rtol=rounding, atol=rounding, err_msg=found)
        assert not rounding or any(
            one.code == "model.recovered_parameters" and found in one.where for one in graph.warnings
        )


@pytest.mark.parametrize(("name", "how"), sample(sharing("authored", RUN), TRAINED))
def test_full_trains_what_the_author_meant(name: str, how: str, tmp_path: Path, kernel_cache: Path) -> None:
    """All of the module's parameters and nothing else; a buffer that TorchScript does not tell is frozen by a rule."""
    case = CASES[name]
    open_ends = case.unlabelled if how == "torchscript" else frozenset()
    found = _train(name, how, _frozen(open_ends), tmp_path, kernel_cache)
    assert {*under_own_names(case.module(), found.after).values()} == {*parameter_groups(case.module()), *open_ends}
    assert not found.constants_changed
    assert not _problems(case, found)
    for unlabelled in open_ends:
        assert found.warns_of(unlabelled), f"nobody is told that {unlabelled} may be a buffer"


@pytest.mark.parametrize(
    ("name", "how"),
    sample(sharing("authored", FOLDED), [f"{name}-{how}" for name, how in FOLDED if how == "dynamo-18"]),
)
def test_what_the_exporter_folded_is_refused(name: str, how: str) -> None:
    """By name and by a pattern: the message names it and says how to export. `full` leaves it out and says so."""
    graph = imported(_exported(name, how))
    if name != "magnitudes":
        (left_out,) = [
            one for one in decide_plan(graph, SparsePlan.of_preset("full")).warnings if one.where == "plan.preset"
        ]
        assert any(parameter in left_out.message for parameter in CASES[name].folded)
        assert "optimize=False" in left_out.hint
    for folded in CASES[name].folded:
        for plan in ({"name": "named", "update": [{"parameters": [folded]}]}, _pattern(folded)):
            with pytest.raises(PlanError) as refusal:
                resolve_plan(graph, SparsePlan.parse(plan))
            text = f"{refusal.value} {refusal.value.hint}"
            assert any(parameter in text for parameter in CASES[name].folded)
            assert "optimize=False" in text
            assert "exporter" in text


def _pattern(name: str) -> dict[str, object]:
    return {"name": "pattern", "update": [{"parameters": [f"{name[:-1]}?"]}]}


@pytest.mark.parametrize(("name", "how"), [(n, how) for n, how in FOLDED if n != "magnitudes" and how == "dynamo-18"])
def test_what_the_exporter_folded_may_stay_frozen(name: str, how: str, tmp_path: Path, kernel_cache: Path) -> None:
    """The rest trains as in the module with it frozen, and a warning names it. (`magnitudes` has nothing else.)"""
    case = CASES[name]
    found = _train(name, how, _frozen(case.folded), tmp_path, kernel_cache)
    assert found.after.keys() - case.folded == parameter_groups(case.module()).keys() - case.folded
    assert not found.constants_changed
    assert not _problems(case, found, frozen=case.folded)
    for folded in case.folded:
        assert found.warns_of(folded), f"nobody is told that {folded} does not learn"


@pytest.mark.parametrize(("name", "how"), sharing("authored", UNTOLD))
def test_what_a_torchscript_file_does_not_tell_is_said(name: str, how: str) -> None:
    """No parameter under another name, no buffer, and no merged parameter learns without a warning that names it."""
    module = CASES[name].module()
    graph = imported(_exported(name, how))
    said = " ".join(f"{warning.where} {warning.message}" for warning in graph.warnings)
    unlike = under_own_names(module, graph.named_parameters()).values() - parameter_groups(module).keys()
    lost = {*parameter_groups(module)} - {*under_own_names(module, graph.named_parameters()).values()}
    assert unlike or lost or CASES[name].unlabelled
    for found in unlike or lost:
        assert found in said, f"nobody is told of {found}"


def test_a_spec_takes_apart_what_torchscript_merged(tmp_path: Path, kernel_cache: Path) -> None:
    """An output layer that is equal to the embedding learns apart from it; the file alone cannot tell."""
    case = CASES["equal-embedding"]
    found = _train("equal-embedding", "torchscript", FULL, tmp_path, kernel_cache, untied=["embed.weight"])
    inputs = case.batches(BATCH * STEPS)
    exact = reference_updates(case.module(), inputs, draw_labels(case.module(), inputs))
    assert found.after.keys() == exact.keys()
    assert not update_problems(found.before, found.updates, exact)


def test_a_spec_ties_what_a_file_holds_twice(tmp_path: Path, kernel_cache: Path) -> None:
    """Two equal projections, tied by the spec, learn as the module whose author shares them."""
    case = CASES["twin-projections"]
    tied = [["first.weight", "second.weight"], ["first.bias", "second.bias"]]
    found = _train("twin-projections", "torchscript", FULL, tmp_path, kernel_cache, tied=tied)
    module = case.module()
    module.second = module.first
    inputs = case.batches(BATCH * STEPS)
    exact = reference_updates(module, inputs, draw_labels(module, inputs))
    assert found.after.keys() == exact.keys()
    assert not update_problems(found.before, found.updates, exact)


@pytest.mark.parametrize("wrong", ["left out", "a tenth less", "its neighbour's", "too much"])
def test_the_comparison_sees_an_update_ten_thousand_times_smaller_than_its_weight(wrong: str) -> None:
    torch.manual_seed(5)
    start = {"big": 1e4 * torch.randn(16, 8).double().numpy(), "small": torch.randn(16, 8).double().numpy()}
    start = {name: array.astype(np.float32) for name, array in start.items()}
    exact = {name: np.random.default_rng(3).standard_normal((16, 8)) for name in start}
    stored = {name: (start[name] + exact[name]).astype(np.float32).astype(np.float64) - start[name] for name in start}
    assert not update_problems(start, stored, exact)
    change = {"left out": 0.0, "a tenth less": 0.9, "its neighbour's": 1.0, "too much": 1.1}[wrong]
    moved = np.roll(exact["big"], 1, axis=0) if wrong == "its neighbour's" else change * exact["big"]
    tampered = (start["big"] + moved).astype(np.float32).astype(np.float64) - start["big"]
    assert update_problems(start, {**stored, "big": tampered}, exact)
