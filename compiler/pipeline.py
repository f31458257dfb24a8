"""The compiler from end to end: one function per stage, called in order by `walk`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from compiler.call_passes import fusion_passes, order_passes, run_call_passes
from compiler.codegen.api import build_kernels
from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.workers import Worker, begun_workers
from compiler.external import NO_EXTERNAL, External
from compiler.frontend.importer import import_source, read_source
from compiler.frontend.source_passes import Source, Wishes
from compiler.graph import Graph
from compiler.passes import FORWARD_PASSES, TRAINING_PASSES, run_passes
from compiler.passes.eliminate_dead import without_dead
from compiler.placement.attempts import attempts
from compiler.placement.place import Placed, place_programs
from compiler.program.lowering import lower
from compiler.program.multiply_bytes import byte_warnings
from compiler.program.multiply_halves import precision_warnings
from compiler.program.multiply_on_tensor_cores import tf32_warnings
from compiler.program.program import Optimizer, Program, ProgramName, Schedule, StateTensor
from compiler.program.state import held_in_bytes, state_tensors
from compiler.rewriting.passes import Passes, Trace
from compiler.settings import BuildSettings, engine_warnings
from compiler.spec.documents import TrainingSpec
from compiler.stages import Clock, CompiledStep, Stage
from compiler.step.accumulation import accumulate, with_fresh_values
from compiler.step.adapters import attach_adapters
from compiler.step.arranged import with_ranges
from compiler.step.autodiff import differentiate
from compiler.step.batch_statistics import use_batch_statistics
from compiler.step.dropout import drop_at_random
from compiler.step.frozen import hold_frozen
from compiler.step.logits import expose_logits
from compiler.step.loss import attach_loss
from compiler.step.loss_scale import loss_scale
from compiler.step.on_bounds import on_bounds
from compiler.step.optimizer import add_optimizer
from compiler.step.plan import UpdatePlan, decide_plan
from compiler.step.planning.layers import reached_by_loss
from compiler.step.training import TrainingGraph
from compiler.warnings import CompileWarning


def compile_step(
    model: bytes, settings: BuildSettings, external: External = NO_EXTERNAL, *, reported: bool = False
) -> CompiledStep:
    """Model bytes (and the data files beside them) -> kernels and a byte-exact plan for one target.

    `reported`: the ways that a report lists are planned while kernels build, not when somebody asks for them.

    Raises: CompileError; every kind says who must act (see `compiler.errors`).
    """
    with begun_workers(settings.jobs) as workers:
        *_, last = walk(model, settings, external=external, workers=workers, reported=reported)
    assert isinstance(last.product, CompiledStep)
    return last.product


def walk(
    model: bytes,
    settings: BuildSettings,
    trace: Trace | None = None,
    *,
    external: External = NO_EXTERNAL,
    workers: Sequence[Worker] = (),
    reported: bool = False,
) -> Iterator[Stage]:
    """The stages of a compile in the order of `STAGES`, each done when it is taken; `trace` hears of every pass.

    Kernels are built by `workers` that run already, too. `reported`: as for `compile_step`.

    Raises: as `compile_step`.
    """
    spec, target = settings.spec, settings.target
    clock, trace = Clock(settings.progress), trace if trace is not None else Trace()
    clock.enter("import", 0.0)
    source = _read(model, settings, external, trace)
    yield Stage("source", source)
    imported = _imported(source, settings)
    yield Stage("import", imported)
    clock.enter("optimize", 0.04)
    forward = run_passes(imported, FORWARD_PASSES, trace, "forward graph")
    yield Stage("forward", forward)
    clock.enter("differentiate", 0.08)
    forward = expose_logits(forward, spec.loss)
    reach = reached_by_loss(attach_loss(forward, spec.loss))
    decided = decide_plan(forward, settings.plan, reach)
    adapted = attach_adapters(forward, decided.updates, settings.plan.lora)
    forward, plan = replace(adapted.graph, warnings=adapted.graph.warnings + decided.warnings), adapted.plan
    forward, plan = with_ranges(forward, plan, trace)
    forward, frozen = hold_frozen(forward, plan, spec.precision)
    yield Stage("plan", plan, forward.names)
    for stage in _training_stages(forward, plan, spec, trace):
        yield stage
        training = stage.product
    assert isinstance(training, TrainingGraph)
    plan = {value: part for value, part in plan.items() if value in training.gradients}
    clock.enter("schedule", 0.12)
    programs = lower_both(forward, training)
    yield Stage("lower", programs)
    programs = _run_on_each(programs, fusion_passes(target), trace, at_end=False)
    yield Stage("fuse", programs)
    programs = _run_on_each(
        programs,
        order_passes(
            target,
            direct=spec.convolutions == "direct",
            activations=spec.precision.compute,
            pinned=held_in_bytes(forward),
            in_bytes=spec.precision.frozen_products == "int8",
            in_tf32=spec.precision.products == "tf32",
        ),
        trace,
    )
    yield Stage("schedule", programs)
    clock.enter("memory", 0.16)
    state = state_tensors(forward, training, programs)
    placed = place_programs(
        programs, state, attempts(programs, forward.batch(), target, settings.threads), settings, trace
    )
    yield Stage("place", placed.programs)
    yield Stage("memory", placed.memory, training.graph.names)
    clock.enter("kernels", 0.2)
    kernels = _built(placed, settings, clock, workers, placed.ways if reported else tuple)
    clock.enter("link", 0.9)
    yield Stage(
        "kernels",
        CompiledStep(
            forward=forward,
            training=training,
            plan=plan,
            programs={program.name: program for program in placed.programs},
            memory=placed.memory,
            state=placed.state,
            kernels=kernels,
            optimizer=_optimizer(spec, training),
            threads=settings.threads,
            stage_ms=clock.ms,
            ways=placed.ways,
            choices=placed.choices,
            measured=placed.measured,
            trace=trace,
            frozen=frozen,
            warnings=tuple(dict.fromkeys((*training.graph.warnings, *_of_target(settings, placed.programs)))),
        ),
    )


def _of_target(settings: BuildSettings, programs: Iterable[Program]) -> Iterator[CompileWarning]:
    precision, target = settings.spec.precision, settings.target
    yield from engine_warnings(settings.spec, target)
    yield from precision_warnings(target, precision.compute)
    if precision.frozen_products != "f32":
        yield from byte_warnings(target, programs)
    if precision.products == "tf32":
        yield from tf32_warnings(target)


def derive_training_step(
    forward: Graph, plan: UpdatePlan, spec: TrainingSpec, trace: Trace | None = None
) -> TrainingGraph:
    """Loss, gradients, updates, then the passes over the whole training graph."""
    *_, last = _training_stages(forward, plan, spec, trace)
    assert isinstance(last.product, TrainingGraph)
    return last.product


def make_programs(
    forward: Graph, training: TrainingGraph, passes: Passes[Program], trace: Trace | None = None
) -> tuple[tuple[Program, ...], tuple[StateTensor, ...]]:
    """The train and forward programs after `passes`, and the state both share."""
    programs = _run_on_each(lower_both(forward, training), passes, trace)
    return programs, state_tensors(forward, training, programs)


def lower_both(forward: Graph, training: TrainingGraph) -> tuple[Program, ...]:
    """The train and forward programs, and that of the other micro-batches if a step has several: calls for nodes."""
    inference = without_dead(replace(forward, outputs=training.answers))
    first = (
        _lower_step(training, "train"),
        lower(inference, "forward", inputs=inference.inputs, outputs=training.answers),
    )
    return first if training.accumulation is None else (*first, _lower_step(training.accumulation, "accumulate"))


def _lower_step(training: TrainingGraph, name: ProgramName) -> Program:
    """Calls of a step, which gives its loss alone: what the model answers may be written over by its gradient."""
    inputs = (*training.data_inputs, *training.label_arrays, *training.hyper)
    outputs = tuple(value for value in training.graph.outputs if value not in training.results[1:])
    return lower(replace(training.graph, outputs=outputs), name, inputs=inputs, outputs=(training.loss,))


def _read(model: bytes, settings: BuildSettings, external: External, trace: Trace) -> Source:
    spec = settings.spec
    wishes = Wishes(
        spec.input_values(), spec.sample_axes(), spec.tied, spec.untied, settings.plan.create_biases, spec.quantized
    )
    return read_source(model, wishes, limits=settings.limits, external=external, trace=trace)


def _imported(source: Source, settings: BuildSettings) -> Graph:
    spec = settings.spec
    return import_source(
        source,
        input_shapes=spec.input_shapes(),
        batch_axes=spec.batch_axes(),
        batch=spec.batch,
        batch_norm=spec.batch_norm,
        dropout=spec.dropout,
        outputs=[term.output for term in spec.loss.each if term.output],
        limits=settings.limits,
    )


def _training_stages(forward: Graph, plan: UpdatePlan, spec: TrainingSpec, trace: Trace | None) -> Iterator[Stage]:
    step = drop_at_random(use_batch_statistics(attach_loss(forward, spec.loss)))
    yield Stage("loss", step)
    still = on_bounds(step.graph, plan)
    step = differentiate(step, plan, scale=loss_scale(step, spec.precision))
    step = step.with_graph(replace(step.graph, warnings=(*step.graph.warnings, *still)))
    yield Stage("differentiate", step)
    step = add_optimizer(accumulate(step, spec.accumulate), spec.optimizer, plan)
    yield Stage("optimizer", step)
    step = step.with_graph(run_passes(step.graph, TRAINING_PASSES, trace, "training graph"))
    if step.accumulation is not None:
        before = with_fresh_values(step.accumulation, step.graph)
        after = before.with_graph(run_passes(before.graph, TRAINING_PASSES, trace, "micro-batch graph"))
        step = replace(step, accumulation=after)
    yield Stage("training", step)


def _run_on_each(
    programs: tuple[Program, ...], passes: Passes[Program], trace: Trace | None, *, at_end: bool = True
) -> tuple[Program, ...]:
    return tuple(run_call_passes(program, passes, trace, at_end=at_end) for program in programs)


def _built(
    placed: Placed, settings: BuildSettings, clock: Clock, workers: Sequence[Worker], meanwhile: Callable[[], object]
) -> dict[str, CompiledKernel]:
    built = build_kernels(
        [call.spec for program in placed.programs for call in program.calls],
        settings.target,
        threads=settings.threads,
        cache_dir=settings.cache_dir,
        jobs=settings.jobs,
        progress=lambda done, total: clock.within(0.2 + 0.7 * done / max(total, 1)),
        choices=placed.choices,
        started_workers=workers,
        meanwhile=meanwhile,
    )
    return dict(built)


def _optimizer(spec: TrainingSpec, training: TrainingGraph) -> Optimizer:
    optimizer_spec, schedule_spec = spec.optimizer, spec.schedule
    schedule = Schedule(schedule_spec.kind, schedule_spec.warmup_steps, schedule_spec.final_ratio)
    return Optimizer(
        optimizer_spec.kind,
        optimizer_spec.learning_rate,
        optimizer_spec.momentum,
        optimizer_spec.beta1,
        optimizer_spec.beta2,
        optimizer_spec.beta2_decay,
        spec.accumulate.steps,
        schedule,
        training.is_mean_of_labels,
    )
