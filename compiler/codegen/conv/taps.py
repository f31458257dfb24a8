"""TIR of dense convolutions as sums over taps: forward, and input gradient by phases of the output position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.conv.band import Image, Source, Unit, fill, unit_of, units
from compiler.codegen.conv.phases import AlikePhases, AxisPhase, TapRun, alike_phases, axis_phases, tap_run
from compiler.codegen.conv.plan import ConvPlan, out_rows, panel_elements
from compiler.codegen.tile.epilogue import Epilogue
from compiler.codegen.tile.packing import Matrix, pack_panel
from compiler.codegen.tile.register_tile import SUM_BLOCK, Place, RegisterTile, Scalars, Vectors
from compiler.codegen.tile.share import share_out
from compiler.codegen.tile.tiling import ColumnTile
from compiler.codegen.tir.tir import Block, Operands, Value, divide, index
from compiler.kernels.spec import ConvSpec


@dataclass(frozen=True, slots=True)
class _Phase:
    """A row's and a column's phase, each of one turn among alike ones; its taps begin at a step of the panel."""

    rows: AlikePhases
    columns: AlikePhases
    row_turn: Value | int
    column_turn: Value | int
    step: Value | int

    @property
    def row(self) -> AxisPhase:
        return self.rows.phase

    @property
    def column(self) -> AxisPhase:
        return self.columns.phase

    @property
    def row_tap(self) -> Value | int:
        """Returns how much further this turn's taps are than those of the first turn."""
        return self.row_turn * self.rows.tap_shift

    @property
    def column_tap(self) -> Value | int:
        return self.column_turn * self.columns.tap_shift


def _turns(block: Block, count: int, write: Callable[[Block, Value | int], None]) -> None:
    if count == 1:
        write(block, 0)
    else:
        block.loop(count, write, name="phase")


