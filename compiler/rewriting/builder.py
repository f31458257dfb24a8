"""Builds graphs node by node, inferring each output's type from its operator's record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from compiler.element_types import emitted_of_numpy
from compiler.errors import CompileError, InternalError
from compiler.graph import Array, AttrValue, Graph, Node, Phase, TensorType
from compiler.ops import OPERATORS
from compiler.values import Role, Value

EMPTY = Graph((), (), (), {})


class GraphBuilder:
    """Appends nodes to a graph; `emit` makes and types the output.

    A builder is how autodiff, decompositions and passes write: they never construct types or values by hand.
    """

    def __init__(self, base: Graph = EMPTY, *, keep_nodes: bool = True) -> None:
        """Knows all values of `base`, and begins with its nodes if those are to be kept."""
        self.nodes: list[Node] = list(base.nodes) if keep_nodes else []
        self.types: dict[Value, TensorType] = dict(base.types)
        self.arrays: dict[Value, Array] = dict(base.arrays)
        self.layer = ""
        self.phase: Phase = "forward"
        self.parameter = ""
        self.next_number = max([base.next_number, *(value.number + 1 for value in base.types)])

    def stand_for(self, node: Node) -> None:
        """Lets what is emitted from now on stand for `node`."""
        self.layer, self.phase, self.parameter = node.layer, node.phase, node.parameter

    def graph_of(self, graph: Graph) -> Graph:
        """Returns the rewritten `graph`: the same, with this builder's nodes and values."""
        return replace(
            graph, nodes=tuple(self.nodes), types=self.types, arrays=self.arrays, next_number=self.next_number
        )

    def fresh(self, role: Role = "plain", kind: str = "") -> Value:
        """A value that there never was."""
        self.next_number += 1
        return Value(self.next_number - 1, role, kind)

    def emit(self, op: str, *inputs: Value, output: Value | None = None, **attrs: AttrValue) -> Value:
        """Appends a single-output node and returns its output, which is `output` or a fresh value."""
        (emitted,) = self.emit_many(op, inputs, outputs=(output or self.fresh(),), **attrs)
        return emitted

    def emit_many(
        self, op: str, inputs: Iterable[Value], *, outputs: tuple[Value, ...], **attrs: AttrValue
    ) -> tuple[Value, ...]:
        """Appends a node with the given outputs."""
        operands = tuple(inputs)
        node = Node(op, operands, outputs, attrs, self.layer, self.phase, self.parameter)
        try:
            types = OPERATORS[op].infer(tuple(self.types[operand] for operand in operands), attrs)
        except CompileError as problem:
            if not problem.where:
                problem.where = self.layer or op
            raise
        self.types.update(zip(outputs, types, strict=True))
        self.nodes.append(node)
        return outputs

    def constant(self, value: Array | float) -> Value:
        """A constant with the given elements; a plain number becomes an f32 scalar."""
        array = np.asarray(value, np.float32) if isinstance(value, float | int) else value
        return self.array_value(np.ascontiguousarray(array).reshape(array.shape))

    def array_value(self, array: Array) -> Value:
        """A value with an array's own elements, as they lie: large ones are there once."""
        element = emitted_of_numpy(array.dtype)
        if element is None:
            raise InternalError(f"a constant of type {array.dtype}", where=self.layer)
        value = self.fresh()
        self.arrays[value] = array
        self.types[value] = TensorType(element.name, array.shape)
        return value

    def shape(self, value: Value) -> tuple[int, ...]:
        """Shape of a value."""
        return self.types[value].shape
