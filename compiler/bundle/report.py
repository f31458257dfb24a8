"""The compile report: counts, the arena's picture, what was noted, warned of, and declined.

A table of the report: the launches that each kernel call of a step starts on an accelerator, and the resources that
they take.

The graph before and after the plan, layer by layer: what the model has, and what its training step does for it.

A row stands for the nodes that come from one node of the file. `from` are the rows whose values it reads, so that who
draws it sees where the graph forks. Texts are the model author's, and made presentable.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

from compiler.bundle.archive import REPORT_SCHEMA
from compiler.bundle.plan_table import Planned, plan_table
from compiler.codegen.artefacts import Launch
from compiler.codegen.grid.occupancy import occupancy
from compiler.graph import Graph, Node
from compiler.kernels.spec import signature
from compiler.placement.place import Way
from compiler.program.program import Program, ProgramName
from compiler.program.state import label_of
from compiler.rewriting.passes import Declined, Trace
from compiler.stages import CompiledStep
from compiler.targets import GridTarget, Target
from compiler.values import Value
from compiler.warnings import MAX_CHARACTERS, presentable, printable

MAX_ROWS = 2_000
MAX_NAME = 200
MAX_OPERATORS = 8
"""Kinds named for one row."""


def graph_table(forward: Graph, training: Graph) -> dict[str, Any]:
    """Rows in the order of the forward pass: `name`, `operators` of the forward graph, and how many nodes of the
    training graph each phase has for it; `others` counts those that are for no single layer (the loss, sums)."""
    rows: dict[str, list[Node]] = {}
    for node in forward.nodes:
        rows.setdefault(node.layer, []).append(node)
    row_numbers = {layer: number for number, layer in enumerate(list(rows)[:MAX_ROWS])}
    sources = _sources(forward, row_numbers)
    phases = _phases(training.nodes, row_numbers)
    return {
        "rows": [
            {
                "name": printable(layer, MAX_NAME) or "everything else",
                "operators": sorted({node.op for node in rows[layer]})[:MAX_OPERATORS],
                "nodes": len(rows[layer]),
                "from": sorted(sources[number]),
                **phases.get(number, Counter()),
            }
            for layer, number in row_numbers.items()
        ],
        "rows_left_out": len(rows) - len(row_numbers),
        "others": dict(phases.get(None, Counter())),
    }


def _sources(forward: Graph, row_numbers: dict[str, int]) -> dict[int, set[int]]:
    made_by: dict[Value, int] = {}
    sources: dict[int, set[int]] = {number: set() for number in row_numbers.values()}
    for node in forward.nodes:
        number = row_numbers.get(node.layer)
        if number is None:
            continue
        sources[number] |= {made_by[value] for value in node.inputs if made_by.get(value, number) != number}
        made_by.update(dict.fromkeys(node.outputs, number))
    return sources


def _phases(nodes: Iterable[Node], row_numbers: dict[str, int]) -> dict[int | None, Counter[str]]:
    counts: dict[int | None, Counter[str]] = {}
    for node in nodes:
        counts.setdefault(row_numbers.get(node.layer), Counter())[node.phase] += 1
    return counts


def launch_table(step: CompiledStep, target: Target) -> dict[str, Any]:
    """The field `launches` of a report, of the train program; nothing for a CPU, whose kernels are called."""
    if not isinstance(target, GridTarget):
        return {}
    return {"launches": [_row(name, launch, target) for name, launch in _launches(step, step.programs["train"])]}


def _launches(step: CompiledStep, program: Program) -> list[tuple[str, Launch]]:
    return [
        (label_of(call), launch) for call in program.calls for launch in step.kernels[signature(call.spec)].launches
    ]


def _row(name: str, launch: Launch, target: GridTarget) -> dict[str, object]:
    """Returns a launch as a row, without what only a driver knows of it."""
    took = launch.resources
    row: dict[str, object] = {
        "kernel": name,
        "groups": launch.groups,
        "items": launch.items,
        "shared_bytes": took.shared_bytes,
    }
    if took.registers is None:
        return row
    full = round(occupancy(launch, target.capability), 3)
    return {**row, "registers": took.registers, "spill_bytes": took.spill_bytes, "occupancy": full}


MAX_STEP_BYTES = 2_000_000


def compile_report(step: CompiledStep, step_bytes: int, target: Target) -> dict[str, Any]:
    """Counts and the arena's picture. Stage times are not part of it: a bundle's bytes may not depend on a clock."""
    train = step.programs["train"]
    return {
        "schema": REPORT_SCHEMA,
        "arena": {
            "arena_bytes": step.memory.arena_bytes,
            "bound_bytes": step.memory.bound_bytes,
            "values": _arena_values(step, "train"),
        },
        "memory_curve": [_point(way, chosen=way.memory is step.memory) for way in step.ways()],
        "graph": {
            "forward nodes": len(step.forward.nodes),
            "training nodes": len(step.training.graph.nodes),
            "kernel calls": len(train.calls),
            "distinct kernels": len(step.kernels),
            "kernels scheduled by measurement": len(step.measured),
            "executable bytes": step_bytes,
        },
        **launch_table(step, target),
        "layers": graph_table(step.forward, step.training.graph),
        "passes": _passes(step.trace),
        "groups": _groups(train),
        "notes": _notes(step, step_bytes),
        "plan": plan_table(
            Planned(
                step.forward,
                step.training,
                step.plan,
                train,
                step.programs.get("accumulate"),
                step.optimizer.micro_batches - 1,
            )
        ),
        "warnings": [warning.to_json() for warning in presentable(step.warnings)],
        "declined": _declined(step.trace),
    }


def _point(way: Way, *, chosen: bool) -> dict[str, object]:
    """A way to run the step: the bytes that it needs in all, and its arithmetic by that without repeated kernels."""
    return {
        "name": way.name,
        "needed_bytes": way.memory.needed_bytes,
        "flops": way.flops,
        "flops_ratio": round(way.flops_ratio, 4),
        "taken": chosen,
    }


def _declined(trace: Trace) -> list[dict[str, object]]:
    """Returns where rewrites did not fire: how often by pass and reason, and the first place as an example."""
    by_reason: dict[tuple[str, str], list[Declined]] = {}
    for name, declined in trace.declined():
        by_reason.setdefault((name, declined.code), []).append(declined)
    return [
        {
            "pass": name,
            "code": code,
            "count": len(same),
            "where": printable(same[0].where, MAX_CHARACTERS["where"]),
            "needs": same[0].needs,
        }
        for (name, code), same in sorted(by_reason.items())
    ]


def _passes(trace: Trace) -> list[dict[str, object]]:
    """Returns every pass in the order in which it first ran: on what, how often, and how often it changed something."""
    outcomes: dict[tuple[str, str], list[bool]] = {}
    for step in trace.steps:
        outcomes.setdefault((step.subject, step.name), []).append(step.modified)
    return [
        {"on": subject, "pass": name, "ran": len(changed), "changed": sum(changed)}
        for (subject, name), changed in outcomes.items()
    ]


def _groups(program: Program) -> list[dict[str, int]]:
    """Runs of calls that go part by part of the batch: inclusive positions among the program's calls."""
    groups: list[dict[str, int]] = []
    for parts, run in itertools.groupby(enumerate(program.calls), key=lambda item: item[1].parts):
        positions = [position for position, _ in run]
        if parts > 1:
            groups.append({"first": positions[0], "last": positions[-1], "parts": parts})
    return groups


