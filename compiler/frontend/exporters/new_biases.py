"""Biases for layers that never had one: zeros that a plan asks for, which the import then reads like any others.

A convolution and a Gemm get their third operand. ONNX's MatMul has none; here one with three stands for a product with
a sum behind it, which `compiler/trained/stored.py` writes as two nodes. A layer is a node with a weight of its own, as
it is or transposed; nodes that read one weight in one module share their bias, as calls of that module do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.element_types import holds_reals
from compiler.errors import PlanError
from compiler.frontend.file.source import SourceModel, SourceNode
from compiler.naming import WILD, Comparisons, cost, matches, module_of, near_names
from compiler.warnings import CompileWarning, few_of

WHERE = "plan.create_biases"
_HAS = "it has one already"
_VIEWS = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten")
_FILLS = ("Expand", "Cast", "CastLike", "Identity", "Reshape", "ConstantOfShape")
_FARTHEST = 8
"""Nodes in a row that only hand something on, of more of which nothing is asked."""
_MADE_UP = re.compile(r"onnx::\w+|val_\d+")
"""Names that PyTorch's exporters make up for what they have transposed."""
_NN_LAYER = re.compile(r"torch\.nn\.modules\.(linear\.Linear|conv\.\w+)")


@dataclass(frozen=True, slots=True)
class _Layer:
    """A node with a weight: its place, what its bias is called, how long it is; `reason` tells why it takes none."""

    position: int
    weight: str
    bias: str
    outputs: int
    reason: str

    def is_called(self, target: str) -> bool:
        """Whether a target of the plan means it."""
        return any(matches(name, target) for name in (self.weight, self.bias, self.module))

    @property
    def module(self) -> str:
        """The path of its module, as far as names tell."""
        return self.bias.removesuffix(".bias")


def create_biases(source: SourceModel, targets: Sequence[str]) -> SourceModel:
    """The model with zero biases for the layers that `targets` mean.

    Raises: PlanError for a target without wildcards of which one takes none, and for one of which none does.
    """
    if not targets:
        return source
    layers = _Reader(source).layers()
    chosen, warnings = _chosen(layers, targets)
    biases = {layer.bias: np.zeros(layer.outputs, np.float32) for layer in layers if layer.bias in chosen}
    nodes = list(source.nodes)
    for layer in layers:
        if layer.bias in chosen:
            node = nodes[layer.position]
            nodes[layer.position] = replace(node, inputs=(*node.inputs[:2], layer.bias))
    return replace(
        source,
        nodes=tuple(nodes),
        initializers={**source.initializers, **biases},
        created=source.created | biases.keys(),
        new_biases=tuple(biases),
        warnings=(*source.warnings, _created_warning(tuple(biases)), *warnings),
    )


def _chosen(layers: Sequence[_Layer], targets: Sequence[str]) -> tuple[set[str], tuple[CompileWarning, ...]]:
    """The biases to create, and what is to be said of layers that get none."""
    reasons: dict[str, str] = {}
    for layer in layers:
        reasons[layer.bias] = reasons.get(layer.bias) or layer.reason
    chosen, compared = set[str](), Comparisons(PlanError)
    left_out: dict[str, str] = {}
    first = {target: position for position, target in reversed([*enumerate(targets)])}
    for target, position in reversed(first.items()):
        where = f"{WHERE}[{position}]"
        compared.add(cost(target, [layer.weight for layer in layers]), where)
        names = dict.fromkeys(layer.bias for layer in layers if layer.is_called(target))
        if not names:
            raise PlanError(f"no layer is called {target!r}", where=where, hint=_near(layers, target))
        usable = [name for name in names if not reasons[name]]
        without = [name for name in names if reasons[name]]
        if without and (not usable or WILD.isdisjoint(target)):
            layer = next(layer for layer in layers if layer.bias == without[0])
            raise PlanError(
                f"{layer.weight!r} takes no bias: {reasons[without[0]]}",
                where=where,
                hint="name other layers; a bias that is there learns by a rule",
            )
        chosen.update(usable)
        left_out |= {name: reasons[name] for name in without if reasons[name] != _HAS}
    return chosen, _left_out(left_out)


def _near(layers: Sequence[_Layer], target: str) -> str:
    modules = [layer.module for layer in layers]
    ends = dict.fromkeys(name.rpartition(".")[2] for name in modules)
    some = (
        f"its layers are such as {', '.join(dict.fromkeys(modules[:4]))}"
        if modules
        else "it has no layer with a weight"
    )
    return near_names(target, [*modules, *ends, *(layer.weight for layer in layers)]) or some


def _created_warning(names: Sequence[str]) -> CompileWarning:
    return CompileWarning(
        "plan.biases_created",
        WHERE,
        f"{len(names)} biases that the model does not have were created, as zeros: {few_of(names)}",
        "they learn as the plan says; a PyTorch module takes them after pockfarm.give_biases(module, tuned)",
    )


def _left_out(reasons: Mapping[str, str]) -> tuple[CompileWarning, ...]:
    if not reasons:
        return ()
    first = next(iter(reasons))
    message = f"{len(reasons)} layers that the targets match get no bias: {few_of(list(reasons))}"
    return (CompileWarning("plan.biases_left_out", WHERE, message, f"{first}: {reasons[first]}"),)


