"""Resolves reads that no call of the exported program names where the file has them: views that are gone, folded or
merged tensors.

Parameters whose elements are still there learn in place; the others are unlearnable, and that is said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from compiler.frontend.exporters.folded import Folded, once, standing_for
from compiler.frontend.exporters.put_back import put_back, tell_of_computed_back
from compiler.frontend.exporters.repeated import look_up, see_fresh_token, see_moved
from compiler.frontend.exporters.restoration import Read, Restoration, constant_copy, give, give_view
from compiler.frontend.file.source import SourceNode
from compiler.frontend.file.torch_record import UNOPTIMIZED, TorchRecord
from compiler.warnings import CompileWarning, few_of

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
            _settle_untold(work, read, readers)
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


def _settle_untold(work: Restoration, read: Read, readers: Mapping[str, Sequence[SourceNode]]) -> None:
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
    """Let reads see a parameter that the file holds too, if what was folded is its transpose or has its elements."""
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
    """True for the scale or shift of a BatchNorm, which the exporter folds into a convolution."""
    return f"{name.rpartition('.')[0]}.running_mean".lstrip(".") in record.buffers
