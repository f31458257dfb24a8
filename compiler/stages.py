"""The stages of a compile: their names in order, what each hands on, and the clock that tells how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.choice import Choice
from compiler.frontend.source_passes import Source
from compiler.graph import Graph
from compiler.placement.place import Way
from compiler.program.program import MemoryPlan, Optimizer, Program, ProgramName, StateTensor
from compiler.rewriting.passes import Trace
from compiler.settings import Progress
from compiler.step.frozen import FrozenWeights
from compiler.step.plan import UpdatePlan
from compiler.step.training import TrainingGraph
from compiler.values import Names
from compiler.warnings import CompileWarning

StageName = Literal[
    "source",
    "import",
    "forward",
    "plan",
    "loss",
    "differentiate",
    "optimizer",
    "training",
    "lower",
    "fuse",
    "schedule",
    "place",
    "memory",
    "kernels",
]
STAGES: tuple[StageName, ...] = get_args(StageName)


@dataclass(frozen=True, slots=True)
class CompiledStep:
    """A training step ready to link: programs, memory, kernels, and where the time went (`stage_ms`)."""

    forward: Graph
    training: TrainingGraph
    plan: UpdatePlan
    programs: Mapping[ProgramName, Program]
    memory: MemoryPlan
    state: tuple[StateTensor, ...]
    kernels: Mapping[str, CompiledKernel]
    optimizer: Optimizer
    threads: int
    stage_ms: Mapping[str, float] = field(default_factory=dict)
    ways: Callable[[], tuple[Way, ...]] = tuple
    """Ways to run the step, by falling memory: one of them is taken; the others are planned when they are asked for."""
    choices: Mapping[str, Choice] = field(default_factory=dict)
    """Kernels (by signature) that are not scheduled by default."""
    measured: Mapping[str, Choice] = field(default_factory=dict)
    """Kernels among these that are scheduled by measurement."""
    trace: Trace = field(default_factory=Trace)
    """The passes that ran, and what each declined."""
    frozen: FrozenWeights = field(default_factory=FrozenWeights)
    """The outcome for the weights that the plan leaves alone."""
    warnings: tuple[CompileWarning, ...] = ()
    """Warnings of the import, the plan and the loss, in this order."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage that is done."""

    name: StageName
    product: Source | Graph | UpdatePlan | TrainingGraph | tuple[Program, ...] | MemoryPlan | CompiledStep
    names: Names = field(default_factory=dict)
    """The model's names for the values in the product, if that does not tell."""


class Clock:
    """Tells progress, and keeps the wall time of what it names."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._started = time.monotonic()
        self._name = ""
        self.ms: dict[str, float] = {}

    def enter(self, name: str, fraction: float) -> None:
        """Begins a stage; the one before it ends."""
        now = time.monotonic()
        if self._name:
            self.ms[self._name] = self.ms.get(self._name, 0.0) + (now - self._started) * 1e3
        self._name, self._started = name, now
        self._progress(name, fraction)

    def within(self, fraction: float) -> None:
        """Progress inside of what began last."""
        self._progress(self._name, fraction)
