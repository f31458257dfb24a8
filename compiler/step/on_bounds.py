"""Parameters that start on a bound, where the slope is 0: no gradient moves them, and a warning says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from compiler.graph import Array, Graph, Node
from compiler.ops import OPERATORS
from compiler.ops.elementwise import ELEMENTWISE
from compiler.ops.record import number
from compiler.values import Value
from compiler.warnings import CompileWarning, few_of

_MOVES = ("broadcast_to", "identity", "reshape", "transpose")
_ELEMENTWISE = {record.name for record in ELEMENTWISE}


def on_bounds(graph: Graph, learning: Iterable[Value]) -> tuple[CompileWarning, ...]:
    """A warning of what learns, and has elements on a bound wherever it is read."""
    readers = graph.consumers()
    stuck: list[str] = []
    for target in learning:
        array = graph.arrays.get(target)
        if array is None or not _ends_in_bounds(graph, readers, target):
            continue
        values, counts = np.unique(array, return_counts=True)
        still = int(counts[_is_still(graph, readers, target, values)].sum())
        if still:
            stuck.append(f"{graph.name_of(target)} ({still} of {array.size} elements)")
    if not stuck:
        return ()
    message = f"start on a bound, where the slope is 0, so that no gradient moves them: {few_of(stuck)}"
    hint = "start them inside the bound; of a `clamp`, fine_tune follows the slope of the module's own PyTorch"
    return (CompileWarning("plan.on_bound", "plan", message, hint),)


def _ends_in_bounds(graph: Graph, readers: dict[Value, list[Node]], value: Value) -> bool:
    """Whether all that depends on it passes a bound first, through nothing but functions of each element alone."""
    nodes = readers.get(value, [])
    if not nodes or value in graph.outputs:
        return False
    passed = (node for node in nodes if not _bounds(node))
    return all(_is_of_each(graph, node, value) and _ends_in_bounds(graph, readers, node.output) for node in passed)


def _is_still(graph: Graph, readers: dict[Value, list[Node]], value: Value, elements: Array) -> Array:
    """Returns which of the elements lie on a bound of every reader."""
    still = np.ones(elements.shape, bool)
    for node in readers[value]:
        here = np.isin(elements, np.asarray(_bounds(node), elements.dtype))
        if not _bounds(node) or _ends_in_bounds(graph, readers, node.output):
            here |= _is_still(graph, readers, node.output, _after(graph, node, value, elements))
        still &= here
    return still


def _bounds(node: Node) -> Sequence[float]:
    """The numbers that it bounds by: its slope there is 0."""
    if node.op == "relu":
        return (0.0,)
    return (number(node.attrs, "low"), number(node.attrs, "high")) if node.op == "clip" else ()


def _is_of_each(graph: Graph, node: Node, value: Value) -> bool:
    """Whether a node is a move, or a function of the value's elements and of numbers."""
    if node.op in _MOVES:
        return True
    others = [graph.arrays.get(operand) for operand in node.inputs if operand != value]
    fixed = not any(operand in graph.parameters for operand in node.inputs if operand != value)
    numbers = all(array is not None and array.size == 1 for array in others)
    return node.op in _ELEMENTWISE and len(node.outputs) == 1 and fixed and numbers


def _after(graph: Graph, node: Node, value: Value, elements: Array) -> Array:
    if node.op in _MOVES:
        return elements
    operands = [elements if operand == value else graph.arrays[operand].reshape(()) for operand in node.inputs]
    (result,) = OPERATORS[node.op].evaluate(operands, node.attrs)
    return np.asarray(result, elements.dtype)
