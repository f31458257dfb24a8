"""Embedding bags (`torch.nn.EmbeddingBag`) as a lookup and one sum, mean or maximum per bag.

PyTorch's exporters write a loop over the bags, each of which cuts its rows out and reduces them: dynamo collects them
in a sequence, TorchScript stacks the loop's results.
Rewrites: such a loop -> the number of each row's bag, and ScatterND with a reduction. Requires: bags that lie one
behind the other, the first at 0, as PyTorch's do. Ensures: every other loop stays. Why: unrolled, a loop over a batch
of bags is thousands of nodes, and one whose offsets are only known at run time cannot be unrolled at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from compiler.frontend.file.source import Body, SourceModel, SourceNode, free_name
from compiler.graph import Array

Mode = Literal["sum", "mean", "max"]
_REDUCTIONS: Mapping[str, Mode] = {"ReduceMax": "max", "ReduceMean": "mean", "ReduceSum": "sum"}
_LOWEST = np.finfo(np.float32).min


@dataclass(frozen=True, slots=True)
class _Bags:
    """`starts`: where each bag begins, and where the last one ends. Either rows, or a table and indices."""

    mode: Mode
    starts: str
    sequence: str = ""
    """The name of the sequence that collects the results."""
    rows: str = ""
    table: str = ""
    indices: str = ""


def reduce_bags(source: SourceModel) -> SourceModel:
    """The model with embedding bags as reductions; unchanged if it has none."""
    if not any(node.op_type == "Loop" for node in source.nodes):
        return source
    used_names = source.value_names()
    nodes: list[SourceNode] = []
    sequences: dict[str, _Bags] = {}
    for node in source.nodes:
        bags = _collected(node) if node.op_type == "Loop" else None
        if bags is not None:
            sequences[bags.sequence] = bags
        joined = sequences.get(node.operand(0)) if node.op_type == "ConcatFromSequence" else None
        stacked = _stacked(node) if node.op_type == "Loop" and bags is None else None
        lookup = joined or stacked
        nodes += [node] if lookup is None else _Writer(node, used_names).reduced(lookup, node.outputs[0])
    without_loops = _unread(nodes, source.outputs, sequences)
    empty = {node.outputs[0] for node in without_loops if node.op_type == "SequenceEmpty"}
    return replace(source, nodes=_unread(without_loops, source.outputs, empty))


def _unread(nodes: Sequence[SourceNode], outputs: Sequence[str], spare: Collection[str]) -> tuple[SourceNode, ...]:
    """The nodes without those that make what is spare and of which nothing is read."""
    read = {name for node in nodes for name in node.inputs} | set(outputs)
    return tuple(node for node in nodes if not read.isdisjoint(node.outputs) or not set(spare) & set(node.outputs))


# ---------------------------------------------------------------------------------------------------------- recognising


def _body(node: SourceNode, name: str) -> Body | None:
    attribute = node.attributes.get(name)
    return attribute if isinstance(attribute, Body) else None


def _outer(node: SourceNode, body: Body, name: str) -> str:
    """Returns the name that a name of a body has around its node; empty if the body makes it."""
    place = body.captured.get(name)
    return "" if place is None else node.operand(place)


def _only(body: Body, op_type: str) -> SourceNode | None:
    nodes = [node for node in body.nodes if node.op_type == op_type]
    return nodes[0] if len(nodes) == 1 else None


def _maker(body: Body, name: str) -> SourceNode | None:
    return next((node for node in body.nodes if name in node.outputs), None)


def _collected(loop: SourceNode) -> _Bags | None:
    """Dynamo's loop: If(start = end, zeros, reduced slice), inserted into a sequence."""
    body = _body(loop, "body")
    choice = _only(body, "If") if body is not None else None
    insert = _only(body, "SequenceInsert") if body is not None else None
    if body is None or choice is None or insert is None or len(loop.outputs) != 2:
        return None
    places = [place for place, name in enumerate(body.outputs[1:3]) if name == insert.outputs[0]]
    if insert.operand(1) != choice.outputs[0] or not places:
        return None
    test = _maker(body, choice.operand(0))
    bounds = [] if test is None or test.op_type != "Equal" else [_maker(body, name) for name in test.inputs]
    reduced = _body(choice, "else_branch")
    if len(bounds) != 2 or reduced is None or any(cut is None or cut.op_type != "Slice" for cut in bounds):
        return None
    offsets = {_outer(loop, body, cut.operand(0)) for cut in bounds if cut is not None}
    steps = [node for node in _decided(reduced, choice) if node[0].op_type in ("Slice", *_REDUCTIONS)]
    rows = {_outer(loop, body, name) for node, name in steps if node.op_type == "Slice"}
    modes = {_REDUCTIONS[node.op_type] for node, _ in steps if node.op_type in _REDUCTIONS}
    if len(offsets) != 1 or len(rows) != 1 or "" in rows | offsets or not modes:
        return None
    # The mean of the last bag is written as a sum and a quotient.
    mode: Mode = "mean" if "mean" in modes else modes.pop()
    return _Bags(mode, offsets.pop(), loop.outputs[places[0]], rows=rows.pop())


