"""Parts that row-wise operators share: kernels over the last axis of tensors of one shape."""

from __future__ import annotations

from typing import Literal

from compiler.graph import Attrs, TensorType
from compiler.kernels.access import row_matrix
from compiler.kernels.expressions import Expr
from compiler.kernels.spec import RowSpec
from compiler.ops.record import NotDifferentiable, Types

Stage = tuple[Literal["sum", "max"], Expr]
SECOND = NotDifferentiable("second derivatives are not needed by any optimizer here")


def same_type(inputs: Types, attrs: Attrs) -> Types:
    """The type of the first operand."""
    return (inputs[0],)


def over_rows(inputs: Types, output: TensorType, stages: tuple[Stage, ...], expr: Expr) -> RowSpec:
    """A kernel over all rows of tensors that share one shape."""
    width = output.shape[-1]
    rows = output.size // width
    reads = tuple(row_matrix(tensor, rows, width) for tensor in inputs)
    return RowSpec(rows, width, reads, stages, (row_matrix(output, rows, width),), (expr,))
