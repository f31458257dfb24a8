"""Contractions for a grid: the launches of each.

The work of a group of items: one tile of one product, over one part of the steps.

The sums of a tile, spread over the registers of a group's items.

What it takes (both operands' tiles in shared memory) and gives (the sums there) says nothing of registers: a unit that
multiplies whole tiles can stand in its place (`tensor_tile`).

The sums of a tile, made on tensor cores by warps of 32 items, which hold them in registers.

A warp's product is of 16 rows, 8 columns and 8 words of steps: a step of TF32, or two of sixteen bits, of which the
first is the lower half. Of item `4 group + place` of a warp (group 0 to 7, place 0 to 3):

    A    a0: row group      word place          a1: row group + 8  word place
         a2: row group      word place + 4      a3: row group + 8  word place + 4
    B    b0: word place      column group       b1: word place + 4  column group
    C    sum 0: row group      column 2 place   sum 1: row group      column 2 place + 1
         sum 2: row group + 8  column 2 place   sum 3: row group + 8  column 2 place + 1

Source: PTX ISA, "Matrix Fragments for mma.m16n8k8", of type .tf32, and "for mma.m16n8k16 with floating point type".
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm import tirx

from compiler.codegen.grid import tensor_cores
from compiler.codegen.grid.contraction.ending import Ending, at_point, epilogue, last_output
from compiler.codegen.grid.contraction.loader import Filler, Loader, Ones, SharedTile, all_of
from compiler.codegen.grid.contraction.operand import Operand, left, right
from compiler.codegen.grid.contraction.plan import Plan, plan, workspace_bytes
from compiler.codegen.grid.contraction.product import Factors, Product, product_of, sums_of
from compiler.codegen.grid.contraction.sums import Sums, SumsOfTile
from compiler.codegen.grid.contraction.tile import MMA_K, MMA_M, MMA_N, WARP, Tile, WarpTile
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.halves import BITS
from compiler.codegen.grid.points import ITEMS, place_of
from compiler.codegen.grid.supported import require_supported
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Buffer, Value
from compiler.kernels.spec import ConvSpec, MatmulSpec
from compiler.targets import GridTarget

_PLACES = 4
_SUMS = 4
"""An item's of one product."""


