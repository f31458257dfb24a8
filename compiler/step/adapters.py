"""Low-rank adapters: parameters beside frozen weights, and the products that add what they learn.

Rewrites (on the forward graph, where no pass looks for patterns any more): of each layer y = x W that the plan names
    lora: y = x W + (s x A) B        x A once, and the scale on its `rank` numbers, so that no whole gradient is scaled
    dora: y = m / n * (x W + (s x A) B), n = |W + s A B| along the inputs of each output, a constant in the gradient
A convolution's A is a convolution with the layer's own kernel, its B one of 1x1; an embedding looks up rows of A.
Requires: a graph after the forward passes. Ensures: W is read as before, so it is packed and stays as any frozen one.
Why: no product of A and B is made; n^2 = |W|^2 + sum of B * (2 s A'W + s^2 (A'A) B), products of `rank` rows.
Source: LoRA (arXiv 2106.09685), DoRA (arXiv 2402.09353, section 4.3), rank-stabilised scaling (arXiv 2312.03732).

The first elements of adapters: peft's distributions, from a generator of our own.

Elements depend on the plan's seed, the tensor's name and their place, and on nothing else: Philox 4x64 (Salmon et al.,
2011) with the key (seed, first 8 bytes of SHA-256 of the name), whose raw 64-bit numbers are a part of its definition
and the same in every version of NumPy. A uniform number is the upper 53 bits over 2^53; normal ones are Box and
Muller's (1958) of two of them.

Which layers of a graph can take an adapter, and which of them a plan's targets mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from compiler.channels.slices import WHOLE
from compiler.errors import LimitExceeded, PlanError
from compiler.graph import Array, Graph, Node, Parameter
from compiler.naming import WILD, Comparisons, cost, matches, module_of, near_names
from compiler.ops.record import integer, ints
from compiler.origins import Adapter
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.documents import ALL_LINEAR, AdapterSpec
from compiler.step.plan import UpdatePlan
from compiler.values import Value
from compiler.warnings import CompileWarning, few_of

Form = Literal["linear", "conv", "embedding"]
_CONV_ORDER = (2, 3, 1, 0)
"""[K, C, KH, KW] inside."""


@dataclass(frozen=True, slots=True)
class AdaptedWeight:
    """A weight that an adapter can stand beside, and the nodes that compute with it, all alike."""

    value: Value
    parameter: Parameter
    form: Form
    nodes: tuple[Node, ...]

    @property
    def module(self) -> str:
        """The path of the author's module: the weight's name without its last part."""
        return module_of(self.parameter.name)

    @property
    def out_axis(self) -> int:
        """The axis of the weight's outputs in the author's layout."""
        if self.form == "conv":
            return 0
        return self.parameter.perm[0 if self.is_transposed else 1]

    @property
    def is_transposed(self) -> bool:
        """Whether its matrix is [outputs, inputs] inside."""
        return bool(self.nodes[0].attrs.get("transpose_b"))

    @property
    def outputs(self) -> int:
        """Returns the number of outputs."""
        return self.parameter.file_shape[self.out_axis]

    @property
    def inputs(self) -> int:
        """Returns how many numbers each output is a sum of; of an embedding its rows."""
        return prod(self.parameter.file_shape) // max(self.outputs, 1)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The layers that get adapters, in the model's order, and what is to be said of others that the targets match."""

    layers: tuple[AdaptedWeight, ...]
    warnings: tuple[CompileWarning, ...] = ()


def chosen_layers(graph: Graph, targets: Sequence[str], learning: Collection[str]) -> Chosen:
    """The layers that `targets` mean; `learning` are parameters that the plan lets learn themselves.

    A target without wildcards means every layer that it matches, one with some those that can take an adapter.
    Raises: PlanError for a target that matches nothing, naming a layer that is meant and cannot take one, and for more
    comparisons of names than `compiler.step.planning.names` allows.
    """
    candidates = _layers(graph)
    layers: dict[str, AdaptedWeight] = {}
    left_out: dict[str, str] = {}
    compared, first = Comparisons(PlanError), {target: position for position, target in reversed([*enumerate(targets)])}
    for target, position in reversed(first.items()):
        where = f"plan.lora.targets[{position}]"
        compared.add(cost(target, candidates), where)
        names = _all_linear(graph, candidates) if target == ALL_LINEAR else _matching(graph, candidates, target, where)
        wild = target == ALL_LINEAR or not WILD.isdisjoint(target)
        for name in names:
            layer = candidates[name]
            if isinstance(layer, str) or name in learning:
                reason = layer if isinstance(layer, str) else "a rule of the plan lets the weight itself learn"
                if not wild:
                    raise _refused(name, reason, where)
                if name not in learning:
                    left_out[name] = reason
            else:
                layers[name] = layer
        if not any(name in layers for name in names):
            raise _refused(names[0], left_out.get(names[0], "a rule of the plan lets the weight itself learn"), where)
    ordered = tuple(layers[name] for name in candidates if name in layers)
    return Chosen(
        ordered, _left_out_warnings({name: reason for name, reason in left_out.items() if name not in layers})
    )


