"""The reference's own course: its steps in float64, on batches where the model is smooth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tests.compiler.agreement.harness import Batch, Built, Optimizer, State, StepResult, run_step
from tests.compiler.agreement.reference import Forward

KINK_MARGIN = 2e-6
MAX_DRAWS = 40


@dataclass(frozen=True)
class Point:
    """Where the course stands before a step, in float64, and what this step is taken with."""

    t: int
    weights: State
    state: State
    batch: Batch
    loss: float


def course(built: Built, steps: int, weights: Mapping[str, np.ndarray] | None = None) -> Iterator[Point]:
    """So many steps without correction, from the author's parameters unless others are given."""
    optimizer = Optimizer(built)
    here = {name: array.astype(np.float64) for name, array in (weights or built.reference.initial()).items()}
    state = optimizer.fresh(here)
    for t in range(1, steps + 1):
        batch, forward = _smooth(built, here, t)
        loss, gradients = forward.loss_and_gradients()
        yield Point(t, here, state, batch, loss)
        here, state = optimizer.step(here, state, gradients, t)


def run_step_at(built: Built, at: Point) -> StepResult:
    """The binary's step from there."""
    return run_step(built, Optimizer(built), at.weights, at.state, at.t, at.batch)


def smooth_batch(built: Built, weights: State, t: int) -> Batch:
    """A batch that keeps every pre-activation away from its kinks, or the best of many.

    At a ReLU's 0 the gradient jumps: a pre-activation within float32 rounding of it may fall on either side in any
    correct float32 engine, PyTorch's included, and one flipped mask is an error of 1e-4 in some gradient. Such a
    batch tells nothing about correctness.
    """
    return _smooth(built, weights, t)[0]


def _smooth(built: Built, weights: State, t: int) -> tuple[Batch, Forward]:
    best: tuple[Batch, Forward] | None = None
    for attempt in range(MAX_DRAWS):
        batch = built.case.draw(1000 * t + attempt)
        forward = built.reference.watched(weights, *batch)
        if best is None or forward.margin > best[1].margin:
            best = batch, forward
        if forward.margin >= KINK_MARGIN:
            break
    assert best is not None
    return best
