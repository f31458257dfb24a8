"""Applies the spec's settings on sharing: initializers that are one parameter (`tied`), or one for each reader
(`untied`).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from compiler.errors import SpecError
from compiler.frontend.file.source import SourceModel, SourceNode, free_name


def tie_and_untie(source: SourceModel, tied: Sequence[Sequence[str]], untied: Sequence[str]) -> SourceModel:
    """The model with `tied` and `untied` applied.

    Of tied initializers the first one's name stays. An untied one stays with its first reader; the others get
    `<name>@<node>`. Raises: SpecError naming the initializer that is not there, or differs.
    """
    for position, group in enumerate(tied):
        source = _tie(source, group, f"spec.tied[{position}]")
    for position, name in enumerate(untied):
        source = _untie(source, name, f"spec.untied[{position}]")
    return source


def _tie(source: SourceModel, group: Sequence[str], where: str) -> SourceModel:
    for name in group:
        _require(source, name, where)
    first = source.initializers[group[0]]
    for name in group[1:]:
        if source.initializers[name].shape != first.shape or not np.array_equal(source.initializers[name], first):
            raise SpecError(
                f"{name!r} differs from {group[0]!r}",
                where=where,
                hint="tied tensors have the same shape and the same elements",
            )
    others = set(group[1:])
    nodes = tuple(
        replace(node, inputs=tuple(group[0] if name in others else name for name in node.inputs))
        for node in source.nodes
    )
    return replace(source, nodes=nodes)


def _untie(source: SourceModel, name: str, where: str) -> SourceModel:
    _require(source, name, where)
    initializers, used_names = dict(source.initializers), source.value_names()
    nodes: list[SourceNode] = []
    readers = 0
    for node in source.nodes:
        if name in node.inputs:
            readers += 1
            if readers > 1:
                copy_name = free_name(f"{name}@{node.name}", used_names)
                initializers[copy_name] = source.initializers[name]
                node = replace(node, inputs=tuple(copy_name if read == name else read for read in node.inputs))
        nodes.append(node)
    created = source.created | (set(initializers) - set(source.initializers))
    return replace(source, nodes=tuple(nodes), initializers=initializers, created=created)


def _require(source: SourceModel, name: str, where: str) -> None:
    if name not in source.initializers:
        near = difflib.get_close_matches(name, source.initializers, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "names are those of the ONNX file's initializers"
        raise SpecError(f"the model has no initializer {name!r}", where=where, hint=hint)