def _decided(body: Body, node: SourceNode) -> Iterator[tuple[SourceNode, str]]:
    """The nodes of a branch, and of those in it that constants do not rule out.

    Beside each: what its first input is called around the branch, or an empty text if that makes it.
    """
    for inner in body.nodes:
        if inner.op_type != "If":
            yield inner, _outer(node, body, inner.operand(0))
            continue
        test = _maker(body, inner.operand(0))
        sides = [_scalar(body, name) for name in test.inputs] if test is not None else []
        decided = test is not None and test.op_type == "Equal" and None not in sides
        branch_names = (
            ["then_branch" if sides[0] == sides[1] else "else_branch"] if decided else ["then_branch", "else_branch"]
        )
        for name in branch_names:
            branch = _body(inner, name)
            for deciding, first in _decided(branch, inner) if branch is not None else ():
                yield deciding, _outer(node, body, first)


def _scalar(body: Body, name: str) -> object:
    """Returns the number that a Constant of a body holds, if it is a single one."""
    maker = _maker(body, name)
    if maker is None or maker.op_type != "Constant":
        return None
    value = maker.attributes.get("value", maker.attributes.get("value_int"))
    return int(value.reshape(-1)[0]) if isinstance(value, np.ndarray) and value.size == 1 else value


def _stacked(loop: SourceNode) -> _Bags | None:
    """TorchScript's loop: Gather(table, Slice(indices, start[i], end[i])), reduced; the results are stacked."""
    body = _body(loop, "body")
    if body is None or len(loop.outputs) != 1 or len(body.inputs) != 2:
        return None
    kinds = [node.op_type for node in body.nodes if node.op_type not in ("Constant", "Cast", "Unsqueeze")]
    if len(kinds) != 5 or kinds[:4] != ["Gather", "Gather", "Slice", "Gather"] or kinds[4] not in _REDUCTIONS:
        return None
    first, last, cut, picked, reduced = (
        node for node in body.nodes if node.op_type not in ("Constant", "Cast", "Unsqueeze")
    )
    places = [_source(body, cut.operand(1)), _source(body, cut.operand(2))]
    chained = places == [first.outputs[0], last.outputs[0]] and picked.operand(1) == cut.outputs[0]
    by_number = first.operand(1) == last.operand(1) == body.inputs[0]
    if not chained or not by_number or reduced.operand(0) != picked.outputs[0] or body.outputs[1:] != reduced.outputs:
        return None
    names = [_outer(loop, body, node.operand(0)) for node in (first, cut, picked)]
    if "" in names or reduced.attributes.get("keepdims", 1) != 0:
        return None
    # The vector that a start is read from has one more number: where the last bag ends.
    return _Bags(_REDUCTIONS[reduced.op_type], names[0], table=names[2], indices=names[1])


def _source(body: Body, name: str) -> str:
    """A name seen through Unsqueeze."""
    maker = _maker(body, name)
    return maker.operand(0) if maker is not None and maker.op_type == "Unsqueeze" else name


# -------------------------------------------------------------------------------------------------------------- writing


class _Writer:
    """Writes the nodes that stand in a loop's place; the last has the name of the loop's result."""

    def __init__(self, node: SourceNode, used_names: set[str]) -> None:
        self.node, self.used_names = node, used_names
        self.nodes: list[SourceNode] = []

    def constant(self, value: Array) -> str:
        return self.add("Constant", value=value)

    def ints(self, *values: int) -> str:
        return self.constant(np.asarray(values, np.int64))

    def add(self, op_type: str, *inputs: str, output: str = "", **attributes: int | str | Array) -> str:
        name = output or free_name(f"{self.node.outputs[0]}:{op_type.lower()}", self.used_names)
        self.nodes.append(
            replace(self.node, op_type=op_type, inputs=inputs, outputs=(name,), attributes=attributes, domain="")
        )
        return name

    def reduced(self, bags: _Bags, output: str) -> list[SourceNode]:
        """A row's bag is the number of bags that begin at it or before, less one."""
        rows = bags.rows or self.add("Gather", bags.table, bags.indices, axis=0)
        starts = self.add("Slice", bags.starts, self.ints(0), self.ints(-1))
        extents = self.add("Shape", rows)
        count, width = self.add("Slice", extents, self.ints(0), self.ints(1)), self.ints(1)
        wide = self.add("Slice", extents, self.ints(1), self.ints(2))
        zero, one = self.constant(np.asarray(0, np.int64)), self.constant(np.asarray(1, np.int64))
        places = self.add("Range", zero, self.add("Squeeze", count, self.ints(0)), one)
        is_started = self.add(
            "LessOrEqual", self.add("Unsqueeze", starts, width), self.add("Unsqueeze", places, self.ints(0))
        )
        numbers = self.add("ReduceSum", self.add("Cast", is_started, to=7), self.ints(0), keepdims=0)
        index = self.add("Unsqueeze", self.add("Sub", numbers, one), width)
        shape = self.add("Concat", self.add("Shape", starts), wide, axis=0)
        begin = self.constant(np.asarray(_LOWEST if bags.mode == "max" else 0, np.float32))
        start = self.add("Expand", begin, shape)
        reduction = "max" if bags.mode == "max" else "add"
        if bags.mode == "sum":
            self.add("ScatterND", start, index, rows, output=output, reduction=reduction)
            return self.nodes
        total = self.add("ScatterND", start, index, rows, reduction=reduction)
        ends = self.add("Slice", bags.starts, self.ints(1), self.ints(np.iinfo(np.int64).max))
        size = self.add("Unsqueeze", self.add("Cast", self.add("Sub", ends, starts), to=1), width)
        nothing = self.constant(np.asarray(0, np.float32))
        if bags.mode == "mean":
            self.add("Div", total, self.add("Max", size, self.constant(np.asarray(1, np.float32))), output=output)
        else:
            self.add("Where", self.add("Equal", size, nothing), nothing, total, output=output)
        return self.nodes
