"""Under the tightest limit on memory frozen layers run strip by strip of their hidden channels, as in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from compiler.api import BuildSettings
from compiler.errors import DoesNotFit
from compiler.pipeline import walk
from compiler.program.program import Program
from compiler.spec.documents import SparsePlan
from compiler.targets import load
from tests.compiler.agreement.cases import classes, images
from tests.compiler.agreement.course import smooth_batch
from tests.compiler.agreement.harness import Case, Optimizer, build, problems, run_step
from tests.compiler.agreement.module_reference import ModuleReference
from tests.kernel_harness.machine import native_target
from tests.models import InvertedResidualNet, TransformerEncoder, export
from tests.sample import sample


def bottlenecks() -> Case:
    """Four inverted residuals, of which the last two learn: biases, and one weight by a half."""
    torch.manual_seed(4)
    module = InvertedResidualNet(8, [(3, 1, 8, 1), (5, 6, 12, 2), (3, 4, 12, 1), (3, 4, 16, 2)], 0, 4).eval()
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    model = export(module, (torch.randn(1, 3, 48, 48),))
    plan = """
        {name: last, update: [
          {parameters: ["blocks.3.expand.*weight"], ratio: 0.5}, {parameters: ["blocks.[23].*bias", "classifier.*"]},
        ]}
    """
    return Case(model, ModuleReference.folded(module), SparsePlan.parse(plan), 1, images(48), classes(4))


def encoder() -> Case:
    """Two layers that are frozen but for the last bias."""
    torch.manual_seed(5)
    module = TransformerEncoder(50, 24, 32, 2, 2, 4).eval()
    names = ("tokens",)
    model = export(module, (torch.randint(0, 50, (2, 24)),), input_names=names)

    def feeds(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
        return {"tokens": rng.integers(0, 50, (batch, 24))}

    plan = SparsePlan.parse('{name: last, update: [{parameters: ["layers.1.down.bias", "norm.*", "classifier.*"]}]}')
    return Case(model, ModuleReference.of(module, names), plan, 2, feeds, classes(4))


def programs_of(case: Case) -> tuple[Program, ...]:
    """As they run. Raises: DoesNotFit."""
    settings = BuildSettings(case.plan, case.spec, load(native_target()))
    step = next(stage.product for stage in walk(case.model, settings) if stage.name == "place")
    assert isinstance(step, tuple)
    return step


def in_the_least(case: Case) -> Case:
    """The case with the lowest limit that any way to run it meets."""
    with pytest.raises(DoesNotFit) as refused:
        programs_of(replace(case, memory_limit_bytes=1))
    return replace(case, memory_limit_bytes=refused.value.needed_bytes)


@pytest.mark.parametrize("make", sample([bottlenecks, encoder], {"encoder"}, lambda make: make.__name__))
def test_split_layers_train_as_in_float64(make: Callable[[], Case], tmp_path: Path, kernel_cache: Path) -> None:
    whole = make()
    case = in_the_least(whole)
    assert not any(call.strips > 1 for program in programs_of(whole) for call in program.calls)
    assert all(any(call.strips > 1 for call in program.calls) for program in programs_of(case))
    built = build(case, native_target(), tmp_path, kernel_cache)
    assert built.memory["peak_bytes"] == case.memory_limit_bytes
    optimizer = Optimizer(built)
    weights = {key: array.astype(np.float64) for key, array in built.reference.initial().items()}
    state = optimizer.fresh(weights)
    for t in (1, 2):
        step = run_step(built, optimizer, weights, state, t, smooth_batch(built, weights, t))
        assert not problems(built, step)
