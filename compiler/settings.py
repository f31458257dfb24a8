"""The settings of a build beside the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compiler.frontend.file.prescan import DEFAULT_LIMITS, ModelLimits
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import CpuTarget, Target
from compiler.tuning.table import NO_TUNING, TuningTable
from compiler.warnings import CompileWarning

Progress = Callable[[str, float], None]
"""(stage, fraction of the whole compile done, 0 to 1)."""


def silent(stage: str, fraction: float) -> None:
    """Progress that nobody hears."""


def engine_warnings(spec: TrainingSpec, target: Target) -> tuple[CompileWarning, ...]:
    """Warns about settings that a target's engine has no use for."""
    if isinstance(target, CpuTarget) or not spec.threads:
        return ()
    message = (
        f"{target.name} runs its kernels on an accelerator, which one thread of the host starts: threads is ignored"
    )
    return (CompileWarning("engine.threads", "spec.threads", message),)


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """The settings of what is to be built (plan, spec, target, tuning: they decide the bytes) and how (the rest: it
    does not).
    """

    plan: SparsePlan
    spec: TrainingSpec
    target: Target
    tuning: TuningTable = NO_TUNING
    """Schedules that measurements chose; the others follow from the target's figures."""
    cache_dir: Path | None = None
    """Keeps kernels between builds; None: nothing is kept."""
    limits: ModelLimits = DEFAULT_LIMITS
    jobs: int = 2
    """Processes that build kernels at the same time."""
    progress: Progress = silent

    @property
    def threads(self) -> int:
        """The most threads of the host that the step will run on: an accelerator's kernels are started by one."""
        return (self.spec.threads or self.target.cores) if isinstance(self.target, CpuTarget) else 1
