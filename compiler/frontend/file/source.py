"""The content of an ONNX file as plain typed records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

from compiler.element_types import ELEMENT_TYPES
from compiler.frontend.file.torch_record import NO_CALL, TorchCall, TorchRecord
from compiler.graph import Array
from compiler.warnings import CompileWarning

OLDEST_OPSET = 7
"""The oldest supported version of the operator set: older ones have other rules of broadcasting."""
OPSETS = range(13, 29)
"""The versions of the operator set in which the import reads nodes; older ones are written anew. Up to the newest that
the `onnx` package knows, whose own cases the tests run; ONNX Runtime may know fewer.
"""
NEAREST_OF_OPSET_10 = "of opset 10"
"""A Resize's nearest element in files that do not say it: as ONNX Runtime, rounded up along axes that shrink."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute inside a function that takes the value of the function's attribute `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Body:
    """A sub-graph of a node, or what a function consists of: nodes that read nothing but names of the body itself.

    What a sub-graph reads from around it, its node has as further inputs: `captured` says which input each is.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[SourceNode, ...]
    captured: Mapping[str, int] = field(default_factory=dict)


AttributeValue = int | float | str | Array | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Body | Reference


@dataclass(frozen=True, slots=True)
class SourceNode:
    """An ONNX node; `inputs` holds "" where an optional input is left out."""

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    module: str = ""
    """Path of the PyTorch module that it came from (`encoder.layer.0.query`), if the exporter tells."""
    torch_op: str = ""
    """The PyTorch operator that it came from (`aten.linear.default`), if the exporter tells."""
    module_class: str = ""
    """Class of that module (`torch.nn.modules.linear.Linear`), if the exporter tells."""
    call: TorchCall = NO_CALL
    """The operator's call in the exported program, if the exporter records it."""
    domain: str = ""
    """The function's domain for a call of a model-local function; empty for the standard's operators."""
    opset: int = 0
    """Version of the standard that it is written in; 0: the model's."""
    tensor: str = ""
    """The name that a Constant's tensor has in the whole file."""
    stored_type: str = ""
    """The file's name for the operator, where a later version has another name for it."""
    evaluates: bool = False
    """Marked as in evaluation mode, whatever a spec says (`compiler.frontend.file.modes`)."""

    def operand(self, index: int) -> str:
        """Name of input `index`, or an empty text if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    @property
    def where(self) -> str:
        """Returns how error messages name the node."""
        return f"node {self.name!r} ({self.stored_type or self.op_type})"


@dataclass(frozen=True, slots=True)
class SourceInput:
    """A graph input: ONNX element type and, per axis, a fixed extent, a symbol, or None (nothing said)."""

    name: str
    element_type: int
    shape: tuple[int | str | None, ...] | None
    has_new_axis: bool = False
    """Its first axis is not in the file: the spec gives it one for a sample."""


@dataclass(frozen=True, slots=True)
class Function:
    """A model-local function: its body, the values of attributes that a call leaves out, its standard's version."""

    body: Body
    defaults: Mapping[str, AttributeValue]
    opset: int


@dataclass(frozen=True, slots=True)
class SourceModel:
    """An ONNX model, parsed.

    The fields after `record` are what the frontend found out about its initializers before the import.
    """

    opset: int
    nodes: tuple[SourceNode, ...]
    inputs: tuple[SourceInput, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Array]
    producer: str = ""
    record: TorchRecord | None = None
    functions: Mapping[tuple[str, str], Function] = field(default_factory=dict)
    """(domain, name) -> function, until they are put in place."""
    eight_bits: Mapping[str, int] = field(default_factory=dict)
    """Constants that the file stores in eight bits and scales, with their elements."""
    constants: frozenset[str] = frozenset()
    """Float initializers that are no parameters: buffers, and what an exporter computed."""
    created: frozenset[str] = frozenset()
    """Initializers that the file does not hold: an exporter dropped them, or a plan asks for them."""
    new_biases: tuple[str, ...] = ()
    """Missing initializers that are biases which the author's model does not have either."""
    normed: frozenset[str] = frozenset()
    """Weights that an exporter folded norms into, of files that tell no more than that."""
    unlearnable: Mapping[str, str] = field(default_factory=dict)
    """Parameter of the author's module -> why it cannot learn from this file."""
    warnings: tuple[CompileWarning, ...] = ()

    def value_names(self) -> set[str]:
        """Returns every name that a value has."""
        outputs = (name for node in self.nodes for name in node.outputs if name)
        return {*self.initializers, *(value.name for value in self.inputs), *outputs}

    def readers(self, *, with_outputs: bool = False) -> dict[str, list[SourceNode]]:
        """Value -> the nodes that read it, each once, in order; an output of the model has one outside of it."""
        readers: dict[str, list[SourceNode]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                readers.setdefault(name, []).append(node)
        for name in self.outputs if with_outputs else ():
            readers.setdefault(name, []).append(SourceNode("output", "output", (name,), ()))
        return readers


def type_label(code: int) -> str:
    """Returns the usual name of an element type of ONNX; some have no NumPy type."""
    label = next((row.label for row in ELEMENT_TYPES.values() if row.onnx == code), "")
    names = onnx.TensorProto.DataType
    return label or (names.Name(code).lower() if code in names.values() else f"number {code}")


def free_name(base_name: str, names: set[str]) -> str:
    """Returns a name that no value has, and adds it to `names`: the wanted name, or that name with a numbered mark.

    The search bisects, so that thousands of values with the same wanted name cost the logarithm of their number each.
    """

    def marked(number: int) -> str:
        return base_name + ("", "'")[number] if number < 2 else f"{base_name}'{number}"

    used, free = -1, 0
    while marked(free) in names:
        used, free = free, max(1, 2 * free)
    while free - used > 1:
        middle = (used + free) // 2
        used, free = (middle, free) if marked(middle) in names else (used, middle)
    names.add(marked(free))
    return marked(free)
