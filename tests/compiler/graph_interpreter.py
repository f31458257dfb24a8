"""Runs a graph node by node with NumPy: the meaning that every other stage is checked against."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.graph import Array, Graph
from compiler.ops import OPERATORS
from compiler.values import Value


def evaluate_graph(
    graph: Graph, feeds: Mapping[Value, Array], *, real: type[np.floating] = np.float64
) -> dict[Value, Array]:
    """Values of every tensor of the graph; real tensors are computed in `real` precision.

    `feeds` overrides arrays of the graph (parameters) as well as binding inputs. What IEEE 754 makes an infinity or NaN
    is one, as in a kernel, and no reason to warn.
    """
    values: dict[Value, Array] = {name: _as_real(array, real) for name, array in graph.arrays.items()}
    values.update({name: _as_real(np.asarray(array), real) for name, array in feeds.items()})
    for node in graph.nodes:
        operands = [values[name] for name in node.inputs]
        with np.errstate(all="ignore"):
            results = OPERATORS[node.op].evaluate(operands, node.attrs)
        values.update(zip(node.outputs, results, strict=True))
    return values


def _as_real(array: Array, real: type[np.floating]) -> Array:
    return array.astype(real) if array.dtype.kind == "f" else array
