"""Values by name: those of hand-written graphs and programs, and those that an imported graph has names for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from compiler.graph import Array, Graph
from compiler.values import Value
from tests.compiler.graph_interpreter import evaluate_graph

Held = TypeVar("Held")
_NUMBERS: dict[str, int] = {}
_FIRST = 1_000_000


def named(name: str) -> Value:
    """The value that a test calls so: the same for the same name."""
    return Value(_FIRST + _NUMBERS.setdefault(name, len(_NUMBERS)))


def all_named(*names: str) -> tuple[Value, ...]:
    return tuple(map(named, names))


def by_value(graph: Graph, held: Mapping[str, Held]) -> dict[Value, Held]:
    """What is given by the names of an imported graph, by its values."""
    values = {name: value for value, name in graph.names.items()}
    return {values[name]: item for name, item in held.items()}


def by_name(graph: Graph, held: Mapping[Value, Held]) -> dict[str, Held]:
    """What is given by the values of an imported graph, by the names of those that have one."""
    return {graph.names[value]: item for value, item in held.items() if value in graph.names}


def evaluate_named(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """`evaluate_graph` of an imported graph, by names."""
    return by_name(graph, evaluate_graph(graph, by_value(graph, feeds)))


def stored(graph: Graph) -> dict[str, Array]:
    """The graph's parameters as a file holds them, by name."""
    return {own.name: own.to_file(graph.arrays[value]) for value, own in graph.parameters.items()}
