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


def job_table(jobs: Sequence[JobFacts], caption: str) -> Table:
    """Jobs as rows."""
    return table("jobs", caption, COLUMNS, [job_row(entry) for entry in jobs])


def jobs_page(session: Session, chosen: JobFilter, before: str, sort: str) -> Listing:
    """Makes a page of jobs, those older than `before`."""
    jobs = queries.jobs(session, chosen, PAGE_ROWS + 1, before)
    page = jobs[:PAGE_ROWS]
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
        table=job_table(page, "Compile jobs, newest first").sorted_by(sort),
        path=path,
        query=(*query, ("before", before)),
        filters=(
            *([Filter("code", "Ended with", chosen.code, choices((chosen.code,)))] if chosen.code else []),
            Filter("state", "State", chosen.state, (("open", "open (any)"), *choices(JOB_STATES))),
            Filter("model", "Model", chosen.model, choices(values["model"])),
            Filter("plan", "Plan", chosen.plan, choices(values["plan"])),
            Filter("target", "Target", chosen.target, choices(values["target"])),
        ),
        older=addresses.with_query(path, (*query, ("before", page[-1].id))) if len(jobs) > PAGE_ROWS else "",
        newest=addresses.with_query(path, query) if before else "",
    )


def job_row(entry: JobFacts) -> Row:
    """Makes the row of a job."""
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
    """The contents of a job's page."""

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
    explanation: JobWhy
    progress: tuple[Fact, ...]
    """Facts about the progress of an open job."""
    actions: tuple[Action, ...]
    stages: Table | None
    passes: Table | None

    @property
    def announcement(self) -> str:
        """Text that a screen reader reads out when it changes."""
        return f"{self.job.state}{', ' + self.job.stage if self.is_open and self.job.stage else ''}"


def job_page(session: Session, settings: Settings, job_id: str) -> JobPage | None:
    """Makes the page of a job with its bundle and the runs made from it; None when there is no such job."""
    job = queries.job(session, job_id)
    if job is None:
        return None
    built = queries.bundle(session, job.bundle_digest) if job.bundle_digest else None
    row = session.get_one(Job, job_id)
    explanation, is_open = why(session, settings, row), job.state in OPEN_JOB_STATES
    return JobPage(
        job=job,
        chips=(state_chip(job.state),),
        facts=_facts(job, row.plan_digest) + (_bundle_facts(built) if built else ()),
        figures=_figures(job, built) if built else (),
        memory=memory_drawing(session, built.digest, f"{addresses.job(job.id)}/memory", built) if built else None,
        learning=_learning(built) if built else None,
        ways=ways_figure(built) if built else None,
        graph=memory_plan.graph_counts(built) if built else (),
        notes=memory_plan.notes(built) if built else (),
        warnings=memory_plan.warnings(built) if built else (),
        runs=run_table(_runs_of(session, job), "Runs of this bundle", short=True),
        plan_text=pretty(job.plan_text),
        spec_text=pretty(job.spec_text),
        is_open=is_open,
        explanation=explanation,
        progress=progress_facts(job, explanation) if is_open else (),
        actions=job_actions(job),
        stages=stages_table(session, job),
        passes=passes_table(built) if built else None,
    )


def job_data(session: Session, job_id: str, name: str) -> Table | None:
    """Returns a job's `memory` or `plan` table with all of its rows; None when there is no such job or table."""
    job = queries.job(session, job_id)
    if job is None or job.bundle_digest is None:
        return None
    built = queries.bundle(session, job.bundle_digest) if name in ("memory", "plan") else None
    if built is not None and name == "plan":
        return learning_table(built)
    plan = memory_plan.arena_plan(built) if built else None
    return memory_table(plan) if plan else None


def _learning(built: BundleFacts) -> Table | None:
    full = learning_table(built)
    return None if full is None else shown_rows(full)


def _runs_of(session: Session, job: JobFacts) -> list[RunFacts]:
    if job.bundle_digest is None:
        return []
    return queries.runs(session, RunFilter(bundle=job.bundle_digest), 20)


def _facts(job: JobFacts, plan_digest: str) -> tuple[Fact, ...]:
    is_built = job.bundle_digest is not None  # only then do model and plan have pages
    model = addresses.model(job.model_digest) if is_built else ""
    plan = addresses.plan(job.model_digest, plan_digest) if is_built else ""
    return (
        Fact("Job", job.id),
        Fact("Model", f"{job.model_name}, {fmt.size(job.model_bytes)}", model, job.model_digest),
        Fact("Model digest", fmt.short_digest(job.model_digest), hint=job.model_digest),
        Fact("Plan", job.plan_name, plan),
        Fact("Target", job.target),
        Fact("Created", f"{fmt.clock_seconds(job.created_at)} UTC"),
        Fact("Finished", f"{fmt.clock_seconds(job.finished_at)} UTC" if job.finished_at else fmt.ABSENT),
        Fact("Compile attempts", str(job.attempts)),
        Fact("Compiler", fmt.short_digest(job.compiler_version), hint=job.compiler_version),
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


def _figures(job: JobFacts, built: BundleFacts) -> tuple[KeyFigure, ...]:
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
        KeyFigure("Compile time", fmt.duration(job.seconds), under="wall clock"),
        *sizes,
        KeyFigure("Kernel calls", fmt.number(count), under="per step"),
    )


def _above_bound(built: BundleFacts) -> str:
    arena, bound = (memory_plan.planned_bytes(built, name) for name in ("arena_bytes", "bound_bytes"))
    return f"{fmt.percent(arena / bound - 1)} above its bound" if arena and bound else "one training step"


def pretty(text: str) -> str:
    """Returns JSON text with line breaks; other text as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
