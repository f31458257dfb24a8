"""Bundles in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.bundles.archive import BundleContent
from service.bundles.manifest import required_features
from service.database.models import Bundle, Job
from service.database.paging import newest_first
from service.storage import StoredFile


def keep_bundle(session: Session, job: Job, stored: StoredFile, content: BundleContent) -> Bundle:
    """The row of a stored bundle that `job` made; another job may have made the same bytes before."""
    existing = session.get(Bundle, stored.digest)
    if existing is not None:
        return existing
    bundle = Bundle(
        digest=stored.digest,
        size_bytes=stored.size_bytes,
        target=job.target,
        model_name=job.model_name,
        model_digest=job.model_digest,
        plan_name=job.plan_name,
        plan_digest=job.plan_digest,
        spec_digest=job.spec_digest,
        required_features=sorted(required_features(content.manifest)),
        manifest=content.manifest,
        compile_report=content.compile_report,
    )
    session.add(bundle)
    session.flush()
    return bundle


def newest_bundles(
    session: Session, filters: Mapping[str, str | None], *, limit: int, cursor: str | None
) -> tuple[Sequence[Bundle], str | None]:
    """A page of bundles whose columns equal the given filters, the newest first, and the next cursor."""
    query = select(Bundle)
    for column, value in filters.items():
        if value is not None:
            query = query.where(getattr(Bundle, column) == value)
    return newest_first(session, query, Bundle.id, limit=limit, cursor=cursor)


def summary(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a manifest that fit in a list: memory, inputs, outputs, kernel count."""
    return {
        "memory": manifest.get("memory", {}),
        "inputs": manifest.get("inputs", []),
        "outputs": manifest.get("outputs", []),
        "kernels": len(manifest.get("kernels", ())),
        "required_features": manifest.get("required_features", []),
    }
