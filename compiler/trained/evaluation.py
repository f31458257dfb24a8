"""A file that was exported with its dropouts, as it computes when it does not train."""

from __future__ import annotations

import onnx


def without_training_mode(model: bytes) -> bytes:
    """The model whose Dropout nodes pass on what they read: their `training_mode` is left out, the nodes stay.

    Source: ONNX Dropout (13, 22); `dropout: train` in a spec lets them drop all the same.
    """
    proto = onnx.ModelProto.FromString(model)
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        for node in nodes:
            if node.op_type == "Dropout" and node.domain in ("", "ai.onnx"):
                del node.input[2:]
    return bytes(proto.SerializeToString())
