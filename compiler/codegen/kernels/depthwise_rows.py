"""Depth-wise convolution, forward and input gradient: a tile is some output columns of one row by one vector of
channels. Rows outside the image are skipped by a scalar condition; border columns have code of their own."""

from __future__ import annotations

from functools import partial

from tvm import tirx

from compiler.codegen.kernels.register_tile import Epilogue, Place, RegisterTile, fma, load_wide, prefetch, wide
from compiler.codegen.kernels.share import share_out
from compiler.codegen.kernels.taps import AxisPhase, axis_phases
from compiler.codegen.kernels.tiling import ColumnTile, divisor_near, vector_pieces
from compiler.codegen.tir import Block, Operands, Value, index
from compiler.kernel_spec import DepthwiseSpec
from compiler.targets import Target

_FEWEST_COLUMNS, _MOST_COLUMNS = 4, 8
Taps = tuple[tuple[int, int], ...]


class DepthwiseRows:
    """One kernel."""

    def __init__(self, spec: DepthwiseSpec, operands: Operands, target: Target, slots: int, *, ahead: bool) -> None:
        self.spec, self.slots, self.lanes, self.ahead = spec, slots, target.lanes, ahead
        self.x, self.w, *extra = operands.inputs
        self.y = operands.outputs[0]
        self.epilogue = Epilogue.of(spec.epilogue, extra, spec.epilogue_inputs, 4)
        self.rows, self.columns = axis_phases(spec, 0), axis_phases(spec, 1)
        forward = spec.kind == "forward"
        self.out_shape = (spec.oh, spec.ow) if forward else (spec.h, spec.w)
        self.in_shape = (spec.h, spec.w) if forward else (spec.oh, spec.ow)

    def emit(self, block: Block) -> None:
        """All output rows, shared out among threads."""
        most = self.rows[0].count

        def row(body: Block, unit: Value) -> None:
            image = body.let(tirx.truncdiv(unit, index(most)), "image")
            q = body.let(unit - image * most, "q")
            for phase in self.rows:
                if phase.count == most:
                    self._row(image, phase, q, body)
                else:
                    body.when(tirx.LT(q, index(phase.count)), partial(self._row, image, phase, q))

        def slot_body(body: Block, _slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: row(b, b.let(first + i, "unit")), name="row")

        share_out(block, self.slots, self.spec.n * most, slot_body)

    def _row(self, image: Value, phase: AxisPhase, q: Value, block: Block) -> None:
        """One output row: border columns one by one, the rest in tiles, all column phases of a place together."""
        low = max(columns.interior[0] for columns in self.columns)
        high = max(low, min(columns.interior[1] for columns in self.columns))

        def border(first: int, end: int) -> None:
            for one in range(first, end):
                for columns in self.columns:
                    if one < columns.count:
                        self._tile(block, image, phase, q, columns, index(one), 1, columns.taps_at(one))

        def tiles(body: Block, first: Value, width: int) -> None:
            for columns in self.columns:
                self._tile(body, image, phase, q, columns, first, width, columns.taps)

        border(0, low)
        width = divisor_near(max(high - low, 1), _FEWEST_COLUMNS, _MOST_COLUMNS)
        turns, rest = divmod(high - low, width)
        block.loop(turns, lambda b, i: tiles(b, b.let(i * width + low, "column"), width), name="columns")
        if rest:
            tiles(block, index(high - rest), rest)
        border(high, max(columns.count for columns in self.columns))

    def _tile(
        self, block: Block, image: Value, phase: AxisPhase, q: Value,
        columns: AxisPhase, first: Value, width: int, taps: Taps,
    ) -> None:  # fmt: skip
        """`width` columns from number `first` of a column phase, all channels."""
        whole = self.spec.c // self.lanes

        def channels(body: Block, c: Value, lanes: int) -> None:
            tile = RegisterTile(body, width, ColumnTile((lanes,), lanes))
            for tap, offset in phase.taps:
                place = body.let(q * phase.input_step + offset, "y")
                low, high = phase.inside(offset)

                def products(inner: Block, place: Value = place, tap: int = tap) -> None:
                    self._products(inner, tile, image, place, tap, columns, first, taps, c)

                if (low, high) == (0, phase.count):
                    products(body)
                elif low < high:
                    inside = tirx.And(tirx.LE(index(0), place), tirx.LT(place, index(phase.input_extent)))
                    body.when(inside, products)
            if self.ahead:
                self._fetch_ahead(body, width, image, phase, q, columns, first, c)
            self._store(body, tile, image, phase, q, columns, first, c)

        block.loop(whole, lambda b, i: channels(b, b.let(i * self.lanes, "c"), self.lanes), name="channels")
        for start, lanes in vector_pieces(self.spec.c - whole * self.lanes, self.lanes):
            channels(block, index(whole * self.lanes + start), lanes)

    def _products(
        self, block: Block, tile: RegisterTile, image: Value, row: Value, row_tap: int,
        columns: AxisPhase, first: Value, taps: Taps, c: Value,
    ) -> None:  # fmt: skip
        """All products with one input row. An input that several columns read is loaded once."""
        height, width = self.in_shape
        lanes = tile.columns.width
        start = (image * height + row) * width + first * columns.input_step
        base = block.let(wide(start * self.spec.c + c), "x_base")
        weights = block.let(wide(c + row_tap * self.spec.kernel[1] * self.spec.c), "w_base")
        vectors = {tap: block.let(load_wide(self.w, weights + wide(tap * self.spec.c), lanes), "w") for tap, _ in taps}
        loaded: dict[int, Value] = {}
        for column in range(tile.rows):
            for tap, offset in taps:
                place = column * columns.input_step + offset
                if place not in loaded:
                    loaded[place] = block.let(load_wide(self.x, base + wide(place * self.spec.c), lanes), "x")
                tile.put(block, column, 0, fma(loaded[place], vectors[tap], tile.get(column, 0, lanes), lanes))

    def _fetch_ahead(
        self, block: Block, width: int, image: Value, phase: AxisPhase, q: Value,
        columns: AxisPhase, first: Value, c: Value,
    ) -> None:  # fmt: skip
        """Ask for what the next output row will need for the first time, below these columns."""
        height, row_pixels = self.in_shape
        below = q * phase.input_step + max((offset for _, offset in phase.taps), default=0) + 1
        pixel = (image * height + below) * row_pixels + first * columns.input_step
        base = block.let(wide(pixel * self.spec.c + c), "ahead")
        for row in range(phase.input_step):
            for column in range(width * columns.input_step):
                prefetch(block, self.x, base + wide((row * row_pixels + column) * self.spec.c))

    def _fetch_output(self, block: Block, width: int, base: Value, row_step: int, column_step: int) -> None:
        """Ask for what the next row's epilogue reads point by point, if it does, and for where that row goes."""
        _, columns = self.out_shape
        shape = (self.spec.n, *self.out_shape, self.spec.c)
        alike = [b for b, access in self.epilogue.inputs if access.type.shape == shape and access.strides[3] == 1]
        if not alike:
            return
        below = block.let(wide(base) + wide(row_step * columns * self.spec.c), "below")
        for buffer in (self.y, *alike):
            for column in range(width):
                prefetch(block, buffer, below + wide(column * column_step * self.spec.c), write=buffer is self.y)

    def _store(
        self, block: Block, tile: RegisterTile, image: Value, phase: AxisPhase, q: Value,
        columns: AxisPhase, first: Value, c: Value,
    ) -> None:  # fmt: skip
        height, width = self.out_shape
        row = block.let(q * phase.step + phase.first, "oh")
        column = block.let(first * columns.step + columns.first, "ow")
        base = block.let(((image * height + row) * width + column) * self.spec.c + c, "place")
        if self.ahead:
            self._fetch_output(block, tile.rows, base, phase.step, columns.step)
        place = Place(
            self.y, base, columns.step * self.spec.c, 2, lambda r, _: (image, row, column + r * columns.step, c)
        )
        self.epilogue.tile(block, tile, place)
