"""Row-wise kernels (softmax, layer norm, cross-entropy, their gradients): parallel over rows, vectors along a row."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compiler.codegen.tir.iteration import FlatAccess, chunks, expression_dtype, flatten_access
from compiler.element_types import DType
from compiler.kernels.access import Affine
from compiler.kernels.expressions import Binary, Expr, Ref, Select, Unary
from compiler.kernels.spec import RowSpec
from compiler.targets import Target

if TYPE_CHECKING:
    from compiler.codegen.tir.tir import Block, Buffer, Operands, Point, PrimFunc, Value

PARALLEL_ELEMENTS = 8192
"""Lower than for maps: a row's stages do more work per element."""
_ACCUMULATORS = 4
_KEPT_ELEMENTS = 4096
"""Widest row whose intermediate values are kept on the stack (16 KB)."""
_COSTLY = frozenset({"exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "pow"})


def workspace_bytes(spec: RowSpec, target: Target, threads: int) -> int:
    """None is needed."""
    return 0


def emit(spec: RowSpec, target: Target, threads: int) -> PrimFunc:
    """TIR of a row-wise kernel."""
    from compiler.codegen.tir import tir

    operands = tir.declare(spec)
    body = tir.Block()
    kernel = _Rows(spec, operands, target)
    parallel = threads > 1 and spec.rows * spec.width >= PARALLEL_ELEMENTS
    body.loop(spec.rows, kernel.row, kind="parallel" if parallel else "serial", name="row")
    return tir.finish(spec, operands, body)


class _Rows:
    """Writes the body of the loop over rows."""

    def __init__(self, spec: RowSpec, operands: Operands, target: Target) -> None:
        extents = (spec.rows, spec.width)
        self.spec, self.operands, self.lanes = spec, operands, target.lanes
        self.inputs = tuple(flatten_access(access, extents) for access in spec.inputs)
        self.outputs = tuple(flatten_access(access, extents) for access in spec.outputs)
        self.kept = _worth_keeping(spec) if spec.width <= _KEPT_ELEMENTS else {}

    def row(self, block: Block, row: Value) -> None:
        """Every stage, then every output, of one row."""
        from compiler.codegen.tir import tir

        point = tir.Point((row, tir.index(0)))
        fixed = self._per_row(block, point)
        stores = {stage: block.local(self.spec.width, "float32", "kept") for stage in self.kept.values()}
        stats: list[Value] = []
        for stage in range(len(self.spec.stages)):
            stats.append(self._stage(block, point, fixed, stats, stage, stores))
        self._write_row(block, point, fixed, stats, stores)
        self._write_once(block, point, fixed, stats)

    def _per_row(self, block: Block, point: Point) -> dict[int, Value]:
        """Inputs that do not move along the row, read once."""
        from compiler.codegen.tir import tir

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
        from compiler.codegen.tir import tir
        from compiler.codegen.tir.accumulate import Accumulators, combined, fold_lanes

        combine, expr = self.spec.stages[stage]
        element = tir.STORAGE[_dtype(expr, self.spec)]
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
            for left in range(turns * chains, vectors):
                sums.add(block, left % chains, term(block, tir.index(left * self.lanes), self.lanes))
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
        from compiler.codegen.tir import tir
        from compiler.codegen.tir.expressions import Evaluator

        used = _operands(expr, self._known(stats))
        refs = [
            (fixed[n] if n in fixed else tir.read(block, self.operands.inputs[n], access, point)) if n in used else None
            for n, access in enumerate(self.inputs)
        ]
        evaluator = Evaluator(block, refs, stats=stats, point=point)
        for kept, stage in self._known(stats).items():
            evaluator.preset(kept, functools.partial(tir.load, stores[stage], point.axes[1], point.lanes))
        return tir.broadcast(evaluator.value(expr, element), point.lanes)

    def _known(self, stats: Sequence[Value]) -> dict[Expr, int]:
        """Kept expressions whose stage is done."""
        return {expr: stage for expr, stage in self.kept.items() if stage < len(stats)}

    def _write_row(
        self, block: Block, point: Point, fixed: dict[int, Value], stats: Sequence[Value], stores: dict[int, Buffer]
    ) -> None:
        """Outputs along the row: all expressions at a point before any write."""
        from compiler.codegen.tir import tir

        moving = [n for n, access in enumerate(self.outputs) if not _is_per_row(access)]
        if not moving:
            return

        def at(inner: Block, place: Value, width: int) -> None:
            here = point.at(1, place).vector(1, width)
            values = []
            for n in moving:
                element = _element(self.spec.outputs[n].type.dtype)
                value = self._value(inner, here, fixed, stats, self.spec.exprs[n], element, stores)
                values.append(inner.let(value, "y"))
            for n, value in zip(moving, values, strict=True):
                tir.write(inner, self.operands.outputs[n], self.outputs[n], here, value)

        block.loop(self.spec.width // self.lanes, lambda inner, v: at(inner, v * self.lanes, self.lanes), name="v")
        for start, width in chunks(self.spec.width, self.lanes):
            at(block, tir.index(start), width)

    def _write_once(self, block: Block, point: Point, fixed: dict[int, Value], stats: Sequence[Value]) -> None:
        """Outputs with one element per row."""
        from compiler.codegen.tir import tir
        from compiler.codegen.tir.expressions import Evaluator

        for n, access in enumerate(self.outputs):
            if not _is_per_row(access):
                continue
            refs = [fixed.get(number) for number in range(len(self.inputs))]
            element = _element(self.spec.outputs[n].type.dtype)
            value = Evaluator(block, refs, stats=stats, point=point).value(self.spec.exprs[n], element)
            tir.write(block, self.operands.outputs[n], access, point, value)


def _is_per_row(access: FlatAccess) -> bool:
    return not access.strides[1] and not any(axis == 1 for guard in access.guards for axis, _ in guard.terms)


def _dtype(expr: Expr, spec: RowSpec) -> DType:
    return expression_dtype(expr, [access.type.dtype for access in spec.inputs]) or "f32"


def _element(dtype: DType) -> str:
    from compiler.codegen.tir import tir

    return "bool" if dtype == "bool" else tir.STORAGE[dtype]


def _children(expr: Expr) -> tuple[Expr, ...]:
    match expr:
        case Unary(_, x):
            return (x,)
        case Binary(_, x, y):
            return (x, y)
        case Select(cond, then, other):
            return (cond, then, other)
    return ()


def _operands(expr: Expr, known: dict[Expr, int]) -> set[int]:
    """The inputs that an expression reads, apart from what is `known` already."""
    if expr in known:
        return set()
    if isinstance(expr, Ref):
        return {expr.operand}
    return {operand for child in _children(expr) for operand in _operands(child, known)}


def _worth_keeping(spec: RowSpec) -> dict[Expr, int]:
    """Stage expressions that cost much and come again in a later stage or output, with the stage that makes them."""
    kept: dict[Expr, int] = {}
    for stage, (_, expr) in enumerate(spec.stages):
        later = [other for _, other in spec.stages[stage + 1 :]] + [
            expr for expr, access in zip(spec.exprs, spec.outputs, strict=True) if _uses_axis(access.index, 1)
        ]
        if _dtype(expr, spec) == "f32" and _is_costly(expr) and any(_contains(other, expr) for other in later):
            kept[expr] = stage
    return kept


def _uses_axis(index: Sequence[Affine], axis: int) -> bool:
    return any(a == axis for dimension in index for a, _ in dimension.terms)


def _is_costly(expr: Expr) -> bool:
    return getattr(expr, "op", "") in _COSTLY or any(_is_costly(child) for child in _children(expr))


def _contains(expr: Expr, part: Expr) -> bool:
    return expr == part or any(_contains(child, part) for child in _children(expr))
