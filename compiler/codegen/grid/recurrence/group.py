"""The work of the items of a group in every step of a recurrent layer: they own columns of samples, and share their
sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from compiler.codegen.grid.checks import when_all
from compiler.codegen.grid.functions import number
from compiler.codegen.grid.grid import Here
from compiler.codegen.grid.recurrence.plan import RecurrencePlan
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Buffer, Value

_BLOCK = 64
"""Terms of a sum that are added up by themselves first, so that errors do not grow with all of them."""

Weights = Callable[[Value, Value], list[Value]]
"""(term, column) -> what the term's factor is multiplied by for each of the column's sums."""


class Group:
    """The samples of one group.

    A *pair* is a sample's column of the layer. The same item owns it in all steps, so it may read again what it wrote
    of it; what others read goes through shared memory.
    """

    def __init__(self, here: Here, plan: RecurrencePlan, batch: int) -> None:
        self.here, self.plan, self.batch = here, plan, batch
        self.first = here.block.let(here.group * tir.index(plan.samples), "first")
        self.part, self.lane = tir.divide(here.block, here.item, plan.columns)
        self.factors = here.shared(plan.samples * plan.terms, name="factors")
        self.partial = here.shared(plan.samples * plan.items * plan.sums, name="partial")

    def each_pair(self, block: Block, turn: Value, body: Callable[[Block, Value, Value], None]) -> None:
        """`body(block, sample of the group, column)` for every pair of an item in one turn."""
        plan = self.plan

        def emit_pair(inner: Block, i: Value) -> None:
            sample = inner.let(self.part + i * tir.index(plan.parts), "sample")
            column = inner.let(turn * tir.index(plan.columns) + self.lane, "column")
            checks = [tirx.LT(sample, tir.index(plan.samples))] if plan.samples % plan.parts else []
            checks += [tirx.LT(self.first + sample, tir.index(self.batch))] if self.batch % plan.samples else []
            checks += [tirx.LT(column, tir.index(plan.width))] if plan.width % plan.columns else []
            when_all(inner, checks, lambda b: body(b, sample, column))

        block.loop(-(-plan.samples // plan.parts), emit_pair, name="pair")

    def each_own(self, block: Block, body: Callable[[Block, Value, Value], None]) -> None:
        """The same in all turns."""
        block.loop(self.plan.turns, lambda b, turn: self.each_pair(b, turn, body), name="turn")

    def share(self, block: Block, read: Callable[[Block, Value, Value, int], Value]) -> None:
        """Put `read(block, sample, column, term's block)` of every pair into shared memory."""

        def put_pair(inner: Block, sample: Value, column: Value) -> None:
            at = inner.let(sample * tir.index(self.plan.terms) + column, "at")
            for which in range(self.plan.at_once):
                inner.store(self.factors, at + tir.index(which * self.plan.width), read(inner, sample, column, which))

        self.each_own(block, put_pair)
        self.here.barrier(block)

    def add_products(self, block: Block, turn: Value, totals: Buffer, weights: Weights) -> None:
        """Add the products of an item's share of the terms to its totals [sums, samples] of a column of the turn."""
        plan = self.plan
        share = -(-plan.terms // plan.parts)
        column = block.let(turn * tir.index(plan.columns) + self.lane, "column")
        start = block.let(self.part * tir.index(share), "start")
        count: int | Value = share
        if plan.terms % plan.parts:
            remaining = tirx.max(tir.index(0), tir.index(plan.terms) - start)
            count = block.let(tirx.min(tir.index(share), remaining), "count")
        checks = [tirx.LT(column, tir.index(plan.width))] if plan.width % plan.columns else []

        def run(inner: Block, totals: Buffer, first: Value, turns: int | Value) -> None:
            inner.loop(turns, lambda b, i: self._term(b, b.let(first + i, "term"), column, totals, weights), name="i")

        def all_terms(inner: Block) -> None:
            if share <= _BLOCK:
                run(inner, totals, start, count)
            else:
                self._in_blocks(inner, start, count, totals, run)

        when_all(block, checks, all_terms)

    def _in_blocks(
        self,
        block: Block,
        start: Value,
        count: int | Value,
        totals: Buffer,
        run: Callable[[Block, Buffer, Value, int | Value], None],
    ) -> None:
        """Sums over blocks of terms, and then over the blocks."""
        count = tir.index(count)
        blocks = block.let(tirx.truncdiv(count + tir.index(_BLOCK - 1), tir.index(_BLOCK)), "blocks")

        def add_block(inner: Block, i: Value) -> None:
            offset = inner.let(i * tir.index(_BLOCK), "done")
            sums = self.zeros(inner)
            run(
                inner,
                sums,
                inner.let(start + offset, "from"),
                inner.let(tirx.min(tir.index(_BLOCK), count - offset), "n"),
            )
            for place in range(self._kept):
                inner.store(totals, place, tir.load(totals, place) + tir.load(sums, place))

        block.loop(blocks, add_block, name="block")

    def _term(self, block: Block, term: Value, column: Value, totals: Buffer, weights: Weights) -> None:
        """Adds one term to all sums of an item."""
        plan = self.plan
        factors = [
            block.let(tir.load(self.factors, term + tir.index(s * plan.terms)), "factor") for s in range(plan.samples)
        ]
        for place, weight in enumerate(weights(term, column)):
            w = block.let(weight, "w")
            for s, factor in enumerate(factors):
                at = place * plan.samples + s
                block.store(totals, at, tir.load(totals, at) + w * factor)

    @property
    def _kept(self) -> int:
        """Sums of an item."""
        return self.plan.sums * self.plan.samples

    def zeros(self, block: Block) -> Buffer:
        """An item's totals at their start."""
        registers = block.local(self._kept, name="totals")
        for place in range(self._kept):
            block.store(registers, place, number(0.0))
        return registers

    def publish(self, block: Block, totals: Buffer) -> None:
        """Let the owners of pairs see an item's totals."""
        for place in range(self._kept):
            at = self.here.item + tir.index(place * self.plan.items)
            block.store(self.partial, at, tir.load(totals, place))
        self.here.barrier(block)

    def sums(self, block: Block, sample: Value) -> Sequence[Value]:
        """Returns the totals of all parts, added up, of a pair of an item."""
        plan, products = self.plan, []
        for place in range(plan.sums):
            at = (tir.index(place * plan.samples) + sample) * tir.index(plan.items) + self.lane
            at = block.let(at, "at")
            parts = [tir.load(self.partial, at + tir.index(part * plan.columns)) for part in range(plan.parts)]
            while len(parts) > 1:
                parts = [x + y for x, y in zip(parts[::2], parts[1::2], strict=True)]
            products.append(block.let(parts[0], "product"))
        return products
