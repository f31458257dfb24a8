"""The compiler from end to end: one function per stage, called in order by `compile_step`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from compiler.codegen.api import build_kernels, code_version, workspace_bytes
from compiler.codegen.cache import CompiledKernel
from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.family import choices_of, stored_panel_width
from compiler.errors import DoesNotFit, InternalError, TuningError
from compiler.frontend.importer import import_model
from compiler.frontend.limits import DEFAULT_LIMITS, ModelLimits
from compiler.fusion.fuse import fuse
from compiler.graph import Graph, TensorType
from compiler.kernels.spec import signature
from compiler.passes import FORWARD_PASSES, TRAINING_PASSES, run_passes
from compiler.passes.eliminate_dead import eliminate_dead
from compiler.placement.attempts import Attempt, attempts
from compiler.placement.packed_weights import pack_weights
from compiler.program.checkpoint_names import CheckpointNames
from compiler.program.lowering import Lowered, lower
from compiler.program.memory import plan_memory
from compiler.program.only_direct import only_direct
from compiler.program.operands import check_operands
from compiler.program.program import KernelCall, MemoryPlan, Optimizer, Program, ProgramName, StateTensor
from compiler.program.schedule import schedule
from compiler.spec.documents import OptimizerSpec, SparsePlan, TrainingSpec
from compiler.step.autodiff import differentiate
from compiler.step.plan import UpdatePlan, plan_warnings, resolve_plan
from compiler.step.training import TrainingGraph, add_optimizer, attach_loss
from compiler.targets import Target
from compiler.tuning.table import NO_TUNING, TuningTable
from compiler.values import Value
from compiler.warnings import CompileWarning

Progress = Callable[[str, float], None]
"""(stage, fraction of the whole compile done, 0 to 1)."""


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
    warnings: tuple[CompileWarning, ...] = ()
    """What the import, the plan and the loss had to say, in this order."""


class Stages:
    """Tells progress and keeps each stage's wall time."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress or (lambda stage, fraction: None)
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


def compile_step(
    model: bytes,
    *,
    plan: SparsePlan,
    spec: TrainingSpec,
    target: Target,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    limits: ModelLimits = DEFAULT_LIMITS,
    jobs: int = 2,
    tuning: TuningTable = NO_TUNING,
) -> CompiledStep:
    """Model bytes, plan and spec -> kernels and a byte-exact plan for one target; `tuning` decides schedules.

    Raises: CompileError; every kind says who must act (see `compiler.errors`).
    """
    stages = Stages(progress)
    threads = spec.threads or target.cores
    stages.enter("import", 0.0)
    graph = import_model(
        model,
        input_shapes=spec.input_shapes(),
        batch=spec.batch,
        batch_norm=spec.batch_norm,
        tied=spec.tied,
        untied=spec.untied,
        limits=limits,
    )
    stages.enter("optimize", 0.04)
    forward = run_passes(graph, FORWARD_PASSES)
    stages.enter("differentiate", 0.08)
    update_plan = resolve_plan(forward, plan)
    forward = replace(forward, warnings=forward.warnings + plan_warnings(forward, plan))
    training = derive_training_step(forward, update_plan, spec)
    stages.enter("schedule", 0.12)
    programs, state = make_programs(forward, training)
    if spec.convolutions == "direct":
        programs = only_direct(programs)
    stages.enter("memory", 0.16)
    ways = attempts(programs, _batch(training), target)
    placed, stored, memory, choices = place_programs(
        ways, state, tuning=tuning, target=target, threads=threads, limit_bytes=spec.memory_limit_bytes
    )
    for program in placed:
        check_operands(program)
    stages.enter("kernels", 0.2)
    specs = [call.spec for program in placed for call in program.calls]
    kernels = build_kernels(
        specs,
        target,
        threads=threads,
        cache_dir=cache_dir,
        jobs=jobs,
        progress=lambda done, total: stages.within(0.2 + 0.7 * done / max(total, 1)),
        choices=choices,
    )
    stages.enter("link", 0.9)
    return CompiledStep(
        forward=forward,
        training=training,
        plan=update_plan,
        programs={program.name: program for program in placed},
        memory=memory,
        state=stored,
        kernels=kernels,
        optimizer=_optimizer(spec.optimizer),
        threads=threads,
        stage_ms=stages.ms,
        choices=choices,
        warnings=tuple(dict.fromkeys(training.graph.warnings)),
    )


def place_programs(
    ways: Iterable[Attempt],
    state: tuple[StateTensor, ...],
    *,
    tuning: TuningTable,
    target: Target,
    threads: int,
    limit_bytes: int | None,
) -> tuple[tuple[Program, ...], tuple[StateTensor, ...], MemoryPlan, Mapping[str, Choice]]:
    """Memory and schedules of the first of several equivalent sets of programs that fits in `limit_bytes`.

    Its frozen weights are packed; a limit on memory leaves no room for copies of them.

    Raises: DoesNotFit, of the attempt that needs least, if none fits; TuningError as `measured_choices`.
    """
    refusals: list[tuple[DoesNotFit, str]] = []
    panel_width = partial(stored_panel_width, target=target, threads=threads)
    for way in ways:
        programs, stored = pack_weights(way.programs, state, panel_width, may_copy=limit_bytes is None)
        choices = measured_choices(programs, tuning, target, threads)

        def scratch_bytes(call: KernelCall, choices: Mapping[str, Choice] = choices) -> int:
            return workspace_bytes(call.spec, target, threads, choices.get(signature(call.spec), DEFAULT))

        try:
            placed, memory = plan_memory(programs, stored, scratch_bytes, limit_bytes)
        except DoesNotFit as refusal:
            refusals.append((refusal, way.how))
        else:
            return placed, stored, memory, choices
    if not refusals:
        raise InternalError("there are no programs to place", where="memory")
    least, how = min(refusals, key=lambda refused: refused[0].needed_bytes)
    advice = f"{least.hint} ({len(refusals)} ways were tried; this is the smallest, with {how})"
    raise DoesNotFit(least.needed_bytes, least.limit_bytes, advice)


