"""Bodies of the job endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from service.base.schemas import DigestText, Ending, RequestBody, Timestamp, View, columns
from service.store.database.models import Job


class ModelRef(View):
    """The model that a job compiles."""

    name: str
    digest: str
    size_bytes: int


class PlanRef(View):
    """A plan by name and digest."""

    name: str
    digest: str


class JobLinks(View):
    """Paths of what belongs to a job."""

    self: str
    events: str
    bundle: str | None


class TuneCreate(RequestBody):
    """The training bundle whose kernels are to be measured."""

    bundle: DigestText


class JobWarning(View):
    """A warning of the compiler: the step does what was asked, but perhaps not what was meant."""

    code: str
    where: str
    message: str
    hint: str


class JobView(View):
    """A compile job."""

    id: str
    state: Literal["queued", "compiling", "succeeded", "failed", "cancelled", "expired"]
    stage: str
    """The compiler's stage."""
    fraction: float
    """0 to 1."""
    model: ModelRef
    plan: PlanRef
    spec_digest: str
    source_digest: str | None
    """The bundle whose kernels the job's bundle measures; null for a compile."""
    target: str
    compiler_version: str
    bundle_digest: str | None
    warnings: list[JobWarning]
    """Warnings about the bundle; empty until there is one."""
    ending: Ending | None
    attempts: int
    cancel_requested: bool
    created_at: Timestamp
    started_at: Timestamp | None
    finished_at: Timestamp | None
    events_removed_at: Timestamp | None
    """When retention took its events."""
    links: JobLinks


class JobCancelled(JobView):
    """A job that somebody wants to stop."""

    message: str
    """Outcome of the request, in words that follow the job's id."""


def job_view(job: Job, warnings: Sequence[Mapping[str, str]] = ()) -> JobView:
    """Returns the view of a job's row for the API; `warnings` are its bundle's."""
    ending = None
    if job.cause is not None and job.code is not None:
        ending = Ending(cause=job.cause, code=job.code, message=job.message, where=job.place, hint=job.hint)
    plain = columns(JobView, job)
    return JobView(
        **plain,
        model=ModelRef(name=job.model_name, digest=job.model_digest, size_bytes=job.model_bytes),
        plan=PlanRef(name=job.plan_name, digest=job.plan_digest),
        warnings=[JobWarning(**warning) for warning in warnings],
        ending=ending,
        links=JobLinks(
            self=f"/jobs/{job.id}",
            events=f"/jobs/{job.id}/events",
            bundle=f"/bundles/{job.bundle_digest}" if job.bundle_digest else None,
        ),
    )
