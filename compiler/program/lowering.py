"""Lowers a graph to kernel calls: one spec per node, views as shared storage, scalar constants as literals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from compiler.errors import CompileError
from compiler.graph import Array, Graph, Node, TensorType
from compiler.kernels.spec import Const, Expr, KernelSpec, MapSpec, ReduceSpec, Ref, RowSpec
from compiler.kernels.substitution import substitute_refs
from compiler.ops import OPERATORS
from compiler.ops.record import View
from compiler.program.aliases import Alias, Aliases, root_of
from compiler.program.program import KernelCall
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Lowered:
    """Kernel calls in graph order. `aliases[v]` is the storage that v shares (views, in-place updates)."""

    calls: tuple[KernelCall, ...]
    types: Mapping[Value, TensorType]
    aliases: Aliases

    def root(self, value: Value) -> Value:
        """The value that owns the storage of `value`."""
        return root_of(self.aliases, value)


def lower(graph: Graph) -> Lowered:
    """Kernel calls for every node.

    Raises: CompileError naming the node whose operator has no kernel for these shapes.
    """
    scalars = {name: array for name, array in graph.arrays.items() if array.size == 1 and name not in graph.parameters}
    calls: list[KernelCall] = []
    aliases: dict[Value, Alias] = {}
    for node in graph.nodes:
        record = OPERATORS[node.op]
        inputs = tuple(graph.types[name] for name in node.inputs)
        outputs = tuple(graph.types[name] for name in node.outputs)
        try:
            spec = record.lower(inputs, outputs, node.attrs)
        except CompileError as problem:
            problem.where = problem.where or node.layer or node.op
            raise
        if isinstance(spec, View):
            aliases[node.output] = Alias(node.inputs[0])
            continue
        in_place = {o: i for o, i in record.in_place.items() if o < len(node.outputs)}
        aliases.update({node.outputs[o]: Alias(node.inputs[i]) for o, i in in_place.items()})
        calls.append(_call(node, spec, inputs, outputs, scalars))
    return Lowered(tuple(calls), graph.types, aliases)


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
    """Turn operands that are one-element constants into literals."""
    kept = [position for position, name in enumerate(names) if name not in scalars]
    if len(kept) == len(names):
        return spec, names

    def table(operand: int) -> Expr:
        if names[operand] in scalars:
            return Const(scalars[names[operand]].reshape(-1)[0].item())
        return Ref(kept.index(operand))

    inputs = tuple(spec.inputs[position] for position in kept)
    rest = tuple(names[position] for position in kept)
    if isinstance(spec, ReduceSpec):
        return replace(spec, inputs=inputs, expr=substitute_refs(spec.expr, table)), rest
    exprs = tuple(substitute_refs(expr, table) for expr in spec.exprs)
    if isinstance(spec, MapSpec):
        return replace(spec, inputs=inputs, exprs=exprs), rest
    stages = tuple((combine, substitute_refs(expr, table)) for combine, expr in spec.stages)
    return replace(spec, inputs=inputs, exprs=exprs, stages=stages), rest
