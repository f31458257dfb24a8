"""Nodes imported by others that stand in for them: where there is no import row, or the row refuses."""

from __future__ import annotations

from collections.abc import Callable

from compiler.errors import CompileError, ModelError, UnsupportedOperator
from compiler.frontend.expansion.bodies import called_after, place
from compiler.frontend.expansion.control import Run
from compiler.frontend.expansion.definitions import definition
from compiler.frontend.expansion.unrolled import UNROLLED
from compiler.frontend.file.source import SourceNode
from compiler.frontend.scope import Scope

Import = Callable[[Scope, SourceNode, int], None]
"""Imports one node of a version of the standard."""


def stands_in(scope: Scope, node: SourceNode, opset: int, run: Run, import_one: Import) -> bool:
    """Import a node that its row refuses by what it consists of; False if that is refused too."""
    try:
        if node.op_type in UNROLLED:
            UNROLLED[node.op_type](scope, node, run)
            return True
        return define(scope, node, opset, import_one)
    except ModelError:
        return False


def define(scope: Scope, node: SourceNode, opset: int, import_one: Import) -> bool:
    """Import the standard's definition of a node's operator in its place; False if it has none."""
    standard = definition(scope, node, opset)
    if standard is None:
        return False
    body, version = standard
    actual = {name: node.operand(position) for position, name in enumerate(body.inputs)}
    nodes, outputs = place(body, actual, node.outputs, node.name, scope.used_names)
    scope.count_nodes(nodes, node.where)
    for inner in nodes:
        try:
            import_one(scope, called_after(inner, node.name), version)
        except CompileError as problem:
            problem.message = f"its definition by other operators needs {inner.op_type}: {problem.message}"
            problem.where = node.where
            raise
    for name, inner_name in zip(node.outputs, outputs, strict=False):
        if name and name != inner_name:
            if not inner_name:
                raise UnsupportedOperator(f"its definition does not say what its output {name!r} is", where=node.where)
            scope.same(name, inner_name)
    return True
