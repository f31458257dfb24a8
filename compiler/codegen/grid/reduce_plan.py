"""The schedule of a reduction on a grid: along results or along terms, in groups and parts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from compiler.codegen.grid.split import Split, split_sums
from compiler.codegen.reduce.plan import arrange, element_dtype, largest, vector_axis
from compiler.codegen.tir.iteration import Space
from compiler.element_types import ELEMENT_TYPES, SCRATCH
from compiler.kernels.spec import ReduceSpec
from compiler.targets import GridTarget


@dataclass(frozen=True, slots=True)
class ReducePlan:
    """The schedule of a reduction. `kept_axes` and `reduced` are the axes of `space` in the order in which results and
    terms are numbered, the fastest last.
    """

    space: Space
    kept_axes: tuple[int, ...]
    reduced: tuple[int, ...]
    split: Split


def plan(spec: ReduceSpec, target: GridTarget) -> ReducePlan:
    """Arrange the axes so that neighbouring items read neighbours, and share out the sums."""
    space, count = arrange(spec)
    axes = range(len(space.extents))
    vector = vector_axis(space, count, largest(space, spec))
    kept_axes, reduced = (tuple(sorted(part, key=lambda axis: axis == vector)) for part in (axes[:count], axes[count:]))
    results, terms = (math.prod(space.extents[axis] for axis in part) for part in (kept_axes, reduced))
    # Parts meet in the workspace, which holds reals.
    is_real = ELEMENT_TYPES[element_dtype(spec)].is_real
    split = split_sums(results, terms, target, columns=vector in kept_axes, splits=is_real)
    return ReducePlan(space, kept_axes, reduced, split)


def workspace_bytes(spec: ReduceSpec, target: GridTarget, threads: int) -> int:
    """Partial results of all parts; 0 if no result is split."""
    split = plan(spec, target).split
    return SCRATCH.item_bytes * split.parts * split.results if split.parts > 1 else 0
