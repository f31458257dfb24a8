"""The graph before and after the plan, layer by layer: what the model has, and what its training step does for it.

A row stands for the nodes that come from one node of the file. `from` are the rows whose values it reads, so that who
draws it sees where the graph forks. Texts are the model author's, and made presentable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from compiler.graph import Graph, Node
from compiler.values import Value
from compiler.warnings import printable

MAX_ROWS = 2_000
MAX_NAME = 200
MAX_OPERATORS = 8
"""Kinds named for one row."""


def graph_table(forward: Graph, training: Graph) -> dict[str, Any]:
    """Rows in the order of the forward pass: `name`, `operators` of the forward graph, and how many nodes of the
    training graph each phase has for it; `others` counts those that are for no single layer (the loss, sums)."""
    rows: dict[str, list[Node]] = {}
    for node in forward.nodes:
        rows.setdefault(node.layer, []).append(node)
    row_numbers = {layer: number for number, layer in enumerate(list(rows)[:MAX_ROWS])}
    sources = _sources(forward, row_numbers)
    phases = _phases(training.nodes, row_numbers)
    return {
        "rows": [
            {
                "name": printable(layer, MAX_NAME) or "everything else",
                "operators": sorted({node.op for node in rows[layer]})[:MAX_OPERATORS],
                "nodes": len(rows[layer]),
                "from": sorted(sources[number]),
                **phases.get(number, Counter()),
            }
            for layer, number in row_numbers.items()
        ],
        "rows_left_out": len(rows) - len(row_numbers),
        "others": dict(phases.get(None, Counter())),
    }


def _sources(forward: Graph, row_numbers: dict[str, int]) -> dict[int, set[int]]:
    made_by: dict[Value, int] = {}
    sources: dict[int, set[int]] = {number: set() for number in row_numbers.values()}
    for node in forward.nodes:
        number = row_numbers.get(node.layer)
        if number is None:
            continue
        sources[number] |= {made_by[value] for value in node.inputs if made_by.get(value, number) != number}
        made_by.update(dict.fromkeys(node.outputs, number))
    return sources


def _phases(nodes: Iterable[Node], row_numbers: dict[str, int]) -> dict[int | None, Counter[str]]:
    counts: dict[int | None, Counter[str]] = {}
    for node in nodes:
        counts.setdefault(row_numbers.get(node.layer), Counter())[node.phase] += 1
    return counts
