"""Opsets 7 to 12 as opset 13: what was an attribute becomes an input, and what was renamed has its later name.

Rewrites: one row of `_RULES` for each operator whose older versions are written otherwise. Requires: opset 7 or later.
Ensures: a node means what its own version of the standard says. Softmax and its kin keep their version, since what they
were taken over depends on a rank that only the import knows. Why here and not by `onnx.version_converter`: that one
drops what exporters tell of each node, and would see a stranger's file before our limits do (decision 99).

Source: the versions of each operator in ONNX's `Changelog.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from compiler.errors import UnsupportedOperator
from compiler.frontend.file.source import (
    NEAREST_OF_OPSET_10,
    OPSETS,
    AttributeValue,
    Body,
    SourceModel,
    SourceNode,
    free_name,
)
from compiler.graph import Array
from compiler.warnings import CompileWarning

_BY_RANK = frozenset({"Hardmax", "LogSoftmax", "Softmax"})
"""Operators that flatten their operand before opset 13; the import knows its rank."""


def upgrade(source: SourceModel) -> SourceModel:
    """The model with every node as opset 13 writes it. Raises: UnsupportedOperator for a Scan of opset 8."""
    work = _Upgrade(source.opset, source.value_names())
    nodes = work.upgraded(source.nodes)
    if not work.read:
        return source
    changed = ", ".join(f"{count} {op_type}" for op_type, count in sorted(work.changed.items()))
    versions = " and ".join(map(str, sorted(work.read)))
    warning = CompileWarning(
        "model.older_opset",
        "model",
        f"is in opset {versions}, and is read as opset {OPSETS[0]}; written anew for it: {changed or 'nothing'}",
        "the trained file keeps its opset",
    )
    return replace(source, opset=max(source.opset, OPSETS[0]), nodes=nodes, warnings=(*source.warnings, warning))


@dataclass(frozen=True, slots=True)
class _Old:
    """A node of an older version."""

    node: SourceNode
    opset: int

    def without(self, *names: str) -> dict[str, AttributeValue]:
        """Its attributes but those."""
        return {name: value for name, value in self.node.attributes.items() if name not in names}

    def floats(self, name: str) -> Array | None:
        """A real attribute, or several, as a tensor; None if it is left out."""
        value = self.node.attributes.get(name)
        return None if value is None else np.asarray(value, np.float32)

    def integers(self, name: str) -> Array | None:
        """Whole numbers as a tensor; None if they are left out."""
        value = self.node.attributes.get(name)
        return None if value is None else np.asarray(value, np.int64)


@dataclass(frozen=True, slots=True)
class _New:
    """The replacement of a node: `inputs` are names, or tensors that were attributes; None: left out."""

    inputs: Sequence[str | Array | None]
    attributes: Mapping[str, AttributeValue]
    op_type: str = ""


_Rule = Callable[[_Old], _New]


@dataclass(slots=True)
class _Upgrade:
    opset: int
    used_names: set[str]
    read: set[int] = field(default_factory=set)
    changed: Counter[str] = field(default_factory=Counter)

    def upgraded(self, nodes: Sequence[SourceNode]) -> tuple[SourceNode, ...]:
        return tuple(newer for node in nodes for newer in self._node(node))

    def _node(self, node: SourceNode) -> Iterator[SourceNode]:
        opset = node.opset or self.opset
        bodies = {
            name: replace(value, nodes=self.upgraded(value.nodes))
            for name, value in node.attributes.items()
            if isinstance(value, Body)
        }
        node = replace(node, attributes={**node.attributes, **bodies}) if bodies else node
        if opset >= OPSETS[0]:
            yield node
            return
        self.read.add(opset)
        below, rule = _RULES.get(node.op_type, (0, None))
        new = rule(_Old(node, opset)) if rule is not None and opset < below else None
        if new is None:
            yield replace(node, opset=opset if node.op_type in _BY_RANK else 0)
            return
        self.changed[node.op_type] += 1
        inputs: list[str] = []
        for entry in new.inputs:
            if isinstance(entry, np.ndarray):
                name = free_name(f"{node.outputs[0]}:{len(inputs)}", self.used_names)
                yield SourceNode(node.name, "Constant", (), (name,), {"value": entry}, node.module)
                inputs.append(name)
            else:
                inputs.append(entry or "")
        while inputs and not inputs[-1]:
            inputs.pop()
        yield replace(
            node,
            op_type=new.op_type or node.op_type,
            stored_type=node.op_type if new.op_type else "",
            inputs=tuple(inputs),
            attributes={**new.attributes, **bodies},
            opset=0,
        )


def _axes(old: _Old) -> _New:
    return _New([old.node.operand(0), old.integers("axes")], old.without("axes"))


def _split(old: _Old) -> _New:
    return _New([old.node.operand(0), old.integers("split")], old.without("split"))


def _clip(old: _Old) -> _New:
    return _New([old.node.operand(0), old.floats("min"), old.floats("max")], {})


def _pad(old: _Old) -> _New:
    pads = old.integers("pads") if "pads" in old.node.attributes else old.integers("paddings")
    return _New([old.node.operand(0), pads, old.floats("value")], old.without("pads", "paddings", "value"))


def _slice(old: _Old) -> _New:
    return _New([old.node.operand(0), old.integers("starts"), old.integers("ends"), old.integers("axes")], {})


def _top_k(old: _Old) -> _New:
    k = old.integers("k")
    return _New([old.node.operand(0), None if k is None else k.reshape(1)], old.without("k"))


def _dropout(old: _Old) -> _New:
    ratio = old.floats("ratio")
    return _New([old.node.operand(0), np.asarray(0.5, np.float32) if ratio is None else ratio], old.without("ratio"))


def _upsample(old: _Old) -> _New:
    scales: str | Array | None = old.node.operand(1) or old.floats("scales")
    return _New([old.node.operand(0), "", scales], _sampling(old, "scales"), "Resize")


def _resize(old: _Old) -> _New:
    return _New([old.node.operand(0), "", old.node.operand(1)], _sampling(old))


def _sampling(old: _Old, *dropped: str) -> dict[str, AttributeValue]:
    """Returns a Resize's attributes for files from before opset 11, where a place in the result lay at its index
    divided by the scale.
    """
    mode = old.node.attributes.get("mode", "nearest")
    return {
        **old.without("mode", *dropped),
        "mode": "linear" if mode == "bilinear" else mode,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": NEAREST_OF_OPSET_10,
    }


def _batch_norm(old: _Old) -> _New:
    if old.node.attributes.get("spatial", 1) != 1:
        raise UnsupportedOperator(
            "normalises each place by itself (spatial=0)", where=old.node.where, hint="export again in opset 18"
        )
    return _New(old.node.inputs, old.without("spatial"))


def _scatter(old: _Old) -> _New:
    return _New(old.node.inputs, old.node.attributes, "ScatterElements")


def _scan(old: _Old) -> _New:
    problem = "a Scan of opset 8 runs over a batch of sequences of different lengths"
    raise UnsupportedOperator(problem, where=old.node.where, hint="export again in opset 18")


_RULES: Mapping[str, tuple[int, _Rule]] = {
    "BatchNormalization": (9, _batch_norm),
    "Clip": (11, _clip),
    "Dropout": (12, _dropout),
    "Pad": (11, _pad),
    "ReduceSum": (13, _axes),
    "Resize": (11, _resize),
    "Scan": (9, _scan),
    "Scatter": (13, _scatter),
    "Slice": (10, _slice),
    "Split": (13, _split),
    "Squeeze": (13, _axes),
    "TopK": (10, _top_k),
    "Unsqueeze": (13, _axes),
    "Upsample": (13, _upsample),
}
"""Operator -> (the first opset that writes it as opset 13 does, how an older one is written then)."""
