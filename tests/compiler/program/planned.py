"""The agreement tests' steps up to their memory plan: no kernel is built."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from compiler.pipeline import walk
from compiler.program.program import MemoryPlan, Program, StateTensor
from compiler.program.state import state_tensors
from compiler.settings import BuildSettings
from compiler.stages import StageName
from compiler.step.training import TrainingGraph
from compiler.targets import load
from tests.compiler.agreement.cases import CASES

MILLION = 1_000_000
TARGET = "x86-64-v4"


@cache
def made(case: str) -> dict[StageName, object]:
    """What each stage of a case made, up to its memory plan."""
    own = CASES[case]()
    settings = BuildSettings(plan=own.plan, spec=own.spec, target=load(TARGET))
    stages: dict[StageName, object] = {}
    for stage in walk(own.model, settings):
        stages[stage.name] = stage.product
        if stage.name == "memory":
            break
    return stages


def memory_of(case: str) -> MemoryPlan:
    """Where a case's values live."""
    plan = made(case)["memory"]
    assert isinstance(plan, MemoryPlan)
    return plan


def scheduled(case: str) -> tuple[Program, Sequence[StateTensor]]:
    """A case's training program as it was ordered, and its state."""
    stages = made(case)
    forward, training, programs = stages["forward"], stages["training"], stages["schedule"]
    assert isinstance(training, TrainingGraph)
    assert isinstance(programs, tuple)
    return programs[0], state_tensors(forward, training, programs)  # type: ignore[arg-type]
