"""BatchNormalization whose statistics a step works out of its batch, and what becomes of the running ones.

    statistic        the running mean or variance, as a step that only evaluates takes it; a training step puts that of
                     the batch in its place (`compiler.step.batch_statistics`)
    batch_norm       y = (x - mean) factor + bias, per channel (the last axis)
                     d_x = d_y factor,  d_mean = -factor sum(d_y),  d_factor = sum(d_y (x - mean)),  d_bias = sum(d_y)
    held             the same value, through which no gradient goes: a variance does not change with the mean that it is
                     taken about, where that is the mean of the same numbers
    running_update   r' = momentum r + (1 - momentum) correction s, in the place of r; for a norm that is called several
                     times, once for each s
Source: ONNX BatchNormalization (15), whose `momentum` is the old value's share; arXiv 1502.03167.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.errors import InternalError, ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.access import identity
from compiler.kernels.expressions import Const, Expr, Ref, add, mul, sub
from compiler.kernels.spec import MapSpec
from compiler.ops.broadcasting import pointwise
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import (
    Example,
    NamedNode,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    View,
    elementwise_cost,
    number,
)
from compiler.values import Value

_IMAGE, _CHANNELS = TensorType("f32", (2, 5, 3)), TensorType("f32", (3,))


def _check_channels(x: TensorType, columns: Types) -> None:
    if not x.shape or any(tensor.shape != x.shape[-1:] for tensor in columns):
        raise ModelShapeError(f"norm of {x} with {', '.join(map(str, columns))}: they must have its last axis")


# ------------------------------------------------------------------------------------------------- statistic, held


def _statistic_infer(inputs: Types, attrs: Attrs) -> Types:
    running, x = inputs
    _check_channels(x, (running,))
    return (running,)


def _same_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    return [OnnxNode("Identity", node.inputs[:1], node.outputs)]


_STATISTIC = Operator(
    name="statistic",
    attributes=("kind", "momentum"),
    infer=_statistic_infer,
    evaluate=lambda inputs, attrs: (inputs[0].copy(),),
    grad=NotDifferentiable("running statistics do not depend on what is learned"),
    cost=elementwise_cost(0),
    lower=lambda inputs, outputs, attrs: View(),
    to_onnx=_same_onnx,
    examples=(Example((_CHANNELS, _IMAGE), {"kind": "mean", "momentum": 0.9}),),
)
_HELD = Operator(
    name="held",
    attributes=(),
    infer=lambda inputs, attrs: (inputs[0],),
    evaluate=lambda inputs, attrs: (inputs[0].copy(),),
    grad=NotDifferentiable("that is what it is for"),
    cost=elementwise_cost(0),
    lower=lambda inputs, outputs, attrs: View(),
    to_onnx=_same_onnx,
    examples=(Example((_CHANNELS,)),),
)

# ------------------------------------------------------------------------------------------------------- batch_norm


def _norm_infer(inputs: Types, attrs: Attrs) -> Types:
    _check_channels(inputs[0], inputs[1:])
    return (inputs[0],)


def _norm_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, mean, factor, bias = inputs
    return ((x - mean) * factor + bias,)


def _norm_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    x, mean, factor, _ = node.inputs
    rows = tuple(range(len(b.shape(x)) - 1))

    def total(value: Value) -> Value:
        return b.emit("reduce_sum", value, axes=rows, keepdims=False) if rows else value

    d_x = b.emit("mul", d_output, factor) if wanted[0] else None
    d_bias = total(d_output) if wanted[1] or wanted[3] else None
    d_mean = b.emit("neg", b.emit("mul", factor, d_bias)) if d_bias and wanted[1] else None
    d_factor = total(b.emit("mul", d_output, b.emit("sub", x, mean))) if wanted[2] else None
    return (d_x, d_mean, d_factor, d_bias if wanted[3] else None)


def _norm_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    x, mean, factor, bias = node.inputs
    out.add("Add", out.add("Mul", out.add("Sub", x, mean), factor), bias, output=node.output)
    return out.nodes


_NORM = Operator(
    name="batch_norm",
    attributes=(),
    infer=_norm_infer,
    evaluate=_norm_evaluate,
    grad=_norm_grad,
    cost=elementwise_cost(3),
    lower=lambda inputs, outputs, attrs: pointwise(inputs, outputs[0], add(mul(sub(Ref(0), Ref(1)), Ref(2)), Ref(3))),
    to_onnx=_norm_onnx,
    examples=(Example((_IMAGE, _CHANNELS, _CHANNELS, _CHANNELS)),),
)

# --------------------------------------------------------------------------------------------------- running_update


def _update_infer(inputs: Types, attrs: Attrs) -> Types:
    running, *batches = inputs
    if len(batches) != len(_shares(attrs)[1]) or any(batch != running for batch in batches):
        raise ModelShapeError(f"running statistics {running} of {', '.join(map(str, batches))}")
    return (running,)


def _shares(attrs: Attrs) -> tuple[float, tuple[float, ...]]:
    """The share of what was, and that of each batch."""
    momentum, corrections = number(attrs, "momentum"), attrs["corrections"]
    if not isinstance(corrections, tuple):
        raise InternalError(f"corrections should be a tuple, is {corrections!r}")
    return momentum, tuple((1 - momentum) * correction for correction in corrections)


def _update_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    momentum, shares = _shares(attrs)
    running = inputs[0]
    for batch, share in zip(inputs[1:], shares, strict=True):
        running = momentum * running + share * batch
    return (running,)


def _update_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    momentum, shares = _shares(attrs)
    running: Expr = Ref(0)
    for number_of, share in enumerate(shares, 1):
        running = add(mul(Const(momentum), running), mul(Const(share), Ref(number_of)))
    accesses = tuple(map(identity, inputs))
    return MapSpec(inputs[0].shape, accesses, accesses[:1], (running,))


def _update_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    momentum, shares = _shares(node.attrs)
    running = node.inputs[0]
    for batch, share in zip(node.inputs[1:], shares, strict=True):
        old = out.add("Mul", running, out.scalar(momentum))
        running = out.add("Add", old, out.add("Mul", batch, out.scalar(share)))
    out.add("Identity", running, output=node.output)
    return out.nodes


_UPDATE = Operator(
    name="running_update",
    attributes=("momentum", "corrections"),
    infer=_update_infer,
    evaluate=_update_evaluate,
    grad=NotDifferentiable("an update is the end of the graph"),
    cost=elementwise_cost(3),
    lower=_update_lower,
    to_onnx=_update_onnx,
    examples=(
        Example((_CHANNELS, _CHANNELS), {"momentum": 0.9, "corrections": (1.25,)}),
        Example((_CHANNELS, _CHANNELS, _CHANNELS), {"momentum": 0.7, "corrections": (1.0, 1.5)}),
    ),
    in_place={0: 0},
)

BATCH_NORM = (_STATISTIC, _HELD, _NORM, _UPDATE)
