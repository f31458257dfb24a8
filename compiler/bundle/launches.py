"""A table of the report: the launches that each kernel call of a step starts on an accelerator, and the resources that
they take.
"""

from __future__ import annotations

from typing import Any

from compiler.codegen.artefacts import Launch
from compiler.codegen.grid.occupancy import occupancy
from compiler.kernels.spec import signature
from compiler.program.labels import label_of
from compiler.program.program import Program
from compiler.stages import CompiledStep
from compiler.targets import GridTarget, Target


def launch_table(step: CompiledStep, target: Target) -> dict[str, Any]:
    """The field `launches` of a report, of the train program; nothing for a CPU, whose kernels are called."""
    if not isinstance(target, GridTarget):
        return {}
    return {"launches": [_row(name, launch, target) for name, launch in _launches(step, step.programs["train"])]}


def _launches(step: CompiledStep, program: Program) -> list[tuple[str, Launch]]:
    return [
        (label_of(call), launch) for call in program.calls for launch in step.kernels[signature(call.spec)].launches
    ]


def _row(name: str, launch: Launch, target: GridTarget) -> dict[str, object]:
    """Returns a launch as a row, without what only a driver knows of it."""
    took = launch.resources
    row: dict[str, object] = {
        "kernel": name,
        "groups": launch.groups,
        "items": launch.items,
        "shared_bytes": took.shared_bytes,
    }
    if took.registers is None:
        return row
    full = round(occupancy(launch, target.capability), 3)
    return {**row, "registers": took.registers, "spill_bytes": took.spill_bytes, "occupancy": full}
