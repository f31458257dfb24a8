"""Small models for every import row, each with a run-time input, compared with ONNX Runtime: a file per family."""

from __future__ import annotations

from collections.abc import Sequence

from tests.compiler.frontend.cases import (
    activations,
    attention,
    contractions,
    convolution,
    einsum,
    elementwise,
    fourier,
    functions,
    indexing,
    movement,
    normalization,
    ordering,
    padding,
    pooling,
    quantization,
    random,
    recurrent,
    reductions,
    resizing,
    sampling,
    scaling,
)
from tests.compiler.frontend.cases.case import Case

CASES: Sequence[Case] = (
    *elementwise.cases(),
    *functions.cases(),
    *activations.cases(),
    *movement.cases(),
    *indexing.cases(),
    *padding.cases(),
    *resizing.cases(),
    *sampling.cases(),
    *ordering.cases(),
    *einsum.cases(),
    *reductions.cases(),
    *contractions.cases(),
    *convolution.cases(),
    *pooling.cases(),
    *normalization.cases(),
    *scaling.cases(),
    *random.cases(),
    *attention.cases(),
    *recurrent.cases(),
    *fourier.cases(),
    *quantization.cases(),
)

__all__ = ["CASES", "Case"]