class ConvTaps:
    """The emitter of one kernel."""

    def __init__(self, spec: ConvSpec, plan: ConvPlan, operands: Operands) -> None:
        self.spec, self.plan, self.lanes = spec, plan, plan.precision.lanes
        x, self.w, *extra = operands.inputs
        self.y, self.workspace = operands.outputs[0], operands.workspace
        self.epilogue = Epilogue.of(spec.epilogue, extra, spec.epilogue_inputs, 4)
        self.rows, self.columns = axis_phases(spec, 0), axis_phases(spec, 1)
        forward = spec.kind == "forward"
        height, width = (spec.h, spec.w) if forward else (spec.oh, spec.ow)
        self.image = Image(x, height, width, spec.c if forward else spec.k)
        self.out_shape = (spec.oh, spec.ow) if forward else (spec.h, spec.w)
        self.count = spec.k if forward else spec.c
        self.channels = plan.band.channels
        self.group_panel = panel_elements(spec, plan) // spec.groups
        # Weights of one tap, [step = input channel, column = output channel].
        self.w_strides = (spec.k, 1) if forward else (1, spec.k)
        self.phases = self._phases()

    def _phases(self) -> list[tuple[AlikePhases, AlikePhases, int]]:
        """(row phases, column phases, step at which the taps of the first begin in a panel)."""
        phases, step = [], 0
        for rows in alike_phases(self.rows):
            for columns in alike_phases(self.columns):
                phases.append((rows, columns, step))
                step += rows.turns * columns.turns * self._steps(rows.phase, columns.phase)
        return phases

    def _steps(self, row: AxisPhase, column: AxisPhase) -> int:
        """Returns the number of steps that the taps of one phase take of a panel."""
        return len(row.taps) * len(column.taps) * self.channels

    def _each_phase(self, block: Block, write: Callable[[Block, _Phase], None]) -> None:
        """Code for every phase, in the order of panels; those that are alike share theirs."""
        for rows, columns, step in self.phases:
            self._each_turn(block, rows, columns, step, write)

    def _each_turn(
        self, block: Block, rows: AlikePhases, columns: AlikePhases, step: int, write: Callable[[Block, _Phase], None]
    ) -> None:
        def turn(body: Block, i: Value | int, j: Value | int) -> None:
            place = step + (i * columns.turns + j) * self._steps(rows.phase, columns.phase)
            write(body, _Phase(rows, columns, i, j, place))

        _turns(block, rows.turns, lambda b, i: _turns(b, columns.turns, lambda c, j: turn(c, i, j)))

    def emit(self, block: Block) -> None:
        """Packs the weights if need be, then all units of work."""
        if not self.plan.direct:
            self._pack(block)
        band, rows = self.plan.band, out_rows(self.rows)
        groups, blocks = units(band, self.spec.n, rows)

        def unit(body: Block, slot: Value, number: Value) -> None:
            group: Value | int = 0
            if self.spec.groups > 1:
                number, group = divide(body, number, self.spec.groups)
            unit = unit_of(body, band, number, self.spec.n, rows, group)
            base = body.let(slot * band.elements + panel_elements(self.spec, self.plan), "band")
            source = fill(body, band, self.image, unit, self.workspace, base, self.lanes)
            self._unit(body, unit, source)

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: unit(b, slot, b.let(first + i, "unit")), name="unit")

        share_out(block, self.plan.slots, groups * blocks * self.spec.groups, slot_body)

    # ------------------------------------------------------------------------------------------------------ weights

    def _pack(self, block: Block) -> None:
        """Panels of every column tile: for each phase, row tap, column tap (in the order they are read), channels."""
        cut = self.plan.columns
        channels, weights = self.channels, self.spec.weight[2] * self.spec.k
        # From one group to the next, whose weights are further columns.
        group_w = self.spec.group[1]

        def phase_panel(body: Block, tile: ColumnTile, number: Value, phase: _Phase, group: Value | int) -> None:
            rows, cols = tap_run(phase.row), tap_run(phase.column)
            first = group * self.group_panel + number * (self._panel_steps() * cut.tile.width)
            base = body.let(first + phase.step * tile.width, "panel")

            def tap_panel(b: Block, i: Value, j: Value) -> None:
                row_tap = rows.tap + phase.row_tap + i * rows.tap_step
                tap = row_tap * self.spec.kernel[1] + cols.tap + phase.column_tap + j * cols.tap_step
                start = b.let(tap * weights + group * group_w, "tap")
                source = Matrix(self.w, start, *self.w_strides).at(0, number * cut.tile.width)
                place = base + (i * cols.count + j) * (channels * tile.width)
                pack_panel(b, source, self.workspace, place, steps=channels, tile=tile, lanes=self.lanes)

            body.loop(rows.count, lambda b, i: b.loop(cols.count, lambda c, j: tap_panel(c, i, j), name="tap"))

        def tile_panel(body: Block, tile: ColumnTile, number: Value, group: Value | int = 0) -> None:
            self._each_phase(body, lambda b, phase: phase_panel(b, tile, number, phase, group))

        if self.spec.groups > 1:
            self._pack_groups(block, tile_panel)
            return

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: tile_panel(b, cut.tile, b.let(first + i, "j")), name="column_tile")
            if cut.tail:
                tail = cut.tail
                last = tirx.EQ(slot, index(self.plan.slots - 1))
                body.when(last, lambda b: tile_panel(b, tail, index(cut.full)))

        share_out(block, self.plan.slots, cut.full, slot_body)

    def _pack_groups(self, block: Block, tile_panel: Callable[[Block, ColumnTile, Value, Value], None]) -> None:
        """Threads share out groups, each with all its column tiles."""
        cut = self.plan.columns

        def panels(body: Block, group: Value) -> None:
            body.loop(cut.full, lambda b, j: tile_panel(b, cut.tile, j, group), name="column_tile")
            if cut.tail:
                tile_panel(body, cut.tail, index(cut.full), group)

        def slot_body(body: Block, _slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: panels(b, b.let(first + i, "group")), name="group")

        share_out(block, self.plan.slots, self.spec.groups, slot_body)

    def _panel_steps(self) -> int:
        return self.spec.kernel[0] * self.spec.kernel[1] * self.channels

    def _panel(self, number: Value, step: Value | int, tile: ColumnTile, group: Value | int) -> Vectors:
        width = self.plan.columns.tile.width
        if self.plan.direct:
            return Vectors(self.w, number * width + step * self.spec.k, self.spec.k)
        base = group * self.group_panel + number * (self._panel_steps() * width) + step * tile.width
        return Vectors(self.workspace, base, tile.width)

    # -------------------------------------------------------------------------------------------------------- tiles

    def _unit(self, block: Block, unit: Unit, source: Source) -> None:
        cut = self.plan.columns

        def column_tile(body: Block, tile: ColumnTile, number: Value) -> None:
            def phase_tiles(b: Block, phase: _Phase) -> None:
                panel = self._panel(number, phase.step, tile, unit.group)
                self._phase(b, unit, source, phase, tile, number, panel)

            self._each_phase(body, phase_tiles)

        block.loop(cut.full, lambda b, j: column_tile(b, cut.tile, j), name="column_tile")
        if cut.tail:
            column_tile(block, cut.tail, index(cut.full))

    def _phase(
        self, block: Block, unit: Unit, source: Source, phase: _Phase, tile: ColumnTile, number: Value, panel: Vectors
    ) -> None:
        """Emits all outputs of one phase and one column tile in a unit."""
        row, column = phase.row, phase.column
        full, rest = divmod(column.count, self.plan.rows)

        def out_row(body: Block, image: Value, q: Value) -> None:
            def tiles(b: Block, first: Value, height: int) -> None:
                self._tile(b, unit, source, image, q, phase, first, height, tile, number, panel)

            body.loop(full, lambda b, i: tiles(b, b.let(i * self.plan.rows, "column"), self.plan.rows), name="columns")
            if rest:
                tiles(body, index(full * self.plan.rows), rest)

        def guarded(body: Block, image: Value, q: Value) -> None:
            if row.count == out_rows(self.rows):
                out_row(body, image, q)
            else:
                body.when(tirx.LT(unit.first + q, index(row.count)), lambda b: out_row(b, image, q))

        block.loop(unit.images, lambda b, g: b.loop(unit.rows, lambda c, q: guarded(c, g, q), name="row"), name="image")

    def _tile(
        self,
        block: Block,
        unit: Unit,
        source: Source,
        image: Value,
        q: Value,
        phase: _Phase,
        first: Value,
        height: int,
        tile: ColumnTile,
        number: Value,
        panel: Vectors,
    ) -> None:
        band, column = self.plan.band, phase.column
        total = RegisterTile(block, height, tile)
        # Input of the first tap position of the band for the tile's first output column.
        place = image * source.image_stride + q * (band.row_step * source.row_stride)
        base = block.let(source.base + place + first * (column.input_step * band.pixel), "x")
        pixel = Scalars(source.buffer, base, column.input_step * band.pixel, 1)
        self._taps(block, total, pixel, source.row_stride, tap_run(phase.row), tap_run(column), panel)
        self._store(block, total, unit, image, q, phase, first, number)

    def _taps(
        self,
        block: Block,
        total: RegisterTile,
        pixel: Scalars,
        row_stride: int,
        rows: TapRun,
        columns: TapRun,
        panel: Vectors,
    ) -> None:
        """Adds all taps. Neighbouring column taps are one run: their channels follow each other in the band."""
        if not rows.count or not columns.count:
            return
        band = self.plan.band
        merged = columns.count == 1 or (columns.offset_step == 1 and band.pixel == band.channels)
        turns, steps = (1, columns.count * self.channels) if merged else (columns.count, self.channels)
        long = rows.count * columns.count * self.channels > 3 * SUM_BLOCK // 2
        start = (rows.offset - band.top) * row_stride + (columns.offset - band.left) * band.pixel

        def run(body: Block, i: Value, j: Value) -> None:
            a = pixel.at(start + i * (rows.offset_step * row_stride) + j * (columns.offset_step * band.pixel))
            b = panel.at((i * turns + j) * (steps * panel.step_stride))
            if not long or steps > 3 * SUM_BLOCK // 2:
                total.blocked_run(body, a, b, steps)
                return
            part = RegisterTile(body, total.rows, total.columns)
            part.run(body, a, b, steps)
            total.add(body, part)

        block.loop(rows.count, lambda body, i: body.loop(turns, lambda b, j: run(b, i, j), name="tap"), name="tap_row")

    def _store(
        self,
        block: Block,
        total: RegisterTile,
        unit: Unit,
        image: Value,
        q: Value,
        phase: _Phase,
        first: Value,
        number: Value,
    ) -> None:
        height, width = self.out_shape
        n = block.let(unit.image + image, "n")
        row, column = phase.row, phase.column
        y = block.let((unit.first + q) * row.step + (row.first + phase.row_turn), "oh")
        x = block.let(first * column.step + (column.first + phase.column_turn), "ow")
        first_k = unit.group * (self.count // self.spec.groups)
        k = block.let(number * self.plan.columns.tile.width + first_k, "k")
        base = block.let(((n * height + y) * width + x) * self.count + k, "place")
        place = Place(self.y, base, column.step * self.count, 2, lambda r, c: (n, y, x + r * column.step, k + c))
        self.epilogue.tile(block, total, place)
