"""Bodies put in place: the nodes of a sub-graph or a function among those of its caller, under names of their own.

Model-local functions are put in place before anything else looks at the model. Sub-graphs are put in place by the
import, which knows conditions and trip counts (`control.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.errors import LimitExceeded, ModelError, UnsupportedOperator
from compiler.frontend.file.prescan import ModelLimits
from compiler.frontend.file.source import (
    AttributeValue,
    Body,
    Function,
    Reference,
    SourceModel,
    SourceNode,
    free_name,
)


def place(
    body: Body, actual: Mapping[str, str], results: Sequence[str], prefix: str, used_names: set[str]
) -> tuple[tuple[SourceNode, ...], tuple[str, ...]]:
    """The nodes of a body where `actual` says what its inputs and captured names stand for, and its outputs' names.

    An output that a node of the body makes gets its name of `results` if there is one; all other names are new ones
    that begin with `prefix`. They are in `used_names` from then on. The name of an output that nothing makes is empty.
    """
    names = dict(actual)
    produced = {name for node in body.nodes for name in node.outputs if name}
    for name, result in zip(body.outputs, results, strict=False):
        if result and name in produced:
            names.setdefault(name, result)
    for name in produced - names.keys():
        names[name] = free_name(f"{prefix}/{name}", used_names)
    nodes = tuple(renamed(node, names) for node in body.nodes)
    return nodes, tuple(names.get(name, "") for name in body.outputs)


def renamed(node: SourceNode, names: Mapping[str, str]) -> SourceNode:
    """A node on other values; its sub-graphs read nothing but through its inputs."""
    inputs = tuple(names.get(name, name) for name in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(names.get(name, name) for name in node.outputs))


def called_after(node: SourceNode, name: str) -> SourceNode:
    """A node, and all in its sub-graphs, under another's name: that of what they stand for."""
    attributes = {
        key: replace(value, nodes=tuple(called_after(inner, name) for inner in value.nodes))
        if isinstance(value, Body)
        else value
        for key, value in node.attributes.items()
    }
    return replace(node, name=name, attributes=attributes)


# ------------------------------------------------------------------------------------------------------------ functions


def inline_functions(source: SourceModel, limits: ModelLimits) -> SourceModel:
    """The model with the bodies of its functions in place of their calls. Raises: LimitExceeded, ModelError."""
    if not source.functions:
        return source
    work = _Inlining(source.functions, limits)
    nodes = work.inlined(source.nodes, source.value_names(), ())
    return replace(source, nodes=nodes, functions={})


@dataclass(slots=True)
class _Inlining:
    functions: Mapping[tuple[str, str], Function]
    limits: ModelLimits
    nodes: int = 0

    def inlined(
        self, nodes: Sequence[SourceNode], used_names: set[str], path: tuple[tuple[str, str], ...]
    ) -> tuple[SourceNode, ...]:
        """Nodes, of which none calls a function; `path` are the functions that they are in."""
        flattened: list[SourceNode] = []
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in self.functions:
                flattened += self._call(node, key, used_names, path)
                continue
            self.nodes += 1
            if self.nodes > self.limits.nodes:
                problem = f"more than {self.limits.nodes:,} nodes with functions expanded"
                raise LimitExceeded(problem, where=node.where)
            flattened.append(self._with_bodies(node, path))
        return tuple(flattened)

    def _with_bodies(self, node: SourceNode, path: tuple[tuple[str, str], ...]) -> SourceNode:
        attributes = {
            name: replace(value, nodes=self.inlined(value.nodes, _names_in(value), path))
            if isinstance(value, Body)
            else value
            for name, value in node.attributes.items()
        }
        return replace(node, attributes=attributes)

    def _call(
        self, node: SourceNode, key: tuple[str, str], used_names: set[str], path: tuple[tuple[str, str], ...]
    ) -> tuple[SourceNode, ...]:
        if key in path:
            raise ModelError("calls itself", where=f"function {key[0]}::{key[1]}")
        if len(path) >= self.limits.function_depth:
            raise LimitExceeded(f"functions nest deeper than {self.limits.function_depth}", where=node.where)
        function = self.functions[key]
        if len(node.inputs) > len(function.body.inputs) or len(node.outputs) > len(function.body.outputs):
            raise ModelError(
                f"{len(node.inputs)} inputs and {len(node.outputs)} outputs for a function of "
                f"{len(function.body.inputs)} and {len(function.body.outputs)}",
                where=node.where,
            )
        body = called(function.body, {**function.defaults, **node.attributes}, node)
        nodes, outputs = place(body, _arguments(body, node), node.outputs, node.name, used_names)
        nodes = tuple(self._as_part(inner, node, function.opset) for inner in nodes)
        passed = [
            SourceNode(node.name, "Identity", (inner,), (name,), opset=function.opset)
            for name, inner in zip(node.outputs, outputs, strict=False)
            if name and inner != name
        ]
        return self.inlined((*nodes, *passed), used_names, (*path, key))

    def _as_part(self, inner: SourceNode, call: SourceNode, opset: int) -> SourceNode:
        """A node of a body, which is of its call's module if it does not say otherwise."""
        part = replace(inner, name=f"{call.name}/{inner.name}", opset=inner.opset or opset or call.opset)
        if inner.module or inner.torch_op:
            return part
        return replace(part, module=call.module, torch_op=call.torch_op, module_class=call.module_class, call=call.call)


def _names_in(body: Body) -> set[str]:
    outputs = (name for node in body.nodes for name in node.outputs)
    return {*body.inputs, *body.captured, *outputs}


def _arguments(body: Body, node: SourceNode) -> dict[str, str]:
    return {name: node.operand(position) for position, name in enumerate(body.inputs)}


def called(body: Body, values: Mapping[str, AttributeValue], call: SourceNode) -> Body:
    """A function's body with its attributes' values in place; what a call leaves out, the nodes leave out too."""
    return replace(body, nodes=tuple(_with_values(node, values, call) for node in body.nodes))


def _with_values(node: SourceNode, values: Mapping[str, AttributeValue], call: SourceNode) -> SourceNode:
    attributes: dict[str, AttributeValue] = {}
    for name, value in node.attributes.items():
        if isinstance(value, Reference):
            if value.name not in values:
                continue
            value = values[value.name]
            if isinstance(value, Body):
                raise UnsupportedOperator(
                    "hands a sub-graph to a function", where=call.where, hint="export the model without local functions"
                )
        elif isinstance(value, Body):
            value = called(value, values, call)
        attributes[name] = value
    return replace(node, attributes=attributes)
