"""Queries of pages over very many runs at once: only the columns that they show or tell apart by."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Text, cast, func, select
from sqlalchemy.orm import Session

from service.artefacts.bundles.manifest import precision
from service.artefacts.bundles.service import built, holds_bundle
from service.dashboard import format as fmt
from service.dashboard import queries
from service.dashboard.facts import Measured, what_of
from service.store.database.models import Bundle, Device, Holding, Run
from service.store.database.models.runs import settings_of_row
from service.work.runs.filter import RunFilter

MAX_MEASURED_RUNS = 2000
MEASURED = (Run.state == "succeeded", Run.median_us.is_not(None))
OF_A_KIND = (
    Run.organisation_id,
    Run.verdict,
    Run.measurement_class,
    Run.target,
    Run.device_id,
    Run.batch,
    Run.bundle_digest,
    Run.dataset_digest,
    Run.own_data,
    Run.own_data_digest,
    Run.wanted_device_id,
)


def measured(session: Session, chosen: RunFilter, limit: int = MAX_MEASURED_RUNS) -> list[Measured]:
    """Returns the newest runs that brought a measurement, the newest first: of runs that are the same in all that the
    database tells of them, the newest stands for all.
    """
    settings = cast(Run.settings, Text).label("settings")
    runs = select(Run.id, settings, *OF_A_KIND).where(*chosen.conditions(), *MEASURED).order_by(Run.id.desc())
    if chosen.model or chosen.plan:
        runs = runs.join(Holding, holds_bundle(Run.bundle_digest, Holding.organisation_id == Run.organisation_id))
    newest = runs.limit(limit).subquery().c
    kind = [column for column in newest if column.key != "id"]
    kinds = select(func.max(newest.id).label("id"), func.count().label("runs"), *kind).group_by(*kind).subquery().c
    named = (  # of the kinds alone, which are few
        select(*kinds, Bundle.model_digest, Holding.name, Holding.plan_name)
        .join(Bundle, Bundle.digest == kinds.bundle_digest)
        .join(Holding, holds_bundle(kinds.bundle_digest, Holding.organisation_id == kinds.organisation_id))
        .order_by(kinds.id.desc())
    )
    return [_measured(session, row) for row in session.execute(named)]


def pickable(session: Session, limit: int) -> tuple[tuple[str, str], ...]:
    """Returns (id, what it was) of the newest runs that brought a measurement."""
    columns = (Run.id, Run.name, Run.mode, Run.target, Run.device_id, Run.created_at, Holding.plan_name)
    statement = (
        select(*columns, Holding.name.label("model_name"))
        .join(Holding, holds_bundle(Run.bundle_digest, Holding.organisation_id == Run.organisation_id))
        .where(*RunFilter().conditions(), *MEASURED)
        .order_by(Run.id.desc())
    )
    rows = session.execute(statement.limit(limit)).all()
    named = select(Device.id, Device.name).where(
        Device.id.in_(sorted({row.device_id for row in rows if row.device_id}))
    )
    devices = {row.id: row.name for row in session.execute(named)}
    return tuple(
        (
            row.id,
            f"{row.name or what_of(row.model_name, row.plan_name, row.target)} · {row.mode} · "
            f"{devices.get(row.device_id, '')} · {fmt.clock(row.created_at)}",
        )
        for row in rows
    )


def _measured(session: Session, row: Any) -> Measured:
    settings = settings_of_row(json.loads(row.settings))
    manifest = built(session, row.bundle_digest).manifest
    batch = queries.manifest_batch(manifest) if row.batch is None else row.batch
    return Measured(
        row.id,
        row.verdict,
        row.measurement_class,
        row.name,
        row.model_digest,
        row.plan_name,
        row.target,
        row.device_id,
        row.dataset_digest or queries.own_data(row),
        settings.mode,
        batch,
        settings.threads,
        precision(manifest),
        row.runs,
    )
