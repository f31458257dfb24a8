"""Recurrent layers over all their steps, and their gradient; what a step computes, a cell says (`kernels.cells`).

recurrence       x [T, B, G H], r [G H, H], start [B, N H], bias [H] (gru) -> y [T, B, N H], saved [T, B, S H]
                 x holds the gates' inputs with their biases; y all states side by side, the hidden one first
d_r = sum over t of d_products(t)' h(t - 1), one product over all steps; d_bias = sum of the last gate's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.cells import CELLS, Arithmetic, Cell
from compiler.kernels.spec import RecurrenceSpec
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import (
    Cost,
    Example,
    NamedNode,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    flag,
    text,
)
from compiler.values import Value

_FLOPS = {"lstm": 90, "gru": 70, "tanh": 25, "relu": 3}
"""Floating-point operations of a cell, per element of the layer's width."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    cell: Cell
    steps: int
    batch: int
    width: int

    def of(self, count: int) -> tuple[int, int, int]:
        """`count` tensors of the layer's width, side by side, at every step."""
        return (self.steps, self.batch, count * self.width)


def _sizes(x: TensorType, r: TensorType, start: TensorType, attrs: Attrs) -> _Sizes:
    cell = CELLS[text(attrs, "cell")]
    if len(x.shape) != 3 or len(r.shape) != 2 or len(start.shape) != 2:
        raise ModelShapeError(f"a recurrence of {x}, {r} from {start}: ranks must be 3, 2 and 2")
    sizes = _Sizes(cell, x.shape[0], x.shape[1], r.shape[1])
    fits = x.shape == sizes.of(cell.gates) and r.shape[0] == cell.gates * sizes.width
    if not fits or start.shape != (sizes.batch, cell.states * sizes.width):
        raise ModelShapeError(f"a recurrence of {x}, {r} from {start}: the operands do not fit together")
    return sizes


def _infer(inputs: Types, attrs: Attrs) -> Types:
    s = _sizes(inputs[0], inputs[1], inputs[2], attrs)
    if [bias.shape for bias in inputs[3:]] != [(s.width,)] * s.cell.has_bias:
        raise ModelShapeError(f"a recurrence of width {s.width} with biases {', '.join(map(str, inputs[3:]))}")
    dtype = inputs[0].dtype
    saved = (TensorType(dtype, s.of(s.cell.saved)),) if s.cell.saved else ()
    return (TensorType(dtype, s.of(s.cell.states)), *saved)


def _grad_infer(inputs: Types, attrs: Attrs) -> Types:
    r, start, y = inputs[:3]
    cell = CELLS[text(attrs, "cell")]
    d_x = TensorType(y.dtype, (*y.shape[:2], cell.gates * r.shape[1]))
    _sizes(d_x, r, start, attrs)
    return (d_x, start, *((d_x,) if cell.has_bias else ()))


# ------------------------------------------------------------------------------------------------------------ meaning


