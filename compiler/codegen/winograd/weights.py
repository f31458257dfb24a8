"""TIR of Winograd weight gradients, and of a bias gradient beside them.

Each thread sums the d_y of its tiles just before they are transformed: those of one block of tiles first, then those of
all blocks, so that no long row of additions loses accuracy.
"""

from __future__ import annotations

from tvm import tirx

from compiler.codegen.tile.epilogue import Epilogue
from compiler.codegen.tile.packing import zero_run
from compiler.codegen.tile.register_tile import RegisterTile, Scalars, Vectors, load_wide, wide
from compiler.codegen.tile.share import share_out
from compiler.codegen.tile.tiling import ColumnTile
from compiler.codegen.tir.tir import Block, Operands, Point, Value, divide, index, literal, load
from compiler.codegen.winograd.plan import SUM_STEPS, WinogradPlan, layout, needs_sums
from compiler.codegen.winograd.points import TAPS, Rows, transposed_rows
from compiler.codegen.winograd.tiles import (
    Picture,
    Square,
    Turn,
    each_turn,
    place_of,
    put_tile,
    spread,
    store_wide,
    with_square,
)
from compiler.codegen.winograd.transform import transform
from compiler.kernels.spec import ConvSpec


class WinogradWeights:
    """The emitter of one kernel: products of transformed x [tile, c] and transformed d_y [tile, k], summed over
    tiles.
    """

    def __init__(self, spec: ConvSpec, plan: WinogradPlan, operands: Operands) -> None:
        self.spec, self.plan, self.lanes = spec, plan, plan.precision.lanes
        x, d_y, *extra = operands.inputs
        self.d_w, *sums = operands.outputs
        self.d_bias, self.workspace = (sums[0] if sums else None), operands.workspace
        self.epilogue = Epilogue.of(spec.epilogue, extra, spec.epilogue_inputs, 4)
        self.matrices, self.layout = plan.matrices, layout(spec, plan)
        g = plan.geometry
        self.x = Picture(x, g.height, g.width, g.channels, g.top, g.left, self.matrices.inputs)
        self.d_y = Picture(d_y, g.rows, g.columns, spec.k, 0, 0, plan.outputs)
        self.tiles = plan.columns.full + (1 if plan.columns.tail else 0)
        self.pieces = spec.c // plan.steps

    def emit(self, block: Block) -> None:
        """Block after block of tiles: transforms, then products, which blocks after the first add."""
        if self.d_bias is not None:
            self._clear_bias(block)
        each_turn(block, self.plan, self.layout, self._turn)
        if needs_sums(self.spec, self.plan):
            self._finish(block)
        if self.d_bias is not None:
            self._finish_bias(block)

    def _turn(self, block: Block, turn: Turn) -> None:
        at = self.layout

        def inputs(body: Block, slot: Value, begin: Value, end: Value) -> None:
            base = body.let(slot * at.stride + at.private, "private")
            body.loop(end - begin, lambda b, i: self._tile(b, turn, b.let(begin + i, "tile"), base), name="tile")
            if self.d_bias is not None:
                self._add_bias(body, base + at.d_y_sums)

        def products(body: Block, slot: Value, begin: Value, end: Value) -> None:
            base = body.let(slot * at.stride + (at.private + at.results), "results")
            body.loop(end - begin, lambda b, i: self._unit(b, turn, base, b.let(begin + i, "unit")), name="unit")

        turn.share(block, self.plan.block, inputs)
        turn.share(block, self.pieces * self.tiles, products)

    # --------------------------------------------------------------------------------------------------- transforms

    def _tile(self, block: Block, turn: Turn, tile: Value, base: Value) -> None:
        """Transforms one tile of x and of d_y; the last block is filled up with zeros."""
        plan, at = self.plan, self.layout
        patch = block.let(base + at.patch, "patch")
        x = block.let(turn.inputs + tile * at.row, "x")
        d_y = block.let(turn.inputs + tile * at.gradient_row + at.gradients, "d_y")

        def emit_transform(body: Block, picture: Picture, rows: Rows, out: Value, plane: int) -> None:
            def square(inner: Block, where: Square) -> None:
                if self.d_bias is not None and picture is self.d_y:
                    self._sum_square(inner, where, base + at.d_y_sums)
                spread(inner, rows, where, picture.channels, self.lanes, (self.workspace, out, plane))

            place = place_of(body, plan, turn.first + tile)
            with_square(body, plan, picture, place, (self.workspace, patch), square)

        def both(body: Block) -> None:
            emit_transform(body, self.x, self.matrices.b, x, at.plane)
            emit_transform(body, self.d_y, self.matrices.a, d_y, at.gradient_plane)

        def zeros(body: Block) -> None:
            def plane(b: Block, p: Value) -> None:
                zero_run(b, self.workspace, x + p * at.plane, self.spec.c, self.lanes)
                zero_run(b, self.workspace, d_y + p * at.gradient_plane, self.spec.k, self.lanes)

            body.loop(self.matrices.products, plane, name="product")

        if plan.block * plan.blocks == plan.tiles:
            both(block)
        else:
            block.when(tirx.LT(turn.first + tile, index(plan.tiles)), both, zeros)

    # ----------------------------------------------------------------------------------------------------- products

    def _unit(self, block: Block, turn: Turn, results: Value, unit: Value) -> None:
        """Emits some input channels and one column tile."""
        cut = self.plan.columns
        column, piece = divide(block, unit, self.pieces)
        c = block.let(piece * self.plan.steps, "c")

        def columns(body: Block, tile: ColumnTile) -> None:
            k = body.let(column * cut.tile.width, "k")
            body.loop(
                self.matrices.products,
                lambda b, p: self._product(b, p, turn.inputs + c, turn.inputs + k, results, tile),
                name="product",
            )
            body.loop(
                self.plan.steps,
                lambda b, i: self._results(b, turn, c + i, k, results + i * tile.width, tile),
                name="c",
            )

        if not cut.tail or not cut.full:
            columns(block, cut.tail or cut.tile)
            return
        tail = cut.tail
        block.when(tirx.LT(column, index(cut.full)), lambda b: columns(b, cut.tile), lambda b: columns(b, tail))

    def _product(self, block: Block, p: Value, c: Value, k: Value, results: Value, tile: ColumnTile) -> None:
        plan, at = self.plan, self.layout
        full, rest = divmod(plan.steps, plan.rows)

        def row_tile(body: Block, m: Value, height: int) -> None:
            total = RegisterTile(body, height, tile)
            a = Scalars(self.workspace, p * at.plane + c + m, 1, at.row)
            b = Vectors(self.workspace, p * at.gradient_plane + at.gradients + k, at.gradient_row)
            self._sum(body, total, a, b)
            place = body.let(wide(results + p * at.result_plane + m * tile.width), "place")
            put_tile(body, total, self.workspace, place, tile.width, add=False)

        block.loop(full, lambda b, i: row_tile(b, b.let(i * plan.rows, "m"), plan.rows), name="row_tile")
        if rest:
            row_tile(block, index(full * plan.rows), rest)

    def _sum(self, block: Block, total: RegisterTile, a: Scalars, b: Vectors) -> None:
        """Adds up all tiles of the block, a limited number in one accumulator."""
        steps = self.plan.block
        turns = -(-steps // SUM_STEPS)
        if turns == 1:
            total.run(block, a, b, steps)
            return
        each = -(-steps // turns)

        def part(body: Block, position: Value, count: int) -> None:
            inner = RegisterTile(body, total.rows, total.columns)
            inner.run(body, a.at(position * a.step_stride), b.at(position * b.step_stride), count)
            total.add(body, inner)

        block.loop(steps // each, lambda body, i: part(body, i * each, each), name="sum")
        if steps % each:
            part(block, index(steps - steps % each), steps % each)

    # ------------------------------------------------------------------------------------------------------ results

    def _results(self, block: Block, turn: Turn, c: Value, k: Value, source: Value, tile: ColumnTile) -> None:
        """Transforms the results of one input channel back, and stores or adds them."""
        spec, at, lanes = self.spec, self.layout, self.lanes
        summed = needs_sums(spec, self.plan)
        buffer, base = (self.workspace, turn.inputs + at.sums) if summed else (self.d_w, 0)

        def vector(body: Block, i: Value) -> None:
            start = body.let(wide(source + i * lanes), "start")
            column = body.let(k + i * lanes, "column")
            out = body.let(wide(c * spec.k + column + base), "out")
            taps: list[tuple[int, int, Value]] = []
            transform(
                body,
                transposed_rows(self.matrices.g),
                lambda b, i, j: load_wide(
                    self.workspace, start + wide((i * self.matrices.inputs + j) * at.result_plane), lanes
                ),
                lambda b, i, j, value: taps.append((i, j, value)),
            )

            def store(b: Block, *, add: bool) -> None:
                for i, j, value in taps:
                    flat = out + wide((i * TAPS + j) * (spec.c * spec.k))
                    if add:
                        value = load_wide(buffer, flat, lanes) + value
                    elif not summed:
                        point = Point((index(i), index(j), c, column)).vector(3, lanes)
                        value = self.epilogue.apply(b, value, point)
                    store_wide(b, buffer, flat, value, lanes)

            if self.plan.blocks == 1:
                store(body, add=False)
                return
            body.when(tirx.EQ(turn.number, index(0)), lambda b: store(b, add=False), lambda b: store(b, add=True))

        block.loop(tile.width // lanes, vector, name="k")

    def _finish(self, block: Block) -> None:
        """The epilogue over the sums, row by row of [kh, kw, c]."""
        spec, at, lanes = self.spec, self.layout, self.lanes
        sets = self.plan.slots if self.plan.split == "tiles" else 1

        def one_row(body: Block, row: Value) -> None:
            tap, c = divide(body, row, spec.c)
            kh, kw = divide(body, tap, TAPS)

            def vector(b: Block, i: Value) -> None:
                k = b.let(i * lanes, "k")
                first = b.let(row * spec.k + k + at.sums, "first")
                total = load(self.workspace, first, lanes)
                for number in range(1, sets):
                    total = total + load(self.workspace, first + number * at.stride, lanes)
                point = Point((kh, kw, c, k)).vector(3, lanes)
                b.store(self.d_w, row * spec.k + k, self.epilogue.apply(b, b.let(total, "sum"), point))

            body.loop(spec.k // lanes, vector, name="k")

        def slot_body(body: Block, _slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: one_row(b, b.let(first + i, "row")), name="row")

        share_out(block, self.plan.slots, TAPS * TAPS * spec.c, slot_body)

    # --------------------------------------------------------------------------------------------------------- bias

    def _clear_bias(self, block: Block) -> None:
        """Clears every thread's sums of d_y, of its current block and of all."""
        at = self.layout
        start = at.private + at.d_y_sums
        block.loop(
            self.plan.slots,
            lambda b, slot: zero_run(b, self.workspace, slot * at.stride + start, 2 * self.spec.k, self.lanes),
            name="slot",
        )

    def _sum_square(self, block: Block, square: Square, sums: Value) -> None:
        """Adds one tile of d_y to the sums of its block."""
        size, lanes = self.plan.outputs, self.lanes

        def vector(body: Block, number: Value) -> None:
            place = body.let(sums + number * lanes, "place")
            source = body.let(square.base + number * lanes, "source")
            total = load(self.workspace, place, lanes)
            for i in range(size):
                row = [
                    load(square.buffer, source + (i * square.row_stride + j * square.column_stride), lanes)
                    for j in range(size)
                ]
                total = total + sum(row[1:], row[0])
            body.store(self.workspace, place, total)

        block.loop(self.spec.k // lanes, vector, name="k")

    def _add_bias(self, block: Block, sums: Value) -> None:
        """Adds the sums of a block to those of all, and begins the next."""
        lanes, count = self.lanes, self.spec.k

        def vector(body: Block, number: Value) -> None:
            place = body.let(sums + number * lanes, "place")
            whole = load(self.workspace, place + count, lanes) + load(self.workspace, place, lanes)
            body.store(self.workspace, place + count, whole)
            body.store(self.workspace, place, literal(0.0, "float32", lanes))

        block.loop(count // lanes, vector, name="k")

    def _finish_bias(self, block: Block) -> None:
        """Adds the sums of all threads."""
        at, lanes = self.layout, self.lanes
        start = at.private + at.d_y_sums + self.spec.k

        def vector(body: Block, number: Value) -> None:
            k = body.let(number * lanes, "k")
            parts = [load(self.workspace, k + (start + slot * at.stride), lanes) for slot in range(self.plan.slots)]
            body.store(self.d_bias, k, sum(parts[1:], parts[0]))

        block.loop(self.spec.k // lanes, vector, name="k")
