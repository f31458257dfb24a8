"""Import rows: LSTM, GRU and RNN, one direction after the other; all steps of one are one node of the graph.

The input's projection is one product over all steps, and so is the gradient of the recurrent weight. Shorter samples
(`sequence_lens`) run on to the end: what lies behind theirs is masked, and in the reverse direction their own steps are
put in reverse order first. Cells that are not the plain ones are refused here; `frontend/unrolled.py` has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.element_types import REAL
from compiler.errors import ModelShapeError
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Operand
from compiler.values import Value

PLAIN = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
"""Activations that a direction has if the node does not say."""
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True, slots=True)
class Layer:
    """The sizes of one node: x is [T, B, I], the states are H wide."""

    cells: tuple[str, ...]
    """The cell of each direction."""
    reverse: tuple[bool, ...]
    steps: int
    batch: int
    inputs: int
    width: int
    gates: int

    @property
    def states(self) -> int:
        return 2 if self.cells[0] == "lstm" else 1


def _recurrent(call: Call) -> tuple[Operand | None, ...]:
    """Y [T, D, B, H] and the last states [D, B, H], or with `layout` 1 [B, T, D, H] and [B, D, H]."""
    for index in range(3):
        call.require_dtype(index, REAL)
    call.attributes.ignore("activation_alpha", "activation_beta")
    reverse = directions(call)
    cells = tuple(_cell(call, position, len(reverse)) for position in range(len(reverse)))
    _refuse_options(call)
    flipped = call.attributes.integer("layout", 0) == 1
    x = call.transpose(call.value(0), (1, 0, 2)) if flipped and call.rank(0) == 3 else call.value(0)
    layer = _layer(call, cells, reverse, call.shape_of(x))
    w, r = call.value(1), call.value(2)
    lengths = _Lengths(call, layer) if call.has(4) and not _are_whole(call, layer) else None
    outputs = [_direction(call, layer, d, x, (w, r), lengths, flipped) for d in range(len(reverse))]
    steps = [_joined(call, [h for h, _ in outputs], 1)]
    lasts = [_joined(call, [last[state] for _, last in outputs], 0) for state in range(layer.states)]
    if flipped:
        steps = [call.transpose(steps[0], (2, 0, 1, 3))]
        lasts = [call.transpose(last, (1, 0, 2)) for last in lasts]
    return (*steps, *lasts)


def directions(call: Call) -> tuple[bool, ...]:
    """Whether each direction begins with the last step."""
    direction = call.attributes.text("direction", "forward")
    if direction not in _DIRECTIONS:
        call.fail(f"direction {direction!r} is unknown")
    return _DIRECTIONS[direction]


def _cell(call: Call, position: int, count: int) -> str:
    plain = PLAIN[call.node.op_type]
    attribute = call.attributes.raw("activations")
    names = tuple(str(name).lower() for name in attribute) if isinstance(attribute, tuple) else plain * count
    if len(names) != len(plain) * count:
        call.fail(f"{len(names)} activations for {count} directions of {len(plain)}")
    activations = names[position * len(plain) : (position + 1) * len(plain)]
    if call.node.op_type == "RNN" and activations in (("tanh",), ("relu",)):
        return activations[0]
    return (
        call.node.op_type.lower() if activations == plain else call.unsupported(f"activations {', '.join(activations)}")
    )


def _refuse_options(call: Call) -> None:
    if "clip" in call.attributes:
        call.unsupported("clip is not supported")
    if call.attributes.integer("input_forget", 0) or call.has(7):
        call.unsupported("peepholes and input_forget are not supported")
    if call.node.op_type == "GRU" and not call.attributes.integer("linear_before_reset", 0):
        call.unsupported("linear_before_reset = 0 is not supported")


def _layer(call: Call, cells: tuple[str, ...], reverse: tuple[bool, ...], x: Sequence[int]) -> Layer:
    gates, count, w, r = _GATES[call.node.op_type], len(reverse), call.shape(1), call.shape(2)
    width = call.attributes.integer("hidden_size", r[-1])
    if len(x) != 3 or w != (count, gates * width, x[2]) or r != (count, gates * width, width):
        raise ModelShapeError(
            f"x {list(x)}, w {list(w)} and r {list(r)} do not fit {count} directions of width {width}",
            where=call.node.where,
        )
    layer = Layer(cells, reverse, x[0], x[1], x[2], width, gates)
    states = (count, layer.batch, width)
    if call.attributes.integer("layout", 0):
        states = (layer.batch, count, width)
    expected = {3: (count, 2 * gates * width), 4: (layer.batch,), 5: states, 6: states}
    for index, shape in expected.items():
        if call.has(index) and call.shape(index) != shape:
            raise ModelShapeError(
                f"input {index} is {list(call.shape(index))}, not {list(shape)}", where=call.node.where
            )
    return layer


def _of_direction(call: Call, value: Value, d: int) -> Value:
    """value[d]."""
    return call.reshape(call.cut(value, 0, d, d + 1), call.shape_of(value)[1:])


def _joined(call: Call, parts: Sequence[Value], axis: int) -> Value:
    """Parts of all directions along a new axis."""
    raised = [call.reshape(part, (*call.shape_of(part)[:axis], 1, *call.shape_of(part)[axis:])) for part in parts]
    return raised[0] if len(raised) == 1 else call.emit("concat", *raised, axis=axis)


def _direction(
    call: Call, layer: Layer, d: int, x: Value, weights: tuple[Value, Value], lengths: _Lengths | None, flipped: bool
) -> tuple[Value, list[Value]]:
    """The hidden state of every step, [T, B, H], and each last state, [B, H]."""
    w, r = (_of_direction(call, weight, d) for weight in weights)
    reverse, turned = layer.reverse[d], layer.reverse[d] and lengths is not None
    if lengths is not None and turned:
        x = lengths.turned(x)
    flat = call.reshape(x, (layer.steps * layer.batch, layer.inputs))
    gates = call.emit("matmul", flat, w, transpose_a=False, transpose_b=True)
    bias, inner = _biases(call, layer, d)
    if bias is not None:
        gates = call.emit("add", gates, bias)
    gates = call.reshape(gates, (layer.steps, layer.batch, layer.gates * layer.width))
    operands = [gates, r, _start(call, layer, d, flipped)]
    if layer.cells[d] == "gru":
        operands.append(inner if inner is not None else call.constant(np.zeros(layer.width, np.float32)))
    y = _run(call, layer, d, operands, reverse and not turned)
    if lengths is not None:
        return lengths.masked(y, layer, turned)
    last = _of_direction(call, y, 0 if reverse else layer.steps - 1)
    hidden = call.cut(y, 2, 0, layer.width)
    return hidden, _states(call, layer, last)


def _run(call: Call, layer: Layer, d: int, operands: Sequence[Value], reverse: bool) -> Value:
    builder, cell = call.scope.builder, layer.cells[d]
    outputs = tuple(builder.fresh() for _ in range(1 if layer.gates == 1 else 2))
    builder.emit_many("recurrence", operands, outputs=outputs, cell=cell, reverse=reverse)
    return outputs[0]


def _states(call: Call, layer: Layer, last: Value) -> list[Value]:
    return [call.cut(last, 1, i * layer.width, (i + 1) * layer.width) for i in range(layer.states)]


def _biases(call: Call, layer: Layer, d: int) -> tuple[Value | None, Value | None]:
    """The bias of the gates' inputs, and the one inside a GRU's new gate."""
    if not call.has(3):
        return None, None
    both = _of_direction(call, call.value(3), d)
    size, width = layer.gates * layer.width, layer.width
    input_bias, recurrent = call.cut(both, 0, 0, size), call.cut(both, 0, size, 2 * size)
    if layer.cells[d] != "gru":
        return call.emit("add", input_bias, recurrent), None
    outer = call.emit("add", call.cut(input_bias, 0, 0, 2 * width), call.cut(recurrent, 0, 0, 2 * width))
    return (
        call.emit("concat", outer, call.cut(input_bias, 0, 2 * width, size), axis=0),
        call.cut(recurrent, 0, 2 * width, size),
    )


def _start(call: Call, layer: Layer, d: int, flipped: bool) -> Value:
    """Returns all initial states side by side."""
    parts = []
    for index in range(5, 5 + layer.states):
        if call.has(index):
            value = call.transpose(call.value(index), (1, 0, 2)) if flipped else call.value(index)
            parts.append(_of_direction(call, value, d))
        else:
            parts.append(call.constant(np.zeros((layer.batch, layer.width), np.float32)))
    return parts[0] if len(parts) == 1 else call.emit("concat", *parts, axis=1)


# -------------------------------------------------------------------------------------------------------------- lengths


def _are_whole(call: Call, layer: Layer) -> bool:
    lengths = call.known_operand(4)
    return lengths is not None and bool((lengths.array == layer.steps).all())


class _Lengths:
    """Samples that end before the last step. One of no step at all gives zeros, as in ONNX Runtime."""

    def __init__(self, call: Call, layer: Layer) -> None:
        self.call = call
        call.require_dtype(4, ("i32", "i64"))
        lengths = call.value(4) if call.dtype(4) == "i64" else call.emit("cast", call.value(4), to="i64")
        self.any = call.emit("less", call.constant(np.asarray(0)), lengths)
        within = call.emit("minimum", lengths, call.constant(np.asarray(layer.steps)))
        self.last = call.emit(
            "sub", call.emit("maximum", within, call.constant(np.asarray(1))), call.constant(np.asarray(1))
        )
        self.time = call.constant(np.arange(layer.steps, dtype=np.int64)[:, None])
        self.sample = call.constant(np.arange(layer.batch, dtype=np.int64))
        self.inside = call.emit("less", self.time, lengths)

    def _rows(self, x: Value, time: Value) -> Value:
        """x[time, sample]: rows of the flattened steps."""
        call, (steps, batch, width) = self.call, self.call.shape_of(x)
        shape = call.shape_of(time)
        row = call.emit("add", call.emit("mul", time, call.constant(np.asarray(batch))), self.sample)
        picked = call.emit("gather", call.reshape(x, (steps * batch, width)), row, axis=0)
        return call.reshape(picked, (*shape, width))

    def turned(self, x: Value) -> Value:
        """Returns each sample's own steps in reverse order; those behind them stay where they are."""
        call = self.call
        time = call.emit("where", self.inside, call.emit("sub", self.last, self.time), self.time)
        return self._rows(x, time)

    def masked(self, y: Value, layer: Layer, turned: bool) -> tuple[Value, list[Value]]:
        """The hidden states, zero behind each sample's end, and the states at the end."""
        call = self.call
        last = self._rows(y, self.last)
        last = call.emit("where", call.reshape(self.any, (layer.batch, 1)), last, call.scalar(0.0, last))
        hidden = call.cut(y, 2, 0, layer.width)
        hidden = self.turned(hidden) if turned else hidden
        mask = call.reshape(self.inside, (layer.steps, layer.batch, 1))
        return call.emit("where", mask, hidden, call.scalar(0.0, hidden)), _states(call, layer, last)


ROWS: Mapping[str, Rule] = {"GRU": _recurrent, "LSTM": _recurrent, "RNN": _recurrent}
