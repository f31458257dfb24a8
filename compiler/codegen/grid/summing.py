"""Sums (and maxima) of many terms on a grid: an item's own, then those of its group, then those of several groups.

An item adds its terms in blocks, whose sums it adds; items' sums meet in a tree. Errors are near those of pairwise
summation, and the order of additions is the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import ITEMS
from compiler.codegen.grid.split import Split
from compiler.codegen.grid.together import combine_items
from compiler.codegen.tir import tir
from compiler.codegen.tir.accumulate import Accumulators, Combine, combined
from compiler.codegen.tir.tir import Block, Buffer, Value
from compiler.element_types import SCRATCH

_CHAIN = 64
"""Most terms that are added one after the other."""
Terms = Callable[[Block, Value], Sequence[Value]]
"""terms(block, number of the term): one for each of the sums that are formed together."""
Write = Callable[[Here, Block, Value, Value], None]
"""write(here, block, number of the result, its value)."""


@dataclass(frozen=True)
class Share:
    """The share of one item in a split sum: its result, and the place (of `down`) of its terms in the part."""

    result: Value
    exists: Value | None
    """Whether there is such a result; if not, the item works on the last one, for nothing. None: always."""
    lane: Value
    part: Value

    @property
    def delivers(self) -> Value:
        """Whether the item is the one that writes its result."""
        is_first = tirx.EQ(self.lane, tir.index(0))
        return is_first if self.exists is None else tirx.And(is_first, self.exists)


def share_of(here: Here, split: Split, *, number: Value = None, part: Value = None) -> Share:
    """The item's share; `number` says which of the blocks of results the group forms, and `part` which part of them."""
    block = here.block
    if number is None and split.parts == 1:
        number, part = here.group, tir.index(0)
    elif number is None:
        part, number = tir.divide(block, here.group, split.blocks)
    local_result, lane = _in_group(here, split)
    result = block.let(number * split.across + local_result, "result")
    if split.results % split.across == 0:
        return Share(result, None, lane, part)
    end = tir.index(split.results)
    return Share(block.let(tirx.min(result, end - 1), "result"), tirx.LT(result, end), lane, part)


def _in_group(here: Here, split: Split) -> tuple[Value, Value]:
    """Returns which of the group's results the item works on, and its place among those that do."""
    if split.down == 1:
        return here.item, tir.index(0)
    if split.across == 1:
        return tir.index(0), here.item
    if split.columns:
        lane, local_result = tir.divide(here.block, here.item, split.across)
        return local_result, lane
    return tir.divide(here.block, here.item, split.down)


def each_term(block: Block, split: Split, share: Share, body: Callable[[Block, Value], None]) -> None:
    """`body(block, term)` for each of the item's terms."""
    first, turns = _first(block, split, share), _turns(block, split, share)
    block.loop(turns, lambda inner, i: body(inner, inner.let(first + i * split.down, "term")), name="k")