def _batch(training: TrainingGraph) -> int:
    """Samples of a step: the first axis of the model's first input."""
    shape = training.graph.types[training.data_inputs[0]].shape
    return shape[0] if shape else 1


def measured_choices(
    programs: Iterable[Program], tuning: TuningTable, target: Target, threads: int
) -> Mapping[str, Choice]:
    """The schedules that measurements chose for kernels of these programs, by signature.

    Raises: TuningError if a kernel cannot be scheduled as the table says.
    """
    decided = tuning.choices(target=target.name, version=code_version(), threads=threads)
    specs = {signature(call.spec): call.spec for program in programs for call in program.calls} if decided else {}
    chosen = {name: decided[name] for name in specs if name in decided}
    for name, choice in chosen.items():
        if choice not in choices_of(specs[name], target, threads):
            raise TuningError(
                f"kernel {name[:16]} has no schedule {choice.text!r}", where="tuning", hint="measure again"
            )
    return chosen


def derive_training_step(forward: Graph, plan: UpdatePlan, spec: TrainingSpec) -> TrainingGraph:
    """Loss, gradients, updates, then the passes over the whole training graph."""
    step = attach_loss(forward, spec.loss)
    step = differentiate(step, plan)
    step = add_optimizer(step, spec.optimizer, {name: (part.axis, part.start) for name, part in plan.items()})
    return step.with_graph(run_passes(step.graph, TRAINING_PASSES))


def make_programs(forward: Graph, training: TrainingGraph) -> tuple[tuple[Program, ...], tuple[StateTensor, ...]]:
    """The train and forward programs, and the state both share."""
    train = note_gradients(schedule_graph(training.graph))
    infer = schedule_graph(_only_logits(forward, training.logits))
    inputs = (*training.data_inputs, training.labels, *training.hyper)
    names = forward.names
    programs = (
        Program("train", train.calls, train.types, inputs, (training.loss, training.logits), train.aliases, names),
        Program("forward", infer.calls, infer.types, training.data_inputs, (training.logits,), infer.aliases, names),
    )
    return programs, state_tensors(forward, training, programs)


def schedule_graph(graph: Graph) -> Lowered:
    """Kernel calls of a graph, fused and in execution order."""
    return schedule(fuse(lower(graph), graph.outputs), graph.outputs)


def note_gradients(lowered: Lowered) -> Lowered:
    """Note at each call whose first output is a parameter's gradient which parameter that is."""
    makers = {lowered.root(call.outputs[0]): i for i, call in enumerate(lowered.calls)}
    calls = list(lowered.calls)
    for call in lowered.calls:
        if call.phase != "update":
            continue
        maker = makers.get(lowered.root(call.inputs[1]))
        if maker is not None and calls[maker].phase == "backward":
            calls[maker] = replace(calls[maker], parameter=call.parameter)
    return replace(lowered, calls=tuple(calls))


def _only_logits(forward: Graph, logits: Value) -> Graph:
    return eliminate_dead(replace(forward, outputs=(logits,)))


def state_tensors(forward: Graph, training: TrainingGraph, programs: tuple[Program, ...]) -> tuple[StateTensor, ...]:
    """Every parameter of the model, optimizer state, and the constants that some call reads."""
    names = CheckpointNames([parameter.name for parameter in forward.parameters.values()])
    tensors = [
        StateTensor(
            value, own.name, forward.types[value], "parameter", own.file_shape, own.view_shape, own.perm,
            value in training.updates,
        )
        for value, own in forward.parameters.items()
    ]  # fmt: skip
    arrays = {**forward.arrays, **training.graph.arrays}
    types = {**forward.types, **training.graph.types}
    read = {program.root(value) for program in programs for call in program.calls for value in call.inputs}
    for value in arrays:
        if value in read and value not in forward.parameters:
            tensors.append(_plain_state(value, names.constant(arrays[value]), types[value], "constant"))
    for value, parameter in training.optimizer_state.items():
        name = names.state(value.kind, forward.parameters[parameter].name)
        tensors.append(_plain_state(value, name, types[value], "optimizer"))
    return tuple(tensors)


def _plain_state(value: Value, name: str, tensor: TensorType, role: Literal["constant", "optimizer"]) -> StateTensor:
    axes = tuple(range(len(tensor.shape)))
    return StateTensor(value, name, tensor, role, tensor.shape, tensor.shape, axes, role == "optimizer")


def _optimizer(spec: OptimizerSpec) -> Optimizer:
    return Optimizer(spec.kind, spec.learning_rate, spec.momentum, spec.beta1, spec.beta2)


def distinct_kernels(step: CompiledStep) -> int:
    """How many different kernels the binary holds."""
    return len({signature(call.spec) for program in step.programs.values() for call in program.calls})
