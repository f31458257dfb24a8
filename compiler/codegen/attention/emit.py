"""TIR of attention: forward and backward, head by head.

TIR of attention: block by block of queries, scores, softmax and the weighted sum of values, all in cache.

TIR of attention's gradient: block by block of queries, the weights once more, then the products of the chain.

For a block of queries: p = exp(s - highest) share, d_s = scale p (d_y v' - rowsum(d_y y)); then d_v += p' d_y,
d_k += d_s' q, d_q = d_s k. A thread owns whole key/value heads, so nothing is shared.
"""

from __future__ import annotations

import math

from tvm import tirx

from compiler.codegen.attention.head import Head, Rows, Write, mask_row
from compiler.codegen.attention.plan import AttentionPlan, Layout, layout, plan, workspace_bytes
from compiler.codegen.tile.packing import zero_run
from compiler.codegen.tile.register_tile import RegisterTile
from compiler.codegen.tile.share import share_out
from compiler.codegen.tile.tiling import vector_pieces
from compiler.codegen.tir import scalar_math
from compiler.codegen.tir.accumulate import fold_lanes
from compiler.codegen.tir.tir import (
    Block,
    Buffer,
    Operands,
    PrimFunc,
    Value,
    broadcast,
    declare,
    finish,
    index,
    literal,
    load,
)
from compiler.element_types import SCRATCH
from compiler.kernels.spec import AttentionSpec
from compiler.targets import CpuTarget


