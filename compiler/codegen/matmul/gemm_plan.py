"""The schedule of a matrix product: register tile, cache blocks, packing, and what threads share out.

Loops of one thread's part, outermost first (after Goto and van de Geijn, "Anatomy of high-performance matrix
multiplication", 2008):

    order "columns": blocks of the reduction, blocks of rows, column tiles, row tiles
                     (a panel of B stays in the first-level cache, a block of A in the second; sums wait in memory)
    order "rows":    row tiles, column tiles
                     (all of B stays in the cache, A is read and C written once, in order)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from compiler.codegen.tile.tiling import Columns

Strategy = Literal["batch", "rows", "columns", "split"]
PanelPlace = Literal["direct", "shared", "private"]
Order = Literal["rows", "columns"]
Waiting = Literal["registers", "output", "workspace"]


@dataclass(frozen=True, slots=True)
class MatmulPlan:
    """One way to compute a product.

    `strategy` says what threads share out: whole products, row tiles, column tiles, or steps of the reduction (whose
    partial sums a second phase adds). `panels`: B is read where it lies, packed whole by all threads first, or
    packed by each thread just before use. `k_block` steps are done for all tiles before the next; meanwhile the sums
    are `waiting` in C or in the workspace. `m_block` is in rows.
    """

    batch: int
    m: int
    n: int
    k: int
    rows: int
    columns: Columns
    slots: int
    strategy: Strategy
    order: Order
    panels: PanelPlace
    k_block: int
    m_block: int
    waiting: Waiting
    copies_a: bool
    """Whether a block of A is copied to where its rows do not meet in one set of the cache."""
    streams_a: bool
    streams_b: bool
    streams_c: bool
    """Whether the next row tile's part of A and of C, and the next column tile's part of B, is fetched ahead."""

    @property
    def row_tiles(self) -> int:
        """Tiles along m, the last one perhaps shorter."""
        return -(-self.m // self.rows)

    @property
    def column_tiles(self) -> int:
        """Tiles along n, the last one perhaps narrower."""
        return self.columns.full + (1 if self.columns.tail else 0)

    @property
    def blocks(self) -> int:
        """Blocks of the reduction."""
        return -(-self.k // self.k_block)

    @property
    def shared_panel_floats(self) -> int:
        """One product's B, packed whole."""
        return self.k * self.columns.padded if self.panels == "shared" else 0

    @property
    def private_panel_floats(self) -> int:
        """One thread's packed part of B."""
        if self.panels != "private":
            return 0
        widest = max(self.columns.tile.width if self.columns.full else 0, self._tail_width)
        return self.k_block * (self.columns.padded if self.strategy == "split" else widest)

    @property
    def _tail_width(self) -> int:
        return self.columns.tail.width if self.columns.tail else 0

    @property
    def a_block_floats(self) -> int:
        """One thread's copied block of A: each row (or, transposed, each step) a cache line longer than needed."""
        return (min(self.m_block, self.m) + 16) * (self.k_block + 16) if self.copies_a else 0

    @property
    def sums_floats(self) -> int:
        """One thread's partial sums of a split reduction, and of B's columns behind them."""
        return (self.m + 1) * self.columns.padded if self.strategy == "split" else 0

    @property
    def slot_floats(self) -> int:
        """One thread's scratch."""
        return self.private_panel_floats + self.a_block_floats + self.sums_floats

    @property
    def waiting_floats(self) -> int:
        """Scratch of all threads for sums that wait between blocks."""
        return self.batch * self.m * self.n if self.waiting == "workspace" else 0
