"""Recurrent layers whose cells are not the plain ones, as ONNX nodes, step by step.

Peepholes, clipping, coupled gates, other activations, and GRUs that reset before the product: what the import rows of
LSTM, GRU and RNN refuse. Slower than those: about 25 nodes for each step, which count against the limit on nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from compiler.errors import ModelError, UnsupportedOperator
from compiler.frontend.file.source import SourceNode, free_name
from compiler.frontend.scope import KnownOperand, Scope
from compiler.graph import Array

Run = Callable[[Sequence[SourceNode]], None]
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_PLAIN = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_ACTIVATIONS = {
    "affine": (1.0, 0.0),
    "elu": (1.0,),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01,),
    "relu": (),
    "scaledtanh": (1.0, 1.0),
    "sigmoid": (),
    "softplus": (),
    "softsign": (),
    "tanh": (),
    "thresholdedrelu": (1.0,),
}
"""Activation -> its alpha and beta, if it has them, where the node does not say."""
_OPERATORS = {
    "elu": "Elu",
    "hardsigmoid": "HardSigmoid",
    "leakyrelu": "LeakyRelu",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "tanh": "Tanh",
    "thresholdedrelu": "ThresholdedRelu",
}
_REFUSED = "use the activations of ONNX, and one cell width in all operands"


@dataclass(slots=True)
class _Writer:
    """Nodes under construction, and constants for them."""

    scope: Scope
    node: SourceNode
    nodes: list[SourceNode] = field(default_factory=list)

    def add(self, op_type: str, *inputs: str, **attributes: int | float | tuple[int, ...]) -> str:
        output = free_name(f"{self.node.name}/{op_type}", self.scope.used_names)
        self.nodes.append(SourceNode(self.node.name, op_type, inputs, (output,), attributes))
        return output

    def constant(self, array: Array) -> str:
        name = free_name(f"{self.node.name}/constant", self.scope.used_names)
        self.scope.operands[name] = KnownOperand(name, array)
        return name

    def number(self, value: float) -> str:
        return self.constant(np.asarray(value, np.float32))

    def element_at(self, x: str, position: int) -> str:
        """x[position]; looked up, so that all steps share a kernel."""
        picked = self.add("Gather", x, self.constant(np.asarray([position])), axis=0)
        return self.add("Squeeze", picked, self.constant(np.asarray([0])))

    def part(self, x: str, i: int, width: int) -> str:
        """Part number `i` of the last axis."""
        bounds = [self.constant(np.asarray([value])) for value in (i * width, (i + 1) * width, -1)]
        return self.add("Slice", x, *bounds)

    def stacked(self, parts: Sequence[str], axis: int) -> str:
        where = self.constant(np.asarray([axis]))
        return self.add("Concat", *(self.add("Unsqueeze", part, where) for part in parts), axis=axis)


def unrolled(scope: Scope, node: SourceNode, run: Run) -> None:
    """Imports a recurrent layer step by step. Raises: ModelError, UnsupportedOperator, LimitExceeded."""
    w = _Writer(scope, node)
    layer = _Layer(w)
    scope.charge(25 * layer.steps * len(layer.reverse), node.where)
    steps, lasts = [], []
    for d, reverse in enumerate(layer.reverse):
        hidden, last = layer.direction(d, reverse)
        steps.append(w.stacked(hidden, 0))
        lasts.append(last)
    y = w.stacked(steps, 1)
    states = [w.stacked([last[i] for last in lasts], 0) for i in range(layer.states)]
    if layer.batch_first:
        y = w.add("Transpose", y, perm=(2, 0, 1, 3))
        states = [w.add("Transpose", state, perm=(1, 0, 2)) for state in states]
    run(w.nodes)
    for name, output in zip(node.outputs, (y, *states), strict=False):
        if name:
            scope.same(name, output)


class _Layer:
    """The operands and options of one node."""

    def __init__(self, w: _Writer) -> None:
        self.w, self.node = w, w.node
        self.kind = w.node.op_type
        self.gates, self.states = _GATES[self.kind], 2 if self.kind == "LSTM" else 1
        direction = str(w.node.attributes.get("direction", "forward"))
        self.reverse = _DIRECTIONS.get(direction, ())
        self.batch_first = w.node.attributes.get("layout", 0) == 1
        x, r = self._shape(0), self._shape(2)
        if not self.reverse or len(x) != 3 or len(r) != 3 or r[1] != self.gates * r[2] or prod(r) == 0:
            raise ModelError("its operands do not fit together", where=w.node.where, hint=_REFUSED)
        self.steps, self.batch = (x[1], x[0]) if self.batch_first else (x[0], x[1])
        self.width = r[2]
        self.x = w.add("Transpose", w.node.inputs[0], perm=(1, 0, 2)) if self.batch_first else w.node.inputs[0]
        clip = w.node.attributes.get("clip")
        self.clip = float(clip) if isinstance(clip, int | float) else None
        self.functions = self._functions()

    def _shape(self, index: int) -> tuple[int, ...]:
        return self.w.scope.shape(self.w.scope.operands[self.node.inputs[index]])

    def _functions(self) -> list[tuple[str, list[float]]]:
        """(activation, alpha and beta) of all directions."""
        activations = self.node.attributes.get("activations", _PLAIN[self.kind] * len(self.reverse))
        names = [str(name).lower() for name in activations] if isinstance(activations, tuple) else []
        if len(names) != len(_PLAIN[self.kind]) * len(self.reverse) or not set(names) <= set(_ACTIVATIONS):
            raise UnsupportedOperator(f"activations {', '.join(names)}", where=self.node.where, hint=_REFUSED)
        rest = {key: list(self._numbers(f"activation_{key}")) for key in ("alpha", "beta")}
        functions = []
        for name in names:
            defaults = _ACTIVATIONS[name]
            values = [
                rest[key].pop(0) if rest[key] else default
                for key, default in zip(("alpha", "beta"), defaults, strict=False)
            ]
            functions.append((name, values))
        return functions

    def _numbers(self, name: str) -> tuple[float, ...]:
        value = self.node.attributes.get(name, ())
        return tuple(float(item) for item in value) if isinstance(value, tuple) else ()

    def activated(self, d: int, which: int, x: str) -> str:
        """Activation number `which` of a direction."""
        w = self.w
        name, values = self.functions[d * len(_PLAIN[self.kind]) + which]
        if name == "affine":
            return w.add("Add", w.add("Mul", x, w.number(values[0])), w.number(values[1]))
        if name == "scaledtanh":
            return w.add("Mul", w.add("Tanh", w.add("Mul", x, w.number(values[1]))), w.number(values[0]))
        return w.add(_OPERATORS[name], x, **dict(zip(("alpha", "beta"), values, strict=False)))

    def clipped(self, x: str) -> str:
        """Within +- clip."""
        return x if self.clip is None else self.w.add("Clip", x, self.w.number(-self.clip), self.w.number(self.clip))

    def parts(self, index: int, d: int, count: int, width: int) -> list[str | None]:
        """Input `index` of a direction, cut along its last axis; None if it is left out."""
        if not self.node.operand(index):
            return [None] * count
        direction_input = self.w.element_at(self.node.inputs[index], d)
        return [self.w.part(direction_input, i, width) for i in range(count)]

    def start(self, index: int, d: int) -> str:
        """An initial state, [B, H]."""
        name = self.node.operand(index)
        if not name:
            return self.w.constant(np.zeros((self.batch, self.width), np.float32))
        return self.w.element_at(self.w.add("Transpose", name, perm=(1, 0, 2)) if self.batch_first else name, d)

    def direction(self, d: int, reverse: bool) -> tuple[list[str], list[str]]:
        """The hidden state of every step, and the last states."""
        w = self.w
        cell = _Cell(self, d)
        states = [self.start(5 + i, d) for i in range(self.states)]
        hidden = [""] * self.steps
        zeros = w.constant(np.zeros((self.batch, self.width), np.float32))
        lengths = self.node.operand(4)
        column = w.add("Unsqueeze", lengths, w.constant(np.asarray([1]))) if lengths else ""
        for t in reversed(range(self.steps)) if reverse else range(self.steps):
            new_states = cell.step(w.element_at(self.x, t), states)
            hidden[t] = new_states[0]
            if column:
                kind = w.add("CastLike", w.constant(np.asarray(t)), column)
                inside = w.add("Less", kind, column)
                hidden[t] = w.add("Where", inside, new_states[0], zeros)
                new_states = [w.add("Where", inside, new, old) for new, old in zip(new_states, states, strict=True)]
            states = new_states
        return hidden, states


class _Cell:
    """The weights of one direction by gate, and its step."""

    def __init__(self, layer: _Layer, d: int) -> None:
        w, self.layer, self.d = layer.w, layer, d
        h, g = layer.width, layer.gates
        self.w = self._across(layer.node.inputs[1])
        self.r = self._across(layer.node.inputs[2])
        biases = layer.parts(3, d, 2 * g, h)
        self.input_bias, self.inner = biases[:g], biases[g:]
        self.peep = layer.parts(7, d, 3, h)
        self.coupled = bool(layer.node.attributes.get("input_forget", 0))
        self.reset_after = bool(layer.node.attributes.get("linear_before_reset", 0))
        self.one = w.number(1.0)

    def _across(self, name: str) -> list[str]:
        """Returns each gate's weight, [inputs, H]."""
        w, h = self.layer.w, self.layer.width
        whole = w.add("Transpose", w.element_at(name, self.d), perm=(1, 0))
        return [w.part(whole, i, h) for i in range(self.layer.gates)]

    def _sum(self, *terms: str | None) -> str:
        present = [term for term in terms if term is not None]
        total = present[0]
        for term in present[1:]:
            total = self.layer.w.add("Add", total, term)
        return total

    def _gate(self, i: int, x: str, h: str, *more: str | None) -> str:
        """x w + h r + biases + more, clipped."""
        w = self.layer.w
        products = w.add("MatMul", x, self.w[i]), w.add("MatMul", h, self.r[i])
        return self.layer.clipped(self._sum(*products, self.input_bias[i], self.inner[i], *more))

    def _peeped(self, which: int, c: str) -> str | None:
        weight = self.peep[which]
        return None if weight is None else self.layer.w.add("Mul", c, weight)

    def step(self, x: str, states: Sequence[str]) -> list[str]:
        """The new states."""
        return {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.layer.kind](x, states)

    def _rnn(self, x: str, states: Sequence[str]) -> list[str]:
        return [self.layer.activated(self.d, 0, self._gate(0, x, states[0]))]

    def _lstm(self, x: str, states: Sequence[str]) -> list[str]:
        w, act, (h, c) = self.layer.w, self.layer.activated, states
        i = act(self.d, 0, self._gate(0, x, h, self._peeped(0, c)))
        f = w.add("Sub", self.one, i) if self.coupled else act(self.d, 0, self._gate(2, x, h, self._peeped(2, c)))
        g = act(self.d, 1, self._gate(3, x, h))
        new = w.add("Add", w.add("Mul", f, c), w.add("Mul", i, g))
        o = act(self.d, 0, self._gate(1, x, h, self._peeped(1, new)))
        return [w.add("Mul", o, act(self.d, 2, new)), new]

    def _gru(self, x: str, states: Sequence[str]) -> list[str]:
        w, act, h = self.layer.w, self.layer.activated, states[0]
        z, r = (act(self.d, 0, self._gate(i, x, h)) for i in (0, 1))
        if self.reset_after:
            inner = w.add("Mul", r, self._sum(w.add("MatMul", h, self.r[2]), self.inner[2]))
            new = self._sum(w.add("MatMul", x, self.w[2]), inner, self.input_bias[2])
        else:
            inner = w.add("MatMul", w.add("Mul", r, h), self.r[2])
            new = self._sum(w.add("MatMul", x, self.w[2]), inner, self.input_bias[2], self.inner[2])
        n = act(self.d, 1, self.layer.clipped(new))
        return [w.add("Add", n, w.add("Mul", z, w.add("Sub", h, n)))]


UNROLLED: Mapping[str, Callable[[Scope, SourceNode, Run], None]] = dict.fromkeys(_GATES, unrolled)