def summed(
    block: Block, split: Split, share: Share, combine: Combine, kinds: Sequence[str], terms: Terms
) -> list[Value]:
    """The item's own sums of `terms(block, term)`, whose element types are `kinds`."""
    first, turns = _first(block, split, share), _turns(block, split, share)
    totals = [Accumulators(block, combine, kind, 1, 1) for kind in kinds]

    def add(inner: Block, sums: Sequence[Accumulators], begin: Value | int, count: Value | int) -> None:
        def turn(innermost: Block, i: Value) -> None:
            term = innermost.let(first + (i + begin) * split.down, "term")
            for running_sum, value in zip(sums, terms(innermost, term), strict=True):
                running_sum.add(innermost, 0, value)

        inner.loop(count, turn, name="k")

    if split.turns <= _CHAIN:
        add(block, totals, 0, turns)
        return [block.let(total.get(0), "sum") for total in totals]
    size = math.isqrt(split.turns)
    sums = [Accumulators(block, combine, kind, 1, 1) for kind in kinds]

    def one_block(inner: Block, number: Value) -> None:
        begin = inner.let(number * size, "begin")
        add(inner, sums, begin, inner.let(tirx.min(turns - begin, tir.index(size)), "count"))
        for running_sum, total in zip(sums, totals, strict=True):
            total.add(inner, 0, inner.let(running_sum.get(0), "s"))
            running_sum.clear(inner)

    blocks = -(-turns // size) if isinstance(turns, int) else tirx.truncdiv(turns + (size - 1), tir.index(size))
    block.loop(blocks, one_block, name="block")
    return [block.let(total.get(0), "sum") for total in totals]


def _first(block: Block, split: Split, share: Share) -> Value:
    return block.let(share.part * split.share + share.lane, "first")


def _turns(block: Block, split: Split, share: Share) -> Value | int:
    """Returns how many terms the item has."""
    if split.terms == split.share * split.parts and split.share % split.down == 0:
        return split.turns
    end = tirx.min(share.part * split.share + split.share, tir.index(split.terms))
    remaining = end - (share.part * split.share + share.lane)
    return block.let(tirx.truncdiv(tirx.max(remaining + (split.down - 1), 0), tir.index(split.down)), "turns")


def of_group(
    here: Here, split: Split, share: Share, combine: Combine, values: Sequence[Value], shared: Sequence[Buffer] = ()
) -> list[Value]:
    """The items' own sums combined over each result; all of its items get them. Every item must come by here.

    `shared`: arrays of `split.items` elements to use, one for each value, free again afterwards; else it reserves some.
    """
    block = here.block
    if split.down == 1:
        return [block.let(value, "own") for value in values]
    shared = shared or [here.shared(split.items, tir.base(value), "sums") for value in values]
    if not split.columns:
        return combine_items(here, block, combine, values, shared, split.down)
    return _of_columns(here, split, share, combine, values, shared)


def _of_columns(
    here: Here, split: Split, share: Share, combine: Combine, values: Sequence[Value], shared: Sequence[Buffer]
) -> list[Value]:
    """Combines the items' sums as `of_group` does, where the items of a result are `across` apart."""
    block = here.block
    for buffer, value in zip(shared, values, strict=True):
        block.store(buffer, here.item, value)
    here.barrier(block)
    step = split.down // 2
    while step:

        def halve(inner: Block, far: int = step * split.across) -> None:
            for buffer in shared:
                first, second = (inner.let(tir.load(buffer, here.item + place), "one") for place in (0, far))
                inner.store(buffer, here.item, combined(combine, first, second))

        block.when(tirx.LT(share.lane, tir.index(step)), halve)
        here.barrier(block)
        step //= 2
    results = [block.let(tir.load(buffer, here.item - share.lane * split.across), "all") for buffer in shared]
    here.barrier(block)
    return results


@dataclass(frozen=True)
class Partials:
    """Partial sums in the workspace, from element `start` on: those of `values` results for each of `parts` parts."""

    parts: int
    values: int
    combine: Combine = "sum"
    start: int = 0

    def deliver(self, here: Here, block: Block, part: Value, number: Value, value: Value, write: Write) -> None:
        """A group's sum: to the workspace, or done if no other group has a part of it."""
        if self.parts == 1:
            write(here, block, number, value)
        else:
            block.store(here.operands.workspace, part * self.values + number + self.start, value)

    def finish(self, grid: Grid, write: Write) -> None:
        """The launch that adds all parts of each result, in order."""
        if self.parts == 1:
            return

        def add_parts(here: Here, block: Block, number: Value) -> None:
            total = Accumulators(block, self.combine, SCRATCH.tir, 1, 1)

            def add(inner: Block, part: Value) -> None:
                place = part * self.values + number + self.start
                total.add(inner, 0, inner.let(tir.load(here.operands.workspace, place), "part"))

            block.loop(self.parts, add, name="part")
            write(here, block, number, block.let(total.get(0), "total"))

        grid.each(self.values, ITEMS, add_parts)
