"""What a file computes by the `onnx` package's own evaluation, which is made to be read: small models only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from compiler.external import External
from compiler.tensors import Array

MAX_MODEL_BYTES, MAX_ELEMENTS = 16 << 20, 1 << 18
"""Of a file, and of its inputs together: what is computed within seconds."""


def outputs_of(model: bytes, external: External, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a file by name, in its order. Raises: ValueError with the reason where it cannot be evaluated."""
    proto = _parsed(model, external, feeds)
    names = [value.name for value in proto.graph.output]
    values = _evaluated(proto, names, feeds)
    if len(values) < len(names):
        raise ValueError("it has outputs that are no tensors")
    return values


def values_of(model: bytes, external: External, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor that the nodes of a file compute or read. Raises: as `outputs_of`."""
    proto = _parsed(model, external, feeds)
    names = [name for node in proto.graph.node for name in node.output if name]
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    inputs = {value.name: feeds[value.name] for value in proto.graph.input if value.name in feeds}
    return {**inputs, **_evaluated(proto, names, feeds)}


def _parsed(model: bytes, external: External, feeds: Mapping[str, Array]) -> onnx.ModelProto:
    if external:
        raise ValueError("the file keeps its weights beside it")
    if len(model) > MAX_MODEL_BYTES or sum(array.size for array in feeds.values()) > MAX_ELEMENTS:
        raise ValueError("the file or its example is large")
    return onnx.ModelProto.FromString(model)


def _evaluated(proto: onnx.ModelProto, names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
    inputs = {value.name: feeds[value.name] for value in proto.graph.input if value.name in feeds}
    try:
        with np.errstate(all="ignore"):
            computed = ReferenceEvaluator(proto).run(None, inputs)
    except Exception as problem:  # its errors have no common class: an operator that it lacks, or does otherwise
        raise ValueError(f"the onnx package does not evaluate it: {' '.join(str(problem).split())[:120]}") from None
    return {
        name: np.asarray(array) for name, array in zip(names, computed) if isinstance(array, (np.ndarray, np.generic))
    }
