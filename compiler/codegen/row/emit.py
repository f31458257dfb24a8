"""Row-wise kernels (softmax, layer norm, cross-entropy, their gradients): parallel over rows, vectors along a row."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from compiler.codegen.row.plan import RowPlan, dtype_in_row, operands_of, plan
from compiler.codegen.tir import tir
from compiler.codegen.tir.accumulate import Accumulators, combined, fold_lanes
from compiler.codegen.tir.expressions import Evaluator
from compiler.codegen.tir.iteration import FlatAccess, chunks, flatten_access
from compiler.codegen.tir.tir import Block, Buffer, Operands, Point, PrimFunc, Value
from compiler.element_types import ELEMENT_TYPES, SCRATCH
from compiler.kernels.expressions import Expr
from compiler.kernels.spec import RowSpec
from compiler.targets import CpuTarget

_ACCUMULATORS = 4


def emit(spec: RowSpec, target: CpuTarget, threads: int) -> PrimFunc:
    """TIR of a row-wise kernel."""
    operands = tir.declare(spec)
    body = tir.Block()
    chosen = plan(spec, target, threads)
    kernel = _Rows(spec, operands, chosen)
    body.loop(spec.rows, kernel.row, kind="parallel" if chosen.parallel else "serial", name="row")
    return tir.finish(spec, operands, body)


class _Rows:
    """Writes the body of the loop over rows."""

    def __init__(self, spec: RowSpec, operands: Operands, plan: RowPlan) -> None:
        extents = (spec.rows, spec.width)
        self.spec, self.operands, self.lanes = spec, operands, plan.precision.sum_lanes
        self.inputs = tuple(flatten_access(access, extents) for access in spec.inputs)
        self.outputs = tuple(flatten_access(access, extents) for access in spec.outputs)
        self.stored = plan.stored

    def row(self, block: Block, row: Value) -> None:
        """Emits every stage, then every output, of one row."""
        point = tir.Point((row, tir.index(0)))
        fixed = self._per_row(block, point)
        stores = {stage: block.local(self.spec.width, SCRATCH.tir, "kept") for stage in self.stored.values()}
        stats: list[Value] = []
        for stage in range(len(self.spec.stages)):
            stats.append(self._stage(block, point, fixed, stats, stage, stores))
        self._write_row(block, point, fixed, stats, stores)
        self._write_once(block, point, fixed, stats)

    def _per_row(self, block: Block, point: Point) -> dict[int, Value]:
        """Inputs that do not move along the row, read once."""
        return {
            number: tir.read(block, self.operands.inputs[number], access, point)
            for number, access in enumerate(self.inputs)
            if _is_per_row(access)
        }

    def _stage(
        self,
        block: Block,
        point: Point,
        fixed: dict[int, Value],
        stats: Sequence[Value],
        stage: int,
        stores: dict[int, Buffer],
    ) -> Value:
        """The stage's statistic: terms in vector accumulators, folded at the end of the row."""
        combine, expr = self.spec.stages[stage]
        element = ELEMENT_TYPES[dtype_in_row(expr, self.spec)].sum.tir
        vectors = self.spec.width // self.lanes
        chains = max(1, min(_ACCUMULATORS, vectors))
        sums = Accumulators(block, combine, element, chains, self.lanes) if vectors else None

        def term(inner: Block, place: Value, width: int) -> Value:
            value = self._value(inner, point.at(1, place).vector(1, width), fixed, stats, expr, element, stores)
            if stage in stores:
                value = inner.let(value, "kept")
                inner.store(stores[stage], place, value)
            return value

        total: Value = None
        if sums is not None:
            turns = vectors // chains

            def turn(inner: Block, number: Value) -> None:
                for chain in range(chains):
                    sums.add(inner, chain, term(inner, (number * chains + chain) * self.lanes, self.lanes))

            block.loop(turns, turn, name="v")
            for vector in range(turns * chains, vectors):
                sums.add(block, vector % chains, term(block, tir.index(vector * self.lanes), self.lanes))
            total = fold_lanes(block, combine, sums.total(block))
        for start, width in chunks(self.spec.width, self.lanes):
            part = fold_lanes(block, combine, block.let(term(block, tir.index(start), width), "term"))
            total = part if total is None else block.let(combined(combine, total, part), "stat")
        return total

    def _value(
        self,
        block: Block,
        point: Point,
        fixed: dict[int, Value],
        stats: Sequence[Value],
        expr: Expr,
        element: str,
        stores: dict[int, Buffer],
    ) -> Value:
        """An expression at a point (or vector of points) of the row."""
        used = operands_of(expr, self._available(stats))
        refs = [
            (fixed[n] if n in fixed else tir.read(block, self.operands.inputs[n], access, point)) if n in used else None
            for n, access in enumerate(self.inputs)
        ]
        evaluator = Evaluator(block, refs, stats=stats, point=point)
        for stored_expr, stage in self._available(stats).items():
            evaluator.preset(stored_expr, functools.partial(tir.load, stores[stage], point.axes[1], point.lanes))
        return tir.broadcast(evaluator.value(expr, element), point.lanes)

    def _available(self, stats: Sequence[Value]) -> dict[Expr, int]:
        """Kept expressions whose stage is done."""
        return {expr: stage for expr, stage in self.stored.items() if stage < len(stats)}

    def _write_row(
        self, block: Block, point: Point, fixed: dict[int, Value], stats: Sequence[Value], stores: dict[int, Buffer]
    ) -> None:
        """Outputs along the row: all expressions at a point before any write."""
        moving = [n for n, access in enumerate(self.outputs) if not _is_per_row(access)]
        if not moving:
            return

        def at(inner: Block, place: Value, width: int) -> None:
            here = point.at(1, place).vector(1, width)
            values = []
            for n in moving:
                element = self.spec.outputs[n].type.element.tir_value
                value = self._value(inner, here, fixed, stats, self.spec.exprs[n], element, stores)
                values.append(inner.let(value, "y"))
            for n, value in zip(moving, values, strict=True):
                tir.write(inner, self.operands.outputs[n], self.outputs[n], here, value)

        block.loop(self.spec.width // self.lanes, lambda inner, v: at(inner, v * self.lanes, self.lanes), name="v")
        for start, width in chunks(self.spec.width, self.lanes):
            at(block, tir.index(start), width)

    def _write_once(self, block: Block, point: Point, fixed: dict[int, Value], stats: Sequence[Value]) -> None:
        """Outputs with one element per row."""
        for n, access in enumerate(self.outputs):
            if not _is_per_row(access):
                continue
            refs = [fixed.get(number) for number in range(len(self.inputs))]
            element = self.spec.outputs[n].type.element.tir_value
            value = Evaluator(block, refs, stats=stats, point=point).value(self.spec.exprs[n], element)
            tir.write(block, self.operands.outputs[n], access, point, value)


def _is_per_row(access: FlatAccess) -> bool:
    return not access.strides[1] and not any(axis == 1 for guard in access.guards for axis, _ in guard.terms)