class TensorTile(Sums):
    """The tile's sums by warp: each warp has `own_m` x `own_n` of neighbouring rows and columns; products lie side by
    side in them.
    """

    def __init__(self, here: Here, block: Block, tile: WarpTile, factors: Factors, *, in_blocks: bool) -> None:
        self._factors = factors
        self._tile, self._down, self._across = tile, tile.own_m // MMA_M, tile.own_n // MMA_N
        warp, lane = tir.divide(block, here.item, WARP)
        down, across = tir.divide(block, warp, tile.n // tile.own_n)
        group, self._place = tir.divide(block, lane, _PLACES)
        self._row = block.let(down * tir.index(tile.own_m) + group, "row")
        self._first_column = block.let(across * tir.index(tile.own_n), "column")
        self._column = block.let(self._first_column + group, "column")
        super().__init__(block, self._down * self._across * _SUMS, in_blocks=in_blocks)

    def multiply(self, block: Block, a: SharedTile, b: SharedTile) -> None:
        """Adds the products of two tiles, as `SumsOfTile` says."""
        block.loop(
            self._tile.k // self._tile.per_word // MMA_K,
            lambda inner, number: self._step(inner, number, a, b),
            name="step",
        )

    def store(self, block: Block, shared: Buffer) -> None:
        """Writes the sums to shared memory, as `SumsOfTile` says."""
        width = self._tile.n + self._tile.sums_pad
        column = block.let(self._first_column + self._place * tir.index(2), "column")
        for first, i, j in self._products():
            for number in range(_SUMS):
                row = self._row + (MMA_M * i + MMA_M // 2 * (number // 2))
                place = row * tir.index(width) + column + (MMA_N * j + number % 2)
                block.store(shared, place, tir.load(self.totals, first + number))

    def _step(self, block: Block, number: Value, a: SharedTile, b: SharedTile) -> None:
        """The products of 8 words of steps."""
        near = block.let(number * tir.index(MMA_K) + self._place, "near")
        words = (near, block.let(near + _PLACES, "far"))
        rows = [self._row + MMA_M // 2 * i for i in range(2 * self._down)]
        left = [[self._read(block, a, word, row) for row in rows] for word in words]
        right = [[self._read(block, b, word, self._column + MMA_N * j) for word in words] for j in range(self._across)]
        for first, i, j in self._products():
            left_words = (*left[0][2 * i : 2 * i + 2], *left[1][2 * i : 2 * i + 2])
            tensor_cores.multiply(block, self._factors, self.now, first, left_words, right[j])

    def _read(self, block: Block, shared_tile: SharedTile, word: Value, place: Value) -> Value:
        return block.let(tir.load(shared_tile.shared, shared_tile.word(word, place)), "x")

    def _products(self) -> Iterator[tuple[int, int, int]]:
        """(its first sum, its number down and across) of each of a warp's products."""
        for number in range(self._down * self._across):
            yield number * _SUMS, *divmod(number, self._across)


class RegisterTile(Sums):
    """The tile's sums by item: each item has `own_m` x `own_n` of neighbouring rows, and of columns as far apart as
    there are items along them, so that neighbouring items read and write neighbouring elements of shared memory.
    """

    def __init__(self, here: Here, block: Block, tile: Tile, *, in_blocks: bool) -> None:
        self._tile, self._apart = tile, tile.n // tile.own_n
        self._row, self._column = tir.divide(block, here.item, self._apart)
        super().__init__(block, tile.own_m * tile.own_n, in_blocks=in_blocks)

    def multiply(self, block: Block, a: SharedTile, b: SharedTile) -> None:
        """Adds the products of two tiles, as `SumsOfTile` says."""
        block.loop(self._tile.k, lambda inner, step: self._step(inner, step, a, b), name="step")

    def store(self, block: Block, shared: Buffer) -> None:
        """Writes the sums to shared memory, as `SumsOfTile` says."""
        for i, j in self._cells():
            place = (self._row * self._tile.own_m + i) * self._tile.n + self._column + j * self._apart
            block.store(shared, place, tir.load(self.totals, i * self._tile.own_n + j))

    def _step(self, block: Block, step: Value, a: SharedTile, b: SharedTile) -> None:
        tile = self._tile
        rows = [a.at(step, self._row * tile.own_m + i) for i in range(tile.own_m)]
        columns = [b.at(step, self._column + j * self._apart) for j in range(tile.own_n)]
        left = [block.let(tir.load(a.shared, place), "a") for place in rows]
        right = [block.let(tir.load(b.shared, place), "b") for place in columns]
        for i, j in self._cells():
            number = i * tile.own_n + j
            block.store(self.now, number, tirx.Add(tir.load(self.now, number), tirx.Mul(left[i], right[j])))

    def _cells(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self._tile.own_m) for j in range(self._tile.own_n)]


class Group:
    """The statements of a contraction's first launch."""

    def __init__(self, here: Here, product: Product, plan: Plan) -> None:
        self._here, self._product, self._plan, self._tile = here, product, plan, plan.tile
        self._shared = here.shared(plan.tile.elements)
        bits = BITS.get(product.factors)
        self._stored = here.block.in_halves(self._shared, bits) if bits else self._shared
        a, b = left(product), right(product)
        self._a = self._shared_tile(0, self._tile.m, a)
        self._b = self._shared_tile(self._a.end, self._tile.n, b)
        self._fillers = (self._filler(0, a, self._a, product.m), self._filler(1, b, self._b, product.n))

    def _shared_tile(self, start: int, width: int, operand: Operand | None) -> SharedTile:
        tile, along = self._tile, operand is not None and operand.is_along_steps
        if isinstance(tile, WarpTile):
            is_turned = along or tile.per_word > 1
            pad = tile.steps_pad if is_turned else tile.pad
            return SharedTile(self._shared, self._stored, start, tile.k, width, pad, is_turned, self._product.factors)
        return SharedTile(self._shared, self._stored, start, tile.k, width, tile.pad if along else 0)

    def _filler(self, number: int, operand: Operand | None, shared_tile: SharedTile, extent: int) -> Filler:
        if operand is None:
            return Ones(self._here, shared_tile)
        last = self._product.k if self._plan.parts * self._plan.part_steps > self._product.k else None
        return Loader(self._here, self._here.operands.inputs[number], operand, shared_tile, extent=extent, last=last)

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
        """Emits all steps of the part, which begins at step `first`."""
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
        shared_tiles = zip((self._a, self._b), self._fillers, strict=True)
        fetched = [
            (shared_tile, element) for shared_tile, filler in shared_tiles for element in filler.fetch(block, start)
        ]
        for shared_tile, (place, value) in fetched:
            shared_tile.store(block, place, value)
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
    """Emits all launches of one contraction."""
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
