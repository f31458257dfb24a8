"""Undoes what PyTorch's exporter did to the parameters of a module: the file, as if it had not been optimized.

The exporter stores equal tensors once, drops zero biases, folds the transpose in front of a Linear into its weight, and
computes whatever depends on parameters alone. Its record of the exported program (`torch_record`) says which parameter
each call reads, so each reader gets its own parameter back, under the module's name and in the module's layout.

What was folded by arithmetic is lost: such a parameter is `unlearnable`, with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from compiler.frontend.folded import Folded, once, standing_for
from compiler.frontend.source import SourceModel, SourceNode
from compiler.frontend.torch_record import TorchRecord
from compiler.graph import Array
from compiler.warnings import CompileWarning, few_of

UNOPTIMIZED = "export with torch.onnx.export(..., dynamo=True, optimize=False)"
_NORMS = ("aten._native_batch_norm", "aten.batch_norm", "aten.cudnn_batch_norm")
_DROPS_ZERO_BIAS = ("Conv", "Gemm")
_TRANSPOSED = ("aten.linear",)
_FLAT = ("aten.group_norm", "aten.prelu")
"""Operators whose decomposition views a vector as [C, 1, 1]."""
_NEUTRAL = frozenset({"mul", "add", "sub", "div", "rsub", "pow"})
"""Operators that the exporter drops where an operand makes them do nothing: a fresh scale of one, say."""
_NUMBERED = re.compile(r"_\d+$")
_STAND_INS = (("aten.group_norm", "InstanceNormalization"),)
"""(operator, ONNX node of its decomposition) whose scale and shift are ones and zeros, no parameters."""


@dataclass(frozen=True, slots=True)
class _Read:
    """An initializer of the module, or computed from its parameters, as input `index` of node `node`."""

    node: int
    index: int
    name: str


@dataclass(slots=True)
class _Restoration:
    """The model under repair."""

    source: SourceModel
    record: TorchRecord
    inputs: list[list[str]]
    initializers: dict[str, Array]
    prologue: list[SourceNode] = field(default_factory=list)
    constants: set[str] = field(default_factory=set)
    created: set[str] = field(default_factory=set)
    unlearnable: dict[str, str] = field(default_factory=dict)
    warnings: list[CompileWarning] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    """Parameters that some call of the program names."""
    unexplained: list[_Read] = field(default_factory=list)
    normed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Tensors of convolutions with a folded norm -> the norm's arguments."""
    views: dict[tuple[str, str], str] = field(default_factory=dict)
    """(parameter, initializer that was folded from it) -> the node's output that takes its place."""


def restored(source: SourceModel) -> SourceModel:
    """The model with every parameter of the module under its own name; unchanged if the file has no record."""
    if source.record is None:
        return source
    source, record = _with_first_names(source, source.record)
    work = _Restoration(source, record, [list(node.inputs) for node in source.nodes], dict(source.initializers))
    work.constants = {name for name in source.initializers if name not in record.parameters}
    calls = _calls(source)
    arguments = {name for node in source.nodes for name in node.call.arguments}
    work.called = {target for name, target in record.targets.items() if name in arguments}
    for positions in calls:
        _restore_call(work, positions)
    _settle_unexplained(work)
    _tell_what_is_missing(work)
    nodes = tuple(replace(node, inputs=tuple(work.inputs[i])) for i, node in enumerate(source.nodes))
    return replace(
        source,
        nodes=(*work.prologue, *nodes),
        initializers=work.initializers,
        constants=frozenset(work.constants),
        created=frozenset(work.created),
        unlearnable=work.unlearnable,
        warnings=(*source.warnings, *work.warnings),
    )


