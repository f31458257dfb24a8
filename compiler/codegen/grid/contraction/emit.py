"""Contractions for a grid: the launches of each."""

from __future__ import annotations

from compiler.codegen.grid.contraction.ending import Ending, at_point, epilogue, last_output
from compiler.codegen.grid.contraction.group import Group
from compiler.codegen.grid.contraction.plan import Plan, plan, workspace_bytes
from compiler.codegen.grid.contraction.product import Product, product_of, sums_of
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import ITEMS, place_of
from compiler.codegen.grid.supported import require_supported
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Value
from compiler.kernels.spec import ConvSpec, MatmulSpec
from compiler.targets import GridTarget


def emit(spec: MatmulSpec | ConvSpec, target: GridTarget, threads: int) -> Grid:
    """A matrix product or a dense convolution. Raises: BuildError for weights in panels."""
    require_supported(spec)
    grid = Grid(spec, workspace_bytes(spec, target, threads))
    product = product_of(spec)
    _contract(grid, product, plan(product, target), epilogue(spec, product))
    if spec.sums:
        sums = sums_of(spec)
        _contract(grid, sums, plan(sums, target), last_output)
    return grid


def _contract(grid: Grid, product: Product, chosen: Plan, ending: Ending) -> None:
    """All launches of one contraction."""
    if product.sums == 0:
        return
    groups = 1
    for count in chosen.groups(product):
        groups *= count
    grid.launch(groups, chosen.tile.items, lambda here: Group(here, product, chosen).write(ending))
    if chosen.parts > 1:
        grid.each(product.sums, ITEMS, lambda here, block, number: _add(here, block, number, product, chosen, ending))


def _add(here: Here, block: Block, number: Value, product: Product, chosen: Plan, ending: Ending) -> None:
    """The sums of all parts at one point."""
    total = block.local(1, name="total")
    block.store(total, 0, tir.literal(0.0, "float32"))

    def add_part(inner: Block, part: Value) -> None:
        partial_sum = tir.load(here.operands.workspace, part * tir.index(product.sums) + number)
        inner.store(total, 0, tir.load(total, 0) + partial_sum)

    block.loop(chosen.parts, add_part, name="part")
    place, row, column = place_of(block, number, (product.products, product.m, product.n))
    at_point(
        block,
        product,
        (place, row, column),
        lambda inner, point: ending(inner, here.operands, point, tir.load(total, 0)),
    )
