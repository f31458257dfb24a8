"""Jobs as workers and the sweeper see them. A worker writes only while its claim holds.

Which states follow which is in `service/store/states.py`; a lost worker or a killed child gives a job back, at most
`compile_attempts` times.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import ColumnElement, Subquery, func, select
from sqlalchemy.orm import Session

from service.artefacts.bundles.archive import BundleContent
from service.artefacts.bundles.service import keep_bundle
from service.artefacts.jobs.shares import has_room, most_at_once
from service.base.identifiers import clean_text, new_secret, secret_hash
from service.store import events, states
from service.store.database.models import HOME, Job
from service.store.outbox import ring_after_commit
from service.store.queue import COMPILE_TASK
from service.store.storage import StoredFile

MAX_MESSAGE_CHARACTERS = 4000
REMEMBERED_S = 3600.0
"""Seconds for which a compile counts as recent: an organisation that had one comes after those that had none."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's right to one job."""

    job_id: str
    claim_hash: str
    attempt: int
    model_digest: str
    plan_json: str
    spec_json: str
    target: str
    source_digest: str | None
    tuning_json: str
    organisation_id: str = HOME


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a compile ended without a bundle. `retry`: the cause may pass (a killed process), so try again."""

    cause: str
    code: str
    message: str
    where: str = ""
    hint: str = ""
    retry: bool = False


class LostClaim(Exception):
    """The job belongs to another worker now, or has ended."""


def claim(session: Session, job_id: str, *, lease_s: float, worker: str | None = None) -> Claim | None:
    """Claims the job if it is queued. Returns None if it is not (a repeated doorbell, a cancelled job).

    `worker` names the process that takes it, for who finds that process dead.
    """
    now, claim_hash = time.time(), secret_hash(new_secret())
    values = {
        "claim_hash": claim_hash,
        "lease_expires_at": now + lease_s,
        "attempts": Job.attempts + 1,
        "started_at": now,
        "stage": "",
        "fraction": 0.0,
        "worker": worker,
    }
    claiming = states.moving(Job, "claim", job_id).values(values).returning(Job.attempts)
    attempt = session.execute(claiming).scalar_one_or_none()
    if attempt is None:
        return None
    events.add(session, job_id, "state", state="compiling", attempt=attempt)
    job = session.get_one(Job, job_id)
    return Claim(
        job_id,
        claim_hash,
        attempt,
        job.model_digest,
        job.plan_json,
        job.spec_json,
        job.target,
        job.source_digest,
        job.tuning_json,
        job.organisation_id,
    )


def claim_next(session: Session, *, lease_s: float, worker: str | None = None) -> Claim | None:
    """Claims a queued job, whichever doorbell was heard. The organisation with the fewest compiles under way comes
    first; among equals, the one whose last compile ended longest ago; within an organisation, the oldest job. Returns
    None if no job waits, or if no organisation with a waiting job has room left in its share of the workers.
    """
    most = most_at_once(session)
    while candidates := _in_turn(session, most):
        for job_id, organisation_id in candidates:  # the first, unless another worker was quicker
            if most is not None and not has_room(session, organisation_id, most):
                continue
            claimed = claim(session, job_id, lease_s=lease_s, worker=worker)
            if claimed is not None:
                return claimed
    return None


def _in_turn(session: Session, most: int | None) -> list[tuple[str, str]]:
    """Returns the oldest queued job of each organisation that has fewer than `most` compiles under way, with the
    organisation; the one whose turn it is comes first.
    """

    def by_organisation(what: ColumnElement[Any], *where: ColumnElement[bool]) -> Subquery:
        return select(Job.organisation_id, what.label("value")).where(*where).group_by(Job.organisation_id).subquery()

    busy = by_organisation(func.count(), Job.state == "compiling")
    served = by_organisation(
        func.max(cast(ColumnElement[float], Job.finished_at)), Job.finished_at > time.time() - REMEMBERED_S
    )
    oldest = (
        select(Job.organisation_id, func.min(Job.id).label("id"))
        .where(Job.state == "queued")
        .group_by(Job.organisation_id)
        .subquery()
    )
    query = (
        select(oldest.c.id, oldest.c.organisation_id)
        .outerjoin(busy, busy.c.organisation_id == oldest.c.organisation_id)
        .outerjoin(served, served.c.organisation_id == oldest.c.organisation_id)
        .order_by(func.coalesce(busy.c.value, 0), func.coalesce(served.c.value, 0.0), oldest.c.id)
    )
    if most is not None:
        query = query.where(func.coalesce(busy.c.value, 0) < most)
    return [(job_id, organisation_id) for job_id, organisation_id in session.execute(query)]


def _mine(session: Session, claim: Claim) -> Job:
    query = select(Job).where(Job.id == claim.job_id, Job.claim_hash == claim.claim_hash, Job.state == "compiling")
    job = session.scalar(query.with_for_update())
    if job is None:
        raise LostClaim(claim.job_id)
    return job


def keep(session: Session, claim: Claim, *, lease_s: float, stage: str = "", fraction: float | None = None) -> bool:
    """Renews the claim, and records progress if there is any. Returns True if the job is to be cancelled. Raises:
    LostClaim.
    """
    job = _mine(session, claim)
    job.lease_expires_at = time.time() + lease_s
    if fraction is not None:
        job.stage, job.fraction = clean_text(stage, 100), min(1.0, max(0.0, fraction))
        events.add(session, job.id, "progress", stage=job.stage, fraction=job.fraction)
    return job.cancel_requested


def spend(session: Session, claim: Claim, cpu_s: float) -> None:
    """Adds processor time that the compile took. Raises: LostClaim."""
    _mine(session, claim).cpu_s += max(0.0, cpu_s)


def succeed(session: Session, claim: Claim, stored: StoredFile, content: BundleContent) -> None:
    """Records the bundle. Raises: LostClaim."""
    job = _mine(session, claim)
    bundle = keep_bundle(session, job, stored, content)
    _end(session, job, "succeeded", bundle=bundle.digest)
    job.bundle_digest, job.fraction, job.stage = bundle.digest, 1.0, "done"


def fail(session: Session, claim: Claim, failure: Failure, *, attempts: int) -> None:
    """Records a failure, or queues the job again if the failure may pass and there were fewer `attempts`. Raises:
    LostClaim.
    """
    job = _mine(session, claim)
    if failure.retry and job.attempts < attempts and not job.cancel_requested:
        give_back(session, job, failure.message)
    else:
        end_with(session, job, "failed", failure)


def cancelled(session: Session, claim: Claim) -> None:
    """Records that the compile was stopped because its owner asked for it. Raises: LostClaim."""
    job = _mine(session, claim)
    end_with(session, job, "cancelled", Failure("user", "job.cancelled", "cancelled while it was compiling"))


def give_back(session: Session, job: Job, reason: str) -> None:
    """Queues a job again whose worker or child was lost."""
    states.move(session, job, "give-back", attempt=job.attempts, reason=clean_text(reason, 500))
    job.claim_hash, job.lease_expires_at, job.rung_at, job.worker = None, None, time.time(), None
    job.stage, job.fraction = "", 0.0
    ring_after_commit(session, COMPILE_TASK, job.id)


def lose(session: Session, job: Job, *, attempts: int, reason: str) -> None:
    """Takes a job from a worker that is dead or silent: queues it again, or ends it after the last of `attempts`."""
    if job.cancel_requested:
        end_with(session, job, "cancelled", Failure("user", "job.cancelled", "cancelled"))
    elif job.attempts < attempts:
        give_back(session, job, reason)
    else:
        end_with(
            session,
            job,
            "failed",
            Failure(
                "infra",
                "infra.worker-lost",
                f"{reason}, {job.attempts} times in a row",
                hint="perhaps the workers run out of memory; see their log, then send the request again",
            ),
        )


def end_with(session: Session, job: Job, state: str, failure: Failure) -> None:
    """Ends a job without a bundle."""
    message = clean_text(failure.message, MAX_MESSAGE_CHARACTERS)
    _end(session, job, state, cause=failure.cause, code=failure.code, message=message)
    job.cause, job.code, job.message = failure.cause, failure.code, message
    job.place, job.hint = clean_text(failure.where, 500), clean_text(failure.hint, 1000)


def _end(session: Session, job: Job, state: str, **body: object) -> None:
    states.move(session, job, states.EVENT_OF[state], **body)
    job.claim_hash, job.lease_expires_at, job.worker = None, None, None
    _ring_for_next(session, job)


def _ring_for_next(session: Session, job: Job) -> None:
    """Rings for the organisation's next job, whose doorbell may have been heard while the organisation's share of the
    workers was full.
    """
    query = select(Job.id).where(Job.organisation_id == job.organisation_id, Job.state == "queued")
    job_id = session.scalar(query.order_by(Job.id).limit(1)) if most_at_once(session) else None
    if job_id is not None:
        ring_after_commit(session, COMPILE_TASK, job_id)
