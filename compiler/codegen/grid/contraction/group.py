"""The work of a group of items: one tile of one product, over one part of the steps."""

from __future__ import annotations

from tvm import tirx

from compiler.codegen.grid.contraction.ending import Ending, at_point
from compiler.codegen.grid.contraction.loader import Filler, Loader, Ones, Shelf, all_of
from compiler.codegen.grid.contraction.operand import Operand, left, right
from compiler.codegen.grid.contraction.plan import Plan
from compiler.codegen.grid.contraction.product import Product
from compiler.codegen.grid.contraction.register_tile import RegisterTile
from compiler.codegen.grid.contraction.sums import SumsOfTile
from compiler.codegen.grid.contraction.tensor_tile import TensorTile
from compiler.codegen.grid.contraction.tile import WarpTile
from compiler.codegen.grid.grid import Here
from compiler.codegen.grid.halves import BITS
from compiler.codegen.grid.points import place_of
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Value


class Group:
    """The statements of a contraction's first launch."""

    def __init__(self, here: Here, product: Product, plan: Plan) -> None:
        self._here, self._product, self._plan, self._tile = here, product, plan, plan.tile
        self._shared = here.shared(plan.tile.elements)
        bits = BITS.get(product.factors)
        self._stored = here.block.in_halves(self._shared, bits) if bits else self._shared
        a, b = left(product), right(product)
        self._a = self._shelf(0, self._tile.m, a)
        self._b = self._shelf(self._a.end, self._tile.n, b)
        self._fillers = (self._filler(0, a, self._a, product.m), self._filler(1, b, self._b, product.n))

    def _shelf(self, start: int, width: int, operand: Operand | None) -> Shelf:
        tile, along = self._tile, operand is not None and operand.is_along_steps
        if isinstance(tile, WarpTile):
            is_turned = along or tile.per_word > 1
            pad = tile.steps_pad if is_turned else tile.pad
            return Shelf(self._shared, self._stored, start, tile.k, width, pad, is_turned, self._product.factors)
        return Shelf(self._shared, self._stored, start, tile.k, width, tile.pad if along else 0)

    def _filler(self, number: int, operand: Operand | None, shelf: Shelf, extent: int) -> Filler:
        if operand is None:
            return Ones(self._here, shelf)
        last = self._product.k if self._plan.parts * self._plan.part_steps > self._product.k else None
        return Loader(self._here, self._here.operands.inputs[number], operand, shelf, extent=extent, last=last)

    def write(self, ending: Ending) -> None:
        """The whole launch: `ending` gets the sums, or the workspace does if they are of parts."""
        block, tile = self._here.block, self._tile
        part, product, row, column = place_of(block, self._here.group, self._plan.groups(self._product))
        firsts = (block.let(row * tile.m, "row"), block.let(column * tile.n, "column"))
        for filler, first in zip(self._fillers, firsts, strict=True):
            filler.begin(block, product, first)
        sums = self._sums(block)
        self._reduce(block, block.let(part * self._plan.part_steps, "start"), sums)
        sums.store(block, self._shared)
        self._here.barrier(block)
        block.loop(
            tile.m * tile.n // self._here.items,
            lambda inner, slot: self._end(inner, slot, (part, product, *firsts), ending),
            name="slot",
        )

    def _sums(self, block: Block) -> SumsOfTile:
        in_blocks = self._plan.blocks > 1
        if isinstance(self._tile, WarpTile):
            return TensorTile(self._here, block, self._tile, self._product.factors, in_blocks=in_blocks)
        return RegisterTile(self._here, block, self._tile, in_blocks=in_blocks)

    def _reduce(self, block: Block, first: Value, sums: SumsOfTile) -> None:
        """All steps of the part, which begins at step `first`."""
        plan = self._plan

        def one_block(outer: Block, number: Value) -> None:
            sums.begin_block(outer)

            def one_tile(inner: Block, tile: Value) -> None:
                start = first + (number * tir.index(plan.tiles) + tile) * tir.index(self._tile.k)
                self._multiply(inner, inner.let(start, "start"), sums)

            outer.loop(plan.tiles, one_tile, name="tile")
            sums.end_block(outer)

        block.loop(plan.blocks, one_block, name="block")

    def _multiply(self, block: Block, start: Value, sums: SumsOfTile) -> None:
        shelves = zip((self._a, self._b), self._fillers, strict=True)
        fetched = [(shelf, element) for shelf, filler in shelves for element in filler.fetch(block, start)]
        for shelf, (place, value) in fetched:
            shelf.store(block, place, value)
        self._here.barrier(block)
        sums.multiply(block, self._a, self._b)
        self._here.barrier(block)

    def _end(self, block: Block, slot: Value, at: tuple[Value, Value, Value, Value], ending: Ending) -> None:
        """Moves one of the tile's sums out of shared memory to its destination."""
        part, product, first_row, first_column = at
        number = block.let(slot * tir.index(self._here.items) + self._here.item, "number")
        down, across = tir.divide(block, number, self._tile.n)
        row, column = block.let(first_row + down, "m"), block.let(first_column + across, "n")
        sides = ((row, self._product.m, self._tile.m), (column, self._product.n, self._tile.n))
        conditions = [tirx.LT(place, tir.index(extent)) for place, extent, side in sides if extent % side]

        def write(inner: Block) -> None:
            lies = number + down * tir.index(self._tile.sums_pad) if self._tile.sums_pad else number
            total = inner.let(tir.load(self._shared, lies), "total")
            if self._plan.parts == 1:
                place = (product, row, column)
                at_point(inner, self._product, place, lambda b, point: ending(b, self._here.operands, point, total))
                return
            m, n = tir.index(self._product.m), tir.index(self._product.n)
            flat = ((part * self._product.products + product) * m + row) * n + column
            inner.store(self._here.operands.workspace, flat, total)

        if conditions:
            block.when(all_of(conditions), write)
        else:
            write(block)