class Backward(Head):
    """d_q, d_k and d_v of every head, as far as they are wanted."""

    def __init__(self, spec: AttentionSpec, plan: AttentionPlan, scratch: Layout, operands: Operands) -> None:
        super().__init__(spec, plan, scratch, operands.workspace)
        self.q, self.k, self.v, self.y, self.stats, self.d_y, *mask = operands.inputs
        self.mask = mask[0] if mask else None
        outputs = iter(operands.outputs)
        self.d_q, self.d_k, self.d_v = (next(outputs) if wanted else None for wanted in spec.wanted)
        self.through_scores = self.d_q is not None or self.d_k is not None

    def emit(self, block: Block) -> None:
        """Emits all heads, shared out to threads."""

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: self._unit(b, slot, b.let(first + i, "unit")), name="unit")

        share_out(block, self.plan.slots, self.spec.batch * self.spec.groups, slot_body)

    def _unit(self, block: Block, slot: Value, unit: Value) -> None:
        spec = self.spec
        batch, group, chunk = self.pair(block, unit)
        k = block.let(self.key_base(batch, group, spec.width), "k")
        v = block.let(self.key_base(batch, group, spec.value_width), "v")
        self.pack_across(block, self.k, k, block.let(self.place(slot, "keys_across"), "to"), spec.width)
        if self.through_scores:
            self.pack_across(block, self.v, v, block.let(self.place(slot, "values_across"), "to"), spec.value_width)
        if self.d_q is not None:
            to = block.let(self.place(slot, "keys"), "to")
            self.pack_rows(block, self.k, k, spec.groups * spec.width, to, spec.keys, spec.width)
        for buffer, base, width in ((self.d_k, k, spec.width), (self.d_v, v, spec.value_width)):
            if buffer is not None:
                self._clear(block, buffer, base, width)

        def query_head(inner: Block, r: Value) -> None:
            head = inner.let(group * self.shared + r, "head")

            def emit_block(b: Block, first: Value, count: int) -> None:
                self._block(b, slot, Rows(batch, head, first, count, self.limit(b, first, count)), k, v)

            self.each_block(inner, chunk, emit_block)

        block.loop(self.shared, query_head, name="query_head")

    def _clear(self, block: Block, buffer: Buffer, base: Value, width: int) -> None:
        stride = self.spec.groups * width
        block.loop(
            self.spec.keys,
            lambda b, s: zero_run(b, buffer, b.let(base + s * stride, "row"), width, self.plan.lanes),
            name="key",
        )

    def _block(self, block: Block, slot: Value, rows: Rows, k: Value, v: Value) -> None:
        spec = self.spec
        weights, d_scores = (block.let(self.place(slot, name), name) for name in ("scores", "d_scores"))
        q = block.let(self.query_base(rows, spec.width), "q")
        d_y = block.let(self.query_base(rows, spec.value_width), "d_y")
        q_stride, y_stride = spec.heads * spec.width, spec.heads * spec.value_width
        self.scores(block, rows, (self.q, q, spec.width), self.place(slot, "keys_across"), weights)
        if self.through_scores:
            self.scores(block, rows, (self.d_y, d_y, spec.value_width), self.place(slot, "values_across"), d_scores)
        block.loop(rows.count, lambda b, i: self._weights(b, rows, i, weights, d_scores, d_y), name="query")
        if self.d_v is not None:
            packed = block.let(self.place(slot, "d_y"), "packed")
            self.pack_rows(block, self.d_y, d_y, y_stride, packed, rows.count, spec.value_width)
            write = _added(self.d_v, v, spec.groups * spec.value_width)
            self.keys_out(block, rows, weights, packed, spec.value_width, write)
        if self.d_k is not None:
            packed = block.let(self.place(slot, "q"), "packed")
            self.pack_rows(block, self.q, q, q_stride, packed, rows.count, spec.width)
            write = _added(self.d_k, k, spec.groups * spec.width)
            self.keys_out(block, rows, d_scores, packed, spec.width, write)
        if self.d_q is not None:
            keys = self.place(slot, "keys")
            self.rows_out(block, rows, d_scores, keys, spec.width, _written(self.d_q, q, q_stride))

    def _weights(self, block: Block, rows: Rows, i: Value, weights: Value, d_scores: Value, d_y: Value) -> None:
        """Turns one row of scores to weights p, and of d_y v' to d_s, in place; zeros where the query does not see."""
        spec = self.spec
        t = block.let(rows.first + i, "t")
        place = block.let((rows.batch * spec.heads + rows.head) * (2 * spec.queries) + t, "stats")
        highest = block.let(load(self.stats, place), "highest")
        share = block.let(load(self.stats, place + spec.queries), "share")
        mask = mask_row(block, self.mask_access(), self.mask, (rows.batch, rows.head, t))
        at, d_at = (block.let(base + i * self.plan.score_stride, "row") for base in (weights, d_scores))
        delta = self._delta(block, rows, i, d_y) if self.through_scores else None

        def step(inner: Block, s: Value, width: int) -> None:
            x = self.masked(inner, load(self.workspace, at + s, width), mask, s, width)
            p = scalar_math.exp(inner, inner.let(x - broadcast(highest, width), "x")) * broadcast(share, width)
            visible = self.visible(t, s, width) if spec.causal else None
            zero = literal(0.0, SCRATCH.tir, width)
            p = inner.let(p if visible is None else tirx.Select(visible, p, zero), "p")
            inner.store(self.workspace, at + s, p)
            if delta is None:
                return
            scaled = inner.let(p * literal(spec.scale, SCRATCH.tir, width), "scaled")
            d_s = scaled * (load(self.workspace, d_at + s, width) - broadcast(delta, width))
            inner.store(self.workspace, d_at + s, d_s if visible is None else tirx.Select(visible, d_s, zero))

        # Tiles of d_k and d_v reach past the last key seen: what they read there must be zero.
        self.each_vector(block, rows.limit, self.plan.keys_out.rows, step)

    def _delta(self, block: Block, rows: Rows, i: Value, d_y: Value) -> Value:
        """The row's sum of d_y y."""
        spec, lanes = self.spec, self.plan.lanes
        base = block.let(d_y + i * (spec.heads * spec.value_width), "d_y")
        total: Value = None
        pieces = vector_pieces(spec.value_width, lanes)
        sums: dict[int, Value] = {}
        for start, width in pieces:
            part = load(self.d_y, base + start, width) * load(self.y, base + start, width)
            sums[width] = part if width not in sums else sums[width] + part
        for part in sums.values():
            folded = fold_lanes(block, "sum", block.let(part, "part"))
            total = folded if total is None else block.let(total + folded, "delta")
        return total


def _written(buffer: Buffer, base: Value, row_stride: int) -> Write:
    """Stores a tile's valid columns."""

    def write(block: Block, tile: RegisterTile, m: Value, n: Value) -> None:
        place = block.let(base + m * row_stride + n, "place")
        for row in range(tile.rows):
            for start, _, value in tile.pieces(block, row):
                block.store(buffer, place + (row * row_stride + start), value)

    return write


