"""The canary model in NumPy, and its data: what a device that works must find.

The model (`model.onnx`) is logits = x W + b; the step is plain SGD on the mean cross-entropy. All samples are in each
batch, so their order changes nothing but rounding.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from service.devices.canary_verdict import LEARNING_RATE, SAMPLES

Floats = NDArray[np.float64]
FEATURES, CLASSES, STEPS = 4, 3, 6
TOLERANCE = 1e-3
"""Relative and absolute: float32 on any board is nearer by orders of magnitude."""


def weights() -> tuple[Floats, Floats]:
    """Returns W and b as the file has them: eighths, which float32 represents exactly."""
    w = np.array([[(3 * i + 5 * j) % 7 - 3 for j in range(CLASSES)] for i in range(FEATURES)]) / 8.0
    return w, np.array([0.125, -0.25, 0.0])


def data(seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Returns the samples and labels of the canary run with this seed."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((SAMPLES, FEATURES)).astype(np.float32)
    return x, random.integers(0, CLASSES, SAMPLES).astype(np.int64)


def archive(seed: int) -> bytes:
    """Returns the same data as an npz file."""
    x, y = data(seed)
    stream = io.BytesIO()
    np.savez(stream, x=x, y=y)
    return stream.getvalue()


def losses(seed: int) -> list[float]:
    """Returns the loss of each step, in float64."""
    (w, b), (x, y) = weights(), data(seed)
    rows, step_losses = np.arange(SAMPLES), []
    for _ in range(STEPS):
        logits = x.astype(np.float64) @ w + b
        shifted = logits - logits.max(axis=1, keepdims=True)
        probabilities = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
        step_losses.append(float(-np.log(probabilities[rows, y]).mean()))
        probabilities[rows, y] -= 1.0
        d_logits = probabilities / SAMPLES
        w, b = w - LEARNING_RATE * (x.T @ d_logits), b - LEARNING_RATE * d_logits.sum(axis=0)
    return step_losses


def difference(seed: int, reported: Sequence[float | None]) -> str:
    """Returns what is wrong with the losses that a device told; empty if they are right."""
    expected = losses(seed)
    if len(reported) != len(expected):
        return f"{len(reported)} losses for {len(expected)} steps"
    for step, (right, loss) in enumerate(zip(expected, reported, strict=True), 1):
        if loss is None or not abs(loss - right) <= TOLERANCE * (1.0 + abs(right)):
            return f"the loss of step {step} is {loss}, it must be {right:.6g}"
    return ""
