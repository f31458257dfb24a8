"""How a depth-wise convolution is scheduled: vectors over channels, several output columns in registers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.codegen.choice import DEFAULT, Choice, choose
from compiler.codegen.conv.phases import axis_phases
from compiler.codegen.tile.precision import Precision
from compiler.codegen.tile.tiling import slots_of, tile_can_hold
from compiler.kernels.expressions import Expr
from compiler.kernels.spec import DepthwiseSpec
from compiler.targets import Target

_MOST_COLUMNS = 8
_MOST_COLUMNS_OF_WEIGHTS = 6
_TEMPORARIES = 2
_BESIDE_TAPS = 5
"""Registers of a weight gradient beside the sums of taps."""


@dataclass(frozen=True, slots=True)
class DepthwisePlan:
    """The schedule of one kernel.

    `slots`: ranges of rows, one per thread. `columns`: most output columns (of each phase) in registers at a time.
    `ahead`: whether the next rows are fetched ahead. `all_taps`: whether the sums of all taps of a weight gradient (and
    of d_y) are in registers at a time, rather than those of one kernel row.
    """

    precision: Precision
    slots: int
    columns: int
    ahead: bool
    all_taps: bool

    @property
    def lanes(self) -> int:
        """Channels in one vector register."""
        return self.precision.lanes


def default_plan(spec: DepthwiseSpec, target: Target, threads: int) -> DepthwisePlan:
    """The schedule from the target's figures alone."""
    taps, precision = spec.kernel[0] * spec.kernel[1], Precision.of(spec.dtype, target)
    # A multiply-add here costs several times one of a matrix product: it is bound by loads and by memory.
    slots = slots_of(8.0 * spec.n * spec.oh * spec.ow * spec.c * taps, threads)
    all_taps = (taps + spec.sums) * precision.sum_size <= target.vector_registers - _BESIDE_TAPS
    ahead = _from_memory(spec, target, precision)
    return DepthwisePlan(precision, slots, _columns(spec, target, precision), ahead, all_taps)


def plan_of(spec: DepthwiseSpec, target: Target, threads: int, choice: Choice | None) -> DepthwisePlan:
    """The schedule that a choice names; what it does not name is as by default."""
    plan, choice = default_plan(spec, target, threads), choice or DEFAULT
    return replace(plan, columns=choice.integer("columns", plan.columns), ahead=choice.flag("ahead", plan.ahead))


def choices(spec: DepthwiseSpec, target: Target, threads: int) -> tuple[Choice, ...]:
    """Other numbers of columns, and rows fetched ahead or not."""
    plan = default_plan(spec, target, threads)
    extent = spec.ow if spec.kind != "input_grad" else -(-spec.w // spec.strides[1])
    sizes = [size for size in (2, 3, 4, 6, 8, 10) if size <= extent and size != plan.columns]
    return (DEFAULT, *(choose(columns=size) for size in sizes), choose(ahead=not plan.ahead))


def workspace_bytes(spec: DepthwiseSpec, target: Target, threads: int, choice: Choice | None = None) -> int:
    """Partial sums of the weight gradient, one set per thread."""
    if spec.kind != "weight_grad":
        return 0
    sums = spec.kernel[0] * spec.kernel[1] + spec.sums
    plan = plan_of(spec, target, threads, choice)
    return plan.precision.sum_bytes * plan.slots * sums * spec.c


def can_hold(spec: DepthwiseSpec, expr: Expr, target: Target) -> bool:
    """Whether the kernel may also apply `expr` to what it writes today."""
    return tile_can_hold(expr)


def _columns(spec: DepthwiseSpec, target: Target, precision: Precision) -> int:
    """As many columns as registers hold beside the weights of one input row."""
    if spec.kind == "weight_grad":
        return _MOST_COLUMNS_OF_WEIGHTS
    rows, columns = axis_phases(spec, 0), axis_phases(spec, 1)
    weights = max(len(phase.taps) for phase in rows) * spec.kernel[1] if len(rows) > 1 else spec.kernel[1]
    room = target.vector_registers - _TEMPORARIES - weights
    return max(1, min(_MOST_COLUMNS, room // (len(rows) * len(columns) * precision.sum_size)))


def _from_memory(spec: DepthwiseSpec, target: Target, precision: Precision) -> bool:
    """Whether the images, in and out, do not fit in the second-level cache together.

    Then the next rows are fetched ahead (up to a third faster on x86-64; a little slower where the cache has it all).
    """
    image_bytes = precision.item_bytes * (spec.h * spec.w + spec.oh * spec.ow) * spec.c
    return spec.n * image_bytes > target.l2_bytes
