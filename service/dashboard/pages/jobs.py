"""The list of compile jobs, and one job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.artefacts.jobs.filter import JobFilter
from service.artefacts.jobs.why import JobWhy, why
from service.base.settings import Settings
from service.dashboard import addresses, memory_plan, queries
from service.dashboard import format as fmt
from service.dashboard.actions import Action
from service.dashboard.facts import BundleFacts, JobFacts, RunFacts
from service.dashboard.pages.job_report import job_actions, passes_table, progress_facts, stages_table
from service.dashboard.pages.learning import learning_table, shown_rows
from service.dashboard.pages.memory import memory_drawing, memory_table, ways_figure
from service.dashboard.pages.run_table import run_table
from service.dashboard.parts import Chip, Fact, Figure, Filter, KeyFigure, Listing, choices, state_chip
from service.dashboard.tables import Column, Row, Table, table
from service.store.database.models import JOB_STATES, OPEN_JOB_STATES, Job
from service.work.runs.filter import RunFilter

PAGE_ROWS = 50
COLUMNS: tuple[Column, ...] = (
    Column("id", "Id", files_only=True),
    Column("job", "Job", primary=True),
    Column("model", "Model", files_only=True),
    Column("plan", "Plan", files_only=True),
    Column("target", "Target", files_only=True),
    Column("state", "State", "state"),
    Column("stage", "Stage", wrap=True),
    Column("compile_s", "Compile", "number", "s", 1, sortable=True),
    Column("bundle", "Bundle", "code"),
    Column("cause", "Cause", hint="Who has to act when it failed"),
    Column("created_at", "Created", "time", "UTC", sortable=True),
)


def job_table(found: Sequence[JobFacts], caption: str) -> Table:
    """Jobs as rows."""
    return table("jobs", caption, COLUMNS, [job_row(entry) for entry in found])


def jobs_page(session: Session, chosen: JobFilter, before: str, sort: str) -> Listing:
    """One page of jobs, those older than `before`."""
    found = queries.jobs(session, chosen, PAGE_ROWS + 1, before)
    shown = found[:PAGE_ROWS]
    query = tuple(
        (name, value)
        for name, value in (
            ("state", chosen.state),
            ("model", chosen.model),
            ("plan", chosen.plan),
            ("target", chosen.target),
            ("code", chosen.code),
        )
        if value
    )
    path = addresses.page("jobs")
    values = queries.job_values(session)
    return Listing(
        table=job_table(shown, "Compile jobs, newest first").sorted_by(sort),
        path=path,
        query=(*query, ("before", before)),
        filters=(
            *([Filter("code", "Ended with", chosen.code, choices((chosen.code,)))] if chosen.code else []),
            Filter("state", "State", chosen.state, (("open", "open (any)"), *choices(JOB_STATES))),
            Filter("model", "Model", chosen.model, choices(values["model"])),
            Filter("plan", "Plan", chosen.plan, choices(values["plan"])),
            Filter("target", "Target", chosen.target, choices(values["target"])),
        ),
        older=addresses.with_query(path, (*query, ("before", shown[-1].id))) if len(found) > PAGE_ROWS else "",
        newest=addresses.with_query(path, query) if before else "",
    )


def job_row(entry: JobFacts) -> Row:
    """One job."""
    values = {
        "id": entry.id,
        "job": entry.title,
        "state": entry.state,
        "model": entry.model_name,
        "plan": entry.plan_name,
        "target": entry.target,
        "stage": entry.stage or None,
        "compile_s": entry.seconds,
        "bundle": fmt.short_digest(entry.bundle_digest) if entry.bundle_digest else None,
        "cause": entry.cause,
        "created_at": fmt.iso(entry.created_at),
    }
    links = {"job": addresses.job(entry.id)}
    if entry.bundle_digest:
        links["bundle"] = addresses.bundle(entry.bundle_digest)
    return Row(values, links, anchor=entry.id)


@dataclass(frozen=True, slots=True)
class JobPage:
    """What the page of one job shows."""

    job: JobFacts
    chips: tuple[Chip, ...]
    facts: tuple[Fact, ...]
    figures: tuple[KeyFigure, ...]
    memory: Figure | None
    learning: Table | None
    ways: Figure | None
    graph: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    warnings: tuple[Mapping[str, object], ...]
    runs: Table
    plan_text: str
    spec_text: str
    is_open: bool
    said: JobWhy
    progress: tuple[Fact, ...]
    """While it is open."""
    actions: tuple[Action, ...]
    stages: Table | None
    passes: Table | None

    @property
    def announcement(self) -> str:
        """What a screen reader is told when it changes."""
        return f"{self.job.state}{', ' + self.job.stage if self.is_open and self.job.stage else ''}"


def job_page(session: Session, settings: Settings, job_id: str) -> JobPage | None:
    """One job with its bundle and the runs made from it; None when there is no such job."""
    found = queries.job(session, job_id)
    if found is None:
        return None
    built = queries.bundle(session, found.bundle_digest) if found.bundle_digest else None
    row = session.get_one(Job, job_id)
    said, is_open = why(session, settings, row), found.state in OPEN_JOB_STATES
    return JobPage(
        job=found,
        chips=(state_chip(found.state),),
        facts=_facts(found, row.plan_digest) + (_bundle_facts(built) if built else ()),
        figures=_figures(found, built) if built else (),
        memory=memory_drawing(session, built.digest, f"{addresses.job(found.id)}/memory", built) if built else None,
        learning=_learning(built) if built else None,
        ways=ways_figure(built) if built else None,
        graph=memory_plan.graph_counts(built) if built else (),
        notes=memory_plan.notes(built) if built else (),
        warnings=memory_plan.warnings(built) if built else (),
        runs=run_table(_runs_of(session, found), "Runs of this bundle", short=True),
        plan_text=pretty(found.plan_text),
        spec_text=pretty(found.spec_text),
        is_open=is_open,
        said=said,
        progress=progress_facts(found, said) if is_open else (),
        actions=job_actions(found),
        stages=stages_table(session, found),
        passes=passes_table(built) if built else None,
    )


def job_data(session: Session, job_id: str, name: str) -> Table | None:
    """A job's `memory` or `plan` table with all of its rows; None when there is no such job or table."""
    found = queries.job(session, job_id)
    if found is None or found.bundle_digest is None:
        return None
    built = queries.bundle(session, found.bundle_digest) if name in ("memory", "plan") else None
    if built is not None and name == "plan":
        return learning_table(built)
    plan = memory_plan.arena_plan(built) if built else None
    return memory_table(plan) if plan else None


