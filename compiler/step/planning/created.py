"""Biases that a plan created and does not let learn."""

from __future__ import annotations

from collections.abc import Collection

from compiler.graph import Graph
from compiler.warnings import CompileWarning, few_of


def idle_biases(graph: Graph, learning: Collection[str]) -> tuple[CompileWarning, ...]:
    """That zeros are added and stay zeros; `learning` are the parameters that the plan lets learn."""
    idle = [name for name in graph.origins.created if name not in learning]
    if not idle:
        return ()
    message = f"{len(idle)} biases were created and do not learn: {few_of(idle)}"
    hint = "preset: bias-only, or a rule with kind: bias, lets them learn; or name fewer layers"
    return (CompileWarning("plan.created_bias_frozen", "plan.create_biases", message, hint),)
