"""Binary cross-entropy of logits with labels between 0 and 1, element by element.

bce_with_logits  z = max(x, 0) - x y + log(1 + exp(-|x|))       (never large numbers that cancel)
                 d_x = (sigmoid(x) - y) d_z, also at x = 0; d_y = -x d_z
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.expressions import Binary, Const, Expr, Ref, Select, Unary, add, mul, sub
from compiler.kernels.spec import MapSpec
from compiler.ops.broadcasting import pointwise
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import Example, NamedNode, OnnxNode, OnnxWriter, Operator, Types, elementwise_cost
from compiler.values import Value

_X = TensorType("f32", (2, 3, 5))
_SERIES_BELOW = 0.03
"""Up to here four terms of the series of log(1 + e) are nearer than the logarithm of a rounded 1 + e."""


def _infer(inputs: Types, attrs: Attrs) -> Types:
    x, y = inputs
    if x.shape != y.shape:
        raise ModelShapeError(f"binary cross-entropy of logits {x} needs labels of that shape, got {y}")
    return (x,)


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, y = inputs
    return (np.asarray(np.maximum(x, 0) - x * y + np.log1p(np.exp(-np.abs(x))), x.dtype),)


def _log_1p(e: Expr) -> Expr:
    """log(1 + e) for 0 <= e <= 1."""
    inner: Expr = Const(1 / 4)
    for factor in (1 / 3, 1 / 2, 1.0):
        inner = sub(Const(factor), mul(e, inner))
    return Select(Binary("lt", e, Const(_SERIES_BELOW)), mul(e, inner), Unary("log", add(Const(1.0), e)))


def _lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    x, y = Ref(0), Ref(1)
    rest = _log_1p(Unary("exp", Unary("neg", Unary("abs", x))))
    return pointwise(inputs, outputs[0], add(sub(Binary("max", x, Const(0.0)), mul(x, y)), rest))


def _grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    x, y = node.inputs
    d_x = b.emit("mul", b.emit("sub", b.emit("sigmoid", x), y), d_output) if wanted[0] else None
    return (d_x, b.emit("neg", b.emit("mul", x, d_output)) if wanted[1] else None)


def _onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    x, y = node.inputs
    # Softplus(-|x|) is log(1 + exp(-|x|)).
    rest = out.add("Softplus", out.add("Neg", out.add("Abs", x)))
    hinge = out.add("Sub", out.add("Relu", x), out.add("Mul", x, y))
    out.add("Add", hinge, rest, output=node.output)
    return out.nodes


BCE_WITH_LOGITS = Operator(
    name="bce_with_logits",
    attributes=(),
    infer=_infer,
    evaluate=_evaluate,
    grad=_grad,
    cost=elementwise_cost(30),
    lower=_lower,
    to_onnx=_onnx,
    examples=(Example((_X, _X), values=("normal", "normal")),),
)
