"""TIR of matrix products after a `MatmulPlan`."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from compiler.codegen.kernels.matmul import MatmulPlan
from compiler.codegen.kernels.packing import Matrix, pack_panel, zero_run
from compiler.codegen.kernels.register_tile import (
    Epilogue,
    Place,
    RegisterTile,
    Scalars,
    Stream,
    Vectors,
    store_sums,
)
from compiler.codegen.kernels.share import share_out
from compiler.codegen.kernels.tiling import ColumnTile, vector_pieces
from compiler.codegen.tir import Block, Operands, Point, Value, index, load
from compiler.kernel_spec import MatmulSpec

TileBody = Callable[[Block, int, Value, ColumnTile, Value], None]
"""(block, rows, first row, columns, number of the column tile)."""


class Gemm:
    """One product, or a batch of them."""

    def __init__(self, spec: MatmulSpec, plan: MatmulPlan, operands: Operands, lanes: int) -> None:
        self.spec, self.plan, self.lanes = spec, plan, lanes
        self.a, self.b, *extra = operands.inputs
        self.c, self.workspace = operands.outputs[0], operands.workspace
        self.epilogue = Epilogue.of(spec.epilogue, extra, spec.epilogue_inputs, 3)
        self.a_strides = (1, spec.m) if spec.a_transposed else (spec.k, 1)
        self.b_strides = (1, spec.k) if spec.b_transposed else (spec.n, 1)

    def emit(self, block: Block) -> None:
        """All phases."""
        if self.plan.panels == "shared":
            self._pack_all(block)
        phases = {"batch": self._batches, "rows": self._rows, "columns": self._columns, "split": self._split}
        phases[self.plan.strategy](block)

    # ------------------------------------------------------------------------------------------------ work of slots

    def _slots(self, block: Block, units: int, body: Callable[[Block, Value, Value, Value], None]) -> None:
        """Share `units` out: `body(block, slot, first, end)` for each slot, in parallel."""
        share_out(block, self.plan.slots, units, body)

    def _batches(self, block: Block) -> None:
        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda one, i: self._product(one, slot, one.let(first + i, "batch")), name="batch")

        self._slots(block, self.plan.batch, slot_body)

    def _product(self, block: Block, slot: Value, batch: Value) -> None:
        def column(body: Block, tile: ColumnTile, number: Value) -> None:
            panel = self._panel(body, slot, batch, tile, number)
            self._each_row_tile(body, lambda b, rows, m: self._tile(b, batch, rows, m, tile, number, panel))

        self._each_column_tile(block, column)

    def _rows(self, block: Block) -> None:
        full, rest = divmod(self.plan.m, self.plan.rows)

        def row_tile(body: Block, batch: Value, rows: int, m: Value) -> None:
            self._each_column_tile(
                body,
                lambda b, tile, number: self._tile(
                    b, batch, rows, m, tile, number, self._panel(b, index(0), batch, tile, number)
                ),
            )

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            def product(one: Block, batch: Value) -> None:
                one.loop(
                    end - first,
                    lambda b, i: row_tile(b, batch, self.plan.rows, b.let((first + i) * self.plan.rows, "m")),
                    name="row_tile",
                )
                if rest:
                    one.when(
                        tirx.EQ(slot, index(self.plan.slots - 1)),
                        lambda b: row_tile(b, batch, rest, index(full * self.plan.rows)),
                    )

            body.loop(self.plan.batch, product, name="batch")

        self._slots(block, full, slot_body)

    def _columns(self, block: Block) -> None:
        cut = self.plan.columns

        def column(body: Block, slot: Value, batch: Value, tile: ColumnTile, number: Value) -> None:
            panel = self._panel(body, slot, batch, tile, number)
            self._each_row_tile(body, lambda b, rows, m: self._tile(b, batch, rows, m, tile, number, panel))

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            def product(one: Block, batch: Value) -> None:
                one.loop(
                    end - first,
                    lambda b, i: column(b, slot, batch, cut.tile, b.let(first + i, "j")),
                    name="column_tile",
                )
                if cut.tail:
                    tail = cut.tail
                    one.when(
                        tirx.EQ(slot, index(self.plan.slots - 1)),
                        lambda b: column(b, slot, batch, tail, index(cut.full)),
                    )

            body.loop(self.plan.batch, product, name="batch")

        self._slots(block, cut.full, slot_body)

    def _split(self, block: Block) -> None:
        plan = self.plan
        zero, stride = index(0), plan.columns.padded

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            sums = body.let(self._sums_base(slot), "sums")
            zero_run(body, self.workspace, sums, plan.sums_floats, self.lanes)

            def k_block(one: Block, i: Value) -> None:
                k = one.let((first + i) * plan.k_block, "k")
                steps: int | Value = plan.k_block
                if plan.k % plan.k_block:
                    steps = one.let(tirx.min(index(plan.k_block), index(plan.k) - k), "steps")
                if plan.panels == "private":
                    self._pack_block(one, slot, k, steps)

                def column(b: Block, tile: ColumnTile, number: Value) -> None:
                    panel = self._split_panel(b, slot, k, steps, tile, number)
                    self._each_row_tile(
                        b,
                        lambda c, rows, m: self._partial(
                            c, rows, m, k, steps, tile, panel, sums + number * plan.columns.tile.width
                        ),
                    )

                self._each_column_tile(one, column)

            body.loop(end - first, k_block, name="k_block")

        self._slots(block, -(-plan.k // plan.k_block), slot_body)
        self._combine(block, zero, stride)

    def _sums_base(self, slot: Value) -> Value:
        return slot * self.plan.sums_floats + self.plan.slots * self.plan.private_panel_floats

    def _partial(
        self,
        block: Block,
        rows: int,
        m: Value,
        k: Value,
        steps: int | Value,
        tile: ColumnTile,
        panel: Vectors,
        sums: Value,
    ) -> None:
        total = RegisterTile(block, rows, tile)
        total.run(block, self._scalars(index(0), m, k), panel, steps)
        stride = self.plan.columns.padded
        store_sums(block, total, self.workspace, block.let(sums + m * stride, "place"), stride)

    def _combine(self, block: Block, zero: Value, stride: int) -> None:
        """Add the partial sums of all slots, row by row."""
        plan = self.plan
        whole = plan.n // self.lanes

        def piece(body: Block, m: Value, n: Value, width: int) -> None:
            total = None
            for slot in range(plan.slots):
                part = load(self.workspace, self._sums_base(index(slot)) + m * stride + n, width)
                total = part if total is None else total + part
            point = Point((zero, m, index(n)))
            point = point.vector(2, width) if width > 1 else point
            body.store(self.c, m * plan.n + n, self.epilogue.apply(body, body.let(total, "sum"), point))

        def row(body: Block, m: Value) -> None:
            body.loop(whole, lambda b, i: piece(b, m, b.let(i * self.lanes, "n"), self.lanes), name="n")
            for start, width in vector_pieces(plan.n - whole * self.lanes, self.lanes):
                piece(body, m, index(whole * self.lanes + start), width)

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: row(b, b.let(first + i, "m")), name="m")

        self._slots(block, plan.m, slot_body)

    # ------------------------------------------------------------------------------------------------------- tiles

    def _each_row_tile(self, block: Block, body: Callable[[Block, int, Value], None]) -> None:
        full, rest = divmod(self.plan.m, self.plan.rows)
        block.loop(full, lambda b, i: body(b, self.plan.rows, b.let(i * self.plan.rows, "m")), name="row_tile")
        if rest:
            body(block, rest, index(full * self.plan.rows))

    def _each_column_tile(self, block: Block, body: Callable[[Block, ColumnTile, Value], None]) -> None:
        cut = self.plan.columns
        block.loop(cut.full, lambda b, j: body(b, cut.tile, j), name="column_tile")
        if cut.tail:
            body(block, cut.tail, index(cut.full))

    def _tile(
        self, block: Block, batch: Value, rows: int, m: Value, tile: ColumnTile, number: Value, panel: Vectors
    ) -> None:
        total = RegisterTile(block, rows, tile)
        ahead = self._next_rows(block, batch, rows, m, number) if self.plan.fetches_ahead else []
        total.blocked_run(block, self._scalars(batch, m, index(0)), panel, self.plan.k, ahead)
        n = block.let(number * self.plan.columns.tile.width, "n")
        base = block.let((batch * self.plan.m + m) * self.plan.n + n, "place")
        place = Place(self.c, base, self.plan.n, 1, lambda row, column: (batch, m + row, n + column))
        self.epilogue.tile(block, total, place)

    def _next_rows(self, block: Block, batch: Value, rows: int, m: Value, number: Value) -> list[Stream]:
        """What the next row tile reads and writes: rows of A, of C, and of what the epilogue reads point by point."""
        spec, plan = self.spec, self.plan
        share = (number, plan.columns.full + (1 if plan.columns.tail else 0))
        streams = []
        if plan.streams_a:
            streams.append(Stream.part(self.a, self._scalars(batch, m + rows, index(0)).base, rows * spec.k, share))
        if plan.streams_c:
            base = block.let((batch * spec.m + m + rows) * spec.n, "next")
            streams.append(Stream.part(self.c, base, rows * spec.n, share, write=True))
            for buffer, access in self.epilogue.inputs:
                if access.strides == (spec.m * spec.n, spec.n, 1) or (spec.batch, access.strides[1:]) == (
                    1,
                    (spec.n, 1),
                ):
                    streams.append(Stream.part(buffer, base + access.offset, rows * spec.n, share))
        return streams

    def _scalars(self, batch: Value, m: Value, k: Value) -> Scalars:
        row, step = self.a_strides
        product = batch * (self.spec.m * self.spec.k) if self.spec.a_batched else index(0)
        return Scalars(self.a, product + m * row + k * step, row, step)

    # ------------------------------------------------------------------------------------------------------ panels

    def _source(self, batch: Value) -> Matrix:
        base = batch * (self.spec.k * self.spec.n) if self.spec.b_batched else index(0)
        return Matrix(self.b, base, *self.b_strides)

    def _panel(self, block: Block, slot: Value, batch: Value, tile: ColumnTile, number: Value) -> Vectors:
        """Where the columns of a tile are read, packing them first if that is this thread's job."""
        n = number * self.plan.columns.tile.width
        if self.plan.panels == "direct":
            source = self._source(batch).at(0, n)
            return Vectors(self.b, block.let(source.base, "panel"), source.step_stride)
        if self.plan.panels == "shared":
            whole = batch * self.plan.shared_panel_floats if self.spec.b_batched else index(0)
            return Vectors(self.workspace, block.let(whole + n * self.plan.k, "panel"), tile.width)
        base = block.let(slot * self.plan.private_panel_floats, "panel")
        source = self._source(batch).at(0, n)
        pack_panel(block, source, self.workspace, base, steps=self.plan.k, tile=tile, lanes=self.lanes)
        return Vectors(self.workspace, base, tile.width)

    def _split_panel(
        self, block: Block, slot: Value, k: Value, steps: int | Value, tile: ColumnTile, number: Value
    ) -> Vectors:
        n = number * self.plan.columns.tile.width
        if self.plan.panels == "direct":
            source = self._source(index(0)).at(k, n)
            return Vectors(self.b, block.let(source.base, "panel"), source.step_stride)
        base = slot * self.plan.private_panel_floats + n * self.plan.k_block
        return Vectors(self.workspace, block.let(base, "panel"), tile.width)

    def _pack_block(self, block: Block, slot: Value, k: Value, steps: int | Value) -> None:
        """Pack the steps of one block. B's rows are copied whole, one after the other: memory is read in order."""

        def column(body: Block, tile: ColumnTile, number: Value, step: Value, count: int | Value) -> None:
            n = number * self.plan.columns.tile.width
            base = body.let(slot * self.plan.private_panel_floats + n * self.plan.k_block + step * tile.width, "panel")
            source = self._source(index(0)).at(k + step, n)
            pack_panel(body, source, self.workspace, base, steps=count, tile=tile, lanes=self.lanes)

        if self.spec.b_transposed:
            self._each_column_tile(block, lambda b, tile, j: column(b, tile, j, index(0), steps))
            return
        block.loop(
            steps,
            lambda b, step: self._each_column_tile(b, lambda c, tile, j: column(c, tile, j, step, 1)),
            name="step",
        )

    def _pack_all(self, block: Block) -> None:
        """Phase 1 of shared panels: every column tile of every B, by all threads."""
        cut = self.plan.columns
        tiles = cut.full + (1 if cut.tail else 0)
        products = self.plan.batch if self.spec.b_batched else 1

        def panel(body: Block, batch: Value, tile: ColumnTile, number: Value) -> None:
            n = number * cut.tile.width
            base = body.let(batch * self.plan.shared_panel_floats + n * self.plan.k, "panel")
            source = self._source(batch).at(0, n)
            pack_panel(body, source, self.workspace, base, steps=self.plan.k, tile=tile, lanes=self.lanes)

        def unit(body: Block, number: Value) -> None:
            batch = body.let(tirx.truncdiv(number, index(tiles)), "batch")
            tile = body.let(number - batch * tiles, "j")
            if not cut.tail:
                panel(body, batch, cut.tile, tile)
            elif not cut.full:
                panel(body, batch, cut.tail, index(0))
            else:
                tail = cut.tail
                body.when(
                    tirx.LT(tile, index(cut.full)),
                    lambda b: panel(b, batch, cut.tile, tile),
                    lambda b: panel(b, batch, tail, index(cut.full)),
                )

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: unit(b, b.let(first + i, "unit")), name="unit")

        self._slots(block, tiles * products, slot_body)