def _arena_values(step: CompiledStep, name: ProgramName) -> list[dict[str, object]]:
    current_program, last_call = step.programs[name], len(step.programs[name].calls) - 1
    values = []
    for (program, value), (first, last) in sorted(step.memory.live.items()):
        place = step.memory.placements[program, value]
        if program == name and current_program.root(value) == value:
            lives = (max(first, 0), min(last, last_call))
            values.append(_arena_value(current_program.name_of(value), place.offset_bytes, place.size_bytes, *lives))
    for (program, index), place in sorted(step.memory.workspaces.items()):
        if program == name:
            label = f"workspace of {label_of(current_program.calls[index])}"
            values.append(_arena_value(label, place.offset_bytes, place.size_bytes, index, index))
    return values


def _arena_value(name: str, offset_bytes: int, size_bytes: int, first: int, last: int) -> dict[str, object]:
    return {"name": name, "offset_bytes": offset_bytes, "size_bytes": size_bytes, "first": first, "last": last}


def _notes(step: CompiledStep, step_bytes: int) -> list[str]:
    notes = []
    if step_bytes > MAX_STEP_BYTES:
        notes.append(f"the executable has {step_bytes:,} bytes, above the goal of {MAX_STEP_BYTES:,}")
    packed = [tensor for tensor in step.state if tensor.packed]
    if packed:
        copies_bytes = sum(tensor.type.size_bytes for tensor in packed if tensor.copy_of is not None)
        notes.append(
            f"{len(packed)} frozen weights are stored packed, {copies_bytes:,} bytes of them beside the unpacked ones"
        )
    repeated = round(sum(1 / call.parts for call in step.programs["train"].calls if call.again))
    if repeated:
        notes.append(f"{repeated} forward kernels run again in the backward pass: what they make is not kept")
    learning = [step.forward.parameters[value] for value in step.plan]
    created_on_request = step.forward.origins.created
    created = [
        parameter.name for parameter in learning if parameter.created and parameter.name not in created_on_request
    ]
    if created:
        notes.append(
            f"{len(created)} parameters that the exporter had dropped or merged were created, such as {created[0]}"
        )
    return notes
