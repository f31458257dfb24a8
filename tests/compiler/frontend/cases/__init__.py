"""Small models for every import row, each with a run-time input, compared with ONNX Runtime: a file per family."""

from __future__ import annotations

from collections.abc import Sequence

from tests.compiler.frontend.cases import (
    activations,
    attention,
    contractions,
    elementwise,
    movement,
    normalization,
    pooling,
    random,
    reductions,
    scaling,
)
from tests.compiler.frontend.cases.case import Case

CASES: Sequence[Case] = (
    *elementwise.cases(),
    *activations.cases(),
    *movement.cases(),
    *reductions.cases(),
    *contractions.cases(),
    *pooling.cases(),
    *normalization.cases(),
    *scaling.cases(),
    *random.cases(),
    *attention.cases(),
)

__all__ = ["CASES", "Case"]
