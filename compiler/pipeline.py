"""The compiler from end to end: one function per stage, called in order by `compile_step`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from compiler.call_passes import call_passes, run_call_passes
from compiler.codegen.api import build_kernels
from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.choice import Choice
from compiler.frontend.importer import import_model
from compiler.graph import Graph
from compiler.kernels.spec import signature
from compiler.passes import FORWARD_PASSES, TRAINING_PASSES, run_passes
from compiler.passes.eliminate_dead import without_dead
from compiler.placement.attempts import attempts
from compiler.placement.place import place_programs
from compiler.program.lowering import lower
from compiler.program.memory import check_budget
from compiler.program.program import MemoryPlan, Optimizer, Program, ProgramName, StateTensor
from compiler.program.state import state_tensors
from compiler.rewriting.passes import Passes, Trace
from compiler.settings import BuildSettings, Progress
from compiler.spec.documents import OptimizerSpec, TrainingSpec
from compiler.step.autodiff import differentiate
from compiler.step.plan import UpdatePlan, plan_warnings, resolve_plan
from compiler.step.training import LABELS, TrainingGraph, add_optimizer, attach_loss
from compiler.warnings import CompileWarning


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
    choices: Mapping[str, Choice] = field(default_factory=dict)
    """Kernels (by signature) that are not scheduled by default."""
    trace: Trace = field(default_factory=Trace)
    """Every pass that ran, and what it declined."""
    warnings: tuple[CompileWarning, ...] = ()
    """What the import, the plan and the loss had to say, in this order."""


class Stages:
    """Tells progress and keeps each stage's wall time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._started = time.monotonic()
        self._name = ""
        self.ms: dict[str, float] = {}

    def enter(self, name: str, fraction: float) -> None:
        """Begin a stage; the one before it ends."""
        now = time.monotonic()
        if self._name:
            self.ms[self._name] = self.ms.get(self._name, 0.0) + (now - self._started) * 1e3
        self._name, self._started = name, now
        self._progress(name, fraction)

    def within(self, fraction: float) -> None:
        """Progress inside the current stage."""
        self._progress(self._name, fraction)


def compile_step(model: bytes, settings: BuildSettings) -> CompiledStep:
    """Model bytes -> kernels and a byte-exact plan for one target.

    Raises: CompileError; every kind says who must act (see `compiler.errors`).
    """
    spec, target, threads = settings.spec, settings.target, settings.threads
    stages = Stages(settings.progress)
    stages.enter("import", 0.0)
    graph = import_model(
        model,
        input_shapes=spec.input_shapes(),
        batch=spec.batch,
        batch_norm=spec.batch_norm,
        tied=spec.tied,
        untied=spec.untied,
        limits=settings.limits,
    )
    stages.enter("optimize", 0.04)
    trace = Trace()
    forward = run_passes(graph, FORWARD_PASSES, trace, "forward graph")
    stages.enter("differentiate", 0.08)
    update_plan = resolve_plan(forward, settings.plan)
    forward = replace(forward, warnings=forward.warnings + plan_warnings(forward, settings.plan))
    training = derive_training_step(forward, update_plan, spec, trace)
    stages.enter("schedule", 0.12)
    programs, state = make_programs(forward, training, call_passes(target, direct=spec.convolutions == "direct"), trace)
    stages.enter("memory", 0.16)
    placed = place_programs(
        programs,
        state,
        attempts(programs, _batch(training), target),
        tuning=settings.tuning,
        target=target,
        threads=threads,
        limit_bytes=spec.memory_limit_bytes,
        trace=trace,
    )
    if spec.memory_limit_bytes is None:
        check_budget(placed.memory, target)
    stages.enter("kernels", 0.2)
    specs = [call.spec for program in placed.programs for call in program.calls]
    kernels = build_kernels(
        specs,
        target,
        threads=threads,
        cache_dir=settings.cache_dir,
        jobs=settings.jobs,
        progress=lambda done, total: stages.within(0.2 + 0.7 * done / max(total, 1)),
        choices=placed.choices,
    )
    stages.enter("link", 0.9)
    return CompiledStep(
        forward=forward,
        training=training,
        plan=update_plan,
        programs={program.name: program for program in placed.programs},
        memory=placed.memory,
        state=placed.state,
        kernels=kernels,
        optimizer=_optimizer(spec.optimizer),
        threads=threads,
        stage_ms=stages.ms,
        choices=placed.choices,
        trace=trace,
        warnings=tuple(dict.fromkeys(training.graph.warnings)),
    )


def _batch(training: TrainingGraph) -> int:
    """Samples of a step: the first axis of the model's first input."""
    shape = training.graph.types[training.data_inputs[0]].shape
    return shape[0] if shape else 1


def derive_training_step(
    forward: Graph, plan: UpdatePlan, spec: TrainingSpec, trace: Trace | None = None
) -> TrainingGraph:
    """Loss, gradients, updates, then the passes over the whole training graph."""
    step = attach_loss(forward, spec.loss)
    step = differentiate(step, plan)
    step = add_optimizer(step, spec.optimizer, {name: (part.axis, part.start) for name, part in plan.items()})
    return step.with_graph(run_passes(step.graph, TRAINING_PASSES, trace, "training graph"))


def make_programs(
    forward: Graph, training: TrainingGraph, passes: Passes[Program], trace: Trace | None = None
) -> tuple[tuple[Program, ...], tuple[StateTensor, ...]]:
    """The train and forward programs after call passes, and the state both share."""
    inputs = (*training.data_inputs, LABELS, *training.hyper)
    inference = without_dead(replace(forward, outputs=(training.logits,)))
    lowered = (
        lower(training.graph, "train", inputs=inputs, outputs=(training.loss, training.logits)),
        lower(inference, "forward", inputs=training.data_inputs, outputs=(training.logits,)),
    )
    programs = tuple(run_call_passes(program, passes, trace) for program in lowered)
    return programs, state_tensors(forward, training, programs)


def _optimizer(spec: OptimizerSpec) -> Optimizer:
    return Optimizer(spec.kind, spec.learning_rate, spec.momentum, spec.beta1, spec.beta2)


def distinct_kernels(step: CompiledStep) -> int:
    """How many different kernels the binary holds."""
    return len({signature(call.spec) for program in step.programs.values() for call in program.calls})
