"""Whole training steps on a real GPU: they do what PyTorch's autograd does in float64, as those of CPUs do.

Small nets: one step, gradient by gradient, with the tolerances of CPUs. MobileNetV2, ResNet-18, an encoder, a small
LLaMA and BERT-base at full size: three steps in every precision, as carried steps are checked.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu.__main__ import TARGET
from benchmarks.gpu.build import PLANS, Asked, build
from benchmarks.gpu.carried import Carried
from benchmarks.gpu.check import check_all
from benchmarks.gpu.models import MEASURED
from benchmarks.gpu.precisions import PRECISIONS
from benchmarks.gpu.ready import Workshop
from tests.compiler.agreement.cases import CASES
from tests.compiler.agreement.course import smooth_batch
from tests.compiler.agreement.harness import Optimizer, problems, run_step
from tests.compiler.agreement.harness import build as build_case

NETS = (
    "mobilenet-full",
    "mobilenet-sparse",
    "mobilenet-ratio",
    "resnet18-full",
    "resnet18-sparse",
    "encoder-full",
    "encoder-full-adamw",
    "encoder-sparse",
)


@pytest.mark.parametrize("name", NETS)
def test_a_net_steps_as_in_float64(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    built = build_case(CASES[name](), TARGET, tmp_path, kernel_cache)
    optimizer = Optimizer(built)
    weights = {key: array.astype(np.float64) for key, array in built.reference.initial().items()}
    result = run_step(built, optimizer, weights, optimizer.fresh(weights), 1, smooth_batch(built, weights, 1))
    assert not problems(built, result)


@pytest.mark.parametrize("name", MEASURED)
def test_a_model_of_full_size_learns_as_in_float64(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    folder, work = tmp_path / "carried", tmp_path / "work"
    work.mkdir()
    built = build(folder, Asked(TARGET, (name,), (1,), PLANS, tuple(PRECISIONS), kernel_cache))
    assert not built.refused
    assert len(built.steps) == len(PLANS) * len(PRECISIONS)
    carried = Carried.load(folder)
    assert {
        one.step.name: one.problems for one in check_all(Workshop(carried, work), carried.steps) if one.problems
    } == {}
