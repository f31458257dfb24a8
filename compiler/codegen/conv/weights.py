"""TIR of the weight gradient of a dense convolution: for each kernel row a matrix product
d_w[kw and c, k] = sum over output positions of x[position, kw and c] * d_y[position, k].

The gradient of a bias, if it is wanted, is summed unit by unit beside it, which brings d_y into the cache for the
products; where threads share out weights, each sums some channels of d_y first.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from compiler.codegen.conv.band import Image, Source, Unit, fill, unit_of, units
from compiler.codegen.conv.phases import forward_axis, tap_run
from compiler.codegen.conv.plan import ConvPlan, weight_elements, weight_rows
from compiler.codegen.tile.epilogue import Epilogue
from compiler.codegen.tile.packing import Matrix, zero_run
from compiler.codegen.tile.register_tile import RegisterTile, Scalars, Vectors
from compiler.codegen.tile.share import share_out
from compiler.codegen.tile.sums import store_sums, sum_columns
from compiler.codegen.tile.tiling import ColumnTile, vector_pieces
from compiler.codegen.tir.tir import Block, Operands, Point, Value, index, load
from compiler.kernels.spec import ConvSpec


class ConvWeights:
    """The emitter of one kernel."""

    def __init__(self, spec: ConvSpec, plan: ConvPlan, operands: Operands) -> None:
        self.spec, self.plan, self.lanes = spec, plan, plan.precision.lanes
        x, self.d_y, *extra = operands.inputs
        self.d_w, *sums = operands.outputs
        self.d_bias, self.workspace = (sums[0] if sums else None), operands.workspace
        self.epilogue = Epilogue.of(spec.epilogue, extra, spec.epilogue_inputs, 4)
        self.image = Image(x, spec.h, spec.w, spec.c)
        self.channels = spec.group[0]
        self.row_taps, self.column_taps = tap_run(forward_axis(spec, 0)), tap_run(forward_axis(spec, 1))
        self.m = weight_rows(spec)
        self.elements = weight_elements(spec)
        self.sums_buffer = self.workspace if plan.sums else self.d_w

    def emit(self, block: Block) -> None:
        """Sums, then the addition of the threads' sums."""
        if self.plan.split == "units":
            self._share_units(block)
        else:
            self._share_weights(block)
        if self.plan.sums:
            self._combine(block)

    def _share_units(self, block: Block) -> None:
        groups, blocks = units(self.plan.band, self.spec.n, self.spec.oh)
        full = self.m // self.plan.rows

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            sums = body.let(slot * self.plan.sum_count, "sums")
            zero_run(body, self.sums_buffer, sums, self.plan.sum_count, self.lanes)

            def unit(b: Block, number: Value, group: Value | int) -> None:
                self._unit(b, slot, number, sums, index(0), index(full), tail=None, group=group)

            def every_group(b: Block, number: Value) -> None:
                if self.spec.groups == 1:
                    unit(b, number, 0)
                else:
                    b.loop(self.spec.groups, lambda c, group: unit(c, number, group), name="group")

            body.loop(end - first, lambda b, i: every_group(b, b.let(first + i, "unit")), name="unit")

        share_out(block, self.plan.slots, groups * blocks, slot_body)

    def _share_weights(self, block: Block) -> None:
        """Emits code in which each thread owns some row tiles of every kernel row's product, over all units."""
        if self.d_bias is not None:
            self._share_channels(block)
        groups, blocks = units(self.plan.band, self.spec.n, self.spec.oh)

        def zeros(body: Block, _slot: Value, first: Value, end: Value) -> None:
            body.loop(
                end - first,
                lambda b, r: zero_run(
                    b, self.sums_buffer, b.let((first + r) * self.spec.k, "row"), self.spec.k, self.lanes
                ),
                name="row",
            )

        share_out(block, self.plan.slots, self.elements // self.spec.k, zeros)

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            last = tirx.EQ(slot, index(self.plan.slots - 1))
            body.loop(
                groups * blocks,
                lambda b, number: self._unit(b, slot, number, index(0), first, end, tail=last),
                name="unit",
            )

        share_out(block, self.plan.slots, self.m // self.plan.rows, slot_body)

    def _share_channels(self, block: Block) -> None:
        """Emits code in which each thread sums some channels of d_y over all positions."""
        cut, positions = self.plan.columns, self.spec.n * self.spec.oh * self.spec.ow

        def columns(body: Block, tile: ColumnTile, number: Value) -> None:
            k = body.let(number * cut.tile.width, "k")
            sum_columns(body, Matrix(self.d_y, k, self.spec.k, 1), positions, tile, self.d_bias, k)

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: columns(b, cut.tile, b.let(first + i, "j")), name="column_tile")
            if cut.tail:
                tail = cut.tail
                last = tirx.EQ(slot, index(self.plan.slots - 1))
                body.when(last, lambda b: columns(b, tail, index(cut.full)))

        share_out(block, self.plan.slots, cut.full, slot_body)

    def _sum_unit(self, block: Block, unit: Unit, place: Value) -> None:
        """Adds the sums of one unit's d_y to those at `place`."""
        spec, cut = self.spec, self.plan.columns
        positions = unit.rows * spec.ow

        def columns(body: Block, tile: ColumnTile, number: Value) -> None:
            k = body.let(number * cut.tile.width + unit.group * spec.group[1], "k")
            total = RegisterTile(body, 1, tile)

            def image(inner: Block, number: Value) -> None:
                first = ((unit.image + number) * spec.oh + unit.first) * (spec.ow * spec.k) + k
                total.gather(inner, Vectors(self.d_y, first, spec.k), positions)

            body.loop(unit.images, image, name="image")
            store_sums(body, total, self.workspace, body.let(place + k, "place"), 0)

        block.loop(cut.full, lambda b, j: columns(b, cut.tile, j), name="column_tile")
        if cut.tail:
            columns(block, cut.tail, index(cut.full))

    def _unit(
        self,
        block: Block,
        slot: Value,
        number: Value,
        sums: Value,
        first: Value,
        end: Value,
        *,
        tail: Value | None,
        group: Value | int = 0,
    ) -> None:
        """Emits one unit's part of the row tiles [first, end), and of the last, lower one (`tail`: only if that
        holds).
        """
        band = self.plan.band
        unit = unit_of(block, band, number, self.spec.n, self.spec.oh, group)
        base = block.let(slot * band.elements + self.plan.sums * self.plan.sum_count, "band")
        source = fill(block, band, self.image, unit, self.workspace, base, self.lanes)
        if self.d_bias is not None and self.plan.split == "units":
            self._sum_unit(block, unit, sums + self.elements)
        cut = self.plan.columns
        full, rest = divmod(self.m, self.plan.rows)

        def row_tile(body: Block, place: Value, x: Value, m: Value, height: int) -> None:
            def tile(b: Block, columns: ColumnTile, j: Value) -> None:
                k = b.let(j * cut.tile.width + group * self.spec.group[1], "k")
                self._tile(b, unit, source, x + m, height, columns, k, place + m * self.spec.k + k)

            body.loop(cut.full, lambda b, j: tile(b, cut.tile, j), name="column_tile")
            if cut.tail:
                tile(body, cut.tail, index(cut.full))

        def product(body: Block, i: Value, j: Value) -> None:
            place = body.let(sums + (i * self.spec.kernel[1] + j) * (self.channels * self.spec.k), "sums")
            row = i * (self.row_taps.offset_step * source.row_stride)
            x = body.let(source.base + row + j * (self.column_taps.offset_step * band.pixel), "x")
            body.loop(
                end - first,
                lambda b, t: row_tile(b, place, x, b.let((first + t) * self.plan.rows, "m"), self.plan.rows),
                name="row_tile",
            )
            if rest and tail is None:
                row_tile(body, place, x, index(full * self.plan.rows), rest)
            elif rest:
                body.when(tail, lambda b: row_tile(b, place, x, index(full * self.plan.rows), rest))

        turns = 1 if self.m != self.channels or self.spec.kernel[1] == 1 else self.spec.kernel[1]
        block.loop(
            self.spec.kernel[0], lambda b, i: b.loop(turns, lambda c, j: product(c, i, j), name="tap"), name="tap_row"
        )

    def _tile(
        self,
        block: Block,
        unit: Unit,
        source: Source,
        x: Value,
        height: int,
        columns: ColumnTile,
        k: Value,
        place: Value,
    ) -> None:
        """Sums one tile over all positions of the unit and adds it to the sums."""
        spec, band = self.spec, self.plan.band
        total = RegisterTile(block, height, columns)

        def out_row(body: Block, image: Value, q: Value) -> None:
            pixel = x + image * source.image_stride + q * (band.row_step * source.row_stride)
            gradient = ((unit.image + image) * spec.oh + unit.first + q) * (spec.ow * spec.k) + k
            a = Scalars(source.buffer, pixel, 1, spec.strides[1] * band.pixel)
            total.run(body, a, Vectors(self.d_y, gradient, spec.k), spec.ow)

        block.loop(unit.images, lambda b, g: b.loop(unit.rows, lambda c, q: out_row(c, g, q), name="row"), name="image")
        store_sums(block, total, self.sums_buffer, block.let(place, "place"), spec.k)

    def _combine(self, block: Block) -> None:
        """Adds the threads' sums, row by row of [kh, kw, c]; those of d_y are one more row."""
        spec = self.spec

        def total(row: Value, k: Value, width: int) -> Value:
            parts = [
                load(self.workspace, row * spec.k + k + number * self.plan.sum_count, width)
                for number in range(self.plan.sums)
            ]
            return sum(parts[1:], parts[0])

        def weights(body: Block, row: Value, axes: tuple[Value, ...], k: Value, width: int) -> None:
            point = Point((*axes, k))
            point = point.vector(3, width) if width > 1 else point
            value = self.epilogue.apply(body, body.let(total(row, k, width), "sum"), point)
            body.store(self.d_w, row * spec.k + k, value)

        def one_row(body: Block, row: Value) -> None:
            tap = body.let(tirx.truncdiv(row, index(self.channels)), "tap")
            kernel_row = body.let(tirx.truncdiv(tap, index(spec.kernel[1])), "kh")
            axes = (kernel_row, tap - kernel_row * spec.kernel[1], row - tap * self.channels)
            self._along_channels(body, lambda b, k, width: weights(b, row, axes, k, width))

        def slot_body(body: Block, _slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: one_row(b, b.let(first + i, "row")), name="row")

        share_out(block, self.plan.slots, self.elements // spec.k, slot_body)
        if self.d_bias is not None and self.plan.split == "units":
            last = index(self.elements // spec.k)
            self._along_channels(block, lambda b, k, width: b.store(self.d_bias, k, total(last, k, width)))

    def _along_channels(self, block: Block, piece: Callable[[Block, Value, int], None]) -> None:
        """`piece(block, first channel, width)` for vectors that cover all output channels."""
        whole = self.spec.k // self.lanes
        block.loop(whole, lambda b, i: piece(b, b.let(i * self.lanes, "k"), self.lanes), name="k")
        for start, width in vector_pieces(self.spec.k - whole * self.lanes, self.lanes):
            piece(block, index(whole * self.lanes + start), width)
