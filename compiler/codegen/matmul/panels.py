"""The places where a matrix product's tiles read their operands: in place, in packed panels of B, in copied blocks of
A.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.matmul.plan import MatmulPlan
from compiler.codegen.tile.packing import Matrix, pack_panel
from compiler.codegen.tile.pairs import copy_pairs, join_rows, pack_pairs, turn_rows
from compiler.codegen.tile.quads import Counted, pack_quads, put_column_sums, round_row
from compiler.codegen.tile.register_tile import Scalars, Vectors, prefetch
from compiler.codegen.tile.share import share_out
from compiler.codegen.tile.tiling import ColumnTile, vector_pieces
from compiler.codegen.tir.tir import Block, Operands, Value, divide, index
from compiler.kernels.spec import MatmulSpec


@dataclass(frozen=True)
class Steps:
    """A block of the reduction: its first step and how many."""

    first: Value
    count: int | Value


class Panels:
    """Operands of one product, and the workspace: shared panels, then for each slot its scratch, then waiting sums."""

    def __init__(self, spec: MatmulSpec, plan: MatmulPlan, operands: Operands) -> None:
        self.spec, self.plan, self.lanes = spec, plan, plan.precision.lanes
        self.a, self.b, self.workspace = operands.inputs[0], operands.inputs[1], operands.workspace
        self.a_strides = (1, spec.m) if spec.a_transposed and not plan.tiles else (spec.k, 1)
        self.b_strides = (1, spec.k * spec.steps_at_once) if spec.b_transposed else (spec.n, 1)
        self.slots_base = plan.shared_panel_elements * (spec.batch if spec.b_batched else 1)
        self.waiting_base = self.slots_base + plan.slots * plan.slot_elements
        self.packed_a_base = self.waiting_base + plan.waiting_elements
        self.scales_base = self.packed_a_base + (spec.batch if spec.a_batched else 1) * spec.m * spec.k
        self.steps = spec.steps_at_once

    # ------------------------------------------------------------------------------------------------------------ A

    def rows(self, batch: Value, m: Value, k: Value) -> Scalars:
        """A from (m, k) on, where it lies, or where it was packed."""
        row, step = self.a_strides
        product = batch * (self.spec.m * self.spec.k) if self.spec.a_batched else index(0)
        place = product + m * row + k * step
        if self.plan.packs_a:
            return Scalars(self.workspace, place + self.packed_a_base, row, step)
        return Scalars(self.a, place, row, step)

    def block_rows(self, slot: Value, batch: Value, steps: Steps, first_tile: Value, height: int, m: Value) -> Scalars:
        """A's `height` rows from m on in a block of the reduction: where they lie, or their tile of the copy."""
        if not self.plan.copies_a:
            return self.rows(batch, m, steps.first)
        return Scalars(self.workspace, self._copied_tile(slot, first_tile, m), 1, height)

    def copy_tile(
        self,
        block: Block,
        slot: Value,
        batch: Value,
        steps: Steps,
        first_step: Value,
        first_tile: Value,
        height: int,
        m: Value,
    ) -> None:
        """Copies some steps, from `first_step` on, of the `height` rows from m on: step after step, as tiles read."""
        there = self.rows(batch, m, steps.first)
        source = Matrix(self.a, there.base, there.step_stride, there.row_stride)
        place = block.let(self._copied_tile(slot, first_tile, m) + first_step * height, "copy")
        tile = ColumnTile(tuple(width for _, width in vector_pieces(height, self.lanes)), height)
        pack_panel(block, source, self.workspace, place, steps=steps.count, tile=tile, lanes=self.lanes)

    def _copied_tile(self, slot: Value, first_tile: Value, m: Value) -> Value:
        number = tirx.truncdiv(m, index(self.plan.rows)) - first_tile
        return self._copy_base(slot) + number * self.plan.a_tile_elements

    def _copy_base(self, slot: Value) -> Value:
        return slot * self.plan.slot_elements + (self.slots_base + self.plan.private_panel_elements)

    # ------------------------------------------------------------------------------------------------------------ B

    def b_at(self, batch: Value, k: Value, n: Value) -> Matrix:
        """B from (k, n) on, where it lies; in stored panels n is the first column of one."""
        if self.spec.b_panel:
            return Matrix(self.b, n * self.spec.k + k * self.spec.b_panel, self.spec.b_panel, 1)
        base = batch * (self.spec.k * self.spec.n) if self.spec.b_batched else index(0)
        return Matrix(self.b, base, *self.b_strides).at(k * self.steps, n)

    def every_step(self, n: Value) -> tuple[Matrix, int]:
        """B from column n on, and how many steps it has."""
        return self.b_at(index(0), index(0), n), self.spec.k * self.steps

    def columns(
        self, block: Block, slot: Value, batch: Value, steps: Steps, tile: ColumnTile, number: Value
    ) -> Vectors:
        """Returns where the columns of a tile are read, packing them first if that is this thread's job."""
        n = number * self.plan.columns.tile.width
        if self.plan.panels == "direct":
            source = self.b_at(batch, steps.first, n)
            return Vectors(self.b, block.let(source.base, "panel"), source.step_stride)
        if self.plan.panels == "shared":
            whole = batch * self.plan.shared_panel_elements if self.spec.b_batched else index(0)
            place = whole + n * self.plan.panel_steps + steps.first * tile.width
            return Vectors(self.workspace, block.let(place, "panel"), tile.width)
        place = block.let(self._private_base(slot), "panel")
        source = self.b_at(batch, steps.first, n)
        self._pack(block, source, place, steps.count, tile)
        panel = Vectors(self.workspace, place, tile.width)
        self._put_shifts(block, panel, steps.count, tile, place + self.plan.k_block * tile.width)
        return panel

    def split_columns(self, block: Block, slot: Value, steps: Steps, tile: ColumnTile, number: Value) -> Vectors:
        """Returns where the columns of a tile are read in a split reduction, whose blocks are packed beforehand."""
        if self.plan.panels != "private":
            return self.columns(block, slot, index(0), steps, tile, number)
        place = self._private_base(slot) + number * (self.plan.columns.tile.width * self.plan.k_block)
        return Vectors(self.workspace, block.let(place, "panel"), tile.width)

    def _private_base(self, slot: Value) -> Value:
        return slot * self.plan.slot_elements + self.slots_base

    def fetch_next(
        self, block: Block, batch: Value, steps: Steps, tile: ColumnTile, number: Value, first_tile: Value, m: Value
    ) -> None:
        """Prefetches this row tile's share of the next column tile's part of B."""
        plan = self.plan
        if not plan.streams_b:
            return
        parts = max(min(plan.m_block, plan.m) // plan.rows, 1)
        part = tirx.truncdiv(m, index(plan.rows)) - first_tile
        source = self.b_at(batch, steps.first, (number + 1) * plan.columns.tile.width)
        extent, length = (tile.width, plan.k_block) if self.spec.b_transposed else (plan.k_block, tile.width)
        stride = source.column_stride if self.spec.b_transposed else source.step_stride
        each = -(-extent // parts)
        base = block.let(tirx.Cast("int64", source.base + part * (each * stride)), "next")

        def fetch_lines(body: Block, i: Value) -> None:
            for start in range(0, length, plan.precision.line):
                place = base + tirx.Cast("int64", i * stride + start)
                prefetch(body, self.b, place, near=False)

        block.loop(each, fetch_lines, name="ahead")

    # ------------------------------------------------------------------------------------------------------ packing

    def _pack(self, block: Block, source: Matrix, place: Value, steps: int | Value, tile: ColumnTile) -> None:
        pack = {"bf16": pack_pairs, "i8": pack_quads}.get(self.spec.products, pack_panel)
        pack(block, source, self.workspace, place, steps=steps, tile=tile, lanes=self.lanes)

    def _put_shifts(self, block: Block, panel: Vectors, steps: int | Value, tile: ColumnTile, place: Value) -> None:
        """The sums of a panel's columns, as often as A is shifted by."""
        if self.plan.shift:
            put_column_sums(block, panel, steps, tile, self.plan.shift, self.workspace, place)

    def _put_all_shifts(self, block: Block, place: Value, tile: ColumnTile) -> None:
        each, width = self.plan.k_block, tile.width
        whole, rest = divmod(self.plan.k, each)
        panel, behind = Vectors(self.workspace, place, width), place + self.plan.k * width

        def put_shifts(body: Block, number: Value, steps: int) -> None:
            self._put_shifts(body, panel.at(number * (each * width)), steps, tile, behind + number * width)

        block.loop(whole, lambda body, number: put_shifts(body, number, each), name="shifts")
        if rest:
            put_shifts(block, index(whole), rest)

    def counted(self, batch: Value, m: Value, steps: Steps, panel: Vectors, tile: ColumnTile, number: Value) -> Counted:
        """Returns what the sums over a block of a tile from row m on count, of an A that is rounded."""
        row = batch * self.spec.m + m if self.spec.a_batched else m
        scales = Scalars(self.workspace, row + self.scales_base, 1, 0)
        return Counted(scales, self._shifts(panel, steps, tile, number))

    def _shifts(self, panel: Vectors, steps: Steps, tile: ColumnTile, number: Value) -> Vectors | None:
        """Returns the place of the amounts by which a tile's sums over a block are too large, where A is shifted; else
        None.
        """
        plan = self.plan
        if not plan.shift:
            return None
        if plan.panels == "private":
            return Vectors(self.workspace, panel.base + plan.k_block * tile.width, tile.width)
        block_number = tirx.truncdiv(steps.first, index(plan.k_block)) if plan.blocks > 1 else index(0)
        step = block_number + plan.k
        place = number * (plan.columns.tile.width * plan.panel_steps) + step * tile.width
        return Vectors(self.workspace, place, tile.width)

    def pack_block(self, block: Block, slot: Value, steps: Steps) -> None:
        """Packs all columns of one block. B's rows are copied whole, one after the other: memory is read in order."""
        cut = self.plan.columns

        def column(body: Block, tile: ColumnTile, number: Value, step: Value, count: int | Value) -> None:
            n = number * cut.tile.width
            place = body.let(self._private_base(slot) + n * self.plan.k_block + step * tile.width, "panel")
            source = self.b_at(index(0), steps.first + step, n)
            pack_panel(body, source, self.workspace, place, steps=count, tile=tile, lanes=self.lanes)

        def row(body: Block, step: Value, count: int | Value) -> None:
            body.loop(cut.full, lambda b, j: column(b, cut.tile, j, step, count), name="column_tile")
            if cut.tail:
                column(body, cut.tail, index(cut.full), step, count)

        if self.spec.b_transposed:
            row(block, index(0), steps.count)
        else:
            block.loop(steps.count, lambda b, step: row(b, step, 1), name="step")

    def pack_all(self, block: Block) -> None:
        """Shared panels: every column tile of every B, by all threads."""
        cut, tiles = self.plan.columns, self.plan.column_tiles
        products = self.plan.batch if self.spec.b_batched else 1

        def panel(body: Block, batch: Value, tile: ColumnTile, number: Value) -> None:
            n = number * cut.tile.width
            place = body.let(batch * self.plan.shared_panel_elements + n * self.plan.panel_steps, "panel")
            self._pack(body, self.b_at(batch, index(0), n), place, self.plan.k, tile)
            self._put_all_shifts(body, place, tile)

        def unit(body: Block, number: Value) -> None:
            batch = body.let(tirx.truncdiv(number, index(tiles)), "batch")
            tile = body.let(number - batch * tiles, "j")
            tail = cut.tail
            if tail is None:
                panel(body, batch, cut.tile, tile)
            elif not cut.full:
                panel(body, batch, tail, index(0))
            else:
                body.when(
                    tirx.LT(tile, index(cut.full)),
                    lambda b: panel(b, batch, cut.tile, tile),
                    lambda b: panel(b, batch, tail, index(cut.full)),
                )

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: unit(b, b.let(first + i, "unit")), name="unit")

        share_out(block, self.plan.slots, tiles * products, slot_body)

    def pack_a(self, block: Block) -> None:
        """Packs all of A into words, by all threads: rows of a transposed one side by side, else neighbours of a
        row.
        """
        spec = self.spec
        if self.plan.rounds_a:
            self._round_a(block)
            return
        if self.plan.tiles and spec.a_transposed:
            self._turn_a(block)
            return
        lines = (spec.k if spec.a_transposed else spec.m) * (spec.batch if spec.a_batched else 1)
        length = spec.m if spec.a_transposed else spec.k

        def line(body: Block, number: Value) -> None:
            first, place = number * (2 * length), self.packed_a_base + number * length
            if spec.a_transposed:
                join_rows(body, self.a, first, length, self.workspace, place, length, self.lanes)
            else:
                copy_pairs(body, self.a, first, self.workspace, place, length, self.lanes)

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: line(b, b.let(first + i, "line")), name="line")

        share_out(block, self.plan.slots, lines, slot_body)

    def _turn_a(self, block: Block) -> None:
        """Packs all of a transposed A into words, by all threads, each row's side by side."""
        spec, lanes = self.spec, self.lanes
        parts, rest = -(-spec.k // lanes), spec.k % lanes

        def part(body: Block, batch: Value, number: Value, steps: int) -> None:
            first = body.let(batch * (2 * spec.k * spec.m) + number * (2 * lanes * spec.m), "first")
            place = body.let(batch * (spec.m * spec.k) + number * lanes + self.packed_a_base, "place")
            turn_rows(
                body, self.a, first, spec.m, self.workspace, place, spec.k, steps=steps, count=spec.m, lanes=lanes
            )

        def unit(body: Block, number: Value) -> None:
            batch, of_product = divide(body, number, parts)
            if not rest:
                part(body, batch, of_product, lanes)
                return
            is_last = tirx.EQ(of_product, index(parts - 1))
            body.when(
                is_last,
                lambda b: part(b, batch, of_product, rest),
                (lambda b: part(b, batch, of_product, lanes)) if parts > 1 else None,
            )

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: unit(b, b.let(first + i, "unit")), name="unit")

        share_out(block, self.plan.slots, parts * (spec.batch if spec.a_batched else 1), slot_body)

    def _round_a(self, block: Block) -> None:
        """Rounds all of A to whole numbers, four in a word, by all threads."""
        spec = self.spec

        def line(body: Block, number: Value) -> None:
            first, place = number * (spec.k * self.steps), number * spec.k + self.packed_a_base
            round_row(
                body,
                self.a,
                first,
                spec.k * self.steps,
                self.workspace,
                place,
                number + self.scales_base,
                lanes=self.lanes,
                shift=self.plan.shift,
            )

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: line(b, b.let(first + i, "line")), name="line")

        share_out(block, self.plan.slots, spec.m * (spec.batch if spec.a_batched else 1), slot_body)
