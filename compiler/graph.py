"""The intermediate representation: a small, typed, immutable dataflow graph.

A `Graph` is a list of nodes in topological order over values (`compiler.values`) in single-assignment form. Layouts are
plain: images are NHWC inside the compiler, matrices row-major, every value contiguous.
A pass is a pure function from a graph to another and what it did (`compiler.rewriting.passes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

import numpy as np

from compiler.origins import Origins
from compiler.tensors import Array as Array
from compiler.tensors import TensorType as TensorType
from compiler.values import Names, Value, name_of
from compiler.warnings import CompileWarning

Phase = Literal["forward", "backward", "update"]
AttrValue = int | float | str | bool | tuple[int, ...] | tuple[float, ...]
Attrs = Mapping[str, AttrValue]


@dataclass(frozen=True, slots=True)
class Node:
    """An application of an operator record (see `compiler.ops`) to values."""

    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attrs: Attrs = field(default_factory=dict)
    layer: str = ""
    """Name of the ONNX node this came from; error messages and per-kernel tables show it."""
    phase: Phase = "forward"
    parameter: str = ""
    """Name of the parameter whose gradient or update this makes, if it is made for one alone."""

    @property
    def output(self) -> Value:
        """The only output of a single-output node."""
        (value,) = self.outputs
        return value


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor of the model that may change, and how it is stored inside: one that learns, or a buffer.

    A buffer is updated by the step and does not learn: running statistics.

    The file (ONNX, safetensors) holds `file_shape`; the compiler holds
    `file.reshape(view_shape).transpose(perm)`. `view_shape` only ever splits or drops unit axes, so both hold the
    same elements. Example: a 1x1 conv weight [O, I, 1, 1] is viewed as [O, I] and stored [I, O] (perm (1, 0)).
    Where channels were put in another order, `orders` says along each inside axis which of the file's stands where.
    """

    name: str
    file_shape: tuple[int, ...]
    view_shape: tuple[int, ...]
    perm: tuple[int, ...]
    kind: Literal["weight", "bias", "buffer"]
    layer: str
    """Name of the ONNX node that consumes it."""
    channel_axis: int | None = None
    """Axis of the *inside* shape along which a plan's channel ratio slices (input channels); None: whole only."""
    created: bool = False
    """True for a zero bias that the exporter dropped and we created."""
    orders: tuple[tuple[int, ...], ...] = ()
    """The file's channel at each place, for each inside axis; empty for an axis, or for all, in the file's order."""
    fixed: str = ""
    """Why presets leave it as it is, if they do: its elements are no weights. A rule that names it lets it learn."""
    parted: int | None = None
    """An inside axis that is one with the next where no channels are chosen; optimizer state is kept so in files."""

    @property
    def may_learn(self) -> bool:
        """Whether it is a parameter that may learn, and no buffer."""
        return self.kind != "buffer"

    @property
    def shape(self) -> tuple[int, ...]:
        """The inside shape."""
        return tuple(self.view_shape[axis] for axis in self.perm)

    @property
    def size(self) -> int:
        """Returns how many elements it has, in whatever form a step holds them."""
        return prod(self.file_shape)

    def to_inside(self, array: Array) -> Array:
        """File layout -> inside layout: a view where it can be, whose elements may lie in another order."""
        array = array.reshape(self.view_shape).transpose(self.perm)
        for axis, order in enumerate(self.orders):
            array = array.take(order, axis=axis) if order else array
        return np.asarray(array)

    def to_file(self, array: Array) -> Array:
        """Inside layout -> file layout, contiguous: a view of what lies so."""
        for axis, order in enumerate(self.orders):
            array = array.take(np.argsort(order), axis=axis) if order else array
        inverse = np.argsort(np.asarray(self.perm))
        return np.ascontiguousarray(array.transpose(inverse)).reshape(self.file_shape)


@dataclass(frozen=True, slots=True)
class Unlearnable:
    """Why a parameter cannot learn, and what its author can do about it."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Graph:
    """A typed dataflow graph.

    `inputs` are run-time inputs: data, and for random generators a seed and a step, whose role is `hyper`. Parameters
    (buffers among them) and constants are values too: a parameter's array is in `arrays`, in inside layout; every other
    entry of `arrays` is a constant. Every value that a node reads is an input, an array, or an output of an earlier
    node; `types` holds them all.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    types: Mapping[Value, TensorType]
    arrays: Mapping[Value, Array] = field(default_factory=dict)
    parameters: Mapping[Value, Parameter] = field(default_factory=dict)
    names: Names = field(default_factory=dict)
    """The model's names for its values, no two alike. Values that we made have no name."""
    next_number: int = 0
    """No value ever had this number or a higher one: fresh values begin here."""
    unlearnable: Mapping[str, Unlearnable] = field(default_factory=dict)
    """Parameter of the author's module -> why this file does not let it learn. It may not be in `parameters`."""
    warnings: tuple[CompileWarning, ...] = ()
    """Warnings of the import and later stages; every pass keeps them."""
    origins: Origins = field(default_factory=Origins)
    """The relation of the parameters to the tensors of the file; every pass keeps it."""
    batch_axes: Mapping[Value, int | None] = field(default_factory=dict)
    """The batch axes of inputs whose samples do not lie along the first axis; None for the same in every sample."""

    def with_nodes(self, nodes: Iterable[Node], types: Mapping[Value, TensorType] | None = None) -> Graph:
        """Returns the same graph with other nodes (and, if given, other types)."""
        return replace(self, nodes=tuple(nodes), types=self.types if types is None else types)

    def data_inputs(self) -> tuple[Value, ...]:
        """The inputs that hold data."""
        return tuple(value for value in self.inputs if value.role != "hyper")

    def batch_axis(self, value: Value) -> int | None:
        """The axis of an input that holds the samples; None if the input is the same for every sample."""
        return self.batch_axes.get(value, 0 if self.types[value].shape else None)

    def batch(self) -> int:
        """Samples of a step; 1 if no input holds samples."""
        axes = {value: self.batch_axis(value) for value in self.data_inputs()}
        return next((self.types[value].shape[axis] for value, axis in axes.items() if axis is not None), 1)

    def producers(self) -> dict[Value, Node]:
        """Value -> the node that makes it."""
        return {value: node for node in self.nodes for value in node.outputs}

    def consumers(self) -> dict[Value, list[Node]]:
        """Value -> the nodes that read it, in order, once per reading node."""
        readers: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                readers.setdefault(value, []).append(node)
        return readers

    def name_of(self, value: Value) -> str:
        """Returns the text that people read where the value is meant."""
        return name_of(value, self.names)

    def named_parameters(self) -> dict[str, Parameter]:
        """The parameters by their names, in the model's order: plans and specs speak of them so. Without buffers."""
        return {parameter.name: parameter for parameter in self.parameters.values() if parameter.may_learn}

    def buffers(self) -> tuple[str, ...]:
        """The names of the tensors that the step updates and that do not learn."""
        return tuple(parameter.name for parameter in self.parameters.values() if not parameter.may_learn)

    def value_called(self, name: str) -> Value:
        """The value that the model calls so. Raises: KeyError."""
        return {label: value for value, label in self.names.items()}[name]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)
