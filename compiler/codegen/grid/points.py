"""Points of an iteration space, for which items stand, and what is computed at one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.codegen.grid.functions import DEVICE
from compiler.codegen.tir import tir
from compiler.codegen.tir.expressions import Evaluator, spec_point
from compiler.codegen.tir.iteration import Space
from compiler.codegen.tir.tir import Block, Buffer, Operands, Point, Value
from compiler.kernels.expressions import Expr

ITEMS = 128
"""Items of a group that do not work together: a multiple of the widths at which devices run items in step, and enough
to fill an SM of NVIDIA's, which holds 16 groups.
"""


def place_of(block: Block, number: Value, extents: Sequence[int]) -> tuple[Value, ...]:
    """The indices of point `number` (int32) of a row-major space; it must be inside."""
    indices: list[Value] = []
    for extent in reversed(extents[1:]):
        number, position = tir.divide(block, number, extent)
        indices.append(position)
    return (number, *reversed(indices)) if extents else ()


def points(extents: Sequence[int]) -> int:
    """Returns how many points a space of these extents has."""
    return math.prod(extents)


def write_outputs(
    block: Block,
    space: Space,
    operands: Operands,
    exprs: Sequence[Expr],
    point: Point,
    *,
    rank: int,
    first: Sequence[Value] = (),
) -> None:
    """Emits all reads at a point, all expressions, then all writes: outputs may share storage with what is read.

    `space.accesses` are those of the inputs and then of the outputs, which `exprs` are of. `first`: values that stand
    before the inputs in the expressions' references. `rank`: axes of the spec.
    """
    outputs = space.accesses[len(space.accesses) - len(exprs) :]
    reads = space.accesses[: len(space.accesses) - len(exprs)]
    refs = [
        *first,
        *(tir.read(block, source, access, point) for source, access in zip(operands.inputs, reads, strict=False)),
    ]
    evaluator = Evaluator(block, refs, point=spec_point(space, rank, point), functions=DEVICE)
    values = [
        block.let(evaluator.value(expr, access.type.element.tir_value), "y")
        for expr, access in zip(exprs, outputs, strict=True)
    ]
    for buffer, access, value in zip(operands.outputs, outputs, values, strict=False):
        tir.write(block, buffer, access, point, value)


__all__ = ["ITEMS", "Buffer", "place_of", "points", "write_outputs"]
