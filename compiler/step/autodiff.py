"""Reverse-mode differentiation at compile time, along the paths that reach a target and no others.

Because only the plan's parameters are targets, what would compute the gradient of anything else is never built:
that is sparse back-propagation. A channel slice is taken of the finished gradient here; the pass
`narrow_gradients` then moves it into the operands, so that only the slice is saved and multiplied.

Cuts: `detach` hands its operand on and no gradient back; once there are gradients it does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from compiler.channels.slices import UpdateSlice
from compiler.errors import InternalError, PlanError
from compiler.graph import Graph, Node
from compiler.ops import OPERATORS
from compiler.ops.record import NotDifferentiable
from compiler.rewriting.builder import GraphBuilder
from compiler.step.plan import UpdatePlan
from compiler.step.training import TrainingGraph
from compiler.values import Value
from compiler.warnings import CompileWarning, few_of

CUT = "detach"


def without_cuts(graph: Graph) -> Graph:
    """The graph with plain identities in place of cuts; the same one if it has none."""
    if all(node.op != CUT for node in graph.nodes):
        return graph
    nodes = (replace(node, op="identity") if node.op == CUT else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def differentiate(step: TrainingGraph, plan: UpdatePlan, *, scale: float = 1.0) -> TrainingGraph:
    """Appends the gradients of the loss with respect to the plan's parameters.

    Forward: the graph as it is. Backward: for y = f(x...), d_x += f'(x)^T d_y, summed over all consumers of x.
    All that is summed is `scale` times as large on its way, and the plan's gradients are divided by it.
    A parameter without a differentiable path to the loss stays as it is, as in every framework, and a warning says so.
    Raises: PlanError if no parameter has one.
    """
    graph = step.graph
    b = GraphBuilder(graph)
    b.phase = "backward"
    active = _depends_on(graph, plan)
    pending: dict[Value, list[Value]] = {step.loss: [b.constant(scale)]}
    for node in reversed(graph.nodes):
        if node.outputs[0] not in pending or node.outputs[0] not in active:
            continue
        d_output = _total(b, pending.pop(node.outputs[0]))
        _propagate(b, node, d_output, active, pending)
    unreached = [graph.name_of(target) for target in plan if target not in pending]
    if len(unreached) == len(plan):
        raise _unreachable(unreached)
    gradients = {}
    for target, part in plan.items():
        if target not in pending:
            continue
        parameter = graph.parameters.get(target)
        b.layer, b.parameter = parameter.layer if parameter is not None else "", graph.name_of(target)
        gradient = slice_of(b, _total(b, pending.pop(target)), part)
        gradients[target] = gradient if scale == 1 else b.emit("mul", gradient, b.constant(1 / scale))
    whole = replace(without_cuts(b.graph_of(graph)), outputs=(*graph.outputs, *gradients.values()))
    whole = replace(whole, warnings=(*whole.warnings, *_left_out(unreached)))
    return replace(step, graph=whole, gradients=gradients)


def _left_out(names: Sequence[str]) -> tuple[CompileWarning, ...]:
    if not names:
        return ()
    message = f"no gradient of the loss reaches {few_of(names)}: the plan lets them learn, and they stay as they are"
    hint = "check that the loss reads the output they feed; freeze them in the plan, and this is not said"
    return (CompileWarning("plan.no_gradient", "plan", message, hint),)


def _depends_on(graph: Graph, targets: Iterable[Value]) -> set[Value]:
    """Returns every value that changes when a target changes."""
    active = set(targets)
    for node in graph.nodes:
        if any(name in active for name in node.inputs):
            active.update(node.outputs)
    return active


def _propagate(
    b: GraphBuilder, node: Node, d_output: Value, active: set[Value], pending: dict[Value, list[Value]]
) -> None:
    rule = OPERATORS[node.op].grad
    wanted = tuple(name in active for name in node.inputs)
    if isinstance(rule, NotDifferentiable):
        return  # a path through a comparison or an index carries no gradient
    b.layer = node.layer
    for name, d_input, want in zip(node.inputs, rule(b, node, d_output, wanted), wanted, strict=True):
        if want and d_input is not None:
            if b.shape(d_input) != b.shape(name):
                raise InternalError(
                    f"gradient of {name} has shape {b.shape(d_input)}, not {b.shape(name)}", where=node.op
                )
            pending.setdefault(name, []).append(d_input)


def _total(b: GraphBuilder, parts: list[Value]) -> Value:
    total = parts[0]
    for part in parts[1:]:
        total = b.emit("add", total, part)
    return total


def slice_of(b: GraphBuilder, value: Value, part: UpdateSlice) -> Value:
    """Returns the part that learns of a parameter, or of what has its shape."""
    if part.is_whole:
        return value
    shape = b.shape(value)
    starts = tuple(part.start if i == part.axis else 0 for i in range(len(shape)))
    stops = tuple(part.start + part.size if i == part.axis else extent for i, extent in enumerate(shape))
    return b.emit("slice", value, starts=starts, stops=stops, steps=(1,) * len(shape))


def _unreachable(names: Sequence[str]) -> PlanError:
    return PlanError(
        f"nothing that the plan lets learn has a differentiable path to the loss: {few_of(names)}",
        where="plan",
        hint="check that the loss reads the output that they feed",
    )
