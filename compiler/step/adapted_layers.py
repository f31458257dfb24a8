"""Which layers of a graph can take an adapter, and which of them a plan's targets mean."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from compiler.errors import PlanError
from compiler.graph import Graph, Node, Parameter
from compiler.naming import WILD, Comparisons, cost, matches, module_of, near_names
from compiler.ops.record import integer, ints
from compiler.spec.adapters import ALL_LINEAR
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
        """How many."""
        return self.parameter.file_shape[self.out_axis]

    @property
    def inputs(self) -> int:
        """How many numbers each output is a sum of; of an embedding its rows."""
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
    return Chosen(ordered, _said({name: reason for name, reason in left_out.items() if name not in layers}))


def _refused(name: str, reason: str, where: str) -> PlanError:
    return PlanError(f"{name!r} cannot take an adapter: {reason}", where=where, hint="name other layers")


def _said(left_out: Mapping[str, str]) -> tuple[CompileWarning, ...]:
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
    """Every linear layer but the last one of the model."""
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
