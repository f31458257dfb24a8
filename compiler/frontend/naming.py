"""Gives back to folded weights the names and layouts that they have in the PyTorch module they came from.

PyTorch's exporters fold the transpose in front of every Linear's product into the weight and call the result `val_47`
(dynamo) or `onnx::MatMul_372` (TorchScript), so that no plan could name it and no module could load it back.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import numpy as np

from compiler.frontend.scope import Known
from compiler.frontend.source import SourceModel, SourceNode
from compiler.graph import Array

_FOLDED = re.compile(r"val_\d+|onnx::MatMul_\d+")
"""Names that the exporters make up; a parameter that they leave as it is keeps its own."""
_TRANSPOSED = (1, 0)


def folded_weights(source: SourceModel, tied: Collection[str]) -> dict[str, Known]:
    """Initializers that are the transposed weight of a PyTorch Linear, as views of `<module>.weight`.

    `tied` are initializers that are views of another parameter already. A name that some other tensor holds is left.
    """
    if source.producer != "pytorch":
        return {}
    taken: dict[str, Array] = dict(source.initializers)
    views: dict[str, Known] = {}
    for node in source.nodes:
        name = node.inputs[1] if node.op_type == "MatMul" and len(node.inputs) == 2 else ""
        if name in views or name in tied or not _is_linear(node, name, source.initializers):
            continue
        own, array = f"{node.module}.weight", source.initializers[name]
        if own in taken and not np.array_equal(taken[own], array.T):
            continue
        taken[own] = array.T
        views[name] = Known(name, array, source=own, perm=_TRANSPOSED)
    return views


def _is_linear(node: SourceNode, name: str, initializers: Mapping[str, Array]) -> bool:
    """True if the node multiplies by a weight that the exporter transposed. Only dynamo tells the operator."""
    array = initializers.get(name)
    if array is None or array.ndim != 2 or array.dtype != np.float32 or not node.module:
        return False
    return _FOLDED.fullmatch(name) is not None and node.torch_op in ("", "aten.linear.default")
