"""Computes a file by the `onnx` package's own evaluation, which is made to be read: small models only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from compiler.external import External
from compiler.tensors import Array

MAX_MODEL_BYTES, MAX_ELEMENTS = 16 << 20, 1 << 18
"""The limits of a file, and of its inputs together: what is computed within seconds."""


def outputs_of(model: bytes, external: External, batches: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """The outputs of a file by name, in its order, for each batch of inputs.

    Raises: ValueError with the reason where it cannot be evaluated.
    """
    proto = _parsed(model, external, batches[0])
    names = [value.name for value in proto.graph.output]
    evaluate = _evaluator(proto, names)
    outputs = [evaluate(feeds) for feeds in batches]
    if any(len(values) < len(names) for values in outputs):
        raise ValueError("it has outputs that are no tensors")
    return outputs


def values_of(model: bytes, external: External, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Returns every tensor that the nodes of a file compute or read. Raises: as `outputs_of`."""
    proto = _parsed(model, external, feeds)
    names = [name for node in proto.graph.node for name in node.output if name]
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    inputs = {value.name: feeds[value.name] for value in proto.graph.input if value.name in feeds}
    return {**inputs, **_evaluator(proto, names)(feeds)}


def _parsed(model: bytes, external: External, feeds: Mapping[str, Array]) -> onnx.ModelProto:
    if external:
        raise ValueError("the file keeps its weights beside it")
    if len(model) > MAX_MODEL_BYTES or sum(array.size for array in feeds.values()) > MAX_ELEMENTS:
        raise ValueError("the file or its example is large")
    return onnx.ModelProto.FromString(model)


def _evaluator(proto: onnx.ModelProto, names: Sequence[str]) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Computes outputs, called `names`, of inputs. Raises: as `outputs_of`, both here and when it is called."""
    inputs = [value.name for value in proto.graph.input]
    with _refused():
        evaluator = ReferenceEvaluator(proto)

    def evaluate(feeds: Mapping[str, Array]) -> dict[str, Array]:
        with _refused(), np.errstate(all="ignore"):
            computed = evaluator.run(None, {name: feeds[name] for name in inputs if name in feeds})
        tensors = (np.ndarray, np.generic)
        return {name: np.asarray(array) for name, array in zip(names, computed) if isinstance(array, tensors)}

    return evaluate


@contextmanager
def _refused() -> Iterator[None]:
    """The evaluation's errors have no common class: an operator that it lacks, or does otherwise."""
    try:
        yield
    except Exception as problem:
        raise ValueError(f"the onnx package does not evaluate it: {' '.join(str(problem).split())[:120]}") from None
