"""Refuses a step that needs more memory than its user, or its board, has: where the most is held, and the ways out."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.errors import DoesNotFit
from compiler.program.labels import label_of
from compiler.program.program import MemoryPlan, Program
from compiler.settings import BuildSettings
from compiler.spec.documents import TrainingSpec
from compiler.values import Value

_NAMED = 3
"""So many of the values that are held at the peak are named, the largest first."""


def refusal_of(programs: Sequence[Program], plan: MemoryPlan, settings: BuildSettings) -> DoesNotFit | None:
    """Why a planned way to run the programs does not fit; None if it does.

    Raises: DoesNotFit, where no other way would be tried: what the target's memory does not hold without a limit.
    """
    spec, target = settings.spec, settings.target
    limit_bytes = spec.memory_limit_bytes
    ways = _ways(spec)
    parts = f"arena {plan.arena_bytes:,}, weights {plan.weights_bytes:,}, optimizer {plan.optimizer_bytes:,}"
    if limit_bytes is not None:
        if plan.needed_bytes <= limit_bytes:
            return None
        advice = f"{parts}; {_peak(programs, plan, spec)}; {', or '.join(ways)}"
        return DoesNotFit(plan.needed_bytes, limit_bytes, advice, where="spec.memory_limit_bytes")
    budget = target.budget_bytes
    if plan.needed_bytes <= budget:
        return None
    advice = (
        f"{parts}; {_peak(programs, plan, spec)}; {target.title} has {target.memory_bytes:,} bytes, of which "
        f"{target.memory_bytes - budget:,} are left to its system. Set the spec's memory_limit_bytes to {budget:,}, "
        f"and forward kernels are repeated rather than their results kept, as far as that helps; {'; '.join(ways)}; "
        "on a device with more memory, set memory_limit_bytes to what is free there"
    )
    raise DoesNotFit(plan.needed_bytes, budget, advice)


def _ways(spec: TrainingSpec) -> Sequence[str]:
    """What a user may ask for instead."""
    lower = () if spec.batch == 1 else ("lower the batch",)
    return (*lower, "train fewer or later layers")


def _peak(programs: Sequence[Program], plan: MemoryPlan, spec: TrainingSpec) -> str:
    """The call during which most of the arena is alive, and the largest values then."""
    moments = (
        (_alive(program, plan, position), program, position)
        for program in programs
        for position in range(len(program.calls))
    )
    alive, program, position = max(moments, key=lambda moment: sum(moment[0].values()))
    largest = sorted(alive, key=lambda value: -alive[value])[:_NAMED]
    values = ", ".join(f"{_described(program, value, spec)} {alive[value]:,}" for value in largest)
    return f"most is alive at {label_of(program.calls[position])}: {values}"


def _alive(program: Program, plan: MemoryPlan, position: int) -> dict[Value, int]:
    """Bytes of each value that is alive while a call runs, of those that own their storage."""
    spans = ((value, span) for (name, value), span in plan.live.items() if name == program.name)
    return {
        value: plan.placements[program.name, value].size_bytes
        for value, (first, last) in spans
        if first <= position <= last
    }


def _described(program: Program, value: Value, spec: TrainingSpec) -> str:
    """A value as people know it; of what a loss reads or makes that is said."""
    calls = [call for call in program.calls if value in map(program.root, (*call.inputs, *call.outputs))]
    maker = next((call for call in calls if value in map(program.root, call.outputs)), None)
    has_name = value in program.names or maker is None
    name = program.name_of(value) if has_name or maker is None else f"what {label_of(maker)} makes"
    kinds = " + ".join(term.kind for term in spec.loss.each)
    return f"{name} (for the loss {kinds})" if any(call.layer == "loss" for call in calls) else name
