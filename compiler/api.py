"""The compiler as a library: model bytes, plan and spec in; a bundle out.

Writes the output of a stage of a compile as text: `pockfarm build --stop-after STAGE --print`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from compiler.bundle.archive import (
    ACCUMULATE,
    EXAMPLE,
    HEADER,
    KERNELS,
    LIBRARY,
    ORIGINS,
    REPORT,
    STEP,
    TRAINING,
    WEIGHTS,
    Bundle,
    initial_checkpoint,
    make_bundle,
    to_json,
)
from compiler.bundle.content import Content
from compiler.bundle.manifest import manifest_of
from compiler.bundle.report import MAX_STEP_BYTES, compile_report
from compiler.bundle.training_files import TrainingFiles, training_files
from compiler.bundle.tuning import build_tuning
from compiler.codegen.linking.link import link_binary
from compiler.codegen.linking.shared import EXAMPLE_SOURCE, HEADER_SOURCE, link_library
from compiler.codegen.linking.toolchain import ensure_library
from compiler.errors import SpecError
from compiler.explain import explain_plan
from compiler.export.training import Weights, training_model
from compiler.external import NO_EXTERNAL, External, model_digest
from compiler.frontend.file.prescan import external_locations
from compiler.frontend.source_passes import Source
from compiler.frontend.source_text import source_text
from compiler.graph import Graph
from compiler.identity import compiler_identity
from compiler.kernels.spec import signature
from compiler.kernels.text import show, show_fields
from compiler.pipeline import compile_step, walk
from compiler.program.program import BinaryImage, MemoryPlan
from compiler.program.text import program_text
from compiler.rewriting.text import graph_text
from compiler.settings import BuildSettings
from compiler.stages import STAGES, CompiledStep, Stage
from compiler.step.training import TrainingGraph
from compiler.targets import load as load_target
from compiler.tuning.catalogue import catalogue_of
from compiler.tuning.table import NO_TUNING, TuningEntry, TuningTable, choices_digest
from compiler.values import Names, Value, name_of
from compiler.warnings import CompileWarning, presentable


def text_after(model: bytes, settings: BuildSettings, stage: str, external: External = NO_EXTERNAL) -> str:
    """The text of what a stage made; later stages do not run.

    Raises: SpecError for a stage that there is not; else as `compiler.pipeline.compile_step`.
    """
    if stage not in STAGES:
        raise SpecError(f"no stage {stage!r}", where="stop after", hint=f"stages: {', '.join(STAGES)}")
    return next(text_of(finished) for finished in walk(model, settings, external=external) if finished.name == stage)


def text_of(stage: Stage) -> str:
    """The text of what a stage made."""
    match stage.product:
        case Source() as source:
            return source_text(source)
        case Graph() as graph:
            return graph_text(graph)
        case TrainingGraph() as step:
            return graph_text(step.graph)
        case MemoryPlan() as plan:
            return _lines("memory", _memory_lines(plan, stage.names))
        case CompiledStep() as step:
            return _lines("kernels", _kernel_lines(step))
        case Mapping() as plan:
            parts = ((_named(value, stage.names), show_fields(part)) for value, part in plan.items())
            return _lines("plan", (f"{name} {part}".rstrip() for name, part in parts))
        case programs:
            return "\n".join(map(program_text, programs))


def _lines(head: str, lines: Iterator[str]) -> str:
    return "\n".join([head, *(f"  {line}" for line in lines)]) + "\n"


def _named(value: Value, names: Names) -> str:
    return f"{value} {show(name_of(value, names))}"


def _memory_lines(plan: MemoryPlan, names: Names) -> Iterator[str]:
    bound = f"(bound {plan.bound_bytes}, gap {plan.gap:.2%})"
    yield f"arena {plan.arena_bytes} bytes {bound}, weights {plan.weights_bytes}, optimizer {plan.optimizer_bytes}"
    for (program, value), place in sorted(plan.placements.items()):
        first, last = plan.live.get((program, value), (None, None))
        life = "" if first is None else f", calls {max(first, 0)} to {last}"
        span = f"{place.offset_bytes} to {place.offset_bytes + place.size_bytes}"
        yield f"{program} {_named(value, names)}: {place.region} {span}{life}"
    for (program, position), place in sorted(plan.workspaces.items()):
        span = f"{place.offset_bytes} to {place.offset_bytes + place.size_bytes}"
        yield f"{program} workspace of call {position}: {place.region} {span}"


def _kernel_lines(step: CompiledStep) -> Iterator[str]:
    specs = {signature(call.spec): call.spec for program in step.programs.values() for call in program.calls}
    for name, kernel in step.kernels.items():
        choice = step.choices.get(name)
        schedule = f" scheduled by {choice.text}" if choice is not None else ""
        size_bytes = sum(len(artefact.content) for artefact in kernel.artefacts)
        yield f"{name[:16]}: {size_bytes} bytes{schedule} of {show(specs[name])}"


def compile_training(model: bytes, settings: BuildSettings, external: External = NO_EXTERNAL) -> Bundle:
    """Derive, optimize, plan and build the training step of an ONNX model for one target.

    `external` holds the data files that the model names, by location (`compiler.external`): bytes, or files mapped into
    memory, which are then read as they are needed and held once.
    Same model, plan, spec, target, compiler and measured schedules give the same bytes.
    Raises: CompileError; its kinds say who must act, its text what and where (see `compiler.errors`).
    """
    step = compile_step(model, settings, external, reported=True)
    digests = {
        "model": model_digest(model, external),
        "plan": settings.plan.digest,
        "spec": settings.spec.digest,
        "compiler": f"sha256:{compiler_identity()}",
    }
    if step.measured:
        digests["tuning"] = choices_digest(step.measured)
    board = settings.target
    for triple in (board.zig_triple, *([board.library_triple] if settings.spec.library else [])):
        ensure_library(triple, lambda message: settings.progress(message, 0.9))
    with tempfile.TemporaryDirectory(prefix="pockfarm-link-") as folder:
        image, work_dir = make_image(step, digests, board.name), Path(folder)
        binary = link_binary(image, step.kernels, board, work_dir=work_dir)
        library = link_library(image, step.kernels, board, work_dir=work_dir) if settings.spec.library else None
    report = to_json(compile_report(step, len(binary), board))
    settings.progress("bundle", 0.95)
    files: dict[str, Content] = {
        STEP: binary,
        WEIGHTS: initial_checkpoint(step),
        TRAINING: training_model(step.training, notes=_recipe(model, settings, external))[0],
        ORIGINS: to_json(step.forward.origins.to_json()),
        REPORT: report,
        KERNELS: catalogue_of(
            step.programs["train"].calls, board, threads=step.threads, version=compiler_identity()
        ).to_json(),
    }
    if step.training.accumulation is not None:
        files[ACCUMULATE] = training_model(step.training.accumulation, notes=_recipe(model, settings, external))[0]
    if library is not None:
        files |= {LIBRARY: library, HEADER: HEADER_SOURCE.read_bytes(), EXAMPLE: EXAMPLE_SOURCE.read_bytes()}
    bundle = make_bundle(manifest_of(step, settings, digests), files)
    bundle = replace(bundle, warnings=presentable(step.warnings))
    settings.progress("done", 1.0)
    return bundle


def export_training_graph(
    model: bytes,
    settings: BuildSettings,
    *,
    location: str,
    frozen: Weights = "embedded",
    external: External = NO_EXTERNAL,
) -> tuple[TrainingFiles, tuple[CompileWarning, ...]]:
    """The training step as ONNX for engines that only infer, and what there is to say about it; builds no kernels.

    Frozen weights are in the model (large ones in a data file called `location`), or inputs like those that learn.
    Raises: as `compile_training`.
    """
    step = next(stage.product for stage in walk(model, settings, external=external) if stage.name == "training")
    assert isinstance(step, TrainingGraph)
    metadata = _recipe(model, settings, external)
    return training_files(step, location, frozen, metadata), presentable(step.graph.warnings)


def _recipe(model: bytes, settings: BuildSettings, external: External) -> dict[str, str]:
    """Describes, for the metadata of a training graph, what it was made of."""
    digest = model_digest(model, external)
    return {"model": digest, "plan": settings.plan.canonical_json(), "spec": settings.spec.canonical_json()}


def make_image(step: CompiledStep, digests: Mapping[str, str], target: str) -> BinaryImage:
    """Collects what the linker needs of a compiled step."""
    return BinaryImage(
        programs=step.programs,
        plan=step.memory,
        state=step.state,
        data_inputs=step.training.data_inputs,
        label_arrays=step.training.label_arrays,
        loss=step.training.loss,
        logits=step.training.logits,
        terms=step.training.terms,
        optimizer=step.optimizer,
        threads=step.threads,
        identity={**digests, "target": target},
        batch_axes=step.training.batch_axes,
    )


__all__ = [
    "MAX_STEP_BYTES",
    "NO_TUNING",
    "BuildSettings",
    "Bundle",
    "TuningEntry",
    "TuningTable",
    "build_tuning",
    "compile_report",
    "compile_training",
    "explain_plan",
    "export_training_graph",
    "external_locations",
    "initial_checkpoint",
    "load_target",
    "make_image",
    "text_after",
]
