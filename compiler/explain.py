"""Explains what a plan means for a model, before any kernel is built: `pockfarm plan explain`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
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
from compiler.step.planning.presets import blocks_of_plan
from compiler.step.training import TrainingGraph
from compiler.warnings import presentable, printable

SCHEMA = "pockfarm.plan-explanation/1"


def explain_plan(model: bytes, settings: BuildSettings, external: External = NO_EXTERNAL) -> dict[str, Any]:
    """The report's table (`compiler.bundle.plan_table`), planned memory, warnings, and every field of both documents.

    Raises: as `compiler.pipeline.compile_step`; the kernels' stage does not run.
    """
    stage_results: dict[str, Any] = {}
    for stage in walk(model, settings, external=external):
        stage_results[stage.name] = stage.product
        if stage.name == "memory":
            break
    training: TrainingGraph = stage_results["training"]
    memory: MemoryPlan = stage_results["memory"]
    plan = {value: part for value, part in stage_results["plan"].items() if value in training.gradients}
    programs = {program.name: program for program in stage_results["place"]}
    train, other, others = programs["train"], programs.get("accumulate"), settings.spec.accumulate.steps - 1
    return {
        "schema": SCHEMA,
        **plan_table(Planned(stage_results["loss"].graph, training, plan, train, other, others)),
        "memory": _memory(memory, settings),
        "blocks": _blocks(stage_results["forward"], settings.plan),
        "notes": list(itertools.islice(_notes(settings.plan), MAX_ROWS)),
        "warnings": [warning.to_json() for warning in presentable(training.graph.warnings)],
        "plan": [_of_plan(field, settings.plan) for field in _fields(settings.plan)],
        "spec": _fields(settings.spec),
    }


def _memory(memory: MemoryPlan, settings: BuildSettings) -> dict[str, int]:
    """Returns the memory entries as a manifest has them; the limit is the spec's, or what the target's memory
    leaves.
    """
    limit_bytes = settings.spec.memory_limit_bytes
    return {
        "peak_bytes": memory.needed_bytes,
        "arena_bytes": memory.arena_bytes,
        "bound_bytes": memory.bound_bytes,
        "weights_bytes": memory.weights_bytes,
        "optimizer_bytes": memory.optimizer_bytes,
        "limit_bytes": settings.target.budget_bytes if limit_bytes is None else limit_bytes,
    }


def _notes(plan: SparsePlan) -> Iterator[str]:
    """Yields notes on what the table cannot show."""
    for position, rule in enumerate(plan.rules):
        if rule.channels is not None and rule.channels.select == "magnitude":
            of = "each weight" if rule.channels.along == "input" else f"each {_TOGETHER[rule.channels.along]} together"
            yield (
                f"plan.update[{position}] chooses by the L2 norm of the model's elements, of {of}: of what this rule "
                "decides; what a later rule or `frozen` decides does not count"
            )


_TOGETHER = {"output": "weight and its bias", "heads": "attention", "ffn": "block"}


def _of_plan(description: dict[str, Any], plan: SparsePlan) -> dict[str, Any]:
    """A plan without a name is called by what it has."""
    implied = description["field"] == "name" and plan.name in (plan.preset, "" if plan.lora is None else "lora")
    return {**description, "default": description["default"] or implied}


def _blocks(graph: Graph, plan: SparsePlan) -> dict[str, Any]:
    what, blocks = blocks_of_plan(graph, plan)
    rows = [
        {"path": printable(path_of(graph, block), MAX_NAME), "layers": [layer.number for layer in block.layers]}
        for block in blocks[:MAX_ROWS]
    ]
    return {"kind": what, "found": rows}


def _fields(record: Any) -> list[dict[str, Any]]:
    return [{"field": place, "value": value, "default": is_default} for place, value, is_default in every_field(record)]
