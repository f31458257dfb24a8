"""The import table: every ONNX operator that a graph may use at run time, one row each, by family."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.frontend.call import Rule
from compiler.frontend.rows import (
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

ROWS: Mapping[str, Rule] = {
    **elementwise.ROWS,
    **activations.ROWS,
    **movement.ROWS,
    **reductions.ROWS,
    **contractions.ROWS,
    **pooling.ROWS,
    **normalization.ROWS,
    **scaling.ROWS,
    **random.ROWS,
    **attention.ROWS,
}
