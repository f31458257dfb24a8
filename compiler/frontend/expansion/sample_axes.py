"""Inputs that hold one sample and no axis for it, where the spec gives them one: `batch_axis: new`.

Rewrites: the shape [T, F] of such an input -> [1, T, F], a Squeeze behind it, and an Unsqueeze in front of every output
that depends on it. Requires: a batch of 1, which the types of inputs see to. Ensures: data and outputs have their
samples first, as those of other models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from compiler.errors import SpecError
from compiler.frontend.file.source import SourceModel, SourceNode, free_name
from compiler.naming import near_names


def add_sample_axes(source: SourceModel, names: Sequence[str]) -> SourceModel:
    """The model with an axis of one sample in front of these inputs. Raises: SpecError for a name that no input has."""
    if not names:
        return source
    inputs = {value.name: value for value in source.inputs}
    for name in names:
        if name not in inputs:
            where = f"spec.inputs.{name}.batch_axis"
            raise SpecError("the model has no such input", where=where, hint=near_names(name, [*inputs]))
    names_in_use = source.value_names()
    axes = free_name("sample axis", names_in_use)
    inner = {name: free_name(f"{name}:sample", names_in_use) for name in names}
    outputs = {name: free_name(f"{name}:sample", names_in_use) for name in _dependent(source, names)}
    shaped = tuple(
        replace(value, shape=None if value.shape is None else (1, *value.shape), has_new_axis=True)
        if value.name in inner
        else value
        for value in source.inputs
    )
    return replace(
        source,
        inputs=shaped,
        nodes=(
            *(_view("Squeeze", name, inner[name], axes) for name in names),
            *(_renamed(node, {**inner, **outputs}, outputs) for node in source.nodes),
            *(_view("Unsqueeze", outputs[name], name, axes) for name in outputs),
        ),
        initializers={**source.initializers, axes: np.asarray([0], np.int64)},
        constants=source.constants | {axes},
    )


def _dependent(source: SourceModel, names: Sequence[str]) -> list[str]:
    """The outputs that nodes make of some inputs."""
    reached: set[str] = set()
    for node in source.nodes:
        if not reached.isdisjoint(node.inputs) or not set(names).isdisjoint(node.inputs):
            reached.update(node.outputs)
    return [name for name in dict.fromkeys(source.outputs) if name in reached]


def _view(op_type: str, before: str, after: str, axes: str) -> SourceNode:
    return SourceNode(f"{op_type} of {before}", op_type, (before, axes), (after,), {})


def _renamed(node: SourceNode, reads: Mapping[str, str], makes: Mapping[str, str]) -> SourceNode:
    return replace(
        node,
        inputs=tuple(reads.get(name, name) for name in node.inputs),
        outputs=tuple(makes.get(name, name) for name in node.outputs),
    )
