"""Writes the output of a stage of a compile as text: `pockfarm build --stop-after STAGE --print`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from compiler.errors import SpecError
from compiler.external import NO_EXTERNAL, External
from compiler.frontend.source_passes import Source
from compiler.frontend.source_text import source_text
from compiler.graph import Graph
from compiler.kernels.spec import signature
from compiler.kernels.text import show, show_fields
from compiler.pipeline import walk
from compiler.program.program import MemoryPlan
from compiler.program.text import program_text
from compiler.rewriting.text import graph_text
from compiler.settings import BuildSettings
from compiler.stages import STAGES, CompiledStep, Stage
from compiler.step.training import TrainingGraph
from compiler.values import Names, Value, name_of


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
