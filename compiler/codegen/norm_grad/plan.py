"""The schedule of a norm's gradient: ranges of rows, each with sums of its own for the columns."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.tile.precision import LINE_BYTES, Precision
from compiler.kernels.spec import NormGradSpec
from compiler.targets import CpuTarget

_PARALLEL_ELEMENTS = 8192


@dataclass(frozen=True, slots=True)
class NormGradPlan:
    """The schedule of one kernel.

    `line_of_sums`: room for one thread's sums over its rows for d_weight, or for d_bias: whole cache lines.
    """

    precision: Precision
    slots: int
    line_of_sums: int


def plan(spec: NormGradSpec, target: CpuTarget, threads: int) -> NormGradPlan:
    """The schedule from the target's figures."""
    precision = Precision.of(spec.dtype, target)
    line = LINE_BYTES // precision.sum_bytes
    slots = threads if spec.rows * spec.width >= _PARALLEL_ELEMENTS else 1
    return NormGradPlan(precision, slots, -(-spec.width // line) * line)


def workspace_bytes(spec: NormGradSpec, target: CpuTarget, threads: int) -> int:
    """Returns the bytes of every thread's sums over its rows."""
    chosen = plan(spec, target, threads)
    sums = 2 * chosen.slots * chosen.line_of_sums
    return chosen.precision.sum_bytes * sums if any(spec.wanted[1:]) else 0