def _with_first_names(source: SourceModel, record: TorchRecord) -> tuple[SourceModel, TorchRecord]:
    """Shared tensors under the first of their names, as `module.named_parameters()` has them.

    The exporter calls them by the last. The first shows where a layer of PyTorch's own reads a tensor of another
    module, while no call names the one that the layer must have itself.
    """
    called = {record.targets[name] for node in source.nodes for name in node.call.arguments if name in record.targets}
    order = {target: position for position, target in enumerate(record.targets.values())}
    first: dict[str, str] = {}
    for node in source.nodes:
        for name in node.call.arguments if node.module_class.startswith("torch.nn.modules.") else ():
            target = record.targets.get(name, "")
            own = f"{node.module}.{target.rpartition('.')[2]}"
            if own in record.parameters - called and target in record.parameters:
                first[target] = min(own, first.get(target, target), key=order.__getitem__)
    if not first:
        return source, record

    def renamed(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(first.get(name, name) for name in names)

    spare = {own for own in record.parameters - called if own in set(first.values())}
    record = replace(
        record,
        targets={argument: first.get(target, target) for argument, target in record.targets.items()},
        parameters=(record.parameters - first.keys()) | spare,
        folded_from={name: renamed(origins) for name, origins in record.folded_from.items()},
    )
    nodes = tuple(replace(node, inputs=renamed(node.inputs)) for node in source.nodes)
    initializers = {first.get(name, name): array for name, array in source.initializers.items()}
    return replace(source, nodes=nodes, initializers=initializers, record=record), record


def _calls(source: SourceModel) -> list[list[int]]:
    """Positions of the nodes of each call of the exported program; a node without a call is one of its own."""
    groups: dict[str, list[int]] = {}
    for position, node in enumerate(source.nodes):
        groups.setdefault(node.call.result or f" {position}", []).append(position)
    return list(groups.values())


def _restore_call(work: _Restoration, positions: Sequence[int]) -> None:
    nodes = [work.source.nodes[position] for position in positions]
    if nodes[0].torch_op.startswith(_NORMS) and any(node.op_type in _DROPS_ZERO_BIAS for node in nodes):
        _restore_fused_norm(work, positions)
        return
    members = [work.record.targets[name] for name in nodes[0].call.arguments if name in work.record.targets]
    reads = [read for position in positions for read in _reads(work, position)]
    found, left = _match(work, reads, list(dict.fromkeys(members)))
    for read, member in zip(reads, found, strict=True):
        if member is None:
            work.unexplained.append(read)
        else:
            _give(work, read, member)
    for member in left:
        _restore_dropped(work, positions, member)


def _reads(work: _Restoration, position: int) -> list[_Read]:
    node = work.source.nodes[position]
    stands_in = any(node.torch_op.startswith(op) and node.op_type == op_type for op, op_type in _STAND_INS)
    found = []
    for index, name in enumerate(node.inputs):
        array = work.source.initializers.get(name)
        if array is None or array.dtype.kind != "f" or not (work.record.knows(name) or work.record.origins(name)):
            continue
        if stands_in:
            work.inputs[position][index] = _constant_copy(work, name)
        else:
            found.append(_Read(position, index, name))
    return found


def _match(work: _Restoration, reads: Sequence[_Read], members: list[str]) -> tuple[list[str | None], list[str]]:
    """The member of the call that each read stands for (None: none), and the members that no read stands for.

    What is there under its own name, or folded from one member, is clear. The others are merged with equal tensors;
    they follow in the order of the call's arguments.
    """
    found: dict[_Read, str] = {}
    free = list(members)
    times = Counter(read.name for read in reads)
    for read in reads:
        own = _own(work, read.name, free)
        if own and times[read.name] == 1:
            found[read] = own
            free.remove(own)
    for read in reads:
        if read in found:
            continue
        member = next((name for name in free if _may_be(work, name, read)), None)
        if member is not None:
            found[read] = member
            free.remove(member)
        else:
            own = _own(work, read.name, members)
            if own:
                found[read] = own
    return [found.get(read) for read in reads], free


def _own(work: _Restoration, name: str, members: Sequence[str]) -> str:
    """The member that an initializer is by its name or its only origin, or an empty text."""
    if name in members:
        return name
    origins = [origin for origin in work.record.origins(name) if origin in members]
    return origins[0] if len(origins) == 1 == len(work.record.origins(name)) else ""


def _may_be(work: _Restoration, member: str, read: _Read) -> bool:
    """False if the file holds the member, and it is another tensor than the one that is read."""
    stored = work.source.initializers.get(member)
    array = work.source.initializers[read.name]
    return stored is None or (stored.shape == array.shape and np.array_equal(stored, array))


def _give(work: _Restoration, read: _Read, member: str) -> None:
    """Let a read see `member`, in the view that the exporter had folded."""
    if member == read.name:
        return
    array = work.source.initializers[read.name]
    if work.record.knows(read.name):
        if _hold(work, member, array):
            work.inputs[read.node][read.index] = member
        return
    node = work.source.nodes[read.node]
    if node.torch_op.startswith(_TRANSPOSED) and array.ndim == 2:
        _give_view(work, read, member, array.T, "Transpose", {"perm": (1, 0)})
    elif node.torch_op.startswith(_FLAT):
        _give_view(work, read, member, array.reshape(-1), "Reshape", {})
    elif _hold(work, member, array):
        work.inputs[read.node][read.index] = member


def _give_view(
    work: _Restoration, read: _Read, member: str, array: Array, op_type: str, attributes: Mapping[str, tuple[int, ...]]
) -> None:
    """`member` holds `array`; the read sees it through a node that the exporter had folded."""
    key = (member, read.name)
    if key not in work.views:
        if not _hold(work, member, np.ascontiguousarray(array)):
            return
        output = _fresh(work, f"{member}:{op_type.lower()}")
        inputs: tuple[str, ...] = (member,)
        if op_type in ("Reshape", "Expand"):
            shape = _fresh(work, f"{output}:shape")
            work.initializers[shape] = np.asarray(work.source.initializers[read.name].shape, np.int64)
            inputs = (member, shape)
        node = work.source.nodes[read.node]
        work.prologue.append(SourceNode(node.name, op_type, inputs, (output,), attributes, node.module, node.torch_op))
        work.views[key] = output
    work.inputs[read.node][read.index] = work.views[key]


def _hold(work: _Restoration, member: str, array: Array) -> bool:
    """Make `member` an initializer; False if it is one already with other elements."""
    stored = work.initializers.get(member)
    if stored is not None and not (stored.shape == array.shape and np.array_equal(stored, array)):
        work.unlearnable[member] = "the file holds two tensors of this name"
        return False
    work.initializers.setdefault(member, array)
    if member not in work.record.parameters:
        work.constants.add(member)
    return True


def _constant_copy(work: _Restoration, name: str) -> str:
    """The elements of an initializer as a constant of one reader."""
    copy = _fresh(work, f"{name}:constant")
    work.initializers[copy] = work.source.initializers[name]
    work.constants.add(copy)
    return copy


def _fresh(work: _Restoration, name: str) -> str:
    taken = {output for node in work.prologue for output in node.outputs}
    while name in work.initializers or name in taken:
        name += "'"
    return name


# --------------------------------------------------------------------------------------------------- dropped and fused


def _restore_dropped(work: _Restoration, positions: Sequence[int], member: str) -> None:
    """A zero bias that the exporter took away from a convolution or product."""
    if member not in work.record.parameters or member in work.source.initializers:
        return
    for position in positions:
        node = work.source.nodes[position]
        without = len(node.inputs) == 2 or (len(node.inputs) == 3 and not node.inputs[2])
        weight = work.source.initializers.get(node.inputs[1]) if node.op_type in _DROPS_ZERO_BIAS else None
        if without and weight is not None and not work.inputs[position][2:]:
            _add_bias(work, position, member, weight)
            return


def _add_bias(work: _Restoration, position: int, name: str, weight: Array) -> None:
    node = work.source.nodes[position]
    rows_are_outputs = node.op_type == "Conv" or bool(node.attributes.get("transB", 0))
    outputs = weight.shape[0 if rows_are_outputs else 1]
    if _hold(work, name, np.zeros(outputs, np.float32)):
        work.created.add(name)
        work.constants.discard(name)
        work.inputs[position][2:] = [name]


def _restore_fused_norm(work: _Restoration, positions: Sequence[int]) -> None:
    """A convolution into which the exporter folded its BatchNormalization: the tensors are the file's own.

    Its zero bias is restored as `<weight>_bias`, as the exporter names the others.
    """
    for position in positions:
        node = work.source.nodes[position]
        weight = work.source.initializers.get(node.inputs[1]) if node.op_type in _DROPS_ZERO_BIAS else None
        if weight is None:
            continue
        work.constants -= set(node.inputs[1:])
        for name in node.inputs[1:]:
            if work.normed.setdefault(name, node.call.arguments[1:]) != node.call.arguments[1:]:
                work.unlearnable[name] = "it is stored once for layers with different norms, which the exporter folded"
        if len(node.inputs) == 2:
            _add_bias(work, position, f"{node.inputs[1]}_bias", weight)


# ---------------------------------------------------------------------------------------------------- what is not clear


def _settle_unexplained(work: _Restoration) -> None:
    """Reads that no argument of their call names: through a view that is gone, folded, or merged with a constant."""
    values = {*work.record.inputs, *(node.call.result for node in work.source.nodes)}
    folded: dict[str, list[_Read]] = {}
    for read in work.unexplained:
        if not work.record.knows(read.name):
            folded.setdefault(read.name, []).append(read)
            continue
        arguments = work.source.nodes[read.node].call.arguments
        hidden = [name for name in arguments if name not in values and name not in work.record.targets]
        if arguments and not hidden:
            # The exporter's own ones or zeros, stored once with a fresh norm or bias.
            work.inputs[read.node][read.index] = _constant_copy(work, read.name)
        elif hidden and read.name in work.called and read.name in work.record.parameters:
            work.inputs[read.node][read.index] = _constant_copy(work, read.name)
            work.unlearnable[read.name] = f"it is stored once with what the exporter computed as {hidden[0]!r}"
    for name, reads in folded.items():
        _settle_folded(work, name, reads)


def _settle_folded(work: _Restoration, name: str, reads: Sequence[_Read]) -> None:
    parameters = work.record.origins(name)
    alive = [parameter for parameter in parameters if parameter in work.initializers]
    others = [
        made for made in work.unexplained if made.name != name and set(work.record.origins(made.name)) & {*parameters}
    ]
    made = standing_for(name, work.record, work.source.initializers[name])
    if len(parameters) == 1 and not alive and not others and made is not Folded.COMPUTED:
        _train_in_place(work, name, reads, parameters[0], made)
        return
    if len(parameters) == 1 and alive and made is not Folded.COMPUTED and _see_view(work, name, reads, parameters[0]):
        return
    for parameter in parameters:
        work.unlearnable[parameter] = f"PyTorch's exporter folded it into the constant {name!r}"


def _see_view(work: _Restoration, name: str, reads: Sequence[_Read], parameter: str) -> bool:
    """Let reads see a parameter that the file holds too, if what was folded is its transpose or has its elements."""
    array, stored = work.source.initializers[name], work.initializers[parameter]
    if array.ndim == 2 and np.array_equal(array.T, stored):
        view: tuple[str, dict[str, tuple[int, ...]]] = ("Transpose", {"perm": (1, 0)})
    elif array.size == stored.size and np.array_equal(array.reshape(-1), stored.reshape(-1)):
        view = ("Reshape", {})
    else:
        return False
    for read in reads:
        _give_view(work, read, parameter, stored, *view)
    return True


def _train_in_place(work: _Restoration, name: str, reads: Sequence[_Read], parameter: str, made: Folded) -> None:
    """What the exporter moved, element by element, learns as the parameter does."""
    array = work.source.initializers[name]
    if made is Folded.TRANSPOSED:
        for read in reads:
            _give_view(work, read, parameter, array.T, "Transpose", {"perm": (1, 0)})
        return
    if made is Folded.EXPANDED:
        for read in reads:
            _give_view(work, read, parameter, once(array), "Expand", {})
        name, array = parameter, work.initializers[parameter]
    work.constants.discard(name)
    work.warnings.append(
        CompileWarning(
            "model.folded_view",
            f"parameter {parameter!r}",
            f"the file holds only what PyTorch's exporter took of it, as {name!r} {list(array.shape)}, which learns in"
            " its place",
            UNOPTIMIZED,
        )
    )


def _tell_what_is_missing(work: _Restoration) -> None:
    """Warnings of parameters that cannot learn, and of those that the file does not hold at all."""
    record = work.record
    _refuse_unnamed(work)
    held = set(work.initializers) | set(work.unlearnable)
    held |= {origin for name in work.source.initializers for origin in record.origins(name)}
    gone = sorted(name for name in record.parameters - held if not _of_norm(name, record))
    merged = any("stored once" in reason for reason in work.unlearnable.values())
    dropped = _dropped_calls(work)
    if merged or dropped:
        why = (
            "it was folded, and the result stored once with another tensor" if merged else f"it dropped {dropped[0]!r}"
        )
        work.unlearnable.update(dict.fromkeys(gone, f"PyTorch's exporter took it out of the file: {why}"))
    elif gone:
        work.warnings.append(
            CompileWarning(
                "model.absent_parameters",
                few_of(gone),
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


def _refuse_unnamed(work: _Restoration) -> None:
    """Parameters that the file reads, but never as what the record says of the call that reads them."""
    read = {name for inputs in work.inputs for name in inputs} | {
        name for node in work.prologue for name in node.inputs
    }
    for name in {name for node in work.source.nodes for name in node.inputs} - read:
        if name in work.record.parameters:
            work.unlearnable.setdefault(name, "no call of the exported program names it where the file reads it")


def _dropped_calls(work: _Restoration) -> list[str]:
    """Calls of the program that nothing in the file computes, though others read them: `x * 1` and the like."""
    record = work.record
    there = {*record.targets, *record.inputs, *work.source.initializers}
    there |= {node.call.result for node in work.source.nodes}
    read = {name for node in work.source.nodes for name in node.call.arguments} | record.outputs
    return sorted(name for name in read - there if _NUMBERED.sub("", name) in _NEUTRAL)


def _of_norm(name: str, record: TorchRecord) -> bool:
    """True for the scale or shift of a BatchNorm, which the exporter folds into a convolution."""
    return f"{name.rpartition('.')[0]}.running_mean".lstrip(".") in record.buffers
