"""Conventions that specs of all families share: fields that came later, and the types in which operands lie."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.element_types import DType

LATER: Mapping[str, bool] = {"later": True}
"""Marks a field that is younger than its class: the canonical text leaves it out where it holds its default, so that
what was compiled or measured before keeps its name."""

Stored = tuple[DType, ...]
"""In which types a family's own operands lie in memory, inputs before outputs; empty: in those that the family says.
Where a real is held in half of one, the kernel computes with it widened, and rounds what it writes."""
