"""Warnings about a model that was imported: where a step will do something else than training its module would.

One warning per kind; it names a few of the nodes or tensors concerned and their number.
"""

from __future__ import annotations

import re

import numpy as np

from compiler.frontend.file.source import SourceModel, SourceNode
from compiler.frontend.file.torch_record import UNOPTIMIZED
from compiler.frontend.modes import uses_batch_statistics
from compiler.frontend.scope import KnownOperand, Scope
from compiler.warnings import few_of

_COMPUTED = re.compile(r"onnx::Conv(Transpose)?_\d+")
"""TorchScript's name of a convolution's weight that it computed: its own weight times the norm's scale."""
_CONTRACTIONS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def remark(scope: Scope, source: SourceModel) -> None:
    """Warns of all that the import left out, assumed, or could not do as its user wants."""
    if scope.batch_norm != "fold":
        _folded_norms(scope, source)
    if scope.batch_norm == "train":
        _standing_norms(scope, source)
    else:
        _training_norms(scope, source)
    if scope.dropout == "train":
        _no_dropouts(scope, source)
    else:
        _dropouts(scope, source)
    _in_evaluation(scope, source)
    _unused(scope, source)
    _damaged(scope, source)


def _folded_norms(scope: Scope, source: SourceModel) -> None:
    """The exporter was first: `batch_norm: frozen` or `train` finds no norm to keep."""
    folded = [_layer(node) for node in source.nodes if _holds_norm(node, source)]
    if folded:
        scope.warn(
            "model.batch_norm_folded",
            f"the exporter has folded {len(folded)} BatchNorms into the layers before them, so `batch_norm: "
            f"{scope.batch_norm}` does nothing there and the folded weights learn: {few_of(folded)}",
            where="spec.batch_norm",
            hint=f"{UNOPTIMIZED}, or dynamo=False, do_constant_folding=False; or say batch_norm: fold",
        )


def _holds_norm(node: SourceNode, source: SourceModel) -> bool:
    if node.op_type not in _CONTRACTIONS or source.producer != "pytorch":
        return False
    weight = node.inputs[1] if len(node.inputs) > 1 else ""
    return "batch_norm" in node.torch_op or _COMPUTED.fullmatch(weight) is not None or weight in source.normed


def _training_norms(scope: Scope, source: SourceModel) -> None:
    training = [_layer(node) for node in source.nodes if uses_batch_statistics(node)]
    if training:
        scope.warn(
            "model.batch_statistics",
            f"{len(training)} BatchNorms were exported in training mode; here they use their running statistics, "
            f"as in evaluation mode, and do not update them: {few_of(training)}",
            hint="call model.eval() before the export; or say batch_norm: train, which uses each batch's own",
        )


def _standing_norms(scope: Scope, source: SourceModel) -> None:
    """Warns of norms whose momentum keeps all of the old statistics: legal, and what the author may not have meant."""
    every = (node for node in source.nodes if node.op_type == "BatchNormalization")
    norms = [node for node in every if node.outputs[0] not in scope.evaluated]
    standing = [_layer(node) for node in norms if node.attributes.get("momentum") == 1.0]
    if standing:
        scope.warn(
            "model.standing_statistics",
            f"{len(standing)} BatchNorms have momentum 1, by which their running statistics stay as they are; PyTorch "
            f"writes momentum=None, a cumulative average, in the same way: {few_of(standing)}",
            hint="if they should change, give them a momentum before the export",
        )


def _dropouts(scope: Scope, source: SourceModel) -> None:
    nodes = [
        node for node in source.nodes if node.op_type == "Dropout" and _known_number(scope, node, 1, "ratio", 0.5) != 0
    ]
    if not nodes:
        return
    active = sum(bool(_known_number(scope, node, 2, "", 0)) for node in nodes)
    exported = f" ({active} of them exported in training mode)" if active else ""
    scope.warn(
        "model.dropout_ignored",
        f"{len(nodes)} Dropout nodes{exported} do nothing here, a training step drops no values: "
        f"{few_of([_layer(node) for node in nodes])}",
        hint="say dropout: train, or call model.eval() before the export",
    )


def _in_evaluation(scope: Scope, source: SourceModel) -> None:
    """Norms and dropouts that the file itself keeps from what the spec asks for; `fine_tune` tells of marked ones."""
    requested_modes = {"BatchNormalization": scope.batch_norm, "Dropout": scope.dropout}
    for kind, words, field in (("BatchNormalization", "BatchNorms", "batch_norm"), ("Dropout", "Dropouts", "dropout")):
        nodes = [node for node in source.nodes if node.op_type == kind and node.outputs[0] in scope.evaluated]
        names = [_layer(node) for node in nodes if not node.evaluates]
        if names and requested_modes[kind] == "train":
            scope.warn(
                "model.in_evaluation",
                f"{len(names)} {words} are in evaluation mode in a file where others train, and stay so: "
                f"{few_of(names)}",
                where=f"spec.{field}",
                hint="call model.train() before the export to let all of them train",
            )


def _no_dropouts(scope: Scope, source: SourceModel) -> None:
    """The exporter was first: in evaluation mode it leaves dropouts out."""
    stays = any(node.op_type == "Dropout" and node.outputs[0] in scope.evaluated for node in source.nodes)
    if not stays and not any(node.op == "dropout" for node in scope.builder.nodes):
        scope.warn(
            "model.no_dropout",
            "the file has no Dropout node that drops anything, so `dropout: train` does nothing",
            where="spec.dropout",
            hint="call model.train() before the export; a model exported in evaluation mode has lost them",
        )


def _known_number(scope: Scope, node: SourceNode, index: int, attribute: str, default: float) -> float:
    """The scalar in input `index` or an attribute; `default` if neither is there or known."""
    operand = scope.operands.get(node.inputs[index]) if index < len(node.inputs) else None
    if isinstance(operand, KnownOperand):
        return float(np.asarray(operand.array).reshape(-1)[0]) if operand.array.size else default
    value = node.attributes.get(attribute, default)
    return float(value) if isinstance(value, int | float) else default


def _unused(scope: Scope, source: SourceModel) -> None:
    inputs = [value.name for value in source.inputs if value.name not in scope.readers]
    if inputs:
        scope.warn(
            "model.unused_input",
            f"{len(inputs)} inputs are read by no node; they still need data: {few_of(inputs)}",
            hint="export the model without them",
        )
    stored = [
        name
        for name, array in source.initializers.items()
        if array.dtype.kind == "f" and array.ndim > 0 and name not in scope.readers
    ]
    if stored:
        scope.warn(
            "model.unused_tensor",
            f"{len(stored)} stored tensors are read by no node, so they neither learn nor are kept: {few_of(stored)}",
            hint="if they should learn, export the part of the model that reads them",
        )


def _damaged(scope: Scope, source: SourceModel) -> None:
    broken = [
        name
        for name, array in source.initializers.items()
        if array.dtype.kind == "f" and name in scope.readers and bool(np.isnan(array).any())
    ]
    if broken:
        scope.warn(
            "model.not_a_number",
            f"{len(broken)} stored tensors hold NaN, and so will all that is computed from them: {few_of(broken)}",
            hint="export the model again from weights that are whole",
        )


def _layer(node: SourceNode) -> str:
    """The module's path where the exporter tells it, else the node's name."""
    return node.module or node.name
