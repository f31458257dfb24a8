"""How many runs stand before one in the lanes of the devices that fit it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from service.database.models import IS_QUEUED, Device, Lane, Run
from service.database.scope import EVERYONES
from service.lanes.finding import in_parts, waiting_lanes
from service.lanes.key import Taker


def ahead_of(session: Session, run: Run, devices: Sequence[Device], *, most: int) -> int:
    """Queued runs that came before it, and that one of the devices may take; counting ends above `most`.

    Those of other organisations count, for they are served too; nothing but their number is told.
    """
    count = 0
    for lane_id in _busy_lanes(session, devices):
        count += _before(session, run, lane_id, most=most + 1 - count)
        if count > most:
            break
    return count


def _busy_lanes(session: Session, devices: Sequence[Device]) -> list[str]:
    """Ids of lanes in which something waits, and which one of the devices fits."""
    takers = [Taker.of(device) for device in devices]
    lane_ids = waiting_lanes(session, frozenset[str]().union(*(one.wishes for one in takers)))
    found = (session.scalars(select(Lane).where(Lane.id.in_(part), ~Lane.is_canary)) for part in in_parts(lane_ids))
    return [lane.id for part in found for lane in part if any(one.may_take(lane) for one in takers)]


def _before(session: Session, run: Run, lane_id: str, *, most: int) -> int:
    before = or_(Run.created_at < run.created_at, and_(Run.created_at == run.created_at, Run.id < run.id))
    query = select(Run.id).where(Run.lane_id == lane_id, IS_QUEUED, Run.queue_deadline_at > time.time(), before)
    count = select(func.count()).select_from(query.limit(most).subquery())
    return session.scalar(count, execution_options=dict(EVERYONES)) or 0
