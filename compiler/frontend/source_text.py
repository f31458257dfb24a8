"""A model's file before the import, as readable text: what the source passes leave.

source opset 18 of pytorch, changed by restore_parameters
  input x: float[N, 8]
  parameter fc.weight: float32[16, 8]
  constant shape: int64[2]
  y = Gemm(x, fc.weight, fc.bias){transB=1} layer=fc
  output y
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from compiler.element_types import holds_reals
from compiler.frontend.file.source import (
    AttributeValue,
    Body,
    Reference,
    SourceInput,
    SourceModel,
    SourceNode,
    type_label,
)
from compiler.frontend.source_passes import Source
from compiler.kernels.text import show, show_fields


def source_text(source: Source) -> str:
    """The text of a model as its author meant it, after the names of the passes that changed it."""
    model = source.intended
    origin = f" of {show(model.producer)}" if model.producer else ""
    passes = f", changed by {', '.join(source.changed_by)}" if source.changed_by else ""
    return "\n".join([f"source opset {model.opset}{origin}{passes}", *(f"  {line}" for line in _lines(model))]) + "\n"


def _lines(model: SourceModel) -> Iterator[str]:
    yield from (f"input {_input_text(value)}" for value in model.inputs)
    for name, array in model.initializers.items():
        learns = holds_reals(array) and name not in model.constants
        created = " created" if name in model.created else ""
        yield f"{'parameter' if learns else 'constant'} {show(name)}: {array.dtype}{list(array.shape)}{created}"
    yield from map(_node_text, model.nodes)
    yield from (f"output {show(name)}" for name in model.outputs)
    yield from (f"unlearnable {show(name)}: {reason}" for name, reason in model.unlearnable.items())
    yield from (f"warning {show_fields(warning)}" for warning in model.warnings)


def _input_text(value: SourceInput) -> str:
    shape = " of any shape" if value.shape is None else f"[{', '.join(str(extent or '?') for extent in value.shape)}]"
    return f"{show(value.name)}: {type_label(value.element_type)}{shape}"


def _node_text(node: SourceNode) -> str:
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    attributes = ", ".join(f"{name}={_attribute_text(value)}" for name, value in node.attributes.items())
    call = f"{operator}({', '.join(map(show, node.inputs))}){f'{{{attributes}}}' if attributes else ''}"
    return f"{', '.join(map(show, node.outputs))} = {call} layer={show(node.name)}"


def _attribute_text(value: AttributeValue) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, Body):
        return f"<{len(value.nodes)} nodes: {', '.join(node.op_type for node in value.nodes)}>"
    return value.name if isinstance(value, Reference) else show(value)
