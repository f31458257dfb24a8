"""Folded initializers that hold the elements of a parameter more than once, or of which others were made.

Rewrites: a lookup of a few rows of a table at known positions -> these rows, each once, and the lookup; a transposed or
reshaped copy of what is stored too -> a view of that. Ensures: each element is there once, so that it learns once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from compiler.frontend.exporters.folded import distinct_rows, operators_behind
from compiler.frontend.exporters.restoration import (
    Read,
    Restoration,
    argument_of,
    fresh,
    give_view,
    is_nowhere,
    see,
)
from compiler.frontend.file.source import SourceNode
from compiler.frontend.file.torch_record import UNOPTIMIZED
from compiler.graph import Array
from compiler.warnings import CompileWarning, few_of


def look_up(work: Restoration, name: str, reads: Sequence[Read]) -> str:
    """Let reads of a folded lookup see one of the table's rows that it shows; gives the name under which they learn."""
    distinct = distinct_rows(work.source.initializers[name])
    assert distinct is not None, "only what repeats rows is looked up"
    rows, positions = fresh(work, f"{name}:rows"), fresh(work, f"{name}:positions")
    work.initializers |= {rows: distinct.table, positions: distinct.positions.astype(np.int64)}
    value = _made(work, reads[0], "Gather", (rows, positions), {"axis": 0})
    rank = work.source.initializers[name].ndim
    if distinct.axis != rank - 1:
        order = [*range(rank - 1)]
        order.insert(distinct.axis, rank - 1)
        value = _made(work, reads[0], "Transpose", (value,), {"perm": tuple(order)})
    see(work, reads, value)
    return rows


def see_fresh_token(work: Restoration, name: str, reads: Sequence[Read]) -> bool:
    """A parameter of equal elements that was expanded: where its first axis is the batch, it is taken as one sample's.

    Which axes it was expanded along, equal elements do not show. That it was only the batch is a guess, and is said.
    """
    array = work.source.initializers[name]
    batches = {value.shape[0] for value in work.source.inputs if value.shape}
    is_expanded = operators_behind(name, work.record)[0] == ["expand"]
    if not is_expanded or array.ndim < 2 or array.shape[0] < 2 or batches != {array.shape[0]}:
        return False
    parameters = [_token(work, name, read) for read in reads]
    if "" in parameters or array[:1].size < 2 or not bool((array == array.reshape(-1)[0]).all()):
        return False
    for read, parameter in zip(reads, parameters, strict=True):
        give_view(work, read, parameter, array[:1], "Expand", {})
    what = f"taken as {list(array[:1].shape)}, repeated for every sample: the elements are equal, and do not tell"
    where = few_of(sorted(set(parameters)))
    work.warnings.append(CompileWarning("model.expanded", where, what, UNOPTIMIZED))
    return True


def _token(work: Restoration, name: str, read: Read) -> str:
    """The parameter behind one read: the one that was folded, or the only one that equals it and is nowhere else."""
    argument = argument_of(work, read)
    if argument == name:
        return work.record.origins(name)[0]
    nowhere = [parameter for parameter in work.record.parameters if is_nowhere(work, parameter)]
    is_expanded = bool(argument) and operators_behind(argument, work.record)[0] == ["expand"]
    return nowhere[0] if is_expanded and len(nowhere) == 1 else ""


def see_moved(work: Restoration, name: str, reads: Sequence[Read], others: Sequence[str]) -> bool:
    """Let reads see one of `others`, which the exporter computed `name` from, through a view that makes it."""
    array = work.source.initializers[name]
    for other in others[:_OTHERS]:
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


def _view(array: Array, target: Array) -> tuple[str, tuple[int, ...]] | None:
    """Returns the operation that makes the elements of one array those of another: a transpose, else a reshape."""
    if array.ndim == target.ndim <= _RANK:
        for perm in itertools.permutations(range(array.ndim)):
            if np.array_equal(array.transpose(perm), target):
                return "Transpose", perm
    return ("Reshape", ()) if np.array_equal(array.reshape(-1), target.reshape(-1)) else None


_RANK = 5
_OTHERS = 8
"""How many views are looked for; each takes a comparison for every order of the axes."""


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
