"""TIR of Winograd forward and input-gradient convolutions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tvm import tirx

from compiler.codegen.kernels.packing import transposed
from compiler.codegen.kernels.register_tile import (
    LINE_FLOATS,
    Epilogue,
    RegisterTile,
    Scalars,
    Vectors,
    load_wide,
    prefetch,
    wide,
)
from compiler.codegen.kernels.share import share_out
from compiler.codegen.kernels.tiling import ColumnTile
from compiler.codegen.kernels.winograd import WinogradPlan, layout
from compiler.codegen.kernels.winograd_points import TAPS, transposed_rows
from compiler.codegen.kernels.winograd_tiles import Picture, place_of, put_tile, spread, store_wide, with_square
from compiler.codegen.kernels.winograd_transform import Get, transform
from compiler.codegen.tir import Block, Operands, Point, Value, divide, index, load
from compiler.kernel_spec import ConvSpec

OneVector = Callable[[Block, int, Value, Get], None]
"""(block, first column of the tile, step, taps of a vector of columns)."""
_STEPS_AHEAD = 8
"""Weights of each step lie far apart, so they are asked for this many steps before they are transformed."""


class WinogradData:
    """One kernel."""

    def __init__(self, spec: ConvSpec, plan: WinogradPlan, operands: Operands, lanes: int) -> None:
        self.spec, self.plan, self.lanes = spec, plan, lanes
        x, self.w, *extra = operands.inputs
        self.y, self.workspace = operands.outputs[0], operands.workspace
        self.epilogue = Epilogue.of(spec.epilogue, extra, spec.epilogue_inputs, 4)
        self.matrices, self.layout = plan.matrices, layout(spec, plan)
        g = plan.geometry
        self.picture = Picture(x, g.height, g.width, g.channels, g.top, g.left, self.matrices.inputs)
        self.count = plan.columns.count
        self.tiles = plan.columns.full + (1 if plan.columns.tail else 0)

    def emit(self, block: Block) -> None:
        """Block after block: transformed inputs by all threads, then products."""
        block.loop(self.plan.blocks, self._block, name="block")

    def _block(self, block: Block, number: Value) -> None:
        plan = self.plan
        first = block.let(number * plan.block, "first")

        def inputs(body: Block, slot: Value, begin: Value, end: Value) -> None:
            patch = body.let(self._private(slot) + self.layout.patch, "patch")
            body.loop(end - begin, lambda b, i: self._inputs(b, first, b.let(begin + i, "tile"), patch), name="tile")

        def products(body: Block, slot: Value, begin: Value, end: Value) -> None:
            base = body.let(self._private(slot), "private")
            body.loop(end - begin, lambda b, i: self._unit(b, first, base, b.let(begin + i, "unit"), i), name="unit")

        share_out(block, plan.slots, plan.block, inputs)
        share_out(block, plan.slots, plan.parts * self.tiles, products)

    def _private(self, slot: Value) -> Value:
        return slot * self.layout.private_floats + self.layout.private

    def _inputs(self, block: Block, first: Value, tile: Value, patch: Value) -> None:
        """Transform one tile's inputs."""
        plan, at = self.plan, self.layout

        def existing(body: Block) -> None:
            out = body.let(tile * at.row, "out")
            with_square(
                body, plan, self.picture, place_of(body, plan, first + tile), (self.workspace, patch),
                lambda b, square: spread(b, self.matrices.b, square, self.picture.channels, self.lanes,
                                         (self.workspace, out, at.plane)),
            )  # fmt: skip

        if plan.block * plan.blocks == plan.tiles:
            existing(block)
        else:
            block.when(tirx.LT(first + tile, index(plan.tiles)), existing)

    # ----------------------------------------------------------------------------------------------------- products

    def _unit(self, block: Block, first: Value, base: Value, unit: Value, turn: Value) -> None:
        """One part of the block's tiles and one column tile."""
        cut = self.plan.columns
        number, part = divide(block, unit, self.plan.parts)
        fresh = tirx.Or(tirx.EQ(turn, index(0)), tirx.EQ(part, index(0)))

        def columns(body: Block, tile: ColumnTile) -> None:
            self._columns(body, first, base, part, number, tile, fresh)

        if not cut.tail or not cut.full:
            columns(block, cut.tail or cut.tile)
            return
        tail = cut.tail
        block.when(tirx.LT(number, index(cut.full)), lambda b: columns(b, cut.tile), lambda b: columns(b, tail))

    def _columns(
        self, block: Block, first: Value, base: Value, part: Value, number: Value, tile: ColumnTile, fresh: Value
    ) -> None:
        plan, at = self.plan, self.layout
        column = block.let(number * plan.columns.tile.width, "column")
        turns = plan.geometry.channels // plan.steps
        kept = plan.parts > 1

        def steps(body: Block, turn: Value) -> None:
            step = body.let(turn * plan.steps, "step")
            panel = body.let(base + turn * at.panel_part, "panel") if kept else base
            if kept:
                body.when(fresh, lambda b: self._weights(b, panel, step, column, tile))
            else:
                self._weights(body, panel, step, column, tile)
            self._products(body, part, step, panel, base + at.results, tile, turn, turns)

        block.loop(turns, steps, name="steps")
        start = block.let(part * plan.part, "start")
        count = block.let(tirx.min(index(plan.part), tirx.min(index(plan.block), plan.tiles - first) - start), "count")
        block.loop(
            count,
            lambda b, t: self._results(b, b.let(first + start + t, "tile"), base + at.results + t * tile.width,
                                       column, tile),
            name="tile",
        )  # fmt: skip

    def _products(
        self, block: Block, part: Value, step: Value, panel: Value, results: Value, tile: ColumnTile,
        turn: Value, turns: int,
    ) -> None:  # fmt: skip
        """Multiply all tiles of a part by one panel: the first panel's results are stored, others are added."""
        plan, at = self.plan, self.layout
        full, rest = divmod(plan.part, plan.rows)

        def row_tile(body: Block, p: Value, m: Value, height: int) -> None:
            total = RegisterTile(body, height, tile)
            a = p * at.plane + (part * plan.part + m) * at.row + step
            b = panel + p * at.panel_plane
            total.run(body, Scalars(self.workspace, a, at.row, 1), Vectors(self.workspace, b, tile.width), plan.steps)
            place = body.let(wide(results + p * at.result_plane + m * tile.width), "place")
            if turns == 1:
                put_tile(body, total, self.workspace, place, tile.width, add=False)
                return
            body.when(
                tirx.EQ(turn, index(0)),
                lambda c: put_tile(c, total, self.workspace, place, tile.width, add=False),
                lambda c: put_tile(c, total, self.workspace, place, tile.width, add=True),
            )

        def product(body: Block, p: Value) -> None:
            body.loop(full, lambda b, i: row_tile(b, p, b.let(i * plan.rows, "m"), plan.rows), name="row_tile")
            if rest:
                row_tile(body, p, index(full * plan.rows), rest)

        block.loop(self.matrices.products, product, name="product")

    # ------------------------------------------------------------------------------------------------------ weights

    def _weights(self, block: Block, panel: Value, step: Value, column: Value, tile: ColumnTile) -> None:
        """Transform the weights of some steps and one column tile to a panel."""
        plane, inputs = self.layout.panel_plane, self.matrices.inputs

        def vector(body: Block, start: int, s: Value, get: Get) -> None:
            out = body.let(wide(panel + s * tile.width + start), "out")

            def put(b: Block, i: int, j: int, value: Value) -> None:
                store_wide(b, self.workspace, out + wide((i * inputs + j) * plane), value, self.lanes)

            transform(body, self.matrices.g, get, put)

        if self.spec.kind == "forward":
            self._straight_weights(block, step, column, tile, vector)
        else:
            self._turned_weights(block, step, column, tile, vector)

    def _straight_weights(self, block: Block, step: Value, column: Value, tile: ColumnTile, vector: OneVector) -> None:
        tap_floats = self.spec.c * self.spec.k

        def one(body: Block, s: Value) -> None:
            source = body.let(wide((step + s) * self.spec.k + column), "source")

            def get(b: Block, i: int, j: int, start: int) -> Value:
                return load_wide(self.w, source + wide((i * TAPS + j) * tap_floats + start), self.lanes)

            for tap in range(TAPS * TAPS):
                for line in range(0, tile.width, LINE_FLOATS):
                    prefetch(body, self.w, source + wide(tap * tap_floats + _STEPS_AHEAD * self.spec.k + line))
            for start in range(0, tile.width, self.lanes):
                vector(body, start, s, partial(get, start=start))

        block.loop(self.plan.steps, one, name="step")

    def _turned_weights(self, block: Block, step: Value, column: Value, tile: ColumnTile, vector: OneVector) -> None:
        """Steps are the weights' last axis: squares of vectors are transposed first; taps are taken in reverse."""
        lanes, tap_floats = self.lanes, self.spec.c * self.spec.k
        square, last = lanes * lanes, TAPS * TAPS - 1

        def squares(body: Block, number: Value, start: int) -> None:
            first = body.let((column + start) * self.spec.k + step + number * lanes, "first")
            turned = body.local(TAPS * TAPS * square, name="turned")

            def tap(b: Block, t: Value) -> None:
                source = b.let(t * tap_floats + first, "source")
                rows = [b.let(load(self.w, source + c * self.spec.k, lanes), "row") for c in range(lanes)]
                for s, turned_row in enumerate(transposed(b, rows)):
                    b.store(turned, t * square + s * lanes, turned_row)

            def one(b: Block, s: Value) -> None:
                def get(_: Block, i: int, j: int) -> Value:
                    return load(turned, s * lanes + (last - i * TAPS - j) * square, lanes)

                vector(b, start, number * lanes + s, get)

            body.loop(TAPS * TAPS, tap, name="tap")
            body.loop(lanes, one, name="step")

        def step_squares(body: Block, number: Value) -> None:
            for start in range(0, tile.width, lanes):
                squares(body, number, start)

        block.loop(self.plan.steps // lanes, step_squares, name="square")

    # ------------------------------------------------------------------------------------------------------ results

    def _results(self, block: Block, tile: Value, source: Value, column: Value, columns: ColumnTile) -> None:
        """Transform one tile's products back, and store what of it lies in the image."""
        plan, lanes, size = self.plan, self.lanes, self.plan.outputs
        place = place_of(block, plan, tile)
        rows = block.let(tirx.min(index(size), plan.geometry.rows - place.y), "rows")
        across = block.let(tirx.min(index(size), plan.geometry.columns - place.x), "across")

        def vector(body: Block, number: Value) -> None:
            start = body.let(wide(source + number * lanes), "start")
            outputs = body.local(size * size * lanes, name="outputs")
            transform(
                body, transposed_rows(self.matrices.a),
                lambda b, i, j: load_wide(
                    self.workspace, start + wide((i * self.matrices.inputs + j) * self.layout.result_plane), lanes),
                lambda b, i, j, value: b.store(outputs, (i * size + j) * lanes, value),
            )  # fmt: skip
            k = body.let(column + number * lanes, "k")

            def store(b: Block, i: Value, j: Value) -> None:
                y, x = b.let(place.y + i, "oy"), b.let(place.x + j, "ox")
                flat = b.let(
                    ((place.image * plan.geometry.rows + y) * plan.geometry.columns + x) * self.count + k, "flat"
                )
                point = Point((place.image, y, x, k)).vector(3, lanes)
                value = b.let(load(outputs, (i * size + j) * lanes, lanes), "value")
                b.store(self.y, flat, self.epilogue.apply(b, value, point))

            body.loop(rows, lambda b, i: b.loop(across, lambda d, j: store(d, i, j), name="ox"), name="oy")

        block.loop(columns.width // lanes, vector, name="k")