def _refused(name: str, reason: str, where: str) -> PlanError:
    return PlanError(f"{name!r} cannot take an adapter: {reason}", where=where, hint="name other layers")


def _left_out_warnings(left_out: Mapping[str, str]) -> tuple[CompileWarning, ...]:
    if not left_out:
        return ()
    first = next(iter(left_out))
    message = f"{len(left_out)} weights that the targets match take no adapter: {few_of(list(left_out))}"
    hint = f"{first}: {left_out[first]}"
    return (CompileWarning("plan.adapters_left_out", "plan.lora.targets", message, hint),)


def _layers(graph: Graph) -> dict[str, AdaptedWeight | str]:
    """Weight -> its layer, or why it cannot take an adapter. Vectors are no weights of layers."""
    readers = graph.consumers()
    folded = {norm.weight for norm in graph.origins.norms}
    layers: dict[str, AdaptedWeight | str] = {}
    for value, parameter in graph.parameters.items():
        if not parameter.may_learn or len(parameter.file_shape) < 2:
            continue
        if parameter.name in folded:
            layers[parameter.name] = "a norm is folded into it; say batch_norm: frozen in the spec"
        else:
            layers[parameter.name] = _layer(graph, value, parameter, readers.get(value, []))
    for name, problem in graph.unlearnable.items():
        layers[name] = f"{problem.reason}; {problem.remedy}"
    return layers


def _layer(graph: Graph, value: Value, parameter: Parameter, nodes: Sequence[Node]) -> AdaptedWeight | str:
    uses = [_use(graph, value, node) for node in nodes]
    if not uses:
        return "nothing reads it"
    form, reason = uses[0]
    odd = next((reason for form, reason in uses if not form), "")
    if odd or not form:
        return odd or reason
    if any(use != form for use, _ in uses):
        return f"it is tied: {nodes[0].layer} and {nodes[-1].layer} use it in different ways"
    if len({bool(node.attrs.get("transpose_b")) for node in nodes}) > 1:
        return f"it is tied: {nodes[0].layer} and {nodes[-1].layer} read it the other way round"
    plain = parameter.view_shape == parameter.file_shape
    if not plain or (form == "conv" and parameter.perm != _CONV_ORDER):
        return f"{nodes[0].layer} reads it in another shape than {list(parameter.file_shape)}"
    return AdaptedWeight(value, parameter, form, tuple(nodes))


def _use(graph: Graph, value: Value, node: Node) -> tuple[Form | None, str]:
    """Returns the form of layer that a node is with this weight, or why it is none that takes an adapter."""
    shape, place = graph.types[value].shape, node.inputs.index(value)
    alone = node.inputs.count(value) == 1
    if node.op == "matmul" and len(shape) == 2 and alone:
        return ("linear", "") if place == 1 else (None, f"{node.layer} multiplies with it from the left")
    if node.op == "conv2d" and place == 1 and alone:
        if graph.types[node.inputs[0]].shape[3] != shape[2]:
            return None, f"{node.layer} is a convolution in groups, which peft cannot merge"
        if ints(node.attrs, "dilations") != (1, 1):
            return None, f"{node.layer} is a dilated convolution, whose adapters peft does not dilate"
        return "conv", ""
    if node.op.startswith("depthwise"):
        return None, f"{node.layer} is a convolution in groups, which peft cannot merge"
    looks_up = node.op == "embedding" or (node.op == "gather" and integer(node.attrs, "axis") == 0)
    if looks_up and len(shape) == 2 and place == 0 and alone:
        return "embedding", ""
    if node.op in ("reshape", "slice", "transpose"):
        return None, f"{node.layer} cuts or reshapes it first, as convolutions in groups and of rank 1 or 3 do"
    return None, f"it is no weight of a linear layer, 2-D convolution or embedding: {node.op} ({node.layer}) reads it"


def _all_linear(graph: Graph, candidates: Mapping[str, AdaptedWeight | str]) -> list[str]:
    """Returns every linear layer but the last one of the model."""
    products = [node.inputs[1] for node in graph.nodes if node.op == "matmul" and node.inputs[1] in graph.parameters]
    layers = [
        candidates.get(graph.parameters[value].name) for value in dict.fromkeys(products) if value != products[-1]
    ]
    names = [layer.parameter.name for layer in layers if isinstance(layer, AdaptedWeight) and layer.form == "linear"]
    if not names:
        raise PlanError("the model has no linear layer before its last one", where="plan.lora.targets")
    return names


