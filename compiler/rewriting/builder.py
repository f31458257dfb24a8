"""Builds graphs node by node, inferring each output's type from its operator's record."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from compiler.element_types import emitted_of_numpy
from compiler.errors import CompileError, InternalError
from compiler.graph import Array, AttrValue, Graph, Node, Phase, TensorType
from compiler.ops import OPERATORS


class GraphBuilder:
    """Appends nodes to a graph; `emit` names and types the output.

    A builder is how autodiff, decompositions and passes write: they never construct types by hand.
    """

    def __init__(self, base: Graph | None = None, *, prefix: str = "v") -> None:
        self.nodes: list[Node] = list(base.nodes) if base is not None else []
        self.types: dict[str, TensorType] = dict(base.types) if base is not None else {}
        self.arrays: dict[str, Array] = dict(base.arrays) if base is not None else {}
        self.layer = ""
        self.phase: Phase = "forward"
        self.parameter = ""
        self._prefix = prefix
        self._counter = 0

    def stand_for(self, node: Node) -> None:
        """What is emitted from now on is what has become of `node`."""
        self.layer, self.phase, self.parameter = node.layer, node.phase, node.parameter

    def fresh(self, hint: str = "") -> str:
        """A name that no value has yet."""
        while True:
            name = f"{hint or self._prefix}.{self._counter}" if self._counter or not hint else hint
            self._counter += 1
            if name not in self.types:
                return name

    def emit(self, op: str, *inputs: str, name: str = "", **attrs: AttrValue) -> str:
        """Append a single-output node and return its output."""
        (output,) = self.emit_many(op, inputs, names=(name or self.fresh(),), **attrs)
        return output

    def emit_many(
        self, op: str, inputs: Iterable[str], *, names: tuple[str, ...], **attrs: AttrValue
    ) -> tuple[str, ...]:
        """Append a node whose outputs get the given names."""
        operands = tuple(inputs)
        node = Node(op, operands, names, attrs, self.layer, self.phase, self.parameter)
        try:
            types = OPERATORS[op].infer(tuple(self.types[operand] for operand in operands), attrs)
        except CompileError as problem:
            if not problem.where:
                problem.where = self.layer or op
            raise
        self.types.update(zip(names, types, strict=True))
        self.nodes.append(node)
        return names

    def constant(self, value: Array | float, name: str = "") -> str:
        """A constant; a plain number becomes an f32 scalar."""
        array = np.asarray(value, np.float32) if isinstance(value, float | int) else value
        label = name or self.fresh("constant")
        element = emitted_of_numpy(array.dtype)
        if element is None:
            raise InternalError(f"a constant of type {array.dtype}", where=label)
        self.arrays[label] = np.ascontiguousarray(array).reshape(array.shape)
        self.types[label] = TensorType(element.name, array.shape)
        return label

    def shape(self, value: str) -> tuple[int, ...]:
        """Shape of a value."""
        return self.types[value].shape
