"""Low-rank adapters: parameters beside frozen weights, and the products that add what they learn.

Rewrites (on the forward graph, where no pass looks for patterns any more): of each layer y = x W that the plan names
    lora: y = x W + (s x A) B        x A once, and the scale on its `rank` numbers, so that no whole gradient is scaled
    dora: y = m / n * (x W + (s x A) B), n = |W + s A B| along the inputs of each output, a constant in the gradient
A convolution's A is a convolution with the layer's own kernel, its B one of 1x1; an embedding looks up rows of A.
Requires: a graph after the forward passes. Ensures: W is read as before, so it is packed and stays as any frozen one.
Why: no product of A and B is made; n^2 = |W|^2 + sum of B * (2 s A'W + s^2 (A'A) B), products of `rank` rows.
Source: LoRA (arXiv 2106.09685), DoRA (arXiv 2402.09353, section 4.3), rank-stabilised scaling (arXiv 2312.03732).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from compiler.channels.slices import WHOLE
from compiler.errors import LimitExceeded, PlanError
from compiler.graph import Array, Graph, Node, Parameter
from compiler.origins import Adapter
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.adapters import AdapterSpec
from compiler.step.adapted_layers import AdaptedWeight, chosen_layers
from compiler.step.adapter_start import normal, row_lengths, uniform
from compiler.step.plan import UpdatePlan
from compiler.values import Value
from compiler.warnings import CompileWarning, few_of

_TINY = float(np.finfo(np.float32).tiny)
"""The least square of a length that something is divided by: a row of zeros gives zeros."""
_SMALL = 1 << 20
"""Elements that an adapter may have, however small the weight is."""
_POINT: Mapping[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


@dataclass(frozen=True, slots=True)
class Adapted:
    """A forward graph with adapters, and everything that learns in it."""

    graph: Graph
    plan: UpdatePlan


def attach_adapters(graph: Graph, plan: UpdatePlan, spec: AdapterSpec | None) -> Adapted:
    """The graph with the adapters that a plan asks for; `plan` is what learns without them.

    Raises: PlanError for targets that do not fit the model, LimitExceeded for a rank far above what its weights have.
    """
    if spec is None:
        return Adapted(graph, plan)
    chosen = chosen_layers(graph, spec.targets, {graph.parameters[value].name for value in plan})
    b = GraphBuilder(graph, keep_nodes=False)
    adapters_by_weight = {layer.value: _beside(b, layer, spec) for layer in chosen.layers}
    adapter_parameters = {
        value: parameter
        for layer_adapter in adapters_by_weight.values()
        for value, parameter in layer_adapter.parameters.items()
    }
    _refuse_taken(graph, adapter_parameters)
    for node in graph.nodes:
        adapter = next((adapters_by_weight[value] for value in node.inputs if value in adapters_by_weight), None)
        b.stand_for(node)
        if adapter is None:
            b.nodes.append(node)
        else:
            _emit(b, node, adapter)
    adapted = replace(
        b.graph_of(graph),
        parameters={**graph.parameters, **adapter_parameters},
        names={**graph.names, **{value: parameter.name for value, parameter in adapter_parameters.items()}},
        origins=replace(
            graph.origins, adapters=tuple(layer_adapter.origin for layer_adapter in adapters_by_weight.values())
        ),
        warnings=(*graph.warnings, *chosen.warnings, *_idle_rank(chosen.layers, spec.rank)),
    )
    return Adapted(adapted, {**plan, **dict.fromkeys(adapter_parameters, WHOLE)})


@dataclass(frozen=True, slots=True)
class _Beside:
    """An adapter beside a layer: its values, and what is known of them."""

    layer: AdaptedWeight
    origin: Adapter
    parameters: Mapping[Value, Parameter]

    def value(self, name: str) -> Value:
        """The value of one of its tensors."""
        return next(value for value, parameter in self.parameters.items() if parameter.name == name)


def _beside(b: GraphBuilder, layer: AdaptedWeight, spec: AdapterSpec) -> _Beside:
    """An adapter with its first elements, which change nothing of what the layer computes."""
    _refuse_unfit(layer, spec)
    end = layer.module + (".lora_embedding_" if layer.form == "embedding" else ".lora_")
    name_a, name_b = (f"{end}{letter}{'' if layer.form == 'embedding' else '.weight'}" for letter in "AB")
    is_dora = spec.kind == "dora"
    origin = Adapter(
        weight=layer.parameter.name,
        module=layer.module,
        form=layer.form,
        rank=spec.rank,
        alpha=spec.alpha,
        rslora=spec.rslora,
        out_axis=layer.out_axis,
        a=name_a,
        b=name_b,
        magnitude=f"{layer.module}.lora_magnitude_vector.weight" if is_dora else "",
        export=spec.export,
    )
    shape_a, shape_b = _shapes(layer, spec.rank)
    if layer.form == "embedding":
        first_a, first_b = np.zeros(shape_a, np.float32), normal(spec.seed, name_b, shape_b)
    else:
        first_a, first_b = uniform(spec.seed, name_a, shape_a, layer.inputs), np.zeros(shape_b, np.float32)
    turned = (2, 3, 1, 0) if layer.form == "conv" else (1, 0)
    tensors = [_held(b, layer, name_a, first_a, turned), _held(b, layer, name_b, first_b, turned)]
    if is_dora:
        lengths = row_lengths(layer.parameter.to_file(b.arrays[layer.value]), layer.out_axis)
        first_m = lengths.reshape(1, -1, 1, 1) if layer.form == "conv" else lengths
        tensors.append(_held(b, layer, origin.magnitude, first_m, (0,)))
    return _Beside(layer, origin, dict(tensors))


def _shapes(layer: AdaptedWeight, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shapes of A and B in a file: those of `peft`."""
    if layer.form == "conv":
        return (rank, *layer.parameter.file_shape[1:]), (layer.outputs, rank, 1, 1)
    return (rank, layer.inputs), (layer.outputs, rank)


