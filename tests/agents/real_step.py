"""A bundle with a real binary: small, and linked with the real runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save

from tests.agents.fake_step import archive, manifest
from tests.compiler import tiny_images
from tests.compiler.step_process import classifier_state
from tests.compiler.tiny_images import BATCH, CLASSES, FEATURES, TURNS

DATA_SAMPLES = 20


def real_bundle(
    folder: Path, *, checkpoints: int | None = 1, slow: bool = False, turns: int = 0, **changes: object
) -> Path:  # fmt: skip
    """A classifier of `tiny_images` as a bundle file; `checkpoints`: as its manifest says it, None: not at all.

    `slow`: its steps take a millisecond, for runs that something shall happen to; `turns`: it repeats so much work.
    """
    linear = "repeated_linear" if turns else "slow_linear" if slow else "linear"
    step = tiny_images.build(tiny_images.classifier(linear=linear), folder / "step", turns=turns or TURNS)
    files = {"bin/step": step.read_bytes(), "weights.safetensors": save(classifier_state())}
    said = {} if checkpoints is None else {"checkpoints": checkpoints}
    about = manifest(files, inputs=[{"name": "x", "dtype": "f32", "shape": [BATCH, FEATURES]}], **said, **changes)
    path = folder / "real.pfb"
    path.write_bytes(archive({**files, "manifest.json": about}))
    return path


def real_data(path: Path, *, seed: int = 1) -> Path:
    """A data set for it."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(DATA_SAMPLES, FEATURES)).astype("f4")
    np.savez(path, x=x, y=random.integers(0, CLASSES, DATA_SAMPLES))
    return path
