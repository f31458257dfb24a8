"""Depth-wise convolutions: vectors over channels, several output columns in registers. The TIR is in
`depthwise_rows` (forward, input gradient) and `depthwise_weights` (weight gradient)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.codegen.choice import Choice
from compiler.codegen.depthwise.depthwise_plan import choices, plan_of
from compiler.codegen.tile.tiling import tile_can_hold
from compiler.kernels.expressions import Expr
from compiler.kernels.spec import DepthwiseSpec
from compiler.targets import Target

if TYPE_CHECKING:
    from compiler.codegen.tir.tir import PrimFunc


def workspace_bytes(spec: DepthwiseSpec, target: Target, threads: int, choice: Choice | None = None) -> int:
    """Partial sums of the weight gradient, one set per thread."""
    if spec.kind != "weight_grad":
        return 0
    sums = spec.kernel[0] * spec.kernel[1] + spec.sums
    return 4 * plan_of(spec, target, threads, choice).slots * sums * spec.c


def can_hold(spec: DepthwiseSpec, expr: Expr, target: Target) -> bool:
    """Whether the kernel may also apply `expr` to what it writes today."""
    return tile_can_hold(expr)


def emit(spec: DepthwiseSpec, target: Target, threads: int, choice: Choice | None = None) -> PrimFunc:
    """TIR of a depth-wise convolution."""
    from compiler.codegen.depthwise.depthwise_rows import DepthwiseRows
    from compiler.codegen.depthwise.depthwise_weights import DepthwiseWeights
    from compiler.codegen.tir import tir

    operands = tir.declare(spec, workspace_bytes(spec, target, threads, choice))
    body = tir.Block()
    plan = plan_of(spec, target, threads, choice)
    if spec.kind == "weight_grad":
        DepthwiseWeights(spec, operands, target, plan).emit(body)
    else:
        DepthwiseRows(spec, operands, plan).emit(body)
    return tir.finish(spec, operands, body)


__all__ = ["choices", "emit", "workspace_bytes"]
