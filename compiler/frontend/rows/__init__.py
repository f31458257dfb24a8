"""The import table: every ONNX operator that a graph may use at run time, one row each, by family."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.frontend.call import Rule
from compiler.frontend.rows import (
    activations,
    attention,
    bounds,
    contractions,
    convolution,
    einsum,
    elementwise,
    extremes,
    fourier,
    functions,
    indexing,
    integers,
    movement,
    normalization,
    ordering,
    padding,
    pooling,
    powers,
    quantization,
    random,
    recurrent,
    reductions,
    resizing,
    sampling,
    scaling,
)

ROWS: Mapping[str, Rule] = {
    **elementwise.ROWS,
    **powers.ROWS,
    **bounds.ROWS,
    **integers.ROWS,
    **functions.ROWS,
    **extremes.ROWS,
    **activations.ROWS,
    **movement.ROWS,
    **indexing.ROWS,
    **padding.ROWS,
    **resizing.ROWS,
    **sampling.ROWS,
    **einsum.ROWS,
    **ordering.ROWS,
    **reductions.ROWS,
    **contractions.ROWS,
    **convolution.ROWS,
    **pooling.ROWS,
    **normalization.ROWS,
    **scaling.ROWS,
    **random.ROWS,
    **attention.ROWS,
    **recurrent.ROWS,
    **fourier.ROWS,
    **quantization.ROWS,
}
