"""Optimizer updates as operators, applied in place to a parameter or to a channel slice of it.

    sgd_update    m' = momentum m + g;  w' = w - lr m'          (g = d_w + weight_decay w; no m when momentum is 0)
    adamw_update  m' = b1 m + (1 - b1) g;  v' = b2 v + (1 - b2) g^2
                  w' = w (1 - lr weight_decay) - lr (m' / c1) / (sqrt(v') / c2 + eps)
`w` is the whole parameter; `m`, `v` and `g` cover the `size` channels from `start` along `axis` (all of it when
axis is -1). lr, c1 = 1 - b1^t and c2 = sqrt(1 - b2^t) are f32 scalars fed at run time.
Source: torch.optim.SGD (dampening 0, no Nesterov) and AdamW (arXiv 1711.05101, algorithm 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from compiler.errors import InternalError
from compiler.graph import Array, Attrs, TensorType
from compiler.kernels.access import Access, axis, broadcast, identity
from compiler.kernels.expressions import Binary, Const, Expr, Ref, Unary, add, mul, sub
from compiler.kernels.spec import MapSpec
from compiler.ops.record import (
    Cost,
    Example,
    NamedNode,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    integer,
    number,
)

_UPDATE = NotDifferentiable("an optimizer step is the end of the graph")


def _infer(inputs: Types, attrs: Attrs, states: int) -> Types:
    parameter, gradient = inputs[0], inputs[1]
    expected = list(parameter.shape)
    along = integer(attrs, "axis")
    if along >= 0:
        expected[along] = gradient.shape[along]
    if tuple(expected) != gradient.shape or any(state != gradient for state in inputs[2 : 2 + states]):
        raise InternalError(f"update of {parameter} with gradient {gradient} along axis {along}")
    return (parameter, *inputs[2 : 2 + states])


def _window(parameter: Array, gradient: Array, attrs: Attrs) -> tuple[slice, ...]:
    index = [slice(None)] * parameter.ndim
    along, start = integer(attrs, "axis"), integer(attrs, "start")
    if along >= 0:
        index[along] = slice(start, start + gradient.shape[along])
    return tuple(index)


def _accesses(inputs: Types, attrs: Attrs, states: int) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
    """Reads and writes over the slice: the parameter through its window, the rest whole, scalars broadcast."""
    gradient = inputs[1]
    along, start = integer(attrs, "axis"), integer(attrs, "start")
    index = tuple(axis(i, offset=start if i == along else 0) for i in range(len(gradient.shape)))
    window = Access(inputs[0], index)
    whole = tuple(identity(tensor) for tensor in inputs[1 : 2 + states])
    scalars = tuple(broadcast(tensor, gradient.shape) for tensor in inputs[2 + states :])
    return (window, *whole, *scalars), (window, *whole[1:])


# --------------------------------------------------------------------------------------------------------------- SGD


def _sgd_gradient(attrs: Attrs) -> Expr:
    decay = number(attrs, "weight_decay")
    return add(Ref(1), mul(Const(decay), Ref(0))) if decay else Ref(1)


def _sgd_infer(inputs: Types, attrs: Attrs) -> Types:
    return _infer(inputs, attrs, len(inputs) - 3)


def _sgd_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    parameter, gradient, *moment, rate = inputs
    window = _window(parameter, gradient, attrs)
    result = parameter.copy()
    step = gradient + number(attrs, "weight_decay") * parameter[window]
    if moment:
        step = number(attrs, "momentum") * moment[0] + step
    result[window] = parameter[window] - rate * step
    return (result, step) if moment else (result,)


def _sgd_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    states = len(inputs) - 3
    reads, writes = _accesses(inputs, attrs, states)
    step = _sgd_gradient(attrs)
    if states:
        step = add(mul(Const(number(attrs, "momentum")), Ref(2)), step)
    updated = sub(Ref(0), mul(Ref(2 + states), step))
    return MapSpec(inputs[1].shape, reads, writes, (updated, step)[: 1 + states])


def _sliced(out: OnnxWriter, node: NamedNode, types: Mapping[str, TensorType]) -> str:
    """The part of the parameter that learns."""
    along, start = integer(node.attrs, "axis"), integer(node.attrs, "start")
    if along < 0:
        return node.inputs[0]
    stop = start + types[node.inputs[1]].shape[along]
    return out.add("Slice", node.inputs[0], out.ints(start), out.ints(stop), out.ints(along))


def _put_back(out: OnnxWriter, node: NamedNode, types: Mapping[str, TensorType], updated: str) -> None:
    along, start = integer(node.attrs, "axis"), integer(node.attrs, "start")
    if along < 0:
        out.add("Identity", updated, output=node.outputs[0])
        return
    extent, stop = types[node.inputs[0]].shape[along], start + types[node.inputs[1]].shape[along]
    parts = [updated]
    if start:
        parts.insert(0, out.add("Slice", node.inputs[0], out.ints(0), out.ints(start), out.ints(along)))
    if stop < extent:
        parts.append(out.add("Slice", node.inputs[0], out.ints(stop), out.ints(extent), out.ints(along)))
    out.add("Concat", *parts, output=node.outputs[0], axis=along)


def _sgd_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.outputs[0])
    weight, step, rate = _sliced(out, node, types), node.inputs[1], node.inputs[-1]
    if number(node.attrs, "weight_decay"):
        step = out.add("Add", step, out.add("Mul", weight, out.scalar(number(node.attrs, "weight_decay"))))
    if len(node.inputs) == 4:
        kept = out.add("Mul", node.inputs[2], out.scalar(number(node.attrs, "momentum")))
        step = out.add("Add", kept, step, output=node.outputs[1])
    _put_back(out, node, types, out.add("Sub", weight, out.add("Mul", rate, step)))
    return out.nodes


# ------------------------------------------------------------------------------------------------------------- AdamW


def _adamw_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    parameter, gradient, m, v, rate, c1, c2 = inputs
    beta1, beta2 = number(attrs, "beta1"), number(attrs, "beta2")
    window = _window(parameter, gradient, attrs)
    m = beta1 * m + (1 - beta1) * gradient
    v = beta2 * v + (1 - beta2) * gradient * gradient
    result = parameter.copy()
    shrunk = parameter[window] * (1 - rate * number(attrs, "weight_decay"))
    result[window] = shrunk - rate * (m / c1) / (np.sqrt(v) / c2 + number(attrs, "eps"))
    return (result, m, v)


def _adamw_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    beta1, beta2 = number(attrs, "beta1"), number(attrs, "beta2")
    reads, writes = _accesses(inputs, attrs, 2)
    rate, c1, c2 = Ref(4), Ref(5), Ref(6)
    m = add(mul(Const(beta1), Ref(2)), mul(Const(1 - beta1), Ref(1)))
    v = add(mul(Const(beta2), Ref(3)), mul(Const(1 - beta2), mul(Ref(1), Ref(1))))
    shrunk = mul(Ref(0), sub(Const(1.0), mul(rate, Const(number(attrs, "weight_decay")))))
    root = add(Binary("div", Unary("sqrt", v), c2), Const(number(attrs, "eps")))
    step = mul(Binary("div", rate, c1), Binary("div", m, root))
    return MapSpec(inputs[1].shape, reads, writes, (sub(shrunk, step), m, v))


def _adamw_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.outputs[0])
    _, g, m, v, rate, c1, c2 = node.inputs
    beta1, beta2 = number(node.attrs, "beta1"), number(node.attrs, "beta2")
    weight = _sliced(out, node, types)

    def blend(old: str, new: str, beta: float, output: str) -> str:
        kept, fresh = out.add("Mul", old, out.scalar(beta)), out.add("Mul", new, out.scalar(1 - beta))
        return out.add("Add", kept, fresh, output=output)

    m2 = blend(m, g, beta1, node.outputs[1])
    v2 = blend(v, out.add("Mul", g, g), beta2, node.outputs[2])
    decay = out.add("Mul", rate, out.scalar(number(node.attrs, "weight_decay")))
    shrunk = out.add("Mul", weight, out.add("Sub", out.scalar(1.0), decay))
    root = out.add("Add", out.add("Div", out.add("Sqrt", v2), c2), out.scalar(number(node.attrs, "eps")))
    step = out.add("Mul", out.add("Div", rate, c1), out.add("Div", m2, root))
    _put_back(out, node, types, out.add("Sub", shrunk, step))
    return out.nodes


_W, _G, _SCALAR = TensorType("f32", (4, 3)), TensorType("f32", (2, 3)), TensorType("f32", ())
_SGD = {"momentum": 0.9, "weight_decay": 0.01}
_ADAMW = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
_WHOLE, _PART = {"axis": -1, "start": 0}, {"axis": 0, "start": 1}
_DRAWN = ("normal", "normal", "unit", "positive", "unit", "unit", "unit")


def _cost(flops_per_element: int) -> Callable[[Types, Types, Attrs], Cost]:
    def cost(inputs: Types, outputs: Types, attrs: Attrs) -> Cost:
        moved = inputs[1].size_bytes
        return Cost(flops_per_element * inputs[1].size, moved * (1 + len(outputs)), moved * len(outputs))

    return cost


OPTIMIZERS = (
    Operator(
        name="sgd_update",
        attributes=("momentum", "weight_decay", "axis", "start"),
        infer=_sgd_infer,
        evaluate=_sgd_evaluate,
        grad=_UPDATE,
        cost=_cost(4),
        lower=_sgd_lower,
        to_onnx=_sgd_onnx,
        examples=(
            Example((_W, _W, _SCALAR), {**_SGD, **_WHOLE}, ("normal", "normal", "unit")),
            Example((_W, _G, _G, _SCALAR), {**_SGD, **_PART}, ("normal", "normal", "normal", "unit")),
        ),
        in_place={0: 0, 1: 2},
    ),
    Operator(
        name="adamw_update",
        attributes=("beta1", "beta2", "eps", "weight_decay", "axis", "start"),
        infer=lambda inputs, attrs: _infer(inputs, attrs, 2),
        evaluate=_adamw_evaluate,
        grad=_UPDATE,
        cost=_cost(15),
        lower=_adamw_lower,
        to_onnx=_adamw_onnx,
        examples=(
            Example((_W, _W, _W, _W, _SCALAR, _SCALAR, _SCALAR), {**_ADAMW, **_WHOLE}, _DRAWN),
            Example((_W, _G, _G, _G, _SCALAR, _SCALAR, _SCALAR), {**_ADAMW, **_PART}, _DRAWN),
        ),
        in_place={0: 0, 1: 2, 2: 3},
    ),
)
