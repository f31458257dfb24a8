"""Recurrent layers of PyTorch's exporters: the module's own tensors in place of those that were folded for ONNX.

The exporters store `weight_ih_l0` with its gates in ONNX's order, both directions in one tensor, both biases side by
side. Rewrites: such an initializer of an LSTM, GRU or RNN -> the module's tensors, put together by nodes, so that they
learn under the module's names and in its layout. Requires: a call of the exported program that names them (dynamo), or
the path of the module in the node's name (TorchScript). Ensures: what is put together equals what was stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from compiler.element_types import holds_reals
from compiler.frontend.file.source import SourceModel, SourceNode, free_name
from compiler.graph import Array

_ORDERS = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""The position of each of ONNX's gates in PyTorch's order (i f g o; r z n)."""
_PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@dataclass(slots=True)
class _Work:
    initializers: dict[str, Array]
    used_names: set[str]
    prologue: list[SourceNode] = field(default_factory=list)


def restore_recurrent(source: SourceModel) -> SourceModel:
    """The model with the tensors of its recurrent modules; unchanged if it has none that were folded."""
    layers = [position for position, node in enumerate(source.nodes) if _is_folded(source, node)]
    if source.producer != "pytorch" or not layers:
        return source
    work, nodes = _Work(dict(source.initializers), source.value_names()), list(source.nodes)
    numbers: dict[str, int] = {}
    counts: dict[str, int] = {}
    for position in layers:
        counts[_key(source.nodes[position])] = counts.get(_key(source.nodes[position]), 0) + 1
    for position in layers:
        node = source.nodes[position]
        number = numbers.get(_key(node), 0)
        numbers[_key(node)] = number + 1
        names = _tensor_names(source, node, number, counts[_key(node)])
        if names is not None:
            nodes[position] = _rewritten(work, node, names)
    return replace(source, nodes=(*work.prologue, *nodes), initializers=work.initializers)


def _is_folded(source: SourceModel, node: SourceNode) -> bool:
    """Whether the weights of a layer are stored as ONNX wants them."""
    if node.op_type not in _ORDERS or len(node.inputs) < 3:
        return False
    stored = [source.initializers.get(name) for name in node.inputs[1:4] if name]
    gates = len(_ORDERS[node.op_type])
    if any(array is None or not holds_reals(array) for array in stored):
        return False
    w, r, *b = [array for array in stored if array is not None]
    return (
        w.ndim == r.ndim == 3
        and r.shape == (w.shape[0], gates * r.shape[2], r.shape[2])
        and w.shape[:2] == r.shape[:2]
        and all(bias.shape == (w.shape[0], 2 * r.shape[1]) for bias in b)
    )


def _key(node: SourceNode) -> str:
    """Returns what the layers of one module have in common."""
    return node.call.result or f"{node.module}:{node.op_type}"


def _tensor_names(source: SourceModel, node: SourceNode, number: int, count: int) -> list[list[str]] | None:
    """Per direction the names of the module's tensors, in the order of `_PARTS`; None if nothing tells them."""
    directions = source.initializers[node.inputs[1]].shape[0]
    parts = _PARTS if node.operand(3) else _PARTS[:2]
    if source.record is not None:
        members = [source.record.targets[name] for name in node.call.arguments if name in source.record.targets]
        if not node.torch_op.startswith("aten.") or len(members) != count * directions * len(parts):
            return None
        layer_members = members[number * directions * len(parts) :]
        return [layer_members[d * len(parts) : (d + 1) * len(parts)] for d in range(directions)]
    if not node.name.startswith("/"):
        return None
    prefix = f"{node.module}." if node.module else ""
    suffixes = ("", "_reverse")[:directions] if node.attributes.get("direction") != "reverse" else ("_reverse",)
    return [[f"{prefix}{part}_l{number}{suffix}" for part in parts] for suffix in suffixes]


def _rewritten(work: _Work, node: SourceNode, names: Sequence[Sequence[str]]) -> SourceNode:
    """The node on what the module's tensors make; as it is if one of their names means something else."""
    order = _ORDERS[node.op_type]
    stored = [work.initializers[name] for name in node.inputs[1:4] if name]
    width = stored[1].shape[2]
    tensors: dict[str, Array] = {}
    for d, direction_names in enumerate(names):
        halves = np.split(stored[2][d], 2) if len(stored) > 2 else []
        for name, array in zip(direction_names, [stored[0][d], stored[1][d], *halves], strict=True):
            blocks = array.reshape(len(order), width, *array.shape[1:])
            tensors[name] = np.ascontiguousarray(blocks[np.argsort(order)]).reshape(array.shape)
    if len(tensors) != sum(map(len, names)) or any(not _is_free(work, name, array) for name, array in tensors.items()):
        return node
    work.initializers.update(tensors)
    work.used_names.update(tensors)
    turned = {name: _in_onnx_order(work, node, name, array, width) for name, array in tensors.items()}
    inputs = list(node.inputs)
    for index in (1, 2):
        inputs[index] = _stacked(work, node, [turned[direction_names[index - 1]] for direction_names in names])
    if len(stored) > 2:
        both = [
            _node(work, node, "Concat", [turned[direction_names[2]], turned[direction_names[3]]], {"axis": 0})
            for direction_names in names
        ]
        inputs[3] = _stacked(work, node, both)
    return replace(node, inputs=tuple(inputs))


def _is_free(work: _Work, name: str, array: Array) -> bool:
    """Whether no value has the name, or the same tensor (of a module that is called twice)."""
    existing = work.initializers.get(name)
    return (
        name not in work.used_names
        if existing is None
        else existing.shape == array.shape and np.array_equal(existing, array)
    )


def _in_onnx_order(work: _Work, node: SourceNode, name: str, array: Array, width: int) -> str:
    order = _ORDERS[node.op_type]
    if len(order) == 1:
        return name
    blocks = _constant(work, name, [len(order), width, *array.shape[1:]])
    split = _node(work, node, "Reshape", [name, blocks], {})
    moved = _node(work, node, "Gather", [split, _constant(work, name, order)], {"axis": 0})
    return _node(work, node, "Reshape", [moved, _constant(work, name, array.shape)], {})


def _stacked(work: _Work, node: SourceNode, names: Sequence[str]) -> str:
    axis = _constant(work, names[0], [0])
    raised = [_node(work, node, "Unsqueeze", [name, axis], {}) for name in names]
    return raised[0] if len(raised) == 1 else _node(work, node, "Concat", raised, {"axis": 0})


def _node(work: _Work, layer: SourceNode, op_type: str, inputs: Sequence[str], attributes: Mapping[str, int]) -> str:
    output = free_name(f"{inputs[0]}:{op_type.lower()}", work.used_names)
    work.prologue.append(SourceNode(layer.name, op_type, tuple(inputs), (output,), dict(attributes), layer.module))
    return output


def _constant(work: _Work, name: str, elements: Sequence[int]) -> str:
    constant_name = free_name(f"{name}:order", work.used_names)
    work.initializers[constant_name] = np.asarray(elements, np.int64)
    return constant_name
