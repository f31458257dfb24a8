"""Gradient of layer norm and RMS norm: four rows at a time, sums over rows in each thread's own accumulators.

Four rows together make four independent chains of every sum, and read and write the columns' values once for all four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from compiler.codegen.norm_grad.plan import NormGradPlan, plan, workspace_bytes
from compiler.codegen.tile.epilogue import Epilogue
from compiler.codegen.tile.packing import zero_run
from compiler.codegen.tile.share import share_out
from compiler.codegen.tile.tiling import vector_pieces
from compiler.codegen.tir import tir
from compiler.codegen.tir.accumulate import fold_lanes
from compiler.codegen.tir.tir import Block, Buffer, Operands, Point, PrimFunc, Value, broadcast, index, literal, load
from compiler.element_types import SCRATCH
from compiler.kernels.spec import NormGradSpec
from compiler.targets import CpuTarget

_ROWS = 4


def emit(spec: NormGradSpec, target: CpuTarget, threads: int) -> PrimFunc:
    """TIR of the gradient."""
    operands = tir.declare(spec, workspace_bytes(spec, target, threads))
    body = tir.Block()
    _Gradient(spec, operands, plan(spec, target, threads)).emit(body)
    return tir.finish(spec, operands, body)


class _Gradient:
    """Writes the loop over rows, and the addition of the threads' sums."""

    def __init__(self, spec: NormGradSpec, operands: Operands, plan: NormGradPlan) -> None:
        self.spec, self.plan, self.lanes, self.slots = spec, plan, plan.precision.sum_lanes, plan.slots
        self.x, self.weight, self.d_y, *extra = operands.inputs
        outputs = iter(operands.outputs)
        self.d_x, self.d_weight, self.d_bias = (next(outputs) if wanted else None for wanted in spec.wanted)
        self.workspace = operands.workspace
        self.epilogue = Epilogue.of(spec.epilogue, extra, spec.epilogue_inputs, 2)

    def emit(self, block: Block) -> None:
        """Rows in parallel, then the sums of all threads."""
        groups, rest = divmod(self.spec.rows, _ROWS)

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            if self.workspace is not None:
                base = body.let(self._sums(slot, 0), "sums")
                zero_run(body, self.workspace, base, 2 * self.plan.line_of_sums, self.lanes)
            body.loop(end - first, lambda b, i: self._rows(b, slot, b.let((first + i) * _ROWS, "row"), _ROWS))
            if rest:
                last = tirx.EQ(slot, index(self.slots - 1))
                body.when(last, lambda b: self._rows(b, slot, index(groups * _ROWS), rest))

        share_out(block, self.slots, groups, slot_body)
        for number, output in enumerate((self.d_weight, self.d_bias)):
            if output is not None:
                self._combine(block, number, output)

    def _sums(self, slot: Value, number: int) -> Value:
        """Returns where a thread's sums for d_weight (0) or d_bias (1) begin."""
        return (slot * 2 + number) * self.plan.line_of_sums

    def _combine(self, block: Block, number: int, output: Buffer) -> None:
        def piece(body: Block, column: Value, width: int) -> None:
            parts = [load(self.workspace, self._sums(index(s), number) + column, width) for s in range(self.slots)]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            body.store(output, column, total)

        self._each_vector(block, piece)

    def _each_vector(self, block: Block, body: Callable[[Block, Value, int], None]) -> None:
        """`body(block, first column, width)` along a row."""
        whole = self.spec.width // self.lanes
        block.loop(whole, lambda b, v: body(b, b.let(v * self.lanes, "column"), self.lanes), name="v")
        for start, width in vector_pieces(self.spec.width % self.lanes, self.lanes):
            body(block, index(whole * self.lanes + start), width)

    # ------------------------------------------------------------------------------------------------- a few rows

    def _rows(self, block: Block, slot: Value, first: Value, count: int) -> None:
        """`count` rows from `first` on."""
        bases = [block.let((first + i) * self.spec.width, "base") for i in range(count)]
        share = 1.0 / self.spec.width
        means: Sequence[Value] = [None] * count
        needs_n = self.spec.wanted[0] or self.spec.wanted[1]
        if self.spec.centred and needs_n:
            sums = self._sum(block, count, lambda b, i, c, w: load(self.x, bases[i] + c, w))
            means = [block.let(total * share, "mean") for total in sums]
        scales = self._scales(block, bases, means) if needs_n else []
        along = self._accumulate(block, slot, bases, means, scales)
        if self.d_x is not None:
            self._write(block, first, bases, means, scales, along)

    def _sum(self, block: Block, count: int, term: Callable[[Block, int, Value, int], Value]) -> list[Value]:
        """The sum of `term(block, row, column, width)` along each of `count` rows."""
        totals = self._zeros(block, count)

        def step(body: Block, column: Value, width: int) -> None:
            for i in range(count):
                self._add(body, totals[i], term(body, i, column, width), width)

        self._each_vector(block, step)
        return self._folded(block, totals)

    def _zeros(self, block: Block, count: int) -> list[Buffer]:
        totals = [block.local(self.lanes, name="total") for _ in range(count)]
        for total in totals:
            block.store(total, 0, literal(0.0, SCRATCH.tir, self.lanes))
        return totals

    def _add(self, block: Block, total: Buffer, value: Value, width: int) -> None:
        block.store(total, 0, load(total, 0, width) + value)

    def _folded(self, block: Block, totals: Sequence[Buffer]) -> list[Value]:
        return [fold_lanes(block, "sum", block.let(load(total, 0, self.lanes), "total")) for total in totals]

    def _scales(self, block: Block, bases: Sequence[Value], means: Sequence[Value]) -> list[Value]:
        """1 / sqrt(variance + epsilon) of each row."""

        def square(body: Block, i: int, column: Value, width: int) -> Value:
            value = body.let(self._centred(bases[i], means[i], column, width), "x")
            return value * value

        share = 1.0 / self.spec.width
        sums = self._sum(block, len(bases), square)
        return [block.let(1.0 / tirx.sqrt(total * share + self.spec.epsilon), "scale") for total in sums]

    def _centred(self, base: Value, mean: Value, column: Value, width: int) -> Value:
        x = load(self.x, base + column, width)
        return x if mean is None else x - broadcast(mean, width)

    def _accumulate(
        self,
        block: Block,
        slot: Value,
        bases: Sequence[Value],
        means: Sequence[Value],
        scales: Sequence[Value],
    ) -> tuple[list[Value], list[Value]]:
        """Per row the means of g n and (if centred) of g; meanwhile the columns' sums grow."""
        count = len(bases)
        of_rows = self.d_x is not None
        along, offsets = (self._zeros(block, count if of_rows else 0) for _ in range(2))

        def step(body: Block, column: Value, width: int) -> None:
            d_y = [body.let(load(self.d_y, base + column, width), "d_y") for base in bases]
            n = [
                body.let(self._centred(bases[i], means[i], column, width) * broadcast(scales[i], width), "n")
                for i in range(count if scales else 0)
            ]
            if of_rows:
                weight = body.let(load(self.weight, column, width), "weight")
                for i in range(count):
                    g = body.let(d_y[i] * weight, "g")
                    self._add(body, along[i], g * n[i], width)
                    self._add(body, offsets[i], g, width)
            if self.d_weight is not None:
                self._grow(body, slot, 0, column, width, [d * normalized for d, normalized in zip(d_y, n, strict=True)])
            if self.d_bias is not None:
                self._grow(body, slot, 1, column, width, d_y)

        self._each_vector(block, step)
        share = 1.0 / self.spec.width
        first, second = (
            [block.let(total * share, "mean") for total in self._folded(block, totals)] for totals in (along, offsets)
        )
        return first, second

    def _grow(self, block: Block, slot: Value, number: int, column: Value, width: int, terms: Sequence[Value]) -> None:
        """Adds a few rows' terms to a thread's sums."""
        place = block.let(self._sums(slot, number) + column, "place")
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        block.store(self.workspace, place, load(self.workspace, place, width) + total)

    def _write(
        self,
        block: Block,
        first: Value,
        bases: Sequence[Value],
        means: Sequence[Value],
        scales: Sequence[Value],
        along: tuple[list[Value], list[Value]],
    ) -> None:
        """d_x = scale (g - mean(g) - n mean(g n)), with the epilogue."""

        def step(body: Block, column: Value, width: int) -> None:
            weight = body.let(load(self.weight, column, width), "weight")
            for i, base in enumerate(bases):
                scale = broadcast(scales[i], width)
                n = body.let(self._centred(base, means[i], column, width) * scale, "n")
                rest = load(self.d_y, base + column, width) * weight - n * broadcast(along[0][i], width)
                if self.spec.centred:
                    rest = rest - broadcast(along[1][i], width)
                point = Point((first + i, column))
                point = point.vector(1, width) if width > 1 else point
                value = self.epilogue.apply(body, body.let(rest * scale, "d_x"), point)
                body.store(self.d_x, base + column, value)

        self._each_vector(block, step)
