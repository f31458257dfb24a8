"""Putting a run into its lane, for good: what decides the lane of a run never changes."""

from __future__ import annotations

import time
from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.artefacts.bundles.service import built
from service.store.calls import call_for
from service.store.database.insert import insert_if_new
from service.store.database.memory import recalled
from service.store.database.models import NO_LANE_YET, Lane, Run
from service.store.database.scope import organisation_of
from service.work.lanes.key import LaneKey
from service.work.lanes.rarest import rarest_wish
from service.work.runs import compared


def enter(session: Session, run: Run, features: Collection[str]) -> None:
    """Put a new run into its lane, and write down how devices find it."""
    key = LaneKey.of(run, features, run.organisation_id or organisation_of(session))
    run.lane_id, run.attempts = key.id, run.attempts or 0
    run.rarest_wish, run.asked_s = rarest_wish(session, key), run.settings.time_limit_s or 0.0
    call_for(session, run)
    if recalled(session, ("lane", key.id), frozenset(), lambda: session.get(Lane, key.id) and key.id) is None:
        insert_if_new(session, Lane, key.columns() | {"created_at": time.time()})


def enter_queued(session: Session, *, most: int) -> int:
    """Put queued runs into their lanes that older code has queued; how many, at most `most`."""
    query = select(Run).where(NO_LANE_YET).order_by(Run.created_at, Run.id).limit(most)
    runs = list(session.scalars(query.with_for_update(skip_locked=True)))
    for run in runs:
        enter(session, run, compared.features(built(session, run.bundle_digest), compared.others(session, run)))
    return len(runs)
