"""Stochastic gradient descent, with momentum and Nesterov's.

    sgd_update       m' = momentum m + g;  w' = w - lr m'    (g = d_w + weight_decay w; no m when momentum is 0)
    nesterov_update  m' = momentum m + g;  w' = w - lr (g + momentum m')
Source: torch.optim.SGD (dampening 0). Momentum that starts at zero is what starts with the first gradient there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.graph import Array, Attrs, TensorType
from compiler.kernels.expressions import Const, Expr, Ref, add, mul, sub
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
    decayed,
    infer_update,
    put_back,
    sliced,
    update_cost,
    window,
)

_SGD = {"momentum": 0.9, "weight_decay": 0.01}


def _gradient(attrs: Attrs) -> Expr:
    decay = number(attrs, "weight_decay")
    return add(Ref(1), mul(Const(decay), Ref(0))) if decay else Ref(1)


def _infer(inputs: Types, attrs: Attrs) -> Types:
    return infer_update(inputs, attrs, len(inputs) - 3)


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    parameter, gradient, *moment, rate = inputs
    there = window(parameter, gradient, attrs)
    result = parameter.copy()
    step = gradient + number(attrs, "weight_decay") * parameter[there]
    if moment:
        step = number(attrs, "momentum") * moment[0] + step
    result[there] = parameter[there] - rate * step
    return (result, step) if moment else (result,)


def _lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    states = len(inputs) - 3
    reads, writes = accesses(inputs, attrs, states)
    step = _gradient(attrs)
    if states:
        step = add(mul(Const(number(attrs, "momentum")), Ref(2)), step)
    updated = sub(Ref(0), mul(Ref(2 + states), step))
    return MapSpec(inputs[1].shape, reads, writes, (updated, step)[: 1 + states])


def _to_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.outputs[0])
    weight, rate = sliced(out, node, types), node.inputs[-1]
    step = decayed(out, weight, node.inputs[1], number(node.attrs, "weight_decay"))
    if len(node.inputs) == 4:
        momentum_term = out.add("Mul", node.inputs[2], out.scalar(number(node.attrs, "momentum")))
        step = out.add("Add", momentum_term, step, output=node.outputs[1])
    put_back(out, node, types, out.add("Sub", weight, out.add("Mul", rate, step)))
    return out.nodes


# ---------------------------------------------------------------------------------------------------------- Nesterov


def _nesterov_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    parameter, gradient, moment, rate = inputs
    there, momentum = window(parameter, gradient, attrs), number(attrs, "momentum")
    result = parameter.copy()
    fresh = gradient + number(attrs, "weight_decay") * parameter[there]
    moment = momentum * moment + fresh
    result[there] = parameter[there] - rate * (fresh + momentum * moment)
    return result, np.asarray(moment)


def _nesterov_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    reads, writes = accesses(inputs, attrs, 1)
    fresh, momentum = _gradient(attrs), Const(number(attrs, "momentum"))
    moment = add(mul(momentum, Ref(2)), fresh)
    updated = sub(Ref(0), mul(Ref(3), add(fresh, mul(momentum, moment))))
    return MapSpec(inputs[1].shape, reads, writes, (updated, moment))


def _nesterov_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.outputs[0])
    weight, rate, momentum = sliced(out, node, types), node.inputs[3], out.scalar(number(node.attrs, "momentum"))
    fresh = decayed(out, weight, node.inputs[1], number(node.attrs, "weight_decay"))
    moment = out.add("Add", out.add("Mul", node.inputs[2], momentum), fresh, output=node.outputs[1])
    step = out.add("Add", fresh, out.add("Mul", moment, momentum))
    put_back(out, node, types, out.add("Sub", weight, out.add("Mul", rate, step)))
    return out.nodes


SGD = (
    Operator(
        name="sgd_update",
        attributes=("momentum", "weight_decay", "axis", "start"),
        infer=_infer,
        evaluate=_evaluate,
        grad=UPDATE,
        cost=update_cost(4),
        lower=_lower,
        to_onnx=_to_onnx,
        examples=(
            Example((W, W, SCALAR), {**_SGD, **WHOLE}, ("normal", "normal", "unit")),
            Example((W, G, G, SCALAR), {**_SGD, **PART}, ("normal", "normal", "normal", "unit")),
        ),
        in_place={0: 0, 1: 2},
    ),
    Operator(
        name="nesterov_update",
        attributes=("momentum", "weight_decay", "axis", "start"),
        infer=lambda inputs, attrs: infer_update(inputs, attrs, 1),
        evaluate=_nesterov_evaluate,
        grad=UPDATE,
        cost=update_cost(6),
        lower=_nesterov_lower,
        to_onnx=_nesterov_onnx,
        examples=(
            Example((W, W, W, SCALAR), {**_SGD, **WHOLE}, ("normal", "normal", "normal", "unit")),
            Example((W, G, G, SCALAR), {**_SGD, **PART}, ("normal", "normal", "normal", "unit")),
        ),
        in_place={0: 0, 1: 2},
    ),
)
