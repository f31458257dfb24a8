"""The description of an operator: one complete record, every field required.

A rule that is missing fails when the record is written, not in a user's run. Records are listed in
`compiler.ops`; generic tests check each field of each record against `evaluate` and finite differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from compiler.errors import InternalError, ModelShapeError
from compiler.graph import Array, Attrs, AttrValue, TensorType
from compiler.kernels.spec import KernelSpec
from compiler.ops.emitter import GradRule

Types = tuple[TensorType, ...]
OnnxAttribute = int | float | str | tuple[int, ...] | tuple[float, ...] | Array


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A node of the exported training graph; a `Constant` holds its array in `attributes["value"]`."""

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, OnnxAttribute] = field(default_factory=dict)
    domain: str = ""


@dataclass(frozen=True, slots=True)
class NamedNode:
    """A node of ours as a file refers to it: its values go by the names that they have there."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Attrs = field(default_factory=dict)

    @property
    def output(self) -> str:
        """The only output of a single-output node."""
        (name,) = self.outputs
        return name


class OnnxWriter:
    """Collects the ONNX nodes that one of our nodes becomes; intermediate names start with that node's output."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.nodes: list[OnnxNode] = []

    def add(self, op_type: str, *inputs: str, output: str | None = None, **attributes: OnnxAttribute) -> str:
        """Appends a single-output node and returns its output's name."""
        name = output if output is not None else f"{self._prefix}/{len(self.nodes)}"
        self.nodes.append(OnnxNode(op_type, inputs, (name,), attributes))
        return name

    def add_pair(self, op_type: str, *inputs: str, **attributes: OnnxAttribute) -> tuple[str, str]:
        """Appends a node with two outputs."""
        first, second = f"{self._prefix}/{len(self.nodes)}a", f"{self._prefix}/{len(self.nodes)}b"
        self.nodes.append(OnnxNode(op_type, inputs, (first, second), attributes))
        return first, second

    def ints(self, *values: int) -> str:
        """A constant i64 vector."""
        return self.add("Constant", value=np.asarray(values, np.int64))

    def scalar(self, value: float) -> str:
        """A constant f32 scalar."""
        return self.add("Constant", value=np.asarray(value, np.float32))


@dataclass(frozen=True, slots=True)
class View:
    """The lowering of an operator that only renames storage: the output shares its first input's bytes."""


@dataclass(frozen=True, slots=True)
class NotDifferentiable:
    """Why an operator has no gradient."""

    reason: str


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one application. Units: floating-point operations, bytes."""

    flops: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class Example:
    """Inputs for the generic tests: types, attributes, and per input how values are drawn.

    `values[i]`: "normal", "positive" (0.5 to 2), "unit" (0 to 1), "inner" (-0.9 to 0.9),
    "above one" (1.1 to 3), "apart" (all distinct, far from zero),
    "bool", "index:N" (integers below N), "whole:N" (whole numbers from -N to N), or "bytes:N" (i32 words of bytes
    below N). Missing entries mean "normal".
    """

    inputs: Types
    attrs: Attrs = field(default_factory=dict)
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator: everything that any stage needs to know of it."""

    name: str
    attributes: tuple[str, ...]
    infer: Callable[[Types, Attrs], Types]
    evaluate: Callable[[Sequence[Array], Attrs], tuple[Array, ...]]
    grad: GradRule | NotDifferentiable
    cost: Callable[[Types, Types, Attrs], Cost]
    lower: Callable[[Types, Types, Attrs], KernelSpec | View]
    to_onnx: Callable[[NamedNode, Mapping[str, TensorType]], Sequence[OnnxNode]]
    examples: tuple[Example, ...]
    in_place: Mapping[int, int] = field(default_factory=dict)
    """Output index -> input index whose storage it must take over (optimizer updates)."""


def elementwise_cost(flops_per_element: int) -> Callable[[Types, Types, Attrs], Cost]:
    """Cost of an operator that reads every input and writes every output once."""

    def cost(inputs: Types, outputs: Types, attrs: Attrs) -> Cost:
        return Cost(
            flops_per_element * max(t.size for t in outputs),
            sum(t.size_bytes for t in inputs),
            sum(t.size_bytes for t in outputs),
        )

    return cost


def reading_cost(flops_per_element: int) -> Callable[[Types, Types, Attrs], Cost]:
    """Cost of an operator whose work is proportional to its largest operand (reductions, normalisations)."""

    def cost(inputs: Types, outputs: Types, attrs: Attrs) -> Cost:
        return Cost(
            flops_per_element * max(t.size for t in (*inputs, *outputs)),
            sum(t.size_bytes for t in inputs),
            sum(t.size_bytes for t in outputs),
        )

    return cost


def ints(attrs: Attrs, name: str) -> tuple[int, ...]:
    """An attribute that is a tuple of integers."""
    value = attrs[name]
    if not isinstance(value, tuple):
        raise InternalError(f"attribute {name} should be a tuple, is {value!r}")
    return tuple(int(item) for item in value)


def integer(attrs: Attrs, name: str) -> int:
    """An attribute that is one integer."""
    return int(_scalar(attrs[name], name))


def number(attrs: Attrs, name: str) -> float:
    """An attribute that is one number."""
    return float(_scalar(attrs[name], name))


def flag(attrs: Attrs, name: str) -> bool:
    """An attribute that is true or false."""
    return bool(attrs[name])


def text(attrs: Attrs, name: str) -> str:
    """An attribute that is a string."""
    return str(attrs[name])


def _scalar(value: AttrValue, name: str) -> int | float | str:
    if isinstance(value, tuple):
        raise InternalError(f"attribute {name} should be a scalar, is {value!r}")
    return value


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy broadcasting. Raises: ModelShapeError if the shapes do not fit."""
    try:
        return tuple(int(extent) for extent in np.broadcast_shapes(*shapes))
    except ValueError:
        raise ModelShapeError(f"shapes {', '.join(map(str, shapes))} do not broadcast") from None