def _learning(built: BundleFacts) -> Table | None:
    found = learning_table(built)
    return None if found is None else shown_rows(found)


def _runs_of(session: Session, found: JobFacts) -> list[RunFacts]:
    if found.bundle_digest is None:
        return []
    return queries.runs(session, RunFilter(bundle=found.bundle_digest), 20)


def _facts(found: JobFacts, plan_digest: str) -> tuple[Fact, ...]:
    is_built = found.bundle_digest is not None  # only then do model and plan have pages
    model = addresses.model(found.model_digest) if is_built else ""
    plan = addresses.plan(found.model_digest, plan_digest) if is_built else ""
    return (
        Fact("Job", found.id),
        Fact("Model", f"{found.model_name}, {fmt.size(found.model_bytes)}", model, found.model_digest),
        Fact("Model digest", fmt.short_digest(found.model_digest), hint=found.model_digest),
        Fact("Plan", found.plan_name, plan),
        Fact("Target", found.target),
        Fact("Created", f"{fmt.clock_seconds(found.created_at)} UTC"),
        Fact("Finished", f"{fmt.clock_seconds(found.finished_at)} UTC" if found.finished_at else fmt.ABSENT),
        Fact("Compile attempts", str(found.attempts)),
        Fact("Compiler", fmt.short_digest(found.compiler_version), hint=found.compiler_version),
    )


def _bundle_facts(built: BundleFacts) -> tuple[Fact, ...]:
    counts = memory_plan.learning(built)
    share = f"{counts[0]:,} of {counts[1]:,} ({fmt.percent(counts[0] / counts[1])})" if counts else ""
    named = (
        ("Parameters that learn", share),
        ("Batch", _batch_text(built)),
        ("Threads", memory_plan.manifest_text(built, "threads")),
        ("Loss", memory_plan.manifest_text(built, "loss").replace("_", " ")),
        ("Optimizer", memory_plan.manifest_text(built, "optimizer")),
        ("Learning rate", memory_plan.manifest_text(built, "learning_rate")),
    )
    return tuple(Fact(label, text) for label, text in named if text)


def _batch_text(built: BundleFacts) -> str:
    batch, parts = memory_plan.manifest_text(built, "batch"), memory_plan.micro_batches(built)
    return f"{batch}, in {parts} micro-batches" if batch and parts > 1 else batch


def _figures(found: JobFacts, built: BundleFacts) -> tuple[KeyFigure, ...]:
    kernels = built.manifest.get("kernels")
    named = (
        ("Arena", memory_plan.planned_bytes(built, "arena_bytes"), _above_bound(built)),
        ("Weights", memory_plan.planned_bytes(built, "weights_bytes"), "in memory"),
        ("Optimizer state", memory_plan.planned_bytes(built, "optimizer_bytes"), "in memory"),
        ("Bundle", built.size_bytes, "download"),
    )
    sizes = tuple(KeyFigure(label, fmt.size(value), under=under) for label, value, under in named)
    count = len(kernels) if isinstance(kernels, list) else 0
    return (
        KeyFigure("Compile time", fmt.duration(found.seconds), under="wall clock"),
        *sizes,
        KeyFigure("Kernel calls", fmt.number(count), under="per step"),
    )


def _above_bound(built: BundleFacts) -> str:
    arena, bound = (memory_plan.planned_bytes(built, name) for name in ("arena_bytes", "bound_bytes"))
    return f"{fmt.percent(arena / bound - 1)} above its bound" if arena and bound else "one training step"


def pretty(text: str) -> str:
    """JSON text with line breaks; other text as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
