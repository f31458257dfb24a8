"""A bundle with a real binary: small, and linked with the real runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save

from tests.agents.fake_step import archive, manifest
from tests.compiler import tiny_images
from tests.compiler.step_process import classifier_state
from tests.compiler.tiny_images import BATCH, CLASSES, FEATURES, SPIN_US, TURNS

DATA_SAMPLES = 20


def real_bundle(
    folder: Path,
    *,
    checkpoints: int | None = 1,
    slow: bool = False,
    turns: int = 0,
    spin_us: int = SPIN_US,
    spare_elements: int = 2,
    leave: Path | None = None,
    **changes: object,
) -> Path:
    """A classifier of `tiny_images` as a bundle file; `checkpoints`: as its manifest says it, None: not at all.

    `slow`: its steps take a millisecond, or `spin_us`; `leave`: so they do, and the file has the number of steps after
    which each process waits; `turns`: it repeats so much work; `spare_elements`: of a constant that makes its weights
    larger.
    """
    linear = "repeated_linear" if turns else "slow_linear" if slow or leave else "linear"
    step = tiny_images.build(
        tiny_images.classifier(linear=linear, spare_elements=spare_elements),
        folder / "step",
        turns=turns or TURNS,
        spin_us=spin_us,
        leave=leave,
    )
    state = classifier_state() | {"constant.spare": np.resize(np.asarray([1.5, -2.5], "f4"), spare_elements)}
    files = {"bin/step": step.read_bytes(), "weights.safetensors": save(state)}
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
