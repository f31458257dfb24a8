"""Graphs as readable text and back.

    graph
      input %0: f32[8, 4]
      parameter %1: f32[4, 2] = sha256:…, name=fc.weight, file_shape=(2, 4), …
      constant %2: f32[] = (0.5)
      %3: f32[8, 2] = matmul(%0, %1){transpose_a=False, transpose_b=False} layer=fc, phase=forward
      output %3
      name %1 = fc.weight

Weights stand there by digest; `arrays_by_digest` keeps them, so that `parse_graph` gives the same graph to the bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.errors import InternalError
from compiler.graph import Array, Graph, Node, Parameter, TensorType, Unlearnable
from compiler.kernels.text import Reader, record, show, show_fields
from compiler.values import Value
from compiler.warnings import CompileWarning

INLINE_ELEMENTS = 8
"""Constants of up to so many elements are written out."""


def typed(value: Value, types: Mapping[Value, TensorType]) -> str:
    """A value in print with its type."""
    return f"{value}: {types[value]}"


def graph_text(graph: Graph) -> str:
    """The text of a graph."""
    return "\n".join(["graph", *(f"  {line}" for line in _lines(graph))]) + "\n"


def _lines(graph: Graph) -> Iterator[str]:
    used = {*graph.inputs, *graph.arrays, *(value for node in graph.nodes for value in node.outputs)}
    yield from (f"input {typed(value, graph.types)}" for value in graph.inputs)
    for value, array in graph.arrays.items():
        parameter, elements = graph.parameters.get(value), _array_text(array, graph.types[value])
        kind, rest = ("constant", "") if parameter is None else ("parameter", f", {show_fields(parameter)}")
        yield f"{kind} {typed(value, graph.types)} = {elements}{rest}"
    for node in graph.nodes:
        outputs = ", ".join(typed(value, graph.types) for value in node.outputs)
        attrs = ", ".join(f"{name}={show(value)}" for name, value in node.attrs.items())
        rest = show_fields(node, leave_out=("op", "inputs", "outputs", "attrs"))
        operands = ", ".join(map(str, node.inputs))
        yield f"{outputs} = {node.op}({operands}){f'{{{attrs}}}' if attrs else ''} {rest}".rstrip()
    yield from (f"output {value}" for value in graph.outputs)
    yield from (f"unused {typed(value, graph.types)}" for value in graph.types if value not in used)
    yield from (f"name {value} = {show(name)}" for value, name in graph.names.items())
    yield from [f"numbers {graph.next_number}"] if graph.next_number else []
    yield from (f"unlearnable {show((name,))} {show_fields(details)}" for name, details in graph.unlearnable.items())
    yield from (f"warning {show_fields(warning)}" for warning in graph.warnings)


def digest_of(array: Array) -> str:
    """`sha256:<hex>` of an array's type, shape and bytes."""
    head = f"{array.dtype.str}{array.shape}".encode()
    return f"sha256:{hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()}"


def arrays_by_digest(graph: Graph) -> dict[str, Array]:
    """Returns the arrays that `parse_graph` needs beside the text."""
    return {digest_of(array): array for array in graph.arrays.values()}


def _array_text(array: Array, tensor: TensorType) -> str:
    """A small array's elements where they are exact in print, else its digest."""
    if array.size <= INLINE_ELEMENTS:
        elements = tuple(_plain(element) for element in array.reshape(-1))
        parsed = _array_of(elements, tensor)
        if parsed is not None and digest_of(parsed) == digest_of(array):
            return show(elements)
    return show(digest_of(array))


def _plain(element: Any) -> int | float | bool:
    return float(str(element)) if element.dtype.kind == "f" else element.item()


def _array_of(elements: tuple[Any, ...], tensor: TensorType) -> Array | None:
    array = np.asarray(elements, tensor.element.numpy)
    return array.reshape(tensor.shape) if array.size == tensor.size else None


def parse_graph(text: str, arrays: Mapping[str, Array]) -> Graph:
    """The graph whose text this is, with arrays by digest.

    Raises: InternalError naming the line that cannot be read.
    """
    parsed = _ParsedGraph(arrays)
    parse_lines(text, "graph", parsed.line)
    return Graph(
        tuple(parsed.nodes),
        tuple(parsed.inputs),
        tuple(parsed.outputs),
        parsed.types,
        parsed.arrays_by_value,
        parsed.parameters,
        parsed.names,
        parsed.next_number,
        parsed.unlearnable,
        tuple(parsed.warnings),
    )


