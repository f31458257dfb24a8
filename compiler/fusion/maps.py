"""Fuses an element-wise producer into a consumer that reads it: maps, reductions and row kernels."""

from __future__ import annotations

from dataclasses import replace

from compiler.kernels.access import Access, Affine
from compiler.kernels.affine import is_streaming, linear_form, unflatten
from compiler.kernels.expressions import MOST_NODES, Binary, Const, Expr, Index, Ref, size, substitute
from compiler.kernels.spec import MapSpec, ReduceSpec, RowSpec
from compiler.program.program import KernelCall
from compiler.rewriting.passes import Reason
from compiler.values import Value

MAX_OPERANDS = 12
SMALL_ELEMENTS = 4096

NO_MAP = Reason("reader.no_map", "element-wise work before a map, a reduction or a row kernel")
NOT_COMPOSED = Reason("reader.access", "reads whose index maps compose")
OUT_OF_ORDER = Reason("reader.order", "reads that walk large operands in the order of their memory")
TOO_LARGE = Reason("fusion.size", f"at most {MOST_NODES} operations in one expression")
TOO_MANY_OPERANDS = Reason("fusion.operands", f"at most {MAX_OPERANDS} operands together")

Reader = MapSpec | ReduceSpec | RowSpec


class Operands:
    """Collects the operands of a fused kernel, one entry per distinct (value, access)."""

    def __init__(self) -> None:
        self.names: list[Value] = []
        self.accesses: list[Access] = []

    def add(self, name: Value, access: Access) -> int:
        """Position of the operand, new or found."""
        for position, existing in enumerate(zip(self.names, self.accesses, strict=True)):
            if existing == (name, access):
                return position
        self.names.append(name)
        self.accesses.append(access)
        return len(self.names) - 1


def extents_of(spec: Reader) -> tuple[int, ...]:
    """Iteration extents that the inputs' accesses range over."""
    return (spec.rows, spec.width) if isinstance(spec, RowSpec) else spec.extents


def fuse_into_reader(producer: KernelCall, consumer: KernelCall, reads: frozenset[int]) -> KernelCall | Reason:
    """The consumer with operands `reads` (all of them the producer's output) replaced by the producer's expression.

    Returns the reason where the index maps do not compose, or the fused kernel would read memory out of order.
    """
    source, spec = producer.spec, consumer.spec
    if not isinstance(source, MapSpec) or not isinstance(spec, MapSpec | ReduceSpec | RowSpec):
        return NO_MAP
    extents = extents_of(spec)
    operands = Operands()
    table: dict[int, Expr] = {}
    main_inputs, behind = consumer.inputs[: len(spec.inputs)], consumer.inputs[len(spec.inputs) :]
    if max(reads) >= len(main_inputs):
        return NOT_COMPOSED  # an operand of the reduction's epilogue, which is read over other axes
    for position, (name, access) in enumerate(zip(main_inputs, spec.inputs, strict=True)):
        if position not in reads:
            table[position] = Ref(operands.add(name, access))
            continue
        moved = _moved_expression(producer, source, access, extents, operands)
        if isinstance(moved, Reason):
            return moved
        table[position] = moved
    if len(operands.names) + len(behind) > MAX_OPERANDS:
        return TOO_MANY_OPERANDS
    fused = _with_inputs(spec, tuple(operands.accesses), table)
    if any(size(expr) > MOST_NODES for expr in _expressions(fused)):
        return TOO_LARGE
    extra = spec.epilogue_inputs if isinstance(spec, ReduceSpec) else ()
    all_bytes = sum(access.type.size_bytes for access in (*operands.accesses, *extra))
    return replace(
        consumer,
        spec=fused,
        inputs=(*operands.names, *behind),
        flops=consumer.flops + producer.flops,
        bytes_read=min(all_bytes, consumer.bytes_read + producer.bytes_read),
    )


def _expressions(spec: Reader) -> tuple[Expr, ...]:
    if isinstance(spec, MapSpec):
        return spec.exprs
    if isinstance(spec, ReduceSpec):
        return (spec.expr,)
    return (*(expr for _, expr in spec.stages), *spec.exprs)


def _moved_expression(
    producer: KernelCall, source: MapSpec, access: Access, extents: tuple[int, ...], operands: Operands
) -> Expr | Reason:
    form = linear_form(access, len(extents))
    index = unflatten(form, extents, source.extents) if form is not None else None
    if index is None:
        return NOT_COMPOSED
    moved = [Access(a.type, tuple(_compose(affine, index) for affine in a.index), a.fill) for a in source.inputs]
    for moved_access in moved:
        if moved_access.type.size > SMALL_ELEMENTS and not is_streaming(moved_access, extents):
            return OUT_OF_ORDER
    numbers = [operands.add(name, moved_access) for name, moved_access in zip(producer.inputs, moved, strict=True)]

    def leaf(part: Expr) -> Expr:
        if isinstance(part, Ref):
            return Ref(numbers[part.operand])
        return _position(index[part.axis]) if isinstance(part, Index) else part

    return substitute(source.exprs[0], leaf)


def _compose(outer: Affine, inner: tuple[Affine, ...]) -> Affine:
    """`outer` over the producer's axes, with each axis replaced by its affine over the consumer's axes."""
    coefficients: dict[int, int] = {}
    offset = outer.offset
    for axis, scale in outer.terms:
        offset += scale * inner[axis].offset
        for inner_axis, coefficient in inner[axis].terms:
            coefficients[inner_axis] = coefficients.get(inner_axis, 0) + scale * coefficient
    return Affine(tuple(sorted((axis, c) for axis, c in coefficients.items() if c)), offset)


def _position(affine: Affine) -> Expr:
    total: Expr | None = Const(affine.offset) if affine.offset or not affine.terms else None
    for axis, coefficient in affine.terms:
        part: Expr = Index(axis) if coefficient == 1 else Binary("mul", Index(axis), Const(coefficient))
        total = part if total is None else Binary("add", total, part)
    return total if total is not None else Const(0)


def _with_inputs(spec: Reader, inputs: tuple[Access, ...], table: dict[int, Expr]) -> Reader:
    def rewrite(expr: Expr) -> Expr:
        return substitute(expr, lambda part: table[part.operand] if isinstance(part, Ref) else part)

    if isinstance(spec, MapSpec):
        return replace(spec, inputs=inputs, exprs=tuple(rewrite(expr) for expr in spec.exprs))
    if isinstance(spec, ReduceSpec):
        return replace(spec, inputs=inputs, expr=rewrite(spec.expr))
    stages = tuple((combine, rewrite(expr)) for combine, expr in spec.stages)
    return replace(spec, inputs=inputs, stages=stages, exprs=tuple(rewrite(expr) for expr in spec.exprs))
