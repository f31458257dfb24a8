"""Undoes what PyTorch's exporter did to the parameters of a module: the file, as if it had not been optimized.

The exporter stores equal tensors once, drops zero biases, folds the transpose in front of a Linear into its weight, and
computes whatever depends on parameters alone. Its record of the exported program (`torch_record`) says which parameter
each call reads, so each reader gets its own parameter back, under the module's name and in the module's layout.

What was folded by arithmetic is lost: such a parameter is `unlearnable`, with the reason.

Names of tensors that several modules share: the first one, as `module.named_parameters()` has it.

Where a module cuts gradients off by `detach()`: PyTorch's exporter writes an Identity, which its optimizer drops.

The call that reads what was cut off still names it, so the cut is put back in front of that call's node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from compiler.frontend.exporters.restoration import Read, Restoration, constant_copy, fresh, give, hold
from compiler.frontend.exporters.unexplained import settle_unexplained, tell_what_is_missing
from compiler.frontend.file.source import SourceModel, SourceNode
from compiler.frontend.file.torch_record import DETACH, UNOPTIMIZED, TorchRecord
from compiler.graph import Array
from compiler.warnings import CompileWarning

_CUT = re.compile(r"detach(_\d+)?")


def restore_cuts(work: Restoration, calls: Sequence[Sequence[int]]) -> None:
    """Puts a cut in front of each call that reads one that the file has no node for."""
    produced = {name for node in work.source.nodes for name in (*node.outputs, node.call.result)}
    produced |= work.record.inputs | work.record.targets.keys()
    for positions in calls:
        missing = [name for name in work.source.nodes[positions[0]].call.arguments if name not in produced]
        if missing and all(_CUT.fullmatch(name) for name in missing):
            _restore(work, positions, missing)


def _restore(work: Restoration, positions: Sequence[int], missing: Sequence[str]) -> None:
    nodes = [work.source.nodes[position] for position in positions]
    inner = {name for node in nodes for name in node.outputs}
    provided = {*nodes[0].call.arguments, *inner, *work.source.initializers}
    external = {name for node in nodes for name in node.inputs if name and name not in provided}
    if len(external) != 1 or len(set(missing)) != 1:
        work.warnings.append(
            CompileWarning(
                "model.detached",
                f"node {nodes[0].name!r}",
                f"reads {missing[0]!r}, a detach() that PyTorch's exporter dropped: gradients pass there",
                UNOPTIMIZED,
            )
        )
        return
    (source,) = external
    cut = fresh(work, f"{source}:detach")
    work.cuts.setdefault(positions[0], []).append(
        SourceNode(f"{nodes[0].name} detach", "Identity", (source,), (cut,), {}, nodes[0].module, DETACH)
    )
    for position in positions:
        work.inputs[position] = [cut if name == source else name for name in work.inputs[position]]


def with_first_names(source: SourceModel, record: TorchRecord) -> tuple[SourceModel, TorchRecord]:
    """Shared tensors under the first of their names, as `module.named_parameters()` has them.

    The exporter calls them by the last, and writes no tensor for the first, of which no call tells. It shows where the
    file has no tensor for a name that a module must have itself: a layer that reads a tensor of another module, or a
    module whose own layer has one of that name.
    """
    called = {record.targets[name] for node in source.nodes for name in node.call.arguments if name in record.targets}
    folded = {origin for origins in record.folded_from.values() for origin in origins}
    absent = record.parameters - called - folded - source.initializers.keys()
    order = {target: position for position, target in enumerate(record.targets.values())}
    first: dict[str, str] = {}
    for node in source.nodes:
        for name in node.call.arguments:
            target = record.targets.get(name, "")
            layer, _, leaf = target.rpartition(".")
            candidates = [f"{module}.{leaf}".lstrip(".") for module in (node.module, layer.rpartition(".")[0])]
            if target in record.parameters:
                missing = (name for name in candidates if name in absent)
                first[target] = min(*missing, first.get(target, target), target, key=order.__getitem__)
    claims = Counter(first.values())
    first = {target: name for target, name in first.items() if name != target and claims[name] == 1}
    if not first:
        return source, record

    def renamed(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(first.get(name, name) for name in names)

    record = replace(
        record,
        targets={argument: first.get(target, target) for argument, target in record.targets.items()},
        parameters=record.parameters - first.keys() | set(first.values()),
        folded_from={name: renamed(origins) for name, origins in record.folded_from.items()},
    )
    nodes = tuple(replace(node, inputs=renamed(node.inputs)) for node in source.nodes)
    initializers = {first.get(name, name): array for name, array in source.initializers.items()}
    return replace(source, nodes=nodes, initializers=initializers, record=record), record


_NORMS = ("aten._native_batch_norm", "aten.batch_norm", "aten.cudnn_batch_norm")
_DROPS_ZERO_BIAS = ("Conv", "ConvTranspose", "Gemm")
_STAND_INS = (("aten.group_norm", "InstanceNormalization"),)
"""(operator, ONNX node of its decomposition) whose scale and shift are ones and zeros, no parameters."""


def restore_parameters(source: SourceModel) -> SourceModel:
    """The model with every parameter of the module under its own name; unchanged if the file has no record."""
    if source.record is None:
        return source
    source, record = with_first_names(source, source.record)
    work = Restoration(source, record, [list(node.inputs) for node in source.nodes], dict(source.initializers))
    work.constants = {name for name in source.initializers if name not in record.parameters}
    work.used_names = {value.name for value in source.inputs} | {name for node in source.nodes for name in node.outputs}
    calls = _calls(source)
    arguments = {name for node in source.nodes for name in node.call.arguments}
    work.called = {target for name, target in record.targets.items() if name in arguments}
    for positions in calls:
        _restore_call(work, positions)
    restore_cuts(work, calls)
    settle_unexplained(work)
    tell_what_is_missing(work)
    nodes = (
        restored
        for i, node in enumerate(source.nodes)
        for restored in (*work.cuts.get(i, ()), replace(node, inputs=tuple(work.inputs[i])))
    )
    return replace(
        source,
        nodes=(*work.prologue, *nodes),
        initializers=work.initializers,
        constants=frozenset(work.constants),
        created=frozenset(work.created),
        unlearnable=work.unlearnable,
        warnings=(*source.warnings, *work.warnings),
    )


def _calls(source: SourceModel) -> list[list[int]]:
    """Positions of the nodes of each call of the exported program; a node without a call is one of its own."""
    groups: dict[str, list[int]] = {}
    for position, node in enumerate(source.nodes):
        groups.setdefault(node.call.result or f" {position}", []).append(position)
    return list(groups.values())


def _restore_call(work: Restoration, positions: Sequence[int]) -> None:
    nodes = [work.source.nodes[position] for position in positions]
    if nodes[0].torch_op.startswith(_NORMS) and any(node.op_type in _DROPS_ZERO_BIAS for node in nodes):
        _restore_fused_norm(work, positions)
        return
    members = [work.record.targets[name] for name in nodes[0].call.arguments if name in work.record.targets]
    reads = [read for position in positions for read in _reads(work, position)]
    matches, unmatched = _match(work, reads, list(dict.fromkeys(members)))
    for read, member in zip(reads, matches, strict=True):
        if member is None:
            work.unexplained.append(read)
        else:
            give(work, read, member)
    for member in unmatched:
        _restore_dropped(work, positions, member)


def _reads(work: Restoration, position: int) -> list[Read]:
    node = work.source.nodes[position]
    stands_in = any(node.torch_op.startswith(op) and node.op_type == op_type for op, op_type in _STAND_INS)
    reads = []
    for index, name in enumerate(node.inputs):
        array = work.source.initializers.get(name)
        if array is None or array.dtype.kind != "f" or not (work.record.knows(name) or work.record.origins(name)):
            continue
        if stands_in:
            work.inputs[position][index] = constant_copy(work, name)
        else:
            reads.append(Read(position, index, name))
    return reads


def _match(work: Restoration, reads: Sequence[Read], members: list[str]) -> tuple[list[str | None], list[str]]:
    """The member of the call that each read stands for (None: none), and the members that no read stands for.

    What is there under its own name, or folded from one member, is clear. The others are merged with equal tensors;
    they follow in the order of the call's arguments.
    """
    matches: dict[Read, str] = {}
    free = list(members)
    times = Counter(read.name for read in reads)
    for read in reads:
        direct_member = _member_named(work, read.name, free)
        if direct_member and times[read.name] == 1:
            matches[read] = direct_member
            free.remove(direct_member)
    for read in reads:
        if read in matches:
            continue
        member = next((name for name in free if _may_be(work, name, read)), None)
        if member is not None:
            matches[read] = member
            free.remove(member)
        else:
            direct_member = _member_named(work, read.name, members)
            if direct_member:
                matches[read] = direct_member
    return [matches.get(read) for read in reads], free


def _member_named(work: Restoration, name: str, members: Sequence[str]) -> str:
    """The member that an initializer is by its name or its only origin, or an empty text."""
    if name in members:
        return name
    origins = [origin for origin in work.record.origins(name) if origin in members]
    return origins[0] if len(origins) == 1 == len(work.record.origins(name)) else ""


def _may_be(work: Restoration, member: str, read: Read) -> bool:
    """Whether the file does not hold the member, or holds it as the tensor that is read."""
    stored = work.source.initializers.get(member)
    array = work.source.initializers[read.name]
    return stored is None or (stored.shape == array.shape and np.array_equal(stored, array))


# --------------------------------------------------------------------------------------------------- dropped and fused


def _restore_dropped(work: Restoration, positions: Sequence[int], member: str) -> None:
    """A zero bias that the exporter took away from a convolution or product."""
    if member not in work.record.parameters or member in work.source.initializers:
        return
    for position in positions:
        node = work.source.nodes[position]
        weight = work.source.initializers.get(node.operand(1)) if node.op_type in _DROPS_ZERO_BIAS else None
        if weight is not None and len(node.inputs) == 2 == len(work.inputs[position]):
            _add_bias(work, position, member, weight)
            return


def _add_bias(work: Restoration, position: int, name: str, weight: Array) -> None:
    node = work.source.nodes[position]
    if weight.ndim < 2:
        return
    rows_are_outputs = node.op_type == "Conv" or (node.op_type == "Gemm" and bool(node.attributes.get("transB", 0)))
    outputs = weight.shape[0 if rows_are_outputs else 1]
    groups = node.attributes.get("group", 1)
    if node.op_type == "ConvTranspose" and isinstance(groups, int):
        outputs *= groups
    if hold(work, name, np.zeros(outputs, np.float32)):
        work.created.add(name)
        work.constants.discard(name)
        work.inputs[position][2:] = [name]


def _restore_fused_norm(work: Restoration, positions: Sequence[int]) -> None:
    """A convolution into which the exporter folded its BatchNormalization: the tensors are the file's own.

    Its zero bias is restored as `<weight>_bias`, as the exporter names the others.
    """
    for position in positions:
        node = work.source.nodes[position]
        weight = work.source.initializers.get(node.operand(1)) if node.op_type in _DROPS_ZERO_BIAS else None
        if weight is None:
            continue
        work.constants -= set(node.inputs[1:])
        for name in node.inputs[1:]:
            if work.normed.setdefault(name, node.call.arguments[1:]) != node.call.arguments[1:]:
                work.unlearnable[name] = "it is stored once for layers with different norms, which the exporter folded"
                work.merged = True
        if len(node.inputs) == 2:
            _add_bias(work, position, f"{node.inputs[1]}_bias", weight)
        _name_fused_bias(work, position)


def _name_fused_bias(work: Restoration, position: int) -> None:
    """The layer's own bias was all zeros, dropped before the norm was folded: what the norm left of it is that bias."""
    weight, bias = work.inputs[position][1:3]
    bias_name = f"{weight.removesuffix('weight')}bias"
    is_missing = (
        bias_name in work.record.parameters
        and bias_name not in work.source.initializers
        and bias_name not in work.called
    )
    if bias == f"{weight}_bias" and is_missing and hold(work, bias_name, work.initializers[bias]):
        work.inputs[position][2] = bias_name
