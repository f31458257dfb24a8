"""Why a compile is where it is, in plain words: its tries, why it waits, and when it may start."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.artefacts.jobs.shares import count_under_way, most_at_once
from service.base.durations import format_duration, format_duration_range
from service.base.schemas import Confidence, Timestamp, View
from service.base.settings import Settings
from service.store.database.models import Event, Job
from service.store.states import end_phrase

NEWEST = 20
ENOUGH = 5
MOST_AHEAD = 1000
"""Compiles ahead are counted up to this many."""


class JobTry(View):
    """A worker's try at a compile, and what followed."""

    n: int
    began_at: Timestamp
    decision: str


class JobWaiting(View):
    """Why a queued compile has not started, and when it may."""

    message: str
    position: int
    """Place in the queue among all compiles, from 1."""
    expected_start_at: Timestamp | None
    confidence: Literal["fair", "rough", "unknown"]
    basis: str
    expires_at: Timestamp


class JobWhy(View):
    """The state of a compile, and the reasons for it."""

    id: str
    state: str
    message: str
    tries: list[JobTry]
    waiting: JobWaiting | None
    """Null unless it is queued."""


def why(session: Session, settings: Settings, job: Job) -> JobWhy:
    """Returns the explanation of a job as it is now."""
    waiting = _waiting(session, job) if job.state == "queued" else None
    message = waiting.message if waiting else _says(settings, job)
    return JobWhy(id=job.id, state=job.state, message=message, tries=_tries(session, job), waiting=waiting)


def _says(settings: Settings, job: Job) -> str:
    if job.state == "compiling":
        stage = f", now at {job.stage} ({job.fraction:.0%})" if job.stage else ""
        stopping = "; it was asked to stop, and does at its worker's next look" if job.cancel_requested else ""
        elapsed = format_duration(time.time() - (job.started_at or job.created_at))
        return f"A worker has been at it for {elapsed}{stage}{stopping}."
    if job.state == "succeeded":
        return "It succeeded" + (
            f", at try {job.attempts} of {settings.compile_attempts}." if job.attempts > 1 else "."
        )
    sentence = f"It {end_phrase(job.state)}: {job.message or job.code or 'no more is known'}".rstrip(".")
    return sentence + "." + (f" Next step: {job.hint}." if job.hint else "")


def _tries(session: Session, job: Job) -> list[JobTry]:
    """Returns the job's attempts, read from its history: each line `compiling`, with the line that came after it."""
    lines = session.scalars(
        select(Event).where(Event.subject == job.id, Event.kind == "state").order_by(Event.id)
    ).all()
    return [
        JobTry(n=int(line.body.get("attempt", 0)), began_at=line.at, decision=_followed(lines[place + 1 : place + 2]))
        for place, line in enumerate(lines)
        if line.body.get("state") == "compiling"
    ]


def _followed(lines: Sequence[Event]) -> str:
    if not lines:
        return "still at work"
    line = lines[0]
    if line.body.get("state") == "queued":
        return f"{line.body.get('reason') or 'it was given back'}; it went back into the queue"
    message = line.body.get("message")
    return f"the job {end_phrase(str(line.body.get('state')))}" + (f": {message}" if message else "")


def _waiting(session: Session, job: Job) -> JobWaiting:
    before = select(Job.id).where(Job.state == "queued", Job.created_at < job.created_at).limit(MOST_AHEAD)
    ahead = session.scalar(select(func.count()).select_from(before.subquery())) or 0
    busy = session.scalar(select(func.count()).where(Job.state == "compiling")) or 0
    start_at, confidence, basis = _expected(session, ahead, busy)
    queue = f"{ahead} compile{' is' if ahead == 1 else 's are'} ahead of it" if ahead else "it is first in the queue"
    at_work = f"{busy} {'is' if busy == 1 else 'are'} under way"
    if not busy:
        at_work = "none is under way: if it stays so, no worker is up (`pockfarm status`, or GET /readyz)"
    most = most_at_once(session)
    if most is not None and count_under_way(session, job.organisation_id) >= most:
        at_work = f"{at_work}, {most} of them of your organisation, which may have no more at once on this farm"
    when = (
        "when it starts is unknown"
        if start_at is None
        else f"it may start in {format_duration(max(0, start_at - time.time()))}"
    )
    return JobWaiting(
        message=f"It waits for a worker: {queue}; {at_work}; {when} ({basis}).",
        position=ahead + 1,
        expected_start_at=start_at,
        confidence=confidence,
        basis=basis,
        expires_at=job.queue_deadline_at,
    )


def _expected(session: Session, ahead: int, busy: int) -> tuple[float | None, Confidence, str]:
    """Estimates when a queued compile starts. Returns the time, its confidence and what it is based on. It assumes that
    as many compiles run at once as now, since the number of workers is configured nowhere.
    """
    newest = (
        select(Job.finished_at - Job.started_at)
        .where(Job.state == "succeeded", Job.started_at.is_not(None), Job.finished_at.is_not(None))
        .order_by(Job.id.desc())
        .limit(NEWEST)
    )
    took = [max(0.0, duration or 0.0) for duration in session.scalars(newest)]
    if not busy:
        return None, "unknown", "whether a worker is up is not known"
    if not took:
        return None, "unknown", "no compile has ended yet, so it is not known how long one takes"
    start_at = time.time() + statistics.median(took) * (ahead + 1) / busy
    basis = f"{len(took)} earlier compile{'' if len(took) == 1 else 's'} took {format_duration_range(took)}"
    return start_at, "rough" if len(took) < ENOUGH or max(took) > 3 * min(took) else "fair", basis
