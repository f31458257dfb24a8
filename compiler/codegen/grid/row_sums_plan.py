"""The schedule of sums over the positions that name a row: how they are shared out. Loads no TVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from compiler.codegen.gather.plan import MOST_POSITIONS
from compiler.codegen.grid.split import ENOUGH_ITEMS
from compiler.element_types import SCRATCH
from compiler.errors import BuildError

MOST_LOOKED_AT = 16
"""The most positions that every result looks through itself: two launches more would take longer."""
_TERMS = 32
"""Fewer than this, on average, are not worth another item."""
_ALONE = 64
"""Items of a group that do not work together."""
_NEIGHBOURS = 16
"""Results side by side in a group whose items share them, if there are as many: memory is read in whole lines."""


@dataclass(frozen=True, slots=True)
class RowSums:
    """The schedule of sums over [outer, rows, inner], where each of `positions` names a row.

    `by`: `looking`: a result looks through all positions. Else they are sorted by row first, in the workspace, and
    there are sums for all `rows`; or, where others are left alone, for the first of the `positions` that name a row.
    `walkers`: items of a group of `items` that share one sum.
    """

    outer: int
    rows: int
    inner: int
    positions: int
    by: Literal["looking", "rows", "positions"]
    walkers: int
    items: int

    @property
    def results(self) -> int:
        """Returns how many sums there are, with those of positions that are not the first of a row."""
        return self.outer * (self.positions if self.by == "positions" else self.rows) * self.inner

    @property
    def workspace_bytes(self) -> int:
        """Positions in order of their rows; then where each row's begin and end, or where those end that begin here."""
        elements = {"looking": 0, "rows": self.positions + 2 * self.rows, "positions": 2 * self.positions}
        return SCRATCH.item_bytes * elements[self.by]


def row_sums(outer: int, rows: int, inner: int, positions: int, *, items: int, skips: bool = False) -> RowSums:
    """The schedule for groups of up to `items`, a power of two; `skips`: rows that nothing names are not written.

    Raises: BuildError for more positions than the workspace can count.
    """
    if positions > MOST_POSITIONS:
        raise BuildError(f"{positions} positions are more than the {MOST_POSITIONS} that a kernel for a grid sorts")
    alone = min(items, _ALONE)
    if positions <= MOST_LOOKED_AT:
        return RowSums(outer, rows, inner, positions, "looking", 1, alone)
    walkers = _walkers(outer * rows * inner, rows, positions, items)
    by: Literal["rows", "positions"] = "positions" if skips and outer == 1 and positions < rows else "rows"
    return RowSums(outer, rows, inner, positions, by, walkers, items if walkers > 1 else alone)


def _walkers(results: int, rows: int, positions: int, items: int) -> int:
    """A power of two: more where rows have many positions and there are few results."""
    walkers, most = 1, items // min(_power_above(results), _NEIGHBOURS)
    while walkers < most and positions >= 2 * walkers * _TERMS * rows and results * walkers < ENOUGH_ITEMS:
        walkers *= 2
    return walkers


def _power_above(number: int) -> int:
    """The lowest power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()
