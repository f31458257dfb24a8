"""The work that a campaign asks for, and the right answers to it.

A run's binary is the script of `tests/agents/fake_step.py` at its slow pace: it waits more than it computes, and what
it computes is a fixed sequence of IEEE operations, so losses and weights are known to the last bit. A share of the
compiles is real, and a share of the runs is of a binary that was built: their right answers are those of the same work
undisturbed.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass

import numpy as np

from compiler.cache_folder import cache_folder
from tests.agents import fake_step
from tests.service.bundles import MadeBundle, make_bundle, make_manifest

STAND_IN = b"stand-in "
REAL_PLAN, REAL_TARGET = "bias-only", "x86-64-v3"
REAL_SPEC = """
batch: 64
optimizer: {kind: sgd, learning_rate: 0.01, momentum: 0.9}
"""
REAL_STEPS, REAL_SAMPLES = 6000, 256
RATE = 0.1
FIRST_WEIGHT = 5.0
SAMPLES = 8


def made_of(model: bytes) -> MadeBundle:
    """The stand-in's bundle of these bytes."""
    digest = "sha256:" + hashlib.sha256(model).hexdigest()
    return make_bundle(make_manifest(model=digest), step=b"\x7fELF" + hashlib.sha256(model).digest())


def real_model(seed: int) -> bytes:
    """A small convolutional network; another seed is another model that needs the same kernels."""
    from examples.models import MODELS

    return MODELS["small_cnn"](seed=seed)


def real_bundle(model: bytes) -> str:
    """The digest of its bundle, built here: two builds of the same are the same bytes."""
    from compiler.api import BuildSettings, compile_training, load_target
    from compiler.spec.documents import SparsePlan, TrainingSpec

    settings = BuildSettings(
        plan=SparsePlan.parse(REAL_PLAN),
        spec=TrainingSpec.parse(REAL_SPEC),
        target=load_target(REAL_TARGET),
        cache_dir=cache_folder(),
    )
    return str(compile_training(model, settings).digest)


def real_data() -> bytes:
    """A data set for it."""
    random, stream = np.random.default_rng(1), io.BytesIO()
    x = random.random((REAL_SAMPLES, 1, 8, 8), dtype=np.float32)
    np.savez(stream, x=x, y=random.integers(0, 10, REAL_SAMPLES))
    return stream.getvalue()


def binary() -> bytes:
    """The bundle of the script."""
    return fake_step.bundle("slow")


def data(label: int) -> bytes:
    """A data set whose labels are all `label`; archives of the same arrays are the same bytes."""
    stream = io.BytesIO()
    np.savez(stream, x=np.ones((SAMPLES, 2), np.float32), y=np.full(SAMPLES, label, np.int64))
    return stream.getvalue()


@dataclass(frozen=True)
class Learned:
    """What training leaves."""

    losses: tuple[float, ...]
    weight: float

    @property
    def weights_digest(self) -> str:
        return weights_digest(self.weight)


def learned(label: int, steps: int, *, start: float = FIRST_WEIGHT, rate: float = RATE) -> Learned:
    """The undisturbed result, by the script's own arithmetic."""
    target, weight, losses = float(sum([label] * SAMPLES)) / SAMPLES, start, []
    for _ in range(steps):
        losses.append((weight - target) ** 2)
        weight -= rate * 2 * (weight - target)
    return Learned(tuple(losses), weight)


def weights_digest(weight: float) -> str:
    """Of the script's file of weights."""
    return "sha256:" + hashlib.sha256(repr(weight).encode()).hexdigest()
