"""Weights in Constant nodes, of the graph, of its branches and of functions: parameters like initializers.

Rewrites: a Constant that is a weight -> an initializer under the name of `stored_tensors`. Requires: a file without
PyTorch's record, which says itself what a parameter is; floats, more than one. Ensures: where the file holds other
tensors as initializers, a Constant is a weight only if an operator takes it where it takes weights, and its elements
differ (exporters fill operators that they need with ones and zeros); the others are literals of the author's. In a file
without such initializers all are weights, if any is. Why: some exporters write no initializers at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from compiler.element_types import holds_reals
from compiler.frontend.file.source import Body, SourceModel, SourceNode
from compiler.graph import Array
from compiler.warnings import CompileWarning, few_of

Quantized = Literal["frozen", "dequantize"]
"""The treatment of weights that a file stores in eight bits."""

WEIGHT_INPUTS: Mapping[str, tuple[int, ...]] = {
    "BatchNormalization": (1, 2, 3, 4),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "GRU": (1, 2, 3),
    "Gather": (0,),
    "Gemm": (1, 2),
    "GroupNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "LSTM": (1, 2, 3, 7),
    "LayerNormalization": (1, 2),
    "MatMul": (0, 1),
    "PRelu": (1,),
    "RNN": (1, 2, 3),
}
"""The operands in which operators take what layers learn."""
_CONTRACTIONS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_CHANNELS: Mapping[str, int] = {"Conv": 0, "MatMul": -1}
"""The axis of a weight that its results have."""
_VIEWS = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def lift_weights(source: SourceModel) -> SourceModel:
    """The model with weights of Constant nodes among its initializers; unchanged if it has none."""
    stored = {} if source.record is not None else dict(_constants(source.nodes))
    stored = {name: array for name, array in stored.items() if name not in source.constants}
    initializers = {name: array for name, array in source.initializers.items() if array.ndim > 1 and holds_reals(array)}
    operands = _weights(source.nodes, stored, initializers)
    weights = dict.fromkeys([*operands, *(name for name in stored if name in source.eight_bits)])
    if not weights:
        return source
    if any(array.size > 1 and holds_reals(array) for array in source.initializers.values()):
        stored = {name: stored[name] for name in weights if stored[name].min() < stored[name].max()}
    nodes, renamed = _without(source.nodes, stored)
    nodes = tuple(replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs)) for node in nodes)
    outputs = tuple(renamed.get(name, name) for name in source.outputs)
    return replace(source, nodes=nodes, outputs=outputs, initializers={**source.initializers, **stored})


def _bodies(node: SourceNode) -> Iterator[tuple[str, Body]]:
    return ((key, value) for key, value in node.attributes.items() if isinstance(value, Body))


def _constants(nodes: Sequence[SourceNode]) -> Iterator[tuple[str, Array]]:
    for node in nodes:
        array = node.attributes.get("value") if node.tensor else None
        if isinstance(array, np.ndarray) and array.size > 1 and holds_reals(array):
            yield node.tensor, array
        for _, body in _bodies(node):
            yield from _constants(body.nodes)


def _weights(
    nodes: Sequence[SourceNode], candidates: Mapping[str, Array], initializers: Mapping[str, Array]
) -> Iterator[str]:
    """Yields the Constants among the candidates that an operator beside them takes as weights, or that are added to
    such a product.

    What is added to the product of an initializer is its bias if it has a number for each of its channels.
    """
    tensors = {node.outputs[0]: node.tensor for node in nodes if node.tensor in candidates}
    products: dict[str, int | None] = {}  # how many channels a product of an initializer has; None: of a Constant
    for node in nodes:
        if node.op_type in _VIEWS:
            if node.operand(0) in tensors:
                tensors[node.outputs[0]] = tensors[node.operand(0)]
            if node.operand(0) in products:
                products[node.outputs[0]] = products[node.operand(0)]
        operands = [node.operand(index) for index in WEIGHT_INPUTS.get(node.op_type, ())]
        widths = [products[name] for name in node.inputs if name in products]
        if node.op_type == "Add" and widths:
            operands = [name for name in node.inputs if name in tensors]
            operands = [name for name in operands if _is_bias(candidates[tensors[name]], widths[0])]
        yield from (tensors[name] for name in operands if name in tensors)
        weight = initializers.get(node.operand(1)) if node.op_type in _CHANNELS else None
        if node.op_type in _CONTRACTIONS and not tensors.keys().isdisjoint(operands):
            products[node.outputs[0]] = None
        elif weight is not None:
            products[node.outputs[0]] = weight.shape[_CHANNELS[node.op_type]]
        for _, body in _bodies(node):
            yield from _weights(body.nodes, candidates, initializers)


def _is_bias(array: Array, width: int | None) -> bool:
    """Whether a value is added to a product of a Constant, or has a number for each channel of the product."""
    return width is None or bool(array.size == width == max(array.shape))


def _without(nodes: Sequence[SourceNode], lifted: Collection[str]) -> tuple[tuple[SourceNode, ...], dict[str, str]]:
    """Nodes without the Constants of these tensors, and what the others read of them now: name here -> tensor."""
    remaining: list[SourceNode] = []
    reads: dict[str, str] = {}
    for node in nodes:
        if node.tensor in lifted:
            reads[node.outputs[0]] = node.tensor
            continue
        inputs, attributes = list(node.inputs), dict(node.attributes)
        for key, body in _bodies(node):
            inner, inner_reads = _without(body.nodes, lifted)
            inputs += [name for name in dict.fromkeys(inner_reads.values()) if name not in inputs]
            captured = {local: inputs.index(name) for local, name in inner_reads.items()}
            attributes[key] = replace(body, nodes=inner, captured={**body.captured, **captured})
            reads |= {name: name for name in inner_reads.values()}
        remaining.append(replace(node, inputs=tuple(inputs), attributes=attributes))
    return tuple(remaining), reads


def settle_eight_bits(source: SourceModel, quantized: Quantized) -> SourceModel:
    """The model with its weights of eight bits frozen as they are stored, or as others are; and that is said."""
    if not source.eight_bits:
        return source
    count = f"{sum(source.eight_bits.values()):,} weights in eight bits"
    if quantized == "dequantize":
        warning = CompileWarning(
            "model.eight_bits",
            few_of([*source.eight_bits]),
            f"{count} are read as real numbers, so that they learn; the trained file holds these",
            "leave out `quantized: dequantize`, and they stay as they are stored",
        )
        return replace(source, warnings=(*source.warnings, warning))
    warning = CompileWarning(
        "model.eight_bits",
        few_of([*source.eight_bits]),
        f"{count} are frozen, as they are stored",
        "say `quantized: dequantize` in the spec, and they learn as real numbers",
    )
    constants = source.constants | source.eight_bits.keys()
    return replace(source, constants=constants, warnings=(*source.warnings, warning))
