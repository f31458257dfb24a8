"""Attention for a grid: its launches.

Attention, block by block of keys: y and the sums grow while the highest score does.

Source: FlashAttention-2 (arXiv 2307.08691), algorithm 1.

Attention's gradient: the weights once more, block by block, then the products of the chain.

p = exp(s - highest) share, d_s = scale p (d_y v' - delta), delta = rowsum(d_y y); d_q = d_s k, d_k = d_s' q,
d_v = p' d_y. A group owns a block of queries of one head (d_q), or a block of keys of one key head (d_k, d_v), so
each sum is formed by one item, always in the same order.
Source: FlashAttention-2 (arXiv 2307.08691), algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.grid.attention.head import Head, Scores, key_blocks, keys_of, owned
from compiler.codegen.grid.attention.plan import Cut, cut_for, goes_through_scores, workspace_bytes
from compiler.codegen.grid.attention.tile import Matrix, Tile
from compiler.codegen.grid.checks import guarded, when_all
from compiler.codegen.grid.functions import number
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.supported import require_supported
from compiler.codegen.grid.together import combine_items
from compiler.codegen.tir import tir
from compiler.codegen.tir.accumulate import Combine, combined
from compiler.codegen.tir.tir import Block, Buffer, Value
from compiler.kernels.spec import AttentionSpec
from compiler.targets import GridTarget

_SIDE_BY_SIDE, _ROWS = 16, 4
"""Items that form one sum of d_y y, and sums of a group."""


def launch_deltas(spec: AttentionSpec) -> tuple[int, int]:
    """Groups and items of `write_deltas`."""
    return -(-spec.batch * spec.queries * spec.heads // _ROWS), _ROWS * _SIDE_BY_SIDE


def write_deltas(spec: AttentionSpec, here: Here) -> None:
    """The sums of d_y y over the last axis to the workspace, [B, T, H]."""
    block, count = here.block, spec.batch * spec.queries * spec.heads
    y, d_y = here.operands.inputs[3], here.operands.inputs[5]
    local_row, lane = tir.divide(block, here.item, _SIDE_BY_SIDE)
    row = block.let(here.group * tir.index(_ROWS) + local_row, "row")
    base = block.let(tirx.min(row, tir.index(count - 1)) * tir.index(spec.value_width) + lane, "base")
    total = block.local(1, name="total")
    block.store(total, 0, number(0.0))

    def step(inner: Block, i: Value) -> None:
        column = inner.let(i * tir.index(_SIDE_BY_SIDE), "column")
        inside = tirx.LT(column + lane, tir.index(spec.value_width))
        checks = [inside] if spec.value_width % _SIDE_BY_SIDE else []
        output, gradient = (guarded(inner, checks, tir.load(buffer, base + column)) for buffer in (y, d_y))
        inner.store(total, 0, tir.load(total, 0) + output * gradient)

    block.loop(-(-spec.value_width // _SIDE_BY_SIDE), step, name="i")
    shared = [here.shared(here.items, name="folded")]
    (delta,) = combine_items(here, block, "sum", [tir.load(total, 0)], shared, _SIDE_BY_SIDE)
    is_mine = tirx.And(tirx.EQ(lane, tir.index(0)), tirx.LT(row, tir.index(count)))
    block.when(is_mine, lambda inner: inner.store(here.operands.workspace, row, delta))


@dataclass(frozen=True)
class _Row:
    """The figures of a query that the gradient needs."""

    highest: Value
    share: Value
    delta: Value


class _Chain:
    """Weights and gradients of scores of one head, as an item's registers."""

    def __init__(self, spec: AttentionSpec, here: Here, tile: Tile, head: Head, block: Block) -> None:
        self.spec, self.here, self.tile, self.head = spec, here, tile, head
        q, k, v, _, _, d_y, *mask = here.operands.inputs
        self.q = head.of_queries(block, q, spec.width)
        self.k = head.of_keys(block, k, spec.width)
        self.v = head.of_keys(block, v, spec.value_width)
        self.d_y = head.of_queries(block, d_y, spec.value_width)
        self.scores = Scores(tile, head, mask[0] if mask else None)

    def rows(self, block: Block, first_query: Value) -> list[_Row]:
        """An item's queries of a block."""
        stats, workspace, query_rows = self.here.operands.inputs[4], self.here.operands.workspace, []
        for r in range(self.tile.cut.rows):
            query = block.let(first_query + self.tile.row(r), "query")
            at = block.let(self.head.stat(query), "stat")
            checks = self.tile.there(self.q, query)
            highest = guarded(block, checks, tir.load(stats, at))
            share = guarded(block, checks, tir.load(stats, at + tir.index(self.spec.queries)))
            delta = None if workspace is None else guarded(block, checks, tir.load(workspace, self._delta(query)))
            query_rows.append(_Row(highest, share, delta))
        return query_rows

    def _delta(self, query: Value) -> Value:
        spec = self.spec
        row = self.head.batch * tir.index(spec.queries) + query
        return row * tir.index(spec.heads) + self.head.head

    def weights(self, block: Block, rows: Sequence[_Row], first_query: Value, first_key: Value) -> Buffer:
        """p; zero where a query does not see the key."""
        products = self.tile.across(block, self.q, first_query, self.k, first_key)
        visible = self.scores.finish(block, products, first_query, first_key)
        columns = self.tile.cut.columns
        for r, row in enumerate(rows):
            for c, condition in enumerate(visible[r]):
                weight = tirx.exp(tir.load(products, r * columns + c) - row.highest) * row.share
                masked = weight if condition is None else tirx.Select(condition, weight, number(0.0))
                block.store(products, r * columns + c, masked)
        return products

    def through_scores(
        self, block: Block, rows: Sequence[_Row], weights: Buffer, first_query: Value, first_key: Value
    ) -> Buffer:
        """d_s."""
        products = self.tile.across(block, self.d_y, first_query, self.v, first_key)
        columns = self.tile.cut.columns
        for r, row in enumerate(rows):
            for place in range(r * columns, (r + 1) * columns):
                scaled = tir.load(weights, place) * number(self.spec.scale)
                block.store(products, place, scaled * (tir.load(products, place) - row.delta))
        return products


