"""A file that was exported for training, as it computes when it does not train: what its modules' modes were."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from compiler.frontend.file.modes import EVALUATION, MODE


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


def with_evaluated(model: bytes, momenta: Mapping[float, float]) -> bytes:
    """The model whose norms of certain momenta are marked as in evaluation mode; they get the others in their place.

    In evaluation a norm's momentum has no effect, so that an exporter can carry with it which norm a node is.
    """
    proto = onnx.ModelProto.FromString(model)
    exact = {float(np.float32(marked)): intended for marked, intended in momenta.items()}
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        for node in nodes:
            for attribute in node.attribute if node.op_type == "BatchNormalization" else ():
                if attribute.name == "momentum" and attribute.f in exact:
                    attribute.f = exact[attribute.f]
                    node.metadata_props.add(key=MODE, value=EVALUATION)
    return bytes(proto.SerializeToString())
