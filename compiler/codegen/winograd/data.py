"""TIR of Winograd forward and input-gradient convolutions."""

from __future__ import annotations

from tvm import tirx

from compiler.codegen.tile.epilogue import Epilogue
from compiler.codegen.tile.packing import transposed
from compiler.codegen.tile.register_tile import RegisterTile, Scalars, Vectors, load_wide, prefetch, wide
from compiler.codegen.tile.tiling import ColumnTile
from compiler.codegen.tir.tir import Block, Operands, Point, Value, divide, index, load
from compiler.codegen.winograd.plan import WinogradPlan, layout
from compiler.codegen.winograd.points import TAPS, transposed_rows
from compiler.codegen.winograd.tiles import (
    Picture,
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


class WinogradData:
    """The emitter of one kernel."""

    def __init__(self, spec: ConvSpec, plan: WinogradPlan, operands: Operands) -> None:
        self.spec, self.plan, self.lanes = spec, plan, plan.precision.lanes
        x, self.w, *extra = operands.inputs
        self.y, self.workspace = operands.outputs[0], operands.workspace
        self.epilogue = Epilogue.of(spec.epilogue, extra, spec.epilogue_inputs, 4)
        self.matrices, self.layout = plan.matrices, layout(spec, plan)
        g = plan.geometry
        self.picture = Picture(x, g.height, g.width, g.channels, g.top, g.left, self.matrices.inputs)
        self.count = plan.columns.count
        self.tiles = plan.columns.full + (1 if plan.columns.tail else 0)

    def emit(self, block: Block) -> None:
        """Block after block: transformed inputs, then products."""
        each_turn(block, self.plan, self.layout, self._turn)

    def _turn(self, block: Block, turn: Turn) -> None:
        at = self.layout

        def inputs(body: Block, slot: Value, begin: Value, end: Value) -> None:
            patch = body.let(slot * at.stride + (at.private + at.patch), "patch")
            body.loop(end - begin, lambda b, i: self._inputs(b, turn, b.let(begin + i, "tile"), patch), name="tile")

        def products(body: Block, slot: Value, begin: Value, end: Value) -> None:
            base = body.let(slot * at.stride + at.private, "private")
            body.loop(end - begin, lambda b, i: self._unit(b, turn, base, b.let(begin + i, "unit"), i), name="unit")

        turn.share(block, self.plan.block, inputs)
        turn.share(block, self.plan.parts * self.tiles, products)

    def _inputs(self, block: Block, turn: Turn, tile: Value, patch: Value) -> None:
        """Transforms one tile's inputs."""
        plan, at = self.plan, self.layout

        def existing(body: Block) -> None:
            out = body.let(turn.inputs + tile * at.row, "out")
            with_square(
                body,
                plan,
                self.picture,
                place_of(body, plan, turn.first + tile),
                (self.workspace, patch),
                lambda b, square: spread(
                    b, self.matrices.b, square, self.picture.channels, self.lanes, (self.workspace, out, at.plane)
                ),
            )

        if plan.block * plan.blocks == plan.tiles:
            existing(block)
        else:
            block.when(tirx.LT(turn.first + tile, index(plan.tiles)), existing)

    # ----------------------------------------------------------------------------------------------------- products

    def _unit(self, block: Block, turn: Turn, base: Value, unit: Value, unit_number: Value) -> None:
        """Computes one part of the block's tiles and one column tile; `unit_number` units came before it."""
        cut = self.plan.columns
        number, part = divide(block, unit, self.plan.parts)
        fresh = tirx.Or(tirx.EQ(unit_number, index(0)), tirx.EQ(part, index(0)))

        def columns(body: Block, tile: ColumnTile) -> None:
            self._columns(body, turn, base, part, number, tile, fresh)

        if not cut.tail or not cut.full:
            columns(block, cut.tail or cut.tile)
            return
        tail = cut.tail
        block.when(tirx.LT(number, index(cut.full)), lambda b: columns(b, cut.tile), lambda b: columns(b, tail))

    def _columns(
        self, block: Block, turn: Turn, base: Value, part: Value, number: Value, tile: ColumnTile, fresh: Value
    ) -> None:
        plan, at = self.plan, self.layout
        column = block.let(number * plan.columns.tile.width, "column")
        panels = plan.geometry.channels // plan.steps
        keeps_panels = plan.parts > 1

        def steps(body: Block, piece: Value) -> None:
            step = body.let(piece * plan.steps, "step")
            panel = body.let(base + piece * at.panel_part, "panel") if keeps_panels else base
            if keeps_panels:
                body.when(fresh, lambda b: self._weights(b, base, panel, step, column, tile))
            else:
                self._weights(body, base, panel, step, column, tile)
            inputs = body.let(turn.inputs + part * (plan.part * at.row) + step, "inputs")
            add = tirx.LT(index(0), piece) if panels > 1 else None
            self._products(body, inputs, panel, base + at.results, tile, add)

        block.loop(panels, steps, name="steps")
        start = block.let(part * plan.part, "start")
        count = block.let(
            tirx.min(index(plan.part), tirx.min(index(plan.block), plan.tiles - turn.first) - start), "count"
        )
        block.loop(
            count,
            lambda b, t: self._results(
                b, b.let(turn.first + start + t, "tile"), base + at.results + t * tile.width, column, tile
            ),
            name="tile",
        )

    def _products(
        self, block: Block, inputs: Value, panel: Value, results: Value, tile: ColumnTile, add: Value | None
    ) -> None:
        """Multiplies all tiles of a part by one panel; results are stored, or added if `add` holds."""
        plan, at = self.plan, self.layout
        full, rest = divmod(plan.part, plan.rows)

        def row_tile(body: Block, p: Value, m: Value, height: int) -> None:
            total = RegisterTile(body, height, tile)
            a = Scalars(self.workspace, inputs + p * at.plane + m * at.row, at.row, 1)
            total.run(body, a, Vectors(self.workspace, panel + p * at.panel_plane, tile.width), plan.steps)
            place = body.let(wide(results + p * at.result_plane + m * tile.width), "place")

            def put(inner: Block, *, more: bool) -> None:
                put_tile(inner, total, self.workspace, place, tile.width, add=more)

            if add is None:
                put(body, more=False)
            else:
                body.when(add, lambda b: put(b, more=True), lambda b: put(b, more=False))

        def product(body: Block, p: Value) -> None:
            body.loop(full, lambda b, i: row_tile(b, p, b.let(i * plan.rows, "m"), plan.rows), name="row_tile")
            if rest:
                row_tile(body, p, index(full * plan.rows), rest)

        block.loop(self.matrices.products, product, name="product")

    # ------------------------------------------------------------------------------------------------------ weights

    def _weights(self, block: Block, base: Value, panel: Value, step: Value, column: Value, tile: ColumnTile) -> None:
        """Transforms the weights of some steps and one column tile to a panel.

        Their taps are first copied side by side, one after the other: in the weights they lie so far apart (a power
        of two, as a rule) that together they would throw each other out of the cache.
        """
        lanes, plane = self.lanes, self.layout.tap_plane
        taps = block.let(base + self.layout.taps, "taps")

        def copy(body: Block, tap: Value, number: Value) -> None:
            place = body.let(taps + tap * plane + number * (lanes * tile.width), "place")
            for start in range(0, tile.width, lanes):
                self._copy_square(body, tap, step + number * lanes, column + start, place + start, tile.width)

        def emit_step(body: Block, s: Value) -> None:
            row = body.let(s * tile.width, "row")
            for start in range(0, tile.width, lanes):
                self._vector(
                    body, body.let(wide(taps + row + start), "from"), body.let(wide(panel + row + start), "to")
                )

        squares = self.plan.steps // lanes
        block.loop(TAPS * TAPS, lambda b, tap: b.loop(squares, lambda c, i: copy(c, tap, i), name="square"), name="tap")
        block.loop(self.plan.steps, emit_step, name="step")

    def _copy_square(self, block: Block, tap: Value, step: Value, column: Value, place: Value, stride: int) -> None:
        """Copies one tap's weights of some steps and columns, and asks for the next steps' (an input gradient's steps
        are the last axis of the weights).
        """
        spec, lanes = self.spec, self.lanes
        forward = spec.kind == "forward"
        first = step * spec.k + column if forward else column * spec.k + step
        source = block.let(tap * (spec.c * spec.k) + first, "source")
        for i in range(lanes):
            prefetch(block, self.w, wide(source + (i * spec.k + (lanes * spec.k if forward else lanes))))
        rows = [block.let(load(self.w, source + i * spec.k, lanes), "row") for i in range(lanes)]
        for i, vector in enumerate(rows if forward else transposed(block, rows)):
            block.store(self.workspace, place + i * stride, vector)

    def _vector(self, block: Block, source: Value, out: Value) -> None:
        """Transforms the taps of one step; an input gradient's are turned by half a circle."""
        at, lanes, inputs = self.layout, self.lanes, self.matrices.inputs
        source, out = block.let(wide(source), "source"), block.let(wide(out), "out")

        def get(_: Block, i: int, j: int) -> Value:
            tap = i * TAPS + j if self.spec.kind == "forward" else TAPS * TAPS - 1 - i * TAPS - j
            return load_wide(self.workspace, source + wide(tap * at.tap_plane), lanes)

        def put(body: Block, i: int, j: int, value: Value) -> None:
            store_wide(body, self.workspace, out + wide((i * inputs + j) * at.panel_plane), value, lanes)

        transform(block, self.matrices.g, get, put)

    # ------------------------------------------------------------------------------------------------------ results

    def _results(self, block: Block, tile: Value, source: Value, column: Value, columns: ColumnTile) -> None:
        """Transforms one tile's products back, and stores what of it lies in the image."""
        plan, lanes, size = self.plan, self.lanes, self.plan.outputs
        place = place_of(block, plan, tile)
        rows = block.let(tirx.min(index(size), plan.geometry.rows - place.y), "rows")
        across = block.let(tirx.min(index(size), plan.geometry.columns - place.x), "across")

        def vector(body: Block, number: Value) -> None:
            start = body.let(wide(source + number * lanes), "start")
            outputs = body.local(size * size * lanes, name="outputs")
            transform(
                body,
                transposed_rows(self.matrices.a),
                lambda b, i, j: load_wide(
                    self.workspace, start + wide((i * self.matrices.inputs + j) * self.layout.result_plane), lanes
                ),
                lambda b, i, j, value: b.store(outputs, (i * size + j) * lanes, value),
            )
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
