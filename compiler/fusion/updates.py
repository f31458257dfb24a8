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
from collections.abc import Collection
from dataclasses import replace

from compiler.fusion.maps import MAX_OPERANDS
from compiler.kernels.affine import is_identity, regrouped
from compiler.kernels.spec import Binary, Expr, GatherSpec, MapSpec, MatmulSpec, Ref
from compiler.kernels.substitution import substitute_refs, uses_position
from compiler.program.lowering import Lowered
from compiler.program.program import KernelCall
from compiler.values import Value

MOST_STEPS = 512
"""Longest reduction (samples times positions) of a product that takes an update: its sums stay in registers; the
sums of longer ones would wait in memory, as the gradient does, and their arithmetic outweighs the update anyway."""

MOST_POSITIONS = 1 << 24
"""Most indices into a table that takes an update: the kernel counts them in f32."""

_GRADIENT = 1
"""The operand of an update that is the gradient (see `compiler.ops.optimizer`)."""


def fuse_updates(lowered: Lowered, kept: Collection[Value]) -> Lowered:
    """The calls with updates inside the products that make their gradients; values in `kept` must stay in memory."""
    reads = Counter(lowered.root(name) for name in kept)
    makers: dict[Value, int] = {}
    for position, call in enumerate(lowered.calls):
        reads.update(lowered.root(name) for name in call.inputs)
        if _takes_update(call):
            makers[call.outputs[0]] = position
    calls: list[KernelCall | None] = list(lowered.calls)
    for position, update in enumerate(lowered.calls):
        if update.phase != "update" or len(update.inputs) <= _GRADIENT:
            continue
        gradient = lowered.root(update.inputs[_GRADIENT])
        maker = calls[makers[gradient]] if gradient in makers else None
        fused = _fused(maker, update) if maker is not None and reads[gradient] == 1 else None
        if fused is not None:
            calls[position], calls[makers[gradient]] = None, fused
    return replace(lowered, calls=tuple(call for call in calls if call is not None))


def _takes_update(call: KernelCall) -> bool:
    """Whether a call is a weight gradient whose update saves more than it costs.

    The product must wait for the other readers of the weight, and its operands live so much longer: in all, that is
    worth it only where two gradients (the one that is not written, written and read) outweigh the operands.
    """
    spec = call.spec
    if isinstance(spec, GatherSpec):
        scatter = spec.kind == "scatter_add" and spec.outer == 1 and spec.dtype == "f32"
        return scatter and spec.count <= MOST_POSITIONS and not spec.epilogue_inputs
    if not isinstance(spec, MatmulSpec) or spec.batch != 1 or not spec.a_transposed or spec.extra_outputs:
        return False
    return spec.k <= MOST_STEPS and spec.k * (spec.m + spec.n) <= 2 * spec.m * spec.n


def _fused(maker: KernelCall, update: KernelCall) -> KernelCall | None:
    """The call with the update as its epilogue; None if the update's points are not the gradient's."""
    product, spec = maker.spec, update.spec
    if not isinstance(product, MatmulSpec | GatherSpec) or not isinstance(spec, MapSpec):
        return None
    if any(map(uses_position, spec.exprs)):
        return None
    if not all(is_identity(access, spec.extents) for access in (spec.inputs[_GRADIENT], *spec.outputs)):
        return None
    others = [position for position in range(len(spec.inputs)) if position != _GRADIENT]
    extents = (product.rows, product.inner) if isinstance(product, GatherSpec) else (1, product.m, product.n)
    accesses = [regrouped(spec.inputs[position], spec.extents, extents) for position in others]
    extra = tuple(access for access in accesses if access is not None)
    if len(extra) != len(accesses) or len(maker.inputs) + len(others) > MAX_OPERANDS:
        return None
    first = 1 + len(product.epilogue_inputs)

    def operand(number: int) -> Expr:
        return product.epilogue if number == _GRADIENT else Ref(first + others.index(number))

    exprs = tuple(substitute_refs(expr, operand) for expr in spec.exprs)
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
