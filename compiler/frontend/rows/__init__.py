"""The import table: every ONNX operator that a graph may use at run time, one row each, by family."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.frontend.call import Rule
from compiler.frontend.rows import (
    activations,
    attention,
    bounds,
    contractions,
    elementwise,
    extremes,
    functions,
    integers,
    movement,
    normalization,
    pooling,
    powers,
    reductions,
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
    **reductions.ROWS,
    **contractions.ROWS,
    **pooling.ROWS,
    **normalization.ROWS,
    **attention.ROWS,
}
