"""The schedule of a depth-wise convolution: vectors over channels, several output columns in registers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.codegen.choice import DEFAULT, Choice, choose
from compiler.codegen.conv.phases import AxisPhase, axis_phases, several
from compiler.codegen.tile.precision import Precision
from compiler.codegen.tile.tiling import slots_of, tile_can_hold
from compiler.kernels.expressions import Expr
from compiler.kernels.spec import DepthwiseSpec
from compiler.targets import CpuTarget

Taps = tuple[tuple[int, int], ...]
_MOST_COLUMNS = 8
_MOST_ROWS = 2
_ROWS_PER_IMAGE = 4
"""An image has at least so many times the rows of a tile."""
_FEWEST_COLUMNS = 5
"""The fewest columns of a tile of several rows: with 16 registers there are fewer, and weights that are loaded early
spill.
"""
_MOST_COLUMNS_OF_WEIGHTS = 6
_TEMPORARIES = 2
_BESIDE_TAPS = 5
"""Registers of a weight gradient beside the sums of taps."""


@dataclass(frozen=True, slots=True)
class DepthwisePlan:
    """The schedule of one kernel.

    `slots`: ranges of rows, one per thread. `columns`: most output columns (of each phase) in registers at a time, in
    each of `rows` output rows (of each phase).
    `ahead`: whether the next rows are fetched ahead. `all_taps`: whether the sums of all taps of a weight gradient (and
    of d_y) are in registers at a time, rather than those of one kernel row.
    """

    precision: Precision
    slots: int
    columns: int
    rows: int
    ahead: bool
    all_taps: bool

    @property
    def lanes(self) -> int:
        """Channels in one vector register."""
        return self.precision.lanes


def default_plan(spec: DepthwiseSpec, target: CpuTarget, threads: int) -> DepthwisePlan:
    """The schedule from the target's figures alone."""
    taps, precision = spec.kernel[0] * spec.kernel[1], Precision.of(spec.dtype, target)
    # A multiply-add here costs several times one of a matrix product: it is bound by loads and by memory.
    slots = slots_of(8.0 * spec.n * spec.oh * spec.ow * spec.c * taps, threads)
    all_taps = (taps + spec.sums) * precision.sum_size <= target.vector_registers - _BESIDE_TAPS
    ahead = _from_memory(spec, target, precision)
    rows = _rows(spec, target, precision)
    return DepthwisePlan(precision, slots, _columns(spec, target, precision, rows), rows, ahead, all_taps)


def plan_of(spec: DepthwiseSpec, target: CpuTarget, threads: int, choice: Choice | None) -> DepthwisePlan:
    """The schedule that a choice names; what it does not name is as by default."""
    plan, choice = default_plan(spec, target, threads), choice or DEFAULT
    rows = choice.integer("rows", plan.rows)
    columns = plan.columns if rows == plan.rows else _columns(spec, target, plan.precision, rows)
    return replace(plan, rows=rows, columns=choice.integer("columns", columns), ahead=choice.flag("ahead", plan.ahead))


def choices(spec: DepthwiseSpec, target: CpuTarget, threads: int) -> tuple[Choice, ...]:
    """Other numbers of columns and of rows, and rows fetched ahead or not."""
    plan = default_plan(spec, target, threads)
    extent = spec.ow if spec.kind != "input_grad" else -(-spec.w // spec.strides[1])
    sizes = [size for size in (2, 3, 4, 6, 8, 10) if size <= extent and size != plan.columns]
    most = min(_MOST_ROWS, spec.oh) if spec.kind != "weight_grad" else 1
    heights = [rows for rows in range(1, most + 1) if rows != plan.rows]
    wider = (*(choose(columns=size) for size in sizes), *(choose(rows=rows) for rows in heights))
    return (DEFAULT, *wider, choose(ahead=not plan.ahead))


def workspace_bytes(spec: DepthwiseSpec, target: CpuTarget, threads: int, choice: Choice | None = None) -> int:
    """Partial sums of the weight gradient, one set per thread."""
    if spec.kind != "weight_grad":
        return 0
    sums = spec.kernel[0] * spec.kernel[1] + spec.sums
    plan = plan_of(spec, target, threads, choice)
    return plan.precision.sum_bytes * plan.slots * sums * spec.c


def can_hold(spec: DepthwiseSpec, expr: Expr, target: CpuTarget) -> bool:
    """Whether the kernel may also apply `expr` to what it writes today."""
    return tile_can_hold(expr)


def _rows(spec: DepthwiseSpec, target: CpuTarget, precision: Precision) -> int:
    """Output rows in registers at a time: as many as it takes to load least for an output.

    Not of strided ones, whose rows share little, nor of small images: what a tile touches lies far apart there, and
    meets in few sets of the cache.
    """
    if spec.kind == "weight_grad" or spec.strides[0] > 1:
        return 1
    most = min(_MOST_ROWS, axis_phases(spec, 0)[0].count // _ROWS_PER_IMAGE)
    columns = {rows: _columns(spec, target, precision, rows) for rows in range(1, most + 1)}
    wide = [rows for rows in columns if columns[rows] >= _FEWEST_COLUMNS]
    return min(wide, key=lambda rows: _loads(spec, columns[rows], rows), default=1)


def _loads(spec: DepthwiseSpec, columns: int, rows: int) -> float:
    """Vectors that a tile loads, of x and of weights, for each of its outputs."""
    height, width = spec.kernel
    return ((rows + height - 1) * (columns + width - 1) + height * width) / (rows * columns)


def _columns(spec: DepthwiseSpec, target: CpuTarget, precision: Precision, several_rows: int) -> int:
    """Returns as many columns as registers hold beside the weights of one input row."""
    if spec.kind == "weight_grad":
        return _MOST_COLUMNS_OF_WEIGHTS
    rows, columns = several(axis_phases(spec, 0), several_rows), axis_phases(spec, 1)
    weights = max(len(taps) for taps in input_rows(rows).values()) * spec.kernel[1]
    room = target.vector_registers - _TEMPORARIES - weights
    return max(1, min(_MOST_COLUMNS, room // (len(rows) * len(columns) * precision.sum_size)))


def input_rows(rows: tuple[AxisPhase, ...]) -> dict[int, Taps]:
    """Row offset of the input -> (row phase, kernel row) of everything that it is multiplied for."""
    offsets = sorted({offset for phase in rows for _, offset in phase.taps})
    return {
        offset: tuple((r, tap) for r, phase in enumerate(rows) for tap, other in phase.taps if other == offset)
        for offset in offsets
    }


def _from_memory(spec: DepthwiseSpec, target: CpuTarget, precision: Precision) -> bool:
    """Whether the images, in and out, do not fit in the second-level cache together.

    Then the next rows are fetched ahead (up to a third faster on x86-64; a little slower where the cache has it all).
    """
    image_bytes = precision.item_bytes * (spec.h * spec.w + spec.oh * spec.ow) * spec.c
    return spec.n * image_bytes > target.l2_bytes
