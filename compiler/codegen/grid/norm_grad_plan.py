"""The schedule of a norm's gradient on a grid: items along rows for d_x, along columns for the weights' sums."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.grid.split import Split, split_sums
from compiler.element_types import SCRATCH
from compiler.kernels.spec import NormGradSpec
from compiler.targets import GridTarget


@dataclass(frozen=True, slots=True)
class NormGradPlan:
    """The schedule of one kernel.

    `rows`: the sums along each row. `columns`: those of d_weight and d_bias, along columns. `statistics`: elements of
    the workspace for the rows' means and scales (d_weight needs them); the parts of columns' sums lie behind them.
    """

    rows: Split
    columns: Split
    statistics: int


def plan(spec: NormGradSpec, target: GridTarget) -> NormGradPlan:
    """The schedule from the target's figures."""
    rows = split_sums(spec.rows, spec.width, target, columns=False, splits=False)
    columns = split_sums(spec.width, spec.rows, target, columns=True)
    return NormGradPlan(rows, columns, 2 * spec.rows if spec.wanted[1] else 0)


def workspace_bytes(spec: NormGradSpec, target: GridTarget, threads: int) -> int:
    """The rows' statistics, and partial sums if several groups share a column."""
    chosen = plan(spec, target)
    parts = chosen.columns.parts
    partial = parts * sum(spec.wanted[1:]) * spec.width if parts > 1 else 0
    return SCRATCH.item_bytes * (chosen.statistics + partial)