class _Arrays:
    """A cell's arithmetic on arrays."""

    def add(self, x: Array, y: Array) -> Array:
        return np.asarray(x + y)

    def sub(self, x: Array, y: Array) -> Array:
        return np.asarray(x - y)

    def mul(self, x: Array, y: Array) -> Array:
        return np.asarray(x * y)

    def rest(self, x: Array) -> Array:
        return np.asarray(1 - x)

    def sigmoid(self, x: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(1 / (1 + np.exp(-x)))

    def tanh(self, x: Array) -> Array:
        return np.asarray(np.tanh(x))

    def relu(self, x: Array) -> Array:
        return np.maximum(x, 0)

    def where_positive(self, x: Array, y: Array) -> Array:
        return np.where(x <= 0, y.dtype.type(0), y)


def _order(steps: int, attrs: Attrs) -> Sequence[int]:
    return range(steps)[::-1] if flag(attrs, "reverse") else range(steps)


def _split(x: Array, count: int) -> list[Array]:
    return np.split(x, count, axis=-1) if count else []


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, r, start, *bias = inputs
    cell, steps = CELLS[text(attrs, "cell")], x.shape[0]
    states = _split(start, cell.states)
    y: list[Array] = [start] * steps
    saved: list[Array] = [start] * steps
    for t in _order(steps, attrs):
        products = _split(states[0] @ r.T, cell.gates)
        outputs = cell.forward(_Arrays(), _split(x[t], cell.gates), products, states, bias[0] if bias else None)
        states = list(outputs.states)
        y[t] = np.concatenate(states, axis=-1)
        saved[t] = np.concatenate(outputs.saved, axis=-1) if cell.saved else start
    return (np.stack(y), *((np.stack(saved),) if cell.saved else ()))


def _grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    r, start, y, *saved, d_y = inputs
    cell, steps = CELLS[text(attrs, "cell")], y.shape[0]
    d_x: list[Array] = [start] * steps
    d_products: list[Array] = [start] * steps
    d_carried = [np.zeros_like(part) for part in _split(start, cell.states)]
    order = list(_order(steps, attrs))
    for position in reversed(range(steps)):
        t = order[position]
        before = _split(y[order[position - 1]] if position else start, cell.states)
        d_after = [direct + later for direct, later in zip(_split(d_y[t], cell.states), d_carried, strict=True)]
        saved_parts = _split(saved[0][t], cell.saved) if saved else []
        gradients = cell.backward(_Arrays(), saved_parts, before, _split(y[t], cell.states), d_after)
        d_x[t] = np.concatenate(gradients.d_x, axis=-1)
        d_products[t] = np.concatenate(gradients.d_products, axis=-1)
        d_carried = [
            np.zeros_like(part) if d is None else d for d, part in zip(gradients.d_states, d_carried, strict=True)
        ]
        d_carried[0] = d_carried[0] + d_products[t] @ r
    outputs = (np.stack(d_x), np.concatenate(d_carried, axis=-1))
    return (*outputs, np.stack(d_products)) if cell.has_bias else outputs


def _grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    x, r, start, *bias = node.inputs
    cell, (gates, width) = CELLS[text(node.attrs, "cell")], b.shape(r)
    y, *saved = node.outputs
    outputs = tuple(b.fresh() for _ in range(3 if cell.has_bias else 2))
    b.emit_many("recurrence_grad", (r, start, y, *saved, d_output), outputs=outputs, **node.attrs)
    d_x, d_start, d_products = (*outputs, outputs[0])[:3]
    steps, batch, _ = b.shape(x)
    flat = b.emit("reshape", d_products, shape=(steps * batch, gates)) if wanted[1] or any(wanted[3:]) else d_x
    gradients: list[Value | None] = [d_x, None, d_start]
    if wanted[1]:
        before = b.emit("reshape", _hidden_before(b, node, y, width), shape=(steps * batch, width))
        gradients[1] = b.emit("matmul", flat, before, transpose_a=True, transpose_b=False)
    if bias:
        last = b.emit("slice", flat, starts=(0, gates - width), stops=(steps * batch, gates), steps=(1, 1))
        gradients.append(b.emit("reduce_sum", last, axes=(0,), keepdims=False) if wanted[3] else None)
    return gradients


def _hidden_before(b: Emitter, node: Node, y: Value, width: int) -> Value:
    """[T, B, H]: the hidden state that each step began with."""
    steps, batch, states = b.shape(y)
    start = b.emit("reshape", node.inputs[2], shape=(1, batch, states))
    reverse = flag(node.attrs, "reverse")
    first = b.emit("slice", start, starts=(0, 0, 0), stops=(1, batch, width), steps=(1, 1, 1))
    if steps == 1:
        return first
    low, high = (1, steps) if reverse else (0, steps - 1)
    others = b.emit("slice", y, starts=(low, 0, 0), stops=(high, batch, width), steps=(1, 1, 1))
    return b.emit("concat", *((others, first) if reverse else (first, others)), axis=0)


# --------------------------------------------------------------------------------------------------- cost and kernels


def _cost(inputs: Types, outputs: Types, attrs: Attrs) -> Cost:
    r = inputs[1] if len(inputs[0].shape) == 3 else inputs[0]
    steps, batch, _ = outputs[0].shape
    flops = steps * batch * (2 * r.size + _FLOPS[text(attrs, "cell")] * r.shape[1])
    return Cost(flops, sum(t.size_bytes for t in inputs), sum(t.size_bytes for t in outputs))


def _lower(inputs: Types, outputs: Types, attrs: Attrs) -> RecurrenceSpec:
    return _spec("forward", inputs[1], outputs[0], attrs)


def _grad_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RecurrenceSpec:
    return _spec("backward", inputs[0], outputs[0], attrs)


def _spec(kind: Any, r: TensorType, along: TensorType, attrs: Attrs) -> RecurrenceSpec:
    steps, batch, _ = along.shape
    cell: Any = text(attrs, "cell")
    return RecurrenceSpec(kind, cell, steps, batch, r.shape[1], flag(attrs, "reverse"), dtype=r.dtype)


# --------------------------------------------------------------------------------------------------------------- ONNX


class _Nodes:
    """A cell's arithmetic as ONNX nodes, step after step."""

    def __init__(self, node: NamedNode, types: Mapping[str, TensorType]) -> None:
        self.out, self.types, self.attrs = OnnxWriter(node.outputs[0]), types, node.attrs
        self.cell = CELLS[text(node.attrs, "cell")]

    def add(self, x: str, y: str) -> str:
        return self.out.add("Add", x, y)

    def sub(self, x: str, y: str) -> str:
        return self.out.add("Sub", x, y)

    def mul(self, x: str, y: str) -> str:
        return self.out.add("Mul", x, y)

    def rest(self, x: str) -> str:
        return self.out.add("Sub", self.out.scalar(1.0), x)

    def sigmoid(self, x: str) -> str:
        return self.out.add("Sigmoid", x)

    def tanh(self, x: str) -> str:
        return self.out.add("Tanh", x)

    def relu(self, x: str) -> str:
        return self.out.add("Relu", x)

    def where_positive(self, x: str, y: str) -> str:
        zero = self.out.scalar(0.0)
        return self.out.add("Where", self.out.add("LessOrEqual", x, zero), zero, y)

    def split(self, x: str, count: int, width: int) -> list[str]:
        """Tensors that lie side by side."""
        ends = [(self.out.ints(i * width), self.out.ints((i + 1) * width)) for i in range(count)]
        return [self.out.add("Slice", x, first, end, self.out.ints(-1)) for first, end in ends]

    def at(self, x: str, t: int) -> str:
        """Returns one step."""
        return self.out.add("Gather", x, self.out.add("Constant", value=np.asarray(t, np.int64)), axis=0)

    def stacked(self, steps: Sequence[Sequence[str]], output: str) -> None:
        """Per step, tensors side by side."""
        joined = [self.out.add("Concat", *parts, axis=-1) for parts in steps]
        raised = [self.out.add("Unsqueeze", name, self.out.ints(0)) for name in joined]
        self.out.add("Concat", *raised, axis=0, output=output)


def _to_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    w = _Nodes(node, types)
    arithmetic: Arithmetic = w
    x, r, start, *bias = node.inputs
    cell, width, steps = w.cell, types[r].shape[1], types[x].shape[0]
    across = w.out.add("Transpose", r, perm=(1, 0))
    states: Sequence[str] = w.split(start, cell.states, width)
    y: list[Sequence[str]] = [()] * steps
    saved: list[Sequence[str]] = [()] * steps
    for t in _order(steps, node.attrs):
        products = w.split(w.out.add("MatMul", states[0], across), cell.gates, width)
        gates = w.split(w.at(x, t), cell.gates, width)
        outputs = cell.forward(arithmetic, gates, products, states, bias[0] if bias else "")
        states = y[t] = outputs.states
        saved[t] = outputs.saved
    w.stacked(y, node.outputs[0])
    if cell.saved:
        w.stacked(saved, node.outputs[1])
    return w.out.nodes


def _grad_to_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    w = _Nodes(node, types)
    arithmetic: Arithmetic = w
    r, start, y, *saved, d_y = node.inputs
    cell, width, steps = w.cell, types[r].shape[1], types[y].shape[0]
    d_x: list[Sequence[str]] = [()] * steps
    d_products: list[Sequence[str]] = [()] * steps
    zero = w.out.add("Constant", value=np.zeros((types[y].shape[1], width), np.float32))
    d_carried: list[str] = [zero] * cell.states
    order = list(_order(steps, node.attrs))
    for position in reversed(range(steps)):
        t = order[position]
        before = w.split(w.at(y, order[position - 1]) if position else start, cell.states, width)
        d_after = [
            w.add(direct, later)
            for direct, later in zip(w.split(w.at(d_y, t), cell.states, width), d_carried, strict=True)
        ]
        saved_parts = w.split(w.at(saved[0], t), cell.saved, width) if saved else []
        after = w.split(w.at(y, t), cell.states, width)
        gradients = cell.backward(arithmetic, saved_parts, before, after, d_after)
        d_x[t], d_products[t] = gradients.d_x, gradients.d_products
        d_carried = [zero if d is None else d for d in gradients.d_states]
        joined = w.out.add("Concat", *gradients.d_products, axis=-1)
        d_carried[0] = w.add(d_carried[0], w.out.add("MatMul", joined, r))
    w.stacked(d_x, node.outputs[0])
    w.out.add("Concat", *d_carried, axis=-1, output=node.outputs[1])
    if cell.has_bias:
        w.stacked(d_products, node.outputs[2])
    return w.out.nodes


# ------------------------------------------------------------------------------------------------------------ records


def _example(
    cell: str, steps: int, batch: int, width: int, *, reverse: bool = False, backward: bool = False
) -> Example:
    c = CELLS[cell]
    sizes = _Sizes(c, steps, batch, width)
    y = sizes.of(c.states)
    start, r = (batch, c.states * width), (c.gates * width, width)
    if backward:
        shapes = (r, start, y, *((sizes.of(c.saved),) if c.saved else ()), y)
    else:
        shapes = (sizes.of(c.gates), r, start, *(((width,),) if c.has_bias else ()))
    return Example(tuple(TensorType("f32", shape) for shape in shapes), {"cell": cell, "reverse": reverse})


RECURRENCE = (
    Operator(
        name="recurrence",
        attributes=("cell", "reverse"),
        infer=_infer,
        evaluate=_evaluate,
        grad=_grad,
        cost=_cost,
        lower=_lower,
        to_onnx=_to_onnx,
        examples=(
            _example("lstm", 3, 2, 5),
            _example("lstm", 2, 7, 8, reverse=True),
            _example("gru", 3, 2, 5, reverse=True),
            _example("gru", 1, 3, 4),
            _example("tanh", 4, 3, 6),
            _example("relu", 3, 2, 5, reverse=True),
        ),
    ),
    Operator(
        name="recurrence_grad",
        attributes=("cell", "reverse"),
        infer=_grad_infer,
        evaluate=_grad_evaluate,
        grad=NotDifferentiable("a gradient of a gradient is never taken"),
        cost=_cost,
        lower=_grad_lower,
        to_onnx=_grad_to_onnx,
        examples=(
            _example("lstm", 3, 2, 5, backward=True),
            _example("lstm", 1, 7, 8, reverse=True, backward=True),
            _example("gru", 3, 2, 5, reverse=True, backward=True),
            _example("tanh", 2, 3, 6, backward=True),
            _example("relu", 3, 2, 5, reverse=True, backward=True),
        ),
    ),
)
