"""The report of a compile: stages with their times, passes that fired and those that did not, and its buttons."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.artefacts.jobs.why import JobWhy
from service.dashboard import addresses
from service.dashboard import format as fmt
from service.dashboard.actions import Action
from service.dashboard.facts import BundleFacts, JobFacts
from service.dashboard.parts import Fact
from service.dashboard.tables import Column, Row, Table, table
from service.dashboard.visitors import current
from service.store.database.models import OPEN_JOB_STATES, Event

STAGE_COLUMNS = (
    Column("stage", "Stage", primary=True),
    Column("seconds", "Time", "number", "s", 2, hint="Until the next stage was told of"),
    Column("share", "Share", "number", "%", 0),
)
PASS_COLUMNS = (
    Column("pass", "Pass", primary=True),
    Column("on", "On"),
    Column("ran", "Ran", "number"),
    Column("changed", "Changed something", "number"),
    Column("declined", "Places where it did not fire", "number"),
    Column("why", "What it needs there", wrap=True),
)
MOST_EVENTS = 2000


def stages_table(session: Session, job: JobFacts) -> Table | None:
    """Returns a table of the stages that the worker reported, in order; for a job that was compiled twice, those of the
    last time.
    """
    query = (
        select(Event.at, Event.body)
        .where(Event.subject == job.id, Event.kind == "progress")
        .order_by(Event.id.desc())
        .limit(MOST_EVENTS)
    )
    stages = [(at, _stage(body)) for at, body in session.execute(query).all()[::-1] if _stage(body)]
    stages = [stage for stage in stages if job.started_at is None or stage[0] >= job.started_at]
    if not stages:
        return None
    starts = [(name, next(iter(same))[0]) for name, same in itertools.groupby(stages, key=lambda stage: stage[1])]
    end = job.finished_at or time.time()
    lasted = [
        (name, max(0.0, after - at))
        for (name, at), after in zip(starts, [*(at for _, at in starts[1:]), end], strict=True)
    ]
    whole = sum(seconds for _, seconds in lasted) or 1.0
    rows = [Row({"stage": name, "seconds": seconds, "share": 100 * seconds / whole}) for name, seconds in lasted]
    return table("stages", "Stages of the compile", STAGE_COLUMNS, rows)


def _stage(body: Mapping[str, object]) -> str:
    """Returns the name of the stage: `codegen` for `codegen: 61 of 112 kernels`."""
    return str(body.get("stage") or "").partition(":")[0]


def passes_table(built: BundleFacts) -> Table | None:
    """Returns a table of the passes in the order in which they ran, with the places where they declined. Passes that
    changed nothing and declined nothing are listed too.
    """
    ran, declined = _entries(built, "passes"), _entries(built, "declined")
    refused: dict[str, list[Mapping[str, object]]] = {}
    for refusal in declined:
        refused.setdefault(str(refusal.get("pass")), []).append(refusal)
    names = {str(compiler_pass.get("pass")) for compiler_pass in ran}
    idle = [{"pass": name} for name in refused if name not in names]
    rows = [
        _pass_row(compiler_pass, refused.get(str(compiler_pass.get("pass")), [])) for compiler_pass in (*ran, *idle)
    ]
    return table("passes", "What fired, and what did not", PASS_COLUMNS, rows) if rows else None


def _pass_row(compiler_pass: Mapping[str, object], refused: Sequence[Mapping[str, object]]) -> Row:
    counts = [_count(entry.get("count")) or 0 for entry in refused]
    why = "; ".join(
        f"{entry.get('needs', '')} ({count}, such as {entry.get('where', '')})"
        if entry.get("where")
        else f"{entry.get('needs', '')} ({count})"
        for entry, count in zip(refused, counts, strict=True)
    )
    return Row(
        {
            "pass": str(compiler_pass.get("pass", ""))[:100].replace("_", " "),
            "on": str(compiler_pass.get("on", "")) or None,
            "ran": _count(compiler_pass.get("ran")),
            "changed": _count(compiler_pass.get("changed")),
            "declined": sum(counts) or None,
            "why": why[:1000] or None,
        },
        dimmed=not compiler_pass.get("changed"),
    )


def _entries(built: BundleFacts, name: str) -> list[Mapping[str, object]]:
    rows = built.compile_report.get(name)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def progress_facts(job: JobFacts, explanation: JobWhy) -> tuple[Fact, ...]:
    """Returns the place of a queued compile; of one under way what has passed."""
    now = time.time()
    if explanation.waiting is None:
        return (Fact("Elapsed", fmt.duration(max(0.0, now - (job.started_at or job.created_at)))),)
    start_at = explanation.waiting.expected_start_at
    start = fmt.ABSENT if start_at is None else f"{fmt.clock_seconds(start_at)} UTC"
    return (
        Fact("Queued for", fmt.duration(max(0.0, now - job.created_at))),
        Fact("Position", fmt.number(explanation.waiting.position)),
        Fact("May start", start, hint=explanation.waiting.basis),
        Fact("Expires", f"{fmt.clock_seconds(explanation.waiting.expires_at)} UTC"),
    )


def job_actions(job: JobFacts) -> tuple[Action, ...]:
    """Returns the visitor's actions: stop the compile while it is open, compile the same again afterwards."""
    if not current().may("submit"):
        return ()
    if job.state in OPEN_JOB_STATES:
        return (
            Action(
                f"{addresses.job(job.id)}/cancel",
                "Cancel",
                of=job.title,
                is_grave=True,
                sure="What has been compiled so far is lost.",
            ),
        )
    return (Action(f"{addresses.job(job.id)}/retry", "Compile again", of=job.title),)
