"""Nodes and tensors of a graph (protobuf) whose arithmetic in integers is written anew: what rules read and write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from compiler.frontend.file.source import free_name
from compiler.frontend.file.stored_tensors import constant_tensor
from compiler.graph import Array

Triple = tuple[str, str, str]
"""Names of an operand, its scale and its zero point."""


@dataclass(frozen=True, slots=True)
class Call:
    """A node (protobuf) that a rule writes anew."""

    node: Any

    def input(self, index: int) -> str:
        """Name of an input; empty if it is left out."""
        return str(self.node.input[index]) if index < len(self.node.input) else ""

    def triple(self, first: int) -> Triple:
        """An operand whose scale and zero point stand beside it."""
        return self.input(first), self.input(first + 1), self.input(first + 2)

    @property
    def attributes(self) -> dict[str, Any]:
        """Returns the node's attributes as Python values."""
        return {entry.name: onnx.helper.get_attribute_value(entry) for entry in self.node.attribute}


_COMBINING = frozenset({"Add", "Mul", "Reshape", "Sub"})
Rule = Callable[["Writer", Call], bool]
"""Writes what stands for a node; False where it stays as it is, and the import names it."""


def names_read(graph: Any) -> Iterator[str]:
    """Yields the names that a graph (protobuf) and its sub-graphs read or give back."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from operands_of(node)


def operands_of(node: Any) -> Iterator[str]:
    """Yields the names that a node (protobuf) and its sub-graphs read."""
    yield from node.input
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from names_read(attribute.g)


def make_identity(node: Any, *inputs: str) -> None:
    """Makes a node (protobuf) return its one input, whatever it was."""
    node.op_type = "Identity"
    del node.input[:], node.attribute[:]
    node.input.extend(inputs)


@dataclass(slots=True)
class Writer:
    """The new nodes and tensors of a graph."""

    graph: Any
    nodes: list[Any] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    before: dict[str, list[Any]] = field(default_factory=dict)
    """Name of a node's first output -> nodes that stand in front of it."""
    scales: set[str] = field(default_factory=set)
    """Stored scales of weights, and what a rule appends: no parameters."""
    names: set[str] = field(init=False)
    stored: dict[str, Any] = field(init=False)
    readers: dict[str, list[Any]] = field(init=False)
    makers: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.graph
        self.stored = {tensor.name: tensor for tensor in graph.initializer}
        constants = ((node, constant_tensor(node)) for node in graph.node)
        self.stored |= {node.output[0]: tensor for node, tensor in constants if tensor is not None}
        self.makers = {name: node for node in graph.node for name in node.output}
        self.names = {*self.stored, *(value.name for value in graph.input)}
        self.names |= self.makers.keys()
        self.readers = {}
        for node in graph.node:
            for name in operands_of(node):
                self.readers.setdefault(name, []).append(node)

    def try_rule(self, rule: Rule, call: Call) -> bool:
        """Writes what stands for a node. Returns False, and writes nothing, where the rule does not fit it."""
        count = len(self.nodes)
        try:
            if rule(self, call):
                return True
        except (ValueError, TypeError, IndexError, KeyError, ArithmeticError):  # operands that make no sense
            pass
        del self.nodes[count:]
        return False

    def node(self, op_type: str, inputs: Sequence[str], output: str = "", label: str = "", **attributes: Any) -> str:
        """Appends a node of the standard; returns the name of its output."""
        name = output or free_name(f"{inputs[0] if inputs else op_type}:{op_type.lower()}", self.names)
        operands = list(inputs)
        while operands and not operands[-1]:
            operands.pop()
        self.nodes.append(onnx.helper.make_node(op_type, operands, [name], name=label, **attributes))
        return name

    def tensor(self, base_name: str, array: Array) -> str:
        """Appends a stored tensor, which is no parameter; returns its name."""
        name = free_name(base_name, self.names)
        tensor = numpy_helper.from_array(np.asarray(array, order="C"), name)
        self.tensors.append(tensor)
        self.stored[name] = tensor
        self.scales.add(name)
        return name

    def real(self, operand: str, scale: str, zero: str, axis: int | None = None) -> str:
        """Adds the real numbers that integers stand for, and returns their name."""
        if axis is None:
            return self.node("DequantizeLinear", [operand, scale, zero])
        return self.node("DequantizeLinear", [operand, scale, zero], axis=axis)

    def array(self, name: str) -> Array | None:
        """A tensor that the file stores; None for what is computed, and for what lies in a data file."""
        tensor = self.stored.get(name)
        if tensor is None or tensor.data_location == tensor.EXTERNAL:
            return None
        return np.asarray(numpy_helper.to_array(tensor))

    def stored_bytes(self, name: str) -> Array | None:
        """A stored tensor whose elements have eight bits or fewer; None for others."""
        array = self.array(name)
        return array if array is not None and array.dtype.itemsize == 1 and array.dtype != np.bool_ else None

    def chain_behind(self, name: str) -> tuple[list[Any], list[Any]] | None:
        """Nodes that combine whole numbers with others, from a product on, and the Casts that make them real.

        None where another node reads them.
        """
        pending, visited, combining, casts = [name], set[str](), list[Any](), list[Any]()
        while pending:
            value = pending.pop()
            if value in visited:  # on two ways, or in a circle, which the import refuses
                continue
            visited.add(value)
            for node in self.readers.get(value, []):
                if node.op_type == "Cast":
                    casts.append(node)
                elif node.op_type in _COMBINING:
                    combining.append(node)
                    pending += node.output
                else:
                    return None
        return combining, casts

    def scaling_behind(self, gather: Call) -> list[tuple[Any, list[str]]]:
        """Nodes, one behind another, that make gathered rows real, and scale or shift them, by stored numbers.

        Each with what it reads of the whole table: one number for all, or one that is gathered by the same indices.
        """
        steps: list[tuple[Any, list[str]]] = []
        name = gather.node.output[0]
        results = {value.name for value in self.graph.output}
        while name not in results and len(readers := self.readers.get(name, [])) == 1:
            node = readers[0]
            if node.op_type not in (("Mul", "Sub") if steps else ("Cast", "DequantizeLinear")):
                break
            if node.op_type == "Cast" and Call(node).attributes["to"] != onnx.TensorProto.FLOAT:
                break
            operands = ["" if operand == name else self._of_table(operand, gather) for operand in node.input]
            if operands.count("") != 1 or any(node is step for step, _ in steps):  # a circle, which the import refuses
                break
            steps.append((node, operands))
            name = node.output[0]
        return steps

    def _of_table(self, name: str, gather: Call) -> str:
        """A stored number, or the tensor whose rows a value holds as a table's are gathered; else empty."""
        array = self.array(name)
        if array is not None:
            return name if array.size == 1 else ""
        maker = self.makers.get(name)
        if maker is None or maker.op_type != "Gather" or maker.input[1] != gather.input(1):
            return ""
        table = str(maker.input[0])
        return table if Call(maker).attributes == gather.attributes and self.array(table) is not None else ""

    def make_real(self, combining: Sequence[Any], product: str, scale: str) -> None:
        """Makes nodes combine reals: what joins a product as a term is cast, and scaled as the product is."""
        results = {product, *(output for node in combining for output in node.output)}
        for node in combining:
            steps = self.before.setdefault(node.output[0], [])
            for place, operand in enumerate(node.input):
                if operand in results or node.op_type == "Reshape":
                    continue
                node.input[place] = free_name(f"{operand}:cast", self.names)
                steps.append(onnx.helper.make_node("Cast", [operand], [node.input[place]], to=onnx.TensorProto.FLOAT))
                if scale and node.op_type in ("Add", "Sub"):
                    whole, node.input[place] = node.input[place], free_name(f"{operand}:scaled", self.names)
                    steps.append(onnx.helper.make_node("Mul", [whole, scale], [node.input[place]]))

    def product(self, a: str, b: str) -> str:
        """a times b: stored if both are."""
        arrays = self.array(a), self.array(b)
        if arrays[0] is None or arrays[1] is None:
            return self.node("Mul", [a, b])
        return self.tensor(f"{b}:product", np.asarray(arrays[0].reshape(()) * arrays[1], np.float32))

    def axis_of(self, scale: str, axis: int) -> int | None:
        """The axis along which a scale lies; None for one that is a single number."""
        array = self.array(scale)
        return None if array is None or array.size == 1 else axis
