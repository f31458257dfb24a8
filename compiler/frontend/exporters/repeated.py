"""Folded initializers that hold the elements of a parameter more than once, or of which others were made.

Rewrites: a lookup of a few rows of a table at known positions -> these rows, each once, and the lookup; a transposed or
reshaped copy of what is stored too -> a view of that. Ensures: each element is there once, so that it learns once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from compiler.frontend.exporters.folded import distinct_rows
from compiler.frontend.exporters.restoration import Read, Restoration, fresh, see
from compiler.frontend.file.source import SourceNode
from compiler.graph import Array


def look_up(work: Restoration, name: str, reads: Sequence[Read]) -> str:
    """Let reads of a folded lookup see one of the table's rows that it shows; gives the name under which they learn."""
    found = distinct_rows(work.source.initializers[name])
    assert found is not None, "only what repeats rows is looked up"
    rows, positions = fresh(work, f"{name}:rows"), fresh(work, f"{name}:positions")
    work.initializers |= {rows: found.table, positions: found.positions.astype(np.int64)}
    value = _made(work, reads[0], "Gather", (rows, positions), {"axis": 0})
    rank = work.source.initializers[name].ndim
    if found.axis != rank - 1:
        order = [*range(rank - 1)]
        order.insert(found.axis, rank - 1)
        value = _made(work, reads[0], "Transpose", (value,), {"perm": tuple(order)})
    see(work, reads, value)
    return rows


def see_moved(work: Restoration, name: str, reads: Sequence[Read], others: Sequence[str]) -> bool:
    """Let reads see one of `others`, which the exporter computed `name` from, through a view that makes it."""
    array = work.source.initializers[name]
    for other in others:
        value = work.stands_for.get(other, "")
        view = _view(work.source.initializers[other], array) if value else None
        if view is None:
            continue
        op_type, perm = view
        if op_type == "Transpose":
            value = _made(work, reads[0], op_type, (value,), {"perm": perm})
        else:
            shape = fresh(work, f"{name}:shape")
            work.initializers[shape] = np.asarray(array.shape, np.int64)
            value = _made(work, reads[0], op_type, (value, shape), {})
        see(work, reads, value)
        return True
    return False


def _view(array: Array, wanted: Array) -> tuple[str, tuple[int, ...]] | None:
    """What makes the elements of one array those of another: a transpose, else a reshape."""
    if array.ndim == wanted.ndim <= _RANK:
        for perm in itertools.permutations(range(array.ndim)):
            if np.array_equal(array.transpose(perm), wanted):
                return "Transpose", perm
    return ("Reshape", ()) if np.array_equal(array.reshape(-1), wanted.reshape(-1)) else None


_RANK = 5


def _made(
    work: Restoration,
    read: Read,
    op_type: str,
    inputs: tuple[str, ...],
    attributes: Mapping[str, int | tuple[int, ...]],
) -> str:
    node = work.source.nodes[read.node]
    output = fresh(work, f"{inputs[0]}:{op_type.lower()}")
    work.prologue.append(SourceNode(node.name, op_type, inputs, (output,), attributes, node.module, node.torch_op))
    return output
