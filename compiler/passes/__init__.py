"""Graph passes: pure functions from `Graph` to `Graph`, in the order they run. Adding one: a file and a line here."""

from __future__ import annotations

from collections.abc import Callable

from compiler.errors import InternalError
from compiler.graph import Graph
from compiler.ops import OPERATORS
from compiler.passes.attention import fuse_attention
from compiler.passes.eliminate_common import eliminate_common
from compiler.passes.eliminate_dead import eliminate_dead
from compiler.passes.fold_constants import fold_constants
from compiler.passes.guarded_softmax import unguard_softmax
from compiler.passes.layout import sink_transposes
from compiler.passes.narrow_gradients import narrow_gradients
from compiler.passes.normalization import join_norms
from compiler.passes.simplify import simplify

Pass = Callable[[Graph], Graph]

CLEAN_UP: tuple[Pass, ...] = (fold_constants, simplify, eliminate_common, eliminate_dead)
FORWARD_PASSES: tuple[Pass, ...] = (
    *CLEAN_UP,
    sink_transposes,
    *CLEAN_UP,
    *CLEAN_UP,
    unguard_softmax,
    *CLEAN_UP,
    fuse_attention,
    join_norms,
    *CLEAN_UP,
    *CLEAN_UP,
)
TRAINING_PASSES: tuple[Pass, ...] = (*CLEAN_UP, narrow_gradients, *CLEAN_UP, *CLEAN_UP)


def run_passes(graph: Graph, passes: tuple[Pass, ...]) -> Graph:
    """Apply passes in order, checking after each that the graph is still valid.

    Raises: InternalError naming the pass that broke it and those that ran before.
    """
    done: list[str] = []
    for step in passes:
        graph = step(graph)
        problem = find_problem(graph)
        if problem:
            raise InternalError(f"{problem}; passes run before: {', '.join(done) or 'none'}", where=step.__name__)
        done.append(step.__name__)
    return graph


def find_problem(graph: Graph) -> str:
    """What is wrong with a graph: an undefined or doubly defined value, or a type that `infer` contradicts."""
    known = set(graph.inputs) | set(graph.arrays)
    for node in graph.nodes:
        missing = [name for name in node.inputs if name not in known]
        if missing:
            return f"{node.op} ({node.layer}) reads undefined {missing[0]}"
        twice = [name for name in node.outputs if name in known]
        if twice:
            return f"{node.op} ({node.layer}) defines {twice[0]} again"
        types = OPERATORS[node.op].infer(tuple(graph.types[name] for name in node.inputs), node.attrs)
        if types != tuple(graph.types[name] for name in node.outputs):
            return f"{node.op} ({node.layer}) has outputs of other types than it infers"
        known.update(node.outputs)
    lost = [name for name in graph.outputs if name not in known]
    return f"output {lost[0]} is not defined" if lost else ""


__all__ = ["CLEAN_UP", "FORWARD_PASSES", "TRAINING_PASSES", "find_problem", "run_passes"]
