"""Fuses optimizer updates into the kernels that make the gradients, so that such a gradient is never written.

Rewrites: an update of a whole weight, beside the matrix product (of an embedding table: the scatter-add) that makes
the gradient for it alone, becomes its epilogue, which reads and writes the weight and its optimizer state in place.
Rows of a table that no index names have a gradient of zero: plain SGD skips them, while momentum, Adam and weight
decay change every row. Ensures: the same values; the order of
calls is left to the scheduler, which puts the product after every other reader of the old weight.
Why: writing and reading a gradient is a third of an update's traffic or more, and inside a product the rest of it
hides behind arithmetic. A gradient that anything else reads stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from compiler.fusion.maps import MAX_OPERANDS, TOO_LARGE, TOO_MANY_OPERANDS
from compiler.kernels.affine import is_identity, regrouped
from compiler.kernels.expressions import MOST_NODES, Binary, Expr, Ref, size, substitute_refs, uses_position
from compiler.kernels.spec import GatherSpec, KernelSpec, MapSpec, MatmulSpec
from compiler.program.program import KernelCall, Program
from compiler.rewriting.passes import Declined, PassResult, Reason
from compiler.values import Value

CanUpdate = Callable[[KernelSpec], bool]
"""Whether the kernel of a gradient may apply an update to it instead of writing it (`compiler.codegen.family`)."""

NO_PRODUCT = Reason("update.no_product", "a gradient that a matrix product makes in one piece, or a scatter-add")
GRADIENT_IS_READ = Reason("update.gradient_is_read", "a gradient that nothing but the update reads")
KERNEL_CANNOT = Reason("update.kernel", "a kernel that keeps its sums in registers until they are done")
OPERANDS_OUTWEIGH = Reason("update.operands", "operands no larger than two gradients, since they live longer")
READS_UPDATED = Reason("update.reads_updated", "a product of what no update overwrites; else two may have no order")
OTHER_POINTS = Reason("update.points", "an update of the whole weight, point by point")

_GRADIENT = 1
"""The operand of an update that is the gradient (see `compiler.ops.optimizer`)."""


def fuse_updates(program: Program, *, can_update: CanUpdate) -> PassResult[Program]:
    """The calls with updates inside the products that make their gradients."""
    reads = Counter(program.retained)
    makers: dict[Value, int] = {}
    for position, call in enumerate(program.calls):
        reads.update(program.root(name) for name in call.inputs)
        if isinstance(call.spec, MatmulSpec | GatherSpec):
            makers[call.outputs[0]] = position
    updated = {program.root(name) for call in program.calls for name in call.outputs if program.root(name) != name}
    calls: list[KernelCall | None] = list(program.calls)
    declined: list[Declined] = []
    for position, update in enumerate(program.calls):
        if update.phase != "update" or len(update.inputs) <= _GRADIENT:
            continue
        gradient = program.root(update.inputs[_GRADIENT])
        maker = calls[makers[gradient]] if gradient in makers else None
        fused = NO_PRODUCT if maker is None else _fused(maker, update, can_update)
        if not isinstance(fused, Reason) and reads[gradient] != 1:
            fused = GRADIENT_IS_READ
        if (
            maker is not None
            and not isinstance(fused, Reason)
            and any(program.root(n) in updated for n in maker.inputs)
        ):
            fused = READS_UPDATED
        if isinstance(fused, Reason):
            declined.append(fused.at(update.parameter or update.layer))
        else:
            calls[position], calls[makers[gradient]] = None, fused
    if None not in calls:
        return PassResult(program, False, tuple(declined))
    remaining = tuple(call for call in calls if call is not None)
    return PassResult(replace(program, calls=remaining, ordered=False).trimmed(), True, tuple(declined))


def _unfit(spec: MatmulSpec | GatherSpec, can_update: CanUpdate) -> Reason | None:
    """Why a call is no weight gradient whose update saves more than it costs.

    The product must wait for the other readers of the weight, and its operands live so much longer: in all, that is
    worth it only where two gradients (the one that is not written, written and read) outweigh the operands.
    """
    if not can_update(spec):
        return KERNEL_CANNOT
    if isinstance(spec, MatmulSpec) and spec.k * (spec.m + spec.n) > 2 * spec.m * spec.n:
        return OPERANDS_OUTWEIGH
    return None


def _fused(maker: KernelCall, update: KernelCall, can_update: CanUpdate) -> KernelCall | Reason:
    """The call with the update as its epilogue; the reason if the update's points are not the gradient's."""
    product, spec = maker.spec, update.spec
    if not isinstance(product, MatmulSpec | GatherSpec) or not isinstance(spec, MapSpec):
        return NO_PRODUCT
    unfit = _unfit(product, can_update)
    if unfit is not None:
        return unfit
    if any(map(uses_position, spec.exprs)):
        return OTHER_POINTS
    if not all(is_identity(access, spec.extents) for access in (spec.inputs[_GRADIENT], *spec.outputs)):
        return OTHER_POINTS
    others = [position for position in range(len(spec.inputs)) if position != _GRADIENT]
    extents = (product.rows, product.inner) if isinstance(product, GatherSpec) else (1, product.m, product.n)
    accesses = [regrouped(spec.inputs[position], spec.extents, extents) for position in others]
    extra = tuple(access for access in accesses if access is not None and access.fill is None)
    if len(extra) != len(accesses):
        return OTHER_POINTS
    if len(maker.inputs) + len(others) > MAX_OPERANDS:
        return TOO_MANY_OPERANDS
    first = 1 + len(product.epilogue_inputs)

    def operand(number: int) -> Expr:
        return product.epilogue if number == _GRADIENT else Ref(first + others.index(number))

    exprs = tuple(substitute_refs(expr, operand) for expr in spec.exprs)
    if any(size(expr) > MOST_NODES for expr in exprs):
        return TOO_LARGE
    gradient_bytes = spec.inputs[_GRADIENT].type.size_bytes
    with_update = replace(
        product, epilogue=exprs[0], epilogue_inputs=product.epilogue_inputs + extra, extra_outputs=exprs[1:]
    )
    if isinstance(with_update, GatherSpec):
        with_update = replace(with_update, skips=_keeps_others(exprs))
    return replace(
        maker,
        spec=with_update,
        inputs=(*maker.inputs, *(update.inputs[position] for position in others)),
        outputs=(*update.outputs, *maker.outputs[1:]),
        parameter=update.parameter,
        updates=True,
        flops=maker.flops + update.flops,
        bytes_read=maker.bytes_read + update.bytes_read - gradient_bytes,
        bytes_written=maker.bytes_written + update.bytes_written - gradient_bytes,
    )


def _keeps_others(exprs: tuple[Expr, ...]) -> bool:
    """Whether a weight (operand 1) whose gradient is zero stays as it is: `w - rate * gradient`, and no state."""
    match exprs:
        case (Binary("sub", Ref(1), Binary("mul", Ref(), Ref(0))),):
            return True
    return False
