"""Paths of modules in TorchScript's files, told by the tensors that kept their names.

A node is called after the calls around it: `/layers/layers.0/linear1/MatMul`. A child of a container that is called
itself (`nn.Sequential`) repeats its parent's name, and so does a child of an equally named list inside of it
(`TransformerEncoder.layers`): the tensors of the file show which of the two it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from compiler.frontend.file.source import SourceModel

_MOST_REPEATED = 6


def name_modules(source: SourceModel) -> SourceModel:
    """The model with the paths that fit its tensors; unchanged if no path can be read in two ways."""
    if source.producer != "pytorch" or source.record is not None:
        return source
    known_paths = {path for name in source.initializers for path in _above(name)}
    paths = {
        node.name: _path(tuple(node.name.split("/")[1:-1]), known_paths)
        for node in source.nodes
        if node.name[:1] == "/"
    }
    nodes = tuple(replace(node, module=paths.get(node.name) or node.module) for node in source.nodes)
    return replace(source, nodes=nodes)


def _above(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _path(parts: Sequence[str], known_paths: Collection[str]) -> str:
    """The reading of a path of which most is known, or an empty text if there is one only."""
    repeated = [i for i in range(1, len(parts)) if parts[i].startswith(f"{parts[i - 1]}.")][:_MOST_REPEATED]
    best, least = "", len(parts) + 1
    for dropped in itertools.product((True, False), repeat=len(repeated)) if repeated else ():
        dropped_places = {i - 1 for i, is_dropped in zip(repeated, dropped, strict=True) if is_dropped}
        path = ".".join(part for i, part in enumerate(parts) if i not in dropped_places)
        unknown = sum(prefix not in known_paths for prefix in (*_above(path), path))
        if unknown < least:
            best, least = path, unknown
    return best
