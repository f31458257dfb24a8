"""Lowers a graph to kernel calls: one spec per node, views as shared storage, scalar constants as literals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.errors import CompileError
from compiler.graph import Array, Graph, Node, TensorType
from compiler.kernels.expressions import Const, Expr, Ref, substitute_refs
from compiler.kernels.spec import KernelSpec, MapSpec, ReduceSpec, RowSpec
from compiler.ops import OPERATORS
from compiler.ops.record import View
from compiler.program.aliases import Alias
from compiler.program.program import KernelCall, Program, ProgramName
from compiler.values import Value


def lower(graph: Graph, name: ProgramName, *, inputs: tuple[Value, ...], outputs: tuple[Value, ...]) -> Program:
    """Kernel calls for every node, in graph order; graph outputs beyond `outputs` are updates of state.

    Raises: CompileError naming the node whose operator has no kernel for these shapes.
    """
    scalars = {name: array for name, array in graph.arrays.items() if array.size == 1 and name not in graph.parameters}
    calls: list[KernelCall] = []
    aliases: dict[Value, Alias] = {}
    for node in graph.nodes:
        record = OPERATORS[node.op]
        input_types = tuple(graph.types[value] for value in node.inputs)
        output_types = tuple(graph.types[value] for value in node.outputs)
        try:
            spec = record.lower(input_types, output_types, node.attrs)
        except CompileError as problem:
            problem.where = problem.where or node.layer or node.op
            raise
        if isinstance(spec, View):
            aliases[node.output] = Alias(node.inputs[0])
            continue
        in_place = {o: i for o, i in record.in_place.items() if o < len(node.outputs)}
        aliases.update({node.outputs[o]: Alias(node.inputs[i]) for o, i in in_place.items()})
        calls.append(_call(node, spec, input_types, output_types, scalars))
    updates = tuple(value for value in graph.outputs if value not in outputs)
    program = Program(name, tuple(calls), graph.types, inputs, outputs, aliases, updates, names=graph.names)
    return replace(program, state=_state(graph, program)).trimmed()


def _state(graph: Graph, program: Program) -> tuple[Value, ...]:
    """Arrays and inputs of the graph that calls touch, and that are not fed to every run."""
    touched = {program.root(value) for call in program.calls for value in (*call.inputs, *call.outputs)}
    touched.update(map(program.root, program.outputs))
    return tuple(value for value in (*graph.arrays, *graph.inputs) if value in touched and value not in program.inputs)


def _call(
    node: Node,
    spec: KernelSpec,
    inputs: tuple[TensorType, ...],
    outputs: tuple[TensorType, ...],
    scalars: Mapping[Value, Array],
) -> KernelCall:
    cost = OPERATORS[node.op].cost(inputs, outputs, node.attrs)
    names = node.inputs
    if isinstance(spec, MapSpec | ReduceSpec | RowSpec):
        spec, names = inline_scalars(spec, names, scalars)
    return KernelCall(
        spec=spec,
        inputs=names,
        outputs=node.outputs,
        layer=node.layer or node.op,
        phase=node.phase,
        flops=cost.flops,
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
        parameter=node.parameter,
    )


Inlinable = MapSpec | ReduceSpec | RowSpec


def inline_scalars(
    spec: Inlinable, names: tuple[Value, ...], scalars: Mapping[Value, Array]
) -> tuple[Inlinable, tuple[Value, ...]]:
    """Turns operands that are one-element constants into literals."""
    remaining = [position for position, name in enumerate(names) if name not in scalars]
    if len(remaining) == len(names):
        return spec, names

    def table(operand: int) -> Expr:
        if names[operand] in scalars:
            return Const(scalars[names[operand]].reshape(-1)[0].item())
        return Ref(remaining.index(operand))

    inputs = tuple(spec.inputs[position] for position in remaining)
    rest = tuple(names[position] for position in remaining)
    if isinstance(spec, ReduceSpec):
        return replace(spec, inputs=inputs, expr=substitute_refs(spec.expr, table)), rest
    exprs = tuple(substitute_refs(expr, table) for expr in spec.exprs)
    if isinstance(spec, MapSpec):
        return replace(spec, inputs=inputs, exprs=exprs), rest
    stages = tuple((combine, substitute_refs(expr, table)) for combine, expr in spec.stages)
    return replace(spec, inputs=inputs, exprs=exprs, stages=stages), rest
