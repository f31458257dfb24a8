"""Attention, block by block of keys: y and the sums grow while the highest score does.

Source: FlashAttention-2 (arXiv 2307.08691), algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx

from compiler.codegen.grid.attention.head import Head, Scores, key_blocks, owned
from compiler.codegen.grid.attention.plan import Cut
from compiler.codegen.grid.attention.tile import Tile
from compiler.codegen.grid.checks import when_all
from compiler.codegen.grid.functions import number
from compiler.codegen.grid.grid import Here
from compiler.codegen.grid.together import combine_items
from compiler.codegen.tir import tir
from compiler.codegen.tir.accumulate import Combine, combined
from compiler.codegen.tir.tir import Block, Buffer, Value
from compiler.kernels.spec import AttentionSpec

_LOWEST = -3.4028234663852886e38
"""Stands for the maximum of a row without any key, so that nothing is inf - inf; no finite score is below it."""


class Forward:
    """A group makes y and the stats of one block of queries of one head."""

    def __init__(self, spec: AttentionSpec, cut: Cut, here: Here) -> None:
        self.spec, self.cut, self.here, self.tile = spec, cut, here, Tile(here, cut)
        block, (q, k, v, *mask) = here.block, here.operands.inputs
        batch, head, self.first = owned(here, spec.queries, spec.heads, cut)
        self.head = Head(spec, batch, head)
        self.q = self.head.of_queries(block, q, spec.width)
        self.k = self.head.of_keys(block, k, spec.width)
        self.v = self.head.of_keys(block, v, spec.value_width)
        self.y = self.head.of_queries(block, here.operands.outputs[0], spec.value_width)
        self.scores = Scores(self.tile, self.head, mask[0] if mask else None)
        self.folded = [here.shared(cut.items, name="folded") for _ in range(cut.rows)]
        self.totals = self.tile.zeros(block, cut.rows * cut.sums(spec.value_width), "totals")
        self.sums = self.tile.zeros(block, cut.rows, "row_sums")
        self.highest = block.local(cut.rows, name="highest")
        for r in range(cut.rows):
            block.store(self.highest, r, number(_LOWEST))

    def write(self) -> None:
        """All blocks of keys that the queries see, then the results."""
        block = self.here.block
        block.loop(key_blocks(self.spec, self.cut, block, self.first), self._block, name="block")
        totals = self._over_row(block, "sum", [tir.load(self.sums, r) for r in range(self.cut.rows)])
        zero, one = number(0.0), number(1.0)
        shares = [block.let(tirx.Select(tirx.EQ(total, zero), zero, tirx.Div(one, total)), "share") for total in totals]
        self.tile.write(block, self.y, self.first, self.totals, shares)
        block.when(tirx.EQ(self.tile.x, tir.index(0)), lambda inner: self._write_stats(inner, shares))

    def _block(self, block: Block, i: Value) -> None:
        """Adds one block of keys."""
        first_key = block.let(i * tir.index(self.cut.block), "first_key")
        scores = self.tile.across(block, self.q, self.first, self.k, first_key)
        self._hide(block, scores, first_key)
        factors = self._raise(block, scores)
        self._weigh(block, scores, factors)
        self.tile.keep(block, scores, by_query=False)
        self.tile.add_weighted(block, self.v, first_key, self.totals, factors)

    def _hide(self, block: Block, scores: Buffer, first_key: Value) -> None:
        """Finish the scores; those of what is not seen become -inf."""
        visible = self.scores.finish(block, scores, self.first, first_key)
        for place, condition in enumerate(condition for row in visible for condition in row):
            if condition is not None:
                masked = tirx.Select(condition, tir.load(scores, place), number(-math.inf))
                block.store(scores, place, masked)

    def _raise(self, block: Block, scores: Buffer) -> list[Value]:
        """Each row's highest score so far; what the sums so far are multiplied by for that."""
        cut = self.cut
        maxima = []
        for r in range(cut.rows):
            best = tir.load(scores, r * cut.columns)
            for c in range(1, cut.columns):
                best = block.let(combined("max", best, tir.load(scores, r * cut.columns + c)), "best")
            maxima.append(best)
        factors = []
        for r, best in enumerate(self._over_row(block, "max", maxima)):
            before = block.let(tir.load(self.highest, r), "before")
            highest = block.let(combined("max", before, best), "now")
            block.store(self.highest, r, highest)
            factors.append(block.let(tirx.exp(before - highest), "factor"))
        return factors

    def _weigh(self, block: Block, scores: Buffer, factors: Sequence[Value]) -> None:
        """Scores to exp(score - highest), in place, and their sums: each item keeps those of its own keys."""
        cut = self.cut
        for r in range(cut.rows):
            added: Value = None
            for c in range(cut.columns):
                place = r * cut.columns + c
                weight = block.let(tirx.exp(tir.load(scores, place) - tir.load(self.highest, r)), "weight")
                block.store(scores, place, weight)
                added = weight if added is None else added + weight
            block.store(self.sums, r, tir.load(self.sums, r) * factors[r] + added)

    def _over_row(self, block: Block, combine: Combine, values: Sequence[Value]) -> list[Value]:
        """Returns one value for each row of an item, combined over the items of that row."""
        return combine_items(self.here, block, combine, values, self.folded, self.cut.wide)

    def _write_stats(self, block: Block, shares: Sequence[Value]) -> None:
        """The highest score and the share of every row."""
        stats = self.here.operands.outputs[1]
        for r, share in enumerate(shares):
            query = block.let(self.first + self.tile.row(r), "query")
            at = block.let(self.head.stat(query), "stat")

            def store(inner: Block, r: int = r, at: Value = at, share: Value = share) -> None:
                inner.store(stats, at, tir.load(self.highest, r))
                inner.store(stats, at + tir.index(self.spec.queries), share)

            when_all(block, self.tile.there(self.q, query), store)
