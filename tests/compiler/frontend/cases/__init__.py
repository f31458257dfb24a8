"""Small models for every import row, each with a run-time input, compared with ONNX Runtime: a file per family."""

from __future__ import annotations

from collections.abc import Sequence

from tests.compiler.frontend.cases import (
    activations,
    attention,
    contractions,
    elementwise,
    functions,
    movement,
    normalization,
    pooling,
    reductions,
)
from tests.compiler.frontend.cases.case import Case

CASES: Sequence[Case] = (
    *elementwise.cases(),
    *functions.cases(),
    *activations.cases(),
    *movement.cases(),
    *reductions.cases(),
    *contractions.cases(),
    *pooling.cases(),
    *normalization.cases(),
    *attention.cases(),
)

__all__ = ["CASES", "Case"]
