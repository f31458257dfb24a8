"""Conditions that must hold for a graph between any two passes."""

from __future__ import annotations

from compiler.graph import Graph
from compiler.ops import OPERATORS


def find_problem(graph: Graph) -> str:
    """Returns what is wrong with a graph: an undefined or doubly defined value, or a type that `infer` contradicts."""
    defined = set(graph.inputs) | set(graph.arrays)
    for node in graph.nodes:
        missing = [name for name in node.inputs if name not in defined]
        if missing:
            return f"{node.op} ({node.layer}) reads undefined {missing[0]}"
        twice = [name for name in node.outputs if name in defined]
        if twice:
            return f"{node.op} ({node.layer}) defines {twice[0]} again"
        types = OPERATORS[node.op].infer(tuple(graph.types[name] for name in node.inputs), node.attrs)
        if types != tuple(graph.types[name] for name in node.outputs):
            return f"{node.op} ({node.layer}) has outputs of other types than it infers"
        defined.update(node.outputs)
    lost = [name for name in graph.outputs if name not in defined]
    return f"output {lost[0]} is not defined" if lost else ""