def _held(
    b: GraphBuilder, layer: AdaptedWeight, name: str, array: Array, perm: tuple[int, ...]
) -> tuple[Value, Parameter]:
    view = array.shape if len(perm) == array.ndim else (array.size,)
    parameter = Parameter(name, array.shape, view, perm, "weight", layer.nodes[0].layer)
    return b.array_value(parameter.to_inside(array)), parameter


def _refuse_unfit(layer: AdaptedWeight, spec: AdapterSpec) -> None:
    if spec.kind == "dora" and layer.form == "embedding":
        raise PlanError(
            f"{layer.module!r} is an embedding, which kind: dora does not take",
            where="plan.lora.kind",
            hint="say kind: lora, or name other layers",
        )
    elements, weight_size = spec.rank * (layer.inputs + layer.outputs), layer.inputs * layer.outputs
    if elements > max(_SMALL, 2 * weight_size):
        raise LimitExceeded(
            f"the adapter of {layer.module!r} has {elements:,} elements at rank {spec.rank}, "
            f"its weight {weight_size:,}",
            where="plan.lora.rank",
            hint="give a lower rank",
        )


def _idle_rank(layers: Sequence[AdaptedWeight], rank: int) -> tuple[CompileWarning, ...]:
    """A product of rank r is any matrix with a side of r: more only costs."""
    idle = [layer.module for layer in layers if rank > min(layer.inputs, layer.outputs)]
    if not idle:
        return ()
    message = f"rank {rank} is more than {len(idle)} weights have: {few_of(idle)}"
    return (CompileWarning("plan.adapter_rank", "plan.lora.rank", message, "a lower rank learns the same"),)


def _refuse_taken(graph: Graph, parameters: Mapping[Value, Parameter]) -> None:
    """Raises: PlanError where the model has adapters, or what is called so, already."""
    used_names = {*graph.names.values(), *(parameter.name for parameter in graph.parameters.values())}
    for parameter in parameters.values():
        if parameter.name in used_names:
            raise PlanError(
                f"the model has a {parameter.name!r} of its own",
                where="plan.lora",
                hint="merge its adapters before the export, or let them learn by a rule",
            )


def _emit(b: GraphBuilder, node: Node, adapter: _Beside) -> None:
    """The node's layer with its adapter; what it gives keeps its identity."""
    layer, origin = adapter.layer, adapter.origin
    base, value_a, value_b = b.fresh(), adapter.value(origin.a), adapter.value(origin.b)
    b.nodes.append(replace(node, outputs=(base,)))
    b.types[base] = b.types[node.output]
    few = _times(b, _through_a(b, node, layer, value_a), origin.scaling)
    if layer.form == "conv":
        many = b.emit("conv2d", few, value_b, **_POINT)
    else:
        many = b.emit("matmul", few, value_b, transpose_a=False, transpose_b=False)
    if not origin.magnitude:
        b.emit("add", base, many, output=node.output)
        return
    factor = _factor(b, adapter, value_a, value_b)
    b.emit("mul", b.emit("add", base, many), factor, output=node.output)


def _through_a(b: GraphBuilder, node: Node, layer: AdaptedWeight, a: Value) -> Value:
    attrs: dict[str, Any] = dict(node.attrs)
    if layer.form == "embedding":
        return b.emit(node.op, a, *node.inputs[1:], **attrs)
    if layer.form == "linear":
        attrs["transpose_b"] = False
    return b.emit(node.op, node.inputs[0], a, **attrs)


def _times(b: GraphBuilder, value: Value, factor: float) -> Value:
    return value if factor == 1.0 else b.emit("mul", value, b.constant(factor))


def _factor(b: GraphBuilder, adapter: _Beside, a: Value, value_b: Value) -> Value:
    """Magnitude over length, for each output."""
    scaling = adapter.origin.scaling
    weight, transposed = _matrix(b, adapter.layer.value), adapter.layer.is_transposed
    a, value_b = _matrix(b, a), _matrix(b, value_b)
    squared_norm = b.emit("reduce_sum", b.emit("mul", weight, weight), axes=(int(transposed),), keepdims=False)
    crossed = b.emit("matmul", a, weight, transpose_a=True, transpose_b=transposed)
    inner = b.emit("matmul", a, a, transpose_a=True, transpose_b=False)
    squared = b.emit("matmul", inner, value_b, transpose_a=False, transpose_b=False)
    mixed = b.emit("add", _times(b, crossed, 2 * scaling), _times(b, squared, scaling * scaling))
    added = b.emit("reduce_sum", b.emit("mul", value_b, mixed), axes=(0,), keepdims=False)
    square = b.emit("maximum", b.emit("add", squared_norm, added), b.constant(_TINY))
    length = b.emit("held", b.emit("sqrt", square))
    return b.emit("div", adapter.value(adapter.origin.magnitude), length)


def _matrix(b: GraphBuilder, value: Value) -> Value:
    """A weight as [inputs, outputs], or as it is if it has two axes."""
    shape = b.shape(value)
    return value if len(shape) == 2 else b.emit("reshape", value, shape=(prod(shape[:-1]), shape[-1]))
