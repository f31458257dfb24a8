"""Sums over the positions that name a row: positions sorted by row, then an item, or a few, for each sum.

Nothing is added where another item adds, so a sum always has the same terms in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import ITEMS
from compiler.codegen.grid.row_sums_plan import RowSums
from compiler.codegen.tile.positions import row_of
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Buffer, Operands, Value
from compiler.element_types import SCRATCH

_RUN = 32
"""Terms that are added up before they are added to a sum, so that long sums lose fewer bits."""


@dataclass(frozen=True)
class Place:
    """The place of a result; `row` is its row in the table."""

    outer: Value
    row: Value
    column: Value


@dataclass(frozen=True)
class Terms:
    """The terms of a sum, and what becomes of it.

    `index(operands)` holds the rows that positions name. `term(block, operands, place, position)` is what a position
    that names the place's row adds. `finish(block, operands, place, sum)` writes.
    """

    element: str
    index: Callable[[Operands], Buffer]
    term: Callable[[Block, Operands, Place, Value], Value]
    finish: Callable[[Block, Operands, Place, Value], None]
    skips: bool = False
    """Rows that nothing names are not written."""


def write_row_sums(grid: Grid, plan: RowSums, terms: Terms) -> None:
    """The launches of all sums."""
    if not plan.outer * plan.rows * plan.inner:
        return
    if plan.by == "looking":
        grid.each(plan.results, plan.items, _Sums(plan, terms).look)
        return
    if plan.by == "rows":
        grid.each(2 * plan.rows, ITEMS, lambda here, block, number: _set(here, block, plan.positions + number, 0))
    grid.launch(-(-plan.positions // ITEMS), ITEMS, lambda here: _sort(here, plan, terms))
    grid.launch(-(-plan.results * plan.walkers // plan.items), plan.items, _Sums(plan, terms).walk)


# ------------------------------------------------------------------------------------------------------------ sorting


def _set(here: Here, block: Block, place: Value, number: int | Value) -> None:
    """A whole number into the workspace, which holds them as f32, exactly (see `MOST_POSITIONS`)."""
    block.store(here.operands.workspace, place, tirx.Cast(SCRATCH.tir, tir.index(number)))


def _get(here: Here, block: Block, place: Value) -> Value:
    """A whole number of the workspace."""
    return block.let(tirx.Cast("int32", tir.load(here.operands.workspace, place)), "held")


def _sort(here: Here, plan: RowSums, terms: Terms) -> None:
    """An item for each position counts those that come before it, and puts it behind them."""
    block, index = here.block, terms.index(here.operands)
    position = block.let(here.number, "position")
    row_numbers = here.shared(here.items, "int32", "named")
    row_number = block.let(_row_or_none(block, plan, index, position), "own")
    lower, before, same = (block.local(1, "int32", name) for name in ("lower", "before", "same"))
    for counter in (lower, before, same):
        block.store(counter, 0, tir.index(0))

    def tile(inner: Block, number: Value) -> None:
        start = inner.let(number * here.items, "start")
        inner.store(row_numbers, here.item, _row_or_none(inner, plan, index, start + here.item))
        here.barrier(inner)

        def compare(body: Block, i: Value) -> None:
            other = body.let(tir.load(row_numbers, i), "other")
            equal = tirx.EQ(other, row_number)
            _count(body, lower, tirx.LT(other, row_number))
            _count(body, before, tirx.And(equal, tirx.LT(start + i, position)))
            _count(body, same, equal)

        inner.loop(here.items, compare, name="other")
        here.barrier(inner)

    block.loop(-(-plan.positions // here.items), tile, name="tile")
    is_there = tirx.LT(position, tir.index(plan.positions))
    first, earlier, alike = (block.let(tir.load(counter, 0), "count") for counter in (lower, before, same))
    block.when(is_there, lambda inner: _put(here, inner, plan, row_number, position, first, earlier, alike))


def _row_or_none(block: Block, plan: RowSums, index: Buffer, position: Value) -> Value:
    """The row that a position names; behind the last position a row that is higher than all."""
    last = tirx.min(position, tir.index(plan.positions - 1))
    row = row_of(block, plan.rows, index, last)
    return tirx.Select(tirx.LT(position, tir.index(plan.positions)), row, tir.index(plan.rows))


def _count(block: Block, counter: Buffer, condition: Value) -> None:
    block.store(counter, 0, tir.load(counter, 0) + tirx.Select(condition, tir.index(1), tir.index(0)))


def _put(
    here: Here, block: Block, plan: RowSums, row: Value, position: Value, first: Value, earlier: Value, alike: Value
) -> None:
    """A position into its place of the order, and where those of its row begin and end, if it is their first."""
    _set(here, block, first + earlier, position)
    is_first = tirx.EQ(earlier, tir.index(0))
    if plan.by == "positions":
        end = tirx.Select(is_first, first + alike, tir.index(0))
        _set(here, block, first + earlier + plan.positions, end)
        return

    def bounds(inner: Block) -> None:
        _set(here, inner, row + plan.positions, first)
        _set(here, inner, row + (plan.positions + plan.rows), first + alike)

    block.when(is_first, bounds)


# ------------------------------------------------------------------------------------------------------------ summing


class _Sums:
    """Writes the launch that sums."""

    def __init__(self, plan: RowSums, terms: Terms) -> None:
        self.plan, self.terms = plan, terms

    def look(self, here: Here, block: Block, number: Value) -> None:
        """Computes one sum by an item that looks at every position."""
        plan, terms = self.plan, self.terms
        place, _, _ = self._place(here, block, number)
        index = terms.index(here.operands)
        total, match_flag = block.local(1, terms.element, "total"), block.local(1, "int32", "found")
        block.store(total, 0, tir.literal(0, terms.element))
        block.store(match_flag, 0, tir.index(0))

        def add(inner: Block, position: Value) -> None:
            inner.store(total, 0, tir.load(total, 0) + terms.term(inner, here.operands, place, position))
            inner.store(match_flag, 0, tir.index(1))

        def compare(inner: Block, position: Value) -> None:
            row = row_of(inner, plan.rows, index, position)
            inner.when(tirx.EQ(row, place.row), lambda body: add(body, position))

        block.loop(plan.positions, compare, name="position")
        self._finish(
            here, block, place, tir.load(total, 0), tirx.EQ(tir.load(match_flag, 0), 1) if terms.skips else None
        )

    def walk(self, here: Here) -> None:
        """Sums by items that walk over the sorted positions, every one over its share."""
        plan, block = self.plan, here.block
        width = plan.items // plan.walkers
        walker, lane = tir.divide(block, here.item, width) if plan.walkers > 1 else (tir.index(0), here.item)
        number = block.let(here.group * width + lane, "number")
        # Items behind the last result do as the last one does, for they must come to barriers; they write nothing.
        place, first, end = self._place(here, block, tirx.min(number, tir.index(plan.results - 1)))
        total = self._share(here, block, place, first + walker, end)
        if plan.walkers > 1:
            total = self._together(here, block, total, width)
        owns = tirx.And(tirx.LT(number, tir.index(plan.results)), tirx.EQ(walker, tir.index(0)))
        writes = tirx.And(owns, tirx.LT(first, end)) if self.terms.skips or plan.by == "positions" else owns
        self._finish(here, block, place, total, writes)

    def _place(self, here: Here, block: Block, number: Value) -> tuple[Place, Value, Value]:
        """The place of a result; its first position in the order, and where they end (both 0 if not sorted)."""
        plan = self.plan
        number, column = tir.divide(block, block.let(number, "result"), plan.inner)
        if plan.by == "positions":
            first, end = number, _get(here, block, number + plan.positions)
            row = row_of(block, plan.rows, self.terms.index(here.operands), _get(here, block, number))
            return Place(tir.index(0), row, column), first, end
        outer, row = tir.divide(block, number, plan.rows) if plan.outer > 1 else (tir.index(0), number)
        if plan.by == "looking":
            return Place(outer, row, column), tir.index(0), tir.index(0)
        ends = (_get(here, block, row + plan.positions), _get(here, block, row + (plan.positions + plan.rows)))
        return Place(outer, row, column), *ends

    def _share(self, here: Here, block: Block, place: Place, start: Value, end: Value) -> Value:
        """The sum of every `walkers`-th term from `start`, in runs."""
        terms, step = self.terms, self.plan.walkers
        total, part = block.local(1, terms.element, "total"), block.local(1, terms.element, "part")
        block.store(total, 0, tir.literal(0, terms.element))

        def run(inner: Block, turn: Value) -> None:
            begin = inner.let(start + turn * (_RUN * step), "begin")
            inner.store(part, 0, tir.literal(0, terms.element))

            def add(body: Block, i: Value) -> None:
                position = _get(here, body, begin + i * step)
                body.store(part, 0, tir.load(part, 0) + terms.term(body, here.operands, place, position))

            inner.loop(inner.let(tirx.min(_over(end - begin, step), tir.index(_RUN)), "left"), add, name="term")
            inner.store(total, 0, tir.load(total, 0) + tir.load(part, 0))

        block.loop(block.let(_over(end - start, _RUN * step), "runs"), run, name="run")
        return tir.load(total, 0)

    def _together(self, here: Here, block: Block, partial: Value, width: int) -> Value:
        """The sum of what the items `width` apart have, in a tree; the first `width` items get it."""
        shared = here.shared(here.items, self.terms.element, "sums")
        block.store(shared, here.item, partial)
        here.barrier(block)
        step = here.items // 2
        while step >= width:

            def halve(inner: Block, step: int = step) -> None:
                inner.store(shared, here.item, tir.load(shared, here.item) + tir.load(shared, here.item + step))

            block.when(tirx.LT(here.item, tir.index(step)), halve)
            here.barrier(block)
            step //= 2
        return tir.load(shared, here.item)

    def _finish(self, here: Here, block: Block, place: Place, total: Value, condition: Value | None) -> None:
        def write(inner: Block) -> None:
            self.terms.finish(inner, here.operands, place, inner.let(total, "sum"))

        if condition is None:
            write(block)
        else:
            block.when(condition, write)


def _over(extent: Value, step: int) -> Value:
    """Returns how often `step` fits into an extent, if it may stick out; not above 0 for an extent that is not."""
    return tirx.truncdiv(extent + (step - 1), tir.index(step)) if step > 1 else extent
