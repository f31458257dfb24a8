"""Rows -> facts of one model: its bundles, jobs, runs and best times. Reads only, each with a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, true
from sqlalchemy.orm import Session, defer

from service.artefacts.bundles.service import built, holds_bundle
from service.dashboard import queries
from service.dashboard.facts import BundleFacts, JobFacts, RunFacts
from service.store.database.models import Bundle, Device, Holding, Job, Run

MOST_MODELS = 100
MOST_BUNDLES = 60
MOST_MEASURED = 500
"""Number of newest valid runs among which best times are sought."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model that bundles were made of."""

    digest: str
    name: str
    bundles: int
    newest_at: float


@dataclass(frozen=True, slots=True)
class Built:
    """A bundle of a model, with the figures of its manifest."""

    digest: str
    model_digest: str
    model_name: str
    plan_name: str
    plan_digest: str
    target: str
    size_bytes: int
    created_at: float
    facts: BundleFacts


@dataclass(frozen=True, slots=True)
class Best:
    """The shortest median of one bundle's valid runs on one device."""

    run_id: str
    bundle_digest: str
    device_id: str
    device_name: str
    measurement_class: str
    median_us: float
    runs: int


def models(session: Session) -> list[ModelFacts]:
    """Returns the models of which the caller's organisation holds bundles, those built last first."""
    newest = func.max(Bundle.created_at)
    query = (
        select(Bundle.model_digest, func.max(Holding.name), func.count(), newest)
        .join(Holding, holds_bundle(Bundle.digest, true()))
        .group_by(Bundle.model_digest)
        .order_by(newest.desc())
        .limit(MOST_MODELS)
    )
    return [ModelFacts(*row) for row in session.execute(query)]


def bundles(session: Session, model_digest: str, plan_digest: str = "") -> list[Built]:
    """Returns a model's bundles, the newest first; of one plan, or all."""
    query = (
        select(Bundle, Holding)
        .join(Holding, holds_bundle(Bundle.digest, true()))
        .where(Bundle.model_digest == model_digest, *([Bundle.plan_digest == plan_digest] if plan_digest else []))
        .options(defer(Bundle.manifest))  # recalled below: it may be long
        .order_by(Bundle.created_at.desc())
        .limit(MOST_BUNDLES)
    )
    return [
        Built(
            row.digest,
            model_digest,
            named.name,
            named.plan_name,
            row.plan_digest,
            row.target,
            row.size_bytes,
            row.created_at,
            BundleFacts(
                row.digest,
                row.size_bytes,
                row.target,
                named.name,
                named.plan_name,
                built(session, row.digest).manifest,
                {},
            ),
        )
        for row, named in session.execute(query)
    ]


def jobs(session: Session, model_digest: str, plan_digest: str, limit: int) -> list[JobFacts]:
    """Returns the newest compile jobs of a model; of one plan, or all."""
    of = [Job.model_digest == model_digest, *([Job.plan_digest == plan_digest] if plan_digest else [])]
    ids = select(Job.id).where(*of).order_by(Job.id.desc()).limit(limit)
    return sorted(queries.jobs_by_id(session, list(session.scalars(ids))), key=lambda job: job.id, reverse=True)


def runs(session: Session, digests: Sequence[str], limit: int) -> list[RunFacts]:
    """Returns the newest runs of these bundles."""
    ids = select(Run.id).where(Run.bundle_digest.in_(digests)).order_by(Run.id.desc()).limit(limit)
    return sorted(queries.runs_by_id(session, list(session.scalars(ids))), key=lambda run: run.id, reverse=True)


def best(session: Session, digests: Sequence[str]) -> list[Best]:
    """Returns the shortest median of each bundle on each device, the shortest first."""
    query = (
        select(Run.id, Run.bundle_digest, Run.device_id, Run.measurement_class, Run.median_us)
        .where(
            Run.bundle_digest.in_(digests),
            Run.state == "succeeded",
            Run.median_us.is_not(None),
            Run.verdict == "valid",
            Run.device_id.is_not(None),
        )
        .order_by(Run.id.desc())
        .limit(MOST_MEASURED)
    )
    measurements: dict[tuple[str, str], list[tuple[float, str, str]]] = {}
    for run_id, digest, device_id, of_class, median_us in session.execute(query):
        if device_id is not None and median_us is not None:  # as the query says
            measurements.setdefault((digest, device_id), []).append((median_us, run_id, of_class or ""))
    devices = {device_id for _, device_id in measurements}
    listed = session.execute(select(Device.id, Device.name).where(Device.id.in_(devices)))
    named = {str(row.id): str(row.name) for row in listed}
    shortest = ((key, min(times), len(times)) for key, times in measurements.items())
    bests = [
        Best(run_id, digest, device_id, named.get(device_id, device_id), of_class, median_us, count)
        for (digest, device_id), (median_us, run_id, of_class), count in shortest
    ]
    return sorted(bests, key=lambda best: best.median_us)
