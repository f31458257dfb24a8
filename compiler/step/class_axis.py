"""Which axis of an output holds the classes: the one that a layer's weights compute, followed back through the graph.

PyTorch's cross_entropy takes axis 1 ([N, C, H, W]), language models leave the classes last ([N, T, V]); a shape alone
does not tell them apart, and the labels of the wrong one are still valid classes.
"""

from __future__ import annotations

from compiler.axes.walk import Cut, Piece, Source, Step, Walk
from compiler.graph import Graph
from compiler.values import Value


def axis_source(graph: Graph, value: Value, axis: int) -> Source:
    """Where the extent of an axis comes from. A layer wins: what is added to its outputs does not change them."""
    walk = Walk(graph)
    sources: set[Source] = set()
    todo, visited = [walk.whole(value, axis)], {walk.whole(value, axis)}
    while todo:
        piece = todo.pop()
        if piece.value not in walk.makers:
            sources.add("layer" if piece.value in walk.learning_values else "data")
            continue
        for step in (_whole(walk, source) for source in walk.behind(piece)):
            if not isinstance(step, Piece):
                sources.add(step)
            elif step not in visited:
                visited.add(step)
                todo.append(step)
    return "layer" if "layer" in sources else "unknown" if "unknown" in sources else "data"


def _whole(walk: Walk, step: Step) -> Piece | Source:
    """Some of an axis' classes are classes, too; what is only a factor of an axis may be anything."""
    if isinstance(step, Cut):
        return walk.whole(step.value, step.axis)
    return step if not isinstance(step, Piece) or walk.is_whole(step) else "unknown"
