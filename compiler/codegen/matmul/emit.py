"""TIR of matrix products after a `MatmulPlan`: who does what in which order.

The partial sums of a split reduction, outside the register tiles.

Prefetches of a product's tiles: lines of A, B, C and of what is read beside C that the next tiles will want.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx

from compiler.codegen.choice import Choice
from compiler.codegen.matmul.panels import Panels, Steps
from compiler.codegen.matmul.plan import MatmulPlan, folded, plan, workspace_bytes
from compiler.codegen.tile.epilogue import Epilogue
from compiler.codegen.tile.matrix_tile import MatrixTile
from compiler.codegen.tile.packing import zero_run
from compiler.codegen.tile.quads import QuadTile
from compiler.codegen.tile.register_tile import Place, RegisterTile, Scalars, Stream, Vectors, line_of, prefetch, wide
from compiler.codegen.tile.share import share_out
from compiler.codegen.tile.short_sums import run_in_halves
from compiler.codegen.tile.sums import store_sums, sum_columns
from compiler.codegen.tile.tiling import ColumnTile, vector_pieces
from compiler.codegen.tir import tiles
from compiler.codegen.tir.tir import Block, Buffer, Operands, Point, PrimFunc, Value, declare, finish, index, load
from compiler.kernels.spec import MatmulSpec
from compiler.targets import CpuTarget


@dataclass(frozen=True)
class Span:
    """Tiles [first, end) of an axis; `whole` if that is all of them."""

    first: Value
    end: Value
    whole: bool = False


@dataclass(frozen=True)
class Ahead:
    """The streams of one product, by what follows a tile; none where the plan fetches nothing ahead."""

    spec: MatmulSpec
    plan: MatmulPlan
    panels: Panels
    c: Buffer
    epilogue: Epilogue

    def fetch_c(self, block: Block, place: Place, height: int, tile: ColumnTile) -> None:
        """Prefetches the lines that the tile is going to write, or add to."""
        base = block.let(wide(place.base), "c")
        for row in range(height):
            for start in range(0, tile.valid, self.plan.precision.line):
                prefetch(block, place.buffer, base + wide(row * place.row_stride + start), write=True)

    def _beside_c(self) -> list[tuple[Buffer, int]]:
        """Returns what the epilogue reads in the layout of C: buffers, and how many elements further than in C."""
        spec = self.spec
        return [
            (buffer, access.offset)
            for buffer, access in self.epilogue.inputs
            if access.strides == (spec.m * spec.n, spec.n, 1) or (spec.batch == 1 and access.strides[1:] == (spec.n, 1))
        ]

    def next_tile(
        self, block: Block, batch: Value, rows: int, m: Value, tile: ColumnTile, number: Value
    ) -> list[Stream]:
        """Returns what the tile below reads, and writes when it is finished, if an epilogue makes that more than C
        alone.
        """
        buffers = self._beside_c()
        if not buffers or not self.plan.streams_c or self.plan.blocks > 1:
            return []
        spec = self.spec
        n = number * self.plan.columns.tile.width
        base = block.let((batch * spec.m + m + rows) * spec.n + n, "next")
        lines = -(-tile.valid // self.plan.precision.line)
        whole = Stream(self.c, base, rows * lines, write=True, run_lines=lines, run_stride=spec.n)
        updates = bool(spec.extra_outputs)  # what an update reads, it writes: C is among it
        others = [replace(whole, buffer=buffer, base=base + offset, write=updates) for buffer, offset in buffers]
        return others if updates else [whole, *others]

    def next_block(self, steps: Steps, m: Value, number: Value) -> list[Stream]:
        """This tile's part of the next block of the reduction: of A and of B, in the order in which they lie."""
        plan, spec = self.plan, self.spec
        if not plan.streams_blocks:
            return []
        tile = number * plan.row_tiles + tirx.truncdiv(m, index(plan.rows))
        share = (tile, plan.row_tiles * plan.column_tiles)
        after = steps.first + plan.k_block
        return [
            Stream.part(buffer, after * length, plan.k_block * length, share)
            for buffer, length in ((self.panels.a, spec.m), (self.panels.b, spec.n))
        ]

    def next_of_part(self, steps: Steps, part: Span, columns: Span, m: Value, number: Value) -> list[Stream]:
        """This tile's part of what the next block of the reduction reads for a block of rows and a slot's columns."""
        plan, spec, width = self.plan, self.spec, self.plan.columns.tile.width
        if not plan.streams_blocks:
            return []
        tall = min(plan.m_block // plan.rows, plan.row_tiles)
        tile = (number - columns.first) * tall + tirx.truncdiv(m, index(plan.rows)) - part.first
        tile_count = min(plan.n_block // width, plan.column_tiles)
        after, streams = steps.first + plan.k_block, []
        rows = (self.panels.a, spec.m, part.first * plan.rows, tall * plan.rows)
        for buffer, stride, first, length in (rows, (self.panels.b, spec.n, columns.first * width, tile_count * width)):
            lines = -(-min(length, stride) // line_of(buffer))
            each = -(-plan.k_block * lines // (tile_count * tall))
            base = after * stride + first
            streams.append(Stream(buffer, base, each, run_lines=lines, run_stride=stride, skip=tile * each))
        return streams

    def next_rows(self, block: Block, batch: Value, rows: int, m: Value, number: Value) -> list[Stream]:
        """Returns what the next row tile reads and writes: rows of A, of C, and of what the epilogue reads point by
        point.
        """
        spec, plan = self.spec, self.plan
        share = (number, plan.column_tiles)
        streams = []
        if plan.streams_a:
            next_row = self.panels.rows(batch, m + rows, index(0))
            streams.append(Stream.part(next_row.buffer, next_row.base, rows * spec.k, share))
        if plan.streams_c:
            base = block.let((batch * spec.m + m + rows) * spec.n, "next")
            streams.append(Stream.part(self.c, base, rows * spec.n, share, write=True))
            for buffer, offset in self._beside_c():
                streams.append(Stream.part(buffer, base + offset, rows * spec.n, share))
        return streams


Finish = Callable[[Block, Value, Value, int, Value], None]
"""(block, m, n, width, sums): stores the sums of all slots."""


class SplitSums:
    """The partial sums of C of each slot, and behind them, as one more row, those of B's columns.

    In pairs a panel's columns are no numbers to add: then B's own are summed elsewhere.
    """

    def __init__(self, spec: MatmulSpec, plan: MatmulPlan, operands: Operands, epilogue: Epilogue) -> None:
        self.spec, self.plan, self.operands, self.epilogue = spec, plan, operands, epilogue
        self.lanes = plan.precision.lanes
        self.workspace = operands.workspace
        self.stride = plan.columns.padded
        self.has_columns = spec.sums and not spec.products

    def _base(self, slot: Value) -> Value:
        shared = self.plan.shared_panel_elements
        before = shared + self.plan.private_panel_elements + self.plan.a_block_elements
        return slot * self.plan.slot_elements + before

    def clear(self, block: Block, slot: Value) -> None:
        """Sets a slot's sums to zero."""
        zero_run(block, self.workspace, block.let(self._base(slot), "sums"), self.plan.sums_elements, self.lanes)

    def add_tile(self, block: Block, slot: Value, m: Value, number: Value, tile: RegisterTile) -> None:
        """Adds a tile at row m and column tile `number`."""
        n = number * self.plan.columns.tile.width
        store_sums(block, tile, self.workspace, block.let(self._base(slot) + m * self.stride + n, "place"), self.stride)

    def add_columns(
        self, block: Block, slot: Value, tile: ColumnTile, number: Value, panel: Vectors, steps: int | Value
    ) -> None:
        """Adds the columns of a panel of B, if their sums are made here."""
        if not self.has_columns:
            return
        total = RegisterTile(block, 1, tile)
        total.gather(block, panel, steps)
        self.add_tile(block, slot, index(self.plan.m), number, total)

    def combine(self, block: Block) -> None:
        """Adds the partial sums of all slots, row by row."""

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: self._row(b, b.let(first + i, "m"), self._finish), name="m")

        share_out(block, self.plan.slots, self.plan.m, slot_body)
        if self.has_columns:
            self._row(block, index(self.plan.m), self._finish_columns)

    def _row(self, block: Block, m: Value, finish: Finish) -> None:
        def piece(body: Block, n: Value, width: int) -> None:
            total = None
            for slot in range(self.plan.slots):
                part = load(self.workspace, self._base(index(slot)) + m * self.stride + n, width)
                total = part if total is None else total + part
            finish(body, m, n, width, body.let(total, "sum"))

        whole = self.plan.n // self.lanes
        block.loop(whole, lambda b, i: piece(b, b.let(i * self.lanes, "n"), self.lanes), name="n")
        for start, width in vector_pieces(self.plan.n - whole * self.lanes, self.lanes):
            piece(block, index(whole * self.lanes + start), width)

    def _finish(self, block: Block, m: Value, n: Value, width: int, total: Value) -> None:
        point = Point((index(0), m, n))
        point = point.vector(2, width) if width > 1 else point
        self.epilogue.finish(block, total, point, self.operands.outputs[0], m * self.plan.n + n)

    def _finish_columns(self, block: Block, m: Value, n: Value, width: int, total: Value) -> None:
        block.store(self.operands.outputs[-1], n, total)


def emit(spec: MatmulSpec, target: CpuTarget, threads: int, choice: Choice | None = None) -> PrimFunc:
    """TIR of a matrix product."""
    operands = declare(spec, workspace_bytes(spec, target, threads, choice))
    body = Block()
    shape = folded(spec)
    viewed = operands
    if spec.products == "f16":  # whose panels are all that the workspace holds
        viewed = replace(operands, workspace=body.in_halves(operands.workspace))
    chosen = plan(shape, target, threads, choice)
    Gemm(shape, chosen, viewed).emit(body)
    function = finish(spec, operands, body)
    return function.with_attr(tiles.USED, 1) if chosen.tiles else function


class Gemm:
    """A product, or a batch of them."""

    def __init__(self, spec: MatmulSpec, plan: MatmulPlan, operands: Operands) -> None:
        self.spec, self.plan, self.operands = spec, plan, operands
        self.c = operands.outputs[0]
        extra = tuple(zip(spec.extra_outputs, operands.outputs[1:], strict=False))
        self.epilogue = Epilogue.of(spec.epilogue, operands.inputs[2:], spec.epilogue_inputs, 3, extra)
        self.pairs = spec.products if spec.steps_at_once > 1 else ""
        self.panels = Panels(spec, plan, operands)
        self.ahead = Ahead(spec, plan, self.panels, self.c, self.epilogue)
        self.all_rows = Span(index(0), index(plan.row_tiles), whole=True)
        self.all_columns = Span(index(0), index(plan.column_tiles), whole=True)

    def emit(self, block: Block) -> None:
        """Emits all phases."""
        if self.plan.panels == "shared":
            self.panels.pack_all(block)
        if self.plan.packs_a:
            self.panels.pack_a(block)
        phases = {"batch": self._batches, "rows": self._rows, "columns": self._columns, "split": self._split}
        phases[self.plan.strategy](block)

    # ------------------------------------------------------------------------------------------------ work of slots

    def _batches(self, block: Block) -> None:
        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(
                end - first,
                lambda b, i: self._product(b, slot, b.let(first + i, "batch"), self.all_rows, self.all_columns),
                name="batch",
            )

        share_out(block, self.plan.slots, self.plan.batch, slot_body)

    def _rows(self, block: Block) -> None:
        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            rows = Span(first, end)
            body.loop(self.plan.batch, lambda b, i: self._product(b, slot, i, rows, self.all_columns), name="batch")

        share_out(block, self.plan.slots, self.plan.row_tiles, slot_body)

    def _columns(self, block: Block) -> None:
        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            columns = Span(first, end)
            body.loop(self.plan.batch, lambda b, i: self._product(b, slot, i, self.all_rows, columns), name="batch")

        share_out(block, self.plan.slots, self.plan.column_tiles, slot_body)

    def _split(self, block: Block) -> None:
        sums = SplitSums(self.spec, self.plan, self.operands, self.epilogue)

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            sums.clear(body, slot)

            def one_block(inner: Block, steps: Steps) -> None:
                if self.plan.panels == "private":
                    self.panels.pack_block(inner, slot, steps)

                def column_tile(b: Block, tile: ColumnTile, number: Value) -> None:
                    panel = self.panels.split_columns(b, slot, steps, tile, number)
                    sums.add_columns(b, slot, tile, number, panel, steps.count)

                    def row_tile(c: Block, height: int, m: Value) -> None:
                        total = self._sums(c, height, tile)
                        a = self.panels.rows(index(0), m, steps.first)
                        total.run(c, a, panel, steps.count, self.ahead.next_block(steps, m, number))
                        sums.add_tile(c, slot, m, number, total)

                    self._each_row_tile(b, self.all_rows, row_tile)

                self._each_column_tile(inner, self.all_columns, column_tile)

            self._each_steps(body, first, end, one_block)

        share_out(block, self.plan.slots, self.plan.blocks, slot_body)
        sums.combine(block)
        if self.spec.sums and not sums.has_columns:
            self._sum_all_columns(block)

    def _sum_all_columns(self, block: Block) -> None:
        """The sums of B's columns by themselves, where panels hold them in pairs."""

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            self._column_sums(Span(first, end))(body)

        share_out(block, self.plan.slots, self.plan.column_tiles, slot_body)

    # --------------------------------------------------------------------------------------------- loops of one slot

    def _product(self, block: Block, slot: Value, batch: Value, rows: Span, columns: Span) -> None:
        """The part of one product that falls to a slot."""
        if self.spec.sums:
            first = tirx.EQ(rows.first, index(0))
            sum_all = self._column_sums(columns)
            if rows.whole:
                sum_all(block)
            else:
                block.when(first, sum_all)
        if self.plan.order == "rows":
            self._row_by_row(block, slot, batch, rows, columns)
        elif self.plan.order == "parts":
            self._each_column_block(block, columns, lambda b, part: self._block_by_block(b, slot, batch, rows, part))
        else:
            self._block_by_block(block, slot, batch, rows, columns)

    def _column_sums(self, columns: Span) -> Callable[[Block], None]:
        out = self.operands.outputs[-1]

        def column(body: Block, tile: ColumnTile, number: Value) -> None:
            n = body.let(number * self.plan.columns.tile.width, "n")
            sum_columns(body, *self.panels.every_step(n), tile, out, n)

        return lambda block: self._each_column_tile(block, columns, column)

    def _row_by_row(self, block: Block, slot: Value, batch: Value, rows: Span, columns: Span) -> None:
        steps = Steps(index(0), self.plan.k)

        def row_tile(body: Block, height: int, m: Value) -> None:
            def column_tile(inner: Block, tile: ColumnTile, number: Value) -> None:
                panel = self.panels.columns(inner, slot, batch, steps, tile, number)
                a = self.panels.rows(batch, m, index(0))
                ahead = self.ahead.next_rows(inner, batch, height, m, number)
                self._tile(inner, batch, (height, m), (tile, number), steps, a, panel, ahead)

            self._each_column_tile(body, columns, column_tile)

        self._each_row_tile(block, rows, row_tile)

    def _block_by_block(self, block: Block, slot: Value, batch: Value, rows: Span, columns: Span) -> None:
        def row_block(body: Block, steps: Steps, part: Span) -> None:
            if self.plan.copies_a:
                self._copy_rows(body, slot, batch, steps, part)

            def column_tile(scope: Block, tile: ColumnTile, number: Value) -> None:
                panel = self.panels.columns(scope, slot, batch, steps, tile, number)

                def row_tile(inner: Block, height: int, m: Value) -> None:
                    a = self.panels.block_rows(slot, batch, steps, part.first, height, m)
                    self.panels.fetch_next(inner, batch, steps, tile, number, part.first, m)
                    if self.plan.order == "parts":
                        ahead = self.ahead.next_of_part(steps, part, columns, m, number)
                    else:
                        ahead = self.ahead.next_tile(inner, batch, height, m, tile, number)
                    self._tile(inner, batch, (height, m), (tile, number), steps, a, panel, ahead)

                self._each_row_tile(scope, part, row_tile)

            self._each_column_tile(body, columns, column_tile)

        def each_steps(body: Block, emit_steps: Callable[[Block, Steps], None]) -> None:
            self._each_steps(body, index(0), index(self.plan.blocks), emit_steps)

        if self.plan.order == "parts":
            self._each_row_block(block, rows, lambda b, p: each_steps(b, lambda c, k: row_block(c, k, p)))
        else:
            each_steps(block, lambda b, k: self._each_row_block(b, rows, lambda c, p: row_block(c, k, p)))

    def _copy_rows(self, block: Block, slot: Value, batch: Value, steps: Steps, part: Span) -> None:
        """Copies a block of A in the order in which row tiles read it; what is stored by steps is read so."""

        def some(body: Block, of: Steps, offset: Value) -> None:
            self._each_row_tile(
                body, part, lambda b, rows, m: self.panels.copy_tile(b, slot, batch, of, offset, part.first, rows, m)
            )

        if self.spec.a_transposed:
            block.loop(steps.count, lambda b, i: some(b, Steps(b.let(steps.first + i, "step"), 1), i), name="step")
        else:
            some(block, steps, index(0))

    def _each_steps(self, block: Block, first: Value, end: Value, body: Callable[[Block, Steps], None]) -> None:
        """Blocks [first, end) of the reduction."""
        plan = self.plan

        def emit_steps(inner: Block, i: Value) -> None:
            k = inner.let((first + i) * plan.k_block, "k")
            count: int | Value = plan.k_block
            if plan.k % plan.k_block:
                count = inner.let(tirx.min(index(plan.k_block), index(plan.k) - k), "steps")
            body(inner, Steps(k, count))

        block.loop(end - first, emit_steps, name="k_block")

    def _each_row_block(self, block: Block, rows: Span, body: Callable[[Block, Span], None]) -> None:
        each = self.plan.m_block // self.plan.rows
        if each >= self.plan.row_tiles:
            body(block, rows)
            return
        count = block.let(tirx.truncdiv(rows.end - rows.first + (each - 1), index(each)), "row_blocks")

        def emit_row_block(inner: Block, i: Value) -> None:
            first = inner.let(rows.first + i * each, "first_row_tile")
            body(inner, Span(first, inner.let(tirx.min(first + each, rows.end), "end_row_tile")))

        block.loop(count, emit_row_block, name="row_block")

    def _each_column_block(self, block: Block, columns: Span, body: Callable[[Block, Span], None]) -> None:
        each = self.plan.n_block // self.plan.columns.tile.width
        if each >= (self.plan.column_tiles if columns.whole else -(-self.plan.column_tiles // self.plan.slots)):
            body(block, columns)
            return
        count = block.let(tirx.truncdiv(columns.end - columns.first + (each - 1), index(each)), "column_blocks")

        def emit_column_block(inner: Block, i: Value) -> None:
            first = inner.let(columns.first + i * each, "first_column_tile")
            body(inner, Span(first, inner.let(tirx.min(first + each, columns.end), "end_column_tile")))

        block.loop(count, emit_column_block, name="column_block")

    def _each_row_tile(self, block: Block, span: Span, body: Callable[[Block, int, Value], None]) -> None:
        full, rest = divmod(self.plan.m, self.plan.rows)
        end = tirx.min(span.end, index(full)) if rest else span.end
        block.loop(
            full if span.whole else block.let(end - span.first, "row_tiles"),
            lambda b, i: body(b, self.plan.rows, b.let((span.first + i) * self.plan.rows, "m")),
            name="row_tile",
        )
        _last(block, span, full, bool(rest), lambda b: body(b, rest, index(full * self.plan.rows)))

    def _each_column_tile(self, block: Block, span: Span, body: Callable[[Block, ColumnTile, Value], None]) -> None:
        cut = self.plan.columns
        end = tirx.min(span.end, index(cut.full)) if cut.tail else span.end
        block.loop(
            cut.full if span.whole else block.let(end - span.first, "column_tiles"),
            lambda b, j: body(b, cut.tile, b.let(span.first + j, "j")),
            name="column_tile",
        )
        tail = cut.tail
        if tail is not None:
            _last(block, span, cut.full, True, lambda b: body(b, tail, index(cut.full)))

    # ------------------------------------------------------------------------------------------------------- tiles

    def _tile(
        self,
        block: Block,
        batch: Value,
        row_part: tuple[int, Value],
        column_part: tuple[ColumnTile, Value],
        steps: Steps,
        a: Scalars,
        panel: Vectors,
        ahead: Sequence[Stream] = (),
    ) -> None:
        """Emits one tile of C over one block of the reduction."""
        (height, m), (tile, number) = row_part, column_part
        if self.plan.rounds_a:
            counted = self.panels.counted(batch, m, steps, panel, tile, number)
            total: RegisterTile = QuadTile(block, height, tile, counted)
        else:
            total = self._sums(block, height, tile)
        n = block.let(number * self.plan.columns.tile.width, "n")
        base = block.let((batch * self.plan.m + m) * self.plan.n + n, "place")
        place = Place(self.c, base, self.plan.n, 1, lambda row, column: (batch, m + row, n + column))
        if self.plan.blocks == 1:
            if self.plan.order == "columns" and self.plan.streams_c and not ahead:
                self.ahead.fetch_c(block, place, height, tile)
            if self.spec.products == "f16":
                run_in_halves(block, total, a, panel, self.plan.k, ahead)
            else:
                total.blocked_run(block, a, panel, self.plan.k, ahead)
            total.settle(block)
            self.epilogue.tile(block, total, place)
            return
        waiting = self._waiting_place(block, place)
        if self.plan.streams_c:
            self.ahead.fetch_c(block, waiting, height, tile)
        total.run(block, a, panel, steps.count, ahead if self.plan.streams_blocks else ())
        total.settle(block)
        self._settle(block, total, place, waiting, steps)

    def _sums(self, block: Block, height: int, tile: ColumnTile) -> RegisterTile:
        """Sums of a tile, in whatever registers multiply."""
        return MatrixTile(block, height, tile) if self.plan.tiles else RegisterTile(block, height, tile, self.pairs)

    def _waiting_place(self, block: Block, place: Place) -> Place:
        """Returns where the sums of a tile of C wait between blocks of the reduction."""
        if self.plan.waiting == "output":
            return place
        base = block.let(place.base + self.panels.waiting_base, "waiting")
        return replace(place, buffer=self.operands.workspace, base=base)

    def _settle(self, block: Block, total: RegisterTile, place: Place, waiting: Place, steps: Steps) -> None:
        """Adds to the sums that wait in memory, or finishes them."""
        last = tirx.LE(index(self.plan.k - self.plan.k_block), steps.first)

        def later(body: Block) -> None:
            body.when(
                last,
                lambda b: self.epilogue.tile(b, total, place, waiting),
                lambda b: total.store(b, waiting, waiting),
            )

        block.when(tirx.EQ(steps.first, index(0)), lambda b: total.store(b, waiting), later)


def _last(block: Block, span: Span, full: int, exists: bool, body: Callable[[Block], None]) -> None:
    """The shorter tile number `full` at the end of an axis, if it exists and lies in the span."""
    if not exists:
        return
    if span.whole:
        body(block)
    else:
        block.when(tirx.EQ(span.end, index(full + 1)), body)