class _Reader:
    """Finds the layers of a model."""

    def __init__(self, source: SourceModel) -> None:
        self._source = source
        self._made = {name: node for node in source.nodes for name in node.outputs}
        self._readers = source.readers()
        parameters = source.record.parameters if source.record is not None else ()
        self._taken = {*source.value_names(), *parameters, *source.unlearnable}
        self._owner: dict[str, tuple[str, int]] = {}

    def layers(self) -> list[_Layer]:
        """Returns the layers in the order of the nodes."""
        layers = []
        for position, node in enumerate(self._source.nodes):
            if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
                right = self._weight(node.operand(1))
                left = None if right is not None else self._weight(node.operand(0))
                if right is not None:
                    layers.append(self._layer(position, node, *right))
                elif left is not None:
                    reason = "the weight stands on the left of the product"
                    layers.append(_Layer(position, left[0], _bias_name(node, left[0]), 0, reason))
        return layers

    def _weight(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """(parameter, the shape it is read in) of an operand that is one, perhaps transposed."""
        turns: list[tuple[int, ...] | None] = []
        for _ in range(_FARTHEST):
            maker = self._made.get(name)
            if name in self._source.initializers or maker is None or maker.op_type not in ("Identity", "Transpose"):
                break
            if maker.op_type == "Transpose":
                perm = maker.attributes.get("perm")
                turns.append(tuple(int(axis) for axis in perm) if isinstance(perm, tuple) else None)
            name = maker.operand(0)
        array = self._source.initializers.get(name)
        if array is None or name in self._source.constants or not holds_reals(array) or array.ndim < 2:
            return None
        shape = array.shape
        for turn in reversed(turns):
            shape = shape[::-1] if turn is None else tuple(shape[axis] for axis in turn)
        return name, shape

    def _layer(self, position: int, node: SourceNode, weight: str, shape: tuple[int, ...]) -> _Layer:
        outputs, bias = _outputs(node, shape), _bias_name(node, weight)
        reason = self._reason(node, weight, shape, outputs)
        owner = (weight, outputs)
        if not reason and (bias in self._taken or self._owner.setdefault(bias, owner) != owner):
            reason = f"the model has a {bias!r} that is something else"
        return _Layer(position, weight, bias, outputs, reason)

    def _reason(self, node: SourceNode, weight: str, shape: tuple[int, ...], outputs: int) -> str:
        if weight in self._source.unlearnable:
            return "its weight is not in this file as it is"
        if node.op_type in ("Gemm", "MatMul") and len(shape) != 2:
            return f"its weight has {len(shape)} axes, not 2"
        if node.attributes.get("beta", 1.0) != 1.0:
            return "its beta scales what is added"
        if node.operand(2) and not self._is_zero(node.operand(2)):
            return _HAS
        return self._behind(node.outputs[0], outputs)

    def _behind(self, name: str, outputs: int) -> str:
        """A bias or a norm that follows, seen through views."""
        for _ in range(_FARTHEST):
            readers = self._readers.get(name, [])
            for reader in readers:
                if reader.op_type == "BatchNormalization" and reader.operand(0) == name:
                    return "the norm behind it adds one"
                others = [operand for operand in reader.inputs if operand != name]
                if reader.op_type == "Add" and any(self._is_vector(operand, outputs) for operand in others):
                    return _HAS
            if len(readers) != 1 or readers[0].op_type not in _VIEWS:
                return ""
            name = readers[0].outputs[0]
        return ""

    def _is_vector(self, name: str, size: int) -> bool:
        """Whether a stored tensor, perhaps seen through views, has one number for each output."""
        for _ in range(_FARTHEST):
            array, maker = self._source.initializers.get(name), self._made.get(name)
            if array is None and maker is not None and maker.op_type == "Constant":
                value = maker.attributes.get("value")
                array = value if isinstance(value, np.ndarray) else None
            if array is not None:
                return array.size == size and sum(extent > 1 for extent in array.shape) <= 1
            if maker is None or maker.op_type not in _VIEWS:
                return False
            name = maker.operand(0)
        return False

    def _is_zero(self, name: str) -> bool:
        """Whether a tensor is zeros and no parameter: PyTorch's exporter, not optimizing, writes such ones out."""
        for _ in range(_FARTHEST):
            array, maker = self._source.initializers.get(name), self._made.get(name)
            if array is not None:
                return name in self._source.constants and not array.any()
            if maker is None:
                return False
            value = maker.attributes.get("value")
            if maker.op_type in ("Constant", "ConstantOfShape"):
                is_default = value is None and maker.op_type == "ConstantOfShape"
                return is_default or (isinstance(value, np.ndarray) and not value.any())
            if maker.op_type not in _FILLS:
                return False
            name = maker.operand(0)
        return False


def _outputs(node: SourceNode, shape: tuple[int, ...]) -> int:
    """Returns the number of outputs of a layer whose weight is read in this shape."""
    if node.op_type == "ConvTranspose":
        groups = node.attributes.get("group", 1)
        return shape[1] * (groups if isinstance(groups, int) else 1)
    rows = node.op_type == "Conv" or (node.op_type == "Gemm" and bool(node.attributes.get("transB", 0)))
    return shape[0] if rows else shape[-1]


def _bias_name(node: SourceNode, weight: str) -> str:
    """`fc.bias` of `fc.weight`; of a weight that belongs to another module or has a made-up name, its own module's."""
    module, weight_module = node.module, module_of(weight)
    is_layer = (
        _NN_LAYER.fullmatch(node.module_class) if node.module_class else not weight_module.startswith(f"{module}.")
    )
    if module and weight_module != module and (is_layer or _MADE_UP.fullmatch(weight)):
        return f"{module}.bias"
    stem, separator, last = _split(weight)
    return f"{stem}{separator}bias" if last == "weight" else f"{weight}.bias"


def _split(name: str) -> tuple[str, str, str]:
    """Splits a name into what stands before the last separator, that separator, and what stands behind it."""
    place = max(name.rfind(separator) for separator in "._/")
    return (name[:place], name[place], name[place + 1 :]) if place >= 0 else ("", "", name)
