"""Resolves reads that no call of the exported program names where the file has them: views that are gone, folded or
merged tensors.

Parameters whose elements are still there learn in place; the others are unlearnable, and that is said.

Folded initializers that hold the elements of a parameter more than once, or of which others were made.

Rewrites: a lookup of a few rows of a table at known positions -> these rows, each once, and the lookup; a transposed or
reshaped copy of what is stored too -> a view of that. Ensures: each element is there once, so that it learns once.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from compiler.frontend.exporters.folded import Folded, distinct_rows, once, operators_behind, standing_for
from compiler.frontend.exporters.put_back import put_back, tell_of_computed_back
from compiler.frontend.exporters.restoration import (
    Read,
    Restoration,
    argument_of,
    constant_copy,
    fresh,
    give,
    give_view,
    is_nowhere,
    see,
)
from compiler.frontend.file.source import SourceNode
from compiler.frontend.file.torch_record import UNOPTIMIZED, TorchRecord
from compiler.graph import Array
from compiler.warnings import CompileWarning, few_of


def look_up(work: Restoration, name: str, reads: Sequence[Read]) -> str:
    """Lets reads of a folded lookup see one of the table's rows that it shows. Returns the name under which they
    learn.
    """
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
    """Lets reads see one of `others`, from which the exporter computed `name`, through a view that makes it."""
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
"""The most views that are looked for; each takes a comparison for every order of the axes."""


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


_NEUTRAL = frozenset({"mul", "add", "sub", "div", "rsub", "pow"})
"""Operators that the exporter drops where an operand makes them do nothing: a fresh scale of one, say."""
_NUMBERED = re.compile(r"_\d+$")


def settle_unexplained(work: Restoration) -> None:
    """Reads that no argument of their call names: through a view that is gone, folded, or merged with a constant."""
    values = {*work.record.inputs, *(node.call.result for node in work.source.nodes)}
    readers = _readers(work)
    folded: dict[str, list[Read]] = {}
    for read in work.unexplained:
        if not work.record.knows(read.name):
            folded.setdefault(read.name, []).append(read)
            continue
        arguments = work.source.nodes[read.node].call.arguments
        if not arguments and read.name in work.called:
            _settle_merged_call(work, read, readers)
            continue
        hidden = [name for name in arguments if name not in values and name not in work.record.targets]
        if arguments and not hidden:
            # The exporter's own ones or zeros, stored once with a fresh norm or bias.
            work.inputs[read.node][read.index] = constant_copy(work, read.name)
        elif hidden and read.name in work.called and read.name in work.record.parameters:
            work.inputs[read.node][read.index] = constant_copy(work, read.name)
            work.unlearnable[read.name] = f"it is stored once with what the exporter computed as {hidden[0]!r}"
            work.merged = True
    roots = {name: reads for name, reads in folded.items() if not _made_of(work, name, folded)}
    pieces = Counter(origin for name in roots for origin in work.record.origins(name))
    kinds = {name: standing_for(name, work.record, work.source.initializers[name]) for name in roots}
    # Those that are a whole parameter come first: of what others were computed with, the file holds the elements then.
    for name in sorted(roots, key=lambda name: kinds[name] is not Folded.TRANSPOSED):
        _settle_folded(work, name, roots[name], kinds[name], pieces)
    for name, reads in folded.items():
        if name not in roots and not see_moved(work, name, reads, _made_of(work, name, folded)):
            _refuse_folded(work, name)


def _made_of(work: Restoration, name: str, folded: Collection[str]) -> list[str]:
    """The folded initializers that the exporter computed another one from, and that the file still holds."""
    return [other for other in work.record.folded_from[name] if other in folded and other != name]


def _readers(work: Restoration) -> Mapping[str, Sequence[SourceNode]]:
    readers: dict[str, list[SourceNode]] = {}
    for node in work.source.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    return readers


def _settle_merged_call(work: Restoration, read: Read, readers: Mapping[str, Sequence[SourceNode]]) -> None:
    """A read by a node that the exporter made of several calls, of a tensor that other calls name.

    It may be another parameter with equal elements, stored once: that of the modules which read the node's outputs, if
    nothing else names theirs.
    """
    node, leaf = work.source.nodes[read.node], read.name.rpartition(".")[2]
    missing = {name for name in work.record.parameters - work.called if name not in work.initializers}
    modules = {reader.module for output in node.outputs for reader in readers.get(output, ())}
    module_tensors = {f"{module}.{leaf}".lstrip(".") for module in modules}
    if read.name in module_tensors:
        return
    candidates = sorted(module_tensors & missing)
    if len(candidates) == 1:
        give(work, read, candidates[0])
    elif any(name.rpartition(".")[2] == leaf for name in missing):
        work.unlearnable[read.name] = "it is stored once with a parameter that has equal elements"
        work.merged = True


def _settle_folded(
    work: Restoration, name: str, reads: Sequence[Read], folding: Folded, pieces: Mapping[str, int]
) -> None:
    """`pieces` counts the initializers that were folded from each parameter."""
    parameters = work.record.origins(name)
    alive = [parameter for parameter in parameters if parameter in work.initializers]
    whole = len(parameters) == 1 and (pieces[parameters[0]] == 1 or folding is Folded.TRANSPOSED)
    if whole and not alive and folding is not Folded.COMPUTED:
        _train_in_place(work, name, reads, parameters[0], folding)
        return
    if (
        len(parameters) == 1
        and alive
        and folding is not Folded.COMPUTED
        and _see_view(work, name, reads, parameters[0])
    ):
        return
    if len(parameters) == 1 == pieces[parameters[0]] and not alive and see_fresh_token(work, name, reads):
        return
    if put_back(work, name, reads, in_one_piece=all(pieces[parameter] == 1 for parameter in parameters)):
        return
    _refuse_folded(work, name)


def _refuse_folded(work: Restoration, name: str) -> None:
    for parameter in work.record.origins(name):
        work.unlearnable[parameter] = f"PyTorch's exporter folded it into the constant {name!r}"


def _see_view(work: Restoration, name: str, reads: Sequence[Read], parameter: str) -> bool:
    """Lets reads see a parameter that the file holds too, if what was folded is its transpose or has its elements."""
    array, stored = work.source.initializers[name], work.initializers[parameter]
    if array.ndim == 2 and np.array_equal(array.T, stored):
        view: tuple[str, dict[str, tuple[int, ...]]] = ("Transpose", {"perm": (1, 0)})
    elif array.size == stored.size and np.array_equal(array.reshape(-1), stored.reshape(-1)):
        view = ("Reshape", {})
    else:
        return False
    for read in reads:
        give_view(work, read, parameter, stored, *view)
    return True


def _train_in_place(work: Restoration, name: str, reads: Sequence[Read], parameter: str, folding: Folded) -> None:
    """Lets what the exporter moved, element by element, learn as the parameter does."""
    array = work.source.initializers[name]
    if folding is Folded.TRANSPOSED:
        for read in reads:
            give_view(work, read, parameter, array.T, "Transpose", {"perm": (1, 0)})
        return
    if folding is Folded.EXPANDED:
        for read in reads:
            give_view(work, read, parameter, once(array), "Expand", {})
        name, array = parameter, work.initializers[parameter]
    if folding is Folded.REPEATED:
        name = look_up(work, name, reads)
        array = work.initializers[name]
    work.constants.discard(name)
    for read in reads:
        work.stands_for.setdefault(read.name, read.name)
    work.warnings.append(
        CompileWarning(
            "model.folded_view",
            f"parameter {parameter!r}",
            f"the file holds only what PyTorch's exporter took of it, as {name!r} {list(array.shape)}, which learns in"
            " its place",
            UNOPTIMIZED,
        )
    )


def tell_what_is_missing(work: Restoration) -> None:
    """Warnings of parameters that cannot learn, and of those that the file does not hold at all."""
    record = work.record
    _refuse_unnamed(work)
    tell_of_computed_back(work)
    present = set(work.initializers) | set(work.unlearnable)
    present |= {origin for name in work.source.initializers for origin in record.origins(name)}
    missing = sorted(name for name in record.parameters - present if not _of_norm(name, record))
    dropped = _dropped_calls(work)
    if work.merged or dropped:
        merged = "it was folded, and the result stored once with another tensor"
        why = merged if work.merged else f"it dropped {dropped[0]!r}"
        work.unlearnable.update(dict.fromkeys(missing, f"PyTorch's exporter took it out of the file: {why}"))
    elif missing:
        work.warnings.append(
            CompileWarning(
                "model.absent_parameters",
                few_of(missing),
                "the file does not hold them: the outputs do not depend on them, or PyTorch's exporter dropped them",
                f"if they should learn, {UNOPTIMIZED}",
            )
        )
    if work.unlearnable:
        reasons = "; ".join(dict.fromkeys(work.unlearnable.values()))
        work.warnings.append(
            CompileWarning(
                "model.folded_parameters", few_of(sorted(work.unlearnable)), f"cannot learn: {reasons}", UNOPTIMIZED
            )
        )


def _refuse_unnamed(work: Restoration) -> None:
    """Parameters that the file reads, but never as what the record says of the call that reads them."""
    read = {name for inputs in (*work.inputs, *(node.inputs for node in work.prologue)) for name in inputs}
    for name in {name for node in work.source.nodes for name in node.inputs} - read:
        if name in work.record.parameters:
            work.unlearnable.setdefault(name, "no call of the exported program names it where the file reads it")


def _dropped_calls(work: Restoration) -> list[str]:
    """Calls of the program that nothing in the file computes, though others read them: `x * 1` and the like."""
    record = work.record
    there = {*record.targets, *record.inputs, *work.source.initializers}
    there |= {node.call.result for node in work.source.nodes}
    read = {name for node in work.source.nodes for name in node.call.arguments} | record.outputs
    return sorted(name for name in read - there if _NUMBERED.sub("", name) in _NEUTRAL)


def _of_norm(name: str, record: TorchRecord) -> bool:
    """Whether a tensor is the scale or shift of a BatchNorm, which the exporter folds into a convolution."""
    return f"{name.rpartition('.')[0]}.running_mean".lstrip(".") in record.buffers
