"""NumPy broadcasting in point-wise operators: the kernel that reads broadcast operands, and what gradients sum."""

from __future__ import annotations

from compiler.graph import TensorType
from compiler.kernels.access import broadcast, identity
from compiler.kernels.expressions import Expr
from compiler.kernels.spec import MapSpec
from compiler.ops.emitter import Emitter
from compiler.ops.record import Types
from compiler.values import Value


def sum_to(b: Emitter, value: Value, shape: tuple[int, ...]) -> Value:
    """Sums a gradient over the axes along which its operand was broadcast."""
    have = b.shape(value)
    if have == shape:
        return value
    lead = len(have) - len(shape)
    padded = (1,) * lead + shape
    axes = tuple(i for i, (got, want) in enumerate(zip(have, padded, strict=True)) if want == 1 and got != 1)
    total = b.emit("reduce_sum", value, axes=axes, keepdims=True) if axes else value
    return total if b.shape(total) == shape else b.emit("reshape", total, shape=shape)


def pointwise(inputs: Types, output: TensorType, expr: Expr) -> MapSpec:
    """The kernel of an operator that computes `expr` from its broadcast operands at every point of its output."""
    reads = tuple(broadcast(tensor, output.shape) for tensor in inputs)
    return MapSpec(output.shape, reads, (identity(output),), (expr,))
