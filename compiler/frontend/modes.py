"""The norms and dropouts of a file that stay in evaluation mode, whatever the spec says.

A file tells by each node's `training_mode` (a BatchNormalization's attribute, a Dropout's third input), a module that
`fine_tune` exports by a mark of its nodes. Where nothing in the file trains, it tells nothing: the spec decides.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from compiler.frontend.file.source import SourceModel, SourceNode

_BATCH_STATISTICS = ("aten._native_batch_norm_legit_functional", "aten._native_batch_norm_legit.default")
"""PyTorch's operators of a BatchNorm in training mode; the exporter writes them as if they were in evaluation mode."""
_CONTRACTIONS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators into which an exporter folds norms."""


def in_evaluation(source: SourceModel) -> frozenset[str]:
    """The first outputs of nodes that stay in evaluation: marked so, or not in training mode where others are."""
    modes = dict(_modes(source))
    training = any(modes.values())
    marked = (node.outputs[0] for node in source.nodes if node.evaluates)
    return frozenset(marked) | frozenset(name for name, trains in modes.items() if training and not trains)


def uses_batch_statistics(node: SourceNode) -> bool:
    """Whether a node is a BatchNormalization in training mode, also where it was folded into a layer."""
    if node.torch_op.startswith(_BATCH_STATISTICS):
        return node.op_type == "BatchNormalization" or node.op_type in _CONTRACTIONS
    if node.op_type != "BatchNormalization":
        return False
    return node.attributes.get("training_mode", 0) == 1 or any(node.outputs[1:])


def _modes(source: SourceModel) -> Iterator[tuple[str, bool]]:
    """(first output, whether it is in training mode) of each dropout, and of each norm with running statistics."""
    constants = {node.outputs[0]: node.attributes.get("value") for node in source.nodes if node.op_type == "Constant"}
    stored = {**constants, **source.initializers}
    for node in source.nodes:
        if node.op_type == "Dropout":
            mode = stored.get(node.operand(2))
            yield node.outputs[0], isinstance(mode, np.ndarray) and bool(mode.any())
        elif node.op_type == "BatchNormalization" and all(node.operand(index) in stored for index in (3, 4)):
            yield node.outputs[0], uses_batch_statistics(node)
