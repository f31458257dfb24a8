"""The schedule of a depth-wise convolution on a grid: items side by side along channels, several columns in each."""

from __future__ import annotations

from compiler.codegen.conv.phases import AxisPhase, axis_phases, several
from compiler.codegen.grid.split import ENOUGH_ITEMS, LEAST_TERMS, Split, split_sums
from compiler.codegen.tile.tiling import tile_can_hold
from compiler.element_types import SCRATCH
from compiler.kernels.expressions import Expr
from compiler.kernels.spec import DepthwiseSpec
from compiler.targets import GridTarget

_MOST_COLUMNS = 4
"""Outputs of an item."""


def columns_of(spec: DepthwiseSpec) -> tuple[AxisPhase, ...]:
    """The output columns of an item (forward, input gradient), each a phase of the width.

    Those of all phases at a place, and of several places where enough items are left to keep a device busy: what
    neighbouring columns read is loaded once.
    """
    phases = axis_phases(spec, 1)
    rows = max(phase.count for phase in axis_phases(spec, 0))
    places = max(1, _MOST_COLUMNS // len(phases))
    while places > 1 and spec.n * rows * -(-phases[0].count // places) * spec.c < ENOUGH_ITEMS:
        places //= 2
    return tuple(phase for phase in several(phases, places) if phase.count)


def rows_of_weights(spec: DepthwiseSpec) -> int:
    """Rows of the kernel, each of which is formed by groups of its own, and one for the sums of d_y."""
    return spec.kernel[0] + spec.sums


def split_of(spec: DepthwiseSpec, target: GridTarget) -> Split:
    """Splits the sums of a weight gradient's kernel row: results are channels, terms rows of d_y."""
    least = -(-LEAST_TERMS // spec.ow)
    alike = rows_of_weights(spec)
    return split_sums(spec.c, spec.n * spec.oh, target, columns=True, alike=alike, least_terms=least)


def sums_of_weights(spec: DepthwiseSpec) -> int:
    """Results of a weight gradient: a sum for each weight, then those of d_y."""
    return (spec.kernel[0] * spec.kernel[1] + spec.sums) * spec.c


def workspace_bytes(spec: DepthwiseSpec, target: GridTarget, threads: int) -> int:
    """Partial sums of a weight gradient, if several groups share a channel."""
    if spec.kind != "weight_grad":
        return 0
    parts = split_of(spec, target).parts
    return SCRATCH.item_bytes * parts * sums_of_weights(spec) if parts > 1 else 0


def can_hold(spec: DepthwiseSpec, expr: Expr, target: GridTarget) -> bool:
    """Whether the kernel, which repeats its epilogue for each column, may also apply `expr`."""
    return tile_can_hold(expr)
