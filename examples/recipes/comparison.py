"""Trains each family by a recipe; its framework then predicts what ONNX Runtime does with the trained file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime

BATCH, SAMPLES, CLASSES, ROWS = 8, 32, 5, 20
TOLERANCE = 1e-4
SPEC = {"batch": BATCH, "optimizer": {"kind": "sgd", "learning_rate": 0.05}}


@dataclass(frozen=True)
class Family:
    """A family of models, and how to make one of it."""

    name: str
    make: Callable[[], Any]


def shown(
    framework: str,
    families: Sequence[Family],
    inputs_of: Callable[[Any], tuple[tuple[int, ...], str]],
    trained: Callable[..., tuple[Any, np.ndarray]],
) -> None:
    """Train all; exits with 1 if one of them is wrong."""
    wrong = [family.name for family in families if not _is_right(framework, family, inputs_of, trained)]
    if wrong:
        sys.exit(f"{framework}: wrong: {', '.join(wrong)}")


def _is_right(framework: str, family: Family, inputs_of: Callable[..., Any], trained: Callable[..., Any]) -> bool:
    model = family.make()
    shape, dtype = inputs_of(model)
    rng = np.random.default_rng(0)
    x = rng.random((SAMPLES, *shape), np.float32) if dtype == "float32" else rng.integers(0, ROWS, (SAMPLES, *shape))
    x, y = x.astype(dtype), rng.integers(0, CLASSES, SAMPLES)
    tuned, own = trained(model, x, y, SPEC)
    session = onnxruntime.InferenceSession(tuned.onnx, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    batches = [session.run(None, {name: x[at : at + BATCH]})[0] for at in range(0, SAMPLES, BATCH)]
    error = float(np.abs(np.concatenate(batches) - own).max() / np.abs(own).max())
    right = error <= TOLERANCE and len(tuned.changed) > 0
    print(
        f"{framework}, {family.name}: {len(tuned.changed)} tensors trained, loss {tuned.losses[0]:.4f} to "
        f"{tuned.losses[-1]:.4f}, largest difference to ONNX Runtime {error:.1e}{'' if right else ' WRONG'}",
        flush=True,
    )
    return right
