"""Frozen weights as whole numbers of eight bits, with a scale for each output channel, or of four, for each group.

Rewrites (on the forward graph, once adapters are attached): of each weight W that no step changes, and that only layers
read, W' = q s, where q are whole numbers from -127 to 127 and s is the scale of an output channel
    y = x W          ->  y = (x q) s         products and convolutions, depth-wise ones too
    y = W[index]     ->  y = q[index] s[index]         look-ups, whose channels are rows
In four bits q are from -7 to 7, s is the scale of a group of inputs of an output channel, and stands before the sum
    y = x W          ->  y = x (q s)         products alone: W' is made of q and s wherever it is read
Requires: a graph after the forward passes. Ensures: the step is that of the model whose frozen weights are W', in f32;
|W - W'| <= s / 2. A weight that stays as it is, or in eight bits where four were asked for, is named, with the reason.
Why: a quarter of the bytes in the bundle and in memory, or a seventh; a channel's scale rides in a kernel's end
(`compiler.fusion`).
Source: symmetric quantization by channel: arXiv 1806.08342, section 3.1; by group: arXiv 2210.17323; frozen base
weights: QLoRA (arXiv 2305.14314).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from compiler.errors import SpecError
from compiler.graph import Array, Graph, Node, Parameter
from compiler.ops import paired
from compiler.ops.record import integer
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.precision import Frozen, PrecisionSpec
from compiler.step.plan import UpdatePlan
from compiler.values import Value
from compiler.warnings import CompileWarning, few_of

LEVELS = 127
"""The largest whole number: the smallest is its opposite, so that nothing is shifted."""
GROUP = 64
"""Inputs of a channel that share a scale, in four bits: scales are an eighth of what the numbers take."""
LEAST = 1 << 10
"""Elements of a weight for which a scale of its own and a name in the report are worth it."""
_PRODUCTS = ("matmul", "conv2d", "depthwise_conv2d")


@dataclass(frozen=True, slots=True)
class FrozenWeights:
    """The outcome for the weights that a plan leaves alone, by the names of the model."""

    kind: Frozen = "f32"
    errors: Mapping[str, float] = field(default_factory=dict)
    """The error of each weight that is held in whole numbers: the largest |W - W'| of a channel by the largest |W|
    there, as lengths.
    """
    unrounded: Mapping[str, str] = field(default_factory=dict)
    """The reason by weight, for each that stays as it is."""
    eight: Mapping[str, str] = field(default_factory=dict)
    """The reason by weight, for each that is held in eight bits though the spec wants four."""


def hold_frozen(graph: Graph, learning: UpdatePlan, precision: PrecisionSpec) -> tuple[Graph, FrozenWeights]:
    """The graph with frozen weights in whole numbers, each with its scale behind every layer that reads it.

    Raises: SpecError if they are to be multiplied in eight bits and not held so.
    """
    kind = precision.frozen
    if precision.frozen_products != "f32" and kind != "int8":
        raise SpecError(
            f"weights held in {kind} are not multiplied in int8",
            where="spec.precision.frozen_products",
            hint="say frozen: int8, or leave it out",
        )
    if kind == "f32":
        return graph, FrozenWeights()
    readers = graph.consumers()
    axes: dict[Value, int] = {}
    unrounded: dict[str, str] = {}
    for value, parameter in graph.parameters.items():
        if parameter.kind != "weight" or len(graph.types[value].shape) < 2:
            continue
        axis_or_reason = _channels(graph, value, learning, readers.get(value, []))
        if isinstance(axis_or_reason, int):
            axes[value] = axis_or_reason
        elif axis_or_reason:
            unrounded[parameter.name] = axis_or_reason
    four_bit_axes = axes if kind == "int4" else {}
    eight = {
        value: why for value, axis in four_bit_axes.items() if (why := _undivided(graph, value, axis, readers[value]))
    }
    four = four_bit_axes.keys() - eight.keys()
    b = GraphBuilder(graph, keep_nodes=False)
    held_weights = {
        value: (_quantize_in_groups if value in four else _quantize)(b, value, axis) for value, axis in axes.items()
    }
    for node in graph.nodes:
        b.stand_for(node)
        weight = next((value for value in node.inputs if value in held_weights), None)
        if weight is None:
            b.nodes.append(node)
        elif weight in four:
            _emit_widened(b, node, weight, held_weights[weight][0], graph.types[weight].shape, axes[weight])
        else:
            _emit(b, node, held_weights[weight][0])
    names = {value: parameter.name for value, parameter in graph.parameters.items()}
    summary = FrozenWeights(
        kind,
        errors={names[value]: error for value, (_, error) in held_weights.items()},
        unrounded=unrounded,
        eight={names[value]: why for value, why in eight.items()},
    )
    whole = b.graph_of(graph)
    return replace(whole, warnings=(*whole.warnings, *_warnings(summary, graph.parameters))), summary


def quantized(array: Array, over: tuple[int, ...], levels: int) -> tuple[Array, Array]:
    """(q, s): whole numbers up to `levels`, and what they count, one for all along the axes `over`, which stay with
    extent 1; q s is nearest to the array."""
    largest = np.maximum(array.max(axis=over, keepdims=True), -array.min(axis=over, keepdims=True))
    scales = np.where(largest > 0, largest / np.float32(levels), np.float32(1.0)).astype(np.float32)
    whole = np.clip(np.rint(array / scales), -levels, levels).astype(np.int8)
    return np.ascontiguousarray(whole), scales


def _channels(graph: Graph, value: Value, learning: UpdatePlan, readers: list[Node]) -> int | str:
    """The axis of a weight's output channels; or why it stays as it is, nothing if that needs no word."""
    if value in learning:
        return "" if learning[value].is_whole else "a slice of it learns"
    if graph.types[value].size < LEAST:
        return f"it has fewer than {LEAST:,} elements"
    axes = {_axis(graph, value, node) for node in readers}
    if not readers or None in axes or value in graph.outputs:
        odd = next((node for node in readers if _axis(graph, value, node) is None), None)
        return f"{odd.op} ({odd.layer}) reads it" if odd is not None else "no layer reads it"
    if len(axes) > 1:
        return f"{readers[0].layer} and {readers[-1].layer} read it the other way round"
    if not np.isfinite(graph.arrays[value]).all():
        return "it holds NaN or Inf"
    return next(iter(axes)) or 0


