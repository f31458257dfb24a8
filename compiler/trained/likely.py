"""The nodes of a file that give something else than the parts of its module do: by values, whatever they are called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from compiler.external import External
from compiler.tensors import Array
from compiler.trained.evaluated import values_of
from compiler.warnings import few_of

CLOSE = 1e-3
"""The tolerance, as a share of a tensor's largest element."""


@dataclass(frozen=True)
class Part:
    """A call of a part of a module: its path and class, what it read and gave."""

    path: str
    kind: str
    read: Sequence[Array]
    gave: Array


def likely_nodes(model: bytes, external: External, feeds: Mapping[str, Array], parts: Sequence[Part]) -> str:
    """Words on where the file first differs from the module; empty where that cannot be seen."""
    try:
        values = values_of(model, external, feeds)
    except ValueError:  # the message does without
        return ""
    graph = onnx.ModelProto.FromString(model).graph
    for part in parts:
        if any(_alike(part.gave, array) for array in values.values()):
            continue
        starts = {name for name, array in values.items() if any(_alike(array, read) for read in part.read)}
        nodes = list(_between(graph, starts, values, part.gave.shape))
        where = f" in {few_of(nodes)}" if nodes else ""
        return f"likely{where}: nothing in the file is what {part.path!r} ({part.kind}) gives"
    return "likely in forward() of the module itself: what its parts give is in the file" if parts else ""


def _between(graph: Any, starts: set[str], values: Mapping[str, Array], shape: tuple[int, ...]) -> Iterator[str]:
    """Nodes behind what a part reads, up to the first that gives its shape."""
    reached = set(starts)
    for node in graph.node:
        if not reached & set(node.input):
            continue
        yield f"node {node.name!r} ({node.op_type})"
        reached |= set(node.output)
        if any(name in values and values[name].shape == shape for name in node.output):
            return


def _alike(array: Array, other: Array) -> bool:
    """Whether two arrays have equal elements within rounding, in the same order: axes of one may be put elsewhere."""
    if array.size != other.size or array.dtype.kind != other.dtype.kind:
        return False
    if array.dtype.kind != "f":
        return bool(np.array_equal(array.reshape(-1), other.reshape(-1)))
    size = float(np.abs(other[np.isfinite(other)]).max(initial=0.0))
    return bool(np.allclose(array.reshape(-1), other.reshape(-1), rtol=0, atol=CLOSE * size, equal_nan=True))
