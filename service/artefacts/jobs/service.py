"""Jobs as their owners see them: submitted, coalesced, listed, cancelled."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.artefacts.bundles import service as bundles
from service.artefacts.bundles.manifest import is_tuning
from service.artefacts.bundles.service import HeldBundle
from service.artefacts.jobs.filter import JobFilter
from service.artefacts.jobs.request import CompileRequest, compiler_version
from service.artefacts.tunings import service as tunings
from service.artefacts.tunings.schemas import table_view
from service.base.identifiers import digest_of
from service.base.problems import Invalid, NotFound, TooMany
from service.base.settings import Settings
from service.people.holdings import service as holdings
from service.people.quotas import limits as quotas
from service.store import events, states
from service.store.database.models import HOME, OPEN_JOB_STATES, Job
from service.store.database.paging import newest_first
from service.store.database.scope import organisation_of
from service.store.outbox import ring_after_commit
from service.store.queue import COMPILE_TASK

RETRY_AFTER_S = 30


def submit(session: Session, request: CompileRequest, *, api_key_id: str, settings: Settings) -> Job:
    """Returns the job of `request`: a new one, or the one that is already open or has already succeeded.

    It compiles with the schedules that measurements have chosen for the target so far.
    Raises: TooMany when the key has too many open jobs.
    """
    rows = tunings.newest(session, request.target)
    if rows:
        request = replace(request, tuning_json=table_view(rows).model_dump_json(by_alias=True))
    return _submit(session, _new_job(session, request, api_key_id, settings), settings)


def submit_tuning(session: Session, bundle_digest: str, *, api_key_id: str, settings: Settings) -> Job:
    """Submits the job that makes the tuning bundle of a bundle. Raises: NotFound, Invalid (not a training bundle),
    TooMany.
    """
    held = bundles.find(session, bundle_digest, where="bundle", hint="POST /compile makes one")
    if is_tuning(held.bundle.manifest):
        raise Invalid(
            "bundle.kind",
            "this bundle already measures schedules",
            where="bundle",
            hint="run it in mode tune, or name the training bundle that it was made of",
        )
    holdings.use(session, "bundle", bundle_digest, where="bundle")
    return _submit(session, _tuning_job(session, held, api_key_id, settings), settings)


def _submit(session: Session, job: Job, settings: Settings) -> Job:
    current = _current(session, job.request_digest)
    if current is not None:
        return current
    _check_quota(session, job.api_key_id, settings)
    quotas.check(session, settings, "open_jobs")
    quotas.check(session, settings, "compile_cpu_s_per_day", more=0)
    try:
        with session.begin_nested():
            session.add(job)
    except IntegrityError:  # the same request, at the same time, was first
        winner = _current(session, job.request_digest)
        assert winner is not None
        return winner
    events.add(session, job.id, "state", state="queued")
    ring_after_commit(session, COMPILE_TASK, job.id)
    return job


def _current(session: Session, request_digest: str) -> Job | None:
    states = (*OPEN_JOB_STATES, "succeeded")
    return session.scalar(select(Job).where(Job.request_digest == request_digest, Job.state.in_(states)))


def _check_quota(session: Session, api_key_id: str, settings: Settings) -> None:
    query = select(func.count()).select_from(Job).where(Job.api_key_id == api_key_id, Job.state.in_(OPEN_JOB_STATES))
    count = session.scalar(query) or 0
    if count >= settings.open_jobs_per_key:
        raise TooMany(
            "limits.open-jobs",
            f"this key has {count} open jobs, the limit is {settings.open_jobs_per_key}",
            retry_after_s=RETRY_AFTER_S,
            hint="wait until some have ended, or cancel them",
        )


def own_digest(session: Session, parts: Mapping[str, str]) -> str:
    """Returns the digest that makes two requests of one organisation the same: equal for those that must give the same
    bundle.
    """
    whose = organisation_of(session)
    identity = parts if whose == HOME else {**parts, "organisation": whose}
    return digest_of(json.dumps(identity, sort_keys=True).encode())


def _new_job(session: Session, request: CompileRequest, api_key_id: str, settings: Settings) -> Job:
    return Job(
        api_key_id=api_key_id,
        request_digest=own_digest(session, request.parts),
        model_name=request.model_name,
        model_digest=request.model_digest,
        model_bytes=request.model_bytes,
        plan_name=request.plan.name,
        plan_digest=request.plan.digest,
        plan_json=request.plan.canonical_json(),
        spec_digest=request.spec.digest,
        spec_json=request.spec.canonical_json(),
        target=request.target,
        compiler_version=request.compiler_version,
        tuning_json=request.tuning_json,
        queue_deadline_at=time.time() + settings.queue_s,
    )


def _tuning_job(session: Session, source_bundle: HeldBundle, api_key_id: str, settings: Settings) -> Job:
    """Makes the tuning job of a bundle. Model, plan and spec are those of the source; what is built follows from the
    source alone.
    """
    bundle = source_bundle.bundle
    origin = session.scalars(select(Job).where(Job.bundle_digest == bundle.digest).limit(1)).first()
    version = compiler_version(settings)
    return Job(
        api_key_id=api_key_id,
        request_digest=own_digest(session, {"compiler": version, "tune": bundle.digest}),
        model_name=source_bundle.holding.name,
        model_digest=bundle.model_digest,
        model_bytes=origin.model_bytes if origin else 0,
        plan_name=source_bundle.holding.plan_name,
        plan_digest=bundle.plan_digest,
        plan_json=origin.plan_json if origin else "",
        spec_digest=bundle.spec_digest,
        spec_json=origin.spec_json if origin else "",
        source_digest=bundle.digest,
        files_removed_at=origin.files_removed_at if origin else None,
        target=bundle.target,
        compiler_version=version,
        queue_deadline_at=time.time() + settings.queue_s,
    )


def find(session: Session, job_id: str) -> Job:
    """Returns the job. Raises: NotFound."""
    job = session.get(Job, job_id)
    if job is None:
        raise NotFound("job.unknown", f"no job {job_id!r:.60}", hint="GET /jobs lists them")
    return job


def newest_jobs(
    session: Session, chosen: JobFilter, *, limit: int, cursor: str | None
) -> tuple[Sequence[Job], str | None]:
    """Returns a page of jobs, the newest first, and the next cursor."""
    return newest_first(session, select(Job).where(*chosen.conditions()), Job.id, limit=limit, cursor=cursor)


def cancel(session: Session, job_id: str) -> Job:
    """Asks a job to stop. A queued one ends at once, a compiling one when its worker looks next, and an ended one stays
    as it is.
    """
    job = session.scalar(select(Job).where(Job.id == job_id).with_for_update())
    if job is None:
        return find(session, job_id)
    if job.state == "queued":
        states.move(session, job, "cancel")
        job.cause, job.code, job.message = "user", "job.cancelled", "cancelled before it started"
    elif job.state == "compiling":
        job.cancel_requested = True
    return job
