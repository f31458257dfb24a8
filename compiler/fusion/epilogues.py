"""Fuses an element-wise consumer into the kernel that makes its operand, as that kernel's epilogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from compiler.fusion.maps import MAX_OPERANDS, TOO_LARGE, TOO_MANY_OPERANDS
from compiler.kernels.access import Access, Affine
from compiler.kernels.affine import is_identity, regrouped
from compiler.kernels.expressions import MOST_NODES, Expr, Ref, size, substitute_refs, uses_position
from compiler.kernels.movement import MovementSpec
from compiler.kernels.spec import (
    AttentionSpec,
    ConvSpec,
    DepthwiseSpec,
    GatherSpec,
    KernelSpec,
    MapSpec,
    MatmulSpec,
    NormGradSpec,
    PoolSpec,
    RecurrenceSpec,
    ReduceSpec,
    RowSpec,
)
from compiler.program.program import KernelCall
from compiler.rewriting.passes import Reason

CanHold = Callable[[KernelSpec, Expr], bool]
"""Whether a kernel that takes epilogues may apply an expression to what it writes (`compiler.codegen.family`)."""

NO_EPILOGUE = Reason("epilogue.none", "a producer that takes epilogues")
NOT_POINTWISE = Reason("epilogue.access", "element-wise work on reals, at the very points that the producer writes")
OTHER_OPERANDS = Reason("epilogue.operands", "further operands that can be read over the producer's axes")
TOO_MUCH_WORK = Reason("epilogue.work", "arithmetic that the producer's kernel can hold")

_WITHOUT = GatherSpec | MapSpec | AttentionSpec | RecurrenceSpec | MovementSpec
WithEpilogue = MatmulSpec | ConvSpec | DepthwiseSpec | PoolSpec | ReduceSpec | NormGradSpec


def output_extents(spec: KernelSpec) -> tuple[int, ...] | None:
    """Iteration extents of the output, in the axes that its epilogue is written over; None if it takes no epilogue."""
    if isinstance(spec, MatmulSpec):
        return (spec.batch, spec.m, spec.n)
    if isinstance(spec, ReduceSpec):
        return tuple(extent for axis, extent in enumerate(spec.extents) if axis not in spec.reduced)
    if isinstance(spec, ConvSpec):
        return _conv_extents(spec.kind, spec, (spec.k,), spec.weight)
    if isinstance(spec, DepthwiseSpec):
        return _conv_extents(spec.kind, spec, (spec.c,), (*spec.kernel, spec.c))
    if isinstance(spec, PoolSpec):
        of_input = spec.kind.endswith("_grad")
        return (spec.n, spec.h, spec.w, spec.c) if of_input else (spec.n, spec.oh, spec.ow, spec.c)
    if isinstance(spec, RowSpec):
        return _row_extents(spec)
    if isinstance(spec, NormGradSpec):
        return (spec.rows, spec.width) if spec.wanted[0] else None
    return None


def _conv_extents(
    kind: str, spec: ConvSpec | DepthwiseSpec, channels: tuple[int, ...], weight: tuple[int, ...]
) -> tuple[int, ...]:
    if kind == "forward":
        return (spec.n, spec.oh, spec.ow, *channels)
    return weight if kind == "weight_grad" else (spec.n, spec.h, spec.w, spec.c)


def _row_extents(spec: RowSpec) -> tuple[int, ...] | None:
    whole = len(spec.outputs) == 1 and is_identity(spec.outputs[0], (spec.rows, spec.width))
    return (spec.rows, spec.width) if whole else None


def fuse_epilogue(
    producer: KernelCall, consumer: KernelCall, reads: frozenset[int], can_hold: CanHold
) -> KernelCall | Reason:
    """The producer with the consumer's arithmetic applied to its result before it is written.

    `reads` are the consumer's operands that are the producer's first output; nothing else reads that output.
    """
    spec, source = consumer.spec, producer.spec
    groups = output_extents(source)
    if groups is None or isinstance(source, _WITHOUT) or not isinstance(spec, MapSpec):
        return NO_EPILOGUE
    if len(spec.outputs) != 1 or not is_identity(spec.outputs[0], spec.extents) or uses_position(spec.exprs[0]):
        return NOT_POINTWISE
    if any(not access.type.element.is_real for access in (spec.outputs[0], *(spec.inputs[i] for i in reads))):
        return NOT_POINTWISE
    if any(not is_identity(spec.inputs[position], spec.extents) for position in reads):
        return NOT_POINTWISE
    others = [position for position in range(len(spec.inputs)) if position not in reads]
    accesses = [regrouped(spec.inputs[position], spec.extents, groups) for position in others]
    if any(access is None or not _can_read(source, access) for access in accesses):
        return OTHER_OPERANDS
    if len(others) + len(producer.inputs) > MAX_OPERANDS:
        return TOO_MANY_OPERANDS
    if not can_hold(source, spec.exprs[0]):
        return TOO_MUCH_WORK
    extra = tuple(access for access in accesses if access is not None)
    fused = _append(source, spec.exprs[0], reads, others, extra)
    if size(fused.exprs[0] if isinstance(fused, RowSpec) else fused.epilogue) > MOST_NODES:
        return TOO_LARGE
    moved = sum(access.type.size_bytes for access in extra)
    return replace(
        producer,
        spec=fused,
        inputs=(*producer.inputs, *(consumer.inputs[position] for position in others)),
        outputs=(*consumer.outputs, *producer.outputs[1:]),
        flops=producer.flops + consumer.flops,
        bytes_read=producer.bytes_read + moved,
        bytes_written=producer.bytes_written,
    )


def _can_read(source: KernelSpec, access: Access) -> bool:
    """Only kernels that visit points one by one read what is padded; tiles read whole vectors without asking."""
    return access.fill is None or isinstance(source, ReduceSpec | RowSpec)


def _append(
    source: WithEpilogue | RowSpec, expr: Expr, reads: frozenset[int], others: list[int], extra: tuple[Access, ...]
) -> WithEpilogue | RowSpec:
    if isinstance(source, RowSpec):
        first = len(source.inputs)
        whole = _substituted(expr, reads, others, source.exprs[0], first)
        return replace(source, inputs=(*source.inputs, *extra), exprs=(whole,))
    first = 1 + len(source.epilogue_inputs)
    whole = _substituted(expr, reads, others, source.epilogue, first)
    if isinstance(source, ReduceSpec):
        remaining = [axis for axis in range(len(source.extents)) if axis not in source.reduced]
        extra = tuple(_renumbered(access, remaining) for access in extra)
    return replace(source, epilogue=whole, epilogue_inputs=(*source.epilogue_inputs, *extra))


def _substituted(expr: Expr, reads: frozenset[int], others: list[int], inner: Expr, first: int) -> Expr:
    return substitute_refs(expr, lambda operand: inner if operand in reads else Ref(first + others.index(operand)))


def _renumbered(access: Access, axes: list[int]) -> Access:
    """An access over kept axes only, written over all axes of a reduction."""
    index = tuple(
        Affine(tuple((axes[axis], coefficient) for axis, coefficient in affine.terms), affine.offset)
        for affine in access.index
    )
    return Access(access.type, index, access.fill)
