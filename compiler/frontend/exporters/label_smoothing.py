"""The label smoothing of a cross-entropy, which PyTorch's exporter drops without a word.

Rewrites: SoftmaxCrossEntropyLoss whose call says `label_smoothing` s -> (1 - s) of it + s times the mean of
-log softmax over the classes. Requires: no class weights, else the model is refused. Why: another loss would train.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from compiler.errors import UnsupportedOperator
from compiler.frontend.file.source import AttributeValue, SourceModel, SourceNode, free_name

_CALL = "aten.cross_entropy_loss"
_SMOOTHING = 5
"""The position of the smoothing among the call's arguments."""


def smooth_labels(source: SourceModel) -> SourceModel:
    """The model with each cross-entropy as its author wrote it. Raises: UnsupportedOperator, with class weights."""
    smoothed = {node.outputs[0]: _smoothing(node) for node in source.nodes if node.torch_op.startswith(_CALL)}
    if not any(smoothed.values()):
        return source
    used_names = source.value_names()
    nodes: list[SourceNode] = []
    for node in source.nodes:
        share = smoothed.get(node.outputs[0], 0.0) if node.op_type == "SoftmaxCrossEntropyLoss" else 0.0
        nodes += _Smoothed(node, used_names).nodes_for(share) if share else [node]
    return replace(source, nodes=tuple(nodes))


def _smoothing(node: SourceNode) -> float:
    arguments = node.call.written
    try:
        return float(arguments[_SMOOTHING]) if len(arguments) > _SMOOTHING else 0.0
    except ValueError:
        return 0.0


class _Smoothed:
    """Writes the nodes that stand in a loss's place; the last has its name."""

    def __init__(self, node: SourceNode, used_names: set[str]) -> None:
        self.node, self.used_names = node, used_names
        self.nodes: list[SourceNode] = []

    def nodes_for(self, share: float) -> Sequence[SourceNode]:
        """(1 - s) hard + s smooth; samples whose label is ignored count in neither."""
        if self.node.operand(2):
            raise UnsupportedOperator(
                f"PyTorch's exporter drops label_smoothing={share:g} of a cross-entropy with class weights",
                where=self.node.where,
                hint="write the loss out by log_softmax, or take the logits out and give the loss in the spec",
            )
        scores, labels = self.node.inputs[:2]
        hard = self._write(self.node.op_type, (scores, labels), self.node.attributes)
        spread = self._add("LogSoftmax", scores, axis=1)
        spread = self._add("Neg", self._add("ReduceMean", spread, self._constant(np.asarray([1])), keepdims=0))
        ignored = self.node.attributes.get("ignore_index", -100)
        counts = self._add("Not", self._add("Equal", labels, self._constant(np.asarray(ignored, np.int64))))
        smooth = self._add("Where", counts, spread, self._constant(np.asarray(0, np.float32)))
        reduction = self.node.attributes.get("reduction", "mean")
        if reduction != "none":
            smooth = self._add("ReduceSum", smooth, keepdims=0)
        if reduction == "mean":
            smooth = self._add("Div", smooth, self._add("ReduceSum", self._add("Cast", counts, to=1), keepdims=0))
        parts = [
            self._add("Mul", part, self._constant(np.asarray(weight, np.float32)))
            for part, weight in ((hard, 1 - share), (smooth, share))
        ]
        self._add("Add", *parts, output=self.node.outputs[0])
        return self.nodes

    def _constant(self, value: np.ndarray) -> str:
        return self._add("Constant", value=value)

    def _add(self, op_type: str, *inputs: str, output: str = "", **attributes: AttributeValue) -> str:
        return self._write(op_type, inputs, attributes, output)

    def _write(
        self, op_type: str, inputs: tuple[str, ...], attributes: Mapping[str, AttributeValue], output: str = ""
    ) -> str:
        name = output or free_name(f"{self.node.outputs[0]}:{op_type.lower()}", self.used_names)
        self.nodes.append(replace(self.node, op_type=op_type, inputs=inputs, outputs=(name,), attributes=attributes))
        return name
