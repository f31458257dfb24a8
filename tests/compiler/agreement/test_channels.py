"""Chosen channels learn as PyTorch's autograd says in float64, everything else keeps its bits, and files keep order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.agreement.channel_cases import CASES
from tests.compiler.agreement.harness import Optimizer, build, problems, run_step, smooth_batch
from tests.compiler.agreement.step_binary import native_target


@pytest.mark.parametrize("name", sorted(CASES))
def test_channels_learn_as_in_float64(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    chosen = CASES[name]()
    built = replace(build(chosen.case, native_target(), tmp_path, kernel_cache), plan=chosen.windows)
    optimizer = Optimizer(built)
    weights = {key: array.astype(np.float64) for key, array in built.reference.initial().items()}
    state = optimizer.fresh(weights)
    for t in (1, 2):
        batch = smooth_batch(built, weights, t)
        result = run_step(built, optimizer, weights, state, t, batch)
        assert not problems(built, result)
        _, exact = built.reference.loss_and_gradients(weights, *batch, real=__import__("torch").float64)
        weights, state = optimizer.step(weights, state, exact, t)