def _matching(graph: Graph, candidates: Mapping[str, AdaptedWeight | str], target: str, where: str) -> list[str]:
    names = [name for name in candidates if matches(name, target)]
    if names:
        return names
    others = [name for name in graph.named_parameters() if matches(name, target) or matches(_parent(name), target)]
    if others:
        raise PlanError(
            f"{target!r} matches {few_of(others)}, and no weight of a linear layer, 2-D convolution or embedding",
            where=where,
            hint="a rule under `update` lets such parameters learn themselves",
        )
    ends = dict.fromkeys(module_of(name).rpartition(".")[2] for name in candidates)
    near = near_names(target, [*map(module_of, candidates), *ends])
    some = f"the model's layers are such as {', '.join(list(map(module_of, candidates))[:4])}"
    raise PlanError(f"no layer is called {target!r}", where=where, hint=near or some)


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def uniform(seed: int, name: str, shape: tuple[int, ...], fan_in: int) -> Array:
    """Kaiming's uniform distribution with a = sqrt(5), as torch.nn.Linear and peft begin: within 1 / sqrt(fan_in)."""
    bound = fan_in**-0.5
    return np.asarray((2 * _units(seed, name, prod(shape)) - 1) * bound, np.float32).reshape(shape)


def normal(seed: int, name: str, shape: tuple[int, ...]) -> Array:
    """The standard normal distribution."""
    first, second = np.split(_units(seed, name, 2 * prod(shape)), 2)
    return np.asarray(np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second), np.float32).reshape(shape)


def row_lengths(weight: Array, out_axis: int) -> Array:
    """The Euclidean length of what each output of a weight is a sum of."""
    rows = weight if weight.ndim == 2 else weight.reshape(weight.shape[0], -1)
    along = "ij,ij->i" if out_axis == 0 else "ij,ij->j"
    return np.asarray(np.sqrt(np.einsum(along, rows, rows, dtype=np.float64)), np.float32)


def _units(seed: int, name: str, count: int) -> NDArray[np.float64]:
    """Numbers from 0 up to 1, without 1."""
    key = [seed, int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")]
    raw = np.random.Philox(key=np.asarray(key, np.uint64)).random_raw(count)
    return np.asarray(raw >> np.uint64(11), np.float64) * 2.0**-53


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
    adapters_by_weight = {layer.value: _adapter(b, layer, spec) for layer in chosen.layers}
    adapter_parameters = {
        value: parameter
        for layer_adapter in adapters_by_weight.values()
        for value, parameter in layer_adapter.parameters.items()
    }
    _refuse_used_names(graph, adapter_parameters)
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
class _LayerAdapter:
    """An adapter beside a layer: its values, and what is known of them."""

    layer: AdaptedWeight
    origin: Adapter
    parameters: Mapping[Value, Parameter]

    def value(self, name: str) -> Value:
        """The value of one of its tensors."""
        return next(value for value, parameter in self.parameters.items() if parameter.name == name)


def _adapter(b: GraphBuilder, layer: AdaptedWeight, spec: AdapterSpec) -> _LayerAdapter:
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
    tensors = [_tensor(b, layer, name_a, first_a, turned), _tensor(b, layer, name_b, first_b, turned)]
    if is_dora:
        lengths = row_lengths(layer.parameter.to_file(b.arrays[layer.value]), layer.out_axis)
        first_m = lengths.reshape(1, -1, 1, 1) if layer.form == "conv" else lengths
        tensors.append(_tensor(b, layer, origin.magnitude, first_m, (0,)))
    return _LayerAdapter(layer, origin, dict(tensors))


def _shapes(layer: AdaptedWeight, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shapes of A and B in a file: those of `peft`."""
    if layer.form == "conv":
        return (rank, *layer.parameter.file_shape[1:]), (layer.outputs, rank, 1, 1)
    return (rank, layer.inputs), (layer.outputs, rank)


def _tensor(
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


def _refuse_used_names(graph: Graph, parameters: Mapping[Value, Parameter]) -> None:
    """Raises: PlanError where the model has adapters, or what is called so, already."""
    used_names = {*graph.names.values(), *(parameter.name for parameter in graph.parameters.values())}
    for parameter in parameters.values():
        if parameter.name in used_names:
            raise PlanError(
                f"the model has a {parameter.name!r} of its own",
                where="plan.lora",
                hint="merge its adapters before the export, or let them learn by a rule",
            )


def _emit(b: GraphBuilder, node: Node, adapter: _LayerAdapter) -> None:
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


def _factor(b: GraphBuilder, adapter: _LayerAdapter, a: Value, value_b: Value) -> Value:
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