def write_d_q(spec: AttentionSpec, cut: Cut, here: Here, d_q: Buffer) -> None:
    """A block of queries over all blocks of keys that it sees."""
    block, tile = here.block, Tile(here, cut)
    batch, head, first = owned(here, spec.queries, spec.heads, cut)
    query_head = Head(spec, batch, head)
    chain = _Chain(spec, here, tile, query_head, block)
    rows = chain.rows(block, first)
    totals = tile.zeros(block, cut.rows * cut.sums(spec.width), "totals")

    def emit_block(inner: Block, i: Value) -> None:
        first_key = inner.let(i * tir.index(cut.block), "first_key")
        weights = chain.weights(inner, rows, first, first_key)
        d_scores = chain.through_scores(inner, rows, weights, first, first_key)
        tile.keep(inner, d_scores, by_query=False)
        tile.add_weighted(inner, chain.k, first_key, totals)

    block.loop(key_blocks(spec, cut, block, first), emit_block, name="block")
    tile.write(block, query_head.of_queries(block, d_q, spec.width), first, totals)


class KeyGradients:
    """A block of keys over the query heads that share its head, and their blocks of queries that see it."""

    def __init__(self, spec: AttentionSpec, cut: Cut, here: Here, d_k: Buffer | None, d_v: Buffer | None) -> None:
        self.spec, self.cut, self.here, self.tile = spec, cut, here, Tile(here, cut)
        self.batch, self.group, self.first = owned(here, spec.keys, spec.groups, cut)
        self.d_k = None if d_k is None else self._output(d_k, spec.width)
        self.d_v = None if d_v is None else self._output(d_v, spec.value_width)

    def _output(self, buffer: Buffer, width: int) -> tuple[Matrix, Buffer]:
        """Returns where a gradient goes, and an item's sums of it."""
        block, cut = self.here.block, self.cut
        totals = self.tile.zeros(block, cut.rows * cut.sums(width), "totals")
        return keys_of(self.spec, block, buffer, self.batch, self.group, width), totals

    def write(self) -> None:
        """Emits all heads, then the results."""
        block, shared = self.here.block, self.spec.heads // self.spec.groups
        block.loop(shared, self._head, name="r")
        for output in (self.d_k, self.d_v):
            if output is not None:
                matrix, totals = output
                self.tile.write(block, matrix, self.first, totals)

    def _head(self, block: Block, r: Value) -> None:
        spec, cut = self.spec, self.cut
        shared = spec.heads // spec.groups
        head = Head(spec, self.batch, block.let(self.group * tir.index(shared) + r, "head"))
        chain = _Chain(spec, self.here, self.tile, head, block)
        blocks, before = -(-spec.queries // cut.block), self._before(block)

        def emit_block(inner: Block, i: Value) -> None:
            number = i if before is None else before + i
            self._block(inner, chain, inner.let(number * tir.index(cut.block), "first_query"))

        block.loop(
            blocks if before is None else block.let(tir.index(blocks) - before, "blocks"), emit_block, name="block"
        )

    def _before(self, block: Block) -> Value | None:
        """Blocks of queries that see none of the keys."""
        spec, cut = self.spec, self.cut
        if not spec.causal:
            return None
        query = tirx.max(tir.index(0), self.first - tir.index(spec.keys - spec.queries))
        return block.let(tirx.truncdiv(query, tir.index(cut.block)), "before")

    def _block(self, block: Block, chain: _Chain, first_query: Value) -> None:
        """Adds one block of queries."""
        rows = chain.rows(block, first_query)
        weights = chain.weights(block, rows, first_query, self.first)
        if self.d_v is not None:
            self.tile.keep(block, weights, by_query=True)
            self.tile.add_weighted(block, chain.d_y, first_query, self.d_v[1])
        if self.d_k is not None:
            d_scores = chain.through_scores(block, rows, weights, first_query, self.first)
            self.tile.keep(block, d_scores, by_query=True)
            self.tile.add_weighted(block, chain.q, first_query, self.d_k[1])


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
        """Emits all blocks of keys that the queries see, then the results."""
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
        """Finishes the scores; those of what is not seen become -inf."""
        visible = self.scores.finish(block, scores, self.first, first_key)
        for place, condition in enumerate(condition for row in visible for condition in row):
            if condition is not None:
                masked = tirx.Select(condition, tir.load(scores, place), number(-math.inf))
                block.store(scores, place, masked)

    def _raise(self, block: Block, scores: Buffer) -> list[Value]:
        """Updates each row's highest score so far and returns the factors by which the sums so far are multiplied for
        that.
        """
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


def emit(spec: AttentionSpec, target: GridTarget, threads: int) -> Grid:
    """Attention or its gradient. Raises: BuildError for scores in sixteen bits."""
    require_supported(spec)
    grid = Grid(spec, workspace_bytes(spec, target, threads))
    if spec.kind == "forward":
        cut = cut_for(target, positions=spec.queries, widths=(spec.value_width,))
        groups = spec.batch * spec.heads * -(-spec.queries // cut.block)
        grid.launch(groups, cut.items, lambda here: Forward(spec, cut, here).write())
        return grid
    if goes_through_scores(spec):
        grid.launch(*launch_deltas(spec), lambda here: write_deltas(spec, here))
    if spec.wanted[0]:
        cut = cut_for(target, positions=spec.queries, widths=(spec.width,))
        groups = spec.batch * spec.heads * -(-spec.queries // cut.block)
        grid.launch(groups, cut.items, lambda here: write_d_q(spec, cut, here, here.operands.outputs[0]))
    if spec.wanted[1] or spec.wanted[2]:
        _launch_of_keys(grid, spec, target)
    return grid


def _launch_of_keys(grid: Grid, spec: AttentionSpec, target: GridTarget) -> None:
    """d_k and d_v, as far as they are wanted."""
    sizes = zip(spec.wanted[1:], (spec.width, spec.value_width), strict=True)
    cut = cut_for(target, positions=spec.keys, widths=tuple(width for wanted, width in sizes if wanted))

    def write(here: Here) -> None:
        outputs = iter(here.operands.outputs)
        _, d_k, d_v = (next(outputs) if wanted else None for wanted in spec.wanted)
        KeyGradients(spec, cut, here, d_k, d_v).write()

    grid.launch(spec.batch * spec.groups * -(-spec.keys // cut.block), cut.items, write)
