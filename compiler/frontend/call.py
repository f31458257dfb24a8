"""An ONNX node as an import row sees it: operands, attributes, and the means to append graph nodes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from typing import Literal, NoReturn

import numpy as np

from compiler.element_types import ELEMENT_TYPES
from compiler.errors import ModelError, ModelShapeError, UnsupportedOperator
from compiler.frontend.file.source import AttributeValue, SourceNode
from compiler.frontend.scope import KnownOperand, Operand, Scope
from compiler.graph import Array, AttrValue
from compiler.values import Value

Result = Operand | tuple[Operand | None, ...]
Rule = Callable[["Call"], Result]
"""An import row's function: it appends nodes to the call's scope and returns the ONNX node's output(s)."""


class Attributes:
    """The attributes of one ONNX node, read one by one so that what nobody read can be refused."""

    def __init__(self, node: SourceNode) -> None:
        self._node = node
        self._read: list[str] = []

    def _get(self, name: str) -> AttributeValue | None:
        self._read.append(name)
        return self._node.attributes.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._node.attributes

    def ignore(self, *names: str) -> None:
        """Attributes that do not change the meaning."""
        self._read += names

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self._get(name)
        return default if value is None else value if isinstance(value, int) else self._wrong(name, "an integer")

    def number(self, name: str, default: float) -> float:
        """A float attribute."""
        value = self._get(name)
        if value is None:
            return default
        return float(value) if isinstance(value, float | int) else self._wrong(name, "a number")

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        value = self._get(name)
        return default if value is None else value if isinstance(value, str) else self._wrong(name, "a text")

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list of integers, or None if it is left out."""
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, tuple):
            self._wrong(name, "a list of integers")
        numbers = tuple(item for item in value if isinstance(item, int))
        return numbers if len(numbers) == len(value) else self._wrong(name, "a list of integers")

    def tensor(self, name: str) -> Array | None:
        """A tensor attribute, or None."""
        value = self._get(name)
        return value if value is None or isinstance(value, np.ndarray) else self._wrong(name, "a tensor")

    def raw(self, name: str) -> AttributeValue | None:
        """An attribute of any type, or None."""
        return self._get(name)

    def unread(self) -> str:
        """The first attribute that no one read, or an empty text."""
        return next((name for name in self._node.attributes if name not in self._read), "")

    def _wrong(self, name: str, expected: str) -> NoReturn:
        raise ModelError(f"attribute {name!r} must be {expected}", where=self._node.where)


class Call:
    """An ONNX node that is being imported. Methods that read operands raise a ModelError naming the node."""

    def __init__(self, scope: Scope, node: SourceNode, opset: int) -> None:
        self.scope = scope
        self.node = node
        self.opset = opset
        self.attributes = Attributes(node)
        self.operands: tuple[Operand | None, ...] = tuple(
            scope.operands[name] if name else None for name in node.inputs
        )

    # ----------------------------------------------------------------------------------------------------- operands

    def has(self, index: int) -> bool:
        """Whether input `index` is given."""
        return index < len(self.operands) and self.operands[index] is not None

    def operand(self, index: int) -> Operand:
        """Input `index`, known or not."""
        operand = self.operands[index] if index < len(self.operands) else None
        return self.fail(f"input {index} is missing") if operand is None else operand

    def known_operand(self, index: int) -> KnownOperand | None:
        """Input `index` if its elements are known at compile time, else None (also if it is left out)."""
        operand = self.operands[index] if index < len(self.operands) else None
        return operand if isinstance(operand, KnownOperand) else None

    def array(self, index: int, meaning: str) -> Array:
        """The elements of input `index`, which must be known. Raises: UnsupportedOperator if they are not."""
        operand = self.operand(index)
        if isinstance(operand, KnownOperand):
            self.scope.bake(operand, self.node.where)
            return operand.array
        return self.unsupported(
            f"{meaning} (input {self.node.inputs[index]!r}) is only known at run time",
            "bind the input shapes in the spec, or export with static shapes",
        )

    def integers(self, index: int, meaning: str) -> tuple[int, ...]:
        """The elements of input `index` as integers."""
        array = self.array(index, meaning)
        if array.dtype.kind not in "iu" or array.ndim > 1:
            self.fail(f"{meaning} must be a list of integers, is {array.dtype}{list(array.shape)}")
        return tuple(int(item) for item in array.reshape(-1))

    def value(self, index: int) -> Value:
        """Input `index` as a graph value."""
        return self.scope.value(self.operand(index))

    def shape(self, index: int) -> tuple[int, ...]:
        """Shape of input `index`."""
        return self.scope.shape(self.operand(index))

    def rank(self, index: int) -> int:
        """Rank of input `index`."""
        return len(self.shape(index))

    def dtype(self, index: int) -> str:
        """Element type of input `index`."""
        return self.scope.dtype(self.operand(index))

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front. Raises: ModelShapeError outside [-rank, rank)."""
        if not -rank <= axis < rank:
            raise ModelShapeError(f"axis {axis} of a tensor of rank {rank}", where=self.node.where)
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Distinct axes counted from the front, sorted."""
        normalized = sorted({self.axis(axis, rank) for axis in axes})
        if len(normalized) != len(axes):
            raise ModelShapeError(f"axes {list(axes)} repeat", where=self.node.where)
        return tuple(normalized)

    def axes_in_order(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Distinct axes counted from the front, in the given order."""
        self.axes(axes, rank)
        return tuple(axis % rank for axis in axes)

    def parameter_input(self, index: int, kind: Literal["weight", "bias"]) -> Value:
        """Input `index` as a graph value; a float initializer becomes a parameter of that kind whatever its size."""
        constant = self.known_operand(index)
        if constant is None or not constant.source:
            return self.value(index)
        return self.scope.parameter(constant, range(constant.array.ndim), kind=kind)

    # ---------------------------------------------------------------------------------------------------- appending

    def emit(self, op: str, *inputs: Value, **attrs: AttrValue) -> Value:
        """Appends a graph node and returns its output."""
        return self.scope.emit(op, *inputs, **attrs)

    def constant(self, array: Array) -> Value:
        """A constant of the graph."""
        return self.scope.constant(array)

    def scalar(self, value: float, like: Value) -> Value:
        """A rank-0 constant with the element type of the graph value `like`."""
        return self.constant(np.asarray(value, ELEMENT_TYPES[self.scope.builder.types[like].dtype].numpy))

    def shape_of(self, value: Value) -> tuple[int, ...]:
        """Shape of a graph value."""
        return self.scope.builder.shape(value)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Reshapes a value; returns the value itself if it has that shape."""
        return value if self.shape_of(value) == tuple(shape) else self.emit("reshape", value, shape=tuple(shape))

    def transpose(self, value: Value, perm: Sequence[int]) -> Value:
        """Transposes a value; returns the value itself if nothing moves."""
        return value if tuple(perm) == tuple(range(len(perm))) else self.emit("transpose", value, perm=tuple(perm))

    def cut(self, value: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
        """value[..., start:stop:step, ...] along one axis, or the value itself if that is all of it."""
        shape = self.shape_of(value)
        if (start, stop, step) == (0, shape[axis], 1):
            return value
        starts, stops, steps = [0] * len(shape), list(shape), [1] * len(shape)
        starts[axis], stops[axis], steps[axis] = start, stop, step
        return self.emit("slice", value, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))

    def to_last(self, value: Value, axis: int) -> Value:
        """Moves one axis to the end."""
        rank = len(self.shape_of(value))
        return self.transpose(value, [*(i for i in range(rank) if i != axis), axis])

    def from_last(self, value: Value, axis: int) -> Value:
        """Moves the last axis to position `axis`."""
        rank = len(self.shape_of(value))
        order = list(range(rank - 1))
        order.insert(axis, rank - 1)
        return self.transpose(value, order)

    # ------------------------------------------------------------------------------------------------------ refusing

    def fail(self, problem: str, hint: str = "") -> NoReturn:
        """The model contradicts ONNX here."""
        raise ModelError(problem, where=self.node.where, hint=hint)

    def unsupported(self, problem: str, hint: str = "") -> NoReturn:
        """Valid ONNX that we have no rule for."""
        raise UnsupportedOperator(problem, where=self.node.where, hint=hint)

    def only_outputs(self, count: int) -> None:
        """Refuses a node if its later, optional outputs are wanted."""
        extra = [name for name in self.node.outputs[count:] if name]
        if extra:
            self.unsupported(f"its optional output {extra[0]!r} is not supported", "export the model for inference")

    def require_dtype(self, index: int, allowed: Collection[str]) -> None:
        """Refuses an operand of another element type."""
        dtype = self.dtype(index)
        if dtype not in allowed:
            self.unsupported(
                f"input {self.node.inputs[index]!r} has type {dtype}, supported: {', '.join(sorted(allowed))}",
                "export the model in float32" if dtype.startswith(("float", "bfloat", "uint", "int")) else "",
            )


def closest(op_type: str, names: Collection[str]) -> str:
    """A hint naming the most similar supported operator, or nothing."""
    near = difflib.get_close_matches(op_type, names, n=1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near else ""