def parse_lines(text: str, head: str, line: Callable[[Reader], None]) -> None:
    """Passes every line after the first, which is `head`, on to `line`. Raises: InternalError naming a line that cannot
    be read.
    """
    first, *rest = text.rstrip("\n").split("\n")
    if first != head:
        raise InternalError(f"the first line should be {head!r}, it is {first!r:.80}", where="line 1")
    for number, content in enumerate(rest, 2):
        try:
            reader = Reader(content, Value.parse)
            line(reader)
            reader.end()
        except (ValueError, TypeError, KeyError, StopIteration, InternalError) as problem:
            raise InternalError(f"{content.strip()!r:.80} cannot be read: {problem}", where=f"line {number}") from None


def read_value(reader: Reader) -> Value:
    """A value. Raises: ValueError if something else stands there."""
    parsed = reader.value()
    if not isinstance(parsed, Value):
        raise ValueError(f"{parsed!r:.80} is not a value")
    return parsed


def read_name(reader: Reader, names: dict[Value, str]) -> None:
    """`%0 = x`: what the model calls a value."""
    value = read_value(reader)
    reader.expect("=")
    names[value] = str(reader.value())


def read_typed(reader: Reader, types: dict[Value, TensorType]) -> Value:
    """A value with its type, which `types` takes."""
    value = read_value(reader)
    reader.expect(":")
    tensor: Any = reader.value()
    types[value] = tensor
    return value


def read_outputs(reader: Reader, types: dict[Value, TensorType]) -> tuple[Value, ...]:
    """`%a: f32[4], %b: f32[4] =`."""
    outputs = [read_typed(reader, types)]
    while reader.took(","):
        outputs.append(read_typed(reader, types))
    reader.expect("=")
    return tuple(outputs)


@dataclass(slots=True)
class _ParsedGraph:
    """The content of the lines so far."""

    arrays: Mapping[str, Array]
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    types: dict[Value, TensorType] = field(default_factory=dict)
    arrays_by_value: dict[Value, Array] = field(default_factory=dict)
    parameters: dict[Value, Parameter] = field(default_factory=dict)
    names: dict[Value, str] = field(default_factory=dict)
    next_number: int = 0
    unlearnable: dict[str, Unlearnable] = field(default_factory=dict)
    warnings: list[CompileWarning] = field(default_factory=list)

    def line(self, reader: Reader) -> None:
        """Reads one line of the graph's text."""
        if reader.kind == "value":
            self.nodes.append(self._node(reader))
        elif reader.took("input"):
            self.inputs.append(read_typed(reader, self.types))
        elif reader.took("parameter"):
            value = self._array(reader)
            reader.expect(",")
            self.parameters[value] = _record(Parameter, reader)
        elif reader.took("constant"):
            self._array(reader)
        elif reader.took("output"):
            self.outputs.append(read_value(reader))
        elif reader.took("unused"):
            read_typed(reader, self.types)
        elif reader.took("name"):
            read_name(reader, self.names)
        elif reader.took("numbers"):
            self.next_number = int(str(reader.value()))
        elif reader.took("unlearnable"):
            (name,) = reader.values(")") if reader.took("(") else ("",)
            self.unlearnable[name] = _record(Unlearnable, reader)
        else:
            reader.expect("warning")
            self.warnings.append(_record(CompileWarning, reader))

    def _node(self, reader: Reader) -> Node:
        outputs = read_outputs(reader, self.types)
        op = reader.take()[1]
        reader.expect("(")
        inputs = reader.values(")")
        attrs = reader.fields("}") if reader.took("{") else {}
        rest: Any = reader.rest()
        return Node(op, inputs, outputs, attrs, **rest)  # type: ignore[arg-type]

    def _array(self, reader: Reader) -> Value:
        value = read_typed(reader, self.types)
        reader.expect("=")
        content: Any = reader.value()
        array = self.arrays[content] if isinstance(content, str) else _array_of(content, self.types[value])
        if array is None:
            raise ValueError(f"{len(content)} elements are no {self.types[value]}")
        self.arrays_by_value[value] = array
        return value


def _record(kind: type, reader: Reader) -> Any:
    return record(kind, reader.rest())
