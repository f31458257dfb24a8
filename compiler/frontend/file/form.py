"""Whether a model is well formed: every name is made once, and before it is read; in sub-graphs and functions too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from compiler.errors import ModelError
from compiler.frontend.file.source import Body, SourceModel, SourceNode


def check_form(source: SourceModel) -> SourceModel:
    """The model itself, which is in single assignment and topological order. Raises: ModelError."""
    defined = set(source.initializers)
    _define(defined, [value.name for value in source.inputs], "graph inputs")
    _check_nodes(source.nodes, defined)
    for (domain, name), function in source.functions.items():
        _check_body(function.body, f"function {domain}::{name}", source.initializers)
    _check_outputs(source.outputs, defined)
    return source


def form_problem(source: SourceModel) -> str:
    """Returns the message of `check_form` for a model; empty for one that is well formed."""
    try:
        check_form(source)
    except ModelError as problem:
        return str(problem)
    return ""


def _check_nodes(nodes: Iterable[SourceNode], defined: set[str]) -> None:
    for node in nodes:
        for name in node.inputs:
            if name and name not in defined:
                raise ModelError(
                    f"reads {name!r}, which nothing before it makes",
                    where=node.where,
                    hint="nodes must be in topological order",
                )
        _define(defined, [name for name in node.outputs if name], node.where)
        for value in node.attributes.values():
            if isinstance(value, Body):
                _check_body(value, node.where)


def _check_body(body: Body, where: str, around: Collection[str] = ()) -> None:
    defined = {*body.captured, *around}
    _define(defined, body.inputs, where)
    _check_nodes(body.nodes, defined)
    for name in body.outputs:
        if name not in defined:
            raise ModelError(f"nothing in its body makes {name!r}", where=where)


def _define(defined: set[str], names: Sequence[str], where: str) -> None:
    for name in names:
        if not name or name in defined:
            raise ModelError(f"{name!r} is defined twice" if name else "a value has no name", where=where)
        defined.add(name)


def _check_outputs(outputs: Iterable[str], defined: set[str]) -> None:
    names = list(outputs)
    if not names:
        raise ModelError("the graph has no output", where="graph")
    for name in names:
        if name not in defined:
            raise ModelError("no node makes it", where=f"output {name!r}")
    if len(set(names)) != len(names):
        raise ModelError("an output is listed twice", where="graph")
