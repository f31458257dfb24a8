"""The cells of recurrent layers: one step's arithmetic, forward and backward, over any kind of number.

    lstm   i, o, f = sigmoid(x + r h), g = tanh(x + r h); c' = f c + i g, h' = o tanh(c')
    gru    z, v = sigmoid(x + r h), q = r h + bias, n = tanh(x + v q); h' = n + z (h - n)
    tanh   h' = tanh(x + r h)
    relu   h' = max(x + r h, 0), whose derivative at 0 is 0

Gates lie side by side in the order in which they are written here.
Source: ONNX LSTM, GRU (`linear_before_reset` = 1), RNN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Number = Any
"""A number that an arithmetic computes with: arrays, vectors of a kernel, names of ONNX values."""
CellName = Literal["lstm", "gru", "tanh", "relu"]


class Arithmetic(Protocol):
    """The operations that a cell is written with."""

    def add(self, x: Number, y: Number) -> Number: ...

    def sub(self, x: Number, y: Number) -> Number: ...

    def mul(self, x: Number, y: Number) -> Number: ...

    def rest(self, x: Number) -> Number:
        """1 - x."""

    def sigmoid(self, x: Number) -> Number: ...

    def tanh(self, x: Number) -> Number: ...

    def relu(self, x: Number) -> Number: ...

    def where_positive(self, x: Number, y: Number) -> Number:
        """y where x > 0, else 0."""


@dataclass(frozen=True, slots=True)
class Forward:
    """The outputs of a step: the new states, hidden state first, and what the gradient will need."""

    states: tuple[Number, ...]
    saved: tuple[Number, ...] = ()


@dataclass(frozen=True, slots=True)
class Backward:
    """Gradients of a step.

    `d_x`: of the gates' inputs; `d_products`: of the products r h, which the hidden state before gets more of;
    `d_states`: of the states before, those products left out (None: nothing else).
    """

    d_x: tuple[Number, ...]
    d_products: tuple[Number, ...]
    d_states: tuple[Number | None, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of cell: numbers of gates, states and saved tensors, each of the layer's width.

    forward(arithmetic, x, products, states, bias), backward(arithmetic, saved, before, after, d_after).
    """

    gates: int
    states: int
    saved: int
    forward: Callable[[Arithmetic, Sequence[Number], Sequence[Number], Sequence[Number], Number], Forward]
    backward: Callable[[Arithmetic, Sequence[Number], Sequence[Number], Sequence[Number], Sequence[Number]], Backward]
    has_bias: bool = False
    """A bias inside a gate, beside the recurrent product; `d_products` differs from `d_x` then."""
    reads_before: bool = True
    """The gradient reads the states before the step."""


def _lstm(
    a: Arithmetic, x: Sequence[Number], products: Sequence[Number], states: Sequence[Number], bias: Number
) -> Forward:
    i, o, f, g = (a.add(gate_input, product) for gate_input, product in zip(x, products, strict=True))
    i, o, f, g = a.sigmoid(i), a.sigmoid(o), a.sigmoid(f), a.tanh(g)
    c = a.add(a.mul(f, states[1]), a.mul(i, g))
    return Forward((a.mul(o, a.tanh(c)), c), (i, o, f, g))


def _lstm_grad(
    a: Arithmetic,
    saved: Sequence[Number],
    before: Sequence[Number],
    after: Sequence[Number],
    d_after: Sequence[Number],
) -> Backward:
    i, o, f, g = saved
    d_h, d_c = d_after
    bent = a.tanh(after[1])
    d_c = a.add(d_c, a.mul(a.mul(d_h, o), a.rest(a.mul(bent, bent))))
    d_i = a.mul(a.mul(d_c, g), a.mul(i, a.rest(i)))
    d_o = a.mul(a.mul(d_h, bent), a.mul(o, a.rest(o)))
    d_f = a.mul(a.mul(d_c, before[1]), a.mul(f, a.rest(f)))
    d_g = a.mul(a.mul(d_c, i), a.rest(a.mul(g, g)))
    gates = (d_i, d_o, d_f, d_g)
    return Backward(gates, gates, (None, a.mul(d_c, f)))


def _gru(
    a: Arithmetic, x: Sequence[Number], products: Sequence[Number], states: Sequence[Number], bias: Number
) -> Forward:
    z = a.sigmoid(a.add(x[0], products[0]))
    v = a.sigmoid(a.add(x[1], products[1]))
    q = a.add(products[2], bias)
    n = a.tanh(a.add(x[2], a.mul(v, q)))
    return Forward((a.add(n, a.mul(z, a.sub(states[0], n))),), (z, v, n, q))


def _gru_grad(
    a: Arithmetic,
    saved: Sequence[Number],
    before: Sequence[Number],
    after: Sequence[Number],
    d_after: Sequence[Number],
) -> Backward:
    z, v, n, q = saved
    (d_h,) = d_after
    d_n = a.mul(a.mul(d_h, a.rest(z)), a.rest(a.mul(n, n)))
    d_z = a.mul(a.mul(d_h, a.sub(before[0], n)), a.mul(z, a.rest(z)))
    d_v = a.mul(a.mul(d_n, q), a.mul(v, a.rest(v)))
    return Backward((d_z, d_v, d_n), (d_z, d_v, a.mul(d_n, v)), (a.mul(d_h, z),))


def _tanh(
    a: Arithmetic, x: Sequence[Number], products: Sequence[Number], states: Sequence[Number], bias: Number
) -> Forward:
    return Forward((a.tanh(a.add(x[0], products[0])),))


def _tanh_grad(
    a: Arithmetic,
    saved: Sequence[Number],
    before: Sequence[Number],
    after: Sequence[Number],
    d_after: Sequence[Number],
) -> Backward:
    d = (a.mul(d_after[0], a.rest(a.mul(after[0], after[0]))),)
    return Backward(d, d, (None,))


def _relu(
    a: Arithmetic, x: Sequence[Number], products: Sequence[Number], states: Sequence[Number], bias: Number
) -> Forward:
    return Forward((a.relu(a.add(x[0], products[0])),))


def _relu_grad(
    a: Arithmetic,
    saved: Sequence[Number],
    before: Sequence[Number],
    after: Sequence[Number],
    d_after: Sequence[Number],
) -> Backward:
    d = (a.where_positive(after[0], d_after[0]),)
    return Backward(d, d, (None,))


CELLS: Mapping[str, Cell] = {
    "lstm": Cell(4, 2, 4, _lstm, _lstm_grad),
    "gru": Cell(3, 1, 4, _gru, _gru_grad, has_bias=True),
    "tanh": Cell(1, 1, 0, _tanh, _tanh_grad, reads_before=False),
    "relu": Cell(1, 1, 0, _relu, _relu_grad, reads_before=False),
}
