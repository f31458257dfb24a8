"""A model under repair: which parameter each reader gets, and what the repair has found out so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from compiler.frontend.file.source import SourceModel, SourceNode
from compiler.frontend.file.torch_record import TorchRecord
from compiler.graph import Array
from compiler.warnings import CompileWarning

_TRANSPOSED = ("aten.linear",)
_FLAT = ("aten.group_norm", "aten.prelu")
"""Operators whose decomposition views a vector as [C, 1, 1]."""


@dataclass(frozen=True, slots=True)
class Read:
    """An initializer of the module, or computed from its parameters, as input `index` of node `node`."""

    node: int
    index: int
    name: str


@dataclass(slots=True)
class Restoration:
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
    merged: bool = False
    """A parameter is stored once with something that the exporter computed, perhaps from one that is gone."""
    unexplained: list[Read] = field(default_factory=list)
    normed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Tensors of convolutions with a folded norm -> the norm's arguments."""
    views: dict[tuple[str, str], str] = field(default_factory=dict)
    """(parameter, initializer that was folded from it) -> the node's output that takes its place."""
    cuts: dict[int, list[SourceNode]] = field(default_factory=dict)
    """Position of a node -> nodes in front of it through which no gradient passes."""
    computed_back: list[str] = field(default_factory=list)
    """Parameters whose elements were computed from what the exporter computed of them."""
    stands_for: dict[str, str] = field(default_factory=dict)
    """Folded initializer -> the value that its readers see now."""
    nodes_of: Counter[str] = field(default_factory=Counter)
    """The number of nodes that a call of the program has, once somebody has looked."""
    values: set[str] = field(default_factory=set)
    """Names of the program's values that the file has, once somebody asked."""
    folded: set[str] = field(default_factory=set)
    """Parameters that something in the file was folded from, once somebody asked."""
    used_names: set[str] = field(default_factory=set)
    """Names of all values, so that new ones differ."""


def give(work: Restoration, read: Read, member: str) -> None:
    """Lets a read see `member`, in the view that the exporter had folded."""
    if member == read.name:
        return
    array = work.source.initializers[read.name]
    if work.record.knows(read.name):
        if hold(work, member, array):
            work.inputs[read.node][read.index] = member
        return
    node = work.source.nodes[read.node]
    if node.torch_op.startswith(_TRANSPOSED) and array.ndim == 2:
        give_view(work, read, member, array.T, "Transpose", {"perm": (1, 0)})
    elif node.torch_op.startswith(_FLAT):
        give_view(work, read, member, array.reshape(-1), "Reshape", {})
    else:
        # Inside an operator that we do not know, even arithmetic: `torch.add(x, w, alpha=2)`.
        work.unlearnable[member] = f"PyTorch's exporter folded it into the constant {read.name!r}"


def give_view(
    work: Restoration, read: Read, member: str, array: Array, op_type: str, attributes: Mapping[str, tuple[int, ...]]
) -> None:
    """`member` holds `array`; the read sees it through a node that the exporter had folded."""
    key = (member, read.name)
    if key not in work.views:
        if not hold(work, member, np.ascontiguousarray(array)):
            return
        output = fresh(work, f"{member}:{op_type.lower()}")
        inputs: tuple[str, ...] = (member,)
        if op_type in ("Reshape", "Expand"):
            shape = fresh(work, f"{output}:shape")
            work.initializers[shape] = np.asarray(work.source.initializers[read.name].shape, np.int64)
            inputs = (member, shape)
        node = work.source.nodes[read.node]
        work.prologue.append(SourceNode(node.name, op_type, inputs, (output,), attributes, node.module, node.torch_op))
        work.views[key] = output
    see(work, (read,), work.views[key])


def see(work: Restoration, reads: Sequence[Read], value: str) -> None:
    """Lets reads of one initializer see a value."""
    for read in reads:
        work.inputs[read.node][read.index] = value
        work.stands_for[read.name] = value


def hold(work: Restoration, member: str, array: Array) -> bool:
    """Makes `member` an initializer. Returns False if it is one already with other elements, or another value's
    name.
    """
    stored = work.initializers.get(member)
    if stored is None and member in work.used_names:
        work.unlearnable[member] = "the file gives its name to another value"
        return False
    if stored is not None and not (stored.shape == array.shape and np.array_equal(stored, array)):
        work.unlearnable[member] = "the file holds two tensors of this name"
        return False
    work.initializers.setdefault(member, array)
    if member not in work.record.parameters:
        work.constants.add(member)
    return True


def argument_of(work: Restoration, read: Read) -> str:
    """The argument of the program's call that a read stands for, or an empty text if the record leaves it open.

    Equal results are stored once, so an initializer may stand for an argument of another name: one that the file has
    nowhere else.
    """
    node = work.source.nodes[read.node]
    missing = [name for name in node.call.arguments if is_missing(work, name)]
    if not missing and node.call.arguments.count(read.name) == node.inputs.count(read.name) == 1:
        return read.name
    # Only where the node is all of its call do its inputs stand in the order of the arguments.
    if not work.nodes_of:
        work.nodes_of.update(source_node.call.result for source_node in work.source.nodes)
    alone = work.nodes_of[node.call.result] == 1 and len(node.call.arguments) == len(node.inputs)
    argument = node.call.arguments[read.index] if alone else ""
    return argument if argument == read.name or argument in missing else ""


def is_missing(work: Restoration, value: str) -> bool:
    """Whether a value of the exported program has no name in the file."""
    record = work.record
    if not work.values:
        work.values |= {*record.inputs, *record.targets, *work.source.initializers}
        work.values |= {name for node in work.source.nodes for name in (*node.outputs, node.call.result)}
    return value not in work.values


def is_nowhere(work: Restoration, parameter: str) -> bool:
    """Whether the file neither holds a parameter nor tells its use."""
    if not work.folded:
        work.folded |= {origin for name in work.source.initializers for origin in work.record.origins(name)}
    return not any(parameter in names for names in (work.source.initializers, work.called, work.folded))


def constant_copy(work: Restoration, name: str) -> str:
    """The elements of an initializer as a constant of one reader."""
    copy = fresh(work, f"{name}:constant")
    work.initializers[copy] = work.source.initializers[name]
    work.constants.add(copy)
    return copy


def fresh(work: Restoration, name: str) -> str:
    """A name that no value has; it is taken from now on."""
    while name in work.used_names or name in work.initializers:
        name += "'"
    work.used_names.add(name)
    return name
