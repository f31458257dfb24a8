"""Bundles in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session

from device_agents.wire.receipt import BundleStatement
from service.artefacts.bundles.archive import BundleContent
from service.artefacts.bundles.manifest import required_features
from service.base.problems import NotFound
from service.people.holdings import service as holdings
from service.store.database.insert import insert_if_new
from service.store.database.memory import recalled
from service.store.database.models import Bundle, Holding, Job
from service.store.database.paging import newest_first
from service.store.database.scope import organisation_of
from service.store.storage import StoredFile


def keep_bundle(session: Session, job: Job, stored: StoredFile, content: BundleContent) -> Bundle:
    """Returns the row of a stored bundle that `job` made, and records that the job's organisation holds it. Another job
    may have made the same bytes before.
    """
    fields = {
        "digest": stored.digest,
        "size_bytes": stored.size_bytes,
        "target": job.target,
        "model_name": job.model_name,
        "model_digest": job.model_digest,
        "plan_name": job.plan_name,
        "plan_digest": job.plan_digest,
        "spec_digest": job.spec_digest,
        "required_features": sorted(required_features(content.manifest)),
        "manifest": content.manifest,
        "compile_report": content.compile_report,
    }
    insert_if_new(session, Bundle, fields)
    holdings.hold(
        session,
        "bundle",
        stored.digest,
        size_bytes=stored.size_bytes,
        name=job.model_name,
        plan_name=job.plan_name,
        organisation_id=job.organisation_id,
    )
    return session.get_one(Bundle, stored.digest)


@dataclass(frozen=True, slots=True)
class HeldBundle:
    """A bundle, and what its holder calls it."""

    bundle: Bundle
    holding: Holding


@dataclass(frozen=True, slots=True)
class Built:
    """The part of a bundle's row that never changes, for callers that have already found a row that refers to it."""

    digest: str
    size_bytes: int
    target: str
    model_digest: str
    plan_digest: str
    required_features: Sequence[str]
    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HeldBuilt:
    """A bundle that an organisation holds, like `HeldBundle`, but with only those facts of the bundle that never
    change.
    """

    bundle: Built
    holding: Holding


def built(session: Session, digest: str) -> Built:
    """Returns the bundle of a run that was found before."""

    def read() -> Built:
        row = session.get_one(Bundle, digest)
        return Built(*(getattr(row, name) for name in Built.__slots__))

    return recalled(session, ("built", organisation_of(session), digest), frozenset(), read)


def find(session: Session, digest: str, *, where: str = "digest", hint: str = "GET /bundles lists them") -> HeldBundle:
    """Returns the bundle, if the session's organisation holds it. Raises: NotFound."""
    is_own = Holding.organisation_id == organisation_of(session)
    row = session.execute(
        select(Bundle, Holding).join(Holding, holds_bundle(Bundle.digest, is_own)).where(Bundle.digest == digest)
    ).first()
    if row is None:
        raise _unknown(digest, where, hint)
    return HeldBundle(*row)


def held_bundle(
    session: Session, digest: str, *, where: str = "digest", hint: str = "GET /bundles lists them"
) -> HeldBuilt:
    """Finds a bundle like `find`, for a caller that is about to use it and needs only what never changes. Its holder is
    looked up each time.

    Raises: NotFound; Gone, if retention has taken it, which it does not before this transaction ends.
    """
    holding = holdings.use(session, "bundle", digest, where=where)
    if holding is None:
        raise _unknown(digest, where, hint)
    return HeldBuilt(built(session, digest), holding)


def _unknown(digest: str, where: str, hint: str) -> NotFound:
    return NotFound("bundle.unknown", f"no bundle {digest}", where=where, hint=hint)


def holds_bundle(digest: Any, whose: ColumnElement[bool]) -> ColumnElement[bool]:
    """Returns a condition on `Holding`, to join it with: the row is of this bundle and meets `whose`."""
    return and_(Holding.digest == digest, Holding.kind == "bundle", whose)


def newest_bundles(
    session: Session, *, target: str | None, model_digest: str | None, plan: str | None, limit: int, cursor: str | None
) -> tuple[list[HeldBundle], str | None]:
    """Returns a page of the bundles that the session's organisation holds, the newest first, and the next cursor."""
    filters = ((Bundle.target, target), (Bundle.model_digest, model_digest), (Holding.plan_name, plan))
    query = (
        select(Holding)
        .join(Bundle, Bundle.digest == Holding.digest)
        .where(Holding.kind == "bundle", *(column == value for column, value in filters if value is not None))
    )
    rows, following = newest_first(session, query, Holding.id, limit=limit, cursor=cursor)
    matches = session.scalars(select(Bundle).where(Bundle.digest.in_([row.digest for row in rows])))
    bundles = {bundle.digest: bundle for bundle in matches}
    return [HeldBundle(bundles[row.digest], row) for row in rows], following


def statement(session: Session, digest: str, *, now: float) -> BundleStatement:
    """Returns the farm's statement about a bundle that the session's organisation holds. Raises: NotFound."""
    bundle = find(session, digest).bundle
    query = select(Job.compiler_version).where(Job.bundle_digest == digest).order_by(Job.id.desc()).limit(1)
    return BundleStatement(
        bundle_digest=digest,
        size_bytes=bundle.size_bytes,
        model_digest=bundle.model_digest,
        plan_digest=bundle.plan_digest,
        spec_digest=bundle.spec_digest,
        target=bundle.target,
        compiler=session.scalar(query) or "",
        at=now,
    )


def summary(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a manifest that fit in a list: memory, inputs, outputs, kernel count."""
    return {
        "memory": manifest.get("memory", {}),
        "inputs": manifest.get("inputs", []),
        "outputs": manifest.get("outputs", []),
        "kernels": len(manifest.get("kernels", ())),
        "required_features": manifest.get("required_features", []),
    }