def _axis(graph: Graph, value: Value, node: Node) -> int | None:
    """Along which axis the channels lie that a node makes with a weight; None: it is no layer with this weight."""
    rank, place = len(graph.types[value].shape), node.inputs.index(value)
    if node.inputs.count(value) > 1:
        return None
    if node.op == "embedding" or (node.op == "gather" and integer(node.attrs, "axis") == 0):
        return 0 if place == 0 and rank == 2 else None
    if node.op not in _PRODUCTS or place != 1 or (node.op == "matmul" and rank != 2):
        return None
    return 0 if node.attrs.get("transpose_b") else rank - 1


def _quantize(b: GraphBuilder, value: Value, axis: int) -> tuple[Value, float]:
    """Puts whole numbers in the place of a weight; its scales, and by how much the weight changes."""
    array = b.arrays[value]
    whole, scales = quantized(array, tuple(i for i in range(array.ndim) if i != axis), LEVELS)
    b.arrays[value] = whole
    return b.array_value(scales.reshape(-1)), _error(array, whole, scales, axis)


@dataclass(frozen=True, slots=True)
class _Groups:
    """A matrix with the inputs of its channels in groups, as an array of three axes."""

    shape: tuple[int, ...]
    inside: int
    """The axis of a group's inputs."""
    channels: int
    """The axis of the output channels."""

    @classmethod
    def of(cls, shape: tuple[int, ...], axis: int) -> _Groups:
        """`axis`: that of the output channels."""
        rows, columns = shape
        if axis == 1:
            return cls((rows // GROUP, GROUP, columns), 1, 2)
        return cls((rows, columns // GROUP, GROUP), 2, 0)


def _quantize_in_groups(b: GraphBuilder, value: Value, axis: int) -> tuple[Value, float]:
    """Puts pairs of whole numbers in the place of a matrix; the rest as `_held`."""
    groups = _Groups.of(b.shape(value), axis)
    grouped, along = b.arrays[value].reshape(groups.shape), groups.channels
    whole, scales = quantized(grouped, (groups.inside,), paired.LEVELS)
    b.arrays[value] = paired.paired(whole, along)
    b.types[value] = replace(b.types[value], shape=b.arrays[value].shape)
    halves = (*scales.shape[:along], 2, scales.shape[along] // 2, *scales.shape[along + 1 :])
    return b.array_value(scales.reshape(halves)), _error(grouped, whole, scales, along)


def _undivided(graph: Graph, value: Value, axis: int, readers: list[Node]) -> str:
    """Why a weight is not held in four bits; nothing if it is."""
    other = next((node for node in readers if node.op != "matmul"), None)
    if other is not None:
        return f"{other.op} ({other.layer}) reads it"
    shape = graph.types[value].shape
    if shape[1 - axis] % GROUP:
        return f"its {shape[1 - axis]} inputs are no multiple of {GROUP}"
    return f"its {shape[axis]} channels do not pair" if shape[axis] % 2 else ""


def _error(array: Array, whole: Array, scales: Array, axis: int) -> float:
    """The largest over channels, which lie along `axis`, of |W - W'| / |W|, as lengths."""
    worst = 0.0
    for channels in np.array_split(np.arange(array.shape[axis]), -(-array.size // _PART)):
        original, quantized_whole, steps = (
            np.moveaxis(tensor.take(channels, axis), axis, 0) for tensor in (array, whole, scales)
        )
        lengths = np.linalg.norm(original.reshape(len(original), -1), axis=1)
        apart = np.linalg.norm((original - quantized_whole * steps).reshape(len(original), -1), axis=1)
        worst = max(worst, float(np.max(apart / np.where(lengths > 0, lengths, 1.0), initial=0.0)))
    return worst


_PART = 1 << 22
"""Elements that are compared at once."""


def _emit(b: GraphBuilder, node: Node, scales: Value) -> None:
    """The layer, and its scales behind it; what it gives keeps its identity."""
    base = b.fresh()
    b.nodes.append(replace(node, outputs=(base,)))
    b.types[base] = b.types[node.output]
    if node.op not in _PRODUCTS:
        rows = b.array_value(
            b.arrays[scales].reshape(-1, 1)
        )  # no node reshapes it: passes on one program alone would fold it
        attrs: dict[str, Any] = dict(node.attrs)
        scales = b.emit(node.op, rows, *node.inputs[1:], **attrs)
    b.emit("mul", base, scales, output=node.output)


def _emit_widened(b: GraphBuilder, node: Node, weight: Value, scales: Value, shape: tuple[int, ...], axis: int) -> None:
    """The product, and before it its weight as it was but for the rounding."""
    wide = b.emit("dequantize_int4", weight, scales, axis=_Groups.of(shape, axis).channels)
    wide = b.emit("reshape", wide, shape=shape)
    b.nodes.append(replace(node, inputs=tuple(wide if value == weight else value for value in node.inputs)))


def _warnings(frozen: FrozenWeights, parameters: Mapping[Value, Parameter]) -> tuple[CompileWarning, ...]:
    """Warns about what was rounded, by how much, and what was not."""
    warnings: list[CompileWarning] = []
    where = "spec.precision.frozen"
    if frozen.errors:
        worst = max(frozen.errors, key=lambda name: frozen.errors[name])
        message = (
            f"{len(frozen.errors)} of {len(parameters)} parameters are frozen and held in {frozen.kind}; a channel of "
            f"{worst!r} changes most, by {frozen.errors[worst]:.2%} of its length: what learns is trained against these"
        )
        warnings.append(CompileWarning("precision.rounded", where, message, "the bundle's manifest tells of each"))
    if frozen.eight:
        listed = few_of([f"{name} ({why})" for name, why in frozen.eight.items()])
        message = f"{len(frozen.eight)} frozen weights are held in eight bits: {listed}"
        warnings.append(CompileWarning("precision.in_eight_bits", where, message))
    if frozen.unrounded:
        listed = few_of([f"{name} ({why})" for name, why in frozen.unrounded.items()])
        message = f"{len(frozen.unrounded)} frozen weights stay f32: {listed}"
        warnings.append(CompileWarning("precision.kept", where, message))
    if not frozen.errors:
        hint = "say f32, or let fewer parameters learn"
        warnings.append(CompileWarning("precision.nothing_frozen", where, f"no weight is held in {frozen.kind}", hint))
    return tuple(warnings)