def _added(buffer: Buffer, base: Value, row_stride: int) -> Write:
    """Adds a tile's valid columns to what is there."""

    def write(block: Block, tile: RegisterTile, m: Value, n: Value) -> None:
        place = block.let(base + m * row_stride + n, "place")
        for row in range(tile.rows):
            for start, lanes, value in tile.pieces(block, row):
                at = place + (row * row_stride + start)
                block.store(buffer, at, load(buffer, at, lanes) + value)

    return write


_LOWEST = -3.4028234663852886e38
"""Stands for the maximum of a row without any key, so that nothing is inf - inf; no finite score is below it."""


class Forward(Head):
    """y, and the highest score and the share of every row, of every head."""

    def __init__(self, spec: AttentionSpec, plan: AttentionPlan, scratch: Layout, operands: Operands) -> None:
        super().__init__(spec, plan, scratch, operands.workspace)
        self.q, self.k, self.v, *mask = operands.inputs
        self.mask = mask[0] if mask else None
        self.y, self.stats = operands.outputs

    def emit(self, block: Block) -> None:
        """Emits all heads, shared out to threads."""
        plan, spec = self.plan, self.spec

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: self._unit(b, slot, b.let(first + i, "unit")), name="unit")

        share_out(block, plan.slots, spec.batch * spec.groups * plan.chunks, slot_body)

    def _unit(self, block: Block, slot: Value, unit: Value) -> None:
        spec = self.spec
        batch, group, chunk = self.pair(block, unit)
        keys = block.let(self.place(slot, "keys_across"), "keys")
        self.pack_across(block, self.k, block.let(self.key_base(batch, group, spec.width), "k"), keys, spec.width)
        values = block.let(self.place(slot, "values"), "values")
        base = block.let(self.key_base(batch, group, spec.value_width), "v")
        stride = spec.groups * spec.value_width
        self.pack_rows(block, self.v, base, stride, values, spec.keys, spec.value_width)

        def query_head(inner: Block, r: Value) -> None:
            head = inner.let(group * self.shared + r, "head")
            self.each_block(
                inner,
                chunk,
                lambda b, first, count: self._block(
                    b, slot, Rows(batch, head, first, count, self.limit(b, first, count))
                ),
            )

        block.loop(self.shared, query_head, name="query_head")

    def _block(self, block: Block, slot: Value, rows: Rows) -> None:
        spec = self.spec
        scores = block.let(self.place(slot, "scores"), "scores")
        q = block.let(self.query_base(rows, spec.width), "q")
        self.scores(block, rows, (self.q, q, spec.width), self.place(slot, "keys_across"), scores)
        block.loop(rows.count, lambda b, i: self._softmax(b, slot, rows, i, scores), name="query")
        self._finish_stats(block, slot, rows)
        self._values(block, slot, rows, scores)

    def _softmax(self, block: Block, slot: Value, rows: Rows, i: Value, scores: Value) -> None:
        """Turns one row of scores to exp(score - highest), and keeps the highest and the sum."""
        row = block.let(scores + i * self.plan.score_stride, "row")
        t = block.let(rows.first + i, "t")
        highest = self._highest(block, rows, row, t)
        block.store(self.workspace, self.place(slot, "highest") + i, highest)
        block.store(self.workspace, self.place(slot, "sums") + i, self._exponentials(block, rows, row, highest))

    def _highest(self, block: Block, rows: Rows, row: Value, t: Value) -> Value:
        """Scales and masks the row in place and returns its largest score, or a low bound if it sees nothing."""
        lanes = self.plan.lanes
        mask = mask_row(block, self.mask_access(), self.mask, (rows.batch, rows.head, t))
        best = block.local(lanes, name="best")
        block.store(best, 0, literal(_LOWEST, SCRATCH.tir, lanes))

        def step(inner: Block, s: Value, width: int) -> None:
            x = self.masked(inner, load(self.workspace, row + s, width), mask, s, width)
            if self.spec.causal:
                hidden = literal(-math.inf, SCRATCH.tir, width)
                x = inner.let(tirx.Select(self.visible(t, s, width), x, hidden), "x")
            inner.store(self.workspace, row + s, x)
            inner.store(best, 0, tirx.Max(load(best, 0, width), x))

        self.each_vector(block, rows.limit, 0, step)
        self._pad(block, row)
        return fold_lanes(block, "max", block.let(load(best, 0, lanes), "best"))

    def _pad(self, block: Block, row: Value) -> None:
        """Scores of keys that do not exist, up to whole vectors."""
        rest = -self.spec.keys % self.plan.lanes
        for start, width in vector_pieces(rest, self.plan.lanes):
            block.store(self.workspace, row + (self.spec.keys + start), literal(-math.inf, SCRATCH.tir, width))

    def _exponentials(self, block: Block, rows: Rows, row: Value, highest: Value) -> Value:
        """The row's exp(score - highest), in place; their sum."""
        lanes = self.plan.lanes
        total = block.local(lanes, name="total")
        block.store(total, 0, literal(0.0, SCRATCH.tir, lanes))
        spread = broadcast(highest, lanes)
        vectors: int | Value = -(-self.spec.keys // lanes)
        if rows.limit is not None:
            vectors = block.let(tirx.truncdiv(rows.limit + (lanes - 1), index(lanes)), "vectors")

        def step(inner: Block, v: Value) -> None:
            place = inner.let(row + v * lanes, "place")
            term = scalar_math.exp(inner, inner.let(load(self.workspace, place, lanes) - spread, "x"))
            inner.store(self.workspace, place, term)
            inner.store(total, 0, load(total, 0, lanes) + term)

        block.loop(vectors, step, name="v")
        return fold_lanes(block, "sum", block.let(load(total, 0, lanes), "total"))

    def _finish_stats(self, block: Block, slot: Value, rows: Rows) -> None:
        """The highest score and the reciprocal of the sum of every row, which also takes the sum's place."""
        lanes, queries = self.plan.lanes, self.spec.queries
        out = block.let((rows.batch * self.spec.heads + rows.head) * (2 * queries) + rows.first, "stats")
        highest, sums = self.place(slot, "highest"), self.place(slot, "sums")

        def step(inner: Block, start: Value, width: int) -> None:
            total = inner.let(load(self.workspace, sums + start, width), "total")
            unseen = tirx.EQ(total, literal(0.0, SCRATCH.tir, width))
            inner.store(self.stats, out + start, load(self.workspace, highest + start, width))
            whole = tirx.Div(literal(1.0, SCRATCH.tir, width), total)
            share = inner.let(tirx.Select(unseen, literal(0.0, SCRATCH.tir, width), whole), "share")
            inner.store(self.stats, out + (start + queries), share)
            inner.store(self.workspace, sums + start, share)

        block.loop(rows.count // lanes, lambda b, v: step(b, b.let(v * lanes, "start"), lanes), name="v")
        whole = rows.count - rows.count % lanes
        for start, width in vector_pieces(rows.count - whole, lanes):
            step(block, index(whole + start), width)

    def _values(self, block: Block, slot: Value, rows: Rows, scores: Value) -> None:
        """y = weights times values, each row by the reciprocal of its sum."""
        spec = self.spec
        y = block.let(self.query_base(rows, spec.value_width), "y")
        stride = spec.heads * spec.value_width
        shares = self.place(slot, "sums")

        def write(inner: Block, tile: RegisterTile, m: Value, n: Value) -> None:
            place = inner.let(y + m * stride + n, "place")
            for row in range(tile.rows):
                share = inner.let(load(self.workspace, shares + m + row), "share")
                for start, lanes, value in tile.pieces(inner, row):
                    inner.store(self.y, place + (row * stride + start), value * broadcast(share, lanes))

        self.rows_out(block, rows, scores, self.place(slot, "values"), spec.value_width, write)


def emit(spec: AttentionSpec, target: CpuTarget, threads: int) -> PrimFunc:
    """TIR of attention or of its gradient."""
    operands = declare(spec, workspace_bytes(spec, target, threads))
    chosen = plan(spec, target, threads)
    body = Block()
    kernel = Forward if spec.kind == "forward" else Backward
    kernel(spec, chosen, layout(spec, chosen), operands).emit(body)
    return finish(spec, operands, body)
