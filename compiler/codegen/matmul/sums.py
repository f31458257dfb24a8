"""The partial sums of a split reduction, outside the register tiles."""

from __future__ import annotations

from collections.abc import Callable

from compiler.codegen.matmul.plan import MatmulPlan
from compiler.codegen.tile.epilogue import Epilogue
from compiler.codegen.tile.packing import zero_run
from compiler.codegen.tile.register_tile import RegisterTile, Vectors
from compiler.codegen.tile.share import share_out
from compiler.codegen.tile.sums import store_sums
from compiler.codegen.tile.tiling import ColumnTile, vector_pieces
from compiler.codegen.tir.tir import Block, Operands, Point, Value, index, load
from compiler.kernels.spec import MatmulSpec

Finish = Callable[[Block, Value, Value, int, Value], None]
"""(block, m, n, width, sums): stores the sums of all slots."""


class SplitSums:
    """Each slot's partial sums of C, and behind them, as one more row, those of B's columns.

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
        """Set a slot's sums to zero."""
        zero_run(block, self.workspace, block.let(self._base(slot), "sums"), self.plan.sums_elements, self.lanes)

    def add_tile(self, block: Block, slot: Value, m: Value, number: Value, tile: RegisterTile) -> None:
        """Add a tile at row m and column tile `number`."""
        n = number * self.plan.columns.tile.width
        store_sums(block, tile, self.workspace, block.let(self._base(slot) + m * self.stride + n, "place"), self.stride)

    def add_columns(
        self, block: Block, slot: Value, tile: ColumnTile, number: Value, panel: Vectors, steps: int | Value
    ) -> None:
        """Add the columns of a panel of B, if their sums are made here."""
        if not self.has_columns:
            return
        total = RegisterTile(block, 1, tile)
        total.gather(block, panel, steps)
        self.add_tile(block, slot, index(self.plan.m), number, total)

    def combine(self, block: Block) -> None:
        """Add the partial sums of all slots, row by row."""

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
