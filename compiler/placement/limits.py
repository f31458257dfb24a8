"""Refuses a step that needs more memory than its user, or its board, has: where the most is held, and the ways out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from compiler.errors import DoesNotFit
from compiler.program.labels import label_of
from compiler.program.program import MemoryPlan, Program
from compiler.settings import BuildSettings
from compiler.spec.documents import TrainingSpec
from compiler.values import Value

_NAMED = 3
"""So many of the values that are held at the peak are named, the largest first."""


def fits(plan: MemoryPlan, settings: BuildSettings) -> bool:
    """Whether a planned way to run a step keeps the spec's limit, or without one that of the board."""
    return plan.needed_bytes <= _limit(settings)


def refusal_of(programs: Sequence[Program], plan: MemoryPlan, settings: BuildSettings, how: str) -> DoesNotFit:
    """Returns the error for programs that do not fit; `how` is what was tried, if there was a choice."""
    spec, target, limit_bytes = settings.spec, settings.target, _limit(settings)
    parts = f"arena {plan.arena_bytes:,}, weights {plan.weights_bytes:,}, optimizer {plan.optimizer_bytes:,}"
    parts = f"{parts}; {_peak(programs, plan, spec)}"
    ways = _ways(spec)
    if spec.memory_limit_bytes is not None:
        advice = f"{parts}; {', or '.join(ways)}; {how}"
        return DoesNotFit(plan.needed_bytes, limit_bytes, advice, where="spec.memory_limit_bytes")
    advice = (
        f"{parts}; {target.title} has {target.memory_bytes:,} bytes, of which "
        f"{target.memory_bytes - limit_bytes:,} are left to its system. Set the spec's memory_limit_bytes to "
        f"{limit_bytes:,}, and forward kernels are repeated rather than their results kept, as far as that helps; "
        f"{'; '.join(ways)}; on a device with more memory, set memory_limit_bytes to what is free there"
    )
    return DoesNotFit(plan.needed_bytes, limit_bytes, advice)


def _limit(settings: BuildSettings) -> int:
    limit_bytes = settings.spec.memory_limit_bytes
    return settings.target.budget_bytes if limit_bytes is None else limit_bytes


def _ways(spec: TrainingSpec) -> Sequence[str]:
    """Returns the settings that a user may ask for instead."""
    lower = () if spec.batch == 1 else ("lower the batch",)
    return (*lower, "train fewer or later layers")


def _peak(programs: Sequence[Program], plan: MemoryPlan, spec: TrainingSpec) -> str:
    """The call during which most of the arena is alive, and the largest values then."""
    peaks = (_most_alive(program, plan) for program in programs if program.calls)
    _, position, program = max(peaks, key=lambda peak: peak[0])
    alive = {
        value: plan.placements[program.name, value].size_bytes
        for (name, value), (first, last) in plan.live.items()
        if name == program.name and first <= position <= last
    }
    largest = sorted(alive, key=lambda value: -alive[value])[:_NAMED]
    values = ", ".join(f"{_described(program, value, spec)} {alive[value]:,}" for value in largest)
    return f"most is alive at {label_of(program.calls[position])}: {values}"


def _most_alive(program: Program, plan: MemoryPlan) -> tuple[int, int, Program]:
    """The most bytes of values that are alive during one call, which call that is, and of which program."""
    changes = [0] * (len(program.calls) + 2)
    for (name, value), (first, last) in plan.live.items():
        if name == program.name:
            size_bytes = plan.placements[name, value].size_bytes
            changes[max(first, 0)] += size_bytes
            changes[last + 1] -= size_bytes
    alive = list(accumulate(changes[: len(program.calls)]))
    position = max(range(len(alive)), key=alive.__getitem__)
    return alive[position], position, program


def _described(program: Program, value: Value, spec: TrainingSpec) -> str:
    """A value as people know it; of what a loss reads or makes that is said."""
    calls = [call for call in program.calls if value in map(program.root, (*call.inputs, *call.outputs))]
    maker = next((call for call in calls if value in map(program.root, call.outputs)), None)
    has_name = value in program.names or maker is None
    name = program.name_of(value) if has_name or maker is None else f"what {label_of(maker)} makes"
    kinds = " + ".join(term.kind for term in spec.loss.each)
    return f"{name} (for the loss {kinds})" if any(call.layer == "loss" for call in calls) else name
