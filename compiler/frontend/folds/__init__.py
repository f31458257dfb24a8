"""Evaluates ONNX operators on tensors known at compile time, by family: shape arithmetic, masks, position tables.

Operators that can make much out of little (Range, Expand, Tile ...) check the size of their result first.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.frontend.folds import arithmetic, indexing, movement, reductions
from compiler.frontend.folds.sizes import Fold
from compiler.frontend.folds.types import cast_target, shape_vector

FOLDS: Mapping[str, Fold] = {
    **arithmetic.FOLDS,
    **movement.FOLDS,
    **indexing.FOLDS,
    **reductions.FOLDS,
}

__all__ = ["FOLDS", "cast_target", "shape_vector"]
