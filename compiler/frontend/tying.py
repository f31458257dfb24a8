"""Finds tied embeddings that an exporter stored twice: the table of a Gather and its transpose for the output layer.

PyTorch's exporters fold `Transpose(embedding)` into a second initializer, which would train on its own.
"""

from __future__ import annotations

import numpy as np

from compiler.frontend.scope import Known
from compiler.frontend.source import SourceModel
from compiler.graph import Array


def tied_copies(source: SourceModel) -> dict[str, Known]:
    """Initializers whose elements are those of an embedding table (transposed or not), as views of that table."""
    tables = {node.inputs[0] for node in source.nodes if node.op_type == "Gather" and node.inputs}
    multiplied = {name for node in source.nodes if node.op_type in ("MatMul", "Gemm") for name in node.inputs}
    copies: dict[str, Known] = {}
    for table in sorted(tables & set(source.initializers) - multiplied):
        rows = source.initializers[table]
        if rows.dtype != np.float32 or rows.ndim != 2 or min(rows.shape) < 2 or bool((rows == rows[0, 0]).all()):
            continue
        for name in sorted(multiplied & set(source.initializers)):
            perm = _as_view(source.initializers[name], rows)
            if perm is not None:
                copies[name] = Known(name, rows.transpose(perm), source=table, perm=perm)
    return copies


def _as_view(array: Array, table: Array) -> tuple[int, int] | None:
    """The permutation of the table's axes that gives `array`, or None."""
    if array.dtype != table.dtype or array.ndim != 2:
        return None
    if array.shape == table.shape and np.array_equal(array, table):
        return (0, 1)
    return (1, 0) if array.shape == table.shape[::-1] and np.array_equal(array, table.T) else None
