"""Endurance: `make soak`. Many steps on real data, memory and results steady."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from examples.models import MODELS
from tests.compiler.agreement.step_binary import StepBinary, native_target

pytestmark = pytest.mark.soak
STEPS = 50_000


def test_memory_stays_and_the_loss_falls(tmp_path: Path, kernel_cache: Path) -> None:
    digits = load_digits()
    spec = TrainingSpec.parse("{batch: 32, threads: 2, optimizer: {kind: sgd, learning_rate: 0.02, momentum: 0.9}}")
    bundle = compile_training(
        MODELS["small_cnn"](),
        BuildSettings(
            plan=SparsePlan.of_preset("full"), spec=spec, target=load(native_target()), cache_dir=kernel_cache
        ),
    )
    binary = StepBinary.unpack(bundle, tmp_path)
    images = (digits.images[:, None] / 16).astype(np.float32)
    data = binary.write_data({"input": images}, digits.target.astype(np.int64))
    short = binary.run("train", "--weights", binary.weights, "--steps", 100, *data)
    long = binary.run("train", "--weights", binary.weights, "--steps", STEPS, *data)
    losses = [event["loss"] for event in long if event["event"] == "step"]
    assert len(losses) == STEPS
    assert np.isfinite(losses).all()
    assert np.mean(losses[-100:]) < 0.01 * np.mean(losses[:10])
    peaks = [events[-1]["peak_rss_bytes"] for events in (short, long)]
    assert peaks[1] <= peaks[0] + 256 * 1024
