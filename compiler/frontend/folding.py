"""Nodes whose operands are all known: computed at compile time, or on from parameters in the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.errors import ModelError, UnsupportedOperator
from compiler.frontend.call import Call
from compiler.frontend.file.source import AttributeValue, SourceNode
from compiler.frontend.folds import FOLDS, cast_target, shape_vector
from compiler.frontend.rows import ROWS
from compiler.frontend.scope import KnownOperand, Operand, Scope
from compiler.graph import Array

MAX_RECIPES = 64
"""The most steps of a recipe: what is computed from parameters in more steps is put into the graph at once, since
replaying it recurses.
"""


def refuse_unread(call: Call) -> None:
    """Raises: UnsupportedOperator for an attribute that no rule has read."""
    unread = call.attributes.unread()
    if unread:
        call.unsupported(f"attribute {unread!r} is not supported", "export the model without it")


def fold(scope: Scope, node: SourceNode, opset: int) -> tuple[Operand, ...]:
    """The outputs of a node whose operands are all known; empty if it must run."""
    if node.op_type == "Constant":
        return (KnownOperand(node.outputs[0], _constant(node)),)
    if node.op_type in ("Shape", "Size") and len(node.inputs) == 1:
        call = Call(scope, node, opset)
        shape = call.shape(0)
        array = np.asarray(np.prod(shape, dtype=np.int64)) if node.op_type == "Size" else shape_vector(call, shape)
        refuse_unread(call)
        return (KnownOperand(node.outputs[0], array),)
    if node.op_type in ("Cast", "CastLike"):
        return _cast(scope, node, opset)
    operands = [scope.operands[name] for name in node.inputs if name]
    operands_known = [operand for operand in operands if isinstance(operand, KnownOperand)]
    if node.op_type not in FOLDS or len(operands_known) != len(operands) or (not operands_known and node.inputs):
        return ()
    return _folded(scope, node, opset, operands_known)


def _cast(scope: Scope, node: SourceNode, opset: int) -> tuple[Operand, ...]:
    """A known tensor in another element type; one that has it already is still the same parameter."""
    call = Call(scope, node, opset)
    operand = call.known_operand(0)
    if operand is None:
        return ()
    dtype = cast_target(call)
    if operand.array.dtype == dtype:
        return (operand,)
    return _computed(scope, node, (operand.array.astype(dtype),), (operand,))


def _folded(scope: Scope, node: SourceNode, opset: int, operands: Sequence[KnownOperand]) -> tuple[Operand, ...]:
    turned = _transposed(node, operands[0]) if node.op_type == "Transpose" else None
    if turned is not None:
        return (turned,)
    call = Call(scope, node, opset)
    result = FOLDS[node.op_type](call, [operand.array for operand in operands])
    refuse_unread(call)
    arrays = result if isinstance(result, tuple) else (result,)
    scope.count_folded(arrays, node.where)
    return _computed(scope, node, arrays, operands)


def _computed(
    scope: Scope, node: SourceNode, arrays: Sequence[Array], operands: Sequence[KnownOperand]
) -> tuple[Operand, ...]:
    """Constants if no parameter stands behind them; else values that the step computes, if it reads them."""
    behind = frozenset(name for operand in operands for name in (operand.source, *operand.behind) if name)
    if not behind:
        return tuple(KnownOperand(name, array) for name, array in zip(node.outputs, arrays, strict=False))
    if node.op_type not in ROWS:
        for operand in operands:
            scope.bake(operand, node.where)
        return tuple(KnownOperand(name, array) for name, array in zip(node.outputs, arrays, strict=False))
    depth = 1 + max(operand.depth for operand in operands)
    if depth > MAX_RECIPES:
        return ()
    return tuple(
        KnownOperand(name, array, recipe=node, behind=behind, depth=depth)
        for name, array in zip(node.outputs, arrays, strict=False)
    )


def _transposed(node: SourceNode, operand: KnownOperand) -> KnownOperand | None:
    """A transposed initializer is the same parameter seen through other axes."""
    perm = node.attributes.get("perm", tuple(reversed(range(operand.array.ndim))))
    if not operand.source or not isinstance(perm, tuple):
        return None
    order = tuple(int(axis) for axis in perm)
    before = operand.perm or tuple(range(operand.array.ndim))
    through = tuple(before[axis] for axis in order)
    return KnownOperand(node.outputs[0], operand.array.transpose(order), source=operand.source, perm=through)


def _constant(node: SourceNode) -> Array:
    if len(node.attributes) != 1:
        raise ModelError(f"holds {len(node.attributes)} values, expected 1", where=node.where)
    ((name, value),) = node.attributes.items()
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if name == "value" and isinstance(value, np.ndarray):
        return value
    if name not in dtypes:
        raise UnsupportedOperator(f"a constant given as {name!r} is not supported", where=node.where)
    return _numbers(value, np.dtype(dtypes[name]))


def _numbers(value: AttributeValue, dtype: np.dtype[np.generic]) -> Array:
    return np.asarray(value, dtype)
