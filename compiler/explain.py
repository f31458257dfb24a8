"""What a plan means for a model, before any kernel is built: `pockfarm plan explain`."""

from __future__ import annotations

from typing import Any

from compiler.bundle.plan_table import MAX_NAME, MAX_ROWS, Planned, plan_table
from compiler.external import NO_EXTERNAL, External
from compiler.graph import Graph
from compiler.pipeline import walk
from compiler.program.program import MemoryPlan
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan
from compiler.spec.records import every_field
from compiler.step.planning.blocks import path_of
from compiler.step.planning.schemes import blocks_of_plan
from compiler.step.training import TrainingGraph
from compiler.warnings import presentable, printable

SCHEMA = "pockfarm.plan-explanation/1"


def explain_plan(model: bytes, settings: BuildSettings, external: External = NO_EXTERNAL) -> dict[str, Any]:
    """The report's table (`compiler.bundle.plan_table`), planned memory, warnings, and every field of both documents.

    Raises: as `compiler.pipeline.compile_step`; the kernels' stage does not run.
    """
    made: dict[str, Any] = {}
    for stage in walk(model, settings, external=external):
        made[stage.name] = stage.made
        if stage.name == "memory":
            break
    training: TrainingGraph = made["training"]
    memory: MemoryPlan = made["memory"]
    plan = {value: part for value, part in made["plan"].items() if value in training.gradients}
    programs = {program.name: program for program in made["place"]}
    train, other, others = programs["train"], programs.get("accumulate"), settings.spec.accumulate - 1
    return {
        "schema": SCHEMA,
        **plan_table(Planned(made["loss"].graph, training, plan, train, other, others)),
        "memory": {
            "arena_bytes": memory.arena_bytes,
            "weights_bytes": memory.weights_bytes,
            "optimizer_bytes": memory.optimizer_bytes,
        },
        "blocks": _blocks(made["forward"], settings.plan),
        "warnings": [warning.to_json() for warning in presentable(training.graph.warnings)],
        "plan": _fields(settings.plan),
        "spec": _fields(settings.spec),
    }


def _blocks(graph: Graph, plan: SparsePlan) -> dict[str, Any]:
    what, found = blocks_of_plan(graph, plan)
    shown = [
        {"path": printable(path_of(graph, block), MAX_NAME), "layers": [layer.number for layer in block.layers]}
        for block in found[:MAX_ROWS]
    ]
    return {"kind": what, "found": shown}


def _fields(record: Any) -> list[dict[str, Any]]:
    return [{"field": place, "value": value, "default": is_default} for place, value, is_default in every_field(record)]
