"""Updates from running means of the gradient and its square.

    adamw_update  m' = b1 m + (1 - b1) g;  v' = b2 v + (1 - b2) g^2
                  w' = w (1 - lr weight_decay) - lr (m' / c1) / (sqrt(v') / c2 + eps)
    adam_update   the same of g = d_w + weight_decay w, and w' = w - lr (m' / c1) / (sqrt(v') / c2 + eps)
    lion_update   w' = w (1 - lr weight_decay) - lr sign(b1 m + (1 - b1) g);  m' = b2 m + (1 - b2) g
lr, c1 = 1 - b1^t and c2 = sqrt(1 - b2^t) are f32 scalars fed at run time.
Source: AdamW (arXiv 1711.05101, algorithm 2); torch.optim.Adam; Lion (arXiv 2302.06675, algorithm 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.graph import Array, Attrs, TensorType
from compiler.kernels.expressions import Binary, Const, Expr, Ref, Unary, add, mul, sub
from compiler.kernels.spec import MapSpec
from compiler.ops.record import Example, NamedNode, OnnxNode, OnnxWriter, Operator, Types, number
from compiler.ops.update import (
    PART,
    SCALAR,
    UPDATE,
    WHOLE,
    G,
    W,
    accesses,
    blend,
    decayed,
    infer_update,
    put_back,
    shrunk,
    sliced,
    update_cost,
    window,
)

_ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
_LION = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.01}
_DRAWN = ("normal", "normal", "unit", "positive", "unit", "unit", "unit")


def _mean(old: Expr, new: Expr, beta: float) -> Expr:
    return add(mul(Const(beta), old), mul(Const(1 - beta), new))


def _shrunk(rate: Expr, attrs: Attrs) -> Expr:
    return mul(Ref(0), sub(Const(1.0), mul(rate, Const(number(attrs, "weight_decay")))))


# ----------------------------------------------------------------------------------------------------- Adam and AdamW


def _stepped(inputs: Sequence[Array], fresh: Array, attrs: Attrs) -> tuple[Array, Array, Array]:
    """Returns what Adam subtracts from the weight, and its new state."""
    _, _, m, v, rate, c1, c2 = inputs
    beta1, beta2 = number(attrs, "beta1"), number(attrs, "beta2")
    m = beta1 * m + (1 - beta1) * fresh
    v = beta2 * v + (1 - beta2) * fresh * fresh
    return rate * (m / c1) / (np.sqrt(v) / c2 + number(attrs, "eps")), m, v


def _adamw_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    parameter, gradient, rate = inputs[0], inputs[1], inputs[4]
    there, result = window(parameter, gradient, attrs), parameter.copy()
    step, m, v = _stepped(inputs, gradient, attrs)
    result[there] = parameter[there] * (1 - rate * number(attrs, "weight_decay")) - step
    return (result, m, v)


def _adam_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    parameter, gradient = inputs[0], inputs[1]
    there, result = window(parameter, gradient, attrs), parameter.copy()
    step, m, v = _stepped(inputs, gradient + number(attrs, "weight_decay") * parameter[there], attrs)
    result[there] = parameter[there] - step
    return (result, m, v)


def _step_lower(fresh: Expr, attrs: Attrs) -> tuple[Expr, Expr, Expr]:
    rate, c1, c2 = Ref(4), Ref(5), Ref(6)
    m = _mean(Ref(2), fresh, number(attrs, "beta1"))
    v = _mean(Ref(3), mul(fresh, fresh), number(attrs, "beta2"))
    root = add(Binary("div", Unary("sqrt", v), c2), Const(number(attrs, "eps")))
    return mul(Binary("div", rate, c1), Binary("div", m, root)), m, v


def _adamw_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    reads, writes = accesses(inputs, attrs, 2)
    step, m, v = _step_lower(Ref(1), attrs)
    return MapSpec(inputs[1].shape, reads, writes, (sub(_shrunk(Ref(4), attrs), step), m, v))


def _adam_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    reads, writes = accesses(inputs, attrs, 2)
    decay = number(attrs, "weight_decay")
    step, m, v = _step_lower(add(Ref(1), mul(Const(decay), Ref(0))) if decay else Ref(1), attrs)
    return MapSpec(inputs[1].shape, reads, writes, (sub(Ref(0), step), m, v))


def _step_onnx(out: OnnxWriter, node: NamedNode, fresh: str) -> str:
    _, _, m, v, rate, c1, c2 = node.inputs
    m2 = blend(out, m, fresh, number(node.attrs, "beta1"), node.outputs[1])
    v2 = blend(out, v, out.add("Mul", fresh, fresh), number(node.attrs, "beta2"), node.outputs[2])
    root = out.add("Add", out.add("Div", out.add("Sqrt", v2), c2), out.scalar(number(node.attrs, "eps")))
    return out.add("Mul", out.add("Div", rate, c1), out.add("Div", m2, root))


def _adamw_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.outputs[0])
    weight, decay = sliced(out, node, types), number(node.attrs, "weight_decay")
    step = _step_onnx(out, node, node.inputs[1])
    put_back(out, node, types, out.add("Sub", shrunk(out, weight, node.inputs[4], decay), step))
    return out.nodes


def _adam_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.outputs[0])
    weight = sliced(out, node, types)
    step = _step_onnx(out, node, decayed(out, weight, node.inputs[1], number(node.attrs, "weight_decay")))
    put_back(out, node, types, out.add("Sub", weight, step))
    return out.nodes


# --------------------------------------------------------------------------------------------------------------- Lion


def _lion_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    parameter, gradient, m, rate = inputs
    beta1, beta2 = number(attrs, "beta1"), number(attrs, "beta2")
    there, result = window(parameter, gradient, attrs), parameter.copy()
    direction = np.sign(beta1 * m + (1 - beta1) * gradient)
    result[there] = parameter[there] * (1 - rate * number(attrs, "weight_decay")) - rate * direction
    return (result, beta2 * m + (1 - beta2) * gradient)


def _lion_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    reads, writes = accesses(inputs, attrs, 1)
    rate, direction = Ref(3), Unary("sign", _mean(Ref(2), Ref(1), number(attrs, "beta1")))
    updated = sub(_shrunk(rate, attrs), mul(rate, direction))
    return MapSpec(inputs[1].shape, reads, writes, (updated, _mean(Ref(2), Ref(1), number(attrs, "beta2"))))


def _lion_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.outputs[0])
    _, gradient, m, rate = node.inputs
    weight = sliced(out, node, types)
    direction = out.add("Sign", blend(out, m, gradient, number(node.attrs, "beta1")))
    blend(out, m, gradient, number(node.attrs, "beta2"), node.outputs[1])
    decayed = shrunk(out, weight, rate, number(node.attrs, "weight_decay"))
    put_back(out, node, types, out.add("Sub", decayed, out.add("Mul", rate, direction)))
    return out.nodes


_MOMENTS = ("beta1", "beta2", "eps", "weight_decay", "axis", "start")
_EXAMPLES = (
    Example((W, W, W, W, SCALAR, SCALAR, SCALAR), {**_ADAM, **WHOLE}, _DRAWN),
    Example((W, G, G, G, SCALAR, SCALAR, SCALAR), {**_ADAM, **PART}, _DRAWN),
)

ADAM = (
    Operator(
        name="adamw_update",
        attributes=_MOMENTS,
        infer=lambda inputs, attrs: infer_update(inputs, attrs, 2),
        evaluate=_adamw_evaluate,
        grad=UPDATE,
        cost=update_cost(15),
        lower=_adamw_lower,
        to_onnx=_adamw_onnx,
        examples=_EXAMPLES,
        in_place={0: 0, 1: 2, 2: 3},
    ),
    Operator(
        name="adam_update",
        attributes=_MOMENTS,
        infer=lambda inputs, attrs: infer_update(inputs, attrs, 2),
        evaluate=_adam_evaluate,
        grad=UPDATE,
        cost=update_cost(16),
        lower=_adam_lower,
        to_onnx=_adam_onnx,
        examples=_EXAMPLES,
        in_place={0: 0, 1: 2, 2: 3},
    ),
    Operator(
        name="lion_update",
        attributes=("beta1", "beta2", "weight_decay", "axis", "start"),
        infer=lambda inputs, attrs: infer_update(inputs, attrs, 1),
        evaluate=_lion_evaluate,
        grad=UPDATE,
        cost=update_cost(10),
        lower=_lion_lower,
        to_onnx=_lion_onnx,
        examples=(
            Example((W, W, W, SCALAR), {**_LION, **WHOLE}, ("normal", "normal", "normal", "unit")),
            Example((W, G, G, SCALAR), {**_LION, **PART}, ("normal", "normal", "normal", "unit")),
        ),
        in_place={0: 0, 1: 2},
    ),
)
