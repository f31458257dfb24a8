"""MobileNetV2 1.0 at 224 px against PyTorch in float64: `make test-224`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples.models import MODELS
from tests.compiler.agreement.cases import MOBILENET_SPARSE, classes, images, ours, plan
from tests.compiler.agreement.course import smooth_batch
from tests.compiler.agreement.harness import Optimizer, build, from_checkpoint, problems, run_step
from tests.compiler.agreement.step_binary import native_target

pytestmark = pytest.mark.resolution_224
FULL_SIZE_STEPS = 3


@pytest.mark.parametrize("text", ["full", MOBILENET_SPARSE, "bias-only"], ids=["full", "sparse", "bias-only"])
def test_mobilenet_at_full_size(text: str, tmp_path: Path, kernel_cache: Path) -> None:
    case = ours(MODELS["mobilenet_v2"](), plan(text), 2, images(224), classes(1000))
    built = build(case, native_target(), tmp_path, kernel_cache)
    optimizer = Optimizer(built)
    weights = {name: array.astype(np.float64) for name, array in built.reference.initial().items()}
    state = optimizer.fresh(weights)
    for t in range(1, FULL_SIZE_STEPS + 1):
        batch = smooth_batch(built, weights, t)
        result = run_step(built, optimizer, weights, state, t, batch)
        assert not problems(built, result)
        after, after_state = from_checkpoint(built, result.after)
        weights = {name: array.astype(np.float64) for name, array in after.items()}
        state = {key: array.astype(np.float64) for key, array in after_state.items()}
