"""Endings of a sum: the epilogue at its point, or a place in the workspace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tvm import tirx

from compiler.codegen.grid.contraction.loader import all_of
from compiler.codegen.grid.contraction.product import Product
from compiler.codegen.grid.points import place_of, write_outputs
from compiler.codegen.tir import tir
from compiler.codegen.tir.iteration import space_of
from compiler.codegen.tir.tir import Block, Operands, Point, Value
from compiler.graph import TensorType
from compiler.kernels.access import identity
from compiler.kernels.spec import ConvSpec, MatmulSpec

Ending = Callable[[Block, Operands, Point, Value], None]
"""Writes what a point's sum makes; one item does, once."""
_OWN_INPUTS = 2


def epilogue(spec: MatmulSpec | ConvSpec, product: Product) -> Ending:
    """The spec's epilogue and extra outputs, which may lie where its inputs do."""
    extra = spec.extra_outputs if isinstance(spec, MatmulSpec) else ()
    outputs = (identity(TensorType(spec.dtype, product.extents)),) * (1 + len(extra))
    space = space_of(product.extents, spec.epilogue_inputs + outputs)

    def end(block: Block, operands: Operands, point: Point, total: Value) -> None:
        epilogue_operands = replace(operands, inputs=operands.inputs[_OWN_INPUTS:])
        exprs = (spec.epilogue, *extra)
        write_outputs(block, space, epilogue_operands, exprs, point, rank=len(product.extents), first=(total,))

    return end


def last_output(block: Block, operands: Operands, point: Point, total: Value) -> None:
    """The sum itself, to the last output, a vector."""
    block.store(operands.outputs[-1], point.axes[0], total)


def at_point(
    block: Block, product: Product, number: tuple[Value, Value, Value], write: Callable[[Block, Point], None]
) -> None:
    """`write` at the point of a product's number, row and column, if there is one."""
    spaces = (product.batch, product.rows, product.columns)
    axes = [
        axis
        for flat_index, extents in zip(number, spaces, strict=True)
        for axis in place_of(block, flat_index, extents)
    ]
    limits = product.axes[: len(axes)]
    places, conditions = [], []
    for affine, extent in zip(product.point, product.extents, strict=True):
        terms = [(axes[axis], coefficient) for axis, coefficient in affine.terms if limits[axis] > 1]
        place = tir.linear(affine.offset, [c for _, c in terms], [axis for axis, _ in terms])
        places.append(block.let(place, "axis"))
        reach = [coefficient * (limits[axis] - 1) for axis, coefficient in affine.terms]
        if affine.offset + sum(min(0, far) for far in reach) < 0:
            conditions.append(tirx.LE(tir.index(0), places[-1]))
        if affine.offset + sum(max(0, far) for far in reach) >= extent:
            conditions.append(tirx.LT(places[-1], tir.index(extent)))
    if conditions:
        block.when(all_of(conditions), lambda inner: write(inner, Point(tuple(places))))
    else:
        write(block, Point(tuple(places)))
