"""Files in float16, bfloat16 or float64 as float32 ones, which is what a step computes in.

Rewrites: initializers, constants, inputs and casts of another real type -> float32. Requires for float64: an input, a
weight or a cast of data to that type, else it is only a step on the way that is known at compile time. Ensures: what is
said of it is one warning; the trained file holds its own type again (`compiler/trained/stored.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx

from compiler.frontend.file.source import AttributeValue, Body, SourceModel, SourceNode, type_label
from compiler.graph import Array
from compiler.warnings import CompileWarning

_FLOAT = int(onnx.TensorProto.FLOAT)
_HALVES = frozenset({int(onnx.TensorProto.FLOAT16), int(onnx.TensorProto.BFLOAT16)})
_DOUBLE = int(onnx.TensorProto.DOUBLE)
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "stash_type")


def read_as_float32(source: SourceModel) -> SourceModel:
    """The model with float32 in place of other real types; unchanged if it has no others."""
    others = set(_types(source))
    if not others:
        return source
    nodes = tuple(_node(node, others) for node in source.nodes)
    inputs = tuple(
        replace(value, element_type=_FLOAT) if value.element_type in others else value for value in source.inputs
    )
    initializers = {name: _array(array, others) for name, array in source.initializers.items()}
    names = " and ".join(sorted(map(type_label, others)))
    warning = CompileWarning(
        "model.real_type",
        "model",
        f"is in {names}, and is read and trained as float32; the trained file holds {names} again",
        "give data as float32 or as the file has it",
    )
    return replace(source, nodes=nodes, inputs=inputs, initializers=initializers, warnings=(*source.warnings, warning))


def _types(source: SourceModel) -> Iterator[int]:
    """ONNX's numbers of the real types, other than float32, that the file is in."""
    for code in (
        *(value.element_type for value in source.inputs),
        *(_code(array) for array in source.initializers.values() if array.size > 1),
        *_types_of(source.nodes),
        *_casts_of_data(source),
    ):
        if code in _HALVES or code == _DOUBLE:
            yield code


def _types_of(nodes: tuple[SourceNode, ...]) -> Iterator[int]:
    """Yields the types of casts and constants, except float64, which is also used where shapes are computed."""
    for node in nodes:
        for name, value in node.attributes.items():
            if isinstance(value, Body):
                yield from _types_of(value.nodes)
            code = _code(value) if isinstance(value, np.ndarray) else value if name in _TYPE_ATTRIBUTES else 0
            if isinstance(code, int) and code != _DOUBLE:
                yield code


def _casts_of_data(source: SourceModel) -> Iterator[int]:
    """Types that values of the model's inputs are cast to; shapes, which a file may compute in float64, are no data."""
    data = {value.name for value in source.inputs}
    for node in source.nodes:
        if node.op_type not in ("Shape", "Size") and not data.isdisjoint(node.inputs):
            data.update(node.outputs)
            if node.op_type == "Cast" and isinstance(code := node.attributes.get("to"), int):
                yield code


def _code(array: Array) -> int:
    try:
        return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
    except (KeyError, ValueError):
        return 0


def _array(array: Array, others: Collection[int]) -> Array:
    return array.astype(np.float32) if _code(array) in others else array


def _node(node: SourceNode, others: Collection[int]) -> SourceNode:
    return replace(node, attributes=_attributes(node.attributes, others))


def _attributes(attributes: Mapping[str, AttributeValue], others: Collection[int]) -> dict[str, AttributeValue]:
    changed = dict(attributes)
    for name, value in attributes.items():
        if isinstance(value, Body):
            changed[name] = replace(value, nodes=tuple(_node(node, others) for node in value.nodes))
        elif isinstance(value, np.ndarray):
            changed[name] = _array(value, others)
        elif name in _TYPE_ATTRIBUTES and isinstance(value, int) and value in others:
            changed[name] = _FLOAT
    return changed
