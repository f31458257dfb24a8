"""Matrix multiplication, batched, with either operand transposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.spec import MatmulSpec
from compiler.ops.broadcasting import sum_to
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import Cost, Example, NamedNode, OnnxNode, OnnxWriter, Operator, Types, broadcast_shape, flag
from compiler.values import Value


def _swap(shape: tuple[int, ...], transposed: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if transposed else shape


def _infer(inputs: Types, attrs: Attrs) -> Types:
    a, b = inputs
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise ModelShapeError(f"matmul needs two matrices, got {a} and {b}")
    left, right = _swap(a.shape, flag(attrs, "transpose_a")), _swap(b.shape, flag(attrs, "transpose_b"))
    if left[-1] != right[-2]:
        raise ModelShapeError(f"matmul of {a} and {b}: inner extents {left[-1]} and {right[-2]} differ")
    batch = broadcast_shape(left[:-2], right[:-2])
    return (TensorType(a.dtype, (*batch, left[-2], right[-1])),)


def _transposed(array: Array, transposed: bool) -> Array:
    return np.swapaxes(array, -1, -2) if transposed else array


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    a = _transposed(inputs[0], flag(attrs, "transpose_a"))
    return (np.matmul(a, _transposed(inputs[1], flag(attrs, "transpose_b"))),)


def _grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    """Forward: C = op(A) op(B). Backward: d_op(A) = d_C op(B)^T, d_op(B) = op(A)^T d_C, each transposed as stored."""
    x, y = node.inputs
    ta, tb = flag(node.attrs, "transpose_a"), flag(node.attrs, "transpose_b")
    d_x = d_y = None
    if wanted[0]:
        first, second, t_first, t_second = (y, d_output, tb, True) if ta else (d_output, y, False, not tb)
        d_x = _product(b, first, second, t_first, t_second, b.shape(x))
    if wanted[1]:
        first, second, t_first, t_second = (d_output, x, True, ta) if tb else (x, d_output, not ta, False)
        d_y = _product(b, first, second, t_first, t_second, b.shape(y))
    return (d_x, d_y)


def _product(b: Emitter, x: Value, y: Value, tx: bool, ty: bool, shape: tuple[int, ...]) -> Value:
    """Returns one operand's gradient; where the operand was shared by a batch, one long reduction instead of many and a
    sum.
    """
    shared = len(shape) == 2 and tx and not ty
    if shared and b.shape(x)[:-2] == b.shape(y)[:-2]:
        x = b.emit("reshape", x, shape=(prod(b.shape(x)[:-1]), b.shape(x)[-1]))
        y = b.emit("reshape", y, shape=(prod(b.shape(y)[:-1]), b.shape(y)[-1]))
    return sum_to(b, b.emit("matmul", x, y, transpose_a=tx, transpose_b=ty), shape)


def _cost(inputs: Types, outputs: Types, attrs: Attrs) -> Cost:
    k = _swap(inputs[0].shape, flag(attrs, "transpose_a"))[-1]
    read = sum(tensor.size_bytes for tensor in inputs)
    return Cost(2 * outputs[0].size * k, read, outputs[0].size_bytes)


def _lower(inputs: Types, outputs: Types, attrs: Attrs) -> MatmulSpec:
    a, b = inputs
    ta, tb = flag(attrs, "transpose_a"), flag(attrs, "transpose_b")
    left, right = _swap(a.shape, ta), _swap(b.shape, tb)
    batch = prod(outputs[0].shape[:-2])
    a_batched, b_batched = prod(a.shape[:-2]) > 1, prod(b.shape[:-2]) > 1
    for tensor, batched in ((a, a_batched), (b, b_batched)):
        if batched and prod(tensor.shape[:-2]) != batch:
            raise ModelShapeError(
                f"matmul of {a} and {b}: partly broadcast batch axes", hint="expand the operand first"
            )
    m, k, n = left[-2], left[-1], right[-1]
    if a_batched and not b_batched and not ta:  # a shared right operand: the batch is only more rows
        return MatmulSpec(1, batch * m, n, k, False, tb, False, False, dtype=a.dtype)
    return MatmulSpec(batch, m, n, k, ta, tb, a_batched, b_batched, dtype=a.dtype)


def _to_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    operands = []
    for name, attribute in zip(node.inputs, ("transpose_a", "transpose_b"), strict=True):
        rank = len(types[name].shape)
        perm = (*range(rank - 2), rank - 1, rank - 2)
        operands.append(out.add("Transpose", name, perm=perm) if flag(node.attrs, attribute) else name)
    out.add("MatMul", *operands, output=node.output)
    return out.nodes


def _example(a: tuple[int, ...], b: tuple[int, ...], ta: bool = False, tb: bool = False) -> Example:
    return Example((TensorType("f32", a), TensorType("f32", b)), {"transpose_a": ta, "transpose_b": tb})


MATMUL = (
    Operator(
        name="matmul",
        attributes=("transpose_a", "transpose_b"),
        infer=_infer,
        evaluate=_evaluate,
        grad=_grad,
        cost=_cost,
        lower=_lower,
        to_onnx=_to_onnx,
        examples=(
            _example((3, 5), (5, 4)),
            _example((5, 3), (5, 4), True, False),
            _example((3, 5), (4, 5), False, True),
            _example((5, 3), (4, 5), True, True),
            _example((2, 3, 5), (5, 4)),
            _example((2, 6, 3, 5), (2, 6, 4, 5), False, True),
        ),
    ),
)
