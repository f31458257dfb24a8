"""The ends of updates that are composed of several nodes, and what a step keeps for the next.

    scaled_update  w' = w (1 - lr weight_decay) - step u     (step and lr: numbers; u: a direction, like a gradient)
    keep           s' = x, in the place of s
    accumulate     s' = s + x, in the place of s
`compiler.step.adafactor` says what Adafactor's u and step are. Source: torch.optim.Adafactor (arXiv 1804.04235).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from compiler.errors import InternalError
from compiler.graph import Array, Attrs, TensorType
from compiler.kernels.access import identity
from compiler.kernels.expressions import Const, Expr, Ref, add, mul, sub
from compiler.kernels.spec import MapSpec
from compiler.ops.record import Example, NamedNode, OnnxNode, OnnxWriter, Operator, Types, elementwise_cost, number
from compiler.ops.update import (
    PART,
    SCALAR,
    UPDATE,
    WHOLE,
    G,
    W,
    accesses,
    infer_update,
    put_back,
    shrunk,
    sliced,
    update_cost,
    window,
)


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    parameter, direction, step, rate = inputs
    there, result = window(parameter, direction, attrs), parameter.copy()
    result[there] = parameter[there] * (1 - rate * number(attrs, "weight_decay")) - step * direction
    return (result,)


def _lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    reads, writes = accesses(inputs, attrs, 0)
    decay = number(attrs, "weight_decay")
    decayed = mul(Ref(0), sub(Const(1.0), mul(Ref(3), Const(decay)))) if decay else Ref(0)
    return MapSpec(inputs[1].shape, reads, writes, (sub(decayed, mul(Ref(2), Ref(1))),))


def _to_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.outputs[0])
    _, direction, step, rate = node.inputs
    weight, decay = sliced(out, node, types), number(node.attrs, "weight_decay")
    decayed = shrunk(out, weight, rate, decay) if decay else weight
    put_back(out, node, types, out.add("Sub", decayed, out.add("Mul", step, direction)))
    return out.nodes


def _state(
    name: str, evaluate: Callable[[Array, Array], Array], expr: Expr, onnx: Callable[[OnnxWriter, NamedNode], object]
) -> Operator:
    """A record for a tensor that is kept, and what a step makes of it and of another."""

    def infer(inputs: Types, attrs: Attrs) -> Types:
        if inputs[0] != inputs[1]:
            raise InternalError(f"{name} of {inputs[0]} and {inputs[1]}")
        return inputs[:1]

    def lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
        state, fresh = map(identity, inputs)
        return MapSpec(inputs[0].shape, (state, fresh), (state,), (expr,))

    def to_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
        out = OnnxWriter(node.output)
        onnx(out, node)
        return out.nodes

    return Operator(
        name=name,
        attributes=(),
        infer=infer,
        evaluate=lambda inputs, attrs: (np.asarray(evaluate(inputs[0], inputs[1])),),
        grad=UPDATE,
        cost=elementwise_cost(1),
        lower=lower,
        to_onnx=to_onnx,
        examples=(Example((W, W)), Example((SCALAR, SCALAR))),
        in_place={0: 0},
    )


ADAFACTOR = (
    Operator(
        name="scaled_update",
        attributes=("weight_decay", "axis", "start"),
        infer=lambda inputs, attrs: infer_update(inputs, attrs, 0),
        evaluate=_evaluate,
        grad=UPDATE,
        cost=update_cost(3),
        lower=_lower,
        to_onnx=_to_onnx,
        examples=(
            Example((W, W, SCALAR, SCALAR), {"weight_decay": 0.01, **WHOLE}, ("normal", "normal", "unit", "unit")),
            Example((W, G, SCALAR, SCALAR), {"weight_decay": 0.0, **PART}, ("normal", "normal", "unit", "unit")),
        ),
        in_place={0: 0},
    ),
    _state(
        "keep",
        lambda state, fresh: fresh.copy(),
        Ref(1),
        lambda out, node: out.add("Identity", node.inputs[1], output=node.output),
    ),
    _state(
        "accumulate",
        lambda state, fresh: state + fresh,
        add(Ref(0), Ref(1)),
        lambda out, node: out.add("Add", *node.inputs, output=node.output),
    ),
)
